//! Runtime services shared by all crates: clocks, deadlines, HTTP/1.1 framing, TLS, files and secrets.

pub mod hidden_text;
pub mod keyed_counts;
pub mod nearest;
pub mod secrets;

/// Network I/O for either side of a connection. Independent of MCP, except for the session id header.
pub mod io {
    pub mod address;
    pub mod background_task;
    pub mod buffer_pool;
    pub mod clock;
    pub mod deadline;
    pub mod delays;
    pub mod dial;
    pub mod egress_proxy;
    pub mod gate;
    pub mod http1;
    pub mod http_client;
    pub mod line_budget;
    pub mod line_reader;
    pub mod tls;
}

/// Services of the operating system: files and their permissions, descriptors, thread priorities, child processes.
pub mod os {
    pub mod bounded_file;
    pub mod descriptors;
    pub mod edited_file;
    pub mod keyring;
    pub mod marked;
    pub mod priority;
    pub mod private;
    pub mod space;
    pub mod state_file;
}

// Re-exported for the expansion of `peer_line!`.
#[doc(hidden)]
pub use tracing;
