//! Session ticket: state from which any fleet node can reopen a session, sealed into its id; and the list of ended
//! sessions, whose ids are void.
//!
//! A ticket is bound to one principal, one endpoint and, if there was one, one API key. The list is bounded and
//! evicts the oldest entries. Sans-I/O.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use mcpproxy_activity::bytes::{DecodeError, Reader};
use mcpproxy_fleet::cluster_key::{self, IdKeys, IdRefusal, IdSalt, MAX_SEALED_BYTES, OpenedId};
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::known_extensions::Extensions;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use parking_lot::Mutex;
use thiserror::Error;

use super::session::{IDLE_MS, Opening, SessionKey, fresh_id};
use super::source::Source;
use mcpproxy_gateway::node_directory::NodeTag;
use mcpproxy_gateway::proxy::client::{Client, Endpoint, MAX_CLIENT_NAME_BYTES};

/// Validity of an id for reopening a session: 24 h. On the node that has the session, the id is valid as long as
/// the session is used.
pub(crate) const TICKET_LIFE_MS: u64 = IDLE_MS;
/// Format version, the first byte.
const FORMAT: u8 = 1;
/// Maximum size without the client's name: format, revision, flags, time, node, principal, key, server, length,
/// extensions, padding.
const MAX_FIXED_BYTES: usize = 1 + 1 + 1 + 1 + 8 + 16 + 16 + 32 + 16 + 1 + 2;
const _: () = assert!(MAX_FIXED_BYTES + MAX_CLIENT_NAME_BYTES <= MAX_SEALED_BYTES);

const SAMPLING: u8 = 1;
const ELICITATION_FORMS: u8 = 1 << 2;
const ROOTS: u8 = 1 << 3;
const ALL_TOOLS: u8 = 1 << 4;
const KEYED: u8 = 1 << 5;
const ELICITATION_URLS: u8 = 1 << 6;
const ONE_SERVER: u8 = 1 << 7;
/// Revisions with sessions, encoded by index: the order must never change.
const REVISIONS: [Revision; 4] =
    [Revision::November2024, Revision::March2025, Revision::June2025, Revision::November2025];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketEndpoint {
    Search,
    All,
    /// Endpoint of the server whose name has this hash.
    Server([u8; 16]),
}

impl TicketEndpoint {
    fn of(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Search => Self::Search,
            Endpoint::All => Self::All,
            Endpoint::Server(name) => {
                let hash = blake3::hash(name.as_bytes());
                Self::Server(hash.as_bytes().first_chunk().copied().unwrap_or_default())
            }
        }
    }

    /// Hash of the name of the endpoint's only server.
    fn server(self) -> Option<[u8; 16]> {
        match self {
            Self::Search | Self::All => None,
            Self::Server(hash) => Some(hash),
        }
    }
}

/// Reason why an id does not open a session. The client gets the response for an unknown id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TicketRefusal {
    /// The id was not sealed by this fleet.
    #[error(transparent)]
    Id(#[from] IdRefusal),
    /// The ticket was sealed in an unknown format.
    #[error("its sealed content {0}")]
    Form(#[from] DecodeError),
    /// The ticket is older than [`TICKET_LIFE_MS`].
    #[error("it is too old")]
    Expired,
}

/// Decoded content of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTicket {
    /// Random part of the id, unique per session.
    pub salt: IdSalt,
    pub revision: Revision,
    /// Capabilities that the client declared.
    pub client_capabilities: ClientCapabilities,
    pub endpoint: TicketEndpoint,
    /// Time of creation in milliseconds since 1970.
    pub made_ms: u64,
    /// Node that created the session.
    pub node: NodeTag,
    /// [`Principal::mark`] of the principal that opened the session.
    pub principal: [u8; 16],
    /// The API key that the session was opened with.
    pub key: SessionKey,
    /// Name that the client gave itself.
    pub client_name: Box<str>,
}

/// Seals the ids of sessions opened on this node, and opens those of all nodes.
#[derive(Clone, Debug)]
pub struct TicketOffice {
    keys: IdKeys,
    pub(super) node: NodeTag,
}

impl TicketOffice {
    pub fn new(keys: IdKeys, node: NodeTag) -> Self {
        Self { keys, node }
    }

