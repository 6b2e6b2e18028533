//! Exchange of facts with the store: uploads this node's facts and reads those of other nodes. [`FactReader`] decides
//! what to accept and upload.
//!
//! A round lists the objects, reads this node's own if it changed, and uploads it if the store lacks some of its facts,
//! so that a revocation never waits for other nodes' objects. Then it reads changed objects of other nodes (and each
//! once more some rounds later), up to a limit per round. While the store is unavailable, known facts are kept.
//!
//! There are two locks; `saved` is taken before `held`. `held` guards facts and reader and is also taken by runtime
//! threads, so I/O and scans of all facts are not allowed while it is held. `saved` guards the memory file, which is
//! written from a snapshot taken under this lock, so that an older snapshot never overwrites a newer one.
//!
//! [`FactExchange`] runs rounds until shutdown: immediately after a change, otherwise every [`LOOK_EVERY`], with
//! backoff after failures.
//!
//! [`FactMemory`] persists facts in a file readable by the owner only, so that a node starts without the store and a
//! rollback of the store undoes nothing. Its functions block.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use mcpproxy_runtime::io::background_task::BackgroundTask;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::{private, state_file};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::bucket::{Bucket, BucketError, ListedSome};
use crate::chain::place::JoinedStore;
use crate::config::NodeName;
use crate::facts::object::{
    FactKeys, FactObject, MAX_FACT_OBJECT_BYTES, MAX_FACT_TEXT_BYTES, NotOpened, ObjectBinding,
    OpenedObject, SALT_BYTES, WrittenFact, open_object, seal_object,
};
use crate::facts::reader::{FactFault, FactReader, MAX_LISTED_FACTS, SAID, object_key};
use crate::facts::selection::ListedFacts;
use crate::facts::set::FactSet;
use crate::failure_detector::{Membership, NodeState};
use crate::node_state::FleetId;

/// Time limit of one store request.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Number of concurrent reads.
const AT_A_TIME: usize = 4;
/// Time during which a round starts new reads; the rest follows in the next round. Together with [`ASK_LIMIT`], it
/// bounds how long a hanging store delays a revocation.
const READS_BEGIN_FOR: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct FactExchangeSettings {
    pub fleet: FleetId,
    pub node: NodeName,
    pub folder: PathBuf,
    pub keys: FactKeys,
    /// Public key of the node, as in its claim.
    pub verifier: String,
}

impl FactExchangeSettings {
    fn place(&self) -> JoinedStore {
        JoinedStore::of(self.fleet, &self.node, &self.verifier)
    }
}

/// Facts of the fleet as known to this node. Clones share them.
#[derive(Clone, Debug)]
pub struct FleetFacts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: FactExchangeSettings,
    held: Mutex<Held>,
    /// State of the memory file.
    saved: Mutex<MemoryCount>,
    changes: watch::Sender<u64>,
    wake: Notify,
    standing: Mutex<FactStanding>,
    /// Faults reported by components that share facts.
    reported: Mutex<BTreeMap<&'static str, String>>,
}

/// Version of the remembered state, by change counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryCount {
    facts: u64,
    reader: u64,
    notes: u64,
    read_once: bool,
}

/// Version of the state that decides what this node publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PublicationCount {
    facts: u64,
    reader: u64,
}

#[derive(Debug)]
struct Held {
    facts: Arc<FactSet>,
    notes: BTreeMap<String, String>,
    /// Change counter of the notes.
    noted: u64,
    reader: FactReader,
    /// See [`FactMemory::read_once`].
    read_once: bool,
    /// Last check of whether the store has this node's facts.
    published: Option<(PublicationCount, bool)>,
}

impl Held {
    fn memory_count(&self) -> MemoryCount {
        let (facts, reader) = (self.facts.changes(), self.reader.remembered());
        MemoryCount { facts, reader, notes: self.noted, read_once: self.read_once }
    }

    fn publication_count(&self) -> PublicationCount {
        PublicationCount { facts: self.facts.changes(), reader: self.reader.publication_changes() }
    }

    /// State that is saved in the memory file.
    fn memory(&self) -> FactMemory {
        FactMemory {
            facts: Arc::clone(&self.facts),
            numbers: self.reader.numbers().clone(),
            relayed: self.reader.relayed_authors().clone(),
            notes: self.notes.clone(),
            read_once: self.read_once,
        }
    }

