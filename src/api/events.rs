//! `/events`: every record as it is stored, as server-sent events (ACT-7).
//!
//! Records are rendered once for all readers, by a thread of low priority (`activity::live`), and
//! each reader is sent them at its own pace. One that reconnects names the record it saw last
//! (`Last-Event-ID`), and one that falls behind catches up from the log, portion by portion; both
//! get every record once, in order. One that leaves what it was sent unread for too long is cut off,
//! with a last event that says why and after which record to resume. There are no filters here.
//!
//! The records of a fleet's other nodes come beside them (`fleet_watch`), and what one resumes after is
//! then a place in the log of each node, which the last event of a portion has (`fleet_events`).
//!
//! The bytes a second that all readers together are sent are bounded, and with them the workers' time.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::watch;

use super::activity;
use super::fleet_events::{LastSeen, OwnStart, WatchedFleet};
use super::query_parameters::{BadQuery, Query};
use super::reader_limits::{self, Purpose, ReaderPace, ReaderSlot, event};
use super::response::{self, ApiError};
use super::state::State;
use crate::activity::record::NodeId;
use crate::activity::{
    Activity, Filter, Id, Live, LiveEvent, PORTION, Page, Payloads, Portion, QueryError, StoreError,
};
use crate::downstream::body::Body;
use crate::downstream::source::Source;
use crate::fleet::WatchNews;
use crate::fleet::fleet_watch::OVERLAP_MS;
use crate::identity::PageSession;
use crate::io::clock::wall_ms;
use crate::mcp::headers;
use crate::proxy::Worker;

/// How often a stream without records shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that lost the stream comes back after this long, in milliseconds.
const RETRY_MS: u64 = 1000;
/// Bytes a second that all readers together are sent: a few hundredths of what one worker can write.
/// A single reader never reaches it, as the log's own rate is lower; many share it equally.
const SHARED_BYTES_PER_SECOND: u64 = 32 << 20;

/// The record a client saw last.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// One reader's stream.
struct Events {
    activity: Activity,
    live: Live,
    ending: watch::Receiver<bool>,
    /// That of the page, which it is followed with: it ends with that.
    session: Option<PageSession>,
    /// The last record sent, or seen before.
    last: Option<Id>,
    pace: ReaderPace,
    /// Its share of the bytes is used up until then.
    rests_until: Option<Instant>,
    /// The last event was sent.
    over: bool,
    /// The other nodes, where there is a fleet.
    fleet: Option<WatchedFleet>,
    _place: Option<ReaderSlot>,
}

