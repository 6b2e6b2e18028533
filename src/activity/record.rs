//! Activity records: ids, hashes, vocabularies, payloads, and the stored [`Record`]; the [`Entry`] that a
//! call submits is in `draft`. Pure.
//!
//! Ids and times are arguments. The binary format is in `codec`, the JSON in `show`, the removal of secrets
//! in `redact`.

mod draft;

pub use self::draft::{
    Decision, Draft, Entry, LateMember, MAX_ERROR_BYTES, MAX_METADATA_BYTES, MAX_NAME_BYTES, META,
    REPEATED, Raw, Recording, Text, decision_metadata, with_member,
};

use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type as SchemaType};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Record id: a ULID whose time never decreases and whose random part is the sequence number and a tag of the
/// node. Ids grow in store order, and a record is found by its id without an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u128);

impl Id {
    const SEQ_BITS: u32 = 48;
    const NODE_BITS: u32 = 32;

    /// The id of record `seq`, stored at `time_ms` (milliseconds since 1970) on `node`.
    pub fn new(time_ms: u64, seq: u64, node: NodeId) -> Self {
        let time = u128::from(time_ms & ((1 << 48) - 1)) << (Self::SEQ_BITS + Self::NODE_BITS);
        let seq = u128::from(seq & ((1 << Self::SEQ_BITS) - 1)) << Self::NODE_BITS;
        Self(time | seq | u128::from(node.tag()))
    }

    /// The sequence number part.
    pub fn seq(self) -> u64 {
        ((self.0 >> Self::NODE_BITS) as u64) & ((1 << Self::SEQ_BITS) - 1)
    }

