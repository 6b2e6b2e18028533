//! Connection settings of one server: its entry in `mcpServers`.
//!
//! [`check`] validates entries; tool settings belong to the catalog, unknown keys to the reader of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::check::Mistake;
pub(super) use self::reference::{Invalid, fill_without_keyring};
pub use self::reference::{NamedValues, ValuePart, unset_variable, value_parts};
use self::reference::{fill, refers_to_keyring};
pub use self::secrets::is_plain_header;
use crate::endpoint::{ServerTls, UrlForm, parse_url};
use crate::state::Transport;
use mcpproxy_policy::limits;
use mcpproxy_runtime::io::egress_proxy::Egress;

mod check;
mod reference;
mod secrets;

/// Transport of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Protocol {
    /// `command` means stdio, `url` means streamable HTTP.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// A child process, one message per line.
    #[serde(rename = "stdio")]
    Stdio,
    /// MCP's streamable HTTP. Accepts the names used by other products.
    #[serde(
        rename = "streamable-http",
        alias = "http",
        alias = "streamableHttp",
        alias = "streamable_http",
        alias = "sse"
    )]
    StreamableHttp,
}

/// Selects the fleet node that sends a server's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerAffinity {
    /// The node that received the request.
    #[default]
    None,
    /// One node per session, for servers that keep state between calls.
    Session,
}

/// Protocol family for a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolEra {
    /// Modern if the server supports it. Clients to which the server can send requests only in the legacy family use a
    /// second connection.
    #[default]
    Auto,
    /// Uses `initialize`, without a probe.
    Legacy,
    /// Uses only `server/discover`.
    Modern,
}

/// Name of the key `proxy` in messages.
const PROXY_SETTING: &str = "proxy of the server";

/// Entry of one server. `Debug` shows the names of `env` and `headers`, never their values.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Program to start, looked up in `PATH`.
    pub command: Option<String>,
    pub args: Vec<String>,
    /// Environment variables added to the inherited ones. References such as `${env:NAME}` are resolved.
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    /// The MCP endpoint. References are resolved.
    pub url: Option<String>,
    /// Headers of every request. References are resolved.
    pub headers: BTreeMap<String, String>,
    /// Whether the server is started; a disabled server is known but never started.
    pub enabled: bool,
    /// Transport; also accepted as `type`, the key used by other products.
    #[serde(alias = "type")]
    pub protocol: Protocol,
    /// Maximum time from the start or connection attempt until the server is initialized.
    #[serde(deserialize_with = "duration")]
    pub init_timeout: Duration,
    /// Maximum time from a call to the first byte of its response, including all waits; a message before the response restarts it.
    #[serde(deserialize_with = "duration")]
    pub call_timeout: Duration,
    /// Maximum number of concurrent calls: the older name of `limits.concurrent`.
    pub max_concurrent: Option<NonZeroUsize>,
    /// Concurrency, rate and circuit breaker limits, enforced before a call reaches this crate.
    pub limits: limits::ServerConfig,
    pub affinity: ServerAffinity,
    pub protocol_era: ProtocolEra,
    /// Time without a call after which the second connection is closed.
    #[serde(deserialize_with = "duration")]
    pub second_idle_timeout: Duration,
    /// TLS settings; if absent, the system's certificate authorities and no client certificate.
    pub tls: Option<ServerTls>,
    /// Egress proxy for the server and its authorization server: a URL, or `none`. If absent, the environment's setting applies. References
    /// are resolved.
    pub proxy: Option<String>,
    /// OAuth client settings, for servers without dynamic client registration.
    pub oauth: Option<OauthSettings>,
    /// Digest of the resolved references at the time the config was read ([`look_up`](Self::look_up)).
    #[serde(skip)]
    pub named: Option<NamedValues>,
    /// Directory of stored logins, from the config as a whole. If absent, logins are not stored.
    #[serde(skip)]
    pub data_dir: Option<PathBuf>,
}

