//! Logs of earlier versions are read, verified, continued and salvaged unchanged.

use std::path::Path;

use mcpproxy_activity::bytes::Packer;
use mcpproxy_activity::codec::{body_block, chain, genesis, head_block};
use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_activity::store::{Batch, Space, Store};
use mcpproxy_activity::{Activity, Config, Filter, Page, Record, Status, Type, Writer, salvage};

use crate::support::{call, slot};

/// Node id of the log.
const NODE: NodeId = NodeId([3; 16]);
/// Type and status of each of its records.
const RECORDS: [(Type, Status); 5] = [
    (Type::SystemStart, Status::Success),
    (Type::ToolCall, Status::Success),
    (Type::PolicyDecision, Status::Warning),
    (Type::InternalToolCall, Status::Success),
    (Type::ToolCall, Status::Unknown),
];

/// Part `name` of the fixture.
fn part(name: &str) -> Vec<u8> {
    let mut lines = include_str!("../data/activity/log.txt").lines();
    let hex = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Writes the fixture to `dir`.
fn old_log(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let store = Store::open_as(dir, NODE).unwrap();
    let mut batch = Batch::default();
    for (space, name) in [(Space::Heads, "heads"), (Space::Bodies, "bodies")] {
        batch.put(space, 1_u64.to_be_bytes().to_vec(), Packer::default().pack(part(name)));
    }
    store.commit(batch).unwrap();
    store.sync().unwrap();
}

/// Opens a log without an age limit.
fn open(dir: &Path) -> (Activity, Writer) {
    Activity::open(dir, Config { retention_days: 0, ..Config::default() }).unwrap()
}

fn all(activity: &Activity, filter: &Filter) -> Vec<Record> {
    let mut records = activity.list(filter, &Page::default()).unwrap().records;
    records.reverse();
    records
}

#[test]
fn act_4_fixture_has_versions_2_and_3_and_matching_hashes() {
    let (heads, bodies) = (part("heads"), part("bodies"));
    let (block, bodies_at) = (head_block(&heads).unwrap(), body_block(&bodies).unwrap());
    assert_eq!((block.first, block.prev), (1, genesis(NODE)));
    let (mut last, mut versions) = (block.prev, Vec::new());
    for ((seq, (head, hash)), body) in (1..).zip(&block.records).zip(bodies_at) {
        versions.push(heads[head.start]);
        last = chain(last, NODE, seq, &heads[head.clone()], &bodies[body]);
        assert_eq!(last, *hash, "{seq}");
    }
    assert_eq!(versions, [2, 2, 2, 2, 3]);
    assert_eq!(last.0, part("hash")[..]);
}

#[test]
fn act_4_older_log_verifies_and_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    old_log(&dir);
    let (activity, writer) = open(&dir);
    let old = all(&activity, &Filter::default());
    let shown: Vec<_> = old.iter().map(|it| (it.head.kind, it.head.status)).collect();
    assert_eq!(shown, RECORDS);
    assert!(old.iter().all(|it| it.head.principal.is_empty()));
    assert_eq!(old[4].hash.0, part("hash")[..]);
    // The last record is by "admin".
    for n in 0..3 {
        assert!(slot(&activity).submit(call(n)).is_none());
    }
    let filter = Filter { principals: vec!["admin".into()], ..Filter::default() };
    let found = all(&activity, &filter);
    assert!(!found.is_empty());
    assert!(found.iter().all(|it| it.seq > 5 && &*it.head.principal == "admin"));
    let report = activity.verify(|_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let is_new = all(&activity, &Filter::default()).into_iter().skip(5);
    assert!(is_new.clone().count() >= 3);
    assert_eq!(is_new.map(|it| it.prev_hash).next(), Some(old[4].hash));
    writer.close().unwrap();
}

#[test]
fn act_9_salvage_keeps_the_hashes_of_an_older_log() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    old_log(&dir);
    let (activity, writer) = open(&dir);
    let old = all(&activity, &Filter::default());
    assert!(slot(&activity).submit(call(0)).is_none());
    writer.close().unwrap();
    // The block of that record is damaged.
    std::fs::remove_file(dir.join("seal")).unwrap();
    let store = Store::open(&dir).unwrap();
    let mut batch = Batch::default();
    batch.put(Space::Heads, 6_u64.to_be_bytes().to_vec(), b"damaged".to_vec());
    store.commit(batch).unwrap();
    store.sync().unwrap();
    drop(store);

    let done = salvage::salvage(&dir, 0).unwrap().unwrap();
    assert_eq!(done.kept, 5, "{done:?}");
    let (activity, writer) = open(&dir);
    let kept: Vec<_> = all(&activity, &Filter::default()).into_iter().take(5).collect();
    let hashes = |records: &[Record]| records.iter().map(|it| it.hash).collect::<Vec<Hash>>();
    assert_eq!(hashes(&kept), hashes(&old));
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}
