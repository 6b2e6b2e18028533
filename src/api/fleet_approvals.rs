//! Calls that wait for a person on other nodes of the fleet. An id says on which node a call waits: that one is asked, by one
//! hop, and decides. A node that lives no more held calls that ended with it, which is told.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::approvals_here::{ApprovalView, UnseenNode, answer_here, one_here, waiting_here};
use super::response::{ApiError, encode};
use crate::approvals::{Answerer, ApprovalId, Door};
use crate::downstream::body::Body;
use crate::fleet::FleetNode;
use crate::fleet::living_nodes::NodeState;
use crate::fleet::peer_wire::PeerRoute;
use crate::fleet::peers::{Hop, PeerError};
use crate::fleet::sealed_mark::NodeTag;
use crate::proxy::Worker;

/// Nodes that are asked at the same time what waits there.
const ASKED_TOGETHER: usize = 16;
/// Most time until one of them has said so.
const LIST_LIMIT: Duration = Duration::from_secs(3);
/// Most bytes of what one says.
const MAX_LIST_BYTES: usize = 16 << 20;
/// Most bytes of one approval with all its arguments, each of which may be written as six.
const MAX_ONE_BYTES: usize = 4 << 20;

/// What a node asks another about calls that wait there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApprovalAsk {
    /// All that wait.
    List,
    /// One.
    One,
    /// To take an answer.
    Answer,
}

/// The request for it.
#[derive(Serialize, Deserialize)]
struct ApprovalWish<'a> {
    ask: ApprovalAsk,
    #[serde(default)]
    id: String,
    /// As it came in by REST.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    answer: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<WishedBy>,
}

/// Who answers, as the node that they came to has proven.
#[derive(Serialize, Deserialize)]
struct WishedBy {
    principal: String,
    door: String,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    approvals: Vec<ApprovalView>,
}

/// What waits on the other nodes.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) approvals: Vec<ApprovalView>,
    pub(super) unseen: Vec<UnseenNode>,
}

/// What waits on the other nodes that live; `None` without a fleet.
pub(super) async fn gather(worker: &Worker) -> Option<Gathered> {
    let node = worker.proxy.fleet.as_deref()?;
    let living = node.living();
    let others = living.living().filter(|view| view.name != node.name);
    let asked = others.map(|view| async move {
        let name = view.name.as_str();
        let listed = tokio::time::timeout(LIST_LIMIT, listed(node, name)).await;
        let late = || format!("node '{name}' did not answer within {} s", LIST_LIMIT.as_secs());
        (name, listed.unwrap_or_else(|_| Err(late())))
    });
    let mut asked = stream::iter(asked).buffered(ASKED_TOGETHER);
    let mut gathered = Gathered::default();
    while let Some((name, listed)) = asked.next().await {
        match listed {
            Ok(listed) => {
                let told = listed.approvals.into_iter().map(|it| it.told_by(name));
                gathered.approvals.extend(told);
            }
            Err(why) => gathered.unseen.push(UnseenNode { node: name.to_owned(), why }),
        }
    }
    Some(gathered)
}

async fn listed(node: &FleetNode, name: &str) -> Result<Listed, String> {
    let wish = ApprovalWish { ask: ApprovalAsk::List, id: String::new(), answer: None, by: None };
    let (status, said) =
        ask(node, name, &wish, MAX_LIST_BYTES).await.map_err(|it| it.to_string())?;
    if status != StatusCode::OK {
        return Err(format!("node '{name}' answers {}", status.as_u16()));
    }
    serde_json::from_slice(&said).map_err(|error| format!("node '{name}': {error}"))
}

async fn ask(
    node: &FleetNode,
    name: &str,
    wish: &ApprovalWish<'_>,
    limit: usize,
) -> Result<(StatusCode, Bytes), PeerError> {
    let none = || PeerError::NotAdvertised(node.name.as_str().to_owned());
    let peers = node.peers().ok_or_else(none)?;
    let answer = peers.request(name, PeerRoute::Approval, encode(wish), Hop::First).await?;
    let status = answer.status();
    Ok((status, answer.into_body().whole(limit).await?))
}

/// Another node that holds a call, as its id says.
pub(super) struct Elsewhere<'a> {
    node: &'a FleetNode,
    holder: Box<str>,
}

