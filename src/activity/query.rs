//! Queries: filters, index terms, pages, and full-text search. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use aho_corasick::{AhoCorasick, BuildError};

use super::codec::HeadRef;
use super::record::{Body, Id, Operation, Record, Status, Type};

/// Filter of records. An empty list or `None` matches every record; values of one field are alternatives; all
/// fields must match (ACT-5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Record types.
    pub kinds: Vec<Type>,
    pub statuses: Vec<Status>,
    pub servers: Vec<String>,
    /// Tool names without the server.
    pub tools: Vec<String>,
    /// Operation types of the intent.
    pub operations: Vec<Operation>,
    /// MCP sessions.
    pub sessions: Vec<String>,
    pub requests: Vec<String>,
    /// Ids of principals.
    pub principals: Vec<String>,
    /// Earliest start time, in microseconds since 1970.
    pub since: Option<u64>,
    /// Latest start time, in microseconds since 1970.
    pub until: Option<u64>,
}

impl Filter {
    pub(crate) fn matches(&self, head: &HeadRef<'_>) -> bool {
        fn one_of<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
            wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
        }
        fn named(wanted: &[String], value: &str) -> bool {
            wanted.is_empty() || wanted.iter().any(|name| name == value)
        }
        one_of(&self.kinds, Some(&head.kind))
            && one_of(&self.statuses, Some(&head.status))
            && one_of(&self.operations, head.operation.as_ref())
            && named(&self.servers, head.server)
            && named(&self.tools, head.tool)
            && named(&self.sessions, head.session_id)
            && named(&self.requests, head.request_id)
            && named(&self.principals, head.principal)
            && self.covers(head.started, head.started)
    }

    /// Whether the time range covers the whole period from `first` to `last`.
    pub(crate) fn covers(&self, first: u64, last: u64) -> bool {
        self.since.is_none_or(|since| since <= first)
            && self.until.is_none_or(|until| last <= until)
    }

    /// Whether the time range overlaps the period from `first` to `last`.
    pub(crate) fn overlaps(&self, first: u64, last: u64) -> bool {
        self.since.is_none_or(|since| since <= last)
            && self.until.is_none_or(|until| first <= until)
    }

    /// Index terms to look up, with a list of alternatives for each filtered field.
    pub(crate) fn terms(&self) -> Vec<Vec<Term>> {
        fn names(field: RecordField, names: &[String]) -> Vec<Term> {
            names.iter().map(|name| Term::new(field, name.as_bytes())).collect()
        }
        let all = [
            self.kinds.iter().map(|kind| Term::new(RecordField::Type, &[kind.code()])).collect(),
            self.statuses.iter().map(|it| Term::new(RecordField::Status, &[it.code()])).collect(),
            self.operations
                .iter()
                .map(|it| Term::new(RecordField::Operation, &[it.code()]))
                .collect(),
            names(RecordField::Server, &self.servers),
            names(RecordField::Tool, &self.tools),
            names(RecordField::Session, &self.sessions),
            names(RecordField::Request, &self.requests),
            names(RecordField::Principal, &self.principals),
        ];
        all.into_iter().filter(|terms: &Vec<_>| !terms.is_empty()).collect()
    }
}

/// Indexed fields; the codes are stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordField {
    /// Field of [`Filter::kinds`].
    Type = 1,
    /// Field of [`Filter::statuses`].
    Status = 2,
    /// Field of [`Filter::servers`].
    Server = 3,
    /// Field of [`Filter::tools`].
    Tool = 4,
    /// Field of [`Filter::operations`].
    Operation = 5,
    /// Field of [`Filter::sessions`].
    Session = 6,
    /// Field of [`Filter::requests`].
    Request = 7,
    /// Field of [`Filter::principals`].
    Principal = 8,
}

/// Index term: a field and 64 bits of its value's hash. Colliding values are distinguished when the record is
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term([u8; 9]);

impl Hash for Term {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [field, hash @ ..] = self.0;
        state.write_u64(u64::from_be_bytes(hash).wrapping_add(u64::from(field)));
    }
}

impl Term {
    /// The term of `value` in `field`.
    pub fn new(field: RecordField, value: &[u8]) -> Self {
        // FNV-1a: stable and fast on short names; collisions by an attacker are harmless.
        let hash = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
        Self([field as u8, a, b, c, d, e, f, g, h])
    }

