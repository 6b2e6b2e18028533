//! Binary format of records: heads, bodies, blocks of records, the hash chain over them, and records sent
//! between nodes. Pure.
//!
//! ```text
//! block of heads   version · first seq · prev hash · count · (length · head · hash)*
//! block of bodies  version · count · (length · body)*
//! head, body       version · fields; numbers are varints, texts and payloads carry their length
//! hash             BLAKE3(prev hash · node · seq · SHA-256(head length · head · body))
//! wire record      log (16) · node name · seq · prev hash (32) · hash (32) · head · body, where the body is
//!                  0 (none), 1 and the body, or 2 and the metadata
//! ```
//!
//! A record's content enters the chain as its SHA-256 digest, because processors have instructions for
//! SHA-256 while BLAKE3 is fast only on large inputs.
//!
//! | version of a head | differences from the next version |
//! |---|---|
//! | 1 | the content enters the chain undigested; no status `unknown` |
//! | 2 | no status `unknown` |
//! | 3 | the status is `unknown` |
//! | 2, 3 | no principal; no `resource_read`, `prompt_get`, `completion` |
//! | 4 | current |
//!
//! The store compresses blocks (`bytes`). Every layout starts with a version byte; an unknown version is an
//! error, never a guess. The format of derived data (index, counters) is in `segment`.
//!
//! Wire records come from another node and are untrusted: they are read within size limits, and [`canonical`] checks
//! their hashes.

use std::sync::Arc;

use ring::digest;

use super::bytes::{Reader, put_bytes, put_payload, put_varint, unzigzag, zigzag};
use super::record::{Body, Hash, Id, NodeId, Operation, ReadBody, Record, Source, Status, Type};

pub use super::bytes::{DecodeError, VERSION};
pub use super::record::{HeadRef, PayloadRef};

/// Current version of heads. The version determines the fields and how the record is hashed.
const HEAD_VERSION: u8 = 4;
/// Variant of version 4 with the number of calls that the record stands for, if it is more than one.
const REPEATED: u8 = 5;
/// Version of heads whose content enters the chain undigested.
const UNDIGESTED: u8 = 1;
/// Version without the status `unknown`.
const WITHOUT_UNKNOWN: u8 = 2;
/// Variant of version 2 with the status `unknown`.
const ONLY_UNKNOWN: u8 = 3;

/// Principals that are encoded as one byte, their index in this list. Append new ones only at the end.
const COMMON_PRINCIPALS: [&str; 3] = ["", "anonymous", "admin"];
/// Marker for any other principal, whose id follows as text.
const OTHER_PRINCIPAL: u8 = u8::MAX;
/// Maximum overhead of a block in addition to its records, in bytes.
const HEADER_BYTES: usize = 1 + 8 + 32 + 2;

pub fn encode_head(head: &HeadRef<'_>, out: &mut Vec<u8>) {
    let operation = head.operation.map_or(0, Operation::code);
    let version = if head.repeated > 1 { REPEATED } else { HEAD_VERSION };
    out.extend([version, head.kind.code(), head.source.code(), head.status.code(), operation]);
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
    if version == REPEATED {
        put_varint(out, head.repeated);
    }
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

/// Whether a head of this version can have this type and status.
fn is_of_version(version: u8, kind: Type, status: Status) -> bool {
    let is_new = matches!(
        kind,
        Type::ResourceRead | Type::PromptGet | Type::Completion | Type::ServerQuestion
    );
    match version {
        UNDIGESTED | WITHOUT_UNKNOWN => !is_new && status != Status::Unknown,
        ONLY_UNKNOWN => !is_new && status == Status::Unknown,
        _ => true,
    }
}

/// Decodes a head that occupies all of `bytes`.
pub fn decode_head(bytes: &[u8]) -> Result<HeadRef<'_>, DecodeError> {
    let mut reader = Reader(bytes);
    let version = match reader.byte()? {
        version @ (UNDIGESTED | WITHOUT_UNKNOWN | ONLY_UNKNOWN | HEAD_VERSION | REPEATED) => {
            version
        }
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
        principal: if version >= HEAD_VERSION { principal(&mut reader)? } else { "" },
        intent: reader.payload()?,
        repeated: match version {
            REPEATED => match reader.varint()? {
                0 | 1 => return Err(DecodeError::Value),
                repeated => repeated,
            },
            _ => 1,
        },
    };
    reader.end()?;
    Ok(head)
}

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

