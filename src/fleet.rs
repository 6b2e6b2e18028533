//! A fleet: nodes that share one object store, and nothing else.
//!
//! ```text
//! activity (committed) ─▶ sealing ─▶ segment (table + checkpoint) ─▶ bucket ─▶ confirmed ─▶ activity may forget
//!                                                                       │
//!                                   audit (any machine) ◀───────────────┤
//!   heartbeats, each node's own ────────────────────────────────────────┴▶ living nodes ─▶ peers (one hop, by cluster.key)
//! ```
//!
//! Each node is the only writer of its own chain, under keys of its own, so that no node waits for another and nothing is
//! agreed on. What a segment is, how chains are checked and when something is sealed is pure; [`bucket`] alone knows the
//! store, `ledger`, `heartbeats` and the exchange of [`facts`] alone act, and [`peers`] is the way from node to node.

pub mod audit;
pub mod bucket;
pub mod chain_check;
pub mod chain_days;
pub mod chain_names;
pub mod chain_place;
pub mod chain_watch;
pub mod checkpoint;
pub mod cluster_key;
pub mod columns;
pub mod config;
mod doubted_nodes;
#[cfg(test)]
mod examples;
pub mod facts;
pub mod fleet_index;
pub mod fleet_logs;
pub mod fleet_node;
pub mod fleet_reading;
pub mod fleet_sight;
pub mod fleet_watch;
pub mod follower;
pub mod following;
pub mod forward_merge;
pub mod hash_tree;
pub mod heartbeat;
mod heartbeats;
pub mod joining;
pub mod ledger;
mod ledger_gauges;
mod line_budget;
pub mod living_nodes;
pub mod node_key;
pub mod own_place;
mod peer_life;
pub mod peer_wire;
pub mod peers;
pub mod putting;
pub mod reading_plan;
pub mod record_answers;
pub mod record_proof;
pub mod record_questions;
pub mod record_rows;
pub mod sealed_id;
pub mod sealed_mark;
pub mod sealing;
pub mod segment;
pub mod signed_note;
mod strays;
pub mod watch_place;

pub use config::{ClusterConfig, IndexRole};
pub use fleet_index::FleetIndex;
pub use fleet_logs::{FleetCoverage, FleetLogs};
pub use fleet_node::{FleetNode, ProgramBuild};
pub use fleet_reading::{FleetForward, FleetReader, FleetReading, ForwardBroken};
pub use fleet_watch::{FleetWatch, WatchNews};
pub use follower::{FleetFollower, FollowSettings};
pub use heartbeat::NodeVitals;
pub use heartbeats::VitalsOf;
pub use joining::JoinError;
pub use ledger::{FleetLedger, LedgerSettings};
