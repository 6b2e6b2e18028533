//! What a node of a fleet needs to go on with a session that another one opened, sealed into the session's id.
//!
//! Whoever has an id can do with it what its client can, and no more: it is for one principal, one API key where there was one,
//! and one endpoint. Pure: says nothing of which sessions there are.

use std::sync::Arc;

use thiserror::Error;

use crate::activity::bytes::{DecodeError, Reader};
use crate::downstream::session::{IDLE_MS, Opening, fresh_id};
use crate::downstream::session_key::SessionKey;
use crate::downstream::source::Source;
use crate::fleet::sealed_id::{self, IdKeys, IdRefusal, IdSalt, MAX_SEALED_BYTES, OpenedId};
use crate::fleet::sealed_mark::NodeTag;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::{Era, Revision};
use crate::policy::Principal;
use crate::proxy::caller::Endpoint;
use crate::proxy::client::{Client, MAX_CLIENT_NAME_BYTES};

/// For how long an id opens its session anew, since it was made: 24 h. On a node that has the session it goes on for as long as it
/// is used.
pub const TICKET_LIFE_MS: u64 = IDLE_MS;
/// The form, which is the first byte.
const FORMAT: u8 = 1;
/// Bytes beside the client's name, at most: form, revision, flags, time, node, principal, key, length, filling.
const MAX_FIXED_BYTES: usize = 1 + 1 + 1 + 8 + 16 + 16 + 32 + 1 + 2;
const _: () = assert!(MAX_FIXED_BYTES + MAX_CLIENT_NAME_BYTES <= MAX_SEALED_BYTES);

const SAMPLING: u8 = 1;
const ELICITATION: u8 = 1 << 1;
const ELICITATION_FORMS: u8 = 1 << 2;
const ROOTS: u8 = 1 << 3;
const ALL_TOOLS: u8 = 1 << 4;
const KEYED: u8 = 1 << 5;
/// The revisions that have sessions, each by its place. Their order is never changed.
const REVISIONS: [Revision; 4] =
    [Revision::November2024, Revision::March2025, Revision::June2025, Revision::November2025];

/// Why an id does not open a session. The client is told none of this: it gets the answer to any unknown id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TicketRefusal {
    /// It is none of this fleet's.
    #[error(transparent)]
    Id(#[from] IdRefusal),
    /// What was sealed was sealed by a version that this one does not know.
    #[error("what is sealed in it {0}")]
    Form(#[from] DecodeError),
    /// It was made too long ago.
    #[error("it is too old")]
    Expired,
}

/// What an id holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTicket {
    /// What tells the session from every other: its id without what is sealed.
    pub salt: IdSalt,
    /// The protocol revision.
    pub revision: Revision,
    /// What the client declared that it can be asked.
    pub client_capabilities: ClientCapabilities,
    /// The endpoint that it is valid for.
    pub endpoint: Endpoint,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// The node that made it.
    pub node: NodeTag,
    /// Of whoever opened it: [`Principal::mark`].
    pub principal: [u8; 16],
    /// The API key that it was opened with.
    pub key: SessionKey,
    /// The name that the client gave itself.
    pub client_name: Box<str>,
}

/// What seals the ids of the sessions that a node opens, and opens those of all nodes.
#[derive(Clone, Debug)]
pub struct TicketOffice {
    keys: IdKeys,
    node: NodeTag,
}

impl TicketOffice {
    /// That of a node.
    #[must_use]
    pub fn new(keys: IdKeys, node: NodeTag) -> Self {
        Self { keys, node }
    }

    /// The node that it is of.
    #[must_use]
    pub fn node(&self) -> NodeTag {
        self.node
    }

    /// The `Mcp-Session-Id` of a session that is opened now. `salt` has never been another's. `None` for a revision without
    /// sessions.
    #[must_use]
    pub fn seal(&self, opening: &Opening, salt: IdSalt, now_ms: u64) -> Option<Arc<str>> {
        let Opening { client, endpoint, principal, key, source: _ } = opening;
        let ticket = SessionTicket {
            salt,
            revision: client.revision(),
            client_capabilities: client.client_capabilities,
            endpoint: *endpoint,
            made_ms: now_ms,
            node: self.node,
            principal: principal.mark(),
            key: key.clone(),
            client_name: (*client.name).into(),
        };
        Some(self.keys.seal(salt, &ticket.encode()?)?.into())
    }

