//! Exports traced calls, and lines of the log, to the collector that the config names: OTLP over HTTP, in protobuf.
//!
//! A task for each of the two, which no call waits for: it takes them out of their bounded queue in batches and sends one batch after the
//! other. A batch that is not taken is sent again, ever more seldom and not before the collector wants it, until it is too
//! old (OTLP §OTLP/HTTP Response, §Retryable Response Codes); meanwhile the queue may fill up, and what does not fit is
//! dropped and counted there. That a collector takes nothing is told once, until it takes something again. At the end what
//! is left is sent, within [`FLUSH_LIMIT`].
//!
//! Headers, which may hold secrets, are not logged.

use std::time::{Duration, Instant, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use jiff::fmt::rfc2822;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::outgoing_http::{HttpOrigin, OutgoingConnection};
use crate::config::{OtlpTarget, TelemetrySection};
use crate::io::background_task::BackgroundTask;
use crate::telemetry::LogTap;
use crate::telemetry::export_queue::{DropReason, ExportReceiver, Exported, Exporter};
use crate::telemetry::otlp::{self, PROTOBUF, TakenBatch};

/// Most time for the end of the export.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How long a collector is waited for.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Most time for one attempt.
    attempt: Duration,
    /// First and longest wait between two attempts, before the jitter. A collector may ask for a longer one, of `asked`
    /// at most.
    waits: (Duration, Duration),
    asked: Duration,
    /// A batch that has been tried for longer is dropped.
    batch: Duration,
}

const PATIENCE: Patience = Patience {
    attempt: Duration::from_secs(10),
    waits: (Duration::from_secs(1), Duration::from_secs(30)),
    asked: Duration::from_secs(60),
    batch: Duration::from_secs(120),
};

/// Where traces and lines of the log go, by the config in force.
#[derive(Debug)]
pub(super) struct OtlpTargets {
    traces: watch::Sender<Option<OtlpTarget>>,
    logs: watch::Sender<Option<OtlpTarget>>,
    tap: LogTap,
}

impl OtlpTargets {
    /// Those of this config; lines are copied from `tap` on where they are wanted.
    pub(super) fn of(config: &TelemetrySection, tap: LogTap) -> Self {
        let (traces, logs) = (config.target(), config.logs_target());
        tap.switch(logs.is_some());
        Self { traces: watch::Sender::new(traces), logs: watch::Sender::new(logs), tap }
    }

    /// Where traces go.
    pub(super) fn traces(&self) -> watch::Receiver<Option<OtlpTarget>> {
        self.traces.subscribe()
    }

    /// Where lines of the log go.
    pub(super) fn logs(&self) -> watch::Receiver<Option<OtlpTarget>> {
        self.logs.subscribe()
    }

    /// Another config is in force.
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

/// Who exports while the proxy runs.
#[derive(Debug)]
pub(super) struct OtlpExport(BackgroundTask);

impl OtlpExport {
    /// Starts to export to the collector of the config in force, while there is one.
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
                patience: PATIENCE,
                collector: None,
                batch: Vec::new(),
                is_down: false,
            };
            state.run()
        }))
    }

    /// Ends it: what is left is sent, within [`FLUSH_LIMIT`]; without `patience` it is dropped.
    pub(super) async fn end(self, patience: bool) {
        self.0.end_within(if patience { FLUSH_LIMIT } else { Duration::ZERO }).await;
    }
}

/// The task's state.
struct ExportTask<T> {
    target: watch::Receiver<Option<OtlpTarget>>,
    queue: ExportReceiver<T>,
    instance: Box<str>,
    ending: watch::Receiver<bool>,
    patience: Patience,
    /// Where it goes, and what that was made of.
    collector: Option<(OtlpTarget, Result<Collector, String>)>,
    batch: Vec<T>,
    /// Whether it was told that the collector takes nothing.
    is_down: bool,
}

/// How an attempt ended.
#[derive(Debug)]
enum Delivery {
    Taken(TakenBatch),
    /// Another may end better, but not before that time.
    Later(String, Option<Duration>),
    /// No other will.
    Refused(String),
}

