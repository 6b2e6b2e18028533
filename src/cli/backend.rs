//! The proxy that a command asks: the one that runs, or one opened for this command.
//!
//! Both speak the same REST, so that a command cannot tell them apart: there is one set of
//! handlers, one pipeline and one JSON (FR-A2).

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::args::Global;
use super::error::CommandError;
use super::exit_code::Exit;
use super::http_client::{HttpAnswer, HttpClient, RequestError, hint};
use super::read_ahead::read_ahead;
use super::temporary_folder::TemporaryFolder;
use super::{load_config, logging, running_proxy, spinner, start_proxy};
use crate::api::{self, SOURCE};
use crate::downstream::body::Body;
use crate::proxy::Worker;
use crate::server::{self, App, AppState};

/// Longest wait for the servers of a proxy opened for one command.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often their state is polled meanwhile.
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// What is percent-encoded in a path segment or a query value.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// A proxy to ask.
#[derive(Debug)]
pub(super) enum Backend {
    /// One that runs already.
    Remote(HttpClient),
    /// One that was opened for this command.
    Local(Local),
}

/// A proxy in this process, without a listener.
#[derive(Debug)]
pub(super) struct Local {
    shared: Arc<AppState>,
    worker: Rc<Worker>,
}

/// What a command needs of a proxy that has to be opened for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The log alone, to be read: no server is started, and nothing in the data folder changes.
    Activity,
    /// One that runs already; none is opened.
    Running,
    /// What servers there are and what they offer: all are waited for.
    Catalog,
    /// The servers it calls: a call waits for its own.
    Calls,
}

/// Runs a command with the proxy that listens where the config says, or with one opened for it
/// and closed after.
pub(super) fn with(
    global: &Global,
    needs: Needs,
    command: impl AsyncFnOnce(&Backend) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let (loaded, log) = load_config::load_with_log(global)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    if let Some(client) = runtime.block_on(running_proxy::find(&loaded.config)) {
        return runtime.block_on(command(&Backend::Remote(client)));
    }
    let mut scratch = None;
    let app = match needs {
        Needs::Running => {
            let nobody = RequestError::NobodyListens(loaded.config.listen.to_string());
            return Err(unreachable(&nobody));
        }
        Needs::Activity => {
            let scratch = scratch.insert(TemporaryFolder::watched("read")?);
            App::read(loaded.config, scratch.path(), log.handles())
        }
        Needs::Catalog | Needs::Calls => App::start(loaded.config, log.handles(), None),
    };
    let app = app.map_err(|error| start_proxy::not_started(&error))?;
    let local = Local::new(&app);
    let done = runtime.block_on(async {
        if needs == Needs::Catalog {
            local.settle().await;
        }
        let worker = Rc::clone(&local.worker);
        let done = command(&Backend::Local(local)).await;
        worker.settled().await;
        done
    });
    let closed = app.close().map_err(|error| start_proxy::store(&error));
    done.and(closed)
}

impl Local {
    fn new(app: &App) -> Self {
        let shared = Arc::clone(app.shared());
        let worker = Rc::new(Worker::new(Arc::clone(&shared.proxy)));
        Self { shared, worker }
    }

    /// Waits until every server was discovered or has failed once.
    async fn settle(&self) {
        let settled = async {
            while !self.shared.proxy.upstreams.settled() {
                tokio::time::sleep(SETTLE_STEP).await;
            }
        };
        let words = || {
            let states = self.shared.proxy.upstreams.states();
            let there = states.iter().filter(|state| state.settled).count();
            format!("starting servers: {there} of {} have answered", states.len())
        };
        let settled = spinner::during(words, tokio::time::timeout(SETTLE_TIMEOUT, settled));
        if settled.await.is_err() {
            logging::say(format_args!(
                "warning: not all servers answered within {SETTLE_TIMEOUT:?}"
            ));
        }
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
    ) -> Result<HttpAnswer, CommandError> {
        let (parts, body) = self.send(method, target, body).await?.into_parts();
        let body = body.collect().await.map_err(CommandError::failed)?.to_bytes();
        Ok(HttpAnswer { status: parts.status, headers: parts.headers, body })
    }
}

impl Backend {
    /// GET; `data` of the answer, byte for byte.
    pub(super) async fn get(&self, target: &str) -> Result<Data, CommandError> {
        self.request(Method::GET, target, Bytes::new()).await
    }

    /// POST; `data` of the answer, byte for byte.
    pub(super) async fn post(&self, target: &str, body: String) -> Result<Data, CommandError> {
        self.request(Method::POST, target, body.into()).await
    }

    /// GET of a body that is read as it is made, such as an export or the live events. Of events only
    /// those after the one with the id `after`, if it is given.
    pub(super) async fn stream(
        &self,
        target: &str,
        after: Option<&str>,
    ) -> Result<Chunks, CommandError> {
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
            return Ok(body);
        }
        let mut text = Vec::new();
        while let Some(chunk) = body.try_next().await? {
            text.extend_from_slice(&chunk);
        }
        let answer = HttpAnswer { status, headers, body: text.into() };
        match unwrap(answer, place, Exit::Usage) {
            Ok(_) => Err(CommandError::failed(format!("{place} answers {status}"))),
            Err(failure) => Err(failure),
        }
    }

    /// Any method; `data` of the answer, byte for byte.
    pub(super) async fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<Data, CommandError> {
        // The parameters of a GET come from flags alone, so that a bad one is bad usage.
        let refused = if method == Method::GET { Exit::Usage } else { Exit::Failed };
        match self {
            Self::Remote(client) => {
                let answer = client.request(method, target, body).await;
                unwrap(answer.map_err(|error| unreachable(&error))?, client.authority(), refused)
            }
            Self::Local(local) => {
                unwrap(local.request(method, target, body).await?, "the proxy", refused)
            }
        }
    }
}

