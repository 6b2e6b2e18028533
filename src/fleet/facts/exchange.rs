//! The facts at work: what this node says is put into the store, and what the others say is read, until the node ends. Decides
//! nothing: what is believed and put is `fact_reader`'s, what is remembered `fact_memory`'s.
//!
//! A round lists the objects, reads those that are others than before (each once more some rounds later), and puts this node's
//! own if the store does not say what it says. A round follows a change at once, and the one before by [`LOOK_EVERY`]; behind one that failed the pauses
//! grow. While the store is away, what was known stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::fact_memory::{FactMemory, MemoryError};
use super::fact_object::{FactObject, MAX_FACT_OBJECT_BYTES};
use super::fact_reader::{FactFault, FactReader, ListedFacts, MAX_LISTED_FACTS, SAID, object_key};
use super::fact_set::FactSet;
use super::sealed_object::{
    FactKeys, NotOpened, ObjectPlace, OpenedObject, SALT_BYTES, open_object, seal_object,
};
use crate::fleet::bucket::{Bucket, BucketError, ListedSome};
use crate::fleet::config::NodeName;
use crate::fleet::line_budget::{LineBudget, LineLeave};
use crate::fleet::own_place::OwnPlace;
use crate::fleet::sealed_mark::FleetId;

/// The pause between two rounds. With a put and a read it is below two seconds from one node to another.
const LOOK_EVERY: Duration = Duration::from_millis(750);
/// The shortest pause, however much changes.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// The longest, behind rounds that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Most time for one thing that is asked of the store in a round.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Objects that are read at a time.
const AT_A_TIME: usize = 4;
/// Most time for what is still to be said when the node ends.
pub const END_LIMIT: Duration = Duration::from_secs(5);

/// Most objects that are told to be passed over; of the others it is told how many they are.
const MAX_FAULTS: usize = 64;
/// What was read longer ago than this is stale: revocations of other nodes may be missing.
const STALE: Duration = Duration::from_secs(20);

/// What a node takes part with.
#[derive(Clone, Debug)]
pub struct FactExchangeSettings {
    /// The fleet.
    pub fleet: FleetId,
    /// The node.
    pub node: NodeName,
    /// `data_dir/fleet`
    pub folder: PathBuf,
    /// The fleet's keys.
    pub keys: FactKeys,
    /// The node's key, as its claim has it.
    pub verifier: String,
}

impl FactExchangeSettings {
    fn place(&self) -> OwnPlace {
        OwnPlace::of(self.fleet, &self.node, &self.verifier)
    }
}

/// How the exchange stands.
#[derive(Clone, Debug, Default)]
pub struct FactStanding {
    /// Why the last round failed; `None` if it did not.
    pub failing: Option<String>,
    /// When the last one was done that did not.
    pub done: Option<Instant>,
    /// When the first was begun.
    pub began: Option<Instant>,
    /// What is wrong with objects, by their keys, or with all of them, by their folder.
    pub faults: BTreeMap<String, String>,
    /// True if the store says what this node says.
    pub published: bool,
    /// The nodes whose facts were read, and the numbers of their objects.
    pub nodes: BTreeMap<String, u64>,
}

impl FactStanding {
    /// For how long nothing could be read, where that is longer than it should be.
    #[must_use]
    pub fn stale(&self) -> Option<Duration> {
        let age = self.age()?;
        (age > STALE).then_some(age)
    }

    /// How long ago the last round was done that did not fail; `None` before the first was begun.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.done.or(self.began).map(|at| at.elapsed())
    }
}

/// The facts of a fleet, as one node knows them. Clones share them.
#[derive(Clone, Debug)]
pub struct FleetFacts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: FactExchangeSettings,
    held: Mutex<Held>,
    /// Counts the changes.
    changes: watch::Sender<u64>,
    wake: Notify,
    standing: Mutex<FactStanding>,
    /// What the parts that share something say is wrong with that, by their names.
    told: Mutex<BTreeMap<&'static str, String>>,
    /// Lines in the log about objects that are passed over.
    lines: Mutex<LineBudget>,
    base: Instant,
}

#[derive(Debug)]
struct Held {
    facts: Arc<FactSet>,
    notes: BTreeMap<String, String>,
    reader: FactReader,
    /// [`FactMemory::heard`]
    heard: bool,
    saved: FactMemory,
}

