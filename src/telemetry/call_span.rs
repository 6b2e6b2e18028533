//! What is told of a traced call: the spans that it is made into, as values, and how OpenTelemetry names them.
//!
//! A call is a span of kind server (MCP from the agent) and, where it went out, one of kind client (MCP to the server),
//! by the semantic conventions for MCP. No arguments, results or texts of errors are in either.

use super::export_queue::ExportQueue;
use crate::mcp::trace_context::TraceContext;

/// Most bytes of each text of a span; the rest is cut.
pub const MAX_TEXT_BYTES: usize = 256;

/// Where traced calls leave their spans.
pub type SpanQueue = ExportQueue<CallSpan>;

/// A call that has ended.
#[derive(Clone, Debug)]
pub struct CallSpan {
    /// The span of kind server.
    pub context: TraceContext,
    /// The span that it is a child of, if it is.
    pub parent: Option<u64>,
    /// Of the HTTP request, where `_meta` names another span.
    pub link: Option<TraceContext>,
    /// `tracestate` as it came.
    pub state: Option<Box<str>>,
    /// Nanoseconds since 1970.
    pub started: u64,
    /// Nanoseconds since 1970.
    pub ended: u64,
    /// What went out.
    pub upstream: Option<UpstreamSpan>,
    /// The method.
    pub method: &'static str,
    /// What it is about.
    pub target: SpanTarget,
    /// Whether there is such a thing: else its name is not part of the spans' names.
    pub known: bool,
    /// The server.
    pub server: Box<str>,
    /// The call tool by which it came, or empty.
    pub variant: &'static str,
    /// The door by which it came.
    pub source: &'static str,
    /// The session, or empty.
    pub session: Box<str>,
    /// The request's id.
    pub request_id: Box<str>,
    /// On whose behalf.
    pub principal: Box<str>,
    /// The client's name for itself, or empty.
    pub client: Box<str>,
    /// The revision that the client speaks, or empty.
    pub revision: &'static str,
    /// How it ended.
    pub outcome: &'static str,
    /// Why it failed, if it did.
    pub error: Option<SpanError>,
    /// What was decided about it.
    pub decisions: Vec<&'static str>,
    /// What the proxy added, in microseconds.
    pub overhead_us: u64,
    /// How long it waited for its turn or a person, in microseconds.
    pub waited_us: u64,
}

/// The part of a call that a server has done.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamSpan {
    /// Its span, which the server was told of.
    pub span_id: u64,
    /// Nanoseconds since 1970.
    pub started: u64,
    /// Nanoseconds since 1970.
    pub ended: u64,
}

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanTarget {
    /// A tool.
    Tool(Box<str>),
    /// A prompt.
    Prompt(Box<str>),
    /// A resource.
    Resource(Box<str>),
    /// Nothing that has a name.
    None,
}

/// Why a call failed (`error.type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanError {
    /// The tool says so (`isError`).
    Tool,
    /// The server answered with a JSON-RPC error of that code.
    Code(i64),
    /// One of our own words.
    Own(&'static str),
    /// Nobody has said why.
    Other,
}

impl CallSpan {
    /// How many spans it makes.
    #[must_use]
    pub fn spans(&self) -> u64 {
        1 + u64::from(self.upstream.is_some())
    }
}

/// A text as a span has it.
#[must_use]
pub fn cut(text: &str) -> Box<str> {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().into()
}

/// A URI without what may be a secret in it: no user, no password, no query and no fragment.
#[must_use]
pub fn plain_uri(uri: &str) -> Box<str> {
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = uri.split_once("://") else { return cut(uri) };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        None => cut(uri),
        Some((_, host)) => cut(&format!("{scheme}://{host}{path}")),
    }
}

/// A call for tests, which went out or not.
#[cfg(test)]
pub(crate) fn tests_span(went_out: bool) -> CallSpan {
    let upstream = UpstreamSpan { span_id: 0xb, started: 1_500, ended: 2_500 };
    CallSpan {
        context: TraceContext { trace_id: 0xa0, span_id: 0xa, sampled: true },
        parent: Some(0x9),
        link: None,
        state: Some("k=v".into()),
        started: 1_000,
        ended: 3_000,
        upstream: went_out.then_some(upstream),
        method: "tools/call",
        target: SpanTarget::Tool("read_item".into()),
        known: true,
        server: "s".into(),
        variant: "call_tool_read",
        source: "mcp",
        session: "session".into(),
        request_id: "7".into(),
        principal: "token:ci".into(),
        client: "agent".into(),
        revision: "2025-11-25",
        outcome: "success",
        error: None,
        decisions: Vec::new(),
        overhead_us: 1,
        waited_us: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(&*cut("short"), "short");
        let long = format!("{}é", "x".repeat(MAX_TEXT_BYTES - 1));
        assert_eq!(cut(&long).len(), MAX_TEXT_BYTES - 1);
    }

    #[test]
    fn a_uri_is_told_without_what_may_be_a_secret() {
        for (uri, told) in [
            ("file:///a/b", "file:///a/b"),
            ("https://u:s3cret@h/p?token=s3cret#s3cret", "https://h/p"),
            ("https://h?key=s3cret", "https://h"),
            ("https://a@b@h", "https://h"),
            ("memo:x@y", "memo:x@y"),
            ("https://h/u@p", "https://h/u@p"),
        ] {
            assert_eq!(&*plain_uri(uri), told);
        }
    }
}
