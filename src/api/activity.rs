//! `/api/v1/activity…`: the log's records, filtered and paged (ACT-5, FR-038..040).
//!
//! Size: the parameters that the handlers share, beside what each of them answers.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::{IntoParams, IntoResponses, ToSchema};

use super::activity_search::{self, TextSearch};
use super::query_parameters::{BadQuery, Query};
use super::reader_limits::Purpose;
use super::response::{ApiError, Success, encode};
use super::state::State;
use crate::activity::merged::MAX_MERGED_OFFSET;
use crate::activity::{
    Activity, Filter, From, Id, Operation, Page, Payloads, Period, QueryError, Record, Report,
    Status, Summary, Type,
};
use crate::downstream::source::Source;
use crate::fleet::{FleetCoverage, FleetLogs, FleetReader};
use crate::policy::Principal;
use crate::proxy::Worker;

/// Most records that a page can begin after; a log holds fewer.
const MAX_OFFSET: u64 = 1_000_000_000_000;

/// Which records are meant: those that fit all that is given, hence without any all of them.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FilterParameters {
    /// Some of the types, with commas.
    #[param(inline, rename = "type", style = Form, explode = false, required = false, min_items = 1)]
    kinds: Vec<Type>,
    /// Some of the ways it can end, with commas.
    #[param(inline, rename = "status", style = Form, explode = false, required = false, min_items = 1)]
    statuses: Vec<Status>,
    /// The upstream server's name.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    server: Option<String>,
    /// The tool's name without its server.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    tool: Option<String>,
    /// Some of the operation types an intent can state, with commas.
    #[param(inline, rename = "intent_type", style = Form, explode = false, required = false, min_items = 1)]
    operations: Vec<Operation>,
    /// The MCP session.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    session_id: Option<String>,
    /// The request's id.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    request_id: Option<String>,
    /// The id of the principal on whose behalf it is: `anonymous`, `admin`, `token:NAME`, `jwt:SUBJECT`. Who is not
    /// the admin sees its own alone, and is refused those of others (403).
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    principal: Option<String>,
    /// Records that began then or later.
    #[param(value_type = Option<String>, nullable = false, format = DateTime)]
    start_time: Option<Timestamp>,
    /// Records that began then or earlier; not before `start_time`.
    #[param(value_type = Option<String>, nullable = false, format = DateTime)]
    end_time: Option<Timestamp>,
}

/// Whose they are.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only described: `logs` reads it")]
pub(super) struct NodeParameters {
    /// In a fleet, the name of a node, or the id of its log: its records alone. Unknown where there is no fleet.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    node: Option<String>,
}

/// Which page of them.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParameters {
    /// Most records in the page.
    #[param(value_type = u64, required = false, minimum = 1, maximum = 100, default = 50)]
    limit: usize,
    /// Where the page before this one ended: its `next_cursor`. Stays valid while records come and
    /// old ones are removed. Not together with `offset`.
    #[param(nullable = false, pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$")]
    cursor: Option<String>,
    /// How many records to pass over. Records that come meanwhile move it; a `cursor` stays.
    #[param(nullable = false, minimum = 0, maximum = 1_000_000_000_000_i64)]
    offset: Option<u64>,
    /// Only records that hold this text anywhere; the case of ASCII letters does not count. A page then ends after some
    /// 20000 records, or 2 seconds, however few were found. Not together with `offset` or `with_total`.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    text: Option<String>,
    /// Leaves out `arguments` and `response`; `metadata` stays.
    #[param(required = false, default = false)]
    exclude_payloads: bool,
    /// Counts all records that are meant, which takes longer than a page.
    #[param(required = false, default = false)]
    with_total: bool,
}

/// What a summary covers.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SummaryParameters {
    /// The span of time up to now; a day if it is not given.
    #[param(inline, required = false)]
    period: Period,
}

