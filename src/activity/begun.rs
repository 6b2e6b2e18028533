//! The mark that a call leaves in the store while it is under way, as bytes: what it says, how it is encoded, and
//! what the record says that becomes of it should the process end first (ACT-1).
//!
//! Which calls have one, and when, is `in_flight`'s; `unfinished` makes records of the marks that are left when the
//! log is opened.
//!
//! A mark lies apart from the chain, in the state keyspace, under its call's ticket. It comes and goes
//! in the batches of records, so that there is always either the mark or the record. What a mark says
//! is redacted and limited as a record is. Ids, hashes and times are given by `append`, and depend on
//! nothing but the log: whoever reads a copy sees the records that the next start will make.
//!
//! ```text
//! mark     version · head · body · (verdict · metadata)*; of all but the numbers the length first
//! ```

use super::bytes::{DecodeError, Reader, VERSION, put_bytes};
use super::record::Verdict;

/// What the record of such a call says went wrong.
pub const UNKNOWN: &str = "sent or about to be, outcome not known: mcpproxy ended during the call";
/// What a mark says, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun<'a> {
    /// The head of the record.
    pub head: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
    /// What was decided about the call before it was sent, with its metadata.
    pub decisions: Vec<(Verdict, &'a [u8])>,
}

impl<'a> Begun<'a> {
    /// Its bytes on disk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.head);
        put_bytes(&mut out, self.body);
        for (verdict, metadata) in &self.decisions {
            out.push(verdict.code());
            put_bytes(&mut out, metadata);
        }
        out
    }

    /// Reads what [`Self::encode`] wrote; head and body are not looked at.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] for anything else.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let (head, body) = (reader.bytes()?, reader.bytes()?);
        let mut decisions = Vec::new();
        while !reader.0.is_empty() {
            let verdict = Verdict::from_code(reader.byte()?).ok_or(DecodeError::Value)?;
            decisions.push((verdict, reader.bytes()?));
        }
        Ok(Self { head, body, decisions })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mark_comes_back_and_no_cut_one_is_the_same() {
        let decisions = vec![(Verdict::Warning, &b"{}"[..]), (Verdict::Blocked, b"")];
        let begun = Begun { head: b"head", body: b"", decisions };
        let bytes = begun.encode();
        assert_eq!(Begun::decode(&bytes).as_ref(), Ok(&begun));
        for len in 0..bytes.len() {
            assert_ne!(Begun::decode(&bytes[..len]).as_ref(), Ok(&begun), "cut at {len}");
        }
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(Begun::decode(&newer), Err(DecodeError::Version(VERSION + 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(begun) = Begun::decode(&bytes) {
                let again = begun.encode();
                prop_assert_eq!(Begun::decode(&again), Ok(begun));
            }
        }
    }
}
