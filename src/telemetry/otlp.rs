//! Calls and lines of the log as OTLP messages in protobuf, by the semantic conventions for MCP, and what a collector
//! answers. Pure.
//!
//! Attributes of ours, which the conventions do not have, begin with `mcpproxy.`. Who sends what is made here, and where
//! to, is the assembly's.

mod messages;

use prost::Message;
use tracing::Level;

use self::messages::{
    AnyValue, ArrayValue, ExportResponse, KeyValue, LogsRequest, OtlpLog, OtlpResource, OtlpScope,
    OtlpSpan, OtlpValue, ResourceLogs, ResourceSpans, ScopeLogs, ScopeSpans, SpanKind, SpanLink,
    SpanStatus, StatusCode, TracesRequest,
};
use super::build_info;
use super::call_span::{CallSpan, SpanError, SpanTarget, UpstreamSpan, cut};
use super::export_queue::{Exported, Exporter};
use super::log_records::LogRecord;
use crate::mcp::trace_context::TraceContext;

/// The content type of what is sent.
pub const PROTOBUF: &str = "application/x-protobuf";
/// Flags of a span: it is known whether its parent is remote, and it is.
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// What a collector says of a batch that it has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenBatch {
    /// How many it did not keep.
    pub rejected: u64,
    /// Why, or what it warns of; cut.
    pub told: Box<str>,
}

impl Exported for CallSpan {
    const QUEUE: usize = 4096;
    const BATCH: usize = 512;
    const PATH: &'static str = "v1/traces";
    const WHAT: &'static str = "traces";

    /// Its spans.
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

/// A line of the log (OTLP §Log Data Model: 9, 13 and 17 are INFO, WARN and ERROR).
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

/// What the answer of a collector says that has taken a batch. One that cannot be read says nothing.
#[must_use]
pub fn taken(answer: &[u8]) -> TakenBatch {
    let partial = ExportResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or_else(TakenBatch::default, |partial| TakenBatch {
        rejected: u64::try_from(partial.rejected).unwrap_or(0),
        told: cut(&partial.error_message),
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

/// What both spans of a call have.
fn span(call: &CallSpan) -> OtlpSpan {
    let target = match &call.target {
        SpanTarget::Tool(name) | SpanTarget::Prompt(name) if call.known => Some(&**name),
        SpanTarget::Tool(_)
        | SpanTarget::Prompt(_)
        | SpanTarget::Resource(_)
        | SpanTarget::None => None,
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

/// The attributes that both spans of a call have.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::call_span::{MAX_TEXT_BYTES, tests_span};
    use super::super::log_records::LoggedSpan;
    use super::messages::PartialSuccess;
    use super::*;

    /// The spans of a call, as a collector reads them.
    fn told(call: CallSpan) -> Vec<OtlpSpan> {
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
    fn a_call_that_went_out_is_two_spans_by_the_conventions_for_mcp() {
        let spans = told(tests_span(true));
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
    fn what_fails_says_why_in_one_word_and_is_an_error() {
        for (error, word) in [
            (SpanError::Tool, "tool_error"),
            (SpanError::Code(-32602), "-32602"),
            (SpanError::Own("gate"), "gate"),
            (SpanError::Other, "_OTHER"),
        ] {
            let spans = told(CallSpan { error: Some(error), ..tests_span(true) });
            for span in spans {
                assert_eq!(texts(&span.attributes)["error.type"], word);
                assert_eq!(span.status.unwrap().code(), StatusCode::Error);
            }
        }
    }

    #[test]
    fn names_that_nobody_knows_are_in_no_spans_name() {
        let unknown = CallSpan { known: false, ..tests_span(false) };
        let resource = SpanTarget::Resource("file:///x".into());
        let resource = CallSpan { target: resource, method: "resources/read", ..tests_span(false) };
        for (call, name) in [(unknown, "tools/call"), (resource, "resources/read")] {
            let spans = told(call);
            assert_eq!((spans.len(), &*spans[0].name), (1, name));
        }
    }

    #[test]
    fn a_request_that_names_two_spans_is_linked_with_the_other() {
        let other = TraceContext { trace_id: 5, span_id: 6, sampled: false };
        let spans = told(CallSpan { link: Some(other), decisions: vec!["a"], ..tests_span(false) });
        assert_eq!(spans[0].links[0].span_id, 6_u64.to_be_bytes());
        assert_eq!(texts(&spans[0].attributes)["mcpproxy.decisions"], "1");
    }

    #[test]
    fn a_line_of_the_log_names_its_trace_and_how_grave_it_is() {
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
    fn a_collectors_answer_says_how_many_it_did_not_keep() {
        let answer = |rejected, told: &str| {
            let partial_success = Some(PartialSuccess { rejected, error_message: told.into() });
            taken(&ExportResponse { partial_success }.encode_to_vec())
        };
        assert_eq!(answer(3, "too old"), TakenBatch { rejected: 3, told: "too old".into() });
        assert_eq!(answer(-3, "").rejected, 0);
        assert_eq!(answer(1, &"x".repeat(10_000)).told.len(), MAX_TEXT_BYTES);
        for none in [&b""[..], b"<html>", b"\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(taken(none), TakenBatch::default());
        }
    }
}
