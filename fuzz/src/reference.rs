//! Slow and simple parser of whole messages, as the reference for the scanner.
//!
//! Shares the scanner's result types and none of its code: one byte at a time, the whole message in memory, every key stored.

use mcpproxy_json::{
    fold::is_variant,
    scan::{
        Ambiguity, AmbiguityKind, Breach, Closed, Guard, MAX_KEYS, MessageKind, ScanError,
        ScanFault, ScanLimits, ScannedMember, ScannedMessage, ScannedPart,
    },
    span::Span,
};

/// Parses a message, complete or not. The envelope holds what was certain at the error.
pub fn read(message: &[u8], limits: ScanLimits) -> (ScannedMessage, Result<(), ScanError>) {
    let mut reader = Reader {
        bytes: message,
        at: 0,
        limits,
        envelope: ScannedMessage::default(),
        keys: Vec::new(),
    };
    let read = reader.message();
    (reader.envelope, read.map_err(|fault| ScanError { at: reader.at as u64, fault }))
}

/// Reader at position `at`, where a fault is reported.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    limits: ScanLimits,
    envelope: ScannedMessage,
    /// Decoded keys; the flag is true for the keys of `result`.
    keys: Vec<(bool, ScannedMember, Vec<u8>)>,
}

type Read<T = ()> = Result<T, ScanFault>;

