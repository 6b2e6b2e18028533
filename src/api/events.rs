//! `/events`: every record as it is stored, as server-sent events (ACT-7).
//!
//! A reader that was away says which record it saw last (`Last-Event-ID`), and one that is too slow
//! falls behind; both catch up from the log, page by page, so nothing is left out and nothing
//! waits. What is sent is the record as REST shows it; there are no filters here.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::watch;

use super::State;
use super::activity;
use super::answer::{self, Failure};
use super::query::Query;
use crate::activity::{Activity, Filter, Id, Live, LiveEvent, QueryError, Record};
use crate::downstream::body::Body;
use crate::proxy::Worker;
use crate::proxy::reply::Aborted;
use crate::wire::headers;

/// How often a stream without records shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that lost the stream comes back after this long, in milliseconds.
const RETRY_MS: u64 = 1000;
/// Records read at a time to catch up.
const PAGE_RECORDS: usize = 256;

/// The record a client saw last.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// Where a stream is.
struct Events {
    activity: Activity,
    live: Live,
    ending: watch::Receiver<bool>,
    /// The last record sent, or passed over.
    seq: u64,
    /// What was read from the log and is still to be sent.
    behind: VecDeque<Record>,
    /// True while the log holds records that `live` will not tell of.
    catches_up: bool,
}

/// Sends every record as it is stored.
///
/// An event has the record's id as `id`, `activity` as `event`, and the record's JSON in one line as
/// `data`. The stream begins with what is stored from now on, or after the record that
/// `Last-Event-ID` names, and has no end; comments show that it is alive.
#[utoipa::path(
    get,
    path = "/events",
    tag = "activity",
    operation_id = "watchActivity",
    params((
        "Last-Event-ID" = Option<String>,
        Header,
        description = "The record seen last",
        nullable = false,
        pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
    )),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = 500, description = "The log cannot be read"),
        (status = 503, description = "Records on their way to the log did not arrive in time"),
    )
)]
pub(super) async fn events(
    state: &State,
    worker: &Worker,
    query: Query,
    headers: &HeaderMap,
    id: &str,
) -> Result<Response<Body>, Failure> {
    query.finish()?;
    let seen = match headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(value) => Some(value.to_str().ok().and_then(Id::parse).ok_or_else(unknown_id)?),
    };
    let log = worker.proxy.activity.clone();
    // Before the log is looked at, so that no record falls between.
    let live = log.subscribe();
    let end =
        activity::ask(worker, |activity| Ok(activity.view()?.next().saturating_sub(1))).await?;
    let events = Events {
        activity: log,
        live,
        ending: state.ending.clone(),
        // A number beyond the end is another log's: then it begins with what comes.
        seq: seen.map_or(end, |seen| seen.seq().min(end)),
        behind: VecDeque::new(),
        catches_up: seen.is_some(),
    };
    let hello = Bytes::from(format!("retry: {RETRY_MS}\n: the log ends at record {end}\n\n"));
    let chunks = stream::try_unfold((Some(hello), events), async |(hello, mut events)| {
        let chunk = match hello {
            Some(hello) => Some(hello),
            None => events.next().await.map_err(|error| Aborted(format!("events: {error}")))?,
        };
        Ok(chunk.map(|chunk| (chunk, (None, events))))
    });
    let mut response = answer::json(StatusCode::OK, Body::Stream(Box::pin(chunks)), id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Events {
    /// The next chunk; `None` when the server ends.
    async fn next(&mut self) -> Result<Option<Bytes>, QueryError> {
        loop {
            if *self.ending.borrow() {
                return Ok(None);
            }
            if let Some(record) = self.behind.pop_front() {
                return Ok(Some(event(&record)));
            }
            if self.catches_up {
                self.catch_up().await?;
                continue;
            }
            tokio::select! {
                _ = self.ending.wait_for(|ending| *ending) => return Ok(None),
                next = self.live.next() => match next {
                    LiveEvent::Record(record) if record.seq <= self.seq => {}
                    LiveEvent::Record(record) if record.seq == self.seq + 1 => {
                        self.seq = record.seq;
                        return Ok(Some(event(&record)));
                    }
                    LiveEvent::Record(_) | LiveEvent::Lagged => self.catches_up = true,
                    LiveEvent::Closed => return Ok(None),
                },
                () = tokio::time::sleep(HEARTBEAT) => return Ok(Some(Bytes::from_static(b":\n\n"))),
            }
        }
    }

    /// Reads the next page behind the last record sent; an empty one is the end of the log.
    async fn catch_up(&mut self) -> Result<(), QueryError> {
        let (activity, seq) = (self.activity.clone(), self.seq);
        let read = move || Ok(activity.view()?.since(seq, &Filter::default(), PAGE_RECORDS)?);
        let read = tokio::task::spawn_blocking(read).await;
        let (records, last) = read.unwrap_or(Err(QueryError::Busy))?;
        self.catches_up = !records.is_empty();
        (self.behind, self.seq) = (records.into(), last);
        Ok(())
    }
}

fn unknown_id() -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "Invalid Last-Event-ID: must be the id of a record")
}

/// A record as an event.
fn event(record: &Record) -> Bytes {
    let json = activity::one_line(record);
    format!("id: {}\nevent: activity\ndata: {json}\n\n", record.id).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Config, Draft, Source, Status, Type};

    fn note(activity: &Activity, count: u64) {
        for _ in 0..count {
            activity.note(Draft::new(Type::Approval, Source::Internal, Status::Success));
        }
        activity.flush().unwrap();
    }

    #[tokio::test]
    async fn act_7_a_lagging_reader_gets_every_record_once_and_in_order() {
        // More than a live reader may be behind.
        const RECORDS: u64 = 2500;
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let (ending, ended) = watch::channel(false);
        let mut events = Events {
            live: activity.subscribe(),
            activity: activity.clone(),
            ending: ended,
            seq: activity.view().unwrap().next() - 1,
            behind: VecDeque::new(),
            catches_up: false,
        };
        let begin = events.seq;
        note(&activity, RECORDS);
        let mut seqs = Vec::new();
        for round in [RECORDS, 3] {
            for _ in 0..round {
                let chunk = events.next().await.unwrap().unwrap();
                let text = std::str::from_utf8(&chunk).unwrap();
                let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
                let record: serde_json::Value = serde_json::from_str(data).unwrap();
                assert!(text.starts_with(&format!("id: {}\n", record["id"].as_str().unwrap())));
                seqs.push(record["seq"].as_u64().unwrap());
            }
            // What comes after it has caught up is live again.
            note(&activity, if round == RECORDS { 3 } else { 0 });
        }
        assert_eq!(seqs, (begin + 1..=begin + RECORDS + 3).collect::<Vec<_>>());
        ending.send_replace(true);
        assert_eq!(events.next().await.unwrap(), None);
        drop(events);
        writer.close().unwrap();
    }
}
