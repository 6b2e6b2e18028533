//! What nodes say to each other over HTTP, and how each knows that it is the other: pure.
//!
//! A request is a POST below [`PATH`] with one header more, [`HEADER`]:
//!
//! ```text
//! v1 KEY FROM FROM-BOOT TO TO-BOOT last TIME COUNTER BODY MAC
//! ```
//!
//! KEY names the key that is derived of `cluster.key` for this purpose, BODY is BLAKE3 of the body, and MAC keyed BLAKE3 over the
//! fleet, the path and all that stands before it. Who has no such key gets no answer that says anything. A request counts once:
//! it names the start of the node that it is for, TIME is that node's time within [`FRESH_MS`], and each COUNTER of a start of
//! the sender is taken once ([`SeenRequests`]; a sender counts for each start that it asks, [`RequestCounters`]). `last` says that nothing further is asked because of it: one hop.
//!
//! An answer is status 200 and frames, each with a MAC under a key that is made of the request's MAC, so that it is the answer to
//! that request and no other, whole, and in its order:
//!
//! ```text
//! length (4, big-endian: of the payload) · kind (1) · payload · keyed BLAKE3(number (8) · kind · payload), 16 bytes
//! ```
//!
//! Kind 0 is the head (status, a line for each header), 1 a part of the body, 2 the end, 3 that it broke off. TLS hides what is
//! said, where `cluster.advertise` is https; that nodes know each other does not depend on it.
//!
//! Size: both directions of one protocol, which are read together, and what is tried on each.

use std::collections::HashMap;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::cluster_key::{DerivedKey, KEY_ID_BYTES, PurposeKeys};
use super::config::NodeName;
use super::heartbeat::BootId;
use super::sealed_mark::FleetId;

/// What all paths between nodes begin with.
pub const PATH: &str = "/fleet/v1/";
/// The header by which a node shows that it is one.
pub const HEADER: &str = "mcpproxy-fleet";
/// Most bytes of a request's body: a client's request and its head.
pub const MAX_REQUEST_BYTES: usize = (16 << 20) + (256 << 10);
/// How far a request's time may be from that of the node that it is for, in milliseconds.
pub const FRESH_MS: u64 = 60_000;
/// Most bytes of a frame's payload.
pub const MAX_FRAME_BYTES: usize = 256 << 10;
/// Most headers of an answer.
const MAX_ANSWER_HEADERS: usize = 100;
/// Most bytes of [`HEADER`]'s value.
const MAX_HEADER_BYTES: usize = 1024;
/// Bytes of a frame's MAC.
const TAG_BYTES: usize = 16;
/// Bytes of a frame before its payload.
const FRAME_HEAD_BYTES: usize = 5;
/// Counters of one sender that are remembered: a request that is overtaken by so many is refused.
const WINDOW: u64 = 4096;
/// Most starts of senders that are remembered.
pub const MAX_SENDERS: usize = 8192;

const REQUEST_DOMAIN: &str = "mcpproxy peer request v1";
const ANSWER_DOMAIN: &str = "mcpproxy peer answer v1";
/// What says that one hop was made, the only one.
const LAST_HOP: &str = "last";

/// What one node asks another for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRoute {
    /// Whether it is there: answers with the names of both.
    Ping,
    /// Records of the fleet that it keeps.
    Records,
    /// What is decided of a call that waits there for a person.
    Approval,
    /// A request of a client whose session lives there.
    Session,
}

impl PeerRoute {
    /// All.
    pub const ALL: [Self; 4] = [Self::Ping, Self::Records, Self::Approval, Self::Session];

    /// Its path.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Ping => "/fleet/v1/ping",
            Self::Records => "/fleet/v1/records",
            Self::Approval => "/fleet/v1/approval",
            Self::Session => "/fleet/v1/session",
        }
    }

    /// That of a path.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }

    /// The longest until the head of the answer, in milliseconds. A client's call takes as long as it takes.
    #[must_use]
    pub fn answer_limit_ms(self) -> u64 {
        match self {
            Self::Ping => 3_000,
            Self::Records | Self::Approval => 10_000,
            Self::Session => 3_600_000,
        }
    }
}

/// Whose request it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSender {
    /// Its name.
    pub node: NodeName,
    /// Its start.
    pub boot: BootId,
}

/// A request without its body's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequestHead {
    /// Who asks.
    pub from: PeerSender,
    /// Who is asked, and which start of it.
    pub to: PeerSender,
    /// The time of who is asked, in milliseconds since 1970.
    pub time: u64,
    /// Which request of the sender's start it is, from 1.
    pub counter: u64,
    /// BLAKE3 of the body.
    pub body: [u8; 32],
}

