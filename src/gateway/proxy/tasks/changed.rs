//! Changed tasks: schedule for fetching their states, and the states sent to clients, in both protocol families
//! (MCP 2025-11-25 §Task Status Notification, MCP Tasks extension §Task Status Notifications; PRO-43). Sans-I/O;
//! [`state_fetches`](super::state_fetches) sends the requests.
//!
//! A server's notification only signals that a task has changed. The client is sent the answer to a `tasks/get` made on
//! its behalf, which is admitted, validated and recorded like its own request. A result cannot reach the client on any
//! other path.
//!
//! ```text
//! change ─▶ due ── request ──▶ state for the client, the last one if the task has ended
//!            ▲         ├─ refused for a reason that may pass ─▶ due after a backoff, a limited number of times
//!            │         └─ refused otherwise ─▶ nothing until the next change
//!            └─ still due if it changed during the request, or if the stream ended before the state was there
//! ```

use std::sync::Arc;
use std::time::Duration;

use mcpproxy_json::members::{member, members, string};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::lifecycle;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::AnswerMember;
use serde_json::Value;
use tokio::time::Instant;

use crate::proxy::refusal::RefusalKind;
use crate::proxy::reply::Piece;

/// Maximum size in bytes of a state in a list, or in a notification to a legacy client. The state of a modern task
/// contains its result, which is bounded like the answer to the call.
pub(super) const MAX_STATE_BYTES: usize = 64 * 1024;
/// Minimum and maximum delay before a refused request is repeated.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum delay that a refusal may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of repetitions of a request that is refused, until its task changes again.
const MAX_RETRIES: u32 = 8;

/// Fetch schedule of one task's state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FetchDue {
    /// `None` unless the task has changed.
    at: Option<Instant>,
    /// Number of changes so far.
    changes: u64,
    /// Number of refusals since the last change.
    refused: u32,
}

/// Error of a request that was refused too often to be repeated before the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotRepeated;

impl FetchDue {
    /// Records a change; a due repetition keeps its time. Returns whether nothing was due before.
    pub(super) fn changed(&mut self, now: Instant) -> bool {
        self.changes += 1;
        self.refused = 0;
        let is_first = self.at.is_none();
        self.at.get_or_insert(now);
        is_first
    }

    /// Due fetch for the task with this sealed id, if any.
    pub(super) fn task(&self, sealed: &Arc<str>) -> Option<DueTask> {
        let sealed = Arc::clone(sealed);
        self.at.map(|at| DueTask { at, changes: self.changes, sealed })
    }

    /// Applies the outcome of a request. Returns the state for the client, if there is one.
    pub(super) fn take(
        &mut self,
        outcome: FetchOutcome,
        now: Instant,
    ) -> Result<Option<TaskState>, NotRepeated> {
        let state = match outcome.fetched {
            Fetched::RefusedForNow(after) => return self.refused(now, after).map(|()| None),
            Fetched::State(state) => Some(state),
            Fetched::Nothing | Fetched::Gone => None,
        };
        self.refused = 0;
        if self.changes == outcome.changes {
            self.at = None;
        }
        Ok(state)
    }

    /// Schedules a repetition of the refused request, not before `after` if given.
    fn refused(&mut self, now: Instant, after: Option<Duration>) -> Result<(), NotRepeated> {
        if self.refused >= MAX_RETRIES {
            (self.refused, self.at) = (0, None);
            return Err(NotRepeated);
        }
        let delay = RETRY.0.saturating_mul(1 << self.refused).min(RETRY.1);
        let asked = after.unwrap_or_default().min(MAX_RETRY_AFTER);
        self.refused += 1;
        self.at = Some(now + delay.max(asked));
        Ok(())
    }
}

/// Task whose state is to be fetched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DueTask {
    pub(super) at: Instant,
    /// Number of changes before the request.
    pub(super) changes: u64,
    pub(super) sealed: Arc<str>,
}

/// Outcome of a request about a changed task.
#[derive(Debug)]
pub(super) struct FetchOutcome {
    pub(super) sealed: Arc<str>,
    /// Number of changes before the request.
    pub(super) changes: u64,
    pub(super) fetched: Fetched,
}

/// Result of a state request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    State(TaskState),
    /// Temporary refusal, with its delay if known.
    RefusedForNow(Option<Duration>),
    /// There is no state for the client.
    Nothing,
    /// The task does not exist, or no longer exists.
    Gone,
}

