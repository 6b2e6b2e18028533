//! What happens to servers and their tools, as records.
//!
//! Pure: an event of an upstream in, entries for the activity log out.

use std::sync::Arc;

use serde_json::json;

use super::definition_records;
use crate::activity::record::{Draft, Entry, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::catalog::Change;
use crate::tool::ToolName;
use crate::upstream::supervisor::{Event, LoginOutcome, ServerState, Status as ServerStatus};

/// Bytes of a record that tell what is another about tools; the rest of it tells which.
const MAX_DIFFERENCES_BYTES: usize = MAX_METADATA_BYTES / 2;

/// The records an event leaves: one for the server or its set of tools, those of the tools whose definition is new or
/// another ([`definition_records`]), and one for each schema that cannot be used (FR-A9).
#[must_use]
pub(super) fn entries(event: &Event) -> Vec<Entry> {
    match event {
        Event::Server(state) => vec![server_change(state).into()],
        Event::Catalog { server, change } => catalog_changes(server, change),
        Event::Login { server, principal, outcome } => {
            vec![login(server, principal, outcome).into()]
        }
    }
}

/// The records of a changed set of tools; none if nothing changed.
#[must_use]
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
        // In this order, since a long list is cut.
        &format!(
            r#"{{"differences":{differences},"differences_left_out":{left_out},"changed":{},"added":{},"removed":{},"duplicates":{}}}"#,
            json!(change.changed),
            json!(change.added),
            json!(change.removed),
            json!(change.duplicates),
        ),
    );
    let definitions = definition_records::drafts(server, change);
    let unusable = change.unusable.iter().map(|(tool, reason)| unusable_schema(tool, reason));
    std::iter::once(draft).chain(definitions).chain(unusable).map(Entry::from).collect()
}

/// What is another about the tools that changed, as far as there is room, and for how many there
/// was none.
fn differences(change: &Change) -> (String, usize) {
    let mut kept = Vec::new();
    let mut room = MAX_DIFFERENCES_BYTES;
    for difference in &change.differences {
        let told = json!({ "tool": difference.tool, "members": difference.to_json() });
        let Some(left) = room.checked_sub(told.to_string().len()) else { break };
        room = left;
        kept.push(told);
    }
    let left_out = change.differences.len() - kept.len();
    (json!(kept).to_string(), left_out)
}

fn unusable_schema(tool: &ToolName, reason: &str) -> Draft {
    let mut draft = Draft::new(Type::CatalogChange, Source::Internal, Status::Warning);
    draft.set(Text::Server, &tool.server);
    draft.set(Text::Tool, &tool.tool);
    draft.set(Text::Error, &format!("its answers cannot be validated: {reason}"));
    draft
}

fn server_change(state: &ServerState) -> Draft {
    let status = match state.status {
        ServerStatus::Connected | ServerStatus::Connecting | ServerStatus::Disabled => {
            Status::Success
        }
        ServerStatus::Failed => Status::Error,
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
    // Why it was lost, or what its login lacks, is no error.
    if let (Some(members), false) =
        (metadata.as_object_mut(), state.reason.is_empty() || status == Status::Error)
    {
        members.insert("reason".to_owned(), json!(state.reason));
    }
    keep_metadata(&mut draft, &metadata.to_string());
    draft
}

/// A login that somebody asked for, or what it came to.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings};
    use crate::upstream::supervisor::Transport;

    #[test]
    fn fr_a9_each_unusable_schema_is_one_warning() {
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
    fn an_unchanged_set_leaves_no_record() {
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
    fn a_servers_state_is_one_record_and_its_reason_an_error_only_where_it_failed() {
        for (status, expected, error) in [
            (ServerStatus::Connected, Status::Success, ""),
            (ServerStatus::Connecting, Status::Success, ""),
            (ServerStatus::Disabled, Status::Success, ""),
            (ServerStatus::Failed, Status::Error, "it ended"),
        ] {
            let entries = entries(&Event::Server(state(status)));
            let [entry] = entries.as_slice() else { panic!("{entries:?}") };
            let draft = &entry.draft;
            assert_eq!((draft.kind, draft.status), (Type::ServerChange, expected), "{status:?}");
            assert_eq!((draft.text(Text::Server), draft.text(Text::Error)), ("github", error));
            let metadata: serde_json::Value = serde_json::from_str(&metadata(draft)).unwrap();
            let mut told = json!({
                "status": status.as_str(), "transport": "stdio", "tools": 3,
                "protocol_version": "2025-11-25", "server_info": null,
            });
            if error.is_empty() {
                told["reason"] = json!("it ended");
            }
            assert_eq!(metadata, told);
        }
    }

    /// What a server's second list changes of its first, in which each tool has that `more`.
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
    fn a_hint_that_is_another_is_a_warning_of_its_own() {
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
        let told = "its definition changed (text: description); taken over";
        assert_eq!(tool.draft.text(Text::Error), told);
    }

    #[test]
    fn differences_that_have_no_room_are_counted_and_names_follow_them() {
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
    fn a_set_that_could_not_be_written_is_a_warning_with_its_cause() {
        let change = Change { disk: Some("no space left".into()), ..Change::default() };
        let entries = catalog_changes(&"github".into(), &change);
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        let told = (entry.draft.status, entry.draft.text(Text::Error));
        assert_eq!(told, (Status::Warning, "no space left"));
    }
}
