//! The exchange of a node that runs: round after round, until the node ends. A round follows a change at once, and the one before
//! by [`LOOK_EVERY`]; behind one that failed the pauses grow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::FleetFacts;
use crate::fleet::bucket::Bucket;
use crate::fleet::config::NodeName;
use crate::fleet::living_nodes::{LivingNodes, NodeState};
use crate::io::background_task::BackgroundTask;

/// The pause between two rounds. With a put and a read it is below two seconds from one node to another.
const LOOK_EVERY: Duration = Duration::from_millis(750);
/// The shortest pause, however much changes.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// The longest, behind rounds that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Most time for what is still to be said when the node ends.
pub const END_LIMIT: Duration = Duration::from_secs(5);

/// The exchange of a node that runs.
#[derive(Debug)]
pub struct FactExchange(BackgroundTask);

impl FactExchange {
    /// Starts to read and put. `living` says who lives now: what these nodes say is read before what anybody can have put there.
    #[must_use]
    pub fn start(
        facts: FleetFacts,
        bucket: Bucket,
        living: impl Fn() -> Arc<LivingNodes> + Send + 'static,
        runtime: &Handle,
    ) -> Self {
        Self(BackgroundTask::start(runtime, |ending| run(facts, bucket, living, ending)))
    }

    /// Puts what is still to be said, within a bound if it is `patient`, else not at all.
    pub async fn end(self, patient: bool) {
        let limit = if patient { END_LIMIT } else { Duration::ZERO };
        if !self.0.end_within(limit).await {
            tracing::warn!("what this node has to tell its fleet is put at its next start");
        }
    }
}

async fn run(
    facts: FleetFacts,
    bucket: Bucket,
    living: impl Fn() -> Arc<LivingNodes> + Send + 'static,
    mut ending: watch::Receiver<bool>,
) {
    let mut pause = LOOK_EVERY;
    loop {
        let began = Instant::now();
        let ends = *ending.borrow();
        let now = living();
        let lives = move |node: &NodeName| {
            now.get(node.as_str()).is_some_and(|it| it.state == NodeState::Living)
        };
        let went_well = facts.told_round(&bucket, lives).await;
        if ends {
            return;
        }
        pause = if went_well { LOOK_EVERY } else { (pause * 2).min(LONGEST_PAUSE) };
        let next = tokio::time::Instant::from_std(began + pause);
        tokio::time::sleep(LEAST_PAUSE).await;
        if went_well && facts.is_behind() && !*ending.borrow() {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // A store that is away is not asked more often for that.
            () = facts.0.wake.notified(), if went_well => {}
            _ = ending.wait_for(|ends| *ends) => {}
        }
    }
}
