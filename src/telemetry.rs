//! Metrics of calls, and the lines of the log.
//!
//! Whatever shows metrics (`/api/v1/status`, `/metrics`) reads [`Calls::read`] and [`Calls::by_tool`], and the
//! numbers of other parts (held bytes, the activity log) where those parts keep them.

pub mod call_metrics;
mod counted;
mod counter;
pub mod histogram;
mod log_lines;
pub mod tool_calls;

pub use call_metrics::{Calls, Tally};
pub use log_lines::LogLines;
