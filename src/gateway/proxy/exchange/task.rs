//! Tasks in an answer (PRO-43): a call that is answered with a task, and answers to requests about one.
//!
//! Clients get sealed ids in place of the server's; all other bytes are unchanged. A result inside an answer about
//! a task passes through inspector and verdict like the answer to the call itself; the rest of the answer is put
//! around the forwarded or replaced result. Record and receipt cover the whole answer.
//!
//! ```text
//! tools/call ── {"resultType":"task","taskId":ID} ─▶ created ─▶ the same with the sealed id
//! tasks/get ─── {"taskId":ID,"result":RESULT,…} ──▶ answered ─▶ envelope ┐
//!                                    └─▶ Inspector ─▶ verdict ─▶ record ─┴▶ {"taskId":SEALED,"result":…,…}
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mcpproxy_json::members::{member, members, string};
use mcpproxy_policy::sealed_state::MAX_SERVER_STATE_BYTES;
use mcpproxy_policy::sealed_task::{MAX_TASK_ID_BYTES, OpenedTask, task_digits};
use mcpproxy_policy::{Access, ServerOutcome, TaskRequest};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::mcp::{jsonrpc, shapes};
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_schema::output::{
    AnswerFault, AnswerMember, InspectedMessage, Inspector, ResultTypePlace, Treatment,
};
use serde_json::json;
use thiserror::Error;

use super::input_rounds::is_type;
use super::{ADAPTED, Broken, Exchange, joined, policy, required};
use crate::proxy::tasks::capability::{CreatedIds, TASK_DIGITS, TASK_STATUS, TaskAnswer, missing};
use crate::proxy::tasks::known::CreatedTask;
use crate::proxy::tasks::related as related_tasks;
use crate::proxy::tasks::related::{RelationEdit, range_in};

/// Maximum size of a result that creates a task, in bytes. A longer one without a `resultType` before this position
/// is not a task.
const MAX_CREATED_BYTES: usize = 64 * 1024;
/// Members of a task that are read; ambiguous spellings of them are refused.
pub(super) const READ: [&str; 9] = [
    "taskId",
    "status",
    "result",
    "error",
    "resultType",
    "task",
    "_meta",
    "requestState",
    "inputRequests",
];
/// Members of a result that are validated. A task has none of them.
pub(super) const CONTENT: [&str; 3] = ["content", "structuredContent", "isError"];
/// Task statuses defined by the protocol.
const STATUSES: [&str; 5] = ["working", "input_required", "completed", "failed", "cancelled"];
/// Envelope in which a task's result is inspected, and its id.
const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":"#;
const TAIL: &[u8] = b"}";
const ID: u64 = 1;

/// Reason why an answer with a task is unusable; the server's fault. The text follows server and tool in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum TaskFault {
    #[error("the server answered with a task that cannot be parsed unambiguously")]
    Ambiguous,
    #[error("the server answered with a task whose taskId is missing or not a string")]
    NoId,
    #[error("the server answered with a task that contains content, which would bypass validation")]
    WithContent,
    #[error("the server answered with a task of more than {MAX_CREATED_BYTES} bytes")]
    TooLong,
    #[error(
        "the server answered with a task whose taskId is longer than {MAX_TASK_ID_BYTES} bytes"
    )]
    LongId,
    #[error("the server answered about another task than the requested one")]
    OtherTask,
    #[error("the server answered with a task whose result is not an object")]
    NoObject,
    #[error("the server answered with a completed task without its result")]
    NoResult,
    #[error("the task cannot be forwarded: the system provides no random bytes")]
    NotSealed,
}

impl From<TaskFault> for Broken {
    fn from(fault: TaskFault) -> Self {
        let outcome = (fault != TaskFault::NotSealed).then_some(ServerOutcome::Answered);
        Self::Upstream(fault.to_string(), outcome)
    }
}