    /// True if the store is known to have this node's current facts.
    fn is_published(&self) -> bool {
        self.published == Some((self.publication_count(), true))
    }
}

impl FleetFacts {
    /// Loads the remembered facts. Blocks.
    pub fn open(settings: FactExchangeSettings) -> Result<Self, MemoryError> {
        let memory = FactMemory::load(&settings.folder, settings.fleet)?;
        let fresh = memory.is_none();
        let FactMemory { facts, numbers, relayed, notes, read_once } = memory.unwrap_or_default();
        let reader = FactReader::new(settings.node.clone(), numbers, relayed, fresh);
        let held = Held { facts, notes, noted: 0, reader, read_once, published: None };
        let saved = Mutex::new(held.memory_count());
        Ok(Self(Arc::new(Shared {
            settings,
            held: Mutex::new(held),
            saved,
            changes: watch::Sender::new(0),
            wake: Notify::new(),
            standing: Mutex::default(),
            reported: Mutex::default(),
        })))
    }

    pub fn node(&self) -> &NodeName {
        &self.0.settings.node
    }

    pub fn facts(&self) -> Arc<FactSet> {
        Arc::clone(&self.0.held.lock().facts)
    }

    /// True if all published facts were read at least once, by this process or an earlier one. Before that,
    /// unknown facts may exist.
    pub fn has_read_once(&self) -> bool {
        self.0.held.lock().read_once
    }

    /// Reason why the last round did not read all published facts, if any.
    pub fn unread_reason(&self) -> Option<String> {
        self.0.held.lock().reader.unread_reason()
    }

    /// True if listed objects are still unread: the next round starts immediately.
    pub fn is_behind(&self) -> bool {
        self.0.held.lock().reader.is_behind()
    }

    /// Note saved by a component.
    pub fn note(&self, part: &str) -> Option<String> {
        self.0.held.lock().notes.get(part).cloned()
    }

