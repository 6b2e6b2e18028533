//! The config: what the operator wrote, checked whole before anything starts.
//!
//! Owns the file's keys that belong to no other part, how file, environment and flags add up (flag
//! beats environment beats file), and the messages about what is wrong. Each part owns its own
//! section. Reading is [`parse`], pure; the file is [`file::Loaded`]. Values from `${env:NAME}` are filled
//! in where a server is started, since a missing one stops that server alone.

pub mod document;
pub mod file;
mod reading;
pub mod sections;
pub mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::{Map, Value};

use self::reading::{read, within};
pub use self::sections::{ApiKey, Engine, Level, LogFormat, Logging, OutputValidation};
use self::servers::Server;
use crate::activity;
use crate::catalog::{self, ServerSettings};
use crate::intent;
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
    /// `intent_declaration`
    pub intent: intent::Settings,
    /// `output_validation`
    pub output: OutputValidation,
    /// `activity`
    pub activity: activity::Config,
    /// `logging`
    pub logging: Logging,
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
}

/// What is odd about a config that can be used. Its text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A key that nobody reads, and the known one that is most like it.
    #[error("unknown key '{path}' is ignored{}", meant(.nearest.as_deref()))]
    UnknownKey {
        /// Where it stands.
        path: String,
        /// What may have been meant.
        nearest: Option<String>,
    },
    /// Something that is understood, and not as the operator may think.
    #[error("{path}: {problem}")]
    At {
        /// Where it stands.
        path: String,
        /// What to know about it.
        problem: String,
    },
    /// Something about the file itself.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What to know about it.
        problem: String,
    },
}

impl Warning {
    fn at(path: &str, problem: impl Into<String>) -> Self {
        Self::At { path: path.to_owned(), problem: problem.into() }
    }
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map(|key| format!(" (did you mean '{key}'?)")).unwrap_or_default()
}

/// Why a config cannot be used. Its text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a JSON object; the text names line and column.
    #[error("{0}")]
    Unreadable(String),
    /// A value that is wrong, with the path of its key.
    #[error("{path}: {problem}")]
    At {
        /// Where it stands: a key's path, an environment variable, a flag.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The same, or worse, about a file.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl ConfigError {
    fn at(path: &str, problem: impl fmt::Display) -> Self {
        Self::At { path: path.to_owned(), problem: problem.to_string() }
    }
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
    intent_declaration: intent::Settings,
    output_validation: OutputValidation,
    activity: activity::Config,
    logging: Logging,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_DATA_DIR: &str = "~/.mcpproxy";
const DEFAULT_TOOLS_LIMIT: usize = 15;

/// The names of the flat keys of earlier versions, and where they belong now.
const FLAT_ACTIVITY_KEYS: [(&str, &str); 4] = [
    ("activity_retention_days", "retention_days"),
    ("activity_max_records", "max_records"),
    ("activity_max_size_mb", "max_size_mb"),
    ("activity_max_response_size", "max_response_bytes"),
];

/// Reads the text of a config file, a blank one included, and adds environment and flags.
///
/// # Errors
/// The first thing that is wrong. Nothing is started with half a config.
pub fn parse(
    text: &str,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Result<(Config, Vec<Warning>), ConfigError> {
    let mut root = document::parse(text)?;
    let mut warnings = Vec::new();
    let servers = root.remove("mcpServers").unwrap_or_else(|| Value::Object(Map::new()));
    let servers = servers::read(servers, &mut warnings)?;
    adopt_flat_activity_keys(&mut root, &mut warnings);
    let top: TopLevel = read(&Value::Object(root), "", &mut warnings)?;
    let variable =
        |name: &'static str| env(name).filter(|value| !value.is_empty()).map(|v| (name, v));

    let (path, listen) = flags
        .listen
        .clone()
        .map(|value| ("--listen", value))
        .or_else(|| variable("MCPPROXY_LISTEN"))
        .or(top.listen.map(|value| ("listen", value)))
        .unwrap_or(("listen", DEFAULT_LISTEN.to_owned()));
    let listen = address(&listen, path)?;
    if !listen.ip().is_loopback() && !top.require_mcp_auth {
        let problem = format!(
            "{listen} can be reached from other machines: set require_mcp_auth to true, or listen \
             on 127.0.0.1"
        );
        return Err(ConfigError::at(path, problem));
    }
    let (path, data_dir) = variable("MCPPROXY_DATA_DIR")
        .or(top.data_dir.map(|value| ("data_dir", value)))
        .unwrap_or(("data_dir", DEFAULT_DATA_DIR.to_owned()));
    let data_dir = match &flags.data_dir {
        Some(folder) => folder.clone(),
        None => file::expand_home(Path::new(&data_dir), env)
            .ok_or_else(|| ConfigError::at(path, "HOME is not set, so '~' leads nowhere"))?,
    };
    let api_key = variable("MCPPROXY_API_KEY")
        .or(top.api_key.filter(|key| !key.is_empty()).map(|key| ("api_key", key)))
        .map(|(path, key)| ApiKey::new(key, path))
        .transpose()?;
    let mut logging = top.logging;
    if let Some(level) = &flags.log_level {
        logging.level = read(&Value::from(level.as_str()), "--log-level", &mut warnings)?;
    }
    let output = top.output_validation;
    if output.max_held_bytes > output.max_held_total_bytes {
        return Err(ConfigError::at(
            "output_validation.max_held_total_bytes",
            "must not be less than max_held_bytes",
        ));
    }
    let config = Config {
        listen,
        data_dir,
        api_key,
        require_mcp_auth: top.require_mcp_auth,
        allowed_hosts: top.allowed_hosts,
        allowed_origins: top.allowed_origins,
        servers,
        tools_limit: top.tools_limit.unwrap_or(DEFAULT_TOOLS_LIMIT),
        intent: top.intent_declaration,
        output,
        activity: top.activity,
        logging,
    };
    Ok((config, warnings))
}

/// Moves the flat keys of earlier versions into the section, where that does not say otherwise.
fn adopt_flat_activity_keys(root: &mut Map<String, Value>, warnings: &mut Vec<Warning>) {
    for (flat, key) in FLAT_ACTIVITY_KEYS {
        let Some(value) = root.remove(flat) else { continue };
        let section = root.entry("activity").or_insert_with(|| Value::Object(Map::new()));
        // A section of another type is told when it is read.
        let Some(section) = section.as_object_mut() else { continue };
        if section.contains_key(key) {
            warnings.push(Warning::at(flat, format!("activity.{key} counts")));
        } else {
            section.insert(key.to_owned(), value);
        }
    }
}

fn address(text: &str, path: &str) -> Result<SocketAddr, ConfigError> {
    let expanded = match text.rsplit_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("" | "*", port)) => format!("0.0.0.0:{port}"),
        Some(_) | None => text.to_owned(),
    };
    expanded.parse().map_err(|_| {
        let problem =
            format!("'{text}' is no address and port: write it like \"{DEFAULT_LISTEN}\"");
        ConfigError::at(path, problem)
    })
}

