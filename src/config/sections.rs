//! Config sections that belong to no other crate, with their defaults and bounds: the root, `output_validation`,
//! `result_limit`, `policy`, `logging`, `auth`, `tls`, `telemetry`, and checks of `search`.
//!
//! References in header values of `telemetry` (`${env:NAME}` and the like) are resolved by the exporter when it starts and
//! when the config changes, so that a missing one only stops the export.

use crate::Environment;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue};
use mcpproxy_activity as activity;
use mcpproxy_catalog::embeddings::SearchSection;
use mcpproxy_catalog::grade::ReviewSettings;
use mcpproxy_catalog::settings::MAX_DEPTH;
use mcpproxy_fleet::ClusterConfig;
use mcpproxy_gateway::proxy::builtin::retrieve::MAX_LIMIT;
use mcpproxy_gateway::results::StoreBounds;
use mcpproxy_gateway::telemetry::Sampling;
use mcpproxy_policy::identity::{Algorithm, KeySource, Settings};
use mcpproxy_policy::rules::{Preset, RulesDefault, RulesMode};
use mcpproxy_policy::tool::{self, InputPolicy, ResultLimit};
use mcpproxy_policy::{approvals, intent, limits};
use mcpproxy_protocol::mcp::revisions::Offered;
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::io::tls::{CertifiedPair, TlsFileProblem, TlsKey, roots};
use mcpproxy_schema as schema;
use mcpproxy_schema::output::{MissingContent, Mode, Policy};
use mcpproxy_upstream::oauth::check_key_set_url;
use mcpproxy_upstream::{NamedValues, filled_in, named_files, named_values, named_variables};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use url::{Host, Url};

use crate::document::Findings;
use crate::problem::{KeyPath, within};

/// Root of the config file as typed. `mcpServers` is read separately, by [`servers`](crate::servers).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TopLevel {
    pub(super) listen: Option<String>,
    pub(super) tls: Option<TlsSection>,
    pub(super) data_dir: Option<String>,
    pub(super) api_key: Option<String>,
    pub(super) require_mcp_auth: bool,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    #[serde(deserialize_with = "tools_limit")]
    pub(super) tools_limit: Option<usize>,
    #[serde(deserialize_with = "stream_interval")]
    pub(super) stream_after: Option<Duration>,
    #[serde(deserialize_with = "stream_interval")]
    pub(super) keepalive: Option<Duration>,
    pub(super) offered_era: Offered,
    pub(super) intent_declaration: intent::Settings,
    pub(super) limits: limits::Config,
    pub(super) output_validation: OutputValidation,
    pub(super) input_validation: InputPolicy,
    pub(super) result_limit: ResultLimitSection,
    pub(super) search: SearchSection,
    pub(super) approval: approvals::Config,
    pub(super) catalog: ReviewSettings,
    pub(super) activity: activity::Config,
    pub(super) cluster: ClusterConfig,
    pub(super) auth: Auth,
    pub(super) policy: PolicySection,
    pub(super) logging: Logging,
    pub(super) telemetry: TelemetrySection,
}

/// Root key that holds the servers.
pub const SERVERS_KEY: &str = "mcpServers";

/// Minimum length of an API key in characters.
pub const MIN_API_KEY_CHARS: usize = 32;

