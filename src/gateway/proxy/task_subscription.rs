//! Status notifications of tasks for a client of 2026-07-28 (MCP Tasks extension §Task Status Notifications; PRO-43).
//!
//! A notification of a server only says that a task has changed: the client is sent what `tasks/get` answers then, which is
//! asked on its behalf, and admitted, judged and recorded like its own request. A result cannot reach it in another way.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mcpproxy_json::members::members;
use mcpproxy_policy::TaskRequest;
use mcpproxy_protocol::mcp::known_extensions::TASKS_EXTENSION;
use mcpproxy_protocol::mcp::meta::{CAPABILITIES_KEY, EXTENSIONS};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::TaskFollower;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Peer;
use super::reply::{Piece, Reaction, Running};
use super::tasks;
use super::worker::Worker;

/// Maximum tasks of one subscription; more are not agreed to.
const MAX_TASKS: usize = 64;
/// Minimum time between two requests of one subscription, however often its server reports changes.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The tasks of one subscription.
pub(crate) struct TaskSubscription {
    worker: Rc<Worker>,
    peer: Peer,
    /// Raw id of the request that subscribed.
    id: Bytes,
    followed: Vec<Followed>,
    /// A changed task that is not asked about yet, as its place in `followed`.
    changed: Option<usize>,
    /// When the next request may be sent.
    not_before: Instant,
    /// The request about a changed task.
    fetching: Option<Running>,
}

struct Followed {
    sealed: String,
    follower: TaskFollower,
}

impl TaskSubscription {
    /// Follows those of the client's tasks that exist.
    pub(crate) fn begin(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, wanted: Vec<String>) -> Self {
        let mut followed: Vec<Followed> = Vec::new();
        for sealed in wanted.into_iter().take(MAX_TASKS) {
            let is_known = followed.iter().any(|known| known.sealed == sealed);
            let opened =
                worker.proxy.approvals.open_task(&sealed, &peer.principal, SystemTime::now());
            let shown = opened.filter(|task| {
                !is_known && peer.endpoint.server().is_none_or(|only| **only == *task.server)
            });
            let Some(task) = shown else { continue };
            let upstream = worker.proxy.upstreams.get(&task.server);
            let upstream = upstream.filter(|it| it.family() == ProtocolFamily::Modern);
            let follower = upstream.and_then(|it| it.follow_task(Arc::from(task.id)));
            followed.extend(follower.map(|follower| Followed { sealed, follower }));
        }
        Self {
            worker: Rc::clone(worker),
            peer: peer.clone(),
            id: id.clone(),
            followed,
            changed: None,
            not_before: Instant::now(),
            fetching: None,
        }
    }

    /// The client's ids of the tasks that are followed.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.followed.iter().map(|followed| followed.sealed.clone()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }

    /// Params of the next notification with this `_meta`; waits forever if no task is followed. Cancel-safe.
    pub(crate) async fn next(&mut self, meta: &Value) -> String {
        loop {
            if let Some(running) = &mut self.fetching {
                let piece = running.next().await;
                if let Some(Ok(Piece::Notification(_) | Piece::Alive)) = piece {
                    continue;
                }
                if let Some(running) = self.fetching.take() {
                    self.worker.defer(running);
                }
                if let Some(Ok(Piece::Whole(AnswerMember::Result, result))) = piece
                    && let Some(params) = params(result, meta)
                {
                    return params;
                }
                continue;
            }
            match self.changed {
                Some(at) => {
                    tokio::time::sleep_until(self.not_before).await;
                    self.not_before = Instant::now() + MIN_INTERVAL;
                    self.changed = None;
                    self.fetching = self.fetch(at);
                }
                None => self.changed = Some(self.wait().await),
            }
        }
    }

    /// Waits for a change; the place of the task.
    async fn wait(&mut self) -> usize {
        let followers = self.followed.iter_mut().enumerate();
        let mut waiting: FuturesUnordered<_> = followers
            .map(|(at, followed)| async move { (at, followed.follower.changed().await) })
            .collect();
        loop {
            match waiting.next().await {
                Some((at, Some(()))) => return at,
                Some((_, None)) => {}
                None => pending().await,
            }
        }
    }

    /// Asks for the state of a task on behalf of the client.
    fn fetch(&self, at: usize) -> Option<Running> {
        let Followed { sealed, .. } = self.followed.get(at)?;
        let capabilities = json!({EXTENSIONS: {TASKS_EXTENSION: {}}});
        let params = json!({"taskId": sealed, "_meta": {CAPABILITIES_KEY: capabilities}});
        let params = Bytes::from(params.to_string());
        let (worker, id) = (&self.worker, self.id.clone());
        match tasks::forward(worker, &self.peer, id, TaskRequest::Get, params) {
            Reaction::Call { running, .. } => Some(running),
            Reaction::Noted
            | Reaction::Answer(_)
            | Reaction::Error(..)
            | Reaction::Cancel(_)
            | Reaction::Listen { .. }
            | Reaction::Initialize(_) => None,
        }
    }
}

/// The state of a task as the params of a notification, each value as in the answer.
fn params(result: Splice, meta: &Value) -> Option<String> {
    let whole: Vec<u8> = result.into_iter().flatten().collect();
    let mut params = format!("{{\"_meta\":{meta}");
    for member in members(std::str::from_utf8(&whole).ok()?).ok()? {
        let (name, value) = member.ok()?;
        if !matches!(&*name, "_meta" | "resultType") {
            params.extend([",", &Value::from(&*name).to_string(), ":", value]);
        }
    }
    params.push('}');
    Some(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_notification_has_the_values_of_the_answer() {
        let answer = Bytes::from_static(
            br#"{ "resultType":"complete","taskId":"x","_meta":{"a":1},"result":{"n" : 1.0e5} }"#,
        );
        let mut parts = Splice::from(answer.slice(..20));
        parts.push(answer.slice(20..));
        assert_eq!(
            params(parts, &json!({"k": 1})).as_deref(),
            Some(r#"{"_meta":{"k":1},"taskId":"x","result":{"n" : 1.0e5}}"#)
        );
        assert_eq!(params(Splice::new(), &json!({})), None);
    }
}
