//! Replay buffer: sent events of a session's streams, for a client whose connection broke. Sans-I/O.
//!
//! A stream outlives its connections. A client that resumes it with the id of the last received event gets the later ones
//! (MCP 2025-11-25 §Resumability). Streams, events and bytes are bounded per session, per principal and in total.
//!
//! Eviction takes the least valuable first: notifications, then server requests, then delivered responses. An
//! undelivered response is never evicted for another event: if nothing can be evicted for an event, that event is not
//! kept; [`ReplayFull`] is the reason. Streams are evicted in the same order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;
use tokio::sync::Notify;

use mcpproxy_policy::{StateAccount, StateCharge, StateFull};

/// Maximum number of streams of a session.
pub(crate) const MAX_STREAMS: usize = 256;
/// Maximum number of notifications, and of server requests, kept per stream.
pub(crate) const MAX_EVENTS: usize = 256;
/// Maximum size of one kept event: 512 KiB.
pub(crate) const MAX_EVENT_BYTES: usize = 512 * 1024;
/// Maximum number of bytes kept per session: 4 MiB.
pub(crate) const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of bytes kept over all sessions: 256 MiB.
pub(crate) const MAX_TOTAL_BYTES: usize = 256 * 1024 * 1024;

/// Bits of a stream's number; the higher bits hold the number of the node that began it.
const STREAM_BITS: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// A client's GET; never ends.
    Standing,
    /// A client's POST; ends with the responses.
    Reply,
}

/// Id of an event: its stream, and its number within that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub kind: StreamKind,
    /// Number of the stream in its session.
    pub stream: u64,
    /// Number of the event in its stream, from 1; 0 precedes the first.
    pub event: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StreamKind::Standing => 's',
            StreamKind::Reply => 'r',
        };
        write!(f, "{kind}{}-{}", self.stream, self.event)
    }
}

impl EventId {
    /// Number of the fleet node that began the stream; 0 without a fleet.
    pub(super) fn node(&self) -> u64 {
        self.stream >> STREAM_BITS
    }

    /// Parses the displayed form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = match text.split_at_checked(1)? {
            ("s", rest) => (StreamKind::Standing, rest),
            ("r", rest) => (StreamKind::Reply, rest),
            _ => return None,
        };
        let (stream, event) = rest.split_once('-')?;
        let number = |digits: &str| {
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        Some(Self { kind, stream: number(stream)?, event: number(event)? })
    }
}

/// Kind of an event. The variants are ordered by their value, the least valuable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    /// A notification: progress, a log message, a change.
    Notice,
    /// A request to the client.
    Question,
    /// The response to the client's own request, the last event of its stream.
    Answer,
}

/// Reason why an event is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum ReplayFull {
    /// The event exceeds [`MAX_EVENT_BYTES`].
    #[error("the event exceeds {MAX_EVENT_BYTES} bytes")]
    TooLong,
    /// The session's limit is reached.
    #[error("the kept events of one session would exceed {MAX_BYTES} bytes")]
    SessionFull,
    /// The total limit is reached.
    #[error("the kept events of all sessions would exceed {MAX_TOTAL_BYTES} bytes")]
    AllFull,
    /// The principal's limit is reached.
    #[error(transparent)]
    State(#[from] StateFull),
    /// The stream was evicted, or the session has ended.
    #[error("its stream was evicted (at most {MAX_STREAMS} per session) or its session has ended")]
    Forgotten,
}

#[derive(Debug)]
pub struct ReplayStreams {
    inner: Mutex<Inner>,
    /// Bytes kept over all sessions.
    total: Arc<AtomicUsize>,
    /// Wakes connections that wait for an event or for the end of a stream.
    waiters: Notify,
}

#[derive(Debug)]
struct Inner {
    streams: VecDeque<Stream>,
    next: u64,
    bytes: usize,
    charge: StateCharge,
    /// True if the session has ended, so that nothing more is kept.
    closed: bool,
}

