//! Entries that calls submit: a draft of the record with all texts and payloads in one buffer, and the
//! decisions about the call. Pure.
//!
//! A draft is built on the call's thread, and read and freed on the writer's thread. It therefore shares no memory, not
//! even names (a contended reference count costs more than copying a name), and has a single allocation, because
//! freeing another thread's memory is expensive.

use std::sync::Arc;

use crate::record::{Operation, PayloadRef, Policy, Source, Status, Type, Verdict};

/// Maximum stored length of an error message, in bytes.
pub const MAX_ERROR_BYTES: usize = 2048;
/// Maximum stored length in bytes of a name (server, tool, session, request, client, principal).
pub const MAX_NAME_BYTES: usize = 256;
/// Maximum stored length of a stated intent or of other metadata, in bytes.
pub const MAX_METADATA_BYTES: usize = 8192;

/// Initial capacity of the buffer: enough for most calls with the default configuration.
const TEXT_BYTES: usize = 2048;

/// Texts of a draft; unset ones are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Upstream server's name.
    Server,
    /// Tool name without its server.
    Tool,
    Error,
    /// MCP session.
    SessionId,
    RequestId,
    ClientName,
    /// Id of the principal (`Principal::id`); unset for the proxy's own actions.
    Principal,
}

impl Text {
    const COUNT: usize = 7;

    /// Texts that identify the call and are the same in all records of one call.
    pub const ABOUT_CALL: [Self; 6] = [
        Self::Principal,
        Self::Server,
        Self::Tool,
        Self::SessionId,
        Self::ClientName,
        Self::RequestId,
    ];

    /// Maximum stored size in bytes.
    pub(crate) const fn limit(self) -> usize {
        match self {
            Self::Error => MAX_ERROR_BYTES,
            Self::Server
            | Self::Tool
            | Self::SessionId
            | Self::RequestId
            | Self::ClientName
            | Self::Principal => MAX_NAME_BYTES,
        }
    }

    /// Truncates a text to the limit at a character boundary.
    pub(crate) fn cut(self, text: &str) -> &str {
        text.get(..text.floor_char_boundary(self.limit())).unwrap_or(text)
    }
}

/// Payloads of a draft; unset ones are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raw {
    /// Arguments as raw JSON.
    Arguments,
    /// Start of the response; its original length is `response_bytes`.
    Response,
    /// Stated intent as raw JSON.
    Intent,
    /// Further metadata: a raw JSON object.
    Metadata,
}

impl Raw {
    const COUNT: usize = 4;

    /// Maximum stored size in bytes, regardless of the configuration.
    const fn max_bytes(self) -> usize {
        match self {
            Self::Arguments | Self::Response => usize::MAX,
            Self::Intent | Self::Metadata => MAX_METADATA_BYTES,
        }
    }
}

/// Record under construction. The writer does the redaction, the encoding, and the assignment of ids and hashes, so
/// that they do not delay the call.
#[derive(Clone, Debug)]
pub struct Draft {
    pub kind: Type,
    /// Interface that the call came through.
    pub source: Source,
    pub status: Status,
    /// The operation type, as used by filters.
    pub operation: Option<Operation>,
    /// Start time in microseconds since 1970.
    pub started: u64,
    /// Duration in microseconds.
    pub duration_us: u64,
    /// Part of the duration spent in the proxy, in microseconds.
    pub overhead_us: u64,
    /// Name of the call tool that was used, or empty.
    pub variant: &'static str,
    /// Number of calls that the record stands for, as in [`HeadRef`](super::HeadRef).
    pub repeated: u64,
    /// Whether all metadata comes from the proxy itself (ids, states, principals) and must not be redacted: redaction
    /// would remove a principal such as `token:ci`.
    pub has_own_metadata: bool,
    /// BLAKE3 hash of a refusal's whole arguments, set if only a part of them is kept.
    pub whole_arguments: Option<Box<[u8; 32]>>,
    /// All texts and payloads, in the order in which they were set. Replaced ones remain in the buffer.
    bytes: Vec<u8>,
    texts: [Span; Text::COUNT],
    payloads: [(Span, u64); Raw::COUNT],
}

