//! Calls that wait for a person on other nodes of the fleet. An id says on which node a call waits: that one is asked, by one
//! hop, and decides. A node that has stopped held calls that ended with it, which is told; of one that says nothing any more it
//! is not known, and that is told.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::approvals_here::{ApprovalView, UnseenNode, answer_here, one_here, waiting_here};
use super::response::{ApiError, encode};
use crate::approvals::{Answerer, ApprovalId, Door, MAX_TIMEOUT};
use crate::downstream::body::Body;
use crate::fleet::FleetNode;
use crate::fleet::living_nodes::{LivingNodes, NodeState, NodeView};
use crate::fleet::peer_wire::PeerRoute;
use crate::fleet::peers::{Hop, PeerError};
use crate::fleet::sealed_mark::NodeTag;
use crate::proxy::Worker;

/// Nodes that are asked at the same time what waits there.
const ASKED_TOGETHER: usize = 16;
/// Most time until one of them has said so.
const LIST_LIMIT: Duration = Duration::from_secs(3);
/// Most time until all of them have.
const GATHER_LIMIT: Duration = Duration::from_secs(10);
/// Most time until one has shown or answered one approval: longer than it takes to reach it and until its answer begins.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// After how long it is asked again where it was not known which nodes there are.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Most calls in a list of a whole fleet.
const MAX_LISTED: usize = 4096;
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

/// What waits on all nodes, as far as they have said so.
#[derive(Default)]
pub(super) struct Gathered {
    /// The oldest first, at most [`MAX_LISTED`].
    pub(super) approvals: Vec<ApprovalView>,
    /// How many there are more.
    pub(super) left_out: usize,
    pub(super) unseen: Vec<UnseenNode>,
    /// The nodes that have said what waits there, this one among them.
    pub(super) heard: Vec<String>,
}

impl Gathered {
    /// There are these, too.
    fn add(&mut self, approvals: impl IntoIterator<Item = ApprovalView>) {
        self.approvals.extend(approvals);
        self.approvals.sort_by_cached_key(ApprovalView::since);
        self.left_out += self.approvals.len().saturating_sub(MAX_LISTED);
        self.approvals.truncate(MAX_LISTED);
    }

    fn has_not_seen(&mut self, node: &str, why: String) {
        self.unseen.push(UnseenNode { node: node.to_owned(), why });
    }
}

/// What waits on this node and on the others that live; `None` without a fleet.
pub(super) async fn gather(worker: &Worker) -> Option<Gathered> {
    let node = worker.proxy.fleet.as_deref()?;
    let living = node.living();
    let mut gathered = Gathered { unseen: unseen(&living), ..Gathered::default() };
    gathered.add(waiting_here(worker));
    gathered.heard.push(node.name.as_str().to_owned());
    let others: Vec<_> = living.living().filter(|view| view.name != node.name).collect();
    let mut left: BTreeSet<&str> = others.iter().map(|view| view.name.as_str()).collect();
    let asked = others.iter().map(|view| async move {
        let name = view.name.as_str();
        let listed = tokio::time::timeout(LIST_LIMIT, listed(node, name)).await;
        let late = || format!("node '{name}' did not answer within {} s", LIST_LIMIT.as_secs());
        (name, listed.unwrap_or_else(|_| Err(late())))
    });
    let mut asked = stream::iter(asked).buffer_unordered(ASKED_TOGETHER);
    let until = tokio::time::Instant::now() + GATHER_LIMIT;
    while let Ok(Some((name, listed))) = tokio::time::timeout_at(until, asked.next()).await {
        left.remove(name);
        match listed {
            Ok(listed) => {
                gathered.add(listed.approvals.into_iter().map(|it| it.told_by(name)));
                gathered.heard.push(name.to_owned());
            }
            Err(why) => gathered.has_not_seen(name, why),
        }
    }
    for name in left {
        let seconds = GATHER_LIMIT.as_secs();
        gathered.has_not_seen(
            name,
            format!("node '{name}' was not heard of within {seconds} s in all"),
        );
    }
    Some(gathered)
}

