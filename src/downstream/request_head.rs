//! What a request's head says, whoever sends it: the endpoint, the media types, the era.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::era;
use crate::downstream::response::plain;
use crate::mcp::revisions::Era;
use crate::mcp::trace_context;
use crate::proxy::caller::Endpoint;

/// The paths of MCP: the proxy's own tools, and every upstream tool under a name of its own.
pub const PATHS: [&str; 2] = ["/mcp", ALL_PATH];

/// The path of direct mode.
const ALL_PATH: &str = "/mcp/all";

/// A request's head as far as it does not depend on the session.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestHead {
    pub(super) endpoint: Endpoint,
    pub(super) media: Media,
    is_json: bool,
    pub(super) era: Option<Era>,
    /// Whether it names a trace.
    pub(super) is_traced: bool,
}

impl RequestHead {
    /// Reads a head.
    pub(super) fn of(head: &Parts) -> Self {
        let endpoint = match head.uri.path() {
            ALL_PATH => Endpoint::All,
            _ => Endpoint::Search,
        };
        let headers = &head.headers;
        Self {
            endpoint,
            media: media(headers),
            is_json: is_json(headers),
            era: era::of_headers(headers),
            is_traced: headers.contains_key(trace_context::PARENT),
        }
    }

    /// Why a POST is refused before its body is read.
    pub(super) fn refusal(&self) -> Option<Response<Body>> {
        if !self.is_json {
            let text = "Content-Type must be application/json";
            return Some(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let text = "Accept must include application/json";
        (!self.media.json).then(|| plain(StatusCode::NOT_ACCEPTABLE, text))
    }
}

/// The media types that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) json: bool,
    pub(super) event_stream: bool,
}

/// Reads `Accept`; without one everything is accepted but an event stream.
pub(super) fn media(headers: &HeaderMap) -> Media {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    let mut media = Media { json: values.peek().is_none(), event_stream: false };
    for kind in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
        let refused =
            |parameter: &str| matches!(parameter.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        if parameters.split(';').any(refused) {
            continue;
        }
        let is = |known: &str| kind.trim().eq_ignore_ascii_case(known);
        media.json |= is("application/json") || is("application/*") || is("*/*");
        media.event_stream |= is("text/event-stream") || is("text/*");
    }
    media
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    essence.is_some_and(|value| value.eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderValue;

    use super::*;

    #[test]
    fn what_a_client_takes_is_read_without_guessing() {
        for (accept, json, event_stream) in [
            (None, true, false),
            (Some("application/json, text/event-stream"), true, true),
            (Some("Application/JSON;q=0.9,TEXT/event-stream;q=0.1"), true, true),
            (Some("*/*"), true, false),
            (Some("text/event-stream"), false, true),
            (Some("application/json;q=0, text/*"), false, true),
            (Some("application/jsonl"), false, false),
            (Some("text/html"), false, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(media(&headers), Media { json, event_stream }, "{accept:?}");
        }
    }

    #[test]
    fn a_post_is_refused_for_its_media_types_before_its_body_is_read() {
        let status = |lines: &[(&str, &str)]| {
            let mut request = http::Request::post("/mcp");
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            let head = RequestHead::of(&request.body(()).unwrap().into_parts().0);
            head.refusal().map(|refused| refused.status().as_u16())
        };
        let json = ("content-type", "Application/JSON; charset=utf-8");
        assert_eq!(status(&[json]), None);
        assert_eq!(status(&[json, ("accept", "application/json, text/event-stream")]), None);
        assert_eq!(status(&[]), Some(415));
        assert_eq!(status(&[("content-type", "text/plain")]), Some(415));
        assert_eq!(status(&[json, ("accept", "text/event-stream")]), Some(406));
    }

    #[test]
    fn the_path_alone_tells_the_endpoint() {
        for (path, endpoint) in [("/mcp", Endpoint::Search), ("/mcp/all?x=/mcp", Endpoint::All)] {
            let request = http::Request::get(path).body(()).unwrap();
            assert_eq!(RequestHead::of(&request.into_parts().0).endpoint, endpoint, "{path}");
        }
    }
}
