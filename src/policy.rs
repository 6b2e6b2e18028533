//! Who may call what: what admits a request, the identity behind it, and the decision whether it goes on. Pure.
//!
//! What a decision is about (intent, tools) is asked of their own rooms. What follows from it (a record, a
//! reply) is the caller's.

mod access;
pub mod host_check;
mod principal;

pub use access::Access;
pub use principal::Principal;
