//! The records of the other living nodes as they are stored there, for whoever watches the fleet from here.
//!
//! Each node that lives is asked every [`ASK_EVERY`] for what came behind the record that was read last, from its own log, by
//! itself: one that is slow holds up no other. What is not sealed yet is shown as soon, and nothing is kept here but a place in
//! each log. What a reader does not take in time stays in the logs: [`MAX_WAITING`] portions wait for it, then nobody is asked.
//! Records of one node come in order and once; between nodes they come as they are heard of.
//!
//! A node that does not answer, or does not live, is told of, once, and so is that it answers again: it is then gone on with
//! where it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::fleet_node::FleetNode;
use super::fleet_reading::{ASKED_TOGETHER, NOT_SEEN, ask, unreadable};
use super::living_nodes::{LivingNodes, NodeState};
use super::record_questions::{AnswerHead, FilterSent, LogRange, RecordQuestion};
use super::watch_place::WatchPlace;
use crate::activity::bytes::DecodeError;
use crate::activity::record::NodeId;
use crate::activity::{Id, Record};

/// How often each other node is asked.
pub const ASK_EVERY: Duration = Duration::from_millis(500);
/// Most other nodes that one reader watches; of the others it is told. As many that do not live are named.
pub const MAX_WATCHED: usize = 64;
/// Portions that wait for a reader at most.
pub const MAX_WAITING: usize = 4;
/// How far before the record that a reader saw last the records of other nodes come again, in milliseconds, where that is all that
/// is known of where it is: they may have been on their way.
pub const OVERLAP_MS: u64 = 2_000;
/// How often it is asked again whose log it is that a reader has named by its id.
const FIND_EVERY: Duration = Duration::from_secs(5);
/// Characters of a log's id.
const LOG_ID_CHARS: usize = 32;
/// Most records of a node at a time.
const PORTION_RECORDS: usize = 128;
/// Most bytes of them.
const PORTION_BYTES: usize = 256 << 10;

const NOT_ALIVE: &str = "it does not live";
const NOT_WATCHED: &str = "more nodes live than one watches";
const NO_SUCH_NODE: &str = "there is no such node in this fleet";
const NO_SUCH_LOG: &str = "no node that lives knows of such a log";
const NOT_KNOWN: &str = "it is not known yet whether it lives";
/// What stands for the fleet's store where nodes are named.
const STORE: &str = "store";
/// What stands for nodes beyond the most that are watched.
const OTHERS: &str = "others";

/// What there is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchNews {
    /// Records of a node, and the last number that was read of its log; they may be none.
    Records(String, u64, Vec<Record>),
    /// A node's records are missing from now on, and why.
    Missing(String, String),
    /// They come again.
    Back(String),
    /// What was next of a node is not kept any more: the first and the last of it.
    Removed(String, u64, u64),
}

/// The other nodes, watched.
#[derive(Debug)]
pub struct FleetWatch {
    news: mpsc::Receiver<WatchNews>,
    _task: AbortOnDropHandle<()>,
}

impl FleetWatch {
    /// Watches the others of the fleet of `node` from that place on, or of them the one that is `wanted`, by its name or the id of
    /// its log; `None` where it can ask nobody, having no `cluster.key`. Before it is seen who lives it tells that, then goes on.
    #[must_use]
    pub fn begin(node: &Arc<FleetNode>, wanted: Option<String>, place: WatchPlace) -> Option<Self> {
        node.config.key.as_ref()?;
        let (tells, news) = mpsc::channel(MAX_WAITING);
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
            tells,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(watcher.run()));
        Some(Self { news, _task: task })
    }

    /// What there is next; can be dropped and asked again.
    pub async fn next(&mut self) -> Option<WatchNews> {
        self.news.recv().await
    }
}

/// A log that is watched, or was, or would be if its node lived.
#[derive(Clone, Debug)]
struct WatchedLog {
    lives: bool,
    /// How far this node's clock is ahead of its, in milliseconds.
    skew_ms: i64,
    missing: bool,
    is_asked: bool,
    /// When it is asked next.
    due: Instant,
}

