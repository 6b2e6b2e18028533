//! Judging a conforming document, beside what it is measured against: serde_json and boon, the
//! tape alone, and a copy of the bytes.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mcpproxy::schema::compile::{Engine, Settings, compile};
use mcpproxy::schema::judge::{JudgeScratch, Verdict};
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

criterion_group!(benches, validate);
criterion_main!(benches);