    /// Changes facts and notes, saves them durably, and schedules an upload. Blocks.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]: the change is in effect but may be lost in a crash.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut FactSet, &mut BTreeMap<String, String>) -> T,
    ) -> Result<T, MemoryError> {
        let mut held = self.0.held.lock();
        let Held { facts, notes, noted, .. } = &mut *held;
        let (before, noted_before) = (facts.changes(), notes.clone());
        let done = change(Arc::make_mut(facts), notes);
        let is_other = facts.changes() != before;
        *noted += u64::from(*notes != noted_before);
        drop(held);
        let saved = self.save();
        if is_other {
            self.0.changes.send_modify(|count| *count += 1);
            self.0.wake.notify_one();
        }
        saved.map(|()| done)
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Status of the exchange.
    pub fn standing(&self) -> FactStanding {
        self.0.standing.lock().clone()
    }

    /// Sets or clears a component's fault. Logged once.
    pub fn report_fault(&self, part: &'static str, fault: Option<String>) {
        let mut reported = self.0.reported.lock();
        let Some(fault) = fault else {
            reported.remove(part);
            return;
        };
        if !reported.contains_key(part) {
            peer_line!(
                error,
                LinePeer::Part("fleet facts"),
                part,
                fault,
                "cannot share everything with the fleet"
            );
        }
        reported.insert(part, fault);
    }

    /// Faults of components, one line each.
    pub fn reported_faults(&self) -> Vec<String> {
        self.0.reported.lock().values().cloned().collect()
    }

    /// True if some objects may be sealed with an old key.
    pub fn has_older_keys(&self) -> bool {
        self.0.settings.keys.has_older()
    }

    /// Runs one round before liveness is known.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; objects read successfully are merged.
    pub async fn round(&self, bucket: &Bucket) -> Result<(), BucketError> {
        self.round_by(bucket, |_| false).await
    }

    /// Runs one round: uploads this node's facts, and reads changed objects, those of alive nodes first. An
    /// unreadable object is a fault of its node.
    async fn round_by(
        &self,
        bucket: &Bucket,
        is_alive: impl Fn(&NodeName) -> bool + Send + 'static,
    ) -> Result<(), BucketError> {
        let ListedSome { objects, is_whole } =
            within(bucket.list_up_to(SAID, MAX_LISTED_FACTS)).await?;
        let facts = self.clone();
        let wanted = beside_the_runtime(move || {
            let listed: Vec<_> = objects
                .into_iter()
                .map(|it| ListedFacts { key: it.key, size: it.size, state: it.state })
                .collect();
            Ok(facts.0.held.lock().reader.wanted(&listed, is_whole, is_alive))
        });
        let (own, others): (Vec<_>, Vec<_>) =
            wanted.await?.into_iter().partition(|(node, _)| *node == self.0.settings.node);
        // A failed upload does not prevent reading.
        let put = self.publish(bucket, own.into_iter().next(), is_whole).await;
        self.read_others(bucket, others).await?;
        put
    }

    /// Uploads this node's facts, after reading its own object if necessary.
    async fn publish(
        &self,
        bucket: &Bucket,
        own: Option<(NodeName, ListedFacts)>,
        is_whole: bool,
    ) -> Result<(), BucketError> {
        if let Some((node, listed)) = own {
            match within(bucket.get(&listed.key)).await {
                Ok(object) => self.take(node, listed, object).await?,
                Err(BucketError::Missing(_)) if !is_whole => {
                    self.0.held.lock().reader.own_is_missing();
                }
                // The upload depends on the node's own object.
                Err(error) => return Err(error),
            }
        }
        self.put(bucket).await
    }

    /// Reads other nodes' objects.
    async fn read_others(
        &self,
        bucket: &Bucket,
        others: Vec<(NodeName, ListedFacts)>,
    ) -> Result<(), BucketError> {
        let begun = Instant::now();
        let read = others.into_iter().map(move |(node, listed)| async move {
            let object = match begun.elapsed() < READS_BEGIN_FOR {
                true => Some(within(bucket.get(&listed.key)).await),
                false => None,
            };
            (node, listed, object)
        });
        let mut read = stream::iter(read).buffer_unordered(AT_A_TIME);
        let mut unread = Vec::new();
        while let Some((node, listed, object)) = read.next().await {
            match object {
                Some(Ok(object)) => self.take(node, listed, object).await?,
                // An unreadable object does not affect the upload or other objects.
                Some(Err(error)) => unread.push((node, listed, Some(error))),
                None => unread.push((node, listed, None)),
            }
        }
        self.end_round(unread).await
    }

    /// Merges a node's object, possibly this node's own.
    async fn take(
        &self,
        node: NodeName,
        listed: ListedFacts,
        object: Bytes,
    ) -> Result<(), BucketError> {
        let facts = self.clone();
        beside_the_runtime(move || {
            let settings = &facts.0.settings;
            let place = ObjectBinding { fleet: settings.fleet, key: &listed.key };
            let read = match object.len() as u64 {
                size if size > MAX_FACT_OBJECT_BYTES => Err(FactFault::TooLong(size)),
                _ => open_object(&settings.keys, place, &object)
                    .map_err(FactFault::from)
                    .and_then(|it| Ok((FactObject::read(&it.text, &node)?, it.by_first))),
            };
            let mut held = facts.0.held.lock();
            let Held { facts: set, reader, .. } = &mut *held;
            let read = read.map(|(object, by_first)| {
                reader.opened(&node, by_first, &object);
                object
            });
            let is_other = reader.take((&node, &listed.state), read, Arc::make_mut(set));
            drop(held);
            if is_other {
                facts.0.changes.send_modify(|count| *count += 1);
            }
            Ok(())
        })
        .await
    }

    /// Records unread objects, with the error if they failed, and saves the facts that were read. A crash before that
    /// repeats the reads.
    async fn end_round(
        &self,
        unread: Vec<(NodeName, ListedFacts, Option<BucketError>)>,
    ) -> Result<(), BucketError> {
        let facts = self.clone();
        beside_the_runtime(move || {
            let mut held = facts.0.held.lock();
            for (node, listed, error) in unread {
                match error {
                    Some(error) => held.reader.not_read(&node, &listed, &error),
                    None => held.reader.record_not_requested(&node),
                }
            }
            held.read_once |= held.reader.has_read_all();
            drop(held);
            facts.look_published();
            facts.save().map_err(|error| BucketError::Failed(error.to_string()))
        })
        .await
    }

    /// Saves the state if it changed. Blocks.
    fn save(&self) -> Result<(), MemoryError> {
        let Shared { settings, held, saved, .. } = &*self.0;
        let mut saved = saved.lock();
        let (count, memory) = {
            let held = held.lock();
            let count = held.memory_count();
            if count == *saved {
                return Ok(());
            }
            (count, held.memory())
        };
        memory.save(&settings.folder, settings.fleet)?;
        *saved = count;
        Ok(())
    }

    /// Checks whether the store has this node's facts, if the answer may have changed. Blocks.
    fn look_published(&self) {
        let (object_authors, set, count) = {
            let held = self.0.held.lock();
            let count = held.publication_count();
            if held.published.is_some_and(|(of, _)| of == count) {
                return;
            }
            (held.reader.all_object_authors(), Arc::clone(&held.facts), count)
        };
        let published = object_authors.of(&set);
        let mut held = self.0.held.lock();
        // Changes made in the meantime are checked in the next round.
        let is_published = held.reader.is_stored(&published.facts);
        held.published = Some((count, is_published));
    }

    /// Uploads this node's facts unless the store has them.
    async fn put(&self, bucket: &Bucket) -> Result<(), BucketError> {
        let facts = self.clone();
        let Some((object, sealed)) = beside_the_runtime(move || facts.to_put()).await? else {
            return Ok(());
        };
        self.check_place(bucket).await?;
        within(bucket.put(&object_key(&self.0.settings.node), sealed)).await?;
        let facts = self.clone();
        beside_the_runtime(move || {
            facts.0.held.lock().reader.record_upload(&object);
            Ok(())
        })
        .await
    }

    /// Object to upload and its sealed form. Its number is saved before use. Blocks.
    fn to_put(&self) -> Result<Option<(FactObject, Bytes)>, BucketError> {
        let (object_authors, set) = {
            let held = self.0.held.lock();
            if held.is_published() {
                return Ok(None);
            }
            (held.reader.object_authors(), Arc::clone(&held.facts))
        };
        let published = object_authors.of(&set);
        let Some(object) = self.0.held.lock().reader.next_put(published) else {
            return Ok(None);
        };
        self.save().map_err(|error| BucketError::Failed(error.to_string()))?;
        let node = &self.0.settings.node;
        let text = object.write(node);
        if text.len() > MAX_FACT_TEXT_BYTES {
            let why =
                format!("this node's facts have {} bytes, which exceeds the maximum", text.len());
            return Err(BucketError::Failed(why));
        }
        let sealed = self.seal(&object_key(node), &text)?;
        Ok(Some((object, sealed)))
    }

    /// Records the outcome of a round. Blocks while facts are changed.
    fn stand(&self, round: &Result<(), BucketError>) {
        let held = self.0.held.lock();
        let faults = reported_faults(&held.reader);
        let numbers = held.reader.numbers().iter();
        let nodes = numbers.map(|(node, number)| (node.as_str().to_owned(), *number)).collect();
        // While old keys exist, unread objects may have to be relayed under the new one.
        let is_behind = held.reader.is_behind();
        let may_be_incomplete = self.has_older_keys() && is_behind;
        let published = held.is_published() && !may_be_incomplete;
        drop(held);
        let mut standing = self.0.standing.lock();
        for (key, fault) in &faults {
            if standing.faults.get(key) == Some(fault) {
                continue;
            }
            peer_line!(
                error,
                LinePeer::Part("fleet facts"),
                key,
                fault,
                "skipping a shared fact object"
            );
        }
        let failing = round.as_ref().err().map(ToString::to_string);
        if let (Some(error), None) = (&failing, &standing.failing) {
            peer_line!(
                warn,
                LinePeer::Part("fleet facts"),
                error,
                "cannot exchange facts with the fleet: the known facts are kept"
            );
        }
        // The facts are current only after a round that succeeded and left no object unread.
        let is_done = failing.is_none() && !is_behind;
        let done = if is_done { Some(Instant::now()) } else { standing.done };
        let began = standing.began.or_else(|| Some(Instant::now()));
        *standing = FactStanding { failing, done, began, faults, published, nodes };
    }

    async fn reported_round(
        &self,
        bucket: &Bucket,
        is_alive: impl Fn(&NodeName) -> bool + Send + 'static,
    ) -> bool {
        let round = self.round_by(bucket, is_alive).await;
        let (facts, went_well) = (self.clone(), round.is_ok());
        let stood = beside_the_runtime(move || {
            facts.stand(&round);
            Ok(())
        });
        stood.await.is_ok() && went_well
    }
}