    /// The `Mcp-Session-Id` of a new session. `salt` must be unique. `None` for a revision without sessions.
    pub fn seal(&self, opening: &Opening, salt: IdSalt, now_ms: u64) -> Option<Arc<str>> {
        let Opening { client, endpoint, principal, key, source: _ } = opening;
        let ticket = SessionTicket {
            salt,
            revision: client.revision(),
            client_capabilities: client.client_capabilities,
            endpoint: TicketEndpoint::of(endpoint),
            made_ms: now_ms,
            node: self.node,
            principal: principal.mark(),
            key: key.clone(),
            client_name: (*client.name).into(),
        };
        Some(self.keys.seal(salt, &ticket.encode()?)?.into())
    }

    /// Opens and validates an id.
    pub fn open(&self, id: &str, now_ms: u64) -> Result<SessionTicket, TicketRefusal> {
        let OpenedId { salt, sealed } = self.keys.open(id)?;
        let ticket = SessionTicket::decode(salt, &sealed)?;
        // With clock skew the creation time may be in the future.
        if now_ms.saturating_sub(ticket.made_ms) > TICKET_LIFE_MS {
            return Err(TicketRefusal::Expired);
        }
        Ok(ticket)
    }
}

impl SessionTicket {
    pub(crate) fn is_for(&self, principal: &Principal, endpoint: &Endpoint) -> bool {
        self.principal == principal.mark() && self.endpoint == TicketEndpoint::of(endpoint)
    }