/// Default of `init_timeout`.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `second_idle_timeout`.
const SECOND_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for a start in which a package manager may first install the server, unless `init_timeout` is set.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Programs that install and run the package that their first argument names.
const PACKAGE_RUNNERS: [&str; 5] = ["npx", "uvx", "bunx", "pnpx", "pipx"];
/// Other programs that may install the server before starting it.
const OTHER_INSTALLERS: [&str; 2] = ["uv", "docker"];

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
            init_timeout: INIT_TIMEOUT,
            call_timeout: Duration::from_secs(120),
            max_concurrent: None,
            limits: limits::ServerConfig::default(),
            affinity: ServerAffinity::None,
            protocol_era: ProtocolEra::Auto,
            second_idle_timeout: SECOND_IDLE_TIMEOUT,
            tls: None,
            proxy: None,
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
    /// Whether a server started with this entry may keep running under `other`. The entries may differ only in settings
    /// for calls, such as limits.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stdio,
    Http,
}

/// Resolved entry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Target {
    Stdio(ChildCommand),
    Http {
        url: String,
        headers: Vec<(String, String)>,
        egress: Egress,
        /// Credentials for the grant `client_credentials`, if the entry uses it.
        client: Option<ClientCredentials>,
    },
}

/// Command line of a stdio server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ChildCommand {
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
    /// Variables that the entry refers to and the child may inherit.
    pub(super) named: BTreeSet<String>,
}

impl Config {
    /// Values that may contain references.
    fn referring_values(&self) -> impl Iterator<Item = &str> {
        let secret = self.oauth.as_ref().and_then(|it| it.client_secret.as_ref());
        let values = self.env.values().chain(self.headers.values()).chain(&self.url);
        values.chain(&self.proxy).chain(secret).map(String::as_str)
    }

    /// Environment variables that the entry refers to.
    pub fn named_variables(&self) -> impl Iterator<Item = &str> {
        self.referring_values().flat_map(named_variables)
    }

