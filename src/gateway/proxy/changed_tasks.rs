//! Changed tasks of one session that its stream has not notified of (MCP 2025-11-25 §Task Status Notification; PRO-43).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum changed tasks of one session that it was not notified of; further ones are dropped.
const MAX_CHANGED: usize = 64;

/// Queue of the sealed ids of changed tasks, each at most once.
#[derive(Debug, Default)]
pub(crate) struct ChangedTasks {
    changed: Mutex<VecDeque<Arc<str>>>,
    noted: Notify,
}

impl ChangedTasks {
    /// Adds a task, unless it waits already.
    pub(super) fn note(&self, sealed: &Arc<str>) {
        let mut changed = self.changed.lock();
        if changed.len() < MAX_CHANGED && !changed.contains(sealed) {
            changed.push_back(Arc::clone(sealed));
            self.noted.notify_one();
        }
    }

    /// Waits for the next changed task; for one reader. Cancel-safe.
    pub(crate) async fn next(&self) -> Arc<str> {
        loop {
            if let Some(sealed) = self.changed.lock().pop_front() {
                return sealed;
            }
            self.noted.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pro_43_changes_that_wait_for_a_session_are_bounded() {
        let changed = ChangedTasks::default();
        for n in 0..2 * MAX_CHANGED {
            changed.note(&n.to_string().into());
        }
        for n in 0..MAX_CHANGED {
            assert_eq!(*changed.next().await, *n.to_string());
        }
        assert!(changed.changed.lock().is_empty());
    }
}
