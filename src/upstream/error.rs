//! Errors of calls to an upstream, naming the server, the tool, the cause and the limit. Pure types.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use mcpproxy_protocol::mcp::revisions::Revision;

/// Revision that defines the unsupported HTTP+SSE transport.
const FIRST: &str = Revision::November2024.name();

/// Whether any byte of the request may have reached the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Certainly not, so the call was not executed.
    No,
    /// Possibly, so the call may have been executed.
    Maybe,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{server}: {tool}: {cause}")]
pub struct CallError {
    /// The server's name in the config.
    pub server: Arc<str>,
    pub tool: Arc<str>,
    pub cause: Cause,
    pub sent: Sent,
}

impl CallError {
    pub fn cause(&self) -> String {
        self.cause.to_string()
    }
}

/// Reason why a call failed. The texts reach agents and records, so they contain no headers, no address except the
/// configured host, and of the server's output only a bounded, printable excerpt without secrets (`server_log`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Cause {
    #[error("the server is disabled")]
    Disabled,
    /// There is no connection; the reason comes from the server's task.
    #[error("the server is not connected: {reason}")]
    NotConnected { reason: Arc<str> },
    #[error("the server is still connecting after a wait of {}", Human(*waited))]
    StillConnecting { waited: Duration },
    #[error("cannot connect to {host}: {reason}")]
    Connect {
        /// Configured host and port.
        host: Arc<str>,
        reason: Arc<str>,
    },
    /// A list or lifecycle message exceeds its bound.
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: usize },
    /// The request is larger than the transport accepts.
    #[error("the arguments are larger than {limit} bytes")]
    TooLarge { limit: usize },
    /// The child does not read its input.
    #[error("the server did not read the request within {}", Human(*limit))]
    NotRead { limit: Duration },
    /// No response started within the limit.
    #[error("no answer within {}", Human(*limit))]
    NoAnswer { limit: Duration },
    /// The response started and then stalled.
    #[error("the answer stalled for {}", Human(*limit))]
    Stalled { limit: Duration },
    /// The connection ended before the first byte of the response.
    #[error("the server closed the connection without an answer{}", After(reason))]
    NoAnswerAtAll {
        /// Details; may be empty.
        reason: Arc<str>,
    },
    /// The server ended TLS before the first byte of the response, because it rejects or requires a client certificate.
    /// Other alerts may concern only that connection: [`NoAnswerAtAll`](Cause::NoAnswerAtAll).
    #[error("the server ended the connection without an answer: {alert}")]
    Alert {
        /// Description of the alert.
        alert: Arc<str>,
    },
    /// The connection ended within the response.
    #[error("the server closed the connection in the middle of its answer{}", After(reason))]
    CutOff {
        /// Details; may be empty.
        reason: Arc<str>,
    },
    /// Invalid HTTP or broken framing.
    #[error("the server broke the HTTP protocol: {reason}")]
    Http { reason: Arc<str> },
    /// An HTTP status that indicates a failure.
    #[error("the server answered HTTP {status}{}", After(message))]
    Status {
        status: u16,
        /// Message of the JSON-RPC error in the body, made printable; may be empty. Other parts of an unvalidated body
        /// are not quoted, because they would reach agents.
        message: Arc<str>,
    },
    /// A redirect that is not followed.
    #[error("the server redirects to {location} (HTTP {status}), which is not followed: {why}")]
    Redirect {
        status: u16,
        /// Target without user, password and query, made printable.
        location: Arc<str>,
        /// The violated rule and the next step.
        why: &'static str,
    },
    /// The server rate-limits requests: HTTP 429, or 503 with a retry time.
    #[error("the server answered HTTP {status}{}{}", RetryAfter(*after), After(message))]
    Throttled {
        status: u16,
        /// Requested delay, bounded.
        after: Option<Duration>,
        /// Message of the JSON-RPC error in the body, made printable; may be empty.
        message: Arc<str>,
    },
    /// The server requires a login, or additional scopes.
    #[error("{reason}")]
    NeedsLogin {
        /// Missing scope and the next step, in one line.
        reason: Arc<str>,
    },
    /// A successful status with a body that is neither JSON nor an event stream.
    #[error(
        "the server answered with {found} instead of JSON or an event stream{}",
        After(snippet)
    )]
    ContentType {
        /// Content type, made printable.
        found: Arc<str>,
        /// Beginning of the body, made printable; may be empty.
        snippet: Arc<str>,
    },
    /// The response has an unknown content coding.
    #[error("the server encoded its answer as {found}; known are gzip, deflate, br and zstd")]
    Compressed {
        /// Content encoding, made printable.
        found: Arc<str>,
    },
    /// The server treated the call as a notification.
    #[error("the server accepted the call without answering it (HTTP {status})")]
    AcceptedOnly {
        /// 202 or 204.
        status: u16,
    },
    /// The server supports only the HTTP+SSE transport.
    #[error(
        "the server speaks only the HTTP+SSE transport of {FIRST}, which is not supported: use \
         the URL of its streamable HTTP endpoint (often /mcp instead of /sse), update the server, \
         or start it as a command over stdio"
    )]
    SseOnly,
    /// The session ended and no new one could be created.
    #[error("the server ended the session and a new one could not be created: {reason}")]
    SessionLost { reason: Arc<str> },
    /// A line or field exceeds its bound.
    #[error("the answer cannot be read: {reason}")]
    Unreadable {
        /// Details with the limit.
        reason: Arc<str>,
    },
    /// The client did not read any of the response within the limit.
    #[error("the client read nothing of the answer for {}", Human(*limit))]
    NotTaken { limit: Duration },
    /// The client read the response too slowly while other calls waited for the pipe.
    #[error(
        "the client read the answer too slowly: the server's other calls waited {} for it, with \
         {kept} pieces of it buffered; read it faster, or call again while the server is idle",
        Human(*limit)
    )]
    HeldUp {
        limit: Duration,
        /// Number of buffered pieces.
        kept: usize,
    },
}