async fn within<T>(asked: impl Future<Output = Result<T, BucketError>>) -> Result<T, BucketError> {
    tokio::time::timeout(ASK_LIMIT, asked).await.unwrap_or(Err(BucketError::Late(ASK_LIMIT)))
}

async fn beside_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BucketError> + Send + 'static,
) -> Result<T, BucketError> {
    let ended = |_| Err(BucketError::Failed("a listing thread panicked".into()));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(ended)
}

/// Interval between rounds. Propagation between nodes takes less than two seconds.
const LOOK_EVERY: Duration = Duration::from_millis(750);
/// Minimum interval while facts keep changing.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Maximum interval after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Time limit for the final upload.
pub const END_LIMIT: Duration = Duration::from_secs(5);

/// Exchange task of a running node.
#[derive(Debug)]
pub struct FactExchange(BackgroundTask);

impl FactExchange {
    /// Starts the exchange. Objects of alive nodes, according to `living`, are read first, because anyone with write
    /// access to the store can add other objects.
    pub fn start(
        facts: FleetFacts,
        bucket: Bucket,
        living: impl Fn() -> Arc<Membership> + Send + 'static,
        runtime: &Handle,
    ) -> Self {
        Self(BackgroundTask::start(runtime, |ending| run(facts, bucket, living, ending)))
    }

