//! When a node seals what its log has committed, and when what it sealed is tried again. Pure: it is told what happened and what
//! time it is (any clock that does not run back, in milliseconds), and says what is to be done.
//!
//! ```text
//!            committed                 sealed                       stored
//!   Idle ───────────────▶ Gathering ──────────▶ InHand ── put ─────────────────▶ Idle, or Gathering
//!                         (time, bytes,           ▲  │ failed
//!                          somebody waits)        └──┘ after a pause that grows
//! ```
//!
//! One segment is in hand at a time: segments reach the store in the order of the chain, so that whoever reads it never sees
//! a hole that closes later. Behind a store that was away segments are larger ([`SealLimits::catch_up`]).
//!
//! Size: the states, and every way through them in tests.

use super::checkpoint::CheckpointHash;
use crate::activity::record::Hash;

/// How far a chain has come: a record, and the checkpoint that ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainPosition {
    /// The record's number; of nothing yet, one below the first.
    pub seq: u64,
    /// Its hash, or what the first record follows.
    pub head: Hash,
    /// The checkpoint; `None` before the first.
    pub checkpoint: Option<CheckpointHash>,
}

/// The bounds of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealLimits {
    /// The longest that a record waits to be sealed, in milliseconds.
    pub flush_ms: u64,
    /// Canonical bytes of a segment, one record aside.
    pub bytes: u64,
    /// A segment may be so many times larger where so much is behind.
    pub catch_up: u64,
    /// Most canonical bytes that wait, before the log is told.
    pub backlog_bytes: u64,
    /// Whether replies wait for their records to be stored: then nothing is gathered.
    pub replies_wait: bool,
    /// Where replies wait, the longest before the log is told, in milliseconds.
    pub reply_ms: u64,
}

/// The first pause after a failure.
const FIRST_PAUSE_MS: u64 = 250;
/// The longest.
const LONGEST_PAUSE_MS: u64 = 15_000;
/// What a record is taken to be long before any was seen.
const USUAL_RECORD_BYTES: u64 = 512;
/// How often it is looked how much was committed meanwhile.
const LOOK_MS: u64 = 100;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealAct {
    /// Nothing, before something is committed.
    Rest,
    /// Nothing, before that moment.
    Wait(u64),
    /// Seal what follows the last that is stored: about so many canonical bytes.
    Seal(u64),
    /// Put into the store what is in hand.
    Put,
}

/// Why the log has to be told that records cannot be kept for the store any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Too many bytes wait.
    Backlog,
    /// Replies have been waiting for too long.
    Replies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InHand {
    position: ChainPosition,
    failures: u32,
    not_before: u64,
    /// When it was made: what was committed after that is not in it.
    made: u64,
    /// Its canonical bytes.
    bytes: u64,
}

/// How many canonical bytes the records after the last that is stored have, up to that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    until: u64,
    bytes: u64,
}

/// Most records of a segment.
pub const MAX_RECORDS: usize = 32_768;

/// Which records the next segment takes, of those that follow what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIntake {
    /// The last record of a segment that was noted as on its way: it is made again as it was.
    pub planned: Option<u64>,
    /// The last record that is durable.
    pub durable: u64,
    /// About so many canonical bytes.
    pub bytes: u64,
}

impl SegmentIntake {
    /// Whether record `seq` is taken, after so many `records` with so many `bytes`, of which `last` is the last one.
    #[must_use]
    pub fn takes(&self, seq: u64, last: Option<u64>, records: usize, bytes: u64) -> bool {
        let follows = last.is_none_or(|last| seq == last + 1);
        let is_full = bytes >= self.bytes || records >= MAX_RECORDS;
        let until = self.planned.unwrap_or(self.durable);
        seq <= until && follows && (!is_full || self.planned.is_some())
    }
}

/// What a node has sealed, and what it has to seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealState {
    limits: SealLimits,
    stored: ChainPosition,
    committed: u64,
    /// Since when the oldest record that is not stored has been committed.
    since: Option<u64>,
    /// About how many canonical bytes a record has.
    record_bytes: u64,
    measured: Option<Measured>,
    in_hand: Option<InHand>,
    /// Failures to seal since the last success, and when to try again.
    seal_failures: u32,
    not_before: u64,
    ending: bool,
}

impl SealState {
    /// Of a chain that has come so far in the store.
    #[must_use]
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

    /// How far the chain has come in the store.
    #[must_use]
    pub fn stored(&self) -> ChainPosition {
        self.stored
    }

    /// The log has committed everything up to `seq`.
    pub fn committed(&mut self, seq: u64, now: u64) {
        if seq > self.committed {
            self.since.get_or_insert(now);
            self.committed = seq;
        }
    }

