//! A request as bytes: our envelope around the agent's own parameters.
//!
//! Owns what stands in `_meta` on this hop. Large arguments go out as the slice they came in;
//! nothing of them is read. Pure.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;

use super::pending;
use crate::json::members::{Member, members};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers;
use crate::mcp::meta::{
    CAPABILITIES_KEY, CLIENT_KEY, EVERYTHING, LOG_LEVEL_KEY, NO_CAPABILITIES, OURS, PROGRESS_KEY,
    VERSION_KEY,
};
use crate::mcp::revisions::Era;
use crate::mcp::trace_context::{self, PropagatedContext};
use crate::tool::parameter_headers::ParameterHeaders;
use crate::wire::lines::one_line;

/// Arguments up to this size are copied into one buffer with the envelope: one write of one slice
/// costs less than three slices do.
const COPY_BYTES: usize = 4096;

/// A request, but for its id.
#[derive(Debug)]
pub struct Params {
    /// The method.
    pub method: &'static str,
    /// The tool's name, for a call; for others what `Mcp-Name` repeats.
    pub name: Option<Arc<str>>,
    /// The client's own `_meta`.
    pub meta: Option<Bytes>,
    /// The trace that it is part of, in the place of what `meta` says of one.
    pub trace: Option<Arc<PropagatedContext>>,
    /// The other members of `params`.
    pub fields: Fields,
}

/// A message in order: what was written for it, and slices that are not copied.
pub(super) type Slices = (Vec<u8>, [Bytes; 2]);

/// What `params` holds beside `_meta`.
#[derive(Debug)]
pub enum Fields {
    /// The tool's name, raw arguments, raw members beside them, and which of the arguments headers
    /// repeat.
    #[expect(missing_docs, reason = "said above")]
    Call { arguments: Bytes, members: Bytes, parameter_headers: Option<Arc<ParameterHeaders>> },
    /// A raw object without `_meta`.
    Object(Bytes),
}

impl Params {
    /// A request of our own.
    pub(super) fn of(method: &'static str, params: Bytes) -> Self {
        let meta = Some(Bytes::from_static(EVERYTHING));
        Self { method, name: None, meta, trace: None, fields: Fields::Object(params) }
    }
}

impl Params {
    /// Whether the server may have something to say to this request's client: it asks for
    /// progress, or can be asked.
    pub(super) fn may_be_told(&self, client_capabilities: ClientCapabilities) -> bool {
        client_capabilities != ClientCapabilities::default() || self.meta.is_some()
    }

    /// The message as a request's body.
    pub(super) fn body(&self, id: u64, era: Era) -> Slices {
        self.slices(id, era, |bytes| bytes, "")
    }

    /// The header lines that name its trace, and those that repeat parts of the message to a modern server (MCP
    /// 2026-07-28 §Standard Request Headers, §Custom Headers from Tool Parameters), each with its line end.
    pub(super) fn lines(&self, era: Era) -> Vec<u8> {
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
        if era == Era::Modern {
            // Writing into a Vec cannot fail.
            let _ = write!(lines, "{}: {}\r\n", headers::METHOD, self.method);
            if let Some(name) = &self.name {
                let _ = write!(lines, "{}: {}\r\n", headers::NAME, headers::encode(name));
            }
            if let Fields::Call { arguments, parameter_headers: Some(parameter_headers), .. } =
                &self.fields
            {
                let arguments = std::str::from_utf8(arguments).unwrap_or_default();
                for (header, said) in parameter_headers.of(arguments) {
                    let Some(said) = said else { continue };
                    let _ = write!(lines, "{header}: {}\r\n", headers::encode(&said.text));
                }
            }
        }
        lines
    }

    /// The message as a line.
    #[must_use]
    pub fn line(&self, id: u64, era: Era) -> [Bytes; 3] {
        let (first, [second, third]) = self.slices(id, era, one_line, "\n");
        [first.into(), second, third]
    }

