//! What is looked at: the config, rights, the clock, the disk, the proxy that runs, the servers.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::runtime::LocalRuntime;

use super::finding::{Diagnosis, DiagnosisKind};
use crate::cli::backend::{Backend, target};
use crate::cli::commands::status::bytes;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output;
use crate::cli::terminal_safe::quoted;
use crate::cli::try_servers::{Tried, try_servers};
use crate::config::file::Loaded;
use crate::config::problem::{Problem, Severity};
use crate::os::{private, space};
use crate::upstream::supervisor::Status;

/// A clock that is before this is wrong: seconds since 1970 at the beginning of 2026.
const NOT_BEFORE: u64 = 1_767_225_600;
/// What was written may be so much newer than now.
const AHEAD: Duration = Duration::from_secs(120);
/// Less room than this is too little to go on.
const TOO_LITTLE: u64 = 100 * 1024 * 1024;
/// Less than this is soon too little.
const LITTLE: u64 = 1024 * 1024 * 1024;
/// The check of what is left of it.
const DISK: &str = "disk";
/// Rights of the data folder.
const MODE: &str = "700";

/// The config, with what this machine lacks of it.
pub(super) fn config(checked: &Result<Loaded, Vec<Problem>>, found: &mut Vec<Diagnosis>) {
    const CHECK: &str = "config";
    let problems = match checked {
        Ok(loaded) => {
            let there = if loaded.path.exists() { "" } else { " (not there: defaults)" };
            let count = loaded.config.servers.len();
            let told = format!("{}{there}: {}", loaded.path.display(), counted(count, "server"));
            found.push(Diagnosis::fine(CHECK, told));
            &loaded.warnings
        }
        Err(problems) => problems,
    };
    for problem in problems {
        // Rights have a check of their own.
        let of_file = problem.file.is_some() && problem.place.is_none();
        match problem.severity {
            Severity::Warning if of_file => {}
            Severity::Warning => {
                found.push(Diagnosis::new(DiagnosisKind::Odd, CHECK, problem.to_string()))
            }
            Severity::Error => {
                let mend = mend(problem);
                found.push(Diagnosis::wrong(CHECK, problem.to_string(), mend));
            }
        }
    }
}

/// What mends an error of the config: the file is edited, or, where it is none that could be, put aside.
fn mend(problem: &Problem) -> String {
    let Some(path) = &problem.file else {
        return format!("mend or unset {}", problem.key);
    };
    let (file, aside) = (path.display().to_string(), format!("{}.aside", path.display()));
    // What no shell can be given as it is, is told as it is.
    let [file, aside] = [&file, &aside].map(|it| quoted(it).unwrap_or(Cow::Borrowed(it.as_str())));
    let can_be_edited = problem.place.is_some()
        || !problem.key.is_empty()
        || fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match can_be_edited {
        true => format!("$EDITOR {file}"),
        // A folder, bytes that are no text, or far too many of them.
        false => format!("mv {file} {aside} && mcpproxy init, or put a backup in its place"),
    }
}

/// What others may read and write.
pub(super) fn rights(loaded: &Loaded, fix: bool, found: &mut Vec<Diagnosis>) {
    const CHECK: &str = "rights";
    let data = &loaded.config.data_dir;
    let entries = fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = [
        "activity",
        "catalog",
        "address",
        "stderr",
        "oauth",
        "tokens",
        "results",
        "fleet",
        "embeddings",
    ];
    let is_ours = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ours.iter().any(|ours| name.starts_with(ours))
    };
    let config = (loaded.path.clone(), "600");
    let folders = std::iter::once(data.clone()).chain(entries.filter(is_ours));
    let folders = folders.map(|path| {
        let mode = if path.is_dir() { MODE } else { "600" };
        (path, mode)
    });
    let before = found.len();
    for (path, mode) in std::iter::once(config).chain(folders) {
        let Some(wide) = private::wider(&path) else { continue };
        let told = format!("others have rights on {} (mode {wide:03o})", path.display());
        let command = format!("chmod {mode} {}", word(&path));
        let mended = fix.then(|| private::mend_alone(&path));
        found.push(match mended {
            Some(Ok(())) if private::wider(&path).is_none() => {
                Diagnosis::new(DiagnosisKind::Mended, CHECK, told)
            }
            Some(Err(error)) => Diagnosis::wrong(CHECK, format!("{told}: {error}"), command),
            Some(Ok(())) | None => Diagnosis::wrong(CHECK, told, command),
        });
    }
    if found.len() == before {
        found.push(Diagnosis::fine(CHECK, "config and data are yours alone"));
    }
}