    /// Nothing will be committed any more: what there is, is sealed now.
    pub fn ends(&mut self) {
        self.ending = true;
    }

    /// The node, which had none, has its place: the chain has come so far in the store. Whoever waits has waited all the same.
    pub fn placed(&mut self, stored: ChainPosition) {
        if stored.seq != self.stored.seq {
            self.record_bytes = self.record_bytes();
            self.measured = None;
        }
        self.stored = stored;
        self.committed = self.committed.max(stored.seq);
        self.since = self.since.filter(|_| self.committed > stored.seq);
    }

    /// Up to which record it is known how many bytes wait: what comes after it is to be measured.
    #[must_use]
    pub fn measured_until(&self) -> u64 {
        self.measured.map_or(self.stored.seq, |measured| measured.until)
    }

    /// The records after [`Self::measured_until`] up to `until` have so many canonical bytes.
    pub fn measured(&mut self, until: u64, bytes: u64) {
        if until > self.measured_until() {
            let before = self.measured.map_or(0, |measured| measured.bytes);
            self.measured = Some(Measured { until, bytes: before.saturating_add(bytes) });
        }
    }

    /// About how many canonical bytes are committed and not stored: what was measured, and the rest at its average.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        let rest = self.committed.saturating_sub(self.measured_until());
        let measured = self.measured.map_or(0, |measured| measured.bytes);
        measured.saturating_add(rest.saturating_mul(self.record_bytes()))
    }

    /// About how many canonical bytes a record has, of those that wait.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        let Some(Measured { until, bytes }) = self.measured else { return self.record_bytes };
        (bytes / until.saturating_sub(self.stored.seq).max(1)).max(1)
    }

    /// For how long the oldest record that is not stored has been waiting, in milliseconds; `None` where there is none.
    #[must_use]
    pub fn waits(&self, now: u64) -> Option<u64> {
        self.since.map(|since| now.saturating_sub(since))
    }

    /// Records that are committed and not stored.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.committed.saturating_sub(self.stored.seq)
    }

    /// What is to be done now.
    #[must_use]
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

    /// A segment was made that ends there, of so many canonical bytes.
    pub fn sealed(&mut self, position: ChainPosition, bytes: u64, now: u64) {
        let records = position.seq.saturating_sub(self.stored.seq).max(1);
        self.record_bytes = (bytes / records).max(1);
        self.seal_failures = 0;
        self.in_hand = Some(InHand { position, failures: 0, not_before: now, made: now, bytes });
    }

    /// No segment could be made.
    pub fn not_sealed(&mut self, now: u64) {
        self.seal_failures = self.seal_failures.saturating_add(1);
        self.not_before = now.saturating_add(pause(self.seal_failures));
    }

    /// The segment in hand is in the store, as the store itself says, with that checkpoint: another one only where another
    /// version had put the same records.
    pub fn stored_now(&mut self, checkpoint: CheckpointHash) {
        let Some(hand) = self.in_hand.take() else { return };
        self.stored = ChainPosition { checkpoint: Some(checkpoint), ..hand.position };
        let stored = self.stored.seq;
        self.measured = self
            .measured
            .filter(|it| it.until > stored)
            .map(|it| Measured { bytes: it.bytes.saturating_sub(hand.bytes), ..it });
        self.since = (self.committed > self.stored.seq).then_some(hand.made);
    }

    /// It is not, or nobody knows.
    pub fn not_stored(&mut self, now: u64) {
        if let Some(hand) = &mut self.in_hand {
            hand.failures = hand.failures.saturating_add(1);
            hand.not_before = now.saturating_add(pause(hand.failures));
        }
    }

    /// Whether the last attempt, at sealing or at putting, came to nothing.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.seal_failures > 0 || self.in_hand.is_some_and(|hand| hand.failures > 0)
    }

    /// Whether the log has to be told that it is too much, or too late.
    #[must_use]
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
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

