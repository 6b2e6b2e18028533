//! Multi-node ledger, membership and shared state over one object store.
//!
//! ```text
//! activity (committed) ─▶ sealing ─▶ segment (table + checkpoint) ─▶ bucket ─▶ confirmed ─▶ activity may delete
//!                                                                       │
//!                                   audit (any machine) ◀───────────────┤
//!   heartbeats, one object per node ────────────────────────────────────┴▶ failure detector ─▶ peers (one hop, by cluster.key)
//! ```
//!
//! Each node is the only writer of its own hash chain and its own keys, so nodes never wait for each other and need no
//! consensus. The segment format, chain verification and the sealing schedule are pure. Only [`bucket`] accesses the store;
//! `ledger`, `fleet_node`, `follower` and [`facts`] drive it, and [`peers`] sends requests between nodes.

pub mod audit;
pub mod bucket;
pub mod chain;
pub mod checkpoint;
pub mod cluster_key;
pub mod config;
pub mod facts;
pub mod failure_detector;
pub mod fleet_logs;
pub mod fleet_node;
pub mod fleet_reading;
pub mod fleet_watch;
pub mod follower;
pub mod heartbeat;
pub mod ledger;
pub mod node_state;
pub mod parquet_table;
pub mod peer_wire;
pub mod peers;
pub mod reading_plan;
pub mod record_questions;
pub mod sealing;
pub mod segment;

pub use crate::chain::place::JoinError;
pub use crate::config::{ClusterConfig, IndexRole};
pub use crate::fleet_logs::{FleetCoverage, FleetIndex, FleetLogs};
pub use crate::fleet_node::{FleetNode, ProgramBuild};
pub use crate::fleet_reading::{FleetForward, FleetReader, FleetReading, ForwardBroken};
pub use crate::fleet_watch::{FleetWatch, WatchEvent};
pub use crate::follower::{FleetFollower, FollowSettings};
pub use crate::heartbeat::NodeVitals;
pub use crate::ledger::{FleetLedger, LedgerSettings};
