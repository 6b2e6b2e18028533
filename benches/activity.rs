//! What the activity log costs a call, and what its writer does with a record.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mcpproxy::activity::append::Appender;
use mcpproxy::activity::bytes::PayloadRef;
use mcpproxy::activity::redact::Redactor;
use mcpproxy::activity::store::Store;
use mcpproxy::activity::view::View;
use mcpproxy::activity::{
    Activity, Config, Draft, Entry, Filter, Operation, Page, Raw, Slot, Source, Status, Text, Type,
};

const ARGUMENTS: &str = r#"{"owner":"octo","repo":"hello","title":"It is broken","body":"Steps: \"open\", then close."}"#;
const RESPONSE: &str = r#"{"content":[{"type":"text","text":"{\"id\":1,\"state\":\"open\"}"}],"structuredContent":{"id":1,"state":"open","labels":["bug","later"]}}"#;

/// A call's entry, built as the proxy builds it: copied from slices.
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

/// A place in the log that holds the mark of the entry's call.
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
        // The difference to the one before is the cost of the mark.
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

    let mut group = c.benchmark_group("activity/writer");
    group.throughput(Throughput::Elements(1));
    if let Ok(store) = Store::open(&dir.path().join("empty"))
        && let Ok(view) = View::new(store.snapshot())
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
                appender.mark_begun(marks, black_box(&entry), 1_767_225_600_000);
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

/// The heads of answers that have no secret, as nearly all have none.
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
