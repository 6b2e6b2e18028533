//! Streaming scanner: one pass over one JSON-RPC message, resumable at every byte.
//!
//! Finds the spans that the proxy needs, applies the bounds on `structuredContent` (FR-A6), and detects content that two parsers could
//! read differently, in bounded memory and usually without an allocation. The result does not depend on the chunking.
//!
//! Checks exactly, by RFC 8259, everything outside nested containers: the message's object, the members of `result` and their
//! values. Nested containers are skipped at memory speed: strings and nesting are tracked, the outermost brackets must match,
//! and nothing else is examined (see `skip`). The UTF-8 and surrogates of values are left to the tape, which reads
//! `structuredContent` in full.
//!
//! Copies no bytes and gives no verdict.
//!
//! ```text
//!          ┌──────────────── enters `result` ───────────────┐
//! Start ─▶ FirstKey ─▶ Key ─▶ Colon ─▶ Value ─▶ Text │ Literal │ Number │ Container
//!                       ▲                                   │
//!                    NextKey ◀───────── Comma ◀─────────────┘    Comma ─▶ End
//! ```

use super::kernel::Kernel;
use super::key::{self, KeyReader, Novelty, SeenKeys};
use super::report::{
    Ambiguity, AmbiguityKind, Breach, Closed, Guard, MessageKind, ScanError, ScanFault, ScanLimits,
    ScannedMember, ScannedMessage, ScannedPart,
};
use super::skip::{NO_CEILING, Skip, Stop, closer};
use super::swar;
use crate::span::Span;

/// Incremental scanner of one message.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: ScanLimits,
    kernel: Kernel,
    /// Offset of the next byte.
    position: u64,
    state: State,
    /// Object whose members are being read.
    level: Level,
    /// Current member, and the start of its value.
    member: ScannedMember,
    value_start: u64,
    key: KeyReader,
    key_start: u64,
    skip: Skip,
    opener: u8,
    /// First offset at which the open value exceeds the size limit.
    bytes_end: u64,
    seen: SeenKeys,
    envelope: ScannedMessage,
    failed: Option<ScanError>,
}

/// State of the scanner.
#[derive(Clone, Copy, Debug)]
enum State {
    /// White space or the next token, outside keys and values.
    Between(Gap),
    Key,
    Text(Text),
    /// In `true`, `false` or `null`: the rest of the word.
    Literal(&'static [u8]),
    Number(Number),
    Container,
}

/// Expected token.
#[derive(Clone, Copy, Debug)]
enum Gap {
    /// The message's `{`.
    Start,
    /// After `{`: a key or `}`.
    FirstKey,
    /// After `,`: a key.
    NextKey,
    Colon,
    Value,
    /// After a value: `,` or `}`.
    Comma,
    /// No token: the message's object has closed.
    End,
}

/// State within a string value.
#[derive(Clone, Copy, Debug)]
enum Text {
    Plain,
    Escape,
    /// Number of hexadecimal digits left.
    Hex(u8),
}

/// Objects whose members are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Message,
    Result,
}

impl Scanner {
    /// Scanner for one message, with the fastest kernel. `seed` keys the hash of unknown keys and should be random.
    pub fn new(limits: ScanLimits, seed: u64) -> Self {
        Self::with_kernel(limits, seed, Kernel::fastest())
    }

    /// Scanner with a given kernel, for comparisons.
    pub fn with_kernel(limits: ScanLimits, seed: u64, kernel: Kernel) -> Self {
        Self {
            limits,
            kernel,
            position: 0,
            state: State::Between(Gap::Start),
            level: Level::Message,
            member: ScannedMember::Other,
            value_start: 0,
            key: KeyReader::new(seed),
            key_start: 0,
            skip: Skip::opened(NO_CEILING),
            opener: 0,
            bytes_end: u64::MAX,
            seen: SeenKeys::default(),
            envelope: ScannedMessage::default(),
            failed: None,
        }
    }

