//! End to end: the real binary before the stub upstream, watched on the wire.
//!
//! One file a topic; names carry the requirement of the specification. What a part does inside is
//! tested where it stands, not here.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]
#![expect(clippy::panic, clippy::indexing_slicing, reason = "a test that panics has failed")]

mod activity_search;
mod approvals;
mod approvals_modern;
mod attacks;
mod baggage;
mod begun;
mod bridge;
mod check_order;
mod cli;
mod clients;
mod config;
mod control_room;
mod definitions;
mod describe;
mod direct;
mod door_table;
mod doors;
mod fleet;
mod fleet_asked_again;
mod fleet_backlog;
mod fleet_decisions;
mod fleet_events;
mod fleet_facts;
mod fleet_homes;
mod fleet_index;
mod fleet_nodes;
mod fleet_reading;
mod fleet_sessions;
mod fleet_starting;
mod fleet_tls;
mod fleet_vanished;
mod harness;
mod http2;
mod identity;
mod inputs;
mod intent;
mod limits;
mod login;
mod manage;
mod many;
mod meaning;
mod members;
mod mended;
mod metrics;
mod otlp_logs;
mod output;
mod page_login;
mod passthrough;
mod processes;
mod protocol_eras;
mod protocol_legacy;
mod protocol_modern;
mod protocol_stdio;
mod readers;
mod reading;
mod receipts;
mod reload;
mod replay;
mod requests;
mod rest;
mod results;
mod retries;
mod rug_pull;
mod rules;
mod search;
mod serve;
mod session_facts;
mod settings;
mod shell;
mod slow;
mod sockets;
mod status;
mod stderr;
mod stdio;
mod streaming;
mod subscriptions;
mod tls;
mod tracing;
mod upstream;
mod waits;
