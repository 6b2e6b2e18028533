//! The facts at work: what this node says is put into the store, and what the others say is read. Decides nothing: what is
//! believed and put is `fact_reader`'s, what is remembered `fact_memory`'s.
//!
//! A round lists the objects, reads this node's own if it is another than before, and puts it if the store does not say what the
//! node says: what is revoked here waits for nobody else's object. Then it reads those of the others that are others than before
//! (each once more some rounds later), as many as a round reads. While the store is away, what was known stays.
//!
//! Two locks, `saved` before `held`. What is known and what is believed are under `held`, which the runtime takes, too: nobody
//! waits for a disk under it, or goes through all facts where that can be done of a set that is shared. What is remembered is
//! written under `saved` alone, of a snapshot that was taken under it: so none is written over a newer one.

mod running;
mod sealed_store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::fact_memory::{FactMemory, MemoryError};
use super::fact_object::{FactObject, MAX_FACT_OBJECT_BYTES, MAX_FACT_TEXT_BYTES};
use super::fact_reader::{FactFault, FactReader, MAX_LISTED_FACTS, SAID, object_key};
use super::fact_set::FactSet;
use super::fact_standing::{FactStanding, told_faults};
use super::fact_turns::ListedFacts;
use super::sealed_object::{FactKeys, ObjectPlace, open_object};
use crate::fleet::bucket::{Bucket, BucketError, ListedSome};
use crate::fleet::config::NodeName;
use crate::fleet::line_budget::{LineBudget, LineLeave};
use crate::fleet::own_place::OwnPlace;
use crate::fleet::sealed_mark::FleetId;

pub use self::running::{END_LIMIT, FactExchange};

/// Most time for one thing that is asked of the store in a round.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Objects that are read at a time.
const AT_A_TIME: usize = 4;
/// For so long reads of other nodes' objects are begun in a round; those that were not begun then are in the next one. So a
/// store that hangs keeps what is revoked here meanwhile for so long and [`ASK_LIMIT`].
const READS_BEGIN_FOR: Duration = Duration::from_secs(3);

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

/// The facts of a fleet, as one node knows them. Clones share them.
#[derive(Clone, Debug)]
pub struct FleetFacts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: FactExchangeSettings,
    held: Mutex<Held>,
    /// Of what is in the file.
    saved: Mutex<MemoryCount>,
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

/// Counts the changes of what is remembered: while it is the same, so is that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryCount {
    facts: u64,
    reader: u64,
    notes: u64,
    heard: bool,
}

/// Counts the changes of what decides what this node says, and whether the store says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SayingCount {
    facts: u64,
    reader: u64,
}

#[derive(Debug)]
struct Held {
    facts: Arc<FactSet>,
    notes: BTreeMap<String, String>,
    /// Counts the changes of the notes.
    noted: u64,
    reader: FactReader,
    /// [`FactMemory::heard`]
    heard: bool,
    /// Whether the store said what this node says, when that was looked at last.
    published: Option<(SayingCount, bool)>,
}

impl Held {
    fn memory_count(&self) -> MemoryCount {
        let (facts, reader) = (self.facts.changes(), self.reader.remembered());
        MemoryCount { facts, reader, notes: self.noted, heard: self.heard }
    }

    fn saying_count(&self) -> SayingCount {
        SayingCount { facts: self.facts.changes(), reader: self.reader.sayings() }
    }

    /// What is to be remembered.
    fn memory(&self) -> FactMemory {
        FactMemory {
            facts: Arc::clone(&self.facts),
            numbers: self.reader.numbers().clone(),
            said_again: self.reader.said_again().clone(),
            notes: self.notes.clone(),
            heard: self.heard,
        }
    }

