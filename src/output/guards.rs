//! The guards of `structuredContent` while it arrives, `max_bytes` and `max_depth` (FR-A6): where they are set,
//! when crossing one is final, and how that is described.
//!
//! The bytes and levels are counted in [`json::scan::scanner`](crate::json::scan), which stops at the first breach.
//! The other guards are decided elsewhere: `max_held_bytes` in `proxy::exchange`, the time in `schema::meter`.

use super::{Failure, Policy, Treatment};
use crate::json::scan::{Breach, Guard, ScanLimits};

/// The limits to scan an answer under; none where nothing is judged (FR-A7).
pub(super) fn limits(treatment: Treatment, policy: &Policy) -> ScanLimits {
    match treatment {
        Treatment::Forward => ScanLimits::NONE,
        Treatment::ForwardAndJudge | Treatment::Hold => {
            ScanLimits { max_bytes: policy.max_bytes, max_depth: policy.max_depth }
        }
    }
}

/// What a breach says against the answer. Nothing can lift it: it is
/// [final](crate::reference::requirements#verdicts) unless `isError: true` was seen before, when it is `None`.
#[inline]
pub(super) fn failure(breach: &Breach) -> Option<Failure> {
    (!breach.after_is_error_true).then(|| described(breach))
}

fn described(breach: &Breach) -> Failure {
    let (text, name) = match breach.guard {
        Guard::Bytes => ("structuredContent is larger than max_bytes", "max_bytes"),
        Guard::Depth => ("structuredContent nests deeper than max_depth", "max_depth"),
    };
    Failure::plain(format!("{text} {}", breach.limit), Some(name))
}
