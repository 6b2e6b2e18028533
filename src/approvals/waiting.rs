//! One call that waits in the room: until it is answered, or its time is up, or it is dropped.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::answer::Outcome;
use super::asked::{ApprovalId, AskedCall};
use super::repeats::UserSaid;
use super::room::{Admitted, Claim, Room, RoomPlace};
use crate::policy::{Approved, NotApproved, PendingApproval};

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
        Ok(Self::of(room, room.admit(asked, timeout, asks_itself, None)?))
    }

    /// The same for a call that its client makes again with the answer; `beside` is what then goes to the server beside
    /// the arguments, at most [`MAX_BESIDE_BYTES`](super::MAX_BESIDE_BYTES).
    ///
    /// # Errors
    /// Why it cannot wait.
    pub fn enter_repeated(
        room: &Arc<Room>,
        asked: AskedCall,
        timeout: Duration,
        beside: Bytes,
    ) -> Result<Entered, NotApproved> {
        Ok(Self::of(room, room.admit(asked, timeout, true, Some(beside))?))
    }

    fn of(room: &Arc<Room>, admitted: Admitted) -> Entered {
        match admitted {
            Admitted::Leave(approved, of) => Entered::Leave { approved, of },
            Admitted::Place(place) => {
                Entered::Waiting(Self { room: Arc::clone(room), place, over: false })
            }
        }
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

/// What becomes of a call that its client makes again.
#[derive(Debug)]
pub enum Repeated {
    /// It was decided.
    Over {
        /// How.
        outcome: Outcome,
        /// What stood beside the arguments of the first request.
        beside: Bytes,
    },
    /// The client's user has not answered; another may.
    Waits(RepeatedWait),
    /// The client has brought no answer along, and may be asked again.
    AskAgain,
}

/// A call that was made again, and still waits. Dropped before its end, it is withdrawn.
#[derive(Debug)]
pub struct RepeatedWait {
    room: Arc<Room>,
    number: u64,
    answer: oneshot::Receiver<Outcome>,
    beside: Bytes,
    over: bool,
}

impl RepeatedWait {
    /// A client makes the call of that approval again, and this is what its user `said`.
    ///
    /// # Errors
    /// [`NotApproved::Spent`], [`NotApproved::Changed`].
    pub fn enter(
        room: &Arc<Room>,
        id: &ApprovalId,
        pending: &PendingApproval,
        said: UserSaid,
    ) -> Result<Repeated, NotApproved> {
        Ok(match room.claim(id, pending, said)? {
            Claim::Over(outcome, beside) => Repeated::Over { outcome, beside },
            Claim::AskAgain => Repeated::AskAgain,
            Claim::Waits { number, answer, beside } => {
                let room = Arc::clone(room);
                Repeated::Waits(Self { room, number, answer, beside, over: false })
            }
        })
    }

    /// Waits for the end, which comes with the approval's time at the latest.
    pub async fn outcome(&mut self) -> Outcome {
        let outcome = (&mut self.answer).await.unwrap_or(Outcome::Withdrawn);
        self.over = true;
        outcome
    }

    /// What stood beside the arguments of the first request.
    #[must_use]
    pub fn beside(&self) -> Bytes {
        self.beside.clone()
    }
}

impl Drop for RepeatedWait {
    fn drop(&mut self) {
        if !self.over {
            self.room.withdraw(self.number);
        }
    }
}
