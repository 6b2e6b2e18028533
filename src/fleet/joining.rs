//! How a node takes its place in a fleet at its start: which fleet the store is of, whether the node's name is its own, and how
//! far its chain has come.
//!
//! ```text
//! fleet.json               the id of the fleet, made by the first node
//! nodes/NODE/claim.json    whose name that is: the node's public key, and its log
//! nodes/NODE/segments/…    its chain (`segment`)
//! ```
//!
//! Nothing here is agreed on between nodes: each object has one writer but for the moment in which two nodes claim the same at
//! once. Where the store can make an object only if there is none, one of them is refused by that; elsewhere each looks again
//! after a while, and the one whose object is not there any more is refused.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bucket::{Bucket, BucketError, Creation};
use super::chain_place::{self, ChainPlace, LogMismatch};
use super::checkpoint::Checkpoint;
use super::config::NodeName;
use super::node_key::NodeKey;
use super::sealed_mark::{FleetId, NodeTag, SealedMark, SealedMarkFile};
use super::sealing::ChainPosition;
use super::segment::{self, SegmentName, day_folder};
use super::signed_note::VerifierKey;
use crate::activity::record::NodeId;
use crate::activity::view::View;
use crate::activity::{Activity, QueryError, StoreError};
use crate::os::private;

/// The object that says which fleet it is.
pub const FLEET: &str = "fleet.json";
/// The folder of the nodes.
pub const NODES: &str = "nodes";
/// The object in a node's folder that says whose it is.
pub const CLAIM: &str = "claim.json";
/// The folder in a node's folder where its segments are.
pub const SEGMENTS: &str = "segments";
/// Most bytes of a claim; one has some 300.
pub const MAX_CLAIM_BYTES: u64 = 16 << 10;
/// What the folders of days among the segments are called, in the order of the days.
const DAYS: &str = "date=";
/// The form of fleet and claim.
const FORMAT: u32 = 1;
/// How long it is waited, where the store cannot make an object only if there is none, until it is looked whether another
/// node has made the same.
const SETTLE: Duration = Duration::from_secs(2);

/// Why a node does not take its place.
#[derive(Debug, Error)]
pub enum JoinError {
    /// It must not: the place, or the store, is another's.
    #[error("{0}")]
    Refused(String),
    /// The store cannot be used now.
    #[error("{store}: {error}")]
    Store {
        /// The store.
        store: String,
        /// What it says.
        error: BucketError,
    },
    /// What the node remembers cannot be used.
    #[error("{}: {error}", folder.display())]
    Folder {
        /// `data_dir/fleet`
        folder: std::path::PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Activity(#[from] StoreError),
}

/// The object [`FLEET`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FleetObject {
    format: u32,
    fleet: String,
}

impl FleetObject {
    /// The fleet that an object names; `None` if it is not what a fleet writes.
    pub(super) fn fleet(bytes: &[u8]) -> Option<FleetId> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        if read.format == FORMAT { FleetId::parse(&read.fleet) } else { None }
    }
}

/// The object [`CLAIM`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClaim {
    format: u32,
    /// The node's name.
    pub node: String,
    /// The id of its log.
    pub log: String,
    /// What its checkpoints are verified by.
    pub key: String,
}

/// Why there is no claim of a node.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClaimFault {
    /// There is none.
    #[error("it is not there")]
    Missing,
    /// It is longer than any.
    #[error("it is longer than {MAX_CLAIM_BYTES} bytes")]
    TooLong,
    /// It is none.
    #[error("{0}")]
    Unreadable(String),
}

impl NodeClaim {
    /// The claim of the node of that name, if one lies in the store at its [key](claim_key).
    ///
    /// # Errors
    ///
    /// [`BucketError`] where nothing is known of it.
    pub async fn fetch(
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

    /// Reads an object.
    ///
    /// # Errors
    ///
    /// Why it is no claim.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if read.format == FORMAT {
            Ok(read)
        } else {
            Err(format!("it has unknown format {}", read.format))
        }
    }

    /// The key in it.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn verifier(&self) -> Result<VerifierKey, String> {
        VerifierKey::parse(&self.key).map_err(|error| error.to_string())
    }
}

/// The folder of a node in the store.
#[must_use]
pub fn node_folder(node: &str) -> String {
    format!("{NODES}/{node}")
}

/// The key of its claim.
#[must_use]
pub fn claim_key(node: &str) -> String {
    format!("{NODES}/{node}/{CLAIM}")
}

/// The folder of its segments.
#[must_use]
pub fn segments_folder(node: &str) -> String {
    format!("{NODES}/{node}/{SEGMENTS}")
}

/// A node that has its place.
#[derive(Debug)]
pub struct FleetMember {
    /// The fleet.
    pub fleet: FleetId,
    /// The node's name.
    pub node: NodeName,
    /// Its log.
    pub log: NodeId,
    /// Its key.
    pub key: NodeKey,
    /// The public half.
    pub verifier: VerifierKey,
    /// What it remembers.
    pub file: SealedMarkFile,
    /// The same, as it is now.
    pub mark: SealedMark,
    /// Whether the store makes an object only if there is none, as it has shown.
    pub creates: bool,
}

