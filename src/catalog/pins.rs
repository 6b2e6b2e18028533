//! Pins: which definition of each tool is accepted, and which one waits for an operator. Pure.
//!
//! The first sight of a tool pins its definition. A later one is compared with the pinned one, however often it changed
//! in between, and the pin moves where the change is accepted:
//!
//! ```text
//!            accept, warn                        approved
//! new ───────────────────────▶ accepted ◀───────────────────── held
//!  │                            │    ▲  the server takes it back  ▲
//!  │ quarantine                 │    └────────────────────────────┤
//!  │                            └── change or finding ────────────┤
//!  └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! What is held stays held whatever the config says later; another definition is judged anew. The pin of a tool that its
//! server no longer lists is kept, so that leaving and coming back is no way around it. Files are `pin_file`'s.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::definition::{DefinitionDigest, ToolDefinition};
use super::grade::{self, Grade, PartChange};
use super::listing::Listed;
use super::on_change::{ChangeAction, ReviewSettings, ScanMode};
use super::scan::{FindingLevel, ScanFinding};
use super::shared_pins::SharedPins;
use crate::tool::Trust;

/// Most pins of one server; a tool that is new beyond that waits for an operator.
pub const MAX_PINS: usize = 40_000;

/// Most bytes of definitions that are kept of one server's tools that it no longer lists; of those beyond only the
/// digest is, so that another definition counts as one that cannot be compared.
pub const MAX_GONE_BYTES: usize = 4 * 1024 * 1024;

/// What is known of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// What is accepted; `None` while the tool has never been.
    pub accepted: Option<AcceptedDefinition>,
    /// The definition that waits for an operator.
    pub held: Option<DefinitionDigest>,
    /// The findings that were told last.
    pub told: Option<DefinitionDigest>,
}

/// A definition that is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedDefinition {
    /// Its identity.
    pub digest: DefinitionDigest,
    /// The definition, where it is not the one that the server lists now, as far as it is known.
    pub listed: Option<Arc<Listed>>,
    /// True if an operator has approved it, whatever the scan finds in it.
    pub by_operator: bool,
}

impl AcceptedDefinition {
    /// The definition that the server lists.
    pub(super) fn listed_now(digest: DefinitionDigest) -> Self {
        Self { digest, listed: None, by_operator: false }
    }
}

/// The pins of one server, by the tools' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPins(pub(super) BTreeMap<Arc<str>, Pin>);

/// What is known of a server from before.
#[derive(Clone, Debug, Default)]
pub enum PinHistory {
    /// It was never seen.
    #[default]
    New,
    /// Its pins.
    Known(Arc<ServerPins>),
    /// It was seen, and what was pinned is not known any more.
    Lost,
}

impl PinHistory {
    /// The pins, where there are any.
    #[must_use]
    pub fn pins(&self) -> Option<&Arc<ServerPins>> {
        match self {
            Self::Known(pins) => Some(pins),
            Self::New | Self::Lost => None,
        }
    }
}

/// What a definition is judged by.
pub(super) struct Judge<'a> {
    pub(super) settings: &'a ReviewSettings,
    /// What is done about a tool without a pin.
    pub(super) first_sight: ChangeAction,
    /// What other nodes of a fleet say; nothing without one.
    pub(super) shared: &'a SharedPins,
}

/// The definition that a server lists.
pub(super) struct Sighted<'a> {
    pub(super) digest: DefinitionDigest,
    pub(super) listed: &'a Arc<Listed>,
    /// The definition that was listed before, if there was one.
    pub(super) before: Option<(DefinitionDigest, &'a Arc<Listed>)>,
    pub(super) findings: &'a [ScanFinding],
}

/// What happened to the pin of a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum PinEvent {
    /// The tool was never seen before.
    FirstSight(ChangeAction),
    /// It is another than the pinned one, or than the last that waited.
    Changed {
        /// How grave that is.
        grade: Grade,
        /// Which parts are another.
        parts: Vec<PartChange>,
        /// What was done about it.
        action: ChangeAction,
    },
    /// It is put into quarantine for what the scan finds in it.
    HeldForFindings,
    /// It is put into quarantine since it is at another node of the fleet.
    HeldElsewhere,
    /// Its server took back what was held.
    TakenBack,
}

/// Whether a tool is held for these findings.
pub(super) fn is_serious(settings: &ReviewSettings, findings: &[ScanFinding]) -> bool {
    settings.scan == ScanMode::Quarantine
        && findings.iter().any(|finding| finding.level >= FindingLevel::Medium)
}

