//! OTLP encoding of calls and log lines in protobuf, following the semantic conventions for MCP, and decoding of a
//! collector's response. Pure functions.
//!
//! Attributes missing from the conventions begin with `mcpproxy.`. The encoded messages are the subset of
//! `opentelemetry/proto/…/v1` (version 1.x) that the proxy uses. The `server` crate sends them.

use mcpproxy_protocol::mcp::trace_context::TraceContext;
use prost::{Enumeration, Message, Oneof};
use tracing::Level;

use super::build_info;
use super::call_span::{CallSpan, SpanError, SpanTarget, UpstreamSpan, cut};
use super::export_queue::{Exported, Exporter};
use super::log::LogRecord;

/// Content type of export requests.
pub const PROTOBUF: &str = "application/x-protobuf";
/// Span flags of OTLP: the first one states that the second one is valid, the second one that the parent is remote.
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// A collector's response to an accepted batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportAck {
    /// Number of items that the collector rejected.
    pub rejected: u64,
    /// The collector's message, truncated.
    pub message: Box<str>,
}

impl Exported for CallSpan {
    const QUEUE: usize = 4096;
    const BATCH: usize = 512;
    const PATH: &'static str = "v1/traces";
    const WHAT: &'static str = "traces";

    fn count(&self) -> u64 {
        self.spans()
    }

    fn encode(exporter: &Exporter, calls: &[Self]) -> Vec<u8> {
        let spans = calls.iter().flat_map(|call| {
            let client = call.upstream.map(|upstream| client_span(call, upstream));
            [server_span(call)].into_iter().chain(client)
        });
        let scope_spans = ScopeSpans { scope: Some(scope()), spans: spans.collect() };
        let of_us =
            ResourceSpans { resource: Some(resource(exporter)), scope_spans: vec![scope_spans] };
        TracesRequest { resource_spans: vec![of_us] }.encode_to_vec()
    }
}

impl Exported for LogRecord {
    const QUEUE: usize = 2048;
    const BATCH: usize = 512;
    const PATH: &'static str = "v1/logs";
    const WHAT: &'static str = "log lines";

    fn count(&self) -> u64 {
        1
    }

    fn encode(exporter: &Exporter, lines: &[Self]) -> Vec<u8> {
        let log_records = lines.iter().map(log_record).collect();
        let scope_logs = ScopeLogs { scope: Some(scope()), log_records };
        let of_us =
            ResourceLogs { resource: Some(resource(exporter)), scope_logs: vec![scope_logs] };
        LogsRequest { resource_logs: vec![of_us] }.encode_to_vec()
    }
}

fn scope() -> OtlpScope {
    OtlpScope { name: "mcpproxy".into(), version: build_info::VERSION.into() }
}

fn resource(exporter: &Exporter) -> OtlpResource {
    OtlpResource {
        attributes: vec![
            text("service.name", &exporter.service),
            text("service.version", build_info::VERSION),
            text("service.instance.id", &exporter.instance),
        ],
    }
}

/// Encodes a log line (OTLP §Log Data Model: 9, 13 and 17 are INFO, WARN and ERROR).
fn log_record(line: &LogRecord) -> OtlpLog {
    let severity = match line.level {
        Level::ERROR => 17,
        Level::WARN => 13,
        Level::INFO => 9,
        Level::DEBUG => 5,
        Level::TRACE => 1,
    };
    let mut attributes = vec![text("code.namespace", line.target)];
    attributes.extend(line.fields.iter().map(|(key, value)| text(key, value)));
    let ids =
        line.span.map(|of| (of.trace_id.to_be_bytes().into(), of.span_id.to_be_bytes().into()));
    let (trace_id, span_id) = ids.unwrap_or_default();
    OtlpLog {
        time_unix_nano: line.time,
        observed_time_unix_nano: line.time,
        severity_number: severity,
        severity_text: line.level.as_str().to_owned(),
        body: Some(AnyValue { value: Some(value(&line.body)) }),
        attributes,
        flags: u32::from(line.span.is_some()),
        trace_id,
        span_id,
    }
}

