//! Tape of one value. The value is copied once into a reused buffer, parsed in place, and checked for content that two parsers could read
//! differently.
//!
//! Strict: exactly one value, UTF-8 without a byte order mark, no lone surrogate, no number that overflows a double, no duplicate key at
//! any depth, bounded depth. Independent of schemas. Has no offsets into the original bytes, which are forwarded unchanged.
//!
//! Node 0 is the root, and a container is followed by its content. The key index detects duplicates and looks up members. It uses short
//! lists and sorted lists instead of a hash table, so a document cannot provoke collisions. A refused document is diagnosed in a second
//! pass, which is slow by design.

use std::cmp::Ordering;

use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};
use thiserror::Error;

use super::plain::is_plain;

/// Scratch memory above this size is released after the document that needed it.
pub(crate) const SCRATCH_MAX: usize = 128 << 20;

/// Number of consecutive documents after which a scratch buffer more than four times too large for them is released, so that one large
/// document does not hold its memory forever.
pub(crate) const SCRATCH_IDLE_DOCUMENTS: u32 = 64;

/// Scratch memory below this size is never released.
const SCRATCH_MIN: usize = 1 << 20;

/// Reused buffers for reading documents, one set per worker. Does not allocate after the first documents of a given size.
pub struct Scratch {
    bytes: Vec<u8>,
    buffers: Buffers,
    nodes: Vec<Node<'static>>,
    index: KeyIndex,
    oversized: u32,
}

/// Parsed document: the tape and the index of its keys.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    nodes: &'a [Node<'a>],
    index: &'a KeyIndex,
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            buffers: Buffers::with_max_depth(0, MAX_DEPTH),
            nodes: Vec::new(),
            index: KeyIndex::empty(),
            oversized: 0,
        }
    }

    /// Parses the one JSON value in `slices` and passes it to `look`. On a [`TapeFault`], `look` is not called.
    pub fn read<'s, R>(
        &mut self,
        slices: impl IntoIterator<Item = &'s [u8], IntoIter: Clone>,
        look: impl FnOnce(Document<'_>) -> R,
    ) -> Result<R, TapeFault> {
        let slices = slices.into_iter();
        self.copy(slices.clone());
        let len = self.bytes.len();
        self.bytes.resize(len + INPUT_PADDING, 0);
        let mut tape = Tape(std::mem::take(&mut self.nodes)).reset();
        let filled =
            simd_json::fill_tape_padded(&mut self.bytes, len, &mut self.buffers, &mut tape);
        let outcome = match filled {
            Ok(()) => match self.index.fill(&tape.0) {
                Ok(()) => Ok(look(Document { nodes: &tape.0, index: &self.index })),
                Err(fault) => Err(fault),
            },
            Err(error) => Err(if matches!(error.error(), ErrorType::DepthLimitExceeded) {
                TapeFault::TooDeep
            } else {
                TapeFault::Syntax
            }),
        };
        self.nodes = tape.reset().0;
        let outcome = match outcome {
            Err(TapeFault::Syntax) => {
                self.copy(slices);
                Err(explain(&self.bytes))
            }
            other => other,
        };
        self.settle(len);
        outcome
    }

    /// Passes the bytes of `slices` to `look`, copied only if there are several slices, and returns the result of
    /// `look`. If the result is false, the document is expected to be read next.
    pub fn look_at<'s>(
        &mut self,
        slices: impl IntoIterator<Item = &'s [u8], IntoIter: Clone>,
        look: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let slices = slices.into_iter();
        let mut each = slices.clone();
        let (len, seen) = match (each.next(), each.next()) {
            (Some(whole), None) => (whole.len(), look(whole)),
            _ => {
                self.copy(slices);
                (self.bytes.len(), look(&self.bytes))
            }
        };
        if seen {
            self.settle(len);
        }
        seen
    }

    /// Releases all memory.
    pub(crate) fn release(&mut self) {
        *self = Self::new();
    }

    /// Memory held, in bytes; the parser's own buffers are estimated from the document buffer.
    pub fn footprint(&self) -> usize {
        /// Parser memory per document byte: one byte of string buffer and at most one offset.
        const PARSER: usize = 1 + size_of::<u32>();
        self.bytes.capacity() * (1 + PARSER)
            + self.nodes.capacity() * size_of::<Node<'static>>()
            + self.index.footprint()
    }

    fn copy<'s>(&mut self, slices: impl Iterator<Item = &'s [u8]>) {
        self.bytes.clear();
        for slice in slices {
            self.bytes.extend_from_slice(slice);
        }
    }

    /// Frees the buffers if they exceed `SCRATCH_MAX`, or were much larger than needed for
    /// `SCRATCH_IDLE_DOCUMENTS` documents in a row.
    fn settle(&mut self, len: usize) {
        let footprint = self.footprint();
        let small = footprint > SCRATCH_MIN && len < self.bytes.capacity() / 4;
        self.oversized = if small { self.oversized + 1 } else { 0 };
        if footprint > SCRATCH_MAX || self.oversized > SCRATCH_IDLE_DOCUMENTS {
            self.release();
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Document<'a> {
    /// Tape: node 0 is the root, a container is followed by its content.
    pub fn nodes(self) -> &'a [Node<'a>] {
        self.nodes
    }

    /// The node at `at`; null past the end.
    pub fn node(self, at: u32) -> Node<'a> {
        self.nodes.get(at as usize).copied().unwrap_or(Node::Static(StaticNode::Null))
    }

    /// Index of the value after the one at `at`.
    pub fn after(self, at: u32) -> u32 {
        after(self.nodes, at)
    }

    /// The value of member `name` of the object at `object`.
    pub fn member(self, object: u32, name: &Name) -> Option<u32> {
        let Node::Object { len, .. } = self.node(object) else { return None };
        self.index.find(self.nodes, object, len, name)
    }

    /// Same as [`member`](Self::member), for a name that is looked up once.
    pub fn member_once(self, object: u32, name: &str) -> Option<u32> {
        let Node::Object { len, .. } = self.node(object) else { return None };
        self.index.find_once(self.nodes, object, len, name)
    }

    /// The JSON pointer of the value at `target`.
    #[cfg(test)]
    pub(crate) fn pointer(self, target: u32) -> String {
        pointer(self.nodes, target)
    }
}

