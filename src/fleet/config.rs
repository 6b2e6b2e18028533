//! The `cluster` section of the configuration, node names and stray objects. Pure.
//!
//! [`StrayObjects`] summarizes objects in the store whose names are not node names. Anyone who can write to the store
//! can add any number of them, so the kept and shown names are bounded.

use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use mcpproxy_activity::config::MAX_KEPT_BYTES;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use url::{Position, Url};

use crate::cluster_key::{ClusterKeys, optional_keys};
use crate::parquet_table::MAX_TABLE_BYTES;

/// Maximum length of a node name in characters.
const MAX_NAME_CHARS: usize = 63;
/// Allowed range of `flush`.
const FLUSH: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// Allowed range of `segment_bytes`. Including overhead and [`CATCH_UP`], a segment stays below the maximum object
/// size.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
/// Factor by which segments may grow after a store outage.
pub(crate) const CATCH_UP: u64 = 4;
// Payloads are stored twice, the second time in separate columns. Only the last record may exceed the target size.
const MAX_RECORD_BYTES: u64 = 2 * MAX_KEPT_BYTES as u64;
const _: () = assert!((*SEGMENT_BYTES.end() * CATCH_UP + MAX_RECORD_BYTES) * 2 < MAX_TABLE_BYTES);
/// Maximum number of index shards.
pub(crate) const MAX_SHARDS: u16 = 256;
/// Maximum length of `advertise` in characters.
const MAX_ADVERTISE_CHARS: usize = 512;
/// Minimum of `backlog_bytes`.
const MIN_BACKLOG_BYTES: u64 = 16 << 20;

/// Name of a node, unique in its fleet: lower-case ASCII letters, digits, and, except at its ends, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Box<str>);

impl NodeName {
    /// Rule for valid names, for error messages.
    pub const RULE: &str = "must be 1 to 63 lower-case letters, digits, '-', '_' or '.', with a letter or digit at each end";

    pub fn parse(text: &str) -> Option<Self> {
        let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_within = |byte: u8| is_end(byte) || matches!(byte, b'-' | b'_' | b'.');
        let ends = [text.bytes().next()?, text.bytes().next_back()?];
        let is_name = text.len() <= MAX_NAME_CHARS
            && ends.into_iter().all(is_end)
            && text.bytes().all(is_within);
        is_name.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(Self::RULE))
    }
}

/// Records of other nodes that a node indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexRole {
    /// The node does not index records of other nodes.
    #[default]
    None,
    Whole,
    Shard {
        /// Shard number, 1 to `of`.
        index: NonZeroU16,
        /// Number of shards, at most [`MAX_SHARDS`].
        of: NonZeroU16,
    },
}

impl IndexRole {
    /// True if the records of this node belong to the shard. Each node belongs to one shard, by a hash of its
    /// name, so that the answers of all shards are disjoint.
    pub fn holds(self, node: &str) -> bool {
        match self {
            Self::None => false,
            Self::Whole => true,
            Self::Shard { index, of } => {
                let hash = blake3::hash(node.as_bytes());
                let hash = hash.as_bytes().first_chunk().copied().unwrap_or_default();
                u64::from_be_bytes(hash) % u64::from(of.get()) == u64::from(index.get()) - 1
            }
        }
    }

    /// Parses `I/N`: shard I of N, from 1.
    pub fn parse(text: &str) -> Option<Self> {
        let number =
            |text: &str| text.parse::<NonZeroU16>().ok().filter(|it| it.to_string() == text);
        let (index, of) = text.split_once('/')?;
        let (index, of) = (number(index)?, number(of)?);
        (index <= of && of.get() <= MAX_SHARDS).then_some(Self::Shard { index, of })
    }
}

/// Config syntax: `false`, `true`, `I/N`.
impl fmt::Display for IndexRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("false"),
            Self::Whole => f.write_str("true"),
            Self::Shard { index, of } => write!(f, "{index}/{of}"),
        }
    }
}

