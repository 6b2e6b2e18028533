//! The pieces that an answer is handed out in.

use bytes::Bytes;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// The next bytes of the current JSON message, never empty.
    Data(Bytes),
    /// That message is complete: one JSON body, one event, one line.
    End,
}
