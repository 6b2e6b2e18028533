//! `mcpproxy activity verify --store`: the chains of a fleet, from its object store alone.

use std::fmt::Write as _;
use std::path::Path;

use indicatif::ProgressBar;
use serde_json::Value;

use super::progress::records_bar;
use crate::cli::args::ActivityVerify;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::terminal_safe::line;
use crate::fleet::audit::{self, AuditOptions, MAX_KEYS_BYTES};
use crate::fleet::bucket::{Bucket, BucketError};
use crate::fleet::signed_note::VerifierKey;
use crate::server;

/// Verifies, says what was found, and fails if anything is wrong.
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
    output.print(&report, draw)?;
    match unsound(&output::parse(&report)?) {
        None => Ok(()),
        Some(why) => Err(CommandError::failed(why)),
    }
}

/// The keys in a file, if there is one.
pub(super) fn keys(file: Option<&Path>) -> Result<Option<Vec<VerifierKey>>, CommandError> {
    let Some(file) = file else { return Ok(None) };
    let unread = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("cannot read {}: {error}", file.display()))
    };
    let length = std::fs::metadata(file).map_err(|error| unread(&error))?.len();
    if length > MAX_KEYS_BYTES {
        return Err(unread(&"it is too long for a file of keys"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unread(&error))?;
    let keys = audit::read_keys(&text);
    keys.map(Some).map_err(|line| unread(&format!("line {line} is no verifier key")))
}

/// A store that cannot be used, with its exit code.
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
        BucketError::Missing(key) => format!("the store has no {key}: it is that of no fleet"),
        error => error.to_string(),
    };
    CommandError::new(exit, what)
}

fn draw(report: &Value) -> String {
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
        list(node, "/faults").iter().for_each(|fault| tell(&mut shown, fault));
        for gap in list(node, "/gaps") {
            let [from, to] = ["/first_lost_seq", "/last_lost_seq"].map(|at| text(gap, at));
            let _ = writeln!(shown, "lost       records {from} to {to}, as the log itself says");
        }
        for note in list(node, "/notes") {
            let _ = writeln!(shown, "note       {}", line(note.as_str().unwrap_or_default()));
        }
    }
    list(report, "/faults").iter().for_each(|fault| tell(&mut shown, fault));
    for note in list(report, "/notes") {
        let _ = writeln!(shown, "note       {}", line(note.as_str().unwrap_or_default()));
    }
    shown
}

fn tell(shown: &mut String, fault: &Value) {
    let [what, at, why] = ["/fault", "/at", "/why"].map(|part| text(fault, part));
    let _ = writeln!(shown, "{what:<10} {}: {}", line(&at), line(&why));
}

/// The first thing that is wrong; `None` if nothing is.
fn unsound(report: &Value) -> Option<String> {
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
    fn what_is_wrong_is_named_with_its_segment() {
        let mut report = serde_json::json!({"sound": true, "nodes": [{"node": "a", "sound": true, "segments": 2,
            "records": 7, "first": 1, "last": 7, "faults": [], "gaps": [], "notes": []}],
            "faults": [], "notes": ["x"]});
        assert_eq!(unsound(&report), None);
        let sound = "sound: node a, 7 records in 2 segments, number 1 to 7\nnote       x\n";
        assert_eq!(draw(&report), sound);
        report["nodes"][0]["faults"] = serde_json::json!([
            {"fault": "removed", "at": "nodes/a/s", "why": "records 3 to 4"},
            {"fault": "fork", "at": "nodes/a/t", "why": "y"}]);
        assert_eq!(unsound(&report).unwrap(), "nodes/a/s is removed: records 3 to 4 (and 1 more)");
        assert!(draw(&report).contains("\nfork       nodes/a/t: y\n"), "{}", draw(&report));
    }
}
