//! `_meta`: keys, the members added to modern requests, and the client members that an approval covers. Pure.

use serde_json::{Value, json};

use super::known_extensions::{Extensions, TASKS_EXTENSION};
use super::trace_context;
use mcpproxy_json::members::{member, members, string};

/// Key of the request's revision.
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// Key of the sender's name and version.
pub const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
/// Key of the sender's capabilities.
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// Key of the minimum severity of log messages for the sender.
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// Key of the task of a message.
pub const TASK_KEY: &str = "io.modelcontextprotocol/related-task";
/// Key of the subscription of a notification.
pub const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";
pub const SERVER_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// Key of the progress token.
pub const PROGRESS_KEY: &str = "progressToken";

/// Members of `_meta` of each request to a modern server (MCP 2026-07-28 §General fields).
pub const OURS: &str = concat!(
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"mcpproxy","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);
/// Additional member, with its comma, that declares no capabilities: for a request without a client, or with a client that supports none.
pub const NO_CAPABILITIES: &str = r#","io.modelcontextprotocol/clientCapabilities":{}"#;
/// `_meta` of the proxy's own requests: all capabilities and known extensions, so that a server hides nothing from its lists.
pub const EVERYTHING: &[u8] = concat!(
    r#"{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{},"#,
    r#""extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"#,
    r#""io.modelcontextprotocol/skills":{},"io.modelcontextprotocol/tasks":{}}}}"#
)
.as_bytes();
/// Name of the capabilities member that holds the extensions.
pub const EXTENSIONS: &str = "extensions";

/// Whether the `_meta` of a request declares the extension for tasks.
pub fn declares_tasks(meta: &[u8]) -> bool {
    let declared = || {
        let meta = std::str::from_utf8(meta).ok()?;
        member(member(member(meta, CAPABILITIES_KEY)?, EXTENSIONS)?, TASKS_EXTENSION)
    };
    declared().is_some_and(|settings| settings.starts_with('{'))
}

/// Capabilities of a client that a server may use through the proxy, each with its parts; known extensions are added to
/// them. Unknown capabilities are excluded, because a server that relies on one could give answers that the client
/// cannot follow up.
const BRIDGED: [(&str, &[&str]); 3] =
    [("elicitation", &["form", "url"]), ("sampling", &["tools", "context"]), ("roots", &[])];

/// Writes the declared capabilities of a client that the proxy bridges; an empty object if there are none. Only known
/// words are written, with empty objects as values: anything else would be a covert channel. `tasks` adds the extension
/// for tasks; the caller must have checked that both sides declare it.
pub fn push_bridged(out: &mut Vec<u8>, declared: &str, tasks: bool) {
    out.push(b'{');
    let start = out.len();
    let mut has_tasks = !tasks;
    for (name, value) in members(declared).ok().into_iter().flatten().map_while(Result::ok) {
        if name == EXTENSIONS {
            let extensions = Extensions::declared(value);
            if !extensions.is_empty() || !has_tasks {
                if out.len() > start {
                    out.push(b',');
                }
                extensions.push_with(!std::mem::replace(&mut has_tasks, true), out);
            }
            continue;
        }
        let Some((name, parts)) = BRIDGED.iter().find(|(known, _)| *known == &*name) else {
            continue;
        };
        let comma: &[u8] = if out.len() > start { b"," } else { b"" };
        for part in [comma, b"\"", name.as_bytes(), b"\":{"] {
            out.extend_from_slice(part);
        }
        let inner = out.len();
        let within = members(value).ok().into_iter().flatten().map_while(Result::ok);
        for (part, _) in within.filter(|(part, _)| parts.contains(&&**part)) {
            let comma: &[u8] = if out.len() > inner { b"," } else { b"" };
            for piece in [comma, b"\"", part.as_bytes(), b"\":{}"] {
                out.extend_from_slice(piece);
            }
        }
        out.push(b'}');
    }
    if !has_tasks {
        if out.len() > start {
            out.push(b',');
        }
        Extensions::NONE.push_with(true, out);
    }
    out.push(b'}');
}

/// Keys of one hop or one message: sender, capabilities, trace.
const OF_THE_HOP: [&str; 7] = [
    VERSION_KEY,
    CLIENT_KEY,
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    PROGRESS_KEY,
    trace_context::PARENT,
    trace_context::STATE,
];

/// Members of a request's `_meta` other than those of the hop, verbatim and in order, as one JSON object. They belong
/// to the request that an approval covers. If `baggage` is given, it replaces the one in `_meta`, because the client
/// may have stated it elsewhere. `None` if there are no members.
pub fn asked(meta: Option<&[u8]>, baggage: Option<&str>) -> Option<String> {
    let is_asked = |key: &str| {
        !OF_THE_HOP.contains(&key) && (baggage.is_none() || key != trace_context::BAGGAGE)
    };
    let asked = meta.and_then(|meta| selected(meta, is_asked));
    match (asked, baggage) {
        (asked, None) => asked,
        (None, Some(baggage)) => Some(json!({ trace_context::BAGGAGE: baggage }).to_string()),
        (Some(asked), Some(baggage)) => {
            let before = asked.strip_suffix('}').unwrap_or(&asked);
            Some(format!("{before},\"{}\":{}}}", trace_context::BAGGAGE, Value::from(baggage)))
        }
    }
}

/// The members of a `_meta` that apply to one hop, without the trace. Used for a request to which nothing may be added,
/// because a person has approved it. `None` if there are none.
pub fn of_hop(meta: &[u8]) -> Option<String> {
    const TRACE: [&str; 2] = [trace_context::PARENT, trace_context::STATE];
    selected(meta, |key| OF_THE_HOP.contains(&key) && !TRACE.contains(&key))
}

/// A `_meta` without the client's `traceparent` and `tracestate`. `None` if it contains nothing else.
pub fn without_trace(meta: &[u8]) -> Option<String> {
    selected(meta, |key| key != trace_context::PARENT && key != trace_context::STATE)
}

/// A `_meta` without the task that the message is related to. `None` if it contains nothing else.
pub fn without_task(meta: &[u8]) -> Option<String> {
    selected(meta, |key| key != TASK_KEY)
}

/// The selected members, verbatim and in order, as one JSON object. `None` if there are none, or if `meta` is not an object.
fn selected(meta: &[u8], is_selected: impl Fn(&str) -> bool) -> Option<String> {
    let text = std::str::from_utf8(meta).ok()?;
    let mut selected = None;
    for member in members(text).ok()? {
        let (key, value) = member.ok()?;
        if is_selected(&key) {
            let selected = selected.get_or_insert_with(String::new);
            selected.push(if selected.is_empty() { '{' } else { ',' });
            selected.push_str(&Value::from(&*key).to_string());
            selected.push(':');
            selected.push_str(value);
        }
    }
    selected.map(|selected| selected + "}")
}

/// Words that may be sent to a server as the minimum level of log messages (RFC 5424).
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Level named by this raw value of [`LOG_LEVEL_KEY`]. Any other value would be a covert channel.
pub fn log_level(value: &str) -> Option<&'static str> {
    let word = string(value)?;
    LEVELS.into_iter().find(|level| *level == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::capabilities::ClientCapabilities;
    use crate::mcp::revisions::MODERN;

    #[test]
    fn members_beyond_the_hop_are_part_of_the_request() {
        let hop = concat!(
            r#""progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28","traceparent":"x","tracestate":"y","#,
            r#""io.modelcontextprotocol/clientInfo":{},"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"debug""#
        );
        for (meta, expected) in [
            ("{}".to_owned(), None),
            (format!("{{{hop}}}"), None),
            ("7".to_owned(), None),
            (r#"{"a" : [1, 2]}"#.to_owned(), Some(r#"{"a":[1, 2]}"#)),
            (
                format!("{{{hop},\"x/dry_run\":false,\"baggage\":\"k=v\"}}"),
                Some(r#"{"x/dry_run":false,"baggage":"k=v"}"#),
            ),
            (r#"{"progress\u0054oken":1,"\u00e9":1}"#.to_owned(), Some("{\"é\":1}")),
        ] {
            assert_eq!(asked(Some(meta.as_bytes()), None).as_deref(), expected, "{meta}");
        }
        assert_eq!(asked(Some(b"\xff"), None), None);
        assert_eq!(asked(None, None), None);
    }

    #[test]
    fn pro_43_meta_of_the_hop_contains_no_text_that_the_client_can_choose() {
        let meta = r#"{"x/a":"text","baggage":"k=v","traceparent":"t","tracestate":"s","progressToken":7,"io.modelcontextprotocol/clientCapabilities":{}}"#;
        let expected = r#"{"progressToken":7,"io.modelcontextprotocol/clientCapabilities":{}}"#;
        assert_eq!(of_hop(meta.as_bytes()).as_deref(), Some(expected));
        assert_eq!(of_hop(br#"{"x":1}"#), None);
    }

    #[test]
    fn apr_1_baggage_from_the_header_is_shown_for_approval() {
        for (meta, expected) in [
            (None, r#"{"baggage":"k=\"v"}"#),
            (Some(r#"{"traceparent":"x"}"#), r#"{"baggage":"k=\"v"}"#),
            (Some(r#"{"a":1,"baggage":"other","b":2}"#), r#"{"a":1,"b":2,"baggage":"k=\"v"}"#),
        ] {
            let meta = meta.map(str::as_bytes);
            assert_eq!(asked(meta, Some("k=\"v")).as_deref(), Some(expected));
        }
    }

    #[test]
    fn apr_1_trace_of_the_client_is_omitted_and_other_members_are_kept() {
        let meta =
            r#"{"traceparent":"x", "progressToken": 7,"tr\u0061cestate":"y","baggage":"k=v"}"#;
        let expected = r#"{"progressToken":7,"baggage":"k=v"}"#;
        assert_eq!(without_trace(meta.as_bytes()).as_deref(), Some(expected));
        assert_eq!(without_trace(br#"{"tracestate":"y"}"#), None);
    }

    #[test]
    fn apr_1_only_known_words_count_as_a_log_level() {
        for (value, level) in [
            (r#""debug""#, Some("debug")),
            (r#""emer\u0067ency""#, Some("emergency")),
            (r#""Debug""#, None),
            (r#""data that nobody sees""#, None),
            ("7", None),
            (r#"{"level":"debug"}"#, None),
        ] {
            assert_eq!(log_level(value), level, "{value}");
        }
    }

    #[test]
    fn pro_33_only_bridged_capabilities_are_forwarded() {
        for (declared, expected) in [
            ("{}", "{}"),
            (r#"{"tasks":{},"x":{"roots":{}}}"#, "{}"),
            (
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}, "elicitation" : {"url":{ "x":"data"},"y":1},"tasks":{"list":{}},"r\u006fots":{},"sampling":{"tools":{}}}"#,
                r#"{"elicitation":{"url":{}},"roots":{},"sampling":{"tools":{}}}"#,
            ),
            ("7", "{}"),
            (
                r#"{"roots":{},"extensions":{"x":{},"io.modelcontextprotocol/skills":{"data":1}},"sampling":{}}"#,
                r#"{"roots":{},"extensions":{"io.modelcontextprotocol/skills":{}},"sampling":{}}"#,
            ),
        ] {
            let mut out = b"x".to_vec();
            push_bridged(&mut out, declared, false);
            assert_eq!(String::from_utf8(out).unwrap(), format!("x{expected}"), "{declared}");
        }
    }

    #[test]
    fn pro_43_tasks_are_declared_without_client_chosen_values() {
        let tasks = r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#;
        for (declared, expected) in [
            ("{}", format!("{{{tasks}}}")),
            (
                r#"{"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{"x":"data"}}}"#,
                format!(r#"{{"roots":{{}},{tasks}}}"#),
            ),
        ] {
            let mut out = Vec::new();
            push_bridged(&mut out, declared, true);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{declared}");
        }
        for (declared, is_declared) in [
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, true),
            (r#"{"extensions":{"io.modelcontextprotocol\u002ftasks":{"x":1}}}"#, true),
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":true}}"#, false),
            (r#"{"extensions":{"x":{}},"io.modelcontextprotocol/tasks":{}}"#, false),
            (r#"{"tasks":{}}"#, false),
            ("7", false),
        ] {
            let meta = format!("{{\"{CAPABILITIES_KEY}\":{declared}}}");
            assert_eq!(declares_tasks(meta.as_bytes()), is_declared, "{declared}");
        }
    }

    #[test]
    fn own_meta_uses_the_protocol_keys() {
        let own: Value = serde_json::from_str(&format!("{{{OURS}{NO_CAPABILITIES}}}")).unwrap();
        assert_eq!(own[VERSION_KEY], MODERN);
        assert_eq!(own[CLIENT_KEY]["name"], "mcpproxy");
        assert!(own[CAPABILITIES_KEY].as_object().unwrap().is_empty());
        let all: Value = serde_json::from_slice(EVERYTHING).unwrap();
        let declared: ClientCapabilities =
            serde_json::from_str(&all[CAPABILITIES_KEY].to_string()).unwrap();
        let everything =
            ClientCapabilities { extensions: Extensions::ALL, ..ClientCapabilities::ALL };
        assert_eq!(declared, everything);
        assert!(declares_tasks(EVERYTHING));
        let mut written = Vec::new();
        push_bridged(&mut written, &all[CAPABILITIES_KEY].to_string(), true);
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), all[CAPABILITIES_KEY]);
    }
}
