//! Counted refusals (ACT-10): their number is exact, durable like a record, and visible to every query.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mcpproxy_activity::{
    Activity, Config, Decision, Draft, Durability, Durable, Entry, Filter, Policy, Raw, Record,
    Recording, Source, Status, Text, Type, Verdict, Writer,
};

use crate::call_marks::killed;
use crate::support::{NEW_YEAR, records_of, slot, wait};

/// A log whose clock only advances by [`AtomicU64::fetch_add`].
fn open(dir: &Path, durability: Durability) -> (Activity, Writer, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(NEW_YEAR / 1000));
    let clock = || {
        let now = Arc::clone(&now);
        move || now.load(Ordering::Relaxed)
    };
    let config = Config { durability, ..Config::default() };
    let (activity, writer) = Activity::open_with_clocks(dir, config, clock(), clock()).unwrap();
    (activity, writer, now)
}

fn refusal(tool: &str, request: u64, recording: Recording) -> Entry {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Rejected);
    draft.started = NEW_YEAR + request * 1000;
    draft.set(Text::Principal, "token:a");
    draft.set(Text::Server, "s");
    draft.set(Text::Tool, tool);
    draft.set(Text::Error, "no, api_key=hunter2-s3cr3t");
    draft.set(Text::RequestId, &request.to_string());
    draft.keep(Raw::Arguments, br#"{"password":"hunter2-s3cr3t"}"#, 4096);
    let decision = Decision::new(Verdict::Blocked, Policy::Rules, "no");
    Entry { decisions: vec![decision], recording, ..draft.into() }
}

fn refuse(activity: &Activity, tool: &str, requests: std::ops::Range<u64>) -> Vec<Durable> {
    let submit = |request| slot(activity).submit(refusal(tool, request, Recording::Refusal));
    requests.filter_map(submit).collect()
}

/// Number of requests that a record stands for.
fn count(record: &Record) -> u64 {
    let json = serde_json::to_value(record).unwrap();
    json["metadata"]["repeated"].as_u64().unwrap_or(1)
}

fn counts(records: &[Record]) -> Vec<(&str, u64)> {
    records.iter().map(|record| (record.head.kind.as_str(), count(record))).collect()
}

#[test]
fn act_10_identical_refusals_leave_one_record_and_one_count() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer, now) = open(dir.path(), Durability::Grouped);
    refuse(&activity, "t", 0..500);
    let records = records_of(&activity);
    let (call, decision) = ("tool_call", "policy_decision");
    let two = [(call, 1), (decision, 1), (call, 499), (decision, 499)];
    assert_eq!(counts(&records), two);
    assert_eq!(records[3].head.parent, Some(records[2].id));
    let json = serde_json::to_value(&records[2]).unwrap();
    assert_eq!(json["metadata"]["until"], "2026-01-01T00:00:00.499Z");
    assert_eq!(
        (&json["request_id"], &json["arguments"]["password"]),
        (&"1".into(), &"[redacted]".into())
    );
    // A query does not end the window of one second in which refusals are counted.
    refuse(&activity, "t", 500..503);
    refuse(&activity, "other", 0..1);
    assert_eq!(records_of(&activity).iter().map(count).sum::<u64>(), 2 * 504);
    now.fetch_add(1000, Ordering::Relaxed);
    refuse(&activity, "t", 503..510);
    assert_eq!(records_of(&activity).iter().map(count).sum::<u64>(), 2 * 511);
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_10_count_is_recorded_after_its_second_without_a_query() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer, now) = open(dir.path(), Durability::BeforeReply);
    for durable in refuse(&activity, "t", 0..10) {
        wait(durable.wait()).unwrap();
    }
    let stored = || activity.stored().unwrap().count(&Filter::default()).unwrap();
    assert_eq!(stored(), 2, "a barrier would have closed the count");
    now.fetch_add(1000, Ordering::Relaxed);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while stored() < 4 {
        assert!(std::time::Instant::now() < deadline, "the count was never recorded");
        std::thread::yield_now();
    }
    writer.close().unwrap();
}

#[test]
fn act_10_acknowledged_count_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer, _) = open(dir.path(), Durability::BeforeReply);
    let mut answered = refuse(&activity, "t", 0..100);
    for request in 0..50 {
        let entry = refusal(&format!("t{request}"), request, Recording::Counted);
        answered.extend(slot(&activity).submit(entry));
    }
    assert_eq!(answered.len(), 150);
    for durable in answered {
        wait(durable.wait()).unwrap();
    }
    let copy = killed(dir.path());
    let stored = activity.stored().unwrap().count(&Filter::default()).unwrap();
    assert_eq!(stored, 2, "neither count had a record");
    let (after, after_writer, _) = open(copy.path(), Durability::Grouped);
    let records = records_of(&after);
    let mut found = counts(&records);
    found.sort_unstable();
    let of = |kind| [(kind, 1), (kind, 50), (kind, 99)];
    assert_eq!(found, [of("policy_decision"), of("tool_call")].concat());
    assert!(records.iter().all(|record| record.head.status != Status::Unknown));
    let text = serde_json::to_string(&records).unwrap();
    assert!(!text.contains("s3cr3t"), "{text}");
    assert!(after.verify(|_, _| {}).unwrap().is_sound());
    after_writer.close().unwrap();
    // Recorded once: the marks are gone.
    let (again, again_writer, _) = open(copy.path(), Durability::Grouped);
    assert_eq!(records_of(&again).len(), 6);
    again_writer.close().unwrap();
    writer.close().unwrap();
    let (closed, closed_writer, _) = open(dir.path(), Durability::Grouped);
    assert_eq!(
        records_of(&closed).iter().map(count).sum::<u64>(),
        2 * 150,
        "closing writes them too"
    );
    closed_writer.close().unwrap();
}

#[test]
fn act_10_refusals_beyond_the_rate_become_one_record_with_their_tools() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer, _) = open(dir.path(), Durability::Grouped);
    for request in 0..300 {
        let tool = if request % 3 == 0 { "delete" } else { "read" };
        drop(slot(&activity).submit(refusal(tool, request, Recording::Counted)));
    }
    let records = records_of(&activity);
    assert_eq!(counts(&records), [("tool_call", 300), ("policy_decision", 300)]);
    let json = serde_json::to_value(&records[0]).unwrap();
    assert_eq!(json["metadata"]["tools"], serde_json::json!({"s:delete": 100, "s:read": 200}));
    assert_eq!((&json["principal"], &json["tool_name"]), (&"token:a".into(), &"".into()));
    assert_eq!(json["status"], "rejected");
    writer.close().unwrap();
}
