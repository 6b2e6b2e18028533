//! What of the log waits for the store: how much it is, for how long, and what the log is told of it, from the node's start on,
//! whether or not it has its place, and also while the store is asked something. Seals nothing.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::fleet_node::FleetNode;
use super::super::sealing::{ChainPosition, Overdue, SealLimits, SealState};
use crate::activity::{Activity, QueryError};

/// The longest that replies wait for the store, in milliseconds; then `activity.on_failure` decides. Not longer than a reply
/// waits for its record.
pub(super) const REPLY_MS: u64 = 10_000;
/// How often the log is told how things are while nothing else happens.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most canonical bytes that are measured at a look, one record aside.
const MEASURED_AT_ONCE: u64 = 64 << 20;

/// What waits.
pub(super) struct Backlog {
    pub(super) state: SealState,
    activity: Activity,
    node: Arc<FleetNode>,
    /// The store, for people.
    store: String,
    /// Why the node has no place in its fleet, and needs somebody to look: nothing is kept for the store then.
    refused: Option<String>,
    base: Instant,
}

impl Backlog {
    /// Of a node whose chain is known to have come so far in the store.
    pub(super) fn new(
        limits: SealLimits,
        stored: ChainPosition,
        activity: Activity,
        node: Arc<FleetNode>,
        store: String,
    ) -> Self {
        let state = SealState::new(limits, stored);
        let mut backlog =
            Self { state, activity, node, store, refused: None, base: Instant::now() };
        let now = backlog.now();
        backlog.state.committed(backlog.activity.durable_seq(), now);
        backlog.tell(now);
        backlog
    }

    /// The clock of [`SealState`].
    pub(super) fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    /// The node has its place, and its chain has come so far.
    pub(super) fn placed(&mut self, stored: ChainPosition) {
        self.refused = None;
        self.node.gauges.reached();
        self.state.placed(stored);
        self.tell(self.now());
    }

    /// The node must not take its place.
    pub(super) fn refused(&mut self, why: String) {
        self.refused = Some(why);
        self.tell(self.now());
    }

    /// Sees what was committed, and tells the log whether it can go on to keep what is not stored.
    pub(super) fn look(&mut self) {
        let now = self.now();
        self.state.committed(self.activity.durable_seq(), now);
        self.tell(now);
    }

    /// The same, once it was measured how much waits: where it may be for long.
    pub(super) async fn look_closely(&mut self) {
        let (activity, from) = (self.activity.clone(), self.state.measured_until() + 1);
        let until = activity.durable_seq();
        if until >= from {
            let measured = tokio::task::spawn_blocking(move || measure(&activity, from, until));
            match measured.await {
                Ok(Ok((until, bytes))) => self.state.measured(until, bytes),
                // What is not measured is estimated.
                Ok(Err(error)) => tracing::debug!(%error, "what waits cannot be measured"),
                Err(error) => tracing::debug!(%error, "what waits cannot be measured"),
            }
        }
        self.look();
    }

    /// What `work` gives; looks closely every now and then until it does.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // The work goes on meanwhile.
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.look_closely() => {}
            }
        }
    }

    fn tell(&self, now: u64) {
        let (stored, record_bytes) = (self.state.stored().seq, self.state.record_bytes());
        self.node.gauges.stands(stored, record_bytes, self.state.waits(now));
        let why = self.refused.clone().or_else(|| Some(self.words(self.state.overdue(now)?)));
        self.activity.withhold(why);
    }

    fn words(&self, overdue: Overdue) -> String {
        let (records, store) = (self.state.behind(), &self.store);
        match overdue {
            Overdue::Backlog => {
                format!(
                    "{records} records wait for {store}: that is more than cluster.backlog_bytes"
                )
            }
            Overdue::Replies => {
                format!("{store} has taken nothing for {} s", REPLY_MS / 1000)
            }
        }
    }
}

/// The last record that was measured, of `from` to `until`, and how many canonical bytes they have. Blocks.
fn measure(activity: &Activity, from: u64, until: u64) -> Result<(u64, u64), QueryError> {
    let (mut last, mut bytes) = (from - 1, 0);
    activity.stored()?.chained_from(from, |record| {
        if record.seq > until || bytes >= MEASURED_AT_ONCE {
            return ControlFlow::Break(());
        }
        last = record.seq;
        bytes += record.canonical_bytes();
        ControlFlow::Continue(())
    })?;
    Ok((last, bytes))
}