impl Held {
    /// Remembers what is another than what is remembered.
    fn save(&mut self, settings: &FactExchangeSettings) -> Result<(), MemoryError> {
        let memory = FactMemory {
            facts: FactSet::clone(&self.facts),
            numbers: self.reader.numbers().clone(),
            notes: self.notes.clone(),
            heard: self.heard,
        };
        if memory != self.saved {
            memory.save(&settings.folder, settings.fleet)?;
            self.saved = memory;
        }
        Ok(())
    }
}

impl FleetFacts {
    /// What is remembered of them. Blocks.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]
    pub fn open(settings: FactExchangeSettings) -> Result<Self, MemoryError> {
        let memory = FactMemory::load(&settings.folder, settings.fleet)?;
        let fresh = memory.is_none();
        let saved = memory.unwrap_or_default();
        let reader = FactReader::new(settings.node.clone(), saved.numbers.clone(), fresh);
        let (facts, notes) = (Arc::new(saved.facts.clone()), saved.notes.clone());
        let heard = saved.heard;
        Ok(Self(Arc::new(Shared {
            settings,
            held: Mutex::new(Held { facts, notes, reader, heard, saved }),
            changes: watch::Sender::new(0),
            wake: Notify::new(),
            standing: Mutex::default(),
            told: Mutex::default(),
            lines: Mutex::default(),
            base: Instant::now(),
        })))
    }

