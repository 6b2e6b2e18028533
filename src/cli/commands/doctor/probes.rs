//! Findings of `mcpproxy doctor`, and its checks of TLS files, egress proxies, the activity log and the listen address.
//!
//! TLS: usability, remaining lifetime and permissions of each file. Log: integrity (ACT-4) and the next step if it is
//! damaged. Address: whether it is free, and the process that occupies it.

use crate::backend::{Backend, target};
use crate::commands::activity::{salvage, unsound};
use crate::format::{counted, text};
use crate::start_proxy::TemporaryFolder;
use crate::terminal_safe::quoted;
use crate::{output, start_proxy};
use jiff::Timestamp;
use mcpproxy_activity::{StoreError, verify};
use mcpproxy_config::Config;
use mcpproxy_config::file::Loaded;
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::io::egress_proxy::EgressEnvironment;
use mcpproxy_runtime::io::tls::{CertifiedPair, TlsFileFault, TlsFileProblem, TlsKey, roots};
use mcpproxy_runtime::os::private;
use nix::errno::Errno;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use std::{env, io};
use tokio::runtime::LocalRuntime;

/// Shell command that edits a file, given as a shell word.
pub(super) fn edit(file: &str) -> String {
    format!("${{EDITOR:-vi}} {file}")
}

/// Path of the config, as a shell word.
pub(super) const CONFIG_PATH: &str = "\"$(mcpproxy config path)\"";

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiagnosisKind {
    Fine,
    /// The state is valid, but possibly unintended.
    Odd,
    Wrong,
    /// The state was faulty and has been fixed.
    Fixed,
}

/// One finding.
#[derive(Clone, Debug)]
pub(super) struct Diagnosis {
    pub(super) outcome: DiagnosisKind,
    /// Name of the check.
    pub(super) check: &'static str,
    pub(super) text: String,
    /// Command or action that fixes the problem.
    pub(super) fix: String,
    pub(super) took: Option<Duration>,
    /// Last output of a server.
    pub(super) lines: Vec<String>,
}

impl Diagnosis {
    pub(super) fn new(
        outcome: DiagnosisKind,
        check: &'static str,
        text: impl Into<String>,
    ) -> Self {
        let (fix, lines) = (String::new(), Vec::new());
        Self { outcome, check, text: text.into(), fix, took: None, lines }
    }

    pub(super) fn fine(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Fine, check, text)
    }

    pub(super) fn wrong(
        check: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { fix: fix.into(), ..Self::new(DiagnosisKind::Wrong, check, text) }
    }

    /// The finding as JSON.
    pub(super) fn json(&self) -> Value {
        let outcome = match self.outcome {
            DiagnosisKind::Fine => "ok",
            DiagnosisKind::Odd => "warning",
            DiagnosisKind::Wrong => "wrong",
            DiagnosisKind::Fixed => "mended",
        };
        let took = self.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let mut finding = json!({
            "outcome": outcome, "check": self.check, "text": self.text, "mend": self.fix,
            "took_ms": took,
        });
        if let (Some(members), false) = (finding.as_object_mut(), self.lines.is_empty()) {
            members.insert("lines".to_owned(), json!(self.lines));
        }
        finding
    }
}

const CERTIFICATES_CHECK: &str = "tls";
/// Remaining lifetime below which a certificate causes a warning.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Permission bits of users other than owner and group.
const OTHERS_MODE: u32 = 0o007;

/// TLS files of one config section.
struct Section<'a> {
    /// Path of the section's key.
    at: String,
    cert: Option<&'a Path>,
    key: Option<&'a Path>,
    roots: Option<(TlsKey, &'a Path)>,
}

/// Checks all TLS files; empty if TLS is not used.
pub(super) fn check_certificates(config: &Config, now: SystemTime) -> Vec<Diagnosis> {
    let listener = config.tls.iter().map(|tls| Section {
        at: "tls".to_owned(),
        cert: Some(&tls.cert),
        key: Some(&tls.key),
        roots: tls.client_ca.as_deref().map(|file| (TlsKey::ClientCa, file)),
    });
    let enabled = config.servers.iter().filter(|server| server.upstream.enabled);
    let servers = enabled.filter_map(|server| {
        let tls = server.upstream.tls.as_ref()?;
        Some(Section {
            at: format!("mcpServers.{}.tls", server.name),
            cert: tls.cert.as_deref(),
            key: tls.key.as_deref(),
            roots: tls.ca.as_deref().map(|file| (TlsKey::Ca, file)),
        })
    });
    listener.chain(servers).flat_map(|section| check_section(&section, now)).collect()
}

