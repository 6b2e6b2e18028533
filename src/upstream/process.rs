//! Child processes: starting and stopping a process group, including processes that left the group, and draining
//! stderr.
//!
//! If this process is killed, the [`crate::reaper`] ends the children.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::ChildCommand;
use crate::reaper::Reaper;
use crate::server_log::ServerLog;
use mcpproxy_protocol::wire::lines::{Decoder, Item};
use mcpproxy_runtime::os::marked;

/// Time for a child to exit once its input is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// Time for the child's group to exit after SIGTERM, before SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// Poll interval while a group is ending.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of searches for stray processes.
const SEARCHES: u32 = 25;

/// Interval between searches; each scans all processes.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);

/// Running child, leader of its own process group. Kills the group on drop.
#[derive(Debug)]
pub(super) struct Process {
    child: Box<dyn ChildWrapper>,
    group: Pid,
    /// Environment marker that all descendants inherit.
    mark: Arc<str>,
    reaper: Arc<Reaper>,
    stopped: bool,
}

pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Process {
    /// Starts a command. The error is one line that contains the command.
    pub(super) fn start(
        reaper: &Arc<Reaper>,
        child: &ChildCommand,
    ) -> Result<(Self, Pipes), String> {
        let ChildCommand { command, args, env, cwd, named } = child;
        let mark = reaper.mark();
        let mut wrap = CommandWrap::with_new(OsStr::new(command), |it| {
            for name in reaper.withheld(named) {
                it.env_remove(name);
            }
            it.args(args)
                .env(marked::VARIABLE, marked::value(&mark))
                .envs(env.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true);
            if let Some(cwd) = cwd {
                it.current_dir(cwd);
            }
        });
        wrap.wrap(ProcessGroup::leader());
        let mut child = wrap
            .spawn()
            .map_err(|error| format!("command {command} cannot be started: {error}"))?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take());
        let (Some(id), (Some(stdin), Some(stdout), Some(stderr))) = (id, pipes) else {
            return Err(format!("command {command} ended before it could be used"));
        };
        let group = Pid::from_raw(id);
        reaper.register(group);
        let (mark, reaper) = (mark.into(), Arc::clone(reaper));
        let process = Self { child, group, mark, reaper, stopped: false };
        Ok((process, Pipes { stdin, stdout, stderr }))
    }

    /// Waits for the leader until the deadline. Returns a description of its exit status.
    pub(super) async fn ended(&mut self, deadline: Instant) -> Option<String> {
        let status = timeout_at(deadline, self.child.wait()).await.ok()?;
        Some(match status {
            Ok(status) => format!("the process ended with {status}"),
            Err(error) => format!("failed to wait for the process: {error}"),
        })
    }

    /// Ends the group and stray processes after the input was closed: waits, sends SIGTERM, then SIGKILL. The deadline
    /// only shortens the waits.
    pub(super) async fn stop(mut self, deadline: Instant) {
        self.ended(deadline.min(Instant::now() + CLOSE_GRACE)).await;
        if self.signal(Signal::SIGTERM) {
            let until = deadline.min(Instant::now() + TERM_GRACE);
            // Reaps the leader, which would keep the group alive as a zombie.
            self.ended(until).await;
            while self.alive() && Instant::now() < until {
                sleep(LOOK_INTERVAL).await;
            }
            if self.alive() {
                self.signal(Signal::SIGKILL);
                self.ended(Instant::now() + TERM_GRACE).await;
            }
        }
        self.stopped = true;
        self.reaper.unregister(self.group);
        let until = deadline.min(Instant::now() + TERM_GRACE);
        let mut signal = Signal::SIGTERM;
        for _ in 0..SEARCHES {
            if self.signal_strays(signal).await == 0 {
                break;
            }
            let late = Instant::now() >= until;
            signal = if late { Signal::SIGKILL } else { Signal::SIGTERM };
            sleep(if late { LOOK_INTERVAL } else { SEARCH_INTERVAL }).await;
        }
    }

    /// Signals all processes with the mark; returns the number of processes.
    async fn signal_strays(&self, signal: Signal) -> usize {
        let mark = Arc::clone(&self.mark);
        // Reads files of every process.
        let strays = tokio::task::spawn_blocking(move || {
            let strays = marked::find(&mark);
            for stray in &strays {
                let _ = kill(*stray, signal);
            }
            strays.len()
        });
        strays.await.unwrap_or_default()
    }

    /// Signals the group; returns false if it no longer exists.
    fn signal(&self, signal: Signal) -> bool {
        killpg(self.group, signal).is_ok()
    }

    fn alive(&self) -> bool {
        killpg(self.group, None).is_ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.stopped {
            self.signal(Signal::SIGKILL);
            self.reaper.unregister(self.group);
        }
    }
}