/// Document that consists of one string; used to validate a property name.
pub fn lone_string<'a>(node: &'a [Node<'a>; 1]) -> Document<'a> {
    static EMPTY: KeyIndex = KeyIndex::empty();
    Document { nodes: node, index: &EMPTY }
}

/// Checks that `json` is exactly one value that all parsers read the same way, not nested deeper than `max_depth`. Used for request bodies,
/// which servers parse again.
pub fn check_unique(json: &[u8], max_depth: usize, scratch: &mut Scratch) -> Result<(), TapeFault> {
    if is_plain(json, max_depth) {
        scratch.settle(json.len());
        return Ok(());
    }
    let deep = scratch.read([json], |document| depth(document.nodes()) > max_depth)?;
    if deep { Err(TapeFault::TooDeep) } else { Ok(()) }
}

/// Reason why bytes are not a document that all parsers read the same way (`requirements.md`, *verdicts*).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TapeFault {
    /// The bytes are only white space.
    #[error("is empty")]
    Empty,
    /// A byte order mark before the value.
    #[error("starts with a byte order mark")]
    ByteOrderMark,
    /// Bytes that are not UTF-8.
    #[error("is not valid UTF-8")]
    Utf8,
    /// A raw control character inside a string.
    #[error("has a raw control character in a string")]
    ControlCharacter,
    /// A `\u` escape that is half of a surrogate pair.
    #[error("has a lone surrogate in an escape")]
    LoneSurrogate,
    /// A number whose value does not fit a double.
    #[error("has a number that overflows a double")]
    NumberOverflow,
    /// Bytes after the value.
    #[error("has bytes after its value")]
    Trailing,
    /// Not JSON.
    #[error("is not one JSON value")]
    Syntax,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("has a duplicate key")]
    DuplicateKey {
        /// JSON pointer of the object.
        object: String,
        /// The key, unescaped.
        name: String,
    },
}

/// Diagnoses bytes that the parser refused, byte by byte.
fn explain(bytes: &[u8]) -> TapeFault {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return TapeFault::Empty;
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return TapeFault::ByteOrderMark;
    }
    if simdutf8::basic::from_utf8(bytes).is_err() {
        return TapeFault::Utf8;
    }
    let mut values =
        serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    if let Some(Ok(_)) = values.next() {
        let rest = bytes.get(values.byte_offset()..).unwrap_or_default();
        if !rest.iter().all(u8::is_ascii_whitespace) {
            return TapeFault::Trailing;
        }
    }
    token_fault(bytes).unwrap_or(TapeFault::Syntax)
}

