//! Table of the members of each forwarded message, by method and revision.
//!
//! Taken from the schemas of MCP 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28. Every request, notification and result has
//! `_meta`. The Tasks extension (SEP-2663) adds methods, but no members to other methods.

use Shape::{Each, Free, Object, Verbatim};

use crate::mcp::meta;
use crate::mcp::revisions::Revision;
use crate::mcp::revisions::Revision::{July2026, June2025, March2025, November2024, November2025};
use mcpproxy_json::fold;

const fn known(name: &'static str, shape: Shape) -> Known {
    Known { name, shape, since: November2024, until: July2026 }
}

const fn plain(name: &'static str) -> Known {
    known(name, Verbatim)
}

impl Known {
    const fn since(self, since: Revision) -> Self {
        Self { since, ..self }
    }

    const fn only(self, revision: Revision) -> Self {
        Self { since: revision, until: revision, ..self }
    }
}

/// Keys of `_meta` that are read on a hop. Case variants of them are refused; other keys pass.
pub const META_KEYS: &[&str] = &[
    meta::PROGRESS_KEY,
    meta::VERSION_KEY,
    meta::CLIENT_KEY,
    meta::CAPABILITIES_KEY,
    meta::LOG_LEVEL_KEY,
    meta::TASK_KEY,
    meta::SUBSCRIPTION_KEY,
];

const META: Known = known("_meta", Free(META_KEYS));
const TASK: Known = known("task", Object(&[plain("ttl")])).only(November2025);

/// Members of a client's retry (MCP 2026-07-28 §Multi Round-Trip Requests).
const INPUTS: Known = known("inputResponses", Each(ANSWERS)).since(July2026);
const STATE: Known = plain("requestState").since(July2026);

/// Client's answer to any request of a server.
const ANSWERS: &[Known] = &[
    plain("action"),
    plain("content"),
    plain("role"),
    plain("model"),
    plain("stopReason"),
    plain("roots"),
    META,
];

/// `params` of `tools/call`.
pub const TOOLS_CALL: &[Known] = &[plain("name"), plain("arguments"), META, TASK, INPUTS, STATE];
const RESOURCES_READ: &[Known] = &[plain("uri"), META, INPUTS, STATE];
const SUBSCRIBE: &[Known] = &[plain("uri"), META];
/// `params` of the methods of SEP-2640, in every revision.
const DIRECTORY_READ: &[Known] = &[plain("uri"), plain("cursor"), META];
const SKILL_GET: &[Known] = &[plain("uri"), META];
const PROMPTS_GET: &[Known] = &[plain("name"), plain("arguments"), META, INPUTS, STATE];
const COMPLETE: &[Known] = &[
    known("ref", Object(REFERENCE)),
    known("argument", Object(&[plain("name"), plain("value")])),
    known("context", Object(&[plain("arguments")])).since(June2025),
    META,
];
/// Requests about a task; in July2026, they belong to the Tasks extension.
const TASK_ID: &[Known] = &[plain("taskId"), META];
const TASK_UPDATE: &[Known] = &[plain("taskId"), INPUTS, META];
/// Reference to a prompt or a resource template.
const REFERENCE: &[Known] =
    &[plain("type"), plain("name"), plain("title").since(June2025), plain("uri")];

const CREATE_MESSAGE: &[Known] = &[
    plain("messages"),
    plain("modelPreferences"),
    plain("systemPrompt"),
    plain("includeContext"),
    plain("temperature"),
    plain("maxTokens"),
    plain("stopSequences"),
    plain("metadata"),
    plain("tools").since(November2025),
    plain("toolChoice").since(November2025),
    TASK,
    META,
];
const ELICIT: &[Known] = &[
    plain("message"),
    plain("requestedSchema"),
    plain("mode").since(November2025),
    plain("url").since(November2025),
    plain("elicitationId").only(November2025),
    TASK,
    META,
];
const ONLY_META: &[Known] = &[META];

