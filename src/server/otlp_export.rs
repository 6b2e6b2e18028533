//! Export of traced calls and log lines to the configured OTLP collector, over HTTP in protobuf.
//!
//! One task per signal sends batches from a bounded queue; calls never wait for it. Failed batches are retried with exponential backoff,
//! not before the collector's `Retry-After`, until they are too old (OTLP §OTLP/HTTP Response, §Retryable Response Codes). While retries
//! continue, the queue may fill up; further items are dropped and counted. An unavailable collector is reported once until it recovers. At
//! shutdown the remaining items are sent within [`FLUSH_LIMIT`].
//!
//! Headers may contain secrets and are never logged.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use mcpproxy_config::{OtlpTarget, TelemetrySection};
use mcpproxy_gateway::telemetry::LogTap;
use mcpproxy_gateway::telemetry::export_queue::{DropReason, ExportReceiver, Exported, Exporter};
use mcpproxy_gateway::telemetry::otlp::{self, ExportAck, PROTOBUF};
use mcpproxy_runtime::io::background_task::BackgroundTask;
use mcpproxy_runtime::io::delays::RetryDelays;
use mcpproxy_runtime::io::http_client::{HttpConnection, HttpOrigin, OutgoingRequest};
use mcpproxy_runtime::io::http1::retry_after;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Timeout of the final export at shutdown.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// Peer that is charged for log lines about the collector.
const COLLECTOR: LinePeer<'_> = LinePeer::Part("telemetry collector");
/// Maximum number of bytes of a response that are read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
struct ExportTimeouts {
    /// Timeout of an attempt.
    attempt: Duration,
    /// Minimum and maximum backoff, before jitter. A collector may request a longer backoff, up to `max_requested`.
    backoff: (Duration, Duration),
    max_requested: Duration,
    /// Time after which a batch is dropped.
    batch: Duration,
}

const TIMEOUTS: ExportTimeouts = ExportTimeouts {
    attempt: Duration::from_secs(10),
    backoff: (Duration::from_secs(1), Duration::from_secs(30)),
    max_requested: Duration::from_secs(60),
    batch: Duration::from_secs(120),
};

/// Export targets of the config in force.
#[derive(Debug)]
pub(super) struct OtlpTargets {
    traces: watch::Sender<Option<OtlpTarget>>,
    logs: watch::Sender<Option<OtlpTarget>>,
    tap: LogTap,
}

impl OtlpTargets {
    /// Targets of a config; enables the log tap if log lines are exported.
    pub(super) fn of(config: &TelemetrySection, tap: LogTap) -> Self {
        let (traces, logs) = (config.target(), config.logs_target());
        tap.switch(logs.is_some());
        Self { traces: watch::Sender::new(traces), logs: watch::Sender::new(logs), tap }
    }

    pub(super) fn traces(&self) -> watch::Receiver<Option<OtlpTarget>> {
        self.traces.subscribe()
    }

    pub(super) fn logs(&self) -> watch::Receiver<Option<OtlpTarget>> {
        self.logs.subscribe()
    }

    /// Applies changed settings.
    pub(super) fn change(&self, config: &TelemetrySection) {
        let (traces, logs) = (config.target(), config.logs_target());
        self.tap.switch(logs.is_some());
        for (sender, target) in [(&self.traces, traces), (&self.logs, logs)] {
            sender.send_if_modified(|now| {
                let other = *now != target;
                *now = target;
                other
            });
        }
    }
}

/// A running export.
#[derive(Debug)]
pub(super) struct OtlpExport(BackgroundTask);

impl OtlpExport {
    /// Starts the export, which is idle without a target.
    pub(super) fn start<T: Exported>(
        target: watch::Receiver<Option<OtlpTarget>>,
        queue: ExportReceiver<T>,
        instance: Box<str>,
        control: &Runtime,
    ) -> Self {
        Self(BackgroundTask::start(control.handle(), |ending| {
            let state = ExportTask {
                target,
                queue,
                instance,
                ending,
                timeouts: TIMEOUTS,
                collector: None,
                batch: Vec::new(),
                is_down: false,
            };
            state.run()
        }))
    }

    /// Ends the export. If `patient`, the remaining items are sent within [`FLUSH_LIMIT`], otherwise they are dropped.
    pub(super) async fn end(self, patient: bool) {
        self.0.end_within(if patient { FLUSH_LIMIT } else { Duration::ZERO }).await;
    }
}

