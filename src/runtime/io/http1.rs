//! HTTP/1.1 framing on `Bytes` (RFC 9112): the head of a response, any body, and the head of a plain POST.
//!
//! Incremental and pure: takes bytes and returns "more", a value or a fault. Strict about where a message ends: if two parties read one
//! boundary differently, one call would get the bytes of another. httparse splits a head into tokens; headers that do not affect framing
//! are not interpreted.
//!
//! A POST is plain if its boundaries can be read in only one way: HTTP/1.1, with a length, without a transfer coding,
//! and without headers that change the connection, such as `Upgrade`. Any other request is left unconsumed, for a
//! server that implements all of HTTP.

use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use thiserror::Error;

use mcpproxy_protocol::mcp::headers;

/// Maximum size of a head in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of header lines in a head.
pub const MAX_HEADERS: usize = 100;
/// Maximum length of a chunk's size line in bytes, including extensions.
const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Maximum size of the trailers in bytes.
const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// Violation of the framing by a peer. The texts never quote data that the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FramingFault {
    /// The first bytes are not those of an HTTP/1 response.
    #[error("the response does not start with an HTTP/1 status line")]
    NotHttp,
    /// The head exceeds [`MAX_HEAD_BYTES`].
    #[error("the head is larger than {MAX_HEAD_BYTES} bytes")]
    HeadTooLarge,
    /// The head exceeds [`MAX_HEADERS`].
    #[error("the head has more than {MAX_HEADERS} lines")]
    TooManyHeaders,
    /// A syntax error in the head.
    #[error("the head is malformed: {0}")]
    Head(httparse::Error),
    /// A response switches protocols although the request did not ask for it.
    #[error("it switches protocols without a request for it")]
    Upgrade,
    /// `Content-Length` is not a number, contradicts itself, or comes together with a transfer coding.
    #[error("its Content-Length is invalid or contradictory")]
    Length,
    /// A transfer coding other than `chunked` alone.
    #[error("its Transfer-Encoding is not 'chunked'")]
    Coding,
    /// The size line of a chunk cannot be parsed.
    #[error("a chunk's size is malformed")]
    ChunkSize,
    /// A chunk does not end after the number of bytes that its size line states.
    #[error("a chunk's length differs from its size")]
    ChunkEnd,
    /// The trailers exceed `MAX_TRAILER_BYTES`.
    #[error("the trailers are larger than {MAX_TRAILER_BYTES} bytes")]
    Trailers,
}

/// The parts of a response's head that an MCP client needs.
#[derive(Debug)]
pub struct ResponseHead {
    /// The final status code.
    pub status: u16,
    /// `Content-Type`
    pub content_type: Option<Bytes>,
    /// `Content-Encoding`
    pub content_encoding: Option<Bytes>,
    /// `Mcp-Session-Id`
    pub session_id: Option<Bytes>,
    /// `WWW-Authenticate`
    pub authenticate: Option<Bytes>,
    /// `Location`
    pub location: Option<Bytes>,
    /// `Retry-After`; see [`retry_after`].
    pub retry_after: Option<Bytes>,
    /// Whether the connection stays open after the body.
    pub keep_alive: bool,
    pub body: FramedBody,
}

impl ResponseHead {
    /// Takes a head from `input`, skipping interim responses (RFC 9110 §15.2). `None` if more input is needed.
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

