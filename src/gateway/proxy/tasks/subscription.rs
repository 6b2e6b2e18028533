//! Status notifications of tasks for a client of 2026-07-28 (MCP Tasks extension §Task Status Notifications; PRO-43).
//!
//! States of changed tasks are fetched as described in [`changed`](super::changed). A task is no longer
//! followed once its final state was delivered.
//!
//! Following a task is admitted like `tasks/get`, and recorded. Each principal has a share of followed tasks. A
//! subscription ends when one of its tasks loses its slot at the server to another principal; the acknowledgment of
//! the next subscription names the tasks that are followed then.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use mcpproxy_policy::{Principal, StateCharge, TaskRequest};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::keyed_counts::CountedUse;
use mcpproxy_upstream::{GivenUp, TaskFollower, Upstream};
use serde_json::Value;
use tokio::time::Instant;

use super::changed::{DueTask, FetchDue, FetchOutcome};
use super::state_fetches::StateFetches;
use crate::proxy::client::Peer;
use crate::proxy::recorded::{OnRecord, RecordedRequest, ReplySource};
use crate::proxy::refusal::{Refusal, RefusalKind};
use crate::proxy::reply::Reply;
use crate::proxy::tasks;
use crate::proxy::worker::Worker;

/// Maximum number of tasks of one subscription; further ones are not acknowledged.
const MAX_TASKS: usize = 64;
/// Maximum number of followed tasks of one principal, over all its subscriptions; further ones are not acknowledged.
const MAX_TASKS_PER_PRINCIPAL: usize = 256;
/// Memory charge of a followed task besides its sealed id.
const BESIDE_ID_BYTES: usize = 1024;
/// Maximum wait, at the start of a subscription, for a server whose tools are not known yet.
const TOOL_WAIT: Duration = Duration::from_secs(5);

const LISTEN: &str = "subscriptions/listen";

pub struct TaskSubscription {
    fetches: StateFetches,
    followed: Vec<Followed>,
}

struct Followed {
    sealed: Arc<str>,
    follower: TaskFollower,
    due: FetchDue,
    _share: CountedUse<Principal>,
    _charge: StateCharge,
}

impl TaskSubscription {
    /// Follows those of the client's tasks that it may ask about.
    pub async fn begin(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, wanted: Vec<String>) -> Self {
        let mut distinct: Vec<String> = Vec::new();
        for sealed in wanted.into_iter().take(MAX_TASKS) {
            if !distinct.contains(&sealed) {
                distinct.push(sealed);
            }
        }
        let following = distinct.into_iter().map(|sealed| follow(worker, peer, id, sealed));
        let followed = join_all(following).await.into_iter().flatten().collect();
        Self { fetches: StateFetches::new(worker, peer.clone(), id.clone()), followed }
    }

    /// Ids of the followed tasks, as the client knows them.
    pub fn ids(&self) -> Vec<String> {
        self.followed.iter().map(|followed| followed.sealed.to_string()).collect()
    }

    /// Params of the next notification with this `_meta`; waits forever if no task is followed. `None` if a task
    /// lost its slot, which ends the subscription. Cancel-safe.
    pub async fn next(&mut self, meta: &Value) -> Option<String> {
        loop {
            if let Some(outcome) = self.fetches.outcome().await {
                if let Some(members) = self.fetched(outcome) {
                    return Some(format!("{{\"_meta\":{meta},{members}}}"));
                }
                continue;
            }
            let due = self.due();
            tokio::select! {
                changed = changed(&mut self.followed) => if let Err(GivenUp) = changed {
                    let principal = self.fetches.peer.principal.id();
                    peer_line!(info, LinePeer::Client(principal), %principal, "task subscription ended: another principal takes the slot of one of its tasks");
                    return None;
                },
                () = self.fetches.begin(due) => {}
            }
        }
    }

    /// Next task whose state is fetched.
    fn due(&self) -> Option<DueTask> {
        let due = self.followed.iter().filter_map(|it| it.due.task(&it.sealed));
        due.min_by_key(|it| it.at)
    }

    /// Applies the outcome of a request about a task; returns the members of its state for the client, if any. A
    /// task with a final state is no longer followed.
    fn fetched(&mut self, outcome: FetchOutcome) -> Option<String> {
        let place = self.followed.iter().position(|it| it.sealed == outcome.sealed)?;
        let is_over = outcome.fetched.is_over();
        let taken = self.followed.get_mut(place)?.due.take(outcome, Instant::now());
        if is_over {
            self.followed.remove(place);
        }
        self.fetches.state(taken).map(|state| state.members)
    }
}

/// Waits for a change and records it. Cancel-safe.
async fn changed(followed: &mut [Followed]) -> Result<(), GivenUp> {
    let mut waiting: FuturesUnordered<_> = followed
        .iter_mut()
        .map(|Followed { follower, due, .. }| async move {
            follower.changed().await?;
            due.changed(Instant::now());
            Ok(())
        })
        .collect();
    match waiting.next().await {
        Some(changed) => changed,
        None => pending().await,
    }
}

/// Follows a task if the client may ask about it now. This is a recorded request of its own; the acknowledgment of
/// the subscription is its only reply.
async fn follow(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, sealed: String) -> Option<Followed> {
    let mut followed = None;
    let work = async |mut on: OnRecord<'_>| {
        tasks::name(&mut on, LISTEN);
        let task = tasks::opened(&mut on, &peer.endpoint, &sealed)?;
        let finding = tasks::access(&mut on, &task, TaskRequest::Get);
        let access = tokio::time::timeout(TOOL_WAIT, finding).await.unwrap_or_else(|_| {
            let text = format!("{}: the server has not answered yet", task.server);
            Err(Refusal::rejected(RefusalKind::Upstream, text))
        })?;
        on.admit_at_once(access)?;
        let proxy = &worker.proxy;
        let upstream = proxy.upstreams.get(&task.server);
        // The task's tool is known, so the server's family is known, too.
        let may_notify = |it: &Arc<Upstream>| it.family() == ProtocolFamily::Modern;
        let upstream = upstream.filter(may_notify);
        let upstream = upstream.ok_or_else(|| Refusal::no_server(&task.server))?;
        let too_many = |text| Refusal::rejected(RefusalKind::Limited, text);
        let principal = &on.caller.principal;
        let max = MAX_TASKS_PER_PRINCIPAL;
        let share = proxy.followed_tasks.take(principal.clone(), max, usize::MAX);
        let share = share.map_err(|_| {
            let who = principal.id();
            too_many(format!("'{who}' follows {max} tasks, which is the limit"))
        })?;
        let account = proxy.state_accounts.of(principal);
        let charge = account.charge(sealed.len() + BESIDE_ID_BYTES);
        let charge = charge.map_err(|full| too_many(full.to_string()))?;
        let follower = upstream.follow_task(Arc::from(task.id), principal);
        let follower = follower.map_err(|full| too_many(format!("{}: {full}", task.server)))?;
        followed = Some((follower, share, charge));
        Ok(ReplySource::Own(Bytes::from_static(b"{}")))
    };
    let kind = tasks::kind(TaskRequest::Get, &peer.endpoint);
    let request = RecordedRequest::begin(worker, peer.caller(id), kind, || None);
    let _ = request.run(Reply::default(), work).await;
    let (follower, share, charge) = followed?;
    let (sealed, due) = (sealed.into(), FetchDue::default());
    Some(Followed { sealed, follower, due, _share: share, _charge: charge })
}
