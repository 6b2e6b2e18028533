//! Discovery of a running proxy, proof of its identity, and config reloads.
//!
//! `serve` may listen at an address that differs from the configured one (`--listen`, or port 0). It therefore writes
//! its address and process id to its data directory while it runs. A stale file of a killed server is harmless: the
//! listener must prove its identity before it receives the key. The client side of [`proof`] sends a random nonce and
//! compares the keyed hash in the response with the expected one for the address it dialed.

use crate::args::Global;
use crate::format::{list, text};
use crate::http_client::{HttpClient, Security, target};
use crate::terminal_safe::line;
use crate::{hints, logging, start_proxy};
use bytes::Bytes;
use http::{Method, StatusCode};
use mcpproxy_config::Config;
use mcpproxy_config::file::{self, Loaded};
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::os::private;
use mcpproxy_server as server;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const FILE: &str = "address";

/// File with the address of this server, which commands read; removed on drop.
#[derive(Debug)]
pub(super) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the file. A failure is only logged, because the server works without it.
    pub(super) fn at(data_dir: &Path, address: &Address) -> Option<Self> {
        let file = data_dir.join(FILE);
        let written = private::create(&file)
            .and_then(|mut opened| writeln!(opened, "{address}\n{}", std::process::id()));
        match written {
            Ok(()) => Some(Self(file)),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot write the address file");
                None
            }
        }
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A stale file is harmless: a listener must prove its identity.
        let _ = fs::remove_file(&self.0);
    }
}

/// Client for the configured address.
pub(super) fn configured(config: &Config) -> HttpClient {
    HttpClient::new(config.listen.clone(), security(config), config.key())
}

/// Whether the proxy of this config uses TLS, regardless of its address.
fn security(config: &Config) -> Security {
    match config.tls {
        Some(_) => Security::Tls,
        None => Security::Plain,
    }
}

/// Finds the running proxy, at the configured address or otherwise at the announced one. If another program occupies
/// the configured address, the first request reports it.
pub(super) async fn find(config: &Config) -> Option<HttpClient> {
    let client = configured(config);
    if !client.is_listening().await {
        return elsewhere(config).await;
    }
    if !client.is_mcpproxy().await
        && let Some(other) = elsewhere(config).await
    {
        return Some(other);
    }
    Some(client)
}

/// Like [`find`]. If the command line names a data directory, a proxy with another one is not the one that is meant.
pub(super) async fn find_for(global: &Global, config: &Config) -> Option<HttpClient> {
    let found = find(config).await?;
    if is_another(global, config).await {
        logging::print_line(format_args!(
            "warning: the mcpproxy on {} has another data directory than {}, and is not asked",
            found.authority(),
            config.data_dir.display()
        ));
        return None;
    }
    Some(found)
}

/// Whether a proxy listens at the configured address, and the command line names a data directory in which none has announced
/// itself.
async fn is_another(global: &Global, config: &Config) -> bool {
    let is_announced = || read(&config.data_dir).is_some();
    global.data_dir.is_some()
        && !is_announced()
        && configured(config).without_key().is_mcpproxy().await
}

/// Message if no proxy of this config was found.
pub(super) async fn none_found(global: &Global, config: &Config) -> String {
    let listen = &config.listen;
    if let Some(process) = announced_process(config) {
        return format!(
            "mcpproxy (process {process}) no longer answers on {listen}: it is probably shutting down, for which calls in \
             flight have {} s",
            server::DRAIN_TIMEOUT.as_secs()
        );
    }
    match is_another(global, config).await {
        true => format!(
            "the mcpproxy on {listen} has another data directory: name its own with --data-dir, or start another one with \
             `mcpproxy serve` and another --listen"
        ),
        false => format!("no mcpproxy is running on {listen}: `mcpproxy serve` starts one"),
    }
}

/// Finds the proxy announced in a data directory, for use without a valid config. Tries both plain HTTP and TLS.
pub(super) async fn announced(data_dir: &Path, key: &str) -> Option<HttpClient> {
    let (address, _) = read(data_dir)?;
    for security in [Security::Plain, Security::Tls] {
        let client = HttpClient::new(address.clone(), security, key);
        if client.is_mcpproxy().await {
            return Some(client);
        }
    }
    None
}