/// Decodes a body that occupies all of `bytes`.
pub fn decode_body(bytes: &[u8]) -> Result<Body, DecodeError> {
    body_parts(bytes).map(|parts| {
        let [arguments, response, metadata] = parts.map(PayloadRef::to_owned);
        Body { arguments, response, metadata }
    })
}

/// Splits a body into arguments, response and metadata without copying.
pub fn body_parts(bytes: &[u8]) -> Result<[PayloadRef<'_>; 3], DecodeError> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let parts = [reader.payload()?, reader.payload()?, reader.payload()?];
    reader.end()?;
    Ok(parts)
}

/// Appends a record's canonical bytes, whose SHA-256 enters the chain: the head's length as four big-endian
/// bytes, the head, the body.
pub fn put_canonical(out: &mut Vec<u8>, head: &[u8], body: &[u8]) {
    out.extend((head.len() as u32).to_be_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(body);
}

/// Splits canonical bytes into head and body, without decoding them.
pub fn split_canonical(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(DecodeError::Short)?;
    let length = u32::from_be_bytes(*length) as usize;
    rest.split_at_checked(length).ok_or(DecodeError::Short)
}

/// Hash of record `seq` with this content, after a record with hash `prev`.
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

/// Predecessor hash of a log's first record.
pub fn genesis(node: NodeId) -> Hash {
    Hash(blake3::derive_key("mcpproxy activity log 1, genesis", &node.0))
}

/// Layout of a block of heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadBlock {
    pub first: u64,
    /// Hash of the record before the first.
    pub prev: Hash,
    /// Byte range of each head in the block, and the record's hash.
    pub records: Vec<(std::ops::Range<usize>, Hash)>,
}

/// Builder of consecutive blocks of records.
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
    /// Starts at record `first`, after a record with hash `prev`.
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

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Number of records in the current block.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Size of the current block.
    pub(crate) fn bytes(&self) -> usize {
        self.heads.len() + self.bodies.len()
    }

    /// Returns the block of heads and the block of bodies, and starts the next block. Both are allocated to
    /// their exact size, because they stay in memory until they are in a table.
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

/// Parses the layout of a block of heads.
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

/// Parses the layout of a block of bodies.
pub fn body_block(bytes: &[u8]) -> Result<Vec<std::ops::Range<usize>>, DecodeError> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let count = reader.count()?;
    let records = (0..count).map(|_| reader.range(bytes.len())).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(records)
}

