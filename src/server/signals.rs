//! What the system tells a server: to end, to end at once, and that its terminal has gone.
//!
//! Owns the meaning of SIGINT, SIGTERM and SIGHUP. The first of the first two lets calls in flight
//! finish, the second does not wait for them: [`Hurry`]. SIGHUP ends a server only if the terminal
//! that it was started from has gone; whoever sends it otherwise is told that there is nothing to
//! reload. A process that was started with SIGHUP ignored (`nohup`) goes on ignoring it.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::{CUT_GRACE, DRAIN_TIMEOUT, local_runtime};

/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;
/// What is not over so long after the second signal is left as it is.
const HURRY_LIMIT: Duration = Duration::from_secs(2);

/// SIGINT and SIGTERM.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
}

impl Ends {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for either; which it was.
    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}

/// Waits for SIGINT or SIGTERM.
///
/// # Errors
///
/// When the system does not let signals be awaited.
pub async fn ended_by_signal() -> io::Result<()> {
    Ends::listen()?.next().await;
    Ok(())
}

/// What a server that is run from a shell or by a supervisor is told; it listens once made.
pub struct Signals {
    ends: Ends,
    hangups: Hangups,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { ends: Ends::listen()?, hangups: Hangups::listen()? })
    }

    /// Waits until the server is to end.
    pub(super) async fn told_to_end(mut self) {
        tokio::select! {
            _ = self.ends.next() => {}
            () = self.hangups.terminal_has_gone() => {}
        }
    }
}

/// SIGHUP.
struct Hangups {
    /// None where it is ignored.
    signal: Option<Signal>,
    had_terminal: bool,
}

impl Hangups {
    fn listen() -> io::Result<Self> {
        let kind = SignalKind::hangup();
        let signal = if is_ignored(kind) { None } else { Some(signal(kind)?) };
        Ok(Self { signal, had_terminal: terminal().is_ok() })
    }

    /// Tells in the log of each for which there is nothing to do; ends with the one that says that
    /// the terminal has gone.
    async fn terminal_has_gone(&mut self) {
        loop {
            match &mut self.signal {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            };
            if self.had_terminal && terminal().is_err() {
                return;
            }
            tracing::info!(
                "SIGHUP: there is nothing to reload; the config is read at the start, SIGTERM ends"
            );
        }
    }
}

/// Outlives SIGHUP where the end is the client's to decide, whose terminal it is: never ends.
///
/// # Errors
///
/// When the system does not let signals be awaited.
pub async fn outlive_terminal() -> io::Result<()> {
    Hangups::listen()?.terminal_has_gone().await;
    std::future::pending().await
}

/// The terminal that controls this process.
fn terminal() -> io::Result<File> {
    File::open("/dev/tty")
}

/// Whether this process was started with a signal ignored. Where the system does not tell, it was
/// not.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = kind.as_raw_value().saturating_sub(1);
    u32::try_from(bit).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
}

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
                let mut ends = Ends::listen().ok()?;
                let _ = listens.send(());
                Some(ends.next().await)
            });
            let Some(again) = again else { return };
            tracing::warn!("told again to end: calls in flight are cut off");
            hurry.by.store(again.as_raw_value(), Ordering::Relaxed);
            hurry.told.send_replace(true);
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
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        // The standard library ignores SIGPIPE in every program.
        assert!(is_ignored(SignalKind::pipe()));
        assert!(!is_ignored(SignalKind::terminate()));
    }
}
