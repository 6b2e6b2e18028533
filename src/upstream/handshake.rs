//! Protocol handshake with one server: `server/discover`, or `initialize` and `notifications/initialized`.
//!
//! ```text
//! probe ── its result ──────────────────────────────────▶ modern
//!   │ refused, unusable, or silent
//!   ▼
//! initialize ── refused for its revision ─▶ initialize with an older one, once
//!   │ its result                                │
//!   └────────── notifications/initialized ◀─────┘ ──────▶ legacy
//! ```
//!
//! Legacy servers refuse the probe in many ways: an error, any HTTP status, a foreign id, an unrelated result, a list
//! with only legacy revisions, or silence. A modern error, a missing login or a throttled request ends the handshake
//! instead. The server's task decides how the next one starts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::error::{Cause, Human};
use crate::http_transport::HttpLifecycle;
use crate::server_log::ServerLog;
use crate::state::{About, Introduced};
use crate::stdio::ChildLink;
use mcpproxy_protocol::mcp::lifecycle::{
    self, DiscoverAnswer, INITIALIZED, Introduction, OpeningRequest, RpcError, ServerResponse,
};
use mcpproxy_protocol::mcp::revisions::{MODERN, NEWEST_LEGACY, ProtocolFamily};
use mcpproxy_runtime::io::line_budget::peer_line;

/// Maximum wait for the response to the probe. Most servers have started by then, even if an installer fetches them
/// first. A late response of a slower server is recognized, and the server is started again. Shorter than
/// [`CONNECT_WAIT`](crate::backoff::CONNECT_WAIT), for servers that ignore unknown requests.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// Result of the handshake.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeting {
    pub(super) protocol_version: Option<Arc<str>>,
    /// Name and version of the server's implementation.
    pub(super) server_info: Option<Arc<str>>,
    pub(super) about: About,
    /// Instructions and capabilities for clients that see only this server.
    pub(super) introduced: Arc<Introduced>,
    /// Whether a modern server also lists a legacy revision.
    pub(super) lists_legacy: bool,
}

/// Start mode of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The protocol family is unknown, so the handshake probes.
    Probe,
    /// The protocol family is remembered, or was detected by the last attempt.
    Known(ProtocolFamily),
}

/// Instructions and capabilities in the form that clients may see.
fn introduced(server_log: &ServerLog, introduction: &Introduction) -> Introduced {
    let instructions = introduction.instructions.as_deref().unwrap_or_default();
    let capabilities = Value::from(introduction.declared.clone()).to_string();
    Introduced {
        instructions: server_log.masked(instructions).into(),
        capabilities: serde_json::from_str(&server_log.masked(&capabilities)).unwrap_or_default(),
    }
}

/// Reason why the handshake failed.
#[derive(Debug)]
pub(super) struct HandshakeFailure {
    /// Reason in one line.
    pub(super) reason: String,
    /// Set if the server rate-limits requests; contains the delay that it requested, if any.
    pub(super) throttled: Option<Option<Duration>>,
}

impl From<String> for HandshakeFailure {
    fn from(reason: String) -> Self {
        Self { reason, throttled: None }
    }
}

impl From<Cause> for HandshakeFailure {
    fn from(cause: Cause) -> Self {
        let throttled = match &cause {
            Cause::Throttled { after, .. } => Some(*after),
            _ => None,
        };
        Self { reason: cause.to_string(), throttled }
    }
}

/// Transport of the handshake.
pub(super) enum LifecycleChannel {
    Http(Arc<HttpLifecycle>),
    Pipe(PipeLifecycle),
}

/// A child's pipes, before calls use them.
pub(super) struct PipeLifecycle {
    pub(super) link: Arc<ChildLink>,
    /// Messages that are not responses to calls.
    pub(super) inbox: mpsc::Receiver<Bytes>,
    /// Maximum wait for space in the queue to the child.
    pub(super) limit: Duration,
    /// Id of the probe once its response is no longer awaited.
    pub(super) given_up: Option<u64>,
    /// Whether a late response of a presumed legacy server showed that it is modern.
    pub(super) late: bool,
}

