//! The request state of a question that a client answers by asking again (MCP 2026-07-28 §Multi Round-Trip Requests).
//!
//! A state names an approval and is bound to a principal by a keyed hash, so that nobody makes one, and nobody but its
//! principal can use it. That it is used once, in time and for the same call is the room's: nothing of that is taken
//! from the state. The key is made at the start and told to nobody; in a fleet with `cluster.key` it is made of that, so that any
//! node knows the state of any other.

use std::fmt;

use blake3::Hasher;
use subtle::ConstantTimeEq;

use super::asked::ApprovalId;
use crate::policy::Principal;

/// What every state of ours begins with, whichever proxy made it.
const PREFIX: &str = "mcpproxy-approval";
/// Longest state that is looked at, in bytes; ours are shorter.
const MAX_STATE_BYTES: usize = 256;
/// Random bytes of what tells this proxy's states from those of another, to which they may be on their way.
const PROXY_BYTES: usize = 8;

/// What a request state is, that a client brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRead {
    /// Somebody else's: the server's that is called.
    Foreign,
    /// It looks like one of ours, and was not given to this principal.
    Forged,
    /// This principal was given it, for that approval.
    Ours(ApprovalId),
}

/// What states are made and known by.
pub(super) struct StateKey {
    /// What makes new ones.
    writes: HeadKey,
    /// Others of the fleet that are known.
    others: Box<[HeadKey]>,
}

/// One key, and what stands before the states that it makes.
struct HeadKey {
    key: [u8; 32],
    /// `PREFIX.PROXY.`, in a fleet `PREFIX.KEY.`
    head: Box<str>,
}

/// The approval that a state is about, whoever made it; `None` where it is none of an mcpproxy. Nothing of it is proven.
#[must_use]
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
    /// A new one; `None` if the system gives no randomness.
    pub(super) fn fresh() -> Option<Self> {
        let (mut key, mut proxy) = ([0; 32], [0; PROXY_BYTES]);
        getrandom::fill(&mut key).ok()?;
        getrandom::fill(&mut proxy).ok()?;
        let head = format!("{PREFIX}.{:016x}.", u64::from_be_bytes(proxy)).into();
        Some(Self { writes: HeadKey { key, head }, others: Box::default() })
    }

    /// Those that a fleet shares, each with its name, of which the first writes; `None` without any.
    pub(super) fn shared(keys: impl IntoIterator<Item = ([u8; 4], [u8; 32])>) -> Option<Self> {
        let head = |name| format!("{PREFIX}.{:08x}.", u32::from_be_bytes(name)).into();
        let mut keys = keys.into_iter().map(|(name, key)| HeadKey { key, head: head(name) });
        Some(Self { writes: keys.next()?, others: keys.collect() })
    }

    /// The state that stands for an approval in the hands of `principal`.
    pub(super) fn write(&self, id: &str, principal: &Principal) -> String {
        self.writes.write(id, principal)
    }

    /// What a state is that `principal` brings along.
    pub(super) fn read(&self, state: &str, principal: &Principal) -> StateRead {
        let mut all = std::iter::once(&self.writes).chain(&self.others);
        all.find_map(|key| key.read(state, principal)).unwrap_or(StateRead::Foreign)
    }
}

impl HeadKey {
    fn write(&self, id: &str, principal: &Principal) -> String {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in [id, principal.id()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        format!("{}{id}.{}", self.head, hasher.finalize().to_hex())
    }

    /// `None` of a state that another has made.
    fn read(&self, state: &str, principal: &Principal) -> Option<StateRead> {
        let rest = state.strip_prefix(&*self.head)?;
        let Some((id, _)) = rest.split_once('.').filter(|_| state.len() <= MAX_STATE_BYTES) else {
            return Some(StateRead::Forged);
        };
        let ours = self.write(id, principal);
        Some(match bool::from(ours.as_bytes().ct_eq(state.as_bytes())) {
            true => StateRead::Ours(ApprovalId::of_text(id)),
            false => StateRead::Forged,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::{AgentToken, Scope};

    #[test]
    fn cap_8_a_state_is_its_principals_and_nobody_alters_one() {
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
    fn nodes_that_share_a_key_read_each_others_states_while_it_is_changed() {
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
        assert_eq!(approval_named_in(&state), Some(id), "it is told whose it was all the same");
        for none in ["", "x", PREFIX, "mcpproxy-approvalx.1.2.3", "theirs.1.2"] {
            assert_eq!(approval_named_in(none), None, "{none}");
        }
        assert!(StateKey::shared([]).is_none());
    }

    #[test]
    fn cap_8_a_state_of_another_proxy_is_for_the_server_behind() {
        let (ours, theirs) = (StateKey::fresh().unwrap(), StateKey::fresh().unwrap());
        let state = theirs.write("0123456789abcdef", &Principal::Admin);
        assert_eq!(ours.read(&state, &Principal::Admin), StateRead::Foreign);
        assert_eq!(ours.read("", &Principal::Admin), StateRead::Foreign);
        assert!(!format!("{ours:?}").contains(&*ours.writes.head));
    }
}
