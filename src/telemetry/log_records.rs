//! Lines of the log on their second way out, to a collector: what is told of one, and the layer that copies them.
//!
//! Off, a line costs the look at one word more. On, its texts are copied, each bounded, into a bounded queue
//! ([`super::export_queue`]); what does not fit is dropped and counted, and whoever logs waits for nobody. A line that is
//! logged in a call whose trace is recorded names trace and span.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::export_queue::{ExportCounts, ExportQueue, ExportReceiver, export_queue};

/// Most bytes of a line's message; the rest is cut.
pub const MAX_BODY_BYTES: usize = 2048;
/// Most bytes of the text of one of its fields; the rest is cut.
const MAX_FIELD_BYTES: usize = 512;
/// Most fields of a line; further ones are left out.
const MAX_FIELDS: usize = 16;
/// The field that is the message.
const MESSAGE: &str = "message";

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// How grave it is.
    pub level: Level,
    /// The part of the program that says it.
    pub target: &'static str,
    /// What it says.
    pub body: Box<str>,
    /// Its fields.
    pub fields: Vec<(&'static str, Box<str>)>,
    /// The call that it was logged in, where its trace is recorded.
    pub span: Option<LoggedSpan>,
}

/// The span of a call that lines are logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedSpan {
    /// Its trace.
    pub trace_id: u128,
    /// Itself.
    pub span_id: u64,
}

/// Where lines are copied to. Clones share it; it is off until it is switched on.
#[derive(Clone, Debug)]
pub struct LogTap(Arc<Tap>);

#[derive(Debug)]
struct Tap {
    on: AtomicBool,
    queue: ExportQueue<LogRecord>,
    /// The other end, until somebody exports.
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
    /// From now on lines are copied, or are not.
    pub fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// The end that is exported from: once.
    #[must_use]
    pub fn receiver(&self) -> Option<ExportReceiver<LogRecord>> {
        self.0.receiver.lock().take()
    }

    /// What became of lines.
    #[must_use]
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
        let mut said = ReadLine::default();
        event.record(&mut said);
        let of = context.event_scope(event).and_then(|mut scope| {
            scope.find_map(|span| span.extensions().get::<LoggedSpan>().copied())
        });
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.queue.put(Box::new(LogRecord {
            time: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            level: *event.metadata().level(),
            target: event.metadata().target(),
            body: said.body.into(),
            fields: said.fields,
            span: of,
        }));
    }
}

/// The trace that a span's fields name.
#[derive(Default)]
struct ReadSpan {
    trace_id: Option<u128>,
    span_id: Option<u64>,
}

impl Visit for ReadSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = |most| bounded(value, most);
        match field.name() {
            "trace_id" => self.trace_id = u128::from_str_radix(&text(32), 16).ok(),
            "span_id" => self.span_id = u64::from_str_radix(&text(16), 16).ok(),
            _ => {}
        }
    }
}

/// What a line says.
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

/// A value as text, of at most so many bytes; the rest is not even written.
fn bounded(value: &dyn fmt::Debug, most: usize) -> String {
    let mut out = Bounded { text: String::new(), most };
    // It fails where the rest is cut.
    let _ = write!(out, "{value:?}");
    out.text
}

struct Bounded {
    text: String,
    most: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.most - self.text.len();
        let fits = text.get(..text.floor_char_boundary(room)).unwrap_or_default();
        self.text.push_str(fits);
        if fits.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::export_queue::{DropReason, Exported};

    fn logged(tap: &LogTap, lines: impl FnOnce()) -> Vec<LogRecord> {
        let mut receiver = tap.receiver().unwrap();
        let subscriber = tracing_subscriber::registry().with(tap.clone());
        tracing::subscriber::with_default(subscriber, lines);
        let mut batch = Vec::new();
        receiver.take(&mut batch);
        batch
    }

    #[test]
    fn lines_are_copied_with_their_fields_and_the_trace_of_their_call() {
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
    fn off_nothing_is_copied_and_what_is_too_much_is_cut_or_dropped_and_counted() {
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
