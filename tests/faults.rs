//! The log while the n-th operation on the disk fails, for every n: what was acknowledged is there
//! afterwards, nothing hangs, and it comes back or says why not (ACT-2, ACT-3, ACT-9).
//!
//! A child process does one phase of a log's life with a shim between it and libc (`shim.c`); the
//! shim fails one operation, or all from one on. The short sweep runs with every `cargo test`; the
//! whole one, over every place, by `tools/faults`. Linux only: the shim is preloaded.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "faults/full_index.rs"]
mod full_index;
#[path = "faults/lost.rs"]
mod lost;
#[path = "faults/plan.rs"]
mod plan;
#[path = "faults/ready.rs"]
mod ready;
#[path = "faults/small_disk.rs"]
mod small_disk;
#[path = "faults/subject.rs"]
mod subject;
#[path = "faults/sweep.rs"]
mod sweep;
