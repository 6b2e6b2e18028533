//! The answer's policy and its inspector: what is held, what is forwarded, what is judged.
//!
//! The [`Inspector`] takes one answer's chunks as they arrive and hands back the slices of
//! `result` that may go on. It never builds a document of them. Guards are decided while the
//! bytes arrive (FR-A6); the schema is asked by whoever drives the inspector, since judging a
//! large document is scheduling, and this file is pure.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::json::scan::{Breach, Guard, Kind, Limits, ScanError, Scanner};
use crate::json::span::Span;
use crate::schema::violation::Violation;
use crate::tool::{OutputSchema, Tool};

/// Default `max_bytes`: 5 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 5 * 1024 * 1024;
/// Default `max_depth`.
pub const DEFAULT_MAX_DEPTH: u32 = 64;
/// Default `max_held_bytes`: 64 MiB.
pub const DEFAULT_MAX_HELD_BYTES: u64 = 64 * 1024 * 1024;
/// Most bytes of a message outside its `result`: the envelope, or a whole notification.
pub const MAX_OUTSIDE_BYTES: usize = 1024 * 1024;
/// Longest description told to an agent, in bytes (CONTRACTS §Errors).
const MAX_DESCRIPTION_BYTES: usize = 500;

/// What a violation leads to (FR-A4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is judged.
    Off,
    /// The unaltered answer goes on, the decision is recorded.
    #[default]
    Warn,
    /// The answer is held until the verdict, and replaced when refused.
    Strict,
}

impl Mode {
    /// The word used in the config and in records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Strict => "strict",
        }
    }
}

/// What strict does when a schema is declared and `structuredContent` is absent (FR-A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingContent {
    /// The answer goes on.
    #[default]
    Allow,
    /// The answer is blocked.
    Block,
}

/// How one tool's answers are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What a violation leads to.
    pub mode: Mode,
    /// Most bytes of `structuredContent`, first to last byte of its value (FR-A6).
    pub max_bytes: u64,
    /// Most nesting of `structuredContent`, 1 to 120 (FR-A6).
    pub max_depth: u32,
    /// What strict does without `structuredContent`.
    pub missing: MissingContent,
    /// Most bytes of one held result, strict only.
    pub max_held_bytes: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Warn,
            max_bytes: DEFAULT_MAX_BYTES,
            max_depth: DEFAULT_MAX_DEPTH,
            missing: MissingContent::Allow,
            max_held_bytes: DEFAULT_MAX_HELD_BYTES,
        }
    }
}

/// What happens to an answer's bytes while they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They go on at once and nothing is judged (FR-A7, mode off).
    Forward,
    /// They go on at once; `structuredContent` is kept for the judge (FR-A11).
    ForwardAndJudge,
    /// They wait for the verdict.
    Hold,
}

impl Treatment {
    /// How answers of `tool` are treated.
    #[must_use]
    pub fn of(tool: &Tool) -> Self {
        match (&tool.schema, tool.policy.mode) {
            (OutputSchema::Absent | OutputSchema::Unusable(_), _) | (_, Mode::Off) => Self::Forward,
            (OutputSchema::Compiled(_), Mode::Warn) => Self::ForwardAndJudge,
            (OutputSchema::Compiled(_), Mode::Strict) => Self::Hold,
        }
    }
}

/// Why an answer cannot be used; the upstream is to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not one JSON-RPC message.
    Malformed(ScanError),
    /// More than [`MAX_OUTSIDE_BYTES`] outside of `result`.
    EnvelopeTooLong,
    /// The id turned out to be another one after bytes had gone on.
    ForeignId,
    /// Neither `result` nor `error` nor `method`.
    Empty,
}

impl fmt::Display for Fault {
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
pub enum Member {
    /// `result`
    Result,
    /// `error`
    Error,
}

/// What a complete message was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The answer, whole now.
    Answer(Member),
    /// A request or notification of the server; its bytes, in order.
    Notification(Vec<Bytes>),
    /// An answer to an id nobody asked for, noticed before anything of it went on.
    Foreign,
}

