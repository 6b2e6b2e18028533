//! Why a proxy does not start.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::activity::StoreError;
use crate::fleet::JoinError;
use crate::fleet::bucket::BucketError;
use crate::io::tls::TlsFileProblem;
use crate::policy::host_check::BadEntry;
use crate::policy::rules::RuleProblem;

/// Why a proxy cannot start. Nothing is left half-started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used: {error}", folder.display())]
    Folder {
        /// `data_dir`
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The folder of kept results cannot be used.
    #[error("results cannot be kept in {}: {error}; set result_limit.bytes to 0 or mend the folder", folder.display())]
    Results {
        /// `data_dir/results`
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The activity log is in use, damaged or unreadable.
    #[error(transparent)]
    Activity(#[from] StoreError),
    /// `allowed_hosts` or `allowed_origins`.
    #[error(transparent)]
    HostCheck(#[from] BadEntry),
    /// The node's place in its fleet.
    #[error("this node does not take its place in its fleet: {0}")]
    Fleet(#[from] JoinError),
    /// What the node remembers of its fleet's facts.
    #[error(
        "what this node remembers of its fleet cannot be used: {0}; remove it to learn it again from the store"
    )]
    Facts(String),
    /// What the fleet says, which a new node has not heard.
    #[error(
        "this node is new in its fleet, and cannot read what that shares: {0}; it serves nobody before it has"
    )]
    Unheard(String),
    /// The config of the fleet, of which a node has none yet.
    #[error(
        "version {version} of the fleet's config cannot be had: {error}; this node has none of the fleet's yet, and does not \
         serve by its own"
    )]
    FleetConfigAway {
        /// Which one it is.
        version: u64,
        /// What the store says.
        error: BucketError,
    },
    /// The same where it cannot be used.
    #[error(
        "version {version} of the fleet's config cannot be used here: {reason}; this node has none of the fleet's yet, and does \
         not serve by its own"
    )]
    FleetConfigRefused {
        /// Which one it is.
        version: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Rules that are wrong, each on a line of its own.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Rules(Vec<RuleProblem>),
    /// A file of `tls`.
    #[error("tls.{}: {_0}", _0.key.as_str())]
    Tls(#[from] TlsFileProblem),
    /// The system gives no thread, no event queue or no randomness.
    #[error("the system refused what every server needs: {0}")]
    System(#[from] io::Error),
}