    /// Storage time in milliseconds since 1970.
    pub fn time_ms(self) -> u64 {
        (self.0 >> (Self::SEQ_BITS + Self::NODE_BITS)) as u64
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Parses the 26 characters of a ULID.
    pub fn parse(text: &str) -> Option<Self> {
        ulid::Ulid::from_string(text).ok().map(|ulid| Self(ulid.0))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ulid::Ulid(self.0).fmt(f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identity of a log, generated at random once per data folder.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    fn tag(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Chain hash: BLAKE3 over a record's canonical bytes and its predecessor's hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Parses the hexadecimal form.
    pub fn parse(text: &str) -> Option<Self> {
        let (one, other) = text.split_at_checked(32)?;
        let half = |text| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes);
        let hash = Self([half(one)?, half(other)?].as_flattened().try_into().ok()?);
        (hash.to_string() == text).then_some(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub use mcpproxy_policy::intent::Operation;

/// Defines an enum whose values have a name and a stable code on disk.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),+ }

        impl $name {
            /// All values, in order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Name used in JSON, filters and tables.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Code on disk.
            pub const fn code(self) -> u8 { self as u8 }

            /// The value with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.as_str()) }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> { words(Self::ALL.iter().map(|it| it.as_str())) }
        }

        impl ToSchema for $name {}
    };
}

named! {
    /// Subject of a record (`type` in JSON).
    Type {
        /// A call to a tool of an upstream server.
        ToolCall = 1 "tool_call",
        /// A decision that blocked something or warned about it.
        PolicyDecision = 2 "policy_decision",
        /// A call to one of the proxy's own tools.
        InternalToolCall = 3 "internal_tool_call",
        /// A change of an upstream server's state: connected, disconnected, failed.
        ServerChange = 4 "server_change",
        /// A change of the catalog, or a schema that cannot be used.
        CatalogChange = 5 "catalog_change",
        /// A request for a person's approval, or its outcome.
        Approval = 6 "approval",
        ConfigChange = 7 "config_change",
        /// Removal of old records.
        Retention = 8 "retention",
        SystemStart = 9 "system_start",
        SystemStop = 10 "system_stop",
        /// A read of an upstream server's resource.
        ResourceRead = 11 "resource_read",
        /// A request for an upstream server's prompt.
        PromptGet = 12 "prompt_get",
        /// A request for an argument's completion.
        Completion = 13 "completion",
        /// A range of lost records.
        Gap = 14 "gap",
        /// A question that an upstream server asked a client during a call, and the client's answer.
        ServerQuestion = 15 "server_question",
    }
}

named! {
    /// Interface that a call came through.
    Source {
        /// An MCP client.
        Mcp = 1 "mcp",
        Cli = 2 "cli",
        Api = 3 "api",
        Internal = 4 "internal",
    }
}

named! {
    /// Outcome of a call, or effect of a decision.
    Status {
        Success = 1 "success",
        /// The call failed upstream or in the proxy.
        Error = 2 "error",
        /// The response was withheld from the client.
        Blocked = 3 "blocked",
        Rejected = 4 "rejected",
        /// A decision let something pass with a warning.
        Warning = 5 "warning",
        /// The process ended after the call was sent and before its response.
        Unknown = 6 "unknown",
    }
}

named! {
    /// Basis of a decision.
    Policy {
        /// The schema and bounds of the response.
        OutputValidation = 1 "output_validation",
        /// The stated intent, compared with the tool's annotations.
        Intent = 2 "intent",
        /// The capability that the operator assigned to the tool.
        Capability = 3 "capability",
        /// The scope of the principal's token.
        Scope = 4 "scope",
        /// Pins and the scan of definitions.
        Catalog = 5 "catalog",
        Rules = 6 "rules",
        /// Rate and quota limits.
        Limit = 7 "limit",
        /// A person's answer, or its absence.
        Approval = 8 "approval",
        /// The schema of the tool's arguments.
        InputValidation = 9 "input_validation",
    }
}

named! {
    /// Effect of a decision.
    Verdict {
        Blocked = 3 "blocked",
        /// Passed with a warning.
        Warning = 5 "warning",
    }
}

impl Verdict {
    pub(crate) const fn status(self) -> Status {
        match self {
            Self::Blocked => Status::Blocked,
            Self::Warning => Status::Warning,
        }
    }
}

/// OpenAPI schema of a string with these values.
pub fn words(words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::String).enum_values(Some(words)).into()
}

/// Possibly truncated copy of a payload, so that a record never pins a result's buffers (ACT-2).
///
/// Invariant: `total` is at least the number of kept bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    bytes: Box<[u8]>,
    total: u64,
}

impl Payload {
    /// Wraps bytes already copied from the start of a body of `total` bytes.
    pub fn from_head(bytes: Box<[u8]>, total: u64) -> Self {
        let total = total.max(bytes.len() as u64);
        Self { bytes, total }
    }

    /// The kept bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Original length in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether bytes are missing.
    pub(crate) fn is_cut(&self) -> bool {
        self.total > self.bytes.len() as u64
    }

    pub(crate) fn borrowed(&self) -> PayloadRef<'_> {
        PayloadRef { bytes: &self.bytes, total: self.total }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// Borrowed [`Payload`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadRef<'a> {
    /// The kept bytes.
    pub bytes: &'a [u8],
    /// Original length in bytes.
    pub total: u64,
}

impl<'a> PayloadRef<'a> {
    /// Keeps at most the first `limit` bytes.
    pub fn cut(whole: &'a [u8], limit: usize) -> Self {
        let bytes = whole.get(..limit).unwrap_or(whole);
        Self { bytes, total: whole.len() as u64 }
    }

    /// Whether bytes are missing.
    pub(crate) fn is_cut(self) -> bool {
        self.total > self.bytes.len() as u64
    }

    pub(crate) fn to_owned(self) -> Payload {
        Payload::from_head(self.bytes.into(), self.total)
    }
}

/// Small part of a record: the fields that filters, tables and counters need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Time of storage, in milliseconds since 1970; never decreases.
    pub stored_ms: u64,
    pub kind: Type,
    /// Interface that the call came through.
    pub source: Source,
    /// Id of the principal. Empty for the proxy's own actions, and in records of versions that did not store it.
    pub principal: Arc<str>,
    pub status: Status,
    /// The operation type, as used by filters.
    pub operation: Option<Operation>,
    /// Upstream server's name, or empty.
    pub server: Arc<str>,
    /// Tool name without its server, or empty.
    pub tool: Arc<str>,
    /// Error text, or empty.
    pub error: Box<str>,
    /// Start time in microseconds since 1970.
    pub started: u64,
    /// Duration in microseconds.
    pub duration_us: u64,
    /// Part of the duration spent in the proxy, in microseconds.
    pub overhead_us: u64,
    /// Length of the whole response.
    pub response_bytes: u64,
    /// MCP session, or empty.
    pub session_id: Arc<str>,
    /// Request id, or empty.
    pub request_id: Box<str>,
    /// The record that this one belongs to.
    pub parent: Option<Id>,
    /// Stated intent as raw JSON, or empty.
    pub intent: Payload,
    /// Name of the call tool that was used, or empty.
    pub variant: Box<str>,
    /// Client's name, or empty.
    pub client_name: Arc<str>,
    /// Number of calls that the record stands for: more than one for counted refusals.
    pub repeated: u64,
}

impl Head {
    pub(crate) fn borrowed(&self) -> HeadRef<'_> {
        HeadRef {
            stored_ms: self.stored_ms,
            kind: self.kind,
            source: self.source,
            principal: &self.principal,
            status: self.status,
            operation: self.operation,
            server: &self.server,
            tool: &self.tool,
            error: &self.error,
            started: self.started,
            duration_us: self.duration_us,
            overhead_us: self.overhead_us,
            response_bytes: self.response_bytes,
            session_id: &self.session_id,
            request_id: &self.request_id,
            parent: self.parent,
            intent: self.intent.borrowed(),
            variant: &self.variant,
            client_name: &self.client_name,
            repeated: self.repeated,
        }
    }
}

