//! Circuit breaker of a server: opens after consecutive failures and probes with a single call.
//!
//! ```text
//!            consecutive failures             open time over, one call passes
//!  Closed ───────────────────────▶ Open ─────────────────────────────▶ Probing
//!    ▲                              ▲  ▲    canceled                       │ │
//!    │                              │  └──────────────────────────────────┤ │
//!    │                              └─────────────── failed ──────────────┘ │
//!    └──────────────────────────────── answered ────────────────────────────┘
//! ```
//!
//! The caller defines failure. Calls that began before the breaker opened do not change its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::config::BreakerConfig;
use crate::denial::LimitReached;

/// Retry hint while a probe is under way.
const PROBED: Duration = Duration::from_secs(1);

/// The breaker of one server.
#[derive(Debug)]
pub struct Breaker {
    server: Arc<str>,
    config: BreakerConfig,
    /// False while the breaker is closed without failures: the fast path.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Calls pass; number of consecutive failures.
    Closed { failed: u32 },
    /// No call passes until `until`.
    Open { until: Instant, failed: u32 },
    /// One probe is under way.
    Probing { up: Instant, failed: u32 },
}

/// Outcome of a call for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOutcome {
    /// The server answered, even with an error.
    Answered,
    /// The server did not answer, or the answer was malformed.
    Failed,
}

/// State change caused by an outcome, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    Opened {
        /// Number of consecutive failures.
        failures: u32,
        open: Duration,
    },
    Closed,
}

/// Permission to call a server that has a breaker. If dropped without an outcome, it counts neither
/// as an answer nor as a failure; the call after a dropped probe is the next probe.
#[derive(Debug)]
pub struct Pass {
    breaker: Arc<Breaker>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ordinary,
    /// The call that probes the server.
    Probe,
    /// The outcome was reported.
    Reported,
}

impl Breaker {
    pub fn new(server: Arc<str>, config: BreakerConfig) -> Self {
        let state = Mutex::new(State::Closed { failed: 0 });
        Self { server, config, troubled: AtomicBool::new(false), state }
    }

    pub(super) fn config(&self) -> BreakerConfig {
        self.config
    }

    /// Whether a call may pass at `now`. Does not change the state.
    pub(super) fn check(&self, now: Instant) -> Result<(), LimitReached> {
        if !self.troubled.load(Ordering::Acquire) {
            return Ok(());
        }
        match *self.state.lock() {
            State::Open { until, failed } if now < until => Err(self.refusal(failed, until - now)),
            State::Probing { failed, .. } => Err(self.refusal(failed, PROBED)),
            State::Closed { .. } | State::Open { .. } => Ok(()),
        }
    }

    /// Lets a call pass at `now`; the first call after the open time is the probe.
    pub fn pass(self: &Arc<Self>, now: Instant) -> Result<Pass, LimitReached> {
        let mut kind = Kind::Ordinary;
        if self.troubled.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            match *state {
                State::Closed { .. } => {}
                State::Open { until, failed } if now < until => {
                    return Err(self.refusal(failed, until - now));
                }
                State::Open { until: up, failed } => {
                    *state = State::Probing { up, failed };
                    kind = Kind::Probe;
                }
                State::Probing { failed, .. } => return Err(self.refusal(failed, PROBED)),
            }
        }
        Ok(Pass { breaker: Arc::clone(self), kind })
    }

    fn refusal(&self, failures: u32, retry_after: Duration) -> LimitReached {
        LimitReached::Breaker { server: (&*self.server).into(), failures, retry_after }
    }
}

