//! `/api/v1/page/…`: browser login for the page at `/ui/`, and the check of which requests may use its session (CSRF
//! protection).
//!
//! A code shown in a terminal, or the API key entered by hand, is exchanged for a session, whose secret is in a cookie that
//! scripts cannot read. Browsers also send cookies with requests caused by other pages, and to other ports of the same host,
//! so the cookie alone proves nothing. It is accepted only
//! - for REST and `/events`, never for `/mcp` or for endpoints that create credentials,
//! - together with a header that neither a form nor a page of another origin can send, and
//! - for a request from the server's own origin; a request that changes anything must state its origin.
//!
//! Other requests are treated as if they had no cookie. Codes and sessions are stored in `identity::page_logins`.

use std::time::{Instant, SystemTime};

use http::header::{CACHE_CONTROL, COOKIE, HOST, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::call::SOURCE;
use super::request::{ApiRequest, read_body};
use super::response::{self, ApiError, Success, encode, rfc_3339};
use crate::api::{ConnectionInfo, State};
use mcpproxy_downstream::body::Body;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;
use mcpproxy_policy::host_check::AskingOrigin;
use mcpproxy_policy::identity::{CODE_LIFE, PAGE_SECRET_BYTES, PageSession, SESSION_LIFE};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Value of [`SOURCE`] in requests of the page.
const PAGE: &[u8] = b"page";
/// Header in which browsers state the origin of a request.
const FETCH_SITE: &str = "sec-fetch-site";
/// Prefix of the cookie's name. The port follows it, because browsers share cookies between all ports of a host.
const COOKIE_NAME: &str = "mcpproxy_page";

/// A login code for the page.
#[derive(Serialize, ToSchema)]
struct PageCode<'a> {
    /// Valid once, as `/ui/#code=…`.
    #[schema(value_type = String)]
    code: &'a str,
    /// Time at which the code expires.
    #[schema(format = DateTime)]
    expires: String,
}

/// Login request.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageLogin {
    /// The code; omitted if the request carries the API key.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 64)]
    code: Option<String>,
}

/// A session of the page.
#[derive(Serialize, ToSchema)]
struct OpenedPage {
    /// Time at which the session expires.
    #[schema(format = DateTime)]
    expires: String,
}

/// A closed session.
#[derive(Serialize, ToSchema)]
struct ClosedPage {
    /// Always true.
    closed: bool,
}

