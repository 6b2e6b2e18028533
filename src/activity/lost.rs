//! What could not be recorded (ACT-2): counted in a file of its own beside the store, since it is the
//! store that failed, and reported by a record of the type `gap` once there is one again.
//!
//! ```text
//! calls ── add ─▶ Shared::lost ── save ─▶ <dir>/lost ── at the next open, or when the store is back ─▶ gap record
//! ```
//!
//! The file is written a few times a second while the log cannot be. Besides what is lost for certain
//! it holds how many entries wait in memory, which are lost if the process is killed. How much the
//! log has reported lies in the log itself, in the batch of the record that reports it.

use std::path::Path;

use parking_lot::Mutex;

use super::gap::Unrecorded;
use super::keys;
use super::store::{Space, StoreError};
use super::view::{self, View};
use crate::os::alternating_file::{AlternatingFile, FileKind};

/// The file's name in the log's folder.
pub const NAME: &str = "lost";
const KIND: FileKind = FileKind { name: NAME, magic: *b"mcpplo\x00\x01" };
/// Bytes of a cause that are kept.
const CAUSE_BYTES: usize = 190;
const BYTES: usize = 5 * 8 + 2 + CAUSE_BYTES;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossTally {
    /// Entries that are lost, since the log was begun.
    pub total: u64,
    /// Entries that were only in memory when this was written, calls under way among them: lost too,
    /// if the process ended then.
    pub waiting: u64,
    /// When the first of those was lost that the log had not reported then, milliseconds since 1970.
    pub from_ms: u64,
    /// And the last.
    pub to_ms: u64,
    /// Why.
    pub cause: String,
}

impl LossTally {
    /// Reads the file in `dir`; of a log that has none, nothing is lost. False where something was
    /// written to it and nothing in it is whole.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn read(dir: &Path) -> Result<(Self, bool), StoreError> {
        let found = AlternatingFile::<BYTES>::read(dir, KIND)?;
        let newest = found.newest();
        Ok((
            newest.map(|bytes| Self::decode(&bytes).1).unwrap_or_default(),
            newest.is_some() || !found.torn,
        ))
    }

    /// What of it the log has not reported, if it has reported `reported` of them.
    #[must_use]
    pub fn unreported(&self, reported: u64) -> Option<Unrecorded> {
        let records = (self.total + self.waiting).saturating_sub(reported);
        (records > 0).then(|| Unrecorded {
            records,
            at_least: self.total.saturating_sub(reported),
            total: self.total + self.waiting,
            from_ms: self.from_ms,
            to_ms: self.to_ms,
            cause: self.cause.clone(),
        })
    }

    fn encode(&self, number: u64) -> [u8; BYTES] {
        let Self { total, waiting, from_ms, to_ms, cause } = self;
        let cause = cause.as_bytes();
        let cause = cause.get(..CAUSE_BYTES).unwrap_or(cause);
        let mut out = [0; BYTES];
        let numbers = [number, *total, *waiting, *from_ms, *to_ms].map(u64::to_be_bytes);
        let length = (cause.len() as u16).to_be_bytes();
        let bytes = numbers.as_flattened().iter().chain(&length).chain(cause);
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }

    /// The number of the place, and what it says.
    fn decode(bytes: &[u8; BYTES]) -> (u64, Self) {
        let at = |place: usize| {
            let bytes = bytes.get(8 * place..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        let rest = bytes.get(40..).unwrap_or_default();
        let (length, text) = rest
            .split_first_chunk()
            .map_or((0, rest), |(length, text)| (usize::from(u16::from_be_bytes(*length)), text));
        let cause = text.get(..length).map(String::from_utf8_lossy).unwrap_or_default().into();
        let (total, waiting, from_ms, to_ms) = (at(1), at(2), at(3), at(4));
        (at(0), Self { total, waiting, from_ms, to_ms, cause })
    }
}

/// How many of those that are lost the log has reported.
///
/// # Errors
///
/// [`StoreError`] if it cannot be read.
pub(super) fn reported(view: &View) -> Result<u64, StoreError> {
    match view.snapshot.get(Space::State, keys::LOST)? {
        Some(bytes) => view::number(&view.snapshot, Space::State, keys::LOST, &bytes),
        None => Ok(0),
    }
}

/// Copies the count of the log in `from` to a new one in `to`; what it then says.
///
/// # Errors
///
/// [`StoreError::Io`].
pub(super) fn copy(from: &Path, to: &Path) -> Result<LossTally, StoreError> {
    let (tally, _) = LossTally::read(from)?;
    let (mut places, _) = AlternatingFile::open(to, KIND)?;
    places.write(&tally.encode(1))?;
    Ok(tally)
}

/// The count of an open log: what the file is to say, and the file.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    outage: Mutex<Outage>,
    /// Only who writes it holds this: a disk may take long.
    file: Mutex<Option<CountFile>>,
}

/// What is known of the time in which entries were lost that the log has not reported yet.
#[derive(Clone, Debug, Default)]
struct Outage {
    /// How many of those that are lost the log has reported.
    reported: u64,
    /// How many of those that it has not may have been recorded after all.
    doubt: u64,
    /// How many were lost, or waited, when it was last looked.
    seen: u64,
    from_ms: u64,
    to_ms: u64,
    cause: String,
}

#[derive(Debug)]
struct CountFile {
    places: AlternatingFile<BYTES>,
    number: u64,
    written: LossTally,
    /// A failure is logged once, until it is over.
    has_failed: bool,
}

