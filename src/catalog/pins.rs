//! Pins, which are the accepted definition of each tool and the one that waits for an operator, and the verdicts that
//! fleet nodes share. Pure.
//!
//! The first definition of a tool is pinned. Later definitions are compared with the pinned one, regardless of changes
//! in between, and the pin moves when the change is accepted:
//!
//! ```text
//!            accept, warn                        approved
//! new ───────────────────────▶ accepted ◀───────────────────── held
//!  │                            │    ▲  server restores it        ▲
//!  │ quarantine                 │    └────────────────────────────┤
//!  │                            └── change or finding ────────────┤
//!  └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! A held definition stays held after changes of the config; a different definition is judged again. The pin of an
//! unlisted tool is kept, so that a tool cannot bypass it by disappearing and returning. Files are in `pin_file`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::definition::{DefinitionDigest, ToolDefinition};
use super::grade::{self, ChangeAction, Grade, PartChange, ReviewSettings, ScanMode};
use super::listing::Listed;
use super::scan::{FindingLevel, ScanFinding};
use mcpproxy_policy::tool::{ToolName, Trust};

/// Maximum number of pins per server; further new tools wait for an operator.
pub(crate) const MAX_PINS: usize = 40_000;

/// Maximum size of the stored definitions of a server's unlisted tools, in bytes. Beyond it only digests are stored,
/// and a changed definition cannot be compared.
pub(crate) const MAX_GONE_BYTES: usize = 4 * 1024 * 1024;

/// Pin of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// Accepted definition; `None` if no definition was ever accepted.
    pub accepted: Option<AcceptedDefinition>,
    /// The definition that waits for an operator.
    pub held: Option<DefinitionDigest>,
    /// Digest of the findings reported last.
    pub reported: Option<DefinitionDigest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedDefinition {
    pub digest: DefinitionDigest,
    /// The definition, if it is known and differs from the one currently listed.
    pub listed: Option<Arc<Listed>>,
    /// Whether an operator approved the definition, regardless of scan findings.
    pub by_operator: bool,
}

impl AcceptedDefinition {
    /// Creates the accepted definition from the one that is currently listed.
    pub(super) fn listed_now(digest: DefinitionDigest) -> Self {
        Self { digest, listed: None, by_operator: false }
    }
}

/// Pins of one server by tool name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPins(pub(super) BTreeMap<Arc<str>, Pin>);

/// Stored pins of a server.
#[derive(Clone, Debug, Default)]
pub(crate) enum PinHistory {
    /// Server that was never seen.
    #[default]
    New,
    Known(Arc<ServerPins>),
    /// Server that was seen before, but whose pins are lost.
    Lost,
}

impl PinHistory {
    pub(crate) fn pins(&self) -> Option<&Arc<ServerPins>> {
        match self {
            Self::Known(pins) => Some(pins),
            Self::New | Self::Lost => None,
        }
    }
}

/// Criteria for judging a definition.
pub(super) struct Judge<'a> {
    pub(super) settings: &'a ReviewSettings,
    /// Action for a tool without a pin.
    pub(super) first_sight: ChangeAction,
    /// Verdicts of other fleet nodes; empty without a fleet.
    pub(super) shared: &'a SharedPins,
}

/// A listed definition to be judged.
pub(super) struct ListedDefinition<'a> {
    pub(super) digest: DefinitionDigest,
    pub(super) listed: &'a Arc<Listed>,
    /// Previously listed definition.
    pub(super) before: Option<(DefinitionDigest, &'a Arc<Listed>)>,
    pub(super) findings: &'a [ScanFinding],
}

#[derive(Clone, Debug, PartialEq)]
pub enum PinEvent {
    /// The first definition of the tool.
    FirstSight(ChangeAction),
    /// The definition differs from the pinned or the held definition.
    Changed { grade: Grade, parts: Vec<PartChange>, action: ChangeAction },
    /// The definition was quarantined because of scan findings.
    HeldForFindings,
    /// The definition was quarantined because another fleet node quarantines it.
    HeldElsewhere,
    /// The server restored the accepted definition.
    Restored,
}

/// Whether these findings cause a quarantine.
pub(super) fn is_serious(settings: &ReviewSettings, findings: &[ScanFinding]) -> bool {
    settings.scan == ScanMode::Quarantine
        && findings.iter().any(|finding| finding.level >= FindingLevel::Medium)
}