#[derive(Debug)]
struct Stream {
    kind: StreamKind,
    number: u64,
    /// Number of its last event.
    last: u64,
    notices: VecDeque<(u64, Bytes)>,
    questions: VecDeque<(u64, Bytes)>,
    answer: Option<(u64, Bytes)>,
    /// Bytes reserved for the event being written, and how many of them are written.
    reserved: usize,
    written: usize,
    /// Reason why the event being written is not kept.
    refused: Option<ReplayFull>,
    over: bool,
    /// Number of connections that have resumed the stream; only the latest one is served.
    attached: u64,
    /// Whether a connection currently serves the stream.
    carried: bool,
    /// Whether at least one event has not been delivered by any connection.
    unsent: bool,
}

/// Next step of a resumed stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next event: its number and its framed bytes.
    Event(u64, Bytes),
    /// There is no event yet: wait for [`ReplayStreams::notified`].
    Wait,
    /// The stream has ended, was evicted, or moved to another connection.
    Over,
}

impl ReplayStreams {
    /// Empty buffer. Events are charged to `account`; `total` counts the bytes over all sessions.
    pub(crate) fn new(account: Arc<StateAccount>, total: Arc<AtomicUsize>) -> Self {
        let charge = account.no_charge();
        let inner = Inner { streams: VecDeque::new(), next: 0, bytes: 0, charge, closed: false };
        Self { inner: Mutex::new(inner), total, waiters: Notify::new() }
    }

