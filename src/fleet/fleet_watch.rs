//! The records of the other living nodes as they are stored there, for whoever watches the fleet from here.
//!
//! Each node that lives is asked every [`ASK_EVERY`] for what came behind the record that was read last, from its own log: what is
//! not sealed yet is shown as soon, and nothing is kept here but a place in each log. What a reader does not take in time stays in
//! the logs: [`MAX_WAITING`] portions wait for it, then nobody is asked. Records of one node come in order and once; between nodes
//! they come as they are heard of.
//!
//! A node that does not answer is told of, once, and so is that it answers again: it is then gone on with where it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::fleet_node::FleetNode;
use super::fleet_reading::{ASKED_TOGETHER, ask, unreadable};
use super::peers::Peers;
use super::record_questions::{AnswerHead, FilterSent, LogRange, RecordQuestion};
use crate::activity::record::NodeId;
use crate::activity::{Id, Record};
use crate::io::clock::wall_ms;

/// How often each other node is asked.
pub const ASK_EVERY: Duration = Duration::from_millis(500);
/// Most other nodes that one reader watches; of the others it is told.
pub const MAX_WATCHED: usize = 64;
/// Portions that wait for a reader at most.
pub const MAX_WAITING: usize = 4;
/// How far before the record that a reader saw last another node's records come again, in milliseconds: they may have been on their
/// way.
pub const OVERLAP_MS: u64 = 2_000;
/// Most records of a node at a time.
const PORTION_RECORDS: usize = 128;
/// Most bytes of them.
const PORTION_BYTES: usize = 256 << 10;

/// Where watching begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// With what is stored from now on.
    Now,
    /// After the record that was seen last, of whatever node, and a little before.
    After(Id),
}

/// What there is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchNews {
    /// Records of a node.
    Records(Vec<Record>),
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
    /// Watches the others of the fleet of `node`, or of them the one that is `wanted`; `None` where it can ask nobody.
    #[must_use]
    pub fn begin(node: &Arc<FleetNode>, wanted: Option<String>, start: WatchStart) -> Option<Self> {
        let peers = Arc::clone(node.peers()?);
        let (tells, news) = mpsc::channel(MAX_WAITING);
        let watcher = Watcher {
            node: Arc::clone(node),
            peers,
            wanted,
            since: match start {
                WatchStart::Now => wall_ms(),
                WatchStart::After(id) => id.time_ms().saturating_sub(OVERLAP_MS),
            },
            logs: BTreeMap::new(),
            left: false,
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

/// A log that is watched.
#[derive(Clone, Debug, Default)]
struct WatchedLog {
    /// The last record that was read; `None` before the first answer.
    after: Option<u64>,
    missing: bool,
}

struct Watcher {
    node: Arc<FleetNode>,
    peers: Arc<Peers>,
    wanted: Option<String>,
    /// Records from then on are wanted, in milliseconds since 1970 by this node's clock.
    since: u64,
    logs: BTreeMap<String, WatchedLog>,
    /// It was told that there are more nodes than are watched.
    left: bool,
    tells: mpsc::Sender<WatchNews>,
}

impl Watcher {
    async fn run(mut self) {
        while self.round().await.is_some() {}
    }

    /// Asks each node once; `None` where nobody listens any more.
    async fn round(&mut self) -> Option<()> {
        let living = self.node.living();
        let is_meant = |name: &str| self.wanted.as_deref().is_none_or(|wanted| wanted == name);
        let mut asked = Vec::new();
        let others = living.living().filter(|node| !node.is_self);
        let mut others: Vec<_> = others
            .filter(|node| is_meant(node.name.as_str()))
            .map(|it| (it.name.as_str(), it.skew_ms))
            .collect();
        let more = others.len().saturating_sub(MAX_WATCHED);
        others.truncate(MAX_WATCHED);
        for (name, skew) in others {
            let after = self.logs.entry(name.to_owned()).or_default().after;
            // By its clock.
            let since = self.since.saturating_add_signed(-skew.unwrap_or_default());
            let from = Id::new(since, 0, NodeId([0; 16])).to_string();
            let question = RecordQuestion::Forward {
                ranges: vec![LogRange {
                    node: name.to_owned(),
                    after: after.unwrap_or_default(),
                    last: u64::MAX,
                }],
                filter: FilterSent::default(),
                after: after.is_none().then_some(from),
                limit: PORTION_RECORDS,
                bytes: PORTION_BYTES,
            };
            asked.push((name.to_owned(), Bytes::from(question.encode())));
        }
        if more > 0 && !std::mem::replace(&mut self.left, true) {
            let why = format!("{more} more nodes live than one watches ({MAX_WATCHED})");
            self.tell(WatchNews::Missing("others".to_owned(), why)).await?;
        }
        let peers = &*self.peers;
        let answers: Vec<_> = stream::iter(asked)
            .map(|(name, question)| async move {
                let answer = ask(peers, &name, question).await;
                (name, answer.and_then(|bytes| AnswerHead::records(&bytes).map_err(unreadable)))
            })
            .buffer_unordered(ASKED_TOGETHER)
            .collect()
            .await;
        let mut is_behind = false;
        let mut found = Vec::new();
        for (name, answer) in answers {
            let Some(log) = self.logs.get_mut(&name) else { continue };
            match answer {
                Err(why) if !log.missing => {
                    log.missing = true;
                    self.tell(WatchNews::Missing(name, why)).await?;
                }
                Err(_) => {}
                Ok((head, records)) => {
                    is_behind |= !head.left().is_empty();
                    if let Some(range) = head.ranges.first() {
                        log.after = Some(range.after);
                    }
                    let is_back = std::mem::take(&mut log.missing);
                    if let Some((first, last)) = head.removed {
                        self.tell(WatchNews::Removed(name.clone(), first, last)).await?;
                    }
                    if is_back {
                        self.tell(WatchNews::Back(name)).await?;
                    }
                    found.extend(records);
                }
            }
        }
        // Those that live no more are told of, too: what they had not sealed is not known.
        let gone: Vec<_> = self
            .logs
            .iter()
            .filter(|(name, log)| {
                !log.missing && !living.living().any(|it| it.name.as_str() == **name)
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(log) = self.logs.get_mut(&name) {
                log.missing = true;
            }
            self.tell(WatchNews::Missing(name, "it does not live".to_owned())).await?;
        }
        found.sort_by_key(|record| record.id);
        if !found.is_empty() {
            self.tell(WatchNews::Records(found)).await?;
        }
        if !is_behind {
            tokio::time::sleep(ASK_EVERY).await;
        }
        (!self.tells.is_closed()).then_some(())
    }

    async fn tell(&self, news: WatchNews) -> Option<()> {
        self.tells.send(news).await.ok()
    }
}
