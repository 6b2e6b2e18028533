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
mod call_record;
mod call_trace;
mod changed_tasks;
pub mod client;
mod coercion;
pub mod describe;
pub mod direct;
pub mod dispatch;
mod exchange;
mod extension;
mod held_answer;
mod held_bounds;
pub mod held_calls;
mod held_repeats;
mod input_rounds;
mod kept_results;
pub mod known_tasks;
pub(crate) mod legacy_tasks;
pub mod log_routing;
pub mod memory_budget;
pub(crate) mod merged_extensions;
pub mod overview;
pub mod params;
pub mod passthrough;
mod pending_cancellations;
mod question_record;
mod recorded;
pub mod refusal;
mod related_tasks;
pub mod relay;
pub mod render;
pub mod reply;
mod reported_error;
pub mod retrieve;
pub mod rule_replay;
pub mod session_facts;
pub mod settings;
pub mod shutdown;
mod state_fetches;
mod task_capability;
pub mod task_subscription;
mod tasks;
pub mod worker;

pub use worker::{Proxy, Worker};
