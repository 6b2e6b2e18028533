//! Handle of a kept result, and the id that replaces it in records.
//!
//! A handle is `kept_` and 32 random hex digits. In a fleet, `_` and 8 digits follow: the number of the node that
//! keeps the result.

use std::borrow::Cow;
use std::fmt;

/// Prefix of a handle.
const PREFIX: &str = "kept_";
/// Random hex digits: 128 bits.
const DIGITS: usize = 32;
/// Hex digits of a node's number.
const NODE_DIGITS: usize = 8;

/// Unguessable name of one kept result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResultHandle {
    random: [u8; DIGITS / 2],
    /// Number of the node that keeps the result; 0 without a fleet.
    node: u32,
}

/// Hash of a handle. Identifies the result in the store and in records without granting access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResultId([u8; 16]);

impl ResultHandle {
    pub(crate) fn new(random: [u8; DIGITS / 2]) -> Self {
        Self { random, node: 0 }
    }

    /// Handle with the number of the node that keeps the result; 0 for none.
    pub(crate) fn kept_at(self, node: u32) -> Self {
        Self { node, ..self }
    }

    /// Number of the node that keeps the result; 0 for none.
    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// Parses the displayed form.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let (random, node) = match digits.split_once('_') {
            None => (digits, 0),
            Some((random, node)) if is_hex(node, NODE_DIGITS) => {
                (random, u32::from_str_radix(node, 16).ok().filter(|node| *node != 0)?)
            }
            Some(_) => return None,
        };
        let number = u128::from_str_radix(random, 16).ok().filter(|_| is_hex(random, DIGITS))?;
        Some(Self { random: number.to_be_bytes(), node })
    }

    pub(crate) fn id(&self) -> ResultId {
        let hash = blake3::hash(&self.random);
        let (first, _) = hash.as_bytes().split_at(16);
        ResultId(first.try_into().unwrap_or_default())
    }
}

impl fmt::Display for ResultHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}", u128::from_be_bytes(self.random))?;
        match self.node {
            0 => Ok(()),
            node => write!(f, "_{node:08x}"),
        }
    }
}

/// Prints the id, not the handle.
impl fmt::Debug for ResultHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResultHandle({})", self.id())
    }
}

impl fmt::Display for ResultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Replaces each handle in a text by its id, for records. Also finds handles spelled with JSON escapes.
pub fn without_handles(text: &str) -> Cow<'_, str> {
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some((_, next)) = unit(text, at) {
        match handle_at(text, at) {
            Some((handle, end)) => {
                out.push_str(text.get(copied..at).unwrap_or_default());
                out.push_str(&format!("{PREFIX}#{}", handle.id()));
                (copied, at) = (end, end);
            }
            None => at = next,
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(out + text.get(copied..).unwrap_or_default()),
    }
}

/// Handle at `at`, without the node, and its end.
fn handle_at(text: &str, mut at: usize) -> Option<(ResultHandle, usize)> {
    let mut read = String::new();
    for expected in PREFIX.chars().map(Some).chain([None; DIGITS]) {
        let (letter, next) = unit(text, at)?;
        let fits = expected.map_or_else(|| letter.is_ascii_hexdigit(), |it| it == letter);
        if !fits {
            return None;
        }
        read.push(letter);
        at = next;
    }
    Some((ResultHandle::parse(&read)?, at))
}

