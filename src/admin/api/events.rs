//! `/events`: a server-sent event for every stored record (ACT-7).
//!
//! Records are rendered once for all readers by a low-priority thread (`activity::live`), and each reader receives them
//! at its own pace. A reconnecting reader names the last record it saw (`Last-Event-ID`), and a reader that falls
//! behind catches up from the log in portions. Both get every record once, in order. A reader that leaves data unread
//! for too long is disconnected with a final event that states the reason and the record to resume after. There are no
//! filters.
//!
//! In a fleet the records of other nodes are merged in (`fleet_watch`). A reader then has a position in the log of each
//! node (`fleet::record_questions`). The last event of each portion carries this position as its `id`; the other events
//! have no id. A resuming reader thus gets everything after that portion in each log, and no record of a slow or
//! unreachable node is skipped.
//!
//! The total bytes per second sent to all readers are limited, which also limits the workers' CPU time.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::watch;

use super::query_parameters::BadQuery;
use super::reader_limits::{Purpose, ReaderPace, ReaderSlot, event};
use super::request::ApiRequest;
use super::response::ApiError;
use super::{activity, reader_limits, response};
use mcpproxy_activity::record::NodeId;
use mcpproxy_activity::{
    Activity, Filter, Id, Live, LiveEvent, PORTION, Page, Payloads, Portion, QueryError, StoreError,
};
use mcpproxy_downstream::body::Body;
use mcpproxy_fleet::fleet_watch::OVERLAP_MS;
use mcpproxy_fleet::record_questions::WatchCursor;
use mcpproxy_fleet::{FleetNode, FleetWatch, WatchEvent};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_protocol::mcp::headers;
use mcpproxy_runtime::io::clock::wall_ms;

/// Interval of keep-alive comments on a stream without records.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Reconnection delay for clients, in milliseconds.
const RETRY_MS: u64 = 1000;
/// Total bytes per second for all readers: a few percent of the rate at which one worker can write. A single reader
/// never reaches it, because the log grows more slowly; many readers share it equally.
const SHARED_BYTES_PER_SECOND: u64 = 32 << 20;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static(headers::LAST_EVENT_ID);

/// One reader's stream.
struct Events {
    activity: Activity,
    live: Live,
    ending: watch::Receiver<bool>,
    /// The last record sent; before the first one, the last record that precedes the stream.
    last: Option<Id>,
    pace: ReaderPace,
    /// Time until which the reader's share of the bandwidth is used up.
    paused_until: Option<Instant>,
    /// Set when the final event was sent.
    closed: bool,
    /// The other nodes, in a fleet.
    fleet: Option<WatchedFleet>,
    _slot: Option<ReaderSlot>,
}