impl Record {
    /// Assembles a record from its parts in a block.
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

/// Maximum number of records in one response.
pub const MAX_RECORDS: usize = 4096;
/// Maximum length of a node's name.
const MAX_NAME_BYTES: usize = 256;

/// Appends a wire record with as much of the body as was read.
pub fn put_record(out: &mut Vec<u8>, record: &Record) {
    out.extend_from_slice(&record.node.0);
    put_bytes(out, record.node_name.as_deref().unwrap_or_default().as_bytes());
    put_varint(out, record.seq);
    out.extend_from_slice(&record.prev_hash.0);
    out.extend_from_slice(&record.hash.0);
    put_bytes(out, &encoded_head(record));
    match &record.body {
        ReadBody::Unread => out.push(0),
        ReadBody::Whole(body) => {
            out.push(1);
            put_bytes(out, &encoded_body(body));
        }
        ReadBody::Metadata(metadata) => {
            out.push(2);
            put_payload(out, metadata.borrowed());
        }
    }
}

/// Decodes wire records written by [`put_record`], at most [`MAX_RECORDS`].
pub fn read_records(bytes: &[u8]) -> Result<Vec<Record>, DecodeError> {
    let (mut reader, mut records) = (Reader(bytes), Vec::new());
    let mut names: Vec<Arc<str>> = Vec::new();
    while reader.end().is_err() {
        if records.len() >= MAX_RECORDS {
            return Err(DecodeError::Value);
        }
        let node = NodeId(reader.array()?);
        let name = reader.text()?;
        if name.len() > MAX_NAME_BYTES {
            return Err(DecodeError::Value);
        }
        let seq = reader.varint()?;
        let (prev, hash) = (Hash(reader.array()?), Hash(reader.array()?));
        let head = reader.bytes()?;
        let (body, metadata) = match reader.byte()? {
            0 => (None, None),
            1 => (Some(reader.bytes()?), None),
            2 => (None, Some(reader.payload()?)),
            _ => return Err(DecodeError::Value),
        };
        let mut record = Record::decode(node, seq, prev, hash, head, body)?;
        if let Some(metadata) = metadata {
            record.body = ReadBody::Metadata(metadata.to_owned());
        }
        if !name.is_empty() {
            // Few nodes contribute records to a response, so equal node names share one allocation.
            let known = names.iter().find(|it| ***it == *name).cloned();
            let shared = known.unwrap_or_else(|| {
                let shared = Arc::<str>::from(name);
                names.push(Arc::clone(&shared));
                shared
            });
            record.node_name = Some(shared);
        }
        records.push(record);
    }
    Ok(records)
}

/// Canonical head and body of a record; `None` if they do not match its hash, because an older version
/// encoded them differently or the record was altered.
pub fn canonical(record: &Record) -> Option<(Vec<u8>, Vec<u8>)> {
    let (head, body) = (encoded_head(record), encoded_body(record.body.whole()?));
    let hash = chain(record.prev_hash, record.node, record.seq, &head, &body);
    (hash == record.hash).then_some((head, body))
}

fn encoded_head(record: &Record) -> Vec<u8> {
    let mut head = Vec::new();
    encode_head(&record.head.borrowed(), &mut head);
    head
}

fn encoded_body(body: &Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (arguments, response) = (body.arguments.borrowed(), body.response.borrowed());
    encode_body(arguments, response, body.metadata.borrowed(), &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Payload;
    use mcpproxy_policy::Principal;

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
            repeated: 1,
        }
    }

    #[test]
    fn number_of_counted_refusals_round_trips() {
        let counted = HeadRef { status: Status::Rejected, repeated: 300, ..head() };
        let mut bytes = Vec::new();
        encode_head(&counted, &mut bytes);
        assert_eq!((bytes[0], decode_head(&bytes)), (REPEATED, Ok(counted)));
        for len in 0..bytes.len() {
            assert!(decode_head(&bytes[..len]).is_err(), "cut at {len}");
        }
        // One call has one form only.
        bytes.truncate(bytes.len() - 2);
        bytes.push(1);
        assert_eq!(decode_head(&bytes), Err(DecodeError::Value));
    }

