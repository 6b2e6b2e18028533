//! The proxy that serves a command's requests: a running one over HTTP, or one opened in this process.
//!
//! Both implement the same REST API with the same handlers, pipeline and JSON, so that commands need not distinguish
//! them (FR-A2). This module also pages through REST lists by cursor; the items keep their bytes.

use crate::args::Global;
use crate::error::{CommandError, Exit};
use crate::format::{list, text};
pub(super) use crate::http_client::target;
use crate::http_client::{ANOTHER_KEY, HttpClient, HttpResponse, RequestError};
use crate::start_proxy::TemporaryFolder;
use crate::terminal_safe::{joined, line};
use crate::{logging, output, running_proxy, start_proxy};
use bytes::{Buf, Bytes};
use futures_util::stream::{Fuse, StreamExt};
use futures_util::{Stream, TryStreamExt};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use mcpproxy_admin::api;
use mcpproxy_admin::api::SOURCE;
use mcpproxy_catalog::persist;
use mcpproxy_config::Config;
use mcpproxy_config::problem::Severity;
use mcpproxy_downstream::body::Body;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_server as server;
use mcpproxy_server::{App, AppState};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Time after which the pending calls are first searched for a call; each further interval is twice as long.
const FIRST_APPROVAL_POLL: Duration = Duration::from_millis(300);
/// Maximum interval between two searches.
const MAX_APPROVAL_POLL: Duration = Duration::from_secs(5);

/// Target of a command's requests.
#[derive(Debug)]
pub(super) enum Backend {
    /// A running proxy.
    Remote(HttpClient),
    /// A proxy opened for this command.
    Local(Local),
}

/// A proxy in this process, without a listener.
#[derive(Debug)]
pub(super) struct Local {
    shared: Arc<AppState>,
    worker: Rc<Worker>,
}

/// Requirements of a command on a proxy opened for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs<'a> {
    /// Read-only access to the log: no server is started, and the data directory does not change.
    Activity,
    /// A running proxy. None is opened for the command.
    Running,
    /// Read-only access to the catalog on disk: no server is started, and the data directory does not change.
    Catalog,
    /// Decisions about the catalog, which are recorded. No server is started.
    Review,
    /// A call to this server, which is the only one started. The call waits for it.
    Call(&'a str),
}

/// Runs a command against the proxy that listens at the configured address. If none runs, opens one for the command and
/// closes it afterwards.
pub(super) fn with(
    global: &Global,
    needs: Needs<'_>,
    command: impl AsyncFnOnce(&Backend) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (loaded, log) = match start_proxy::load_with_log(global) {
        Ok(loaded) => loaded,
        Err(failure) => {
            let backend = runtime.block_on(despite(failure, global))?;
            return runtime.block_on(command(&backend));
        }
    };
    if let Some(client) = runtime.block_on(running_proxy::find_for(global, &loaded.config)) {
        let done = runtime.block_on(command(&Backend::Remote(client)));
        let next = start_proxy::STOP_AND_SALVAGE;
        return done.map_err(|failure| start_proxy::of_damaged_log(failure, next));
    }
    let mut scratch = None;
    let log_folder = loaded.config.activity_folder();
    let app = match needs {
        Needs::Running => {
            let text = runtime.block_on(running_proxy::none_found(global, &loaded.config));
            return Err(CommandError::new(Exit::Unreachable, text));
        }
        Needs::Activity => {
            let scratch = scratch.insert(TemporaryFolder::watched("read")?);
            App::read(loaded.config, scratch.path(), log.handles())
        }
        Needs::Catalog => {
            warn_of_unseen(&loaded.config);
            let scratch = scratch.insert(TemporaryFolder::watched("catalog")?);
            App::browse(loaded.config, scratch.path(), log.handles())
        }
        Needs::Review => App::start_only(loaded.config, log.handles(), None),
        Needs::Call(server) => App::start_only(loaded.config, log.handles(), Some(server)),
    };
    let of_log = |failure: CommandError| match &scratch {
        Some(scratch) => start_proxy::of_copied_log(failure, scratch.path(), &log_folder),
        None => failure,
    };
    let app = app.map_err(|error| of_log(start_proxy::not_started(&error)))?;
    let local = Local::new(&app);
    let done = runtime.block_on(async {
        let worker = Rc::clone(&local.worker);
        let done = command(&Backend::Local(local)).await;
        worker.settled().await;
        done
    });
    let closed = app.close().map_err(|error| start_proxy::store(&error));
    done.map_err(of_log).and(closed)
}