/// A range of the buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: usize,
    end: usize,
}

impl Draft {
    /// Creates a draft without texts and payloads. Does not allocate.
    pub fn new(kind: Type, source: Source, status: Status) -> Self {
        Self {
            kind,
            source,
            status,
            operation: None,
            started: 0,
            duration_us: 0,
            overhead_us: 0,
            variant: "",
            repeated: 1,
            has_own_metadata: false,
            whole_arguments: None,
            bytes: Vec::new(),
            texts: Default::default(),
            payloads: Default::default(),
        }
    }

    /// Sets a text, truncated to [`Text::limit`].
    pub fn set(&mut self, which: Text, text: &str) {
        let span = self.copy(which.cut(text).as_bytes(), TEXT_BYTES);
        if let Some(place) = self.texts.get_mut(which as usize) {
            *place = span;
        }
    }

    pub fn text(&self, which: Text) -> &str {
        let span = self.texts.get(which as usize).copied().unwrap_or_default();
        std::str::from_utf8(self.slice(span)).unwrap_or_default()
    }

    /// Sets a payload and keeps its first `limit` bytes, but at most [`MAX_METADATA_BYTES`] of an intent or metadata.
    pub fn keep(&mut self, which: Raw, payload: &[u8], limit: usize) {
        if let Some(place) = self.payloads.get_mut(which as usize) {
            *place = Default::default();
        }
        self.append(which, payload, limit);
    }

    /// Appends a piece to a payload. `limit` applies to the whole payload.
    pub fn append(&mut self, which: Raw, piece: &[u8], limit: usize) {
        let (mut span, total) = self.payloads.get(which as usize).copied().unwrap_or_default();
        let left = limit.min(which.max_bytes()).saturating_sub(span.len());
        let head = piece.get(..left).unwrap_or(piece);
        if !head.is_empty() {
            if span.end != self.bytes.len() {
                // Another part was set in between, so the payload is moved to the end. Calls never do this.
                let before = self.slice(span).to_vec();
                span = self.copy(&before, 0);
            }
            // The buffer grows by as much again, so that many small pieces do not cause a reallocation each.
            let ahead = span.len().min(left);
            span.end = self.copy(head, ahead).end;
        }
        if let Some(place) = self.payloads.get_mut(which as usize) {
            *place = (span, total + piece.len() as u64);
        }
    }

    pub fn payload(&self, which: Raw) -> PayloadRef<'_> {
        let (span, total) = self.payloads.get(which as usize).copied().unwrap_or_default();
        PayloadRef { bytes: self.slice(span), total }
    }

    /// Creates a draft for the outcome of a call whose entry was already submitted. It repeats the texts that
    /// identify the call, which metrics, traces and decisions need at the end.
    pub(crate) fn rest(&self) -> Self {
        let mut rest = Self {
            operation: self.operation,
            started: self.started,
            variant: self.variant,
            ..Self::new(self.kind, self.source, self.status)
        };
        let about: usize = Text::ABOUT_CALL.iter().map(|text| self.text(*text).len()).sum();
        rest.bytes.reserve_exact(about + self.payload(Raw::Metadata).bytes.len());
        for text in Text::ABOUT_CALL {
            rest.set(text, self.text(text));
        }
        // Metadata that is added later is appended to this copy.
        let metadata = self.payload(Raw::Metadata);
        rest.keep(Raw::Metadata, metadata.bytes, usize::MAX);
        rest
    }

    /// Adds the outcome from `rest`.
    pub(crate) fn end(&mut self, rest: &Self) {
        self.status = rest.status;
        self.duration_us = rest.duration_us;
        self.overhead_us = rest.overhead_us;
        self.set(Text::Error, rest.text(Text::Error));
        for which in [Raw::Response, Raw::Metadata] {
            let payload = rest.payload(which);
            if payload.total > 0 {
                let span = self.copy(payload.bytes, 0);
                if let Some(place) = self.payloads.get_mut(which as usize) {
                    *place = (span, payload.total);
                }
            }
        }
    }

    /// Length of the buffer in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Copies bytes to the end of the buffer. The buffer grows by their length or by `ahead`, whichever is
    /// more, and never doubles: a draft whose parts are set once takes no more memory than the queue counts
    /// for it (`config::ENTRY_BYTES`).
    fn copy(&mut self, bytes: &[u8], ahead: usize) -> Span {
        let start = self.bytes.len();
        if self.bytes.capacity() - start < bytes.len() {
            self.bytes.reserve_exact(bytes.len().max(ahead));
        }
        self.bytes.extend_from_slice(bytes);
        Span { start, end: self.bytes.len() }
    }

    fn slice(&self, span: Span) -> &[u8] {
        self.bytes.get(span.start..span.end).unwrap_or_default()
    }
}

