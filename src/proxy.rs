//! The proxy: what happens to a request between a face and an upstream.
//!
//! A face reads a message ([`incoming`]) and hands it to [`dispatch`], which starts a request that goes on record
//! (`recorded`): [`call`] for the call tools, [`direct`] for tools under their own names, [`passthrough`] for
//! resources, prompts and completions. Each asks [`policy`](crate::policy), waits for a person where it says so (`approval`), and sends what was
//! permitted; an
//! `exchange` sees the answer through, and the [`reply`] goes back to the face.

mod advice;
mod approval;
mod arguments;
pub mod body_room;
pub mod bound_to;
pub mod builtin;
pub mod busy_poll;
pub mod call;
mod call_record;
mod call_trace;
pub mod caller;
pub mod client;
mod counted;
pub mod describe;
pub mod direct;
pub mod dispatch;
pub mod dropped_members;
mod exchange;
pub mod incoming;
mod input_required;
mod keeping;
pub mod log_routing;
pub mod memory_budget;
pub mod overview;
pub mod params;
pub mod passthrough;
pub mod reaction;
pub mod read_result;
mod receipt;
mod record_kind;
mod recorded;
pub mod refusal;
mod rejection;
mod relay;
pub mod render;
pub mod reply;
pub mod result_pool;
pub mod retrieve;
pub mod rule_replay;
pub mod session_facts;
pub mod settings;
mod settling;
pub mod shutdown;
mod state;
mod tool_text;
pub mod validation_pool;
mod worker;

pub use state::Proxy;
pub use worker::Worker;
