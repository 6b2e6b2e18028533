//! Dispatch of HTTP requests: first fleet peers; then, after the checks of `Host`, `Origin` and credentials, the page, MCP and REST.
//!
//! Requests under the peer path that are not authenticated as coming from a fleet node are dispatched like any others, as if the path did
//! not exist. A peer's request is answered in authenticated frames (`fleet::peer_wire`). Its handlers never query a third node:
//! [`Hop::Last`](mcpproxy_fleet::peers::Hop).
//!
//! Browsers get cross-origin access to MCP: preflight responses, and the headers that let a page read a response. This requires an `Origin`
//! that passed the host check (`allowed_origins`). Credentials are headers that the page itself sets, never cookies, so
//! `Access-Control-Allow-Credentials` is not sent (Fetch §CORS protocol).

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HeaderName, ORIGIN, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use serde_json::json;

use super::app_state::AppState;
use super::unread_body;
use mcpproxy_admin::api::answer_node;
use mcpproxy_admin::{api, page};
use mcpproxy_downstream::authentication::{ProofRule, StreamCredential, Unauthenticated};
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http::{
    BODY_TIMEOUT, BodyError, ClientConnection, body_error, collect_within,
};
use mcpproxy_downstream::{authentication, http as mcp};
use mcpproxy_fleet::fleet_logs::NoAnswer;
use mcpproxy_fleet::peer_wire::{AnswerFrames, MAX_REQUEST_BYTES, PATH, PeerRoute, PeerSender};
use mcpproxy_fleet::record_questions::RecordQuestion;
use mcpproxy_fleet::{FleetLogs, fleet_logs};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::memory_budget::RequestBodies;
use mcpproxy_gateway::proxy::reply::Aborted;
use mcpproxy_protocol::mcp::headers::SESSION_ID;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Answers one HTTP request.
pub(super) async fn route<B>(
    shared: &AppState,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // A peer may use any `Host`; it authenticates separately.
    let request = match answer_peer(shared, worker, request).await {
        ControlFlow::Break(answer) => return answer,
        ControlFlow::Continue(request) => request,
    };
    let settings = worker.settings();
    let auth = &settings.http_auth;
    if let Err(refused) = auth.host_check.check(request.headers(), request.uri().authority()) {
        return api::refuse(refused.status(), &refused.to_string());
    }
    if let Some(page) = page::answer(&request) {
        return page;
    }
    let is_mcp = mcp::is_mcp(request.uri().path());
    if !is_mcp {
        return route_checked(shared, worker, connection, request, is_mcp).await;
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let mut answer = match preflight(request.method(), request.headers()) {
        Some(answer) => answer,
        None => route_checked(shared, worker, connection, request, is_mcp).await,
    };
    allow(&mut answer, origin);
    answer
}

/// Answers a request that passed the host check: MCP or REST.
async fn route_checked<B>(
    shared: &AppState,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    request: Request<B>,
    is_mcp: bool,
) -> Response<Body>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let settings = worker.settings();
    let auth = &settings.http_auth;
    let prove =
        if is_mcp { authentication::authenticate_mcp } else { authentication::authenticate };
    let prove_now = || {
        let (headers, target) = (request.headers(), request.uri());
        let certificate = connection.certificate.as_ref();
        prove(auth, &worker.credentials(), headers, target, certificate, SystemTime::now)
    };
    let mut proven = prove_now();
    if proven.as_ref().is_err_and(Unauthenticated::wants_keys) {
        // The issuer may have rotated its keys.
        worker.proxy.identity.renew_keys().await;
        proven = prove_now();
    }
    if !is_mcp {
        let info = api::ConnectionInfo {
            reached: connection.came_to.borrow().clone(),
            source: connection.source,
            certificate: connection.certificate.clone(),
        };
        return api::handle(&shared.api, worker, info, request, proven).await;
    }
    let principal = match proven {
        Ok(proven) => proven.principal,
        Err(unproven) => {
            return api::unauthorized(worker, request.headers(), request.uri().path(), &unproven);
        }
    };
    connection.principal.replace(principal.clone());
    let (head, body) = request.into_parts();
    let answer =
        mcp::handle(worker, &shared.sessions, connection, shared.now_ms(), &head, body).await;
    authentication::bind_events(worker, answer, || {
        let certificate = connection.certificate.as_ref();
        StreamCredential::new(ProofRule::Mcp, &head.headers, &head.uri, certificate, principal)
    })
}

/// An authenticated request of another node.
struct PeerCall {
    from: PeerSender,
    route: PeerRoute,
    body: Bytes,
}

