//! Activity records of events at upstreams: server state, catalog changes, definition changes, scan findings and logins.
//!
//! Pure functions turn each event into records. For each event and kind of change, at most [`MAX_DETAILED`] tools have their own records
//! and the rest are counted, so that a server that changes all its tools together does not fill the log. Warnings are also logged, up to
//! [`MAX_LOGGED`] lines per event.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use mcpproxy_activity::Activity;
use mcpproxy_activity::record::{
    Draft, Entry, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type,
};
use mcpproxy_catalog::Change;
use mcpproxy_catalog::change::FirstSight;
use mcpproxy_catalog::grade::ChangeAction;
use mcpproxy_catalog::grade::PartChange;
use mcpproxy_catalog::pins::PinEvent;
use mcpproxy_catalog::scan::ScanFinding;
use mcpproxy_policy::tool::ToolName;
use mcpproxy_runtime::io::line_budget::{LineBucket, LinePeer, peer_line};
use mcpproxy_upstream::supervisor::{Event, LoginOutcome, ServerState, Status as ServerStatus};

/// Maximum number of bytes of metadata that describe differences of tools. The rest of the metadata lists names of
/// tools.
const MAX_DIFFERENCES_BYTES: usize = MAX_METADATA_BYTES / 2;

/// Returns the records of an event: one for the server or its tool list, and one each for new or changed definitions and unusable schemas
/// (FR-A9).
pub(super) fn entries(event: &Event) -> Vec<Entry> {
    match event {
        Event::Server(state) => vec![server_change(state).into()],
        Event::Catalog { server, change } => catalog_changes(server, change),
        Event::Login { server, principal, outcome } => {
            vec![login(server, principal, outcome).into()]
        }
    }
}

/// Burst of records that one server may cause; more than its first tool list needs.
const BURST: u32 = 1000;
/// Time after which one more record is allowed.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between records about omitted records of a server.
const NOTICE_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of servers with their own budget; further servers share one.
const MAX_SERVERS: usize = 1024;

/// Budget of records for each server's events: a server that constantly changes its tools must not push the records of calls out of the log
/// (ACT-12). Records beyond the budget are counted.
#[derive(Default)]
pub(super) struct RecordBudgets(Mutex<HashMap<Box<str>, RecordBudget>>);

struct RecordBudget {
    bucket: LineBucket,
    /// Time of the last record about omitted records.
    last_notice: Option<Instant>,
}

impl RecordBudgets {
    /// The records that the budgets of their servers allow, and records about the omitted ones.
    pub(super) fn within(&self, entries: Vec<Entry>, now: Instant) -> Vec<Entry> {
        let mut budgets = self.0.lock();
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            let server = entry.draft.text(Text::Server);
            let is_known = budgets.contains_key(server) || budgets.len() < MAX_SERVERS;
            let key = if is_known { server } else { "" };
            let budget = budgets.entry(key.into()).or_insert_with(|| RecordBudget {
                bucket: LineBucket::new(BURST, INTERVAL),
                last_notice: None,
            });
            if budget.bucket.take(now) {
                match budget.bucket.missed() {
                    0 => {}
                    missed => {
                        kept.push(left_out(server, &format!("{missed} records were left out")))
                    }
                }
                kept.push(entry);
            } else if budget.last_notice.is_none_or(|last| now >= last + NOTICE_INTERVAL) {
                budget.last_notice = Some(now);
                kept.push(left_out(server, "further records are left out and counted"));
            }
        }
        kept
    }
}

fn left_out(server: &str, what: &str) -> Entry {
    let mut draft = Draft::new(Type::ServerChange, Source::Internal, Status::Warning);
    draft.set(Text::Server, server);
    draft.set(Text::Error, &format!("the server changes too often: {what}"));
    draft.into()
}

