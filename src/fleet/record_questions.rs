//! What one node asks another about records, and how the answer is written: pure.
//!
//! A question is JSON. It names for each log, by its node, which records are meant ([`LogRange`]), so that every record of the fleet
//! is asked for at one place and none is counted twice. An answer is a head of JSON after its length, then records
//! (`activity::record_wire`) or counters:
//!
//! ```text
//! answer    length · AnswerHead · records, or (bucket · length · counters)*
//! ```

use serde::{Deserialize, Serialize};

use crate::activity::bytes::{DecodeError, Reader, put_bytes, put_varint};
use crate::activity::record_wire::{MAX_RECORDS, put_record, read_records};
use crate::activity::stats::Stats;
use crate::activity::{Filter, Id, Operation, Period, Record, Status, Type};

/// Most logs that a question names.
pub const MAX_RANGES: usize = 4_096;
/// Most records that a question asks for.
pub const MAX_ASKED_RECORDS: usize = 512;
/// Most bytes of records that are put into an answer; the last record may go beyond it.
pub const MAX_ASKED_BYTES: usize = 8 << 20;
/// Most bytes of an answer that are taken.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Most values of one field of a filter.
const MAX_VALUES: usize = 64;
/// Most buckets of counters in an answer: a month has 8641.
const MAX_BUCKETS: usize = 16_384;

/// Records of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRange {
    /// The log, by the name of its node.
    pub node: String,
    /// Those after the record with this number,
    pub after: u64,
    /// up to this one.
    pub last: u64,
}

impl LogRange {
    /// All that there are.
    #[must_use]
    pub fn all(node: impl Into<String>) -> Self {
        Self { node: node.into(), after: 0, last: u64::MAX }
    }
}

/// A log as a node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLog {
    /// The name of the log's node.
    pub node: String,
    /// The id of the log.
    pub log: String,
    /// The last record that is there; 0 for none.
    pub last: u64,
    /// What is in the store behind it and not read yet, in records.
    pub behind: u64,
    /// What is missing before it, in words.
    pub lacks: Option<String>,
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Its own log.
    pub own: HeldLog,
    /// Its copies of others.
    pub copies: Vec<HeldLog>,
}

/// A filter as it is sent: values by their codes.
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
    /// To be sent.
    #[must_use]
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

    /// The filter; `None` if it is none that this program can apply: a filter that means less would give records that nobody
    /// asked for.
    #[must_use]
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

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum RecordQuestion {
    /// What the node has.
    Holdings,
    /// The newest records that a filter means.
    List {
        /// Of which logs.
        ranges: Vec<LogRange>,
        /// Which of them.
        filter: FilterSent,
        /// Most records.
        limit: usize,
        /// Only those before the record with this id.
        before: Option<String>,
        /// With arguments and response.
        payloads: bool,
        /// Without these, but with metadata. Older versions do not ask for it, and answer without.
        #[serde(default)]
        metadata: bool,
        /// Whether all of them are counted, too.
        count: bool,
        /// Most bytes of records, about.
        bytes: usize,
    },
    /// One record.
    Get {
        /// Of which logs.
        ranges: Vec<LogRange>,
        /// Its id.
        id: String,
    },
    /// The counters of a period.
    Summary {
        /// Of which logs.
        ranges: Vec<LogRange>,
        /// The period's name.
        period: String,
        /// When it ends, microseconds since 1970.
        now: u64,
    },
    /// The oldest records that a filter means, and where to go on.
    Forward {
        /// Of which logs, and after which record of each.
        ranges: Vec<LogRange>,
        /// Which of them.
        filter: FilterSent,
        /// After the record with this id, of whatever log, too.
        after: Option<String>,
        /// Most records, about.
        limit: usize,
        /// Most bytes of records, about.
        bytes: usize,
    },
}

impl RecordQuestion {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a question of another node; `None` for what is none, or asks for too much.
    #[must_use]
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

/// The period of this name.
#[must_use]
pub fn period_named(name: &str) -> Option<Period> {
    Period::ALL.iter().copied().find(|period| period.as_str() == name)
}

/// What an answer begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerHead {
    /// What the node has, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holdings: Option<Holdings>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many records are meant, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// How far each log was read, and to where it is to be, in reading forward.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<LogRange>,
    /// Records that were meant and are not kept any more: the first and the last of a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<(u64, u64)>,
}

