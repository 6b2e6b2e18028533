//! One tracing span a call, with what is known of the call, and around each line that is logged during it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mcpproxy::config::{self, Flags};
use mcpproxy::mcp::capabilities::ClientCapabilities;
use mcpproxy::mcp::revisions::Era;
use mcpproxy::policy::Principal;
use mcpproxy::proxy::Worker;
use mcpproxy::proxy::caller::{Channel, Endpoint, Peer};
use mcpproxy::proxy::client::Client;
use mcpproxy::proxy::dispatch;
use mcpproxy::proxy::incoming::{self, Incoming};
use mcpproxy::proxy::reaction::Reaction;
use mcpproxy::server::App;
use mcpproxy::telemetry::LogHandles;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The fields of a span, as text.
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

/// What was told: the spans named `call`, and for each line the request that it was logged in.
#[derive(Clone, Default)]
struct Told {
    calls: Arc<Mutex<BTreeMap<u64, Fields>>>,
    lines: Arc<Mutex<Vec<Option<String>>>>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Told {
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
        if event.metadata().target().starts_with("mcpproxy::proxy") {
            let calls = self.calls.lock().unwrap();
            let span = context.event_span(event).and_then(|span| calls.get(&span.id().into_u64()));
            let request = span.and_then(|fields| fields.0.get("request_id").cloned());
            self.lines.lock().unwrap().push(request);
        }
    }
}

/// Sends the requests one by one, without any server behind the proxy; what was told at `level`.
fn told(level: Level, requests: &[&'static str]) -> (Vec<Fields>, Vec<Option<String>>) {
    let told = Told::default();
    let filtered = told.clone().with_filter(LevelFilter::from_level(level));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(filtered));
    let folder = tempfile::tempdir().unwrap();
    let flags = Flags { data_dir: Some(folder.path().to_owned()), ..Flags::default() };
    let (config, _) = config::parse("{}", &|_| None, &flags).unwrap();
    let app = App::start(config, LogHandles::default(), None).unwrap();
    let worker = Rc::new(Worker::new(Arc::clone(&app.shared().proxy)));
    let offered = ClientCapabilities::default();
    let peer = Peer {
        client: Arc::new(Client::new("s1".into(), "test", "2025-11-25", Era::Legacy, offered)),
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
            let Ok(Incoming::Request(received)) = incoming::read(&worker, &message) else {
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
    let calls = told.calls.lock().unwrap().values().cloned().collect();
    let lines = told.lines.lock().unwrap().clone();
    (calls, lines)
}

/// A call of a server that there is not, a read with a member that the method does not have, one of our own tools.
const REQUESTS: [&str; 3] = [
    r#"{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"call_tool_write","arguments":{"name":"srv:tool","args":{"secret":"payload"},"intent":{"operation_type":"write","reason":"payload"}}}}"#,
    r#"{"jsonrpc":"2.0","id":"two","method":"resources/read","params":{"uri":"mcpproxy://srv/payload:x","odd":1}}"#,
    r#"{"jsonrpc":"2.0","id":"three","method":"tools/call","params":{"name":"retrieve_tools","arguments":{"query":"payload"}}}"#,
];

#[test]
fn a_call_is_one_span_and_what_is_logged_in_it_carries_it() {
    let (calls, lines) = told(Level::DEBUG, &REQUESTS);
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
    // The member that stays behind is told in its own call.
    assert!(lines.contains(&Some("two".to_owned())), "{lines:?}");

    let (calls, lines) = told(Level::INFO, &REQUESTS);
    assert!(calls.is_empty() && lines.contains(&None), "off by default: {calls:?} {lines:?}");
}
