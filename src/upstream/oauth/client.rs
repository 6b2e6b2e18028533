//! The HTTP that a login is made of: whom it may ask, and how much it listens to.
//!
//! The URLs come from strangers: a server names its authorization server, which names its
//! endpoints. So nothing goes to an address inside that the operator did not name: https, or plain
//! http between loopback addresses; no address of a private network unless the server itself is
//! given by one; no redirect; bounded bodies and time. Addresses are looked at after they were
//! resolved, and those are the ones that are connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, HOST};
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use url::{Host, Url};

use crate::upstream::connection::Stream;
use crate::upstream::endpoint::tls_connector;

/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Most time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

type Answer = Result<Response<Vec<u8>>, OAuthHttpClientError>;

/// Whom a login with one server may ask.
#[derive(Clone, Debug)]
pub(super) struct AddressPolicy {
    server: Url,
    /// The kind of address that the server's own URL names.
    own: Reach,
}

/// How far away an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Public,
    Loopback,
    Private,
    /// Link-local, with the metadata services of clouds, and what no server has.
    Never,
}

impl AddressPolicy {
    /// For logins with the server at `server`.
    pub(super) fn new(server: &Url) -> Self {
        let own = match server.host() {
            Some(Host::Ipv4(ip)) => reach(ip.into()),
            Some(Host::Ipv6(ip)) => reach(ip.into()),
            Some(Host::Domain(name)) if is_localhost(name) => Reach::Loopback,
            Some(Host::Domain(_)) | None => Reach::Public,
        };
        Self { server: server.clone(), own }
    }

    /// Whether a URL may be asked, as far as its words tell. The error is one line, and quotes no more of it than
    /// [`origin`].
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a URL holds a user name or password".to_owned());
        }
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{} is not https", origin(url)));
        }
        let named = match url.host() {
            None => return Err(format!("{} names no host", origin(url))),
            Some(Host::Ipv4(ip)) => Some(reach(ip.into())),
            Some(Host::Ipv6(ip)) => Some(reach(ip.into())),
            Some(Host::Domain(name)) => is_localhost(name).then_some(Reach::Loopback),
        };
        let loopback = self.own == Reach::Loopback && named == Some(Reach::Loopback);
        if url.scheme() == "http" && !loopback {
            return Err(format!("{} is plain http", origin(url)));
        }
        match named {
            Some(reach) if !self.allows(url, reach) => Err(inside(url)),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether an address that a URL's host has may be connected to.
    fn allows(&self, url: &Url, reach: Reach) -> bool {
        let same = |a: &Url, b: &Url| {
            (a.host(), a.port_or_known_default()) == (b.host(), b.port_or_known_default())
        };
        // The calls go to the server's own address as well, wherever that is.
        reach == Reach::Public
            || same(url, &self.server)
            || (reach == self.own && reach != Reach::Never)
    }
}

/// What may be told of a URL: its scheme, host and port. User, path and query may hold what is secret.
pub(super) fn origin(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    match url.host() {
        Some(host) => format!("{}://{host}{port}", url.scheme()),
        None => format!("{}:", url.scheme()),
    }
}

fn inside(url: &Url) -> String {
    format!("{} is an address inside, which a server outside must not name", origin(url))
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn reach(ip: IpAddr) -> Reach {
    match ip {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => match embedded(ip) {
            Some(inner) => reach_v4(inner),
            None => reach_v6(ip),
        },
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        [127, ..] => Reach::Loopback,
        [10, ..] | [192, 168, ..] => Reach::Private,
        [172, second, ..] if (16..32).contains(&second) => Reach::Private,
        [100, second, ..] if (64..128).contains(&second) => Reach::Private,
        [0, ..] | [169, 254, ..] | [198, 18 | 19, ..] | [224..=255, ..] => Reach::Never,
        _ => Reach::Public,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        [0xfc00..=0xfdff, ..] => Reach::Private,
        // Unspecified, link-local, multicast, Teredo, local NAT64.
        [0, ..] | [0xfe80..=0xffff, ..] | [0x2001, 0, ..] | [0x64, 0xff9b, 1, ..] => Reach::Never,
        _ => Reach::Public,
    }
}

/// The IPv4 address that an IPv6 address stands for: mapped, NAT64, 6to4.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(join(high, low))
        }
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

/// Asks on behalf of rmcp.
#[derive(Clone)]
pub(super) struct LoginClient {
    policy: AddressPolicy,
    tls: Arc<OnceLock<TlsConnector>>,
}

impl LoginClient {
    pub(super) fn new(policy: AddressPolicy, tls: Arc<OnceLock<TlsConnector>>) -> Self {
        Self { policy, tls }
    }

    /// Sends a request whose answer's head is all that counts.
    pub(super) async fn ask(&self, request: Request<Vec<u8>>) -> Result<Parts, String> {
        let asked = self.head(request, "application/json, text/event-stream");
        let head = tokio::time::timeout(REQUEST_TIMEOUT, asked).await;
        let head = head
            .map_err(|_| format!("no answer within {REQUEST_TIMEOUT:?}"))?
            .map_err(|error| error.to_string())?;
        Ok(head.into_parts().0)
    }

    /// Sends a request; the whole answer.
    pub(super) async fn fetch(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, String> {
        self.execute(request).await.map_err(|error| error.to_string())
    }

    async fn execute(&self, request: Request<Vec<u8>>) -> Answer {
        let exchange = async {
            let (head, body) = self.head(request, "application/json").await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}").into()),
        }
    }

