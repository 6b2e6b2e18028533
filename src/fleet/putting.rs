//! How a segment is put, so that it counts as stored only when the store has said so twice: in its answer, and when it is asked.
//! Pure: says what to ask next, and is told the answer.
//!
//! ```text
//!          ┌─ Create ─ made ──┐
//! begins ──┤     └──── exists ┼─▶ Compare ─ the same ──▶ stored
//!          └─ Replace ────────┴─▶ Measure ─ its length ─▶ stored
//! ```

use thiserror::Error;

use super::checkpoint::CheckpointHash;

/// What to ask of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutAsk {
    /// To make the object if there is none under its key.
    Create,
    /// To put it under its key, whatever is there.
    Replace,
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

/// A segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Putting {
    ask: PutAsk,
    length: u64,
    checkpoint: CheckpointHash,
}

impl Putting {
    /// Of a segment of `length` bytes; `creates` where the store has shown that it makes an object only if there is none.
    #[must_use]
    pub fn new(creates: bool, length: u64, checkpoint: CheckpointHash) -> Self {
        let ask = if creates { PutAsk::Create } else { PutAsk::Replace };
        Self { ask, length, checkpoint }
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
        let Self { ask, length, checkpoint } = self;
        let then = |ask| Ok(PutNext::Ask(Self { ask, ..self }));
        match (ask, answer) {
            (PutAsk::Create | PutAsk::Replace, PutAnswer::Done) => then(PutAsk::Measure),
            // The answer to an earlier attempt was lost; or somebody else was here.
            (PutAsk::Create, PutAnswer::Exists) => then(PutAsk::Compare),
            (PutAsk::Compare, PutAnswer::There(Some(there))) => Ok(PutNext::Stored(there)),
            (PutAsk::Compare, PutAnswer::There(None)) => Err(NotStored::Another),
            (PutAsk::Measure, PutAnswer::Length(Some(there))) if there == length => {
                Ok(PutNext::Stored(checkpoint))
            }
            (PutAsk::Measure, PutAnswer::Length(Some(there))) => {
                Err(NotStored::Length { put: length, there })
            }
            (PutAsk::Measure, PutAnswer::Length(None)) => Err(NotStored::Gone),
            (
                PutAsk::Create | PutAsk::Replace | PutAsk::Compare | PutAsk::Measure,
                PutAnswer::Done | PutAnswer::Exists | PutAnswer::There(_) | PutAnswer::Length(_),
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
        use PutAsk::{Compare, Create, Measure, Replace};
        let stored = |by| Some(Ok([by; 32]));
        assert_eq!(run(true, &[Done, Length(Some(10))]), (vec![Create, Measure], stored(1)));
        assert_eq!(run(false, &[Done, Length(Some(10))]), (vec![Replace, Measure], stored(1)));
        assert_eq!(run(true, &[Exists, There(Some([2; 32]))]), (vec![Create, Compare], stored(2)));
        assert_eq!(run(true, &[Done]).1, None, "once is not enough");
        for (creates, answers, why) in [
            (true, [Exists, There(None)], NotStored::Another),
            (true, [Done, Length(None)], NotStored::Gone),
            (false, [Done, Length(Some(9))], NotStored::Length { put: 10, there: 9 }),
            (false, [Exists, Done], NotStored::Odd),
            (true, [Done, There(Some([1; 32]))], NotStored::Odd),
        ] {
            assert_eq!(run(creates, &answers).1, Some(Err(why)));
        }
    }
}
