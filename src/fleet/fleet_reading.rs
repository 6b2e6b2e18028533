//! Fleet-wide queries from any node: merges this node's logs, index nodes' copies, and the unsealed records of alive
//! nodes.
//!
//! ```text
//! begin    index nodes: which logs? ─▶ plan (`reading_plan`) ─▶ ranges to request per node
//! ask      all nodes concurrently   ─▶ merged; nodes that fail are listed in the coverage
//! ```
//!
//! Bounds: [`ASKED_TOGETHER`] concurrent requests, [`PEER_LIMIT`] per answer, and [`TOTAL_BYTES`] of records in total. One hop: a
//! queried node answers by itself.
//!
//! [`ForwardMerge`] is a k-way merge of record streams ordered by id. It yields nothing until every open stream has a buffered
//! record.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use mcpproxy_activity::bytes::DecodeError;
use mcpproxy_activity::merged::{MAX_MERGED_OFFSET, merge_pages};
use mcpproxy_activity::{
    Filter, From, Id, Listing, Page, Payloads, Period, QueryError, Record, Summary,
};
use thiserror::Error;

use crate::config::IndexRole;
use crate::failure_detector::{Membership, NodeState, NodeView};
use crate::fleet_logs;
use crate::fleet_logs::{FleetCoverage, FleetLogs, NoAnswer};
use crate::fleet_node::FleetNode;
use crate::peer_wire::PeerRoute;
use crate::peers::{Hop, Peers};
use crate::reading_plan::{KnownNode, KnownState, PlanFacts, ReadingShare, plan};
use crate::record_questions::{
    AnswerHead, FilterSent, Holdings, LogRange, MAX_ANSWER_BYTES, MAX_ASKED_BYTES, RecordQuestion,
    read_buckets,
};

/// Time limit for another node's complete answer; a node that exceeds it is listed as missing.
pub(crate) const PEER_LIMIT: Duration = Duration::from_secs(3);
/// Number of concurrent requests per query.
pub(crate) const ASKED_TOGETHER: usize = 32;
/// Approximate size of records requested at a time from all nodes, in bytes.
pub(crate) const TOTAL_BYTES: usize = 64 << 20;
/// Minimum share of each node in [`TOTAL_BYTES`], in bytes.
const MIN_BYTES: usize = 64 << 10;
/// Number of records skipped at a time.
const PASS_RECORDS: usize = 500;
/// Maximum number of skipped pages. Twice the maximum offset suffices, because nearly every page has a record.
const MAX_PASSED_PAGES: u64 = 2 * MAX_MERGED_OFFSET;
/// Number of records requested at a time per node when reading forward.
const FORWARD_RECORDS: usize = 256;
/// Maximum size in bytes of the records requested at a time per node when reading forward.
const FORWARD_BYTES: usize = 1 << 20;

/// Reason given before other nodes are known.
pub(crate) const NOT_KNOWN_YET: &str = "the fleet's nodes are not known yet";

/// Reader of the fleet's records.
#[derive(Clone, Debug)]
pub struct FleetReader {
    logs: FleetLogs,
    node: Option<Arc<FleetNode>>,
}

impl FleetReader {
    /// Creates a reader of the local logs and, through `node`, of the fleet's logs.
    pub fn new(logs: FleetLogs, node: Option<Arc<FleetNode>>) -> Self {
        Self { logs, node }
    }

    pub fn logs(&self) -> &FleetLogs {
        &self.logs
    }

