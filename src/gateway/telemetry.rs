//! Telemetry: call metrics, traces, log output, OTLP export, and the health of the listener's certificate.
//!
//! `/api/v1/status` and `/metrics` read [`Calls::read`] and [`Calls::by_tool`], and other numbers (held bytes, the
//! activity log) from the modules that own them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;

pub mod call_metrics;
pub mod call_span;
pub mod export_queue;
pub mod log;
pub mod otlp;

pub use call_metrics::{Calls, Tally};
pub use call_span::{Sampling, SpanQueue, TraceIds};
pub use log::{LogFilter, LogLines, LogTap};

/// Version and commit of this build.
pub mod build_info {
    pub const VERSION: &str = env!("CARGO_PKG_VERSION");
    pub const COMMIT: &str = env!("MCPPROXY_COMMIT");
    pub const LONG_VERSION: &str = env!("MCPPROXY_LONG_VERSION");
}

/// Handles to this process's log.
#[derive(Clone, Debug, Default)]
pub struct LogHandles {
    /// Queue of lines to stderr.
    pub lines: LogLines,
    pub filter: LogFilter,
    /// Copies lines to an OTLP collector.
    pub tap: LogTap,
}

/// Remaining validity below which the expiry is reported as a fault.
const NEAR: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Expiry and reload state of the listener's certificate. Written when its files are read.
#[derive(Debug)]
pub struct CertificateHealth {
    /// Expiry in seconds since 1970.
    until: AtomicI64,
    problem: Mutex<Option<String>>,
}

impl CertificateHealth {
    pub fn new(until: SystemTime) -> Self {
        Self { until: AtomicI64::new(seconds(until)), problem: Mutex::default() }
    }

    pub fn renew(&self, until: SystemTime) {
        self.until.store(seconds(until), Ordering::Relaxed);
    }

    /// Sets or clears the reason why the certificate's files cannot be used. Returns true on a change.
    pub fn set_problem(&self, problem: Option<String>) -> bool {
        let mut known = self.problem.lock();
        let is_another = *known != problem;
        *known = problem;
        is_another
    }

    /// Remaining validity in seconds; negative after expiry.
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        self.until.load(Ordering::Relaxed).saturating_sub(seconds(now))
    }

    /// One line about an expiry that is near or past.
    pub fn end_is_near(&self, now: SystemTime) -> Option<String> {
        let until = self.until.load(Ordering::Relaxed);
        let left = self.seconds_left(now);
        let day = Timestamp::from_second(until).map(|end| end.to_string()).unwrap_or_default();
        match left {
            ..=0 => Some(format!("it has expired on {day}")),
            _ if left < i64::try_from(NEAR.as_secs()).unwrap_or(i64::MAX) => {
                Some(format!("it expires on {day}"))
            }
            _ => None,
        }
    }

    /// One line about a problem, if there is one.
    pub fn fault(&self, now: SystemTime) -> Option<String> {
        let problem = self.problem.lock().clone();
        problem
            .map(|problem| {
                format!("certificate not reloaded, the previous one is still in use: {problem}")
            })
            .or_else(|| self.end_is_near(now))
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_reported_two_weeks_ahead() {
        let at = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 24 * 60 * 60);
        let health = CertificateHealth::new(at(100));
        assert_eq!(health.fault(at(86)), None);
        assert_eq!((health.seconds_left(at(99)), health.seconds_left(at(101))), (86400, -86400));
        assert_eq!(health.fault(at(87)).as_deref(), Some("it expires on 1970-04-11T00:00:00Z"));
        assert_eq!(
            health.fault(at(100)).as_deref(),
            Some("it has expired on 1970-04-11T00:00:00Z")
        );
        health.set_problem(Some("key.pem: no".into()));
        assert_eq!(
            health.fault(at(0)).as_deref(),
            Some("certificate not reloaded, the previous one is still in use: key.pem: no")
        );
        health.set_problem(None);
        health.renew(at(200));
        assert_eq!(health.fault(at(100)), None);
    }
}
