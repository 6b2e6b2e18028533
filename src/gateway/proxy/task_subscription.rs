//! Status notifications of tasks for a client of 2026-07-28 (MCP Tasks extension §Task Status Notifications; PRO-43).
//!
//! A notification of a server only says that a task has changed: the client is sent what `tasks/get` answers then, which is
//! asked on its behalf, and admitted, judged and recorded like its own request. A result cannot reach it in another way.
//! A request that is refused for a reason that may pass is repeated with backoff, a limited number of times; the state at
//! that time is what the client gets.
//!
//! Following a task is admitted like `tasks/get`, and recorded. Each principal has a share of followed tasks.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use mcpproxy_json::members::{member, members};
use mcpproxy_policy::{StateCharge, TaskRequest};
use mcpproxy_protocol::mcp::known_extensions::TASKS_EXTENSION;
use mcpproxy_protocol::mcp::lifecycle;
use mcpproxy_protocol::mcp::meta::{CAPABILITIES_KEY, EXTENSIONS};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::{TaskFollower, Upstream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call_trace::CallTrace;
use super::client::{Endpoint, Peer};
use super::recorded::{OnRecord, ReplySource, recorded};
use super::refusal::{RecordKind, Refusal, RefusalKind};
use super::reply::{Aborted, Piece, Reply, Running};
use super::task_shares::{MAX_TASKS_PER_PRINCIPAL, TaskShare};
use super::tasks;
use super::worker::Worker;

/// Maximum tasks of one subscription; more are not agreed to.
const MAX_TASKS: usize = 64;
/// Memory charge of a followed task besides its sealed id.
const BESIDE_ID_BYTES: usize = 1024;
/// Maximum wait for a server whose tools are not known yet, when a subscription is made.
const TOOL_WAIT: Duration = Duration::from_secs(5);
/// Minimum time between two requests of one subscription, however often its server reports changes.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum and maximum delay before a refused request is repeated.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum time that a refusal may ask to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Maximum repetitions of a request that is refused, until its task changes again.
const MAX_RETRIES: u32 = 8;

const LISTEN: &str = "subscriptions/listen";

/// The tasks of one subscription.
pub(crate) struct TaskSubscription {
    worker: Rc<Worker>,
    peer: Peer,
    /// Raw id of the request that subscribed.
    id: Bytes,
    followed: Vec<Followed>,
    /// When the next request may be sent.
    not_before: Instant,
    /// The request about a changed task, with its place in `followed`.
    fetching: Option<(usize, Running)>,
}

struct Followed {
    sealed: String,
    follower: TaskFollower,
    due: Due,
    _share: TaskShare,
    _charge: StateCharge,
}

/// When the state of a changed task is fetched.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    at: Option<Instant>,
    /// How often the request was refused since the last change.
    refused: u32,
}

impl Due {
    /// The task has changed; a repetition that is due keeps its time.
    fn changed(&mut self, now: Instant) {
        self.refused = 0;
        self.at.get_or_insert(now);
    }

    /// The request was refused, with this time to wait if known; false if it is not repeated any more.
    fn refused(&mut self, now: Instant, after: Option<Duration>) -> bool {
        if self.refused >= MAX_RETRIES {
            self.refused = 0;
            return false;
        }
        let delay = RETRY.0.saturating_mul(1 << self.refused).min(RETRY.1);
        let asked = after.unwrap_or_default().min(MAX_RETRY_AFTER);
        self.refused += 1;
        self.at = Some(now + delay.max(asked));
        true
    }
}

/// Outcome of a request about a changed task.
#[derive(Debug, PartialEq, Eq)]
enum Fetched {
    /// Params of the notification.
    State(String),
    /// It may succeed later, after this time if known.
    RefusedForNow(Option<Duration>),
    /// The client gets nothing.
    Nothing,
}

impl Fetched {
    fn of(last: Option<Result<Piece, Aborted>>, meta: &Value) -> Self {
        match last {
            Some(Ok(Piece::Whole(AnswerMember::Result, result))) => {
                params(result, meta).map_or(Self::Nothing, Self::State)
            }
            Some(Ok(Piece::Whole(AnswerMember::Error, error))) => match is_lasting(error) {
                true => Self::Nothing,
                false => Self::RefusedForNow(None),
            },
            Some(Ok(Piece::Refused(refusal))) => match refusal.may_pass {
                true => Self::RefusedForNow(refusal.retry_after),
                false => Self::Nothing,
            },
            Some(Err(Aborted(_))) | None => Self::RefusedForNow(None),
            Some(Ok(
                Piece::Notification(_)
                | Piece::Request(_)
                | Piece::Alive
                | Piece::Begin(_)
                | Piece::Data(_),
            )) => Self::Nothing,
        }
    }
}

