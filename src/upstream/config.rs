//! One server's entry in `mcpServers`, as far as reaching it goes.
//!
//! What keeps one from naming a server is looked for in `check`. Which of its tools are offered, what they may do and how their answers are judged belongs to
//! the catalog. Unknown keys are
//! the business of whoever reads the file.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::oauth;
use super::server_tls::ServerTls;
use super::status::Transport;
use crate::policy::limits;

mod check;
mod invalid;
mod reference;

pub use check::Mistake;
pub(super) use invalid::Invalid;

pub(super) use reference::fill_unasked;
pub use reference::{NamedValues, ValuePart, value_parts};
use reference::{fill, names_keyring};

/// How a server is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Protocol {
    /// `command` means stdio, `url` means streamable HTTP.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// A child process, one message per line.
    #[serde(rename = "stdio")]
    Stdio,
    /// MCP's streamable HTTP. The names other products use for it are understood.
    #[serde(
        rename = "streamable-http",
        alias = "http",
        alias = "streamableHttp",
        alias = "streamable_http",
        alias = "sse"
    )]
    StreamableHttp,
}

/// Which node of a fleet sends a server's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerAffinity {
    /// Whichever the request came to.
    #[default]
    None,
    /// One for all of a session: the server keeps something between its calls.
    Session,
}

/// One server's entry. `Debug` shows the names of `env` and `headers`, never their values.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The program to start, looked up in `PATH`.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables added to ours. `${env:NAME}` and the like are filled in.
    pub env: BTreeMap<String, String>,
    /// Its working folder.
    pub cwd: Option<PathBuf>,
    /// The MCP endpoint. `${env:NAME}` is filled in.
    pub url: Option<String>,
    /// Headers of every request to it. `${env:NAME}` is filled in.
    pub headers: BTreeMap<String, String>,
    /// False: known, but never started.
    pub enabled: bool,
    /// How to reach it; the key `type` of other products is understood.
    #[serde(alias = "type")]
    pub protocol: Protocol,
    /// Most time from starting or connecting until the server has been initialized.
    #[serde(deserialize_with = "duration")]
    pub init_timeout: Duration,
    /// Most time from a call until the first byte of its answer, whatever it waits for; a message
    /// before the answer begins it anew.
    #[serde(deserialize_with = "duration")]
    pub call_timeout: Duration,
    /// Most calls at a time: the older name of `limits.concurrent`.
    pub max_concurrent: Option<NonZeroUsize>,
    /// What goes to it at a time and how often, and when it is set aside. Who asks is held to it before a call
    /// comes here.
    pub limits: limits::ServerConfig,
    /// Which node of a fleet its calls go to.
    pub affinity: ServerAffinity,
    /// How TLS is done with it; absent: the system's authorities count, and we are nobody.
    pub tls: Option<ServerTls>,
    /// How to log in, where clients cannot register themselves.
    pub oauth: Option<oauth::Settings>,
    /// What its references led to when the config was read ([`look_up`](Self::look_up)).
    #[serde(skip)]
    pub named: Option<NamedValues>,
    /// Where logins are kept; it comes from the whole config, not from the entry. Absent: nowhere.
    #[serde(skip)]
    pub data_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            url: None,
            headers: BTreeMap::new(),
            enabled: true,
            protocol: Protocol::Auto,
            init_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(120),
            max_concurrent: None,
            limits: limits::ServerConfig::default(),
            affinity: ServerAffinity::None,
            tls: None,
            oauth: None,
            named: None,
            data_dir: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("headers", &self.headers.keys())
            .field("enabled", &self.enabled)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// True if a server that runs by this runs by `other` as well: they differ in nothing, or only in how calls come to
    /// it.
    #[must_use]
    pub fn runs_as(&self, other: &Self) -> bool {
        let other = Self {
            call_timeout: self.call_timeout,
            max_concurrent: self.max_concurrent,
            limits: self.limits,
            affinity: self.affinity,
            data_dir: self.data_dir.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// Which way an entry is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stdio,
    Http,
}

/// What an entry comes down to.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Target {
    Stdio { command: String, args: Vec<String>, env: Vec<(String, String)>, cwd: Option<PathBuf> },
    Http { url: String, headers: Vec<(String, String)> },
}

