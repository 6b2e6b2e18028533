//! Wire format and authentication of requests between nodes. Sans-I/O.
//!
//! A request is a POST below [`PATH`] with the additional header [`HEADER`]:
//!
//! ```text
//! v1 KEY FROM FROM-BOOT TO TO-BOOT last TIME COUNTER BODY MAC
//! ```
//!
//! KEY is the id of the key derived from `cluster.key` for this purpose, BODY is BLAKE3 of the body, and MAC is keyed BLAKE3
//! over the fleet, the path and everything before it. A sender without the key gets an uninformative response. Replay
//! protection: the request names the start of its receiver, TIME is within [`FRESH_MS`] of the receiver's time, and each
//! COUNTER of a sender's start is accepted once ([`SeenRequests`]; senders count per receiver, [`RequestCounters`]). `last`
//! means that the request must not be forwarded: one hop.
//!
//! A response has status 200 and consists of frames, each with a MAC under a key derived from the request's MAC. So
//! it is bound to this request, complete, and in order:
//!
//! ```text
//! length (4, big-endian: of the payload) · kind (1) · payload · keyed BLAKE3(number (8) · kind · payload), 16 bytes
//! ```
//!
//! Kind 0 is the header (status, one line per header), 1 a part of the body, 2 the end, 3 an aborted body. TLS, if
//! `cluster.advertise` is https, encrypts the traffic; authentication does not depend on it.

use std::collections::HashMap;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::cluster_key::{DerivedKey, KEY_ID_BYTES, PurposeKeys};
use crate::config::NodeName;
use crate::heartbeat::BootId;
use crate::node_state::FleetId;

/// Path prefix of requests between nodes.
pub const PATH: &str = "/fleet/v1/";
/// Header that authenticates a node.
pub const HEADER: &str = "mcpproxy-fleet";
/// Maximum size of a request body in bytes: a client request and its header.
pub const MAX_REQUEST_BYTES: usize = (16 << 20) + (256 << 10);
/// Maximum difference between a request's time and the receiver's, in milliseconds.
pub(crate) const FRESH_MS: u64 = 60_000;
/// Maximum size of a frame's payload in bytes.
pub(crate) const MAX_FRAME_BYTES: usize = 256 << 10;
/// Maximum number of headers in a response.
const MAX_ANSWER_HEADERS: usize = 100;
/// Maximum length of [`HEADER`]'s value in bytes.
const MAX_HEADER_BYTES: usize = 1024;
/// Length of a frame's MAC in bytes.
const TAG_BYTES: usize = 16;
/// Length of a frame header in bytes.
const FRAME_HEAD_BYTES: usize = 5;
/// Reordering window: number of counters remembered per sender; a request overtaken by this many is rejected.
const WINDOW: u64 = 4096;
/// Maximum number of remembered senders.
pub(crate) const MAX_SENDERS: usize = 8192;

const REQUEST_DOMAIN: &str = "mcpproxy peer request v1";
const ANSWER_DOMAIN: &str = "mcpproxy peer answer v1";
/// Marker of a request that must not be forwarded.
const LAST_HOP: &str = "last";

/// Kind of request between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRoute {
    /// Reachability check; the response names both nodes.
    Ping,
    /// Records that the node holds.
    Records,
    /// Decision on a call that waits for approval on the receiver.
    Approval,
    /// Client request whose session is on the receiver.
    Session,
}

impl PeerRoute {
    pub(crate) const ALL: [Self; 4] = [Self::Ping, Self::Records, Self::Approval, Self::Session];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Ping => "/fleet/v1/ping",
            Self::Records => "/fleet/v1/records",
            Self::Approval => "/fleet/v1/approval",
            Self::Session => "/fleet/v1/session",
        }
    }

    /// Route of a path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }

    /// Time limit for the response header in milliseconds. A client's call has no limit of its own.
    pub(crate) fn answer_limit_ms(self) -> u64 {
        match self {
            Self::Ping => 3_000,
            Self::Records | Self::Approval => 10_000,
            Self::Session => 3_600_000,
        }
    }
}

/// Identity of one start of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSender {
    pub node: NodeName,
    pub boot: BootId,
}

