//! The wire: envelopes, framings and splices, all on `Bytes`.
//!
//! Pure: no socket, no clock. What a face or an upstream reads or writes passes through here.

pub mod headers;
pub mod jsonrpc;
pub mod lines;
pub mod shapes;
pub mod splice;
pub mod sse;
