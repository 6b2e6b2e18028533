//! The door between REST and the task that has the fleet's config: wishes for another one, and what comes of them.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{mpsc, oneshot};

use super::config_door::ReloadRefused;
use super::response::ApiError;
use crate::fleet::facts::{ConfigVersion, FleetFacts};
use crate::policy::Principal;

/// Wishes that wait for those before them.
const QUEUE: usize = 4;
/// Longest wait for the answer to a wish.
const WAIT: Duration = Duration::from_secs(60);

/// What is wished of the task that has the fleet's config.
#[derive(Debug)]
pub enum FleetConfigWish {
    /// To have another one, as its text is sent.
    Apply(Bytes, FleetConfigAsker),
    /// To have the one before again.
    RollBack(FleetConfigAsker),
}

/// Who wishes it.
#[derive(Debug)]
pub struct FleetConfigAsker {
    /// By name.
    pub principal: Box<str>,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<ConfigVersion, FleetConfigRefused>>,
}

/// Why the fleet's config stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetConfigRefused {
    /// It cannot be used.
    Unusable(ReloadRefused),
    /// There is none before it.
    NothingBefore,
    /// It cannot be stored or told.
    Failed(String),
}

/// Where wishes go. Clones share it.
#[derive(Clone, Debug)]
pub struct FleetConfigDoor {
    wishes: mpsc::Sender<FleetConfigWish>,
    facts: FleetFacts,
}

impl FleetConfigDoor {
    /// The door, and where the wishes come out.
    #[must_use]
    pub fn new(facts: FleetFacts) -> (Self, mpsc::Receiver<FleetConfigWish>) {
        let (wishes, wished) = mpsc::channel(QUEUE);
        (Self { wishes, facts }, wished)
    }

    /// What the fleet shares, as this node knows it.
    pub(super) fn facts(&self) -> &FleetFacts {
        &self.facts
    }

    /// Hands a wish over, and waits for the answer.
    pub(super) async fn wish(
        &self,
        principal: &Principal,
        wish: impl FnOnce(FleetConfigAsker) -> FleetConfigWish,
    ) -> Result<Result<ConfigVersion, FleetConfigRefused>, ApiError> {
        let unavailable = |text: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        let (answer, answered) = oneshot::channel();
        let asker = FleetConfigAsker { principal: principal.id().into(), answer };
        let sent = self.wishes.try_send(wish(asker));
        sent.map_err(|_| unavailable("Too many wait to change the fleet's config"))?;
        let answered = tokio::time::timeout(WAIT, answered).await;
        answered.ok().and_then(Result::ok).ok_or_else(|| {
            unavailable(
                "It is not known whether the fleet's config has changed: see /api/v1/fleet/config",
            )
        })
    }
}