impl WatchedLog {
    fn new() -> Self {
        Self { lives: false, skew_ms: 0, missing: false, is_asked: false, due: Instant::now() }
    }
}

/// What a node was asked for, and what it said.
struct WatchAnswer {
    node: String,
    after: Option<u64>,
    said: Result<Bytes, String>,
}

struct Watcher {
    node: Arc<FleetNode>,
    wanted: Option<String>,
    /// The node that is wanted, if it was named by its log.
    found: Option<String>,
    /// When it is looked for next.
    finds_at: Instant,
    place: WatchPlace,
    /// Who lived when it was looked at last.
    seen: Option<Arc<LivingNodes>>,
    logs: BTreeMap<String, WatchedLog>,
    /// It was told that nobody is seen.
    store_missing: bool,
    /// It was told that more nodes live than are watched,
    left_living: bool,
    /// and that more do not live than are named.
    left_dead: bool,
    tells: mpsc::Sender<WatchNews>,
}

impl Watcher {
    async fn run(mut self) {
        // Until nobody listens any more.
        let _ = self.watch().await;
    }

    async fn watch(&mut self) -> Option<()> {
        for name in self.place.nodes().map(|name| name.as_str().to_owned()).collect::<Vec<_>>() {
            if name != self.node.name.as_str() && self.is_meant(&name) {
                self.logs.insert(name, WatchedLog::new());
            }
        }
        // By themselves: while the reader takes nothing, who has answered in time has.
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
                    let said = ask(&peers, &node, question).await;
                    WatchAnswer { node, after, said }
                });
            }
            let pause = self.pause(under_way.len());
            tokio::select! {
                Some(Ok(answer)) = under_way.join_next() => self.heard(answer).await?,
                () = tokio::time::sleep(pause) => {}
                () = self.tells.closed() => return None,
            }
        }
    }

    fn is_meant(&self, name: &str) -> bool {
        let Some(wanted) = &self.wanted else { return true };
        wanted == name || self.found.as_deref() == Some(name)
    }

    /// Looks who lives, and tells of those that do not: what they had not sealed is not known.
    async fn look(&mut self) -> Option<()> {
        let living = self.node.living();
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &living)) {
            return Some(());
        }
        self.seen = Some(Arc::clone(&living));
        if living.all().is_empty() {
            if !std::mem::replace(&mut self.store_missing, true) {
                self.tell(WatchNews::Missing(STORE.to_owned(), NOT_SEEN.to_owned())).await?;
            }
            return Some(());
        }
        if std::mem::take(&mut self.store_missing) {
            self.tell(WatchNews::Back(STORE.to_owned())).await?;
        }
        self.logs.values_mut().for_each(|log| log.lives = false);
        let is_other = |name: &str| name != self.node.name.as_str() && self.is_meant(name);
        let others: Vec<_> =
            living.all().iter().filter(|view| is_other(view.name.as_str())).collect();
        for (lives, words) in
            [(true, "live than one watches"), (false, "do not live than are named")]
        {
            let nodes = others.iter().filter(|view| (view.state == NodeState::Living) == lives);
            for view in nodes.clone().take(MAX_WATCHED) {
                let log = self.logs.entry(view.name.as_str().to_owned());
                let log = log.or_insert_with(WatchedLog::new);
                log.lives = lives;
                log.skew_ms = view.skew_ms.unwrap_or_default();
            }
            let more = nodes.count().saturating_sub(MAX_WATCHED);
            let told = if lives { &mut self.left_living } else { &mut self.left_dead };
            if more > 0 && !std::mem::replace(told, true) {
                let why = format!("{more} more nodes {words} ({MAX_WATCHED})");
                self.tell(WatchNews::Missing(OTHERS.to_owned(), why)).await?;
            }
        }
        // A name that no node has is one of nobody, and the id of a log is looked for.
        if let Some(wanted) = self.wanted.clone().filter(|wanted| !is_log_id(wanted)) {
            self.logs.entry(wanted).or_insert_with(WatchedLog::new);
        }
        let gone = self.logs.iter().filter(|(_, log)| !log.lives && !log.missing);
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            let why = match living.get(&name) {
                None => NO_SUCH_NODE,
                Some(view) if view.is_undecided() => NOT_KNOWN,
                Some(view) if view.state == NodeState::Living => NOT_WATCHED,
                Some(_) => NOT_ALIVE,
            };
            self.misses(name, why.to_owned()).await?;
        }
        Some(())
    }

    /// Finds out whose log is wanted, where it was named by its id.
    async fn find(&mut self) -> Option<()> {
        let Some(wanted) = self.wanted.clone().filter(|wanted| is_log_id(wanted)) else {
            return Some(());
        };
        if self.found.is_some() || self.finds_at > Instant::now() {
            return Some(());
        }
        let living = self.node.living();
        let Some(peers) = self.node.peers().filter(|_| !living.all().is_empty()) else {
            // It is told that nobody is seen yet.
            return Some(());
        };
        self.finds_at = Instant::now() + FIND_EVERY;
        let question = Bytes::from(RecordQuestion::Holdings.encode());
        if living.get(&wanted).is_some() {
            return Some(());
        }
        let others = living.living().filter(|node| !node.is_self);
        let others: Vec<_> = others.map(|node| node.name.as_str().to_owned()).collect();
        let said: Vec<_> = stream::iter(others)
            .map(|name| {
                let question = question.clone();
                async move { ask(peers, &name, question).await }
            })
            .buffer_unordered(ASKED_TOGETHER)
            .collect()
            .await;
        let said = said.into_iter().flatten();
        let held = said.filter_map(|bytes| AnswerHead::read(&bytes).ok()?.0.holdings);
        let mut logs = held.flat_map(|held| held.copies.into_iter().chain([held.own]));
        self.found = logs.find(|held| held.log == wanted).map(|held| held.node);
        // Its node is looked at as any.
        self.seen = None;
        match (&self.found, self.logs.contains_key(&wanted)) {
            (None, false) => {
                self.logs.insert(wanted.clone(), WatchedLog::new());
                self.misses(wanted, NO_SUCH_LOG.to_owned()).await?;
            }
            (Some(_), true) => {
                self.logs.remove(&wanted);
                self.tell(WatchNews::Back(wanted)).await?;
            }
            (None, true) | (Some(_), false) => {}
        }
        if self.found.is_some() { self.look().await } else { Some(()) }
    }

    /// Who is asked next, and after which record.
    fn next_due(&mut self) -> Option<(String, Option<u64>)> {
        let now = Instant::now();
        let is_due = |log: &WatchedLog| log.lives && !log.is_asked && log.due <= now;
        let due = self.logs.iter_mut().filter(|(_, log)| is_due(log));
        let (name, log) = due.min_by_key(|(_, log)| log.due)?;
        log.is_asked = true;
        Some((name.clone(), self.place.after(name)))
    }

    /// How long until somebody else may be asked.
    fn pause(&self, under_way: usize) -> Duration {
        let due = self.logs.values().filter(|log| log.lives && !log.is_asked).map(|log| log.due);
        let next = due.min().filter(|_| under_way < ASKED_TOGETHER);
        let pause = next.map(|due| due.saturating_duration_since(Instant::now()));
        pause.map_or(ASK_EVERY, |pause| pause.min(ASK_EVERY))
    }

    fn question(&self, node: &str, after: Option<u64>) -> Bytes {
        // By its clock.
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

    /// Tells what a node has answered.
    async fn heard(&mut self, answer: WatchAnswer) -> Option<()> {
        let WatchAnswer { node, after, said } = answer;
        let Some(log) = self.logs.get_mut(&node) else { return Some(()) };
        log.is_asked = false;
        log.due = Instant::now() + ASK_EVERY;
        let portion = said.and_then(|bytes| WatchPortion::read(&bytes, &node, after));
        let portion = match portion {
            Ok(portion) => portion,
            Err(why) => return self.misses(node, why).await,
        };
        if portion.has_more {
            log.due = Instant::now();
        }
        if std::mem::take(&mut log.missing) {
            self.tell(WatchNews::Back(node.clone())).await?;
        }
        if let Some((first, last)) = portion.removed {
            self.tell(WatchNews::Removed(node.clone(), first, last)).await?;
        }
        match portion.read {
            Some(read) if after != Some(read) => {
                self.place.moves(&node, read);
                self.tell(WatchNews::Records(node, read, portion.records)).await
            }
            Some(_) | None => Some(()),
        }
    }

    async fn misses(&mut self, node: String, why: String) -> Option<()> {
        let Some(log) = self.logs.get_mut(&node) else { return Some(()) };
        if std::mem::replace(&mut log.missing, true) {
            return Some(());
        }
        self.tell(WatchNews::Missing(node, why)).await
    }

    async fn tell(&self, news: WatchNews) -> Option<()> {
        self.tells.send(news).await.ok()
    }
}

