//! What happens to the definitions of tools, as records: changes with their grade, what the scan found, what is new.
//!
//! Pure. Each is told once; of one event so many one by one, and the rest are counted, so that a server that changes all
//! its tools at once does not fill the log.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::catalog::Change;
use crate::catalog::change::FirstSight;
use crate::catalog::grade::PartChange;
use crate::catalog::on_change::ChangeAction;
use crate::catalog::pins::PinEvent;
use crate::catalog::scan::ScanFinding;
use crate::tool::ToolName;

/// Tools of one event that are told of one by one, for each kind of news.
const MAX_TOLD: usize = 100;
/// Names in the text of a record.
const MAX_NAMED: usize = 10;

/// The records of what happened to definitions of a server.
pub(super) fn drafts(server: &Arc<str>, change: &Change) -> Vec<Draft> {
    let mut drafts = first_seen(server, change);
    let changed =
        change.pinned.iter().filter_map(|(tool, event)| of_pin(server, tool, event, change));
    add(&mut drafts, server, "definitions that changed", changed.collect());
    let found = change.found.iter().map(|(tool, findings)| of_findings(tool, findings));
    add(&mut drafts, server, "tools with findings", found.collect());
    drafts
}

/// Adds the first of some records, and one that counts the others.
fn add(drafts: &mut Vec<Draft>, server: &Arc<str>, what: &str, mut news: Vec<Draft>) {
    let more = news.len().saturating_sub(MAX_TOLD);
    news.truncate(MAX_TOLD);
    drafts.append(&mut news);
    if more > 0 {
        drafts.push(warning(server, "", &format!("{more} more {what} at the same time")));
    }
}

fn warning(server: &str, tool: &str, text: &str) -> Draft {
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Warning);
    draft.set(Text::Server, server);
    draft.set(Text::Tool, tool);
    draft.set(Text::Error, text);
    draft
}

fn keep(draft: &mut Draft, metadata: &Value) {
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
}

/// One record for the tools that were never seen before and are not just accepted, by what is done about them.
fn first_seen(server: &Arc<str>, change: &Change) -> Vec<Draft> {
    let what = match change.first_sight {
        FirstSight::Known => "tools that are new on a server that is known",
        FirstSight::NewServer(_) => "tools of a server that is new",
        FirstSight::Lost(_) => "tools of a server whose pins are lost",
    };
    let actions = [ChangeAction::Warn, ChangeAction::Quarantine].into_iter();
    let drafts = actions.filter_map(|action| {
        let seen = change.pinned.iter().filter(|(_, event)| *event == PinEvent::FirstSight(action));
        let names: Vec<&str> = seen.map(|(tool, _)| &**tool).collect();
        let follows = done_about(action);
        let named = names.get(..MAX_NAMED.min(names.len())).unwrap_or_default().join(", ");
        let more = match names.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let mut draft = warning(server, "", &format!("{what}: {named}{more}; {follows}"));
        keep(&mut draft, &json!({"action": action.as_str(), "first_seen": names}));
        (!names.is_empty()).then_some(draft)
    });
    drafts.collect()
}

fn done_about(action: ChangeAction) -> &'static str {
    match action {
        ChangeAction::Accept | ChangeAction::Warn => "taken over",
        ChangeAction::Quarantine => {
            "quarantined until an operator approves (mcpproxy tools diff, mcpproxy tools approve)"
        }
    }
}

fn of_pin(server: &Arc<str>, tool: &Arc<str>, event: &PinEvent, change: &Change) -> Option<Draft> {
    match event {
        // Told together.
        PinEvent::FirstSight(_) => None,
        // The record of the set tells it.
        PinEvent::Changed { action: ChangeAction::Accept, .. } => None,
        PinEvent::Changed { grade, parts, action } => {
            let named: Vec<&str> = parts.iter().map(|part| part.part).collect();
            let difference = change.differences.iter().find(|difference| difference.tool == *tool);
            let hints = difference.and_then(|difference| difference.warning());
            let hints = hints.map(|hints| format!("; {hints}")).unwrap_or_default();
            let (named, follows) = (named.join(", "), done_about(*action));
            let text = format!("its definition changed ({grade}: {named}){hints}; {follows}");
            let mut draft = warning(server, tool, &text);
            let part = |it: &PartChange| json!({"part": it.part, "grade": it.grade, "why": it.why});
            let parts: Vec<Value> = parts.iter().map(part).collect();
            let members = difference.map(|difference| difference.to_json());
            keep(
                &mut draft,
                &json!({
                    "grade": grade, "action": action.as_str(), "parts": parts,
                    "members": members.unwrap_or_else(|| json!([])),
                }),
            );
            Some(draft)
        }
        PinEvent::HeldForFindings => {
            let follows = done_about(ChangeAction::Quarantine);
            let mut draft = warning(server, tool, &format!("what the scan finds in it; {follows}"));
            keep(&mut draft, &json!({"action": ChangeAction::Quarantine.as_str()}));
            Some(draft)
        }
        PinEvent::HeldElsewhere => Some(held_elsewhere(server, tool)),
        PinEvent::TakenBack => {
            let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Success);
            draft.set(Text::Server, server);
            draft.set(Text::Tool, tool);
            keep(&mut draft, &json!({"released": true, "reason": "the change was taken back"}));
            Some(draft)
        }
    }
}

