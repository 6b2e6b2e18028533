//! `mcpproxy activity verify` and `prove`: integrity of the log (ACT-4), of a fleet's object store, and offline
//! proofs of single records.
//!
//! A running proxy verifies its own log. If none runs, a copy of the files is verified before anything can repair them.

use crate::args::{ActivityProve, ActivityVerify, Global};
use crate::backend::{Backend, target};
use crate::commands::activity::export::records_bar;
use crate::error::{CommandError, Exit};
use crate::format::{TimeStyle, Times, counted, list, text};
use crate::output::Output;
use crate::start_proxy::TemporaryFolder;
use crate::terminal_safe::{argument, line};
use crate::{output, running_proxy, start_proxy};
use indicatif::ProgressBar;
use mcpproxy_activity::{Id, verify};
use mcpproxy_fleet::audit;
use mcpproxy_fleet::audit::{AuditOptions, MAX_KEYS_BYTES};
use mcpproxy_fleet::audit::{MAX_PROOF_BYTES, ProofError, RecordProof};
use mcpproxy_fleet::bucket::{Bucket, BucketError};
use mcpproxy_fleet::checkpoint::VerifierKey;
use mcpproxy_runtime::os::private;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Maximum number of altered files named in a summary.
const MAX_NAMED: usize = 4;
/// Update interval of a bar without length.
const TICK: Duration = Duration::from_millis(100);

/// Verifies the log, prints a report, and fails if it is not sound.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let found = runtime.block_on(running_proxy::find_for(global, &loaded.config));
    let runs = found.is_some();
    let report = if let Some(client) = found {
        let bar = ProgressBar::new_spinner().with_message("the running proxy is verifying its log");
        bar.enable_steady_tick(TICK);
        let backend = Backend::Remote(client);
        let report = runtime.block_on(backend.get(&target(&["activity", "verify"], &[])));
        bar.finish_and_clear();
        report?.json()?.to_owned()
    } else {
        let folder = loaded.config.activity_folder();
        if !folder.try_exists().map_err(CommandError::failed)? {
            let none = format!("no activity log in {}", folder.display());
            return Err(CommandError::failed(none));
        }
        let bar = records_bar(0);
        let scratch = TemporaryFolder::watched("verify")?;
        let report = verify::folder(&folder, scratch.path(), |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        serde_json::to_string(&report.map_err(|error| start_proxy::store(&error))?)
            .map_err(CommandError::failed)?
    };
    output.print(&report, draw)?;
    match unsound(&output::parse(&report)?) {
        None => Ok(()),
        Some(why) => {
            let before = if runs { "stop the running mcpproxy, then run" } else { "run" };
            let text = format!("{why}; to repair the log, {before} `mcpproxy serve --salvage`");
            Err(CommandError::failed(text))
        }
    }
}

fn draw(report: &Value) -> String {
    let [records, first, last] = ["/records", "/first", "/last"].map(|at| text(report, at));
    let mut shown = match unsound(report) {
        None => format!("sound: {}, number {first} to {last}\n", counted(&records, "record")),
        Some(_) => format!("NOT SOUND: {records} records were good, number {first} to {last}\n"),
    };
    for gap in list(report, "/gaps") {
        let [from, to] = ["/first_lost_seq", "/last_lost_seq"].map(|at| text(gap, at));
        let _ = writeln!(shown, "lost      records {from} to {to}, as recorded in the log");
    }
    for lost in list(report, "/unrecorded") {
        let [records, from, to, cause] =
            ["/records_lost", "/from", "/to", "/cause"].map(|at| text(lost, at));
        let up_to = if lost.get("at_least") == lost.get("records_lost") { "" } else { "up to " };
        let _ = writeln!(
            shown,
            "lost      {up_to}{records} records that could not be written, {from} to {to}: {}",
            line(&cause)
        );
    }
    for file in list(report, "/altered") {
        let _ = writeln!(shown, "altered   {}", line(file.as_str().unwrap_or_default()));
    }
    for note in list(report, "/notes") {
        let _ = writeln!(shown, "note      {}", line(note.as_str().unwrap_or_default()));
    }
    shown
}

