//! A client of the stateless revision is asked by one node and repeats its call at another node. The answer of its user
//! counts there, and a call held by a lost node is not sent.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::approvals_modern::{Hand, again, sent, value, waiting, write};
use crate::harness::{Proxy, Recorder, error_text, free_port, stub_stdio, until};
use crate::held_calls;
use crate::request_state;

const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEW: &str = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";

fn config(store: &TempDir, node: &str, key: Value) -> Value {
    let (port, mut s) = (free_port(), stub_stdio(&["--offers"]));
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    json!({
        "listen": format!("127.0.0.1:{port}"),
        "mcpServers": {"s": s},
        "approval": {"elicitation": true},
        "cluster": {
            "store": format!("file://{}", store.path().display()), "node": node,
            "flush": "100ms", "key": key, "advertise": format!("http://127.0.0.1:{port}"),
        },
    })
}

fn until_living(node: &Proxy, count: u64) {
    until("the membership is known", || (node.api("fleet")["living"] == count).then_some(()));
}

/// Two nodes with `keys` that know each other.
fn two(store: &TempDir, keys: [Value; 2]) -> [Proxy; 2] {
    let [first, second] = keys;
    let nodes = [("a", first), ("b", second)];
    let nodes = nodes.map(|(name, key)| Proxy::with(config(store, name, key)));
    nodes.iter().for_each(|node| until_living(node, 2));
    nodes
}

#[test]
fn answer_of_the_user_counts_at_every_node_where_the_call_is_repeated() {
    let store = tempfile::tempdir().unwrap();
    // The nodes have different first keys, as during a change of the key.
    let [a, b] = two(&store, [json!([OLD, NEW]), json!([NEW, OLD])]);
    let [at_a, at_b] = [&a, &b].map(Hand::new);
    let params = write(json!({"value": 1}));
    let denied = at_b.call(&again(&params, &at_a.asked(&params), "decline"));
    assert_eq!(error_text(&denied["result"]), "Tool 's:write_item': approval was denied");
    assert_eq!((sent(&a), waiting(&b).len()), (0, 0), "the call has ended without being sent");
    let state = at_a.asked(&params);
    assert_eq!(*value(&at_b.call(&again(&params, &state, "accept"))), 7);
    let ended = a.activity("type=approval")[0]["metadata"].clone();
    assert_eq!((&ended["state"], &ended["door"]), (&json!("approved"), &json!("elicitation")));
    for hand in [&at_a, &at_b] {
        let twice = hand.call(&again(&params, &state, "accept"));
        let text = "Tool 's:write_item': its approval was used already, or is not known any more";
        assert_eq!(error_text(&twice["result"]), text);
    }
    // An approval is valid for no other call, at any node.
    let other = write(json!({"value": 2}));
    let refused = at_a.call(&again(&other, &at_b.asked(&params), "accept"));
    let text = "Tool 's:write_item': what was approved is not what is asked now";
    assert_eq!(error_text(&refused["result"]), text);
}

// PRO-31
#[test]
fn request_state_of_a_server_is_accepted_at_every_node() {
    let (store, server) = (tempfile::tempdir().unwrap(), Recorder::start(request_state::answer));
    // The nodes have different first keys, as during a change of the key.
    let nodes = [("a", json!([OLD, NEW])), ("b", json!([NEW, OLD]))].map(|(name, key)| {
        let mut config = config(&store, name, key);
        config["mcpServers"] = json!({"m": request_state::entry(&server)});
        Proxy::with(config)
    });
    nodes.iter().for_each(|node| until_living(node, 2));
    for (first, second) in [(0, 1), (1, 0)] {
        for request in &request_state::requests("m", "ask") {
            let result = request_state::ask(&nodes[first], "", request, None).json();
            let state = &result["result"]["requestState"];
            let done = request_state::ask(&nodes[second], "", request, Some(state)).json();
            assert_eq!(done["result"]["resultType"], "complete", "{result} {done}");
            let sent = request_state::returned(&server).pop().unwrap();
            assert!(sent.contains(request_state::STATE), "{sent}");
        }
    }
}

// PRO-42
#[test]
fn held_call_is_taken_over_by_a_request_to_another_node() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = two(&store, [json!([OLD, NEW]), json!([NEW, OLD])]);
    let arguments = json!({"ask": "roots/list"});
    let [at_a, at_b] =
        [&a, &b].map(|node| held_calls::Call::of(node, "/mcp", "ask", arguments.clone()));
    let answer = json!({"roots": [{"uri": "file:///a"}]});
    let asked = at_a.asked();
    let result = at_b.repeat(&asked, &answer).json()["result"].take();
    assert_eq!(result["structuredContent"]["answered"], answer, "{result}");
    let text = held_calls::refusal(&at_b.repeat(&asked, &answer));
    assert!(text.contains("belongs to no waiting call: it was used before"), "{text}");
    let asked = at_a.asked();
    drop(a.end());
    until_living(&b, 1);
    let at_b = held_calls::Call::of(&b, "/mcp", "ask", arguments);
    let text = held_calls::refusal(&at_b.repeat(&asked, &answer));
    assert!(text.contains("belongs to a call held by node 'a'"), "{text}");
}

#[test]
fn call_whose_node_is_gone_must_be_repeated_and_is_not_sent() {
    let store = tempfile::tempdir().unwrap();
    let [a, b] = two(&store, [json!(OLD), json!(OLD)]);
    let params = write(json!({"value": 1}));
    let state = Hand::new(&a).asked(&params);
    drop(a.end());
    until_living(&b, 1);
    let at_b = Hand::new(&b);
    for action in ["decline", "accept"] {
        let refused = at_b.call(&again(&params, &state, action));
        let text = "Tool 's:write_item': its approval belongs to node 'a', which cannot be reached: repeat the call";
        assert_eq!(error_text(&refused["result"]), text, "{action}");
    }
    // Even a state that was sealed with an unknown key names its node.
    let other = state.replacen("mcpproxy-approval.", "mcpproxy-approval.0", 1);
    let refused = at_b.call(&again(&params, &other, "decline"));
    assert!(error_text(&refused["result"]).contains("belongs to node 'a'"), "{refused}");
    assert_eq!((sent(&b), waiting(&b).len()), (0, 0));
    at_b.asked(&params);
}
