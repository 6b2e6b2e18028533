//! HTTP/1.1 framing on `Bytes`: an answer's head, and any body (RFC 9112).
//!
//! Incremental and pure: bytes in, "more", a value or a fault out. Owns what decides where a
//! message ends, and is strict about it, since two readings of one boundary would hand one call
//! the bytes of another. The tokens of a head are httparse's; what a header means beyond framing
//! is not known here.

pub mod post;

use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::mcp::headers;

/// Most bytes of a head.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines of a head.
pub const MAX_HEADERS: usize = 100;
/// Most bytes of a chunk's size line, extensions included.
const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Most bytes of the lines after the last chunk.
const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// How a peer broke the framing. The texts hold nothing of what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FramingFault {
    /// The first bytes are not those of an HTTP/1 answer.
    #[error("the answer does not begin like one of HTTP/1")]
    NotHttp,
    /// [`MAX_HEAD_BYTES`].
    #[error("the head is larger than {MAX_HEAD_BYTES} bytes")]
    HeadTooLarge,
    /// [`MAX_HEADERS`].
    #[error("the head has more than {MAX_HEADERS} lines")]
    TooManyHeaders,
    /// The head breaks the grammar.
    #[error("the head is malformed: {0}")]
    Head(httparse::Error),
    /// An answer that switches protocols.
    #[error("it switches protocols unasked")]
    Upgrade,
    /// `Content-Length` is no number, or two of them differ, or a coding stands beside it.
    #[error("its Content-Length cannot be relied on")]
    Length,
    /// A transfer coding other than `chunked` alone.
    #[error("its Transfer-Encoding is not 'chunked'")]
    Coding,
    /// A chunk's size line.
    #[error("a chunk's size is malformed")]
    ChunkSize,
    /// A chunk longer than its size.
    #[error("a chunk is not as long as its size says")]
    ChunkEnd,
    /// So many bytes of them.
    #[error("the lines after the last chunk are larger than {MAX_TRAILER_BYTES} bytes")]
    Trailers,
}

/// The head of an answer, as far as a client of MCP needs it.
#[derive(Debug)]
pub struct ResponseHead {
    /// The status code, never an interim one.
    pub status: u16,
    /// `Content-Type`
    pub content_type: Option<Bytes>,
    /// `Content-Encoding`
    pub content_encoding: Option<Bytes>,
    /// `Mcp-Session-Id`
    pub session_id: Option<Bytes>,
    /// `WWW-Authenticate`
    pub authenticate: Option<Bytes>,
    /// Whether the connection lasts after the body.
    pub keep_alive: bool,
    /// How the body ends.
    pub body: FramedBody,
}

impl ResponseHead {
    /// Takes a head off `input`, past interim answers (RFC 9110 §15.2). `None`: more is needed.
    ///
    /// # Errors
    /// [`FramingFault`].
    pub fn take(input: &mut BytesMut) -> Result<Option<Self>, FramingFault> {
        loop {
            const START: &[u8] = b"HTTP/1.";
            if !input.iter().zip(START).all(|(byte, start)| byte == start) {
                return Err(FramingFault::NotHttp);
            }
            let Some(end) = end_of_head(input) else {
                let over = input.len() > MAX_HEAD_BYTES;
                return if over { Err(FramingFault::HeadTooLarge) } else { Ok(None) };
            };
            if end > MAX_HEAD_BYTES {
                return Err(FramingFault::HeadTooLarge);
            }
            let head = input.split_to(end).freeze();
            if let ControlFlow::Break(head) = Self::parse(&head)? {
                return Ok(Some(head));
            }
        }
    }