/// First fault in the tokens of `bytes` for which [`TapeFault`] has its own variant.
fn token_fault(bytes: &[u8]) -> Option<TapeFault> {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let rest = bytes.get(at + 1..)?;
                let (len, fault) = string_fault(rest);
                if fault.is_some() {
                    return fault;
                }
                at += len + 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = bytes.get(at..)?;
                let len = rest
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                    .unwrap_or(rest.len());
                let number = std::str::from_utf8(rest.get(..len)?).ok()?.parse::<f64>();
                if number.is_ok_and(f64::is_infinite) {
                    return Some(TapeFault::NumberOverflow);
                }
                at += len.max(1);
            }
            _ => at += 1,
        }
    }
    None
}

/// Checks a string whose opening quote is just before `rest`. Returns its length with the closing quote, and its fault, if any.
fn string_fault(rest: &[u8]) -> (usize, Option<TapeFault>) {
    let mut at = 0;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => return (at + 1, None),
            0..=0x1F => return (at, Some(TapeFault::ControlCharacter)),
            b'\\' => match escape(rest, at) {
                Some(0xD800..=0xDBFF) => match escape(rest, at + 6) {
                    Some(0xDC00..=0xDFFF) => at += 12,
                    _ => return (at, Some(TapeFault::LoneSurrogate)),
                },
                Some(0xDC00..=0xDFFF) => return (at, Some(TapeFault::LoneSurrogate)),
                Some(_) => at += 6,
                None => at += 2,
            },
            _ => at += 1,
        }
    }
    (at, None)
}

/// The code unit of a `\uXXXX` at `at`.
fn escape(rest: &[u8], at: usize) -> Option<u16> {
    let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Maximum depth of a document: a scalar has 0, each open array or object adds 1. Equal to the limit of `serde_json`, so that both
/// engines can read every document.
pub const MAX_DEPTH: usize = 127;

/// Depth of a tape: 0 for a scalar, one more for each open container.
pub fn depth(nodes: &[Node<'_>]) -> usize {
    let mut open = OpenContainers::default();
    let mut deepest = 0;
    for (at, node) in nodes.iter().enumerate() {
        if let Some(count) = contained(node) {
            deepest = deepest.max(open.enter(at, count));
        }
    }
    deepest
}

/// Containers that enclose the current node, during a traversal in document order.
#[derive(Clone)]
pub struct OpenContainers {
    ends: [usize; MAX_DEPTH + 1],
    len: usize,
}

impl OpenContainers {
    /// Enters the container at `at` with `count` nodes, and returns its depth, counted from 1.
    pub fn enter(&mut self, at: usize, count: usize) -> usize {
        self.leave(at);
        if let Some(slot) = self.ends.get_mut(self.len) {
            *slot = at + count;
            self.len += 1;
        }
        self.len
    }

    /// Leaves the containers that end before `at`, and returns the number of those still open.
    pub fn leave(&mut self, at: usize) -> usize {
        while self.len > 0 && self.ends.get(self.len - 1).is_some_and(|end| *end < at) {
            self.len -= 1;
        }
        self.len
    }
}

impl Default for OpenContainers {
    fn default() -> Self {
        Self { ends: [0; MAX_DEPTH + 1], len: 0 }
    }
}

/// Number of nodes inside a container; `None` for a scalar.
pub fn contained(node: &Node<'_>) -> Option<usize> {
    match node {
        Node::Object { count, .. } | Node::Array { count, .. } => Some(*count),
        Node::String(_) | Node::Static(_) => None,
    }
}

/// Name at `at`; empty if there is none.
fn key_at<'a>(nodes: &[Node<'a>], at: u32) -> &'a str {
    match nodes.get(at as usize) {
        Some(Node::String(name)) => name,
        _ => "",
    }
}

