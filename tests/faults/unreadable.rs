//! An unreadable file of the log: it is named as damage whenever the log is opened, and a salvage keeps the contents
//! of the others (ACT-9).

use crate::plan::{EIO, Op};
use crate::subject::{BEFORE, Phase};
use crate::sweep::{Run, build, folder};

#[test]
fn unreadable_file_is_named_and_only_its_contents_are_lost() {
    let home = tempfile::tempdir().unwrap();
    let shim = build(home.path());
    for (file, holds_records) in [
        ("db/version", false),
        ("db/keyspaces/0/current", false),
        ("db/keyspaces/1/current", false),
        ("db/keyspaces/2/v", false),
        ("db/keyspaces/3/current", false),
        ("db/keyspaces/6/v", false),
        ("db/keyspaces/6/tables/", false),
        ("db/0.jnl", true),
        ("head", false),
    ] {
        let only = format!("log/{file}");
        let (phase, op) = (Phase::Unreadable, Op::Read);
        let run = Run { shim: &shim, phase, op, error: EIO, nth: 0, times: u64::MAX, only: &only };
        let (ended_well, output) = run.run(&folder()).unwrap();
        assert!(ended_well, "{file}: {output}");
        let line = |start: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(start));
            line.unwrap_or_else(|| panic!("{file} {start}: {output}")).to_owned()
        };
        // Verification opens tables through links in a copy. The shim selects files by name, so it cannot fail these
        // reads.
        let steps = if file.contains("/tables/") { &["open "][..] } else { &["open ", "verify "] };
        for who in steps {
            let error = line(who);
            assert!(error.starts_with("Err(Damaged"), "{file} {who}: {error}");
            assert!(error.contains(file), "{file} {who}: {error}");
        }
        let salvaged = line("salvaged ");
        assert!(salvaged.starts_with("Ok(Some("), "{file}: {salvaged}");
        let all = salvaged.contains(&format!("kept: {BEFORE}, lost: 0,"));
        assert!(all || holds_records, "{file}: {salvaged}");
        assert!(output.lines().any(|line| line == "back"), "{file}: {output}");
    }
}
