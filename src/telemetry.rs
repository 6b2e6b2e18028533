//! What the proxy tells of itself: lines of the log, and counters of its calls.
//!
//! The one home of what is counted: what shows it (`/api/v1/status`, and exporters to come) reads
//! [`Calls::read`], and the counters of other parts (held bytes, the activity log) from their homes.

pub mod calls;
mod counter;
pub mod histogram;
mod lines;

pub use calls::{Calls, Tally};
pub use lines::Lines;
