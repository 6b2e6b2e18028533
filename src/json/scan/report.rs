//! Report of the scanner: the envelope of one message, breaches, ambiguities and faults.
//!
//! Consists of plain, comparable values without bytes. The inspector decides what follows from them (block, warn, skip).

use crate::span::Span;

/// Bounds on `structuredContent` (FR-A6), measured over the value's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Maximum size in bytes.
    pub max_bytes: u64,
    /// Maximum depth: a scalar has 0, each open array or object adds 1.
    pub max_depth: u32,
}

impl ScanLimits {
    /// Limits that bound nothing.
    pub const NONE: Self = Self { max_bytes: u64::MAX, max_depth: u32::MAX };
}

/// Envelope of a message, as far as it has been read. Offsets count from the first byte of the message. A field does not
/// change once it is set, apart from the end of a [`ScannedPart`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScannedMessage {
    /// Kind of the message by the member it has: `result`, `error` or `method`; a message cannot have two of them. A null `result` or
    /// `error` counts as absent.
    pub kind: Option<MessageKind>,
    /// Whether the key `result` or `error` was read, regardless of its value.
    pub has_outcome: bool,
    /// First of `result`, `error` and the result's `content` whose value has a JSON type that the protocol does not allow: the first two
    /// must be objects, `content` must be an array.
    pub mistyped: Option<ScannedMember>,
    /// The `id`, raw: a string with its quotes, a number, or `null`.
    pub id: Option<Span>,
    /// The value of `result` or `error`.
    pub body: Option<ScannedPart>,
    /// The `method`, a string with its quotes.
    pub method: Option<Span>,
    /// The value of `params`.
    pub params: Option<ScannedPart>,
    /// `content`, a direct member of `result`.
    pub content: Option<ScannedPart>,
    /// `structuredContent`, a direct member of `result`.
    pub structured: Option<ScannedPart>,
    /// `resultType`, a direct member of `result`, regardless of its type.
    pub result_type: Option<Span>,
    /// `requestState`, a direct member of `result`, regardless of its type.
    pub request_state: Option<ScannedPart>,
    /// State of `result` at its closing brace; never set if `result` is not an object.
    pub closed: Option<Closed>,
    /// `isError`, a direct member of `result`; absent if it is not a boolean.
    pub is_error: Option<bool>,
    /// First bound that `structuredContent` exceeded; set at the byte that exceeds it.
    pub breach: Option<Breach>,
    /// First part that two parsers could read differently.
    pub ambiguity: Option<Ambiguity>,
}

/// Kind of a message, by its decisive member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A response that carries a `result`.
    Result,
    /// A response that carries an `error`.
    Error,
    /// A request or a notification.
    Method,
}

/// Whether a closed object had a member, so that an appended member needs a comma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Empty,
    /// Object with at least one member.
    WithMembers,
}

/// Value that has begun and may not have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedPart {
    /// Offset of its first byte.
    pub start: u64,
    /// Offset one past its last byte, once that is known.
    pub end: Option<u64>,
}

impl ScannedPart {
    pub(super) fn open(start: u64) -> Self {
        Self { start, end: None }
    }

    /// The whole span, once the value has ended.
    pub fn span(self) -> Option<Span> {
        self.end.map(|end| Span::new(self.start, end))
    }
}

/// Bound that `structuredContent` exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    pub guard: Guard,
    /// Offset of the byte that exceeded it: byte `limit + 1` of the value, or the bracket that opened level `limit + 1`. If one byte
    /// exceeds both bounds, the size is reported.
    pub at: u64,
    /// The bound, in bytes or levels.
    pub limit: u64,
    /// Whether `isError: true` preceded the breach; only in that case is the breach not final.
    pub after_is_error_true: bool,
}

/// The guards of FR-A6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// [`ScanLimits::max_bytes`].
    Bytes,
    /// [`ScanLimits::max_depth`].
    Depth,
}

