//! `/events`: every record as it is stored, as server-sent events (ACT-7).
//!
//! Records are rendered once for all readers, by a thread of low priority (`activity::live`), and
//! each reader is sent them at its own pace. One that reconnects names the record it saw last
//! (`Last-Event-ID`), and one that falls behind catches up from the log, portion by portion; both
//! get every record once, in order; the records of a fleet's other nodes come beside them (`fleet_watch`). One that leaves what it was sent unread for too long is cut off,
//! with a last event that says why and after which record to resume. There are no filters here.
//!
//! The bytes a second that all readers together are sent are bounded, and with them the workers' time.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::watch;

use super::activity;
use super::query_parameters::Query;
use super::reader_limits::{self, Purpose, ReaderPace, ReaderSlot};
use super::response::{self, ApiError};
use super::state::State;
use crate::activity::record::NodeId;
use crate::activity::{
    Activity, Filter, Id, Live, LiveEvent, PORTION, Page, Payloads, Portion, QueryError, Record,
};
use crate::downstream::body::Body;
use crate::downstream::source::Source;
use crate::fleet::fleet_watch::OVERLAP_MS;
use crate::fleet::{FleetWatch, WatchNews, WatchStart};
use crate::identity::PageSession;
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
    fleet: Option<FleetWatch>,
    /// Another node's records alone are meant: those of this one are passed over.
    elsewhere: bool,
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
/// are heard of, and those of the last two seconds again after a reconnect; events `missing` and `back` name a `node` that does not
/// answer, and one that does again.
#[utoipa::path(
    get,
    path = "/events",
    tag = "activity",
    operation_id = "watchActivity",
    params(
        (
            "Last-Event-ID" = Option<String>,
            Header,
            description = "The record seen last",
            nullable = false,
            pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
        ),
        (
            "node" = Option<String>,
            Query,
            description = "In a fleet, the name of a node: its records alone",
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
    let wanted = query.text("node")?;
    query.finish()?;
    let seen = match headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(value) => Some(value.to_str().ok().and_then(Id::parse).ok_or_else(unknown_id)?),
    };
    let place = state.readers.enter(Purpose::Watch, source)?;
    let node = worker.proxy.fleet.as_ref().filter(|node| node.peers().is_some());
    let begun = begin(worker, seen.filter(|_| node.is_some()));
    let LogBegin { end, newest, after, log } = begun.await?;
    let is_own = |wanted: &str| worker.proxy.activity.node_name() == Some(wanted) || log == wanted;
    let elsewhere = wanted.as_deref().is_some_and(|wanted| !is_own(wanted));
    let fleet = node.filter(|_| wanted.is_none() || elsewhere).and_then(|node| {
        let start = seen.map_or(WatchStart::Now, WatchStart::After);
        FleetWatch::begin(node, wanted, start)
    });
    // A number beyond the end is of another log: the stream then begins with what is stored from now on.
    let (last, seq) = match after {
        Some(after) => (seen, after),
        None => {
            let last = seen.filter(|seen| seen.seq() <= end && !elsewhere).or(newest);
            (last, last.map_or(end, Id::seq))
        }
    };
    let activity = worker.proxy.activity.clone();
    let events = Events {
        live: activity.live(seq, event),
        fleet,
        elsewhere,
        activity,
        ending: state.ending.clone(),
        session,
        last,
        pace: ReaderPace::default(),
        rests_until: None,
        over: false,
        _place: Some(place),
    };
    // A client that loses the stream before its first event needs an id to resume after, too.
    let id = |id: Id| format!("id: {id}\n");
    let begin = last.map(id).unwrap_or_default();
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
    /// The last record before those that are wanted, where another node's record may have been seen last.
    after: Option<u64>,
    /// Its id.
    log: String,
}