/// The running proxy, although the config is not valid, with a warning. Fails with the failure of the config if no proxy
/// runs.
pub(super) async fn despite(
    failure: CommandError,
    global: &Global,
) -> Result<Backend, CommandError> {
    let Some(client) = running_proxy::of_invalid_config(global).await else { return Err(failure) };
    let errors: Vec<_> =
        failure.problems.iter().filter(|it| it.severity == Severity::Error).collect();
    let shown = match errors.as_slice() {
        [first, _, ..] => format!("{first}, and {} more", errors.len() - 1),
        _ => failure.message,
    };
    logging::print_line(format_args!(
        "warning: {} (`mcpproxy config check`); the running mcpproxy keeps its previous config",
        joined(&shown)
    ));
    Ok(Backend::Remote(client))
}

/// Warns about enabled servers whose tools no proxy has stored yet.
fn warn_of_unseen(config: &Config) {
    let Some(folder) = config.catalog().folder else { return };
    let enabled = config.servers.iter().filter(|server| server.upstream.enabled);
    let unseen = enabled.filter(|server| matches!(persist::read(&folder, &server.name), Ok(None)));
    let names: Vec<_> = unseen.map(|server| line(&server.name).into_owned()).collect();
    if !names.is_empty() {
        logging::print_line(format_args!(
            "warning: no mcpproxy is running, and the tools of {} are not known yet: start `mcpproxy serve`",
            names.join(", ")
        ));
    }
}

impl Local {
    fn new(app: &App) -> Self {
        let shared = Arc::clone(app.shared());
        let worker = Rc::new(Worker::new(Arc::clone(&shared.proxy)));
        Self { shared, worker }
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<Response<Body>, CommandError> {
        let request = Request::builder().method(method).uri(target).header(SOURCE, "cli");
        let request = request.body(Full::new(body)).map_err(CommandError::failed)?;
        Ok(api::handle_own(&self.shared.api, &self.worker, request).await)
    }

    async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<HttpResponse, CommandError> {
        let (parts, body) = self.send(method, target, body).await?.into_parts();
        let body = body.collect().await.map_err(CommandError::failed)?.to_bytes();
        Ok(HttpResponse { status: parts.status, headers: parts.headers, body })
    }
}

impl Backend {
    /// Sends a GET; returns the `data` member byte for byte.
    pub(super) async fn get(&self, target: &str) -> Result<Data, CommandError> {
        self.request(Method::GET, target, Bytes::new()).await
    }

    /// Sends a POST; returns the `data` member byte for byte.
    pub(super) async fn post(&self, target: &str, body: String) -> Result<Data, CommandError> {
        self.request(Method::POST, target, body.into()).await
    }

    /// Waits until the server has started, or has failed to, if this process starts it. The limit is the server's own
    /// for a start, since a package manager may be installing it.
    pub(super) async fn started(&self, server: &str) {
        let Self::Local(local) = self else { return };
        if let Some(upstream) = local.shared.proxy.upstreams.get(server) {
            upstream.settled().await;
        }
    }

    /// Sends the POST of a call. If the call waits for approval, `waits` gets the approval's id, which is found among
    /// the pending calls by the request id. A call through a proxy in this process does not wait for approval.
    pub(super) async fn post_call(
        &self,
        target: &str,
        body: String,
        waits: impl FnOnce(&str),
    ) -> Result<Data, CommandError> {
        let Self::Remote(client) = self else { return self.post(target, body).await };
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(CommandError::failed)?;
        let id = format!("cli-{:032x}", u128::from_ne_bytes(random));
        let sent = async {
            let response = client.post_as(&id, target, body.into()).await;
            let response = response.map_err(|error| unreachable(&error))?;
            unwrap(response, client.authority(), Exit::Failed)
        };
        let mut sent = pin!(sent);
        tokio::select! {
            biased;
            done = &mut sent => return done,
            approval = self.approval_of(&id) => waits(&approval),
        }
        sent.await
    }

