//! Responses written by the proxy itself: results, failures and the members required by each revision; and tools as text.
//!
//! A server's answer never passes through here, except for the head of its envelope; [`refusal`](super::refusal)
//! writes refusals. In text blocks a tool begins at the margin and its details are indented, so that no server text
//! can begin a line of its own.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::tool::Tool;
use mcpproxy_policy::tool::signature::on_one_line;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::meta::SERVER_KEY;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_schema::output::AnswerMember;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Cacheability of a result (MCP 2026-07-28 §Caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    /// The result is not cacheable.
    No,
    Milliseconds(u64),
}

/// Response with a result of the proxy.
pub(crate) fn own(family: ProtocolFamily, id: &[u8], result: &str, caching: Caching) -> Bytes {
    jsonrpc::response(id, own_result(family, result, caching).as_bytes())
}

/// Result of the proxy as a JSON object, with the members required by modern revisions. For an upstream's result
/// they are added while it streams ([`Required`](mcpproxy_schema::output::Required); `requirements.md`,
/// *verdicts*).
pub(crate) fn own_result(family: ProtocolFamily, result: &str, caching: Caching) -> Cow<'_, str> {
    let beside = own_members(family, caching);
    let Some(members) = result.strip_prefix('{').filter(|_| !beside.is_empty()) else {
        return Cow::Borrowed(result);
    };
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    Cow::Owned(format!("{{{beside}{comma}{members}"))
}

/// Members required by modern revisions in each result: `"key":value` separated by commas; empty for legacy ones.
pub(crate) fn own_members(family: ProtocolFamily, caching: Caching) -> String {
    let by = match family {
        ProtocolFamily::Legacy => return String::new(),
        ProtocolFamily::Modern => server_info(),
    };
    let kept = match caching {
        Caching::No => String::new(),
        Caching::Milliseconds(ttl) => format!(r#""ttlMs":{ttl},"cacheScope":"private","#),
    };
    let meta = format!(r#""_meta":{{"{SERVER_KEY}":{by}}}"#);
    format!(r#""resultType":"complete",{kept}{meta}"#)
}

/// Envelope up to the value of a reply.
pub fn head(id: &[u8], member: AnswerMember) -> Bytes {
    match member {
        AnswerMember::Result => jsonrpc::result_head(id),
        AnswerMember::Error => jsonrpc::error_head(id),
    }
}

/// Tool result that reports a failure: `isError: true` and one text block.
pub(crate) fn error_result(family: ProtocolFamily, text: &str) -> Bytes {
    helping_result(family, text, "")
}

/// Failure with a second text block for `help`, unless empty; the first one keeps its well-known text.
pub(crate) fn helping_result(family: ProtocolFamily, text: &str, help: &str) -> Bytes {
    let blocks = [text, help].into_iter().enumerate();
    let blocks = blocks.filter(|(at, text)| *at == 0 || !text.is_empty());
    let content: Vec<_> = blocks.map(|(_, text)| json!({"type": "text", "text": text})).collect();
    let result = json!({"content": content, "isError": true});
    own_result(family, &result.to_string(), Caching::No).into_owned().into()
}

pub(super) fn server_info() -> Value {
    json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")})
}

/// A client's text within a message of the proxy, truncated so that it cannot inflate the message.
pub fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 128;
    word.chars().take(MAX_SHOWN_CHARS).collect()
}

/// `server:tool(parameters) -> call_tool_read`, on a line of its own.
pub(super) fn heading(text: &mut String, tool: &Tool) {
    let server = on_one_line(&tool.name.server);
    let call_with = Operation::recommended(tool.capability).variant();
    // Infallible here and below: writing to a String.
    let _ = writeln!(text, "{server}:{} -> {call_with}", tool.signature());
}

/// Writes details of the tool above.
pub(super) fn indented(text: &mut String, lines: &str) {
    for line in lines.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "  {}", on_one_line(&line.replace('\t', "  ")));
    }
}

/// Writes a server's JSON on one line; valid JSON has line breaks between tokens only.
pub(super) fn json_line(text: &mut String, label: &str, json: &RawValue) {
    let _ = write!(text, "  {label}: ");
    text.extend(json.get().chars().map(|letter| if letter.is_control() { ' ' } else { letter }));
    text.push('\n');
}

/// Tool result with this structured content and text. Serializing the proxy's own values cannot fail.
pub(super) fn tool_result<T: Serialize>(content: &T, text: &str) -> Vec<u8> {
    let result = || -> serde_json::Result<String> {
        let (structured, text) = (serde_json::to_string(content)?, serde_json::to_string(text)?);
        Ok(format!(
            r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{structured}}}"#
        ))
    };
    result().unwrap_or_default().into_bytes()
}
