//! Which records hold a text, anywhere in what was written of them: names, ids, the error, intent, arguments, response,
//! metadata. Pure.
//!
//! Arguments and answers are JSON as it was sent, in which a text may be spelled in several ways: as it is, with `\"` and
//! `\n`, and with `\u00e9` for what is not ASCII. All of them are looked for at once, on the bytes, so that no record is parsed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use aho_corasick::{AhoCorasick, BuildError};

use super::record::{Body, Record};

/// A text that records are looked through for. The case of ASCII letters does not count; other texts are found as they are
/// written, all in lower and all in upper case.
#[derive(Clone, Debug)]
pub struct SoughtText(AhoCorasick);

impl SoughtText {
    /// Looks for `text`, which is not empty.
    ///
    /// # Errors
    /// It is longer than can be looked for.
    pub fn new(text: &str) -> Result<Self, BuildError> {
        let cases = [text.to_owned(), text.to_lowercase(), text.to_uppercase()];
        let spellings = cases.into_iter().flat_map(|text| {
            let [escaped, ascii] = [false, true].map(|ascii| in_json(&text, ascii));
            [text, escaped, ascii]
        });
        let spellings: BTreeSet<String> = spellings.collect();
        let found = AhoCorasick::builder().ascii_case_insensitive(true).build(spellings)?;
        Ok(Self(found))
    }

    /// Whether it stands anywhere in the record.
    #[must_use]
    pub fn is_in(&self, record: &Record) -> bool {
        let (head, id) = (&record.head, record.id.to_string());
        let parent = head.parent.map(|id| id.to_string()).unwrap_or_default();
        let texts = [
            &*id,
            &*parent,
            head.kind.as_str(),
            head.status.as_str(),
            head.source.as_str(),
            &*head.principal,
            &*head.server,
            &*head.tool,
            &*head.error,
            &*head.session_id,
            &*head.request_id,
            &*head.variant,
            &*head.client_name,
        ];
        let payloads =
            record.body.whole().into_iter().flat_map(|Body { arguments, response, metadata }| {
                [arguments, response, metadata].map(|payload| payload.bytes())
            });
        let mut all = texts.into_iter().map(str::as_bytes);
        all.any(|text| self.0.is_match(text))
            || self.0.is_match(head.intent.bytes())
            || payloads.into_iter().any(|payload| self.0.is_match(payload))
    }
}

/// A text within a JSON string; with `ascii`, what is not ASCII is escaped too.
fn in_json(text: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a text does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::activity::record::{
        Hash, Head, Id, NodeId, PayloadRef, ReadBody, Source, Status, Type,
    };

    fn record(arguments: &str, response: &str) -> Record {
        let empty: Arc<str> = "".into();
        let payload = |text: &str| PayloadRef::cut(text.as_bytes(), 10_000).to_owned();
        Record {
            id: Id::new(1, 1, NodeId([0; 16])),
            seq: 1,
            node: NodeId([0; 16]),
            node_name: None,
            prev_hash: Hash([0; 32]),
            hash: Hash([0; 32]),
            head: Head {
                stored_ms: 1,
                kind: Type::ToolCall,
                source: Source::Mcp,
                principal: "token:ci".into(),
                status: Status::Success,
                operation: None,
                server: "github".into(),
                tool: "create_issue".into(),
                error: "Überlauf".into(),
                started: 1,
                duration_us: 1,
                overhead_us: 1,
                response_bytes: 1,
                session_id: Arc::clone(&empty),
                request_id: "".into(),
                parent: None,
                intent: payload(r#"{"reason":"no longer needed"}"#),
                variant: "call_tool_write".into(),
                client_name: empty,
            },
            body: ReadBody::Whole(Body {
                arguments: payload(arguments),
                response: payload(response),
                metadata: payload(r#"{"note":"kept"}"#),
            }),
        }
    }

    #[test]
    fn a_text_is_found_wherever_it_stands_and_however_json_spells_it() {
        let held = record(
            r#"{"a":"say \"hi\"\nnow","b":"Stra\u00dfe","c":"\ud83d\ude00"}"#,
            "{\"d\":\"Äpfel\"}",
        );
        for text in [
            "github",
            "GitHub",
            "create_",
            "token:ci",
            "success",
            "tool_call",
            "NO LONGER NEEDED",
            "kept",
            "say \"hi\"\nnow",
            "Straße",
            "straße",
            "😀",
            "Äpfel",
            "äpfel",
            "überlauf",
        ] {
            assert!(SoughtText::new(text).unwrap().is_in(&held), "{text}");
        }
        for text in ["gitlab", "hi now", "Strasse", "\u{1}"] {
            assert!(!SoughtText::new(text).unwrap().is_in(&held), "{text}");
        }
        let bare = Record { body: ReadBody::Unread, ..held };
        assert!(!SoughtText::new("kept").unwrap().is_in(&bare));
    }
}