    /// Returns the id of the approval that this request's call waits for. Never completes if the call does not wait for
    /// approval.
    async fn approval_of(&self, request_id: &str) -> String {
        let mut pause = FIRST_APPROVAL_POLL;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_APPROVAL_POLL);
            let Ok(pending) = self.get(&target(&["approvals"], &[])).await else { continue };
            let Ok(pending) = pending.json().and_then(output::parse) else { continue };
            let mut pending = list(&pending, "/approvals").iter();
            if let Some(found) = pending.find(|it| text(it, "/call/request_id") == request_id) {
                return text(found, "/id").into_owned();
            }
        }
    }

    /// Sends a GET for a streamed body, such as an export or live events; `after` resumes after the event with this id.
    pub(super) async fn stream(
        &self,
        target: &str,
        after: Option<&str>,
    ) -> Result<StreamedBody, CommandError> {
        let (status, headers, mut body, place) = match self {
            Self::Remote(client) => {
                let reply =
                    client.stream(target, after).await.map_err(|error| unreachable(&error))?;
                let (status, headers) = (reply.status(), reply.headers().clone());
                (status, headers, chunks(reply.chunks()), client.authority())
            }
            Self::Local(local) => {
                let response = local.send(Method::GET, target, Bytes::new()).await?;
                let (parts, body) = response.into_parts();
                let body = chunks(read_ahead(body.into_data_stream()));
                (parts.status, parts.headers, body, "the proxy")
            }
        };
        if status == StatusCode::OK {
            return Ok(StreamedBody { headers, chunks: body });
        }
        let mut text = Vec::new();
        while let Some(chunk) = body.try_next().await? {
            text.extend_from_slice(&chunk);
        }
        let response = HttpResponse { status, headers, body: text.into() };
        match unwrap(response, place, Exit::Usage) {
            Ok(_) => Err(CommandError::failed(format!("{place}: unexpected status {status}"))),
            Err(failure) => Err(failure),
        }
    }

    /// Sends a request with any method; returns the `data` member byte for byte.
    pub(super) async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<Data, CommandError> {
        // A GET's parameters come only from flags, so a rejected parameter is bad usage.
        let refused = if method == Method::GET { Exit::Usage } else { Exit::Failed };
        match self {
            Self::Remote(client) => {
                let response = client.request(method, target, body).await;
                unwrap(response.map_err(|error| unreachable(&error))?, client.authority(), refused)
            }
            Self::Local(local) => {
                unwrap(local.request(method, target, body).await?, "the proxy", refused)
            }
        }
    }
}

/// Streamed body, which ends after an error.
pub(super) type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, CommandError>>>>;

/// Response with a streamed body.
pub(super) struct StreamedBody {
    pub(super) headers: HeaderMap,
    pub(super) chunks: Chunks,
}

fn chunks<D, E>(body: impl Stream<Item = Result<D, E>> + 'static) -> Chunks
where
    D: Buf + 'static,
    E: std::fmt::Display + 'static,
{
    let whole = |mut data: D| data.copy_to_bytes(data.remaining());
    let broken = |error| CommandError::failed(format!("the response ended early: {error}"));
    Box::pin(body.map(move |data| data.map(whole).map_err(broken)))
}

/// The `data` member of a response with its original bytes.
#[derive(Clone, Debug)]
pub(super) struct Data(Bytes);

impl Data {
    /// The JSON text.
    pub(super) fn json(&self) -> Result<&str, CommandError> {
        std::str::from_utf8(&self.0).map_err(|_| CommandError::failed("the response is not UTF-8"))
    }
}

#[derive(Deserialize)]
struct RestEnvelope<'a> {
    success: bool,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    error: Option<String>,
    request_id: Option<String>,
}

/// Unwraps the REST envelope; `refused` is the exit code for a 400.
fn unwrap(response: HttpResponse, place: &str, refused: Exit) -> Result<Data, CommandError> {
    let unexpected = || {
        let status = response.status;
        CommandError::new(
            Exit::Unreachable,
            format!("{place}: unexpected response ({status}); is another program using the port?"),
        )
    };
    let envelope: RestEnvelope<'_> =
        serde_json::from_slice(&response.body).map_err(|_| unexpected())?;
    match (envelope.success, envelope.data, envelope.error) {
        (true, Some(data), _) => Ok(Data(response.body.slice_ref(data.get().as_bytes()))),
        (false, _, Some(_)) if response.status == StatusCode::UNAUTHORIZED => {
            let text = format!("the mcpproxy on {place} {ANOTHER_KEY}");
            let mut failure = CommandError::new(Exit::Unreachable, text);
            failure.status = Some(response.status);
            Err(failure)
        }
        (false, _, Some(error)) => {
            let exit = match response.status {
                StatusCode::BAD_REQUEST => refused,
                StatusCode::UNPROCESSABLE_ENTITY => Exit::Config,
                _ => Exit::Failed,
            };
            let mut failure = CommandError::new(exit, error);
            failure.request_id = envelope.request_id;
            failure.status = Some(response.status);
            Err(failure)
        }
        (true, None, _) | (false, _, None) => Err(unexpected()),
    }
}

