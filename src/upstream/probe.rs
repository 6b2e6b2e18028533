//! Which era a server speaks, found out beneath the lifecycle.
//!
//! rmcp asks `server/discover` first and takes a JSON-RPC error for the sign of a legacy server.
//! Servers say it in more ways: with silence, with a bare HTTP status, under a foreign id, with a
//! result of something else, or by naming legacy versions only. [`Probed`] makes that one error of
//! them all. Which mode to begin with, and what is remembered, is the supervisor's business.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::RoleClient as Role;
use rmcp::model::{
    ClientRequest, DiscoverResult, ErrorCode, ErrorData, JsonRpcMessage, ProtocolVersion,
    RequestId, ServerResult,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::time::Instant;

use crate::mcp::revisions::Era;

/// Longest wait for the answer to the probe: most servers, also those that an installer fetches
/// first, have started by then. One that is slower loses nothing: its late answer is understood,
/// and it is begun with anew. But below [`CONNECT_WAIT`](super::away::CONNECT_WAIT), for the sake
/// of servers that are mute to what they do not know.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// How a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The era is not known: ask.
    Probe,
    /// The era is remembered, or was found by the last attempt.
    Known(Era),
}

/// A transport whose answers to the probe are understood.
pub(super) struct Probed<T> {
    inner: T,
    limit: Duration,
    state: State,
    /// Set when a server that was taken for legacy says late that it is modern.
    late: Arc<AtomicBool>,
}

#[derive(Debug)]
enum State {
    /// Nothing was asked, or it was answered.
    Quiet,
    Asked {
        id: RequestId,
        until: Instant,
    },
    GivenUp {
        id: RequestId,
    },
}

impl<T> Probed<T> {
    /// `limit` is that of the whole handshake. A probe gets half of it at most; a server that is
    /// known to answer it gets all of it, however slowly it starts.
    pub(super) fn new(inner: T, limit: Duration, start: Start, late: Arc<AtomicBool>) -> Self {
        let limit = match start {
            Start::Known(Era::Modern) => limit,
            Start::Known(Era::Legacy) | Start::Probe => PROBE_LIMIT.min(limit / 2),
        };
        Self { inner, limit, state: State::Quiet, late }
    }

    /// Passes a message on, corrected if it answers the probe.
    fn read(&mut self, message: RxJsonRpcMessage<Role>) -> Option<RxJsonRpcMessage<Role>> {
        let answers = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return Some(message),
        };
        match &self.state {
            State::Quiet => Some(message),
            State::GivenUp { id } if answers == Some(id) => {
                let modern = matches!(
                    &message,
                    JsonRpcMessage::Response(response) if discovered(&response.result).is_some()
                );
                self.late.fetch_or(modern, Ordering::Relaxed);
                None
            }
            State::GivenUp { .. } => Some(message),
            State::Asked { id, .. } => {
                let id = id.clone();
                self.state = State::Quiet;
                Some(understood(message, id))
            }
        }
    }
}

impl<T: Transport<Role>> Transport<Role> for Probed<T> {
    type Error = T::Error;

    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<Role>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        let until = match &item {
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                let until = Instant::now() + self.limit;
                self.state = State::Asked { id: request.id.clone(), until };
                Some(until)
            }
            _ => None,
        };
        let sending = self.inner.send(item);
        async move {
            let Some(until) = until else { return sending.await };
            // Over HTTP the answer comes while it is being sent. That there is none is told below.
            tokio::time::timeout_at(until, sending).await.unwrap_or(Ok(()))
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
        loop {
            let message = match &self.state {
                State::Asked { id, until } => {
                    let id = id.clone();
                    match tokio::time::timeout_at(*until, self.inner.receive()).await {
                        Ok(message) => message?,
                        Err(_) => {
                            self.state = State::GivenUp { id: id.clone() };
                            return Some(refused("no answer", id));
                        }
                    }
                }
                State::Quiet | State::GivenUp { .. } => self.inner.receive().await?,
            };
            if let Some(message) = self.read(message) {
                return Some(message);
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner.close()
    }
}

/// The error that rmcp falls back on.
pub(super) fn refused(why: impl Into<Cow<'static, str>>, id: RequestId) -> RxJsonRpcMessage<Role> {
    let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None);
    JsonRpcMessage::error(error, Some(id))
}

