//! Sealing scheduler and upload protocol. Sans-I/O: the caller reports events with a monotonic time in milliseconds and
//! executes the returned actions.
//!
//! ```text
//!            committed                 sealed                      uploaded
//!   Idle ───────────────▶ Gathering ──────────▶ InHand ── put ─────────────────▶ Idle, or Gathering
//!                         (time, bytes,           ▲  │ failed
//!                          replies waiting)       └──┘ after exponential backoff
//! ```
//!
//! One segment is in flight at a time: segments reach the store in chain order, so that readers never see a gap that closes
//! later. After an outage segments are larger ([`SealLimits::catch_up`]).
//!
//! [`SegmentUpload`] uploads one segment. It counts as uploaded only once the store has confirmed it twice, in the reply to the
//! write and when read back, and only if the store is the one this node joined.
//!
//! ```text
//!          ┌─ Create ─ made ──┐
//! begins ──┤     └──── exists ┼─▶ Place ─ ours ─▶ Compare ─ the same ──┬─▶ Place ─ ours ─▶ uploaded
//!          └─ Replace ────────┴─▶ Place ─ ours ─▶ Measure ─ its length ┘
//! ```
//!
//! The store is checked between the write and the read, and again after the read. If the store is swapped at any moment,
//! then either the read does not find the segment, or a check finds a store that this node did not join. The read alone is
//! not sufficient, because a late earlier attempt may have reached the other store. Only a store that is swapped twice
//! within one upload goes undetected.

use mcpproxy_activity::record::Hash;
use thiserror::Error;

use crate::checkpoint::CheckpointHash;

/// Position of a chain: a record, and the checkpoint that ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainPosition {
    /// Record number; one below the first if there are no records.
    pub seq: u64,
    /// Hash of the record, or the hash that the first record follows.
    pub head: Hash,
    /// Hash of the checkpoint; `None` before the first.
    pub checkpoint: Option<CheckpointHash>,
}

/// Limits of the sealing scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealLimits {
    /// Maximum time a record waits to be sealed, in milliseconds.
    pub flush_ms: u64,
    /// Target size of a segment in canonical bytes, exceeded by at most one record.
    pub bytes: u64,
    /// Factor by which a segment may be larger if there is a backlog.
    pub catch_up: u64,
    /// Backlog in canonical bytes at which the log is notified.
    pub backlog_bytes: u64,
    /// True if replies wait for their records to be uploaded; then nothing is batched.
    pub replies_wait: bool,
    /// Maximum time replies wait before the log is notified, in milliseconds.
    pub reply_ms: u64,
}

/// Pause after the first failure.
const FIRST_PAUSE_MS: u64 = 250;
const LONGEST_PAUSE_MS: u64 = 15_000;
/// Assumed record size before any was measured, in bytes.
const USUAL_RECORD_BYTES: u64 = 512;
/// Interval at which committed records are counted.
const LOOK_MS: u64 = 100;

/// Next action of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealAct {
    /// Do nothing until something is committed.
    Rest,
    /// Do nothing before this time.
    Wait(u64),
    /// Seal records after the last uploaded one, about this many canonical bytes.
    Seal(u64),
    /// Upload the segment in flight.
    Put,
}

/// Reason to notify the log that records can no longer wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// The backlog is too large.
    Backlog,
    /// Replies have been waiting too long.
    Replies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InHand {
    position: ChainPosition,
    failures: u32,
    not_before: u64,
    /// Time of sealing; later commits are not in the segment.
    made: u64,
    /// Size in canonical bytes.
    bytes: u64,
}

/// Measured canonical bytes of the records after the last uploaded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    until: u64,
    bytes: u64,
}

/// Maximum number of records per segment.
pub(crate) const MAX_RECORDS: usize = 32_768;

/// Selects the records of the next segment among those after the last uploaded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIntake {
    /// Last record of an interrupted upload, which is sealed again identically.
    pub planned: Option<u64>,
    /// Last durable record.
    pub durable: u64,
    /// Target size in canonical bytes.
    pub bytes: u64,
}

