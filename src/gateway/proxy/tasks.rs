//! Tasks: results of tool calls that are fetched later (MCP 2025-11-25 §Tasks, and the extension
//! `io.modelcontextprotocol/tasks` of 2026-07-28; PRO-43).
//!
//! The proxy keeps nothing about a task: the id that a client gets is [sealed](mcpproxy_policy::approvals) and
//! contains server, tool and the server's own id. A request about it is admitted as [`Access::Task`], sent to that
//! server and recorded in addition to the call; [`exchange`](super::exchange) parses the answer. Servers are offered
//! a client's tasks only if both have declared them, in the same protocol family.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_json::members::{member, string};
use mcpproxy_policy::sealed_task::{OpenedTask, server_named_in, task_digits};
use mcpproxy_policy::tool::ToolName;
use mcpproxy_policy::{Access, TaskAccess, TaskRequest, ToolAccess};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::known_extensions::TASKS_EXTENSION;
use mcpproxy_protocol::mcp::meta::{declares_tasks, of_hop};
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes;
use mcpproxy_protocol::mcp::shapes::Left;
use mcpproxy_protocol::mcp::trace_context::meta_of;
use mcpproxy_upstream::CallExtras;
use serde_json::{Value, json};

use self::capability::{SETTLE_WAIT, TASK_DIGITS, missing};
use super::call;
use super::client::{Endpoint, Peer};
use super::params::check_progress_token;
use super::recorded::{OnRecord, RecordedRequest, ReplySource};
use super::refusal::{RecordKind, Refusal, Stopped};
use super::reply::Running;
use super::worker::Worker;

pub(super) mod capability;
mod changed;
pub mod known;
pub mod legacy;
pub(super) mod pending_cancellations;
pub(super) mod related;
mod state_fetches;
pub mod subscription;

/// Member of `metadata` with the method of a request about a task.
pub(super) const TASK_METHOD: &str = "task_method";
/// Text for every id that a client may not use, regardless of the reason, so that ids cannot be probed.
const UNKNOWN: &str = "Failed to retrieve task: Task not found";
const META: &str = "_meta";
const TASK_ID: &str = "taskId";
const INPUTS: &str = "inputResponses";

/// Task request that a client of `revision` makes with `method`.
pub(crate) fn request_of(method: &str, revision: Revision) -> Option<TaskRequest> {
    let (own, extension) = (revision.has_tasks(), revision.has_tasks_extension());
    Some(match method {
        "tasks/get" if own || extension => TaskRequest::Get,
        "tasks/cancel" if own || extension => TaskRequest::Cancel,
        "tasks/update" if extension => TaskRequest::Update,
        "tasks/result" if own => TaskRequest::Result,
        _ => return None,
    })
}

/// Refusal of a client that subscribes to tasks without having declared them.
pub(crate) fn undeclared_subscription(params: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(params).ok()?;
    member(member(text, "notifications")?, "taskIds")?;
    let declared = member(text, META).is_some_and(|meta| declares_tasks(meta.as_bytes()));
    let why = "subscriptions/listen: the client did not declare";
    (!declared).then(|| format!("{why} {TASKS_EXTENSION}"))
}

/// Whether `method` is that of a task request, in any revision.
pub(crate) fn is_request(method: &str) -> bool {
    [Revision::November2025, Revision::NEWEST]
        .into_iter()
        .any(|revision| request_of(method, revision).is_some())
}

/// Server of the task in a client's params, unverified.
pub(crate) fn server_of(params: &str) -> Option<Box<str>> {
    server_named_in(&string(member(params, TASK_ID)?)?)
}

/// Forwards a task request to its server, on behalf of the client and under the raw id of its request.
pub(crate) fn running(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: &Bytes,
    request: TaskRequest,
    params: Bytes,
) -> Running {
    let (endpoint, client_capabilities) = (peer.endpoint.clone(), peer.client_capabilities());
    let (caller, kind) = (peer.caller(id), kind(request, &peer.endpoint));
    let recorded = RecordedRequest::begin(worker, caller, kind, || meta_of(&params));
    recorded.running(async move |mut on: OnRecord<'_>| {
        name(&mut on, request.method());
        send(on, request, &endpoint, client_capabilities, &params).await
    })
}