const PROGRESS: &[Known] = &[
    plain("progressToken"),
    plain("progress"),
    plain("total"),
    plain("message").since(March2025),
    META,
];
const LOG_MESSAGE: &[Known] = &[plain("level"), plain("logger"), plain("data"), META];
const ELICITATION_COMPLETE: &[Known] = &[plain("elicitationId").only(November2025), META];
const CANCELED: &[Known] = &[plain("requestId"), plain("reason"), META];

/// Task that a client has created for a server's request (MCP 2025-11-25 §Tasks).
const TASK_MADE: Known = known(
    "task",
    Object(&[
        plain("taskId"),
        plain("status"),
        plain("statusMessage"),
        plain("createdAt"),
        plain("lastUpdatedAt"),
        plain("ttl"),
        plain("pollInterval"),
    ]),
)
.only(November2025);
const MESSAGE_CREATED: &[Known] =
    &[plain("role"), plain("content"), plain("model"), plain("stopReason"), TASK_MADE, META];
const ELICITED: &[Known] = &[plain("action"), plain("content"), TASK_MADE, META];
const ROOTS: &[Known] = &[plain("roots"), META];

const ERROR: &[Known] = &[plain("code"), plain("message"), plain("data")];

/// Shape of a method's `params`; `None` if the method is not forwarded.
pub fn params(method: &str) -> Option<Shape> {
    of_params(method).map(Object)
}

/// Members of a method's `params`; `None` if the method is not forwarded.
fn of_params(method: &str) -> Option<&'static [Known]> {
    Some(match method {
        "tools/call" => TOOLS_CALL,
        "resources/read" => RESOURCES_READ,
        "resources/subscribe" | "resources/unsubscribe" => SUBSCRIBE,
        "resources/directory/read" => DIRECTORY_READ,
        "skills/get" => SKILL_GET,
        "prompts/get" => PROMPTS_GET,
        "completion/complete" => COMPLETE,
        "tasks/get" | "tasks/cancel" | "tasks/result" => TASK_ID,
        "tasks/update" => TASK_UPDATE,
        "sampling/createMessage" => CREATE_MESSAGE,
        "elicitation/create" => ELICIT,
        "roots/list" => ONLY_META,
        "notifications/progress" => PROGRESS,
        "notifications/message" => LOG_MESSAGE,
        "notifications/elicitation/complete" => ELICITATION_COMPLETE,
        "notifications/cancelled" => CANCELED,
        _ => return None,
    })
}

/// Shape of the client's `result` for a server request; `None` for any other method.
pub fn result(method: &str) -> Option<Shape> {
    Some(Object(match method {
        "sampling/createMessage" => MESSAGE_CREATED,
        "elicitation/create" => ELICITED,
        "roots/list" => ROOTS,
        _ => return None,
    }))
}

/// `error` of a response.
pub fn error() -> Shape {
    Object(ERROR)
}

/// JSON-RPC 2.0 message.
pub const ENVELOPE: &[Known] = &[
    plain("jsonrpc"),
    plain("id"),
    plain("method"),
    plain("params"),
    plain("result"),
    plain("error"),
];

/// Request or notification.
pub const REQUEST: Shape =
    Object(&[plain("jsonrpc"), plain("id"), plain("method"), plain("params")]);

/// Shape of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Unknown: forwarded verbatim.
    Verbatim,
    /// Object with these members.
    Object(&'static [Known]),
    /// Object with free keys, of which these must be spelled exactly. Values are forwarded verbatim.
    Free(&'static [&'static str]),
    /// Object with free keys, whose values are objects with these members.
    Each(&'static [Known]),
}

/// Member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub name: &'static str,
    pub(super) shape: Shape,
    pub(super) since: Revision,
    pub(super) until: Revision,
}