/// Streams every record as it is stored.
///
/// An event has the record's id as `id`, `activity` as `event`, and the record's JSON on one line as `data`. The stream
/// starts with records stored from now on, or after the record that `Last-Event-ID` names, and does not end; comments
/// keep it alive. A reader that reads nothing for 10 seconds is disconnected: the final event is `cut-off`, and its
/// `data` states the reason (`error`) and where to resume (`resume_after`, which is also the last `id`). An event
/// `removed` names records (`first`, `last`) that retention removed before they were sent. In a fleet the records of
/// other reachable nodes are included; events `missing` and `back` name a `node` that became unreachable or reachable
/// again. In a fleet, the `id` is a position in the logs of all nodes, carried by the last event of each portion, so
/// that no record after it is skipped on any node. After resuming from a record id, records that other nodes stored up
/// to two seconds earlier are repeated.
#[utoipa::path(
    get,
    path = "/events",
    tag = "activity",
    operation_id = "watchActivity",
    params(
        (
            "Last-Event-ID" = Option<String>,
            Header,
            description = "The last record seen; in a fleet also the last `id`",
            nullable = false,
            pattern = "^([0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}|[0-9]{1,20}(;[a-z0-9._-]{1,63}=[0-9]{1,20})*)$",
        ),
        (
            "node" = Option<String>,
            Query,
            description = "In a fleet: only records of the node with this name or log id",
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
            description = "Too many readers, in total or from one address; or pending records were not stored in time",
            headers(("Retry-After" = u64, description = "Seconds; if there are too many readers")),
        ),
    )
)]
pub(super) async fn events(
    ApiRequest { state, worker, connection, parts, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let mut query = query?;
    let member = worker.proxy.nodes.fleet_node();
    let wanted = if member.is_some() { query.text("node")? } else { None };
    query.finish()?;
    // A node that has not joined yet cannot query others; the stream reports that.
    let node = member.filter(|node| node.config.key.is_some());
    let seen = |value: &HeaderValue| LastSeen::parse(value.to_str().ok()?, node.is_some());
    let seen = match parts.headers.get(&LAST_EVENT_ID) {
        None => None,
        Some(value) => Some(seen(value).ok_or_else(unknown_id)?),
    };
    let slot = state.readers.enter(Purpose::Watch, connection.source)?;
    let (now, activity) = (wall_ms(), worker.proxy.activity.clone());
    let own = activity.node_name().unwrap_or_default();
    let from = seen.as_ref().filter(|_| node.is_some()).map(|seen| seen.in_log_of(own));
    let LogBegin { end, newest, after, log } = begin(worker, from).await?;
    let record = seen.as_ref().and_then(LastSeen::record);
    let (last, seq) = match after {
        Some(after) => (record, after),
        // A number beyond the end belongs to another log, so the stream starts with new records.
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
                "this node or the id of its log: without cluster.key it cannot query others"
                    .to_owned();
            return Err(BadQuery::Invalid { name: "node", value, expected }.into());
        }
    };
    let events = Events {
        live: activity.live(seq, event),
        fleet,
        activity: activity.clone(),
        ending: state.ending.clone(),
        last,
        pace: ReaderPace::default(),
        paused_until: None,
        closed: false,
        _slot: Some(slot),
    };
    // A client that loses the stream before its first event also needs an id to resume after.
    let begin = events.resumes_after().map(|id| format!("id: {id}\n")).unwrap_or_default();
    let hello = format!("retry: {RETRY_MS}\n{begin}: the log ends at record {end}\n\n");
    let chunks = stream::unfold((Some(Bytes::from(hello)), events), async |(hello, mut events)| {
        let chunk = match hello {
            Some(hello) => hello,
            None => events.next().await?,
        };
        Some((Ok(chunk), (None, events)))
    });
    let mut response = response::json(StatusCode::OK, Body::Stream(Box::pin(chunks)), id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(headers::BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// Start of the stream in this node's log.
struct LogBegin {
    end: u64,
    newest: Option<Id>,
    /// Number of the last record before the stream, if requested and in this log.
    after: Option<u64>,
    /// Id of the log.
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
            // The id belongs to a record of another node, and records of this node may have been stored slightly later.
            Some(OwnStart::Record(id)) => Some(since(id.time_ms().saturating_sub(OVERLAP_MS))?),
            Some(OwnStart::Number(seq)) => (seq <= end).then_some(seq),
            Some(OwnStart::Time(time)) => Some(since(time)?),
        };
        Ok(LogBegin { end, newest, after, log: view.node().to_string() })
    })
    .await
}

/// Result of one read of the log.
struct LogRead {
    portion: Portion,
    /// Number of the last record read.
    last: u64,
    /// First and last number of records that retention removed before they were read.
    removed: Option<(u64, u64)>,
}

