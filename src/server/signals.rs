//! What the system tells a server: to end, and that its terminal has gone.
//!
//! Owns the meaning of SIGINT, SIGTERM and SIGHUP. What the second of the first two does is
//! `shutdown`'s. SIGHUP ends a server only if the terminal
//! that it was started from has gone; sent otherwise it asks for the config to be read again. A process that was started with SIGHUP ignored (`nohup`) goes on ignoring it.

use std::fs::{self, File};
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM.
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

    /// Waits for either; which it was.
    pub(super) async fn next(&mut self) -> SignalKind {
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
    EndSignals::listen()?.next().await;
    Ok(())
}

/// The signals that end a server which is run from a shell or by a supervisor; none is lost from its
/// creation on.
pub struct Signals {
    ends: EndSignals,
    hangups: Hangups,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { ends: EndSignals::listen()?, hangups: Hangups::listen()? })
    }

    /// Waits until the server is to end; calls `reload` each time that the config is to be read again.
    pub(super) async fn told_to_end(mut self, reload: impl Fn()) {
        tokio::select! {
            _ = self.ends.next() => {}
            () = self.hangups.terminal_has_gone(|| {
                tracing::info!("SIGHUP: the config is read again");
                reload();
            }) => {}
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

    /// Waits for the one that says that the terminal has gone; calls `other` at each other.
    async fn terminal_has_gone(&mut self, other: impl Fn()) {
        loop {
            match &mut self.signal {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            };
            match Hangup::means(self.had_terminal, terminal().is_ok()) {
                Hangup::TerminalHasGone => return,
                Hangup::Reload => other(),
            }
        }
    }
}

/// What a SIGHUP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangup {
    /// The terminal that the server was started from is closed: the server ends.
    TerminalHasGone,
    /// Somebody sent it, as daemons are told to read their config again.
    Reload,
}

impl Hangup {
    /// By whether there was a terminal at the start, and whether there is one now.
    fn means(had_terminal: bool, has_terminal: bool) -> Self {
        if had_terminal && !has_terminal { Self::TerminalHasGone } else { Self::Reload }
    }
}

/// Outlives SIGHUP where the end is the client's to decide, whose terminal it is: never ends. `reload` is called each time that
/// the config is to be read again.
///
/// # Errors
///
/// When the system does not let signals be awaited.
pub async fn outlive_terminal(reload: impl Fn()) -> io::Result<()> {
    Hangups::listen()?.terminal_has_gone(reload).await;
    std::future::pending().await
}

/// The terminal that controls this process.
fn terminal() -> io::Result<File> {
    File::open("/dev/tty")
}

/// Whether this process was started with a signal ignored. Where the system does not tell, it was
/// not.
fn is_ignored(kind: SignalKind) -> bool {
    is_in_mask(&fs::read_to_string("/proc/self/status").unwrap_or_default(), kind)
}

/// Whether a signal is among those that a process's `status` file lists as ignored.
fn is_in_mask(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = kind.as_raw_value().saturating_sub(1);
    u32::try_from(bit).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_ends_a_server_only_whose_terminal_has_gone() {
        for (had, has, meaning) in [
            (true, false, Hangup::TerminalHasGone),
            (true, true, Hangup::Reload),
            (false, false, Hangup::Reload),
            (false, true, Hangup::Reload),
        ] {
            assert_eq!(Hangup::means(had, has), meaning, "{had} {has}");
        }
    }

    #[test]
    fn the_mask_of_ignored_signals_is_read_by_its_bits() {
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
    fn what_is_ignored_is_known() {
        // The standard library ignores SIGPIPE in every program.
        assert!(is_ignored(SignalKind::pipe()));
        assert!(!is_ignored(SignalKind::terminate()));
    }
}
