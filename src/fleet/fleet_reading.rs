//! Reading the records of a whole fleet, from whatever node is asked: what this node has, what index nodes have, and what the living
//! nodes have not sealed yet, put together.
//!
//! ```text
//! begin    index nodes: what have you?  ─▶ plan (`reading_plan`) ─▶ who is asked for which records
//! ask      all of them at a time        ─▶ merged; who does not answer is named in the coverage
//! ```
//!
//! Bounds: [`ASKED_TOGETHER`] nodes are asked at a time, each has [`PEER_LIMIT`] for its whole answer, and [`TOTAL_BYTES`] of records
//! are asked for in all. One hop: what a node is asked it answers by itself.
//!
//! Size: one way of asking, whose answers each question merges in its own manner.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use thiserror::Error;

use super::config::IndexRole;
use super::fleet_logs::{FleetCoverage, FleetLogs};
use super::fleet_node::FleetNode;
use super::forward_merge::ForwardMerge;
use super::living_nodes::{LivingNodes, NodeState, NodeView};
use super::peer_wire::PeerRoute;
use super::peers::{Hop, Peers};
use super::reading_plan::{KnownNode, KnownState, PlanFacts, ReadingShare, plan};
use super::record_answers::{self, NoAnswer};
use super::record_questions::{
    AnswerHead, FilterSent, Holdings, LogRange, MAX_ANSWER_BYTES, MAX_ASKED_BYTES, RecordQuestion,
    read_buckets,
};
use crate::activity::bytes::DecodeError;
use crate::activity::merged::{MAX_MERGED_OFFSET, merge_pages};
use crate::activity::{
    Filter, From, Id, Listing, Page, Payloads, Period, QueryError, Record, Summary,
};

/// The longest that another node has for its whole answer. Whoever does not answer is named, and the others are not waited for
/// longer.
pub const PEER_LIMIT: Duration = Duration::from_secs(3);
/// Nodes that are asked at a time for one answer.
pub const ASKED_TOGETHER: usize = 32;
/// Bytes of records that are asked for at a time, of all nodes together, about.
pub const TOTAL_BYTES: usize = 64 << 20;
/// The least that each of them may send of that.
const MIN_BYTES: usize = 64 << 10;
/// Records that are passed over at a time.
const PASS_RECORDS: usize = 500;
/// Most pages that are passed over: a page has a record, but for one that only seems to be meant.
const MAX_PASSED_PAGES: u64 = 2 * MAX_MERGED_OFFSET;
/// Records that are read forward at a time of one node.
const FORWARD_RECORDS: usize = 256;
/// Bytes that are read forward at a time of one node, at most.
const FORWARD_BYTES: usize = 1 << 20;

/// Told where nobody can be asked yet.
pub(super) const NOT_SEEN: &str = "the fleet's nodes have not been seen yet";

/// Whoever reads the fleet's records here.
#[derive(Clone, Debug)]
pub struct FleetReader {
    logs: FleetLogs,
    node: Option<Arc<FleetNode>>,
}

impl FleetReader {
    /// With what is here, and by this node where there is a fleet.
    #[must_use]
    pub fn new(logs: FleetLogs, node: Option<Arc<FleetNode>>) -> Self {
        Self { logs, node }
    }

    /// What is here.
    #[must_use]
    pub fn logs(&self) -> &FleetLogs {
        &self.logs
    }

    /// Finds out who has what; `None` where no other node can be asked: there is no fleet, or no `cluster.key`.
    ///
    /// # Errors
    ///
    /// [`QueryError`] of this node's own log.
    pub async fn begin(&self) -> Result<Option<FleetReading>, QueryError> {
        let Some(node) = self.node.as_ref().filter(|_| self.logs.index().is_some()) else {
            return Ok(None);
        };
        if node.config.key.is_none() {
            return Ok(None);
        }
        // Before this node has its place nobody is seen yet, and what is not here is missing.
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
                    let said =
                        ask_if(asks, &name, question).await.and_then(|bytes| holdings(&bytes));
                    (name, said)
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
            coverage.missing.insert("store".to_owned(), NOT_SEEN.to_owned());
        }
        coverage.partial = !coverage.missing.is_empty();
        let shares = planned.shares.into_iter().map(Some).collect();
        Ok(Some(FleetReading { logs: self.logs.clone(), peers, shares, coverage }))
    }
}