/// Authenticated fields of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequestHead {
    pub from: PeerSender,
    /// Receiving node, and its start.
    pub to: PeerSender,
    /// Receiver's time in milliseconds since 1970.
    pub time: u64,
    /// Counter of the sender's start for this receiver, from 1.
    pub counter: u64,
    /// BLAKE3 of the body.
    pub body: [u8; 32],
}

/// Fleet and path that a request is bound to.
#[derive(Clone, Copy, Debug)]
pub struct RequestBinding<'a> {
    pub fleet: FleetId,
    pub path: &'a str,
}

impl RequestBinding<'_> {
    /// Returns the header value, and the key for the response.
    pub fn seal(self, head: &PeerRequestHead, keys: &PurposeKeys) -> (String, AnswerKey) {
        let key = keys.seals();
        let PeerRequestHead { from, to, time, counter, body } = head;
        let (from_node, to_node) = (from.node.as_str(), to.node.as_str());
        let text = format!(
            "v1 {} {from_node} {} {to_node} {} {LAST_HOP} {time} {counter} {}",
            hex(&key.id()),
            from.boot,
            to.boot,
            hex(body)
        );
        let mac = self.mac(key, &text);
        (format!("{text} {}", hex(&mac)), AnswerKey::of(key, &mac))
    }

    /// Verifies a header value made with one of `keys` for this fleet and path; returns the key for the
    /// response. Receiver, time and counter are not checked.
    pub fn open(self, value: &str, keys: &PurposeKeys) -> Option<(PeerRequestHead, AnswerKey)> {
        if value.len() > MAX_HEADER_BYTES {
            return None;
        }
        let (text, mac) = value.rsplit_once(' ')?;
        let mut parts = text.split(' ');
        let mut next = || parts.next();
        let (version, key) = (next()?, next()?);
        let from = PeerSender { node: NodeName::parse(next()?)?, boot: BootId::parse(next()?)? };
        let to = PeerSender { node: NodeName::parse(next()?)?, boot: BootId::parse(next()?)? };
        let (hop, time, counter) = (next()?, next()?.parse().ok()?, next()?.parse().ok()?);
        let body = unhex::<32>(next()?)?;
        if version != "v1" || hop != LAST_HOP || next().is_some() {
            return None;
        }
        let id = unhex::<KEY_ID_BYTES>(key)?;
        let key = keys
            .named(id)
            .find(|key| bool::from(hex(&self.mac(key, text)).as_bytes().ct_eq(mac.as_bytes())))?;
        let answer = AnswerKey::of(key, &self.mac(key, text));
        Some((PeerRequestHead { from, to, time, counter, body }, answer))
    }

    /// Unambiguous, because neither a fleet id, nor a path, nor the text contains a line end.
    fn mac(self, key: &DerivedKey, text: &str) -> [u8; 32] {
        let text = format!("{REQUEST_DOMAIN}\n{}\nPOST {}\n{text}", self.fleet, self.path);
        *blake3::keyed_hash(key.expose(), text.as_bytes()).as_bytes()
    }
}

/// Counters of this start's requests, one per receiver's start, so that requests to other nodes do not exhaust the
/// reordering window.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    last: HashMap<BootId, u64>,
    /// Upper bound of all forgotten counters.
    floor: u64,
}

impl RequestCounters {
    /// Next counter for that start of a node.
    pub(crate) fn next(&mut self, to: BootId) -> u64 {
        if !self.last.contains_key(&to) && self.last.len() >= MAX_SENDERS {
            // A returning receiver continues above its forgotten counter.
            self.floor = self.last.values().copied().max().unwrap_or_default().max(self.floor);
            self.last.clear();
        }
        let last = self.last.entry(to).or_insert(self.floor);
        *last += 1;
        *last
    }
}

/// Replay protection: counters accepted per sender.
#[derive(Debug, Default)]
pub(crate) struct SeenRequests {
    senders: HashMap<BootId, SeenCounters>,
}

#[derive(Debug)]
struct SeenCounters {
    /// Highest accepted counter.
    highest: u64,
    /// Bit i: whether `highest - i` was accepted.
    taken: Box<[u64]>,
    /// Time of the last request, on a monotonic clock in milliseconds.
    last: u64,
}

