//! Decisions made at one node of a fleet, with a folder as the object store: calls that wait at one node are shown and
//! answered at another, standing approvals, pins and quarantines apply at all nodes, and limits are divided.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    API_KEY, Client, Proxy, Response, error_text, free_port, stub_stdio, until, write_private,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A store, and nodes on it.
struct Fleet(TempDir);

impl Fleet {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Config of a node that other nodes can reach, with the members of `more`.
    fn config(&self, node: &str, more: &Value) -> Value {
        let (port, mut s) = (free_port(), stub_stdio(&[]));
        s["capabilities"] = json!({
            "write_item": {"approval": "required"}, "delete_item": {"approval": "required"},
        });
        let mut config = json!({
            "listen": format!("127.0.0.1:{port}"),
            "mcpServers": {"s": s},
            "cluster": {
                "store": format!("file://{}", self.0.path().display()), "node": node,
                "flush": "100ms", "key": KEY, "advertise": format!("http://127.0.0.1:{port}"),
            },
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn node(&self, name: &str, more: &Value) -> Proxy {
        Proxy::with(self.config(name, more))
    }

    /// Starts nodes, and waits until they know each other.
    fn nodes<const N: usize>(&self, names: [&str; N], more: &Value) -> [Proxy; N] {
        let nodes = names.map(|name| self.node(name, more));
        nodes.iter().for_each(|node| until_living(node, N as u64));
        nodes
    }
}

fn until_living(node: &Proxy, count: u64) {
    until("the membership is known", || (node.api("fleet")["living"] == count).then_some(()));
}

fn waiting(node: &Proxy) -> Vec<Value> {
    node.api("approvals")["approvals"].as_array().unwrap().clone()
}

/// Waits until `count` calls wait in the fleet, as seen by `node`. Returns the oldest.
fn until_waiting(node: &Proxy, count: usize) -> Value {
    until("calls wait", || {
        let waiting = waiting(node);
        (waiting.len() == count).then(|| waiting[0].clone())
    })
}

fn begun(node: &Proxy, value: u64) -> Client {
    let mut client = node.client();
    client.begin("write", "s:write_item", json!({"value": value}));
    client
}

fn result(client: &mut Client) -> Value {
    client.connection.response().json()["result"].clone()
}

fn answer(node: &Proxy, id: &Value, body: &Value) -> Response {
    let path = format!("/api/v1/approvals/{}", id.as_str().unwrap());
    node.request("POST", &path, &[("X-API-Key", API_KEY)], body.to_string().as_bytes())
}

fn one(node: &Proxy, id: &Value) -> Response {
    let path = format!("/api/v1/approvals/{}", id.as_str().unwrap());
    node.request("GET", &path, &[("X-API-Key", API_KEY)], b"")
}

fn error_of(response: &Response) -> String {
    response.json()["error"].as_str().unwrap_or_default().to_owned()
}

// FLT-10
#[test]
fn call_waiting_at_one_node_is_seen_and_answered_at_another_and_decided_once() {
    let fleet = Fleet::new();
    let [a, b, c] = fleet.nodes(["a", "b", "c"], &json!({}));
    let mut client = begun(&a, 1);
    let seen = until_waiting(&b, 1);
    assert_eq!((&seen["node"], &seen["access"]), (&json!("a"), &json!("s:write_item")));
    assert_eq!(until_waiting(&c, 1), seen);
    assert_eq!(until_waiting(&a, 1), seen, "each of them sees the same");
    assert_eq!(one(&b, &seen["id"]).json()["data"]["approval"], seen);
    let all = b.api("approvals");
    assert_eq!((&all["unseen"], &all["left_out"]), (&json!([]), &Value::Null));

    // An answer with the digest of another call does not count.
    let other = json!({"decision": "approve", "digest": "0".repeat(64)});
    assert_eq!(answer(&b, &seen["id"], &other).status, 409);
    let listed = b.cli(&["approvals", "list", "--json"]).json();
    assert_eq!(listed["approvals"][0]["id"], seen["id"]);
    let short = seen["id"].as_str().unwrap().get(..6).unwrap();
    let approved = b.cli(&["approvals", "approve", short]);
    assert_eq!(approved.code, Some(0), "{}{}", approved.stdout, approved.stderr);
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    // Later answers are refused with the decision, at every node.
    for node in [&a, &b, &c] {
        let late = answer(node, &seen["id"], &json!({"decision": "deny"}));
        assert_eq!(late.status, 409, "{}", late.text());
        assert!(
            error_of(&late).ends_with("approved by admin over cli on node b"),
            "{}",
            error_of(&late)
        );
        let known = one(node, &seen["id"]).json()["data"]["approval"].clone();
        assert_eq!((&known["state"], &known["by_node"]), (&json!("approved"), &json!("b")));
        assert_eq!(waiting(node), Vec::<Value>::new());
    }
    let ended = a.activity("type=approval")[0]["metadata"].clone();
    let reported = [&ended["state"], &ended["by"], &ended["door"], &ended["node"]];
    assert_eq!(reported, [&json!("approved"), &json!("admin"), &json!("cli"), &json!("b")]);
}

#[test]
fn one_of_two_simultaneous_answers_at_two_nodes_counts_and_the_other_is_rejected() {
    let fleet = Fleet::new();
    let [a, b, c] = fleet.nodes(["a", "b", "c"], &json!({}));
    for round in 0..8 {
        let mut client = begun(&a, round);
        let id = until_waiting(&b, 1)["id"].clone();
        let [yes, no] = ["approve", "deny"].map(|decision| json!({"decision": decision}));
        let (approved, denied) = std::thread::scope(|scope| {
            let approves = scope.spawn(|| answer(&b, &id, &yes));
            let denies = scope.spawn(|| answer(&c, &id, &no));
            (approves.join().unwrap(), denies.join().unwrap())
        });
        let is_approved = result(&mut client)["isError"] != true;
        let (first, second) = if is_approved { (&approved, &denied) } else { (&denied, &approved) };
        assert_eq!((first.status, second.status), (200, 409), "{}", second.text());
        let word = if is_approved {
            "approved by admin over api on node b"
        } else {
            "denied by admin over api on node c"
        };
        assert!(error_of(second).ends_with(word), "{}", error_of(second));
        let records = a.activity("type=approval");
        let state = if is_approved { "approved" } else { "denied" };
        assert_eq!(records[0]["metadata"]["state"], state);
        until("it is over", || waiting(&c).is_empty().then_some(()));
    }
}

#[test]
fn silent_node_is_named_as_unseen_and_calls_of_a_stopped_node_end() {
    let fleet = Fleet::new();
    let [mut a, b, c] = fleet.nodes(["a", "b", "c"], &json!({}));
    let _client = begun(&a, 1);
    let id = until_waiting(&b, 1)["id"].clone();
    a.process.signal("STOP");
    // The node is not suspected yet, but the calls that wait there are unknown.
    let unseen = b.api("approvals")["unseen"].clone();
    assert_eq!(unseen[0]["node"], "a", "{unseen}");
    a.process.signal("KILL");
    a.process.wait();
    let early = answer(&b, &id, &json!({"decision": "approve"}));
    assert!(matches!(early.status, 502 | 503), "{} {}", early.status, early.text());
    let late = until("it is silent", || {
        let late = answer(&b, &id, &json!({"decision": "approve"}));
        error_of(&late).contains("has sent no heartbeat for").then_some(late)
    });
    assert_eq!(late.status, 503);
    assert!(error_of(&late).contains("the request was not processed"), "{}", error_of(&late));
    assert_eq!(one(&b, &id).status, 503);
    let all = b.api("approvals");
    assert_eq!((&all["approvals"], &all["unseen"][0]["node"]), (&json!([]), &json!("a")));
    let why = all["unseen"][0]["why"].as_str().unwrap();
    assert!(why.contains("node 'a' was not queried: no heartbeat for"), "{why}");
    let listed = b.cli(&["approvals", "list"]).stdout;
    assert!(listed.contains("Not included: node 'a'"), "{listed}");
    // After a restart the node has no record of the call, and reports that.
    let config = fleet.config("a", &json!({}));
    let folder = std::mem::replace(&mut a.folder, tempfile::tempdir().unwrap());
    let a = Proxy::unready(config, folder).ready();
    until_living(&b, 3);
    assert_eq!(one(&b, &id).status, 404);
    assert_eq!(b.api("approvals")["unseen"], json!([]));
    // A node that was stopped properly has ended its calls.
    let mut client = begun(&c, 1);
    let id = until_waiting(&b, 1)["id"].clone();
    drop(c.end());
    assert_eq!(result(&mut client)["isError"], true);
    for node in [&a, &b] {
        until("it has stopped", || (one(node, &id).status == 410).then_some(()));
    }
    let late = answer(&a, &id, &json!({"decision": "approve"}));
    assert_eq!(late.status, 410);
    assert!(error_of(&late).contains("was held by node 'c', which is dead"), "{}", error_of(&late));
    assert_eq!(b.api("approvals")["unseen"], json!([]));
    let nobody = answer(&b, &json!("0123456789abcdef-0000000"), &json!({"decision": "deny"}));
    assert_eq!((nobody.status, error_of(&nobody)), (404, "Approval not found".to_owned()));
}

#[test]
fn late_denial_counts_only_once_it_is_stored_for_the_whole_fleet() {
    let fleet = Fleet::new();
    let [a, mut b] = fleet.nodes(["a", "b"], &json!({}));
    let mut client = begun(&a, 1);
    let id = until_waiting(&b, 1)["id"].clone();
    assert_eq!(answer(&b, &id, &json!({"decision": "approve", "for": "1h"})).status, 200);
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    let standing = |node: &Proxy| node.api("approvals")["standing"].as_array().unwrap().len();
    until("the approval also applies there", || (standing(&b) == 1).then_some(()));
    // Shared facts can no longer be stored, because a folder has the name of the temporary file.
    let blocked = b.folder.path().join("data/fleet/facts.json.new");
    until("the name is occupied", || std::fs::create_dir(&blocked).ok());
    for _ in 0..2 {
        let denied = answer(&b, &id, &json!({"decision": "deny"}));
        assert_eq!(denied.status, 503, "{}", denied.text());
        let words = "is revoked on this node, but could not be shared with the other nodes";
        assert!(error_of(&denied).contains(words), "{}", error_of(&denied));
        assert_eq!(standing(&b), 0, "it is revoked on this node");
    }
    std::fs::remove_dir(&blocked).unwrap();
    // The status is 409 if a retry by the node has succeeded meanwhile.
    let denied = answer(&b, &id, &json!({"decision": "deny"}));
    assert!(matches!(denied.status, 200 | 409), "{}", denied.text());
    // A confirmed revocation survives a crash right after the answer.
    b.process.signal("KILL");
    b.process.wait();
    let kept = std::fs::read(b.folder.path().join("data/fleet/facts.json")).unwrap();
    // The second line is the checksum.
    let body = kept.split(|byte| *byte == b'\n').next().unwrap();
    let kept: Value = serde_json::from_slice(body).unwrap();
    let is_its = |fact: &Value| fact["name"].as_str().unwrap().ends_with(id.as_str().unwrap());
    let ended = kept["facts"]["b"].as_array().unwrap().iter().find(|fact| is_its(fact));
    assert_eq!(ended.map(|fact| &fact["value"]), Some(&Value::Null), "{kept}");
    let config = fleet.config("b", &json!({}));
    let folder = std::mem::replace(&mut b.folder, tempfile::tempdir().unwrap());
    let b = Proxy::unready(config, folder).ready();
    for node in [&a, &b] {
        until("it ends there, too", || (standing(node) == 0).then_some(()));
    }
}

// FLT-9
#[test]
fn standing_approval_counts_at_every_node_until_it_is_denied_at_one() {
    let fleet = Fleet::new();
    let [a, b] = fleet.nodes(["a", "b"], &json!({}));
    let mut client = begun(&a, 1);
    let id = until_waiting(&b, 1)["id"].clone();
    assert_eq!(answer(&b, &id, &json!({"decision": "approve", "for": "1h"})).status, 200);
    assert_eq!(result(&mut client)["structuredContent"]["value"], 7);
    let standing = |node: &Proxy| node.api("approvals")["standing"].as_array().unwrap().clone();
    let reported = until("the approval applies there, too", || standing(&b).first().cloned());
    assert_eq!(
        (&reported["id"], &reported["by"], &reported["by_node"]),
        (&id, &json!("admin"), &json!("b"))
    );
    let write = |node: &Proxy| node.client().call("write", "s:write_item", json!({"value": 2}));
    assert_eq!(write(&b)["structuredContent"]["value"], 7, "nobody is asked");
    // A node that starts later knows it, and so does a restarted one.
    let c = fleet.node("c", &json!({}));
    assert_eq!(write(&c)["structuredContent"]["value"], 7);
    let config = fleet.config("a", &json!({}));
    let a = Proxy::unready(config, a.end()).ready();
    assert_eq!(write(&a)["structuredContent"]["value"], 7);
    assert_eq!(standing(&a).len(), 1);
    // It is revoked at a node other than the one that approved it.
    assert_eq!(answer(&c, &id, &json!({"decision": "deny"})).status, 200);
    for node in [&a, &b, &c] {
        until("it ends there, too", || standing(node).is_empty().then_some(()));
    }
    let mut client = begun(&b, 3);
    let next = until_waiting(&c, 1);
    assert_ne!(next["id"], id);
    until_living(&a, 3);
    assert_eq!(answer(&a, &next["id"], &json!({"decision": "deny"})).status, 200);
    assert_eq!(result(&mut client)["isError"], true);
}

fn notes(more: Value) -> Value {
    let mut tool = json!({"name": "added_notes", "description": "Keeps notes", "inputSchema": {"type": "object"}});
    tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([tool])
}

/// A node with a server whose tools except `add_tool` are in a file.
struct Listing {
    proxy: Proxy,
    tools: TempDir,
}

impl Listing {
    fn start(fleet: &Fleet, name: &str, catalog: &Value, offered: &Value) -> Self {
        let tools = tempfile::tempdir().unwrap();
        let file = tools.path().join("tools.json");
        write_private(&file, &offered.to_string());
        let flags = ["--only", "add_tool", "--tools", file.to_str().unwrap()];
        let more = json!({"catalog": catalog, "mcpServers": {"s": stub_stdio(&flags)}});
        Self { proxy: fleet.node(name, &more), tools }
    }

    /// Replaces the tools of the node's server, and waits until the node has read them.
    fn offers(&self, offered: &Value) {
        let lists = || self.proxy.activity("type=catalog_change&server=s").len();
        let before = lists();
        write_private(&self.tools.path().join("tools.json"), &offered.to_string());
        self.proxy.client().call("write", "s:add_tool", json!({}));
        until("the change is recorded", || (lists() > before).then_some(()));
    }

    fn is_quarantined(&self) -> bool {
        let answer = self.proxy.client().read("s:added_notes", json!({}));
        answer["isError"] == true && error_text(&answer).contains("is quarantined")
    }

    fn until_quarantined(&self, held: bool) {
        until("the tool is quarantined, or not", || (self.is_quarantined() == held).then_some(()));
    }
}

#[test]
fn definition_quarantined_at_one_node_is_quarantined_at_all_until_approved_at_one() {
    let fleet = Fleet::new();
    let destructive = notes(json!({"annotations": {"destructiveHint": true}}));
    let harmless = notes(json!({"annotations": {"readOnlyHint": true}}));
    let lax = json!({"on_change": {"loosened": "accept"}});
    let strict = Listing::start(&fleet, "a", &json!({}), &destructive);
    let accepts = Listing::start(&fleet, "b", &lax, &destructive);
    assert!(!strict.is_quarantined() && !accepts.is_quarantined());
    // The lax node accepts the change until the strict node has seen it, too.
    accepts.offers(&harmless);
    assert!(!accepts.is_quarantined());
    strict.offers(&harmless);
    strict.until_quarantined(true);
    accepts.until_quarantined(true);
    until("it is recorded", || {
        let recorded = accepts.proxy.activity("type=catalog_change&tool=added_notes");
        recorded.iter().any(|it| it["metadata"]["shared"] == true).then_some(())
    });
    // A node that joins later and has seen no other definition quarantines the tool, too.
    let later = Listing::start(&fleet, "c", &lax, &harmless);
    later.until_quarantined(true);
    let digest = later.proxy.api("tools/s:added_notes/diff")["digest"].as_str().unwrap().to_owned();
    let approved = later.proxy.cli(&["tools", "approve", "s:added_notes", "--digest", &digest]);
    assert_eq!(approved.code, Some(0), "{}{}", approved.stdout, approved.stderr);
    for node in [&strict, &accepts, &later] {
        node.until_quarantined(false);
    }
}

#[test]
fn node_that_first_sees_a_tool_compares_it_with_the_pins_of_the_fleet() {
    let fleet = Fleet::new();
    let (old, new) = (notes(json!({})), notes(json!({"description": "Keeps other notes"})));
    let first = Listing::start(&fleet, "a", &json!({}), &old);
    assert!(!first.is_quarantined());
    let cautious = json!({"on_new_server": "quarantine"});
    until("the pin is shared", || {
        let facts = first.proxy.api("fleet")["facts"].clone();
        (facts["published"] == true && fleet.0.path().join("facts/said/a").exists()).then_some(())
    });
    let knows = Listing::start(&fleet, "b", &cautious, &old);
    assert!(!knows.is_quarantined());
    // A definition that the fleet does not know is quarantined until a node with the previous definition has compared
    // the two.
    let other = Listing::start(&fleet, "c", &json!({}), &new);
    assert!(other.is_quarantined());
    first.offers(&new);
    other.until_quarantined(false);
    assert!(!first.is_quarantined() && !knows.is_quarantined());
}

fn rest_call(node: &Proxy, tool: &str) -> Response {
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": tool, "args": {}},
        "intent": {"operation_type": "read"}});
    let headers = [("X-API-Key", API_KEY)];
    node.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes())
}

