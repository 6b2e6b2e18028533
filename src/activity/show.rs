//! JSON form of a record, the same in REST, CLI and export, and its OpenAPI schema. Pure.

use std::borrow::Cow;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::record::{Hash, Id, NodeId, Payload, Record, Source, Status, Type};

/// A call, a decision about one, or another event.
#[derive(serde::Serialize, ToSchema)]
struct Members<'a> {
    /// ULID; newer records have greater ids.
    #[schema(value_type = String, pattern = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]
    id: Shown<Id>,
    /// Sequence number in the node's log, starting at 1, without gaps.
    #[schema(minimum = 1)]
    seq: u64,
    /// Id of the log.
    #[schema(value_type = String, pattern = "^[0-9a-f]{32}$")]
    node: Shown<NodeId>,
    /// Hash of the previous record.
    #[schema(value_type = String, pattern = "^[0-9a-f]{64}$")]
    prev_hash: Shown<Hash>,
    /// BLAKE3 over the record and the previous hash.
    #[schema(value_type = String, pattern = "^[0-9a-f]{64}$")]
    hash: Shown<Hash>,
    #[serde(rename = "type")]
    kind: Type,
    source: Source,
    /// Principal: `anonymous`, `admin`, `token:NAME` or `jwt:SUBJECT`. Empty for the proxy's own actions, and in
    /// records of versions that did not store it.
    #[schema(value_type = String)]
    principal: &'a str,
    /// Upstream server, or empty.
    #[schema(value_type = String)]
    server_name: &'a str,
    /// Tool name without its server, or empty.
    #[schema(value_type = String)]
    tool_name: &'a str,
    /// Arguments as sent by the client, without secrets: truncated text if they were too long, null if there
    /// were none. Omitted with `exclude_payloads`, and after they were pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value)]
    arguments: Option<Json<'a>>,
    /// Present if the arguments were truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    arguments_truncated: Option<bool>,
    /// Length before truncation in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    arguments_bytes: Option<u64>,
    /// Start of the response, without secrets. Omitted like the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    response: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response_truncated: Option<bool>,
    /// Length of the whole response in bytes.
    response_bytes: u64,
    status: Status,
    /// Error message, or empty.
    #[schema(value_type = String)]
    error_message: &'a str,
    #[schema(minimum = 0)]
    duration_ms: f64,
    /// Part of the duration spent in the proxy.
    overhead_us: u64,
    /// Start time.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Shown<Timestamp>,
    /// MCP session, or empty.
    #[schema(value_type = String)]
    session_id: &'a str,
    #[schema(value_type = String)]
    request_id: &'a str,
    /// Record of the call that this one belongs to, or empty.
    #[schema(value_type = String, pattern = "^([0-7][0-9A-HJKMNP-TV-Z]{25})?$")]
    parent_id: OrEmpty,
    /// Intent as stated by the agent, right or wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value)]
    intent: Option<Json<'a>>,
    /// Further data: the call tool used, the client, the basis and findings of a decision.
    #[schema(value_type = Object)]
    metadata: Metadata<'a>,
    /// Name of the node, in a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    node_name: Option<&'a str>,
}

impl<'a> Members<'a> {
    fn of(record: &'a Record) -> Self {
        let (head, body) = (&record.head, record.body.whole());
        let cut = body.map(|body| &body.arguments).filter(|arguments| arguments.is_cut());
        Self {
            id: Shown(record.id),
            seq: record.seq,
            node: Shown(record.node),
            prev_hash: Shown(record.prev_hash),
            hash: Shown(record.hash),
            kind: head.kind,
            source: head.source,
            principal: &head.principal,
            server_name: &head.server,
            tool_name: &head.tool,
            arguments: body.map(|body| Json(&body.arguments)),
            arguments_truncated: cut.map(|_| true),
            arguments_bytes: cut.map(Payload::total),
            response: body.map(|body| String::from_utf8_lossy(body.response.bytes())),
            response_truncated: body.map(|body| body.response.is_cut()),
            response_bytes: head.response_bytes,
            status: head.status,
            error_message: &head.error,
            duration_ms: head.duration_us as f64 / 1000.0,
            overhead_us: head.overhead_us,
            timestamp: Shown(Timestamp(head.started)),
            session_id: &head.session_id,
            request_id: &head.request_id,
            parent_id: OrEmpty(head.parent),
            intent: (!head.intent.is_empty()).then_some(Json(&head.intent)),
            metadata: Metadata(record),
            node_name: record.node_name.as_deref(),
        }
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Members::of(self).serialize(serializer)
    }
}

