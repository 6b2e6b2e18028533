//! Objects in the store of a fleet, and inputs of an auditor: segments, notes, checkpoints, names of segments, claims,
//! keys, proofs, canonical bytes. A decoded object is encoded to the same bytes.

use bytes::Bytes;
use mcpproxy_activity::codec;
use mcpproxy_fleet::audit::RecordProof;
use mcpproxy_fleet::audit::read_keys;
use mcpproxy_fleet::chain::place::NodeClaim;
use mcpproxy_fleet::checkpoint::Checkpoint;
use mcpproxy_fleet::checkpoint::{self, VerifierKey};
use mcpproxy_fleet::parquet_table;
use mcpproxy_fleet::segment::{self, SegmentName};

/// Key of the node that sealed the segments among the seeds.
const KEY: &str = "mcpproxy/d17c8662a3adba902b41b74658abe1a8/a+ec5c8c1e+AaN5ZarXTQXYn5Ck3jYpzFlmaYufxPh49TbYixC+XrnB";

/// One input.
pub fn run(data: &[u8]) {
    table(&Bytes::copy_from_slice(data));
    if let Ok((head, body)) = codec::split_canonical(data) {
        let mut again = Vec::new();
        codec::put_canonical(&mut again, head, body);
        assert_eq!(again, data);
    }
    let _ = NodeClaim::read(data).map(|claim| claim.verifier());
    if let Ok(proof) = RecordProof::read(data) {
        assert!(proof.check(Some(&[])).is_err(), "without a key nothing is proven");
        let _ = proof.check(None);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = read_keys(text);
    if let Ok(key) = VerifierKey::parse(text) {
        assert_eq!(VerifierKey::parse(&key.to_string()), Ok(key));
    }
    if let Ok(signed) = checkpoint::unverified_text(text) {
        assert!(text.starts_with(signed));
    }
    if let Ok(checkpoint) = Checkpoint::unverified(text) {
        assert!(text.starts_with(&checkpoint.text()));
    }
    if let Some(name) = SegmentName::parse(text) {
        assert_eq!(name.to_string(), text);
    }
}

/// Asserts that decoding and encoding a segment's table yields the same bytes, regardless of the signature.
fn table(bytes: &Bytes) {
    let opened = VerifierKey::parse(KEY).map(|key| segment::open(bytes, &key));
    let read =
        parquet_table::footer(bytes).and_then(|footer| parquet_table::decode(bytes, &footer));
    let Ok(read) = read else {
        assert!(!matches!(opened, Ok(Ok(_))), "a segment without a table was accepted");
        return;
    };
    let again = parquet_table::encode(&read.rows, &read.node, |_| Vec::new()).map(Bytes::from);
    let again =
        again.and_then(|bytes| parquet_table::decode(&bytes, &parquet_table::footer(&bytes)?));
    assert_eq!(again.map(|again| again.rows).ok(), Some(read.rows));
}
