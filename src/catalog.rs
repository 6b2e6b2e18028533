//! The catalog: which tools exist, what they may do, how they are found.
//!
//! Tools come in as an upstream's discovery found them, one server's whole set at a time, and go
//! out as one immutable [`snapshot::Snapshot`]. Who discovers and who calls is not known here.

pub mod difference;
pub mod discovered;
pub mod exposed;
pub mod listing;
pub mod offered;
pub mod persist;
pub mod search;
pub mod settings;
pub mod snapshot;
mod synonyms;

pub use discovered::DiscoveredTool;
pub use settings::{PolicyOverride, ServerSettings, Settings};
pub use snapshot::{Catalog, Change, Snapshot, ToolSet};
