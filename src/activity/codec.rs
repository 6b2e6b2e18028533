//! How records lie on disk: records, blocks of records, and the chain over them. Pure.
//!
//! ```text
//! block of heads   version · first seq · prev hash · count · (length · head · hash)*
//! block of bodies  version · count · (length · body)*
//! head, body       version · fields; numbers are varints, texts and payloads carry their length
//! hash             BLAKE3(prev hash · node · seq · SHA-256(head length · head · body))
//! ```
//!
//! Processors have instructions for SHA-256, and BLAKE3 is fast on large inputs alone: a record's
//! content enters the chain by its digest.
//!
//! | version of a head | what differs from the next one |
//! |---|---|
//! | 1 | the content enters the chain as it is; no status `unknown` |
//! | 2 | no status `unknown` |
//! | 3 | the status is `unknown` |
//! | 2, 3 | no principal; no `resource_read`, `prompt_get`, `completion` |
//! | 4 | written today |
//!
//! Blocks are packed where they are stored (`pack`). Every layout starts with a version byte; a
//! version that is not known is an error, never a guess. What is derived from records (index,
//! counters) has its layout in `segment`.

use ring::digest;

pub use super::bytes::{DecodeError, VERSION};
use super::bytes::{Reader, put_bytes, put_payload, put_varint, unzigzag, zigzag};
use super::record::{Body, Hash, Id, NodeId, Operation, ReadBody, Record, Source, Status, Type};
pub use super::record::{HeadRef, PayloadRef};

/// The version written today, of heads: it says which fields there are and how the record is hashed.
const HEAD_VERSION: u8 = 4;
/// The version of heads whose content enters the chain as it is.
const UNDIGESTED: u8 = 1;
/// The version before there was the status `unknown`.
const WITHOUT_UNKNOWN: u8 = 2;
/// That version with the status `unknown`.
const ONLY_UNKNOWN: u8 = 3;

/// Principals that take one byte: the place in this list. Only the end of it may grow.
const COMMON_PRINCIPALS: [&str; 3] = ["", "anonymous", "admin"];
/// In the place of that byte: the principal's id follows as a text.
const OTHER_PRINCIPAL: u8 = u8::MAX;
/// What a block takes at most beside its records.
const HEADER_BYTES: usize = 1 + 8 + 32 + 2;

/// Appends a head.
pub fn encode_head(head: &HeadRef<'_>, out: &mut Vec<u8>) {
    let operation = head.operation.map_or(0, Operation::code);
    out.extend([HEAD_VERSION, head.kind.code(), head.source.code(), head.status.code(), operation]);
    put_varint(out, head.stored_ms);
    put_varint(out, zigzag(head.started.wrapping_sub(head.stored_ms.wrapping_mul(1000)) as i64));
    put_varint(out, head.duration_us);
    put_varint(out, head.overhead_us);
    put_varint(out, head.response_bytes);
    match head.parent {
        None => out.push(0),
        Some(id) => {
            out.push(1);
            out.extend(id.to_bytes());
        }
    }
    for text in [
        head.server,
        head.tool,
        head.error,
        head.session_id,
        head.request_id,
        head.variant,
        head.client_name,
    ] {
        put_bytes(out, text.as_bytes());
    }
    put_principal(out, head.principal);
    put_payload(out, head.intent);
}

fn put_principal(out: &mut Vec<u8>, principal: &str) {
    let common = (0..).zip(COMMON_PRINCIPALS).find(|(_, common)| *common == principal);
    match common {
        Some((code, _)) => out.push(code),
        None => {
            out.push(OTHER_PRINCIPAL);
            put_bytes(out, principal.as_bytes());
        }
    }
}

fn principal<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    let code = reader.byte()?;
    if code != OTHER_PRINCIPAL {
        return COMMON_PRINCIPALS.get(usize::from(code)).copied().ok_or(DecodeError::Value);
    }
    let principal = reader.text()?;
    if COMMON_PRINCIPALS.contains(&principal) { Err(DecodeError::Value) } else { Ok(principal) }
}

/// True if a head of that version can be of this type and have this status.
fn is_of_version(version: u8, kind: Type, status: Status) -> bool {
    let is_new = matches!(kind, Type::ResourceRead | Type::PromptGet | Type::Completion);
    match version {
        UNDIGESTED | WITHOUT_UNKNOWN => !is_new && status != Status::Unknown,
        ONLY_UNKNOWN => !is_new && status == Status::Unknown,
        _ => true,
    }
}