/// Kind of the record of a request about a task.
fn kind(request: TaskRequest, endpoint: &Endpoint) -> RecordKind {
    RecordKind::Task { request, at_call_tools: *endpoint == Endpoint::Search }
}

/// Finds the task, asks for admission and sends the request. `client_capabilities` are the requests that the server may
/// send to the client before it answers.
async fn send(
    mut on: OnRecord<'_>,
    request: TaskRequest,
    endpoint: &Endpoint,
    client_capabilities: ClientCapabilities,
    params: &Bytes,
) -> Result<ReplySource, Stopped> {
    let client = on.caller.client.as_ref().map(|(client, _)| client);
    let revision = client.map_or(Revision::NEWEST, |client| client.revision());
    let mut read = TaskParams::read(request, revision, params).map_err(Refusal::invalid_params)?;
    let declared = read.meta.as_deref().is_some_and(declares_tasks);
    if on.caller.family() == ProtocolFamily::Modern && !declared {
        let why = format!("{}: the client did not declare {TASKS_EXTENSION}", request.method());
        return Err(Stopped::Lacking { error: missing(&why), why });
    }
    if let Some(client) = client {
        client.warn_of_dropped(&on.worker.proxy.dropped_members, request.method(), &read.left);
    }
    let task = opened(&mut on, endpoint, &read.sealed)?;
    read.open_relations(&task.id);
    if let Some(client) = client.filter(|client| client.family == ProtocolFamily::Legacy) {
        let known = &on.worker.proxy.known_tasks;
        known.asked(&read.sealed, &on.caller.principal, client);
    }
    on.record.keep_arguments(&read.recorded);
    // Rules and approvals were applied to the call; a request without input adds nothing to it.
    let meta = match request {
        TaskRequest::Update => read.meta,
        _ => read.meta.and_then(|meta| of_hop(&meta)).map(Bytes::from),
    };
    let TaskParams { sealed, inputs, .. } = read;
    let delivery = Delivery { request, sealed, inputs, meta, client_capabilities };
    deliver(on, task, delivery).await
}

/// Opens a sealed id of the caller and records it. Refuses if the task is not visible to the caller at this endpoint.
pub(super) fn opened(
    on: &mut OnRecord<'_>,
    endpoint: &Endpoint,
    sealed: &str,
) -> Result<OpenedTask, Refusal> {
    let approvals = &on.worker.proxy.approvals;
    let task = approvals.open_task(sealed, &on.caller.principal, on.record.time_of_day());
    let is_shown = |task: &OpenedTask| endpoint.server().is_none_or(|only| **only == *task.server);
    let unknown = || Refusal::unreadable(UNKNOWN.to_owned());
    let task = task.filter(is_shown).ok_or_else(unknown)?;
    on.record
        .add_metadata(TASK_DIGITS, &json!(task_digits(sealed).unwrap_or_default()).to_string());
    on.record.name(&task.server, &task.tool);
    Ok(task)
}

/// Names the method of a task request in the record, before its server is known.
pub(super) fn name(on: &mut OnRecord<'_>, method: &str) {
    on.record.name("", method);
    on.record.add_metadata(TASK_METHOD, &json!(method).to_string());
}

/// Task request for its server.
pub(super) struct Delivery {
    pub(super) request: TaskRequest,
    /// The client's id of the task.
    pub(super) sealed: Box<str>,
    /// `"inputResponses":VALUE`; may be empty.
    pub(super) inputs: Bytes,
    pub(super) meta: Option<Bytes>,
    /// Requests that the server may send to the client before it answers.
    pub(super) client_capabilities: ClientCapabilities,
}

/// Asks for admission of a task request and sends it.
pub(super) async fn deliver(
    mut on: OnRecord<'_>,
    task: OpenedTask,
    Delivery { request, sealed, inputs, meta, client_capabilities }: Delivery,
) -> Result<ReplySource, Stopped> {
    let access = access(&mut on, &task, request).await?;
    let body = body(&task.id, &inputs);
    let members = inputs;
    let mut extras = CallExtras { meta, members, client_capabilities, ..CallExtras::default() };
    let mut arguments = Bytes::from_static(b"{}");
    let permit = on.admit(access, &mut arguments, None, &mut extras).await?;
    if let Some(tool) = permit.access().tool() {
        call::schema_compiled(on.worker, tool, on.record.began()).await?;
    }
    on.task = Some(sealed);
    Ok(on.send_recorded(permit, body, CallExtras { members: Bytes::new(), ..extras }).await?)
}