/// API key of the REST interface; redacted in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Validates a key.
    pub(super) fn new(text: String) -> Result<Self, String> {
        let problem = if text.chars().count() < MIN_API_KEY_CHARS {
            format!("must have at least {MIN_API_KEY_CHARS} characters")
        } else if !text.chars().all(|c| c.is_ascii_graphic()) {
            "must be printable ASCII without spaces: it is sent as a header".to_owned()
        } else {
            return Ok(Self(text));
        };
        Err(problem)
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// Section `output_validation`: defaults for all servers and tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OutputValidation {
    /// Reaction to a violation.
    pub mode: Mode,
    /// Maximum size of structuredContent in bytes.
    pub max_bytes: u64,
    /// Maximum nesting of structuredContent, 1 to 120.
    #[serde(deserialize_with = "depth")]
    pub max_depth: u32,
    /// Treatment of missing structuredContent in strict mode.
    pub missing_structured_content: MissingContent,
    /// Whether `format` is asserted.
    pub assert_formats: bool,
    /// Maximum size of one held result in bytes.
    pub max_held_bytes: u64,
    /// Maximum size of all held results in bytes.
    pub max_held_total_bytes: u64,
    /// Bytes reserved for each server; by default half of the total divided by the number of enabled servers, at most
    /// `max_held_bytes`.
    pub held_share_bytes: Option<u64>,
    pub engine: EngineName,
}

/// Names of [`schema::compile::Engine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Tape engine, with boon as fallback.
    #[default]
    Tape,
    Boon,
}

/// Default of `max_held_total_bytes`: 512 MiB.
const MAX_HELD_TOTAL_BYTES: u64 = 512 * 1024 * 1024;

impl Default for OutputValidation {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            mode: policy.mode,
            max_bytes: policy.max_bytes,
            max_depth: policy.max_depth,
            missing_structured_content: policy.missing,
            assert_formats: false,
            max_held_bytes: policy.max_held_bytes,
            max_held_total_bytes: MAX_HELD_TOTAL_BYTES,
            held_share_bytes: None,
            engine: EngineName::Tape,
        }
    }
}

impl OutputValidation {
    /// Policy that servers and tools may override.
    pub fn policy(&self) -> Policy {
        Policy {
            mode: self.mode,
            max_bytes: self.max_bytes,
            max_depth: self.max_depth,
            missing: self.missing_structured_content,
            max_held_bytes: self.max_held_bytes,
        }
    }

    /// Settings of the schema compiler.
    pub fn schemas(&self) -> schema::compile::Settings {
        schema::compile::Settings {
            engine: match self.engine {
                EngineName::Tape => schema::compile::Engine::Tape,
                EngineName::Boon => schema::compile::Engine::Boon,
            },
            assert_formats: self.assert_formats,
        }
    }
}

/// Section `result_limit`: default limit of results, and bounds of the store for withheld ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResultLimitSection {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "tool::limit_bytes")]
    pub bytes: u64,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "tool::keep_time")]
    pub keep: Duration,
    /// Maximum size of all stored results in bytes.
    pub max_kept_bytes: u64,
    /// Maximum number of stored results, 1 to 10 000.
    #[serde(deserialize_with = "max_kept")]
    pub max_kept: usize,
}

/// Default of `max_kept_bytes`: 256 MiB.
const MAX_KEPT_BYTES: u64 = 256 * 1024 * 1024;
/// Default of `max_kept`.
const DEFAULT_MAX_KEPT: usize = 1000;
/// Upper bound of `max_kept`.
const MAX_KEPT: usize = 10_000;

impl Default for ResultLimitSection {
    fn default() -> Self {
        let ResultLimit { bytes, keep } = ResultLimit::default();
        Self { bytes, keep, max_kept_bytes: MAX_KEPT_BYTES, max_kept: DEFAULT_MAX_KEPT }
    }
}

impl ResultLimitSection {
    /// Limit that servers and tools may override.
    pub fn limit(&self) -> ResultLimit {
        ResultLimit { bytes: self.bytes, keep: self.keep }
    }

    /// Bounds of the result store.
    pub fn bounds(&self) -> StoreBounds {
        StoreBounds { max_bytes: self.max_kept_bytes, max_results: self.max_kept }
    }
}

fn max_kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_KEPT))
}

/// Section `policy`: rules and their enforcement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicySection {
    /// Cedar rule files.
    pub files: Vec<String>,
    /// Decision if no rule applies.
    pub default: RulesDefault,
    /// Effect of a refusal.
    pub mode: RulesMode,
    /// Built-in rule sets to enable.
    pub presets: Vec<Preset>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Logging {
    /// Minimum level of log lines.
    pub level: LogLevel,
    /// Output format.
    pub format: LogFormat,
}

