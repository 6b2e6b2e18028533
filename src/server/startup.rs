//! Startup steps: the data folder, the runtimes, upstream supervision, records of approvals orphaned by a crash, and the errors that
//! prevent startup.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use std::{fs, io};

use serde::Deserialize;
use thiserror::Error;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime, Runtime};

use super::audit_records::{self, RecordBudgets};
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use mcpproxy_activity::redact::Redactor;
use mcpproxy_activity::{Activity, Filter, From, Page, Record, StoreError};
use mcpproxy_catalog::Catalog;
use mcpproxy_config::Config;
use mcpproxy_fleet::JoinError;
use mcpproxy_fleet::bucket::BucketError;
use mcpproxy_policy::host_check::BadEntry;
use mcpproxy_policy::rules::RuleProblem;
use mcpproxy_runtime::io::egress_proxy::EgressEnvironment;
use mcpproxy_runtime::io::tls::TlsFileProblem;
use mcpproxy_runtime::os::private;
use mcpproxy_runtime::secrets::Secrets;
use mcpproxy_upstream::reaper::Reaper;
use mcpproxy_upstream::stderr_log::StderrLog;
use mcpproxy_upstream::supervisor::{Event, Supervisor};

/// Reason why a proxy cannot start. No component is left running.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the data folder {} cannot be used: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error("results cannot be stored in {}: {error}; set result_limit.bytes to 0 or repair the folder", folder.display())]
    Results {
        /// Path of `data_dir/results`.
        folder: PathBuf,
        error: io::Error,
    },
    #[error(transparent)]
    Activity(#[from] StoreError),
    /// An entry in `allowed_hosts` or `allowed_origins` is invalid.
    #[error(transparent)]
    HostCheck(#[from] BadEntry),
    #[error("this node cannot join its fleet: {0}")]
    Fleet(#[from] JoinError),
    /// The locally stored copy of the fleet's shared state is unusable.
    #[error(
        "the local copy of the fleet's shared state is unusable: {0}; delete it to read it again from the store"
    )]
    Facts(String),
    /// A new node could not read the fleet's shared state.
    #[error(
        "this new node cannot read the shared state of its fleet, and does not serve without it: {0}"
    )]
    FactsUnavailable(String),
    /// A new node could not read the fleet's config.
    #[error(
        "version {version} of the fleet's config cannot be read: {error}; this new node does not serve with its own config"
    )]
    FleetConfigAway { version: u64, error: BucketError },
    /// A new node cannot use the fleet's config.
    #[error(
        "version {version} of the fleet's config is invalid on this node: {reason}; this new node does not serve with its own \
         config"
    )]
    FleetConfigRefused { version: u64, reason: String },
    /// The rules are invalid; one problem per line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Rules(Vec<RuleProblem>),
    #[error("tls.{}: {_0}", _0.key.as_str())]
    Tls(#[from] TlsFileProblem),
    /// No thread, event queue or random bytes are available.
    #[error("the system does not provide a required resource: {0}")]
    System(#[from] io::Error),
}

/// Prefixes of names in the data folder whose permissions are corrected recursively.
const RECURSIVE: [&str; 6] = ["activity", "catalog", "address", "stderr", "results", "embeddings"];
/// Folder whose own permissions are corrected, but not those of its files, which are logins. If others could already
/// read a login, restricting its permissions later does not make it safe, so it is rejected instead.
const LOGINS: &str = "oauth";

/// Creates the data folder if necessary, and restricts the permissions of the program's own files in it.
///
/// The operator may use the folder itself for other purposes, so wide permissions on it are reported but not changed.
pub(super) fn open_data_folder(folder: &Path) -> io::Result<()> {
    private::folder(folder)?;
    if let Some(mode) = private::wider(folder) {
        let command = format!("chmod 700 {}", quoted(folder));
        tracing::warn!(
            "{}: the data folder is accessible to others (mode {mode:03o}): {command}",
            folder.display()
        );
    }
    for entry in fs::read_dir(folder)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let corrected = if name == LOGINS {
            private::restrict(&path)
        } else if RECURSIVE.iter().any(|prefix| name.starts_with(prefix)) {
            private::restrict_all(&path)
        } else {
            continue;
        };
        if let Err(error) = corrected {
            tracing::warn!("{}: permissions cannot be restricted: {error}", path.display());
        }
    }
    Ok(())
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Number of blocking threads in addition to one per core. They are for files and compilation while the other threads
/// validate large results. More threads would take heap memory without being faster.
const BLOCKING_THREADS: usize = 8;

/// Number of worker threads: one per core.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Creates a single-threaded runtime, whose tasks need not be `Send`.
pub fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// Creates the runtime of the control plane.
pub(super) fn control_runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING_THREADS + cores())
        .thread_name("control")
        .enable_all()
        .build()
}

