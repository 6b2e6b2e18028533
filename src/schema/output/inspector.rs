//! Incremental inspector of one call's answer: decides which slices are forwarded and which are buffered for validation.
//!
//! The [`Inspector`] returns the slices of `result` to forward, without building a document. The guards `max_bytes` and `max_depth` apply
//! as the bytes arrive (FR-A6): the scanner counts and reports the first breach. The gateway applies the guard `max_held_bytes`, and
//! `meter` the time limit.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::{Failure, Finding, MissingContent, Policy, Required, Treatment};
use crate::compile::Schema;
use crate::judge::{ArrivingDocument, JudgeScratch};
use mcpproxy_json::scan::{
    Breach, Guard, MessageKind, ScanError, ScanLimits, ScannedMember, Scanner,
};
use mcpproxy_json::span::Span;
use mcpproxy_protocol::mcp::jsonrpc::{self, MAX_NUMERIC_ID_BYTES};

/// Maximum number of bytes of a message outside its `result`: the envelope, or a whole notification.
pub(crate) const MAX_OUTSIDE_BYTES: usize = 1024 * 1024;

/// Reason why an answer is unusable. The upstream is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// The bytes are not one JSON-RPC message.
    Malformed(ScanError),
    /// The message has more than [`MAX_OUTSIDE_BYTES`] outside of `result`.
    EnvelopeTooLong,
    /// The id is foreign or missing, which was found after bytes were forwarded.
    ForeignId,
    /// The message has none of `result`, `error` and `method`, or only a null one.
    Empty,
    /// `result` or `error` is not an object, or the result's `content` is not an array.
    WrongType(ScannedMember),
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "sent a malformed answer: {error}"),
            Self::EnvelopeTooLong => {
                write!(f, "sent more than {MAX_OUTSIDE_BYTES} bytes around its result")
            }
            Self::ForeignId => f.write_str("answered under an id that nobody asked for"),
            Self::Empty => f.write_str(
                "sent a message without a result, an error or a method (null counts as none)",
            ),
            Self::WrongType(ScannedMember::Content) => {
                f.write_str("sent a result whose content is not an array")
            }
            Self::WrongType(member) => write!(f, "sent an answer whose {member} is not an object"),
        }
    }
}

/// Member of the envelope that is the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMember {
    Result,
    Error,
}

/// Kind of a complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedMessage {
    /// The answer, complete.
    Answer(AnswerMember),
    /// Request or notification of the server, with its bytes in order.
    Notification(Vec<Bytes>),
    /// Answer with a foreign id. This was detected before any part of the answer was forwarded.
    Foreign,
}

/// Incremental inspector of one call's answer. `feed` the chunks of each message, then `end` it.
#[derive(Debug)]
pub struct Inspector {
    treatment: Treatment,
    limits: ScanLimits,
    hash_key: u64,
    id: u64,
    scanner: Scanner,
    /// Chunks outside the answer's body with their offsets: source of the id and of notifications.
    outside: Vec<(u64, Bytes)>,
    outside_bytes: usize,
    /// Slices of `structuredContent`, while they may still be validated.
    document: Vec<Bytes>,
    /// Evaluation of a document that arrives in several slices.
    arriving: Option<Box<ArrivingDocument>>,
    /// Size of the answer's body so far, in bytes.
    body_bytes: u64,
    id_checked: bool,
    wrapping: Wrapping,
}

/// Progress of wrapping a `structuredContent` that is not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrapping {
    /// Wrapping has not begun.
    Unknown,
    Open,
    /// The value has ended, or is an object.
    Done,
}

/// Offsets within a slice of the answer's body at which a `structuredContent` that is not an object begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BareContent {
    pub begin: Option<usize>,
    pub end: Option<usize>,
}

/// Place of a result's `resultType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultTypePlace {
    /// Before any content; holds the span of its value, in offsets from the result's first byte.
    Within(Span),
    /// After content, or absent.
    AfterContent,
}

/// Part of a result's `requestState` within a slice of the answer's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// Range of bytes; may be empty if the value ends before the slice.
    pub bytes: Range<usize>,
    /// Whether the value has ended.
    pub ends: bool,
}

impl Inspector {
    /// Inspector of the answer to the request sent with `id`. `hash_key` is random per process and keys the hash of untrusted keys.
    pub fn new(treatment: Treatment, policy: &Policy, id: u64, hash_key: u64) -> Self {
        let limits = scan_limits(treatment, policy);
        Self {
            treatment,
            limits,
            hash_key,
            id,
            scanner: Scanner::new(limits, hash_key),
            outside: Vec::new(),
            outside_bytes: 0,
            document: Vec::new(),
            arriving: None,
            body_bytes: 0,
            id_checked: false,
            wrapping: Wrapping::Unknown,
        }
    }

