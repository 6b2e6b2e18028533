//! Target `router`: every request with an id gets one reaction, under that very id; nothing else
//! gets any.
//!
//! Input: a byte that says who the client is, then messages, one a line: as they are, or grown by
//! `arbitrary` out of the bytes, which makes requests of methods that there are. There are no
//! upstreams, so nothing leaves the process, and every call comes to an end by itself.

use std::rc::Rc;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use mcpproxy::config::{self, Flags};
use mcpproxy::mcp::capabilities::ClientCapabilities;
use mcpproxy::mcp::revisions::Era;
use mcpproxy::policy::Principal;
use mcpproxy::proxy::Worker;
use mcpproxy::proxy::caller::{Channel, Endpoint, Peer};
use mcpproxy::proxy::client::Client;
use mcpproxy::proxy::incoming::{self, Incoming};
use mcpproxy::proxy::params::ParamHeaders;
use mcpproxy::proxy::reaction::Reaction;
use mcpproxy::proxy::reply::{Piece, Running};
use mcpproxy::proxy::{dispatch, render};
use mcpproxy::server::App;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;

use super::envelope::Members;

/// Messages of one run.
const MAX_MESSAGES: usize = 32;

/// The proxy that all runs of a thread share, and what its calls are polled on.
struct Stage {
    worker: Rc<Worker>,
    runtime: Runtime,
    _app: App,
}

thread_local! {
    static STAGE: Stage = Stage::new();
}

impl Stage {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("mcpproxy-fuzz-{}", std::process::id()));
        let flags = Flags { data_dir: Some(folder), ..Flags::default() };
        let (config, _) = config::parse("{}", &|_| None, &flags).expect("an empty config is one");
        let app = App::start(config, mcpproxy::telemetry::LogHandles::default(), None)
            .expect("it starts");
        let worker = Rc::new(Worker::new(Arc::clone(&app.shared().proxy)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { worker, runtime: runtime.expect("a runtime"), _app: app }
    }
}

/// The fuzz target.
pub fn run(data: &[u8]) {
    let [switches, messages @ ..] = data else { return };
    let peer = peer(*switches);
    let grown = switches & 0x80 != 0;
    let messages = if grown { grow(messages) } else { lines(messages) };
    STAGE.with(|stage| {
        for message in messages.iter().take(MAX_MESSAGES) {
            react(stage, &peer, message);
        }
    });
}

fn peer(switches: u8) -> Peer {
    let bit = |at: u8| switches >> at & 1 == 1;
    let (era, version) =
        if bit(0) { (Era::Modern, "2026-07-28") } else { (Era::Legacy, "2025-11-25") };
    let client_capabilities = ClientCapabilities {
        sampling: bit(3),
        elicitation: bit(4),
        elicitation_forms: bit(4),
        roots: bit(5),
    };
    Peer {
        client: Arc::new(Client::new("s".into(), "fuzz", version, era, client_capabilities)),
        principal: if bit(4) { Principal::Admin } else { Principal::Anonymous },
        endpoint: if bit(1) { Endpoint::All } else { Endpoint::Search },
        channel: if bit(2) { Channel::Stream } else { Channel::Answer },
        headers: bit(6).then(ParamHeaders::default),
        trace: None,
    }
}

fn react(stage: &Stage, peer: &Peer, message: &[u8]) {
    let members = serde_json::from_slice::<Members<'_>>(message).ok();
    let received = match incoming::read(&stage.worker, &Bytes::copy_from_slice(message)) {
        Ok(Incoming::Request(received)) => received,
        Ok(Incoming::Response(response)) => {
            let members = members.expect("a response is an object");
            assert_eq!(members.count("result") + members.count("error"), 1);
            let id = members.get("id").map(|raw| raw.get().as_bytes());
            assert_eq!(response.id.as_deref(), id);
            return;
        }
        Err(error) => return assert_answers(&error, "null", true),
    };
    let members = members.expect("a request is an object");
    assert_eq!(members.count("method"), 1);
    // Whether null is an id is for the reader to say; where there is one, it is the message's own.
    let id = received.request.id.clone();
    if let Some(id) = &id {
        assert_eq!(members.get("id").map(|raw| raw.get().as_bytes()), Some(&**id));
    } else {
        assert_eq!(members.count("id"), 0);
    }
    let reaction = dispatch::dispatch(&stage.worker, peer, received);
    let Some(id) = id else {
        return assert!(matches!(reaction, Reaction::Noted | Reaction::Cancel(_)), "{reaction:?}");
    };
    let id = std::str::from_utf8(&id).expect("JSON is UTF-8");
    match reaction {
        Reaction::Noted | Reaction::Cancel(_) => panic!("{id} gets no answer"),
        Reaction::Answer(answer) => assert_answers(&answer, id, false),
        Reaction::Initialize(accepted) => assert_answers(&accepted.answer, id, false),
        Reaction::Error(_, error) => assert_answers(&error, id, true),
        Reaction::Listen { id: under, .. } => assert_eq!(under, id.as_bytes()),
        Reaction::Call { id: under, running } => {
            assert_eq!(under, id.as_bytes());
            complete(stage, peer.client.era, id, running);
        }
    }
}

