//! Request states: opaque tokens with which a client retries a call that waits for approval (MCP 2026-07-28 §Multi
//! Round-Trip Requests).
//!
//! A state names an approval and is bound to a principal by a keyed hash, so that only that principal can present it. Single use, deadline
//! and identity of the call are enforced by the queue. The key is random per process; in a fleet with `cluster.key` it is derived from that
//! key, so that every node verifies every state.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use blake3::Hasher;
use bytes::Bytes;
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;

use crate::approvals::{ApprovalId, ApprovalVerdict, Outcome};
use crate::sealed_state::{BoundRequest, SealingKey, StateRefused};
use crate::{CallDigest, NotApproved, PendingApproval, Principal};

/// Prefix of every approval's state, regardless of the proxy that made it.
const PREFIX: &str = "mcpproxy-approval";
/// Prefix of every held call's state.
const HELD_PREFIX: &str = "mcpproxy-held";
/// Domain separator in the hash of a held call's state.
const HELD_MARK: &str = "held";
/// Maximum size of a state that is examined, in bytes; the states of mcpproxy are shorter.
const MAX_STATE_BYTES: usize = 256;
/// Number of random bytes that distinguish this proxy's states from those of another proxy behind it.
const PROXY_BYTES: usize = 8;

/// Classification of a request state that a client presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRead {
    /// Not made by this proxy: it belongs to the called server.
    Foreign,
    /// Has this proxy's prefix but was not issued to this principal.
    Forged,
    /// Issued to this principal, for this approval.
    Ours(ApprovalId),
    /// Issued to this principal, for this held call (PRO-42).
    Held(ApprovalId),
}

/// Keys that sign and verify states.
pub(super) struct StateKey {
    /// Signs new states.
    writes: HeadKey,
    /// Other fleet keys that still verify.
    others: Box<[HeadKey]>,
}

/// One key and the prefix of its states.
struct HeadKey {
    key: [u8; 32],
    /// `PREFIX.PROXY.`, or `PREFIX.KEY.` in a fleet.
    head: Box<str>,
    /// Same as `head`, for held calls.
    held_head: Box<str>,
    /// Seals the states of servers.
    sealing: SealingKey,
}

/// The approval id in a state, unverified; `None` if no mcpproxy made it.
pub fn approval_named_in(state: &str) -> Option<&str> {
    if state.len() > MAX_STATE_BYTES {
        return None;
    }
    let mut parts = state.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.');
    let (_, id) = (parts.next()?, parts.next()?);
    Some(id)
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateKey(…)")
    }
}

impl StateKey {
    /// Random key; `None` if the system provides no random bytes.
    pub(super) fn fresh() -> Option<Self> {
        let (mut key, mut proxy) = ([0; 32], [0; PROXY_BYTES]);
        getrandom::fill(&mut key).ok()?;
        getrandom::fill(&mut proxy).ok()?;
        let name = format!("{:016x}", u64::from_be_bytes(proxy));
        Some(Self { writes: HeadKey::of(key, &name), others: Box::default() })
    }

    /// Keys of a fleet, each with its name; the first one signs. `None` if `keys` is empty.
    pub(super) fn shared(keys: impl IntoIterator<Item = ([u8; 4], [u8; 32])>) -> Option<Self> {
        let name = |name| format!("{:08x}", u32::from_be_bytes(name));
        let mut keys = keys.into_iter().map(|(of, key)| HeadKey::of(key, &name(of)));
        Some(Self { writes: keys.next()?, others: keys.collect() })
    }

    /// State for an approval, bound to `principal`.
    pub(super) fn write(&self, id: &str, principal: &Principal) -> String {
        self.writes.write(id, principal)
    }

    /// State for a held call, bound to `principal`.
    pub(super) fn write_held(&self, id: &str, principal: &Principal) -> String {
        self.writes.write_held(id, principal)
    }

    /// Classifies a state that `principal` presents.
    pub(super) fn read(&self, state: &str, principal: &Principal) -> StateRead {
        let mut all = std::iter::once(&self.writes).chain(&self.others);
        all.find_map(|key| key.read(state, principal)).unwrap_or(StateRead::Foreign)
    }

