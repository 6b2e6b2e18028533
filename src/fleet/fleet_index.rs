//! What this node has of the other nodes' logs: their copies to be read, and how far each has come. Filled by the follower,
//! asked by the faces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::ToSchema;

use super::chain_check::FaultFound;
use super::config::IndexRole;
use super::following::FollowedGap;
use crate::activity::StoreError;
use crate::activity::replica::ReplicaReader;
use crate::activity::view::View;

/// Questions of other nodes that are answered at the same time.
const MAX_ANSWERED_TOGETHER: usize = 32;
/// Nodes that one node follows at most.
pub const MAX_FOLLOWED: usize = 64;

/// How far a node's chain was followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FollowStatus {
    /// The first record that was taken; 0 for none yet.
    pub first: u64,
    /// The last; 0 for none yet.
    pub last: u64,
    /// How many were taken, those that are no longer kept among them.
    pub records: u64,
    /// How many segments they came in.
    pub segments: u64,
    /// Records that are in the store and not taken yet, as far as names say; of a hundred thousand segments at least so many.
    pub behind_records: u64,
    /// The same in segments.
    pub behind_segments: u64,
    /// Records that are missing, and why.
    #[schema(value_type = Vec<Object>)]
    pub gaps: Vec<FollowedGap>,
    /// What is wrong in the store.
    #[schema(value_type = Vec<Object>)]
    pub faults: Vec<FaultFound>,
    /// There are more gaps or faults than are shown.
    pub more: bool,
    /// So much is wrong that the chain is followed no further.
    pub has_stopped: bool,
    /// Why it is not followed just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// A node that is followed.
#[derive(Debug)]
pub struct FollowedNode {
    name: Arc<str>,
    log: Box<str>,
    reader: ReplicaReader,
    made_anew: bool,
    status: Mutex<FollowStatus>,
}

impl FollowedNode {
    /// A node of that name, whose log has that id.
    #[must_use]
    pub fn new(name: Arc<str>, log: String, reader: ReplicaReader, made_anew: bool) -> Self {
        Self { name, log: log.into(), reader, made_anew, status: Mutex::default() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn set_status(&self, status: FollowStatus) {
        *self.status.lock() = status;
    }

    /// How far it was followed.
    #[must_use]
    pub fn status(&self) -> FollowStatus {
        self.status.lock().clone()
    }
}

/// A node that is followed, as it is shown.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IndexedNode {
    /// Its name.
    pub node: String,
    /// The id of its log.
    pub log: String,
    /// How far it was followed.
    #[serde(flatten)]
    pub status: FollowStatus,
    /// Bytes that its copy takes.
    pub disk_bytes: u64,
    /// The copy was damaged when this process opened it, and was made anew from the store.
    pub made_anew: bool,
}

/// What is followed, as it is shown.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IndexReport {
    /// `true`, or `I/N`: what of the fleet this node keeps.
    pub index: String,
    /// The nodes that it follows.
    pub nodes: Vec<IndexedNode>,
    /// Nodes that it cannot follow, and why.
    pub not_followed: BTreeMap<String, String>,
    /// Why the store cannot be used just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

impl IndexReport {
    /// What is wrong, a line for each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.error.iter().cloned().collect();
        faults.extend(self.not_followed.iter().map(|(node, why)| format!("node {node}: {why}")));
        for IndexedNode { node, status, made_anew, .. } in &self.nodes {
            let found = status.faults.iter();
            faults.extend(found.map(|found| format!("node {node}: {}: {}", found.at, found.why)));
            let missing = |gap: &FollowedGap| {
                format!("node {node}: records {} to {} are missing", gap.first, gap.last)
            };
            faults.extend(status.gaps.iter().map(missing));
            let told = [
                (status.more, "there is more wrong than is shown"),
                (status.has_stopped, "its chain is followed no further"),
                (*made_anew, "its index was damaged, and was made anew from the store"),
            ];
            let told = told.iter().filter(|(is, _)| *is);
            faults.extend(told.map(|(_, what)| format!("node {node}: {what}")));
            faults.extend(status.error.iter().map(|error| format!("node {node}: {error}")));
        }
        faults
    }
}

