//! The draft of a record, as a call fills it in: a few numbers, and one buffer with all texts and
//! payloads. Pure.
//!
//! A draft is made on the call's thread, and read and freed on the writer's. So it shares nothing, not
//! even names (a reference count that many threads change costs more than copying a name), and has one
//! allocation, since freeing memory of another thread is expensive.

use super::{Operation, PayloadRef, Source, Status, Type};

/// Longest error message that is kept, in bytes.
pub const MAX_ERROR_BYTES: usize = 2048;
/// Longest name (server, tool, session, request, client, principal) that is kept, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest stated intent, or other metadata, that is kept, in bytes.
pub const MAX_METADATA_BYTES: usize = 8192;

/// The buffer's first capacity: with the default settings enough for most calls.
const TEXT_BYTES: usize = 2048;

/// The texts of a draft. Those that were not set are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// The upstream server's name.
    Server,
    /// The tool's name without its server.
    Tool,
    /// What went wrong.
    Error,
    /// The MCP session.
    SessionId,
    /// The request's id.
    RequestId,
    /// The client's name.
    ClientName,
    /// The id of the principal on whose behalf it is (`Principal::id`); not set for what the proxy does
    /// by itself.
    Principal,
}

impl Text {
    const COUNT: usize = 7;

    /// What says which call a record is about: the same in each record of one.
    pub const ABOUT_CALL: [Self; 6] = [
        Self::Principal,
        Self::Server,
        Self::Tool,
        Self::SessionId,
        Self::ClientName,
        Self::RequestId,
    ];

    /// The most bytes that are kept of it.
    #[must_use]
    pub const fn limit(self) -> usize {
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

    /// The head of a text that is kept, cut between characters.
    #[must_use]
    pub fn cut(self, text: &str) -> &str {
        text.get(..text.floor_char_boundary(self.limit())).unwrap_or(text)
    }
}

/// The payloads of a draft. Those that were not kept are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raw {
    /// The arguments as raw JSON.
    Arguments,
    /// The head of the response; its total is `response_bytes`.
    Response,
    /// The intent as raw JSON, as it was stated.
    Intent,
    /// More metadata: a raw JSON object.
    Metadata,
}

impl Raw {
    const COUNT: usize = 4;

    /// The most bytes that are kept of it, whatever the configuration allows.
    const fn most(self) -> usize {
        match self {
            Self::Arguments | Self::Response => usize::MAX,
            Self::Intent | Self::Metadata => MAX_METADATA_BYTES,
        }
    }
}

/// What is known of a call so far. Redaction, encoding, ids and hashes are the writer's work, off the
/// call's path.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What it is about.
    pub kind: Type,
    /// The face it came in by.
    pub source: Source,
    /// How it ended.
    pub status: Status,
    /// The operation type that counts for filters.
    pub operation: Option<Operation>,
    /// When it began, microseconds since 1970.
    pub started: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// The proxy's own share of that, in microseconds.
    pub overhead_us: u64,
    /// The call tool that was used, or empty.
    pub variant: &'static str,
    /// All texts and payloads in the order in which they were set; those that were replaced stay.
    bytes: Vec<u8>,
    texts: [Span; Text::COUNT],
    payloads: [(Span, u64); Raw::COUNT],
}

/// A part of the buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: usize,
    end: usize,
}

impl Draft {
    /// A draft with all texts and payloads empty. Allocates nothing.
    #[must_use]
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
            bytes: Vec::new(),
            texts: Default::default(),
            payloads: Default::default(),
        }
    }

    /// Sets a text, cut at [`Text::limit`].
    pub fn set(&mut self, which: Text, text: &str) {
        let span = self.copy(which.cut(text).as_bytes(), TEXT_BYTES);
        if let Some(place) = self.texts.get_mut(which as usize) {
            *place = span;
        }
    }

    /// The kept part of a text.
    #[must_use]
    pub fn text(&self, which: Text) -> &str {
        let span = self.texts.get(which as usize).copied().unwrap_or_default();
        std::str::from_utf8(self.slice(span)).unwrap_or_default()
    }

    /// Sets a payload and keeps its first `limit` bytes; of intents and metadata at most
    /// [`MAX_METADATA_BYTES`].
    pub fn keep(&mut self, which: Raw, payload: &[u8], limit: usize) {
        if let Some(place) = self.payloads.get_mut(which as usize) {
            *place = Default::default();
        }
        self.append(which, payload, limit);
    }

    /// Appends a piece to a payload. `limit` is for the whole.
    pub fn append(&mut self, which: Raw, piece: &[u8], limit: usize) {
        let (mut span, total) = self.payloads.get(which as usize).copied().unwrap_or_default();
        let room = limit.min(which.most()).saturating_sub(span.len());
        let head = piece.get(..room).unwrap_or(piece);
        if !head.is_empty() {
            if span.end != self.bytes.len() {
                // Something else was set in between, which calls do not do: the payload moves behind it.
                let before = self.slice(span).to_vec();
                span = self.copy(&before, 0);
            }
            // Room for as much again, so that many small pieces do not move the buffer each time.
            let ahead = span.len().min(room);
            span.end = self.copy(head, ahead).end;
        }
        if let Some(place) = self.payloads.get_mut(which as usize) {
            *place = (span, total + piece.len() as u64);
        }
    }

    /// The kept part of a payload.
    #[must_use]
    pub fn payload(&self, which: Raw) -> PayloadRef<'_> {
        let (span, total) = self.payloads.get(which as usize).copied().unwrap_or_default();
        PayloadRef { bytes: self.slice(span), total }
    }

    /// A draft about the same call, for its outcome once this one was handed over: what it is about is told of at its end, too,
    /// by metrics, traces and decisions.
    #[must_use]
    pub fn rest(&self) -> Self {
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
        // More may become known, beside what is.
        let metadata = self.payload(Raw::Metadata);
        rest.keep(Raw::Metadata, metadata.bytes, usize::MAX);
        rest
    }

    /// Adds the outcome, which `rest` holds.
    pub fn end(&mut self, rest: &Self) {
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

    /// The length of its buffer, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Copies bytes to the end of the buffer, which grows by their length or by `ahead`, whichever is
    /// more, and is never doubled: a draft whose parts are set once takes no more memory than the queue
    /// counts for it (`config::ENTRY_BYTES`).
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
    fn texts_and_payloads_come_back_whatever_the_order() {
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
    fn payloads_are_cut_and_know_the_whole() {
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
    fn act_2_a_response_in_pieces_is_kept_up_to_its_limit() {
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
    fn what_is_handed_over_in_two_parts_is_the_same_as_in_one() {
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
            assert_eq!(draft.payload(Raw::Metadata).bytes, b"{}", "what is known is added to");
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
    fn act_2_a_draft_takes_no_more_memory_than_is_counted_for_it() {
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
