//! Sends what is told of approvals to the webhook of the config, one message after the other.
//!
//! A message that is not taken is sent again, ever more seldom, until it is too old; meanwhile others wait in a bounded
//! queue. No call waits for it. Neither the secret nor the URL, whose path may be one, is logged. No redirect is
//! followed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backon::{BackoffBuilder, ExponentialBuilder};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::outgoing_http::HttpOrigin;
use crate::approvals::webhook::{QUEUE, SIGNATURE, TIMESTAMP, WebhookMessage, signature};
use crate::approvals::{ApprovalNews, Webhook};

/// Most time for one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest wait between two attempts, before the jitter.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A message that is older is not sent any more.
const MAX_AGE: Duration = Duration::from_secs(120);

/// Starts to send to the webhook of the config in force, while there is one: where it is told, and the task that sends.
pub(super) fn start(
    webhook: watch::Receiver<Option<Webhook>>,
    control: &Runtime,
) -> (mpsc::Sender<ApprovalNews>, JoinHandle<()>) {
    let (sender, queue) = mpsc::channel(QUEUE);
    (sender, control.spawn(tell(webhook, queue)))
}

async fn tell(webhook: watch::Receiver<Option<Webhook>>, mut queue: mpsc::Receiver<ApprovalNews>) {
    let mut used: Option<(Webhook, Hook)> = None;
    while let Some(told) = queue.recv().await {
        let now = webhook.borrow().clone();
        if used.as_ref().map(|(webhook, _)| webhook) != now.as_ref() {
            used = match now {
                Some(webhook) => Hook::of(&webhook).await.map(|hook| (webhook, hook)),
                None => None,
            };
        }
        if let Some((_, hook)) = &used {
            hook.deliver(&WebhookMessage::of(&told)).await;
        }
    }
}

/// Where messages go.
struct Hook {
    origin: HttpOrigin,
    secret: Arc<str>,
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
    async fn of(webhook: &Webhook) -> Option<Self> {
        // What is wrong with the URL was found when the config was read.
        let origin = HttpOrigin::of(&webhook.url).await?;
        Some(Self { origin, secret: webhook.secret.as_str().into() })
    }

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
        let mut connection = self.origin.connect().await?;
        connection.send(request, 0).await.map(|answer| answer.status())
    }

    fn request(&self, message: &WebhookMessage) -> Result<Request<Full<bytes::Bytes>>, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let url = &self.origin.url;
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let request = Request::post(target)
            .header(HOST, url.authority())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(TIMESTAMP, now)
            .header(SIGNATURE, signature(&self.secret, now, &message.body));
        request.body(Full::new(message.body.clone())).map_err(|_| "it cannot be sent".to_owned())
    }
}