impl AnswerHead {
    /// An answer with these records.
    #[must_use]
    pub fn with_records<'r>(&self, records: impl IntoIterator<Item = &'r Record>) -> Vec<u8> {
        let mut out = self.begin();
        records.into_iter().for_each(|record| put_record(&mut out, record));
        out
    }

    /// An answer with these counters.
    #[must_use]
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

    /// Reads the head of an answer; the rest.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader(bytes);
        let head = serde_json::from_slice(reader.bytes()?).map_err(|_| DecodeError::Value)?;
        Ok((head, reader.0))
    }

    /// Reads an answer with records.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]
    pub fn records(bytes: &[u8]) -> Result<(Self, Vec<Record>), DecodeError> {
        let (head, rest) = Self::read(bytes)?;
        Ok((head, read_records(rest)?))
    }

    /// Reads an answer with records of these logs.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], also for a record of another log.
    pub fn records_of(
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

    /// Whether reading forward comes to its end by such answers: every log is one that was asked for, none goes back, and one goes
    /// on, if any is left.
    #[must_use]
    pub fn goes_on(&self, asked: &[LogRange]) -> bool {
        let before = |range: &LogRange| asked.iter().find(|it| it.node == range.node);
        let is_meant = |range: &LogRange| {
            before(range).is_some_and(|it| range.after >= it.after && range.last <= it.last)
        };
        let moves = |range: &LogRange| before(range).is_some_and(|it| range.after > it.after);
        self.ranges.iter().all(is_meant)
            && (self.left().is_empty() || self.ranges.iter().any(moves))
    }

    /// What is left to be read forward.
    #[must_use]
    pub fn left(&self) -> Vec<LogRange> {
        self.ranges.iter().filter(|range| range.after < range.last).cloned().collect()
    }

    /// Where the next page begins.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] if that is no id.
    pub fn next_id(&self) -> Result<Option<Id>, DecodeError> {
        let next = self.next.as_deref();
        next.map(|text| Id::parse(text).ok_or(DecodeError::Value)).transpose()
    }

    /// Where the next page of a list begins: at its last record, or further on; before the place where it began.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] if it is elsewhere.
    pub fn next_page(
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

/// Reads an answer with counters.
///
/// # Errors
///
/// [`DecodeError`]
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::examples::ExampleLog;

    #[test]
    fn a_filter_is_the_same_at_the_other_node() {
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
    fn an_older_version_asks_for_no_metadata_and_reads_a_question_that_does() {
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
    fn a_filter_that_is_not_known_means_nothing_rather_than_more() {
        let odd = FilterSent { kinds: vec![200], ..FilterSent::default() };
        assert_eq!(odd.filter(), None);
        let long = FilterSent { tools: vec![String::new(); MAX_VALUES + 1], ..Default::default() };
        assert_eq!(long.filter(), None);
        let newer = br#"{"ask":"list","ranges":[],"filter":{"kinds":[],"statuses":[],"operations":[],"servers":[],"tools":[],"sessions":[],"requests":[],"principals":[],"since":null,"until":null,"colour":"red"},"limit":1,"before":null,"payloads":true,"count":false,"bytes":1}"#;
        assert_eq!(RecordQuestion::decode(newer), None);
    }

    #[test]
    fn what_asks_for_too_much_is_none() {
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
    fn records_of_a_log_that_was_not_asked_for_make_no_answer() {
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
        assert_eq!(of(&["a", "b"]), Err(DecodeError::Value), "one is of another");
        assert_eq!(of(&[]), Err(DecodeError::Value));
    }

    #[test]
    fn a_page_goes_on_from_its_last_record_or_further_and_never_back() {
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
    fn reading_forward_goes_forward_in_the_logs_that_were_asked_for() {
        let range = |node: &str, after, last| LogRange { node: node.into(), after, last };
        let asked = [range("a", 5, u64::MAX), range("b", 0, 9)];
        let goes_on = |ranges: &[LogRange]| {
            AnswerHead { ranges: ranges.to_vec(), ..AnswerHead::default() }.goes_on(&asked)
        };
        assert!(goes_on(&[range("a", 8, 20), range("b", 0, 9)]));
        assert!(goes_on(&[range("a", 5, 20), range("b", 9, 9)]));
        assert!(goes_on(&[range("a", 5, 5), range("b", 9, 9)]) && goes_on(&[]));
        // Nothing is left of one, and the other stays where it is.
        assert!(!goes_on(&[range("a", 5, 5), range("b", 0, 9)]));
        assert!(!goes_on(&[range("a", 5, 20), range("b", 0, 9)]), "for ever");
        assert!(!goes_on(&[range("a", 4, 20), range("b", 1, 9)]), "back");
        assert!(!goes_on(&[range("b", 1, 10)]), "beyond");
        assert!(!goes_on(&[range("b", 1, 9), range("c", 1, 9)]), "another's");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = AnswerHead::records(&bytes);
            let _ = read_buckets(&bytes);
        }
    }
}