/// The running proxy of a config that is not valid, which does not affect it. Its key is taken from the environment or
/// the file.
pub(super) async fn of_invalid_config(global: &Global) -> Option<HttpClient> {
    let file = file::locate(global.config.as_deref(), &start_proxy::variable).ok()?;
    let text = file::text(&file).ok()?;
    let key = start_proxy::variable("MCPPROXY_API_KEY").filter(|key| !key.is_empty());
    let key = key.or_else(|| file::api_key_in(&text))?;
    announced(&start_proxy::data_dir(global), &key).await
}

/// The proxy that owns the data directory, if it listens at a different address.
pub(super) async fn elsewhere(config: &Config) -> Option<HttpClient> {
    let (listen, _) = read(&config.data_dir).filter(|(listen, _)| *listen != config.listen)?;
    let client = HttpClient::new(listen, security(config), config.key());
    client.is_mcpproxy().await.then_some(client)
}

/// The announced process at the configured address, if it exists.
pub(super) fn announced_process(config: &Config) -> Option<Pid> {
    let (_, process) = read(&config.data_dir).filter(|(listen, _)| *listen == config.listen)?;
    process.filter(|process| kill(*process, None).is_ok())
}

/// Reads the announced address and process id.
fn read(data_dir: &Path) -> Option<(Address, Option<Pid>)> {
    let text = fs::read_to_string(data_dir.join(FILE)).ok()?;
    let mut lines = text.lines();
    let address = Address::parse(lines.next()?.trim())?;
    let process = lines.next().and_then(|line| line.trim().parse::<i32>().ok());
    // 0 and negative ids denote process groups.
    Some((address, process.filter(|process| *process > 0).map(Pid::from_raw)))
}

/// Effect of a changed config file on the running proxy.
#[derive(Clone, Debug)]
pub(super) enum ReloadReport {
    /// No proxy is running; the next one reads the file.
    NotRunning,
    /// The file is in force, except for the listed keys, which need a restart.
    InForce(Vec<String>),
    /// The running proxy reads its config only at startup.
    NeedsRestart,
    /// The running proxy keeps its previous config, for this reason.
    Refused(String),
    /// The running proxy could not be asked, for this reason.
    Unknown(String),
}

impl ReloadReport {
    /// A sentence for people.
    pub(super) fn message(&self) -> String {
        match self {
            Self::NotRunning => {
                hints::commands("No mcpproxy is running: `mcpproxy serve` starts one.").into_owned()
            }
            Self::InForce(later) if later.is_empty() => {
                "The running mcpproxy has applied the change.".to_owned()
            }
            Self::InForce(later) => format!(
                "The running mcpproxy has applied the change, except for {}: restart it for that.",
                line(&later.join(", "))
            ),
            Self::NeedsRestart => {
                "The running mcpproxy reads its config at startup: restart it.".to_owned()
            }
            Self::Refused(why) => {
                format!("The running mcpproxy keeps its previous config: {}", line(why))
            }
            Self::Unknown(why) => {
                format!("Unknown whether a running mcpproxy has applied the change: {}", line(why))
            }
        }
    }

    /// The reload report as JSON.
    pub(super) fn json(&self) -> Value {
        let (state, why) = match self {
            Self::NotRunning => ("not_running", ""),
            Self::InForce(_) => ("in_force", ""),
            Self::NeedsRestart => ("needs_restart", ""),
            Self::Refused(why) => ("refused", why.as_str()),
            Self::Unknown(why) => ("unknown", why.as_str()),
        };
        json!({"state": state, "reason": why})
    }
}

/// Makes the running proxy of this config reload it, and also returns a client for that proxy.
///
/// The response to the reload does not suffice, because the proxy may read a different file or may have reverted since.
pub(super) async fn reload(loaded: &Loaded) -> (ReloadReport, Option<HttpClient>) {
    let Some(client) = find(&loaded.config).await else {
        return (ReloadReport::NotRunning, None);
    };
    let report = match ask(&client, Method::POST, &["config", "reload"]).await {
        Ok(_) => match ask(&client, Method::GET, &["config"]).await {
            Ok(state) => report_from_state(&state, &loaded.path),
            Err(report) => report,
        },
        Err(report) => report,
    };
    (report, Some(client))
}

