//! Delivery of approval events to the configured webhook, one message after another.
//!
//! Failed deliveries are retried with exponential backoff until the message is too old; further messages wait in a bounded queue. Calls
//! never wait for a delivery. The secret and the URL, whose path may be secret, are never logged. Redirects are not followed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use mcpproxy_policy::approvals::webhook::{QUEUE, SIGNATURE, TIMESTAMP, WebhookMessage, signature};
use mcpproxy_policy::approvals::{ApprovalEvent, Webhook};
use mcpproxy_runtime::io::delays::RetryDelays;
use mcpproxy_runtime::io::http_client::{HttpOrigin, OutgoingRequest};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum and maximum backoff, before jitter.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Maximum age of a message.
const MAX_AGE: Duration = Duration::from_secs(120);

/// Starts the delivery task. Returns the sender of events and the task.
pub(super) fn start(
    webhook: watch::Receiver<Option<Webhook>>,
    control: &Runtime,
) -> (mpsc::Sender<ApprovalEvent>, JoinHandle<()>) {
    let (sender, queue) = mpsc::channel(QUEUE);
    (sender, control.spawn(deliver_all(webhook, queue)))
}

async fn deliver_all(
    webhook: watch::Receiver<Option<Webhook>>,
    mut queue: mpsc::Receiver<ApprovalEvent>,
) {
    let mut used: Option<(Webhook, Hook)> = None;
    while let Some(event) = queue.recv().await {
        let now = webhook.borrow().clone();
        if used.as_ref().map(|(webhook, _)| webhook) != now.as_ref() {
            used = match now {
                Some(webhook) => Hook::of(&webhook).await.map(|hook| (webhook, hook)),
                None => None,
            };
        }
        if let Some((_, hook)) = &used {
            hook.deliver(&WebhookMessage::of(&event)).await;
        }
    }
}

struct Hook {
    origin: HttpOrigin,
    secret: Arc<str>,
}

/// Result of an attempt.
enum Attempt {
    Delivered,
    /// A retry may succeed.
    Failed(String),
    Rejected(StatusCode),
}

impl Hook {
    async fn of(webhook: &Webhook) -> Option<Self> {
        // The URL was validated when the config was read.
        let origin = HttpOrigin::of(&webhook.url).await?;
        Some(Self { origin, secret: webhook.secret.as_str().into() })
    }

    /// Sends a message until it is accepted, rejected or too old.
    async fn deliver(&self, message: &WebhookMessage) {
        let (min, max) = WAITS;
        let mut waits = RetryDelays::new(min, max);
        let mut last = "it was queued for too long".to_owned();
        while message.made.elapsed() <= MAX_AGE {
            match self.attempt(message).await {
                Attempt::Delivered => return,
                Attempt::Rejected(status) => {
                    peer_line!(warn, LinePeer::Part("webhook"), %status, "the approval webhook rejected a message");
                    return;
                }
                Attempt::Failed(why) => {
                    tracing::debug!(%why, "delivery to the approval webhook failed");
                    last = why;
                }
            }
            tokio::time::sleep(waits.next_delay()).await;
        }
        peer_line!(warn, LinePeer::Part("webhook"), why = %last, "dropped a message to the approval webhook");
    }

    async fn attempt(&self, message: &WebhookMessage) -> Attempt {
        let status = match tokio::time::timeout(ATTEMPT_TIMEOUT, self.post(message)).await {
            Ok(Ok(status)) => status,
            Ok(Err(why)) => return Attempt::Failed(why),
            Err(_) => return Attempt::Failed(format!("no answer within {ATTEMPT_TIMEOUT:?}")),
        };
        let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
        if status.is_success() {
            Attempt::Delivered
        } else if status.is_server_error() || later.contains(&status) {
            Attempt::Failed(status.to_string())
        } else {
            Attempt::Rejected(status)
        }
    }

    /// Posts a message and returns the status; the body is ignored.
    async fn post(&self, message: &WebhookMessage) -> Result<StatusCode, String> {
        let request = self.request(message)?;
        let connection = self.origin.connect().await.map_err(|error| error.to_string())?;
        let (answer, _) = connection.fetch(request, 0).await.map_err(|fault| fault.to_string())?;
        Ok(answer.status())
    }

    fn request(&self, message: &WebhookMessage) -> Result<OutgoingRequest, String> {
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
        request.body(Full::new(message.body.clone())).map_err(|_| "invalid request".to_owned())
    }
}
