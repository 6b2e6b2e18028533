//! How a record is shown: the JSON of the contract, wherever it appears. Pure.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::record::{Id, Payload, Record};

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let head = &self.head;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &Shown(self.id))?;
        map.serialize_entry("seq", &self.seq)?;
        map.serialize_entry("node", &Shown(self.node))?;
        map.serialize_entry("prev_hash", &Shown(self.prev_hash))?;
        map.serialize_entry("hash", &Shown(self.hash))?;
        map.serialize_entry("type", &head.kind)?;
        map.serialize_entry("source", &head.source)?;
        map.serialize_entry("server_name", &*head.server)?;
        map.serialize_entry("tool_name", &*head.tool)?;
        if let Some(body) = &self.body {
            map.serialize_entry("arguments", &Json(&body.arguments))?;
            if body.arguments.is_cut() {
                map.serialize_entry("arguments_truncated", &true)?;
                map.serialize_entry("arguments_bytes", &body.arguments.total())?;
            }
            map.serialize_entry("response", &String::from_utf8_lossy(body.response.bytes()))?;
            map.serialize_entry("response_truncated", &body.response.is_cut())?;
        }
        map.serialize_entry("response_bytes", &head.response_bytes)?;
        map.serialize_entry("status", &head.status)?;
        map.serialize_entry("error_message", &*head.error)?;
        map.serialize_entry("duration_ms", &(head.duration_us as f64 / 1000.0))?;
        map.serialize_entry("overhead_us", &head.overhead_us)?;
        map.serialize_entry("timestamp", &Shown(Timestamp(head.started)))?;
        map.serialize_entry("session_id", &*head.session_id)?;
        map.serialize_entry("request_id", &*head.request_id)?;
        map.serialize_entry("parent_id", &OrEmpty(head.parent))?;
        if !head.intent.is_empty() {
            map.serialize_entry("intent", &Json(&head.intent))?;
        }
        map.serialize_entry("metadata", &Metadata(self))?;
        map.end()
    }
}

/// A moment, microseconds since 1970, shown as RFC 3339 with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0)
            .ok()
            .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok())
            .unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{moment:.3}")
    }
}

/// Serialises as what it displays.
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

/// Raw JSON as it is; what is not whole JSON (cut, or never was) as a string; nothing as null.
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

/// The metadata object: what every call has, then what this record brought along.
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
        }
        if !head.client_name.is_empty() {
            map.serialize_entry("client_name", &*head.client_name)?;
        }
        if let Some(body) = self.0.body.as_ref().filter(|body| !body.metadata.is_empty()) {
            match serde_json::from_slice::<serde_json::Map<_, _>>(body.metadata.bytes()) {
                Ok(fields) => {
                    fields.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                }
                Err(_) => map.serialize_entry("raw", &Json(&body.metadata))?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::{Body, Hash, Head, NodeId, Operation, Source, Status, Type};

    #[test]
    fn act_1_a_record_is_shown_as_the_contract_says() {
        let node = NodeId([0xab; 16]);
        let record = Record {
            id: Id::new(1_767_225_600_000, 1, node),
            seq: 1,
            node,
            prev_hash: Hash([0; 32]),
            hash: Hash([1; 32]),
            head: Head {
                stored_ms: 1_767_225_600_000,
                kind: Type::ToolCall,
                source: Source::Mcp,
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
                intent: Payload::cut(br#"{"operation_type":"write"}"#, 100),
                variant: "call_tool_write".into(),
                client_name: "cursor".into(),
            },
            body: Some(Body {
                arguments: Payload::cut(br#"{"b":1,"a":1.0}"#, 100),
                response: Payload::cut(b"head", 2),
                metadata: Payload::cut(br#"{"note":"x"}"#, 100),
            }),
        };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains(r#""arguments":{"b":1,"a":1.0},"response":"he","response_truncated":true,"response_bytes":10802,"status":"success","error_message":"","duration_ms":12.304,"overhead_us":41,"timestamp":"2026-01-01T00:00:00.000Z","session_id":"s","request_id":"r","parent_id":"","intent":{"operation_type":"write"},"metadata":{"tool_variant":"call_tool_write","intent":{"operation_type":"write"},"client_name":"cursor","note":"x"}"#), "{json}");
        assert!(json.contains(r#""type":"tool_call","source":"mcp","server_name":"github","tool_name":"create_issue""#), "{json}");
    }
}