impl Span {
    fn len(self) -> usize {
        self.end - self.start
    }
}

/// Metadata member with the `_meta` of a request.
pub const META: &str = "_meta";
/// Metadata member with the number of requests that a record stands for, if more than one.
pub const REPEATED: &str = "repeated";

/// Decision about a call. Principal, server, tool, session, request and intent are taken from the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    /// Basis of the decision.
    pub policy: Policy,
    /// Mode in force (`warn`, `strict`, …), or empty.
    pub mode: &'static str,
    /// Full reason, as shown to the operator.
    pub reason: Box<str>,
    /// JSON pointer into the document, or empty.
    pub instance_path: Box<str>,
    /// JSON pointer into the schema, or empty.
    pub schema_path: Box<str>,
    /// Breached guard (`bytes`, `depth`, `time`, …), or empty.
    pub guard: &'static str,
    /// Rules that decided, if any.
    pub rules: Vec<Box<str>>,
    /// Number of requests recorded together by this decision.
    pub repeated: u64,
}

impl Decision {
    /// Creates a decision with only a reason.
    pub fn new(verdict: Verdict, policy: Policy, reason: impl Into<Box<str>>) -> Self {
        Self {
            verdict,
            policy,
            mode: "",
            reason: reason.into(),
            instance_path: Box::default(),
            schema_path: Box::default(),
            guard: "",
            rules: Vec::new(),
            repeated: 1,
        }
    }
}

/// A call and the decisions about it, written in one atomic batch, the call first (ACT-4).
#[derive(Clone, Debug)]
pub struct Entry {
    /// The call or other event.
    pub draft: Draft,
    /// Decisions about it; usually none.
    pub decisions: Vec<Decision>,
    /// Metadata member computed when the entry is written.
    pub late: Option<LateMember>,
    /// Whether the entry is recorded individually.
    pub recording: Recording,
}

/// Whether an entry is recorded individually or counted together with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// The entry is recorded individually.
    #[default]
    Single,
    /// A refusal: counted if an identical one by the same principal occurred within the last second.
    Refusal,
    /// A refusal beyond the principal's rate or log share: counted together with the principal's other refusals.
    Counted,
}

impl From<Draft> for Entry {
    fn from(draft: Draft) -> Self {
        Self { draft, decisions: Vec::new(), late: None, recording: Recording::Single }
    }
}

impl From<Draft> for Box<Entry> {
    fn from(draft: Draft) -> Self {
        Self::new(draft.into())
    }
}

