//! Sealed task ids: a server's task id on its way through its client (MCP Tasks extension; MCP 2025-11-25 §Tasks).
//!
//! Servers see one client, the proxy, and two servers may choose the same id. Therefore the id that a client gets names
//! the server, the tool and the server's id, and is bound to principal and expiry by the keyed hash of a [request
//! state](super::sealed_state). The proxy stores nothing: the id contains all the data it needs.
//!
//! Format: `mcpproxy-task.KEY.EXPIRY.HASH.TASK`, as for a request state. `TASK` is server, tool and id, each preceded
//! by its length, in base64url. An id that was not issued to the principal, was altered or has expired yields `None`,
//! without a reason: the client learns only that the task does not exist.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;

use super::sealed_state::{SealingKey, TASK_PREFIX, seconds};
use crate::Principal;

/// Domain separator of the hash, in the position of a request state's method; no request state uses this value.
const MARK: &[u8] = b"tasks";
/// Validity period of a sealed id.
pub const TASK_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum size of a server's task id, in bytes.
pub const MAX_TASK_ID_BYTES: usize = 1024;
/// Maximum size of a sealed id that is examined, in bytes; the ids of mcpproxy are shorter.
const MAX_SEALED_BYTES: usize = 8192;
/// Number of hash digits of a sealed id that identify the task in records.
const DIGITS: usize = 16;

/// Content of a sealed id: a task and its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedTask {
    /// The server's name in the config.
    pub server: Box<str>,
    /// The tool's name on its server.
    pub tool: Box<str>,
    /// The server's own task id.
    pub id: Box<str>,
}

impl OpenedTask {
    fn encode(&self) -> String {
        let mut bytes = Vec::new();
        for part in [&self.server, &self.tool, &self.id] {
            bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let mut rest = &*bytes;
        let mut next = || -> Option<Box<str>> {
            let (len, after) = rest.split_first_chunk::<4>()?;
            let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = after;
            Some(Box::from(std::str::from_utf8(part).ok()?))
        };
        let task = Self { server: next()?, tool: next()?, id: next()? };
        rest.is_empty().then_some(task)
    }
}

/// Parts of a sealed id after the key name: expiry, hash, task.
fn parts(rest: &str) -> Option<(&str, &str, &str)> {
    let (expiry, rest) = rest.split_once('.')?;
    let (hash, task) = rest.split_once('.')?;
    Some((expiry, hash, task))
}

/// Text of a sealed id after the key name, unverified.
fn after_key(sealed: &str) -> Option<&str> {
    let short = Some(sealed).filter(|sealed| sealed.len() <= MAX_SEALED_BYTES)?;
    Some(short.strip_prefix(TASK_PREFIX)?.strip_prefix('.')?.split_once('.')?.1)
}

/// Server named in a sealed id, unverified; `None` if no mcpproxy made the id.
pub fn server_named_in(sealed: &str) -> Option<Box<str>> {
    let (_, _, task) = parts(after_key(sealed)?)?;
    Some(OpenedTask::decode(task)?.server)
}

/// Digits that identify a sealed id's task in records, unverified: part of the hash, from which the id cannot be
/// derived.
pub fn task_digits(sealed: &str) -> Option<&str> {
    parts(after_key(sealed)?)?.1.get(..DIGITS)
}

impl SealingKey {
    /// Seals a server's task id for the client of `principal`.
    pub(super) fn seal_task(
        &self,
        task: &OpenedTask,
        principal: &Principal,
        now: SystemTime,
    ) -> String {
        let expiry = format!("{:x}", seconds(now + TASK_LIFETIME));
        let task = task.encode();
        let hash = self.task_hash(principal, &expiry, &task);
        format!("{}{expiry}.{hash}.{task}", self.task_head())
    }

