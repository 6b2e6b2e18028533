//! Cancellation of tasks that a server created for a call but that the call's client does not receive (PRO-43). They
//! are canceled at the server on behalf of the call's principal, since no client could fetch or cancel them.
//!
//! It runs at the end of every exchange: an answer that fails, is blocked or breaks off may contain a task, and so may
//! an answer whose client has disconnected. A cancellation is a separate request with its own record; the reply does
//! not wait for it. It is repeated with backoff, a limited number of times, until the server answers.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mcpproxy_activity::record::{MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use mcpproxy_json::members::{member, string};
use mcpproxy_policy::sealed_task::{MAX_TASK_ID_BYTES, OpenedTask, task_digits};
use mcpproxy_policy::{Principal, TaskRequest};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::shapes::{MemberRefused, check_free};
use mcpproxy_runtime::io::delays::RetryDelays;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_schema::output::AnswerFault;
use serde_json::json;

use super::task::{CONTENT, READ};
use super::{Broken, Exchange, joined};
use crate::proxy::client::{ActiveCall, Caller, Channel, Client};
use crate::proxy::recorded::{OnRecord, RecordedRequest};
use crate::proxy::refusal::RecordKind;
use crate::proxy::reply::{Piece, Running};
use crate::proxy::tasks::capability::{CreatedIds, TASK_DIGITS, TaskAnswer};
use crate::proxy::tasks::pending_cancellations::{NotCanceled, PendingCancellation};
use crate::proxy::tasks::{self, Delivery, TASK_METHOD};
use crate::proxy::worker::Worker;

/// Time limit for one attempt to cancel a task.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of attempts to cancel a task.
const MAX_ATTEMPTS: u32 = 5;
/// Minimum and maximum delay before a further attempt; jitter may double it.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// Maximum delay that a refusal may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Kind of the records of cancellations.
const KIND: RecordKind = RecordKind::Task { request: TaskRequest::Cancel, at_call_tools: false };

impl Drop for Exchange {
    /// The client may have disconnected before it received a task.
    fn drop(&mut self) {
        self.withdraw_task();
    }
}

impl Exchange {
    /// Cancels the task created for the call or contained in the received part of the answer, if its id can be read.
    pub(super) fn withdraw_task(&mut self) {
        let ids = match self.tasks.take() {
            Some(TaskAnswer::Created(ids)) => {
                self.worker.proxy.known_tasks.gone(&ids.sealed);
                *ids
            }
            Some(TaskAnswer::MayBe { declared }) => match self.arrived_ids(declared) {
                Some(ids) => ids,
                None => return,
            },
            Some(TaskAnswer::About(_)) | None => return,
        };
        let worker = Rc::clone(&self.worker);
        // If this runs outside of the worker's runtime, the worker itself is ending.
        let ends = worker.ending.is_cut() || tokio::runtime::Handle::try_current().is_err();
        let pending = match ends {
            true => Err(NotCanceled::ShuttingDown),
            false => worker.cancellations.enter(self.permit.access().server()),
        };
        match pending {
            Ok(pending) => {
                let cancellation = Rc::new(self.cancellation(ids));
                let canceled = canceled(Rc::clone(&worker), cancellation, pending);
                let attended = worker.draining.clone().attend(canceled);
                // The task may run detached, since the number of pending cancellations is bounded.
                drop(worker.keep(worker.ending.clone().attend(attended)));
            }
            Err(why) => self.not_canceled(&ids.sealed, why),
        }
    }

    /// Retains the slice that ends an answer, since a task may be in it.
    pub(super) fn ended_by(&mut self, slice: &Bytes, broken: Broken) -> Broken {
        if self.tasks.is_some() {
            match &mut self.original {
                Some(original) => original.push(slice.clone()),
                None => self.waiting.push(slice.clone()),
            }
        }
        broken
    }

    /// Ends an unusable answer. A task under an unexpected id may belong to another call.
    pub(super) fn faulty(&mut self, fault: AnswerFault) -> Broken {
        if fault == AnswerFault::ForeignId {
            self.tasks = None;
        }
        fault.into()
    }

