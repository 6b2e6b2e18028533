//! Watches one call's answer as its chunks arrive: what is forwarded, what is kept for the judge.
//!
//! The [`Inspector`] hands back the slices of `result` that may go on. It never builds a document
//! of them. Guards (`guards`) are decided while the bytes arrive (FR-A6).

use std::fmt;

use bytes::Bytes;

use super::{Failure, Finding, MissingContent, Policy, Required, Treatment, guards};
use crate::json::scan::{MessageKind, ScanError, ScanLimits, Scanner};
use crate::json::span::Span;

/// Most bytes of a message outside its `result`: the envelope, or a whole notification.
pub const MAX_OUTSIDE_BYTES: usize = 1024 * 1024;

/// Why an answer cannot be used; the upstream is to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// Not one JSON-RPC message.
    Malformed(ScanError),
    /// More than [`MAX_OUTSIDE_BYTES`] outside of `result`.
    EnvelopeTooLong,
    /// The id turned out to be another one, or none, after bytes had gone on.
    ForeignId,
    /// Neither `result` nor `error` nor `method`.
    Empty,
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "sent a malformed answer: {error}"),
            Self::EnvelopeTooLong => {
                write!(f, "sent more than {MAX_OUTSIDE_BYTES} bytes around its result")
            }
            Self::ForeignId => f.write_str("answered under an id that nobody asked for"),
            Self::Empty => f.write_str("sent a message that is neither an answer nor a request"),
        }
    }
}

/// Which member of the envelope the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMember {
    /// `result`
    Result,
    /// `error`
    Error,
}

/// What a complete message was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedMessage {
    /// The answer, whole now.
    Answer(AnswerMember),
    /// A request or notification of the server; its bytes, in order.
    Notification(Vec<Bytes>),
    /// An answer with an id that no request has, detected before any of it was forwarded.
    Foreign,
}

/// Watches one call's answer. Feed it the chunks of each message, then `end` it.
#[derive(Debug)]
pub struct Inspector {
    treatment: Treatment,
    limits: ScanLimits,
    hash_key: u64,
    id: u64,
    scanner: Scanner,
    /// Chunks outside the answer's body with their offsets: the id is read from them, and a
    /// notification is made of them.
    outside: Vec<(u64, Bytes)>,
    outside_bytes: usize,
    /// The slices of `structuredContent`, while they may still be judged.
    document: Vec<Bytes>,
    /// Bytes of the answer's body so far.
    body_bytes: u64,
    id_checked: bool,
}

impl Inspector {
    /// An inspector for the answer to the request sent under `id`.
    /// `hash_key` is random per process: keys of hostile answers are hashed under it.
    #[must_use]
    pub fn new(treatment: Treatment, policy: &Policy, id: u64, hash_key: u64) -> Self {
        let limits = guards::limits(treatment, policy);
        Self {
            treatment,
            limits,
            hash_key,
            id,
            scanner: Scanner::new(limits, hash_key),
            outside: Vec::new(),
            outside_bytes: 0,
            document: Vec::new(),
            body_bytes: 0,
            id_checked: false,
        }
    }

    /// Takes the next chunk of the current message and returns the slice of it that belongs to
    /// the answer's body, empty if none does.
    ///
    /// # Errors
    ///
    /// [`AnswerFault`], after which the answer is lost.
    pub fn feed(&mut self, chunk: &Bytes) -> Result<Bytes, AnswerFault> {
        let base = self.scanner.position();
        self.scanner.feed(chunk).map_err(AnswerFault::Malformed)?;
        let end = self.scanner.position();
        let envelope = self.scanner.envelope();
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
        if self.treatment != Treatment::Forward {
            self.keep_document(chunk, base, end);
        }
        self.body_bytes += slice.len() as u64;
        Ok(slice)
    }

