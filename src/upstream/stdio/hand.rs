//! Handing an answer on to a call that may take it slowly, while others wait behind it in the pipe.
//!
//! ```text
//! nobody else waits:  CALL_PIECES wait for the call, then the pipe does, NOT_TAKEN_LIMIT a piece
//! others wait:        SPILL_PIECES wait for it, then HOLD_UP_LIMIT in all, and its answer ends
//! ```
//!
//! So a call that takes nothing costs the others of its server a second at most, and nothing while
//! its answer is small; and one that is alone with its server is only as fast as its client, and
//! needs no memory for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::{ChildLink, Piece};
use crate::upstream::error::Cause;

/// Pieces of an answer, of at most [`READ_BYTES`](super::READ_BYTES) each, that wait for their call
/// while nobody waits behind it.
pub const CALL_PIECES: usize = 32;
/// The same while somebody does: 16 MiB.
const SPILL_PIECES: usize = 256;
/// Bytes that wait beyond [`CALL_PIECES`] for all calls of a server: 64 MiB.
const SPILL_BYTES: usize = 64 << 20;
/// Longest time that a call may take nothing of its answer while nobody waits behind it.
const NOT_TAKEN_LIMIT: Duration = Duration::from_secs(5);
/// How long one answer may keep other calls waiting in all.
const HOLD_UP_LIMIT: Duration = Duration::from_secs(1);
/// What each piece that is taken gives of that time back: a call that takes 13 MB a second is not
/// the slow one.
const PIECE_TIME: Duration = Duration::from_millis(5);

/// A call's queue. There is a place beside for the word that it was cut off.
pub(super) fn channel() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(SPILL_PIECES + 1)
}

/// True while no more waits for a call than usual.
pub(super) fn has_room(sender: &mpsc::Sender<Piece>) -> bool {
    queued(sender) < CALL_PIECES
}

fn queued(sender: &mpsc::Sender<Piece>) -> usize {
    sender.max_capacity().saturating_sub(sender.capacity())
}

/// What waits for slow calls of a server, and the reader that waits for them.
#[derive(Debug, Default)]
pub(super) struct Spill {
    bytes: AtomicUsize,
    /// The reader waits.
    waits: AtomicBool,
    stirred: Notify,
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

    /// Room for a piece beyond what usually waits.
    fn take(self: &Arc<Self>, data: &Bytes) -> bool {
        let fits = |bytes: usize| Some(bytes + data.len()).filter(|sum| *sum <= SPILL_BYTES);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
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

/// How it went.
#[derive(Debug)]
pub(super) enum Handed {
    Taken,
    /// Nobody wants it any more.
    Gone,
    /// The call is too slow.
    NotTaken(Cause),
}

/// Hands a piece to its call. `held_up` counts for how long this answer has kept others waiting.
pub(super) async fn hand(
    link: &ChildLink,
    sender: &mpsc::Sender<Piece>,
    piece: Piece,
    held_up: &mut Duration,
) -> Handed {
    if has_room(sender) {
        return put(sender, piece);
    }
    let spill = &link.spill;
    // Since when nothing was taken, and what waited then.
    let (mut since, mut fewest) = (Instant::now(), queued(sender));
    let mut piece = Some(piece);
    loop {
        let mut stirred = pin!(spill.stirred.notified());
        stirred.as_mut().enable();
        spill.waits.store(true, Ordering::Relaxed);
        // Looked at after it is known that this waits, so that nothing falls between.
        fence(Ordering::SeqCst);
        let others = link.waiting().len() > 1;
        let placed = match has_room(sender) {
            true => piece.take(),
            false if others && queued(sender) < SPILL_PIECES => spilled(spill, &mut piece),
            false => None,
        };
        if let Some(piece) = placed {
            spill.waits.store(false, Ordering::Relaxed);
            *held_up = held_up.saturating_sub(PIECE_TIME);
            return put(sender, piece);
        }
        let now = Instant::now();
        if queued(sender) < fewest {
            (since, fewest) = (now, queued(sender));
        }
        let rest = NOT_TAKEN_LIMIT.saturating_sub(now.saturating_duration_since(since));
        let rest = if others { rest.min(HOLD_UP_LIMIT.saturating_sub(*held_up)) } else { rest };
        if rest.is_zero() {
            spill.waits.store(false, Ordering::Relaxed);
            return Handed::NotTaken(match others && *held_up >= HOLD_UP_LIMIT {
                true => Cause::HeldUp { limit: HOLD_UP_LIMIT, kept: queued(sender) },
                false => Cause::NotTaken { limit: NOT_TAKEN_LIMIT },
            });
        }
        tokio::select! {
            () = stirred => {}
            () = sender.closed() => {
                spill.waits.store(false, Ordering::Relaxed);
                return Handed::Gone;
            }
            () = tokio::time::sleep(rest) => {}
        }
        if others {
            *held_up += now.elapsed();
        }
    }
}

/// The piece as one beyond the usual, if there is room for it.
fn spilled(spill: &Arc<Spill>, piece: &mut Option<Piece>) -> Option<Piece> {
    match piece.take()? {
        Piece::Data(data) if spill.take(&data) => {
            let bytes = data.len();
            Some(Piece::Spilled(Spilled { data, bytes, spill: Arc::clone(spill) }))
        }
        // The end of an answer is one piece at most.
        last @ (Piece::Last(_) | Piece::Failed(_)) => Some(last),
        other @ (Piece::Data(_) | Piece::Spilled(_) | Piece::Message(_)) => {
            *piece = Some(other);
            None
        }
    }
}

fn put(sender: &mpsc::Sender<Piece>, piece: Piece) -> Handed {
    match sender.try_send(piece) {
        Ok(()) => Handed::Taken,
        // There is room: only the reader puts answers in.
        Err(TrySendError::Full(_) | TrySendError::Closed(_)) => Handed::Gone,
    }
}
