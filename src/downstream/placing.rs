//! Which node of a fleet answers a message: any, but for what lives on one.
//!
//! ```text
//! an answer to a question                            the node that asks
//! a call that is made again for its approval         the node that holds it; gone: here, where it is refused
//! read_result                                        the node that keeps the result; gone: here, where it is told so
//! a server with affinity; rules that ask of sessions the node that opened the session; gone: the session is over
//! resources/subscribe                                the same; gone or not reached: here
//! all else                                           here
//! ```
//!
//! While it is not known whether that node lives, and while one that lives is not reached, the client is told to ask again:
//! nothing is refused for good by a node that has just started, or for a connection that could not be made.
//!
//! Modern clients have no session: what they send to a server with affinity goes to one node for each principal, by a hash of
//! both over the nodes that live, and moves when nodes come and go.

use http::{Response, StatusCode};

use crate::approvals::ApprovalId;
use crate::downstream::body::Body;
use crate::downstream::client_connection::{CameBy, Post};
use crate::downstream::forward::{self, Whereabouts};
use crate::downstream::response::plain;
use crate::downstream::session::{Session, SessionHome};
use crate::fleet::peers::PeerError;
use crate::mcp::message;
use crate::proxy::bound_to::{BoundTo, approval_brought, bound_to};
use crate::proxy::client::node_of_question;
use crate::proxy::incoming::Received;

/// What is kept with a session and serves its stream of messages that belong to no request, which is there, too.
const LIVE_AT_HOME: [&str; 2] = ["resources/subscribe", "resources/unsubscribe"];

/// Where a message is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessagePlace {
    /// On this node.
    Here,
    /// On the node of that name.
    On(Box<str>),
    /// On the node of that name, or if it is not reached on this one.
    OnOrHere(Box<str>),
    /// On a node of which it is not known whether it lives: its client asks again.
    NotKnown,
    /// Nowhere any more: its client begins a new session.
    Gone,
}

impl From<Whereabouts> for MessagePlace {
    fn from(whereabouts: Whereabouts) -> Self {
        match whereabouts {
            Whereabouts::Here => Self::Here,
            Whereabouts::On(node) => Self::On(node),
            Whereabouts::NotKnown => Self::NotKnown,
            Whereabouts::Unreachable | Whereabouts::Gone => Self::Gone,
        }
    }
}

impl MessagePlace {
    /// Has a message that is not answered here answered there; `None` if it is answered here after all.
    pub(super) async fn answer(self, post: &Post<'_>, body: &[u8]) -> Option<Response<Body>> {
        match self {
            Self::Here => None,
            Self::On(node) => Some(forward::forward(post, &node, body).await),
            Self::OnOrHere(node) => match forward::ask(post, &node, body).await {
                Ok(response) => Some(response),
                Err(error) if forward::was_not_asked(&error) => None,
                Err(error) => Some(forward::refused(&error)),
            },
            Self::NotKnown => Some(forward::not_known()),
            Self::Gone => Some(forward::gone()),
        }
    }
}

/// Where an answer to a question goes: to the node that asked it.
pub(super) fn of_response(post: &Post<'_>, response: &message::Response) -> MessagePlace {
    let id = response.id.as_deref().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    match id.map_or(0, node_of_question) {
        0 => MessagePlace::Here,
        node => forward::whereabouts(post, |tag| tag.number() == node).into(),
    }
}

/// Where a request of a session is answered.
pub(super) async fn of_request(
    post: &Post<'_>,
    session: &Session,
    received: &Received,
) -> MessagePlace {
    if post.worker.proxy.fleet.is_none() {
        return MessagePlace::Here;
    }
    match bound_to(post.worker, session.endpoint, received).await {
        BoundTo::Node(node) => return of_result(post, node),
        BoundTo::Session => return with_what_it_left(post, session),
        BoundTo::Nothing => {}
    }
    let settings = post.worker.settings();
    if settings.policy.rules.as_ref().is_some_and(|rules| rules.asks_of_sessions()) {
        return with_what_it_left(post, session);
    }
    match LIVE_AT_HOME.contains(&&*received.request.method) {
        false => MessagePlace::Here,
        true => match at_home(post, session) {
            Whereabouts::On(node) => MessagePlace::OnOrHere(node),
            Whereabouts::NotKnown => MessagePlace::NotKnown,
            // Kept here, as the session's stream is, it is better than nowhere.
            Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
        },
    }
}

/// The node that a session's own affairs are at: that which opened it.
pub(super) fn at_home(post: &Post<'_>, session: &Session) -> Whereabouts {
    match session.home() {
        SessionHome::Here | SessionHome::Forgotten => Whereabouts::Here,
        SessionHome::Elsewhere(home) => forward::whereabouts(post, |tag| tag == home),
    }
}

/// The node where there is what a session has left behind: what rules look at, and what servers keep for it.
fn with_what_it_left(post: &Post<'_>, session: &Session) -> MessagePlace {
    match (session.home(), at_home(post, session)) {
        (SessionHome::Here, _) => MessagePlace::Here,
        // Nobody has it.
        (SessionHome::Forgotten, _) => MessagePlace::Gone,
        (SessionHome::Elsewhere(_), Whereabouts::Here)
            if post.connection.came_by == CameBy::Client =>
        {
            MessagePlace::Gone
        }
        (SessionHome::Elsewhere(_), home) => home.into(),
    }
}

fn of_result(post: &Post<'_>, node: u32) -> MessagePlace {
    match forward::whereabouts(post, |tag| tag.number() == u64::from(node)) {
        Whereabouts::On(node) => MessagePlace::OnOrHere(node),
        Whereabouts::NotKnown => MessagePlace::NotKnown,
        Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
    }
}

/// The node that holds the call of an approval, whoever else would answer it; gone: here, where it is refused.
fn of_approval(post: &Post<'_>, id: &ApprovalId) -> MessagePlace {
    let Some(mark) = ApprovalId::node_in(id.as_str()) else { return MessagePlace::Here };
    match forward::whereabouts(post, |tag| tag.text() == mark) {
        Whereabouts::On(node) => MessagePlace::OnOrHere(node),
        Whereabouts::NotKnown => MessagePlace::NotKnown,
        Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
    }
}

/// The answer to a request of a client without a session, if it is another node's.
pub(super) async fn answered_elsewhere(
    post: &Post<'_>,
    received: &Received,
    body: &[u8],
) -> Option<Response<Body>> {
    post.worker.proxy.fleet.as_ref()?;
    if let Some(id) = approval_brought(post.worker, &post.principal, received) {
        return of_approval(post, &id).answer(post, body).await;
    }
    match bound_to(post.worker, post.endpoint, received).await {
        BoundTo::Nothing => None,
        BoundTo::Node(node) => of_result(post, node).answer(post, body).await,
        BoundTo::Session => {
            let node = forward::of_principal(post)?;
            Some(match forward::ask(post, &node, body).await {
                Ok(response) => response,
                // It has no session that it could begin anew; once the node is found dead, another one is asked.
                Err(error) => unanswered(&error),
            })
        }
    }
}

fn unanswered(error: &PeerError) -> Response<Body> {
    tracing::warn!(%error, "a request could not be passed on");
    plain(StatusCode::BAD_GATEWAY, "the node that this is on did not answer")
}