/// Maximum retained length of a stderr line, in bytes.
const STDERR_LINE_BYTES: u64 = 4096;

/// Number of last stderr lines that are searched for the reason for a failure.
const RECENT_LINES: usize = 32;

/// Last stderr lines of a child, at most [`RECENT_LINES`].
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentStderr(Arc<Mutex<VecDeque<Arc<str>>>>);

impl RecentStderr {
    fn push(&self, line: Arc<str>) {
        let mut lines = self.0.lock();
        if lines.len() >= RECENT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Line that most likely states why the child failed; `None` if there are no lines.
    pub(crate) fn cause(&self) -> Option<StderrCause> {
        let lines = self.0.lock();
        let last = lines.back()?;
        let rated = lines.iter().map(|line| (error_rank(line), line));
        let best = rated.enumerate().filter(|(_, (rank, _))| *rank > 0);
        // If there are several errors, the last one usually caused the exit. A package manager, however, states the
        // relevant error first.
        let best = best.max_by_key(|(at, (rank, _))| match *rank {
            PACKAGE_MANAGER => (PACKAGE_MANAGER, lines.len() - at),
            rank => (rank, *at),
        });
        let line = best.map_or(last, |(_, (_, line))| line).trim().to_owned();
        Some(StderrCause { line, states_error: best.is_some() })
    }
}

/// A child's stderr line that is reported with the reason for a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StderrCause {
    pub(crate) line: String,
    /// Whether the line states an error. If none does, it is the last line.
    pub(crate) states_error: bool,
}

/// Rank of a package manager's line, see [`error_rank`].
const PACKAGE_MANAGER: u8 = 2;

/// Rank that expresses how clearly a line states an error; 0 if the line states none.
fn error_rank(line: &str) -> u8 {
    const CAUSE: u8 = 4;
    const STATEMENT: u8 = 3;
    const MENTION: u8 = 1;
    let lower = line.trim().to_ascii_lowercase();
    // uv states the error first, and then its causes.
    if lower.starts_with("cause: ") || lower.starts_with("╰─▶ ") {
        return CAUSE;
    }
    if let Some(rest) = lower.strip_prefix("npm error").or_else(|| lower.strip_prefix("npm err!")) {
        let rest = rest.trim();
        let says_nothing = ["code ", "errno ", "syscall ", "path ", "a complete log"];
        let is_detail = says_nothing.iter().any(|word| rest.starts_with(word));
        return if rest.contains(' ') && !is_detail { PACKAGE_MANAGER } else { 0 };
    }
    // Matches `Error: …`, `TypeError [CODE]: …`, `requests.exceptions.ConnectionError: …`, `fatal: …`.
    let head = lower.split([':', ' ']).next().unwrap_or_default();
    let is_kind = ["error", "exception", "fatal", "panic"].iter().any(|word| head.ends_with(word));
    let states = is_kind && lower.get(head.len()..).is_some_and(|rest| rest.contains(':'));
    if states || lower.contains("panicked at") || lower.starts_with("error ") {
        return STATEMENT;
    }
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let mentions = |word: &str| matches!(word, "error" | "fatal" | "exception" | "failed");
    // A stack trace frame names functions, not errors.
    let is_frame = lower.starts_with("at ") || lower.starts_with("file \"");
    if !is_frame && words.into_iter().any(mentions) { MENTION } else { 0 }
}

