//! HTTP to the running server: a few connections, kept open between requests.
//!
//! One request is on a connection at a time; dropping a reply before its end closes its
//! connection, which is how a request is given up. On a fresh connection the server first proves that
//! it is the one of the config. What a message means is not known here.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::cli::http_client::{Unanswered, prove};

/// Most time for a connection to be made; the server is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections kept for the next request.
const MAX_IDLE: usize = 8;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failed {
    /// Nothing was sent.
    #[error("it cannot be reached: {0}")]
    NotSent(String),
    /// It may have been sent, and nothing came back.
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// The server, and the connections to it.
pub(super) struct Link {
    /// `host:port`
    pub(super) authority: String,
    host: HeaderValue,
    api_key: String,
    key_header: Option<HeaderValue>,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
}

impl Link {
    /// A server at `host:port`; nothing is connected yet.
    pub(super) fn new(authority: &str, api_key: &str) -> Result<Self, http::Error> {
        let key_header = Some(api_key).filter(|key| !key.is_empty());
        Ok(Self {
            authority: authority.to_owned(),
            host: HeaderValue::from_str(authority)?,
            api_key: api_key.to_owned(),
            key_header: key_header.map(HeaderValue::from_str).transpose()?,
            idle: RefCell::default(),
        })
    }

    /// Sends a request to `path` and waits for the head of its reply.
    pub(super) async fn send(
        self: &Rc<Self>,
        method: Method,
        path: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Failed> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = http::Uri::from_static(path);
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, self.host.clone());
        if let Some(key) = &self.key_header {
            request.headers_mut().insert("x-api-key", key.clone());
        }
        loop {
            let kept = self.idle.borrow_mut().pop();
            let (mut sender, fresh) = match kept {
                Some(sender) => (sender, false),
                None => (self.connect().await?, true),
            };
            let response = match sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => match error.take_message() {
                    // It had been closed while nobody used it.
                    Some(unsent) if !fresh => {
                        request = unsent;
                        continue;
                    }
                    Some(_) => return Err(Failed::NotSent(error.error().to_string())),
                    None => return Err(Failed::Broken(error.error().to_string())),
                },
            };
            let (head, body) = response.into_parts();
            return Ok(Reply { head, body, sender, link: Rc::clone(self) });
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failed> {
        let unreachable = |error: &dyn std::fmt::Display| Failed::NotSent(error.to_string());
        let stream = match tokio::time::timeout(CONNECT_TIMEOUT, open(&self.authority)).await {
            Ok(stream) => stream.map_err(|error| unreachable(&error))?,
            Err(_) => {
                return Err(unreachable(&format!("no connection within {CONNECT_TIMEOUT:?}")));
            }
        };
        let dialled = stream.peer_addr().map_err(|error| unreachable(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
        // It ends with its sender; how shows in the reply.
        tokio::task::spawn_local(connection);
        prove(&mut sender, &self.authority, dialled, &self.api_key)
            .await
            .map_err(|why| unreachable(&Unanswered::Stranger(self.authority.clone(), why)))?;
        Ok(sender)
    }
}

async fn open(authority: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A reply whose body is still to come.
pub(super) struct Reply {
    head: response::Parts,
    body: Incoming,
    sender: SendRequest<Full<Bytes>>,
    link: Rc<Link>,
}

impl Reply {
    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(super) fn header(&self, name: &str) -> Option<&HeaderValue> {
        self.head.headers.get(name)
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Failed>> {
        loop {
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some(Err(Failed::Broken(error.to_string()))),
            };
            if let Ok(data) = frame.into_data() {
                return Some(Ok(data));
            }
        }
    }

    /// Gives the connection back, once the body was read to its end.
    pub(super) fn finish(self) {
        let mut idle = self.link.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(self.sender);
        }
    }
}