impl Pass {
    pub fn report(mut self, outcome: ServerOutcome, now: Instant) -> Option<BreakerChange> {
        let Self { breaker, kind } = &mut self;
        let kind = std::mem::replace(kind, Kind::Reported);
        let BreakerConfig { failures, open } = breaker.config;
        if (kind, outcome) == (Kind::Ordinary, ServerOutcome::Answered)
            && !breaker.troubled.load(Ordering::Acquire)
        {
            return None;
        }
        let mut state = breaker.state.lock();
        let (next, change) = match (*state, kind, outcome) {
            (State::Closed { failed }, Kind::Ordinary | Kind::Probe, ServerOutcome::Failed) => {
                let failed = failed.saturating_add(1);
                if failed < failures {
                    (State::Closed { failed }, None)
                } else {
                    let change = BreakerChange::Opened { failures: failed, open };
                    (State::Open { until: now + open, failed }, Some(change))
                }
            }
            (State::Closed { .. }, Kind::Ordinary | Kind::Probe, ServerOutcome::Answered) => {
                (State::Closed { failed: 0 }, None)
            }
            (State::Probing { .. }, Kind::Probe, ServerOutcome::Answered) => {
                (State::Closed { failed: 0 }, Some(BreakerChange::Closed))
            }
            (State::Probing { failed, .. }, Kind::Probe, ServerOutcome::Failed) => {
                let failed = failed.saturating_add(1);
                let change = BreakerChange::Opened { failures: failed, open };
                (State::Open { until: now + open, failed }, Some(change))
            }
            (same @ (State::Open { .. } | State::Probing { .. }), _, _)
            | (same @ State::Closed { .. }, Kind::Reported, _) => (same, None),
        };
        *state = next;
        breaker.troubled.store(next != State::Closed { failed: 0 }, Ordering::Release);
        change
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.kind == Kind::Probe {
            // The probe was canceled without an outcome: the next call probes.
            let mut state = self.breaker.state.lock();
            if let State::Probing { up, failed } = *state {
                *state = State::Open { until: up, failed };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Duration = Duration::from_secs(30);

    struct Server {
        breaker: Arc<Breaker>,
        now: Instant,
    }

    impl Server {
        fn new(failures: u32) -> Self {
            let config = BreakerConfig { failures, open: OPEN };
            let breaker = Arc::new(Breaker::new("s".into(), config));
            Self { breaker, now: mcpproxy_runtime::io::clock::now() }
        }

        fn call(&self, outcome: ServerOutcome) -> Option<BreakerChange> {
            self.pass().report(outcome, self.now)
        }

        fn pass(&self) -> Pass {
            assert_eq!(self.breaker.check(self.now), Ok(()));
            self.breaker.pass(self.now).unwrap()
        }

        fn refused(&self) -> String {
            let refusal = self.breaker.check(self.now).unwrap_err();
            assert_eq!(self.breaker.pass(self.now).unwrap_err(), refusal);
            refusal.to_string()
        }
    }

    use ServerOutcome::{Answered, Failed};

    #[test]
    fn breaker_opens_after_failures_and_probes_with_one_call() {
        let mut server = Server::new(3);
        for outcome in [Failed, Failed, Answered, Failed, Failed] {
            assert_eq!(server.call(outcome), None);
        }
        let opened = BreakerChange::Opened { failures: 3, open: OPEN };
        assert_eq!(server.call(Failed), Some(opened));
        let text = "Server 's' is set aside after 3 failures, next try in 30s";
        assert_eq!(server.refused(), text);
        server.now += OPEN;
        let probe = server.pass();
        assert_eq!(server.refused(), text.replace("30s", "1s"));
        let opened = BreakerChange::Opened { failures: 4, open: OPEN };
        assert_eq!(probe.report(Failed, server.now), Some(opened));
        assert!(server.refused().ends_with("after 4 failures, next try in 30s"));
        server.now += OPEN;
        assert_eq!(server.call(Answered), Some(BreakerChange::Closed));
        for outcome in [Failed, Failed, Answered] {
            assert_eq!(server.call(outcome), None, "the failure count was reset");
        }
        assert!(!server.breaker.troubled.load(Ordering::Relaxed));
    }

    #[test]
    fn flapping_server_does_not_open_the_breaker() {
        let server = Server::new(2);
        for _ in 0..1000 {
            assert_eq!(server.call(Failed), None);
            assert_eq!(server.call(Answered), None);
        }
    }

    #[test]
    fn calls_started_before_the_breaker_opened_do_not_change_it() {
        let mut server = Server::new(1);
        let (old, older) = (server.pass(), server.pass());
        assert!(server.call(Failed).is_some());
        assert_eq!(old.report(Answered, server.now), None);
        assert!(server.refused().contains("30s"));
        server.now += OPEN;
        let probe = server.pass();
        assert_eq!(older.report(Failed, server.now), None);
        assert_eq!(probe.report(Answered, server.now), Some(BreakerChange::Closed));
    }

    #[test]
    fn canceled_probe_lets_the_next_call_probe() {
        let mut server = Server::new(1);
        server.call(Failed);
        for _ in 0..100 {
            server.now += OPEN;
            drop(server.pass());
        }
        let probe = server.pass();
        assert!(server.refused().ends_with("next try in 1s"));
        assert!(probe.report(Failed, server.now).is_some());
    }
}
