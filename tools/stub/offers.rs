//! Items that the stub offers besides tools, with `--offers`: resources, templates, prompts, completions.
//!
//! The answers deliberately have an unusual spelling, and contain the request as it was received, so that a test
//! notices every byte that was changed on the way.

use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{Reply, Stub};

const RESOURCES: &[&str] = &[
    r#"{"uri" : "file:///notes/a%20b.txt","name":"notes","n":1.0e5,"_meta":{"uri":"inner"},"x":"\u0041"}"#,
    r#"{"name":"hostile","uri":"memo:\"q\"\n{é}\u2028"}"#,
    r#"{"name":"shared","uri":"test://shared","icons":[ ]}"#,
];
const TEMPLATES: &[&str] = &[r#"{ "uriTemplate":"test://item/{id}{?q*}" ,"name":"item","n":1.0}"#];
const PROMPTS: &[&str] = &[
    r#"{"name" : "greet","title":"Greet","arguments":[{"name":"who","required":true}],"n":1.0e5}"#,
    r#"{"name":"under__score"}"#,
    r#"{"name":"say \"hi\"\né"}"#,
];
const MALFORMED: &[&str] = &["7", "null", "{}", r#"{"name":7,"uri":7,"uriTemplate":7}"#];

/// Methods that request a single offered item.
pub(crate) const ASKED: [&str; 5] = [
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/get",
    "completion/complete",
];

/// Resources under this scheme do not exist.
const MISSING: &str = "missing:";
/// Reading this resource adds another one.
const GROWS: &str = "test://grows";

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
}

/// Capabilities that the server declares.
pub(crate) fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "logging": {},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true},
        "completions": {},
    })
}

/// The reply to a request of one of the methods for these items; `None` for other methods.
pub(crate) fn reply(
    stub: &Stub,
    method: &str,
    id: &RawValue,
    params: Option<&RawValue>,
) -> Option<Reply> {
    let raw = params.map_or("{}", RawValue::get);
    let many = stub.options.many;
    let more = |make: &dyn Fn(usize) -> Value| (0..many).map(|i| make(i).to_string()).collect();
    let (result, after) = match method {
        "resources/list" => {
            let mut more: Vec<String> =
                more(&|i| json!({"uri": format!("test://many/{i:05}"), "name": "many"}));
            let grown = stub.counts.added.load(Ordering::Relaxed);
            more.extend((0..grown).map(|i| format!(r#"{{"uri":"test://grown/{i}","name":"g"}}"#)));
            (page(stub, "resources", RESOURCES, more, raw), None)
        }
        "resources/templates/list" => {
            (page(stub, "resourceTemplates", TEMPLATES, vec![], raw), None)
        }
        "prompts/list" => {
            let more = more(&|i| json!({"name": format!("many_{i:05}")}));
            (page(stub, "prompts", PROMPTS, more, raw), None)
        }
        "resources/read" => return Some(read(stub, id, raw)),
        "prompts/get" => {
            let content = r#"{"type":"text","text":"Hello \u0041"}"#;
            (
                format!(
                    r#"{{ "messages" : [{{"role":"user","content":{content}}}],"n":1.0e5,"got":{raw}}}"#
                ),
                None,
            )
        }
        "completion/complete" => {
            (format!(r#"{{"completion":{{"values":["\u0041b"],"total":1 }},"got":{raw}}}"#), None)
        }
        "resources/subscribe" => {
            let uri = serde_json::from_str::<Params<'_>>(raw).ok()?.uri?;
            let method = "notifications/resources/updated";
            let updated = format!(
                r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"uri":{}}}}}"#,
                uri.get()
            );
            ("{}".to_owned(), Some(updated))
        }
        "resources/unsubscribe" => ("{}".to_owned(), None),
        _ => return None,
    };
    Some(Reply {
        answer: stub.envelope(id, "result", result.as_bytes()),
        after: after.into_iter().map(String::into_bytes).collect(),
        ..stub.plain(id, &Value::Null)
    })
}

fn read(stub: &Stub, id: &RawValue, raw: &str) -> Reply {
    let params: Params<'_> = serde_json::from_str(raw).unwrap_or(Params { uri: None });
    let uri = params.uri.map_or("null", RawValue::get);
    let plain: String = serde_json::from_str(uri).unwrap_or_default();
    if plain.starts_with(MISSING) {
        return stub.fault(id, -32002, "Resource not found \u{1f4a5}");
    }
    let mut after = Vec::new();
    if plain == GROWS {
        stub.counts.added.fetch_add(1, Ordering::Relaxed);
        let method = "notifications/resources/list_changed";
        after.push(format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes());
    }
    let size = plain.strip_prefix("test://big/").and_then(|size| size.parse().ok()).unwrap_or(1);
    let text = "x".repeat(size);
    let result = format!(
        r#"{{"got":{raw}, "contents":[ {{"uri":{uri},"text":"{text}\u0041","n":1.0e5}}]}}"#
    );
    Reply {
        answer: stub.envelope(id, "result", result.as_bytes()),
        after,
        ..stub.plain(id, &Value::Null)
    }
}

/// A page of a list, in the spelling of the server.
fn page(stub: &Stub, member: &str, fixed: &[&str], more: Vec<String>, params: &str) -> String {
    let mut elements: Vec<String> = fixed.iter().map(|&element| element.to_owned()).collect();
    if stub.options.malformed {
        elements.splice(1..1, MALFORMED.iter().map(|&element| element.to_owned()));
    }
    elements.extend(more);
    let params: Value = serde_json::from_str(params).unwrap_or_default();
    let from = params
        .get("cursor")
        .and_then(Value::as_str)
        .and_then(|cursor| cursor.parse().ok())
        .unwrap_or(0);
    let size = if stub.options.page == 0 { elements.len() } else { stub.options.page };
    let upto = (from + size).min(elements.len());
    let next =
        if upto < elements.len() { format!(r#","nextCursor":"{upto}""#) } else { String::new() };
    let shown = elements.get(from..upto).unwrap_or_default().join(" , ");
    format!(r#"{{"{member}":[{shown}]{next}}}"#)
}
