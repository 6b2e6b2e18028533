//! Where an upstream is reached over HTTP, read from its URL once, and how TLS is done there.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::peer::Peer;

/// Where an upstream is: resolved from its URL once, shared by all its connections.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Whose it is.
    pub(super) peer: Arc<Peer>,
    /// The request target in origin form.
    pub(super) path: Uri,
    /// The `Host` header.
    pub(super) host_header: HeaderValue,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Endpoint {
    /// Reads a URL. The error is one line and does not quote what may be a secret in it.
    pub(super) fn parse(
        url: &str,
        peer: &Arc<Peer>,
        tls: impl FnOnce() -> TlsConnector,
    ) -> Result<Self, String> {
        let url = readable(url)?;
        let secure = url.scheme() == "https";
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err("url names no host".to_owned());
        };
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let read = |what: &str| format!("url has a {what} that cannot be sent");
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if secure {
            let name = ServerName::try_from(bare.to_owned()).map_err(|_| read("host"))?;
            Some((tls(), name))
        } else {
            None
        };
        Ok(Self {
            host: bare.into(),
            port,
            tls,
            peer: Arc::clone(peer),
            path: target.parse().map_err(|_| read("path"))?,
            host_header: HeaderValue::from_str(&authority).map_err(|_| read("host"))?,
        })
    }
}

/// The URL of an endpoint. The error is one line and does not quote what may be a secret in it.
pub(super) fn readable(url: &str) -> Result<url::Url, String> {
    let url = url::Url::parse(url).map_err(|error| format!("url cannot be read: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("url has scheme {}; http and https are known", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("url holds a user name or password; put credentials in headers".to_owned());
    }
    Ok(url)
}

/// TLS as every https upstream uses it: the system's roots, HTTP/1.1. Reads files: not for a
/// worker's thread.
#[must_use]
pub fn tls_connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "a system certificate cannot be used");
    }
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::debug!(unusable, "system certificates left out");
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = match builder {
        Ok(builder) => builder.with_root_certificates(roots).with_no_client_auth(),
        Err(error) => unreachable!("the provider supports the default versions: {error}"),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Endpoint, String> {
        Endpoint::parse(url, &Arc::default(), || unreachable!("no https here"))
    }

    #[test]
    fn a_url_gives_host_port_and_target() {
        for (url, shown, host, path) in [
            ("http://localhost/mcp", "localhost:80", "localhost", "/mcp"),
            ("http://127.0.0.1:9000", "127.0.0.1:9000", "127.0.0.1:9000", "/"),
            ("http://[::1]:9000/a%20b?key=v#no", "::1:9000", "[::1]:9000", "/a%20b?key=v"),
        ] {
            let endpoint = parse(url).unwrap();
            assert_eq!(format!("{endpoint:?}"), shown);
            assert_eq!(
                (endpoint.host_header.to_str().unwrap(), endpoint.path.to_string()),
                (host, path.into())
            );
        }
    }

    #[test]
    fn an_unusable_url_is_told_without_its_secrets() {
        for (url, why) in [
            ("/mcp", "url cannot be read: relative URL without a base"),
            ("ftp://h/", "url has scheme ftp; http and https are known"),
            ("http://u:p@h/", "url holds a user name or password; put credentials in headers"),
        ] {
            assert_eq!(parse(url).unwrap_err(), why);
        }
    }
}
