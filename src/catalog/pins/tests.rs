//! The ways of a pin, each step by itself.

use super::*;
use crate::catalog::exposed;
use crate::catalog::scan::ScanRule;

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
        Self { settings: ReviewSettings::default(), pin: None, before: None, findings: Vec::new() }
    }

    /// Lists this definition; whether the tool is trusted, and what happened.
    fn lists(&mut self, more: &str) -> (Trust, Option<PinEvent>) {
        let now = listed(more);
        let digest = DefinitionDigest::of(now.json());
        let before = self.before.as_ref();
        let before = before.map(|listed| (DefinitionDigest::of(listed.json()), listed));
        let sighted = Sighted { digest, listed: &now, before, findings: &self.findings };
        let shared = SharedPins::default();
        let first_sight = self.settings.on_new_server;
        let judge = Judge { settings: &self.settings, first_sight, shared: &shared };
        let (trust, pin, event) = judge.judge(self.pin.as_ref(), &sighted);
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
            | PinEvent::TakenBack => Grade::Same,
        });
        (trust, grade)
    }
}

const DESTROYS: &str = r#","annotations":{"destructiveHint":true}"#;
const HARMLESS: &str = r#","annotations":{"destructiveHint":false}"#;
const WORDS: &str = r#","annotations":{"destructiveHint":true},"description":"x""#;

#[test]
fn the_first_sight_pins_and_words_move_the_pin() {
    let mut server = Server::new();
    let first = Some(PinEvent::FirstSight(ChangeAction::Accept));
    assert_eq!(server.lists(DESTROYS), (Trust::Given, first));
    assert_eq!(server.lists(DESTROYS), (Trust::Given, None));
    assert_eq!(server.grade(WORDS), (Trust::Given, Some(Grade::Text)));
    assert_eq!(server.lists(WORDS), (Trust::Given, None), "told once");
}

#[test]
fn what_is_loosened_is_held_until_it_is_taken_back_however_it_changes() {
    let mut server = Server::new();
    server.lists(DESTROYS);
    assert_eq!(server.grade(HARMLESS), (Trust::Withheld, Some(Grade::Loosened)));
    assert_eq!(server.lists(HARMLESS), (Trust::Withheld, None), "told once");
    let other = r#","annotations":{"destructiveHint":false},"description":"x""#;
    // It is compared with what was accepted, not with what is held.
    assert_eq!(server.grade(other), (Trust::Withheld, Some(Grade::Loosened)));
    assert_eq!(server.lists(DESTROYS), (Trust::Given, Some(PinEvent::TakenBack)));
    assert_eq!(server.grade(HARMLESS), (Trust::Withheld, Some(Grade::Loosened)));
    assert_eq!(server.grade(WORDS), (Trust::Given, Some(Grade::Text)), "a change of words");
}

#[test]
fn what_is_held_stays_held_whatever_the_config_says_later() {
    let mut server = Server::new();
    server.lists(DESTROYS);
    server.lists(HARMLESS);
    server.settings.on_change.loosened = ChangeAction::Accept;
    assert_eq!(server.lists(HARMLESS), (Trust::Withheld, None));
    let mut server = Server::new();
    server.settings.on_new_server = ChangeAction::Quarantine;
    assert_eq!(server.lists(DESTROYS).0, Trust::Withheld);
    server.settings.on_new_server = ChangeAction::Accept;
    assert_eq!(server.lists(WORDS).0, Trust::Withheld, "what was never accepted");
}

#[test]
fn without_the_older_definition_another_one_is_the_gravest_change() {
    let mut server = Server::new();
    server.lists(DESTROYS);
    server.before = None;
    assert_eq!(server.lists(DESTROYS), (Trust::Given, None));
    server.before = None;
    assert_eq!(server.grade(WORDS), (Trust::Withheld, Some(Grade::Loosened)));
}

#[test]
fn a_finding_holds_a_tool_only_where_that_is_asked_for() {
    for (scan, level, trust) in [
        (ScanMode::Warn, FindingLevel::High, Trust::Given),
        (ScanMode::Quarantine, FindingLevel::Low, Trust::Given),
        (ScanMode::Quarantine, FindingLevel::Medium, Trust::Withheld),
    ] {
        let mut server = Server::new();
        server.settings.scan = scan;
        server.findings = vec![finding(level)];
        assert_eq!(server.lists(DESTROYS).0, trust, "{scan:?} {level:?}");
        // A tool that was trusted before.
        let mut server = Server::new();
        server.lists(DESTROYS);
        server.settings.scan = scan;
        server.findings = vec![finding(level)];
        assert_eq!(server.lists(DESTROYS).0, trust, "{scan:?} {level:?}");
        // What an operator has approved.
        if let Some(accepted) = server.pin.as_mut().and_then(|pin| pin.accepted.as_mut()) {
            accepted.by_operator = true;
        }
        server.pin.as_mut().unwrap().held = None;
        assert_eq!(server.lists(DESTROYS).0, Trust::Given);
        assert_eq!(server.lists(WORDS).0, trust, "another definition");
    }
}

#[test]
fn the_pin_of_a_tool_that_is_gone_is_kept_with_its_definition_as_long_as_there_is_room() {
    let pin = |listed: Option<Arc<Listed>>, digest| Pin {
        accepted: Some(AcceptedDefinition { digest, listed, by_operator: false }),
        ..Pin::default()
    };
    let small = listed("");
    let large = listed(&format!(r#","description":"{}""#, "x".repeat(MAX_GONE_BYTES)));
    let digests = [&small, &large].map(|listed| DefinitionDigest::of(listed.json()));
    let before = ServerPins(
        [(Arc::from("a"), pin(None, digests[0])), (Arc::from("b"), pin(None, digests[1]))].into(),
    );
    let last = |name: &str| match name {
        "a" => Some((digests[0], &small)),
        _ => Some((digests[1], &large)),
    };
    let next = ServerPins::next(BTreeMap::new(), Some(&before), last);
    assert_eq!(next.get("a"), Some(&pin(Some(Arc::clone(&small)), digests[0])));
    assert_eq!(next.get("b"), Some(&pin(None, digests[1])), "only the digest");
    // Another definition is listed last: it is not the accepted one.
    let other = |_: &str| Some((digests[1], &large));
    let next = ServerPins::next(BTreeMap::new(), Some(&before), other);
    assert_eq!(next.get("a"), Some(&pin(None, digests[0])));
}