async fn begin(worker: &Worker, seen: Option<Id>) -> Result<LogBegin, ApiError> {
    activity::ask(worker, move |activity| {
        let view = activity.view()?;
        let page = Page { limit: 1, payloads: Payloads::Exclude, ..Page::default() };
        let newest = view.list(&Filter::default(), &page)?.records.pop();
        let (end, newest) = (view.next().saturating_sub(1), newest.map(|record| record.id));
        let after = match seen {
            None => None,
            Some(id) if view.get(id)?.is_some() => Some(id.seq()),
            // Of another node: its own records may have been on their way.
            Some(id) => {
                let from = id.time_ms().saturating_sub(OVERLAP_MS);
                let below = view.number_below(Id::new(from, 0, NodeId([0; 16])))?;
                Some(below.saturating_sub(1).max(view.first() - 1).min(end))
            }
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
        loop {
            tokio::select! {
                news = heard(&mut self.fleet) => return Some(self.told(news)),
                next = self.live.next() => match next {
                    LiveEvent::Records(..) if self.elsewhere => {}
                    LiveEvent::Records(bytes, last) => {
                        self.last = Some(last);
                        return Some(bytes);
                    }
                    LiveEvent::Behind => match self.catch_up().await {
                        Ok(bytes) if bytes.is_empty() => {}
                        Ok(bytes) => return Some(bytes),
                        Err(error) => return Some(self.cut_off(&error.to_string())),
                    },
                    LiveEvent::Closed => return None,
                },
                () = tokio::time::sleep(HEARTBEAT) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }

    /// What another node's news are for the reader.
    fn told(&mut self, news: WatchNews) -> Bytes {
        let mut out = Vec::new();
        match news {
            WatchNews::Records(records) => {
                records.iter().for_each(|record| event(record, &mut out));
                self.last = records.last().map(|record| record.id).or(self.last);
            }
            WatchNews::Missing(node, why) => {
                let told = serde_json::json!({"node": node, "reason": why});
                out.extend_from_slice(format!("event: missing\ndata: {told}\n\n").as_bytes());
            }
            WatchNews::Back(node) => {
                let told = serde_json::json!({"node": node});
                out.extend_from_slice(format!("event: back\ndata: {told}\n\n").as_bytes());
            }
            WatchNews::Removed(node, first, last) => {
                let gone = serde_json::json!({
                    "node": node, "first": first, "last": last, "reason": "retention"
                });
                out.extend_from_slice(format!("event: removed\ndata: {gone}\n\n").as_bytes());
            }
        }
        out.into()
    }

    /// Reads the next portion behind the last record sent.
    async fn catch_up(&mut self) -> Result<Bytes, QueryError> {
        let seq = self.live.seq();
        let caught = self.activity.aside(move |activity| catch(activity, seq)).await??;
        // Behind lost numbers nothing is found: go on with the next number.
        self.live.has_read(caught.last.max(seq + 1));
        if self.elsewhere {
            return Ok(Bytes::new());
        }
        self.last = caught.portion.last().or(self.last);
        let Some((first, last)) = caught.removed else {
            return Ok(caught.portion.bytes().clone());
        };
        let gone = serde_json::json!({"first": first, "last": last, "reason": "retention"});
        let mut told = format!("event: removed\ndata: {gone}\n\n").into_bytes();
        told.extend_from_slice(caught.portion.bytes());
        Ok(told.into())
    }

    /// The last event: why the stream ends, and after which record to resume.
    fn cut_off(&mut self, reason: &str) -> Bytes {
        self.over = true;
        format!("event: cut-off\ndata: {}\n\n", reader_limits::last_words(reason, self.last)).into()
    }
}

/// The next news of other nodes; never without any.
async fn heard(fleet: &mut Option<FleetWatch>) -> WatchNews {
    let news = match fleet {
        None => None,
        Some(watch) => watch.next().await,
    };
    match news {
        Some(news) => news,
        None => std::future::pending().await,
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

/// A record as an event.
fn event(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {}\nevent: activity\ndata: ", record.id).as_bytes());
    reader_limits::one_line(record, out);
    out.extend_from_slice(b"\n\n");
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
            elsewhere: false,
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
