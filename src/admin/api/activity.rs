//! `/api/v1/activity…`: records of the log, filtered, paged and searched (ACT-5, FR-038..040).
//!
//! A text (`text=`) and a minimum duration (`min_duration_ms=`) have no index. The export thread, for which calls do not
//! wait, reads the records in portions.
//! A response ends when its page is full, after [`MAX_SEARCHED`] records or after [`MAX_TIME`]; its cursor is then the
//! last record examined, so a page may be empty although more records follow.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::{IntoParams, IntoResponses, ToSchema};

use super::query_parameters::{BadQuery, Query};
use super::reader_limits::{Purpose, ReaderSlot};
use super::request::ApiRequest;
use super::response::{ApiError, Success, encode};
use crate::api::State;
use mcpproxy_activity::merged::MAX_MERGED_OFFSET;
use mcpproxy_activity::query::SearchText;
use mcpproxy_activity::record::ReadBody;
use mcpproxy_activity::{
    Activity, Filter, From, Id, Operation, Page, Payloads, Period, QueryError, Record, Report,
    Status, Summary, Type,
};
use mcpproxy_fleet::{FleetCoverage, FleetLogs, FleetReader, FleetReading};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;

/// Maximum `offset`; a log holds fewer records.
const MAX_OFFSET: u64 = 1_000_000_000_000;

/// Filters of records, combined with AND. Without a filter all records match.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FilterParameters {
    /// Record types, separated by commas.
    #[param(inline, rename = "type", style = Form, explode = false, required = false, min_items = 1)]
    kinds: Vec<Type>,
    /// Statuses, separated by commas.
    #[param(inline, rename = "status", style = Form, explode = false, required = false, min_items = 1)]
    statuses: Vec<Status>,
    /// Name of the upstream server.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    server: Option<String>,
    /// Name of the tool without its server.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    tool: Option<String>,
    /// Operation types stated in intents, separated by commas.
    #[param(inline, rename = "intent_type", style = Form, explode = false, required = false, min_items = 1)]
    operations: Vec<Operation>,
    /// MCP session id.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    session_id: Option<String>,
    /// Request id.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    request_id: Option<String>,
    /// Principal id: `anonymous`, `admin`, `token:NAME`, `jwt:SUBJECT`. Principals other than the admin see only their
    /// own records; requests for other principals' records are rejected with 403.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    principal: Option<String>,
    /// Records that started at this time or later.
    #[param(value_type = Option<String>, nullable = false, format = DateTime)]
    start_time: Option<Timestamp>,
    /// Records that started at this time or earlier; not before `start_time`.
    #[param(value_type = Option<String>, nullable = false, format = DateTime)]
    end_time: Option<Timestamp>,
}

/// Node that the records belong to.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in OpenAPI; `logs` parses it")]
pub(super) struct NodeParameters {
    /// In a fleet: only records of the node with this name or log id.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    node: Option<String>,
}

/// Page selection.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParameters {
    /// Maximum number of records in the page.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 100, default = 50)]
    limit: usize,
    /// `next_cursor` of the previous page. Stays valid while records are added and removed. Cannot be combined with `offset`.
    #[param(nullable = false, pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$")]
    cursor: Option<String>,
    /// Number of records to skip. New records shift the pages; a `cursor` is stable.
    #[param(nullable = false, minimum = 0, maximum = 1_000_000_000_000_i64)]
    offset: Option<u64>,
    /// Only records that contain this text, ignoring ASCII case. A page then ends after about 20000 examined records or 2
    /// seconds, even if few matched. Cannot be combined with `offset` or `with_total`.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    text: Option<String>,
    /// Only records of calls that took at least this long, in milliseconds. A page ends as with `text`, and the same parameters
    /// are incompatible.
    #[param(nullable = false, minimum = 1, maximum = 86_400_000)]
    min_duration_ms: Option<u64>,
    /// Omits `arguments` and `response`, but not `metadata`.
    #[param(required = false, default = false)]
    exclude_payloads: bool,
    /// Counts all matching records, which takes longer than reading a page.
    #[param(required = false, default = false)]
    with_total: bool,
}

