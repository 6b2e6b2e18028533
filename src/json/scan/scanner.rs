//! The streaming scanner: one pass over one JSON-RPC message, resumable at every byte.
//!
//! Finds the spans that the proxy needs, decides the guards on `structuredContent` (FR-A6), and
//! notices what two parsers could read differently, in bounded memory and, in the ordinary case,
//! without an allocation. However the message is cut into chunks, the answer is the same.
//!
//! Checked exactly: everything outside nested containers, that is the message's own object, the
//! members of `result` and every value that stands there, as RFC 8259 has it. Containers below
//! are skipped at memory speed: strings and nesting are followed, the outermost brackets must
//! match, and nothing else is looked at (see `skip`). Of values, the UTF-8 and the surrogates
//! are left to the tape, which reads `structuredContent` in full.
//!
//! The scanner copies none of the bytes. Deliberately not here: the meaning of the message, verdicts.
//!
//! ```text
//!          ┌──────────────── enters `result` ───────────────┐
//! Start ─▶ FirstKey ─▶ Key ─▶ Colon ─▶ Value ─▶ Text │ Literal │ Number │ Container
//!                       ▲                                   │
//!                    NextKey ◀───────── Comma ◀─────────────┘    Comma ─▶ End
//! ```

use super::duplicate_keys::{Novelty, SeenKeys};
use super::kernel::Kernel;
use super::key::{self, KeyReader};
use super::number::Number;
use super::report::{
    Ambiguity, Breach, Closed, Doubt, Guard, ScanError, ScanFault, ScanLimits, ScannedMember,
    ScannedMessage, ScannedPart,
};
use super::skip::{NO_CEILING, Skip, Stop, closer};
use super::swar;
use crate::json::span::Span;

/// Reads one message, chunk by chunk.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: ScanLimits,
    kernel: Kernel,
    /// Offset of the next byte.
    position: u64,
    state: State,
    /// The object whose members we are among.
    level: Level,
    /// The member whose key or value we are in, and where its value began.
    member: ScannedMember,
    value_start: u64,
    key: KeyReader,
    key_start: u64,
    skip: Skip,
    opener: u8,
    /// First offset at which a value that goes on breaks the byte limit.
    bytes_end: u64,
    seen: SeenKeys,
    envelope: ScannedMessage,
    failed: Option<ScanError>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// White space or the next token, outside keys and values.
    Between(Gap),
    Key,
    Text(Text),
    /// In `true`, `false` or `null`: what is still to come.
    Literal(&'static [u8]),
    Number(Number),
    Container,
}

/// Which token comes next.
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
    /// None: the message's object has closed.
    End,
}

/// Where in a string value we are.
#[derive(Clone, Copy, Debug)]
enum Text {
    Plain,
    Escape,
    /// Hexadecimal digits still to come.
    Hex(u8),
}

/// The objects whose members are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Message,
    Result,
}

impl Scanner {
    /// A scanner for one message, with the fastest kernel. `seed` keys the hash by which unknown
    /// keys are told apart, and should be random.
    #[must_use]
    pub fn new(limits: ScanLimits, seed: u64) -> Self {
        Self::with_kernel(limits, seed, Kernel::fastest())
    }

    /// The same with a kernel of one's choice, for comparing them.
    #[must_use]
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

    /// Reads the next chunk, all of it. The [envelope](Self::envelope) then holds all that is
    /// certain by its last byte.
    ///
    /// # Errors
    ///
    /// The first byte that makes the message unusable. Every later call gives the same error.
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

    /// Asks whether what was fed is one whole message. It may be asked at any time.
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

    /// What is known so far.
    #[must_use]
    pub fn envelope(&self) -> &ScannedMessage {
        &self.envelope
    }

    /// Whether a key of this name was read where it has a meaning; of [`ScannedMember::Other`], nothing
    /// is known.
    #[must_use]
    pub fn has(&self, member: ScannedMember) -> bool {
        self.seen.has(member)
    }

    /// Bytes read; after an error, the offset of the offending byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// One step; returns the number of bytes of `rest` that it used. Invariant: zero only if the
    /// state changed, so that scanning ends.
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

    /// Tokens from index `from` on, up to the first byte of a key or a value.
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

