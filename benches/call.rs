//! Cost of an answer in the proxy without sockets: inspecting, validating, splicing and the log entry, for each
//! treatment. Baseline: a document tree validated by boon and serialized again (SC-003, SC-006, SC-007).

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;

use bytes::{Buf, Bytes};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use mcpproxy_activity::record::{Draft, Raw, Source, Status, Type};
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::compile::{Schema, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_schema::output::{Finding, Inspector, MissingContent, Policy, Treatment};
use serde_json::Value;

/// Number of bytes of an answer that a record keeps by default.
const RESPONSE_BYTES: usize = 1024;

fn answer(
    treatment: Treatment,
    schema: &Schema,
    scratch: &mut JudgeScratch,
    whole: &Bytes,
) -> (Splice, Draft) {
    let mut inspector = Inspector::new(treatment, &Policy::default(), 42, 1);
    let body = inspector.feed(whole).unwrap_or_default();
    assert!(inspector.end().is_ok());
    if inspector.finding(MissingContent::Allow) == Finding::AskTheSchema {
        let judgment = schema.judge(inspector.document(), scratch);
        assert_eq!(judgment.verdict, Verdict::Conforms);
    }
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.keep(Raw::Response, &body, RESPONSE_BYTES);
    let mut reply = Splice::from(jsonrpc::result_head(b"7"));
    reply.push(body);
    reply.push(jsonrpc::TAIL);
    (reply, draft)
}

fn size(
    group: &mut BenchmarkGroup<'_, WallTime>,
    schema: &Schema,
    name: &str,
    message: Vec<u8>,
) -> Result<(), Box<dyn std::error::Error>> {
    let whole = Bytes::from(message);
    let mut scratch = JudgeScratch::new();
    group.throughput(Throughput::Bytes(whole.len() as u64));
    for (what, treatment) in [("forward", Treatment::Forward), ("judged", Treatment::Hold)] {
        group.bench_function(format!("{what}/{name}"), |bencher| {
            bencher
                .iter(|| answer(treatment, schema, &mut scratch, black_box(&whole)).0.remaining());
        });
    }
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("schema.json", serde_json::from_str(common::SCHEMA)?)?;
    let compiled = compiler.compile("schema.json", &mut schemas)?;
    group.bench_function(format!("serde_json+boon+round-trip/{name}"), |bencher| {
        bencher.iter(|| {
            let message: Value = serde_json::from_slice(black_box(&whole)).unwrap_or_default();
            let structured = message.pointer("/result/structuredContent").unwrap_or(&Value::Null);
            assert!(schemas.validate(structured, compiled).is_ok());
            message.to_string().len()
        });
    });
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = compile(common::SCHEMA.as_bytes(), &Settings::default())?;
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("call");
    for &(name, bytes) in common::sizes() {
        size(&mut group, &schema, name, common::response(bytes))?;
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
