//! Limits as an admission meets them: who is refused, who waits, and what is given back.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::policy::{ResourceRequest, ToolAccess};
use crate::tool::{Annotations, CapabilityOverride, Tool, ToolName};

fn tool(name: &str, capabilities: &str) -> Access {
    let rules: Rules<CapabilityOverride> = serde_json::from_str(capabilities).unwrap();
    let annotations = Annotations::default();
    let name = ToolName::parse(name).unwrap();
    Access::Tool(ToolAccess::direct(Arc::new(Tool::named(name, annotations, &rules))))
}

fn serial(name: &str) -> Access {
    tool(name, r#"{"*": {"parallel_safe": false}}"#)
}

fn resource(server: &str) -> Access {
    Access::Resource { server: server.into(), uri: "a:b".into(), request: ResourceRequest::Read }
}

fn limits(config: &str, servers: &[(&str, &str)]) -> CallLimits {
    let config: Config = serde_json::from_str(config).unwrap();
    let servers = servers.iter().map(|(name, config)| {
        (Arc::from(*name), serde_json::from_str::<ServerConfig>(config).unwrap())
    });
    CallLimits::new(&config, servers)
}

const ADMIN: &Principal = &Principal::Admin;
const ANYONE: &Principal = &Principal::Anonymous;

fn free(limits: &CallLimits, principal: &Principal, access: &Access) -> Occupied {
    match limits.enter(principal, access) {
        Ok(Entrance::Free(occupied)) => occupied,
        other @ (Ok(Entrance::Queued(_)) | Err(_)) => panic!("{other:?}"),
    }
}

fn queued(limits: &CallLimits, principal: &Principal, access: &Access) -> Queue {
    match limits.enter(principal, access) {
        Ok(Entrance::Queued(queue)) => queue,
        other @ (Ok(Entrance::Free(_)) | Err(_)) => panic!("{other:?}"),
    }
}

fn refused(limits: &CallLimits, principal: &Principal, access: &Access) -> String {
    limits.enter(principal, access).unwrap_err().to_string()
}

fn polled<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn without_limits_a_request_occupies_nothing() {
    let limits = CallLimits::default();
    let occupied = free(&limits, ADMIN, &tool("s:t", "{}"));
    assert!(occupied.places.is_empty() && occupied.pass.is_none());
    assert_eq!(occupied.places.capacity(), 0);
}

#[test]
fn each_limit_is_named_in_its_refusal() {
    for (config, server, of) in [
        (r#"{"concurrent": 1, "queue": 0}"#, "{}", "all servers"),
        ("{}", r#"{"concurrent": 1, "queue": 0}"#, "s"),
        (r#"{"tools": {"s:*": {"concurrent": 1, "queue": 0}}}"#, "{}", "s:t"),
        (r#"{"principals": {"ad*": {"concurrent": 1, "queue": 0}}}"#, "{}", "admin"),
    ] {
        let limits = limits(config, &[("s", server)]);
        let access = tool("s:t", "{}");
        let occupied = free(&limits, ADMIN, &access);
        let text = format!("Too many calls to '{of}' at a time: limit 1, queue 0");
        assert_eq!(refused(&limits, ADMIN, &access), text);
        drop(occupied);
        let again = free(&limits, ADMIN, &access);
        assert_eq!(again.places.len(), 1, "{of}");
    }
    for (config, server, of) in [
        (r#"{"rate_per_minute": 2}"#, "{}", "all servers"),
        ("{}", r#"{"rate_per_minute": 2}"#, "s"),
        (r#"{"tools": {"s:t": {"rate_per_minute": 2}}}"#, "{}", "s:t"),
        (r#"{"principals": {"admin": {"rate_per_minute": 2}}}"#, "{}", "admin"),
    ] {
        let limits = limits(config, &[("s", server)]);
        let access = tool("s:t", "{}");
        for _ in 0..2 {
            free(&limits, ADMIN, &access);
        }
        let text = format!("Too many calls to '{of}': limit 2 per minute, retry in 30s");
        assert_eq!(refused(&limits, ADMIN, &access), text);
    }
}

#[test]
fn tools_and_principals_are_counted_each_by_itself() {
    let limits = limits(
        r#"{"tools": {"*": {"rate_per_minute": 1, "concurrent": 2, "queue": 0}},
            "principals": {"*": {"concurrent": 3, "queue": 0}}}"#,
        &[],
    );
    let (one, other) = (tool("s:one", "{}"), tool("s:other", "{}"));
    let _kept = [
        free(&limits, ADMIN, &one),
        free(&limits, ANYONE, &one),
        free(&limits, ADMIN, &other),
        free(&limits, ADMIN, &resource("s")),
    ];
    assert!(refused(&limits, ADMIN, &one).contains("'s:one': limit 1 per minute"));
    let text = "Too many calls to 'admin' at a time: limit 3, queue 0";
    assert_eq!(refused(&limits, ADMIN, &resource("s")), text);
    free(&limits, ANYONE, &resource("s"));
}

#[test]
fn who_had_to_wait_for_one_place_occupies_those_behind_it_too() {
    let limits = limits(
        r#"{"tools": {"s:t": {"concurrent": 1}}}"#,
        &[("s", r#"{"concurrent": 1, "queue": 0}"#)],
    );
    let (access, other) = (tool("s:t", "{}"), tool("s:other", "{}"));
    let first = free(&limits, ADMIN, &access);
    let mut second = queued(&limits, ADMIN, &access);
    let mut coming = pin!(second.come(ADMIN, &access));
    assert!(polled(coming.as_mut()).is_none());
    drop(first);
    let second = polled(coming.as_mut()).unwrap().unwrap();
    let text = "Too many calls to 's' at a time: limit 1, queue 0";
    assert_eq!(refused(&limits, ADMIN, &other), text);
    drop(second);
    free(&limits, ADMIN, &other);
}

#[test]
fn cap_6_a_serial_tool_is_called_one_at_a_time_in_order_of_arrival() {
    let limits = CallLimits::default();
    let access = serial("s:t");
    let first = free(&limits, ADMIN, &access);
    let (mut second, mut third) =
        (queued(&limits, ADMIN, &access), queued(&limits, ANYONE, &access));
    let (mut second, mut third) =
        (pin!(second.come(ADMIN, &access)), pin!(third.come(ANYONE, &access)));
    assert!(polled(second.as_mut()).is_none() && polled(third.as_mut()).is_none());
    free(&limits, ADMIN, &serial("s:another"));
    drop(first);
    assert!(polled(third.as_mut()).is_none());
    let second = polled(second.as_mut()).unwrap().unwrap();
    assert!(polled(third.as_mut()).is_none());
    drop(second);
    drop(polled(third.as_mut()).unwrap().unwrap());
    free(&limits, ADMIN, &access);
}

#[test]
fn cap_6_ten_thousand_calls_to_a_serial_tool_wait_in_order_or_are_refused() {
    let limits = CallLimits::default();
    let access = serial("s:t");
    let first = free(&limits, ADMIN, &access);
    let mut waiting: Vec<Queue> = Vec::new();
    let mut refusals = 0;
    for _ in 0..10_000 {
        match limits.enter(ADMIN, &access) {
            Ok(Entrance::Queued(queue)) => waiting.push(queue),
            Ok(Entrance::Free(_)) => panic!("one at a time"),
            Err(full) => {
                let text = "Too many calls to 's:t' at a time: limit 1, queue 256";
                assert_eq!(full.to_string(), text);
                refusals += 1;
            }
        }
    }
    assert_eq!((waiting.len(), refusals), (DEFAULT_QUEUE, 10_000 - DEFAULT_QUEUE));
    let next = limits.next(&Config::default(), []);
    assert_eq!((limits.queued(), next.queued()), (DEFAULT_QUEUE, DEFAULT_QUEUE));
    let text = waiting[7].late(ADMIN, &access, Duration::from_millis(1500)).to_string();
    let told = "Too many calls to 's:t' at a time: limit 1, queue 256; none was free within 1s";
    assert_eq!(text, told);
    // Half of them go away, the others have their turn one after another.
    let mut place = Some(first);
    for (at, mut queue) in waiting.into_iter().enumerate() {
        if at % 2 == 0 {
            drop(queue);
            continue;
        }
        let mut coming = pin!(queue.come(ADMIN, &access));
        assert!(polled(coming.as_mut()).is_none());
        drop(place.take());
        place = Some(polled(coming.as_mut()).unwrap().unwrap());
    }
    drop(place);
    assert_eq!(next.queued(), 0);
    let occupied = free(&limits, ADMIN, &access);
    assert_eq!(occupied.places.len(), 1);
}

#[test]
fn who_waits_for_one_tool_holds_nothing_that_others_need() {
    let limits = limits(r#"{"concurrent": 2, "queue": 1}"#, &[]);
    let (slow, quick) = (serial("s:slow"), tool("s:quick", "{}"));
    let first = free(&limits, ADMIN, &slow);
    let _waiting: Vec<Queue> = (0..20).map(|_| queued(&limits, ADMIN, &slow)).collect();
    drop(free(&limits, ADMIN, &quick));
    // Behind one gate there may be another.
    let _second = free(&limits, ADMIN, &quick);
    let mut other = queued(&limits, ADMIN, &serial("s:other"));
    let other_access = serial("s:other");
    let mut coming = pin!(other.come(ADMIN, &other_access));
    assert!(polled(coming.as_mut()).is_none());
    assert!(refused(&limits, ADMIN, &quick).contains("'all servers' at a time"));
    drop(first);
    let occupied = polled(coming.as_mut()).unwrap().unwrap();
    assert_eq!(occupied.places.len(), 2);
}

#[test]
fn a_server_that_fails_is_set_aside_also_for_those_who_wait() {
    let server = r#"{"concurrent": 1, "breaker": {"failures": 1, "open": "30s"}}"#;
    let limits = limits("{}", &[("s", server), ("other", "{}")]);
    let access = resource("s");
    let mut first = free(&limits, ADMIN, &access);
    let mut second = queued(&limits, ADMIN, &access);
    let mut coming = pin!(second.come(ADMIN, &access));
    assert!(polled(coming.as_mut()).is_none());
    assert!(matches!(
        first.settle(ServerOutcome::Failed),
        Some(BreakerChange::Opened { failures: 1, .. })
    ));
    let aside = "Server 's' is set aside after 1 failures, next try in 30s";
    assert_eq!(polled(coming.as_mut()).unwrap().unwrap_err().to_string(), aside);
    assert_eq!(refused(&limits, ADMIN, &access), aside);
    free(&limits, ADMIN, &resource("other"));
    assert_eq!(limits.servers["s"].cell.gate.as_ref().unwrap().inside(), 0);
}

#[test]
fn what_is_refused_for_a_server_that_is_set_aside_counts_for_no_rate() {
    let server = r#"{"rate_per_minute": 2, "breaker": {"failures": 1, "open": "30s"}}"#;
    let limits = limits("{}", &[("s", server)]);
    free(&limits, ADMIN, &resource("s")).settle(ServerOutcome::Failed);
    for _ in 0..3 {
        assert!(refused(&limits, ADMIN, &resource("s")).contains("'s' is set aside"));
    }
}

#[test]
fn the_breaker_of_the_section_is_that_of_each_server() {
    let limits = limits(r#"{"breaker": {"failures": 1}}"#, &[("a", "{}"), ("b", "{}")]);
    free(&limits, ADMIN, &resource("a")).settle(ServerOutcome::Failed);
    assert!(refused(&limits, ADMIN, &resource("a")).contains("'a' is set aside"));
    free(&limits, ADMIN, &resource("b"));
}

#[test]
fn who_goes_away_while_waiting_leaves_nothing_behind() {
    let limits = limits(r#"{"concurrent": 4, "queue": 50}"#, &[]);
    let access = tool("s:t", "{}");
    let mut inside: Vec<Occupied> = (0..4).map(|_| free(&limits, ADMIN, &access)).collect();
    for round in 0..200 {
        let mut waiting: Vec<Queue> = (0..50).map(|_| queued(&limits, ADMIN, &access)).collect();
        let mut comings: Vec<_> =
            waiting.iter_mut().map(|queue| Box::pin(queue.come(ADMIN, &access))).collect();
        assert!(comings.iter_mut().all(|coming| polled(coming.as_mut()).is_none()));
        // Some were just given a place.
        inside.truncate(round % 4);
        drop(comings);
        drop(waiting);
        while inside.len() < 4 {
            inside.push(free(&limits, ADMIN, &access));
        }
    }
    drop(inside);
    let gate = limits.all.gate.as_ref().unwrap();
    assert_eq!((gate.inside(), gate.waiting()), (0, 0));
}

#[test]
fn what_is_set_is_shared_by_the_nodes_that_live_and_each_has_at_least_one() {
    let servers = [("s", r#"{"concurrent": 6, "queue": 0}"#)];
    let limits = limits(
        r#"{"rate_per_minute": 30, "tools": {"s:t": {"concurrent": 2, "queue": 0}}}"#,
        &servers,
    );
    let (access, other) = (tool("s:t", "{}"), tool("s:other", "{}"));
    let alone: Vec<_> = (0..6).map(|_| free(&limits, ADMIN, &other)).collect();
    limits.share_among(3);
    // Who is inside stays; nobody comes in until there are fewer than two.
    let full = "Too many calls to 's' at a time: limit 2, queue 0";
    assert_eq!(refused(&limits, ADMIN, &other), full);
    drop(alone);
    let two = [free(&limits, ADMIN, &other), free(&limits, ADMIN, &other)];
    assert_eq!(refused(&limits, ADMIN, &other), full);
    drop(two);
    let one = free(&limits, ADMIN, &access);
    let text = "Too many calls to 's:t' at a time: limit 1, queue 0";
    assert_eq!(refused(&limits, ADMIN, &access), text, "2 divided by 3 is 1");
    drop(one);
    // The next config knows how many there are, too.
    let config: Config = serde_json::from_str(r#"{"concurrent": 8, "queue": 0}"#).unwrap();
    let next = limits.next(&config, []);
    next.share_among(4);
    let both = [free(&next, ADMIN, &other), free(&next, ADMIN, &other)];
    assert!(refused(&next, ADMIN, &other).contains("'all servers' at a time: limit 2"));
    next.share_among(1);
    let more: Vec<_> = (0..6).map(|_| free(&next, ADMIN, &other)).collect();
    assert!(refused(&next, ADMIN, &other).contains("'all servers' at a time: limit 8"));
    drop((both, more));
    assert_eq!(next.all.gate.as_ref().unwrap().inside(), 0);
}