/// Metadata of a decision, as the stored JSON object.
pub fn decision_metadata(decision: &Decision) -> Vec<u8> {
    let mut fields = serde_json::Map::new();
    let mut put = |key: &str, text: &str| {
        if !text.is_empty() {
            fields.insert(key.into(), text.into());
        }
    };
    put("decision", decision.verdict.as_str());
    put("policy", decision.policy.as_str());
    put("mode", decision.mode);
    put("reason", &decision.reason);
    put("instance_path", &decision.instance_path);
    put("schema_path", &decision.schema_path);
    put("guard", decision.guard);
    if decision.repeated > 1 {
        fields.insert(REPEATED.into(), decision.repeated.into());
    }
    if !decision.rules.is_empty() {
        fields.insert("rules".into(), decision.rules.iter().map(|id| &**id).collect());
    }
    serde_json::Value::Object(fields).to_string().into_bytes()
}

/// Metadata member whose value is computed by the writer, because it would cost too much on the call's
/// thread.
#[derive(Clone)]
pub struct LateMember {
    name: &'static str,
    value: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for LateMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateMember").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LateMember {
    /// `value` returns raw JSON without secrets, which is stored unchanged. Its captures live until the
    /// record is written.
    pub fn new(name: &'static str, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { name, value: Arc::new(value) }
    }

    /// Returns the metadata with this member appended.
    pub fn append_to(&self, metadata: &[u8]) -> Vec<u8> {
        with_member(metadata, self.name, &(self.value)())
    }
}