/// Polls a call to its end: whatever comes before it, it says once what its answer is.
fn complete(stage: &Stage, era: Era, id: &str, mut running: Running) {
    let local = tokio::task::LocalSet::new();
    local.block_on(&stage.runtime, async {
        let (mut begun, mut answers) = (false, 0);
        while let Some(piece) = running.next().await {
            match piece.expect("nothing is broken off where nothing was sent") {
                Piece::Notification(_) | Piece::Request(_) | Piece::Alive => {
                    panic!("nobody is there to say it")
                }
                Piece::Begin(_) => {
                    begun = true;
                    answers += 1;
                }
                Piece::Data(_) => assert!(begun),
                Piece::Whole(member, value) => {
                    answers += 1;
                    let mut whole = render::head(id.as_bytes(), member).to_vec();
                    value.parts().for_each(|part| whole.extend_from_slice(part));
                    whole.push(b'}');
                    assert_answers(&whole, id, false);
                }
                Piece::Refused(refusal) => {
                    answers += 1;
                    let answer = refusal.mcp_response(era, id.as_bytes());
                    assert!(is_response(&answer, id), "{answer:?}");
                }
            }
        }
        assert_eq!(answers, 1);
        if let Some(rest) = running.rest() {
            assert_eq!(rest.await, Ok(()));
        }
        stage.worker.settled().await;
    });
}

fn assert_answers(response: &[u8], id: &str, error: bool) {
    assert!(is_response(response, id), "{}", String::from_utf8_lossy(response));
    let members: Members<'_> = serde_json::from_slice(response).expect("it is an object");
    assert_eq!(members.count("error") == 1, error, "{}", String::from_utf8_lossy(response));
}

fn is_response(response: &[u8], id: &str) -> bool {
    let Ok(members) = serde_json::from_slice::<Members<'_>>(response) else { return false };
    members.get("jsonrpc").map(RawValue::get) == Some(r#""2.0""#)
        && members.get("id").map(RawValue::get) == Some(id)
        && members.count("result") + members.count("error") == 1
        && serde_json::from_slice::<Value>(response).is_ok()
}

fn lines(data: &[u8]) -> Vec<Vec<u8>> {
    data.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

const METHODS: [&str; 22] = [
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "server/discover",
    "subscriptions/listen",
    "tasks/get",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "rpc.discover",
    "",
];
const IDS: [&str; 7] =
    ["1", "-9007199254740993", r#""a""#, r#""\"id\":\u0031""#, "null", "1.5", "[1]"];
const NAMES: [&str; 10] = [
    "call_tool_read",
    "call_tool_write",
    "call_tool_destructive",
    "call_tool",
    "retrieve_tools",
    "describe_tool",
    "s:t",
    "s__t",
    "mcpproxy://s/a:b",
    "2025-11-25",
];
const KEYS: [&str; 16] = [
    "name",
    "arguments",
    "args",
    "args_json",
    "intent",
    "operation_type",
    "uri",
    "cursor",
    "protocolVersion",
    "clientInfo",
    "capabilities",
    "requestId",
    "level",
    "notifications",
    "_meta",
    "query",
];

fn grow(data: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = Unstructured::new(data);
    let mut messages = Vec::new();
    while let Ok(message) = message(&mut bytes)
        && !bytes.is_empty()
        && messages.len() < MAX_MESSAGES
    {
        messages.push(message.into_bytes());
    }
    messages
}

fn message(bytes: &mut Unstructured<'_>) -> Result<String> {
    let method = bytes.choose(&METHODS)?;
    let mut made = format!(r#"{{"jsonrpc":"2.0","method":"{method}""#);
    if bytes.ratio(3, 4)? {
        made += &format!(r#","id":{}"#, bytes.choose(&IDS)?);
    }
    if bytes.ratio(7, 8)? {
        made += &format!(r#","params":{}"#, value(bytes, 4)?);
    }
    Ok(made + "}")
}

fn value(bytes: &mut Unstructured<'_>, levels: u32) -> Result<String> {
    Ok(match bytes.int_in_range(0..=if levels == 0 { 3 } else { 6 })? {
        0 => bytes.choose(&IDS)?.to_string(),
        1 => format!(r#""{}""#, bytes.choose(&NAMES)?),
        2 => format!(r#""{}""#, bytes.choose(&KEYS)?),
        3 => bytes.choose(&["null", "true", "1e999", r#""{}""#, r#""read""#])?.to_string(),
        4 => format!("[{}]", value(bytes, levels - 1)?),
        _ => {
            let mut members = Vec::new();
            for _ in 0..bytes.int_in_range(0..=4)? {
                members.push(format!(
                    r#""{}":{}"#,
                    bytes.choose(&KEYS)?,
                    value(bytes, levels - 1)?
                ));
            }
            format!("{{{}}}", members.join(","))
        }
    })
}
