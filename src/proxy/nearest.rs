//! The tools that a name may have been meant for, where there is none of that name. Pure.

use crate::catalog::Snapshot;
use crate::policy::Visibility;
use crate::tool::{ToolName, Trust};

/// Most names that are told.
const MAX_NEAREST: usize = 3;
/// Most tools that are compared.
const MAX_COMPARED: usize = 5000;
/// Longest name that is compared, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// How alike two names are at least, from 0 to 1.
const LEAST_ALIKE: f64 = 0.75;

/// The visible tools whose names are most like `name`, the nearest first; none where none is like it.
#[must_use]
pub(super) fn nearest_tools(
    snapshot: &Snapshot,
    visible: Visibility<'_>,
    name: &str,
) -> Vec<ToolName> {
    if name.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    let (server, tool) = ToolName::split(name).unwrap_or(("", name));
    let likeness = |known: &ToolName| {
        let tools = strsim::jaro_winkler(&known.tool, tool);
        let servers = if *known.server == *server { 1.0 } else { 0.0 };
        // The right server counts, and the tool's own name counts more.
        (tools, 0.9 * tools + 0.1 * servers)
    };
    let known = snapshot.tools().iter().take(MAX_COMPARED);
    let shown = known.filter(|it| it.trust == Trust::Given && visible.tool(it));
    let alike = shown.filter_map(|it| {
        let (tools, all) = likeness(&it.name);
        (tools >= LEAST_ALIKE).then_some((all, &it.name))
    });
    let mut alike: Vec<_> = alike.collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    alike.into_iter().take(MAX_NEAREST).map(|(_, name)| name.clone()).collect()
}