    /// The keys of sealed states and tasks; the first one seals.
    pub(super) fn sealing(&self) -> impl Iterator<Item = &SealingKey> {
        std::iter::once(&self.writes).chain(&self.others).map(|key| &key.sealing)
    }

    /// Seals a server's state, a raw JSON value.
    pub(super) fn seal(&self, state: &[u8], to: BoundRequest<'_>, now: SystemTime) -> String {
        self.writes.sealing.seal(state, to, now)
    }

    /// Opens the sealed state of a server.
    pub(super) fn open(
        &self,
        sealed: &str,
        to: BoundRequest<'_>,
        now: SystemTime,
    ) -> Result<Vec<u8>, StateRefused> {
        let opened = self.sealing().find_map(|key| key.open(sealed, to, now));
        opened.unwrap_or(Err(StateRefused::Foreign))
    }
}

impl HeadKey {
    fn of(key: [u8; 32], name: &str) -> Self {
        let [head, held_head] =
            [PREFIX, HELD_PREFIX].map(|prefix| format!("{prefix}.{name}.").into_boxed_str());
        Self { key, head, held_head, sealing: SealingKey::of(&key, name) }
    }

    fn write(&self, id: &str, principal: &Principal) -> String {
        format!("{}{id}.{}", self.head, self.hash(&[id, principal.id()]))
    }

    fn write_held(&self, id: &str, principal: &Principal) -> String {
        format!("{}{id}.{}", self.held_head, self.hash(&[HELD_MARK, id, principal.id()]))
    }

    /// Keyed hash over these parts, in hexadecimal.
    fn hash(&self, parts: &[&str]) -> String {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Classifies a state; `None` if another key made it.
    fn read(&self, state: &str, principal: &Principal) -> Option<StateRead> {
        let (rest, is_held) = match state.strip_prefix(&*self.head) {
            Some(rest) => (rest, false),
            None => (state.strip_prefix(&*self.held_head)?, true),
        };
        let Some((id, _)) = rest.split_once('.').filter(|_| state.len() <= MAX_STATE_BYTES) else {
            return Some(StateRead::Forged);
        };
        let ours = match is_held {
            false => self.write(id, principal),
            true => self.write_held(id, principal),
        };
        let id = ApprovalId::of_text(id);
        Some(match (bool::from(ours.as_bytes().ct_eq(state.as_bytes())), is_held) {
            (true, false) => StateRead::Ours(id),
            (true, true) => StateRead::Held(id),
            (false, _) => StateRead::Forged,
        })
    }
}

/// Maximum size in bytes of the payload kept in addition to the arguments of a first request; a client that sends more is not asked this
/// way.
pub const MAX_MEMBERS_BYTES: usize = 64 * 1024;
/// Maximum number of decided approvals kept for their client's retry; the oldest is dropped.
const MAX_UNCLAIMED: usize = 512;
/// Minimum time for which a decided approval is kept: the client may still be asking its user.
const CLAIMED_WITHIN: Duration = Duration::from_secs(60);

/// Response of the client's user, as presented by the retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserResponse {
    /// No response was presented.
    Missing,
    /// The dialog was dismissed, which is not an answer.
    Nothing,
    Verdict(ApprovalVerdict),
}

/// The exact call that a client may retry.
#[derive(Clone, Debug)]
pub(super) struct RepeatedCall {
    principal: Principal,
    digest: CallDigest,
}

impl RepeatedCall {
    pub(super) fn of(pending: &PendingApproval) -> Self {
        Self { principal: pending.principal().clone(), digest: pending.digest() }
    }

    /// Checks that `pending` is the same call.
    pub(super) fn check(&self, pending: &PendingApproval) -> Result<(), NotApproved> {
        match (self.principal == *pending.principal(), self.digest == pending.digest()) {
            (true, true) => Ok(()),
            (true, false) => Err(NotApproved::Changed),
            (false, _) => Err(NotApproved::Spent),
        }
    }
}

