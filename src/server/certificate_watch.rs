//! Keeps the listener's TLS up to date: changed files are noticed, and the end of the certificate is told in time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::listener_tls::ListenerTls;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the end of the certificate is told.
const TELL_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// Does so until it is aborted.
pub(super) async fn watch(tls: Arc<ListenerTls>) {
    let mut told: Option<Instant> = None;
    loop {
        let due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if due && let Some(end) = tls.health().end_is_near(SystemTime::now()) {
            told = Some(Instant::now());
            tracing::warn!("the listener's certificate: {end}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let looked = Arc::clone(&tls);
        // It fails only where the runtime ends.
        let _ = tokio::task::spawn_blocking(move || looked.look(Instant::now())).await;
    }
}
