//! The handle of a kept result: what an agent names it by, and what it is called where others can read. In a fleet it says
//! which node keeps the result, by that node's number: `kept_`, 32 random digits, `_`, 8 digits of the node.

use std::borrow::Cow;
use std::fmt;

/// What a handle begins with.
const PREFIX: &str = "kept_";
/// Digits that follow: 128 bits.
const DIGITS: usize = 32;
/// Digits of a node's number.
const NODE_DIGITS: usize = 8;

/// Names one kept result. Random, so that nobody can guess one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResultHandle {
    random: [u8; DIGITS / 2],
    /// The node that keeps it; 0 where there is no fleet.
    node: u32,
}

/// A hash of a handle: says which it is, and does not stand for it. What is kept is found by it, and records have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResultId([u8; 16]);

impl ResultHandle {
    /// A handle of these random bytes.
    #[must_use]
    pub fn new(random: [u8; DIGITS / 2]) -> Self {
        Self { random, node: 0 }
    }

    /// The same of a result that the node of that number keeps; 0 for none.
    #[must_use]
    pub fn kept_at(self, node: u32) -> Self {
        Self { node, ..self }
    }

    /// The number of the node of a fleet that keeps the result; 0 where the handle names none.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Reads one as it is shown.
    #[must_use]
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

    /// What it is called where others can read.
    #[must_use]
    pub fn id(&self) -> ResultId {
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

/// Shows no digit of it.
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

/// `text` with the id of each handle in its place, for records.
#[must_use]
pub fn without_handles(text: &str) -> Cow<'_, str> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(PREFIX) {
        let digits = rest.get(at + PREFIX.len()..).unwrap_or_default();
        let end = digits.get(..DIGITS).map_or(0, str::len);
        let handle = rest.get(at..at + PREFIX.len() + end).and_then(ResultHandle::parse);
        let (before, after) = rest.split_at(at + PREFIX.len());
        out.push_str(before);
        rest = match handle {
            Some(handle) => {
                out.push_str(&format!("#{}", handle.id()));
                after.get(DIGITS..).unwrap_or_default()
            }
            None => after,
        };
    }
    if out.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(out + rest) }
}

fn is_hex(digits: &str, count: usize) -> bool {
    digits.len() == count && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_shown_and_in_no_other_spelling() {
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
    fn in_a_fleet_it_says_which_node_keeps_the_result() {
        let handle = ResultHandle::new([0xab; 16]).kept_at(0x0102);
        let shown = handle.to_string();
        assert_eq!(shown, format!("kept_{}_00000102", "ab".repeat(16)));
        assert_eq!(ResultHandle::parse(&shown).map(|it| (it, it.node())), Some((handle, 0x0102)));
        assert_eq!(handle.kept_at(0), ResultHandle::new([0xab; 16]));
        assert_eq!(handle.id(), handle.kept_at(7).id(), "it is found by what nobody can guess");
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
        let (told, without) = (format!("see {shown}."), format!("see kept_#{id}_00000102."));
        assert_eq!(without_handles(&told), without);
    }

    #[test]
    fn what_others_read_does_not_have_it() {
        let handle = ResultHandle::new([7; 16]);
        let (shown, id) = (handle.to_string(), handle.id().to_string());
        assert!(!id.contains(&shown[5..]) && !format!("{handle:?}").contains(&shown[5..]));
        for (text, without) in [
            ("kept_, no handle: kept_0é".to_owned(), "kept_, no handle: kept_0é".to_owned()),
            (format!(r#"{{"handle":"{shown}"}}"#), format!(r##"{{"handle":"kept_#{id}"}}"##)),
            (format!("{shown}{shown}x"), format!("kept_#{id}kept_#{id}x")),
            (format!("kept_kept_{shown}"), format!("kept_kept_kept_#{id}")),
        ] {
            assert_eq!(without_handles(&text), without);
        }
    }
}
