//! TLS to a server: whom we trust there, who we are, and HTTP/1.1.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::{CertifiedPair, provider};

/// How a server is connected to, which one of `roots` has to vouch for; `pair` is our own certificate there.
#[must_use]
pub fn connector(roots: RootCertStore, pair: Option<CertifiedPair>) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = match builder.with_safe_default_protocol_versions() {
        Ok(builder) => builder.with_root_certificates(roots),
        Err(error) => unreachable!("the provider supports the default versions: {error}"),
    };
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let resolver = rustls::sign::SingleCertAndKey::from(pair.certified);
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}
