//! Follows the lists of a modern server: `subscriptions/listen`, opened again whenever it ends.
//!
//! What is told on the stream goes the way of everything that a server says unasked. A server that
//! refuses is left alone: its lists are then read at each connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::answer::AnswerPart;
use super::error::Cause;
use super::handle::Upstream;
use super::http::{self, Limits};
use super::http_transport::{STREAM_SILENCE, Shared};
use super::inbound::ChangedList;
use super::request::Params;
use super::request_ids;
use super::stdio::{self, ChildLink};
use super::subscriptions::{Followed, WantedResources};
use crate::io::deadline::Allowance;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::revisions::Era;

/// First wait before a stream that ended is opened again, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A stream that lived this long was a good one.
const STABLE: Duration = Duration::from_secs(30);
/// Over a child's pipe the answer comes when the child ends, or never.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Most bytes of one message on the stream.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// What carries the stream.
#[derive(Clone)]
pub(super) enum Line {
    Http(Arc<Shared>),
    Stdio(Arc<ChildLink>),
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server offers none.
    Refused,
    /// It can be opened again.
    Over,
    /// The connection is gone, and its supervisor knows.
    Gone,
}

/// The pauses before a stream is opened again, the next one first: each twice as long as the one
/// before, within [`RETRY`].
struct Pauses(Duration);

impl Pauses {
    /// Waits after a stream that began then.
    async fn after(&mut self, began: Instant) {
        if began.elapsed() >= STABLE {
            self.0 = RETRY.0;
        }
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY.1);
    }
}

/// Listens as long as the connection lives.
pub(super) async fn follow(upstream: Arc<Upstream>, line: Line, offers: ServerCapabilities) {
    let Some(params) = filter(offers) else { return };
    let mut pauses = Pauses(RETRY.0);
    loop {
        let began = Instant::now();
        match over(&line, &params, || {}).await {
            End::Over => {}
            End::Refused => {
                tracing::debug!(server = %upstream.name, "a server does not tell of changes");
                return;
            }
            End::Gone => return,
        }
        pauses.after(began).await;
        // What changed meanwhile was told to nobody.
        upstream.server_events.changed(ChangedList::Tools);
        upstream.server_events.reconnected();
    }
}

/// Follows single resources, as long as the connection lives: those that clients want. Another set
/// of them is another stream.
pub(super) async fn follow_resources(upstream: Arc<Upstream>, line: Line) {
    let mut wanted = upstream.subscriptions.wanted.subscribe();
    let uris = |wanted: &WantedResources| wanted.keys().cloned().collect::<Vec<_>>();
    // Of these a change may have been told to nobody, on the connection before too.
    let mut missed = uris(&wanted.borrow());
    let mut pauses = Pauses(RETRY.0);
    loop {
        let now = uris(&wanted.borrow_and_update());
        upstream.subscriptions.followed.send_replace(Followed::None);
        let notifications = json!({"resourceSubscriptions": now});
        let params = json!({"notifications": notifications}).to_string();
        let began = Instant::now();
        let stands = || {
            missed.iter().for_each(|uri| upstream.server_events.updated(uri));
            upstream.subscriptions.followed.send_replace(Followed::These(now.clone()));
        };
        let listening = async {
            match now.is_empty() {
                true => std::future::pending().await,
                false => over(&line, &params, stands).await,
            }
        };
        let end = tokio::select! {
            end = listening => end,
            changed = wanted.changed() => match changed {
                Ok(()) => {
                    missed = now;
                    continue;
                }
                Err(_) => return,
            },
        };
        match end {
            End::Over => missed = now,
            End::Refused => {
                tracing::debug!(server = %upstream.name, "a server does not tell of resources");
                upstream.subscriptions.followed.send_replace(Followed::Refused);
                return;
            }
            End::Gone => return,
        }
        upstream.subscriptions.followed.send_replace(Followed::None);
        pauses.after(began).await;
    }
}

/// One stream, to its end. Once it stands, that is told.
async fn over(line: &Line, params: &str, stands: impl FnOnce()) -> End {
    match line {
        Line::Http(shared) => over_http(shared, params, stands).await,
        Line::Stdio(link) => over_stdio(link, params, stands).await,
    }
}