/// Nodes that are not asked, and may hold calls all the same.
fn unseen(living: &LivingNodes) -> Vec<UnseenNode> {
    let mut unseen = Vec::new();
    if let Some(why) = living.why_undecided().filter(|_| living.may_lack_some()) {
        unseen.push(UnseenNode { node: String::new(), why });
    }
    for view in living.all().iter().filter(|view| !view.is_self && !is_over(view)) {
        let name = view.name.as_str();
        let why = match view.state {
            NodeState::Living | NodeState::Stopped => continue,
            NodeState::Unknown => {
                format!("node '{name}' is not asked: it is not known yet whether it lives")
            }
            NodeState::Silent => {
                let seconds = view.silent_ms / 1000;
                format!("node '{name}' is not asked: it has said nothing for {seconds} s")
            }
        };
        unseen.push(UnseenNode { node: name.to_owned(), why });
    }
    unseen
}

/// Whether no call waits there any more, whatever became of the node.
fn is_over(view: &NodeView) -> bool {
    match view.state {
        NodeState::Living => false,
        NodeState::Stopped => true,
        NodeState::Silent | NodeState::Unknown => {
            u128::from(view.silent_ms) > MAX_TIMEOUT.as_millis()
        }
    }
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
    /// It has stopped, or it is not known whether it lives.
    pub(super) fn of(worker: &'a Worker, id: &str) -> Result<Option<Self>, ApiError> {
        let (Some(node), Some(mark)) = (worker.proxy.fleet.as_deref(), ApprovalId::node_in(id))
        else {
            return Ok(None);
        };
        if NodeTag::of(&node.name).text() == mark {
            return Ok(None);
        }
        let living = node.living();
        let Some(view) = holder(&living, id, mark)? else { return Ok(None) };
        match view.state {
            NodeState::Living => Ok(Some(Self { node, holder: view.name.as_str().into() })),
            NodeState::Silent | NodeState::Stopped | NodeState::Unknown => {
                Err(not_asked(id, view.name.as_str(), Some(view)))
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
        match in_time(holder, ANSWER_LIMIT, ask(node, holder, &wish, MAX_ONE_BYTES)).await {
            Ok((StatusCode::OK, data)) => Ok(data),
            Ok((status, text)) => Err(ApiError::new(status, String::from_utf8_lossy(&text))),
            Err(PeerError::Gone(_)) => Err(not_asked(id, holder, node.living().get(holder))),
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

/// The node that holds the call of that id, as its mark says; `None` where there is no such node.
///
/// # Errors
/// It is not known which nodes there are.
fn holder<'a>(
    living: &'a LivingNodes,
    id: &str,
    mark: &str,
) -> Result<Option<&'a NodeView>, ApiError> {
    let is_it = |view: &&NodeView| NodeTag::of(&view.name).text() == mark;
    let view = living.all().iter().find(is_it);
    match living.why_undecided() {
        Some(why) if view.is_none() && living.may_lack_some() => {
            let text = format!(
                "Approval {id} waits on another node, if it waits, and nothing has changed: {why}; ask again, or at that node"
            );
            let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
            error.retry_after = Some(ASK_AGAIN);
            Err(error)
        }
        Some(_) | None => Ok(view),
    }
}

/// What a node answers within a time; whoever was asked and is not heard to the end may have done it.
async fn in_time<T>(
    holder: &str,
    limit: Duration,
    asked: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    let late = || PeerError::Unanswered {
        node: holder.to_owned(),
        why: format!("nothing whole within {} s", limit.as_secs()),
    };
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(late()))
}

/// Why the node that holds a call is not asked: it does not live, or it is not known to.
fn not_asked(id: &str, holder: &str, view: Option<&NodeView>) -> ApiError {
    let (status, why) = match view {
        Some(view) if !is_over(view) => {
            let known = match view.state {
                NodeState::Unknown => "of which it is not known yet whether it lives".to_owned(),
                NodeState::Living | NodeState::Silent | NodeState::Stopped => {
                    format!("which has said nothing for {} s", view.silent_ms / 1000)
                }
            };
            let why = format!(
                "waits on node '{holder}', {known}: if it lives the call still waits there, and nothing has changed; ask again, or at that node"
            );
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Some(_) | None => {
            let why = format!(
                "is gone: it waited on node '{holder}', which lives no more, and the call has ended with it"
            );
            (StatusCode::GONE, why)
        }
    };
    ApiError::new(status, format!("Approval {id} {why}"))
}

/// Answers the node of that name, which was asked by whoever may.
#[must_use]
pub async fn answer_node(worker: &Worker, from: &str, asked: &[u8]) -> Response<Body> {
    let answered = match serde_json::from_slice::<ApprovalWish<'_>>(asked) {
        Ok(wish) => fulfil(worker, from, &wish).await,
        Err(error) => Err(ApiError::new(StatusCode::BAD_REQUEST, error)),
    };
    let (status, body) = match answered {
        Ok(data) => (StatusCode::OK, data),
        Err(error) => (error.status, error.message.into()),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn fulfil(worker: &Worker, from: &str, wish: &ApprovalWish<'_>) -> Result<Bytes, ApiError> {
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
            answer_here(worker, id, answer.get().as_bytes(), by).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::BootId;
    use crate::fleet::living_nodes::NodeWatch;

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

    #[tokio::test]
    async fn an_answer_that_begins_and_does_not_end_is_none() {
        let never = std::future::pending::<Result<Bytes, PeerError>>();
        let late = in_time("a", Duration::ZERO, never).await.unwrap_err();
        assert!(matches!(late, PeerError::Unanswered { .. }), "{late}");
        assert_eq!(in_time("a", ANSWER_LIMIT, async { Ok(7) }).await, Ok(7));
    }

    fn view(state: NodeState, silent: Duration) -> NodeView {
        NodeView {
            name: NodeName::parse("a").unwrap(),
            is_self: false,
            state,
            heartbeat: None,
            skew_ms: None,
            silent_ms: silent.as_millis() as u64,
            fault: None,
            twice: false,
        }
    }

    #[test]
    fn only_of_a_call_that_cannot_wait_any_more_it_is_said_that_it_is_gone() {
        let long = MAX_TIMEOUT + Duration::from_secs(1);
        for (state, silent, status, words) in [
            (NodeState::Stopped, Duration::ZERO, 410, "lives no more"),
            (NodeState::Silent, long, 410, "lives no more"),
            (NodeState::Silent, Duration::from_secs(7), 503, "has said nothing for 7 s"),
            (NodeState::Unknown, Duration::ZERO, 503, "not known yet whether it lives"),
        ] {
            let error = not_asked("x", "a", Some(&view(state, silent)));
            assert_eq!(error.status.as_u16(), status, "{state:?}");
            assert!(error.message.contains(words), "{}", error.message);
        }
        assert_eq!(not_asked("x", "a", None).status.as_u16(), 410);
    }

    #[test]
    fn while_it_is_not_known_which_nodes_there_are_no_call_is_unknown_and_no_list_whole() {
        let [own, a] = ["me", "a"].map(|name| NodeName::parse(name).unwrap());
        let mark = NodeTag::of(&a).text();
        let found = |living: &LivingNodes| {
            let found = holder(living, "x", &mark).map(|view| view.map(|it| it.state));
            found.map_err(|error| (error.status.as_u16(), error.retry_after.is_some()))
        };
        let mut watch = NodeWatch::new(own, BootId([9; 16]));
        let none = LivingNodes::default();
        for (living, words) in [
            (none.clone(), "not seen yet"),
            (none.unseen("no way there".to_owned()), "no way there"),
            (watch.snapshot(Some("no way there".to_owned())), "no way there"),
        ] {
            assert_eq!(found(&living), Err((503, true)));
            assert!(holder(&living, "x", &mark).unwrap_err().message.contains(words));
            let unseen = unseen(&living);
            assert!(unseen.len() == 1 && unseen[0].why.contains(words), "{unseen:?}");
        }
        assert_eq!(
            (found(&watch.snapshot(None)), unseen(&watch.snapshot(None)).len()),
            (Ok(None), 0)
        );
        watch.there_are([a.clone()]);
        let listed = watch.snapshot(None);
        assert_eq!((found(&listed), unseen(&listed).len()), (Ok(Some(NodeState::Unknown)), 1));
    }

    #[test]
    fn of_a_list_that_is_too_long_the_newest_are_left_out_and_counted() {
        let listed = |from: usize, to: usize| {
            (from..to).map(|at| {
                let since = format!("{at:05}");
                ApprovalView::of_since(&since)
            })
        };
        let mut gathered = Gathered::default();
        gathered.add(listed(4000, 8000));
        gathered.add(listed(0, 4000));
        assert_eq!((gathered.approvals.len(), gathered.left_out), (MAX_LISTED, 8000 - MAX_LISTED));
        assert_eq!(gathered.approvals[0].since().unwrap(), "00000");
        assert_eq!(gathered.approvals[MAX_LISTED - 1].since().unwrap(), "04095");
    }
}
