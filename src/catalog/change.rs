//! What taking up a server's set changed.

use std::sync::Arc;

use super::difference::Difference;
use super::on_change::ChangeAction;
use super::pins::PinEvent;
use super::scan::ScanFinding;
use crate::tool::ToolName;

/// What replacing a server's set did; for log and record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Names of tools that are new.
    pub added: Vec<Arc<str>>,
    /// Names of tools that are gone.
    pub removed: Vec<Arc<str>>,
    /// Names of tools whose definition is another.
    pub changed: Vec<Arc<str>>,
    /// What is another about each of them.
    pub differences: Vec<Difference>,
    /// Output schemas, new or changed, that cannot be used, and why (FR-A9).
    pub unusable: Vec<(ToolName, Arc<str>)>,
    /// Tools that were listed again under a name that was taken; the first counts.
    pub duplicates: Vec<Box<str>>,
    /// Why the set was not written to disk, or not read from it.
    pub disk: Option<String>,
    /// What happened to the pins of tools, by their names.
    pub pinned: Vec<(Arc<str>, PinEvent)>,
    /// What the scan found, and was not told before; of tools of whatever server.
    pub found: Vec<(ToolName, Vec<ScanFinding>)>,
    /// What was done about tools that were never seen before.
    pub first_sight: FirstSight,
}

/// Whether a server is new, and what is done about what is new of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstSight {
    /// The server is known: its new tools widen what it offers.
    #[default]
    Known,
    /// It was never seen.
    NewServer(ChangeAction),
    /// Its pins are lost.
    Lost(ChangeAction),
}

impl Change {
    /// True if nothing changed and nothing failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // How a server was known says nothing where nothing happened.
        *self == Self { first_sight: self.first_sight, ..Self::default() }
    }

    /// True if the set of tools is another than before.
    pub(super) fn tools_differ(&self) -> bool {
        !(self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty())
    }
}
