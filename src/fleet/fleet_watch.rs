//! Live stream of other alive nodes' records, for clients that watch the fleet through this node.
//!
//! Each alive node is polled every [`ASK_EVERY`] for records after the last one read from its own log, independently,
//! so that a slow node does not delay the others. Unsealed records appear as fast as others, and only a position per
//! log is kept here. Backpressure: [`MAX_WAITING`] batches are buffered, then polling stops. Records of one node
//! arrive in order and exactly once; records of different nodes are not ordered.
//!
//! A node that fails or is dead is reported once, and so is its return, after which reading continues at the old
//! position.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use mcpproxy_activity::bytes::DecodeError;
use mcpproxy_activity::record::NodeId;
use mcpproxy_activity::{Id, Record};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::failure_detector::{Membership, NodeState};
use crate::fleet_node::FleetNode;
use crate::fleet_reading::{ASKED_TOGETHER, NOT_KNOWN_YET, ask, unreadable};
use crate::record_questions::{AnswerHead, FilterSent, LogRange, RecordQuestion, WatchCursor};

/// Polling interval per node.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(500);
/// Maximum number of alive nodes that a client watches, and of dead nodes that are reported by name. The number of
/// further nodes is reported.
pub(crate) const MAX_WATCHED: usize = 64;
/// Maximum number of buffered batches.
pub(crate) const MAX_WAITING: usize = 4;
/// Overlap in milliseconds. If the client's position is only a time, records of other nodes from this long before it
/// are sent again, because they may have been in transit.
pub const OVERLAP_MS: u64 = 2_000;
/// Interval for looking up the node of a log id.
const FIND_EVERY: Duration = Duration::from_secs(5);
/// Length of a log id in characters.
const LOG_ID_CHARS: usize = 32;
/// Maximum number of records per batch.
const PORTION_RECORDS: usize = 128;
/// Maximum size of a batch in bytes.
const PORTION_BYTES: usize = 256 << 10;

const NOT_ALIVE: &str = "it is not alive";
const NOT_WATCHED: &str = "more nodes are alive than can be watched";
const NO_SUCH_NODE: &str = "no such node in this fleet";
const NO_SUCH_LOG: &str = "no alive node has this log";
const NOT_KNOWN: &str = "not known yet whether it is alive";
/// Pseudo node name for the fleet's store.
const STORE: &str = "store";
/// Pseudo node name for nodes beyond the limit.
const OTHERS: &str = "others";

/// Event of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// Records of a node, possibly none, and the number of the last record read from its log.
    Records(String, u64, Vec<Record>),
    /// Node whose records are missing from now on, and the reason.
    Missing(String, String),
    Back(String),
    /// First and last record of a node that retention removed before they were read.
    Removed(String, u64, u64),
}

/// Watcher of the other nodes.
#[derive(Debug)]
pub struct FleetWatch {
    news: mpsc::Receiver<WatchEvent>,
    _task: AbortOnDropHandle<()>,
}

impl FleetWatch {
    /// Starts watching the other nodes of the fleet from this cursor, or only the node whose name or log id is
    /// `wanted`. Returns `None` without `cluster.key`. As long as no other nodes are known, the stream reports this
    /// once.
    pub fn begin(
        node: &Arc<FleetNode>,
        wanted: Option<String>,
        place: WatchCursor,
    ) -> Option<Self> {
        node.config.key.as_ref()?;
        let (events, news) = mpsc::channel(MAX_WAITING);
        let watcher = Watcher {
            node: Arc::clone(node),
            wanted,
            found: None,
            finds_at: Instant::now(),
            place,
            seen: None,
            logs: BTreeMap::new(),
            store_missing: false,
            left_living: false,
            left_dead: false,
            events,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(watcher.run()));
        Some(Self { news, _task: task })
    }

    /// Next event. Cancel safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.news.recv().await
    }
}

/// Watched log, including one whose node is not alive.
#[derive(Clone, Debug)]
struct WatchedLog {
    is_alive: bool,
    /// Local clock minus the node's clock, in milliseconds.
    skew_ms: i64,
    missing: bool,
    is_asked: bool,
    /// Time of the next poll.
    due: Instant,
}

impl WatchedLog {
    fn new() -> Self {
        Self { is_alive: false, skew_ms: 0, missing: false, is_asked: false, due: Instant::now() }
    }
}

/// A node's answer.
struct WatchAnswer {
    node: String,
    after: Option<u64>,
    result: Result<Bytes, String>,
}

struct Watcher {
    node: Arc<FleetNode>,
    wanted: Option<String>,
    /// Node found for the wanted log id.
    found: Option<String>,
    /// Time of the next lookup.
    finds_at: Instant,
    place: WatchCursor,
    /// Nodes in the last snapshot.
    seen: Option<Arc<Membership>>,
    logs: BTreeMap<String, WatchedLog>,
    /// True if missing liveness was reported.
    store_missing: bool,
    /// True if surplus alive nodes were reported.
    left_living: bool,
    /// True if surplus dead nodes were reported.
    left_dead: bool,
    events: mpsc::Sender<WatchEvent>,
}