/// Sends every record as it is stored.
///
/// An event has the record's id as `id`, `activity` as `event`, and the record's JSON in one line as
/// `data`. The stream begins with what is stored from now on, or after the record that
/// `Last-Event-ID` names, and has no end; comments show that it is alive. A reader that takes nothing
/// for 10 seconds is cut off: the last event is `cut-off`, and its `data` says why (`error`) and where
/// to go on (`resume_after`, which is also the last `id`). An event `removed` names records (`first`,
/// `last`) that retention removed before they were sent. In a fleet the records of the other nodes that live come, too, as they
/// are heard of; events `missing` and `back` name a `node` that does not answer or live, and one that does again. There the `id`
/// is a place in the logs of all nodes, which the last event of each portion has: nothing is left out after it, at whatever node,
/// and what the other nodes stored two seconds before comes again after the id of a record.
#[utoipa::path(
    get,
    path = "/events",
    tag = "activity",
    operation_id = "watchActivity",
    params(
        (
            "Last-Event-ID" = Option<String>,
            Header,
            description = "The record seen last; in a fleet the last `id`, too",
            nullable = false,
            pattern = "^([0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}|[0-9]{1,20}(;[a-z0-9._-]{1,63}=[0-9]{1,20})*)$",
        ),
        (
            "node" = Option<String>,
            Query,
            description = "In a fleet, the name of a node, or the id of its log: its records alone",
            nullable = false,
            min_length = 1,
            max_length = 1024,
        ),
    ),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
        (status = 500, description = "The log cannot be read"),
        (
            status = 503,
            description = "Too many read already, over all or from one address; or records on their way to the log did not arrive in time",
            headers(("Retry-After" = u64, description = "Seconds; where too many read")),
        ),
    )
)]
pub(super) async fn events(
    state: &State,
    worker: &Worker,
    (source, session): (Source, Option<PageSession>),
    mut query: Query,
    headers: &HeaderMap,
    request_id: &str,
) -> Result<Response<Body>, ApiError> {
    let member = worker.proxy.fleet.as_ref();
    let wanted = if member.is_some() { query.text("node")? } else { None };
    query.finish()?;
    // Before it has its place it can ask nobody yet, which the stream tells.
    let node = member.filter(|node| node.config.key.is_some());
    let seen = |value: &HeaderValue| LastSeen::parse(value.to_str().ok()?, node.is_some());
    let seen = match headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(value) => Some(seen(value).ok_or_else(unknown_id)?),
    };
    let place = state.readers.enter(Purpose::Watch, source)?;
    let (now, activity) = (wall_ms(), worker.proxy.activity.clone());
    let own = activity.node_name().unwrap_or_default();
    let from = seen.as_ref().filter(|_| node.is_some()).map(|seen| seen.in_log_of(own));
    let LogBegin { end, newest, after, log } = begin(worker, from).await?;
    let record = seen.as_ref().and_then(LastSeen::record);
    let (last, seq) = match after {
        Some(after) => (record, after),
        // A number beyond the end is of another log: the stream then begins with what is stored from now on.
        None => {
            let last = record.filter(|seen| seen.seq() <= end && node.is_none()).or(newest);
            (last, last.map_or(end, Id::seq))
        }
    };
    let is_own = wanted.as_deref().is_some_and(|wanted| wanted == own || wanted == log);
    let fleet = match (node, wanted) {
        (_, _) if is_own => None,
        (Some(node), wanted) => WatchedFleet::begin(node, wanted, seen, (seq, now)),
        (None, None) => None,
        (None, Some(value)) => {
            let expected =
                "this node or the id of its log: without cluster.key it asks no other".to_owned();
            return Err(BadQuery::Invalid { name: "node", value, expected }.into());
        }
    };
    let events = Events {
        live: activity.live(seq, event),
        fleet,
        activity: activity.clone(),
        ending: state.ending.clone(),
        session,
        last,
        pace: ReaderPace::default(),
        rests_until: None,
        over: false,
        _place: Some(place),
    };
    // A client that loses the stream before its first event needs an id to resume after, too.
    let begin = events.resumes_after().map(|id| format!("id: {id}\n")).unwrap_or_default();
    let hello = format!("retry: {RETRY_MS}\n{begin}: the log ends at record {end}\n\n");
    let chunks = stream::unfold((Some(Bytes::from(hello)), events), async |(hello, mut events)| {
        let chunk = match hello {
            Some(hello) => hello,
            None => events.next().await?,
        };
        Some((Ok(chunk), (None, events)))
    });
    let mut response = response::json(StatusCode::OK, Body::Stream(Box::pin(chunks)), request_id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(headers::BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// Where the stream of this node's log begins.
struct LogBegin {
    end: u64,
    newest: Option<Id>,
    /// The last record before those that are wanted, if that was asked and is one of this log.
    after: Option<u64>,
    /// Its id.
    log: String,
}

async fn begin(worker: &Worker, from: Option<OwnStart>) -> Result<LogBegin, ApiError> {
    activity::ask(worker, move |activity| {
        let view = activity.view()?;
        let page = Page { limit: 1, payloads: Payloads::HeadsOnly, ..Page::default() };
        let newest = view.list(&Filter::default(), &page)?.records.pop();
        let (end, newest) = (view.next().saturating_sub(1), newest.map(|record| record.id));
        let since = |time: u64| {
            let below = view.number_below(Id::new(time, 0, NodeId([0; 16])))?;
            Ok::<_, StoreError>(below.saturating_sub(1).max(view.first() - 1).min(end))
        };
        let after = match from {
            None => None,
            Some(OwnStart::Record(id)) if view.get(id)?.is_some() => Some(id.seq()),
            // Of another node: its own records may have been on their way.
            Some(OwnStart::Record(id)) => Some(since(id.time_ms().saturating_sub(OVERLAP_MS))?),
            Some(OwnStart::Number(seq)) => (seq <= end).then_some(seq),
            Some(OwnStart::Time(time)) => Some(since(time)?),
        };
        Ok(LogBegin { end, newest, after, log: view.node().to_string() })
    })
    .await
}

/// What one read of the log has found.
struct Caught {
    portion: Portion,
    /// The number of the last record that was read, whether it is sent or not.
    last: u64,
    /// The first and last of those that retention removed before.
    removed: Option<(u64, u64)>,
}

impl Events {
    /// The next chunk; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        if let Some(waited) = self.pace.asks(Instant::now()) {
            return Some(self.cut_off(&reader_limits::too_slow(waited)));
        }
        let (mut ending, mut session) = (self.ending.clone(), self.session.clone());
        let chunk = tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => return None,
            () = over(&mut session) => return None,
            chunk = self.chunk() => chunk?,
        };
        let now = Instant::now();
        self.pace.gives(now);
        let readers = self.live.readers().max(1) as u64;
        let part = (chunk.len() as u64).saturating_mul(readers) * 1000 / SHARED_BYTES_PER_SECOND;
        self.rests_until = (part > 0).then(|| now + Duration::from_millis(part));
        Some(chunk)
    }

    async fn chunk(&mut self) -> Option<Bytes> {
        if let Some(until) = self.rests_until.take() {
            tokio::time::sleep_until(until.into()).await;
        }
        let mut pause = pin!(tokio::time::sleep(HEARTBEAT));
        loop {
            tokio::select! {
                news = heard(&mut self.fleet) => {
                    let told = self.fleet.as_mut().and_then(|fleet| fleet.told(news));
                    if told.is_some() {
                        return told;
                    }
                }
                next = self.live.next() => match next {
                    LiveEvent::Records(..) if self.passes_own() => {}
                    LiveEvent::Records(bytes, last) => {
                        self.last = Some(last);
                        return Some(self.of_own(bytes, last.seq()));
                    }
                    LiveEvent::Behind => match self.catch_up().await {
                        Ok(bytes) if bytes.is_empty() => {}
                        Ok(bytes) => return Some(bytes),
                        Err(error) => return Some(self.cut_off(&error.to_string())),
                    },
                    LiveEvent::Closed => return None,
                },
                () = pause.as_mut() => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }

    /// Another node's records alone are meant: those of this one are passed over.
    fn passes_own(&self) -> bool {
        self.fleet.as_ref().is_some_and(WatchedFleet::passes_own)
    }

    /// Events of this node's records up to that number, as this reader is sent them.
    fn of_own(&mut self, events: Bytes, last: u64) -> Bytes {
        match &mut self.fleet {
            None => events,
            Some(fleet) => fleet.of_own(&events, last),
        }
    }

    /// What a reader resumes after that has got all that it was sent.
    fn resumes_after(&self) -> Option<String> {
        match &self.fleet {
            None => self.last.map(|id| id.to_string()),
            Some(fleet) => Some(fleet.place().to_string()),
        }
    }

    /// Reads the next portion behind the last record sent.
    async fn catch_up(&mut self) -> Result<Bytes, QueryError> {
        let seq = self.live.seq();
        let caught = self.activity.aside(move |activity| catch(activity, seq)).await??;
        // Behind lost numbers nothing is found: go on with the next number.
        self.live.has_read(caught.last.max(seq + 1));
        if self.passes_own() {
            return Ok(Bytes::new());
        }
        self.last = caught.portion.last().or(self.last);
        let events = self.of_own(caught.portion.bytes().clone(), self.live.seq());
        let Some((first, last)) = caught.removed else {
            return Ok(events);
        };
        let gone = serde_json::json!({"first": first, "last": last, "reason": "retention"});
        let mut told = format!("event: removed\ndata: {gone}\n\n").into_bytes();
        told.extend_from_slice(&events);
        Ok(told.into())
    }

    /// The last event: why the stream ends, and after which record to resume.
    fn cut_off(&mut self, reason: &str) -> Bytes {
        self.over = true;
        format!(
            "event: cut-off\ndata: {}\n\n",
            reader_limits::last_words(reason, self.resumes_after())
        )
        .into()
    }
}

/// The next news of other nodes; never without any.
async fn heard(fleet: &mut Option<WatchedFleet>) -> WatchNews {
    match fleet {
        None => std::future::pending().await,
        Some(fleet) => fleet.next().await,
    }
}

/// Comes back when the session of the page is over, if it is followed with one.
async fn over(session: &mut Option<PageSession>) {
    match session {
        None => std::future::pending().await,
        Some(session) => {
            let until = session.until;
            let _ = tokio::time::timeout_at(until.into(), session.ended()).await;
        }
    }
}

/// Reads what follows the record of that number.
fn catch(activity: &Activity, seq: u64) -> Result<Caught, QueryError> {
    let view = activity.stored()?;
    let removed = (view.first() > seq + 1).then(|| (seq + 1, view.first() - 1));
    let (records, last) = view.since(seq, &Filter::default(), PORTION)?;
    Ok(Caught { portion: Portion::of(&records, event), last, removed })
}

fn unknown_id() -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "Invalid Last-Event-ID: must be the id of a record")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Config, Draft, Source, Status, Type};

    /// More than is kept for live readers, and than a reader's portion.
    const RECORDS: u64 = 20_000;

    async fn note(activity: &Activity, count: u64) {
        for _ in 0..count {
            activity.note(Draft::new(Type::Approval, Source::Internal, Status::Success));
        }
        let activity = activity.clone();
        tokio::task::spawn_blocking(move || activity.flush().unwrap()).await.unwrap();
    }

    fn events(activity: &Activity, ending: &watch::Sender<bool>) -> Events {
        Events {
            live: activity.live(activity.view().unwrap().next() - 1, event),
            activity: activity.clone(),
            ending: ending.subscribe(),
            session: None,
            last: None,
            pace: ReaderPace::default(),
            rests_until: None,
            over: false,
            fleet: None,
            _place: None,
        }
    }

    /// The records of a chunk, by number.
    fn seqs(chunk: &Bytes) -> Vec<u64> {
        let text = std::str::from_utf8(chunk).unwrap();
        let events = text.split_terminator("\n\n").filter(|event| *event != ":");
        let seqs = events.map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let record: serde_json::Value = serde_json::from_str(data).unwrap();
            let id = record["id"].as_str().unwrap();
            assert!(event.starts_with(&format!("id: {id}\nevent: activity\n")), "{event}");
            record["seq"].as_u64().unwrap()
        });
        seqs.collect()
    }

    #[tokio::test]
    async fn act_7_readers_fast_and_slow_get_every_record_once_in_order_and_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let ending = watch::Sender::new(false);
        let [mut slow, mut one, mut other] = [(); 3].map(|()| events(&activity, &ending));
        note(&activity, 1).await;
        for reader in [&mut slow, &mut one, &mut other] {
            assert_eq!(seqs(&reader.next().await.unwrap()).len(), 1);
        }
        let begin = slow.live.seq();
        note(&activity, 3).await;
        let (first, second) = (one.next().await.unwrap(), other.next().await.unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr(), "rendered once");
        drop((one, other));
        // The slow one is behind all that is kept, and catches up; what comes then is live again.
        let mut seen = Vec::new();
        for count in [RECORDS, 3] {
            note(&activity, count).await;
            let stored = activity.stored().unwrap().next() - 1;
            while slow.live.seq() < stored {
                slow.rests_until = None;
                seen.extend(seqs(&slow.next().await.unwrap()));
            }
        }
        assert_eq!(seen, (begin + 1..=begin + RECORDS + 6).collect::<Vec<_>>());
        ending.send_replace(true);
        assert_eq!(slow.next().await, None);
        drop(slow);
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_took_nothing_for_too_long_is_told_where_to_resume() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let ending = watch::Sender::new(false);
        let mut events = events(&activity, &ending);
        note(&activity, 1).await;
        assert_eq!(seqs(&events.next().await.unwrap()).len(), 1);
        let long_ago = Instant::now().checked_sub(reader_limits::PATIENCE + Duration::from_secs(2));
        events.pace.gives(long_ago.unwrap());
        let last = events.next().await.unwrap();
        let text = std::str::from_utf8(&last).unwrap();
        let data = text.strip_prefix("event: cut-off\ndata: ").unwrap();
        let words: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(words["error"], "nothing was read for 12 s, and a reader may take 10 s");
        assert_eq!(words["resume_after"], events.last.unwrap().to_string());
        assert_eq!(events.next().await, None);
        drop(events);
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn each_of_many_readers_has_its_part_of_the_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let ending = watch::Sender::new(false);
        let mut readers: Vec<_> = (0..32).map(|_| events(&activity, &ending)).collect();
        note(&activity, 100).await;
        let reader = readers.first_mut().unwrap();
        let bytes = reader.next().await.unwrap().len() as u64;
        let rest = reader.rests_until.unwrap().saturating_duration_since(Instant::now());
        let whole = Duration::from_millis(bytes * 32 * 1000 / SHARED_BYTES_PER_SECOND);
        assert!(rest <= whole && whole > Duration::ZERO, "{rest:?} of {whole:?}");
        drop(readers);
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }
}
