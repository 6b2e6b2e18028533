//! The replay buffer: the events that the streams of one session have sent, for a client whose connection broke.
//!
//! A stream outlives its connections: its events are kept here, and a client that resumes it with the
//! id of the last event it received gets those that followed (MCP 2025-11-25 §Resumability). Bounded in
//! streams, events and bytes, for a session and for all of them together: streams that have ended go
//! first, then the oldest. Events above [`MAX_BYTES`] are not kept. No clock, no socket.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Most streams of a session.
pub const MAX_STREAMS: usize = 64;
/// Most events kept of one stream.
pub const MAX_EVENTS: usize = 256;
/// Most bytes kept of one session, and of one event: 512 KiB.
pub const MAX_BYTES: usize = 512 * 1024;
/// Most bytes kept over all sessions: 64 MiB.
pub const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;

/// Bits of a stream's number below those of the node of a fleet that it was begun on.
const STREAM_BITS: u32 = 32;

/// What a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// A client's GET: it has no end.
    Standing,
    /// A client's POST: it ends with the answers.
    Reply,
}

/// The id of an event: which stream, and which of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// Of which kind of stream.
    pub kind: StreamKind,
    /// The stream's number in its session.
    pub stream: u64,
    /// The event's number in its stream, from 1; 0 stands before the first.
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
    /// The node of a fleet that the stream was begun on; 0 where there is no fleet.
    pub(super) fn node(&self) -> u64 {
        self.stream >> STREAM_BITS
    }

    /// Reads what `Display` writes; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
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

/// The streams of one session.
#[derive(Debug)]
pub struct ReplayStreams {
    inner: Mutex<Inner>,
    /// Bytes kept over all sessions.
    total: Arc<AtomicUsize>,
    /// Wakes the connections that wait for an event, or for the end.
    waiters: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    streams: VecDeque<Stream>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Stream {
    kind: StreamKind,
    number: u64,
    /// The number of its last event.
    last: u64,
    kept: VecDeque<(u64, Bytes)>,
    over: bool,
    /// Counts the connections that resumed it: only the last one goes on.
    attached: u64,
}

/// What follows on a resumed stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next event: its number, and its bytes as they were framed.
    Event(u64, Bytes),
    /// Nothing yet: wait for [`ReplayStreams::notified`].
    Wait,
    /// The stream has ended, was forgotten, or went on to another connection.
    Over,
}

impl ReplayStreams {
    /// No streams. `total` counts the bytes kept over all sessions.
    #[must_use]
    pub fn new(total: Arc<AtomicUsize>) -> Self {
        Self { inner: Mutex::default(), total, waiters: Notify::new() }
    }