/// Index of the value after the one at `at`.
fn after(nodes: &[Node<'_>], at: u32) -> u32 {
    let inside = nodes.get(at as usize).and_then(contained).unwrap_or(0);
    at.saturating_add(1).saturating_add(inside as u32)
}

/// The JSON pointer of the value at `target`.
fn pointer(nodes: &[Node<'_>], target: u32) -> String {
    let mut path = String::new();
    let mut at = 0;
    while at != target {
        let (len, object) = match nodes.get(at as usize) {
            Some(Node::Object { len, .. }) => (*len, true),
            Some(Node::Array { len, .. }) => (*len, false),
            Some(Node::String(_) | Node::Static(_)) | None => return path,
        };
        let mut child = at + 1;
        let mut found = None;
        for position in 0..len {
            let value = if object { child + 1 } else { child };
            let end = after(nodes, value);
            if target < end {
                found = Some((position, value));
                break;
            }
            child = end;
        }
        let Some((position, value)) = found else { return path };
        path.push('/');
        if object {
            path.push_str(&key_at(nodes, value - 1).replace('~', "~0").replace('/', "~1"));
        } else {
            path.push_str(&position.to_string());
        }
        if target < value {
            return path;
        }
        at = value;
    }
    path
}

/// Number of members above which the keys of an object are sorted.
const NARROW: usize = 16;

/// Odd multiplier (golden ratio) that spreads marks over the bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Name prepared for look-ups in many objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    text: Box<str>,
    mark: u64,
}

impl Name {
    /// Prepares `text` for look-ups.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), mark: mark(text) }
    }
}

/// Keys of all objects of one document.
struct KeyIndex {
    /// Index of each object's first key, by the object's node; arbitrary at other nodes.
    places: Vec<u32>,
    /// Keys, object by object: in document order, or sorted in wide objects.
    keys: Vec<Key>,
}

/// Indexed key: its node, and a number that differs for most names.
#[derive(Clone, Copy)]
struct Key {
    /// The [`mark`], or the [`prefix`] if the keys are sorted.
    mark: u64,
    node: u32,
}

impl KeyIndex {
    const fn empty() -> Self {
        Self { places: Vec::new(), keys: Vec::new() }
    }

    /// Memory held, in bytes.
    fn footprint(&self) -> usize {
        self.places.capacity() * size_of::<u32>() + self.keys.capacity() * size_of::<Key>()
    }