    /// Reads a whole head; goes on if it is an interim one.
    fn parse(bytes: &Bytes) -> Result<ControlFlow<Self>, FramingFault> {
        let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            bytes,
            &mut lines,
        );
        match parsed {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => {
                return Err(FramingFault::Head(httparse::Error::NewLine));
            }
            Err(httparse::Error::TooManyHeaders) => return Err(FramingFault::TooManyHeaders),
            Err(error) => return Err(FramingFault::Head(error)),
        }
        let status = response.code.unwrap_or_default();
        match status {
            101 => return Err(FramingFault::Upgrade),
            100..=199 => return Ok(ControlFlow::Continue(())),
            _ => {}
        }
        let mut head = Self {
            status,
            content_type: None,
            content_encoding: None,
            session_id: None,
            authenticate: None,
            keep_alive: response.version == Some(1),
            body: FramedBody::UntilClose,
        };
        let (mut length, mut chunked) = (None, false);
        for line in &*response.headers {
            let is = |name: &str| line.name.eq_ignore_ascii_case(name);
            // By length first: most lines are none of these.
            match line.name.len() {
                12 if is("content-type") => head.content_type = Some(bytes.slice_ref(line.value)),
                14 if is("content-length") => {
                    let value = number(line.value, 10).ok_or(FramingFault::Length)?;
                    if length.is_some_and(|known| known != value) {
                        return Err(FramingFault::Length);
                    }
                    length = Some(value);
                }
                17 if is("transfer-encoding") => {
                    if chunked || !line.value.eq_ignore_ascii_case(b"chunked") {
                        return Err(FramingFault::Coding);
                    }
                    chunked = true;
                }
                10 if is("connection") => {
                    let mut tokens = line.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                    if tokens.clone().any(|token| token.eq_ignore_ascii_case(b"close")) {
                        head.keep_alive = false;
                    } else if tokens.any(|token| token.eq_ignore_ascii_case(b"keep-alive")) {
                        head.keep_alive = true;
                    }
                }
                16 if is("content-encoding") => {
                    head.content_encoding = Some(bytes.slice_ref(line.value));
                }
                14 if is(headers::SESSION_ID) => {
                    head.session_id = Some(bytes.slice_ref(line.value))
                }
                16 if is("www-authenticate") => {
                    head.authenticate = Some(bytes.slice_ref(line.value));
                }
                _ => {}
            }
        }
        head.body = match (status, length, chunked) {
            (_, Some(_), true) => return Err(FramingFault::Length),
            (204 | 304, _, _) => FramedBody::Ended,
            (_, Some(length), false) => FramedBody::of_length(length),
            (_, None, true) => FramedBody::Size,
            (_, None, false) => FramedBody::UntilClose,
        };
        Ok(ControlFlow::Break(head))
    }
}

/// The index after the blank line that ends a head.
fn end_of_head(input: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', input).find_map(|at| match input.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// The size that a chunk's line states, extensions aside (RFC 9112 §7.1). A carriage return within
/// the line is refused: some take it for the line's end.
fn chunk_size(line: &[u8]) -> Option<u64> {
    /// What 64 bits take.
    const MOST_DIGITS: usize = 16;
    if memchr::memchr(b'\r', line).is_some() {
        return None;
    }
    let mut size = line.split(|byte| *byte == b';').next()?;
    while let [digits @ .., b' ' | b'\t'] = size {
        size = digits;
    }
    number(size, 16).filter(|_| size.len() <= MOST_DIGITS)
}

/// Digits and nothing else; `None` past 64 bits.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let valid = !digits.is_empty() && digits.iter().all(|digit| char::from(*digit).is_digit(radix));
    if !valid {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Where a body is in its framing (RFC 9112 §6 and §7.1).
///
/// ```text
/// Length(n) ─ n bytes ▶ Ended        UntilClose ─ close ▶ Ended
/// Size ─ line ▶ Chunk(n) ─ n bytes ▶ ChunkEnd ─ CRLF ▶ Size
///   └─ size 0 ▶ Trailers ─ blank line ▶ Ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramedBody {
    /// So many bytes are left, at least one.
    Length(u64),
    /// Before a chunk's size line.
    Size,
    /// So many bytes of the chunk are left, at least one.
    Chunk(u64),
    /// Before the line end of a chunk.
    ChunkEnd,
    /// After the last chunk; so many bytes of trailers were skipped.
    Trailers(usize),
    /// Until the peer closes.
    UntilClose,
    /// Nothing is left.
    Ended,
}

impl FramedBody {
    /// A body of so many bytes.
    #[must_use]
    pub fn of_length(length: u64) -> Self {
        if length == 0 { Self::Ended } else { Self::Length(length) }
    }

    /// Takes the next bytes of the body off `input`, never an empty slice. `None`: the body has
    /// [ended](Self::has_ended), or more input is needed.
    ///
    /// # Errors
    /// [`FramingFault`].
    pub fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramingFault> {
        loop {
            match self {
                Self::Ended => return Ok(None),
                Self::UntilClose => return Ok((!input.is_empty()).then(|| input.split().freeze())),
                Self::Length(left) => {
                    let data = up_to(input, left);
                    if *left == 0 {
                        *self = Self::Ended;
                    }
                    return Ok(data);
                }
                Self::Chunk(left) => {
                    let data = up_to(input, left);
                    if *left == 0 {
                        *self = Self::ChunkEnd;
                    }
                    return Ok(data);
                }
                Self::ChunkEnd => match &input[..] {
                    [b'\r', b'\n', ..] => {
                        input.advance(2);
                        *self = Self::Size;
                    }
                    [] | [b'\r'] => return Ok(None),
                    [..] => return Err(FramingFault::ChunkEnd),
                },
                Self::Size => {
                    let Some(line) = line(input, MAX_CHUNK_LINE_BYTES, FramingFault::ChunkSize)?
                    else {
                        return Ok(None);
                    };
                    *self = match chunk_size(&line).ok_or(FramingFault::ChunkSize)? {
                        0 => Self::Trailers(0),
                        size => Self::Chunk(size),
                    };
                }
                Self::Trailers(skipped) => {
                    let room = MAX_TRAILER_BYTES.saturating_sub(*skipped);
                    let Some(line) = line(input, room, FramingFault::Trailers)? else {
                        return Ok(None);
                    };
                    *skipped += line.len() + 2;
                    if line.is_empty() {
                        *self = Self::Ended;
                    }
                }
            }
        }
    }

    /// True once the body is whole.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        *self == Self::Ended
    }

    /// The peer has closed the connection; true if that ends the body as it should.
    pub fn close(&mut self) -> bool {
        if *self == Self::UntilClose {
            *self = Self::Ended;
        }
        self.has_ended()
    }
}

