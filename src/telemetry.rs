//! Metrics and traces of calls, the lines of the log, and how the listener's certificate is.
//!
//! Whatever shows metrics (`/api/v1/status`, `/metrics`) reads [`Calls::read`] and [`Calls::by_tool`], and the
//! numbers of other parts (held bytes, the activity log) where those parts keep them.

pub mod build_info;
pub mod call_metrics;
pub mod call_span;
mod certificate_health;
mod counted;
mod counter;
pub mod export_queue;
pub mod histogram;
mod log_filter;
mod log_lines;
pub mod log_records;
pub mod otlp;
pub mod sampling;
pub mod tool_calls;

pub use call_metrics::{Calls, Tally};
pub use call_span::SpanQueue;
pub use certificate_health::CertificateHealth;
pub use log_filter::LogFilter;
pub use log_lines::LogLines;
pub use log_records::LogTap;
pub use sampling::{Sampling, TraceIds};

/// The log of this process, for those that tell of it or change it.
#[derive(Clone, Debug, Default)]
pub struct LogHandles {
    /// The lines on their way to stderr.
    pub lines: LogLines,
    /// Which there are.
    pub filter: LogFilter,
    /// Where they are copied for a collector.
    pub tap: LogTap,
}