/// How a node is seen.
fn known(view: &NodeView) -> KnownNode {
    let state = match (view.state, &view.heartbeat) {
        (NodeState::Living, _) => KnownState::Living,
        (NodeState::Stopped, Some(said)) => KnownState::Stopped { last: said.ledger.committed },
        (NodeState::Stopped, None) | (NodeState::Silent | NodeState::Unknown, _) => {
            KnownState::Away
        }
    };
    KnownNode { name: view.name.as_str().to_owned(), state }
}

/// The nodes that are asked what they have: index nodes, as far as this node has no index itself; all that live where it is not
/// known whose log is meant.
fn whom_to_ask(
    own: &Holdings,
    role: IndexRole,
    living: &LivingNodes,
    wanted: Option<&str>,
) -> Vec<String> {
    let others = || living.living().filter(|node| !node.is_self);
    let all_own = || own.copies.iter().chain([&own.own]);
    let name = |node: &NodeView| node.name.as_str().to_owned();
    let meant = match wanted {
        None => None,
        Some(wanted) => {
            let held = all_own().find(|held| held.node == wanted || held.log == wanted);
            let meant = held.map(|held| &*held.node);
            match meant.or_else(|| living.get(wanted).map(|node| node.name.as_str())) {
                Some(meant) => Some(meant),
                None => return others().map(name).collect(),
            }
        }
    };
    let is_here = |node: &str| node == own.own.node || role.holds(node);
    if meant.map_or(role == IndexRole::Whole, is_here) {
        return Vec::new();
    }
    let holds = |node: &&NodeView| {
        let said = node.heartbeat.as_ref().map_or("false", |said| &said.index);
        let theirs = match said {
            "true" => IndexRole::Whole,
            shard => IndexRole::parse(shard).unwrap_or_default(),
        };
        match meant {
            Some(meant) => theirs.holds(meant),
            None => theirs != IndexRole::None && theirs != role,
        }
    };
    others().filter(holds).map(name).collect()
}

/// Asks a node, and waits for its whole answer.
pub(super) async fn ask(peers: &Peers, node: &str, question: Bytes) -> Result<Bytes, String> {
    let asked = async {
        let answer = peers.request(node, PeerRoute::Records, question, Hop::First).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => {
                return Err(format!("node '{node}' cannot answer now: too much is asked of it"));
            }
            StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED => {
                return Err(format!("node '{node}' is of a version that cannot answer"));
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
        None => Err(NOT_SEEN.to_owned()),
    }
}

fn holdings(bytes: &[u8]) -> Result<Holdings, String> {
    let (head, _) = AnswerHead::read(bytes).map_err(unreadable)?;
    head.holdings.ok_or_else(|| unreadable(DecodeError::Value))
}

pub(super) fn unreadable(error: DecodeError) -> String {
    format!("its answer cannot be read: it {error}")
}

/// Runs what blocks.
async fn beside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, QueryError> + Send + 'static,
) -> Result<T, QueryError> {
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(QueryError::Busy))
}

/// The fleet's records, as they were found to be where.
#[derive(Debug)]
pub struct FleetReading {
    logs: FleetLogs,
    /// `None` while this node has no place in its fleet.
    peers: Option<Arc<Peers>>,
    /// `None` for those that did not answer: they are not asked again.
    shares: Vec<Option<ReadingShare>>,
    coverage: FleetCoverage,
}

impl FleetReading {
    /// What the answers cover so far.
    #[must_use]
    pub fn coverage(&self) -> &FleetCoverage {
        &self.coverage
    }

    /// A page of records, newest first; and how many are meant in all, if they are counted. Of `offset`,
    /// [`MAX_MERGED_OFFSET`] counts at most.
    ///
    /// # Errors
    ///
    /// [`QueryError`] of this node's own logs.
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

    /// Where a page begins that passes over so many records; `None` behind the last.
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

    /// The record with this id, if one of those that answer keeps it.
    ///
    /// # Errors
    ///
    /// [`QueryError`] of this node's own logs.
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

    /// The summary of a period that ends at `now` (microseconds since 1970).
    ///
    /// # Errors
    ///
    /// [`QueryError`] of this node's own logs.
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

    /// Reads forward, oldest first, after the record with this id or from the first on, up to the last that is there now. Who
    /// does not answer at its beginning is named; who does not later breaks it off.
    ///
    /// # Errors
    ///
    /// [`QueryError`] of this node's own logs.
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

