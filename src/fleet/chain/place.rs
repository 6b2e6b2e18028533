//! Joining a fleet, and detecting that the store was replaced.
//!
//! At start a node identifies the store's fleet, claims its own name and finds the end of its chain.
//!
//! ```text
//! fleet.json               fleet id, created by the first node
//! nodes/NODE/claim.json    owner of the name: public key and log id
//! nodes/NODE/segments/…    the node's chain (`segment`)
//! ```
//!
//! No consensus is needed: each object has one writer, except while two nodes claim the same name at the same time.
//! If the store supports conditional creation, one of them is rejected; otherwise both re-read after [`SETTLE`], and
//! the one that was overwritten is rejected.
//!
//! [`JoinedStore`] detects a store that was emptied or swapped while nodes run, for example an unmounted folder: this
//! folder accepts and confirms writes that vanish when the mount returns. So a segment counts as uploaded, and a node
//! as dead, only after `fleet.json` and the node's claim were re-read, at the cost of two small reads.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcpproxy_activity::record::NodeId;
use mcpproxy_activity::view::View;
use mcpproxy_activity::{Activity, QueryError, StoreError};
use mcpproxy_runtime::os::private;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bucket::{Bucket, BucketError, Creation};
use crate::chain::check::{LogMismatch, ResumePoint, newest_segment};
use crate::checkpoint::{Checkpoint, VerifierKey};
use crate::config::NodeName;
use crate::heartbeat::DEAD_AFTER_MS;
use crate::node_state::{FleetId, NodeKey, NodeTag, SealedMark, SealedMarkFile};
use crate::sealing::ChainPosition;
pub use crate::sealing::StoreMismatch;
use crate::segment;
use crate::segment::{SegmentName, day_folder};

/// Object with the fleet id.
pub(crate) const FLEET: &str = "fleet.json";
/// Folder of all nodes.
pub(crate) const NODES: &str = "nodes";
/// Object in a node's folder that states its owner.
pub(crate) const CLAIM: &str = "claim.json";
/// Folder of segments in a node's folder.
pub(crate) const SEGMENTS: &str = "segments";
/// Maximum size of a claim in bytes; a typical one has 300.
pub(crate) const MAX_CLAIM_BYTES: u64 = 16 << 10;
/// Prefix of the day folders; they sort by day.
pub(crate) const DAYS: &str = "date=";
/// Advice for a log that lacks sealed records.
const RESTORE_ADVICE: &str = "if no other process uses this name, start the node once with `mcpproxy serve --salvage`: it restores its \
                     sealed records from the store and continues after them";
/// Format version of fleet and claim objects.
const FORMAT: u32 = 1;
/// Delay before re-reading an object, if the store does not support conditional creation.
const SETTLE: Duration = Duration::from_secs(2);

/// Reason why a node cannot join.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The name or the store belongs to someone else.
    #[error("{0}")]
    Refused(String),
    /// The store is unavailable.
    #[error("{store}: {error}")]
    Store { store: String, error: BucketError },
    /// The saved state is unusable.
    #[error("{}: {error}", folder.display())]
    Folder { folder: std::path::PathBuf, error: io::Error },
    /// The log cannot be read.
    #[error(transparent)]
    Activity(#[from] StoreError),
}

/// Content of [`FLEET`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FleetObject {
    format: u32,
    fleet: String,
}

impl FleetObject {
    /// Parses the fleet id; `None` if the object is invalid.
    pub(crate) fn fleet(bytes: &[u8]) -> Option<FleetId> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        if read.format == FORMAT { FleetId::parse(&read.fleet) } else { None }
    }
}

/// Content of [`CLAIM`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClaim {
    format: u32,
    pub node: String,
    /// Id of the node's log.
    pub log: String,
    /// Key that verifies its checkpoints.
    pub key: String,
}

/// Reason why a node has no usable claim.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum ClaimFault {
    #[error("missing")]
    Missing,
    #[error("longer than {MAX_CLAIM_BYTES} bytes")]
    TooLong,
    #[error("{0}")]
    Unreadable(String),
}

impl NodeClaim {
    /// Fetches the claim of the named node from its [key](claim_key).
    pub(crate) async fn fetch(
        bucket: &Bucket,
        node: &str,
    ) -> Result<Result<Self, ClaimFault>, BucketError> {
        Ok(match bucket.get_up_to(&claim_key(node), MAX_CLAIM_BYTES).await {
            Ok(bytes) => Self::read(&bytes).map_err(ClaimFault::Unreadable),
            Err(BucketError::Missing(_)) => Err(ClaimFault::Missing),
            Err(BucketError::TooLong(_)) => Err(ClaimFault::TooLong),
            Err(error) => return Err(error),
        })
    }

