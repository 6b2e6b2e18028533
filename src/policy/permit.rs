//! Leave to send one request, and the wait for its turn.

use std::time::Duration;

use super::access::Access;
use super::denial::{Denial, Warning};
use super::limits::{BreakerChange, Entrance, Occupied, Queue, ServerOutcome};
use super::principal::Principal;
use super::settings::Settings;

/// A request that every check has let pass, and that the limits are still to be asked about.
#[derive(Clone, Debug)]
pub(super) struct Cleared {
    pub(super) principal: Principal,
    pub(super) access: Access,
    pub(super) warnings: Vec<Warning>,
    /// The rules that permit it, or left it to a person.
    pub(super) rules: Vec<Box<str>>,
}

/// Leave to send one request. Only [`admit`](super::admit) makes one, by itself or of a
/// [`PendingApproval`](super::PendingApproval) or a [`Queued`], and the upstream asks for one. It holds what the request
/// occupies under the limits, and gives it back when it is dropped, however that comes about.
#[derive(Debug)]
pub struct Permit {
    cleared: Cleared,
    occupied: Occupied,
}

/// A request that would go out, had it a place under the limits. It has a place in a queue until it is dropped.
#[derive(Debug)]
pub struct Queued {
    cleared: Cleared,
    queue: Queue,
}

/// What the limits say.
#[derive(Debug)]
pub enum Leave {
    /// It may go out.
    Permit(Permit),
    /// It waits for its turn.
    Queued(Box<Queued>),
}

impl Cleared {
    /// Asks the limits, which come last.
    ///
    /// # Errors
    /// [`Denial::Limit`].
    pub(super) fn leave(self, settings: &Settings) -> Result<Leave, Denial> {
        Ok(match settings.limits.enter(&self.principal, &self.access)? {
            Entrance::Free(occupied) => Leave::Permit(Permit { cleared: self, occupied }),
            Entrance::Queued(queue) => Leave::Queued(Box::new(Queued { cleared: self, queue })),
        })
    }
}

impl Permit {
    /// On whose behalf the request goes out.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.cleared.principal
    }

    /// What may be asked, of which server.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// What is to be logged and recorded about this request, one decision each (ACT-1).
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.cleared.warnings
    }

    /// The rules that permit it, or left it to a person; empty where none had to.
    #[must_use]
    pub fn rules(&self) -> &[Box<str>] {
        &self.cleared.rules
    }

    /// The same place for what was cleared once more.
    pub(super) fn renewed(self, cleared: Cleared) -> Self {
        Self { cleared, ..self }
    }

    /// Gives back what the request occupies: its answer has come, or never will. What came of it is told to the
    /// server's breaker; `None` where that says nothing about the server.
    pub fn settle(&mut self, outcome: Option<ServerOutcome>) -> Option<BreakerChange> {
        match outcome {
            Some(outcome) => self.occupied.settle(outcome),
            None => {
                self.occupied.release();
                None
            }
        }
    }
}

impl Queued {
    /// What is asked, of which server.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.cleared.access
    }

    /// Waits until it may go out. Given up and asked again, it waits at the end of the queue.
    ///
    /// # Errors
    /// It may not, after all.
    pub async fn come(&mut self) -> Result<Permit, Denial> {
        let Cleared { principal, access, .. } = &self.cleared;
        let occupied = self.queue.come(principal, access).await?;
        Ok(Permit { cleared: self.cleared.clone(), occupied })
    }

    /// The refusal of one that has waited so long in vain.
    #[must_use]
    pub fn late(&self, waited: Duration) -> Denial {
        let Cleared { principal, access, .. } = &self.cleared;
        self.queue.late(principal, access, waited).into()
    }
}