impl SegmentIntake {
    /// True if record `seq` belongs to the segment after `records` records of `bytes` bytes, ending with
    /// `last`.
    pub fn takes(&self, seq: u64, last: Option<u64>, records: usize, bytes: u64) -> bool {
        let follows = last.is_none_or(|last| seq == last + 1);
        let is_full = bytes >= self.bytes || records >= MAX_RECORDS;
        let until = self.planned.unwrap_or(self.durable);
        seq <= until && follows && (!is_full || self.planned.is_some())
    }
}

/// Sealing state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealState {
    limits: SealLimits,
    stored: ChainPosition,
    committed: u64,
    /// Commit time of the oldest record not uploaded.
    since: Option<u64>,
    /// Average canonical bytes per record.
    record_bytes: u64,
    measured: Option<Measured>,
    in_hand: Option<InHand>,
    /// Consecutive sealing failures, and the time of the next attempt.
    seal_failures: u32,
    not_before: u64,
    ending: bool,
}

impl SealState {
    /// Creates the state of a chain uploaded up to `stored`.
    pub fn new(limits: SealLimits, stored: ChainPosition) -> Self {
        Self {
            limits,
            stored,
            committed: stored.seq,
            since: None,
            record_bytes: USUAL_RECORD_BYTES,
            measured: None,
            in_hand: None,
            seal_failures: 0,
            not_before: 0,
            ending: false,
        }
    }

    pub fn stored(&self) -> ChainPosition {
        self.stored
    }

    /// Reports that the log has committed all records up to `seq`.
    pub fn committed(&mut self, seq: u64, now: u64) {
        if seq > self.committed {
            self.since.get_or_insert(now);
            self.committed = seq;
        }
    }

    /// Reports that nothing more will be committed: the rest is sealed now.
    pub(crate) fn ends(&mut self) {
        self.ending = true;
    }

    /// Reports the chain's position after a late join. Waiting times are kept.
    pub(crate) fn placed(&mut self, stored: ChainPosition) {
        if stored.seq != self.stored.seq {
            self.record_bytes = self.record_bytes();
            self.measured = None;
        }
        self.stored = stored;
        self.committed = self.committed.max(stored.seq);
        self.since = self.since.filter(|_| self.committed > stored.seq);
    }

    /// Last record whose size is measured.
    pub(crate) fn measured_until(&self) -> u64 {
        self.measured.map_or(self.stored.seq, |measured| measured.until)
    }

    /// Reports the canonical bytes of the records after [`Self::measured_until`] up to `until`.
    pub(crate) fn measured(&mut self, until: u64, bytes: u64) {
        if until > self.measured_until() {
            let before = self.measured.map_or(0, |measured| measured.bytes);
            self.measured = Some(Measured { until, bytes: before.saturating_add(bytes) });
        }
    }

    /// Estimated canonical bytes committed and not uploaded: measured bytes, plus the average for the rest.
    pub(crate) fn backlog(&self) -> u64 {
        let rest = self.committed.saturating_sub(self.measured_until());
        let measured = self.measured.map_or(0, |measured| measured.bytes);
        measured.saturating_add(rest.saturating_mul(self.record_bytes()))
    }

    /// Average canonical bytes of the waiting records.
    pub(crate) fn record_bytes(&self) -> u64 {
        let Some(Measured { until, bytes }) = self.measured else { return self.record_bytes };
        (bytes / until.saturating_sub(self.stored.seq).max(1)).max(1)
    }

    /// Waiting time of the oldest record not uploaded, in milliseconds; `None` if there is none.
    pub(crate) fn waits(&self, now: u64) -> Option<u64> {
        self.since.map(|since| now.saturating_sub(since))
    }

    /// Number of records committed and not uploaded.
    pub(crate) fn behind(&self) -> u64 {
        self.committed.saturating_sub(self.stored.seq)
    }

