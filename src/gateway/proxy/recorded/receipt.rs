//! Receipt of an answer: the BLAKE3 hash of its `result` as the server sent it and as the client received it.
//!
//! It proves that the bytes are unchanged, or explains the difference. It is computed while the answer arrives; at most
//! [`BLOCK_BYTES`] bytes remain to be hashed by the thread that writes the record.

use blake3::{Hash, Hasher};
use mcpproxy_activity::record::LateMember;
use mcpproxy_protocol::wire::splice::Splice;

/// Member of `metadata` with the receipt.
const MEMBER: &str = "receipt";

/// Reason why the client received different bytes than the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Members required by the client's revision were added at the end of the result.
    Completed,
    /// The answer was blocked and replaced by the reason.
    Blocked,
    /// The result exceeded its limit and was replaced by an outline and a handle.
    Kept,
    /// Structured content was wrapped, since the client's revision allows only objects, or the request state was sealed.
    Adapted,
}

impl Departure {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Blocked => "blocked",
            Self::Kept => "kept",
            Self::Adapted => "adapted",
        }
    }
}

/// Hashing granularity: 16 chunks, which fill the widest SIMD registers. With smaller pieces, chunks at slice
/// boundaries would be hashed one at a time, at the cost of sixteen chunks.
const BLOCK_BYTES: usize = 16 * blake3::CHUNK_LEN;

/// Capacity for the text of any receipt.
const TEXT_BYTES: usize = 192;

/// Receipt of an answer in progress.
pub(super) struct Receipt {
    hashed: Hasher,
    /// End of the input, at most [`BLOCK_BYTES`]; includes the last byte, which may be replaced.
    pending: Vec<u8>,
    /// Replacement of the last byte.
    ending: Option<Box<[u8]>>,
    /// Hash of the delivered bytes, once they differ.
    adapted: Option<Box<Hasher>>,
}

impl Default for Receipt {
    fn default() -> Self {
        let pending = Vec::with_capacity(BLOCK_BYTES);
        Self { hashed: Hasher::new(), pending, ending: None, adapted: None }
    }
}

impl Receipt {
    /// Adds a slice of the result; the last one with the `ending` that replaces its last byte, as in
    /// [`Splice::push_ending`](mcpproxy_protocol::wire::splice::Splice::push_ending).
    pub(super) fn take(&mut self, slice: &[u8], ending: Option<&[u8]>) {
        self.gather(slice);
        self.ending = ending.map(Box::from);
    }

    /// Hashes `adapted` (including `ending`) as the delivered bytes if it differs from `slice`.
    pub(super) fn adapt(&mut self, slice: &[u8], ending: Option<&[u8]>, adapted: Option<&Splice>) {
        match (adapted, &mut self.adapted) {
            (None, None) => {}
            (None, Some(delivered)) => {
                match (ending, slice.split_last()) {
                    (Some(ending), Some((_, kept))) => delivered.update(kept).update(ending),
                    (Some(_) | None, _) => delivered.update(slice),
                };
            }
            (Some(adapted), delivered) => {
                let delivered = delivered.get_or_insert_with(|| {
                    let mut same = self.hashed.clone();
                    same.update(&self.pending);
                    Box::new(same)
                });
                for part in adapted.slices() {
                    delivered.update(part);
                }
            }
        }
    }

    fn gather(&mut self, mut slice: &[u8]) {
        if !self.pending.is_empty() {
            let free = BLOCK_BYTES - self.pending.len();
            let (fits, rest) = slice.split_at(free.min(slice.len()));
            self.pending.extend_from_slice(fits);
            if rest.is_empty() {
                return;
            }
            self.hashed.update(&self.pending);
            self.pending.clear();
            slice = rest;
        }
        let blocks = slice.len().saturating_sub(1) / BLOCK_BYTES;
        let (blocks, rest) = slice.split_at(blocks * BLOCK_BYTES);
        self.hashed.update(blocks);
        self.pending.extend_from_slice(rest);
    }

    fn received(&self) -> Hash {
        self.hashed.clone().update(&self.pending).finalize()
    }

    fn delivered(&self, ending: &[u8]) -> Hash {
        let (_, kept) = self.pending.split_last().unwrap_or((&0, &[]));
        self.hashed.clone().update(kept).update(ending).finalize()
    }