impl<'de> Deserialize<'de> for IndexRole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Role;
        impl Visitor<'_> for Role {
            type Value = IndexRole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "true, false or a shard like \"1/3\", of at most {MAX_SHARDS}")
            }

            fn visit_bool<E: Error>(self, whole: bool) -> Result<IndexRole, E> {
                Ok(if whole { IndexRole::Whole } else { IndexRole::None })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<IndexRole, E> {
                let odd = serde::de::Unexpected::Str(text);
                IndexRole::parse(text).ok_or_else(|| E::invalid_value(odd, &self))
            }
        }
        deserializer.deserialize_any(Role)
    }
}

/// URL of a node's listener for other nodes, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedUrl(Url);

impl AdvertisedUrl {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_ADVERTISE_CHARS {
            return Err(format!("must have at most {MAX_ADVERTISE_CHARS} characters"));
        }
        let url = Url::parse(text).map_err(|error| format!("cannot be read: {error}"))?;
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let is_named = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            Err("must be http:// or https:// with the host and port of this node's listener".into())
        } else if !is_bare || !is_named {
            Err("must name scheme, host and port and nothing else".into())
        } else {
            Ok(Self(url))
        }
    }

    /// The URL with the path `/`.
    pub(crate) fn url(&self) -> &Url {
        &self.0
    }

    /// Host, and the port unless it is the scheme's default.
    pub fn authority(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    /// Config syntax, without trailing slash.
    pub fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }
}

/// The `cluster` section of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    /// URL of the object store; without it there is no fleet.
    pub store: Option<String>,
    pub node: Option<NodeName>,
    /// URL for other nodes; without it they cannot reach this one.
    #[serde(deserialize_with = "advertise")]
    pub advertise: Option<AdvertisedUrl>,
    /// Records of other nodes to index.
    pub index: IndexRole,
    /// Shared secret; without it nodes do not send each other requests.
    #[serde(deserialize_with = "optional_keys")]
    pub key: Option<ClusterKeys>,
    /// Maximum time a record waits to be sealed.
    #[serde(deserialize_with = "flush")]
    pub flush: Duration,
    /// Target size of a segment in bytes.
    #[serde(deserialize_with = "segment_bytes")]
    pub segment_bytes: u64,
    /// Maximum backlog in bytes before `activity.on_failure` applies.
    #[serde(deserialize_with = "backlog_bytes")]
    pub backlog_bytes: u64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            store: None,
            node: None,
            advertise: None,
            index: IndexRole::None,
            key: None,
            flush: Duration::from_secs(5),
            segment_bytes: 4 << 20,
            backlog_bytes: 4 << 30,
        }
    }
}

impl ClusterConfig {
    /// Store and node name; `None` without a fleet.
    pub fn membership(&self) -> Option<(&str, &NodeName)> {
        Some((self.store.as_deref()?, self.node.as_ref()?))
    }
}

fn advertise<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<AdvertisedUrl>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| AdvertisedUrl::parse(&text).map_err(D::Error::custom)).transpose()
}

fn flush<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let flush = text.parse::<jiff::SignedDuration>().ok();
    match flush.and_then(|flush| Duration::try_from(flush).ok()) {
        Some(flush) if FLUSH.contains(&flush) => Ok(flush),
        Some(_) => Err(D::Error::custom("must be 100ms to 1h")),
        None => {
            Err(D::Error::custom(format_args!("'{text}' is not a duration: write it like \"5s\"")))
        }
    }
}

fn segment_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    if SEGMENT_BYTES.contains(&bytes) {
        Ok(bytes)
    } else {
        let (min, max) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
        Err(D::Error::custom(format_args!("must be {min} to {max}, is {bytes}")))
    }
}

fn backlog_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    if bytes >= MIN_BACKLOG_BYTES {
        Ok(bytes)
    } else {
        Err(D::Error::custom(format_args!("must be at least {MIN_BACKLOG_BYTES}, is {bytes}")))
    }
}

/// Maximum number of names listed.
const MAX_NAMED: usize = 10;
/// Maximum length of a listed name in characters.
const MAX_SHOWN: usize = 80;

