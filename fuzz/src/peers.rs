//! Target `peers`: messages between the nodes of a fleet, over HTTP and through the store, are decoded or refused,
//! regardless of their author.
//!
//! Input: a byte that selects the kind of the rest: the frames of an answer, the head of an answer, the header of a
//! request, a forwarded request, the facts of a node, a sealed object, a heartbeat, a claim.

use std::sync::OnceLock;

use bytes::Bytes;
use mcpproxy_downstream::http::forwarded_parts;
use mcpproxy_fleet::chain::place::NodeClaim;
use mcpproxy_fleet::cluster_key::{ClusterKeys, KeyPurpose, PurposeKeys};
use mcpproxy_fleet::config::NodeName;
use mcpproxy_fleet::facts::{
    FactKeys, FactObject, MAX_FACT_OBJECT_BYTES, ObjectBinding, open_object, seal_object,
};
use mcpproxy_fleet::heartbeat::{BootId, Heartbeat, HeartbeatOf, MAX_HEARTBEAT_BYTES};
use mcpproxy_fleet::node_state::FleetId;
use mcpproxy_fleet::node_state::NodeKey;
use mcpproxy_fleet::peer_wire::{
    AnswerFrames, AnswerKey, AnswerReader, BadPeerAnswer, PeerAnswerPart, PeerRequestHead,
    PeerSender, RequestBinding,
};

const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const FLEET: FleetId = FleetId([1; 16]);
const PLACE: RequestBinding<'static> = RequestBinding { fleet: FLEET, path: "/fleet/v1/ping" };
const OBJECT: ObjectBinding<'static> = ObjectBinding { fleet: FLEET, key: "facts/said/a" };

pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 8 {
        0 => frames(data),
        1 => head(data),
        2 => request(data),
        3 => passed_on(data),
        4 => facts(data),
        5 => sealed(data),
        6 => heartbeat(data),
        _ => {
            if let Ok(claim) = NodeClaim::read(data) {
                let _ = claim.verifier();
            }
        }
    }
}

fn keys(purpose: KeyPurpose) -> PurposeKeys {
    ClusterKeys::parse([SECRET]).expect("a secret").derive(purpose)
}

fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("a name")
}

/// Key that seals and opens the answer to a request.
fn answer_key(counter: u64) -> AnswerKey {
    let sender = |name, boot| PeerSender { node: node(name), boot: BootId([boot; 16]) };
    let (from, to) = (sender("a", 1), sender("b", 2));
    let head = PeerRequestHead { from, to, time: 17, counter, body: [3; 32] };
    PLACE.seal(&head, &keys(KeyPurpose::Peer)).1
}

