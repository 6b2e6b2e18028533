//! Requests of the assembly's own to servers that the config names: one connection at a time, HTTP/1.1.
//!
//! Who asks decides what is sent, how long that may take and what becomes of the answer. No redirect is followed, and no
//! task is left behind: a connection moves while somebody waits for its answer.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use url::{Host, Url};

use crate::upstream::tls_connector;

/// A server that is asked.
pub(super) struct HttpOrigin {
    /// Where to.
    pub(super) url: Url,
    tls: Option<TlsConnector>,
}

impl HttpOrigin {
    /// The server at `url`, which was found to be one of http or https; `None` if it was not.
    pub(super) async fn of(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let tls = match url.scheme() {
            // Reads the system's certificates.
            "https" => Some(tokio::task::spawn_blocking(tls_connector).await.ok()?),
            _ => None,
        };
        Some(Self { url, tls })
    }

    /// A new connection to it.
    pub(super) async fn connect(&self) -> Result<OutgoingConnection, String> {
        let port = self.url.port_or_known_default().unwrap_or(443);
        let tcp = match self.url.host() {
            Some(Host::Ipv4(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Ipv6(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Domain(name)) => TcpStream::connect((name, port)).await,
            None => return Err("the URL names no host".to_owned()),
        };
        let tcp = tcp.map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return OutgoingConnection::over(tcp).await };
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, tcp).await.map_err(|error| error.to_string())?;
        OutgoingConnection::over(stream).await
    }
}

/// A connection that was made.
pub(super) struct OutgoingConnection {
    sender: SendRequest<Full<Bytes>>,
    /// What moves it, until it has ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl OutgoingConnection {
    async fn over<S>(stream: S) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        let driver = async move {
            // Whoever waits for the answer is told.
            let _ = connection.await;
        };
        Ok(Self { sender, driver: Some(Box::pin(driver)) })
    }

    /// Whether another request can be sent over it.
    pub(super) fn is_open(&mut self) -> bool {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().now_or_never().is_some()
        {
            self.driver = None;
        }
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Sends a request; its answer, with `most` bytes of the body at most: of one that has more, none. With 0 the body is
    /// not waited for.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, String> {
        let (answer, whole) = self.ask(request, most).await?;
        if !whole {
            // What is left of the body stands before the next answer.
            self.driver = None;
        }
        Ok(answer)
    }

    /// The same; false where not all of the body was read.
    async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(Response<Bytes>, bool), String> {
        let Self { sender, driver } = self;
        let told = |error: hyper::Error| error.to_string();
        let mut asked = Box::pin(async {
            sender.ready().await.map_err(told)?;
            let (head, body) = sender.send_request(request).await.map_err(told)?.into_parts();
            let body = match most {
                0 => None,
                most => Limited::new(body, most).collect().await.ok(),
            };
            let whole = body.is_some();
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            Ok((Response::from_parts(head, body), whole))
        });
        let Some(moves) = driver else { return asked.await };
        tokio::select! {
            biased;
            answered = &mut asked => answered,
            () = moves => {
                *driver = None;
                // It has brought the answer, or there will be none.
                asked.await
            }
        }
    }
}
