//! Heartbeat objects: format, authentication and upload schedule. Pure.
//!
//! ```text
//! {"heartbeat": {…}, "signature": "BASE64", "mac": {"key": "01234567", "mac": "…"}}
//! ```
//!
//! A heartbeat is signed with the node's key, so that write access to the store is not enough to forge one. If
//! `cluster.key` is configured, it also has a MAC by that key, so that write access is not enough to add a forged
//! node either. The signed text names the fleet and the node, so that a heartbeat cannot be moved to another node.
//! Readers detect replays ([`crate::failure_detector`]).
//!
//! [`HeartbeatSchedule`] schedules this node's heartbeats. A hanging upload must not make a live node look dead: it
//! is abandoned, and the next heartbeat is sent immediately. An abandoned upload may still complete later, after
//! newer ones. So each heartbeat lists the abandoned ones before it, and readers do not mistake them for replays.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use subtle::ConstantTimeEq;
use thiserror::Error;
use utoipa::ToSchema;

use crate::checkpoint::VerifierKey;
use crate::cluster_key::{DerivedKey, PurposeKeys};
use crate::config::NodeName;
use crate::node_state::{FleetId, NodeKey};

/// Heartbeat interval in milliseconds.
pub(crate) const BEAT_EVERY_MS: u64 = 1_000;
/// Listing interval in milliseconds.
pub(crate) const LIST_EVERY_MS: u64 = 800;
/// Age at which an unchanged heartbeat means that its node is dead. Spans several heartbeats, because an upload may be
/// slow.
pub const DEAD_AFTER_MS: u64 = 6_000;
/// Folder with one object per node, named after the node, so that one listing shows which have changed.
pub(crate) const HEARTBEATS: &str = "heartbeats";
/// Maximum size of a heartbeat object in bytes.
pub const MAX_HEARTBEAT_BYTES: u64 = 16 << 10;
/// Maximum length of a text field in bytes.
const MAX_TEXT_BYTES: usize = 600;
/// Maximum number of heartbeats between an abandoned one and the one that lists it. This many heartbeats take about a
/// minute, or the time of 64 hanging uploads.
pub(crate) const GIVEN_UP_BEATS: u64 = 64;
const FORMAT: u32 = 1;
/// Prefix of every signed text.
const DOMAIN: &str = "mcpproxy heartbeat v1";

/// Random id of one start of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Parses the text form.
    pub fn parse(text: &str) -> Option<Self> {
        // A fleet id has the same format: 16 bytes as 32 lower-case hexadecimal digits.
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

/// Upload status of a node's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LedgerStanding {
    /// Last uploaded record.
    pub stored: u64,
    /// Last record of the log.
    pub committed: u64,
    /// Number of records not uploaded yet.
    pub lag_records: u64,
    /// Approximate size of these records in bytes.
    pub lag_bytes: u64,
    /// Age of the oldest of these records in milliseconds.
    pub lag_ms: u64,
    /// Segments uploaded since the start.
    pub segments: u64,
    /// Failed attempts to seal or upload since the start.
    pub failures: u64,
    /// Number of entries in the gaps of the log: entries that were never recorded, over the life of the log.
    pub lost: u64,
}

/// Heartbeat of a node. Times are those of its own clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub(crate) format: u32,
    /// Id of this start.
    #[serde(serialize_with = "as_text", deserialize_with = "boot")]
    pub boot: BootId,
    /// Sequence number within this start, from 1.
    pub beat: u64,
    pub version: String,
    /// Commit of the build.
    pub commit: String,
    /// Time of the start, in milliseconds since 1970.
    pub started_at: u64,
    /// Time of this heartbeat.
    pub at: u64,
    /// Address for other nodes, as in `cluster.advertise`.
    pub advertise: Option<String>,
    /// Index role, as in `cluster.index`.
    pub index: String,
    /// Digest of the public part of the running config.
    pub config: String,
    /// Number of client sessions.
    pub sessions: u64,
    /// Status of the ledger.
    pub ledger: LedgerStanding,
    /// True for the last heartbeat before shutdown.
    pub stopping: bool,
    /// Earlier heartbeats of this start whose upload was not confirmed, among the last [`GIVEN_UP_BEATS`]. If one of
    /// them arrives late, it is not a replay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<u64>,
}