impl SeenRequests {
    /// Accepts a fresh request at time `now` in milliseconds; returns false if it was accepted before, or
    /// might have been.
    pub(crate) fn take(&mut self, from: BootId, counter: u64, now: u64) -> bool {
        if !self.senders.contains_key(&from) && self.senders.len() >= MAX_SENDERS {
            // The requests of these senders are no longer fresh.
            self.senders.retain(|_, seen| now.saturating_sub(seen.last) <= 3 * FRESH_MS);
            if self.senders.len() >= MAX_SENDERS {
                return false;
            }
        }
        let words = (WINDOW / 64) as usize;
        let seen = self.senders.entry(from).or_insert_with(|| SeenCounters {
            highest: 0,
            taken: vec![0; words].into(),
            last: now,
        });
        if counter == 0 || seen.highest.saturating_sub(counter) >= WINDOW {
            return false;
        }
        if counter > seen.highest {
            // Counters that leave the window are rejected from now on.
            let from = seen.highest.max(counter.saturating_sub(WINDOW));
            for skipped in from..counter {
                seen.set(skipped + 1, false);
            }
            seen.highest = counter;
        } else if seen.is_set(counter) {
            return false;
        }
        seen.set(counter, true);
        seen.last = now;
        true
    }
}

impl SeenCounters {
    fn is_set(&self, counter: u64) -> bool {
        let at = counter % WINDOW;
        self.taken.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, counter: u64, taken: bool) {
        let at = counter % WINDOW;
        if let Some(word) = self.taken.get_mut((at / 64) as usize) {
            *word = *word & !(1 << (at % 64)) | u64::from(taken) << (at % 64);
        }
    }
}

/// Key that authenticates one response.
#[derive(Clone)]
pub struct AnswerKey([u8; 32]);

impl AnswerKey {
    fn of(key: &DerivedKey, request: &[u8; 32]) -> Self {
        let context = [ANSWER_DOMAIN.as_bytes(), b"\n", request].concat();
        Self(*blake3::keyed_hash(key.expose(), &context).as_bytes())
    }

    fn tag(&self, number: u64, kind: u8, payload: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&number.to_be_bytes()).update(&[kind]).update(payload);
        hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

impl std::fmt::Debug for AnswerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnswerKey(…)")
    }
}

const HEAD: u8 = 0;
const DATA: u8 = 1;
const END: u8 = 2;
const BROKEN: u8 = 3;

/// Encoder of a response's frames.
#[derive(Debug)]
pub struct AnswerFrames {
    key: AnswerKey,
    number: u64,
}

impl AnswerFrames {
    pub fn new(key: AnswerKey) -> Self {
        Self { key, number: 0 }
    }

    /// First frame: status and as many headers as fit.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap) -> Vec<Bytes> {
        let mut payload = status.as_str().as_bytes().to_vec();
        for (name, value) in headers.iter().take(MAX_ANSWER_HEADERS) {
            let line = [b"\n", name.as_str().as_bytes(), b":", value.as_bytes()].concat();
            if payload.len() + line.len() <= MAX_FRAME_BYTES {
                payload.extend(line);
            }
        }
        self.frame(HEAD, payload.into())
    }

    /// Frames of a part of the body, without copying it.
    pub fn data(&mut self, mut part: Bytes) -> Vec<Bytes> {
        let mut frames = Vec::new();
        while !part.is_empty() {
            let payload = part.split_to(part.len().min(MAX_FRAME_BYTES));
            frames.extend(self.frame(DATA, payload));
        }
        frames
    }

    /// Last frame: the body is complete.
    pub fn end(&mut self) -> Vec<Bytes> {
        self.frame(END, Bytes::new())
    }

    /// Last frame: the body was aborted.
    pub fn broken(&mut self) -> Vec<Bytes> {
        self.frame(BROKEN, Bytes::new())
    }

    fn frame(&mut self, kind: u8, payload: Bytes) -> Vec<Bytes> {
        let tag = self.key.tag(self.number, kind, &payload);
        self.number += 1;
        let mut head = (payload.len() as u32).to_be_bytes().to_vec();
        head.push(kind);
        vec![head.into(), payload, Bytes::copy_from_slice(&tag)]
    }
}

