//! The logs that a question is asked of: this node's own, and the copies of the others' that it keeps; and what is not among
//! them, so that an answer says what it is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::config::IndexRole;
use super::fleet_index::{FleetIndex, FollowStatus};
use super::record_questions::{HeldLog, Holdings, LogRange};
use crate::activity::merged::MergedView;
use crate::activity::view::View;
use crate::activity::{Activity, QueryError, StoreError};

/// What an answer about a fleet covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FleetCoverage {
    /// Something is missing.
    pub partial: bool,
    /// The nodes whose logs were asked.
    pub nodes: Vec<String>,
    /// What is missing, and why: nodes by name; `shards` for those of other index nodes; `store` where it cannot be asked.
    pub missing: BTreeMap<String, String>,
}

impl FleetCoverage {
    /// Names what is missing of a node, each reason once.
    pub fn lacks(&mut self, node: &str, why: &str) {
        let told = self.missing.entry(node.to_owned()).or_default();
        if !told.split("; ").any(|said| said == why) {
            if !told.is_empty() {
                told.push_str("; ");
            }
            told.push_str(why);
        }
        self.partial = true;
    }
}

/// Parts of the logs that a node has.
pub struct RangedLogs {
    /// These parts.
    pub view: MergedView,
    /// What was meant of a log and retention has removed: the first and the last.
    pub removed: Option<(u64, u64)>,
}

/// The logs that a question is asked of. Without a fleet, the node's own.
#[derive(Clone, Debug)]
pub struct FleetLogs {
    activity: Activity,
    index: Option<Arc<FleetIndex>>,
    /// The node that is meant, by its name or the id of its log; `None`: all.
    node: Option<String>,
}

impl FleetLogs {
    /// The log `activity`, and those of `index` where there is a fleet; of `node` alone, if it is given.
    #[must_use]
    pub fn new(activity: Activity, index: Option<Arc<FleetIndex>>, node: Option<String>) -> Self {
        Self { activity, index, node }
    }

    /// This node's own log.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The node that is meant, by its name or the id of its log; `None`: all.
    #[must_use]
    pub fn wanted(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// What is kept here of the other nodes.
    #[must_use]
    pub fn index(&self) -> Option<&Arc<FleetIndex>> {
        self.index.as_ref()
    }

    /// What this node has. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn holdings(&self) -> Result<Holdings, QueryError> {
        let own = self.activity.view()?;
        let own = HeldLog {
            node: self.activity.node_name().unwrap_or_default().to_owned(),
            log: own.node().to_string(),
            last: own.next() - 1,
            ..HeldLog::default()
        };
        let report = self.index.as_ref().map(|index| index.report());
        let copies = report.into_iter().flat_map(|report| report.nodes).map(|node| HeldLog {
            lacks: lost(&node.status),
            node: node.node,
            log: node.log,
            last: node.status.last,
            behind: node.status.behind_records,
        });
        Ok(Holdings { own, copies: copies.collect() })
    }

