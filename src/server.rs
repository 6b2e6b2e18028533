//! Assembly: opens the parts, runs the threads, listens, and ends it all in order.
//!
//! Data plane: worker threads, each with a single-threaded runtime of its own. A connection is
//! handed to the least busy worker and stays there, so a call crosses no thread on its way
//! through. Control plane: one small multi-threaded runtime for upstream supervision, children
//! and timers. What a request leads to is decided on the floors below.
//!
//! ```text
//! app ─┬─ accept ─ connection_limit, idle_connections ─▶ worker_thread ─ connection ─┬─ fast_path ─▶ downstream
//!      │                                          │                └─ route ─▶ downstream, api, page
//!      │                                          └─ tls_connection ─┬─ connection (HTTP/1.1) ─▶ route
//!      │                                                             └─ http2_connection ─▶ route
//!      ├─ listener, listener_tls ─ certificate_watch, named_clients
//!      ├─ control ─ audit_events ─ audit_log
//!      ├─ reload ─ rule_files, rule_watch
//!      ├─ fleet_sharing ─ fleet_config, fleet_leaves, fleet_pins ─ shared_facts ─ fleet_tokens
//!      ├─ webhook, otlp_export, embeddings ─ outgoing_http
//!      └─ signals ─ shutdown
//! ```

mod accept;
mod app;
mod app_state;
mod audit_events;
mod audit_log;
mod certificate_watch;
mod connection;
mod connection_limit;
mod control;
mod definition_records;
mod embeddings;
mod fast_path;
mod fleet_config;
mod fleet_leaves;
mod fleet_pins;
mod fleet_sharing;
mod fleet_start;
mod fleet_tokens;
mod folder;
mod forgotten;
mod http2_connection;
mod identity_watch;
mod idle_connections;
mod limit_shares;
mod listener;
mod listener_tls;
mod named_clients;
mod offline_log;
mod otlp_export;
mod outgoing_http;
mod peer_door;
mod record_door;
mod reload;
mod route;
mod rule_watch;
mod runtime;
mod shared_facts;
mod shutdown;
mod signals;
mod start_error;
mod strays;
mod tls_connection;
mod tracked_socket;
mod trial;
mod unread_body;
mod webhook;
mod worker_thread;

pub use self::app::{App, Server};
pub use self::app_state::AppState;
pub use self::embeddings::EmbeddingsClient;
pub use self::listener::{Listener, UnixDoor};
pub use self::listener_tls::ListenerTls;
pub use self::reload::ConfigSource;
pub use self::runtime::local_runtime;
pub use self::shutdown::{CUT_GRACE, DRAIN_TIMEOUT, Hurry};
pub use self::signals::{Signals, ended_by_signal, outlive_terminal};
pub use self::start_error::StartError;