/// Heartbeat fields that are constant while the node runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Id of this start.
    pub boot: BootId,
    pub started_at: u64,
    pub version: String,
    /// Commit of the build.
    pub commit: String,
    pub advertise: Option<String>,
    pub index: String,
}

/// Heartbeat fields that change each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeVitals {
    /// Digest of the running config.
    pub config: String,
    pub sessions: u64,
}

impl Heartbeat {
    /// Builds the next heartbeat.
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

/// Reason for rejecting a heartbeat object.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HeartbeatFault {
    #[error("heartbeat exceeds {MAX_HEARTBEAT_BYTES} bytes")]
    TooLong,
    #[error("invalid heartbeat")]
    Form,
    /// The heartbeat was written by a newer version.
    #[error("unknown heartbeat format {0}")]
    Format(u32),
    #[error("heartbeat not signed by this node's key for this fleet and name")]
    Signature,
    #[error("heartbeat not authenticated by this fleet's cluster.key")]
    Key,
    #[error("heartbeat replayed: an older one was written again")]
    Older,
    /// The node's claim is unusable, so nothing can be verified.
    #[error("unusable claim: {0}")]
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

/// Fleet and node of a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatOf<'a> {
    pub fleet: FleetId,
    pub node: &'a NodeName,
}

impl HeartbeatOf<'_> {
    /// Serializes and signs a heartbeat, with a MAC if `keys` are given.
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

    /// Parses and verifies an object. A MAC by one of `keys` is required if `keys` are given.
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
            let object_mac = object.mac.ok_or(HeartbeatFault::Key)?;
            let by = |key: &DerivedKey| {
                hex(&key.id()) == object_mac.key
                    && bool::from(hex(&mac(key, &text)).as_bytes().ct_eq(object_mac.mac.as_bytes()))
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

    /// Signed text. Neither a fleet id nor a node name contains a line end.
    fn text(self, raw: &str) -> String {
        format!("{DOMAIN}\n{}\n{}\n{raw}", self.fleet, self.node.as_str())
    }
}

/// Key of a node's heartbeat object.
pub(crate) fn heartbeat_key(node: &NodeName) -> String {
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
    BootId::parse(&text).ok_or_else(|| serde::de::Error::custom("not a boot id"))
}

/// Jitter of the heartbeat interval in milliseconds.
const BEAT_SPREAD_MS: u64 = 400;
/// Time after which an upload is abandoned.
const PUT_LIMIT_MS: u64 = 2_500;
// After an abandoned upload, the next heartbeat is sent, stored within a second and listed before the node counts as
// dead.
const _: () = assert!(
    BEAT_EVERY_MS + BEAT_SPREAD_MS / 2 + PUT_LIMIT_MS + 1_000 + LIST_EVERY_MS < DEAD_AFTER_MS
);
/// Number of late uploads in a row after which the store is assumed to be slow.
const FEW_LATE: u32 = 2;
/// Time limit of an upload to a slow store; still short enough to keep the node alive.
const SLOW_PUT_LIMIT_MS: u64 = 4_500;
const _: () = assert!(BEAT_EVERY_MS + BEAT_SPREAD_MS / 2 + SLOW_PUT_LIMIT_MS < DEAD_AFTER_MS);
/// Number of late uploads in a row after which an upload waits as long as the store's own limit. Abandoning it earlier
/// would not help: a hanging write to a folder occupies its thread even when abandoned.
const MANY_LATE: u32 = 20;
const HUNG_PUT_LIMIT_MS: u64 = 40_000;

/// Heartbeat to upload next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextBeat {
    pub(crate) number: u64,
    /// Earlier heartbeats whose upload may still complete.
    pub(crate) given_up: Vec<u64>,
    /// Time limit of its upload.
    pub(crate) limit_ms: u64,
}

/// Outcome of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutEnd {
    /// The heartbeat was stored after this many milliseconds.
    Taken { ms: u64 },
    /// The store rejected the heartbeat.
    Failed,
    /// The upload was abandoned, or the store timed out.
    Late,
}

/// Schedule of this node's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatSchedule {
    /// Number of the last heartbeat.
    number: u64,
    /// Outcome of its upload.
    last: Option<PutEnd>,
    /// Late uploads since the last fast one.
    late: u32,
    /// Abandoned, failed and in-flight heartbeats, in order.
    given_up: Vec<u64>,
}

