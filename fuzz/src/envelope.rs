//! Target `envelope`: the scanner finds the same spans as serde_json in every message that serde_json accepts.
//!
//! Input: the message.

use std::fmt;

use mcpproxy_json::{
    scan::{MAX_KEYS, MessageKind, ScanFault, ScanLimits, ScannedMember, ScannedPart, Scanner},
    span::Span,
};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::reference::variant;

pub fn run(message: &[u8]) {
    let mut scanner = Scanner::new(ScanLimits::NONE, 1);
    let fed = scanner.feed(message);
    let finished = scanner.finish();
    let Ok(members) = serde_json::from_slice::<Members<'_>>(message) else { return };

    let protocol = ["jsonrpc", "id", "result", "error", "method", "params"];
    if let Some(fault) = finished.err().map(|error| error.fault) {
        assert_eq!(fed, finished);
        // serde_json does not report these faults.
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
    let is_null = |name| members.get(name).is_some_and(|raw| raw.get() == "null");
    let outcome = |name| span(&members, name).filter(|_| !is_null(name));
    assert_eq!(part(envelope.body), outcome("result").or(outcome("error")));
    assert_eq!(envelope.has_outcome, members.count("result") + members.count("error") > 0);
    let kind = members.0.iter().find_map(|(name, raw)| match (&**name, raw.get()) {
        ("result" | "error", "null") => None,
        ("result", _) => Some(MessageKind::Result),
        ("error", _) => Some(MessageKind::Error),
        ("method", _) => Some(MessageKind::Method),
        _ => None,
    });
    assert_eq!(envelope.kind, kind);

    let result = members.get("result").map(|raw| serde_json::from_str::<Members<'_>>(raw.get()));
    let result = match result {
        // serde_json refuses `result` if decoding a key in it fails: the key has a lone surrogate.
        Some(Err(_)) if members.get("result").is_some_and(|raw| raw.get().starts_with('{')) => {
            assert!(envelope.ambiguity.is_some());
            return;
        }
        Some(Ok(result)) => result,
        Some(Err(_)) | None => Members(Vec::new()),
    };
    assert_eq!(part(envelope.content), span(&result, "content"));
    let first = |members: &Members<'_>, name| members.get(name).map(|raw| raw.get().as_bytes()[0]);
    let body = first(&members, "result").filter(|first| *first != b'n');
    let body = body.or(first(&members, "error").filter(|first| *first != b'n'));
    let content = first(&result, "content");
    let mistyped = body.is_some_and(|first| first != b'{') || content.is_some_and(|it| it != b'[');
    assert_eq!(envelope.mistyped.is_some(), mistyped);
    assert_eq!(part(envelope.structured), span(&result, "structuredContent"));
    assert_eq!(envelope.result_type, span(&result, "resultType"));
    assert_eq!(part(envelope.request_state), span(&result, "requestState"));
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

/// Members of an object in order, including duplicates.
#[derive(Clone)]
pub struct Members<'a>(pub Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, raw)| *raw)
    }

    /// Number of occurrences of `name`.
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
