//! The wire: how messages are framed (events, lines), and splices of them, all on `Bytes`.
//!
//! Pure: no socket, no clock. What a face or an upstream reads or writes passes through here.

pub mod lines;
pub mod splice;
pub mod sse;