/// Period of a summary.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SummaryParameters {
    /// Time span up to `end_time`; a day by default.
    #[param(inline, required = false)]
    period: Period,
    /// End of the period, exclusive; now by default. The counters have a resolution of five minutes.
    #[param(value_type = Option<String>, nullable = false, format = DateTime)]
    end_time: Option<Timestamp>,
}

/// Errors of log queries.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the errors in OpenAPI; `ask` returns them")]
enum LogFailures {
    #[response(status = 500, description = "The log cannot be read")]
    Unreadable,
    #[response(status = 503, description = "Pending records were not stored in time")]
    Late,
}

/// Lists records, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/activity",
    tag = "activity",
    operation_id = "listActivity",
    params(FilterParameters, PageParameters, NodeParameters),
    responses(
        (status = 200, description = "A page of records", body = Success<Listing>),
        (status = 403, description = "The records belong to another principal; or Host or Origin is not allowed"),
        (status = 500, description = "The log cannot be read"),
        (
            status = 503,
            description = "Pending records were not stored in time; or there are too many concurrent text searches",
            headers(("Retry-After" = u64, description = "Seconds; if there are too many searches")),
        ),
    )
)]
pub(super) async fn list(
    ApiRequest { state, worker, connection, principal, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let mut query = query?;
    let mut filter = FilterParameters::read(&mut query)?.filter();
    if let Some(own) = bound_to(principal) {
        if filter.principals.iter().any(|asked| asked != own) {
            let text = format!("'{own}' may only see its own records");
            return Err(ApiError::new(StatusCode::FORBIDDEN, text));
        }
        filter.principals = vec![own.to_owned()];
    }
    let reader = reader(state, worker, &mut query)?;
    let paging = PageParameters::read(&mut query)?;
    let with_total = paging.with_total;
    let scan = RecordScan::new(paging.text.as_deref(), paging.min_duration_ms)?;
    let page = paging.page()?;
    query.finish()?;
    if matches!(page.from, From::Offset(skip) if skip > MAX_MERGED_OFFSET && state.fleet_index.get().is_some())
    {
        let text = format!(
            "In a fleet 'offset' may skip at most {MAX_MERGED_OFFSET} records: use 'cursor'"
        );
        return Err(ApiError::bad_request(text));
    }
    let limit = page.limit;
    let listing = move |activities: &[Record], next: Option<Id>, total, searched, fleet| {
        let next_cursor = next.map(|id| id.to_string());
        encode(&Listing { activities, limit, next_cursor, total, searched, fleet })
    };
    if let Some(scan) = scan {
        let slot = state.readers.enter(Purpose::Search, connection.source)?;
        // Waits until the log contains every call answered before this request (ACT-5).
        ask(worker, |activity| activity.view().map(drop)).await?;
        let wanted = TextSearch { filter, scan };
        let (found, fleet) = match reader.begin().await? {
            Some(mut reading) => {
                let found = search(SearchedLogs::Fleet(&mut reading), wanted, &page, slot);
                (found.await?, Some(reading.coverage().clone()))
            }
            None => {
                let logs = reader.logs().clone();
                let found = search(SearchedLogs::Local(&logs), wanted, &page, slot).await?;
                (found, coverage(logs).await?)
            }
        };
        return Ok(listing(&found.records, found.next_cursor, None, Some(found.searched), fleet));
    }
    if let Some(mut reading) = reader.begin().await? {
        let (found, total) = reading.list(&filter, &page, with_total).await?;
        let fleet = Some(reading.coverage().clone());
        return Ok(listing(&found.records, found.next_cursor, total, None, fleet));
    }
    let logs = reader.logs().clone();
    run_blocking(move || {
        let (found, total) = logs.ask(|view| {
            let found = view.list(&filter, &page)?;
            Ok((found, with_total.then(|| view.count(&filter)).transpose()?))
        })?;
        Ok(listing(&found.records, found.next_cursor, total, None, logs.coverage()))
    })
    .await
}

/// Shows one record.
#[utoipa::path(
    get,
    path = "/api/v1/activity/{id}",
    tag = "activity",
    operation_id = "getActivity",
    params((
        "id" = String,
        Path,
        description = "The record's id",
        pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
    )),
    responses(
        (status = 200, description = "The record", body = Success<Detail>),
        (status = 404, description = "No such record is retained"),
        LogFailures,
    )
)]
pub(super) async fn record(
    ApiRequest { state, worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let missing = |text: String| ApiError::new(StatusCode::NOT_FOUND, text);
    let not_found = "Activity not found";
    let id = Id::parse(segment).ok_or_else(|| missing(not_found.into()))?;
    let own = bound_to(principal).map(str::to_owned);
    let is_seen = |record: &Record| own.as_deref().is_none_or(|own| *record.head.principal == *own);
    let none = move |covered: Option<FleetCoverage>| match covered.filter(|it| it.partial) {
        None => not_found.to_owned(),
        Some(covered) => {
            let missing: Vec<_> = covered.missing.keys().map(String::as_str).collect();
            format!(
                "{not_found}; some nodes of the fleet could not be queried: {}",
                missing.join(", ")
            )
        }
    };
    let reader = reader_of(state, worker, None);
    let logs = reader.logs().clone();
    // A local record needs no other node.
    let found = run_blocking(move || {
        let record = logs.ask(|view| view.get(id))?;
        Ok((record, logs.coverage()))
    });
    let (record, covered) = found.await?;
    if let Some(record) = record.filter(is_seen) {
        return Ok(encode(&Detail { activity: &record }));
    }
    let Some(mut reading) = reader.begin().await? else { return Err(missing(none(covered))) };
    let record = reading.get(id).await?.filter(is_seen);
    let found = record.map(|record| encode(&Detail { activity: &record }));
    found.ok_or_else(|| missing(none(Some(reading.coverage().clone()))))
}

/// Returns a reader of the logs selected by the query: the fleet's logs, or the log of its `node`.
pub(super) fn reader(
    state: &State,
    worker: &Worker,
    query: &mut Query,
) -> Result<FleetReader, BadQuery> {
    Ok(reader_of(state, worker, query.text("node")?))
}

fn reader_of(state: &State, worker: &Worker, node: Option<String>) -> FleetReader {
    let index = state.fleet_index.get().cloned();
    let logs = FleetLogs::new(worker.proxy.activity.clone(), index, node);
    FleetReader::new(logs, worker.proxy.nodes.fleet_node().cloned())
}

/// Returns the nodes that a response covers.
async fn coverage(logs: FleetLogs) -> Result<Option<FleetCoverage>, ApiError> {
    run_blocking(move || Ok(logs.coverage())).await
}

/// Returns the only principal id whose records `principal` may see; `None` if it may see all.
fn bound_to(principal: &Principal) -> Option<&str> {
    match principal {
        Principal::Admin => None,
        Principal::Anonymous
        | Principal::Token(_)
        | Principal::Subject(_)
        | Principal::Certificate(_) => Some(principal.id()),
    }
}

/// Summarizes a period, in total and over time.
#[utoipa::path(
    get,
    path = "/api/v1/activity/summary",
    tag = "activity",
    operation_id = "summarizeActivity",
    params(SummaryParameters, NodeParameters),
    responses(
        (status = 200, description = "The summary", body = Success<FleetSummary>),
        LogFailures,
    )
)]
pub(super) async fn summary(
    ApiRequest { state, worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let mut query = query?;
    let SummaryParameters { period, end_time } = SummaryParameters::read(&mut query)?;
    let reader = reader(state, worker, &mut query)?;
    query.finish()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let now = end_time.map_or(now, |end| micros(end).saturating_sub(1).min(now));
    if let Some(mut reading) = reader.begin().await? {
        let summary = reading.summary(period, now).await?;
        let fleet = Some(reading.coverage().clone());
        return Ok(encode(&FleetSummary { summary: &summary, fleet }));
    }
    let logs = reader.logs().clone();
    run_blocking(move || {
        let summary = logs.ask(|view| view.summary(period, now))?;
        Ok(match logs.coverage() {
            None => encode(&summary),
            fleet => encode(&FleetSummary { summary: &summary, fleet }),
        })
    })
    .await
}

/// Verifies the hash chain of the log.
///
/// A broken log is a result, not an error: see `sound`.
#[utoipa::path(
    get,
    path = "/api/v1/activity/verify",
    tag = "activity",
    operation_id = "verifyActivity",
    responses(
        (status = 200, description = "The findings", body = Success<Report>),
        LogFailures,
    )
)]
pub(super) async fn verify(
    ApiRequest { worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    ask(worker, |activity| Ok(encode(&activity.verify(|_, _| {})?))).await
}

#[derive(Serialize, ToSchema)]
struct Listing<'a> {
    #[schema(value_type = Vec<Record>)]
    activities: &'a [Record],
    /// The effective limit.
    limit: usize,
    /// `cursor` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
    /// Number of all matching records, if requested by `with_total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    total: Option<u64>,
    /// With `text`: number of records examined for this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    searched: Option<u64>,
    /// Nodes that the response covers, in a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetCoverage>,
}

