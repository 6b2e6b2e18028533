//! One tracing span per call, with the fields of the call, around each line logged during the call.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mcpproxy_config::Flags;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::client::Client;
use mcpproxy_gateway::proxy::client::{Channel, Endpoint, Peer};
use mcpproxy_gateway::proxy::dispatch;
use mcpproxy_gateway::proxy::dispatch::Incoming;
use mcpproxy_gateway::proxy::reply::Reaction;
use mcpproxy_gateway::telemetry::LogHandles;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_server::App;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Fields of a span, as text.
#[derive(Clone, Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Recorded spans named `call`, and for each log line the request of the span around it.
#[derive(Clone, Default)]
struct Recording {
    calls: Arc<Mutex<BTreeMap<u64, Fields>>>,
    lines: Arc<Mutex<Vec<Option<String>>>>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recording {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "call" {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            self.calls.lock().unwrap().insert(id.into_u64(), fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(fields) = self.calls.lock().unwrap().get_mut(&id.into_u64()) {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target().starts_with("mcpproxy_gateway::proxy") {
            let calls = self.calls.lock().unwrap();
            let span = context.event_span(event).and_then(|span| calls.get(&span.id().into_u64()));
            let request = span.and_then(|fields| fields.0.get("request_id").cloned());
            self.lines.lock().unwrap().push(request);
        }
    }
}

/// Sends the requests one by one, without a server behind the proxy. Returns the spans and lines recorded at `level`.
fn record(level: Level, requests: &[&'static str]) -> (Vec<Fields>, Vec<Option<String>>) {
    let recording = Recording::default();
    let filtered = recording.clone().with_filter(LevelFilter::from_level(level));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(filtered));
    let folder = tempfile::tempdir().unwrap();
    let flags = Flags { data_dir: Some(folder.path().to_owned()), ..Flags::default() };
    let (config, _) = mcpproxy_config::parse("{}", &|_| None, &flags).unwrap();
    let app = App::start(config, LogHandles::default(), None).unwrap();
    let worker = Rc::new(Worker::new(Arc::clone(&app.shared().proxy)));
    let offered = ClientCapabilities::default();
    let peer = Peer {
        client: Arc::new(Client::new(
            "s1".into(),
            "test",
            "2025-11-25",
            ProtocolFamily::Legacy,
            offered,
        )),
        principal: Principal::Admin,
        endpoint: Endpoint::Search,
        channel: Channel::Answer,
        headers: None,
        trace: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for request in requests {
            let message = Bytes::from_static(request.as_bytes());
            let Ok(Incoming::Request(received)) = dispatch::read(&worker, &message) else {
                panic!("{request}");
            };
            let reaction = dispatch::dispatch(&worker, &peer, received);
            let Reaction::Call { mut running, .. } = reaction else { panic!("{reaction:?}") };
            while running.next().await.is_some() {}
        }
        worker.settled().await;
    });
    drop(worker);
    app.close().unwrap();
    let calls = recording.calls.lock().unwrap().values().cloned().collect();
    let lines = recording.lines.lock().unwrap().clone();
    (calls, lines)
}

/// A call to an unknown server, a read with an unknown member, and a call to a tool of the proxy.
const REQUESTS: [&str; 3] = [
    r#"{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"call_tool_write","arguments":{"name":"srv:tool","args":{"secret":"payload"},"intent":{"operation_type":"write","reason":"payload"}}}}"#,
    r#"{"jsonrpc":"2.0","id":"two","method":"resources/read","params":{"uri":"mcpproxy://srv/payload:x","odd":1}}"#,
    r#"{"jsonrpc":"2.0","id":"three","method":"tools/call","params":{"name":"retrieve_tools","arguments":{"query":"payload"}}}"#,
];

#[test]
fn call_is_one_span_around_its_log_lines() {
    let (calls, lines) = record(Level::DEBUG, &REQUESTS);
    assert_eq!(calls.len(), REQUESTS.len(), "{calls:?}");
    let of = |request: &str| {
        let call =
            calls.iter().find(|call| call.0.get("request_id").is_some_and(|id| id == request));
        call.unwrap_or_else(|| panic!("{request}: {calls:?}")).0.clone()
    };
    let one = of("one");
    for (name, value) in [
        ("session_id", "s1"),
        ("principal", "admin"),
        ("variant", "call_tool_write"),
        ("server", "srv"),
        ("tool", "tool"),
        ("outcome", "error"),
    ] {
        assert_eq!(one.get(name).map(String::as_str), Some(value), "{name} of {one:?}");
    }
    assert!(one.get("duration_us").is_some_and(|us| us.parse::<u64>().is_ok()), "{one:?}");
    assert_eq!(of("two").get("outcome").map(String::as_str), Some("rejected"));
    assert_eq!(of("three").get("outcome").map(String::as_str), Some("success"));
    assert!(!format!("{calls:?}").contains("payload"), "no payload: {calls:?}");
    // The dropped member is logged within its call.
    assert!(lines.contains(&Some("two".to_owned())), "{lines:?}");

    let (calls, lines) = record(Level::INFO, &REQUESTS);
    assert!(calls.is_empty() && lines.contains(&None), "off by default: {calls:?} {lines:?}");
}
