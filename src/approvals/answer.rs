//! What is answered, by whom, and why an answer does not count.

use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::asked::ApprovalId;
use crate::policy::Approved;

/// The door that an answer comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// REST.
    Api,
    /// The command line.
    Cli,
    /// The page.
    Page,
    /// The elicitation of the client that calls.
    Elicitation,
}

impl Door {
    /// All of them.
    const ALL: [Self; 4] = [Self::Api, Self::Cli, Self::Page, Self::Elicitation];

    /// Its word in records and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Cli => "cli",
            Self::Page => "page",
            Self::Elicitation => "elicitation",
        }
    }

    /// That of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.as_str() == word)
    }
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answerer {
    /// The id of the principal.
    pub principal: Box<str>,
    /// Which way they came.
    pub door: Door,
    /// The node of the fleet that they came to, where the call waited on another.
    pub node: Option<Box<str>>,
}

impl Answerer {
    /// That principal, who came by that door of this node.
    #[must_use]
    pub fn here(principal: impl Into<Box<str>>, door: Door) -> Self {
        Self { principal: principal.into(), door, node: None }
    }
}

/// For what an approval counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// For this call.
    Once,
    /// For every call of this tool by this operation and principal, for so long; at most
    /// [`MAX_STANDING`](super::MAX_STANDING).
    For(Duration),
    /// The same, within the client's session.
    Session,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalVerdict {
    /// Yes.
    Approve(Extent),
    /// No.
    Deny,
}

/// One answer to one call that waits.
#[derive(Clone, Debug)]
pub struct ApprovalAnswer {
    /// Yes or no.
    pub verdict: ApprovalVerdict,
    /// Who says it.
    pub by: Answerer,
    /// The digest of the call that they have seen, where they say which.
    pub seen: Option<Box<str>>,
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody said yes.
    Approved {
        /// Who.
        by: Answerer,
        /// For what it counts.
        extent: Extent,
        /// What lets the call go.
        approved: Approved,
    },
    /// Somebody said no.
    Denied {
        /// Who.
        by: Answerer,
    },
    /// Nobody said anything.
    TimedOut {
        /// In so long a time.
        after: Duration,
    },
    /// The client has gone.
    Withdrawn,
    /// The proxy ends.
    Ending,
}

impl Outcome {
    /// Its word in records and answers.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Approved { .. } => "approved",
            Self::Denied { .. } => "denied",
            Self::TimedOut { .. } => "timed_out",
            Self::Withdrawn => "withdrawn",
            Self::Ending => "ended",
        }
    }

    /// Who answered, if somebody did.
    #[must_use]
    pub fn by(&self) -> Option<&Answerer> {
        match self {
            Self::Approved { by, .. } | Self::Denied { by } => Some(by),
            Self::TimedOut { .. } | Self::Withdrawn | Self::Ending => None,
        }
    }
}

/// A wait that is over, as it is remembered for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Which.
    pub id: ApprovalId,
    /// `server:tool`, or what else was asked.
    pub access: Box<str>,
    /// How it ended.
    pub outcome: Outcome,
    /// When.
    pub at: SystemTime,
}

impl std::fmt::Display for Decided {
    /// `denied by admin over cli`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.outcome {
            Outcome::Approved { by, .. } | Outcome::Denied { by } => {
                let Answerer { principal, door, node } = by;
                write!(f, "{} by {principal} over {}", self.outcome.as_str(), door.as_str())?;
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

/// Why an answer does not count. Nothing has changed by it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAnswered {
    /// There is no such approval, or none any more.
    #[error("Approval not found")]
    NotFound,
    /// The first answer counts.
    #[error("Approval {id} is decided already: {decided}", id = decided.id)]
    Over {
        /// What it was.
        decided: Box<Decided>,
    },
    /// They mean another call than the one that waits.
    #[error("Approval {0} is for another call than the one that was looked at")]
    OtherCall(ApprovalId),
    /// There is no session that it could count for.
    #[error("Approval {0} is for a call outside of a session: it cannot count for the session")]
    NoSession(ApprovalId),
    /// Nothing stands for so long.
    #[error("'for' must be {} hours at most", super::MAX_STANDING.as_secs() / 3600)]
    TooLong,
    /// So many stand already.
    #[error("{0} approvals stand already: approve this call once, or end one of them")]
    TooMany(usize),
}
