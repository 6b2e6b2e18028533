//! Target `tickets`: the id of a fleet session decrypts to the sealed data, or is refused.
//!
//! Input: a byte that selects the kind of the rest: an id, the characters of an id, the data sealed in an id, or a
//! change to a valid id.

use mcpproxy_downstream::session_ticket::{TicketEndpoint, TicketOffice};
use mcpproxy_downstream::source::Source;
use mcpproxy_fleet::cluster_key::{ClusterKeys, KeyPurpose};
use mcpproxy_fleet::cluster_key::{IdKeys, MAX_ID_CHARS, MAX_SEALED_BYTES};
use mcpproxy_fleet::node_state::NodeTag;
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_policy::Principal;

const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SALT: [u8; 16] = [9; 16];
/// Characters of session ids.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let keys = ClusterKeys::parse([SECRET]).expect("a secret");
    let keys = IdKeys::of(&keys.derive(KeyPurpose::Session));
    let office = TicketOffice::new(keys.clone(), NodeTag::of_bytes([1; 16]));
    match kind % 4 {
        0 => {
            // A valid id requires the key, so the input cannot contain one.
            if let Ok(text) = std::str::from_utf8(data) {
                assert!(office.open(text, 0).is_err());
            }
        }
        1 => {
            let letters = data.iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)]));
            assert!(office.open(&letters.collect::<String>(), 0).is_err());
        }
        2 => {
            let Some(id) = keys.seal(SALT, data) else {
                assert!(data.len() > MAX_SEALED_BYTES);
                return;
            };
            assert!(id.len() <= MAX_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(keys.open(&id).expect("what was sealed").sealed, data);
            let Ok(ticket) = office.open(&id, u64::MAX / 2) else { return };
            let made_ms = ticket.made_ms;
            let opening =
                ticket.clone().opening(Principal::Anonymous, Source::default(), Endpoint::All);
            // The decoded data is sealed again by this node, for another principal and endpoint.
            let again = office.seal(&opening, SALT, made_ms).expect("a session's");
            let again = office.open(&again, made_ms).expect("what was sealed");
            assert_eq!((again.revision, &again.key), (ticket.revision, &ticket.key));
            assert_eq!(again.client_capabilities, ticket.client_capabilities);
            assert_eq!((again.endpoint, again.made_ms), (TicketEndpoint::All, made_ms));
            assert!(ticket.client_name.starts_with(&*again.client_name));
        }
        _ => {
            let [at, change, sealed @ ..] = data else { return };
            let sealed = &sealed[..sealed.len().min(MAX_SEALED_BYTES)];
            let id = keys.seal(SALT, sealed).expect("short enough");
            let at = usize::from(*at) % id.len();
            let letter = char::from(LETTERS[usize::from(change % 64)]);
            let mut changed = id.clone();
            changed.replace_range(at..=at, letter.encode_utf8(&mut [0; 4]));
            assert_eq!(keys.open(&changed).is_ok(), changed == id);
        }
    }
}
