//! Calls that wait for a person: who asks, what for, and what was answered (CAP-8).
//!
//! Owns the room where they wait, its bounds, approvals that stand for a while, and the webhook that tells of both.
//! An approval is bound to the exact call by what [`policy`](crate::policy) says of it, and used up by it. Who calls,
//! how the client is kept awake and what is on record is `proxy`'s; by which doors people come is the faces'.
//!
//! ```text
//! ask ─▶ waiting ─┬─ approve ─▶ Approved ─▶ the call is admitted once more, and goes out
//!                 ├─ deny
//!                 ├─ the time is up, the client has gone, the proxy ends
//!                 └─▶ decided: remembered for a while, so that a second answer is told of the first
//! ```
//!
//! A client of the stateless revision is asked by the answer to its request, which is over then; the approval stays
//! open, and the client makes the call again with the answer and a request state that names it (`request_state`,
//! `repeats`).
//!
//! Nothing is kept on disk: a call ends with its connection, and its approval with it. The record of the wait says
//! that it began. In a fleet the id of an approval says on which node the call waits, and that node decides; approvals
//! that stand are the whole fleet's (`shared_leaf`).

mod answer;
mod asked;
mod config;
mod leaves;
mod repeats;
mod request_state;
mod room;
mod shared_leaf;
mod shown;
#[cfg(test)]
mod tests;
mod views;
mod waiting;
pub mod webhook;

pub use answer::{
    Answerer, ApprovalAnswer, ApprovalVerdict, Decided, Door, Extent, NotAnswered, Outcome,
};
pub use asked::{ApprovalId, AskedCall};
pub use config::{Config, ForHowLong, MAX_STANDING, MAX_TIMEOUT, Webhook};
pub use leaves::StandingLeave;
pub use repeats::{MAX_BESIDE_BYTES, UserSaid};
pub use request_state::{StateRead, approval_named_in};
pub use room::Room;
pub use shared_leaf::{MAX_SHARED_LEAVES, SharedLeave, SharedLeaveKey};
pub use shown::shown;
pub use views::{AnsweredApproval, ApprovalNews, KnownApproval, RoomBounds, WaitingView};
pub use waiting::{Entered, Repeated, RepeatedWait, WaitingApproval};
