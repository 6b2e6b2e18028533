//! The end of a server: how long each part of it may take, and what a second signal cuts short.
//!
//! ```text
//! signal ─▶ drain: nothing new is accepted, calls finish ── DRAIN_TIMEOUT ─▶ cut off ── CUT_GRACE ─▶
//!   workers end ── WORKER_GRACE ─▶ children end ── CHILDREN_TIMEOUT, then killed ─▶ spans and lines are sent, what a
//!   fleet is to be told is told and sealed (each with a bound of its own) ── CONTROL_GRACE ─▶ the log is closed
//!
//! second signal ─▶ cut off at once ── 2 × CUT_GRACE ─▶ children killed ── HURRY_LIMIT ─▶ the process exits
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio::sync::watch;

use super::runtime::local_runtime;
use super::signals::EndSignals;

/// Calls in flight have this long to finish when the server ends.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls that are cut off then have this long to tell their clients.
pub const CUT_GRACE: Duration = Duration::from_millis(500);
/// A worker has this long to end after its connections have.
pub(super) const WORKER_GRACE: Duration = Duration::from_secs(1);
/// Children have this long to end when their input closes, before they are killed.
pub(super) const CHILDREN_TIMEOUT: Duration = Duration::from_secs(5);
/// What still runs beside has this long to end before the log is closed.
pub(super) const CONTROL_GRACE: Duration = Duration::from_secs(1);
/// What is not over so long after the second signal is left as it is.
const HURRY_LIMIT: Duration = Duration::from_secs(2);
/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// Whether an ending is waited for: not any more after a second signal.
#[derive(Clone, Debug)]
pub struct Hurry {
    /// The signal, 0 before there is one.
    by: Arc<AtomicI32>,
    told: watch::Sender<bool>,
}

impl Default for Hurry {
    fn default() -> Self {
        Self { by: Arc::default(), told: watch::Sender::new(false) }
    }
}

impl Hurry {
    /// The first signal has come, which is told in the log. Waits for the next SIGINT or SIGTERM on
    /// a thread of its own, so that it is heard whatever else stands still; it listens when this
    /// returns. Then those who wait are told, `kill` is
    /// called once calls have been told, and what is not over by then ends with the process.
    pub fn watch(&self, kill: impl FnOnce() + Send + 'static) {
        let (listens, listening) = mpsc::sync_channel(1);
        let hurry = self.clone();
        let watching = move || {
            let Ok(runtime) = local_runtime() else { return };
            let again = runtime.block_on(async {
                let mut ends = EndSignals::listen().ok()?;
                let _ = listens.send(());
                Some(ends.next().await)
            });
            let Some(again) = again else { return };
            tracing::warn!("told again to end: calls in flight are cut off");
            hurry.begin(again);
            thread::sleep(2 * CUT_GRACE);
            kill();
            thread::sleep(HURRY_LIMIT);
            std::process::exit(BY_SIGNAL + again.as_raw_value());
        };
        // It ends with the process. Where there is none, the first signal's limits hold.
        if thread::Builder::new().name("signals".into()).spawn(watching).is_ok() {
            let _ = listening.recv();
        }
        tracing::info!(
            "ending: calls in flight have {DRAIN_TIMEOUT:?} to finish; another signal ends at once"
        );
    }

    /// From now on nothing is waited for.
    fn begin(&self, signal: SignalKind) {
        self.by.store(signal.as_raw_value(), Ordering::Relaxed);
        self.told.send_replace(true);
    }

    /// Waits until it is told.
    pub async fn told(&self) {
        // The sender lives as long as `self`.
        let _ = self.told.subscribe().wait_for(|told| *told).await;
    }

    /// The exit code of a process that did not wait, if there was a second signal.
    #[must_use]
    pub fn exit_code(&self) -> Option<u8> {
        match self.by.load(Ordering::Relaxed) {
            0 => None,
            by => u8::try_from(BY_SIGNAL + by).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::otlp_export::FLUSH_LIMIT;
    use super::*;

    #[test]
    fn a_second_signal_is_told_to_all_and_is_the_exit_code() {
        for (signal, code) in [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)] {
            let hurry = Hurry::default();
            let worker = hurry.clone();
            assert_eq!(worker.told().now_or_never(), None, "after one signal it waits");
            assert_eq!(hurry.exit_code(), None);
            hurry.begin(signal);
            assert_eq!(worker.told().now_or_never(), Some(()));
            assert_eq!(hurry.clone().told().now_or_never(), Some(()), "who asks late too");
            assert_eq!(worker.exit_code(), Some(code));
        }
    }

    #[test]
    fn what_a_second_signal_leaves_is_over_before_what_the_first_one_allows() {
        let first = DRAIN_TIMEOUT + CUT_GRACE + WORKER_GRACE + CHILDREN_TIMEOUT;
        let second = 2 * CUT_GRACE + HURRY_LIMIT;
        assert!(second * 4 < first, "{second:?} of {first:?}");
        assert!(CUT_GRACE < WORKER_GRACE, "a worker that cuts off its calls is not left behind");
    }

    /// The number behind `key` in a file of this repository.
    fn seconds(file: &str, key: &str) -> Duration {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let mut values = text.lines().filter_map(|line| line.trim().strip_prefix(key));
        let value = values.next().unwrap().trim().trim_end_matches('s').parse();
        Duration::from_secs(value.unwrap())
    }

    #[test]
    fn whoever_starts_it_as_a_service_waits_longer_than_its_end_takes_by_its_bounds() {
        /// For what has no bound of its own: syncs of the log, and a machine that is slow.
        const SLACK: Duration = Duration::from_secs(10);
        let own = DRAIN_TIMEOUT + WORKER_GRACE + CHILDREN_TIMEOUT + CONTROL_GRACE;
        let upstreams = crate::upstream::reaper::END_LIMIT;
        let fleet = crate::fleet::facts::END_LIMIT + crate::fleet::ledger::END_LIMIT;
        let whole = own + upstreams + FLUSH_LIMIT + fleet;
        for (file, key) in [
            ("tools/package/mcpproxy.service", "TimeoutStopSec="),
            ("tools/deploy/kubernetes.yaml", "terminationGracePeriodSeconds:"),
            ("tools/deploy/compose.yaml", "stop_grace_period:"),
        ] {
            let waits = seconds(file, key);
            assert!(waits >= whole + SLACK, "{file} waits for {waits:?}, it may take {whole:?}");
        }
    }
}
