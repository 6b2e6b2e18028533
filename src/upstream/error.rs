//! Why a call to an upstream failed, in words that name the server, the tool, the cause and the
//! limit. Pure values.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::mcp::revisions::Revision;

/// The revision whose HTTP transport is not spoken.
const FIRST: &str = Revision::November2024.name();

/// Whether any byte of the request may have reached the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Certainly not: the call was not executed.
    No,
    /// It may have been executed.
    Maybe,
}

/// A failed call. The blame is the upstream's, or the wait was ours: see [`Cause`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{server}: {tool}: {cause}")]
pub struct CallError {
    /// The server's name in the config.
    pub server: Arc<str>,
    /// The tool's name as its server gave it.
    pub tool: Arc<str>,
    /// What went wrong.
    pub cause: Cause,
    /// Whether the request had been sent.
    pub sent: Sent,
}

impl CallError {
    /// What went wrong, without the names of server and tool.
    #[must_use]
    pub fn cause(&self) -> String {
        self.cause.to_string()
    }
}

/// What went wrong. The texts go to agents and into records; they hold no header, no address
/// beyond the configured host, and of a server's own words only a bounded, printable piece
/// without secrets (`peer`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Cause {
    /// The server is switched off in the config.
    #[error("the server is disabled")]
    Disabled,
    /// The server is not there; the reason is its supervisor's.
    #[error("the server is not connected: {reason}")]
    NotConnected {
        /// Why, in one line.
        reason: Arc<str>,
    },
    /// The server was still connecting when the wait ran out.
    #[error("the server is still connecting after a wait of {}", Human(*waited))]
    StillConnecting {
        /// How long the call waited.
        waited: Duration,
    },
    /// No connection could be made.
    #[error("cannot connect to {host}: {reason}")]
    Connect {
        /// The configured host and port.
        host: Arc<str>,
        /// Why, in one line.
        reason: Arc<str>,
    },
    /// An answer of a list or of the lifecycle outgrew its bound.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The call is larger than the server's transport takes.
    #[error("the arguments are larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The child does not read its input.
    #[error("the server did not read the request within {}", Human(*limit))]
    NotRead {
        /// How long the call waited.
        limit: Duration,
    },
    /// Silence until the limit.
    #[error("no answer within {}", Human(*limit))]
    NoAnswer {
        /// `call_timeout`.
        limit: Duration,
    },
    /// The answer began and then stood still.
    #[error("the answer stopped in the middle and did not go on within {}", Human(*limit))]
    Stalled {
        /// The limit.
        limit: Duration,
    },
    /// The connection ended before a byte of the answer came.
    #[error("the server closed the connection without an answer{}", After(reason))]
    NoAnswerAtAll {
        /// More, if there is more to say; else empty.
        reason: Arc<str>,
    },
    /// The server ended TLS before a byte of the answer came, for it does not accept our certificate, or wants one. An
    /// alert about something else may be of that connection alone: [`NoAnswerAtAll`](Cause::NoAnswerAtAll).
    #[error("the server ended the connection without an answer: {alert}")]
    Alert {
        /// With which words of TLS, in one line.
        alert: Arc<str>,
    },
    /// The connection ended in the middle of the answer.
    #[error("the server closed the connection in the middle of its answer{}", After(reason))]
    CutOff {
        /// More, if there is more to say; else empty.
        reason: Arc<str>,
    },
    /// What came is not HTTP, or breaks its framing.
    #[error("the server broke the HTTP protocol: {reason}")]
    Http {
        /// How.
        reason: Arc<str>,
    },
    /// An HTTP status that is no answer.
    #[error("the server answered HTTP {status}{}", After(snippet))]
    Status {
        /// The status code.
        status: u16,
        /// The beginning of the body, made printable; may be empty.
        snippet: Arc<str>,
    },
    /// The server asks for a login, or for more than the one it was sent is good for.
    #[error("{reason}")]
    NeedsLogin {
        /// What is needed, and what to do, in one line.
        reason: Arc<str>,
    },
    /// A good status with a body that is neither JSON nor an event stream.
    #[error(
        "the server answered with {found} instead of JSON or an event stream{}",
        After(snippet)
    )]
    ContentType {
        /// The content type, made printable.
        found: Arc<str>,
        /// The beginning of the body, made printable; may be empty.
        snippet: Arc<str>,
    },
    /// The answer is compressed though identity was asked for.
    #[error("the server compressed its answer ({found}) though it was asked not to")]
    Compressed {
        /// The content encoding, made printable.
        found: Arc<str>,
    },
    /// The server took the call as if it were a notification.
    #[error("the server accepted the call without answering it (HTTP {status})")]
    AcceptedOnly {
        /// The status code, 202 or 204.
        status: u16,
    },
    /// The server speaks the first HTTP transport alone.
    #[error(
        "the server speaks only the HTTP+SSE transport of {FIRST}, which is not supported: use \
         the URL of its streamable HTTP endpoint (often /mcp instead of /sse), update the server, \
         or start it as a command over stdio"
    )]
    SseOnly,
    /// The session ended and could not be made anew.
    #[error("the server ended the session and a new one could not be made: {reason}")]
    SessionLost {
        /// Why, in one line.
        reason: Arc<str>,
    },
    /// A line or a field outgrew its bound.
    #[error("the answer cannot be read: {reason}")]
    Unreadable {
        /// How, with the limit.
        reason: Arc<str>,
    },
    /// Nothing was taken of this answer.
    #[error("nothing was taken of the answer for {}", Human(*limit))]
    NotTaken {
        /// The limit.
        limit: Duration,
    },
    /// The reader of this answer was slower than the others on the pipe can wait for.
    #[error(
        "the answer was taken too slowly: with {kept} pieces of it kept, the server's other calls \
         waited {} for it; read it faster, or call again while nobody else waits",
        Human(*limit)
    )]
    HeldUp {
        /// The limit.
        limit: Duration,
        /// Pieces that wait to be taken.
        kept: usize,
    },
}

