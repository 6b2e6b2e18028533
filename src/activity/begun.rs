//! Calls that have begun and not ended: the mark that each leaves in the store, and the record that
//! becomes of it should the process end first (ACT-1).
//!
//! ```text
//! begin ──▶ unmarked ── a batch is written ──▶ marked ── the call ends ──▶ its record, no mark
//!              │                                  │
//!              └─ the call ends: no mark at all   └─ the process ends: a record, status unknown
//! ```
//!
//! A mark lies apart from the chain, in the state keyspace, under its call's ticket. It comes and goes
//! in the batches of records, so that there is always either the mark or the record. What a mark says
//! is redacted and limited as a record is. Ids, hashes and times are given by `append`, and depend on
//! nothing but the log: whoever reads a copy sees the records that the next start will make.
//!
//! ```text
//! mark     version · head · body · (verdict · metadata)*; of all but the numbers the length first
//! ```

use std::collections::HashMap;

use super::append::{Appender, keys};
use super::bytes::{DecodeError, Reader, VERSION, put_bytes};
use super::record::{Entry, Verdict};
use super::store::{Space, Store, StoreError};
use super::view::View;

/// What the record of such a call says went wrong.
pub const UNKNOWN: &str = "sent or about to be, outcome not known: mcpproxy ended during the call";
/// Records that are made of marks at a time.
const BATCH_RECORDS: u64 = 1024;

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

/// The calls under way, as the writer knows them. There are no more than there is room for.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    calls: HashMap<u64, Call>,
    /// Those whose mark is not in the store, oldest first; some may have ended.
    unmarked: Vec<u64>,
    /// The bytes of those that have not.
    unmarked_bytes: usize,
}

#[derive(Debug)]
struct Call {
    /// What was known when it began; what came of it is added when it ends.
    entry: Box<Entry>,
    is_marked: bool,
}

impl Unfinished {
    /// A call begins.
    pub(super) fn begin(&mut self, ticket: u64, entry: Box<Entry>) {
        self.unmarked_bytes += size(&entry);
        self.unmarked.push(ticket);
        self.calls.insert(ticket, Call { entry, is_marked: false });
    }

    /// A call has ended so: its whole entry. The mark goes with the batch that the entry is in.
    pub(super) fn end(
        &mut self,
        ticket: u64,
        rest: Box<Entry>,
        appender: &mut Appender,
    ) -> Box<Entry> {
        let Some(Call { mut entry, is_marked }) = self.calls.remove(&ticket) else { return rest };
        if is_marked {
            appender.also(|batch| batch.remove(Space::State, keys::begun(ticket)));
        } else {
            self.unmarked_bytes = self.unmarked_bytes.saturating_sub(size(&entry));
        }
        let Entry { draft, decisions } = *rest;
        entry.draft.end(&draft);
        entry.decisions.extend(decisions);
        entry
    }

    /// The entry that the call ended with is lost. A mark that is in the store stays: what became of
    /// the call is not known.
    pub(super) fn lose(&mut self, ticket: u64) {
        if let Some(Call { entry, is_marked: false }) = self.calls.remove(&ticket) {
            self.unmarked_bytes = self.unmarked_bytes.saturating_sub(size(&entry));
        }
    }

    /// What the marks that are yet to be written take, about; 0 if there are none.
    pub(super) fn unmarked_bytes(&self) -> usize {
        self.unmarked_bytes
    }

    /// Adds the marks of all that are without one to the batch.
    pub(super) fn mark(&mut self, appender: &mut Appender, now_ms: u64) {
        for ticket in self.unmarked.drain(..) {
            if let Some(call) = self.calls.get_mut(&ticket) {
                appender.mark_begun(ticket, &call.entry, now_ms);
                call.is_marked = true;
            }
        }
        self.unmarked_bytes = 0;
    }
}

/// About what a mark takes.
fn size(entry: &Entry) -> usize {
    let reasons: usize = entry.decisions.iter().map(|decision| decision.reason.len()).sum();
    size_of::<Entry>() + entry.draft.bytes() + reasons
}

/// What became of the marks of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// How many calls are on record by them now.
    pub(super) calls: u64,
    /// The ticket of the next call.
    pub(super) next_ticket: u64,
}

/// Makes records of the marks that are left, durably. One that cannot be read stays where it is: a
/// later version may know what it says.
///
/// # Errors
///
/// [`StoreError`] if the log cannot be read or written.
pub(super) fn settle(store: &Store, appender: &mut Appender) -> Result<Settled, StoreError> {
    let (mut calls, mut next_ticket) = (0, 0);
    for row in View::new(store.snapshot())?.marks() {
        let (key, value) = row?;
        next_ticket = keys::ticket(&key).map_or(next_ticket, |ticket| ticket + 1);
        match Begun::decode(&value).and_then(|begun| appender.push_begun(&begun)) {
            Ok(()) => {
                appender.also(|batch| batch.remove(Space::State, key));
                calls += 1;
            }
            Err(error) => {
                tracing::error!(ticket = next_ticket - 1, %error, "the mark of a call cannot be read");
            }
        }
        if appender.pending() >= BATCH_RECORDS
            && let Some(prepared) = appender.take()
        {
            store.commit(prepared.batch)?;
        }
    }
    if let Some(prepared) = appender.take() {
        store.commit(prepared.batch)?;
    }
    if calls > 0 {
        store.sync()?;
    }
    Ok(Settled { calls, next_ticket })
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

    #[test]
    fn the_key_of_a_mark_leads_back_to_its_ticket() {
        for ticket in [0, 1, u64::MAX] {
            let key = keys::begun(ticket);
            assert_eq!(keys::ticket(&key), Some(ticket));
            assert!(&key[..] < keys::BEGUN_END);
        }
        assert!([keys::FIRST, keys::GAPS].iter().all(|key| keys::ticket(key).is_none()));
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
