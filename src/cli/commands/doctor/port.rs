//! The address to listen on: whether it is free, and if not, who has it.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::unistd::Pid;

use super::finding::Diagnosis;
use crate::io::address::Address;

const CHECK: &str = "port";

/// Looks at the address; `runs`: a proxy of this config was found, and `mute` is the process that says of itself to be one.
pub(super) fn look(listen: &Address, runs: bool, mute: Option<Pid>) -> Diagnosis {
    if runs {
        return Diagnosis::fine(CHECK, format!("mcpproxy runs on {listen}"));
    }
    let listen = match listen {
        Address::Tcp(listen) => *listen,
        Address::Unix(path) => return socket(path, mute),
    };
    match TcpListener::bind(listen) {
        Ok(_) => Diagnosis::fine(CHECK, format!("{listen} is free, and no mcpproxy runs")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let owner = owner(listen.port());
            let is_theirs =
                |mute: &Pid| owner.as_ref().is_none_or(|(owner, _)| *owner == mute.to_string());
            if let Some(mute) = mute.filter(is_theirs) {
                return does_not_answer(&listen.to_string(), mute);
            }
            let (who, mend) = match owner {
                Some((pid, name)) => {
                    (format!(": process {pid} ({name}) has it"), format!("kill {pid}"))
                }
                None => (String::new(), format!("ss -ltnp 'sport = :{}'", listen.port())),
            };
            Diagnosis::wrong(
                CHECK,
                format!("{listen} is taken by another program{who}"),
                format!("{mend}, or another listen in the config"),
            )
        }
        Err(error) => Diagnosis::wrong(
            CHECK,
            format!("{listen} cannot be listened on: {error}"),
            "another listen in the config",
        ),
    }
}

/// The same of a Unix socket: what a dead process has left there `serve` removes.
fn socket(path: &Path, mute: Option<Pid>) -> Diagnosis {
    if UnixStream::connect(path).is_ok() {
        if let Some(mute) = mute {
            return does_not_answer(&path.display().to_string(), mute);
        }
        return Diagnosis::wrong(
            CHECK,
            format!("another program listens on {}", path.display()),
            format!("fuser -v {}, or another listen in the config", path.display()),
        );
    }
    match path.parent().map(Path::is_dir) {
        Some(true) => Diagnosis::fine(CHECK, format!("nobody listens on {}", path.display())),
        Some(false) | None => Diagnosis::wrong(
            CHECK,
            format!("the folder of {} is not there", path.display()),
            "mkdir -p its folder, or another listen in the config",
        ),
    }
}

/// A proxy of this config is there, and is stopped or hangs.
fn does_not_answer(listen: &str, process: Pid) -> Diagnosis {
    Diagnosis::wrong(
        CHECK,
        format!("mcpproxy (process {process}) listens on {listen} and does not answer"),
        format!(
            "kill -CONT {process} if somebody has stopped it, else kill {process} and start it again"
        ),
    )
}

/// The process that listens on a port, as far as this user may know.
#[cfg(target_os = "linux")]
fn owner(port: u16) -> Option<(String, String)> {
    /// The state of a socket that listens, as the kernel writes it.
    const LISTENS: &str = "0A";
    let wanted = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let lines = tables.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let inode = lines.collect::<String>().lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (local, state) = (columns.get(1)?, columns.get(3)?);
        let found = local.ends_with(&wanted) && *state == LISTENS;
        found.then(|| columns.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    })?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let is_process = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let processes = processes.filter(|process| is_process(&process.file_name()));
    processes.into_iter().find_map(|process| {
        let sockets = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
        let has = |entry: std::fs::DirEntry| {
            std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == inode.as_str())
        };
        if !sockets.into_iter().any(has) {
            return None;
        }
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some((process.file_name().to_string_lossy().into_owned(), name.trim().to_owned()))
    })
}

#[cfg(not(target_os = "linux"))]
fn owner(_port: u16) -> Option<(String, String)> {
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::finding::DiagnosisKind;
    use super::*;

    #[test]
    fn a_taken_port_names_who_has_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let found = look(&address.into(), false, None);
        assert_eq!(found.outcome, DiagnosisKind::Wrong);
        if cfg!(target_os = "linux") {
            let pid = std::process::id().to_string();
            assert!(found.text.contains(&pid) && found.mend.contains(&pid), "{found:?}");
            let of_another = look(&address.into(), false, Some(Pid::from_raw(1)));
            assert_eq!(of_another.text, found.text, "another process has written that it is there");
        }
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
        let mute = look(&address.into(), false, Some(own));
        assert!(mute.outcome == DiagnosisKind::Wrong && mute.text.contains("does not answer"));
        assert_eq!(look(&address.into(), true, Some(own)).outcome, DiagnosisKind::Fine);
        drop(taken);
        assert_eq!(look(&address.into(), false, None).outcome, DiagnosisKind::Fine);
    }

    #[test]
    fn a_socket_of_somebody_else_or_without_a_folder_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Address::Unix(folder.path().join(name).into());
        let taken = UnixListener::bind(folder.path().join("taken")).unwrap();
        let found = look(&at("taken"), false, None);
        assert!(found.outcome == DiagnosisKind::Wrong, "{found:?}");
        assert!(found.text.contains("another program") && found.mend.starts_with("fuser -v "));
        let mute = look(&at("taken"), false, Some(Pid::this()));
        assert!(mute.text.contains("does not answer"), "{mute:?}");
        drop(taken);
        assert_eq!(look(&at("taken"), false, None).outcome, DiagnosisKind::Fine, "it is left over");
        assert_eq!(look(&at("free"), false, None).outcome, DiagnosisKind::Fine);
        let nowhere = look(&at("none/socket"), false, None);
        assert!(nowhere.outcome == DiagnosisKind::Wrong && nowhere.mend.contains("mkdir -p"));
    }
}