/// Summary of the faults, with the number of the first break; `None` if the log is sound.
pub(in crate::commands) fn unsound(report: &Value) -> Option<String> {
    if report.pointer("/sound") == Some(&Value::Bool(true)) {
        return None;
    }
    let fault = text(report, "/broken/fault").replace('_', " ");
    let broken = report
        .pointer("/broken/seq")
        .map(|seq| format!("record {seq} is {fault}: {}", text(report, "/broken/why")));
    let files: Vec<_> = list(report, "/altered").iter().filter_map(Value::as_str).collect();
    let more = match files.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    // The reason of the break often names the only altered file.
    let is_named = |why: &String| matches!(&*files, [file] if why.contains(file));
    let altered = (!files.is_empty() && !broken.as_ref().is_some_and(is_named)).then(|| {
        let named: Vec<_> = files.iter().take(MAX_NAMED).map(|file| line(file)).collect();
        format!("altered: {}{more}", named.join(", "))
    });
    Some([broken, altered].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// Next step for a log that is not sound. It is salvaged only at startup, with exclusive access.
pub(in crate::commands) fn salvage(runs: bool) -> String {
    let before = if runs { "stop the running mcpproxy, then: " } else { "" };
    format!("{before}mcpproxy serve --salvage")
}

/// Writes a record's proof.
pub(super) fn write(
    flags: &ActivityProve,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let id = Id::parse(&flags.id).ok_or_else(|| {
        let (shown, typed) = (line(&flags.id), argument(&flags.id));
        let text = format!(
            "'{shown}' is not a full record id: {}",
            match flags.id.bytes().all(|byte| byte.is_ascii_digit()) {
                true => format!("`mcpproxy activity show {typed}` prints it"),
                false => "`mcpproxy activity list -o json` has the ids".to_owned(),
            }
        );
        CommandError::usage(text)
    })?;
    let store = match &flags.store {
        Some(store) => store.clone(),
        None => {
            let (loaded, _log) = start_proxy::load_with_log(global)?;
            loaded.config.cluster.store.ok_or_else(|| {
                CommandError::usage(
                    "a proof needs the signed records of a fleet, and the config has no cluster.store: name the store \
                     with --store, or check the log of this proxy with `mcpproxy activity verify`",
                )
            })?
        }
    };
    let bucket = Bucket::open(&store).map_err(|error| failed(&error))?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let proof = runtime.block_on(audit::prove(&bucket, id)).map_err(|error| match error {
        ProofError::Store(error) => failed(&error),
        error => CommandError::failed(error),
    })?;
    let proof = serde_json::to_string(&proof).map_err(CommandError::failed)?;
    if flags.file == Path::new("-") {
        return output::write(output.json(&proof).as_bytes());
    }
    let unwritten = |error: std::io::Error| {
        CommandError::failed(format!("cannot write {}: {error}", flags.file.display()))
    };
    // The proof contains arguments and results.
    let mut file = private::create(&flags.file).map_err(unwritten)?;
    file.write_all(proof.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(unwritten)?;
    let done = json!({"file": flags.file.display().to_string(), "bytes": proof.len() + 1});
    output.print(&done.to_string(), |done| {
        format!("{} bytes in {}", text(done, "/bytes"), line(&text(done, "/file")))
    })
}

/// Verifies a proof and prints the facts that it proves.
pub(super) fn check(
    file: &Path,
    flags: &ActivityVerify,
    output: &Output,
) -> Result<(), CommandError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("cannot read {}: {error}", file.display()))
    };
    let length = std::fs::metadata(file).map_err(|error| unreadable(&error))?.len();
    if length > MAX_PROOF_BYTES {
        return Err(unreadable(&"too large for a proof"));
    }
    let keys = keys(flags.keys.as_deref())?;
    let proof = std::fs::read(file).map_err(|error| unreadable(&error))?;
    let proven = RecordProof::read(&proof).and_then(|proof| proof.check(keys.as_deref()));
    let proven = proven.map_err(CommandError::failed)?;
    let report = json!({
        "sound": true,
        "chain": proven.checkpoint.origin,
        "key": proven.key.to_string(),
        "key_given": proven.is_trusted,
        "checkpoint": proven.checkpoint.last,
        "activity": proven.record,
    });
    output.print(&report.to_string(), |report| draw_proof(report, output.view.width))
}

