//! Target `envelope`: where serde_json accepts a message, the scanner finds the same spans.
//!
//! Input: the message.

use std::fmt;

use mcpproxy::json::{
    scan::{MAX_KEYS, MessageKind, ScanFault, ScanLimits, ScannedMember, ScannedPart, Scanner},
    span::Span,
};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::reference::variant;

/// The fuzz target.
pub fn run(message: &[u8]) {
    let mut scanner = Scanner::new(ScanLimits::NONE, 1);
    let fed = scanner.feed(message);
    let finished = scanner.finish();
    let Ok(members) = serde_json::from_slice::<Members<'_>>(message) else { return };

    let protocol = ["jsonrpc", "id", "result", "error", "method", "params"];
    if let Some(fault) = finished.err().map(|error| error.fault) {
        assert_eq!(fed, finished);
        // serde_json has no opinion on these.
        match fault {
            ScanFault::Duplicate(member) => {
                let name = member.to_string();
                assert!(protocol.contains(&&*name));
                assert!(members.count(&name) > 1);
            }
            ScanFault::Conflict => {
                let count = |name| members.count(name);
                assert!(count("result") + count("error") + count("method") > 1);
            }
            ScanFault::WrongType(member) => assert!(members.get(&member.to_string()).is_some()),
            other => panic!("serde_json accepts what the scanner refuses: {other:?}"),
        }
        return;
    }
    for name in protocol {
        assert!(members.count(name) <= 1, "{name}");
    }

    let envelope = scanner.envelope();
    let span = |members: &Members<'_>, name| members.get(name).map(|raw| span_in(message, raw));
    let part = |part: Option<ScannedPart>| part.and_then(ScannedPart::span);
    assert_eq!(envelope.id, span(&members, "id"));
    assert_eq!(envelope.method, span(&members, "method"));
    assert_eq!(part(envelope.params), span(&members, "params"));
    let body = span(&members, "result").or(span(&members, "error"));
    assert_eq!(part(envelope.body), body);
    let kind = members.0.iter().find_map(|(name, _)| match &**name {
        "result" => Some(MessageKind::Result),
        "error" => Some(MessageKind::Error),
        "method" => Some(MessageKind::Method),
        _ => None,
    });
    assert_eq!(envelope.kind, kind);

    let result = members.get("result").map(|raw| serde_json::from_str::<Members<'_>>(raw.get()));
    let result = match result {
        // A key in it that serde_json refuses where it decodes it: a lone surrogate.
        Some(Err(_)) if members.get("result").is_some_and(|raw| raw.get().starts_with('{')) => {
            assert!(envelope.ambiguity.is_some());
            return;
        }
        Some(Ok(result)) => result,
        Some(Err(_)) | None => Members(Vec::new()),
    };
    assert_eq!(part(envelope.content), span(&result, "content"));
    assert_eq!(part(envelope.structured), span(&result, "structuredContent"));
    assert_eq!(envelope.result_type, span(&result, "resultType"));
    for (name, member) in [
        ("resultType", ScannedMember::ResultType),
        ("ttlMs", ScannedMember::TtlMs),
        ("cacheScope", ScannedMember::CacheScope),
    ] {
        assert_eq!(scanner.has(member), result.count(name) > 0, "{name}");
    }
    let is_error = result.get("isError").map(|raw| serde_json::from_str::<bool>(raw.get()));
    assert_eq!(envelope.is_error, is_error.as_ref().and_then(|read| read.as_ref().ok()).copied());
    let doubtful = matches!(is_error, Some(Err(_)))
        || members.repeats()
        || result.repeats()
        || result.0.iter().any(|(name, _)| variant(name).is_some())
        || members.0.len() + result.0.len() > MAX_KEYS;
    assert!(envelope.ambiguity.is_none() || doubtful);
    assert!(envelope.ambiguity.is_some() || !doubtful || members.0.len() > MAX_KEYS);
}

fn span_in(message: &[u8], raw: &RawValue) -> Span {
    let start = raw.get().as_ptr() as u64 - message.as_ptr() as u64;
    Span::new(start, start + raw.get().len() as u64)
}

/// The members of an object in their order, duplicates and all.
#[derive(Clone)]
pub struct Members<'a>(pub Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw)
    }

    /// How often `name` stands there.
    pub fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|(key, _)| key == name).count()
    }

    fn repeats(&self) -> bool {
        let mut names: Vec<_> = self.0.iter().map(|(name, _)| name).collect();
        names.sort();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