/// Restores the stored catalog in the background (FR-A1).
pub(super) fn restore(catalog: &Arc<Catalog>, activity: &Activity, control: &Runtime) {
    let (catalog, log) = (Arc::clone(catalog), activity.clone());
    control.spawn_blocking(move || {
        for (server, change) in catalog.restore() {
            audit_records::put(&log, audit_records::catalog_changes(&server, &change));
        }
    });
}

/// Logs the egress proxies of the environment.
fn log_egress() {
    let environment = EgressEnvironment::of_process();
    for (scheme, proxy) in environment.proxies() {
        match proxy {
            Ok(proxy) => tracing::info!(scheme, %proxy, "egress proxy of the environment"),
            Err(why) => tracing::warn!(scheme, %why, "unusable egress proxy: requests fail"),
        }
    }
    for entry in environment.unusable_exceptions() {
        tracing::warn!(%entry, "ignored an entry of NO_PROXY");
    }
}

/// Starts the supervision of the upstreams, and records their events.
pub(super) fn supervise(
    config: &Config,
    catalog: &Arc<Catalog>,
    activity: &Activity,
    control: &Runtime,
) -> Supervisor {
    log_egress();
    let log = activity.clone();
    let budgets = RecordBudgets::default();
    let noted = move |event: Event| {
        let entries = budgets.within(audit_records::entries(&event), Instant::now());
        audit_records::put(&log, entries);
    };
    let servers = config.servers.iter().map(|server| {
        let mut upstream = server.upstream.clone();
        upstream.data_dir = Some(config.data_dir.clone());
        (Arc::clone(&server.name), upstream)
    });
    let (servers, catalog) = (servers.collect(), Arc::clone(catalog));
    let secrets = Arc::new(Secrets::new(config.secrets()));
    let reaper = Reaper::new(config.reaper.clone());
    reaper.withhold(config.withheld_variables());
    let redactor = Redactor::new(&config.activity.redact_keys);
    let stderr = StderrLog::start(config.stderr_folder(), redactor);
    Supervisor::start(servers, reaper, catalog, secrets, stderr, noted, control.handle())
}

/// Maximum number of records examined for orphaned approvals: more than can wait at a time, including the decisions in between.
const MAX_RECORDS: usize = 4096;
/// Number of records per read.
const PORTION: usize = 100;

/// Records approvals that an earlier process left undecided because it was killed. Runs in the background. Their calls ended with their
/// connections.
pub(super) fn record_orphaned_approvals(activity: &Activity, control: &Runtime) {
    let activity = activity.clone();
    control.spawn_blocking(move || {
        for draft in orphaned_approvals(&activity) {
            activity.note(draft);
        }
    });
}

/// Builds the records of approvals without a recorded outcome in the previous run.
fn orphaned_approvals(activity: &Activity) -> Vec<Draft> {
    let filter = Filter {
        kinds: vec![Type::Approval, Type::SystemStart, Type::SystemStop],
        ..Filter::default()
    };
    let (mut ended, mut found, mut starts) = (HashSet::new(), Vec::new(), 0);
    let mut from = From::default();
    for _ in 0..MAX_RECORDS / PORTION {
        let page = Page { limit: PORTION, from, ..Page::default() };
        let Ok(listing) = activity.list(&filter, &page) else { break };
        for record in &listing.records {
            if record.head.kind != Type::Approval {
                // Newest first: this run's own start precedes the records of the previous run, which end at that run's start. A run that
                // stopped in order has left no approval undecided.
                if starts > 0 || record.head.kind == Type::SystemStop {
                    return found;
                }
                starts += 1;
                continue;
            }
            let Some(state) = approval_state(record).filter(|_| starts > 0) else {
                continue;
            };
            if &*state.state != "waiting" {
                ended.insert(state.approval);
            } else if !ended.contains(&state.approval) {
                found.push(orphaned_approval(record, &state.approval));
            }
        }
        match listing.next_cursor {
            Some(next) => from = From::After(next),
            None => break,
        }
    }
    found
}