    /// Ids of a task in the received part of the answer; their digits are added to the call's record.
    fn arrived_ids(&mut self, declared: bool) -> Option<CreatedIds> {
        let is_modern = self.has_task_type();
        let may_be_legacy = declared && self.inspector.result_type().is_none();
        if self.received().is_empty() || !(is_modern || may_be_legacy) {
            return None;
        }
        let arrived = joined(self.received().slices().cloned().collect());
        let own = task_id(&arrived, is_modern)?;
        let (server, tool) = (self.permit.access().server(), self.permit.access().label());
        let task = OpenedTask { server: (&**server).into(), tool: tool.into(), id: own };
        let approvals = &self.worker.proxy.approvals;
        let sealed = approvals.seal_task(&task, self.permit.principal(), SystemTime::now());
        let sealed = sealed.unwrap_or_default();
        self.call_record.add_metadata(TASK_DIGITS, &digits(&sealed));
        Some(CreatedIds { own: task.id, sealed: sealed.into() })
    }

    fn cancellation(&self, CreatedIds { own, sealed }: CreatedIds) -> Cancellation {
        let access = self.permit.access();
        let (server, tool) = ((&**access.server()).into(), access.label().into());
        let beside = self.call_record.beside(Type::InternalToolCall);
        Cancellation {
            task: OpenedTask { server, tool, id: own },
            sealed,
            principal: self.permit.principal().clone(),
            client: self.relay.active_client().map(|client| Arc::clone(&client)),
            client_name: beside.text(Text::ClientName).into(),
            request_id: Bytes::copy_from_slice(beside.text(Text::RequestId).as_bytes()),
        }
    }

    /// Records that a task is not canceled.
    fn not_canceled(&self, sealed: &str, why: NotCanceled) {
        let server = self.permit.access().server();
        peer_line!(warn, LinePeer::Server(server), %server, %why, "a task that its client does not get was not cancelled");
        let mut draft = self.call_record.beside(Type::InternalToolCall);
        (draft.source, draft.status) = (Source::Internal, Status::Rejected);
        draft.set(Text::Error, &format!("{server}: {}: {why}", TaskRequest::Cancel.method()));
        let (digits, method) = (digits(sealed), json!(TaskRequest::Cancel.method()));
        let metadata = format!("{{\"{TASK_METHOD}\":{method},\"{TASK_DIGITS}\":{digits}}}");
        draft.keep(Raw::Metadata, metadata.as_bytes(), MAX_METADATA_BYTES);
        self.worker.proxy.activity.note(draft);
    }
}

/// A task to cancel.
struct Cancellation {
    task: OpenedTask,
    sealed: Box<str>,
    /// Principal and client of the call.
    principal: Principal,
    client: Option<Arc<Client>>,
    client_name: Box<str>,
    request_id: Bytes,
}

/// Cancels a task, with a limited number of attempts.
async fn canceled(worker: Rc<Worker>, of: Rc<Cancellation>, _pending: PendingCancellation) {
    let mut delays = RetryDelays::new(RETRY.0, RETRY.1);
    for attempt in 1..=MAX_ATTEMPTS {
        let Err(asked) = of.attempt(&worker).await else { return };
        if attempt == MAX_ATTEMPTS || worker.ending.is_cut() {
            break;
        }
        let delay = delays.next_delay().max(asked.min(MAX_RETRY_AFTER));
        let waited = worker.draining.unless_cut(pin!(tokio::time::sleep(delay))).await;
        if waited.is_none() {
            break;
        }
    }
    let server = &*of.task.server;
    peer_line!(warn, LinePeer::Server(server), %server, "the server did not cancel a task that its client does not get");
}

impl Cancellation {
    /// Asks the server once. On a retryable error, fails with the delay that the refusal states.
    async fn attempt(self: &Rc<Self>, worker: &Rc<Worker>) -> Result<(), Duration> {
        let mut running = self.running(worker);
        let mut last = None;
        let answered = async {
            while let Some(piece) = running.next().await {
                last = Some(piece);
            }
        };
        if tokio::time::timeout(CANCEL_LIMIT, answered).await.is_err() {
            running.give_up(format!("the server did not answer within {CANCEL_LIMIT:?}"));
            return Err(Duration::ZERO);
        }
        match last {
            Some(Ok(Piece::Refused(refusal))) if refusal.may_pass => {
                Err(refusal.retry_after.unwrap_or_default())
            }
            Some(Err(_)) | None => Err(Duration::ZERO),
            // A server's error is an answer, too: the task may have ended.
            Some(Ok(_)) => Ok(()),
        }
    }

