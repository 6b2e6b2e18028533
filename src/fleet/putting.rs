//! How a segment is put, so that it counts as stored only when the store has said so twice, in its answer and when it is asked,
//! and is the one in which the node has its place. Pure: says what to ask next, and is told the answer.
//!
//! ```text
//!          ┌─ Create ─ made ──┐
//! begins ──┤     └──── exists ┼─▶ Place ─ ours ─▶ Compare ─ the same ──┬─▶ Place ─ ours ─▶ stored
//!          └─ Replace ────────┴─▶ Place ─ ours ─▶ Measure ─ its length ┘
//! ```
//!
//! The place is looked at between the put and the question, and behind it. A store that is swapped for another one, or comes back,
//! at whatever moment of it, has either not got the segment where it is asked, or is not ours: an earlier attempt may have come
//! late to the other one. It would have to go twice within one put.

use thiserror::Error;

use super::checkpoint::CheckpointHash;
use super::own_place::PlaceLost;

/// What to ask of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutAsk {
    /// To make the object if there is none under its key.
    Create,
    /// To put it under its key, whatever is there.
    Replace,
    /// Whether it is the store in which the node has its place.
    Place,
    /// What is there, to be compared with the segment.
    Compare,
    /// How long what is there is.
    Measure,
}

/// What the store answers. Where it does not, the whole is begun anew later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutAnswer {
    /// It was put.
    Done,
    /// There is one, and it is as it was.
    Exists,
    /// It is that store, or why it is not.
    Place(Result<(), PlaceLost>),
    /// What is there is the same segment, with that checkpoint, perhaps written by another version; `None` for another one.
    There(Option<CheckpointHash>),
    /// How many bytes what is there has; `None` for nothing.
    Length(Option<u64>),
}

/// Why a segment does not count as stored.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotStored {
    /// Its place is taken.
    #[error("is there already, and is another segment")]
    Another,
    /// The store said that it has it, and has something else.
    #[error("was put with {put} bytes and has {there}")]
    Length {
        /// How long it is.
        put: u64,
        /// How long what is there is.
        there: u64,
    },
    /// The store said that it has it, and has not.
    #[error("was put and is not there")]
    Gone,
    /// It is in a store that is not the fleet's.
    #[error("was put into another store than the one in which this node has its place, {0}")]
    Elsewhere(PlaceLost),
    /// The answer is none to what was asked.
    #[error("was put, and the answer is of something else")]
    Odd,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutNext {
    /// To ask on.
    Ask(Putting),
    /// It is in the store, with that checkpoint.
    Stored(CheckpointHash),
}

/// What follows once it was seen that the store is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BehindPlace {
    /// The question whether the segment is there.
    Ask(PutAsk),
    /// It was there: it is stored, with that checkpoint.
    Stored(CheckpointHash),
}

/// A segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Putting {
    ask: PutAsk,
    then: BehindPlace,
    length: u64,
    checkpoint: CheckpointHash,
}

impl Putting {
    /// Of a segment of `length` bytes; `creates` where the store has shown that it makes an object only if there is none.
    #[must_use]
    pub fn new(creates: bool, length: u64, checkpoint: CheckpointHash) -> Self {
        let ask = if creates { PutAsk::Create } else { PutAsk::Replace };
        Self { ask, then: BehindPlace::Ask(PutAsk::Measure), length, checkpoint }
    }

    /// What to ask now.
    #[must_use]
    pub fn ask(&self) -> PutAsk {
        self.ask
    }

