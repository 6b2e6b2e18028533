//! Parses the text of a config into one checked value. Precedence: flag, environment, file. Pure.
//!
//! The parser also handles keys under other names: those of earlier versions, of other programs, and misspelled ones.
//! A misspelled `mcpServers` is an error, since its servers would be ignored, and so is a misspelled key that restricts
//! calls; other unknown keys are warnings.

use crate::Environment;
use crate::document::{ConfigDocument, Findings};
use crate::problem::{KeyPath, Problem, Severity};
use crate::section_reader::read;
use crate::sections::{ApiKey, PolicySection, TopLevel, check_search, is_exposed};
use crate::servers;
use crate::values::{Config, RuleFiles};
use crate::written::Written;
use mcpproxy_activity as activity;
use mcpproxy_fleet::config::{AdvertisedUrl, NodeName};
use mcpproxy_fleet::{ClusterConfig, IndexRole};
use mcpproxy_gateway::proxy::settings::StreamTiming;
use mcpproxy_policy::host_check::HostCheck;
use mcpproxy_policy::rules::RuleOptions;
use mcpproxy_runtime::io::address::{Address, UNIX};
use mcpproxy_upstream::{filled_in, named_files, named_variables};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Overrides from the command line. A flag overrides the environment, which overrides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Value of `--listen`.
    pub listen: Option<String>,
    /// Value of `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// Value of `--log-level`.
    pub log_level: Option<String>,
    /// Path of this program, for [`Config::reaper`]; set by the program itself.
    pub reaper: Option<PathBuf>,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);
const DEFAULT_DATA_DIR: &str = "~/.mcpproxy";
/// Overrides `cluster.node`.
const NODE_VARIABLE: &str = "MCPPROXY_NODE";
/// Overrides `cluster.advertise`.
const ADVERTISE_VARIABLE: &str = "MCPPROXY_ADVERTISE";
const DEFAULT_TOOLS_LIMIT: usize = 15;
/// Values that may be references, besides those of servers and telemetry.
const OWN_REFERENCES: [&[&str]; 4] = [
    &["api_key"],
    &["approval", "webhook", "url"],
    &["approval", "webhook", "secret"],
    &["cluster", "key"],
];
/// Root keys of secrets that grant admin or node access.
const ACCESS_GRANTING: [&str; 2] = ["api_key", "cluster"];
/// Maximum number of referenced files that are watched; others are read at the next reload.
const MAX_NAMED_FILES: usize = 1000;
/// Maximum number of rule files.
const MAX_RULE_FILES: usize = 64;

/// A parsed config, with defaults in place of invalid values, and its problems.
#[derive(Debug)]
pub(super) struct Parsed<'t> {
    pub(super) config: Config,
    pub(super) findings: Findings<'t>,
    /// Key, flag or environment variable that set the data directory.
    pub(super) data_dir_key: &'static str,
}

impl Parsed<'_> {
    /// Returns the config with its warnings, or all problems if one is an error.
    pub(super) fn finish(
        self,
        file: Option<&Path>,
    ) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
        let refused = self.findings.any_error();
        let problems = self.findings.finish(file);
        if refused { Err(problems) } else { Ok((self.config, problems)) }
    }
}

/// Parses a config text, possibly blank, and applies environment and flags. Fails with all problems.
pub fn parse(
    text: &str,
    env: Environment<'_>,
    flags: &Flags,
) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
    parse_all(text, env, flags).finish(None)
}

/// Parses the whole text even after errors; invalid values get their defaults.
pub(super) fn parse_all<'t>(text: &'t str, env: Environment<'_>, flags: &Flags) -> Parsed<'t> {
    let mut problems = Vec::new();
    let (document, mut root) = ConfigDocument::parse(text, &mut problems);
    let mut findings = Findings::new(document, problems);
    adopt_other_names(&mut root, &mut findings);
    let written = Written::of(&root);
    let servers = root.remove(servers::KEY).unwrap_or_else(|| Value::Object(Map::new()));
    let mut servers = servers::read(servers, &mut findings);
    let own = fill_in_own(&mut root, env, &mut findings);
    let OwnReferences { files: mut named_files, variables: own_variables, named: mut all_named } =
        own;
    let mut top: TopLevel = read(&Value::Object(root), &KeyPath::default(), &mut findings);
    check_allowed(&top, &mut findings);
    top.telemetry.check(&mut findings);
    for server in &mut servers {
        server.upstream.look_up(env);
        named_files.extend(server.upstream.named_files(env));
        all_named.extend(server.upstream.named_variables().map(str::to_owned));
    }
    all_named.extend(top.telemetry.named_variables().map(str::to_owned));
    let embeddings_key = top.search.embeddings.as_ref().and_then(|it| it.api_key.as_deref());
    all_named.extend(embeddings_key.into_iter().flat_map(named_variables).map(str::to_owned));
    top.telemetry.look_up(env);
    named_files.extend(top.telemetry.named_files(env));
    named_files.truncate(MAX_NAMED_FILES);
    check_search(&top.search, &mut findings);
    apply_node_overrides(&mut top.cluster, env, &mut findings);
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
            "{listen} can be reached from other machines without encryption of keys and calls: set tls, or \
             listen on 127.0.0.1 behind a TLS proxy"
        );
        warning_text(&mut findings, key, problem);
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
            wrong(
                &mut findings,
                key,
                "HOME is not set, so '~' cannot be expanded: use an absolute path",
            );
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
            format_args!("this share for each of {enabled} servers exceeds max_held_total_bytes");
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
        streams: StreamTiming {
            stream_after: top.stream_after.unwrap_or(StreamTiming::DEFAULT.stream_after),
            keepalive: top.keepalive.unwrap_or(StreamTiming::DEFAULT.keepalive),
        },
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
        named_variables: all_named,
        fleet_config: None,
        written,
    };
    Parsed { config, findings, data_dir_key }
}

