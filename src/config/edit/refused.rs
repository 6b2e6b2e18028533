//! Why a text was not changed. Pure.

use crate::config::problem::{KeyPath, Problem};

/// Why a text was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditRefused {
    /// It is no JSON object to begin with.
    #[error("it cannot be changed as long as it cannot be read: {0}")]
    Unreadable(Box<Problem>),
    /// There is something else than an object on the way.
    #[error("{0} is no object: write {{…}} there, or remove it")]
    NoObject(KeyPath),
    /// The change would not have come out as it was meant.
    #[error("{0} cannot be changed without changing what stands around it: change it by hand")]
    Unsure(KeyPath),
}