/// Returns the `data` member of a response, or the report implied by any other response.
async fn ask(client: &HttpClient, method: Method, path: &[&str]) -> Result<Value, ReloadReport> {
    let response = client.request(method, &target(path, &[]), Bytes::new()).await;
    let response = response.map_err(|error| ReloadReport::Unknown(error.to_string()))?;
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let error = body.get("error").and_then(Value::as_str).map(str::to_owned);
    match (response.status, error) {
        (StatusCode::OK, _) => Ok(body.get("data").cloned().unwrap_or_default()),
        (StatusCode::NOT_FOUND, _) => Err(ReloadReport::NeedsRestart),
        (StatusCode::UNPROCESSABLE_ENTITY, Some(error)) => Err(ReloadReport::Refused(error)),
        (_, Some(error)) => Err(ReloadReport::Unknown(error)),
        (status, None) => Err(ReloadReport::Unknown(format!("unexpected status {status}"))),
    }
}

/// Derives the report for the file at `path` from the state of the config in force.
fn report_from_state(state: &Value, path: &Path) -> ReloadReport {
    let read = text(state, "/path");
    let same = |read: &Path| {
        read == path
            || matches!((read.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b)
    };
    if !read.is_empty() && !same(Path::new(&*read)) {
        return ReloadReport::Unknown(format!("it reads another file, {read}"));
    }
    if let Some(rejected) = state.get("rejected").filter(|rejected| !rejected.is_null()) {
        let first = list(rejected, "/problems").first();
        let why = first.map(|it| format!("{}: {}", text(it, "/key"), text(it, "/problem")));
        return ReloadReport::Refused(why.unwrap_or_default());
    }
    let later = list(state, "/needs_restart").iter().filter_map(Value::as_str);
    ReloadReport::InForce(later.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_process_must_exist_and_match_the_address() {
        let folder = tempfile::tempdir().unwrap();
        let flags =
            mcpproxy_config::Flags { data_dir: Some(folder.path().into()), ..Default::default() };
        let config = |listen: &str| {
            let text = format!(r#"{{"listen": "{listen}"}}"#);
            mcpproxy_config::parse(&text, &|_| None, &flags).unwrap().0
        };
        let here = config("127.0.0.1:9123");
        assert_eq!(announced_process(&here), None);
        let announced = AddressFile::at(folder.path(), &here.listen).unwrap();
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
        assert_eq!(announced_process(&here), Some(own));
        assert_eq!(announced_process(&config("127.0.0.1:9124")), None);
        for text in [
            "127.0.0.1:9123\n",
            "127.0.0.1:9123\n0\n",
            "127.0.0.1:9123\nx",
            "127.0.0.1:9123\n2147483647\n",
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(announced_process(&here), None, "{text:?}");
            assert!(read(folder.path()).is_some());
        }
        drop(announced);
        assert!(read(folder.path()).is_none());
    }

    #[test]
    fn reload_report_reflects_the_config_in_force() {
        let standing = |path: &str, rejected: Value, later: &[&str]| {
            report_from_state(
                &json!({"path": path, "rejected": rejected, "needs_restart": later}),
                Path::new("/a/config.json"),
            )
        };
        let report = standing("/a/config.json", Value::Null, &[]);
        assert!(matches!(&report, ReloadReport::InForce(later) if later.is_empty()), "{report:?}");
        let report = standing("/a/config.json", Value::Null, &["listen"]);
        assert!(report.message().contains("except for listen"), "{report:?}");
        let rejected =
            json!({"since": "", "problems": [{"key": "listen", "problem": "no address"}]});
        let report = standing("/a/config.json", rejected, &[]);
        assert!(
            matches!(&report, ReloadReport::Refused(why) if why == "listen: no address"),
            "{report:?}"
        );
        assert_eq!(report.json()["state"], "refused");
        let report = standing("/b/config.json", Value::Null, &[]);
        assert!(
            matches!(&report, ReloadReport::Unknown(why) if why.contains("/b/config.json")),
            "{report:?}"
        );
    }
}
