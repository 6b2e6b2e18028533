//! Log output: the writer thread for stderr, the level filter, and the copy for an OTLP collector.
//!
//! [`LogLines`] queues lines for a writer thread. A slow or closed reader of stderr neither blocks logging nor makes it
//! fail: a line that does not fit into the queue, or that cannot be written, is dropped and counted.
//!
//! [`LogFilter`] changes the level at run time. Its decision is cached per callsite until the level changes.
//!
//! [`LogTap`] copies lines, with bounded texts, into a bounded [export queue](super::export_queue). A tap that is off
//! costs one atomic load per line. A line logged within a recorded trace carries its trace and span ids.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, io, thread};

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, callsite};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::export_queue::{ExportCounts, ExportQueue, ExportReceiver, export_queue};

/// Maximum size of queued lines in bytes.
const QUEUE_BYTES: usize = 128 * 1024;

/// Queue of lines. Clones share it; the default one has no writer and drops every line.
#[derive(Clone, Debug, Default)]
pub struct LogLines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals a new line.
    come: Condvar,
    written: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Whether a writer thread exists, and whether it is writing.
    taken: bool,
    writing: bool,
}

impl LogLines {
    /// Starts a thread that writes to `out`. It lives as long as the process, since it may block on the reader
    /// forever.
    pub fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        lines.0.queue.lock().taken = true;
        let shared = Arc::clone(&lines.0);
        thread::Builder::new().name("log".into()).spawn(move || shared.write_to(out))?;
        Ok(lines)
    }

    /// Number of dropped lines.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, for at most `limit`.
    pub fn finish(&self, limit: Duration) {
        let busy = |queue: &mut Queue| queue.taken && (queue.writing || !queue.lines.is_empty());
        self.0.written.wait_while_for(&mut self.0.queue.lock(), busy, limit);
    }
}

/// Each write consists of one or more complete lines.
impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.queue.lock();
        if !queue.taken || queue.bytes + line.len() > QUEUE_BYTES {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.bytes += line.len();
            queue.lines.push_back(line.into());
            self.0.come.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_to(&self, mut out: impl Write) {
        let mut reported = 0;
        loop {
            let mut queue = self.queue.lock();
            queue.writing = false;
            if queue.lines.is_empty() {
                self.written.notify_all();
            }
            self.come.wait_while(&mut queue, |queue| queue.lines.is_empty());
            let lines = std::mem::take(&mut queue.lines);
            (queue.bytes, queue.writing) = (0, true);
            drop(queue);
            let mut failed = 0;
            for line in lines {
                failed += u64::from(out.write_all(&line).is_err());
            }
            let lost = self.lost.fetch_add(failed, Ordering::Relaxed) + failed;
            // Dropped lines are not reported while writing fails, since nobody could read the report.
            if failed == 0 && lost > reported {
                tracing::warn!(
                    lines = lost - reported,
                    "log lines dropped: stderr is not read in time"
                );
            }
            reported = lost;
        }
    }
}

/// The program's own log target.
const OWN: &str = "mcpproxy";

/// Level in force. Clones share it.
#[derive(Clone, Default)]
pub struct LogFilter(Arc<Levels>);

#[derive(Default)]
struct Levels {
    targets: ArcSwap<Targets>,
    /// Targets that log only errors, at any level.
    quiet: &'static [&'static str],
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFilter").field(&self.0.targets.load()).finish()
    }
}

impl LogFilter {
    /// Filters at `level`; the targets `quiet` log only errors.
    pub fn new(level: &str, quiet: &'static [&'static str]) -> Self {
        let targets = ArcSwap::from_pointee(targets(level, quiet));
        Self(Arc::new(Levels { targets, quiet }))
    }

    pub fn set(&self, level: &str) {
        self.0.targets.store(Arc::new(targets(level, self.0.quiet)));
        callsite::rebuild_interest_cache();
    }

    fn logs(&self, metadata: &Metadata<'_>) -> bool {
        self.0.targets.load().would_enable(metadata.target(), metadata.level())
    }
}

