//! Reading the log without a running proxy: nothing in the data folder changes, and nothing is left behind.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Output, Process, Proxy, free_port, mcpproxy, stub_stdio, until};

/// Mode, modification time and content of everything in a folder.
fn tree(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        let about = path.symlink_metadata().unwrap();
        let content = if about.is_dir() {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            std::fs::read(&path).unwrap()
        };
        found.insert(path, (about.mode(), about.mtime(), about.mtime_nsec(), content));
    }
    found
}

/// A proxy with `calls` recorded calls, on a port of its own.
fn with_calls(calls: usize) -> Proxy {
    let config = json!({"listen": format!("127.0.0.1:{}", free_port()),
        "mcpServers": {"s": stub_stdio(&[])}});
    let proxy = Proxy::unready(config, tempfile::tempdir().unwrap()).ready();
    let mut client = proxy.client();
    for _ in 0..calls {
        client.read("s:read_item", json!({}));
    }
    proxy.api("activity?limit=1");
    proxy
}

/// A command for the log in `folder`, with a temporary folder of its own.
fn reading(folder: &Path, temporary: &Path, args: &[&str]) -> Command {
    let mut command = mcpproxy();
    command.env("TMPDIR", temporary).arg("-c").arg(folder.join("config.json")).args(args);
    command
}

/// Runs every reading command, and checks that none changes the data folder or leaves a temporary file.
fn reads_and_changes_nothing(folder: &Path) {
    let data = folder.join("data");
    let temporary = tempfile::tempdir().unwrap();
    let before = tree(&data);
    let run = |args: &[&str]| {
        let output = Output::of(&mut reading(folder, temporary.path(), args));
        assert_eq!((output.code, &*output.stderr), (Some(0), ""), "{args:?}");
        let after = tree(&data);
        let names: Vec<_> = before.keys().collect();
        assert_eq!(after.keys().collect::<Vec<_>>(), names, "{args:?}");
        for (path, was) in &before {
            assert!(after[path] == *was, "{args:?} changes {}", path.display());
        }
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "{args:?}");
        output
    };
    let listed = run(&["activity", "list", "-n", "1000", "--json"]).json();
    let records = listed["activities"].as_array().unwrap();
    let kinds = |kind: &str| records.iter().filter(|record| record["type"] == kind).count();
    assert_eq!((kinds("tool_call"), kinds("system_start")), (5, 1), "{listed}");
    let id = records[0]["id"].as_str().unwrap();
    assert_eq!(run(&["activity", "show", id, "--json"]).json()["activity"]["id"], *id);
    assert_eq!(run(&["activity", "summary", "--json"]).json()["total_count"], 5);
    let exported = run(&["activity", "export", "--file", "-"]).stdout;
    assert_eq!(exported.lines().count(), records.len());
    assert_eq!(run(&["activity", "verify", "--json"]).json()["sound"], true);
}

#[test]
fn act_4_reading_a_closed_log_changes_nothing_in_the_data_folder() {
    let folder = with_calls(5).end();
    reads_and_changes_nothing(folder.path());
}

#[test]
fn act_4_reading_the_log_of_a_killed_proxy_changes_nothing_in_the_data_folder() {
    let mut proxy = with_calls(5);
    proxy.process.0.kill().unwrap();
    proxy.process.wait();
    reads_and_changes_nothing(proxy.folder.path());
}

#[test]
fn act_4_missing_log_is_empty_and_is_not_created() {
    let folder = tempfile::tempdir().unwrap();
    crate::harness::configure(
        json!({"listen": format!("127.0.0.1:{}", free_port())}),
        folder.path(),
    );
    let temporary = tempfile::tempdir().unwrap();
    let mut list = reading(folder.path(), temporary.path(), &["activity", "list", "--json"]);
    let output = Output::of(&mut list);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.json()["activities"], json!([]));
    assert!(!folder.path().join("data").exists());
}

#[test]
fn act_4_log_on_a_read_only_mount_is_read() {
    let folder = with_calls(3).end();
    let data = folder.path().join("data");
    // On a read-only mount if the system permits one. Otherwise only changes in the folder are detected.
    const MOUNT: &str = r#"mount --bind "$1" "$1" && mount -o remount,bind,ro "$1""#;
    let can = Command::new("unshare")
        .args(["-rm", "sh", "-c", MOUNT, "sh"])
        .arg(&data)
        .stderr(Stdio::null())
        .status();
    let temporary = tempfile::tempdir().unwrap();
    let before = tree(&data);
    for args in [&["activity", "list", "--json"][..], &["activity", "verify", "--json"]] {
        let inner = reading(folder.path(), temporary.path(), args);
        let mut command = match can.as_ref().is_ok_and(std::process::ExitStatus::success) {
            true => {
                let mut command = Command::new("unshare");
                let script = format!("{MOUNT} && shift && exec \"$@\"");
                command.args(["-rm", "sh", "-c", &script, "sh"]).arg(&data);
                command.arg(inner.get_program()).args(inner.get_args());
                command.env("TMPDIR", temporary.path());
                command
            }
            false => inner,
        };
        let output = Output::of(&mut command);
        assert_eq!(output.code, Some(0), "{args:?}: {}", output.stderr);
    }
    assert!(tree(&data) == before);
}

#[test]
fn copy_made_for_reading_is_removed_on_ctrl_c() {
    // The export is larger than the capacity of a pipe, so that it is still in progress when it is interrupted.
    let folder = with_calls(300).end();
    let temporary = tempfile::tempdir().unwrap();
    let mut export =
        reading(folder.path(), temporary.path(), &["activity", "export", "--file", "-"]);
    let mut export = Process::spawn(export.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut first = [0];
    export.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let count = || std::fs::read_dir(temporary.path()).unwrap().count();
    assert_eq!(count(), 1, "the copy is there");
    export.signal("INT");
    until("the copy is removed", || (count() == 0).then_some(()));
    assert_eq!(export.wait(), Some(130));
}

#[test]
fn list_with_newest_first_is_ordered_by_the_shown_time() {
    let proxy = with_calls(12);
    let output = proxy.cli(&["activity", "list", "-n", "1000"]);
    let mut lines = output.stdout.lines();
    assert!(lines.next().unwrap().contains("TIME (UTC)"), "the zone is named: {}", output.stdout);
    let listed: Value = proxy.cli(&["activity", "list", "-n", "1000", "--json"]).json();
    let records = listed["activities"].as_array().unwrap();
    let mut last = None;
    for (line, record) in lines.zip(records) {
        let id = record["id"].as_str().unwrap();
        assert!(line.starts_with(id), "{line}");
        // The first 48 bits of the id contain the time at which the record was stored.
        const DIGITS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
        let digit = |letter| DIGITS.find(letter).unwrap() as i64;
        let stored = id.chars().take(10).fold(0, |time, letter| time * 32 + digit(letter));
        let shown = jiff::Timestamp::from_millisecond(stored).unwrap();
        assert!(line.contains(&format!("{shown:.3}")), "{line}");
        assert!(last.is_none_or(|last| last >= shown), "{line}");
        last = Some(shown);
    }
    let shown = proxy.cli(&["activity", "show", records[0]["id"].as_str().unwrap()]).stdout;
    assert!(shown.contains("began  ") && shown.contains("stored  "), "{shown}");
}