/// Replacement of a part of an answer.
#[derive(Debug)]
struct Edit {
    at: Range<usize>,
    by: Bytes,
}

impl From<RelationEdit> for Edit {
    fn from(RelationEdit { at, by }: RelationEdit) -> Self {
        Self { at, by: by.into() }
    }
}

impl Exchange {
    /// Retains the server's own bytes of a result that may be a task or a question, starting at its first change,
    /// since locations in the result refer to these bytes.
    pub(super) fn keep_original(&mut self, slice: &Bytes, is_adapted: bool) {
        if self.tasks.is_none() && self.rounds.is_none() {
            self.original = None;
            return;
        }
        match &mut self.original {
            Some(original) => original.push(slice.clone()),
            None if is_adapted => {
                let mut original: Splice = self.waiting.slices().cloned().collect();
                original.push(slice.clone());
                self.original = Some(Box::new(original));
            }
            None => {}
        }
    }

    /// The waiting result in the server's own bytes.
    pub(super) fn received(&self) -> &Splice {
        self.original.as_deref().unwrap_or(&self.waiting)
    }

    /// Rewrites a server's message to the client's id of the related task; also returns the server's id of that task.
    pub(super) fn related(&self, message: &Bytes) -> (Bytes, Option<Box<str>>) {
        let about = match &self.tasks {
            Some(TaskAnswer::About(sealed)) => Some(&**sealed),
            Some(TaskAnswer::MayBe { .. } | TaskAnswer::Created(_)) | None => None,
        };
        related_tasks::sealed_message(message, |id| self.sealed_id(id, about))
    }

    /// Client's id of a server's task: `about` for the task of this request, the known sealed id for any other.
    fn sealed_id(&self, id: &str, about: Option<&str>) -> Option<String> {
        let access = self.permit.access();
        if let (Access::Task(task), Some(sealed)) = (access, about)
            && **task.id() == *id
        {
            return Some(sealed.to_owned());
        }
        let client = self.relay.legacy_client()?;
        let known = &self.worker.proxy.known_tasks;
        let sealed = known.sealed((access.server(), id), self.permit.principal(), client)?;
        Some(sealed.to_string())
    }

    /// Whether the arriving result may still be a task. Fails if it is too long, since its id could not be sealed.
    pub(super) fn may_be_task(&self) -> Result<bool, Broken> {
        let is_long = self.received().len() > MAX_CREATED_BYTES;
        let may_be = match self.inspector.result_type() {
            None => !is_long,
            Some(ResultTypePlace::AfterContent) => false,
            Some(ResultTypePlace::Within(_)) => self.has_task_type(),
        };
        if is_long && may_be {
            return Err(TaskFault::TooLong.into());
        }
        Ok(may_be)
    }

    /// Whether the result's `resultType` is that of a task.
    pub(super) fn has_task_type(&self) -> bool {
        match self.inspector.result_type() {
            Some(ResultTypePlace::Within(span)) if span.end <= MAX_CREATED_BYTES as u64 => {
                is_type(self.received(), (span.start as usize, span.len() as usize), "task")
            }
            Some(_) | None => false,
        }
    }

    /// Collects a slice of an answer about a task, which is held until complete.
    pub(super) async fn gather(&mut self, slice: Bytes) -> Result<(), Broken> {
        let limit = policy(&self.permit).max_held_bytes;
        if (self.waiting.len() + slice.len()) as u64 > limit {
            let text = format!(
                "answered about a task with more than output_validation.max_held_bytes {limit}"
            );
            return Err(Broken::Upstream(text, Some(ServerOutcome::Answered)));
        }
        if let Some(share) = &mut self.share {
            let grown = share.grow((slice.len() + size_of::<Bytes>()) as u64).await;
            grown.map_err(|full| Broken::Upstream(full.to_string(), None))?;
        }
        self.waiting.push(slice);
        Ok(())
    }

