//! Shared startup code of commands: loading the config, starting a proxy in this process, and errors with an exit code
//! and the next step.
//!
//! Also contains the private temporary directory that is removed when a command ends, even on a signal.

use crate::args::Global;
use crate::error::{CommandError, Exit};
use crate::logging;
use crate::logging::Log;
use crate::terminal_safe::joined;
use mcpproxy_activity::{Activity, StoreError};
use mcpproxy_config::file::{self, API_KEY_BYTES, Loaded};
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::{Config, Flags, Logging};
use mcpproxy_fleet::JoinError;
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_runtime::os::private;
use mcpproxy_server as server;
use mcpproxy_server::StartError;
use mcpproxy_upstream::reaper;
use nix::errno::Errno;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc;
use std::{fs, io, thread};

/// Error for a proxy that cannot start.
pub(super) fn not_started(error: &StartError) -> CommandError {
    match error {
        StartError::Activity(error) => store(error),
        StartError::HostCheck(_)
        | StartError::Rules(_)
        | StartError::Tls(_)
        | StartError::FleetConfigRefused { .. } => CommandError::new(Exit::Config, error),
        StartError::FactsUnavailable(_) | StartError::FleetConfigAway { .. } => {
            CommandError::new(Exit::Unreachable, error)
        }
        StartError::Fleet(JoinError::Activity(error)) => store(error),
        StartError::Fleet(JoinError::Refused(_)) => CommandError::new(Exit::Config, error),
        StartError::Fleet(JoinError::Store { .. }) => CommandError::new(Exit::Unreachable, error),
        StartError::Fleet(JoinError::Folder { error: cause, .. }) => {
            CommandError::new(Exit::Failed, format!("{error}: {}", after_disk_failure(cause)))
        }
        StartError::Facts(_)
        | StartError::Folder { .. }
        | StartError::Results { .. }
        | StartError::System(_) => CommandError::failed(error),
    }
}

/// Next step if the log is damaged.
const SALVAGE: &str = "it is left unchanged; `mcpproxy serve --salvage` moves it aside and continues with the readable part";

/// Error for a log that cannot be opened or closed.
pub(super) fn store(error: &StoreError) -> CommandError {
    not_usable(error, SALVAGE)
}

/// Beginning of each message about a damaged log.
const DAMAGED: &str = "the activity log is damaged: ";

/// Gives an error about a damaged log, which a running proxy or a reader of this process found, its exit code and next
/// step. Other errors are unchanged.
pub(super) fn of_damaged_log(failure: CommandError, next: &str) -> CommandError {
    let Some(at) = failure.message.find(DAMAGED).filter(|_| failure.exit != Exit::Store) else {
        return failure;
    };
    // The end of a broken export repeats the message as JSON.
    let what = failure.message.get(at..).unwrap_or_default();
    let what = what.split_once(": {").map_or(what, |(what, _)| what);
    let message = format!("{what}: {next}");
    CommandError { exit: Exit::Store, message, ..failure }
}

/// Like [`of_damaged_log`], for a command that read the copy of the log in `scratch`.
pub(super) fn of_copied_log(failure: CommandError, scratch: &Path, log: &Path) -> CommandError {
    let [copy, log] = [&*Activity::copy_below(scratch), log].map(|path| path.display().to_string());
    let message = failure.message.replace(&copy, &log);
    of_damaged_log(CommandError { message, ..failure }, SALVAGE)
}

/// Next step for damage that a running proxy reports.
pub(super) const STOP_AND_SALVAGE: &str = "the rest is readable; to repair it, stop the running mcpproxy, then run `mcpproxy serve --salvage`";

/// Error for a damaged log that cannot be salvaged.
pub(super) fn not_salvaged(error: &StoreError) -> CommandError {
    not_usable(
        error,
        "it is left unchanged; copy its folder to a healthy disk with `cp -a`, and run \
         `mcpproxy serve --salvage` there with --data-dir",
    )
}