    /// Asks all, and gives what they answer, by the places of the shares.
    async fn ask_all(
        &mut self,
        question: impl Fn(Vec<LogRange>) -> RecordQuestion,
    ) -> Result<Vec<(usize, Bytes)>, QueryError> {
        let (logs, peers) = (&self.logs, self.peers.as_deref());
        let asked = self.shares.iter().enumerate().filter_map(|(place, share)| {
            let share = share.as_ref()?;
            Some((place, share.at.as_deref(), question(share.ranges.clone())))
        });
        let asked: Vec<_> = asked.collect();
        let answers: Vec<_> = stream::iter(asked)
            .map(|(place, at, question)| async move {
                (place, ask_share(logs, peers, at, question).await)
            })
            .buffer_unordered(ASKED_TOGETHER)
            .collect()
            .await;
        let mut given = Vec::new();
        for (place, answer) in answers {
            match answer {
                Ok(bytes) => given.push((place, bytes)),
                Err(ForwardBroken::Query(error)) => return Err(error),
                Err(ForwardBroken::Node(why)) => self.give_up(place, why),
                Err(ForwardBroken::Removed(..)) => {}
            }
        }
        given.sort_by_key(|(place, _)| *place);
        Ok(given)
    }

    /// What a node was asked for is missing.
    fn give_up(&mut self, share: usize, why: String) {
        let Some(share) = self.shares.get_mut(share).and_then(Option::take) else { return };
        for range in share.ranges {
            let said = match range.after {
                0 => why.clone(),
                after => format!("{why}; its records after {after} are not here"),
            };
            self.coverage.lacks(&range.node, &said);
        }
    }

    /// What was asked of a node.
    fn asked(&self, share: usize) -> &[LogRange] {
        self.shares.get(share).and_then(Option::as_ref).map_or(&[], |share| &share.ranges)
    }

    /// Between what the index has read and what its node keeps there are records in the store alone.
    fn note_removed(&mut self, share: usize, head: &AnswerHead) {
        let Some((first, last)) = head.removed else { return };
        let of = self.asked(share).iter().find(|range| range.after.checked_add(1) == Some(first));
        let Some(node) = of.map(|range| range.node.clone()) else { return };
        let why = format!(
            "its records {first} to {last} are in the store, and no index node that answers has read them yet"
        );
        self.coverage.lacks(&node, &why);
    }
}

/// Reads an answer in reading forward.
fn forward_answer(
    asked: &[LogRange],
    bytes: &[u8],
) -> Result<(AnswerHead, Vec<Record>), DecodeError> {
    let (head, records) = AnswerHead::records_of(asked, bytes)?;
    if head.goes_on(asked) { Ok((head, records)) } else { Err(DecodeError::Value) }
}

/// Asks one node, or this one.
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
        move |question| match record_answers::answer(&logs, question) {
            Ok(bytes) => Ok(Bytes::from(bytes)),
            Err(NoAnswer::Query(error)) => Err(error),
            Err(NoAnswer::Question) => Err(QueryError::Busy),
        }
    };
    let answered = match question {
        // Whoever reads all has time.
        forward @ RecordQuestion::Forward { .. } => {
            logs.activity().aside(move |_| read(forward)).await.flatten()
        }
        question => beside(move || read(question)).await,
    };
    Ok(answered?)
}

/// Why reading forward breaks off.
#[derive(Debug, Error)]
pub enum ForwardBroken {
    /// This node's own logs cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Another node, in words.
    #[error("{0}")]
    Node(String),
    /// What was next is not kept any more: the first and the last of it.
    #[error("retention has removed the records {0} to {1} of a log, which were still to be read")]
    Removed(u64, u64),
}

/// The fleet's records, oldest first.
#[derive(Debug)]
pub struct FleetForward {
    reading: FleetReading,
    filter: FilterSent,
    merge: ForwardMerge,
    left: Vec<Vec<LogRange>>,
    bytes: usize,
}

impl FleetForward {
    /// What it covers.
    #[must_use]
    pub fn coverage(&self) -> &FleetCoverage {
        &self.reading.coverage
    }

    /// The next records, at most so many; none at the end.
    ///
    /// # Errors
    ///
    /// [`ForwardBroken`]
    pub async fn next(&mut self, most: usize) -> Result<Vec<Record>, ForwardBroken> {
        loop {
            let taken = self.merge.take(most);
            if !taken.is_empty() || self.merge.is_over() {
                return Ok(taken);
            }
            let (logs, peers) = (&self.reading.logs, self.reading.peers.as_deref());
            let asked = self.merge.hungry().into_iter().filter_map(|place| {
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
            let asked: Vec<_> = asked.collect();
            let answers: Vec<_> = stream::iter(asked)
                .map(|(place, at, question)| async move {
                    (place, ask_share(logs, peers, at, question).await)
                })
                .buffer_unordered(ASKED_TOGETHER)
                .collect()
                .await;
            for (place, answer) in answers {
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
