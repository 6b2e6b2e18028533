//! Measures the activity log at a million records: sustained records per second with fsync, pages for each filter,
//! single records, the summary, bytes on disk, pruning.
//!
//! `cargo run --release --example bench-activity -- [RECORDS] [FOLDER]`. With `cost` in place of RECORDS it measures
//! the CPU time that a record of a proxied call takes, step by step and on the writer's thread.

mod cost;
mod probe;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use mcpproxy_activity::{
    Activity, Config, Draft, Filter, From, Operation, PORTION, Page, Payloads, Period, Raw, Source,
    Status, Text, Type,
};

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of threads that submit records, like the workers of the proxy.
const SUBMITTERS: u64 = 2;
/// Number of times each query is made.
const ROUNDS: usize = 200;
/// Time of the first record: the start of 2026, in microseconds.
const START: u64 = 1_767_225_600_000_000;

fn draft(template: &Draft, n: u64) -> Draft {
    let servers = ["github", "files", "memory", "time"];
    let pick = |list: &[&str], n: u64| {
        list.get((n % list.len() as u64) as usize).map_or("", |it| it).to_owned()
    };
    let mut draft = template.clone();
    draft.set(Text::Server, &pick(&servers, n));
    draft.set(Text::Tool, &format!("tool_{}", n % 30));
    draft.status = if n.is_multiple_of(50) { Status::Error } else { Status::Success };
    draft.operation = Some(if n.is_multiple_of(3) { Operation::Write } else { Operation::Read });
    draft.set(Text::SessionId, &format!("session-{}", n / 1000));
    draft.set(Text::RequestId, &format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    draft.started = START + n * 2_000_000;
    draft.duration_us = 500 + n % 5000;
    let arguments = format!(
        r#"{{"owner":"octo","number":{n},"title":"It is broken","body":"Steps: open {} and close."}}"#,
        n * 31
    );
    draft.keep(Raw::Arguments, arguments.as_bytes(), 4096);
    let response = format!(
        r#"{{"content":[{{"type":"text","text":"{{\"id\":{n},\"state\":\"open\"}}"}}],"structuredContent":{{"id":{n},"state":"open","hash":"{:x}"}}}}"#,
        n.wrapping_mul(0xd129_0e2d_7f4a_7c15)
    );
    draft.keep(Raw::Response, response.as_bytes(), 1024);
    draft
}

fn percentiles(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times.get(((times.len() - 1) as f64 * q) as usize).copied().unwrap_or(0.0);
    format!("p50 {:8.3} ms   p99 {:8.3} ms", at(0.5), at(0.99))
}

fn timed<T>(rounds: usize, mut work: impl FnMut() -> T) -> String {
    let time = |_| {
        let start = Instant::now();
        std::hint::black_box(work());
        start.elapsed().as_secs_f64() * 1000.0
    };
    percentiles((0..rounds).map(time).collect())
}

/// Reads all records that match a filter, as an export does. Returns the number of records and of bytes of JSON.
fn export(activity: &Activity, filter: &Filter) -> Result<(u64, u64), Box<dyn Error>> {
    let view = activity.view()?;
    let (mut seq, mut found, mut bytes) = (0, 0, 0);
    loop {
        let (records, last) = view.since(seq, filter, PORTION)?;
        if records.is_empty() {
            return Ok((found, bytes));
        }
        for record in &records {
            found += 1;
            bytes += serde_json::to_vec(record)?.len() as u64 + 1;
        }
        seq = last;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "1000000".into());
    let dir =
        args.next().map_or_else(|| std::env::temp_dir().join("bench-activity"), PathBuf::from);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    if what == "cost" {
        return cost::run(&dir);
    }
    let records: u64 = what.parse()?;
    let config = Config { max_records: 0, retention_days: 0, max_size_mb: 0, ..Config::default() };
    let (activity, writer) = Activity::open(&dir, config)?;
    let mut template = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    template.variant = "call_tool_read";
    template.set(Text::ClientName, "client");
    template.keep(Raw::Intent, br#"{"operation_type":"read","reason":"to see"}"#, 1024);

    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in 0..SUBMITTERS {
            let (activity, template) = (activity.clone(), &template);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                let Ok(runtime) = runtime else { return };
                runtime.block_on(async {
                    for n in (part..records).step_by(SUBMITTERS as usize) {
                        match activity.reserve().await {
                            Ok(slot) => drop(slot.submit(draft(template, n))),
                            Err(error) => return eprintln!("{error}"),
                        }
                    }
                });
            });
        }
    });
    activity.flush()?;
    let took = start.elapsed().as_secs_f64();
    println!("{records} records, durable: {took:.2} s, {:.0} records/s", records as f64 / took);

    println!("a write of 64 KiB and fdatasync alone     {}", percentiles(probe::syncs(&dir)?));

    let page = Page::default();
    let none = Filter::default;
    let filters = [
        ("no filter", none()),
        ("type", Filter { kinds: vec![Type::ToolCall], ..none() }),
        ("type, none there", Filter { kinds: vec![Type::Approval], ..none() }),
        ("status", Filter { statuses: vec![Status::Error], ..none() }),
        ("server", Filter { servers: vec!["github".into()], ..none() }),
        ("tool", Filter { tools: vec!["tool_17".into()], ..none() }),
        ("intent type", Filter { operations: vec![Operation::Write], ..none() }),
        ("session, old", Filter { sessions: vec!["session-3".into()], ..none() }),
        (
            "request, old",
            Filter { requests: vec![draft(&template, 77).text(Text::RequestId).into()], ..none() },
        ),
        (
            "time range, old",
            Filter { since: Some(START), until: Some(START + 3_600_000_000), ..none() },
        ),
        (
            "server + tool + status",
            Filter {
                servers: vec!["github".into()],
                tools: vec!["tool_0".into()],
                statuses: vec![Status::Error],
                ..none()
            },
        ),
        (
            "server + tool, disjoint",
            Filter {
                servers: vec!["github".into()],
                tools: vec!["tool_1".into()],
                statuses: vec![Status::Error],
                ..none()
            },
        ),
    ];
    for (name, filter) in &filters {
        let found = activity.list(filter, &page)?.records.len();
        let times = timed(ROUNDS, || activity.list(filter, &page).map(|it| it.records.len()));
        println!("page of 50, {name:<24} {found:>3} found   {times}");
    }
    let exclude = Page { payloads: Payloads::Exclude, ..page };
    println!(
        "page of 50, without payloads            {}",
        timed(ROUNDS, || activity.list(&none(), &exclude).map(|it| it.records.len()))
    );
    let far = Page { from: From::Offset(records / 2), ..page };
    println!(
        "page of 50, offset {:<8}             {}",
        records / 2,
        timed(ROUNDS, || activity.list(&none(), &far).map(|it| it.records.len()))
    );
    for (name, filter) in filters.iter().take(7) {
        println!("count, {name:<29}    {}", timed(20, || activity.count(filter).unwrap_or(0)));
    }
    let mut id = activity.list(&none(), &far)?.records.first().map(|it| it.id);
    println!(
        "get by id                               {}",
        timed(ROUNDS, || id.take().map(|it| {
            id = Some(it);
            activity.get(it).is_ok()
        }))
    );
    let now = START + records * 2_000_000;
    println!(
        "summary of 30 days                      {}",
        timed(20, || activity.summary(Period::Month, now).map(|it| it.stats.total()))
    );
    let rare =
        Filter { requests: vec![draft(&template, 77).text(Text::RequestId).into()], ..none() };
    for (name, filter) in [("everything", none()), ("one request", rare)] {
        let (before, start) = (probe::reset_peak()?, Instant::now());
        let (found, bytes) = export(&activity, &filter)?;
        let took = start.elapsed().as_secs_f64();
        println!(
            "export of {name}: {found} records, {} MB in {took:.3} s, {:.0} records/s; memory {} MiB, \
             at most {} more",
            bytes >> 20,
            found as f64 / took,
            before >> 10,
            probe::peak()?.saturating_sub(before) >> 10
        );
    }
    let start = Instant::now();
    let report = activity.verify(|_, _| {})?;
    println!("verify: {} records in {:.2} s", report.records, start.elapsed().as_secs_f64());
    let disk = activity.health().disk_bytes;
    println!("disk, including journals: {} bytes, {} per record", disk, disk / records.max(1));
    let start = Instant::now();
    writer.close()?;
    println!("close and seal: {:.2} s", start.elapsed().as_secs_f64());
    drop(activity);
    let start = Instant::now();
    let config = Config {
        max_records: records / 10,
        retention_days: 0,
        max_size_mb: 0,
        min_retention: std::time::Duration::ZERO,
        ..Config::default()
    };
    let (activity, writer) = Activity::open(&dir, config)?;
    println!("open: {:.3} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let removed = activity.prune()?;
    println!(
        "prune: {removed} records in {:.2} s; disk {} bytes before, {} after",
        start.elapsed().as_secs_f64(),
        disk,
        activity.health().disk_bytes
    );
    writer.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
