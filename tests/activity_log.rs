//! Integration tests of the activity log: every submitted record is found, once and in order.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "activity_log/call_marks.rs"]
mod call_marks;
#[path = "activity_log/crash.rs"]
mod crash;
#[path = "activity_log/journals.rs"]
mod journals;
#[path = "activity_log/manifests.rs"]
mod manifests;
#[path = "activity_log/queries.rs"]
mod queries;
#[path = "activity_log/refusals.rs"]
mod refusals;
#[path = "activity_log/repair.rs"]
mod repair;
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