    /// Determines which node has which records; `None` without a fleet or `cluster.key`.
    pub async fn begin(&self) -> Result<Option<FleetReading>, QueryError> {
        let Some(node) = self.node.as_ref().filter(|_| self.logs.index().is_some()) else {
            return Ok(None);
        };
        if node.config.key.is_none() {
            return Ok(None);
        }
        // Before this node has joined, no other node is known, and everything remote is missing.
        let peers = node.peers().cloned();
        let logs = self.logs.clone();
        let own = beside(move || logs.holdings()).await?;
        let living = node.living();
        let role = node.config.index;
        let asked = whom_to_ask(&own, role, &living, self.logs.wanted());
        let question = Bytes::from(RecordQuestion::Holdings.encode());
        let asks = peers.as_deref();
        let others: Vec<_> = stream::iter(asked)
            .map(|name| {
                let question = question.clone();
                async move {
                    let answer =
                        ask_if(asks, &name, question).await.and_then(|bytes| holdings(&bytes));
                    (name, answer)
                }
            })
            .buffer_unordered(ASKED_TOGETHER)
            .collect()
            .await;
        let nodes: Vec<_> = living.all().iter().map(known).collect();
        let wanted = self.logs.wanted();
        let planned = plan(PlanFacts { own: &own, others: &others, nodes: &nodes, wanted });
        let mut coverage = planned.coverage;
        if let Some(away) = &living.away {
            coverage.missing.insert("store".to_owned(), away.clone());
        } else if living.all().is_empty() {
            coverage.missing.insert("store".to_owned(), NOT_KNOWN_YET.to_owned());
        }
        coverage.partial = !coverage.missing.is_empty();
        let shares = planned.shares.into_iter().map(Some).collect();
        Ok(Some(FleetReading { logs: self.logs.clone(), peers, shares, coverage }))
    }
}

/// State of a node for planning.
fn known(view: &NodeView) -> KnownNode {
    let state = match (view.state, &view.heartbeat) {
        (NodeState::Alive, _) => KnownState::Alive,
        (NodeState::Stopped, Some(heartbeat)) => {
            KnownState::Stopped { last: heartbeat.ledger.committed }
        }
        (NodeState::Stopped, None) | (NodeState::Dead | NodeState::Unknown, _) => KnownState::Away,
    };
    KnownNode { name: view.name.as_str().to_owned(), state }
}

/// Nodes to ask for their holdings: index nodes, unless this node indexes everything; all alive nodes, if the
/// requested log's node is unknown.
fn whom_to_ask(
    own: &Holdings,
    role: IndexRole,
    living: &Membership,
    wanted: Option<&str>,
) -> Vec<String> {
    let others = || living.living().filter(|node| !node.is_self);
    let all_own = || own.copies.iter().chain([&own.own]);
    let name = |node: &NodeView| node.name.as_str().to_owned();
    let node_meant = match wanted {
        None => None,
        Some(wanted) => {
            let held = all_own().find(|held| held.node == wanted || held.log == wanted);
            let node_meant = held.map(|held| &*held.node);
            match node_meant.or_else(|| living.get(wanted).map(|node| node.name.as_str())) {
                Some(node_meant) => Some(node_meant),
                None => return others().map(name).collect(),
            }
        }
    };
    let is_here = |node: &str| node == own.own.node || role.holds(node);
    if node_meant.map_or(role == IndexRole::Whole, is_here) {
        return Vec::new();
    }
    let holds = |node: &&NodeView| {
        let advertised = node.heartbeat.as_ref().map_or("false", |heartbeat| &heartbeat.index);
        let theirs = match advertised {
            "true" => IndexRole::Whole,
            shard => IndexRole::parse(shard).unwrap_or_default(),
        };
        match node_meant {
            Some(node_meant) => theirs.holds(node_meant),
            None => theirs != IndexRole::None && theirs != role,
        }
    };
    others().filter(holds).map(name).collect()
}

/// Sends a query to a node and collects its answer.
pub(crate) async fn ask(peers: &Peers, node: &str, question: Bytes) -> Result<Bytes, String> {
    let asked = async {
        let answer = peers.request(node, PeerRoute::Records, question, Hop::First).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => {
                return Err(format!("node '{node}' is overloaded"));
            }
            StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED => {
                return Err(format!(
                    "node '{node}' runs a version that does not support this query"
                ));
            }
            other => return Err(format!("node '{node}' answered with status {other}")),
        }
        let body = answer.into_body().whole(MAX_ANSWER_BYTES).await;
        body.map_err(|error| error.to_string())
    };
    let late = || format!("node '{node}' did not answer within {} s", PEER_LIMIT.as_secs());
    tokio::time::timeout(PEER_LIMIT, asked).await.unwrap_or_else(|_| Err(late()))
}