/// Log levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

fn tools_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    within(usize::deserialize(deserializer)?, &(1..=MAX_LIMIT)).map(Some)
}

/// Bounds of `stream_after` and `keepalive`.
const STREAM_INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_hours(1);

fn stream_interval<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let interval = parsed.and_then(|interval| Duration::try_from(interval).ok());
    match interval.filter(|interval| STREAM_INTERVALS.contains(interval)) {
        Some(interval) => Ok(Some(interval)),
        None => Err(serde::de::Error::custom(format_args!(
            "'{text}' must be a duration of 100ms to 1h, like \"5s\""
        ))),
    }
}

fn depth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(u32::deserialize(deserializer)?, &MAX_DEPTH)
}

/// Maximum size of an issuer, audience or claim name in bytes.
const MAX_TEXT_BYTES: usize = 2048;

/// Section `auth`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Auth {
    /// Section `auth.jwt`.
    pub(super) jwt: Option<JwtSection>,
}

/// Section `auth.jwt`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct JwtSection {
    issuer: Option<String>,
    audience: Option<String>,
    jwks_url: Option<String>,
    jwks_file: Option<String>,
    algorithms: Option<Vec<Algorithm>>,
    groups_claim: Option<String>,
}

impl JwtSection {
    /// Validates the section; `None` after an error. A relative `jwks_file` is resolved in `data_dir`.
    pub(super) fn read(self, data_dir: &Path, findings: &mut Findings<'_>) -> Option<Settings> {
        let at = KeyPath::root("auth").key("jwt");
        let required = |name: &'static str, text: Option<String>, findings: &mut Findings<'_>| {
            let text = text.filter(|text| (1..=MAX_TEXT_BYTES).contains(&text.len()));
            if text.is_none() {
                let problem = format_args!("must be a string of 1 to {MAX_TEXT_BYTES} bytes");
                findings.error(&at.key(name), problem);
            }
            text
        };
        let issuer = required("issuer", self.issuer, findings);
        let audience = required("audience", self.audience, findings);
        let claim = self.groups_claim.or_else(|| Some("groups".to_owned()));
        let claim = required("groups_claim", claim, findings);
        let keys = match (self.jwks_url, self.jwks_file) {
            (Some(url), None) => match check_key_set_url(&url) {
                Ok(()) => Some(KeySource::Url(url.into())),
                Err(problem) => {
                    findings.error(&at.key("jwks_url"), problem);
                    None
                }
            },
            (None, Some(file)) if !file.is_empty() => Some(KeySource::File(data_dir.join(file))),
            (Some(_), Some(_)) | (None, Some(_) | None) => {
                findings.error(&at, "requires exactly one of jwks_url and jwks_file");
                None
            }
        };
        let usual = || vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];
        let algorithms = self.algorithms.unwrap_or_else(usual);
        if algorithms.is_empty() {
            findings.error(&at.key("algorithms"), "must name at least one algorithm");
        }
        Some(Settings {
            issuer: issuer?.into(),
            audience: audience?.into(),
            keys: keys?,
            algorithms: (!algorithms.is_empty()).then_some(algorithms)?,
            groups_claim: claim?.into(),
        })
    }
}

/// Section `tls`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct TlsSection {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
}

/// Files of the section `tls`; relative paths are resolved in the config file's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.cert`: the certificate, then its chain.
    pub cert: PathBuf,
    /// `tls.key`: the private key of the certificate.
    pub key: PathBuf,
    /// `tls.client_ca`: authorities whose client certificates authenticate. Client certificates are optional.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads the files and returns their problems at the time `now`.
    pub(super) fn problems(&self, now: SystemTime) -> Vec<TlsFileProblem> {
        let pair = CertifiedPair::load(&self.cert, &self.key, now).err();
        let clients = self.client_ca.as_deref();
        let clients = clients.and_then(|file| roots(TlsKey::ClientCa, file).err());
        pair.into_iter().chain(clients).collect()
    }

    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.cert, &mut self.key].into_iter().chain(&mut self.client_ca)
    }
}

