//! What a room in a fleet has to do with those of other nodes: approvals that stand, and request states that any node reads.

use super::{Room, StandingLeave, now};
use crate::approvals::request_state::StateKey;
use crate::approvals::shared_leaf::{SharedLeave, SharedLeaveKey};

impl Room {
    /// The same on a node of a fleet, for which `mark` stands in the ids: letters and digits.
    #[must_use]
    pub fn of_node(self, mark: &str) -> Self {
        Self { node: Some(mark.into()), ..self }
    }

    /// The same where all nodes know each other's request states: by these keys, each with its name; the first writes.
    #[must_use]
    pub fn with_shared_states(self, keys: impl IntoIterator<Item = ([u8; 4], [u8; 32])>) -> Self {
        Self { state_key: StateKey::shared(keys), ..self }
    }

    /// What stands for this node in the ids of its approvals; `None` without a fleet.
    #[must_use]
    pub fn node_mark(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Waits until approvals that stand are others than when this was last waited for, but for those whose time is up.
    pub async fn leaves_changed(&self) {
        self.leaves_changed.notified().await;
    }

    /// Approvals that stand, and those that were ended since they were last [told](Self::leaves_told).
    #[must_use]
    pub fn leaves(&self) -> (Vec<SharedLeave>, Vec<SharedLeaveKey>) {
        let mut state = self.state.lock();
        let standing = state.leaves.all(now());
        let ended = state.leaves.ended();
        (standing.iter().map(StandingLeave::shared).collect(), ended)
    }

    /// The one of that approval, if it was ended and other nodes do not know it yet.
    #[must_use]
    pub fn untold_end(&self, id: &str) -> Option<SharedLeaveKey> {
        self.state.lock().leaves.untold(id).map(|leave| leave.shared().key())
    }

    /// Other nodes know that these were ended, or there are none.
    pub fn leaves_told(&self, ended: &[SharedLeaveKey]) {
        self.state.lock().leaves.told(ended);
    }

    /// From now on there are also those of other nodes, but for those that `has_ended` says were denied after all. At most
    /// [`MAX_SHARED_LEAVES`](crate::approvals::MAX_SHARED_LEAVES) stand in all: of more, those that are given first. One that
    /// would stand for longer than any may is passed over, which is told once.
    pub fn take_over(
        &self,
        leaves: impl IntoIterator<Item = SharedLeave>,
        has_ended: impl Fn(&SharedLeaveKey) -> bool,
    ) {
        let passed_over = self.state.lock().leaves.take_over(leaves, has_ended, now());
        for approval in passed_over {
            tracing::warn!(
                %approval,
                "an approval of another node would stand longer than any may, and does not count here: a clock is wrong"
            );
        }
    }
}