/// Returns the records of a changed tool list; none if nothing changed.
pub(super) fn catalog_changes(server: &Arc<str>, change: &Change) -> Vec<Entry> {
    if change.is_empty() {
        return Vec::new();
    }
    let status = if change.disk.is_some() || !change.duplicates.is_empty() {
        Status::Warning
    } else {
        Status::Success
    };
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, status);
    draft.set(Text::Server, server);
    draft.set(Text::Error, change.disk.as_deref().unwrap_or_default());
    let (differences, left_out) = differences(change);
    keep_metadata(
        &mut draft,
        // The order matters, because long metadata is truncated.
        &format!(
            r#"{{"differences":{differences},"differences_left_out":{left_out},"changed":{},"added":{},"removed":{},"duplicates":{}}}"#,
            json!(change.changed),
            json!(change.added),
            json!(change.removed),
            json!(change.duplicates),
        ),
    );
    let is_reported =
        change.tools_differ() || change.disk.is_some() || !change.duplicates.is_empty();
    let mut drafts = drafts(server, change);
    let unusable = change.unusable.iter().map(|(tool, reason)| unusable_schema(tool, reason));
    add(&mut drafts, server, "tools with unusable schemas", unusable.collect());
    is_reported.then_some(draft).into_iter().chain(drafts).map(Entry::from).collect()
}

/// Renders the differences that fit, and counts the others.
fn differences(change: &Change) -> (String, usize) {
    let mut kept = Vec::new();
    let mut left = MAX_DIFFERENCES_BYTES;
    for difference in &change.differences {
        let shown = json!({ "tool": difference.tool, "members": difference.to_json() });
        let Some(rest) = left.checked_sub(shown.to_string().len()) else { break };
        left = rest;
        kept.push(shown);
    }
    let left_out = change.differences.len() - kept.len();
    (json!(kept).to_string(), left_out)
}

fn unusable_schema(tool: &ToolName, reason: &str) -> Draft {
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Warning);
    draft.set(Text::Server, &tool.server);
    draft.set(Text::Tool, &tool.tool);
    draft.set(Text::Error, &format!("its results cannot be validated: {reason}"));
    draft
}

fn server_change(state: &ServerState) -> Draft {
    let status = match state.status {
        // A reason to connect is the end of the last connection.
        ServerStatus::Connecting if !state.reason.is_empty() => Status::Warning,
        ServerStatus::NeedsLogin => Status::Warning,
        ServerStatus::Connected | ServerStatus::Connecting | ServerStatus::Disabled => {
            Status::Success
        }
        ServerStatus::Failed | ServerStatus::Throttled => Status::Error,
    };
    let mut draft = Draft::new(Type::ServerChange, Source::Internal, status);
    draft.set(Text::Server, &state.name);
    draft.set(Text::Error, if status == Status::Error { &state.reason } else { "" });
    let mut metadata = json!({
        "status": state.status.as_str(),
        "transport": state.transport.as_str(),
        "tools": state.tools,
        "protocol_version": state.protocol_version,
        "server_info": state.server_info,
    });
    // The reason for a lost connection or a missing login does not count as an error.
    if let (Some(members), false) =
        (metadata.as_object_mut(), state.reason.is_empty() || status == Status::Error)
    {
        members.insert("reason".to_owned(), json!(state.reason));
    }
    keep_metadata(&mut draft, &metadata.to_string());
    draft
}

/// The record of a started or finished login.
fn login(server: &str, principal: &str, outcome: &LoginOutcome) -> Draft {
    let (status, error, metadata) = match outcome {
        LoginOutcome::Began => (Status::Success, "", json!({"login": "began"})),
        LoginOutcome::Granted(issuer) => {
            (Status::Success, "", json!({"login": "granted", "issuer": issuer}))
        }
        LoginOutcome::Failed(why) => (Status::Error, &**why, json!({"login": "failed"})),
    };
    let mut draft = Draft::new(Type::ServerChange, Source::Api, status);
    draft.set(Text::Server, server);
    draft.set(Text::Principal, principal);
    draft.set(Text::Error, error);
    keep_metadata(&mut draft, &metadata.to_string());
    draft
}

fn keep_metadata(draft: &mut Draft, json: &str) {
    draft.keep(Raw::Metadata, json.as_bytes(), MAX_METADATA_BYTES);
}

