//! What the config decides of requests: one immutable value behind one swap.
//!
//! ```text
//! config::Config ─ settings() ─▶ Settings ─▶ SettingsSwap ─┬─ SettingsReader of worker 0 ─▶ CurrentSettings
//!                                                          └─ SettingsReader of worker 1 ─▶ CurrentSettings
//! ```
//!
//! Whoever needs a value asks for the settings where it needs them ([`Worker::settings`](super::Worker::settings))
//! and copies nothing out that outlives the request. A worker asks without a lock or an atomic step: it reads one
//! pointer that is written at a swap only. What is *made of* the config (servers' tasks, the catalog's
//! snapshot, the log) does not ask; it is told of a change by whoever swaps.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use super::memory_budget::MemoryBudget;
use crate::approvals;
use crate::mcp::revisions::Offered;
use crate::policy::{self, HttpAuth};
use crate::results::StoreBounds;
use crate::telemetry::Sampling;

/// What requests are decided by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What lets an HTTP request in.
    pub http_auth: HttpAuth,
    /// What admission decides by.
    pub policy: policy::Settings,
    /// `approval`: how a person is asked. Its webhook is the assembly's.
    pub approval: approvals::Config,
    /// `tools_limit`: results of `retrieve_tools` that states no limit of its own.
    pub tools_limit: usize,
    /// `offered_era`: what a client is told that asks which revisions there are.
    pub offered_era: Offered,
    /// `telemetry.max_series`: series of calls by tool that are named to whoever asks for numbers.
    pub max_series: usize,
    /// `telemetry.traces_ratio`: which traces are recorded; `None` where nobody wants them.
    pub traces: Option<Sampling>,
    /// Most bytes kept of a call's arguments (`activity.max_payload_bytes`).
    pub max_payload_bytes: usize,
    /// Most bytes kept of an answer (`activity.max_response_bytes`).
    pub max_response_bytes: usize,
    /// Whether records of calls have a receipt (`activity.receipts`).
    pub receipts: bool,
    /// `result_limit`: the bounds of what is kept of results that are too long for an agent; `None` where no tool's
    /// are.
    pub kept_results: Option<StoreBounds>,
    /// Servers whose calls of one session are sent by one node of a fleet (`affinity`).
    pub session_servers: BTreeSet<Arc<str>>,
    /// The memory that strict holds, over all calls. A budget is shared by all who hold these settings; calls that
    /// were begun under earlier ones give back what they took to theirs.
    pub held: MemoryBudget,
    /// The memory of what warn has forwarded and not judged yet.
    pub judging_budget: MemoryBudget,
}

/// The settings of this moment. Clones share the swap.
#[derive(Clone)]
pub struct SettingsSwap(Arc<ArcSwap<Settings>>);

impl SettingsSwap {
    /// These, until they are replaced.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(settings)))
    }

    /// From now on every request is decided by `settings`; one under way keeps what it has asked for.
    pub fn replace(&self, settings: Settings) {
        self.0.store(Arc::new(settings));
    }

    /// The same with a part of them replaced; what others replace at the same time stays replaced. `change` may be asked
    /// more than once.
    pub fn update(&self, change: impl Fn(&Settings) -> Settings) {
        self.0.rcu(|current| change(current));
    }

    /// So many nodes of a fleet share the limits from now on.
    pub fn share_limits(&self, nodes: usize) {
        self.0.load().policy.limits.share_among(nodes);
    }

    /// A reader for one thread.
    #[must_use]
    pub fn reader(&self) -> SettingsReader {
        let current = CurrentSettings(Rc::new(self.0.load_full()));
        SettingsReader(RefCell::new(Seen { cache: Cache::new(Arc::clone(&self.0)), current }))
    }
}

impl fmt::Debug for SettingsSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SettingsSwap").field(&self.0.load()).finish()
    }
}

/// What one thread reads the settings through.
pub struct SettingsReader(RefCell<Seen>);

/// What a thread has seen of the swap: `current` is made of the latest value of `cache`.
struct Seen {
    cache: Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>,
    current: CurrentSettings,
}

impl SettingsReader {
    /// The settings of this moment.
    #[must_use]
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

/// The settings of one moment. Stays on its thread, where it is cloned without an atomic step.
#[derive(Clone, Debug)]
#[expect(
    clippy::redundant_allocation,
    reason = "each request has one, made without an atomic step"
)]
pub struct CurrentSettings(Rc<Arc<Settings>>);

impl CurrentSettings {
    /// True if nothing was replaced between the two.
    #[must_use]
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
    use crate::policy::host_check::HostCheck;

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
    fn whoever_asks_after_a_swap_has_the_new_settings_and_a_request_keeps_its_own() {
        let swap = SettingsSwap::new(settings(1));
        let reader = swap.reader();
        let (first, again) = (reader.current(), reader.current());
        assert!(first.is(&again), "nothing was replaced");
        swap.replace(settings(2));
        assert_eq!((first.tools_limit, reader.current().tools_limit), (1, 2));
        assert!(!first.is(&reader.current()));
        assert_eq!(swap.reader().current().tools_limit, 2, "a reader that comes later");
    }

    #[test]
    fn parts_that_are_replaced_at_the_same_time_are_all_replaced() {
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
    fn every_thread_sees_a_swap() {
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
    fn what_a_call_took_goes_back_to_the_budget_it_was_taken_from() {
        let swap = SettingsSwap::new(settings(1));
        let reader = swap.reader();
        let before = reader.current();
        let share = before.held.share("s");
        swap.replace(settings(2));
        drop(share);
        assert_eq!((before.held.used(), reader.current().held.used()), (0, 0));
    }

    #[test]
    fn no_key_is_shown() {
        let shown = format!("{:?}", SettingsSwap::new(settings(1)));
        assert!(shown.contains("tools_limit: 1") && !shown.contains("the-key"), "{shown}");
    }
}
