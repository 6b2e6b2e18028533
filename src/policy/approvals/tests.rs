//! Tests of the queue as a whole: answers, timeouts, limits, and cleanup.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate as policy;

use super::standing::{MAX_ENDED, MAX_STANDING_HERE, Now, Reach, StandingApprovals};
use super::*;
use crate::tool::{Annotations, CapabilityOverride, Rules, Tool, ToolName, Trust};
use crate::{
    Access, Admission, AdmissionRequest, AgentToken, Approved, DenialKind, NotApproved,
    PendingApproval, Principal, Scope, SessionFacts, TaskAccess, TaskRequest, ToolAccess, intent,
};

const MINUTE: Duration = Duration::from_secs(60);
const WIDE: QueueBounds = QueueBounds { waiting: 20_000, of_one: 20_000, bytes: usize::MAX };

fn tool(description: &str) -> Arc<Tool> {
    let rules: Rules<CapabilityOverride> =
        serde_json::from_str(r#"{"*":{"approval":"required"}}"#).unwrap();
    let annotations = Annotations::default();
    let name = ToolName::parse("files:delete").unwrap();
    Arc::new(Tool { description: description.into(), ..Tool::named(name, annotations, &rules) })
}

fn pending(description: &str, arguments: &str) -> PendingApproval {
    let request = AdmissionRequest {
        principal: &Principal::Anonymous,
        access: Access::Tool(ToolAccess::direct(tool(description))),
        arguments: arguments.as_bytes(),
        meta: b"",
        inputs: b"",
        intent: None,
        client: "",
        session: SessionFacts::default(),
        carries_out: false,
        now: SystemTime::UNIX_EPOCH,
    };
    let settings = policy::Settings { intent: intent::Settings::default(), ..Default::default() };
    match policy::admit(request, &settings) {
        Admission::Pending(pending) => pending,
        other => panic!("{other:?}"),
    }
}

fn asked(arguments: &str, session: &str) -> AskedCall {
    AskedCall {
        pending: pending("", arguments),
        operation: None,
        destructive: false,
        reason: "".into(),
        arguments: arguments.into(),
        meta: "".into(),
        inputs: "".into(),
        session: session.into(),
        client: "".into(),
        request_id: "".into(),
    }
}

fn queue(bounds: QueueBounds) -> Arc<ApprovalQueue> {
    let queue = Arc::new(ApprovalQueue::new(bounds, None));
    queue.open();
    queue
}

fn enter(queue: &Arc<ApprovalQueue>, asked: AskedCall) -> WaitingApproval {
    match WaitingApproval::enter(queue, asked, MINUTE, false).unwrap() {
        Entered::Waiting(waiting) => waiting,
        Entered::Standing(it) => panic!("a standing approval covers it: {}", it.of),
    }
}

fn answer_of(verdict: ApprovalVerdict) -> ApprovalAnswer {
    let by = Answerer::here("admin", AnswerChannel::Cli);
    ApprovalAnswer { verdict, by, seen: None }
}

fn approves(extent: ApprovalExtent) -> ApprovalAnswer {
    answer_of(ApprovalVerdict::Approve(extent))
}

/// Whether no approval is pending or standing.
fn is_empty(queue: &ApprovalQueue) -> bool {
    queue.count() == 0 && queue.waiting().is_empty() && queue.standing().is_empty()
}

#[tokio::test]
async fn cap_8_first_answer_counts_and_second_is_rejected() {
    let queue = queue(WIDE);
    let mut waiting = enter(&queue, asked("{}", ""));
    let id = waiting.id().to_string();
    let AnsweredApproval { decided, revoked } =
        queue.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap();
    assert_eq!((decided.outcome.as_str(), revoked), ("denied", None));
    let second = queue.answer(&id, approves(ApprovalExtent::Once)).unwrap_err();
    let text = format!("Approval {id} is decided already: denied by admin over cli");
    assert_eq!(second.to_string(), text);
    let outcome = waiting.outcome().await;
    assert!(matches!(outcome, Outcome::Denied { .. }), "{outcome:?}");
    assert_eq!(
        queue.answer("0123456789abcdef", answer_of(ApprovalVerdict::Deny)),
        Err(AnswerError::NotFound)
    );
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_approval_is_consumed_by_its_call() {
    let queue = queue(WIDE);
    let mut first = enter(&queue, asked(r#"{"path":"/a"}"#, ""));
    queue.answer(first.id().as_str(), approves(ApprovalExtent::Once)).unwrap();
    let Outcome::Approved { approved, .. } = first.outcome().await else { panic!("not approved") };
    assert!(
        pending("", r#"{ "path": "/a" }"#)
            .permitted_by(&approved, &policy::Settings::default())
            .is_ok()
    );
    assert!(
        pending("", r#"{"path":"/b"}"#)
            .permitted_by(&approved, &policy::Settings::default())
            .is_err(),
        "one byte"
    );
    assert!(
        pending("new", r#"{"path":"/a"}"#)
            .permitted_by(&approved, &policy::Settings::default())
            .is_err(),
        "another tool"
    );
    // Repeating the call asks again.
    drop(enter(&queue, asked(r#"{"path":"/a"}"#, "")));
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_answer_for_another_digest_is_rejected() {
    let queue = queue(WIDE);
    let waiting = enter(&queue, asked(r#"{"n":1}"#, ""));
    let of_another = pending("", r#"{"n":2}"#).digest().to_string();
    let answer = ApprovalAnswer { seen: Some(of_another.into()), ..approves(ApprovalExtent::Once) };
    let refused = queue.answer(waiting.id().as_str(), answer).unwrap_err();
    assert!(matches!(refused, AnswerError::OtherCall(_)));
    let own = pending("", r#"{"n":1}"#).digest().to_string();
    let answer = ApprovalAnswer { seen: Some(own.into()), ..approves(ApprovalExtent::Once) };
    assert!(queue.answer(waiting.id().as_str(), answer).is_ok());
}

#[tokio::test]
async fn cap_8_standing_approval_covers_the_definition_and_is_revocable() {
    let queue = queue(WIDE);
    let first = enter(&queue, asked("{}", ""));
    let id = first.id().to_string();
    queue.answer(&id, approves(ApprovalExtent::For(MINUTE))).unwrap();
    let entered =
        WaitingApproval::enter(&queue, asked(r#"{"other":1}"#, "any"), MINUTE, false).unwrap();
    let Entered::Standing(Covered { approved, of, by }) = entered else { panic!("it waits") };
    assert_eq!(of.as_str(), id);
    assert_eq!((&*by.principal, by.channel), ("admin", AnswerChannel::Cli));
    assert!(matches!(approved, Approved::Standing(_)));
    let mut changed = asked("{}", "");
    changed.pending = pending("does something else now", "{}");
    drop(enter(&queue, changed));
    // The client's user, who was asked too, then denies only the call.
    let late = Answerer::here("anonymous", AnswerChannel::Elicitation);
    let late = ApprovalAnswer { verdict: ApprovalVerdict::Deny, by: late, seen: None };
    assert!(matches!(queue.answer(&id, late), Err(AnswerError::Over { .. })));
    let standing = queue.standing().pop();
    let AnsweredApproval { revoked, .. } =
        queue.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap();
    assert!(standing.is_some());
    assert_eq!(revoked, standing);
    drop(enter(&queue, asked("{}", "")));
    let again = queue.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap_err();
    assert!(matches!(again, AnswerError::Over { .. }), "{again}");
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_standing_approval_expires() {
    let queue = queue(WIDE);
    let first = enter(&queue, asked("{}", ""));
    let short = ApprovalExtent::For(Duration::from_millis(1));
    queue.answer(first.id().as_str(), approves(short)).unwrap();
    let began = std::time::Instant::now();
    while !queue.standing().is_empty() {
        assert!(began.elapsed() < MINUTE / 6, "it is still in force");
        tokio::task::yield_now().await;
    }
    drop(enter(&queue, asked("{}", "")));
}

#[tokio::test]
async fn cap_8_session_approval_covers_only_that_session() {
    let queue = queue(WIDE);
    let outside = enter(&queue, asked("{}", ""));
    let refused =
        queue.answer(outside.id().as_str(), approves(ApprovalExtent::Session)).unwrap_err();
    assert!(matches!(refused, AnswerError::NoSession(_)));
    let long = ApprovalExtent::For(MAX_STANDING + MINUTE);
    assert_eq!(queue.answer(outside.id().as_str(), approves(long)), Err(AnswerError::TooLong));
    assert_eq!(queue.count(), 1, "it still waits");
    let inside = enter(&queue, asked("{}", "one"));
    queue.answer(inside.id().as_str(), approves(ApprovalExtent::Session)).unwrap();
    let enters =
        |session| WaitingApproval::enter(&queue, asked("{}", session), MINUTE, false).unwrap();
    assert!(matches!(enters("one"), Entered::Standing(_)));
    assert!(matches!(enters("two"), Entered::Waiting(_)));
    assert!(matches!(enters(""), Entered::Waiting(_)));
}

#[tokio::test]
async fn cap_8_unanswered_call_times_out() {
    let queue = queue(WIDE);
    let entered =
        WaitingApproval::enter(&queue, asked("{}", ""), Duration::from_millis(1), false).unwrap();
    let Entered::Waiting(mut waiting) = entered else { panic!("it does not wait") };
    let outcome = waiting.outcome().await;
    assert_eq!(outcome, Outcome::TimedOut { after: Duration::from_millis(1) });
    let late = queue.answer(waiting.id().as_str(), approves(ApprovalExtent::Once)).unwrap_err();
    assert!(late.to_string().ends_with("nobody answered in time"), "{late}");
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_call_that_is_not_polled_cannot_be_approved_after_its_timeout() {
    let queue = queue(WIDE);
    let entered = WaitingApproval::enter(&queue, asked("{}", ""), Duration::ZERO, false).unwrap();
    let Entered::Waiting(mut waiting) = entered else { panic!("it does not wait") };
    assert!(queue.answer(waiting.id().as_str(), approves(ApprovalExtent::Once)).is_err());
    assert!(matches!(waiting.outcome().await, Outcome::TimedOut { .. }));
}

#[tokio::test]
async fn cap_8_shutdown_denies_all_waiting_calls_and_a_closed_queue_admits_none() {
    let closed = Arc::new(ApprovalQueue::new(WIDE, None));
    let refused = WaitingApproval::enter(&closed, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::Nobody);
    assert!(
        WaitingApproval::enter(&closed, asked("{}", ""), MINUTE, true).is_ok(),
        "its client can answer"
    );
    let queue = queue(WIDE);
    let mut waiting = enter(&queue, asked("{}", ""));
    queue.close();
    assert_eq!(waiting.outcome().await, Outcome::Ending);
    let refused = WaitingApproval::enter(&queue, asked("{}", ""), MINUTE, true).unwrap_err();
    assert_eq!(refused, NotApproved::Ending);
    queue.open();
    assert!(
        WaitingApproval::enter(&queue, asked("{}", ""), MINUTE, true).is_err(),
        "shutdown is final"
    );
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_ten_thousand_waits_leave_no_state() {
    const MANY: usize = 10_000;
    let queue = queue(QueueBounds { waiting: MANY, of_one: MANY, bytes: usize::MAX });
    let enter = |n| {
        let asked = asked(&format!("{{\"n\":{n}}}"), "");
        match WaitingApproval::enter(&queue, asked, 60 * MINUTE, false).unwrap() {
            Entered::Waiting(waiting) => waiting,
            Entered::Standing(it) => panic!("a standing approval covers it: {}", it.of),
        }
    };
    let mut all: Vec<WaitingApproval> = (0..MANY).map(enter).collect();
    assert_eq!(queue.count(), MANY);
    let refused = WaitingApproval::enter(&queue, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: MANY });
    for (n, waiting) in all.iter().enumerate() {
        match n % 3 {
            0 => drop(queue.answer(waiting.id().as_str(), approves(ApprovalExtent::Once)).unwrap()),
            1 => {
                drop(queue.answer(waiting.id().as_str(), answer_of(ApprovalVerdict::Deny)).unwrap())
            }
            _ => {}
        }
    }
    let (mut approved, mut denied) = (0, 0);
    for waiting in all.iter_mut().enumerate().filter(|(n, _)| n % 3 < 2).map(|(_, it)| it) {
        match waiting.outcome().await {
            Outcome::Approved { .. } => approved += 1,
            Outcome::Denied { .. } => denied += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((approved, denied), (MANY.div_ceil(3), MANY / 3));
    assert_eq!(queue.count(), MANY - approved - denied);
    drop(all);
    assert!(is_empty(&queue));
    assert_eq!(queue.kept(), (0, 0, 0), "bytes, ids and principals");
}

#[tokio::test]
async fn cap_8_one_principal_cannot_fill_the_queue() {
    let queue = queue(QueueBounds { waiting: 10, of_one: 2, bytes: 100_000 });
    let first = enter(&queue, asked("{}", ""));
    let _second = enter(&queue, asked("{}", ""));
    let refused = WaitingApproval::enter(&queue, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: 2 });
    drop(first);
    // Each argument uses half of the byte limit.
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(50_000));
    let refused = WaitingApproval::enter(&queue, asked(&large, ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: 1 });
    drop(enter(&queue, asked("{}", "")));
}

#[test]
fn cap_8_concurrent_answers_count_once() {
    let queue = queue(WIDE);
    for _ in 0..200 {
        let waiting = enter(&queue, asked("{}", ""));
        let counted: usize = std::thread::scope(|scope| {
            let answers = [ApprovalVerdict::Deny, ApprovalVerdict::Approve(ApprovalExtent::Once)]
                .map(|verdict| {
                    let (queue, id) = (&queue, waiting.id());
                    scope.spawn(move || queue.answer(id.as_str(), answer_of(verdict)).is_ok())
                });
            answers.into_iter().filter_map(|it| it.join().ok()).map(usize::from).sum()
        });
        assert_eq!(counted, 1);
    }
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_each_wait_and_decision_emits_an_event() {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(3);
    let queue = Arc::new(ApprovalQueue::new(WIDE, Some(sender)));
    queue.open();
    let first = enter(&queue, asked("{}", ""));
    queue.answer(first.id().as_str(), answer_of(ApprovalVerdict::Deny)).unwrap();
    drop(first);
    let second = enter(&queue, asked("{}", ""));
    drop(second);
    let outcomes: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok())
        .map(|event| event.outcome.map(|outcome| outcome.as_str()))
        .collect();
    assert_eq!(outcomes, [None, Some("denied"), None]);
    assert_eq!(queue.dropped(), 1, "a webhook that does not read delays no call");
}

fn enter_repeated(
    queue: &Arc<ApprovalQueue>,
    arguments: &str,
    members: &'static [u8],
) -> WaitingApproval {
    let members = bytes::Bytes::from_static(members);
    match WaitingApproval::enter_repeated(queue, asked(arguments, ""), MINUTE, members).unwrap() {
        Entered::Waiting(waiting) => waiting,
        Entered::Standing(it) => panic!("a standing approval covers it: {}", it.of),
    }
}

const YES: UserResponse = UserResponse::Verdict(ApprovalVerdict::Approve(ApprovalExtent::Once));

#[tokio::test]
async fn cap_8_retry_consumes_the_approval_and_returns_the_payload() {
    let queue = queue(WIDE);
    let mut first = enter_repeated(&queue, "{}", b"\"requestState\":\"theirs\"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    let again = |response| RepeatedWait::enter(&queue, &id, &call, response);
    assert!(matches!(again(UserResponse::Missing), Ok(Repeated::AskAgain)));
    let other = RepeatedWait::enter(&queue, &id, &pending("", r#"{"a":1}"#), YES);
    assert_eq!(other.map(drop), Err(NotApproved::Changed));
    let Ok(Repeated::Over { outcome, members }) = again(YES) else { panic!("it is decided") };
    assert_eq!((outcome.as_str(), &*members), ("approved", &b"\"requestState\":\"theirs\""[..]));
    assert_eq!(first.outcome().await.as_str(), "approved", "the first waiter gets the outcome");
    assert_eq!(again(YES).map(drop), Err(NotApproved::Spent));
    assert_eq!((queue.unclaimed(), queue.kept()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn cap_8_decision_before_the_retry_is_kept_and_claimed_once() {
    let queue = queue(WIDE);
    let mut first = enter_repeated(&queue, "{}", b"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    queue.answer(id.as_str(), approves(ApprovalExtent::Once)).unwrap();
    assert_eq!(first.outcome().await.as_str(), "approved");
    assert_eq!(queue.unclaimed(), 1);
    let claimed = RepeatedWait::enter(&queue, &id, &call, UserResponse::Missing);
    assert!(matches!(claimed, Ok(Repeated::Over { outcome: Outcome::Approved { .. }, .. })));
    assert_eq!(RepeatedWait::enter(&queue, &id, &call, YES).map(drop), Err(NotApproved::Spent));
    // A call that waits on its own connection cannot be retried.
    let waiting = enter(&queue, asked("{}", ""));
    let of_another = RepeatedWait::enter(&queue, waiting.id(), &call, YES);
    assert_eq!(of_another.map(drop), Err(NotApproved::Spent));
    drop(waiting);
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn cap_8_retry_waits_once_and_is_withdrawn_with_its_client() {
    let queue = queue(WIDE);
    let mut first = enter_repeated(&queue, "{}", b"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    let again = |response| RepeatedWait::enter(&queue, &id, &call, response);
    let Ok(Repeated::Waits(mut waits)) = again(UserResponse::Nothing) else { panic!("it waits") };
    for response in [UserResponse::Nothing, UserResponse::Missing, YES] {
        assert_eq!(again(response).map(drop), Err(NotApproved::Spent), "{response:?}");
    }
    assert_eq!(queue.release(&id), Err(NotApproved::Spent));
    queue.answer(id.as_str(), answer_of(ApprovalVerdict::Deny)).unwrap();
    assert_eq!(
        (waits.outcome().await.as_str(), first.outcome().await.as_str()),
        ("denied", "denied")
    );
    let mut second = enter_repeated(&queue, "{}", b"");
    let id = second.id().clone();
    let again = RepeatedWait::enter(&queue, &id, &call, UserResponse::Nothing);
    drop(again);
    assert_eq!(second.outcome().await, Outcome::Withdrawn);
    let mut third = enter_repeated(&queue, "{}", b"kept");
    assert_eq!(queue.release(&third.id().clone()).unwrap(), "kept");
    assert_eq!(third.outcome().await, Outcome::Withdrawn);
    assert_eq!((queue.unclaimed(), queue.kept()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn adopted_approval_counts_until_revoked_on_any_node() {
    let [a, b] = [queue(WIDE), queue(WIDE)];
    let mut waiting = enter(&a, asked("{}", ""));
    let id = waiting.id().to_string();
    a.answer(&id, approves(ApprovalExtent::For(MINUTE))).unwrap();
    waiting.outcome().await;
    let (shared, ended) = a.shared_state();
    assert_eq!((shared.len(), ended.len()), (1, 0));
    assert!(b.standing_for(&pending("", "{}"), "").is_none());
    for _ in 0..2 {
        b.adopt(shared.clone(), |_| false);
        assert_eq!(b.standing().len(), 1);
    }
    let Covered { approved, of, .. } =
        b.standing_for(&pending("", r#"{"path":"/b"}"#), "x").unwrap();
    assert_eq!(of.as_str(), id);
    let other = pending("", r#"{"path":"/b"}"#);
    assert!(other.permitted_by(&approved, &policy::Settings::default()).is_ok());
    assert!(b.standing_for(&pending("another definition", "{}"), "").is_none());
    // Revoked on the other node; a node that has not received the revocation does not restore it.
    b.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap();
    b.adopt(shared.clone(), |_| false);
    assert!(is_empty(&b));
    let (_, ended) = b.shared_state();
    assert_eq!(ended, [shared[0].key()]);
    b.mark_shared(&ended);
    assert_eq!(b.shared_state(), (Vec::new(), Vec::new()));
    a.adopt(shared.clone(), |key| ended.contains(key));
    assert!(is_empty(&a));
    // A wrong clock cannot extend an approval beyond the maximum: it is ignored.
    let late = SharedApproval { until: SystemTime::now() + 9 * MAX_STANDING, ..shared[0].clone() };
    let over = SharedApproval { until: SystemTime::now() - MINUTE, of: "x".into(), ..late.clone() };
    let apart = SystemTime::now() + MAX_STANDING + MINUTE / 2;
    let near = SharedApproval { until: apart, of: "y".into(), ..late.clone() };
    b.adopt([over, late, near], |_| false);
    let standing: Vec<_> = b.standing().iter().map(|approval| approval.of.to_string()).collect();
    assert_eq!(standing, ["y"]);
}

/// Standing approval of another node, with `number` in its id.
fn approval_of_another(number: usize, until: SystemTime) -> SharedApproval {
    SharedApproval {
        of: format!("{number:016}-abc0123").into(),
        access: "s:t".into(),
        principal: "admin".into(),
        session: None,
        by: Answerer::here("admin", AnswerChannel::Api),
        until,
        time: MAX_STANDING,
        received: None,
        subject: "x".into(),
    }
}

#[test]
fn clock_skew_does_not_extend_an_approval() {
    let mut standing = StandingApprovals::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let at =
        |minutes: u32| Now { instant: instant + minutes * MINUTE, time: time + minutes * MINUTE };
    let approval =
        SharedApproval { time: 60 * MINUTE, ..approval_of_another(1, time + 180 * MINUTE) };
    standing.adopt([approval.clone()], |_| false, at(0));
    assert_eq!(standing.all(at(59))[0].until, at(60).time, "deadline by the local clock");
    assert_eq!(standing.all(at(60)).len(), 0);
    assert_eq!(standing.ended(), [approval.key()], "it is revoked for all nodes");
    // After a restart the lifetime of the approval continues.
    let mut again = StandingApprovals::default();
    let remembered = SharedApproval { received: Some(time), ..approval };
    again.adopt([remembered.clone()], |_| false, at(30));
    assert_eq!((again.all(at(59)).len(), again.all(at(60)).len()), (1, 0));
    let mut late = StandingApprovals::default();
    late.adopt([remembered], |_| false, at(60));
    assert_eq!(late.all(at(60)).len(), 0);
}

#[test]
fn expired_approval_is_not_adopted_after_a_clock_step_back() {
    let mut standing = StandingApprovals::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let approval = approval_of_another(1, time + 60 * MINUTE);
    assert_eq!(standing.adopt([approval.clone()], |_| false, Now { instant, time }).len(), 0);
    // The clock, which was a day ahead, is corrected an hour later: without the cap, the approval would last a day
    // longer.
    let now = Now { instant: instant + 60 * MINUTE, time: time - MAX_STANDING };
    standing.adopt([approval.clone()], |_| false, now);
    assert_eq!(standing.all(now).len(), 0);
    assert_eq!(standing.ended(), [approval.key()], "it is revoked for all nodes");
    standing.forget_shared(&[approval.key()]);
    standing.adopt([approval.clone()], |key| *key == approval.key(), now);
    assert_eq!(standing.all(now).len(), 0);
}

#[test]
fn overlong_approval_is_ignored_and_logged_once() {
    let mut standing = StandingApprovals::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let approval = approval_of_another(1, time + 3 * MAX_STANDING);
    for (hours, added) in [(0, 1), (1, 0), (30, 0), (60, 0), (71, 0)] {
        let later = Duration::from_secs(hours * 3600);
        let now = Now { instant: instant + later, time: time + later };
        assert_eq!(standing.adopt([approval.clone()], |_| false, now).len(), added, "{hours}");
        assert_eq!(standing.all(now).len(), 0, "{hours}");
    }
}

#[test]
fn ignored_approvals_are_bounded_and_expire() {
    let mut standing = StandingApprovals::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + 3 * MAX_STANDING;
    let flood = || (0..5000).map(|at| approval_of_another(at, until));
    assert_eq!(standing.adopt(flood(), |_| false, now).len(), MAX_SHARED_APPROVALS);
    assert_eq!(standing.adopt(flood(), |_| false, now).len(), 0);
    let later = 4 * MAX_STANDING;
    let now = Now { instant: now.instant + later, time: now.time + later };
    let another = approval_of_another(1, now.time + 3 * MAX_STANDING);
    assert_eq!(standing.adopt([another], |_| false, now).len(), 1);
}

#[test]
fn oldest_unshared_revocation_is_dropped_at_the_limit() {
    let mut standing = StandingApprovals::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + MINUTE;
    let ids: Vec<_> = (0..=MAX_ENDED).map(|at| approval_of_another(at, until)).collect();
    standing.adopt(ids.iter().cloned(), |_| false, now);
    for approval in &ids {
        assert!(standing.end(&approval.of, now).is_some());
    }
    assert_eq!(standing.ended().len(), MAX_ENDED);
    assert_eq!(standing.unshared(&ids[0].of).map(|it| it.of.clone()), None);
    assert!(
        standing.unshared(&ids[1].of).is_some() && standing.unshared(&ids[MAX_ENDED].of).is_some()
    );
}

#[test]
fn adopted_approvals_leave_space_for_local_ones() {
    let mut standing = StandingApprovals::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + MINUTE;
    standing.adopt((0..300).map(|at| approval_of_another(at, until)), |_| false, now);
    let by = Answerer::here("admin", AnswerChannel::Api);
    for at in 0..MAX_STANDING_HERE {
        assert_eq!(standing.check_limits(now), Ok(()), "{at}");
        let (id, reach) =
            (ApprovalId::of_text(&at.to_string()), Reach { session: None, time: MINUTE });
        standing.add(&id, &asked("{}", ""), &by, reach, now);
    }
    assert_eq!(standing.check_limits(now), Err(MAX_STANDING_HERE));
    let mut full = StandingApprovals::default();
    full.adopt((0..5000).map(|at| approval_of_another(at, until)), |_| false, now);
    assert_eq!(full.all(now).len(), MAX_SHARED_APPROVALS);
    assert_eq!(full.check_limits(now), Err(MAX_SHARED_APPROVALS));
}

#[tokio::test]
async fn revocation_that_was_not_shared_can_be_retried() {
    let queue = Arc::new(ApprovalQueue::new(WIDE, None).of_node("abc0123"));
    queue.open();
    let mut waiting = enter(&queue, asked("{}", ""));
    let id = waiting.id().to_string();
    queue.answer(&id, approves(ApprovalExtent::For(MINUTE))).unwrap();
    waiting.outcome().await;
    for stood in [true, false] {
        let AnsweredApproval { decided, revoked } =
            queue.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap();
        assert_eq!((decided.outcome.as_str(), revoked.is_some()), ("denied", stood));
    }
    let ended = queue.unshared_revocation(&id).unwrap();
    queue.mark_shared(&[ended]);
    assert_eq!(queue.unshared_revocation(&id), None);
    let over = queue.answer(&id, answer_of(ApprovalVerdict::Deny)).unwrap_err();
    assert!(matches!(over, AnswerError::Over { .. }), "{over}");
}

#[tokio::test]
async fn fleet_approval_id_names_its_node() {
    let queue = Arc::new(ApprovalQueue::new(WIDE, None).of_node("abc0123"));
    queue.open();
    let waiting = enter(&queue, asked("{}", ""));
    assert_eq!(ApprovalId::node_in(waiting.id().as_str()), Some("abc0123"));
    assert!(queue.get(waiting.id().as_str()).is_some());
    let own = waiting.id().as_str().split('-').next().unwrap();
    assert!(queue.get(own).is_none(), "ids match whole");
}

#[test]
fn ids_are_short_and_unique() {
    let ids: std::collections::HashSet<_> =
        (0..1000).filter_map(|_| ApprovalId::fresh(None)).collect();
    assert_eq!(ids.len(), 1000);
    for id in ids {
        assert_eq!(id.as_str().len(), 16);
        assert!(id.as_str().bytes().all(|digit| DIGITS.contains(&digit)));
        assert_eq!(ApprovalId::node_in(id.as_str()), None);
    }
    let id = ApprovalId::fresh(Some("abc0123")).unwrap();
    assert_eq!((id.as_str().len(), ApprovalId::node_in(id.as_str())), (24, Some("abc0123")));
}

#[test]
fn pro_43_only_input_for_a_task_needs_an_approval_of_its_own() {
    let decide = |principal: &Principal, tool: Arc<Tool>, request| {
        let access = TaskAccess::new(ToolAccess::direct(tool), request, "1".into());
        let request = AdmissionRequest {
            principal,
            access: Access::Task(access),
            arguments: b"{}",
            meta: b"",
            inputs: b"",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        match policy::admit(request, &policy::Settings::default()) {
            Admission::Permit(_) => Ok("permit"),
            Admission::Pending(_) => Ok("pending"),
            Admission::Queued(_) => Ok("queued"),
            Admission::Denial(denial) => Err(denial.kind()),
        }
    };
    let scope = Scope { servers: vec!["other".into()], ..Scope::default() };
    let token = Principal::Token(Arc::new(AgentToken::new("ci", 1, scope)));
    let withheld = Arc::new(Tool { trust: Trust::Withheld, ..Tool::clone(&tool("")) });
    for (request, expected) in [
        (TaskRequest::Get, "permit"),
        (TaskRequest::Cancel, "permit"),
        (TaskRequest::Result, "permit"),
        (TaskRequest::Update, "pending"),
    ] {
        assert_eq!(decide(&Principal::Admin, tool(""), request), Ok(expected), "{request:?}");
        assert_eq!(decide(&token, tool(""), request), Err(DenialKind::Scope), "{request:?}");
        let quarantined = decide(&Principal::Admin, Arc::clone(&withheld), request);
        assert_eq!(quarantined, Err(DenialKind::Catalog), "{request:?}");
    }
}