    /// What an id holds.
    ///
    /// # Errors
    ///
    /// [`TicketRefusal`].
    pub fn open(&self, id: &str, now_ms: u64) -> Result<SessionTicket, TicketRefusal> {
        let OpenedId { salt, sealed } = self.keys.open(id)?;
        let ticket = SessionTicket::decode(salt, &sealed)?;
        // Where the clocks differ, an id may be of the future.
        if now_ms.saturating_sub(ticket.made_ms) > TICKET_LIFE_MS {
            return Err(TicketRefusal::Expired);
        }
        Ok(ticket)
    }
}

impl SessionTicket {
    /// True if the session is that principal's, at that endpoint.
    #[must_use]
    pub fn is_for(&self, principal: &Principal, endpoint: Endpoint) -> bool {
        self.principal == principal.mark() && self.endpoint == endpoint
    }

    /// The session as it is opened anew for `principal`, whose it is, who comes from `source`.
    #[must_use]
    pub fn opening(self, principal: Principal, source: Source) -> Opening {
        let Self { salt, revision, client_capabilities, endpoint, key, client_name, .. } = self;
        let id = fresh_id(salt);
        let client =
            Client::new(id, &client_name, revision.name(), Era::Legacy, client_capabilities);
        Opening { client, endpoint, principal, key, source }
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let ClientCapabilities { sampling, elicitation, elicitation_forms, roots } =
            self.client_capabilities;
        let flags = [
            (sampling, SAMPLING),
            (elicitation, ELICITATION),
            (elicitation_forms, ELICITATION_FORMS),
            (roots, ROOTS),
            (self.endpoint == Endpoint::All, ALL_TOOLS),
            (self.key.hash().is_some(), KEYED),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        let revision = REVISIONS.iter().position(|known| *known == self.revision)?;
        let mut out = vec![FORMAT, u8::try_from(revision).ok()?];
        out.push(set.fold(0, |flags, (_, flag)| flags | flag));
        out.extend(self.made_ms.to_be_bytes());
        out.extend(self.node.bytes());
        out.extend(self.principal);
        out.extend(self.key.hash().into_iter().flatten());
        out.push(u8::try_from(self.client_name.len()).ok()?);
        out.extend(self.client_name.bytes());
        // So that the last character of an id has all of its bits, as tables of sessions expect.
        while !(out.len() + sealed_id::OVERHEAD_BYTES).is_multiple_of(3) {
            out.push(0);
        }
        Some(out)
    }

    fn decode(salt: IdSalt, sealed: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(sealed);
        let format = reader.byte()?;
        if format != FORMAT {
            return Err(DecodeError::Version(format));
        }
        let revision = REVISIONS.get(usize::from(reader.byte()?)).ok_or(DecodeError::Value)?;
        let flags = reader.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let made_ms = u64::from_be_bytes(reader.array()?);
        let (node, principal) = (NodeTag::of_bytes(reader.array()?), reader.array()?);
        let key = if has(KEYED) { Some(reader.array()?) } else { None };
        let length = usize::from(reader.byte()?);
        let name = reader.0.get(..length).ok_or(DecodeError::Short)?;
        Ok(Self {
            salt,
            revision: *revision,
            client_capabilities: ClientCapabilities {
                sampling: has(SAMPLING),
                elicitation: has(ELICITATION),
                elicitation_forms: has(ELICITATION_FORMS),
                roots: has(ROOTS),
            },
            endpoint: if has(ALL_TOOLS) { Endpoint::All } else { Endpoint::Search },
            made_ms,
            node,
            principal,
            key: SessionKey::of_hash(key),
            client_name: std::str::from_utf8(name).map_err(|_| DecodeError::Value)?.into(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::cluster_key::{ClusterKeys, KeyPurpose};
    use crate::fleet::config::NodeName;

    pub(in crate::downstream) fn office(key: u8, node: &str) -> TicketOffice {
        let node = NodeTag::of(&NodeName::parse(node).unwrap());
        TicketOffice::new(keys(key), node)
    }

    fn keys(first: u8) -> IdKeys {
        let secret: String = (0..32).map(|at| format!("{:02x}", first + at)).collect();
        let keys = ClusterKeys::parse([secret.as_str()]).unwrap();
        IdKeys::of(&keys.derive(KeyPurpose::Session))
    }

    pub(in crate::downstream) fn opening(salt: IdSalt, principal: Principal) -> Opening {
        let offers = ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        let client = Client::new(fresh_id(salt), "ide", "2025-06-18", Era::Legacy, offers);
        let (endpoint, source) = (Endpoint::All, Source::Loopback);
        Opening { client, endpoint, principal, key: SessionKey::default(), source }
    }

    #[test]
    fn any_node_goes_on_with_a_session_as_it_was_opened() {
        let id = office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 5).unwrap();
        let ticket = office(1, "b").open(&id, 6).unwrap();
        assert_eq!((ticket.node, ticket.made_ms), (office(1, "a").node(), 5));
        assert!(ticket.is_for(&Principal::Admin, Endpoint::All));
        assert!(!ticket.is_for(&Principal::Anonymous, Endpoint::All));
        assert!(!ticket.is_for(&Principal::Admin, Endpoint::Search));
        let again = ticket.opening(Principal::Admin, Source::Loopback);
        let first = opening([7; 16], Principal::Admin);
        assert_eq!(again.client.session_id, first.client.session_id, "records name it the same");
        assert_eq!((&again.client.name, again.client.version), (&first.client.name, "2025-06-18"));
        assert_eq!(again.client.client_capabilities, first.client.client_capabilities);
        assert_eq!((again.endpoint, again.key), (first.endpoint, first.key));
    }

    #[test]
    fn an_id_lasts_a_day_whatever_the_clocks_say() {
        let id = office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 100).unwrap();
        let open = |now| office(1, "b").open(&id, now).map(|_| ());
        assert_eq!(open(100 + TICKET_LIFE_MS), Ok(()));
        assert_eq!(open(101 + TICKET_LIFE_MS), Err(TicketRefusal::Expired));
        assert_eq!(open(0), Ok(()), "the clock of the node that made it is ahead");
        assert_eq!(office(2, "b").open(&id, 100), Err(TicketRefusal::Id(IdRefusal::Key)));
    }

    #[test]
    fn a_version_that_is_not_known_is_refused() {
        let keys = keys(1);
        let id = keys.seal([1; 16], &[FORMAT + 1, 0, 0]).unwrap();
        let refused = office(1, "a").open(&id, 0);
        assert_eq!(refused, Err(TicketRefusal::Form(DecodeError::Version(FORMAT + 1))));
        let longest = SessionTicket {
            client_name: "x".repeat(MAX_CLIENT_NAME_BYTES).into(),
            key: SessionKey::of_hash(Some([1; 32])),
            ..office(1, "a")
                .open(
                    &office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 0).unwrap(),
                    0,
                )
                .unwrap()
        };
        let id = keys.seal([1; 16], &longest.encode().unwrap()).unwrap();
        assert!(id.len() <= 328, "{}", id.len());
        assert_eq!(office(1, "b").open(&id, 0).unwrap().client_name, longest.client_name);
    }

    proptest! {
        #[test]
        fn a_ticket_comes_back(
            salt: IdSalt, made_ms: u64, node: [u8; 16], principal: [u8; 16], key: Option<[u8; 32]>,
            revision in 0..4_usize, all: bool, sampling: bool, elicitation: bool, forms: bool, roots: bool,
            name in "\\PC{0,32}",
        ) {
            let ticket = SessionTicket {
                salt, made_ms, principal,
                revision: REVISIONS[revision],
                client_capabilities: ClientCapabilities { sampling, elicitation, elicitation_forms: forms, roots },
                endpoint: if all { Endpoint::All } else { Endpoint::Search },
                node: NodeTag::of_bytes(node),
                key: SessionKey::of_hash(key),
                client_name: name.into(),
            };
            let bytes = ticket.encode().unwrap();
            prop_assert_eq!((bytes.len() + sealed_id::OVERHEAD_BYTES) % 3, 0);
            prop_assert_eq!(SessionTicket::decode(salt, &bytes), Ok(ticket));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..260)) {
            let _ = SessionTicket::decode([0; 16], &bytes);
        }
    }
}
