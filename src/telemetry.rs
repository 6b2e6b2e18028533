//! Metrics of calls, and the lines of the log.
//!
//! Whatever shows metrics (`/api/v1/status`, and exporters to come) reads [`Calls::read`], and the
//! numbers of other parts (held bytes, the activity log) where those parts keep them.

pub mod call_metrics;
mod counter;
pub mod histogram;
mod log_lines;

pub use call_metrics::{Calls, Tally};
pub use log_lines::LogLines;