/// Reads a head that fills `bytes`.
///
/// # Errors
///
/// Returns [`DecodeError`] for anything that [`encode_head`] does not write.
pub fn decode_head(bytes: &[u8]) -> Result<HeadRef<'_>, DecodeError> {
    let mut reader = Reader(bytes);
    let version = match reader.byte()? {
        version @ (UNDIGESTED | WITHOUT_UNKNOWN | ONLY_UNKNOWN | HEAD_VERSION) => version,
        other => return Err(DecodeError::Version(other)),
    };
    let kind = Type::from_code(reader.byte()?).ok_or(DecodeError::Value)?;
    let source = Source::from_code(reader.byte()?).ok_or(DecodeError::Value)?;
    let status = Status::from_code(reader.byte()?).ok_or(DecodeError::Value)?;
    if !is_of_version(version, kind, status) {
        return Err(DecodeError::Value);
    }
    let operation = match reader.byte()? {
        0 => None,
        code => Some(Operation::from_code(code).ok_or(DecodeError::Value)?),
    };
    let stored_ms = reader.varint()?;
    let offset = unzigzag(reader.varint()?);
    let started = stored_ms.wrapping_mul(1000).wrapping_add_signed(offset);
    let (duration_us, overhead_us) = (reader.varint()?, reader.varint()?);
    let response_bytes = reader.varint()?;
    let parent = match reader.byte()? {
        0 => None,
        1 => Some(Id::from_bytes(reader.array()?)),
        _ => return Err(DecodeError::Value),
    };
    let head = HeadRef {
        stored_ms,
        kind,
        source,
        status,
        operation,
        server: reader.text()?,
        tool: reader.text()?,
        error: reader.text()?,
        started,
        duration_us,
        overhead_us,
        response_bytes,
        session_id: reader.text()?,
        request_id: reader.text()?,
        parent,
        variant: reader.text()?,
        client_name: reader.text()?,
        principal: if version == HEAD_VERSION { principal(&mut reader)? } else { "" },
        intent: reader.payload()?,
    };
    reader.end()?;
    Ok(head)
}

/// Appends a body.
pub fn encode_body(
    arguments: PayloadRef<'_>,
    response: PayloadRef<'_>,
    metadata: PayloadRef<'_>,
    out: &mut Vec<u8>,
) {
    out.push(VERSION);
    put_payload(out, arguments);
    put_payload(out, response);
    put_payload(out, metadata);
}

/// Reads a body that fills `bytes`.
///
/// # Errors
///
/// Returns [`DecodeError`] for anything that [`encode_body`] does not write.
pub fn decode_body(bytes: &[u8]) -> Result<Body, DecodeError> {
    body_parts(bytes).map(|parts| {
        let [arguments, response, metadata] = parts.map(PayloadRef::to_owned);
        Body { arguments, response, metadata }
    })
}

/// The same without copies: arguments, response, metadata.
///
/// # Errors
///
/// Those of [`decode_body`].
pub fn body_parts(bytes: &[u8]) -> Result<[PayloadRef<'_>; 3], DecodeError> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let parts = [reader.payload()?, reader.payload()?, reader.payload()?];
    reader.end()?;
    Ok(parts)
}

/// Appends a record's canonical bytes, whose SHA-256 enters the chain: the length of the head as four bytes
/// (big-endian), head, body.
pub fn put_canonical(out: &mut Vec<u8>, head: &[u8], body: &[u8]) {
    out.extend((head.len() as u32).to_be_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(body);
}

/// Head and body of canonical bytes.
///
/// # Errors
///
/// [`DecodeError::Short`] if they are not whole; head and body are not looked at.
pub fn split_canonical(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(DecodeError::Short)?;
    let length = u32::from_be_bytes(*length) as usize;
    rest.split_at_checked(length).ok_or(DecodeError::Short)
}

/// The hash of record `seq` with these bytes, after a record with hash `prev`.
#[must_use]
pub fn chain(prev: Hash, node: NodeId, seq: u64, head: &[u8], body: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&prev.0).update(&node.0).update(&seq.to_be_bytes());
    let head_length = (head.len() as u32).to_be_bytes();
    if head.first() == Some(&UNDIGESTED) {
        hasher.update(&head_length).update(head).update(body);
    } else {
        let mut content = digest::Context::new(&digest::SHA256);
        [&head_length, head, body].into_iter().for_each(|part| content.update(part));
        hasher.update(content.finish().as_ref());
    }
    Hash(*hasher.finalize().as_bytes())
}