/// Whether the clock can be right.
pub(super) fn clock(loaded: &Loaded, now: SystemTime) -> Diagnosis {
    const CHECK: &str = "clock";
    const MEND: &str = "timedatectl set-ntp true";
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    if since < NOT_BEFORE {
        return Diagnosis::wrong(CHECK, "the clock is years behind", MEND);
    }
    let files = [loaded.path.clone(), loaded.config.activity_folder()];
    let ahead = files.iter().find(|file| {
        let changed = fs::metadata(file).and_then(|it| it.modified());
        changed.is_ok_and(|changed| changed > now + AHEAD)
    });
    match ahead {
        Some(file) => {
            let told = format!("{} was written in what the clock calls the future", file.display());
            Diagnosis::wrong(CHECK, told, MEND)
        }
        None => {
            let shown = jiff::Timestamp::try_from(now).map(|now| format!("{now:.0}"));
            Diagnosis::fine(CHECK, shown.unwrap_or_default())
        }
    }
}

/// Whether there is room for what is kept.
pub(super) fn disk(loaded: &Loaded) -> Diagnosis {
    let data = &loaded.config.data_dir;
    let there = data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let kept = space::used(&loaded.config.activity_folder());
    match space::free(there) {
        Err(error) => Diagnosis::wrong(DISK, format!("{}: {error}", there.display()), ""),
        Ok(free) => room(free, data, kept),
    }
}

/// Whether so many bytes at `data` are enough beside those that the log takes.
fn room(free: u64, data: &Path, kept: u64) -> Diagnosis {
    const MEND: &str = "make room, or set activity.max_size_mb lower";
    let told = format!("{} free at {}, the log takes {}", bytes(free), data.display(), bytes(kept));
    match free {
        0..TOO_LITTLE => Diagnosis::wrong(DISK, told, MEND),
        TOO_LITTLE..LITTLE => {
            Diagnosis { mend: MEND.into(), ..Diagnosis::new(DiagnosisKind::Odd, DISK, told) }
        }
        LITTLE.. => Diagnosis::fine(DISK, told),
    }
}

/// Whether the proxy that runs goes by what its files say now.
pub(super) fn running(backend: &Backend, runtime: &LocalRuntime) -> Diagnosis {
    const CHECK: &str = "running";
    let asked = runtime.block_on(backend.get(&target(&["config"], &[])));
    let standing = match asked.and_then(|answer| output::parse(answer.json()?)) {
        Ok(standing) => standing,
        Err(error) => return Diagnosis::wrong(CHECK, error.message, "mcpproxy status"),
    };
    let problems = list(&standing, "/rejected/problems");
    let mut errors = problems.iter().filter(|problem| text(problem, "/severity") == "error");
    let Some(first) = errors.next() else {
        return Diagnosis::fine(CHECK, "its config is that of its files");
    };
    let mut told = "it goes on with the config it had: ".to_owned();
    for (before, at, after) in
        [("", "/file", ": "), ("line ", "/line", " "), ("column ", "/column", ": ")]
    {
        let value = text(first, at);
        if !value.is_empty() {
            told += &format!("{before}{value}{after}");
        }
    }
    told += &text(first, "/problem");
    let more = errors.count();
    if more > 0 {
        told += &format!(" (and {more} more: mcpproxy config reload)");
    }
    let file = Some(text(first, "/file")).filter(|file| !file.is_empty());
    let file = file.unwrap_or_else(|| text(&standing, "/path"));
    Diagnosis::wrong(CHECK, told, format!("$EDITOR {}", word(Path::new(&*file))))
}

/// The endpoint of `search.embeddings`, as the proxy that runs finds it. Where there is none, nothing is looked at.
pub(super) fn search(
    loaded: &Loaded,
    running: Option<&Backend>,
    runtime: &LocalRuntime,
    found: &mut Vec<Diagnosis>,
) {
    const CHECK: &str = "search";
    let Some(backend) = running.filter(|_| loaded.config.search.embeddings.is_some()) else {
        return;
    };
    let asked = runtime.block_on(backend.get(&target(&["status"], &[])));
    let status = match asked.and_then(|answer| output::parse(answer.json()?)) {
        Ok(status) => status,
        Err(error) => return found.push(Diagnosis::wrong(CHECK, error.message, "")),
    };
    let faults = list(&status, "/faults").iter().filter(|fault| text(fault, "/part") == CHECK);
    let before = found.len();
    // Search goes on without it.
    found.extend(
        faults.map(|fault| Diagnosis::new(DiagnosisKind::Odd, CHECK, text(fault, "/cause"))),
    );
    if found.len() == before {
        found.push(Diagnosis::fine(CHECK, "tools are found by meaning too"));
    }
}

