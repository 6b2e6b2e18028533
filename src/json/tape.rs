//! The tape of one value: copied once into a reused buffer, parsed there, checked for what two
//! parsers could read differently.
//!
//! Owns strictness: exactly one value, UTF-8 without a mark, no lone surrogate, no number past a
//! double, no duplicate key at any depth, bounded depth. Deliberately knows nothing of schemas,
//! and keeps no offsets into the original bytes: those are what goes out, untouched.

use std::cmp::Ordering;

use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};
use thiserror::Error;

/// Deepest nesting a document may have: a scalar is 0, each open array or object adds 1. It is
/// what `serde_json` reads as well, so that both engines can see every document.
pub const MAX_DEPTH: usize = 127;

/// Objects with more members than this get a sorted index instead of a scan.
const NARROW: usize = 16;

/// Scratch memory beyond this is given back after the document that needed it.
pub const SCRATCH_MAX: usize = 128 << 20;

/// A scratch that was more than four times too large for this many documents in a row is
/// given back, so that one large document does not pin its memory for ever.
pub const SCRATCH_IDLE_DOCUMENTS: u32 = 64;

/// Scratch memory below this is never given back.
const SCRATCH_MIN: usize = 1 << 20;

/// Why bytes are not a document that every parser reads alike (SPEC §3).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Nothing but white space.
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
    /// Something after the value.
    #[error("has bytes after its value")]
    Trailing,
    /// Not JSON.
    #[error("is not one JSON value")]
    Syntax,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The same key twice in one object.
    #[error("has a duplicate key")]
    DuplicateKey {
        /// JSON pointer of the object.
        object: String,
        /// The key, as it reads after unescaping.
        name: String,
    },
}

/// Buffers for reading documents one after the other, kept warm between them.
///
/// One per worker. After the first documents of a size, reading allocates nothing.
pub struct Scratch {
    bytes: Vec<u8>,
    buffers: Buffers,
    nodes: Vec<Node<'static>>,
    index: Index,
    oversized: u32,
}

/// A read document: the tape, and the index of its wide objects.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    nodes: &'a [Node<'a>],
    index: &'a Index,
}

impl Scratch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            buffers: Buffers::with_max_depth(0, MAX_DEPTH),
            nodes: Vec::new(),
            index: Index::default(),
            oversized: 0,
        }
    }

    /// Reads the one JSON value that `slices` spell together, and hands it to `look`.
    ///
    /// # Errors
    /// The first [`Fault`] found; `look` was not called then.
    pub fn read<'s, R>(
        &mut self,
        slices: impl IntoIterator<Item = &'s [u8], IntoIter: Clone>,
        look: impl FnOnce(Document<'_>) -> R,
    ) -> Result<R, Fault> {
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
                Fault::TooDeep
            } else {
                Fault::Syntax
            }),
        };
        self.nodes = tape.reset().0;
        let outcome = match outcome {
            Err(Fault::Syntax) => {
                self.copy(slices);
                Err(explain(&self.bytes))
            }
            other => other,
        };
        self.settle(len);
        outcome
    }

    /// Gives all memory back.
    pub fn release(&mut self) {
        *self = Self::new();
    }

    /// Bytes held at the moment, the parser's own buffers estimated from the document buffer.
    #[must_use]
    pub fn footprint(&self) -> usize {
        /// The parser keeps a string buffer and one offset for at most each byte.
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

    /// Decides whether the buffers are still in proportion to what they are used for.
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
    /// The tape: node 0 is the root, containers are followed by what they hold.
    #[must_use]
    pub fn nodes(self) -> &'a [Node<'a>] {
        self.nodes
    }

    /// The node at `at`; null past the end.
    #[must_use]
    pub fn node(self, at: u32) -> Node<'a> {
        self.nodes.get(at as usize).copied().unwrap_or(Node::Static(StaticNode::Null))
    }

    /// Where the value that follows the one at `at` stands.
    #[must_use]
    pub fn after(self, at: u32) -> u32 {
        after(self.nodes, at)
    }

    /// The value of member `name` of the object at `object`.
    #[must_use]
    pub fn member(self, object: u32, name: &str) -> Option<u32> {
        let Node::Object { len, .. } = self.node(object) else { return None };
        if len > NARROW {
            return self.index.find(self.nodes, object, name);
        }
        let mut key = object + 1;
        for _ in 0..len {
            if key_at(self.nodes, key) == name {
                return Some(key + 1);
            }
            key = self.after(key + 1);
        }
        None
    }

    /// The JSON pointer of the value at `target`.
    #[must_use]
    pub fn pointer(self, target: u32) -> String {
        pointer(self.nodes, target)
    }
}

