//! Assembly: opens the parts, runs the threads, listens, and ends it all in order.
//!
//! Data plane: worker threads, each with a single-threaded runtime of its own. A connection is
//! handed to the least busy worker and stays there, so a call crosses no thread on its way
//! through. Control plane: one small multi-threaded runtime for upstream supervision, children
//! and timers. What a request leads to is decided on the floors below.
//!
//! ```text
//! app ─┬─ accept ─ connection_limit, idle_connections ─▶ worker_thread ─ connection ─┬─ fast_path ─▶ downstream
//!      │                                                           └─ route ─▶ downstream, api, page
//!      ├─ control ─ audit_events ─ audit_log
//!      ├─ rule_files, rule_watch
//!      └─ signals ─ shutdown
//! ```

mod accept;
mod app;
mod app_state;
mod audit_events;
mod audit_log;
mod connection;
mod connection_limit;
mod control;
mod definition_records;
mod fast_path;
mod folder;
mod forgotten;
mod identity_watch;
mod idle_connections;
mod offline_log;
mod route;
pub mod rule_files;
mod rule_watch;
mod runtime;
mod shutdown;
mod signals;
mod tracked_socket;
mod webhook;
mod worker_thread;

pub use self::app::{App, Server, StartError};
pub use self::app_state::AppState;
pub use self::runtime::local_runtime;
pub use self::shutdown::{CUT_GRACE, DRAIN_TIMEOUT, Hurry};
pub use self::signals::{Signals, ended_by_signal, outlive_terminal};