    /// Stops the task. If `patient`, pending facts are uploaded within a time limit.
    pub async fn end(self, patient: bool) {
        let limit = if patient { END_LIMIT } else { Duration::ZERO };
        if !self.0.end_within(limit).await {
            peer_line!(
                warn,
                LinePeer::Part("fleet store"),
                "cannot upload this node's facts now: they are uploaded at its next start"
            );
        }
    }
}

async fn run(
    facts: FleetFacts,
    bucket: Bucket,
    living: impl Fn() -> Arc<Membership> + Send + 'static,
    mut ending: watch::Receiver<bool>,
) {
    let mut pause = LOOK_EVERY;
    loop {
        let began = Instant::now();
        let ends = *ending.borrow();
        let now = living();
        let is_alive = move |node: &NodeName| {
            now.get(node.as_str()).is_some_and(|it| it.state == NodeState::Alive)
        };
        let went_well = facts.reported_round(&bucket, is_alive).await;
        if ends {
            return;
        }
        pause = if went_well { LOOK_EVERY } else { (pause * 2).min(LONGEST_PAUSE) };
        let next = tokio::time::Instant::from_std(began + pause);
        tokio::time::sleep(MIN_PAUSE).await;
        if went_well && facts.is_behind() && !*ending.borrow() {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // An unavailable store is not queried more often because of local changes.
            () = facts.0.wake.notified(), if went_well => {}
            _ = ending.wait_for(|ends| *ends) => {}
        }
    }
}

impl FleetFacts {
    /// Seals `text` for a key that no other node writes. Blocks.
    pub(crate) fn seal(&self, key: &str, text: &[u8]) -> Result<Bytes, BucketError> {
        let mut salt = [0; SALT_BYTES];
        let failed = |why: String| BucketError::Failed(why);
        getrandom::fill(&mut salt).map_err(|error| failed(error.to_string()))?;
        let place = ObjectBinding { fleet: self.0.settings.fleet, key };
        let sealed = seal_object(&self.0.settings.keys, place, salt, text);
        sealed.map(Bytes::from).ok_or_else(|| failed("the fleet has no key".into()))
    }

    /// Checks that the store is the one that was joined: a fact that is missing from another store has not ended.
    pub async fn check_place(&self, bucket: &Bucket) -> Result<(), BucketError> {
        within(self.0.settings.place().check(bucket)).await
    }