/// The fleet and the path that a request is for.
#[derive(Clone, Copy, Debug)]
pub struct PeerPlace<'a> {
    /// The fleet.
    pub fleet: FleetId,
    /// The path.
    pub path: &'a str,
}

impl PeerPlace<'_> {
    /// The header's value, and what the answer is opened with.
    #[must_use]
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

    /// Reads a header's value that one of `keys` has made for this place; and what the answer is sealed with. Whether it is
    /// for this node, in time and for the first time is not looked at.
    #[must_use]
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

    /// Neither a fleet's id, nor the path of a request, nor the text holds a line end.
    fn mac(self, key: &DerivedKey, text: &str) -> [u8; 32] {
        let said = format!("{REQUEST_DOMAIN}\n{}\nPOST {}\n{text}", self.fleet, self.path);
        *blake3::keyed_hash(key.expose(), said.as_bytes()).as_bytes()
    }
}

/// The numbers of the requests that this start of the node makes: those to one start of another count by themselves, so that
/// what is asked of others makes no request to it late.
#[derive(Debug, Default)]
pub struct RequestCounters {
    last: HashMap<BootId, u64>,
    /// Above all that were forgotten.
    floor: u64,
}

impl RequestCounters {
    /// The number of the next request to that start of a node.
    pub fn next(&mut self, to: BootId) -> u64 {
        if !self.last.contains_key(&to) && self.last.len() >= MAX_SENDERS {
            // One that comes back goes on above what it had.
            self.floor = self.last.values().copied().max().unwrap_or_default().max(self.floor);
            self.last.clear();
        }
        let last = self.last.entry(to).or_insert(self.floor);
        *last += 1;
        *last
    }
}

/// Which requests have been taken: each counts once.
#[derive(Debug, Default)]
pub struct SeenRequests {
    senders: HashMap<BootId, SeenCounters>,
}

#[derive(Debug)]
struct SeenCounters {
    /// The highest that was taken.
    highest: u64,
    /// Bit i: whether `highest - i` was.
    taken: Box<[u64]>,
    /// When the last came, in milliseconds of any clock that does not run back.
    last: u64,
}