/// A body as it comes; an error breaks it off.
pub(super) type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, CommandError>>>>;

fn chunks<D, E>(body: impl Stream<Item = Result<D, E>> + 'static) -> Chunks
where
    D: Buf + 'static,
    E: std::fmt::Display + 'static,
{
    let whole = |mut data: D| data.copy_to_bytes(data.remaining());
    let broken = |error| CommandError::failed(format!("the answer broke off: {error}"));
    Box::pin(body.map(move |data| data.map(whole).map_err(broken)))
}

/// The `data` member of an answer, its bytes as they came.
#[derive(Clone, Debug)]
pub(super) struct Data(Bytes);

impl Data {
    /// The JSON text.
    pub(super) fn json(&self) -> Result<&str, CommandError> {
        std::str::from_utf8(&self.0).map_err(|_| CommandError::failed("the answer is not UTF-8"))
    }
}

/// Path and query from parts: segments and values are escaped, absent parameters left out.
pub(super) fn target(segments: &[&str], query: &[(&str, Option<&str>)]) -> String {
    let mut target = String::from("/api/v1");
    for segment in segments {
        target.push('/');
        target.extend(utf8_percent_encode(segment, ESCAPED));
    }
    let given = query.iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    for (index, (name, value)) in given.enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        target.extend(utf8_percent_encode(value, ESCAPED));
    }
    target
}

#[derive(Deserialize)]
struct RestEnvelope<'a> {
    success: bool,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    error: Option<String>,
    request_id: Option<String>,
}

/// Opens the envelope of an answer; `refused` is how the command ends on a 400.
fn unwrap(answer: HttpAnswer, place: &str, refused: Exit) -> Result<Data, CommandError> {
    let stranger = || {
        let status = answer.status;
        CommandError::new(
            Exit::Unreachable,
            format!("{place} answers, but not as mcpproxy does ({status}): is the port another's?"),
        )
    };
    let envelope: RestEnvelope<'_> =
        serde_json::from_slice(&answer.body).map_err(|_| stranger())?;
    match (envelope.success, envelope.data, envelope.error) {
        (true, Some(data), _) => Ok(Data(answer.body.slice_ref(data.get().as_bytes()))),
        (false, _, Some(error)) => {
            let exit = match answer.status {
                StatusCode::BAD_REQUEST => refused,
                StatusCode::UNPROCESSABLE_ENTITY => Exit::Config,
                _ => Exit::Failed,
            };
            let mut failure = CommandError::new(exit, format!("{error}{}", hint(answer.status)));
            failure.request_id = envelope.request_id;
            failure.status = Some(answer.status);
            Err(failure)
        }
        (true, None, _) | (false, _, None) => Err(stranger()),
    }
}

fn unreachable(error: &RequestError) -> CommandError {
    let hint = match error {
        RequestError::NobodyListens(_) => ": start it with `mcpproxy serve`",
        RequestError::Stranger(..) => {
            " (is it mcpproxy with another key? use its config with -c, or set MCPPROXY_API_KEY; \
             through a forwarded port it cannot be told: ask where it listens)"
        }
        RequestError::NotSent(..) | RequestError::Broken(..) => "",
    };
    CommandError::new(Exit::Unreachable, format!("{error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> HttpAnswer {
        HttpAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: http::HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn fr_a3_data_keeps_its_bytes() {
        let data = "{ \"b\":1.10,\"a\" : [1,  2] , \"b\":\"\\u0041\"}";
        let body = format!("{{\"success\":true,\"data\":{data}}}");
        assert_eq!(unwrap(answer(200, &body), "here", Exit::Usage).unwrap().json().unwrap(), data);
    }

    #[test]
    fn an_error_keeps_its_words_and_its_request() {
        let body = r#"{"success":false,"error":"Tool 'a:b' not found","request_id":"r7"}"#;
        let failure = unwrap(answer(404, body), "here", Exit::Usage).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert_eq!(failure.message, "Tool 'a:b' not found");
        assert_eq!(failure.request_id.as_deref(), Some("r7"));
        assert_eq!(unwrap(answer(400, body), "", Exit::Usage).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_stranger_on_the_port_is_exit_3() {
        for body in ["<html>", "{}", "{\"success\":true}", ""] {
            let failure = unwrap(answer(200, body), "127.0.0.1:8080", Exit::Usage).unwrap_err();
            assert_eq!(failure.exit, Exit::Unreachable, "{body}");
            assert!(failure.message.contains("127.0.0.1:8080"), "{failure:?}");
        }
    }

    #[test]
    fn targets_are_escaped() {
        let query = [("q", Some("a b&c=ü")), ("cursor", None), ("limit", Some("3"))];
        assert_eq!(target(&["tools"], &query), "/api/v1/tools?q=a%20b%26c%3D%C3%BC&limit=3");
        assert_eq!(target(&["tools", "s:a/b"], &[]), "/api/v1/tools/s:a%2Fb");
    }
}
