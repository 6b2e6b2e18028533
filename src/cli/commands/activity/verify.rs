//! `mcpproxy activity verify`: whether the log is as it was written (ACT-4).
//!
//! A running proxy is asked; with none running the files are checked, on a copy, before anything
//! could repair them.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;

use super::progress::records_bar;
use crate::activity::verify;
use crate::cli::args::Global;
use crate::cli::backend::{Backend, target};
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::temporary_folder::TemporaryFolder;
use crate::cli::terminal_safe::line;
use crate::cli::{load_config, running_proxy, start_proxy};
use crate::server;

/// How often a bar without a length moves.
const TICK: Duration = Duration::from_millis(100);

/// Verifies, says what was found, and fails if the log is not sound.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let found = runtime.block_on(running_proxy::find(&loaded.config));
    let report = if let Some(client) = found {
        let bar = ProgressBar::new_spinner().with_message("the running proxy verifies its log");
        bar.enable_steady_tick(TICK);
        let asked = Backend::Remote(client);
        let report = runtime.block_on(asked.get(&target(&["activity", "verify"], &[])));
        bar.finish_and_clear();
        report?.json()?.to_owned()
    } else {
        let folder = loaded.config.activity_folder();
        if !folder.try_exists().map_err(CommandError::failed)? {
            let none = format!("there is no activity log in {}", folder.display());
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
        Some(why) => Err(CommandError::failed(why)),
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
        let _ = writeln!(shown, "lost      records {from} to {to}, as the log itself says");
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

/// What is wrong, the first break by its number; `None` if nothing is.
pub(in crate::cli::commands) fn unsound(report: &Value) -> Option<String> {
    if report.pointer("/sound") == Some(&Value::Bool(true)) {
        return None;
    }
    let fault = text(report, "/broken/fault").replace('_', " ");
    Some(match report.pointer("/broken/seq") {
        Some(seq) => format!("record {seq} is {fault}: {}", text(report, "/broken/why")),
        None => "files of the log are not what they were when it was closed".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_4_the_first_break_is_named() {
        let mut report = serde_json::json!({"sound": true, "records": 7, "first": 1, "last": 7,
            "broken": null, "altered": [], "notes": []});
        assert_eq!(unsound(&report), None);
        assert_eq!(draw(&report), "sound: 7 records, number 1 to 7\n");
        report["gaps"] = serde_json::json!([{"first_lost_seq": 3, "last_lost_seq": 4}]);
        assert!(draw(&report).ends_with("\nlost      records 3 to 4, as the log itself says\n"));
        report["unrecorded"] = serde_json::json!([{"records_lost": 9, "at_least": 7, "from": "A",
            "to": "B", "cause": "no space"}]);
        let line = "\nlost      up to 9 records that could not be written, A to B: no space\n";
        assert!(draw(&report).ends_with(line), "{}", draw(&report));
        report["sound"] = false.into();
        report["altered"] = serde_json::json!(["db/1"]);
        assert!(unsound(&report).unwrap().contains("files"));
        report["broken"] = serde_json::json!({"seq": 8, "fault": "out_of_place", "why": "its id"});
        assert_eq!(unsound(&report).unwrap(), "record 8 is out of place: its id");
        assert!(
            draw(&report).starts_with("NOT SOUND: 7 records") && draw(&report).contains("db/1")
        );
    }
}
