//! Fault injection into the activity log: the n-th disk operation fails, for every n. Acknowledged records survive,
//! nothing hangs, and the log recovers or reports why not (ACT-2, ACT-3, ACT-9).
//!
//! A child process runs one phase of a log's life with a shim between it and libc (`shim.c`). The shim fails one
//! operation, or all operations from a certain one on. `cargo test` runs a short sweep, and `tools/faults` the full one
//! over every operation. Linux only, because the shim is preloaded.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

#[path = "faults/folder_scenes.rs"]
mod folder_scenes;
#[path = "faults/folder_sweep.rs"]
mod folder_sweep;
#[path = "faults/full_index.rs"]
mod full_index;
#[path = "faults/lost.rs"]
mod lost;
#[path = "faults/plan.rs"]
mod plan;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/ready.rs"]
mod ready;
#[path = "faults/small_disk.rs"]
mod small_disk;
#[path = "faults/subject.rs"]
mod subject;
#[path = "faults/sweep.rs"]
mod sweep;
#[path = "faults/unreadable.rs"]
mod unreadable;