    /// The same on that node of a fleet, whose streams have numbers of their own ([`EventId::node`]).
    pub(super) fn on_node(total: Arc<AtomicUsize>, node: u64) -> Self {
        let streams = Self::new(total);
        streams.inner().next += node << STREAM_BITS;
        streams
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Begins a stream and returns its number. Among [`MAX_STREAMS`] the oldest that has ended makes room, or the
    /// oldest of all if none has.
    pub fn begin(&self, kind: StreamKind) -> u64 {
        let mut inner = self.inner();
        if inner.streams.len() >= MAX_STREAMS {
            let at = inner.streams.iter().position(|stream| stream.over).unwrap_or_default();
            if let Some(gone) = inner.streams.remove(at) {
                let bytes = gone.kept.iter().map(|(_, event)| event.len()).sum();
                self.give_back(&mut inner, bytes);
            }
        }
        let number = inner.next;
        inner.next += 1;
        inner.streams.push_back(Stream {
            kind,
            number,
            last: 0,
            kept: VecDeque::new(),
            over: false,
            attached: 0,
        });
        number
    }

    /// Takes the number of a stream's next event; 0 if the stream is not known any more.
    pub fn number(&self, stream: u64) -> u64 {
        let mut inner = self.inner();
        let Some(stream) = inner.find(stream) else { return 0 };
        stream.last += 1;
        stream.last
    }

    /// Keeps an event as it was framed. Older ones of the session make room; it is dropped where there is none.
    pub fn keep(&self, stream: u64, event: u64, framed: Bytes) {
        let mut inner = self.inner();
        let size = framed.len();
        if size > MAX_BYTES || inner.find(stream).is_none() {
            return;
        }
        while inner.bytes + size > MAX_BYTES {
            let oldest = inner.streams.iter_mut().find_map(|stream| stream.kept.pop_front());
            let Some((_, gone)) = oldest else { break };
            self.give_back(&mut inner, gone.len());
        }
        let taken = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
            Some(total + size).filter(|total| *total <= MAX_TOTAL_BYTES)
        });
        if taken.is_err() {
            return;
        }
        inner.bytes += size;
        let mut surplus = None;
        if let Some(stream) = inner.find(stream) {
            stream.kept.push_back((event, framed));
            if stream.kept.len() > MAX_EVENTS {
                surplus = stream.kept.pop_front();
            }
        }
        if let Some((_, gone)) = surplus {
            self.give_back(&mut inner, gone.len());
        }
        drop(inner);
        self.notify();
    }

    /// Notes that a stream has had its last event.
    pub fn finish(&self, stream: u64) {
        if let Some(stream) = self.inner().find(stream) {
            stream.over = true;
        }
        self.notify();
    }

    /// Resumes a stream on another connection, of which this is the number; `None` if the stream
    /// is not known, or not any more.
    #[must_use]
    pub fn attach(&self, kind: StreamKind, stream: u64) -> Option<u64> {
        let mut inner = self.inner();
        let stream = inner.find(stream).filter(|stream| stream.kind == kind)?;
        stream.attached += 1;
        let attached = stream.attached;
        drop(inner);
        self.notify();
        Some(attached)
    }

    /// What follows the event `after` on a stream, for the connection of that number.
    #[must_use]
    pub fn next(&self, stream: u64, attached: u64, after: u64) -> Next {
        let mut inner = self.inner();
        let Some(stream) = inner.find(stream).filter(|stream| stream.attached == attached) else {
            return Next::Over;
        };
        match stream.kept.iter().find(|(number, _)| *number > after) {
            Some((number, event)) => Next::Event(*number, event.clone()),
            None if stream.over => Next::Over,
            None => Next::Wait,
        }
    }

    /// Wakes every waiter, to check its condition again.
    pub fn notify(&self) {
        self.waiters.notify_waiters();
    }

    /// Ends when [`ReplayStreams::notify`] is called. To be created before the condition is checked, so that no call is
    /// missed between the check and the wait.
    pub fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        self.waiters.notified()
    }

    fn give_back(&self, inner: &mut Inner, bytes: usize) {
        inner.bytes -= bytes;
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Inner {
    fn find(&mut self, number: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.number == number)
    }
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

    #[test]
    fn in_a_fleet_an_events_id_tells_the_node() {
        let streams = ReplayStreams::on_node(Arc::default(), 77);
        for _ in 0..2 {
            let stream = streams.begin(StreamKind::Reply);
            let id = EventId { kind: StreamKind::Reply, stream, event: 3 };
            assert_eq!(EventId::parse(&id.to_string()).map(|id| id.node()), Some(77));
        }
        let stream = ReplayStreams::new(Arc::default()).begin(StreamKind::Reply);
        assert_eq!(EventId { kind: StreamKind::Reply, stream, event: 3 }.node(), 0);
    }

    fn streams() -> (ReplayStreams, Arc<AtomicUsize>) {
        let total = Arc::new(AtomicUsize::new(0));
        (ReplayStreams::new(Arc::clone(&total)), total)
    }

    fn add(streams: &ReplayStreams, stream: u64, bytes: usize) -> u64 {
        let event = streams.number(stream);
        streams.keep(stream, event, Bytes::from(vec![b'x'; bytes]));
        event
    }

    #[test]
    fn what_followed_an_event_is_sent_again_and_nothing_of_another_stream() {
        let (streams, _) = streams();
        let (one, two) = (streams.begin(StreamKind::Reply), streams.begin(StreamKind::Reply));
        for size in 1..=3 {
            add(&streams, one, size);
            add(&streams, two, 10 * size);
        }
        let attached = streams.attach(StreamKind::Reply, one).unwrap();
        assert_eq!(streams.next(one, attached, 1), Next::Event(2, Bytes::from("xx")));
        assert_eq!(streams.next(one, attached, 2), Next::Event(3, Bytes::from("xxx")));
        assert_eq!(streams.next(one, attached, 3), Next::Wait);
        streams.finish(one);
        assert_eq!(streams.next(one, attached, 3), Next::Over);
        assert_eq!(streams.attach(StreamKind::Standing, two), None, "of another kind");
        assert_eq!(streams.attach(StreamKind::Reply, 99), None);
    }

    #[test]
    fn the_last_connection_that_takes_a_stream_up_has_it() {
        let (streams, _) = streams();
        let one = streams.begin(StreamKind::Standing);
        let first = streams.attach(StreamKind::Standing, one).unwrap();
        let second = streams.attach(StreamKind::Standing, one).unwrap();
        assert_eq!(streams.next(one, first, 0), Next::Over);
        assert_eq!(streams.next(one, second, 0), Next::Wait);
    }

    #[test]
    fn what_is_kept_is_bounded_and_given_back() {
        let (streams, total) = streams();
        let one = streams.begin(StreamKind::Reply);
        add(&streams, one, MAX_BYTES + 1);
        assert_eq!(total.load(Ordering::Relaxed), 0, "too large to be kept");
        for _ in 0..3 {
            add(&streams, one, MAX_BYTES / 2);
        }
        assert_eq!(total.load(Ordering::Relaxed), MAX_BYTES);
        for _ in 0..2 * MAX_EVENTS {
            add(&streams, one, 1);
        }
        let attached = streams.attach(StreamKind::Reply, one).unwrap();
        assert!(matches!(streams.next(one, attached, 0), Next::Event(number, _) if number > 3));
        assert!(total.load(Ordering::Relaxed) <= MAX_BYTES);
        for _ in 0..MAX_STREAMS {
            streams.begin(StreamKind::Reply);
        }
        assert_eq!(streams.attach(StreamKind::Reply, one), None, "the oldest made room");
        assert_eq!(total.load(Ordering::Relaxed), 0);
        add(&streams, 1, 10);
        drop(streams);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_sessions_together_are_bounded() {
        let (one, total) = streams();
        total.store(MAX_TOTAL_BYTES - 5, Ordering::Relaxed);
        let stream = one.begin(StreamKind::Reply);
        add(&one, stream, 6);
        let attached = one.attach(StreamKind::Reply, stream).unwrap();
        assert_eq!(one.next(stream, attached, 0), Next::Wait);
        add(&one, stream, 5);
        assert_eq!(one.next(stream, attached, 0), Next::Event(2, Bytes::from("xxxxx")));
    }

    #[test]
    fn event_ids_come_back_and_others_are_none() {
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
