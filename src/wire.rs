//! The wire: envelopes, framings and splices, all on `Bytes`.
//!
//! Pure: no socket, no clock. What a face or an upstream reads or writes passes through here.

pub mod buffer_pool;
pub mod headers;
pub mod http1;
pub mod jsonrpc;
pub mod lines;
pub mod shapes;
pub mod splice;
pub mod sse;
