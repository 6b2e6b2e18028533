//! The tape of one value: copied once into a reused buffer, parsed there, checked for what two
//! parsers could read differently.
//!
//! Owns strictness: exactly one value, UTF-8 without a mark, no lone surrogate, no number past a
//! double, no duplicate key at any depth, bounded depth. Deliberately knows nothing of schemas,
//! and keeps no offsets into the original bytes: those are what goes out, untouched.

use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};

pub use self::fault::TapeFault;
use self::index::KeyIndex;
pub use self::index::Name;
pub use self::nodes::{MAX_DEPTH, OpenContainers, contained, depth};
use self::nodes::{after, pointer};
use super::plain::is_plain;

mod fault;
mod index;
mod nodes;

/// Scratch memory beyond this is given back after the document that needed it.
pub const SCRATCH_MAX: usize = 128 << 20;

/// A scratch that was more than four times too large for this many documents in a row is
/// given back, so that one large document does not pin its memory for ever.
pub const SCRATCH_IDLE_DOCUMENTS: u32 = 64;

/// Scratch memory below this is never given back.
const SCRATCH_MIN: usize = 1 << 20;

/// Buffers for reading documents one after the other, kept warm between them.
///
/// One per worker. After the first documents of a size, reading allocates nothing.
pub struct Scratch {
    bytes: Vec<u8>,
    buffers: Buffers,
    nodes: Vec<Node<'static>>,
    index: KeyIndex,
    oversized: u32,
}

/// A read document: the tape, and the index of its keys.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    nodes: &'a [Node<'a>],
    index: &'a KeyIndex,
}

impl Scratch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            buffers: Buffers::with_max_depth(0, MAX_DEPTH),
            nodes: Vec::new(),
            index: KeyIndex::empty(),
            oversized: 0,
        }
    }

    /// Reads the one JSON value that `slices` spell together, and hands it to `look`.
    ///
    /// # Errors
    /// The first [`TapeFault`] found; `look` was not called then.
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
                Err(fault::explain(&self.bytes))
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
    pub fn member(self, object: u32, name: &Name) -> Option<u32> {
        let Node::Object { len, .. } = self.node(object) else { return None };
        self.index.find(self.nodes, object, len, name)
    }

    /// The same for a name that is looked up once.
    #[must_use]
    pub fn member_once(self, object: u32, name: &str) -> Option<u32> {
        let Node::Object { len, .. } = self.node(object) else { return None };
        self.index.find_once(self.nodes, object, len, name)
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
    static EMPTY: KeyIndex = KeyIndex::empty();
    Document { nodes: node, index: &EMPTY }
}

/// Checks that `json` is exactly one value that every parser reads alike, not nested deeper than
/// `max_depth`: for request bodies, which are read by others afterwards.
///
/// # Errors
/// The first [`TapeFault`] found.
pub fn check_unique(json: &[u8], max_depth: usize, scratch: &mut Scratch) -> Result<(), TapeFault> {
    if is_plain(json, max_depth) {
        scratch.settle(json.len());
        return Ok(());
    }
    let deep = scratch.read([json], |document| depth(document.nodes()) > max_depth)?;
    if deep { Err(TapeFault::TooDeep) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::index::NARROW;
    use super::*;

    fn fault(json: &[u8]) -> Option<TapeFault> {
        Scratch::new().read([json], |_| ()).err()
    }

    fn duplicate(object: &str, name: &str) -> Option<TapeFault> {
        Some(TapeFault::DuplicateKey { object: object.into(), name: name.into() })
    }

    #[test]
    fn each_fault_has_its_own_reason() {
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
    fn a_huge_integer_without_exponent_overflows_too() {
        let digits = "9".repeat(400);
        assert_eq!(fault(digits.as_bytes()), Some(TapeFault::NumberOverflow));
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
        // Documents that are not read here count as well.
        check_unique(large.as_bytes(), 1, &mut scratch).unwrap();
        for _ in 0..=SCRATCH_IDLE_DOCUMENTS {
            assert!(is_plain(b"[]", 1));
            check_unique(b"[]", 1, &mut scratch).unwrap();
        }
        assert!(scratch.footprint() < SCRATCH_MIN, "{held} → {}", scratch.footprint());
    }
}
