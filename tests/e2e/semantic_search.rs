//! Search by meaning, with an embeddings endpoint that works, and one that is slow or unavailable or sends invalid
//! answers.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Proxy, Received, Recorder, Reply, free_port, stub_stdio, until, write_private,
};
use crate::reload::reload;

const KEY: &str = "sk-of-the-test-0123456789";

/// Answer of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Good,
    Hangs,
    HangsUp,
    Refuses,
    WrongCount,
    WrongDimension,
    NoNumber,
    NoDirection,
    Huge,
    Html,
}

/// An endpoint whose model distinguishes two subjects: rain, and everything else.
struct Endpoint {
    recorder: Recorder,
    mood: Arc<Mutex<Mood>>,
}

impl Endpoint {
    fn start() -> Self {
        Self::at(0)
    }

    fn at(port: u16) -> Self {
        let mood = Arc::new(Mutex::new(Mood::Good));
        let now = Arc::clone(&mood);
        let recorder =
            Recorder::at(port, move |_, received| answer(received, *now.lock().unwrap()));
        Self { recorder, mood }
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn embeddings(&self) -> Value {
        let url = format!("http://127.0.0.1:{}/v1", self.recorder.port);
        // A long timeout, so that no test depends on the speed of the machine.
        json!({"url": url, "model": "m", "api_key": KEY, "timeout": "10s"})
    }

    /// Texts of all requests, in order.
    fn asked(&self) -> Vec<String> {
        self.recorder.received().iter().flat_map(inputs).collect()
    }
}

fn inputs(received: &Received) -> Vec<String> {
    let body: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(body["model"], "m");
    let texts = body["input"].as_array().unwrap().iter();
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn direction(text: &str) -> Value {
    match text {
        text if text.contains("precip") || text.contains("umbrella") => json!([2, 0.1, 0]),
        text if text.contains(": ") => json!([0, 3, 0]),
        _ => json!([0, 0, 1]),
    }
}

fn answer(received: &Received, mood: Mood) -> Reply {
    assert!(received.head[0].starts_with("POST /v1/embeddings "), "{}", received.head[0]);
    assert_eq!(received.headers("authorization"), [format!("Bearer {KEY}")]);
    let texts = inputs(received);
    let one = |at: usize| json!({"index": at, "embedding": direction(&texts[at])});
    let mut data: Vec<Value> = (0..texts.len()).map(one).collect();
    let status = match mood {
        Mood::Hangs => return Reply::Hang,
        Mood::HangsUp => return Reply::Raw(Vec::new()),
        Mood::Huge => {
            // Announces a gigabyte, and sends far more bytes than are read.
            let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n".to_vec();
            bytes.resize(64 << 20, b'[');
            return Reply::Raw(bytes);
        }
        Mood::Html => return Reply::Http("200 OK", "", b"<html>sign in</html>".to_vec()),
        Mood::NoNumber => {
            return Reply::Http("200 OK", "", br#"{"data":[{"embedding":[NaN,1,1]}]}"#.to_vec());
        }
        Mood::Refuses => "500 Internal Server Error",
        Mood::WrongCount => {
            data.push(one(0));
            "200 OK"
        }
        Mood::WrongDimension => {
            data[0]["embedding"] = json!([1, 1]);
            "200 OK"
        }
        Mood::NoDirection => {
            data[0]["embedding"] = json!([0, 0, 0]);
            "200 OK"
        }
        Mood::Good => "200 OK",
    };
    let body = json!({"object": "list", "model": "m", "data": data}).to_string();
    Reply::Http(status, "content-type: application/json\r\n", body.into_bytes())
}

fn tool(name: &str) -> Value {
    let about = format!("Handles {name} by name.");
    json!({"name": name, "description": about, "inputSchema": {"type": "object"}})
}

/// A server with its tools in a file. Returns its entry, the file and its folder.
fn shop(tools: &[&str]) -> (Value, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    offer(&file, tools);
    let flags = ["--only", "add_tool", "--tools", file.to_str().unwrap()];
    (json!({"shop": stub_stdio(&flags)}), file, folder)
}

fn offer(file: &std::path::Path, tools: &[&str]) {
    let tools: Value = tools.iter().map(|name| tool(name)).collect();
    write_private(file, &tools.to_string());
}

fn config(servers: &Value, endpoint: &Endpoint) -> Value {
    json!({"mcpServers": servers, "search": {"embeddings": endpoint.embeddings()}})
}

fn found(proxy: &Proxy, query: &str) -> Vec<String> {
    let found = proxy.client().tool("retrieve_tools", json!({"query": query}));
    names(&found["structuredContent"]["tools"])
}

fn names(tools: &Value) -> Vec<String> {
    let tools = tools.as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn metric(proxy: &Proxy, name: &str) -> f64 {
    let text = proxy.request("GET", "/metrics", &[("x-api-key", API_KEY)], b"").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

/// Waits until this number of tools has vectors.
fn embedded(proxy: &Proxy, tools: u32) {
    until("tools have vectors", || {
        (metric(proxy, "mcpproxy_search_embedded_tools") == f64::from(tools)).then_some(())
    });
}

fn faults(proxy: &Proxy) -> Vec<String> {
    let status = proxy.api("status");
    let faults = status["faults"].as_array().unwrap().iter();
    let of_search = faults.filter(|fault| fault["part"] == "search");
    of_search.map(|fault| fault["cause"].as_str().unwrap().to_owned()).collect()
}

const ASKED: &str = "shall I take an umbrella";
const TOOL: &str = "shop:precip_chance";

// EMB-1
#[test]
fn fr_021_search_by_meaning_finds_a_tool_without_a_common_word() {
    let endpoint = Endpoint::start();
    let (servers, file, _folder) = shop(&["precip_chance", "create_invoice"]);
    let proxy = Proxy::with(config(&servers, &endpoint));
    embedded(&proxy, 3);
    assert_eq!(found(&proxy, ASKED), [TOOL]);
    let page = proxy.api("tools?q=shall%20I%20take%20an%20umbrella");
    assert_eq!((names(&page["tools"]), &page["total"]), (vec![TOOL.to_owned()], &json!(1)));
    assert_eq!(found(&proxy, "who is the king of Spain"), [""; 0], "nothing is near");
    assert_eq!(found(&proxy, "create_invoice")[0], "shop:create_invoice");
    // Searches on the page use vectors that are already known, and calls request none.
    let queries: Vec<_> = endpoint.asked().into_iter().filter(|it| !it.contains(": ")).collect();
    assert_eq!(queries, [ASKED, "who is the king of Spain", "create_invoice"]);
    proxy.client().read("shop:nothing_like_it", json!({}));
    assert_eq!(endpoint.asked().len(), 6);

    // After a list was extended, only the vector of the new tool is requested.
    offer(&file, &["precip_chance", "create_invoice", "precip_map"]);
    proxy.client().call("write", "shop:add_tool", json!({}));
    until("it is found", || (found(&proxy, ASKED).len() == 2).then_some(()));
    let asked = endpoint.asked();
    assert_eq!(asked[6..], ["precip_map: Handles precip_map by name."]);

    // After a restart no vector of a tool is requested again.
    let queries = r#"mcpproxy_search_embedding_requests_total{kind="tools",outcome="success"}"#;
    assert_eq!(metric(&proxy, queries), 2.0);
    let log = proxy.log();
    let folder = proxy.end();
    let kept = folder.path().join("data/embeddings");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&kept), mode(&kept.join("vectors"))), (0o700, 0o600));
    let proxy = Proxy::unready(config(&servers, &endpoint), folder).ready();
    embedded(&proxy, 4);
    assert_eq!(found(&proxy, ASKED).len(), 2);
    assert_eq!(endpoint.asked()[7..], [ASKED]);
    assert_eq!((faults(&proxy), metric(&proxy, "mcpproxy_search_embeddings_up")), (vec![], 1.0));
    let shown = format!("{log}{}{}{}", proxy.log(), proxy.api("config"), proxy.api("status"));
    assert!(!shown.contains(KEY), "{shown}");

    // A damaged file is treated like a missing one.
    let folder = proxy.end();
    let file = folder.path().join("data/embeddings/vectors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    write_private(&file, "");
    std::fs::write(&file, bytes).unwrap();
    let proxy = Proxy::unready(config(&servers, &endpoint), folder).ready();
    embedded(&proxy, 4);
    assert_eq!(endpoint.asked().len(), 12, "all four are embedded again");
    proxy.assert_lines_logged(1, |line| line.contains("is damaged or of another version"));
}

// EMB-1
#[test]
fn embeddings_are_not_requested_without_an_endpoint_and_a_reload_adds_and_removes_one() {
    let endpoint = Endpoint::start();
    let (servers, _, _folder) = shop(&["precip_chance"]);
    let proxy = Proxy::start(servers.clone());
    assert_eq!(found(&proxy, ASKED), [""; 0]);
    let result = reload(&proxy, &config(&servers, &endpoint));
    assert_eq!((&result["applied"], &result["needs_restart"]), (&json!(["search"]), &json!([])));
    embedded(&proxy, 2);
    assert_eq!(found(&proxy, ASKED), [TOOL]);
    let mut strict = config(&servers, &endpoint);
    strict["search"]["embeddings"]["min_similarity"] = json!(1);
    reload(&proxy, &strict);
    assert_eq!(found(&proxy, ASKED), [TOOL], "the same direction");
    reload(&proxy, &json!({"mcpServers": servers}));
    assert_eq!(found(&proxy, ASKED), [""; 0]);
    let tools = endpoint.asked().iter().filter(|text| text.contains(": ")).count();
    assert_eq!((tools, metric(&proxy, "mcpproxy_search_embeddings_up")), (2, 0.0));
}

// EMB-2
#[test]
fn search_continues_by_words_if_the_endpoint_fails() {
    let endpoint = Endpoint::start();
    let (servers, _, _folder) = shop(&["precip_chance", "create_invoice"]);
    let mut config = config(&servers, &endpoint);
    let proxy = Proxy::with(config.clone());
    embedded(&proxy, 3);
    for (at, (mood, reported)) in [
        (Mood::HangsUp, ""),
        (Mood::Refuses, "the endpoint answered 500"),
        (Mood::WrongCount, "its answer has 2 embeddings, not 1"),
        (Mood::WrongDimension, "an embedding has 2 dimensions, not 3"),
        (Mood::NoNumber, "its answer is not a list of embeddings"),
        (Mood::NoDirection, "an embedding is zero"),
        (Mood::Html, "its answer is not a list of embeddings"),
        (Mood::Huge, "its answer is empty or longer than"),
        (Mood::Hangs, "no answer within"),
    ]
    .into_iter()
    .enumerate()
    {
        endpoint.is(mood);
        if mood == Mood::Hangs {
            config["search"]["embeddings"]["timeout"] = json!("50ms");
        } else {
            // A change of the settings resets the count of failures.
            config["search"]["embeddings"]["min_similarity"] = json!(0.3 + at as f64 / 100.0);
        }
        reload(&proxy, &config);
        assert_eq!(faults(&proxy), [""; 0]);
        let before = endpoint.asked().len();
        for round in 0..6 {
            assert_eq!(found(&proxy, &format!("{ASKED} {at} {round}")), [""; 0], "{mood:?}");
            assert_eq!(found(&proxy, "make an invoice")[0], "shop:create_invoice", "{mood:?}");
        }
        let faults = faults(&proxy);
        assert!(faults.len() == 1 && faults[0].contains(reported), "{mood:?}: {faults:?}");
        assert!(faults[0].contains("by words alone"), "{faults:?}");
        assert_eq!(metric(&proxy, "mcpproxy_search_embeddings_up"), 0.0);
        assert_eq!(endpoint.asked().len() - before, 3, "{mood:?}: then requests are paused");
        proxy.assert_lines_logged(at + 1, |line| line.contains("embeddings endpoint failing"));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process.0.id()));
    let status = status.unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 256 * 1024, "{peak} kB: an answer is not kept completely");
    let doctor = proxy.cli(&["doctor"]);
    assert!(doctor.stdout.contains("search.embeddings"), "{}", doctor.stdout);
    endpoint.is(Mood::Good);
    config["search"]["embeddings"]["timeout"] = json!("9s");
    reload(&proxy, &config);
    assert_eq!(found(&proxy, ASKED), [TOOL]);
    assert!(!proxy.log().contains(KEY) && !proxy.log().contains("sign in"), "{}", proxy.log());
}

#[test]
fn embeddings_are_requested_again_until_the_endpoint_is_available() {
    let port = free_port();
    let (servers, _, _folder) = shop(&["precip_chance"]);
    let url = format!("http://127.0.0.1:{port}/v1");
    let embeddings = json!({"url": url, "model": "m", "api_key": KEY, "timeout": "10s"});
    let proxy = Proxy::with(json!({"mcpServers": servers, "search": {"embeddings": embeddings}}));
    let reported = until("the fault is reported", || faults(&proxy).pop());
    assert!(reported.contains("2 tools have no vectors yet"), "{reported}");
    assert_eq!(found(&proxy, ASKED), [""; 0]);
    assert_eq!(found(&proxy, "precip chance"), [TOOL]);
    let _endpoint = Endpoint::at(port);
    embedded(&proxy, 2);
    assert_eq!((found(&proxy, ASKED), faults(&proxy)), (vec![TOOL.to_owned()], vec![]));
    proxy.assert_lines_logged(1, |line| line.contains("embedding tools failed"));
}
