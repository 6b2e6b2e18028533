//! A fleet: nodes that share one object store, and nothing else.
//!
//! ```text
//! activity (committed) ─▶ sealing ─▶ segment (table + checkpoint) ─▶ bucket ─▶ confirmed ─▶ activity may forget
//!                                                                       │
//!                                   audit (any machine) ◀───────────────┘
//! ```
//!
//! Each node is the only writer of its own chain, under keys of its own, so that no node waits for another and nothing is
//! agreed on. What a segment is, how chains are checked and when something is sealed is pure; [`bucket`] alone knows the
//! store, `ledger` alone acts.

pub mod audit;
pub mod bucket;
pub mod chain_check;
pub mod checkpoint;
pub mod cluster_key;
pub mod columns;
pub mod config;
#[cfg(test)]
mod examples;
pub mod facts;
pub mod hash_tree;
pub mod joining;
pub mod ledger;
pub mod node_key;
pub mod record_proof;
pub mod record_rows;
pub mod sealed_mark;
pub mod sealing;
pub mod segment;
pub mod signed_note;

pub use config::{ClusterConfig, IndexRole};
pub use joining::JoinError;
pub use ledger::{FleetLedger, LedgerSettings};