impl Watcher {
    async fn run(mut self) {
        // Ends when the client disconnects.
        let _ = self.watch().await;
    }

    async fn watch(&mut self) -> Option<()> {
        for name in self.place.nodes().map(|name| name.as_str().to_owned()).collect::<Vec<_>>() {
            if name != self.node.name.as_str() && self.is_meant(&name) {
                self.logs.insert(name, WatchedLog::new());
            }
        }
        // Polls are independent: answers are complete even while the client is slow.
        let mut under_way = JoinSet::new();
        loop {
            self.look().await?;
            self.find().await?;
            while under_way.len() < ASKED_TOGETHER
                && let Some(peers) = self.node.peers().cloned()
                && let Some((node, after)) = self.next_due()
            {
                let question = self.question(&node, after);
                under_way.spawn(async move {
                    let result = ask(&peers, &node, question).await;
                    WatchAnswer { node, after, result }
                });
            }
            let pause = self.pause(under_way.len());
            tokio::select! {
                Some(Ok(answer)) = under_way.join_next() => self.handle_answer(answer).await?,
                () = tokio::time::sleep(pause) => {}
                () = self.events.closed() => return None,
            }
        }
    }

    fn is_meant(&self, name: &str) -> bool {
        let Some(wanted) = &self.wanted else { return true };
        wanted == name || self.found.as_deref() == Some(name)
    }

