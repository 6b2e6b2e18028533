//! Wire format of queries between nodes, and the cursor of a watcher. Pure.
//!
//! A query is JSON. It lists a record range per log ([`LogRange`]), so that every record of the fleet is requested at one place and
//! none is counted twice. An answer is a length-prefixed JSON header, then records (`activity::record`) or counters:
//!
//! ```text
//! answer    length · AnswerHead · records, or (bucket · length · counters)*
//! ```
//!
//! [`WatchCursor`] is the cursor of a client that watches the fleet: the position in each node's log, sent with events and accepted
//! by any node. A single record id is not sufficient, because records of different nodes arrive in no global order.
//!
//! ```text
//! place     since (;node=number)*            1763942400000;a=120;b=7
//! ```

use std::collections::BTreeMap;
use std::fmt;

use mcpproxy_activity::bytes::{DecodeError, Reader, put_bytes, put_varint};
use mcpproxy_activity::codec::{MAX_RECORDS, put_record, read_records};
use mcpproxy_activity::stats::Stats;
use mcpproxy_activity::{Filter, Id, Operation, Period, Record, Status, Type};
use serde::{Deserialize, Serialize};

use crate::config::NodeName;

/// Maximum number of logs in a query.
pub const MAX_RANGES: usize = 4_096;
/// Maximum number of records requested by a query.
pub const MAX_ASKED_RECORDS: usize = 512;
/// Maximum size of records in an answer in bytes, exceeded by at most one record.
pub(crate) const MAX_ASKED_BYTES: usize = 8 << 20;
/// Maximum accepted size of an answer in bytes.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Maximum number of values per filter field.
const MAX_VALUES: usize = 64;
/// Maximum number of counter buckets in an answer: a month has 8641.
const MAX_BUCKETS: usize = 16_384;

/// Range of records in one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRange {
    /// Node name of the log.
    pub node: String,
    /// Exclusive lower bound.
    pub after: u64,
    /// Inclusive upper bound.
    pub last: u64,
}

impl LogRange {
    /// All records of the node.
    pub fn all(node: impl Into<String>) -> Self {
        Self { node: node.into(), after: 0, last: u64::MAX }
    }
}

/// Log available on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLog {
    /// Node name of the log.
    pub node: String,
    /// Id of the log.
    pub log: String,
    /// Last available record; 0 for none.
    pub last: u64,
    /// Number of later records in the store that are not indexed yet.
    pub behind: u64,
    /// Description of missing records.
    pub lacks: Option<String>,
}

/// Logs available on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    pub own: HeldLog,
    /// Copies of other nodes' logs.
    pub copies: Vec<HeldLog>,
}

/// Filter in wire format, with values as codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterSent {
    kinds: Vec<u8>,
    statuses: Vec<u8>,
    operations: Vec<u8>,
    servers: Vec<String>,
    tools: Vec<String>,
    sessions: Vec<String>,
    requests: Vec<String>,
    principals: Vec<String>,
    since: Option<u64>,
    until: Option<u64>,
}

impl FilterSent {
    pub fn of(filter: &Filter) -> Self {
        Self {
            kinds: filter.kinds.iter().map(|it| it.code()).collect(),
            statuses: filter.statuses.iter().map(|it| it.code()).collect(),
            operations: filter.operations.iter().map(|it| it.code()).collect(),
            servers: filter.servers.clone(),
            tools: filter.tools.clone(),
            sessions: filter.sessions.clone(),
            requests: filter.requests.clone(),
            principals: filter.principals.clone(),
            since: filter.since,
            until: filter.until,
        }
    }