impl PipeLifecycle {
    pub(super) fn new(link: Arc<ChildLink>, inbox: mpsc::Receiver<Bytes>, limit: Duration) -> Self {
        Self { link, inbox, limit, given_up: None, late: false }
    }

    /// Sends a request and waits for its response. For the probe, a response under any id counts as the answer, because
    /// legacy servers may refuse it under another id.
    async fn ask(&mut self, opening: OpeningRequest, id: u64) -> Result<Bytes, Cause> {
        self.link.send(opening.message(id), self.limit).await?;
        loop {
            let Some(message) = self.inbox.recv().await else {
                let reason = "it closed the connection during initialization".into();
                return Err(Cause::NotConnected { reason });
            };
            let Some(response) = ServerResponse::parse(&message) else {
                let server_log = &self.link.server_log;
                peer_line!(debug, server_log, server = %server_log.name, "dropped an unreadable lifecycle message");
                continue;
            };
            // A result without an id belongs to the awaited request, not to the earlier probe.
            let is_late = |probe| {
                response.answers(probe) && !(response.is_without_id() && response.outcome.is_ok())
            };
            if self.given_up.is_some_and(is_late) {
                // An error without an id is dropped here too, because it must not count as a refusal of `initialize`.
                self.given_up = None;
                let discovered = response.outcome.map(|result| DiscoverAnswer::parse(result.get()));
                self.late |= matches!(discovered, Ok(Ok(DiscoverAnswer::Modern(_))));
                continue;
            }
            if response.answers(id) || opening == OpeningRequest::Discover {
                return Ok(message);
            }
        }
    }
}

/// Id of the first request; ids of calls are much higher.
const FIRST_ID: u64 = 1;

struct Handshake<'a> {
    server_log: &'a ServerLog,
    channel: &'a mut LifecycleChannel,
    next_id: u64,
}

/// Outcome of the probe.
enum Probed {
    Modern(Introduction),
    /// The server is not modern, for this reason.
    Legacy(String),
}

/// Performs the handshake within `limit`.
pub(super) async fn perform(
    server_log: &ServerLog,
    channel: &mut LifecycleChannel,
    limit: Duration,
    start: Start,
) -> Result<Greeting, HandshakeFailure> {
    let requests = match start {
        Start::Probe => "server/discover and initialize",
        Start::Known(ProtocolFamily::Legacy) => "initialize",
        Start::Known(ProtocolFamily::Modern) => "server/discover",
    };
    let mut handshake = Handshake { server_log, channel, next_id: FIRST_ID };
    let run = async {
        match start {
            Start::Probe => match handshake.probe(probe_limit(limit), false).await? {
                Probed::Modern(introduction) => Ok(introduction),
                Probed::Legacy(reason) => {
                    tracing::debug!(server = %server_log.name, reason = %server_log.quote(reason), "not a modern server");
                    handshake.initialize().await
                }
            },
            Start::Known(ProtocolFamily::Legacy) => handshake.initialize().await,
            Start::Known(ProtocolFamily::Modern) => match handshake.probe(limit, false).await? {
                Probed::Modern(introduction) => Ok(introduction),
                Probed::Legacy(reason) => {
                    Err(format!("it refused server/discover: {}", server_log.quote(reason)).into())
                }
            },
        }
    };
    let introduction = timeout(limit, run).await.unwrap_or_else(|_| {
        Err(format!("no answer to {requests} within {}", Human(limit)).into())
    })?;
    if !introduction.deviations.is_empty() {
        let deviations = server_log.quote(introduction.deviations.join("; "));
        peer_line!(info, server_log, server = %server_log.name, %deviations, "accepted an irregular handshake");
    }
    Ok(Greeting {
        about: About {
            family: if introduction.revision == MODERN {
                ProtocolFamily::Modern
            } else {
                ProtocolFamily::Legacy
            },
            offers: introduction.capabilities,
        },
        introduced: Arc::new(introduced(server_log, &introduction)),
        lists_legacy: introduction.lists_legacy,
        protocol_version: Some(server_log.quote(introduction.revision)),
        server_info: introduction.server.map(|server| server_log.quote(server)),
    })
}

/// Part of the handshake's time limit that the probe may use: at most half.
fn probe_limit(limit: Duration) -> Duration {
    PROBE_LIMIT.min(limit / 2)
}