/// Answers a request of another node; any other request is returned.
pub(super) async fn answer_peer<B>(
    shared: &AppState,
    worker: &Rc<Worker>,
    request: Request<B>,
) -> ControlFlow<Response<Body>, Request<B>>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if !request.uri().path().starts_with(PATH) {
        return ControlFlow::Continue(request);
    }
    let peers = shared.proxy.nodes.fleet_node().and_then(|node| node.peers());
    let admitted = peers
        .and_then(|peers| peers.admit(request.method(), request.uri().path(), request.headers()));
    let Some(admitted) = admitted else { return ControlFlow::Continue(request) };
    let (body, frames) = (request.into_body(), admitted.frames());
    let answered = match whole(&shared.proxy.bodies, body).await {
        Err(refused) => body_error(&refused),
        Ok(body) if !admitted.is_of(&body) => {
            // The body was replaced in transit.
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        }
        Ok(body) => {
            let call = PeerCall { from: admitted.from, route: admitted.route, body };
            perform_peer_call(shared, worker, call).await
        }
    };
    ControlFlow::Break(framed(frames, answered))
}

/// Receives the body of a peer's request. Reserves memory for the full announced size, so that several requests do not wait for each other
/// with a part each. If there is no memory, the body is read and discarded, because the peer could mistake a TCP reset for the response,
/// and would suspect this node without knowing whether the request was processed.
async fn whole<B>(bodies: &RequestBodies, body: B) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let mut charge = bodies.charge_for_node();
    let announced = body.size_hint().exact().unwrap_or_default().min(MAX_REQUEST_BYTES as u64);
    let received = match charge.reach(announced as usize).await {
        Ok(()) => collect_within(body.as_mut(), MAX_REQUEST_BYTES, charge).await,
        Err(none) => Err(none.into()),
    };
    match &received {
        Err(BodyError::BodiesFull(_)) => unread_body::discard(body, BODY_TIMEOUT).await,
        Ok(_) | Err(BodyError::Late | BodyError::TooLarge | BodyError::Broken(_)) => {}
    }
    received
}

/// Runs the handler of a peer route.
async fn perform_peer_call(
    shared: &AppState,
    worker: &Rc<Worker>,
    call: PeerCall,
) -> Response<Body> {
    match call.route {
        PeerRoute::Ping => {
            let node = shared.proxy.nodes.fleet_node().map(|node| node.name.as_str().to_owned());
            let body = json!({"node": node, "asked_by": call.from.node.as_str()});
            Response::new(Body::from(Bytes::from(body.to_string())))
        }
        PeerRoute::Session => {
            mcp::answer_forwarded(worker, &shared.sessions, shared.now_ms(), call.body).await
        }
        PeerRoute::Records => answer_record_question(shared, &call.body).await,
        PeerRoute::Approval => answer_node(worker, call.from.node.as_str(), &call.body).await,
    }
}

/// Wraps a response in authenticated frames.
fn framed(mut frames: AnswerFrames, answer: Response<Body>) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let ready = frames.head(head.status, &head.headers).into();
    let state = FramedAnswer { frames, ready, body: Some(body) };
    let framed = stream::unfold(state, |mut state| async move {
        state.next().await.map(|part| (Ok::<_, Aborted>(part), state))
    });
    let mut response = Response::new(Body::Stream(Box::pin(framed)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response
}

/// A framed response being sent.
struct FramedAnswer {
    frames: AnswerFrames,
    ready: VecDeque<Bytes>,
    body: Option<Body>,
}

impl FramedAnswer {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                if part.is_empty() {
                    continue;
                }
                return Some(part);
            }
            let body = self.body.as_mut()?;
            match std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.ready.extend(data.into_iter().flat_map(|part| self.frames.data(part)));
                }
                Some(Err(aborted)) => {
                    tracing::debug!(%aborted, "a response to another node failed");
                    self.ready.extend(self.frames.broken());
                    self.body = None;
                }
                None => {
                    self.ready.extend(self.frames.end());
                    self.body = None;
                }
            }
        }
    }
}

