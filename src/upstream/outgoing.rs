//! What goes out to a server beside a tool and its arguments, and requests that call no tool. Pure values.
//!
//! How a request travels is the business of [`super::call`].

use bytes::Bytes;

use crate::mcp::capabilities::ClientCapabilities;

/// What a call carries beside its tool and arguments.
#[derive(Clone, Debug, Default)]
pub struct CallExtras {
    /// The client's `_meta`, as it wrote it. A `progressToken` in it is replaced by the id under
    /// which the call goes out ([`Answer::id`](super::Answer::id)), which is then what progress is told under. The
    /// keys of a modern client's own hop are replaced by ours, but for its capabilities and log
    /// level, which a modern server gets as the client said them.
    pub meta: Option<Bytes>,
    /// Further members of `params`, as raw JSON `"key":value` joined by commas, or nothing:
    /// `inputResponses`, `requestState`.
    pub members: Bytes,
    /// What its client can be asked.
    pub client_capabilities: ClientCapabilities,
}

/// A request that is no call of a tool.
#[derive(Clone, Debug)]
pub struct OutgoingRequest<'a> {
    /// The method, as the server knows it. `tools/call` needs a permit and has
    /// [`Upstream::call`](super::Upstream::call).
    pub method: &'static str,
    /// What the header `Mcp-Name` repeats of `params`: a prompt's name, a resource's URI.
    pub name: Option<&'a str>,
    /// The raw `params` object, without `_meta`.
    pub params: Bytes,
    /// As in [`CallExtras::meta`].
    pub meta: Option<Bytes>,
    /// What its client can be asked.
    pub client_capabilities: ClientCapabilities,
}