    /// Empty buffer on a fleet node, whose number is part of each stream number ([`EventId::node`]).
    pub(super) fn on_node(account: Arc<StateAccount>, total: Arc<AtomicUsize>, node: u64) -> Self {
        let streams = Self::new(account, total);
        streams.inner().next += node << STREAM_BITS;
        streams
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Begins a stream served by a connection and returns its number. Beyond [`MAX_STREAMS`] the least valuable one
    /// is evicted.
    pub(crate) fn begin(&self, kind: StreamKind) -> u64 {
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        if inner.closed {
            return number;
        }
        if inner.streams.len() >= MAX_STREAMS {
            let ranked = inner.streams.iter().enumerate();
            let min = ranked.min_by_key(|(at, stream)| (stream.rank(), *at));
            let evicted = min.map(|(at, _)| at).and_then(|at| inner.streams.remove(at));
            self.give_back(&mut inner, evicted.map_or(0, |evicted| evicted.bytes()));
        }
        inner.streams.push_back(Stream::new(kind, number));
        number
    }

    /// Allocates the number of a stream's next event; 0 if the stream is unknown.
    pub(crate) fn number(&self, stream: u64) -> u64 {
        let mut inner = self.inner();
        let Some(stream) = inner.find(stream) else { return 0 };
        stream.last += 1;
        stream.last
    }

    /// Reserves `bytes` more for the current or next event. After an error nothing of this event is kept.
    pub(crate) fn reserve(
        &self,
        stream: u64,
        kind: EventKind,
        bytes: usize,
    ) -> Result<(), ReplayFull> {
        let mut inner = self.inner();
        let wanted = match inner.find(stream) {
            None => return Err(ReplayFull::Forgotten),
            Some(Stream { refused: Some(refused), .. }) => return Err(*refused),
            Some(stream) => stream.written.saturating_add(bytes),
        };
        let reserved = match wanted > MAX_EVENT_BYTES {
            true => Err(ReplayFull::TooLong),
            false => self.reserve_up_to(&mut inner, stream, kind, wanted),
        };
        if let Err(refused) = reserved {
            self.release(&mut inner, stream, Some(refused));
        }
        reserved
    }

    /// Reserves `bytes` and marks them as written.
    pub(crate) fn write(
        &self,
        stream: u64,
        kind: EventKind,
        bytes: usize,
    ) -> Result<(), ReplayFull> {
        self.reserve(stream, kind, bytes)?;
        if let Some(stream) = self.inner().find(stream) {
            stream.written += bytes;
        }
        Ok(())
    }

    /// Abandons the event being written.
    pub(crate) fn discard(&self, stream: u64) {
        self.release(&mut self.inner(), stream, None);
    }

    /// Keeps a framed event, evicting events of the session that have equal or lower value.
    pub(crate) fn keep(
        &self,
        stream: u64,
        event: u64,
        kind: EventKind,
        framed: Bytes,
    ) -> Result<(), ReplayFull> {
        let mut inner = self.inner();
        let size = framed.len();
        let kept = match inner.find(stream) {
            None => return Err(ReplayFull::Forgotten),
            Some(Stream { refused: Some(refused), .. }) => Err(*refused),
            Some(_) if size > MAX_EVENT_BYTES => Err(ReplayFull::TooLong),
            Some(_) => self.reserve_up_to(&mut inner, stream, kind, size),
        };
        let mut surplus = 0;
        if let Some(stream) = inner.find(stream)
            && kept.is_ok()
        {
            // The reservation now belongs to the event.
            stream.reserved -= size;
            stream.unsent |= !stream.carried;
            let replaced = match kind {
                EventKind::Notice => push_bounded(&mut stream.notices, (event, framed)),
                EventKind::Question => push_bounded(&mut stream.questions, (event, framed)),
                EventKind::Answer => stream.answer.replace((event, framed)),
            };
            surplus = replaced.map_or(0, |(_, replaced)| replaced.len());
        }
        self.give_back(&mut inner, surplus);
        self.release(&mut inner, stream, None);
        drop(inner);
        self.notify();
        kept
    }

    /// Marks a stream as complete.
    pub(crate) fn finish(&self, stream: u64) {
        if let Some(stream) = self.inner().find(stream) {
            stream.over = true;
        }
        self.notify();
    }

    /// Records that the first connection of a stream has closed; `sent` is true if it delivered all events so far.
    pub(crate) fn detach(&self, stream: u64, sent: bool) {
        if let Some(stream) = self.inner().find(stream)
            && stream.attached == 0
        {
            stream.carried = false;
            stream.unsent |= !sent;
        }
    }

    /// Records that connection `attached`, which had resumed a stream, has closed.
    pub(crate) fn detach_resumed(&self, stream: u64, attached: u64) {
        if let Some(stream) = self.inner().find(stream)
            && stream.attached == attached
        {
            stream.carried = false;
        }
    }

    /// Resumes a stream on another connection and returns that connection's number; `None` if the stream is
    /// unknown. Drops the events up to `seen`, which the client has.
    pub(crate) fn attach(&self, kind: StreamKind, stream: u64, seen: u64) -> Option<u64> {
        let mut inner = self.inner();
        let stream = inner.find(stream).filter(|stream| stream.kind == kind)?;
        stream.attached += 1;
        stream.carried = true;
        let attached = stream.attached;
        let seen = stream.forget_up_to(seen);
        self.give_back(&mut inner, seen);
        drop(inner);
        self.notify();
        Some(attached)
    }

    /// Step after event `after` of a stream, for connection `attached`.
    pub(crate) fn next(&self, stream: u64, attached: u64, after: u64) -> Next {
        let mut inner = self.inner();
        let Some(stream) = inner.find(stream).filter(|stream| stream.attached == attached) else {
            return Next::Over;
        };
        match stream.following(after) {
            Some((number, event)) => Next::Event(*number, event.clone()),
            None if stream.over => {
                stream.unsent = false;
                Next::Over
            }
            None => Next::Wait,
        }
    }

    /// Ends the session: forgets all streams, keeps nothing more, and wakes every waiter.
    pub(crate) fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        let streams = std::mem::take(&mut inner.streams);
        let bytes = inner.bytes;
        self.give_back(&mut inner, bytes);
        drop(inner);
        drop(streams);
        self.notify();
    }

    /// Wakes every waiter, to check its condition again.
    pub(crate) fn notify(&self) {
        self.waiters.notify_waiters();
    }

