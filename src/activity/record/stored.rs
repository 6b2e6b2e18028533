//! A record as it is kept: a small part that filters, tables and counters read, and a large part. Pure.

use std::sync::Arc;

use super::{Hash, Id, NodeId, Operation, Payload, PayloadRef, Source, Status, Type};

/// A record's small part: all that filters, tables and counters need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// When the writer stored it, milliseconds since 1970; never runs back.
    pub stored_ms: u64,
    /// What it is about.
    pub kind: Type,
    /// The face it came in by.
    pub source: Source,
    /// The id of the principal on whose behalf it is. Empty for what the proxy did by itself, and in
    /// records of versions that did not keep it.
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
    /// The proxy's own share of that, in microseconds.
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

impl Head {
    /// The same with borrowed texts.
    #[must_use]
    pub fn borrowed(&self) -> HeadRef<'_> {
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
        }
    }
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

/// What was read of a record's large part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBody {
    /// Nothing: it was not asked for.
    Unread,
    /// The metadata alone, which says why; not the payloads.
    Metadata(Payload),
    /// All of it.
    Whole(Body),
}

impl ReadBody {
    /// All of it, if all of it was read.
    #[must_use]
    pub fn whole(&self) -> Option<&Body> {
        match self {
            Self::Whole(body) => Some(body),
            Self::Unread | Self::Metadata(_) => None,
        }
    }

    /// The metadata, if it was read.
    #[must_use]
    pub fn metadata(&self) -> Option<&Payload> {
        match self {
            Self::Whole(body) => Some(&body.metadata),
            Self::Metadata(metadata) => Some(metadata),
            Self::Unread => None,
        }
    }

    /// The same without arguments and response.
    #[must_use]
    pub fn without_payloads(self) -> Self {
        match self {
            Self::Whole(body) => Self::Metadata(body.metadata),
            Self::Unread | Self::Metadata(_) => self,
        }
    }
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
    /// That node's name in its fleet; `None` where there is none.
    pub node_name: Option<Arc<str>>,
    /// The predecessor's hash.
    pub prev_hash: Hash,
    /// This record's hash.
    pub hash: Hash,
    /// The small part.
    pub head: Head,
    /// What was read of the large part.
    pub body: ReadBody,
}

/// A [`Head`] whose texts are borrowed: what is encoded, filtered and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Head`")]
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
}

impl HeadRef<'_> {
    /// The same with its own memory.
    #[must_use]
    pub fn to_owned(&self) -> Head {
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
        }
    }
}
