//! Lists and status notifications of tasks for clients of 2025-11-25 (MCP 2025-11-25 §Listing Tasks, §Task Status
//! Notification; PRO-43).
//!
//! Both are made of what `tasks/get` answers about the client's own tasks, as [`known_tasks`](super::known_tasks) has them.
//! Each is asked on the client's behalf, and admitted, judged and recorded like its own request. A server's list names the
//! tasks of all principals, and its cursors count them, so it is not asked for; what a server notifies of only says that a
//! task has changed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future;
use mcpproxy_json::members::{member, members, string};
use mcpproxy_policy::TaskRequest;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_schema::output::AnswerMember;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Channel, Peer};
use super::known_tasks::{ListedTask, TaskPage};
use super::passthrough::list_cache::LIST_WAIT;
use super::refusal::{Refusal, RefusalKind};
use super::reply::{Piece, Reaction, Running};
use super::tasks;
use super::worker::Worker;

/// Maximum size of one task in a list, and in a notification, in bytes.
const MAX_STATE_BYTES: usize = 64 * 1024;
/// Minimum time between two notifications of one session, however often its servers report changes.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Id of the requests behind notifications, in records.
const NOTIFIED_ID: &[u8] = b"\"notifications/tasks/status\"";

/// Answers `tasks/list` with one page of the client's tasks.
pub(crate) fn list(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let Some(after) = position(params) else {
        let text = "Invalid params: cursor is not one of this list";
        return Reaction::error(id, Code::InvalidParams, text);
    };
    let (worker, peer, asked) = (Rc::clone(worker), quiet(peer), id.clone());
    let running = Running::new(|reply| async move {
        let page = worker.proxy.known_tasks.page(&peer, after, clock::now());
        reply.put(match fetched(&worker, &peer, &asked, page).await {
            Ok(result) => Piece::Whole(AnswerMember::Result, Splice::from(result)),
            Err(refusal) => Piece::Refused(refusal),
        });
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Position in a client's params; `None` if its cursor is not one of ours.
fn position(params: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct ListParams {
        cursor: Option<String>,
    }
    let params: ListParams = serde_json::from_slice(params).ok()?;
    params.cursor.map_or(Some(0), |cursor| cursor.parse().ok())
}

/// The peer for requests on its behalf: messages that precede their answers have no recipient.
fn quiet(peer: &Peer) -> Peer {
    Peer { channel: Channel::Answer, headers: None, ..peer.clone() }
}

/// The tasks of a page as their servers state them. A task that cannot be fetched is left out; if none could be fetched, the
/// first refusal is the answer.
async fn fetched(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: &Bytes,
    page: TaskPage,
) -> Result<Bytes, Refusal> {
    let mut servers: Vec<Vec<ListedTask>> = Vec::new();
    for task in page.tasks {
        let same = |of: &&mut Vec<ListedTask>| of.iter().any(|other| other.server == task.server);
        match servers.iter_mut().find(same) {
            Some(tasks) => tasks.push(task),
            None => servers.push(vec![task]),
        }
    }
    let servers = servers.into_iter().map(|tasks| of_server(worker, peer, id, tasks));
    let (mut states, mut refused) = (Vec::new(), None);
    for of in future::join_all(servers).await {
        states.extend(of.states);
        refused = refused.or(of.refused);
    }
    if let (true, Some(refusal)) = (states.is_empty(), refused) {
        return Err(refusal);
    }
    states.sort_unstable_by_key(|(number, _)| *number);
    let states: Vec<_> = states.into_iter().map(|(_, state)| state).collect();
    let next = page.next.map(|next| format!(",\"nextCursor\":\"{next}\"")).unwrap_or_default();
    Ok(format!("{{\"tasks\":[{}]{next}}}", states.join(",")).into())
}

/// The fetched tasks of one server.
#[derive(Default)]
struct ServerTasks {
    /// Each with its place in the list.
    states: Vec<(u64, String)>,
    /// Why the first one that is missing could not be fetched.
    refused: Option<Refusal>,
}

/// Fetches tasks of one server one after another, in the time that any server has for a list.
async fn of_server(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: &Bytes,
    tasks: Vec<ListedTask>,
) -> ServerTasks {
    let mut of = ServerTasks::default();
    let deadline = Instant::now() + LIST_WAIT;
    for ListedTask { number, server, sealed } in tasks {
        let mut running = get(worker, peer, id, &sealed);
        let Ok(piece) = tokio::time::timeout_at(deadline, answer(&mut running)).await else {
            let text = format!("{server}: tasks/list: no answer within {LIST_WAIT:?}");
            running.give_up(text.clone());
            of.refused.get_or_insert(Refusal::failed(RefusalKind::Failed, text));
            break;
        };
        worker.defer(running);
        match piece {
            Some(Piece::Refused(refusal)) => drop(of.refused.get_or_insert(refusal)),
            Some(piece) => {
                of.states.extend(stated(worker, piece, &sealed).map(|state| (number, state)));
            }
            None => {}
        }
    }
    of
}

/// Asks for the state of a task on behalf of the client, under the raw id of its own request.
fn get(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, sealed: &str) -> Running {
    let params = Bytes::from(json!({ "taskId": sealed }).to_string());
    tasks::running(worker, peer, id, TaskRequest::Get, params)
}

/// The piece that ends the reply; `None` if it broke off. Cancel-safe.
async fn answer(running: &mut Running) -> Option<Piece> {
    loop {
        match running.next().await?.ok()? {
            Piece::Notification(_) | Piece::Request(_) | Piece::Alive => {}
            piece @ (Piece::Whole(..) | Piece::Begin(_) | Piece::Data(_) | Piece::Refused(_)) => {
                return Some(piece);
            }
        }
    }
}

/// The state of a task in an answer to `tasks/get`. A task that its server does not know is removed from the table.
fn stated(worker: &Worker, piece: Piece, sealed: &str) -> Option<String> {
    match piece {
        Piece::Whole(AnswerMember::Result, result) => state(result, sealed),
        Piece::Whole(AnswerMember::Error, error) => {
            if is_unknown(error) {
                worker.proxy.known_tasks.gone(sealed);
            }
            None
        }
        Piece::Notification(_)
        | Piece::Request(_)
        | Piece::Alive
        | Piece::Begin(_)
        | Piece::Data(_)
        | Piece::Refused(_) => None,
    }
}

/// A task without what belongs to the answer, each value as in that. `None` if it is too long or states no id.
fn state(result: Splice, sealed: &str) -> Option<String> {
    if result.len() > MAX_STATE_BYTES {
        return None;
    }
    let whole: Vec<u8> = result.into_iter().flatten().collect();
    let whole = std::str::from_utf8(&whole).ok()?;
    if string(member(whole, "taskId")?)? != sealed {
        return None;
    }
    let mut state = String::with_capacity(whole.len());
    for member in members(whole).ok()? {
        let (name, value) = member.ok()?;
        if !matches!(&*name, "_meta" | "resultType") {
            let comma = if state.is_empty() { "{" } else { "," };
            state.extend([comma, &Value::from(&*name).to_string(), ":", value]);
        }
    }
    state.push('}');
    Some(state)
}

/// Whether an error says that there is no such task (MCP 2025-11-25 §Protocol Errors).
fn is_unknown(error: Splice) -> bool {
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
    }
    let whole: Vec<u8> = error.into_iter().flatten().collect();
    serde_json::from_slice::<RpcError>(&whole)
        .is_ok_and(|error| error.code == Code::InvalidParams as i64)
}

/// Source of the status notifications of one session, for its only stream of notifications.
pub(crate) struct TaskStatuses {
    worker: Rc<Worker>,
    peer: Peer,
    /// A changed task that is not asked about yet.
    changed: Option<Arc<str>>,
    /// When the next request may be sent.
    not_before: Instant,
    /// The request about a changed task, by its sealed id.
    fetching: Option<(Arc<str>, Running)>,
}

impl TaskStatuses {
    /// The notifications for a client.
    pub(crate) fn of(worker: &Rc<Worker>, peer: &Peer) -> Self {
        Self {
            worker: Rc::clone(worker),
            peer: quiet(peer),
            changed: None,
            not_before: Instant::now(),
            fetching: None,
        }
    }

    /// The next notification. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Bytes {
        loop {
            if let Some((_, running)) = &mut self.fetching {
                let piece = answer(running).await;
                let Some((sealed, running)) = self.fetching.take() else { continue };
                self.worker.defer(running);
                if let Some(state) = piece.and_then(|it| stated(&self.worker, it, &sealed)) {
                    return notification(&state);
                }
                continue;
            }
            match &self.changed {
                Some(sealed) => {
                    tokio::time::sleep_until(self.not_before).await;
                    self.not_before = Instant::now() + MIN_INTERVAL;
                    let id = Bytes::from_static(NOTIFIED_ID);
                    let running = get(&self.worker, &self.peer, &id, sealed);
                    self.fetching = self.changed.take().map(|sealed| (sealed, running));
                }
                None => self.changed = Some(self.peer.client.changed_tasks.next().await),
            }
        }
    }
}

fn notification(state: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{state}}}"#).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_state_has_the_values_of_the_answer() {
        let answer = br#"{ "resultType":"complete","taskId":"x" ,"_meta":{"a":1},"ttl" : 6.0e4 }"#;
        let mut parts = Splice::from(Bytes::from_static(&answer[..20]));
        parts.push(Bytes::from_static(&answer[20..]));
        assert_eq!(state(parts, "x").as_deref(), Some(r#"{"taskId":"x","ttl":6.0e4}"#));
        let long = format!(r#"{{"taskId":"x","y":"{}"}}"#, "y".repeat(MAX_STATE_BYTES));
        for unusable in [r#"{"taskId":"y"}"#, r#"{"status":"working"}"#, "7", "", &long] {
            assert_eq!(state(Bytes::from(unusable.to_owned()).into(), "x"), None, "{unusable}");
        }
    }

    #[test]
    fn pro_43_cursor_of_another_list_is_refused() {
        for (params, expected) in [
            ("{}", Some(0)),
            (r#"{"cursor":null}"#, Some(0)),
            (r#"{"cursor":"7"}"#, Some(7)),
            (r#"{"cursor":"x"}"#, None),
            (r#"{"cursor":"-7"}"#, None),
            (r#"{"cursor":7}"#, None),
            ("[]", None),
        ] {
            assert_eq!(position(params.as_bytes()), expected, "{params}");
        }
    }

    #[test]
    fn pro_43_unknown_task_is_distinguished_from_a_failure() {
        let error = |text: &'static str| is_unknown(Bytes::from_static(text.as_bytes()).into());
        assert!(error(r#"{"code":-32602,"message":"gone"}"#));
        assert!(!error(r#"{"code":-32603}"#) && !error("7"));
    }
}
