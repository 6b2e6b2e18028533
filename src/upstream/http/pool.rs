//! One worker's idle connections to all HTTP upstreams.
//!
//! A connection comes back when its answer was read, or when only the rest of an event stream is
//! left of it. It is given out again if nothing came on it meanwhile that nobody asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::session::Session;
use crate::io::clock;
use crate::upstream::connection::{Connection, Quiet};
use crate::wire::sse;

/// Most idle connections kept for one upstream by one worker.
pub const MAX_IDLE: usize = 64;
/// Longest time a connection is kept idle. Below the 5 s after which common servers close one
/// themselves, so that a call seldom meets a connection that is being closed.
pub const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// Most bytes of an event stream's rest that are read so that its connection can be used again.
const MAX_DRAIN_BYTES: usize = 64 * 1024;

/// One worker's connections to all HTTP upstreams. Not `Send`: it lives and dies with its thread.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<BTreeMap<u64, Vec<Idle>>>,
}

struct Idle {
    connection: Box<Connection>,
    /// Of an event stream whose answer was taken: what may still come is nothing that counts.
    rest: Option<Box<sse::Decoder>>,
    since: Instant,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} idle)", self.idle())
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes connections idle for longer than [`MAX_IDLE_AGE`]. For the worker to call now and
    /// then; a call to the same upstream does the same for that upstream.
    pub fn sweep(&self) {
        let now = clock::now();
        self.idle.borrow_mut().retain(|_, list| {
            list.retain(|idle| now.duration_since(idle.since) < MAX_IDLE_AGE);
            !list.is_empty()
        });
    }

    /// How many connections are idle.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle.borrow().values().map(Vec::len).sum()
    }

    /// The connection used last that is still good. One whose stream has not come to its end yet
    /// stays.
    pub(super) fn take(&self, session: &Session, now: Instant) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(&session.key)?;
        let mut at = list.len();
        while at > 0 {
            at -= 1;
            let last = list.get_mut(at)?;
            if now.duration_since(last.since) >= MAX_IDLE_AGE {
                // Those before it are older.
                list.drain(..=at);
                return None;
            }
            match last.look() {
                Look::Good => return Some(list.remove(at).connection),
                Look::Bad => drop(list.remove(at)),
                Look::Spoke => {
                    drop(list.remove(at));
                    let peer = session.peer();
                    if peer.may_log() {
                        tracing::warn!(server = %peer.name, "a server spoke unasked on a connection, which is closed");
                    }
                }
                Look::Later => {}
            }
        }
        None
    }

    pub(super) fn put(
        &self,
        key: u64,
        mut connection: Box<Connection>,
        rest: Option<Box<sse::Decoder>>,
    ) {
        connection.rest();
        let mut idle = self.idle.borrow_mut();
        let list = idle.entry(key).or_default();
        if list.len() >= MAX_IDLE {
            list.remove(0);
        }
        list.push(Idle { connection, rest, since: clock::lately() });
    }
}

/// What an idle connection is good for.
enum Look {
    Good,
    Later,
    Bad,
    /// Something came that nobody asked for: an answer ahead of its request, or a second one.
    Spoke,
}

impl Idle {
    fn look(&mut self) -> Look {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = 0;
        if self.rest.as_mut().is_some_and(|rest| !is_silent(rest)) {
            return Look::Spoke;
        }
        // The end of an event stream whose last message was taken may not have been read yet.
        while !self.connection.has_ended() {
            match self.connection.poll_body(&mut cx) {
                Poll::Pending => return Look::Later,
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(data))) if read + data.len() <= MAX_DRAIN_BYTES => {
                    read += data.len();
                    let Some(rest) = &mut self.rest else { return Look::Spoke };
                    rest.push(data);
                    if !is_silent(rest) {
                        return Look::Spoke;
                    }
                }
                Poll::Ready(Some(Ok(_) | Err(_))) => return Look::Bad,
            }
        }
        match self.connection.quiet() {
            Quiet::Silent => Look::Good,
            Quiet::Closed => Look::Bad,
            Quiet::Spoke => Look::Spoke,
        }
    }
}

/// Whether what came of an event stream so far holds no further message.
fn is_silent(rest: &mut sse::Decoder) -> bool {
    loop {
        match rest.next_item() {
            Ok(None) => return true,
            // An event without data, which carries an id.
            Ok(Some(sse::Item::End)) => {}
            Ok(Some(sse::Item::Data(_))) | Err(_) => return false,
        }
    }
}