fn not_usable(error: &StoreError, if_damaged: &str) -> CommandError {
    let (exit, next) = match error {
        StoreError::Locked => (
            Exit::Store,
            "if mcpproxy is shutting down, or a command such as `upstream add` is under way, try again; if mcpproxy runs \
             at another address, set MCPPROXY_LISTEN to it; otherwise use another --data-dir",
        ),
        StoreError::Damaged { .. } => (Exit::Store, if_damaged),
        StoreError::Io(error) | StoreError::File { error, .. } => {
            (Exit::Failed, after_disk_failure(error))
        }
    };
    CommandError::new(exit, format!("{error}: {next}"))
}

/// Next step after a disk error.
pub(super) fn after_disk_failure(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free disk space, and restart mcpproxy"
        }
        ErrorKind::PermissionDenied => "run mcpproxy as the user who owns the log",
        ErrorKind::ReadOnlyFilesystem => "remount the disk writable, or use another --data-dir",
        _ if error.raw_os_error() == Some(Errno::EIO as i32) => {
            "check the disk (kernel log, smartctl) before you restart mcpproxy, then check the log \
             with `mcpproxy activity verify`"
        }
        _ => "`mcpproxy doctor` checks folders, disk and log",
    }
}

/// Starts logging as configured.
pub(super) fn start_log(config: Logging, global: &Global) -> Log {
    logging::start(config.level.as_str(), config.format, global.color)
}

/// Logs the config's warnings.
pub(super) fn note_warnings(loaded: &Loaded) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
}

/// Random bytes for an API key.
pub(super) fn random_key() -> Result<[u8; API_KEY_BYTES], CommandError> {
    let mut random = [0; API_KEY_BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        CommandError::failed(format!("no random bytes available for an API key: {error}"))
    })?;
    Ok(random)
}

/// Starts up a command that prints results: loads the config, prints its warnings to stderr, and starts the log.
pub(super) fn load_with_log(global: &Global) -> Result<(Loaded, Log), CommandError> {
    let loaded = load(global, None)?;
    let log = logging::start_quiet(global);
    for warning in &loaded.warnings {
        logging::print_line(format_args!("warning: {}", joined(&warning.to_string())));
    }
    Ok((loaded, log))
}

/// Data directory named by an invalid config.
pub(super) fn data_dir(global: &Global) -> PathBuf {
    let file = file::locate(global.config.as_deref(), &variable).ok();
    let text = file.and_then(|file| file::text(&file).ok()).unwrap_or_default();
    file::data_dir_in(&text, &variable, &flags(global, None))
}

/// Reads the config as `serve` would: file, environment, flags. If a file is named, it must exist.
pub(super) fn load(global: &Global, listen: Option<&str>) -> Result<Loaded, CommandError> {
    named_file_exists(global)?;
    load_or_default(global, listen)
}

/// Maximum number of files searched for a similar name.
const MAX_SIBLINGS: usize = 1000;

/// Refuses a named config file that does not exist, because only `init` creates one.
pub(super) fn named_file_exists(global: &Global) -> Result<(), CommandError> {
    let Some(path) = &global.config else { return Ok(()) };
    let is_absent = |path: &Path| {
        fs::metadata(path).is_err_and(|error| {
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        })
    };
    if !is_absent(path) {
        return Ok(());
    }
    let suggestion = match nearest_file(path) {
        Some(suggestion) => format!(": did you mean {}?", suggestion.display()),
        None => String::new(),
    };
    Err(CommandError::new(
        Exit::Config,
        format!(
            "config file {} does not exist{suggestion} (only `mcpproxy init` creates one)",
            path.display()
        ),
    ))
}

