//! The request state of a question that a client answers by asking again (MCP 2026-07-28 §Multi Round-Trip Requests).
//!
//! A state names an approval and is bound to a principal by a keyed hash, so that nobody makes one, and nobody but its
//! principal can use it. That it is used once, in time and for the same call is the room's: nothing of that is taken
//! from the state. The key is made at the start and told to nobody.

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
    key: [u8; 32],
    /// `PREFIX.PROXY.`
    head: Box<str>,
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
        Some(Self { key, head })
    }

    /// The state that stands for an approval in the hands of `principal`.
    pub(super) fn write(&self, id: &str, principal: &Principal) -> String {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in [id, principal.id()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        format!("{}{id}.{}", self.head, hasher.finalize().to_hex())
    }

    /// What a state is that `principal` brings along.
    pub(super) fn read(&self, state: &str, principal: &Principal) -> StateRead {
        let Some(rest) = state.strip_prefix(&*self.head) else { return StateRead::Foreign };
        let Some((id, _)) = rest.split_once('.').filter(|_| state.len() <= MAX_STATE_BYTES) else {
            return StateRead::Forged;
        };
        let ours = self.write(id, principal);
        match bool::from(ours.as_bytes().ct_eq(state.as_bytes())) {
            true => StateRead::Ours(ApprovalId::of_text(id)),
            false => StateRead::Forged,
        }
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
    fn cap_8_a_state_of_another_proxy_is_for_the_server_behind() {
        let (ours, theirs) = (StateKey::fresh().unwrap(), StateKey::fresh().unwrap());
        let state = theirs.write("0123456789abcdef", &Principal::Admin);
        assert_eq!(ours.read(&state, &Principal::Admin), StateRead::Foreign);
        assert_eq!(ours.read("", &Principal::Admin), StateRead::Foreign);
        assert!(!format!("{ours:?}").contains(&*ours.head));
    }
}
