//! The room as a whole: answers, ends, bounds, and what is left behind.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::leaves::{Leaves, MAX_ENDED, MAX_LEAVES, Now, Reach};
use super::*;
use crate::intent;
use crate::policy::{
    self, Access, Admission, AdmissionRequest, Approved, NotApproved, PendingApproval, Principal,
    SessionFacts, ToolAccess,
};
use crate::tool::{Annotations, CapabilityOverride, Rules, Tool, ToolName};

const MINUTE: Duration = Duration::from_secs(60);
const WIDE: RoomBounds = RoomBounds { waiting: 20_000, of_one: 20_000, bytes: usize::MAX };

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
        intent: None,
        client: "",
        session: SessionFacts::default(),
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
        session: session.into(),
        client: "".into(),
        request_id: "".into(),
    }
}

fn room(bounds: RoomBounds) -> Arc<Room> {
    let room = Arc::new(Room::new(bounds, None));
    room.open();
    room
}

fn enter(room: &Arc<Room>, asked: AskedCall) -> WaitingApproval {
    match WaitingApproval::enter(room, asked, MINUTE, false).unwrap() {
        Entered::Waiting(waiting) => waiting,
        Entered::Leave { of, .. } => panic!("an approval stands: {of}"),
    }
}

fn says(verdict: ApprovalVerdict) -> ApprovalAnswer {
    let by = Answerer::here("admin", Door::Cli);
    ApprovalAnswer { verdict, by, seen: None }
}

fn approves(extent: Extent) -> ApprovalAnswer {
    says(ApprovalVerdict::Approve(extent))
}

/// Nothing waits, nothing is counted, nothing stands.
fn is_empty(room: &Room) -> bool {
    room.count() == 0 && room.waiting().is_empty() && room.standing().is_empty()
}