/// Large part of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Arguments as raw JSON.
    pub arguments: Payload,
    /// Truncated response.
    pub response: Payload,
    /// Further metadata: a raw JSON object, or empty.
    pub metadata: Payload,
}

/// The part of a body that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBody {
    /// The body was not requested.
    Unread,
    /// Metadata only, without payloads.
    Metadata(Payload),
    Whole(Body),
}

impl ReadBody {
    /// The body, if it was read completely.
    pub(crate) fn whole(&self) -> Option<&Body> {
        match self {
            Self::Whole(body) => Some(body),
            Self::Unread | Self::Metadata(_) => None,
        }
    }

    /// The metadata, if it was read.
    pub fn metadata(&self) -> Option<&Payload> {
        match self {
            Self::Whole(body) => Some(&body.metadata),
            Self::Metadata(metadata) => Some(metadata),
            Self::Unread => None,
        }
    }

    /// Drops arguments and response.
    pub fn without_payloads(self) -> Self {
        match self {
            Self::Whole(body) => Self::Metadata(body.metadata),
            Self::Unread | Self::Metadata(_) => self,
        }
    }
}

/// A stored record. Its JSON form is part of the REST contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: Id,
    /// Sequence number: 1, 2, 3, …
    pub seq: u64,
    /// Node whose log holds the record.
    pub node: NodeId,
    /// That node's name in its fleet, if it has one.
    pub node_name: Option<Arc<str>>,
    pub prev_hash: Hash,
    pub hash: Hash,
    pub head: Head,
    pub body: ReadBody,
}

/// [`Head`] with borrowed texts, for encoding, filtering and counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRef<'a> {
    pub stored_ms: u64,
    pub kind: Type,
    pub source: Source,
    pub principal: &'a str,
    pub status: Status,
    pub operation: Option<Operation>,
    pub server: &'a str,
    pub tool: &'a str,
    pub error: &'a str,
    pub started: u64,
    pub duration_us: u64,
    pub overhead_us: u64,
    pub response_bytes: u64,
    pub session_id: &'a str,
    pub request_id: &'a str,
    pub parent: Option<Id>,
    pub intent: PayloadRef<'a>,
    pub variant: &'a str,
    pub client_name: &'a str,
    pub repeated: u64,
}

impl HeadRef<'_> {
    pub(crate) fn to_owned(self) -> Head {
        Head {
            stored_ms: self.stored_ms,
            kind: self.kind,
            source: self.source,
            principal: self.principal.into(),
            status: self.status,
            operation: self.operation,
            server: self.server.into(),
            tool: self.tool.into(),
            error: self.error.into(),
            started: self.started,
            duration_us: self.duration_us,
            overhead_us: self.overhead_us,
            response_bytes: self.response_bytes,
            session_id: self.session_id.into(),
            request_id: self.request_id.into(),
            parent: self.parent,
            intent: self.intent.to_owned(),
            variant: self.variant.into(),
            client_name: self.client_name.into(),
            repeated: self.repeated,
        }
    }
}

#[cfg(test)]
impl HeadRef<'static> {
    /// Successful call with no text except its principal.
    pub(crate) const CALL: Self = Self {
        stored_ms: 0,
        kind: Type::ToolCall,
        source: Source::Mcp,
        principal: "anonymous",
        status: Status::Success,
        operation: Some(Operation::Read),
        server: "",
        tool: "",
        error: "",
        started: 0,
        duration_us: 1,
        overhead_us: 1,
        response_bytes: 1,
        session_id: "",
        request_id: "",
        parent: None,
        intent: PayloadRef { bytes: &[], total: 0 },
        variant: "",
        client_name: "",
        repeated: 1,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_then_by_sequence_number() {
        let node = NodeId([7; 16]);
        let ids = [(1, 1), (1, 2), (2, 3), (2, u64::from(u32::MAX) + 5)];
        let made: Vec<_> = ids.iter().map(|&(ms, seq)| Id::new(ms, seq, node)).collect();
        assert!(made.is_sorted());
        assert!(made.windows(2).all(|w| w[0].to_string() < w[1].to_string()));
        for (id, (ms, seq)) in made.iter().zip(ids) {
            assert_eq!((id.time_ms(), id.seq()), (ms, seq));
            assert_eq!(Id::parse(&id.to_string()), Some(*id));
        }
    }
}
