//! Back-pressure: an answer is handed on to a call that may take it slowly, while others wait behind
//! it in the pipe.
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
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::link::ChildLink;
use super::queue::{CallPiece, SPILL_PIECES, Spill, has_room, queued};
use crate::upstream::error::Cause;

/// Longest time that a call may take nothing of its answer while nobody waits behind it.
const NOT_TAKEN_LIMIT: Duration = Duration::from_secs(5);
/// How long one answer may keep other calls waiting in all.
const HOLD_UP_LIMIT: Duration = Duration::from_secs(1);
/// What each piece that is taken gives of that time back: a call that takes 13 MB a second is not
/// the slow one.
const PIECE_TIME: Duration = Duration::from_millis(5);

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
    sender: &mpsc::Sender<CallPiece>,
    piece: CallPiece,
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
fn spilled(spill: &Arc<Spill>, piece: &mut Option<CallPiece>) -> Option<CallPiece> {
    match piece.take()? {
        CallPiece::Data(data) => match spill.take(data) {
            Ok(spilled) => Some(CallPiece::Spilled(spilled)),
            Err(data) => {
                *piece = Some(CallPiece::Data(data));
                None
            }
        },
        // The end of an answer is one piece at most.
        last @ (CallPiece::Last(_) | CallPiece::Failed(_) | CallPiece::Unwritten) => Some(last),
        other @ (CallPiece::Spilled(_) | CallPiece::Message(_)) => {
            *piece = Some(other);
            None
        }
    }
}

fn put(sender: &mpsc::Sender<CallPiece>, piece: CallPiece) -> Handed {
    match sender.try_send(piece) {
        Ok(()) => Handed::Taken,
        // There is room: only the reader puts answers in.
        Err(TrySendError::Full(_) | TrySendError::Closed(_)) => Handed::Gone,
    }
}