/// Access for a task request, once its tool is known.
pub(super) async fn access(
    on: &mut OnRecord<'_>,
    OpenedTask { server, tool, id }: &OpenedTask,
    request: TaskRequest,
) -> Result<Access, Refusal> {
    let name = ToolName { server: Arc::from(&**server), tool: Arc::from(&**tool) };
    let tool = call::find(on, &name).await?;
    on.set_offer(server, request == TaskRequest::Update);
    let access = TaskAccess::new(ToolAccess::direct(tool), request, Arc::from(&**id));
    if on.caller.is_proxy() {
        // The proxy made the request because of the server's own answer, so the client's family does not matter.
        return Ok(Access::Task(access.by_proxy()));
    }
    of_same_family(on, server).await?;
    Ok(Access::Task(access))
}

/// Refuses a request about a task of the other protocol family. This is a client error, because tasks of the two
/// families differ, and the server would not support the request.
async fn of_same_family(on: &OnRecord<'_>, server: &str) -> Result<(), Refusal> {
    let Some(upstream) = on.worker.proxy.upstreams.get(server) else { return Ok(()) };
    let _ = tokio::time::timeout(SETTLE_WAIT, upstream.settled()).await;
    match upstream.state().protocol_version {
        Some(version) if upstream.family() != on.caller.family() => {
            let text = format!(
                "Failed to retrieve task: server '{server}' speaks {version}, and the client a revision whose tasks differ"
            );
            Err(Refusal::unreadable(text))
        }
        Some(_) | None => Ok(()),
    }
}

#[derive(Debug)]
struct TaskParams {
    sealed: Box<str>,
    meta: Option<Bytes>,
    /// `"inputResponses":VALUE`; may be empty.
    inputs: Bytes,
    /// Params for the record, without the sealed id, with which a reader of the record could fetch the result.
    recorded: Bytes,
    left: Left,
}

impl TaskParams {
    /// Parses `params`, which are valid JSON without duplicate keys, by the client's `revision`.
    fn read(request: TaskRequest, revision: Revision, params: &Bytes) -> Result<Self, String> {
        let no_object = || "params must be an object".to_owned();
        let text = std::str::from_utf8(params).map_err(|_| no_object())?;
        let Some(shape) = shapes::params(request.method()) else { return Err(no_object()) };
        let mut left = Left::default();
        let edits = [(META, None), (TASK_ID, None)];
        let rest = shapes::sift(shape, revision, text, &edits, &mut left)
            .map_err(|refused| refused.to_string())?;
        let sealed = member(text, TASK_ID).and_then(string);
        let sealed = sealed.ok_or("taskId must be a string")?.into();
        let meta = member(text, META);
        if meta.is_some_and(|meta| !meta.starts_with('{')) {
            return Err("_meta must be an object".to_owned());
        }
        if let Some(meta) = meta {
            shapes::check_free(shapes::META_KEYS, META, meta)
                .map_err(|refused| refused.to_string())?;
        }
        check_progress_token(meta).map_err(|long| long.to_string())?;
        let meta = meta.map(|meta| params.slice_ref(meta.as_bytes()));
        let inputs = member(&rest, INPUTS);
        let inputs = inputs.map(|inputs| Bytes::from(format!("\"{INPUTS}\":{inputs}")));
        let (inputs, recorded) = (inputs.unwrap_or_default(), rest.into());
        Ok(Self { sealed, meta, inputs, recorded, left })
    }

    /// Opens the inputs' relations to the task, which the server calls `id`.
    fn open_relations(&mut self, id: &str) {
        let recorded = std::str::from_utf8(&self.recorded).unwrap_or_default();
        let Some(inputs) = member(recorded, INPUTS) else { return };
        let opened = related::opened_inputs(inputs, &self.sealed, id);
        self.inputs = format!("\"{INPUTS}\":{opened}").into();
        self.recorded = format!("{{\"{INPUTS}\":{opened}}}").into();
    }
}

