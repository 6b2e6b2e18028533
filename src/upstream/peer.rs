//! What is kept of a server for whoever quotes it or logs what it does.
//!
//! Owns the edge at which foreign text enters: words of a server's are quoted by [`Peer::quote`],
//! without the config's secrets, or not at all. And how many lines of log it may cause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::stderr_log::ServerLines;
use crate::secrets::Secrets;

/// Lines of log that a server may cause at once.
pub(super) const LOG_BURST: u32 = 50;
/// After that, one in this time.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(2);
/// The same for the lines of its stderr, which only those see who asked for them.
pub(super) const STDERR_BURST: u32 = 1000;
/// See [`STDERR_BURST`].
pub(super) const STDERR_INTERVAL: Duration = Duration::from_millis(10);
/// A flood is over, and told, when this long nothing of it came.
const OVER: Duration = Duration::from_secs(5);
/// One that does not end is told this often.
const TOLD: Duration = Duration::from_secs(60);

/// One server.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its name in the config.
    pub(super) name: Arc<str>,
    /// Of the whole config: a server may say what another is given.
    pub(super) secrets: Arc<Secrets>,
    log: Bucket,
    stderr: Bucket,
    /// Where the lines of its stderr are kept.
    kept: ServerLines,
    /// Lines were left out.
    missed: Notify,
}

impl Peer {
    pub(super) fn new(name: Arc<str>, secrets: Arc<Secrets>) -> Self {
        Self {
            name,
            secrets,
            log: Bucket::new(LOG_BURST, LOG_INTERVAL),
            stderr: Bucket::new(STDERR_BURST, STDERR_INTERVAL),
            kept: ServerLines::default(),
            missed: Notify::new(),
        }
    }

    /// The same, whose stderr is kept.
    pub(super) fn keeping(self, kept: ServerLines) -> Self {
        Self { kept, ..self }
    }

    /// Keeps a line of its stderr, of which the end may have been `cut` off. Never waits.
    pub(super) fn keep_stderr(&self, words: &[u8], cut: bool) {
        self.kept.keep(&self.secrets, words, cut);
    }

    /// The beginning of its own words: one line, printable, bounded, without secrets.
    pub(super) fn quote(&self, words: impl AsRef<[u8]>) -> Arc<str> {
        self.secrets.quote(words.as_ref())
    }

    /// Whether what it did may be logged. If not, the line is counted and told later.
    pub(super) fn may_log(&self) -> bool {
        self.take(&self.log)
    }

    /// The same for a line of its stderr.
    pub(super) fn may_log_stderr(&self) -> bool {
        self.take(&self.stderr)
    }

    fn take(&self, bucket: &Bucket) -> bool {
        let taken = bucket.take(Instant::now());
        if !taken {
            self.missed.notify_one();
        }
        taken
    }

    /// Tells how many lines were left out, whenever a flood of them is over, or every [`TOLD`].
    /// Never ends.
    pub(super) async fn tell_missed(&self) {
        loop {
            self.missed.notified().await;
            let flood =
                async { while tokio::time::timeout(OVER, self.missed.notified()).await.is_ok() {} };
            let _ = tokio::time::timeout(TOLD, flood).await;
            let (log, stderr) = (self.log.missed(), self.stderr.missed());
            tracing::warn!(server = %self.name, log, stderr, "lines about a server were left out of the log");
        }
    }
}

/// A token bucket that counts whom it turns away.
#[derive(Debug)]
struct Bucket {
    burst: u32,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when what was taken lasts.
    paid: Option<Instant>,
    missed: u64,
}

impl Bucket {
    fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, state: Mutex::default() }
    }

    fn take(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let paid = state.paid.map_or(now, |paid| paid.max(now)) + self.interval;
        if paid > now + self.interval * self.burst {
            state.missed += 1;
            return false;
        }
        state.paid = Some(paid);
        true
    }

    fn missed(&self) -> u64 {
        let mut state = self.state.lock();
        std::mem::take(&mut state.missed)
    }
}

#[cfg(test)]
impl Default for Peer {
    /// Of a config without secrets.
    fn default() -> Self {
        Self::new("s".into(), Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_a_burst_then_its_rate_and_counts_the_rest() {
        let bucket = Bucket::new(3, Duration::from_secs(2));
        let start = Instant::now();
        let at = |seconds| bucket.take(start + Duration::from_secs(seconds));
        let taken: Vec<bool> = [0, 0, 0, 0, 1, 2, 2, 100, 100, 100, 100].map(at).into();
        assert_eq!(taken, [true, true, true, false, false, true, false, true, true, true, false]);
        assert_eq!((bucket.missed(), bucket.missed()), (4, 0));
    }
}
