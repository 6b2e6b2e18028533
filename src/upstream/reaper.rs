//! What ends the children when this process cannot: a small process beside it that outlives it.
//!
//! Owns both sides. The proxy tells its reaper the process group of each child, over a socket that
//! closes with the proxy, however that ends: then the reaper ends the groups, and what carries the
//! proxy's mark ([`marked`]) beside them, and itself. `PR_SET_PDEATHSIG` would not do: it has to be
//! set between fork and exec, tells the child alone, and tells it when the thread ends that started
//! it. How a child is ended while the proxy lives is `process`'s business.
//!
//! ```text
//! proxy ── "+group" "-group" ──▶ reaper         kill -9 proxy: the socket closes
//!   └──── starts ──▶ children ◀── SIGTERM, SIGKILL ──┘
//! ```

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::{Mutex, MutexGuard};

use super::child_environment::WithheldVariables;
use crate::os::marked;

/// The argument that makes this program a reaper.
const REAPER: &str = "reap-children";
/// Time that children have to end by themselves once the proxy is gone: their input has closed.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Time that they then have after SIGTERM.
const TERM_GRACE: Duration = Duration::from_millis(1500);
/// Longest time that what starts new processes all the while is killed again.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether anything is left.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for the reaper's end when the proxy ends in order; it ends by itself after.
pub const END_LIMIT: Duration = Duration::from_secs(1);
/// Longest line that a reaper is told.
const MAX_LINE_BYTES: usize = 32;

/// The proxy's side of its reaper. It is started before the first child.
pub struct Reaper {
    /// The program that can be one; without, children end with the proxy only if it ends in order.
    program: Option<PathBuf>,
    /// Begins the marks of all children.
    token: String,
    started: AtomicU64,
    state: Mutex<State>,
    withheld: Mutex<WithheldVariables>,
}

#[derive(Default)]
struct State {
    running: Option<(Child, UnixStream)>,
    groups: BTreeSet<i32>,
    /// That there is none was told.
    told: bool,
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("program", &self.program).finish_non_exhaustive()
    }
}

/// This program, as one that can be a reaper: wherever its file is by now.
#[must_use]
pub fn this_program() -> Option<PathBuf> {
    let here = Path::new("/proc/self/exe");
    if here.exists() { Some(here.to_owned()) } else { std::env::current_exe().ok() }
}

impl Reaper {
    /// A reaper that is not started yet.
    #[must_use]
    pub fn new(program: Option<PathBuf>) -> Self {
        let token = format!("{:016x}", getrandom::u64().unwrap_or_default());
        Self {
            program,
            token,
            started: AtomicU64::new(0),
            state: Mutex::default(),
            withheld: Mutex::default(),
        }
    }

    /// Children that are started from now on do not get these of our variables.
    pub fn withhold(&self, variables: WithheldVariables) {
        *self.withheld.lock() = variables;
    }

    /// The names of ours that a child does not get.
    pub(super) fn withheld(&self) -> Vec<OsString> {
        self.withheld.lock().among(std::env::vars_os().map(|(name, _)| name))
    }

    /// A mark for one child and all that it starts. The reaper runs when this returns, so that
    /// there is no moment in which the child could be left behind.
    pub(super) fn mark(&self) -> String {
        self.tell(&mut self.state(), "");
        format!("{}.{}.", self.token, self.started.fetch_add(1, Ordering::Relaxed))
    }

    /// The group is to end with the proxy.
    pub(super) fn enter(&self, group: Pid) {
        let mut state = self.state();
        state.groups.insert(group.as_raw());
        self.tell(&mut state, &format!("+{group}\n"));
    }

    /// The group has ended.
    pub(super) fn leave(&self, group: Pid) {
        let mut state = self.state();
        if state.groups.remove(&group.as_raw()) {
            self.tell(&mut state, &format!("-{group}\n"));
        }
    }

    /// Kills all groups, now.
    pub(super) fn kill(&self) {
        for group in &self.state().groups {
            let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
        }
    }