    /// Reads the next chunk of the current message and returns its slice of the answer's body, which may be empty. After an error, the
    /// answer is lost.
    pub fn feed(&mut self, chunk: &Bytes) -> Result<Bytes, AnswerFault> {
        let base = self.scanner.position();
        self.scanner.feed(chunk).map_err(AnswerFault::Malformed)?;
        let end = self.scanner.position();
        let envelope = self.scanner.envelope();
        let mistyped = envelope.mistyped;
        let Some(body) = envelope.body else {
            return self.keep_outside(base, chunk, chunk.len()).map(|()| Bytes::new());
        };
        let slice = Span::new(body.start, body.end.unwrap_or(end)).within(chunk, base);
        let ours = self.id_is_ours(Some((base, chunk)))?;
        if slice.len() < chunk.len() {
            self.keep_outside(base, chunk, chunk.len() - slice.len())?;
        }
        if !ours {
            return Ok(Bytes::new());
        }
        if let Some(member) = mistyped {
            // Without the id, this may be the answer to another request; the end of the message decides.
            return if self.id_checked {
                Err(AnswerFault::WrongType(member))
            } else {
                Ok(Bytes::new())
            };
        }
        if self.treatment != Treatment::Forward {
            self.keep_document(chunk, base, end);
        }
        self.body_bytes += slice.len() as u64;
        Ok(slice)
    }

    /// Ends the current message. The inspector is then ready for the next message, unless this one was the answer. After an error, the
    /// answer is lost.
    pub fn end(&mut self) -> Result<InspectedMessage, AnswerFault> {
        self.scanner.finish().map_err(AnswerFault::Malformed)?;
        let member = match self.scanner.envelope().kind {
            Some(MessageKind::Result) => AnswerMember::Result,
            Some(MessageKind::Error) => AnswerMember::Error,
            Some(MessageKind::Method) => {
                let parts = std::mem::take(&mut self.outside);
                self.restart();
                return Ok(InspectedMessage::Notification(
                    parts.into_iter().map(|(_, part)| part).collect(),
                ));
            }
            None => return Err(AnswerFault::Empty),
        };
        let ours = self.id_is_ours(None)?;
        let envelope = self.scanner.envelope();
        if ours && let Some(member) = envelope.mistyped {
            return Err(AnswerFault::WrongType(member));
        }
        // The stream of a request carries no other answers. An error without an id is therefore the answer to this
        // request.
        if ours && (self.id_checked || (member == AnswerMember::Error && envelope.id.is_none())) {
            return Ok(InspectedMessage::Answer(member));
        }
        if self.body_bytes > 0 {
            // The message has no id, and its body was already forwarded as the answer.
            return Err(AnswerFault::ForeignId);
        }
        self.restart();
        Ok(InspectedMessage::Foreign)
    }

    /// Member that contains the body of the current message; `None` until it is known.
    pub fn member(&self) -> Option<AnswerMember> {
        match self.scanner.envelope().kind? {
            MessageKind::Result => Some(AnswerMember::Result),
            MessageKind::Error => Some(AnswerMember::Error),
            MessageKind::Method => None,
        }
    }