    /// Files that the entry refers to.
    pub fn named_files(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> impl Iterator<Item = PathBuf> {
        self.referring_values().flat_map(|value| reference::files(value, lookup))
    }

    /// Descriptions of referenced files that other users can read.
    pub fn exposed_files(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        self.named_files(lookup).filter_map(|file| reference::exposure(&file)).collect()
    }

    /// Updates the digest of the referenced values, so that a changed value makes the entry unequal. Reads files.
    pub fn look_up(&mut self, lookup: &dyn Fn(&str) -> Option<String>) {
        self.named = reference::digest(self.referring_values(), lookup);
    }

    /// Resolves the entry; `lookup` reads environment variables. Blocks, possibly for a long time if a keyring is involved.
    pub(super) fn target(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Target, Invalid> {
        match (self.kind()?, &self.command, &self.url) {
            (Kind::Stdio, None, _) => Err(Invalid::NoCommand),
            (Kind::Http, _, None) => Err(Invalid::NoUrl),
            (Kind::Stdio, Some(command), _) => Ok(Target::Stdio(ChildCommand {
                command: command.clone(),
                args: self.args.clone(),
                env: fill_all(&self.env, "env", lookup)?,
                cwd: self.cwd.clone(),
                named: self.named_variables().map(str::to_owned).collect(),
            })),
            (Kind::Http, _, Some(url)) => Ok(Target::Http {
                url: fill(url, "url", lookup)?,
                headers: fill_all(&self.headers, "headers", lookup)?,
                egress: self.egress(lookup)?,
                client: self.client_credentials(lookup)?,
            }),
        }
    }

    /// Resolved egress setting.
    fn egress(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Egress, Invalid> {
        let proxy = self.proxy.as_deref().map(|proxy| fill(proxy, "proxy", lookup)).transpose()?;
        Egress::parse(proxy.as_deref(), PROXY_SETTING).map_err(|why| Invalid::Proxy { why })
    }

    /// Description of the egress to the server; `None` if no proxy is set for it, or if describing it would require a keyring.
    ///
    /// # Errors
    /// Fails if the applicable setting is invalid.
    pub fn egress_summary(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, String> {
        let url = self.url.as_deref().filter(|_| self.kind() == Ok(Kind::Http));
        let Some(url) = url.filter(|_| !self.asks_keyring()) else { return Ok(None) };
        let Some(UrlForm::Web(url)) =
            fill(url, "url", lookup).ok().and_then(|url| parse_url(&url).ok())
        else {
            return Ok(None);
        };
        let egress = self.egress(lookup).map_err(|invalid| invalid.to_string())?;
        Ok(match egress.route(&url)?.proxy() {
            Some(proxy) => Some(format!("through {proxy}")),
            None => egress.bypass(&url).map(|why| format!("directly: {why}")),
        })
    }

    /// Transport, as far as the keys determine it. Does not read references.
    pub(super) fn transport(&self) -> Transport {
        match self.kind() {
            Ok(Kind::Stdio) => Transport::Stdio,
            Ok(Kind::Http) => Transport::StreamableHttp,
            Err(_) => Transport::Unknown,
        }
    }

    /// Effective `init_timeout` for a start that may first install the server: [`INSTALL_TIMEOUT`] for a command like `npx`, unless another
    /// time is configured.
    pub fn first_init_timeout(&self) -> Duration {
        let installs = self.runs_package() || OTHER_INSTALLERS.contains(&self.program());
        match installs && self.init_timeout == INIT_TIMEOUT {
            true => INSTALL_TIMEOUT,
            false => self.init_timeout,
        }
    }

    /// Whether the command runs a package that one of its arguments names.
    fn runs_package(&self) -> bool {
        PACKAGE_RUNNERS.contains(&self.program())
    }

    /// Name of the command without its directory and extension; empty if there is none.
    fn program(&self) -> &str {
        let command = self.command.as_deref().unwrap_or_default();
        Path::new(command).file_stem().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Whether TLS may be used, as far as the keys determine it; a URL that is a reference may have any scheme.
    pub(super) fn may_use_tls(&self) -> bool {
        let is_plain = |url: &String| url.starts_with("http:") || url.starts_with("unix:");
        self.url.as_ref().is_some_and(|url| !is_plain(url))
    }

    /// Whether resolving the entry involves a keyring.
    pub(super) fn asks_keyring(&self) -> bool {
        self.referring_values().any(refers_to_keyring)
    }

    /// Transport that follows from the present keys.
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
    /// Secret of the preregistered OAuth client, resolved.
    pub(super) fn oauth_secret(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, Invalid> {
        let secret = self.oauth.as_ref().and_then(|oauth| oauth.client_secret.as_deref());
        secret.map(|secret| fill(secret, "oauth.client_secret", lookup)).transpose()
    }

    /// Resolved client of the grant `client_credentials`; `None` for another grant.
    fn client_credentials(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<ClientCredentials>, Invalid> {
        let Some(oauth) = self.oauth.as_ref().filter(|oauth| oauth.grant.is_unattended()) else {
            return Ok(None);
        };
        if let Some(key) = oauth.missing_credential() {
            return Err(Invalid::NoCredential { key });
        }
        Ok(Some(ClientCredentials {
            settings: ClientSettings {
                id: oauth.client_id.clone().unwrap_or_default(),
                issuer: oauth.issuer.clone(),
                scopes: oauth.scopes.clone(),
            },
            secret: self.oauth_secret(lookup)?.unwrap_or_default(),
        }))
    }

    /// Whether the server's tokens are requested without a person, by the grant `client_credentials`.
    pub(super) fn is_unattended(&self) -> bool {
        self.oauth.as_ref().is_some_and(|oauth| oauth.grant.is_unattended())
    }
}

/// Resolves `value`, found under `key`; `lookup` reads environment variables. Reads files.
///
/// # Errors
/// The reason, without quoting the value.
pub fn filled_in(
    value: &str,
    key: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    fill(value, key, lookup).map_err(|invalid| invalid.to_string())
}

/// Digest of the values that the references in `values` currently resolve to. Reads files.
pub fn named_values<'v>(
    values: impl IntoIterator<Item = &'v str>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Option<NamedValues> {
    reference::digest(values, lookup)
}

pub fn named_files(value: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    reference::files(value, lookup)
}

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

/// Parses durations such as `"30s"`, `"2m"` and `"1h 30m"`; rejects zero.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(deserializer)?;
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            D::Error::custom(format!("'{text}' is not a duration: write it like \"30s\" or \"2m\""))
        })
}

/// OAuth grant that is used to obtain a server's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OauthGrant {
    /// A person logs in with a browser (RFC 6749 §4.1, with PKCE).
    #[default]
    AuthorizationCode,
    /// The proxy requests tokens itself, as the configured client (RFC 6749 §4.4).
    ClientCredentials,
}

impl OauthGrant {
    const fn is_unattended(self) -> bool {
        match self {
            Self::AuthorizationCode => false,
            Self::ClientCredentials => true,
        }
    }
}

/// Client of the grant `client_credentials`. Does not implement `Debug`, because it contains the secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ClientCredentials {
    pub(super) settings: ClientSettings,
    pub(super) secret: String,
}

/// Client settings that tokens depend on. Tokens obtained with other settings are not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientSettings {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) issuer: Option<String>,
    /// Requested scopes; if empty, the scopes that the server asks for.
    pub(super) scopes: Vec<String>,
}