impl HeartbeatSchedule {
    /// Pause before the next upload; `random` is any number. The jitter keeps two processes with the same
    /// name from running in lockstep, where each would be visible for only a moment.
    pub(crate) fn pause_ms(&self, random: u64) -> u64 {
        match self.last {
            // No pause before the first upload, or after an abandoned upload, which already took longer than the
            // interval.
            None | Some(PutEnd::Late) => 0,
            Some(PutEnd::Taken { .. } | PutEnd::Failed) => {
                BEAT_EVERY_MS - BEAT_SPREAD_MS / 2 + random % BEAT_SPREAD_MS
            }
        }
    }

    /// Starts the next upload, which is in flight until [`ended`](Self::ended).
    pub(crate) fn next_beat(&mut self) -> NextBeat {
        self.number += 1;
        let number = self.number;
        self.given_up.retain(|before| number - before <= GIVEN_UP_BEATS);
        let given_up = self.given_up.clone();
        self.given_up.push(number);
        let limit_ms = match self.late {
            ..FEW_LATE => PUT_LIMIT_MS,
            FEW_LATE..MANY_LATE => SLOW_PUT_LIMIT_MS,
            MANY_LATE.. => HUNG_PUT_LIMIT_MS,
        };
        NextBeat { number, given_up, limit_ms }
    }