    /// Ends the reaper, with whatever still carries a mark, and waits for it, bounded.
    pub(super) async fn end(&self) {
        let Some((mut child, pipe)) = self.state().running.take() else { return };
        drop(pipe);
        let until = tokio::time::Instant::now() + END_LIMIT;
        while matches!(child.try_wait(), Ok(None)) && tokio::time::Instant::now() < until {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Tells the reaper; one that has ended is replaced, and told everything.
    fn tell(&self, state: &mut State, line: &str) {
        let Some(program) = &self.program else { return };
        if let Some((_, pipe)) = &mut state.running
            && pipe.write_all(line.as_bytes()).is_ok()
        {
            return;
        }
        if let Some((mut child, _)) = state.running.take() {
            // It has ended, or does not read: then it finds the children by their marks.
            let _ = child.try_wait();
        }
        match start(program, &self.token, &state.groups) {
            Ok(running) => state.running = Some(running),
            Err(error) if !state.told => {
                state.told = true;
                tracing::warn!(%error, "no reaper can be started: should this process be killed, its servers' processes may live on");
            }
            Err(_) => {}
        }
    }
}

fn start(program: &Path, token: &str, groups: &BTreeSet<i32>) -> io::Result<(Child, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    // Lines are few and short: what does not fit into the socket's buffer is read by nobody.
    ours.set_nonblocking(true)?;
    let child = Command::new(program)
        .arg0("mcpproxy")
        .args([REAPER, token])
        .env_clear()
        // The allocator would take two huge pages for a few lines: 4 of its 7 MB.
        .env("MIMALLOC_ALLOW_THP", "0")
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A terminal's signals are not for it.
        .process_group(0)
        .spawn()?;
    let lines: String = groups.iter().map(|group| format!("+{group}\n")).collect();
    ours.write_all(lines.as_bytes())?;
    Ok((child, ours))
}

/// Runs the reaper if that is what the process was started for: to its end.
#[must_use]
pub fn run(typed: &[OsString]) -> Option<ExitCode> {
    let [_, word, token] = typed else { return None };
    if word != REAPER {
        return None;
    }
    // It ends when the proxy has, and not before: also where all of a service's processes are told
    // to end at once.
    let _ = SigSet::all().thread_block();
    let groups = listen(io::stdin().lock());
    let mut left = Left { groups, mark: format!("{}.", token.to_str().unwrap_or_default()) };
    left.end();
    Some(ExitCode::SUCCESS)
}

/// The groups there are when the proxy has gone.
fn listen(input: impl io::Read) -> BTreeSet<i32> {
    let mut input = BufReader::new(input);
    let (mut groups, mut line) = (BTreeSet::new(), String::new());
    loop {
        line.clear();
        let mut bounded = io::Read::take(&mut input, MAX_LINE_BYTES as u64);
        if !matches!(bounded.read_line(&mut line), Ok(1..)) {
            return groups;
        }
        let number = |digits: &str| digits.trim_end().parse().ok().filter(|group| *group > 1);
        match line.split_at_checked(1) {
            Some(("+", group)) => groups.extend(number(group)),
            Some(("-", group)) => {
                number(group).map(|group| groups.remove(&group));
            }
            Some(_) | None => {}
        }
    }
}

/// What the proxy has left behind.
struct Left {
    groups: BTreeSet<i32>,
    mark: String,
}

impl Left {
    fn end(&mut self) {
        if self.has_ended_within(CLOSE_GRACE) {
            return;
        }
        self.signal(Signal::SIGTERM);
        if self.has_ended_within(TERM_GRACE) {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < KILL_LIMIT {
            self.signal(Signal::SIGKILL);
            if self.has_ended_within(LOOK_INTERVAL) {
                return;
            }
        }
    }

    fn has_ended_within(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            self.groups.retain(|group| killpg(Pid::from_raw(*group), None).is_ok());
            if self.groups.is_empty() && marked::find(&self.mark).is_empty() {
                return true;
            }
            if began.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn signal(&self, signal: Signal) {
        for group in &self.groups {
            let _ = killpg(Pid::from_raw(*group), signal);
        }
        for process in marked::find(&self.mark) {
            let _ = kill(process, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaper_knows_the_groups_that_have_not_ended() {
        let told =
            b"+12\n+13\n-12\nnonsense\n+1\n+-5\n+14 \n+99999999999999999999999999999999999\n+15";
        assert_eq!(listen(&told[..]), BTreeSet::from([13, 14, 15]));
    }

    #[test]
    fn what_leaves_its_group_is_found_by_its_mark_and_ended() {
        let reaper = Reaper::new(None);
        let mark = reaper.mark();
        let child = Command::new("setsid")
            .args(["sh", "-c", "trap '' TERM; echo; while :; do sleep 60; done"])
            .env(marked::VARIABLE, format!("outer {mark}"))
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert!(!marked::find(&mark).is_empty());
        assert!(marked::find(&Reaper::new(None).mark()).is_empty(), "another proxy's");
        let mut left = Left { groups: BTreeSet::new(), mark: format!("{}.", reaper.token) };
        left.end();
        assert!(marked::find(&mark).is_empty());
        assert!(!child.wait().unwrap().success());
    }
}