    /// Parses a complete result that may be a task, or is about one.
    pub(super) fn read_task(&mut self) -> Result<(), Broken> {
        match self.tasks.take() {
            Some(TaskAnswer::About(sealed)) => self.answered(&sealed),
            Some(TaskAnswer::MayBe { declared }) => {
                let created = self.created(declared);
                if created.is_err() {
                    // A task in the result is canceled.
                    self.tasks = Some(TaskAnswer::MayBe { declared });
                }
                created
            }
            // A created task has already been parsed.
            Some(TaskAnswer::Created(_)) | None => Ok(()),
        }
    }

    /// Seals the id of a task that the server created for the call.
    fn created(&mut self, declared: bool) -> Result<(), Broken> {
        let is_modern = self.has_task_type();
        let may_be_legacy = declared && self.inspector.result_type().is_none();
        if !is_modern && !may_be_legacy {
            return Ok(());
        }
        if !declared {
            let access = self.permit.access();
            let text = format!(
                "{}: {}: the server answered with a task, but the client has not declared support for tasks",
                access.server(),
                access.label()
            );
            return Err(Broken::Unable(missing(&text), text));
        }
        let result = joined(self.waiting.slices().cloned().collect());
        let text = std::str::from_utf8(&result).map_err(|_| TaskFault::Ambiguous)?;
        readable(text)?;
        let has_content = CONTENT.iter().any(|name| member(text, name).is_some());
        let task = match is_modern {
            true if has_content => return Err(TaskFault::WithContent.into()),
            true => text,
            // An ordinary result.
            false if has_content => return Ok(()),
            false => match member(text, "task").filter(|task| task.starts_with('{')) {
                Some(task) => task,
                // An ordinary result without content.
                None => return Ok(()),
            },
        };
        readable(task)?;
        let original = self.original.as_ref();
        let original = original.map(|original| joined(original.slices().cloned().collect()));
        let raw = member(task, "taskId").ok_or(TaskFault::NoId)?;
        let id = string(raw).ok_or(TaskFault::NoId)?;
        if id.len() > MAX_TASK_ID_BYTES {
            return Err(TaskFault::LongId.into());
        }
        let (server, tool) = (self.permit.access().server(), self.permit.access().label());
        let sealed = self.worker.proxy.approvals.seal_task(
            &OpenedTask { server: (&**server).into(), tool: tool.into(), id: (&*id).into() },
            self.permit.principal(),
            SystemTime::now(),
        );
        let sealed = sealed.ok_or(TaskFault::NotSealed)?;
        let mut edits = vec![Edit { at: range_in(text, raw), by: quoted(&sealed) }];
        for object in [text, task] {
            let own = |of: &str| match of == id {
                true => Some(sealed.clone()),
                false => self.sealed_id(of, None),
            };
            edits.extend(related_tasks::replaced(text, object, own).map(Edit::from));
        }
        if !is_modern {
            self.note_known(task, &id, &sealed);
        }
        let adapted = spliced(&result, 0..result.len(), &edits);
        self.call_record.discard_response();
        self.call_record.receive(original.as_ref().unwrap_or(&result), None, Some(&adapted));
        self.note_task(task, &sealed);
        (self.waiting, self.treatment, self.keeping) = (adapted, Treatment::Forward, None);
        self.original = None;
        let ids = CreatedIds { own: (&*id).into(), sealed: sealed.into() };
        self.tasks = Some(TaskAnswer::Created(Box::new(ids)));
        Ok(())
    }