/// At most `left` bytes of the input, which `left` is then less.
fn up_to(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let size = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= size as u64;
    (size > 0).then(|| input.split_to(size).freeze())
}

/// Takes a line off the input, without its end; one longer than `limit` is a fault, and so is one
/// that does not end with CRLF.
fn line(
    input: &mut BytesMut,
    limit: usize,
    fault: FramingFault,
) -> Result<Option<BytesMut>, FramingFault> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > limit { Err(fault) } else { Ok(None) };
    };
    let mut line = input.split_to(end + 1);
    if end > limit || !line.ends_with(b"\r\n") {
        return Err(fault);
    }
    line.truncate(end - 1);
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `wire` in two pieces, cut everywhere; the head's status, the body, and what is left.
    fn read(wire: &str) -> Result<(u16, String, String), FramingFault> {
        let mut results = (0..=wire.len()).map(|cut| read_cut(wire.as_bytes(), &[cut]));
        let first = results.next().unwrap();
        for other in results {
            assert_eq!(first, other, "{wire:?}");
        }
        let bytewise: Vec<usize> = (0..wire.len()).collect();
        assert_eq!(first, read_cut(wire.as_bytes(), &bytewise), "{wire:?}");
        first
    }

    fn read_cut(wire: &[u8], cuts: &[usize]) -> Result<(u16, String, String), FramingFault> {
        let mut input = BytesMut::new();
        let (mut head, mut body, mut from) = (None, Vec::new(), 0);
        for end in cuts.iter().copied().chain([wire.len()]) {
            input.extend_from_slice(&wire[from..end]);
            from = end;
            if head.is_none() {
                head = ResponseHead::take(&mut input)?;
            }
            if let Some(head) = &mut head {
                while let Some(data) = head.body.take(&mut input)? {
                    assert!(!data.is_empty());
                    body.extend_from_slice(&data);
                }
            }
        }
        let mut head = head.ok_or(FramingFault::NotHttp)?;
        let whole = if head.body.close() { "" } else { "…" };
        let body = String::from_utf8(body).unwrap() + whole;
        Ok((head.status, body, String::from_utf8(input.to_vec()).unwrap()))
    }

    fn body(headers: &str, body: &str) -> Result<String, FramingFault> {
        read(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n{body}"))
            .map(|(_, body, rest)| if rest.is_empty() { body } else { format!("{body}|{rest}") })
    }

    const CHUNKED: &str = "Transfer-Encoding: Chunked";

    #[test]
    fn a_body_ends_where_its_framing_says() {
        assert_eq!(body("Content-Length: 3", "abc").unwrap(), "abc");
        assert_eq!(body("content-length: 3", "abcHTTP").unwrap(), "abc|HTTP");
        assert_eq!(body("content-length: 3\r\nContent-Length: 3", "abc").unwrap(), "abc");
        assert_eq!(body("content-length: 4", "abc").unwrap(), "abc…");
        assert_eq!(body("content-length: 0", "x").unwrap(), "|x");
        assert_eq!(body("x: y", "all of it").unwrap(), "all of it");
        assert_eq!(body(CHUNKED, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nx").unwrap(), "abcde|x");
        assert_eq!(
            body(CHUNKED, "A ;x=\"y\"\r\n0123456789\r\n0\r\nt: u\r\n\r\n").unwrap(),
            "0123456789"
        );
        assert_eq!(body(CHUNKED, "3\r\nabc\r\n0\r\n").unwrap(), "abc…");
        assert_eq!(body(CHUNKED, "0000000000000003\r\nabc\r\n0\r\n\r\n").unwrap(), "abc");
    }

    #[test]
    fn a_doubtful_boundary_is_a_fault() {
        for (headers, wire, fault) in [
            ("content-length: 3\r\ncontent-length: 4", "abc", FramingFault::Length),
            ("content-length: 3, 3", "abc", FramingFault::Length),
            ("content-length: +3", "abc", FramingFault::Length),
            ("content-length:", "abc", FramingFault::Length),
            ("content-length: 99999999999999999999", "abc", FramingFault::Length),
            ("content-length: 3\r\ntransfer-encoding: chunked", "abc", FramingFault::Length),
            ("transfer-encoding: gzip, chunked", "0\r\n\r\n", FramingFault::Coding),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", "", FramingFault::Coding),
            ("transfer-encoding: xchunked", "0\r\n\r\n", FramingFault::Coding),
            (CHUNKED, "zz\r\n", FramingFault::ChunkSize),
            (CHUNKED, "\r\n", FramingFault::ChunkSize),
            (CHUNKED, "0x3\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, " 3\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "-3\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "3\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "10000000000000000\r\n", FramingFault::ChunkSize),
            (CHUNKED, "00000000000000003\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "3\r;a\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "3;a\rb\r\nabc\r\n", FramingFault::ChunkSize),
            (CHUNKED, "3\r\nabcd\r\n", FramingFault::ChunkEnd),
            (CHUNKED, "3\r\nabc\n0\r\n\r\n", FramingFault::ChunkEnd),
        ] {
            assert_eq!(body(headers, wire).unwrap_err(), fault, "{headers:?} {wire:?}");
        }
        let endless = "1".repeat(MAX_CHUNK_LINE_BYTES + 1);
        assert_eq!(body(CHUNKED, &endless).unwrap_err(), FramingFault::ChunkSize);
    }

    #[test]
    fn trailers_and_heads_are_bounded() {
        let mut input = BytesMut::from(&b"0\r\n"[..]);
        let mut body = FramedBody::Size;
        let mut fed = 0;
        let fault = loop {
            input.extend_from_slice(b"a: b\r\n");
            fed += 6;
            if let Err(fault) = body.take(&mut input) {
                break fault;
            }
            assert!(fed < 2 * MAX_TRAILER_BYTES);
        };
        assert_eq!(fault, FramingFault::Trailers);

        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD_BYTES));
        assert_eq!(read_cut(long.as_bytes(), &[]).unwrap_err(), FramingFault::HeadTooLarge);
        let ended = format!("{long}\r\n\r\n");
        assert_eq!(read_cut(ended.as_bytes(), &[]).unwrap_err(), FramingFault::HeadTooLarge);
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(read_cut(many.as_bytes(), &[]).unwrap_err(), FramingFault::TooManyHeaders);
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na";
        assert_eq!(read(wire).unwrap(), (200, "a".into(), String::new()));
        let switch = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n";
        assert_eq!(read(switch).unwrap_err(), FramingFault::Upgrade);
    }

    #[test]
    fn what_is_no_http_is_told_at_its_first_byte() {
        assert_eq!(
            ResponseHead::take(&mut BytesMut::from("S")).unwrap_err(),
            FramingFault::NotHttp
        );
        assert_eq!(
            ResponseHead::take(&mut BytesMut::from("HTTP/2")).unwrap_err(),
            FramingFault::NotHttp
        );
        assert!(ResponseHead::take(&mut BytesMut::from("HTT")).unwrap().is_none());
        let folded = "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n";
        assert!(matches!(read(folded), Err(FramingFault::Head(_))));
        let spaced = "HTTP/1.1 200 OK\r\ncontent-length : 3\r\n\r\nabc";
        assert!(matches!(read(spaced), Err(FramingFault::Head(_))));
    }

    #[test]
    fn a_head_says_whether_its_connection_lasts() {
        let keeps = |start: &str, line: &str| {
            let wire = format!("HTTP/{start} 204 x\r\n{line}\r\n\r\n");
            let head = ResponseHead::take(&mut BytesMut::from(&wire[..])).unwrap().unwrap();
            assert!(head.body.has_ended(), "204 has no body");
            head.keep_alive
        };
        assert!(keeps("1.1", "a: b") && !keeps("1.1", "Connection: x, Close"));
        assert!(!keeps("1.0", "a: b") && keeps("1.0", "connection: keep-alive"));
    }

    #[test]
    fn a_head_gives_the_fields_it_is_asked_for() {
        let wire = "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nMcp-Session-Id: s\r\nContent-Encoding: br\r\nWWW-Authenticate: Bearer\r\n\r\n";
        let head = ResponseHead::take(&mut BytesMut::from(wire)).unwrap().unwrap();
        let texts = [head.content_type, head.session_id, head.content_encoding, head.authenticate];
        assert_eq!(texts.map(Option::unwrap), ["text/x", "s", "br", "Bearer"]);
    }
}