/// Appends a member to the object `metadata`, or to an empty object if there is none; `value` is raw JSON.
pub fn with_member(metadata: &[u8], name: &str, value: &str) -> Vec<u8> {
    let before = metadata.trim_ascii_end().strip_suffix(b"}").unwrap_or(b"{");
    let comma: &[u8] = if before.len() > 1 { b"," } else { b"" };
    [before, comma, b"\"", name.as_bytes(), b"\":", value.as_bytes(), b"}"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [Text; Text::COUNT] = [
        Text::Server,
        Text::Tool,
        Text::Error,
        Text::SessionId,
        Text::RequestId,
        Text::ClientName,
        Text::Principal,
    ];
    const PAYLOADS: [Raw; Raw::COUNT] = [Raw::Arguments, Raw::Response, Raw::Intent, Raw::Metadata];

    fn draft() -> Draft {
        Draft::new(Type::ToolCall, Source::Mcp, Status::Success)
    }

    #[test]
    fn texts_and_payloads_round_trip_in_any_order() {
        let mut draft = draft();
        assert_eq!(draft.bytes.capacity(), 0);
        for round in ["first", "other, and longer", ""] {
            for (text, payload) in TEXTS.iter().zip(PAYLOADS.iter().cycle()) {
                draft.set(*text, &format!("{round} {text:?}"));
                draft.keep(*payload, format!("{round} {payload:?}").as_bytes(), 100);
            }
            for text in TEXTS {
                assert_eq!(draft.text(text), format!("{round} {text:?}"));
            }
            for payload in PAYLOADS {
                let expected = format!("{round} {payload:?}");
                let kept = draft.payload(payload);
                assert_eq!((kept.bytes, kept.total), (expected.as_bytes(), expected.len() as u64));
            }
        }
        for text in TEXTS {
            draft.set(text, "");
            assert_eq!(draft.text(text), "");
        }
        for payload in PAYLOADS {
            draft.keep(payload, b"", 100);
            assert_eq!(draft.payload(payload), PayloadRef::default());
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        for text in TEXTS {
            let mut draft = draft();
            // The limit is in the middle of a character of three bytes.
            let long = "€".repeat(text.limit());
            draft.set(text, &long);
            let kept = draft.text(text);
            assert!(long.starts_with(kept));
            assert_eq!(kept.len(), text.limit() / 3 * 3);
        }
    }

    #[test]
    fn payloads_are_truncated_and_keep_their_original_length() {
        for (payload, limit, kept) in [
            (Raw::Arguments, 3, 3),
            (Raw::Arguments, 0, 0),
            (Raw::Response, 10_000, 9000),
            (Raw::Intent, 10_000, MAX_METADATA_BYTES),
            (Raw::Metadata, usize::MAX, MAX_METADATA_BYTES),
        ] {
            let mut draft = draft();
            draft.keep(payload, &[7; 9000], limit);
            assert_eq!(
                draft.payload(payload),
                PayloadRef { bytes: &[7; 9000][..kept], total: 9000 }
            );
        }
    }

    #[test]
    fn act_2_response_in_pieces_is_kept_up_to_its_limit() {
        for between in [false, true] {
            let mut draft = draft();
            draft.set(Text::Tool, "tool");
            for piece in ["abc", "", "de", "fgh", "ij"] {
                draft.append(Raw::Response, piece.as_bytes(), 7);
                if between {
                    draft.set(Text::Error, piece);
                }
            }
            assert_eq!(draft.payload(Raw::Response), PayloadRef { bytes: b"abcdefg", total: 10 });
            assert_eq!(draft.text(Text::Tool), "tool");
            assert_eq!(draft.text(Text::Error), if between { "ij" } else { "" });
        }
    }

    #[test]
    fn draft_submitted_in_two_parts_equals_one_submitted_whole() {
        let known = |draft: &mut Draft| {
            draft.operation = Some(Operation::Write);
            (draft.started, draft.variant) = (7, "call_tool_write");
            TEXTS
                .iter()
                .filter(|text| **text != Text::Error)
                .for_each(|text| draft.set(*text, &format!("{text:?}")));
            draft.keep(Raw::Arguments, &[1; 3000], 100);
            draft.keep(Raw::Intent, b"intent", 100);
            draft.keep(Raw::Metadata, b"{}", 100);
        };
        let outcome = |draft: &mut Draft| {
            draft.append(Raw::Response, &[2; 3000], 1024);
            draft.set(Text::Error, "error");
            assert_eq!(draft.payload(Raw::Metadata).bytes, b"{}", "known metadata is kept");
            draft.keep(Raw::Metadata, b"{1}", 100);
            (draft.status, draft.duration_us, draft.overhead_us) = (Status::Blocked, 3, 2);
        };
        let mut whole = draft();
        known(&mut whole);
        outcome(&mut whole);
        let mut begun = draft();
        known(&mut begun);
        let mut rest = begun.rest();
        outcome(&mut rest);
        begun.end(&rest);
        let shown = |draft: &Draft| {
            let Draft {
                kind, source, status, operation, started, duration_us, overhead_us, ..
            } = draft;
            let texts = TEXTS.map(|text| draft.text(text).to_owned());
            let payloads = PAYLOADS.map(|payload| draft.payload(payload).to_owned());
            let numbers = (*started, *duration_us, *overhead_us, draft.variant);
            (*kind, *source, *status, *operation, numbers, texts, payloads)
        };
        assert_eq!(shown(&begun), shown(&whole));
    }

    #[test]
    fn act_2_draft_takes_at_most_the_memory_counted_for_it() {
        let limit = 10_000;
        for piece in [1, 7, 1000, 20_000] {
            let mut draft = draft();
            TEXTS.iter().for_each(|text| draft.set(*text, &"x".repeat(9000)));
            draft.keep(Raw::Arguments, &[1; 20_000], limit);
            draft.keep(Raw::Intent, &[2; 20_000], limit);
            [3; 20_000].chunks(piece).for_each(|it| draft.append(Raw::Response, it, limit));
            let texts: usize = TEXTS.iter().map(|text| text.limit()).sum();
            let counted = texts + 2 * limit + MAX_METADATA_BYTES + TEXT_BYTES;
            assert!(draft.bytes.capacity() <= counted, "{} bytes", draft.bytes.capacity());
        }
    }
}

#[cfg(test)]
mod late_members {
    use super::*;

    #[test]
    fn member_is_appended_to_existing_metadata() {
        for (before, after) in
            [("", r#"{"a":1}"#), ("{}", r#"{"a":1}"#), ("{\"b\":{}}\n", r#"{"b":{},"a":1}"#)]
        {
            let late = LateMember::new("a", || "1".to_owned());
            assert_eq!(late.append_to(before.as_bytes()), after.as_bytes());
        }
    }
}