/// Locations of mcpproxy's own secrets.
#[derive(Default)]
struct OwnReferences {
    files: Vec<PathBuf>,
    /// Only variables that grant admin or node access; others may also be meant for servers.
    variables: BTreeSet<String>,
    named: BTreeSet<String>,
}

/// Resolves references (`${file:/path}` and the like) in mcpproxy's own secrets before they are checked. Returns the
/// locations.
fn fill_in_own(
    root: &mut Map<String, Value>,
    env: Environment<'_>,
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
            let named = named_variables(text).map(str::to_owned);
            match ACCESS_GRANTING.contains(first) {
                true => found.variables.extend(named),
                false => found.named.extend(named),
            }
            match filled_in(text, &path.to_string(), env) {
                Ok(filled) => *text = filled,
                Err(problem) => findings.error(&path, problem),
            }
        }
    }
    found
}

/// Reports an error of a config key, environment variable or flag.
pub(super) fn wrong(findings: &mut Findings<'_>, key: &str, problem: impl std::fmt::Display) {
    match key.starts_with("--") || key.starts_with("MCPPROXY_") {
        true => findings.add_outside(Problem::outside(key, problem)),
        false => findings.error(&KeyPath::root(key), problem),
    }
}

/// Reports a warning of a config key, environment variable or flag.
fn warning_text(findings: &mut Findings<'_>, key: &str, problem: impl std::fmt::Display) {
    match key.starts_with("--") || key.starts_with("MCPPROXY_") {
        true => findings
            .add_outside(Problem { severity: Severity::Warning, ..Problem::outside(key, problem) }),
        false => findings.warn(&KeyPath::root(key), problem),
    }
}

/// Checks each entry of `allowed_hosts` and `allowed_origins`.
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

/// Applies `MCPPROXY_NODE` and `MCPPROXY_ADVERTISE`, which override the config that the nodes of a fleet share. They
/// are ignored without a store.
fn apply_node_overrides(
    cluster: &mut ClusterConfig,
    env: Environment<'_>,
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

/// Checks `cluster` against the other keys.
fn check_cluster(top: &TopLevel, findings: &mut Findings<'_>) {
    let at = KeyPath::root("cluster");
    match (&top.cluster.store, &top.cluster.node) {
        (Some(_), None) => {
            findings.error(&at.key("store"), "requires a name for this node, cluster.node")
        }
        (None, Some(_)) => findings.error(&at.key("node"), "has no effect without cluster.store"),
        (Some(_), Some(_)) => {}
        (None, None) if top.activity.durability == activity::Durability::Fleet => {
            let at = KeyPath::root("activity").key("durability");
            findings.error(&at, "\"fleet\" requires cluster.store");
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
            findings.error(&at.key(name), "has no effect without cluster.store");
        }
    }
    let Some(advertise) = advertise else { return };
    if key.is_none() {
        findings.error(&at.key("advertise"), "requires cluster.key, which authenticates nodes");
    }
    if is_exposed(advertise.as_str()) {
        let warning_text = "is plain http to another machine: nodes are authenticated, but their traffic is not encrypted; \
                   use https";
        findings.warn(&at.key("advertise"), warning_text);
    }
}

/// The section `policy` with `~` expanded in its files.
fn rules(section: &PolicySection, env: Environment<'_>, findings: &mut Findings<'_>) -> RuleFiles {
    let at = KeyPath::root("policy").key("files");
    if section.files.len() > MAX_RULE_FILES {
        findings.error(&at, format_args!("must be at most {MAX_RULE_FILES} files"));
    }
    let mut files = Vec::new();
    for (index, file) in section.files.iter().take(MAX_RULE_FILES).enumerate() {
        match expand_home(Path::new(file), env).filter(|_| !file.is_empty()) {
            Some(file) => files.push(file),
            None => findings.error(&at.element(index), "is not a file path: use an absolute path"),
        }
    }
    RuleFiles {
        files,
        shared: Vec::new(),
        options: RuleOptions { default: section.default, mode: section.mode },
        presets: section.presets.clone(),
    }
}

fn address(text: &str, env: Environment<'_>) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix(UNIX) {
        let path = expand_home(Path::new(path), env).unwrap_or_default();
        return Address::unix(&path).map_err(|bad| bad.to_string());
    }
    let expanded = match text.rsplit_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
        Some(_) | None => text.to_owned(),
    };
    expanded.parse().map(Address::Tcp).map_err(|_| {
        format!("'{text}' is not an address with port: write it like \"{DEFAULT_LISTEN}\"")
    })
}

