//! Requests as bytes: the proxy's JSON-RPC envelope around the client's parameters, and request ids.
//!
//! Owns `_meta` on this hop. Large arguments are sent as the received slice, unparsed.
//!
//! A response is matched only by its id, so a server that could predict ids could answer another client's call. Ids are
//! the values of a counter behind a permutation with a random key: they are unpredictable, and distinct without a table
//! of the ids in flight.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use crate::pending;
use crate::pending::FIRST_ID;
use mcpproxy_json::members::{Member, member, members};
use mcpproxy_policy::tool::ParameterHeaders;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::headers;
use mcpproxy_protocol::mcp::meta::{
    CAPABILITIES_KEY, CLIENT_KEY, EVERYTHING, LOG_LEVEL_KEY, NO_CAPABILITIES, OURS, PROGRESS_KEY,
    VERSION_KEY, log_level, push_bridged,
};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::mcp::trace_context::{self, PropagatedContext};
use mcpproxy_protocol::wire::lines::one_line;

/// Maximum size of arguments that are copied into one buffer with the envelope: one write is cheaper than three slices.
const COPY_BYTES: usize = 4096;

/// Request without its id.
#[derive(Debug)]
pub struct Params {
    pub method: Cow<'static, str>,
    /// Name of the tool; for other methods the value of `Mcp-Name`.
    pub name: Option<Arc<str>>,
    /// The client's `_meta`.
    pub meta: Option<Bytes>,
    /// Trace context, which replaces the one in `meta`.
    pub trace: Option<Arc<PropagatedContext>>,
    /// Minimum level of log messages for the client, replacing the one in `meta`; for modern servers only.
    pub log_level: Option<&'static str>,
    /// Capabilities of a legacy client, declared to modern servers; if there are none, those in `meta` are declared.
    pub client_capabilities: ClientCapabilities,
    /// Whether the tasks extension is declared to modern servers in addition to the capabilities in `meta`.
    pub tasks: bool,
    /// Other members of `params`.
    pub fields: Fields,
}

/// Serialized message: a buffer, followed by slices that are not copied.
pub(super) type Slices = (Vec<u8>, [Bytes; 2]);

#[derive(Debug)]
pub enum Fields {
    /// A tool call: raw arguments, raw further members, and the arguments to repeat in headers.
    Call { arguments: Bytes, members: Bytes, parameter_headers: Option<Arc<ParameterHeaders>> },
    /// A raw object, without `_meta`.
    Object(Bytes),
}

impl Params {
    /// A request on the proxy's own behalf.
    pub(super) fn of(method: &'static str, params: Bytes) -> Self {
        let meta = Some(Bytes::from_static(EVERYTHING));
        let fields = Fields::Object(params);
        let client_capabilities = ClientCapabilities::default();
        let method = Cow::Borrowed(method);
        Self {
            method,
            name: None,
            meta,
            trace: None,
            log_level: None,
            client_capabilities,
            tasks: true,
            fields,
        }
    }
}

impl Params {
    /// Whether the server may send messages to this request's client: the client has capabilities, or the `_meta` asks
    /// for progress.
    pub(super) fn may_receive_messages(&self, client_capabilities: ClientCapabilities) -> bool {
        let meta = self.meta.as_deref().and_then(|meta| std::str::from_utf8(meta).ok());
        client_capabilities != ClientCapabilities::default()
            || meta.is_some_and(|meta| member(meta, PROGRESS_KEY).is_some())
    }

    pub(super) fn body(&self, id: u64, family: ProtocolFamily) -> Slices {
        self.slices(id, family, |bytes| bytes, "")
    }