    /// Parses a complete head; `Continue` for an interim response.
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
            location: None,
            retry_after: None,
            keep_alive: response.version == Some(1),
            body: FramedBody::UntilClose,
        };
        let (mut length, mut chunked) = (None, false);
        for line in &*response.headers {
            let is = |name: &str| line.name.eq_ignore_ascii_case(name);
            // The length is compared first, because most lines are none of these.
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
                8 if is("location") => head.location = Some(bytes.slice_ref(line.value)),
                11 if is("retry-after") => head.retry_after = Some(bytes.slice_ref(line.value)),
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

/// Maximum wait that a peer's `Retry-After` may set.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Wait that `Retry-After` requests: a number of seconds, or until an HTTP date (RFC 9110 §10.2.3), at most [`MAX_RETRY_AFTER`]. Zero for a
/// date in the past.
pub fn retry_after(value: &[u8], now: SystemTime) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    // Some servers write a fraction.
    if let Ok(seconds) = text.parse::<f64>() {
        let wait = (seconds >= 0.0).then(|| seconds.ceil().min(MAX_RETRY_AFTER.as_secs_f64()))?;
        return Some(Duration::from_secs_f64(wait));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    let wait = SystemTime::from(date).duration_since(now).unwrap_or_default();
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Index after the blank line that ends a head.
fn end_of_head(input: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', input).find_map(|at| match input.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Size on a chunk's size line, without extensions (RFC 9112 §7.1). A carriage return within the line is refused, because some
/// implementations treat it as the end of the line.
fn chunk_size(line: &[u8]) -> Option<u64> {
    /// Number of hexadecimal digits in 64 bits.
    const MAX_DIGITS: usize = 16;
    if memchr::memchr(b'\r', line).is_some() {
        return None;
    }
    let mut size = line.split(|byte| *byte == b';').next()?;
    while let [digits @ .., b' ' | b'\t'] = size {
        size = digits;
    }
    number(size, 16).filter(|_| size.len() <= MAX_DIGITS)
}

/// Parses digits only; `None` on overflow of 64 bits.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let valid = !digits.is_empty() && digits.iter().all(|digit| char::from(*digit).is_digit(radix));
    if !valid {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Position within a body's framing (RFC 9112 §6 and §7.1).
///
/// ```text
/// Length(n) ─ n bytes ▶ Ended        UntilClose ─ close ▶ Ended
/// Size ─ line ▶ Chunk(n) ─ n bytes ▶ ChunkEnd ─ CRLF ▶ Size
///   └─ size 0 ▶ Trailers ─ blank line ▶ Ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramedBody {
    /// Remaining bytes, at least one.
    Length(u64),
    /// Before the size line of a chunk.
    Size,
    /// Remaining bytes of the chunk, at least one.
    Chunk(u64),
    /// Before the line terminator after a chunk.
    ChunkEnd,
    /// After the last chunk, with the number of trailer bytes skipped.
    Trailers(usize),
    /// Until the peer closes the connection.
    UntilClose,
    Ended,
}

impl FramedBody {
    /// A body of `length` bytes.
    pub(crate) fn of_length(length: u64) -> Self {
        if length == 0 { Self::Ended } else { Self::Length(length) }
    }

    /// Takes the next bytes of the body from `input`, never an empty slice. `None` if the body has [ended](Self::has_ended) or more input
    /// is needed.
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
                    let remaining = MAX_TRAILER_BYTES.saturating_sub(*skipped);
                    let Some(line) = line(input, remaining, FramingFault::Trailers)? else {
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

    /// Whether the body is complete.
    pub fn has_ended(&self) -> bool {
        *self == Self::Ended
    }

    /// Records that the peer closed the connection. Returns whether the body is complete.
    pub fn close(&mut self) -> bool {
        if *self == Self::UntilClose {
            *self = Self::Ended;
        }
        self.has_ended()
    }
}

/// Takes at most `left` bytes from the input and subtracts their number from `left`.
fn up_to(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let size = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= size as u64;
    (size > 0).then(|| input.split_to(size).freeze())
}

/// Takes a line from the input, without its CRLF. A line longer than `limit` or with another terminator is a fault.
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

/// The beginning of a request.
#[derive(Debug)]
pub enum Start {
    /// More input is needed to decide.
    More,
    /// A plain POST to one of the paths.
    Post(Box<PostHead>),
    /// Any other request, or bytes that are not a request.
    Other,
}

#[derive(Debug)]
pub struct PostHead {
    /// The parsed parts, in the form used by HTTP servers.
    pub parts: Parts,
    /// Length of the body in bytes.
    pub length: usize,
    /// The raw head; requests that begin with the same bytes have the same head.
    pub head: Bytes,
}

impl Start {
    /// Examines the unread bytes of a request without consuming them. A head longer than `limit` is [`Self::Other`].
    pub fn read(input: &BytesMut, paths: &[&'static str], limit: usize) -> Self {
        const METHOD: &[u8] = b"POST /";
        if !input.iter().zip(METHOD).all(|(byte, method)| byte == method) {
            return Self::Other;
        }
        match end_of_head(input) {
            Some(end) if end <= limit => {
                let head = Bytes::copy_from_slice(input.get(..end).unwrap_or_default());
                parse(head, paths).map_or(Self::Other, |post| Self::Post(Box::new(post)))
            }
            None if input.len() <= limit => Self::More,
            Some(_) | None => Self::Other,
        }
    }
}

fn parse(head: Bytes, paths: &[&'static str]) -> Option<PostHead> {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(&head, &mut lines).ok()?;
    let path = paths.iter().find(|path| request.path == Some(path))?;
    if parsed.is_partial() || request.method != Some("POST") || request.version != Some(1) {
        return None;
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::POST;
    parts.uri = Uri::from_static(path);
    parts.headers.reserve(request.headers.len());
    let mut length = None;
    for line in &*request.headers {
        let is = |name: &str| line.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            // A repeated length is not plain, even if both values agree.
            if length.replace(usize::try_from(number(line.value, 10)?).ok()?).is_some() {
                return None;
            }
        }
        let asks =
            ["transfer-encoding", "expect", "upgrade", "te", "trailer"].iter().any(|n| is(n));
        if asks || (is("connection") && !line.value.eq_ignore_ascii_case(b"keep-alive")) {
            return None;
        }
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(line.value)).ok()?;
        parts.headers.append(name, value);
    }
    Some(PostHead { parts, length: length?, head })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, seconds) in [
            ("0", Some(0)),
            (" 30 ", Some(30)),
            ("1.5", Some(2)),
            ("86400", Some(300)),
            ("1e999", Some(300)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:49:07 GMT", Some(0)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", Some(300)),
            ("-1", None),
            ("NaN", None),
            ("soon", None),
            ("", None),
        ] {
            let wait = retry_after(value.as_bytes(), now).map(|wait| wait.as_secs());
            assert_eq!(wait, seconds, "{value}");
        }
        assert_eq!(retry_after(b"\xff", now), None);
        let mut head = BytesMut::from(&b"HTTP/1.1 429 X\r\nRetry-After: 7\r\n\r\n"[..]);
        let head = ResponseHead::take(&mut head).unwrap().unwrap();
        assert_eq!(head.retry_after.as_deref(), Some(&b"7"[..]));
    }

    /// Feeds `wire` in two pieces, cut at every position. Returns the status, the body, and the rest.
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
    fn body_ends_where_its_framing_says() {
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
    fn ambiguous_message_boundary_is_a_fault() {
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
    fn oversized_head_or_trailers_are_a_fault() {
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
    fn interim_responses_are_skipped() {
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na";
        assert_eq!(read(wire).unwrap(), (200, "a".into(), String::new()));
        let switch = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n";
        assert_eq!(read(switch).unwrap_err(), FramingFault::Upgrade);
    }

    #[test]
    fn non_http_is_detected_at_the_first_byte() {
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
    fn keep_alive_follows_version_and_connection_header() {
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
    fn requested_header_fields_are_returned() {
        let wire = "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nMcp-Session-Id: s\r\nContent-Encoding: br\r\nWWW-Authenticate: Bearer\r\n\r\n";
        let head = ResponseHead::take(&mut BytesMut::from(wire)).unwrap().unwrap();
        let texts = [head.content_type, head.session_id, head.content_encoding, head.authenticate];
        assert_eq!(texts.map(Option::unwrap), ["text/x", "s", "br", "Bearer"]);
    }

    const LIMIT: usize = 200;

    fn read_start(text: &str) -> Start {
        Start::read(&BytesMut::from(text), &["/mcp"], LIMIT)
    }

    fn post(lines: &str) -> Option<PostHead> {
        match read_start(&format!("POST /mcp HTTP/1.1\r\n{lines}\r\n\r\nbody")) {
            Start::Post(post) => Some(*post),
            Start::Other => None,
            Start::More => panic!("{lines:?} is whole"),
        }
    }

    #[test]
    fn plain_post_is_parsed_as_by_any_other_server() {
        let post =
            post("Host: a\r\nContent-Length: 4\r\nX: 1\r\nx: 2\r\nConnection: Keep-Alive").unwrap();
        assert_eq!((post.length, post.parts.uri.path()), (4, "/mcp"));
        assert_eq!(post.parts.headers["host"], "a");
        let both: Vec<_> = post.parts.headers.get_all("x").iter().collect();
        assert_eq!(both, ["1", "2"]);
        assert!(post.head.ends_with(b"\r\n\r\n"), "the body is not part of it");
    }

    #[test]
    fn ambiguous_request_is_not_plain() {
        for lines in [
            "a: b",
            "content-length: 4\r\ncontent-length: 4",
            "content-length: 4, 4",
            "content-length: +4",
            "content-length: 99999999999999999999",
            "content-length: 4\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked",
            "content-length: 4\r\nexpect: 100-continue",
            "content-length: 4\r\nconnection: close",
            "content-length: 4\r\nconnection: upgrade\r\nupgrade: x",
            "content-length : 4",
            "content-length: 4\r\n folded",
        ] {
            assert!(post(lines).is_none(), "{lines:?}");
        }
        for start in [
            "GET /mcp HTTP/1.1",
            "POST /mcp HTTP/1.0",
            "POST /mcp2 HTTP/1.1",
            "POST http://a/mcp HTTP/1.1",
        ] {
            let whole = format!("{start}\r\ncontent-length: 0\r\n\r\n");
            assert!(matches!(read_start(&whole), Start::Other), "{start}");
        }
    }

    #[test]
    fn incomplete_head_asks_for_more_bytes() {
        let whole = "POST /mcp HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
        for end in 0..whole.len() {
            assert!(matches!(read_start(&whole[..end]), Start::More), "{:?}", &whole[..end]);
        }
        assert!(
            matches!(read_start("PUT"), Start::Other),
            "refused at the first byte that differs"
        );
        let long = format!("POST /mcp HTTP/1.1\r\nx: {}", "y".repeat(LIMIT));
        assert!(matches!(read_start(&long), Start::Other));
    }
}
