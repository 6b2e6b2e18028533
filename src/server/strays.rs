//! Clients that speak TLS where there is none, or none where there is: told once in a while, not for each connection.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The first byte of a TLS connection: a record of the handshake (RFC 8446 §5.1).
pub(super) const HANDSHAKE_RECORD: u8 = 22;
/// They are told of so often at most.
const TELL_EVERY: Duration = Duration::from_secs(60 * 60);

/// What is wrong with a connection's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// A request without TLS where TLS is spoken.
    PlainOnTls,
    /// TLS where it is not.
    TlsOnPlain,
}

/// When such were told of last.
#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<Option<Instant>>);

impl Strays {
    pub(super) fn note(&self, stray: Stray) {
        if !self.is_due(Instant::now()) {
            return;
        }
        match stray {
            Stray::PlainOnTls => tracing::warn!(
                "a client spoke plain HTTP on a port that speaks HTTPS: its address must begin with https://"
            ),
            Stray::TlsOnPlain => tracing::warn!(
                "a client spoke TLS on a port that speaks plain HTTP: its address must begin with http://, or set tls"
            ),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut told = self.0.lock();
        let due = told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY);
        if due {
            *told = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once() {
        let (strays, now) = (Strays::default(), Instant::now());
        assert!(strays.is_due(now) && !strays.is_due(now) && !strays.is_due(now));
        assert!(strays.is_due(now + TELL_EVERY));
    }
}
