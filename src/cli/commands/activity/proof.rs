//! `mcpproxy activity prove` and `activity verify PROOF`: one record, proven to somebody who has nothing but the proof and the
//! node's key.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::fleet::{failed, keys};
use crate::activity::Id;
use crate::cli::args::{ActivityProve, ActivityVerify, Global};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::text;
use crate::cli::load_config;
use crate::cli::output::{self, Output};
use crate::cli::terminal_safe::line;
use crate::cli::times::{TimeStyle, Times};
use crate::fleet::bucket::Bucket;
use crate::fleet::record_proof::{self, MAX_PROOF_BYTES, ProofError, RecordProof};
use crate::os::private;
use crate::server;

/// Writes the proof of a record.
pub(super) fn write(
    flags: &ActivityProve,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let id = Id::parse(&flags.id)
        .ok_or_else(|| CommandError::usage(format!("'{}' is no whole id of a record", flags.id)))?;
    let store = match &flags.store {
        Some(store) => store.clone(),
        None => {
            let (loaded, _log) = load_config::load_with_log(global)?;
            loaded.config.cluster.store.ok_or_else(|| {
                CommandError::usage("the config has no cluster.store: name the store with --store")
            })?
        }
    };
    let bucket = Bucket::open(&store).map_err(|error| failed(&error))?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let proof =
        runtime.block_on(record_proof::prove(&bucket, id)).map_err(|error| match error {
            ProofError::Store(error) => failed(&error),
            error => CommandError::failed(error),
        })?;
    let proof = serde_json::to_string(&proof).map_err(CommandError::failed)?;
    if flags.file == Path::new("-") {
        return output::write(proof.as_bytes());
    }
    let unwritten = |error: std::io::Error| {
        CommandError::failed(format!("cannot write {}: {error}", flags.file.display()))
    };
    // Arguments and answers are in it.
    let mut file = private::create(&flags.file).map_err(unwritten)?;
    file.write_all(proof.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(unwritten)?;
    let done = json!({"file": flags.file.display().to_string(), "bytes": proof.len() + 1});
    output.print(&done.to_string(), |done| {
        format!("{} bytes in {}", text(done, "/bytes"), line(&text(done, "/file")))
    })
}

/// Checks a proof, and says what it proves.
pub(super) fn check(
    file: &Path,
    flags: &ActivityVerify,
    output: &Output,
) -> Result<(), CommandError> {
    let unread = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("cannot read {}: {error}", file.display()))
    };
    let length = std::fs::metadata(file).map_err(|error| unread(&error))?.len();
    if length > MAX_PROOF_BYTES {
        return Err(unread(&"it is too long for a proof"));
    }
    let keys = keys(flags.keys.as_deref())?;
    let proof = std::fs::read(file).map_err(|error| unread(&error))?;
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
    output.print(&report.to_string(), |report| draw(report, output.view.width))
}

fn draw(report: &Value, width: Option<usize>) -> String {
    let [chain, key, last] = ["/chain", "/key", "/checkpoint"].map(|at| text(report, at));
    let mut shown =
        format!("sound: {} has signed this record, in its checkpoint at {last}\n", line(&chain));
    if report.pointer("/key_given") != Some(&Value::Bool(true)) {
        let key = line(&key);
        shown += &format!(
            "note   the key is the proof's own, {key}: compare it, or name yours with --keys\n"
        );
    }
    shown + &super::show::show(report, &Times::new(Some(TimeStyle::Utc), false), width)
}
