//! Replays the seeds of every fuzz target through the target's own body, on any toolchain.

#[allow(unreachable_pub, dead_code, missing_docs, reason = "the fuzz crate's library, included")]
#[path = "../fuzz/src/lib.rs"]
mod bodies;

use std::{fs, path::Path};

/// Runs `body` on each seed of `target`; a target without seeds fails.
#[expect(clippy::unwrap_used, reason = "a test's helper")]
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count > 0, "no seeds in {folder:?}");
}

// FR-A14
#[test]
fn accept_seeds_pass() {
    replay("accept", bodies::accept::run);
}

#[test]
fn answers_seeds_pass() {
    replay("answers", bodies::answers::run);
}

#[test]
fn arguments_seeds_pass() {
    replay("arguments", bodies::arguments::run);
}

#[test]
fn ledger_seeds_pass() {
    replay("ledger", bodies::ledger::run);
}

#[test]
fn scan_seeds_pass() {
    replay("scan", bodies::scan::run);
}

#[test]
fn sessions_seeds_pass() {
    replay("sessions", bodies::sessions::run);
}

#[test]
fn tickets_seeds_pass() {
    replay("tickets", bodies::tickets::run);
}

#[test]
fn envelope_seeds_pass() {
    replay("envelope", bodies::envelope::run);
}

#[test]
fn framing_seeds_pass() {
    replay("framing", bodies::framing::run);
}

#[test]
fn guard_seeds_pass() {
    replay("guard", bodies::guard::run);
}

#[test]
fn headers_seeds_pass() {
    replay("headers", bodies::headers::run);
}

#[test]
fn intent_seeds_pass() {
    replay("intent", bodies::intent::run);
}

#[test]
fn journal_seeds_pass() {
    replay("journal", bodies::journal::run);
}

/// In addition to the seeds: journals made from pseudorandom bytes, the same in each run.
#[test]
fn grown_journals_pass() {
    const RUNS: u64 = 1000;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for run in 0..RUNS {
        let mut data = Vec::new();
        for _ in 0..run % 500 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data.push((state >> 32) as u8);
        }
        bodies::journal::run(&data);
    }
}

#[test]
fn kept_seeds_pass() {
    replay("kept", bodies::kept::run);
}

#[test]
fn lines_seeds_pass() {
    replay("lines", bodies::lines::run);
}

#[test]
fn members_seeds_pass() {
    replay("members", bodies::members::run);
}

/// In addition to the seeds: output of `grow` for pseudorandom bytes, the same in each run.
#[test]
fn grown_members_pass() {
    const RUNS: u64 = 2000;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for run in 0..RUNS {
        let mut data = vec![run as u8, (run >> 8) as u8 | 1];
        for _ in 0..run % 400 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data.push((state >> 32) as u8);
        }
        bodies::members::run(&data);
    }
}

#[test]
fn peers_seeds_pass() {
    replay("peers", bodies::peers::run);
}

#[test]
fn record_seeds_pass() {
    replay("record", bodies::record::run);
}

#[test]
fn results_seeds_pass() {
    replay("results", bodies::results::run);
}

#[test]
fn router_seeds_pass() {
    replay("router", bodies::router::run);
}

#[test]
fn signature_seeds_pass() {
    replay("signature", bodies::signature::run);
}

#[test]
fn splice_seeds_pass() {
    replay("splice", bodies::splice::run);
}

#[test]
fn sse_seeds_pass() {
    replay("sse", bodies::sse::run);
}

// PRO-45
#[test]
fn uris_seeds_pass() {
    replay("uris", bodies::uris::run);
}

#[test]
fn validate_seeds_pass() {
    replay("validate", bodies::validate::run);
}