/// Whether a node can only be meant by the id of its log.
fn is_log_id(wanted: &str) -> bool {
    wanted.len() == LOG_ID_CHARS && wanted.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What a node has answered that was asked for the next records of its log.
#[derive(Debug, PartialEq)]
struct WatchPortion {
    records: Vec<Record>,
    /// The last number that was read; `None` where nothing is known of it.
    read: Option<u64>,
    has_more: bool,
    removed: Option<(u64, u64)>,
}

impl WatchPortion {
    /// Reads the answer of a node that was asked for what is after that number. One that cannot be gone on with is none: it would
    /// be asked for again and again.
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
    use crate::activity::codec;
    use crate::activity::record::Hash;
    use crate::fleet::examples::ExampleLog;

    fn records(count: u64) -> Vec<Record> {
        let mut log = ExampleLog::new(1);
        let rows = log.records(count);
        let record = |row: crate::fleet::record_rows::RecordRow<'_>| {
            let (head, body) = codec::split_canonical(row.canonical).unwrap();
            let prev = Hash([0; 32]);
            Record::decode(log.log, row.seq, prev, row.hash, head, Some(body)).unwrap()
        };
        rows.iter().map(record).collect()
    }

    #[test]
    fn an_answer_that_cannot_be_gone_on_with_is_none() {
        let all = records(4);
        let range = |node: &str, after, last| LogRange { node: node.to_owned(), after, last };
        let read = |asked: Option<u64>, ranges: Vec<LogRange>, records: &[Record]| {
            let head = AnswerHead { ranges, ..AnswerHead::default() };
            let read = WatchPortion::read(&head.with_records(records), "b", asked);
            read.map(|it| (it.records.len(), it.read, it.has_more)).map_err(|_| ())
        };
        // Nothing is new; all is read; there is more; the first that is asked.
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
        // It would be asked the same again at once, or tell the same again.
        assert_eq!(read(Some(3), vec![range("b", 3, 9)], &[]), Err(()));
        assert_eq!(read(None, vec![range("b", 3, 9)], &[]), Err(()));
        assert_eq!(read(Some(3), vec![range("b", 2, 9)], &[]), Err(()));
        assert_eq!(read(Some(3), vec![range("b", 2, 2)], &[]), Err(()));
        assert_eq!(read(Some(2), vec![range("b", 4, 4)], &all[1..]), Err(()), "not asked for");
        assert_eq!(
            read(Some(1), vec![range("b", 3, 9)], &all[1..]),
            Err(()),
            "beyond what is said"
        );
        assert_eq!(
            read(Some(0), vec![range("b", 4, 4)], &[all[1].clone(), all[0].clone()]),
            Err(())
        );
        assert_eq!(read(Some(1), vec![], &all[1..]), Err(()));
        assert_eq!(read(Some(1), vec![range("c", 4, 4)], &all[1..]), Err(()), "another's");
        assert_eq!(read(Some(1), vec![range("b", 4, 4), range("c", 1, 1)], &all[1..]), Err(()));
        assert!(WatchPortion::read(b"nothing", "b", None).is_err());
    }

    #[test]
    fn a_log_is_named_by_its_id_and_a_node_by_its_name() {
        assert!(is_log_id(&NodeId([0xab; 16]).to_string()));
        assert!(!is_log_id("b") && !is_log_id("") && !is_log_id(&"n".repeat(LOG_ID_CHARS)));
    }
}
