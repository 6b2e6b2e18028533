//! Connections to servers: direct, or through a tunnel of an egress proxy.
//!
//! Callers limit the total time. A proxy has [`PROXY_TIMEOUT`] to open a tunnel, so that a timeout error can name the
//! proxy; the head of its response is bounded by [`MAX_HEAD_BYTES`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::io::egress_proxy::{EgressProxy, EgressRoute, bare_host};

/// Maximum time to connect to a proxy and open a tunnel. Shorter than the callers' limits.
pub const PROXY_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum size of the head of a proxy's response in bytes.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Connects to a host, or to the proxy on the route, and opens a tunnel if the route requires one. Without a proxy,
/// connects only to addresses that `allows` accepts; with one, the proxy resolves the name.
///
/// # Errors
///
/// [`io::ErrorKind::AddrNotAvailable`] if no address is allowed. Errors of a proxy contain its name.
pub async fn connect(
    host: &str,
    port: u16,
    route: &EgressRoute,
    allows: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let tcp = match route {
        EgressRoute::Direct => {
            let resolved = lookup_host((host, port)).await?;
            let allowed: Vec<SocketAddr> = resolved.filter(|it| allows(it.ip())).collect();
            if allowed.is_empty() {
                let none = "the host has no address that may be contacted";
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, none));
            }
            TcpStream::connect(&*allowed).await?
        }
        EgressRoute::Forward(proxy) => reach(proxy, PROXY_TIMEOUT, dial_proxy(proxy)).await?,
        EgressRoute::Tunnel(proxy) => {
            reach(proxy, PROXY_TIMEOUT, open_tunnel(proxy, host, port)).await?
        }
    };
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Adds TLS for a host as written in a URL.
pub async fn secure(tls: &TlsConnector, host: &str, tcp: TcpStream) -> io::Result<Stream> {
    let name = ServerName::try_from(bare_host(host).to_owned()).map_err(io::Error::other)?;
    Ok(Stream::Tls(Box::new(tls.connect(name, tcp).await?)))
}

/// Limits the time, and adds the proxy's name to errors.
async fn reach(
    proxy: &EgressProxy,
    limit: Duration,
    dial: impl Future<Output = Result<TcpStream, TunnelFault>>,
) -> io::Result<TcpStream> {
    let dialed = tokio::time::timeout(limit, dial).await;
    match dialed.unwrap_or(Err(TunnelFault::Late)) {
        Ok(tcp) => Ok(tcp),
        Err(TunnelFault::Io(error)) => {
            Err(io::Error::new(error.kind(), format!("{proxy}: {error}")))
        }
        Err(TunnelFault::Refused(message)) => Err(io::Error::other(message)),
        Err(fault) => Err(io::Error::other(format!("{proxy} {fault}"))),
    }
}

/// Reason why no tunnel was opened.
#[derive(Debug, thiserror::Error)]
enum TunnelFault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("did not answer within {} s", PROXY_TIMEOUT.as_secs())]
    Late,
    #[error("closed the connection without an answer")]
    Closed,
    #[error("does not speak HTTP: check its host and port")]
    NotHttp,
    #[error("answered with a head of more than {MAX_HEAD_BYTES} bytes")]
    TooLong,
    #[error("sent data through the tunnel before any request was sent")]
    Unsolicited,
}

async fn dial_proxy(proxy: &EgressProxy) -> Result<TcpStream, TunnelFault> {
    Ok(TcpStream::connect((&*proxy.host, proxy.port)).await?)
}

