//! Tasks that clients follow (PRO-43): delivery of status changes, streams of servers, admission, and shares of the
//! bound on followed tasks.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Connection, Events, Proxy, Reply, create_token, until};
use crate::reload::reload;
use crate::tasks::{CREATED, GOOD, MODERN, OWN, Server, completed, create_as, tasks};

const PATH: &str = "/mcp/all";
const LISTEN: &str = "subscriptions/listen";

/// A server whose standing streams report no changes. It refuses the first `busy` requests of `tasks/get`.
fn quiet(busy: usize) -> Server {
    let busy = AtomicUsize::new(busy);
    let (order, less) = (Ordering::SeqCst, |left: usize| left.checked_sub(1));
    Server::answering(move |message| match message["method"].as_str()? {
        LISTEN => {
            let ids = message["params"]["notifications"].get("taskIds")?;
            let agreed = json!({"jsonrpc": "2.0", "params": {"notifications": {"taskIds": ids}},
                "method": "notifications/subscriptions/acknowledged"});
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            Some(Reply::Standing(format!("{head}data: {agreed}\n\n").into_bytes()))
        }
        "tasks/get" if busy.fetch_update(order, order, less).is_ok() => {
            let error = json!({"code": -32000, "message": "busy"});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error}).to_string();
            Some(Reply::Http("200 OK", "content-type: application/json\r\n", body.into()))
        }
        _ => None,
    })
}

/// Sets of tasks in the subscription requests received by a server, oldest first.
fn listened(server: &Server) -> Vec<Value> {
    let asked = server.asked(LISTEN).into_iter();
    asked.filter_map(|(_, it)| it["params"]["notifications"].get("taskIds").cloned()).collect()
}

/// Number of requests to a server for the state of a task.
fn fetched(server: &Server, id: &str) -> usize {
    server.asked("tasks/get").iter().filter(|(_, it)| it["params"]["taskId"] == id).count()
}

/// Creates a task with the id `id` and status `working` at the server. Returns its sealed id.
fn working(proxy: &Proxy, server: &Server, id: &str) -> String {
    working_as(proxy, "", server, id)
}