impl Judge<'_> {
    pub(super) fn is_serious(&self, findings: &[ScanFinding]) -> bool {
        is_serious(self.settings, findings)
    }

    /// Judges a definition. Returns the tool's trust, its new pin, and the event.
    pub(super) fn judge(
        &self,
        pin: Option<&Pin>,
        definition: &ListedDefinition<'_>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let digest = definition.digest;
        let serious = self.is_serious(definition.findings);
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
            let before = definition.before.map(|(_, listed)| listed);
            let parts = compared(before, definition.listed);
            let (grade, action) = (grade::highest(&parts), ChangeAction::Quarantine);
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
                false => (Trust::Given, kept, pin.held.map(|_| PinEvent::Restored)),
            };
        }
        let before = definition.before.filter(|(before, _)| *before == accepted.digest);
        let old = accepted.listed.as_ref().or(before.map(|(_, listed)| listed));
        let parts = compared(old, definition.listed);
        let grade = grade::highest(&parts);
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

/// Changed parts between two listed definitions; an unknown definition cannot be compared.
pub(super) fn compared(old: Option<&Arc<Listed>>, new: &Listed) -> Vec<PartChange> {
    let read = |listed: &Listed| ToolDefinition::parse(std::str::from_utf8(listed.json()).ok()?);
    grade::compare(old.and_then(|old| read(old)).as_ref(), read(new).as_ref())
}

impl ServerPins {
    pub(crate) fn get(&self, tool: &str) -> Option<&Pin> {
        self.0.get(tool)
    }

    /// Returns the next pins: the pins of judged tools, and those of unlisted tools, whose definitions are kept as far
    /// as the limit allows. `last` is the definition listed last.
    pub(super) fn next<'a>(
        judged: BTreeMap<Arc<str>, Pin>,
        before: Option<&Self>,
        last: impl Fn(&str) -> Option<(DefinitionDigest, &'a Arc<Listed>)>,
    ) -> Self {
        let mut next = judged;
        let mut bytes_left = MAX_GONE_BYTES;
        for (name, pin) in before.into_iter().flat_map(|before| &before.0) {
            if next.contains_key(name) || next.len() >= MAX_PINS {
                continue;
            }
            let mut unlisted = pin.clone();
            if let Some(accepted) = &mut unlisted.accepted {
                let listed = last(name).filter(|(digest, _)| *digest == accepted.digest);
                let listed =
                    accepted.listed.take().or(listed.map(|(_, listed)| Arc::clone(listed)));
                accepted.listed =
                    listed.filter(|listed| match bytes_left.checked_sub(listed.json().len()) {
                        Some(left) => {
                            bytes_left = left;
                            true
                        }
                        None => false,
                    });
            }
            next.insert(Arc::clone(name), unlisted);
        }
        Self(next)
    }
}

/// Verdict on a definition, in ascending precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedVerdict {
    /// Accepted on some node without approval.
    Pinned,
    Held,
    /// Approved by an operator.
    Approved,
}

/// Verdicts on the definitions of one tool.
pub(super) type ToolLimit = BTreeMap<DefinitionDigest, SharedVerdict>;

/// Verdicts of all fleet nodes. The highest verdict on a definition counts, regardless of the order, so that all nodes
/// agree and only an operator's approval lifts a quarantine. A verdict on a different definition only shows that the
/// tool is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPins(BTreeMap<Arc<str>, BTreeMap<Box<str>, ToolLimit>>);

impl SharedPins {
    pub fn add(&mut self, tool: &ToolName, digest: DefinitionDigest, verdict: SharedVerdict) {
        let of_server = self.0.entry(Arc::clone(&tool.server)).or_default();
        let of_tool = of_server.entry((*tool.tool).into()).or_default();
        let known = of_tool.entry(digest).or_insert(verdict);
        *known = verdict.max(*known);
    }

    /// Highest verdict on a definition, if any.
    pub fn verdict(&self, tool: &ToolName, digest: DefinitionDigest) -> Option<SharedVerdict> {
        self.of(tool)?.get(&digest).copied()
    }

    /// Whether any node trusts some definition of the tool.
    pub fn knows(&self, tool: &ToolName) -> bool {
        self.of(tool).is_some_and(is_known)
    }

    pub(super) fn of(&self, tool: &ToolName) -> Option<&ToolLimit> {
        self.0.get(&tool.server)?.get(&*tool.tool)
    }
}

