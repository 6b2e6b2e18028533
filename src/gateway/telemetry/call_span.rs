//! Spans of traced calls as values, head sampling, and trace ids.
//!
//! A call is a span of kind server (MCP from the agent) and, if it was sent, one of kind client (MCP to the
//! server), following OpenTelemetry's semantic conventions for MCP. Neither contains arguments, results or error
//! texts.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use mcpproxy_protocol::mcp::trace_context::TraceContext;
use xxhash_rust::xxh3::xxh3_128;

use super::export_queue::ExportQueue;

/// Maximum size of each text of a span in bytes; the rest is cut.
pub(crate) const MAX_TEXT_BYTES: usize = 256;

/// Queue of spans to be exported.
pub type SpanQueue = ExportQueue<CallSpan>;

#[derive(Clone, Debug)]
pub struct CallSpan {
    /// Context of the server span.
    pub context: TraceContext,
    pub parent: Option<u64>,
    /// Context from the HTTP headers, if `_meta` names another span.
    pub link: Option<TraceContext>,
    /// `tracestate` as received.
    pub state: Option<Box<str>>,
    /// Nanoseconds since 1970.
    pub started: u64,
    /// Nanoseconds since 1970.
    pub ended: u64,
    pub upstream: Option<UpstreamSpan>,
    pub method: &'static str,
    pub target: SpanTarget,
    /// Whether the target exists; unknown names are left out of span names.
    pub known: bool,
    pub server: Box<str>,
    /// Name of the call tool; may be empty.
    pub variant: &'static str,
    /// Entry point: MCP, REST or the command line.
    pub source: &'static str,
    /// Session id; may be empty.
    pub session: Box<str>,
    pub request_id: Box<str>,
    pub principal: Box<str>,
    /// Name that the client gave itself; may be empty.
    pub client: Box<str>,
    /// The client's protocol revision; may be empty.
    pub revision: &'static str,
    pub outcome: &'static str,
    pub error: Option<SpanError>,
    /// Policy decisions about the call.
    pub decisions: Vec<&'static str>,
    /// Time added by the proxy, in microseconds.
    pub overhead_us: u64,
    /// Time spent queued or waiting for an approval, in microseconds.
    pub waited_us: u64,
}

/// Part of a call spent in its upstream.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamSpan {
    /// Span id that was sent to the server.
    pub span_id: u64,
    /// Nanoseconds since 1970.
    pub started: u64,
    /// Nanoseconds since 1970.
    pub ended: u64,
}

/// Target of a call: the tool, prompt or resource that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanTarget {
    Tool(Box<str>),
    Prompt(Box<str>),
    Resource(Box<str>),
    /// A request without a name.
    None,
}

/// Reason of a failure (`error.type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanError {
    /// The tool reports a failure (`isError`).
    Tool,
    /// JSON-RPC error of the server, with its code.
    Code(i64),
    /// Reason given by the proxy, one of a fixed set.
    Own(&'static str),
    Other,
}

impl CallSpan {
    pub(crate) fn spans(&self) -> u64 {
        1 + u64::from(self.upstream.is_some())
    }
}

/// Cuts a text to [`MAX_TEXT_BYTES`].
pub(crate) fn cut(text: &str) -> Box<str> {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().into()
}

/// Strips user, password, query and fragment, which may contain secrets, from a URI.
pub(crate) fn plain_uri(uri: &str) -> Box<str> {
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = uri.split_once("://") else { return cut(uri) };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        None => cut(uri),
        Some((_, host)) => cut(&format!("{scheme}://{host}{path}")),
    }
}

/// Sample call for tests, with an upstream span or without.
#[doc(hidden)]
pub fn tests_span(went_out: bool) -> CallSpan {
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
        revision: mcpproxy_protocol::mcp::revisions::NEWEST_LEGACY,
        outcome: "success",
        error: None,
        decisions: Vec::new(),
        overhead_us: 1,
        waited_us: 0,
    }
}

/// 2⁶³, the integer form of the sampling ratio 1. The highest bit of a trace id's lower half is ignored.
const WHOLE: u64 = 1 << 63;

