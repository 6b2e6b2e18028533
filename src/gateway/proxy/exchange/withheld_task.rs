//! Tasks that a server made of a call and that its client does not get (PRO-43): cancelled at the server, on behalf of the
//! principal of the call, since nobody could fetch or cancel them.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mcpproxy_activity::record::{Source, Text, Type};
use mcpproxy_json::members::{member, string};
use mcpproxy_policy::TaskRequest;
use mcpproxy_policy::approvals::{MAX_TASK_ID_BYTES, OpenedTask, task_digits};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use serde_json::json;

use super::{Exchange, joined};
use crate::proxy::call_trace::CallTrace;
use crate::proxy::client::{Caller, Channel};
use crate::proxy::recorded::{OnRecord, recorded};
use crate::proxy::refusal::RecordKind;
use crate::proxy::reply::Running;
use crate::proxy::task_capability::TASK_DIGITS;
use crate::proxy::tasks::{self, Delivery};

/// Time for a server to cancel a task that its client does not get.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);

impl Exchange {
    /// Cancels the task in the waiting result, unless its id is unusable. One request of its own, on record; the reply to the
    /// client does not wait for it.
    pub(super) fn cancel_withheld(&mut self) {
        let Some(id) = self.withheld_id() else { return };
        let (server, tool) = (self.permit.access().server(), self.permit.access().label());
        let task = OpenedTask { server: (&**server).into(), tool: tool.into(), id };
        let (worker, principal) = (Rc::clone(&self.worker), self.permit.principal().clone());
        let sealed = worker
            .proxy
            .approvals
            .seal_task(&task, &principal, SystemTime::now())
            .unwrap_or_default();
        let digits = json!(task_digits(&sealed).unwrap_or_default()).to_string();
        self.call_record.add_metadata(TASK_DIGITS, &digits);
        let beside = self.call_record.beside(Type::InternalToolCall);
        let caller = Caller {
            source: Source::Internal,
            principal,
            request_id: Bytes::copy_from_slice(beside.text(Text::RequestId).as_bytes()),
            name: beside.text(Text::ClientName).into(),
            client: self.relay.active_client().map(|client| (client, Channel::Answer)),
            extensions: false,
            trace: None,
        };
        let request = TaskRequest::Cancel;
        let kind = RecordKind::Task { request, at_call_tools: false };
        let trace = CallTrace::begin(&worker, &caller, kind.method(), || None);
        let peer: Box<str> = (&**server).into();
        let running = Running::new(|reply| {
            let worker = Rc::clone(&worker);
            recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
                let mut on = on;
                tasks::name(&mut on, request.method());
                on.record.add_metadata(TASK_DIGITS, &digits);
                on.record.name(&task.server, &task.tool);
                let (inputs, sealed) = (Bytes::new(), sealed.into());
                let client_capabilities = ClientCapabilities::default();
                let delivery =
                    Delivery { request, sealed, inputs, meta: None, client_capabilities };
                tasks::deliver(on, task, delivery).await
            })
        });
        if !worker.adopt(cancelled(running)) {
            peer_line!(warn, LinePeer::Server(&peer), server = %peer, "a task that its client does not get was not cancelled: too many calls are pending");
        }
    }

    /// The server's id of the task in the waiting result.
    fn withheld_id(&self) -> Option<Box<str>> {
        let result = joined(self.waiting.slices().cloned().collect());
        let text = std::str::from_utf8(&result).ok()?;
        super::task::readable(text).ok()?;
        let task = match self.has_task_type() {
            true => text,
            false => member(text, "task")?,
        };
        super::task::readable(task).ok()?;
        let id = string(member(task, "taskId")?)?;
        (id.len() <= MAX_TASK_ID_BYTES).then(|| Box::from(&*id))
    }
}

/// Runs the request to its end, for a limited time.
async fn cancelled(mut running: Running) {
    let ended =
        tokio::time::timeout(CANCEL_LIMIT, async { while running.next().await.is_some() {} });
    if ended.await.is_err() {
        running.give_up(format!("the server did not answer within {CANCEL_LIMIT:?}"));
    }
}
