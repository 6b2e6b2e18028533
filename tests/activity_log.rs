//! The activity log as its users see it: what was submitted is found, in order, once.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "activity_log/queries.rs"]
mod queries;
#[path = "activity_log/support.rs"]
mod support;
#[path = "activity_log/writing.rs"]
mod writing;