impl PartialSchema for Record {
    fn schema() -> RefOr<Schema> {
        Members::schema()
    }
}

impl ToSchema for Record {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Members::schemas(schemas);
    }
}

/// Microseconds since 1970, displayed as RFC 3339 with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0)
            .ok()
            .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok())
            .unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{moment:.3}")
    }
}

/// Serializes as its `Display` text.
struct Shown<T>(T);

impl<T: fmt::Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct OrEmpty(Option<Id>);

impl Serialize for OrEmpty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(id) => serializer.collect_str(&id),
            None => serializer.serialize_str(""),
        }
    }
}

/// Raw JSON. Valid JSON is output verbatim, incomplete or invalid JSON as a string, and empty JSON as null.
struct Json<'a>(&'a Payload);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() {
            return serializer.serialize_unit();
        }
        match serde_json::from_slice::<&RawValue>(self.0.bytes()) {
            Ok(raw) => raw.serialize(serializer),
            Err(_) => serializer.serialize_str(&String::from_utf8_lossy(self.0.bytes())),
        }
    }
}

/// Metadata object: the common members, then those of the record.
struct Metadata<'a>(&'a Record);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let head = &self.0.head;
        let mut map = serializer.serialize_map(None)?;
        if !head.variant.is_empty() {
            map.serialize_entry("tool_variant", &*head.variant)?;
        }
        if !head.intent.is_empty() {
            map.serialize_entry("intent", &Json(&head.intent))?;
        } else if let Some(operation) = head.operation {
            // Filters and totals count the record by this operation.
            map.serialize_entry("operation", operation.as_str())?;
        }
        if !head.client_name.is_empty() {
            map.serialize_entry("client_name", &*head.client_name)?;
        }
        if let Some(metadata) = self.0.body.metadata().filter(|metadata| !metadata.is_empty()) {
            match serde_json::from_slice::<serde_json::Map<_, _>>(metadata.bytes()) {
                Ok(fields) => {
                    fields.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                }
                Err(_) => map.serialize_entry("raw", &Json(metadata))?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Body, Head, Operation, PayloadRef, ReadBody};

    #[test]
    fn act_1_record_json_matches_the_contract() {
        let node = NodeId([0xab; 16]);
        let mut record = Record {
            id: Id::new(1_767_225_600_000, 1, node),
            seq: 1,
            node,
            node_name: None,
            prev_hash: Hash([0; 32]),
            hash: Hash([1; 32]),
            head: Head {
                stored_ms: 1_767_225_600_000,
                kind: Type::ToolCall,
                source: Source::Mcp,
                principal: "admin".into(),
                status: Status::Success,
                operation: Some(Operation::Write),
                server: "github".into(),
                tool: "create_issue".into(),
                error: "".into(),
                started: 1_767_225_600_000_000,
                duration_us: 12304,
                overhead_us: 41,
                response_bytes: 10802,
                session_id: "s".into(),
                request_id: "r".into(),
                parent: None,
                intent: PayloadRef::cut(br#"{"operation_type":"write"}"#, 100).to_owned(),
                variant: "call_tool_write".into(),
                client_name: "cursor".into(),
                repeated: 1,
            },
            body: ReadBody::Whole(Body {
                arguments: PayloadRef::cut(br#"{"b":1,"a":1.0}"#, 100).to_owned(),
                response: PayloadRef::cut(b"head", 2).to_owned(),
                metadata: PayloadRef::cut(br#"{"note":"x"}"#, 100).to_owned(),
            }),
        };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""arguments":{"b":1,"a":1.0},"response":"he","response_truncated":true,"response_bytes":10802,"status":"success","error_message":"","duration_ms":12.304,"overhead_us":41,"timestamp":"2026-01-01T00:00:00.000Z","session_id":"s","request_id":"r","parent_id":"","intent":{"operation_type":"write"},"metadata":{"tool_variant":"call_tool_write","intent":{"operation_type":"write"},"client_name":"cursor","note":"x"}"#), "{json}");
        assert!(json.contains(r#""type":"tool_call","source":"mcp","principal":"admin","server_name":"github","tool_name":"create_issue""#), "{json}");
        // Without a stated intent, the tool determines the operation.
        record.head.intent = PayloadRef::cut(b"", 100).to_owned();
        record.head.variant = "direct".into();
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json.get("intent"), None, "{json}");
        let expected = serde_json::json!({
            "tool_variant": "direct", "operation": "write", "client_name": "cursor", "note": "x",
        });
        assert_eq!(json["metadata"], expected);
    }
}