/// The record of a tool that is held since its definition is at another node of the fleet.
pub(super) fn held_elsewhere(server: &str, tool: &str) -> Draft {
    let follows = done_about(ChangeAction::Quarantine);
    let text = format!("its definition is held at another node of the fleet; {follows}");
    let mut draft = warning(server, tool, &text);
    keep(&mut draft, &json!({"action": ChangeAction::Quarantine.as_str(), "shared": true}));
    draft
}

/// The record of a tool that was held at first sight, and that another node of the fleet had pinned.
pub(super) fn known_elsewhere(server: &str, tool: &str) -> Draft {
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Success);
    draft.set(Text::Server, server);
    draft.set(Text::Tool, tool);
    let reason = "its definition is pinned at another node of the fleet";
    keep(&mut draft, &json!({"released": true, "reason": reason}));
    draft
}

fn of_findings(tool: &ToolName, findings: &[ScanFinding]) -> Draft {
    let told: Vec<String> = findings.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let mut draft = warning(&tool.server, &tool.tool, &format!("scan: {}", told.join("; ")));
    keep(&mut draft, &json!({ "findings": findings }));
    draft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::grade::Grade;
    use crate::catalog::scan::{FindingLevel, ScanRule};

    fn texts(change: &Change) -> Vec<(String, String)> {
        let drafts = drafts(&"s".into(), change);
        let text = |it: &Draft| (it.text(Text::Tool).to_owned(), it.text(Text::Error).to_owned());
        drafts.iter().map(text).collect()
    }

    fn changed(action: ChangeAction) -> PinEvent {
        let parts =
            vec![PartChange { part: "inputSchema", grade: Grade::Widened, why: Vec::new() }];
        PinEvent::Changed { grade: Grade::Widened, parts, action }
    }

    #[test]
    fn a_change_is_told_with_its_grade_unless_it_is_to_be_accepted() {
        for (action, told) in [
            (ChangeAction::Accept, None),
            (ChangeAction::Warn, Some("its definition changed (widened: inputSchema); taken over")),
        ] {
            let change =
                Change { pinned: vec![("x".into(), changed(action))], ..Change::default() };
            let expected: Vec<_> =
                told.map(|told| ("x".to_owned(), told.to_owned())).into_iter().collect();
            assert_eq!(texts(&change), expected);
        }
    }

    #[test]
    fn many_changes_at_once_are_counted() {
        let event = |at: usize| (Arc::from(format!("t{at}")), changed(ChangeAction::Quarantine));
        let change = Change { pinned: (0..MAX_TOLD + 7).map(event).collect(), ..Change::default() };
        let texts = texts(&change);
        assert_eq!(texts.len(), MAX_TOLD + 1);
        assert_eq!(texts[MAX_TOLD].1, "7 more definitions that changed at the same time");
    }

    #[test]
    fn what_is_new_is_one_record_and_every_finding_names_its_tool() {
        let new = |name: &str| (Arc::from(name), PinEvent::FirstSight(ChangeAction::Warn));
        let finding = ScanFinding {
            rule: ScanRule::Order,
            level: FindingLevel::High,
            place: "description".into(),
            detail: "'do not tell the user'".into(),
        };
        let change = Change {
            pinned: vec![
                new("a"),
                new("b"),
                ("c".into(), PinEvent::FirstSight(ChangeAction::Accept)),
            ],
            found: vec![(ToolName::parse("other:x").unwrap(), vec![finding])],
            ..Change::default()
        };
        let expected = [
            ("", "tools that are new on a server that is known: a, b; taken over"),
            ("x", "scan: order (high) in description: 'do not tell the user'"),
        ];
        assert_eq!(texts(&change), expected.map(|(tool, text)| (tool.to_owned(), text.to_owned())));
    }
}