/// Head sampler for new traces. A trace begun elsewhere follows its originator's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling(u64);

impl Sampling {
    pub const ALL: Self = Self(WHOLE);

    /// Sampler for a ratio from 0 to 1.
    pub fn of(ratio: f64) -> Self {
        Self((ratio.clamp(0.0, 1.0) * WHOLE as f64) as u64)
    }

    /// Whether a new trace with this id is recorded. Deterministic for an id and a ratio.
    pub const fn takes(self, trace_id: u128) -> bool {
        // Only the lower half of the id is used.
        (trace_id as u64) >> 1 < self.0
    }
}

/// Generator of unique ids for one thread. Ids are not secret, so a fast hash suffices.
#[derive(Debug)]
pub struct TraceIds {
    nonce: [u64; 2],
    made: Cell<u64>,
}

impl Default for TraceIds {
    fn default() -> Self {
        // `RandomState` takes its keys from the system's random generator.
        let random = RandomState::new();
        Self { nonce: [random.hash_one(0), random.hash_one(1)], made: Cell::new(0) }
    }
}

impl TraceIds {
    /// New trace id; not zero.
    pub fn trace(&self) -> u128 {
        self.next().max(1)
    }

    /// Two new span ids; not zero.
    pub fn spans(&self) -> [u64; 2] {
        let random = self.next();
        [(random >> 64) as u64, random as u64].map(|id| id.max(1))
    }

    fn next(&self) -> u128 {
        let made = self.made.get();
        self.made.set(made.wrapping_add(1));
        let [a, b] = self.nonce.map(u64::to_le_bytes);
        let mut input = [0; 24];
        for (place, byte) in input.iter_mut().zip(a.into_iter().chain(b).chain(made.to_le_bytes()))
        {
            *place = byte;
        }
        xxh3_128(&input)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn texts_are_cut_at_a_character_boundary() {
        assert_eq!(&*cut("short"), "short");
        let long = format!("{}é", "x".repeat(MAX_TEXT_BYTES - 1));
        assert_eq!(cut(&long).len(), MAX_TEXT_BYTES - 1);
    }

    #[test]
    fn exported_uri_contains_no_secrets() {
        for (uri, expected) in [
            ("file:///a/b", "file:///a/b"),
            ("https://u:s3cret@h/p?token=s3cret#s3cret", "https://h/p"),
            ("https://h?key=s3cret", "https://h"),
            ("https://a@b@h", "https://h"),
            ("memo:x@y", "memo:x@y"),
            ("https://h/u@p", "https://h/u@p"),
        ] {
            assert_eq!(&*plain_uri(uri), expected);
        }
    }

    #[test]
    fn sampling_depends_only_on_the_trace_id() {
        let ids = TraceIds::default();
        for (ratio, min, max) in
            [(0.0, 0, 0), (0.01, 50, 200), (0.5, 4500, 5500), (1.0, 10_000, 10_000)]
        {
            let sampling = Sampling::of(ratio);
            let made: Vec<u128> = (0..10_000).map(|_| ids.trace()).collect();
            let taken = made.iter().filter(|id| sampling.takes(**id)).count();
            assert!((min..=max).contains(&taken), "{ratio}: {taken}");
            // A larger ratio includes the sample of a smaller one.
            let half = Sampling::of(ratio / 2.0);
            assert!(made.iter().all(|id| !half.takes(*id) || sampling.takes(*id)));
        }
        assert_eq!(Sampling::of(1.0), Sampling::ALL);
        assert!(Sampling::ALL.takes(u128::MAX) && !Sampling::of(0.0).takes(1));
    }

    #[test]
    fn ids_are_unique_across_threads() {
        let threads = [TraceIds::default(), TraceIds::default()];
        let traces: HashSet<u128> =
            threads.iter().flat_map(|ids| (0..1000).map(|_| ids.trace())).collect();
        let spans: HashSet<u64> =
            threads.iter().flat_map(|ids| (0..1000).flat_map(|_| ids.spans())).collect();
        assert_eq!((traces.len(), spans.len()), (2000, 4000));
    }
}
