//! Members that a modern client's revision requires in a result and that the server did not write. They are the only
//! bytes that are added to an answer (`requirements.md`, *verdicts*).
//!
//! Nothing is added to a result with a `resultType`: an interim result (`input_required`) has no caching hints. The
//! added values are the most cautious ones, because a server that omits these members states neither the validity nor
//! the audience of its answer.

use mcpproxy_json::scan::{Closed, ScannedMember};

/// Members of a result that the client's revision requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// No members: revisions up to 2025-11-25.
    Nothing,
    /// `resultType` (MCP 2026-07-28 §ResultType).
    Type,
    /// `resultType`, `ttlMs` and `cacheScope` (MCP 2026-07-28 §Cacheable Results).
    TypeAndCaching,
}

impl Required {
    /// Bytes that replace the closing brace of a result to add the required members that it lacks; `None` if it lacks
    /// none. `closed` states whether the result is an empty object, `has` which members it contains.
    pub(super) fn ending(
        self,
        closed: Closed,
        has: impl Fn(ScannedMember) -> bool,
    ) -> Option<&'static [u8]> {
        let caching = match self {
            Self::Nothing => return None,
            Self::Type => false,
            Self::TypeAndCaching => true,
        };
        if has(ScannedMember::ResultType) {
            return None;
        }
        let ttl = caching && !has(ScannedMember::TtlMs);
        let scope = caching && !has(ScannedMember::CacheScope);
        let ending: &[u8] = match (ttl, scope) {
            (false, false) => br#","resultType":"complete"}"#,
            (true, false) => br#","resultType":"complete","ttlMs":0}"#,
            (false, true) => br#","resultType":"complete","cacheScope":"private"}"#,
            (true, true) => br#","resultType":"complete","ttlMs":0,"cacheScope":"private"}"#,
        };
        match closed {
            Closed::WithMembers => Some(ending),
            Closed::Empty => ending.strip_prefix(b","),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, Bytes};

    use super::*;
    use crate::output::{InspectedMessage, Inspector, Policy, Treatment};
    use mcpproxy_protocol::wire::splice::Splice;

    const TYPE: &str = r#""resultType":"complete""#;
    const TTL: &str = r#""ttlMs":0"#;
    const SCOPE: &str = r#""cacheScope":"private""#;

    /// Forwarded bytes of a message that arrives in these pieces.
    fn forwarded(treatment: Treatment, required: Required, pieces: &[&[u8]]) -> String {
        let mut inspector = Inspector::new(treatment, &Policy::default(), 7, 1);
        let mut forwarded = Splice::new();
        for piece in pieces {
            let slice = inspector.feed(&Bytes::copy_from_slice(piece)).unwrap();
            if slice.is_empty() {
                continue;
            }
            match inspector.ending(required) {
                None => forwarded.push(slice),
                Some(ending) => forwarded.push_ending(slice, ending),
            }
        }
        assert!(matches!(inspector.end(), Ok(InspectedMessage::Answer(_))), "{pieces:?}");
        String::from_utf8(forwarded.copy_to_bytes(forwarded.len()).to_vec()).unwrap()
    }

    /// Checks an answer with this body, with its id first and last, in all treatments, split at every two positions and into single bytes.
    #[track_caller]
    fn check(member: &str, required: Required, body: &str, expected: &str) {
        for message in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"{member}":{body}}}"#),
            format!(r#"{{"{member}":{body} , "jsonrpc":"2.0","id":7}}"#),
        ] {
            let message = message.as_bytes();
            for treatment in [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold] {
                let bytes: Vec<_> = message.chunks(1).collect();
                assert_eq!(
                    forwarded(treatment, required, &bytes),
                    expected,
                    "{treatment:?}, by bytes"
                );
                for first in 0..=message.len() {
                    let (head, rest) = message.split_at(first);
                    for second in 0..=rest.len() {
                        let (middle, tail) = rest.split_at(second);
                        let forwarded = forwarded(treatment, required, &[head, middle, tail]);
                        assert_eq!(
                            forwarded, expected,
                            "{treatment:?}, cut at {first} and {second}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn mcp_2026_result_without_a_type_gets_one_in_any_chunking() {
        for (open, expected) in [
            ("{", format!("{{{TYPE}}}")),
            ("{ \n ", format!("{{ \n {TYPE}}}")),
            (r#"{"content":[]"#, format!(r#"{{"content":[],{TYPE}}}"#)),
            (r#"{"a":{} "#, format!(r#"{{"a":{{}} ,{TYPE}}}"#)),
            // Other names, and the same name where it has no meaning.
            (r#"{"resulttype":1"#, format!(r#"{{"resulttype":1,{TYPE}}}"#)),
            (r#"{"a":{"resultType":"x"}"#, format!(r#"{{"a":{{"resultType":"x"}},{TYPE}}}"#)),
            (r#"{"text":"resultType""#, format!(r#"{{"text":"resultType",{TYPE}}}"#)),
        ] {
            check("result", Required::Type, &format!("{open}}}"), &expected);
            let expected = format!("{},{TTL},{SCOPE}}}", expected.strip_suffix('}').unwrap());
            check("result", Required::TypeAndCaching, &format!("{open}}}"), &expected);
        }
    }

    #[test]
    fn mcp_2026_present_caching_hints_are_not_repeated() {
        for (open, more) in [
            (r#"{"ttlMs":5"#, format!(",{TYPE},{SCOPE}")),
            (r#"{"cache\u0053cope":"public""#, format!(",{TYPE},{TTL}")),
            (r#"{"cacheScope":"public","ttlMs":5"#, format!(",{TYPE}")),
        ] {
            let body = format!("{open}}}");
            check("result", Required::TypeAndCaching, &body, &format!("{open}{more}}}"));
            check("result", Required::Type, &body, &format!("{open},{TYPE}}}"));
        }
    }

    #[test]
    fn fr_a3_typed_result_is_forwarded_verbatim() {
        for body in [
            r#"{"resultType":"complete"}"#,
            r#"{"resultType":"input_required","a":1}"#,
            r#"{"a":1,"r\u0065sultTyp\u0065":7}"#,
        ] {
            check("result", Required::Type, body, body);
            check("result", Required::TypeAndCaching, body, body);
        }
        for body in ["{}", r#"{"code":-1,"message":"x"}"#] {
            check("error", Required::TypeAndCaching, body, body);
        }
        for body in ["{}", r#"{"content":[]}"#, r#"{"resultType":"complete"}"#] {
            check("result", Required::Nothing, body, body);
        }
    }
}
