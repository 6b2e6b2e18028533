//! What happens to servers and their tools, as records.
//!
//! Pure: an event of an upstream in, entries for the activity log out.

use std::sync::Arc;

use serde_json::json;

use crate::activity::record::{Draft, Entry, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::catalog::snapshot::Change;
use crate::tool::ToolName;
use crate::upstream::supervisor::{Event, ServerState, Status as ServerStatus};

/// The records an event leaves: one for the server or its set of tools, and one for each schema
/// that cannot be used (FR-A9).
#[must_use]
pub(super) fn entries(event: &Event) -> Vec<Entry> {
    match event {
        Event::Server(state) => vec![server_change(state).into()],
        Event::Catalog { server, change } => catalog_changes(server, change),
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
    keep_metadata(
        &mut draft,
        &json!({
            "added": change.added,
            "removed": change.removed,
            "changed": change.changed,
            "duplicates": change.duplicates,
        }),
    );
    let unusable = change.unusable.iter().map(|(tool, reason)| unusable_schema(tool, reason));
    std::iter::once(draft).chain(unusable).map(Entry::from).collect()
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
    keep_metadata(
        &mut draft,
        &json!({
            "status": state.status.as_str(),
            "transport": state.transport.as_str(),
            "tools": state.tools,
            "protocol_version": state.protocol_version,
            "server_info": state.server_info,
        }),
    );
    draft
}

fn keep_metadata(draft: &mut Draft, value: &serde_json::Value) {
    draft.keep(Raw::Metadata, value.to_string().as_bytes(), MAX_METADATA_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
