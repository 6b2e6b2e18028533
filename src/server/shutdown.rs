//! Shutdown of a server: signals, the time limit of each step, and the shutdown forced by a second signal.
//!
//! ```text
//! signal ─▶ drain: no new connections, calls finish ── DRAIN_TIMEOUT ─▶ abort ── CUT_GRACE ─▶
//!   workers end ── WORKER_GRACE ─▶ children end ── CHILDREN_TIMEOUT, then killed ─▶ spans, log lines and fleet state are sent
//!   (each with its own limit) ── CONTROL_GRACE ─▶ the log is closed
//!
//! second signal ─▶ abort at once ── 2 × CUT_GRACE ─▶ children killed ── FORCED_EXIT_DELAY ─▶ the process exits
//! ```
//!
//! SIGINT and SIGTERM shut the server down. SIGHUP shuts it down only if the terminal from which it was started has closed; otherwise it
//! reloads the config. A process started with SIGHUP ignored (`nohup`) keeps ignoring it.

use std::fs::File;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fs, io, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::startup::local_runtime;

/// Time for calls in flight to finish at shutdown.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for aborted calls to respond to their clients.
pub const CUT_GRACE: Duration = Duration::from_millis(500);
/// Time for a worker to end after its connections.
pub(super) const WORKER_GRACE: Duration = Duration::from_secs(1);
/// Time for child processes to exit after their input is closed, before they are killed.
pub(super) const CHILDREN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for background tasks to end before the log is closed.
pub(super) const CONTROL_GRACE: Duration = Duration::from_secs(1);
/// Time from killing the children to the exit of the process after a second signal.
const FORCED_EXIT_DELAY: Duration = Duration::from_secs(2);
/// Exit code offset for termination by a signal, as used by shells.
const BY_SIGNAL: i32 = 128;

/// Forced shutdown, requested by a second signal. Clones share it.
#[derive(Clone, Debug)]
pub struct ForcedShutdown {
    /// Number of the signal; 0 until there is one.
    signal: Arc<AtomicI32>,
    requested: watch::Sender<bool>,
}

impl Default for ForcedShutdown {
    fn default() -> Self {
        Self { signal: Arc::default(), requested: watch::Sender::new(false) }
    }
}

impl ForcedShutdown {
    /// Logs the first signal and starts to wait for the next SIGINT or SIGTERM on a separate thread, so that it is handled even if
    /// everything else is blocked. The thread is listening when this returns. After the signal, waiters are woken, `kill` is called once
    /// aborted calls have responded, and then the process exits.
    pub fn watch(&self, kill: impl FnOnce() + Send + 'static) {
        let (listens, listening) = mpsc::sync_channel(1);
        let forced = self.clone();
        let watching = move || {
            let Ok(runtime) = local_runtime() else { return };
            let again = runtime.block_on(async {
                let mut ends = EndSignals::listen().ok()?;
                let _ = listens.send(());
                Some(ends.next().await)
            });
            let Some(again) = again else { return };
            tracing::warn!("second termination signal: aborting in-flight calls");
            forced.request(again);
            thread::sleep(2 * CUT_GRACE);
            kill();
            thread::sleep(FORCED_EXIT_DELAY);
            std::process::exit(BY_SIGNAL + again.as_raw_value());
        };
        // The thread ends with the process. If it cannot be started, the limits of the first signal apply.
        if thread::Builder::new().name("signals".into()).spawn(watching).is_ok() {
            let _ = listening.recv();
        }
        tracing::info!(
            "shutting down: calls in flight have {DRAIN_TIMEOUT:?} to finish; a second signal aborts them"
        );
    }

    fn request(&self, signal: SignalKind) {
        self.signal.store(signal.as_raw_value(), Ordering::Relaxed);
        self.requested.send_replace(true);
    }

    /// Waits until a forced shutdown is requested.
    pub async fn requested(&self) {
        // The sender exists as long as `self`.
        let _ = self.requested.subscribe().wait_for(|requested| *requested).await;
    }

    /// Exit code after a forced shutdown.
    pub fn exit_code(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => u8::try_from(BY_SIGNAL + signal).ok(),
        }
    }
}

pub(super) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for either signal and returns it.
    pub(super) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}

/// Waits for SIGINT or SIGTERM.
pub async fn ended_by_signal() -> io::Result<()> {
    EndSignals::listen()?.next().await;
    Ok(())
}

/// The signals that shut down a server. They are received from the creation of this value.
pub struct Signals {
    ends: EndSignals,
    hangups: Hangups,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { ends: EndSignals::listen()?, hangups: Hangups::listen()? })
    }

    /// Waits until the server must shut down; calls `reload` for each request to reload the config.
    pub(super) async fn shutdown_requested(mut self, reload: impl Fn()) {
        tokio::select! {
            _ = self.ends.next() => {}
            () = self.hangups.terminal_closed(|| {
                tracing::info!("SIGHUP: reloading the config");
                reload();
            }) => {}
        }
    }
}

struct Hangups {
    /// The signal; `None` if it is ignored.
    signal: Option<Signal>,
    had_terminal: bool,
}

impl Hangups {
    fn listen() -> io::Result<Self> {
        let kind = SignalKind::hangup();
        let signal = if is_ignored(kind) { None } else { Some(signal(kind)?) };
        Ok(Self { signal, had_terminal: terminal().is_ok() })
    }

