//! How many bytes the large bodies of requests may have together, over all clients: taken as they come, and kept as long
//! as anything of a body is.
//!
//! A small body needs none of it, so that the calls there are most of touch nothing that is shared.
//!
//! ```text
//! MAX_BODIES_BYTES = a part for whoever is known + one for the admin + one for other nodes + what is common
//! ```
//!
//! A body takes of its own part first ([`memory_budget`](super::memory_budget)). So whoever has proven nothing leaves the others
//! their parts, and no client keeps the admin or the nodes of a fleet from theirs. Those who share a part can use it up, and what
//! is common: a part for each of them would hold no body of the largest size.

use bytes::Bytes;
use thiserror::Error;

use super::memory_budget::{MAX_WAIT, MemoryBudget, Share, WhyNoRoom};
use crate::fleet::peer_wire::MAX_REQUEST_BYTES;
use crate::mcp::message::SMALL_MESSAGE_BYTES;
use crate::policy::Principal;

/// A body of so many bytes needs no room, and the id of its message may be a slice of it.
pub const SMALL_BODY_BYTES: usize = SMALL_MESSAGE_BYTES;
/// Most bytes that all larger ones have together.
pub const MAX_BODIES_BYTES: u64 = 128 << 20;
/// How much a body takes at a time.
const STEP_BYTES: usize = 256 * 1024;

/// The part of those who have proven nothing: none of their own.
const ANYBODY: &str = "";
/// The part of those who have proven to be somebody, but for the admin.
const KNOWN: &str = "known";
const KNOWN_BYTES: u64 = 24 << 20;
/// The admin's part.
const ADMIN: &str = "admin";
const ADMIN_BYTES: u64 = 20 << 20;
/// The part of other nodes, on whosever behalf they ask.
const NODES: &str = "nodes";
const NODES_BYTES: u64 = 20 << 20;
const PARTS: [(&str, u64); 3] = [(KNOWN, KNOWN_BYTES), (ADMIN, ADMIN_BYTES), (NODES, NODES_BYTES)];

/// What is common is the other half.
const _: () = assert!(KNOWN_BYTES + ADMIN_BYTES + NODES_BYTES == MAX_BODIES_BYTES / 2);
/// Each has room for one of the largest.
const _: () = assert!(ADMIN_BYTES >= (MAX_REQUEST_BYTES + STEP_BYTES) as u64);
const _: () = assert!(KNOWN_BYTES >= ADMIN_BYTES && NODES_BYTES >= ADMIN_BYTES);

/// No room for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "found no room: those of more than {SMALL_BODY_BYTES} bytes that are under way may have {most} bytes together, \
     and {}. Nothing was done: send fewer or smaller ones at a time, or again later",
    words(.why)
)]
pub struct NoRoom {
    /// What whoever sent it may have, with all others of the same part.
    most: u64,
    why: WhyNoRoom,
}

fn words(why: &WhyNoRoom) -> String {
    match why {
        WhyNoRoom::Late => format!("none was free within {MAX_WAIT:?}"),
        WhyNoRoom::GivesWay => "this one gave way to an older one".to_owned(),
    }
}

/// The room that all bodies have.
#[derive(Clone, Debug)]
pub struct RequestBodies(MemoryBudget);

impl Default for RequestBodies {
    fn default() -> Self {
        Self(MemoryBudget::of_parts(MAX_BODIES_BYTES, &PARTS))
    }
}

