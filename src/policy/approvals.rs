//! Approval queue: calls that wait for a person's decision (CAP-8).
//!
//! Owns the queue and its limits, standing approvals, and the webhook that reports both. An approval is bound to the
//! exact call by its digest and consumed by that call. The caller, keep-alive toward the client and the activity
//! records belong to the gateway; the entry points through which people answer belong to `admin` and the gateway.
//!
//! ```text
//! ask ─▶ waiting ─┬─ approve ─▶ Approved ─▶ the call passes admission again and is sent
//!                 ├─ deny
//!                 ├─ timeout, client disconnected, proxy shutting down
//!                 └─▶ decided: remembered for a while; a second answer is rejected, and the error states the first
//! ```
//!
//! A client of the stateless revision is asked in the response that ends its request. The approval stays open, and
//! the client retries the call with the answer and a request state that names the approval (`request_state`). The
//! states of servers that pass through the proxy are sealed with the same keys ([`sealed_state`](crate::sealed_state)).
//!
//! Nothing is persisted: a call ends with its connection, and its approval with it. In a fleet the id of an approval
//! names the node on which the call waits, and that node decides; standing approvals are shared by the whole fleet
//! (`standing`).

mod config;
mod queue;
mod request_state;
mod standing;
#[cfg(test)]
mod tests;
pub mod webhook;

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mcpproxy_runtime::hidden_text::is_hidden;
use thiserror::Error;

use crate::intent::Operation;
use crate::{Approved, PendingApproval};

pub use crate::approvals::queue::{Entered, Repeated, RepeatedWait, WaitingApproval};
pub use config::{Config, ForHowLong, MAX_STANDING, MAX_TIMEOUT, Webhook};
pub use queue::{
    AnsweredApproval, ApprovalEvent, ApprovalQueue, KnownApproval, QueueBounds, WaitingView,
};
pub use request_state::{MAX_MEMBERS_BYTES, StateRead, UserResponse, approval_named_in};
pub use standing::{
    Covered, MAX_SHARED_APPROVALS, SharedApproval, SharedApprovalKey, StandingApproval,
};

/// Number of random bytes in an id, so that ids cannot be guessed.
const ID_BYTES: usize = 10;
/// Alphabet of ids, without look-alikes.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Separates the node part of an id.
const OF_NODE: char = '-';

/// Id of an approval: 16 letters and digits; in a fleet followed by `-` and the node part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApprovalId(Arc<str>);

impl ApprovalId {
    /// Random id for a call that waits on `node`; `None` if the system provides no random bytes.
    fn fresh(node: Option<&str>) -> Option<Self> {
        let mut random = [0_u8; ID_BYTES];
        getrandom::fill(&mut random).ok()?;
        let bits = random.iter().fold(0_u128, |bits, byte| (bits << 8) | u128::from(*byte));
        let digit = |at: usize| DIGITS.get((bits >> (5 * at)) as usize & 31).copied();
        let digits = (0..ID_BYTES * 8 / 5).filter_map(digit).map(char::from);
        let mut id: String = digits.collect();
        if let Some(node) = node {
            id.push(OF_NODE);
            id.push_str(node);
        }
        Some(Self(id.into()))
    }

    /// Node part of an id, as set by `ApprovalQueue::of_node`; `None` without a
    /// fleet.
    pub fn node_in(id: &str) -> Option<&str> {
        id.split_once(OF_NODE).map(|(_, node)| node)
    }

    /// Id with this text, whether or not the approval exists.
    fn of_text(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call that needs approval, as shown to the people who may give it.
#[derive(Clone, Debug)]
pub struct AskedCall {
    /// The request that the approval is bound to.
    pub pending: PendingApproval,
    /// Operation of a tool call.
    pub operation: Option<Operation>,
    /// Whether the call or the tool may destroy something.
    pub destructive: bool,
    /// Reason stated by the caller, or empty.
    pub reason: Box<str>,
    /// Arguments as sent to the server: raw JSON, at most [`MAX_ARGUMENTS_BYTES`](crate::MAX_ARGUMENTS_BYTES).
    pub arguments: Box<str>,
    /// Members of `_meta` that are part of the request: raw JSON, or empty.
    pub meta: Box<str>,
    /// The request's `inputResponses`: raw JSON, or empty.
    pub inputs: Box<str>,
    /// The MCP session, or empty.
    pub session: Box<str>,
    /// The client's own name as it states it, or empty.
    pub client: Box<str>,
    /// Request id in the call's activity record.
    pub request_id: Box<str>,
}

impl AskedCall {
    /// Number of bytes counted against the limits.
    fn bytes(&self) -> usize {
        let Self { reason, arguments, meta, inputs, session, client, request_id, .. } = self;
        let texts = [reason, arguments, meta, inputs, session, client, request_id];
        texts.iter().map(|text| text.len()).sum::<usize>() + size_of::<Self>()
    }
}

/// Channel through which an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerChannel {
    Api,
    Cli,
    Page,
    /// Elicitation by the calling client.
    Elicitation,
}

impl AnswerChannel {
    const ALL: [Self; 4] = [Self::Api, Self::Cli, Self::Page, Self::Elicitation];