    fn of(node: &NodeName, log: NodeId, key: &VerifierKey) -> Self {
        Self {
            format: FORMAT,
            node: node.as_str().to_owned(),
            log: log.to_string(),
            key: key.to_string(),
        }
    }

    /// Parses a claim.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if read.format == FORMAT {
            Ok(read)
        } else {
            Err(format!("unknown format {}", read.format))
        }
    }

    /// Parsed log id; `None` if invalid.
    pub(crate) fn log_id(&self) -> Option<NodeId> {
        let id = u128::from_str_radix(&self.log, 16).ok().filter(|_| self.log.len() == 32)?;
        Some(NodeId(id.to_be_bytes()))
    }

    /// Parsed verifier key.
    pub fn verifier(&self) -> Result<VerifierKey, String> {
        VerifierKey::parse(&self.key).map_err(|error| error.to_string())
    }
}

/// Key of a node's claim.
pub(crate) fn claim_key(node: &str) -> String {
    format!("{NODES}/{node}/{CLAIM}")
}

/// Folder of a node's segments.
pub(crate) fn segments_folder(node: &str) -> String {
    format!("{NODES}/{node}/{SEGMENTS}")
}

/// Node that has joined.
#[derive(Debug)]
pub(crate) struct FleetMember {
    pub fleet: FleetId,
    pub node: NodeName,
    pub log: NodeId,
    pub key: NodeKey,
    pub verifier: VerifierKey,
    pub file: SealedMarkFile,
    /// Current upload state.
    pub mark: SealedMark,
    /// True if the store was seen to support conditional creation.
    pub creates: bool,
}

/// Node that is about to join.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub bucket: &'a Bucket,
    /// Folder with the node's key and upload state: `data_dir/fleet`.
    pub folder: &'a Path,
    pub node: &'a NodeName,
}

/// Lower bound of the chain's position in the store, from the saved state. Used to start while the store is
/// unavailable.
pub(crate) async fn remembered(
    who: Applicant<'_>,
    activity: &Activity,
) -> Result<ChainPosition, JoinError> {
    let unusable = |error| JoinError::Folder { folder: who.folder.to_owned(), error };
    let (_, mark) = SealedMarkFile::open(who.folder).map_err(unusable)?;
    let view = view(activity).await?;
    match known(mark, view.node(), who.node) {
        Some(mark) => Ok(mark.stored),
        None => before_all(&view),
    }
}

/// Saved state, if it belongs to this log and this name.
fn known(mark: Option<SealedMark>, log: NodeId, node: &NodeName) -> Option<SealedMark> {
    mark.filter(|mark| (mark.log, mark.node) == (log, NodeTag::of(node)))
}

/// Start position of a chain with no uploaded segments.
fn before_all(view: &View) -> Result<ChainPosition, JoinError> {
    let (seq, head) = (view.first() - 1, view.before_first()?);
    Ok(ChainPosition { seq, head, checkpoint: None })
}

/// True if this node has joined before, so that it may start without the store.
pub(crate) fn was_member(folder: &Path) -> bool {
    SealedMarkFile::open(folder).is_ok_and(|(_, mark)| mark.is_some())
}

/// Opens a view of the log on a blocking thread.
async fn view(activity: &Activity) -> Result<View, StoreError> {
    let activity = activity.clone();
    let busy = || StoreError::Io(io::Error::other("the log is not open"));
    match tokio::task::spawn_blocking(move || activity.stored()).await {
        Ok(Ok(view)) => Ok(view),
        Ok(Err(QueryError::Store(error))) => Err(error),
        Ok(Err(QueryError::Busy)) | Err(_) => Err(busy()),
    }
}

