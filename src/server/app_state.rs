//! State shared by all workers, including the rate-limited warning about clients that use the wrong protocol on a port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use mcpproxy_admin::api;
use mcpproxy_downstream::session_table::Sessions;
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_runtime::io::clock;

/// State from which requests are served.
#[derive(Debug)]
pub struct AppState {
    pub proxy: Arc<Proxy>,
    /// Sessions of `/mcp`.
    pub sessions: Arc<Sessions>,
    /// State of the REST interface.
    pub api: api::State,
    pub(super) wrong_protocol: WrongProtocolWarnings,
    /// Time from which session times are counted.
    pub started: Instant,
}

impl AppState {
    pub(super) fn now_ms(&self) -> u64 {
        let since = clock::lately().saturating_duration_since(self.started);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// First byte of a TLS connection: a handshake record (RFC 8446 §5.1).
pub(super) const HANDSHAKE_RECORD: u8 = 22;
/// Minimum interval between warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Protocol mismatch of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongProtocol {
    PlainOnTls,
    TlsOnPlain,
}

/// Rate-limited warnings about clients that use the wrong protocol.
#[derive(Debug, Default)]
pub(super) struct WrongProtocolWarnings(Mutex<Option<Instant>>);

impl WrongProtocolWarnings {
    pub(super) fn warn(&self, mismatch: WrongProtocol) {
        if !self.is_due(Instant::now()) {
            return;
        }
        match mismatch {
            WrongProtocol::PlainOnTls => tracing::warn!(
                "a client spoke plain HTTP on a port that requires HTTPS: use an https:// address"
            ),
            WrongProtocol::TlsOnPlain => tracing::warn!(
                "a client spoke TLS on a port without TLS: use an http:// address, or configure tls"
            ),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARNING_INTERVAL);
        if due {
            *last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn wrong_protocol_warnings_are_rate_limited() {
        let (warnings, now) = (WrongProtocolWarnings::default(), Instant::now());
        assert!(warnings.is_due(now) && !warnings.is_due(now) && !warnings.is_due(now));
        assert!(warnings.is_due(now + WARNING_INTERVAL));
    }
}
