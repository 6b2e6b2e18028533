//! When a server is tried: where the calls that need it meet the task that tries it.
//!
//! Owns what calls see of the attempts to connect, their wish for the next one, and how often such
//! a wish is granted. How an attempt is made, and when without a wish, is [`super::server_task`]'s.
//!
//! ```text
//! Trying ── connected ──▶ Up ── lost ──▶ Away ── by itself, or wished for ──▶ Trying
//!    └───────────── failed ───────────────▲
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout_at;

use super::call::{Live, Upstream};
use super::error::{Cause, Human};
use super::status::Status;

/// Shortest time between two starts of a server that calls cause: one that ends at once is started
/// no more often, however many call it.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait of a call for a server that is away or still connecting, counted from when the
/// attempt began: a mute server costs one wait, not one per call. Most servers need a few seconds
/// to start.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Of a time that is told, less than this does not count.
const TENTH: Duration = Duration::from_millis(100);

/// Where the attempts stand.
#[derive(Clone, Copy, Debug)]
enum Stand {
    /// The attempt of that number is being made.
    Trying { number: u64, since: Instant },
    /// It can be called, or was until a moment ago.
    Up,
    /// Between two attempts.
    Away(Away),
    /// There will be none: it is disabled, its config is unusable, or all is ending.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    /// That of the last attempt.
    number: u64,
    /// Whether that one failed; else it worked, and was lost.
    failed: bool,
    /// From when on a call may cause the next one.
    earliest: Instant,
    /// When it is made without.
    next: Instant,
}

/// The attempts to connect to one server.
#[derive(Debug)]
pub(super) struct Attempts {
    stand: watch::Sender<Stand>,
    /// The number of the attempt that calls wish for.
    wished: watch::Sender<u64>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// When it began.
    pub(super) began: Instant,
    /// How often it has started the server: a child may be started twice.
    pub(super) starts: u32,
    /// It never worked.
    pub(super) failed: bool,
}

impl Attempts {
    /// `enabled` unless there will be none.
    pub(super) fn new(enabled: bool) -> Self {
        let first = Stand::Trying { number: 0, since: Instant::now() };
        let stand = if enabled { first } else { Stand::Over };
        Self { stand: watch::Sender::new(stand), wished: watch::Sender::default() }
    }

    /// An attempt begins.
    pub(super) fn begin(&self, number: u64) {
        self.stand.send_replace(Stand::Trying { number, since: Instant::now() });
    }

    /// It has succeeded: the connection is there for calls.
    pub(super) fn succeed(&self) {
        self.stand.send_replace(Stand::Up);
    }

    /// There will be no other.
    pub(super) fn end(&self) {
        self.stand.send_replace(Stand::Over);
    }

    /// The attempt of that number is over: waits until the next one is due, at most `delay`. True
    /// if a call has wished for it.
    pub(super) async fn rest(&self, number: u64, ended: Ended, delay: Duration) -> bool {
        let now = Instant::now();
        let since = if ended.failed { now } else { ended.began };
        let earliest = since + PAUSE * ended.starts;
        let next = now + delay;
        self.stand.send_replace(Stand::Away(Away { number, failed: ended.failed, earliest, next }));
        let mut wished = self.wished.subscribe();
        let called = async {
            // The sender lives as long as `self`.
            let _ = wished.wait_for(|wished| *wished > number).await;
            tokio::time::sleep_until(earliest.into()).await;
        };
        timeout_at(next.into(), called).await.is_ok()
    }

    pub(super) fn wish(&self, number: u64) {
        self.wished.send_if_modified(|wished| {
            let later = *wished < number;
            *wished = number.max(*wished);
            later
        });
    }
}

impl Upstream {
    /// Has it tried if it is away and may be tried again; nothing is waited for.
    pub(super) fn nudge(&self) {
        if self.live.load().is_some() {
            return;
        }
        let stand = *self.attempts.stand.borrow();
        if let Stand::Away(away) = stand
            && Instant::now() >= away.earliest
        {
            self.attempts.wish(away.number + 1);
        }
    }

    /// Waits until it can be asked something, at most until then. One that is away is tried, as for
    /// a call.
    ///
    /// # Errors
    /// Why it cannot, in one line that names it.
    pub async fn reached(&self, until: Instant) -> Result<(), String> {
        self.live(until).await.map(|_| ()).map_err(|cause| self.named(&cause))
    }

