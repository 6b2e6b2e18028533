//! Throughput of an index node that catches up with a node's segments in a folder: `cargo bench --bench follow [--
//! RECORDS]`.
//!
//! With `-- RECORDS query`: latency of a page of 50 over three index nodes with one shard each and RECORDS in total,
//! from the encoded question to the merged records, without the network.
//!
//! Not a criterion benchmark, because a single run over a backlog is measured.
#![expect(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mcpproxy_activity::codec::{self, PayloadRef};
use mcpproxy_activity::merged::merge_pages;
use mcpproxy_activity::record::{HeadRef, NodeId, Operation, Source, Status, Type};
use mcpproxy_activity::scan::ChainedRecord;
use mcpproxy_activity::{Activity, Config, Filter, Listing, Retention};
use mcpproxy_fleet::bucket::Bucket;
use mcpproxy_fleet::config::NodeName;
use mcpproxy_fleet::fleet_logs;
use mcpproxy_fleet::node_state::NodeKey;
use mcpproxy_fleet::parquet_table::RecordCollector;
use mcpproxy_fleet::record_questions::{AnswerHead, FilterSent, LogRange, RecordQuestion};
use mcpproxy_fleet::segment::{self, SealedBy};
use mcpproxy_fleet::{FleetFollower, FleetIndex, FleetLogs, FollowSettings, IndexRole};

const FLEET: &str = "01010101010101010101010101010101";
/// Number of timed queries of each kind.
const QUERIES: usize = 1000;
const SEGMENT_RECORDS: u64 = 8192;
/// One call in this number is an error of another tool.
const RARE: u64 = 10_000;
const ARGUMENTS: &[u8] =
    br#"{"owner":"octo","repo":"hello","title":"It is broken","body":"Steps: open, then close."}"#;
const RESPONSE: &[u8] =
    br#"{"content":[{"type":"text","text":"ok"}],"structuredContent":{"id":1,"state":"open"}}"#;

