//! Counter of calls that could not be recorded (ACT-2). It is kept in a file outside the store, because the store
//! itself has failed, and is reported by a `gap` record once the store works again.
//!
//! ```text
//! calls ── add ─▶ Shared::lost ── save ─▶ <dir>/lost ── next open, or the store works again ─▶ gap record
//! ```
//!
//! During an outage the file is written a few times a second. In addition to the certain losses, it holds the number of
//! entries waiting in memory, which are lost if the process is killed. The number already reported is stored in the log
//! itself, in the batch of the reporting record.

use std::path::Path;

use parking_lot::Mutex;

use super::gap::Unrecorded;
use super::keys;
use super::store::{Space, StoreError, is_damage};
use super::view::{self, View};
use mcpproxy_runtime::os::state_file::{AlternatingFile, FileKind};

/// Name of the loss file in the log's folder.
pub(crate) const TALLY_FILE: &str = "lost";
const TALLY_KIND: FileKind = FileKind { name: TALLY_FILE, magic: *b"mcpplo\x00\x01" };
/// Maximum stored length of a cause, in bytes.
const CAUSE_BYTES: usize = 190;
const TALLY_BYTES: usize = 5 * 8 + 2 + CAUSE_BYTES;

/// Contents of the loss file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossTally {
    /// Lost entries since the log was created.
    pub total: u64,
    /// Entries, calls in flight included, that were only in memory at the time of writing. They are lost as well if the
    /// process ended then.
    pub waiting: u64,
    /// Time of the first unreported loss, in milliseconds since 1970.
    pub from_ms: u64,
    pub to_ms: u64,
    pub cause: String,
}

impl LossTally {
    /// Reads the file in `dir`; a missing file means no loss. Returns false if the file was written but holds no intact
    /// entry.
    pub fn read(dir: &Path) -> Result<(Self, bool), StoreError> {
        let found = match AlternatingFile::<TALLY_BYTES>::read(dir, TALLY_KIND) {
            Ok(found) => found,
            Err(error) if is_damage(&error) => return Ok((Self::default(), false)),
            Err(error) => return Err(StoreError::unreadable(dir.join(TALLY_FILE), error)),
        };
        let newest = found.newest();
        Ok((
            newest.map(|bytes| Self::decode(&bytes).1).unwrap_or_default(),
            newest.is_some() || !found.torn,
        ))
    }

