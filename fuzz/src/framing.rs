//! Target `framing`: an HTTP/1.1 response is decoded in the same way however it is split, with the boundaries that a second
//! decoder finds; a request recognized as a plain POST is one.
//!
//! Input: a byte for the size of the pieces, then the bytes of the connection.

use bytes::{Bytes, BytesMut};
use mcpproxy_runtime::io::http1::{FramedBody, FramingFault, MAX_HEADERS, ResponseHead, Start};

const PATHS: [&str; 2] = ["/mcp", "/mcp/all"];
const LIMIT: usize = 512;

pub fn run(data: &[u8]) {
    let Some((&size, wire)) = data.split_first() else { return };
    let size = usize::from(size).max(1);
    let whole = answer(std::iter::once(wire));
    assert_eq!(answer(wire.chunks(size)), whole);
    if let Ok(Some(answer)) = &whole {
        let start = wire.len() - answer.after_head;
        assert_body(answer, &wire[start..]);
    }
    assert_request(wire);
}

/// The response as far as it was read.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    keep_alive: bool,
    /// Framing of the body.
    framing: FramedBody,
    /// Bytes after the head.
    after_head: usize,
    body: Vec<u8>,
    /// Whether the body is complete, or a framing fault that follows the bytes in `body`.
    ended: Result<bool, FramingFault>,
    /// Bytes after the body.
    rest: usize,
}

fn answer<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Option<Answer>, FramingFault> {
    let (mut input, mut behind) = (BytesMut::new(), 0);
    let mut found: Option<(Answer, FramedBody)> = None;
    for piece in pieces {
        input.extend_from_slice(piece);
        if found.is_some() {
            behind += piece.len();
        } else if let Some(head) = ResponseHead::take(&mut input)? {
            behind = input.len();
            let framing = head.body;
            let answer = Answer {
                status: head.status,
                keep_alive: head.keep_alive,
                framing,
                after_head: 0,
                body: Vec::new(),
                ended: Ok(framing.has_ended()),
                rest: 0,
            };
            found = Some((answer, framing));
        }
        let Some((answer, state)) = &mut found else { continue };
        while answer.ended.is_ok() {
            match state.take(&mut input) {
                Ok(Some(data)) => {
                    assert!(!data.is_empty());
                    answer.body.extend_from_slice(&data);
                }
                Ok(None) => {
                    answer.ended = Ok(state.has_ended());
                    break;
                }
                Err(fault) => answer.ended = Err(fault),
            }
        }
    }
    Ok(found.map(|(mut answer, _)| {
        answer.after_head = behind;
        // Bytes after a fault belong to no message.
        answer.rest = if answer.ended.is_ok() { input.len() } else { 0 };
        answer
    }))
}

/// Compares the answer with that of a second decoder, which has all bytes at once.
fn assert_body(answer: &Answer, wire: &[u8]) {
    let Ok(ended) = answer.ended else { return };
    let (body, rest) = (&answer.body[..], answer.rest);
    match answer.framing {
        FramedBody::Ended => assert!(ended && body.is_empty() && rest == wire.len()),
        FramedBody::UntilClose => assert!(!ended && body == wire),
        FramedBody::Length(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX).min(wire.len());
            assert_eq!(body, &wire[..length]);
            assert_eq!(rest, wire.len() - length);
        }
        FramedBody::Size => {
            let (mut left, mut expected) = (wire, Vec::new());
            while let Ok(httparse::Status::Complete((at, size))) = httparse::parse_chunk_size(left)
            {
                left = &left[at..];
                if size == 0 {
                    break;
                }
                let size = usize::try_from(size).unwrap_or(usize::MAX).min(left.len());
                expected.extend_from_slice(&left[..size]);
                left = left[size..].strip_prefix(b"\r\n").unwrap_or_default();
            }
            assert_eq!(body, expected);
            assert!(!ended || wire.len() - rest >= expected.len() + b"0\r\n\r\n".len());
        }
        FramedBody::Chunk(_) | FramedBody::ChunkEnd | FramedBody::Trailers(_) => {
            unreachable!("no head says so")
        }
    }
}

fn assert_request(wire: &[u8]) {
    let read = |wire: &[u8]| Start::read(&BytesMut::from(wire), &PATHS, LIMIT);
    let told = (0..=wire.len().min(2 * LIMIT)).find_map(|end| match read(&wire[..end]) {
        Start::More => None,
        start => Some(start),
    });
    match (told, read(wire)) {
        (Some(Start::Post(first)), Start::Post(post)) => {
            assert_eq!(first.head, post.head);
            assert!(wire.starts_with(&post.head) && post.head.len() <= LIMIT);
            assert_is_plain(&post.head, post.length, post.parts.headers.len());
        }
        (Some(Start::Other), Start::Other) | (None, Start::More) => {}
        (pieces, whole) => panic!("{pieces:?} by pieces, {whole:?} as a whole"),
    }
}

fn assert_is_plain(head: &Bytes, length: usize, headers: usize) {
    let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut lines);
    assert_eq!(request.parse(head), Ok(httparse::Status::Complete(head.len())));
    assert_eq!(request.headers.len(), headers);
    let values = |name: &str| {
        let lines = request.headers.iter().filter(|line| line.name.eq_ignore_ascii_case(name));
        lines.map(|line| String::from_utf8_lossy(line.value).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values("transfer-encoding"), [""; 0]);
    let [stated] = &values("content-length")[..] else { panic!("not one length: {head:?}") };
    assert_eq!(stated.parse(), Ok(length));
}
