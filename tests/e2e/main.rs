//! End to end: the real binary before the stub upstream, watched on the wire.
//!
//! One file a topic; names carry the requirement of the specification. What a part does inside is
//! tested where it stands, not here.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]
#![expect(clippy::panic, clippy::indexing_slicing, reason = "a test that panics has failed")]

mod approvals;
mod begun;
mod bridge;
mod cli;
mod config;
mod definitions;
mod direct;
mod doors;
mod harness;
mod identity;
mod intent;
mod limits;
mod login;
mod many;
mod members;
mod metrics;
mod output;
mod passthrough;
mod processes;
mod protocol_eras;
mod protocol_legacy;
mod protocol_modern;
mod protocol_stdio;
mod readers;
mod reading;
mod requests;
mod rest;
mod retries;
mod rug_pull;
mod rules;
mod serve;
mod session_facts;
mod slow;
mod status;
mod stderr;
mod stdio;
mod streaming;
mod subscriptions;
mod upstream;