/// The existing file with the most similar name in the same folder, or the one with the same name in the most similar
/// folder.
fn nearest_file(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let nearest_in = |folder: &Path, name: &str, is_wanted: fn(&Path) -> bool| {
        let entries = fs::read_dir(folder).ok()?.flatten().take(MAX_SIBLINGS);
        let entries = entries.filter(|entry| is_wanted(&entry.path()));
        let names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let found = nearest(name, names.iter().map(String::as_str))?;
        Some(folder.join(found))
    };
    if folder.is_dir() {
        return nearest_in(folder, name, Path::is_file);
    }
    let near = nearest_in(folder.parent()?, folder.file_name()?.to_str()?, Path::is_dir)?;
    Some(near.join(name)).filter(|path| path.is_file())
}

/// Like [`load`], but uses the defaults if a named file does not exist. Used by `init`, which creates the file.
pub(super) fn load_or_default(
    global: &Global,
    listen: Option<&str>,
) -> Result<Loaded, CommandError> {
    Config::load(global.config.as_deref(), &variable, &flags(global, listen)).map_err(unusable)
}

/// Flags that override the config.
pub(super) fn flags(global: &Global, listen: Option<&str>) -> Flags {
    Flags {
        listen: listen.map(str::to_owned),
        data_dir: global.data_dir.clone(),
        log_level: global.log_level.clone(),
        reaper: reaper::this_program(),
    }
}

