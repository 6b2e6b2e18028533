//! Target `members`: whoever reads what we send, by the case of names or without it and the first
//! of two or the last, reads what we read.
//!
//! Input: a byte that says which message it is and by which revision, a byte of switches, then the
//! text: a `params`, a `result` or a message, as it is, or grown by `arbitrary` out of the bytes.
//! Grown ones are made of names that MCP has, of others, and of names that look like the former.

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use mcpproxy::json::tape::{Scratch, check_unique};
use mcpproxy::mcp::capabilities::ClientCapabilities;
use mcpproxy::mcp::message::Response;
use mcpproxy::mcp::revisions::{Era, Revision};
use mcpproxy::mcp::shapes::{self, Left, MemberRefused};
use mcpproxy::policy::ResourceRequest;
use mcpproxy::proxy::params::{self, CallParams};
use mcpproxy::proxy::passthrough::Forward;
use mcpproxy::proxy::passthrough::address::{self, AddressedRequest};
use mcpproxy::upstream::request::{Fields, Params};
use serde_json::value::RawValue;

use super::envelope::Members;

const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

const FORWARDS: [Forward; 5] = [
    Forward::Resource(ResourceRequest::Read),
    Forward::Resource(ResourceRequest::Subscribe),
    Forward::Resource(ResourceRequest::Unsubscribe),
    Forward::Prompt,
    Forward::Completion,
];

/// What servers send to clients.
const SENT_BACK: [&str; 6] = [
    "sampling/createMessage",
    "elicitation/create",
    "roots/list",
    "notifications/progress",
    "notifications/message",
    "notifications/cancelled",
];

/// The names that the upstream knows things by.
const OWN: &str = "own \"name\"";
/// The id and the token of the hop.
const ID: u64 = 7;

/// Every name that any reader may look for, wherever it stands.
const NAMES: [&str; 52] = [
    "jsonrpc",
    "id",
    "method",
    "params",
    "result",
    "error",
    "name",
    "arguments",
    "_meta",
    "task",
    "ttl",
    "inputResponses",
    "requestState",
    "uri",
    "ref",
    "type",
    "title",
    "argument",
    "value",
    "context",
    "action",
    "content",
    "role",
    "model",
    "stopReason",
    "roots",
    "messages",
    "modelPreferences",
    "systemPrompt",
    "includeContext",
    "temperature",
    "maxTokens",
    "stopSequences",
    "metadata",
    "tools",
    "toolChoice",
    "message",
    "requestedSchema",
    "mode",
    "url",
    "elicitationId",
    "progressToken",
    "progress",
    "total",
    "level",
    "logger",
    "data",
    "requestId",
    "reason",
    "code",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
];

/// The objects that are read, by the path of member names, `*` for any.
const READ: [&[&str]; 14] = [
    &[],
    &["params"],
    &["result"],
    &["error"],
    &["params", "_meta"],
    &["params", "task"],
    &["params", "ref"],
    &["params", "argument"],
    &["params", "context"],
    &["params", "inputResponses"],
    &["params", "inputResponses", "*"],
    &["params", "inputResponses", "*", "_meta"],
    &["result", "_meta"],
    &["result", "task"],
];

/// The fuzz target.
pub fn run(data: &[u8]) {
    let [which, switches, text @ ..] = data else { return };
    let version = VERSIONS[usize::from(which / 16) % VERSIONS.len()];
    let revision = Revision::of(version);
    let text = if switches & 1 == 0 { text.to_vec() } else { grow(text) };
    let era = if switches & 2 == 0 { Era::Legacy } else { Era::Modern };
    match which % 16 {
        0..=5 => called(revision, era, text),
        6..=10 => forwarded(FORWARDS[usize::from(which % 16 - 6)], revision, era, text),
        11..=13 => told(revision, switches & 4 != 0, &text),
        _ => answered(revision, SENT_BACK[usize::from(switches / 16) % 3], text),
    }
}

