//! Settings of the call path: one immutable value, replaced atomically on reload.
//!
//! ```text
//! config::Config ─ settings() ─▶ Settings ─▶ SettingsSwap ─┬─ SettingsReader of worker 0 ─▶ CurrentSettings
//!                                                          └─ SettingsReader of worker 1 ─▶ CurrentSettings
//! ```
//!
//! Code reads a setting where it needs it ([`Worker::settings`](super::Worker::settings)) and copies nothing that
//! outlives the request. A read follows one pointer, without a lock or a shared atomic write. The code that swaps
//! the settings notifies objects built from the config (server tasks, the catalog's snapshot, the log).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Cache};
use tokio::sync::watch;

use super::memory_budget::MemoryBudget;
use crate::results::StoreBounds;
use crate::telemetry::Sampling;
use mcpproxy_policy as policy;
use mcpproxy_policy::HttpAuth;
use mcpproxy_policy::approvals;
use mcpproxy_protocol::mcp::revisions::Offered;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Credentials for HTTP requests.
    pub http_auth: HttpAuth,
    pub policy: policy::Settings,
    /// `approval`: how a person is asked. Its webhook belongs to the server.
    pub approval: approvals::Config,
    /// `tools_limit`: default number of results of `retrieve_tools`.
    pub tools_limit: usize,
    /// `stream_after` and `keepalive`: liveness signals of a slow call.
    pub streams: StreamTiming,
    /// `limits.held_timeout`: maximum wait of a held call for its client.
    pub held_timeout: Duration,
    /// `offered_era`: the revisions offered to clients that ask which ones are supported.
    pub offered_era: Offered,
    /// `telemetry.max_series`: maximum named series of calls by tool.
    pub max_series: usize,
    /// `telemetry.traces_ratio`: sampler of traces; `None` if tracing is off.
    pub traces: Option<Sampling>,
    /// Maximum recorded size of a call's arguments, in bytes (`activity.max_payload_bytes`).
    pub max_payload_bytes: usize,
    /// Maximum recorded size of an answer, in bytes (`activity.max_response_bytes`).
    pub max_response_bytes: usize,
    /// Whether records of calls have a receipt (`activity.receipts`).
    pub receipts: bool,
    /// `result_limit`: bounds of kept results; `None` if no tool's results are kept.
    pub kept_results: Option<StoreBounds>,
    /// Servers whose calls within a session go through a single fleet node (`affinity`).
    pub session_servers: BTreeSet<Arc<str>>,
    /// Memory held by strict mode over all calls. The budget is shared by all holders of these settings; calls begun
    /// under earlier settings return their bytes to the earlier budget.
    pub held: MemoryBudget,
    /// Memory for documents that warn mode validates after the reply.
    pub judging_budget: MemoryBudget,
}

/// Timing of a silent call's liveness signals to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTiming {
    /// Wait for the first byte after which the response becomes an event stream, if the client accepts one.
    pub stream_after: Duration,
    /// Interval of comments in an event stream without events.
    pub keepalive: Duration,
}

impl StreamTiming {
    pub const DEFAULT: Self =
        Self { stream_after: Duration::from_secs(5), keepalive: Duration::from_secs(15) };
}

/// Current settings. Clones share them.
#[derive(Clone)]
pub struct SettingsSwap {
    current: Arc<ArcSwap<Settings>>,
    replaced: watch::Sender<()>,
}

impl SettingsSwap {
    pub fn new(settings: Settings) -> Self {
        let current = Arc::new(ArcSwap::from_pointee(settings));
        Self { current, replaced: watch::Sender::new(()) }
    }

    /// Replaces the settings for future reads; a request in progress keeps its own.
    pub fn replace(&self, settings: Settings) {
        self.current.store(Arc::new(settings));
        self.replaced.send_replace(());
    }

    /// Replaces a part of the settings without losing concurrent replacements. `change` may be called repeatedly.
    pub fn update(&self, change: impl Fn(&Settings) -> Settings) {
        self.current.rcu(|current| change(current));
        self.replaced.send_replace(());
    }

    /// Receiver marked after each replacement.
    pub fn replacements(&self) -> watch::Receiver<()> {
        self.replaced.subscribe()
    }

    /// Current settings, for code outside of requests.
    pub fn latest(&self) -> Arc<Settings> {
        self.current.load_full()
    }

    /// Sets the number of fleet nodes that share the limits.
    pub fn share_limits(&self, nodes: usize) {
        self.current.load().policy.limits.share_among(nodes);
    }

    /// Whether any rule reads `context.session`.
    pub fn reads_session_facts(&self) -> bool {
        let settings = self.current.load();
        settings.policy.rules.as_ref().is_some_and(|rules| rules.reads_session_facts())
    }