/// Summary of a fleet, with the nodes it covers.
#[derive(Serialize, ToSchema)]
struct FleetSummary<'a> {
    #[serde(flatten)]
    #[schema(value_type = Summary)]
    summary: &'a Summary,
    /// Nodes that the response covers, in a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetCoverage>,
}

#[derive(Serialize, ToSchema)]
struct Detail<'a> {
    #[schema(value_type = Record)]
    activity: &'a Record,
}

/// Runs a query of the log on a blocking thread. 503 if pending records are not stored in time; 500 if the log cannot
/// be read.
pub(super) async fn ask<T: Send + 'static>(
    worker: &Worker,
    query: impl FnOnce(&Activity) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, ApiError> {
    let activity = worker.proxy.activity.clone();
    run_blocking(move || query(&activity)).await
}

/// Runs a query on a blocking thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    query: impl FnOnce() -> Result<T, QueryError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(query).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(ApiError::internal(error)),
    }
}

impl std::convert::From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let status = match error {
            QueryError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            QueryError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error)
    }
}

impl FilterParameters {
    pub(super) fn read(query: &mut Query) -> Result<Self, BadQuery> {
        let filters = Self {
            kinds: query.words("type", Type::ALL)?,
            statuses: query.words("status", Status::ALL)?,
            server: query.text("server")?,
            tool: query.text("tool")?,
            operations: query.words("intent_type", &Operation::ALL)?,
            session_id: query.text("session_id")?,
            request_id: query.text("request_id")?,
            principal: query.text("principal")?,
            start_time: query.time("start_time")?,
            end_time: query.time("end_time")?,
        };
        match (filters.start_time, filters.end_time) {
            (Some(start), Some(end)) if start > end => {
                Err(BadQuery::After("start_time", "end_time"))
            }
            _ => Ok(filters),
        }
    }