pub(super) fn is_known(of_tool: &ToolLimit) -> bool {
    of_tool.values().any(|verdict| *verdict != SharedVerdict::Held)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(tool: &str) -> ToolName {
        ToolName { server: "s".into(), tool: tool.into() }
    }

    const VERDICTS: [SharedVerdict; 3] =
        [SharedVerdict::Pinned, SharedVerdict::Held, SharedVerdict::Approved];

    proptest! {
        #[test]
        fn verdicts_are_order_independent(
            statements in prop::collection::vec((0..2_u8, 0..3_u8, 0..3_usize), 0..20),
            shuffles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..40), 1..4),
        ) {
            let add = |pins: &mut SharedPins, (tool, of, verdict): (u8, u8, usize)| {
                pins.add(&name(&tool.to_string()), DefinitionDigest::of(&[of]), VERDICTS[verdict]);
            };
            let mut first = SharedPins::default();
            statements.iter().for_each(|it| add(&mut first, *it));
            for shuffle in shuffles {
                // The verdicts are repeated and reordered.
                let mut other = SharedPins::default();
                if !statements.is_empty() {
                    shuffle.iter().for_each(|at| add(&mut other, statements[at.index(statements.len())]));
                }
                statements.iter().rev().for_each(|it| add(&mut other, *it));
                prop_assert_eq!(&other, &first);
            }
            for (tool, of, _) in &statements {
                let (tool, digest) = (name(&tool.to_string()), DefinitionDigest::of(&[*of]));
                let of_it = statements.iter().filter(|it| name(&it.0.to_string()) == tool && DefinitionDigest::of(&[it.1]) == digest);
                let max = of_it.map(|it| VERDICTS[it.2]).max();
                prop_assert_eq!(first.verdict(&tool, digest), max);
            }
        }
    }
}

#[cfg(test)]
mod tests_tests {
    use super::*;
    use crate::exposed;
    use crate::scan::ScanRule;