/// State of a waiting call that its client will retry.
#[derive(Debug)]
pub(super) struct Repeat {
    /// Payload for the server in addition to the arguments of the first request.
    pub(super) members: Bytes,
    /// Sender to the retry, while it waits for an answer through another channel.
    pub(super) awaited: Option<oneshot::Sender<Outcome>>,
}

impl Repeat {
    /// Whether a retry waits; there is at most one.
    pub(super) fn is_taken(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| !awaited.is_closed())
    }
}

/// A decision that the client has not claimed by a retry yet.
#[derive(Debug)]
pub(super) struct Unclaimed {
    pub(super) id: ApprovalId,
    pub(super) call: RepeatedCall,
    pub(super) outcome: Outcome,
    pub(super) members: Bytes,
    /// Deadline of the approval.
    pub(super) deadline: Instant,
}

/// All unclaimed decisions.
#[derive(Debug, Default)]
pub(super) struct UnclaimedCalls(VecDeque<(Instant, Unclaimed)>);

impl UnclaimedCalls {
    pub(super) fn keep(&mut self, unclaimed: Unclaimed, now: Instant) {
        self.sweep(now);
        if self.0.len() >= MAX_UNCLAIMED {
            self.0.pop_front();
        }
        let ends = unclaimed.deadline.max(now + CLAIMED_WITHIN);
        self.0.push_back((ends, unclaimed));
    }

    /// Removes the unclaimed decision with this id if `fits` accepts it.
    pub(super) fn claim(
        &mut self,
        id: &ApprovalId,
        now: Instant,
        fits: impl FnOnce(&RepeatedCall) -> Result<(), NotApproved>,
    ) -> Result<Unclaimed, NotApproved> {
        self.sweep(now);
        let at = self.0.iter().position(|(_, it)| it.id == *id).ok_or(NotApproved::Spent)?;
        if let Some((_, unclaimed)) = self.0.get(at) {
            fits(&unclaimed.call)?;
        }
        self.0.remove(at).map(|(_, unclaimed)| unclaimed).ok_or(NotApproved::Spent)
    }

    /// Payload of the first request of an unclaimed decision.
    pub(super) fn members(&self, id: &ApprovalId) -> Option<Bytes> {
        self.0.iter().find(|(_, it)| it.id == *id).map(|(_, unclaimed)| unclaimed.members.clone())
    }

    fn sweep(&mut self, now: Instant) {
        self.0.retain(|(ends, _)| *ends > now);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Access, AgentToken, Scope};

    #[test]
    fn cap_8_request_state_is_bound_to_its_principal() {
        let key = StateKey::fresh().unwrap();
        let state = key.write("0123456789abcdef", &Principal::Anonymous);
        let ours = StateRead::Ours(ApprovalId::of_text("0123456789abcdef"));
        assert_eq!(key.read(&state, &Principal::Anonymous), ours);
        let token = Principal::Token(Arc::new(AgentToken::new("ci", 1, Scope::default())));
        for other in [Principal::Admin, token] {
            assert_eq!(key.read(&state, &other), StateRead::Forged);
        }
        for at in 0..state.len() {
            for bit in [1, 32] {
                let mut altered = state.clone().into_bytes();
                altered[at] ^= bit;
                let Ok(altered) = String::from_utf8(altered) else { continue };
                let read = key.read(&altered, &Principal::Anonymous);
                assert!(matches!(read, StateRead::Foreign | StateRead::Forged), "{altered}");
            }
        }
        for cut in 0..state.len() {
            let read = key.read(&state[..cut], &Principal::Anonymous);
            assert!(matches!(read, StateRead::Foreign | StateRead::Forged), "{cut}");
        }
        let longer = format!("{state}{}", "0".repeat(1 << 20));
        assert_eq!(key.read(&longer, &Principal::Anonymous), StateRead::Forged);
    }

