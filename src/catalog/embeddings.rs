//! Embeddings of tools and queries by a model that the operator names in `search.embeddings`.
//!
//! ```text
//! search ── query ──▶ QueryEmbedder ── EmbeddingQuery ──▶ root package's client ──▶ endpoint
//!   ▲                   │ cache, circuit                       ▲
//!   └─ QueryMeaning ◀───┘◀──── ToolVectors ◀── VectorStore ◀───┘ in the background, when tools change
//!                                                 │
//!                                            VectorFile
//! ```
//!
//! This module builds the requests, checks the responses, caches vectors in memory and on disk, and contains the
//! circuit breaker. It does not use sockets: the root package sends the requests. Fusion with word ranking is in
//! `search`.

use std::fmt;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use url::Url;

mod queries;
mod store;
pub mod vector_file;
pub mod wire;

pub use queries::{
    EmbeddingQuery, MAX_QUERIES_AT_ONCE, QueryEmbedder, RequestKind, RequestOutcome,
};
pub use store::{
    MAX_VECTORS, QUERY_CHARS, TEXT_CHARS, VectorKey, VectorStore, query_text, tool_text,
};

/// Default of `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(300);
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));
/// Default of `min_similarity`.
const DEFAULT_MIN_SIMILARITY: f32 = 0.25;
/// Maximum length of a model's name, in characters.
const MAX_MODEL_CHARS: usize = 256;

/// Config section `search`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SearchSection {
    /// Embeddings endpoint; if `None`, search uses only words.
    pub embeddings: Option<EmbeddingsSettings>,
}

/// Config section `search.embeddings`. `Debug` shows neither the key nor the URL, whose path may be a key.
#[derive(Clone, PartialEq, Deserialize)]
pub struct EmbeddingsSettings {
    /// Base URL of the endpoint, to which `/embeddings` is appended.
    #[serde(deserialize_with = "endpoint")]
    pub url: String,
    /// The model's name, 1 to 256 characters.
    #[serde(deserialize_with = "model")]
    pub model: String,
    /// API key as written, before secrets are resolved.
    #[serde(default)]
    pub api_key: Option<String>,
    /// Maximum time that a search waits for the vector of its query, 10 ms to 10 s.
    #[serde(default = "default_timeout", deserialize_with = "timeout")]
    pub timeout: Duration,
    /// Minimum cosine similarity of a tool that is found by meaning, 0 to 1.
    #[serde(default = "default_min_similarity", deserialize_with = "min_similarity")]
    pub min_similarity: f32,
}

impl fmt::Debug for EmbeddingsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, model, api_key: _, timeout, min_similarity } = self;
        f.debug_struct("EmbeddingsSettings")
            .field("model", model)
            .field("timeout", timeout)
            .field("min_similarity", min_similarity)
            .finish_non_exhaustive()
    }
}

fn default_timeout() -> Duration {
    DEFAULT_TIMEOUT
}

fn default_min_similarity() -> f32 {
    DEFAULT_MIN_SIMILARITY
}

/// Parses a base URL. Errors never quote it, because it may contain a secret.
fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let url = Url::parse(&text)
        .map_err(|error| D::Error::custom(format_args!("cannot be read: {error}")))?;
    let problem = if !matches!(url.scheme(), "http" | "https") {
        "must be an http or https URL, like \"http://127.0.0.1:11434/v1\""
    } else if url.host().is_none() {
        "names no host"
    } else if !url.username().is_empty() || url.password().is_some() {
        "holds a user name or password: write an api_key"
    } else if url.query().is_some() || url.fragment().is_some() {
        "must have no query and no fragment: /embeddings is appended to it"
    } else {
        return Ok(text);
    };
    Err(D::Error::custom(problem))
}

fn model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let model = String::deserialize(deserializer)?;
    match (1..=MAX_MODEL_CHARS).contains(&model.chars().count()) {
        true => Ok(model),
        false => Err(D::Error::custom(format_args!("must have 1 to {MAX_MODEL_CHARS} characters"))),
    }
}

fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let read = text.parse::<jiff::SignedDuration>().ok();
    let timeout = read.and_then(|read| Duration::try_from(read).ok()).ok_or_else(|| {
        D::Error::custom(format_args!("'{text}' is not a duration: write it like \"300ms\""))
    })?;
    let (min, max) = TIMEOUTS;
    match (min..=max).contains(&timeout) {
        true => Ok(timeout),
        false => Err(D::Error::custom("must be 10ms to 10s")),
    }
}

fn min_similarity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let min = f32::deserialize(deserializer)?;
    match (0.0..=1.0).contains(&min) {
        true => Ok(min),
        false => Err(D::Error::custom("must be between 0 and 1")),
    }
}

#[cfg(test)]
mod settings_tests {
    use super::*;

    fn read(json: &str) -> Result<SearchSection, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn section_is_read_within_its_bounds() {
        assert_eq!(read("{}"), Ok(SearchSection::default()));
        let with = |more: &str| {
            read(&format!(
                r#"{{"embeddings":{{"url":"http://127.0.0.1:11434/v1","model":"m"{more}}}}}"#
            ))
        };
        let usual = with("").unwrap().embeddings.unwrap();
        assert_eq!((usual.timeout, usual.min_similarity), (Duration::from_millis(300), 0.25));
        assert_eq!(usual.api_key, None);
        let own = with(r#","timeout":"1s","min_similarity":0.5"#).unwrap().embeddings.unwrap();
        assert_eq!((own.timeout, own.min_similarity), (Duration::from_secs(1), 0.5));
        for (more, expected) in [
            (r#","timeout":"9ms""#, "must be 10ms to 10s"),
            (r#","timeout":"11s""#, "must be 10ms to 10s"),
            (r#","timeout":"soon""#, "is not a duration"),
            (r#","min_similarity":1.1"#, "must be between 0 and 1"),
            (r#","min_similarity":-0.1"#, "must be between 0 and 1"),
        ] {
            let message = with(more).unwrap_err();
            assert!(message.contains(expected), "{more}: {message}");
        }
        for (url, expected) in [
            ("nowhere", "cannot be read"),
            ("ftp://x/", "must be an http or https"),
            ("http://u:s3cret@c", "holds a user name"),
            ("http://c?k=s3cret", "must have no query"),
        ] {
            let text = format!(r#"{{"embeddings":{{"url":"{url}","model":"m"}}}}"#);
            let message = read(&text).unwrap_err();
            assert!(message.contains(expected) && !message.contains("s3cret"), "{url}: {message}");
        }
        assert!(read(r#"{"embeddings":{"url":"http://c","model":""}}"#).is_err());
        assert!(read(r#"{"embeddings":{"model":"m"}}"#).unwrap_err().contains("url"));
    }

    #[test]
    fn debug_hides_key_and_url() {
        let text = r#"{"embeddings":{"url":"http://c/s3cret","model":"m","api_key":"s3cret-too"}}"#;
        let shown = format!("{:?}", read(text).unwrap());
        assert!(shown.contains('m') && !shown.contains("s3cret"), "{shown}");
    }
}