/// Writes the segments of a node to the folder. Returns their size in bytes.
fn seal(folder: &std::path::Path, node: &str, log: NodeId, records: u64) -> u64 {
    let own = tempfile::tempdir().expect("a folder");
    let key = NodeKey::open(own.path()).expect("a key");
    let verifier = key.verifier(FLEET, node).expect("a name");
    let write = |path: &str, bytes: &[u8]| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, bytes).expect("written");
    };
    write("fleet.json", format!(r#"{{"format":1,"fleet":"{FLEET}"}}"#).as_bytes());
    let claim = serde_json::json!({"format": 1, "node": node, "log": log.to_string(), "key": verifier.to_string()});
    write(&format!("nodes/{node}/claim.json"), claim.to_string().as_bytes());
    let (mut hash, mut previous, mut seq, mut total) = (codec::genesis(log), None, 1, 0);
    while seq <= records {
        let (mut rows, after) = (RecordCollector::new(log), hash);
        for seq in seq..seq + SEGMENT_RECORDS {
            let request = format!("request-{seq}");
            let rare = seq % RARE == 0;
            let head = HeadRef {
                stored_ms: 1_767_225_600_000 + seq / 50,
                kind: Type::ToolCall,
                source: Source::Mcp,
                principal: "token:ci",
                status: if rare { Status::Error } else { Status::Success },
                operation: Some(Operation::Write),
                server: "github",
                tool: if rare { "delete_issue" } else { "create_issue" },
                error: "",
                started: 1_767_225_600_000_000 + seq * 20,
                duration_us: 12_304,
                overhead_us: 41,
                response_bytes: RESPONSE.len() as u64,
                session_id: "0b7e2a1c-session",
                request_id: &request,
                parent: None,
                intent: PayloadRef { bytes: b"{}", total: 2 },
                variant: "call_tool_write",
                client_name: "client",
                repeated: 1,
            };
            let (mut bytes, mut body) = (Vec::new(), Vec::new());
            codec::encode_head(&head, &mut bytes);
            let part = |bytes: &'static [u8]| PayloadRef { bytes, total: bytes.len() as u64 };
            codec::encode_body(part(ARGUMENTS), part(RESPONSE), part(b"{}"), &mut body);
            let prev = hash;
            hash = codec::chain(prev, log, seq, &bytes, &body);
            rows.push(&ChainedRecord { seq, prev, hash, head: &bytes, body: &body });
        }
        let by = SealedBy { key: &key, verifier: &verifier, node, after, previous };
        let sealed = segment::seal(&rows.finish(), by).expect("sealed");
        previous = Some(sealed.checkpoint.hash());
        total += sealed.bytes.len() as u64;
        write(&format!("nodes/{node}/segments/{}", sealed.name), &sealed.bytes);
        seq += SEGMENT_RECORDS;
    }
    total
}

/// Follows the store until all `records` are taken. Returns the index, the number of records taken and the time.
fn follow(
    (store, data): (&std::path::Path, &std::path::Path),
    role: IndexRole,
    records: u64,
    runtime: &tokio::runtime::Runtime,
) -> (Arc<FleetIndex>, u64, Duration) {
    let index = Arc::new(FleetIndex::new(role));
    let settings = FollowSettings {
        role,
        own: NodeName::parse("asked").expect("a name"),
        folder: data.join(format!("index-{}", role.to_string().replace('/', "-"))),
        flush: Duration::from_secs(5),
        retention: Retention { days: 0, max_records: 0, max_size_mb: 0, min_age: Duration::ZERO },
    };
    let bucket = Bucket::open(&format!("file://{}", store.display())).expect("a store");
    std::fs::create_dir_all(&settings.folder).expect("made");
    let begun = Instant::now();
    let follower = FleetFollower::start(settings, bucket, Arc::clone(&index), runtime.handle());
    let taken = loop {
        let report = index.report();
        let status = report.nodes.first().map(|node| node.status.clone()).unwrap_or_default();
        assert!(status.faults.is_empty() && status.error.is_none(), "{status:?}");
        if status.last >= records {
            break status.records;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let took = begun.elapsed();
    runtime.block_on(follower.end());
    (index, taken, took)
}

/// Measures the time for a page of 50 over all logs. Returns the number of records in the page.
fn query(what: &str, logs: &[(String, FleetLogs)], filter: &Filter, payloads: bool) -> usize {
    let mut found = 0;
    let mut times: Vec<_> = (0..QUERIES)
        .map(|_| {
            let begun = Instant::now();
            let pages = logs.iter().map(|(node, logs)| {
                let question = RecordQuestion::List {
                    ranges: vec![LogRange::all(node)],
                    filter: FilterSent::of(filter),
                    limit: 50,
                    before: None,
                    payloads,
                    metadata: false,
                    count: false,
                    bytes: 8 << 20,
                };
                let question = RecordQuestion::decode(&question.encode()).expect("a question");
                let answer = fleet_logs::answer(logs, question).expect("an answer");
                let (head, records) = AnswerHead::records(&answer).expect("records");
                Listing { records, next_cursor: head.next_id().expect("an id") }
            });
            let merged = merge_pages(pages.collect::<Vec<_>>(), 50);
            found = merged.records.len();
            begun.elapsed()
        })
        .collect();
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("{what}: p50 {:?}, p99 {:?}", at(50), at(99));
    found
}

fn main() {
    let given = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let records: u64 = given.unwrap_or(1_000_000);
    let (store, data) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if !std::env::args().any(|argument| argument == "query") {
        let bytes = seal(store.path(), "a", NodeId([2; 16]), records);
        let (_, taken, took) =
            follow((store.path(), data.path()), IndexRole::Whole, records, &runtime);
        let rate = taken as f64 / took.as_secs_f64();
        println!(
            "{taken} records in {bytes} bytes of segments: {:.2} s, {rate:.0} records/s",
            took.as_secs_f64()
        );
        return;
    }
    let (activity, writer) =
        Activity::open(&data.path().join("own"), Config::default()).expect("a log");
    activity.set_node_name("asked");
    let mut logs = Vec::new();
    for shard in 1_u8..=3 {
        let role = IndexRole::parse(&format!("{shard}/3")).expect("a role");
        let names = (0..).map(|at| format!("node{at}"));
        let node = names.into_iter().find(|name| role.holds(name)).expect("a name");
        let each = records / 3;
        seal(store.path(), &node, NodeId([shard; 16]), each);
        let (index, taken, took) = follow((store.path(), data.path()), role, each, &runtime);
        println!("shard {role}: {taken} records in {:.2} s", took.as_secs_f64());
        logs.push((node, FleetLogs::new(activity.clone(), Some(index), None)));
    }
    let of_tool = |tool: &str| Filter { tools: vec![tool.into()], ..Filter::default() };
    let of_status = |status| Filter {
        servers: vec!["github".into()],
        principals: vec!["token:ci".into()],
        statuses: vec![status],
        ..Filter::default()
    };
    assert_eq!(query("the newest 50", &logs, &Filter::default(), true), 50);
    assert_eq!(query("50 of a tool", &logs, &of_tool("create_issue"), true), 50);
    let rare = "50 of a tool that is called once in 10 000 times";
    assert_eq!(query(rare, &logs, &of_tool("delete_issue"), true), 50);
    let three = "50 of a server, a principal and a status, without payloads";
    assert_eq!(query(three, &logs, &of_status(Status::Success), false), 50);
    let rare = "50 of a server, a principal and a status that one in 10 000 has, without payloads";
    assert_eq!(query(rare, &logs, &of_status(Status::Error), false), 50);
    let none = "a server, a principal and a status that none has";
    assert_eq!(query(none, &logs, &of_status(Status::Blocked), false), 0);
    drop(logs);
    drop(activity);
    writer.close().expect("closed");
}
