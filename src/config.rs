//! The config: what the operator wrote, checked whole before anything starts.
//!
//! Owns the file's keys that belong to no other part, how file, environment and flags add up (flag
//! beats environment beats file). Each part owns its own section. Reading is [`parse`], pure; the
//! file is [`file::Loaded`]; what only this machine can tell is looked for by `check`. Values from
//! `${env:NAME}` are filled in where a server is started, since a missing one stops that server
//! alone.

mod check;
mod document;
pub mod file;
pub mod problem;
mod reading;
mod root;
pub mod sections;
pub mod servers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::{Map, Value};

use self::document::ConfigDocument;
use self::problem::{Findings, KeyPath, Problem};
use self::reading::{read, within};
pub use self::sections::{ApiKey, Engine, Level, LogFormat, Logging, OutputValidation};
use self::servers::Server;
use crate::activity;
use crate::catalog::{self, ServerSettings};
use crate::downstream::host_check::HostCheck;
use crate::intent;
use crate::mcp::revisions::Offered;
use crate::proxy::memory_budget;
use crate::proxy::retrieve::MAX_LIMIT;

/// Everything the operator decides, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the HTTP faces listen.
    pub listen: SocketAddr,
    /// Where catalog, activity and logins are kept.
    pub data_dir: PathBuf,
    /// What `/api/v1` and `/events` ask for; `None` until one is made.
    pub api_key: Option<ApiKey>,
    /// Whether `/mcp` asks for the key too.
    pub require_mcp_auth: bool,
    /// Hosts that requests may name; empty: the loopback names.
    pub allowed_hosts: Vec<String>,
    /// Origins that requests may come from; empty: the loopback names.
    pub allowed_origins: Vec<String>,
    /// The upstreams, enabled or not, in the order of their names.
    pub servers: Vec<Server>,
    /// Results of `retrieve_tools` that states no limit of its own, 1 to 100.
    pub tools_limit: usize,
    /// What a client is told that asks which revisions there are.
    pub offered_era: Offered,
    /// `intent_declaration`
    pub intent: intent::Settings,
    /// `output_validation`
    pub output: OutputValidation,
    /// `activity`
    pub activity: activity::Config,
    /// `logging`
    pub logging: Logging,
    /// The program that ends the servers' processes should this one be killed; none: nobody does.
    pub reaper: Option<PathBuf>,
}

impl Config {
    /// The API key; empty until one is made.
    #[must_use]
    pub fn key(&self) -> &str {
        self.api_key.as_ref().map_or("", |key| key.expose())
    }

    /// Where the activity log is: `data_dir/activity`.
    #[must_use]
    pub fn activity_folder(&self) -> PathBuf {
        self.data_dir.join("activity")
    }

    /// What the catalog needs: the enabled servers, and `data_dir/catalog`.
    #[must_use]
    pub fn catalog(&self) -> catalog::Settings {
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let settings = enabled.map(|server| (Arc::clone(&server.name), server.tools.clone()));
        catalog::Settings {
            policy: self.output.policy(),
            schemas: self.output.schemas(),
            servers: settings.collect::<BTreeMap<_, ServerSettings>>(),
            folder: Some(self.data_dir.join("catalog")),
        }
    }

    /// The room for answers that strict holds.
    #[must_use]
    pub fn held(&self) -> memory_budget::MemoryBudget {
        let OutputValidation { max_held_total_bytes: total, max_held_bytes, .. } = self.output;
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let names: Vec<Arc<str>> = enabled.map(|server| Arc::clone(&server.name)).collect();
        let usual = || memory_budget::usual_share(total, names.len(), max_held_bytes);
        let share = self.output.held_share_bytes.unwrap_or_else(usual);
        memory_budget::MemoryBudget::new(total, share, names)
    }

    /// The room for answers that warn has yet to judge: all servers have it in common.
    #[must_use]
    pub fn judging_budget(&self) -> memory_budget::MemoryBudget {
        let total = memory_budget::MAX_JUDGING_BYTES.min(self.output.max_held_total_bytes);
        memory_budget::MemoryBudget::new(total, 0, [])
    }
}

/// What the command line adds. A flag beats the environment, which beats the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen`
    pub listen: Option<String>,
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// Nobody's choice: this program itself, where it is one that can be [`Config::reaper`].
    pub reaper: Option<PathBuf>,
}

/// The keys of the file that are no part's own, as typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TopLevel {
    listen: Option<String>,
    data_dir: Option<String>,
    api_key: Option<String>,
    require_mcp_auth: bool,
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
    #[serde(deserialize_with = "tools_limit")]
    tools_limit: Option<usize>,
    offered_era: Offered,
    intent_declaration: intent::Settings,
    output_validation: OutputValidation,
    activity: activity::Config,
    logging: Logging,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_DATA_DIR: &str = "~/.mcpproxy";
const DEFAULT_TOOLS_LIMIT: usize = 15;

/// What a text comes down to: the config with defaults for what is wrong, and what was found.
#[derive(Debug)]
struct Parsed<'t> {
    config: Config,
    findings: Findings<'t>,
    /// Who named the data folder: a key, a flag, an environment variable.
    data_dir_key: &'static str,
}

impl Parsed<'_> {
    /// The config and its warnings, with the name of the file they are in.
    ///
    /// # Errors
    /// Everything that was found, if an error is among it. Nothing is started with half a config.
    fn finish(self, file: Option<&Path>) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
        let refused = self.findings.any_error();
        let problems = self.findings.finish(file);
        if refused { Err(problems) } else { Ok((self.config, problems)) }
    }
}

