//! Entries and logs to test with.

use std::fs;
use std::path::{Path, PathBuf};

use mcpproxy_activity::{
    Activity, Config, Decision, Draft, Entry, Filter, Operation, Page, Policy, Raw, Record, Slot,
    Source, Status, Text, Type, Verdict, Writer,
};

/// Microseconds since 1970 at the start of 2026.
pub(crate) const NEW_YEAR: u64 = 1_767_225_600_000_000;

/// Opens a log with the default configuration.
pub(crate) fn open(dir: &Path) -> (Activity, Writer) {
    Activity::open(dir, Config::default()).unwrap()
}

/// Runs a future to completion on a fresh runtime.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

pub(crate) fn slot(activity: &Activity) -> Slot {
    wait(activity.reserve()).unwrap()
}

/// The `n`th call of a synthetic history, fully determined by `n`.
pub(crate) fn call(n: u64) -> Entry {
    let servers = ["github", "files", "memory", "time"];
    let status = match n % 10 {
        0 => Status::Error,
        1 => Status::Blocked,
        2 => Status::Rejected,
        _ => Status::Success,
    };
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, status);
    draft.set(Text::Server, servers[(n % 4) as usize]);
    draft.set(Text::Tool, &format!("tool_{}", n % 7));
    draft.keep(Raw::Arguments, format!(r#"{{"n":{n}}}"#).as_bytes(), 4096);
    draft.keep(Raw::Response, format!("answer {n}").as_bytes(), 1024);
    // Calls do not end in the order in which they began.
    draft.started = NEW_YEAR + n * 1_000_000 + (n % 13) * 5_000_000;
    draft.duration_us = 1000 + n;
    draft.set(Text::SessionId, &format!("session-{}", n / 100));
    draft.set(Text::RequestId, &format!("request-{n}"));
    draft.set(Text::Principal, ["anonymous", "", "admin", "token:ci"][(n % 11 % 4) as usize]);
    draft.operation = [None, Some(Operation::Read), Some(Operation::Write)][(n % 3) as usize];
    draft.keep(Raw::Intent, br#"{"operation_type":"read"}"#, 8192);
    draft.variant = "call_tool_read";
    let mut decisions = Vec::new();
    if status == Status::Blocked {
        let mut decision = Decision::new(Verdict::Blocked, Policy::OutputValidation, "too deep");
        decision.guard = "depth";
        decision.mode = "strict";
        decisions.push(decision);
    }
    Entry { decisions, ..draft.into() }
}

/// The files in a folder and its folders, in order.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All records, oldest first.
pub(crate) fn records_of(activity: &Activity) -> Vec<Record> {
    let page = Page { limit: 100_000, ..Page::default() };
    let mut records = activity.list(&Filter::default(), &page).unwrap().records;
    records.reverse();
    records
}

/// All records of a closed log, oldest first.
pub(crate) fn records(dir: &Path) -> Vec<Record> {
    let (activity, writer) = open(dir);
    let records = records_of(&activity);
    writer.close().unwrap();
    records
}

/// Copies the files of an open log, as a process that is killed leaves them.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}
