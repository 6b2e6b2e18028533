//! Calls in flight when the process ends: each is recorded afterwards, once (ACT-1).

use std::fs;
use std::path::Path;

use mcpproxy_activity::store::{Space, Store};
use mcpproxy_activity::{
    Activity, Config, Decision, Draft, Durability, Entry, Filter, Operation, Page, Period, Policy,
    Raw, Record, Slot, Source, Status, Text, Type, Verdict, Writer, salvage, verify,
};

use crate::support::{NEW_YEAR, files, open, records_of, slot, wait};

/// The entry of a call when it begins.
fn known(name: &str, operation: Operation) -> Box<Entry> {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
    draft.set(Text::Server, "github");
    draft.set(Text::Tool, "create_issue");
    draft.set(Text::RequestId, name);
    draft.keep(Raw::Arguments, br#"{"n":1,"password":"hunter2-s3cr3t"}"#, 4096);
    draft.keep(Raw::Intent, br#"{"operation_type":"write"}"#, 8192);
    (draft.operation, draft.started) = (Some(operation), NEW_YEAR);
    draft.variant = "call_tool_write";
    draft.into()
}

/// Begins a call. Returns its slot and the rest of its entry.
fn begun(activity: &Activity, name: &str) -> (Slot, Box<Entry>) {
    let (mut slot, mut entry) = (slot(activity), known(name, Operation::Write));
    let warning = Decision::new(Verdict::Warning, Policy::Intent, format!("of {name}"));
    entry.decisions.push(warning);
    wait(slot.begin(&mut entry)).unwrap();
    (slot, entry)
}

fn end((slot, mut entry): (Slot, Box<Entry>)) {
    entry.draft.status = Status::Success;
    entry.draft.keep(Raw::Response, b"done", 1024);
    drop(slot.submit(entry));
}

/// Checks that a read-only call is recorded as unknown after a kill if it was marked, and with its outcome if
/// it ended.
fn check_mark(
    dir: &Path,
    (activity, writer): (Activity, Writer),
    call: (Slot, Box<Entry>),
    has_mark: bool,
) {
    activity.flush().unwrap();
    let copy = killed(dir);
    end(call);
    assert_eq!(shown(&records_of(&activity)), [("read", Status::Success, CALL)]);
    writer.close().unwrap();
    let (after, writer) = open(copy.path());
    let expected: &[_] = if has_mark { &[("read", Status::Unknown, CALL)] } else { &[] };
    assert_eq!(shown(&records_of(&after)), expected);
    writer.close().unwrap();
}

/// Copies the log in the state in which a kill at this moment would leave it.
pub(crate) fn killed(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in files(dir) {
        let target = copy.path().join(file.strip_prefix(dir).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        match fs::copy(&file, target) {
            // A temporary file that was renamed meanwhile, to replace another.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
    copy
}

/// Request, status and type of each record.
fn shown(records: &[Record]) -> Vec<(&str, Status, Type)> {
    records.iter().map(|it| (&*it.head.request_id, it.head.status, it.head.kind)).collect()
}

const CALL: Type = Type::ToolCall;
const DECISION: Type = Type::PolicyDecision;

#[test]
fn act_1_call_in_flight_when_the_process_ends_is_recorded_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    let slow = begun(&activity, "slow");
    let later = begun(&activity, "later");
    end(begun(&activity, "short"));
    activity.flush().unwrap();
    end(later);
    activity.flush().unwrap();
    let copy = killed(dir.path());

    let report = verify::folder(copy.path(), tempfile::tempdir().unwrap().path(), |_, _| {});
    let report = report.unwrap();
    assert!(report.is_sound() && report.notes[0].starts_with("1 calls were"), "{report:?}");
    // A reader of a copy sees the records that the next start will add.
    let scratch = tempfile::tempdir().unwrap();
    let (reading, reader) = Activity::read(copy.path(), scratch.path(), Config::default()).unwrap();
    let read = records_of(&reading);
    drop(reading);
    reader.close().unwrap();

    let (after, again) = open(copy.path());
    let records = records_of(&after);
    assert_eq!(records, read);
    let expected = [
        ("short", Status::Success, CALL),
        ("short", Status::Warning, DECISION),
        ("later", Status::Success, CALL),
        ("later", Status::Warning, DECISION),
        ("slow", Status::Unknown, CALL),
        ("slow", Status::Warning, DECISION),
    ];
    assert_eq!(shown(&records), expected);
    let [.., call, decision] = &records[..] else { panic!("{records:?}") };
    assert_eq!(decision.head.parent, Some(call.id));
    assert_eq!((call.head.started, call.head.operation), (NEW_YEAR, Some(Operation::Write)));
    assert_eq!((&*call.head.server, &*call.head.tool), ("github", "create_issue"));
    assert!(call.head.error.contains("outcome not known"), "{}", call.head.error);
    let json = serde_json::to_value(call).unwrap();
    assert_eq!((&json["status"], &json["arguments"]["n"]), (&"unknown".into(), &1.into()));
    assert!(!json.to_string().contains("s3cr3t"));
    let later = serde_json::to_value(&records[2]).unwrap();
    assert_eq!((&later["arguments"]["n"], &later["response"]), (&1.into(), &"done".into()));

    let unknown = Filter { statuses: vec![Status::Unknown], ..Filter::default() };
    assert_eq!(after.count(&unknown).unwrap(), 1);
    let summary = after.summary(Period::Hour, NEW_YEAR + 1).unwrap();
    assert_eq!(serde_json::to_value(&summary).unwrap()["unknown_count"], 1);
    assert!(after.verify(|_, _| {}).unwrap().is_sound());
    again.close().unwrap();
    drop(after);
    // Recorded only once.
    let (after, again) = open(copy.path());
    assert_eq!(records_of(&after), records);
    again.close().unwrap();
    let holds = |needle: &[u8]| {
        let holds =
            |file: &Path| fs::read(file).unwrap().windows(needle.len()).any(|it| it == needle);
        files(dir.path()).iter().chain(&files(copy.path())).any(|file| holds(file))
    };
    assert!(!holds(b"hunter2-s3cr3t"));

    // In the continuing process nothing is unknown.
    end(slow);
    activity.flush().unwrap();
    assert_eq!(shown(&records_of(&activity))[4], ("slow", Status::Success, CALL));
    assert_eq!(activity.health().queued, 0);
    writer.close().unwrap();
    drop(activity);
    let (activity, writer) = open(dir.path());
    assert_eq!(activity.count(&unknown).unwrap(), 0);
    writer.close().unwrap();
}

#[test]
fn act_1_before_send_makes_the_mark_durable_before_the_call_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { durability: Durability::BeforeSend, ..Config::default() };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    let calls: Vec<_> = (0..3).map(|n| begun(&activity, &n.to_string())).collect();
    let copy = killed(dir.path());
    for (slot, entry) in calls {
        wait(slot.submit(entry).unwrap().wait()).unwrap();
    }
    writer.close().unwrap();
    let (after, writer) = open(copy.path());
    let unknown = |record: &&Record| record.head.status == Status::Unknown;
    let records = records_of(&after);
    let requests: Vec<_> = records.iter().filter(unknown).map(|it| &*it.head.request_id).collect();
    assert_eq!(requests, ["0", "1", "2"], "in the order in which they began");
    writer.close().unwrap();
}

#[test]
fn act_1_read_only_calls_are_marked_if_configured() {
    for mark_reads in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { mark_reads, ..Config::default() };
        let (activity, writer) = Activity::open(dir.path(), config).unwrap();
        let (mut slot, mut entry) = (slot(&activity), known("read", Operation::Read));
        wait(slot.begin(&mut entry)).unwrap();
        check_mark(dir.path(), (activity, writer), (slot, entry), mark_reads);
    }
}

#[test]
fn act_3_call_whose_record_is_late_is_marked() {
    for has_left in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (activity, writer) = open(dir.path());
        let (mut slot, mut entry) = (slot(&activity), known("read", Operation::Read));
        if has_left {
            slot.replied();
        }
        slot.record_is_late(&mut entry);
        check_mark(dir.path(), (activity, writer), (slot, entry), has_left);
    }
}

#[test]
fn act_9_salvage_keeps_call_marks() {
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    (0..200).for_each(|n| end(begun(&activity, &n.to_string())));
    let slow = begun(&activity, "slow");
    activity.flush().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::rename(killed(dir.path()).keep(), &log).unwrap();
    end(slow);
    writer.close().unwrap();
    let store = Store::open(&log).unwrap();
    for space in [Space::Heads, Space::Bodies, Space::State] {
        store.compact(space).unwrap();
    }
    let tables = store.folder(Space::Heads).join("tables");
    drop(store);
    let table = files(&tables).pop().unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[20] ^= 1;
    fs::write(table, bytes).unwrap();
    let salvaged = salvage::salvage(&log, 0).unwrap();
    assert!(salvaged.is_some());
    let (after, writer) = open(&log);
    let unknown = Filter { statuses: vec![Status::Unknown], ..Filter::default() };
    assert_eq!(after.list(&unknown, &Page::default()).unwrap().records.len(), 1);
    assert!(after.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_1_calls_ending_while_marks_are_written_are_recorded_once() {
    const CALLS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let (activity, writer) = open(dir.path());
    std::thread::scope(|scope| {
        let workers = [0, 1, 2].map(|worker| {
            let activity = &activity;
            scope.spawn(move || {
                let mut under_way = None;
                for n in 0..CALLS {
                    let next = begun(activity, &format!("{worker}-{n}"));
                    under_way.replace(next).into_iter().for_each(end);
                }
                under_way.into_iter().for_each(end);
            })
        });
        // Each flush marks the calls in flight.
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            activity.flush().unwrap();
        }
    });
    writer.close().unwrap();
    drop(activity);
    let (activity, writer) = open(dir.path());
    let calls = Filter { kinds: vec![CALL], statuses: vec![Status::Success], ..Filter::default() };
    assert_eq!(activity.count(&calls).unwrap(), 3 * CALLS as u64);
    let all = 2 * 3 * CALLS as u64;
    assert_eq!(activity.count(&Filter::default()).unwrap(), all, "no call is unknown");
    writer.close().unwrap();
}
