//! The proxy: what happens to a request between a face and an upstream.

pub mod builtin;
pub mod call;
pub mod dispatch;
pub mod reply;
pub mod retrieve;
