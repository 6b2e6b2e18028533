//! Requests that another node of the fleet has passed on, since what they are about is here. They are answered as if they had come
//! here, for whom the other node has proven; a token or JWT is proven once more.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::Full;

use crate::downstream::api_key;
use crate::downstream::body::Body;
use crate::downstream::client_connection::{CameBy, ClientConnection};
use crate::downstream::forward::{self, ForwardedPrincipal};
use crate::downstream::http::{self as mcp, PATHS};
use crate::downstream::response::status;
use crate::downstream::session_table::Sessions;
use crate::downstream::source::Source;
use crate::policy::Principal;
use crate::proxy::Worker;

/// Answers a request that another node has passed on, as it came in there. Who asks is a node of the fleet.
pub async fn answer(
    worker: &Rc<Worker>,
    sessions: &Sessions,
    now_ms: u64,
    sent: Bytes,
) -> Response<Body> {
    let Some((head, said, body)) = forward::read(&sent) else {
        return status(StatusCode::BAD_REQUEST);
    };
    // All has its room as long as the body is kept, which is as long as a call needs it.
    drop(sent);
    if !PATHS.contains(&head.uri.path()) {
        return status(StatusCode::BAD_REQUEST);
    }
    let principal = match said.principal {
        ForwardedPrincipal::Anonymous => Some(Principal::Anonymous),
        ForwardedPrincipal::Admin => Some(Principal::Admin),
        ForwardedPrincipal::Certificate(name) => Some(Principal::certificate(&name)),
        ForwardedPrincipal::Headers => {
            let (auth, now) = (&worker.settings().http_auth, SystemTime::now);
            let (credentials, headers, uri) = (&worker.credentials(), &head.headers, &head.uri);
            let proven = api_key::prove_for_mcp(auth, credentials, headers, uri, None, now);
            proven.ok().map(|proven| proven.principal)
        }
    };
    // Both nodes know the same of whoever asks, or it is nobody's session here.
    let Some(principal) = principal.filter(|it| it.mark() == said.mark) else {
        return forward::gone();
    };
    let connection = ClientConnection {
        source: said.from.map_or(Source::Loopback, Source::of),
        came_by: CameBy::Peer { reopens: said.reopens },
        principal: principal.into(),
        ..ClientConnection::default()
    };
    let answer = mcp::handle(worker, sessions, &connection, now_ms, &head, Full::new(body)).await;
    let (head, body) = answer.into_parts();
    Response::from_parts(head, kept(body, connection))
}

/// The head and the body of a request as another node has sent it; `None` for what is none.
#[must_use]
pub fn parts(sent: &Bytes) -> Option<(Parts, Bytes)> {
    forward::read(sent).map(|(head, _, body)| (head, body))
}

/// A body with the connection that it belongs to, whose calls can be cancelled as long as it is read.
fn kept(body: Body, connection: ClientConnection) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let ready = VecDeque::new();
    let parts =
        stream::unfold((body, connection, ready), |(mut body, connection, mut ready)| async {
            loop {
                if let Some(part) = ready.pop_front() {
                    return Some((Ok(part), (body, connection, ready)));
                }
                match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await? {
                    Ok(frame) => ready.extend(frame.into_data().unwrap_or_default()),
                    Err(aborted) => return Some((Err(aborted), (Body::Empty, connection, ready))),
                }
            }
        });
    Body::Stream(Box::pin(parts))
}