async fn ask_if(peers: Option<&Peers>, node: &str, question: Bytes) -> Result<Bytes, String> {
    match peers {
        Some(peers) => ask(peers, node, question).await,
        None => Err(NOT_KNOWN_YET.to_owned()),
    }
}

fn holdings(bytes: &[u8]) -> Result<Holdings, String> {
    let (head, _) = AnswerHead::read(bytes).map_err(unreadable)?;
    head.holdings.ok_or_else(|| unreadable(DecodeError::Value))
}

pub(crate) fn unreadable(error: DecodeError) -> String {
    format!("invalid answer: it {error}")
}

async fn beside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, QueryError> + Send + 'static,
) -> Result<T, QueryError> {
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(QueryError::Busy))
}

/// Fleet-wide query with a fixed plan.
#[derive(Debug)]
pub struct FleetReading {
    logs: FleetLogs,
    /// `None` before this node has joined.
    peers: Option<Arc<Peers>>,
    /// `None` for nodes that failed; they are not asked again.
    shares: Vec<Option<ReadingShare>>,
    coverage: FleetCoverage,
}

impl FleetReading {
    /// Coverage of the answers so far.
    pub fn coverage(&self) -> &FleetCoverage {
        &self.coverage
    }

    /// Returns a page of records, newest first, and the total number if requested. `offset` is limited to
    /// [`MAX_MERGED_OFFSET`].
    pub async fn list(
        &mut self,
        filter: &Filter,
        page: &Page,
        count: bool,
    ) -> Result<(Listing, Option<u64>), QueryError> {
        let from = match page.from {
            From::Newest | From::After(_) => page.from,
            From::Offset(skip) => match self.pass(filter, skip.min(MAX_MERGED_OFFSET)).await? {
                Some(from) => from,
                None => {
                    let none = Page { limit: 0, from: From::Newest, ..*page };
                    let total = if count { self.page(filter, &none, true).await?.1 } else { None };
                    return Ok((Listing::default(), total));
                }
            },
        };
        self.page(filter, &Page { from, ..*page }, count).await
    }

    async fn page(
        &mut self,
        filter: &Filter,
        page: &Page,
        count: bool,
    ) -> Result<(Listing, Option<u64>), QueryError> {
        let before = match page.from {
            From::After(id) => Some(id),
            From::Newest | From::Offset(_) => None,
        };
        let bytes = self.bytes_each();
        let sent = FilterSent::of(filter);
        let answers = self
            .ask_all(|ranges| RecordQuestion::List {
                ranges,
                filter: sent.clone(),
                limit: page.limit,
                before: before.map(|id| id.to_string()),
                payloads: page.payloads == Payloads::Include,
                metadata: page.payloads == Payloads::Exclude,
                count,
                bytes,
            })
            .await?;
        let (mut pages, mut total) = (Vec::new(), 0);
        for (share, bytes) in answers {
            let read = AnswerHead::records_of(self.asked(share), &bytes)
                .and_then(|(head, records)| Ok((head.next_page(before, &records)?, head, records)));
            match read {
                Ok((next_cursor, head, records)) => {
                    pages.push(Listing { records, next_cursor });
                    total += head.total.unwrap_or_default();
                    self.note_removed(share, &head);
                }
                Err(error) => self.give_up(share, unreadable(error)),
            }
        }
        Ok((merge_pages(pages, page.limit), count.then_some(total)))
    }

