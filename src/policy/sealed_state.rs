//! Sealed request states: a server's `requestState` on its way through its client (MCP 2026-07-28 §Multi Round-Trip
//! Requests).
//!
//! A server sees one client, the proxy, so it cannot distinguish the principals that share its credentials. The proxy
//! binds each state to principal, server, method, target and expiry by a keyed hash and verifies it before anything is
//! sent. The key belongs to [`StateKey`](crate::approvals), which the nodes of a fleet share.
//!
//! Format: `mcpproxy-state.KEY.EXPIRY.HASH.STATE`: the name of the key, hexadecimal seconds since 1970, the hash, and
//! the server's JSON value verbatim, in base64url. The value is not encrypted, because the server sent it to this
//! client. The hash does not cover the arguments, because a client may spell them differently when it repeats a call. A
//! server that depends on them has to check them, as it does without a proxy; rules and approvals decide about the
//! arguments of each request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use blake3::Hasher;
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::{Access, Principal};

/// Prefix of every sealed state, regardless of the proxy that made it.
const PREFIX: &str = "mcpproxy-state";
/// Prefix of every sealed task id.
pub(super) const TASK_PREFIX: &str = "mcpproxy-task";
/// Key derivation context, which differs from that of the states of approvals.
const CONTEXT: &str = "mcpproxy requestState of a server, 1";
/// Validity period of a state.
pub const STATE_LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum size of a server's `requestState`, in bytes as written.
pub const MAX_SERVER_STATE_BYTES: usize = 256 * 1024;
/// Maximum size of a sealed state: the longest state in base64url, and the parts before it.
const MAX_SEALED_BYTES: usize = MAX_SERVER_STATE_BYTES.div_ceil(3) * 4 + 256;

/// Request that a state belongs to.
#[derive(Clone, Copy, Debug)]
pub struct BoundRequest<'a> {
    pub principal: &'a Principal,
    pub access: &'a Access,
}

/// Reason why a request state is refused. Reported as an error of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateRefused {
    /// The state was altered, was issued for another principal or request, or was not issued by this proxy.
    #[error(
        "requestState was not given to this client for this request by this proxy; make the request again without \
         requestState and inputResponses"
    )]
    Foreign,
    #[error(
        "requestState has expired after {} minutes; make the request again without requestState and inputResponses",
        STATE_LIFETIME.as_secs() / 60
    )]
    Expired,
}

/// One key that seals and opens states.
pub(super) struct SealingKey {
    key: [u8; 32],
    /// First parts of every state sealed with this key: `PREFIX.KEY.`.
    head: Box<str>,
    /// Same as `head`, for task ids.
    task_head: Box<str>,
}

impl SealingKey {
    /// Derives the key from the approval key with this name.
    pub(super) fn of(key: &[u8; 32], name: &str) -> Self {
        Self {
            key: blake3::derive_key(CONTEXT, key),
            head: format!("{PREFIX}.{name}.").into_boxed_str(),
            task_head: format!("{}.{name}.", TASK_PREFIX).into_boxed_str(),
        }
    }

    /// Seals a raw JSON value.
    pub(super) fn seal(&self, state: &[u8], to: BoundRequest<'_>, now: SystemTime) -> String {
        let expiry = format!("{:x}", seconds(now + STATE_LIFETIME));
        let state = URL_SAFE_NO_PAD.encode(state);
        let hash = self.hash(&expiry, &state, to).to_hex();
        format!("{}{expiry}.{hash}.{state}", self.head)
    }

    /// Opens a sealed state; `None` if another key made it.
    pub(super) fn open(
        &self,
        sealed: &str,
        to: BoundRequest<'_>,
        now: SystemTime,
    ) -> Option<Result<Vec<u8>, StateRefused>> {
        let rest = sealed.strip_prefix(&*self.head)?;
        Some(self.open_rest(rest, to, now))
    }

    fn open_rest(
        &self,
        rest: &str,
        to: BoundRequest<'_>,
        now: SystemTime,
    ) -> Result<Vec<u8>, StateRefused> {
        let (expiry, rest) = rest.split_once('.').ok_or(StateRefused::Foreign)?;
        let (hash, state) = rest.split_once('.').ok_or(StateRefused::Foreign)?;
        if state.len() > MAX_SEALED_BYTES {
            return Err(StateRefused::Foreign);
        }
        let ours = self.hash(expiry, state, to).to_hex();
        if !bool::from(ours.as_bytes().ct_eq(hash.as_bytes())) {
            return Err(StateRefused::Foreign);
        }
        let expiry = u64::from_str_radix(expiry, 16).map_err(|_| StateRefused::Foreign)?;
        if seconds(now) >= expiry {
            return Err(StateRefused::Expired);
        }
        URL_SAFE_NO_PAD.decode(state).map_err(|_| StateRefused::Foreign)
    }

    fn hash(&self, expiry: &str, state: &str, to: BoundRequest<'_>) -> blake3::Hash {
        let BoundRequest { principal, access } = to;
        let (mark, target) = (principal.mark(), access.target().as_bytes());
        let (server, method) = (access.server().as_bytes(), access.method().as_bytes());
        self.hash_of(&[&mark, server, method, target, expiry.as_bytes(), state.as_bytes()])
    }

    /// Prefix of the sealed task ids.
    pub(super) fn task_head(&self) -> &str {
        &self.task_head
    }

