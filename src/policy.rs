//! Who may call what: the identity behind a request, and the decision whether it goes on. Pure.
//!
//! What a decision is about (intent, tools) is asked of their own rooms. What follows from it (a record, a
//! reply) is the caller's.

mod principal;

pub use principal::Principal;