/// A call of a tool.
fn called(revision: Revision, era: Era, text: Vec<u8>) {
    let text = Bytes::from(text);
    if check_unique(&text, 100, &mut Scratch::new()).is_err() {
        return;
    }
    let read = match CallParams::read(&text, revision, ClientCapabilities::default()) {
        Ok(read) => read,
        Err(params::Unreadable::Refused(refused)) => return justified(&refused, &text),
        Err(_) => return,
    };
    let arguments = String::from_utf8(read.arguments.to_vec()).expect("text");
    let (name, meta, members) = (Arc::from(OWN), read.beside.meta, read.beside.members);
    let fields = Fields::Call { arguments: read.arguments, members, parameter_headers: None };
    let sent =
        Params { method: "tools/call", name: Some(name), meta: meta.clone(), trace: None, fields };
    let sent = sent.line(ID, era).concat();
    let line = agreed(&sent, "tools/call", revision);
    let params = members_of(line.get("params").expect("they are sent"));
    assert_eq!(string(&params, "name").as_deref(), Some(OWN));
    let spaced = |text: &str| text.replace(['\r', '\n'], " ");
    assert_eq!(params.get("arguments").map(RawValue::get), Some(&*spaced(&arguments)));
    hop(&params, meta.as_deref(), era);
}

/// Any other request of a client.
fn forwarded(forward: Forward, revision: Revision, era: Era, text: Vec<u8>) {
    let text = Bytes::from(text);
    if check_unique(&text, 100, &mut Scratch::new()).is_err() {
        return;
    }
    let read = match AddressedRequest::read(forward, revision, &text) {
        Ok(read) => read,
        Err(address::Unreadable::Refused(refused)) => return justified(&refused, &text),
        Err(_) => return,
    };
    let meta = read.meta(&text);
    let (method, fields) = (forward.method(), Fields::Object(read.params(OWN, &read.beside())));
    let sent = Params { method, name: None, meta: meta.clone(), trace: None, fields };
    let sent = sent.line(ID, era).concat();
    let line = agreed(&sent, method, revision);
    let params = members_of(line.get("params").expect("they are sent"));
    let word = match forward {
        Forward::Resource(_) => string(&params, "uri"),
        Forward::Prompt => string(&params, "name"),
        Forward::Completion => {
            let reference = members_of(params.get("ref").expect("it is sent"));
            let (name, uri) = (string(&reference, "name"), string(&reference, "uri"));
            assert!(name.is_none() != uri.is_none(), "of one kind alone");
            name.or(uri)
        }
    };
    assert_eq!(word.as_deref(), Some(OWN));
    hop(&params, meta.as_deref(), era);
}

/// A server's message to a client.
fn told(revision: Revision, asks: bool, text: &[u8]) {
    let Ok(whole) = serde_json::from_slice::<Members<'_>>(text) else { return };
    let id = asks.then(|| ID.to_string());
    let edits = [("progressToken", Some("8")), ("requestId", Some("9"))];
    let mut left = Left::default();
    let sent = match shapes::message(text, revision, &edits, id.as_deref(), &mut left) {
        Ok(sent) => sent,
        Err(refused) => return justified(&refused, text),
    };
    let method = string(&whole, "method").unwrap_or_default();
    let line = agreed(&sent, &method, revision);
    assert_eq!(string(&line, "method"), string(&whole, "method"));
    if asks && whole.count("id") == 1 {
        assert_eq!(line.get("id").map(RawValue::get), id.as_deref());
    }
    if method == "notifications/progress"
        && let Some(params) = line.get("params").filter(|raw| raw.get().starts_with('{'))
    {
        let params = members_of(params);
        assert!(params.get("progressToken").is_none_or(|token| token.get() == "8"));
    }
}

/// A client's answer to a server.
fn answered(revision: Revision, method: &str, text: Vec<u8>) {
    let Ok(text) = String::from_utf8(text) else { return };
    if check_unique(text.as_bytes(), 100, &mut Scratch::new()).is_err() {
        return;
    }
    for member in ["result", "error"] {
        let response =
            Response { id: None, outcome: format!("\"{member}\":{}", text.trim_ascii()).into() };
        let outcome = match params::outcome(method, revision, &response, &mut Left::default()) {
            Ok(outcome) => outcome,
            Err(refused) => {
                justified(&refused, text.as_bytes());
                continue;
            }
        };
        let sent = [b"{\"jsonrpc\":\"2.0\",\"id\":7,", &*outcome, b"}"].concat();
        let line = agreed(&sent, method, revision);
        assert!(line.get(member).is_some());
    }
}