    /// The store has answered.
    ///
    /// # Errors
    ///
    /// [`NotStored`].
    pub fn answered(self, answer: PutAnswer) -> Result<PutNext, NotStored> {
        let Self { ask, then, length, checkpoint } = self;
        let place_then = |then| Ok(PutNext::Ask(Self { ask: PutAsk::Place, then, ..self }));
        match (ask, answer) {
            (PutAsk::Create | PutAsk::Replace, PutAnswer::Done) => {
                place_then(BehindPlace::Ask(PutAsk::Measure))
            }
            // The answer to an earlier attempt was lost; or somebody else was here.
            (PutAsk::Create, PutAnswer::Exists) => place_then(BehindPlace::Ask(PutAsk::Compare)),
            (PutAsk::Place, PutAnswer::Place(Ok(()))) => Ok(match then {
                BehindPlace::Ask(ask) => PutNext::Ask(Self { ask, ..self }),
                BehindPlace::Stored(checkpoint) => PutNext::Stored(checkpoint),
            }),
            (PutAsk::Place, PutAnswer::Place(Err(lost))) => Err(NotStored::Elsewhere(lost)),
            (PutAsk::Compare, PutAnswer::There(Some(there))) => {
                place_then(BehindPlace::Stored(there))
            }
            (PutAsk::Compare, PutAnswer::There(None)) => Err(NotStored::Another),
            (PutAsk::Measure, PutAnswer::Length(Some(there))) if there == length => {
                place_then(BehindPlace::Stored(checkpoint))
            }
            (PutAsk::Measure, PutAnswer::Length(Some(there))) => {
                Err(NotStored::Length { put: length, there })
            }
            (PutAsk::Measure, PutAnswer::Length(None)) => Err(NotStored::Gone),
            (
                PutAsk::Create
                | PutAsk::Replace
                | PutAsk::Place
                | PutAsk::Compare
                | PutAsk::Measure,
                PutAnswer::Done
                | PutAnswer::Exists
                | PutAnswer::Place(_)
                | PutAnswer::There(_)
                | PutAnswer::Length(_),
            ) => Err(NotStored::Odd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked, and how it ends.
    fn run(
        creates: bool,
        answers: &[PutAnswer],
    ) -> (Vec<PutAsk>, Option<Result<CheckpointHash, NotStored>>) {
        let (mut putting, mut asked) = (Putting::new(creates, 10, [1; 32]), Vec::new());
        for answer in answers {
            asked.push(putting.ask());
            match putting.answered(*answer) {
                Ok(PutNext::Ask(next)) => putting = next,
                Ok(PutNext::Stored(checkpoint)) => return (asked, Some(Ok(checkpoint))),
                Err(error) => return (asked, Some(Err(error))),
            }
        }
        (asked, None)
    }

    #[test]
    fn it_is_stored_when_the_store_has_said_so_twice() {
        use PutAnswer::{Done, Exists, Length, There};
        use PutAsk::{Compare, Create, Measure, Place, Replace};
        const OURS: PutAnswer = PutAnswer::Place(Ok(()));
        let stored = |by| Some(Ok([by; 32]));
        let measured = [Done, OURS, Length(Some(10)), OURS];
        assert_eq!(run(true, &measured), (vec![Create, Place, Measure, Place], stored(1)));
        assert_eq!(run(false, &measured), (vec![Replace, Place, Measure, Place], stored(1)));
        let compared = [Exists, OURS, There(Some([2; 32])), OURS];
        assert_eq!(run(true, &compared), (vec![Create, Place, Compare, Place], stored(2)));
        assert_eq!(run(true, &[Done, OURS]).1, None, "once is not enough");
        assert_eq!(run(true, &measured[..3]).1, None, "the store may be another one by now");
        for (creates, answers, why) in [
            (true, vec![Exists, OURS, There(None)], NotStored::Another),
            (true, vec![Done, OURS, Length(None)], NotStored::Gone),
            (false, vec![Done, OURS, Length(Some(9))], NotStored::Length { put: 10, there: 9 }),
            (false, vec![Exists], NotStored::Odd),
            (true, vec![Done, Length(Some(10))], NotStored::Odd),
            (true, vec![Done, OURS, There(Some([1; 32]))], NotStored::Odd),
            (true, vec![Exists, OURS, Length(Some(10))], NotStored::Odd),
        ] {
            assert_eq!(run(creates, &answers).1, Some(Err(why)));
        }
    }

    #[test]
    fn what_was_put_into_another_store_is_not_stored() {
        for lost in [PlaceLost::NoFleet, PlaceLost::OtherFleet, PlaceLost::NoClaim] {
            let elsewhere = PutAnswer::Place(Err(lost));
            let ours = PutAnswer::Place(Ok(()));
            let (length, there) = (PutAnswer::Length(Some(10)), PutAnswer::There(Some([1; 32])));
            for answers in [
                vec![PutAnswer::Done, elsewhere],
                vec![PutAnswer::Exists, elsewhere],
                vec![PutAnswer::Done, ours, length, elsewhere],
                vec![PutAnswer::Exists, ours, there, elsewhere],
            ] {
                assert_eq!(run(true, &answers).1, Some(Err(NotStored::Elsewhere(lost))));
            }
        }
    }
}
