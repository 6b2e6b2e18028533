//! What all calls share: the catalog, the servers, the log and the settings.

use std::sync::Arc;

use super::body_room::RequestBodies;
use super::dropped_members::DroppedMembers;
use super::log_routing::LogRouting;
use super::overview::OverviewCache;
use super::passthrough::list_cache::ListCache;
use super::result_pool::ResultPool;
use super::session_facts::SessionlessFacts;
use super::settings::SettingsSwap;
use super::validation_pool::ValidationPool;
use crate::activity::Activity;
use crate::approvals::Room;
use crate::catalog::Catalog;
use crate::embeddings::MeaningRoom;
use crate::fleet::FleetNode;
use crate::fleet::sealed_mark::NodeTag;
use crate::identity::Identity;
use crate::results::ResultStore;
use crate::telemetry::{Calls, SpanQueue};
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
    /// What queries for tools mean, where somebody says that.
    pub meaning: Arc<MeaningRoom>,
    /// What agents are told of them beforehand.
    pub overview: OverviewCache,
    /// Which clients use them, and so get their log messages.
    pub log_routing: LogRouting,
    /// Where calls wait for a person.
    pub approvals: Arc<Room>,
    /// Where every outcome goes.
    pub activity: Activity,
    /// This node of its fleet; `None` where there is none.
    pub fleet: Option<Arc<FleetNode>>,
    /// What the config decides of requests. A request asks its worker for it.
    pub settings: SettingsSwap,
    /// Who there is: the tokens in force. A request asks its worker for it.
    pub identity: Arc<Identity>,
    /// What clients without a session have seen.
    pub session_facts: SessionlessFacts,
    /// What was warned of that stays behind.
    pub dropped_members: Arc<DroppedMembers>,
    /// Where large documents are validated, so that they delay no other call.
    pub validation_pool: ValidationPool,
    /// Results that were too long to be answered whole.
    pub results: Arc<ResultStore>,
    /// Where they are written and read.
    pub result_pool: ResultPool,
    /// The room that large bodies of requests have.
    pub bodies: RequestBodies,
    /// What became of calls, in numbers.
    pub calls: Calls,
    /// Where traced calls leave their spans.
    pub spans: SpanQueue,
    /// Random per process: hostile keys are hashed under it.
    pub hash_key: u64,
}

impl Proxy {
    /// The number of this node, by which others find what lives here ([`NodeTag::number`]); 0 where no other node asks for
    /// anything: without a fleet, and without `cluster.key`.
    #[must_use]
    pub fn shared_node_number(&self) -> u32 {
        let node = self.fleet.as_ref().filter(|node| node.config.key.is_some());
        node.map_or(0, |node| NodeTag::of(&node.name).number() as u32)
    }
}