/// The hash that the first record of a node's log follows.
#[must_use]
pub fn genesis(node: NodeId) -> Hash {
    Hash(blake3::derive_key("mcpproxy activity log 1, genesis", &node.0))
}

/// Where a block's records lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadBlock {
    /// The sequence number of the first record.
    pub first: u64,
    /// The hash of the record before the first.
    pub prev: Hash,
    /// Each record's head, as a range of the block, and its hash.
    pub records: Vec<(std::ops::Range<usize>, Hash)>,
}

/// Collects the blocks of records that follow each other, one block after the other.
#[derive(Debug)]
pub struct BlockBuilder {
    first: u64,
    prev: Hash,
    last: Hash,
    count: u64,
    heads: Vec<u8>,
    bodies: Vec<u8>,
}

impl BlockBuilder {
    /// A builder for records from `first` on, after a record with hash `prev`.
    #[must_use]
    pub fn new(first: u64, prev: Hash) -> Self {
        Self { first, prev, last: prev, count: 0, heads: Vec::new(), bodies: Vec::new() }
    }

    /// Adds the next record.
    pub fn push(&mut self, head: &[u8], hash: Hash, body: &[u8]) {
        put_bytes(&mut self.heads, head);
        self.heads.extend_from_slice(&hash.0);
        put_bytes(&mut self.bodies, body);
        self.last = hash;
        self.count += 1;
    }

    /// The first record's sequence number.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number of records in the block under construction.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The bytes that they take in the block.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.heads.len() + self.bodies.len()
    }

    /// The block of heads and the block of bodies; then begins the next. They take no more memory
    /// than they are long: they are kept until they are in a table.
    pub fn finish(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut heads = Vec::with_capacity(self.heads.len() + HEADER_BYTES);
        heads.push(VERSION);
        heads.extend_from_slice(&self.first.to_be_bytes());
        heads.extend_from_slice(&self.prev.0);
        put_varint(&mut heads, self.count);
        heads.extend_from_slice(&self.heads);
        let mut bodies = Vec::with_capacity(self.bodies.len() + HEADER_BYTES);
        bodies.push(VERSION);
        put_varint(&mut bodies, self.count);
        bodies.extend_from_slice(&self.bodies);
        self.heads.clear();
        self.bodies.clear();
        let next = self.first.saturating_add(self.count);
        (self.first, self.prev, self.count) = (next, self.last, 0);
        (heads, bodies)
    }
}

/// Finds the records of a block of heads.
///
/// # Errors
///
/// Returns [`DecodeError`] if it is not whole.
pub fn head_block(bytes: &[u8]) -> Result<HeadBlock, DecodeError> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let first = u64::from_be_bytes(reader.array()?);
    let prev = Hash(reader.array()?);
    let count = reader.count()?;
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let range = reader.range(bytes.len())?;
        records.push((range, Hash(reader.array()?)));
    }
    reader.end()?;
    Ok(HeadBlock { first, prev, records })
}

/// Finds the records of a block of bodies.
///
/// # Errors
///
/// Returns [`DecodeError`] if it is not whole.
pub fn body_block(bytes: &[u8]) -> Result<Vec<std::ops::Range<usize>>, DecodeError> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let count = reader.count()?;
    let records = (0..count).map(|_| reader.range(bytes.len())).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(records)
}

