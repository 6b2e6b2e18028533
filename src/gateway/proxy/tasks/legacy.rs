//! Lists and status notifications of tasks for clients of 2025-11-25 (MCP 2025-11-25 §Listing Tasks, §Task Status
//! Notification; PRO-43).
//!
//! Both are built from `tasks/get` answers about the client's own tasks, as listed in
//! [`known`](super::known). Each request is made on the client's behalf, and admitted, validated and
//! recorded like its own. A server's list names the tasks of all principals, and its cursors count them, so it is
//! never requested; a server's notification only signals that a task has changed.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_schema::output::AnswerMember;
use serde::Deserialize;
use tokio::time::Instant;

use super::changed::{Fetched, MAX_STATE_BYTES, TaskState};
use super::known::{ListedTask, TaskPage};
use super::state_fetches::{self, StateFetches};
use crate::proxy::client::{Channel, Peer};
use crate::proxy::passthrough::list_cache::LIST_WAIT;
use crate::proxy::refusal::{Refusal, RefusalKind};
use crate::proxy::reply::{Piece, Reaction, Running};
use crate::proxy::worker::Worker;

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

/// Position in a client's params; `None` for a foreign cursor.
fn position(params: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct ListParams {
        cursor: Option<String>,
    }
    let params: ListParams = serde_json::from_slice(params).ok()?;
    params.cursor.map_or(Some(0), |cursor| cursor.parse().ok())
}

/// Peer for requests that the proxy makes on behalf of `peer`. Messages that precede their answers have no recipient.
fn quiet(peer: &Peer) -> Peer {
    Peer { channel: Channel::Answer, headers: None, ..peer.clone() }
}

/// Fetches the tasks of a page from their servers. A task that cannot be fetched is left out; if none can, the
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

/// Fetched tasks of one server.
#[derive(Default)]
struct ServerTasks {
    /// States, each with its position in the list.
    states: Vec<(u64, String)>,
    /// Refusal of the first missing task.
    refused: Option<Refusal>,
}

/// Fetches tasks of one server one after another, within the time limit for a list.
async fn of_server(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: &Bytes,
    tasks: Vec<ListedTask>,
) -> ServerTasks {
    let mut of = ServerTasks::default();
    let deadline = Instant::now() + LIST_WAIT;
    for ListedTask { number, server, sealed } in tasks {
        let mut running = state_fetches::get(worker, peer, id, &sealed);
        let last = state_fetches::last(&mut running);
        let Ok(piece) = tokio::time::timeout_at(deadline, last).await else {
            let text = format!("{server}: tasks/list: no answer within {LIST_WAIT:?}");
            running.give_up(text.clone());
            of.refused.get_or_insert(Refusal::failed(RefusalKind::Failed, text));
            break;
        };
        worker.defer(running);
        match piece {
            Some(Piece::Refused(refusal)) => drop(of.refused.get_or_insert(refusal)),
            piece => match Fetched::of(piece, &sealed, MAX_STATE_BYTES) {
                Fetched::State(state) => of.states.push((number, object(&state))),
                Fetched::Gone => worker.proxy.known_tasks.gone(&sealed),
                Fetched::RefusedForNow(_) | Fetched::Nothing => {}
            },
        }
    }
    of
}

fn object(state: &TaskState) -> String {
    format!("{{{}}}", state.members)
}

/// Source of one session's status notifications, for its only notification stream. Changed tasks stay in the table
/// until their states are fetched; if this stream ends before, they are left for the next one.
pub struct TaskStatuses(StateFetches);

impl TaskStatuses {
    /// Notifications for a client.
    pub fn of(worker: &Rc<Worker>, peer: &Peer) -> Self {
        Self(StateFetches::new(worker, quiet(peer), Bytes::from_static(NOTIFIED_ID)))
    }

    /// Next notification. Cancel-safe.
    pub async fn next(&mut self) -> Bytes {
        let Self(fetches) = self;
        let (worker, client) = (Rc::clone(&fetches.worker), Arc::clone(&fetches.peer.client));
        let known = &worker.proxy.known_tasks;
        loop {
            if let Some(outcome) = fetches.outcome().await {
                let taken = known.fetched(outcome, clock::now());
                if let Some(state) = fetches.state(taken) {
                    return notification(&state);
                }
                continue;
            }
            // The future is created early, so that a notification before the await is not missed.
            let changed = client.task_changed.notified();
            let due = known.due(&client, clock::now());
            tokio::select! {
                () = changed => {}
                () = fetches.begin(due) => {}
            }
        }
    }
}

fn notification(state: &TaskState) -> Bytes {
    let params = object(state);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{params}}}"#).into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