impl Events {
    /// The next chunk; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.closed {
            return None;
        }
        if let Some(waited) = self.pace.on_poll(Instant::now()) {
            return Some(self.cut_off(&reader_limits::too_slow(waited)));
        }
        let mut ending = self.ending.clone();
        let chunk = tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => return None,
            chunk = self.chunk() => chunk?,
        };
        let now = Instant::now();
        self.pace.on_send(now);
        let readers = self.live.readers().max(1) as u64;
        let part = (chunk.len() as u64).saturating_mul(readers) * 1000 / SHARED_BYTES_PER_SECOND;
        self.paused_until = (part > 0).then(|| now + Duration::from_millis(part));
        Some(chunk)
    }

    async fn chunk(&mut self) -> Option<Bytes> {
        if let Some(until) = self.paused_until.take() {
            tokio::time::sleep_until(until.into()).await;
        }
        let mut pause = pin!(tokio::time::sleep(HEARTBEAT));
        loop {
            tokio::select! {
                news = next_news(&mut self.fleet) => {
                    let events = self.fleet.as_mut().and_then(|fleet| fleet.render(news));
                    if events.is_some() {
                        return events;
                    }
                }
                next = self.live.next() => match next {
                    LiveEvent::Records(..) if self.skips_own() => {}
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

    /// Whether the reader receives only another node's records.
    fn skips_own(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.own.is_none())
    }

    /// Events of this node's records up to number `last`, in the form in which this reader receives them.
    fn of_own(&mut self, events: Bytes, last: u64) -> Bytes {
        match &mut self.fleet {
            None => events,
            Some(fleet) => fleet.of_own(&events, last),
        }
    }

    /// Id after which a reader resumes once it has received everything sent so far.
    fn resumes_after(&self) -> Option<String> {
        match &self.fleet {
            None => self.last.map(|id| id.to_string()),
            Some(fleet) => Some(fleet.place.to_string()),
        }
    }

    /// Reads the next portion after the last record sent.
    async fn catch_up(&mut self) -> Result<Bytes, QueryError> {
        let seq = self.live.seq();
        let read = self.activity.run_on_reader(move |activity| read_log(activity, seq)).await??;
        // Lost numbers have no stored record, so reading continues with the next number.
        self.live.skip_to(read.last.max(seq + 1));
        if self.skips_own() {
            return Ok(Bytes::new());
        }
        self.last = read.portion.last().or(self.last);
        let events = self.of_own(read.portion.bytes().clone(), self.live.seq());
        let Some((first, last)) = read.removed else {
            return Ok(events);
        };
        let removed = serde_json::json!({"first": first, "last": last, "reason": "retention"});
        let mut chunk = format!("event: removed\ndata: {removed}\n\n").into_bytes();
        chunk.extend_from_slice(&events);
        Ok(chunk.into())
    }

    /// The final event, with the reason why the stream ends and the position to resume from.
    fn cut_off(&mut self, reason: &str) -> Bytes {
        self.closed = true;
        format!(
            "event: cut-off\ndata: {}\n\n",
            reader_limits::final_message(reason, self.resumes_after())
        )
        .into()
    }
}

/// Waits for the next event of the other nodes; forever if there are none.
async fn next_news(fleet: &mut Option<WatchedFleet>) -> WatchEvent {
    match fleet {
        None => std::future::pending().await,
        Some(fleet) => fleet.next().await,
    }
}

/// Reads the records after number `seq`.
fn read_log(activity: &Activity, seq: u64) -> Result<LogRead, QueryError> {
    let view = activity.stored()?;
    let removed = (view.first() > seq + 1).then(|| (seq + 1, view.first() - 1));
    let (records, last) = view.since(seq, &Filter::default(), PORTION)?;
    Ok(LogRead { portion: Portion::of(&records, event), last, removed })
}

fn unknown_id() -> ApiError {
    ApiError::bad_request("Invalid Last-Event-ID: must be the id of a record")
}

/// Start of an event's id line.
const ID: &[u8] = b"id: ";

/// Last event that a resuming reader has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LastSeen {
    /// A record; the reader has also seen the records before it.
    Record(Id),
    /// A position in the logs of a fleet.
    Place(WatchCursor),
}

/// Position from which this node's own log is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnStart {
    /// Resumed after this record. If the record belongs to another log, resumed slightly before its time.
    Record(Id),
    /// Resumed after this record number.
    Number(u64),
    /// Resumed at this time, in milliseconds since 1970.
    Time(u64),
}

