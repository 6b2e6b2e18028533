//! Handling of calls: MCP downstream over HTTP and stdio, sessions, long results, telemetry.

pub mod downstream;
pub mod node_directory;
pub mod proxy;
pub mod results;
pub mod telemetry;
