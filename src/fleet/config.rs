//! The `cluster` part of the configuration.

use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use url::{Position, Url};

use super::cluster_key::{ClusterKeys, optional_keys};
use super::columns::MAX_TABLE_BYTES;
use crate::activity::config::MAX_KEPT_BYTES;

/// Most characters of a node's name.
const MAX_NAME_CHARS: usize = 63;
/// The longest and the shortest that `flush` can be.
const FLUSH: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// The largest and the smallest that `segment_bytes` can be. With what is beside the records, and catching up, a segment
/// stays below what is read.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
/// How many times larger segments are behind a store that was away.
pub(super) const CATCH_UP: u64 = 4;
// Each record has its payloads twice, in columns of their own as well; the last one may go beyond what a segment is to have.
const MAX_RECORD_BYTES: u64 = 2 * MAX_KEPT_BYTES as u64;
const _: () = assert!((*SEGMENT_BYTES.end() * CATCH_UP + MAX_RECORD_BYTES) * 2 < MAX_TABLE_BYTES);
/// Most shards that a fleet's records are divided into.
pub const MAX_SHARDS: u16 = 256;
/// Most characters of `advertise`.
const MAX_ADVERTISE_CHARS: usize = 512;
/// The least that `backlog_bytes` can be.
const MIN_BACKLOG_BYTES: u64 = 16 << 20;

/// The name of a node, of which there is one in its fleet: letters of ASCII in lower case, digits, and `-`, `_`, `.` within.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Box<str>);

impl NodeName {
    /// What a text has to be that is one.
    pub const RULE: &str = "must be 1 to 63 lower-case letters, digits, and '-', '_' or '.' within";

    /// A name that can be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_within = |byte: u8| is_end(byte) || matches!(byte, b'-' | b'_' | b'.');
        let ends = [text.bytes().next()?, text.bytes().next_back()?];
        let is_name = text.len() <= MAX_NAME_CHARS
            && ends.into_iter().all(is_end)
            && text.bytes().all(is_within);
        is_name.then(|| Self(text.into()))
    }

    /// The name.
    #[must_use]
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

/// What of the fleet's records a node keeps to answer from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexRole {
    /// Nothing but its own.
    #[default]
    None,
    /// Everything.
    Whole,
    /// One shard.
    Shard {
        /// Which, 1 to `of`.
        index: NonZeroU16,
        /// Of how many, at most [`MAX_SHARDS`].
        of: NonZeroU16,
    },
}

impl IndexRole {
    /// Whether it has the records of the node of this name. A node belongs to one shard, by a hash of its name, so that what
    /// shards answer is put together without asking whose a record is.
    #[must_use]
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

    /// Reads `I/N`: shard I of N, which begin with 1.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number =
            |text: &str| text.parse::<NonZeroU16>().ok().filter(|it| it.to_string() == text);
        let (index, of) = text.split_once('/')?;
        let (index, of) = (number(index)?, number(of)?);
        (index <= of && of.get() <= MAX_SHARDS).then_some(Self::Shard { index, of })
    }
}

/// As the config has it: `false`, `true`, `I/N`.
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

/// How other nodes reach a node: the URL of its listener, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedUrl(Url);

impl AdvertisedUrl {
    /// Checks a URL.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
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

    /// The URL, whose path is `/`.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// Its host, and its port where that is not the scheme's.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    /// As the config has it: without the last `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }
}

/// The `cluster` part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    /// Where the fleet's object store is; without it there is no fleet.
    pub store: Option<String>,
    /// The name of this node.
    pub node: Option<NodeName>,
    /// How other nodes reach this one; without it none does.
    #[serde(deserialize_with = "advertise")]
    pub advertise: Option<AdvertisedUrl>,
    /// What of the fleet's records this node keeps to answer from.
    pub index: IndexRole,
    /// The secret that the nodes share; without it they ask each other nothing.
    #[serde(deserialize_with = "optional_keys")]
    pub key: Option<ClusterKeys>,
    /// The longest that a record waits to be sealed.
    #[serde(deserialize_with = "flush")]
    pub flush: Duration,
    /// Bytes of records that are sealed at once, at most about so many.
    #[serde(deserialize_with = "segment_bytes")]
    pub segment_bytes: u64,
    /// Bytes of records that may wait for the store; then `activity.on_failure` decides.
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
    /// What a node of a fleet is made of; `None` where there is no fleet.
    #[must_use]
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
            Err(D::Error::custom(format_args!("'{text}' is no duration: write it like \"5s\"")))
        }
    }
}

fn segment_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    if SEGMENT_BYTES.contains(&bytes) {
        Ok(bytes)
    } else {
        let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
        Err(D::Error::custom(format_args!("must be {least} to {most}, is {bytes}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_stands_in_keys_urls_and_columns() {
        for name in ["a", "node-1", "mcpproxy-7d9f.ns_2", &"x".repeat(63)] {
            assert_eq!(NodeName::parse(name).unwrap().as_str(), name);
        }
        for name in ["", "A", "a/b", "-a", "a-", "..", ".", "ä", "a b", "a+b", &"x".repeat(64)] {
            assert_eq!(NodeName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn an_index_is_whole_or_one_shard_of_some() {
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
            let told = read(bad).unwrap_err().to_string();
            assert!(told.contains("true, false or a shard"), "{bad}: {told}");
        }
    }

    #[test]
    fn each_node_is_in_one_shard() {
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
    fn a_node_is_reached_at_a_host_and_nothing_more() {
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
}