    /// Header lines of the trace; for a modern server, also the lines that repeat parts of the message (MCP 2026-07-28
    /// §Standard Request Headers, §Custom Headers from Tool Parameters). Each has its line break.
    pub(super) fn lines(&self, family: ProtocolFamily) -> Vec<u8> {
        let mut lines = Vec::new();
        if let Some(PropagatedContext { context, state, baggage }) = self.trace.as_deref() {
            let _ = write!(lines, "{}: ", trace_context::PARENT);
            context.write(&mut lines);
            lines.extend_from_slice(b"\r\n");
            if let Some(state) = state {
                let _ = write!(lines, "{}: {state}\r\n", trace_context::STATE);
            }
            if let Some(baggage) = baggage {
                let _ = write!(lines, "{}: {baggage}\r\n", trace_context::BAGGAGE);
            }
        }
        if family == ProtocolFamily::Modern {
            // Writing into a Vec cannot fail.
            let _ = write!(lines, "{}: {}\r\n", headers::METHOD, self.method);
            if let Some(name) = &self.name {
                let _ = write!(lines, "{}: {}\r\n", headers::NAME, headers::encode(name));
            }
            if let Fields::Call { arguments, parameter_headers: Some(parameter_headers), .. } =
                &self.fields
            {
                let arguments = std::str::from_utf8(arguments).unwrap_or_default();
                for (header, value) in parameter_headers.of(arguments) {
                    let Some(value) = value else { continue };
                    let _ = write!(lines, "{header}: {}\r\n", headers::encode(&value.text));
                }
            }
        }
        lines
    }

    /// The message as a line.
    pub fn line(&self, id: u64, family: ProtocolFamily) -> [Bytes; 3] {
        let (first, [second, third]) = self.slices(id, family, one_line, "\n");
        [first.into(), second, third]
    }

