//! `/api/v1/activity…`: the log's records, filtered and paged (ACT-5, FR-038..040).

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::answer::Failure;
use super::query::{BadQuery, Query};
use crate::activity::{
    Activity, Filter, From, Id, Operation, Page, Payloads, Period, QueryError, Record, Status, Type,
};
use crate::proxy::Worker;

/// Records in a page that asks for no number.
const DEFAULT_LIMIT: u64 = 50;
/// Most records in a page.
const MAX_LIMIT: u64 = 100;

/// The periods a summary can be asked for; without one it is a day's.
const PERIODS: [&str; 4] =
    [Period::Hour.as_str(), Period::Day.as_str(), Period::Week.as_str(), Period::Month.as_str()];

/// A page of records, newest first.
pub(super) async fn list(worker: &Worker, mut query: Query) -> Result<Bytes, Failure> {
    let filter = filter(&mut query)?;
    let (page, with_total) = page(&mut query)?;
    query.finish()?;
    ask(worker, move |activity| {
        let found = activity.list(&filter, &page)?;
        let total = with_total.then(|| activity.count(&filter)).transpose()?;
        Ok(json(&Listing {
            activities: &found.records,
            limit: page.limit,
            next_cursor: found.next_cursor.map(|id| id.to_string()),
            total,
        }))
    })
    .await
}

/// One record.
pub(super) async fn record(worker: &Worker, query: Query, id: &str) -> Result<Bytes, Failure> {
    query.finish()?;
    let missing = || Failure::new(StatusCode::NOT_FOUND, "Activity not found");
    let id = Id::parse(id).ok_or_else(missing)?;
    let found = ask(worker, move |activity| {
        let record = activity.get(id)?;
        Ok(record.map(|record| json(&Detail { activity: &record })))
    });
    found.await?.ok_or_else(missing)
}

/// What a period came to.
pub(super) async fn summary(
    worker: &Worker,
    mut query: Query,
    now: SystemTime,
) -> Result<Bytes, Failure> {
    let period = query.word("period", &PERIODS)?.and_then(Period::parse).unwrap_or(Period::Day);
    query.finish()?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    ask(worker, move |activity| Ok(json(&activity.summary(period, now)?))).await
}

/// Whether the log is as it was written (ACT-4). A broken log is an answer, not an error.
pub(super) async fn verify(worker: &Worker, query: Query) -> Result<Bytes, Failure> {
    query.finish()?;
    ask(worker, |activity| Ok(json(&activity.verify(|_, _| {})?))).await
}

#[derive(Serialize)]
struct Listing<'a> {
    activities: &'a [Record],
    limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
}

#[derive(Serialize)]
struct Detail<'a> {
    activity: &'a Record,
}

/// Asks the log on a thread that may wait.
pub(super) async fn ask<T: Send + 'static>(
    worker: &Worker,
    question: impl FnOnce(&Activity) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, Failure> {
    let activity = worker.proxy.activity.clone();
    match tokio::task::spawn_blocking(move || question(&activity)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error @ QueryError::Busy)) => {
            Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, error))
        }
        Ok(Err(error @ QueryError::Store(_))) => {
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error))
        }
        Err(error) => Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error)),
    }
}

pub(super) fn filter(query: &mut Query) -> Result<Filter, BadQuery> {
    Ok(Filter {
        kinds: query.words("type", Type::ALL)?,
        statuses: query.words("status", Status::ALL)?,
        servers: query.text("server")?.into_iter().collect(),
        tools: query.text("tool")?.into_iter().collect(),
        operations: query.words("intent_type", Operation::ALL)?,
        sessions: query.text("session_id")?.into_iter().collect(),
        requests: query.text("request_id")?.into_iter().collect(),
        since: query.time("start_time")?.map(micros),
        until: query.time("end_time")?.map(micros),
    })
}

fn page(query: &mut Query) -> Result<(Page, bool), BadQuery> {
    let limit = query.number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let offset = query.number("offset", 0..=u64::MAX)?;
    let from = match (query.text("cursor")?, offset) {
        (None, None) => From::Newest,
        (None, Some(offset)) => From::Offset(offset),
        (Some(_), Some(_)) => return Err(BadQuery::Both("cursor", "offset")),
        (Some(value), None) => match Id::parse(&value) {
            Some(id) => From::After(id),
            None => {
                let expected = "a next_cursor of an earlier answer".to_owned();
                return Err(BadQuery::Invalid { name: "cursor", value, expected });
            }
        },
    };
    let payloads = match query.flag("exclude_payloads")? {
        true => Payloads::Exclude,
        false => Payloads::Include,
    };
    Ok((Page { limit, from, payloads }, query.flag("with_total")?))
}

/// Microseconds since 1970; before that there is no record.
fn micros(time: Timestamp) -> u64 {
    let since = Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A record as one line of JSON. What a client wrote in it may hold line ends: between tokens, so
/// that a blank means the same.
pub(super) fn one_line(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default().replace(['\r', '\n'], " ")
}

fn json<T: Serialize>(value: &T) -> Bytes {
    // Records and summaries are made of strings and numbers: nothing in them can fail to be JSON.
    serde_json::to_vec(value).unwrap_or_default().into()
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
                   &session_id=s&request_id=r&start_time=2026-01-01T00:00:00Z\
                   &end_time=2026-01-01T00:00:00.5Z";
        let mut given = query(raw);
        let filter = filter(&mut given).unwrap();
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
                since: Some(1_767_225_600_000_000),
                until: Some(1_767_225_600_500_000),
            }
        );
    }

    #[test]
    fn fr_040_bad_values_say_what_is_allowed() {
        let error = |raw| filter(&mut query(raw)).unwrap_err().to_string();
        assert_eq!(
            error("intent_type=delete"),
            "Invalid intent_type 'delete': must be read, write, or destructive"
        );
        assert_eq!(
            error("status=ok"),
            "Invalid status 'ok': must be success, error, blocked, rejected, or warning"
        );
    }

    #[test]
    fn act_5_pages_begin_by_cursor_or_offset() {
        let id = Id::new(1, 2, crate::activity::record::NodeId([0; 16]));
        let of = |raw: &str| page(&mut query(raw)).map(|(page, _)| page);
        assert_eq!(of("").unwrap(), Page::default());
        assert_eq!(of(&format!("cursor={id}")).unwrap().from, From::After(id));
        assert_eq!(of("offset=7&limit=100").unwrap().from, From::Offset(7));
        assert_eq!(of(&format!("cursor={id}&offset=1")), Err(BadQuery::Both("cursor", "offset")));
        assert!(of("cursor=nonsense").is_err());
        assert!(of("limit=101").is_err());
        assert_eq!(of("exclude_payloads=true").unwrap().payloads, Payloads::Exclude);
    }
}