#[tokio::test]
async fn cap_8_the_first_answer_counts_and_a_second_is_told_so() {
    let room = room(WIDE);
    let mut waiting = enter(&room, asked("{}", ""));
    let id = waiting.id().to_string();
    let AnsweredApproval { decided, revoked } =
        room.answer(&id, says(ApprovalVerdict::Deny)).unwrap();
    assert_eq!((decided.outcome.as_str(), revoked), ("denied", None));
    let second = room.answer(&id, approves(Extent::Once)).unwrap_err();
    let told = format!("Approval {id} is decided already: denied by admin over cli");
    assert_eq!(second.to_string(), told);
    let outcome = waiting.outcome().await;
    assert!(matches!(outcome, Outcome::Denied { .. }), "{outcome:?}");
    assert_eq!(
        room.answer("0123456789abcdef", says(ApprovalVerdict::Deny)),
        Err(NotAnswered::NotFound)
    );
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_an_approval_is_for_one_call_and_used_up_by_it() {
    let room = room(WIDE);
    let mut first = enter(&room, asked(r#"{"path":"/a"}"#, ""));
    room.answer(first.id().as_str(), approves(Extent::Once)).unwrap();
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
    // The same call again asks again.
    drop(enter(&room, asked(r#"{"path":"/a"}"#, "")));
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_whoever_has_looked_at_another_call_approves_none() {
    let room = room(WIDE);
    let waiting = enter(&room, asked(r#"{"n":1}"#, ""));
    let of_another = pending("", r#"{"n":2}"#).digest().to_string();
    let answer = ApprovalAnswer { seen: Some(of_another.into()), ..approves(Extent::Once) };
    let refused = room.answer(waiting.id().as_str(), answer).unwrap_err();
    assert!(matches!(refused, NotAnswered::OtherCall(_)));
    let own = pending("", r#"{"n":1}"#).digest().to_string();
    let answer = ApprovalAnswer { seen: Some(own.into()), ..approves(Extent::Once) };
    assert!(room.answer(waiting.id().as_str(), answer).is_ok());
}

#[tokio::test]
async fn cap_8_an_approval_can_stand_for_the_tool_as_it_is_and_end_early() {
    let room = room(WIDE);
    let first = enter(&room, asked("{}", ""));
    let id = first.id().to_string();
    room.answer(&id, approves(Extent::For(MINUTE))).unwrap();
    let entered =
        WaitingApproval::enter(&room, asked(r#"{"other":1}"#, "any"), MINUTE, false).unwrap();
    let Entered::Leave { approved, of } = entered else { panic!("it waits") };
    assert_eq!(of.as_str(), id);
    assert!(matches!(approved, Approved::Standing(_)));
    let mut changed = asked("{}", "");
    changed.pending = pending("does something else now", "{}");
    drop(enter(&room, changed));
    // The client's user was asked meanwhile, and says no to the call alone.
    let late = Answerer::here("anonymous", Door::Elicitation);
    let late = ApprovalAnswer { verdict: ApprovalVerdict::Deny, by: late, seen: None };
    assert!(matches!(room.answer(&id, late), Err(NotAnswered::Over { .. })));
    let standing = room.standing().pop();
    let AnsweredApproval { revoked, .. } = room.answer(&id, says(ApprovalVerdict::Deny)).unwrap();
    assert!(standing.is_some());
    assert_eq!(revoked, standing);
    drop(enter(&room, asked("{}", "")));
    let again = room.answer(&id, says(ApprovalVerdict::Deny)).unwrap_err();
    assert!(matches!(again, NotAnswered::Over { .. }), "{again}");
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_an_approval_that_stands_ends_with_its_time() {
    let room = room(WIDE);
    let first = enter(&room, asked("{}", ""));
    let short = Extent::For(Duration::from_millis(1));
    room.answer(first.id().as_str(), approves(short)).unwrap();
    let began = std::time::Instant::now();
    while !room.standing().is_empty() {
        assert!(began.elapsed() < MINUTE / 6, "it still stands");
        tokio::task::yield_now().await;
    }
    drop(enter(&room, asked("{}", "")));
}

#[tokio::test]
async fn cap_8_for_the_session_is_for_that_session_alone() {
    let room = room(WIDE);
    let outside = enter(&room, asked("{}", ""));
    let refused = room.answer(outside.id().as_str(), approves(Extent::Session)).unwrap_err();
    assert!(matches!(refused, NotAnswered::NoSession(_)));
    let long = Extent::For(MAX_STANDING + MINUTE);
    assert_eq!(room.answer(outside.id().as_str(), approves(long)), Err(NotAnswered::TooLong));
    assert_eq!(room.count(), 1, "it still waits");
    let inside = enter(&room, asked("{}", "one"));
    room.answer(inside.id().as_str(), approves(Extent::Session)).unwrap();
    let enters =
        |session| WaitingApproval::enter(&room, asked("{}", session), MINUTE, false).unwrap();
    assert!(matches!(enters("one"), Entered::Leave { .. }));
    assert!(matches!(enters("two"), Entered::Waiting(_)));
    assert!(matches!(enters(""), Entered::Waiting(_)));
}

#[tokio::test]
async fn cap_8_what_nobody_answers_ends_with_its_time() {
    let room = room(WIDE);
    let entered =
        WaitingApproval::enter(&room, asked("{}", ""), Duration::from_millis(1), false).unwrap();
    let Entered::Waiting(mut waiting) = entered else { panic!("it does not wait") };
    let outcome = waiting.outcome().await;
    assert_eq!(outcome, Outcome::TimedOut { after: Duration::from_millis(1) });
    let late = room.answer(waiting.id().as_str(), approves(Extent::Once)).unwrap_err();
    assert!(late.to_string().ends_with("nobody answered in time"), "{late}");
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_a_call_that_is_not_looked_after_cannot_be_approved_too_late() {
    let room = room(WIDE);
    let entered = WaitingApproval::enter(&room, asked("{}", ""), Duration::ZERO, false).unwrap();
    let Entered::Waiting(mut waiting) = entered else { panic!("it does not wait") };
    assert!(room.answer(waiting.id().as_str(), approves(Extent::Once)).is_err());
    assert!(matches!(waiting.outcome().await, Outcome::TimedOut { .. }));
}

#[tokio::test]
async fn cap_8_the_end_of_the_proxy_refuses_all_and_nobody_is_asked_where_nobody_listens() {
    let deaf = Arc::new(Room::new(WIDE, None));
    let refused = WaitingApproval::enter(&deaf, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::Nobody);
    assert!(
        WaitingApproval::enter(&deaf, asked("{}", ""), MINUTE, true).is_ok(),
        "its client can answer"
    );
    let room = room(WIDE);
    let mut waiting = enter(&room, asked("{}", ""));
    room.close();
    assert_eq!(waiting.outcome().await, Outcome::Ending);
    let refused = WaitingApproval::enter(&room, asked("{}", ""), MINUTE, true).unwrap_err();
    assert_eq!(refused, NotApproved::Ending);
    room.open();
    assert!(
        WaitingApproval::enter(&room, asked("{}", ""), MINUTE, true).is_err(),
        "the end is the end"
    );
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_ten_thousand_wait_and_nothing_is_left_of_them() {
    const MANY: usize = 10_000;
    let room = room(RoomBounds { waiting: MANY, of_one: MANY, bytes: usize::MAX });
    let enter = |n| {
        let asked = asked(&format!("{{\"n\":{n}}}"), "");
        match WaitingApproval::enter(&room, asked, 60 * MINUTE, false).unwrap() {
            Entered::Waiting(waiting) => waiting,
            Entered::Leave { of, .. } => panic!("an approval stands: {of}"),
        }
    };
    let mut all: Vec<WaitingApproval> = (0..MANY).map(enter).collect();
    assert_eq!(room.count(), MANY);
    let refused = WaitingApproval::enter(&room, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: MANY });
    for (n, waiting) in all.iter().enumerate() {
        match n % 3 {
            0 => drop(room.answer(waiting.id().as_str(), approves(Extent::Once)).unwrap()),
            1 => drop(room.answer(waiting.id().as_str(), says(ApprovalVerdict::Deny)).unwrap()),
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
    assert_eq!(room.count(), MANY - approved - denied);
    drop(all);
    assert!(is_empty(&room));
    assert_eq!(room.kept(), (0, 0, 0), "bytes, ids and principals");
}

#[tokio::test]
async fn cap_8_one_principal_does_not_take_all_places_nor_all_memory() {
    let room = room(RoomBounds { waiting: 10, of_one: 2, bytes: 100_000 });
    let first = enter(&room, asked("{}", ""));
    let _second = enter(&room, asked("{}", ""));
    let refused = WaitingApproval::enter(&room, asked("{}", ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: 2 });
    drop(first);
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(100_000));
    let refused = WaitingApproval::enter(&room, asked(&large, ""), MINUTE, false).unwrap_err();
    assert_eq!(refused, NotApproved::TooMany { limit: 1 });
    drop(enter(&room, asked("{}", "")));
}

#[test]
fn cap_8_two_answers_at_once_are_one() {
    let room = room(WIDE);
    for _ in 0..200 {
        let waiting = enter(&room, asked("{}", ""));
        let counted: usize = std::thread::scope(|scope| {
            let answers =
                [ApprovalVerdict::Deny, ApprovalVerdict::Approve(Extent::Once)].map(|verdict| {
                    let (room, id) = (&room, waiting.id());
                    scope.spawn(move || room.answer(id.as_str(), says(verdict)).is_ok())
                });
            answers.into_iter().filter_map(|it| it.join().ok()).map(usize::from).sum()
        });
        assert_eq!(counted, 1);
    }
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_who_listens_hears_of_each_wait_and_of_its_end() {
    let (sender, mut heard) = tokio::sync::mpsc::channel(3);
    let room = Arc::new(Room::new(WIDE, Some(sender)));
    room.open();
    let first = enter(&room, asked("{}", ""));
    room.answer(first.id().as_str(), says(ApprovalVerdict::Deny)).unwrap();
    drop(first);
    let second = enter(&room, asked("{}", ""));
    drop(second);
    let told: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok())
        .map(|told| told.outcome.map(|outcome| outcome.as_str()))
        .collect();
    assert_eq!(told, [None, Some("denied"), None]);
    assert_eq!(room.untold(), 1, "nobody waits for who does not listen");
}

fn enter_repeated(room: &Arc<Room>, arguments: &str, beside: &'static [u8]) -> WaitingApproval {
    let beside = bytes::Bytes::from_static(beside);
    match WaitingApproval::enter_repeated(room, asked(arguments, ""), MINUTE, beside).unwrap() {
        Entered::Waiting(waiting) => waiting,
        Entered::Leave { of, .. } => panic!("an approval stands: {of}"),
    }
}

const YES: UserSaid = UserSaid::Verdict(ApprovalVerdict::Approve(Extent::Once));

#[tokio::test]
async fn cap_8_a_call_that_is_made_again_is_used_up_and_gets_back_what_stood_beside_it() {
    let room = room(WIDE);
    let mut first = enter_repeated(&room, "{}", b"\"requestState\":\"theirs\"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    let again = |said| RepeatedWait::enter(&room, &id, &call, said);
    assert!(matches!(again(UserSaid::Missing), Ok(Repeated::AskAgain)));
    let other = RepeatedWait::enter(&room, &id, &pending("", r#"{"a":1}"#), YES);
    assert_eq!(other.map(drop), Err(NotApproved::Changed));
    let Ok(Repeated::Over { outcome, beside }) = again(YES) else { panic!("it is decided") };
    assert_eq!((outcome.as_str(), &*beside), ("approved", &b"\"requestState\":\"theirs\""[..]));
    assert_eq!(first.outcome().await.as_str(), "approved", "whoever keeps the record is told");
    assert_eq!(again(YES).map(drop), Err(NotApproved::Spent));
    assert_eq!((room.unclaimed(), room.kept()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn cap_8_what_is_decided_before_its_client_comes_again_is_kept_and_claimed_once() {
    let room = room(WIDE);
    let mut first = enter_repeated(&room, "{}", b"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    room.answer(id.as_str(), approves(Extent::Once)).unwrap();
    assert_eq!(first.outcome().await.as_str(), "approved");
    assert_eq!(room.unclaimed(), 1);
    let claimed = RepeatedWait::enter(&room, &id, &call, UserSaid::Missing);
    assert!(matches!(claimed, Ok(Repeated::Over { outcome: Outcome::Approved { .. }, .. })));
    assert_eq!(RepeatedWait::enter(&room, &id, &call, YES).map(drop), Err(NotApproved::Spent));
    // One that waits itself for its answer is not made again.
    let waiting = enter(&room, asked("{}", ""));
    let of_another = RepeatedWait::enter(&room, waiting.id(), &call, YES);
    assert_eq!(of_another.map(drop), Err(NotApproved::Spent));
    drop(waiting);
    assert!(is_empty(&room));
}

#[tokio::test]
async fn cap_8_a_call_that_is_made_again_waits_once_and_is_withdrawn_with_its_client() {
    let room = room(WIDE);
    let mut first = enter_repeated(&room, "{}", b"");
    let (id, call) = (first.id().clone(), pending("", "{}"));
    let again = |said| RepeatedWait::enter(&room, &id, &call, said);
    let Ok(Repeated::Waits(mut waits)) = again(UserSaid::Nothing) else { panic!("it waits") };
    for said in [UserSaid::Nothing, UserSaid::Missing, YES] {
        assert_eq!(again(said).map(drop), Err(NotApproved::Spent), "{said:?}");
    }
    assert_eq!(room.release(&id), Err(NotApproved::Spent));
    room.answer(id.as_str(), says(ApprovalVerdict::Deny)).unwrap();
    assert_eq!(
        (waits.outcome().await.as_str(), first.outcome().await.as_str()),
        ("denied", "denied")
    );
    let mut second = enter_repeated(&room, "{}", b"");
    let id = second.id().clone();
    let again = RepeatedWait::enter(&room, &id, &call, UserSaid::Nothing);
    drop(again);
    assert_eq!(second.outcome().await, Outcome::Withdrawn);
    let mut third = enter_repeated(&room, "{}", b"kept");
    assert_eq!(room.release(&third.id().clone()).unwrap(), "kept");
    assert_eq!(third.outcome().await, Outcome::Withdrawn);
    assert_eq!((room.unclaimed(), room.kept()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn what_stands_at_another_node_counts_here_until_it_is_denied_at_one() {
    let [a, b] = [room(WIDE), room(WIDE)];
    let mut waiting = enter(&a, asked("{}", ""));
    let id = waiting.id().to_string();
    a.answer(&id, approves(Extent::For(MINUTE))).unwrap();
    waiting.outcome().await;
    let (told, ended) = a.leaves();
    assert_eq!((told.len(), ended.len()), (1, 0));
    assert!(b.standing_for(&pending("", "{}"), "").is_none());
    for _ in 0..2 {
        b.take_over(told.clone(), |_| false);
        assert_eq!(b.standing().len(), 1);
    }
    let (approved, of) = b.standing_for(&pending("", r#"{"path":"/b"}"#), "x").unwrap();
    assert_eq!(of.as_str(), id);
    let other = pending("", r#"{"path":"/b"}"#);
    assert!(other.permitted_by(&approved, &policy::Settings::default()).is_ok());
    assert!(b.standing_for(&pending("another definition", "{}"), "").is_none());
    // Denied at the one that did not give it; who has not heard of that does not bring it back.
    b.answer(&id, says(ApprovalVerdict::Deny)).unwrap();
    b.take_over(told.clone(), |_| false);
    assert!(is_empty(&b));
    let (_, ended) = b.leaves();
    assert_eq!(ended, [told[0].key()]);
    b.leaves_told(&ended);
    assert_eq!(b.leaves(), (Vec::new(), Vec::new()));
    a.take_over(told.clone(), |key| ended.contains(key));
    assert!(is_empty(&a));
    // A clock that is wrong lets none stand longer than any may: it counts for nobody.
    let late = SharedLeave { until: SystemTime::now() + 9 * MAX_STANDING, ..told[0].clone() };
    let over = SharedLeave { until: SystemTime::now() - MINUTE, of: "x".into(), ..late.clone() };
    let apart = SystemTime::now() + MAX_STANDING + MINUTE / 2;
    let near = SharedLeave { until: apart, of: "y".into(), ..late.clone() };
    b.take_over([over, late, near], |_| false);
    let standing: Vec<_> = b.standing().iter().map(|leave| leave.of.to_string()).collect();
    assert_eq!(standing, ["y"]);
}

/// A leave of another node, by number, which stands so long after `from`.
fn leave_of_another(number: usize, until: SystemTime) -> SharedLeave {
    SharedLeave {
        of: format!("{number:016}-abc0123").into(),
        access: "s:t".into(),
        principal: "admin".into(),
        session: None,
        by: Answerer::here("admin", Door::Api),
        until,
        time: MAX_STANDING,
        heard: None,
        subject: "x".into(),
    }
}

#[test]
fn what_was_given_for_an_hour_stands_no_longer_where_the_clock_is_two_hours_behind() {
    let mut leaves = Leaves::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let at =
        |minutes: u32| Now { instant: instant + minutes * MINUTE, time: time + minutes * MINUTE };
    let leave = SharedLeave { time: 60 * MINUTE, ..leave_of_another(1, time + 180 * MINUTE) };
    leaves.take_over([leave.clone()], |_| false, at(0));
    assert_eq!(leaves.all(at(59))[0].until, at(60).time, "as it is shown here");
    assert_eq!(leaves.all(at(60)).len(), 0);
    assert_eq!(leaves.ended(), [leave.key()], "nobody goes on with it");
    // After a restart it goes on where it was.
    let mut again = Leaves::default();
    let remembered = SharedLeave { heard: Some(time), ..leave };
    again.take_over([remembered.clone()], |_| false, at(30));
    assert_eq!((again.all(at(59)).len(), again.all(at(60)).len()), (1, 0));
    let mut late = Leaves::default();
    late.take_over([remembered], |_| false, at(60));
    assert_eq!(late.all(at(60)).len(), 0);
}

#[test]
fn what_stood_its_time_is_not_taken_over_again_by_a_clock_that_was_turned_back() {
    let mut leaves = Leaves::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let leave = leave_of_another(1, time + 60 * MINUTE);
    assert_eq!(leaves.take_over([leave.clone()], |_| false, Now { instant, time }).len(), 0);
    // An hour later, by a clock that was a day ahead and is right now: it would stand for a day more.
    let now = Now { instant: instant + 60 * MINUTE, time: time - MAX_STANDING };
    leaves.take_over([leave.clone()], |_| false, now);
    assert_eq!(leaves.all(now).len(), 0);
    assert_eq!(leaves.ended(), [leave.key()], "all nodes are told");
    leaves.told(&[leave.key()]);
    leaves.take_over([leave.clone()], |key| *key == leave.key(), now);
    assert_eq!(leaves.all(now).len(), 0);
}

#[test]
fn what_would_stand_too_long_is_told_once_and_counts_at_no_time() {
    let mut leaves = Leaves::default();
    let (instant, time) = (Instant::now(), SystemTime::now());
    let leave = leave_of_another(1, time + 3 * MAX_STANDING);
    for (hours, told) in [(0, 1), (1, 0), (30, 0), (60, 0), (71, 0)] {
        let later = Duration::from_secs(hours * 3600);
        let now = Now { instant: instant + later, time: time + later };
        assert_eq!(leaves.take_over([leave.clone()], |_| false, now).len(), told, "{hours}");
        assert_eq!(leaves.all(now).len(), 0, "{hours}");
    }
}

#[test]
fn of_those_that_would_stand_too_long_no_more_are_kept_than_may_stand_and_none_past_its_end() {
    let mut leaves = Leaves::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + 3 * MAX_STANDING;
    let flood = || (0..5000).map(|at| leave_of_another(at, until));
    assert_eq!(leaves.take_over(flood(), |_| false, now).len(), MAX_SHARED_LEAVES);
    assert_eq!(leaves.take_over(flood(), |_| false, now).len(), 0);
    let later = 4 * MAX_STANDING;
    let now = Now { instant: now.instant + later, time: now.time + later };
    let another = leave_of_another(1, now.time + 3 * MAX_STANDING);
    assert_eq!(leaves.take_over([another], |_| false, now).len(), 1);
}

#[test]
fn of_those_that_were_ended_the_oldest_is_forgotten_where_the_fleet_cannot_be_told() {
    let mut leaves = Leaves::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + MINUTE;
    let ids: Vec<_> = (0..=MAX_ENDED).map(|at| leave_of_another(at, until)).collect();
    leaves.take_over(ids.iter().cloned(), |_| false, now);
    for leave in &ids {
        assert!(leaves.end(&leave.of, now).is_some());
    }
    assert_eq!(leaves.ended().len(), MAX_ENDED);
    assert_eq!(leaves.untold(&ids[0].of).map(|it| it.of.clone()), None);
    assert!(leaves.untold(&ids[1].of).is_some() && leaves.untold(&ids[MAX_ENDED].of).is_some());
}

#[test]
fn those_of_other_nodes_leave_room_for_as_many_as_one_node_may_give() {
    let mut leaves = Leaves::default();
    let now = Now { instant: Instant::now(), time: SystemTime::now() };
    let until = now.time + MINUTE;
    leaves.take_over((0..300).map(|at| leave_of_another(at, until)), |_| false, now);
    let by = Answerer::here("admin", Door::Api);
    for at in 0..MAX_LEAVES {
        assert_eq!(leaves.has_room(now), Ok(()), "{at}");
        let (id, reach) =
            (ApprovalId::of_text(&at.to_string()), Reach { session: None, time: MINUTE });
        leaves.give(&id, &asked("{}", ""), &by, reach, now);
    }
    assert_eq!(leaves.has_room(now), Err(MAX_LEAVES));
    let mut full = Leaves::default();
    full.take_over((0..5000).map(|at| leave_of_another(at, until)), |_| false, now);
    assert_eq!(full.all(now).len(), MAX_SHARED_LEAVES);
    assert_eq!(full.has_room(now), Err(MAX_SHARED_LEAVES));
}

#[tokio::test]
async fn in_a_fleet_a_late_no_that_the_others_were_not_told_counts_once_more() {
    let room = Arc::new(Room::new(WIDE, None).of_node("abc0123"));
    room.open();
    let mut waiting = enter(&room, asked("{}", ""));
    let id = waiting.id().to_string();
    room.answer(&id, approves(Extent::For(MINUTE))).unwrap();
    waiting.outcome().await;
    for stood in [true, false] {
        let AnsweredApproval { decided, revoked } =
            room.answer(&id, says(ApprovalVerdict::Deny)).unwrap();
        assert_eq!((decided.outcome.as_str(), revoked.is_some()), ("denied", stood));
    }
    let ended = room.untold_end(&id).unwrap();
    room.leaves_told(&[ended]);
    assert_eq!(room.untold_end(&id), None);
    let over = room.answer(&id, says(ApprovalVerdict::Deny)).unwrap_err();
    assert!(matches!(over, NotAnswered::Over { .. }), "{over}");
}

#[tokio::test]
async fn in_a_fleet_an_id_says_on_which_node_its_call_waits() {
    let room = Arc::new(Room::new(WIDE, None).of_node("abc0123"));
    room.open();
    let waiting = enter(&room, asked("{}", ""));
    assert_eq!(ApprovalId::node_in(waiting.id().as_str()), Some("abc0123"));
    assert!(room.get(waiting.id().as_str()).is_some());
    let own = waiting.id().as_str().split('-').next().unwrap();
    assert!(room.get(own).is_none(), "it is the whole id");
}
