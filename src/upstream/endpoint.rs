//! Where an upstream is reached over HTTP, read from its URL once, and how TLS is done there.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::peer::Peer;
use crate::io::address::{Address, UNIX};
use crate::io::tls::{connector, system_roots};

/// Where an upstream is: resolved from its URL once, shared by all its connections.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) place: ServerPlace,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Whose it is.
    pub(super) peer: Arc<Peer>,
    /// The request target in origin form.
    pub(super) path: Uri,
    /// The `Host` header.
    pub(super) host_header: HeaderValue,
}

/// What is connected to.
#[derive(Clone)]
pub(super) enum ServerPlace {
    /// A host and its port.
    Host(Arc<str>, u16),
    /// The file of a Unix socket.
    Unix(Arc<Path>),
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ServerPlace::Host(host, port) => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Reads a URL. The error is one line and does not quote what may be a secret in it.
    pub(super) fn parse(
        url: &str,
        peer: &Arc<Peer>,
        tls: impl FnOnce() -> Result<TlsConnector, String>,
    ) -> Result<Self, String> {
        let url = match readable(url)? {
            UrlForm::Web(url) => url,
            UrlForm::Unix { path, target } => {
                return Ok(Self {
                    place: ServerPlace::Unix(path),
                    tls: None,
                    peer: Arc::clone(peer),
                    path: target,
                    host_header: HeaderValue::from_static("localhost"),
                });
            }
        };
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
            Some((tls()?, name))
        } else {
            None
        };
        Ok(Self {
            place: ServerPlace::Host(bare.into(), port),
            tls,
            peer: Arc::clone(peer),
            path: target.parse().map_err(|_| read("path"))?,
            host_header: HeaderValue::from_str(&authority).map_err(|_| read("host"))?,
        })
    }
}

/// What the URL of a server may be.
#[derive(Debug)]
pub(super) enum UrlForm {
    /// `http` or `https`.
    Web(url::Url),
    /// `unix:/path/of.sock:/target`
    Unix { path: Arc<Path>, target: Uri },
}

/// The URL of an endpoint. The error is one line and does not quote what may be a secret in it.
pub(super) fn readable(url: &str) -> Result<UrlForm, String> {
    if let Some(rest) = url.strip_prefix(UNIX) {
        let form = "url has no request target after its socket, as in unix:/path/of.sock:/mcp";
        let (path, target) = rest.split_once(":/").ok_or(form)?;
        let Address::Unix(path) = Address::unix(Path::new(path)).map_err(|bad| bad.to_string())?
        else {
            return Err(form.to_owned());
        };
        let target = format!("/{target}").parse();
        let target = target.map_err(|_| "url has a path that cannot be sent".to_owned())?;
        return Ok(UrlForm::Unix { path, target });
    }
    let url = url::Url::parse(url).map_err(|error| format!("url cannot be read: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("url has scheme {}; http, https and unix are known", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("url holds a user name or password; put credentials in headers".to_owned());
    }
    Ok(UrlForm::Web(url))
}

/// TLS as every https upstream uses it: the system's roots, HTTP/1.1. Reads files: not for a
/// worker's thread.
#[must_use]
pub fn tls_connector() -> TlsConnector {
    connector(system_roots(), None)
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
    fn a_socket_is_named_with_the_target_behind_it() {
        let endpoint = parse("unix:/run/a.sock:/mcp?key=v").unwrap();
        assert_eq!(format!("{endpoint:?}"), "unix:/run/a.sock");
        assert_eq!(
            (endpoint.path.to_string(), endpoint.tls.is_none()),
            ("/mcp?key=v".into(), true)
        );
        assert_eq!(endpoint.host_header, "localhost");
        for (url, why) in [
            ("unix:/run/a.sock", "url has no request target after its socket"),
            ("unix:run/a.sock:/mcp", "the socket must be named by a whole path"),
            ("unix:/run/a.sock:/m cp", "url has a path that cannot be sent"),
        ] {
            assert!(parse(url).unwrap_err().starts_with(why), "{url}");
        }
        let long = format!("unix:/{}:/mcp", "a".repeat(200));
        assert!(parse(&long).unwrap_err().contains("longer than"));
    }

    #[test]
    fn an_unusable_url_is_told_without_its_secrets() {
        for (url, why) in [
            ("/mcp", "url cannot be read: relative URL without a base"),
            ("ftp://h/", "url has scheme ftp; http, https and unix are known"),
            ("http://u:p@h/", "url holds a user name or password; put credentials in headers"),
        ] {
            assert_eq!(parse(url).unwrap_err(), why);
        }
    }
}
