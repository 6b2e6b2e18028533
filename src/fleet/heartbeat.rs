//! Heartbeats: what a node says of itself, each second, in an object of its own. Pure.
//!
//! ```text
//! {"heartbeat": {…}, "signature": "BASE64", "mac": {"key": "01234567", "mac": "…"}}
//! ```
//!
//! Signed, as they lie, with the node's key, so that whoever writes into the store and is no node makes none; and with
//! `cluster.key`, where there is one, so that nobody makes a node either. What is signed names the fleet and the node: none can
//! be put in the place of another. That it is not an older one is for who reads several ([`super::living_nodes`]).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use subtle::ConstantTimeEq;
use thiserror::Error;
use utoipa::ToSchema;

use super::cluster_key::{DerivedKey, PurposeKeys};
use super::config::NodeName;
use super::node_key::NodeKey;
use super::sealed_mark::FleetId;
use super::signed_note::VerifierKey;

/// The folder of them: one object for each node, under its name, so that one listing tells which have changed.
pub const HEARTBEATS: &str = "heartbeats";
/// Most bytes of it.
pub const MAX_HEARTBEAT_BYTES: u64 = 16 << 10;
/// Most bytes of a text in it.
const MAX_TEXT_BYTES: usize = 600;
/// How far behind a heartbeat those are, at most, that it names as given up: a minute, or as long as 64 puts take that hang.
pub const GIVEN_UP_BEATS: u64 = 64;
/// Its form.
const FORMAT: u32 = 1;
/// What every text that is signed begins with.
const DOMAIN: &str = "mcpproxy heartbeat v1";

/// One start of a node: random, another at each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // The same form: 16 bytes as 32 digits in lower case.
        FleetId::parse(text).map(|id| Self(id.0))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FleetId(self.0).fmt(f)
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a node's ledger stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LedgerStanding {
    /// The last record that is in the store.
    pub stored: u64,
    /// The last record of the log.
    pub committed: u64,
    /// Records that are in the log and not in the store.
    pub lag_records: u64,
    /// About how many bytes those have.
    pub lag_bytes: u64,
    /// For how long the oldest of them has been waiting, in milliseconds.
    pub lag_ms: u64,
    /// Segments that were put since the start.
    pub segments: u64,
    /// Attempts at sealing and putting that came to nothing since the start.
    pub failures: u64,
    /// Entries that could not be recorded since the log was begun: its gaps.
    pub lost: u64,
}

/// What a node says of itself. Times are those of its own clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub(super) format: u32,
    /// This start of the node.
    #[serde(serialize_with = "as_text", deserialize_with = "boot")]
    pub boot: BootId,
    /// Which heartbeat of this start it is, from 1.
    pub beat: u64,
    /// The program's version.
    pub version: String,
    /// The commit it was built of.
    pub commit: String,
    /// When the node started, in milliseconds since 1970.
    pub started_at: u64,
    /// When it said this.
    pub at: u64,
    /// How other nodes reach it, as `cluster.advertise`.
    pub advertise: Option<String>,
    /// What it keeps of the fleet's records, as `cluster.index`.
    pub index: String,
    /// Which config it runs: a digest of what may be shown of it.
    pub config: String,
    /// Sessions of its clients.
    pub sessions: u64,
    /// How its ledger stands.
    pub ledger: LedgerStanding,
    /// It stops, and says nothing more.
    pub stopping: bool,
    /// Heartbeats of this start before this one that the store did not say it has, of the last [`GIVEN_UP_BEATS`]: one of them
    /// may come late, and is none that somebody has put back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<u64>,
}

/// What of a heartbeat is the same for as long as the node runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// This start of the node.
    pub boot: BootId,
    /// When it started.
    pub started_at: u64,
    /// The program's version.
    pub version: String,
    /// The commit it was built of.
    pub commit: String,
    /// `cluster.advertise`
    pub advertise: Option<String>,
    /// `cluster.index`
    pub index: String,
}

/// What of it is another each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeVitals {
    /// Which config is in force.
    pub config: String,
    /// Sessions of clients.
    pub sessions: u64,
}

impl Heartbeat {
    /// One more, at that time.
    #[must_use]
    pub fn of(
        facts: &NodeFacts,
        beat: u64,
        at: u64,
        vitals: NodeVitals,
        ledger: LedgerStanding,
    ) -> Self {
        let NodeFacts { boot, started_at, version, commit, advertise, index } = facts.clone();
        let NodeVitals { config, sessions } = vitals;
        let (stopping, given_up) = (false, Vec::new());
        let format = FORMAT;
        Self {
            format,
            boot,
            beat,
            version,
            commit,
            started_at,
            at,
            advertise,
            index,
            config,
            sessions,
            ledger,
            stopping,
            given_up,
        }
    }
}

