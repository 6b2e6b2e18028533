//! Direct mode (`/mcp/all`): each upstream tool under a name of its own.

use std::rc::Rc;

use bytes::Bytes;

use crate::proxy::Worker;
use crate::proxy::dispatch::{Peer, Reaction, unknown_method};
use crate::proxy::params::CallParams;

/// The result of `tools/list`.
#[must_use]
pub fn list_tools(_worker: &Rc<Worker>, _peer: &Peer, id: &Bytes, _params: &Bytes) -> Reaction {
    unknown_method(id, "tools/list")
}

/// Calls the tool that `params` name.
#[must_use]
pub fn call_tool(
    _worker: &Rc<Worker>,
    _peer: &Peer,
    id: Bytes,
    _params: CallParams<'_>,
) -> Reaction {
    unknown_method(&id, "tools/call")
}
