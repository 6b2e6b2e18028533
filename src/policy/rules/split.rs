//! A file of rules, cut into its rules: each with the place where it begins.
//!
//! Knows of Cedar's text only what strings, comments and the `;` at a rule's end look like. So each rule is parsed by
//! itself: one that is broken hides no problem of another, and every place is known.

/// One rule, from its first letter to its `;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleSource<'t> {
    pub(super) text: &'t str,
    /// From 1.
    pub(super) line: usize,
    /// From 1, in characters.
    pub(super) column: usize,
}

impl RuleSource<'_> {
    /// Line and column, in the file, of the byte at `offset` of the rule.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        match before.rsplit_once('\n') {
            None => (self.line, self.column + before.chars().count()),
            Some((lines, last)) => {
                (self.line + 1 + lines.matches('\n').count(), 1 + last.chars().count())
            }
        }
    }
}

/// The rules of a text in their order; what stands behind the last `;` is one more.
pub(super) fn split(text: &str) -> impl Iterator<Item = RuleSource<'_>> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut line, mut column) = (1, 1);
    std::iter::from_fn(move || {
        let between = blank(rest);
        advance(rest.get(..between).unwrap_or_default(), &mut line, &mut column);
        rest = rest.get(between..).unwrap_or_default();
        if rest.is_empty() {
            return None;
        }
        let (rule, after) = rest.split_at(end(rest));
        let source = RuleSource { text: rule, line, column };
        advance(rule, &mut line, &mut column);
        rest = after;
        Some(source)
    })
}

fn advance(text: &str, line: &mut usize, column: &mut usize) {
    match text.rsplit_once('\n') {
        None => *column += text.chars().count(),
        Some((_, last)) => {
            *line += text.matches('\n').count();
            *column = 1 + last.chars().count();
        }
    }
}

/// Bytes of white space and comments at the beginning.
fn blank(text: &str) -> usize {
    let mut rest = text.trim_start();
    while rest.starts_with("//") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    text.len() - rest.len()
}

/// Where the first rule ends: behind its `;`, or at the end.
fn end(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate();
    let mut last = 0;
    while let Some((at, byte)) = bytes.next() {
        match (byte, last) {
            (b';', _) => return at + 1,
            (b'"', _) => {
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            (b'/', b'/') => drop(bytes.find(|(_, byte)| *byte == b'\n')),
            _ => {}
        }
        last = byte;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_found_with_its_place() {
        let text = "// first; not a rule\npermit(a, \"x;\\\"y\"); forbid\n // here; too\n (b);\n\n  half \"é";
        let found: Vec<_> = split(text).map(|it| (it.text, it.line, it.column)).collect();
        assert_eq!(
            found,
            [
                ("permit(a, \"x;\\\"y\");", 2, 1),
                ("forbid\n // here; too\n (b);", 2, 21),
                ("half \"é", 6, 3),
            ]
        );
        assert_eq!(split(" // nothing\n").count(), 0);
        assert_eq!(split("//").count(), 0);
    }

    #[test]
    fn places_within_a_rule_are_those_of_the_file() {
        let text = "permit(a);  permit(\n é b\n);";
        let rule = split(text).nth(1).unwrap();
        assert_eq!((rule.place(0), rule.place(7)), ((1, 13), (1, 20)));
        assert_eq!(rule.place(rule.text.find('b').unwrap()), (2, 4));
        assert_eq!(rule.place(1000), rule.place(rule.text.len()));
    }
}
