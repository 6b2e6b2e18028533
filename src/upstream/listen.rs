//! Streams on which a server reports changes, kept open for the life of its connection.
//!
//! Legacy servers use the GET stream of the session, and `resources/subscribe`, which is repeated on each new connection. Modern servers
//! use `subscriptions/listen` streams. A stream that ends, or is refused for a temporary reason, is reopened with exponential backoff, not
//! before the server's `Retry-After`; then all lists are read again, since changes in between were not reported. A stream that the server
//! does not offer is not retried. Notifications are routed like all unsolicited messages. [`crate::followed_set`] contains the streams for
//! resources and tasks, whose sets change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::Cause;
use crate::handle::Upstream;
use crate::http::{self, HttpExchange, Limits, StreamRefusal};
use crate::http_transport::{HttpLifecycle, MAX_MESSAGE_BYTES as MAX_SESSION_MESSAGE_BYTES};
use crate::inbound::{ACKNOWLEDGED, AnswerPart};
use crate::notifications::{
    Followed, SUBSCRIPTION_LIMIT, SubscriptionAnswer, Subscriptions, WantedResource,
};
use crate::request;
use crate::request::Params;
use crate::stdio::{self, ChildLink, SentFor};
use mcpproxy_protocol::mcp::capabilities::ServerCapabilities;
use mcpproxy_protocol::mcp::jsonrpc::Envelope;
use mcpproxy_protocol::mcp::lifecycle::{self, ServerResponse};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::deadline::Allowance;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Minimum and maximum delay before an ended stream is reopened.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Lifetime after which the delay starts again at the minimum.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// Interval at which the wait for a message is restarted, since a stream may be silent forever.
const STREAM_SILENCE: Duration = Duration::from_secs(3600);
/// Time limit for the response to a subscription over a pipe. The response arrives when the subscription ends, or
/// never.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum size of a message on the stream, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Time after which a subscription over a pipe counts as acknowledged; shorter than the wait of clients and changed sets.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(5);

/// Transport of the stream.
#[derive(Clone)]
pub(super) enum Line {
    Http(Arc<HttpLifecycle>),
    Stdio(Arc<ChildLink>),
}

/// Reason for the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenEnd {
    /// The server does not support the stream.
    Refused,
    /// The stream can be reopened, after this time if the server stated one.
    Ended(Option<Duration>),
    /// The connection is lost; its task has already been notified.
    Disconnected,
}

/// Exponential backoff between streams, within [`RETRY`].
pub(super) struct ReopenBackoff(Duration);

impl Default for ReopenBackoff {
    fn default() -> Self {
        Self(RETRY.0)
    }
}

impl ReopenBackoff {
    /// Delay after the end of a stream that lasted for `lived`; at least `asked`.
    pub(super) fn delay(&mut self, lived: Duration, asked: Option<Duration>) -> Duration {
        if lived >= STABLE_AFTER {
            self.0 = RETRY.0;
        }
        let delay = self.0.max(asked.unwrap_or_default());
        self.0 = (self.0 * 2).min(RETRY.1);
        delay
    }

    /// Waits after the end of a stream that was opened at `began`.
    async fn after(&mut self, began: Instant, asked: Option<Duration>) {
        tokio::time::sleep(self.delay(began.elapsed(), asked)).await;
    }
}