    /// Uploads a sealed object and verifies it.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also if the store is not the one that was joined; the object may have been written
    /// nevertheless.
    pub async fn put_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
        text: &[u8],
    ) -> Result<(), BucketError> {
        let (facts, place, text) = (self.clone(), key.to_owned(), text.to_vec());
        let sealed = beside_the_runtime(move || facts.seal(&place, &text)).await?;
        let length = sealed.len() as u64;
        within(bucket.put(key, sealed)).await?;
        self.check_place(bucket).await?;
        match within(bucket.size(key)).await? {
            Some(size) if size == length => Ok(()),
            Some(_) | None => Err(BucketError::Failed(format!(
                "{key}: the store confirmed the upload, but the object is missing"
            ))),
        }
    }

    /// Reads a sealed object. The inner error: the object exists but cannot be opened.
    pub async fn get_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
    ) -> Result<Result<OpenedObject, FactFault>, BucketError> {
        match within(bucket.size(key)).await? {
            None => return Err(BucketError::Missing(key.to_owned())),
            Some(size) if size > MAX_FACT_OBJECT_BYTES => return Ok(Err(FactFault::TooLong(size))),
            Some(_) => {}
        }
        let object = within(bucket.get(key)).await?;
        let (facts, key) = (self.clone(), key.to_owned());
        beside_the_runtime(move || {
            let settings = &facts.0.settings;
            let place = ObjectBinding { fleet: settings.fleet, key: &key };
            Ok(open_object(&settings.keys, place, &object).map_err(FactFault::from))
        })
        .await
    }
}

/// Maximum number of skipped objects reported individually; the rest are counted.
pub(crate) const MAX_FAULTS: usize = 64;
/// Age at which facts become stale: revocations by other nodes may be missing.
const STALE: Duration = Duration::from_secs(20);

/// Status of the exchange.
#[derive(Clone, Debug, Default)]
pub struct FactStanding {
    /// Reason why the last round failed, if it did.
    pub failing: Option<String>,
    /// End of the last successful round.
    pub done: Option<Instant>,
    /// Start of the first round.
    pub began: Option<Instant>,
    /// Faults by object key, or by folder if they concern all of it.
    pub faults: BTreeMap<String, String>,
    /// True if the store has this node's facts.
    pub published: bool,
    /// Nodes whose facts were read, and their object numbers.
    pub nodes: BTreeMap<String, u64>,
}

impl FactStanding {
    /// Time since the last successful round, if it exceeds [`STALE`].
    pub fn stale(&self) -> Option<Duration> {
        let age = self.age()?;
        (age > STALE).then_some(age)
    }

    /// Time since the last successful round, or since the first began; `None` before that.
    pub fn age(&self) -> Option<Duration> {
        self.done.or(self.began).map(|at| at.elapsed())
    }
}

/// Faults by object key: the first few, and the number of others.
pub(crate) fn reported_faults(reader: &FactReader) -> BTreeMap<String, String> {
    // An object that cannot be opened is not a fault if another node relays its facts.
    let is_fault = |(key, fault): &(&String, &FactFault)| {
        **fault != FactFault::Sealed(NotOpened::NotAuthentic) || !reader.is_relayed(key)
    };
    let of_objects = reader.faults().iter().filter(is_fault);
    let of_objects = of_objects.map(|(key, fault)| (key.clone(), fault));
    let no_room = FactFault::NoRoom;
    let left_out = reader.left_out().map(|node| (object_key(node), &no_room));
    let all: Vec<(String, &FactFault)> = of_objects.chain(left_out).collect();
    let rest = all.len().saturating_sub(MAX_FAULTS);
    let mut reported = BTreeMap::new();
    for (key, fault) in all.into_iter().take(MAX_FAULTS) {
        report(&mut reported, key, &fault.to_string());
    }
    if rest > 0 {
        report(&mut reported, SAID.to_owned(), &format!("{rest} more objects are skipped"));
    }
    reported
}

/// Adds a fault of an object.
fn report(reported: &mut BTreeMap<String, String>, key: String, fault: &str) {
    let reported = reported.entry(key).or_default();
    if !reported.is_empty() {
        reported.push_str("; ");
    }
    reported.push_str(fault);
}

const MEMORY_FILE: &str = "facts.json";
/// Maximum size of the memory file in bytes.
const MAX_MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_FORMAT: u32 = 1;