/// Creates a code that opens the page once, within ten minutes.
#[utoipa::path(
    post,
    path = "/api/v1/page/codes",
    tag = "page",
    operation_id = "makePageCode",
    responses(
        (status = 200, description = "The code", body = Success<PageCode<'_>>),
        (status = 403, description = "Requires the API key; or Host or Origin is not allowed"),
        (status = 500, description = "The system provides no random bytes"),
    )
)]
pub(super) async fn code(
    ApiRequest { state, worker, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    let settings = worker.settings();
    let code = state.page_logins.code(&settings.http_auth.api_key, random()?, Instant::now());
    let shown =
        PageCode { code: code.expose(), expires: rfc_3339(SystemTime::now() + CODE_LIFE, 0) };
    Ok(uncached(response::success(encode(&shown), id)))
}

/// Opens a session of the page in exchange for a code or the API key, and sets its cookie.
#[utoipa::path(
    post,
    path = "/api/v1/page/session",
    tag = "page",
    operation_id = "openPage",
    request_body(content = PageLogin, description = "The code, or an empty object together with the API key"),
    params(("X-Mcpproxy-Source" = String, Header, description = "`page`", pattern = "^page$")),
    responses(
        (
            status = 200,
            description = "The session is open",
            body = Success<OpenedPage>,
            headers(("Set-Cookie" = String, description = "The session's secret")),
        ),
        (status = 400, description = "The body or the query is invalid"),
        (status = 401, description = "The code is unknown, used or expired; or neither code nor key is given"),
        (status = 403, description = "The request does not come from the page; or Host or Origin is not allowed"),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
        (status = 500, description = "The system provides no random bytes"),
    )
)]
pub(super) async fn open(
    ApiRequest { state, worker, connection, principal, parts, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    let asking = asking(worker, parts);
    if !is_marked(&parts.headers) || asking == AskingOrigin::Foreign {
        let text = "A page session can only be opened by the page";
        return Err(ApiError::new(StatusCode::FORBIDDEN, text));
    }
    // Serde would accept an array instead of an object.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::bad_body("must be an object"));
    }
    let login: PageLogin = serde_json::from_slice(&body).map_err(ApiError::bad_body)?;
    let settings = worker.settings();
    let (key, now) = (&*settings.http_auth.api_key, Instant::now());
    let secret = match (&login.code, principal) {
        (Some(code), _) => {
            state.page_logins.exchange(code, key, random()?, now).ok_or_else(|| {
                let text =
                    "This address was used already or has expired: `mcpproxy page` prints a new one";
                ApiError::new(StatusCode::UNAUTHORIZED, text)
            })?
        }
        (None, Principal::Admin) => state.page_logins.open(key, random()?, now),
        (
            None,
            Principal::Anonymous
            | Principal::Token(_)
            | Principal::Subject(_)
            | Principal::Certificate(_),
        ) => return Err(ApiError::new(StatusCode::UNAUTHORIZED, "Invalid or missing API key")),
    };
    peer_line!(info, LinePeer::Client("page"), "a browser logged in to the page");
    let opened = OpenedPage { expires: rfc_3339(SystemTime::now() + SESSION_LIFE, 0) };
    let mut response = uncached(response::success(encode(&opened), id));
    set_cookie(&mut response, parts, secret.expose(), is_secure(connection, &parts.headers));
    Ok(response)
}

/// Closes the page session of the request, if there is one, and deletes its cookie.
#[utoipa::path(
    delete,
    path = "/api/v1/page/session",
    tag = "page",
    operation_id = "lockPage",
    responses((
        status = 200,
        description = "The session is closed",
        body = Success<ClosedPage>,
        headers(("Set-Cookie" = String, description = "Deletes the cookie")),
    ))
)]
pub(super) async fn close(
    ApiRequest { state, worker, connection, parts, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    if accepts_cookie(worker, parts) {
        for secret in secrets(parts) {
            state.page_logins.end(secret);
        }
    }
    let mut response = uncached(response::success(encode(&ClosedPage { closed: true }), id));
    set_cookie(&mut response, parts, "", is_secure(connection, &parts.headers));
    Ok(response)
}

/// Returns the session of a request whose cookie is accepted. Whether the route accepts sessions is in the endpoint table.
pub(super) fn session(state: &State, worker: &Worker, parts: &Parts) -> Option<PageSession> {
    if !parts.headers.contains_key(COOKIE) || !accepts_cookie(worker, parts) {
        return None;
    }
    let (settings, now) = (worker.settings(), Instant::now());
    let key = &settings.http_auth.api_key;
    secrets(parts).find_map(|secret| state.page_logins.session(secret, key, now))
}

/// Whether a cookie is accepted with this request.
fn accepts_cookie(worker: &Worker, parts: &Parts) -> bool {
    let is_own = match asking(worker, parts) {
        AskingOrigin::Own => true,
        // Browsers omit it in requests that change nothing.
        AskingOrigin::Unstated => matches!(parts.method, Method::GET | Method::HEAD),
        AskingOrigin::Foreign => false,
    };
    is_own && is_marked(&parts.headers)
}

fn asking(worker: &Worker, parts: &Parts) -> AskingOrigin {
    worker.settings().http_auth.host_check.asking(&parts.headers)
}

/// Whether a request states that it comes from the page, and its browser does not state a different origin.
fn is_marked(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    headers.get(SOURCE).is_some_and(|source| source.as_bytes() == PAGE)
        && matches!(site, None | Some(b"same-origin"))
}

/// Values of this server's cookie. A browser may send several.
fn secrets(parts: &Parts) -> impl Iterator<Item = &str> {
    let name = cookie_name(&parts.headers);
    let lines = parts.headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(move |pair| {
        let (given, value) = pair.trim().split_once('=')?;
        (given == name).then_some(value)
    })
}

/// Name of the cookie, which includes the port in the checked `Host`.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    match port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(port) => format!("{COOKIE_NAME}_{port}"),
        None => COOKIE_NAME.to_owned(),
    }
}

