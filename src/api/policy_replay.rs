//! `POST /api/v1/policy/replay`: the calls in the log put to other rules beside those in force. Nothing is called.
//!
//! What a record comes to is `proxy::rule_replay`'s, as for the command line. A page of the log is read per request: the
//! thread that reads for exports reads a portion, a blocking thread puts it to the rules, in turns, until the records or the
//! time of a page are used up. Who asks goes on at its `next_cursor`, and adds the counts up; what is not asked for is not
//! read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::activity::micros;
use super::query_parameters::BadQuery;
use super::reader_limits::{self, Purpose};
use super::response::{ApiError, Success, encode};
use super::state::State;
use crate::activity::{Activity, Filter, Id, PORTION, QueryError};
use crate::downstream::source::Source;
use crate::policy::rules::{KnownTools, RuleOptions, RuleProblem, RuleSet, RuleText};
use crate::proxy::rule_replay::{ReplayReport, RuleReplay, UnreadableRecord, replayed};
use crate::proxy::{Worker, incoming};

/// Records of one page at most, about: the last portion may go beyond it.
const MAX_RECORDS: u64 = 50_000;
/// Longest time that a page begins another portion after.
const MAX_TIME: Duration = Duration::from_secs(5);
/// What problems of the rules are told as.
const FILE: &str = "rules";

/// Which rules are put to which calls.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayRequest {
    /// Rules in Cedar, put to the calls beside those in force. Left out: those in force beside none, also where they only
    /// watch.
    #[serde(default)]
    #[schema(max_length = 1_048_576)]
    rules: Option<String>,
    /// Calls that began then or later.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// `next_cursor` of the page before.
    #[serde(default)]
    #[schema(pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$")]
    cursor: Option<String>,
}

/// What one page of the log came to.
#[derive(Serialize, ToSchema)]
struct ReplayedPage<'a> {
    /// Rules that were put to the calls.
    rules: usize,
    /// Records of the log that this page looked at.
    read: u64,
    /// The `cursor` of the next page; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
    #[serde(flatten)]
    #[schema(inline)]
    report: ReplayReport<'a>,
}

/// Puts the calls in the log to other rules beside those in force, the oldest first: at most some 50000 records of the log, or
/// 5 seconds. Nothing is called, and nothing changed.
#[utoipa::path(
    post,
    path = "/api/v1/policy/replay",
    tag = "policy",
    operation_id = "replayPolicy",
    request_body(content = ReplayRequest, description = "The rules, and where to begin. No key may stand twice in any object."),
    responses(
        (status = 200, description = "What would be decided otherwise", body = Success<ReplayedPage<'_>>),
        (status = 400, description = "The body, the query or the rules cannot be understood, or there are none"),
        (status = 408, description = "The body did not come in time"),
        (status = 413, description = "The body is too large"),
        (status = 500, description = "The log cannot be read"),
        (status = 503, description = "Too many read the log already, or records on their way to it did not arrive in time",
            headers(("Retry-After" = u64, description = "Seconds; where too many read"))),
    )
)]
pub(super) async fn replay(
    state: &State,
    worker: &Worker,
    source: Source,
    body: &Bytes,
) -> Result<Bytes, ApiError> {
    let bad = |text: String| ApiError::new(StatusCode::BAD_REQUEST, text);
    incoming::check(worker, body).map_err(bad)?;
    // An array would be taken for the members in their order.
    let read = serde_json::from_slice(body).map(Value::Object);
    let asked: ReplayRequest = read
        .and_then(serde_json::from_value)
        .map_err(|error| bad(format!("The body is no replay: {error}")))?;
    let begins = match asked.cursor {
        None => 0,
        Some(text) => Id::parse(&text).ok_or_else(|| BadQuery::cursor(text))?.seq(),
    };
    let _place = state.readers.enter(Purpose::Export, source)?;
    let filter = Filter { since: asked.start_time.map(micros), ..replayed() };
    let replay = begin(worker, asked.rules).await?;
    let rules = replay.rules();
    let activity = worker.proxy.activity.clone();
    let now = activity.clone();
    let view =
        tokio::task::spawn_blocking(move || now.view()).await.map_err(|it| failed(&it))??;
    let (node, seq, last) = (view.node(), begins.max(view.first() - 1), view.next() - 1);
    // What is kept of the log is not held while it is walked through.
    drop(view);
    let mut walk = LogWalk { activity, filter, replay, seq, last, read: 0 };
    let deadline = Instant::now() + MAX_TIME;
    while walk.seq < walk.last && walk.read < MAX_RECORDS && Instant::now() < deadline {
        walk = walk.portion().await?;
    }
    // A place between two records, whatever becomes of either.
    let next_cursor = (walk.seq < walk.last).then(|| Id::new(0, walk.seq, node).to_string());
    Ok(encode(&ReplayedPage { rules, read: walk.read, next_cursor, report: walk.replay.report() }))
}

/// Reads and checks the rules.
async fn begin(worker: &Worker, given: Option<String>) -> Result<RuleReplay, ApiError> {
    let snapshot = worker.proxy.catalog.load();
    let in_force = worker.settings().policy.rules.clone();
    let options = in_force.as_ref().map(|rules| rules.options()).unwrap_or_default();
    let servers = worker.proxy.upstreams.iter().map(|it| (Arc::clone(it.name()), None)).collect();
    let known = snapshot.known_tools(&KnownTools { servers });
    let read = tokio::task::spawn_blocking(move || {
        let none = || RuleSet::load(&[], RuleOptions::default(), None).map(Arc::new);
        let before = in_force.clone().map_or_else(none, Ok)?;
        Ok::<_, Vec<RuleProblem>>(match given {
            Some(text) => {
                let text = RuleText { file: FILE.into(), text };
                (before, Some(Arc::new(RuleSet::load(&[text], options, Some(&known))?)))
            }
            None => (none()?, in_force),
        })
    });
    let read = read.await.map_err(|error| failed(&error))?;
    let (now, new) = read.map_err(|problems| refused(&problems))?;
    let Some(new) = new else {
        let text = "There are no rules in force, and `rules` names none";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, text));
    };
    Ok(RuleReplay::new(now, new, snapshot))
}

/// Why rules are not taken: the first problem, and how many there are.
fn refused(problems: &[RuleProblem]) -> ApiError {
    let first = problems.first().map(ToString::to_string).unwrap_or_default();
    let more = match problems.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    ApiError::new(StatusCode::BAD_REQUEST, format!("{first}{more}"))
}

fn failed(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error)
}

/// The way through the log.
struct LogWalk {
    activity: Activity,
    filter: Filter,
    replay: RuleReplay,
    /// The number of the last record that was looked at.
    seq: u64,
    /// The number of the last record to look at.
    last: u64,
    /// Records that were looked at.
    read: u64,
}

impl LogWalk {
    /// Puts the next records to the rules.
    async fn portion(mut self) -> Result<Self, ApiError> {
        let (activity, filter) = (self.activity.clone(), self.filter.clone());
        let (seq, last) = (self.seq, self.last);
        let read = activity.aside(move |activity| {
            let view = activity.stored()?.up_to(last);
            Ok::<_, QueryError>(view.since(seq, &filter, PORTION)?)
        });
        let (records, seq) = read.await??;
        self.read += seq.saturating_sub(self.seq);
        self.seq = seq;
        let judged = tokio::task::spawn_blocking(move || {
            let mut line = Vec::new();
            for record in &records {
                line.clear();
                reader_limits::one_line(record, &mut line);
                self.replay.record(&line)?;
            }
            Ok::<_, UnreadableRecord>(self)
        });
        judged.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }
}
