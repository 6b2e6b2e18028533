//! Reaper: a helper process that outlives this one and ends its children if it is killed.
//!
//! The proxy sends it the process group of each child over a socket. When the socket closes, regardless of how the
//! proxy ended, the reaper ends the groups, all processes with the proxy's mark ([`marked`]), and itself.
//! `PR_SET_PDEATHSIG` is unsuitable: it must be set between fork and exec, affects only the child, and fires when the
//! starting thread ends. [`crate::process`] ends children while the proxy is running.
//!
//! ```text
//! proxy ── "+group" "-group" ──▶ reaper         kill -9 proxy: the socket closes
//!   └──── starts ──▶ children ◀── SIGTERM, SIGKILL ──┘
//! ```
//!
//! [`WithheldVariables`] are removed from the children's environment: credentials of the proxy, and variables that the
//! config uses elsewhere (another server, webhook, OTLP, embeddings). All other variables are inherited, because
//! servers look for their own credentials there, and an entry's `env` always applies.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
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

use mcpproxy_runtime::os::marked;

/// Argument that starts this program as a reaper.
const REAPER: &str = "reap-children";
/// Time for children to exit on their own once the proxy has ended and their input has closed.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Time for children to exit after SIGTERM.
const TERM_GRACE: Duration = Duration::from_millis(1500);
/// Maximum time of repeated kills, if new processes keep appearing.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Poll interval.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait for the reaper on a regular exit of the proxy.
pub const END_LIMIT: Duration = Duration::from_secs(1);
/// Maximum length of a line sent to the reaper.
const MAX_LINE_BYTES: usize = 32;

/// The proxy's side of its reaper. The reaper is started before the first child.
pub struct Reaper {
    /// Program file of this process. Without it, children are ended only on a regular exit.
    program: Option<PathBuf>,
    /// Prefix of all children's marks.
    token: String,
    started: AtomicU64,
    state: Mutex<State>,
    withheld: Mutex<WithheldVariables>,
}

#[derive(Default)]
struct State {
    running: Option<(Child, UnixStream)>,
    groups: BTreeSet<i32>,
    /// Whether a failed start was logged.
    is_logged: bool,
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Path for starting this program again, even if its file was moved.
pub fn this_program() -> Option<PathBuf> {
    let here = Path::new("/proc/self/exe");
    if here.exists() { Some(here.to_owned()) } else { std::env::current_exe().ok() }
}

impl Reaper {
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

    /// Withholds these variables from children started from now on.
    pub fn withhold(&self, variables: WithheldVariables) {
        *self.withheld.lock() = variables;
    }

    /// Names of the proxy's variables that are withheld from a child whose entry refers to `own`.
    pub(super) fn withheld(&self, own: &BTreeSet<String>) -> Vec<OsString> {
        self.withheld.lock().among(std::env::vars_os().map(|(name, _)| name), own)
    }