impl<T: Exported> ExportTask<T> {
    async fn run(mut self) {
        let mut ending = self.ending.clone();
        let ends = async move {
            // Its sender is kept until then.
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

    /// Exports for ever.
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
                // The batch is for the other one.
                () = another => continue,
                () = self.deliver() => {}
            }
            self.queue.done(&mut self.batch);
        }
    }

    /// Sends the batch until it is taken, refused or too old.
    async fn deliver(&mut self) {
        let (least, most) = self.patience.waits;
        let waits = ExponentialBuilder::new()
            .with_min_delay(least)
            .with_max_delay(most)
            .without_max_times()
            .with_jitter();
        let began = Instant::now();
        for wait in waits.build() {
            let delivery = self.attempt().await;
            let Delivery::Later(why, asked) = &delivery else { return self.settle(&delivery) };
            let wait = asked.map_or(wait, |asked| asked.min(self.patience.asked).max(wait));
            if began.elapsed() + wait > self.patience.batch {
                return self.settle(&delivery);
            }
            self.is_down(why);
            tokio::time::sleep(wait).await;
        }
    }

    /// Tells once that the collector takes nothing.
    fn is_down(&mut self, why: &str) {
        if !self.is_down {
            self.is_down = true;
            let what = T::WHAT;
            tracing::warn!(%why, "the collector of {what} does not take them: what does not fit into the queue is dropped");
        }
    }

    /// Counts what became of the batch.
    fn settle(&mut self, delivery: &Delivery) {
        let all: u64 = self.batch.iter().map(Exported::count).sum();
        let (counts, what) = (self.queue.counts(), T::WHAT);
        match delivery {
            Delivery::Taken(TakenBatch { rejected, told }) => {
                let rejected = all.min(*rejected);
                counts.count_exported(all - rejected);
                counts.count_dropped(DropReason::Refused, rejected);
                if self.is_down {
                    self.is_down = false;
                    let dropped: u64 =
                        DropReason::ALL.iter().map(|reason| counts.dropped(*reason)).sum();
                    tracing::info!(dropped, "the collector of {what} takes them again");
                }
                if rejected > 0 {
                    tracing::warn!(rejected, %told, "the collector of {what} did not keep some");
                }
            }
            Delivery::Later(why, _) => {
                counts.count_dropped(DropReason::NotTaken, all);
                self.is_down(why);
            }
            Delivery::Refused(why) => {
                counts.count_dropped(DropReason::Refused, all);
                self.is_down(why);
            }
        }
    }

    /// Sends the batch once.
    async fn attempt(&mut self) -> Delivery {
        let target = self.target.borrow().clone();
        let Some(target) = target else {
            self.collector = None;
            return Delivery::Refused("the config names none any more".to_owned());
        };
        if self.collector.as_ref().is_none_or(|(of, _)| *of != target) {
            self.is_down = false;
            let made = Collector::of(&target, T::PATH).await;
            self.collector = Some((target.clone(), made));
        }
        let Some((_, collector)) = &mut self.collector else {
            return Delivery::Refused(String::new());
        };
        let collector = match collector {
            Ok(collector) => collector,
            Err(why) => return Delivery::Refused(why.clone()),
        };
        let exporter =
            Exporter { service: target.service_name.into(), instance: self.instance.clone() };
        let body = Bytes::from(T::encode(&exporter, &self.batch));
        let limit = self.patience.attempt;
        match tokio::time::timeout(limit, collector.post(body)).await {
            Ok(Ok(answer)) => delivery(&answer),
            Ok(Err(why)) => {
                collector.connection = None;
                Delivery::Later(why, None)
            }
            Err(_) => {
                collector.connection = None;
                Delivery::Later(format!("no answer within {limit:?}"), None)
            }
        }
    }
}

/// What an answer says of a batch (OTLP §OTLP/HTTP Response).
fn delivery(answer: &Response<Bytes>) -> Delivery {
    let status = answer.status();
    match status {
        _ if status.is_success() => Delivery::Taken(otlp::taken(answer.body())),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            Delivery::Later(status.to_string(), retry_after(answer.headers(), SystemTime::now()))
        }
        _ => Delivery::Refused(status.to_string()),
    }
}

/// How long the collector wants to be left alone (RFC 9110 §10.2.3).
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    SystemTime::from(date).duration_since(now).ok()
}

/// Where batches go.
struct Collector {
    origin: HttpOrigin,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    connection: Option<OutgoingConnection>,
}

impl Collector {
    async fn of(target: &OtlpTarget, path: &str) -> Result<Self, String> {
        let headers = target.headers.clone();
        let filled = tokio::task::spawn_blocking(move || {
            headers.filled(&|name: &str| std::env::var(name).ok())
        });
        let headers = filled.await.map_err(|error| error.to_string())??;
        let origin = HttpOrigin::of(&target.endpoint).await.ok_or("its URL cannot be used")?;
        let path = format!("{}/{path}", origin.url.path().trim_end_matches('/'));
        Ok(Self { origin, path, headers, connection: None })
    }