    pub fn reader(&self) -> SettingsReader {
        let current = CurrentSettings(Rc::new(self.current.load_full()));
        let cache = Cache::new(Arc::clone(&self.current));
        SettingsReader(RefCell::new(Seen { cache, current }))
    }
}

impl fmt::Debug for SettingsSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SettingsSwap").field(&self.current.load()).finish()
    }
}

/// One thread's access to the settings.
pub struct SettingsReader(RefCell<Seen>);

/// `current` is derived from the latest value of `cache`.
struct Seen {
    cache: Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>,
    current: CurrentSettings,
}

impl SettingsReader {
    pub fn current(&self) -> CurrentSettings {
        let Seen { cache, current } = &mut *self.0.borrow_mut();
        let latest = cache.load();
        if !Arc::ptr_eq(latest, &current.0) {
            *current = CurrentSettings(Rc::new(Arc::clone(latest)));
        }
        current.clone()
    }
}

impl fmt::Debug for SettingsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SettingsReader").field(&*self.current()).finish()
    }
}

/// Snapshot of the settings. Not `Send`; cloned without an atomic operation.
#[derive(Clone, Debug)]
#[expect(
    clippy::redundant_allocation,
    reason = "each request clones it without an atomic operation"
)]
pub struct CurrentSettings(Rc<Arc<Settings>>);

impl CurrentSettings {
    /// Whether both are the same snapshot.
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for CurrentSettings {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_policy::host_check::HostCheck;

    fn settings(tools_limit: usize) -> Settings {
        Settings {
            http_auth: HttpAuth {
                api_key: "the-key-of-the-test".into(),
                require_mcp_auth: false,
                host_check: HostCheck::new(&[], &[]).unwrap(),
            },
            policy: policy::Settings::default(),
            approval: approvals::Config::default(),
            tools_limit,
            streams: StreamTiming::DEFAULT,
            held_timeout: Duration::from_secs(1),
            offered_era: Offered::Auto,
            max_series: 3,
            traces: None,
            max_payload_bytes: 1,
            max_response_bytes: 2,
            receipts: true,
            kept_results: None,
            session_servers: BTreeSet::new(),
            held: MemoryBudget::new(10, 0, []),
            judging_budget: MemoryBudget::new(10, 0, []),
        }
    }

    #[test]
    fn reader_sees_new_settings_and_a_running_request_keeps_its_settings() {
        let swap = SettingsSwap::new(settings(1));
        let reader = swap.reader();
        let (first, again) = (reader.current(), reader.current());
        assert!(first.is(&again), "nothing was replaced");
        swap.replace(settings(2));
        assert_eq!((first.tools_limit, reader.current().tools_limit), (1, 2));
        assert!(!first.is(&reader.current()));
        assert_eq!(swap.reader().current().tools_limit, 2, "a later reader");
    }

    #[test]
    fn concurrent_updates_are_all_applied() {
        let swap = SettingsSwap::new(settings(1));
        let theirs = swap.clone();
        swap.update(|current| {
            if current.max_payload_bytes == 1 {
                let now = theirs.reader().current();
                theirs.replace(Settings { max_payload_bytes: 7, ..(*now).clone() });
            }
            Settings { tools_limit: 9, ..current.clone() }
        });
        let now = swap.reader().current();
        assert_eq!((now.tools_limit, now.max_payload_bytes), (9, 7));
    }

    #[test]
    fn every_thread_sees_new_settings() {
        let swap = SettingsSwap::new(settings(1));
        let (asked, asks) = std::sync::mpsc::channel();
        let (replaced, replaces) = std::sync::mpsc::channel::<()>();
        let theirs = swap.clone();
        let thread = std::thread::spawn(move || {
            let reader = theirs.reader();
            asked.send(reader.current().tools_limit).unwrap();
            replaces.recv().unwrap();
            reader.current().tools_limit
        });
        assert_eq!(asks.recv().unwrap(), 1);
        swap.replace(settings(7));
        replaced.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), 7);
    }

    #[test]
    fn call_returns_memory_to_its_original_budget() {
        let swap = SettingsSwap::new(settings(1));
        let reader = swap.reader();
        let before = reader.current();
        let share = before.held.share("s");
        swap.replace(settings(2));
        drop(share);
        assert_eq!((before.held.used(), reader.current().held.used()), (0, 0));
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        let shown = format!("{:?}", SettingsSwap::new(settings(1)));
        assert!(shown.contains("tools_limit: 1") && !shown.contains("the-key"), "{shown}");
    }
}