    /// Receipt of a complete, forwarded result.
    pub(super) fn forwarded(self) -> LateMember {
        LateMember::new(MEMBER, move || {
            let received = self.received();
            if let Some(adapted) = &self.adapted {
                return text(Some(received), adapted.finalize(), Some(Departure::Adapted));
            }
            match &self.ending {
                None => text(Some(received), received, None),
                Some(ending) => {
                    text(Some(received), self.delivered(ending), Some(Departure::Completed))
                }
            }
        })
    }

    /// Receipt of a result that was replaced by `delivered`. The server's data is hashed if it was received
    /// `whole`.
    pub(super) fn replaced(self, whole: bool, delivered: Hash, why: Departure) -> LateMember {
        LateMember::new(MEMBER, move || text(whole.then(|| self.received()), delivered, Some(why)))
    }
}

/// A receipt as raw JSON; no part of it needs escaping.
fn text(received: Option<Hash>, delivered: Hash, why: Option<Departure>) -> String {
    let mut text = String::with_capacity(TEXT_BYTES);
    match received {
        Some(received) => text.extend(["{\"received\":\"", &*received.to_hex(), "\""]),
        None => text.push_str("{\"received\":null"),
    }
    text.extend([",\"delivered\":\"", &*delivered.to_hex(), "\""]);
    if let Some(why) = why {
        text.extend([",\"why\":\"", why.as_str(), "\""]);
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(slices: &[&[u8]], ending: Option<&[u8]>) -> Receipt {
        let mut receipt = Receipt::default();
        for (at, slice) in slices.iter().enumerate() {
            let last = at + 1 == slices.len();
            receipt.take(slice, ending.filter(|_| last));
        }
        receipt
    }

    fn value(receipt: &LateMember) -> Value {
        let metadata: Value = serde_json::from_slice(&receipt.append_to(b"")).unwrap();
        metadata["receipt"].clone()
    }

    #[test]
    fn receipt_is_independent_of_slicing() {
        // `printf '{"content":[]}' | b3sum`
        let hash = blake3::hash(br#"{"content":[]}"#).to_hex().to_string();
        for slices in [&[&br#"{"content":[]}"#[..]][..], &[b"{", b"\"content\":", b"", b"[]}"]] {
            let shown = value(&of(slices, None).forwarded());
            assert_eq!(shown, json!({"received": hash, "delivered": hash}));
        }
    }

    #[test]
    fn long_result_is_hashed_in_blocks_independent_of_slicing() {
        let whole: Vec<u8> = (0..5 * BLOCK_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let hash = blake3::hash(&whole).to_hex().to_string();
        let ended = [&whole[..whole.len() - 1], b"end"].concat();
        let ended = blake3::hash(&ended).to_hex().to_string();
        for cut in [1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let slices: Vec<_> = whole.chunks(cut).collect();
            assert_eq!(value(&of(&slices, None).forwarded())["received"], *hash, "{cut}");
            let shown = value(&of(&slices, Some(b"end")).forwarded());
            assert_eq!((&shown["received"], &shown["delivered"]), (&json!(hash), &json!(ended)));
        }
    }

    #[test]
    fn added_ending_is_part_of_the_delivered_bytes_only() {
        let ending = br#","resultType":"complete"}"#;
        let shown = value(&of(&[b"{\"a\":", b"1}"], Some(ending)).forwarded());
        let whole = br#"{"a":1,"resultType":"complete"}"#;
        assert_eq!(shown["received"], blake3::hash(br#"{"a":1}"#).to_hex().as_str());
        assert_eq!(shown["delivered"], blake3::hash(whole).to_hex().as_str());
        assert_eq!(shown["why"], "completed");
    }

    #[test]
    fn incomplete_result_has_no_hash() {
        let receipt = || of(&[b"{\"a\":1}"], None);
        let shown = value(&receipt().replaced(true, blake3::hash(b"no"), Departure::Blocked));
        assert_eq!(shown["received"], blake3::hash(br#"{"a":1}"#).to_hex().as_str());
        assert_eq!(shown["delivered"], blake3::hash(b"no").to_hex().as_str());
        assert_eq!(shown["why"], "blocked");
        let shown = value(&receipt().replaced(false, blake3::hash(b"no"), Departure::Blocked));
        assert_eq!(shown["received"], Value::Null);
    }
}
