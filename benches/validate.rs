//! Validation of a conforming document: by the accept-only pass, and in the way used for a call. Baselines: serde_json
//! with boon, the tape alone, and a copy of the bytes. Also the cost of validating the arguments of a call, both
//! conforming and not.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mcpproxy_schema::compile::{Engine, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use serde_json::Value;

#[path = "common/mod.rs"]
mod common;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn validate(criterion: &mut Criterion) {
    let raw = common::SCHEMA.as_bytes();
    let judge = compile(raw, &Settings::default()).unwrap();
    let by_boon = Settings { engine: Engine::Boon, assert_formats: false };
    let by_boon = compile(raw, &by_boon).unwrap();
    let mut boon = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    let schema = serde_json::from_slice(raw).unwrap();
    compiler.add_resource("json-schema:///", schema).unwrap();
    let root = compiler.compile("json-schema:///", &mut boon).unwrap();

    let mut group = criterion.benchmark_group("validate");
    for &(size, bytes) in common::sizes() {
        // The document alone is four ninths of the response that carries it.
        let document = Bytes::from(common::structured(bytes / 4 * 9));
        group.throughput(Throughput::Bytes(document.len() as u64));
        group.sample_size(if bytes > 1_000_000 { 10 } else { 100 });
        let mut scratch = JudgeScratch::new();
        let slices = [document.clone()];
        assert_eq!(judge.judge(&slices, &mut scratch).verdict, Verdict::Conforms);
        group.bench_function(BenchmarkId::new("judge", size), |bencher| {
            bencher.iter(|| black_box(judge.judge(&slices, &mut scratch)));
        });
        assert!(judge.accepts_in_one_pass(&document, &mut scratch));
        group.bench_function(BenchmarkId::new("accept", size), |bencher| {
            bencher.iter(|| black_box(judge.accepts_in_one_pass(&document, &mut scratch)));
        });
        group.bench_function(BenchmarkId::new("judge_engine_boon", size), |bencher| {
            bencher.iter(|| black_box(by_boon.judge(&slices, &mut scratch)));
        });
        group.bench_function(BenchmarkId::new("serde_json_and_boon", size), |bencher| {
            bencher.iter(|| {
                let value: Value = serde_json::from_slice(&document).unwrap();
                black_box(boon.validate(&value, root).is_ok())
            });
        });
        group.bench_function(BenchmarkId::new("tape_alone", size), |bencher| {
            let mut copy = Vec::new();
            let mut buffers = simd_json::Buffers::new(document.len());
            let mut kept = simd_json::Tape(Vec::new());
            bencher.iter(|| {
                copy.clear();
                copy.extend_from_slice(&document);
                let mut tape = std::mem::replace(&mut kept, simd_json::Tape(Vec::new())).reset();
                simd_json::fill_tape(&mut copy, &mut buffers, &mut tape).unwrap();
                kept = black_box(tape).reset();
            });
        });
        group.bench_function(BenchmarkId::new("memcpy", size), |bencher| {
            let mut copy = vec![0; document.len()];
            bencher.iter(|| {
                copy.copy_from_slice(&document);
                black_box(&mut copy);
            });
        });
    }
    group.finish();
}

/// The `inputSchema` of a tool as servers write it.
const INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["owner","repo","title"],
    "properties":{"owner":{"type":"string"},"repo":{"type":"string"},"title":{"type":"string","minLength":1},
    "body":{"type":"string"},"labels":{"type":"array","items":{"type":"string"}},
    "milestone":{"anyOf":[{"type":"integer"},{"type":"null"}]},"state":{"enum":["open","closed"]}}}"#;

/// Arguments for [`INPUT`] whose `body` has `bytes` bytes.
fn arguments(bytes: usize, labels: &str) -> Bytes {
    let body = "x".repeat(bytes);
    format!(
        r#"{{"owner":"ada","repo":"engine","title":"Tea","labels":{labels},"milestone":null,"body":"{body}"}}"#
    )
    .into()
}

fn arguments_of_a_call(criterion: &mut Criterion) {
    let schema = compile(INPUT.as_bytes(), &Settings::default()).unwrap();
    let mut scratch = JudgeScratch::new();
    let mut group = criterion.benchmark_group("arguments");
    for (size, bytes) in [("100B", 0), ("1KB", 900), ("13KB", 12_900)] {
        let fits = [arguments(bytes, r#"["a","b"]"#)];
        group.throughput(Throughput::Bytes(fits[0].len() as u64));
        // `judge` has no time limit, which matters because an unoptimized build is slow.
        let verdict = schema.judge(&fits, &mut scratch).verdict;
        assert_eq!(verdict, Verdict::Conforms);
        group.bench_function(BenchmarkId::new("fit", size), |bencher| {
            bencher.iter(|| black_box(schema.judge_quickly(&fits, &mut scratch)));
        });
        let wrong = [arguments(bytes, r#"["a",7]"#)];
        let Verdict::Violates(violation) = schema.judge(&wrong, &mut scratch).verdict else {
            panic!("the second label is not a string")
        };
        assert_eq!(violation.misfits.count, 1);
        group.bench_function(BenchmarkId::new("do_not_fit", size), |bencher| {
            bencher.iter(|| black_box(schema.judge_quickly(&wrong, &mut scratch)));
        });
    }
    group.finish();
}

criterion_group!(benches, validate, arguments_of_a_call);
criterion_main!(benches);