    fn slices(&self, id: u64, era: Era, fit: fn(Bytes) -> Bytes, end: &str) -> Slices {
        let (large, beside) = match &self.fields {
            Fields::Call { arguments, members, .. } => {
                (fit(arguments.clone()), fit(members.clone()))
            }
            Fields::Object(params) => (fit(after_brace(params)), Bytes::new()),
        };
        let meta = self.meta.clone().map(fit);
        let small = large.len() <= COPY_BYTES;
        let room = meta.as_ref().map_or(0, Bytes::len) + self.name.as_deref().map_or(0, str::len);
        let copied = if small { large.len() + beside.len() } else { 0 };
        let mut head = Vec::with_capacity(384 + room + copied);
        let mut id_text = itoa::Buffer::new();
        let id_text = id_text.format(id);
        let envelope = [r#"{"jsonrpc":"2.0","id":"#, id_text, r#","method":""#, self.method];
        for part in envelope.into_iter().chain([r#"","params":{"#]) {
            head.extend_from_slice(part.as_bytes());
        }
        let before = head.len();
        push_meta(&mut head, id, era, meta.as_deref(), self.trace.as_deref());
        match &self.fields {
            Fields::Call { .. } => {
                if head.len() > before {
                    head.push(b',');
                }
                head.extend_from_slice(br#""name":"#);
                push_string(&mut head, self.name.as_deref().unwrap_or_default());
                head.extend_from_slice(br#","arguments":"#);
            }
            // Its closing brace stands in the slice.
            Fields::Object(_) if head.len() > before && !large.trim_ascii().starts_with(b"}") => {
                head.push(b',');
            }
            Fields::Object(_) => {}
        }
        let behind = |out: &mut Vec<u8>| {
            if !beside.is_empty() {
                out.push(b',');
                out.extend_from_slice(&beside);
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
            behind(&mut head);
            return (head, Default::default());
        }
        let mut tail = Vec::new();
        behind(&mut tail);
        (head, [large, tail.into()])
    }
}

/// The rest of a raw object behind its opening brace; of what is none, an empty one.
fn after_brace(object: &Bytes) -> Bytes {
    match object.iter().position(|byte| !byte.is_ascii_whitespace()) {
        Some(at) if object.get(at) == Some(&b'{') => object.slice(at + 1..),
        Some(_) | None => Bytes::from_static(b"}"),
    }
}

/// Writes the member `_meta`, if there is anything to say.
///
/// The client's own keys go on as they are, but for those that speak of one hop: its token is
/// replaced by the id, under which progress then comes back to this call; who it is and which
/// revision it speaks are ours to say. Its capabilities and its log level are for a modern server
/// to know, since what that asks goes back to the client verbatim.
fn push_meta(
    out: &mut Vec<u8>,
    id: u64,
    era: Era,
    client: Option<&[u8]>,
    trace: Option<&PropagatedContext>,
) {
    let Some(client) = client else {
        match (era, trace) {
            (Era::Legacy, None) => {}
            (Era::Modern, None) => {
                let _ = write!(out, r#""_meta":{{{OURS}{NO_CAPABILITIES}}}"#);
            }
            (Era::Legacy, Some(trace)) => {
                out.extend_from_slice(br#""_meta":{"#);
                push_trace(out, trace);
                out.push(b'}');
            }
            (Era::Modern, Some(trace)) => {
                let _ = write!(out, r#""_meta":{{{OURS}{NO_CAPABILITIES},"#);
                push_trace(out, trace);
                out.push(b'}');
            }
        }
        return;
    };
    // What is no object says nothing.
    let members: Vec<Member<'_>> = std::str::from_utf8(client)
        .ok()
        .and_then(|text| members(text).ok()?.collect::<Result<_, _>>().ok())
        .unwrap_or_default();
    let before = out.len();
    out.extend_from_slice(br#""_meta":{"#);
    let start = out.len();
    if era == Era::Modern {
        out.extend_from_slice(OURS.as_bytes());
        if !members.iter().any(|(key, _)| key == CAPABILITIES_KEY) {
            out.extend_from_slice(NO_CAPABILITIES.as_bytes());
        }
    }
    for (key, value) in members {
        let value = match &*key {
            VERSION_KEY | CLIENT_KEY => continue,
            CAPABILITIES_KEY | LOG_LEVEL_KEY if era == Era::Legacy => continue,
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
        out.extend_from_slice(value.as_bytes());
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

/// Writes the members that name a trace (SEP-414).
fn push_trace(out: &mut Vec<u8>, trace: &PropagatedContext) {
    let _ = write!(out, "\"{}\":\"", trace_context::PARENT);
    trace.context.write(out);
    out.push(b'"');
    let beside = [(trace_context::STATE, &trace.state), (trace_context::BAGGAGE, &trace.baggage)];
    for (key, value) in beside {
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

/// The notification that nobody waits for a request any more.
pub(super) fn cancelled(id: u64) -> Vec<u8> {
    debug_assert!(pending::is_ours(id));
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"nobody waits for the answer any more"}}}}"#
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::mcp::revisions::MODERN;

    fn text(slices: &[Bytes; 3]) -> String {
        String::from_utf8(slices.concat()).unwrap()
    }

    fn call(name: &str, arguments: impl Into<Bytes>) -> Params {
        let (arguments, members) = (arguments.into(), Bytes::new());
        let fields = Fields::Call { arguments, members, parameter_headers: None };
        Params { method: "tools/call", name: Some(name.into()), meta: None, trace: None, fields }
    }

    /// The request to a server of either era.
    fn both(params: &Params) -> [Value; 2] {
        [Era::Legacy, Era::Modern].map(|era| {
            let line = text(&params.line(7, era));
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            serde_json::from_str(&line).unwrap()
        })
    }

    #[test]
    fn the_arguments_go_out_byte_for_byte() {
        let params = call("a\"b\n", "{ \"n\":\n1.0e5 }");
        let (first, [second, third]) = params.body(7, Era::Legacy);
        assert_eq!(
            text(&[first.into(), second, third]),
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":\
             {\"name\":\"a\\\"b\\u000a\",\"arguments\":{ \"n\":\n1.0e5 }}}"
        );
        let line = text(&params.line(7, Era::Legacy));
        assert!(line.ends_with("{ \"n\": 1.0e5 }}}\n"), "{line}");
    }

    #[test]
    fn large_arguments_are_not_copied() {
        let arguments = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(COPY_BYTES)));
        let mut params = call("t", arguments.clone());
        params.meta = Some(Bytes::from_static(b"{\"k\":1}"));
        let slices = params.line(1, Era::Modern);
        assert_eq!(slices[1].as_ptr(), arguments.as_ptr());
        let value: Value = serde_json::from_slice(&slices.concat()).unwrap();
        assert_eq!(value["params"]["_meta"]["k"], 1);
        let object = Params::of("x", arguments.clone());
        assert_eq!(object.line(1, Era::Legacy)[1].as_ptr(), arguments[1..].as_ptr());
    }

    #[test]
    fn other_methods_carry_their_params_as_they_are() {
        let params = Params::of("tools/list", Bytes::from_static(b"{\"cursor\":\"x\"}"));
        assert_eq!(
            text(&params.line(3, Era::Legacy)),
            "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}\n"
        );
        for none in ["{}", " { \n}", "", "null"] {
            let [legacy, modern] = both(&Params::of("m", Bytes::from(none)));
            assert_eq!(legacy["params"], json!({}), "{none:?}");
            assert_eq!(modern["params"].as_object().unwrap().len(), 1, "{none:?}");
        }
    }

    #[test]
    fn a_modern_server_is_told_who_asks_on_every_request() {
        let all = json!({"sampling": {}, "elicitation": {}, "roots": {}});
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
    fn the_clients_meta_goes_on_but_for_what_its_hop_says() {
        let mut params = call("t", "{}");
        let meta = json!({
            "progressToken": "theirs", "traceparent": "00-1", "a\"b": [1, {"progressToken": 2}],
            VERSION_KEY: "2099-01-01", CLIENT_KEY: {"name": "theirs"},
            CAPABILITIES_KEY: {"elicitation": {}}, LOG_LEVEL_KEY: "debug",
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
    fn sep_414_the_trace_stands_in_meta_and_headers_in_the_place_of_the_clients() {
        use crate::mcp::trace_context::TraceContext;
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
                for (message, era) in both(&params).iter().zip([Era::Legacy, Era::Modern]) {
                    let said = &message["params"]["_meta"];
                    assert_eq!(said["traceparent"], parent, "{message}");
                    assert_eq!(said.get("tracestate").and_then(Value::as_str), state.as_deref());
                    assert_eq!(said.get("baggage"), said.get("tracestate"));
                    assert_eq!(said.get("k").is_some(), meta.is_some_and(|meta| meta.len() > 2));
                    let lines = String::from_utf8(params.lines(era)).unwrap();
                    assert!(lines.contains(&format!("traceparent: {parent}\r\n")), "{lines}");
                    let baggage = lines.contains("\r\nbaggage: k=\"v\\\r\n");
                    assert_eq!(baggage, state.is_some(), "{lines}");
                    assert_eq!(
                        lines.contains("tracestate: k=\"v\\\r\n"),
                        state.is_some(),
                        "{lines}"
                    );
                }
                assert_eq!(params.may_be_told(ClientCapabilities::default()), meta.is_some());
            }
        }
    }

    #[test]
    fn a_meta_that_is_no_object_says_nothing() {
        for meta in ["7", "null", "[]", "{", ""] {
            let mut params = call("t", "{}");
            params.meta = Some(Bytes::from(meta));
            let [legacy, modern] = both(&params);
            assert_eq!(legacy["params"].get("_meta"), None, "{meta}");
            assert_eq!(modern["params"]["_meta"][VERSION_KEY], MODERN, "{meta}");
        }
    }

    #[test]
    fn the_headers_of_a_modern_request_repeat_it() {
        let lines = |params: &Params, era| String::from_utf8(params.lines(era)).unwrap();
        assert_eq!(lines(&call("t", "{}"), Era::Legacy), "");
        assert_eq!(
            lines(&call("get weather", "{}"), Era::Modern),
            "mcp-method: tools/call\r\nmcp-name: get weather\r\n"
        );
        assert_eq!(
            lines(&call("a\r\nb: c", "{}"), Era::Modern),
            "mcp-method: tools/call\r\nmcp-name: =?base64?YQ0KYjogYw==?=\r\n"
        );
        assert_eq!(
            lines(&Params::of("tools/list", Bytes::new()), Era::Modern),
            "mcp-method: tools/list\r\n"
        );
    }

    #[test]
    fn mcp_2026_headers_repeat_the_parameters_that_the_schema_marks() {
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
            let lines = |era| String::from_utf8(params.lines(era)).unwrap();
            let sorted = lines(Era::Modern);
            let mut sorted: Vec<_> = sorted.split_inclusive('\n').collect();
            sorted.sort_unstable();
            let plain = "mcp-method: tools/call\r\nmcp-name: t\r\n";
            assert_eq!(sorted.concat(), format!("{plain}{expected}"), "{arguments}");
            assert_eq!(lines(Era::Legacy), "");
        }
    }

    #[test]
    fn further_members_stand_beside_the_arguments() {
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
}