    /// Updates the nodes from a snapshot and reports dead ones: their unsealed records are unavailable.
    async fn look(&mut self) -> Option<()> {
        let living = self.node.living();
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &living)) {
            return Some(());
        }
        self.seen = Some(Arc::clone(&living));
        if living.all().is_empty() {
            if !std::mem::replace(&mut self.store_missing, true) {
                self.emit(WatchEvent::Missing(STORE.to_owned(), NOT_KNOWN_YET.to_owned())).await?;
            }
            return Some(());
        }
        if std::mem::take(&mut self.store_missing) {
            self.emit(WatchEvent::Back(STORE.to_owned())).await?;
        }
        self.logs.values_mut().for_each(|log| log.is_alive = false);
        let is_other = |name: &str| name != self.node.name.as_str() && self.is_meant(name);
        let others: Vec<_> =
            living.all().iter().filter(|view| is_other(view.name.as_str())).collect();
        for (is_alive, words) in
            [(true, "are alive than can be watched"), (false, "are dead than are listed")]
        {
            let nodes = others.iter().filter(|view| (view.state == NodeState::Alive) == is_alive);
            for view in nodes.clone().take(MAX_WATCHED) {
                let log = self.logs.entry(view.name.as_str().to_owned());
                let log = log.or_insert_with(WatchedLog::new);
                log.is_alive = is_alive;
                log.skew_ms = view.skew_ms.unwrap_or_default();
            }
            let more = nodes.count().saturating_sub(MAX_WATCHED);
            let reported = if is_alive { &mut self.left_living } else { &mut self.left_dead };
            if more > 0 && !std::mem::replace(reported, true) {
                let why = format!("{more} more nodes {words} ({MAX_WATCHED})");
                self.emit(WatchEvent::Missing(OTHERS.to_owned(), why)).await?;
            }
        }
        // An unknown name is reported as missing; a log id is looked up.
        if let Some(wanted) = self.wanted.clone().filter(|wanted| !is_log_id(wanted)) {
            self.logs.entry(wanted).or_insert_with(WatchedLog::new);
        }
        let absent = self.logs.iter().filter(|(_, log)| !log.is_alive && !log.missing);
        let absent: Vec<_> = absent.map(|(name, _)| name.clone()).collect();
        for name in absent {
            let why = match living.get(&name) {
                None => NO_SUCH_NODE,
                Some(view) if view.is_undecided() => NOT_KNOWN,
                Some(view) if view.state == NodeState::Alive => NOT_WATCHED,
                Some(_) => NOT_ALIVE,
            };
            self.misses(name, why.to_owned()).await?;
        }
        Some(())
    }

    /// Looks up the node of the wanted log id.
    async fn find(&mut self) -> Option<()> {
        let Some(wanted) = self.wanted.clone().filter(|wanted| is_log_id(wanted)) else {
            return Some(());
        };
        if self.found.is_some() || self.finds_at > Instant::now() {
            return Some(());
        }
        let living = self.node.living();
        let Some(peers) = self.node.peers().filter(|_| !living.all().is_empty()) else {
            // Missing liveness is already reported.
            return Some(());
        };
        self.finds_at = Instant::now() + FIND_EVERY;
        let question = Bytes::from(RecordQuestion::Holdings.encode());
        if living.get(&wanted).is_some() {
            return Some(());
        }
        let others = living.living().filter(|node| !node.is_self);
        let others: Vec<_> = others.map(|node| node.name.as_str().to_owned()).collect();
        let answers: Vec<_> = stream::iter(others)
            .map(|name| {
                let question = question.clone();
                async move { ask(peers, &name, question).await }
            })
            .buffer_unordered(ASKED_TOGETHER)
            .collect()
            .await;
        let answers = answers.into_iter().flatten();
        let held = answers.filter_map(|bytes| AnswerHead::read(&bytes).ok()?.0.holdings);
        let mut logs = held.flat_map(|held| held.copies.into_iter().chain([held.own]));
        self.found = logs.find(|held| held.log == wanted).map(|held| held.node);
        // The log's node is checked like any other node.
        self.seen = None;
        match (&self.found, self.logs.contains_key(&wanted)) {
            (None, false) => {
                self.logs.insert(wanted.clone(), WatchedLog::new());
                self.misses(wanted, NO_SUCH_LOG.to_owned()).await?;
            }
            (Some(_), true) => {
                self.logs.remove(&wanted);
                self.emit(WatchEvent::Back(wanted)).await?;
            }
            (None, true) | (Some(_), false) => {}
        }
        if self.found.is_some() { self.look().await } else { Some(()) }
    }

    /// Next node to poll, and its position.
    fn next_due(&mut self) -> Option<(String, Option<u64>)> {
        let now = Instant::now();
        let is_due = |log: &WatchedLog| log.is_alive && !log.is_asked && log.due <= now;
        let due = self.logs.iter_mut().filter(|(_, log)| is_due(log));
        let (name, log) = due.min_by_key(|(_, log)| log.due)?;
        log.is_asked = true;
        Some((name.clone(), self.place.after(name)))
    }

    /// Time until the next poll.
    fn pause(&self, under_way: usize) -> Duration {
        let due = self.logs.values().filter(|log| log.is_alive && !log.is_asked).map(|log| log.due);
        let next = due.min().filter(|_| under_way < ASKED_TOGETHER);
        let pause = next.map(|due| due.saturating_duration_since(Instant::now()));
        pause.map_or(ASK_EVERY, |pause| pause.min(ASK_EVERY))
    }

    fn question(&self, node: &str, after: Option<u64>) -> Bytes {
        // Time of the node's clock.
        let skew = self.logs.get(node).map_or(0, |log| log.skew_ms);
        let since = self.place.begins().saturating_add_signed(skew.saturating_neg());
        let from = Id::new(since, 0, NodeId([0; 16])).to_string();
        let (asked, last) = (after.unwrap_or_default(), u64::MAX);
        let question = RecordQuestion::Forward {
            ranges: vec![LogRange { node: node.to_owned(), after: asked, last }],
            filter: FilterSent::default(),
            after: after.is_none().then_some(from),
            limit: PORTION_RECORDS,
            bytes: PORTION_BYTES,
        };
        Bytes::from(question.encode())
    }

    /// Reports a node's answer.
    async fn handle_answer(&mut self, answer: WatchAnswer) -> Option<()> {
        let WatchAnswer { node, after, result } = answer;
        let Some(log) = self.logs.get_mut(&node) else { return Some(()) };
        log.is_asked = false;
        log.due = Instant::now() + ASK_EVERY;
        let portion = result.and_then(|bytes| WatchPortion::read(&bytes, &node, after));
        let portion = match portion {
            Ok(portion) => portion,
            Err(why) => return self.misses(node, why).await,
        };
        if portion.has_more {
            log.due = Instant::now();
        }
        if std::mem::take(&mut log.missing) {
            self.emit(WatchEvent::Back(node.clone())).await?;
        }
        if let Some((first, last)) = portion.removed {
            self.emit(WatchEvent::Removed(node.clone(), first, last)).await?;
        }
        match portion.read {
            Some(read) if after != Some(read) => {
                self.place.moves(&node, read);
                self.emit(WatchEvent::Records(node, read, portion.records)).await
            }
            Some(_) | None => Some(()),
        }
    }

    async fn misses(&mut self, node: String, why: String) -> Option<()> {
        let Some(log) = self.logs.get_mut(&node) else { return Some(()) };
        if std::mem::replace(&mut log.missing, true) {
            return Some(());
        }
        self.emit(WatchEvent::Missing(node, why)).await
    }

    async fn emit(&self, news: WatchEvent) -> Option<()> {
        self.events.send(news).await.ok()
    }
}

