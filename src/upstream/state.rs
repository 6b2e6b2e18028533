//! The state of one server, in one place: what calls, lists and readiness know of it is derived
//! from it.
//!
//! The server's task alone makes transitions ([`super::server_task`]); everyone else reads. To read
//! costs a call no lock.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::sync::watch;

use super::backoff::Due;
use super::carrier::LiveConnection;
use super::status::{About, ServerState, Status, Transport};

/// The state of one server.
///
/// ```text
///   new, enabled                                                    new, disabled
///        │                                                                │
///        ▼                fail                                            ▼
///   ┌──────────┐ ──────────────────────────────────────┐              Disabled
///   │Connecting│                                       │
///   └──────────┘ ◀──────────── begin ─────────────┐    │
///        │                                        │    ▼
///        │ reach        lose   ┌─────────┐  rest ┌─────────┐
///        ▼            ┌──────▶ │ Closing │ ────▶ │ Waiting │
///   ┌───────────┐     │        └─────────┘       └─────────┘
///   │Discovering│ ────┤             │ begin
///   └───────────┘     │             └──────────▶ Connecting
///        │ discover   │
///        ▼            │
///   ┌───────────┐     │
///   │ Connected │ ────┘          from any but Disabled: stop ──▶ Stopped
///   └───────────┘
/// ```
///
/// `renew` (another token) leaves Discovering and Connected what they are, and so does `discover`
/// (its tools have changed) with Connected.
#[derive(Clone)]
pub(super) enum Phase {
    /// Switched off in the config, for good.
    Disabled,
    /// The attempt of that number is being made; 0 before the first.
    Connecting { attempt: u64, since: Instant },
    /// The handshake is over and calls go, but its tools have not been read over this connection.
    Discovering { live: Arc<LiveConnection> },
    /// Its tools are known.
    Connected {
        live: Arc<LiveConnection>,
        /// What its login lacks; empty if nothing.
        notice: Arc<str>,
    },
    /// The connection is lost, and being taken down.
    Closing {
        /// The attempt that had led to it.
        attempt: u64,
        /// It has worked: its tools were read.
        worked: bool,
    },
    /// Between two attempts.
    Waiting(Waiting),
    /// There will be no attempt any more: the entry names no server, or the proxy ends.
    Stopped,
}

/// A server between two attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The number of the attempt that was made last.
    pub(super) attempt: u64,
    /// Whether that one failed; else it worked, and was lost.
    pub(super) failed: bool,
    pub(super) due: Due,
}

/// What came of the attempts so far, while there is no connection that works.
#[derive(Clone)]
enum Past {
    /// Nothing yet.
    None,
    /// A connection that worked was lost.
    Lost(Arc<str>),
    /// The last attempt failed.
    Failed(Arc<str>),
}

/// The state of one server: where it stands in the diagram, and what is remembered of it.
#[derive(Clone)]
pub(super) struct UpstreamState {
    phase: Phase,
    past: Past,
    /// What it said of itself when it was reached last.
    about: About,
    /// How many tools it listed last.
    tools: usize,
    protocol_version: Option<Arc<str>>,
    server_info: Option<Arc<str>>,
    /// Since when its status is what it is.
    since: SystemTime,
    /// It was discovered once, or has failed: it holds up readiness no longer.
    settled: bool,
}

/// What a discovery found.
#[derive(Clone, Debug, Default)]
pub(super) struct Discovered {
    pub(super) tools: usize,
    pub(super) protocol_version: Option<Arc<str>>,
    pub(super) server_info: Option<Arc<str>>,
    /// What its login lacks; empty if nothing.
    pub(super) notice: Arc<str>,
}

/// A transition that the diagram does not have. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there is no transition {transition} from {from}")]
pub(super) struct Forbidden {
    transition: &'static str,
    from: &'static str,
}

type Transition = Result<(), Forbidden>;