#[derive(Deserialize)]
struct ApprovalState {
    approval: Box<str>,
    state: Box<str>,
}

fn approval_state(record: &Record) -> Option<ApprovalState> {
    serde_json::from_slice(record.body.metadata()?.bytes()).ok()
}

fn orphaned_approval(record: &Record, approval: &str) -> Draft {
    let head = &record.head;
    let mut draft = Draft::new(Type::Approval, Source::Internal, Status::Error);
    for (text, value) in [
        (Text::Server, &*head.server),
        (Text::Tool, &*head.tool),
        (Text::SessionId, &*head.session_id),
        (Text::RequestId, &*head.request_id),
        (Text::ClientName, &*head.client_name),
        (Text::Principal, &*head.principal),
    ] {
        draft.set(text, value);
    }
    draft.set(Text::Error, "mcpproxy was killed while the call waited for approval");
    let metadata = serde_json::json!({"approval": approval, "state": "forgotten"}).to_string();
    draft.keep(Raw::Metadata, metadata.as_bytes(), MAX_METADATA_BYTES);
    draft
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use mcpproxy_config as config;
    use mcpproxy_config::Flags;
    use mcpproxy_upstream::supervisor::Status;

    use super::*;

    #[test]
    fn own_files_are_restricted_and_logins_and_foreign_files_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        for (path, mode, after) in [
            ("activity/db/0.jnl", 0o644, 0o600),
            ("activity.damaged-1/db/0.jnl", 0o666, 0o600),
            ("catalog/s.json", 0o664, 0o600),
            ("address", 0o644, 0o600),
            ("oauth/s.json", 0o644, 0o644),
            ("notes.txt", 0o644, 0o644),
        ] {
            let path = data.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
            open_data_folder(&data).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), after, "{}", path.display());
            let folder = path.parent().unwrap();
            assert_eq!(mode(folder), if folder == data { 0o755 } else { 0o700 });
        }
    }

    #[test]
    fn new_folder_is_private_and_a_file_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("a/b");
        open_data_folder(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
        let file = data.join("file");
        fs::write(&file, "").unwrap();
        assert!(open_data_folder(&file).is_err());
    }

    #[test]
    fn existing_folder_keeps_its_permissions_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (data, theirs) = (home.path().join("data"), home.path().join("theirs"));
        for folder in [&data, &theirs] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(&theirs, data.join("activity")).unwrap();
        open_data_folder(&data).unwrap();
        for folder in [&data, &theirs] {
            let mode = fs::metadata(folder).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o755, "{}", folder.display());
        }
    }

    #[test]
    fn path_in_a_suggested_command_is_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn every_configured_server_is_created_with_a_unique_id() {
        let folder = tempfile::tempdir().unwrap();
        let flags = Flags { data_dir: Some(folder.path().into()), ..Flags::default() };
        let text = r#"{"mcpServers": {
            "off": {"command": "x", "enabled": false},
            "gone": {"command": "/nowhere/to/be/found"}
        }}"#;
        let (config, _) = config::parse(text, &|_| None, &flags).unwrap();
        let (activity, writer) =
            Activity::open(&config.activity_folder(), config.activity.clone()).unwrap();
        let (control, catalog) =
            (control_runtime().unwrap(), Arc::new(Catalog::new(config.catalog())));
        let upstreams = supervise(&config, &catalog, &activity, &control);
        control.block_on(upstreams.get("gone").unwrap().settled());
        let states = upstreams.states();
        let found: Vec<_> = states.iter().map(|state| (&*state.name, state.status)).collect();
        assert_eq!(found, [("gone", Status::Failed), ("off", Status::Disabled)]);
        let ids = ["gone", "off", "neither"].map(|name| upstreams.id(name));
        assert!(ids[0].is_some() && ids[1].is_some() && ids[0] != ids[1] && ids[2].is_none());
        assert_eq!(ids[0], upstreams.get("gone").map(|upstream| upstream.id()));
        control.block_on(upstreams.shutdown(Instant::now() + Duration::from_secs(5)));
        writer.close().unwrap();
    }
}
