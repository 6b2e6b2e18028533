//! Sends what is told of approvals to the webhook of the config, one message after the other.
//!
//! A message that is not taken is sent again, ever more seldom, until it is too old; meanwhile others wait in a bounded
//! queue. No call waits for it. Neither the secret nor the URL, whose path may be one, is logged. No redirect is
//! followed.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backon::{BackoffBuilder, ExponentialBuilder};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use url::{Host, Url};

use crate::approvals::webhook::{QUEUE, SIGNATURE, TIMESTAMP, WebhookMessage, signature};
use crate::approvals::{ApprovalNews, Webhook};
use crate::upstream::tls_connector;

/// Most time for one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest wait between two attempts, before the jitter.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A message that is older is not sent any more.
const MAX_AGE: Duration = Duration::from_secs(120);

/// Starts to send to `webhook`, if there is one: where it is told, and the task that sends.
pub(super) fn start(
    webhook: Option<Webhook>,
    control: &Runtime,
) -> (Option<mpsc::Sender<ApprovalNews>>, Option<JoinHandle<()>>) {
    let Some(webhook) = webhook else { return (None, None) };
    let (sender, queue) = mpsc::channel(QUEUE);
    (Some(sender), Some(control.spawn(tell(webhook, queue))))
}

async fn tell(webhook: Webhook, mut queue: mpsc::Receiver<ApprovalNews>) {
    // What is wrong with the URL was found when the config was read.
    let Ok(url) = Url::parse(&webhook.url) else { return };
    let tls = match url.scheme() {
        // Reads the system's certificates.
        "https" => tokio::task::spawn_blocking(tls_connector).await.ok(),
        _ => None,
    };
    let hook = Hook { url, secret: webhook.secret.into(), tls };
    while let Some(told) = queue.recv().await {
        hook.deliver(&WebhookMessage::of(&told)).await;
    }
}

/// Where messages go.
struct Hook {
    url: Url,
    secret: Arc<str>,
    tls: Option<TlsConnector>,
}

/// How an attempt ended.
enum Attempt {
    Taken,
    /// Another may end better.
    Failed(String),
    /// No other will.
    Refused(StatusCode),
}

impl Hook {
    /// Sends a message until it is taken, refused or too old.
    async fn deliver(&self, message: &WebhookMessage) {
        let (least, most) = WAITS;
        let waits = ExponentialBuilder::new()
            .with_min_delay(least)
            .with_max_delay(most)
            .without_max_times()
            .with_jitter();
        let mut last = "it waited too long for those before it".to_owned();
        for wait in waits.build() {
            if message.made.elapsed() > MAX_AGE {
                break;
            }
            match self.attempt(message).await {
                Attempt::Taken => return,
                Attempt::Refused(status) => {
                    tracing::warn!(%status, "the webhook of approvals refuses a message");
                    return;
                }
                Attempt::Failed(why) => {
                    tracing::debug!(%why, "the webhook of approvals did not take a message");
                    last = why;
                }
            }
            tokio::time::sleep(wait).await;
        }
        tracing::warn!(why = %last, "a message to the webhook of approvals is given up");
    }

    async fn attempt(&self, message: &WebhookMessage) -> Attempt {
        let status = match tokio::time::timeout(ATTEMPT_TIMEOUT, self.post(message)).await {
            Ok(Ok(status)) => status,
            Ok(Err(why)) => return Attempt::Failed(why),
            Err(_) => return Attempt::Failed(format!("no answer within {ATTEMPT_TIMEOUT:?}")),
        };
        let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
        if status.is_success() {
            Attempt::Taken
        } else if status.is_server_error() || later.contains(&status) {
            Attempt::Failed(status.to_string())
        } else {
            Attempt::Refused(status)
        }
    }

    /// Posts a message; the status of the answer, whose body nobody reads.
    async fn post(&self, message: &WebhookMessage) -> Result<StatusCode, String> {
        let request = self.request(message)?;
        let port = self.url.port_or_known_default().unwrap_or(443);
        let tcp = match self.url.host() {
            Some(Host::Ipv4(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Ipv6(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Domain(name)) => TcpStream::connect((name, port)).await,
            None => return Err("the URL names no host".to_owned()),
        };
        let tcp = tcp.map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return exchange(tcp, request).await };
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, tcp).await.map_err(|error| error.to_string())?;
        exchange(stream, request).await
    }

    fn request(&self, message: &WebhookMessage) -> Result<Request<Full<bytes::Bytes>>, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let target = match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        };
        let request = Request::post(target)
            .header(HOST, self.url.authority())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(TIMESTAMP, now)
            .header(SIGNATURE, signature(&self.secret, now, &message.body));
        request.body(Full::new(message.body.clone())).map_err(|_| "it cannot be sent".to_owned())
    }
}

/// One request on a connection of its own, which ends with it.
async fn exchange<S>(stream: S, request: Request<Full<bytes::Bytes>>) -> Result<StatusCode, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
    let mut answer = pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // It has brought the answer, or there will be none.
        _ = connection => answer.await,
    };
    answer.map(|answer| answer.status()).map_err(|error| error.to_string())
}