impl UpstreamState {
    /// At the start.
    pub(super) fn new(enabled: bool) -> Self {
        let first = Phase::Connecting { attempt: 0, since: Instant::now() };
        Self {
            phase: if enabled { first } else { Phase::Disabled },
            past: Past::None,
            about: About::default(),
            tools: 0,
            protocol_version: None,
            server_info: None,
            since: SystemTime::now(),
            settled: !enabled,
        }
    }

    /// An attempt begins.
    pub(super) fn begin(&mut self, attempt: u64, now: Instant) -> Transition {
        match self.phase {
            Phase::Connecting { attempt: 0, .. } | Phase::Closing { .. } | Phase::Waiting(_) => {
                self.phase = Phase::Connecting { attempt, since: now };
                Ok(())
            }
            Phase::Disabled
            | Phase::Connecting { .. }
            | Phase::Discovering { .. }
            | Phase::Connected { .. }
            | Phase::Stopped => self.forbid("begin"),
        }
    }

    /// The attempt has succeeded: the connection is there for calls.
    pub(super) fn reach(&mut self, live: Arc<LiveConnection>, about: About) -> Transition {
        let Phase::Connecting { .. } = self.phase else { return self.forbid("reach") };
        self.phase = Phase::Discovering { live };
        self.about = about;
        Ok(())
    }

    /// The attempt has failed; the next one is due then.
    pub(super) fn fail(&mut self, reason: &str, due: Due) -> Transition {
        let Phase::Connecting { attempt, .. } = self.phase else { return self.forbid("fail") };
        self.wait(Waiting { attempt, failed: true, due }, reason);
        Ok(())
    }

    /// The list of tools was read.
    pub(super) fn discover(&mut self, found: Discovered) -> Transition {
        let (Phase::Discovering { live } | Phase::Connected { live, .. }) = &self.phase else {
            return self.forbid("discover");
        };
        let Discovered { tools, protocol_version, server_info, notice } = found;
        self.phase = Phase::Connected { live: Arc::clone(live), notice };
        self.past = Past::None;
        (self.tools, self.settled) = (tools, true);
        (self.protocol_version, self.server_info) = (protocol_version, server_info);
        Ok(())
    }

    /// The connection goes on with another token.
    pub(super) fn renew(&mut self, other: Arc<LiveConnection>) -> Transition {
        match &mut self.phase {
            Phase::Discovering { live } | Phase::Connected { live, .. } => {
                *live = other;
                Ok(())
            }
            Phase::Disabled
            | Phase::Connecting { .. }
            | Phase::Closing { .. }
            | Phase::Waiting(_)
            | Phase::Stopped => self.forbid("renew"),
        }
    }

    /// The login of a connected server lacks something else than before.
    pub(super) fn notice(&mut self, now: Arc<str>) -> Transition {
        match &mut self.phase {
            Phase::Connected { notice, .. } => {
                *notice = now;
                Ok(())
            }
            Phase::Disabled
            | Phase::Connecting { .. }
            | Phase::Discovering { .. }
            | Phase::Closing { .. }
            | Phase::Waiting(_)
            | Phase::Stopped => self.forbid("notice"),
        }
    }

    /// The connection is lost.
    pub(super) fn lose(&mut self, reason: &str) -> Transition {
        let (attempt, worked) = match &self.phase {
            Phase::Discovering { live } => (live.generation, false),
            Phase::Connected { live, .. } => (live.generation, true),
            Phase::Disabled
            | Phase::Connecting { .. }
            | Phase::Closing { .. }
            | Phase::Waiting(_)
            | Phase::Stopped => return self.forbid("lose"),
        };
        if worked {
            self.past = Past::Lost(format!("reconnecting: {reason}").into());
        }
        self.phase = Phase::Closing { attempt, worked };
        Ok(())
    }

    /// The lost connection was taken down; the next attempt is due then. One that never worked has
    /// failed, for that reason.
    pub(super) fn rest(&mut self, reason: &str, due: Due) -> Transition {
        let Phase::Closing { attempt, worked } = self.phase else { return self.forbid("rest") };
        self.wait(Waiting { attempt, failed: !worked, due }, reason);
        Ok(())
    }