impl TlsSection {
    /// Validates the section; `expand` replaces `~`.
    pub(super) fn read(
        self,
        listen: &Address,
        expand: impl Fn(&str) -> Option<PathBuf>,
        findings: &mut Findings<'_>,
    ) -> Option<TlsFiles> {
        let at = KeyPath::root("tls");
        if let Address::Unix(_) = listen {
            findings.error(&at, "a Unix socket has no TLS: listen on an address, or remove tls");
            return None;
        }
        let mut file = |name: &str, text: Option<String>| {
            let found = text.filter(|text| !text.is_empty()).and_then(|text| expand(&text));
            if found.is_none() {
                findings.error(&at.key(name), "is not a file path: name a PEM file");
            }
            found
        };
        let (cert, key) = (file("cert", self.cert), file("key", self.key));
        let client_ca = self.client_ca.map(|text| file("client_ca", Some(text)));
        Some(TlsFiles { cert: cert?, key: key?, client_ca: client_ca.flatten() })
    }
}

fn search_api_key() -> KeyPath {
    KeyPath::root("search").key("embeddings").key("api_key")
}

/// Warns of an API key sent over plain HTTP.
pub(super) fn check_search(section: &SearchSection, findings: &mut Findings<'_>) {
    let Some(embeddings) = &section.embeddings else { return };
    if embeddings.api_key.is_some() && is_exposed(&embeddings.url) {
        let odd = "is sent over plain http to another machine, unencrypted: use https";
        findings.warn(&search_api_key(), odd);
    }
}

/// Reports an API key reference that cannot be resolved on this machine.
pub(super) fn check_search_key(
    section: &SearchSection,
    env: Environment<'_>,
    findings: &mut Findings<'_>,
) {
    let key = section.embeddings.as_ref().and_then(|embeddings| embeddings.api_key.as_deref());
    if let Some(Err(problem)) = key.map(|key| filled_in(key, &search_api_key().to_string(), env)) {
        findings.error(&search_api_key(), problem);
    }
}

/// Upper bound of `max_series`.
const MAX_MAX_SERIES: usize = 1_000_000;
/// Maximum number of headers sent to the collector.
const MAX_HEADERS: usize = 32;
/// Maximum length of the service name, in characters.
const MAX_SERVICE_NAME_CHARS: usize = 128;
/// Headers set by the exporter itself.
const OWN_HEADERS: [&str; 6] = [
    "host",
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "connection",
];

/// Section `telemetry`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TelemetrySection {
    /// Maximum number of per-tool series in `/metrics`, 0 to 1000000; the rest are counted under `tool="other"`.
    #[serde(deserialize_with = "max_series")]
    pub max_series: usize,
    /// Base URL of the collector, to which `/v1/traces` and `/v1/logs` are appended; `None` disables the export.
    #[serde(deserialize_with = "endpoint")]
    pub otlp_endpoint: Option<String>,
    /// Headers of each export request.
    pub otlp_headers: OtlpHeaders,
    /// Whether log lines are exported, too.
    pub logs: bool,
    /// `service.name` of the exported resource.
    #[serde(deserialize_with = "service_name")]
    pub service_name: String,
    /// Fraction of the traces started here that are recorded, 0 to 1. Traces started by a client follow the client's
    /// decision.
    #[serde(deserialize_with = "ratio")]
    pub traces_ratio: Sampling,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self {
            max_series: 10_000,
            otlp_endpoint: None,
            otlp_headers: OtlpHeaders::default(),
            logs: false,
            service_name: "mcpproxy".to_owned(),
            traces_ratio: Sampling::ALL,
        }
    }
}

