//! Target `record`: the codec and the redaction of activity records.
//!
//! Input: structured. A generated record is unchanged after its block is encoded and decoded. The bytes themselves are
//! either decoded, and then encoded to the same bytes, or refused. A secret of each form in the table is redacted,
//! regardless of the bytes around it.

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use mcpproxy_activity::{
    bytes::{Packer, unpack},
    clock::AgeMarks,
    codec::{self, BlockBuilder, HeadRef, PayloadRef},
    in_flight::CallMark,
    query,
    record::{Body, Hash, Id, NodeId, Operation, Payload, Source, Status, Type},
    redact::{Redactor, table::FORMS},
    segment, stats,
};

pub fn run(data: &[u8]) {
    read(data);
    redact(data);
    planted(data);
    // Only a text that is not UTF-8 could cause an error, and `arbitrary` generates none.
    grow(&mut Unstructured::new(data)).expect("zeros after the end of the input");
}

/// Asserts that any bytes are decoded or refused, and that decoded ones are encoded to the same bytes.
fn read(data: &[u8]) {
    let _ = codec::head_block(data);
    let _ = codec::body_block(data);
    // Also with the first byte of a packed block before them.
    let _ = unpack(Bytes::copy_from_slice(data));
    let _ = unpack([&[2], data].concat().into());
    let term = query::Term::new(query::RecordField::Tool, b"tool");
    let _ = segment::Bitmap::find(data, term);
    let _ = segment::SegmentBounds::decode(data);
    if let Ok(marks) = AgeMarks::decode(data) {
        assert_eq!(marks.encode(), data);
    }
    if let Ok(head) = codec::decode_head(data) {
        let mut again = Vec::new();
        codec::encode_head(&head, &mut again);
        assert_eq!(codec::decode_head(&again), Ok(head));
    }
    if let Ok(body) = codec::decode_body(data) {
        assert_eq!(codec::decode_body(&encoded(&body)), Ok(body));
    }
    if let Ok(mark) = CallMark::decode(data) {
        assert_eq!(CallMark::decode(&mark.encode()), Ok(mark));
    }
    if let Ok(stats) = stats::Stats::decode(data) {
        assert_eq!(stats::Stats::decode(&stats.encode()), Ok(stats));
    }
}

/// Asserts that redaction neither fails nor grows without bound, regardless of where the payload was cut.
fn redact(data: &[u8]) {
    let redactor = Redactor::new(&[]);
    for limit in [data.len(), data.len() / 2] {
        let (kept, total) = redactor.payload(PayloadRef::cut(data, limit));
        assert!(total >= kept.len() as u64);
        assert!(kept.len() <= 16 * (limit + 16));
    }
}

/// Asserts that a secret of the table is redacted, in a JSON text next to the input, or in a string of that text.
fn planted(data: &[u8]) {
    let Some((pick, around)) = data.split_first() else { return };
    let (form, pick) = (usize::from(*pick) % FORMS.len(), usize::from(*pick) / FORMS.len());
    let form = &FORMS[form];
    let around = String::from_utf8_lossy(around);
    let text = match pick % 2 {
        0 => {
            serde_json::json!({ "before": around, "text": form.text, "after": around }).to_string()
        }
        _ => {
            let inner = serde_json::json!({ "text": form.text, "b": around }).to_string();
            serde_json::json!({ "args_json": inner, "after": around }).to_string()
        }
    };
    let redactor = Redactor::new(&[]);
    let cut = PayloadRef::cut(text.as_bytes(), text.len());
    let kept = String::from_utf8_lossy(&redactor.payload(cut).0).into_owned();
    // Not checked if the input itself contains the secret, or if the secret is escaped in a string.
    let secret = form.secret;
    let plain = !secret.contains(['"', '\n', '\\']);
    assert!(!plain || around.contains(secret) || !kept.contains(secret), "{}: {kept}", form.name);
}

