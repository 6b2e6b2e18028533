//! What a server may do to us: over HTTP and over pipes, good and bad, on real sockets and real
//! child processes.

mod alerts;
mod away;
mod eras;
mod fake;
mod http;
mod inbound;
mod peers;
mod resume;
mod secrets;
mod stdio;
mod subscriptions;
mod unasked;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::runtime::Handle;

use super::Config;
use super::http::Pool;
use super::outgoing::CallExtras;
use super::reaper::Reaper;
use super::stderr_log::StderrLog;
use super::supervisor::{
    Answer, AnswerPart, CallError, Event, MAX_RETIRING, ServerPlan, ServerState, Status,
    Supervisor, Upstream,
};
use crate::catalog::Catalog;
use crate::catalog::settings::Settings;
use crate::intent::{self, Operation, Stated};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::policy::{
    self, Access, Admission, AdmissionRequest, Permit, Principal, ResourceRequest, SessionFacts,
    ToolAccess, admit,
};
use crate::secrets::Secrets;
use crate::tool::ToolName;

/// Longest time that anything in these tests may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Leave for `access`, as a proxy gives it that has nothing against it.
fn permitted(access: Access) -> Permit {
    let request = AdmissionRequest {
        principal: &Principal::Anonymous,
        access,
        arguments: b"",
        intent: None,
        client: "",
        session: SessionFacts::default(),
        now: std::time::SystemTime::UNIX_EPOCH,
    };
    match admit(request, &policy::Settings::default()) {
        Admission::Permit(permit) => permit,
        refused @ (Admission::Pending(_) | Admission::Queued(_) | Admission::Denial(_)) => {
            panic!("{refused:?}")
        }
    }
}

/// A proxy's lower half: catalog, supervisor, one worker's pool.
struct Bench {
    catalog: Arc<Catalog>,
    supervisor: Supervisor,
    pool: Rc<Pool>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Bench {
    /// Starts with the servers of an `mcpServers` object.
    fn start(servers: serde_json::Value) -> Self {
        let configs: Vec<(Arc<str>, Config)> = servers
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, entry)| {
                (name.as_str().into(), serde_json::from_value(entry.clone()).unwrap())
            })
            .collect();
        let settings = Settings {
            servers: configs.iter().map(|(name, _)| (name.clone(), Default::default())).collect(),
            ..Settings::default()
        };
        let secrets = configs.iter().flat_map(|(_, config)| config.secrets());
        let secrets = Arc::new(Secrets::new(secrets));
        let catalog = Arc::new(Catalog::new(settings));
        let events = Arc::new(Mutex::new(Vec::new()));
        let log = events.clone();
        let supervisor = Supervisor::start(
            configs,
            Reaper::new(None),
            catalog.clone(),
            secrets,
            StderrLog::default(),
            move |event| log.lock().push(event),
            &Handle::current(),
        );
        Self { catalog, supervisor, pool: Rc::new(Pool::new()), events }
    }

    fn upstream(&self, name: &str) -> Arc<Upstream> {
        self.supervisor.get(name).unwrap().clone()
    }

    /// Waits until a server's state is as asked.
    async fn until(&self, name: &str, what: impl Fn(&ServerState) -> bool) -> ServerState {
        let upstream = self.upstream(name);
        within(upstream.state.wait_for(|_| Some(upstream.state()).filter(&what))).await
    }

    async fn connected(&self, name: &str) -> ServerState {
        self.until(name, |state| state.status == Status::Connected).await
    }

    fn permit(&self, name: &str) -> Permit {
        let name = ToolName::parse(name).unwrap();
        let tool = self.catalog.load().tool(&name).expect("a discovered tool").clone();
        let stated = Stated::parse(&[("intent".into(), r#"{"operation_type":"destructive"}"#)]);
        let settings = intent::Settings::default();
        let intent = stated.check(Operation::Destructive, &settings).unwrap();
        permitted(Access::Tool(ToolAccess::declared(tool, &intent)))
    }

    async fn begin(&self, name: &str, arguments: &str) -> Result<Answer, CallError> {
        let permit = self.permit(name);
        let upstream = self.upstream(permit.access().server());
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        let call =
            upstream.call(&self.pool, &permit, arguments, CallExtras::default(), Instant::now());
        within(call).await
    }

    /// A call with what its client sent beside the arguments.
    async fn begin_with(&self, name: &str, beside: CallExtras) -> Result<Answer, CallError> {
        let permit = self.permit(name);
        let upstream = self.upstream(permit.access().server());
        let arguments = Bytes::from_static(b"{}");
        within(upstream.call(&self.pool, &permit, arguments, beside, Instant::now())).await
    }

    /// A call's messages, to the end of its stream.
    async fn call(&self, name: &str, arguments: &str) -> Result<Vec<String>, CallError> {
        let mut answer = self.begin(name, arguments).await?;
        let mut messages = Vec::new();
        while let Some(message) = next_message(&mut answer).await? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// A call's error, in words.
    async fn error(&self, name: &str) -> String {
        self.call(name, "{}").await.expect_err("an error").to_string()
    }

    async fn stop(self) {
        within(self.supervisor.shutdown(Instant::now() + Duration::from_secs(1))).await;
    }
}

/// The next whole message of an answer; none at the end of the stream.
async fn next_message(answer: &mut Answer) -> Result<Option<String>, CallError> {
    let mut message = Vec::new();
    loop {
        match within(answer.next()).await? {
            Some(AnswerPart::Data(data)) => {
                assert!(!data.is_empty());
                message.extend_from_slice(&data);
            }
            Some(AnswerPart::End) => return Ok(Some(String::from_utf8(message).unwrap())),
            None => {
                assert!(message.is_empty(), "a stream that ends in a message is an error");
                return Ok(None);
            }
        }
    }
}

/// The next request on a server's connection: its head and its body; none at the end.
async fn next_request(
    stream: &mut BufReader<impl AsyncRead + Unpin>,
) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((head, body)))
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it took too long")
}

/// The result object that the scripted servers answer a call with.
fn result(id: u64, text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        .to_string()
}

#[tokio::test]
async fn a_server_without_an_address_fails_and_says_why() {
    let bench = Bench::start(json!({"bad": {}, "off": {"command": "x", "enabled": false}}));
    let state = bench.until("bad", |state| state.status == Status::Failed).await;
    assert_eq!(&*state.reason, "neither command nor url is given");
    assert_eq!(bench.upstream("off").state().status, Status::Disabled);
    assert!(bench.supervisor.settled());
    assert_eq!(
        bench.upstream("bad").reached(Instant::now() + PATIENCE).await.unwrap_err(),
        "bad: the server is not connected: neither command nor url is given"
    );
    assert!(matches!(&bench.events.lock()[..], [Event::Server(_)]));
    bench.stop().await;
}

#[tokio::test]
async fn a_secret_that_is_not_set_stops_that_server_alone() {
    let bench = Bench::start(json!({
        "s": {"url": "http://127.0.0.1:9/", "headers": {"X": "${env:MCPPROXY_NOT_SET}"}}
    }));
    let state = bench.until("s", |state| state.status == Status::Failed).await;
    assert_eq!(
        &*state.reason,
        "environment variable MCPPROXY_NOT_SET is not set, which headers.X asks for"
    );
    bench.stop().await;
}