/// Next character of `text` from `at`, with `\u` escapes decoded, and the offset after it. Any other escape yields
/// the backslash and is skipped.
fn unit(text: &str, at: usize) -> Option<(char, usize)> {
    let rest = text.get(at..)?;
    let letter = rest.chars().next()?;
    if letter != '\\' {
        return Some((letter, at + letter.len_utf8()));
    }
    let digits = rest.get(2..6).filter(|digits| rest.starts_with("\\u") && is_hexadecimal(digits));
    if let Some(digits) = digits {
        let code = u32::from_str_radix(digits, 16).ok();
        return Some((code.and_then(char::from_u32).unwrap_or('\u{fffd}'), at + 6));
    }
    // A backslash before any other character is not an escape: the text is not JSON, and the rest is read verbatim.
    let escapes = rest.as_bytes().get(1).is_some_and(|escaped| br#""\/bfnrtu"#.contains(escaped));
    Some((letter, at + 1 + usize::from(escapes)))
}

fn is_hexadecimal(digits: &str) -> bool {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn is_hex(digits: &str, count: usize) -> bool {
    digits.len() == count && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_parses_only_its_display_form() {
        let handle = ResultHandle::new([0xab; 16]);
        let shown = handle.to_string();
        assert_eq!(shown, format!("kept_{}", "ab".repeat(16)));
        assert_eq!(ResultHandle::parse(&shown), Some(handle));
        let small = ResultHandle::new([0; 16]);
        assert_eq!(ResultHandle::parse(&small.to_string()), Some(small));
        for text in [
            "",
            "kept_",
            &shown[5..],
            &shown.to_uppercase(),
            &shown[..36],
            &format!("{shown}0"),
            &format!("kept_+{}", "a".repeat(31)),
            &format!("kept_{}", "g".repeat(32)),
            &format!("kept_{}", "é".repeat(16)),
        ] {
            assert_eq!(ResultHandle::parse(text), None, "{text}");
        }
    }

    #[test]
    fn handle_contains_the_node_in_a_fleet() {
        let handle = ResultHandle::new([0xab; 16]).kept_at(0x0102);
        let shown = handle.to_string();
        assert_eq!(shown, format!("kept_{}_00000102", "ab".repeat(16)));
        assert_eq!(ResultHandle::parse(&shown).map(|it| (it, it.node())), Some((handle, 0x0102)));
        assert_eq!(handle.kept_at(0), ResultHandle::new([0xab; 16]));
        assert_eq!(handle.id(), handle.kept_at(7).id(), "found by its unguessable part");
        for text in [
            &shown[..45],
            &format!("{shown}0"),
            &format!("{shown}_"),
            &shown.replace("_00000102", "_00000000"),
            &shown.replace("_00000102", "_0000010G"),
            &shown.replace("_00000102", "_+0000102"),
            &shown.replace("kept_ab", "kept_"),
            &shown.replace("ab_", "_"),
        ] {
            assert_eq!(ResultHandle::parse(text), None, "{text}");
        }
        let id = handle.id();
        let (output, without) = (format!("see {shown}."), format!("see kept_#{id}_00000102."));
        assert_eq!(without_handles(&output), without);
    }

    #[test]
    fn debug_output_and_id_do_not_reveal_the_handle() {
        let handle = ResultHandle::new([7; 16]);
        let (shown, id) = (handle.to_string(), handle.id().to_string());
        assert!(!id.contains(&shown[5..]) && !format!("{handle:?}").contains(&shown[5..]));
        for (text, without) in [
            ("kept_, no handle: kept_0é".to_owned(), "kept_, no handle: kept_0é".to_owned()),
            (format!(r#"{{"handle":"{shown}"}}"#), format!(r##"{{"handle":"kept_#{id}"}}"##)),
            (format!("{shown}{shown}x"), format!("kept_#{id}kept_#{id}x")),
            (format!("kept_kept_{shown}"), format!("kept_kept_kept_#{id}")),
            // Text that is not JSON: the backslash is not an escape.
            (format!("C:\\{shown} \\\\{shown}"), format!("C:\\kept_#{id} \\\\kept_#{id}")),
        ] {
            assert_eq!(without_handles(&text), without);
        }
    }

    #[test]
    fn every_json_spelling_of_a_handle_is_replaced() {
        let handle = ResultHandle::new([0x0f; 16]);
        let (shown, id) = (handle.to_string(), handle.id().to_string());
        let escaped = |letter: char, upper: bool| match upper {
            true => format!("\\u{:04X}", u32::from(letter)),
            false => format!("\\u{:04x}", u32::from(letter)),
        };
        let mut spellings: Vec<String> = [true, false]
            .map(|upper| shown.chars().map(|letter| escaped(letter, upper)).collect::<String>())
            .into();
        for at in 0..shown.len() {
            let (before, rest) = shown.split_at(at);
            let (letter, after) = rest.split_at(1);
            spellings
                .push(format!("{before}{}{after}", escaped(letter.chars().next().unwrap(), true)));
        }
        for spelt in spellings {
            let text = format!(r#"{{"handle":"{spelt}","é\\n":"\u00e9 \/"}}"#);
            let output = without_handles(&text);
            assert_eq!(
                output,
                format!(r##"{{"handle":"kept_#{id}","é\\n":"\u00e9 \/"}}"##),
                "{text}"
            );
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["handle"], shown, "was an object");
            // A handle after an escaped backslash is replaced as well, and the output is JSON.
            let behind = format!(r#"{{"a":"\\{spelt}"}}"#);
            let output = without_handles(&behind);
            let read: serde_json::Value = serde_json::from_str(&output).unwrap();
            assert_eq!(read["a"], format!(r"\kept_#{id}"), "{behind}");
        }
        // An escaped backslash begins no escape.
        let literal = format!(r#"{{"a":"\\u006b{}"}}"#, &shown[1..]);
        assert_eq!(without_handles(&literal), literal);
        for odd in ["\\", "\\u", "\\u00", "\\u006", "\\u006bept_", "\\ué000", "kept_\\"] {
            assert_eq!(without_handles(odd), odd);
        }
    }
}
