//! What a client of the stateless revision is asked by the answer to its request, and what it brings along when it makes
//! the request again (MCP 2026-07-28 §Multi Round-Trip Requests). Pure.
//!
//! Whose state it is, and whether the answer counts, is not known here.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::json;

use super::render;
use crate::approvals::{ApprovalVerdict, Extent, UserSaid};
use crate::json::members::{members, string};
use crate::mcp::meta::SERVER_KEY;

/// The key of our question; there is one.
const QUESTION: &str = "approval";

/// The result that asks for an approval: `message` is for the client's user, `state` comes back as it is.
pub(super) fn result(message: &str, state: &str) -> Bytes {
    let question = json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form", "message": message,
            "requestedSchema": {"type": "object", "properties": {}},
        },
    });
    let result = json!({
        "resultType": "input_required",
        "inputRequests": {QUESTION: question},
        "requestState": state,
        "_meta": {SERVER_KEY: render::server_info()},
    });
    result.to_string().into()
}

/// What a client brings along to a request that it makes again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Brought {
    /// `requestState`
    pub(super) state: String,
    /// Its answer to our question, if the state is ours.
    pub(super) said: UserSaid,
}

impl Brought {
    /// Reads it from the members beside the arguments, raw JSON `"key":value` joined by commas; `None` if there is no
    /// state among them.
    pub(super) fn read(beside: &[u8]) -> Option<Self> {
        let text = format!("{{{}}}", std::str::from_utf8(beside).ok()?);
        let state = string(find(&text, "requestState")?)?.into_owned();
        let said = find(&text, "inputResponses").map_or(UserSaid::Missing, said);
        Some(Self { state, said })
    }
}

/// `action` of the answer to our question. What is no action that we know is no answer.
fn said(responses: &str) -> UserSaid {
    let Some(answer) = find(responses, QUESTION) else { return UserSaid::Missing };
    match find(answer, "action").and_then(string).as_deref().map(verdict) {
        Some(Some(verdict)) => UserSaid::Verdict(verdict),
        Some(None) | None => UserSaid::Nothing,
    }
}

/// What the `action` of an elicitation says to a call.
pub(super) fn verdict(action: &str) -> Option<ApprovalVerdict> {
    match action {
        "accept" => Some(ApprovalVerdict::Approve(Extent::Once)),
        "decline" => Some(ApprovalVerdict::Deny),
        _ => None,
    }
}

fn find<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut members = members(object).ok()?.map_while(Result::ok);
    members.find_map(|(key, value): (Cow<'_, str>, &str)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_8_what_a_client_brings_along_is_read() {
        let approve = UserSaid::Verdict(ApprovalVerdict::Approve(Extent::Once));
        for (responses, said) in [
            (r#","inputResponses":{"approval":{"action":"accept","content":{}}}"#, approve),
            (
                r#","inputResponses":{"approval":{"action":"decline"}}"#,
                UserSaid::Verdict(ApprovalVerdict::Deny),
            ),
            (
                r#","inputResponses":{"x":{"action":"accept"},"approval":{"action":"cancel"}}"#,
                UserSaid::Nothing,
            ),
            (r#","inputResponses":{"approval":{"action":7}}"#, UserSaid::Nothing),
            (r#","inputResponses":{"approval":"accept"}"#, UserSaid::Nothing),
            (r#","inputResponses":{"approval":null}"#, UserSaid::Nothing),
            (r#","inputResponses":{"other":{"action":"accept"}}"#, UserSaid::Missing),
            (r#","inputResponses":{}"#, UserSaid::Missing),
            (r#","inputResponses":7"#, UserSaid::Missing),
            ("", UserSaid::Missing),
        ] {
            let beside = format!(r#""requestState":"a\u0062"{responses}"#);
            let brought = Brought { state: "ab".into(), said };
            assert_eq!(Brought::read(beside.as_bytes()), Some(brought), "{beside}");
        }
        for none in ["", r#""requestState":7"#, r#""task":{}"#, r#""inputResponses":{}"#] {
            assert_eq!(Brought::read(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn cap_8_the_question_is_a_form_without_fields() {
        let result = result("Allow?", "state");
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        assert_eq!(
            (&result["resultType"], &result["requestState"]),
            (&json!("input_required"), &json!("state"))
        );
        let question = &result["inputRequests"][QUESTION];
        assert_eq!(
            (&question["method"], &question["params"]["mode"]),
            (&json!("elicitation/create"), &json!("form"))
        );
        assert_eq!(question["params"]["requestedSchema"]["type"], "object");
    }
}