impl LastSeen {
    /// Parses a `Last-Event-ID`; positions are accepted only in a fleet.
    pub(super) fn parse(text: &str, in_fleet: bool) -> Option<Self> {
        let place = || WatchCursor::parse(text).filter(|_| in_fleet).map(Self::Place);
        Id::parse(text).map(Self::Record).or_else(place)
    }

    pub(super) fn record(&self) -> Option<Id> {
        match self {
            Self::Record(id) => Some(*id),
            Self::Place(_) => None,
        }
    }

    /// Position from which to resume the log of this node, which is named `own`.
    pub(super) fn in_log_of(&self, own: &str) -> OwnStart {
        match self {
            Self::Record(id) => OwnStart::Record(*id),
            Self::Place(place) => {
                place.after(own).map_or(OwnStart::Time(place.begins()), OwnStart::Number)
            }
        }
    }
}

/// A reader's view of the other nodes, and its position.
#[derive(Debug)]
pub(super) struct WatchedFleet {
    watch: FleetWatch,
    place: WatchCursor,
    /// This node's name; `None` if only another node's records are sent.
    own: Option<String>,
}

impl WatchedFleet {
    /// Watches the fleet of `node` after `seen`, or starting at `now` (milliseconds since 1970); only the node `other`
    /// if given. `own` is the number after which this node's own records start. `None` if no other node can be queried.
    pub(super) fn begin(
        node: &Arc<FleetNode>,
        other: Option<String>,
        seen: Option<LastSeen>,
        (own, now): (u64, u64),
    ) -> Option<Self> {
        let mut place = match seen {
            None => WatchCursor::since(now),
            Some(LastSeen::Record(id)) => {
                WatchCursor::since(id.time_ms().saturating_sub(OVERLAP_MS))
            }
            Some(LastSeen::Place(place)) => place,
        };
        let name = node.name.as_str();
        let is_own_meant = other.is_none();
        if is_own_meant {
            // A position in an earlier log of this node does not apply to the current one.
            place.forgets(name);
            place.moves(name, own);
        }
        let watch = FleetWatch::begin(node, other, place.clone())?;
        Some(Self { watch, place, own: is_own_meant.then(|| name.to_owned()) })
    }