/// `telemetry.otlp_headers`; values are redacted in `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct OtlpHeaders {
    values: BTreeMap<String, String>,
    /// Values of the references when the config was read.
    #[serde(skip)]
    named: Option<NamedValues>,
}

impl fmt::Debug for OtlpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Destination of exported traces and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpTarget {
    pub endpoint: String,
    /// Headers with unresolved references.
    pub headers: OtlpHeaders,
    /// Value of the resource attribute `service.name`.
    pub service_name: String,
}

impl OtlpHeaders {
    /// Resolves references in the header values, reading files; `lookup` finds environment variables. The error names
    /// the first unusable value without quoting it.
    pub fn filled(
        &self,
        lookup: Environment<'_>,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let one = |(name, value): (&String, &String)| {
            let key = format!("telemetry.otlp_headers.{name}");
            let filled = filled_in(value, &key, lookup)?;
            let unusable = |_| format!("{key} cannot be sent as a header");
            let mut value = HeaderValue::try_from(filled).map_err(|_| unusable(()))?;
            value.set_sensitive(true);
            Ok((HeaderName::try_from(name.as_str()).map_err(|_| unusable(()))?, value))
        };
        self.values.iter().map(one).collect()
    }
}

impl TelemetrySection {
    /// Resolves the references and stores the values, so that a changed value counts as a change of the section.
    /// Reads files.
    pub(super) fn look_up(&mut self, lookup: Environment<'_>) {
        let values = self.otlp_headers.values.values().map(String::as_str);
        self.otlp_headers.named = named_values(values, lookup);
    }

    /// Environment variables referenced by the headers.
    pub(super) fn named_variables(&self) -> impl Iterator<Item = &str> {
        self.otlp_headers.values.values().flat_map(|value| named_variables(value))
    }

    /// Files referenced by the headers.
    pub(super) fn named_files(&self, lookup: Environment<'_>) -> impl Iterator<Item = PathBuf> {
        self.otlp_headers.values.values().flat_map(|value| named_files(value, lookup))
    }

    pub fn target(&self) -> Option<OtlpTarget> {
        Some(OtlpTarget {
            endpoint: self.otlp_endpoint.clone()?,
            headers: self.otlp_headers.clone(),
            service_name: self.service_name.clone(),
        })
    }

    /// Destination of exported log lines.
    pub fn logs_target(&self) -> Option<OtlpTarget> {
        self.target().filter(|_| self.logs)
    }

    /// Reports invalid headers and questionable settings.
    pub(super) fn check(&self, findings: &mut Findings<'_>) {
        let at = KeyPath::root("telemetry").key("otlp_headers");
        if self.otlp_headers.values.len() > MAX_HEADERS {
            findings.error(&at, format_args!("must be at most {MAX_HEADERS} headers"));
        }
        for name in self.otlp_headers.values.keys() {
            let is_own = OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own));
            if is_own {
                findings.wrong_key(&at.key(name), "is set by mcpproxy itself: remove it");
            } else if HeaderName::try_from(name.as_str()).is_err() {
                findings.wrong_key(&at.key(name), "is not a header name");
            }
        }
        if self.logs && self.otlp_endpoint.is_none() {
            let warning_text = "has no effect without telemetry.otlp_endpoint";
            findings.warn(&KeyPath::root("telemetry").key("logs"), warning_text);
        }
        if !self.otlp_headers.values.is_empty()
            && self.otlp_endpoint.as_deref().is_some_and(is_exposed)
        {
            let warning_text =
                "are sent over plain http to another machine, unencrypted: use https";
            findings.warn(&at, warning_text);
        }
    }

    /// Reports header references that cannot be resolved on this machine.
    pub(super) fn check_machine(&self, env: Environment<'_>, findings: &mut Findings<'_>) {
        let at = KeyPath::root("telemetry").key("otlp_headers");
        for (name, value) in &self.otlp_headers.values {
            let path = at.key(name);
            if let Err(problem) = filled_in(value, &path.to_string(), env) {
                findings.error(&path, problem);
            }
        }
    }
}