    /// Index bucket: the field and one of 64 buckets. Values share buckets so that a field with a new value
    /// in each record takes few keys.
    pub(crate) fn bucket(self) -> [u8; 2] {
        let [field, first, ..] = self.0;
        [field, first >> 2]
    }

    /// Hash that distinguishes the term within its bucket.
    pub(crate) fn hash(self) -> [u8; 8] {
        let [_, hash @ ..] = self.0;
        hash
    }

    /// Passes the terms of a record to `each`.
    pub(crate) fn of(head: &HeadRef<'_>, mut each: impl FnMut(Self)) {
        each(Self::new(RecordField::Type, &[head.kind.code()]));
        each(Self::new(RecordField::Status, &[head.status.code()]));
        if let Some(operation) = head.operation {
            each(Self::new(RecordField::Operation, &[operation.code()]));
        }
        for (field, name) in [
            (RecordField::Server, head.server),
            (RecordField::Tool, head.tool),
            (RecordField::Session, head.session_id),
            (RecordField::Request, head.request_id),
            (RecordField::Principal, head.principal),
        ] {
            if !name.is_empty() {
                each(Self::new(field, name.as_bytes()));
            }
        }
    }
}

/// Start of a page; records come newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// The newest record.
    #[default]
    Newest,
    /// The record after this id. The record with the id itself need not be retained.
    After(Id),
    /// The record after this number of matching records.
    Offset(u64),
}

/// Extent to which a record's body is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payloads {
    #[default]
    Include,
    /// Metadata only: decisions and reasons, no arguments and response.
    Exclude,
    /// No body, for counting and ordering.
    HeadsOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Maximum number of records. Callers enforce the documented limit.
    pub limit: usize,
    pub from: From,
    pub payloads: Payloads,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 50, from: From::Newest, payloads: Payloads::Include }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub records: Vec<Record>,
    /// Start of the next page, if there is one.
    pub next_cursor: Option<Id>,
}

/// Full-text search pattern, matched anywhere in a record: names (also as `server:tool`), error, intent, arguments, response,
/// metadata. Random ids would match short texts by accident, so a text matches them only if it is as long as
/// [`MIN_ID_TEXT`].
/// ASCII case is ignored; other characters match as written, in all lower case or in all upper case.
///
/// Arguments and responses are stored as the JSON that was sent, which can spell a text verbatim, with escapes such as
/// `\"` and `\n`, or with `\u00e9` for non-ASCII. All spellings are searched in one pass over the bytes, so that no
/// record is parsed.
#[derive(Clone, Debug)]
pub struct SearchText {
    spellings: AhoCorasick,
    /// Whether the text may be a part of `server:tool`, which records keep apart.
    has_colon: bool,
    /// Whether the text is searched in ids.
    is_long: bool,
}

/// Minimum length of a text that is searched in ids, in bytes.
const MIN_ID_TEXT: usize = 8;

impl SearchText {
    /// Compiles a non-empty text; fails if it is too long.
    pub fn new(text: &str) -> Result<Self, BuildError> {
        let cases = [text.to_owned(), text.to_lowercase(), text.to_uppercase()];
        let spellings = cases.into_iter().flat_map(|text| {
            let [escaped, ascii] = [false, true].map(|ascii| json_escaped(&text, ascii));
            [text, escaped, ascii]
        });
        let spellings: BTreeSet<String> = spellings.collect();
        let spellings = AhoCorasick::builder().ascii_case_insensitive(true).build(spellings)?;
        Ok(Self { spellings, has_colon: text.contains(':'), is_long: text.len() >= MIN_ID_TEXT })
    }

    /// Whether the text occurs anywhere in the record.
    pub fn is_in(&self, record: &Record) -> bool {
        let head = &record.head;
        let texts = [
            head.kind.as_str(),
            head.status.as_str(),
            head.source.as_str(),
            &*head.principal,
            &*head.server,
            &*head.tool,
            &*head.error,
            &*head.variant,
            &*head.client_name,
        ];
        let payloads =
            record.body.whole().into_iter().flat_map(|Body { arguments, response, metadata }| {
                [arguments, response, metadata].map(|payload| payload.bytes())
            });
        let mut all = texts.into_iter().map(str::as_bytes);
        let is_name =
            || self.has_colon && self.spellings.is_match(&format!("{}:{}", head.server, head.tool));
        let is_id = || {
            let parent = head.parent.map(|id| id.to_string()).unwrap_or_default();
            let ids = [&*record.id.to_string(), &*parent, &*head.session_id, &*head.request_id];
            self.is_long && ids.into_iter().any(|id| self.spellings.is_match(id))
        };
        all.any(|text| self.spellings.is_match(text))
            || is_name()
            || is_id()
            || self.spellings.is_match(head.intent.bytes())
            || payloads.into_iter().any(|payload| self.spellings.is_match(payload))
    }
}