/// The pause after so many failures.
fn pause(failures: u32) -> u64 {
    let doubled = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    FIRST_PAUSE_MS.saturating_mul(doubled).min(LONGEST_PAUSE_MS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn a_few_records_wait_for_their_time_and_many_do_not() {
        let mut state = SealState::new(LIMITS, at(10));
        assert_eq!(state.act(0), SealAct::Rest);
        state.committed(10, 1);
        assert_eq!(state.act(1), SealAct::Rest, "that is stored");
        state.committed(11, 100);
        assert_eq!(state.act(100), SealAct::Wait(200));
        assert_eq!(state.act(5050), SealAct::Wait(5100));
        assert_eq!(state.act(5100), SealAct::Seal(4096));
        state.committed(18, 300);
        assert_eq!(state.act(300), SealAct::Seal(4096), "as many bytes as a segment has");
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
    fn a_segment_takes_what_is_durable_until_it_is_full_and_what_was_planned_whole() {
        let intake = SegmentIntake { planned: None, durable: 20, bytes: 100 };
        assert!(intake.takes(11, None, 0, 0) && intake.takes(20, Some(19), 9, 99));
        assert!(!intake.takes(21, Some(20), 10, 99), "not durable");
        assert!(!intake.takes(20, Some(18), 9, 99), "a hole");
        assert!(!intake.takes(20, Some(19), 9, 100) && !intake.takes(20, Some(19), MAX_RECORDS, 9));
        let again = SegmentIntake { planned: Some(15), ..intake };
        assert!(again.takes(15, Some(14), MAX_RECORDS, 1000) && !again.takes(16, Some(15), 5, 5));
    }

    #[test]
    fn what_is_in_hand_is_put_until_it_is_stored_with_growing_pauses() {
        let mut state = SealState::new(LIMITS, at(0));
        state.committed(20, 0);
        state.sealed(at(15), 1500, 7);
        assert_eq!(state.act(7), SealAct::Put);
        let (mut now, mut pauses) = (7, Vec::new());
        for _ in 0..9 {
            state.not_stored(now);
            let SealAct::Wait(until) = state.act(now) else { panic!("{state:?}") };
            assert!(state.is_failing());
            pauses.push(until - now);
            now = until;
            assert_eq!(state.act(now), SealAct::Put);
            assert_eq!(state.stored(), at(0));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 15000, 15000, 15000]);
        state.stored_now([15; 32]);
        assert_eq!((state.stored(), state.behind()), (at(15), 5));
        assert!(!state.is_failing());
        assert_eq!(state.backlog(), 5 * 100);
        state.stored_now([1; 32]);
        assert_eq!(state.stored(), at(15), "nothing is in hand");
    }

    #[test]
    fn the_log_is_told_of_too_much_and_where_replies_wait_of_too_late() {
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
        state.stored_now([1; 32]);
        assert_eq!(state.overdue(1 << 40), None);
    }

    #[test]
    fn what_waits_is_measured_and_holds_also_before_the_node_has_its_place() {
        let mut state = SealState::new(LIMITS, at(10));
        state.committed(14, 0);
        assert_eq!((state.backlog(), state.measured_until()), (4 * USUAL_RECORD_BYTES, 10));
        // Large ones: two of them are told, and the other two taken to be like them.
        state.measured(12, 1 << 19);
        assert_eq!((state.backlog(), state.overdue(0)), (1 << 20, None));
        state.measured(13, 1 << 19);
        assert_eq!(state.overdue(0), Some(Overdue::Backlog));
        state.measured(13, 1 << 19);
        assert_eq!(state.measured_until(), 13, "nobody counts one twice");
        // The store had more than was remembered.
        state.placed(at(12));
        assert_eq!((state.backlog(), state.waits(7)), (2 * ((1 << 20) / 3), Some(7)));
        state.measured(14, 500);
        assert_eq!((state.backlog(), state.record_bytes()), (500, 250));
        state.sealed(at(13), 300, 8);
        state.stored_now([1; 32]);
        assert_eq!((state.backlog(), state.record_bytes()), (200, 200));
        state.sealed(at(14), 200, 9);
        state.stored_now([1; 32]);
        assert_eq!((state.backlog(), state.measured_until(), state.waits(9)), (0, 14, None));
        let mut state = SealState::new(LIMITS, at(10));
        state.committed(12, 0);
        state.placed(at(12));
        assert_eq!((state.waits(5), state.act(5)), (None, SealAct::Rest));
    }

    /// What can happen to a node, as numbers.
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
        fn segments_are_stored_in_order_without_holes_and_in_the_end_all_of_them(
            events in prop::collection::vec(event(), 1..200),
            replies_wait: bool,
        ) {
            let mut state = SealState::new(SealLimits { replies_wait, ..LIMITS }, at(0));
            let (mut now, mut committed, mut in_hand, mut ends) = (0_u64, 0_u64, None, vec![0]);
            let mut step = |state: &mut SealState, now: &mut u64, committed: u64, stored: bool, seals: bool| {
                match state.act(*now) {
                    SealAct::Rest => {
                        assert_eq!(state.stored().seq, committed, "there is nothing to do");
                        false
                    }
                    SealAct::Wait(until) => {
                        assert!(until > *now);
                        *now = until;
                        true
                    }
                    SealAct::Seal(bytes) => {
                        assert!(in_hand.is_none(), "one at a time");
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
                            state.stored_now([0; 32]);
                            ends.extend(in_hand.take());
                        } else {
                            state.not_stored(*now);
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
}
