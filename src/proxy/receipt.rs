//! The receipt of a call: BLAKE3 of the answer's `result` as its server sent it, and as the client got it.
//!
//! Whoever keeps an answer can show by its record that these are the bytes the server sent, and that nothing between has
//! touched them; where something had to, the receipt says what. It is computed slice by slice as the answer comes, so that no
//! byte is kept for it.

use blake3::{Hash, Hasher};
use serde::Serialize;

/// The name of the receipt among the metadata of a record.
pub(super) const MEMBER: &str = "receipt";

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

/// The receipt of an answer that is on its way.
#[derive(Default)]
pub(super) struct Receipt {
    received: Hasher,
    /// What the client gets, once that differs.
    delivered: Option<Hasher>,
}

impl Receipt {
    /// Takes in the next slice of the result. With an `ending` it is the last, and the client gets that in the place of its
    /// last byte, as [`Splice::push_ending`](crate::wire::splice::Splice::push_ending) does it.
    pub(super) fn take(&mut self, slice: &[u8], ending: Option<&[u8]>) {
        if let (Some(ending), Some((_, kept))) = (ending, slice.split_last()) {
            let mut delivered = self.received.clone();
            delivered.update(kept).update(ending);
            self.delivered = Some(delivered);
        }
        self.received.update(slice);
    }

    /// The receipt of a result that came whole and went on.
    pub(super) fn forwarded(&self) -> String {
        let received = self.received.finalize();
        match &self.delivered {
            None => text(Some(received), received, None),
            Some(delivered) => {
                text(Some(received), delivered.finalize(), Some(Departure::Completed))
            }
        }
    }

    /// The receipt of a result in whose place the client gets `delivered`. What the server sent has a hash if it came `whole`.
    pub(super) fn replaced(&self, whole: bool, delivered: &[u8], why: Departure) -> String {
        let received = whole.then(|| self.received.finalize());
        text(received, blake3::hash(delivered), Some(why))
    }
}

#[derive(Serialize)]
struct ReceiptText {
    received: Option<String>,
    delivered: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

/// A receipt as raw JSON.
fn text(received: Option<Hash>, delivered: Hash, why: Option<Departure>) -> String {
    let hex = |hash: Hash| hash.to_hex().to_string();
    let why = why.map(Departure::as_str);
    let text = ReceiptText { received: received.map(hex), delivered: hex(delivered), why };
    serde_json::to_string(&text).unwrap_or_default()
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

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
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
        let receipt = of(&[b"{\"a\":1}"], None);
        let told = value(&receipt.replaced(true, b"no", Departure::Blocked));
        assert_eq!(told["received"], blake3::hash(br#"{"a":1}"#).to_hex().as_str());
        assert_eq!(told["delivered"], blake3::hash(b"no").to_hex().as_str());
        assert_eq!(told["why"], "blocked");
        let told = value(&receipt.replaced(false, b"no", Departure::Blocked));
        assert_eq!(told["received"], Value::Null);
    }
}
