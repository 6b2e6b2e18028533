//! Calls to a child process: one message per line, many calls on one pipe.
//!
//! An answer is handed on piece by piece as soon as it is known whose it is. What is no answer to a
//! call goes to the lifecycle, or where `inbound` says. Starting and stopping the
//! child is not done here.
//!
//! One pipe has one order: what comes behind an answer waits until that has been read. How much of
//! an answer may wait for a slow call, and for how long, is decided in `backpressure`.
//!
//! ```text
//! StdioCall ─ line ─▶ ChildLink ─▶ writer ─▶ child
//!   ▲                                          │
//!   └─ queue of the call ◀───── reader ◀───────┘
//! ```

mod backpressure;
mod call;
mod link;
mod queue;
mod reader;
mod writer;

pub(super) use call::StdioCall;
pub(super) use link::{ChildLink, LIFECYCLE_MESSAGES};
pub use queue::CALL_PIECES;
pub use reader::READ_BYTES;
pub(super) use reader::read;
pub(super) use writer::write;