impl<'a> Elsewhere<'a> {
    /// The node that holds the call of that id; `None` where it is this one, or none that is known.
    ///
    /// # Errors
    /// It lives no more.
    pub(super) fn of(worker: &'a Worker, id: &str) -> Result<Option<Self>, ApiError> {
        let (Some(node), Some(mark)) = (worker.proxy.fleet.as_deref(), ApprovalId::node_in(id))
        else {
            return Ok(None);
        };
        let living = node.living();
        let mut all = living.all().iter();
        let Some(view) = all.find(|view| NodeTag::of(&view.name).text() == mark) else {
            return Ok(None);
        };
        match view.state {
            _ if view.name == node.name => Ok(None),
            NodeState::Living => Ok(Some(Self { node, holder: view.name.as_str().into() })),
            NodeState::Silent | NodeState::Stopped => Err(gone(id, view.name.as_str())),
            NodeState::Unknown => {
                let name = view.name.as_str();
                let text = format!(
                    "Approval {id} waits on node '{name}', of which it is not known yet whether it lives"
                );
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
        }
    }

    /// Shows it.
    pub(super) async fn one(&self, id: &str) -> Result<Bytes, ApiError> {
        self.asked(
            id,
            ApprovalWish { ask: ApprovalAsk::One, id: id.to_owned(), answer: None, by: None },
        )
        .await
    }

    /// Answers it there; `body` is JSON.
    pub(super) async fn answer(
        &self,
        id: &str,
        body: &[u8],
        by: &Answerer,
    ) -> Result<Bytes, ApiError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("Invalid request body: {error}"))
        };
        let answer = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
        let Answerer { principal, door, node: _ } = by;
        let by = WishedBy { principal: principal.to_string(), door: door.as_str().to_owned() };
        let id_of = id.to_owned();
        let wish = ApprovalWish {
            ask: ApprovalAsk::Answer,
            id: id_of,
            answer: Some(answer),
            by: Some(by),
        };
        self.asked(id, wish).await
    }

    async fn asked(&self, id: &str, wish: ApprovalWish<'_>) -> Result<Bytes, ApiError> {
        let Self { node, holder } = self;
        match ask(node, holder, &wish, MAX_ONE_BYTES).await {
            Ok((StatusCode::OK, data)) => Ok(data),
            Ok((status, text)) => Err(ApiError::new(status, String::from_utf8_lossy(&text))),
            Err(PeerError::Gone(_)) => Err(gone(id, holder)),
            Err(
                error @ (PeerError::NotAdvertised(_)
                | PeerError::Unreached { .. }
                | PeerError::SecondHop
                | PeerError::TooLong),
            ) => {
                let text = format!(
                    "Approval {id} waits on another node, and nothing has changed: {error}"
                );
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
            Err(error @ (PeerError::Unanswered { .. } | PeerError::Unknown { .. })) => {
                let text = format!(
                    "Approval {id} waits on another node, and it is not known whether that has decided: {error}"
                );
                Err(ApiError::new(StatusCode::BAD_GATEWAY, text))
            }
        }
    }
}

fn gone(id: &str, holder: &str) -> ApiError {
    let text = format!(
        "Approval {id} is gone: it waited on node '{holder}', which lives no more, and the call has ended with it"
    );
    ApiError::new(StatusCode::GONE, text)
}

/// Answers the node of that name, which was asked by whoever may.
#[must_use]
pub fn answer_node(worker: &Worker, from: &str, asked: &[u8]) -> Response<Body> {
    let answered = serde_json::from_slice::<ApprovalWish<'_>>(asked)
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error))
        .and_then(|wish| fulfil(worker, from, &wish));
    let (status, body) = match answered {
        Ok(data) => (StatusCode::OK, data),
        Err(error) => (error.status, error.message.into()),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn fulfil(worker: &Worker, from: &str, wish: &ApprovalWish<'_>) -> Result<Bytes, ApiError> {
    let ApprovalWish { ask, id, answer, by } = wish;
    match ask {
        ApprovalAsk::List => Ok(encode(&Listed { approvals: waiting_here(worker) })),
        ApprovalAsk::One => one_here(worker, id),
        ApprovalAsk::Answer => {
            let by = by.as_ref().and_then(|by| {
                let (principal, node) = (by.principal.as_str().into(), Some(from.into()));
                Some(Answerer { principal, door: Door::of_word(&by.door)?, node })
            });
            let (Some(answer), Some(by)) = (answer, by) else {
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "nobody answers"));
            };
            answer_here(worker, id, answer.get().as_bytes(), by)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_asks_is_read_as_it_was_sent() {
        let answer = r#"{"decision": "approve"}"#;
        let by = WishedBy { principal: "admin".into(), door: "cli".into() };
        let raw = serde_json::from_str(answer).unwrap();
        let (ask, id) = (ApprovalAsk::Answer, "x".to_owned());
        let sent = encode(&ApprovalWish { ask, id, answer: Some(raw), by: Some(by) });
        let read: ApprovalWish<'_> = serde_json::from_slice(&sent).unwrap();
        assert_eq!((read.ask, &*read.id, read.answer.unwrap().get()), (ask, "x", answer));
        assert_eq!(read.by.map(|by| (by.principal, by.door)), Some(("admin".into(), "cli".into())));
        let least: ApprovalWish<'_> = serde_json::from_str(r#"{"ask":"list"}"#).unwrap();
        assert!(least.ask == ApprovalAsk::List && least.answer.is_none() && least.by.is_none());
        assert!(serde_json::from_str::<ApprovalWish<'_>>(r#"{"ask":"everything"}"#).is_err());
    }
}