/// OAuth client of a server's entry, for authorization servers without dynamic registration. `Debug` hides secrets.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OauthSettings {
    pub grant: OauthGrant,
    /// Preregistered client id.
    pub client_id: Option<String>,
    /// Client secret. References are resolved.
    pub client_secret: Option<String>,
    /// Authorization server where the client is registered; id and secret are never sent to another. If absent, the first one used.
    pub issuer: Option<String>,
    /// Https URL of the client's metadata document, which is the client's id at authorization servers that support such documents; at
    /// others, the client registers dynamically.
    pub client_metadata_url: Option<String>,
    /// Requested scopes; if empty, the scopes that the server asks for.
    pub scopes: Vec<String>,
}

impl OauthSettings {
    /// Key that the grant `client_credentials` requires but that is missing or empty.
    fn missing_credential(&self) -> Option<&'static str> {
        let is_missing = |value: &Option<String>| value.as_ref().is_none_or(String::is_empty);
        let keys = [("client_id", &self.client_id), ("client_secret", &self.client_secret)];
        let mut missing = keys.into_iter().filter(|(_, value)| is_missing(value));
        missing.next().map(|(key, _)| key).filter(|_| self.grant.is_unattended())
    }
}

impl std::fmt::Debug for OauthSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OauthSettings").field("client_id", &self.client_id).finish_non_exhaustive()
    }
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
    fn common_entry_is_parsed() {
        let config = config(
            r#"{"command":"npx","args":["-y","x"],"env":{"KEY":"a${env:TOKEN}b"},"cwd":"/tmp",
                "call_timeout":"1m 30s","max_concurrent":4}"#,
        );
        assert_eq!(config.init_timeout, Duration::from_secs(30));
        assert_eq!(config.call_timeout, Duration::from_secs(90));
        assert!(config.enabled);
        let Ok(Target::Stdio(ChildCommand { command, env, .. })) = config.target(&environment)
        else {
            panic!()
        };
        assert_eq!((command.as_str(), env), ("npx", vec![("KEY".into(), "as3cretb".into())]));
        assert!(!format!("{config:?}").contains("TOKEN"), "values are hidden");
    }

    #[test]
    fn entry_that_names_no_server_is_rejected_with_the_reason() {
        let reason = |json| config(json).target(&environment).err().map(|e| e.to_string());
        assert_eq!(reason("{}"), Some("neither command nor url is given".into()));
        assert_eq!(
            reason(r#"{"command":"a","url":"http://b"}"#),
            Some(
                "both command and url are given and protocol does not say which one to use".into()
            )
        );
        assert_eq!(reason(r#"{"command":"a","url":"http://b","type":"http"}"#), None);
        assert_eq!(
            reason(r#"{"url":"http://b","headers":{"X-Key":"${env:NOPE}"}}"#),
            Some("environment variable NOPE, referenced by headers.X-Key, is not set".into())
        );
        assert_eq!(
            reason(r#"{"url":"http://b/${env:TOKEN"}"#),
            Some("url contains a reference '${…' without a closing brace".into())
        );
    }

    #[test]
    fn installer_gets_more_time_for_its_first_start_unless_a_time_is_set() {
        for (json, expected) in [
            (r#"{"command":"npx"}"#, INSTALL_TIMEOUT),
            (r#"{"command":"/usr/bin/uvx"}"#, INSTALL_TIMEOUT),
            (r#"{"command":"npx","init_timeout":"5s"}"#, Duration::from_secs(5)),
            (r#"{"command":"node"}"#, INIT_TIMEOUT),
            (r#"{"url":"http://h"}"#, INIT_TIMEOUT),
        ] {
            assert_eq!(config(json).first_init_timeout(), expected, "{json}");
        }
    }

    #[test]
    fn duration_requires_a_unit_and_is_not_zero() {
        for bad in ["0s", "-1s", "5", "", "soon"] {
            let json = format!(r#"{{"call_timeout":"{bad}"}}"#);
            assert!(serde_json::from_str::<Config>(&json).is_err(), "{bad:?}");
        }
    }
}
