//! What happened to upstreams, put on record, and what of it is logged as well.

use crate::activity::Activity;
use crate::activity::record::{Entry, Status, Text};

/// Warnings of one event that are logged one by one: a server may list thousands of tools.
const MAX_TOLD: usize = 20;

/// Puts what one event left on record; what it warns about is logged as well, up to [`MAX_TOLD`]
/// (FR-A9).
pub(super) fn put(log: &Activity, entries: Vec<Entry>) {
    let mut warnings = 0;
    for entry in entries {
        let text = |which| entry.draft.text(which);
        let (server, tool, error) = (text(Text::Server), text(Text::Tool), text(Text::Error));
        if entry.draft.status == Status::Warning && !error.is_empty() {
            warnings += 1;
            match warnings {
                ..MAX_TOLD => tracing::warn!(%server, %tool, "{error}"),
                MAX_TOLD => tracing::warn!(%server, "more such warnings are on record"),
                _ => {}
            }
        }
        log.note(entry);
    }
}
