//! What goes out to a server beside what is asked of it. Pure values.
//!
//! How a request travels is the business of `super::call`.

use std::sync::Arc;

use bytes::Bytes;

use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::trace_context::PropagatedContext;

/// What a request carries beside what is asked.
#[derive(Clone, Debug, Default)]
pub struct CallExtras {
    /// The client's `_meta`, as it wrote it. A `progressToken` in it is replaced by the id under
    /// which the call goes out ([`Answer::id`](super::Answer::id)), which is then what progress is told under. The
    /// keys of a modern client's own hop are replaced by ours, but for its capabilities and log
    /// level, which a modern server gets as the client said them.
    pub meta: Option<Bytes>,
    /// Further members of a tool's `params`, as raw JSON `"key":value` joined by commas, or nothing:
    /// `inputResponses`, `requestState`.
    pub members: Bytes,
    /// What its client can be asked.
    pub client_capabilities: ClientCapabilities,
    /// The trace that it is part of, which stands in `_meta` and in headers in the place of what the client's `_meta`
    /// says of one; `None`: that goes on as it is.
    pub trace: Option<Arc<PropagatedContext>>,
}