    /// Replacement for the answer's last brace, if the answer is a result that lacks `required` members; `None` while the result is open.
    /// When this first returns a value, the last slice of [`feed`](Self::feed) ends with that brace.
    pub fn ending(&self, required: Required) -> Option<&'static [u8]> {
        required.ending(self.scanner.envelope().closed?, |member| self.scanner.has(member))
    }

    /// Place of a `structuredContent` that is not an object within `slice`, the last slice returned by [`feed`](Self::feed). Must be called
    /// for each slice.
    pub fn bare_content(&mut self, slice: &[u8]) -> BareContent {
        let mut found = BareContent::default();
        let envelope = self.scanner.envelope();
        let (Some(body), Some(part)) = (envelope.body, envelope.structured) else { return found };
        if self.wrapping == Wrapping::Done {
            return found;
        }
        // `body_bytes` already includes this slice.
        let slice_start = body.start + self.body_bytes - slice.len() as u64;
        let offset = |at: u64| at.checked_sub(slice_start).and_then(|at| usize::try_from(at).ok());
        if self.wrapping == Wrapping::Unknown {
            let begin = offset(part.start).filter(|begin| *begin < slice.len());
            if begin.and_then(|begin| slice.get(begin)) == Some(&b'{') {
                self.wrapping = Wrapping::Done;
                return found;
            }
            found.begin = begin;
            self.wrapping = if begin.is_some() { Wrapping::Open } else { Wrapping::Done };
        }
        if self.wrapping == Wrapping::Open
            && let Some(end) = part.end
        {
            found.end = offset(end);
            self.wrapping = Wrapping::Done;
        }
        found
    }

    /// Part of the result's `requestState` within `slice`, the last slice returned by [`feed`](Self::feed); `None` before the state begins.
    /// After its end, the part is empty.
    pub fn request_state(&self, slice: &[u8]) -> Option<StatePart> {
        let envelope = self.scanner.envelope();
        let (state, body) = (envelope.request_state?, envelope.body?);
        // `body_bytes` already includes this slice.
        let slice_start = body.start + self.body_bytes - slice.len() as u64;
        let within = |at: u64| {
            let at = usize::try_from(at.saturating_sub(slice_start)).unwrap_or(usize::MAX);
            at.min(slice.len())
        };
        let end = state.end.map_or(slice.len(), within);
        Some(StatePart { bytes: within(state.start).min(end)..end, ends: state.end.is_some() })
    }

    /// Place of the result's `resultType`; `None` until the member or content was read. Independent of the chunking.
    pub fn result_type(&self) -> Option<ResultTypePlace> {
        let envelope = self.scanner.envelope();
        let body = envelope.body?.start;
        let content = [envelope.content, envelope.structured].into_iter().flatten();
        let content = content.map(|part| part.start).min();
        match (envelope.result_type, content) {
            (Some(span), content) if content.is_none_or(|content| span.start < content) => {
                Some(ResultTypePlace::Within(Span::new(span.start - body, span.end - body)))
            }
            (_, Some(_)) => Some(ResultTypePlace::AfterContent),
            (_, None) => None,
        }
    }

    /// `isError` as read so far.
    pub fn is_error(&self) -> bool {
        self.scanner.envelope().is_error == Some(true)
    }

    /// Breach of a guard, once it is final.
    pub fn breach(&self) -> Option<Failure> {
        self.scanner.envelope().breach.as_ref().and_then(breach_failure)
    }

    /// Next step for a complete `result`.
    pub fn finding(&self, missing: MissingContent) -> Finding {
        if self.treatment == Treatment::Forward {
            return Finding::Passes;
        }
        if let Some(failure) = self.breach() {
            return Finding::Fails(failure);
        }
        let envelope = self.scanner.envelope();
        if let Some(ambiguity) = &envelope.ambiguity {
            return Finding::Fails(Failure::ambiguous(&ambiguity.kind.to_string()));
        }
        if self.is_error() {
            return Finding::Passes;
        }
        if envelope.structured.is_some() {
            return Finding::AskTheSchema;
        }
        match (self.treatment, missing) {
            (Treatment::Hold, MissingContent::Block) => Finding::Fails(Failure::missing()),
            (Treatment::Hold, MissingContent::Allow)
            | (Treatment::Forward | Treatment::ForwardAndJudge, _) => Finding::Passes,
        }
    }

    /// Buffered slices of `structuredContent`, in order.
    pub fn document(&self) -> &[Bytes] {
        &self.document
    }

    /// Takes the buffered slices of `structuredContent`.
    pub fn take_document(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.document)
    }

    /// Evaluates the part of a `structuredContent` in several slices that has arrived. Must be called after each [`feed`](Self::feed), with
    /// the same schema.
    pub fn evaluate_arrived(&mut self, schema: &Schema, scratch: &mut JudgeScratch) {
        let is_one_slice = self.arriving.is_none()
            && self.scanner.envelope().structured.is_some_and(|part| part.end.is_some());
        if !self.document.is_empty() && !is_one_slice {
            let arriving = self.arriving.get_or_insert_default();
            schema.read_arriving(arriving, &self.document, scratch);
        }
    }

    /// Whether the complete document was evaluated as it arrived and certainly conforms.
    pub fn has_conforming_document(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.accepts(&self.document))
    }

    fn restart(&mut self) {
        self.scanner = Scanner::new(self.limits, self.hash_key);
        self.outside.clear();
        self.outside_bytes = 0;
        self.document.clear();
        self.arriving = None;
        self.body_bytes = 0;
        self.id_checked = false;
        self.wrapping = Wrapping::Unknown;
    }

    fn keep_outside(
        &mut self,
        base: u64,
        chunk: &Bytes,
        outside: usize,
    ) -> Result<(), AnswerFault> {
        self.outside_bytes += outside;
        if self.outside_bytes > MAX_OUTSIDE_BYTES {
            return Err(AnswerFault::EnvelopeTooLong);
        }
        if !self.id_checked {
            self.outside.push((base, chunk.clone()));
        }
        Ok(())
    }

    /// Compares the id, once it is known, using the buffered chunks and `last`. False means that this is the answer to another request. An
    /// id that is numerically or textually equal matches. So does the id of an error that refers to no request (null, other strings):
    /// servers send it if they could not read the request, and the stream belongs only to this request.
    fn id_is_ours(&mut self, last: Option<(u64, &Bytes)>) -> Result<bool, AnswerFault> {
        if self.id_checked {
            return Ok(true);
        }
        let Some(span) = self.scanner.envelope().id else { return Ok(true) };
        let mut id = itoa::Buffer::new();
        let id = id.format(self.id).as_bytes();
        let kept = self.outside.iter().map(|(base, chunk)| (*base, chunk));
        let written = kept.chain(last).flat_map(|(base, chunk)| span.within(chunk, base));
        let exact = span.len() == id.len() as u64 && written.eq(id.iter().copied());
        let ours = exact || self.id_equals(span, last);
        self.id_checked = ours;
        if !ours && self.body_bytes > 0 {
            return Err(AnswerFault::ForeignId);
        }
        Ok(ours)
    }

    /// Compares, by numeric value, an id whose bytes differ from the expected ones. An id without a numeric value matches
    /// only in an error response.
    #[cold]
    fn id_equals(&self, span: Span, last: Option<(u64, &Bytes)>) -> bool {
        let kept = self.outside.iter().map(|(base, chunk)| (*base, chunk));
        let written = kept.chain(last).flat_map(|(base, chunk)| span.within(chunk, base));
        let raw: Vec<u8> = written.take(MAX_NUMERIC_ID_BYTES + 1).collect();
        match jsonrpc::numeric_id(&raw) {
            Some(id) => id == self.id,
            None => self.member() == Some(AnswerMember::Error),
        }
    }

    fn keep_document(&mut self, chunk: &Bytes, base: u64, end: u64) {
        let envelope = self.scanner.envelope();
        if envelope.breach.is_some() || envelope.is_error == Some(true) {
            self.document = Vec::new();
            self.arriving = None;
            return;
        }
        let Some(part) = envelope.structured else { return };
        let slice = Span::new(part.start, part.end.unwrap_or(end)).within(chunk, base);
        if !slice.is_empty() {
            self.document.push(slice);
        }
    }
}