    /// Reads the next chunk completely and updates the [envelope](Self::envelope).
    ///
    /// # Errors
    ///
    /// The fault at the first byte that makes the message unusable. Later calls return the same error.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), ScanError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut rest = chunk;
        while !rest.is_empty() {
            let (used, fault) = match self.step(rest) {
                Ok(used) => (used, None),
                Err((used, fault)) => (used, Some(fault)),
            };
            self.position += used as u64;
            self.guard_bytes(self.position);
            if let Some(fault) = fault {
                let error = ScanError { at: self.position, fault };
                self.failed = Some(error);
                return Err(error);
            }
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// Checks that the bytes so far are one complete message. May be called at any time.
    ///
    /// # Errors
    ///
    /// The error of [`feed`](Self::feed), or [`ScanFault::Truncated`].
    pub fn finish(&self) -> Result<(), ScanError> {
        match (self.failed, self.state) {
            (Some(error), _) => Err(error),
            (None, State::Between(Gap::End)) => Ok(()),
            (None, _) => Err(ScanError { at: self.position, fault: ScanFault::Truncated }),
        }
    }

    /// Envelope as read so far.
    pub fn envelope(&self) -> &ScannedMessage {
        &self.envelope
    }

    /// Whether a key with this name was read where it has a meaning; always false for [`ScannedMember::Other`].
    pub fn has(&self, member: ScannedMember) -> bool {
        self.seen.has(member)
    }

    /// Bytes read; after an error, the offset of the offending byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Performs one step and returns the number of bytes of `rest` used. Invariant: returns zero only if the state changed, so that
    /// scanning terminates.
    fn step(&mut self, rest: &[u8]) -> Step {
        match self.state {
            State::Key => self.key(rest),
            State::Text(text) => self.text(text, rest),
            State::Literal(left) => self.literal(left, rest),
            State::Number(number) => self.number(number, rest),
            State::Container => self.container(rest),
            State::Between(gap) => self.between(gap, rest, 0),
        }
    }

    /// Reads tokens from index `from` up to the first byte of a key or a value.
    fn between(&mut self, mut gap: Gap, rest: &[u8], from: usize) -> Step {
        for (used, &byte) in rest.iter().enumerate().skip(from) {
            if is_space(byte) {
                continue;
            }
            match self.token(gap, byte, self.position + used as u64) {
                Ok(State::Between(next)) => gap = next,
                Ok(next) => {
                    self.state = next;
                    return Ok(used + 1);
                }
                Err(fault) => return Err((used, fault)),
            }
        }
        self.state = State::Between(gap);
        Ok(rest.len())
    }

    /// Handles the first byte of a token at offset `at`, and returns the next state.
    fn token(&mut self, gap: Gap, byte: u8, at: u64) -> Result<State, ScanFault> {
        match (gap, byte) {
            (Gap::Start, b'{') => Ok(State::Between(Gap::FirstKey)),
            (Gap::Start, b'[') => Err(ScanFault::Batch),
            (Gap::Start, _) => Err(ScanFault::NotAnObject),
            (Gap::FirstKey | Gap::NextKey, b'"') => {
                self.key.begin();
                self.key_start = at;
                Ok(State::Key)
            }
            (Gap::Colon, b':') => Ok(State::Between(Gap::Value)),
            (Gap::Value, _) => self.begin_value(byte, at),
            (Gap::Comma, b',') => Ok(State::Between(Gap::NextKey)),
            (Gap::FirstKey | Gap::Comma, b'}') => match self.level {
                Level::Message => Ok(State::Between(Gap::End)),
                Level::Result => {
                    self.level = Level::Message;
                    close(&mut self.envelope.body, at + 1);
                    let empty = matches!(gap, Gap::FirstKey);
                    let closed = if empty { Closed::Empty } else { Closed::WithMembers };
                    self.envelope.closed = Some(closed);
                    Ok(State::Between(Gap::Comma))
                }
            },
            (Gap::FirstKey | Gap::NextKey | Gap::Colon | Gap::Comma, _) => {
                Err(ScanFault::Unexpected)
            }
            (Gap::End, _) => Err(ScanFault::Trailing),
        }
    }

    fn key(&mut self, rest: &[u8]) -> Step {
        let Some(used) = self.key.read(rest)? else { return Ok(rest.len()) };
        self.member = match self.key.name() {
            Some(name) => self.level.member(name),
            None => ScannedMember::Other,
        };
        if self.key.has_lone_surrogate() {
            self.note_ambiguity(AmbiguityKind::LoneSurrogate, self.key_start);
        }
        if self.level == Level::Result
            && self.member == ScannedMember::Other
            && let Some(meant) = self.key.name().and_then(key::variant)
        {
            self.note_ambiguity(AmbiguityKind::Variant(meant), self.key_start);
        }
        let novelty = match self.member {
            ScannedMember::Other => self.seen.other(self.key.hash(self.level as u64)),
            known => self.seen.known(known),
        };
        match novelty {
            Novelty::New => {}
            Novelty::Full => self.note_ambiguity(AmbiguityKind::TooManyKeys, self.key_start),
            Novelty::Repeated => {
                if self.level == Level::Message && self.member != ScannedMember::Other {
                    return Err((used - 1, ScanFault::Duplicate(self.member)));
                }
                self.note_ambiguity(AmbiguityKind::Duplicate(self.member), self.key_start);
                // Only the first of the duplicates counts; this one is skipped.
                self.member = ScannedMember::Other;
            }
        }
        self.envelope.has_outcome |=
            matches!(self.member, ScannedMember::Result | ScannedMember::Error);
        if self.member == ScannedMember::Method {
            self.decide(MessageKind::Method).map_err(|fault| (used - 1, fault))?;
        }
        self.between(Gap::Colon, rest, used)
    }

    /// Handles the first byte of a value at offset `at`.
    fn begin_value(&mut self, byte: u8, at: u64) -> Result<State, ScanFault> {
        let state = match byte {
            b'"' => State::Text(Text::Plain),
            b'{' | b'[' => State::Container,
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            _ => State::Number(Number::begin(byte).ok_or(ScanFault::Unexpected)?),
        };
        self.value_start = at;
        let mut ceiling = NO_CEILING;
        match self.member {
            ScannedMember::Id if matches!(byte, b'{' | b'[' | b't' | b'f') => {
                return Err(ScanFault::WrongType(ScannedMember::Id));
            }
            ScannedMember::Method if byte != b'"' => {
                return Err(ScanFault::WrongType(ScannedMember::Method));
            }
            ScannedMember::Result | ScannedMember::Error if byte == b'n' => {
                // A null value counts as absent.
                self.member = ScannedMember::Other;
            }
            ScannedMember::Result => self.begin_body(MessageKind::Result, byte, at)?,
            ScannedMember::Error => self.begin_body(MessageKind::Error, byte, at)?,
            ScannedMember::Params => self.envelope.params = Some(ScannedPart::open(at)),
            ScannedMember::Content => {
                self.envelope.content = Some(ScannedPart::open(at));
                self.require(byte, b'[');
            }
            ScannedMember::StructuredContent => {
                self.envelope.structured = Some(ScannedPart::open(at));
                self.bytes_end = at.saturating_add(self.limits.max_bytes);
                ceiling = u64::from(self.limits.max_depth);
            }
            ScannedMember::RequestState => {
                self.envelope.request_state = Some(ScannedPart::open(at));
            }
            ScannedMember::IsError if !matches!(byte, b't' | b'f') => {
                self.note_ambiguity(AmbiguityKind::IsErrorNotBoolean, at);
                self.member = ScannedMember::Other;
            }
            ScannedMember::Id
            | ScannedMember::Jsonrpc
            | ScannedMember::Method
            | ScannedMember::IsError
            | ScannedMember::ResultType
            | ScannedMember::Meta
            | ScannedMember::TtlMs
            | ScannedMember::CacheScope
            | ScannedMember::Other => {}
        }
        if self.member == ScannedMember::Result && byte == b'{' {
            self.level = Level::Result;
            return Ok(State::Between(Gap::FirstKey));
        }
        if matches!(byte, b'{' | b'[') {
            self.opener = byte;
            self.skip = Skip::opened(ceiling);
            if ceiling == 0 {
                self.guard_bytes(at + 1);
                self.breach(Guard::Depth, at);
            }
        }
        Ok(state)
    }

    /// Handles the first byte of a `result` or `error` that is not null.
    fn begin_body(&mut self, kind: MessageKind, byte: u8, at: u64) -> Result<(), ScanFault> {
        self.decide(kind)?;
        self.require(byte, b'{');
        self.envelope.body = Some(ScannedPart::open(at));
        Ok(())
    }

    /// Sets the kind of the message, which can have only one.
    fn decide(&mut self, kind: MessageKind) -> Result<(), ScanFault> {
        match self.envelope.kind.replace(kind) {
            None => Ok(()),
            Some(first) => {
                self.envelope.kind = Some(first);
                Err(ScanFault::Conflict)
            }
        }
    }

    /// Records the current member as mistyped if its value does not begin with `first`.
    fn require(&mut self, byte: u8, first: u8) {
        if byte != first {
            self.envelope.mistyped.get_or_insert(self.member);
        }
    }

    /// Handles the end of a value; `end` is exclusive.
    fn end_value(&mut self, end: u64) {
        self.guard_bytes(end);
        self.bytes_end = u64::MAX;
        self.state = State::Between(Gap::Comma);
        let span = Some(Span::new(self.value_start, end));
        match self.member {
            ScannedMember::Id => self.envelope.id = span,
            ScannedMember::Method => self.envelope.method = span,
            ScannedMember::ResultType => self.envelope.result_type = span,
            // Only `true` and `false` are possible here, and only `true` has four letters.
            ScannedMember::IsError => self.envelope.is_error = Some(end - self.value_start == 4),
            ScannedMember::Result | ScannedMember::Error => close(&mut self.envelope.body, end),
            ScannedMember::Params => close(&mut self.envelope.params, end),
            ScannedMember::Content => close(&mut self.envelope.content, end),
            ScannedMember::StructuredContent => close(&mut self.envelope.structured, end),
            ScannedMember::RequestState => close(&mut self.envelope.request_state, end),
            _ => {}
        }
    }

    fn text(&mut self, mut text: Text, rest: &[u8]) -> Step {
        let mut used = 0;
        while let Some(from) = rest.get(used..)
            && let Some(&byte) = from.first()
        {
            text = match (text, byte) {
                (Text::Plain, b'"') => {
                    self.end_value(self.position + used as u64 + 1);
                    return Ok(used + 1);
                }
                (Text::Plain, b'\\') => Text::Escape,
                (Text::Plain, 0x00..=0x1F) => return Err((used, ScanFault::Control)),
                (Text::Plain, _) => {
                    used += swar::string_run(from);
                    continue;
                }
                (Text::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                    Text::Plain
                }
                (Text::Escape, b'u') => Text::Hex(4),
                (Text::Hex(left), _) if byte.is_ascii_hexdigit() => match left {
                    1 => Text::Plain,
                    _ => Text::Hex(left - 1),
                },
                (Text::Escape | Text::Hex(_), _) => return Err((used, ScanFault::Escape)),
            };
            used += 1;
        }
        self.state = State::Text(text);
        Ok(used)
    }

    fn literal(&mut self, left: &'static [u8], rest: &[u8]) -> Step {
        let equal = left.iter().zip(rest).take_while(|(want, byte)| want == byte).count();
        let left = left.get(equal..).unwrap_or_default();
        if left.is_empty() {
            self.end_value(self.position + equal as u64);
        } else if equal < rest.len() {
            return Err((equal, ScanFault::Unexpected));
        } else {
            self.state = State::Literal(left);
        }
        Ok(equal)
    }

    fn number(&mut self, mut number: Number, rest: &[u8]) -> Step {
        for (used, &byte) in rest.iter().enumerate() {
            match number.next(byte) {
                Some(next) => number = next,
                None if number.may_end() => {
                    self.end_value(self.position + used as u64);
                    return Ok(used);
                }
                None => return Err((used, ScanFault::Number)),
            }
        }
        self.state = State::Number(number);
        Ok(rest.len())
    }

    fn container(&mut self, rest: &[u8]) -> Step {
        let found = self.kernel.skip(&mut self.skip, rest);
        if let Some(crossed) = found.crossed {
            let at = self.position + crossed as u64;
            self.guard_bytes(at + 1);
            self.breach(Guard::Depth, at);
        }
        match found.stop {
            Stop::Drained => Ok(found.used),
            Stop::Stray => Err((found.used, ScanFault::Unexpected)),
            Stop::Closed => {
                let last = found.used - 1;
                if rest.get(last) != Some(&closer(self.opener)) {
                    return Err((last, ScanFault::Mismatched));
                }
                self.end_value(self.position + found.used as u64);
                Ok(found.used)
            }
        }
    }

    /// Applies the size limit to an open `structuredContent` that extends at least to offset `end`.
    fn guard_bytes(&mut self, end: u64) {
        if end > self.bytes_end {
            self.breach(Guard::Bytes, self.bytes_end);
        }
    }

    /// Records the first breach; ignores later ones.
    fn breach(&mut self, guard: Guard, at: u64) {
        let limit = match guard {
            Guard::Bytes => self.limits.max_bytes,
            Guard::Depth => u64::from(self.limits.max_depth),
        };
        let after_is_error_true = self.envelope.is_error == Some(true);
        self.envelope.breach.get_or_insert(Breach { guard, at, limit, after_is_error_true });
        self.bytes_end = u64::MAX;
    }

    /// Records the first ambiguity; ignores later ones.
    fn note_ambiguity(&mut self, kind: AmbiguityKind, at: u64) {
        self.envelope.ambiguity.get_or_insert(Ambiguity { kind, at });
    }
}

/// Number of bytes used, or the index and the fault of the offending byte.
type Step = Result<usize, (usize, ScanFault)>;

impl Level {
    /// Known member of this object with the given name.
    fn member(self, name: &[u8]) -> ScannedMember {
        match (self, name) {
            (Self::Message, b"jsonrpc") => ScannedMember::Jsonrpc,
            (Self::Message, b"id") => ScannedMember::Id,
            (Self::Message, b"result") => ScannedMember::Result,
            (Self::Message, b"error") => ScannedMember::Error,
            (Self::Message, b"method") => ScannedMember::Method,
            (Self::Message, b"params") => ScannedMember::Params,
            (Self::Result, b"content") => ScannedMember::Content,
            (Self::Result, b"structuredContent") => ScannedMember::StructuredContent,
            (Self::Result, b"isError") => ScannedMember::IsError,
            (Self::Result, b"resultType") => ScannedMember::ResultType,
            (Self::Result, b"requestState") => ScannedMember::RequestState,
            (Self::Result, b"_meta") => ScannedMember::Meta,
            (Self::Result, b"ttlMs") => ScannedMember::TtlMs,
            (Self::Result, b"cacheScope") => ScannedMember::CacheScope,
            (Self::Message | Self::Result, _) => ScannedMember::Other,
        }
    }
}

fn close(part: &mut Option<ScannedPart>, end: u64) {
    if let Some(part) = part {
        part.end = Some(end);
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests;

/// State within a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// After `-`.
    Minus,
    /// After a leading `0`.
    Zero,
    /// In the digits of the integer.
    Integer,
    /// After `.`.
    Point,
    /// In the digits of the fraction.
    Fraction,
    /// After `e` or `E`.
    E,
    /// After the sign of the exponent.
    Sign,
    /// In the digits of the exponent.
    Exponent,
}

impl Number {
    /// State after the first byte; `None` if no number begins with it.
    pub(super) fn begin(byte: u8) -> Option<Self> {
        match byte {
            b'-' => Some(Self::Minus),
            b'0' => Some(Self::Zero),
            b'1'..=b'9' => Some(Self::Integer),
            _ => None,
        }
    }

    /// State after one more byte; `None` if it does not continue the number.
    pub(super) fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Some(Self::Integer),
            (Self::Zero | Self::Integer, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Whether the number may end here.
    pub(super) fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Exponent)
    }
}

#[cfg(test)]
mod number_tests {
    use super::*;

    fn is_number(text: &str) -> bool {
        let mut bytes = text.bytes();
        let mut state = bytes.next().and_then(Number::begin);
        for byte in bytes {
            state = state.and_then(|state| state.next(byte));
        }
        state.is_some_and(Number::may_end)
    }

    #[test]
    fn accepted_grammar_is_that_of_rfc_8259() {
        for good in ["0", "-0", "10", "-9", "0.5", "1.00", "1e5", "1E+05", "0e-1", "-1.5e10"] {
            assert!(is_number(good), "{good}");
        }
        for bad in ["", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1.e1", "1ee1", "0x1"] {
            assert!(!is_number(bad), "{bad}");
        }
    }
}