    /// Parameters for reopening the session for its owner `principal`, which connects from `source` to the session's
    /// `endpoint`.
    pub fn opening(self, principal: Principal, source: Source, endpoint: Endpoint) -> Opening {
        let Self { salt, revision, client_capabilities, key, client_name, .. } = self;
        let id = fresh_id(salt);
        let client = Client::new(
            id,
            &client_name,
            revision.name(),
            ProtocolFamily::Legacy,
            client_capabilities,
        );
        Opening { client, endpoint, principal, key, source }
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let ClientCapabilities { sampling, elicitation_forms, elicitation_urls, roots, extensions } =
            self.client_capabilities;
        let flags = [
            (sampling, SAMPLING),
            (elicitation_forms, ELICITATION_FORMS),
            (elicitation_urls, ELICITATION_URLS),
            (roots, ROOTS),
            (self.endpoint == TicketEndpoint::All, ALL_TOOLS),
            (self.endpoint.server().is_some(), ONE_SERVER),
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
        out.extend(self.endpoint.server().into_iter().flatten());
        out.push(u8::try_from(self.client_name.len()).ok()?);
        out.extend(self.client_name.bytes());
        // Nodes of older versions, which may exist during a rolling upgrade, stop reading here. Without extensions
        // the byte is zero like the padding.
        if !extensions.is_empty() {
            out.push(extensions.bits());
        }
        // Padding: the last character of an id must use all of its bits, since tables shard by it.
        while !(out.len() + cluster_key::OVERHEAD_BYTES).is_multiple_of(3) {
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
        let endpoint = match (has(ONE_SERVER), has(ALL_TOOLS)) {
            (true, _) => TicketEndpoint::Server(reader.array()?),
            (false, true) => TicketEndpoint::All,
            (false, false) => TicketEndpoint::Search,
        };
        let length = usize::from(reader.byte()?);
        let (name, rest) = reader.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        let extensions = rest.first().copied().unwrap_or_default();
        Ok(Self {
            salt,
            revision: *revision,
            client_capabilities: ClientCapabilities {
                sampling: has(SAMPLING),
                elicitation_forms: has(ELICITATION_FORMS),
                elicitation_urls: has(ELICITATION_URLS),
                roots: has(ROOTS),
                extensions: Extensions::of_bits(extensions),
            },
            endpoint,
            made_ms,
            node,
            principal,
            key: SessionKey::of_hash(key),
            client_name: std::str::from_utf8(name).map_err(|_| DecodeError::Value)?.into(),
        })
    }
}

/// Sealing and opening of session tickets on one node, with the list of ended sessions.
#[derive(Debug)]
pub(super) struct SessionTickets {
    office: TicketOffice,
    ended: Mutex<EndedSessions>,
}

impl SessionTickets {
    pub(super) fn new(office: TicketOffice) -> Self {
        Self { office, ended: Mutex::default() }
    }

    pub(super) fn node(&self) -> NodeTag {
        self.office.node
    }

    pub(super) fn seal(&self, opening: &Opening, salt: IdSalt, now_ms: u64) -> Option<Arc<str>> {
        self.office.seal(opening, salt, now_ms)
    }

    /// Opens an id; `None` if its session has ended.
    pub(super) fn open(
        &self,
        id: &str,
        now_ms: u64,
    ) -> Result<Option<SessionTicket>, TicketRefusal> {
        let ticket = self.office.open(id, now_ms)?;
        Ok((!self.ended.lock().has(&ticket.salt)).then_some(ticket))
    }

    /// Voids the id of an ended session.
    pub(super) fn revoke(&self, salt: IdSalt, now_ms: u64) {
        self.ended.lock().note(salt, now_ms);
    }
}

/// Maximum number of remembered sessions, about 6 MB.
pub(super) const MAX_ENDED: usize = 100_000;

/// Ended sessions, by the random part of their ids.
#[derive(Debug, Default)]
pub(super) struct EndedSessions {
    known: HashSet<IdSalt>,
    /// Ended sessions in the order in which they were noted, each with its expiry.
    order: VecDeque<(u64, IdSalt)>,
}

impl EndedSessions {
    /// Records an ended session; true if it is new.
    pub(super) fn note(&mut self, salt: IdSalt, now_ms: u64) -> bool {
        if !self.known.insert(salt) {
            return false;
        }
        // The id was created before now, so it has expired by that time.
        self.order.push_back((now_ms.saturating_add(TICKET_LIFE_MS), salt));
        while self.order.len() > MAX_ENDED
            || self.order.front().is_some_and(|(until_ms, _)| *until_ms < now_ms)
        {
            let Some((_, oldest)) = self.order.pop_front() else { break };
            self.known.remove(&oldest);
        }
        true
    }

    pub(super) fn has(&self, salt: &IdSalt) -> bool {
        self.known.contains(salt)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use mcpproxy_fleet::cluster_key::{ClusterKeys, KeyPurpose};
    use mcpproxy_fleet::config::NodeName;
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn office(key: u8, node: &str) -> TicketOffice {
        let node = NodeTag::of(&NodeName::parse(node).unwrap());
        TicketOffice::new(keys(key), node)
    }

    fn keys(first: u8) -> IdKeys {
        let secret: String = (0..32).map(|at| format!("{:02x}", first + at)).collect();
        let keys = ClusterKeys::parse([secret.as_str()]).unwrap();
        IdKeys::of(&keys.derive(KeyPurpose::Session))
    }

    pub(crate) fn opening(salt: IdSalt, principal: Principal) -> Opening {
        let offers = ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        let client =
            Client::new(fresh_id(salt), "ide", "2025-06-18", ProtocolFamily::Legacy, offers);
        let (endpoint, source) = (Endpoint::All, Source::Loopback);
        Opening { client, endpoint, principal, key: SessionKey::default(), source }
    }

    #[test]
    fn any_node_reopens_a_session_as_it_was_opened() {
        let id = office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 5).unwrap();
        let ticket = office(1, "b").open(&id, 6).unwrap();
        assert_eq!((ticket.node, ticket.made_ms), (office(1, "a").node, 5));
        assert!(ticket.is_for(&Principal::Admin, &Endpoint::All));
        assert!(!ticket.is_for(&Principal::Anonymous, &Endpoint::All));
        assert!(!ticket.is_for(&Principal::Admin, &Endpoint::Search));
        let again = ticket.opening(Principal::Admin, Source::Loopback, Endpoint::All);
        let first = opening([7; 16], Principal::Admin);
        assert_eq!(
            again.client.session_id, first.client.session_id,
            "records use the same session id"
        );
        assert_eq!((&again.client.name, again.client.version), (&first.client.name, "2025-06-18"));
        assert_eq!(again.client.client_capabilities, first.client.client_capabilities);
        assert_eq!((again.endpoint, again.key), (first.endpoint, first.key));
    }

    #[test]
    fn pro_41_ticket_of_one_server_is_invalid_at_others() {
        let of = |name: &str| Endpoint::Server(name.into());
        let opening = Opening { endpoint: of("a"), ..opening([7; 16], Principal::Admin) };
        let id = office(1, "a").seal(&opening, [7; 16], 5).unwrap();
        let ticket = office(1, "b").open(&id, 6).unwrap();
        assert!(ticket.is_for(&Principal::Admin, &of("a")));
        for other in [of("b"), of("A"), Endpoint::All, Endpoint::Search] {
            assert!(!ticket.is_for(&Principal::Admin, &other), "{other:?}");
        }
    }

    #[test]
    fn ticket_is_valid_for_a_day_despite_clock_skew() {
        let id = office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 100).unwrap();
        let open = |now| office(1, "b").open(&id, now).map(|_| ());
        assert_eq!(open(100 + TICKET_LIFE_MS), Ok(()));
        assert_eq!(open(101 + TICKET_LIFE_MS), Err(TicketRefusal::Expired));
        assert_eq!(open(0), Ok(()), "the creating node's clock is ahead");
        assert_eq!(office(2, "b").open(&id, 100), Err(TicketRefusal::Id(IdRefusal::Key)));
    }

    #[test]
    fn unknown_format_version_is_refused() {
        let keys = keys(1);
        let id = keys.seal([1; 16], &[FORMAT + 1, 0, 0]).unwrap();
        let refused = office(1, "a").open(&id, 0);
        assert_eq!(refused, Err(TicketRefusal::Form(DecodeError::Version(FORMAT + 1))));
        let longest = SessionTicket {
            client_name: "x".repeat(MAX_CLIENT_NAME_BYTES).into(),
            endpoint: TicketEndpoint::Server([1; 16]),
            key: SessionKey::of_hash(Some([1; 32])),
            ..office(1, "a")
                .open(
                    &office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 0).unwrap(),
                    0,
                )
                .unwrap()
        };
        let id = keys.seal([1; 16], &longest.encode().unwrap()).unwrap();
        assert!(id.len() <= 352, "{}", id.len());
        assert_eq!(office(1, "b").open(&id, 0).unwrap().client_name, longest.client_name);
    }