fn check_section(section: &Section<'_>, now: SystemTime) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    if let (Some(cert), Some(key)) = (section.cert, section.key) {
        found.push(match CertifiedPair::load(cert, key, now) {
            Ok(pair) => ends(section, cert, pair.facts.until, now),
            Err(problem) => wrong(section, &problem),
        });
    }
    found.extend(section.key.and_then(|key| exposed(section, key)));
    if let Some((name, file)) = section.roots {
        found.push(match roots(name, file) {
            Ok((store, _)) => {
                let finding = format!("{} authorities in {}", store.len(), file.display());
                Diagnosis::fine(
                    CERTIFICATES_CHECK,
                    format!("{}.{}: {finding}", section.at, name.as_str()),
                )
            }
            Err(problem) => wrong(section, &problem),
        });
    }
    found
}

fn ends(section: &Section<'_>, cert: &Path, until: SystemTime, now: SystemTime) -> Diagnosis {
    let end = Timestamp::try_from(until).map(|end| format!("{end:.0}")).unwrap_or_default();
    let finding = format!("{}.cert: {} is valid until {end}", section.at, cert.display());
    match until.duration_since(now).is_ok_and(|left| left > EXPIRY_WARNING) {
        true => Diagnosis::fine(CERTIFICATES_CHECK, finding),
        false => Diagnosis {
            fix: RENEW.to_owned(),
            ..Diagnosis::new(DiagnosisKind::Odd, CERTIFICATES_CHECK, finding)
        },
    }
}

const RENEW: &str =
    "renew it with `certbot renew` or at its issuer; new files are loaded without a restart";

fn wrong(section: &Section<'_>, problem: &TlsFileProblem) -> Diagnosis {
    let finding = format!("{}.{}: {problem}", section.at, problem.key.as_str());
    Diagnosis::wrong(CERTIFICATES_CHECK, finding, fix(section, problem))
}

/// Fix for an unusable file.
fn fix(section: &Section<'_>, problem: &TlsFileProblem) -> String {
    let file = word(&problem.file);
    match problem.fault {
        TlsFileFault::Expired(_) => RENEW.to_owned(),
        TlsFileFault::NotYetValid(_) => {
            "timedatectl set-ntp true, if the clock is wrong; otherwise wait, or request a new one"
                .to_owned()
        }
        TlsFileFault::KeyMismatch(_) => {
            let cert = section.cert.map(word).unwrap_or_default();
            format!(
                "configure the matching key: `openssl x509 -noout -pubkey -in {cert}` and \
                 `openssl pkey -pubout -in {file}` print the same for a pair"
            )
        }
        TlsFileFault::EncryptedKey => {
            format!("openssl pkey -in {file} -out {file}.plain, readable only by you")
        }
        TlsFileFault::Unreadable(_) if problem.file.exists() => {
            format!("ls -l {file}: it must be a file that the user running mcpproxy can read")
        }
        TlsFileFault::Unreadable(_) | TlsFileFault::Content(_) => {
            format!("configure a PEM file: {}", edit(CONFIG_PATH))
        }
    }
}

/// Finding for a private key that others can read. Group access is only a warning, because some systems have a group
/// for keys.
fn exposed(section: &Section<'_>, key: &Path) -> Option<Diagnosis> {
    let wide = private::wider(key)?;
    let finding =
        format!("{}.key: {} is accessible to others (mode {wide:03o})", section.at, key.display());
    let outcome = match wide & OTHERS_MODE {
        0 => DiagnosisKind::Odd,
        _ => DiagnosisKind::Wrong,
    };
    let fix = format!("chmod 600 {}", word(key));
    Some(Diagnosis { fix, ..Diagnosis::new(outcome, CERTIFICATES_CHECK, finding) })
}

/// Quotes a path for a shell.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    quoted(&text).map_or_else(|| "FILE".to_owned(), std::borrow::Cow::into_owned)
}

const EGRESS_CHECK: &str = "proxy";