    /// Completes at the next [`ReplayStreams::notify`]. Create it before checking the condition, so that no call is missed.
    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        self.waiters.notified()
    }

    /// Extends the reservation of the event being written to `wanted` bytes.
    fn reserve_up_to(
        &self,
        inner: &mut Inner,
        stream: u64,
        kind: EventKind,
        wanted: usize,
    ) -> Result<(), ReplayFull> {
        let reserved = inner.find(stream).map_or(0, |stream| stream.reserved);
        let missing = wanted.saturating_sub(reserved);
        if missing == 0 {
            return Ok(());
        }
        while let Err(full) = self.take(inner, missing) {
            let Some(freed) = inner.evict(kind) else { return Err(full) };
            self.give_back(inner, freed);
        }
        if let Some(stream) = inner.find(stream) {
            stream.reserved += missing;
        }
        Ok(())
    }

    /// Releases the reservation of the event being written.
    fn release(&self, inner: &mut Inner, stream: u64, refused: Option<ReplayFull>) {
        if let Some(stream) = inner.find(stream) {
            let reserved = std::mem::take(&mut stream.reserved);
            stream.written = 0;
            stream.refused = refused;
            self.give_back(inner, reserved);
        }
    }

    fn take(&self, inner: &mut Inner, bytes: usize) -> Result<(), ReplayFull> {
        if inner.bytes + bytes > MAX_BYTES {
            return Err(ReplayFull::SessionFull);
        }
        inner.charge.grow_spare(bytes)?;
        let within = |total| Some(total + bytes).filter(|total| *total <= MAX_TOTAL_BYTES);
        if self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            inner.charge.shrink(bytes);
            return Err(ReplayFull::AllFull);
        }
        inner.bytes += bytes;
        Ok(())
    }

    fn give_back(&self, inner: &mut Inner, bytes: usize) {
        inner.bytes = inner.bytes.saturating_sub(bytes);
        inner.charge.shrink(bytes);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Inner {
    fn find(&mut self, number: u64) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&number, |stream| stream.number).ok()?;
        self.streams.get_mut(at)
    }

    /// Evicts the event that an event of kind `newcomer` may replace and returns its size; `None` if there is none.
    fn evict(&mut self, newcomer: EventKind) -> Option<usize> {
        let oldest = |streams: &mut VecDeque<Stream>, kind: EventKind| {
            streams.iter_mut().find_map(|stream| match kind {
                EventKind::Notice => stream.notices.pop_front(),
                EventKind::Question => stream.questions.pop_front(),
                EventKind::Answer if stream.over && !stream.unsent => stream.answer.take(),
                EventKind::Answer => None,
            })
        };
        let kinds = [EventKind::Notice, EventKind::Question, EventKind::Answer];
        let mut kinds = kinds.into_iter().filter(|kind| *kind <= newcomer);
        let (_, evicted) = kinds.find_map(|kind| oldest(&mut self.streams, kind))?;
        Some(evicted.len())
    }
}

impl Stream {
    fn new(kind: StreamKind, number: u64) -> Self {
        Self {
            kind,
            number,
            last: 0,
            notices: VecDeque::new(),
            questions: VecDeque::new(),
            answer: None,
            reserved: 0,
            written: 0,
            refused: None,
            over: false,
            attached: 0,
            carried: true,
            unsent: false,
        }
    }

    /// Value of a stream; the lowest is evicted first.
    fn rank(&self) -> u8 {
        match (self.kind, self.over, self.carried) {
            (_, true, _) if !self.unsent || self.answer.is_none() => 0,
            (StreamKind::Standing, _, false) => 1,
            // Eviction does not interrupt the connection; the stream can only no longer be resumed.
            (StreamKind::Reply, false, true) => 2,
            (StreamKind::Standing, _, true) => 3,
            (StreamKind::Reply, false, false) => 4,
            (StreamKind::Reply, true, _) => 5,
        }
    }

    fn bytes(&self) -> usize {
        let queued = self.notices.iter().chain(&self.questions).chain(&self.answer);
        self.reserved + queued.map(|(_, event)| event.len()).sum::<usize>()
    }

    /// First event after number `after`.
    fn following(&self, after: u64) -> Option<&(u64, Bytes)> {
        let is_after = |event: &&(u64, Bytes)| event.0 > after;
        let notice = self.notices.iter().find(is_after);
        let question = self.questions.iter().find(is_after);
        let answer = self.answer.as_ref().filter(is_after);
        [notice, question, answer].into_iter().flatten().min_by_key(|(number, _)| *number)
    }