struct ExportTask<T> {
    target: watch::Receiver<Option<OtlpTarget>>,
    queue: ExportReceiver<T>,
    instance: Box<str>,
    ending: watch::Receiver<bool>,
    timeouts: ExportTimeouts,
    /// The collector or the reason why it is unusable, with the target for which it was created.
    collector: Option<(OtlpTarget, Result<Collector, String>)>,
    batch: Vec<T>,
    /// Whether the collector's unavailability was reported.
    is_down: bool,
}

/// Result of an attempt.
#[derive(Debug)]
enum Delivery {
    Accepted(ExportAck),
    /// The batch may be retried after the requested delay.
    Retry(String, Option<Duration>),
    Rejected(String),
}

impl<T: Exported> ExportTask<T> {
    async fn run(mut self) {
        let mut ending = self.ending.clone();
        let ends = async move {
            // The sender exists until it has signaled the end.
            let _ = ending.wait_for(|ends| *ends).await;
        };
        tokio::select! {
            biased;
            () = ends => {}
            () = self.export() => {}
        }
        loop {
            self.queue.take(&mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            let delivery = self.attempt().await;
            self.settle(&delivery);
            self.queue.done(&mut self.batch);
        }
    }

    async fn export(&mut self) {
        loop {
            self.queue.gather(&mut self.batch).await;
            let mut target = self.target.clone();
            target.mark_unchanged();
            let another = async move {
                if target.changed().await.is_err() {
                    std::future::pending().await
                }
            };
            tokio::select! {
                biased;
                // The target has changed: the batch is sent to the new target.
                () = another => continue,
                () = self.deliver() => {}
            }
            self.queue.done(&mut self.batch);
        }
    }

    /// Sends the batch until it is accepted, rejected or too old.
    async fn deliver(&mut self) {
        let (min, max) = self.timeouts.backoff;
        let mut waits = RetryDelays::new(min, max);
        let began = Instant::now();
        loop {
            let delivery = self.attempt().await;
            let Delivery::Retry(why, asked) = &delivery else { return self.settle(&delivery) };
            let wait = waits.next_delay();
            let wait = asked.map_or(wait, |asked| asked.min(self.timeouts.max_requested).max(wait));
            if began.elapsed() + wait > self.timeouts.batch {
                return self.settle(&delivery);
            }
            self.report_down(why);
            tokio::time::sleep(wait).await;
        }
    }

    /// Reports an unavailable collector once.
    fn report_down(&mut self, why: &str) {
        if !self.is_down {
            self.is_down = true;
            let what = T::WHAT;
            peer_line!(warn, COLLECTOR, %why, "the collector of {what} is unavailable; items beyond the queue's capacity are dropped");
        }
    }

    /// Counts the result of a batch.
    fn settle(&mut self, delivery: &Delivery) {
        let all: u64 = self.batch.iter().map(Exported::count).sum();
        let (counts, what) = (self.queue.counts(), T::WHAT);
        match delivery {
            Delivery::Accepted(ExportAck { rejected, message }) => {
                let rejected = all.min(*rejected);
                counts.count_exported(all - rejected);
                counts.count_dropped(DropReason::Refused, rejected);
                if self.is_down {
                    self.is_down = false;
                    let dropped: u64 =
                        DropReason::ALL.iter().map(|reason| counts.dropped(*reason)).sum();
                    peer_line!(
                        info,
                        COLLECTOR,
                        dropped,
                        "the collector of {what} is available again"
                    );
                }
                if rejected > 0 {
                    peer_line!(warn, COLLECTOR, rejected, %message, "the collector of {what} rejected some items");
                }
            }
            Delivery::Retry(why, _) => {
                counts.count_dropped(DropReason::NotTaken, all);
                self.report_down(why);
            }
            Delivery::Rejected(why) => {
                counts.count_dropped(DropReason::Refused, all);
                self.report_down(why);
            }
        }
    }

    /// Sends the batch once.
    async fn attempt(&mut self) -> Delivery {
        let target = self.target.borrow().clone();
        let Some(target) = target else {
            self.collector = None;
            return Delivery::Rejected("no collector is configured".to_owned());
        };
        if self.collector.as_ref().is_none_or(|(of, _)| *of != target) {
            self.is_down = false;
            let made = Collector::of(&target, T::PATH).await;
            self.collector = Some((target.clone(), made));
        }
        let Some((_, collector)) = &mut self.collector else {
            return Delivery::Rejected(String::new());
        };
        let collector = match collector {
            Ok(collector) => collector,
            Err(why) => return Delivery::Rejected(why.clone()),
        };
        let exporter =
            Exporter { service: target.service_name.into(), instance: self.instance.clone() };
        let body = Bytes::from(T::encode(&exporter, &self.batch));
        let limit = self.timeouts.attempt;
        match tokio::time::timeout(limit, collector.post(body)).await {
            Ok(Ok(answer)) => delivery(&answer),
            Ok(Err(why)) => {
                collector.connection = None;
                Delivery::Retry(why, None)
            }
            Err(_) => {
                collector.connection = None;
                Delivery::Retry(format!("no answer within {limit:?}"), None)
            }
        }
    }
}

/// Interprets a response (OTLP §OTLP/HTTP Response).
fn delivery(answer: &Response<Bytes>) -> Delivery {
    let status = answer.status();
    match status {
        _ if status.is_success() => Delivery::Accepted(otlp::decode_response(answer.body())),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let asked = answer.headers().get(RETRY_AFTER);
            let asked = asked.and_then(|it| retry_after(it.as_bytes(), SystemTime::now()));
            Delivery::Retry(status.to_string(), asked)
        }
        _ => Delivery::Rejected(status.to_string()),
    }
}