    /// Sends a request; the head of the answer, its body unread.
    async fn head(
        &self,
        mut request: Request<Vec<u8>>,
        accept: &'static str,
    ) -> Result<Response<hyper::body::Incoming>, OAuthHttpClientError> {
        let url = Url::parse(&request.uri().to_string())?;
        self.policy.check(&url)?;
        let stream = self.connect(&url).await?;
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from(path);
        let authority = url.authority().to_owned();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&authority)?);
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer.
        tokio::spawn(connection);
        Ok(sender.send_request(request.map(|body| Full::<Bytes>::new(body.into()))).await?)
    }

    async fn connect(&self, url: &Url) -> Result<Stream, OAuthHttpClientError> {
        let port = url.port_or_known_default().unwrap_or(443);
        let addresses: Vec<SocketAddr> = match url.host() {
            Some(Host::Ipv4(ip)) => vec![(ip, port).into()],
            Some(Host::Ipv6(ip)) => vec![(ip, port).into()],
            Some(Host::Domain(name)) => tokio::net::lookup_host((name, port)).await?.collect(),
            None => Vec::new(),
        };
        let allowed: Vec<SocketAddr> = addresses
            .into_iter()
            .filter(|address| self.policy.allows(url, reach(address.ip())))
            .collect();
        if allowed.is_empty() {
            return Err(inside(url).into());
        }
        let tcp = TcpStream::connect(&*allowed).await?;
        if url.scheme() != "https" {
            return Ok(Stream::Plain(tcp));
        }
        let tls = Arc::clone(&self.tls);
        // Reads the system's certificates the first time.
        let connector =
            tokio::task::spawn_blocking(move || tls.get_or_init(tls_connector).clone()).await?;
        let host = url.host_str().unwrap_or_default();
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        Ok(Stream::Tls(Box::new(connector.connect(name, tcp).await?)))
    }
}

impl OAuthHttpClient for LoginClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        // Redirects are never followed, whatever is asked for.
        Box::pin(Self::execute(self, request.request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(server: &str, url: &str) -> bool {
        AddressPolicy::new(&Url::parse(server).unwrap()).check(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn strangers_do_not_name_addresses_inside() {
        const OUTSIDE: &str = "https://mcp.example.com/mcp";
        for (server, url, allowed) in [
            (OUTSIDE, "https://login.example.org/token", true),
            (OUTSIDE, "https://203.0.113.7/token", true),
            (OUTSIDE, "http://login.example.org/token", false),
            (OUTSIDE, "http://127.0.0.1/token", false),
            (OUTSIDE, "https://127.0.0.1/token", false),
            (OUTSIDE, "https://localhost/token", false),
            (OUTSIDE, "https://a.localhost./token", false),
            (OUTSIDE, "https://10.0.0.1/token", false),
            (OUTSIDE, "https://[::1]/token", false),
            (OUTSIDE, "https://[::ffff:10.0.0.1]/token", false),
            (OUTSIDE, "https://[64:ff9b::7f00:1]/token", false),
            (OUTSIDE, "https://[2002:a00:1::]/token", false),
            (OUTSIDE, "https://[fd00::1]/token", false),
            (OUTSIDE, "https://169.254.169.254/latest/meta-data", false),
            (OUTSIDE, "https://user:secret@login.example.org/token", false),
            (OUTSIDE, "file:///etc/passwd", false),
            (OUTSIDE, "javascript:alert(1)", false),
            ("http://127.0.0.1:9/mcp", "http://127.0.0.1:8/token", true),
            ("http://localhost:9/mcp", "http://[::1]:8/token", true),
            ("http://127.0.0.1:9/mcp", "https://login.example.org/token", true),
            ("http://127.0.0.1:9/mcp", "http://login.example.org/token", false),
            ("http://127.0.0.1:9/mcp", "https://10.0.0.1/token", false),
            ("https://10.0.0.1/mcp", "https://10.0.0.2/token", true),
            ("https://10.0.0.1/mcp", "https://127.0.0.1/token", false),
            ("https://10.0.0.1/mcp", "http://10.0.0.1/token", false),
            ("https://169.254.1.1/mcp", "https://169.254.169.254/token", false),
        ] {
            assert_eq!(allows(server, url), allowed, "{server} names {url}");
        }
    }

    #[test]
    fn a_url_that_may_not_be_asked_is_told_without_what_may_be_secret() {
        for (url, told) in [
            ("ftp://u:s3cret@h.example/s3cret?k=s3cret", "a URL holds a user name or password"),
            ("http://s3cret@h.example/", "a URL holds a user name or password"),
            ("ftp://h.example:9/s3cret?k=s3cret#s3cret", "ftp://h.example:9 is not https"),
            ("http://h.example/s3cret?k=s3cret", "http://h.example is plain http"),
            ("data:s3cret", "data: is not https"),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(AddressPolicy::new(&url).check(&url), Err(told.to_owned()));
        }
        let outside = AddressPolicy::new(&Url::parse("https://h.example").unwrap());
        let told = outside.check(&Url::parse("https://[fd00::1]:9/s3cret").unwrap()).unwrap_err();
        assert!(told.starts_with("https://[fd00::1]:9 is an address inside"), "{told}");
    }
}