    /// Drops the events up to number `seen` and returns their size.
    fn forget_up_to(&mut self, seen: u64) -> usize {
        let mut bytes = 0;
        let mut is_left = |event: &(u64, Bytes)| {
            let left = event.0 > seen;
            bytes += if left { 0 } else { event.1.len() };
            left
        };
        self.notices.retain(&mut is_left);
        self.questions.retain(&mut is_left);
        self.answer = self.answer.take().filter(is_left);
        bytes
    }
}

/// Pushes an event; returns the oldest if the queue was full.
fn push_bounded(queue: &mut VecDeque<(u64, Bytes)>, event: (u64, Bytes)) -> Option<(u64, Bytes)> {
    queue.push_back(event);
    if queue.len() > MAX_EVENTS { queue.pop_front() } else { None }
}

impl Drop for ReplayStreams {
    fn drop(&mut self) {
        let bytes = self.inner().bytes;
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_policy::{Principal, StateAccounts};

    use EventKind::{Answer, Notice, Question};

    fn account() -> Arc<StateAccount> {
        StateAccounts::default().of(&Principal::Anonymous)
    }

    #[test]
    fn event_id_contains_the_node_in_a_fleet() {
        let streams = ReplayStreams::on_node(account(), Arc::default(), 77);
        for _ in 0..2 {
            let stream = streams.begin(StreamKind::Reply);
            let id = EventId { kind: StreamKind::Reply, stream, event: 3 };
            assert_eq!(EventId::parse(&id.to_string()).map(|id| id.node()), Some(77));
        }
        let stream = ReplayStreams::new(account(), Arc::default()).begin(StreamKind::Reply);
        assert_eq!(EventId { kind: StreamKind::Reply, stream, event: 3 }.node(), 0);
    }

    fn streams() -> (ReplayStreams, Arc<AtomicUsize>) {
        let total = Arc::new(AtomicUsize::new(0));
        (ReplayStreams::new(account(), Arc::clone(&total)), total)
    }

    fn add(
        streams: &ReplayStreams,
        stream: u64,
        kind: EventKind,
        bytes: usize,
    ) -> Option<ReplayFull> {
        let event = streams.number(stream);
        streams.keep(stream, event, kind, Bytes::from(vec![b'x'; bytes])).err()
    }

    /// A reply stream whose connection broke, with its response.
    fn broken(streams: &ReplayStreams, bytes: usize) -> (u64, Option<ReplayFull>) {
        let stream = streams.begin(StreamKind::Reply);
        streams.detach(stream, true);
        let refused = add(streams, stream, Answer, bytes);
        streams.finish(stream);
        (stream, refused)
    }

    /// Sizes of the events that a client receives when it resumes the stream.
    fn resumed(streams: &ReplayStreams, stream: u64) -> Vec<usize> {
        let attached = streams.attach(StreamKind::Reply, stream, 0).unwrap();
        let (mut lengths, mut after) = (Vec::new(), 0);
        while let Next::Event(number, event) = streams.next(stream, attached, after) {
            lengths.push(event.len());
            after = number;
        }
        lengths
    }

    #[test]
    fn replay_yields_only_later_events_of_the_same_stream() {
        let (streams, total) = streams();
        let (one, two) = (streams.begin(StreamKind::Reply), streams.begin(StreamKind::Reply));
        for (size, kind) in [(1, Notice), (2, Question), (3, Notice), (4, Answer)] {
            add(&streams, one, kind, size);
            add(&streams, two, kind, 10 * size);
        }
        let attached = streams.attach(StreamKind::Reply, one, 1).unwrap();
        assert_eq!(total.load(Ordering::Relaxed), 2 + 3 + 4 + 100, "received events are dropped");
        for number in 2..=4 {
            let event = Bytes::from("x".repeat(number));
            let next = streams.next(one, attached, number as u64 - 1);
            assert_eq!(next, Next::Event(number as u64, event));
        }
        assert_eq!(streams.next(one, attached, 4), Next::Wait);
        streams.finish(one);
        assert_eq!(streams.next(one, attached, 4), Next::Over);
        assert_eq!(streams.attach(StreamKind::Standing, two, 0), None, "of another kind");
        assert_eq!(streams.attach(StreamKind::Reply, 99, 0), None);
    }

    #[test]
    fn resumed_stream_is_served_to_the_latest_connection_only() {
        let (streams, _) = streams();
        let one = streams.begin(StreamKind::Standing);
        let first = streams.attach(StreamKind::Standing, one, 0).unwrap();
        let second = streams.attach(StreamKind::Standing, one, 0).unwrap();
        assert_eq!(streams.next(one, first, 0), Next::Over);
        assert_eq!(streams.next(one, second, 0), Next::Wait);
    }

    #[test]
    fn replay_buffer_is_bounded_and_released() {
        let (streams, total) = streams();
        let one = streams.begin(StreamKind::Reply);
        let too_long = add(&streams, one, Notice, MAX_EVENT_BYTES + 1);
        assert_eq!((too_long, total.load(Ordering::Relaxed)), (Some(ReplayFull::TooLong), 0));
        let max = MAX_BYTES / MAX_EVENT_BYTES;
        for _ in 0..=max {
            assert_eq!(add(&streams, one, Notice, MAX_EVENT_BYTES), None);
        }
        assert_eq!(total.load(Ordering::Relaxed), MAX_BYTES);
        for _ in 0..2 * MAX_EVENTS {
            add(&streams, one, Notice, 1);
        }
        assert_eq!(resumed(&streams, one).len(), MAX_EVENTS);
        assert!(total.load(Ordering::Relaxed) <= MAX_BYTES);
        for _ in 0..MAX_STREAMS {
            streams.begin(StreamKind::Reply);
        }
        assert_eq!(streams.attach(StreamKind::Reply, one, 0), None, "the oldest was evicted");
        assert_eq!(total.load(Ordering::Relaxed), 0);
        add(&streams, 1, Notice, 10);
        drop(streams);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn undelivered_responses_are_never_evicted() {
        let (streams, _) = streams();
        let half = MAX_EVENT_BYTES / 2;
        let broken_answers: Vec<_> =
            (0..MAX_BYTES / half).map(|_| broken(&streams, half)).collect();
        assert!(broken_answers.iter().all(|(_, refused)| refused.is_none()));
        // Undelivered responses use up the session's limit.
        let other = streams.begin(StreamKind::Reply);
        for kind in [Notice, Question, Answer] {
            assert_eq!(add(&streams, other, kind, 1), Some(ReplayFull::SessionFull));
        }
        let (first, _) = broken_answers[0];
        assert_eq!(resumed(&streams, first), [half]);
        // The resumed response was delivered, and can be evicted only for another response.
        for kind in [Notice, Question] {
            assert_eq!(add(&streams, other, kind, 1), Some(ReplayFull::SessionFull));
        }
        assert_eq!(add(&streams, other, Answer, half), None);
        for (stream, _) in &broken_answers[1..] {
            assert_eq!(resumed(&streams, *stream), [half], "{stream}");
        }
    }

    #[test]
    fn eviction_order_is_notifications_questions_responses() {
        let (streams, _) = streams();
        let one = streams.begin(StreamKind::Reply);
        let max = MAX_BYTES / MAX_EVENT_BYTES;
        add(&streams, one, Question, MAX_EVENT_BYTES);
        for _ in 1..max {
            add(&streams, one, Notice, MAX_EVENT_BYTES);
        }
        let two = streams.begin(StreamKind::Reply);
        for _ in 1..max {
            assert_eq!(add(&streams, two, Question, MAX_EVENT_BYTES), None);
        }
        assert_eq!(resumed(&streams, one), [MAX_EVENT_BYTES], "the question");
        for _ in 0..max {
            assert_eq!(broken(&streams, MAX_EVENT_BYTES).1, None);
        }
        assert!(resumed(&streams, one).is_empty() && resumed(&streams, two).is_empty());
        assert_eq!(broken(&streams, 1).1, Some(ReplayFull::SessionFull));
    }

    #[test]
    fn streams_with_undelivered_responses_are_evicted_last() {
        let (streams, _) = streams();
        let lost = broken(&streams, 1).0;
        let live = streams.begin(StreamKind::Reply);
        let standing = streams.begin(StreamKind::Standing);
        let received = broken(&streams, 1).0;
        assert_eq!(resumed(&streams, received), [1]);
        let knows = |stream| streams.inner().find(stream).is_some();
        for _ in 4..MAX_STREAMS {
            broken(&streams, 1);
        }
        for (gone, left) in [(received, live), (live, standing), (standing, lost)] {
            assert!(knows(gone) && knows(left));
            broken(&streams, 1);
            assert!(!knows(gone) && knows(left), "{gone} {left}");
        }
        assert_eq!(resumed(&streams, lost), [1]);
    }

    #[test]
    fn bytes_reserved_for_a_response_are_available_to_it() {
        let (streams, total) = streams();
        let one = streams.begin(StreamKind::Reply);
        streams.write(one, Answer, 10).unwrap();
        streams.reserve(one, Answer, 90).unwrap();
        assert_eq!(total.load(Ordering::Relaxed), 100);
        for _ in 0..MAX_BYTES / MAX_EVENT_BYTES {
            broken(&streams, MAX_EVENT_BYTES);
        }
        streams.write(one, Answer, 90).unwrap();
        let event = streams.number(one);
        streams.keep(one, event, Answer, Bytes::from(vec![b'x'; 80])).unwrap();
        assert_eq!(resumed(&streams, one), [80]);
        assert_eq!(streams.inner().find(one).unwrap().reserved, 0, "the rest is released");
        // A refused event is not kept even if space is freed before it arrives.
        assert_eq!(streams.reserve(one, Answer, MAX_EVENT_BYTES + 1), Err(ReplayFull::TooLong));
        assert_eq!(streams.write(one, Answer, 1), Err(ReplayFull::TooLong));
        streams.discard(one);
        streams.write(one, Answer, 1).unwrap();
    }

    #[test]
    fn ended_session_releases_its_events_and_accepts_no_further_ones() {
        let (streams, total) = streams();
        let one = streams.begin(StreamKind::Reply);
        streams.write(one, Answer, 7).unwrap();
        add(&streams, streams.begin(StreamKind::Reply), Notice, 7);
        streams.close();
        assert_eq!(total.load(Ordering::Relaxed), 0);
        assert_eq!(streams.write(one, Answer, 7), Err(ReplayFull::Forgotten));
        let late = streams.begin(StreamKind::Reply);
        assert_eq!(add(&streams, late, Answer, 7), Some(ReplayFull::Forgotten));
        assert_eq!(streams.attach(StreamKind::Reply, late, 0), None);
    }

    #[test]
    fn total_and_principal_limits_apply() {
        let (one, total) = streams();
        total.store(MAX_TOTAL_BYTES - 5, Ordering::Relaxed);
        let stream = one.begin(StreamKind::Reply);
        assert_eq!(add(&one, stream, Answer, 6), Some(ReplayFull::AllFull));
        assert_eq!(add(&one, stream, Answer, 5), None);
        let accounts = StateAccounts::of_at_most(20, 1000);
        let account = accounts.of(&Principal::Anonymous);
        let two = ReplayStreams::new(Arc::clone(&account), Arc::default());
        let stream = two.begin(StreamKind::Reply);
        assert_eq!(add(&two, stream, Notice, 10), None);
        let refused = ReplayFull::State(StateFull::OfPrincipal { limit: 10 });
        assert_eq!(add(&two, stream, Notice, 11), Some(refused));
        assert_eq!(add(&two, stream, Answer, 10), None);
        assert_eq!(account.bytes(), 10);
        drop(two);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn event_ids_round_trip_and_foreign_ones_are_rejected() {
        for id in ["s0-0", "r18-7", "s18446744073709551615-1"] {
            assert_eq!(EventId::parse(id).map(|id| id.to_string()).as_deref(), Some(id));
        }
        for none in
            ["", "s", "x1-1", "s-1", "s1", "s1-", "s+1-1", "é1-1", "s18446744073709551616-1"]
        {
            assert_eq!(EventId::parse(none), None, "{none}");
        }
    }
}
