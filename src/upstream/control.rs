//! What calls tell the task of their server.

use std::sync::Arc;

use bytes::Bytes;

/// A message to a server's task. Each names the connection that it is about, so that one about a
/// connection that is gone is known as such.
#[derive(Debug)]
pub(super) enum Control {
    /// The connection is no good any more.
    Lost { generation: u64, reason: Arc<str> },
    /// Its operator wants another one.
    Restart { generation: u64 },
    /// Nobody waits for this HTTP call any more.
    Cancel { generation: u64, id: u64 },
    /// A client answers what the server asked.
    Respond { generation: u64, id: Bytes, outcome: Bytes },
}
