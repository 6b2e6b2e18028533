//! Measures the cost of a fleet's ledger on a node: the CPU time to read the committed records of the log, check their
//! chain, build segments, sign them and put them into a store.
//!
//! `cargo run --release --example bench-ledger -- [RECORDS] [STORE]`; without STORE a temporary folder is used.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use mcpproxy_activity::record::Hash;
use mcpproxy_activity::{Activity, Config, Draft, Operation, Raw, Source, Status, Text, Type};
use mcpproxy_fleet::bucket::Bucket;
use mcpproxy_fleet::node_state::NodeKey;
use mcpproxy_fleet::parquet_table::RecordCollector;
use mcpproxy_fleet::segment::{self, SealedBy};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Size of a segment in canonical bytes: the default of `cluster.segment_bytes`.
const SEGMENT_BYTES: usize = 4 << 20;
/// Maximum size of a record in canonical bytes. The last record of a segment may exceed the segment's size by that
/// much.
const RECORD_BYTES: usize = 1024;
/// Rate for which the budget is defined, in records per second.
const RATE: f64 = 50_000.0;
/// Time for the log to finish its background work.
const SETTLE: Duration = Duration::from_secs(2);
/// Number of the first sealed record. The hash before it is not known to this program, and is read with it.
const FIRST: u64 = 1;

fn draft(n: u64) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    let servers = ["github", "files", "memory", "time"];
    draft.set(Text::Server, servers.get((n % 4) as usize).unwrap_or(&"github"));
    draft.set(Text::Tool, &format!("tool_{}", n % 30));
    draft.operation = Some(if n.is_multiple_of(3) { Operation::Write } else { Operation::Read });
    draft.set(Text::SessionId, &format!("session-{}", n / 1000));
    draft.set(Text::RequestId, &format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    draft.started = 1_767_225_600_000_000 + n * 20;
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

/// CPU time used by this process, in seconds.
fn processor() -> Result<f64, Box<dyn Error>> {
    let used = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64 / 1e6)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(500_000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    std::fs::create_dir(&store)?;
    let store = arguments.next().unwrap_or(format!("file://{}", store.display()));
    let log = folder.path().join("activity");
    let config = Config { max_records: 0, max_size_mb: 0, ..Config::default() };
    let (activity, writer) = Activity::open(&log, config)?;
    for n in 0..records {
        while activity.health().queued > 4096 {
            std::thread::sleep(Duration::from_millis(1));
        }
        activity.note(draft(n));
    }
    activity.flush().map_err(|error| error.to_string())?;
    std::thread::sleep(SETTLE);

    let key = NodeKey::open(folder.path())?;
    let verifier = key.verifier("bench", "a").ok_or("no key")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bucket = Bucket::open(&store)?;
    let (began, cpu) = (Instant::now(), processor()?);
    let (mut next, mut previous, mut segments, mut canonical, mut stored) = (FIRST, None, 0, 0, 0);
    let mut putting = 0.0;
    loop {
        let view = activity.stored()?;
        let mut rows =
            RecordCollector::new(view.node()).with_capacity(SEGMENT_BYTES + RECORD_BYTES);
        let mut after: Option<Hash> = None;
        view.chained_from(next, |record| {
            if rows.bytes() >= SEGMENT_BYTES {
                return ControlFlow::Break(());
            }
            after.get_or_insert(record.prev);
            rows.push(record);
            ControlFlow::Continue(())
        })?;
        drop(view);
        let Some(after) = after else { break };
        canonical += rows.bytes();
        let by = SealedBy { key: &key, verifier: &verifier, node: "a", after, previous };
        let sealed = segment::seal(&rows.finish(), by)?;
        (next, previous) = (sealed.checkpoint.last + 1, Some(sealed.checkpoint.hash()));
        segments += 1;
        stored += sealed.bytes.len();
        let before = processor()?;
        runtime.block_on(bucket.put(&format!("nodes/a/segments/{}", sealed.name), sealed.bytes))?;
        putting += processor()? - before;
    }
    let (took, cpu) = (began.elapsed().as_secs_f64(), processor()? - cpu);
    let sealed = (next - FIRST) as f64;
    let each = cpu / sealed * 1e6;
    println!("{sealed} records in {segments} segments into {}", bucket.shown());
    println!(
        "canonical bytes per record {:.0}, in the store {:.0}",
        canonical as f64 / sealed,
        stored as f64 / sealed
    );
    println!(
        "{:.0} records/s sustained; CPU {each:.2} us per record, of which {:.2} for uploads",
        sealed / took,
        putting / sealed * 1e6
    );
    println!("at {RATE:.0} records/s: {:.0} % of one core", each * RATE / 1e4);
    writer.close()?;
    Ok(())
}
