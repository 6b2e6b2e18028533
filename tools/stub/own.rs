//! Tools of one server only (`--own`): any number of them. The tools of two servers differ in words and schemas, like
//! the tools of many real servers.
//!
//! They are only listed; the answer to a call is one fixed text.

use serde_json::{Value, json};

/// Effects of the tools.
const VERBS: [&str; 8] =
    ["list", "read", "create", "update", "delete", "search", "export", "archive"];
const NOUNS: [&str; 12] = [
    "issues",
    "invoices",
    "branches",
    "tickets",
    "documents",
    "messages",
    "calendars",
    "deployments",
    "customers",
    "pictures",
    "queries",
    "reports",
];

/// `count` tools of the server called `server`.
pub(crate) fn listed(server: &str, count: usize) -> Vec<Value> {
    let word = server.trim_matches('/').replace('/', "_");
    let pick = |words: &[&'static str], at: usize| words.get(at % words.len()).copied();
    let tool = |number: usize| {
        let verb = pick(&VERBS, number).unwrap_or_default();
        let noun = pick(&NOUNS, number / VERBS.len() + word.len() + number).unwrap_or_default();
        let about = format!(
            "Use this to {verb} the {noun} of the workspace {word}. It takes the identifier of one \
             of the {noun}, or a filter by owner, state and date, and returns at most the given \
             number of them in the order in which they were changed. Number {number} of {word}."
        );
        json!({
            "name": format!("{verb}_{noun}_{number}"),
            "description": about,
            "annotations": {"readOnlyHint": number.is_multiple_of(2), "title": format!("{verb} {noun}")},
            "inputSchema": {"type": "object", "required": ["workspace"], "properties": {
                "workspace": {"type": "string", "description": format!("The workspace, {word} if absent")},
                "owner": {"type": "string", "description": format!("Only the {noun} of this owner")},
                "state": {"enum": ["open", "closed", "all"], "description": "Only in this state"},
                "since": {"type": "string", "format": "date-time", "description": "Changed since then"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100}}},
            "outputSchema": {"type": "object", "required": ["items"], "properties": {
                "items": {"type": "array", "items": {"type": "object", "required": ["id"], "properties": {
                    "id": {"type": "integer", "minimum": 0},
                    "name": {"type": "string", "maxLength": 64 + number},
                    format!("{word}_state"): {"enum": ["open", "closed"]},
                    "tags": {"type": "array", "items": {"type": "string"}}}}},
                "total": {"type": "integer"}}},
        })
    };
    (0..count).map(tool).collect()
}