/// Whether traffic to this URL leaves the machine unencrypted.
pub(super) fn is_exposed(endpoint: &str) -> bool {
    let Ok(url) = Url::parse(endpoint) else { return false };
    let is_loopback = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.scheme() == "http" && !is_loopback
}

fn max_series<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(usize::deserialize(deserializer)?, &(0..=MAX_MAX_SERIES))
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sampling, D::Error> {
    let ratio = f64::deserialize(deserializer)?;
    match (0.0..=1.0).contains(&ratio) {
        true => Ok(Sampling::of(ratio)),
        false => Err(D::Error::custom("must be between 0 and 1")),
    }
}

fn service_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let chars = name.chars().count();
    match (1..=MAX_SERVICE_NAME_CHARS).contains(&chars) {
        true => Ok(name),
        false => Err(D::Error::custom(format_args!(
            "must have 1 to {MAX_SERVICE_NAME_CHARS} characters"
        ))),
    }
}

/// Parses a base URL. Errors do not contain the text, which may hold a secret.
fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let url = Url::parse(&text)
        .map_err(|error| D::Error::custom(format_args!("cannot be read: {error}")))?;
    let problem = if !matches!(url.scheme(), "http" | "https") {
        "must be an http or https URL, like \"http://127.0.0.1:4318\""
    } else if url.host().is_none() {
        "names no host"
    } else if !url.username().is_empty() || url.password().is_some() {
        "holds a user name or password: write them as otlp_headers"
    } else if url.query().is_some() || url.fragment().is_some() {
        "must have no query and no fragment: /v1/traces is appended to it"
    } else {
        return Ok(Some(text));
    };
    Err(D::Error::custom(problem))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{Config, Flags, parse};

    fn read(jwt: &str) -> Result<Settings, Vec<String>> {
        let flags = Flags { data_dir: Some("/data".into()), ..Flags::default() };
        let text = format!(r#"{{"auth": {{"jwt": {jwt}}}}}"#);
        let parsed = parse(&text, &|_| None, &flags);
        let messages = |problems: Vec<crate::problem::Problem>| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        parsed.map(|(config, _)| config.jwt.unwrap()).map_err(messages)
    }

    #[test]
    fn jwt_section_is_parsed_with_defaults() {
        let whole = r#"{"issuer": "https://i", "audience": "a", "jwks_url": "https://i/jwks"}"#;
        let settings = read(whole).unwrap();
        assert_eq!((&*settings.issuer, &*settings.audience), ("https://i", "a"));
        assert_eq!(settings.keys, KeySource::Url("https://i/jwks".into()));
        assert_eq!(settings.algorithms, [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa]);
        assert_eq!(&*settings.groups_claim, "groups");
        let file = r#"{"issuer": "i", "audience": "a", "jwks_file": "keys.json",
            "algorithms": ["ES384"], "groups_claim": "roles"}"#;
        let settings = read(file).unwrap();
        assert_eq!(settings.keys, KeySource::File(PathBuf::from("/data/keys.json")));
        assert_eq!(settings.algorithms, [Algorithm::Es384]);
        assert!(
            parse("{}", &|_| None, &Flags { data_dir: Some("/d".into()), ..Flags::default() })
                .unwrap()
                .0
                .jwt
                .is_none()
        );
    }

    #[test]
    fn unusable_url_is_reported_without_credentials_and_path() {
        for scheme in ["http", "https", "ftp", "x"] {
            let url = format!("{scheme}://user:s3cret@i.example/s3cret?key=s3cret");
            let jwt = format!(r#"{{"issuer": "i", "audience": "a", "jwks_url": "{url}"}}"#);
            let problems = read(&jwt).unwrap_err();
            assert!(problems.concat().contains("auth.jwt.jwks_url: a URL holds a user name"));
            assert!(!problems.concat().contains("s3cret"), "{problems:?}");
        }
    }

    #[test]
    fn jwt_errors_name_the_key() {
        let good = r#""issuer": "i", "audience": "a""#;
        for (jwt, expected) in [
            ("{}".to_owned(), "auth.jwt.issuer: "),
            (format!("{{{good}}}"), "requires exactly one of jwks_url and jwks_file"),
            (
                format!(r#"{{{good}, "jwks_url": "https://i", "jwks_file": "f"}}"#),
                "requires exactly one of jwks_url and jwks_file",
            ),
            (format!(r#"{{{good}, "jwks_url": "http://i.example/jwks"}}"#), "auth.jwt.jwks_url"),
            (format!(r#"{{{good}, "jwks_url": "nonsense"}}"#), "auth.jwt.jwks_url"),
            (format!(r#"{{{good}, "jwks_file": "f", "algorithms": []}}"#), "auth.jwt.algorithms"),
            (
                format!(r#"{{{good}, "jwks_file": "f", "algorithms": ["none"]}}"#),
                "auth.jwt.algorithms[0]: unknown variant `none`",
            ),
            (
                format!(r#"{{{good}, "jwks_file": "f", "algorithms": ["HS256"]}}"#),
                "unknown variant `HS256`",
            ),
            (format!(r#"{{{good}, "jwks_file": "f", "audience": 7}}"#), "audience"),
        ] {
            let problems = read(&jwt).unwrap_err();
            assert!(problems.iter().any(|it| it.contains(expected)), "{jwt}: {problems:?}");
        }
    }

    #[test]
    fn api_key_over_plain_http_is_a_warning() {
        for (url, exposed) in [
            ("http://models.example/v1", true),
            ("https://models.example/v1", false),
            ("http://127.0.0.1:11434/v1", false),
        ] {
            let text = format!(
                r#"{{"search": {{"embeddings": {{"url": "{url}", "model": "m", "api_key": "s3cret"}}}}}}"#
            );
            let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
            let (config, warnings) = parse(&text, &|_| None, &flags).unwrap();
            let messages: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(
                messages.iter().any(|it| it.contains("plain http")),
                exposed,
                "{messages:?}"
            );
            assert!(!messages.concat().contains("s3cret"), "{messages:?}");
            let shown = format!("{config:?} {}", config.written.shown());
            assert!(!shown.contains("s3cret") && !shown.contains("models.example"), "{shown}");
            assert!(config.secrets().any(|it| it == "s3cret"));
        }
    }

    fn telemetry(section: &str) -> Result<(Config, String), String> {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let lines = |problems: &[crate::problem::Problem]| {
            problems.iter().map(|it| format!("{it}\n")).collect::<String>()
        };
        let text = format!(r#"{{"telemetry": {section}}}"#);
        match parse(&text, &|_| None, &flags) {
            Ok((config, warnings)) => Ok((config, lines(&warnings))),
            Err(problems) => Err(lines(&problems)),
        }
    }

    #[test]
    fn telemetry_values_are_checked_against_their_bounds() {
        let (config, _) = telemetry("{}").unwrap();
        assert_eq!(config.telemetry, TelemetrySection::default());
        assert_eq!((config.telemetry.target(), config.settings().unwrap().traces), (None, None));
        let (config, warnings) = telemetry(
            r#"{"otlp_endpoint": "https://c.example/otlp", "otlp_headers": {"x-a": "${env:A}"},
                "service_name": "edge", "traces_ratio": 0.25}"#,
        )
        .unwrap();
        assert_eq!(warnings, "");
        assert_eq!(config.settings().unwrap().traces, Some(Sampling::of(0.25)));
        let target = config.telemetry.target().unwrap();
        assert_eq!(config.telemetry.logs_target(), None, "off by default");
        let (config, _) = telemetry(r#"{"otlp_endpoint": "http://c", "logs": true}"#).unwrap();
        assert_eq!(config.telemetry.logs_target(), config.telemetry.target());
        let (config, warnings) = telemetry(r#"{"logs": true}"#).unwrap();
        assert_eq!(config.telemetry.logs_target(), None);
        assert!(warnings.contains("telemetry.logs: has no effect"), "{warnings}");
        assert_eq!((&*target.endpoint, &*target.service_name), ("https://c.example/otlp", "edge"));
        let many: Vec<String> = (0..33).map(|at| format!(r#""h{at}": """#)).collect();
        let many = format!(r#"{{"otlp_headers": {{{}}}}}"#, many.join(","));
        for (section, expected) in [
            (r#"{"traces_ratio": 1.01}"#, "telemetry.traces_ratio: must be between 0 and 1"),
            (r#"{"traces_ratio": -0.1}"#, "telemetry.traces_ratio: must be between 0 and 1"),
            (r#"{"traces_ratio": "all"}"#, "telemetry.traces_ratio: invalid type"),
            (r#"{"service_name": ""}"#, "telemetry.service_name: must have 1 to 128"),
            (r#"{"otlp_endpoint": "c:4318"}"#, "telemetry.otlp_endpoint: must be an http or https"),
            (r#"{"otlp_endpoint": "nowhere"}"#, "telemetry.otlp_endpoint: cannot be read"),
            (
                r#"{"otlp_endpoint": "grpc://c"}"#,
                "telemetry.otlp_endpoint: must be an http or https",
            ),
            (r#"{"otlp_endpoint": "http://u:s3cret@c"}"#, "telemetry.otlp_endpoint: holds a user"),
            (
                r#"{"otlp_endpoint": "http://c?k=s3cret"}"#,
                "telemetry.otlp_endpoint: must have no query",
            ),
            (
                r#"{"otlp_headers": {"Host": "s3cret"}}"#,
                "telemetry.otlp_headers.Host: is set by mcpproxy",
            ),
            (r#"{"otlp_headers": {"a b": "s3cret"}}"#, "is not a header name"),
            (r#"{"otlp_headers": {"a": 7}}"#, "telemetry.otlp_headers.a: invalid type"),
            (&many, "telemetry.otlp_headers: must be at most 32 headers"),
        ] {
            let error = telemetry(section).unwrap_err();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{section}: {error}");
        }
    }

    #[test]
    fn headers_over_plain_http_are_a_warning() {
        for (endpoint, exposed) in [
            ("http://collector.example:4318", true),
            ("https://collector.example", false),
            ("http://127.0.0.1:4318", false),
            ("http://[::1]:4318", false),
            ("http://localhost:4318", false),
        ] {
            let section =
                format!(r#"{{"otlp_endpoint": "{endpoint}", "otlp_headers": {{"a": "b"}}}}"#);
            let (_, warnings) = telemetry(&section).unwrap();
            assert_eq!(warnings.contains("plain http"), exposed, "{endpoint}: {warnings}");
        }
    }

    #[test]
    fn headers_are_resolved_and_never_quoted() {
        let headers = |json: &str| serde_json::from_str::<OtlpHeaders>(json).unwrap();
        let lookup = |name: &str| (name == "T").then(|| "s3cret".to_owned());
        let filled = headers(r#"{"Authorization": "Bearer ${env:T}"}"#);
        let sent = filled.filled(&lookup).unwrap();
        assert_eq!(
            (sent[0].0.as_str(), sent[0].1.as_bytes()),
            ("authorization", &b"Bearer s3cret"[..])
        );
        assert!(!format!("{sent:?}{filled:?}").contains("s3cret"));
        for (bad, expected) in [
            (
                r#"{"a": "${env:NOT}"}"#,
                "environment variable NOT, referenced by telemetry.otlp_headers.a, is not set",
            ),
            (r#"{"a": "s3cret\r\nx: y"}"#, "telemetry.otlp_headers.a cannot be sent"),
            (r#"{"a": "${env:T"}"#, "closing brace"),
        ] {
            let error = headers(bad).filled(&lookup).unwrap_err();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }
}