    /// Keyed hash over these parts.
    pub(super) fn hash_of(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// Seconds since 1970; 0 for an earlier time.
pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tool::{Annotations, Rules, Tool, ToolName};
    use crate::{AgentToken, ResourceRequest, Scope, ToolAccess};

    const AT: Duration = Duration::from_secs(1_800_000_000);
    /// State with escapes that a serializer would write differently.
    const STATE: &[u8] = br#""opaque \u00e9\/\ud83d\ude00 \"x\"""#;

    fn key(of: u8) -> SealingKey {
        SealingKey::of(&[of; 32], &format!("{of:08x}"))
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + AT
    }

    fn token(name: &str, made: u64) -> Principal {
        Principal::Token(Arc::new(AgentToken::new(name, made, Scope::default())))
    }

    fn tool(server: &str, tool: &str) -> Access {
        let name = ToolName { server: server.into(), tool: tool.into() };
        let tool = Tool::named(name, Annotations::default(), &Rules::default());
        Access::Tool(ToolAccess::direct(Arc::new(tool)))
    }

    fn prompt(server: &str, name: &str) -> Access {
        Access::Prompt { server: server.into(), name: name.into() }
    }

    fn resource(server: &str, uri: &str) -> Access {
        Access::Resource { server: server.into(), uri: uri.into(), request: ResourceRequest::Read }
    }

    #[test]
    fn pro_31_sealed_state_opens_only_for_its_principal_and_the_same_request() {
        let (key, a, b) = (key(1), token("a", 1), token("b", 1));
        let again = token("a", 2);
        let requests = [
            tool("s", "x"),
            tool("s", "y"),
            tool("t", "x"),
            prompt("s", "x"),
            resource("s", "x"),
            resource("s", "x:y"),
        ];
        for (made_for, access) in requests.iter().enumerate() {
            let sealed = key.seal(STATE, BoundRequest { principal: &a, access }, now());
            for (used_for, other) in requests.iter().enumerate() {
                let opened =
                    key.open(&sealed, BoundRequest { principal: &a, access: other }, now());
                let expected = match made_for == used_for {
                    true => Ok(STATE.to_vec()),
                    false => Err(StateRefused::Foreign),
                };
                assert_eq!(opened, Some(expected), "{access} as {other}");
            }
            for principal in [&b, &again, &Principal::Anonymous, &Principal::Admin] {
                let opened = key.open(&sealed, BoundRequest { principal, access }, now());
                assert_eq!(opened, Some(Err(StateRefused::Foreign)), "{}", principal.id());
            }
        }
    }

    #[test]
    fn pro_31_sealed_state_is_a_plain_json_string_for_any_server_state() {
        let (access, principal) = (tool("s", "x"), Principal::Anonymous);
        let to = BoundRequest { principal: &principal, access: &access };
        for state in [STATE, b"\"\"", b"{\"a\" : [1.0e5]}", b"7", b"\"\xff\""] {
            let sealed = key(1).seal(state, to, now());
            assert_eq!(serde_json::json!(sealed).to_string(), format!("\"{sealed}\""));
            assert_eq!(key(1).open(&sealed, to, now()), Some(Ok(state.to_vec())));
        }
        let longest = vec![b'x'; MAX_SERVER_STATE_BYTES];
        let sealed = key(1).seal(&longest, to, now());
        assert_eq!(key(1).open(&sealed, to, now()), Some(Ok(longest)));
    }

    #[test]
    fn pro_31_altered_or_truncated_state_is_refused() {
        let (key, access, principal) = (key(1), tool("s", "x"), Principal::Anonymous);
        let to = BoundRequest { principal: &principal, access: &access };
        let sealed = key.seal(b"\"abc\"", to, now());
        for at in 0..sealed.len() {
            for bit in [1, 2, 32] {
                let mut altered = sealed.clone().into_bytes();
                altered[at] ^= bit;
                let Ok(altered) = String::from_utf8(altered) else { continue };
                let opened = key.open(&altered, to, now());
                assert!(matches!(opened, None | Some(Err(StateRefused::Foreign))), "{altered}");
            }
            let opened = key.open(&sealed[..at], to, now());
            assert!(matches!(opened, None | Some(Err(StateRefused::Foreign))), "cut at {at}");
        }
        for longer in [format!("{sealed}A"), format!("{sealed}{}", "A".repeat(1 << 20))] {
            assert_eq!(key.open(&longer, to, now()), Some(Err(StateRefused::Foreign)));
        }
    }

    #[test]
    fn pro_31_state_expires() {
        let (key, access, principal) = (key(1), tool("s", "x"), Principal::Anonymous);
        let to = BoundRequest { principal: &principal, access: &access };
        let sealed = key.seal(STATE, to, now());
        let last = now() + STATE_LIFETIME - Duration::from_secs(1);
        assert_eq!(key.open(&sealed, to, last), Some(Ok(STATE.to_vec())));
        let after = now() + STATE_LIFETIME;
        assert_eq!(key.open(&sealed, to, after), Some(Err(StateRefused::Expired)));
        // Whether another principal's state has expired is not disclosed.
        let other = BoundRequest { principal: &Principal::Admin, ..to };
        assert_eq!(key.open(&sealed, other, after), Some(Err(StateRefused::Foreign)));
    }

    #[test]
    fn state_sealed_with_another_key_is_foreign() {
        let (access, principal) = (tool("s", "x"), Principal::Anonymous);
        let to = BoundRequest { principal: &principal, access: &access };
        let sealed = key(1).seal(STATE, to, now());
        assert_eq!(key(2).open(&sealed, to, now()), None);
        let same_name = SealingKey::of(&[2; 32], "01010101");
        let sealed = SealingKey::of(&[1; 32], "01010101").seal(STATE, to, now());
        assert_eq!(same_name.open(&sealed, to, now()), Some(Err(StateRefused::Foreign)));
    }
}