    /// Parses the filter; `None` if it has a condition that this version does not support: ignoring it would
    /// return unrequested records.
    pub fn filter(self) -> Option<Filter> {
        let texts = [&self.servers, &self.tools, &self.sessions, &self.requests, &self.principals];
        let codes = [&self.kinds, &self.statuses, &self.operations];
        let is_short = texts.iter().all(|it| it.len() <= MAX_VALUES)
            && codes.iter().all(|it| it.len() <= MAX_VALUES);
        if !is_short {
            return None;
        }
        Some(Filter {
            kinds: self.kinds.into_iter().map(Type::from_code).collect::<Option<_>>()?,
            statuses: self.statuses.into_iter().map(Status::from_code).collect::<Option<_>>()?,
            operations: self
                .operations
                .into_iter()
                .map(Operation::from_code)
                .collect::<Option<_>>()?,
            servers: self.servers,
            tools: self.tools,
            sessions: self.sessions,
            requests: self.requests,
            principals: self.principals,
            since: self.since,
            until: self.until,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum RecordQuestion {
    /// Logs available on the node.
    Holdings,
    /// Newest records that match a filter.
    List {
        ranges: Vec<LogRange>,
        filter: FilterSent,
        limit: usize,
        /// Only records before this id.
        before: Option<String>,
        /// Include arguments and responses.
        payloads: bool,
        /// Include metadata although payloads are excluded. Older versions neither send nor support it.
        #[serde(default)]
        metadata: bool,
        /// Count all matching records.
        count: bool,
        /// Approximate maximum size of records in bytes.
        bytes: usize,
    },
    Get {
        ranges: Vec<LogRange>,
        id: String,
    },
    /// Counters of a period.
    Summary {
        ranges: Vec<LogRange>,
        period: String,
        /// End of the period, microseconds since 1970.
        now: u64,
    },
    /// Oldest records that match a filter, with continuation ranges.
    Forward {
        /// Ranges to read.
        ranges: Vec<LogRange>,
        filter: FilterSent,
        /// Only records after this id, in any log.
        after: Option<String>,
        limit: usize,
        /// Approximate maximum size of records in bytes.
        bytes: usize,
    },
}

impl RecordQuestion {
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes another node's query; `None` if it is invalid or exceeds a limit.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let question: Self = serde_json::from_slice(bytes).ok()?;
        let (ranges, limit) = match &question {
            Self::Holdings => (0, 0),
            Self::List { ranges, limit, .. } | Self::Forward { ranges, limit, .. } => {
                (ranges.len(), *limit)
            }
            Self::Get { ranges, .. } | Self::Summary { ranges, .. } => (ranges.len(), 0),
        };
        (ranges <= MAX_RANGES && limit <= MAX_ASKED_RECORDS).then_some(question)
    }
}

pub(crate) fn period_named(name: &str) -> Option<Period> {
    Period::ALL.iter().copied().find(|period| period.as_str() == name)
}

/// Header of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerHead {
    /// Available logs, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holdings: Option<Holdings>,
    /// Start of the next page, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Total number of matching records, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Remaining range of each log when reading forward.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<LogRange>,
    /// First and last requested record of a log that are no longer retained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<(u64, u64)>,
}

impl AnswerHead {
    /// Encodes an answer with records.
    pub fn with_records<'r>(&self, records: impl IntoIterator<Item = &'r Record>) -> Vec<u8> {
        let mut out = self.begin();
        records.into_iter().for_each(|record| put_record(&mut out, record));
        out
    }

    /// Encodes an answer with counters.
    pub fn with_buckets<'s>(&self, buckets: impl IntoIterator<Item = (u64, &'s Stats)>) -> Vec<u8> {
        let mut out = self.begin();
        for (bucket, stats) in buckets {
            put_varint(&mut out, bucket);
            put_bytes(&mut out, &stats.encode());
        }
        out
    }

    fn begin(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, &serde_json::to_vec(self).unwrap_or_default());
        out
    }

    /// Decodes the header and returns the rest.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader(bytes);
        let head = serde_json::from_slice(reader.bytes()?).map_err(|_| DecodeError::Value)?;
        Ok((head, reader.0))
    }

    /// Decodes an answer with records.
    pub fn records(bytes: &[u8]) -> Result<(Self, Vec<Record>), DecodeError> {
        let (head, rest) = Self::read(bytes)?;
        Ok((head, read_records(rest)?))
    }

    /// Decodes an answer with records of these logs.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], also for a record of another log.
    pub(crate) fn records_of(
        asked: &[LogRange],
        bytes: &[u8],
    ) -> Result<(Self, Vec<Record>), DecodeError> {
        let (head, records) = Self::records(bytes)?;
        let is_meant = |record: &Record| {
            let name = record.node_name.as_deref();
            asked.iter().any(|range| name == Some(&*range.node))
        };
        if records.iter().all(is_meant) { Ok((head, records)) } else { Err(DecodeError::Value) }
    }

    /// True if the answer makes progress when reading forward: it contains only requested logs, moves none of them
    /// backward, and moves at least one forward if any range remains.
    pub(crate) fn makes_progress(&self, asked: &[LogRange]) -> bool {
        let before = |range: &LogRange| asked.iter().find(|it| it.node == range.node);
        let is_meant = |range: &LogRange| {
            before(range).is_some_and(|it| range.after >= it.after && range.last <= it.last)
        };
        let moves = |range: &LogRange| before(range).is_some_and(|it| range.after > it.after);
        self.ranges.iter().all(is_meant)
            && (self.left().is_empty() || self.ranges.iter().any(moves))
    }

    /// Ranges still to be read.
    pub(crate) fn left(&self) -> Vec<LogRange> {
        self.ranges.iter().filter(|range| range.after < range.last).cloned().collect()
    }

    /// Start of the next page.
    pub fn next_id(&self) -> Result<Option<Id>, DecodeError> {
        let next = self.next.as_deref();
        next.map(|text| Id::parse(text).ok_or(DecodeError::Value)).transpose()
    }

    /// Start of the next page of a list. It must lie at the last record of this page or further on, and after the
    /// start of this page.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] if the start is out of order.
    pub(crate) fn next_page(
        &self,
        before: Option<Id>,
        records: &[Record],
    ) -> Result<Option<Id>, DecodeError> {
        let next = self.next_id()?;
        let is_further = |next: Id| {
            before.is_none_or(|before| next < before) && records.iter().all(|it| it.id >= next)
        };
        if next.is_none_or(is_further) { Ok(next) } else { Err(DecodeError::Value) }
    }
}

