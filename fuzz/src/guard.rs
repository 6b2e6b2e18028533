//! Target `guard`: the bounds on `structuredContent` are exact, for every value and every split.
//!
//! Input: a byte that decides the splits, a byte for each bound, then a document in a shorthand that is always valid: `[` and `{`
//! open a container, `]` or `}` closes the innermost one, `s` `n` `b` `e` and space are a string, a number, a literal, an empty string
//! with escapes, and white space; any other byte is a string of that length. Separators and missing ends are filled in.

use mcpproxy_json::scan::{Breach, Guard, ScanLimits, Scanner};

use super::scan::{Cutter, bound};

/// Maximum nesting of the document, because this reference implementation is recursive.
const MAX_NESTING: u64 = 300;

pub fn run(data: &[u8]) {
    let [cuts, max_bytes, max_depth, shorthand @ ..] = data else { return };
    let mut document = Document { shorthand, text: Vec::new(), opened: Vec::new() };
    let depth = document.value(1);
    let Document { text, opened, .. } = document;
    let len = text.len() as u64;

    let mut cutter = Cutter(u64::from(*cuts));
    let any = (bound(*max_bytes), bound(*max_depth));
    let wide = (u64::MAX, u64::from(u32::MAX));
    for (max_bytes, max_depth) in [
        any,
        (len - 1, wide.1),
        (len, wide.1),
        (wide.0, depth),
        (wide.0, depth.saturating_sub(1)),
        (any.0, depth.saturating_sub(1)),
        (len - 1, any.1),
    ] {
        let limits = ScanLimits { max_bytes, max_depth: max_depth as u32 };
        let long = (len > max_bytes).then_some((max_bytes, Guard::Bytes));
        let deep = opened.iter().find(|(_, depth)| *depth > max_depth);
        let deep = deep.map(|(at, _)| (*at, Guard::Depth));
        assert_eq!(deep.is_some(), depth > max_depth, "the reference is wrong");
        let first = match (long, deep) {
            (Some(long), Some(deep)) if deep.0 < long.0 => Some(deep),
            (long, deep) => long.or(deep),
        };
        check(&text, limits, first, &mut cutter);
    }
}

fn check(text: &[u8], limits: ScanLimits, want: Option<(u64, Guard)>, cutter: &mut Cutter) {
    let error_first = cutter.next().is_multiple_of(2);
    let (head, tail): (&[u8], &[u8]) = if error_first {
        (br#"{"id":1,"result":{"isError":true,"structuredContent":"#, br#","content":[[[]]]}}"#)
    } else {
        (br#"{"result":{"content":[[[]]],"structuredContent":"#, br#","isError":true},"id":1}"#)
    };
    let want = want.map(|(at, guard)| Breach {
        guard,
        at: head.len() as u64 + at,
        limit: match guard {
            Guard::Bytes => limits.max_bytes,
            Guard::Depth => u64::from(limits.max_depth),
        },
        after_is_error_true: error_first,
    });
    let message = [head, text, tail].concat();
    let mut scanner = Scanner::new(limits, 1);
    let mut rest = &*message;
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(cutter.len(rest.len()));
        assert_eq!(scanner.feed(chunk), Ok(()));
        rest = later;
        let certain = want.filter(|breach| breach.at < scanner.position());
        assert_eq!(scanner.envelope().breach, certain, "known at its byte");
    }
    assert_eq!(scanner.finish(), Ok(()));
    assert_eq!(scanner.envelope().is_error, Some(true));
}

/// Writes the document of a shorthand.
struct Document<'a> {
    shorthand: &'a [u8],
    text: Vec<u8>,
    /// Offset of each opening bracket, and its depth.
    opened: Vec<(u64, u64)>,
}

impl Document<'_> {
    /// Writes a value. A container opened here is at nesting `level`. Returns the depth of the value.
    fn value(&mut self, level: u64) -> u64 {
        let Some((&first, rest)) = self.shorthand.split_first() else {
            self.text.extend(b"null");
            return 0;
        };
        self.shorthand = rest;
        match first {
            b'[' | b'{' if level <= MAX_NESTING => return self.container(first, level),
            b'n' => self.text.extend(b"-12.5e+3"),
            b'b' => self.text.extend(b"false"),
            b'e' => self.text.extend(br#""\\\"[{\\\\""#),
            other => {
                self.text.push(b'"');
                self.text.extend((0..other).map(|n| b"[{]}, :x"[usize::from(n % 8)]));
                self.text.push(b'"');
            }
        }
        0
    }

    fn container(&mut self, open: u8, level: u64) -> u64 {
        self.opened.push((self.text.len() as u64, level));
        self.text.push(open);
        let (mut depth, mut first) = (1, true);
        while let Some((&next, rest)) = self.shorthand.split_first() {
            if matches!(next, b']' | b'}' | b' ') {
                self.shorthand = rest;
                if next != b' ' {
                    break;
                }
                self.text.extend([b' '; 7]);
                continue;
            }
            if !first {
                self.text.push(b',');
            }
            first = false;
            if open == b'{' {
                self.text.extend(br#""\"}":"#);
            }
            depth = depth.max(1 + self.value(level + 1));
        }
        self.text.push(open + 2);
        depth
    }
}