    /// Parses an answer about a task, and prepares its result, if any, for the verdict.
    fn answered(&mut self, sealed: &str) -> Result<(), Broken> {
        let Access::Task(access) = self.permit.access() else { return Ok(()) };
        let (request, own) = (access.request(), Arc::clone(access.id()));
        let ending = self.inspector.ending(required(&self.permit, self.relay.family()));
        let answer = joined(std::mem::take(&mut self.waiting).into_iter().collect());
        let text = std::str::from_utf8(&answer).map_err(|_| TaskFault::Ambiguous)?;
        let mut edits = Vec::new();
        let result = match request {
            TaskRequest::Result => Some(text),
            TaskRequest::Get | TaskRequest::Update | TaskRequest::Cancel => {
                readable(text)?;
                if let Some(raw) = member(text, "taskId") {
                    if string(raw).as_deref() != Some(&*own) {
                        return Err(TaskFault::OtherTask.into());
                    }
                    edits.push(Edit { at: range_in(text, raw), by: quoted(sealed) });
                }
                self.note_task(text, sealed);
                edits.extend(self.relations(text, text, sealed));
                edits.extend(self.state_of_call(text, text)?);
                member(text, "result")
            }
        };
        let Some(result) = result else {
            let completed = member(text, "status").and_then(string);
            let is_modern = self.relay.family() == ProtocolFamily::Modern;
            if request == TaskRequest::Get && is_modern && completed.as_deref() == Some("completed")
            {
                return Err(TaskFault::NoResult.into());
            }
            let masked = self.repaired_error(&answer, text, &mut edits);
            let adapted = ended(spliced(&answer, 0..answer.len(), &edits), ending);
            self.call_record.note_response(masked.as_ref().unwrap_or(&answer));
            self.call_record.note_receipt(&answer, ending, Some(&adapted));
            (self.waiting, self.keeping) = (adapted, None);
            return Ok(());
        };
        if !result.starts_with('{') {
            return Err(TaskFault::NoObject.into());
        }
        edits.extend(self.relations(text, result, sealed));
        edits.extend(self.state_of_call(text, result)?);
        let masked = match request {
            TaskRequest::Result => None,
            _ => self.repaired_error(&answer, text, &mut edits),
        };
        let at = range_in(text, result);
        let result = answer.slice(at.clone());
        self.inspect(&result)?;
        // The members next to the result also reach the client.
        self.call_record.note_response(masked.as_ref().unwrap_or(&answer));
        let whole = ended(spliced(&answer, 0..answer.len(), &edits), ending);
        let is_changed = !edits.is_empty();
        self.call_record.note_receipt(&answer, ending, is_changed.then_some(&whole));
        self.note_for_keeping(&result);
        self.waiting = spliced(&answer, at.clone(), &edits);
        let before = spliced(&answer, 0..at.start, &edits);
        let after = ended(spliced(&answer, at.end..answer.len(), &edits), ending);
        if !(before.is_empty() && after.is_empty()) {
            self.envelope = Some(Box::new((before, after)));
        }
        Ok(())
    }

    /// Adds a legacy server's task to the table of tasks that its client can list.
    fn note_known(&self, task: &str, id: &str, sealed: &str) {
        let Some(client) = self.relay.active_client() else { return };
        // `ttl` is in milliseconds. A negative value, or one that is not a number, means unlimited; the table limits
        // long ones.
        let ttl = member(task, "ttl").and_then(|ttl| ttl.parse::<f64>().ok());
        let ttl = ttl.and_then(|ttl| Duration::try_from_secs_f64(ttl / 1e3).ok());
        let (principal, server) = (self.permit.principal(), self.permit.access().server());
        let created = CreatedTask { principal, client: &client, server, id, sealed, ttl };
        self.worker.proxy.known_tasks.created(&created, clock::now());
    }

    /// Replacements of task relations in `object`, a part of an answer about the task with this sealed id, and in
    /// its requests for input.
    fn relations(&self, text: &str, object: &str, sealed: &str) -> Vec<Edit> {
        let inputs = member(object, "inputRequests").and_then(|inputs| members(inputs).ok());
        let inputs = inputs.into_iter().flatten().map_while(Result::ok);
        let params = inputs.filter_map(|(_, request)| member(request, "params"));
        let replaced = std::iter::once(object).chain(params).filter_map(|object| {
            related_tasks::replaced(text, object, |id| self.sealed_id(id, Some(sealed)))
        });
        replaced.map(Edit::from).collect()
    }