    /// Posts a batch over the connection there is, or a new one. One that is closed just then is no failure.
    async fn post(&mut self, body: Bytes) -> Result<Response<Bytes>, String> {
        if let Some(connection) = &mut self.connection
            && connection.is_open()
            && let Ok(answer) = {
                let request = request(&self.origin, &self.path, &self.headers, body.clone())?;
                connection.send(request, MAX_ANSWER_BYTES).await
            }
        {
            return Ok(answer);
        }
        let request = request(&self.origin, &self.path, &self.headers, body)?;
        let connection = self.connection.insert(self.origin.connect().await?);
        connection.send(request, MAX_ANSWER_BYTES).await
    }
}

fn request(
    origin: &HttpOrigin,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
    body: Bytes,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::post(path)
        .header(HOST, origin.url.authority())
        .header(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF))
        .header(USER_AGENT, concat!("mcpproxy/", env!("CARGO_PKG_VERSION")));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(Full::new(body)).map_err(|_| "it cannot be sent".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;

    use super::*;
    use crate::telemetry::SpanQueue;
    use crate::telemetry::call_span::{CallSpan, tests_span};
    use crate::telemetry::export_queue::export_queue;

    const TAKES: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";

    /// A collector that answers its requests one after the other with these and then hangs up, or hangs where there is no
    /// more; how often it was connected to.
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

    /// An exporter with little patience, and where calls are put.
    fn task(endpoint: String) -> (ExportTask<CallSpan>, SpanQueue, watch::Sender<bool>) {
        let (queue, receiver) = export_queue();
        let (end, ending) = watch::channel(false);
        let target = serde_json::from_value::<crate::config::TelemetrySection>(
            serde_json::json!({ "otlp_endpoint": endpoint }),
        );
        // Whoever could change it is gone: nobody will.
        let (_, target) = watch::channel(target.unwrap().target());
        let patience = Patience {
            attempt: Duration::from_millis(200),
            waits: (Duration::from_millis(1), Duration::from_millis(2)),
            asked: Duration::from_millis(1),
            batch: Duration::from_millis(100),
        };
        let (collector, batch) = (None, Vec::new());
        let instance = "i".into();
        let state = ExportTask {
            target,
            queue: receiver,
            instance,
            ending,
            patience,
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
    async fn batches_go_over_one_connection_and_one_that_was_closed_is_made_anew() {
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
    async fn a_batch_that_is_not_taken_in_time_is_dropped_and_counted() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (hangs, _) = collector(Vec::new()).await;
        for endpoint in [format!("http://{nobody}"), hangs] {
            let (mut state, queue, _end) = task(endpoint);
            deliver(&mut state, &queue).await;
            assert_eq!(counts(&queue), (0, [0, 2, 0]));
            assert!(state.is_down);
        }
    }

    #[tokio::test]
    async fn at_the_end_what_is_left_is_sent_once() {
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
    async fn an_end_waits_for_a_collector_that_hangs_no_longer_than_its_bound() {
        let (hangs, _) = collector(Vec::new()).await;
        let (mut state, queue, _) = task(hangs);
        state.patience = PATIENCE;
        queue.put(Box::new(tests_span(false)));
        let export = BackgroundTask::start(&Handle::current(), |ending| {
            state.ending = ending;
            state.run()
        });
        assert!(!export.end_within(Duration::from_millis(50)).await);
        // Had it waited as long as for an attempt, that would have been counted.
        assert_eq!(counts(&queue), (0, [0; 3]));
    }

    #[test]
    fn an_answer_says_whether_another_attempt_may_end_better() {
        let answer = |status: u16, after: &'static str| {
            let mut answer = Response::builder().status(status);
            if !after.is_empty() {
                answer = answer.header(RETRY_AFTER, after);
            }
            delivery(&answer.body(Bytes::new()).unwrap())
        };
        for status in [429, 502, 503, 504] {
            assert!(matches!(answer(status, ""), Delivery::Later(_, None)), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert!(matches!(answer(status, "7"), Delivery::Refused(_)), "{status}");
        }
        assert!(matches!(answer(202, ""), Delivery::Taken(_)));
        let seven = Some(Duration::from_secs(7));
        assert!(matches!(answer(503, " 7 "), Delivery::Later(_, after) if after == seven));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let after = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]), now)
        };
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), seven);
        for none in ["Sun, 06 Nov 1994 08:49:30 +0001", "-1", "soon", "1e9", ""] {
            assert_eq!(after(none), None, "{none}");
        }
    }
}
