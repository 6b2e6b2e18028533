//! Which era a request belongs to: its headers say it, or its body does.

use http::HeaderMap;

use crate::downstream::header_names::{PROTOCOL_VERSION, SESSION_ID};
use crate::downstream::modern_client::{is_modern_method, names_revision};
use crate::mcp::message::Request;
use crate::mcp::revisions::{Era, LEGACY, MODERN};

/// The era that the headers tell of; `None`: the body does.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Era> {
    let mut versions = headers.get_all(&PROTOCOL_VERSION).iter();
    if versions.any(|version| version == MODERN) {
        return Some(Era::Modern);
    }
    headers.contains_key(&SESSION_ID).then_some(Era::Legacy)
}

/// Whether a request outside of any session, whose headers do not tell its era, is modern.
pub(super) fn is_modern(headers: &HeaderMap, request: &Request) -> bool {
    let method = &*request.method;
    if method == "initialize" || request.id.is_none() {
        return false;
    }
    let version = headers.get(&PROTOCOL_VERSION);
    let unknown = version
        .is_some_and(|version| !LEGACY.iter().any(|known| known.as_bytes() == version.as_bytes()));
    unknown || names_revision(request) || is_modern_method(method)
}

/// Whether it opens a session. One that names the modern revision in `_meta` calls a method that there is not.
pub(super) fn is_initialize(request: &Request) -> bool {
    &*request.method == "initialize" && !names_revision(request)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::header::HeaderValue;

    use super::*;

    #[test]
    fn an_era_is_told_by_headers_where_they_tell() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            of_headers(&headers)
        };
        let (version, session) = ("mcp-protocol-version", ("mcp-session-id", "x"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(version, "2025-11-25")]), None);
        assert_eq!(of(&[(version, "2026-07-28")]), Some(Era::Modern));
        assert_eq!(of(&[session, (version, "2026-07-28")]), Some(Era::Modern), "it is ignored");
        assert_eq!(of(&[session, (version, "2025-11-25")]), Some(Era::Legacy));
        assert_eq!(of(&[session]), Some(Era::Legacy));
        let lines = [(version, "2025-11-25"), (version, "2026-07-28")];
        assert_eq!(of(&lines), Some(Era::Modern), "any line of it");
    }

    fn request(method: &'static str, id: Option<&'static str>, meta: bool) -> Request {
        let params = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}"#;
        let (id, params) = (id.map(Bytes::from), meta.then(|| Bytes::from(params)));
        Request { id, method: method.into(), params }
    }

    #[test]
    fn a_request_without_a_session_is_modern_if_anything_of_it_says_so() {
        let with = |version: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
            }
            headers
        };
        let (none, old, unknown) = (with(None), with(Some("2025-06-18")), with(Some("2099-01-01")));
        let plain = request("tools/list", Some("1"), false);
        assert!(
            !is_modern(&none, &plain) && !is_modern(&old, &plain) && is_modern(&unknown, &plain)
        );
        assert!(is_modern(&old, &request("tools/list", Some("1"), true)));
        assert!(is_modern(&old, &request("server/discover", Some("1"), false)));
        assert!(
            !is_modern(&unknown, &request("initialize", Some("1"), true)),
            "it opens a session"
        );
        assert!(!is_modern(&unknown, &request("tools/list", None, true)), "a notification");
    }

    #[test]
    fn initialize_opens_a_session_unless_it_names_the_other_era() {
        assert!(is_initialize(&request("initialize", Some("1"), false)));
        assert!(!is_initialize(&request("initialize", Some("1"), true)));
        assert!(!is_initialize(&request("ping", Some("1"), false)));
    }
}