/// Joins the fleet: claims the node's name for its log.
pub(crate) async fn join(
    who: Applicant<'_>,
    activity: &Activity,
) -> Result<FleetMember, JoinError> {
    let Applicant { bucket, folder, node } = who;
    let unusable = |error| JoinError::Folder { folder: folder.to_owned(), error };
    private::folder(folder).map_err(unusable)?;
    let key = NodeKey::open(folder).map_err(unusable)?;
    let (mut file, mark) = SealedMarkFile::open(folder).map_err(unusable)?;
    let log = view(activity).await?.node();
    let (fleet, mut creates) = fleet_of(bucket, mark.map(|mark| mark.fleet)).await?;
    let Some(verifier) = key.verifier(&fleet.to_string(), node.as_str()) else {
        return Err(JoinError::Refused(format!("'{}' is not a valid key name", node.as_str())));
    };
    let is_twin = |mark: &SealedMark| {
        mark.log == log && mark.node != NodeTag::of(node) && mark.stored.checkpoint.is_some()
    };
    if let Some(mark) = mark.as_ref().filter(|mark| is_twin(mark)) {
        refuse_twin(bucket, node, mark).await?;
    }
    creates |= claim(bucket, node, &NodeClaim::of(node, log, &verifier)).await?;
    let known = known(mark, log, node);
    let place = Place { bucket, node, verifier: &verifier, fleet, log };
    let mark = place.position(known, &view(activity).await?).await?;
    file.write(&mark).map_err(unusable)?;
    let node = node.clone();
    Ok(FleetMember { fleet, node, log, key, verifier, file, mark, creates })
}

pub(crate) fn store_error(bucket: &Bucket) -> impl Fn(BucketError) -> JoinError {
    let store = bucket.shown().to_owned();
    move |error| JoinError::Store { store: store.clone(), error }
}

/// Reads the store's fleet, or creates one. Also returns whether the store was seen to support conditional creation.
async fn fleet_of(bucket: &Bucket, own: Option<FleetId>) -> Result<(FleetId, bool), JoinError> {
    let failed = store_error(bucket);
    let shown = bucket.shown();
    let read = |bytes: &[u8]| {
        FleetObject::fleet(bytes).ok_or_else(|| {
            JoinError::Refused(format!("{shown}/{FLEET} is not a valid fleet object"))
        })
    };
    let found = bucket.find(FLEET).await.map_err(&failed)?;
    match (found, own) {
        (Some(bytes), own) => {
            let fleet = read(&bytes)?;
            match own.filter(|own| *own != fleet) {
                None => Ok((fleet, false)),
                Some(own) => Err(JoinError::Refused(format!(
                    "{shown} belongs to fleet {fleet}, but this node belongs to fleet {own}: correct cluster.store, \
                     or start with another data_dir"
                ))),
            }
        }
        (None, Some(own)) => Err(JoinError::Refused(format!(
            "{shown} contains no fleet, but this node belongs to fleet {own}: correct cluster.store, or restore what \
             was in the store"
        ))),
        (None, None) => {
            let mut id = [0; 16];
            getrandom::fill(&mut id).map_err(|error| JoinError::Refused(error.to_string()))?;
            let object = FleetObject { format: FORMAT, fleet: FleetId(id).to_string() };
            let bytes = Bytes::from(serde_json::to_vec(&object).unwrap_or_default());
            let creates = make(bucket, FLEET, bytes).await?;
            let there = bucket.get(FLEET).await.map_err(&failed)?;
            // Another node may have created it first.
            Ok((read(&there)?, creates))
        }
    }
}

/// Creates an object that was absent. Returns true if the store rejects a second creation; otherwise waits until a
/// concurrent writer has finished.
async fn make(bucket: &Bucket, key: &str, bytes: Bytes) -> Result<bool, JoinError> {
    let failed = store_error(bucket);
    if bucket.create(key, bytes.clone()).await.map_err(&failed)? == Creation::Exists {
        return Ok(true);
    }
    // A second attempt: a store with conditional creation rejects it.
    if bucket.find(key).await.map_err(&failed)?.is_some_and(|there| there == bytes)
        && bucket.create(key, bytes).await.map_err(&failed)? == Creation::Exists
    {
        return Ok(true);
    }
    tokio::time::sleep(SETTLE).await;
    Ok(false)
}