fn unreachable(error: &RequestError) -> CommandError {
    let hint = match error {
        RequestError::NoListener(_) => ": start it with `mcpproxy serve`",
        RequestError::UnexpectedServer(..) => {
            " (`mcpproxy doctor` names another program; if it is mcpproxy with another key, use its config with -c, or set \
             MCPPROXY_API_KEY to its API key, not to an agent token; through a forwarded port the proof fails: connect to \
             its listen address)"
        }
        RequestError::NotSent(..) | RequestError::Broken(..) => "",
    };
    CommandError::new(Exit::Unreachable, format!("{error}{hint}"))
}

/// Maximum number of items per REST page.
const PAGE: u32 = 100;

/// Fetches up to `max_items` items of `/api/v1/{name}` as `{"<name>":[…]}`. For `activity`, the member is `activities`.
pub(super) async fn fetch_all(
    backend: &Backend,
    name: &str,
    query: &[(&str, Option<&str>)],
    max_items: u32,
) -> Result<String, CommandError> {
    let member = if name == "activity" { "activities" } else { name };
    let mut items = Vec::new();
    let (mut left, mut cursor) = (max_items, None::<String>);
    let mut fleet: Option<Box<RawValue>> = None;
    loop {
        let limit = left.min(PAGE).to_string();
        let mut query = query.to_vec();
        query.extend([("limit", Some(limit.as_str())), ("cursor", cursor.as_deref())]);
        let data = backend.get(&target(&[name], &query)).await?;
        let page = Page::read(data.json()?, member)?;
        left = left.saturating_sub(u32::try_from(page.items.len()).unwrap_or(u32::MAX));
        items.extend(page.items);
        // The combined list is partial if any page is.
        fleet = match (fleet, page.fleet) {
            (Some(fleet), Some(_)) if is_partial(&fleet) => Some(fleet),
            (fleet, next) => next.or(fleet),
        };
        match page.next {
            // A repeated cursor would loop forever.
            Some(next) if left > 0 && cursor.as_ref() != Some(&next) => cursor = Some(next),
            next => return Ok(join(member, &items, next, fleet.as_deref())),
        }
    }
}

struct Page {
    items: Vec<Box<RawValue>>,
    next: Option<String>,
    /// Coverage of the page in a fleet.
    fleet: Option<Box<RawValue>>,
}

impl Page {
    fn read(json: &str, member: &str) -> Result<Self, CommandError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Cursor {
            Text(String),
            None,
        }
        let wrong =
            |error| CommandError::failed(format!("invalid page in the proxy's response: {error}"));
        let mut members: HashMap<String, &RawValue> = serde_json::from_str(json).map_err(wrong)?;
        let items = members.remove(member).map_or("[]", RawValue::get);
        let next = members.remove("next_cursor").map_or("null", RawValue::get);
        let next = match serde_json::from_str(next).map_err(wrong)? {
            Cursor::Text(text) if !text.is_empty() => Some(text),
            Cursor::Text(_) | Cursor::None => None,
        };
        let fleet = members.remove("fleet").map(|fleet| fleet.to_owned());
        Ok(Self { items: serde_json::from_str(items).map_err(wrong)?, next, fleet })
    }
}

fn is_partial(fleet: &RawValue) -> bool {
    let fleet: serde_json::Value = serde_json::from_str(fleet.get()).unwrap_or_default();
    fleet.get("partial").and_then(serde_json::Value::as_bool) == Some(true)
}

fn join(
    member: &str,
    items: &[Box<RawValue>],
    next: Option<String>,
    fleet: Option<&RawValue>,
) -> String {
    let items: Vec<&str> = items.iter().map(|item| item.get()).collect();
    let next = next.map_or(String::new(), |next| {
        format!(",\"next_cursor\":{}", serde_json::Value::String(next))
    });
    let fleet = fleet.map_or(String::new(), |fleet| format!(",\"fleet\":{}", fleet.get()));
    format!("{{\"{member}\":[{}]{next}{fleet}}}", items.join(","))
}

/// Stream adapter that polls the next item before it yields the current one, so that producer and consumer overlap.
pub(super) struct ReadAhead<S: Stream> {
    stream: Fuse<S>,
    /// The prefetched item.
    next: Option<S::Item>,
}