/// Reads the GET stream of a legacy session.
pub(super) async fn read_session_stream(upstream: Arc<Upstream>, http: Arc<HttpLifecycle>) {
    let mut backoff = ReopenBackoff::default();
    let mut last_id = Vec::new();
    // Whether changes may have been missed, and whether the server resumes the stream without loss.
    let (mut gap, mut resumed) = (false, false);
    loop {
        let began = Instant::now();
        let session = http.session();
        let opened =
            http::open_stream(&session, &session.get(&last_id), Limits::now(STREAM_SILENCE)).await;
        let asked = match opened {
            Ok(mut stream) => {
                if gap && !resumed {
                    upstream.server_events.missed();
                }
                read_messages(&http, &mut stream).await;
                if let Some(id) = stream.last_id() {
                    last_id = id;
                }
                let retry = stream.retry().map(Duration::from_millis);
                // The server deliberately closes its streams and replays missed events.
                resumed = retry.is_some() && !last_id.is_empty();
                if resumed {
                    backoff = ReopenBackoff::default();
                }
                retry.map(|retry| retry.min(RETRY.1))
            }
            Err(refusal) => {
                resumed = false;
                match interrupted(&upstream, &http, refusal, "GET") {
                    ListenEnd::Ended(asked) => asked,
                    ListenEnd::Refused | ListenEnd::Disconnected => return,
                }
            }
        };
        gap = true;
        backoff.after(began, asked).await;
    }
}

/// Delivers the messages of a stream until it ends.
async fn read_messages(http: &HttpLifecycle, stream: &mut HttpExchange) {
    loop {
        match http::next_message(stream, MAX_SESSION_MESSAGE_BYTES).await {
            Ok(Some(message)) => {
                if http.deliver(message).is_some() {
                    http.log_debug("a response on the GET stream");
                }
            }
            Err(Cause::NoAnswer { .. }) => {}
            Ok(None) => return,
            Err(cause) => {
                http.log_debug(&format!("a broken GET stream: {cause}"));
                return;
            }
        }
    }
}

/// Logs why a stream could not be opened.
fn interrupted(
    upstream: &Upstream,
    http: &HttpLifecycle,
    refusal: StreamRefusal,
    stream: &str,
) -> ListenEnd {
    match refusal {
        StreamRefusal::Unsupported(cause) => {
            tracing::debug!(server = %upstream.name, stream, %cause, "the server does not report changes on this stream");
            ListenEnd::Refused
        }
        StreamRefusal::Unreachable(cause) => {
            http.report(&cause);
            ListenEnd::Disconnected
        }
        StreamRefusal::Temporary(cause, asked) => {
            peer_line!(info, upstream.server_log, server = %upstream.name, stream, %cause, "the server's stream of changes could not be opened: it is retried with backoff");
            ListenEnd::Ended(asked)
        }
    }
}

/// Follows the lists of a modern server.
pub(super) async fn follow(upstream: Arc<Upstream>, line: Line, offers: ServerCapabilities) {
    let Some(params) = filter(offers) else { return };
    let mut backoff = ReopenBackoff::default();
    let mut gap = false;
    loop {
        let began = Instant::now();
        let opened = |_: &[u8]| {
            if gap {
                // Changes in between were not reported.
                upstream.server_events.missed();
            }
        };
        match run_stream(&upstream, &line, &params, opened).await {
            ListenEnd::Ended(asked) => {
                gap = true;
                backoff.after(began, asked).await;
            }
            ListenEnd::Refused | ListenEnd::Disconnected => return,
        }
    }
}

/// Runs one stream to its end; calls `opened` with the server's acknowledgment. Over a pipe, a missing acknowledgment counts as an empty
/// one after [`UNACKNOWLEDGED_LIMIT`].
pub(super) async fn run_stream(
    upstream: &Upstream,
    line: &Line,
    params: &str,
    opened: impl FnOnce(&[u8]),
) -> ListenEnd {
    match line {
        Line::Http(http) => over_http(upstream, http, params, opened).await,
        Line::Stdio(link) => over_stdio(link, params, UNACKNOWLEDGED_LIMIT, opened).await,
    }
}

/// Parameters of the request; `None` for a server without lists.
fn filter(offers: ServerCapabilities) -> Option<String> {
    let subscriptions: Vec<&str> = [
        (offers.tools, "\"toolsListChanged\":true"),
        (offers.prompts, "\"promptsListChanged\":true"),
        (offers.resources, "\"resourcesListChanged\":true"),
    ]
    .into_iter()
    .filter_map(|(offered, member)| offered.then_some(member))
    .collect();
    (!subscriptions.is_empty())
        .then(|| format!("{{\"notifications\":{{{}}}}}", subscriptions.join(",")))
}