fn set_cookie(response: &mut Response<Body>, parts: &Parts, secret: &str, secure: bool) {
    let name = cookie_name(&parts.headers);
    let over = if secret.is_empty() { "; Max-Age=0" } else { "" };
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict{over}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}

/// Whether the browser uses TLS, to this server or to a reverse proxy.
fn is_secure(connection: &ConnectionInfo, headers: &HeaderMap) -> bool {
    let certificate = connection.reached.as_ref().and_then(|reached| reached.certificate.as_ref());
    let origin = headers.get(http::header::ORIGIN).map(HeaderValue::as_bytes);
    certificate.is_some() || origin.is_some_and(|origin| origin.starts_with(b"https://"))
}

/// Forbids caching of a response with a credential.
fn uncached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn random() -> Result<[u8; PAGE_SECRET_BYTES], ApiError> {
    let mut random = [0; PAGE_SECRET_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| ApiError::internal(format!("no random bytes available: {error}")))?;
    Ok(random)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let request = headers
            .iter()
            .fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn cookie_name_depends_on_the_requested_port() {
        for (host, name) in [
            ("127.0.0.1:8080", "mcpproxy_page_8080"),
            ("[::1]:1", "mcpproxy_page_1"),
            ("[::1]", "mcpproxy_page"),
            ("proxy.lan", "mcpproxy_page"),
        ] {
            assert_eq!(cookie_name(&parts(&[("host", host)]).headers), name);
        }
        let both = parts(&[
            ("host", "h:1"),
            ("cookie", "a=b; mcpproxy_page_1=x; mcpproxy_page_2=y; mcpproxy_page=z"),
            ("cookie", "mcpproxy_page_1=w;"),
        ]);
        assert_eq!(secrets(&both).collect::<Vec<_>>(), ["x", "w"]);
    }

    #[test]
    fn page_requests_need_the_source_header_and_the_same_origin() {
        let marked = |headers: &[(&str, &str)]| is_marked(&parts(headers).headers);
        assert!(marked(&[("x-mcpproxy-source", "page")]));
        assert!(marked(&[("x-mcpproxy-source", "page"), ("sec-fetch-site", "same-origin")]));
        assert!(!marked(&[]));
        assert!(!marked(&[("x-mcpproxy-source", "cli")]));
        for site in ["same-site", "cross-site", "none"] {
            assert!(!marked(&[("x-mcpproxy-source", "page"), ("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn cookie_is_restricted_to_this_site() {
        let mut response = Response::new(Body::Empty);
        set_cookie(&mut response, &parts(&[("host", "h:1")]), "s", true);
        let set = response.headers()[SET_COOKIE].to_str().unwrap().to_owned();
        assert_eq!(set, "mcpproxy_page_1=s; Path=/; HttpOnly; SameSite=Strict; Secure");
        set_cookie(&mut response, &parts(&[("host", "h:1")]), "", false);
        let set = response.headers()[SET_COOKIE].to_str().unwrap();
        assert_eq!(set, "mcpproxy_page_1=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
        let origin = [("origin", "https://h")];
        assert!(is_secure(&ConnectionInfo::default(), &parts(&origin).headers));
        assert!(!is_secure(&ConnectionInfo::default(), &parts(&[]).headers));
    }
}
