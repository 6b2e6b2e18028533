//! The authorities that this system trusts.

use rustls::RootCertStore;

/// Reads them; blocks.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "a system certificate cannot be used");
    }
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::debug!(unusable, "system certificates left out");
    }
    roots
}