    /// Start of the page after this many records; `None` beyond the end.
    async fn pass(&mut self, filter: &Filter, skip: u64) -> Result<Option<From>, QueryError> {
        let (mut from, mut rest) = (From::Newest, skip);
        for _ in 0..MAX_PASSED_PAGES {
            if rest == 0 {
                return Ok(Some(from));
            }
            let limit = rest.min(PASS_RECORDS as u64) as usize;
            let page = Page { limit, from, payloads: Payloads::HeadsOnly };
            let (passed, _) = self.page(filter, &page, false).await?;
            rest -= passed.records.len() as u64;
            match passed.next_cursor {
                Some(next) => from = From::After(next),
                None => break,
            }
        }
        Ok(None)
    }

    /// Returns the record with this id from any node that has it.
    pub async fn get(&mut self, id: Id) -> Result<Option<Record>, QueryError> {
        let text = id.to_string();
        let question = |ranges| RecordQuestion::Get { ranges, id: text.clone() };
        let mut found = None;
        for (share, bytes) in self.ask_all(question).await? {
            match AnswerHead::records_of(self.asked(share), &bytes) {
                Ok((head, records)) => {
                    found = found.or_else(|| records.into_iter().find(|record| record.id == id));
                    self.note_removed(share, &head);
                }
                Err(error) => self.give_up(share, unreadable(error)),
            }
        }
        Ok(found)
    }

    /// Summary of a period ending at `now` (microseconds since 1970).
    pub async fn summary(&mut self, period: Period, now: u64) -> Result<Summary, QueryError> {
        let name = period.as_str().to_owned();
        let question = |ranges| RecordQuestion::Summary { ranges, period: name.clone(), now };
        let mut summary = Summary::new(period, now);
        for (share, bytes) in self.ask_all(question).await? {
            match read_buckets(&bytes) {
                Ok((head, buckets)) => {
                    buckets.iter().for_each(|(at, stats)| summary.merge(*at, stats));
                    self.note_removed(share, &head);
                }
                Err(error) => self.give_up(share, unreadable(error)),
            }
        }
        Ok(summary)
    }

    /// Reads forward, oldest first, from the beginning or after this id up to the current end. A node that
    /// fails at the start is listed as missing; a later failure ends the stream with an error.
    pub async fn forward(
        mut self,
        filter: &Filter,
        after: Option<Id>,
    ) -> Result<FleetForward, QueryError> {
        let sent = FilterSent::of(filter);
        let after = after.map(|id| id.to_string());
        let bytes = self.bytes_each().min(FORWARD_BYTES);
        let mut merge = ForwardMerge::new(self.shares.len());
        let mut left = vec![Vec::new(); self.shares.len()];
        let answers = self
            .ask_all(|ranges| RecordQuestion::Forward {
                ranges,
                filter: sent.clone(),
                after: after.clone(),
                limit: FORWARD_RECORDS,
                bytes,
            })
            .await?;
        for (share, bytes) in answers {
            match forward_answer(self.asked(share), &bytes) {
                Ok((head, records)) => {
                    self.note_removed(share, &head);
                    let rest = head.left();
                    merge.feed(share, records, rest.is_empty());
                    if let Some(left) = left.get_mut(share) {
                        *left = rest;
                    }
                }
                Err(error) => self.give_up(share, unreadable(error)),
            }
        }
        for (share, asked) in self.shares.iter().enumerate() {
            if asked.is_none() {
                merge.feed(share, Vec::new(), true);
            }
        }
        Ok(FleetForward { reading: self, filter: sent, merge, left, bytes })
    }

    fn bytes_each(&self) -> usize {
        (TOTAL_BYTES / self.shares.len().max(1)).clamp(MIN_BYTES, MAX_ASKED_BYTES)
    }

