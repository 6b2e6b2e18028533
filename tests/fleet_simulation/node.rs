//! Simulated node: its disk, which survives crashes, and a process that acts like `fleet::ledger` and
//! `fleet::chain::place` with the decisions of `sealing` and `chain::check`.

use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_fleet::chain::check::{self, LogMismatch, ResumePoint};
use mcpproxy_fleet::checkpoint::{Checkpoint, origin};
use mcpproxy_fleet::sealing::SegmentUpload;
use mcpproxy_fleet::sealing::{ChainPosition, SealLimits, SealState, SegmentIntake};
use mcpproxy_fleet::segment::{SegmentName, day_of};

use super::random::Random;
use super::store::{Object, Store};
use super::variant::Variant;

/// Segment size in canonical bytes: a few records.
const SEGMENT_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub seq: u64,
    pub prev: Hash,
    pub hash: Hash,
    pub bytes: u64,
    pub stored_ms: u64,
}

/// Disk of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    pub log: NodeId,
    /// Retained records.
    pub records: Vec<LogRecord>,
    /// Last record that survives a power loss.
    pub durable: u64,
    /// Number and hash of the last record.
    pub end: (u64, Hash),
    stored_ms: u64,
    pub mark: Option<ResumePoint>,
}

impl Disk {
    pub fn new(log: u8) -> Self {
        Self {
            log: NodeId([log; 16]),
            records: Vec::new(),
            durable: 0,
            end: (0, Hash([log; 32])),
            stored_ms: 0,
            mark: None,
        }
    }

    pub fn find(&self, seq: u64) -> Option<&LogRecord> {
        let first = self.records.first()?.seq;
        self.records.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// Appends records with random content, so that two logs never have the same records.
    pub fn append(&mut self, count: u64, wall_ms: u64, random: &mut Random) {
        for _ in 0..count {
            let (last, prev) = self.end;
            let mut hash = [0; 32];
            hash.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.next().to_be_bytes()));
            self.stored_ms = self.stored_ms.max(wall_ms);
            let (seq, hash, stored_ms) = (last + 1, Hash(hash), self.stored_ms);
            let bytes = random.between(100, 3000);
            self.records.push(LogRecord { seq, prev, hash, bytes, stored_ms });
            self.end = (seq, hash);
        }
    }

    /// Simulates a power loss: records that are not durable are gone.
    pub fn lose_power(&mut self) {
        let durable = self.durable;
        let before = self.records.first().map(|first| (first.seq - 1, first.prev));
        self.records.retain(|record| record.seq <= durable);
        let last = self.records.last().map(|last| (last.seq, last.hash));
        self.end = last.or(before).unwrap_or(self.end);
    }

    /// Applies retention to uploaded records, except the last ones.
    pub fn retain(&mut self, confirmed: u64, random: &mut Random) {
        let first = self.records.first().map_or(0, |first| first.seq);
        let until = first + random.below(confirmed.saturating_sub(first).max(1));
        self.records.retain(|record| record.seq >= until.min(confirmed));
    }
}

/// Segment in flight.
#[derive(Clone, Debug)]
pub struct InHand {
    pub name: SegmentName,
    pub object: Object,
    pub putting: SegmentUpload,
    pub waits: bool,
}

/// Process that has joined.
#[derive(Clone, Debug)]
pub struct Process {
    pub state: SealState,
    pub planned: Option<u64>,
    pub in_hand: Option<InHand>,
}

impl Process {
    /// Joins with this disk. `None` if the store is unreachable and the saved state does not suffice; the
    /// node retries.
    ///
    /// # Errors
    ///
    /// Rejected.
    pub fn start(
        disk: &mut Disk,
        store: &Store,
        random: &mut Random,
        variant: Variant,
    ) -> Result<Self, LogMismatch> {
        let known = disk.mark;
        let newest = check::newest_segment(store.objects.keys().cloned(), known);
        let found =
            newest.as_ref().and_then(|name| Some((name, &store.objects.get(name)?.checkpoint)));
        let place = ResumePoint::of(known, found);
        let place = match place {
            Some(place) => {
                let seq = place.stored.seq;
                let hash = match disk.end {
                    (end, hash) if end == seq => Some(hash),
                    _ => disk.find(seq).map(|record| record.hash),
                };
                if variant != Variant::AnyLog {
                    place.check_log(disk.end.0, hash)?;
                }
                place
            }
            None => {
                let first = disk.records.first().map(|first| (first.seq - 1, first.prev));
                let (seq, head) = first.unwrap_or(disk.end);
                let stored = ChainPosition { seq, head, checkpoint: None };
                ResumePoint { stored, day: 0, planned: None }
            }
        };
        disk.mark = Some(place);
        let limits = SealLimits {
            flush_ms: random.between(100, 5000),
            bytes: SEGMENT_BYTES,
            catch_up: 4,
            backlog_bytes: 1 << 20,
            replies_wait: random.once_in(4),
            reply_ms: 10_000,
        };
        let planned = place.planned.filter(|_| variant != Variant::ForgetsPlans);
        Ok(Self { state: SealState::new(limits, place.stored), planned, in_hand: None })
    }

    /// Seals the next segment and saves that its upload is in progress. Returns false if there is nothing to
    /// seal.
    ///
    /// # Errors
    ///
    /// The log does not continue the uploaded chain.
    pub fn seal(
        &mut self,
        disk: &mut Disk,
        store: &Store,
        (bytes, now): (u64, u64),
        variant: Variant,
    ) -> Result<bool, LogMismatch> {
        let stored = self.state.stored();
        let durable = if variant == Variant::SealsEarly { disk.end.0 } else { disk.durable };
        let intake = SegmentIntake { planned: self.planned, durable, bytes };
        let mut taken: Vec<LogRecord> = Vec::new();
        let mut size = 0;
        for record in disk.records.iter().filter(|record| record.seq > stored.seq) {
            let last = taken.last().map(|last| last.seq);
            if !intake.takes(record.seq, last, taken.len(), size) {
                break;
            }
            size += record.bytes;
            taken.push(*record);
        }
        let (Some(first), Some(last)) = (taken.first(), taken.last()) else { return Ok(false) };
        if first.seq == stored.seq + 1 && first.prev != stored.head && variant != Variant::AnyLog {
            return Err(LogMismatch::Another);
        }
        let checkpoint = Checkpoint {
            origin: origin("f1", "a").into(),
            last: last.seq,
            head: last.hash,
            log: disk.log,
            first: first.seq,
            after: first.prev,
            tree: first.hash.0,
            data: last.hash.0,
            previous: stored.checkpoint,
        };
        let name = SegmentName::of(&checkpoint, day_of(first.stored_ms));
        self.planned = None;
        if let Some(mark) = &mut disk.mark {
            (mark.stored, mark.planned) = (stored, Some(checkpoint.last));
        }
        let position = ChainPosition {
            seq: checkpoint.last,
            head: checkpoint.head,
            checkpoint: Some(checkpoint.hash()),
        };
        self.state.sealed(position, size, now);
        let putting = SegmentUpload::new(store.creates, size, checkpoint.hash());
        let object = Object { checkpoint, records: taken.len() as u64, length: size };
        self.in_hand = Some(InHand { name, object, putting, waits: false });
        Ok(true)
    }
}
