//! Approvals for clients of the stateless revision (CAP-8, MCP 2026-07-28 §Multi Round-Trip Requests): the response to the
//! first request has the question, the next request has the answer.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, Implementation, ProtocolVersion,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext, RoleClient};
use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Connection, PATIENCE, Proxy, Response, error_text, stub_stdio, until,
};

const VERSION: &str = "2026-07-28";

/// A proxy whose tool `write_item` needs approval.
fn proxy_with(approval: Value) -> Proxy {
    let mut s = stub_stdio(&["--offers"]);
    s["capabilities"] = json!({"write_item": {"approval": "required"}});
    Proxy::with(json!({"mcpServers": {"s": s}, "approval": approval}))
}

/// A proxy that asks any client for approval.
fn proxy() -> Proxy {
    proxy_with(json!({"elicitation": true}))
}

pub(crate) fn waiting(proxy: &Proxy) -> Vec<Value> {
    proxy.api("approvals")["approvals"].as_array().unwrap().clone()
}

fn until_waiting(proxy: &Proxy, count: usize) -> Vec<Value> {
    until("calls wait", || Some(waiting(proxy)).filter(|waiting| waiting.len() == count))
}

fn answer(proxy: &Proxy, id: &str, decision: &str) -> Response {
    let (path, body) = (format!("/api/v1/approvals/{id}"), json!({"decision": decision}));
    let key = [("X-API-Key", API_KEY)];
    proxy.request("POST", &path, &key, body.to_string().as_bytes())
}

/// Recorded states of approvals, oldest first.
pub(crate) fn states(proxy: &Proxy) -> Vec<Value> {
    let records = proxy.activity("type=approval");
    records.iter().rev().map(|it| it["metadata"]["state"].clone()).collect()
}

/// Number of calls of `write_item` at the server.
pub(crate) fn sent(proxy: &Proxy) -> usize {
    proxy.activity("type=tool_call&status=success&tool=write_item").len()
}

/// A manual client with its capabilities and key.
pub(crate) struct Hand<'a> {
    proxy: &'a Proxy,
    capabilities: Value,
    key: Option<&'a str>,
}

impl<'a> Hand<'a> {
    pub(crate) fn new(proxy: &'a Proxy) -> Self {
        Self { proxy, capabilities: json!({"elicitation": {}}), key: None }
    }

    fn begin(&self, params: &Value) -> Connection {
        let mut params = params.clone();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "hand", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        let name = params["name"].as_str().unwrap();
        let mut headers = vec![
            ("MCP-Protocol-Version", VERSION),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", name),
            ("Accept", "application/json"),
        ];
        headers.extend(self.key.map(|key| ("X-API-Key", key)));
        let mut connection = Connection::open(self.proxy.port);
        connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
        connection
    }