    fn listed(more: &str) -> Arc<Listed> {
        let json = format!(r#"{{"name":"s__x","inputSchema":{{}}{more}}}"#);
        Arc::new(Listed::stored(exposed::name("s", "x"), "x", &json))
    }

    fn finding(level: FindingLevel) -> ScanFinding {
        let (place, detail) = ("name".to_owned(), "x".to_owned());
        ScanFinding { rule: ScanRule::Order, level, place, detail }
    }

    struct Server {
        settings: ReviewSettings,
        pin: Option<Pin>,
        before: Option<Arc<Listed>>,
        findings: Vec<ScanFinding>,
    }

    impl Server {
        fn new() -> Self {
            Self {
                settings: ReviewSettings::default(),
                pin: None,
                before: None,
                findings: Vec::new(),
            }
        }

        /// Lists this definition. Returns the tool's trust and the event.
        fn lists(&mut self, more: &str) -> (Trust, Option<PinEvent>) {
            let now = listed(more);
            let digest = DefinitionDigest::of(now.json());
            let before = self.before.as_ref();
            let before = before.map(|listed| (DefinitionDigest::of(listed.json()), listed));
            let definition =
                ListedDefinition { digest, listed: &now, before, findings: &self.findings };
            let shared = SharedPins::default();
            let first_sight = self.settings.on_new_server;
            let judge = Judge { settings: &self.settings, first_sight, shared: &shared };
            let (trust, pin, event) = judge.judge(self.pin.as_ref(), &definition);
            (self.pin, self.before) = (Some(pin), Some(now));
            (trust, event)
        }

        fn grade(&mut self, more: &str) -> (Trust, Option<Grade>) {
            let (trust, event) = self.lists(more);
            let grade = event.map(|event| match event {
                PinEvent::Changed { grade, .. } => grade,
                PinEvent::FirstSight(_)
                | PinEvent::HeldForFindings
                | PinEvent::HeldElsewhere
                | PinEvent::Restored => Grade::Same,
            });
            (trust, grade)
        }
    }

    const DESTROYS: &str = r#","annotations":{"destructiveHint":true}"#;
    const HARMLESS: &str = r#","annotations":{"destructiveHint":false}"#;
    const WORDS: &str = r#","annotations":{"destructiveHint":true},"description":"x""#;

    #[test]
    fn first_definition_is_pinned_and_text_changes_move_the_pin() {
        let mut server = Server::new();
        let first = Some(PinEvent::FirstSight(ChangeAction::Accept));
        assert_eq!(server.lists(DESTROYS), (Trust::Given, first));
        assert_eq!(server.lists(DESTROYS), (Trust::Given, None));
        assert_eq!(server.grade(WORDS), (Trust::Given, Some(Grade::Text)));
        assert_eq!(server.lists(WORDS), (Trust::Given, None), "reported once");
    }

    #[test]
    fn loosened_definition_is_held_until_restored() {
        let mut server = Server::new();
        server.lists(DESTROYS);
        assert_eq!(server.grade(HARMLESS), (Trust::Withheld, Some(Grade::Loosened)));
        assert_eq!(server.lists(HARMLESS), (Trust::Withheld, None), "reported once");
        let other = r#","annotations":{"destructiveHint":false},"description":"x""#;
        // The definition is compared with the accepted one, not the held one.
        assert_eq!(server.grade(other), (Trust::Withheld, Some(Grade::Loosened)));
        assert_eq!(server.lists(DESTROYS), (Trust::Given, Some(PinEvent::Restored)));
        assert_eq!(server.grade(HARMLESS), (Trust::Withheld, Some(Grade::Loosened)));
        assert_eq!(server.grade(WORDS), (Trust::Given, Some(Grade::Text)), "only text changed");
    }

    #[test]
    fn held_definition_remains_held_after_a_config_change() {
        let mut server = Server::new();
        server.lists(DESTROYS);
        server.lists(HARMLESS);
        server.settings.on_change.loosened = ChangeAction::Accept;
        assert_eq!(server.lists(HARMLESS), (Trust::Withheld, None));
        let mut server = Server::new();
        server.settings.on_new_server = ChangeAction::Quarantine;
        assert_eq!(server.lists(DESTROYS).0, Trust::Withheld);
        server.settings.on_new_server = ChangeAction::Accept;
        assert_eq!(server.lists(WORDS).0, Trust::Withheld, "the definition was never accepted");
    }

    #[test]
    fn change_from_an_unknown_definition_has_the_highest_grade() {
        let mut server = Server::new();
        server.lists(DESTROYS);
        server.before = None;
        assert_eq!(server.lists(DESTROYS), (Trust::Given, None));
        server.before = None;
        assert_eq!(server.grade(WORDS), (Trust::Withheld, Some(Grade::Loosened)));
    }

    #[test]
    fn finding_quarantines_only_if_configured() {
        for (scan, level, trust) in [
            (ScanMode::Warn, FindingLevel::High, Trust::Given),
            (ScanMode::Quarantine, FindingLevel::Low, Trust::Given),
            (ScanMode::Quarantine, FindingLevel::Medium, Trust::Withheld),
        ] {
            let mut server = Server::new();
            server.settings.scan = scan;
            server.findings = vec![finding(level)];
            assert_eq!(server.lists(DESTROYS).0, trust, "{scan:?} {level:?}");
            // A previously trusted tool.
            let mut server = Server::new();
            server.lists(DESTROYS);
            server.settings.scan = scan;
            server.findings = vec![finding(level)];
            assert_eq!(server.lists(DESTROYS).0, trust, "{scan:?} {level:?}");
            // Approved by an operator.
            if let Some(accepted) = server.pin.as_mut().and_then(|pin| pin.accepted.as_mut()) {
                accepted.by_operator = true;
            }
            server.pin.as_mut().unwrap().held = None;
            assert_eq!(server.lists(DESTROYS).0, Trust::Given);
            assert_eq!(server.lists(WORDS).0, trust, "this is another definition");
        }
    }

    #[test]
    fn pin_of_unlisted_tool_keeps_its_definition_within_the_limit() {
        let pin = |listed: Option<Arc<Listed>>, digest| Pin {
            accepted: Some(AcceptedDefinition { digest, listed, by_operator: false }),
            ..Pin::default()
        };
        let small = listed("");
        let large = listed(&format!(r#","description":"{}""#, "x".repeat(MAX_GONE_BYTES)));
        let digests = [&small, &large].map(|listed| DefinitionDigest::of(listed.json()));
        let before = ServerPins(
            [(Arc::from("a"), pin(None, digests[0])), (Arc::from("b"), pin(None, digests[1]))]
                .into(),
        );
        let last = |name: &str| match name {
            "a" => Some((digests[0], &small)),
            _ => Some((digests[1], &large)),
        };
        let next = ServerPins::next(BTreeMap::new(), Some(&before), last);
        assert_eq!(next.get("a"), Some(&pin(Some(Arc::clone(&small)), digests[0])));
        assert_eq!(next.get("b"), Some(&pin(None, digests[1])), "only the digest is kept");
        // The last listed definition is not the accepted one.
        let other = |_: &str| Some((digests[1], &large));
        let next = ServerPins::next(BTreeMap::new(), Some(&before), other);
        assert_eq!(next.get("a"), Some(&pin(None, digests[0])));
    }
}