    /// The same, and until its tools have been read.
    ///
    /// # Errors
    /// Why they have not, in one line that names it.
    pub async fn discovered(&self, until: Instant) -> Result<(), String> {
        self.reached(until).await?;
        let (mut state, mut stand) = (self.state.subscribe(), self.attempts.stand.subscribe());
        let asked = Instant::now();
        let cause = tokio::select! {
            biased;
            _ = state.wait_for(|state| state.status == Status::Connected) => return Ok(()),
            _ = stand.wait_for(|stand| matches!(stand, Stand::Away(_) | Stand::Over)) => {
                self.gone(None)
            }
            () = tokio::time::sleep_until(until.min(asked + CONNECT_WAIT).into()) => {
                Cause::StillConnecting { waited: rounded(asked.elapsed()) }
            }
        };
        Err(self.named(&cause))
    }

    fn named(&self, cause: &Cause) -> String {
        format!("{}: {cause}", self.name)
    }

    /// The connection. Of a server that is away, the one that the next attempt makes: a call causes
    /// one, if the last was not just made, and waits for it at most [`CONNECT_WAIT`], and not past
    /// `until`.
    pub(super) async fn live(&self, until: Instant) -> Result<Arc<Live>, Cause> {
        match self.live.load_full() {
            Some(live) => Ok(live),
            // Rare, and large: what a call keeps while it waits is to be small.
            None => Box::pin(self.awaited(until)).await,
        }
    }

    /// A connection younger than this one, which has ended or is about to.
    pub(super) async fn successor(
        &self,
        generation: u64,
        until: Instant,
    ) -> Result<Arc<Live>, Cause> {
        let mut stands = self.attempts.stand.subscribe();
        // Until the server's task has taken the old connection away.
        let taken = stands.wait_for(|_| {
            self.live.load().as_ref().is_none_or(|live| live.generation != generation)
        });
        let asked = Instant::now();
        let limit = until.min(asked + CONNECT_WAIT);
        if timeout_at(limit.into(), taken).await.is_err() {
            return Err(Cause::StillConnecting { waited: rounded(asked.elapsed()) });
        }
        self.live(until).await
    }

    async fn awaited(&self, until: Instant) -> Result<Arc<Live>, Cause> {
        let asked = Instant::now();
        let mut stands = self.attempts.stand.subscribe();
        // The attempt that is waited for.
        let mut awaited = None;
        loop {
            // Marked as seen before the connection is looked at, so that none is missed.
            let stand = *stands.borrow_and_update();
            if let Some(live) = self.live.load_full() {
                return Ok(live);
            }
            let since = match stand {
                Stand::Over => return Err(self.gone(None)),
                Stand::Up => asked,
                Stand::Trying { number, since } => {
                    awaited.get_or_insert(number);
                    since.min(asked)
                }
                Stand::Away(away) => {
                    if away.failed && awaited.is_some_and(|awaited| awaited <= away.number) {
                        return Err(self.gone(None));
                    }
                    if away.failed && Instant::now() < away.earliest {
                        return Err(self.gone(Some(away)));
                    }
                    self.attempts.wish(away.number + 1);
                    awaited = Some(away.number + 1);
                    asked
                }
            };
            let limit = until.min(since + CONNECT_WAIT);
            if timeout_at(limit.into(), stands.changed()).await.is_err() {
                return Err(Cause::StillConnecting { waited: rounded(since.elapsed()) });
            }
        }
    }

    /// Why there is no connection; of one that was `just` tried, when it may be tried again.
    fn gone(&self, just: Option<Away>) -> Cause {
        let state = self.state.borrow();
        let reason = match (state.status, just) {
            (Status::Disabled, _) => return Cause::Disabled,
            (_, None) => state.reason.clone(),
            (_, Some(away)) => {
                let left = away.earliest.min(away.next).saturating_duration_since(Instant::now());
                let again = Human(rounded(left + TENTH));
                format!("{}; it was just tried, the next try is in {again}", state.reason).into()
            }
        };
        Cause::NotConnected { reason }
    }
}

/// Whole seconds, or of less than one whole tenths, at least one.
fn rounded(time: Duration) -> Duration {
    let tenths = u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(if tenths < 10 { tenths * 100 } else { tenths / 10 * 1000 })
}