/// Who it is from and how progress is told is what this hop says.
fn hop(params: &Members<'_>, theirs: Option<&[u8]>, era: Era) {
    let Some(meta) = params.get("_meta").map(members_of) else { return };
    let own = meta.get("io.modelcontextprotocol/protocolVersion").map(RawValue::get);
    assert_eq!(own.is_some(), era == Era::Modern);
    assert!(own.is_none_or(|version| version == "\"2026-07-28\""));
    let token = meta.get("progressToken").map(RawValue::get);
    assert!(token.is_none_or(|token| token == ID.to_string()));
    let theirs: Members<'_> =
        theirs.and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or(Members(Vec::new()));
    assert_eq!(token.is_some(), theirs.get("progressToken").is_some());
    for (name, value) in &theirs.0 {
        let hops = name == "progressToken" || name.starts_with("io.modelcontextprotocol/");
        let spaced = value.get().replace(['\r', '\n'], " ");
        assert!(hops || meta.get(name).map(RawValue::get) == Some(&*spaced), "{name}");
    }
}

/// How a reader finds a member.
#[derive(Clone, Copy, Debug)]
enum Reader {
    First,
    Last,
    FirstOfAnyCase,
    LastOfAnyCase,
}

impl Reader {
    fn find<'a>(self, members: &Members<'a>, name: &str) -> Option<&'a RawValue> {
        let exact = |it: &&(String, &'a RawValue)| it.0 == name;
        let folded = |it: &&(String, &'a RawValue)| fold(&it.0) == fold(name);
        let found = match self {
            Self::First => members.0.iter().find(exact),
            Self::Last => members.0.iter().rfind(exact),
            Self::FirstOfAnyCase => members.0.iter().find(folded),
            Self::LastOfAnyCase => members.0.iter().rfind(folded),
        };
        found.map(|(_, raw)| *raw)
    }
}

/// A name without its case, as the most generous reader sees it. Deliberately spelled otherwise
/// than the code that is tested.
fn fold(name: &str) -> String {
    let name = name.replace(['\u{130}', '\u{131}'], "i").replace('\u{212a}', "k");
    name.to_uppercase().to_lowercase().replace('\u{df}', "ss").replace('\u{3c2}', "\u{3c3}")
}

/// Asserts that all readers read the same of a message, and nothing but what there is.
fn agreed<'a>(message: &'a [u8], method: &str, revision: Revision) -> Members<'a> {
    let shown = || String::from_utf8_lossy(message).into_owned();
    let whole: Members<'_> =
        serde_json::from_slice(message).unwrap_or_else(|error| panic!("{error}: {}", shown()));
    for path in READ {
        for object in at(&whole, path) {
            // Where keys are free, nobody looks for names of another place.
            let known: &[&str] = match path.last() {
                Some(&"_meta") => shapes::META_KEYS,
                Some(&"inputResponses") => &[],
                Some(_) | None => &NAMES,
            };
            let own = object.0.iter().map(|(name, _)| name.as_str());
            for name in known.iter().copied().chain(own) {
                let [first, others @ ..] =
                    [Reader::First, Reader::Last, Reader::FirstOfAnyCase, Reader::LastOfAnyCase]
                        .map(|reader| reader.find(&object, name).map(|raw| raw.get().as_ptr()));
                assert!(others.iter().all(|it| *it == first), "{name}: {}", shown());
            }
        }
    }
    let has = |names: &[&str], object: &Members<'_>| {
        object.0.iter().all(|(name, _)| names.contains(&name.as_str()))
    };
    assert!(has(&["jsonrpc", "id", "method", "params", "result", "error"], &whole), "{}", shown());
    if let Some(raw) = whole.get("params").filter(|raw| raw.get().starts_with('{')) {
        for (name, _) in &members_of(raw).0 {
            let known = shapes::knows(method, revision, name);
            assert!(known, "{method} has no {name}: {}", shown());
        }
    }
    whole
}

/// The objects at a path.
fn at<'a>(whole: &Members<'a>, path: &[&str]) -> Vec<Members<'a>> {
    let mut found = vec![Members(whole.0.clone())];
    for step in path {
        let inside = |object: &Members<'a>| -> Vec<Members<'a>> {
            let values = object.0.iter().filter(|(name, _)| *step == "*" || name == step);
            let objects = values.filter(|(_, raw)| raw.get().starts_with('{'));
            objects.map(|(_, raw)| members_of(raw)).collect()
        };
        found = found.iter().flat_map(inside).collect();
    }
    found
}