/// Decodes an answer with counters.
pub fn read_buckets(bytes: &[u8]) -> Result<(AnswerHead, Vec<(u64, Stats)>), DecodeError> {
    let (head, rest) = AnswerHead::read(bytes)?;
    let (mut reader, mut buckets) = (Reader(rest), Vec::new());
    while reader.end().is_err() {
        if buckets.len() >= MAX_BUCKETS {
            return Err(DecodeError::Value);
        }
        buckets.push((reader.varint()?, Stats::decode(reader.bytes()?)?));
    }
    Ok((head, buckets))
}

const _: () = assert!(MAX_ASKED_RECORDS <= MAX_RECORDS);

/// Maximum length of an encoded cursor in bytes: clients store it as an event id. Records of nodes that do not fit
/// are sent again.
pub(crate) const MAX_PLACE_BYTES: usize = 4_000;

/// Cursor: position in each node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchCursor {
    since: u64,
    after: BTreeMap<NodeName, u64>,
}

impl WatchCursor {
    /// Cursor at this time in milliseconds since 1970, for all nodes.
    pub fn since(since: u64) -> Self {
        Self { since, after: BTreeMap::new() }
    }

    /// Parses the text form; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_PLACE_BYTES {
            return None;
        }
        let mut parts = text.split(';');
        let mut place = Self::since(number(parts.next()?)?);
        for part in parts {
            let (node, after) = part.split_once('=')?;
            let known = place.after.insert(NodeName::parse(node)?, number(after)?);
            if known.is_some() {
                return None;
            }
        }
        Some(place)
    }

    /// Start time for nodes without a position, in milliseconds since 1970.
    pub fn begins(&self) -> u64 {
        self.since
    }

    /// Last record read of a node.
    pub fn after(&self, node: &str) -> Option<u64> {
        self.after.get(&NodeName::parse(node)?).copied()
    }

    /// Nodes with a position.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.after.keys()
    }

    /// Advances a node's position; never moves back.
    pub fn moves(&mut self, node: &str, after: u64) {
        if let Some(node) = NodeName::parse(node) {
            let at = self.after.entry(node).or_default();
            *at = after.max(*at);
        }
    }

    /// Resets a node whose log was replaced.
    pub fn forgets(&mut self, node: &str) {
        if let Some(node) = NodeName::parse(node) {
            self.after.remove(&node);
        }
    }
}

impl fmt::Display for WatchCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.since.to_string();
        for (node, after) in &self.after {
            let part = format!(";{}={after}", node.as_str());
            if text.len() + part.len() <= MAX_PLACE_BYTES {
                text += &part;
            }
        }
        f.write_str(&text)
    }
}