fn targets(level: &str, quiet: &[&'static str]) -> Targets {
    // Libraries log only warnings, unless more detail was requested.
    let libraries = match level {
        "debug" | "trace" => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    };
    let own = level.parse().unwrap_or(LevelFilter::INFO);
    let quiet = quiet.iter().map(|target| (*target, LevelFilter::ERROR));
    Targets::new().with_default(libraries).with_target(OWN, own).with_targets(quiet)
}

impl<S: Subscriber> Layer<S> for LogFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.logs(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.logs(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let targets = self.0.targets.load();
        targets.iter().map(|(_, level)| level).chain(targets.default_level()).max()
    }
}

/// Maximum size of a message in bytes; the rest is cut.
pub const MAX_BODY_BYTES: usize = 2048;
/// Maximum size of a field's text in bytes; the rest is cut.
const MAX_FIELD_BYTES: usize = 512;
/// Maximum number of fields of a line; the rest is dropped.
const MAX_FIELDS: usize = 16;
/// Name of the message field.
const MESSAGE: &str = "message";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Nanoseconds since 1970.
    pub time: u64,
    pub level: Level,
    pub target: &'static str,
    pub body: Box<str>,
    pub fields: Vec<(&'static str, Box<str>)>,
    /// Recorded trace that the line was logged in.
    pub span: Option<LoggedSpan>,
}

/// Trace and span ids of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedSpan {
    pub trace_id: u128,
    pub span_id: u64,
}

/// Copies lines into the export queue. Clones share it; off by default.
#[derive(Clone, Debug)]
pub struct LogTap(Arc<Tap>);

#[derive(Debug)]
struct Tap {
    on: AtomicBool,
    queue: ExportQueue<LogRecord>,
    /// Receiving end, until the exporter takes it.
    receiver: Mutex<Option<ExportReceiver<LogRecord>>>,
}

impl Default for LogTap {
    fn default() -> Self {
        let (queue, receiver) = export_queue();
        let receiver = Mutex::new(Some(receiver));
        Self(Arc::new(Tap { on: AtomicBool::new(false), queue, receiver }))
    }
}

impl LogTap {
    pub fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Takes the receiving end; `None` after the first time.
    pub fn receiver(&self) -> Option<ExportReceiver<LogRecord>> {
        self.0.receiver.lock().take()
    }

    pub fn counts(&self) -> &ExportCounts {
        self.0.queue.counts()
    }

    fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Relaxed)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogTap {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !self.is_on() {
            return;
        }
        let mut read = ReadSpan::default();
        attributes.record(&mut read);
        if let (Some(trace_id), Some(span_id), Some(span)) =
            (read.trace_id, read.span_id, context.span(id))
        {
            span.extensions_mut().replace(LoggedSpan { trace_id, span_id });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !self.is_on() {
            return;
        }
        let mut line_fields = ReadLine::default();
        event.record(&mut line_fields);
        let of = context.event_scope(event).and_then(|mut scope| {
            scope.find_map(|span| span.extensions().get::<LoggedSpan>().copied())
        });
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.queue.put(Box::new(LogRecord {
            time: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            level: *event.metadata().level(),
            target: event.metadata().target(),
            body: line_fields.body.into(),
            fields: line_fields.fields,
            span: of,
        }));
    }
}

/// Trace and span ids among a span's fields.
#[derive(Default)]
struct ReadSpan {
    trace_id: Option<u128>,
    span_id: Option<u64>,
}

impl Visit for ReadSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = |max| bounded(value, max);
        match field.name() {
            "trace_id" => self.trace_id = u128::from_str_radix(&text(32), 16).ok(),
            "span_id" => self.span_id = u64::from_str_radix(&text(16), 16).ok(),
            _ => {}
        }
    }
}

/// Fields of a line.
#[derive(Default)]
struct ReadLine {
    body: String,
    fields: Vec<(&'static str, Box<str>)>,
}

impl Visit for ReadLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == MESSAGE {
            self.body = bounded(value, MAX_BODY_BYTES);
        } else if self.fields.len() < MAX_FIELDS {
            self.fields.push((field.name(), bounded(value, MAX_FIELD_BYTES).into()));
        }
    }
}

/// Formats a value, stopping after `max` bytes.
fn bounded(value: &dyn fmt::Debug, max: usize) -> String {
    let mut out = Bounded { text: String::new(), max };
    // An error means that the rest was cut.
    let _ = write!(out, "{value:?}");
    out.text
}

struct Bounded {
    text: String,
    max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let remaining = self.max - self.text.len();
        let fits = text.get(..text.floor_char_boundary(remaining)).unwrap_or_default();
        self.text.push_str(fits);
        if fits.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::export_queue::{DropReason, Exported};
    use super::*;