/// Reason why a client's response did not reach the server that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Undelivered {
    #[error("the connection over which the server sent the request is closed")]
    Gone,
    /// The server's control queue is full.
    #[error("the queue to the server was full for {}", Human(*waited))]
    Busy { waited: Duration },
}

impl Cause {
    /// Whether the connection broke or could not be established, so that a fresh one may succeed (CAP-7).
    pub fn is_broken_connection(&self) -> bool {
        matches!(self, Self::NoAnswerAtAll { .. }) || self.affects_later_connections()
    }

    /// Whether later connections will fail the same way: the server is unreachable, or rejects the proxy's certificate.
    pub(super) fn affects_later_connections(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Alert { .. })
    }

    /// Delay requested by the server, bounded.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } => *after,
            _ => None,
        }
    }

    /// Whether the server is at fault, not the caller or the proxy.
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
            Self::Status { status, .. } | Self::Throttled { status, .. } => *status >= 500,
            Self::Disabled
            | Self::TooLong { .. }
            | Self::TooLarge { .. }
            | Self::Redirect { .. }
            | Self::NeedsLogin { .. }
            | Self::NotTaken { .. }
            | Self::HeldUp { .. } => false,
        }
    }

    /// Whether the text may contain output of the server, which is untrusted.
    pub fn quotes_server(&self) -> bool {
        match self {
            Self::NotConnected { .. }
            | Self::Http { .. }
            | Self::Redirect { .. }
            | Self::NeedsLogin { .. }
            | Self::Compressed { .. }
            | Self::SessionLost { .. }
            | Self::Unreadable { .. }
            | Self::ContentType { .. } => true,
            Self::NoAnswerAtAll { reason: words }
            | Self::CutOff { reason: words }
            | Self::Status { message: words, .. }
            | Self::Throttled { message: words, .. } => !words.is_empty(),
            Self::Disabled
            | Self::StillConnecting { .. }
            | Self::Connect { .. }
            | Self::TooLong { .. }
            | Self::TooLarge { .. }
            | Self::NotRead { .. }
            | Self::NoAnswer { .. }
            | Self::Stalled { .. }
            | Self::Alert { .. }
            | Self::AcceptedOnly { .. }
            | Self::SseOnly
            | Self::NotTaken { .. }
            | Self::HeldUp { .. } => false,
        }
    }

    /// Whether the server may still be working on the call, so that it should be canceled.
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

/// Duration formatted as in the config: `2m`, `30s`, `250ms`.
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

/// Formats as `, retry after 30s`; empty without a delay.
struct RetryAfter(Option<Duration>);

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |after| write!(f, ", retry after {}s", after.as_secs()))
    }
}

/// Formats as `: text`; empty without a text.
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
    fn message_names_server_tool_cause_and_limit() {
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
            error(Cause::Status { status: 500, message: "oops".into() }),
            "github: create_issue: the server answered HTTP 500: oops"
        );
    }

    #[test]
    fn durations_are_formatted_as_in_the_config() {
        let human = |millis| Human(Duration::from_millis(millis)).to_string();
        assert_eq!(
            [120_000, 90_000, 1500, 0].map(human),
            ["2m", "90s", "1500ms", "0s"].map(str::to_owned)
        );
    }
}
