//! Cost of the activity log for a call, and of a record for the writer.

use std::collections::VecDeque;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mcpproxy_activity::chain::Appender;
use mcpproxy_activity::record::PayloadRef;
use mcpproxy_activity::redact::Redactor;
use mcpproxy_activity::store::Store;
use mcpproxy_activity::view::View;
use mcpproxy_activity::{
    Activity, Config, Draft, Entry, Filter, Operation, Page, Raw, Slot, Source, Status, Text, Type,
};

const ARGUMENTS: &str = r#"{"owner":"octo","repo":"hello","title":"It is broken","body":"Steps: \"open\", then close."}"#;
const RESPONSE: &str = r#"{"content":[{"type":"text","text":"{\"id\":1,\"state\":\"open\"}"}],"structuredContent":{"id":1,"state":"open","labels":["bug","later"]}}"#;

/// A call's entry, built like in the proxy, by copying from slices.
fn entry(request_id: &str) -> Box<Entry> {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.started = 1_767_225_600_000_000;
    draft.set(Text::SessionId, "0b7e2a1c-session");
    draft.set(Text::ClientName, "client");
    draft.set(Text::RequestId, request_id);
    draft.set(Text::Server, "github");
    draft.set(Text::Tool, "create_issue");
    draft.operation = Some(Operation::Write);
    draft.variant = "call_tool_write";
    draft.keep(Raw::Arguments, ARGUMENTS.as_bytes(), 4096);
    draft.keep(Raw::Intent, br#"{"operation_type":"write"}"#, 4096);
    draft.append(Raw::Response, RESPONSE.as_bytes(), 1024);
    draft.into()
}

/// Reserves a slot in the log and begins the entry's call, which sets the mark of the call. Returns the slot.
async fn marked(activity: &Activity, entry: &mut Box<Entry>) -> Option<Slot> {
    let mut slot = activity.reserve().await.ok()?;
    slot.begin(entry).await.ok()?;
    Some(slot)
}

fn activity(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let (Ok(runtime), Ok(dir)) = (runtime, tempfile::tempdir()) else { return };

    let mut group = c.benchmark_group("activity/call");
    group.bench_function("build the entry", |b| b.iter(|| entry(black_box("request-1"))));
    group.finish();
    if let Ok((activity, writer)) = Activity::open(&dir.path().join("log"), Config::default()) {
        let mut group = c.benchmark_group("activity/call");
        group.bench_function("reserve, submit", |b| {
            b.iter_batched(
                || entry("request-1"),
                |entry| {
                    runtime.block_on(async {
                        if let Ok(slot) = activity.reserve().await {
                            slot.submit(entry);
                        }
                    });
                },
                BatchSize::SmallInput,
            );
        });
        // The difference from the previous benchmark is the cost of the mark.
        group.bench_function("reserve, begin, submit", |b| {
            b.iter_batched(
                || entry("request-1"),
                |mut entry| {
                    runtime.block_on(async {
                        if let Some(slot) = marked(&activity, &mut entry).await {
                            slot.submit(entry);
                        }
                    });
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("reserve, begin, submit before the reply", |b| {
            b.iter_batched(
                || entry("request-1"),
                |mut entry| {
                    runtime.block_on(async {
                        if let Some(slot) = marked(&activity, &mut entry).await {
                            let _ = slot.submit_before_reply(entry).await;
                        }
                    });
                },
                BatchSize::SmallInput,
            );
        });
        group.finish();
        let mut group = c.benchmark_group("activity/query");
        group.bench_function("list 50", |b| {
            b.iter(|| {
                activity.list(&Filter::default(), &Page::default()).map(|it| it.records.len())
            })
        });
        drop(writer);
        group.finish();
    }

    marks(c, &runtime, &dir.path().join("marks"));

    let mut group = c.benchmark_group("activity/writer");
    group.throughput(Throughput::Elements(1));
    if let Ok(store) = Store::open(&dir.path().join("empty"))
        && let Ok(view) = store.snapshot().and_then(View::new)
        && let Ok(mut appender) = Appender::resume(&view, Redactor::new(&[]))
    {
        let entry = entry("request-1");
        group.bench_function("redact, encode, chain", |b| {
            b.iter(|| {
                appender.push(black_box(&entry), 1_767_225_600_000);
                if appender.pending() == 1024 {
                    black_box(appender.take());
                }
            })
        });
        let mut marks = 0;
        group.bench_function("redact, encode a mark", |b| {
            b.iter(|| {
                appender.mark_call(marks, black_box(&entry), 1_767_225_600_000);
                marks += 1;
                if marks % 1024 == 0 {
                    black_box(appender.take());
                }
            })
        });
    }
    let redactor = Redactor::new(&[]);
    let response = PayloadRef::cut(RESPONSE.as_bytes(), 1024);
    group.throughput(Throughput::Bytes(RESPONSE.len() as u64));
    group.bench_function("redact a response", |b| {
        b.iter(|| redactor.payload(black_box(response)).1)
    });
    group.finish();
}

/// CPU time of the calling side and of the log's thread, for calls with and without a mark, while `UNDER_WAY` calls are
/// in flight. The difference is the cost of the mark.
fn marks(c: &mut Criterion, runtime: &tokio::runtime::Runtime, dir: &Path) {
    const UNDER_WAY: usize = 32;
    let Ok((activity, writer)) = Activity::open(dir, Config::default()) else { return };
    let calls = |iterations: u64, operation: Operation| {
        runtime.block_on(async {
            let mut under_way = VecDeque::with_capacity(UNDER_WAY + 1);
            for _ in 0..iterations {
                let mut entry = entry("request-1");
                entry.draft.operation = Some(operation);
                let Ok(mut slot) = activity.reserve().await else { continue };
                let _ = slot.begin(&mut entry).await;
                under_way.push_back((slot, entry));
                if under_way.len() > UNDER_WAY
                    && let Some((slot, entry)) = under_way.pop_front()
                {
                    let _ = slot.submit_before_reply(entry).await;
                }
            }
        });
        let _ = activity.flush();
    };
    let mut group = c.benchmark_group("activity/mark");
    group.throughput(Throughput::Elements(1));
    let whose = [
        ("the call's side", std::process::id().to_string()),
        ("the log's thread", task("activity").unwrap_or_default()),
    ];
    for (side, task) in whose {
        for (mark, operation) in [("without", Operation::Read), ("with", Operation::Write)] {
            group.bench_function(format!("{side}, {mark}"), |b| {
                b.iter_custom(|iterations| {
                    let before = cpu_time(&task);
                    calls(iterations, operation);
                    cpu_time(&task).saturating_sub(before)
                })
            });
        }
    }
    drop(writer);
    group.finish();
}

/// Id of the thread of this process that has this name.
fn task(name: &str) -> Option<String> {
    let mut tasks = fs::read_dir("/proc/self/task").ok()?.flatten();
    let task = tasks.find(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    })?;
    task.file_name().into_string().ok()
}

/// CPU time of a thread of this process so far.
fn cpu_time(task: &str) -> Duration {
    let text = fs::read_to_string(format!("/proc/self/task/{task}/schedstat")).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Redaction of the beginnings of answers that contain no secret, like nearly all answers.
fn redact(c: &mut Criterion) {
    let item = |id: u32| {
        let url = "https://example.invalid/octo/hello";
        serde_json::json!({ "id": id, "name": "hello", "url": url, "private": false, "body": "A b." })
    };
    let items = serde_json::json!({ "items": (0..16).map(item).collect::<Vec<_>>() }).to_string();
    let prose =
        "It is said that \"the quick\" one is not the latest version: see there.\n".repeat(32);
    let in_text = |text: &str| {
        serde_json::json!({ "content": [{ "type": "text", "text": text }] }).to_string()
    };
    let numbers = |n: u32| serde_json::json!({ "id": n, "x": [n, 2 * n], "mean": n });
    let numbers = serde_json::json!((0..64).map(numbers).collect::<Vec<_>>()).to_string();

    let redactor = Redactor::new(&[]);
    let mut group = c.benchmark_group("redact");
    for (name, text) in
        [("JSON in text", in_text(&items)), ("prose", in_text(&prose)), ("numbers", numbers)]
    {
        let payload = PayloadRef::cut(text.as_bytes(), 1024);
        group.throughput(Throughput::Bytes(payload.bytes.len() as u64));
        group.bench_function(name, |b| b.iter(|| redactor.payload(black_box(payload)).1));
    }
    group.finish();
}

criterion_group!(benches, activity, redact);
criterion_main!(benches);