/// Answers a peer's query of records in this node's log and its copies. Returns 400 if the query is malformed, and 503 if there are too
/// many queries or pending records are not stored in time.
pub(super) async fn answer_record_question(shared: &AppState, asked: &Bytes) -> Response<Body> {
    let Some(index) = shared.api.fleet_index.get() else {
        return empty_response(StatusCode::SERVICE_UNAVAILABLE);
    };
    let Some(question) = RecordQuestion::decode(asked) else {
        return empty_response(StatusCode::BAD_REQUEST);
    };
    let Some(slot) = index.enter() else { return empty_response(StatusCode::SERVICE_UNAVAILABLE) };
    let activity = shared.proxy.activity.clone();
    let logs = FleetLogs::new(activity.clone(), Some(index.clone()), None);
    let is_forward = matches!(question, RecordQuestion::Forward { .. });
    let read = move || {
        // The slot is held until the read ends, even if the peer has stopped waiting.
        let _slot = slot;
        fleet_logs::answer(&logs, question)
    };
    let answered = match is_forward {
        // A full scan uses the low-priority thread.
        true => activity.run_on_reader(move |_| read()).await.map_err(NoAnswer::Query).flatten(),
        false => tokio::task::spawn_blocking(read).await.unwrap_or(Err(NoAnswer::Question)),
    };
    match answered {
        Ok(bytes) => Response::new(Body::from(Bytes::from(bytes))),
        Err(NoAnswer::Question) => empty_response(StatusCode::BAD_REQUEST),
        Err(NoAnswer::Query(error)) => {
            peer_line!(warn, LinePeer::Part("records for other nodes"), %error, "cannot read records for another node");
            empty_response(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}

const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE");
/// Response headers that a page may read.
const EXPOSED: [HeaderName; 3] =
    [HeaderName::from_static(SESSION_ID), RETRY_AFTER, WWW_AUTHENTICATE];
/// Number of seconds for which a browser may reuse a preflight response.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Maximum length of the list of request headers in a preflight, in bytes.
const MAX_HEADER_LIST_BYTES: usize = 4096;

/// Response to a preflight from an allowed origin; `None` for any other request.
pub(super) fn preflight(method: &Method, asked: &HeaderMap) -> Option<Response<Body>> {
    if method != Method::OPTIONS
        || !asked.contains_key(ORIGIN)
        || !asked.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    {
        return None;
    }
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // The requested list is allowed unchanged: the origin is trusted, and the headers that clients set depend on their
    // protocol revision.
    let list = asked.get(ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(list) = list.filter(|list| list.len() <= MAX_HEADER_LIST_BYTES) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, list.clone());
    }
    Some(response)
}

/// Lets the page at `origin` read a response; has no effect outside browsers.
pub(super) fn allow(response: &mut Response<Body>, origin: Option<HeaderValue>) {
    let Some(origin) = origin else { return };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for name in EXPOSED {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, name.into());
    }
    headers.append(VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use http::header::RETRY_AFTER;
    use http_body::{Frame, SizeHint};

    use super::*;

    const FRAME_BYTES: usize = 64 * 1024;

    /// A body of `left` frames that announces its size.
    struct Announced {
        left: usize,
        read: Rc<Cell<usize>>,
    }

    impl HttpBody for Announced {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
            self.left = left;
            self.read.set(self.read.get() + 1);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; FRAME_BYTES])))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact((self.left * FRAME_BYTES) as u64)
        }
    }

    #[tokio::test]
    async fn peer_body_without_memory_is_discarded_and_answered_with_retry_after() {
        const FRAMES: usize = 40;
        let (bodies, read) = (RequestBodies::default(), Rc::<Cell<usize>>::default());
        let receive = || whole(&bodies, Announced { left: FRAMES, read: Rc::clone(&read) });
        let held = bodies.fill();
        let refused = receive().await.unwrap_err();
        assert_eq!(read.take(), FRAMES, "no unread data is left that would cause a reset");
        let answer = body_error(&refused);
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        assert!(refused.to_string().contains("was not processed"), "{refused}");
        drop(held);
        assert_eq!(receive().await.unwrap().len(), FRAMES * FRAME_BYTES);
    }
}

#[cfg(test)]
mod cross_origin_tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_preflight_requests_get_a_preflight_response() {
        let asked = |method: &str, headers: &[(&str, &str)]| {
            let request = headers.iter().fold(Request::builder().method(method), |it, header| {
                it.header(header.0, header.1)
            });
            let head = request.body(()).unwrap().into_parts().0;
            preflight(&head.method, &head.headers)
        };
        let (origin, method) =
            (("origin", "http://localhost:6274"), ("access-control-request-method", "POST"));
        assert!(asked("OPTIONS", &[origin]).is_none());
        assert!(asked("OPTIONS", &[method]).is_none());
        assert!(asked("POST", &[origin, method]).is_none());
        let answer = asked("OPTIONS", &[origin, method]).unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert!(!answer.headers().contains_key(ACCESS_CONTROL_ALLOW_HEADERS));
        let list = |length: usize| {
            let list = "x".repeat(length);
            let answer =
                asked("OPTIONS", &[origin, method, ("access-control-request-headers", &list)]);
            answer.unwrap().headers().contains_key(ACCESS_CONTROL_ALLOW_HEADERS)
        };
        assert!(list(MAX_HEADER_LIST_BYTES) && !list(MAX_HEADER_LIST_BYTES + 1));
    }
}