    /// Losses that are not reported yet, given that `reported` losses have been reported.
    pub(crate) fn unreported(&self, reported: u64) -> Option<Unrecorded> {
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

    fn encode(&self, number: u64) -> [u8; TALLY_BYTES] {
        let Self { total, waiting, from_ms, to_ms, cause } = self;
        let cause = cause.as_bytes();
        let cause = cause.get(..CAUSE_BYTES).unwrap_or(cause);
        let mut out = [0; TALLY_BYTES];
        let numbers = [number, *total, *waiting, *from_ms, *to_ms].map(u64::to_be_bytes);
        let length = (cause.len() as u16).to_be_bytes();
        let bytes = numbers.as_flattened().iter().chain(&length).chain(cause);
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        out
    }

    /// Returns the slot's number and contents.
    fn decode(bytes: &[u8; TALLY_BYTES]) -> (u64, Self) {
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

/// Number of losses that the log has reported.
pub(super) fn reported(view: &View) -> Result<u64, StoreError> {
    match view.snapshot.get(Space::State, keys::LOST)? {
        Some(bytes) => view::number(&view.snapshot, Space::State, keys::LOST, &bytes),
        None => Ok(0),
    }
}

/// Copies the loss count of the log in `from` to a new file in `to` and returns it.
pub(super) fn copy_tally(from: &Path, to: &Path) -> Result<LossTally, StoreError> {
    let (tally, _) = LossTally::read(from)?;
    let (mut places, _) = AlternatingFile::open(to, TALLY_KIND)?;
    places.write(&tally.encode(1))?;
    Ok(tally)
}

/// Loss counter of an open log: the current outage and the file.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    outage: Mutex<Outage>,
    /// Locked only during writes, which a slow disk may delay.
    file: Mutex<Option<CountFile>>,
}

/// Current outage: losses that the log has not reported yet.
#[derive(Clone, Debug, Default)]
struct Outage {
    /// Number of reported losses.
    reported: u64,
    /// Number of unreported losses that may have been recorded after all.
    uncertain: u64,
    /// Number of lost or waiting entries at the last save.
    seen: u64,
    from_ms: u64,
    to_ms: u64,
    cause: String,
}

#[derive(Debug)]
struct CountFile {
    places: AlternatingFile<TALLY_BYTES>,
    number: u64,
    written: LossTally,
    /// True from the time when a failure is logged until a write succeeds.
    has_failed: bool,
}

impl Ledger {
    /// Opens the file in `dir`, given that the log has reported `reported` losses. Returns the number of lost entries.
    pub(super) fn open(&self, dir: &Path, reported: u64) -> Result<u64, StoreError> {
        let opened = AlternatingFile::open(dir, TALLY_KIND);
        let (places, found) =
            opened.map_err(|error| StoreError::unreadable(dir.join(TALLY_FILE), error))?;
        let newest = found.newest();
        if newest.is_none() && found.torn {
            tracing::error!(
                file = %places.path().display(),
                "the count of lost records is damaged; continuing with the number that the log has reported"
            );
        }
        let (number, tally) = newest.map(|bytes| LossTally::decode(&bytes)).unwrap_or_default();
        let lost = (tally.total + tally.waiting).max(reported);
        let LossTally { waiting: uncertain, from_ms, to_ms, ref cause, .. } = tally;
        *self.outage.lock() =
            Outage { reported, uncertain, seen: lost, from_ms, to_ms, cause: cause.clone() };
        *self.file.lock() = Some(CountFile { places, number, written: tally, has_failed: false });
        Ok(lost)
    }

    /// Switches to the file in `dir`, which belongs to the log that replaced the previous one.
    pub(super) fn reopen(&self, dir: &Path) -> Result<(), StoreError> {
        let (places, _) = AlternatingFile::open(dir, TALLY_KIND)?;
        if let Some(file) = self.file.lock().as_mut() {
            file.places = places;
        }
        Ok(())
    }

    /// Begins an outage, with `lost` entries lost before it.
    pub(super) fn begin(&self, cause: &str, lost: u64, now_ms: u64) {
        let mut outage = self.outage.lock();
        if outage.reported >= lost {
            (outage.from_ms, outage.to_ms) = (now_ms, now_ms);
        }
        let cut = cause.floor_char_boundary(CAUSE_BYTES);
        outage.cause = cause.get(..cut).unwrap_or_default().to_owned();
    }

    /// Losses that are not reported yet, given that `lost` entries are lost in total.
    pub(super) fn unreported(&self, lost: u64) -> Option<Unrecorded> {
        let outage = self.outage.lock();
        self::tally(&outage, lost, 0).unreported(outage.reported)
    }

    /// Marks all losses up to `total` as reported.
    pub(super) fn reported(&self, total: u64) {
        let mut outage = self.outage.lock();
        (outage.reported, outage.uncertain) = (total, 0);
    }

    /// Writes the file if its contents changed. `lost` is the number of lost entries, and `waiting` the number of
    /// entries that would also be lost if the process ended now. During an outage, `now_ms` is the time of the last
    /// loss. A failure is logged; the count then exists only in memory.
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
                tracing::error!(%error, file = %path, lost, waiting, "cannot write the count of lost records; it is only in memory");
            }
            Err(_) => {}
        }
    }
}

fn tally(outage: &Outage, lost: u64, waiting: u64) -> LossTally {
    let Outage { uncertain, from_ms, to_ms, ref cause, .. } = *outage;
    let (total, waiting) = (lost.saturating_sub(uncertain), waiting + uncertain);
    LossTally { total, waiting, from_ms, to_ms, cause: cause.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_kept_over_a_restart_until_they_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::default();
        assert_eq!(ledger.open(dir.path(), 0).unwrap(), 0);
        assert_eq!(ledger.unreported(0), None);
        ledger.begin("no space", 0, 100);
        ledger.save(7, 3, Some(200));
        // The process is killed here, so the three waiting entries may or may not have been recorded.
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
    fn torn_write_keeps_the_previous_count_and_a_damaged_file_counts_no_losses() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::default();
        ledger.open(dir.path(), 0).unwrap();
        ledger.begin("é".repeat(500).as_str(), 0, 1);
        ledger.save(5, 0, Some(2));
        ledger.save(6, 0, Some(3));
        let path = dir.path().join(TALLY_FILE);
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
