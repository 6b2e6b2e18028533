//! How many bytes the large bodies of requests may have together, over all clients: taken as they come, and kept as long
//! as anything of a body is.
//!
//! A small body needs none of it, so that the calls there are most of touch nothing that is shared. Who has proven to be
//! somebody has a part that nobody else can take ([`memory_budget`](super::memory_budget)); the rest is for all.

use bytes::Bytes;
use thiserror::Error;

use super::memory_budget::{MAX_WAIT, MemoryBudget, Share};
use crate::policy::Principal;

/// A body of so many bytes needs no room.
pub const SMALL_BODY_BYTES: usize = 64 * 1024;
/// Most bytes that all larger ones have together.
pub const MAX_BODIES_BYTES: u64 = 128 << 20;
/// What of that is for those who have proven to be somebody.
const KNOWN_BYTES: u64 = MAX_BODIES_BYTES / 2;
/// How much a body takes at a time.
const STEP_BYTES: usize = 256 * 1024;
/// The part of [`KNOWN_BYTES`].
const KNOWN: &str = "known";
/// The part of those who have proven nothing: none of their own.
const ANYBODY: &str = "";

/// No room for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "found no room: those of more than {SMALL_BODY_BYTES} bytes that are under way may have {MAX_BODIES_BYTES} bytes \
     together, and none was free within {MAX_WAIT:?}; send fewer or smaller ones at a time, or again later"
)]
pub struct NoRoom;

/// The room that all bodies have.
#[derive(Clone, Debug)]
pub struct RequestBodies(MemoryBudget);

impl Default for RequestBodies {
    fn default() -> Self {
        Self(MemoryBudget::new(MAX_BODIES_BYTES, KNOWN_BYTES, [KNOWN.into()]))
    }
}

impl RequestBodies {
    /// Room for a body of that principal's, which has taken nothing yet.
    #[must_use]
    pub fn room(&self, principal: &Principal) -> BodyRoom<'_> {
        let part = match principal {
            Principal::Anonymous => ANYBODY,
            Principal::Admin
            | Principal::Token(_)
            | Principal::Subject(_)
            | Principal::Certificate(_) => KNOWN,
        };
        BodyRoom { all: &self.0, part, share: None, bytes: SMALL_BODY_BYTES }
    }

    /// Takes all that there is.
    #[cfg(test)]
    pub(crate) fn fill(&self) -> [Share; 2] {
        [ANYBODY, KNOWN].map(|part| {
            let mut share = self.0.share(part);
            while share.try_grow(1 << 20) {}
            share
        })
    }

    /// The same for a body of another node's.
    #[must_use]
    pub fn room_for_node(&self) -> BodyRoom<'_> {
        self.room(&Principal::Admin)
    }
}

/// Room for one body. It borrows what is shared, and touches it for a large body alone.
#[derive(Debug)]
pub struct BodyRoom<'a> {
    all: &'a MemoryBudget,
    part: &'static str,
    share: Option<Share>,
    /// For so many there is room.
    bytes: usize,
}

impl BodyRoom<'_> {
    /// Whether there is room for a body of so many bytes.
    #[must_use]
    pub fn has(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }

    /// Makes room for a body that has come to `bytes`, waiting at most [`MAX_WAIT`].
    ///
    /// # Errors
    /// [`NoRoom`]
    pub async fn reach(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if self.has(bytes) {
            return Ok(());
        }
        let more = (bytes - self.bytes).max(STEP_BYTES);
        let share = self.share.get_or_insert_with(|| self.all.share(self.part));
        share.grow(more as u64).await.map_err(|_| NoRoom)?;
        self.bytes += more;
        Ok(())
    }

    /// The body that has come. What it has taken is given back when the last piece of it is dropped.
    #[must_use]
    pub fn keep(self, body: Bytes) -> Bytes {
        match self.share {
            None => body,
            Some(share) => Bytes::from_owner(RoomedBody { body, _share: share }),
        }
    }
}

/// A body with the room that it has.
struct RoomedBody {
    body: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for RoomedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Principal {
        Principal::certificate("ada")
    }

    #[tokio::test]
    async fn a_small_body_takes_nothing_and_a_large_one_until_its_last_piece_is_dropped() {
        let all = RequestBodies::default();
        let mut room = all.room(&Principal::Anonymous);
        room.reach(SMALL_BODY_BYTES).await.unwrap();
        assert_eq!(all.0.used(), 0);
        let mut large = all.room(&Principal::Anonymous);
        large.reach(SMALL_BODY_BYTES + 1).await.unwrap();
        assert_eq!(all.0.used(), STEP_BYTES as u64);
        large.reach(SMALL_BODY_BYTES + STEP_BYTES).await.unwrap();
        assert_eq!(all.0.used(), STEP_BYTES as u64, "there was room");
        let mut body = large.keep(Bytes::from(vec![b'x'; SMALL_BODY_BYTES + STEP_BYTES]));
        let piece = body.split_off(10);
        drop(body);
        assert_eq!((all.0.used(), piece[0]), (STEP_BYTES as u64, b'x'));
        drop(piece);
        assert_eq!(all.0.used(), 0);
        let given_up = all.room(&known());
        drop(given_up);
        assert_eq!(all.0.used(), 0);
    }

    #[tokio::test]
    async fn who_has_proven_nothing_leaves_the_others_their_part_and_is_told_when_there_is_no_room()
    {
        let all = RequestBodies::default();
        let mut strangers = all.room(&Principal::Anonymous);
        let common = (MAX_BODIES_BYTES - KNOWN_BYTES) as usize;
        strangers.reach(SMALL_BODY_BYTES + common).await.unwrap();
        let told = all.room(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap_err();
        assert!(told.to_string().contains("134217728 bytes together"), "{told}");
        let mut known = all.room(&known());
        known.reach(SMALL_BODY_BYTES + KNOWN_BYTES as usize).await.unwrap();
        assert_eq!(all.0.used(), MAX_BODIES_BYTES);
        drop(strangers);
        all.room(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap();
    }
}
