//! Capacity, order, durability, live readers, and the read barrier.

use std::time::Duration;

use mcpproxy_activity::{
    Activity, Config, Durability, Filter, Live, LiveEvent, NotAdmitted, Page, Raw, Record,
    StoreError, Text,
};

use crate::support::{call, files, open, slot, wait};

#[test]
fn log_can_be_opened_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_activity, writer) = open(dir.path());
    let again = Activity::open(dir.path(), Config::default());
    assert!(matches!(again, Err(StoreError::Locked)), "{again:?}");
    writer.close().unwrap();
    open(dir.path()).1.close().unwrap();
}

#[test]
fn act_2_calls_wait_for_capacity_which_a_dropped_slot_returns() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { queue_records: 2, ..Config::default() };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    let first = slot(&activity);
    let second = slot(&activity);
    wait(async {
        let mut third = std::pin::pin!(activity.reserve());
        let waits = tokio::time::timeout(Duration::ZERO, third.as_mut()).await.is_err();
        assert!(waits, "there is capacity for two");
        drop(first);
        let third = third.await.unwrap();
        let mut fourth = std::pin::pin!(activity.reserve());
        assert!(tokio::time::timeout(Duration::ZERO, fourth.as_mut()).await.is_err());
        // The writer returns the capacity of written entries.
        second.submit(call(1));
        drop(fourth.await.unwrap());
        drop(third);
    });
    assert_eq!(activity.health().queued, 0);
    assert_eq!(activity.count(&Filter::default()).unwrap(), 2);
    writer.close().unwrap();
}

#[test]
fn act_3_before_reply_makes_the_record_durable_before_the_reply_ends() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { durability: Durability::BeforeReply, ..Config::default() };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    for n in 0..5 {
        let durable = slot(&activity).submit(call(n + 3)).unwrap();
        wait(durable.wait()).unwrap();
        assert_eq!(activity.health().durable_seq, n + 1);
    }
    writer.close().unwrap();
}

#[test]
fn act_5_query_waits_for_the_record_of_an_ended_reply() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let mut judged = slot(&activity);
    judged.replied();
    let asked = {
        let activity = activity.clone();
        std::thread::spawn(move || activity.list(&Filter::default(), &Page::default()).unwrap())
    };
    // A query does not wait for a reply that ends after it.
    let mut later = slot(&activity);
    judged.submit(call(1));
    assert_eq!(asked.join().unwrap().records.len(), 2);
    later.replied();
    later.submit(call(3));
    assert_eq!(activity.count(&Filter::default()).unwrap(), 3);
    writer.close().unwrap();
}

/// Rendering of a record in these tests: its number.
fn rendered(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{} ", record.seq).as_bytes());
}

/// Record numbers received by a live reader, at least the next `count`.
fn next_seqs(live: &mut Live, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        let LiveEvent::Records(bytes, last) = wait(live.next()) else { return seqs };
        let text = std::str::from_utf8(&bytes).unwrap();
        seqs.extend(text.split_whitespace().map(|seq| seq.parse::<u64>().unwrap()));
        assert_eq!(seqs.last(), Some(&last.seq()));
    }
    seqs
}

/// A live reader that has received a first record.
fn live(activity: &Activity) -> Live {
    let end = activity.view().unwrap().next() - 1;
    let mut live = activity.live(end, rendered);
    slot(activity).submit(call(3));
    match wait(live.next()) {
        LiveEvent::Records(_, last) => assert_eq!(last.seq(), end + 1),
        // The record was stored before the reader was registered.
        LiveEvent::Behind => live.skip_to(end + 1),
        LiveEvent::Closed => {}
    }
    live
}

#[test]
fn act_7_live_readers_get_every_record_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let mut live = live(&activity);
    (3..10).for_each(|n| drop(slot(&activity).submit(call(n))));
    assert_eq!(next_seqs(&mut live, 7), (2..=8).collect::<Vec<_>>());
    writer.close().unwrap();
    drop(activity);
    assert_eq!(wait(live.next()), LiveEvent::Closed);
}

#[test]
fn slow_live_reader_is_notified_and_does_not_delay_others() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let big = |record: &Record, out: &mut Vec<u8>| {
        rendered(record, out);
        out.resize(out.len() + 20_000, b' ');
    };
    let (mut slow, mut fast) = (activity.live(0, big), activity.live(0, big));
    // More bytes than are buffered for readers.
    (0..300).for_each(|n| drop(slot(&activity).submit(call(n))));
    activity.flush().unwrap();
    let end = activity.view().unwrap().next() - 1;
    // The other reader follows meanwhile, until the slow one can no longer catch up.
    while fast.seq() < end {
        match wait(fast.next()) {
            LiveEvent::Records(..) => {}
            LiveEvent::Behind => fast.skip_to(fast.seq() + 1),
            LiveEvent::Closed => panic!("it is open"),
        }
    }
    assert_eq!(wait(slow.next()), LiveEvent::Behind);
    writer.close().unwrap();
}

#[test]
fn closed_log_refuses_calls_and_keeps_submitted_records() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let late = slot(&activity);
    (3..10).for_each(|n| drop(slot(&activity).submit(call(n))));
    writer.close().unwrap();
    assert_eq!(wait(activity.reserve()).unwrap_err(), NotAdmitted::Closed);
    late.submit(call(1));
    assert_eq!(activity.health().lost, 1);
    let (activity, writer) = open(dir.path());
    assert_eq!(activity.count(&Filter::default()).unwrap(), 7);
    writer.close().unwrap();
}

#[test]
fn act_8_no_secret_is_in_any_file_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { redact_keys: vec!["plate".into()], ..Config::default() };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    let secret = "hunter2-s3cr3t";
    let inner = serde_json::json!({ "password": secret, "kept": "visible" }).to_string();
    let outer = serde_json::json!({ "args_json": inner, "plate": secret });
    let text = format!("Authorization: Bearer {secret}\nhttps://u:{secret}@host/?token={secret}");
    let result = serde_json::json!({ "content": [{ "type": "text", "text": text }] }).to_string();
    for limit in [10_000, 60] {
        let mut entry = call(1);
        entry.draft.keep(Raw::Arguments, outer.to_string().as_bytes(), limit);
        entry.draft.keep(Raw::Response, result.as_bytes(), limit + 20);
        entry.draft.set(Text::Error, &text);
        entry.draft.keep(Raw::Intent, inner.as_bytes(), limit);
        entry.draft.keep(Raw::Metadata, inner.as_bytes(), limit);
        entry.decisions[0].reason = text.as_str().into();
        slot(&activity).submit(entry);
    }
    let shown = activity.list(&Filter::default(), &Page::default()).unwrap().records;
    assert!(!serde_json::to_string(&shown).unwrap().contains(secret));
    writer.close().unwrap();
    let holds = |needle: &str| {
        files(dir.path()).iter().any(|file| {
            let bytes = std::fs::read(file).unwrap();
            bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
        })
    };
    assert!(holds("visible"), "the files can be searched");
    assert!(!holds(secret));
}
