//! Logs available on this node: its own and its index of other nodes' logs, with answers to peers' queries about them.
//!
//! [`FleetLogs`] selects the logs of a query, and reports what is missing from them ([`FleetCoverage`]).
//!
//! [`FleetIndex`] holds copies of other nodes' logs, filled by the follower.
//!
//! [`answer`] answers another node's query from these logs, without asking a third node. It blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use mcpproxy_activity::codec::put_record;
use mcpproxy_activity::merged::{ForwardPlace, MergedView};
use mcpproxy_activity::replica::ReplicaReader;
use mcpproxy_activity::stats::{BUCKET_US, Stats};
use mcpproxy_activity::view::View;
use mcpproxy_activity::{
    Activity, Filter, From, Id, Page, Payloads, PortionLimit, QueryError, Record, StoreError,
};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::ToSchema;

use crate::chain::check::FaultFound;
use crate::chain::follow::FollowedGap;
use crate::config::IndexRole;
use crate::record_questions::{
    AnswerHead, FilterSent, HeldLog, Holdings, LogRange, MAX_ASKED_BYTES, RecordQuestion,
    period_named,
};

/// Coverage of a fleet-wide answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FleetCoverage {
    /// True if something is missing.
    pub partial: bool,
    /// Nodes whose logs were queried.
    pub nodes: Vec<String>,
    /// Reasons for missing data by node name; `shards` for other index nodes; `store` if the store is
    /// unavailable.
    pub missing: BTreeMap<String, String>,
}

impl FleetCoverage {
    /// Adds a reason for a node, unless it is already listed.
    pub(crate) fn lacks(&mut self, node: &str, why: &str) {
        let reported = self.missing.entry(node.to_owned()).or_default();
        if !reported.split("; ").any(|known| known == why) {
            if !reported.is_empty() {
                reported.push_str("; ");
            }
            reported.push_str(why);
        }
        self.partial = true;
    }
}

/// Nodes that claim the same log, so that their records cannot be distinguished. `held` lists nodes and log ids.
pub(crate) fn twins<'a>(
    held: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<&'a str, String> {
    let mut logs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (node, log) in held.filter(|(node, log)| !node.is_empty() && !log.is_empty()) {
        logs.entry(log).or_default().insert(node);
    }
    let twins = logs.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    let each = twins.flat_map(|(log, nodes)| {
        let names = nodes.iter().copied().collect::<Vec<_>>().join(" and ");
        let why = format!(
            "{names} have the same log {log}: records with equal ids may be missing here, see `mcpproxy activity verify --store`"
        );
        nodes.into_iter().map(move |node| (node, why.clone())).collect::<Vec<_>>()
    });
    each.collect()
}

/// Requested ranges of the available logs.
pub(crate) struct RangedLogs {
    /// View restricted to these ranges.
    pub view: MergedView,
    /// First and last requested record of a log that retention has removed.
    pub removed: Option<(u64, u64)>,
}

/// Logs that a query covers. Without a fleet, only the node's own.
#[derive(Clone, Debug)]
pub struct FleetLogs {
    activity: Activity,
    index: Option<Arc<FleetIndex>>,
    /// Requested node by name or log id; `None` for all.
    node: Option<String>,
}

impl FleetLogs {
    /// Covers the log `activity` and, in a fleet, the logs in `index`. If `node` is given, only the logs of this node
    /// are covered.
    pub fn new(activity: Activity, index: Option<Arc<FleetIndex>>, node: Option<String>) -> Self {
        Self { activity, index, node }
    }