/// Error for an invalid config, with exit code 5 and all problems.
pub(super) fn unusable(problems: Vec<Problem>) -> CommandError {
    let errors = problems.iter().filter(|it| it.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    CommandError { problems, ..CommandError::new(Exit::Config, errors.join("; ")) }
}

/// Refuses to change a config file that a fleet's config overrides.
pub(super) fn refuse_for_fleet(loaded: &Loaded) -> Result<(), CommandError> {
    match loaded.config.fleet_config {
        None => Ok(()),
        Some(_) => Err(CommandError::failed(
            "this node runs its fleet's config: change it with `mcpproxy fleet apply`",
        )),
    }
}

/// Error for a single config problem, with exit code 5.
pub(super) fn problem(error: &Problem) -> CommandError {
    CommandError::new(Exit::Config, error)
}

/// Reads an environment variable.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Exit code after SIGINT, as shells report it.
const INTERRUPTED: i32 = 130;

/// Private temporary directory, removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates a directory; `what` becomes part of its name.
    pub(super) fn new(what: &str) -> Result<Self, CommandError> {
        let folder = name(what)?;
        Self::create(folder)
    }

    fn create(folder: PathBuf) -> Result<Self, CommandError> {
        private::new_folder(&folder)
            .map_err(|error| CommandError::failed(format!("{}: {error}", folder.display())))?;
        Ok(Self(folder))
    }

    /// Creates a directory that SIGINT and SIGTERM remove before they end the process. For commands that need no other
    /// cleanup.
    pub(super) fn watched(what: &str) -> Result<Self, CommandError> {
        let folder = name(what)?;
        let (listens, listening) = mpsc::sync_channel(1);
        let removed = folder.clone();
        // The thread ends with the process.
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let Ok(runtime) = server::local_runtime() else { return };
                let ended = runtime.block_on(async {
                    let mut ended = pin!(server::ended_by_signal());
                    // The first poll installs the signal handlers.
                    let first = futures_util::poll!(&mut ended);
                    let _ = listens.send(());
                    match first {
                        std::task::Poll::Ready(ended) => ended,
                        std::task::Poll::Pending => ended.await,
                    }
                });
                if ended.is_ok() {
                    let _ = std::fs::remove_dir_all(&removed);
                    std::process::exit(INTERRUPTED);
                }
            })
            .map_err(CommandError::failed)?;
        // If the signal thread cannot start, the directory is left to the system.
        let _ = listening.recv();
        Self::create(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // The system clears its temporary directory eventually.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Unpredictable path of a temporary directory.
fn name(what: &str) -> Result<PathBuf, CommandError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(CommandError::failed)?;
    let random = u64::from_ne_bytes(random);
    Ok(std::env::temp_dir().join(format!("mcpproxy-{what}-{random:016x}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn damage_has_its_exit_code_and_next_step() {
        let (scratch, log) = (Path::new("/tmp/read-1"), Path::new("/data/activity"));
        let copy = Activity::copy_below(scratch).display().to_string();
        let failure =
            CommandError::failed(format!("{DAMAGED}{copy}/db/5: a checksum does not match"));
        let shown = of_copied_log(failure, scratch, log);
        let message = format!("{DAMAGED}/data/activity/db/5: a checksum does not match: {SALVAGE}");
        assert_eq!((shown.exit, shown.message), (Exit::Store, message));
        let broken =
            format!("the response ended early: {DAMAGED}/a/5: x: {{\"error\":\"{DAMAGED}/a/5\"}}");
        let shown = of_damaged_log(CommandError::failed(broken), "stop");
        assert_eq!(
            (shown.exit, &*shown.message),
            (Exit::Store, "the activity log is damaged: /a/5: x: stop")
        );
        let other = CommandError::failed("not found");
        assert_eq!(of_copied_log(other.clone(), scratch, log), other);
        let known = store(&StoreError::Damaged { file: "a".into(), why: "x".into() });
        assert_eq!(of_copied_log(known.clone(), scratch, log), known);
    }

    #[test]
    fn cfg_1_missing_named_config_file_is_an_error_that_names_a_similar_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("conf")).unwrap();
        fs::write(at("conf/mcp_config.json"), "{}").unwrap();
        let refused = |name: &str| {
            let words = ["mcpproxy", "-c", at(name).to_str().unwrap(), "status"].map(str::to_owned);
            let global = crate::args::Cli::try_parse_from(words).unwrap().global;
            load(&global, None).map(|_| ()).map_err(|error| (error.exit, error.message))
        };
        assert_eq!(refused("conf/mcp_config.json"), Ok(()));
        let meant = format!("did you mean {}?", at("conf/mcp_config.json").display());
        for mistyped in ["conf/mcp_confg.json", "cnf/mcp_config.json"] {
            let (exit, message) = refused(mistyped).unwrap_err();
            assert_eq!(exit, Exit::Config);
            assert!(message.contains("does not exist") && message.contains(&meant), "{message}");
            assert!(!at("cnf").exists(), "nothing is created");
        }
        let (_, message) = refused("else/where/entirely.json").unwrap_err();
        assert!(
            message.ends_with("does not exist (only `mcpproxy init` creates one)"),
            "{message}"
        );
    }

    #[test]
    fn act_9_unusable_store_is_exit_4() {
        let locked = not_started(&StartError::Activity(StoreError::Locked));
        let damaged = StoreError::Damaged { file: "a/b.jnl".into(), why: "bad block".into() };
        let damaged = not_started(&StartError::Activity(damaged));
        assert_eq!((locked.exit, damaged.exit), (Exit::Store, Exit::Store));
        assert!(damaged.message.contains("a/b.jnl"), "{damaged:?}");
    }

    #[test]
    fn disk_error_names_file_and_next_step() {
        let failed = |code| {
            let error = io::Error::from_raw_os_error(code);
            store(&StoreError::File { file: "a/head".into(), error })
        };
        for (code, next) in [
            (Errno::EIO as i32, "check the disk"),
            (Errno::ENOSPC as i32, "free disk space"),
            (Errno::EACCES as i32, "as the user who owns"),
            (Errno::EROFS as i32, "remount the disk"),
            (Errno::EMFILE as i32, "`mcpproxy doctor`"),
        ] {
            let failed = failed(code);
            assert_eq!(failed.exit, Exit::Failed);
            let message = &failed.message;
            assert!(message.contains("a/head: ") && message.contains(next), "{message}");
        }
        let damaged = StoreError::Damaged { file: "a/head".into(), why: "x".into() };
        assert!(store(&damaged).message.contains("`mcpproxy serve --salvage` moves it aside"));
        assert!(not_salvaged(&damaged).message.contains("`cp -a`"));
    }
}
