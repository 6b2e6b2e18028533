//! Reasons why a schema is unusable, one line each (FR-A9).

use std::fmt;

use thiserror::Error;

use mcpproxy_json::tape::TapeFault;

/// Maximum length of an engine's explanation in an [`Unusable`], in bytes.
pub(super) const EXPLANATION_MAX: usize = 300;

/// Reason why a schema is unusable, in one line (FR-A9).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// The text is longer than [`Bounds::bytes`](super::bounds::Bounds::bytes).
    #[error("the schema has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Length in bytes.
        bytes: usize,
        /// The bound in bytes.
        limit: usize,
    },
    /// The text is not JSON that all parsers read the same way.
    #[error("the schema {0}")]
    NotJson(TapeFault),
    /// The schema is neither an object nor a boolean.
    #[error("the schema is neither an object nor a boolean")]
    NotASchema,
    /// The text is nested deeper than [`Bounds::depth`](super::bounds::Bounds::depth).
    #[error("the schema is nested deeper than {limit}")]
    TooDeep { limit: usize },
    /// The number of subschemas exceeds [`Bounds::subschemas`](super::bounds::Bounds::subschemas).
    #[error("the schema has more than {limit} subschemas")]
    TooManySubschemas { limit: usize },
    /// The number of reference targets exceeds [`Bounds::targets`](super::bounds::Bounds::targets).
    #[error("the references of the schema lead to more than {limit} places")]
    TooManyTargets { limit: usize },
    /// The number of subschemas to compile exceeds
    /// [`Bounds::compiled`](super::bounds::Bounds::compiled).
    #[error(
        "the schema has more than {limit} subschemas, counted once per path through its resources"
    )]
    Ways { limit: u64 },
    /// A name occurs, or could occur, in more than [`MAX_PLACES`](super::bounds::MAX_PLACES)
    /// places.
    #[error("a name occurs in more than {limit} places of the schema")]
    Names { limit: usize },
    /// A regular expression is longer than
    /// [`Bounds::pattern_bytes`](super::bounds::Bounds::pattern_bytes).
    #[error("a pattern of the schema has {bytes} bytes, more than {limit}")]
    PatternTooLong {
        /// Length in bytes.
        bytes: usize,
        /// The bound in bytes.
        limit: usize,
    },
    /// The regular expressions compile to more than
    /// [`Bounds::pattern_program`](super::bounds::Bounds::pattern_program).
    #[error("the patterns of the schema compile to more than {limit} bytes")]
    PatternsTooLarge {
        /// Maximum size of all programs together, in bytes.
        limit: usize,
    },
    /// A regular expression is supported by no engine, or only with too large a program.
    #[error(
        "the pattern '{pattern}' is not a regular expression, or compiles to more than {limit} bytes"
    )]
    Pattern {
        pattern: String,
        /// Maximum size of its program in bytes.
        limit: usize,
    },
    /// The number of visits exceeds [`Bounds::expansion`](super::bounds::Bounds::expansion).
    #[error("evaluating one value could take {} steps (limit {limit}): nested alternatives multiply the work", or_unlimited(*visits))]
    Expansion {
        /// Maximum number of visits; `u64::MAX` if unbounded.
        visits: u64,
        /// Allowed number of visits.
        limit: u64,
    },
    /// Visits nest deeper than [`Bounds::nesting`](super::bounds::Bounds::nesting) on a single
    /// value: long chains of references.
    #[error(
        "the schema nests {nesting} references and alternatives in each other, more than {limit}"
    )]
    Nesting {
        /// Nesting of the visits.
        nesting: u64,
        /// Allowed nesting.
        limit: u64,
    },
    /// Unknown `$schema`.
    #[error("the dialect '{0}' is not supported")]
    Dialect(String),
    /// A nested `$schema` names a dialect that identifies resources by another keyword.
    #[error(
        "the dialect '{0}' within the schema identifies resources by another keyword than the schema's own, and is not supported there"
    )]
    MixedDialects(String),
    /// A reference leads out of the schema.
    #[error("the reference to '{0}' leaves the schema and is not fetched")]
    RemoteReference(String),
    /// A reference leads to a place that does not exist in the schema.
    #[error("the reference to '{0}' does not resolve within the schema")]
    DanglingReference(String),
    /// The schema claims a name on the meta-schemas' host.
    #[error("the schema claims the name '{0}' of a meta-schema")]
    Claimed(String),
    /// Compilation takes too long.
    #[error("the schema takes longer than {limit} seconds to compile")]
    Slow {
        /// The bound in seconds.
        limit: u64,
    },
    /// An engine refused the schema, with this explanation.
    #[error("the schema is not valid: {0}")]
    Invalid(String),
}

fn or_unlimited(visits: u64) -> String {
    if visits == u64::MAX { "unlimited".to_owned() } else { visits.to_string() }
}

/// Engine's error as one line of at most [`EXPLANATION_MAX`] bytes.
pub(super) fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, EXPLANATION_MAX).to_owned()
}

/// Maximum length of a misfit's pointers into the document and the schema, in bytes.
pub(super) const MAX_PLACE_BYTES: usize = 512;

/// Maximum length of a name in bytes.
pub(super) const MAX_NAME_BYTES: usize = 128;

/// At most `limit` bytes of `text`, truncated at a character boundary.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}
