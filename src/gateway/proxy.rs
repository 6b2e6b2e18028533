//! The call path between downstream and upstream.
//!
//! Downstream parses a message ([`dispatch::read`]) and passes it to [`dispatch`]. Recorded requests run in `recorded`:
//! [`call`] for the call tools, [`direct`] for tools under their own names, [`passthrough`] for resources, prompts and
//! completions. Each asks [`policy`](mcpproxy_policy) for admission, waits for an `approval` if one is required, and sends
//! the permitted request. An `exchange` carries the answer; the [`reply`] goes back downstream.

mod advice;
mod approval;
mod argument_validation;
pub mod builtin;
pub mod call;
pub mod client;
pub mod direct;
pub mod dispatch;
mod exchange;
pub mod extension;
pub mod held;
mod kept_results;
pub mod log_routing;
pub mod memory_budget;
pub mod params;
pub mod passthrough;
mod recorded;
pub mod refusal;
pub mod relay;
pub mod render;
pub mod reply;
pub mod rule_replay;
pub mod session_facts;
pub mod settings;
pub mod shutdown;
pub mod tasks;
pub mod worker;

pub use worker::{Proxy, Worker};