    /// Returns the next action.
    pub fn act(&self, now: u64) -> SealAct {
        if let Some(hand) = self.in_hand {
            return if now >= hand.not_before {
                SealAct::Put
            } else {
                SealAct::Wait(hand.not_before)
            };
        }
        let Some(since) = self.since else { return SealAct::Rest };
        if now < self.not_before {
            return SealAct::Wait(self.not_before);
        }
        let SealLimits { flush_ms, bytes, catch_up, replies_wait, .. } = self.limits;
        let backlog = self.backlog();
        let large = bytes.saturating_mul(catch_up.max(1));
        let size = if backlog >= large { large } else { bytes };
        let due = since.saturating_add(flush_ms);
        if self.ending || replies_wait || backlog >= bytes || now >= due {
            SealAct::Seal(size)
        } else {
            SealAct::Wait(due.min(now.saturating_add(LOOK_MS)))
        }
    }

    /// Reports that a segment ending at `position` was sealed.
    pub fn sealed(&mut self, position: ChainPosition, bytes: u64, now: u64) {
        let records = position.seq.saturating_sub(self.stored.seq).max(1);
        self.record_bytes = (bytes / records).max(1);
        self.seal_failures = 0;
        self.in_hand = Some(InHand { position, failures: 0, not_before: now, made: now, bytes });
    }

    /// Reports that sealing failed.
    pub fn not_sealed(&mut self, now: u64) {
        self.seal_failures = self.seal_failures.saturating_add(1);
        self.not_before = now.saturating_add(pause(self.seal_failures));
    }

    /// Reports that the segment in flight is uploaded. `checkpoint` differs from the checkpoint signed here only if
    /// another version of the program uploaded the same records.
    pub fn uploaded(&mut self, checkpoint: CheckpointHash) {
        let Some(hand) = self.in_hand.take() else { return };
        self.stored = ChainPosition { checkpoint: Some(checkpoint), ..hand.position };
        let stored = self.stored.seq;
        self.measured = self
            .measured
            .filter(|it| it.until > stored)
            .map(|it| Measured { bytes: it.bytes.saturating_sub(hand.bytes), ..it });
        self.since = (self.committed > self.stored.seq).then_some(hand.made);
    }

    /// Reports that the upload failed or its outcome is unknown.
    pub fn upload_failed(&mut self, now: u64) {
        if let Some(hand) = &mut self.in_hand {
            hand.failures = hand.failures.saturating_add(1);
            hand.not_before = now.saturating_add(pause(hand.failures));
        }
    }

    /// True if the last attempt to seal or upload failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.seal_failures > 0 || self.in_hand.is_some_and(|hand| hand.failures > 0)
    }

    /// Reason to notify the log, if there is one.
    pub(crate) fn overdue(&self, now: u64) -> Option<Overdue> {
        let waits = self.waits(now).unwrap_or(0);
        if self.backlog() > self.limits.backlog_bytes {
            Some(Overdue::Backlog)
        } else if self.limits.replies_wait && waits > self.limits.reply_ms {
            Some(Overdue::Replies)
        } else {
            None
        }
    }
}

/// Backoff after this many failures.
fn pause(failures: u32) -> u64 {
    let doubled = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    FIRST_PAUSE_MS.saturating_mul(doubled).min(LONGEST_PAUSE_MS)
}

/// Evidence that the store is not the one that was joined.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StoreMismatch {
    #[error("fleet.json is missing")]
    NoFleet,
    #[error("fleet.json belongs to another fleet")]
    OtherFleet,
    #[error("this node's claim is missing")]
    NoClaim,
    #[error("this node's claim was replaced")]
    OtherClaim,
}

impl StoreMismatch {
    /// True if the whole store differs, not only the node's claim.
    pub(crate) const fn is_of_store(self) -> bool {
        match self {
            Self::NoFleet | Self::OtherFleet => true,
            Self::NoClaim | Self::OtherClaim => false,
        }
    }
}