/// Claims the node's name. Returns true if the store was seen to support conditional creation.
async fn claim(bucket: &Bucket, node: &NodeName, own: &NodeClaim) -> Result<bool, JoinError> {
    let failed = store_error(bucket);
    let (key, name, shown) = (claim_key(node.as_str()), node.as_str(), bucket.shown());
    let bytes = Bytes::from(serde_json::to_vec(own).unwrap_or_default());
    let creates = match NodeClaim::fetch(bucket, name).await.map_err(&failed)? {
        Err(ClaimFault::Missing) => make(bucket, &key, bytes).await?,
        Ok(there) if there == *own => {
            bucket.create(&key, bytes).await.map_err(&failed)? == Creation::Exists
        }
        Ok(_) | Err(ClaimFault::TooLong | ClaimFault::Unreadable(_)) => false,
    };
    let there = NodeClaim::fetch(bucket, name).await.map_err(&failed)?;
    let claim = there.map_err(|fault| match fault {
        ClaimFault::Missing => failed(BucketError::Missing(key.clone())),
        ClaimFault::TooLong | ClaimFault::Unreadable(_) => {
            JoinError::Refused(format!("{shown}/{key} is not a valid claim: {fault}"))
        }
    })?;
    if claim.key != own.key {
        return Err(JoinError::Refused(format!(
            "the name '{name}' is taken by another node of this fleet, with key {}: choose another cluster.node (this node's key is \
             {})",
            claim.key, own.key
        )));
    }
    if claim.log != own.log {
        return Err(JoinError::Refused(format!(
            "node '{name}' of this fleet had log {}, but this log is {}: a chain cannot continue with a different log; {RESTORE_ADVICE}",
            claim.log, own.log
        )));
    }
    Ok(creates)
}

/// Rejects a log that was sealed under another name: its records would be stored twice with the same ids.
async fn refuse_twin(bucket: &Bucket, node: &NodeName, mark: &SealedMark) -> Result<(), JoinError> {
    let names = bucket.folders(NODES).await.map_err(store_error(bucket))?;
    let is_it =
        |name: &String| NodeName::parse(name).is_some_and(|name| NodeTag::of(&name) == mark.node);
    let twin = names.into_iter().find(is_it).unwrap_or_else(|| "of another name".to_owned());
    Err(JoinError::Refused(format!(
        "log {} belongs to node '{twin}' of this fleet, and its records cannot be sealed under '{}' as well: set \
         cluster.node to '{twin}' again ({RESTORE_ADVICE}), or start '{}' with another data_dir",
        mark.log,
        node.as_str(),
        node.as_str()
    )))
}

/// Joining node that has claimed its name.
struct Place<'a> {
    bucket: &'a Bucket,
    node: &'a NodeName,
    verifier: &'a VerifierKey,
    fleet: FleetId,
    log: NodeId,
}

impl Place<'_> {
    /// Position of the chain: the stored one, if newer than the saved one.
    async fn position(
        &self,
        known: Option<SealedMark>,
        view: &View,
    ) -> Result<SealedMark, JoinError> {
        let known = known.map(|SealedMark { stored, day, planned, .. }| ResumePoint {
            stored,
            day,
            planned,
        });
        let newest = self.newest(known).await?;
        let newest = newest.as_ref().map(|(name, checkpoint)| (name, checkpoint));
        let place = match ResumePoint::of(known, newest) {
            Some(place) => {
                self.check_log(view, &place)?;
                place
            }
            None => ResumePoint { stored: before_all(view)?, day: 0, planned: None },
        };
        let ResumePoint { stored, day, planned } = place;
        let (fleet, node, log) = (self.fleet, NodeTag::of(self.node), self.log);
        Ok(SealedMark { fleet, node, log, stored, day, planned })
    }

    /// Newest stored segment after the saved position.
    async fn newest(
        &self,
        known: Option<ResumePoint>,
    ) -> Result<Option<(SegmentName, Checkpoint)>, JoinError> {
        let failed = store_error(self.bucket);
        let folder = segments_folder(self.node.as_str());
        let mut days = self.bucket.folders(&folder).await.map_err(&failed)?;
        days.retain(|name| name.starts_with(DAYS));
        let known_day = known.map(|place| day_folder(place.day));
        let mut newest = None::<SegmentName>;
        // Starts with the last day. Each day is listed only after the newest segment found so far.
        for day in days.iter().rev().take_while(|day| known_day.as_ref() <= Some(*day)) {
            let known = known.filter(|_| known_day.as_ref() == Some(day));
            let known = known.map_or(0, |place| place.stored.seq + 1);
            let seen = newest.as_ref().map_or(0, |name| name.first.saturating_add(1));
            let first = known.max(seen);
            let (below, mut found) = (format!("{folder}/{day}"), newest.clone());
            let after = format!("{below}/{first:020}-");
            let each = self.bucket.walk(&below, Some(&after), |object| {
                found = found.take().max(SegmentName::of_key(&folder, &object.key));
                ControlFlow::Continue(())
            });
            each.await.map_err(&failed)?;
            newest = found;
        }
        let Some(name) = newest_segment(newest.into_iter(), known) else { return Ok(None) };
        let key = format!("{folder}/{name}");
        let bytes = self.bucket.get(&key).await.map_err(&failed)?;
        let refused = |why: String| {
            JoinError::Refused(format!(
                "cannot continue the chain after {}/{key}: {why}",
                self.bucket.shown()
            ))
        };
        let opened =
            segment::open(&bytes, self.verifier).map_err(|error| refused(error.to_string()))?;
        if !name.is_of(&opened.checkpoint) {
            return Err(refused("its content does not match its name".into()));
        }
        Ok(Some((name, opened.checkpoint)))
    }

    /// Rejects a log that is not the sealed one.
    fn check_log(&self, view: &View, place: &ResumePoint) -> Result<(), JoinError> {
        let (name, end, seq) = (self.node.as_str(), view.next() - 1, place.stored.seq);
        let hash = if end < seq { None } else { view.hash(seq)? };
        let why = match place.check_log(end, hash) {
            Ok(()) => return Ok(()),
            Err(LogMismatch::Older(end)) => format!(
                "the store has records of node '{name}' up to number {seq}, but its log ends with {end}: the log was salvaged or \
                 restored to an older state, and would diverge; {RESTORE_ADVICE}"
            ),
            Err(LogMismatch::Another) => format!(
                "record {seq} of node '{name}' differs between the store and its log: the log was salvaged or restored to \
                 an older state, and has diverged; {RESTORE_ADVICE}"
            ),
        };
        Err(JoinError::Refused(why))
    }
}