/// Maximum number of tools with their own records, per event and kind of change.
const MAX_DETAILED: usize = 100;
/// Maximum number of names in the text of a record.
const MAX_NAMED: usize = 10;

/// Returns the records of new, changed and suspicious definitions of a server.
pub(super) fn drafts(server: &Arc<str>, change: &Change) -> Vec<Draft> {
    let mut drafts = first_seen(server, change);
    let changed =
        change.pinned.iter().filter_map(|(tool, event)| of_pin(server, tool, event, change));
    add(&mut drafts, server, "definitions that changed", changed.collect());
    let found = change.found.iter().map(|(tool, findings)| of_findings(tool, findings));
    add(&mut drafts, server, "tools with findings", found.collect());
    drafts
}

/// Appends up to [`MAX_DETAILED`] records, and one that counts the others.
pub(super) fn add(drafts: &mut Vec<Draft>, server: &Arc<str>, what: &str, mut news: Vec<Draft>) {
    let more = news.len().saturating_sub(MAX_DETAILED);
    news.truncate(MAX_DETAILED);
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

/// Records of tools seen for the first time, one per action; none for tools that are accepted silently.
fn first_seen(server: &Arc<str>, change: &Change) -> Vec<Draft> {
    let what = match change.first_sight {
        FirstSight::Known => "new tools on a known server",
        FirstSight::NewServer(_) => "tools of a new server",
        FirstSight::Lost(_) => "tools of a server whose pins are lost",
    };
    let actions = [ChangeAction::Warn, ChangeAction::Quarantine].into_iter();
    let drafts = actions.filter_map(|action| {
        let seen = change.pinned.iter().filter(|(_, event)| *event == PinEvent::FirstSight(action));
        let names: Vec<&str> = seen.map(|(tool, _)| &**tool).collect();
        let named = names.get(..MAX_NAMED.min(names.len())).unwrap_or_default().join(", ");
        let more = match names.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let mut draft =
            warning(server, "", &with_action(action, &format!("{what}: {named}{more}")));
        keep(&mut draft, &json!({"action": action.as_str(), "first_seen": names}));
        (!names.is_empty()).then_some(draft)
    });
    drafts.collect()
}

/// Adds the consequence to the description of a change. A quarantine comes first, because a long description may be cut.
fn with_action(action: ChangeAction, change: &str) -> String {
    match action {
        ChangeAction::Accept | ChangeAction::Warn => format!("{change}; accepted"),
        ChangeAction::Quarantine => format!(
            "quarantined until an operator approves (mcpproxy tools diff, mcpproxy tools approve): {change}"
        ),
    }
}

fn of_pin(server: &Arc<str>, tool: &Arc<str>, event: &PinEvent, change: &Change) -> Option<Draft> {
    match event {
        // New tools are summarized in one record, which is created elsewhere.
        PinEvent::FirstSight(_) => None,
        // The record of the tool list already includes this change.
        PinEvent::Changed { action: ChangeAction::Accept, .. } => None,
        PinEvent::Changed { grade, parts, action } => {
            let named: Vec<&str> = parts.iter().map(|part| part.part).collect();
            let difference = change.differences.iter().find(|difference| difference.tool == *tool);
            let hints = difference.and_then(|difference| difference.warning());
            let hints = hints.map(|hints| format!("; {hints}")).unwrap_or_default();
            let change = format!("its definition changed ({grade}: {}){hints}", named.join(", "));
            let text = with_action(*action, &change);
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
            let text = with_action(ChangeAction::Quarantine, "scan findings");
            let mut draft = warning(server, tool, &text);
            keep(&mut draft, &json!({"action": ChangeAction::Quarantine.as_str()}));
            Some(draft)
        }
        PinEvent::HeldElsewhere => Some(held_elsewhere(server, tool)),
        PinEvent::Restored => {
            let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Success);
            draft.set(Text::Server, server);
            draft.set(Text::Tool, tool);
            keep(&mut draft, &json!({"released": true, "reason": "the change was reverted"}));
            Some(draft)
        }
    }
}