pub(super) fn read_ahead<S: Stream + Unpin>(stream: S) -> ReadAhead<S> {
    ReadAhead { stream: stream.fuse(), next: None }
}

impl<S> Stream for ReadAhead<S>
where
    S: Stream + Unpin,
    S::Item: Unpin,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        let item = match this.next.take() {
            Some(item) => Some(item),
            None => ready!(this.stream.poll_next_unpin(cx)),
        };
        // The poll starts the work on the next item.
        if item.is_some()
            && let Poll::Ready(next) = this.stream.poll_next_unpin(cx)
        {
            this.next = next;
        }
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, stream};
    use std::cell::Cell;

    fn response(status: u16, body: &str) -> HttpResponse {
        HttpResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: http::HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn fr_a3_data_keeps_its_bytes() {
        let data = "{ \"b\":1.10,\"a\" : [1,  2] , \"b\":\"\\u0041\"}";
        let body = format!("{{\"success\":true,\"data\":{data}}}");
        assert_eq!(
            unwrap(response(200, &body), "here", Exit::Usage).unwrap().json().unwrap(),
            data
        );
    }

    #[test]
    fn error_response_keeps_message_and_request_id() {
        let body = r#"{"success":false,"error":"Tool 'a:b' not found","request_id":"r7"}"#;
        let failure = unwrap(response(404, body), "here", Exit::Usage).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert_eq!(failure.message, "Tool 'a:b' not found");
        assert_eq!(failure.request_id.as_deref(), Some("r7"));
        assert_eq!(unwrap(response(400, body), "", Exit::Usage).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn response_of_another_program_exits_with_3() {
        for body in ["<html>", "{}", "{\"success\":true}", ""] {
            let failure = unwrap(response(200, body), "127.0.0.1:8080", Exit::Usage).unwrap_err();
            assert_eq!(failure.exit, Exit::Unreachable, "{body}");
            assert!(failure.message.contains("127.0.0.1:8080"), "{failure:?}");
        }
    }

    #[test]
    fn targets_are_percent_encoded() {
        let query = [("q", Some("a b&c=ü")), ("cursor", None), ("limit", Some("3"))];
        assert_eq!(target(&["tools"], &query), "/api/v1/tools?q=a%20b%26c%3D%C3%BC&limit=3");
        assert_eq!(target(&["tools", "s:a/b"], &[]), "/api/v1/tools/s:a%2Fb");
    }

    #[test]
    fn page_items_keep_their_bytes_and_cursor() {
        let json = r#"{"tools":[{"a":1.0}, { "b" : 2 }],"next_cursor":"c1","limit":2}"#;
        let page = Page::read(json, "tools").unwrap();
        assert_eq!(page.next.as_deref(), Some("c1"));
        assert_eq!(
            join("tools", &page.items, page.next, None),
            r#"{"tools":[{"a":1.0},{ "b" : 2 }],"next_cursor":"c1"}"#
        );
        let partial = r#"{"tools":[],"fleet":{"partial": true}}"#;
        let page = Page::read(partial, "tools").unwrap();
        assert!(is_partial(page.fleet.as_deref().unwrap()));
        assert_eq!(join("tools", &page.items, page.next, page.fleet.as_deref()), partial);
        for last in [r#"{"tools":[]}"#, r#"{"tools":[],"next_cursor":null}"#] {
            assert_eq!(Page::read(last, "tools").unwrap().next, None);
        }
    }

    #[test]
    fn next_item_starts_before_the_current_is_processed() {
        let begun = Cell::new(0);
        let items = stream::iter(1..=3).map(|item| {
            begun.set(item);
            item
        });
        let mut items = read_ahead(items);
        for item in 1..=3 {
            assert_eq!(items.next().now_or_never(), Some(Some(item)));
            assert_eq!(begun.get(), (item + 1).min(3));
        }
        assert_eq!(items.next().now_or_never(), Some(None));
    }

    #[test]
    fn pending_items_are_awaited() {
        let there = Cell::new(Some(Some(1)));
        let items = stream::poll_fn(|_| there.take().map_or(Poll::Pending, Poll::Ready));
        let mut items = read_ahead(items);
        assert_eq!(items.next().now_or_never(), Some(Some(1)));
        assert_eq!(items.next().now_or_never(), None);
        there.set(Some(Some(2)));
        assert_eq!(items.next().now_or_never(), Some(Some(2)));
        there.set(Some(None));
        assert_eq!(items.next().now_or_never(), Some(None));
    }
}
