//! What the scanner reports: the envelope of one message, breaches, ambiguities and faults.
//!
//! Plain, comparable values without bytes. The scanner finds them; the inspector decides what
//! follows from them (block, warn, skip).

use crate::json::span::Span;

/// The two bounds on `structuredContent` (FR-A6). Its span alone is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Most bytes the value may have, first byte to last.
    pub max_bytes: u64,
    /// Deepest nesting it may have: a scalar is 0, each open array or object adds 1.
    pub max_depth: u32,
}

impl ScanLimits {
    /// No bound at all: nothing can breach.
    pub const NONE: Self = Self { max_bytes: u64::MAX, max_depth: u32::MAX };
}

/// What is known of a message so far. Offsets count from the message's first byte, and a field
/// never changes once it is set (but for a [`ScannedPart`]'s end, which is filled in).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScannedMessage {
    /// Which of `result`, `error` and `method` the message has; it cannot have two.
    pub kind: Option<MessageKind>,
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
    /// `resultType`, a direct member of `result`, whatever its type.
    pub result_type: Option<Span>,
    /// How `result` closed: set at its last brace, never where it is no object.
    pub closed: Option<Closed>,
    /// `isError`, a direct member of `result`, as known so far. Absent when it is no boolean.
    pub is_error: Option<bool>,
    /// The first guard that `structuredContent` broke; set at the byte that makes it certain.
    pub breach: Option<Breach>,
    /// The first thing that two parsers could read differently.
    pub ambiguity: Option<Ambiguity>,
}

/// The kind of a message, which one of its members decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A response that carries a `result`.
    Result,
    /// A response that carries an `error`.
    Error,
    /// A request or a notification.
    Method,
}

/// Whether an object that has closed had a member, so that another one needs a comma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It had none.
    Empty,
    /// It had one at least.
    WithMembers,
}

/// A value that has begun and may not have ended.
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
    #[must_use]
    pub fn span(self) -> Option<Span> {
        self.end.map(|end| Span::new(self.start, end))
    }

    /// The part of the value that has been seen when `position` bytes of the message have.
    #[must_use]
    pub fn seen(self, position: u64) -> Span {
        Span::new(self.start, self.end.unwrap_or(position))
    }
}

/// A bound that `structuredContent` broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which bound.
    pub guard: Guard,
    /// Offset of the byte that broke it: the value's byte number `limit + 1`, or the bracket
    /// that opened level `limit + 1`. Where both fall on one byte, it is the size that counts.
    pub at: u64,
    /// The bound, in bytes or levels.
    pub limit: u64,
    /// Whether `isError: true` stood before it; only then is the breach not final.
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

/// Something that leaves the message JSON, but that two parsers could read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguity {
    /// What it is.
    pub doubt: Doubt,
    /// Offset of the key (its opening quote), or of the value, that is in doubt.
    pub at: u64,
}

/// The kinds of [`Ambiguity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// A member of `result` (or a top-level one that means nothing to us) stands twice.
    #[error("duplicate key {0}")]
    Duplicate(ScannedMember),
    /// `isError` is neither `true` nor `false`.
    #[error("isError is not a boolean")]
    IsErrorNotBoolean,
    /// A key of `result` is not this one, but to a reader that ignores case.
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

/// The member names the scanner knows: those of a message, and those of a tool result.
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
    /// `_meta` of a result.
    Meta,
    /// `ttlMs` of a result.
    TtlMs,
    /// `cacheScope` of a result.
    CacheScope,
    /// Any other name, at either level.
    Other,
}

impl ScannedMember {
    /// The kind of message that has this member.
    pub(super) fn kind(self) -> Option<MessageKind> {
        match self {
            Self::Result => Some(MessageKind::Result),
            Self::Error => Some(MessageKind::Error),
            Self::Method => Some(MessageKind::Method),
            Self::Jsonrpc
            | Self::Id
            | Self::Params
            | Self::Content
            | Self::StructuredContent
            | Self::IsError
            | Self::ResultType
            | Self::Meta
            | Self::TtlMs
            | Self::CacheScope
            | Self::Other => None,
        }
    }
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
            Self::Meta => "_meta",
            Self::TtlMs => "ttlMs",
            Self::CacheScope => "cacheScope",
            Self::Other => "(other)",
        })
    }
}

/// Why a message is not one that can be used, and where that became certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (byte {at})")]
pub struct ScanError {
    /// Offset of the offending byte; the message's length if it stopped short.
    pub at: u64,
    /// What is wrong.
    pub fault: ScanFault,
}

/// What can be wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanFault {
    /// It does not begin with `{` (a bare scalar, a byte order mark, no JSON at all).
    #[error("message is not a JSON object")]
    NotAnObject,
    /// It begins with `[`.
    #[error("batches are not supported")]
    Batch,
    /// It ends before its object does.
    #[error("message ends early")]
    Truncated,
    /// Something other than white space follows its object.
    #[error("bytes after the end of the message")]
    Trailing,
    /// A byte that JSON does not allow where it stands.
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
    /// A top-level member that the protocol defines stands twice.
    #[error("duplicate member {0}")]
    Duplicate(ScannedMember),
    /// The message has two of `result`, `error` and `method`.
    #[error("message has more than one of result, error and method")]
    Conflict,
    /// `id` is neither string, number nor null, or `method` is no string.
    #[error("member {0} has the wrong type")]
    WrongType(ScannedMember),
}