/// Why an object is no heartbeat of its node.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HeartbeatFault {
    /// It is longer than one is.
    #[error("its heartbeat is longer than {MAX_HEARTBEAT_BYTES} bytes")]
    TooLong,
    /// It has not the form of one.
    #[error("its heartbeat cannot be read")]
    Form,
    /// Another version writes it.
    #[error("its heartbeat has unknown format {0}")]
    Format(u32),
    /// It is not signed by the node, for this fleet and this name.
    #[error("its heartbeat is not signed with its key, or is that of another node or fleet")]
    Signature,
    /// It is not by `cluster.key`, or not by one that is known here.
    #[error("its heartbeat is not by this fleet's cluster.key")]
    Key,
    /// It is an older one, put back.
    #[error("its heartbeat is an older one that was put back")]
    Older,
    /// The node's claim cannot be used, so that nothing of it can be verified.
    #[error("its claim cannot be used: {0}")]
    Claim(String),
}

#[derive(Serialize, Deserialize)]
struct HeartbeatObject<'a> {
    #[serde(borrow)]
    heartbeat: &'a RawValue,
    signature: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<HeartbeatMac>,
}

#[derive(Serialize, Deserialize)]
struct HeartbeatMac {
    key: String,
    mac: String,
}

/// The fleet and the node that a heartbeat is of.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatOf<'a> {
    /// The fleet.
    pub fleet: FleetId,
    /// The node.
    pub node: &'a NodeName,
}

impl HeartbeatOf<'_> {
    /// The object: signed, and by `keys` where there are any.
    #[must_use]
    pub fn seal(self, heartbeat: &Heartbeat, key: &NodeKey, keys: Option<&PurposeKeys>) -> Bytes {
        let Ok(raw) = serde_json::value::to_raw_value(heartbeat) else { return Bytes::new() };
        let text = self.text(raw.get());
        let mac = keys.map(|keys| {
            let key = keys.seals();
            HeartbeatMac { key: hex(&key.id()), mac: hex(&mac(key, &text)) }
        });
        let signature = STANDARD.encode(key.signature(text.as_bytes()));
        let object = HeartbeatObject { heartbeat: &raw, signature, mac };
        serde_json::to_vec(&object).unwrap_or_default().into()
    }

    /// Reads an object, which has to be signed by the node; and by one of `keys`, where there are any.
    ///
    /// # Errors
    ///
    /// [`HeartbeatFault`], but for [`HeartbeatFault::Older`].
    pub fn open(
        self,
        bytes: &[u8],
        verifier: &VerifierKey,
        keys: Option<&PurposeKeys>,
    ) -> Result<Heartbeat, HeartbeatFault> {
        if bytes.len() as u64 > MAX_HEARTBEAT_BYTES {
            return Err(HeartbeatFault::TooLong);
        }
        let form = |_| HeartbeatFault::Form;
        let object: HeartbeatObject<'_> = serde_json::from_slice(bytes).map_err(form)?;
        let raw = object.heartbeat.get();
        let text = self.text(raw);
        let signature = STANDARD.decode(&object.signature).map_err(|_| HeartbeatFault::Form)?;
        if !verifier.signed(text.as_bytes(), &signature) {
            return Err(HeartbeatFault::Signature);
        }
        if let Some(keys) = keys {
            let given = object.mac.ok_or(HeartbeatFault::Key)?;
            let by = |key: &DerivedKey| {
                hex(&key.id()) == given.key
                    && bool::from(hex(&mac(key, &text)).as_bytes().ct_eq(given.mac.as_bytes()))
            };
            if !keys.all().any(by) {
                return Err(HeartbeatFault::Key);
            }
        }
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let Form { format } = serde_json::from_str(raw).map_err(form)?;
        if format != FORMAT {
            return Err(HeartbeatFault::Format(format));
        }
        let read: Heartbeat = serde_json::from_str(raw).map_err(form)?;
        let texts = [&read.version, &read.commit, &read.index, &read.config];
        let bounded = texts
            .into_iter()
            .chain(&read.advertise)
            .all(|text| text.len() <= MAX_TEXT_BYTES && !text.chars().any(char::is_control))
            && read.given_up.len() as u64 <= GIVEN_UP_BEATS;
        if bounded { Ok(read) } else { Err(HeartbeatFault::Form) }
    }

    /// What is signed. Neither a fleet's id nor a node's name holds a line end.
    fn text(self, raw: &str) -> String {
        format!("{DOMAIN}\n{}\n{}\n{raw}", self.fleet, self.node.as_str())
    }
}

/// The key of a node's heartbeat.
#[must_use]
pub fn heartbeat_key(node: &NodeName) -> String {
    format!("{HEARTBEATS}/{}", node.as_str())
}