impl Ledger {
    /// Opens the file in `dir`, of which the log has reported `reported`; returns how many are lost.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub(super) fn open(&self, dir: &Path, reported: u64) -> Result<u64, StoreError> {
        let (places, found) = AlternatingFile::open(dir, KIND)?;
        let newest = found.newest();
        if newest.is_none() && found.torn {
            tracing::error!(
                file = %places.path().display(),
                "the count of lost records is damaged: it goes on with what the log has reported"
            );
        }
        let (number, tally) = newest.map(|bytes| LossTally::decode(&bytes)).unwrap_or_default();
        let lost = (tally.total + tally.waiting).max(reported);
        let LossTally { waiting: doubt, from_ms, to_ms, ref cause, .. } = tally;
        *self.outage.lock() =
            Outage { reported, doubt, seen: lost, from_ms, to_ms, cause: cause.clone() };
        *self.file.lock() = Some(CountFile { places, number, written: tally, has_failed: false });
        Ok(lost)
    }

    /// Goes on with the file in `dir`, of a log that took the place of the one before.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub(super) fn reopen(&self, dir: &Path) -> Result<(), StoreError> {
        let (places, _) = AlternatingFile::open(dir, KIND)?;
        if let Some(file) = self.file.lock().as_mut() {
            file.places = places;
        }
        Ok(())
    }

    /// The log cannot be written from now on; `lost` are lost already.
    pub(super) fn begin(&self, cause: &str, lost: u64, now_ms: u64) {
        let mut outage = self.outage.lock();
        if outage.reported >= lost {
            (outage.from_ms, outage.to_ms) = (now_ms, now_ms);
        }
        let cut = cause.floor_char_boundary(CAUSE_BYTES);
        outage.cause = cause.get(..cut).unwrap_or_default().to_owned();
    }

    /// What is lost and not reported, of `lost` in all.
    pub(super) fn unreported(&self, lost: u64) -> Option<Unrecorded> {
        let outage = self.outage.lock();
        self::tally(&outage, lost, 0).unreported(outage.reported)
    }

    /// The log has reported what is lost up to `total`.
    pub(super) fn reported(&self, total: u64) {
        let mut outage = self.outage.lock();
        (outage.reported, outage.doubt) = (total, 0);
    }

    /// Writes the file if it says something else: `lost` are lost, `waiting` would be if the process
    /// ended now. While the log cannot be written `now_ms` is when the last was lost. A failure is
    /// logged: then the count is in memory alone.
    pub(super) fn save(&self, lost: u64, waiting: u64, now_ms: Option<u64>) {
        let mut file = self.file.lock();
        let Some(file) = file.as_mut() else { return };
        let tally = {
            let mut outage = self.outage.lock();
            if let Some(now_ms) = now_ms.filter(|_| lost + waiting > outage.seen) {
                outage.to_ms = now_ms.max(outage.from_ms);
            }
            outage.seen = lost + waiting;
            self::tally(&outage, lost, waiting)
        };
        if tally == file.written {
            return;
        }
        file.number += 1;
        match file.places.write(&tally.encode(file.number)) {
            Ok(()) => (file.written, file.has_failed) = (tally, false),
            Err(error) if !file.has_failed => {
                file.has_failed = true;
                let path = file.places.path().display();
                tracing::error!(%error, file = %path, lost, waiting, "the count of lost records cannot be written: it is in memory alone");
            }
            Err(_) => {}
        }
    }
}

fn tally(outage: &Outage, lost: u64, waiting: u64) -> LossTally {
    let Outage { doubt, from_ms, to_ms, ref cause, .. } = *outage;
    let (total, waiting) = (lost.saturating_sub(doubt), waiting + doubt);
    LossTally { total, waiting, from_ms, to_ms, cause: cause.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_known_to_the_next_process_until_the_log_has_reported_it() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::default();
        assert_eq!(ledger.open(dir.path(), 0).unwrap(), 0);
        assert_eq!(ledger.unreported(0), None);
        ledger.begin("no space", 0, 100);
        ledger.save(7, 3, Some(200));
        // Killed here: the three may or may not have been recorded.
        let next = Ledger::default();
        assert_eq!(next.open(dir.path(), 0).unwrap(), 10);
        let unreported = next.unreported(10).unwrap();
        assert_eq!((unreported.records, unreported.at_least, unreported.total), (10, 7, 10));
        assert_eq!(
            (unreported.from_ms, unreported.to_ms, &*unreported.cause),
            (100, 200, "no space")
        );
        assert_eq!(LossTally::read(dir.path()).unwrap().0.unreported(0), Some(unreported));
        next.reported(10);
        assert_eq!(next.unreported(10), None);
        next.save(10, 0, None);
        // The next outage has its own times.
        next.begin("no memory", 10, 300);
        next.save(12, 0, Some(400));
        let unreported = LossTally::read(dir.path()).unwrap().0.unreported(10).unwrap();
        assert_eq!((unreported.records, unreported.at_least, unreported.total), (2, 2, 12));
        assert_eq!(
            (unreported.from_ms, unreported.to_ms, &*unreported.cause),
            (300, 400, "no memory")
        );
    }

    #[test]
    fn a_torn_write_leaves_the_count_before_it_and_a_damaged_file_is_no_count() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::default();
        ledger.open(dir.path(), 0).unwrap();
        ledger.begin("é".repeat(500).as_str(), 0, 1);
        ledger.save(5, 0, Some(2));
        ledger.save(6, 0, Some(3));
        let path = dir.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let (tally, is_whole) = LossTally::read(dir.path()).unwrap();
            assert!(is_whole && (5..=6).contains(&tally.total), "byte {at}");
        }
        std::fs::write(&path, [1; 700]).unwrap();
        assert_eq!(LossTally::read(dir.path()).unwrap(), (LossTally::default(), false));
        assert_eq!(Ledger::default().open(dir.path(), 4).unwrap(), 4);
    }
}