    /// This node's name.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.0.settings.node
    }

    /// The folder that the node keeps what it remembers of its fleet in: `data_dir/fleet`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0.settings.folder
    }

    /// The facts as they are known now.
    #[must_use]
    pub fn facts(&self) -> Arc<FactSet> {
        Arc::clone(&self.0.held.lock().facts)
    }

    /// Whether all that the fleet says was read once, by this process or one before it. What is not known before that may be
    /// said all the same.
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.0.held.lock().heard
    }

    /// What a part that takes facts over has noted.
    #[must_use]
    pub fn note(&self, part: &str) -> Option<String> {
        self.0.held.lock().notes.get(part).cloned()
    }

    /// Changes facts and notes, remembers them durably, and has the facts put. Blocks.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]: what was changed is known, and may be forgotten by a crash.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut FactSet, &mut BTreeMap<String, String>) -> T,
    ) -> Result<T, MemoryError> {
        let mut held = self.0.held.lock();
        let mut facts = Arc::clone(&held.facts);
        let done = change(Arc::make_mut(&mut facts), &mut held.notes);
        let is_other = *facts != *held.facts;
        held.facts = facts;
        let saved = held.save(&self.0.settings);
        drop(held);
        if is_other {
            self.0.changes.send_modify(|count| *count += 1);
            self.0.wake.notify_one();
        }
        saved.map(|()| done)
    }

    /// Tells of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// How the exchange stands.
    #[must_use]
    pub fn standing(&self) -> FactStanding {
        self.0.standing.lock().clone()
    }

    /// Tells what is wrong with what a part shares, or that nothing is any more. It is in the log once.
    pub fn tell_fault(&self, part: &'static str, fault: Option<String>) {
        let mut told = self.0.told.lock();
        let Some(fault) = fault else {
            told.remove(part);
            return;
        };
        if !told.contains_key(part) {
            tracing::error!(part, fault, "not all is shared with the fleet");
        }
        told.insert(part, fault);
    }

    /// What is wrong with what the parts share, a line for each.
    #[must_use]
    pub fn told_faults(&self) -> Vec<String> {
        self.0.told.lock().values().cloned().collect()
    }

    /// Whether objects may be sealed by a key that is older than the one that is written by.
    #[must_use]
    pub fn has_older_keys(&self) -> bool {
        self.0.settings.keys.has_older()
    }

    /// Seals `text` for its place, which no other object may have.
    fn seal(&self, key: &str, text: &[u8]) -> Result<Bytes, BucketError> {
        let mut salt = [0; SALT_BYTES];
        let failed = |why: String| BucketError::Failed(why);
        getrandom::fill(&mut salt).map_err(|error| failed(error.to_string()))?;
        let place = ObjectPlace { fleet: self.0.settings.fleet, key };
        let sealed = seal_object(&self.0.settings.keys, place, salt, text);
        sealed.map(Bytes::from).ok_or_else(|| failed("there is no key of the fleet".into()))
    }

    /// Puts a sealed object of its own under `key`, and looks whether it is there then.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where the store is not the one of this node's place; then it may be there all the same.
    pub async fn put_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
        text: &[u8],
    ) -> Result<(), BucketError> {
        let sealed = self.seal(key, text)?;
        let length = sealed.len() as u64;
        within(bucket.put(key, sealed)).await?;
        within(self.0.settings.place().check(bucket)).await?;
        match within(bucket.size(key)).await? {
            Some(size) if size == length => Ok(()),
            Some(_) | None => Err(BucketError::Failed(format!("{key} was put and is not there"))),
        }
    }

    /// Reads a sealed object.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where it is not what the fleet has sealed.
    pub async fn get_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
    ) -> Result<OpenedObject, BucketError> {
        match within(bucket.size(key)).await? {
            None => return Err(BucketError::Missing(key.to_owned())),
            Some(size) if size > MAX_FACT_OBJECT_BYTES => {
                let why = FactFault::TooLong(size);
                return Err(BucketError::Failed(format!("{key}: {why}")));
            }
            Some(_) => {}
        }
        let object = within(bucket.get(key)).await?;
        let place = ObjectPlace { fleet: self.0.settings.fleet, key };
        open_object(&self.0.settings.keys, place, &object)
            .map_err(|why| BucketError::Failed(format!("{key}: {why}")))
    }

    /// One round: reads what is another, and puts what is to be said. What cannot be read of other nodes is a fault of theirs.
    ///
    /// # Errors
    ///
    /// [`BucketError`]: what could be read is taken over.
    pub async fn round(&self, bucket: &Bucket) -> Result<(), BucketError> {
        let ListedSome { objects, is_whole } =
            within(bucket.list_up_to(SAID, MAX_LISTED_FACTS)).await?;
        let listed: Vec<_> = objects
            .into_iter()
            .map(|it| ListedFacts { key: it.key, size: it.size, state: it.state })
            .collect();
        let wanted = self.0.held.lock().reader.wanted(&listed, is_whole);
        let read = wanted.into_iter().map(|(node, listed)| async move {
            let object = within(bucket.get(&listed.key)).await;
            (node, listed, object)
        });
        let mut read = stream::iter(read).buffer_unordered(AT_A_TIME);
        let mut failed = None;
        while let Some((node, listed, object)) = read.next().await {
            match object {
                Ok(object) => self.take(node, listed, object).await?,
                Err(BucketError::Missing(_)) if !is_whole && node == self.0.settings.node => {
                    self.0.held.lock().reader.own_is_missing();
                }
                // What it puts depends on it.
                Err(error) if node == self.0.settings.node => failed = Some(error),
                // One that cannot be read keeps nobody from saying what is to be said, and the others from being heard.
                Err(error) => self.0.held.lock().reader.not_read(&node, &listed, &error),
            }
        }
        if failed.is_none() {
            let mut held = self.0.held.lock();
            held.heard |= held.reader.has_read_all();
        }
        self.remember().await?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.put(bucket).await
    }

    /// Takes over what was read of one node.
    async fn take(
        &self,
        node: NodeName,
        listed: ListedFacts,
        object: Bytes,
    ) -> Result<(), BucketError> {
        let facts = self.clone();
        beside_the_runtime(move || {
            let settings = &facts.0.settings;
            let place = ObjectPlace { fleet: settings.fleet, key: &listed.key };
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

    /// Remembers what was read, once for a round: what a crash takes is read again.
    async fn remember(&self) -> Result<(), BucketError> {
        let facts = self.clone();
        beside_the_runtime(move || {
            let saved = facts.0.held.lock().save(&facts.0.settings);
            saved.map_err(|error| BucketError::Failed(error.to_string()))
        })
        .await
    }

    /// Puts what this node says, if the store does not say it.
    async fn put(&self, bucket: &Bucket) -> Result<(), BucketError> {
        let facts = self.clone();
        // The number is remembered before it is used.
        let to_put = beside_the_runtime(move || {
            let mut held = facts.0.held.lock();
            let set = Arc::clone(&held.facts);
            let to_put = held.reader.to_put(&set);
            let saved = held.save(&facts.0.settings);
            saved.map(|()| to_put).map_err(|error| BucketError::Failed(error.to_string()))
        });
        let Some(object) = to_put.await? else { return Ok(()) };
        within(self.0.settings.place().check(bucket)).await?;
        let text = object.write(&self.0.settings.node);
        if text.len() as u64 > MAX_FACT_OBJECT_BYTES {
            let why = format!("this node has {} bytes to say, which is too much", text.len());
            return Err(BucketError::Failed(why));
        }
        let key = object_key(&self.0.settings.node);
        let sealed = self.seal(&key, &text)?;
        within(bucket.put(&key, sealed)).await?;
        self.0.held.lock().reader.has_put(&object);
        Ok(())
    }

    /// Tells how a round went.
    fn stand(&self, round: &Result<(), BucketError>) {
        let held = self.0.held.lock();
        // What cannot be opened any more, and is said by another node, is no fault.
        let is_fault = |(key, fault): &(&String, &FactFault)| {
            **fault != FactFault::Sealed(NotOpened::NotAuthentic) || !held.reader.is_said_again(key)
        };
        let all: Vec<_> = held.reader.faults().iter().filter(is_fault).collect();
        let faults = all.iter().take(MAX_FAULTS);
        let mut faults: BTreeMap<_, _> =
            faults.map(|(key, fault)| ((*key).clone(), fault.to_string())).collect();
        if let Some(rest) = all.len().checked_sub(MAX_FAULTS).filter(|rest| *rest > 0) {
            let told = faults.entry(SAID.to_owned()).or_default();
            let and = if told.is_empty() { "" } else { "; " };
            told.push_str(&format!("{and}{rest} more objects are passed over"));
        }
        let numbers = held.reader.numbers().iter();
        let nodes = numbers.map(|(node, number)| (node.as_str().to_owned(), *number)).collect();
        let published = held.reader.says(&held.facts);
        drop(held);
        let mut standing = self.0.standing.lock();
        for (key, fault) in &faults {
            if standing.faults.get(key) == Some(fault) {
                continue;
            }
            let leave = self.0.lines.lock().take(self.0.base.elapsed().as_millis() as u64);
            if leave != LineLeave::LeaveOut {
                tracing::error!(key, fault, "an object of the fleet's facts is passed over");
            }
            if leave == LineLeave::Last {
                tracing::error!("more such lines are left out for a minute: fleet status has them");
            }
        }
        let failing = round.as_ref().err().map(ToString::to_string);
        if let (Some(error), None) = (&failing, &standing.failing) {
            tracing::warn!(
                error,
                "the fleet's facts cannot be read or put: those that are known stay"
            );
        }
        let done = if failing.is_none() { Some(Instant::now()) } else { standing.done };
        let began = standing.began.or_else(|| Some(Instant::now()));
        *standing = FactStanding { failing, done, began, faults, published, nodes };
    }

    async fn told_round(&self, bucket: &Bucket) -> bool {
        let round = self.round(bucket).await;
        self.stand(&round);
        round.is_ok()
    }
}

/// The exchange of a node that runs.
#[derive(Debug)]
pub struct FactExchange {
    task: JoinHandle<()>,
    ends: watch::Sender<bool>,
}

impl FactExchange {
    /// Starts to read and put.
    #[must_use]
    pub fn start(facts: FleetFacts, bucket: Bucket, runtime: &Handle) -> Self {
        let (ends, ending) = watch::channel(false);
        Self { task: runtime.spawn(run(facts, bucket, ending)), ends }
    }

    /// Puts what is still to be said, within a bound if it is `patient`, else not at all.
    pub async fn end(self, patient: bool) {
        let Self { mut task, ends } = self;
        ends.send_replace(true);
        let limit = if patient { END_LIMIT } else { Duration::ZERO };
        if tokio::time::timeout(limit, &mut task).await.is_err() {
            tracing::warn!("what this node has to tell its fleet is put at its next start");
            task.abort();
            let _ = task.await;
        }
    }
}

async fn run(facts: FleetFacts, bucket: Bucket, mut ending: watch::Receiver<bool>) {
    let mut pause = LOOK_EVERY;
    loop {
        let began = Instant::now();
        let ends = *ending.borrow();
        let went_well = facts.told_round(&bucket).await;
        if ends {
            return;
        }
        pause = if went_well { LOOK_EVERY } else { (pause * 2).min(LONGEST_PAUSE) };
        let next = tokio::time::Instant::from_std(began + pause);
        tokio::time::sleep(LEAST_PAUSE).await;
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // A store that is away is not asked more often for that.
            () = facts.0.wake.notified(), if went_well => {}
            _ = ending.wait_for(|ends| *ends) => {}
        }
    }
}

async fn within<T>(asked: impl Future<Output = Result<T, BucketError>>) -> Result<T, BucketError> {
    tokio::time::timeout(ASK_LIMIT, asked).await.unwrap_or(Err(BucketError::Late(ASK_LIMIT)))
}

async fn beside_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BucketError> + Send + 'static,
) -> Result<T, BucketError> {
    let ended = |_| Err(BucketError::Failed("a thread ended".into()));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(ended)
}

#[cfg(test)]
mod tests;