    /// The first byte of a token, which stands at offset `at`: what the next byte belongs to.
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
            self.doubt(Doubt::LoneSurrogate, self.key_start);
        }
        if self.level == Level::Result
            && self.member == ScannedMember::Other
            && let Some(meant) = self.key.name().and_then(key::variant)
        {
            self.doubt(Doubt::Variant(meant), self.key_start);
        }
        let novelty = match self.member {
            ScannedMember::Other => self.seen.other(self.key.hash(self.level as u64)),
            known => self.seen.known(known),
        };
        match novelty {
            Novelty::New => {}
            Novelty::Full => self.doubt(Doubt::TooManyKeys, self.key_start),
            Novelty::Repeated => {
                if self.level == Level::Message && self.member != ScannedMember::Other {
                    return Err((used - 1, ScanFault::Duplicate(self.member)));
                }
                self.doubt(Doubt::Duplicate(self.member), self.key_start);
                // The first one counts; this one is read past.
                self.member = ScannedMember::Other;
            }
        }
        if let Some(kind) = self.member.kind() {
            if self.envelope.kind.is_some() {
                return Err((used - 1, ScanFault::Conflict));
            }
            self.envelope.kind = Some(kind);
        }
        self.between(Gap::Colon, rest, used)
    }

    /// A value begins with `byte` at offset `at`.
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
            ScannedMember::Result | ScannedMember::Error => {
                self.envelope.body = Some(ScannedPart::open(at))
            }
            ScannedMember::Params => self.envelope.params = Some(ScannedPart::open(at)),
            ScannedMember::Content => self.envelope.content = Some(ScannedPart::open(at)),
            ScannedMember::StructuredContent => {
                self.envelope.structured = Some(ScannedPart::open(at));
                self.bytes_end = at.saturating_add(self.limits.max_bytes);
                ceiling = u64::from(self.limits.max_depth);
            }
            ScannedMember::IsError if !matches!(byte, b't' | b'f') => {
                self.doubt(Doubt::IsErrorNotBoolean, at);
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

    /// The value ended before offset `end`.
    fn end_value(&mut self, end: u64) {
        self.guard_bytes(end);
        self.bytes_end = u64::MAX;
        self.state = State::Between(Gap::Comma);
        let span = Some(Span::new(self.value_start, end));
        match self.member {
            ScannedMember::Id => self.envelope.id = span,
            ScannedMember::Method => self.envelope.method = span,
            ScannedMember::ResultType => self.envelope.result_type = span,
            // Of `true` and `false`, which alone can stand here, one has four letters.
            ScannedMember::IsError => self.envelope.is_error = Some(end - self.value_start == 4),
            ScannedMember::Result | ScannedMember::Error => close(&mut self.envelope.body, end),
            ScannedMember::Params => close(&mut self.envelope.params, end),
            ScannedMember::Content => close(&mut self.envelope.content, end),
            ScannedMember::StructuredContent => close(&mut self.envelope.structured, end),
            ScannedMember::Jsonrpc
            | ScannedMember::Meta
            | ScannedMember::TtlMs
            | ScannedMember::CacheScope
            | ScannedMember::Other => {}
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

    /// The open value, if it is `structuredContent`, goes up to offset `end` at least.
    fn guard_bytes(&mut self, end: u64) {
        if end > self.bytes_end {
            self.breach(Guard::Bytes, self.bytes_end);
        }
    }

    /// Only the first one counts.
    fn breach(&mut self, guard: Guard, at: u64) {
        let limit = match guard {
            Guard::Bytes => self.limits.max_bytes,
            Guard::Depth => u64::from(self.limits.max_depth),
        };
        let after_is_error_true = self.envelope.is_error == Some(true);
        self.envelope.breach.get_or_insert(Breach { guard, at, limit, after_is_error_true });
        self.bytes_end = u64::MAX;
    }

    /// Only the first one counts.
    fn doubt(&mut self, doubt: Doubt, at: u64) {
        self.envelope.ambiguity.get_or_insert(Ambiguity { doubt, at });
    }
}

/// Bytes used, or the index of the offending one.
type Step = Result<usize, (usize, ScanFault)>;

impl Level {
    /// The member of this object's level that has this name.
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
