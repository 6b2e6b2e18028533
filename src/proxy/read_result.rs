//! `read_result`: parts of a result that was too long to be answered whole, for whom it was kept.
//!
//! On record like any call of ours; what a record has of a handle is its id.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};

use super::call_trace::CallTrace;
use super::caller::Caller;
use super::keeping::{self, READ_RESULT};
use super::record_kind::RecordKind;
use super::recorded::{OnRecord, ReplySource, recorded};
use super::refusal::RefusalKind;
use super::rejection::Rejection;
use super::render::{self, Caching};
use super::reply::{Aborted, Reply};
use super::worker::Worker;
use crate::activity::record::{Raw, Status};
use crate::results::{self, MAX_PART_BYTES, PART_BYTES, PartQuery, ResultPart};

/// Memory that a call takes for each byte of the result that it reads: the file, and what a string in it says.
const COPIES: u64 = 2;

/// Told of a handle that leads nowhere, whatever the reason: whoever guesses learns nothing.
const NOT_THERE: &str = "No result is kept under this handle: its time is up, newer results needed the room, or it was \
                         not given to this session. Make the call again that it came from.";

/// The same of a handle that names a node of a fleet.
const NOT_THERE_IN_FLEET: &str = "No result is kept under this handle: its time is up, newer results needed the room, the \
                                  node that kept it is gone or not reached, or it was not given to this session. Make \
                                  the call again that it came from.";

/// Answers `read_result`, given its `raw` arguments and the request's `_meta`.
///
/// # Errors
///
/// None; the type is that of every call.
pub fn read_result(
    worker: Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> + use<> {
    let kind = RecordKind::OwnTool;
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || meta);
    recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
        let OnRecord { worker, caller, record, .. } = on;
        record.name("", READ_RESULT);
        let arguments = String::from_utf8_lossy(&raw);
        record.keep(Raw::Arguments, results::without_handles(&arguments).as_bytes());
        let query = PartQuery::parse(&raw);
        let query = query.map_err(|bad| {
            // A parameter may be called like one.
            Rejection::of_parameters(results::without_handles(&bad.to_string()).into_owned())
        })?;
        let ResultPart { text, note } = part(worker, caller, query).await?;
        let blocks = [json!({"type": "text", "text": text}), json!({"type": "text", "text": note})];
        let result = json!({"content": blocks}).to_string();
        let result = render::own_result(caller.era(), &result, Caching::No).into_owned();
        let result = Bytes::from(result);
        record.note_response(&result);
        Ok(ReplySource::Own(result))
    })
}

/// Finds and reads the result.
async fn part(
    worker: &Rc<Worker>,
    caller: &Caller,
    query: PartQuery,
) -> Result<ResultPart, Rejection> {
    let refused = |text: String| Rejection::new(Status::Rejected, RefusalKind::Unknown, text);
    let failed = |text: String| Rejection::new(Status::Error, RefusalKind::Unavailable, text);
    let proxy = &worker.proxy;
    let owner = keeping::owner(caller);
    let kept = proxy.results.find(&query.handle, &owner, Instant::now());
    let not_there = if query.handle.node() == 0 { NOT_THERE } else { NOT_THERE_IN_FLEET };
    let kept = kept.ok_or_else(|| refused(not_there.to_owned()))?;
    let mut share = worker.settings().held.share(&kept.server);
    let room = share.grow(kept.bytes.saturating_mul(COPIES)).await;
    room.map_err(|full| failed(format!("The result cannot be read now: {full}")))?;
    let read = proxy.result_pool.run(move || {
        let _share = share;
        let text = Arc::clone(&kept).read()?;
        Ok::<_, std::io::Error>(results::part(&text, &query))
    });
    match read.await {
        Some(Ok(Ok(part))) => Ok(part),
        Some(Ok(Err(none))) => Err(refused(none.to_string())),
        Some(Err(error)) => Err(failed(format!("The kept result cannot be read: {error}"))),
        None => Err(failed("The kept result cannot be read".to_owned())),
    }
}

/// The tool as `tools/list` shows it, but for its annotations.
pub(super) fn described() -> Value {
    json!({
        "name": READ_RESULT,
        "title": "Read a long result",
        "description": "Read parts of a result that was too long to be answered whole, by the handle that its answer \
            gave: the bytes as the tool gave them. Without pointer its text is meant.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "As the answer gave it: kept_…"},
                "pointer": {
                    "type": "string",
                    "description": "A JSON Pointer into the result, like /structuredContent/rows/0: the JSON there. With \
                        lines or search, a string there is read as what it says.",
                },
                "lines": {
                    "type": "string",
                    "pattern": "^[0-9]+(-[0-9]*)?$",
                    "description": "Lines from 1: 10-20, 10- or 10.",
                },
                "search": {
                    "type": "string",
                    "description": "The places where this stands, as it is written (upper and lower case differ).",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Bytes to leave out (places, of a search): the next offset that an answer names.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_PART_BYTES,
                    "default": PART_BYTES,
                    "description": "Most bytes to return (of a search at most 100 places, 20 by default).",
                },
            },
            "required": ["handle"],
            "additionalProperties": false,
        },
    })
}