/// Decoded part of a response.
#[derive(Debug)]
pub enum PeerAnswerPart {
    Head(StatusCode, HeaderMap),
    /// Bytes of the body.
    Data(Bytes),
    End,
    /// The other node aborted the body.
    Broken,
}

impl PeerAnswerPart {
    /// Parses the payload of an authenticated header frame.
    pub fn head(payload: &[u8]) -> Option<Self> {
        let mut lines = payload.split(|byte| *byte == b'\n');
        let status = StatusCode::from_bytes(lines.next()?).ok()?;
        let mut headers = HeaderMap::new();
        for line in lines.take(MAX_ANSWER_HEADERS) {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
            let name = HeaderName::from_bytes(name).ok()?;
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self::Head(status, headers))
    }
}

/// Reason for rejecting a response.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadPeerAnswer {
    #[error("the response is malformed")]
    Form,
    /// Wrong MAC: the response was altered, truncated or reordered, or comes from another node.
    #[error("the response is not from the requested node")]
    Forged,
    /// Data followed the end, or a body preceded the header.
    #[error("the response frames are out of order")]
    Order,
}

/// Decoder of response frames, fed with chunks of any size.
#[derive(Debug)]
pub struct AnswerReader {
    key: AnswerKey,
    number: u64,
    buffer: BytesMut,
    ended: bool,
}

impl AnswerReader {
    pub fn new(key: AnswerKey) -> Self {
        Self { key, number: 0, buffer: BytesMut::new(), ended: false }
    }

