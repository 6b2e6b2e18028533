//! Table of calls to legacy servers that wait for the input of a modern client (PRO-42).
//!
//! A legacy server asks within a call, through its own request; a modern client is asked through the response to its
//! request. The call to the server is therefore held while its client is away: the client gets `input_required` with
//! a request state that names the held call, and its repeated request takes the call over. The server sees one call.
//!
//! ```text
//!                question            taken by its repeated request
//!  in flight ──────────────▶ waiting ──────────────────────────────▶ in flight
//!                               │ time over, shutdown
//!                               ▼
//!                            withdrawn: error to the server, its call canceled, a record
//! ```
//!
//! [`HeldCalls`] is the table of waiting calls. `exchange::hold` inserts them. The request that repeats a call
//! (`repeats`) takes it out, once, after its state, principal, arguments and answers have been checked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_policy::{Access, Principal, TOOLS_CALL};
use parking_lot::Mutex;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::oneshot;

use super::bounds::HeldBounds;
use super::held_answer::HeldAnswer;
use crate::proxy::render::shown;
use crate::proxy::shutdown::CUT_OFF;

/// Maximum number of arguments compared one by one to name the one that differs.
const MAX_COMPARED: usize = 64;
/// Key of the question in `inputRequests`. There is only one: a legacy server waits for each answer.
pub(crate) const QUESTION: &str = "question";

/// Member of `metadata` with the id of a held call.
pub(crate) const HELD_CALL: &str = "held_call";

/// Reason why a request does not take over a held call. The cause is the client or elapsed time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotTakenOver {
    #[error(
        "requestState belongs to no waiting call: it was used before, or the call was withdrawn since its client did \
         not return in time; make the call again without requestState and inputResponses"
    )]
    Gone,
    #[error(
        "requestState belongs to a call of {request}, which waits for its input; repeat that call"
    )]
    OtherRequest { request: HeldRequest },
    #[error(
        "requestState belongs to a call with other arguments ('{argument}' differs), which waits for its input; \
         repeat that call with the same arguments"
    )]
    OtherArguments { argument: Box<str> },
    #[error(
        "inputResponses has no answer to '{QUESTION}' ({method}); repeat the call with its answer"
    )]
    NoAnswer { method: &'static str },
    #[error("inputResponses.{QUESTION}: {why}")]
    BadAnswer { why: Box<str> },
}

#[derive(Debug)]
pub struct HeldCalls {
    pub(crate) bounds: Arc<HeldBounds>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Closed: no call may wait.
    is_closed: bool,
    waiting: HashMap<ApprovalId, HeldCallEntry>,
}

/// A held call that waits for its client.
#[derive(Debug)]
pub(crate) struct HeldCallEntry {
    pub(crate) principal: Principal,
    pub(crate) request: HeldRequest,
    pub(crate) arguments: Arc<ComparedArguments>,
    /// The server's question.
    pub(crate) asked: AskedRequest,
    /// Receives the request that takes the call over.
    pub(crate) taker: oneshot::Sender<Taker>,
}

/// The held request; a repeated one must match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldRequest {
    server: Arc<str>,
    method: Box<str>,
    /// Tool, prompt or resource.
    target: Box<str>,
}

impl HeldRequest {
    pub(crate) fn of(access: &Access) -> Self {
        let (method, target) = (access.method().into(), access.target().into());
        Self { server: Arc::clone(access.server()), method, target }
    }
}

impl fmt::Display for HeldRequest {
    /// `server:tool`, or `server:method 'target'`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, method, target } = self;
        let target = shown(target);
        match &**method {
            TOOLS_CALL => write!(f, "{server}:{target}"),
            method => write!(f, "{server}:{method} '{target}'"),
        }
    }
}

/// Request of a server that its client has not answered.
#[derive(Clone, Debug)]
pub(crate) struct AskedRequest {
    pub(crate) method: &'static str,
    pub(crate) raw_id: Bytes,
}

/// Channel through which the claiming request receives the held call.
pub(crate) type Taker = oneshot::Sender<Box<HeldAnswer>>;

impl HeldCalls {
    /// Table for an activity log with this many slots.
    pub fn of_log(places: usize) -> Self {
        Self { bounds: Arc::new(HeldBounds::of_log(places)), table: Mutex::default() }
    }

    /// Inserts a waiting call; false after [`Self::close`].
    pub(crate) fn wait(&self, id: ApprovalId, call: HeldCallEntry) -> bool {
        let mut table = self.table.lock();
        if table.is_closed {
            return false;
        }
        table.waiting.insert(id, call);
        true
    }