impl Fetched {
    /// Parses the last piece of the answer about the task with this sealed id. `last` is `None` if the answer broke
    /// off.
    pub(super) fn of(last: Option<Piece>, sealed: &str, max_bytes: usize) -> Self {
        match last {
            Some(Piece::Whole(AnswerMember::Result, result)) => {
                TaskState::of(result, sealed, max_bytes).map_or(Self::Nothing, Self::State)
            }
            Some(Piece::Whole(AnswerMember::Error, error)) => Self::of_error(error),
            Some(Piece::Refused(refusal)) => match refusal.kind {
                RefusalKind::Unreadable => Self::Gone,
                _ if refusal.may_pass => Self::RefusedForNow(refusal.retry_after),
                _ => Self::Nothing,
            },
            None => Self::RefusedForNow(None),
            Some(
                Piece::Notification(_)
                | Piece::Request(_)
                | Piece::Alive
                | Piece::Begin(_)
                | Piece::Data(_),
            ) => Self::Nothing,
        }
    }

    /// Reads a server's JSON-RPC error.
    fn of_error(error: Splice) -> Self {
        let whole: Vec<u8> = error.into_iter().flatten().collect();
        let code = std::str::from_utf8(&whole).ok().and_then(|text| member(text, "code"));
        match code.and_then(|code| code.parse::<i64>().ok()) {
            // MCP 2025-11-25 §Protocol Errors.
            Some(code) if code == Code::InvalidParams as i64 => Self::Gone,
            Some(code) if lifecycle::is_lasting(code) => Self::Nothing,
            Some(_) | None => Self::RefusedForNow(None),
        }
    }

    /// Whether the task will not change again.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::State(state) => state.is_final,
            Self::Gone => true,
            Self::RefusedForNow(_) | Self::Nothing => false,
        }
    }
}

/// State of a task in an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaskState {
    /// `"NAME":VALUE,…` without members that belong to the answer, values unchanged; not empty.
    pub(super) members: String,
    /// Whether the task has ended.
    is_final: bool,
}