/// A refusal has a reason: somewhere two names differ only by case, or one from a name of MCP's.
fn justified(refused: &MemberRefused, text: &[u8]) {
    let MemberRefused::Variant { .. } = refused else { return };
    let text = std::str::from_utf8(text).expect("it was read");
    assert!(is_doubtful(text), "{refused}: {text}");
}

fn is_doubtful(text: &str) -> bool {
    let Ok(object) = serde_json::from_str::<Members<'_>>(text) else { return false };
    let twin = |at: usize, name: &str| object.0.iter().take(at).any(|it| fold(&it.0) == fold(name));
    let known = shapes::META_KEYS.iter().chain(&NAMES);
    let names: Vec<(String, &str)> = known.map(|name| (fold(name), *name)).collect();
    let variant = |name: &str| names.iter().any(|(fold_, it)| *it != name && *fold_ == fold(name));
    let within = |raw: &RawValue| raw.get().starts_with('{') && is_doubtful(raw.get());
    object
        .0
        .iter()
        .enumerate()
        .any(|(at, (name, raw))| twin(at, name) || variant(name) || within(raw))
}

fn members_of(raw: &RawValue) -> Members<'_> {
    serde_json::from_str(raw.get()).unwrap_or_else(|error| panic!("{error}: {}", raw.get()))
}

fn string(members: &Members<'_>, name: &str) -> Option<String> {
    serde_json::from_str(members.get(name)?.get()).ok()
}

/// An object of names that MCP has and of such as look like them.
fn grow(bytes: &[u8]) -> Vec<u8> {
    let mut grow = Grow { from: Unstructured::new(bytes), text: String::new() };
    // Out of bytes, `arbitrary` gives zeros; what stands there is closed all the same.
    let _ = grow.object(0);
    grow.text.into_bytes()
}

struct Grow<'a> {
    from: Unstructured<'a>,
    text: String,
}

/// Objects within objects.
const MAX_NESTING: u32 = 3;
/// Members of one.
const MAX_MEMBERS: usize = 20;

impl Grow<'_> {
    fn object(&mut self, depth: u32) -> Result<()> {
        self.text.push('{');
        let count = self.from.int_in_range(0..=MAX_MEMBERS)?;
        for at in 0..count {
            if self.from.is_empty() {
                break;
            }
            if at > 0 {
                self.text.push(',');
            }
            self.name()?;
            self.text.push(':');
            self.value(depth)?;
        }
        self.text.push('}');
        Ok(())
    }

    fn name(&mut self) -> Result<()> {
        let name = *self.from.choose(&NAMES)?;
        self.text.push('"');
        let look = self.from.int_in_range(0..=9u8)?;
        for c in name.chars() {
            let other = look == 0 && bool::arbitrary(&mut self.from)?;
            let c = match c {
                's' if other => 'ſ',
                'k' if other => '\u{212a}',
                'i' if other => 'ı',
                c if other => c.to_ascii_uppercase(),
                c => c,
            };
            if look == 1 || (look == 0 && bool::arbitrary(&mut self.from)?) {
                self.text.push_str(&format!("\\u{:04X}", u32::from(c)));
            } else {
                self.text.push(c);
            }
        }
        if look == 2 {
            self.text.push('x');
        }
        self.text.push('"');
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<()> {
        const SCALARS: [&str; 12] = [
            "1",
            "\"ref/prompt\"",
            "\"ref/resource\"",
            "\"roots/list\"",
            "\"elicitation/create\"",
            "\"sampling/createMessage\"",
            "\"notifications/progress\"",
            "\"notifications/message\"",
            "\"s__\\u0070\"",
            "null",
            "[{\"Name\":1}]",
            "\"2.0\"",
        ];
        if depth < MAX_NESTING && self.from.ratio(2u8, 5u8)? {
            return self.object(depth + 1);
        }
        let scalar = *self.from.choose(&SCALARS)?;
        self.text.push_str(scalar);
        Ok(())
    }
}
