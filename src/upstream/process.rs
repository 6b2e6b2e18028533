//! A child process and everything it starts: one process group, and what has left it, gone when it
//! is to be gone.
//!
//! Owns starting and stopping. What is said over the pipes is not known here. Who
//! ends it when this process is killed is [`super::reaper`].

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout_at};

use super::reaper::Reaper;
use crate::os::marked;

mod stderr;

pub(super) use stderr::{LastWords, drain_stderr};

/// Time a child has to end by itself once its input is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// Time its group then has to end after SIGTERM, before SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How often a group is looked for while it is ending.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Most times that it is looked for.
const SEARCHES: u32 = 25;

/// How often what has left the group is looked for: every process there is is looked at.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);

/// A running child, leader of its own process group. Dropped, it takes the group with it.
#[derive(Debug)]
pub(super) struct Process {
    child: Box<dyn ChildWrapper>,
    group: Pid,
    /// Whatever it starts carries this.
    mark: Arc<str>,
    reaper: Arc<Reaper>,
    stopped: bool,
}

/// The child's ends.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Process {
    /// Starts a command. The error is one line that names it.
    pub(super) fn start(
        reaper: &Arc<Reaper>,
        command: &str,
        args: &[String],
        env: &[(String, String)],
        cwd: Option<&Path>,
    ) -> Result<(Self, Pipes), String> {
        let mark = reaper.mark();
        let mut wrap = CommandWrap::with_new(OsStr::new(command), |it| {
            for name in reaper.withheld() {
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
        reaper.enter(group);
        let (mark, reaper) = (mark.into(), Arc::clone(reaper));
        let process = Self { child, group, mark, reaper, stopped: false };
        Ok((process, Pipes { stdin, stdout, stderr }))
    }

    /// How the leader ended, in one line, if it does so until the deadline.
    pub(super) async fn ended(&mut self, deadline: Instant) -> Option<String> {
        let status = timeout_at(deadline, self.child.wait()).await.ok()?;
        Some(match status {
            Ok(status) => format!("the process ended with {status}"),
            Err(error) => format!("the process cannot be waited for: {error}"),
        })
    }

    /// Ends the group, and what has left it: its input is closed already. Waits, asks, then kills;
    /// the deadline shortens the waits, not the killing.
    pub(super) async fn stop(mut self, deadline: Instant) {
        self.ended(deadline.min(Instant::now() + CLOSE_GRACE)).await;
        if self.signal(Signal::SIGTERM) {
            let until = deadline.min(Instant::now() + TERM_GRACE);
            // Waiting reaps the leader, else its remains would keep the group alive.
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
        self.reaper.leave(self.group);
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

    /// Sends a signal to what carries the mark; how many there are.
    async fn signal_strays(&self, signal: Signal) -> usize {
        let mark = Arc::clone(&self.mark);
        // Reads files for every process of the machine.
        let strays = tokio::task::spawn_blocking(move || {
            let strays = marked::find(&mark);
            for stray in &strays {
                let _ = kill(*stray, signal);
            }
            strays.len()
        });
        strays.await.unwrap_or_default()
    }

    /// Sends a signal to the group; false when there is none any more.
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
            self.reaper.leave(self.group);
        }
    }
}