const LISTEN: &str = "subscriptions/listen";

async fn over_http(
    upstream: &Upstream,
    http: &Arc<HttpLifecycle>,
    params: &str,
    opened: impl FnOnce(&[u8]),
) -> ListenEnd {
    let (session, params) = (http.session(), Params::of(LISTEN, params.to_owned().into()));
    let request = session.post(
        &params.lines(ProtocolFamily::Modern),
        params.body(request::fresh_id(), ProtocolFamily::Modern),
    );
    let mut stream = match http::open_stream(&session, &request, Limits::now(STREAM_SILENCE)).await
    {
        Ok(stream) => stream,
        Err(refusal) => return interrupted(upstream, http, refusal, LISTEN),
    };
    let mut opened = Some(opened);
    loop {
        match http::next_message(&mut stream, MAX_MESSAGE_BYTES).await {
            Ok(Some(message)) => match outcome(&message) {
                None => {
                    // The first message is the acknowledgment.
                    if let Some(opened) = opened.take() {
                        opened(&message);
                    }
                    http.deliver(message);
                }
                Some(end) => return end,
            },
            Err(Cause::NoAnswer { .. }) => {}
            Ok(None) | Err(_) => return ListenEnd::Ended(None),
        }
    }
}

/// Waits for the acknowledgment, at most `limit`, and for the end of the subscription. The pipe's reader routes the other messages of the
/// subscription.
async fn over_stdio(
    link: &Arc<ChildLink>,
    params: &str,
    limit: Duration,
    opened: impl FnOnce(&[u8]),
) -> ListenEnd {
    let params = Params::of(LISTEN, params.to_owned().into());
    let line = |id| params.line(id, ProtocolFamily::Modern);
    let time = Allowance::now(FOREVER);
    let Ok(mut call) = stdio::StdioCall::begin(link, line, time, SentFor::Subscription).await
    else {
        return ListenEnd::Disconnected;
    };
    let mut opened = Some(opened);
    let acknowledged_by = tokio::time::Instant::now() + limit;
    let mut message = Vec::new();
    loop {
        let part = tokio::select! {
            biased;
            part = call.next() => part,
            () = tokio::time::sleep_until(acknowledged_by), if opened.is_some() => {
                if let Some(opened) = opened.take() {
                    opened(&[]);
                }
                continue;
            }
        };
        match part {
            Ok(Some(AnswerPart::Data(data))) if message.len() + data.len() <= MAX_MESSAGE_BYTES => {
                message.extend_from_slice(&data);
            }
            Ok(Some(AnswerPart::End)) if is_acknowledgment(&message) => {
                if let Some(opened) = opened.take() {
                    opened(&message);
                }
                message.clear();
            }
            Ok(Some(AnswerPart::End)) => {
                return outcome(&message).unwrap_or(ListenEnd::Ended(None));
            }
            Ok(Some(AnswerPart::Data(_))) => return ListenEnd::Refused,
            Ok(Some(AnswerPart::Interrupted)) => {}
            Ok(None) | Err(_) if link.has_ended() => return ListenEnd::Disconnected,
            Ok(None) | Err(_) => return ListenEnd::Ended(None),
        }
    }
}

fn is_acknowledgment(message: &[u8]) -> bool {
    let envelope = serde_json::from_slice::<Envelope<'_>>(message);
    envelope.is_ok_and(|envelope| envelope.method.as_deref() == Some(ACKNOWLEDGED))
}

/// Effect of a response on the stream; `None` for other messages.
fn outcome(message: &[u8]) -> Option<ListenEnd> {
    let response = ServerResponse::parse(message)?;
    Some(match response.outcome {
        Err(error) if lifecycle::is_lasting(error.code) => ListenEnd::Refused,
        Err(_) | Ok(_) => ListenEnd::Ended(None),
    })
}

/// Maximum size of the (empty) response, in bytes.
const MAX_BYTES: usize = 64 * 1024;