    /// The parts of its logs that are meant, with every record of this node whose reply ended before. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn ranged(&self, ranges: &[LogRange]) -> Result<RangedLogs, QueryError> {
        let own = self.activity.node_name();
        let has_own = own.is_some_and(|own| ranges.iter().any(|range| range.node == *own));
        let mut views = Vec::new();
        if has_own {
            views.push(self.activity.view()?);
        }
        if let Some(index) = self.index.as_ref().filter(|_| ranges.len() > usize::from(has_own)) {
            views.extend(index.views()?);
        }
        let mut removed = None;
        let part = |view: View| {
            let range = ranges.iter().find(|range| view.name() == Some(&range.node))?;
            // Of a log from its beginning on retention has taken nothing that is still to be read.
            if range.after > 0 && view.first() > range.after + 1 {
                removed = removed.or(Some((range.after + 1, (view.first() - 1).min(range.last))));
            }
            let part = view.after(range.after).up_to(range.last);
            (part.first() < part.next()).then_some(part)
        };
        let view = MergedView::new(views.into_iter().filter_map(part).collect());
        Ok(RangedLogs { view, removed })
    }

    /// A copy that turned out to be damaged is made anew.
    pub fn note_damage(&self, error: &QueryError) {
        if let (QueryError::Store(StoreError::Damaged { file, .. }), Some(index)) =
            (error, &self.index)
        {
            index.suspect_file(file);
        }
    }

    /// The logs as they are now, with every record of this node whose reply ended before. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn view(&self) -> Result<MergedView, QueryError> {
        self.with(self.activity.view()?)
    }

    /// The logs as they are stored now. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn stored(&self) -> Result<MergedView, QueryError> {
        self.with(self.activity.stored()?)
    }

    fn with(&self, own: View) -> Result<MergedView, QueryError> {
        let mut views = vec![own];
        if let Some(index) = &self.index {
            views.extend(index.views()?);
        }
        if let Some(node) = &self.node {
            views.retain(|view| view.name() == Some(node) || view.node().to_string() == *node);
        }
        Ok(MergedView::new(views))
    }

    /// Asks something; a copy that turns out to be damaged is made anew.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&MergedView) -> Result<T, StoreError>,
    ) -> Result<T, QueryError> {
        let answer = self.view().and_then(|view| Ok(question(&view)?));
        if let Err(error) = &answer {
            self.note_damage(error);
        }
        answer
    }

    /// What an answer covers; `None` where there is no fleet.
    #[must_use]
    pub fn coverage(&self) -> Option<FleetCoverage> {
        let index = self.index.as_ref()?;
        let own = self.activity.node_name().map(|name| name.to_string()).unwrap_or_default();
        let report = index.report();
        let mut covered = FleetCoverage::default();
        let is_meant = |name: &str, log: &str| {
            self.node.as_deref().is_none_or(|node| node == name || node == log)
        };
        let own_log = self.activity.stored().map(|view| view.node().to_string());
        if is_meant(&own, own_log.as_deref().unwrap_or_default()) {
            covered.nodes.push(own);
        }
        for node in &report.nodes {
            if is_meant(&node.node, &node.log) {
                covered.nodes.push(node.node.clone());
                if let Some(why) = lacks(&node.status) {
                    covered.missing.insert(node.node.clone(), why);
                }
            }
        }
        for (name, why) in &report.not_followed {
            if is_meant(name, "") {
                covered.missing.insert(name.clone(), why.clone());
            }
        }
        let others = match index.role() {
            IndexRole::None => {
                Some("this node keeps no index of the other nodes (cluster.index)".to_owned())
            }
            IndexRole::Whole => None,
            role @ IndexRole::Shard { .. } => {
                Some(format!("this node keeps shard {role} of the other nodes"))
            }
        };
        let is_answered = self.node.is_some() && !covered.nodes.is_empty();
        if let Some(why) = others.filter(|_| !is_answered) {
            covered.missing.insert("shards".into(), why);
        }
        if let Some(error) = report.error.filter(|_| !is_answered) {
            covered.missing.insert("store".into(), error);
        }
        if let Some(node) = self.node.as_ref().filter(|_| covered.nodes.is_empty()) {
            let why = || "there is no such node in this index".to_owned();
            covered.missing.entry(node.clone()).or_insert_with(why);
        }
        covered.nodes.sort();
        covered.partial = !covered.missing.is_empty();
        Some(covered)
    }
}

/// What an index does not have of a node.
fn lacks(status: &FollowStatus) -> Option<String> {
    let mut why = Vec::new();
    if status.behind_records > 0 {
        why.push(format!("{} records are in the store and not read yet", status.behind_records));
    }
    why.extend(lost(status));
    why.extend(status.error.clone());
    (!why.is_empty()).then(|| why.join("; "))
}

/// What it will not have, either.
fn lost(status: &FollowStatus) -> Option<String> {
    let mut why = Vec::new();
    for gap in &status.gaps {
        why.push(format!("records {} to {} are missing", gap.first, gap.last));
    }
    if status.more {
        why.push("and more".into());
    }
    if status.has_stopped {
        why.push("so much is wrong in the store that it is followed no further".into());
    }
    (!why.is_empty()).then(|| why.join("; "))
}
