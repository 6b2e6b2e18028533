//! The grades of a change, from none to the gravest.

use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

/// How grave a change is; the later ones are graver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// The same in other words of JSON.
    Same,
    /// Words for people and models alone.
    Text,
    /// Less is accepted, or more is promised.
    Narrowed,
    /// More is accepted, less is promised, or it cannot be told.
    Widened,
    /// A hint is taken back on which somebody may have relied.
    Loosened,
}

impl Grade {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Text => "text",
            Self::Narrowed => "narrowed",
            Self::Widened => "widened",
            Self::Loosened => "loosened",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
