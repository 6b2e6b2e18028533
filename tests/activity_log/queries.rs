//! Queries return the same records as a plain walk over all records.

use std::path::Path;

use mcpproxy_activity::{
    Activity, Config, Filter, From, Id, Operation, Page, Payloads, Period, PortionLimit, Raw,
    Record, Status, Type, Writer,
};

use crate::support::{NEW_YEAR, call, open, slot};

/// More than three segments: full segments, the boundaries between them, and an incomplete one.
const CALLS: u64 = 3300;

fn history(dir: &Path) -> (Activity, Writer) {
    // The clock stands still for a hundred calls, and sometimes runs backwards.
    let ticks = std::sync::atomic::AtomicU64::new(0);
    let clock = move || {
        let n = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let back = if n % 500 == 499 { 200 } else { 0 };
        NEW_YEAR / 1000 + (n / 100 * 100).saturating_sub(back) * 1000
    };
    let (activity, writer) = Activity::open_with_clock(dir, Config::default(), clock).unwrap();
    for n in 0..CALLS {
        assert!(slot(&activity).submit(call(n)).is_none());
    }
    (activity, writer)
}

fn all(activity: &Activity, filter: &Filter, limit: usize) -> Vec<Record> {
    let mut page = Page { limit, ..Page::default() };
    let mut records = Vec::new();
    loop {
        let listing = activity.list(filter, &page).unwrap();
        assert!(listing.records.len() <= limit);
        assert!(listing.next_cursor.is_none() || listing.records.len() == limit);
        records.extend(listing.records);
        match listing.next_cursor {
            Some(cursor) => page.from = From::After(cursor),
            None => return records,
        }
    }
}

/// All records forward, in small portions.
fn since(activity: &Activity, filter: &Filter, limit: usize) -> Vec<Record> {
    let limit = PortionLimit { records: limit, bytes: usize::MAX };
    let view = activity.view().unwrap();
    let (mut all, mut last) = (Vec::new(), 0);
    loop {
        let (records, seq) = view.since(last, filter, limit).unwrap();
        assert!(records.len() <= limit.records && seq >= last);
        if records.is_empty() {
            assert_eq!(seq, view.next() - 1);
            return all;
        }
        all.extend(records);
        last = seq;
    }
}

#[test]
fn portion_ends_with_the_record_that_reaches_its_byte_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (activity, writer) = open(folder.path());
    for n in 0..20 {
        let mut entry = call(10 * n);
        // Each commit has one record. The tenth record alone exceeds the limit of a portion.
        let response = vec![b'1'; if n == 9 { 60_000 } else { 10 }];
        entry.draft.keep(Raw::Response, &response, response.len());
        assert!(slot(&activity).submit(entry).is_none());
    }
    let view = activity.view().unwrap();
    for filter in [Filter::default(), Filter { kinds: vec![Type::ToolCall], ..Filter::default() }] {
        let portion = |after, bytes| {
            let limit = PortionLimit { records: 1000, bytes };
            let (records, last) = view.since(after, &filter, limit).unwrap();
            (records.len(), last)
        };
        assert_eq!(portion(0, 1), (1, 1), "at least one");
        assert_eq!(portion(0, 60_000), (10, 10));
        assert_eq!(portion(10, 60_000), (10, 20));
        assert_eq!(portion(0, 1 << 20), (20, 20));
    }
    writer.close().unwrap();
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn filters() -> Vec<Filter> {
    let at = |n: u64| Some(NEW_YEAR + n * 1_000_000);
    let none = Filter::default;
    vec![
        none(),
        Filter { kinds: vec![Type::ToolCall], ..none() },
        Filter { kinds: vec![Type::PolicyDecision], ..none() },
        Filter { kinds: vec![Type::PolicyDecision, Type::ToolCall], ..none() },
        Filter { kinds: vec![Type::Approval], ..none() },
        Filter { statuses: vec![Status::Blocked], ..none() },
        Filter { servers: names(&["github"]), ..none() },
        Filter { servers: names(&["github", "time"]), tools: names(&["tool_3"]), ..none() },
        Filter { servers: names(&["nobody"]), ..none() },
        Filter { operations: vec![Operation::Write], statuses: vec![Status::Error], ..none() },
        Filter { sessions: names(&["session-7"]), ..none() },
        Filter { sessions: names(&["session-7"]), servers: names(&["files"]), ..none() },
        Filter { requests: names(&["request-5", "request-3299", "request-1500"]), ..none() },
        Filter { principals: names(&["anonymous"]), ..none() },
        Filter { principals: names(&["token:ci", "admin"]), servers: names(&["time"]), ..none() },
        Filter { principals: names(&["token:other"]), ..none() },
        Filter { since: at(1000), until: at(1200), ..none() },
        Filter { since: at(3250), ..none() },
        Filter { until: at(20), kinds: vec![Type::ToolCall], ..none() },
        Filter { since: at(5000), ..none() },
        Filter { since: at(900), until: at(2500), servers: names(&["memory"]), ..none() },
        // No record matches both: every segment is searched without a result.
        Filter { servers: names(&["files"]), requests: names(&["request-4"]), ..none() },
    ]
}