impl SeenRequests {
    /// Takes a request, whose time was found to be fresh, at `now` in milliseconds; false if it was taken before, or may have
    /// been.
    pub fn take(&mut self, from: BootId, counter: u64, now: u64) -> bool {
        if !self.senders.contains_key(&from) && self.senders.len() >= MAX_SENDERS {
            // What came from them is no longer fresh.
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
            // What leaves the window is forgotten; it is refused from now on.
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

/// What one answer is sealed and opened with.
#[derive(Clone)]
pub struct AnswerKey([u8; 32]);

impl AnswerKey {
    fn of(key: &DerivedKey, request: &[u8; 32]) -> Self {
        let said = [ANSWER_DOMAIN.as_bytes(), b"\n", request].concat();
        Self(*blake3::keyed_hash(key.expose(), &said).as_bytes())
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

/// Makes an answer's frames.
#[derive(Debug)]
pub struct AnswerFrames {
    key: AnswerKey,
    number: u64,
}

impl AnswerFrames {
    /// Of the answer to one request.
    #[must_use]
    pub fn new(key: AnswerKey) -> Self {
        Self { key, number: 0 }
    }

    /// The first: the status and, as far as there is room for them, the headers.
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

    /// A part of the body. Its bytes are not copied.
    pub fn data(&mut self, mut part: Bytes) -> Vec<Bytes> {
        let mut frames = Vec::new();
        while !part.is_empty() {
            let payload = part.split_to(part.len().min(MAX_FRAME_BYTES));
            frames.extend(self.frame(DATA, payload));
        }
        frames
    }

    /// The last: the body was whole.
    pub fn end(&mut self) -> Vec<Bytes> {
        self.frame(END, Bytes::new())
    }

    /// The last: the body broke off.
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

/// A part of an answer.
#[derive(Debug)]
pub enum PeerAnswerPart {
    /// It begins.
    Head(StatusCode, HeaderMap),
    /// Bytes of its body.
    Data(Bytes),
    /// It is whole.
    End,
    /// The other node says that it broke off.
    Broken,
}

impl PeerAnswerPart {
    /// What the payload of the first frame says, once its MAC was right.
    #[must_use]
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

/// An answer is not what that node answered to that request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadPeerAnswer {
    /// A frame is longer than one is, or of no kind.
    #[error("it is not made of frames")]
    Form,
    /// A MAC is wrong: altered, cut, reordered, or another's.
    #[error("it is not by the node that was asked")]
    Forged,
    /// Something follows the end, or the head does not come first.
    #[error("its frames are in no order")]
    Order,
}

/// Reads an answer's frames, in whichever pieces they come.
#[derive(Debug)]
pub struct AnswerReader {
    key: AnswerKey,
    number: u64,
    buffer: BytesMut,
    ended: bool,
}

impl AnswerReader {
    /// Of the answer to one request.
    #[must_use]
    pub fn new(key: AnswerKey) -> Self {
        Self { key, number: 0, buffer: BytesMut::new(), ended: false }
    }

    /// Takes what has come. It holds at most what was given, and one frame.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether all has come: what ends before is cut.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next part; `None` if it has not come whole.
    ///
    /// # Errors
    ///
    /// [`BadPeerAnswer`]; nothing that follows is to be believed.
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
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::cluster_key::{ClusterKeys, KeyPurpose};

    const FLEET: FleetId = FleetId([1; 16]);
    const PLACE: PeerPlace<'static> = PeerPlace { fleet: FLEET, path: "/fleet/v1/ping" };

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
    fn a_request_is_of_who_has_the_key_for_one_fleet_and_one_path() {
        let (value, _) = PLACE.seal(&head(), &keys(&[1]));
        assert_eq!(PLACE.open(&value, &keys(&[1])).unwrap().0, head());
        assert_eq!(PLACE.open(&value, &keys(&[2, 1])).unwrap().0, head(), "an older key opens");
        assert!(PLACE.open(&value, &keys(&[2])).is_none());
        for other in [
            PeerPlace { fleet: FleetId([2; 16]), ..PLACE },
            PeerPlace { path: "/fleet/v1/session", ..PLACE },
        ] {
            assert!(other.open(&value, &keys(&[1])).is_none(), "{other:?}");
        }
        // A second hop is none that is taken, whoever makes it.
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
    fn a_request_is_taken_once_in_whatever_order() {
        let mut seen = SeenRequests::default();
        let (a, b) = (BootId([1; 16]), BootId([2; 16]));
        for counter in [3, 1, 2, 100, 5000, 4999] {
            assert!(seen.take(a, counter, 0), "{counter}");
            assert!(!seen.take(a, counter, 0), "{counter}");
        }
        assert!(!seen.take(a, 4, 0), "it may have been taken");
        assert!(seen.take(a, 5000 - WINDOW + 1, 0) && !seen.take(a, 5000 - WINDOW, 0));
        assert!(!seen.take(a, 0, 0));
        assert!(seen.take(a, u64::MAX, 0) && !seen.take(a, u64::MAX, 0));
        assert!(seen.take(b, 3, 0), "another sender");
        // There are so many senders, and not more before the others' requests are old.
        for boot in 0..2 * MAX_SENDERS {
            seen.take(BootId((boot as u128 + (1 << 64)).to_be_bytes()), 1, 0);
        }
        assert_eq!(seen.senders.len(), MAX_SENDERS);
        assert!(!seen.take(BootId([7; 16]), 1, FRESH_MS));
        assert!(seen.take(BootId([7; 16]), 1, 4 * FRESH_MS));
        assert_eq!(seen.senders.len(), 1);
    }

    #[test]
    fn what_is_asked_of_others_makes_no_request_late_and_no_number_comes_twice() {
        let mut counters = RequestCounters::default();
        let (a, b) = (BootId([1; 16]), BootId([2; 16]));
        let mut seen = SeenRequests::default();
        let first = counters.next(a);
        for _ in 0..2 * WINDOW {
            counters.next(b);
        }
        assert_eq!((first, counters.next(a)), (1, 2));
        assert!(seen.take(a, 2, 0) && seen.take(a, first, 0));
        // Those of more nodes than are kept in mind are forgotten, and none of theirs is used again.
        let last = counters.next(b);
        for boot in 0..2 * MAX_SENDERS {
            counters.next(BootId((boot as u128 + (1 << 64)).to_be_bytes()));
        }
        assert!(counters.last.len() <= MAX_SENDERS);
        assert!(counters.next(a) > 2 && counters.next(b) > last);
    }

    proptest! {
        #[test]
        fn no_counter_is_taken_twice(counters in prop::collection::vec(1_u64..10_000, 0..300)) {
            let (mut seen, mut taken) = (SeenRequests::default(), std::collections::HashSet::new());
            for counter in counters {
                let fresh = seen.take(BootId([1; 16]), counter, 0);
                prop_assert!(!fresh || taken.insert(counter));
            }
        }

        #[test]
        fn an_answer_is_read_however_it_is_cut(
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

    /// What is read of frames, up to the first that is bad.
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
    fn an_answer_that_is_altered_cut_reordered_or_another_s_is_none() {
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
            // A length that is another waits for more, or finds another MAC.
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
        // That to another request.
        let other = PeerRequestHead { counter: 4, ..super::tests::head() };
        let (_, opens) = PLACE.seal(&other, &keys(&[1]));
        assert_eq!(read(opens, &whole).1, Err(BadPeerAnswer::Forged));
    }
}