    pub(super) fn filter(self) -> Filter {
        Filter {
            kinds: self.kinds,
            statuses: self.statuses,
            servers: self.server.into_iter().collect(),
            tools: self.tool.into_iter().collect(),
            operations: self.operations,
            sessions: self.session_id.into_iter().collect(),
            requests: self.request_id.into_iter().collect(),
            principals: self.principal.into_iter().collect(),
            since: self.start_time.map(micros),
            until: self.end_time.map(micros),
        }
    }
}

impl PageParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        Ok(Self {
            limit: query.limit()?,
            cursor: query.text("cursor")?,
            offset: query.number("offset", 0..=MAX_OFFSET)?,
            text: query.text("text")?,
            min_duration_ms: query.number("min_duration_ms", MIN_DURATIONS)?,
            exclude_payloads: query.flag("exclude_payloads")?,
            with_total: query.flag("with_total")?,
        })
    }

    fn page(self) -> Result<Page, BadQuery> {
        let scans =
            [("text", self.text.is_some()), ("min_duration_ms", self.min_duration_ms.is_some())];
        if let Some((scan, _)) = scans.into_iter().find(|(_, is_set)| *is_set) {
            if self.offset.is_some() {
                return Err(BadQuery::Both(scan, "offset"));
            }
            if self.with_total {
                return Err(BadQuery::Both(scan, "with_total"));
            }
        }
        let from = match (self.cursor, self.offset) {
            (None, None) => From::Newest,
            (None, Some(offset)) => From::Offset(offset),
            (Some(_), Some(_)) => return Err(BadQuery::Both("cursor", "offset")),
            (Some(value), None) => {
                From::After(Id::parse(&value).ok_or_else(|| BadQuery::cursor(value))?)
            }
        };
        let payloads = match self.exclude_payloads {
            true => Payloads::Exclude,
            false => Payloads::Include,
        };
        Ok(Page { limit: self.limit, from, payloads })
    }
}