impl RequestBodies {
    /// Room for a body of that principal's, which has taken nothing yet.
    #[must_use]
    pub fn room(&self, principal: &Principal) -> BodyRoom<'_> {
        self.room_of(match principal {
            Principal::Anonymous => ANYBODY,
            Principal::Admin => ADMIN,
            Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_) => KNOWN,
        })
    }

    /// The same for a body of another node's.
    #[must_use]
    pub fn room_for_node(&self) -> BodyRoom<'_> {
        self.room_of(NODES)
    }

    /// The same for a body that is a part of one which has its room: it takes nothing.
    #[must_use]
    pub fn room_within(&self) -> BodyRoom<'_> {
        BodyRoom { bytes: usize::MAX, ..self.room_of(ANYBODY) }
    }

    fn room_of(&self, part: &'static str) -> BodyRoom<'_> {
        BodyRoom { all: &self.0, part, share: None, bytes: SMALL_BODY_BYTES }
    }

    /// Takes all that there is.
    #[cfg(test)]
    pub(crate) fn fill(&self) -> [Share; 4] {
        [ANYBODY, KNOWN, ADMIN, NODES].map(|part| {
            let mut share = self.0.share(part);
            while share.try_grow(1 << 20) {}
            share
        })
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
    /// [`NoRoom`]; then it has given back what it had taken.
    pub async fn reach(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if self.has(bytes) {
            return Ok(());
        }
        let more = (bytes - self.bytes).max(STEP_BYTES);
        let share = self.share.get_or_insert_with(|| self.all.share(self.part));
        let grown = share.grow(more as u64).await;
        if let Err(over) = grown {
            // Its answer may take a while; whoever waits for that room does not wait for the answer.
            (self.share, self.bytes) = (None, SMALL_BODY_BYTES);
            return Err(NoRoom { most: self.all.limit_of(self.part), why: over.why() });
        }
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

    const COMMON: usize = (MAX_BODIES_BYTES / 2) as usize;

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
    async fn a_body_within_one_that_has_its_room_takes_none() {
        let all = RequestBodies::default();
        let held = all.fill();
        let mut within = all.room_within();
        within.reach(MAX_REQUEST_BYTES).await.unwrap();
        let body = within.keep(Bytes::from_static(b"x"));
        drop(held);
        assert_eq!((all.0.used(), &*body), (0, &b"x"[..]));
    }

    #[tokio::test]
    async fn who_has_proven_nothing_leaves_the_others_their_part_and_is_told_when_there_is_no_room()
    {
        let all = RequestBodies::default();
        let mut strangers = all.room(&Principal::Anonymous);
        strangers.reach(SMALL_BODY_BYTES + COMMON).await.unwrap();
        let told = all.room(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap_err();
        let told = told.to_string();
        assert!(told.contains("may have 67108864 bytes together, and none was free"), "{told}");
        let [mut known, mut admin] = [known(), Principal::Admin].map(|it| all.room(&it));
        known.reach(SMALL_BODY_BYTES + KNOWN_BYTES as usize).await.unwrap();
        admin.reach(SMALL_BODY_BYTES + ADMIN_BYTES as usize).await.unwrap();
        let mut node = all.room_for_node();
        node.reach(SMALL_BODY_BYTES + NODES_BYTES as usize).await.unwrap();
        assert_eq!(all.0.used(), MAX_BODIES_BYTES);
        drop(strangers);
        all.room(&Principal::Anonymous).reach(SMALL_BODY_BYTES + 1).await.unwrap();
    }

    #[tokio::test]
    async fn no_client_that_is_known_keeps_the_admin_or_a_node_from_a_largest_body() {
        let all = RequestBodies::default();
        let mut most = all.room(&known());
        most.reach(SMALL_BODY_BYTES + COMMON + KNOWN_BYTES as usize).await.unwrap();
        for mut room in [all.room(&Principal::Admin), all.room_for_node()] {
            room.reach(MAX_REQUEST_BYTES).await.unwrap();
        }
        let told = all.room(&known()).reach(SMALL_BODY_BYTES + 1).await.unwrap_err();
        assert!(told.to_string().contains("may have 92274688 bytes together"), "{told}");
    }

    #[tokio::test]
    async fn of_two_that_wait_for_each_other_the_younger_is_told_that_it_gave_way() {
        let all = RequestBodies::default();
        let [mut older, mut younger] = [(); 2].map(|()| all.room(&Principal::Anonymous));
        let half = SMALL_BODY_BYTES + COMMON / 2;
        for room in [&mut older, &mut younger] {
            room.reach(half).await.unwrap();
        }
        let (grown, refused) = tokio::join!(older.reach(half + 1), younger.reach(half + 1));
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("and this one gave way to an older one. Nothing was done"), "{told}");
        // Whoever was refused is still there, and has nothing any more.
        grown.unwrap();
        assert_eq!(all.0.used(), (COMMON / 2 + STEP_BYTES) as u64);
        assert!(!younger.has(half));
    }
}
