//! What lies in a fleet's store, and what an auditor is given, apart from Parquet's own form: notes, checkpoints, names of
//! segments, claims, keys, proofs, canonical bytes. What is read is written again as it was.

use mcpproxy::activity::codec;
use mcpproxy::fleet::audit::read_keys;
use mcpproxy::fleet::checkpoint::Checkpoint;
use mcpproxy::fleet::joining::NodeClaim;
use mcpproxy::fleet::record_proof::RecordProof;
use mcpproxy::fleet::segment::SegmentName;
use mcpproxy::fleet::signed_note::{self, VerifierKey};

/// One input.
pub fn run(data: &[u8]) {
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
    if let Ok(signed) = signed_note::unverified_text(text) {
        assert!(text.starts_with(signed));
    }
    if let Ok(checkpoint) = Checkpoint::unverified(text) {
        assert!(text.starts_with(&checkpoint.text()));
    }
    if let Some(name) = SegmentName::parse(text) {
        assert_eq!(name.to_string(), text);
    }
}