    /// There will be no other attempt.
    pub(super) fn stop(&mut self, reason: &str) -> Transition {
        if let Phase::Disabled = self.phase {
            return self.forbid("stop");
        }
        self.phase = Phase::Stopped;
        self.past = Past::Failed(reason.into());
        self.settled = true;
        Ok(())
    }

    fn wait(&mut self, waiting: Waiting, reason: &str) {
        if waiting.failed {
            self.past = Past::Failed(reason.into());
            self.settled = true;
        }
        self.phase = Phase::Waiting(waiting);
    }

    fn forbid(&self, transition: &'static str) -> Transition {
        let from = match self.phase {
            Phase::Disabled => "Disabled",
            Phase::Connecting { .. } => "Connecting",
            Phase::Discovering { .. } => "Discovering",
            Phase::Connected { .. } => "Connected",
            Phase::Closing { .. } => "Closing",
            Phase::Waiting(_) => "Waiting",
            Phase::Stopped => "Stopped",
        };
        Err(Forbidden { transition, from })
    }
}

impl UpstreamState {
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The connection that calls use.
    pub(super) fn live(&self) -> Option<&Arc<LiveConnection>> {
        match &self.phase {
            Phase::Discovering { live } | Phase::Connected { live, .. } => Some(live),
            Phase::Disabled
            | Phase::Connecting { .. }
            | Phase::Closing { .. }
            | Phase::Waiting(_)
            | Phase::Stopped => None,
        }
    }

    /// What it said of itself when it was reached last.
    pub(super) fn about(&self) -> About {
        self.about
    }

    /// It was discovered once, or has failed.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// The word for it. A server that failed is called so until it is connected.
    pub(super) fn status(&self) -> Status {
        match (&self.phase, &self.past) {
            (Phase::Disabled, _) => Status::Disabled,
            (Phase::Connected { .. }, _) => Status::Connected,
            (Phase::Stopped, _) => Status::Failed,
            (
                Phase::Connecting { .. }
                | Phase::Discovering { .. }
                | Phase::Closing { .. }
                | Phase::Waiting(_),
                past,
            ) => match past {
                Past::Failed(_) => Status::Failed,
                Past::None | Past::Lost(_) => Status::Connecting,
            },
        }
    }

    /// Why, in one line; may be empty.
    pub(super) fn reason(&self) -> Arc<str> {
        match (&self.phase, &self.past) {
            (Phase::Disabled, _) => "disabled in the config".into(),
            (Phase::Connected { notice, .. }, _) => Arc::clone(notice),
            (_, Past::Lost(reason) | Past::Failed(reason)) => Arc::clone(reason),
            (_, Past::None) => "".into(),
        }
    }

    /// As it is shown.
    pub(super) fn shown(&self, name: &Arc<str>, transport: Transport) -> ServerState {
        ServerState {
            name: Arc::clone(name),
            transport,
            status: self.status(),
            reason: self.reason(),
            tools: self.tools,
            since: self.since,
            protocol_version: self.protocol_version.clone(),
            server_info: self.server_info.clone(),
            settled: self.settled,
        }
    }
}

/// Where the state of one server is kept: read by all, written by its task.
pub(super) struct StateCell {
    now: ArcSwap<UpstreamState>,
    changed: watch::Sender<()>,
}

impl StateCell {
    pub(super) fn new(state: UpstreamState) -> Self {
        Self { now: ArcSwap::from_pointee(state), changed: watch::Sender::default() }
    }

    /// The state as it is now, not to be kept.
    pub(super) fn load(&self) -> arc_swap::Guard<Arc<UpstreamState>> {
        self.now.load()
    }

    /// The connection that calls use.
    pub(super) fn live(&self) -> Option<Arc<LiveConnection>> {
        self.now.load().live().cloned()
    }