    /// Opens a sealed id that a client of `principal` presents; `None` also if another key made it.
    pub(super) fn open_task(
        &self,
        sealed: &str,
        principal: &Principal,
        now: SystemTime,
    ) -> Option<OpenedTask> {
        let short = Some(sealed).filter(|sealed| sealed.len() <= MAX_SEALED_BYTES)?;
        let (expiry, hash, task) = parts(short.strip_prefix(self.task_head())?)?;
        let ours = self.task_hash(principal, expiry, task);
        if !bool::from(ours.as_bytes().ct_eq(hash.as_bytes())) {
            return None;
        }
        let expiry = u64::from_str_radix(expiry, 16).ok()?;
        (seconds(now) < expiry).then(|| OpenedTask::decode(task))?
    }

    fn task_hash(&self, principal: &Principal, expiry: &str, task: &str) -> String {
        let (mark, none) = (principal.mark(), &[][..]);
        self.hash_of(&[&mark, none, MARK, none, expiry.as_bytes(), task.as_bytes()])
            .to_hex()
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::{AgentToken, Scope};

    fn key(of: u8) -> SealingKey {
        SealingKey::of(&[of; 32], &format!("{of:08x}"))
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn task(id: &str) -> OpenedTask {
        OpenedTask { server: "s".into(), tool: "t".into(), id: id.into() }
    }

    #[test]
    fn pro_43_sealed_task_opens_only_for_its_principal() {
        let token =
            |name, made| Principal::Token(Arc::new(AgentToken::new(name, made, Scope::default())));
        let (a, again, b) = (token("a", 1), token("a", 2), token("b", 1));
        let odd = "\0\n\u{7f}\u{e9}\"\\".repeat(8);
        let long = "x".repeat(MAX_TASK_ID_BYTES);
        for id in ["1", "", &odd, &long] {
            let sealed = key(1).seal_task(&task(id), &a, now());
            assert_eq!(serde_json::json!(sealed).to_string(), format!("\"{sealed}\""));
            assert_eq!(key(1).open_task(&sealed, &a, now()), Some(task(id)));
            for other in [&again, &b, &Principal::Anonymous, &Principal::Admin] {
                assert_eq!(key(1).open_task(&sealed, other, now()), None, "{}", other.id());
            }
            assert_eq!(key(2).open_task(&sealed, &a, now()), None);
            assert_eq!(server_named_in(&sealed).as_deref(), Some("s"));
        }
        let (s, t) = (task("1"), OpenedTask { server: "other".into(), ..task("1") });
        let sealed = [&s, &t].map(|task| key(1).seal_task(task, &a, now()));
        assert_ne!(task_digits(&sealed[0]), task_digits(&sealed[1]), "two servers, one id");
        assert_eq!(task_digits(&sealed[0]).map(str::len), Some(DIGITS));
    }

    #[test]
    fn pro_43_altered_truncated_or_expired_task_is_unknown() {
        let (key, principal) = (key(1), Principal::Anonymous);
        let sealed = key.seal_task(&task("abc"), &principal, now());
        for at in 0..sealed.len() {
            for bit in [1, 2, 32] {
                let mut altered = sealed.clone().into_bytes();
                altered[at] ^= bit;
                let Ok(altered) = String::from_utf8(altered) else { continue };
                assert_eq!(key.open_task(&altered, &principal, now()), None, "{altered}");
            }
            assert_eq!(key.open_task(&sealed[..at], &principal, now()), None, "cut at {at}");
        }
        for longer in [format!("{sealed}A"), format!("{sealed}{}", "A".repeat(1 << 20))] {
            assert_eq!(key.open_task(&longer, &principal, now()), None);
        }
        let last = now() + TASK_LIFETIME - Duration::from_secs(1);
        assert_eq!(key.open_task(&sealed, &principal, last), Some(task("abc")));
        assert_eq!(key.open_task(&sealed, &principal, now() + TASK_LIFETIME), None);
        for none in ["", "abc", TASK_PREFIX, "mcpproxy-task.1.2.3", "mcpproxy-task.1.2.3.AAAA"] {
            assert_eq!(
                (server_named_in(none), key.open_task(none, &principal, now())),
                (None, None)
            );
        }
    }
}