/// Why the log gives no answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described: `ask` makes them")]
enum LogFailures {
    #[response(status = 500, description = "The log cannot be read")]
    Unreadable,
    #[response(
        status = 503,
        description = "Records on their way to the log did not arrive in time"
    )]
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
        (status = 403, description = "The records are another principal's, or Host or Origin is not allowed"),
        (status = 500, description = "The log cannot be read"),
        (
            status = 503,
            description = "Records on their way to the log did not arrive in time; or too many search for a text already",
            headers(("Retry-After" = u64, description = "Seconds; where too many search")),
        ),
    )
)]
pub(super) async fn list(
    state: &State,
    worker: &Worker,
    (principal, source): (&Principal, Source),
    mut query: Query,
) -> Result<Bytes, ApiError> {
    let mut filter = FilterParameters::read(&mut query)?.filter();
    if let Some(own) = bound_to(principal) {
        if filter.principals.iter().any(|asked| asked != own) {
            let text = format!("'{own}' may see its own records only");
            return Err(ApiError::new(StatusCode::FORBIDDEN, text));
        }
        filter.principals = vec![own.to_owned()];
    }
    let reader = reader(state, worker, &mut query)?;
    let paging = PageParameters::read(&mut query)?;
    let (with_total, text) = (paging.with_total, paging.text.clone());
    let page = paging.page()?;
    query.finish()?;
    if matches!(page.from, From::Offset(skip) if skip > MAX_MERGED_OFFSET && state.fleet_index.get().is_some())
    {
        let text = format!(
            "In a fleet at most {MAX_MERGED_OFFSET} records are passed over by 'offset': use 'cursor'"
        );
        return Err(ApiError::new(StatusCode::BAD_REQUEST, text));
    }
    if let Some(text) = text {
        let text = activity_search::sought(&text)?;
        let place = state.readers.enter(Purpose::Search, source)?;
        // What was answered before is found (ACT-5).
        ask(worker, |activity| activity.view().map(drop)).await?;
        let wanted = TextSearch { filter, text };
        let (found, fleet) = match reader.begin().await? {
            Some(mut reading) => {
                let found = activity_search::search_fleet(&mut reading, wanted, &page, place);
                (found.await?, Some(reading.coverage().clone()))
            }
            None => {
                let logs = reader.logs().clone();
                let found = activity_search::search(&logs, wanted, &page, place).await?;
                (found, coverage(logs).await?)
            }
        };
        return Ok(encode(&Listing {
            activities: &found.records,
            limit: page.limit,
            next_cursor: found.next_cursor.map(|id| id.to_string()),
            total: None,
            searched: Some(found.searched),
            fleet,
        }));
    }
    if let Some(mut reading) = reader.begin().await? {
        let (found, total) = reading.list(&filter, &page, with_total).await?;
        return Ok(encode(&Listing {
            activities: &found.records,
            limit: page.limit,
            next_cursor: found.next_cursor.map(|id| id.to_string()),
            total,
            searched: None,
            fleet: Some(reading.coverage().clone()),
        }));
    }
    let logs = reader.logs().clone();
    beside(move || {
        let (found, total) = logs.ask(|view| {
            let found = view.list(&filter, &page)?;
            Ok((found, with_total.then(|| view.count(&filter)).transpose()?))
        })?;
        Ok(encode(&Listing {
            activities: &found.records,
            limit: page.limit,
            next_cursor: found.next_cursor.map(|id| id.to_string()),
            total,
            searched: None,
            fleet: logs.coverage(),
        }))
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
        (status = 404, description = "There is no such record, or no longer"),
        LogFailures,
    )
)]
pub(super) async fn record(
    state: &State,
    worker: &Worker,
    principal: &Principal,
    query: Query,
    id: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    let missing = |text: String| ApiError::new(StatusCode::NOT_FOUND, text);
    let not_found = "Activity not found";
    let id = Id::parse(id).ok_or_else(|| missing(not_found.into()))?;
    let own = bound_to(principal).map(str::to_owned);
    let is_seen = |record: &Record| own.as_deref().is_none_or(|own| *record.head.principal == *own);
    let none = move |covered: Option<FleetCoverage>| match covered.filter(|it| it.partial) {
        None => not_found.to_owned(),
        Some(covered) => {
            let missing: Vec<_> = covered.missing.keys().map(String::as_str).collect();
            format!("{not_found}; not all of the fleet was asked: {}", missing.join(", "))
        }
    };
    let reader = reader_of(state, worker, None);
    let logs = reader.logs().clone();
    // What is here needs no other node.
    let found = beside(move || {
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

/// Whoever reads the logs that a query means: those of the fleet, or of its `node`.
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
    FleetReader::new(logs, worker.proxy.fleet.clone())
}

/// What an answer covers.
async fn coverage(logs: FleetLogs) -> Result<Option<FleetCoverage>, ApiError> {
    beside(move || Ok(logs.coverage())).await
}

/// The id that all records have which `principal` may see; `None`: it may see all.
fn bound_to(principal: &Principal) -> Option<&str> {
    match principal {
        Principal::Admin => None,
        Principal::Anonymous
        | Principal::Token(_)
        | Principal::Subject(_)
        | Principal::Certificate(_) => Some(principal.id()),
    }
}

/// Sums up what a period came to, in all and over time.
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
    state: &State,
    worker: &Worker,
    mut query: Query,
    now: SystemTime,
) -> Result<Bytes, ApiError> {
    let SummaryParameters { period } = SummaryParameters::read(&mut query)?;
    let reader = reader(state, worker, &mut query)?;
    query.finish()?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    if let Some(mut reading) = reader.begin().await? {
        let summary = reading.summary(period, now).await?;
        let fleet = Some(reading.coverage().clone());
        return Ok(encode(&FleetSummary { summary: &summary, fleet }));
    }
    let logs = reader.logs().clone();
    beside(move || {
        let summary = logs.ask(|view| view.summary(period, now))?;
        Ok(match logs.coverage() {
            None => encode(&summary),
            fleet => encode(&FleetSummary { summary: &summary, fleet }),
        })
    })
    .await
}

/// Verifies that the log is as it was written.
///
/// Walks the chain of the running log. A broken log is an answer, not an error: see `sound`.
#[utoipa::path(
    get,
    path = "/api/v1/activity/verify",
    tag = "activity",
    operation_id = "verifyActivity",
    responses(
        (status = 200, description = "What was found", body = Success<Report>),
        LogFailures,
    )
)]
pub(super) async fn verify(worker: &Worker, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    ask(worker, |activity| Ok(encode(&activity.verify(|_, _| {})?))).await
}

