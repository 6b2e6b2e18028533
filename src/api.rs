//! The REST interface under `/api/v1`, and the two health responses.
//!
//! Owns routes, parameters and envelopes. What a call leads to is `proxy`'s, what is on record is
//! `activity`'s; nothing is decided here. `Host` and `Origin` were checked before a request gets
//! here, and the API key is checked here.
//!
//! A request goes `router` → `routes` (which handler) → the handler's file, which reads
//! `query_parameters` and answers with a `response`.

mod activity;
mod call;
mod definitions;
mod events;
mod export;
mod health;
mod metrics;
mod openapi;
pub mod proof;
mod query_parameters;
mod reader_limits;
mod request_id;
mod response;
mod router;
mod routes;
mod servers;
mod state;
mod status;
mod tools;

pub use call::SOURCE;
pub use reader_limits::ReaderSlots;
pub use router::{handle, handle_own, refuse, unauthorized};
pub use state::{ConnectionInfo, State};