/// Checks the egress proxies in the environment, and the route to each enabled server; empty if no proxy is set. The
/// environment of a running proxy may differ; its log also shows the variables.
pub(super) fn check_egress(
    config: &Config,
    environment: &EgressEnvironment,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for (scheme, proxy) in environment.proxies() {
        found.push(match proxy {
            Ok(proxy) => Diagnosis::fine(EGRESS_CHECK, format!("{scheme}: through {proxy}")),
            Err(why) => {
                Diagnosis::wrong(EGRESS_CHECK, why, "correct or unset the variable, and restart")
            }
        });
    }
    for entry in environment.unusable_exceptions() {
        let text = format!("NO_PROXY: '{entry}' is not understood and has no effect");
        let fix = "write a host, .SUFFIX, HOST:PORT, an address, a network like 10.0.0.0/8, or *";
        let odd = Diagnosis::new(DiagnosisKind::Odd, EGRESS_CHECK, text);
        found.push(Diagnosis { fix: fix.to_owned(), ..odd });
    }
    for server in config.servers.iter().filter(|server| server.upstream.enabled) {
        let name = &server.name;
        match server.upstream.egress_summary(lookup) {
            Ok(None) => {}
            Ok(Some(way)) => found.push(Diagnosis::fine(EGRESS_CHECK, format!("'{name}': {way}"))),
            // Only a warning, because the cause is already reported above or by the config check.
            Err(why) => found.push(Diagnosis::new(
                DiagnosisKind::Odd,
                EGRESS_CHECK,
                format!("'{name}' cannot be reached: {why}"),
            )),
        }
    }
    found
}

const LOG_CHECK: &str = "log";

/// Verifies the log, by the running proxy if there is one, otherwise on a copy.
pub(super) fn check_log<'s>(
    loaded: &Loaded,
    running: Option<&Backend>,
    status: impl FnOnce() -> Option<&'s Value>,
    runtime: &LocalRuntime,
) -> Diagnosis {
    let folder = loaded.config.activity_folder();
    let start = Instant::now();
    let report = match running {
        Some(backend) => {
            let response = runtime.block_on(backend.get(&target(&["activity", "verify"], &[])));
            let report = response.and_then(|answer| output::parse(answer.json()?));
            report.map_err(|error| not_known(&error.message, "mcpproxy status"))
        }
        None if !folder.exists() => return Diagnosis::fine(LOG_CHECK, "no log yet"),
        None => on_disk(&folder),
    };
    let repaired = status().and_then(repaired);
    let finding =
        report.map_or_else(|why| why, |report| rate_report(&report, running.is_some(), repaired));
    Diagnosis { took: Some(start.elapsed()), ..finding }
}

/// Damage repaired by the running proxy since its start.
fn repaired(status: &Value) -> Option<String> {
    let [file, lost] =
        ["/activity/repaired/file", "/activity/repaired/records_lost"].map(|at| text(status, at));
    (!file.is_empty())
        .then(|| format!("damage was repaired since the start ({file}, {lost} records lost)"))
}

/// Rates a verification report.
fn rate_report(report: &Value, runs: bool, repaired: Option<String>) -> Diagnosis {
    match unsound(report) {
        Some(why) => Diagnosis::wrong(LOG_CHECK, why, salvage(runs)),
        None => {
            let records = counted(text(report, "/records"), "record");
            match repaired {
                None => Diagnosis::fine(LOG_CHECK, format!("{records}, all intact")),
                Some(repaired) => {
                    let text = format!("{records}, all intact; {repaired}: check the disk");
                    Diagnosis::new(DiagnosisKind::Odd, LOG_CHECK, text)
                }
            }
        }
    }
}

fn on_disk(folder: &Path) -> Result<Value, Diagnosis> {
    let failed = |error: &dyn std::fmt::Display| not_known(&error.to_string(), "");
    let scratch = TemporaryFolder::watched("verify").map_err(|error| failed(&error.message))?;
    let report = verify::folder(folder, scratch.path(), |_, _| {});
    let report = report.map_err(|error| unverified(&error))?;
    serde_json::to_value(&report).map_err(|error| failed(&error))
}

