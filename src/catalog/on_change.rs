//! The section `catalog` of the config: what is done about definitions that are new or another, and about what the scan
//! finds in them.

use serde::Deserialize;

use super::grade::Grade;

/// What is done about a new or changed definition; the later ones are more cautious.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeAction {
    /// It is taken over; the record of the set says so.
    Accept,
    /// It is taken over, and a warning of its own is on record.
    #[default]
    Warn,
    /// The tool is neither shown to agents nor called until an operator approves it.
    Quarantine,
}

impl ChangeAction {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Warn => "warn",
            Self::Quarantine => "quarantine",
        }
    }
}

/// What is done about a change of each [`Grade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ChangeActions {
    /// Words alone.
    pub text: ChangeAction,
    /// Less is accepted, or more promised.
    pub narrowed: ChangeAction,
    /// More is accepted, less promised; a tool that is new on a server that is known.
    pub widened: ChangeAction,
    /// A hint is taken back.
    pub loosened: ChangeAction,
}

impl Default for ChangeActions {
    fn default() -> Self {
        Self {
            text: ChangeAction::Warn,
            narrowed: ChangeAction::Warn,
            widened: ChangeAction::Warn,
            loosened: ChangeAction::Quarantine,
        }
    }
}

impl ChangeActions {
    /// What is done about a change of that grade.
    #[must_use]
    pub fn of(&self, grade: Grade) -> ChangeAction {
        match grade {
            Grade::Same => ChangeAction::Accept,
            Grade::Text => self.text,
            Grade::Narrowed => self.narrowed,
            Grade::Widened => self.widened,
            Grade::Loosened => self.loosened,
        }
    }
}

/// What is done about what the scan finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanMode {
    /// Nothing is scanned.
    Off,
    /// It is told.
    #[default]
    Warn,
    /// It is told, and a tool with a finding of level medium or high is quarantined.
    Quarantine,
}

/// The section `catalog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReviewSettings {
    /// About a definition that is another than the pinned one.
    pub on_change: ChangeActions,
    /// About the tools of a server that was never seen before.
    pub on_new_server: ChangeAction,
    /// About findings.
    pub scan: ScanMode,
}

impl Default for ReviewSettings {
    fn default() -> Self {
        Self {
            on_change: ChangeActions::default(),
            on_new_server: ChangeAction::Accept,
            scan: ScanMode::default(),
        }
    }
}

impl ReviewSettings {
    /// True if anything at all can put a tool into quarantine: then one of which it is not known any more whether it was
    /// there is put there again.
    #[must_use]
    pub fn quarantines(&self) -> bool {
        let ChangeActions { text, narrowed, widened, loosened } = self.on_change;
        let actions = [text, narrowed, widened, loosened, self.on_new_server];
        self.scan == ScanMode::Quarantine || actions.contains(&ChangeAction::Quarantine)
    }
}
