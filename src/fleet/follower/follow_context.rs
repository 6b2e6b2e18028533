//! What all turns of a follower go by: what is followed, from where and into where, and why something is not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::activity::replica::ReplicaError;
use crate::activity::{Retention, StoreError};
use crate::fleet::bucket::{Bucket, BucketError};
use crate::fleet::config::{IndexRole, NodeName};
use crate::fleet::fleet_index::FleetIndex;

/// Segments that are open at a time, of all nodes.
const OPENED: usize = 3;
/// How often the store is asked for segments: as often as a node seals, within these.
const EVERY: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=LONGEST_WAIT;
/// Longest time from a node's turn to its next.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked for nodes and at their claims, in the time of one listing.
const LOOK_EVERY: u32 = 2;
/// Longest time until a node is tried again whose claim was no good. As many names as are listed come to 55 a second then.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// How often that time doubles at most.
const MOST_DOUBLINGS: u32 = 16;

/// What is followed, and into where.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// What of the fleet this node keeps.
    pub role: IndexRole,
    /// This node's own name: its own log is not followed.
    pub own: NodeName,
    /// `data_dir/fleet/index`
    pub folder: PathBuf,
    /// How often nodes seal.
    pub flush: Duration,
    /// How long records are kept.
    pub retention: Retention,
}

/// What all turns go by.
pub(super) struct FollowContext {
    pub(super) settings: FollowSettings,
    pub(super) bucket: Bucket,
    pub(super) index: Arc<FleetIndex>,
    /// Between two listings of a node's segments.
    pub(super) every: Duration,
    base: Instant,
    pub(super) opened: Arc<Semaphore>,
}

impl FollowContext {
    pub(super) fn new(settings: FollowSettings, bucket: Bucket, index: Arc<FleetIndex>) -> Self {
        let every = settings.flush.clamp(*EVERY.start(), *EVERY.end());
        let opened = Arc::new(Semaphore::new(OPENED));
        Self { settings, bucket, index, every, base: Instant::now(), opened }
    }

    /// Milliseconds since it began to follow.
    pub(super) fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    pub(super) fn look_every(&self) -> Duration {
        self.every * LOOK_EVERY
    }

    /// How long a node is left alone whose claim was no good so many times: twice as long each time.
    pub(super) fn rest_after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(MOST_DOUBLINGS);
        self.look_every().saturating_mul(1 << doublings).min(LONGEST_REST)
    }
}

/// Why a node is not followed now.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotFollowed {
    #[error("{0}")]
    Store(#[from] BucketError),
    #[error("{0}")]
    Copy(#[from] ReplicaError),
    #[error("{0}")]
    Local(#[from] StoreError),
    #[error("{0}")]
    Folder(#[from] std::io::Error),
    #[error("{0}")]
    Claim(String),
    #[error(
        "{store} is of fleet {fleet}, and fleet {known} was followed from there: nothing of it is taken"
    )]
    OtherFleet { store: String, fleet: String, known: String },
    #[error("the thread ended")]
    Thread,
}

impl NotFollowed {
    /// Whether it is about the copy, and not about the store that it is made from.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Copy(_) | Self::Local(_) | Self::Folder(_) | Self::Thread => true,
            Self::Store(_) | Self::Claim(_) | Self::OtherFleet { .. } => false,
        }
    }

    /// Whether it is about what lies in the node's folder: it stays so until somebody changes that.
    pub(super) fn is_of_claim(&self) -> bool {
        match self {
            Self::Claim(_) => true,
            Self::Store(_)
            | Self::Copy(_)
            | Self::Local(_)
            | Self::Folder(_)
            | Self::OtherFleet { .. }
            | Self::Thread => false,
        }
    }

    /// Whether the copy is of no use.
    pub(super) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Local(StoreError::Damaged { .. })
                | Self::Copy(ReplicaError::Store(StoreError::Damaged { .. }))
        )
    }
}