/// What this node has of the others.
#[derive(Debug)]
pub struct FleetIndex {
    role: IndexRole,
    nodes: RwLock<BTreeMap<Arc<str>, Arc<FollowedNode>>>,
    not_followed: Mutex<BTreeMap<String, String>>,
    error: Mutex<Option<String>>,
    damaged: Mutex<BTreeSet<String>>,
    changed: watch::Sender<u64>,
    /// Places for questions of other nodes.
    questions: Arc<Semaphore>,
}

impl FleetIndex {
    /// Of a node with this role; nothing is followed yet.
    #[must_use]
    pub fn new(role: IndexRole) -> Self {
        Self {
            role,
            nodes: RwLock::default(),
            not_followed: Mutex::default(),
            error: Mutex::default(),
            damaged: Mutex::default(),
            changed: watch::channel(0).0,
            questions: Arc::new(Semaphore::new(MAX_ANSWERED_TOGETHER)),
        }
    }

    /// A place for a question of another node, kept while it is answered; `None` where too many are.
    #[must_use]
    pub fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.questions).try_acquire_owned().ok()
    }

    /// What of the fleet this node keeps.
    #[must_use]
    pub fn role(&self) -> IndexRole {
        self.role
    }

    pub(super) fn insert(&self, node: Arc<FollowedNode>) {
        self.not_followed.lock().remove(node.name());
        self.nodes.write().insert(Arc::clone(&node.name), node);
        self.has_changed();
    }

    pub(super) fn remove(&self, name: &str) {
        self.nodes.write().remove(name);
    }

    pub(super) fn cannot(&self, name: &str, why: String) {
        self.not_followed.lock().insert(name.to_owned(), why);
    }

    /// Of others than these nothing is told any more: they are not there.
    pub(super) fn there_are(&self, is_there: impl Fn(&str) -> bool) {
        self.not_followed.lock().retain(|name, _| is_there(name));
    }

    pub(super) fn set_left(&self, left: Vec<String>) {
        let why = format!("more than {} nodes: divide them into shards", MAX_FOLLOWED);
        self.not_followed.lock().extend(left.into_iter().map(|name| (name, why.clone())));
    }

    pub(super) fn set_error(&self, error: Option<String>) {
        *self.error.lock() = error;
    }

    pub(super) fn has_changed(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes with each segment that is taken.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The copy of a node turned out to be damaged when it was read: it is made anew.
    pub fn suspect(&self, name: &str) {
        self.damaged.lock().insert(name.to_owned());
    }

    /// The same by a file of the copy.
    pub(super) fn suspect_file(&self, file: &Path) {
        let parts = file.iter().filter_map(std::ffi::OsStr::to_str);
        let names = parts.filter_map(|part| part.rsplit_once('~')).map(|(name, _)| name);
        for name in names.filter(|name| self.nodes.read().contains_key(*name)) {
            self.suspect(name);
        }
    }

    pub(super) fn take_damaged(&self, name: &str) -> bool {
        self.damaged.lock().remove(name)
    }

    /// The nodes that are followed, and their copies as they are now.
    ///
    /// # Errors
    ///
    /// The first that cannot be read; it is made anew.
    pub fn views(&self) -> Result<Vec<View>, StoreError> {
        let nodes: Vec<_> = self.nodes.read().values().cloned().collect();
        let view =
            |node: &Arc<FollowedNode>| node.reader.view().inspect_err(|_| self.suspect(&node.name));
        nodes.iter().map(view).collect()
    }

    /// Whether the segments of the node of that name are read.
    #[must_use]
    pub fn follows(&self, name: &str) -> bool {
        self.nodes.read().contains_key(name)
    }

    /// How things are.
    #[must_use]
    pub fn report(&self) -> IndexReport {
        let nodes: Vec<_> = self.nodes.read().values().cloned().collect();
        let shown = |node: &Arc<FollowedNode>| IndexedNode {
            node: node.name.to_string(),
            log: node.log.to_string(),
            status: node.status(),
            disk_bytes: node.reader.disk_bytes(),
            made_anew: node.made_anew,
        };
        IndexReport {
            index: self.role.to_string(),
            nodes: nodes.iter().map(shown).collect(),
            not_followed: self.not_followed.lock().clone(),
            error: self.error.lock().clone(),
        }
    }
}