/// Limits for scanning an answer; unlimited if the answer is not validated (FR-A7).
fn scan_limits(treatment: Treatment, policy: &Policy) -> ScanLimits {
    match treatment {
        Treatment::Forward => ScanLimits::NONE,
        Treatment::ForwardAndJudge | Treatment::Hold => {
            ScanLimits { max_bytes: policy.max_bytes, max_depth: policy.max_depth }
        }
    }
}

/// Failure for a breach. Final (`requirements.md`, *verdicts*), unless `isError: true` came before it, in which case the result is `None`.
#[inline]
fn breach_failure(breach: &Breach) -> Option<Failure> {
    (!breach.after_is_error_true).then(|| describe_breach(breach))
}

fn describe_breach(breach: &Breach) -> Failure {
    let (text, name) = match breach.guard {
        Guard::Bytes => ("structuredContent is larger than max_bytes", "max_bytes"),
        Guard::Depth => ("structuredContent nests deeper than max_depth", "max_depth"),
    };
    Failure::plain(format!("{text} {}", breach.limit), Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Settings, compile};
    use crate::output::Mode;

    const POLICY: Policy = Policy {
        mode: Mode::Warn,
        max_bytes: 20,
        max_depth: 2,
        missing: MissingContent::Allow,
        max_held_bytes: 1000,
    };

    /// Result of one message, fed in pieces of `size` bytes.
    fn inspect(
        treatment: Treatment,
        text: &str,
        size: usize,
    ) -> (Result<InspectedMessage, AnswerFault>, Seen) {
        let mut inspector = Inspector::new(treatment, &POLICY, 7, 1);
        let mut body = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            match inspector.feed(&Bytes::copy_from_slice(piece)) {
                Ok(slice) => body.extend_from_slice(&slice),
                Err(fault) => return (Err(fault), Seen::default()),
            }
        }
        let message = inspector.end();
        let seen = Seen {
            body: String::from_utf8(body).unwrap(),
            document: String::from_utf8(inspector.document().concat()).unwrap(),
            finding: Some(inspector.finding(MissingContent::Block)),
            is_error: inspector.is_error(),
        };
        (message, seen)
    }

    #[derive(Debug, Default, PartialEq)]
    struct Seen {
        body: String,
        document: String,
        finding: Option<Finding>,
        is_error: bool,
    }

    /// Checks a message in every chunking; all chunkings must agree.
    fn check(
        treatment: Treatment,
        text: &str,
        expect: impl Fn(&Result<InspectedMessage, AnswerFault>, &Seen),
    ) {
        let (message, seen) = inspect(treatment, text, text.len());
        expect(&message, &seen);
        for size in 1..text.len() {
            let (split_message, split_seen) = inspect(treatment, text, size);
            match (&message, &split_message) {
                (
                    Ok(InspectedMessage::Notification(whole)),
                    Ok(InspectedMessage::Notification(parts)),
                ) => {
                    assert_eq!(whole.concat(), parts.concat(), "in pieces of {size}");
                }
                _ => assert_eq!(message, split_message, "in pieces of {size}"),
            }
            assert_eq!(seen, split_seen, "in pieces of {size}");
        }
    }

    fn answered(message: &Result<InspectedMessage, AnswerFault>, member: AnswerMember) {
        assert_eq!(message, &Ok(InspectedMessage::Answer(member)));
    }

    #[test]
    fn result_type_is_found_before_content_in_every_split() {
        const ASKS: &str = r#""input_required""#;
        for (result, expected) in [
            (r#"{"resultType":"input_required","content":[]}"#, Some(Some(ASKS))),
            (r#"{ "a":{"resultType":1}, "result\u0054ype" : "input_required" }"#, Some(Some(ASKS))),
            (r#"{"content":[],"resultType":"input_required"}"#, Some(None)),
            (r#"{"structuredContent":{},"resultType":"input_required"}"#, Some(None)),
            (r#"{"content":[]}"#, Some(None)),
            (r#"{"a":1}"#, None),
        ] {
            let text = format!(r#"{{"id":7,"result":{result}}}"#);
            for size in 1..=text.len() {
                let mut inspector = Inspector::new(Treatment::Forward, &POLICY, 7, 1);
                let mut seen = None;
                for piece in text.as_bytes().chunks(size) {
                    inspector.feed(&Bytes::copy_from_slice(piece)).unwrap();
                    let place = inspector.result_type();
                    assert!(seen.is_none() || seen == place, "{result} in pieces of {size}");
                    seen = place;
                }
                let value = seen.map(|place| match place {
                    ResultTypePlace::Within(span) => {
                        Some(&result[span.start as usize..span.end as usize])
                    }
                    ResultTypePlace::AfterContent => None,
                });
                assert_eq!(value, expected, "{result} in pieces of {size}");
            }
        }
    }

    #[test]
    fn fr_a3_body_is_verbatim_at_any_position_of_the_id() {
        let result = r#"{ "z":1.0 , "content":[ ],"_meta":{"é":"\u00e9"}, "a" : null }"#;
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#),
            format!(r#"{{"result":{result},"jsonrpc":"2.0","id":7}}"#),
            format!(r#" {{ "id" : 7 , "r\u0065sult" : {result} , "x" : [1] }} "#),
        ] {
            for treatment in [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold] {
                check(treatment, &text, |message, seen| {
                    answered(message, AnswerMember::Result);
                    assert_eq!(seen.body, result);
                });
            }
        }
    }

    /// Body of a message that is fed in pieces of `size` bytes. A `structuredContent` that is not an object is wrapped.
    fn wrapped(text: &str, size: usize) -> String {
        let mut inspector = Inspector::new(Treatment::Forward, &POLICY, 7, 1);
        let mut body = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let slice = inspector.feed(&Bytes::copy_from_slice(piece)).unwrap();
            let BareContent { begin, end } = inspector.bare_content(&slice);
            for (at, byte) in slice.iter().enumerate() {
                if end == Some(at) {
                    body.push(b')');
                }
                if begin == Some(at) {
                    body.push(b'(');
                }
                body.push(*byte);
            }
            if end == Some(slice.len()) {
                body.push(b')');
            }
        }
        inspector.end().unwrap();
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn fr_a13_content_that_is_not_an_object_is_located_in_any_chunking() {
        for value in ["[1, {\"a\":[]} ]", "\"x{y\"", "null", "true", "-12.5e3", "0"] {
            for (open, close) in
                [("{\"a\":[1],", "}"), ("{ ", " ,\"content\":[]}"), ("{", ",\"isError\":true }")]
            {
                let body = format!("{open}\"structuredContent\": {value}{close}");
                let expected = format!("{open}\"structuredContent\": ({value}){close}");
                for text in [
                    format!(r#"{{"jsonrpc":"2.0","id":7,"result":{body}}}"#),
                    format!(r#"{{"result":{body} ,"id":7}}"#),
                ] {
                    for size in 1..=text.len() {
                        assert_eq!(wrapped(&text, size), expected, "in pieces of {size}");
                    }
                }
            }
        }
        for body in [r#"{"structuredContent":{"a":1}}"#, r#"{"content":[[1]]}"#] {
            let text = format!(r#"{{"id":7,"result":{body}}}"#);
            for size in 1..=text.len() {
                assert_eq!(wrapped(&text, size), body, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn pro_31_request_state_is_located_in_any_chunking() {
        for value in [r#""a\u0062 \" }""#, "\"\"", "-1.5e3", "null", r#"{"a" : [1]}"#] {
            for (open, close) in [("{", "}"), (r#"{"a":{"requestState":0}, "#, r#" ,"b":[]}"#)] {
                let body = format!(r#"{open}"requestState": {value}{close}"#);
                for text in [
                    format!(r#"{{"jsonrpc":"2.0","id":7,"result":{body}}}"#),
                    format!(r#"{{"result":{body} ,"id":7}}"#),
                ] {
                    for size in 1..=text.len() {
                        assert_eq!(request_state(&text, size), value, "in pieces of {size}");
                    }
                }
            }
        }
    }

    /// The request state of one message, fed in pieces of `size` bytes.
    fn request_state(text: &str, size: usize) -> String {
        let mut inspector = Inspector::new(Treatment::Forward, &POLICY, 7, 1);
        let (mut state, mut ended) = (Vec::new(), false);
        for piece in text.as_bytes().chunks(size) {
            let slice = inspector.feed(&Bytes::copy_from_slice(piece)).unwrap();
            let Some(part) = inspector.request_state(&slice) else { continue };
            assert!(part.bytes.is_empty() || !ended);
            state.extend_from_slice(&slice[part.bytes]);
            ended |= part.ends;
        }
        assert!(ended, "{text}");
        String::from_utf8(state).unwrap()
    }

    #[test]
    fn error_counts_as_an_answer_body() {
        check(Treatment::Hold, r#"{"error":{"code":-1},"id":7}"#, |message, seen| {
            answered(message, AnswerMember::Error);
            assert_eq!(seen.body, r#"{"code":-1}"#);
        });
    }

    #[test]
    fn notification_is_returned_whole() {
        let text = r#"{"params":{"progress":1},"method":"notifications/progress"}"#;
        check(Treatment::Forward, text, |message, seen| {
            let Ok(InspectedMessage::Notification(parts)) = message else { panic!("{message:?}") };
            assert_eq!(parts.concat(), text.as_bytes());
            assert_eq!(seen.body, "");
        });
    }

    #[test]
    fn answer_with_another_id_is_foreign() {
        for id in ["8", "77", "8.0", "\"8\"", "null", "\"x\""] {
            let first = format!(r#"{{"id":{id},"result":{{}}}}"#);
            check(Treatment::Forward, &first, |message, seen| {
                assert_eq!(message, &Ok(InspectedMessage::Foreign), "{id}");
                assert_eq!(seen.body, "");
            });
        }
        // The mismatch is detected too late, because bytes were already forwarded.
        let last = r#"{"result":{},"id":8}"#;
        let (message, _) = inspect(Treatment::Forward, last, 3);
        assert_eq!(message, Err(AnswerFault::ForeignId));
    }

    #[test]
    fn pro_22_numerically_or_textually_equal_id_is_accepted() {
        for id in ["7", "7.0", "7e0", "0.7E+1", "\"7\"", "\"7.0\""] {
            for text in [
                format!(r#"{{"id":{id},"result":{{"a":1}}}}"#),
                format!(r#"{{"result":{{"a":1}},"id":{id}}}"#),
            ] {
                check(Treatment::Forward, &text, |message, seen| {
                    answered(message, AnswerMember::Result);
                    assert_eq!(seen.body, r#"{"a":1}"#, "{id}");
                });
            }
        }
    }

    #[test]
    fn pro_21_error_without_an_id_of_a_request_is_the_answer() {
        let error = r#"{"code":-32600,"message":"Bad Request"}"#;
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":"server-error","error":{error}}}"#),
            format!(r#"{{"jsonrpc":"2.0","error":{error}}}"#),
            format!(r#"{{"jsonrpc":"2.0","error":{error},"id":null}}"#),
        ] {
            check(Treatment::Hold, &text, |message, seen| {
                answered(message, AnswerMember::Error);
                assert_eq!(seen.body, error, "{text}");
            });
        }
        let of_another = format!(r#"{{"id":8,"error":{error}}}"#);
        check(Treatment::Forward, &of_another, |message, _| {
            assert_eq!(message, &Ok(InspectedMessage::Foreign));
        });
    }

    #[test]
    fn pro_23_answer_has_exactly_one_outcome_of_the_right_type() {
        use ScannedMember::{Content, Error, Result};
        for (outcome, fault) in [
            (r#""result":null"#, AnswerFault::Empty),
            (r#""result":null,"error":null"#, AnswerFault::Empty),
            (r#""result":[{"content":[]}]"#, AnswerFault::WrongType(Result)),
            (r#""result":"done""#, AnswerFault::WrongType(Result)),
            (r#""error":"boom""#, AnswerFault::WrongType(Error)),
            (r#""result":{"content":null}"#, AnswerFault::WrongType(Content)),
            (r#""result":{"content":"text"}"#, AnswerFault::WrongType(Content)),
        ] {
            for treatment in [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold] {
                for text in [format!(r#"{{"id":7,{outcome}}}"#), format!(r#"{{{outcome},"id":7}}"#)]
                {
                    for size in 1..=text.len() {
                        let (message, _) = inspect(treatment, &text, size);
                        // A part of the result may have been forwarded before its `content` and its id were read.
                        assert_eq!(message, Err(fault.clone()), "{text} in pieces of {size}");
                    }
                }
            }
        }
        for (outcome, member, body) in [
            (r#""result":{"content":[]},"error":null"#, AnswerMember::Result, r#"{"content":[]}"#),
            (r#""error":null,"result":{"content":[]}"#, AnswerMember::Result, r#"{"content":[]}"#),
            (r#""result":null,"error":{"code":1}"#, AnswerMember::Error, r#"{"code":1}"#),
            (r#""error":{"code":1},"result":null"#, AnswerMember::Error, r#"{"code":1}"#),
        ] {
            check(Treatment::Hold, &format!(r#"{{"id":7,{outcome}}}"#), |message, seen| {
                answered(message, member);
                assert_eq!(seen.body, body, "{outcome}");
            });
        }
    }

    /// Found by the fuzz target `splice`: the answer counted as foreign, and its forwarded bytes came before the next answer.
    #[test]
    fn answer_without_an_id_is_a_fault_once_bytes_were_forwarded() {
        for treatment in [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold] {
            check(treatment, r#"{"jsonrpc":"2.0","result":{"a":1}}"#, |message, _| {
                assert_eq!(message, &Err(AnswerFault::ForeignId));
            });
        }
    }

    #[test]
    fn inspector_continues_with_the_next_message() {
        let mut inspector = Inspector::new(Treatment::Hold, &POLICY, 7, 1);
        for text in [r#"{"method":"x"}"#, r#"{"id":9,"result":{"structuredContent":1}}"#] {
            inspector.feed(&Bytes::from_static(text.as_bytes())).unwrap();
            assert!(!matches!(inspector.end(), Ok(InspectedMessage::Answer(_))));
        }
        let answer = br#"{"id":7,"result":{"structuredContent":[2]}}"#;
        let body = inspector.feed(&Bytes::from_static(answer)).unwrap();
        assert_eq!(body, r#"{"structuredContent":[2]}"#);
        assert_eq!(inspector.end(), Ok(InspectedMessage::Answer(AnswerMember::Result)));
        assert_eq!(inspector.document().concat(), b"[2]");
    }

    /// Whether the document of the answer in `chunks`, evaluated as it arrives from the `first` chunk onward, conforms.
    fn conforms_arriving(inspector: &mut Inspector, chunks: &[&str], first: usize) -> bool {
        let schema = br#"{"type":"object","properties":{"a":{"type":"integer"}}}"#;
        let schema = compile(schema, &Settings::default()).unwrap();
        let mut scratch = JudgeScratch::new();
        for (at, chunk) in chunks.iter().enumerate() {
            inspector.feed(&Bytes::copy_from_slice(chunk.as_bytes())).unwrap();
            if at >= first {
                inspector.evaluate_arrived(&schema, &mut scratch);
            }
        }
        inspector.end().unwrap();
        inspector.has_conforming_document()
    }

    #[test]
    fn fr_a14_document_is_evaluated_as_it_arrives() {
        let policy = Policy { max_bytes: 1000, max_depth: 9, ..POLICY };
        let new = || Inspector::new(Treatment::Hold, &policy, 7, 1);
        let head = r#"{"id":7,"result":{"structuredContent":{"a":"#;
        for (chunks, last, conforms) in [
            ([head, "1", "}}}"], 2, true),
            ([head, "1}", "}}"], 1, true),
            ([head, "1}", r#","isError":false}}"#], 1, true),
            ([head, "1,", r#""b":{"c":[]}}}}"#], 2, true),
            ([head, r#"""#, r#""}}}"#], 2, false),
            // `isError` follows the content, so the content is not validated.
            ([head, "1}", r#","isError":true}}"#], 1, false),
        ] {
            for first in 0..chunks.len() {
                let found = conforms_arriving(&mut new(), &chunks, first);
                // If evaluation starts with the last slice, only the complete document is evaluated.
                assert_eq!(found, conforms && first < last, "{chunks:?} from {first}");
            }
        }
    }

    #[test]
    fn fr_a14_arrived_document_belongs_to_one_message() {
        let policy = Policy { max_bytes: 1000, max_depth: 9, ..POLICY };
        let mut inspector = Inspector::new(Treatment::Hold, &policy, 7, 1);
        let foreign = [r#"{"id":8,"result":{"structuredContent":{"a""#, ":1", "}}}"];
        let ours = [r#"{"id":7,"result":{"structuredContent":{"a""#, r#":"x""#, "}}}"];
        conforms_arriving(&mut inspector, &foreign, 0);
        assert!(!conforms_arriving(&mut inspector, &ours, 0));
    }

    #[test]
    fn fr_a6_breach_ends_the_evaluation_of_an_arriving_document() {
        let mut inspector = Inspector::new(Treatment::Hold, &POLICY, 7, 1);
        let chunks = [r#"{"id":7,"result":{"structuredContent":{"a":1"#, ",", r#""b":[[]]}}}"#];
        assert!(!conforms_arriving(&mut inspector, &chunks, 0));
        assert!(matches!(inspector.finding(MissingContent::Allow), Finding::Fails(_)));
    }

    #[test]
    fn invalid_message_is_the_upstreams_fault() {
        for text in ["{}", r#"{"id":7}"#, "[]", "garbage", r#"{"id":7,"result":{}} {"#] {
            let (message, _) = inspect(Treatment::Forward, text, 100);
            assert!(
                matches!(message, Err(AnswerFault::Malformed(_) | AnswerFault::Empty)),
                "{text}"
            );
        }
    }

    #[test]
    fn envelope_is_bounded_before_and_after_the_body() {
        for head in [r#"{"a":""#, r#"{"result":{},"a":""#, r#"{"id":7,"result":{},"a":""#] {
            let mut inspector = Inspector::new(Treatment::Forward, &POLICY, 7, 1);
            inspector.feed(&Bytes::copy_from_slice(head.as_bytes())).unwrap();
            let filler = Bytes::from(vec![b'x'; 64 * 1024]);
            let fed = (0..=MAX_OUTSIDE_BYTES / filler.len()).map(|_| inspector.feed(&filler));
            assert_eq!(fed.last(), Some(Err(AnswerFault::EnvelopeTooLong)), "{head}");
        }
    }

    fn finds(structured: &str, expect: &Finding) {
        let text = format!(r#"{{"id":7,"result":{{{structured}}}}}"#);
        check(Treatment::Hold, &text, |message, seen| {
            answered(message, AnswerMember::Result);
            assert_eq!(seen.finding.as_ref(), Some(expect), "{structured}");
        });
    }

    #[test]
    fn fr_a6_guards_are_exact_and_final() {
        let long = |count: usize| format!(r#""structuredContent":"{}""#, "x".repeat(count - 2));
        finds(&long(20), &Finding::AskTheSchema);
        let bytes = Failure::plain(
            "structuredContent is larger than max_bytes 20".into(),
            Some("max_bytes"),
        );
        finds(&long(21), &Finding::Fails(bytes.clone()));
        finds(r#""structuredContent":[[1]]"#, &Finding::AskTheSchema);
        let depth = Failure::plain(
            "structuredContent nests deeper than max_depth 2".into(),
            Some("max_depth"),
        );
        finds(r#""structuredContent":[[[]]]"#, &Finding::Fails(depth));
        // The breach is final; only an earlier `isError` lifts it.
        finds(&format!(r#"{},"isError":true"#, long(21)), &Finding::Fails(bytes));
        finds(&format!(r#""isError":true,{}"#, long(21)), &Finding::Passes);
    }

    #[test]
    fn fr_a10_error_is_not_validated_at_any_position_of_is_error() {
        finds(r#""isError":true,"structuredContent":1"#, &Finding::Passes);
        finds(r#""structuredContent":1,"isError":true"#, &Finding::Passes);
        finds(r#""structuredContent":1,"isError":false"#, &Finding::AskTheSchema);
        for ambiguous in [
            r#""isError":"true","structuredContent":1"#,
            r#""isError":true,"isError":true"#,
            r#""structuredContent":1,"structured\u0043ontent":2"#,
            r#""a":1,"\u0061":2"#,
        ] {
            let text = format!(r#"{{"id":7,"result":{{{ambiguous}}}}}"#);
            check(Treatment::Hold, &text, |_, seen| {
                assert!(matches!(seen.finding, Some(Finding::Fails(_))), "{ambiguous}");
            });
        }
    }

    #[test]
    fn fr_a8_missing_content_is_blocked_only_in_strict_with_block() {
        let text = r#"{"id":7,"result":{"content":[]}}"#;
        check(Treatment::Hold, text, |_, seen| {
            assert_eq!(seen.finding, Some(Finding::Fails(Failure::missing())));
        });
        check(Treatment::ForwardAndJudge, text, |_, seen| {
            assert_eq!(seen.finding, Some(Finding::Passes));
        });
        finds(r#""structuredContent":null"#, &Finding::AskTheSchema);
    }

    #[test]
    fn fr_a7_mode_off_buffers_and_reports_nothing() {
        let text = r#"{"id":7,"result":{"structuredContent":[[[[[1]]]]],"isError":1}}"#;
        check(Treatment::Forward, text, |_, seen| {
            assert_eq!(seen.document, "");
            assert_eq!(seen.finding, Some(Finding::Passes));
        });
    }
}