/// Watches one call's answer. Feed it the chunks of each message, then `end` it.
#[derive(Debug)]
pub struct Inspector {
    treatment: Treatment,
    limits: Limits,
    hash_key: u64,
    id: Box<[u8]>,
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
    /// An inspector for the answer to the request sent under `id` (raw, as written).
    /// `hash_key` is random per process: keys of hostile answers are hashed under it.
    #[must_use]
    pub fn new(treatment: Treatment, policy: &Policy, id: &[u8], hash_key: u64) -> Self {
        let limits = match treatment {
            Treatment::Forward => Limits::NONE,
            Treatment::ForwardAndJudge | Treatment::Hold => {
                Limits { max_bytes: policy.max_bytes, max_depth: policy.max_depth }
            }
        };
        Self {
            treatment,
            limits,
            hash_key,
            id: id.into(),
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
    /// [`Fault`], after which the answer is lost.
    pub fn feed(&mut self, chunk: &Bytes) -> Result<Bytes, Fault> {
        let base = self.scanner.position();
        self.scanner.feed(chunk).map_err(Fault::Malformed)?;
        let end = self.scanner.position();
        let envelope = self.scanner.envelope();
        let Some(body) = envelope.body else {
            return self.keep_outside(base, chunk, chunk.len()).map(|()| Bytes::new());
        };
        let slice = Span::new(body.start, body.end.unwrap_or(end)).within(chunk, base);
        if slice.len() < chunk.len() && !self.id_checked {
            self.keep_outside(base, chunk, chunk.len() - slice.len())?;
        }
        if !self.id_is_ours()? {
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
    /// [`Fault`], after which the answer is lost.
    pub fn end(&mut self) -> Result<Message, Fault> {
        self.scanner.finish().map_err(Fault::Malformed)?;
        let member = match self.scanner.envelope().kind {
            Some(Kind::Result) => Member::Result,
            Some(Kind::Error) => Member::Error,
            Some(Kind::Method) => {
                let parts = std::mem::take(&mut self.outside);
                self.restart();
                return Ok(Message::Notification(
                    parts.into_iter().map(|(_, part)| part).collect(),
                ));
            }
            None => return Err(Fault::Empty),
        };
        if self.id_is_ours()? && self.id_checked {
            return Ok(Message::Answer(member));
        }
        self.restart();
        Ok(Message::Foreign)
    }

    /// Which member the current message's body is, once that is known.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        match self.scanner.envelope().kind? {
            Kind::Result => Some(Member::Result),
            Kind::Error => Some(Member::Error),
            Kind::Method => None,
        }
    }

    /// `isError` as far as it is known.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.scanner.envelope().is_error == Some(true)
    }

    /// Bytes of the answer's body so far.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// A guard's final word, as soon as it is certain (SPEC §3: final unless `isError: true` was
    /// already seen).
    #[must_use]
    pub fn breach(&self) -> Option<Failure> {
        let breach = self.scanner.envelope().breach?;
        (!breach.after_is_error_true).then(|| Failure::guard(&breach))
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

    fn keep_outside(&mut self, base: u64, chunk: &Bytes, outside: usize) -> Result<(), Fault> {
        self.outside_bytes += outside;
        if self.outside_bytes > MAX_OUTSIDE_BYTES {
            return Err(Fault::EnvelopeTooLong);
        }
        self.outside.push((base, chunk.clone()));
        Ok(())
    }

    /// Compares the id once it is known. False: this message answers someone else.
    fn id_is_ours(&mut self) -> Result<bool, Fault> {
        if self.id_checked {
            return Ok(true);
        }
        let Some(span) = self.scanner.envelope().id else { return Ok(true) };
        let ours = span.len() == self.id.len() as u64
            && self
                .outside
                .iter()
                .flat_map(|(base, chunk)| span.within(chunk, *base))
                .eq(self.id.iter().copied());
        self.id_checked = ours;
        if !ours && self.body_bytes > 0 {
            return Err(Fault::ForeignId);
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

/// What is to be done about a whole result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing stands against it.
    Passes,
    /// The schema decides.
    AskTheSchema,
    /// Refused without asking the schema.
    Fails(Failure),
}

/// A violation, in the words of the record and in those of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the record: may quote the document.
    pub reason: String,
    /// For the agent: no value, and no property name that the schema does not have (SPEC §3).
    pub for_agent: String,
    /// Where in the document, a JSON pointer.
    pub instance_path: String,
    /// Where in the schema, a JSON pointer.
    pub schema_path: String,
    /// The guard that was crossed: `max_bytes`, `max_depth`, `max_held_bytes`, `time`.
    pub guard: Option<&'static str>,
}

impl Failure {
    /// A schema's verdict.
    #[must_use]
    pub fn schema(violation: &Violation) -> Self {
        Self {
            reason: violation.describe().to_owned(),
            for_agent: violation.for_agent().to_owned(),
            instance_path: violation.instance_path.clone(),
            schema_path: violation.schema_path.clone(),
            guard: violation.reason.guard(),
        }
    }

    /// A held result outgrew `max_held_bytes`.
    #[must_use]
    pub fn held(limit: u64) -> Self {
        Self::plain(
            format!("the result is larger than max_held_bytes {limit}"),
            Some("max_held_bytes"),
        )
    }

    /// The judge itself failed; what was not judged does not pass for judged.
    #[must_use]
    pub fn unjudged() -> Self {
        Self::plain("the validator failed, so nothing is known of the answer".into(), None)
    }

    fn guard(breach: &Breach) -> Self {
        let (text, name) = match breach.guard {
            Guard::Bytes => ("structuredContent is larger than max_bytes", "max_bytes"),
            Guard::Depth => ("structuredContent nests deeper than max_depth", "max_depth"),
        };
        Self::plain(format!("{text} {}", breach.limit), Some(name))
    }

    fn missing() -> Self {
        Self::plain("structuredContent is missing, and the tool declares a schema".into(), None)
    }

    fn ambiguous(text: &str) -> Self {
        Self::plain(text.into(), None)
    }

    fn plain(text: String, guard: Option<&'static str>) -> Self {
        Self {
            reason: text.clone(),
            for_agent: text,
            instance_path: String::new(),
            schema_path: String::new(),
            guard,
        }
    }

    /// The text of the tool result that replaces a blocked answer (CONTRACTS §Errors).
    #[must_use]
    pub fn agent_text(&self) -> String {
        let mut end = self.for_agent.len().min(MAX_DESCRIPTION_BYTES);
        while !self.for_agent.is_char_boundary(end) {
            end -= 1;
        }
        let description = self.for_agent.get(..end).unwrap_or_default();
        format!("output schema validation failed: {description}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        mode: Mode::Warn,
        max_bytes: 20,
        max_depth: 2,
        missing: MissingContent::Allow,
        max_held_bytes: 1000,
    };

    /// What an inspector makes of one message, fed in pieces of `size` bytes.
    fn inspect(treatment: Treatment, text: &str, size: usize) -> (Result<Message, Fault>, Seen) {
        let mut inspector = Inspector::new(treatment, &POLICY, b"7", 1);
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
    fn check(treatment: Treatment, text: &str, expect: impl Fn(&Result<Message, Fault>, &Seen)) {
        let (message, seen) = inspect(treatment, text, text.len());
        expect(&message, &seen);
        for size in 1..text.len() {
            let (split_message, split_seen) = inspect(treatment, text, size);
            match (&message, &split_message) {
                (Ok(Message::Notification(whole)), Ok(Message::Notification(parts))) => {
                    assert_eq!(whole.concat(), parts.concat(), "in pieces of {size}");
                }
                _ => assert_eq!(message, split_message, "in pieces of {size}"),
            }
            assert_eq!(seen, split_seen, "in pieces of {size}");
        }
    }

    fn answered(message: &Result<Message, Fault>, member: Member) {
        assert_eq!(message, &Ok(Message::Answer(member)));
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
                    answered(message, Member::Result);
                    assert_eq!(seen.body, result);
                });
            }
        }
    }

    #[test]
    fn an_error_is_the_body_as_well() {
        check(Treatment::Hold, r#"{"error":{"code":-1},"id":7}"#, |message, seen| {
            answered(message, Member::Error);
            assert_eq!(seen.body, r#"{"code":-1}"#);
        });
    }

    #[test]
    fn a_notification_is_handed_over_whole() {
        let text = r#"{"params":{"progress":1},"method":"notifications/progress"}"#;
        check(Treatment::Forward, text, |message, seen| {
            let Ok(Message::Notification(parts)) = message else { panic!("{message:?}") };
            assert_eq!(parts.concat(), text.as_bytes());
            assert_eq!(seen.body, "");
        });
    }

    #[test]
    fn an_answer_to_another_id_is_nobodys() {
        for id in ["8", "77", "\"7\"", "null"] {
            let first = format!(r#"{{"id":{id},"result":{{}}}}"#);
            check(Treatment::Forward, &first, |message, seen| {
                assert_eq!(message, &Ok(Message::Foreign), "{id}");
                assert_eq!(seen.body, "");
            });
        }
        // Found out too late: bytes have gone on.
        let last = r#"{"result":{},"id":8}"#;
        let (message, _) = inspect(Treatment::Forward, last, 3);
        assert_eq!(message, Err(Fault::ForeignId));
        let (message, _) = inspect(Treatment::Forward, r#"{"result":{}}"#, 3);
        assert_eq!(message, Ok(Message::Foreign), "no id at all");
    }

    #[test]
    fn the_inspector_goes_on_with_the_next_message() {
        let mut inspector = Inspector::new(Treatment::Hold, &POLICY, b"7", 1);
        for text in [r#"{"method":"x"}"#, r#"{"id":9,"result":{"structuredContent":1}}"#] {
            inspector.feed(&Bytes::from_static(text.as_bytes())).unwrap();
            assert!(!matches!(inspector.end(), Ok(Message::Answer(_))));
        }
        let answer = br#"{"id":7,"result":{"structuredContent":[2]}}"#;
        let body = inspector.feed(&Bytes::from_static(answer)).unwrap();
        assert_eq!(body, r#"{"structuredContent":[2]}"#);
        assert_eq!(inspector.end(), Ok(Message::Answer(Member::Result)));
        assert_eq!(inspector.document().concat(), b"[2]");
    }

    #[test]
    fn what_is_no_message_is_the_upstreams_fault() {
        for text in ["{}", r#"{"id":7}"#, "[]", "garbage", r#"{"id":7,"result":{}} {"#] {
            let (message, _) = inspect(Treatment::Forward, text, 100);
            assert!(matches!(message, Err(Fault::Malformed(_) | Fault::Empty)), "{text}");
        }
    }

    #[test]
    fn an_endless_envelope_is_cut_off_before_and_after_the_body() {
        for head in [r#"{"a":""#, r#"{"result":{},"a":""#] {
            let mut inspector = Inspector::new(Treatment::Forward, &POLICY, b"7", 1);
            inspector.feed(&Bytes::copy_from_slice(head.as_bytes())).unwrap();
            let filler = Bytes::from(vec![b'x'; 64 * 1024]);
            let fed = (0..=MAX_OUTSIDE_BYTES / filler.len()).map(|_| inspector.feed(&filler));
            assert_eq!(fed.last(), Some(Err(Fault::EnvelopeTooLong)), "{head}");
        }
    }

    fn finds(structured: &str, expect: &Finding) {
        let text = format!(r#"{{"id":7,"result":{{{structured}}}}}"#);
        check(Treatment::Hold, &text, |message, seen| {
            answered(message, Member::Result);
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

    #[test]
    fn the_agents_text_is_cut_on_a_character() {
        let text = Failure::plain("é".repeat(400), None).agent_text();
        assert_eq!(text, format!("output schema validation failed: {}", "é".repeat(250)));
    }
}
