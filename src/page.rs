//! The web page at `/ui/`: activity, counts, servers and tools.
//!
//! Owns the files of the page, which are compiled in, and the security headers: it runs its own script only, talks to its own server only, and cannot be framed. It
//! holds no data and needs no key; what its script loads from `/api/v1` and `/events` does.

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use crate::downstream::body::Body;

/// The path of the page.
const ROOT: &str = "/ui/";

/// Records hold text of attackers, so nothing that was not in this file runs: no inline script or
/// style, no string that becomes markup or code, no other host.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every response.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
    // A newer program has another page under the same name.
    (CACHE_CONTROL, "no-cache"),
];

/// One file of the page.
struct Asset {
    kind: &'static str,
    text: &'static str,
}

const INDEX: Asset =
    Asset { kind: "text/html; charset=utf-8", text: include_str!("page/index.html") };
const SCRIPT: Asset =
    Asset { kind: "text/javascript; charset=utf-8", text: include_str!("page/app.js") };
const STYLE: Asset =
    Asset { kind: "text/css; charset=utf-8", text: include_str!("page/style.css") };

/// The answer, if the request is for the page or one of its files.
#[must_use]
pub fn answer<B>(request: &Request<B>) -> Option<Response<Body>> {
    let asset = match request.uri().path() {
        "/ui" => None,
        ROOT => Some(INDEX),
        "/ui/app.js" => Some(SCRIPT),
        "/ui/style.css" => Some(STYLE),
        _ => return None,
    };
    let mut response = Response::new(Body::Empty);
    let (status, name, value) = match asset {
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, ALLOW, "GET, HEAD")
        }
        None => (StatusCode::PERMANENT_REDIRECT, LOCATION, ROOT),
        Some(asset) => {
            *response.body_mut() = Body::from(Bytes::from_static(asset.text.as_bytes()));
            (StatusCode::OK, CONTENT_TYPE, asset.kind)
        }
    };
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(name, HeaderValue::from_static(value));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, path: &str) -> Option<Response<Body>> {
        answer(&Request::builder().method(method).uri(path).body(()).unwrap())
    }

    #[test]
    fn the_page_and_its_files_are_served_in_their_bounds() {
        for (path, kind) in [
            ("/ui/", "text/html; charset=utf-8"),
            ("/ui/?x=1", "text/html; charset=utf-8"),
            ("/ui/app.js", "text/javascript; charset=utf-8"),
            ("/ui/style.css", "text/css; charset=utf-8"),
        ] {
            let response = asked(Method::GET, path).unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let headers = response.headers();
            assert_eq!(headers["content-type"], kind);
            assert!(
                headers["content-security-policy"]
                    .to_str()
                    .unwrap()
                    .starts_with("default-src 'none';")
            );
            assert_eq!(headers["x-content-type-options"], "nosniff");
            assert_eq!(headers["x-frame-options"], "DENY");
            assert_eq!(headers["referrer-policy"], "no-referrer");
        }
    }

    #[test]
    fn other_paths_are_not_ours_and_other_methods_are_refused() {
        assert!(asked(Method::GET, "/ui/other").is_none());
        assert!(asked(Method::GET, "/uix").is_none());
        let moved = asked(Method::GET, "/ui").unwrap();
        assert_eq!(moved.status(), StatusCode::PERMANENT_REDIRECT);
        assert_eq!(moved.headers()["location"], "/ui/");
        let refused = asked(Method::POST, "/ui/").unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()["allow"], "GET, HEAD");
    }

    #[test]
    fn the_page_runs_under_its_own_policy() {
        let quoted = INDEX.text.split('"').collect::<String>();
        for barred in ["<style", " style=", "javascript:", "http:", "https:", " onclick", " onload"]
        {
            assert!(!quoted.contains(barred), "{barred} in the page");
        }
        for barred in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.text.contains(barred), "{barred} in the script");
        }
        assert_eq!(INDEX.text.matches("<script").count(), 1);
        assert!(INDEX.text.contains(r#"<script src="app.js" defer></script>"#));
    }
}