/// Waits until this time; waits forever for `None`.
pub(super) async fn elapsed(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Keeps a legacy server's subscriptions on one connection in sync with the subscribed resources. Unanswered requests are repeated with
/// backoff.
pub(super) async fn keep_subscribed(upstream: Arc<Upstream>, generation: u64, limit: Duration) {
    let Subscriptions { wanted, followed } = &upstream.subscriptions;
    let mut changed = wanted.subscribe();
    let (mut backoff, mut retry_at) = (ReopenBackoff::default(), None);
    // Resources subscribed in the first round may have changed before the connection was established.
    let mut is_first = true;
    loop {
        changed.mark_unchanged();
        let is_due = retry_at.take_if(|at| *at <= tokio::time::Instant::now()).is_some();
        let (mut ended, mut missing) = (BTreeMap::new(), Vec::new());
        let (mut confirmed, mut refused) = (BTreeSet::new(), BTreeSet::new());
        wanted.send_if_modified(|resources| {
            ended = std::mem::take(&mut resources.ended);
            for (uri, resource) in &resources.wanted {
                match resource.answer {
                    _ if resource.asked != generation => missing.push(Arc::clone(uri)),
                    SubscriptionAnswer::Missing if is_due => missing.push(Arc::clone(uri)),
                    SubscriptionAnswer::Missing => {}
                    SubscriptionAnswer::Confirmed => _ = confirmed.insert(Arc::clone(uri)),
                    SubscriptionAnswer::Refused => _ = refused.insert(Arc::clone(uri)),
                }
            }
            false
        });
        followed.send_replace(Followed::Answered { confirmed, refused });
        // Subscriptions on an earlier connection ended with that connection.
        ended.retain(|_, asked| *asked == generation);
        for uri in ended.into_keys() {
            send(&upstream, "resources/unsubscribe", generation, &uri, limit).await;
            // A client's own request may have subscribed again before the unsubscribe was processed.
            if wanted.borrow().wanted.get(&uri).is_some_and(|it| it.asked == generation) {
                send(&upstream, "resources/subscribe", generation, &uri, limit).await;
                upstream.server_events.updated(&uri);
            }
        }
        let mut is_unanswered = false;
        for uri in missing {
            let mut before = None;
            wanted.send_if_modified(|resources| {
                before = resources.wanted.get_mut(&uri).map(|resource| {
                    let before = *resource;
                    resource.asked = generation;
                    resource.answer = SubscriptionAnswer::Missing;
                    before
                });
                false
            });
            let Some(WantedResource { since, asked, .. }) = before else { continue };
            let answer = send(&upstream, "resources/subscribe", generation, &uri, limit).await;
            wanted.send_if_modified(|resources| {
                if let Some(resource) = resources.wanted.get_mut(&uri) {
                    resource.answer = answer;
                }
                false
            });
            followed.send_if_modified(|answers| match (answers, answer) {
                (Followed::Answered { confirmed, .. }, SubscriptionAnswer::Confirmed) => {
                    confirmed.insert(Arc::clone(&uri))
                }
                (Followed::Answered { refused, .. }, SubscriptionAnswer::Refused) => {
                    refused.insert(Arc::clone(&uri))
                }
                _ => false,
            });
            match answer {
                SubscriptionAnswer::Missing => is_unanswered = true,
                // Changes were missed if there was no connection, if the request had to be repeated, or if the answer
                // was late.
                SubscriptionAnswer::Confirmed
                    if asked != 0 || is_first || since.elapsed() >= SUBSCRIPTION_LIMIT =>
                {
                    upstream.server_events.updated(&uri);
                }
                SubscriptionAnswer::Confirmed | SubscriptionAnswer::Refused => {}
            }
        }
        is_first = false;
        if is_unanswered && retry_at.is_none() {
            let delay = backoff.delay(Duration::ZERO, None);
            retry_at = Some(tokio::time::Instant::now() + delay);
        } else if is_due && !is_unanswered {
            backoff = ReopenBackoff::default();
        }
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = elapsed(retry_at) => {}
        }
    }
}