    pub(crate) fn call(&self, params: &Value) -> Value {
        let response = self.begin(params).response();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// Sends a first request, checks the question in its response, and returns the question's state.
    pub(crate) fn asked(&self, params: &Value) -> String {
        let result = self.call(params)["result"].take();
        assert_eq!(result["resultType"], "input_required", "{result}");
        let question = &result["inputRequests"]["approval"];
        assert_eq!(question["method"], "elicitation/create");
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.contains("s:write_item"), "{message}");
        result["requestState"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn write(args: Value) -> Value {
    let intent = json!({"operation_type": "write", "reason": "because"});
    let arguments = json!({"name": "s:write_item", "args": args, "intent": intent});
    json!({"name": "call_tool_write", "arguments": arguments})
}

/// The repeated request, with the state and the user's answer.
pub(crate) fn again(params: &Value, state: &str, action: &str) -> Value {
    let mut params = params.clone();
    params["requestState"] = json!(state);
    params["inputResponses"] = json!({"approval": {"action": action, "content": {}}});
    params
}

pub(crate) fn value(answer: &Value) -> &Value {
    &answer["result"]["structuredContent"]["value"]
}

/// rmcp's client; its user answers questions with `actions` in order.
#[derive(Clone)]
struct Person {
    actions: Arc<Mutex<VecDeque<ElicitationAction>>>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("person", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        if let ElicitRequestParams::FormElicitationParams { message, .. } = request {
            self.messages.lock().unwrap().push(message);
        }
        let action = self.actions.lock().unwrap().pop_front().expect("no further question");
        Ok(ElicitResult::new(action).with_content(json!({})))
    }
}

#[test]
fn cap_8_client_of_the_stateless_revision_is_asked_in_the_response_and_retries() {
    let proxy = proxy();
    let person = Person {
        actions: Arc::new(Mutex::new(
            [ElicitationAction::Accept, ElicitationAction::Decline].into(),
        )),
        messages: Arc::default(),
    };
    let messages = Arc::clone(&person.messages);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (approved, denied) = runtime.block_on(async {
        let mut command = tokio::process::Command::from(proxy.command(&["stdio"]));
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = pipes.spawn().unwrap();
        let transport = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        let lifecycle = ClientLifecycleMode::Discover { preferred_versions };
        let client = person.serve_with_lifecycle(transport, lifecycle).await.unwrap();
        let call = || {
            let Value::Object(arguments) = write(json!({"value": 1}))["arguments"].take() else {
                panic!("an object")
            };
            CallToolRequestParams::new("call_tool_write").with_arguments(arguments)
        };
        let both = async {
            (client.call_tool(call()).await.unwrap(), client.call_tool(call()).await.unwrap())
        };
        let both = tokio::time::timeout(PATIENCE, both).await.unwrap();
        client.cancel().await.unwrap();
        child.wait().await.unwrap();
        both
    });
    assert_eq!(approved.structured_content.unwrap()["value"], 7);
    assert_eq!(denied.is_error, Some(true));
    let text = serde_json::to_string(&denied.content).unwrap();
    assert!(text.contains("Tool 's:write_item': approval was denied"), "{text}");
    let messages = messages.lock().unwrap();
    assert_eq!(messages.len(), 2);
    for part in ["s:write_item", r#"{"value":1}"#, "because", "write"] {
        assert!(messages[0].contains(part), "{}", messages[0]);
    }
    assert_eq!(states(&proxy), ["waiting", "approved", "waiting", "denied"]);
    let ended = &proxy.activity("type=approval")[0]["metadata"];
    // The key belongs to the bridge and not to its client, so the client is anonymous.
    assert_eq!((&ended["door"], &ended["by"]), (&json!("elicitation"), &json!("anonymous")));
    // Each call has two records: of the first request, and of the repeated one.
    let records = proxy.activity("type=tool_call&tool=write_item");
    let recorded: Vec<_> = records.iter().rev().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(recorded, ["rejected", "success", "rejected", "rejected"]);
    let id = &records[3]["metadata"]["approval"];
    assert!(id.is_string() && *id == records[2]["metadata"]["approval"], "{records:?}");
    let error = records[3]["error_message"].as_str().unwrap();
    assert!(error.starts_with("waits for approval ") && error.contains("was asked"), "{error}");
}

// APR-5
#[test]
fn cap_8_request_state_is_valid_once_for_its_principal_and_the_identical_call() {
    let proxy = proxy();
    let hand = Hand::new(&proxy);
    let params = write(json!({"value": 1}));
    let state = hand.asked(&params);
    assert_eq!(waiting(&proxy)[0]["call"]["arguments"], r#"{"value":1}"#);
    let invalid = |answer: &Value| {
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains("requestState was not given to this client"), "{text}");
    };
    // An altered state is treated like one of another server or a forged one: it approves nothing.
    let last = state.len() - 1;
    let digit = if state.ends_with('0') { "1" } else { "0" };
    for altered in [
        format!("{}{digit}", &state[..last]),
        state[..last].to_owned(),
        format!("{state}0"),
        state.to_uppercase().replacen("MCPPROXY-APPROVAL", "mcpproxy-approval", 1),
    ] {
        let answer = hand.call(&again(&params, &altered, "accept"));
        match answer["error"].is_null() {
            false => invalid(&answer),
            true => assert_eq!(answer["result"]["resultType"], "input_required", "{answer}"),
        }
    }
    let (head, mac) = state.rsplit_once('.').unwrap();
    let other_id = format!("{}0000000000000000.{mac}", &head[..head.len() - 16]);
    invalid(&hand.call(&again(&params, &other_id, "accept")));
    let admin = Hand { key: Some(API_KEY), ..Hand::new(&proxy) };
    invalid(&admin.call(&again(&params, &state, "accept")));
    // A different call: its arguments differ in one byte.
    let other = write(json!({"value": 2}));
    let refused = hand.call(&again(&other, &state, "accept"));
    let text = "Tool 's:write_item': what was approved is not what is asked now";
    assert_eq!(error_text(&refused["result"]), text);
    assert_eq!(sent(&proxy), 0, "nothing is sent");
    // The unaltered state approves the call.
    assert_eq!(*value(&hand.call(&again(&params, &state, "accept"))), 7);
    for action in ["accept", "decline", "cancel"] {
        let twice = hand.call(&again(&params, &state, action));
        let text = "Tool 's:write_item': its approval was used already, or is not known any more";
        assert_eq!(error_text(&twice["result"]), text, "{action}");
    }
    assert_eq!(sent(&proxy), 1);
}

#[test]
fn cap_8_first_answer_counts_regardless_of_channel() {
    let proxy = proxy();
    let hand = Hand::new(&proxy);
    let params = write(json!({}));
    let id = |proxy: &Proxy| waiting(proxy)[0]["id"].as_str().unwrap().to_owned();
    // Approved elsewhere: the client need not have asked its user.
    let state = hand.asked(&params);
    assert_eq!(answer(&proxy, &id(&proxy), "approve").status, 200);
    let mut bare = params.clone();
    bare["requestState"] = json!(state);
    assert_eq!(*value(&hand.call(&bare)), 7);
    // Denied elsewhere: the client's approval is too late.
    let state = hand.asked(&params);
    assert_eq!(answer(&proxy, &id(&proxy), "deny").status, 200);
    let late = hand.call(&again(&params, &state, "accept"));
    assert_eq!(error_text(&late["result"]), "Tool 's:write_item': approval was denied");
    // Approved elsewhere, but declined by the client's own user: the call is not sent.
    let state = hand.asked(&params);
    assert_eq!(answer(&proxy, &id(&proxy), "approve").status, 200);
    let unwanted = hand.call(&again(&params, &state, "decline"));
    assert_eq!(error_text(&unwanted["result"]), "Tool 's:write_item': approval was denied");
    assert_eq!(sent(&proxy), 1);
    // The client's approval is first, and a denial elsewhere too late.
    let state = hand.asked(&params);
    let fourth = id(&proxy);
    assert_eq!(*value(&hand.call(&again(&params, &state, "accept"))), 7);
    assert_eq!(answer(&proxy, &fourth, "deny").status, 409);
}

// APR-5
#[test]
fn cap_8_client_without_an_answer_is_asked_again_or_waits() {
    let proxy = proxy();
    let hand = Hand::new(&proxy);
    let params = write(json!({}));
    let state = hand.asked(&params);
    let mut unanswered = params.clone();
    unanswered["requestState"] = json!(state);
    unanswered["inputResponses"] = json!({"other": {"action": "accept"}});
    assert_eq!(hand.asked(&unanswered), state, "asked again, for the same approval");
    assert_eq!(until_waiting(&proxy, 1).len(), 1);
    // Closing the dialogue is no answer: the call waits for another channel.
    let mut connection = hand.begin(&again(&params, &state, "cancel"));
    let id = waiting(&proxy)[0]["id"].as_str().unwrap().to_owned();
    until("the call waits", || {
        let taken = hand.call(&unanswered);
        (taken["result"]["isError"] == true).then_some(())
    });
    assert_eq!(answer(&proxy, &id, "approve").status, 200);
    assert_eq!(*value(&connection.response().json()), 7);
    // A client that disconnects meanwhile withdraws the call.
    let state = hand.asked(&params);
    let leaving = hand.begin(&again(&params, &state, "cancel"));
    unanswered["requestState"] = json!(state);
    until("the call waits", || {
        let taken = hand.call(&unanswered);
        (taken["result"]["isError"] == true).then_some(())
    });
    drop(leaving);
    until("it is withdrawn", || waiting(&proxy).is_empty().then_some(()));
    assert_eq!(states(&proxy), ["waiting", "approved", "waiting", "withdrawn"]);
}

#[test]
fn cap_8_approval_whose_client_never_retries_expires() {
    let proxy = proxy_with(json!({"timeout": "300ms", "elicitation": true}));
    let hand = Hand::new(&proxy);
    let params = write(json!({}));
    let state = hand.asked(&params);
    until("it times out", || (states(&proxy).len() == 2).then_some(()));
    assert_eq!(states(&proxy), ["waiting", "timed_out"]);
    let late = hand.call(&again(&params, &state, "accept"));
    let text = "Tool 's:write_item': approval timed out after 300ms";
    assert_eq!(error_text(&late["result"]), text);
    assert_eq!(sent(&proxy), 0);
}

#[test]
fn cap_8_client_without_form_elicitation_waits_for_the_other_channels() {
    for (capabilities, approval) in [
        (json!({}), json!({"elicitation": true})),
        (json!({"elicitation": {"url": {}}}), json!({"elicitation": true})),
        (json!({"elicitation": {}}), json!({"elicitation": false})),
        // The client is anonymous, and by default an anonymous client is not asked.
        (json!({"elicitation": {}}), json!({})),
    ] {
        let proxy = proxy_with(approval);
        let hand = Hand { capabilities, ..Hand::new(&proxy) };
        let mut connection = hand.begin(&write(json!({})));
        let id = until_waiting(&proxy, 1)[0]["id"].as_str().unwrap().to_owned();
        assert_eq!(answer(&proxy, &id, "approve").status, 200);
        assert_eq!(*value(&connection.response().json()), 7);
    }
}

#[test]
fn cap_8_shutdown_ends_approvals_that_clients_were_asked_for() {
    let proxy = proxy();
    Hand::new(&proxy).asked(&write(json!({})));
    until_waiting(&proxy, 1);
    let folder = proxy.end();
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let proxy = Proxy::unready(serde_json::from_str(&config).unwrap(), folder).ready();
    assert_eq!(states(&proxy), ["waiting", "ended"]);
}

#[test]
fn apr_1_input_responses_of_a_call_are_part_of_its_approval_and_of_the_record() {
    let proxy = proxy();
    let hand = Hand::new(&proxy);
    let unasked = |text: &str| {
        let mut params = write(json!({"value": 1}));
        params["inputResponses"] = json!({"q": {"action": "accept", "content": {"a": text}}});
        params
    };
    let ask = |text: &str| {
        let result = hand.call(&unasked(text))["result"].take();
        let asked = result["inputRequests"]["approval"]["params"]["message"].to_string();
        assert!(asked.contains("inputResponses: ") && asked.contains(text), "{asked}");
        result["requestState"].as_str().unwrap().to_owned()
    };
    let state = ask("first");
    let first = until_waiting(&proxy, 1).remove(0);
    let expected = unasked("first")["inputResponses"].take();
    let shown: Value = serde_json::from_str(first["call"]["inputs"].as_str().unwrap()).unwrap();
    assert_eq!(shown, expected);
    ask("second");
    let both = until_waiting(&proxy, 2);
    let digests = [0, 1].map(|at| both[at]["call"]["digest"].clone());
    assert_ne!(digests[0], digests[1], "each has its own digest");
    let called = hand.call(&again(&write(json!({"value": 1})), &state, "accept"));
    assert_eq!(*value(&called), 7, "{called}");
    let records = until("the call is recorded", || {
        let sent = proxy.activity("type=tool_call&status=success&tool=write_item");
        (!sent.is_empty()).then_some(sent)
    });
    assert_eq!(records[0]["metadata"]["input_responses"], expected, "{records:?}");
}