fn matches(filter: &Filter, record: &Record) -> bool {
    let head = &record.head;
    let named = |list: &[String], name: &str| list.is_empty() || list.iter().any(|it| it == name);
    (filter.kinds.is_empty() || filter.kinds.contains(&head.kind))
        && (filter.statuses.is_empty() || filter.statuses.contains(&head.status))
        && (filter.operations.is_empty()
            || head.operation.is_some_and(|it| filter.operations.contains(&it)))
        && named(&filter.servers, &head.server)
        && named(&filter.tools, &head.tool)
        && named(&filter.sessions, &head.session_id)
        && named(&filter.requests, &head.request_id)
        && named(&filter.principals, &head.principal)
        && filter.since.is_none_or(|it| it <= head.started)
        && filter.until.is_none_or(|it| head.started <= it)
}

/// Runs every query and compares it with a walk over all records.
fn check(activity: &Activity) {
    let everything = all(activity, &Filter::default(), 1000);
    for filter in filters() {
        let expected: Vec<_> = everything.iter().filter(|it| matches(&filter, it)).collect();
        for limit in [1000, 37] {
            let got = all(activity, &filter, limit);
            assert_eq!(got.iter().collect::<Vec<_>>(), expected, "{filter:?}");
        }
        assert_eq!(activity.count(&filter).unwrap(), expected.len() as u64, "{filter:?}");
        let forward = since(activity, &filter, 41);
        assert!(forward.iter().eq(expected.iter().rev().copied()), "{filter:?}");
        for skip in [0, 1, 50, 2000, 10_000] {
            let page = Page { from: From::Offset(skip), ..Page::default() };
            let got = activity.list(&filter, &page).unwrap().records;
            let expected: Vec<_> = expected.iter().skip(skip as usize).take(50).collect();
            assert_eq!(
                got.iter().collect::<Vec<_>>(),
                expected.into_iter().copied().collect::<Vec<_>>()
            );
        }
    }
    for record in everything.iter().step_by(97) {
        assert_eq!(activity.get(record.id).unwrap().as_ref(), Some(record));
    }
}

#[test]
fn act_5_filters_find_the_same_records_as_a_full_walk() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = history(dir.path());
    let everything = all(&activity, &Filter::default(), 100);
    assert_eq!(everything.len() as u64, CALLS + CALLS / 10);
    check(&activity);
    writer.close().unwrap();

    let (activity, writer) = open(dir.path());
    assert_eq!(all(&activity, &Filter::default(), 100), everything);
    check(&activity);
    slot(&activity).submit(call(0));
    assert_eq!(all(&activity, &Filter::default(), 100).len(), everything.len() + 1);
    writer.close().unwrap();
}