/// Escapes a text for use in a JSON string; if `ascii`, also escapes non-ASCII characters.
fn json_escaped(text: &str, ascii: bool) -> String {
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
                    // Writing to a string cannot fail.
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
    use super::*;

    fn head<'a>(server: &'a str, started: u64) -> HeadRef<'a> {
        HeadRef {
            stored_ms: started / 1000,
            server,
            tool: "tool",
            started,
            session_id: "session",
            ..HeadRef::CALL
        }
    }

    #[test]
    fn act_5_all_fields_must_match_and_values_are_alternatives() {
        let filter = Filter {
            kinds: vec![Type::PolicyDecision, Type::ToolCall],
            servers: vec!["a".into(), "b".into()],
            since: Some(10),
            until: Some(20),
            ..Filter::default()
        };
        assert!(Filter::default().matches(&head("c", 5)));
        assert!(filter.matches(&head("a", 10)) && filter.matches(&head("b", 20)));
        assert!(!filter.matches(&head("c", 15)));
        assert!(!filter.matches(&head("a", 9)) && !filter.matches(&head("a", 21)));
        let other = Filter { operations: vec![Operation::Write], ..Filter::default() };
        assert!(!other.matches(&head("a", 10)));
        let none = Filter { requests: vec!["x".into()], ..Filter::default() };
        assert!(!none.matches(&head("a", 10)));
        for (principal, matches) in [("anonymous", true), ("admin", false), ("anon", false)] {
            let filter = Filter { principals: vec![principal.into()], ..Filter::default() };
            assert_eq!(filter.matches(&head("a", 10)), matches, "{principal}");
        }
    }

    #[test]
    fn act_5_filter_terms_are_terms_of_matching_records() {
        let filter = Filter {
            kinds: vec![Type::ToolCall],
            statuses: vec![Status::Success],
            servers: vec!["a".into()],
            tools: vec!["tool".into()],
            operations: vec![Operation::Read],
            sessions: vec!["session".into()],
            principals: vec!["anonymous".into()],
            ..Filter::default()
        };
        assert!(filter.matches(&head("a", 0)));
        let mut terms = Vec::new();
        Term::of(&head("a", 0), |term| terms.push(term));
        assert_eq!(filter.terms().len(), 7);
        assert!(filter.terms().iter().flatten().all(|term| terms.contains(term)));
    }
}

#[cfg(test)]
mod text_search {
    use super::*;
    use crate::record::{Hash, NodeId, PayloadRef, ReadBody};

    fn record(arguments: &str, response: &str) -> Record {
        let payload = |text: &str| PayloadRef::cut(text.as_bytes(), 10_000).to_owned();
        Record {
            id: Id::new(1, 1, NodeId([0; 16])),
            seq: 1,
            node: NodeId([0; 16]),
            node_name: None,
            prev_hash: Hash([0; 32]),
            hash: Hash([0; 32]),
            head: HeadRef {
                principal: "token:ci",
                operation: None,
                server: "github",
                tool: "create_issue",
                error: "Überlauf",
                intent: PayloadRef::cut(br#"{"reason":"no longer needed"}"#, 10_000),
                variant: "call_tool_write",
                ..HeadRef::CALL
            }
            .to_owned(),
            body: ReadBody::Whole(Body {
                arguments: payload(arguments),
                response: payload(response),
                metadata: payload(r#"{"note":"kept"}"#),
            }),
        }
    }

    #[test]
    fn text_is_found_in_any_field_and_in_any_json_spelling() {
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
            assert!(SearchText::new(text).unwrap().is_in(&held), "{text}");
        }
        for text in ["gitlab", "hi now", "Strasse", "\u{1}"] {
            assert!(!SearchText::new(text).unwrap().is_in(&held), "{text}");
        }
        // A short text would match ids by accident.
        let id = held.id.to_string();
        assert!(SearchText::new(&id).unwrap().is_in(&held), "{id}");
        assert!(!SearchText::new(&id[..7]).unwrap().is_in(&held), "{id}");
        let bare = Record { body: ReadBody::Unread, ..held };
        assert!(!SearchText::new("kept").unwrap().is_in(&bare));
    }
}