/// Reads frames in pieces of `step` bytes. Returns the body, and whether the answer is complete.
fn read(wire: &[u8], step: usize) -> (Vec<u8>, Result<bool, BadPeerAnswer>) {
    let (mut reader, mut body) = (AnswerReader::new(answer_key(1)), Vec::new());
    for piece in wire.chunks(step) {
        reader.push(piece);
        loop {
            match reader.part() {
                Ok(Some(PeerAnswerPart::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return (body, Err(error)),
            }
        }
    }
    (body, Ok(reader.has_ended()))
}

/// Alters a byte in the frames of an answer, and asserts that the change is detected for any size of the pieces.
fn frames(data: &[u8]) {
    let [step, at, change, body @ ..] = data else { return };
    let step = usize::from(*step) + 1;
    let mut made = AnswerFrames::new(answer_key(1));
    let Some(PeerAnswerPart::Head(status, headers)) = PeerAnswerPart::head(b"200\na:b") else {
        panic!("a head");
    };
    let mut wire = made.head(status, &headers).concat();
    for part in body.chunks(step) {
        wire.extend(made.data(Bytes::copy_from_slice(part)).concat());
    }
    wire.extend(made.end().concat());
    assert_eq!(read(&wire, step), (body.to_vec(), Ok(true)));
    let at = usize::from(*at) % wire.len();
    wire[at] ^= change;
    let whole = read(&wire, wire.len());
    assert_eq!(read(&wire, step), whole, "in pieces as in one");
    assert!(body.starts_with(&whole.0) && (*change == 0) == (whole.1 == Ok(true)));
    // The input itself was not sealed, so it is never opened.
    let odd = read(data, step);
    assert!(odd.0.is_empty() && odd.1 != Ok(true));
}

/// Asserts that a decoded head is unchanged after it is encoded and decoded again.
fn head(payload: &[u8]) {
    let Some(PeerAnswerPart::Head(status, headers)) = PeerAnswerPart::head(payload) else { return };
    let wire = AnswerFrames::new(answer_key(1)).head(status, &headers).concat();
    let mut reader = AnswerReader::new(answer_key(1));
    reader.push(&wire);
    let Ok(Some(PeerAnswerPart::Head(again, same))) = reader.part() else { panic!("a head") };
    assert_eq!((again, same), (status, headers));
}

/// Asserts that only a header sealed with the fleet's key is accepted as the header of a request.
fn request(data: &[u8]) {
    let keys = keys(KeyPurpose::Peer);
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(PLACE.open(text, &keys).is_none(), "it was not issued");
    let mut words = text.split(' ');
    let mut sender = || {
        let node = NodeName::parse(words.next()?)?;
        Some(PeerSender { node, boot: BootId::parse(words.next()?)? })
    };
    let (Some(from), Some(to)) = (sender(), sender()) else { return };
    let number = |word: Option<&str>| word.and_then(|it| it.parse().ok()).unwrap_or(u64::MAX);
    let (time, counter) = (number(words.next()), number(words.next()));
    let made = PeerRequestHead { from, to, time, counter, body: [3; 32] };
    let (value, _) = PLACE.seal(&made, &keys);
    let opened = PLACE.open(&value, &keys).expect("what was made");
    assert_eq!(opened.0, made);
}

/// Asserts that a forwarded request consists of its head and the rest of the bytes.
fn passed_on(data: &[u8]) {
    let sent = Bytes::copy_from_slice(data);
    if let Some((head, body)) = forwarded_parts(&sent) {
        assert!(data.ends_with(&body) && body.len() < data.len());
        let _ = head.uri.path();
    }
}

/// Asserts that the facts of a node are unchanged after they are encoded and decoded again, and belong to that node or
/// to the nodes that they name.
fn facts(data: &[u8]) {
    let a = node("a");
    if let Ok(object) = FactObject::read(data, &a) {
        assert_eq!(FactObject::read(&object.write(&a), &a), Ok(object));
    }
}

/// Asserts that a sealed object opens at its own path with its key, and that nothing else opens.
fn sealed(data: &[u8]) {
    let keys = FactKeys::new([[7; 32], [8; 32]]);
    assert!(data.len() as u64 <= MAX_FACT_OBJECT_BYTES);
    assert!(open_object(&keys, OBJECT, data).is_err(), "it was not sealed");
    let [at, change, text @ ..] = data else { return };
    let mut object = seal_object(&keys, OBJECT, [9; 32], text).expect("there is a key");
    assert_eq!(open_object(&keys, OBJECT, &object).expect("what was sealed").text, text);
    let other = FactKeys::new([[8; 32]]);
    assert!(open_object(&other, OBJECT, &object).is_err());
    let at = usize::from(*at) % object.len();
    object[at] ^= change;
    assert_eq!(open_object(&keys, OBJECT, &object).is_ok(), *change == 0);
}

/// Asserts that a heartbeat is valid for its node only, and that values within its bounds are read as they were
/// written.
fn heartbeat(data: &[u8]) {
    let (a, by) = (node("a"), keys(KeyPurpose::Heartbeat));
    let verifier = node_key().verifier(&FLEET.to_string(), "a").expect("a name");
    let of = HeartbeatOf { fleet: FLEET, node: &a };
    assert!(of.open(data, &verifier, Some(&by)).is_err(), "it was not signed");
    let Ok(said) = serde_json::from_slice::<Heartbeat>(data) else { return };
    let object = of.seal(&said, node_key(), Some(&by));
    match of.open(&object, &verifier, Some(&by)) {
        Ok(read) => {
            assert_eq!(read, said);
            assert!(object.len() as u64 <= MAX_HEARTBEAT_BYTES);
            assert_eq!(of.open(&object, &verifier, None).as_ref(), Ok(&said));
            let b = node("b");
            let other = HeartbeatOf { fleet: FLEET, node: &b };
            assert!(other.open(&object, &verifier, Some(&by)).is_err());
        }
        Err(fault) => assert_eq!(of.open(&object, &verifier, None), Err(fault), "by its bounds"),
    }
}

/// Key generated by this process, so no input contains a signature made with it.
fn node_key() -> &'static NodeKey {
    static KEY: OnceLock<NodeKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("mcpproxy-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let key = NodeKey::open(&folder).expect("a key");
        let _ = std::fs::remove_dir_all(&folder);
        key
    })
}