    /// Withdraws a waiting call; false if its wait has ended.
    pub(crate) fn withdraw(&self, id: &ApprovalId) -> bool {
        self.table.lock().waiting.remove(id).is_some()
    }

    /// Reads a waiting call under the table's lock: `read` copies data whose comparison takes longer.
    pub(crate) fn read<T>(
        &self,
        id: &ApprovalId,
        read: impl FnOnce(&HeldCallEntry) -> Result<T, NotTakenOver>,
    ) -> Result<T, NotTakenOver> {
        read(self.table.lock().waiting.get(id).ok_or(NotTakenOver::Gone)?)
    }

    /// Takes out a waiting call, at most once.
    pub(crate) fn take(&self, id: &ApprovalId) -> Result<HeldCallEntry, NotTakenOver> {
        self.table.lock().waiting.remove(id).ok_or(NotTakenOver::Gone)
    }

    /// Withdraws all calls and accepts no more, at shutdown.
    pub fn close(&self) {
        let mut table = self.table.lock();
        table.is_closed = true;
        // Dropping the senders of the waiting calls ends their waits.
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        drop(waiting);
    }
}

/// Hashes of a call's arguments, to compare with those of the repeated call. Order and white space do not count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ComparedArguments {
    whole: blake3::Hash,
    /// Hashes of the name and the value of each of the first arguments.
    each: Vec<(blake3::Hash, blake3::Hash)>,
}

impl ComparedArguments {
    pub(crate) fn of(arguments: &[u8]) -> Self {
        let Ok(Value::Object(all)) = serde_json::from_slice::<Value>(arguments) else {
            return Self { whole: blake3::hash(arguments), each: Vec::new() };
        };
        let each = all.iter().take(MAX_COMPARED);
        let each = each.map(|(name, value)| (blake3::hash(name.as_bytes()), hash(value)));
        Self { each: each.collect(), whole: hash(&Value::Object(all)) }
    }

    /// Checks that `arguments` are the same; fails with the name of one that differs.
    pub(crate) fn check(&self, arguments: &[u8]) -> Result<(), Box<str>> {
        if Self::of(arguments).whole == self.whole {
            return Ok(());
        }
        let all = serde_json::from_slice::<Value>(arguments).unwrap_or_default();
        let empty = serde_json::Map::new();
        let all = all.as_object().unwrap_or(&empty);
        let kept: HashMap<_, _> = self.each.iter().copied().collect();
        let differs = all
            .iter()
            .find(|(name, value)| kept.get(&blake3::hash(name.as_bytes())) != Some(&hash(value)));
        let name = differs.map(|(name, _)| shown(name));
        Err(name.unwrap_or_else(|| "one that is missing".to_owned()).into())
    }
}

/// Hash of a value, independent of the order of an object's members. The parser bounds the depth.
fn hash(value: &Value) -> blake3::Hash {
    match value {
        Value::Object(all) => {
            let each = all.iter().map(|(name, value)| (name.as_str(), hash(value)));
            let mut each: Vec<_> = each.collect();
            each.sort_unstable_by_key(|(name, _)| *name);
            let mut hasher = blake3::Hasher::new();
            hasher.update(b"{");
            for (name, value) in each {
                hasher.update(blake3::hash(name.as_bytes()).as_bytes()).update(value.as_bytes());
            }
            hasher.finalize()
        }
        Value::Array(all) => {
            let mut hasher = blake3::Hasher::new();
            hasher.update(b"[");
            for value in all {
                hasher.update(hash(value).as_bytes());
            }
            hasher.finalize()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            blake3::hash(value.to_string().as_bytes())
        }
    }
}

/// Reason why a waiting call was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Withdrawn {
    #[error(
        "the client did not return within {:?} with the input that the server asked for: the call was cancelled",
        .0
    )]
    Late(Duration),
    #[error("{}", CUT_OFF)]
    CutOff,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_42_differing_argument_is_reported_by_name() {
        let compared = ComparedArguments::of(br#"{"a":1,"b":{"x":[1,2],"y":null}}"#);
        assert_eq!(compared.check(br#"{ "b":{"y":null,"x":[1, 2]}, "a":1 }"#), Ok(()));
        for (other, name) in [
            (r#"{"a":2,"b":{"x":[1,2],"y":null}}"#, "a"),
            (r#"{"a":1,"b":{"x":[2,1],"y":null}}"#, "b"),
            (r#"{"a":1,"b":{"x":[1,2],"y":null},"c":1}"#, "c"),
            (r#"{"a":1}"#, "one that is missing"),
            (r#"{"a":"1","b":{"x":[1,2],"y":null}}"#, "a"),
        ] {
            assert_eq!(compared.check(other.as_bytes()), Err(name.into()), "{other}");
        }
    }
}