    /// Writer that blocks until the test permits each write.
    struct Slow(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn stalled_reader_does_not_block_and_dropped_lines_are_counted() {
        let (go, wait) = mpsc::channel();
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut lines = LogLines::to(Slow(wait, Arc::clone(&read))).unwrap();
        let line = [b'x'; 1024];
        let max = QUEUE_BYTES / line.len();
        // The thread may hold as many lines as fit into the queue.
        for _ in 0..3 * max {
            lines.write_all(&line).unwrap();
        }
        let lost = lines.lost();
        assert!(lost >= max as u64, "{lost}");
        lines.finish(Duration::ZERO);
        let kept = 3 * max as u64 - lost;
        for _ in 0..kept {
            go.send(()).unwrap();
        }
        lines.finish(Duration::from_secs(30));
        assert_eq!(read.lock().len() as u64, kept * line.len() as u64);
        assert_eq!(lines.lost(), lost);
        // A closed reader is visible in the counter only.
        drop(go);
        lines.write_all(b"gone\n").unwrap();
        lines.finish(Duration::from_secs(30));
        assert_eq!(lines.lost(), lost + 1);
    }

    #[test]
    fn lines_are_complete_and_in_order() {
        let (go, wait) = mpsc::channel();
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut lines = LogLines::to(Slow(wait, Arc::clone(&read))).unwrap();
        let all: Vec<String> = (0..100).map(|line| format!("{line}\n")).collect();
        for line in &all {
            go.send(()).unwrap();
            lines.write_all(line.as_bytes()).unwrap();
        }
        lines.finish(Duration::from_secs(30));
        assert_eq!(*read.lock(), all.concat().into_bytes());
        assert_eq!(lines.lost(), 0);
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn new_level_applies_to_cached_callsites() {
        let (kept, filter) = (Kept::default(), LogFilter::new("warn", &["chatty"]));
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(filter.clone()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for (level, expected) in
                [("warn", "warned"), ("debug", "warned reported detail"), ("error", "")]
            {
                filter.set(level);
                kept.0.lock().clear();
                tracing::warn!(target: "mcpproxy", "warned");
                tracing::info!(target: "mcpproxy", "reported");
                tracing::debug!(target: "mcpproxy", "detail");
                tracing::debug!(target: "a_library", "hidden");
                tracing::warn!(target: "chatty", "hidden");
                let text = String::from_utf8(kept.0.lock().clone()).unwrap();
                let words = text.lines().filter_map(|line| line.split(' ').next_back());
                assert_eq!(words.collect::<Vec<_>>().join(" "), expected, "{level}: {text}");
            }
        });
    }

    fn logged(tap: &LogTap, lines: impl FnOnce()) -> Vec<LogRecord> {
        let mut receiver = tap.receiver().unwrap();
        let subscriber = tracing_subscriber::registry().with(tap.clone());
        tracing::subscriber::with_default(subscriber, lines);
        let mut batch = Vec::new();
        receiver.take(&mut batch);
        batch
    }

    #[test]
    fn copied_lines_carry_fields_and_trace() {
        let tap = LogTap::default();
        tap.switch(true);
        let lines = logged(&tap, || {
            let span = tracing::error_span!(
                "call",
                trace_id = format_args!("{:032x}", 7),
                span_id = format_args!("{:016x}", 9),
            );
            span.in_scope(|| {
                tracing::info_span!("within").in_scope(|| {
                    tracing::warn!(server = "s", count = 3, "it {}", "fails");
                });
            });
            tracing::info!("no call");
        });
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&*first.body, first.level), ("it fails", Level::WARN));
        assert_eq!(first.fields, [("server", "s".into()), ("count", "3".into())]);
        assert_eq!(first.span, Some(LoggedSpan { trace_id: 7, span_id: 9 }));
        assert_eq!((&*second.body, second.span), ("no call", None));
        assert!(first.time > 0 && first.target.starts_with("mcpproxy"), "{first:?}");
    }

    #[test]
    fn tap_copies_nothing_when_off_and_bounds_lines_when_on() {
        let tap = LogTap::default();
        assert_eq!(logged(&tap, || tracing::error!("off")), []);
        let tap = LogTap::default();
        tap.switch(true);
        let long = "ü".repeat(MAX_BODY_BYTES);
        let lines = logged(&tap, || {
            for _ in 0..LogRecord::QUEUE + 5 {
                tracing::info!(field = &*long, "{long}");
            }
        });
        assert_eq!((lines.len(), lines[0].body.len()), (LogRecord::BATCH, MAX_BODY_BYTES));
        assert_eq!(lines[0].fields[0].1.len(), MAX_FIELD_BYTES);
        assert_eq!(tap.counts().dropped(DropReason::QueueFull), 5);
    }
}