    #[test]
    fn pro_44_ticket_with_extensions_is_read_by_versions_that_do_not_know_them() {
        let id = office(1, "a").seal(&opening([7; 16], Principal::Admin), [7; 16], 0).unwrap();
        let plain = office(1, "b").open(&id, 0).unwrap();
        let client_capabilities =
            ClientCapabilities { extensions: Extensions::ALL, ..plain.client_capabilities };
        let extended = SessionTicket { client_capabilities, ..plain.clone() };
        let [before, after] = [&plain, &extended].map(|ticket| ticket.encode().unwrap());
        // Older nodes read up to the end of the client's name and ignore the rest.
        let name = plain.client_name.as_bytes();
        let end = before.windows(name.len()).position(|part| part == name).unwrap() + name.len();
        assert_eq!(before[..end], after[..end]);
        assert_eq!(SessionTicket::decode([7; 16], &after), Ok(extended));
    }

    proptest! {
        #[test]
        fn ticket_round_trips(
            salt: IdSalt, made_ms: u64, node: [u8; 16], principal: [u8; 16], key: Option<[u8; 32]>,
            revision in 0..4_usize, server: Option<[u8; 16]>, all: bool, sampling: bool, urls: bool, forms: bool, roots: bool, extensions in 0..4_u8,
            name in "\\PC{0,32}",
        ) {
            let ticket = SessionTicket {
                salt, made_ms, principal,
                revision: REVISIONS[revision],
                client_capabilities: ClientCapabilities {
                    sampling, elicitation_forms: forms, elicitation_urls: urls, roots, extensions: Extensions::of_bits(extensions),
                },
                endpoint: match (server, all) {
                    (Some(server), _) => TicketEndpoint::Server(server),
                    (None, true) => TicketEndpoint::All,
                    (None, false) => TicketEndpoint::Search,
                },
                node: NodeTag::of_bytes(node),
                key: SessionKey::of_hash(key),
                client_name: name.into(),
            };
            let bytes = ticket.encode().unwrap();
            prop_assert_eq!((bytes.len() + cluster_key::OVERHEAD_BYTES) % 3, 0);
            prop_assert_eq!(SessionTicket::decode(salt, &bytes), Ok(ticket));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..260)) {
            let _ = SessionTicket::decode([0; 16], &bytes);
        }
    }

    fn salt(n: u64) -> IdSalt {
        u128::from(n).to_be_bytes()
    }

    #[test]
    fn ended_sessions_are_remembered_for_the_life_of_their_ids() {
        let mut ended = EndedSessions::default();
        assert!(ended.note(salt(1), 0) && !ended.note(salt(1), 5), "once");
        assert!(ended.note(salt(2), TICKET_LIFE_MS));
        assert!(ended.has(&salt(1)) && ended.has(&salt(2)));
        assert!(ended.note(salt(3), TICKET_LIFE_MS + 1));
        assert!(!ended.has(&salt(1)) && ended.has(&salt(2)) && ended.has(&salt(3)));
        assert_eq!((ended.known.len(), ended.order.len()), (2, 2));
    }

    #[test]
    fn oldest_ended_sessions_are_forgotten_beyond_the_limit() {
        let mut ended = EndedSessions::default();
        for n in 0..=MAX_ENDED as u64 {
            ended.note(salt(n), n);
        }
        assert!(!ended.has(&salt(0)) && ended.has(&salt(1)));
        assert_eq!((ended.known.len(), ended.order.len()), (MAX_ENDED, MAX_ENDED));
    }
}
