//! The facts of a fleet as a node starts with them: what it remembers, and what its fleet says, before anybody is served.

use std::time::{Duration, Instant};

use tokio::runtime::LocalRuntime;

use super::fleet_tokens;
use super::start_error::StartError;
use crate::fleet::bucket::{Bucket, BucketError};
use crate::fleet::facts::{FactExchangeSettings, FleetFacts, MemoryError};
use crate::identity::{Identity, TokenFile};

/// Most time that a node which starts waits for what its fleet says; then it starts with what it remembers.
const FIRST_ROUND: Duration = Duration::from_secs(3);
/// The same of one that has never heard it, and would serve by nothing that its fleet has said: then it does not start.
const FIRST_HEARING: Duration = Duration::from_secs(15);
/// Most time for it as long as more is read: what a large fleet says is read in many rounds.
const LONGEST_HEARING: Duration = Duration::from_secs(60);
/// The pause between two attempts of it.
const HEAR_AGAIN: Duration = Duration::from_millis(500);

/// The facts of a node that starts, and the store that they are exchanged over.
#[derive(Clone, Debug)]
pub(super) struct SharedFacts {
    pub(super) facts: FleetFacts,
    pub(super) bucket: Bucket,
}

impl SharedFacts {
    /// Reads what is remembered and, if the store answers in time, what the fleet says, and brings the tokens in `tokens` in
    /// step: what was revoked elsewhere is not good here for a moment. Blocks.
    ///
    /// # Errors
    ///
    /// [`StartError::Facts`]; [`StartError::Unheard`]: the node is new, and cannot read what its fleet says.
    pub(super) fn open(
        settings: FactExchangeSettings,
        bucket: Bucket,
        tokens: TokenFile,
        runtime: &LocalRuntime,
    ) -> Result<Self, StartError> {
        let failed = |error: MemoryError| StartError::Facts(error.to_string());
        let facts = FleetFacts::open(settings).map_err(failed)?;
        let identity = Identity::new(tokens, None);
        // What was changed here while no process ran is told before what others say is known.
        step_tokens(&identity, &facts);
        if !facts.has_heard() {
            runtime.block_on(hear(&facts, &bucket))?;
            step_tokens(&identity, &facts);
            return Ok(Self { facts, bucket });
        }
        // One round reads so many objects and no more.
        let rounds = async {
            loop {
                facts.round(&bucket).await?;
                if !facts.is_behind() {
                    return Ok::<_, BucketError>(());
                }
            }
        };
        match runtime.block_on(async { tokio::time::timeout(FIRST_ROUND, rounds).await }) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "this node starts with what it remembers of its fleet");
            }
            Err(_) => tracing::warn!(
                "this node starts with what it remembers of its fleet, and has not read all that it says: the store is slow"
            ),
        }
        step_tokens(&identity, &facts);
        Ok(Self { facts, bucket })
    }
}

/// Reads what the fleet says for the first time, whole: a part of it may lack what was revoked, and which config it runs.
async fn hear(facts: &FleetFacts, bucket: &Bucket) -> Result<(), StartError> {
    let begun = Instant::now();
    let (mut why, mut last_read) = ("the store does not answer".to_owned(), begun);
    loop {
        let in_all = LONGEST_HEARING.saturating_sub(begun.elapsed());
        let limit = FIRST_HEARING.saturating_sub(last_read.elapsed()).min(in_all);
        let Ok(round) = tokio::time::timeout(limit, facts.round(bucket)).await else {
            return Err(StartError::Unheard(why));
        };
        if facts.has_heard() {
            return Ok(());
        }
        let went_well = round.is_ok();
        let unheard = || facts.unheard().unwrap_or_else(|| "it was not read".to_owned());
        why = round.map_or_else(|error| error.to_string(), |()| unheard());
        if went_well && facts.is_behind() {
            // As many were read as one round reads; the next one goes on with it.
            last_read = Instant::now();
        } else {
            tokio::time::sleep(HEAR_AGAIN).await;
        }
    }
}

/// Brings the tokens in step; what keeps them from it is told.
pub(super) fn step_tokens(identity: &Identity, facts: &FleetFacts) {
    if let Err(error) = fleet_tokens::step(identity, facts) {
        tracing::error!(%error, "the agent tokens are not in step with the fleet");
    }
}
