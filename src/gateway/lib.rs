//! Handling of calls: the proxy, long results, telemetry.

pub mod node_directory;
pub mod proxy;
pub mod results;
pub mod telemetry;