/// Finding for a log that could not be verified. Only damage counts as a fault of the log itself.
fn unverified(error: &StoreError) -> Diagnosis {
    let text = error.to_string();
    match error {
        StoreError::Damaged { .. } => Diagnosis::wrong(LOG_CHECK, text, salvage(false)),
        StoreError::Locked => not_known(
            &text,
            "end that process, or set MCPPROXY_LISTEN to the address of the running mcpproxy",
        ),
        StoreError::Io(error) | StoreError::File { error, .. } => {
            let fix = match error.kind() {
                // The log is verified on a copy, which needs disk space.
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
                    "free space at {}, or set TMPDIR to a disk with room for a copy of the log",
                    env::temp_dir().display()
                ),
                io::ErrorKind::PermissionDenied => {
                    "run mcpproxy doctor as the user who owns the log".to_owned()
                }
                // The generic advice would name this same command.
                _ if error.raw_os_error() != Some(Errno::EIO as i32) => String::new(),
                _ => start_proxy::after_disk_failure(error).to_owned(),
            };
            not_known(&text, &fix)
        }
    }
}

fn not_known(why: &str, fix: &str) -> Diagnosis {
    Diagnosis::wrong(LOG_CHECK, format!("cannot verify the log: {why}"), fix)
}

const PORT_CHECK: &str = "port";

