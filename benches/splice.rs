//! Cost of a proxied response without validation: finding the body in the chunks and putting our
//! envelope around the original slices. Baselines: a document tree that is serialized again, as in
//! other proxies, and a copy of the bytes.

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;

use bytes::{Buf, Bytes};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::{Inspector, Policy, Treatment};
use serde_json::Value;

/// Chunk size in which hyper delivers a body.
const CHUNK_BYTES: usize = 16 * 1024;

fn splice(chunks: &[Bytes]) -> Splice {
    let mut inspector = Inspector::new(Treatment::Forward, &Policy::default(), 42, 1);
    let mut reply = Splice::from(jsonrpc::result_head(b"7"));
    for chunk in chunks {
        match inspector.feed(chunk) {
            Ok(slice) => reply.push(slice),
            Err(fault) => unreachable!("{fault}"),
        }
    }
    assert!(inspector.end().is_ok());
    reply.push(jsonrpc::TAIL);
    reply
}

fn size(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, message: Vec<u8>) {
    let whole = Bytes::from(message);
    let chunks: Vec<Bytes> = (0..whole.len())
        .step_by(CHUNK_BYTES)
        .map(|at| whole.slice(at..whole.len().min(at + CHUNK_BYTES)))
        .collect();
    group.throughput(Throughput::Bytes(whole.len() as u64));
    group.bench_function(format!("splice/{name}"), |bencher| {
        bencher.iter(|| splice(black_box(&chunks)).remaining());
    });
    group.bench_function(format!("serde_json-round-trip/{name}"), |bencher| {
        bencher.iter(|| {
            let mut message: Value = serde_json::from_slice(black_box(&whole)).unwrap_or_default();
            if let Some(id) = message.get_mut("id") {
                *id = Value::from(7);
            }
            message.to_string().len()
        });
    });
    let mut copy = vec![0; whole.len()];
    group.bench_function(format!("memcpy/{name}"), |bencher| {
        bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&whole)));
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("splice");
    for &(name, bytes) in common::sizes() {
        size(&mut group, name, common::response(bytes));
    }
    group.finish();
    criterion.final_summary();
}