/// Parses a number in canonical form.
fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::segment::examples::ExampleLog;

    #[test]
    fn filter_round_trips() {
        let filter = Filter {
            kinds: Type::ALL.to_vec(),
            statuses: Status::ALL.to_vec(),
            operations: Operation::ALL.to_vec(),
            servers: vec!["s".into()],
            tools: vec!["t".into(), "u".into()],
            sessions: vec!["x".into()],
            requests: vec!["r".into()],
            principals: vec!["token:a".into()],
            since: Some(1),
            until: Some(u64::MAX),
        };
        for filter in [filter, Filter::default()] {
            let question = RecordQuestion::List {
                ranges: vec![LogRange::all("a")],
                filter: FilterSent::of(&filter),
                limit: 50,
                before: None,
                payloads: true,
                metadata: false,
                count: false,
                bytes: 1000,
            };
            let read = RecordQuestion::decode(&question.encode()).unwrap();
            assert_eq!(read, question);
            let RecordQuestion::List { filter: sent, .. } = read else { panic!() };
            assert_eq!(sent.filter(), Some(filter));
        }
    }

    #[test]
    fn metadata_flag_is_compatible_with_older_versions() {
        let question = |metadata| RecordQuestion::List {
            ranges: Vec::new(),
            filter: FilterSent::default(),
            limit: 1,
            before: None,
            payloads: false,
            metadata,
            count: false,
            bytes: 1,
        };
        let newer = String::from_utf8(question(true).encode()).unwrap();
        let older = newer.replace(r#""metadata":true,"#, "");
        assert_ne!(newer, older);
        assert_eq!(RecordQuestion::decode(older.as_bytes()), Some(question(false)));
        let later = newer.replace(r#""metadata":true"#, r#""unknown":true"#);
        assert_eq!(RecordQuestion::decode(later.as_bytes()), Some(question(false)));
    }

    #[test]
    fn unsupported_filter_is_rejected() {
        let odd = FilterSent { kinds: vec![200], ..FilterSent::default() };
        assert_eq!(odd.filter(), None);
        let long = FilterSent { tools: vec![String::new(); MAX_VALUES + 1], ..Default::default() };
        assert_eq!(long.filter(), None);
        let newer = br#"{"ask":"list","ranges":[],"filter":{"kinds":[],"statuses":[],"operations":[],"servers":[],"tools":[],"sessions":[],"requests":[],"principals":[],"since":null,"until":null,"colour":"red"},"limit":1,"before":null,"payloads":true,"count":false,"bytes":1}"#;
        assert_eq!(RecordQuestion::decode(newer), None);
    }

    #[test]
    fn excessive_query_is_rejected() {
        let list = |limit, ranges| RecordQuestion::List {
            ranges: vec![LogRange::all("a"); ranges],
            filter: FilterSent::default(),
            limit,
            before: None,
            payloads: true,
            metadata: false,
            count: false,
            bytes: 1000,
        };
        let is_read =
            |question: RecordQuestion| RecordQuestion::decode(&question.encode()).is_some();
        assert!(is_read(list(MAX_ASKED_RECORDS, MAX_RANGES)));
        assert!(!is_read(list(MAX_ASKED_RECORDS + 1, 1)) && !is_read(list(1, MAX_RANGES + 1)));
        assert_eq!(RecordQuestion::decode(b"{}"), None);
    }

    fn newest_first(count: u64) -> Vec<Record> {
        ExampleLog::new(1).decoded(count).into_iter().rev().collect()
    }

    #[test]
    fn records_of_unrequested_logs_are_rejected() {
        let records: Vec<Record> = newest_first(3)
            .into_iter()
            .zip(["a", "b", "c"])
            .map(|(record, name)| Record { node_name: Some(name.into()), ..record })
            .collect();
        let answer = AnswerHead::default().with_records(&records);
        let of = |names: &[&str]| {
            let asked: Vec<_> = names.iter().map(|name| LogRange::all(*name)).collect();
            AnswerHead::records_of(&asked, &answer).map(|(_, records)| records)
        };
        assert_eq!(of(&["a", "b", "c"]), Ok(records));
        assert_eq!(of(&["a", "b"]), Err(DecodeError::Value), "one belongs to another log");
        assert_eq!(of(&[]), Err(DecodeError::Value));
    }

    #[test]
    fn next_page_starts_at_or_after_the_last_record() {
        let records = newest_first(3);
        let [newest, middle, oldest] = [0, 1, 2].map(|at| records[at].id);
        let next = |next: Option<Id>, before, records| {
            let next = next.map(|id| id.to_string());
            AnswerHead { next, ..AnswerHead::default() }.next_page(before, records)
        };
        assert_eq!(next(None, Some(oldest), &records[..0]), Ok(None));
        assert_eq!(next(Some(middle), None, &records[..2]), Ok(Some(middle)));
        assert_eq!(next(Some(oldest), None, &records[..2]), Ok(Some(oldest)));
        assert_eq!(next(Some(newest), None, &records[..2]), Err(DecodeError::Value));
        assert_eq!(next(Some(middle), Some(middle), &[]), Err(DecodeError::Value));
        assert_eq!(next(Some(newest), Some(middle), &[]), Err(DecodeError::Value));
        assert_eq!(next(Some(oldest), Some(middle), &[]), Ok(Some(oldest)));
    }

    #[test]
    fn forward_answer_must_make_progress_in_requested_logs() {
        let range = |node: &str, after, last| LogRange { node: node.into(), after, last };
        let asked = [range("a", 5, u64::MAX), range("b", 0, 9)];
        let makes_progress = |ranges: &[LogRange]| {
            AnswerHead { ranges: ranges.to_vec(), ..AnswerHead::default() }.makes_progress(&asked)
        };
        assert!(makes_progress(&[range("a", 8, 20), range("b", 0, 9)]));
        assert!(makes_progress(&[range("a", 5, 20), range("b", 9, 9)]));
        assert!(makes_progress(&[range("a", 5, 5), range("b", 9, 9)]) && makes_progress(&[]));
        // Nothing remains of one log, and the other does not advance.
        assert!(!makes_progress(&[range("a", 5, 5), range("b", 0, 9)]));
        assert!(!makes_progress(&[range("a", 5, 20), range("b", 0, 9)]), "no progress");
        assert!(!makes_progress(&[range("a", 4, 20), range("b", 1, 9)]), "back");
        assert!(!makes_progress(&[range("b", 1, 10)]), "beyond");
        assert!(!makes_progress(&[range("b", 1, 9), range("c", 1, 9)]), "another's");
    }

    proptest! {
        #[test]
        fn arbitrary_answer_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = AnswerHead::records(&bytes);
            let _ = read_buckets(&bytes);
        }
    }

    #[test]
    fn cursor_round_trips_and_other_text_is_rejected() {
        let mut place = WatchCursor::since(1_763_942_400_000);
        assert_eq!(WatchCursor::parse(&place.to_string()), Some(place.clone()));
        for (node, after) in [("b", 7), ("a", 120), ("a", 119), ("no node", 1)] {
            place.moves(node, after);
        }
        assert_eq!(place.to_string(), "1763942400000;a=120;b=7");
        assert_eq!(WatchCursor::parse("1763942400000;a=120;b=7"), Some(place.clone()));
        assert_eq!((place.after("a"), place.after("c")), (Some(120), None));
        place.forgets("a");
        assert_eq!((place.after("a"), place.begins()), (None, 1_763_942_400_000));
        for odd in [
            "",
            "1;",
            "1;a",
            "1;a=",
            "1;a=1;a=1",
            "01;a=1",
            "1;a=+1",
            "1;A=1",
            "1; a=1",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            &format!("1{}", ";a=1".repeat(2000)),
        ] {
            assert_eq!(WatchCursor::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn oversized_cursor_is_rejected() {
        let parts: String = (1000..1800).map(|at| format!(";n{at}={at}")).collect();
        let longest = format!("1{}", &parts[..MAX_PLACE_BYTES - MAX_PLACE_BYTES % 11]);
        assert!(WatchCursor::parse(&longest).is_some(), "{longest}");
        assert_eq!(WatchCursor::parse(&format!("1{parts}")), None);
    }

    #[test]
    fn nodes_beyond_the_cursor_limit_are_sent_again() {
        let mut place = WatchCursor::since(1);
        for at in 0..100 {
            place.moves(&format!("{}-{at}", "n".repeat(55)), u64::MAX);
        }
        let text = place.to_string();
        assert!(text.len() <= MAX_PLACE_BYTES && text.len() > MAX_PLACE_BYTES - 100);
        let read = WatchCursor::parse(&text).unwrap();
        assert!(read.nodes().count() > 40 && read.nodes().all(|it| place.after.contains_key(it)));
    }

    proptest! {
        #[test]
        fn arbitrary_text_round_trips_or_is_rejected(text in "[0-9]{0,20}(;[ab]=[0-9]{1,3}){0,3}.?") {
            if let Some(place) = WatchCursor::parse(&text) {
                let again = WatchCursor::parse(&place.to_string());
                prop_assert_eq!(again, Some(place));
            }
        }
    }
}