/// Decodes a collector's response; an unreadable one counts as empty.
pub fn decode_response(answer: &[u8]) -> ExportAck {
    let partial = ExportResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or_else(ExportAck::default, |partial| ExportAck {
        rejected: u64::try_from(partial.rejected).unwrap_or(0),
        message: cut(&partial.error_message),
    })
}

fn server_span(call: &CallSpan) -> OtlpSpan {
    let mut attributes = common(call);
    let mut push = |key, value: &str| {
        if !value.is_empty() {
            attributes.push(text(key, value));
        }
    };
    push("jsonrpc.request.id", &call.request_id);
    push("mcp.session.id", &call.session);
    push("mcp.protocol.version", call.revision);
    push("mcpproxy.call_tool", call.variant);
    push("mcpproxy.door", call.source);
    push("mcpproxy.principal", &call.principal);
    push("mcpproxy.client", &call.client);
    push("mcpproxy.outcome", call.outcome);
    if !call.decisions.is_empty() {
        let words = call.decisions.iter().map(|word| AnyValue { value: Some(value(word)) });
        let list = OtlpValue::List(ArrayValue { values: words.collect() });
        attributes.push(attribute("mcpproxy.decisions", list));
    }
    attributes.push(number("mcpproxy.overhead_us", call.overhead_us));
    if call.waited_us > 0 {
        attributes.push(number("mcpproxy.waited_us", call.waited_us));
    }
    let link = |link: TraceContext| SpanLink {
        trace_id: link.trace_id.to_be_bytes().into(),
        span_id: link.span_id.to_be_bytes().into(),
        flags: flags(link) | PARENT_IS_KNOWN | PARENT_IS_REMOTE,
    };
    let remote = call.parent.map_or(0, |_| PARENT_IS_KNOWN | PARENT_IS_REMOTE);
    OtlpSpan {
        span_id: call.context.span_id.to_be_bytes().into(),
        parent_span_id: call.parent.map(|id| id.to_be_bytes().into()).unwrap_or_default(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: call.started,
        end_time_unix_nano: call.ended,
        attributes,
        links: call.link.map(link).into_iter().collect(),
        flags: flags(call.context) | remote,
        ..span(call)
    }
}

fn client_span(call: &CallSpan, upstream: UpstreamSpan) -> OtlpSpan {
    OtlpSpan {
        span_id: upstream.span_id.to_be_bytes().into(),
        parent_span_id: call.context.span_id.to_be_bytes().into(),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: upstream.started,
        end_time_unix_nano: upstream.ended,
        attributes: common(call),
        flags: flags(call.context) | PARENT_IS_KNOWN,
        ..span(call)
    }
}

/// Fields shared by both spans of a call.
fn span(call: &CallSpan) -> OtlpSpan {
    let target = match &call.target {
        SpanTarget::Tool(name) | SpanTarget::Prompt(name) if call.known => Some(&**name),
        _ => None,
    };
    let code = if call.error.is_some() { StatusCode::Error } else { StatusCode::Unset };
    OtlpSpan {
        trace_id: call.context.trace_id.to_be_bytes().into(),
        trace_state: call.state.as_deref().unwrap_or_default().to_owned(),
        name: match target {
            Some(target) => format!("{} {target}", call.method),
            None => call.method.to_owned(),
        },
        status: Some(SpanStatus { code: code.into() }),
        ..OtlpSpan::default()
    }
}

/// Attributes shared by both spans of a call.
fn common(call: &CallSpan) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(16);
    attributes.push(text("mcp.method.name", call.method));
    match &call.target {
        SpanTarget::Tool(name) => {
            attributes.push(text("gen_ai.operation.name", "execute_tool"));
            if !name.is_empty() {
                attributes.push(text("gen_ai.tool.name", name));
            }
        }
        SpanTarget::Prompt(name) => attributes.push(text("gen_ai.prompt.name", name)),
        SpanTarget::Resource(uri) => attributes.push(text("mcp.resource.uri", uri)),
        SpanTarget::None => {}
    }
    if !call.server.is_empty() {
        attributes.push(text("mcpproxy.server", &call.server));
    }
    match &call.error {
        Some(SpanError::Tool) => attributes.push(text("error.type", "tool_error")),
        Some(SpanError::Code(code)) => {
            let code = code.to_string();
            attributes.push(text("error.type", &code));
            attributes.push(text("rpc.response.status_code", &code));
        }
        Some(SpanError::Own(word)) => attributes.push(text("error.type", word)),
        Some(SpanError::Other) => attributes.push(text("error.type", "_OTHER")),
        None => {}
    }
    attributes
}