    fn slices(
        &self,
        id: u64,
        family: ProtocolFamily,
        fit: fn(Bytes) -> Bytes,
        end: &str,
    ) -> Slices {
        let (large, extra) = match &self.fields {
            Fields::Call { arguments, members, .. } => {
                (fit(arguments.clone()), fit(members.clone()))
            }
            Fields::Object(params) => (fit(after_brace(params)), Bytes::new()),
        };
        let meta = self.meta.clone().map(fit);
        let small = large.len() <= COPY_BYTES;
        let variable =
            meta.as_ref().map_or(0, Bytes::len) + self.name.as_deref().map_or(0, str::len);
        let copied = if small { large.len() + extra.len() } else { 0 };
        let mut head = Vec::with_capacity(384 + variable + copied);
        let mut id_text = itoa::Buffer::new();
        let id_text = id_text.format(id);
        let envelope = [r#"{"jsonrpc":"2.0","id":"#, id_text, r#","method":""#, &*self.method];
        for part in envelope.into_iter().chain([r#"","params":{"#]) {
            head.extend_from_slice(part.as_bytes());
        }
        let before = head.len();
        let level = self.log_level.filter(|_| family == ProtocolFamily::Modern);
        let declared = Some(self.client_capabilities).filter(|declared| {
            family == ProtocolFamily::Modern && *declared != ClientCapabilities::default()
        });
        let (trace, tasks) = (self.trace.as_deref(), self.tasks);
        let hop = HopMembers { id, family, trace, level, declared, tasks };
        push_meta(&mut head, meta.as_deref(), &hop);
        match &self.fields {
            Fields::Call { .. } => {
                if head.len() > before {
                    head.push(b',');
                }
                head.extend_from_slice(br#""name":"#);
                push_string(&mut head, self.name.as_deref().unwrap_or_default());
                head.extend_from_slice(br#","arguments":"#);
            }
            // The closing brace is part of the slice.
            Fields::Object(_) if head.len() > before && !large.trim_ascii().starts_with(b"}") => {
                head.push(b',');
            }
            Fields::Object(_) => {}
        }
        let push_rest = |out: &mut Vec<u8>| {
            if !extra.is_empty() {
                out.push(b',');
                out.extend_from_slice(&extra);
            }
            let braces: &[u8] = match &self.fields {
                Fields::Call { .. } => b"}}",
                Fields::Object(_) => b"}",
            };
            out.extend_from_slice(braces);
            out.extend_from_slice(end.as_bytes());
        };
        if small {
            head.extend_from_slice(&large);
            push_rest(&mut head);
            return (head, Default::default());
        }
        let mut tail = Vec::new();
        push_rest(&mut tail);
        (head, [large, tail.into()])
    }
}

/// Rest of a raw object after its opening brace; an empty object for any other text.
fn after_brace(object: &Bytes) -> Bytes {
    match object.iter().position(|byte| !byte.is_ascii_whitespace()) {
        Some(at) if object.get(at) == Some(&b'{') => object.slice(at + 1..),
        Some(_) | None => Bytes::from_static(b"}"),
    }
}

/// Members that the proxy adds to the `_meta` of one request.
struct HopMembers<'a> {
    id: u64,
    family: ProtocolFamily,
    trace: Option<&'a PropagatedContext>,
    /// `None` for legacy servers.
    level: Option<&'static str>,
    /// `None` for legacy servers, or if the client's own `_meta` declares them.
    declared: Option<ClientCapabilities>,
    /// Whether the tasks extension is declared in addition to the capabilities in the client's own `_meta`.
    tasks: bool,
}

/// Writes the member `_meta`, unless it would be empty.
///
/// The client's keys are forwarded verbatim, except those of one hop: the proxy's id replaces the progress token, and
/// client info and revision are the proxy's. The client's log level, and those of its capabilities that the proxy
/// bridges, are forwarded only to modern servers, because requests of these servers are forwarded to the client
/// verbatim.
fn push_meta(out: &mut Vec<u8>, client: Option<&[u8]>, hop: &HopMembers<'_>) {
    let &HopMembers { id, family, trace, level, declared, tasks } = hop;
    let client = client.or((level.is_some() || declared.is_some()).then_some(&b"{}"[..]));
    let Some(client) = client else {
        match (family, trace) {
            (ProtocolFamily::Legacy, None) => {}
            (ProtocolFamily::Modern, None) => {
                let _ = write!(out, r#""_meta":{{{OURS}{NO_CAPABILITIES}}}"#);
            }
            (ProtocolFamily::Legacy, Some(trace)) => {
                out.extend_from_slice(br#""_meta":{"#);
                push_trace(out, trace);
                out.push(b'}');
            }
            (ProtocolFamily::Modern, Some(trace)) => {
                let _ = write!(out, r#""_meta":{{{OURS}{NO_CAPABILITIES},"#);
                push_trace(out, trace);
                out.push(b'}');
            }
        }
        return;
    };
    // Anything except an object is ignored.
    let members: Vec<Member<'_>> = std::str::from_utf8(client)
        .ok()
        .and_then(|text| members(text).ok()?.collect::<Result<_, _>>().ok())
        .unwrap_or_default();
    let before = out.len();
    out.extend_from_slice(br#""_meta":{"#);
    let start = out.len();
    if family == ProtocolFamily::Modern {
        out.extend_from_slice(OURS.as_bytes());
        if let Some(declared) = declared {
            let _ = write!(out, r#","{CAPABILITIES_KEY}":"#);
            declared.push(out);
        } else if !members.iter().any(|(key, _)| key == CAPABILITIES_KEY) {
            out.extend_from_slice(NO_CAPABILITIES.as_bytes());
        }
        if let Some(level) = level {
            let _ = write!(out, r#","{LOG_LEVEL_KEY}":"{level}""#);
        }
    }
    for (key, value) in members {
        let value = match &*key {
            VERSION_KEY | CLIENT_KEY => continue,
            CAPABILITIES_KEY | LOG_LEVEL_KEY if family == ProtocolFamily::Legacy => continue,
            LOG_LEVEL_KEY if level.is_some() || log_level(value).is_none() => continue,
            CAPABILITIES_KEY if declared.is_some() => continue,
            trace_context::PARENT | trace_context::STATE | trace_context::BAGGAGE
                if trace.is_some() =>
            {
                continue;
            }
            PROGRESS_KEY => &id.to_string(),
            _ => value,
        };
        if out.len() > start {
            out.push(b',');
        }
        push_string(out, &key);
        out.push(b':');
        match &*key {
            CAPABILITIES_KEY => push_bridged(out, value, tasks),
            _ => out.extend_from_slice(value.as_bytes()),
        }
    }
    if let Some(trace) = trace {
        if out.len() > start {
            out.push(b',');
        }
        push_trace(out, trace);
    }
    if out.len() == start {
        out.truncate(before);
    } else {
        out.push(b'}');
    }
}

/// Writes the members of the trace context (SEP-414).
fn push_trace(out: &mut Vec<u8>, trace: &PropagatedContext) {
    let _ = write!(out, "\"{}\":\"", trace_context::PARENT);
    trace.context.write(out);
    out.push(b'"');
    let extra = [(trace_context::STATE, &trace.state), (trace_context::BAGGAGE, &trace.baggage)];
    for (key, value) in extra {
        let Some(value) = value else { continue };
        let _ = write!(out, ",\"{key}\":");
        push_string(out, value);
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                out.push(b'\\');
                out.push(char as u8);
            }
            char if char < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

/// Notification that cancels a request.
pub(super) fn cancellation(id: u64) -> Vec<u8> {
    debug_assert!(pending::is_ours(id));
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the answer is no longer awaited"}}}}"#
    )
    .into_bytes()
}

/// Fresh id from [`FIRST_ID`] to [`LAST_ID`](pending::LAST_ID).
pub(super) fn fresh_id() -> u64 {
    static IDS: LazyLock<Ids> = LazyLock::new(Ids::default);
    IDS.next()
}

/// Number of permuted bits of an id. The bit above them alternates with each pass of the counter, so that ids of two
/// consecutive passes differ too.
const PERMUTED_BITS: u32 = 29;
/// Number of bits in the lower half of a permuted number; the upper half has the others.
const LOW_BITS: u32 = 14;
/// Number of rounds. More than the four that make a permutation strong (Luby and Rackoff), because the halves are
/// small.
const ROUNDS: u64 = 6;

/// Id generator with one key: a counter behind a keyed permutation, which is an alternating Feistel network with
/// SipHash as its round function.
#[derive(Default)]
struct Ids {
    key: RandomState,
    count: AtomicU64,
}

impl Ids {
    fn next(&self) -> u64 {
        self.nth(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// Id with this number; distinct for any two numbers less than 2^29 apart.
    fn nth(&self, number: u64) -> u64 {
        const LOW: u64 = (1 << LOW_BITS) - 1;
        const HIGH: u64 = (1 << (PERMUTED_BITS - LOW_BITS)) - 1;
        let pass = number >> PERMUTED_BITS;
        let (mut high, mut low) = (number >> LOW_BITS & HIGH, number & LOW);
        for round in 0..ROUNDS {
            // Each pass of the counter has its own rounds. Pass, round and half share one word, because one word is
            // hashed faster than two.
            let of = |half: u64| self.key.hash_one((pass * ROUNDS + round) << PERMUTED_BITS | half);
            match round % 2 {
                0 => high ^= of(low) & HIGH,
                _ => low ^= of(high) & LOW,
            }
        }
        FIRST_ID | (pass & 1) << PERMUTED_BITS | high << LOW_BITS | low
    }
}

/// Identity of a client's session: one client on behalf of one principal. Calls with the same key may receive each
/// other's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSession(u64);

impl CallSession {
    /// A key that is unique in this process.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Additional data of a request.
#[derive(Clone, Debug, Default)]
pub struct CallExtras {
    /// The client's `_meta`. Its `progressToken` is replaced by the id of the request
    /// ([`Answer::id`](super::Answer::id)). Keys of a modern client's own hop are replaced by the proxy's, except its
    /// log level and the capabilities that the proxy bridges, which are sent to modern servers.
    pub meta: Option<Bytes>,
    /// Additional raw members of a tool's `params`, joined by commas: `inputResponses`, `requestState`.
    pub members: Bytes,
    /// Requests that may be sent to a legacy client during the call, and its extensions; none for any other caller.
    pub client_capabilities: ClientCapabilities,
    /// Requests of a legacy server that a modern client answers by repeating its request, while the call is held. Empty
    /// for any other caller; no effect on a modern connection.
    pub held_capabilities: ClientCapabilities,
    /// Session of the client; `None` if no other call is known to belong to the same client (REST, CLI, stateless
    /// revision).
    pub session: Option<CallSession>,
    /// Trace context for `_meta` and headers, which replaces the client's; `None` to forward the client's.
    pub trace: Option<Arc<PropagatedContext>>,
    /// Minimum level of log messages set by a legacy client, for modern servers.
    pub log_level: Option<&'static str>,
    /// Whether extension messages are forwarded to the client.
    pub extensions: bool,
    /// Whether the modern client and its server both declare the tasks extension.
    pub tasks: bool,
    /// Raw `task` of a call, with which a legacy client requests a task instead of a result.
    pub task: Option<Bytes>,
    /// Whether the answer should include a [`RepeatableCall`], if a modern server gives it.
    pub repeatable: bool,
}

/// Call that was sent over a modern connection, kept so that it can be repeated with the input that its result
/// requests.
#[derive(Debug)]
pub struct RepeatableCall {
    /// Same as the `body` of a [`PermittedCall`](super::PermittedCall).
    pub body: Bytes,
    /// The call's extras, with empty [`members`](CallExtras::members).
    pub extras: CallExtras,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::pending::LAST_ID;
    use mcpproxy_protocol::mcp::revisions::MODERN;

    fn text(slices: &[Bytes; 3]) -> String {
        String::from_utf8(slices.concat()).unwrap()
    }

    fn call(name: &str, arguments: impl Into<Bytes>) -> Params {
        let (arguments, members) = (arguments.into(), Bytes::new());
        let fields = Fields::Call { arguments, members, parameter_headers: None };
        Params {
            name: Some(name.into()),
            fields,
            meta: None,
            tasks: false,
            ..Params::of("tools/call", "".into())
        }
    }

    /// The request as it is sent to a server of either protocol family.
    fn both(params: &Params) -> [Value; 2] {
        [ProtocolFamily::Legacy, ProtocolFamily::Modern].map(|family| {
            let line = text(&params.line(7, family));
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            serde_json::from_str(&line).unwrap()
        })
    }

    #[test]
    fn arguments_are_sent_byte_for_byte() {
        let params = call("a\"b\n", "{ \"n\":\n1.0e5 }");
        let (first, [second, third]) = params.body(7, ProtocolFamily::Legacy);
        assert_eq!(
            text(&[first.into(), second, third]),
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":\
             {\"name\":\"a\\\"b\\u000a\",\"arguments\":{ \"n\":\n1.0e5 }}}"
        );
        let line = text(&params.line(7, ProtocolFamily::Legacy));
        assert!(line.ends_with("{ \"n\": 1.0e5 }}}\n"), "{line}");
    }

    #[test]
    fn large_arguments_are_not_copied() {
        let arguments = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(COPY_BYTES)));
        let mut params = call("t", arguments.clone());
        params.meta = Some(Bytes::from_static(b"{\"k\":1}"));
        let slices = params.line(1, ProtocolFamily::Modern);
        assert_eq!(slices[1].as_ptr(), arguments.as_ptr());
        let value: Value = serde_json::from_slice(&slices.concat()).unwrap();
        assert_eq!(value["params"]["_meta"]["k"], 1);
        let object = Params::of("x", arguments.clone());
        assert_eq!(object.line(1, ProtocolFamily::Legacy)[1].as_ptr(), arguments[1..].as_ptr());
    }

    #[test]
    fn other_methods_send_their_params_verbatim() {
        let params = Params::of("tools/list", Bytes::from_static(b"{\"cursor\":\"x\"}"));
        assert_eq!(
            text(&params.line(3, ProtocolFamily::Legacy)),
            "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}\n"
        );
        for none in ["{}", " { \n}", "", "null"] {
            let [legacy, modern] = both(&Params::of("m", Bytes::from(none)));
            assert_eq!(legacy["params"], json!({}), "{none:?}");
            assert_eq!(modern["params"].as_object().unwrap().len(), 1, "{none:?}");
        }
    }

    #[test]
    fn modern_server_gets_client_info_with_every_request() {
        let all = json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {},
            "extensions": {
                "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]},
                "io.modelcontextprotocol/skills": {},
                "io.modelcontextprotocol/tasks": {}}});
        let own = Params::of("m", Bytes::from_static(b"{\"a\":1}"));
        for (params, capabilities) in [(call("t", "{}"), json!({})), (own, all)] {
            let [legacy, modern] = both(&params);
            assert_eq!(legacy["params"].get("_meta"), None);
            assert_eq!(
                modern["params"]["_meta"],
                json!({
                    VERSION_KEY: MODERN,
                    CLIENT_KEY: {"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")},
                    CAPABILITIES_KEY: capabilities,
                })
            );
        }
    }

    #[test]
    fn client_meta_is_forwarded_except_hop_specific_keys() {
        let mut params = call("t", "{}");
        let meta = json!({
            "progressToken": "theirs", "traceparent": "00-1", "a\"b": [1, {"progressToken": 2}],
            VERSION_KEY: "2099-01-01", CLIENT_KEY: {"name": "theirs"},
            CAPABILITIES_KEY: {"elicitation": {}, "tasks": {}, "extensions": {"x": {}}},
            LOG_LEVEL_KEY: "debug",
            "io.modelcontextprotocol/related-task": {"taskId": "x"},
        });
        let pretty = serde_json::to_string_pretty(&meta).unwrap();
        params.meta = Some(Bytes::from(pretty));
        let [legacy, modern] = both(&params);
        let rest = json!({
            "progressToken": 7, "traceparent": "00-1", "a\"b": [1, {"progressToken": 2}],
            "io.modelcontextprotocol/related-task": {"taskId": "x"},
        });
        assert_eq!(legacy["params"]["_meta"], rest);
        let mut expected = rest;
        expected[VERSION_KEY] = MODERN.into();
        expected[CLIENT_KEY] = json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")});
        expected[CAPABILITIES_KEY] = json!({"elicitation": {}});
        expected[LOG_LEVEL_KEY] = "debug".into();
        assert_eq!(modern["params"]["_meta"], expected);
    }

    #[test]
    fn apr_1_unknown_log_level_is_not_forwarded() {
        for level in [r#""data that nobody sees""#, "7", r#"{"debug":1}"#] {
            let mut params = call("t", "{}");
            params.meta = Some(Bytes::from(format!(r#"{{"{LOG_LEVEL_KEY}":{level},"k":1}}"#)));
            for message in both(&params) {
                let meta = &message["params"]["_meta"];
                assert_eq!((meta.get(LOG_LEVEL_KEY), &meta["k"]), (None, &json!(1)), "{level}");
            }
        }
    }

    #[test]
    fn pro_34_level_of_a_legacy_client_is_stated_only_to_modern_servers() {
        for meta in
            [None, Some("{}"), Some(r#"{"k":1,"io.modelcontextprotocol/logLevel":"debug"}"#)]
        {
            let mut params = call("t", "{}");
            params.meta = meta.map(Bytes::from);
            params.log_level = Some("warning");
            let line = text(&params.line(7, ProtocolFamily::Modern));
            assert_eq!(line.matches(LOG_LEVEL_KEY).count(), 1, "{line}");
            let [legacy, modern] = both(&params);
            assert_eq!(modern["params"]["_meta"][LOG_LEVEL_KEY], "warning");
            assert_eq!(modern["params"]["_meta"][VERSION_KEY], MODERN);
            assert!(modern["params"]["_meta"][CAPABILITIES_KEY].is_object());
            assert!(!legacy.to_string().contains(LOG_LEVEL_KEY), "{legacy}");
        }
    }

    #[test]
    fn pro_37_capabilities_of_a_legacy_client_are_declared_only_to_modern_servers() {
        let forged = r#"{"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"k":1}"#;
        for meta in [None, Some("{}"), Some(forged)] {
            let mut params = call("t", "{}");
            params.meta = meta.map(Bytes::from);
            params.client_capabilities.elicitation_forms = true;
            let line = text(&params.line(7, ProtocolFamily::Modern));
            assert_eq!(line.matches(CAPABILITIES_KEY).count(), 1, "{line}");
            let [legacy, modern] = both(&params);
            let declared = &modern["params"]["_meta"][CAPABILITIES_KEY];
            assert_eq!(*declared, json!({"elicitation": {"form": {}}}), "{meta:?}");
            assert_eq!(modern["params"]["_meta"][VERSION_KEY], MODERN);
            assert!(!legacy.to_string().contains(CAPABILITIES_KEY), "{legacy}");
        }
    }

    #[test]
    fn sep_414_trace_replaces_that_of_the_client_in_meta_and_headers() {
        use mcpproxy_protocol::mcp::trace_context::TraceContext;
        let context = TraceContext { trace_id: 0xa, span_id: 0xb, sampled: true };
        let parent = "00-0000000000000000000000000000000a-000000000000000b-01";
        for state in [None, Some("k=\"v\\")] {
            for meta in [
                None,
                Some(r#"{"traceparent":"theirs","tracestate":"theirs","baggage":"theirs","k":1}"#),
                Some("{}"),
            ] {
                let mut params = call("t", "{}");
                params.meta = meta.map(Bytes::from);
                let state: Option<Box<str>> = state.map(Box::from);
                let baggage = state.clone();
                params.trace =
                    Some(Arc::new(PropagatedContext { context, state: state.clone(), baggage }));
                for (message, family) in
                    both(&params).iter().zip([ProtocolFamily::Legacy, ProtocolFamily::Modern])
                {
                    let value = &message["params"]["_meta"];
                    assert_eq!(value["traceparent"], parent, "{message}");
                    assert_eq!(value.get("tracestate").and_then(Value::as_str), state.as_deref());
                    assert_eq!(value.get("baggage"), value.get("tracestate"));
                    assert_eq!(value.get("k").is_some(), meta.is_some_and(|meta| meta.len() > 2));
                    let lines = String::from_utf8(params.lines(family)).unwrap();
                    assert!(lines.contains(&format!("traceparent: {parent}\r\n")), "{lines}");
                    let baggage = lines.contains("\r\nbaggage: k=\"v\\\r\n");
                    assert_eq!(baggage, state.is_some(), "{lines}");
                    assert_eq!(
                        lines.contains("tracestate: k=\"v\\\r\n"),
                        state.is_some(),
                        "{lines}"
                    );
                }
            }
        }
    }

    #[test]
    fn only_a_progress_token_or_a_capability_lets_the_server_send_messages() {
        let nothing = ClientCapabilities::default();
        let roots = ClientCapabilities { roots: true, ..nothing };
        for (meta, may) in [
            (None, false),
            (Some("{}"), false),
            (Some(r#"{"traceparent":"progressToken","a":{"progressToken":1}}"#), false),
            (Some(r#"{"a":1,"progressToken":"x"}"#), true),
            (Some(r#"{"progress\u0054oken":7}"#), true),
        ] {
            let params = Params { meta: meta.map(Bytes::from), ..call("t", "{}") };
            assert_eq!(params.may_receive_messages(nothing), may, "{meta:?}");
            assert!(params.may_receive_messages(roots), "{meta:?}");
        }
    }

    #[test]
    fn meta_that_is_not_an_object_is_ignored() {
        for meta in ["7", "null", "[]", "{", ""] {
            let mut params = call("t", "{}");
            params.meta = Some(Bytes::from(meta));
            let [legacy, modern] = both(&params);
            assert_eq!(legacy["params"].get("_meta"), None, "{meta}");
            assert_eq!(modern["params"]["_meta"][VERSION_KEY], MODERN, "{meta}");
        }
    }

    #[test]
    fn modern_request_headers_repeat_the_message() {
        let lines = |params: &Params, family| String::from_utf8(params.lines(family)).unwrap();
        assert_eq!(lines(&call("t", "{}"), ProtocolFamily::Legacy), "");
        assert_eq!(
            lines(&call("get weather", "{}"), ProtocolFamily::Modern),
            "mcp-method: tools/call\r\nmcp-name: get weather\r\n"
        );
        assert_eq!(
            lines(&call("a\r\nb: c", "{}"), ProtocolFamily::Modern),
            "mcp-method: tools/call\r\nmcp-name: =?base64?YQ0KYjogYw==?=\r\n"
        );
        assert_eq!(
            lines(&Params::of("tools/list", Bytes::new()), ProtocolFamily::Modern),
            "mcp-method: tools/list\r\n"
        );
    }

    #[test]
    fn mcp_2026_headers_repeat_the_marked_parameters() {
        let schema = r#"{"properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "n":{"type":"integer","x-mcp-header":"N"},
            "ok":{"type":"boolean","x-mcp-header":"Ok"}}}"#;
        let schema = serde_json::value::RawValue::from_string(schema.into()).unwrap();
        let marked = ParameterHeaders::read(&schema).unwrap().map(Arc::new);
        for (arguments, expected) in [
            (
                r#"{"region":"us west","n":42,"ok":false}"#,
                "mcp-param-n: 42\r\nmcp-param-ok: false\r\nmcp-param-region: us west\r\n",
            ),
            (r#"{"region":"a\r\nx: y","n":null}"#, "mcp-param-region: =?base64?YQ0KeDogeQ==?=\r\n"),
            (r#"{"region":" \u00e9"}"#, "mcp-param-region: =?base64?IMOp?=\r\n"),
            ("{}", ""),
        ] {
            let mut params = call("t", arguments);
            let Fields::Call { parameter_headers, .. } = &mut params.fields else { panic!() };
            *parameter_headers = marked.clone();
            let lines = |family| String::from_utf8(params.lines(family)).unwrap();
            let sorted = lines(ProtocolFamily::Modern);
            let mut sorted: Vec<_> = sorted.split_inclusive('\n').collect();
            sorted.sort_unstable();
            let plain = "mcp-method: tools/call\r\nmcp-name: t\r\n";
            assert_eq!(sorted.concat(), format!("{plain}{expected}"), "{arguments}");
            assert_eq!(lines(ProtocolFamily::Legacy), "");
        }
    }

    #[test]
    fn further_members_follow_the_arguments() {
        for size in [1, COPY_BYTES] {
            let arguments = format!("{{\"x\":\"{}\"}}", "y".repeat(size));
            let mut params = call("t", arguments);
            let Fields::Call { members, .. } = &mut params.fields else { panic!() };
            *members = Bytes::from_static(b"\"requestState\":\"s\",\n\"inputResponses\":{}");
            for message in both(&params) {
                assert_eq!(message["params"]["requestState"], "s");
                assert_eq!(message["params"]["inputResponses"], json!({}));
                assert_eq!(message["params"]["name"], "t");
            }
        }
    }

    #[test]
    fn pro_22_ids_fit_in_31_bits_and_are_distinct_and_unpredictable() {
        let ids: Vec<u64> = (0..10_000).map(|_| fresh_id()).collect();
        assert!(ids.iter().all(|id| (FIRST_ID..=LAST_ID).contains(id)));
        assert!(i32::try_from(LAST_ID).is_ok() && FIRST_ID.to_string().len() == 10);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        let ids = Ids::default();
        let steps: HashSet<i64> =
            (0..1000).map(|n| ids.nth(n + 1).cast_signed() - ids.nth(n).cast_signed()).collect();
        assert!(steps.len() > 990, "{}", steps.len());
        assert_ne!(Ids::default().nth(0), Ids::default().nth(0), "each key gives other ids");
    }

    #[test]
    fn pro_22_ids_in_flight_differ_across_threads_and_when_the_sequence_restarts() {
        let ids = Ids::default();
        let end = 1 << PERMUTED_BITS;
        let around: HashSet<u64> = (end - 5000..end + 5000).map(|n| ids.nth(n)).collect();
        assert_eq!(around.len(), 10_000);
        assert_ne!(ids.nth(0) & (end - 1), ids.nth(2 * end) & (end - 1), "another permutation");
        let other = std::thread::spawn(|| [fresh_id(), fresh_id()]).join().unwrap();
        let ours = [fresh_id(), fresh_id()];
        assert_eq!(other.iter().chain(&ours).collect::<HashSet<_>>().len(), 4);
    }
}