    fn running(self: &Rc<Self>, worker: &Rc<Worker>) -> Running {
        let of = Rc::clone(self);
        let client = self.client.clone().map(|client| (ActiveCall::of(client), Channel::Answer));
        let caller = Caller {
            source: Source::Internal,
            principal: self.principal.clone(),
            request_id: self.request_id.clone(),
            name: self.client_name.clone(),
            client,
            extensions: false,
            trace: None,
        };
        let recorded = RecordedRequest::begin(worker, caller, KIND, || None);
        recorded.running(async move |mut on: OnRecord<'_>| {
            let request = TaskRequest::Cancel;
            tasks::name(&mut on, request.method());
            on.record.add_metadata(TASK_DIGITS, &digits(&of.sealed));
            on.record.name(&of.task.server, &of.task.tool);
            let (inputs, sealed) = (Bytes::new(), of.sealed.clone());
            let client_capabilities = ClientCapabilities::default();
            let delivery = Delivery { request, sealed, inputs, meta: None, client_capabilities };
            tasks::deliver(on, of.task.clone(), delivery).await
        })
    }
}

/// The member [`TASK_DIGITS`] for a sealed id.
fn digits(sealed: &str) -> String {
    json!(task_digits(sealed).unwrap_or_default()).to_string()
}

/// The server's id of the task in a possibly truncated result: of 2026-07-28, or a complete `task` of 2025-11-25.
fn task_id(result: &[u8], is_modern: bool) -> Option<Box<str>> {
    let text = match std::str::from_utf8(result) {
        Ok(text) => text,
        // The result may be truncated within a character.
        Err(invalid) => std::str::from_utf8(result.get(..invalid.valid_up_to())?).ok()?,
    };
    let task = match is_modern {
        true => text,
        false if CONTENT.iter().any(|name| member(text, name).is_some()) => return None,
        false => member(text, "task")?,
    };
    for object in [text, task] {
        match check_free(&READ, "", object) {
            Ok(()) | Err(MemberRefused::NotAnObject) => {}
            Err(MemberRefused::Variant { .. } | MemberRefused::Twice(_)) => return None,
        }
    }
    let id = string(member(task, "taskId")?)?;
    (id.len() <= MAX_TASK_ID_BYTES).then(|| Box::from(&*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_task_id_is_read_from_a_truncated_answer() {
        let modern =
            r#"{"resultType":"task","note":"é","taskId" : "7\u0061","status":"working","x":"é"}"#;
        let legacy = r#"{"_meta":{"x":"é"},"task":{"taskId":"7a","status":"working"},"y":"é"}"#;
        for (result, is_modern, known_after) in
            [(modern, true, r#""7\u0061""#), (legacy, false, r#""working"}"#)]
        {
            let known_from = result.find(known_after).unwrap() + known_after.len();
            for cut in 0..=result.len() {
                let expected = (cut >= known_from).then_some("7a");
                let found = task_id(&result.as_bytes()[..cut], is_modern);
                assert_eq!(found.as_deref(), expected, "{is_modern}, cut at {cut}");
            }
        }
    }

    #[test]
    fn pro_43_ambiguous_task_id_is_ignored() {
        let long = format!(r#"{{"taskId":"{}"}}"#, "y".repeat(MAX_TASK_ID_BYTES + 1));
        for (result, is_modern) in [
            (r#"{"taskId":"a","taskId":"b""#, true),
            (r#"{"taskId":"a","TaskID":"b"}"#, true),
            (r#"{"taskId":7}"#, true),
            (r#"{"task":{"taskId":"a","TASKID":"b"}}"#, false),
            (r#"{"task":{"taskId":"a"},"Task":{}"#, false),
            (r#"{"content":[],"task":{"taskId":"a"}}"#, false),
            (r#"{"taskId":"a"}"#, false),
            (&long, true),
        ] {
            assert_eq!(task_id(result.as_bytes(), is_modern), None, "{result}");
        }
    }
}