/// Result of [`find`].
#[derive(Clone, Copy, Debug)]
pub enum MemberMatch {
    Known(Shape),
    /// A case variant of a member.
    Variant(&'static str),
    Unknown,
}

pub fn find(known: &'static [Known], revision: Revision, name: &str) -> MemberMatch {
    let has = |it: &Known| it.since <= revision && revision <= it.until;
    if let Some(found) = known.iter().find(|it| it.name == name) {
        return if has(found) { MemberMatch::Known(found.shape) } else { MemberMatch::Unknown };
    }
    // Members of other revisions count too, because the other side may use that revision.
    match known.iter().find(|it| fold::same(it.name, name)) {
        Some(variant) => MemberMatch::Variant(variant.name),
        None => MemberMatch::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names from each revision's `schema.json`.
    const SCHEMAS: &[(&str, Revision, &str)] = &[
        ("tools/call", November2024, "_meta arguments name"),
        ("tools/call", June2025, "_meta arguments name"),
        ("tools/call", November2025, "_meta arguments name task"),
        ("tools/call", July2026, "_meta arguments inputResponses name requestState"),
        ("resources/read", November2025, "_meta uri"),
        ("resources/read", July2026, "_meta inputResponses requestState uri"),
        ("resources/subscribe", November2025, "_meta uri"),
        ("resources/unsubscribe", November2024, "_meta uri"),
        ("resources/directory/read", November2025, "_meta cursor uri"),
        ("skills/get", July2026, "_meta uri"),
        ("prompts/get", November2025, "_meta arguments name"),
        ("prompts/get", July2026, "_meta arguments inputResponses name requestState"),
        ("completion/complete", November2024, "_meta argument ref"),
        ("completion/complete", March2025, "_meta argument ref"),
        ("completion/complete", June2025, "_meta argument context ref"),
        ("completion/complete", July2026, "_meta argument context ref"),
        ("tasks/get", November2025, "_meta taskId"),
        ("tasks/cancel", July2026, "_meta taskId"),
        ("tasks/result", November2025, "_meta taskId"),
        ("tasks/update", July2026, "_meta inputResponses taskId"),
        (
            "sampling/createMessage",
            June2025,
            "_meta includeContext maxTokens messages metadata modelPreferences stopSequences \
             systemPrompt temperature",
        ),
        (
            "sampling/createMessage",
            November2025,
            "_meta includeContext maxTokens messages metadata modelPreferences stopSequences \
             systemPrompt task temperature toolChoice tools",
        ),
        ("elicitation/create", June2025, "_meta message requestedSchema"),
        (
            "elicitation/create",
            November2025,
            "_meta elicitationId message mode requestedSchema task url",
        ),
        ("elicitation/create", July2026, "_meta message mode requestedSchema url"),
        ("roots/list", November2024, "_meta"),
        ("notifications/progress", November2024, "_meta progress progressToken total"),
        ("notifications/progress", March2025, "_meta message progress progressToken total"),
        ("notifications/message", July2026, "_meta data level logger"),
        ("notifications/elicitation/complete", November2025, "_meta elicitationId"),
        ("notifications/cancelled", July2026, "_meta reason requestId"),
    ];

    #[test]
    fn table_equals_the_schemas_of_the_revisions() {
        for (method, revision, expected) in SCHEMAS {
            let has = |it: &&Known| it.since <= *revision && *revision <= it.until;
            let mut names: Vec<_> =
                of_params(method).unwrap().iter().filter(has).map(|it| it.name).collect();
            names.sort_unstable();
            assert_eq!(names.join(" "), *expected, "{method} {revision:?}");
        }
        assert!(params("tools/list").is_none() && result("tools/call").is_none());
    }

    #[test]
    fn names_of_an_object_are_not_variants_of_each_other() {
        fn check(shape: Shape) {
            let (Object(known) | Each(known)) = shape else { return };
            assert!(known.len() <= 64, "one bit each");
            for (at, one) in known.iter().enumerate() {
                assert!(one.name.is_ascii());
                let twin = |other: &Known| mcpproxy_json::fold::same(one.name, other.name);
                assert!(!known.iter().skip(at + 1).any(twin), "{}", one.name);
                check(one.shape);
            }
        }
        for (method, ..) in SCHEMAS {
            params(method).into_iter().chain(result(method)).for_each(check);
        }
        check(Object(ENVELOPE));
        check(error());
    }
}