/// Next store request of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadRequest {
    /// Create the object if its key is free.
    Create,
    /// Write the object, replacing an existing one.
    Replace,
    /// Check that the store is the one that was joined.
    Place,
    /// Read the object, to compare it with the segment.
    Compare,
    /// Read the object's length.
    Measure,
}

/// Reply of the store. After a failed request the upload is restarted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadReply {
    Done,
    /// The key is taken; the object is unchanged.
    Exists,
    /// Result of checking the store.
    Place(Result<(), StoreMismatch>),
    /// Checkpoint of the stored segment if its records are the same, possibly written by another version;
    /// `None` otherwise.
    There(Option<CheckpointHash>),
    /// Length of the stored object in bytes; `None` if there is no object.
    Length(Option<u64>),
}

/// Reason why a segment does not count as uploaded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UploadError {
    #[error("a different segment exists under this key")]
    Another,
    #[error("{put} bytes were uploaded, but the store has {there}")]
    Length {
        /// Uploaded bytes.
        put: u64,
        /// Stored bytes.
        there: u64,
    },
    #[error("the store confirmed the upload, but the object is missing")]
    Gone,
    #[error("uploaded to a store that is not the one this node joined: {0}")]
    Elsewhere(StoreMismatch),
    #[error("unexpected reply from the store")]
    Odd,
}

/// Outcome of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStep {
    Ask(SegmentUpload),
    /// The segment is uploaded, with this checkpoint.
    Stored(CheckpointHash),
}

/// Continuation after the store is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterCheck {
    /// Request that reads the segment back.
    Ask(UploadRequest),
    /// The segment was read back: it is uploaded.
    Stored(CheckpointHash),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUpload {
    ask: UploadRequest,
    then: AfterCheck,
    length: u64,
    checkpoint: CheckpointHash,
}

impl SegmentUpload {
    /// Starts an upload of `length` bytes; `creates` is true if the store supports conditional creation.
    pub fn new(creates: bool, length: u64, checkpoint: CheckpointHash) -> Self {
        let ask = if creates { UploadRequest::Create } else { UploadRequest::Replace };
        Self { ask, then: AfterCheck::Ask(UploadRequest::Measure), length, checkpoint }
    }

    pub fn ask(&self) -> UploadRequest {
        self.ask
    }