struct Collector {
    origin: HttpOrigin,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    connection: Option<HttpConnection>,
}

impl Collector {
    async fn of(target: &OtlpTarget, path: &str) -> Result<Self, String> {
        let headers = target.headers.clone();
        let filled = tokio::task::spawn_blocking(move || {
            headers.filled(&|name: &str| std::env::var(name).ok())
        });
        let headers = filled.await.map_err(|error| error.to_string())??;
        let origin = HttpOrigin::of(&target.endpoint).await.ok_or("invalid URL")?;
        let path = format!("{}/{path}", origin.url.path().trim_end_matches('/'));
        Ok(Self { origin, path, headers, connection: None })
    }

    /// Posts a batch over the open connection, or over a new one if none is open or it was just closed.
    async fn post(&mut self, body: Bytes) -> Result<Response<Bytes>, String> {
        let request = |body| request(&self.origin, &self.path, &self.headers, body);
        if let Some(mut connection) = self.connection.take()
            && connection.is_open()
            && let Ok((answer, kept)) =
                connection.fetch(request(body.clone())?, MAX_ANSWER_BYTES).await
        {
            self.connection = kept;
            return Ok(answer);
        }
        let connection = self.origin.connect().await.map_err(|error| error.to_string())?;
        let fetched = connection.fetch(request(body)?, MAX_ANSWER_BYTES).await;
        let (answer, kept) = fetched.map_err(|fault| fault.to_string())?;
        self.connection = kept;
        Ok(answer)
    }
}