/// Record of a tool that is quarantined because another node of the fleet quarantined its definition.
pub(super) fn held_elsewhere(server: &str, tool: &str) -> Draft {
    let change = "its definition is quarantined on another node of the fleet";
    let text = with_action(ChangeAction::Quarantine, change);
    let mut draft = warning(server, tool, &text);
    keep(&mut draft, &json!({"action": ChangeAction::Quarantine.as_str(), "shared": true}));
    draft
}

/// Record of a tool that is released because another node of the fleet had pinned its definition.
pub(super) fn known_elsewhere(server: &str, tool: &str) -> Draft {
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Success);
    draft.set(Text::Server, server);
    draft.set(Text::Tool, tool);
    let reason = "its definition is pinned on another node of the fleet";
    keep(&mut draft, &json!({"released": true, "reason": reason}));
    draft
}

fn of_findings(tool: &ToolName, findings: &[ScanFinding]) -> Draft {
    let shown: Vec<String> = findings.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let mut draft = warning(&tool.server, &tool.tool, &format!("scan: {}", shown.join("; ")));
    keep(&mut draft, &json!({ "findings": findings }));
    draft
}

/// Maximum number of warnings logged per event: a server may list thousands of tools.
const MAX_LOGGED: usize = 20;

/// Stores the records of an event, and logs its warnings up to [`MAX_LOGGED`] lines (FR-A9).
pub(super) fn put(log: &Activity, entries: Vec<Entry>) {
    let mut warnings = 0;
    for entry in entries {
        let text = |which| entry.draft.text(which);
        let (server, tool, error) = (text(Text::Server), text(Text::Tool), text(Text::Error));
        match logged(&entry.draft, &mut warnings) {
            Logged::Whole => peer_line!(warn, LinePeer::Server(server), %server, %tool, "{error}"),
            Logged::Last => {
                peer_line!(warn, LinePeer::Server(server), %server, "further warnings are in the activity log");
            }
            Logged::Not => {}
        }
        log.note(entry);
    }
}

/// Decision whether a record is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    Whole,
    /// The last logged line of an event, which refers to the activity log for the rest.
    Last,
    Not,
}

