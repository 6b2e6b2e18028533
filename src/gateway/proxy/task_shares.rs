//! Shares of the principals in the tasks whose changes are followed (PRO-43).

use std::collections::HashMap;
use std::sync::Arc;

use mcpproxy_policy::Principal;
use parking_lot::Mutex;

/// Maximum followed tasks of one principal, over all its subscriptions; more are not agreed to.
pub(super) const MAX_TASKS_PER_PRINCIPAL: usize = 256;

/// Followed tasks of all principals.
#[derive(Debug, Default)]
pub struct TaskShares(Mutex<HashMap<Principal, usize>>);

/// One followed task of a principal, until dropped.
#[derive(Debug)]
pub(super) struct TaskShare {
    all: Arc<TaskShares>,
    of: Principal,
}

impl TaskShares {
    /// Counts one more; `None` if the principal has no share left.
    pub(super) fn take(self: &Arc<Self>, principal: &Principal) -> Option<TaskShare> {
        let mut all = self.0.lock();
        let count = all.get(principal).copied().unwrap_or_default();
        if count >= MAX_TASKS_PER_PRINCIPAL {
            return None;
        }
        all.insert(principal.clone(), count + 1);
        Some(TaskShare { all: Arc::clone(self), of: principal.clone() })
    }
}

impl Drop for TaskShare {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        match all.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(all.remove(&self.of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_each_principal_has_a_share_of_followed_tasks() {
        let shares = Arc::<TaskShares>::default();
        let other = Principal::certificate("other");
        let mut taken: Vec<_> =
            std::iter::from_fn(|| shares.take(&Principal::Anonymous)).take(1000).collect();
        assert_eq!(taken.len(), MAX_TASKS_PER_PRINCIPAL);
        taken.extend(shares.take(&other));
        assert_eq!(taken.len(), MAX_TASKS_PER_PRINCIPAL + 1, "others have their own");
        drop(taken.pop());
        assert_eq!(shares.0.lock().len(), 1);
        drop(taken.pop());
        taken.extend(shares.take(&Principal::Anonymous));
        assert_eq!(taken.len(), MAX_TASKS_PER_PRINCIPAL);
        drop(taken);
        assert!(shares.0.lock().is_empty());
    }
}
