//! Throughput of the scanner. Baselines: copying the bytes, and serde_json skipping over them.
//!
//! Budget (in one run): at least 10 GB/s with AVX2 at 13 KB and 13 MB regardless of the size of the chunks, at least 1
//! GB/s with the portable kernel. `cut-4096` feeds chunks of 4 KiB, `cut-1460` chunks of one network segment; `guarded`
//! has the default limits.

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;

use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use mcpproxy_json::scan::{Kernel, ScanLimits, ScannedMessage, Scanner};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

const DEFAULT_LIMITS: ScanLimits = ScanLimits { max_bytes: 5 << 20, max_depth: 64 };

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<ToolResult<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    structured_content: Option<&'a RawValue>,
    is_error: Option<bool>,
}

fn scan(message: &[u8], limits: ScanLimits, kernel: Kernel, chunk: usize) -> ScannedMessage {
    let mut scanner = Scanner::with_kernel(limits, 1, kernel);
    let fed = message.chunks(chunk).try_for_each(|chunk| scanner.feed(chunk));
    assert_eq!(fed.and(scanner.finish()), Ok(()));
    *scanner.envelope()
}

fn size(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, message: &[u8]) {
    group.throughput(Throughput::Bytes(message.len() as u64));
    let (fastest, portable, whole) = (Kernel::fastest(), Kernel::PORTABLE, message.len());
    let second = Kernel::usable().nth(1).unwrap_or(portable);
    for (what, limits, kernel, chunk) in [
        ("scan", ScanLimits::NONE, fastest, whole),
        ("scan-guarded", DEFAULT_LIMITS, fastest, whole),
        ("scan-cut-4096", DEFAULT_LIMITS, fastest, 4096),
        ("scan-cut-1460", DEFAULT_LIMITS, fastest, 1460),
        ("second", DEFAULT_LIMITS, second, whole),
        ("portable", DEFAULT_LIMITS, portable, whole),
    ] {
        group.bench_function(format!("{what}/{name}"), |bencher| {
            bencher.iter(|| scan(black_box(message), limits, kernel, chunk));
        });
    }
    let mut copy = vec![0; message.len()];
    group.bench_function(format!("memcpy/{name}"), |bencher| {
        bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(message)));
    });
    group.bench_function(format!("serde_json-ignored/{name}"), |bencher| {
        bencher.iter(|| serde_json::from_slice::<IgnoredAny>(black_box(message)).is_ok());
    });
    group.bench_function(format!("serde_json-raw/{name}"), |bencher| {
        bencher.iter(|| {
            let message = serde_json::from_slice::<Message<'_>>(black_box(message)).ok();
            message.map(|message| {
                let result = message.result.map(|r| (r.structured_content, r.is_error));
                black_box((message.id, result)).0.is_some()
            })
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("scan");
    for &(name, bytes) in common::sizes() {
        size(&mut group, name, &common::response(bytes));
    }
    group.finish();
    criterion.final_summary();
}