    /// Indexes the objects of `nodes`, and refuses a duplicate key in any of them.
    fn fill(&mut self, nodes: &[Node<'_>]) -> Result<(), TapeFault> {
        self.keys.clear();
        if self.places.len() < nodes.len() {
            self.places.resize(nodes.len(), 0);
        }
        for ((at, node), place) in nodes.iter().enumerate().zip(&mut self.places) {
            let Node::Object { len, .. } = *node else { continue };
            *place = self.keys.len() as u32;
            let twin = if len > NARROW {
                sort(&mut self.keys, nodes, at as u32, len)
            } else {
                list(&mut self.keys, nodes, at as u32, len)
            };
            if let Some(key) = twin {
                return Err(TapeFault::DuplicateKey {
                    object: pointer(nodes, at as u32),
                    name: key_at(nodes, key).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The value of member `name` of the object at `object`, which has `len` members.
    fn find(&self, nodes: &[Node<'_>], object: u32, len: usize, name: &Name) -> Option<u32> {
        self.find_marked(nodes, object, len, &name.text, name.mark)
    }

    /// Same as [`find`](Self::find), for a name that is looked up once.
    fn find_once(&self, nodes: &[Node<'_>], object: u32, len: usize, name: &str) -> Option<u32> {
        self.find_marked(nodes, object, len, name, mark(name))
    }

    fn find_marked(
        &self,
        nodes: &[Node<'_>],
        object: u32,
        len: usize,
        name: &str,
        mark: u64,
    ) -> Option<u32> {
        let first = *self.places.get(object as usize)? as usize;
        let keys = self.keys.get(first..first + len)?;
        let key = if len > NARROW {
            let head = prefix(name);
            keys.get(keys.binary_search_by(|key| order(nodes, key, head, name)).ok()?)?
        } else {
            keys.iter().find(|key| key.mark == mark && key_at(nodes, key.node) == name)?
        };
        Some(key.node + 1)
    }
}

/// Lists the keys of a narrow object; returns a duplicate if there is one. A separate function for better register allocation.
#[inline(never)]
fn list(keys: &mut Vec<Key>, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let first = keys.len();
    let mut node = object + 1;
    // One bit per key: a key whose bit is free needs no comparison.
    let mut taken = 0_u64;
    for _ in 0..len {
        let name = key_at(nodes, node);
        let mark = mark(name);
        let bit = 1 << (mark.wrapping_mul(SPREAD) >> 58);
        if taken & bit != 0 {
            let alike = |other: &Key| other.mark == mark && key_at(nodes, other.node) == name;
            if keys.get(first..)?.iter().any(alike) {
                return Some(node);
            }
        }
        taken |= bit;
        keys.push(Key { mark, node });
        node = after(nodes, node + 1);
    }
    None
}

/// Sorts the keys of a wide object, so that duplicates are adjacent; returns a duplicate if there is one.
#[inline(never)]
fn sort(keys: &mut Vec<Key>, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let first = keys.len();
    let mut node = object + 1;
    for _ in 0..len {
        keys.push(Key { mark: prefix(key_at(nodes, node)), node });
        node = after(nodes, node + 1);
    }
    let keys = keys.get_mut(first..)?;
    keys.sort_unstable_by(|a, b| order(nodes, a, b.mark, key_at(nodes, b.node)));
    keys.windows(2).find_map(|pair| match pair {
        [a, b] if order(nodes, a, b.mark, key_at(nodes, b.node)).is_eq() => Some(b.node),
        _ => None,
    })
}

fn order(nodes: &[Node<'_>], key: &Key, prefix: u64, name: &str) -> Ordering {
    key.mark.cmp(&prefix).then_with(|| key_at(nodes, key.node).cmp(name))
}

/// The first eight bytes as a number; comparing the numbers compares the strings.
fn prefix(name: &str) -> u64 {
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    u64::from_be_bytes(head)
}

/// Length, first and last bytes in one number. Equal names have equal marks; the marks of similar names usually differ.
fn mark(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (head, tail) = if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
    } else if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        (u32::from_le_bytes(*head).into(), u32::from_le_bytes(*tail).into())
    } else {
        let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or(0));
        (byte(0) | byte(1) << 8, byte(2))
    };
    (head ^ tail.rotate_left(29)).wrapping_add((bytes.len() as u64) << 56)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &[u8]) -> Option<TapeFault> {
        Scratch::new().read([json], |_| ()).err()
    }

    fn duplicate(object: &str, name: &str) -> Option<TapeFault> {
        Some(TapeFault::DuplicateKey { object: object.into(), name: name.into() })
    }

    #[test]
    fn each_tape_fault_has_its_own_reason() {
        for (json, expected) in [
            (&b""[..], TapeFault::Empty),
            (b" \n", TapeFault::Empty),
            (b"\xEF\xBB\xBF{}", TapeFault::ByteOrderMark),
            (b"\"\xFF\"", TapeFault::Utf8),
            (b"\"\xED\xA0\x80\"", TapeFault::Utf8),
            (b"\"a\nb\"", TapeFault::ControlCharacter),
            (br#"{"a":"\ud800"}"#, TapeFault::LoneSurrogate),
            (br#"{"a":"\udc00"}"#, TapeFault::LoneSurrogate),
            (br#"{"\ud800\u0041":1}"#, TapeFault::LoneSurrogate),
            (b"1e400", TapeFault::NumberOverflow),
            (b"[-1e309]", TapeFault::NumberOverflow),
            (b"{} {}", TapeFault::Trailing),
            (b"1 2", TapeFault::Trailing),
            (b"{\"a\":1,}", TapeFault::Syntax),
            (b"[01]", TapeFault::Syntax),
            (b"[1.]", TapeFault::Syntax),
            (b"[NaN]", TapeFault::Syntax),
            (b"'a'", TapeFault::Syntax),
            (b"{} // no", TapeFault::Trailing),
            (b"[1", TapeFault::Syntax),
        ] {
            assert_eq!(fault(json), Some(expected), "{}", String::from_utf8_lossy(json));
        }
    }

    #[test]
    fn huge_integer_without_exponent_overflows() {
        let digits = "9".repeat(400);
        assert_eq!(fault(digits.as_bytes()), Some(TapeFault::NumberOverflow));
    }

    #[test]
    fn accepts_input_all_parsers_agree_on() {
        for json in [
            "null",
            "0",
            "-0",
            "18446744073709551616",
            "1e308",
            "1e-400",
            r#""""#,
            "[]",
            "{}",
            r#"{"a":"\ud83d\ude00"}"#,
            r#"{"a":{"a":{"a":1}}}"#,
            " [1] ",
            "123456789012345678901234567890",
        ] {
            assert_eq!(fault(json.as_bytes()), None, "{json}");
        }
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth_and_in_any_spelling() {
        assert_eq!(fault(br#"{"a":1,"a":2}"#), duplicate("", "a"));
        assert_eq!(fault(br#"{"a":1,"\u0061":2}"#), duplicate("", "a"));
        assert_eq!(fault(br#"{"x/y":[0,{"k":1,"j":2,"k":3}]}"#), duplicate("/x~1y/1", "k"));
        assert_eq!(fault(br#"[{"a":1},{"a":2}]"#), None);
    }

    #[test]
    fn duplicate_keys_are_found_in_narrow_and_wide_objects() {
        for width in [2, NARROW - 1, NARROW, NARROW + 1, NARROW + 2, 1000] {
            for twin in [0, width / 2, width - 1] {
                let members: Vec<String> =
                    (0..width).map(|i| format!("\"property_{i}\":{{\"x\":[{i}]}}")).collect();
                let whole = format!("{{{}}}", members.join(","));
                assert_eq!(fault(whole.as_bytes()), None);
                let twice = format!("{{{},\"property_{twin}\":0}}", members.join(","));
                assert_eq!(fault(twice.as_bytes()), duplicate("", &format!("property_{twin}")));
            }
        }
    }

    #[test]
    fn members_are_found_in_narrow_and_wide_objects() {
        for width in [1, NARROW, NARROW + 1, 500] {
            let members: Vec<String> =
                (0..width).map(|i| format!("\"property_{i}\":[{i},{{}}]")).collect();
            let json = format!("[{{{}}}]", members.join(","));
            Scratch::new()
                .read([json.as_bytes()], |document| {
                    for i in 0..width {
                        let value = document.member_once(1, &format!("property_{i}")).unwrap();
                        assert_eq!(
                            document.node(value + 1),
                            Node::Static(StaticNode::U64(i as u64))
                        );
                        assert_eq!(document.pointer(value), format!("/0/property_{i}"));
                    }
                    assert_eq!(document.member_once(1, "property_"), None);
                    assert_eq!(document.member_once(0, "property_0"), None);
                })
                .unwrap();
        }
    }

    #[test]
    fn depth_is_bounded_and_counted() {
        let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(fault(nest(MAX_DEPTH).as_bytes()), None);
        assert_eq!(fault(nest(MAX_DEPTH + 1).as_bytes()), Some(TapeFault::TooDeep));
        assert_eq!(fault(nest(100_000).as_bytes()), Some(TapeFault::TooDeep));
        let mut scratch = Scratch::new();
        for (json, expected) in
            [("1", 0), ("[]", 1), ("{\"a\":[1,[]],\"b\":2}", 3), ("[[1],[1,{}],2]", 3)]
        {
            let found = scratch.read([json.as_bytes()], |document| depth(document.nodes()));
            assert_eq!(found, Ok(expected), "{json}");
            assert_eq!(check_unique(json.as_bytes(), expected, &mut scratch), Ok(()));
            if expected > 0 {
                assert_eq!(
                    check_unique(json.as_bytes(), expected - 1, &mut scratch),
                    Err(TapeFault::TooDeep)
                );
            }
        }
    }

    #[test]
    fn result_is_independent_of_the_slicing() {
        let json = br#"{"a":"\ud83d\ude00","b":[1,2.5]}"#;
        let mut scratch = Scratch::new();
        for cut in 0..=json.len() {
            let (left, right) = json.split_at(cut);
            let read = scratch.read([left, right], |document| document.nodes().len());
            assert_eq!(read, Ok(7));
        }
    }

    #[test]
    fn scratch_is_released_after_a_large_document() {
        let mut scratch = Scratch::new();
        let large = format!("[{}0]", "0,".repeat(1 << 20));
        scratch.read([large.as_bytes()], |_| ()).unwrap();
        let held = scratch.footprint();
        assert!(held > SCRATCH_MIN);
        for _ in 0..=SCRATCH_IDLE_DOCUMENTS {
            scratch.read([&b"[]"[..]], |_| ()).unwrap();
        }
        assert!(scratch.footprint() < SCRATCH_MIN, "{held} → {}", scratch.footprint());
        // Documents that the fast path accepts count as well.
        check_unique(large.as_bytes(), 1, &mut scratch).unwrap();
        for _ in 0..=SCRATCH_IDLE_DOCUMENTS {
            assert!(is_plain(b"[]", 1));
            check_unique(b"[]", 1, &mut scratch).unwrap();
        }
        assert!(scratch.footprint() < SCRATCH_MIN, "{held} → {}", scratch.footprint());
    }
}
