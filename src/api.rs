//! The REST interface under `/api/v1`, and the two health responses.
//!
//! Owns routes, parameters and envelopes. What a call leads to is `proxy`'s, what is on record is
//! `activity`'s; nothing is decided here. `Host` and `Origin` were checked before a request gets
//! here, and whom its key or token proves. What of this a token's holder may use is said in `routes`.
//!
//! A request goes `router` → `routes` (which handler) → the handler's file, which reads
//! `query_parameters` and answers with a `response`.

mod activity;
mod activity_search;
mod approvals;
mod approvals_here;
mod call;
mod config;
pub mod config_door;
mod definitions;
mod ended_leaves;
mod events;
mod export;
mod exposition;
mod fleet;
pub mod fleet_approvals;
mod fleet_config;
pub mod fleet_config_door;
mod fleet_events;
mod health;
mod metrics;
mod openapi;
mod page_session;
mod policy;
mod policy_replay;
pub mod proof;
mod query_parameters;
mod reader_limits;
mod request_id;
mod resource_metadata;
mod response;
mod router;
mod routes;
mod server_login;
mod servers;
mod state;
mod status;
mod tokens;
mod tools;

pub use call::SOURCE;
pub use reader_limits::ReaderSlots;
pub use router::{handle, handle_own, refuse, unauthorized};
pub use state::{ConnectionInfo, State};
pub use tokens::{shown_change, shown_tokens};