    /// Waits for the next event of the other nodes; forever if there are none. Cancel-safe.
    pub(super) async fn next(&mut self) -> WatchEvent {
        match self.watch.next().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Rewrites events of this node's records up to number `last` with the position as their id.
    pub(super) fn of_own(&mut self, events: &[u8], last: u64) -> Bytes {
        if let Some(own) = &self.own {
            self.place.moves(own, last);
        }
        placed(events, &self.place)
    }

    /// Renders a watch event as server-sent events; `None` if there is nothing to send.
    pub(super) fn render(&mut self, news: WatchEvent) -> Option<Bytes> {
        let (name, data) = match news {
            WatchEvent::Records(node, last, records) => {
                self.place.moves(&node, last);
                let mut events = Vec::new();
                records.iter().for_each(|record| event(record, &mut events));
                return (!events.is_empty()).then(|| placed(&events, &self.place));
            }
            WatchEvent::Missing(node, why) => {
                ("missing", serde_json::json!({"node": node, "reason": why}))
            }
            WatchEvent::Back(node) => ("back", serde_json::json!({"node": node})),
            WatchEvent::Removed(node, first, last) => {
                let removed = serde_json::json!({
                    "node": node, "first": first, "last": last, "reason": "retention"
                });
                ("removed", removed)
            }
        };
        Some(format!("event: {name}\ndata: {data}\n\n").into())
    }
}

/// Replaces the ids of a portion's events by one id on the last event.
fn placed(events: &[u8], place: &WatchCursor) -> Bytes {
    let (mut out, mut last) = (Vec::with_capacity(events.len()), None);
    for line in events.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(ID) {
            last = Some(out.len());
        } else {
            out.extend_from_slice(line);
        }
    }
    if let Some(last) = last {
        let id = format!("id: {place}\n");
        out.splice(last..last, id.into_bytes());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use mcpproxy_activity::{Config, Draft, Source, Status, Type};

    use super::*;

    /// More records than the live buffer and a reader's portion hold.
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
            last: None,
            pace: ReaderPace::default(),
            paused_until: None,
            closed: false,
            fleet: None,
            _slot: None,
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
    async fn act_7_fast_and_slow_readers_get_every_record_once_in_order() {
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
        // The slow reader is behind the live buffer and catches up from the log; later records come from the live
        // buffer again.
        let mut seen = Vec::new();
        for count in [RECORDS, 3] {
            note(&activity, count).await;
            let stored = activity.stored().unwrap().next() - 1;
            while slow.live.seq() < stored {
                slow.paused_until = None;
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
    async fn disconnected_slow_reader_receives_the_resume_position() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let ending = watch::Sender::new(false);
        let mut events = events(&activity, &ending);
        note(&activity, 1).await;
        assert_eq!(seqs(&events.next().await.unwrap()).len(), 1);
        let long_ago =
            Instant::now().checked_sub(reader_limits::READ_TIMEOUT + Duration::from_secs(2));
        events.pace.on_send(long_ago.unwrap());
        let last = events.next().await.unwrap();
        let text = std::str::from_utf8(&last).unwrap();
        let data = text.strip_prefix("event: cut-off\ndata: ").unwrap();
        let message: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(message["error"], "nothing was read for 12 s; the limit is 10 s");
        assert_eq!(message["resume_after"], events.last.unwrap().to_string());
        assert_eq!(events.next().await, None);
        drop(events);
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn bandwidth_is_shared_equally_among_readers() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let ending = watch::Sender::new(false);
        let mut readers: Vec<_> = (0..32).map(|_| events(&activity, &ending)).collect();
        note(&activity, 100).await;
        let reader = readers.first_mut().unwrap();
        let bytes = reader.next().await.unwrap().len() as u64;
        let rest = reader.paused_until.unwrap().saturating_duration_since(Instant::now());
        let whole = Duration::from_millis(bytes * 32 * 1000 / SHARED_BYTES_PER_SECOND);
        assert!(rest <= whole && whole > Duration::ZERO, "{rest:?} of {whole:?}");
        drop(readers);
        tokio::task::spawn_blocking(|| writer.close()).await.unwrap().unwrap();
    }

    #[test]
    fn last_event_id_accepts_positions_only_in_a_fleet() {
        let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        let record = LastSeen::Record(Id::parse(id).unwrap());
        for in_fleet in [false, true] {
            assert_eq!(LastSeen::parse(id, in_fleet), Some(record.clone()));
            assert_eq!(LastSeen::parse("nonsense", in_fleet), None);
        }
        let place = LastSeen::parse("12;a=3;b=4", true).unwrap();
        assert_eq!(LastSeen::parse("12;a=3;b=4", false), None);
        assert_eq!(
            (record.in_log_of("a"), record.record()),
            (OwnStart::Record(Id::parse(id).unwrap()), Id::parse(id))
        );
        let starts = ["a", "b", "c"].map(|node| place.in_log_of(node));
        assert_eq!(starts, [OwnStart::Number(3), OwnStart::Number(4), OwnStart::Time(12)]);
        assert_eq!(place.record(), None);
    }

    #[test]
    fn only_the_last_event_of_a_portion_carries_the_position_as_id() {
        let mut place = WatchCursor::since(12);
        place.moves("a", 3);
        let one = b"id: X\nevent: activity\ndata: {\"id: \":1}\n\n";
        let removed = b"event: removed\ndata: {}\n\n";
        let two = [&removed[..], one, one].concat();
        let text = "event: removed\ndata: {}\n\nevent: activity\ndata: {\"id: \":1}\n\nid: 12;a=3\nevent: activity\ndata: {\"id: \":1}\n\n";
        assert_eq!(placed(&two, &place), text.as_bytes());
        assert_eq!(placed(removed, &place), &removed[..]);
        assert_eq!(placed(b"", &place), &b""[..]);
    }
}