fn tools_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_LIMIT)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reading::KNOWN_KEYS;
    use crate::intent::Requirement;
    use crate::output::{Mode, Policy};
    use crate::schema;

    fn home(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/home/me".to_owned())
    }

    fn parsed(text: &str) -> (Config, Vec<String>) {
        let (config, warnings) = parse(text, &home, &Flags::default()).unwrap();
        (config, warnings.iter().map(ToString::to_string).collect())
    }

    fn refused(text: &str) -> String {
        parse(text, &home, &Flags::default()).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_config_is_a_working_config() {
        for text in ["", "{}"] {
            let (config, warnings) = parsed(text);
            assert!(warnings.is_empty());
            assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
            assert_eq!(config.data_dir, Path::new("/home/me/.mcpproxy"));
            assert_eq!((config.api_key, config.require_mcp_auth), (None, false));
            assert_eq!(config.tools_limit, 15);
            assert!(config.servers.is_empty());
            assert!(config.intent.strict_server_validation);
            assert_eq!(config.intent.operation_type, Requirement::Required);
            assert_eq!(config.logging, Logging { level: Level::Info, format: LogFormat::Text });
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let stated = r#"{"mode":"warn","max_bytes":5242880,"max_depth":64,
            "missing_structured_content":"allow","assert_formats":false,"max_held_bytes":67108864,
            "max_held_total_bytes":536870912,"engine":"tape"}"#;
        assert_eq!(OutputValidation::default(), serde_json::from_str(stated).unwrap());
        let stated = r#"{"retention_days":90,"max_records":1000000,"max_size_mb":1024,
            "max_payload_bytes":4096,"max_response_bytes":1024,"durability":"grouped",
            "on_failure":"refuse"}"#;
        assert_eq!(activity::Config::default(), serde_json::from_str(stated).unwrap());
        let stated = r#"{"strict_server_validation":true,"operation_type":"required"}"#;
        assert_eq!(intent::Settings::default(), serde_json::from_str(stated).unwrap());
    }

    #[test]
    fn a_section_keeps_the_defaults_it_does_not_state() {
        let (config, warnings) = parsed(
            r#"{"output_validation": {"mode": "strict", "engine": "boon", "max_depth": 120},
                "intent_declaration": {"operation_type": "inferred"},
                "logging": {"format": "json"}, "tools_limit": 100}"#,
        );
        assert_eq!(warnings, [""; 0]);
        assert_eq!(
            config.output.policy(),
            Policy { mode: Mode::Strict, max_depth: 120, ..Policy::default() }
        );
        assert_eq!(config.output.schemas().engine, schema::compile::Engine::Boon);
        assert!(config.intent.strict_server_validation);
        assert_eq!(config.logging, Logging { level: Level::Info, format: LogFormat::Json });
    }

    #[test]
    fn what_is_wrong_names_the_path() {
        for (text, expected) in [
            (r#"{"listen": 8080}"#, "listen: invalid type: integer `8080`, expected a string"),
            (
                r#"{"listen": "8080"}"#,
                "listen: '8080' is no address and port: write it like \"127.0.0.1:8080\"",
            ),
            (
                r#"{"output_validation": {"mode": "loud"}}"#,
                "output_validation.mode: unknown variant `loud`, expected one of `off`, `warn`, `strict`",
            ),
            (
                r#"{"output_validation": {"max_depth": 0}}"#,
                "output_validation.max_depth: must be 1 to 120, is 0",
            ),
            (
                r#"{"output_validation": {"max_depth": 121}}"#,
                "output_validation.max_depth: must be 1 to 120, is 121",
            ),
            (
                r#"{"output_validation": {"max_held_total_bytes": 1}}"#,
                "output_validation.max_held_total_bytes: must not be less than max_held_bytes",
            ),
            (r#"{"tools_limit": 0}"#, "tools_limit: must be 1 to 100, is 0"),
            (r#"{"tools_limit": 101}"#, "tools_limit: must be 1 to 100, is 101"),
            (
                r#"{"activity": {"max_records": "many"}}"#,
                "activity.max_records: invalid type: string \"many\", expected u64",
            ),
            (
                r#"{"activity_max_records": "many"}"#,
                "activity.max_records: invalid type: string \"many\", expected u64",
            ),
            (
                r#"{"mcpServers": {"s": {"call_timeout": "soon"}}}"#,
                "mcpServers.s.call_timeout: 'soon' is no duration: write it like \"30s\" or \"2m\"",
            ),
            (
                r#"{"mcpServers": {"s": {}, "s": {}}}"#,
                "mcpServers: duplicate server name 's' at line 1 column 28",
            ),
            (r#"{"api_key": "short"}"#, "api_key: must have at least 32 characters"),
            (
                r#"{"api_key": "0123456789 0123456789 0123456789"}"#,
                "api_key: must be printable ASCII without spaces: it is sent as a header",
            ),
        ] {
            assert_eq!(refused(text), expected);
        }
    }

    #[test]
    fn only_loopback_is_listened_on_without_auth() {
        for (listen, open) in [
            ("127.0.0.1:1", false),
            ("localhost:1", false),
            ("[::1]:1", false),
            ("127.9.9.9:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            (":1", true),
            ("192.168.0.1:1", true),
        ] {
            let config = |auth| format!(r#"{{"listen": "{listen}", "require_mcp_auth": {auth}}}"#);
            assert!(parse(&config(true), &home, &Flags::default()).is_ok(), "{listen}");
            let without = parse(&config(false), &home, &Flags::default());
            assert_eq!(without.is_err(), open, "{listen}");
        }
        let error = refused(r#"{"listen": "0.0.0.0:80"}"#);
        assert!(error.starts_with("listen: 0.0.0.0:80 can be reached"), "{error}");
    }

    #[test]
    fn flag_beats_environment_beats_file() {
        let text = r#"{"listen": "127.0.0.1:1", "data_dir": "/file",
            "api_key": "ffffffffffffffffffffffffffffffff", "logging": {"level": "warn"}}"#;
        let env = |name: &str| match name {
            "MCPPROXY_LISTEN" => Some("127.0.0.1:2".to_owned()),
            "MCPPROXY_DATA_DIR" => Some("~/env".to_owned()),
            "MCPPROXY_API_KEY" => Some("e".repeat(32)),
            name => home(name),
        };
        let shown = |env: &dyn Fn(&str) -> Option<String>, flags: &Flags| {
            let (config, _) = parse(text, &env, flags).unwrap();
            let key = config.api_key.unwrap().expose().get(..1).unwrap().to_owned();
            (config.listen.port(), config.data_dir, key, config.logging.level)
        };
        let none = Flags::default();
        assert_eq!(shown(&home, &none), (1, "/file".into(), "f".into(), Level::Warn));
        assert_eq!(shown(&env, &none), (2, "/home/me/env".into(), "e".into(), Level::Warn));
        let flags = Flags {
            listen: Some("127.0.0.1:3".into()),
            data_dir: Some("/flag".into()),
            log_level: Some("debug".into()),
        };
        assert_eq!(shown(&env, &flags), (3, "/flag".into(), "e".into(), Level::Debug));
        let bad = Flags { listen: Some("x".into()), ..Flags::default() };
        let error = parse("", &home, &bad).unwrap_err().to_string();
        assert!(error.starts_with("--listen: "), "{error}");
        let outside = |name: &str| (name == "MCPPROXY_LISTEN").then(|| "0.0.0.0:1".to_owned());
        assert!(parse("", &outside, &none).is_err());
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let (_, warnings) = parsed(
            r#"{"lissten": "x", "servers": {}, "xyzzy": 1, "output_validation": {"max_byte": 1}}"#,
        );
        assert_eq!(
            warnings,
            [
                "unknown key 'lissten' is ignored (did you mean 'listen'?)",
                "unknown key 'output_validation.max_byte' is ignored (did you mean 'max_bytes'?)",
                "unknown key 'servers' is ignored (did you mean 'mcpServers'?)",
                "unknown key 'xyzzy' is ignored",
            ]
        );
    }

    #[test]
    fn every_known_key_is_a_key() {
        // As typed, so that a key that is renamed and not listed is found here.
        let server = r#"{"command": "", "args": [], "env": {}, "cwd": "", "url": "", "headers": {},
            "enabled": true, "protocol": "auto", "init_timeout": "1s", "call_timeout": "1s",
            "enabled_tools": [], "disabled_tools": [], "max_concurrent": 1,
            "capabilities": {"*": {"side_effect": "read", "parallel_safe": true,
                "approval": "auto", "idempotent": true}},
            "output_validation": {"mode": "off", "max_bytes": 1, "max_depth": 1,
                "missing_structured_content": "block", "max_held_bytes": 1, "tools": {}},
            "oauth": {"client_id": "", "client_secret": "", "scopes": []}}"#;
        let text = format!(
            r#"{{"listen": "127.0.0.1:1", "data_dir": "/d", "api_key": "", "require_mcp_auth": false,
                "allowed_hosts": [], "allowed_origins": [], "mcpServers": {{"s": {server}}},
                "tools_limit": 1, "intent_declaration": {{"strict_server_validation": true,
                "operation_type": "required"}}, "output_validation": {{"assert_formats": true,
                "max_held_total_bytes": 99999999999, "engine": "boon"}}, "activity": {{
                "retention_days": 1, "max_records": 1, "max_size_mb": 1, "max_payload_bytes": 1,
                "max_response_bytes": 1, "durability": "grouped", "on_failure": "refuse",
                "redact_keys": [], "queue_records": 1, "queue_bytes": 1}},
                "logging": {{"level": "info", "format": "text"}}}}"#
        );
        let (_, warnings) = parsed(&text);
        assert_eq!(warnings, [""; 0]);
        for key in KNOWN_KEYS {
            assert!(text.contains(&format!("\"{key}\":")), "{key}");
        }
    }

    #[test]
    fn the_old_flat_activity_keys_are_understood() {
        let (config, warnings) = parsed(
            r#"{"activity_retention_days": 7, "activity_max_records": 8, "activity_max_size_mb": 9,
                "activity_max_response_size": 10}"#,
        );
        assert_eq!(warnings, [""; 0]);
        let a = config.activity;
        assert_eq!(
            (a.retention_days, a.max_records, a.max_size_mb, a.max_response_bytes),
            (7, 8, 9, 10)
        );
        let (config, warnings) =
            parsed(r#"{"activity_max_records": 8, "activity": {"max_records": 5}}"#);
        assert_eq!(config.activity.max_records, 5);
        assert_eq!(warnings, ["activity_max_records: activity.max_records counts"]);
    }

    #[test]
    fn the_catalog_knows_the_enabled_servers() {
        let (config, _) = parsed(
            r#"{"mcpServers": {"a": {"command": "x", "enabled": false},
                "b": {"command": "x", "disabled_tools": ["t"]}}}"#,
        );
        let catalog = config.catalog();
        assert_eq!(catalog.servers.keys().map(|name| &**name).collect::<Vec<_>>(), ["b"]);
        assert!(!catalog.servers["b"].offers("t"));
        assert_eq!(catalog.folder.as_deref(), Some(Path::new("/home/me/.mcpproxy/catalog")));
    }

    #[test]
    fn the_key_is_not_shown() {
        let (config, _) = parsed(r#"{"api_key": "0123456789abcdef0123456789abcdef"}"#);
        assert!(!format!("{config:?}").contains("0123456789"));
    }
}