/// Decides whether a record is logged. `warnings` counts the warnings of one event.
fn logged(draft: &Draft, warnings: &mut usize) -> Logged {
    if draft.status != Status::Warning || draft.text(Text::Error).is_empty() {
        return Logged::Not;
    }
    *warnings += 1;
    if *warnings < MAX_LOGGED {
        Logged::Whole
    } else if *warnings == MAX_LOGGED {
        Logged::Last
    } else {
        Logged::Not
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_activity::record::{Source, Type};
    use mcpproxy_catalog::grade::Grade;
    use mcpproxy_catalog::scan::{FindingLevel, ScanRule};
    use mcpproxy_catalog::{Catalog, DiscoveredTool, ServerSettings, Settings};
    use mcpproxy_upstream::supervisor::Transport;

    use super::*;

    #[test]
    fn fr_a9_each_unusable_schema_yields_one_warning() {
        let tool = ToolName::parse("github:search").unwrap();
        let change = Change {
            added: vec!["search".into()],
            unusable: vec![(tool, "$ref is remote".into())],
            ..Change::default()
        };
        let entries = catalog_changes(&"github".into(), &change);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].draft.status, Status::Success);
        let warned = &entries[1].draft;
        assert_eq!((warned.kind, warned.status), (Type::CatalogChange, Status::Warning));
        assert_eq!(warned.text(Text::Tool), "search");
        assert!(warned.text(Text::Error).contains("$ref is remote"));
    }

    #[test]
    fn act_12_constantly_changing_server_causes_few_records_and_the_rest_are_counted() {
        let (budgets, start) = (RecordBudgets::default(), Instant::now());
        let changes = |server: &str, number: usize, now| {
            let state = || ServerState { name: server.into(), ..state(ServerStatus::Failed) };
            let entries = (0..number).flat_map(|_| entries(&Event::Server(state()))).collect();
            budgets.within(entries, now)
        };
        let error = |entry: &Entry| entry.draft.text(Text::Error).to_owned();
        let first = changes("flaps", 3000, start);
        assert_eq!(first.len(), BURST as usize + 1);
        let omitted = "the server changes too often: further records are left out and counted";
        assert_eq!(first.last().map(error).as_deref(), Some(omitted));
        assert_eq!(changes("flaps", 10, start).len(), 0);
        assert_eq!(changes("other", 1, start).len(), 1, "another server has its own budget");
        let later = changes("flaps", 10, start + INTERVAL);
        let counted = "the server changes too often: 2010 records were left out";
        assert_eq!(later.iter().map(error).collect::<Vec<_>>(), [counted, "it ended"]);
    }

    #[test]
    fn unchanged_tool_list_yields_no_record() {
        assert!(catalog_changes(&"github".into(), &Change::default()).is_empty());
    }

    fn metadata(draft: &Draft) -> String {
        String::from_utf8(draft.payload(Raw::Metadata).bytes.to_vec()).unwrap()
    }

    fn state(status: ServerStatus) -> ServerState {
        ServerState {
            name: "github".into(),
            transport: Transport::Stdio,
            status,
            reason: "it ended".into(),
            tools: 3,
            since: std::time::SystemTime::UNIX_EPOCH,
            protocol_version: Some("2025-11-25".into()),
            server_info: None,
            settled: true,
        }
    }

    #[test]
    fn server_state_yields_one_record_with_an_error_on_failure_and_a_warning_on_loss() {
        for (status, expected, error) in [
            (ServerStatus::Connected, Status::Success, ""),
            (ServerStatus::Connecting, Status::Warning, ""),
            (ServerStatus::Disabled, Status::Success, ""),
            (ServerStatus::Failed, Status::Error, "it ended"),
        ] {
            let entries = entries(&Event::Server(state(status)));
            let [entry] = entries.as_slice() else { panic!("{entries:?}") };
            let draft = &entry.draft;
            assert_eq!((draft.kind, draft.status), (Type::ServerChange, expected), "{status:?}");
            assert_eq!((draft.text(Text::Server), draft.text(Text::Error)), ("github", error));
            let metadata: serde_json::Value = serde_json::from_str(&metadata(draft)).unwrap();
            let mut expected = json!({
                "status": status.as_str(), "transport": "stdio", "tools": 3,
                "protocol_version": "2025-11-25", "server_info": null,
            });
            if error.is_empty() {
                expected["reason"] = json!("it ended");
            }
            assert_eq!(metadata, expected);
        }
    }

    /// Change between two tool lists; `before` and `now` are extra members of each tool.
    fn relisted(tools: usize, before: &str, now: &str) -> Change {
        let listed = |more: &str| {
            let tool = |at| format!(r#"{{"name":"t{at}","inputSchema":{{}}{more}}}"#);
            let parse = |json: String| DiscoveredTool::parse(serde_json::from_str(&json).unwrap());
            (0..tools).map(|at| parse(tool(at)).unwrap()).collect::<Vec<_>>()
        };
        let servers = [(Arc::from("github"), ServerSettings::default())];
        let settings = Settings { servers: servers.into(), ..Settings::default() };
        let catalog = Catalog::new(settings);
        catalog.replace_server("github", listed(before));
        catalog.replace_server("github", listed(now))
    }

    #[test]
    fn changed_hint_yields_a_warning() {
        let read_only = r#","annotations":{"readOnlyHint":true}"#;
        let entries = catalog_changes(&"github".into(), &relisted(1, "", read_only));
        let [set, tool] = entries.as_slice() else { panic!("{entries:?}") };
        assert_eq!(set.draft.status, Status::Success);
        assert_eq!((tool.draft.status, tool.draft.text(Text::Tool)), (Status::Warning, "t0"));
        assert!(tool.draft.text(Text::Error).contains("readOnlyHint"), "{tool:?}");
        assert!(metadata(&tool.draft).contains("readOnlyHint"));
        let words = r#","description":"new words""#;
        let entries = catalog_changes(&"github".into(), &relisted(1, "", words));
        let [_, tool] = entries.as_slice() else { panic!("{entries:?}") };
        let expected = "its definition changed (text: description); accepted";
        assert_eq!(tool.draft.text(Text::Error), expected);
    }

    #[test]
    fn differences_beyond_the_limit_are_counted_and_followed_by_names() {
        let words = format!(r#","description":"{}""#, "w".repeat(400));
        let entries = catalog_changes(&"github".into(), &relisted(2000, "", &words));
        let text = metadata(&entries[0].draft);
        assert!(text.len() <= MAX_METADATA_BYTES, "{}", text.len());
        let kept = text.matches(r#""members":"#).count();
        assert!(kept > 0 && kept * 400 <= MAX_DIFFERENCES_BYTES, "{kept}");
        assert!(text.contains(&format!(r#""differences_left_out":{}"#, 2000 - kept)), "{kept}");
        assert!(text.contains(r#""changed":["t0","#));
    }

    #[test]
    fn unwritable_catalog_yields_a_warning_with_its_cause() {
        let change = Change { disk: Some("no space left".into()), ..Change::default() };
        let entries = catalog_changes(&"github".into(), &change);
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        let actual = (entry.draft.status, entry.draft.text(Text::Error));
        assert_eq!(actual, (Status::Warning, "no space left"));
    }

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
    fn definition_change_is_recorded_with_its_grade_unless_accepted() {
        for (action, text) in [
            (ChangeAction::Accept, None),
            (ChangeAction::Warn, Some("its definition changed (widened: inputSchema); accepted")),
        ] {
            let change =
                Change { pinned: vec![("x".into(), changed(action))], ..Change::default() };
            let expected: Vec<_> =
                text.map(|text| ("x".to_owned(), text.to_owned())).into_iter().collect();
            assert_eq!(texts(&change), expected);
        }
    }

    #[test]
    fn changes_beyond_the_limit_are_counted() {
        let event = |at: usize| (Arc::from(format!("t{at}")), changed(ChangeAction::Quarantine));
        let change =
            Change { pinned: (0..MAX_DETAILED + 7).map(event).collect(), ..Change::default() };
        let texts = texts(&change);
        assert_eq!(texts.len(), MAX_DETAILED + 1);
        assert_eq!(texts[MAX_DETAILED].1, "7 more definitions that changed at the same time");
    }

    #[test]
    fn new_tools_share_one_record_and_each_finding_names_its_tool() {
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
            ("", "new tools on a known server: a, b; accepted"),
            ("x", "scan: order (high) in description: 'do not tell the user'"),
        ];
        assert_eq!(texts(&change), expected.map(|(tool, text)| (tool.to_owned(), text.to_owned())));
    }

    fn draft(status: Status, error: &str) -> Draft {
        let mut draft = Draft::new(Type::CatalogChange, Source::Internal, status);
        draft.set(Text::Error, error);
        draft
    }

    #[test]
    fn logged_warnings_are_bounded_and_the_last_line_states_the_omission() {
        let (warning, mut warnings) = (draft(Status::Warning, "its schema"), 0);
        let lines: Vec<Logged> = (0..100).map(|_| logged(&warning, &mut warnings)).collect();
        assert_eq!(lines[..MAX_LOGGED - 1], [Logged::Whole; MAX_LOGGED - 1]);
        assert_eq!(lines[MAX_LOGGED - 1], Logged::Last);
        assert!(lines[MAX_LOGGED..].iter().all(|line| *line == Logged::Not));
    }

    #[test]
    fn only_warnings_with_a_text_are_logged() {
        let mut warnings = 0;
        for (status, error) in [(Status::Success, "x"), (Status::Error, "x"), (Status::Warning, "")]
        {
            assert_eq!(logged(&draft(status, error), &mut warnings), Logged::Not);
        }
        assert_eq!(warnings, 0, "they do not count as lines");
    }
}