/// Interval between checks. If a node is missing, the check is immediate.
const LOOK_EVERY: Duration = Duration::from_secs(4);
// The interval is shorter than the time after which nodes would be reported dead because the store was swapped.
const _: () = assert!(LOOK_EVERY.as_millis() < DEAD_AFTER_MS as u128);
/// Maximum size of `fleet.json` in bytes.
const MAX_BYTES: u64 = 16 << 10;

impl From<StoreMismatch> for BucketError {
    fn from(lost: StoreMismatch) -> Self {
        Self::Failed(format!(
            "not the store that this node joined ({lost}): mount the store, or restore its contents"
        ))
    }
}

/// Fleet and claim of this node, as they were when it joined.
#[derive(Clone, Debug)]
pub(crate) struct JoinedStore {
    fleet: FleetId,
    node: NodeName,
    verifier: String,
    /// Log id expected in the claim; `None` for any.
    log: Option<String>,
}

impl JoinedStore {
    pub(crate) fn of(fleet: FleetId, node: &NodeName, verifier: &str) -> Self {
        Self { fleet, node: node.clone(), verifier: verifier.to_owned(), log: None }
    }

    /// Requires this log id in the claim.
    pub(crate) fn with_log(self, log: &str) -> Self {
        Self { log: Some(log.to_owned()), ..self }
    }

    /// Checks the store's fleet object and the node's claim.
    pub(crate) async fn look(
        &self,
        bucket: &Bucket,
    ) -> Result<Result<(), StoreMismatch>, BucketError> {
        let (fleet, claim) = tokio::join!(
            bucket.get_up_to(FLEET, MAX_BYTES),
            NodeClaim::fetch(bucket, self.node.as_str())
        );
        let fleet = match fleet {
            Ok(bytes) => FleetObject::fleet(&bytes),
            Err(BucketError::Missing(_)) => return Ok(Err(StoreMismatch::NoFleet)),
            Err(BucketError::TooLong(_)) => None,
            Err(error) => return Err(error),
        };
        if fleet != Some(self.fleet) {
            return Ok(Err(StoreMismatch::OtherFleet));
        }
        Ok(match claim? {
            Ok(claim)
                if claim.key == self.verifier
                    && self.log.as_ref().is_none_or(|log| *log == claim.log) =>
            {
                Ok(())
            }
            Err(ClaimFault::Missing) => Err(StoreMismatch::NoClaim),
            Ok(_) | Err(ClaimFault::TooLong | ClaimFault::Unreadable(_)) => {
                Err(StoreMismatch::OtherClaim)
            }
        })
    }

    /// Like [`Self::look`], but returns a mismatch as an error.
    pub(crate) async fn check(&self, bucket: &Bucket) -> Result<(), BucketError> {
        self.look(bucket).await?.map_err(BucketError::from)
    }
}

