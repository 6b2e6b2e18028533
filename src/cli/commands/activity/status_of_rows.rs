//! `--status` of the activity commands: selects by the status of calls, which rows show.

use super::row::is_waiting;
use crate::args::RecordFilters;
use crate::backend::{Backend, target};
use crate::error::CommandError;
use crate::format::{list, text};
use crate::output;
use http::StatusCode;
use mcpproxy_activity::Type;
use serde_json::Value;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Types that a status selects, as a value of the filter by type: no decisions, whose calls have the status, and no changes of
/// the config.
static CALLS: LazyLock<String> = LazyLock::new(|| {
    let types = Type::ALL.iter();
    let types = types.filter(|it| !matches!(it, Type::PolicyDecision | Type::ConfigChange));
    types.map(|it| it.as_str()).collect::<Vec<_>>().join(",")
});

/// Filter by status without one by type: it selects rows by the status that they show, which is that of the call. Decisions and
/// requests for approval have a status of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusOfRows {
    /// Whether calls with a warning are wanted. They keep the status of their outcome, so their decisions are looked for.
    pub(super) warned: bool,
}

impl StatusOfRows {
    pub(super) fn of(filters: &RecordFilters) -> Option<Self> {
        let status = filters.status.as_deref().filter(|_| filters.kind.is_none())?;
        Some(Self { warned: status.split(',').any(|word| word == "warning") })
    }

    /// Types that the filters select; `None` for all. A status selects no decisions, except the warnings.
    pub(super) fn types(filters: &RecordFilters) -> Option<&str> {
        let calls = Self::of(filters).filter(|it| !it.warned).map(|_| CALLS.as_str());
        filters.kind.as_deref().or(calls)
    }

    /// Statuses that the filters select in the log; `None` for all. A decision about a rejected call is `blocked` there.
    pub(super) fn statuses(filters: &RecordFilters) -> Option<&str> {
        match Self::is_of_decisions(filters) {
            true => Some("rejected,blocked"),
            false => filters.status.as_deref(),
        }
    }

    /// Whether decisions are selected by the status of their calls.
    pub(super) fn is_of_decisions(filters: &RecordFilters) -> bool {
        filters.kind.as_deref() == Some("policy_decision")
            && filters.status.as_deref() == Some("rejected")
    }

    /// Whether a selected record may have a row, or stand for one.
    pub(super) fn shows(self, record: &Value) -> bool {
        match &*text(record, "/type") {
            "policy_decision" => self.warned && text(record, "/status") == "warning",
            "approval" => !is_waiting(record),
            _ => true,
        }
    }

    /// Replaces decisions by the calls that they are about.
    pub(super) async fn of_calls(
        self,
        found: &str,
        backend: &Backend,
    ) -> Result<String, CommandError> {
        let mut found = output::parse(found)?;
        let mut records = Vec::new();
        let selected = list(&found, "/activities").iter();
        let mut calls: HashSet<_> = selected.map(|it| text(it, "/id").into_owned()).collect();
        for record in list(&found, "/activities").iter().filter(|record| self.shows(record)) {
            let call = match &*text(record, "/type") {
                "policy_decision" => text(record, "/parent_id").into_owned(),
                _ => String::new(),
            };
            if call.is_empty() {
                records.push(record.clone());
            } else if calls.insert(call.clone()) {
                let path = target(&["activity", &call], &[]);
                match backend.get(&path).await {
                    Ok(response) => {
                        let call = output::parse(response.json()?)?;
                        records.push(call.get("activity").cloned().unwrap_or_default());
                    }
                    // The call is no longer retained.
                    Err(failure) if failure.status == Some(StatusCode::NOT_FOUND) => {
                        records.push(record.clone());
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        if let Some(activities) = found.get_mut("activities") {
            *activities = Value::Array(records);
        }
        Ok(found.to_string())
    }
}