    /// This node's own log.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Requested node by name or log id; `None` for all.
    pub(crate) fn wanted(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Copies of other nodes' logs.
    pub(crate) fn index(&self) -> Option<&Arc<FleetIndex>> {
        self.index.as_ref()
    }

    /// Logs available on this node. Blocks.
    pub(crate) fn holdings(&self) -> Result<Holdings, QueryError> {
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

    /// Requested ranges of the logs, including every record of this node whose reply has ended. Blocks.
    pub(crate) fn ranged(&self, ranges: &[LogRange]) -> Result<RangedLogs, QueryError> {
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
            // A range that starts at the beginning of the log does not count as a request for records that retention
            // removed.
            if range.after > 0 && view.first() > range.after + 1 {
                removed = removed.or(Some((range.after + 1, (view.first() - 1).min(range.last))));
            }
            let part = view.after(range.after).up_to(range.last);
            (part.first() < part.next()).then_some(part)
        };
        let view = MergedView::new(views.into_iter().filter_map(part).collect());
        Ok(RangedLogs { view, removed })
    }

    /// Schedules the rebuild of a copy if this error shows that it is damaged.
    pub(crate) fn note_damage(&self, error: &QueryError) {
        if let (QueryError::Store(StoreError::Damaged { file, .. }), Some(index)) =
            (error, &self.index)
        {
            index.suspect_file(file);
        }
    }

    /// All logs, including every record of this node whose reply has ended. Blocks.
    pub(crate) fn view(&self) -> Result<MergedView, QueryError> {
        self.with(self.activity.view()?)
    }

    /// All logs as durably stored. Blocks.
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

    /// Runs a query; schedules the rebuild of a copy that turns out to be damaged.
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

    /// Coverage of the logs; `None` without a fleet.
    pub fn coverage(&self) -> Option<FleetCoverage> {
        let index = self.index.as_ref()?;
        let own = self.activity.node_name().map(|name| name.to_string()).unwrap_or_default();
        let report = index.report();
        let mut covered = FleetCoverage::default();
        let is_meant = |name: &str, log: &str| {
            self.node.as_deref().is_none_or(|node| node == name || node == log)
        };
        let own_log = self.activity.stored().map(|view| view.node().to_string());
        let own_log = own_log.unwrap_or_default();
        if is_meant(&own, &own_log) {
            covered.nodes.push(own.clone());
        }
        for node in &report.nodes {
            if is_meant(&node.node, &node.log) {
                covered.nodes.push(node.node.clone());
                if let Some(why) = lacks(&node.status) {
                    covered.missing.insert(node.node.clone(), why);
                }
            }
        }
        let held = report.nodes.iter().map(|node| (&*node.node, &*node.log));
        for (name, why) in twins(held.chain([(&*own, &*own_log)])) {
            if is_meant(name, "") {
                covered.lacks(name, &why);
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
            let why = || "no such node in this index".to_owned();
            covered.missing.entry(node.clone()).or_insert_with(why);
        }
        covered.nodes.sort();
        covered.partial = !covered.missing.is_empty();
        Some(covered)
    }
}

/// Description of a node's records that the index lacks.
fn lacks(status: &FollowStatus) -> Option<String> {
    let mut why = Vec::new();
    if status.behind_records > 0 {
        why.push(format!("{} records in the store are not indexed yet", status.behind_records));
    }
    why.extend(lost(status));
    why.extend(status.error.clone());
    (!why.is_empty()).then(|| why.join("; "))
}

/// Description of a node's records that are missing from the index because of gaps or faults.
fn lost(status: &FollowStatus) -> Option<String> {
    let mut why = Vec::new();
    for gap in &status.gaps {
        why.push(format!("records {} to {} are missing", gap.first, gap.last));
    }
    if status.more {
        why.push("and more".into());
    }
    if status.has_stopped {
        why.push("too many faults in the store: its chain is no longer followed".into());
    }
    (!why.is_empty()).then(|| why.join("; "))
}

/// Maximum number of peers' queries answered concurrently.
const MAX_ANSWERED_TOGETHER: usize = 32;
/// Maximum number of followed nodes.
pub(crate) const MAX_FOLLOWED: usize = 64;

/// Progress of following a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FollowStatus {
    /// First record; 0 for none yet.
    pub first: u64,
    /// Last record; 0 for none yet.
    pub last: u64,
    /// Number of records accepted, including those no longer retained.
    pub records: u64,
    /// Number of segments accepted.
    pub segments: u64,
    /// Number of records in the store not accepted yet, according to segment names; a lower bound beyond a
    /// hundred thousand segments.
    pub behind_records: u64,
    /// Number of segments not accepted yet.
    pub behind_segments: u64,
    /// Missing records, and why.
    #[schema(value_type = Vec<Object>)]
    pub gaps: Vec<FollowedGap>,
    /// Faults in the store.
    #[schema(value_type = Vec<Object>)]
    pub faults: Vec<FaultFound>,
    /// True if there are more gaps or faults than listed.
    pub more: bool,
    /// True if the chain is no longer followed because of too many faults.
    pub has_stopped: bool,
    /// Current error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

#[derive(Debug)]
pub(crate) struct FollowedNode {
    name: Arc<str>,
    log: Box<str>,
    reader: ReplicaReader,
    rebuilt: bool,
    status: Mutex<FollowStatus>,
}

impl FollowedNode {
    pub(crate) fn new(name: Arc<str>, log: String, reader: ReplicaReader, rebuilt: bool) -> Self {
        Self { name, log: log.into(), reader, rebuilt, status: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_status(&self, status: FollowStatus) {
        *self.status.lock() = status;
    }

    pub(crate) fn status(&self) -> FollowStatus {
        self.status.lock().clone()
    }
}

/// Followed node, as reported.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IndexedNode {
    /// Name of the node.
    pub node: String,
    /// Id of the node's log.
    pub log: String,
    /// Progress of following the node.
    #[serde(flatten)]
    pub status: FollowStatus,
    /// Size of its copy in bytes.
    pub disk_bytes: u64,
    /// True if this process found the copy damaged and rebuilt it from the store.
    #[serde(rename = "made_anew")]
    pub rebuilt: bool,
}

/// Status of the index.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IndexReport {
    /// Index role: `true` or `I/N`.
    pub index: String,
    /// Followed nodes.
    pub nodes: Vec<IndexedNode>,
    /// Nodes that cannot be followed, and why.
    pub not_followed: BTreeMap<String, String>,
    /// Current error of the store, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

impl IndexReport {
    /// Faults, one line each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.error.iter().cloned().collect();
        faults.extend(self.not_followed.iter().map(|(node, why)| format!("node {node}: {why}")));
        for IndexedNode { node, status, rebuilt, .. } in &self.nodes {
            let found = status.faults.iter();
            faults.extend(found.map(|found| format!("node {node}: {}: {}", found.at, found.why)));
            let missing = |gap: &FollowedGap| {
                format!("node {node}: records {} to {} are missing", gap.first, gap.last)
            };
            faults.extend(status.gaps.iter().map(missing));
            let reported = [
                (status.more, "there are more faults than listed"),
                (status.has_stopped, "its chain is no longer followed"),
                (*rebuilt, "its index was damaged and was rebuilt from the store"),
            ];
            let reported = reported.iter().filter(|(is, _)| *is);
            faults.extend(reported.map(|(_, what)| format!("node {node}: {what}")));
            faults.extend(status.error.iter().map(|error| format!("node {node}: {error}")));
        }
        faults
    }
}

/// Index of other nodes' logs.
#[derive(Debug)]
pub struct FleetIndex {
    role: IndexRole,
    nodes: RwLock<BTreeMap<Arc<str>, Arc<FollowedNode>>>,
    not_followed: Mutex<BTreeMap<String, String>>,
    error: Mutex<Option<String>>,
    damaged: Mutex<BTreeSet<String>>,
    changed: watch::Sender<u64>,
    /// Permits for peers' queries.
    questions: Arc<Semaphore>,
}

impl FleetIndex {
    /// Creates an empty index with this role.
    pub fn new(role: IndexRole) -> Self {
        Self {
            role,
            nodes: RwLock::default(),
            not_followed: Mutex::default(),
            error: Mutex::default(),
            damaged: Mutex::default(),
            changed: watch::channel(0).0,
            questions: Arc::new(Semaphore::new(MAX_ANSWERED_TOGETHER)),
        }
    }

    /// Permit to answer a peer's query; `None` if too many are running.
    pub fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.questions).try_acquire_owned().ok()
    }