/// Waits until a call at a node is refused with `share` in the message.
fn until_share(node: &Proxy, share: &str) {
    until(share, || {
        let refused = rest_call(node, "s:stats");
        (refused.status == 429 && error_of(&refused).contains(share)).then_some(())
    });
}

// FLT-11
#[test]
fn limits_are_divided_by_the_number_of_living_nodes() {
    let fleet = Fleet::new();
    let limits = json!({"limits": {"tools": {"s:*": {"rate_per_minute": 6}}}});
    let [a, b, c] = fleet.nodes(["a", "b", "c"], &limits);
    for node in [&a, &b, &c] {
        until_share(node, "limit 2 per minute");
    }
    let admit =
        |node: &Proxy| (0..6).filter(|_| rest_call(node, "s:read_item").status == 200).count();
    // While the test runs, each node may admit one more call in 30 seconds.
    let admitted: usize = [&a, &b, &c].map(admit).iter().sum();
    assert!((6..=9).contains(&admitted), "{admitted}");
    // The share of a node that ends is divided among the remaining nodes.
    drop(c.end());
    until_share(&a, "limit 3 per minute");
    until_share(&b, "limit 3 per minute");
}

#[test]
fn missing_store_objects_are_reported_by_a_node_that_follows_no_chain() {
    let fleet = Fleet::new();
    let [a, b] = fleet.nodes(["a", "b"], &json!({}));
    let segments = |node: &str| -> Vec<std::path::PathBuf> {
        let folder = fleet.0.path().join("nodes").join(node).join("segments");
        let days = std::fs::read_dir(folder).into_iter().flatten();
        let files = days.flat_map(|day| std::fs::read_dir(day.unwrap().path()).unwrap());
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    until("there are some segments", || {
        a.client().read("s:read_item", json!({}));
        (segments("a").len() >= 3).then_some(())
    });
    drop(b.end());
    let whole = segments("a");
    let removed = whole[1].file_name().unwrap().to_str().unwrap().to_owned();
    std::fs::remove_file(&whole[1]).unwrap();
    let mut parts = removed.split('-').map(|part| part.parse::<u64>().unwrap_or_default());
    let (first, last) = (parts.next().unwrap(), parts.next().unwrap());
    let c = fleet.node("c", &json!({}));
    let chain = until("the chain is checked", || {
        let chains = c.api("fleet")["chains"].as_array().unwrap().clone();
        chains.into_iter().find(|it| it["node"] == "a" && it["gaps"] != json!([]))
    });
    assert_eq!(chain["seen_by"], "names");
    assert_eq!(chain["gaps"], json!([{"first": first, "last": last}]));
    assert_eq!(chain["missing_records"], last - first + 1);
    let words = format!("node 'a': records {first} to {last} are missing from the store");
    let status = c.cli(&["fleet", "status"]);
    assert_eq!(status.code, Some(1), "{}", status.stdout);
    assert!(status.stdout.contains(&words), "{}", status.stdout);
    assert!(c.api("status")["faults"].to_string().contains(&words));
    let headers = [("X-API-Key", API_KEY), ("Accept", "text/plain")];
    let metrics = c.request("GET", "/metrics", &headers, b"").text();
    assert!(metrics.contains("mcpproxy_fleet_chain_gaps{node=\"a\"} 1.0"), "{metrics}");
}

#[test]
fn invalid_fact_object_is_a_fault_until_it_is_valid_again() {
    let fleet = Fleet::new();
    let [a, b] = fleet.nodes(["a", "b"], &json!({}));
    let object = fleet.0.path().join("facts/said/a");
    assert_eq!(a.cli(&["token", "create", "ci"]).code, Some(0));
    until("it is reported", || object.exists().then_some(()));
    let number = |node: &Proxy| {
        let headers = [("X-API-Key", API_KEY), ("Accept", "text/plain")];
        let metrics = node.request("GET", "/metrics", &headers, b"").text();
        let line = metrics.lines().find(|line| line.starts_with("mcpproxy_fleet_facts_faults "));
        line.unwrap().to_owned()
    };
    assert_eq!(number(&b), "mcpproxy_fleet_facts_faults 0.0");
    drop(a.end());
    let whole = std::fs::read(&object).unwrap();
    let mut altered = whole.clone();
    *altered.last_mut().unwrap() ^= 1;
    std::fs::write(&object, altered).unwrap();
    let words = "facts/said/a: altered, truncated or moved";
    until("it is a fault", || b.api("fleet")["faults"].to_string().contains(words).then_some(()));
    assert_eq!(number(&b), "mcpproxy_fleet_facts_faults 1.0");
    assert!(b.api("status")["faults"].to_string().contains(words));
    std::fs::write(&object, whole).unwrap();
    until("there is no fault", || (number(&b) == "mcpproxy_fleet_facts_faults 0.0").then_some(()));
    assert_eq!(b.api("fleet")["facts"]["faults"], json!({}));
}