/// Why a client's answer did not get back to the server that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Undelivered {
    /// The connection over which the server asked is gone.
    #[error("the connection over which the server asked is gone")]
    Gone,
    /// Too many answers and reports are on their way to the server.
    #[error("the answer found no place in the queue to the server within {}", Human(*waited))]
    Busy {
        /// How long it waited.
        waited: Duration,
    },
}

impl Cause {
    /// Whether the connection broke, or could not be made: a fresh one may do (CAP-7).
    #[must_use]
    pub fn is_broken_connection(&self) -> bool {
        matches!(self, Self::NoAnswerAtAll { .. }) || self.is_of_connections_to_come()
    }

    /// Whether those to come will end in the same way, so that the server is not connected: it, or our certificate, is
    /// refused.
    pub(super) fn is_of_connections_to_come(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Alert { .. })
    }

    /// Whether it says that the server is not well, and is not the caller's doing or ours.
    #[must_use]
    pub fn blames_server(&self) -> bool {
        match self {
            Self::NotConnected { .. }
            | Self::StillConnecting { .. }
            | Self::Connect { .. }
            | Self::NotRead { .. }
            | Self::NoAnswer { .. }
            | Self::Stalled { .. }
            | Self::NoAnswerAtAll { .. }
            | Self::Alert { .. }
            | Self::CutOff { .. }
            | Self::Http { .. }
            | Self::ContentType { .. }
            | Self::Compressed { .. }
            | Self::AcceptedOnly { .. }
            | Self::SseOnly
            | Self::SessionLost { .. }
            | Self::Unreadable { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            Self::Disabled
            | Self::TooLong { .. }
            | Self::TooLarge { .. }
            | Self::NeedsLogin { .. }
            | Self::NotTaken { .. }
            | Self::HeldUp { .. } => false,
        }
    }

    /// Whether the server may be working on the call still, so that it should be cancelled.
    pub(super) fn leaves_call_running(&self) -> bool {
        matches!(
            self,
            Self::NoAnswer { .. }
                | Self::Stalled { .. }
                | Self::NotTaken { .. }
                | Self::HeldUp { .. }
        )
    }
}

/// `2m`, `30s`, `250ms`: as it is written in the config.
pub(super) struct Human(pub(super) Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match (millis % 60_000, millis % 1000) {
            (0, _) if millis > 0 => write!(f, "{}m", millis / 60_000),
            (_, 0) => write!(f, "{}s", millis / 1000),
            (_, _) => write!(f, "{millis}ms"),
        }
    }
}

/// `: more`, or nothing.
struct After<'a>(&'a Arc<str>);

impl fmt::Display for After<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_server_tool_cause_and_limit() {
        let error = |cause| {
            CallError {
                server: "github".into(),
                tool: "create_issue".into(),
                cause,
                sent: Sent::No,
            }
            .to_string()
        };
        assert_eq!(
            error(Cause::NoAnswer { limit: Duration::from_secs(120) }),
            "github: create_issue: no answer within 2m"
        );
        assert_eq!(
            error(Cause::CutOff { reason: "".into() }),
            "github: create_issue: the server closed the connection in the middle of its answer"
        );
        assert_eq!(
            error(Cause::Status { status: 500, snippet: "oops".into() }),
            "github: create_issue: the server answered HTTP 500: oops"
        );
    }

    #[test]
    fn durations_read_as_in_the_config() {
        let human = |millis| Human(Duration::from_millis(millis)).to_string();
        assert_eq!(
            [120_000, 90_000, 1500, 0].map(human),
            ["2m", "90s", "1500ms", "0s"].map(str::to_owned)
        );
    }
}