    /// Reports the outcome of the last upload.
    pub(crate) fn ended(&mut self, end: PutEnd) {
        self.last = Some(end);
        match end {
            PutEnd::Taken { ms } => {
                let number = self.number;
                self.given_up.retain(|before| *before != number);
                // A persistently slow store keeps the longer limit.
                if ms <= PUT_LIMIT_MS {
                    self.late = 0;
                }
            }
            PutEnd::Failed => {}
            PutEnd::Late => self.late = self.late.saturating_add(1),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster_key::{ClusterKeys, KeyPurpose};

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
    fn heartbeat_is_bound_to_its_node_and_fleet() {
        let (key, node) = (NodeKey::of_seed(1), name("a"));
        let verifier = key.verifier(&FLEET.to_string(), "a").unwrap();
        let of = HeartbeatOf { fleet: FLEET, node: &node };
        let beat = example(1, 7, 1000);
        let (ours, others) = (keys(1), keys(2));
        let sealed = of.seal(&beat, &key, Some(&ours));
        assert_eq!(of.open(&sealed, &verifier, Some(&ours)), Ok(beat.clone()));
        assert_eq!(
            of.open(&sealed, &verifier, None),
            Ok(beat.clone()),
            "the signature suffices without keys"
        );
        assert_eq!(of.open(&sealed, &verifier, Some(&others)), Err(HeartbeatFault::Key));
        let bare = of.seal(&beat, &key, None);
        assert_eq!(of.open(&bare, &verifier, Some(&ours)), Err(HeartbeatFault::Key));

        // Heartbeats that were sealed for another fleet, for another node, or with another key.
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
    fn abandoned_heartbeats_are_listed_up_to_the_limit() {
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
        // Without abandoned heartbeats, the object equals that of versions that lack the field.
        let sealed = of.seal(&named(0), &key, None);
        assert!(!String::from_utf8_lossy(&sealed).contains("given_up"));
        assert_eq!(opened(&named(0)), Ok(named(0)));
    }

    #[test]
    fn any_altered_byte_is_rejected() {
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
        // A validly signed heartbeat of a later format version.
        let later = Heartbeat { format: 2, ..beat.clone() };
        let sealed = of.seal(&later, &key, Some(&keys));
        assert_eq!(of.open(&sealed, &verifier, Some(&keys)), Err(HeartbeatFault::Format(2)));
        let odd = Heartbeat { version: "\u{1b}[2J".into(), ..beat };
        let sealed = of.seal(&odd, &key, Some(&keys));
        assert_eq!(of.open(&sealed, &verifier, Some(&keys)), Err(HeartbeatFault::Form));
    }

    /// Simulates `for_ms` milliseconds with a store that takes `takes(at)` milliseconds for an upload started at
    /// `at`. Returns the times of completion, and all uploads.
    fn puts(for_ms: u64, takes: impl Fn(u64) -> u64) -> (Vec<u64>, Vec<NextBeat>) {
        let (mut beats, mut now) = (HeartbeatSchedule::default(), 0);
        let (mut taken, mut put) = (Vec::new(), Vec::new());
        while now < for_ms {
            // This argument gives the longest pause.
            now += beats.pause_ms(BEAT_SPREAD_MS - 1);
            let next = beats.next_beat();
            let ms = takes(now);
            if ms > next.limit_ms {
                now += next.limit_ms;
                beats.ended(PutEnd::Late);
            } else {
                now += ms;
                beats.ended(PutEnd::Taken { ms });
                taken.push(now);
            }
            put.push(next);
        }
        (taken, put)
    }

    fn longest(taken: &[u64]) -> u64 {
        taken.windows(2).map(|two| two[1] - two[0]).max().unwrap()
    }

    #[test]
    fn hanging_upload_or_slow_store_does_not_make_a_node_look_dead() {
        // Uploads started in one second of every ten hang forever.
        let hangs = |at: u64| if at / 1000 % 10 == 7 { u64::MAX } else { 300 };
        let (taken, put) = puts(600_000, hangs);
        assert!(put.len() > taken.len() + 30, "{} of {}", taken.len(), put.len());
        assert!(longest(&taken) + LIST_EVERY_MS < DEAD_AFTER_MS, "{}", longest(&taken));
        let (taken, _) = puts(600_000, |_| 4_400);
        assert!(taken.len() > 90, "{}", taken.len());
        assert!(longest(&taken) < DEAD_AFTER_MS, "{}", longest(&taken));
    }

    #[test]
    fn recovered_store_is_used_soon_and_hanging_store_is_retried_rarely() {
        let back_after = |ms: u64| move |at: u64| if at < ms { u64::MAX } else { 300 };
        let (taken, _) = puts(120_000, back_after(60_000));
        assert!(taken[0] - 60_000 < DEAD_AFTER_MS - LIST_EVERY_MS, "{}", taken[0]);
        assert!(longest(&taken) < 2_000, "{}", longest(&taken));
        let (taken, put) = puts(3_700_000, back_after(3_600_000));
        let hung = put.len() - taken.len();
        assert!(hung <= MANY_LATE as usize + 3_600_000 / HUNG_PUT_LIMIT_MS as usize + 1, "{hung}");
        assert!(longest(&taken) < 2_000, "{}", longest(&taken));
    }

    #[test]
    fn rejected_upload_is_retried_after_a_pause() {
        let mut beats = HeartbeatSchedule::default();
        assert_eq!(beats.pause_ms(7), 0, "the first");
        for _ in 0..100 {
            beats.next_beat();
            beats.ended(PutEnd::Late);
            assert_eq!(beats.pause_ms(7), 0);
            beats.next_beat();
            beats.ended(PutEnd::Failed);
            assert!(beats.pause_ms(0) >= BEAT_EVERY_MS - BEAT_SPREAD_MS / 2);
        }
        assert_ne!(beats.pause_ms(1), beats.pause_ms(2));
    }

    #[test]
    fn heartbeat_lists_earlier_heartbeats_with_unconfirmed_uploads() {
        let mut beats = HeartbeatSchedule::default();
        for (number, end) in [
            (1, PutEnd::Taken { ms: 10 }),
            (2, PutEnd::Late),
            (3, PutEnd::Taken { ms: 10 }),
            (4, PutEnd::Failed),
        ] {
            assert_eq!(beats.next_beat().number, number);
            beats.ended(end);
        }
        assert_eq!(beats.next_beat().given_up, [2, 4]);
        // The final heartbeat does not wait for the one in flight.
        assert_eq!(beats.next_beat().given_up, [2, 4, 5]);
        beats.ended(PutEnd::Taken { ms: 10 });
        for number in 7..200_u64 {
            let next = beats.next_beat();
            assert_eq!(next.number, number);
            let mut named = vec![2, 4, 5];
            named.retain(|it| number - it <= GIVEN_UP_BEATS);
            assert_eq!(next.given_up, named);
            beats.ended(PutEnd::Taken { ms: 10 });
        }
        // The list never exceeds its limit.
        let (_, put) = puts(3_600_000, |_| u64::MAX);
        let max = put.iter().map(|next| next.given_up.len()).max().unwrap();
        assert_eq!(max as u64, GIVEN_UP_BEATS);
    }
}