/// True if the text can only be a log id.
fn is_log_id(wanted: &str) -> bool {
    wanted.len() == LOG_ID_CHARS && wanted.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Decoded answer of a poll.
#[derive(Debug, PartialEq)]
struct WatchPortion {
    records: Vec<Record>,
    /// Number of the last record read; `None` if the node does not know the log.
    read: Option<u64>,
    has_more: bool,
    removed: Option<(u64, u64)>,
}

impl WatchPortion {
    /// Decodes the answer to a poll after this record. An answer without progress is an error: it would be
    /// requested forever.
    fn read(bytes: &[u8], node: &str, after: Option<u64>) -> Result<Self, String> {
        let (head, records) = AnswerHead::records(bytes).map_err(unreadable)?;
        let odd = || Err(unreadable(DecodeError::Value));
        let asked = after.unwrap_or_default();
        let (read, has_more) = match &*head.ranges {
            [] => (None, false),
            [range] if range.node == node && range.after >= asked => {
                (Some(range.after), range.after < range.last)
            }
            _ => return odd(),
        };
        let mut before = asked;
        for record in &records {
            if record.seq <= before || read.is_none_or(|read| record.seq > read) {
                return odd();
            }
            before = record.seq;
        }
        let stands = match after {
            Some(after) => read == Some(after),
            None => records.is_empty(),
        };
        if has_more && stands {
            return odd();
        }
        Ok(Self { records, read, has_more, removed: head.removed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_activity::codec;
    use mcpproxy_activity::record::Hash;

    use crate::segment::examples::ExampleLog;

    fn records(count: u64) -> Vec<Record> {
        let mut log = ExampleLog::new(1);
        let rows = log.records(count);
        let record = |row: crate::parquet_table::RecordRow<'_>| {
            let (head, body) = codec::split_canonical(row.canonical).unwrap();
            let prev = Hash([0; 32]);
            Record::decode(log.log, row.seq, prev, row.hash, head, Some(body)).unwrap()
        };
        rows.iter().map(record).collect()
    }

    #[test]
    fn answer_without_progress_is_rejected() {
        let all = records(4);
        let range = |node: &str, after, last| LogRange { node: node.to_owned(), after, last };
        let read = |asked: Option<u64>, ranges: Vec<LogRange>, records: &[Record]| {
            let head = AnswerHead { ranges, ..AnswerHead::default() };
            let read = WatchPortion::read(&head.with_records(records), "b", asked);
            read.map(|it| (it.records.len(), it.read, it.has_more)).map_err(|_| ())
        };
        // Accepted answers: nothing new, all records read, more records to follow, and the first poll.
        assert_eq!(read(Some(4), vec![], &[]), Ok((0, None, false)));
        assert_eq!(read(Some(1), vec![range("b", 4, 4)], &all[1..]), Ok((3, Some(4), false)));
        assert_eq!(read(Some(1), vec![range("b", 3, 9)], &all[1..3]), Ok((2, Some(3), true)));
        assert_eq!(
            read(Some(1), vec![range("b", 3, 9)], &[]),
            Ok((0, Some(3), true)),
            "passed over"
        );
        assert_eq!(read(None, vec![range("b", 4, 9)], &all), Ok((4, Some(4), true)));
        assert_eq!(read(None, vec![range("b", 9, 9)], &[]), Ok((0, Some(9), false)));
        // Rejected answers: each would be requested again immediately, or would repeat the same event.
        assert_eq!(read(Some(3), vec![range("b", 3, 9)], &[]), Err(()));
        assert_eq!(read(None, vec![range("b", 3, 9)], &[]), Err(()));
        assert_eq!(read(Some(3), vec![range("b", 2, 9)], &[]), Err(()));
        assert_eq!(read(Some(3), vec![range("b", 2, 2)], &[]), Err(()));
        assert_eq!(read(Some(2), vec![range("b", 4, 4)], &all[1..]), Err(()), "not requested");
        assert_eq!(
            read(Some(1), vec![range("b", 3, 9)], &all[1..]),
            Err(()),
            "beyond the reported range"
        );
        assert_eq!(
            read(Some(0), vec![range("b", 4, 4)], &[all[1].clone(), all[0].clone()]),
            Err(())
        );
        assert_eq!(read(Some(1), vec![], &all[1..]), Err(()));
        assert_eq!(read(Some(1), vec![range("c", 4, 4)], &all[1..]), Err(()), "of another log");
        assert_eq!(read(Some(1), vec![range("b", 4, 4), range("c", 1, 1)], &all[1..]), Err(()));
        assert!(WatchPortion::read(b"nothing", "b", None).is_err());
    }

    #[test]
    fn log_ids_and_node_names_are_distinguished() {
        assert!(is_log_id(&NodeId([0xab; 16]).to_string()));
        assert!(!is_log_id("b") && !is_log_id("") && !is_log_id(&"n".repeat(LOG_ID_CHARS)));
    }
}