fn mac(key: &DerivedKey, text: &str) -> [u8; 32] {
    *blake3::keyed_hash(key.expose(), text.as_bytes()).as_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_text<S: serde::Serializer>(boot: &BootId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(boot)
}

fn boot<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BootId, D::Error> {
    let text = String::deserialize(deserializer)?;
    BootId::parse(&text).ok_or_else(|| serde::de::Error::custom("no id of a start"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fleet::cluster_key::{ClusterKeys, KeyPurpose};

    const FLEET: FleetId = FleetId([1; 16]);

    pub(crate) fn example(boot: u8, beat: u64, at: u64) -> Heartbeat {
        let facts = NodeFacts {
            boot: BootId([boot; 16]),
            started_at: 1,
            version: "1.2.3".into(),
            commit: "abc".into(),
            advertise: Some("http://127.0.0.1:1".into()),
            index: "false".into(),
        };
        let vitals = NodeVitals { config: "c".into(), sessions: 3 };
        Heartbeat::of(&facts, beat, at, vitals, LedgerStanding::default())
    }

    fn keys(seed: u8) -> PurposeKeys {
        let text: String = (0..32).map(|at| format!("{:02x}", at ^ seed)).collect();
        ClusterKeys::parse([&*text]).unwrap().derive(KeyPurpose::Heartbeat)
    }

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn a_heartbeat_is_that_of_its_node_in_its_fleet_and_no_other() {
        let (key, node) = (NodeKey::of_seed(1), name("a"));
        let verifier = key.verifier(&FLEET.to_string(), "a").unwrap();
        let of = HeartbeatOf { fleet: FLEET, node: &node };
        let beat = example(1, 7, 1000);
        let (ours, others) = (keys(1), keys(2));
        let sealed = of.seal(&beat, &key, Some(&ours));
        assert_eq!(of.open(&sealed, &verifier, Some(&ours)), Ok(beat.clone()));
        assert_eq!(of.open(&sealed, &verifier, None), Ok(beat.clone()), "the signature is enough");
        assert_eq!(of.open(&sealed, &verifier, Some(&others)), Err(HeartbeatFault::Key));
        let bare = of.seal(&beat, &key, None);
        assert_eq!(of.open(&bare, &verifier, Some(&ours)), Err(HeartbeatFault::Key));

        // Another fleet's, another node's, and one by another key.
        let elsewhere = HeartbeatOf { fleet: FleetId([2; 16]), node: &node };
        let sealed_elsewhere = elsewhere.seal(&beat, &key, Some(&ours));
        let other = name("b");
        let of_other = HeartbeatOf { fleet: FLEET, node: &other }.seal(&beat, &key, Some(&ours));
        let by_other = of.seal(&beat, &NodeKey::of_seed(2), Some(&ours));
        for wrong in [sealed_elsewhere, of_other, by_other] {
            assert_eq!(of.open(&wrong, &verifier, Some(&ours)), Err(HeartbeatFault::Signature));
        }
    }

    #[test]
    fn those_that_were_given_up_are_named_and_no_more_of_them_than_there_can_be() {
        let (key, node) = (NodeKey::of_seed(1), name("a"));
        let verifier = key.verifier(&FLEET.to_string(), "a").unwrap();
        let of = HeartbeatOf { fleet: FLEET, node: &node };
        let named = |count: u64| {
            let given_up = (1..=count).collect();
            Heartbeat { given_up, ..example(1, 100, 1000) }
        };
        let opened = |beat: &Heartbeat| of.open(&of.seal(beat, &key, None), &verifier, None);
        assert_eq!(opened(&named(GIVEN_UP_BEATS)), Ok(named(GIVEN_UP_BEATS)));
        assert_eq!(opened(&named(GIVEN_UP_BEATS + 1)), Err(HeartbeatFault::Form));
        // Where there is none, it is as it was before they were named.
        let sealed = of.seal(&named(0), &key, None);
        assert!(!String::from_utf8_lossy(&sealed).contains("given_up"));
        assert_eq!(opened(&named(0)), Ok(named(0)));
    }

    #[test]
    fn an_altered_heartbeat_is_none_wherever_it_was_altered() {
        let (key, node, keys) = (NodeKey::of_seed(1), name("a"), keys(1));
        let verifier = key.verifier(&FLEET.to_string(), "a").unwrap();
        let of = HeartbeatOf { fleet: FLEET, node: &node };
        let beat = example(1, 7, 1000);
        let sealed = of.seal(&beat, &key, Some(&keys)).to_vec();
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            let opened = of.open(&altered, &verifier, Some(&keys));
            assert!(opened.is_err(), "{at}: {opened:?}");
        }
        let long = [&sealed[..], &vec![b' '; 1 << 20]].concat();
        assert_eq!(of.open(&long, &verifier, Some(&keys)), Err(HeartbeatFault::TooLong));
        for odd in [&b""[..], b"{}", b"null", &[0xff; 100]] {
            assert_eq!(of.open(odd, &verifier, Some(&keys)), Err(HeartbeatFault::Form));
        }
        // Of a later version: signed well, and not understood.
        let later = Heartbeat { format: 2, ..beat.clone() };
        let sealed = of.seal(&later, &key, Some(&keys));
        assert_eq!(of.open(&sealed, &verifier, Some(&keys)), Err(HeartbeatFault::Format(2)));
        let odd = Heartbeat { version: "\u{1b}[2J".into(), ..beat };
        let sealed = of.seal(&odd, &key, Some(&keys));
        assert_eq!(of.open(&sealed, &verifier, Some(&keys)), Err(HeartbeatFault::Form));
    }
}
