//! The queue of one call: pieces of its answer on their way from the reader.
//!
//! [`CALL_PIECES`] may wait for a call; while others wait behind it in the pipe more may, within a
//! bound of all calls of its server ([`Spill`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use crate::upstream::error::Cause;

/// Pieces of an answer, of at most [`READ_BYTES`](super::READ_BYTES) each, that wait for their call
/// while nobody waits behind it.
pub const CALL_PIECES: usize = 32;
/// The same while somebody does: 16 MiB.
pub(super) const SPILL_PIECES: usize = 256;
/// Bytes that wait beyond [`CALL_PIECES`] for all calls of a server: 64 MiB.
const SPILL_BYTES: usize = 64 << 20;

/// What a call gets from the reader.
#[derive(Debug)]
pub(super) enum CallPiece {
    Data(Bytes),
    /// The same, beyond what usually waits for a call.
    Spilled(Spilled),
    /// The last bytes, or none; the line is complete.
    Last(Bytes),
    /// A whole message beside the answer.
    Message(Bytes),
    Failed(Cause),
    /// Its request was never written, and will not be: the pipes are closed.
    Unwritten,
}

/// A call's queue. There is a place beside for the word that it was cut off.
pub(super) fn channel() -> (mpsc::Sender<CallPiece>, mpsc::Receiver<CallPiece>) {
    mpsc::channel(SPILL_PIECES + 1)
}

/// True while no more waits for a call than usual.
pub(super) fn has_room(sender: &mpsc::Sender<CallPiece>) -> bool {
    queued(sender) < CALL_PIECES
}

pub(super) fn queued(sender: &mpsc::Sender<CallPiece>) -> usize {
    sender.max_capacity().saturating_sub(sender.capacity())
}

/// What waits for slow calls of a server, and the reader that waits for them.
#[derive(Debug, Default)]
pub(super) struct Spill {
    bytes: AtomicUsize,
    /// The reader waits.
    pub(super) waits: AtomicBool,
    pub(super) stirred: Notify,
}

impl Spill {
    /// Something was taken, or somebody new waits: has the reader look again, if it waits.
    pub(super) fn stir(&self) {
        // Either this sees that it waits, or it sees what was done before.
        fence(Ordering::SeqCst);
        if self.waits.load(Ordering::Relaxed) {
            self.stirred.notify_one();
        }
    }

    /// A piece beyond what usually waits; the data itself if there is no room for it.
    pub(super) fn take(self: &Arc<Self>, data: Bytes) -> Result<Spilled, Bytes> {
        let bytes = data.len();
        let fits = |waiting: usize| Some(waiting + bytes).filter(|sum| *sum <= SPILL_BYTES);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Spilled { data, bytes, spill: Arc::clone(self) }),
            Err(_) => Err(data),
        }
    }
}

/// A piece beyond what usually waits; its room is given back with it.
#[derive(Debug)]
pub(super) struct Spilled {
    pub(super) data: Bytes,
    bytes: usize,
    spill: Arc<Spill>,
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.spill.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