fn flags(context: TraceContext) -> u32 {
    u32::from(context.sampled)
}

fn value(text: &str) -> OtlpValue {
    OtlpValue::Text(text.to_owned())
}

fn attribute(key: &str, value: OtlpValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(key: &str, text: &str) -> KeyValue {
    attribute(key, value(text))
}

fn number(key: &str, number: u64) -> KeyValue {
    attribute(key, OtlpValue::Int(i64::try_from(number).unwrap_or(i64::MAX)))
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracesRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpResource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpScope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<OtlpScope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<OtlpSpan>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpSpan {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    pub(super) links: Vec<SpanLink>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum SpanKind {
    Unspecified = 0,
    Server = 2,
    Client = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanLink {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(fixed32, tag = "6")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanStatus {
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum StatusCode {
    Unset = 0,
    Error = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<OtlpScope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) log_records: Vec<OtlpLog>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpLog {
    #[prost(fixed64, tag = "1")]
    pub(super) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(super) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(super) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed32, tag = "8")]
    pub(super) flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub(super) span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    pub(super) observed_time_unix_nano: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "OtlpValue", tags = "1, 3, 5")]
    pub(super) value: Option<OtlpValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum OtlpValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(message, tag = "5")]
    List(ArrayValue),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::call_span::{MAX_TEXT_BYTES, tests_span};
    use super::super::log::LoggedSpan;
    use super::{PartialSuccess, *};

    /// Decodes the spans of a call as a collector would.
    fn spans_of(call: CallSpan) -> Vec<OtlpSpan> {
        let exporter = Exporter { service: "name".into(), instance: "one".into() };
        let body = CallSpan::encode(&exporter, &[call]);
        let request = TracesRequest::decode(&*body).unwrap();
        let [of_us] = &request.resource_spans[..] else { panic!("{request:?}") };
        let resource = texts(&of_us.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "name");
        of_us.scope_spans[0].spans.clone()
    }

    fn texts(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
        let shown = |value: &Option<AnyValue>| match &value.as_ref().unwrap().value {
            Some(OtlpValue::Text(text)) => text.clone(),
            Some(OtlpValue::Int(number)) => number.to_string(),
            Some(OtlpValue::List(list)) => format!("{}", list.values.len()),
            None => panic!("no value"),
        };
        attributes.iter().map(|it| (&*it.key, shown(&it.value))).collect()
    }

    #[test]
    fn sent_call_is_two_spans_by_the_conventions_for_mcp() {
        let spans = spans_of(tests_span(true));
        let [server, client] = &spans[..] else { panic!("{spans:?}") };
        for span in [server, client] {
            assert_eq!((&*span.name, span.trace_id.len()), ("tools/call read_item", 16));
            assert_eq!((&*span.trace_state, span.span_id.len()), ("k=v", 8));
            let attributes = texts(&span.attributes);
            assert_eq!(attributes["mcp.method.name"], "tools/call");
            assert_eq!(attributes["gen_ai.operation.name"], "execute_tool");
            assert_eq!(attributes["gen_ai.tool.name"], "read_item");
            assert_eq!(attributes["mcpproxy.server"], "s");
            assert!(!attributes.contains_key("error.type"));
        }
        assert_eq!((server.kind(), client.kind()), (SpanKind::Server, SpanKind::Client));
        assert_eq!(server.parent_span_id, 9_u64.to_be_bytes());
        assert_eq!(client.parent_span_id, server.span_id);
        assert_eq!((server.flags, client.flags), (0x301, 0x101));
        assert_eq!((server.start_time_unix_nano, client.end_time_unix_nano), (1_000, 2_500));
        let attributes = texts(&server.attributes);
        for (key, value) in [
            ("jsonrpc.request.id", "7"),
            ("mcp.session.id", "session"),
            ("mcp.protocol.version", "2025-11-25"),
            ("mcpproxy.call_tool", "call_tool_read"),
            ("mcpproxy.principal", "token:ci"),
            ("mcpproxy.outcome", "success"),
        ] {
            assert_eq!(attributes[key], value, "{key}");
        }
    }

    #[test]
    fn failed_call_has_an_error_type_and_status() {
        for (error, word) in [
            (SpanError::Tool, "tool_error"),
            (SpanError::Code(-32602), "-32602"),
            (SpanError::Own("gate"), "gate"),
            (SpanError::Other, "_OTHER"),
        ] {
            let spans = spans_of(CallSpan { error: Some(error), ..tests_span(true) });
            for span in spans {
                assert_eq!(texts(&span.attributes)["error.type"], word);
                assert_eq!(span.status.unwrap().code(), StatusCode::Error);
            }
        }
    }

    #[test]
    fn unknown_names_are_not_in_span_names() {
        let unknown = CallSpan { known: false, ..tests_span(false) };
        let resource = SpanTarget::Resource("file:///x".into());
        let resource = CallSpan { target: resource, method: "resources/read", ..tests_span(false) };
        for (call, name) in [(unknown, "tools/call"), (resource, "resources/read")] {
            let spans = spans_of(call);
            assert_eq!((spans.len(), &*spans[0].name), (1, name));
        }
    }

    #[test]
    fn second_span_context_becomes_a_link() {
        let other = TraceContext { trace_id: 5, span_id: 6, sampled: false };
        let spans =
            spans_of(CallSpan { link: Some(other), decisions: vec!["a"], ..tests_span(false) });
        assert_eq!(spans[0].links[0].span_id, 6_u64.to_be_bytes());
        assert_eq!(texts(&spans[0].attributes)["mcpproxy.decisions"], "1");
    }

    #[test]
    fn log_record_carries_trace_and_severity() {
        let exporter = Exporter { service: "name".into(), instance: "one".into() };
        let line = LogRecord {
            time: 5,
            level: Level::WARN,
            target: "mcpproxy",
            body: "it fails".into(),
            fields: vec![("server", "s".into())],
            span: Some(LoggedSpan { trace_id: 7, span_id: 9 }),
        };
        let bare = LogRecord { span: None, level: Level::INFO, ..line.clone() };
        let body = LogRecord::encode(&exporter, &[line, bare]);
        let request = LogsRequest::decode(&*body).unwrap();
        let of_us = &request.resource_logs[0];
        assert_eq!(texts(&of_us.resource.as_ref().unwrap().attributes)["service.name"], "name");
        let [first, second] = &of_us.scope_logs[0].log_records[..] else { panic!("{request:?}") };
        assert_eq!((first.severity_number, &*first.severity_text, first.flags), (13, "WARN", 1));
        assert_eq!(first.trace_id, 7_u128.to_be_bytes());
        assert_eq!(first.span_id, 9_u64.to_be_bytes());
        assert_eq!(first.body.as_ref().unwrap().value, Some(OtlpValue::Text("it fails".into())));
        assert_eq!(texts(&first.attributes)["server"], "s");
        assert_eq!((second.severity_number, second.trace_id.len(), second.flags), (9, 0, 0));
    }

    #[test]
    fn collector_response_reports_rejected_items() {
        let answer = |rejected, message: &str| {
            let partial_success = Some(PartialSuccess { rejected, error_message: message.into() });
            decode_response(&ExportResponse { partial_success }.encode_to_vec())
        };
        assert_eq!(answer(3, "too old"), ExportAck { rejected: 3, message: "too old".into() });
        assert_eq!(answer(-3, "").rejected, 0);
        assert_eq!(answer(1, &"x".repeat(10_000)).message.len(), MAX_TEXT_BYTES);
        for none in [&b""[..], b"<html>", b"\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(decode_response(none), ExportAck::default());
        }
    }
}