    /// Makes a transition. True if its status or the reason for it is another now. To be called by
    /// one task alone.
    ///
    /// # Errors
    /// [`Forbidden`]; the state is as before.
    pub(super) fn make(
        &self,
        transition: impl FnOnce(&mut UpstreamState) -> Transition,
    ) -> Result<bool, Forbidden> {
        let before = self.now.load_full();
        let mut state = UpstreamState::clone(&before);
        transition(&mut state)?;
        let is_another = state.status() != before.status();
        let shows = is_another || state.reason() != before.reason();
        if is_another {
            state.since = SystemTime::now();
        }
        self.now.store(Arc::new(state));
        self.changed.send_replace(());
        Ok(shows)
    }

    /// Tells that a transition was made, from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Waits until `found` finds something in the state.
    pub(super) async fn wait_for<T>(&self, found: impl Fn(&UpstreamState) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            // Marked as seen before the state is read, so that no change falls between.
            changes.borrow_and_update();
            let now = found(&self.now.load());
            if let Some(it) = now {
                return it;
            }
            if changes.changed().await.is_err() {
                // The sender lives as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::carrier::Carrier;
    use super::super::stdio::ChildLink;
    use super::*;
    use crate::mcp::revisions::Era;

    fn live(generation: u64) -> Arc<LiveConnection> {
        let (link, _queue) = ChildLink::new(Arc::default(), Arc::default());
        let (era, link) = (Era::Legacy, Carrier::Stdio(link));
        Arc::new(LiveConnection { generation, era, link, router: Arc::default() })
    }

    fn due() -> Due {
        let now = Instant::now();
        Due { earliest: now, next: now + Duration::from_secs(1) }
    }

    /// A transition with the name that [`Forbidden`] gives it.
    type Named = (&'static str, fn(&mut UpstreamState) -> Transition);

    /// Every transition.
    const TRANSITIONS: &[Named] = &[
        ("begin", |state| state.begin(2, Instant::now())),
        ("reach", |state| state.reach(live(2), About::default())),
        ("fail", |state| state.fail("no", due())),
        ("discover", |state| state.discover(Discovered::default())),
        ("renew", |state| state.renew(live(2))),
        ("notice", |state| state.notice("login".into())),
        ("lose", |state| state.lose("gone")),
        ("rest", |state| state.rest("gone", due())),
        ("stop", |state| state.stop("the end")),
    ];

    /// The state after these transitions.
    fn after(transitions: &[&str]) -> UpstreamState {
        let mut state = UpstreamState::new(true);
        for wanted in transitions {
            let (_, make) = TRANSITIONS.iter().find(|(name, _)| name == wanted).unwrap();
            make(&mut state).unwrap();
        }
        state
    }

    #[test]
    fn only_the_transitions_of_the_diagram_are_made() {
        for (way, allowed) in [
            (&[][..], &["begin", "reach", "fail", "stop"][..]),
            (&["begin"], &["reach", "fail", "stop"]),
            (&["begin", "fail"], &["begin", "stop"]),
            (&["begin", "reach"], &["discover", "renew", "lose", "stop"]),
            (&["begin", "reach", "discover"], &["discover", "renew", "notice", "lose", "stop"]),
            (&["begin", "reach", "lose"], &["begin", "rest", "stop"]),
            (&["begin", "reach", "discover", "lose"], &["begin", "rest", "stop"]),
            (&["begin", "reach", "discover", "lose", "rest"], &["begin", "stop"]),
            (&["stop"], &["stop"]),
        ] {
            for (name, make) in TRANSITIONS {
                let mut state = after(way);
                let (status, reason) = (state.status(), state.reason());
                let made = make(&mut state);
                assert_eq!(made.is_ok(), allowed.contains(name), "{way:?}, then {name}");
                if let Err(forbidden) = made {
                    assert_eq!(forbidden.transition, *name);
                    assert_eq!((state.status(), state.reason()), (status, reason), "{way:?}");
                }
            }
        }
        for (name, make) in TRANSITIONS {
            assert!(make(&mut UpstreamState::new(false)).is_err(), "{name} from Disabled");
        }
    }

    #[test]
    fn a_renewed_connection_is_the_one_that_calls_use() {
        for way in [&["begin", "reach"][..], &["begin", "reach", "discover"]] {
            let (mut state, other) = (after(way), live(2));
            state.renew(Arc::clone(&other)).unwrap();
            assert!(Arc::ptr_eq(state.live().unwrap(), &other), "{way:?}");
        }
    }

    #[test]
    fn what_is_shown_follows_from_the_state() {
        use Status::{Connected, Connecting, Failed};
        for (way, status, reason, settled, callable) in [
            (&[][..], Connecting, "", false, false),
            (&["begin", "reach"], Connecting, "", false, true),
            (&["begin", "reach", "discover"], Connected, "", true, true),
            (&["begin", "reach", "discover", "notice"], Connected, "login", true, true),
            (
                &["begin", "reach", "discover", "lose"],
                Connecting,
                "reconnecting: gone",
                true,
                false,
            ),
            (
                &["begin", "reach", "discover", "lose", "rest", "begin"],
                Connecting,
                "reconnecting: gone",
                true,
                false,
            ),
            // One that never worked has failed, and is called so until one works.
            (&["begin", "reach", "lose"], Connecting, "", false, false),
            (&["begin", "reach", "lose", "rest"], Failed, "gone", true, false),
            (&["begin", "fail", "begin"], Failed, "no", true, false),
            (&["begin", "fail", "begin", "reach"], Failed, "no", true, true),
            (&["begin", "fail", "begin", "reach", "discover"], Connected, "", true, true),
            (&["begin", "reach", "discover", "stop"], Failed, "the end", true, false),
        ] {
            let state = after(way);
            let shown = state.shown(&"s".into(), Transport::Stdio);
            assert_eq!((shown.status, &*shown.reason), (status, reason), "{way:?}");
            assert_eq!((shown.settled, state.live().is_some()), (settled, callable), "{way:?}");
        }
        let off = UpstreamState::new(false);
        assert_eq!((off.status(), &*off.reason()), (Status::Disabled, "disabled in the config"));
        assert!(off.is_settled());
    }

    #[test]
    fn whether_the_last_attempt_failed_decides_how_soon_a_call_may_cause_the_next() {
        for (way, failed) in [
            (&["begin", "fail"][..], true),
            (&["begin", "reach", "lose", "rest"], true),
            (&["begin", "reach", "discover", "lose", "rest"], false),
        ] {
            let state = after(way);
            let Phase::Waiting(waiting) = state.phase() else { panic!("{way:?}") };
            assert_eq!((waiting.failed, waiting.attempt), (failed, 2), "{way:?}");
        }
    }

    #[tokio::test]
    async fn a_cell_says_when_what_is_shown_is_another_and_wakes_who_waits() {
        let cell = StateCell::new(UpstreamState::new(true));
        let since = cell.load().since;
        let is_connected =
            cell.wait_for(|state| (state.status() == Status::Connected).then_some(()));
        let makes = async {
            assert_eq!(cell.make(|state| state.begin(1, Instant::now())), Ok(false));
            assert_eq!(cell.make(|state| state.reach(live(1), About::default())), Ok(false));
            assert_eq!(cell.load().since, since, "its status is the same");
            assert_eq!(cell.make(|state| state.discover(Discovered::default())), Ok(true));
            assert_eq!(cell.make(|state| state.discover(Discovered::default())), Ok(false));
            assert_eq!(cell.make(|state| state.notice("login".into())), Ok(true));
        };
        tokio::join!(is_connected, makes);
        let forbidden = cell.make(|state| state.begin(2, Instant::now())).unwrap_err();
        assert_eq!(forbidden.to_string(), "there is no transition begin from Connected");
    }
}
