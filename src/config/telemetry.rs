//! The section `telemetry`: how many series are named, and where traces go.
//!
//! What a header's value names (`${env:NAME}` and the like) is read by whoever exports, when it starts and when the
//! config changes: one that is missing stops the export alone, and no command that exports nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use url::{Host, Url};

use super::findings::Findings;
use super::problem::KeyPath;
use super::reading::within;
use crate::telemetry::Sampling;
use crate::upstream::{NamedValues, filled_in, named_files, named_values};

/// Most series of calls by tool that can be named.
const MAX_MAX_SERIES: usize = 1_000_000;
/// Most headers of a request to the collector.
const MAX_HEADERS: usize = 32;
/// Most characters of the service's name.
const MAX_SERVICE_NAME_CHARS: usize = 128;
/// Headers that are the exporter's own to write.
const OWN_HEADERS: [&str; 6] = [
    "host",
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "connection",
];

/// The section `telemetry`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TelemetrySection {
    /// Series of calls by tool that `/metrics` names, 0 to 1000000; the rest are counted under `tool="other"`.
    #[serde(deserialize_with = "max_series")]
    pub max_series: usize,
    /// The collector: the URL that `/v1/traces` and `/v1/logs` are appended to; `None`: nothing is traced.
    #[serde(deserialize_with = "endpoint")]
    pub otlp_endpoint: Option<String>,
    /// Headers of each request to it.
    pub otlp_headers: OtlpHeaders,
    /// Whether lines of the log go there too.
    pub logs: bool,
    /// `service.name`, under which backends show this proxy.
    #[serde(deserialize_with = "service_name")]
    pub service_name: String,
    /// The part of traces that begin here that is recorded, 0 to 1. One that a client began is recorded where the client
    /// records it.
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
            service_name: env!("CARGO_PKG_NAME").to_owned(),
            traces_ratio: Sampling::ALL,
        }
    }
}

/// `telemetry.otlp_headers`. `Debug` shows no value.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct OtlpHeaders {
    values: BTreeMap<String, String>,
    /// What their references led to when the config was read.
    #[serde(skip)]
    named: Option<NamedValues>,
}

impl fmt::Debug for OtlpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Where traces and lines of the log go, as the config says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpTarget {
    /// The collector.
    pub endpoint: String,
    /// Headers of each request to it, not yet filled in.
    pub headers: OtlpHeaders,
    /// `service.name`
    pub service_name: String,
}

impl OtlpHeaders {
    /// The headers, with what their values name filled in; `lookup` finds environment variables. Reads files.
    ///
    /// # Errors
    /// The first value that cannot be had, or cannot be sent; nothing of it is quoted.
    pub fn filled(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
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
    /// Looks where the references in the headers lead, so that they differ from what they were when that has changed.
    /// Reads files.
    pub(super) fn look_up(&mut self, lookup: &dyn Fn(&str) -> Option<String>) {
        let values = self.otlp_headers.values.values().map(String::as_str);
        self.otlp_headers.named = named_values(values, lookup);
    }

    /// The files that hold values of the headers.
    pub(super) fn named_files(
        &self,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> impl Iterator<Item = PathBuf> {
        self.otlp_headers.values.values().flat_map(|value| named_files(value, lookup))
    }

    /// Where traces go.
    #[must_use]
    pub fn target(&self) -> Option<OtlpTarget> {
        Some(OtlpTarget {
            endpoint: self.otlp_endpoint.clone()?,
            headers: self.otlp_headers.clone(),
            service_name: self.service_name.clone(),
        })
    }

    /// Where lines of the log go.
    #[must_use]
    pub fn logs_target(&self) -> Option<OtlpTarget> {
        self.target().filter(|_| self.logs)
    }

    /// Reports what is wrong with the headers, and what is valid and perhaps not intended.
    pub(super) fn check(&self, findings: &mut Findings<'_>) {
        let at = KeyPath::root("telemetry").key("otlp_headers");
        if self.otlp_headers.values.len() > MAX_HEADERS {
            findings.error(&at, format_args!("must be at most {MAX_HEADERS} headers"));
        }
        for name in self.otlp_headers.values.keys() {
            let is_own = OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own));
            if is_own {
                findings.wrong_key(&at.key(name), "is written by mcpproxy itself: leave it out");
            } else if HeaderName::try_from(name.as_str()).is_err() {
                findings.wrong_key(&at.key(name), "is no name of a header");
            }
        }
        if self.logs && self.otlp_endpoint.is_none() {
            let odd = "goes nowhere: there is no telemetry.otlp_endpoint";
            findings.warn(&KeyPath::root("telemetry").key("logs"), odd);
        }
        if !self.otlp_headers.values.is_empty()
            && self.otlp_endpoint.as_deref().is_some_and(is_exposed)
        {
            let odd = "go over plain http to another machine, where whoever is on the way reads them: use https";
            findings.warn(&at, odd);
        }
    }

