//! Tasks capability, on both sides of the proxy (PRO-43).
//!
//! Clients are offered tasks if a server that they can see supports them. A server is offered a client's tasks if
//! both have declared them, in the same protocol family. This module also defines the names of record members.

use std::time::Duration;

use bytes::Bytes;
use mcpproxy_policy::Access;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::known_extensions::TASKS_EXTENSION;
use mcpproxy_protocol::mcp::meta::{EXTENSIONS, declares_tasks};
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes::Left;
use mcpproxy_upstream::{Answer, CallExtras, Upstream};
use serde_json::{Value, json};

use crate::proxy::client::{Caller, Peer};
use crate::proxy::extension::merged::may_know;
use crate::proxy::params::TASK;
use crate::proxy::worker::Worker;

/// Member of `metadata` that joins the records of a task: of its call, and of requests about it.
pub(crate) const TASK_DIGITS: &str = "task";
/// Member of `metadata` with the status of a task, as the server stated it.
pub(crate) const TASK_STATUS: &str = "task_status";
/// Maximum wait for a server that has not answered since the start.
pub(crate) const SETTLE_WAIT: Duration = Duration::from_secs(5);

/// Classification of an answer that may be a task, or be about one.
#[derive(Debug)]
pub(crate) enum TaskAnswer {
    /// Result of a tool call while it may be a task; and whether client and server declared tasks.
    MayBe { declared: bool },
    /// Task created by the call, until its client receives it.
    Created(Box<CreatedIds>),
    /// Answer about the task with this sealed id.
    About(Box<str>),
}

/// Ids of a task created by a server.
#[derive(Debug)]
pub(crate) struct CreatedIds {
    /// The server's id.
    pub(crate) own: Box<str>,
    /// The client's id; empty if the system provides no random bytes.
    pub(crate) sealed: Box<str>,
}

impl TaskAnswer {
    /// Classifies an answer to `access`: about the task with this sealed id, or to a call that `creates` tasks.
    pub(crate) fn of(
        sealed: Option<Box<str>>,
        access: &Access,
        answer: &Answer,
        creates: bool,
    ) -> Option<Self> {
        let may_be = creates || answer.family() == ProtocolFamily::Modern;
        match sealed {
            Some(sealed) => Some(Self::About(sealed)),
            None => (access.called_tool().is_some() && may_be)
                .then_some(Self::MayBe { declared: creates }),
        }
    }
}

impl TaskAnswer {
    /// Classifies the answer to a repeated request, whose server may have changed its protocol family.
    pub(crate) fn again(self, access: &Access, answer: &Answer) -> Option<Self> {
        match self {
            Self::About(sealed) => Some(Self::About(sealed)),
            Self::MayBe { declared } => Self::of(None, access, answer, declared),
            // The task belongs to an answer that has already arrived.
            Self::Created(_) => None,
        }
    }
}

/// `data` of the error for a client that did not declare tasks.
pub(crate) fn required() -> Value {
    json!({"requiredCapabilities": {EXTENSIONS: {TASKS_EXTENSION: {}}}})
}

/// JSON-RPC error for a client that did not declare tasks.
pub(crate) fn missing(text: &str) -> Bytes {
    let error =
        json!({"code": Code::MissingCapability as i32, "message": text, "data": required()});
    error.to_string().into()
}

/// Whether a server has declared tasks for tool calls, in the form of its protocol family.
fn has_tasks(upstream: &Upstream) -> bool {
    let declared = upstream.introduced();
    let is_object = |path: &[&str]| {
        let mut at = path.iter();
        let first = at.next().and_then(|name| declared.capabilities.get(*name));
        at.try_fold(first?, |value, name| value.get(*name)).filter(|value| value.is_object())
    };
    let found = match upstream.family() {
        ProtocolFamily::Modern => is_object(&[EXTENSIONS, TASKS_EXTENSION]),
        ProtocolFamily::Legacy => is_object(&["tasks", "requests", "tools", "call"]),
    };
    found.is_some()
}

/// Declares tasks to a client of `revision`, if a server that it can see has them.
pub(crate) fn declare(capabilities: &mut Value, worker: &Worker, peer: &Peer, revision: Revision) {
    let Some(capabilities) = capabilities.as_object_mut() else { return };
    let family = peer.client.family;
    let has_any = worker.proxy.upstreams.iter().any(|upstream| {
        let name = upstream.name();
        // A server that has not answered since the start may support tasks; a false declaration does no harm.
        let unknown = family == ProtocolFamily::Modern && !upstream.is_settled();
        (unknown || (upstream.family() == family && has_tasks(&upstream)))
            && peer.endpoint.server().is_none_or(|only| only == name)
            && may_know(worker, &peer.principal, name)
    });
    match family {
        _ if !has_any => {}
        ProtocolFamily::Modern => {
            match capabilities.get_mut(EXTENSIONS).and_then(Value::as_object_mut) {
                Some(extensions) => drop(extensions.insert(TASKS_EXTENSION.into(), json!({}))),
                None => {
                    capabilities.insert(EXTENSIONS.into(), json!({TASKS_EXTENSION: {}}));
                }
            }
        }
        ProtocolFamily::Legacy if revision.has_tasks() => {
            let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
            capabilities.insert("tasks".into(), tasks);
        }
        ProtocolFamily::Legacy => {}
    }
}

/// Whether a call must wait until it is known whether the server supports tasks, since its client declared them: at
/// startup the server's tools may be known earlier.
pub(crate) fn must_settle(upstream: &Upstream, extras: &CallExtras) -> bool {
    !upstream.is_settled()
        && (extras.task.is_some() || extras.meta.as_deref().is_some_and(declares_tasks))
}

/// Waits, up to a limit, until it is known whether the server supports tasks.
pub(crate) async fn settled(upstream: &Upstream) {
    let _ = tokio::time::timeout(SETTLE_WAIT, upstream.settled()).await;
}

/// Whether the server may answer with a task: client and server have declared tasks, in the same protocol family.
/// Adds the declaration to the request.
pub(crate) fn may_create(
    worker: &Worker,
    caller: &Caller,
    upstream: &Upstream,
    access: &Access,
    extras: &mut CallExtras,
) -> bool {
    let asked = extras.task.take();
    match access {
        Access::Tool(_) => {}
        Access::Task(_) => {
            extras.tasks = true;
            return false;
        }
        Access::Resource { .. }
        | Access::Prompt { .. }
        | Access::Completion { .. }
        | Access::Method { .. } => return false,
    }
    let Some((client, _)) = &caller.client else { return false };
    match (client.family, upstream.family(), &asked) {
        (ProtocolFamily::Modern, ProtocolFamily::Modern, _) => {
            extras.tasks =
                has_tasks(upstream) && extras.meta.as_deref().is_some_and(declares_tasks);
            extras.tasks
        }
        (ProtocolFamily::Legacy, ProtocolFamily::Legacy, Some(task)) if has_tasks(upstream) => {
            let comma: &[u8] = if extras.members.is_empty() { b"" } else { b"," };
            extras.members = [&*extras.members, comma, b"\"task\":", &**task].concat().into();
            true
        }
        (_, _, asked) => {
            if asked.is_some() {
                let mut left = Left::default();
                left.push("", TASK);
                client.warn_of_dropped(&worker.proxy.dropped_members, "tools/call", &left);
            }
            false
        }
    }
}