/// Opens a tunnel (RFC 9110 §9.3.6).
async fn open_tunnel(proxy: &EgressProxy, host: &str, port: u16) -> Result<TcpStream, TunnelFault> {
    let mut tcp = dial_proxy(proxy).await?;
    let authority = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n").into_bytes();
    if let Some(authorization) = proxy.authorization() {
        request.extend_from_slice(b"proxy-authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    tcp.write_all(&request).await?;
    let mut head = Vec::with_capacity(1024);
    let (status, length) = loop {
        if tcp.read_buf(&mut head).await? == 0 {
            return Err(TunnelFault::Closed);
        }
        if let Some(answered) = read_head(&head)? {
            break answered;
        }
    };
    if !matches!(status, 200..=299) {
        let what = format_args!("a tunnel to {authority}").to_string();
        return Err(TunnelFault::Refused(proxy.refused(format_args!("{what}"), status)));
    }
    match head.len() == length {
        true => Ok(tcp),
        false => Err(TunnelFault::Unsolicited),
    }
}

/// Status and length of the head at the start of `input`; `None` if more input is needed.
fn read_head(input: &[u8]) -> Result<Option<(u16, usize)>, TunnelFault> {
    const START: &[u8] = b"HTTP/1.";
    let seen = input.len().min(START.len());
    if input.get(..seen) != START.get(..seen) {
        return Err(TunnelFault::NotHttp);
    }
    let Some(end) = memchr::memmem::find(input, b"\r\n\r\n").map(|at| at + 4) else {
        return if input.len() < MAX_HEAD_BYTES { Ok(None) } else { Err(TunnelFault::TooLong) };
    };
    if end > MAX_HEAD_BYTES {
        return Err(TunnelFault::TooLong);
    }
    match input.get(START.len()..) {
        Some([b'0' | b'1', b' ', status @ ..]) => {
            let digits = status.first_chunk::<3>().filter(|it| it.iter().all(u8::is_ascii_digit));
            let ends = matches!(status.get(3), Some(b' ' | b'\r'));
            let digits = digits.filter(|_| ends).ok_or(TunnelFault::NotHttp)?;
            let status =
                digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0'));
            Ok(Some((status, end)))
        }
        _ => Err(TunnelFault::NotHttp),
    }
}

/// A connection to a server.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::net::TcpListener;

    /// Starts a proxy that answers a `CONNECT` with these bytes. Returns the outcome, and the request that the proxy
    /// received.
    async fn tunnel(answer: &[u8], credentials: &str) -> (Result<TcpStream, String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = format!("http://{credentials}127.0.0.1:{port}");
        let proxy = Arc::new(EgressProxy::parse(&proxy, "HTTPS_PROXY").unwrap());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            // The other side may have disconnected already.
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
            String::from_utf8(request).unwrap()
        };
        let route = EgressRoute::Tunnel(proxy);
        let (dialed, request) = tokio::join!(connect("a.example", 443, &route, |_| false), serve);
        let shown = |error: io::Error| error.to_string().replace(&port.to_string(), "PORT");
        (dialed.map_err(shown), request)
    }

    #[tokio::test]
    async fn net_9_tunnel_names_the_destination_and_carries_credentials() {
        let (dialed, request) = tunnel(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n", "").await;
        assert!(dialed.is_ok());
        assert_eq!(request, "CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\r\n");
        let (dialed, request) = tunnel(b"HTTP/1.0 200\r\n\r\n", "u:pw@").await;
        assert!(dialed.is_ok());
        assert!(request.contains("\r\nproxy-authorization: Basic dTpwdw==\r\n"), "{request}");
    }

    #[tokio::test]
    async fn net_9_error_names_the_proxy_that_opens_no_tunnel_and_the_reason() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2 * MAX_HEAD_BYTES));
        for (answer, why) in [
            (
                "HTTP/1.1 407 x\r\n\r\n",
                " refused a tunnel to a.example:443: 407 Proxy Authentication Required; put USER:PASSWORD@ in front of its host",
            ),
            (
                "HTTP/1.1 403 x\r\n\r\nno",
                " refused a tunnel to a.example:443: 403 Forbidden; allow the destination there, or add it to NO_PROXY",
            ),
            (
                "HTTP/1.1 503 x\r\n\r\n",
                " refused a tunnel to a.example:443: 503 Service Unavailable",
            ),
            ("", " closed the connection without an answer"),
            ("HTTP/1.1 200 OK\r\n", " closed the connection without an answer"),
            ("SSH-2.0-x\r\n", " does not speak HTTP: check its host and port"),
            ("HTTP/1.1 2000 OK\r\n\r\n", " does not speak HTTP: check its host and port"),
            (
                "HTTP/1.1 200 OK\r\n\r\nHello",
                " sent data through the tunnel before any request was sent",
            ),
            (&long, " answered with a head of more than 16384 bytes"),
        ] {
            let (dialed, _) = tunnel(answer.as_bytes(), "").await;
            let expected = format!("proxy 127.0.0.1:PORT (HTTPS_PROXY){why}");
            assert_eq!(dialed.unwrap_err(), expected, "{answer:.40}");
        }
    }

    #[tokio::test]
    async fn net_9_unresponsive_proxy_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = EgressProxy::parse(&address.to_string(), "proxy").unwrap();
        let dialed = reach(&proxy, Duration::ZERO, open_tunnel(&proxy, "a.example", 443)).await;
        let expected = format!("proxy {address} (proxy) did not answer within 8 s");
        assert_eq!(dialed.unwrap_err().to_string(), expected);
    }

    #[tokio::test]
    async fn error_names_the_unreachable_proxy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let proxy = Arc::new(EgressProxy::parse(&address.to_string(), "proxy").unwrap());
        for route in [EgressRoute::Tunnel(proxy.clone()), EgressRoute::Forward(proxy)] {
            let error = connect("a.example", 443, &route, |_| true).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(
                error.to_string().starts_with(&format!("proxy {address} (proxy): ")),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn address_that_is_not_allowed_is_not_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let dialed = connect("127.0.0.1", port, &EgressRoute::Direct, |_| false).await;
        assert_eq!(dialed.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        assert!(connect("127.0.0.1", port, &EgressRoute::Direct, |_| true).await.is_ok());
    }

    #[test]
    fn head_is_parsed_equally_for_every_split() {
        let answer = b"HTTP/1.1 200 Connection established\r\nvia: p\r\n\r\n";
        for at in 0..answer.len() {
            assert!(matches!(read_head(&answer[..at]), Ok(None)), "{at}");
        }
        assert!(matches!(read_head(answer), Ok(Some((200, length))) if length == answer.len()));
        for bad in
            ["h", "HTTP/2", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1x200 \r\n\r\n", "HTTP/1.2 200 \r\n\r\n"]
        {
            assert!(matches!(read_head(bad.as_bytes()), Err(TunnelFault::NotHttp)), "{bad}");
        }
    }
}