/// Whether the server gives this JSON-RPC error to every repetition of the request.
fn is_lasting(error: Splice) -> bool {
    let whole: Vec<u8> = error.into_iter().flatten().collect();
    let code = std::str::from_utf8(&whole).ok().and_then(|text| member(text, "code"));
    code.and_then(|code| code.parse().ok()).is_some_and(lifecycle::is_lasting)
}

impl TaskSubscription {
    /// Follows those of the client's tasks that it may ask about.
    pub(crate) async fn begin(
        worker: &Rc<Worker>,
        peer: &Peer,
        id: &Bytes,
        wanted: Vec<String>,
    ) -> Self {
        let mut distinct: Vec<String> = Vec::new();
        for sealed in wanted.into_iter().take(MAX_TASKS) {
            if !distinct.contains(&sealed) {
                distinct.push(sealed);
            }
        }
        let following = distinct.into_iter().map(|sealed| follow(worker, peer, id, sealed));
        Self {
            worker: Rc::clone(worker),
            peer: peer.clone(),
            id: id.clone(),
            followed: join_all(following).await.into_iter().flatten().collect(),
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
            if let Some((at, running)) = &mut self.fetching {
                let (at, piece) = (*at, running.next().await);
                if let Some(Ok(Piece::Notification(_) | Piece::Alive)) = piece {
                    continue;
                }
                if let Some((_, running)) = self.fetching.take() {
                    self.worker.defer(running);
                }
                if let Some(params) = self.fetched(at, Fetched::of(piece, meta)) {
                    return params;
                }
                continue;
            }
            let due = self.due();
            tokio::select! {
                () = changed(&mut self.followed) => {}
                at = elapsed(due) => {
                    self.not_before = Instant::now() + MIN_INTERVAL;
                    self.fetching = self.fetch(at).map(|running| (at, running));
                }
            }
        }
    }

    /// The changed task that is asked about next, and when.
    fn due(&self) -> Option<(Instant, usize)> {
        let due = self.followed.iter().enumerate();
        let (at, place) = due.filter_map(|(at, it)| Some((it.due.at?, at))).min()?;
        Some((at.max(self.not_before), place))
    }

    /// Takes the outcome of a request about a task; the params of a notification if there is one.
    fn fetched(&mut self, at: usize, fetched: Fetched) -> Option<String> {
        let due = &mut self.followed.get_mut(at)?.due;
        match fetched {
            Fetched::State(params) => {
                due.refused = 0;
                return Some(params);
            }
            Fetched::Nothing => due.refused = 0,
            Fetched::RefusedForNow(after) => {
                if !due.refused(Instant::now(), after) {
                    let principal = self.peer.principal.id();
                    peer_line!(info, LinePeer::Client(principal), %principal, "the state of a changed task could not be fetched for its subscriber");
                }
            }
        }
        None
    }

    /// Asks for the state of a task on behalf of the client.
    fn fetch(&mut self, at: usize) -> Option<Running> {
        let Followed { sealed, due, .. } = self.followed.get_mut(at)?;
        due.at = None;
        let capabilities = json!({EXTENSIONS: {TASKS_EXTENSION: {}}});
        let params = json!({"taskId": sealed, "_meta": {CAPABILITIES_KEY: capabilities}});
        let params = Bytes::from(params.to_string());
        Some(tasks::running(&self.worker, &self.peer, &self.id, TaskRequest::Get, params))
    }
}

/// Waits for a change and notes it. Cancel-safe.
async fn changed(followed: &mut [Followed]) {
    let mut waiting: FuturesUnordered<_> = followed
        .iter_mut()
        .map(|Followed { follower, due, .. }| async move {
            follower.changed().await;
            due.changed(Instant::now());
        })
        .collect();
    if waiting.next().await.is_none() {
        pending().await
    }
}

