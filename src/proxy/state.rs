//! What all calls share: the catalog, the servers, the log, the settings, and the bounds over all calls.

use std::sync::Arc;

use super::dropped_members::DroppedMembers;
use super::log_routing::LogRouting;
use super::memory_budget::MemoryBudget;
use super::passthrough::list_cache::ListCache;
use super::validation_pool::ValidationPool;
use crate::activity::Activity;
use crate::catalog::snapshot::Catalog;
use crate::intent;
use crate::mcp::revisions::Offered;
use crate::telemetry::Calls;
use crate::upstream::supervisor::Supervisor;

/// What all calls share. Nothing in it is locked for the length of a call.
#[derive(Debug)]
pub struct Proxy {
    /// Which tools exist.
    pub catalog: Arc<Catalog>,
    /// The servers behind them.
    pub upstreams: Supervisor,
    /// What they list beside tools.
    pub list_cache: ListCache,
    /// Which clients use them, and so get their log messages.
    pub log_routing: LogRouting,
    /// Where every outcome goes.
    pub activity: Activity,
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// `tools_limit`: results of `retrieve_tools` without a limit of their own.
    pub tools_limit: usize,
    /// `offered_era`: which revisions are named to a client that asks.
    pub offered_era: Offered,
    /// Bytes kept of a call's arguments (`activity.max_payload_bytes`).
    pub max_payload_bytes: usize,
    /// Bytes kept of an answer (`activity.max_response_bytes`).
    pub max_response_bytes: usize,
    /// What strict holds, over all calls.
    pub held: MemoryBudget,
    /// What warn has forwarded and not judged yet.
    pub judging_budget: MemoryBudget,
    /// What was warned of that stays behind.
    pub dropped_members: Arc<DroppedMembers>,
    /// Where large documents are validated, so that they delay no other call.
    pub validation_pool: ValidationPool,
    /// What became of calls, in numbers.
    pub calls: Calls,
    /// Random per process: hostile keys are hashed under it.
    pub hash_key: u64,
}