impl TaskState {
    /// Parses a state; `None` if it is too long or about another task.
    fn of(result: Splice, sealed: &str, max_bytes: usize) -> Option<Self> {
        if result.len() > max_bytes {
            return None;
        }
        let whole: Vec<u8> = result.into_iter().flatten().collect();
        let whole = std::str::from_utf8(&whole).ok()?;
        if string(member(whole, "taskId")?)? != sealed {
            return None;
        }
        let status = member(whole, "status").and_then(string);
        let is_final = matches!(status.as_deref(), Some("completed" | "failed" | "cancelled"));
        let mut kept = String::with_capacity(whole.len());
        for member in members(whole).ok()? {
            let (name, value) = member.ok()?;
            if !matches!(&*name, "_meta" | "resultType") {
                let comma = if kept.is_empty() { "" } else { "," };
                kept.extend([comma, &Value::from(&*name).to_string(), ":", value]);
            }
        }
        Some(Self { members: kept, is_final })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::proxy::refusal::Refusal;

    impl TaskState {
        /// A state with these members.
        pub(crate) fn of_test(members: &str, is_final: bool) -> Self {
            Self { members: members.to_owned(), is_final }
        }
    }

    fn outcome(due: &FetchDue, fetched: Fetched) -> FetchOutcome {
        FetchOutcome { sealed: "x".into(), changes: due.changes, fetched }
    }

    fn refused(
        due: &mut FetchDue,
        now: Instant,
        after: Option<Duration>,
    ) -> Result<(), NotRepeated> {
        let outcome = outcome(due, Fetched::RefusedForNow(after));
        due.take(outcome, now).map(|state| assert_eq!(state, None))
    }

    #[test]
    fn pro_43_refused_request_is_repeated_with_backoff_a_limited_number_of_times() {
        let (now, mut due) = (Instant::now(), FetchDue::default());
        assert!(due.changed(now) && !due.changed(now));
        assert_eq!(due.at, Some(now));
        let mut delays = Vec::new();
        while refused(&mut due, now, None).is_ok() {
            delays.extend(due.at.map(|at| (at - now).as_secs()));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(
            due,
            FetchDue { changes: 2, ..FetchDue::default() },
            "it waits for the next change"
        );
        for (asked, expected) in [(30, 30), (6000, 600)] {
            let mut due = FetchDue::default();
            assert_eq!(refused(&mut due, now, Some(Duration::from_secs(asked))), Ok(()));
            assert_eq!(due.at, Some(now + Duration::from_secs(expected)));
            // A change does not bring the repetition forward, but resets the number of repetitions.
            due.changed(now);
            assert_eq!((due.at, due.refused), (Some(now + Duration::from_secs(expected)), 0));
        }
    }

    #[test]
    fn pro_43_change_during_a_request_is_fetched_by_another_request() {
        let (now, mut due) = (Instant::now(), FetchDue::default());
        let sealed = Arc::from("x");
        assert_eq!(due.task(&sealed), None, "it has not changed");
        due.changed(now);
        let asked = due.task(&sealed).expect("it is due");
        assert_eq!(due.task(&sealed).as_ref(), Some(&asked), "until the state is there");
        due.changed(now);
        for (fetched, is_left) in [
            (Fetched::State(TaskState::of_test(r#""n":1"#, false)), true),
            (Fetched::Nothing, true),
        ] {
            let outcome =
                FetchOutcome { sealed: Arc::clone(&sealed), changes: asked.changes, fetched };
            due.take(outcome, now).expect("it is not refused");
            assert_eq!(due.task(&sealed).is_some(), is_left);
        }
        let state = Fetched::State(TaskState::of_test(r#""n":2"#, false));
        let state = due.take(outcome(&due, state), now).expect("it is not refused");
        assert_eq!(state.map(|it| it.members).as_deref(), Some(r#""n":2"#));
        assert_eq!(due.task(&sealed), None);
    }

    #[test]
    fn pro_43_only_requests_with_a_temporary_refusal_are_repeated() {
        let refused = |kind| Piece::Refused(Refusal::rejected(kind, "no".into()));
        let error = |code: i32| {
            let error = json!({"code": code, "message": "no"}).to_string();
            Piece::Whole(AnswerMember::Error, Splice::from(Bytes::from(error)))
        };
        let again = || Fetched::RefusedForNow(None);
        for (piece, expected) in [
            (refused(RefusalKind::Limited), again()),
            (refused(RefusalKind::Upstream), again()),
            (refused(RefusalKind::Unavailable), again()),
            (refused(RefusalKind::Gate), Fetched::Nothing),
            (refused(RefusalKind::Unreadable), Fetched::Gone),
            (error(-32000), again()),
            (error(-32603), again()),
            (error(-32601), Fetched::Nothing),
            (error(-32602), Fetched::Gone),
            (Piece::Whole(AnswerMember::Error, Bytes::from_static(b"7").into()), again()),
        ] {
            let shown = format!("{piece:?}");
            assert_eq!(Fetched::of(Some(piece), "x", usize::MAX), expected, "{shown}");
        }
        assert_eq!(Fetched::of(None, "x", usize::MAX), again());
    }

    #[test]
    fn pro_43_state_has_the_values_of_the_answer() {
        let answer = br#"{ "resultType":"complete","taskId":"x" ,"_meta":{"a":1},"ttl" : 6.0e4 }"#;
        let mut parts = Splice::from(Bytes::from_static(&answer[..20]));
        parts.push(Bytes::from_static(&answer[20..]));
        let state = TaskState::of(parts, "x", MAX_STATE_BYTES);
        assert_eq!(state, Some(TaskState::of_test(r#""taskId":"x","ttl":6.0e4"#, false)));
        let long = format!(r#"{{"taskId":"x","y":"{}"}}"#, "y".repeat(MAX_STATE_BYTES));
        for unusable in [r#"{"taskId":"y"}"#, r#"{"status":"working"}"#, "7", "", &long] {
            let state = Bytes::from(unusable.to_owned()).into();
            assert_eq!(TaskState::of(state, "x", MAX_STATE_BYTES), None, "{unusable}");
        }
    }

    #[test]
    fn pro_43_task_ends_with_its_final_state() {
        for (status, is_over) in [
            (r#""working""#, false),
            (r#""input_required""#, false),
            ("7", false),
            (r#""completed""#, true),
            (r#""fail\u0065d""#, true),
            (r#""cancelled""#, true),
        ] {
            let answer = Bytes::from(format!(r#"{{"taskId":"x","status":{status}}}"#));
            let piece = Piece::Whole(AnswerMember::Result, answer.into());
            assert_eq!(Fetched::of(Some(piece), "x", usize::MAX).is_over(), is_over, "{status}");
        }
        assert!(Fetched::Gone.is_over() && !Fetched::Nothing.is_over());
    }
}