/// Waits until that time; the place that comes with it.
async fn elapsed(due: Option<(Instant, usize)>) -> usize {
    match due {
        Some((at, place)) => {
            tokio::time::sleep_until(at).await;
            place
        }
        None => pending().await,
    }
}

/// Follows a task if the client may ask about it now. That is a request of its own, on record; the acknowledgement of the
/// subscription is its only reply.
async fn follow(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, sealed: String) -> Option<Followed> {
    let mut followed = None;
    let at_call_tools = peer.endpoint == Endpoint::Search;
    let kind = RecordKind::Task { request: TaskRequest::Get, at_call_tools };
    let work = async |on: OnRecord<'_>| {
        let mut on = on;
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
        // Its tool is known, so its family is, too.
        let may_notify = |it: &Arc<Upstream>| it.family() == ProtocolFamily::Modern;
        let upstream = upstream.filter(may_notify);
        let upstream = upstream.ok_or_else(|| Refusal::no_server(&task.server))?;
        let too_many = |text| Refusal::rejected(RefusalKind::Limited, text);
        let principal = &on.caller.principal;
        let share = proxy.followed_tasks.take(principal).ok_or_else(|| {
            let who = principal.id();
            too_many(format!("'{who}' follows {MAX_TASKS_PER_PRINCIPAL} tasks, which is the limit"))
        })?;
        let account = proxy.state_accounts.of(principal);
        let charge = account.charge(sealed.len() + BESIDE_ID_BYTES);
        let charge = charge.map_err(|full| too_many(full.to_string()))?;
        let follower = upstream.follow_task(Arc::from(task.id)).ok_or_else(|| {
            too_many(format!("{}: too many tasks of the server are followed", task.server))
        })?;
        let due = Due::default();
        followed = Some((follower, due, share, charge));
        Ok(ReplySource::Own(Bytes::from_static(b"{}")))
    };
    let caller = peer.caller(id);
    let trace = CallTrace::begin(worker, &caller, kind.method(), || None);
    let _ = recorded(Rc::clone(worker), caller, (kind, trace), Reply::default(), work).await;
    let (follower, due, share, charge) = followed?;
    Some(Followed { sealed, follower, due, _share: share, _charge: charge })
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
    fn pro_43_refused_request_is_repeated_with_backoff_a_limited_number_of_times() {
        let (now, mut due) = (Instant::now(), Due::default());
        due.changed(now);
        assert_eq!(due.at, Some(now));
        let mut delays = Vec::new();
        loop {
            due.at = None;
            if !due.refused(now, None) {
                break;
            }
            delays.extend(due.at.map(|at| (at - now).as_secs()));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(due, Due::default(), "it waits for the next change");
        for (asked, expected) in [(30, 30), (6000, 600)] {
            let mut due = Due::default();
            due.refused(now, Some(Duration::from_secs(asked)));
            assert_eq!(due.at, Some(now + Duration::from_secs(expected)));
            // A change does not hasten it, but may be repeated as often as the first.
            due.changed(now);
            assert_eq!(due, Due { at: Some(now + Duration::from_secs(expected)), refused: 0 });
        }
    }

    #[test]
    fn pro_43_only_refusals_that_may_pass_are_repeated() {
        let refused = |kind| Piece::Refused(Refusal::rejected(kind, "no".into()));
        let error = |code: i32| {
            let error = json!({"code": code, "message": "no"}).to_string();
            Piece::Whole(AnswerMember::Error, Splice::from(Bytes::from(error)))
        };
        for (piece, is_repeated) in [
            (refused(RefusalKind::Limited), true),
            (refused(RefusalKind::Upstream), true),
            (refused(RefusalKind::Unavailable), true),
            (refused(RefusalKind::Gate), false),
            (refused(RefusalKind::Unreadable), false),
            (error(-32000), true),
            (error(-32603), true),
            (error(-32602), false),
        ] {
            let shown = format!("{piece:?}");
            let fetched = Fetched::of(Some(Ok(piece)), &json!({}));
            let expected =
                if is_repeated { Fetched::RefusedForNow(None) } else { Fetched::Nothing };
            assert_eq!(fetched, expected, "{shown}");
        }
        let broken = Some(Err(Aborted("gone".into())));
        assert_eq!(Fetched::of(broken, &json!({})), Fetched::RefusedForNow(None));
    }

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
