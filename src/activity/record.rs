//! What one activity record is: what a call hands over ([`Entry`]), what is kept ([`Record`]).
//!
//! Deliberately without clock, store or encoding: ids and times come in as arguments, the bytes
//! on disk belong to `codec`, the JSON to `show`, and what must not be kept is taken out by
//! `redact`.

mod draft;

use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::show;

pub use self::draft::{Draft, Raw, Text};
pub use crate::intent::Operation;

/// Longest error message that is kept, in bytes.
pub const MAX_ERROR_BYTES: usize = 2048;
/// Longest name (server, tool, session, request, client, principal) that is kept, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest stated intent, or other metadata, that is kept, in bytes.
pub const MAX_METADATA_BYTES: usize = 8192;

/// Makes an enum whose values have a name and a stable code on disk.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),+ }

        impl $name {
            /// Every value, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name used in JSON, filters and tables.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The code on disk.
            #[must_use]
            pub const fn code(self) -> u8 { self as u8 }

            /// The value of this code, if there is one.
            #[must_use]
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
            fn schema() -> RefOr<Schema> { show::words(Self::ALL.iter().map(|it| it.as_str())) }
        }

        impl ToSchema for $name {}
    };
}

named! {
    /// What a record is about (`type` in JSON).
    Type {
        /// A call to a tool of an upstream server.
        ToolCall = 1 "tool_call",
        /// A decision about a call: something was blocked or warned about.
        PolicyDecision = 2 "policy_decision",
        /// A call to one of our own tools.
        InternalToolCall = 3 "internal_tool_call",
        /// An upstream server came, went or failed.
        ServerChange = 4 "server_change",
        /// The catalog changed, or one of its schemas cannot be used.
        CatalogChange = 5 "catalog_change",
        /// A person was asked, and answered or did not.
        Approval = 6 "approval",
        /// The configuration changed.
        ConfigChange = 7 "config_change",
        /// Old records were removed.
        Retention = 8 "retention",
        /// The proxy started.
        SystemStart = 9 "system_start",
        /// The proxy stopped.
        SystemStop = 10 "system_stop",
        /// A resource of an upstream server was read.
        ResourceRead = 11 "resource_read",
        /// A prompt of an upstream server was asked for.
        PromptGet = 12 "prompt_get",
        /// An argument's completion was asked for.
        Completion = 13 "completion",
        /// Records are lost.
        Gap = 14 "gap",
    }
}

named! {
    /// The door a call came in by.
    Source {
        /// An MCP client.
        Mcp = 1 "mcp",
        /// The command line.
        Cli = 2 "cli",
        /// The REST interface.
        Api = 3 "api",
        /// The proxy itself.
        Internal = 4 "internal",
    }
}

named! {
    /// How it ended.
    Status {
        /// The call was answered.
        Success = 1 "success",
        /// The call failed, upstream or on the way.
        Error = 2 "error",
        /// The answer was not let in.
        Blocked = 3 "blocked",
        /// The call was not let out.
        Rejected = 4 "rejected",
        /// A decision that let something pass with a warning.
        Warning = 5 "warning",
        /// The process ended while the call was under way: nobody knows.
        Unknown = 6 "unknown",
    }
}

impl Operation {
    /// The code on disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Destructive => 3,
        }
    }

    /// The value of this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.code() == code)
    }
}

impl PartialSchema for Operation {
    fn schema() -> RefOr<Schema> {
        show::words(Self::ALL.map(Self::as_str))
    }
}

impl ToSchema for Operation {}

named! {
    /// Which rule a decision followed.
    Policy {
        /// The answer against its schema and bounds.
        OutputValidation = 1 "output_validation",
        /// The stated intent against the tool's annotations.
        Intent = 2 "intent",
        /// The call against the tool's capability.
        Capability = 3 "capability",
    }
}

named! {
    /// What a decision did.
    Verdict {
        /// Something was stopped.
        Blocked = 3 "blocked",
        /// Something passed, and a warning was left.
        Warning = 5 "warning",
    }
}

impl Verdict {
    /// The status of the decision's record.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Blocked => Status::Blocked,
            Self::Warning => Status::Warning,
        }
    }
}

/// The head of some bytes, copied: a record must never pin a result's buffers (ACT-2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    bytes: Box<[u8]>,
    total: u64,
}

impl Payload {
    /// A head that was already copied from a body of `total` bytes.
    #[must_use]
    pub fn from_head(bytes: Box<[u8]>, total: u64) -> Self {
        let total = total.max(bytes.len() as u64);
        Self { bytes, total }
    }

    /// The bytes that were kept.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes there were.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// True when not all bytes were kept.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.total > self.bytes.len() as u64
    }

    /// True when there was nothing to keep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// One decision about a call. Server, tool, session, request and intent are those of its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Blocked, or warned.
    pub verdict: Verdict,
    /// The rule it followed.
    pub policy: Policy,
    /// The mode in force (`warn`, `strict`, …), or empty.
    pub mode: &'static str,
    /// The full words.
    pub reason: Box<str>,
    /// Where in the document, as a JSON pointer, or empty.
    pub instance_path: Box<str>,
    /// Where in the schema, or empty.
    pub schema_path: Box<str>,
    /// The guard that was breached (`bytes`, `depth`, `time`, …), or empty.
    pub guard: &'static str,
}