/// Each enabled server.
pub(super) fn servers(
    loaded: Loaded,
    running: Option<&Backend>,
    runtime: &LocalRuntime,
    found: &mut Vec<Diagnosis>,
) -> Result<(), CommandError> {
    const CHECK: &str = "server";
    if let Some(backend) = running {
        let answer = runtime.block_on(backend.get(&target(&["servers"], &[])))?;
        for server in list(&output::parse(answer.json()?)?, "/servers") {
            let [name, state, reason] = ["/name", "/state", "/reason"].map(|at| text(server, at));
            let tools = text(server, "/tools");
            found.push(match &*state {
                "disabled" => continue,
                "connected" => {
                    Diagnosis::fine(CHECK, format!("{name}: {}", counted(tools, "tool")))
                }
                state => failed(CHECK, &name, &format!("{state}: {reason}")),
            });
        }
        return Ok(());
    }
    let mut config = loaded.config;
    config.servers.retain(|server| server.upstream.enabled);
    if config.servers.is_empty() {
        let mut none = Diagnosis::new(DiagnosisKind::Odd, CHECK, "no server is enabled");
        none.mend = "mcpproxy import, or mcpproxy upstream add NAME …".to_owned();
        found.push(none);
        return Ok(());
    }
    for tried in try_servers(config)? {
        let Tried { name, status, took, .. } = &tried;
        let mut finding = match status {
            Status::Connected => Diagnosis::fine(CHECK, format!("{name}: {}", tried.told())),
            Status::Disabled | Status::Connecting | Status::Failed => {
                failed(CHECK, name, &tried.told())
            }
        };
        finding.took = Some(*took);
        found.push(finding);
    }
    Ok(())
}

fn failed(check: &'static str, name: &str, told: &str) -> Diagnosis {
    let name_word = quoted(name).unwrap_or_else(|| "NAME".into());
    let command = if told.contains("upstream login") { "login" } else { "logs" };
    Diagnosis::wrong(
        check,
        format!("{name}: {told}"),
        format!("mcpproxy upstream {command} {name_word}"),
    )
}

/// A path as a shell takes it.
fn word(path: &Path) -> String {
    let path = path.display().to_string();
    quoted(&path).map(std::borrow::Cow::into_owned).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags};

    #[test]
    fn a_clock_that_cannot_be_right_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        let flags = Flags { data_dir: Some(folder.path().join("data")), ..Flags::default() };
        let loaded = Config::load(Some(&path), &|_| None, &flags).unwrap();
        let now = SystemTime::now();
        assert_eq!(clock(&loaded, now).outcome, DiagnosisKind::Fine);
        let behind = clock(&loaded, SystemTime::UNIX_EPOCH + Duration::from_secs(NOT_BEFORE - 1));
        assert!(behind.outcome == DiagnosisKind::Wrong && behind.mend.contains("set-ntp"));
        fs::File::open(&path).unwrap().set_modified(now + 2 * AHEAD).unwrap();
        let ahead = clock(&loaded, now);
        assert!(ahead.outcome == DiagnosisKind::Wrong, "{ahead:?}");
        assert!(ahead.text.contains("config.json") && ahead.mend.contains("set-ntp"), "{ahead:?}");
        assert_eq!(clock(&loaded, now + 2 * AHEAD).outcome, DiagnosisKind::Fine);
    }

    #[test]
    fn little_room_is_a_warning_and_less_is_wrong() {
        for (free, outcome) in [
            (0, DiagnosisKind::Wrong),
            (TOO_LITTLE - 1, DiagnosisKind::Wrong),
            (TOO_LITTLE, DiagnosisKind::Odd),
            (LITTLE - 1, DiagnosisKind::Odd),
            (LITTLE, DiagnosisKind::Fine),
        ] {
            let found = room(free, Path::new("/data"), 0);
            assert_eq!(found.outcome, outcome, "{found:?}");
            assert_eq!(found.mend.is_empty(), outcome == DiagnosisKind::Fine, "{found:?}");
        }
    }
}