    /// Whether it is known of what is said now that the store says it.
    fn is_published(&self) -> bool {
        self.published == Some((self.saying_count(), true))
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
        let FactMemory { facts, numbers, said_again, notes, heard } = memory.unwrap_or_default();
        let reader = FactReader::new(settings.node.clone(), numbers, said_again, fresh);
        let held = Held { facts, notes, noted: 0, reader, heard, published: None };
        let saved = Mutex::new(held.memory_count());
        Ok(Self(Arc::new(Shared {
            settings,
            held: Mutex::new(held),
            saved,
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

    /// Why not all that the fleet says was read in the last round; `None` where it was.
    #[must_use]
    pub fn unheard(&self) -> Option<String> {
        self.0.held.lock().reader.unheard()
    }

    /// Whether some of what was listed is still to be read: the next round needs not wait.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.0.held.lock().reader.is_behind()
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

    /// One round of a node that does not know yet who lives.
    ///
    /// # Errors
    ///
    /// [`BucketError`]: what could be read is taken over.
    pub async fn round(&self, bucket: &Bucket) -> Result<(), BucketError> {
        self.round_by(bucket, |_| false).await
    }

    /// One round: puts what is to be said, and reads what is another, of nodes that live first. What cannot be read of other
    /// nodes is a fault of theirs.
    async fn round_by(
        &self,
        bucket: &Bucket,
        lives: impl Fn(&NodeName) -> bool + Send + 'static,
    ) -> Result<(), BucketError> {
        let ListedSome { objects, is_whole } =
            within(bucket.list_up_to(SAID, MAX_LISTED_FACTS)).await?;
        let facts = self.clone();
        let wanted = beside_the_runtime(move || {
            let listed: Vec<_> = objects
                .into_iter()
                .map(|it| ListedFacts { key: it.key, size: it.size, state: it.state })
                .collect();
            Ok(facts.0.held.lock().reader.wanted(&listed, is_whole, lives))
        });
        let (own, others): (Vec<_>, Vec<_>) =
            wanted.await?.into_iter().partition(|(node, _)| *node == self.0.settings.node);
        // What keeps it from being put keeps nobody from being heard.
        let put = self.say(bucket, own.into_iter().next(), is_whole).await;
        self.hear(bucket, others).await?;
        put
    }

    /// Puts what this node says, once it is known what its own object says, where that is to be read.
    async fn say(
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
                // What it puts depends on it.
                Err(error) => return Err(error),
            }
        }
        self.put(bucket).await
    }

    /// Reads what others say.
    async fn hear(
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
                // One that cannot be read keeps nobody from saying what is to be said, and the others from being heard.
                Some(Err(error)) => unread.push((node, listed, Some(error))),
                None => unread.push((node, listed, None)),
            }
        }
        self.end_round(unread).await
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

    /// Notes what could not be read, with why, or was not asked for, without, and remembers what was read, once for a round: what
    /// a crash takes is read again.
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
                    None => held.reader.not_asked(&node),
                }
            }
            held.heard |= held.reader.has_read_all();
            drop(held);
            facts.look_published();
            facts.save().map_err(|error| BucketError::Failed(error.to_string()))
        })
        .await
    }

    /// Remembers what is another than what is remembered. Blocks.
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

    /// Looks whether the store says what this node says, where that may be another than when it was looked at last. Blocks.
    fn look_published(&self) {
        let (saying, set, count) = {
            let held = self.0.held.lock();
            let count = held.saying_count();
            if held.published.is_some_and(|(of, _)| of == count) {
                return;
            }
            (held.reader.whole_saying(), Arc::clone(&held.facts), count)
        };
        let said = saying.of(&set);
        let mut held = self.0.held.lock();
        // What was changed meanwhile is looked at in the next round.
        let is_published = held.reader.is_stored(&said.facts);
        held.published = Some((count, is_published));
    }

    /// Puts what this node says, if the store does not say it.
    async fn put(&self, bucket: &Bucket) -> Result<(), BucketError> {
        let facts = self.clone();
        let Some((object, sealed)) = beside_the_runtime(move || facts.to_put()).await? else {
            return Ok(());
        };
        self.check_place(bucket).await?;
        within(bucket.put(&object_key(&self.0.settings.node), sealed)).await?;
        let facts = self.clone();
        beside_the_runtime(move || {
            facts.0.held.lock().reader.has_put(&object);
            Ok(())
        })
        .await
    }

    /// What is to be put, and that sealed. Its number is remembered before it is used. Blocks.
    fn to_put(&self) -> Result<Option<(FactObject, Bytes)>, BucketError> {
        let (saying, set) = {
            let held = self.0.held.lock();
            if held.is_published() {
                return Ok(None);
            }
            (held.reader.saying(), Arc::clone(&held.facts))
        };
        let said = saying.of(&set);
        let Some(object) = self.0.held.lock().reader.puts_said(said) else { return Ok(None) };
        self.save().map_err(|error| BucketError::Failed(error.to_string()))?;
        let node = &self.0.settings.node;
        let text = object.write(node);
        if text.len() > MAX_FACT_TEXT_BYTES {
            let why = format!("this node has {} bytes to say, which is too much", text.len());
            return Err(BucketError::Failed(why));
        }
        let sealed = self.seal(&object_key(node), &text)?;
        Ok(Some((object, sealed)))
    }

    /// Tells how a round went. Blocks for as long as somebody changes facts.
    fn stand(&self, round: &Result<(), BucketError>) {
        let held = self.0.held.lock();
        let faults = told_faults(&held.reader);
        let numbers = held.reader.numbers().iter();
        let nodes = numbers.map(|(node, number)| (node.as_str().to_owned(), *number)).collect();
        // While there is an older key, what was not read yet may have to be said again by the newer one.
        let is_behind = held.reader.is_behind();
        let may_lack_some = self.has_older_keys() && is_behind;
        let published = held.is_published() && !may_lack_some;
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
        // It is as old as what was not read in it.
        let is_done = failing.is_none() && !is_behind;
        let done = if is_done { Some(Instant::now()) } else { standing.done };
        let began = standing.began.or_else(|| Some(Instant::now()));
        *standing = FactStanding { failing, done, began, faults, published, nodes };
    }

    async fn told_round(
        &self,
        bucket: &Bucket,
        lives: impl Fn(&NodeName) -> bool + Send + 'static,
    ) -> bool {
        let round = self.round_by(bucket, lives).await;
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
    let ended = |_| Err(BucketError::Failed("a thread ended".into()));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(ended)
}

#[cfg(test)]
mod tests;