    /// The `requestState` in `object`, a part of an answer about a task, sealed for the call that created the task.
    fn state_of_call(&mut self, text: &str, object: &str) -> Result<Option<Edit>, Broken> {
        let is_modern = self.relay.family() == ProtocolFamily::Modern;
        let Some(raw) = member(object, "requestState").filter(|_| is_modern) else {
            return Ok(None);
        };
        if raw.len() > MAX_SERVER_STATE_BYTES {
            let text = format!("sent a requestState of more than {MAX_SERVER_STATE_BYTES} bytes");
            return Err(Broken::Upstream(text, Some(ServerOutcome::Answered)));
        }
        let by = self.seal(raw.as_bytes().to_vec())?;
        Ok(Some(Edit { at: range_in(text, raw), by }))
    }

    /// Inspects the result of a task like the answer to its call.
    fn inspect(&mut self, result: &Bytes) -> Result<(), Broken> {
        let tool = self.permit.access().tool();
        self.treatment = tool.map_or(Treatment::Forward, |tool| tool.treatment());
        let hash_key = self.worker.proxy.hash_key;
        let mut inspector = Inspector::new(self.treatment, &policy(&self.permit), ID, hash_key);
        for part in [&Bytes::from_static(HEAD), result, &Bytes::from_static(TAIL)] {
            inspector.feed(part)?;
        }
        match inspector.end()? {
            InspectedMessage::Answer(AnswerMember::Result) => self.inspector = inspector,
            InspectedMessage::Answer(AnswerMember::Error)
            | InspectedMessage::Notification(_)
            | InspectedMessage::Foreign => return Err(AnswerFault::Empty.into()),
        }
        Ok(())
    }

    /// Masks and adapts the JSON-RPC error in a task as in the answer to a call. Returns the answer with its secrets
    /// masked, for the record; `None` if it contains no secrets.
    fn repaired_error(
        &mut self,
        answer: &Bytes,
        text: &str,
        edits: &mut Vec<Edit>,
    ) -> Option<Bytes> {
        let error = member(text, "error").filter(|error| error.starts_with('{'))?;
        let at = range_in(text, error);
        let received = answer.slice(at.clone());
        let masked = self.worker.proxy.upstreams.masked(&received);
        let error = masked.as_ref().unwrap_or(&received);
        self.call_record.failed_with(error);
        let modern = match self.relay.family() {
            ProtocolFamily::Modern => {
                std::str::from_utf8(error).ok().and_then(jsonrpc::modern_error)
            }
            ProtocolFamily::Legacy => None,
        };
        let by = modern.map(Bytes::from).or_else(|| masked.clone());
        edits.extend(by.map(|by| Edit { at: at.clone(), by }));
        let masked = masked.map(|by| Edit { at, by })?;
        Some(joined(spliced(answer, 0..answer.len(), &[masked]).into_iter().collect()))
    }

