//! The door for other nodes of the fleet: who is let in, and who answers which of their requests.
//!
//! Whoever is no node of the fleet is no other client here: what follows answers, as if there were no such paths. A request of a
//! node is answered in frames that show who answers (`fleet::peer_wire`). It was asked by a node, so that no handler asks a third:
//! [`Hop::Last`](crate::fleet::peers::Hop).

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use serde_json::json;

use super::app_state::AppState;
use super::{record_door, unread_body};
use crate::api::fleet_approvals;
use crate::downstream::body::Body;
use crate::downstream::forwarded;
use crate::downstream::http::{BODY_TIMEOUT, NoBody, collect_within, no_body};
use crate::fleet::peer_wire::{AnswerFrames, MAX_REQUEST_BYTES, PATH, PeerRoute, PeerSender};
use crate::proxy::Worker;
use crate::proxy::body_room::RequestBodies;
use crate::proxy::reply::Aborted;

/// Who asks, and what.
struct PeerCall {
    from: PeerSender,
    route: PeerRoute,
    body: Bytes,
}

/// Answers a request of another node; gives it back if it is none of one.
pub(super) async fn answer<B>(
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
    let peers = shared.proxy.fleet.as_ref().and_then(|node| node.peers());
    let admitted = peers
        .and_then(|peers| peers.admit(request.method(), request.uri().path(), request.headers()));
    let Some(admitted) = admitted else { return ControlFlow::Continue(request) };
    let (body, frames) = (request.into_body(), admitted.frames());
    let answered = match whole(&shared.proxy.bodies, body).await {
        Err(refused) => no_body(&refused),
        Ok(body) if !admitted.is_of(&body) => {
            // Somebody on the way has put another in its place.
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        }
        Ok(body) => {
            let call = PeerCall { from: admitted.from, route: admitted.route, body };
            perform(shared, worker, call).await
        }
    };
    ControlFlow::Break(framed(frames, answered))
}

/// The body of a node's request. It takes at once what it is announced to need, so that several do not wait for each other with
/// a part of their room each. One that finds none is read all the same, and forgotten: who asks could take a reset for the
/// answer, and would doubt this node and not know whether anything was done.
async fn whole<B>(bodies: &RequestBodies, body: B) -> Result<Bytes, NoBody>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(body);
    let mut room = bodies.room_for_node();
    let announced = body.size_hint().exact().unwrap_or_default().min(MAX_REQUEST_BYTES as u64);
    let come = match room.reach(announced as usize).await {
        Ok(()) => collect_within(body.as_mut(), MAX_REQUEST_BYTES, room).await,
        Err(none) => Err(none.into()),
    };
    match &come {
        Err(NoBody::NoRoom(_)) => unread_body::discard(body, BODY_TIMEOUT).await,
        Ok(_) | Err(NoBody::Late | NoBody::TooLarge | NoBody::Broken(_)) => {}
    }
    come
}

/// Runs the handler of a route. What is added here is found by the other node under [`PeerRoute`].
async fn perform(shared: &AppState, worker: &Rc<Worker>, call: PeerCall) -> Response<Body> {
    match call.route {
        PeerRoute::Ping => {
            let node = shared.proxy.fleet.as_ref().map(|node| node.name.as_str().to_owned());
            let said = json!({"node": node, "asked_by": call.from.node.as_str()});
            Response::new(Body::from(Bytes::from(said.to_string())))
        }
        PeerRoute::Session => {
            forwarded::answer(worker, &shared.sessions, shared.now_ms(), call.body).await
        }
        PeerRoute::Records => record_door::answer(shared, &call.body).await,
        PeerRoute::Approval => {
            fleet_approvals::answer_node(worker, call.from.node.as_str(), &call.body).await
        }
    }
}

/// An answer in frames.
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

/// An answer under way.
struct FramedAnswer {
    frames: AnswerFrames,
    ready: VecDeque<Bytes>,
    body: Option<Body>,
}

impl FramedAnswer {
    /// The next bytes of its frames.
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
                    tracing::debug!(%aborted, "an answer to another node broke off");
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use http::header::RETRY_AFTER;
    use http_body::{Frame, SizeHint};

    use super::*;

    const FRAME_BYTES: usize = 64 * 1024;

    /// So many frames, which are announced.
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
    async fn a_body_that_finds_no_room_is_read_to_its_end_and_its_node_is_told_to_ask_again() {
        const FRAMES: usize = 40;
        let (bodies, read) = (RequestBodies::default(), Rc::<Cell<usize>>::default());
        let come = || whole(&bodies, Announced { left: FRAMES, read: Rc::clone(&read) });
        let held = bodies.fill();
        let refused = come().await.unwrap_err();
        assert_eq!(read.take(), FRAMES, "nothing is left that would be reset");
        let answer = no_body(&refused);
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        assert!(refused.to_string().contains("Nothing was done"), "{refused}");
        drop(held);
        assert_eq!(come().await.unwrap().len(), FRAMES * FRAME_BYTES);
    }
}