    /// Handles the store's reply.
    pub fn answered(self, answer: UploadReply) -> Result<UploadStep, UploadError> {
        let Self { ask, then, length, checkpoint } = self;
        let place_then =
            |then| Ok(UploadStep::Ask(Self { ask: UploadRequest::Place, then, ..self }));
        match (ask, answer) {
            (UploadRequest::Create | UploadRequest::Replace, UploadReply::Done) => {
                place_then(AfterCheck::Ask(UploadRequest::Measure))
            }
            // The reply to an earlier attempt was lost, or another writer was first.
            (UploadRequest::Create, UploadReply::Exists) => {
                place_then(AfterCheck::Ask(UploadRequest::Compare))
            }
            (UploadRequest::Place, UploadReply::Place(Ok(()))) => Ok(match then {
                AfterCheck::Ask(ask) => UploadStep::Ask(Self { ask, ..self }),
                AfterCheck::Stored(checkpoint) => UploadStep::Stored(checkpoint),
            }),
            (UploadRequest::Place, UploadReply::Place(Err(lost))) => {
                Err(UploadError::Elsewhere(lost))
            }
            (UploadRequest::Compare, UploadReply::There(Some(there))) => {
                place_then(AfterCheck::Stored(there))
            }
            (UploadRequest::Compare, UploadReply::There(None)) => Err(UploadError::Another),
            (UploadRequest::Measure, UploadReply::Length(Some(there))) if there == length => {
                place_then(AfterCheck::Stored(checkpoint))
            }
            (UploadRequest::Measure, UploadReply::Length(Some(there))) => {
                Err(UploadError::Length { put: length, there })
            }
            (UploadRequest::Measure, UploadReply::Length(None)) => Err(UploadError::Gone),
            (
                UploadRequest::Create
                | UploadRequest::Replace
                | UploadRequest::Place
                | UploadRequest::Compare
                | UploadRequest::Measure,
                UploadReply::Done
                | UploadReply::Exists
                | UploadReply::Place(_)
                | UploadReply::There(_)
                | UploadReply::Length(_),
            ) => Err(UploadError::Odd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: SealLimits = SealLimits {
        flush_ms: 5000,
        bytes: 4096,
        catch_up: 4,
        backlog_bytes: 1 << 20,
        replies_wait: false,
        reply_ms: 10_000,
    };

    fn at(seq: u64) -> ChainPosition {
        ChainPosition { seq, head: Hash([seq as u8; 32]), checkpoint: Some([seq as u8; 32]) }
    }

    #[test]
    fn few_records_wait_for_the_flush_interval_and_many_do_not() {
        let mut state = SealState::new(LIMITS, at(10));
        assert_eq!(state.act(0), SealAct::Rest);
        state.committed(10, 1);
        assert_eq!(state.act(1), SealAct::Rest, "already uploaded");
        state.committed(11, 100);
        assert_eq!(state.act(100), SealAct::Wait(200));
        assert_eq!(state.act(5050), SealAct::Wait(5100));
        assert_eq!(state.act(5100), SealAct::Seal(4096));
        state.committed(18, 300);
        assert_eq!(state.act(300), SealAct::Seal(4096), "the size of a segment");
        state.committed(50, 300);
        assert_eq!(state.act(300), SealAct::Seal(16384), "far behind");
        let mut state = SealState::new(LIMITS, at(10));
        state.committed(11, 100);
        state.ends();
        assert_eq!(state.act(100), SealAct::Seal(4096));
        let mut state = SealState::new(SealLimits { replies_wait: true, ..LIMITS }, at(10));
        state.committed(11, 100);
        assert_eq!(state.act(100), SealAct::Seal(4096));
    }

    #[test]
    fn segment_intake_stops_at_the_durable_end_or_a_limit_unless_the_segment_is_planned() {
        let intake = SegmentIntake { planned: None, durable: 20, bytes: 100 };
        assert!(intake.takes(11, None, 0, 0) && intake.takes(20, Some(19), 9, 99));
        assert!(!intake.takes(21, Some(20), 10, 99), "not durable");
        assert!(!intake.takes(20, Some(18), 9, 99), "a hole");
        assert!(!intake.takes(20, Some(19), 9, 100) && !intake.takes(20, Some(19), MAX_RECORDS, 9));
        let again = SegmentIntake { planned: Some(15), ..intake };
        assert!(again.takes(15, Some(14), MAX_RECORDS, 1000) && !again.takes(16, Some(15), 5, 5));
    }

    #[test]
    fn segment_in_flight_is_retried_with_backoff() {
        let mut state = SealState::new(LIMITS, at(0));
        state.committed(20, 0);
        state.sealed(at(15), 1500, 7);
        assert_eq!(state.act(7), SealAct::Put);
        let (mut now, mut pauses) = (7, Vec::new());
        for _ in 0..9 {
            state.upload_failed(now);
            let SealAct::Wait(until) = state.act(now) else { panic!("{state:?}") };
            assert!(state.is_failing());
            pauses.push(until - now);
            now = until;
            assert_eq!(state.act(now), SealAct::Put);
            assert_eq!(state.stored(), at(0));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 15000, 15000, 15000]);
        state.uploaded([15; 32]);
        assert_eq!((state.stored(), state.behind()), (at(15), 5));
        assert!(!state.is_failing());
        assert_eq!(state.backlog(), 5 * 100);
        state.uploaded([1; 32]);
        assert_eq!(state.stored(), at(15), "nothing is in flight");
    }

    #[test]
    fn backlog_and_late_replies_are_reported_as_overdue() {
        let mut state = SealState::new(LIMITS, at(0));
        state.committed(2048, 0);
        assert_eq!(state.overdue(1 << 40), None);
        state.committed(2049, 0);
        assert_eq!(state.overdue(0), Some(Overdue::Backlog));
        let mut state = SealState::new(SealLimits { replies_wait: true, ..LIMITS }, at(0));
        state.committed(1, 5);
        assert_eq!(state.overdue(10_005), None);
        assert_eq!(state.overdue(10_006), Some(Overdue::Replies));
        state.sealed(at(1), 100, 10_006);
        state.uploaded([1; 32]);
        assert_eq!(state.overdue(1 << 40), None);
    }

    #[test]
    fn backlog_is_also_measured_before_the_node_joins() {
        let mut state = SealState::new(LIMITS, at(10));
        state.committed(14, 0);
        assert_eq!((state.backlog(), state.measured_until()), (4 * USUAL_RECORD_BYTES, 10));
        // Large records: two are measured, the other two are estimated from them.
        state.measured(12, 1 << 19);
        assert_eq!((state.backlog(), state.overdue(0)), (1 << 20, None));
        state.measured(13, 1 << 19);
        assert_eq!(state.overdue(0), Some(Overdue::Backlog));
        state.measured(13, 1 << 19);
        assert_eq!(state.measured_until(), 13, "no record is counted twice");
        // The store turns out to have more records than the saved position indicates.
        state.placed(at(12));
        assert_eq!((state.backlog(), state.waits(7)), (2 * ((1 << 20) / 3), Some(7)));
        state.measured(14, 500);
        assert_eq!((state.backlog(), state.record_bytes()), (500, 250));
        state.sealed(at(13), 300, 8);
        state.uploaded([1; 32]);
        assert_eq!((state.backlog(), state.record_bytes()), (200, 200));
        state.sealed(at(14), 200, 9);
        state.uploaded([1; 32]);
        assert_eq!((state.backlog(), state.measured_until(), state.waits(9)), (0, 14, None));
        let mut state = SealState::new(LIMITS, at(10));
        state.committed(12, 0);
        state.placed(at(12));
        assert_eq!((state.waits(5), state.act(5)), (None, SealAct::Rest));
    }

    /// Events of a node, encoded as numbers.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Commit(u64),
        Pass(u64),
        Put(bool),
        Fail,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (1..40_u64).prop_map(Event::Commit),
            (1..6000_u64).prop_map(Event::Pass),
            any::<bool>().prop_map(Event::Put),
            Just(Event::Fail),
        ]
    }