    /// Reports the headers that cannot be had on this machine.
    pub(super) fn check_machine(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
        findings: &mut Findings<'_>,
    ) {
        let at = KeyPath::root("telemetry").key("otlp_headers");
        for (name, value) in &self.otlp_headers.values {
            let path = at.key(name);
            if let Err(problem) = filled_in(value, &path.to_string(), env) {
                findings.error(&path, problem);
            }
        }
    }
}

/// Whether what goes there can be read on the way.
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

/// A base URL. What is wrong is told without the text, which may hold a secret.
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
    use super::*;
    use crate::config::{Config, Flags, parse};

    fn read(section: &str) -> Result<(Config, String), String> {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let lines = |problems: &[crate::config::problem::Problem]| {
            problems.iter().map(|it| format!("{it}\n")).collect::<String>()
        };
        let text = format!(r#"{{"telemetry": {section}}}"#);
        match parse(&text, &|_| None, &flags) {
            Ok((config, warnings)) => Ok((config, lines(&warnings))),
            Err(problems) => Err(lines(&problems)),
        }
    }

    #[test]
    fn the_section_is_read_within_its_bounds() {
        let (config, _) = read("{}").unwrap();
        assert_eq!(config.telemetry, TelemetrySection::default());
        assert_eq!((config.telemetry.target(), config.settings().unwrap().traces), (None, None));
        let (config, warnings) = read(
            r#"{"otlp_endpoint": "https://c.example/otlp", "otlp_headers": {"x-a": "${env:A}"},
                "service_name": "edge", "traces_ratio": 0.25}"#,
        )
        .unwrap();
        assert_eq!(warnings, "");
        assert_eq!(config.settings().unwrap().traces, Some(Sampling::of(0.25)));
        let target = config.telemetry.target().unwrap();
        assert_eq!(config.telemetry.logs_target(), None, "off by default");
        let (config, _) = read(r#"{"otlp_endpoint": "http://c", "logs": true}"#).unwrap();
        assert_eq!(config.telemetry.logs_target(), config.telemetry.target());
        let (config, warnings) = read(r#"{"logs": true}"#).unwrap();
        assert_eq!(config.telemetry.logs_target(), None);
        assert!(warnings.contains("telemetry.logs: goes nowhere"), "{warnings}");
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
                "telemetry.otlp_headers.Host: is written by mcpproxy",
            ),
            (r#"{"otlp_headers": {"a b": "s3cret"}}"#, "is no name of a header"),
            (r#"{"otlp_headers": {"a": 7}}"#, "telemetry.otlp_headers.a: invalid type"),
            (&many, "telemetry.otlp_headers: must be at most 32 headers"),
        ] {
            let told = read(section).unwrap_err();
            assert!(told.contains(expected) && !told.contains("s3cret"), "{section}: {told}");
        }
    }

    #[test]
    fn headers_that_can_be_read_on_the_way_are_warned_of() {
        for (endpoint, exposed) in [
            ("http://collector.example:4318", true),
            ("https://collector.example", false),
            ("http://127.0.0.1:4318", false),
            ("http://[::1]:4318", false),
            ("http://localhost:4318", false),
        ] {
            let section =
                format!(r#"{{"otlp_endpoint": "{endpoint}", "otlp_headers": {{"a": "b"}}}}"#);
            let (_, warnings) = read(&section).unwrap();
            assert_eq!(warnings.contains("plain http"), exposed, "{endpoint}: {warnings}");
        }
    }

    #[test]
    fn headers_are_filled_in_and_no_value_is_shown_or_quoted() {
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
            (r#"{"a": "${env:NOT}"}"#, "environment variable NOT is not set"),
            (r#"{"a": "s3cret\r\nx: y"}"#, "telemetry.otlp_headers.a cannot be sent"),
            (r#"{"a": "${env:T"}"#, "closing brace"),
        ] {
            let told = headers(bad).filled(&lookup).unwrap_err();
            assert!(told.contains(expected) && !told.contains("s3cret"), "{told}");
        }
    }
}
