//! The receipt of a call: BLAKE3 of the answer's `result` as its server sent it, and as the client got it.
//!
//! Whoever keeps an answer can show by its record that these are the bytes the server sent, and that nothing between has
//! touched them; where something had to, the receipt says what. It is computed as the answer comes; of its end, less than
//! [`BLOCK_BYTES`] are kept until the record is written, and hashed by the thread that writes it.

use blake3::{Hash, Hasher};

use crate::activity::LateMember;

/// The name of the receipt among the metadata of a record.
const MEMBER: &str = "receipt";

/// Why a client gets other bytes than the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Members that the client's revision requires were added at the end of the result.
    Completed,
    /// The answer was refused: the client is told why in its place.
    Blocked,
    /// The result was longer than its limit: the client has an outline, and a handle to read the rest by.
    Kept,
}

impl Departure {
    /// Its name in records.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Blocked => "blocked",
            Self::Kept => "kept",
        }
    }
}

/// So many bytes are hashed at a time: 16 chunks, which fill the widest registers. Cut smaller, a chunk at a time would be
/// hashed where two slices meet, which costs as much as sixteen side by side.
const BLOCK_BYTES: usize = 16 * blake3::CHUNK_LEN;

/// Room for the text of any receipt.
const TEXT_BYTES: usize = 192;

/// The receipt of an answer that is on its way.
pub(super) struct Receipt {
    hashed: Hasher,
    /// The end of what was received, [`BLOCK_BYTES`] at most: its last byte always, since another may take its place.
    pending: Vec<u8>,
    /// What the client gets in the place of the last byte.
    ending: Option<Box<[u8]>>,
}

impl Default for Receipt {
    fn default() -> Self {
        let pending = Vec::with_capacity(BLOCK_BYTES);
        Self { hashed: Hasher::new(), pending, ending: None }
    }
}

impl Receipt {
    /// Takes in the next slice of the result. With an `ending` it is the last, and the client gets that in the place of its
    /// last byte, as [`Splice::push_ending`](crate::wire::splice::Splice::push_ending) does it.
    pub(super) fn take(&mut self, slice: &[u8], ending: Option<&[u8]>) {
        self.gather(slice);
        self.ending = ending.map(Box::from);
    }

    fn gather(&mut self, mut slice: &[u8]) {
        if !self.pending.is_empty() {
            let room = BLOCK_BYTES - self.pending.len();
            let (fits, rest) = slice.split_at(room.min(slice.len()));
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

    /// The receipt of a result that came whole and went on.
    pub(super) fn forwarded(self) -> LateMember {
        LateMember::new(MEMBER, move || {
            let received = self.received();
            match &self.ending {
                None => text(Some(received), received, None),
                Some(ending) => {
                    text(Some(received), self.delivered(ending), Some(Departure::Completed))
                }
            }
        })
    }

    /// The receipt of a result in whose place the client gets `delivered`. What the server sent has a hash if it came `whole`.
    pub(super) fn replaced(self, whole: bool, delivered: &[u8], why: Departure) -> LateMember {
        let delivered = blake3::hash(delivered);
        LateMember::new(MEMBER, move || text(whole.then(|| self.received()), delivered, Some(why)))
    }
}

/// A receipt as raw JSON; none of its texts needs an escape.
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
        let metadata: Value = serde_json::from_slice(&receipt.added_to(b"")).unwrap();
        metadata["receipt"].clone()
    }

    #[test]
    fn however_it_is_cut_the_receipt_is_that_of_the_whole() {
        // `printf '{"content":[]}' | b3sum`
        let hash = blake3::hash(br#"{"content":[]}"#).to_hex().to_string();
        for slices in [&[&br#"{"content":[]}"#[..]][..], &[b"{", b"\"content\":", b"", b"[]}"]] {
            let told = value(&of(slices, None).forwarded());
            assert_eq!(told, json!({"received": hash, "delivered": hash}));
        }
    }

    #[test]
    fn a_long_result_is_hashed_in_blocks_wherever_it_is_cut() {
        let whole: Vec<u8> = (0..5 * BLOCK_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let hash = blake3::hash(&whole).to_hex().to_string();
        let ended = [&whole[..whole.len() - 1], b"end"].concat();
        let ended = blake3::hash(&ended).to_hex().to_string();
        for cut in [1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let slices: Vec<_> = whole.chunks(cut).collect();
            assert_eq!(value(&of(&slices, None).forwarded())["received"], *hash, "{cut}");
            let told = value(&of(&slices, Some(b"end")).forwarded());
            assert_eq!((&told["received"], &told["delivered"]), (&json!(hash), &json!(ended)));
        }
    }

    #[test]
    fn what_is_added_at_the_end_is_in_what_was_delivered_alone() {
        let ending = br#","resultType":"complete"}"#;
        let told = value(&of(&[b"{\"a\":", b"1}"], Some(ending)).forwarded());
        let whole = br#"{"a":1,"resultType":"complete"}"#;
        assert_eq!(told["received"], blake3::hash(br#"{"a":1}"#).to_hex().as_str());
        assert_eq!(told["delivered"], blake3::hash(whole).to_hex().as_str());
        assert_eq!(told["why"], "completed");
    }

    #[test]
    fn what_did_not_come_whole_has_no_hash() {
        let receipt = || of(&[b"{\"a\":1}"], None);
        let told = value(&receipt().replaced(true, b"no", Departure::Blocked));
        assert_eq!(told["received"], blake3::hash(br#"{"a":1}"#).to_hex().as_str());
        assert_eq!(told["delivered"], blake3::hash(b"no").to_hex().as_str());
        assert_eq!(told["why"], "blocked");
        let told = value(&receipt().replaced(false, b"no", Departure::Blocked));
        assert_eq!(told["received"], Value::Null);
    }
}