impl Reader<'_> {
    fn message(&mut self) -> Read {
        self.space();
        match self.peek()? {
            b'{' => self.members(false)?,
            b'[' => return Err(ScanFault::Batch),
            _ => return Err(ScanFault::NotAnObject),
        }
        self.space();
        if self.at < self.bytes.len() { Err(ScanFault::Trailing) } else { Ok(()) }
    }

    /// Reads an object from its opening bracket on: the message itself, or its `result`.
    fn members(&mut self, in_result: bool) -> Read {
        self.at += 1;
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            self.close(in_result, Closed::Empty);
            return Ok(());
        }
        loop {
            let member = self.key(in_result)?;
            self.space();
            self.expect(b':')?;
            self.space();
            self.member(member)?;
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    self.close(in_result, Closed::WithMembers);
                    return Ok(());
                }
                _ => return Err(ScanFault::Unexpected),
            }
            self.space();
        }
    }

    fn close(&mut self, in_result: bool, closed: Closed) {
        if in_result {
            self.envelope.closed = Some(closed);
        }
    }

    fn key(&mut self, in_result: bool) -> Read<ScannedMember> {
        let start = self.at as u64;
        self.expect(b'"')?;
        let (name, lone) = self.name()?;
        if lone {
            self.note_ambiguity(AmbiguityKind::LoneSurrogate, start);
        }
        let member = match (in_result, &*name) {
            (false, b"jsonrpc") => ScannedMember::Jsonrpc,
            (false, b"id") => ScannedMember::Id,
            (false, b"result") => ScannedMember::Result,
            (false, b"error") => ScannedMember::Error,
            (false, b"method") => ScannedMember::Method,
            (false, b"params") => ScannedMember::Params,
            (true, b"content") => ScannedMember::Content,
            (true, b"structuredContent") => ScannedMember::StructuredContent,
            (true, b"isError") => ScannedMember::IsError,
            (true, b"resultType") => ScannedMember::ResultType,
            (true, b"requestState") => ScannedMember::RequestState,
            (true, b"_meta") => ScannedMember::Meta,
            (true, b"ttlMs") => ScannedMember::TtlMs,
            (true, b"cacheScope") => ScannedMember::CacheScope,
            _ => ScannedMember::Other,
        };
        if in_result && member == ScannedMember::Other {
            let meant = str::from_utf8(&name).ok().and_then(variant);
            meant
                .into_iter()
                .for_each(|meant| self.note_ambiguity(AmbiguityKind::Variant(meant), start));
        }
        let entry = (in_result, member, name);
        if self.keys.contains(&entry) {
            if !in_result && member != ScannedMember::Other {
                self.at -= 1;
                return Err(ScanFault::Duplicate(member));
            }
            self.note_ambiguity(AmbiguityKind::Duplicate(member), start);
            return Ok(ScannedMember::Other);
        }
        let others =
            self.keys.iter().filter(|(_, member, _)| *member == ScannedMember::Other).count();
        if member == ScannedMember::Other && others == MAX_KEYS {
            self.note_ambiguity(AmbiguityKind::TooManyKeys, start);
        } else {
            self.keys.push(entry);
        }
        self.envelope.has_outcome |= matches!(member, ScannedMember::Result | ScannedMember::Error);
        if member == ScannedMember::Method && self.envelope.kind.is_some() {
            self.at -= 1;
            return Err(ScanFault::Conflict);
        }
        if member == ScannedMember::Method {
            self.envelope.kind = Some(MessageKind::Method);
        }
        Ok(member)
    }

    /// The rest of a key: its name in UTF-8 (lone surrogates as three bytes), and whether it has
    /// a lone surrogate.
    fn name(&mut self) -> Read<(Vec<u8>, bool)> {
        // Code points, those of `\u` escapes as UTF-16 units.
        let mut points: Vec<u32> = Vec::new();
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    break;
                }
                b'\\' => {
                    self.at += 1;
                    points.push(self.escape()?);
                }
                0x00..=0x1F => return Err(ScanFault::Control),
                _ => points.push(u32::from(self.character()?)),
            }
        }
        let (mut name, mut lone, mut index) = (Vec::new(), false, 0);
        while let Some(&point) = points.get(index) {
            index += 1;
            let pair = match (point, points.get(index)) {
                (0xD800..=0xDBFF, Some(&low @ 0xDC00..=0xDFFF)) => {
                    char::decode_utf16([point as u16, low as u16]).next().and_then(Result::ok)
                }
                _ => None,
            };
            index += usize::from(pair.is_some());
            match pair.or(char::from_u32(point)) {
                Some(scalar) => name.extend(scalar.to_string().bytes()),
                None => {
                    lone = true;
                    let low = point & 0xFFF;
                    name.extend([0xED, 0x80 | (low >> 6) as u8, 0x80 | (low & 0x3F) as u8]);
                }
            }
        }
        Ok((name, lone))
    }

    fn escape(&mut self) -> Read<u32> {
        let point = match self.peek()? {
            byte @ (b'"' | b'\\' | b'/') => u32::from(byte),
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => {
                let mut unit = 0;
                for _ in 0..4 {
                    self.at += 1;
                    let digit = char::from(self.peek()?).to_digit(16).ok_or(ScanFault::Escape)?;
                    unit = unit * 16 + digit;
                }
                unit
            }
            _ => return Err(ScanFault::Escape),
        };
        self.at += 1;
        Ok(point)
    }

    /// One character of raw UTF-8.
    fn character(&mut self) -> Read<char> {
        let start = self.at;
        loop {
            self.peek()?;
            match std::str::from_utf8(&self.bytes[start..=self.at]) {
                Ok(text) => {
                    self.at += 1;
                    return text.chars().next().ok_or(ScanFault::Utf8);
                }
                Err(error) if error.error_len().is_some() => return Err(ScanFault::Utf8),
                Err(_) => self.at += 1,
            }
        }
    }

    fn member(&mut self, member: ScannedMember) -> Read {
        let start = self.at;
        let first = self.peek()?;
        if !matches!(first, b'"' | b'{' | b'[' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9') {
            return Err(ScanFault::Unexpected);
        }
        let open = Some(ScannedPart { start: start as u64, end: None });
        let outcome = match member {
            ScannedMember::Result => Some((MessageKind::Result, b'{')),
            ScannedMember::Error => Some((MessageKind::Error, b'{')),
            _ => None,
        };
        if outcome.is_some() && first == b'n' {
            return self.value();
        }
        if let Some((kind, _)) = outcome {
            if self.envelope.kind.is_some() {
                return Err(ScanFault::Conflict);
            }
            self.envelope.kind = Some(kind);
        }
        let opener = outcome.map(|(_, opener)| opener);
        let opener = opener.or((member == ScannedMember::Content).then_some(b'['));
        if opener.is_some_and(|opener| opener != first) {
            self.envelope.mistyped.get_or_insert(member);
        }
        match member {
            ScannedMember::Id if matches!(first, b'{' | b'[' | b't' | b'f') => {
                return Err(ScanFault::WrongType(member));
            }
            ScannedMember::Method if first != b'"' => return Err(ScanFault::WrongType(member)),
            ScannedMember::IsError if !matches!(first, b't' | b'f') => {
                self.note_ambiguity(AmbiguityKind::IsErrorNotBoolean, start as u64);
                self.value()?;
                return Ok(());
            }
            ScannedMember::Result if first == b'{' => {
                self.envelope.body = open;
                self.members(true)?;
            }
            ScannedMember::StructuredContent => {
                self.envelope.structured = open;
                self.structured()?;
            }
            ScannedMember::Result | ScannedMember::Error => {
                self.envelope.body = open;
                self.value()?;
            }
            ScannedMember::Params => {
                self.envelope.params = open;
                self.value()?;
            }
            ScannedMember::Content => {
                self.envelope.content = open;
                self.value()?;
            }
            ScannedMember::RequestState => {
                self.envelope.request_state = open;
                self.value()?;
            }
            _ => {
                self.value()?;
            }
        }
        let span = Span::new(start as u64, self.at as u64);
        let part = Some(ScannedPart { start: span.start, end: Some(span.end) });
        match member {
            ScannedMember::Id => self.envelope.id = Some(span),
            ScannedMember::Method => self.envelope.method = Some(span),
            ScannedMember::ResultType => self.envelope.result_type = Some(span),
            ScannedMember::IsError => self.envelope.is_error = Some(first == b't'),
            ScannedMember::Result | ScannedMember::Error => self.envelope.body = part,
            ScannedMember::Params => self.envelope.params = part,
            ScannedMember::Content => self.envelope.content = part,
            ScannedMember::StructuredContent => self.envelope.structured = part,
            ScannedMember::RequestState => self.envelope.request_state = part,
            ScannedMember::Jsonrpc
            | ScannedMember::Meta
            | ScannedMember::TtlMs
            | ScannedMember::CacheScope
            | ScannedMember::Other => {}
        }
        Ok(())
    }

    /// The guarded value. Both bounds are checked after it was read; the one exceeded first is reported.
    fn structured(&mut self) -> Read {
        let start = self.at as u64;
        let mut opened = Vec::new();
        let read = self.value_noting(&mut opened);
        let ScanLimits { max_bytes, max_depth } = self.limits;
        let deep = opened.iter().find(|(_, depth)| *depth > u64::from(max_depth));
        let deep = deep.map(|(at, _)| (*at, Guard::Depth, u64::from(max_depth)));
        let long = (self.at as u64 - start > max_bytes)
            .then(|| (start + max_bytes, Guard::Bytes, max_bytes));
        let after_is_error_true = self.envelope.is_error == Some(true);
        self.envelope.breach = match (long, deep) {
            (Some(long), Some(deep)) if deep.0 < long.0 => Some(deep),
            (Some(long), _) => Some(long),
            (None, deep) => deep,
        }
        .map(|(at, guard, limit)| Breach { guard, at, limit, after_is_error_true });
        read
    }

    fn value(&mut self) -> Read {
        self.value_noting(&mut Vec::new())
    }

    /// Any value. Notes the offset of each opening bracket and the depth that it opens.
    fn value_noting(&mut self, opened: &mut Vec<(u64, u64)>) -> Read {
        match self.peek()? {
            b'"' => self.string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'{' | b'[' => self.container(opened),
            _ => self.number(),
        }
    }

    fn string(&mut self) -> Read {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    self.escape()?;
                }
                0x00..=0x1F => return Err(ScanFault::Control),
                _ => self.at += 1,
            }
        }
    }

    fn literal(&mut self, literal: &[u8]) -> Read {
        literal.iter().try_for_each(|byte| self.expect(*byte))
    }

    fn number(&mut self) -> Read {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek()? == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek()?, b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit. Another byte must follow; otherwise the number might continue.
    fn digits(&mut self) -> Read {
        if !self.peek()?.is_ascii_digit() {
            return Err(ScanFault::Number);
        }
        while self.peek()?.is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    fn container(&mut self, opened: &mut Vec<(u64, u64)>) -> Read {
        let closer = if self.peek()? == b'{' { b'}' } else { b']' };
        let (mut depth, mut in_string) = (0_u64, false);
        loop {
            match (in_string, self.peek()?) {
                (true, b'\\') => {
                    self.at += 1;
                    self.peek()?;
                }
                (_, b'"') => in_string = !in_string,
                (false, b'\\') => return Err(ScanFault::Unexpected),
                (false, b'{' | b'[') => {
                    depth += 1;
                    opened.push((self.at as u64, depth));
                }
                (false, byte @ (b'}' | b']')) => {
                    depth -= 1;
                    if depth == 0 && byte != closer {
                        return Err(ScanFault::Mismatched);
                    }
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn note_ambiguity(&mut self, kind: AmbiguityKind, at: u64) {
        self.envelope.ambiguity = self.envelope.ambiguity.or(Some(Ambiguity { kind, at }));
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Read {
        if self.peek()? != byte {
            return Err(ScanFault::Unexpected);
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Read<u8> {
        self.bytes.get(self.at).copied().ok_or(ScanFault::Truncated)
    }
}

/// Member that determines how a result is treated, if `name` differs from its name only by case.
pub fn variant(name: &str) -> Option<ScannedMember> {
    let decisive = [
        ScannedMember::Content,
        ScannedMember::StructuredContent,
        ScannedMember::IsError,
        ScannedMember::ResultType,
    ];
    decisive.into_iter().find(|known| is_variant(name, &known.to_string()))
}
