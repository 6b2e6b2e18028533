//! Server-sent events on `Bytes`: incremental zero-copy decoder, and encoder.
//!
//! The decoder returns slices of its chunks; an event with several `data:` lines yields their slices with a line feed between them, so an
//! event of any size costs no memory. Only `event`, `id` and `retry` values are stored, bounded by [`MAX_FIELD_BYTES`]. The callers handle
//! timeouts and interpret the data.

use bytes::Bytes;
use memchr::memchr2;
use thiserror::Error;

/// Maximum size of an `event`, `id` or `retry` value in bytes.
pub(crate) const MAX_FIELD_BYTES: usize = 4096;

const BOM: [u8; 3] = [0xEF, 0xBB, 0xBF];
const NEWLINE: Bytes = Bytes::from_static(b"\n");

/// Item of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Next bytes of the current event's data; never empty.
    Data(Bytes),
    /// End of the event. The decoder holds its type and id until the next call of `next_item`. An event without a `data` line is not
    /// reported.
    End,
}

/// Error that ends the decoding of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A stored field is longer than [`MAX_FIELD_BYTES`].
    #[error("an event stream field is longer than {MAX_FIELD_BYTES} bytes")]
    FieldTooLong,
}

/// Incremental decoder: [`Decoder::push`] a chunk, take items until `None`, push the next.
///
/// ```text
///          ┌───────────────── line end ─────────────────┐
///          ▼                                            │
/// Bom ▶ Line ── byte ──▶ Name ── ':' ──▶ Space ──▶ Value(field)
///          │ line end       └─ line end: a field without a value ─▶ Line
///          └─ blank line: the event ends
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    chunk: Bytes,
    state: State,
    /// The last byte was a CR; a following LF belongs to the same line end.
    after_cr: bool,
    name: Name,
    has_data: bool,
    /// The last item was [`Item::End`]; its type is cleared before the next.
    ended: bool,
    event: Vec<u8>,
    id: Vec<u8>,
    id_next: Vec<u8>,
    /// Id of the current event, if present; takes effect once the event has ended.
    id_begun: Vec<u8>,
    has_id: bool,
    retry_next: Vec<u8>,
    retry: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Number of bytes of a byte order mark read at the start of the stream.
    Bom(usize),
    Line,
    Name,
    /// After the colon, where one space is skipped.
    Space(Field),
    Value(Field),
}

impl Default for State {
    fn default() -> Self {
        Self::Bom(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    Id,
    Retry,
    /// Comment or unknown field.
    Other,
}

/// Field name read so far; unknown if longer than all known names.
#[derive(Debug, Default)]
struct Name {
    bytes: [u8; 5],
    len: usize,
}

impl Name {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
        }
        self.len = (self.len + 1).min(self.bytes.len() + 1);
    }

    fn field(&self) -> Field {
        match self.bytes.get(..self.len) {
            Some(b"data") => Field::Data,
            Some(b"event") => Field::Event,
            Some(b"id") => Field::Id,
            Some(b"retry") => Field::Retry,
            Some(_) | None => Field::Other,
        }
    }
}