/// The answer to the probe, in a form that rmcp reads as it is meant.
fn understood(message: RxJsonRpcMessage<Role>, id: RequestId) -> RxJsonRpcMessage<Role> {
    match message {
        JsonRpcMessage::Response(response) if response.id == id => {
            match discovered(&response.result) {
                Some(result) if !legacy_only(&result.supported_versions) => {
                    JsonRpcMessage::response(ServerResult::DiscoverResult(result), id)
                }
                Some(_) => refused("it names no modern version", id),
                None => refused("it answered with something else", id),
            }
        }
        JsonRpcMessage::Response(_) => refused("it answered something else", id),
        JsonRpcMessage::Error(error) => {
            let supported = error.error.data.as_ref().and_then(|data| data.get("supported"));
            let supported: Option<Vec<ProtocolVersion>> =
                supported.and_then(|it| serde_json::from_value(it.clone()).ok());
            if error.error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
                && legacy_only(&supported.unwrap_or_default())
            {
                return refused("it names no modern version", id);
            }
            JsonRpcMessage::error(error.error, Some(id))
        }
        other => other,
    }
}

/// Whether a server has versions for us, none of which is modern.
fn legacy_only(versions: &[ProtocolVersion]) -> bool {
    let legacy = |version: &ProtocolVersion| {
        version.has_initialize() && ProtocolVersion::KNOWN_VERSIONS.contains(version)
    };
    !versions.contains(&ProtocolVersion::V_2026_07_28) && versions.iter().any(legacy)
}