    /// Sends a query to all nodes; returns the answers by share index.
    async fn ask_all(
        &mut self,
        question: impl Fn(Vec<LogRange>) -> RecordQuestion,
    ) -> Result<Vec<(usize, Bytes)>, QueryError> {
        let (logs, peers) = (&self.logs, self.peers.as_deref());
        let asked = self.shares.iter().enumerate().filter_map(|(place, share)| {
            let share = share.as_ref()?;
            Some((place, share.at.as_deref(), question(share.ranges.clone())))
        });
        let answers = ask_shares(logs, peers, asked.collect()).await;
        let mut answers_by_share = Vec::new();
        for (place, answer) in answers {
            match answer {
                Ok(bytes) => answers_by_share.push((place, bytes)),
                Err(ForwardBroken::Query(error)) => return Err(error),
                Err(ForwardBroken::Node(why)) => self.give_up(place, why),
                Err(ForwardBroken::Removed(..)) => {}
            }
        }
        answers_by_share.sort_by_key(|(place, _)| *place);
        Ok(answers_by_share)
    }

    /// Marks a share as missing.
    fn give_up(&mut self, share: usize, why: String) {
        let Some(share) = self.shares.get_mut(share).and_then(Option::take) else { return };
        for range in share.ranges {
            let message = match range.after {
                0 => why.clone(),
                after => format!("{why}; its records after {after} are missing"),
            };
            self.coverage.lacks(&range.node, &message);
        }
    }

    /// Ranges requested from a share.
    fn asked(&self, share: usize) -> &[LogRange] {
        self.shares.get(share).and_then(Option::as_ref).map_or(&[], |share| &share.ranges)
    }

    /// Reports records that the node no longer retains and the index has not read yet: they are only in the
    /// store.
    fn note_removed(&mut self, share: usize, head: &AnswerHead) {
        let Some((first, last)) = head.removed else { return };
        let of = self.asked(share).iter().find(|range| range.after.checked_add(1) == Some(first));
        let Some(node) = of.map(|range| range.node.clone()) else { return };
        let why = format!(
            "its records {first} to {last} are in the store, but not yet indexed by any responding node"
        );
        self.coverage.lacks(&node, &why);
    }
}

/// Decodes an answer when reading forward.
fn forward_answer(
    asked: &[LogRange],
    bytes: &[u8],
) -> Result<(AnswerHead, Vec<Record>), DecodeError> {
    let (head, records) = AnswerHead::records_of(asked, bytes)?;
    if head.makes_progress(asked) { Ok((head, records)) } else { Err(DecodeError::Value) }
}

/// Queries several shares concurrently; each is given by its number, its node's name and the question. Returns the
/// answers in the order of arrival.
async fn ask_shares(
    logs: &FleetLogs,
    peers: Option<&Peers>,
    asked: Vec<(usize, Option<&str>, RecordQuestion)>,
) -> Vec<(usize, Result<Bytes, ForwardBroken>)> {
    let answers = stream::iter(asked).map(|(place, at, question)| async move {
        (place, ask_share(logs, peers, at, question).await)
    });
    answers.buffer_unordered(ASKED_TOGETHER).collect().await
}

/// Sends a query to one node, or answers it locally.
async fn ask_share(
    logs: &FleetLogs,
    peers: Option<&Peers>,
    at: Option<&str>,
    question: RecordQuestion,
) -> Result<Bytes, ForwardBroken> {
    if let Some(at) = at {
        let question = Bytes::from(question.encode());
        return ask_if(peers, at, question).await.map_err(ForwardBroken::Node);
    }
    let read = {
        let logs = logs.clone();
        move |question| match fleet_logs::answer(&logs, question) {
            Ok(bytes) => Ok(Bytes::from(bytes)),
            Err(NoAnswer::Query(error)) => Err(error),
            Err(NoAnswer::Question) => Err(QueryError::Busy),
        }
    };
    let answered = match question {
        // An export is not limited in time.
        forward @ RecordQuestion::Forward { .. } => {
            logs.activity().run_on_reader(move |_| read(forward)).await.flatten()
        }
        question => beside(move || read(question)).await,
    };
    Ok(answered?)
}

