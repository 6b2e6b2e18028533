//! What both sides of TLS need: the files that certificates and keys are in, and what stands in a certificate.
//!
//! A connection's own settings are made where it is made: `server` for clients, `upstream` for servers.

mod certificate;
mod connector;
mod pem_files;
mod system_roots;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use certificate::{CertificateFacts, Fingerprint, Unnamed, facts, fingerprint};
pub use connector::connector;
pub use pem_files::{CertifiedPair, TlsFileProblem, TlsKey, roots};
pub use system_roots::system_roots;

/// The one implementation of TLS's algorithms that is used.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