    /// Records identification and status of a task.
    fn note_task(&mut self, task: &str, sealed: &str) {
        self.call_record.add_metadata(ADAPTED, r#""taskId""#);
        if matches!(self.permit.access(), Access::Tool(_)) {
            let digits = task_digits(sealed).unwrap_or_default();
            self.call_record.add_metadata(TASK_DIGITS, &json!(digits).to_string());
        }
        let status = member(task, "status").and_then(string).unwrap_or_default();
        if let Some(known) = STATUSES.into_iter().find(|known| **known == *status) {
            self.call_record.add_metadata(TASK_STATUS, &json!(known).to_string());
            self.task_failed = known == "failed";
        }
    }

    /// Puts a member's value inside the envelope of an answer about its task.
    pub(super) fn enveloped(&mut self, value: Splice) -> Splice {
        let Some(envelope) = self.envelope.take() else { return value };
        let (mut whole, after) = *envelope;
        whole.append(value);
        whole.append(after);
        whole
    }
}

/// Checks that every parser finds the same members in the task.
pub(super) fn readable(task: &str) -> Result<(), TaskFault> {
    shapes::check_free(&READ, "", task).map_err(|_| TaskFault::Ambiguous)
}

/// Sealed id as JSON; it needs no escaping.
fn quoted(sealed: &str) -> Bytes {
    format!("\"{sealed}\"").into()
}

/// Extracts this range of `bytes` and applies the edits within it.
fn spliced(bytes: &Bytes, range: Range<usize>, edits: &[Edit]) -> Splice {
    let mut within: Vec<&Edit> = edits
        .iter()
        .filter(|edit| range.start <= edit.at.start && edit.at.end <= range.end)
        .collect();
    within.sort_by_key(|edit| edit.at.start);
    within.dedup_by_key(|edit| edit.at.start);
    let (mut splice, mut from) = (Splice::new(), range.start);
    for edit in within {
        splice.push(bytes.slice(from..edit.at.start.max(from)));
        splice.push(edit.by.clone());
        from = edit.at.end.max(from);
    }
    splice.push(bytes.slice(from..range.end));
    splice
}

/// Replaces the last byte of an answer.
fn ended(splice: Splice, ending: Option<&'static [u8]>) -> Splice {
    let Some(ending) = ending else { return splice };
    let mut parts: Vec<Bytes> = splice.into_iter().collect();
    let last = parts.pop().unwrap_or_default();
    let mut splice: Splice = parts.into_iter().collect();
    splice.push_ending(last, ending);
    splice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(splice: Splice) -> String {
        splice.into_iter().map(|part| String::from_utf8(part.to_vec()).unwrap()).collect()
    }

    #[test]
    fn pro_43_edits_replace_only_their_own_places() {
        let text = r#"{"a":1,"taskId": "x","b":"x","_meta":{"k":1,"io.modelcontextprotocol/related-task":{"taskId":"x"}}}"#;
        let bytes = Bytes::from_static(text.as_bytes());
        let by = quoted("sealed");
        let raw = member(text, "taskId").unwrap();
        let mut edits = vec![Edit { at: range_in(text, raw), by: by.clone() }];
        let own = |id: &str| (id == "x").then(|| "sealed".to_owned());
        edits.extend(related_tasks::replaced(text, text, own).map(Edit::from));
        assert_eq!(edits.len(), 2);
        edits.reverse();
        let expected = text
            .replace(r#""taskId": "x""#, r#""taskId": "sealed""#)
            .replace(r#""taskId":"x""#, r#""taskId":"sealed""#);
        assert_eq!(whole(spliced(&bytes, 0..text.len(), &edits)), expected);
        for cut in 0..=text.len() {
            let is_within = edits.iter().any(|it| it.at.start < cut && cut < it.at.end);
            let parts = [0..cut, cut..text.len()].map(|it| whole(spliced(&bytes, it, &edits)));
            assert_eq!(parts.concat() == expected, !is_within, "cut at {cut}");
        }
        let ended = ended(spliced(&bytes, 0..text.len(), &edits), Some(b",\"z\":1}"));
        assert_eq!(whole(ended), format!("{},\"z\":1}}", &expected[..expected.len() - 1]));
    }

    #[test]
    fn pro_43_names_that_resemble_members_of_a_task_are_refused() {
        for odd in [
            r#"{"taskId":"a","TaskId":"b"}"#,
            r#"{"taskId":"a","taskId":"b"}"#,
            r#"{"RESULT":{}}"#,
            r#"{"\u0072esult":{},"result":{}}"#,
            "[]",
        ] {
            assert_eq!(readable(odd), Err(TaskFault::Ambiguous), "{odd}");
        }
        assert_eq!(readable(r#"{"taskId":"a","x":{"taskId":"b"}}"#), Ok(()));
    }
}
