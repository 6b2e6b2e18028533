//! Pending cancellations of tasks that their clients do not receive (PRO-43), per worker.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use thiserror::Error;

/// Maximum number of pending cancellations at one server.
const MAX_AT_SERVER: usize = 64;
/// Maximum number of pending cancellations at all servers.
const MAX_PENDING: usize = 256;

/// Number of pending cancellations by server.
#[derive(Debug, Default)]
pub(crate) struct PendingCancellations(RefCell<BTreeMap<Arc<str>, usize>>);

/// Pending cancellation, counted until dropped.
#[derive(Debug)]
pub(crate) struct PendingCancellation {
    all: Rc<PendingCancellations>,
    server: Arc<str>,
}

/// Reason why a task is not canceled at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotCanceled {
    #[error("{MAX_AT_SERVER} cancellations of tasks are pending at the server, which is the limit")]
    ServerFull,
    #[error("{MAX_PENDING} cancellations of tasks are pending, which is the limit")]
    Full,
    #[error("mcpproxy is shutting down")]
    ShuttingDown,
}

impl PendingCancellations {
    /// Counts one more cancellation at this server.
    pub(crate) fn enter(
        self: &Rc<Self>,
        server: &Arc<str>,
    ) -> Result<PendingCancellation, NotCanceled> {
        let mut pending = self.0.borrow_mut();
        if pending.values().sum::<usize>() >= MAX_PENDING {
            return Err(NotCanceled::Full);
        }
        let count = pending.entry(Arc::clone(server)).or_default();
        if *count >= MAX_AT_SERVER {
            return Err(NotCanceled::ServerFull);
        }
        *count += 1;
        Ok(PendingCancellation { all: Rc::clone(self), server: Arc::clone(server) })
    }
}

impl Drop for PendingCancellation {
    fn drop(&mut self) {
        let mut pending = self.all.0.borrow_mut();
        match pending.get_mut(&self.server) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(pending.remove(&self.server)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_43_pending_cancellations_are_bounded_per_server_and_in_total() {
        let all = Rc::<PendingCancellations>::default();
        let fill = |server: &str| {
            let server = Arc::from(server);
            let mut taken = Vec::new();
            let refused = loop {
                match all.enter(&server) {
                    Ok(one) => taken.push(one),
                    Err(refused) => break refused,
                }
            };
            (taken, refused)
        };
        let (mut first, refused) = fill("a");
        assert_eq!((first.len(), refused), (MAX_AT_SERVER, NotCanceled::ServerFull));
        drop(first.pop());
        assert_eq!(fill("a").0.len(), 1, "it is free again");
        let others: Vec<_> = (0..MAX_PENDING).map(|n| fill(&n.to_string())).collect();
        let count: usize = others.iter().map(|(taken, _)| taken.len()).sum();
        assert_eq!(count + first.len(), MAX_PENDING);
        assert_eq!(others.last().map(|(_, refused)| *refused), Some(NotCanceled::Full));
        drop((first, others));
        assert!(all.0.borrow().is_empty());
    }
}