fn request(
    origin: &HttpOrigin,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
    body: Bytes,
) -> Result<OutgoingRequest, String> {
    let mut request = Request::post(path)
        .header(HOST, origin.url.authority())
        .header(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF))
        .header(USER_AGENT, concat!("mcpproxy/", env!("CARGO_PKG_VERSION")));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(Full::new(body)).map_err(|_| "invalid request".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;

    use super::*;
    use mcpproxy_gateway::telemetry::SpanQueue;
    use mcpproxy_gateway::telemetry::call_span::{CallSpan, tests_span};
    use mcpproxy_gateway::telemetry::export_queue::export_queue;

    const TAKES: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";

    /// A collector that sends these responses on each connection and then closes it; after the last one, it hangs. Also returns the number
    /// of connections.
    async fn collector(answers: Vec<&'static [&'static str]>) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let connected = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connected);
        tokio::spawn(async move {
            for of_connection in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                for answer in of_connection {
                    let mut request = Vec::new();
                    while !is_whole(&request) {
                        assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                    }
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
            std::future::pending::<()>().await;
            drop(listener);
        });
        (endpoint, connected)
    }

    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        request.len() >= head.len() + 4 + length.unwrap().parse::<usize>().unwrap()
    }

    /// An export task with short timeouts, and its queue.
    fn task(endpoint: String) -> (ExportTask<CallSpan>, SpanQueue, watch::Sender<bool>) {
        let (queue, receiver) = export_queue();
        let (end, ending) = watch::channel(false);
        let target = serde_json::from_value::<mcpproxy_config::TelemetrySection>(
            serde_json::json!({ "otlp_endpoint": endpoint }),
        );
        // The sender is dropped, so the target never changes.
        let (_, target) = watch::channel(target.unwrap().target());
        let timeouts = ExportTimeouts {
            attempt: Duration::from_millis(200),
            backoff: (Duration::from_millis(1), Duration::from_millis(2)),
            max_requested: Duration::from_millis(1),
            batch: Duration::from_millis(100),
        };
        let (collector, batch) = (None, Vec::new());
        let instance = "i".into();
        let state = ExportTask {
            target,
            queue: receiver,
            instance,
            ending,
            timeouts,
            collector,
            batch,
            is_down: false,
        };
        (state, queue, end)
    }

    async fn deliver(state: &mut ExportTask<CallSpan>, queue: &SpanQueue) {
        queue.put(Box::new(tests_span(true)));
        state.queue.gather(&mut state.batch).await;
        state.deliver().await;
        state.queue.done(&mut state.batch);
    }

    fn counts(queue: &SpanQueue) -> (u64, [u64; 3]) {
        let counts = queue.counts();
        (counts.exported(), DropReason::ALL.map(|reason| counts.dropped(reason)))
    }

    #[tokio::test]
    async fn batches_share_a_connection_which_is_reopened_after_it_was_closed() {
        let (endpoint, connected) = collector(vec![&[TAKES, TAKES], &[BUSY, TAKES]]).await;
        let (mut state, queue, _end) = task(endpoint);
        for taken in [2, 4, 6] {
            deliver(&mut state, &queue).await;
            assert_eq!(counts(&queue), (taken, [0; 3]));
        }
        assert_eq!(connected.load(Ordering::SeqCst), 2);
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test]
    async fn batch_that_is_too_old_is_dropped_and_counted() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (hangs, _) = collector(Vec::new()).await;
        for endpoint in [format!("http://{unused}"), hangs] {
            let (mut state, queue, _end) = task(endpoint);
            deliver(&mut state, &queue).await;
            assert_eq!(counts(&queue), (0, [0, 2, 0]));
            assert!(state.is_down);
        }
    }

    #[tokio::test]
    async fn remaining_spans_are_sent_once_at_shutdown() {
        let (endpoint, _) = collector(vec![&[TAKES]]).await;
        let (state, queue, end) = task(endpoint);
        queue.put(Box::new(tests_span(false)));
        end.send_replace(true);
        state.run().await;
        assert_eq!(counts(&queue), (1, [0; 3]));
        let (hangs, _) = collector(Vec::new()).await;
        let (state, queue, end) = task(hangs);
        queue.put(Box::new(tests_span(false)));
        end.send_replace(true);
        state.run().await;
        assert_eq!(counts(&queue), (0, [0, 1, 0]));
    }

    #[tokio::test]
    async fn shutdown_waits_for_a_hanging_collector_within_its_limit() {
        let (hangs, _) = collector(Vec::new()).await;
        let (mut state, queue, _) = task(hangs);
        state.timeouts = TIMEOUTS;
        queue.put(Box::new(tests_span(false)));
        let export = BackgroundTask::start(&Handle::current(), |ending| {
            state.ending = ending;
            state.run()
        });
        assert!(!export.end_within(Duration::from_millis(50)).await);
        // A finished attempt would have been counted.
        assert_eq!(counts(&queue), (0, [0; 3]));
    }

    #[test]
    fn response_status_decides_whether_to_retry() {
        let answer = |status: u16, after: &'static str| {
            let mut answer = Response::builder().status(status);
            if !after.is_empty() {
                answer = answer.header(RETRY_AFTER, after);
            }
            delivery(&answer.body(Bytes::new()).unwrap())
        };
        for status in [429, 502, 503, 504] {
            assert!(matches!(answer(status, ""), Delivery::Retry(_, None)), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert!(matches!(answer(status, "7"), Delivery::Rejected(_)), "{status}");
        }
        assert!(matches!(answer(202, ""), Delivery::Accepted(_)));
        let seven = Some(Duration::from_secs(7));
        assert!(matches!(answer(503, " 7 "), Delivery::Retry(_, after) if after == seven));
    }
}