/// Reads the text of a config file, a blank one included, and adds environment and flags.
///
/// # Errors
/// Everything that is wrong, with the warnings.
pub fn parse(
    text: &str,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
    parse_all(text, env, flags).finish(None)
}

/// Reads on where something is wrong, with the default in its place.
fn parse_all<'t>(
    text: &'t str,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Parsed<'t> {
    let mut problems = Vec::new();
    let (document, mut root) = ConfigDocument::parse(text, &mut problems);
    let mut findings = Findings::new(document, problems);
    root::adopt_other_names(&mut root, &mut findings);
    let servers = root.remove(servers::KEY).unwrap_or_else(|| Value::Object(Map::new()));
    let servers = servers::read(servers, &mut findings);
    let top: TopLevel = read(&Value::Object(root), &KeyPath::default(), &mut findings);
    check_allowed(&top, &mut findings);
    let variable =
        |name: &'static str| env(name).filter(|value| !value.is_empty()).map(|v| (name, v));

    let (key, text) = flags
        .listen
        .clone()
        .map(|value| ("--listen", value))
        .or_else(|| variable("MCPPROXY_LISTEN"))
        .or(top.listen.map(|value| ("listen", value)))
        .unwrap_or(("listen", DEFAULT_LISTEN.to_owned()));
    let listen = address(&text).unwrap_or_else(|problem| {
        wrong(&mut findings, key, problem);
        DEFAULT_LISTEN_ADDRESS
    });
    if !listen.ip().is_loopback() && !top.require_mcp_auth {
        let problem = format!(
            "{listen} can be reached from other machines: set require_mcp_auth to true, or listen \
             on 127.0.0.1"
        );
        wrong(&mut findings, key, problem);
    }
    let (key, data_dir) = variable("MCPPROXY_DATA_DIR")
        .or(top.data_dir.map(|value| ("data_dir", value)))
        .unwrap_or(("data_dir", DEFAULT_DATA_DIR.to_owned()));
    let data_dir_key = if flags.data_dir.is_some() { "--data-dir" } else { key };
    let data_dir = match &flags.data_dir {
        Some(folder) => folder.clone(),
        None => file::expand_home(Path::new(&data_dir), env).unwrap_or_else(|| {
            wrong(&mut findings, key, "HOME is not set, so '~' leads nowhere: name a whole path");
            PathBuf::new()
        }),
    };
    let api_key = variable("MCPPROXY_API_KEY")
        .or(top.api_key.filter(|key| !key.is_empty()).map(|key| ("api_key", key)));
    let api_key = api_key.and_then(|(path, key)| {
        ApiKey::new(key).map_err(|problem| wrong(&mut findings, path, problem)).ok()
    });
    let mut logging = top.logging;
    if let Some(level) = &flags.log_level {
        match serde_json::from_value(Value::from(level.as_str())) {
            Ok(level) => logging.level = level,
            Err(error) => findings.add_outside(Problem::outside("--log-level", error)),
        }
    }
    let output = top.output_validation;
    if output.max_held_bytes > output.max_held_total_bytes {
        let path = KeyPath::root("output_validation").key("max_held_total_bytes");
        findings.error(&path, "must not be less than max_held_bytes");
    }
    let enabled = servers.iter().filter(|server| server.upstream.enabled).count() as u64;
    if let Some(share) = output.held_share_bytes
        && share.saturating_mul(enabled) > output.max_held_total_bytes
    {
        let path = KeyPath::root("output_validation").key("held_share_bytes");
        let problem =
            format_args!("{enabled} servers with so much each need more than max_held_total_bytes");
        findings.error(&path, problem);
    }
    let config = Config {
        reaper: flags.reaper.clone(),
        listen,
        data_dir,
        api_key,
        require_mcp_auth: top.require_mcp_auth,
        allowed_hosts: top.allowed_hosts,
        allowed_origins: top.allowed_origins,
        servers,
        tools_limit: top.tools_limit.unwrap_or(DEFAULT_TOOLS_LIMIT),
        offered_era: top.offered_era,
        intent: top.intent_declaration,
        output,
        activity: top.activity,
        logging,
    };
    Parsed { config, findings, data_dir_key }
}

/// Tells of `key`, which is one of the file, an environment variable or a flag.
fn wrong(findings: &mut Findings<'_>, key: &str, problem: impl std::fmt::Display) {
    match key.starts_with("--") || key.starts_with("MCPPROXY_") {
        true => findings.add_outside(Problem::outside(key, problem)),
        false => findings.error(&KeyPath::root(key), problem),
    }
}

/// The entries of `allowed_hosts` and `allowed_origins`, each by itself.
fn check_allowed(top: &TopLevel, findings: &mut Findings<'_>) {
    for (at, host) in top.allowed_hosts.iter().enumerate() {
        if let Err(bad) = HostCheck::new(std::slice::from_ref(host), &[]) {
            findings.error(&KeyPath::root("allowed_hosts").element(at), bad.problem());
        }
    }
    for (at, origin) in top.allowed_origins.iter().enumerate() {
        if let Err(bad) = HostCheck::new(&[], std::slice::from_ref(origin)) {
            findings.error(&KeyPath::root("allowed_origins").element(at), bad.problem());
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let expanded = match text.rsplit_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
        Some(_) | None => text.to_owned(),
    };
    expanded
        .parse()
        .map_err(|_| format!("'{text}' is no address and port: write it like \"{DEFAULT_LISTEN}\""))
}

fn tools_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_LIMIT)).map(Some)
}

#[cfg(test)]
mod tests;