    proptest! {
        #[test]
        fn segments_are_uploaded_in_order_without_gaps_until_done(
            events in prop::collection::vec(event(), 1..200),
            replies_wait: bool,
        ) {
            let mut state = SealState::new(SealLimits { replies_wait, ..LIMITS }, at(0));
            let (mut now, mut committed, mut in_hand, mut ends) = (0_u64, 0_u64, None, vec![0]);
            let mut step = |state: &mut SealState, now: &mut u64, committed: u64, stored: bool, seals: bool| {
                match state.act(*now) {
                    SealAct::Rest => {
                        assert_eq!(state.stored().seq, committed, "nothing to do");
                        false
                    }
                    SealAct::Wait(until) => {
                        assert!(until > *now);
                        *now = until;
                        true
                    }
                    SealAct::Seal(bytes) => {
                        assert!(in_hand.is_none(), "one segment in flight at a time");
                        if seals {
                            let last = committed.min(state.stored().seq + bytes / 100);
                            state.sealed(at(last), (last - state.stored().seq) * 100, *now);
                            in_hand = Some(last);
                        } else {
                            state.not_sealed(*now);
                        }
                        true
                    }
                    SealAct::Put => {
                        assert!(in_hand.is_some());
                        if stored {
                            state.uploaded([0; 32]);
                            ends.extend(in_hand.take());
                        } else {
                            state.upload_failed(*now);
                        }
                        true
                    }
                }
            };
            for event in events {
                match event {
                    Event::Commit(more) => {
                        committed += more;
                        state.committed(committed, now);
                    }
                    Event::Pass(millis) => now += millis,
                    Event::Put(stored) => { step(&mut state, &mut now, committed, stored, true); }
                    Event::Fail => { step(&mut state, &mut now, committed, false, false); }
                }
                prop_assert!(state.stored().seq <= committed);
            }
            state.ends();
            let mut steps = 0;
            while step(&mut state, &mut now, committed, true, true) {
                steps += 1;
                prop_assert!(steps < 10_000);
            }
            prop_assert_eq!(state.stored().seq, committed);
            prop_assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", ends);
        }
    }