impl Handshake<'_> {
    async fn ask(&mut self, opening: OpeningRequest) -> Result<(u64, Bytes), Cause> {
        let id = self.next_id;
        self.next_id += 1;
        let message = match &mut *self.channel {
            LifecycleChannel::Http(http) => http.ask(opening, id).await?,
            LifecycleChannel::Pipe(pipe) => pipe.ask(opening, id).await?,
        };
        Ok((id, message))
    }

    /// Requests the modern revisions. If a server refuses the request although it supports the request's revision, it
    /// is asked once more (MCP 2026-07-28 §Protocol Version Header).
    async fn probe(&mut self, limit: Duration, is_retry: bool) -> Result<Probed, HandshakeFailure> {
        let id = self.next_id;
        let until = Instant::now() + limit;
        let legacy = |reason: &str| Ok(Probed::Legacy(reason.to_owned()));
        let message = match timeout(limit, self.ask(OpeningRequest::Discover)).await {
            Ok(Ok((_, message))) => message,
            Ok(Err(
                cause @ (Cause::Connect { .. }
                | Cause::Alert { .. }
                | Cause::NeedsLogin { .. }
                | Cause::NotConnected { .. }
                | Cause::NotRead { .. }
                | Cause::Throttled { .. }
                | Cause::Status { status: 401, .. }),
            )) => return Err(cause.into()),
            Ok(Err(other)) => return legacy(&other.to_string()),
            Err(_) => {
                if let LifecycleChannel::Pipe(pipe) = &mut *self.channel {
                    pipe.given_up = Some(id);
                }
                return legacy("no answer");
            }
        };
        let Some(response) = ServerResponse::parse(&message) else {
            return legacy("its answer is not a response");
        };
        let is_ours = response.answers(id);
        match response.outcome {
            Err(error) if is_ours && error.is_modern() => match &error.supported {
                Some(supported) if !supported.iter().any(|version| version == MODERN) => {
                    Err(self.no_known_revision(supported).into())
                }
                Some(_) if !is_retry => {
                    let rest = until.saturating_duration_since(Instant::now());
                    Box::pin(self.probe(rest, true)).await
                }
                Some(_) | None => {
                    let message = self.server_log.quote(error.message);
                    Err(format!("it refused server/discover: {message}").into())
                }
            },
            Err(error) => legacy(&error.message),
            Ok(_) if !is_ours => legacy("it answered under another id"),
            Ok(result) => match DiscoverAnswer::parse(result.get()) {
                Ok(DiscoverAnswer::Modern(introduction)) => Ok(Probed::Modern(introduction)),
                Ok(DiscoverAnswer::LegacyOnly) => legacy("it lists no modern revision"),
                Ok(DiscoverAnswer::Unknown(supported)) => {
                    Err(self.no_known_revision(&supported).into())
                }
                Err(problem) => legacy(&problem),
            },
        }
    }

    async fn initialize(&mut self) -> Result<Introduction, HandshakeFailure> {
        let mut proposed = NEWEST_LEGACY;
        let result = loop {
            let (error, reason) = match self.ask(OpeningRequest::Initialize(proposed)).await {
                Ok((id, message)) => match ServerResponse::parse(&message) {
                    Some(response) => match &response.outcome {
                        Ok(_) if !response.answers(id) => {
                            return Err("it answered initialize under another id"
                                .to_owned()
                                .into());
                        }
                        Ok(result) => break Introduction::of_initialize(result.get()),
                        Err(error) => (error.clone(), self.refused(error).into()),
                    },
                    None => {
                        return Err("its answer to initialize is not a response".to_owned().into());
                    }
                },
                Err(cause) => match &cause {
                    // The revision may be the reason for the refusal.
                    Cause::Status { status: 400, message } => {
                        let message = message.to_string();
                        (RpcError { message, ..RpcError::default() }, cause.into())
                    }
                    _ => return Err(cause.into()),
                },
            };
            let older = match error.message.is_empty() && error.code == 0 {
                // Without an error message and code, there is nothing to parse: the next older revision is proposed.
                true => lifecycle::next_older(proposed),
                false => lifecycle::older_revision(proposed, &error),
            };
            match older {
                Some(older) if proposed == NEWEST_LEGACY => {
                    let server_log = self.server_log;
                    peer_line!(info, server_log, server = %server_log.name, revision = proposed, next = older, "the server refused a revision: an older one is proposed");
                    proposed = older;
                }
                Some(_) | None => return Err(reason),
            }
        };
        let introduction = result.map_err(|problem| {
            format!("its answer to initialize is unusable: {}", self.server_log.quote(problem))
        })?;
        match &mut *self.channel {
            LifecycleChannel::Http(http) => http.initialized(&introduction.revision).await?,
            LifecycleChannel::Pipe(pipe) => {
                pipe.link.send(INITIALIZED.to_vec(), pipe.limit).await?
            }
        }
        Ok(introduction)
    }

    fn refused(&self, error: &RpcError) -> String {
        let message = match (error.message.as_str(), error.code) {
            ("", code) => format!("error {code} without a message"),
            (message, _) => message.to_owned(),
        };
        let message = format!("it refused initialization: {}", self.server_log.quote(message));
        match &error.supported {
            Some(supported) => {
                format!("{message}; it supports {}", self.server_log.quote(supported.join(", ")))
            }
            None => message,
        }
    }

    fn no_known_revision(&self, supported: &[String]) -> String {
        let supported = self.server_log.quote(supported.join(", "));
        format!("it supports none of the known revisions, only {supported}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Pipe whose messages the test provides, and the handshake over it.
    struct Bench {
        sender: mpsc::Sender<Bytes>,
        channel: LifecycleChannel,
        /// Sent lines.
        written: mpsc::Receiver<crate::stdio::Line>,
    }

    impl Bench {
        fn new() -> Self {
            let (link, written) = ChildLink::new(Arc::default(), Arc::default());
            let (sender, inbox) = mpsc::channel(8);
            let channel = LifecycleChannel::Pipe(PipeLifecycle::new(link, inbox, LONG));
            Self { sender, channel, written }
        }

        fn say(&self, message: &Value) {
            self.sender.try_send(message.to_string().into()).unwrap();
        }

        async fn perform(&mut self, limit: Duration, start: Start) -> Result<Greeting, String> {
            let performed = perform(&ServerLog::default(), &mut self.channel, limit, start).await;
            performed.map_err(|failure| failure.reason)
        }

        fn late(&self) -> bool {
            matches!(&self.channel, LifecycleChannel::Pipe(pipe) if pipe.late)
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn found(id: u64, supported: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id,
            "result": {"supportedVersions": supported, "capabilities": {"tools": {}}}})
    }

    fn initialized(id: u64) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": "2025-06-18",
            "capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}})
    }

    #[tokio::test]
    async fn answer_to_the_probe_decides_the_protocol_family() {
        let refusal = |id: Value, code: i64, data: Value| {
            json!({"jsonrpc": "2.0", "id": id,
                "error": {"code": code, "message": "m", "data": data}})
        };
        let none_known = "it supports none of the known revisions, only 2099-01-01";
        for (answer, expected) in [
            (found(1, &json!(["2026-07-28"])), Ok("2026-07-28")),
            (found(1, &json!(["2025-11-25", "2026-07-28"])), Ok("2026-07-28")),
            (found(1, &json!(["2099-01-01"])), Err(none_known)),
            (found(1, &json!(["2025-11-25"])), Ok("2025-06-18")),
            (json!({"jsonrpc": "2.0", "id": 1, "result": {}}), Ok("2025-06-18")),
            (found(1, &json!(1)), Ok("2025-06-18")),
            (json!({"jsonrpc": "2.0", "id": 6, "result": {}}), Ok("2025-06-18")),
            (refusal(json!(1), -32602, Value::Null), Ok("2025-06-18")),
            (refusal(json!("server-error"), -32600, Value::Null), Ok("2025-06-18")),
            (refusal(Value::Null, -32000, Value::Null), Ok("2025-06-18")),
            (refusal(json!(1), -32020, Value::Null), Err("it refused server/discover: m")),
            (refusal(json!(1), -32022, json!({"supported": ["2099-01-01"]})), Err(none_known)),
            (refusal(json!(1), -32022, json!({"supported": ["2025-11-25"]})), Ok("2025-06-18")),
            (refusal(json!(1), -32022, json!(7)), Err("it refused server/discover: m")),
        ] {
            let mut bench = Bench::new();
            bench.say(&answer);
            bench.say(&initialized(2));
            let performed = bench.perform(LONG, Start::Probe).await;
            let revision = performed.map(|it| it.protocol_version.unwrap().to_string());
            assert_eq!(revision.as_deref().map_err(String::as_str), expected, "{answer}");
        }
    }

    #[tokio::test]
    async fn pro_40_modern_server_may_list_a_legacy_revision() {
        for (listed, lists_legacy) in
            [(json!(["2026-07-28"]), false), (json!(["2026-07-28", "2025-06-18"]), true)]
        {
            let mut bench = Bench::new();
            bench.say(&found(1, &listed));
            let greeting = bench.perform(LONG, Start::Probe).await.unwrap();
            assert_eq!(greeting.about.family, ProtocolFamily::Modern);
            assert_eq!(greeting.lists_legacy, lists_legacy, "{listed}");
        }
    }

    #[test]
    fn probe_limit_leaves_time_to_start() {
        for (all, probe) in [(30, 8), (10, 5)] {
            assert_eq!(probe_limit(Duration::from_secs(all)).as_secs(), probe, "{all}");
        }
        assert!(PROBE_LIMIT < crate::backoff::CONNECT_WAIT);
    }

    #[tokio::test]
    async fn late_response_to_the_probe_is_noticed_and_does_not_end_the_handshake() {
        let refused = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": ""}});
        for (late, modern) in [(found(9, &json!(["2026-07-28"])), true), (refused, false)] {
            let mut bench = Bench::new();
            let LifecycleChannel::Pipe(pipe) = &mut bench.channel else { panic!() };
            pipe.given_up = Some(9);
            bench.say(&late);
            bench.say(&initialized(1));
            let greeting = bench.perform(LONG, Start::Known(ProtocolFamily::Legacy)).await.unwrap();
            assert_eq!(greeting.protocol_version.as_deref(), Some("2025-06-18"));
            assert_eq!(bench.late(), modern, "{late}");
        }
    }

    #[tokio::test]
    async fn pro_15_refused_revision_is_followed_by_one_older_revision() {
        let refusal = |id: u64| {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602,
                "message": "Unsupported protocol version",
                "data": {"supported": ["2024-11-05"], "requested": "2025-11-25"}}})
        };
        let mut bench = Bench::new();
        bench.say(&refusal(1));
        bench.say(&initialized(2));
        let greeting = bench.perform(LONG, Start::Known(ProtocolFamily::Legacy)).await.unwrap();
        assert_eq!(greeting.protocol_version.as_deref(), Some("2025-06-18"));
        let mut proposed = Vec::new();
        while let Ok(line) = bench.written.try_recv() {
            let message: Value = serde_json::from_slice(&line.parts[0]).unwrap();
            proposed.extend(message["params"]["protocolVersion"].as_str().map(str::to_owned));
        }
        assert_eq!(proposed, ["2025-11-25", "2024-11-05"]);

        let mut bench = Bench::new();
        bench.say(&refusal(1));
        bench.say(&refusal(2));
        let failed = bench.perform(LONG, Start::Known(ProtocolFamily::Legacy)).await.unwrap_err();
        assert_eq!(
            failed,
            "it refused initialization: Unsupported protocol version; it supports 2024-11-05"
        );
    }

    #[tokio::test]
    async fn pro_15_failure_names_the_wrong_member() {
        for (answer, reason) in [
            (
                json!({"id": 1, "result": {"serverInfo": {}}}),
                "its answer to initialize is unusable: missing protocolVersion",
            ),
            (
                json!({"id": 1, "error": {"code": -32603}}),
                "it refused initialization: error -32603 without a message",
            ),
        ] {
            let mut bench = Bench::new();
            bench.say(&answer);
            let failed =
                bench.perform(LONG, Start::Known(ProtocolFamily::Legacy)).await.unwrap_err();
            assert_eq!(failed, reason, "{answer}");
        }
    }
}
