//! Which lines are logged: changed while the program runs, and decided once for each place in the code that logs.
//!
//! A place that is off costs what it costs under a fixed level: the answer is remembered there until the level changes.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber, callsite};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer};

/// The program's own target.
const OWN: &str = env!("CARGO_PKG_NAME");

/// The level in force. Clones share it; the default one is asked by nobody.
#[derive(Clone, Default)]
pub struct LogFilter(Arc<Levels>);

#[derive(Default)]
struct Levels {
    targets: ArcSwap<Targets>,
    /// Of these targets errors alone are logged, at any level.
    quiet: &'static [&'static str],
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFilter").field(&self.0.targets.load()).finish()
    }
}

impl LogFilter {
    /// At that level; of the targets `quiet` errors alone.
    #[must_use]
    pub fn new(level: &str, quiet: &'static [&'static str]) -> Self {
        let targets = ArcSwap::from_pointee(targets(level, quiet));
        Self(Arc::new(Levels { targets, quiet }))
    }

    /// From now on that level counts.
    pub fn set(&self, level: &str) {
        self.0.targets.store(Arc::new(targets(level, self.0.quiet)));
        callsite::rebuild_interest_cache();
    }

    fn logs(&self, metadata: &Metadata<'_>) -> bool {
        self.0.targets.load().would_enable(metadata.target(), metadata.level())
    }
}

fn targets(level: &str, quiet: &[&'static str]) -> Targets {
    // Libraries log warnings alone, unless more detail was asked for.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

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
    fn another_level_counts_for_places_that_have_logged_before() {
        let (kept, filter) = (Kept::default(), LogFilter::new("warn", &["chatty"]));
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(filter.clone()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for (level, expected) in
                [("warn", "warned"), ("debug", "warned told detail"), ("error", "")]
            {
                filter.set(level);
                kept.0.lock().clear();
                tracing::warn!(target: "mcpproxy", "warned");
                tracing::info!(target: "mcpproxy", "told");
                tracing::debug!(target: "mcpproxy", "detail");
                tracing::debug!(target: "a_library", "hidden");
                tracing::warn!(target: "chatty", "hidden");
                let text = String::from_utf8(kept.0.lock().clone()).unwrap();
                let words = text.lines().filter_map(|line| line.split(' ').next_back());
                assert_eq!(words.collect::<Vec<_>>().join(" "), expected, "{level}: {text}");
            }
        });
    }
}