#[test]
fn act_4_ids_and_numbers_grow_and_calls_precede_their_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = history(dir.path());
    writer.close().unwrap();
    drop(activity);
    // The next start has a clock that is years behind.
    let (activity, writer) =
        Activity::open_with_clock(dir.path(), Config::default(), || 1000).unwrap();
    slot(&activity).submit(call(1));
    let mut records = all(&activity, &Filter::default(), 100);
    records.reverse();
    for (n, record) in (1..).zip(&records) {
        assert_eq!(record.seq, n);
    }
    for pair in records.windows(2) {
        assert!(pair[0].id < pair[1].id && pair[0].id.to_string() < pair[1].id.to_string());
        assert_eq!(pair[0].hash, pair[1].prev_hash);
        if pair[1].head.kind == Type::PolicyDecision {
            assert_eq!(pair[1].head.parent, Some(pair[0].id));
            assert_eq!(pair[1].head.request_id, pair[0].head.request_id);
            assert_eq!(pair[1].head.session_id, pair[0].head.session_id);
            assert_eq!(pair[1].head.intent, pair[0].head.intent);
            assert_eq!(pair[1].head.server, pair[0].head.server);
        }
    }
    let json = serde_json::to_value(records.last().unwrap()).unwrap();
    let expected = serde_json::json!({
        "tool_variant": "call_tool_read", "intent": {"operation_type": "read"},
        "decision": "blocked", "policy": "output_validation", "mode": "strict",
        "reason": "too deep", "guard": "depth",
    });
    assert_eq!(json["metadata"], expected);
    writer.close().unwrap();
}

#[test]
fn act_5_cursor_stays_valid_while_records_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    (0..200).for_each(|n| drop(slot(&activity).submit(call(n))));
    let before = all(&activity, &Filter::default(), 100);
    let page = Page { limit: 20, ..Page::default() };
    let first = activity.list(&Filter::default(), &page).unwrap();
    (200..400).for_each(|n| drop(slot(&activity).submit(call(n))));
    let page = Page { limit: 20, from: From::After(first.next_cursor.unwrap()), ..page };
    let second = activity.list(&Filter::default(), &page).unwrap();
    assert_eq!([first.records, second.records].concat(), before[..40]);
    writer.close().unwrap();
}

#[test]
fn list_without_payloads_keeps_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let mut entry = call(5);
    entry.draft.keep(Raw::Metadata, br#"{"queued_ms":7}"#, 100);
    slot(&activity).submit(entry);
    let page = Page { payloads: Payloads::Exclude, ..Page::default() };
    let listing = activity.list(&Filter::default(), &page).unwrap();
    let json = serde_json::to_value(&listing.records).unwrap();
    assert_eq!(
        (&json[0]["response_bytes"], &json[0]["metadata"]["queued_ms"]),
        (&8.into(), &7.into())
    );
    assert!(json[0].get("arguments").is_none() && json[0].get("response").is_none());
    let heads = Page { payloads: Payloads::HeadsOnly, ..Page::default() };
    let heads = activity.list(&Filter::default(), &heads).unwrap();
    let json = serde_json::to_value(&heads.records).unwrap();
    assert!(json[0].get("arguments").is_none() && json[0]["metadata"].get("queued_ms").is_none());
    let whole = activity.get(listing.records[0].id).unwrap().unwrap();
    let json = serde_json::to_value(&whole).unwrap();
    assert_eq!((&json["arguments"]["n"], &json["response"]), (&5.into(), &"answer 5".into()));
    writer.close().unwrap();
}

#[test]
fn unknown_id_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    slot(&activity).submit(call(5));
    for id in ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "00000000000000000000000000"] {
        assert_eq!(activity.get(Id::parse(id).unwrap()).unwrap(), None);
    }
    writer.close().unwrap();
}

#[test]
fn summary_counts_the_records_of_the_period() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = history(dir.path());
    let everything = all(&activity, &Filter::default(), 1000);
    let now = NEW_YEAR + CALLS * 1_000_000;
    for period in [Period::Hour, Period::Day, Period::Month] {
        let summary = activity.summary(period, now).unwrap();
        let inside = everything.iter().filter(|it| {
            it.head.kind == Type::ToolCall
                && it.head.started >= summary.start
                && it.head.started < (now / 300_000_000 + 1) * 300_000_000
        });
        let inside: Vec<_> = inside.collect();
        assert!(now - summary.start >= period.micros());
        let json = serde_json::to_value(&summary).unwrap();
        let status = |status| inside.iter().filter(|it| it.head.status == status).count();
        assert_eq!(json["total_count"], inside.len());
        assert_eq!(json["error_count"], status(Status::Error));
        assert_eq!(json["blocked_count"], status(Status::Blocked));
        assert_eq!(json["rejected_count"], status(Status::Rejected));
        let github = inside.iter().filter(|it| &*it.head.server == "github").count();
        let top = json["top_servers"].as_array().unwrap();
        assert!(top.contains(&serde_json::json!({"name": "github", "count": github})), "{json}");
    }
    writer.close().unwrap();
}