impl Config {
    /// The values that may be references, or hold some.
    fn referring(&self) -> impl Iterator<Item = &str> {
        let secret = self.oauth.as_ref().and_then(|it| it.client_secret.as_ref());
        let values = self.env.values().chain(self.headers.values()).chain(&self.url).chain(secret);
        values.map(String::as_str)
    }

    /// The files that hold values of it.
    pub fn named_files(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> impl Iterator<Item = PathBuf> {
        self.referring().flat_map(|value| reference::files(value, lookup))
    }

    /// Those of them that others can read, in words.
    #[must_use]
    pub fn exposed_files(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        self.named_files(lookup).filter_map(|file| reference::exposure(&file)).collect()
    }

    /// Looks where its references lead, so that it differs from what it was when anything of that has changed. Reads
    /// files.
    pub fn look_up(&mut self, lookup: &dyn Fn(&str) -> Option<String>) {
        self.named = reference::digest(self.referring(), lookup);
    }

    /// What to start or connect to, with what it names filled in; `lookup` finds environment variables. Blocks, for long
    /// where a keyring is asked.
    pub(super) fn target(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Target, Invalid> {
        match (self.kind()?, &self.command, &self.url) {
            (Kind::Stdio, None, _) => Err(Invalid::NoCommand),
            (Kind::Http, _, None) => Err(Invalid::NoUrl),
            (Kind::Stdio, Some(command), _) => Ok(Target::Stdio {
                command: command.clone(),
                args: self.args.clone(),
                env: fill_all(&self.env, "env", lookup)?,
                cwd: self.cwd.clone(),
            }),
            (Kind::Http, _, Some(url)) => Ok(Target::Http {
                url: fill(url, "url", lookup)?,
                headers: fill_all(&self.headers, "headers", lookup)?,
            }),
        }
    }

    /// How it is reached, as far as its keys tell: nothing is read.
    pub(super) fn transport(&self) -> Transport {
        match self.kind() {
            Ok(Kind::Stdio) => Transport::Stdio,
            Ok(Kind::Http) => Transport::StreamableHttp,
            Err(_) => Transport::Unknown,
        }
    }

    /// Whether it may be reached over TLS, as far as its keys tell: a URL that is a reference may be any.
    pub(super) fn may_use_tls(&self) -> bool {
        let is_plain = |url: &String| url.starts_with("http:") || url.starts_with("unix:");
        self.url.as_ref().is_some_and(|url| !is_plain(url))
    }

    /// Whether a keyring is asked when it is connected to.
    pub(super) fn asks_keyring(&self) -> bool {
        self.referring().any(names_keyring)
    }

    /// Which way it is reached, by the keys that are there.
    fn kind(&self) -> Result<Kind, Invalid> {
        match (self.protocol, &self.command, &self.url) {
            (Protocol::Auto, None, None) => Err(Invalid::Neither),
            (Protocol::Auto, Some(_), Some(_)) => Err(Invalid::Both),
            (Protocol::Stdio, None, _) => Err(Invalid::NoCommand),
            (Protocol::StreamableHttp, _, None) => Err(Invalid::NoUrl),
            (Protocol::Auto | Protocol::Stdio, Some(_), _) => Ok(Kind::Stdio),
            (Protocol::Auto | Protocol::StreamableHttp, _, Some(_)) => Ok(Kind::Http),
        }
    }
}

impl Config {
    /// The secret of the client that was registered by hand, with `${env:NAME}` filled in.
    pub(super) fn oauth_secret(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, Invalid> {
        let secret = self.oauth.as_ref().and_then(|oauth| oauth.client_secret.as_deref());
        secret.map(|secret| fill(secret, "oauth.client_secret", lookup)).transpose()
    }
}

/// `value`, which stands under `key`, with what it names filled in as in a server's entry; `lookup` finds environment
/// variables. Reads files.
///
/// # Errors
/// What cannot be had. Nothing of the value is quoted.
pub fn filled_in(
    value: &str,
    key: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    fill(value, key, lookup).map_err(|invalid| invalid.to_string())
}

/// What the references in `values` lead to now ([`NamedValues`]). Reads files.
pub fn named_values<'v>(
    values: impl IntoIterator<Item = &'v str>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Option<NamedValues> {
    reference::digest(values, lookup)
}

/// The files that `value` names.
#[must_use]
pub fn named_files(value: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    reference::files(value, lookup)
}

/// The variables of the environment that `value` names.
pub fn named_variables(value: &str) -> impl Iterator<Item = &str> {
    value_parts(value).into_iter().filter_map(|part| match part {
        ValuePart::Variable(whole) => whole.strip_prefix("${env:")?.strip_suffix('}'),
        ValuePart::Plain(_) | ValuePart::Kept(_) => None,
    })
}

fn fill_all(
    values: &BTreeMap<String, String>,
    key: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, Invalid> {
    values
        .iter()
        .map(|(name, value)| Ok((name.clone(), fill(value, &format!("{key}.{name}"), lookup)?)))
        .collect()
}

/// `"30s"`, `"2m"`, `"1h 30m"`: more than zero.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(deserializer)?;
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            D::Error::custom(format!("'{text}' is no duration: write it like \"30s\" or \"2m\""))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        serde_json::from_str(json).unwrap()
    }

    fn environment(name: &str) -> Option<String> {
        (name == "TOKEN").then(|| "s3cret".to_owned())
    }

    #[test]
    fn the_entry_that_users_have_is_read() {
        let config = config(
            r#"{"command":"npx","args":["-y","x"],"env":{"KEY":"a${env:TOKEN}b"},"cwd":"/tmp",
                "call_timeout":"1m 30s","max_concurrent":4}"#,
        );
        assert_eq!(config.init_timeout, Duration::from_secs(30));
        assert_eq!(config.call_timeout, Duration::from_secs(90));
        assert!(config.enabled);
        let Ok(Target::Stdio { command, env, .. }) = config.target(&environment) else { panic!() };
        assert_eq!((command.as_str(), env), ("npx", vec![("KEY".into(), "as3cretb".into())]));
        assert!(!format!("{config:?}").contains("TOKEN"), "values must not show");
    }

    #[test]
    fn an_entry_that_names_no_server_says_why() {
        let reason = |json| config(json).target(&environment).err().map(|e| e.to_string());
        assert_eq!(reason("{}"), Some("neither command nor url is given".into()));
        assert_eq!(
            reason(r#"{"command":"a","url":"http://b"}"#),
            Some(
                "both command and url are given and protocol does not say which one counts".into()
            )
        );
        assert_eq!(reason(r#"{"command":"a","url":"http://b","type":"http"}"#), None);
        assert_eq!(
            reason(r#"{"url":"http://b","headers":{"X-Key":"${env:NOPE}"}}"#),
            Some("environment variable NOPE is not set, which headers.X-Key asks for".into())
        );
        assert_eq!(
            reason(r#"{"url":"http://b/${env:TOKEN"}"#),
            Some("url holds a ${…: without its closing brace".into())
        );
    }

    #[test]
    fn a_duration_is_more_than_zero_and_has_a_unit() {
        for bad in ["0s", "-1s", "5", "", "soon"] {
            let json = format!(r#"{{"call_timeout":"{bad}"}}"#);
            assert!(serde_json::from_str::<Config>(&json).is_err(), "{bad:?}");
        }
    }
}
