//! The activity log as its users see it: what was submitted is found, in order, once.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "activity_log/begun.rs"]
mod begun;
#[path = "activity_log/crash.rs"]
mod crash;
#[path = "activity_log/mend.rs"]
mod mend;
#[path = "activity_log/queries.rs"]
mod queries;
#[path = "activity_log/retention.rs"]
mod retention;
#[path = "activity_log/support.rs"]
mod support;
#[path = "activity_log/tamper.rs"]
mod tamper;
#[path = "activity_log/versions.rs"]
mod versions;
#[path = "activity_log/window.rs"]
mod window;
#[path = "activity_log/writing.rs"]
mod writing;