    #[test]
    fn head_round_trips() {
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
    fn act_1_status_and_type_round_trip_and_are_rejected_in_versions_without_them() {
        let mut bytes = Vec::new();
        for kind in Type::ALL {
            for status in Status::ALL {
                let head = HeadRef { kind: *kind, status: *status, principal: "", ..head() };
                bytes.clear();
                encode_head(&head, &mut bytes);
                assert_eq!((bytes[0], decode_head(&bytes)), (HEAD_VERSION, Ok(head)));
                let at = bytes.len() - head.intent.bytes.len() - 4;
                assert_eq!(bytes.remove(at), 0, "the principal");
                let is_new =
                    [Type::ResourceRead, Type::PromptGet, Type::Completion, Type::ServerQuestion]
                        .contains(kind);
                for version in [UNDIGESTED, WITHOUT_UNKNOWN, ONLY_UNKNOWN] {
                    bytes[0] = version;
                    let is_known =
                        !is_new && (*status == Status::Unknown) == (version == ONLY_UNKNOWN);
                    let expected = if is_known { Ok(head) } else { Err(DecodeError::Value) };
                    assert_eq!(decode_head(&bytes), expected, "{version} {kind} {status}");
                }
            }
        }
    }

    #[test]
    fn principal_round_trips_and_a_common_one_takes_one_byte() {
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
    fn blocks_round_trip_and_truncated_ones_are_rejected() {
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

    /// Parses fixtures, one per line: a name, and bytes in hexadecimal. The bytes were written by an earlier version,
    /// or no version writes them.
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
    fn every_format_version_is_decoded() {
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
        versions.into_iter().for_each(|(text, head)| assert_decodes(text, &head));
    }

    #[track_caller]
    fn assert_decodes(text: &str, head: &HeadRef<'_>) {
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
    fn malformed_bytes_are_rejected_with_the_reason() {
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
    fn act_4_hash_depends_on_every_part() {
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
        fn arbitrary_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = head_block(&bytes);
            let _ = body_block(&bytes);
            let _ = decode_body(&bytes);
            if let Ok(head) = decode_head(&bytes) {
                let mut encoded = Vec::new();
                encode_head(&head, &mut encoded);
                prop_assert_eq!(decode_head(&encoded), Ok(head));
            }
        }

        #[test]
        fn numbers_round_trip(value: u64, signed: i64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            prop_assert_eq!(Reader(&bytes).varint(), Ok(value));
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }

    #[test]
    fn block_at_the_maximum_sequence_number_is_finished() {
        let mut block = BlockBuilder::new(u64::MAX, Hash([0; 32]));
        for _ in 0..2 {
            block.push(b"head", Hash([1; 32]), b"body");
        }
        let (heads, _) = block.finish();
        assert_eq!(head_block(&heads).unwrap().first, u64::MAX);
        assert_eq!((block.first(), block.count()), (u64::MAX, 0));
    }
}

#[cfg(test)]
mod wire {
    use proptest::prelude::*;

    use super::*;
    use crate::query::{Filter, Page, Payloads};
    use crate::replica::tests::copy_of;

    #[test]
    fn records_round_trip_with_and_without_bodies() {
        let (_folder, view) = copy_of(1, 40);
        for payloads in [Payloads::Include, Payloads::Exclude, Payloads::HeadsOnly] {
            let page = Page { payloads, ..Page::default() };
            let records = view.list(&Filter::default(), &page).unwrap().records;
            assert_eq!(records.len(), 40);
            let mut bytes = Vec::new();
            records.iter().for_each(|record| put_record(&mut bytes, record));
            assert_eq!(read_records(&bytes).unwrap(), records);
            for cut in 1..bytes.len() {
                let read = read_records(&bytes[..cut]);
                assert!(read.is_err() || read.unwrap().len() < 40, "{cut}");
            }
            let has_body = payloads == Payloads::Include;
            assert!(records.iter().all(|record| canonical(record).is_some() == has_body));
        }
    }

    #[test]
    fn altered_record_has_no_canonical_bytes() {
        let (_folder, view) = copy_of(1, 1);
        let record = view.list(&Filter::default(), &Page::default()).unwrap().records.remove(0);
        assert!(canonical(&record).is_some());
        let mut altered = record.clone();
        altered.head.duration_us += 1;
        assert_eq!(canonical(&altered), None);
        assert_eq!(canonical(&Record { seq: 2, ..record }), None);
    }

    #[test]
    fn answer_with_too_many_records_is_rejected() {
        let (_folder, view) = copy_of(1, 1);
        let record = view.list(&Filter::default(), &Page::default()).unwrap().records.remove(0);
        let mut bytes = Vec::new();
        (0..MAX_RECORDS).for_each(|_| put_record(&mut bytes, &record));
        assert_eq!(read_records(&bytes).unwrap().len(), MAX_RECORDS);
        put_record(&mut bytes, &record);
        assert_eq!(read_records(&bytes), Err(DecodeError::Value));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_decode_to_records_or_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_records(&bytes);
        }
    }
}
