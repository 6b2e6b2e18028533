//! The text of a config as one checked value: how file, environment and flags add up (flag beats environment
//! beats file), and the keys of the file that are no part's own.
//!
//! Pure. Each part owns its own section, with its defaults and bounds.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::{Map, Value};

use super::auth::Auth;
use super::document::ConfigDocument;
use super::findings::Findings;
use super::problem::{KeyPath, Problem, Severity};
use super::reading::{read, within};
use super::sections::{ApiKey, Logging, OutputValidation, PolicySection, ResultLimitSection};
use super::telemetry::{TelemetrySection, is_exposed};
use super::tls::TlsSection;
use super::values::{Config, RuleFiles};
use super::written::Written;
use super::{key_aliases, search, servers};
use crate::activity;
use crate::approvals;
use crate::catalog::on_change::ReviewSettings;
use crate::embeddings::SearchSection;
use crate::fleet::config::{AdvertisedUrl, NodeName};
use crate::fleet::{ClusterConfig, IndexRole};
use crate::intent;
use crate::io::address::{Address, UNIX};
use crate::mcp::revisions::Offered;
use crate::policy::host_check::HostCheck;
use crate::policy::limits;
use crate::policy::rules::RuleOptions;
use crate::proxy::retrieve::MAX_LIMIT;
use crate::tool::InputPolicy;
use crate::upstream::{filled_in, named_files, named_variables};

/// What the command line adds. A flag beats the environment, which beats the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen`
    pub listen: Option<String>,
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// This program itself, where it can be [`Config::reaper`]; set by the program, not by its user.
    pub reaper: Option<PathBuf>,
}

/// The keys of the file that are no part's own, as typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TopLevel {
    listen: Option<String>,
    tls: Option<TlsSection>,
    data_dir: Option<String>,
    api_key: Option<String>,
    require_mcp_auth: bool,
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
    #[serde(deserialize_with = "tools_limit")]
    tools_limit: Option<usize>,
    offered_era: Offered,
    intent_declaration: intent::Settings,
    limits: limits::Config,
    output_validation: OutputValidation,
    input_validation: InputPolicy,
    result_limit: ResultLimitSection,
    search: SearchSection,
    approval: approvals::Config,
    catalog: ReviewSettings,
    activity: activity::Config,
    cluster: ClusterConfig,
    auth: Auth,
    policy: PolicySection,
    logging: Logging,
    telemetry: TelemetrySection,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_DATA_DIR: &str = "~/.mcpproxy";
/// The name of this node, before `cluster.node`.
const NODE_VARIABLE: &str = "MCPPROXY_NODE";
/// How other nodes reach it, before `cluster.advertise`.
const ADVERTISE_VARIABLE: &str = "MCPPROXY_ADVERTISE";
const DEFAULT_TOOLS_LIMIT: usize = 15;
/// The values beside those of servers and of telemetry that may be kept elsewhere.
const OWN_REFERENCES: [&[&str]; 4] = [
    &["api_key"],
    &["approval", "webhook", "url"],
    &["approval", "webhook", "secret"],
    &["cluster", "key"],
];
/// Those of them that make whoever has them the admin, or a node, by their first key.
const MAKES_US: [&str; 2] = ["api_key", "cluster"];
/// Most files that hold values and are looked at for changes; of more the others count at the next reload.
const MAX_NAMED_FILES: usize = 1000;
/// Most files of rules.
const MAX_RULE_FILES: usize = 64;

/// A text as it was read: the config, with defaults in place of what is wrong, and the problems.
#[derive(Debug)]
pub(super) struct Parsed<'t> {
    pub(super) config: Config,
    pub(super) findings: Findings<'t>,
    /// The key, flag or environment variable that set the data folder.
    pub(super) data_dir_key: &'static str,
}

impl Parsed<'_> {
    /// The config and its warnings, with the name of the file they are in.
    ///
    /// # Errors
    /// Everything that was found, if an error is among it. Nothing is started with half a config.
    pub(super) fn finish(
        self,
        file: Option<&Path>,
    ) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
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