/// Checks the listen address. `runs` means that a proxy of this config was found; `silent_process` is the process that
/// has announced itself there.
/// `running` is the address of the running proxy, which may differ from `listen`.
pub(super) fn check_port(
    listen: &Address,
    running: Option<&Address>,
    silent_process: Option<Pid>,
) -> Diagnosis {
    if let Some(running) = running {
        return Diagnosis::fine(PORT_CHECK, format!("mcpproxy is running on {running}"));
    }
    let listen = match listen {
        Address::Tcp(listen) => *listen,
        Address::Unix(path) => return socket(path, silent_process),
    };
    match TcpListener::bind(listen) {
        Ok(_) => {
            Diagnosis::fine(PORT_CHECK, format!("{listen} is free, and no mcpproxy is running"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let owner = owner(listen.port());
            let is_theirs = |silent_process: &Pid| {
                owner.as_ref().is_none_or(|(owner, _)| *owner == silent_process.to_string())
            };
            if let Some(silent_process) = silent_process.filter(is_theirs) {
                return does_not_answer(&listen.to_string(), silent_process);
            }
            let (who, fix) = match owner {
                Some((pid, name)) => (format!(": process {pid} ({name})"), format!("kill {pid}")),
                None => (String::new(), format!("ss -ltnp 'sport = :{}'", listen.port())),
            };
            Diagnosis::wrong(
                PORT_CHECK,
                format!("{listen} is in use by another program{who}"),
                format!("{fix}, or configure another listen address"),
            )
        }
        Err(error) => Diagnosis::wrong(
            PORT_CHECK,
            format!("cannot listen on {listen}: {error}"),
            "configure another listen address",
        ),
    }
}

/// Checks a Unix socket. `serve` removes a stale socket file.
fn socket(path: &Path, silent_process: Option<Pid>) -> Diagnosis {
    if UnixStream::connect(path).is_ok() {
        if let Some(silent_process) = silent_process {
            return does_not_answer(&path.display().to_string(), silent_process);
        }
        return Diagnosis::wrong(
            PORT_CHECK,
            format!("another program listens on {}", path.display()),
            format!("fuser -v {}, or configure another listen address", path.display()),
        );
    }
    match path.parent().map(Path::is_dir) {
        Some(true) => {
            Diagnosis::fine(PORT_CHECK, format!("no mcpproxy is running on {}", path.display()))
        }
        Some(false) | None => Diagnosis::wrong(
            PORT_CHECK,
            format!("the directory of {} does not exist", path.display()),
            "mkdir -p its directory, or configure another listen address",
        ),
    }
}

/// Finding for a proxy of this config that is stopped or hangs.
fn does_not_answer(listen: &str, process: Pid) -> Diagnosis {
    Diagnosis::wrong(
        PORT_CHECK,
        format!("mcpproxy (process {process}) listens on {listen} but does not respond"),
        format!("kill -CONT {process} if it was stopped, otherwise kill {process} and restart it"),
    )
}

/// Process that listens on a port, if it is visible to this user.
#[cfg(target_os = "linux")]
fn owner(port: u16) -> Option<(String, String)> {
    /// Socket state "listening" in the kernel's table.
    const LISTENING: &str = "0A";
    let wanted = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let lines = tables.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let inode = lines.collect::<String>().lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (local, state) = (columns.get(1)?, columns.get(3)?);
        let found = local.ends_with(&wanted) && *state == LISTENING;
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
    use super::*;
    use mcpproxy_config::{Flags, parse};
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn config(folder: &Path, tls: &str) -> Config {
        let flags = Flags { data_dir: Some(folder.into()), ..Flags::default() };
        parse(tls, &|_| None, &flags).unwrap().0
    }

    fn rows(found: &[Diagnosis]) -> Vec<(DiagnosisKind, &str, &str)> {
        found.iter().map(|it| (it.outcome, it.text.as_str(), it.fix.as_str())).collect()
    }

    #[test]
    fn every_tls_file_is_checked_and_its_fix_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let put = |name: &str, text: &str, mode: u32| {
            fs::write(file(name), text).unwrap();
            fs::set_permissions(file(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let key = KeyPair::generate().unwrap();
        let now = SystemTime::now();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.not_after = (now + 30 * DAY).into();
        put("c.pem", &params.self_signed(&key).unwrap().pem(), 0o644);
        put("k.pem", &key.serialize_pem(), 0o600);
        put("other.pem", &KeyPair::generate().unwrap().serialize_pem(), 0o644);
        put("group.pem", &key.serialize_pem(), 0o640);
        let at = |name: &str| file(name).display().to_string();
        let listener = |key: &str, ca: &str| {
            let text = format!(
                r#"{{"tls": {{"cert": "{}", "key": "{}", "client_ca": "{}"}}}}"#,
                at("c.pem"),
                at(key),
                at(ca)
            );
            config(folder.path(), &text)
        };
        let kinds = |found: &[Diagnosis]| found.iter().map(|it| it.outcome).collect::<Vec<_>>();
        use DiagnosisKind::{Fine, Odd, Wrong};

        let good = listener("k.pem", "c.pem");
        assert_eq!(kinds(&check_certificates(&good, now)), [Fine, Fine]);
        let soon = check_certificates(&good, now + 20 * DAY);
        assert_eq!(kinds(&soon), [Odd, Fine], "{soon:?}");
        assert!(soon[0].fix.contains("renew"), "{soon:?}");
        let over = check_certificates(&good, now + 31 * DAY);
        assert!(over[0].text.contains("has expired") && over[0].fix.contains("renew"), "{over:?}");
        assert_eq!(over[0].outcome, Wrong);
        let early = check_certificates(&good, SystemTime::UNIX_EPOCH);
        assert!(early[0].fix.contains("clock"), "{early:?}");

        let another = check_certificates(&listener("other.pem", "none.pem"), now);
        assert_eq!(kinds(&another), [Wrong, Wrong, Wrong], "{another:?}");
        let [mismatch, rights, ca] = &rows(&another)[..] else { panic!() };
        assert!(
            mismatch.1.starts_with("tls.key: ") && mismatch.2.contains("openssl pkey"),
            "{mismatch:?}"
        );
        assert!(rights.1.contains("644") && rights.2.starts_with("chmod 600 "), "{rights:?}");
        assert!(ca.1.starts_with("tls.client_ca: ") && ca.2.contains("config path"), "{ca:?}");
        let group = check_certificates(&listener("group.pem", "c.pem"), now);
        assert_eq!(kinds(&group), [Fine, Odd, Fine], "{group:?}");

        let server = config(
            folder.path(),
            &format!(
                r#"{{"mcpServers": {{"s": {{"url": "https://x", "tls": {{"ca": "{}"}}}},
                    "off": {{"url": "https://x", "enabled": false, "tls": {{"ca": "/none"}}}}}}}}"#,
                at("k.pem")
            ),
        );
        let found = check_certificates(&server, now);
        assert_eq!(kinds(&found), [Wrong], "{found:?}");
        assert!(found[0].text.starts_with("mcpServers.s.tls.ca: "), "{found:?}");
        assert!(check_certificates(&config(folder.path(), "{}"), now).is_empty());
    }

    #[test]
    fn finding_about_a_damaged_log_advises_salvage_after_stopping_the_proxy() {
        let good = json!({"sound": true, "records": 7});
        for runs in [false, true] {
            let finding = rate_report(&good, runs, None);
            assert_eq!(
                (finding.outcome, &*finding.text),
                (DiagnosisKind::Fine, "7 records, all intact")
            );
            assert_eq!(finding.fix, "");
        }
        let wrong = json!({"sound": false, "broken": {"seq": 3, "fault": "altered", "why": "x"}});
        assert_eq!(rate_report(&wrong, false, None).fix, "mcpproxy serve --salvage");
        let running = rate_report(&wrong, true, None);
        assert_eq!(running.outcome, DiagnosisKind::Wrong);
        assert!(running.fix.starts_with("stop the running mcpproxy, then: "), "{running:?}");
        assert!(running.fix.ends_with("mcpproxy serve --salvage"), "{running:?}");
    }

    #[test]
    fn repaired_damage_is_a_warning() {
        let status = json!({"activity": {"repaired": {"file": "0.jnl", "records_lost": 2}}});
        let finding = rate_report(&json!({"sound": true, "records": 7}), true, repaired(&status));
        assert_eq!(finding.outcome, DiagnosisKind::Odd);
        assert!(finding.text.contains("(0.jnl, 2 records lost): check the disk"), "{finding:?}");
        assert_eq!(repaired(&json!({"activity": {"repaired": null}})), None);
    }

    #[test]
    fn errors_unrelated_to_the_log_do_not_advise_salvage() {
        let damaged = StoreError::Damaged { file: "a".into(), why: "x".into() };
        assert_eq!(unverified(&damaged).fix, "mcpproxy serve --salvage");
        let of_kind = |kind| StoreError::Io(io::Error::from(kind));
        for (error, fix) in [
            (StoreError::Locked, "end that process"),
            (of_kind(io::ErrorKind::StorageFull), "free space at"),
            (of_kind(io::ErrorKind::QuotaExceeded), "free space at"),
            (of_kind(io::ErrorKind::PermissionDenied), "run mcpproxy doctor as"),
            (of_kind(io::ErrorKind::TimedOut), ""),
            (io::Error::from_raw_os_error(Errno::EIO as i32).into(), "check the disk"),
        ] {
            let finding = unverified(&error);
            assert_eq!(finding.outcome, DiagnosisKind::Wrong, "{error}");
            assert!(finding.text.starts_with("cannot verify the log: "), "{finding:?}");
            assert!(
                finding.fix.starts_with(fix) && !finding.fix.contains("salvage"),
                "{finding:?}"
            );
            assert!(!fix.is_empty() || finding.fix.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn port_in_use_names_the_process() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let found = check_port(&address.into(), None, None);
        assert_eq!(found.outcome, DiagnosisKind::Wrong);
        if cfg!(target_os = "linux") {
            let pid = std::process::id().to_string();
            assert!(found.text.contains(&pid) && found.fix.contains(&pid), "{found:?}");
            let of_another = check_port(&address.into(), None, Some(Pid::from_raw(1)));
            assert_eq!(of_another.text, found.text, "the port belongs to another process");
        }
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
        let silent_process = check_port(&address.into(), None, Some(own));
        assert!(
            silent_process.outcome == DiagnosisKind::Wrong
                && silent_process.text.contains("does not respond")
        );
        let running = Address::Tcp("127.0.0.1:7".parse().unwrap());
        let found = check_port(&address.into(), Some(&running), Some(own));
        assert_eq!(found.outcome, DiagnosisKind::Fine);
        assert_eq!(found.text, "mcpproxy is running on 127.0.0.1:7", "not the configured address");
        drop(taken);
        assert_eq!(check_port(&address.into(), None, None).outcome, DiagnosisKind::Fine);
    }

    #[test]
    fn foreign_or_unreachable_socket_is_reported_as_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Address::Unix(folder.path().join(name).into());
        let taken = UnixListener::bind(folder.path().join("taken")).unwrap();
        let found = check_port(&at("taken"), None, None);
        assert!(found.outcome == DiagnosisKind::Wrong, "{found:?}");
        assert!(found.text.contains("another program") && found.fix.starts_with("fuser -v "));
        let silent_process = check_port(&at("taken"), None, Some(Pid::this()));
        assert!(silent_process.text.contains("does not respond"), "{silent_process:?}");
        drop(taken);
        assert_eq!(
            check_port(&at("taken"), None, None).outcome,
            DiagnosisKind::Fine,
            "stale socket"
        );
        assert_eq!(check_port(&at("free"), None, None).outcome, DiagnosisKind::Fine);
        let nowhere = check_port(&at("none/socket"), None, None);
        assert!(nowhere.outcome == DiagnosisKind::Wrong && nowhere.fix.contains("mkdir -p"));
    }
}
