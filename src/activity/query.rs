//! Queries of the log: filters, pages, and whether a record matches. Pure.
//!
//! Reading query parameters is the faces' work; finding the records is `store`'s.

use std::hash::{Hash, Hasher};

use super::codec::HeadRef;
use super::record::{Id, Operation, Record, Status, Type};

/// A filter of records. An empty list, or `None`, matches every record; several values of one field
/// are alternatives; all fields must match (ACT-5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// What it is about.
    pub kinds: Vec<Type>,
    /// How it ended.
    pub statuses: Vec<Status>,
    /// The upstream server.
    pub servers: Vec<String>,
    /// The tool, without its server.
    pub tools: Vec<String>,
    /// The operation type of the intent.
    pub operations: Vec<Operation>,
    /// The MCP session.
    pub sessions: Vec<String>,
    /// The request.
    pub requests: Vec<String>,
    /// On whose behalf, by the id of the principal.
    pub principals: Vec<String>,
    /// Began at this moment or later, microseconds since 1970.
    pub since: Option<u64>,
    /// Began at this moment or earlier, microseconds since 1970.
    pub until: Option<u64>,
}

impl Filter {
    /// True if this record matches.
    #[must_use]
    pub fn matches(&self, head: &HeadRef<'_>) -> bool {
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

    /// True if the time range covers every moment from `first` to `last`.
    #[must_use]
    pub fn covers(&self, first: u64, last: u64) -> bool {
        self.since.is_none_or(|since| since <= first)
            && self.until.is_none_or(|until| last <= until)
    }

    /// True if the time range overlaps `first` to `last`.
    #[must_use]
    pub fn touches(&self, first: u64, last: u64) -> bool {
        self.since.is_none_or(|since| since <= last)
            && self.until.is_none_or(|until| first <= until)
    }

    /// The index terms to look up: one list of alternatives for each field.
    #[must_use]
    pub fn terms(&self) -> Vec<Vec<Term>> {
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

/// The fields that are indexed; their codes are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordField {
    /// [`Filter::kinds`]
    Type = 1,
    /// [`Filter::statuses`]
    Status = 2,
    /// [`Filter::servers`]
    Server = 3,
    /// [`Filter::tools`]
    Tool = 4,
    /// [`Filter::operations`]
    Operation = 5,
    /// [`Filter::sessions`]
    Session = 6,
    /// [`Filter::requests`]
    Request = 7,
    /// [`Filter::principals`]
    Principal = 8,
}

/// A value of a field, as the index knows it: 64 bits of a hash. Two values that share them are
/// told apart when the record is read.
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
    #[must_use]
    pub fn new(field: RecordField, value: &[u8]) -> Self {
        // FNV-1a: stable, short, and quick on short names; it need not withstand an attacker.
        let hash = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
        Self([field as u8, a, b, c, d, e, f, g, h])
    }

    /// Its place in the index: the field, and one of 64 buckets. Values share a bucket so that a
    /// field with a new value in each record takes few keys.
    #[must_use]
    pub fn bucket(self) -> [u8; 2] {
        let [field, first, ..] = self.0;
        [field, first >> 2]
    }

    /// The hash that distinguishes it from the others in its bucket.
    #[must_use]
    pub fn hash(self) -> [u8; 8] {
        let [_, hash @ ..] = self.0;
        hash
    }

    /// The terms that a record is found by.
    pub fn of(head: &HeadRef<'_>, mut each: impl FnMut(Self)) {
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

/// The position at which a page begins; records come newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// With the newest record.
    #[default]
    Newest,
    /// After the record with this id, which may be gone by now.
    After(Id),
    /// After this number of records.
    Offset(u64),
}

/// What is read of a record's large part: payloads (arguments and response) and metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payloads {
    /// All of it.
    #[default]
    Include,
    /// The metadata: what was decided, and why. Payloads are left out.
    Exclude,
    /// Nothing, for those that count and order.
    HeadsOnly,
}

/// The size and start of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The most records on the page. The faces keep it within the contract.
    pub limit: usize,
    /// Where to begin.
    pub from: From,
    /// With arguments, response and metadata, or without.
    pub payloads: Payloads,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 50, from: From::Newest, payloads: Payloads::Include }
    }
}

/// A page of records, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub next_cursor: Option<Id>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::codec::PayloadRef;
    use crate::activity::record::Source;

    fn head<'a>(server: &'a str, started: u64) -> HeadRef<'a> {
        HeadRef {
            stored_ms: started / 1000,
            kind: Type::ToolCall,
            source: Source::Mcp,
            principal: "anonymous",
            status: Status::Success,
            operation: Some(Operation::Read),
            server,
            tool: "tool",
            error: "",
            started,
            duration_us: 1,
            overhead_us: 1,
            response_bytes: 0,
            session_id: "session",
            request_id: "",
            parent: None,
            intent: PayloadRef::default(),
            variant: "",
            client_name: "",
        }
    }

    #[test]
    fn act_5_fields_must_all_hold_and_values_are_alternatives() {
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
        for (principal, is_meant) in [("anonymous", true), ("admin", false), ("anon", false)] {
            let filter = Filter { principals: vec![principal.into()], ..Filter::default() };
            assert_eq!(filter.matches(&head("a", 10)), is_meant, "{principal}");
        }
    }

    #[test]
    fn act_5_every_term_of_a_filter_is_a_term_of_the_records_it_matches() {
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