impl SummaryParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        let period = query.word("period", Period::ALL)?.unwrap_or(Period::Day);
        Ok(Self { period, end_time: query.time("end_time")? })
    }
}

/// Microseconds since 1970; 0 for earlier times.
pub(super) fn micros(time: Timestamp) -> u64 {
    let since = Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Approximate maximum number of records that a text search examines per response. The last portion may exceed it.
const MAX_SEARCHED: u64 = 20_000;
/// Time after which a text search starts no further portion.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Number of records in a portion.
const PORTION_RECORDS: usize = 128;

/// Result of a text search.
struct FoundRecords {
    records: Vec<Record>,
    /// Cursor of the next page, if there is one.
    next_cursor: Option<Id>,
    /// Number of records examined.
    searched: u64,
}

impl FoundRecords {
    /// Removes payloads that were searched but not requested.
    fn strip_payloads(&mut self, payloads: Payloads) {
        for record in &mut self.records {
            let body = std::mem::replace(&mut record.body, ReadBody::Unread);
            record.body = match payloads {
                Payloads::Include => body,
                Payloads::Exclude => body.without_payloads(),
                Payloads::HeadsOnly => ReadBody::Unread,
            };
        }
    }
}

/// Accepted values of `min_duration_ms`, up to a day.
pub(super) const MIN_DURATIONS: RangeInclusive<u64> = 1..=86_400_000;

/// Conditions without an index: records that match the filter are read one by one.
#[derive(Clone, Debug)]
pub(super) struct RecordScan {
    text: Option<SearchText>,
    /// Minimum duration in microseconds.
    least_us: Option<u64>,
}

impl RecordScan {
    /// `None` without a condition; 400 for a text that cannot be searched for.
    pub(super) fn new(
        text: Option<&str>,
        min_duration_ms: Option<u64>,
    ) -> Result<Option<Self>, ApiError> {
        let cannot = |error| format!("Invalid text: it cannot be searched for: {error}");
        let text = text.map(SearchText::new).transpose();
        let text = text.map_err(|error| ApiError::bad_request(cannot(error)))?;
        let least_us = min_duration_ms.map(|ms| ms.saturating_mul(1000));
        let is_any = text.is_some() || least_us.is_some();
        Ok(is_any.then_some(Self { text, least_us }))
    }

    pub(super) fn accepts(&self, record: &Record) -> bool {
        // The duration of an approval is the wait for a person.
        let is_slow =
            |least| record.head.duration_us >= least && record.head.kind != Type::Approval;
        self.least_us.is_none_or(is_slow)
            && self.text.as_ref().is_none_or(|text| text.is_in(record))
    }
}

/// Filter and further conditions of a search.
#[derive(Clone)]
struct TextSearch {
    filter: Filter,
    scan: RecordScan,
}

/// Logs that a text search reads.
enum SearchedLogs<'a> {
    Local(&'a FleetLogs),
    Fleet(&'a mut FleetReading),
}

/// Searches portion by portion. The reader slot is held until the search ends.
async fn search(
    mut logs: SearchedLogs<'_>,
    wanted: TextSearch,
    page: &Page,
    _slot: ReaderSlot,
) -> Result<FoundRecords, QueryError> {
    let mut found = FoundRecords { records: Vec::new(), next_cursor: None, searched: 0 };
    let (mut from, deadline) = (page.from, Instant::now() + MAX_TIME);
    loop {
        let free = page.limit - found.records.len();
        let portion = match &mut logs {
            SearchedLogs::Local(logs) => {
                let (read, wanted) = (logs.clone(), wanted.clone());
                let read = move |_: &Activity| portion(&read, &wanted, from, free);
                logs.activity().run_on_reader(read).await??
            }
            SearchedLogs::Fleet(reading) => {
                let page = Page { limit: PORTION_RECORDS, from, payloads: Payloads::Include };
                let (listing, _) = reading.list(&wanted.filter, &page, false).await?;
                matching(listing, &wanted, free)
            }
        };
        found.searched += portion.searched;
        found.records.extend(portion.records);
        found.next_cursor = portion.next_cursor;
        let Some(next) = found.next_cursor else { break };
        let is_spent = found.searched >= MAX_SEARCHED || Instant::now() >= deadline;
        if found.records.len() >= page.limit || is_spent {
            break;
        }
        from = From::After(next);
    }
    found.strip_payloads(page.payloads);
    Ok(found)
}

/// Examines the next portion of the local logs.
fn portion(
    logs: &FleetLogs,
    wanted: &TextSearch,
    from: From,
    free: usize,
) -> Result<FoundRecords, QueryError> {
    let page = Page { limit: PORTION_RECORDS, from, payloads: Payloads::Include };
    let listing = logs.stored()?.list(&wanted.filter, &page)?;
    Ok(matching(listing, wanted, free))
}

/// Returns the records of a listing that the search accepts, up to the one that fills the page.
fn matching(listing: mcpproxy_activity::Listing, wanted: &TextSearch, free: usize) -> FoundRecords {
    let mut found =
        FoundRecords { records: Vec::new(), next_cursor: listing.next_cursor, searched: 0 };
    let mut records = listing.records.into_iter();
    for record in records.by_ref() {
        found.searched += 1;
        let id = record.id;
        if wanted.scan.accepts(&record) {
            found.records.push(record);
        }
        if found.records.len() >= free {
            // The next page starts with the first record that was read but not examined.
            if !records.as_slice().is_empty() {
                found.next_cursor = Some(id);
            }
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {

    use super::*;

    fn query(raw: &str) -> Query {
        Query::parse(Some(raw)).unwrap()
    }

    #[test]
    fn fr_038_every_filter_is_parsed() {
        let raw = "type=tool_call,policy_decision&status=blocked&server=gh&tool=x&intent_type=write\
                   &session_id=s&request_id=r&principal=p&start_time=2026-01-01T00:00:00Z\
                   &end_time=2026-01-01T00:00:00.5Z";
        let mut given = query(raw);
        let filter = FilterParameters::read(&mut given).unwrap().filter();
        given.finish().unwrap();
        assert_eq!(
            filter,
            Filter {
                kinds: vec![Type::ToolCall, Type::PolicyDecision],
                statuses: vec![Status::Blocked],
                servers: vec!["gh".into()],
                tools: vec!["x".into()],
                operations: vec![Operation::Write],
                sessions: vec!["s".into()],
                requests: vec!["r".into()],
                principals: vec!["p".into()],
                since: Some(1_767_225_600_000_000),
                until: Some(1_767_225_600_500_000),
            }
        );
    }

    #[test]
    fn fr_040_errors_name_the_accepted_values() {
        let error = |raw| FilterParameters::read(&mut query(raw)).unwrap_err().to_string();
        assert_eq!(
            error("intent_type=delete"),
            "Invalid intent_type 'delete': must be read, write, or destructive"
        );
        assert_eq!(
            error("status=ok"),
            "Invalid status 'ok': must be success, error, blocked, rejected, warning, or unknown"
        );
        // The times are a nanosecond apart, the second in another time zone.
        let range = |start: &str| {
            let end = "2026-01-01T01:00:00%2B01:00";
            FilterParameters::read(&mut query(&format!("start_time={start}&end_time={end}")))
        };
        assert_eq!(
            range("2026-01-01T00:00:00.000000001Z").unwrap_err().to_string(),
            "Query parameter 'start_time' must not be after 'end_time'"
        );
        assert!(range("2026-01-01T00:00:00Z").is_ok());
    }

    #[test]
    fn act_5_page_starts_at_cursor_or_offset() {
        let id = Id::new(1, 2, mcpproxy_activity::record::NodeId([0; 16]));
        let of = |raw: &str| PageParameters::read(&mut query(raw)).and_then(PageParameters::page);
        assert_eq!(of("").unwrap(), Page::default());
        assert_eq!(of(&format!("cursor={id}")).unwrap().from, From::After(id));
        assert_eq!(of("offset=7&limit=100").unwrap().from, From::Offset(7));
        assert_eq!(of(&format!("cursor={id}&offset=1")), Err(BadQuery::Both("cursor", "offset")));
        for other in ["offset=1", "with_total=true"] {
            assert!(matches!(of(&format!("text=x&{other}")), Err(BadQuery::Both("text", _))));
        }
        assert!(of("cursor=nonsense").is_err());
        assert!(of("limit=101").is_err());
        assert_eq!(of("exclude_payloads=true").unwrap().payloads, Payloads::Exclude);
    }
}