/// Params for the server, which calls the task `id`, with the `inputs` of an update.
fn body(id: &str, inputs: &[u8]) -> Bytes {
    let id = Value::from(id).to_string();
    let comma: &[u8] = if inputs.is_empty() { b"" } else { b"," };
    [&b"{\"taskId\":"[..], id.as_bytes(), comma, inputs, b"}"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_methods_are_those_of_the_clients_revision() {
        use Revision::{July2026, June2025, November2025};
        for (method, revision, expected) in [
            ("tasks/get", July2026, Some(TaskRequest::Get)),
            ("tasks/get", November2025, Some(TaskRequest::Get)),
            ("tasks/get", June2025, None),
            ("tasks/update", July2026, Some(TaskRequest::Update)),
            ("tasks/update", November2025, None),
            ("tasks/cancel", November2025, Some(TaskRequest::Cancel)),
            ("tasks/result", November2025, Some(TaskRequest::Result)),
            ("tasks/result", July2026, None),
            ("tasks/list", July2026, None),
            ("tasks/list", November2025, None),
        ] {
            assert_eq!(request_of(method, revision), expected, "{method} {revision:?}");
        }
        assert!(is_request("tasks/update") && !is_request("tasks/list"));
    }

    #[test]
    fn pro_43_server_gets_only_its_id_and_the_members_of_the_method() {
        let read = |request, params: &'static str| {
            TaskParams::read(request, Revision::NEWEST, &Bytes::from_static(params.as_bytes()))
        };
        let params = r#"{ "inputResponses":{"q" : {"action":"accept","content":{"N":1.0},"x":1}},"taskId":"s\u0065aled","odd":1,"_meta":{"k":[ ]}}"#;
        let update = read(TaskRequest::Update, params).unwrap();
        assert_eq!(
            (&*update.sealed, update.meta.as_deref()),
            ("sealed", Some(&br#"{"k":[ ]}"#[..]))
        );
        let inputs = r#""inputResponses":{"q":{"action":"accept","content":{"N":1.0}}}"#;
        assert_eq!(body("a\n\"b", &update.inputs), format!(r#"{{"taskId":"a\n\"b",{inputs}}}"#));
        assert_eq!(update.recorded, format!("{{{inputs}}}"), "without the sealed id");
        assert_eq!(update.left.names().collect::<Vec<_>>(), ["inputResponses.q.x", "odd"]);
        let get = read(TaskRequest::Get, params).unwrap();
        assert_eq!(
            (body("x", &get.inputs), get.recorded),
            ("{\"taskId\":\"x\"}".into(), "{}".into())
        );
        for (params, why) in [
            ("[]", "it is not a JSON object"),
            ("{}", "taskId must be a string"),
            (r#"{"taskId":7}"#, "taskId must be a string"),
            (r#"{"taskID":"x"}"#, "'taskID' differs only by case from 'taskId'"),
            (r#"{"taskId":"x","_meta":7}"#, "_meta must be an object"),
        ] {
            let refused = read(TaskRequest::Get, params).err();
            assert_eq!(refused.as_deref(), Some(why), "{params}");
        }
        let variant = read(TaskRequest::Get, r#"{"taskId":"x","_meta":{"ProgressToken":1}}"#);
        assert!(variant.is_err_and(|why| why.contains("differs only by case")));
    }

    #[test]
    fn pro_43_subscription_to_tasks_needs_their_declaration() {
        let meta = r#""_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
        for (params, is_refused) in [
            (r#"{"notifications":{"taskIds":["x"]}}"#.to_owned(), true),
            (format!(r#"{{"notifications":{{"taskIds":["x"]}},{meta}}}"#), false),
            (r#"{"notifications":{"toolsListChanged":true}}"#.to_owned(), false),
            ("7".to_owned(), false),
        ] {
            let refused = undeclared_subscription(params.as_bytes());
            assert_eq!(refused.is_some(), is_refused, "{params}");
        }
    }
}