/// The request's parameters; none for a server that has no lists.
fn filter(offers: ServerCapabilities) -> Option<String> {
    let subscriptions: Vec<&str> = [
        (offers.tools, "\"toolsListChanged\":true"),
        (offers.prompts, "\"promptsListChanged\":true"),
        (offers.resources, "\"resourcesListChanged\":true"),
    ]
    .into_iter()
    .filter_map(|(offered, subscriptions)| offered.then_some(subscriptions))
    .collect();
    (!subscriptions.is_empty())
        .then(|| format!("{{\"notifications\":{{{}}}}}", subscriptions.join(",")))
}

fn request(params: &str) -> Params {
    Params::of("subscriptions/listen", params.to_owned().into())
}

async fn over_http(shared: &Arc<Shared>, params: &str, stands: impl FnOnce()) -> End {
    let (session, params) = (shared.session(), request(params));
    let request =
        session.post(&params.lines(Era::Modern), params.body(request_ids::fresh(), Era::Modern));
    let limits = Limits::now(STREAM_SILENCE);
    let mut stream = match http::fresh(&session, &request, limits).await {
        Ok(stream) if stream.is_event_stream() => stream,
        Ok(_) => return End::Refused,
        Err(refused) => match refused.cause {
            cause @ (Cause::Connect { .. } | Cause::Alert { .. }) => {
                shared.report(&cause);
                return End::Gone;
            }
            Cause::Status { .. }
            | Cause::NeedsLogin { .. }
            | Cause::AcceptedOnly { .. }
            | Cause::ContentType { .. } => return End::Refused,
            _ => return End::Over,
        },
    };
    let mut stands = Some(stands);
    loop {
        match http::next_message(&mut stream, MAX_MESSAGE_BYTES).await {
            Ok(Some(message)) => match outcome(&message) {
                None => {
                    // The first message is the acknowledgement.
                    if let Some(stands) = stands.take() {
                        stands();
                    }
                    shared.deliver(message);
                }
                Some(end) => return end,
            },
            Err(Cause::NoAnswer { .. }) => {}
            Ok(None) | Err(_) => return End::Over,
        }
    }
}

/// What is told on the pipe is routed by its reader; here only the end is waited for.
async fn over_stdio(link: &Arc<ChildLink>, params: &str, stands: impl FnOnce()) -> End {
    let params = request(params);
    let line = |id| params.line(id, Era::Modern);
    let Ok(mut call) = stdio::StdioCall::begin(link, line, Allowance::now(FOR_EVER), None).await
    else {
        return End::Gone;
    };
    stands();
    let mut message = Vec::new();
    loop {
        match call.next().await {
            Ok(Some(AnswerPart::Data(data))) if message.len() + data.len() <= MAX_MESSAGE_BYTES => {
                message.extend_from_slice(&data);
            }
            Ok(Some(AnswerPart::End)) => return outcome(&message).unwrap_or(End::Over),
            Ok(Some(AnswerPart::Data(_))) => return End::Refused,
            Ok(None) | Err(_) if link.has_ended() => return End::Gone,
            Ok(None) | Err(_) => return End::Over,
        }
    }
}

/// What a response says about the stream; none if it is no response.
fn outcome(message: &[u8]) -> Option<End> {
    #[derive(Deserialize)]
    struct StreamMessage {
        method: Option<IgnoredAny>,
        error: Option<IgnoredAny>,
    }
    match serde_json::from_slice::<StreamMessage>(message) {
        Ok(StreamMessage { method: Some(_), .. }) => None,
        Ok(StreamMessage { error: Some(_), .. }) => Some(End::Refused),
        Ok(_) => Some(End::Over),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_that_there_are_are_followed() {
        assert_eq!(filter(ServerCapabilities::default()), None);
        let offers =
            ServerCapabilities { tools: true, resources: true, ..ServerCapabilities::default() };
        assert_eq!(
            filter(offers).unwrap(),
            r#"{"notifications":{"toolsListChanged":true,"resourcesListChanged":true}}"#
        );
    }
}
