//! The web page at `/ui/`: overview, activity, approvals, principals, servers, tools, rules and settings.
//!
//! Owns the page's files, which are compiled in, and their security headers: only the page's own script runs, and the
//! page connects only to its own server and cannot be framed. It contains no data and needs no key; the script loads
//! the data from `/api/v1` and `/events` after a login (`api::page_session`).

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use mcpproxy_downstream::body::Body;

/// Path of the page.
const ROOT: &str = "/ui/";

/// Content security policy. Records contain text written by attackers, so only the compiled-in script runs. Inline
/// scripts and styles, strings used as markup or code, and other hosts are forbidden.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Maximum size of the page with all its files in bytes.
#[cfg(test)]
const MAX_PAGE_BYTES: usize = 280 * 1024;

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
    // Browsers have to ask for a newer version, because it has the same name.
    (CACHE_CONTROL, "no-cache"),
];

/// A file of the page.
struct Asset {
    kind: &'static str,
    text: &'static str,
}

const INDEX: Asset =
    Asset { kind: "text/html; charset=utf-8", text: include_str!("page/index.html") };
const STYLE: Asset =
    Asset { kind: "text/css; charset=utf-8", text: include_str!("page/style.css") };

/// JavaScript modules: one per view, and shared ones.
const SCRIPTS: [(&str, &str); 20] = [
    ("activity.js", include_str!("page/activity.js")),
    ("adding.js", include_str!("page/adding.js")),
    ("app.js", include_str!("page/app.js")),
    ("approvals.js", include_str!("page/approvals.js")),
    ("csv.js", include_str!("page/csv.js")),
    ("dom.js", include_str!("page/dom.js")),
    ("fleet.js", include_str!("page/fleet.js")),
    ("live.js", include_str!("page/live.js")),
    ("now.js", include_str!("page/now.js")),
    ("plot.js", include_str!("page/plot.js")),
    ("policy.js", include_str!("page/policy.js")),
    ("principals.js", include_str!("page/principals.js")),
    ("record.js", include_str!("page/record.js")),
    ("rest.js", include_str!("page/rest.js")),
    ("route.js", include_str!("page/route.js")),
    ("servers.js", include_str!("page/servers.js")),
    ("settings.js", include_str!("page/settings.js")),
    ("settings_form.js", include_str!("page/settings_form.js")),
    ("theme.js", include_str!("page/theme.js")),
    ("tools.js", include_str!("page/tools.js")),
];

/// Returns an address that opens the page once. `base` is `http://host:port`; the code is in the fragment, which browsers do not
/// send.
pub fn address(base: &str, code: &str) -> String {
    format!("{base}{ROOT}#code={code}")
}

/// Returns the response if the request is for the page or one of its files.
pub fn answer<B>(request: &Request<B>) -> Option<Response<Body>> {
    let asset = match request.uri().path() {
        "/" | "/ui" => None,
        ROOT => Some(INDEX),
        "/ui/style.css" => Some(STYLE),
        path => Some(script(path.strip_prefix(ROOT)?)?),
    };
    let mut response = Response::new(Body::Empty);
    let (status, name, value) = match asset {
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, ALLOW, "GET, HEAD")
        }
        None => (StatusCode::TEMPORARY_REDIRECT, LOCATION, ROOT),
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

fn script(name: &str) -> Option<Asset> {
    let (_, text) = SCRIPTS.iter().find(|(known, _)| *known == name)?;
    Some(Asset { kind: "text/javascript; charset=utf-8", text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(method: Method, path: &str) -> Option<Response<Body>> {
        answer(&Request::builder().method(method).uri(path).body(()).unwrap())
    }

    #[test]
    fn page_files_are_served_with_security_headers() {
        for (path, kind) in [
            ("/ui/", "text/html; charset=utf-8"),
            ("/ui/?x=1", "text/html; charset=utf-8"),
            ("/ui/app.js", "text/javascript; charset=utf-8"),
            ("/ui/now.js", "text/javascript; charset=utf-8"),
            ("/ui/style.css", "text/css; charset=utf-8"),
        ] {
            let response = response(Method::GET, path).unwrap();
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
    fn other_paths_have_no_response_and_other_methods_are_rejected() {
        assert!(response(Method::GET, "/ui/other").is_none());
        assert!(response(Method::GET, "/uix").is_none());
        for path in ["/", "/ui"] {
            let moved = response(Method::GET, path).unwrap();
            assert_eq!(moved.status(), StatusCode::TEMPORARY_REDIRECT);
            assert_eq!(moved.headers()["location"], "/ui/");
        }
        let refused = response(Method::POST, "/ui/").unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()["allow"], "GET, HEAD");
    }

    #[test]
    fn page_stays_within_its_size_limit() {
        let scripts: usize = SCRIPTS.iter().map(|(_, text)| text.len()).sum();
        let all = INDEX.text.len() + STYLE.text.len() + scripts;
        assert!(all <= MAX_PAGE_BYTES, "{all} bytes");
    }

    /// Distances outside the scale: padding of keys and badges, space for a button, edge of a scrolling row, centering.
    const OWN_DISTANCES: [&str; 5] =
        ["0 .3em", "0 .35em", "4.5rem", "2px var(--space-4)", "0 auto"];

    #[test]
    fn style_takes_sizes_and_distances_from_its_scales() {
        for scale in ["--font-", "--space-"] {
            let steps = STYLE.text.matches(&format!(" {scale}")).count();
            assert!((1..=6).contains(&steps), "{scale}: {steps}");
        }
        let declarations =
            STYLE.text.split(['{', '}', ';']).filter_map(|it| it.trim().split_once(": "));
        for (name, value) in declarations.filter(|(name, _)| !name.starts_with("--")) {
            let of_text = matches!(name, "font-size" | "font") && value != "inherit";
            assert!(!of_text || value.starts_with("var(--font-"), "{name}: {value}");
            let of_space = ["margin", "padding", "gap"].iter().any(|it| name.starts_with(it));
            let from_scale = value.split(' ').all(|it| it == "0" || it.contains("var(--space-"))
                || value.starts_with("calc(-1 * var(--space-")
                || OWN_DISTANCES.contains(&value)
                || value == "auto";
            assert!(!of_space || from_scale, "{name}: {value}");
        }
    }

    /// Requirement PAGE-2.
    #[test]
    fn page_complies_with_its_content_security_policy() {
        let quoted = INDEX.text.split('"').collect::<String>();
        for barred in ["<style", " style=", "javascript:", "http:", "https:", " onclick", " onload"]
        {
            assert!(!quoted.contains(barred), "{barred} in the page");
        }
        let barred = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("];
        for (name, text) in SCRIPTS {
            for barred in
                barred.iter().chain(&["sessionStorage", "localStorage", "document.cookie"])
            {
                // The chosen colors are the only stored data.
                let stores_colors = name == "theme.js" && *barred == "localStorage";
                assert!(stores_colors || !text.contains(barred), "{barred} in {name}");
            }
            // Every imported module is served, and every served module is imported.
            for other in text.split("from './").skip(1).filter_map(|rest| rest.split_once('\'')) {
                assert!(SCRIPTS.iter().any(|(known, _)| *known == other.0), "{name}: {}", other.0);
            }
            let import = format!("from './{name}'");
            assert!(
                name == "app.js" || SCRIPTS.iter().any(|(_, text)| text.contains(&import)),
                "{name}"
            );
        }
        assert_eq!(INDEX.text.matches("<script").count(), 1);
        assert!(INDEX.text.contains(r#"<script src="app.js" type="module"></script>"#));
    }
}