    /// Requests made, and the final outcome.
    fn run(
        creates: bool,
        answers: &[UploadReply],
    ) -> (Vec<UploadRequest>, Option<Result<CheckpointHash, UploadError>>) {
        let (mut putting, mut asked) = (SegmentUpload::new(creates, 10, [1; 32]), Vec::new());
        for answer in answers {
            asked.push(putting.ask());
            match putting.answered(*answer) {
                Ok(UploadStep::Ask(next)) => putting = next,
                Ok(UploadStep::Stored(checkpoint)) => return (asked, Some(Ok(checkpoint))),
                Err(error) => return (asked, Some(Err(error))),
            }
        }
        (asked, None)
    }

    #[test]
    fn upload_requires_two_confirmations() {
        use UploadReply::{Done, Exists, Length, There};
        use UploadRequest::{Compare, Create, Measure, Place, Replace};
        const OURS: UploadReply = UploadReply::Place(Ok(()));
        let stored = |by| Some(Ok([by; 32]));
        let measured = [Done, OURS, Length(Some(10)), OURS];
        assert_eq!(run(true, &measured), (vec![Create, Place, Measure, Place], stored(1)));
        assert_eq!(run(false, &measured), (vec![Replace, Place, Measure, Place], stored(1)));
        let compared = [Exists, OURS, There(Some([2; 32])), OURS];
        assert_eq!(run(true, &compared), (vec![Create, Place, Compare, Place], stored(2)));
        assert_eq!(run(true, &[Done, OURS]).1, None, "one confirmation is not enough");
        assert_eq!(run(true, &measured[..3]).1, None, "the store may have been swapped");
        for (creates, answers, why) in [
            (true, vec![Exists, OURS, There(None)], UploadError::Another),
            (true, vec![Done, OURS, Length(None)], UploadError::Gone),
            (false, vec![Done, OURS, Length(Some(9))], UploadError::Length { put: 10, there: 9 }),
            (false, vec![Exists], UploadError::Odd),
            (true, vec![Done, Length(Some(10))], UploadError::Odd),
            (true, vec![Done, OURS, There(Some([1; 32]))], UploadError::Odd),
            (true, vec![Exists, OURS, Length(Some(10))], UploadError::Odd),
        ] {
            assert_eq!(run(creates, &answers).1, Some(Err(why)));
        }
    }

    #[test]
    fn upload_to_a_swapped_store_does_not_count() {
        for lost in [StoreMismatch::NoFleet, StoreMismatch::OtherFleet, StoreMismatch::NoClaim] {
            let elsewhere = UploadReply::Place(Err(lost));
            let ours = UploadReply::Place(Ok(()));
            let (length, there) =
                (UploadReply::Length(Some(10)), UploadReply::There(Some([1; 32])));
            for answers in [
                vec![UploadReply::Done, elsewhere],
                vec![UploadReply::Exists, elsewhere],
                vec![UploadReply::Done, ours, length, elsewhere],
                vec![UploadReply::Exists, ours, there, elsewhere],
            ] {
                assert_eq!(run(true, &answers).1, Some(Err(UploadError::Elsewhere(lost))));
            }
        }
    }
}
