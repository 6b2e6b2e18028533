//! How the listener's certificate is: until when it holds, and why its files cannot be used.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Its end is told from so long before it on.
const NEAR: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// How a certificate is. Written when its files are read, read by whoever shows it.
#[derive(Debug)]
pub struct CertificateHealth {
    /// In seconds since 1970.
    until: AtomicI64,
    problem: Mutex<Option<String>>,
}

impl CertificateHealth {
    /// One that holds until then, and nothing is wrong.
    #[must_use]
    pub fn new(until: SystemTime) -> Self {
        Self { until: AtomicI64::new(seconds(until)), problem: Mutex::default() }
    }

    /// Another is in force.
    pub fn renew(&self, until: SystemTime) {
        self.until.store(seconds(until), Ordering::Relaxed);
    }

    /// Why its files cannot be used; `None`: they can. True if that is another word than before.
    pub fn set_problem(&self, problem: Option<String>) -> bool {
        let mut known = self.problem.lock();
        let is_another = *known != problem;
        *known = problem;
        is_another
    }

    /// How many seconds it holds still; negative once it has expired.
    #[must_use]
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        self.until.load(Ordering::Relaxed).saturating_sub(seconds(now))
    }

    /// When it ends, if that is near or past: in one line.
    #[must_use]
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

    /// What is wrong, in one line.
    #[must_use]
    pub fn fault(&self, now: SystemTime) -> Option<String> {
        let problem = self.problem.lock().clone();
        problem
            .map(|problem| format!("the one before stays: {problem}"))
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
    fn the_end_is_told_from_two_weeks_before_it_on() {
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
        assert_eq!(health.fault(at(0)).as_deref(), Some("the one before stays: key.pem: no"));
        health.set_problem(None);
        health.renew(at(200));
        assert_eq!(health.fault(at(100)), None);
    }
}
