//! What we write ourselves: results of our own, results that report a failure, and what they must say in each era.
//!
//! An answer of a server never comes through here, but for the head of its envelope. The reply to a refused call is
//! [`refusal`](super::refusal)'s.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::mcp::jsonrpc;
use crate::mcp::meta::SERVER_KEY;
use crate::mcp::revisions::Era;
use crate::output::AnswerMember;

/// How long a client may keep a result (MCP 2026-07-28 §Caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// The result is of no kind that is kept.
    No,
    /// So long.
    Milliseconds(u64),
}

/// A response with a result of our own.
#[must_use]
pub fn own(era: Era, id: &[u8], result: &str, caching: Caching) -> Bytes {
    jsonrpc::response(id, own_result(era, result, caching).as_bytes())
}

/// A result of our own, a JSON object; in the modern era with what every result must say there. An
/// upstream's result never comes through here: what it lacks is added while it streams
/// ([verdicts](crate::reference::requirements#verdicts), [`Required`](crate::output::Required)).
#[must_use]
pub fn own_result(era: Era, result: &str, caching: Caching) -> Cow<'_, str> {
    let beside = own_members(era, caching);
    let Some(members) = result.strip_prefix('{').filter(|_| !beside.is_empty()) else {
        return Cow::Borrowed(result);
    };
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    Cow::Owned(format!("{{{beside}{comma}{members}"))
}

/// What every result of our own says in the modern era: `"key":value`, separated by commas; empty
/// in the other.
#[must_use]
pub fn own_members(era: Era, caching: Caching) -> String {
    let by = match era {
        Era::Legacy => return String::new(),
        Era::Modern => server_info(),
    };
    let kept = match caching {
        Caching::No => String::new(),
        Caching::Milliseconds(ttl) => format!(r#""ttlMs":{ttl},"cacheScope":"private","#),
    };
    let meta = format!(r#""_meta":{{"{SERVER_KEY}":{by}}}"#);
    format!(r#""resultType":"complete",{kept}{meta}"#)
}

/// What stands before a reply's value in the envelope.
#[must_use]
pub fn head(id: &[u8], member: AnswerMember) -> Bytes {
    match member {
        AnswerMember::Result => jsonrpc::result_head(id),
        AnswerMember::Error => jsonrpc::error_head(id),
    }
}

/// A tool result that reports a failure: `isError: true`, one text block.
#[must_use]
pub fn error_result(era: Era, text: &str) -> Bytes {
    helping_result(era, text, "")
}

/// The same with a second text block, if there is any `help`: the first is what others know by heart.
#[must_use]
pub fn helping_result(era: Era, text: &str, help: &str) -> Bytes {
    let blocks = [text, help].into_iter().enumerate();
    let blocks = blocks.filter(|(at, text)| *at == 0 || !text.is_empty());
    let content: Vec<_> = blocks.map(|(_, text)| json!({"type": "text", "text": text})).collect();
    let result = json!({"content": content, "isError": true});
    own_result(era, &result.to_string(), Caching::No).into_owned().into()
}

/// How we introduce ourselves.
pub(super) fn server_info() -> Value {
    json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")})
}

/// A client's word inside one of our messages: cut, so that it cannot be used to grow them.
#[must_use]
pub fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 128;
    word.chars().take(MAX_SHOWN_CHARS).collect()
}