/// Error of the memory file.
#[derive(Debug, Error)]
#[error("{}: {why}", file.display())]
pub struct MemoryError {
    file: PathBuf,
    why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactMemory {
    /// All facts of all nodes. Shared, because writing them takes a while.
    pub facts: Arc<FactSet>,
    /// Highest object number read per node.
    pub numbers: BTreeMap<NodeName, u64>,
    /// Nodes whose facts this node has relayed.
    pub relayed: BTreeSet<NodeName>,
    /// Notes of components, by component.
    pub notes: BTreeMap<String, String>,
    /// True if all published facts were read once: before that, unknown facts may exist.
    pub read_once: bool,
}

#[derive(Serialize, Deserialize)]
struct MemoryContents {
    format: u32,
    fleet: String,
    /// Older versions omit this field if it is true.
    #[serde(default = "read_once_by_default")]
    heard: bool,
    numbers: BTreeMap<String, u64>,
    /// Older versions omit this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said_again: Vec<String>,
    notes: BTreeMap<String, String>,
    facts: BTreeMap<String, Vec<WrittenFact>>,
}

fn read_once_by_default() -> bool {
    true
}

impl FactMemory {
    /// Loads the file for this fleet from `folder`; `None` if there is none.
    pub(crate) fn load(folder: &Path, fleet: FleetId) -> Result<Option<Self>, MemoryError> {
        let file = folder.join(MEMORY_FILE);
        let read = match state_file::read(&file, MAX_MEMORY_BYTES) {
            Ok(None) => return Ok(None),
            Ok(Some(text)) => Self::parse(&text, fleet),
            Err(error) => Err(error.to_string()),
        };
        read.map(Some).map_err(|why| {
            let is_sound = |text: &[u8]| Self::parse(text, fleet).is_ok();
            let otherwise = "no intact copy exists: remove the file and its copy to read the fleet's facts from the store; revocations that the store lost are lost";
            let recovery = state_file::recovery(&file, is_sound, MAX_MEMORY_BYTES, otherwise);
            MemoryError { file, why: format!("{why}; {recovery}") }
        })
    }

    /// Parses the file's text.
    fn parse(text: &[u8], fleet: FleetId) -> Result<Self, String> {
        let read: MemoryContents =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if read.format != MEMORY_FORMAT {
            return Err(format!("unknown format {}", read.format));
        }
        if FleetId::parse(&read.fleet) != Some(fleet) {
            return Err(format!("it belongs to fleet {}", read.fleet));
        }
        let name = |name: &str| {
            NodeName::parse(name).ok_or_else(|| format!("'{name}' is not a node name"))
        };
        let mut memory = Self { notes: read.notes, read_once: read.heard, ..Self::default() };
        for (node, number) in read.numbers {
            memory.numbers.insert(name(&node)?, number);
        }
        for node in read.said_again {
            memory.relayed.insert(name(&node)?);
        }
        let mut set = FactSet::default();
        for (node, facts) in read.facts {
            let node = name(&node)?;
            for fact in facts {
                fact.add(&node, &mut set).map_err(|error| error.to_string())?;
            }
        }
        memory.facts = Arc::new(set);
        Ok(memory)
    }

    /// Replaces the file durably.
    pub(crate) fn save(&self, folder: &Path, fleet: FleetId) -> Result<(), MemoryError> {
        let failed = |why: String| MemoryError { file: folder.join(MEMORY_FILE), why };
        let mut facts: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (kind, name, fact) in self.facts.iter() {
            let node = fact.stamp.node.as_str().to_owned();
            facts.entry(node).or_default().push(WrittenFact::of(kind, name, fact));
        }
        let numbers = self.numbers.iter().map(|(node, number)| (node.as_str().to_owned(), *number));
        let contents = MemoryContents {
            format: MEMORY_FORMAT,
            fleet: fleet.to_string(),
            heard: self.read_once,
            numbers: numbers.collect(),
            said_again: self.relayed.iter().map(|node| node.as_str().to_owned()).collect(),
            notes: self.notes.clone(),
            facts,
        };
        let text = serde_json::to_vec(&contents).map_err(|error| failed(error.to_string()))?;
        private::folder(folder)
            .and_then(|()| state_file::write(&folder.join(MEMORY_FILE), &text))
            .map_err(|error| failed(error.to_string()))
    }
}