impl Judge<'_> {
    pub(super) fn is_serious(&self, findings: &[ScanFinding]) -> bool {
        is_serious(self.settings, findings)
    }

    /// What becomes of a tool and its pin.
    pub(super) fn judge(
        &self,
        pin: Option<&Pin>,
        sighted: &Sighted<'_>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let digest = sighted.digest;
        let serious = self.is_serious(sighted.findings);
        let at_least = if serious { ChangeAction::Quarantine } else { ChangeAction::Accept };
        let Some(pin) = pin else {
            let action = self.first_sight.max(at_least);
            return match action {
                ChangeAction::Quarantine => {
                    let pin = Pin { held: Some(digest), ..Pin::default() };
                    (Trust::Withheld, pin, Some(PinEvent::FirstSight(action)))
                }
                ChangeAction::Accept | ChangeAction::Warn => {
                    let accepted = Some(AcceptedDefinition::listed_now(digest));
                    let pin = Pin { accepted, ..Pin::default() };
                    (Trust::Given, pin, Some(PinEvent::FirstSight(action)))
                }
            };
        };
        if pin.held == Some(digest) {
            return (Trust::Withheld, pin.clone(), None);
        }
        let Some(accepted) = &pin.accepted else {
            let before = sighted.before.map(|(_, listed)| listed);
            let parts = compared(before, sighted.listed);
            let (grade, action) = (grade::gravest(&parts), ChangeAction::Quarantine);
            let held = Pin { held: Some(digest), ..pin.clone() };
            return (Trust::Withheld, held, Some(PinEvent::Changed { grade, parts, action }));
        };
        if accepted.digest == digest {
            let accepted = AcceptedDefinition { listed: None, ..accepted.clone() };
            let by_operator = accepted.by_operator;
            let kept = Pin { accepted: Some(accepted), held: None, ..pin.clone() };
            return match serious && !by_operator {
                true => {
                    let held = Pin { held: Some(digest), ..kept };
                    (Trust::Withheld, held, Some(PinEvent::HeldForFindings))
                }
                false => (Trust::Given, kept, pin.held.map(|_| PinEvent::TakenBack)),
            };
        }
        let before = sighted.before.filter(|(before, _)| *before == accepted.digest);
        let old = accepted.listed.as_ref().or(before.map(|(_, listed)| listed));
        let parts = compared(old, sighted.listed);
        let grade = grade::gravest(&parts);
        let action = self.settings.on_change.of(grade).max(at_least);
        let (trust, pin) = match action {
            ChangeAction::Quarantine => {
                let accepted = AcceptedDefinition { listed: old.cloned(), ..accepted.clone() };
                let held = Some(digest);
                (Trust::Withheld, Pin { accepted: Some(accepted), held, ..pin.clone() })
            }
            ChangeAction::Accept | ChangeAction::Warn => {
                let accepted = Some(AcceptedDefinition::listed_now(digest));
                (Trust::Given, Pin { accepted, held: None, ..pin.clone() })
            }
        };
        (trust, pin, Some(PinEvent::Changed { grade, parts, action }))
    }
}

/// The changes between two listed definitions; an unknown one cannot be compared.
pub(super) fn compared(old: Option<&Arc<Listed>>, new: &Listed) -> Vec<PartChange> {
    let read = |listed: &Listed| ToolDefinition::parse(std::str::from_utf8(listed.json()).ok()?);
    grade::compare(old.and_then(|old| read(old)).as_ref(), read(new).as_ref())
}

impl ServerPins {
    /// The pin of a tool.
    #[must_use]
    pub fn get(&self, tool: &str) -> Option<&Pin> {
        self.0.get(tool)
    }

    /// The next pins: those that were judged, and of the tools that are no longer listed those from before, with their
    /// definition as long as there is room. `last` is the definition that was listed last.
    pub(super) fn next<'a>(
        judged: BTreeMap<Arc<str>, Pin>,
        before: Option<&Self>,
        last: impl Fn(&str) -> Option<(DefinitionDigest, &'a Arc<Listed>)>,
    ) -> Self {
        let mut next = judged;
        let mut room = MAX_GONE_BYTES;
        for (name, pin) in before.into_iter().flat_map(|before| &before.0) {
            if next.contains_key(name) || next.len() >= MAX_PINS {
                continue;
            }
            let mut gone = pin.clone();
            if let Some(accepted) = &mut gone.accepted {
                let listed = last(name).filter(|(digest, _)| *digest == accepted.digest);
                let listed =
                    accepted.listed.take().or(listed.map(|(_, listed)| Arc::clone(listed)));
                accepted.listed =
                    listed.filter(|listed| match room.checked_sub(listed.json().len()) {
                        Some(left) => {
                            room = left;
                            true
                        }
                        None => false,
                    });
            }
            next.insert(Arc::clone(name), gone);
        }
        Self(next)
    }
}

#[cfg(test)]
mod tests;
