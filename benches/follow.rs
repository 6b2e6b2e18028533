//! How fast an index node catches up with a node's segments in a folder: `cargo bench --bench follow [-- RECORDS]`.
//!
//! Not by criterion: one run over a backlog is what is asked for.
#![expect(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mcpproxy::activity::Retention;
use mcpproxy::activity::chained::ChainedRecord;
use mcpproxy::activity::codec::{self, PayloadRef};
use mcpproxy::activity::record::{HeadRef, NodeId, Operation, Source, Status, Type};
use mcpproxy::fleet::bucket::Bucket;
use mcpproxy::fleet::config::NodeName;
use mcpproxy::fleet::node_key::NodeKey;
use mcpproxy::fleet::record_rows::RecordCollector;
use mcpproxy::fleet::segment::{self, SealedBy};
use mcpproxy::fleet::{FleetFollower, FleetIndex, FollowSettings, IndexRole};

const FLEET: &str = "01010101010101010101010101010101";
const LOG: NodeId = NodeId([2; 16]);
const SEGMENT_RECORDS: u64 = 8192;
const ARGUMENTS: &[u8] =
    br#"{"owner":"octo","repo":"hello","title":"It is broken","body":"Steps: open, then close."}"#;
const RESPONSE: &[u8] =
    br#"{"content":[{"type":"text","text":"ok"}],"structuredContent":{"id":1,"state":"open"}}"#;

/// Puts the segments of a node into the folder; their bytes.
fn seal(folder: &std::path::Path, records: u64) -> u64 {
    let key = NodeKey::open(folder).expect("a key");
    let verifier = key.verifier(FLEET, "a").expect("a name");
    let write = |path: &str, bytes: &[u8]| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, bytes).expect("written");
    };
    write("fleet.json", format!(r#"{{"format":1,"fleet":"{FLEET}"}}"#).as_bytes());
    let claim = serde_json::json!({"format": 1, "node": "a", "log": LOG.to_string(), "key": verifier.to_string()});
    write("nodes/a/claim.json", claim.to_string().as_bytes());
    let (mut hash, mut previous, mut seq, mut total) = (codec::genesis(LOG), None, 1, 0);
    while seq <= records {
        let (mut rows, after) = (RecordCollector::new(LOG), hash);
        for seq in seq..seq + SEGMENT_RECORDS {
            let request = format!("request-{seq}");
            let head = HeadRef {
                stored_ms: 1_767_225_600_000 + seq / 50,
                kind: Type::ToolCall,
                source: Source::Mcp,
                principal: "token:ci",
                status: Status::Success,
                operation: Some(Operation::Write),
                server: "github",
                tool: "create_issue",
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
            };
            let (mut bytes, mut body) = (Vec::new(), Vec::new());
            codec::encode_head(&head, &mut bytes);
            let part = |bytes: &'static [u8]| PayloadRef { bytes, total: bytes.len() as u64 };
            codec::encode_body(part(ARGUMENTS), part(RESPONSE), part(b"{}"), &mut body);
            let prev = hash;
            hash = codec::chain(prev, LOG, seq, &bytes, &body);
            rows.push(&ChainedRecord { seq, prev, hash, head: &bytes, body: &body });
        }
        let by = SealedBy { key: &key, verifier: &verifier, node: "a", after, previous };
        let sealed = segment::seal(&rows.finish(), by).expect("sealed");
        previous = Some(sealed.checkpoint.hash());
        total += sealed.bytes.len() as u64;
        write(&format!("nodes/a/segments/{}", sealed.name), &sealed.bytes);
        seq += SEGMENT_RECORDS;
    }
    total
}

fn main() {
    let given = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let records: u64 = given.unwrap_or(1_000_000);
    let (store, data) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let bytes = seal(store.path(), records);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let index = Arc::new(FleetIndex::new(IndexRole::Whole));
    let settings = FollowSettings {
        role: IndexRole::Whole,
        own: NodeName::parse("b").expect("a name"),
        folder: data.path().join("index"),
        flush: Duration::from_secs(5),
        retention: Retention { days: 0, max_records: 0, max_size_mb: 0 },
    };
    let bucket = Bucket::open(&format!("file://{}", store.path().display())).expect("a store");
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
    let rate = taken as f64 / took.as_secs_f64();
    println!(
        "{taken} records in {bytes} bytes of segments: {:.2} s, {rate:.0} records/s",
        took.as_secs_f64()
    );
}
