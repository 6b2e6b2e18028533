//! CPU time of a record: first each step alone, then the writer's thread of a live log at the rates of a busy proxy.
//! Records are like those of a proxied call: small arguments, an intent, and the first KiB of an answer, which carries
//! escaped JSON and is cut in the middle.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use mcpproxy_activity::chain::Appender;
use mcpproxy_activity::codec::{self, HeadRef, PayloadRef};
use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_activity::redact::Redactor;
use mcpproxy_activity::store::Store;
use mcpproxy_activity::view::View;
use mcpproxy_activity::{
    Activity, Config, Draft, Entry, Operation, Raw, Source, Status, Text, Type,
};

use super::probe;

/// Number of records processed in each step.
const STEP_RECORDS: u64 = 200_000;
/// Number of records per commit in the steps: those of 10 ms at 10 000 calls per second.
const STEP_BATCH: u64 = 100;
/// Rates of the live log in calls per second; the last one has no limit.
const RATES: [u64; 4] = [2_000, 10_000, 40_000, u64::MAX];
/// Duration of the measurement at each rate.
const HOLD: Duration = Duration::from_secs(4);
/// Maximum number of records per rate.
const MOST: u64 = 400_000;
/// Interval at which a paced submitter submits the records that are due.
const PACE: Duration = Duration::from_millis(1);
/// Number of bytes of an answer that are kept.
const HEAD_BYTES: usize = 1024;

/// An answer of about 10.8 KB: records as text and as structured content.
pub(super) fn answer() -> String {
    let item = |n: u32| {
        serde_json::json!({
            "id": n, "title": format!("Issue number {n}: the \"frobnicator\" stalls"),
            "state": if n.is_multiple_of(3) { "closed" } else { "open" },
            "labels": ["bug", "needs-triage"], "score": f64::from(n % 100) / 100.0,
            "url": format!("https://example.invalid/issues/{n}"),
        })
    };
    let data = serde_json::json!({ "total": 35, "items": (1..=35).map(item).collect::<Vec<_>>() });
    let text = serde_json::json!([{"type": "text", "text": data.to_string()}]);
    format!("{{\"content\":{text},\"structuredContent\":{data}}}")
}

/// Shared parts of the records of all calls.
pub(super) fn template() -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.set(Text::Server, "github");
    draft.set(Text::Tool, "list_issues");
    draft.set(Text::SessionId, "6f1f3c1e-8d0c-4b8e-9a54-1d1f0a2b3c4d");
    draft.set(Text::ClientName, "claude-code");
    draft.operation = Some(Operation::Read);
    draft.variant = "call_tool_read";
    draft
}

/// Entry of a call, made in the same way as in the proxy.
pub(super) fn entry(template: &Draft, answer: &[u8], n: u64) -> Entry {
    let mut draft = template.clone();
    let arguments = format!(r#"{{"owner":"octo","repo":"hello","page":{n},"labels":["bug"]}}"#);
    let intent = br#"{"operation_type":"read","data_sensitivity":"private","reason":"to see it"}"#;
    draft.keep(Raw::Arguments, arguments.as_bytes(), 4096);
    draft.keep(Raw::Response, answer, HEAD_BYTES);
    draft.keep(Raw::Intent, intent, 8192);
    draft.set(Text::RequestId, &n.to_string());
    draft.started = super::START + n * 100;
    draft.duration_us = 200 + n % 500;
    draft.overhead_us = 20 + n % 50;
    draft.into()
}

/// Prints the table.
pub(super) fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    steps(&dir.join("steps"))?;
    for rate in RATES {
        live(&dir.join("live"), rate)?;
    }
    Ok(())
}

