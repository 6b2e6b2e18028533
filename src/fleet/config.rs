//! The `cluster` part of the configuration.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::columns::MAX_TABLE_BYTES;

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
const _: () = assert!(*SEGMENT_BYTES.end() * CATCH_UP * 2 < MAX_TABLE_BYTES);
/// The least that `backlog_bytes` can be.
const MIN_BACKLOG_BYTES: u64 = 16 << 20;

/// The name of a node, of which there is one in its fleet: letters of ASCII in lower case, digits, and `-`, `_`, `.` within.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeName(Box<str>);

impl NodeName {
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
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format_args!(
                "must be 1 to {MAX_NAME_CHARS} lower-case letters, digits, and '-', '_' or '.' within"
            ))
        })
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
}