#[derive(Serialize, ToSchema)]
struct Listing<'a> {
    #[schema(value_type = Vec<Record>)]
    activities: &'a [Record],
    /// The limit in force.
    limit: usize,
    /// The `cursor` of the next page; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
    /// All that are meant, if `with_total` asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    total: Option<u64>,
    /// With `text`, how many records were looked at for this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    searched: Option<u64>,
    /// What the answer covers, where there is a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetCoverage>,
}

/// A summary of a fleet, with what it covers.
#[derive(Serialize, ToSchema)]
struct FleetSummary<'a> {
    #[serde(flatten)]
    #[schema(value_type = Summary)]
    summary: &'a Summary,
    /// What the answer covers, where there is a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fleet: Option<FleetCoverage>,
}

#[derive(Serialize, ToSchema)]
struct Detail<'a> {
    #[schema(value_type = Record)]
    activity: &'a Record,
}

/// Runs a query of the log on a thread that may block.
///
/// # Errors
///
/// 503 if records on their way to the log do not arrive in time, 500 if the log cannot be read.
pub(super) async fn ask<T: Send + 'static>(
    worker: &Worker,
    question: impl FnOnce(&Activity) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, ApiError> {
    let activity = worker.proxy.activity.clone();
    beside(move || question(&activity)).await
}

/// Runs a query on a thread that may block.
///
/// # Errors
///
/// Those of [`ask`].
pub(super) async fn beside<T: Send + 'static>(
    question: impl FnOnce() -> Result<T, QueryError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error)),
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
            exclude_payloads: query.flag("exclude_payloads")?,
            with_total: query.flag("with_total")?,
        })
    }

    fn page(self) -> Result<Page, BadQuery> {
        if self.text.is_some() && self.offset.is_some() {
            return Err(BadQuery::Both("text", "offset"));
        }
        if self.text.is_some() && self.with_total {
            return Err(BadQuery::Both("text", "with_total"));
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
        Ok(Self { period: query.word("period", Period::ALL)?.unwrap_or(Period::Day) })
    }
}

/// Microseconds since 1970; before that there is no record.
pub(super) fn micros(time: Timestamp) -> u64 {
    let since = Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(raw: &str) -> Query {
        Query::parse(Some(raw)).unwrap()
    }

    #[test]
    fn fr_038_every_filter_is_read() {
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
    fn fr_040_bad_values_say_what_is_allowed() {
        let error = |raw| FilterParameters::read(&mut query(raw)).unwrap_err().to_string();
        assert_eq!(
            error("intent_type=delete"),
            "Invalid intent_type 'delete': must be read, write, or destructive"
        );
        assert_eq!(
            error("status=ok"),
            "Invalid status 'ok': must be success, error, blocked, rejected, warning, or unknown"
        );
        // A nanosecond apart, the second in another zone.
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
    fn act_5_pages_begin_by_cursor_or_offset() {
        let id = Id::new(1, 2, crate::activity::record::NodeId([0; 16]));
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