/// The result of `server/discover`; one that lacks what we do not need is understood.
fn discovered(result: &ServerResult) -> Option<DiscoverResult> {
    let mut value = match result {
        ServerResult::DiscoverResult(result) => return Some(result.clone()),
        ServerResult::CustomResult(result) => result.0.clone(),
        _ => return None,
    };
    let object = value.as_object_mut()?;
    if !object.get("supportedVersions").is_some_and(Value::is_array) {
        return None;
    }
    for (key, default) in [
        ("resultType", Value::from("complete")),
        ("capabilities", Value::Object(Default::default())),
        ("ttlMs", Value::from(0)),
        ("cacheScope", Value::from("private")),
    ] {
        object.entry(key).or_insert(default);
    }
    serde_json::from_value(value).ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rmcp::model::{DiscoverRequest, DiscoverRequestParams, NumberOrString};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::upstream::lifecycle::decode;
    use crate::upstream::peer::Peer;

    /// A server that says what the test says.
    struct Said(mpsc::UnboundedReceiver<Value>);

    impl Transport<Role> for Said {
        type Error = Infallible;

        fn send(
            &mut self,
            _: TxJsonRpcMessage<Role>,
        ) -> impl Future<Output = Result<(), Infallible>> + Send + 'static {
            std::future::ready(Ok(()))
        }

        async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
            decode(&Peer::default(), self.0.recv().await?.to_string().as_bytes())
        }

        async fn close(&mut self) -> Result<(), Infallible> {
            Ok(())
        }
    }

    struct Bench {
        say: mpsc::UnboundedSender<Value>,
        probed: Probed<Said>,
        late: Arc<AtomicBool>,
    }

    /// A transport over which the probe has gone out under id 5.
    async fn asked(limit: Duration) -> Bench {
        let (say, said) = mpsc::unbounded_channel();
        let late = Arc::new(AtomicBool::new(false));
        let mut probed = Probed::new(Said(said), limit, Start::Probe, late.clone());
        let probe = DiscoverRequest::new(DiscoverRequestParams {});
        let id = NumberOrString::Number(5);
        probed
            .send(JsonRpcMessage::request(ClientRequest::DiscoverRequest(probe), id))
            .await
            .unwrap();
        Bench { say, probed, late }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn found(supported: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": 5,
            "result": {"supportedVersions": supported, "capabilities": {"tools": {}}}})
    }

    #[tokio::test]
    async fn the_answer_to_the_probe_is_made_what_it_means() {
        let refusal = |id: Value, code: i64, data: Value| {
            json!({"jsonrpc": "2.0", "id": id,
                "error": {"code": code, "message": "m", "data": data}})
        };
        // None for a modern server, else the code that is passed on.
        for (answer, code) in [
            (found(json!(["2026-07-28"])), None),
            (found(json!(["2025-11-25", "2026-07-28"])), None),
            (found(json!(["2099-01-01"])), None),
            (found(json!(["2025-11-25"])), Some(-32601)),
            (json!({"jsonrpc": "2.0", "id": 5, "result": {}}), Some(-32601)),
            (json!({"jsonrpc": "2.0", "id": 5, "result": {"supportedVersions": 1}}), Some(-32601)),
            (json!({"jsonrpc": "2.0", "id": 6, "result": {}}), Some(-32601)),
            (refusal(json!(5), -32602, Value::Null), Some(-32602)),
            (refusal(json!("server-error"), -32600, Value::Null), Some(-32600)),
            (refusal(Value::Null, -32000, Value::Null), Some(-32000)),
            (refusal(json!(5), -32020, Value::Null), Some(-32020)),
            (refusal(json!(5), -32022, json!({"supported": ["2099-01-01"]})), Some(-32022)),
            (refusal(json!(5), -32022, json!({"supported": ["2025-11-25"]})), Some(-32601)),
            (refusal(json!(5), -32022, json!(7)), Some(-32022)),
        ] {
            let mut bench = asked(LONG).await;
            bench.say.send(answer.clone()).unwrap();
            match (bench.probed.receive().await.unwrap(), code) {
                (JsonRpcMessage::Response(response), None) => {
                    assert_eq!(response.id, NumberOrString::Number(5));
                    let discovered = matches!(response.result, ServerResult::DiscoverResult(_));
                    assert!(discovered, "{answer}: {response:?}");
                }
                (JsonRpcMessage::Error(error), Some(code)) => {
                    assert_eq!(error.id, Some(NumberOrString::Number(5)), "{answer}");
                    assert_eq!(error.error.code.0, code, "{answer}");
                }
                (other, _) => panic!("{answer}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_probe_has_time_until_a_server_has_started() {
        let limit = |start, limit| {
            let said = Said(mpsc::unbounded_channel().1);
            Probed::new(said, Duration::from_secs(limit), start, Arc::default()).limit.as_secs()
        };
        for (start, all, probe) in
            [(Start::Probe, 30, 8), (Start::Probe, 10, 5), (Start::Known(Era::Modern), 30, 30)]
        {
            assert_eq!(limit(start, all), probe, "{start:?} {all}");
        }
        assert!(PROBE_LIMIT < crate::upstream::away::CONNECT_WAIT);
    }

    #[tokio::test]
    async fn silence_is_a_refusal_and_what_comes_late_is_noticed() {
        let initialized = json!({"jsonrpc": "2.0", "id": 6, "result": {}});
        let refused = json!({"jsonrpc": "2.0", "id": 5, "error": {"code": -1, "message": ""}});
        for (late, modern) in [(found(json!(["2026-07-28"])), true), (refused, false)] {
            let mut bench = asked(Duration::from_millis(2)).await;
            let Some(JsonRpcMessage::Error(error)) = bench.probed.receive().await else { panic!() };
            assert_eq!(error.error.code, ErrorCode::METHOD_NOT_FOUND);
            bench.say.send(late).unwrap();
            bench.say.send(initialized.clone()).unwrap();
            let Some(JsonRpcMessage::Response(next)) = bench.probed.receive().await else {
                panic!("the late answer is not passed on")
            };
            assert_eq!(next.id, NumberOrString::Number(6));
            assert_eq!(bench.late.load(Ordering::Relaxed), modern);
        }
    }
}
