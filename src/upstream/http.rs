//! Calls over streamable HTTP: one POST each, on a connection of the worker's own pool.
//!
//! The session's id and version come from the lifecycle; what a message says is deliberately not
//! read here.
//!
//! ```text
//! idle ─ take ▶ sending ─ head ▶ streaming ─ end of body ▶ idle
//!                  │                 ├─ finish: rest unread ▶ draining ─ next take ▶ idle
//!                  │                 └─ dropped: the call is cancelled ▶ closed
//!                  └─ stale before a byte was sent ▶ another connection
//! ```

mod exchange;
mod fetch;
mod pool;
mod refusal;
mod resume;
mod send;
mod session;

pub use exchange::STALL_LIMIT;
pub(super) use exchange::{BodyEvent, HttpExchange, Limits};
pub(super) use fetch::{fetch, next_message, notify};
pub use pool::{MAX_IDLE, MAX_IDLE_AGE, Pool};
pub(super) use refusal::HttpRefused;
pub use refusal::MAX_REFUSAL_BYTES;
pub(super) use resume::{Cursor, Resuming};
pub(super) use send::{accept, exchange, fresh, is_event_stream, send};
pub(super) use session::Session;