/// Error code of legacy servers for an unknown resource (MCP 2025-11-25 §Resources).
const RESOURCE_NOT_FOUND: i64 = -32_002;

/// Whether a legacy server permanently refuses a subscription with an error of this code.
fn is_refusal(code: i64) -> bool {
    lifecycle::is_lasting(code) || code == RESOURCE_NOT_FOUND
}

/// Sends a request about a subscription.
async fn send(
    upstream: &Upstream,
    method: &'static str,
    generation: u64,
    uri: &str,
    limit: Duration,
) -> SubscriptionAnswer {
    let live = match upstream.second_of(generation) {
        Some(second) => second.live(),
        None => upstream.state.live(),
    };
    let Some(live) = live.filter(|live| live.generation == generation) else {
        return SubscriptionAnswer::Missing;
    };
    let params = Params::of(method, json!({"uri": uri}).to_string().into());
    let _counted = live.router.count();
    let bound = (MAX_BYTES, SentFor::Clients);
    let events = &upstream.server_events;
    let family = ProtocolFamily::Legacy;
    match live.link.fetch(events, params, family, limit, bound).await {
        Ok(message) => match ServerResponse::parse(&message).map(|response| response.outcome) {
            Some(Ok(_)) => SubscriptionAnswer::Confirmed,
            Some(Err(error)) if is_refusal(error.code) => SubscriptionAnswer::Refused,
            Some(Err(_)) | None => SubscriptionAnswer::Missing,
        },
        Err(failure) => {
            let cause = failure.cause;
            peer_line!(debug, upstream.server_log, server = %upstream.name, method, %cause, "updating a subscription failed");
            SubscriptionAnswer::Missing
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, duplex};
    use tokio::sync::{mpsc, oneshot};
    use tokio::time::timeout;

    use super::*;
    use crate::pending::FIRST_ID;

    const PATIENCE: Duration = Duration::from_secs(30);
    const LATER: Duration = Duration::from_secs(3600);
    const PIPE_BYTES: usize = 64 * 1024;

    /// Pipes of a child that answers its first request with these lines, where `ID` stands for the request's id.
    fn child(answer: &'static [&'static str]) -> Arc<ChildLink> {
        let (link, queue) = ChildLink::new(Arc::default(), Arc::default());
        let (stdin, requests) = duplex(PIPE_BYTES);
        let (mut answers, stdout) = duplex(PIPE_BYTES);
        tokio::spawn(stdio::write(Arc::clone(&link), queue, stdin));
        let reading = Arc::clone(&link);
        tokio::spawn(async move {
            let (inbox, _lifecycle) = mpsc::channel(1);
            stdio::read(reading, stdout, inbox, 1).await
        });
        tokio::spawn(async move {
            let mut requests = BufReader::new(requests).lines();
            let request = requests.next_line().await.unwrap().unwrap();
            let request: serde_json::Value = serde_json::from_str(&request).unwrap();
            for line in answer {
                let line = line.replace("ID", &request["id"].to_string());
                answers.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            }
            // The child keeps its pipes open.
            std::future::pending::<()>().await;
            drop((requests, answers));
        });
        link
    }

    const ACKNOWLEDGED_ID: &str = r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":ID},"notifications":{}}}"#;
    const END: &str = r#"{"id":ID,"result":{"resultType":"complete"}}"#;

    #[tokio::test]
    async fn pro_13_stream_over_a_pipe_is_open_once_it_is_acknowledged() {
        const STRING: &str = r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"ID"}}}"#;
        const OTHER: &str = r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1073741824}}}"#;
        const NO_ID: &str = r#"{"method":"notifications/subscriptions/acknowledged","params":{}}"#;
        const UPDATED: &str = r#"{"method":"notifications/resources/updated","params":{"uri":"a:b","_meta":{"io.modelcontextprotocol/subscriptionId":ID}}}"#;
        const UNSUPPORTED: &str = r#"{"id":ID,"error":{"code":-32601,"message":"?"}}"#;
        assert_eq!(FIRST_ID, 1_073_741_824, "an id of ours");
        let ended = ListenEnd::Ended(None);
        let rows: [(&[&str], bool, ListenEnd); 7] = [
            (&[ACKNOWLEDGED_ID, END], true, ended),
            (&[ACKNOWLEDGED_ID, UPDATED, ACKNOWLEDGED_ID, END], true, ended),
            (&[STRING, END], true, ended),
            (&[OTHER, NO_ID, UPDATED, END], false, ended),
            (&[END], false, ended),
            (&[UNSUPPORTED], false, ListenEnd::Refused),
            (&[ACKNOWLEDGED_ID, UNSUPPORTED], true, ListenEnd::Refused),
        ];
        for (answer, is_open, expected) in rows {
            let (link, mut opened) = (child(answer), false);
            let end = over_stdio(&link, "{}", LATER, |_| opened = true);
            let end = timeout(PATIENCE, end).await.unwrap();
            assert_eq!((opened, end), (is_open, expected), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn pro_13_stream_over_a_pipe_that_is_not_acknowledged_is_open_after_the_limit() {
        let link = child(&[]);
        let (open, is_open) = oneshot::channel();
        let stream = over_stdio(&link, "{}", Duration::ZERO, |_| open.send(()).unwrap());
        tokio::select! {
            end = stream => panic!("it ended: {end:?}"),
            is_open = timeout(PATIENCE, is_open) => is_open.unwrap().unwrap(),
        }
    }

    #[tokio::test]
    async fn pro_13_acknowledgment_does_not_reach_another_request() {
        let link = child(&[ACKNOWLEDGED_ID, END]);
        let params = Params::of("tools/list", "{}".into());
        let line = |id| params.line(id, ProtocolFamily::Modern);
        let time = Allowance::now(PATIENCE);
        let begun = stdio::StdioCall::begin(&link, line, time, SentFor::Nobody).await;
        let mut call = begun.unwrap_or_else(|_| panic!("it is sent"));
        let Ok(Some(AnswerPart::Data(first))) = call.next().await else { panic!("an answer") };
        assert!(first.starts_with(b"{\"id\":"), "{first:?}");
    }

    #[test]
    fn pro_13_reopening_slows_down_until_a_stream_is_stable_and_honors_retry_after() {
        let mut backoff = ReopenBackoff::default();
        let brief = Duration::ZERO;
        let delays = |backoff: &mut ReopenBackoff, times: usize| -> Vec<u64> {
            (0..times).map(|_| backoff.delay(brief, None).as_secs()).collect()
        };
        assert_eq!(delays(&mut backoff, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.delay(brief, Some(Duration::from_secs(300))).as_secs(), 300);
        assert_eq!(backoff.delay(STABLE_AFTER, None), RETRY.0);
    }

    #[test]
    fn pro_13_only_permanent_errors_end_a_subscription() {
        for (message, end) in [
            (r#"{"method":"notifications/x"}"#, None),
            (r#"{"id":1,"result":{}}"#, Some(ListenEnd::Ended(None))),
            (r#"{"id":1,"error":{"code":-32601}}"#, Some(ListenEnd::Refused)),
            (r#"{"id":1,"error":{"code":-32603}}"#, Some(ListenEnd::Ended(None))),
            (r#"{"id":1,"error":{"code":-32000,"message":"busy"}}"#, Some(ListenEnd::Ended(None))),
            ("garbage", None),
        ] {
            assert_eq!(outcome(message.as_bytes()), end, "{message}");
        }
    }

    #[test]
    fn only_supported_lists_are_followed() {
        assert_eq!(filter(ServerCapabilities::default()), None);
        let offers =
            ServerCapabilities { tools: true, resources: true, ..ServerCapabilities::default() };
        assert_eq!(
            filter(offers).unwrap(),
            r#"{"notifications":{"toolsListChanged":true,"resourcesListChanged":true}}"#
        );
    }
}