fn draw_proof(report: &Value, width: Option<usize>) -> String {
    let [chain, key, last] = ["/chain", "/key", "/checkpoint"].map(|at| text(report, at));
    let mut shown =
        format!("sound: {} has signed this record, in its checkpoint at {last}\n", line(&chain));
    if report.pointer("/key_given") != Some(&Value::Bool(true)) {
        let key = line(&key);
        shown += &format!(
            "note   the key comes from the proof, {key}: compare it, or pass a trusted one with --keys\n"
        );
    }
    shown
        + &crate::commands::activity::show::render(
            report,
            &[],
            &Times::new(Some(TimeStyle::Utc), false),
            width,
        )
}

/// Verifies a fleet's object store, prints a report, and fails if there is a fault.
pub(super) fn verify(
    store: &str,
    flags: &ActivityVerify,
    output: &Output,
) -> Result<(), CommandError> {
    let options = AuditOptions { keys: keys(flags.keys.as_deref())?, expired: flags.expired };
    let bucket = Bucket::open(store).map_err(|error| failed(&error))?;
    let bar: ProgressBar = records_bar(0);
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let report = runtime.block_on(audit::audit(&bucket, &options, |done| bar.set_position(done)));
    bar.finish_and_clear();
    let report = report.map_err(|error| failed(&error))?;
    let report = serde_json::to_string(&report).map_err(CommandError::failed)?;
    output.print(&report, draw_fleet)?;
    match fleet_unsound(&output::parse(&report)?) {
        None => Ok(()),
        Some(why) => Err(CommandError::failed(why)),
    }
}