    /// Ends the current message. After anything but an answer the inspector is ready for the
    /// next one.
    ///
    /// # Errors
    ///
    /// [`AnswerFault`], after which the answer is lost.
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
        if self.id_is_ours(None)? && self.id_checked {
            return Ok(InspectedMessage::Answer(member));
        }
        if self.body_bytes > 0 {
            // No id at all: its body was taken for ours.
            return Err(AnswerFault::ForeignId);
        }
        self.restart();
        Ok(InspectedMessage::Foreign)
    }

    /// Which member the current message's body is, once that is known.
    #[must_use]
    pub fn member(&self) -> Option<AnswerMember> {
        match self.scanner.envelope().kind? {
            MessageKind::Result => Some(AnswerMember::Result),
            MessageKind::Error => Some(AnswerMember::Error),
            MessageKind::Method => None,
        }
    }

    /// What closes the answer in the place of its last brace, where it is a result that does not
    /// say what is `required` of it; `None` as long as it is open. The slice that
    /// [`feed`](Self::feed) gave last ends with that brace when this first says something.
    #[must_use]
    pub fn ending(&self, required: Required) -> Option<&'static [u8]> {
        required.ending(self.scanner.envelope().closed?, |member| self.scanner.has(member))
    }

    /// `isError` as far as it is known.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.scanner.envelope().is_error == Some(true)
    }

    /// The breach of a guard, once nothing can lift it.
    #[must_use]
    pub fn breach(&self) -> Option<Failure> {
        self.scanner.envelope().breach.as_ref().and_then(guards::failure)
    }

    /// What is to be done about a whole `result`, when nothing is left to arrive.
    #[must_use]
    pub fn finding(&self, missing: MissingContent) -> Finding {
        if self.treatment == Treatment::Forward {
            return Finding::Passes;
        }
        if let Some(failure) = self.breach() {
            return Finding::Fails(failure);
        }
        let envelope = self.scanner.envelope();
        if let Some(ambiguity) = &envelope.ambiguity {
            return Finding::Fails(Failure::ambiguous(&ambiguity.doubt.to_string()));
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

    /// The kept slices of `structuredContent`, in order.
    #[must_use]
    pub fn document(&self) -> &[Bytes] {
        &self.document
    }

    /// Takes the kept slices of `structuredContent` away.
    pub fn take_document(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.document)
    }

    fn restart(&mut self) {
        self.scanner = Scanner::new(self.limits, self.hash_key);
        self.outside.clear();
        self.outside_bytes = 0;
        self.document.clear();
        self.body_bytes = 0;
        self.id_checked = false;
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

    /// Compares the id once it is known; it stands in the chunks that were kept and in `last`.
    /// False: this message answers someone else.
    fn id_is_ours(&mut self, last: Option<(u64, &Bytes)>) -> Result<bool, AnswerFault> {
        if self.id_checked {
            return Ok(true);
        }
        let Some(span) = self.scanner.envelope().id else { return Ok(true) };
        let mut id = itoa::Buffer::new();
        let id = id.format(self.id).as_bytes();
        let kept = self.outside.iter().map(|(base, chunk)| (*base, chunk));
        let written = kept.chain(last).flat_map(|(base, chunk)| span.within(chunk, base));
        let ours = span.len() == id.len() as u64 && written.eq(id.iter().copied());
        self.id_checked = ours;
        if !ours && self.body_bytes > 0 {
            return Err(AnswerFault::ForeignId);
        }
        Ok(ours)
    }

    fn keep_document(&mut self, chunk: &Bytes, base: u64, end: u64) {
        let envelope = self.scanner.envelope();
        if envelope.breach.is_some() || envelope.is_error == Some(true) {
            self.document = Vec::new();
            return;
        }
        let Some(part) = envelope.structured else { return };
        let slice = Span::new(part.start, part.end.unwrap_or(end)).within(chunk, base);
        if !slice.is_empty() {
            self.document.push(slice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Mode;

    const POLICY: Policy = Policy {
        mode: Mode::Warn,
        max_bytes: 20,
        max_depth: 2,
        missing: MissingContent::Allow,
        max_held_bytes: 1000,
    };

    /// What an inspector makes of one message, fed in pieces of `size` bytes.
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

    /// Checks a message in every chunking, and that all chunkings agree.
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
    fn fr_a3_the_body_is_the_servers_bytes_wherever_the_id_stands() {
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

    #[test]
    fn an_error_is_the_body_as_well() {
        check(Treatment::Hold, r#"{"error":{"code":-1},"id":7}"#, |message, seen| {
            answered(message, AnswerMember::Error);
            assert_eq!(seen.body, r#"{"code":-1}"#);
        });
    }

    #[test]
    fn a_notification_is_handed_over_whole() {
        let text = r#"{"params":{"progress":1},"method":"notifications/progress"}"#;
        check(Treatment::Forward, text, |message, seen| {
            let Ok(InspectedMessage::Notification(parts)) = message else { panic!("{message:?}") };
            assert_eq!(parts.concat(), text.as_bytes());
            assert_eq!(seen.body, "");
        });
    }

    #[test]
    fn an_answer_to_another_id_is_nobodys() {
        for id in ["8", "77", "\"7\"", "null"] {
            let first = format!(r#"{{"id":{id},"result":{{}}}}"#);
            check(Treatment::Forward, &first, |message, seen| {
                assert_eq!(message, &Ok(InspectedMessage::Foreign), "{id}");
                assert_eq!(seen.body, "");
            });
        }
        // Found out too late: bytes have gone on.
        let last = r#"{"result":{},"id":8}"#;
        let (message, _) = inspect(Treatment::Forward, last, 3);
        assert_eq!(message, Err(AnswerFault::ForeignId));
    }

    /// Found by the fuzz target `splice`: it passed for foreign, and what had gone on of it stood
    /// before the next answer.
    #[test]
    fn an_answer_without_an_id_is_a_fault_once_bytes_went_on() {
        for treatment in [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold] {
            check(treatment, r#"{"jsonrpc":"2.0","result":{"a":1}}"#, |message, _| {
                assert_eq!(message, &Err(AnswerFault::ForeignId));
            });
        }
    }

    #[test]
    fn the_inspector_goes_on_with_the_next_message() {
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

    #[test]
    fn what_is_no_message_is_the_upstreams_fault() {
        for text in ["{}", r#"{"id":7}"#, "[]", "garbage", r#"{"id":7,"result":{}} {"#] {
            let (message, _) = inspect(Treatment::Forward, text, 100);
            assert!(
                matches!(message, Err(AnswerFault::Malformed(_) | AnswerFault::Empty)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_endless_envelope_is_cut_off_before_and_after_the_body() {
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
        // Final, whatever follows; lifted only by what stood before.
        finds(&format!(r#"{},"isError":true"#, long(21)), &Finding::Fails(bytes));
        finds(&format!(r#""isError":true,{}"#, long(21)), &Finding::Passes);
    }

    #[test]
    fn fr_a10_an_error_is_not_judged_wherever_it_says_so() {
        finds(r#""isError":true,"structuredContent":1"#, &Finding::Passes);
        finds(r#""structuredContent":1,"isError":true"#, &Finding::Passes);
        finds(r#""structuredContent":1,"isError":false"#, &Finding::AskTheSchema);
        for doubtful in [
            r#""isError":"true","structuredContent":1"#,
            r#""isError":true,"isError":true"#,
            r#""structuredContent":1,"structured\u0043ontent":2"#,
            r#""a":1,"\u0061":2"#,
        ] {
            let text = format!(r#"{{"id":7,"result":{{{doubtful}}}}}"#);
            check(Treatment::Hold, &text, |_, seen| {
                assert!(matches!(seen.finding, Some(Finding::Fails(_))), "{doubtful}");
            });
        }
    }

    #[test]
    fn fr_a8_missing_content_is_blocked_only_in_strict_and_only_if_asked() {
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
    fn fr_a7_nothing_is_kept_or_found_where_nothing_is_judged() {
        let text = r#"{"id":7,"result":{"structuredContent":[[[[[1]]]]],"isError":1}}"#;
        check(Treatment::Forward, text, |_, seen| {
            assert_eq!(seen.document, "");
            assert_eq!(seen.finding, Some(Finding::Passes));
        });
    }
}