/// Reason why reading forward ended early.
#[derive(Debug, Error)]
pub enum ForwardBroken {
    /// The local logs cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Another node failed; contains the error message.
    #[error("{0}")]
    Node(String),
    /// First and last record that retention removed before they were read.
    #[error("records {0} to {1} of a log were removed by retention before they were read")]
    Removed(u64, u64),
}

/// Stream of the fleet's records, oldest first.
#[derive(Debug)]
pub struct FleetForward {
    reading: FleetReading,
    filter: FilterSent,
    merge: ForwardMerge,
    left: Vec<Vec<LogRange>>,
    bytes: usize,
}

impl FleetForward {
    pub fn coverage(&self) -> &FleetCoverage {
        &self.reading.coverage
    }

    /// Next records, at most `max`; empty at the end.
    pub async fn next(&mut self, max: usize) -> Result<Vec<Record>, ForwardBroken> {
        loop {
            let taken = self.merge.take(max);
            if !taken.is_empty() || self.merge.is_over() {
                return Ok(taken);
            }
            let (logs, peers) = (&self.reading.logs, self.reading.peers.as_deref());
            let asked = self.merge.starved().into_iter().filter_map(|place| {
                let share = self.reading.shares.get(place)?.as_ref()?;
                let question = RecordQuestion::Forward {
                    ranges: self.left.get(place)?.clone(),
                    filter: self.filter.clone(),
                    after: None,
                    limit: FORWARD_RECORDS,
                    bytes: self.bytes,
                };
                Some((place, share.at.as_deref(), question))
            });
            for (place, answer) in ask_shares(logs, peers, asked.collect()).await {
                let asked = self.left.get(place).map_or(&[][..], Vec::as_slice);
                let (head, records) = forward_answer(asked, &answer?)
                    .map_err(|error| ForwardBroken::Node(unreadable(error)))?;
                if let Some((first, last)) = head.removed {
                    return Err(ForwardBroken::Removed(first, last));
                }
                let rest = head.left();
                self.merge.feed(place, records, rest.is_empty());
                if let Some(left) = self.left.get_mut(place) {
                    *left = rest;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct ForwardStream {
    ready: VecDeque<Record>,
    over: bool,
}

/// K-way merge of record streams.
#[derive(Debug)]
pub(crate) struct ForwardMerge {
    streams: Vec<ForwardStream>,
    last: Option<Id>,
}

impl ForwardMerge {
    /// Creates a merge of this many streams.
    pub(crate) fn new(streams: usize) -> Self {
        Self { streams: (0..streams).map(|_| ForwardStream::default()).collect(), last: None }
    }

    /// Streams without a buffered record that must be fed or ended to continue.
    pub(crate) fn starved(&self) -> Vec<usize> {
        let waits = |stream: &ForwardStream| !stream.over && stream.ready.is_empty();
        self.streams.iter().enumerate().filter(|(_, it)| waits(it)).map(|(at, _)| at).collect()
    }

    /// Appends records of a stream; `over` is true if the stream has ended.
    pub(crate) fn feed(&mut self, stream: usize, records: Vec<Record>, over: bool) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.ready.extend(records);
            stream.over |= over;
        }
    }

    /// Next records in order without duplicates, at most `max`.
    pub(crate) fn take(&mut self, max: usize) -> Vec<Record> {
        let mut taken = Vec::new();
        while taken.len() < max {
            if self.streams.iter().any(|it| !it.over && it.ready.is_empty()) {
                break;
            }
            let first = |it: &&mut ForwardStream| it.ready.front().map(|record| record.id);
            let next = self.streams.iter_mut().filter(|it| !it.ready.is_empty()).min_by_key(first);
            let Some(record) = next.and_then(|stream| stream.ready.pop_front()) else { break };
            if self.last.is_none_or(|last| record.id > last) {
                self.last = Some(record.id);
                taken.push(record);
            }
        }
        taken
    }

    /// True if all streams are exhausted.
    pub(crate) fn is_over(&self) -> bool {
        self.streams.iter().all(|stream| stream.over && stream.ready.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_activity::codec;
    use mcpproxy_activity::codec::PayloadRef;
    use mcpproxy_activity::record::{Hash, HeadRef, NodeId, Source, Status, Type};
    use proptest::prelude::*;

    fn record(ms: u64, log: u8) -> Record {
        let head = HeadRef {
            stored_ms: ms,
            kind: Type::ToolCall,
            source: Source::Mcp,
            principal: "",
            status: Status::Success,
            operation: None,
            server: "",
            tool: "",
            error: "",
            started: 0,
            duration_us: 0,
            overhead_us: 0,
            response_bytes: 0,
            session_id: "",
            request_id: "",
            parent: None,
            intent: PayloadRef::default(),
            variant: "",
            client_name: "",
            repeated: 1,
        };
        let mut bytes = Vec::new();
        codec::encode_head(&head, &mut bytes);
        let hash = Hash([0; 32]);
        Record::decode(NodeId([log; 16]), ms, hash, hash, &bytes, None).unwrap()
    }

    fn of(log: u8, times: &[u64]) -> Vec<Record> {
        times.iter().map(|ms| record(*ms, log)).collect()
    }

    fn ids(records: &[Record]) -> Vec<(u64, u8)> {
        records.iter().map(|record| (record.seq, record.node.0[0])).collect()
    }

    #[test]
    fn merge_waits_for_every_open_stream() {
        let mut merge = ForwardMerge::new(3);
        assert_eq!(merge.starved(), [0, 1, 2]);
        merge.feed(0, of(1, &[1, 4]), false);
        merge.feed(1, of(2, &[2, 4]), true);
        assert!(merge.take(10).is_empty());
        merge.feed(2, Vec::new(), true);
        // Records with the same time are ordered by log, as in ids. The first stream has no buffered record now, so the
        // rest waits.
        assert_eq!(ids(&merge.take(10)), [(1, 1), (2, 2), (4, 1)]);
        assert_eq!(merge.starved(), [0]);
        assert!(!merge.is_over());
        merge.feed(0, of(1, &[5]), true);
        assert_eq!(ids(&merge.take(1)), [(4, 2)]);
        assert_eq!(ids(&merge.take(10)), [(5, 1)]);
        assert!(merge.is_over() && merge.starved().is_empty());
    }

    #[test]
    fn duplicate_records_are_merged() {
        let mut merge = ForwardMerge::new(2);
        merge.feed(0, of(1, &[1, 2, 3]), true);
        merge.feed(1, of(1, &[2, 3, 9]), true);
        assert_eq!(ids(&merge.take(2)), [(1, 1), (2, 1)]);
        assert_eq!(ids(&merge.take(9)), [(3, 1), (9, 1)]);
    }

    proptest! {
        #[test]
        fn merge_is_ordered_and_complete_for_any_chunking(
            logs in prop::collection::vec(prop::collection::btree_set(0_u64..60, 0..30), 1..5),
            step in 1_usize..7,
            max in 1_usize..9,
        ) {
            let mut parts: Vec<VecDeque<Record>> = (1..)
                .zip(&logs)
                .map(|(log, times)| times.iter().map(|ms| record(*ms, log)).collect())
                .collect();
            let mut expected: Vec<Record> = parts.iter().flatten().cloned().collect();
            expected.sort_by_key(|record| record.id);
            let (mut merge, mut found) = (ForwardMerge::new(parts.len()), Vec::new());
            while !merge.is_over() {
                for at in merge.starved() {
                    let length = parts[at].len();
                    let part: Vec<_> = parts[at].drain(..step.min(length)).collect();
                    merge.feed(at, part, parts[at].is_empty());
                }
                found.extend(merge.take(max));
            }
            prop_assert_eq!(ids(&found), ids(&expected));
        }
    }
}