/// Reads stderr to its end: stores the lines, logs them at debug level, and remembers the last ones to find the reason
/// for a failure.
pub(crate) async fn drain_stderr(
    server_log: Arc<ServerLog>,
    mut stderr: impl AsyncRead + Unpin,
    recent: RecentStderr,
) {
    let mut buffer = BytesMut::with_capacity(8 * 1024);
    let mut lines = Decoder::new(STDERR_LINE_BYTES);
    let mut line = Vec::new();
    loop {
        buffer.reserve(4 * 1024);
        if !matches!(stderr.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
        lines.push(buffer.split().freeze());
        loop {
            match lines.next_item() {
                Ok(Some(Item::Data(part))) => line.extend_from_slice(&part),
                Ok(None) => break,
                // The beginning of an overlong line is sufficient.
                whole @ (Ok(Some(Item::End)) | Err(_)) => {
                    server_log.keep_stderr(&line, whole.is_err());
                    let line_text = server_log.secrets.quote_cut(&line, whole.is_err());
                    line.clear();
                    if server_log.may_log_stderr() {
                        tracing::debug!(server = %server_log.name, line = %line_text, "stderr");
                    }
                    if !line_text.is_empty() {
                        recent.push(line_text);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_runtime::secrets::Secrets;

    fn cause(line: &str, states_error: bool) -> Option<StderrCause> {
        Some(StderrCause { line: line.to_owned(), states_error })
    }

    #[tokio::test]
    async fn stderr_flood_is_read_to_its_end() {
        let recent = RecentStderr::default();
        let mut flood = vec![b'x'; 3_000_000];
        flood.extend_from_slice(b"\nlast line\x07\n\n");
        drain_stderr(Arc::default(), flood.as_slice(), recent.clone()).await;
        assert_eq!(recent.cause(), cause("last line", false));
    }

    #[test]
    fn reason_is_the_line_that_states_the_error() {
        for (text, expected, states_error) in [
            (
                "error: No solution found when resolving tool dependencies\n  cause: Because x was not found\nnote: y",
                "cause: Because x was not found",
                true,
            ),
            (
                "  × No solution found when resolving tool dependencies:\n  ╰─▶ Because x was not found",
                "╰─▶ Because x was not found",
                true,
            ),
            (
                "node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\nError: Cannot find module '/x'\n    \
                 at Module._load (node:internal/errors:1)\n  code: 'MODULE_NOT_FOUND',\n}\n\nNode.js v20.20.2",
                "Error: Cannot find module '/x'",
                true,
            ),
            (
                "TypeError [ERR_INVALID_URL]: Invalid URL\n    at new URL (node:url:1)\n\nNode.js v20.20.2",
                "TypeError [ERR_INVALID_URL]: Invalid URL",
                true,
            ),
            (
                "Traceback (most recent call last):\n  File \"error.py\", line 1\nOSError: first\nDuring handling\n\
                 ModuleNotFoundError: No module named 'x'",
                "ModuleNotFoundError: No module named 'x'",
                true,
            ),
            (
                "npm error code E404\nnpm error 404 Not Found - GET https://packages.example/x\nnpm error 404\n\
                 npm error 404 Note that you can\nnpm error A complete log of this run can be found in: /x",
                "npm error 404 Not Found - GET https://packages.example/x",
                true,
            ),
            (
                "thread 'main' panicked at src/main.rs:2:5: no key\nnote: run with `RUST_BACKTRACE=1`",
                "thread 'main' panicked at src/main.rs:2:5: no key",
                true,
            ),
            ("2026-01-01 ERROR no key set\nshutting down", "2026-01-01 ERROR no key set", true),
            ("starting\nout of luck", "out of luck", false),
            ("reading errors.txt\nbye", "bye", false),
        ] {
            let recent = RecentStderr::default();
            let lines = text.lines().filter(|line| !line.is_empty());
            lines.for_each(|line| recent.push(line.into()));
            assert_eq!(recent.cause(), cause(expected, states_error), "{text}");
        }
        assert_eq!(RecentStderr::default().cause(), None);
    }

    #[test]
    fn old_error_is_not_reported_as_the_reason() {
        let recent = RecentStderr::default();
        recent.push("Error: long ago".into());
        (0..RECENT_LINES).for_each(|number| recent.push(format!("line {number}").into()));
        assert_eq!(recent.cause(), cause(&format!("line {}", RECENT_LINES - 1), false));
    }

    #[tokio::test]
    async fn overlong_line_contains_no_part_of_a_secret() {
        let secrets = Arc::new(Secrets::new(["s3cr3t-token".to_owned()]));
        let server_log = Arc::new(ServerLog::new("s".into(), secrets));
        let recent = RecentStderr::default();
        let rest = [b'x'; STDERR_LINE_BYTES as usize + 1];
        drain_stderr(server_log, b"bad s3cr3t-t".chain(&rest[..]), recent.clone()).await;
        assert_eq!(recent.cause(), cause("bad [redacted]", false));
    }
}