/// Periodic check of the store, repeated immediately if a known node is missing.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    place: JoinedStore,
    /// Time of the last successful check, and the nodes listed then.
    seen: Option<(Instant, BTreeSet<String>)>,
}

impl StoreWatch {
    pub(crate) fn new(place: JoinedStore) -> Self {
        Self { place, seen: None }
    }

    /// Confirms that `listed`, just read, comes from the fleet's store: an emptied store lists no nodes.
    pub(crate) async fn check(
        &mut self,
        bucket: &Bucket,
        listed: &[String],
    ) -> Result<(), BucketError> {
        let listed: BTreeSet<_> = listed.iter().cloned().collect();
        match &mut self.seen {
            Some((at, before)) if at.elapsed() < LOOK_EVERY && before.is_subset(&listed) => {
                *before = listed;
            }
            Some(_) | None => {
                self.seen = None;
                self.place.check(bucket).await?;
                self.seen = Some((Instant::now(), listed));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const KEY: &str = "mcpproxy.dev/fleet/1/a+00000000+AA==";

    struct Store {
        folder: TempDir,
        bucket: Bucket,
        place: JoinedStore,
    }

    impl Store {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let bucket = Bucket::open(&format!("file://{}", folder.path().display())).unwrap();
            let place = JoinedStore::of(FleetId([1; 16]), &NodeName::parse("a").unwrap(), KEY);
            let store = Self { folder, bucket, place };
            store.put(FLEET, &Self::fleet(1)).await;
            store.put("nodes/a/claim.json", &Self::claim(KEY)).await;
            store
        }

        fn fleet(byte: u8) -> String {
            format!(r#"{{"format":1,"fleet":"{}"}}"#, FleetId([byte; 16]))
        }

        fn claim(key: &str) -> String {
            format!(r#"{{"format":1,"node":"a","log":"","key":"{key}"}}"#)
        }

        async fn put(&self, key: &str, text: &str) {
            self.bucket.put(key, Bytes::copy_from_slice(text.as_bytes())).await.unwrap();
        }

        fn remove(&self, key: &str) {
            std::fs::remove_file(self.folder.path().join(key)).unwrap();
        }
    }

    #[tokio::test]
    async fn emptied_or_foreign_store_is_rejected() {
        let store = Store::new().await;
        let look = || store.place.look(&store.bucket);
        assert_eq!(look().await, Ok(Ok(())));
        store.put("nodes/a/claim.json", &Store::claim("another")).await;
        assert_eq!(look().await, Ok(Err(StoreMismatch::OtherClaim)));
        store.put("nodes/a/claim.json", &"x".repeat(MAX_BYTES as usize + 1)).await;
        assert_eq!(look().await, Ok(Err(StoreMismatch::OtherClaim)));
        store.remove("nodes/a/claim.json");
        assert_eq!(look().await, Ok(Err(StoreMismatch::NoClaim)));
        for text in [Store::fleet(2), "{}".to_owned()] {
            store.put(FLEET, &text).await;
            assert_eq!(look().await, Ok(Err(StoreMismatch::OtherFleet)));
        }
        store.remove(FLEET);
        assert_eq!(look().await, Ok(Err(StoreMismatch::NoFleet)));
        let error = store.place.check(&store.bucket).await.unwrap_err().to_string();
        assert!(error.contains("(fleet.json is missing): mount the store"), "{error}");
    }

    #[tokio::test]
    async fn store_check_runs_periodically_and_at_once_if_a_node_is_missing() {
        let store = Store::new().await;
        let mut watch = StoreWatch::new(store.place.clone());
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        watch.check(&store.bucket, &names(&["a", "b"])).await.unwrap();
        store.remove(FLEET);
        watch.check(&store.bucket, &names(&["a", "b", "c"])).await.unwrap();
        assert!(watch.check(&store.bucket, &names(&["a", "b"])).await.is_err(), "c is missing");
        assert!(watch.check(&store.bucket, &names(&["a", "b", "c"])).await.is_err(), "and still");
        store.put(FLEET, &Store::fleet(1)).await;
        watch.check(&store.bucket, &names(&["a", "b"])).await.unwrap();
        let (at, _) = watch.seen.as_mut().unwrap();
        *at = at.checked_sub(LOOK_EVERY).unwrap();
        store.remove(FLEET);
        assert!(watch.check(&store.bucket, &names(&["a", "b"])).await.is_err(), "the check is due");
    }
}