    /// Name in records and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Cli => "cli",
            Self::Page => "page",
            Self::Elicitation => "elicitation",
        }
    }

    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| channel.as_str() == word)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answerer {
    pub principal: Box<str>,
    pub channel: AnswerChannel,
    /// Node that received the answer, if the call waits on another node.
    pub node: Option<Box<str>>,
}

impl Answerer {
    /// An answer received by this node.
    pub fn here(principal: impl Into<Box<str>>, channel: AnswerChannel) -> Self {
        Self { principal: principal.into(), channel, node: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalExtent {
    Once,
    /// Every call of this tool with this operation by this principal, for at most `MAX_STANDING`.
    For(Duration),
    /// The same calls, limited to the client's session.
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalVerdict {
    Approve(ApprovalExtent),
    Deny,
}

/// Answer to a waiting call.
#[derive(Clone, Debug)]
pub struct ApprovalAnswer {
    pub verdict: ApprovalVerdict,
    pub by: Answerer,
    /// Digest of the call that was shown to the answerer, if the answer states it.
    pub seen: Option<Box<str>>,
}

/// Outcome of a wait for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Approved {
        by: Answerer,
        extent: ApprovalExtent,
        /// Proof of the approval.
        approved: Approved,
    },
    Denied {
        by: Answerer,
    },
    TimedOut {
        /// Length of the wait.
        after: Duration,
    },
    /// The client disconnected.
    Withdrawn,
    Ending,
}

impl Outcome {
    /// Word in records and answers.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Approved { .. } => "approved",
            Self::Denied { .. } => "denied",
            Self::TimedOut { .. } => "timed_out",
            Self::Withdrawn => "withdrawn",
            Self::Ending => "ended",
        }
    }

    /// The answerer, if there was an answer.
    pub fn by(&self) -> Option<&Answerer> {
        match self {
            Self::Approved { by, .. } | Self::Denied { by } => Some(by),
            Self::TimedOut { .. } | Self::Withdrawn | Self::Ending => None,
        }
    }
}

/// A finished wait, remembered for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub id: ApprovalId,
    /// `server:tool`, or the method.
    pub access: Box<str>,
    pub outcome: Outcome,
    pub at: SystemTime,
}

impl std::fmt::Display for Decided {
    /// Formats as `denied by admin over cli`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.outcome {
            Outcome::Approved { by, .. } | Outcome::Denied { by } => {
                let Answerer { principal, channel, node } = by;
                write!(f, "{} by {principal} over {}", self.outcome.as_str(), channel.as_str())?;
                match node {
                    Some(node) => write!(f, " on node {node}"),
                    None => Ok(()),
                }
            }
            Outcome::TimedOut { .. } => f.write_str("nobody answered in time"),
            Outcome::Withdrawn => f.write_str("the client has gone"),
            Outcome::Ending => f.write_str("mcpproxy was shutting down"),
        }
    }
}

/// Reason why an answer is rejected. The queue is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// Unknown or forgotten approval.
    #[error("Approval not found")]
    NotFound,
    /// Already decided: the first answer counts.
    #[error("Approval {id} is decided already: {decided}", id = decided.id)]
    Over { decided: Box<Decided> },
    /// The answer is for another call.
    #[error("Approval {0} is for another call than the one that was shown")]
    OtherCall(ApprovalId),
    /// The call has no session.
    #[error("Approval {0} is for a call without a session, so it cannot be limited to the session")]
    NoSession(ApprovalId),
    /// The requested lifetime exceeds the maximum.
    #[error("'for' must be {} hours at most", MAX_STANDING.as_secs() / 3600)]
    TooLong,
    /// Too many standing approvals.
    #[error("{0} standing approvals exist already: approve this call once, or revoke one of them")]
    TooMany(usize),
}

/// `text` with control, invisible and bidirectional characters escaped. If longer than `limit` bytes, it is truncated
/// and marked.
pub fn shown(text: &str, limit: usize) -> String {
    let head = text.get(..text.floor_char_boundary(limit)).unwrap_or(text);
    let mut shown = String::with_capacity(head.len());
    for char in head.chars() {
        if is_hidden(char) {
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    if head.len() < text.len() {
        let _ = write!(shown, "… ({} of {} bytes)", head.len(), text.len());
    }
    shown
}

#[cfg(test)]
mod shown_tests {
    use crate::approvals::*;

    #[test]
    fn hidden_characters_are_escaped_and_long_text_truncated() {
        assert_eq!(shown("a\u{202e}b\u{0}\n", 100), "a\\u{202e}b\\u{0}\\u{a}");
        assert_eq!(
            shown("a\u{3164}b\u{2800}", 100),
            "a\\u{3164}b\\u{2800}",
            "as on the command line"
        );
        assert_eq!(shown("{\"é\":1}", 100), "{\"é\":1}");
        assert_eq!(shown("ééé", 3), "é… (2 of 6 bytes)");
    }
}