    #[test]
    fn pro_42_state_of_a_held_call_is_bound_to_its_principal_and_is_not_an_approval_state() {
        let key = StateKey::fresh().unwrap();
        let id = "0123456789abcdef-node";
        let state = key.write_held(id, &Principal::Anonymous);
        let held = StateRead::Held(ApprovalId::of_text(id));
        assert_eq!(key.read(&state, &Principal::Anonymous), held);
        assert_eq!(key.read(&state, &Principal::Admin), StateRead::Forged);
        let approval = key.write(id, &Principal::Anonymous);
        for (of, to) in [(HELD_PREFIX, PREFIX), (PREFIX, HELD_PREFIX)] {
            let state = if of == PREFIX { &approval } else { &state };
            let other = state.replacen(of, to, 1);
            assert_eq!(key.read(&other, &Principal::Anonymous), StateRead::Forged, "{other}");
        }
        for at in 0..state.len() {
            let mut altered = state.clone().into_bytes();
            altered[at] ^= 1;
            let altered = String::from_utf8(altered).unwrap();
            for cut in [&*altered, &state[..at]] {
                let read = key.read(cut, &Principal::Anonymous);
                assert!(matches!(read, StateRead::Foreign | StateRead::Forged), "{cut}");
            }
        }
        let theirs = StateKey::fresh().unwrap();
        assert_eq!(theirs.read(&state, &Principal::Anonymous), StateRead::Foreign);
    }

    #[test]
    fn nodes_verify_request_states_during_key_rotation() {
        let of = |names: &[u8]| {
            StateKey::shared(names.iter().map(|name| ([*name; 4], [*name; 32]))).unwrap()
        };
        let (old, both, new, other) = (of(&[1]), of(&[2, 1]), of(&[2]), of(&[3]));
        let (id, admin) = ("0123456789abcdef-abc0123", Principal::Admin);
        let ours = StateRead::Ours(ApprovalId::of_text(id));
        for (written, read) in [(&old, &both), (&both, &new), (&new, &both), (&old, &old)] {
            assert_eq!(read.read(&written.write(id, &admin), &admin), ours);
            let forged = read.read(&written.write(id, &admin), &Principal::Anonymous);
            assert_eq!(forged, StateRead::Forged);
        }
        let state = old.write(id, &admin);
        assert_eq!(other.read(&state, &admin), StateRead::Foreign);
        assert_eq!(approval_named_in(&state), Some(id), "the id is readable without the key");
        for none in ["", "x", PREFIX, "mcpproxy-approvalx.1.2.3", "theirs.1.2"] {
            assert_eq!(approval_named_in(none), None, "{none}");
        }
        assert!(StateKey::shared([]).is_none());
    }

    #[test]
    fn pro_31_nodes_open_sealed_states_during_key_rotation() {
        let of = |names: &[u8]| {
            StateKey::shared(names.iter().map(|name| ([*name; 4], [*name; 32]))).unwrap()
        };
        let (old, both, new, other) = (of(&[1]), of(&[2, 1]), of(&[2]), of(&[3]));
        let access = Access::Prompt { server: "s".into(), name: "p".into() };
        let to = BoundRequest { principal: &Principal::Admin, access: &access };
        let now = SystemTime::UNIX_EPOCH;
        for (sealed, opened) in [(&old, &both), (&both, &new), (&new, &both), (&old, &old)] {
            let state = sealed.seal(b"\"x\"", to, now);
            assert_eq!(opened.open(&state, to, now), Ok(b"\"x\"".to_vec()));
        }
        let state = old.seal(b"\"x\"", to, now);
        for foreign in [&*state, "", "x", "mcpproxy-state.01010101.", "mcpproxy-state"] {
            assert_eq!(other.open(foreign, to, now), Err(StateRefused::Foreign), "{foreign}");
        }
        assert_eq!(old.read(&state, &Principal::Admin), StateRead::Foreign, "no approval's");
    }

    #[test]
    fn cap_8_request_state_of_another_proxy_is_foreign() {
        let (ours, theirs) = (StateKey::fresh().unwrap(), StateKey::fresh().unwrap());
        let state = theirs.write("0123456789abcdef", &Principal::Admin);
        assert_eq!(ours.read(&state, &Principal::Admin), StateRead::Foreign);
        assert_eq!(ours.read("", &Principal::Admin), StateRead::Foreign);
        assert!(!format!("{ours:?}").contains(&*ours.writes.head));
    }
}
