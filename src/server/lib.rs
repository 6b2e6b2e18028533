//! Server assembly: opens the components, runs the threads, listens, and shuts everything down in order.
//!
//! Data plane: worker threads, each with a single-threaded runtime. A connection is handed to the least busy worker and stays there, so a
//! call never crosses threads. Control plane: one small multi-threaded runtime for upstream supervision, child processes and timers.
//!
//! ```text
//! app ─┬─ startup ─ audit_records
//!      ├─ listener
//!      ├─ workers ─ connection_limit ─▶ connection ─┬─ fast_path ─▶ downstream
//!      │                                            ├─ HTTP/1.1 ─▶ route ─▶ fleet peers, downstream, api, page
//!      │                                            └─ http2_connection ─▶ route
//!      ├─ reload ─ proposal, record, file_watch
//!      ├─ fleet ─ config, approvals, pins, seen, shared_facts ─ tokens
//!      ├─ webhook, otlp_export, embeddings
//!      └─ shutdown
//! ```

mod app;
mod app_state;
mod audit_records;
mod connection;
mod connection_limit;
mod embeddings;
mod fast_path;
mod fleet;
mod http2_connection;
mod identity_watch;
mod listener;
mod otlp_export;
mod reload;
mod route;
mod shutdown;
mod startup;
mod tracked_socket;
mod unread_body;
mod webhook;
mod workers;

pub use self::app::{App, Server};
pub use self::app_state::AppState;
pub use self::embeddings::EmbeddingsClient;
pub use self::listener::{Listener, ListenerTls, UnixSocketListener};
pub use self::reload::ConfigSource;
pub use self::shutdown::{
    CUT_GRACE, DRAIN_TIMEOUT, ForcedShutdown, Signals, ended_by_signal, outlive_terminal,
};
pub use self::startup::{StartError, local_runtime};