/// Expands a leading `~`; `None` without a home directory.
pub(super) fn expand_home(path: &Path, env: Environment<'_>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Err(_) => Some(path.to_owned()),
        Ok(rest) => {
            let home = env("HOME").filter(|home| !home.is_empty())?;
            Some(Path::new(&home).join(rest))
        }
    }
}

/// Name of [`servers::KEY`] in VS Code's `mcp.json`.
pub(super) const VS_CODE: &str = "servers";

/// Schema reference for editors, ignored here.
pub(super) const SCHEMA: &str = "$schema";

/// Definitions of `${input:ID}` prompts in VS Code.
pub(super) const INPUTS: &str = "inputs";

/// Flat keys of earlier versions and their current names.
pub(super) const FLAT_ACTIVITY_KEYS: [(&str, &str); 4] = [
    ("activity_retention_days", "retention_days"),
    ("activity_max_records", "max_records"),
    ("activity_max_size_mb", "max_size_mb"),
    ("activity_max_response_size", "max_response_bytes"),
];

/// Maximum edit distance of a misspelled `mcpServers`.
const TYPING_ERRORS: usize = 2;

/// Moves values under other names to their current keys.
pub(super) fn adopt_other_names(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    root.remove(SCHEMA);
    adopt_servers(root, findings);
    adopt_flat_activity_keys(root, findings);
    if root.remove(INPUTS).is_some_and(|inputs| inputs != Value::Array(Vec::new())) {
        let problem = "input prompts are not supported: write ${env:NAME} instead of ${input:…}";
        findings.warn(&KeyPath::root(INPUTS), problem);
    }
}

fn adopt_servers(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    let key = servers::KEY;
    let misspelled: Vec<String> = root
        .iter()
        .filter(|(name, value)| *name != key && *name != VS_CODE && means_servers(name, value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in misspelled {
        root.remove(&name);
        findings.wrong_key(
            &KeyPath::root(&name),
            format_args!(
                "is not read: the servers belong in '{key}', like \"{key}\": {{\"name\": {{…}}}}"
            ),
        );
    }
    let Some(value) = root.remove(VS_CODE) else { return };
    if root.contains_key(key) {
        let problem = format!("is an alias of '{key}': keep one of them");
        findings.wrong_key(&KeyPath::root(VS_CODE), problem);
    } else {
        root.insert(key.to_owned(), value);
        findings.rename(KeyPath::root(key), KeyPath::root(VS_CODE));
    }
}

/// Whether an unknown key obviously holds servers.
fn means_servers(name: &str, value: &Value) -> bool {
    let letters: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    let right = servers::KEY.to_lowercase();
    // VS Code's settings nest the servers one level deeper.
    let nested = letters == "mcp" && value.get(VS_CODE).or(value.get(servers::KEY)).is_some();
    nested
        || matches!(letters.as_str(), "server" | "servers" | "contextservers")
        || strsim::osa_distance(&letters, &right) <= TYPING_ERRORS
}

/// Moves the flat keys of earlier versions into the section, unless the section already sets them.
fn adopt_flat_activity_keys(root: &mut Map<String, Value>, findings: &mut Findings<'_>) {
    for (flat, key) in FLAT_ACTIVITY_KEYS {
        let Some(value) = root.remove(flat) else { continue };
        let section = root.entry("activity").or_insert_with(|| Value::Object(Map::new()));
        // A section of another type is reported when the section is read.
        let Some(section) = section.as_object_mut() else { continue };
        if section.contains_key(key) {
            findings.warn(&KeyPath::root(flat), format_args!("activity.{key} takes precedence"));
        } else {
            section.insert(key.to_owned(), value);
            findings.rename(KeyPath::root("activity").key(key), KeyPath::root(flat));
        }
    }
}
