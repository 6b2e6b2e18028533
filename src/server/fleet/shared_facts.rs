//! Shared state of a fleet at the startup of a node: the local copy and the current state in the store, both read before requests are
//! served.

use std::time::{Duration, Instant};

use tokio::runtime::LocalRuntime;

use super::tokens;
use crate::startup::StartError;
use mcpproxy_fleet::bucket::{Bucket, BucketError};
use mcpproxy_fleet::facts::{FactExchangeSettings, FleetFacts, MemoryError};
use mcpproxy_policy::identity::{Identity, TokenFile};

/// Timeout for reading the store at startup; after it, the node starts with its local copy.
const FIRST_ROUND: Duration = Duration::from_secs(3);
/// Timeout for reading the store at startup without a local copy; after it, the node does not start.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for the first read while it makes progress: the state of a large fleet takes many rounds.
const MAX_FIRST_READ_TIME: Duration = Duration::from_secs(60);
/// Pause between attempts of the first read.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The shared state of a node, and the store through which it is exchanged.
#[derive(Clone, Debug)]
pub(super) struct SharedFacts {
    pub(super) facts: FleetFacts,
    pub(super) bucket: Bucket,
}

impl SharedFacts {
    /// Reads the local copy and, within the timeout, the state in the store, and synchronizes the agent tokens, so that a token
    /// revoked elsewhere is never accepted here. [`StartError::FactsUnavailable`] if there is no local copy and the store cannot be read.
    /// Blocks.
    pub(super) fn open(
        settings: FactExchangeSettings,
        bucket: Bucket,
        tokens: TokenFile,
        runtime: &LocalRuntime,
    ) -> Result<Self, StartError> {
        let failed = |error: MemoryError| StartError::Facts(error.to_string());
        let facts = FleetFacts::open(settings).map_err(failed)?;
        let identity = Identity::new(tokens, None);
        // Changes made here while no process was running are shared before changes of others are read.
        step_tokens(&identity, &facts);
        if !facts.has_read_once() {
            runtime.block_on(first_read(&facts, &bucket))?;
            step_tokens(&identity, &facts);
            return Ok(Self { facts, bucket });
        }
        // The number of objects read per round is limited.
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
                tracing::warn!(%error, "starting with the local copy of the fleet's shared state");
            }
            Err(_) => tracing::warn!(
                "starting with an incomplete read of the fleet's shared state: the store is slow"
            ),
        }
        step_tokens(&identity, &facts);
        Ok(Self { facts, bucket })
    }
}

/// Reads the complete shared state for the first time: a partial state might lack revocations or the current config.
async fn first_read(facts: &FleetFacts, bucket: &Bucket) -> Result<(), StartError> {
    let begun = Instant::now();
    let (mut why, mut last_read) = ("the store does not answer".to_owned(), begun);
    loop {
        let in_all = MAX_FIRST_READ_TIME.saturating_sub(begun.elapsed());
        let limit = FIRST_READ_TIMEOUT.saturating_sub(last_read.elapsed()).min(in_all);
        let Ok(round) = tokio::time::timeout(limit, facts.round(bucket)).await else {
            return Err(StartError::FactsUnavailable(why));
        };
        if facts.has_read_once() {
            return Ok(());
        }
        let went_well = round.is_ok();
        let unread = || facts.unread_reason().unwrap_or_else(|| "no complete read".to_owned());
        why = round.map_or_else(|error| error.to_string(), |()| unread());
        if went_well && facts.is_behind() {
            // The round reached its limit; the next round continues.
            last_read = Instant::now();
        } else {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Synchronizes the agent tokens with the fleet, and logs any failure.
pub(super) fn step_tokens(identity: &Identity, facts: &FleetFacts) {
    if let Err(error) = tokens::step(identity, facts) {
        tracing::error!(%error, "cannot synchronize the agent tokens with the fleet");
    }
}
