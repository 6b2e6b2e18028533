//! Target `accept`: a document accepted in one pass conforms for the tape engine and for boon. Checked for the document
//! as generated and with damage.
//!
//! Input: a line with the schema, then the document; or `~` and bytes from which `arbitrary` generates a schema, a
//! document and damage to its text.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use mcpproxy_json::tape;
use mcpproxy_schema::compile::{Engine, Schema, Settings, compile};
use mcpproxy_schema::judge::{ArrivingDocument, JudgeScratch, Verdict};
use serde_json::Value;

use super::grow::Grow;

/// Pieces that replace a part of a document.
const PIECES: [&[u8]; 16] = [
    b"",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"0",
    b".",
    b"e1",
    b"-",
    b" ",
    b"\xC3",
    b"\"a\":1,",
];

pub fn run(data: &[u8]) {
    if let Some(bytes) = data.strip_prefix(b"~") {
        let mut from = Unstructured::new(bytes);
        if let Ok((schema, documents)) = grow(&mut from) {
            compare(schema.as_bytes(), &documents);
        }
        return;
    }
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    compare(&data[..end], &[data[end + 1..].to_vec()]);
}

/// A schema, a document, and the document in damaged versions.
fn grow(from: &mut Unstructured<'_>) -> Result<(String, Vec<Vec<u8>>)> {
    let mut damage = Vec::new();
    for _ in 0..from.int_in_range(0..=3_u8)? {
        damage.push((
            from.arbitrary::<u16>()?,
            from.int_in_range(0..=2_usize)?,
            *from.choose(&PIECES)?,
        ));
    }
    let mut grow = Grow::new(Unstructured::new(from.bytes(from.len())?));
    let schema = grow.schema()?;
    let mut documents = vec![grow.document()?.into_bytes()];
    for (place, len, piece) in damage {
        let mut text = documents.last().cloned().unwrap_or_default();
        let at = usize::from(place) % (text.len() + 1);
        let to = (at + len).min(text.len());
        text.splice(at..to, piece.iter().copied());
        documents.push(text);
    }
    Ok((schema, documents))
}

fn compare(raw: &[u8], documents: &[Vec<u8>]) {
    let compiled = |engine| compile(raw, &Settings { engine, assert_formats: false });
    let (Ok(schema), Ok(boon)) = (compiled(Engine::Tape), compiled(Engine::Boon)) else { return };
    let mut scratch = JudgeScratch::new();
    for document in documents {
        accepts(&schema, &boon, document, &mut scratch);
    }
}

fn accepts(schema: &Schema, boon: &Schema, document: &[u8], scratch: &mut JudgeScratch) {
    let accepted = schema.accepts_in_one_pass(document, scratch);
    // Documents that were evaluated earlier with the same scratch must not change the verdict, regardless of the order
    // of their names.
    assert_eq!(accepted, schema.accepts_in_one_pass(document, &mut JudgeScratch::new()));
    for slices in [2, 7, document.len()] {
        let mut arriving = ArrivingDocument::new();
        let len = document.len().div_ceil(slices.max(1)).max(1);
        let slices: Vec<_> = document.chunks(len).map(Bytes::copy_from_slice).collect();
        for read in 1..=slices.len() {
            schema.read_arriving(&mut arriving, &slices[..read], scratch);
        }
        assert!(accepted || !arriving.accepts(&slices), "accepted in slices of {len} bytes");
    }
    if !accepted {
        return;
    }
    assert!(
        tape::check_unique(document, tape::MAX_DEPTH, scratch.tape()).is_ok(),
        "the tape refuses it"
    );
    assert!(serde_json::from_slice::<Value>(document).is_ok(), "serde_json refuses it");
    let whole = [Bytes::copy_from_slice(document)];
    let judgment = boon.judge(&whole, scratch);
    assert_eq!(judgment.verdict, Verdict::Conforms, "boon refuses it");
    assert!(!judgment.disagreement, "the tape engine refuses it");
    let halves = document.split_at(document.len() / 2);
    let halves = [halves.0, halves.1].map(Bytes::copy_from_slice);
    assert_eq!(
        schema.judge(&halves, scratch).verdict,
        Verdict::Conforms,
        "slicing changes the verdict"
    );
}