impl Decoder {
    /// Decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next chunk. The previous chunk must be used up.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the last chunk was not read to its end");
        self.chunk = chunk;
    }

    /// Returns the next item; `None` when the chunk is used up. The decoder must not be used after an error.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        if self.ended {
            self.ended = false;
            self.event.clear();
        }
        while let Some(&byte) = self.chunk.first() {
            if self.after_cr {
                self.after_cr = false;
                if byte == b'\n' {
                    self.skip(1);
                    continue;
                }
            }
            let item = match self.state {
                State::Bom(seen) => {
                    self.bom(seen, byte);
                    None
                }
                State::Line => self.line_start(byte),
                State::Name => self.name_byte(byte),
                State::Space(field) => {
                    if byte == b' ' {
                        self.skip(1);
                    }
                    self.state = State::Value(field);
                    None
                }
                State::Value(field) => self.value(field)?,
            };
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    /// Type of the event that just ended; empty for the default, `message`.
    pub fn event(&self) -> &[u8] {
        &self.event
    }

    /// Id of the last complete event, for `Last-Event-ID`; empty if there is none.
    pub fn last_id(&self) -> &[u8] {
        &self.id
    }

    /// Reconnection time of the stream in milliseconds, if stated.
    pub fn retry(&self) -> Option<u64> {
        self.retry
    }

    /// Whether an event's data has begun but not ended: a stream that ends here is truncated.
    #[cfg(test)]
    pub(crate) fn inside_event(&self) -> bool {
        self.has_data
    }

    fn skip(&mut self, count: usize) {
        bytes::Buf::advance(&mut self.chunk, count);
    }

    fn bom(&mut self, seen: usize, byte: u8) {
        match BOM.get(seen) {
            Some(&expected) if expected == byte => {
                self.skip(1);
                let seen = seen + 1;
                self.state = if seen == BOM.len() { State::Line } else { State::Bom(seen) };
            }
            Some(_) | None if seen == 0 => self.state = State::Line,
            // An incomplete byte order mark begins an unknown field name.
            Some(_) | None => {
                self.name.len = self.name.bytes.len() + 1;
                self.state = State::Name;
            }
        }
    }

    fn line_start(&mut self, byte: u8) -> Option<Item> {
        if is_line_end(byte) {
            self.end_line(byte);
            return self.dispatch();
        }
        self.name.len = 0;
        self.state = State::Name;
        None
    }

    fn name_byte(&mut self, byte: u8) -> Option<Item> {
        if byte == b':' {
            self.skip(1);
            let field = self.name.field();
            self.state = State::Space(field);
            return self.begin(field);
        }
        if is_line_end(byte) {
            let field = self.name.field();
            let item = self.begin(field);
            self.finish(field);
            self.end_line(byte);
            return item;
        }
        self.skip(1);
        self.name.push(byte);
        None
    }

    /// Starts a field; every `data` line after the first starts with a line feed.
    fn begin(&mut self, field: Field) -> Option<Item> {
        match field {
            Field::Data if self.has_data => return Some(Item::Data(NEWLINE)),
            Field::Data => self.has_data = true,
            Field::Event => self.event.clear(),
            Field::Id => self.id_next.clear(),
            Field::Retry => self.retry_next.clear(),
            Field::Other => {}
        }
        None
    }

    fn value(&mut self, field: Field) -> Result<Option<Item>, Error> {
        let end = memchr2(b'\r', b'\n', &self.chunk);
        let part = self.chunk.split_to(end.unwrap_or(self.chunk.len()));
        let kept = match field {
            Field::Data => None,
            Field::Event => Some(&mut self.event),
            Field::Id => Some(&mut self.id_next),
            Field::Retry => Some(&mut self.retry_next),
            Field::Other => None,
        };
        if let Some(kept) = kept {
            if kept.len() + part.len() > MAX_FIELD_BYTES {
                return Err(Error::FieldTooLong);
            }
            kept.extend_from_slice(&part);
        }
        if let Some(&byte) = self.chunk.first() {
            self.finish(field);
            self.end_line(byte);
        }
        Ok((field == Field::Data && !part.is_empty()).then_some(Item::Data(part)))
    }

    /// Ends a field.
    fn finish(&mut self, field: Field) {
        match field {
            // An id that contains NUL is ignored, as is a time with any non-digit.
            Field::Id if !self.id_next.contains(&0) => {
                std::mem::swap(&mut self.id_begun, &mut self.id_next);
                self.has_id = true;
            }
            Field::Retry if self.retry_next.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(&self.retry_next).ok();
                self.retry = digits.and_then(|digits| digits.parse().ok()).or(self.retry);
            }
            _ => {}
        }
    }

    fn end_line(&mut self, byte: u8) {
        self.skip(1);
        self.after_cr = byte == b'\r';
        self.state = State::Line;
    }

    fn dispatch(&mut self) -> Option<Item> {
        if std::mem::take(&mut self.has_id) {
            std::mem::swap(&mut self.id, &mut self.id_begun);
        }
        if std::mem::take(&mut self.has_data) {
            self.ended = true;
            return Some(Item::End);
        }
        self.event.clear();
        None
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Incremental encoder: frames one message as one event of type `message`.
///
/// The type is the default of event streams, but it is written because some clients skip events without a type.
///
/// Raw line ends, which JSON allows between tokens, split the message into several `data:` lines; a reader gets a line feed for each of
/// them.
#[derive(Debug, Default)]
pub struct Encoder {
    state: Sent,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Sent {
    #[default]
    Nothing,
    Text,
    /// The last byte was a CR; a following LF belongs to it.
    Cr,
}

impl Encoder {
    /// Encoder between two events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Head of an event: its `id` line. The id must not contain a line end.
    pub fn id(id: &str) -> Bytes {
        Bytes::from(format!("id: {id}\n"))
    }

    /// Frames the next bytes of the message; shares their buffer.
    pub fn data(&mut self, mut chunk: Bytes, mut out: impl FnMut(Bytes)) {
        const FIRST: Bytes = Bytes::from_static(b"event: message\ndata: ");
        const NEXT: Bytes = Bytes::from_static(b"\ndata: ");
        while let Some(&byte) = chunk.first() {
            match (std::mem::replace(&mut self.state, Sent::Text), byte) {
                (Sent::Nothing, _) => out(FIRST),
                (Sent::Cr, b'\n') => {
                    bytes::Buf::advance(&mut chunk, 1);
                    continue;
                }
                (Sent::Cr | Sent::Text, _) => {}
            }
            let end = memchr2(b'\r', b'\n', &chunk);
            let part = chunk.split_to(end.unwrap_or(chunk.len()));
            if !part.is_empty() {
                out(part);
            }
            if let Some(&byte) = chunk.first() {
                bytes::Buf::advance(&mut chunk, 1);
                self.state = if byte == b'\r' { Sent::Cr } else { Sent::Text };
                out(NEXT);
            }
        }
    }

    /// End of the event, after its last byte.
    pub fn end(&mut self) -> Bytes {
        self.state = Sent::Nothing;
        Bytes::from_static(b"\n\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data, type and id of each event.
    type Events = Vec<(String, String, String)>;

    fn decode(chunks: &[&[u8]]) -> Events {
        let mut decoder = Decoder::new();
        let mut events = Events::new();
        let mut data = Vec::new();
        for chunk in chunks {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(item) = decoder.next_item().unwrap() {
                match item {
                    Item::Data(part) => {
                        assert!(!part.is_empty());
                        data.extend_from_slice(&part);
                    }
                    Item::End => events.push((
                        String::from_utf8(std::mem::take(&mut data)).unwrap(),
                        String::from_utf8_lossy(decoder.event()).into_owned(),
                        String::from_utf8_lossy(decoder.last_id()).into_owned(),
                    )),
                }
            }
        }
        events
    }

    /// Checks every split into two and three chunks, and into single bytes.
    fn check(stream: &str, expected: &[(&str, &str, &str)]) {
        let bytes = stream.as_bytes();
        let expected: Events =
            expected.iter().map(|(d, t, i)| ((*d).into(), (*t).into(), (*i).into())).collect();
        assert_eq!(decode(&[bytes]), expected, "whole: {stream:?}");
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode(&single), expected, "bytes: {stream:?}");
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let cut = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(decode(&cut), expected, "{cut:?}");
            }
        }
    }

    #[test]
    fn events_are_independent_of_the_chunking() {
        check("data: {}\n\n", &[("{}", "", "")]);
        check("data:{}\r\n\r\n", &[("{}", "", "")]);
        check("data: {}\r\r", &[("{}", "", "")]);
        check("data:  two\n\n", &[(" two", "", "")]);
        check("data: {\ndata: }\n\n", &[("{\n}", "", "")]);
        check("data: a\r\ndata:\r\ndata: b\r\n\r\n", &[("a\n\nb", "", "")]);
        check("data\n\n", &[("", "", "")]);
        check(
            "event: message\nid: 7\ndata: x\n\n: keep-alive\n\ndata: y\n\n",
            &[("x", "message", "7"), ("y", "", "7")],
        );
        check("\u{feff}data: x\n\n", &[("x", "", "")]);
        check("event: ping\n\ndata: x\n\n", &[("x", "", "")]);
        check("\nevent: late\ndata: x\ndata: y\n\n", &[("x\ny", "late", "")]);
        check("datax: no\ndat: no\nid\ndata: x\n\n", &[("x", "", "")]);
        check("id: 1\nid: a\0b\ndata: x\n\n", &[("x", "", "1")]);
        check("\n\n\ndata: x\n\ndata: cut off\n", &[("x", "", "")]);
    }

    #[test]
    fn incomplete_byte_order_mark_is_an_unknown_field() {
        let expected: Events = vec![("x".into(), String::new(), String::new())];
        assert_eq!(decode(&[b"\xEF\xBBdata: no\n", b"data: x\n\n"]), expected);
        assert_eq!(decode(&[b"\xEF", b"\ndata: x\n\n"]), expected);
    }

    #[test]
    fn retry_must_be_all_digits() {
        for (text, retry) in
            [("retry: 1500\n", Some(1500)), ("retry: 1s\n", None), ("", None), ("retry\n", None)]
        {
            let mut decoder = Decoder::new();
            decoder.push(Bytes::from(format!("{text}data: x\n\n")));
            while decoder.next_item().unwrap() != Some(Item::End) {}
            assert_eq!(decoder.retry(), retry, "{text:?}");
        }
    }

    #[test]
    fn id_is_effective_after_its_event_is_complete() {
        let mut decoder = Decoder::new();
        for (bytes, id) in [
            ("id: 1\ndata: x\n\nid: 2\n", "1"),
            ("data: y", "1"),
            ("\n\n", "2"),
            ("id: 3\nretry: 5\n", "2"),
            ("\n", "3"),
            ("id: 4", "3"),
        ] {
            decoder.push(Bytes::from(bytes));
            while decoder.next_item().unwrap().is_some() {}
            assert_eq!(decoder.last_id(), id.as_bytes(), "{bytes:?}");
        }
    }

    #[test]
    fn data_shares_the_chunk_and_is_unbounded() {
        let mut stream = b"data: ".to_vec();
        stream.resize(stream.len() + 1_000_000, b'x');
        let chunk = Bytes::from(stream);
        let mut decoder = Decoder::new();
        decoder.push(chunk.clone());
        let Some(Item::Data(part)) = decoder.next_item().unwrap() else { panic!() };
        assert_eq!(part.as_ptr(), chunk[6..].as_ptr());
        assert_eq!(part.len(), 1_000_000);
        assert!(decoder.inside_event());
    }

    #[test]
    fn stored_field_is_bounded_and_a_comment_is_not() {
        let long = "x".repeat(MAX_FIELD_BYTES + 1);
        for field in ["event", "id", "retry"] {
            let mut decoder = Decoder::new();
            decoder.push(Bytes::from(format!("{field}: {long}")));
            assert_eq!(decoder.next_item(), Err(Error::FieldTooLong), "{field}");
        }
        check_len(&format!(": {long}\nother: {long}\ndata: x\n\n"));
        fn check_len(stream: &str) {
            assert_eq!(decode(&[stream.as_bytes()]).len(), 1);
        }
    }

    // NET-7
    #[test]
    fn encoded_events_have_the_type_message_and_are_decoded_again() {
        for (message, read) in [
            ("{}", "{}"),
            ("{\n}", "{\n}"),
            ("{\r\n \r}", "{\n \n}"),
            ("\n{}\n", "\n{}\n"),
            ("\r", "\n"),
        ] {
            for cut in 0..=message.len() {
                let (first, second) = message.split_at(cut);
                let mut encoder = Encoder::new();
                let mut wire = Encoder::id("9").to_vec();
                for chunk in [first, second] {
                    encoder.data(Bytes::copy_from_slice(chunk.as_bytes()), |part| {
                        wire.extend_from_slice(&part);
                    });
                }
                wire.extend_from_slice(&encoder.end());
                assert_eq!(decode(&[&wire]), [(read.into(), "message".into(), "9".into())]);
            }
        }
    }
}
