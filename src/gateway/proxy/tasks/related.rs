//! Relation of a message to a task: `_meta["io.modelcontextprotocol/related-task"]` (MCP 2025-11-25 §Related Task
//! Metadata; PRO-43).
//!
//! A client identifies a task by its sealed id, the server by its own id. The relation is therefore opened in a
//! client's messages and sealed in a server's; a relation to a foreign task is removed. Pure functions: the caller
//! supplies the keys and the table.

use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use mcpproxy_json::members::{member, members, string};
use mcpproxy_policy::approvals::ApprovalQueue;
use mcpproxy_policy::{Access, Principal};
use mcpproxy_protocol::mcp::meta::{TASK_KEY, without_task};
use mcpproxy_upstream::CallExtras;
use serde_json::Value;

/// End of [`TASK_KEY`], for a search before parsing.
const NAME: &[u8] = b"related-task";
const META: &str = "_meta";

/// Replacement of a part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RelationEdit {
    pub(crate) at: Range<usize>,
    pub(crate) by: String,
}

impl RelationEdit {
    fn applied(&self, text: &str) -> Option<String> {
        Some([text.get(..self.at.start)?, &self.by, text.get(self.at.end..)?].concat())
    }
}

/// Range of a part of `text`.
pub(crate) fn range_in(text: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    start..start + part.len()
}

/// Replaces the relation in the `_meta` of `object`, a part of `text`, by a relation to the task that `other` finds
/// for its id, or removes it. `None` if there is no relation.
pub(crate) fn replaced(
    text: &str,
    object: &str,
    other: impl FnOnce(&str) -> Option<String>,
) -> Option<RelationEdit> {
    replaced_in_meta(text, member(object, META)?, other)
}

fn replaced_in_meta(
    text: &str,
    meta: &str,
    other: impl FnOnce(&str) -> Option<String>,
) -> Option<RelationEdit> {
    let related = member(meta, TASK_KEY)?;
    let raw = member(related, "taskId").unwrap_or_default();
    Some(match string(raw).and_then(|id| other(&id)) {
        Some(id) => RelationEdit { at: range_in(text, raw), by: Value::from(id).to_string() },
        None => {
            let by = without_task(meta.as_bytes()).unwrap_or_else(|| "{}".to_owned());
            RelationEdit { at: range_in(text, meta), by }
        }
    })
}

/// Opens the relation of a client's request before the decision and the record: a sealed id is not recorded.
pub(crate) fn open(
    approvals: &ApprovalQueue,
    principal: &Principal,
    access: &Access,
    extras: &mut CallExtras,
) {
    let Some(meta) = &extras.meta else { return };
    // The name may be written with escapes.
    if memchr::memmem::find(meta, NAME).is_none() && memchr::memchr(b'\\', meta).is_none() {
        return;
    }
    let own = |sealed: &str| {
        let opened = approvals.open_task(sealed, principal, SystemTime::now())?;
        (*opened.server == **access.server()).then(|| opened.id.into())
    };
    let opened = std::str::from_utf8(meta).ok();
    let opened = opened.and_then(|meta| replaced_in_meta(meta, meta, own)?.applied(meta));
    if let Some(opened) = opened {
        extras.meta = Some(opened.into());
    }
}

/// Opens relations to the task of this sealed id in a client's `inputResponses`, raw JSON.
pub(crate) fn opened_inputs(inputs: &str, sealed: &str, own: &str) -> String {
    let mut opened = inputs.to_owned();
    let own = |id: &str| (id == sealed).then(|| own.to_owned());
    // Last to first, so that earlier positions stay valid.
    let answers = members(inputs).into_iter().flatten().map_while(Result::ok);
    let mut all: Vec<_> = answers.filter_map(|(_, answer)| replaced(inputs, answer, own)).collect();
    all.sort_by_key(|replaced| std::cmp::Reverse(replaced.at.start));
    for RelationEdit { at, by } in all {
        opened.replace_range(at, &by);
    }
    opened
}