impl Record {
    /// Puts a record together from its place in a block.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError`] if its bytes are not whole.
    pub fn decode(
        node: NodeId,
        seq: u64,
        prev_hash: Hash,
        hash: Hash,
        head: &[u8],
        body: Option<&[u8]>,
    ) -> Result<Self, DecodeError> {
        let head = decode_head(head)?.to_owned();
        let body = body.map(decode_body).transpose()?.map_or(ReadBody::Unread, ReadBody::Whole);
        let id = Id::new(head.stored_ms, seq, node);
        Ok(Self { id, seq, node, node_name: None, prev_hash, hash, head, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::activity::record::Payload;
    use crate::policy::Principal;

    fn head() -> HeadRef<'static> {
        HeadRef {
            stored_ms: 1_767_225_600_000,
            kind: Type::ToolCall,
            source: Source::Mcp,
            principal: "token:ci",
            status: Status::Success,
            operation: Some(Operation::Write),
            server: "github",
            tool: "create_issue",
            error: "",
            started: 1_767_225_599_123_456,
            duration_us: 12_304,
            overhead_us: 41,
            response_bytes: 10_802,
            session_id: "session",
            request_id: "request",
            parent: Some(Id::new(1, 2, NodeId([3; 16]))),
            intent: PayloadRef { bytes: b"{}", total: 900 },
            variant: "call_tool_write",
            client_name: "cursor",
        }
    }

    #[test]
    fn a_head_comes_back() {
        let mut bytes = Vec::new();
        encode_head(&head(), &mut bytes);
        assert_eq!(bytes[0], HEAD_VERSION);
        assert_eq!(decode_head(&bytes), Ok(head()));
        for len in 0..bytes.len() {
            assert!(decode_head(&bytes[..len]).is_err(), "cut at {len}");
        }
        bytes.push(0);
        assert_eq!(decode_head(&bytes), Err(DecodeError::Trailing));
        bytes[0] = 9;
        assert_eq!(decode_head(&bytes), Err(DecodeError::Version(9)));
    }

    #[test]
    fn act_1_every_status_and_type_comes_back_and_none_is_in_a_version_that_had_it_not() {
        let mut bytes = Vec::new();
        for kind in Type::ALL {
            for status in Status::ALL {
                let head = HeadRef { kind: *kind, status: *status, principal: "", ..head() };
                bytes.clear();
                encode_head(&head, &mut bytes);
                assert_eq!((bytes[0], decode_head(&bytes)), (HEAD_VERSION, Ok(head)));
                let at = bytes.len() - head.intent.bytes.len() - 4;
                assert_eq!(bytes.remove(at), 0, "the principal");
                let is_new = [Type::ResourceRead, Type::PromptGet, Type::Completion].contains(kind);
                for version in [UNDIGESTED, WITHOUT_UNKNOWN, ONLY_UNKNOWN] {
                    bytes[0] = version;
                    let is_there =
                        !is_new && (*status == Status::Unknown) == (version == ONLY_UNKNOWN);
                    let expected = if is_there { Ok(head) } else { Err(DecodeError::Value) };
                    assert_eq!(decode_head(&bytes), expected, "{version} {kind} {status}");
                }
            }
        }
    }

    #[test]
    fn a_principal_comes_back_and_a_common_one_takes_one_byte() {
        let length = |principal| {
            let head = HeadRef { principal, ..head() };
            let mut bytes = Vec::new();
            encode_head(&head, &mut bytes);
            assert_eq!(decode_head(&bytes), Ok(head));
            bytes.len()
        };
        let common = [Principal::Anonymous, Principal::Admin];
        assert_eq!(COMMON_PRINCIPALS[1..], common.each_ref().map(Principal::id));
        assert!(COMMON_PRINCIPALS.into_iter().all(|principal| length(principal) == length("")));
        assert_eq!(length("token:ci"), length("") + 1 + "token:ci".len());
    }

    #[test]
    fn blocks_come_back_and_no_cut_one_does() {
        let mut builder = BlockBuilder::new(1025, Hash([5; 32]));
        builder.push(b"one", Hash([1; 32]), b"first");
        builder.push(b"", Hash([2; 32]), b"");
        let (heads, bodies) = builder.finish();
        let block = head_block(&heads).unwrap();
        assert_eq!((block.first, block.prev), (1025, Hash([5; 32])));
        let got: Vec<_> = block.records.iter().map(|(r, h)| (&heads[r.clone()], h.0[0])).collect();
        assert_eq!(got, [(&b"one"[..], 1), (&b""[..], 2)]);
        let got: Vec<_> = body_block(&bodies).unwrap().into_iter().map(|r| &bodies[r]).collect();
        assert_eq!(got, [&b"first"[..], b""]);
        assert!((0..heads.len()).all(|len| head_block(&heads[..len]).is_err()));
        assert!((0..bodies.len()).all(|len| body_block(&bodies[..len]).is_err()));
    }

    /// Bytes that an earlier version wrote, or nobody: a name and hexadecimal digits in each line.
    fn fixtures(text: &str) -> Vec<(&str, Vec<u8>)> {
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let text: Vec<_> = lines.map(|it| it.split_once(' ').unwrap()).collect();
        text.into_iter()
            .map(|(name, hex)| (name, hex.as_bytes().chunks(2).map(byte).collect()))
            .collect()
    }

    #[test]
    fn every_version_is_read_as_it_was_written() {
        let old = HeadRef { principal: "", ..head() };
        let versions = [
            (include_str!("../../tests/data/activity/v1.txt"), old),
            (include_str!("../../tests/data/activity/v2.txt"), old),
            (
                include_str!("../../tests/data/activity/v3.txt"),
                HeadRef { status: Status::Unknown, ..old },
            ),
            (include_str!("../../tests/data/activity/v4.txt"), head()),
        ];
        versions.into_iter().for_each(|(text, head)| is_read(text, &head));
    }

    #[track_caller]
    fn is_read(text: &str, head: &HeadRef<'_>) {
        let fixtures = fixtures(text);
        let [(_, bytes), (_, body), (_, heads), (_, bodies), (_, hash)] = &fixtures[..] else {
            panic!("{fixtures:?}")
        };
        assert_eq!(decode_head(bytes), Ok(*head));
        let expected = Body {
            arguments: PayloadRef::cut(br#"{"a":1}"#, 100).to_owned(),
            response: PayloadRef::cut(b"answer", 3).to_owned(),
            metadata: Payload::default(),
        };
        assert_eq!(decode_body(body), Ok(expected));
        let block = head_block(heads).unwrap();
        assert_eq!((block.first, block.prev, block.records.len()), (7, Hash([9; 32]), 1));
        let (range, stored) = &block.records[0];
        assert_eq!(&heads[range.clone()], bytes);
        assert_eq!(&bodies[body_block(bodies).unwrap()[0].clone()], body);
        assert_eq!(chain(block.prev, NodeId([3; 16]), 7, bytes, body), *stored);
        assert_eq!(stored.0, hash[..]);
    }

    #[test]
    fn broken_bytes_are_refused_with_the_reason() {
        for (name, bytes) in fixtures(include_str!("../../tests/data/activity/broken.txt")) {
            let (kind, reason) = name.split_once(':').unwrap();
            let error = match kind {
                "head" => decode_head(&bytes).map(drop),
                "body" => decode_body(&bytes).map(drop),
                "heads" => head_block(&bytes).map(drop),
                "bodies" => body_block(&bytes).map(drop),
                other => panic!("{other}"),
            };
            let (reason, about) = reason.split_once('-').unwrap_or((reason, ""));
            let expected = match reason {
                "short" => DecodeError::Short,
                "trailing" => DecodeError::Trailing,
                "version" => DecodeError::Version(about.parse().unwrap()),
                "value" => DecodeError::Value,
                other => panic!("{other}"),
            };
            assert_eq!(error, Err(expected), "{name}");
        }
    }

    #[test]
    fn act_4_the_hash_depends_on_every_part() {
        let (prev, node) = (Hash([1; 32]), NodeId([2; 16]));
        let all = [b"\x01head", b"\x02head"].map(|head| {
            let longer = [&head[..], b"b"].concat();
            [
                chain(prev, node, 3, head, b"body"),
                chain(Hash([9; 32]), node, 3, head, b"body"),
                chain(prev, NodeId([9; 16]), 3, head, b"body"),
                chain(prev, node, 4, head, b"body"),
                chain(prev, node, 3, &longer, b"ody"),
                chain(prev, node, 3, head, b"bodY"),
            ]
        });
        let all = all.concat();
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = head_block(&bytes);
            let _ = body_block(&bytes);
            let _ = decode_body(&bytes);
            if let Ok(head) = decode_head(&bytes) {
                let mut again = Vec::new();
                encode_head(&head, &mut again);
                prop_assert_eq!(decode_head(&again), Ok(head));
            }
        }

        #[test]
        fn numbers_come_back(value: u64, signed: i64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            prop_assert_eq!(Reader(&bytes).varint(), Ok(value));
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }

    #[test]
    fn a_block_at_the_last_numbers_is_finished_all_the_same() {
        let mut block = BlockBuilder::new(u64::MAX, Hash([0; 32]));
        for _ in 0..2 {
            block.push(b"head", Hash([1; 32]), b"body");
        }
        let (heads, _) = block.finish();
        assert_eq!(head_block(&heads).unwrap().first, u64::MAX);
        assert_eq!((block.first(), block.count()), (u64::MAX, 0));
    }
}
