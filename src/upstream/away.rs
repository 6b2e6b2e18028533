//! A call to a server that is away: what the call may cause (its restart, or the next attempt to
//! connect), and how long it waits for that.
//!
//! How an attempt is made, and when one is made without a call, is [`super::server_task`]'s.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout_at;

use super::carrier::LiveConnection;
use super::error::{Cause, Human};
use super::handle::Upstream;
use super::state::{Phase, UpstreamState, Waiting};
use super::status::Status;

/// Longest wait of a call for a server that is away or still connecting, counted from when the
/// attempt began: a mute server costs one wait, not one per call. Most servers need a few seconds
/// to start.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Of a time that is told, less than this does not count.
const TENTH: Duration = Duration::from_millis(100);

/// What a call that found no connection does next.
enum Next {
    Use(Arc<LiveConnection>),
    Fail(Cause),
    /// Looks again when the state is another, or fails at that time; the wait counts from `since`.
    Wait {
        since: Instant,
    },
}

impl Upstream {
    /// Has it tried if it is away and may be tried again; nothing is waited for.
    pub(super) fn nudge(&self) {
        if let Phase::Waiting(waiting) = self.state.load().phase()
            && Instant::now() >= waiting.due.earliest
        {
            self.wishes.wish(waiting.attempt + 1);
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
        let asked = Instant::now();
        let outcome = self.state.wait_for(|state| match state.phase() {
            Phase::Connected { .. } => Some(Ok(())),
            Phase::Waiting(_) | Phase::Stopped | Phase::Disabled => Some(Err(gone(state, None))),
            Phase::Connecting { .. } | Phase::Discovering { .. } | Phase::Closing { .. } => None,
        });
        let limit = until.min(asked + CONNECT_WAIT);
        let late = |_| Err(Cause::StillConnecting { waited: rounded(asked.elapsed()) });
        let outcome = timeout_at(limit.into(), outcome).await.unwrap_or_else(late);
        outcome.map_err(|cause| self.named(&cause))
    }

    fn named(&self, cause: &Cause) -> String {
        format!("{}: {cause}", self.name)
    }

    /// The connection. Of a server that is away, the one that the next attempt makes: a call causes
    /// one, if the last was not just made, and waits for it at most [`CONNECT_WAIT`], and not past
    /// `until`.
    pub(super) async fn live(&self, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        match self.state.live() {
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
    ) -> Result<Arc<LiveConnection>, Cause> {
        // Until the server's task has taken the old connection away.
        let taken = self.state.wait_for(|state| {
            let is_old = state.live().is_some_and(|live| live.generation == generation);
            (!is_old).then_some(())
        });
        let asked = Instant::now();
        let limit = until.min(asked + CONNECT_WAIT);
        if timeout_at(limit.into(), taken).await.is_err() {
            return Err(Cause::StillConnecting { waited: rounded(asked.elapsed()) });
        }
        self.live(until).await
    }

    async fn awaited(&self, until: Instant) -> Result<Arc<LiveConnection>, Cause> {
        let asked = Instant::now();
        // The attempt that is waited for.
        let mut awaited = None;
        let mut changes = self.state.changes();
        loop {
            // Marked as seen before the state is read, so that no change falls between.
            changes.borrow_and_update();
            let since = match self.next(asked, &mut awaited) {
                Next::Use(live) => return Ok(live),
                Next::Fail(cause) => return Err(cause),
                Next::Wait { since } => since,
            };
            let limit = until.min(since + CONNECT_WAIT);
            if timeout_at(limit.into(), changes.changed()).await.is_err() {
                return Err(Cause::StillConnecting { waited: rounded(since.elapsed()) });
            }
        }
    }

    fn next(&self, asked: Instant, awaited: &mut Option<u64>) -> Next {
        let state = self.state.load();
        match state.phase() {
            Phase::Discovering { live } | Phase::Connected { live, .. } => Next::Use(live.clone()),
            Phase::Disabled | Phase::Stopped => Next::Fail(gone(&state, None)),
            Phase::Closing { .. } => Next::Wait { since: asked },
            Phase::Connecting { attempt, since } => {
                awaited.get_or_insert(*attempt);
                Next::Wait { since: (*since).min(asked) }
            }
            Phase::Waiting(waiting) => {
                if waiting.failed && awaited.is_some_and(|awaited| awaited <= waiting.attempt) {
                    return Next::Fail(gone(&state, None));
                }
                if waiting.failed && Instant::now() < waiting.due.earliest {
                    return Next::Fail(gone(&state, Some(*waiting)));
                }
                self.wishes.wish(waiting.attempt + 1);
                *awaited = Some(waiting.attempt + 1);
                Next::Wait { since: asked }
            }
        }
    }
}

/// Why there is no connection; of one that was `just` tried, when it may be tried again.
fn gone(state: &UpstreamState, just: Option<Waiting>) -> Cause {
    let reason = match (state.status(), just) {
        (Status::Disabled, _) => return Cause::Disabled,
        (Status::Connecting | Status::Connected | Status::Failed, None) => state.reason(),
        (Status::Connecting | Status::Connected | Status::Failed, Some(waiting)) => {
            let Waiting { due, .. } = waiting;
            let left = due.earliest.min(due.next).saturating_duration_since(Instant::now());
            let again = Human(rounded(left + TENTH));
            format!("{}; it was just tried, the next try is in {again}", state.reason()).into()
        }
    };
    Cause::NotConnected { reason }
}

/// Whole seconds, or of less than one whole tenths, at least one.
fn rounded(time: Duration) -> Duration {
    let tenths = u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(if tenths < 10 { tenths * 100 } else { tenths / 10 * 1000 })
}