/// Seals the relation to a task in a server's message to a client; `sealed` finds the sealed id. Also returns the
/// server's id of the task.
pub(crate) fn sealed_message(
    message: &Bytes,
    sealed: impl FnOnce(&str) -> Option<String>,
) -> (Bytes, Option<Box<str>>) {
    let mut own = None;
    let found = || {
        let text = std::str::from_utf8(message).ok()?;
        let sealed = |id: &str| {
            let sealed = sealed(id)?;
            own = Some(id.into());
            Some(sealed)
        };
        replaced(text, member(text, "params")?, sealed)?.applied(text)
    };
    let message = found().map_or_else(|| message.clone(), Bytes::from);
    (message, own)
}

/// Relates a client's answer to a server's request, a raw member `result` or `error`, to the server's task.
pub(crate) fn opened_answer(outcome: Bytes, task: Option<&str>) -> Bytes {
    let opened = || {
        let text = std::str::from_utf8(&outcome).ok()?;
        let result = text.strip_prefix("\"result\":")?;
        replaced(text, result, |_| task.map(str::to_owned))?.applied(text)
    };
    opened().map_or(outcome, Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(id: &str) -> Option<String> {
        (id == "own").then(|| "sealed".to_owned())
    }

    #[test]
    fn pro_43_related_task_of_a_message_is_replaced_or_removed() {
        let related =
            |id: &str| format!(r#""io.modelcontextprotocol/related-task" : {{"taskId": {id} }}"#);
        for (meta, expected, task) in [
            (
                format!(r#"{{"a" : 1,{}}}"#, related(r#""\u006fwn""#)),
                format!(r#"{{"a" : 1,{}}}"#, related(r#""sealed""#)),
                Some("own"),
            ),
            (format!(r#"{{"a" : 1,{}}}"#, related(r#""other""#)), r#"{"a":1}"#.to_owned(), None),
            (format!("{{{}}}", related("7")), "{}".to_owned(), None),
            (format!("{{{}}}", related(r#""other""#)), "{}".to_owned(), None),
            (
                r#"{"io.modelcontextprotocol\/rel\u0061ted-task":7}"#.to_owned(),
                "{}".to_owned(),
                None,
            ),
            (r#"{"a" : 1}"#.to_owned(), r#"{"a" : 1}"#.to_owned(), None),
        ] {
            let message =
                |meta: &str| format!(r#"{{"method":"m","params":{{"_meta":{meta}, "b":[ ]}}}}"#);
            let (sealed, own) = sealed_message(&message(&meta).into(), known);
            assert_eq!(sealed, message(&expected), "{meta}");
            assert_eq!(own.as_deref(), task, "{meta}");
        }
        for none in [r#"{"method":"m"}"#, r#"{"params":[]}"#, "7", "\u{e9}"] {
            assert_eq!(sealed_message(&none.into(), known), (none.into(), None));
        }
    }

    #[test]
    fn pro_43_related_task_of_an_answer_is_that_of_its_question() {
        let answer = |id: &str| {
            format!(
                r#""result":{{"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{id}"}}}},"action":"accept"}}"#
            )
        };
        let opened = |task| opened_answer(answer("sealed").into(), task);
        assert_eq!(opened(Some("own")), answer("own"));
        assert_eq!(opened(None), r#""result":{"_meta":{},"action":"accept"}"#);
        let error = Bytes::from_static(br#""error":{"code":1}"#);
        assert_eq!(opened_answer(error.clone(), Some("own")), error);
    }

    #[test]
    fn pro_43_related_task_ids_of_inputs_are_unsealed() {
        let answer = |meta: &str| format!(r#"{{"action":"accept","_meta":{meta}}}"#);
        let related =
            |id: &str| format!(r#"{{"io.modelcontextprotocol/related-task":{{"taskId":"{id}"}}}}"#);
        let inputs = |[a, b, c]: [&str; 3]| {
            format!(r#"{{"a":{},"b" : {},"c":{}}}"#, answer(a), answer(b), answer(c))
        };
        let (sealed, own, other) = (related("sealed"), related("own"), related("other"));
        assert_eq!(
            opened_inputs(&inputs([&sealed, &other, &sealed]), "sealed", "own"),
            inputs([&own, "{}", &own])
        );
        assert_eq!(opened_inputs("7", "sealed", "own"), "7");
    }
}
