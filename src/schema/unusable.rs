//! Why a schema is not used: one clear line each, that names the cause (FR-A9).
//!
//! Owns the words. Deliberately finds nothing out.

use std::fmt;

use thiserror::Error;

use super::cut::cut;
use crate::json::tape::TapeFault;

/// Bytes of an engine's explanation that go into an [`Unusable`].
pub(super) const EXPLANATION_MAX: usize = 300;

/// Why a schema cannot be used: one clear line each (FR-A9).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// More text than [`Bounds::bytes`](super::bounds::Bounds::bytes).
    #[error("the schema has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its length in bytes.
        bytes: usize,
        /// The bound in bytes.
        limit: usize,
    },
    /// Not JSON that every parser reads alike.
    #[error("the schema {0}")]
    NotJson(TapeFault),
    /// Neither an object nor a boolean.
    #[error("the schema is neither an object nor a boolean")]
    NotASchema,
    /// Nested deeper than [`Bounds::depth`](super::bounds::Bounds::depth).
    #[error("the schema is nested deeper than {limit}")]
    TooDeep {
        /// The bound.
        limit: usize,
    },
    /// More than [`Bounds::subschemas`](super::bounds::Bounds::subschemas).
    #[error("the schema has more than {limit} subschemas")]
    TooManySubschemas {
        /// The bound.
        limit: usize,
    },
    /// More than [`Bounds::targets`](super::bounds::Bounds::targets).
    #[error("the references of the schema lead to more than {limit} places")]
    TooManyTargets {
        /// The bound.
        limit: usize,
    },
    /// More than [`Bounds::compiled`](super::bounds::Bounds::compiled).
    #[error(
        "the schema has more than {limit} subschemas, counted for each way through its resources"
    )]
    Ways {
        /// The bound.
        limit: u64,
    },
    /// A name that stands in more than [`MAX_PLACES`](super::bounds::MAX_PLACES) places, or could.
    #[error("a name stands in more than {limit} places of the schema")]
    Names {
        /// The bound.
        limit: usize,
    },
    /// A regular expression longer than
    /// [`Bounds::pattern_bytes`](super::bounds::Bounds::pattern_bytes).
    #[error("a pattern of the schema has {bytes} bytes, more than {limit}")]
    PatternTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The bound in bytes.
        limit: usize,
    },
    /// Regular expressions that compile to more than
    /// [`Bounds::pattern_program`](super::bounds::Bounds::pattern_program).
    #[error("the patterns of the schema compile to more than {limit} bytes")]
    PatternsTooLarge {
        /// How large they may be together.
        limit: usize,
    },
    /// A regular expression that no engine takes, or only with too large a program.
    #[error(
        "the pattern '{pattern}' is not a regular expression, or compiles to more than {limit} bytes"
    )]
    Pattern {
        /// Its beginning.
        pattern: String,
        /// How large its program may be.
        limit: usize,
    },
    /// More than [`Bounds::expansion`](super::bounds::Bounds::expansion).
    #[error("one value could be visited {} times, more than {limit}: alternatives multiply", or_endlessly(*visits))]
    Expansion {
        /// How often it could be visited; `u64::MAX` where there is no bound.
        visits: u64,
        /// How often it may be.
        limit: u64,
    },
    /// Visits nest deeper than [`Bounds::nesting`](super::bounds::Bounds::nesting) on a single
    /// value: long chains of references.
    #[error(
        "the schema nests {nesting} references and alternatives in each other, more than {limit}"
    )]
    Nesting {
        /// How deep they nest.
        nesting: u64,
        /// How deep they may nest.
        limit: u64,
    },
    /// A `$schema` that is none of the dialects.
    #[error("the dialect '{0}' is not supported")]
    Dialect(String),
    /// A `$schema` within, of a dialect that identifies resources otherwise than the schema's own.
    #[error(
        "the dialect '{0}' within the schema identifies resources otherwise than the schema's own, and is not supported there"
    )]
    MixedDialects(String),
    /// A reference that leaves the schema.
    #[error("the reference to '{0}' leaves the schema and is not fetched")]
    RemoteReference(String),
    /// A reference to a place that the schema does not have.
    #[error("the reference to '{0}' leads to nothing in the schema")]
    DanglingReference(String),
    /// A name on the meta-schemas' host, which no schema may give itself.
    #[error("the schema gives itself the name '{0}' of a meta-schema")]
    Claimed(String),
    /// It takes too long to compile.
    #[error("the schema takes longer than {limit} seconds to compile")]
    Slow {
        /// The bound in seconds.
        limit: u64,
    },
    /// Refused by an engine, in its words.
    #[error("the schema is not valid: {0}")]
    Invalid(String),
}

fn or_endlessly(visits: u64) -> String {
    if visits == u64::MAX { "endlessly many".to_owned() } else { visits.to_string() }
}

/// An engine's error as one line of at most [`EXPLANATION_MAX`] bytes.
pub(super) fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, EXPLANATION_MAX).to_owned()
}