/// Stray objects: names that are not node names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrayObjects {
    count: usize,
    named: Vec<String>,
}

impl StrayObjects {
    pub(crate) fn add(&mut self, name: &str) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(visible(name, MAX_SHOWN));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for StrayObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.write_str("one stray object: ")?,
            count => write!(f, "{count} stray objects: ")?,
        }
        f.write_str(&self.named.join(", "))?;
        match self.count.saturating_sub(self.named.len()) {
            0 => Ok(()),
            rest => write!(f, " and {rest} more"),
        }
    }
}

/// Escapes a foreign name and truncates it to `max` characters.
pub(crate) fn visible(name: &str, max: usize) -> String {
    let mut shown: String = name.chars().take(max).flat_map(char::escape_debug).collect();
    if name.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_valid_in_keys_urls_and_columns() {
        for name in ["a", "node-1", "mcpproxy-7d9f.ns_2", &"x".repeat(63)] {
            assert_eq!(NodeName::parse(name).unwrap().as_str(), name);
        }
        for name in ["", "A", "a/b", "-a", "a-", "..", ".", "ä", "a b", "a+b", &"x".repeat(64)] {
            assert_eq!(NodeName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn index_role_parses_as_none_whole_or_one_shard() {
        let read = |json: &str| serde_json::from_str::<IndexRole>(json);
        for text in ["1/1", "1/3", "3/3", "256/256"] {
            let role = read(&format!("\"{text}\"")).unwrap();
            assert_eq!(role.to_string(), text);
        }
        assert_eq!(read("true").unwrap(), IndexRole::Whole);
        assert_eq!(read("false").unwrap(), IndexRole::None);
        for bad in [
            "\"0/3\"",
            "\"4/3\"",
            "\"1/257\"",
            "\"1\"",
            "\"01/3\"",
            "\"+1/3\"",
            "\"\"",
            "1",
            "null",
        ] {
            let reported = read(bad).unwrap_err().to_string();
            assert!(reported.contains("true, false or a shard"), "{bad}: {reported}");
        }
    }

    #[test]
    fn each_node_belongs_to_exactly_one_shard() {
        for of in [1, 2, 3, 7, 256] {
            let mut nodes = vec![0; of];
            for node in 0..2000 {
                let name = format!("node-{node}");
                let role = |index: usize| IndexRole::parse(&format!("{index}/{of}")).unwrap();
                let held: Vec<_> = (1..=of).filter(|index| role(*index).holds(&name)).collect();
                assert_eq!(held.len(), 1, "{name} of {of}");
                nodes[held[0] - 1] += 1;
            }
            assert!(nodes.iter().all(|count| *count > 0 || of > 7));
        }
        assert!(IndexRole::Whole.holds("a") && !IndexRole::None.holds("a"));
    }

    #[test]
    fn advertised_url_has_only_scheme_host_and_port() {
        for (text, shown) in [
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
            ("http://node-a.local/", "http://node-a.local"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(AdvertisedUrl::parse(text).unwrap().as_str(), shown);
        }
        for text in [
            "",
            "10.0.0.1:8443",
            "ftp://a",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://a#b",
            "https://u:p@a",
            "https://u@a",
            "unix:/a",
            &format!("https://{}", "a".repeat(600)),
        ] {
            assert!(AdvertisedUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn stray_objects_are_all_counted_and_few_are_named() {
        let mut strays = StrayObjects::default();
        assert!(strays.is_empty());
        strays.add("a\n\u{1b}b");
        assert_eq!(strays.to_string(), "one stray object: a\\n\\u{1b}b");
        for at in 0..200_000 {
            strays.add(&format!("{at:06}{}", "é".repeat(900)));
        }
        let reported = strays.to_string();
        assert!(reported.starts_with("200001 stray objects: a\\n"), "{reported}");
        assert!(reported.ends_with("… and 199991 more") && reported.len() < 2000, "{reported}");
    }
}
