//! One call that waits in the room: until it is answered, or its time is up, or it is dropped.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::answer::Outcome;
use super::asked::{ApprovalId, AskedCall};
use super::room::{Admitted, Room, RoomPlace};
use crate::policy::{Approved, NotApproved};

/// What becomes of a call that asks for approval.
#[derive(Debug)]
pub enum Entered {
    /// It waits.
    Waiting(WaitingApproval),
    /// An approval that stands lets it go.
    Leave {
        /// What lets it go.
        approved: Approved,
        /// The approval that was given once.
        of: ApprovalId,
    },
}

/// A call that waits. Dropped before its end, it is withdrawn.
#[derive(Debug)]
pub struct WaitingApproval {
    room: Arc<Room>,
    place: RoomPlace,
    over: bool,
}

impl WaitingApproval {
    /// Asks for `asked`, for as long as `timeout`; `asks_itself` says that the client that calls can be asked, whoever
    /// else may be.
    ///
    /// # Errors
    /// Why it cannot wait.
    pub fn enter(
        room: &Arc<Room>,
        asked: AskedCall,
        timeout: Duration,
        asks_itself: bool,
    ) -> Result<Entered, NotApproved> {
        Ok(match room.admit(asked, timeout, asks_itself)? {
            Admitted::Leave(approved, of) => Entered::Leave { approved, of },
            Admitted::Place(place) => {
                Entered::Waiting(Self { room: Arc::clone(room), place, over: false })
            }
        })
    }

    /// Which approval it is.
    #[must_use]
    pub fn id(&self) -> &ApprovalId {
        &self.place.id
    }

    /// When the time is up.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.place.until
    }

    /// Waits for the end. Can be dropped and asked again.
    pub async fn outcome(&mut self) -> Outcome {
        let deadline = tokio::time::Instant::from_std(self.place.deadline);
        let outcome = tokio::select! {
            biased;
            answered = &mut self.place.answer => answered.unwrap_or(Outcome::Ending),
            () = tokio::time::sleep_until(deadline) => match self.room.expire(self.place.number) {
                Some(outcome) => outcome,
                None => self.arrived(),
            },
        };
        self.over = true;
        outcome
    }

    /// Waits no longer: what was answered meanwhile, or that it is withdrawn.
    pub fn abandon(&mut self) -> Outcome {
        self.over = true;
        match self.room.withdraw(self.place.number) {
            Some(outcome) => outcome,
            None => self.arrived(),
        }
    }

    /// The answer of a wait that another has ended: it is sent in the same moment.
    fn arrived(&mut self) -> Outcome {
        match self.place.answer.try_recv() {
            Ok(outcome) => outcome,
            Err(oneshot::error::TryRecvError::Empty | oneshot::error::TryRecvError::Closed) => {
                Outcome::Withdrawn
            }
        }
    }
}

impl Drop for WaitingApproval {
    fn drop(&mut self) {
        if !self.over {
            self.room.withdraw(self.place.number);
        }
    }
}