    /// Appends received bytes. At most the chunk and one frame are buffered.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// True after the end frame; a response that stops earlier is truncated.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Next part; `None` if it is incomplete.
    ///
    /// # Errors
    ///
    /// [`BadPeerAnswer`]; the rest must be discarded.
    pub fn part(&mut self) -> Result<Option<PeerAnswerPart>, BadPeerAnswer> {
        if self.ended {
            return if self.buffer.is_empty() { Ok(None) } else { Err(BadPeerAnswer::Order) };
        }
        let Some((head, _)) = self.buffer.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, kind] = *head;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MAX_FRAME_BYTES || kind > BROKEN {
            return Err(BadPeerAnswer::Form);
        }
        if self.buffer.len() < FRAME_HEAD_BYTES + length + TAG_BYTES {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEAD_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        let tag = self.buffer.split_to(TAG_BYTES);
        let expected = self.key.tag(self.number, kind, &payload);
        if !bool::from(expected.ct_eq(&tag)) {
            return Err(BadPeerAnswer::Forged);
        }
        if (self.number == 0) != (kind == HEAD) {
            return Err(BadPeerAnswer::Order);
        }
        self.number += 1;
        self.ended = matches!(kind, END | BROKEN);
        match kind {
            HEAD => PeerAnswerPart::head(&payload).map(Some).ok_or(BadPeerAnswer::Form),
            DATA => Ok(Some(PeerAnswerPart::Data(payload))),
            END => Ok(Some(PeerAnswerPart::End)),
            _ => Ok(Some(PeerAnswerPart::Broken)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N
        || !text.bytes().all(|it| it.is_ascii_hexdigit() && !it.is_ascii_uppercase())
    {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::cluster_key::{ClusterKeys, KeyPurpose};

    const FLEET: FleetId = FleetId([1; 16]);
    const PLACE: RequestBinding<'static> = RequestBinding { fleet: FLEET, path: "/fleet/v1/ping" };

    fn secret(seed: u8) -> String {
        (0..32).map(|at| format!("{:02x}", at ^ seed)).collect()
    }

    fn keys(seeds: &[u8]) -> PurposeKeys {
        let texts: Vec<_> = seeds.iter().map(|seed| secret(*seed)).collect();
        ClusterKeys::parse(texts.iter().map(String::as_str)).unwrap().derive(KeyPurpose::Peer)
    }

    fn sender(name: &str, boot: u8) -> PeerSender {
        PeerSender { node: NodeName::parse(name).unwrap(), boot: BootId([boot; 16]) }
    }

    fn head() -> PeerRequestHead {
        let (from, to) = (sender("a", 1), sender("b", 2));
        PeerRequestHead { from, to, time: 17, counter: 3, body: *blake3::hash(b"x").as_bytes() }
    }

    #[test]
    fn request_is_bound_to_key_fleet_and_path() {
        let (value, _) = PLACE.seal(&head(), &keys(&[1]));
        assert_eq!(PLACE.open(&value, &keys(&[1])).unwrap().0, head());
        assert_eq!(PLACE.open(&value, &keys(&[2, 1])).unwrap().0, head(), "an older key opens");
        assert!(PLACE.open(&value, &keys(&[2])).is_none());
        for other in [
            RequestBinding { fleet: FleetId([2; 16]), ..PLACE },
            RequestBinding { path: "/fleet/v1/session", ..PLACE },
        ] {
            assert!(other.open(&value, &keys(&[1])).is_none(), "{other:?}");
        }
        // A header that would permit a second hop is rejected, like any malformed header.
        assert!(value.contains(" last "));
        for odd in
            ["", "v1", &value.replace("last", "more"), &format!("{value} x"), &"a ".repeat(9999)]
        {
            assert!(PLACE.open(odd, &keys(&[1])).is_none(), "{odd}");
        }
        for at in 0..value.len() {
            let mut altered = value.clone().into_bytes();
            altered[at] ^= 1;
            let altered = String::from_utf8(altered).unwrap();
            assert!(PLACE.open(&altered, &keys(&[1])).is_none(), "{at}");
        }
    }

    #[test]
    fn request_is_accepted_once_in_any_order() {
        let mut seen = SeenRequests::default();
        let (a, b) = (BootId([1; 16]), BootId([2; 16]));
        for counter in [3, 1, 2, 100, 5000, 4999] {
            assert!(seen.take(a, counter, 0), "{counter}");
            assert!(!seen.take(a, counter, 0), "{counter}");
        }
        assert!(!seen.take(a, 4, 0), "it may have been accepted");
        assert!(seen.take(a, 5000 - WINDOW + 1, 0) && !seen.take(a, 5000 - WINDOW, 0));
        assert!(!seen.take(a, 0, 0));
        assert!(seen.take(a, u64::MAX, 0) && !seen.take(a, u64::MAX, 0));
        assert!(seen.take(b, 3, 0), "another sender");
        // Senders are bounded, and replaced only when their requests are no longer fresh.
        for boot in 0..2 * MAX_SENDERS {
            seen.take(BootId((boot as u128 + (1 << 64)).to_be_bytes()), 1, 0);
        }
        assert_eq!(seen.senders.len(), MAX_SENDERS);
        assert!(!seen.take(BootId([7; 16]), 1, FRESH_MS));
        assert!(seen.take(BootId([7; 16]), 1, 4 * FRESH_MS));
        assert_eq!(seen.senders.len(), 1);
    }

    #[test]
    fn counters_are_independent_per_receiver_and_never_repeat() {
        let mut counters = RequestCounters::default();
        let (a, b) = (BootId([1; 16]), BootId([2; 16]));
        let mut seen = SeenRequests::default();
        let first = counters.next(a);
        for _ in 0..2 * WINDOW {
            counters.next(b);
        }
        assert_eq!((first, counters.next(a)), (1, 2));
        assert!(seen.take(a, 2, 0) && seen.take(a, first, 0));
        // Receivers beyond the bound are forgotten, and their counters never reused.
        let last = counters.next(b);
        for boot in 0..2 * MAX_SENDERS {
            counters.next(BootId((boot as u128 + (1 << 64)).to_be_bytes()));
        }
        assert!(counters.last.len() <= MAX_SENDERS);
        assert!(counters.next(a) > 2 && counters.next(b) > last);
    }

    proptest! {
        #[test]
        fn each_counter_is_accepted_only_once(counters in prop::collection::vec(1_u64..10_000, 0..300)) {
            let (mut seen, mut taken) = (SeenRequests::default(), std::collections::HashSet::new());
            for counter in counters {
                let fresh = seen.take(BootId([1; 16]), counter, 0);
                prop_assert!(!fresh || taken.insert(counter));
            }
        }

        #[test]
        fn response_is_decoded_at_any_split(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5),
            step in 1_usize..40,
        ) {
            let (sealed, opens) = answer_keys();
            let mut frames = AnswerFrames::new(sealed);
            let mut headers = HeaderMap::new();
            headers.append("x-a", HeaderValue::from_static("1"));
            headers.append("x-a", HeaderValue::from_bytes(b"\xff: 2").unwrap());
            let mut wire = frames.head(StatusCode::NOT_FOUND, &headers);
            for part in &parts {
                wire.extend(frames.data(part.clone().into()));
            }
            wire.extend(frames.end());
            let wire = wire.concat();
            let (mut reader, mut body, mut head) = (AnswerReader::new(opens), Vec::new(), None);
            for piece in wire.chunks(step) {
                reader.push(piece);
                while let Some(part) = reader.part().unwrap() {
                    match part {
                        PeerAnswerPart::Head(status, headers) => head = Some((status, headers)),
                        PeerAnswerPart::Data(data) => body.extend_from_slice(&data),
                        PeerAnswerPart::End => {}
                        PeerAnswerPart::Broken => panic!(),
                    }
                }
            }
            prop_assert!(reader.has_ended());
            prop_assert_eq!(head.unwrap(), (StatusCode::NOT_FOUND, headers));
            prop_assert_eq!(body, parts.concat());
        }
    }

    fn answer_keys() -> (AnswerKey, AnswerKey) {
        let (value, opens) = PLACE.seal(&head(), &keys(&[1]));
        (PLACE.open(&value, &keys(&[1])).unwrap().1, opens)
    }

    /// Decoded body up to the first invalid frame.
    fn read(key: AnswerKey, wire: &[u8]) -> (Vec<u8>, Result<bool, BadPeerAnswer>) {
        let mut reader = AnswerReader::new(key);
        reader.push(wire);
        let mut body = Vec::new();
        loop {
            match reader.part() {
                Ok(Some(PeerAnswerPart::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(_)) => {}
                Ok(None) => return (body, Ok(reader.has_ended())),
                Err(error) => return (body, Err(error)),
            }
        }
    }

    #[test]
    fn altered_truncated_reordered_or_foreign_response_is_rejected() {
        let (sealed, opens) = answer_keys();
        let mut frames = AnswerFrames::new(sealed);
        let head = frames.head(StatusCode::OK, &HeaderMap::new()).concat();
        let [one, two] =
            [b"one", b"two"].map(|part| frames.data(Bytes::from_static(part)).concat());
        let end = frames.end().concat();
        let whole = [&*head, &one, &two, &end].concat();
        assert_eq!(read(opens.clone(), &whole), (b"onetwo".to_vec(), Ok(true)));
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            // If a length was changed, the decoder waits for more bytes, or the MAC does not match.
            assert_ne!(read(opens.clone(), &altered).1, Ok(true), "{at}");
            assert_ne!(read(opens.clone(), &whole[..at]).1, Ok(true), "cut at {at}");
        }
        let swapped = [&*head, &two, &one, &end].concat();
        assert_eq!(read(opens.clone(), &swapped).1, Err(BadPeerAnswer::Forged));
        let without = [&*head, &one, &end].concat();
        assert_eq!(read(opens.clone(), &without), (b"one".to_vec(), Err(BadPeerAnswer::Forged)));
        assert_eq!(read(opens.clone(), &[&*whole, b"x"].concat()).1, Err(BadPeerAnswer::Order));
        let huge = [0xff, 0xff, 0xff, 0xff, DATA];
        assert_eq!(read(opens, &huge).1, Err(BadPeerAnswer::Form));
        // The response to another request is rejected.
        let other = PeerRequestHead { counter: 4, ..super::tests::head() };
        let (_, opens) = PLACE.seal(&other, &keys(&[1]));
        assert_eq!(read(opens, &whole).1, Err(BadPeerAnswer::Forged));
    }
}