/// Reads the whole text, also past errors: what is wrong has its default in the result.
pub(super) fn parse_all<'t>(
    text: &'t str,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Parsed<'t> {
    let mut problems = Vec::new();
    let (document, mut root) = ConfigDocument::parse(text, &mut problems);
    let mut findings = Findings::new(document, problems);
    key_aliases::adopt_other_names(&mut root, &mut findings);
    let written = Written::of(&root);
    let servers = root.remove(servers::KEY).unwrap_or_else(|| Value::Object(Map::new()));
    let mut servers = servers::read(servers, &mut findings);
    let OwnReferences { files: mut named_files, variables: own_variables } =
        fill_in_own(&mut root, env, &mut findings);
    let mut top: TopLevel = read(&Value::Object(root), &KeyPath::default(), &mut findings);
    check_allowed(&top, &mut findings);
    top.telemetry.check(&mut findings);
    for server in &mut servers {
        server.upstream.look_up(env);
        named_files.extend(server.upstream.named_files(env));
    }
    top.telemetry.look_up(env);
    named_files.extend(top.telemetry.named_files(env));
    named_files.truncate(MAX_NAMED_FILES);
    search::check(&top.search, &mut findings);
    take_place(&mut top.cluster, env, &mut findings);
    check_cluster(&top, &mut findings);
    let variable =
        |name: &'static str| env(name).filter(|value| !value.is_empty()).map(|v| (name, v));

    let (key, text) = flags
        .listen
        .clone()
        .map(|value| ("--listen", value))
        .or_else(|| variable("MCPPROXY_LISTEN"))
        .or(top.listen.map(|value| ("listen", value)))
        .unwrap_or(("listen", DEFAULT_LISTEN.to_owned()));
    let listen = address(&text, env).unwrap_or_else(|problem| {
        wrong(&mut findings, key, problem);
        DEFAULT_LISTEN_ADDRESS.into()
    });
    if !listen.is_local() && !top.require_mcp_auth {
        let problem = format!(
            "{listen} can be reached from other machines: set require_mcp_auth to true, or listen \
             on 127.0.0.1"
        );
        wrong(&mut findings, key, problem);
    } else if !listen.is_local() && top.tls.is_none() {
        let problem = format!(
            "{listen} can be reached from other machines, and whoever is on the way reads keys and calls: set tls, or \
             listen on 127.0.0.1 behind a proxy that has TLS"
        );
        odd(&mut findings, key, problem);
    }
    let expand = |text: &str| expand_home(Path::new(text), env);
    let tls = top.tls.and_then(|tls| tls.read(&listen, expand, &mut findings));
    let (key, data_dir) = variable("MCPPROXY_DATA_DIR")
        .or(top.data_dir.map(|value| ("data_dir", value)))
        .unwrap_or(("data_dir", DEFAULT_DATA_DIR.to_owned()));
    let data_dir_key = if flags.data_dir.is_some() { "--data-dir" } else { key };
    let data_dir = match &flags.data_dir {
        Some(folder) => folder.clone(),
        None => expand_home(Path::new(&data_dir), env).unwrap_or_else(|| {
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
    let jwt = top.auth.jwt.and_then(|jwt| jwt.read(&data_dir, &mut findings));
    let config = Config {
        reaper: flags.reaper.clone(),
        listen,
        tls,
        data_dir,
        api_key,
        require_mcp_auth: top.require_mcp_auth,
        allowed_hosts: top.allowed_hosts,
        allowed_origins: top.allowed_origins,
        servers,
        tools_limit: top.tools_limit.unwrap_or(DEFAULT_TOOLS_LIMIT),
        offered_era: top.offered_era,
        intent: top.intent_declaration,
        limits: top.limits,
        output,
        input: top.input_validation,
        result_limit: top.result_limit,
        search: top.search,
        approval: top.approval,
        catalog_review: top.catalog,
        activity: top.activity,
        cluster: top.cluster,
        jwt,
        rules: rules(&top.policy, env, &mut findings),
        logging,
        telemetry: top.telemetry,
        named_files,
        own_variables,
        fleet_config: None,
        written,
    };
    Parsed { config, findings, data_dir_key }
}

/// Where our own secrets are kept.
#[derive(Default)]
struct OwnReferences {
    files: Vec<PathBuf>,
    /// Of those alone that make whoever has them us: others may be servers' as well.
    variables: BTreeSet<String>,
}

/// Fills in what our own secrets name (`${file:/path}` and the like), before they are read: their bounds are those of the
/// value, not of its reference. Tells where they are.
fn fill_in_own(
    root: &mut Map<String, Value>,
    env: &dyn Fn(&str) -> Option<String>,
    findings: &mut Findings<'_>,
) -> OwnReferences {
    let mut found = OwnReferences::default();
    for keys in OWN_REFERENCES {
        let [first, deeper @ ..] = keys else { continue };
        let mut value = root.get_mut(*first);
        for key in deeper {
            value = value.and_then(|value| value.get_mut(*key));
        }
        let path = deeper.iter().fold(KeyPath::root(first), |path, key| path.key(key));
        let texts: Vec<(KeyPath, &mut String)> = match value {
            Some(Value::String(text)) => vec![(path, text)],
            Some(Value::Array(list)) => {
                let at = list.iter_mut().enumerate();
                at.filter_map(|(at, value)| match value {
                    Value::String(text) => Some((path.element(at), text)),
                    _ => None,
                })
                .collect()
            }
            _ => continue,
        };
        for (path, text) in texts {
            found.files.extend(named_files(text, env));
            if MAKES_US.contains(first) {
                found.variables.extend(named_variables(text).map(str::to_owned));
            }
            match filled_in(text, &path.to_string(), env) {
                Ok(filled) => *text = filled,
                Err(problem) => findings.error(&path, problem),
            }
        }
    }
    found
}

/// Reports a problem of `key`, which is one of the file, an environment variable or a flag.
pub(super) fn wrong(findings: &mut Findings<'_>, key: &str, problem: impl std::fmt::Display) {
    match key.starts_with("--") || key.starts_with("MCPPROXY_") {
        true => findings.add_outside(Problem::outside(key, problem)),
        false => findings.error(&KeyPath::root(key), problem),
    }
}

/// The same of what is valid, and perhaps not intended.
fn odd(findings: &mut Findings<'_>, key: &str, problem: impl std::fmt::Display) {
    match key.starts_with("--") || key.starts_with("MCPPROXY_") {
        true => findings
            .add_outside(Problem { severity: Severity::Warning, ..Problem::outside(key, problem) }),
        false => findings.warn(&KeyPath::root(key), problem),
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

/// What of a node is its own in a fleet whose nodes share one config: `MCPPROXY_NODE` and `MCPPROXY_ADVERTISE` count before
/// `cluster.node` and `cluster.advertise`. Without a store they mean nothing.
fn take_place(
    cluster: &mut ClusterConfig,
    env: &impl Fn(&str) -> Option<String>,
    findings: &mut Findings<'_>,
) {
    if cluster.store.is_none() {
        return;
    }
    let variable = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(text) = variable(NODE_VARIABLE) {
        match NodeName::parse(&text) {
            Some(node) => cluster.node = Some(node),
            None => wrong(findings, NODE_VARIABLE, NodeName::RULE),
        }
    }
    if let Some(text) = variable(ADVERTISE_VARIABLE) {
        match AdvertisedUrl::parse(&text) {
            Ok(url) => cluster.advertise = Some(url),
            Err(problem) => wrong(findings, ADVERTISE_VARIABLE, problem),
        }
    }
}

/// What `cluster` and the rest ask of each other.
fn check_cluster(top: &TopLevel, findings: &mut Findings<'_>) {
    let at = KeyPath::root("cluster");
    match (&top.cluster.store, &top.cluster.node) {
        (Some(_), None) => {
            findings.error(&at.key("store"), "needs a name of this node, cluster.node")
        }
        (None, Some(_)) => findings.error(&at.key("node"), "is of no use without cluster.store"),
        (Some(_), Some(_)) => {}
        (None, None) if top.activity.durability == activity::Durability::Fleet => {
            let at = KeyPath::root("activity").key("durability");
            findings.error(&at, "can be \"fleet\" only with cluster.store");
        }
        (None, None) => {}
    }
    let ClusterConfig { store, advertise, index, key, .. } = &top.cluster;
    for (name, is_set) in [
        ("advertise", advertise.is_some()),
        ("index", *index != IndexRole::None),
        ("key", key.is_some()),
    ] {
        if is_set && store.is_none() {
            findings.error(&at.key(name), "is of no use without cluster.store");
        }
    }
    let Some(advertise) = advertise else { return };
    if key.is_none() {
        findings.error(&at.key("advertise"), "needs cluster.key, by which nodes know each other");
    }
    if is_exposed(advertise.as_str()) {
        let odd = "is plain http to another machine: nodes know each other all the same, and whoever is on the way reads \
                   what they say; use https";
        findings.warn(&at.key("advertise"), odd);
    }
}

/// The section `policy`; its files as they are named, with `~` replaced.
fn rules(
    section: &PolicySection,
    env: &impl Fn(&str) -> Option<String>,
    findings: &mut Findings<'_>,
) -> RuleFiles {
    let at = KeyPath::root("policy").key("files");
    if section.files.len() > MAX_RULE_FILES {
        findings.error(&at, format_args!("must be at most {MAX_RULE_FILES} files"));
    }
    let mut files = Vec::new();
    for (index, file) in section.files.iter().take(MAX_RULE_FILES).enumerate() {
        match expand_home(Path::new(file), env).filter(|_| !file.is_empty()) {
            Some(file) => files.push(file),
            None => findings.error(&at.element(index), "names no file: name a whole path"),
        }
    }
    RuleFiles {
        files,
        options: RuleOptions { default: section.default, mode: section.mode },
        presets: section.presets.clone(),
    }
}

fn address(text: &str, env: &impl Fn(&str) -> Option<String>) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix(UNIX) {
        let path = expand_home(Path::new(path), env).unwrap_or_default();
        return Address::unix(&path).map_err(|bad| bad.to_string());
    }
    let expanded = match text.rsplit_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
        Some(_) | None => text.to_owned(),
    };
    expanded
        .parse()
        .map(Address::Tcp)
        .map_err(|_| format!("'{text}' is no address and port: write it like \"{DEFAULT_LISTEN}\""))
}

fn tools_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_LIMIT)).map(Some)
}

/// `path` with a leading `~` replaced; `None` if that leads nowhere.
pub(super) fn expand_home(path: &Path, env: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Err(_) => Some(path.to_owned()),
        Ok(rest) => {
            let home = env("HOME").filter(|home| !home.is_empty())?;
            Some(Path::new(&home).join(rest))
        }
    }
}