impl Decision {
    /// A decision with only its reason.
    #[must_use]
    pub fn new(verdict: Verdict, policy: Policy, reason: impl Into<Box<str>>) -> Self {
        Self {
            verdict,
            policy,
            mode: "",
            reason: reason.into(),
            instance_path: Box::default(),
            schema_path: Box::default(),
            guard: "",
        }
    }
}

/// One atomic batch: a call and the decisions about it, call first (ACT-4).
#[derive(Clone, Debug)]
pub struct Entry {
    /// The call, or whatever else happened.
    pub draft: Draft,
    /// The decisions about it; empty for most.
    pub decisions: Vec<Decision>,
}

impl From<Draft> for Entry {
    fn from(draft: Draft) -> Self {
        Self { draft, decisions: Vec::new() }
    }
}

impl From<Draft> for Box<Entry> {
    fn from(draft: Draft) -> Self {
        Self::new(draft.into())
    }
}

/// A record's id: a ULID whose time never runs back and whose random part is the sequence number
/// and a tag of the node, so that ids grow in store order and lead straight to the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u128);

impl Id {
    const SEQ_BITS: u32 = 48;
    const NODE_BITS: u32 = 32;

    /// The id of record `seq`, stored at `time_ms` (milliseconds since 1970) on `node`.
    #[must_use]
    pub fn new(time_ms: u64, seq: u64, node: NodeId) -> Self {
        let time = u128::from(time_ms & ((1 << 48) - 1)) << (Self::SEQ_BITS + Self::NODE_BITS);
        let seq = u128::from(seq & ((1 << Self::SEQ_BITS) - 1)) << Self::NODE_BITS;
        Self(time | seq | u128::from(node.tag()))
    }

    /// The sequence number in it.
    #[must_use]
    pub fn seq(self) -> u64 {
        ((self.0 >> Self::NODE_BITS) as u64) & ((1 << Self::SEQ_BITS) - 1)
    }

    /// When it was given, milliseconds since 1970.
    #[must_use]
    pub fn time_ms(self) -> u64 {
        (self.0 >> (Self::SEQ_BITS + Self::NODE_BITS)) as u64
    }

    /// The 16 bytes on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id of these 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Reads the 26 characters of a ULID.
    #[must_use]
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

/// The node a log belongs to: made once for each data folder.
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

/// A link of the chain: BLAKE3 over a record's canonical bytes and its predecessor's hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Reads what [`fmt::Display`] writes.
    #[must_use]
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

/// A record's small part: all that filters, tables and counters need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// When the writer stored it, milliseconds since 1970; never runs back.
    pub stored_ms: u64,
    /// What it is about.
    pub kind: Type,
    /// The door it came in by.
    pub source: Source,
    /// On whose behalf, by the id of the principal; empty for what nobody asked for, and in records
    /// of versions that did not keep it.
    pub principal: Arc<str>,
    /// How it ended.
    pub status: Status,
    /// The operation type that counts for filters.
    pub operation: Option<Operation>,
    /// The upstream server's name, or empty.
    pub server: Arc<str>,
    /// The tool's name without its server, or empty.
    pub tool: Arc<str>,
    /// What went wrong, or empty.
    pub error: Box<str>,
    /// When it began, microseconds since 1970.
    pub started: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// What of that was ours, in microseconds.
    pub overhead_us: u64,
    /// The length of the whole response.
    pub response_bytes: u64,
    /// The MCP session, or empty.
    pub session_id: Arc<str>,
    /// The request's id, or empty.
    pub request_id: Box<str>,
    /// The record this one belongs to.
    pub parent: Option<Id>,
    /// The intent as raw JSON, as it was stated, or empty.
    pub intent: Payload,
    /// The call tool that was used, or empty.
    pub variant: Box<str>,
    /// The client's name, or empty.
    pub client_name: Arc<str>,
}

/// A record's large part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The arguments as raw JSON.
    pub arguments: Payload,
    /// The head of the response.
    pub response: Payload,
    /// More metadata: a raw JSON object, or empty.
    pub metadata: Payload,
}

/// A record as it is kept. Its JSON is that of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The id, growing in store order.
    pub id: Id,
    /// The sequence number: 1, 2, 3, …
    pub seq: u64,
    /// The node whose log it is in.
    pub node: NodeId,
    /// The predecessor's hash.
    pub prev_hash: Hash,
    /// This record's hash.
    pub hash: Hash,
    /// The small part.
    pub head: Head,
    /// The large part, if it was asked for.
    pub body: Option<Body>,
}

/// The decision's own metadata, as the JSON object that is stored.
#[must_use]
pub fn decision_metadata(decision: &Decision) -> Vec<u8> {
    let mut fields = serde_json::Map::new();
    let mut put = |key: &str, text: &str| {
        if !text.is_empty() {
            fields.insert(key.into(), text.into());
        }
    };
    put("decision", decision.verdict.as_str());
    put("policy", decision.policy.as_str());
    put("mode", decision.mode);
    put("reason", &decision.reason);
    put("instance_path", &decision.instance_path);
    put("schema_path", &decision.schema_path);
    put("guard", decision.guard);
    serde_json::Value::Object(fields).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_with_time_and_then_with_seq() {
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