/// Creates a task with status `working` and the token `bearer`, or anonymously if the token is empty.
fn working_as(proxy: &Proxy, bearer: &str, server: &Server, id: &str) -> String {
    let created = CREATED.replace(r"7\u0061", id);
    server.set(id, &created.replace(r#""task""#, r#""complete""#));
    create_as(proxy, bearer, PATH, "s:slow", &created)
}

/// Subscribes to tasks. Returns the stream and the accepted filters.
fn follow(proxy: &Proxy, ids: &[String]) -> (Events, Value) {
    follow_as(proxy, "", ids)
}

/// Subscribes to tasks with the token `bearer`, or anonymously if it is empty.
fn follow_as(proxy: &Proxy, bearer: &str, ids: &[String]) -> (Events, Value) {
    let asked = json!({"jsonrpc": "2.0", "id": "l", "method": LISTEN, "params": {
        "_meta": {"io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": tasks()},
        "notifications": {"taskIds": ids}}});
    let mut connection = Connection::open(proxy.port);
    let bearer = format!("Bearer {bearer}");
    let mut headers = vec![("MCP-Protocol-Version", MODERN), ("Mcp-Method", LISTEN)];
    if bearer != "Bearer " {
        headers.push(("Authorization", &bearer));
    }
    connection.send("POST", PATH, &headers, asked.to_string().as_bytes());
    let mut events = Events::of(connection);
    let agreed = events.message()["params"]["notifications"].clone();
    (events, agreed)
}

/// The status in the next notification.
fn status(events: &mut Events) -> Value {
    let notified = events.message();
    assert_eq!(notified["method"], "notifications/tasks", "{notified}");
    notified["params"]["status"].clone()
}

// PRO-43
#[test]
fn temporarily_refused_state_reaches_its_follower_later() {
    let server = quiet(2);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let sealed = working(&proxy, &server, OWN);
    let (mut events, agreed) = follow(&proxy, std::slice::from_ref(&sealed));
    assert_eq!(agreed, json!({"taskIds": [sealed]}));
    until("it is refused", || (fetched(&server, OWN) > 0).then_some(()));
    server.set(OWN, &completed(GOOD));
    assert_eq!(status(&mut events), "completed", "the latest state counts");
    assert_eq!((fetched(&server, OWN), listened(&server)), (3, vec![json!([OWN])]));
}

// PRO-43
#[test]
fn following_one_task_does_not_fetch_another() {
    let server = quiet(0);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let names = ["a", "b", "c", "d", "e"];
    let ids = names.map(|id| working(&proxy, &server, id));
    let (mut of_a, _) = follow(&proxy, &ids[..1]);
    assert_eq!(status(&mut of_a), "working");
    let (mut of_b, _) = follow(&proxy, &ids[1..2]);
    assert_eq!(status(&mut of_b), "working");
    drop(of_b);
    until("the server reports one only", || {
        (listened(&server).last() == Some(&json!(["a"]))).then_some(())
    });
    // While three fetches are made for another subscription, a superfluous fetch would have been made as well.
    let (mut of_others, _) = follow(&proxy, &ids[2..]);
    for _ in 2..ids.len() {
        assert_eq!(status(&mut of_others), "working");
    }
    assert_eq!(names.map(|id| fetched(&server, id)), [1; 5]);
    until("one stream is left", || (server.recorder.standing() == 1).then_some(()));
}

// PRO-43
#[test]
fn task_is_followed_at_the_server_that_its_entry_names_now() {
    let [first, second, third] = [(); 3].map(|()| quiet(0));
    let proxy = Proxy::start(json!({"s": first.entry()}));
    let (mut events, _) = follow(&proxy, &[working(&proxy, &first, OWN)]);
    assert_eq!(status(&mut events), "working");
    let asks = CREATED.replace(r#""task""#, r#""complete""#).replace("working", "input_required");
    second.set(OWN, &asks);
    reload(&proxy, &json!({"mcpServers": {"s": second.entry()}}));
    assert_eq!(status(&mut events), "input_required");
    assert_eq!(listened(&second), [json!([OWN])]);
    until("the old stream is closed", || (first.recorder.standing() == 0).then_some(()));
    reload(&proxy, &json!({"mcpServers": {}}));
    until("the stream is closed", || (second.recorder.standing() == 0).then_some(()));
    third.set(OWN, &completed(GOOD).replace("completed", "cancelled"));
    reload(&proxy, &json!({"mcpServers": {"s": third.entry()}}));
    assert_eq!(status(&mut events), "cancelled");
    assert_eq!((listened(&first).len(), listened(&second).len()), (1, 1));
}

// PRO-43
#[test]
fn following_a_task_is_admitted_and_recorded_like_a_request_about_it() {
    for (rate, is_admitted) in [(1, false), (9, true)] {
        let server = quiet(0);
        let mut entry = server.entry();
        entry["limits"] = json!({"rate_per_minute": rate});
        let proxy = Proxy::start(json!({"s": entry}));
        let sealed = working(&proxy, &server, OWN);
        let (_events, agreed) = follow(&proxy, &[sealed.clone(), "odd".to_owned(), sealed.clone()]);
        let expected = if is_admitted { json!({"taskIds": [sealed]}) } else { json!({}) };
        assert_eq!(agreed, expected, "{rate}");
        let record = until("it is recorded", || {
            let records = proxy.activity("type=internal_tool_call&server=s&tool=slow");
            records.into_iter().find(|it| it["metadata"]["task_method"] == LISTEN)
        });
        let status = if is_admitted { "success" } else { "rejected" };
        assert_eq!(record["status"], status, "{record}");
        let digits = record["metadata"]["task"].as_str().expect("digits");
        assert!(sealed.contains(digits) && !record.to_string().contains(&sealed), "{record}");
        if is_admitted {
            until("the server is asked", || listened(&server).first().cloned());
        } else {
            assert!(listened(&server).is_empty());
        }
    }
}

// PRO-43
#[test]
fn principal_has_a_share_of_followed_tasks() {
    let server = quiet(0);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let ids: Vec<_> = (0..257).map(|n| working(&proxy, &server, &format!("t{n}"))).collect();
    let agreed = |ids: &[String]| {
        let (events, agreed) = follow(&proxy, ids);
        (events, agreed["taskIds"].as_array().map_or(0, Vec::len))
    };
    let mut streams = Vec::new();
    for ids in ids[..256].chunks(64) {
        let (events, count) = agreed(ids);
        assert_eq!(count, 64);
        streams.push(events);
    }
    assert_eq!(agreed(&ids[256..]).1, 0);
    streams.pop();
    until("the share is free", || (agreed(&ids[256..]).1 == 1).then_some(()));
}

// PRO-43
#[test]
fn ended_task_is_no_longer_followed() {
    let server = quiet(0);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let ids = ["a", "b", "c", "d"].map(|id| working(&proxy, &server, id));
    let ended = completed(GOOD);
    for (id, status) in [("a", "completed"), ("b", "failed"), ("c", "cancelled")] {
        let state = ended.replace("7a", id).replace("completed", status);
        server.set(id, &state);
    }
    let (mut events, _) = follow(&proxy, &ids);
    let mut statuses = ids.each_ref().map(|_| status(&mut events).to_string());
    statuses.sort();
    assert_eq!(statuses, [r#""cancelled""#, r#""completed""#, r#""failed""#, r#""working""#]);
    until("the server reports one only", || {
        (listened(&server).last() == Some(&json!(["d"]))).then_some(())
    });
    // The subscription continues with the task that has not ended.
    let (_second, _) = follow(&proxy, &ids[3..]);
    until("it is fetched for the second subscription", || {
        (fetched(&server, "d") == 2).then_some(())
    });
    reload(&proxy, &json!({"mcpServers": {}}));
    server.set("d", &ended.replace("7a", "d"));
    reload(&proxy, &json!({"mcpServers": {"s": server.entry()}}));
    assert_eq!(status(&mut events), "completed");
    assert_eq!(["a", "b", "c"].map(|id| fetched(&server, id)), [1; 3]);
}

// PRO-43
#[test]
fn new_follower_displaces_tasks_of_the_principals_that_follow_the_most() {
    let server = quiet(0);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let (mut streams, per_stream) = (Vec::new(), 64);
    for name in ["a", "b", "c", "d"] {
        let bearer = create_token(&proxy, &[name]);
        for stream in 0..4 {
            let ids = (0..per_stream).map(|n| format!("{name}{stream}-{n}"));
            let ids: Vec<_> = ids.map(|id| working_as(&proxy, &bearer, &server, &id)).collect();
            let (events, agreed) = follow_as(&proxy, &bearer, &ids);
            assert_eq!(agreed["taskIds"].as_array().map(Vec::len), Some(per_stream), "{name}");
            streams.push(events);
        }
    }
    let sealed = working(&proxy, &server, OWN);
    let (_events, agreed) = follow(&proxy, std::slice::from_ref(&sealed));
    assert_eq!(agreed, json!({"taskIds": [sealed]}));
    // The oldest task of a principal with the most tasks belongs to its first stream. That stream ends with the answer
    // to its request.
    let first = &mut streams[0];
    let notified = (0..=per_stream).map_while(|_| {
        let message = first.message();
        (message["id"] != "l").then_some(message)
    });
    assert!(notified.count() <= per_stream);
    assert!(first.next().is_none());
    proxy.assert_logged("task subscription ended");
    until("its tasks are released, and those of the others are still followed", || {
        let listened = listened(&server).pop()?;
        let all = listened.as_array()?;
        let is_of = |stream: &str| {
            all.iter().any(|id| id.as_str().is_some_and(|id| id.starts_with(stream)))
        };
        (all.len() == 3 * 256 + 3 * 64 + 1 && is_of(OWN) && !is_of("a0-")).then_some(())
    });
}
