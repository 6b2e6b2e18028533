//! Sections whose parts are being built: as little of them as the file's reader needs. Replaced by
//! `upstream::Config` and `activity::writer::Config`, whose names and fields these have.

/// `crate::upstream`
pub mod upstream {
    use serde::{Deserialize, Deserializer};
    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;
    use std::path::PathBuf;
    use std::time::Duration;

    /// How a server is reached.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
    #[expect(missing_docs, reason = "replaced")]
    pub enum Protocol {
        #[default]
        #[serde(rename = "auto")]
        Auto,
        #[serde(rename = "stdio")]
        Stdio,
        #[serde(rename = "streamable-http", alias = "http", alias = "sse")]
        StreamableHttp,
    }

    /// One server's entry.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    #[expect(missing_docs, reason = "replaced")]
    pub struct Config {
        pub command: Option<String>,
        pub args: Vec<String>,
        pub env: BTreeMap<String, String>,
        pub cwd: Option<PathBuf>,
        pub url: Option<String>,
        pub headers: BTreeMap<String, String>,
        pub enabled: bool,
        #[serde(alias = "type")]
        pub protocol: Protocol,
        #[serde(deserialize_with = "duration")]
        pub init_timeout: Duration,
        #[serde(deserialize_with = "duration")]
        pub call_timeout: Duration,
        pub max_concurrent: Option<NonZeroUsize>,
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
            }
        }
    }

    fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        use serde::de::Error;
        let text = String::deserialize(deserializer)?;
        let parsed = text.parse::<jiff::SignedDuration>().ok();
        parsed
            .and_then(|duration| Duration::try_from(duration).ok())
            .filter(|duration| !duration.is_zero())
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "'{text}' is no duration: write it like \"30s\" or \"2m\""
                ))
            })
    }
}

/// `crate::activity::writer`
pub mod activity {
    use serde::Deserialize;

    /// The section `activity`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    #[expect(missing_docs, reason = "replaced")]
    pub struct Config {
        pub retention_days: u32,
        pub max_records: u64,
        pub max_size_mb: u64,
        pub max_payload_bytes: usize,
        pub max_response_bytes: usize,
        pub durability: String,
        pub on_failure: String,
    }

    impl Default for Config {
        fn default() -> Self {
            Self {
                retention_days: 90,
                max_records: 1_000_000,
                max_size_mb: 1024,
                max_payload_bytes: 4096,
                max_response_bytes: 1024,
                durability: "grouped".into(),
                on_failure: "refuse".into(),
            }
        }
    }
}
