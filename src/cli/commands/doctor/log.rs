//! Whether the log is as it was written (ACT-4), and if not, or if that cannot be told, what to do next.

use std::env;
use std::io;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use tokio::runtime::LocalRuntime;

use super::finding::Diagnosis;
use crate::activity::{StoreError, verify};
use crate::cli::backend::{Backend, target};
use crate::cli::commands::activity::unsound;
use crate::cli::counted::counted;
use crate::cli::json_pointer::text;
use crate::cli::output;
use crate::cli::temporary_folder::TemporaryFolder;
use crate::config::file::Loaded;

const CHECK: &str = "log";
/// What goes on with what can be read of a log that is wrong.
const SALVAGE: &str = "mcpproxy serve --salvage";

/// Verifies it: by the proxy that has it open, else here, on a copy.
pub(super) fn look(
    loaded: &Loaded,
    running: Option<&Backend>,
    runtime: &LocalRuntime,
) -> Diagnosis {
    let folder = loaded.config.activity_folder();
    let start = Instant::now();
    let report = match running {
        Some(backend) => {
            let asked = runtime.block_on(backend.get(&target(&["activity", "verify"], &[])));
            let report = asked.and_then(|answer| output::parse(answer.json()?));
            report.map_err(|error| not_known(&error.message, "mcpproxy status"))
        }
        None if !folder.exists() => return Diagnosis::fine(CHECK, "there is none yet"),
        None => on_disk(&folder),
    };
    let finding = report.map_or_else(|why| why, |report| told(&report, running.is_some()));
    Diagnosis { took: Some(start.elapsed()), ..finding }
}

/// What a report comes to.
fn told(report: &Value, runs: bool) -> Diagnosis {
    match unsound(report) {
        Some(why) => Diagnosis::wrong(CHECK, why, salvage(runs)),
        None => {
            let records = counted(text(report, "/records"), "record");
            Diagnosis::fine(CHECK, format!("{records}, all sound"))
        }
    }
}

/// It is salvaged by the next start alone, which needs the address and the folder for itself.
fn salvage(runs: bool) -> String {
    match runs {
        true => format!("stop the mcpproxy that runs, then: {SALVAGE}"),
        false => SALVAGE.to_owned(),
    }
}

fn on_disk(folder: &Path) -> Result<Value, Diagnosis> {
    let failed = |error: &dyn std::fmt::Display| not_known(&error.to_string(), "");
    let scratch = TemporaryFolder::watched("verify").map_err(|error| failed(&error.message))?;
    let report = verify::folder(folder, scratch.path(), |_, _| {});
    let report = report.map_err(|error| unverified(&error))?;
    serde_json::to_value(&report).map_err(|error| failed(&error))
}

/// Why a log on disk could not be verified: only where it is damaged that says something of the log itself.
fn unverified(error: &StoreError) -> Diagnosis {
    let text = error.to_string();
    match error {
        StoreError::Damaged { .. } => Diagnosis::wrong(CHECK, text, salvage(false)),
        StoreError::Locked => not_known(
            &text,
            "end that process, or name the address of a mcpproxy that runs with MCPPROXY_LISTEN",
        ),
        StoreError::Io(error) => {
            let mend = match error.kind() {
                // It is verified on a copy.
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
                    "make room at {}, or set TMPDIR to where there is as much as the log takes",
                    env::temp_dir().display()
                ),
                io::ErrorKind::PermissionDenied => {
                    "run mcpproxy doctor as the user whose log it is".to_owned()
                }
                _ => String::new(),
            };
            not_known(&text, &mend)
        }
    }
}

fn not_known(why: &str, mend: &str) -> Diagnosis {
    Diagnosis::wrong(CHECK, format!("whether it is sound is not known: {why}"), mend)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::commands::doctor::finding::DiagnosisKind;

    #[test]
    fn a_wrong_log_is_salvaged_once_nobody_has_it_open() {
        let good = json!({"sound": true, "records": 7});
        for runs in [false, true] {
            let told = told(&good, runs);
            assert_eq!((told.outcome, &*told.text), (DiagnosisKind::Fine, "7 records, all sound"));
            assert_eq!(told.mend, "");
        }
        let wrong = json!({"sound": false, "broken": {"seq": 3, "fault": "altered", "why": "x"}});
        assert_eq!(told(&wrong, false).mend, "mcpproxy serve --salvage");
        let running = told(&wrong, true);
        assert_eq!(running.outcome, DiagnosisKind::Wrong);
        assert!(running.mend.starts_with("stop the mcpproxy that runs, then: "), "{running:?}");
        assert!(running.mend.ends_with("mcpproxy serve --salvage"), "{running:?}");
    }

    #[test]
    fn what_says_nothing_of_the_log_itself_is_not_told_to_be_salvaged() {
        let damaged = StoreError::Damaged { file: "a".into(), why: "x".into() };
        assert_eq!(unverified(&damaged).mend, SALVAGE);
        let of_kind = |kind| StoreError::Io(io::Error::from(kind));
        for (error, mend) in [
            (StoreError::Locked, "end that process"),
            (of_kind(io::ErrorKind::StorageFull), "make room at"),
            (of_kind(io::ErrorKind::QuotaExceeded), "make room at"),
            (of_kind(io::ErrorKind::PermissionDenied), "run mcpproxy doctor as"),
            (of_kind(io::ErrorKind::TimedOut), ""),
        ] {
            let told = unverified(&error);
            assert_eq!(told.outcome, DiagnosisKind::Wrong, "{error}");
            assert!(told.text.starts_with("whether it is sound is not known: "), "{told:?}");
            assert!(told.mend.starts_with(mend) && !told.mend.contains("salvage"), "{told:?}");
            assert!(!mend.is_empty() || told.mend.is_empty(), "{told:?}");
        }
    }
}
