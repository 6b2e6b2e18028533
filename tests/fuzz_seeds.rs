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
fn accept() {
    replay("accept", bodies::accept::run);
}

#[test]
fn answers() {
    replay("answers", bodies::answers::run);
}

#[test]
fn arguments() {
    replay("arguments", bodies::arguments::run);
}

#[test]
fn ledger() {
    replay("ledger", bodies::ledger::run);
}

#[test]
fn scan() {
    replay("scan", bodies::scan::run);
}

#[test]
fn sessions() {
    replay("sessions", bodies::sessions::run);
}

#[test]
fn tickets() {
    replay("tickets", bodies::tickets::run);
}

#[test]
fn envelope() {
    replay("envelope", bodies::envelope::run);
}

#[test]
fn framing() {
    replay("framing", bodies::framing::run);
}

#[test]
fn guard() {
    replay("guard", bodies::guard::run);
}

#[test]
fn headers() {
    replay("headers", bodies::headers::run);
}

#[test]
fn intent() {
    replay("intent", bodies::intent::run);
}

#[test]
fn journal() {
    replay("journal", bodies::journal::run);
}

/// Beside the seeds: journals grown out of bytes at random, the same in each run.
#[test]
fn journals_grown() {
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
fn kept() {
    replay("kept", bodies::kept::run);
}

#[test]
fn lines() {
    replay("lines", bodies::lines::run);
}

#[test]
fn members() {
    replay("members", bodies::members::run);
}

/// Beside the seeds: what `grow` makes of bytes at random, the same in each run.
#[test]
fn members_grown() {
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
fn peers() {
    replay("peers", bodies::peers::run);
}

#[test]
fn record() {
    replay("record", bodies::record::run);
}

#[test]
fn results() {
    replay("results", bodies::results::run);
}

#[test]
fn router() {
    replay("router", bodies::router::run);
}

#[test]
fn signature() {
    replay("signature", bodies::signature::run);
}

#[test]
fn splice() {
    replay("splice", bodies::splice::run);
}

#[test]
fn sse() {
    replay("sse", bodies::sse::run);
}

// PRO-45
#[test]
fn uris() {
    replay("uris", bodies::uris::run);
}

#[test]
fn validate() {
    replay("validate", bodies::validate::run);
}
