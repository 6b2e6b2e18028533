//! The writer of a child's input.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::link::{ChildLink, Line};

/// Writes queued lines until the queue or the pipe closes.
pub(in crate::upstream) async fn write(
    link: Arc<ChildLink>,
    mut queue: mpsc::Receiver<Line>,
    mut stdin: impl AsyncWrite + Unpin,
) {
    while let Some(line) = queue.recv().await {
        if let Some(id) = line.call {
            let mut waiting = link.waiting();
            let Some(waiter) = waiting.get_mut(id) else { continue };
            waiter.written = true;
        }
        for part in line.parts.iter().filter(|part| !part.is_empty()) {
            if let Err(error) = stdin.write_all(part).await {
                tracing::debug!(server = %link.peer.name, %error, "a server closed its input");
                return;
            }
        }
        if stdin.flush().await.is_err() {
            return;
        }
    }
}