/// A document of one scalar string, for asking a schema about a property name.
#[must_use]
pub fn lone_string<'a>(node: &'a [Node<'a>; 1]) -> Document<'a> {
    static EMPTY: Index = Index { wide: Vec::new(), keys: Vec::new() };
    Document { nodes: node, index: &EMPTY }
}

/// Checks that `json` is exactly one value that every parser reads alike, not nested deeper than
/// `max_depth`: for request bodies, which are read by others afterwards.
///
/// # Errors
/// The first [`Fault`] found.
pub fn check_unique(json: &[u8], max_depth: usize, scratch: &mut Scratch) -> Result<(), Fault> {
    let deep = scratch.read([json], |document| depth(document.nodes()) > max_depth)?;
    if deep { Err(Fault::TooDeep) } else { Ok(()) }
}

/// Depth of a tape: 0 for a scalar, one more for each open container.
#[must_use]
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

/// The containers around a place on the tape, while walking it in order.
#[derive(Clone)]
pub struct OpenContainers {
    ends: [usize; MAX_DEPTH + 1],
    len: usize,
}

impl OpenContainers {
    /// Enters the container at `at` that holds `count` nodes; its depth, from 1.
    pub fn enter(&mut self, at: usize, count: usize) -> usize {
        self.leave(at);
        if let Some(slot) = self.ends.get_mut(self.len) {
            *slot = at + count;
            self.len += 1;
        }
        self.len
    }

    /// Leaves the containers that end before `at`; how many are still open.
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

/// Nodes inside a container; none for a scalar.
#[must_use]
pub fn contained(node: &Node<'_>) -> Option<usize> {
    match node {
        Node::Object { count, .. } | Node::Array { count, .. } => Some(*count),
        Node::String(_) | Node::Static(_) => None,
    }
}

/// The members of the wide objects of one document, sorted by name.
#[derive(Default)]
struct Index {
    wide: Vec<Wide>,
    keys: Vec<Key>,
}

/// Where the keys of the object at node `object` stand.
struct Wide {
    object: u32,
    first: u32,
    len: u32,
}

/// One key: its first bytes for fast ordering, and its node.
#[derive(Clone, Copy)]
struct Key {
    prefix: u64,
    node: u32,
}

impl Index {
    fn footprint(&self) -> usize {
        self.wide.capacity() * size_of::<Wide>() + self.keys.capacity() * size_of::<Key>()
    }

    /// Indexes the wide objects of `nodes`, and refuses a duplicate key in any object.
    fn fill(&mut self, nodes: &[Node<'_>]) -> Result<(), Fault> {
        self.wide.clear();
        self.keys.clear();
        for (at, node) in nodes.iter().enumerate() {
            let Node::Object { len, .. } = *node else { continue };
            let duplicate = if len > NARROW {
                self.sort(nodes, at as u32, len)
            } else {
                narrow_duplicate(nodes, at as u32, len)
            };
            if let Some(key) = duplicate {
                return Err(Fault::DuplicateKey {
                    object: pointer(nodes, at as u32),
                    name: key_at(nodes, key).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Sorts the keys of one wide object; equal ones end up side by side.
    fn sort(&mut self, nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
        let first = self.keys.len();
        let mut node = object + 1;
        for _ in 0..len {
            self.keys.push(Key { prefix: prefix(key_at(nodes, node)), node });
            node = after(nodes, node + 1);
        }
        let keys = self.keys.get_mut(first..)?;
        keys.sort_unstable_by(|a, b| order(nodes, a, b.prefix, key_at(nodes, b.node)));
        let twin = keys.windows(2).find_map(|pair| match pair {
            [a, b] if order(nodes, a, b.prefix, key_at(nodes, b.node)).is_eq() => Some(b.node),
            _ => None,
        });
        self.wide.push(Wide { object, first: first as u32, len: len as u32 });
        twin
    }

    fn find(&self, nodes: &[Node<'_>], object: u32, name: &str) -> Option<u32> {
        let wide = self.wide.binary_search_by_key(&object, |wide| wide.object).ok()?;
        let wide = self.wide.get(wide)?;
        let keys = self.keys.get(wide.first as usize..(wide.first + wide.len) as usize)?;
        let head = prefix(name);
        let key = keys.binary_search_by(|key| order(nodes, key, head, name)).ok()?;
        Some(keys.get(key)?.node + 1)
    }
}

fn order(nodes: &[Node<'_>], key: &Key, prefix: u64, name: &str) -> Ordering {
    key.prefix.cmp(&prefix).then_with(|| key_at(nodes, key.node).cmp(name))
}

/// The first eight bytes, so that comparing the numbers compares the strings.
fn prefix(name: &str) -> u64 {
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    u64::from_be_bytes(head)
}

fn narrow_duplicate(nodes: &[Node<'_>], object: u32, len: usize) -> Option<u32> {
    let mut seen = [""; NARROW];
    let mut key = object + 1;
    for at in 0..len {
        let name = key_at(nodes, key);
        if seen.iter().take(at).any(|other| *other == name) {
            return Some(key);
        }
        if let Some(slot) = seen.get_mut(at) {
            *slot = name;
        }
        key = after(nodes, key + 1);
    }
    None
}

fn key_at<'a>(nodes: &[Node<'a>], at: u32) -> &'a str {
    match nodes.get(at as usize) {
        Some(Node::String(name)) => name,
        _ => "",
    }
}

fn after(nodes: &[Node<'_>], at: u32) -> u32 {
    let inside = nodes.get(at as usize).and_then(contained).unwrap_or(0);
    at.saturating_add(1).saturating_add(inside as u32)
}

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

/// Names what is wrong with bytes that the parser refused. Cold, so it may look at each byte.
fn explain(bytes: &[u8]) -> Fault {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Fault::Empty;
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return Fault::ByteOrderMark;
    }
    if simdutf8::basic::from_utf8(bytes).is_err() {
        return Fault::Utf8;
    }
    let mut values =
        serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    if let Some(Ok(_)) = values.next() {
        let rest = bytes.get(values.byte_offset()..).unwrap_or_default();
        if !rest.iter().all(u8::is_ascii_whitespace) {
            return Fault::Trailing;
        }
    }
    token_fault(bytes).unwrap_or(Fault::Syntax)
}

/// The first token of `bytes` that is faulty in a way that has a name.
fn token_fault(bytes: &[u8]) -> Option<Fault> {
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
                    return Some(Fault::NumberOverflow);
                }
                at += len.max(1);
            }
            _ => at += 1,
        }
    }
    None
}

/// Looks at a string that opened just before `rest`: its length with the closing quote.
fn string_fault(rest: &[u8]) -> (usize, Option<Fault>) {
    let mut at = 0;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => return (at + 1, None),
            0..=0x1F => return (at, Some(Fault::ControlCharacter)),
            b'\\' => match escape(rest, at) {
                Some(0xD800..=0xDBFF) => match escape(rest, at + 6) {
                    Some(0xDC00..=0xDFFF) => at += 12,
                    _ => return (at, Some(Fault::LoneSurrogate)),
                },
                Some(0xDC00..=0xDFFF) => return (at, Some(Fault::LoneSurrogate)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &[u8]) -> Option<Fault> {
        Scratch::new().read([json], |_| ()).err()
    }

    fn duplicate(object: &str, name: &str) -> Option<Fault> {
        Some(Fault::DuplicateKey { object: object.into(), name: name.into() })
    }

    #[test]
    fn each_fault_has_its_own_reason() {
        for (json, expected) in [
            (&b""[..], Fault::Empty),
            (b" \n", Fault::Empty),
            (b"\xEF\xBB\xBF{}", Fault::ByteOrderMark),
            (b"\"\xFF\"", Fault::Utf8),
            (b"\"\xED\xA0\x80\"", Fault::Utf8),
            (b"\"a\nb\"", Fault::ControlCharacter),
            (br#"{"a":"\ud800"}"#, Fault::LoneSurrogate),
            (br#"{"a":"\udc00"}"#, Fault::LoneSurrogate),
            (br#"{"\ud800\u0041":1}"#, Fault::LoneSurrogate),
            (b"1e400", Fault::NumberOverflow),
            (b"[-1e309]", Fault::NumberOverflow),
            (b"{} {}", Fault::Trailing),
            (b"1 2", Fault::Trailing),
            (b"{\"a\":1,}", Fault::Syntax),
            (b"[01]", Fault::Syntax),
            (b"[1.]", Fault::Syntax),
            (b"[NaN]", Fault::Syntax),
            (b"'a'", Fault::Syntax),
            (b"{} // no", Fault::Trailing),
            (b"[1", Fault::Syntax),
        ] {
            assert_eq!(fault(json), Some(expected), "{}", String::from_utf8_lossy(json));
        }
    }

    #[test]
    fn a_huge_integer_without_exponent_overflows_too() {
        let digits = "9".repeat(400);
        assert_eq!(fault(digits.as_bytes()), Some(Fault::NumberOverflow));
    }

    #[test]
    fn what_every_parser_reads_alike_is_accepted() {
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
    fn duplicate_keys_are_found_at_any_depth_and_spelling() {
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
                        let value = document.member(1, &format!("property_{i}")).unwrap();
                        assert_eq!(
                            document.node(value + 1),
                            Node::Static(StaticNode::U64(i as u64))
                        );
                        assert_eq!(document.pointer(value), format!("/0/property_{i}"));
                    }
                    assert_eq!(document.member(1, "property_"), None);
                    assert_eq!(document.member(0, "property_0"), None);
                })
                .unwrap();
        }
    }

    #[test]
    fn depth_is_bounded_and_counted() {
        let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(fault(nest(MAX_DEPTH).as_bytes()), None);
        assert_eq!(fault(nest(MAX_DEPTH + 1).as_bytes()), Some(Fault::TooDeep));
        assert_eq!(fault(nest(100_000).as_bytes()), Some(Fault::TooDeep));
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
                    Err(Fault::TooDeep)
                );
            }
        }
    }

    #[test]
    fn any_slicing_reads_the_same() {
        let json = br#"{"a":"\ud83d\ude00","b":[1,2.5]}"#;
        let mut scratch = Scratch::new();
        for cut in 0..=json.len() {
            let (left, right) = json.split_at(cut);
            let read = scratch.read([left, right], |document| document.nodes().len());
            assert_eq!(read, Ok(7));
        }
    }

    #[test]
    fn scratch_is_given_back_after_a_large_document() {
        let mut scratch = Scratch::new();
        let large = format!("[{}0]", "0,".repeat(1 << 20));
        scratch.read([large.as_bytes()], |_| ()).unwrap();
        let held = scratch.footprint();
        assert!(held > SCRATCH_MIN);
        for _ in 0..=SCRATCH_IDLE_DOCUMENTS {
            scratch.read([&b"[]"[..]], |_| ()).unwrap();
        }
        assert!(scratch.footprint() < SCRATCH_MIN, "{held} → {}", scratch.footprint());
    }
}