    /// Creates a mark for one child and its descendants. The reaper is running when this returns, so that every child
    /// is guarded.
    pub(super) fn mark(&self) -> String {
        self.send(&mut self.state(), "");
        format!("{}.{}.", self.token, self.started.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn register(&self, group: Pid) {
        let mut state = self.state();
        state.groups.insert(group.as_raw());
        self.send(&mut state, &format!("+{group}\n"));
    }

    /// Unregisters a group that has ended.
    pub(super) fn unregister(&self, group: Pid) {
        let mut state = self.state();
        if state.groups.remove(&group.as_raw()) {
            self.send(&mut state, &format!("-{group}\n"));
        }
    }

    /// Kills all groups immediately.
    pub(super) fn kill(&self) {
        for group in &self.state().groups {
            let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
        }
    }

    /// Ends the reaper, and all marked processes with it; waits for at most [`END_LIMIT`].
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

    /// Sends a line to the reaper. A reaper that has exited is replaced, and the new one is sent all groups.
    fn send(&self, state: &mut State, line: &str) {
        let Some(program) = &self.program else { return };
        if let Some((_, pipe)) = &mut state.running
            && pipe.write_all(line.as_bytes()).is_ok()
        {
            return;
        }
        if let Some((mut child, _)) = state.running.take() {
            // The reaper has exited or does not read; in the latter case, it finds the children by their marks.
            let _ = child.try_wait();
        }
        match start(program, &self.token, &state.groups) {
            Ok(running) => state.running = Some(running),
            Err(error) if !state.is_logged => {
                state.is_logged = true;
                tracing::warn!(%error, "no reaper process: children may survive if this process is killed");
            }
            Err(_) => {}
        }
    }
}

fn start(program: &Path, token: &str, groups: &BTreeSet<i32>) -> io::Result<(Child, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    // Lines are short and few: if one does not fit into the socket buffer, the reaper is not reading.
    ours.set_nonblocking(true)?;
    let child = Command::new(program)
        .arg0("mcpproxy")
        .args([REAPER, token])
        .env_clear()
        // Otherwise the allocator would use two huge pages for a few lines: 4 of the reaper's 7 MB.
        .env("MIMALLOC_ALLOW_THP", "0")
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Shields the reaper from signals of the terminal.
        .process_group(0)
        .spawn()?;
    let lines: String = groups.iter().map(|group| format!("+{group}\n")).collect();
    ours.write_all(lines.as_bytes())?;
    Ok((child, ours))
}

/// Runs the reaper if this process was started as one.
pub fn run(typed: &[OsString]) -> Option<ExitCode> {
    let [_, word, token] = typed else { return None };
    if word != REAPER {
        return None;
    }
    // The reaper ends only with the proxy, even if all processes of a service are signaled together.
    let _ = SigSet::all().thread_block();
    let groups = listen(io::stdin().lock());
    let mut left = LeftBehind { groups, mark: format!("{}.", token.to_str().unwrap_or_default()) };
    left.end();
    Some(ExitCode::SUCCESS)
}

/// Reads lines until the proxy has ended. Returns the remaining groups.
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

/// Processes left behind by the proxy.
struct LeftBehind {
    groups: BTreeSet<i32>,
    mark: String,
}

impl LeftBehind {
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

/// Admin key, and directory of the service's systemd credentials.
const OURS: [&str; 2] = ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY"];

/// Common variables that contain no secrets and that programs need.
const ORDINARY: [&str; 24] = [
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "NO_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
    "PWD",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "SYSTEMROOT",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "TZ",
    "USER",
    "USERPROFILE",
    "WAYLAND_DISPLAY",
    "WINDIR",
    "no_proxy",
];
/// Name prefixes of other common variables.
const ORDINARY_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// Variables withheld from children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithheldVariables {
    /// Additional names.
    pub names: BTreeSet<String>,
    /// Variables that the config refers to; a server gets only those of its own entry.
    pub named: BTreeSet<String>,
    /// Name prefixes.
    pub prefixes: &'static [&'static str],
}

impl WithheldVariables {
    /// Variables of `environment` to withhold from a server whose entry refers to `own`.
    pub(super) fn among(
        &self,
        environment: impl Iterator<Item = OsString>,
        own: &BTreeSet<String>,
    ) -> Vec<OsString> {
        environment.filter(|name| self.withholds(name, own)).collect()
    }

    fn withholds(&self, name: &OsStr, own: &BTreeSet<String>) -> bool {
        // Names that are not UTF-8 never belong to the proxy.
        name.to_str().is_some_and(|name| {
            OURS.contains(&name)
                || self.names.contains(name)
                || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
                || (self.named.contains(name) && !own.contains(name) && !is_ordinary(name))
        })
    }
}

fn is_ordinary(name: &str) -> bool {
    ORDINARY.contains(&name) || ORDINARY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaper_tracks_groups_that_have_not_ended() {
        let lines =
            b"+12\n+13\n-12\nnonsense\n+1\n+-5\n+14 \n+99999999999999999999999999999999999\n+15";
        assert_eq!(listen(&lines[..]), BTreeSet::from([13, 14, 15]));
    }

    #[test]
    fn process_that_left_its_group_is_found_by_its_mark_and_ended() {
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
        let mut left = LeftBehind { groups: BTreeSet::new(), mark: format!("{}.", reaper.token) };
        left.end();
        assert!(marked::find(&mark).is_empty());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn only_our_own_credentials_are_withheld_from_servers() {
        let all =
            ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY", "AWS_PROFILE", "KEY", "KEYS", "PATH"];
        let withheld =
            |of: &WithheldVariables| of.among(all.iter().map(OsString::from), &BTreeSet::new());
        assert_eq!(
            withheld(&WithheldVariables::default()),
            ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY"]
        );
        let more = WithheldVariables {
            names: ["KEY".to_owned()].into(),
            prefixes: &["AWS_"],
            ..WithheldVariables::default()
        };
        let expected = ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY", "AWS_PROFILE", "KEY"];
        assert_eq!(withheld(&more), expected);
    }

    #[test]
    fn referenced_variable_reaches_only_the_server_that_refers_to_it() {
        let set =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let of = WithheldVariables {
            names: set(&["US"]),
            named: set(&["A_TOKEN", "B_TOKEN", "US", "PATH", "LC_ALL"]),
            ..WithheldVariables::default()
        };
        let all = ["A_TOKEN", "B_TOKEN", "US", "PATH", "LC_ALL", "OTHER_TOKEN"];
        for (own, expected) in [
            (&[][..], &["A_TOKEN", "B_TOKEN", "US"][..]),
            (&["A_TOKEN"], &["B_TOKEN", "US"]),
            (&["A_TOKEN", "B_TOKEN", "US"], &["US"]),
        ] {
            assert_eq!(of.among(all.iter().map(OsString::from), &set(own)), expected, "{own:?}");
        }
    }
}