/// Asserts that a generated block is unchanged after it is encoded and decoded.
fn grow(from: &mut Unstructured<'_>) -> Result<()> {
    let (first, node, prev) = (<_>::arbitrary(from)?, NodeId(<_>::arbitrary(from)?), Hash([5; 32]));
    let mut builder = BlockBuilder::new(first, prev);
    let mut written = Vec::new();
    for _ in 0..from.int_in_range(0..=3u8)? {
        let head = head(from)?;
        let body =
            Body { arguments: payload(from)?, response: payload(from)?, metadata: payload(from)? };
        let mut head_bytes = Vec::new();
        codec::encode_head(&head, &mut head_bytes);
        assert_eq!(codec::decode_head(&head_bytes), Ok(head));
        let body_bytes = encoded(&body);
        assert_eq!(codec::decode_body(&body_bytes), Ok(body));
        let hash = codec::chain(prev, node, first, &head_bytes, &body_bytes);
        builder.push(&head_bytes, hash, &body_bytes);
        written.push((head_bytes, hash, body_bytes));
    }
    let (heads, bodies) = builder.finish();
    let mut packer = Packer::default();
    let [heads, bodies] = [heads, bodies].map(|block| {
        let unpacked = unpack(packer.pack(block.clone()).into()).expect("our own packing");
        assert_eq!(unpacked, block);
        unpacked
    });
    let block = codec::head_block(&heads).expect("our own block");
    assert_eq!((block.first, block.prev), (first, prev));
    let records: Vec<_> = block
        .records
        .into_iter()
        .zip(codec::body_block(&bodies).expect("our own block"))
        .map(|((head, hash), body)| (heads[head].to_vec(), hash, bodies[body].to_vec()))
        .collect();
    assert_eq!(records, written);
    Ok(())
}

fn head<'a>(from: &mut Unstructured<'a>) -> Result<HeadRef<'a>> {
    Ok(HeadRef {
        stored_ms: <_>::arbitrary(from)?,
        kind: *from.choose(Type::ALL)?,
        source: *from.choose(Source::ALL)?,
        principal: <_>::arbitrary(from)?,
        status: *from.choose(Status::ALL)?,
        operation: Option::<u8>::arbitrary(from)?
            .map(|pick| Operation::ALL[usize::from(pick) % Operation::ALL.len()]),
        server: <_>::arbitrary(from)?,
        tool: <_>::arbitrary(from)?,
        error: <_>::arbitrary(from)?,
        started: <_>::arbitrary(from)?,
        duration_us: <_>::arbitrary(from)?,
        overhead_us: <_>::arbitrary(from)?,
        response_bytes: <_>::arbitrary(from)?,
        session_id: <_>::arbitrary(from)?,
        request_id: <_>::arbitrary(from)?,
        parent: Option::<[u8; 16]>::arbitrary(from)?.map(Id::from_bytes),
        intent: {
            let bytes = <&[u8]>::arbitrary(from)?;
            let cut = u64::from(u16::arbitrary(from)?);
            PayloadRef { bytes, total: bytes.len() as u64 + cut }
        },
        variant: <_>::arbitrary(from)?,
        client_name: <_>::arbitrary(from)?,
        repeated: u64::arbitrary(from)?.max(1),
    })
}

fn payload(from: &mut Unstructured<'_>) -> Result<Payload> {
    let bytes = Vec::<u8>::arbitrary(from)?;
    let cut = u64::from(u16::arbitrary(from)?);
    let total = bytes.len() as u64 + cut;
    Ok(Payload::from_head(bytes.into(), total))
}

fn encoded(body: &Body) -> Vec<u8> {
    let [arguments, response, metadata] = [&body.arguments, &body.response, &body.metadata]
        .map(|payload| PayloadRef { bytes: payload.bytes(), total: payload.total() });
    let mut out = Vec::new();
    codec::encode_body(arguments, response, metadata, &mut out);
    out
}