/// Who wants to join.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// The store.
    pub bucket: &'a Bucket,
    /// Where the node keeps its key and what it remembers: `data_dir/fleet`.
    pub folder: &'a Path,
    /// Its name.
    pub node: &'a NodeName,
}

/// How far the node's chain has come in the store, as far as it remembers: at least so far it has. For a start without the store.
///
/// # Errors
///
/// [`JoinError::Folder`], [`JoinError::Activity`]
pub async fn remembered(
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

/// What was remembered, if it is of this log under this name.
fn known(mark: Option<SealedMark>, log: NodeId, node: &NodeName) -> Option<SealedMark> {
    mark.filter(|mark| (mark.log, mark.node) == (log, NodeTag::of(node)))
}

/// Where a chain begins of which nothing is stored.
fn before_all(view: &View) -> Result<ChainPosition, JoinError> {
    let (seq, head) = (view.first() - 1, view.before_first()?);
    Ok(ChainPosition { seq, head, checkpoint: None })
}

/// Whether the node in whose folder this is has been a member before: it need not reach the store to start.
#[must_use]
pub fn was_member(folder: &Path) -> bool {
    SealedMarkFile::open(folder).is_ok_and(|(_, mark)| mark.is_some())
}

/// The log as it is now, read beside the runtime.
async fn view(activity: &Activity) -> Result<View, StoreError> {
    let activity = activity.clone();
    let busy = || StoreError::Io(io::Error::other("the log is not open"));
    match tokio::task::spawn_blocking(move || activity.stored()).await {
        Ok(Ok(view)) => Ok(view),
        Ok(Err(QueryError::Store(error))) => Err(error),
        Ok(Err(QueryError::Busy)) | Err(_) => Err(busy()),
    }
}

/// Takes the node's place, with its log.
///
/// # Errors
///
/// [`JoinError`].
pub async fn join(who: Applicant<'_>, activity: &Activity) -> Result<FleetMember, JoinError> {
    let Applicant { bucket, folder, node } = who;
    let unusable = |error| JoinError::Folder { folder: folder.to_owned(), error };
    private::folder(folder).map_err(unusable)?;
    let key = NodeKey::open(folder).map_err(unusable)?;
    let (mut file, mark) = SealedMarkFile::open(folder).map_err(unusable)?;
    let log = view(activity).await?.node();
    let (fleet, mut creates) = fleet_of(bucket, mark.map(|mark| mark.fleet)).await?;
    let Some(verifier) = key.verifier(&fleet.to_string(), node.as_str()) else {
        return Err(JoinError::Refused(format!("'{}' cannot be the name of a key", node.as_str())));
    };
    creates |= claim(bucket, node, &NodeClaim::of(node, log, &verifier)).await?;
    let known = known(mark, log, node);
    let place = Place { bucket, node, verifier: &verifier, fleet, log };
    let mark = place.position(known, &view(activity).await?).await?;
    file.write(&mark).map_err(unusable)?;
    let node = node.clone();
    Ok(FleetMember { fleet, node, log, key, verifier, file, mark, creates })
}

fn store_error(bucket: &Bucket) -> impl Fn(BucketError) -> JoinError {
    let store = bucket.shown().to_owned();
    move |error| JoinError::Store { store: store.clone(), error }
}

/// The fleet that the store is of; makes it one if it is of none. And whether the store has shown that it makes an object
/// only if there is none.
async fn fleet_of(bucket: &Bucket, own: Option<FleetId>) -> Result<(FleetId, bool), JoinError> {
    let failed = store_error(bucket);
    let shown = bucket.shown();
    let read = |bytes: &[u8]| {
        FleetObject::fleet(bytes).ok_or_else(|| {
            JoinError::Refused(format!("{shown}/{FLEET} is not what a fleet writes"))
        })
    };
    let found = bucket.find(FLEET).await.map_err(&failed)?;
    match (found, own) {
        (Some(bytes), own) => {
            let fleet = read(&bytes)?;
            match own.filter(|own| *own != fleet) {
                None => Ok((fleet, false)),
                Some(own) => Err(JoinError::Refused(format!(
                    "{shown} is the store of fleet {fleet}, and this node belongs to fleet {own}: correct cluster.store, \
                     or start with another data_dir"
                ))),
            }
        }
        (None, Some(own)) => Err(JoinError::Refused(format!(
            "{shown} is the store of no fleet, and this node belongs to fleet {own}: correct cluster.store, or put back what \
             was in the store"
        ))),
        (None, None) => {
            let mut id = [0; 16];
            getrandom::fill(&mut id).map_err(|error| JoinError::Refused(error.to_string()))?;
            let object = FleetObject { format: FORMAT, fleet: FleetId(id).to_string() };
            let bytes = Bytes::from(serde_json::to_vec(&object).unwrap_or_default());
            let creates = make(bucket, FLEET, bytes).await?;
            let there = bucket.get(FLEET).await.map_err(&failed)?;
            // Another node's, if that was first.
            Ok((read(&there)?, creates))
        }
    }
}

/// Makes an object where there was none just before. True if the store has shown that it would not have put it in the place of
/// another; else enough time has passed for another node to have put its own there.
async fn make(bucket: &Bucket, key: &str, bytes: Bytes) -> Result<bool, JoinError> {
    let failed = store_error(bucket);
    if bucket.create(key, bytes.clone()).await.map_err(&failed)? == Creation::Exists {
        return Ok(true);
    }
    // The same once more: a store that can look does not take it.
    if bucket.find(key).await.map_err(&failed)?.is_some_and(|there| there == bytes)
        && bucket.create(key, bytes).await.map_err(&failed)? == Creation::Exists
    {
        return Ok(true);
    }
    tokio::time::sleep(SETTLE).await;
    Ok(false)
}

/// Makes sure that the node's name is its own. True if the store has shown that it makes an object only if there is none.
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
            JoinError::Refused(format!("{shown}/{key} is no claim of a node: {fault}"))
        }
    })?;
    if claim.key != own.key {
        return Err(JoinError::Refused(format!(
            "'{name}' is the name of another node of this fleet, with key {}: choose another cluster.node (this node's key is \
             {})",
            claim.key, own.key
        )));
    }
    if claim.log != own.log {
        return Err(JoinError::Refused(format!(
            "node '{name}' of this fleet had log {}, and this one is {}: a chain cannot go on with another log, choose \
             another cluster.node",
            claim.log, own.log
        )));
    }
    Ok(creates)
}