/// Reads the trusted keys, if a file is given.
pub(super) fn keys(file: Option<&Path>) -> Result<Option<Vec<VerifierKey>>, CommandError> {
    let Some(file) = file else { return Ok(None) };
    let unreadable = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("cannot read {}: {error}", file.display()))
    };
    let length = std::fs::metadata(file).map_err(|error| unreadable(&error))?.len();
    if length > MAX_KEYS_BYTES {
        return Err(unreadable(&"too large for a key file"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    let keys = audit::read_keys(&text);
    keys.map(Some).map_err(|line| unreadable(&format!("line {line} is not a verifier key")))
}

/// Error of the object store with its exit code.
pub(super) fn failed(error: &BucketError) -> CommandError {
    let exit = match error {
        BucketError::Url(_) => Exit::Usage,
        BucketError::Late(_) | BucketError::Failed(_) => Exit::Unreachable,
        BucketError::Missing(_)
        | BucketError::TooLong(_)
        | BucketError::TooMany(_)
        | BucketError::OddKey(_)
        | BucketError::TooManyFolders(_) => Exit::Failed,
    };
    let what = match error {
        BucketError::Missing(key) => {
            format!("the store has no {key}: it does not belong to a fleet")
        }
        error => error.to_string(),
    };
    CommandError::new(exit, what)
}

fn draw_fleet(report: &Value) -> String {
    let mut shown = String::new();
    for node in list(report, "/nodes") {
        let [name, segments, records, first, last] =
            ["/node", "/segments", "/records", "/first", "/last"].map(|at| text(node, at));
        let is_sound = node.pointer("/sound") == Some(&Value::Bool(true));
        let state = if is_sound { "sound" } else { "NOT SOUND" };
        let _ = writeln!(
            shown,
            "{state}: node {}, {} in {}, number {first} to {last}",
            line(&name),
            counted(&records, "record"),
            counted(&segments, "segment"),
        );
        list(node, "/faults").iter().for_each(|fault| draw_fault(&mut shown, fault));
        for gap in list(node, "/gaps") {
            let [from, to] = ["/first_lost_seq", "/last_lost_seq"].map(|at| text(gap, at));
            let _ = writeln!(shown, "lost       records {from} to {to}, as recorded in the log");
        }
        for note in list(node, "/notes") {
            let _ = writeln!(shown, "note       {}", line(note.as_str().unwrap_or_default()));
        }
    }
    list(report, "/faults").iter().for_each(|fault| draw_fault(&mut shown, fault));
    for note in list(report, "/notes") {
        let _ = writeln!(shown, "note       {}", line(note.as_str().unwrap_or_default()));
    }
    shown
}

fn draw_fault(shown: &mut String, fault: &Value) {
    let [what, at, why] = ["/fault", "/at", "/why"].map(|part| text(fault, part));
    let _ = writeln!(shown, "{what:<10} {}: {}", line(&at), line(&why));
}

/// Summary of the first fault; `None` if there is none.
fn fleet_unsound(report: &Value) -> Option<String> {
    let of_nodes = list(report, "/nodes").iter().flat_map(|node| list(node, "/faults"));
    let faults: Vec<_> = of_nodes.chain(list(report, "/faults")).collect();
    let first = faults.first()?;
    let [what, at, why] = ["/fault", "/at", "/why"].map(|part| text(first, part));
    let more = match faults.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!("{} is {what}: {}{more}", line(&at), line(&why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_4_first_break_is_reported() {
        let mut report = serde_json::json!({"sound": true, "records": 7, "first": 1, "last": 7,
            "broken": null, "altered": [], "notes": []});
        assert_eq!(unsound(&report), None);
        assert_eq!(draw(&report), "sound: 7 records, number 1 to 7\n");
        report["gaps"] = serde_json::json!([{"first_lost_seq": 3, "last_lost_seq": 4}]);
        assert!(draw(&report).ends_with("\nlost      records 3 to 4, as recorded in the log\n"));
        report["unrecorded"] = serde_json::json!([{"records_lost": 9, "at_least": 7, "from": "A",
            "to": "B", "cause": "no space"}]);
        let line = "\nlost      up to 9 records that could not be written, A to B: no space\n";
        assert!(draw(&report).ends_with(line), "{}", draw(&report));
        report["sound"] = false.into();
        report["altered"] = serde_json::json!(["db/1"]);
        assert_eq!(unsound(&report).unwrap(), "altered: db/1");
        report["altered"] = serde_json::json!(["db/1", "db/2", "db/3", "db/4", "db/5"]);
        assert_eq!(unsound(&report).unwrap(), "altered: db/1, db/2, db/3, db/4 and 1 more");
        report["broken"] = serde_json::json!({"seq": 8, "fault": "out_of_place", "why": "its id"});
        let broken = unsound(&report).unwrap();
        assert!(broken.starts_with("record 8 is out of place: its id; altered: db/1"), "{broken}");
        assert!(
            draw(&report).starts_with("NOT SOUND: 7 records") && draw(&report).contains("db/1")
        );
    }

    #[test]
    fn faults_are_reported_with_their_segment() {
        let mut report = serde_json::json!({"sound": true, "nodes": [{"node": "a", "sound": true, "segments": 2,
            "records": 7, "first": 1, "last": 7, "faults": [], "gaps": [], "notes": []}],
            "faults": [], "notes": ["x"]});
        assert_eq!(fleet_unsound(&report), None);
        let sound = "sound: node a, 7 records in 2 segments, number 1 to 7\nnote       x\n";
        assert_eq!(draw_fleet(&report), sound);
        report["nodes"][0]["faults"] = serde_json::json!([
            {"fault": "removed", "at": "nodes/a/s", "why": "records 3 to 4"},
            {"fault": "fork", "at": "nodes/a/t", "why": "y"}]);
        assert_eq!(
            fleet_unsound(&report).unwrap(),
            "nodes/a/s is removed: records 3 to 4 (and 1 more)"
        );
        assert!(
            draw_fleet(&report).contains("\nfork       nodes/a/t: y\n"),
            "{}",
            draw_fleet(&report)
        );
    }
}
