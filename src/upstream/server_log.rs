//! Log budget and redaction for one server's output.
//!
//! All text from a server passes through this module: its output is quoted only by [`ServerLog::quote`], without
//! secrets of the config. Token buckets limit the log lines that a server can cause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::stderr_log::ServerLines;
use mcpproxy_catalog::ListNotes;
use mcpproxy_runtime::io::line_budget::{self, LineBucket};
use mcpproxy_runtime::secrets::Secrets;

/// Burst of log lines that a server may cause.
pub(super) const LOG_BURST: u32 = line_budget::BURST;
/// Refill interval of this budget.
pub(super) const LOG_INTERVAL: Duration = line_budget::INTERVAL;
/// Burst of logged stderr lines, which appear only at debug level.
pub(super) const STDERR_BURST: u32 = 1000;
/// Refill interval of the stderr budget; see [`STDERR_BURST`].
pub(super) const STDERR_INTERVAL: Duration = Duration::from_millis(10);
/// Silence after which a flood has ended and is reported.
const FLOOD_END: Duration = Duration::from_secs(5);
/// Report interval of a flood that does not end.
const REPORT_INTERVAL: Duration = line_budget::REPORT_EVERY;

#[derive(Debug)]
pub(super) struct ServerLog {
    pub(super) name: Arc<str>,
    /// Secrets of the whole config, because a server may echo those of another.
    pub(super) secrets: Arc<Secrets>,
    log: Mutex<LineBucket>,
    stderr: Mutex<LineBucket>,
    /// Store of the server's stderr lines.
    stderr_log: ServerLines,
    /// Notified when lines were dropped.
    dropped: Notify,
    /// Tools omitted from the server's last list.
    list_notes: Mutex<ListNotes>,
}

impl ServerLog {
    pub(super) fn new(name: Arc<str>, secrets: Arc<Secrets>) -> Self {
        Self {
            name,
            secrets,
            log: LineBucket::new(LOG_BURST, LOG_INTERVAL).into(),
            stderr: LineBucket::new(STDERR_BURST, STDERR_INTERVAL).into(),
            stderr_log: ServerLines::default(),
            dropped: Notify::new(),
            list_notes: Mutex::default(),
        }
    }

    pub(super) fn with_stderr_log(self, stderr_log: ServerLines) -> Self {
        Self { stderr_log, ..self }
    }

    /// Stores a stderr line, whose end may have been `cut`. Never blocks.
    pub(super) fn keep_stderr(&self, words: &[u8], cut: bool) {
        self.stderr_log.keep(&self.secrets, words, cut);
    }

    /// Excerpt of the server's output: one line, printable, bounded, without secrets.
    pub(super) fn quote(&self, words: impl AsRef<[u8]>) -> Arc<str> {
        self.secrets.quote(words.as_ref())
    }

    /// Text of the server with secrets masked.
    pub(super) fn masked(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.secrets.mask(text.as_bytes(), false)).into_owned()
    }

    /// Tools omitted from the server's last list.
    pub(super) fn list_notes(&self) -> ListNotes {
        self.list_notes.lock().clone()
    }

    /// Replaces the record of omitted tools by that of a new list.
    pub(super) fn keep_list_notes(&self, notes: ListNotes) {
        *self.list_notes.lock() = notes;
    }

    /// Takes a token from the log budget. If there is none, counts the line to report it later.
    pub(super) fn may_log(&self) -> bool {
        self.take(&self.log)
    }

    /// Takes a token from the stderr budget. If there is none, counts the line.
    pub(super) fn may_log_stderr(&self) -> bool {
        self.take(&self.stderr)
    }

    fn take(&self, bucket: &Mutex<LineBucket>) -> bool {
        let taken = bucket.lock().take(Instant::now());
        if !taken {
            self.dropped.notify_one();
        }
        taken
    }

    /// Logs the number of dropped lines when a flood has ended, or every [`REPORT_INTERVAL`]. Never returns.
    pub(super) async fn report_dropped(&self) {
        loop {
            self.dropped.notified().await;
            let flood = async {
                while tokio::time::timeout(FLOOD_END, self.dropped.notified()).await.is_ok() {}
            };
            let _ = tokio::time::timeout(REPORT_INTERVAL, flood).await;
            let (log, stderr) = (self.log.lock().missed(), self.stderr.lock().missed());
            tracing::warn!(server = %self.name, log, stderr, "log lines about the server were dropped");
        }
    }
}

#[cfg(test)]
impl Default for ServerLog {
    /// Log of a server whose config contains no secrets.
    fn default() -> Self {
        Self::new("s".into(), Arc::default())
    }
}