/// The node's place, once its name is its own.
struct Place<'a> {
    bucket: &'a Bucket,
    node: &'a NodeName,
    verifier: &'a VerifierKey,
    fleet: FleetId,
    log: NodeId,
}

impl Place<'_> {
    /// How far the chain has come: what the store has, if that is more than what the node remembers.
    async fn position(
        &self,
        known: Option<SealedMark>,
        view: &View,
    ) -> Result<SealedMark, JoinError> {
        let known = known.map(|SealedMark { stored, day, planned, .. }| ChainPlace {
            stored,
            day,
            planned,
        });
        let newest = self.newest(known).await?;
        let newest = newest.as_ref().map(|(name, checkpoint)| (name, checkpoint));
        let place = match ChainPlace::of(known, newest) {
            Some(place) => {
                self.check_log(view, &place)?;
                place
            }
            None => ChainPlace { stored: before_all(view)?, day: 0, planned: None },
        };
        let ChainPlace { stored, day, planned } = place;
        let (fleet, node, log) = (self.fleet, NodeTag::of(self.node), self.log);
        Ok(SealedMark { fleet, node, log, stored, day, planned })
    }

    /// The newest segment in the store that is after what the node remembers.
    async fn newest(
        &self,
        known: Option<ChainPlace>,
    ) -> Result<Option<(SegmentName, Checkpoint)>, JoinError> {
        let failed = store_error(self.bucket);
        let folder = segments_folder(self.node.as_str());
        let mut days = self.bucket.folders(&folder).await.map_err(&failed)?;
        days.retain(|name| name.starts_with(DAYS));
        let known_day = known.map(|place| day_folder(place.day));
        let mut newest = None::<SegmentName>;
        // From the last day back: of a day only what is behind all that was seen is looked at.
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
        let Some(name) = chain_place::newest(newest.into_iter(), known) else { return Ok(None) };
        let key = format!("{folder}/{name}");
        let bytes = self.bucket.get(&key).await.map_err(&failed)?;
        let refused = |why: String| {
            JoinError::Refused(format!(
                "{}/{key} cannot be gone on after: {why}",
                self.bucket.shown()
            ))
        };
        let opened =
            segment::open(&bytes, self.verifier).map_err(|error| refused(error.to_string()))?;
        if !name.is_of(&opened.checkpoint) {
            return Err(refused("it is another segment than its name says".into()));
        }
        Ok(Some((name, opened.checkpoint)))
    }

    /// Refuses a log that is not the one that was sealed.
    fn check_log(&self, view: &View, place: &ChainPlace) -> Result<(), JoinError> {
        let (name, end, seq) = (self.node.as_str(), view.next() - 1, place.stored.seq);
        let hash = if end < seq { None } else { view.hash(seq)? };
        let why = match place.check_log(end, hash) {
            Ok(()) => return Ok(()),
            Err(LogMismatch::Older(end)) => format!(
                "the store has records of node '{name}' up to number {seq}, and its log ends with {end}: the log was put back to an \
                 older state, and would go another way; choose another cluster.node"
            ),
            Err(LogMismatch::Another) => format!(
                "record {seq} of node '{name}' is another one in the store than in its log: the log was put back to an older \
                 state, and has gone another way; choose another cluster.node"
            ),
        };
        Err(JoinError::Refused(why))
    }
}