    /// Waits for the SIGHUP of a closed terminal; calls `other` for every other SIGHUP.
    async fn terminal_closed(&mut self, other: impl Fn()) {
        loop {
            match &mut self.signal {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            };
            match Hangup::means(self.had_terminal, terminal().is_ok()) {
                Hangup::TerminalClosed => return,
                Hangup::Reload => other(),
            }
        }
    }
}

/// Meaning of a SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangup {
    /// The terminal from which the server was started has closed.
    TerminalClosed,
    /// The signal requests a reload of the config.
    Reload,
}

impl Hangup {
    /// Derives the meaning from whether there was a terminal at startup, and whether there is one now.
    fn means(had_terminal: bool, has_terminal: bool) -> Self {
        if had_terminal && !has_terminal { Self::TerminalClosed } else { Self::Reload }
    }
}

/// Ignores the closing of the terminal and never returns: a stdio server ends when its client closes the connection. Calls `reload`
/// for each request to reload the config.
pub async fn outlive_terminal(reload: impl Fn()) -> io::Result<()> {
    Hangups::listen()?.terminal_closed(reload).await;
    std::future::pending().await
}

/// The terminal that controls this process.
fn terminal() -> io::Result<File> {
    File::open("/dev/tty")
}

/// Whether this process was started with a signal ignored; false if unknown.
fn is_ignored(kind: SignalKind) -> bool {
    is_in_mask(&fs::read_to_string("/proc/self/status").unwrap_or_default(), kind)
}

/// Whether a process's `status` file lists a signal as ignored.
fn is_in_mask(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = kind.as_raw_value().saturating_sub(1);
    u32::try_from(bit).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use crate::otlp_export::FLUSH_LIMIT;

    use super::*;

    #[test]
    fn second_signal_wakes_all_waiters_and_sets_the_exit_code() {
        for (signal, code) in [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)] {
            let forced = ForcedShutdown::default();
            let worker = forced.clone();
            assert_eq!(
                worker.requested().now_or_never(),
                None,
                "not requested by the first signal"
            );
            assert_eq!(forced.exit_code(), None);
            forced.request(signal);
            assert_eq!(worker.requested().now_or_never(), Some(()));
            assert_eq!(forced.clone().requested().now_or_never(), Some(()), "late waiters too");
            assert_eq!(worker.exit_code(), Some(code));
        }
    }

    #[test]
    fn forced_shutdown_is_faster_than_the_regular_one() {
        let first = DRAIN_TIMEOUT + CUT_GRACE + WORKER_GRACE + CHILDREN_TIMEOUT;
        let second = 2 * CUT_GRACE + FORCED_EXIT_DELAY;
        assert!(second * 4 < first, "{second:?} of {first:?}");
        assert!(CUT_GRACE < WORKER_GRACE, "a worker that aborts its calls ends in time");
    }

    /// The number after `key` in a file of this repository.
    fn seconds(file: &str, key: &str) -> Duration {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let mut values = text.lines().filter_map(|line| line.trim().strip_prefix(key));
        let value = values.next().unwrap().trim().trim_end_matches('s').parse();
        Duration::from_secs(value.unwrap())
    }

    #[test]
    fn service_definitions_wait_longer_than_the_shutdown_limits() {
        /// Allowance for steps without a time limit, such as log syncs, and for a slow machine.
        const SLACK: Duration = Duration::from_secs(10);
        let own = DRAIN_TIMEOUT + WORKER_GRACE + CHILDREN_TIMEOUT + CONTROL_GRACE;
        let upstreams = mcpproxy_upstream::reaper::END_LIMIT;
        let fleet = mcpproxy_fleet::facts::END_LIMIT + mcpproxy_fleet::ledger::END_LIMIT;
        let whole = own + upstreams + FLUSH_LIMIT + fleet;
        for (file, key) in [
            ("tools/package/mcpproxy.service", "TimeoutStopSec="),
            ("tools/package/user.service", "TimeoutStopSec="),
            ("tools/deploy/kubernetes.yaml", "terminationGracePeriodSeconds:"),
            ("tools/deploy/compose.yaml", "stop_grace_period:"),
        ] {
            let waits = seconds(file, key);
            assert!(
                waits >= whole + SLACK,
                "{file} waits for {waits:?}, but the shutdown may take {whole:?}"
            );
        }
    }

    #[test]
    fn sighup_shuts_down_only_if_the_terminal_closed() {
        for (had, has, meaning) in [
            (true, false, Hangup::TerminalClosed),
            (true, true, Hangup::Reload),
            (false, false, Hangup::Reload),
            (false, true, Hangup::Reload),
        ] {
            assert_eq!(Hangup::means(had, has), meaning, "{had} {has}");
        }
    }

    #[test]
    fn mask_of_ignored_signals_is_parsed() {
        for (status, is_ignored) in [
            ("Name:\tx\nSigIgn:\t0000000000000001\n", true),
            ("SigIgn:\tffffffffffffffff\n", true),
            ("SigIgn:\tfffffffffffffffe\n", false),
            ("SigCgt:\t0000000000000001\n", false),
            ("SigIgn:\tno number\n", false),
            ("", false),
        ] {
            assert_eq!(is_in_mask(status, SignalKind::hangup()), is_ignored, "{status:?}");
        }
    }

    #[test]
    fn ignored_signals_are_detected() {
        // The standard library ignores SIGPIPE in every program.
        assert!(is_ignored(SignalKind::pipe()));
        assert!(!is_ignored(SignalKind::terminate()));
    }
}