/// Part of valid JSON that two parsers could read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguity {
    pub kind: AmbiguityKind,
    /// Offset of the ambiguous key (its opening quote) or value.
    pub at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguityKind {
    /// Duplicate member of `result`, or duplicate unknown member of the top level.
    #[error("duplicate key {0}")]
    Duplicate(ScannedMember),
    /// `isError` is neither `true` nor `false`.
    #[error("isError is not a boolean")]
    IsErrorNotBoolean,
    /// Key of `result` that a case-insensitive reader takes for this member.
    #[error("a key that differs from {0} only by case")]
    Variant(ScannedMember),
    /// A key has an escaped surrogate without its other half.
    #[error("lone surrogate in a key")]
    LoneSurrogate,
    /// More than [`MAX_KEYS`](super::MAX_KEYS) unknown keys: duplicates can no longer be
    /// detected.
    #[error("too many keys")]
    TooManyKeys,
}

/// Member names of a message and of a tool result, which the scanner recognizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScannedMember {
    /// `jsonrpc` of a message.
    Jsonrpc,
    /// `id` of a message.
    Id,
    /// `result` of a message.
    Result,
    /// `error` of a message.
    Error,
    /// `method` of a message.
    Method,
    /// `params` of a message.
    Params,
    /// `content` of a result.
    Content,
    /// `structuredContent` of a result.
    StructuredContent,
    /// `isError` of a result.
    IsError,
    /// `resultType` of a result.
    ResultType,
    /// `requestState` of a result.
    RequestState,
    /// `_meta` of a result.
    Meta,
    /// `ttlMs` of a result.
    TtlMs,
    /// `cacheScope` of a result.
    CacheScope,
    /// Any other name, at either level.
    Other,
}

impl std::fmt::Display for ScannedMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Jsonrpc => "jsonrpc",
            Self::Id => "id",
            Self::Result => "result",
            Self::Error => "error",
            Self::Method => "method",
            Self::Params => "params",
            Self::Content => "content",
            Self::StructuredContent => "structuredContent",
            Self::IsError => "isError",
            Self::ResultType => "resultType",
            Self::RequestState => "requestState",
            Self::Meta => "_meta",
            Self::TtlMs => "ttlMs",
            Self::CacheScope => "cacheScope",
            Self::Other => "(other)",
        })
    }
}

/// Fault that makes a message unusable, and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (byte {at})")]
pub struct ScanError {
    /// Offset of the offending byte; the message's length if it is truncated.
    pub at: u64,
    pub fault: ScanFault,
}

/// Kind of a [`ScanError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanFault {
    /// The message does not begin with `{` (a scalar, a byte order mark, not JSON).
    #[error("message is not a JSON object")]
    NotAnObject,
    /// The message begins with `[`.
    #[error("batches are not supported")]
    Batch,
    /// The message ends before its object does.
    #[error("message ends early")]
    Truncated,
    /// Something other than white space follows the message's object.
    #[error("bytes after the end of the message")]
    Trailing,
    /// A byte that JSON does not allow at this position.
    #[error("unexpected byte")]
    Unexpected,
    /// A closing bracket of the wrong kind.
    #[error("mismatched bracket")]
    Mismatched,
    /// A raw control character in a string.
    #[error("control character in a string")]
    Control,
    /// An escape that JSON does not have.
    #[error("invalid escape")]
    Escape,
    /// A key that is not UTF-8.
    #[error("key is not UTF-8")]
    Utf8,
    /// A number that JSON does not allow.
    #[error("invalid number")]
    Number,
    /// Duplicate top-level member that the protocol defines.
    #[error("duplicate member {0}")]
    Duplicate(ScannedMember),
    /// More than one of `result`, `error` and `method`.
    #[error("message has more than one of result, error and method")]
    Conflict,
    /// `id` is not a string, number or null, or `method` is not a string.
    #[error("member {0} has the wrong type")]
    WrongType(ScannedMember),
}