    /// Index role of this node.
    pub fn role(&self) -> IndexRole {
        self.role
    }

    pub(crate) fn insert(&self, node: Arc<FollowedNode>) {
        self.not_followed.lock().remove(node.name());
        self.nodes.write().insert(Arc::clone(&node.name), node);
        self.mark_changed();
    }

    pub(crate) fn remove(&self, name: &str) {
        self.nodes.write().remove(name);
    }

    pub(crate) fn cannot(&self, name: &str, why: String) {
        self.not_followed.lock().insert(name.to_owned(), why);
    }

    /// Forgets the status of nodes that no longer exist.
    pub(crate) fn there_are(&self, is_there: impl Fn(&str) -> bool) {
        self.not_followed.lock().retain(|name, _| is_there(name));
    }

    pub(crate) fn set_left(&self, left: Vec<String>) {
        let why = format!("more than {} nodes: divide them into shards", MAX_FOLLOWED);
        self.not_followed.lock().extend(left.into_iter().map(|name| (name, why.clone())));
    }

    pub(crate) fn set_error(&self, error: Option<String>) {
        *self.error.lock() = error;
    }

    /// Notifies readers of a change.
    pub(crate) fn mark_changed(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Schedules the rebuild of a node's damaged copy.
    pub(crate) fn suspect(&self, name: &str) {
        self.damaged.lock().insert(name.to_owned());
    }

    /// Schedules the rebuild of the copy that contains this damaged file.
    pub(crate) fn suspect_file(&self, file: &Path) {
        let parts = file.iter().filter_map(std::ffi::OsStr::to_str);
        let names = parts.filter_map(|part| part.rsplit_once('~')).map(|(name, _)| name);
        for name in names.filter(|name| self.nodes.read().contains_key(*name)) {
            self.suspect(name);
        }
    }

    pub(crate) fn take_damaged(&self, name: &str) -> bool {
        self.damaged.lock().remove(name)
    }

    /// Followed nodes' copies in their current state.
    ///
    /// # Errors
    ///
    /// The first copy that cannot be read; it is rebuilt.
    pub fn views(&self) -> Result<Vec<View>, StoreError> {
        let nodes: Vec<_> = self.nodes.read().values().cloned().collect();
        let view =
            |node: &Arc<FollowedNode>| node.reader.view().inspect_err(|_| self.suspect(&node.name));
        nodes.iter().map(view).collect()
    }

    /// True if the named node is followed.
    pub fn follows(&self, name: &str) -> bool {
        self.nodes.read().contains_key(name)
    }

    pub fn report(&self) -> IndexReport {
        let nodes: Vec<_> = self.nodes.read().values().cloned().collect();
        let shown = |node: &Arc<FollowedNode>| IndexedNode {
            node: node.name.to_string(),
            log: node.log.to_string(),
            status: node.status(),
            disk_bytes: node.reader.disk_bytes(),
            rebuilt: node.rebuilt,
        };
        IndexReport {
            index: self.role.to_string(),
            nodes: nodes.iter().map(shown).collect(),
            not_followed: self.not_followed.lock().clone(),
            error: self.error.lock().clone(),
        }
    }
}

/// Reason for not answering a query.
#[derive(Debug, Error)]
pub enum NoAnswer {
    /// The logs cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The query is not supported by this version.
    #[error("query not supported by this version")]
    Question,
}

/// Answers a peer's query.
pub fn answer(logs: &FleetLogs, question: RecordQuestion) -> Result<Vec<u8>, NoAnswer> {
    let answered = reply(logs, question);
    if let Err(NoAnswer::Query(error)) = &answered {
        logs.note_damage(error);
    }
    answered
}

fn reply(logs: &FleetLogs, question: RecordQuestion) -> Result<Vec<u8>, NoAnswer> {
    match question {
        RecordQuestion::Holdings => {
            let holdings = Some(logs.holdings()?);
            Ok(AnswerHead { holdings, ..AnswerHead::default() }.with_records([]))
        }
        RecordQuestion::List {
            ranges,
            filter,
            limit,
            before,
            payloads,
            metadata,
            count,
            bytes,
        } => {
            let (filter, before) = (known(filter)?, read_id(before)?);
            let from = before.map_or(From::Newest, From::After);
            let payloads = match (payloads, metadata) {
                (true, _) => Payloads::Include,
                (false, true) => Payloads::Exclude,
                (false, false) => Payloads::HeadsOnly,
            };
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            let read = || {
                let found = view.list(&filter, &Page { limit, from, payloads })?;
                Ok((found, count.then(|| view.count(&filter)).transpose()?))
            };
            let (found, total) = read().map_err(QueryError::Store)?;
            let max = bytes.min(MAX_ASKED_BYTES);
            let (kept, body) = cut(&found.records, max);
            let is_cut = kept < found.records.len();
            let last = kept.checked_sub(1).and_then(|at| found.records.get(at));
            let cut_at = last.filter(|_| is_cut).map(|record| record.id);
            let next = cut_at.or(found.next_cursor).map(|id| id.to_string());
            let mut out =
                AnswerHead { next, total, removed, ..AnswerHead::default() }.with_records([]);
            out.extend(body);
            Ok(out)
        }
        RecordQuestion::Get { ranges, id } => {
            let id = Id::parse(&id).ok_or(NoAnswer::Question)?;
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            let found = view.get(id).map_err(QueryError::Store)?;
            Ok(AnswerHead { removed, ..AnswerHead::default() }.with_records(&found))
        }
        RecordQuestion::Summary { ranges, period, now } => {
            let period = period_named(&period).ok_or(NoAnswer::Question)?;
            let (first, mut steps) = (period.first_bucket(now), BTreeMap::<u64, Stats>::new());
            if now / BUCKET_US < first {
                return Err(NoAnswer::Question);
            }
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            for view in view.views() {
                let add = |bucket: u64, part: &Stats| {
                    // The buckets of a step are merged into one.
                    let step = bucket.saturating_sub(first) / period.step_buckets();
                    let begin = first + step * period.step_buckets();
                    steps.entry(begin).or_default().merge(part);
                };
                view.buckets(first, now, add).map_err(QueryError::Store)?;
            }
            let steps = steps.iter().map(|(bucket, stats)| (*bucket, stats));
            Ok(AnswerHead { removed, ..AnswerHead::default() }.with_buckets(steps))
        }
        RecordQuestion::Forward { ranges, filter, after, limit, bytes } => {
            let (filter, after) = (known(filter)?, read_id(after)?);
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            let limit =
                PortionLimit { records: limit.max(1), bytes: bytes.clamp(1, MAX_ASKED_BYTES) };
            let (records, ranges) = forward(&view, after, &filter, limit)?;
            Ok(AnswerHead { ranges, removed, ..AnswerHead::default() }.with_records(&records))
        }
    }
}

/// Next records of these logs, and how far each was read.
fn forward(
    view: &MergedView,
    after: Option<Id>,
    filter: &Filter,
    limit: PortionLimit,
) -> Result<(Vec<Record>, Vec<LogRange>), QueryError> {
    let mut places = view.places(after)?;
    let records = view.forward(&mut places, filter, limit)?;
    let name = |place: &ForwardPlace| {
        let view = view.views().iter().find(|view| view.node() == place.log)?;
        view.name().map(str::to_owned)
    };
    let at = places.iter().filter_map(|place| {
        Some(LogRange { node: name(place)?, after: place.seq, last: place.last })
    });
    Ok((records, at.collect()))
}

/// Number of leading records that fit into `max` bytes, at least one, and their encoding.
fn cut(records: &[Record], max: usize) -> (usize, Vec<u8>) {
    let (mut kept, mut out) = (0, Vec::new());
    for record in records {
        let length = out.len();
        put_record(&mut out, record);
        if out.len() > max && kept > 0 {
            out.truncate(length);
            break;
        }
        kept += 1;
    }
    (kept, out)
}

fn known(filter: FilterSent) -> Result<Filter, NoAnswer> {
    filter.filter().ok_or(NoAnswer::Question)
}

fn read_id(text: Option<String>) -> Result<Option<Id>, NoAnswer> {
    text.map(|text| Id::parse(&text).ok_or(NoAnswer::Question)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_activity::codec::read_records;
    use mcpproxy_activity::{Config, Draft, Retention, Source, Status, Type};

    use crate::segment::examples::ExampleLog;

    #[test]
    fn records_removed_before_indexing_are_reported_with_every_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        activity.set_node_name("a");
        for _ in 0..20 {
            activity.note(Draft::new(Type::ToolCall, Source::Mcp, Status::Success));
        }
        activity.flush().unwrap();
        activity.set_retention(Retention {
            days: 0,
            max_records: 5,
            max_size_mb: 0,
            min_age: std::time::Duration::ZERO,
        });
        activity.prune().unwrap();
        let logs = FleetLogs::new(activity, None, None);
        let first = logs.activity().stored().unwrap().first();
        assert!(first > 12, "{first}");
        let filter = FilterSent::default;
        let now = 1_800_000_000_000_000;
        for (after, last, removed) in [
            (3, u64::MAX, Some((4, first - 1))),
            (3, 10, Some((4, 10))),
            (first - 2, u64::MAX, Some((first - 1, first - 1))),
            (first - 1, u64::MAX, None),
            // A range from the beginning of the log does not count as a request for removed records.
            (0, u64::MAX, None),
        ] {
            let ranges = || vec![LogRange { node: "a".into(), after, last }];
            let (limit, bytes) = (10, 1 << 20);
            let id = Id::new(1, 4, logs.activity().stored().unwrap().node()).to_string();
            for question in [
                RecordQuestion::List {
                    ranges: ranges(),
                    filter: filter(),
                    limit,
                    before: None,
                    payloads: false,
                    metadata: false,
                    count: false,
                    bytes,
                },
                RecordQuestion::Get { ranges: ranges(), id },
                RecordQuestion::Summary { ranges: ranges(), period: "24h".into(), now },
                RecordQuestion::Forward {
                    ranges: ranges(),
                    filter: filter(),
                    after: None,
                    limit,
                    bytes,
                },
            ] {
                let bytes = answer(&logs, question.clone()).unwrap();
                let (head, _) = AnswerHead::read(&bytes).unwrap();
                assert_eq!(head.removed, removed, "{question:?}");
            }
        }
        writer.close().unwrap();
    }

    #[test]
    fn answer_is_cut_at_the_byte_limit_with_at_least_one_record() {
        let all = ExampleLog::new(1).decoded(10);
        let (_, one) = cut(&all[..1], usize::MAX);
        for (max, kept) in [(0, 1), (one.len(), 1), (usize::MAX, 10)] {
            let (count, bytes) = cut(&all, max);
            assert_eq!((count, read_records(&bytes).unwrap()), (kept, all[..kept].to_vec()));
        }
        let (_, three) = cut(&all[..3], usize::MAX);
        for max in [three.len(), three.len() + 1] {
            let (count, bytes) = cut(&all, max);
            assert_eq!((count, bytes), (3, three.clone()));
        }
        assert_eq!(cut(&all, three.len() - 1).0, 2);
        assert_eq!(cut(&[], 0), (0, Vec::new()));
    }
}