/// Measures each step of the writer's work alone, on this thread.
fn steps(dir: &Path) -> Result<(), Box<dyn Error>> {
    let (template, answer) = (template(), answer());
    let entries: Vec<_> = (0..STEP_BATCH).map(|n| entry(&template, answer.as_bytes(), n)).collect();
    let redactor = Redactor::new(&[]);
    let step = |name: &str, work: &mut dyn FnMut(&Entry)| {
        let before = probe::own_cpu();
        for _ in 0..STEP_RECORDS / STEP_BATCH {
            entries.iter().for_each(&mut *work);
        }
        let micros = (probe::own_cpu() - before) as f64 / 1000.0 / STEP_RECORDS as f64;
        println!("{name:<34} {micros:6.2} µs per record");
    };
    step("redact the response", &mut |entry| {
        black_box(redactor.payload(black_box(entry.draft.payload(Raw::Response))));
    });
    step("redact arguments, intent, error", &mut |entry| {
        black_box(redactor.payload(black_box(entry.draft.payload(Raw::Arguments))));
        black_box(redactor.payload(black_box(entry.draft.payload(Raw::Intent))));
        black_box(redactor.text(black_box(entry.draft.text(Text::Error)), false));
    });
    let (mut head, mut body) = (Vec::new(), Vec::new());
    step("encode", &mut |entry| encode(black_box(entry), &mut head, &mut body));
    let mut last = Hash([0; 32]);
    step("hash", &mut |_| last = codec::chain(last, NodeId([1; 16]), 1, &head, &body));

    let store = Store::open(dir)?;
    let mut appender = Appender::resume(&View::new(store.snapshot()?)?, Redactor::new(&[]))?;
    // The CPU clock of this thread is too coarse for a step of one batch, so the steps are timed with the wall clock.
    let before = probe::own_cpu();
    let mut laps = [Duration::ZERO; 4];
    for _ in 0..STEP_RECORDS / STEP_BATCH {
        let mut start = Instant::now();
        let mut lap = |step: usize| {
            let now = Instant::now();
            laps.iter_mut().skip(step).take(1).for_each(|it| *it += now - start);
            start = now;
        };
        for entry in &entries {
            appender.push(entry, 1_767_225_600_000);
        }
        lap(0);
        let batch = appender.take().map(|it| it.batch).unwrap_or_default();
        lap(1);
        store.commit(batch)?;
        lap(2);
        store.sync()?;
        lap(3);
    }
    let cpu = (probe::own_cpu() - before) as f64 / 1000.0 / STEP_RECORDS as f64;
    println!("batches of {STEP_BATCH}, synced: {cpu:21.2} µs per record; of which");
    for (name, lap) in ["push", "take", "commit", "sync, including waits"].iter().zip(laps) {
        println!("  {name:<32} {:6.2}", lap.as_secs_f64() * 1e6 / STEP_RECORDS as f64);
    }
    drop((appender, store));
    Ok(fs::remove_dir_all(dir)?)
}

fn encode(entry: &Entry, head: &mut Vec<u8>, body: &mut Vec<u8>) {
    let draft = &entry.draft;
    head.clear();
    body.clear();
    codec::encode_head(
        &HeadRef {
            stored_ms: draft.started / 1000,
            kind: draft.kind,
            source: draft.source,
            principal: draft.text(Text::Principal),
            status: draft.status,
            operation: draft.operation,
            server: draft.text(Text::Server),
            tool: draft.text(Text::Tool),
            error: draft.text(Text::Error),
            started: draft.started,
            duration_us: draft.duration_us,
            overhead_us: draft.overhead_us,
            response_bytes: draft.payload(Raw::Response).total,
            session_id: draft.text(Text::SessionId),
            request_id: draft.text(Text::RequestId),
            parent: None,
            intent: draft.payload(Raw::Intent),
            variant: draft.variant,
            client_name: draft.text(Text::ClientName),
            repeated: draft.repeated,
        },
        head,
    );
    let (arguments, response) = (draft.payload(Raw::Arguments), draft.payload(Raw::Response));
    codec::encode_body(arguments, response, PayloadRef::default(), body);
}

/// Prints the CPU time of the threads of a log that takes `rate` calls per second.
fn live(dir: &Path, rate: u64) -> Result<(), Box<dyn Error>> {
    let config = Config { max_records: 0, retention_days: 0, max_size_mb: 0, ..Config::default() };
    let (activity, writer) = Activity::open(dir, config)?;
    let (template, answer) = (template(), answer());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let before = probe::threads()?;
    let start = Instant::now();
    let (mut sent, mut handed) = (0, Vec::new());
    runtime.block_on(async {
        while start.elapsed() < HOLD && sent < MOST {
            let due = (start.elapsed().as_secs_f64() * rate as f64).min((sent + 512) as f64) as u64;
            while sent < due.min(MOST) {
                let made = entry(&template, answer.as_bytes(), sent);
                let began = Instant::now();
                match activity.reserve().await {
                    Ok(slot) => drop(slot.submit(made)),
                    Err(error) => return eprintln!("{error}"),
                }
                handed.push(began.elapsed().as_secs_f64() * 1e6);
                sent += 1;
            }
            if rate < u64::MAX {
                tokio::time::sleep(PACE).await;
            }
        }
    });
    activity.flush()?;
    let took = start.elapsed().as_secs_f64();
    let after = probe::threads()?;
    let each = |ns: u64| ns as f64 / 1000.0 / sent as f64;
    let (mut own, mut others) = (0, 0);
    for (name, tid, ns) in &after {
        let was = before.iter().find(|it| it.1 == *tid).map_or(0, |it| it.2);
        match name.as_str() {
            "activity" => own += ns - was,
            _ if *tid == u64::from(std::process::id()) => {}
            _ => others += ns - was,
        }
    }
    println!(
        "{:>9.0} calls/s: writer {:5.2} µs CPU a record, store's threads {:5.2}; reserve and submit \
         p50 {:.2} µs, p99 {:.2} µs",
        sent as f64 / took,
        each(own),
        each(others),
        quantile(&mut handed, 0.5),
        quantile(&mut handed, 0.99),
    );
    writer.close()?;
    drop(activity);
    Ok(fs::remove_dir_all(dir)?)
}

fn quantile(times: &mut [f64], q: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(((times.len().saturating_sub(1)) as f64 * q) as usize).copied().unwrap_or(0.0)
}
