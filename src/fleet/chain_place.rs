//! Where a node's chain goes on at its start: of what the node remembers and what the store has, and whether the node's log is
//! the one that was sealed. Pure.

use thiserror::Error;

use super::checkpoint::Checkpoint;
use super::sealing::ChainPosition;
use super::segment::SegmentName;
use crate::activity::record::Hash;

/// Where a chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainPlace {
    /// How far it has come in the store.
    pub stored: ChainPosition,
    /// The day in the name of the last segment there.
    pub day: i32,
    /// The last record of a segment that is on its way, which is sealed as it was.
    pub planned: Option<u64>,
}

/// Why a chain cannot go on with a log.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LogMismatch {
    /// The log ends before.
    #[error("the log ends with record {0}, before what was sealed")]
    Older(u64),
    /// The last record that was sealed is another one in the log.
    #[error("the log has gone another way")]
    Another,
}

impl ChainPlace {
    /// Of what the node remembers and the newest segment after that ([`newest`]); `None` where there is neither.
    #[must_use]
    pub fn of(known: Option<Self>, newest: Option<(&SegmentName, &Checkpoint)>) -> Option<Self> {
        let Some((name, checkpoint)) = newest else { return known };
        let stored = ChainPosition {
            seq: checkpoint.last,
            head: checkpoint.head,
            checkpoint: Some(checkpoint.hash()),
        };
        Some(Self { stored, day: name.day, planned: None })
    }

    /// Whether the chain can go on with a log that ends with record `end`, and whose record at the place has that hash, if the
    /// log still has it.
    ///
    /// # Errors
    ///
    /// [`LogMismatch`].
    pub fn check_log(&self, end: u64, hash: Option<Hash>) -> Result<(), LogMismatch> {
        if end < self.stored.seq {
            return Err(LogMismatch::Older(end));
        }
        match hash {
            Some(hash) if hash != self.stored.head => Err(LogMismatch::Another),
            Some(_) | None => Ok(()),
        }
    }
}

/// The newest of some segments that is after what the node remembers.
#[must_use]
pub fn newest(
    names: impl Iterator<Item = SegmentName>,
    known: Option<ChainPlace>,
) -> Option<SegmentName> {
    names.max().filter(|name| known.is_none_or(|place| name.last > place.stored.seq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::checkpoint::tests::example;

    #[test]
    fn the_store_counts_where_it_has_more_than_the_node_remembers() {
        let (name, checkpoint) = (SegmentName::of(&example(), 20_000), example());
        let stored = ChainPosition { seq: 4199, head: Hash([3; 32]), checkpoint: None };
        let known = ChainPlace { stored, day: 19_000, planned: Some(4300) };
        let newest = |known| newest([name.clone()].into_iter(), known);
        assert_eq!(newest(None), Some(name.clone()));
        assert_eq!(newest(Some(known)), Some(name.clone()));
        let place = ChainPlace::of(Some(known), Some((&name, &checkpoint))).unwrap();
        assert_eq!((place.stored.seq, place.stored.head), (4711, checkpoint.head));
        assert_eq!((place.day, place.planned), (20_000, None));
        assert_eq!(place.stored.checkpoint, Some(checkpoint.hash()));
        assert_eq!(newest(Some(place)), None, "it is remembered");
        assert_eq!(ChainPlace::of(Some(known), None), Some(known), "what was planned, too");
        assert_eq!(ChainPlace::of(None, None), None);
    }

    #[test]
    fn a_log_that_is_older_or_another_is_refused() {
        let stored = ChainPosition { seq: 7, head: Hash([3; 32]), checkpoint: None };
        let place = ChainPlace { stored, day: 0, planned: None };
        assert_eq!(place.check_log(7, Some(Hash([3; 32]))), Ok(()));
        assert_eq!(place.check_log(9, None), Ok(()), "it is not in the log any more");
        assert_eq!(place.check_log(6, None), Err(LogMismatch::Older(6)));
        assert_eq!(place.check_log(9, Some(Hash([4; 32]))), Err(LogMismatch::Another));
    }
}
