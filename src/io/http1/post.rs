//! The head of a plain POST: the one kind of request that every call is.
//!
//! Plain means that its boundaries can be read in one way only: HTTP/1.1, a length and no coding,
//! nothing asked of the connection. Whatever is not plain is left where it stands, for a server
//! that knows all of HTTP.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

use super::{MAX_HEADERS, end_of_head, number};

/// What the beginning of a request is.
#[derive(Debug)]
pub enum Start {
    /// Undecided: more bytes are needed.
    More,
    /// A plain POST to one of the paths.
    Post(Box<PostHead>),
    /// Anything else, or nothing that can be read.
    Other,
}

/// A plain POST's head.
#[derive(Debug)]
pub struct PostHead {
    /// As a server hands it on.
    pub parts: Parts,
    /// Bytes of the body.
    pub length: usize,
    /// The head itself: another request that starts with the same bytes has the same head.
    pub head: Bytes,
}

impl Start {
    /// Examines the bytes read of a request; consumes none. A head longer than `limit` is
    /// [`Self::Other`].
    #[must_use]
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
            // Given twice it is not plain, even if both agree.
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

    const LIMIT: usize = 200;

    fn read(text: &str) -> Start {
        Start::read(&BytesMut::from(text), &["/mcp"], LIMIT)
    }

    fn post(lines: &str) -> Option<PostHead> {
        match read(&format!("POST /mcp HTTP/1.1\r\n{lines}\r\n\r\nbody")) {
            Start::Post(post) => Some(*post),
            Start::Other => None,
            Start::More => panic!("{lines:?} is whole"),
        }
    }

    #[test]
    fn a_plain_post_is_read_as_any_server_reads_it() {
        let post =
            post("Host: a\r\nContent-Length: 4\r\nX: 1\r\nx: 2\r\nConnection: Keep-Alive").unwrap();
        assert_eq!((post.length, post.parts.uri.path()), (4, "/mcp"));
        assert_eq!(post.parts.headers["host"], "a");
        let both: Vec<_> = post.parts.headers.get_all("x").iter().collect();
        assert_eq!(both, ["1", "2"]);
        assert!(post.head.ends_with(b"\r\n\r\n"), "the body is not part of it");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_not_plain() {
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
            assert!(matches!(read(&whole), Start::Other), "{start}");
        }
    }

    #[test]
    fn more_is_asked_for_until_it_is_certain() {
        let whole = "POST /mcp HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
        for end in 0..whole.len() {
            assert!(matches!(read(&whole[..end]), Start::More), "{:?}", &whole[..end]);
        }
        assert!(matches!(read("PUT"), Start::Other), "at the first byte that differs");
        let long = format!("POST /mcp HTTP/1.1\r\nx: {}", "y".repeat(LIMIT));
        assert!(matches!(read(&long), Start::Other));
    }
}
