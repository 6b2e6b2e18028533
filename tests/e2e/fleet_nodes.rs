//! Concurrent nodes of a fleet, with a folder as the object store: membership, manipulated heartbeats, and requests between
//! nodes over HTTP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{API_KEY, Proxy, free_port, until};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A store, and nodes on it.
struct Fleet(TempDir);

impl Fleet {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn config(&self, node: &str, key: &str, port: u16) -> Value {
        json!({
            "listen": format!("127.0.0.1:{port}"),
            "cluster": {
                "store": format!("file://{}", self.0.path().display()), "node": node, "flush": "100ms",
                "key": key, "advertise": format!("http://127.0.0.1:{port}"),
            },
        })
    }

    fn node(&self, name: &str) -> Proxy {
        Proxy::with(self.config(name, KEY, free_port()))
    }

    fn heartbeat(&self, node: &str) -> PathBuf {
        self.0.path().join("heartbeats").join(node)
    }
}

/// State of a node as seen by another.
fn seen(by: &Proxy, node: &str, query: &str) -> Option<Value> {
    let fleet = by.api(&format!("fleet{query}"));
    fleet["nodes"].as_array().unwrap().iter().find(|it| it["node"] == node).cloned()
}

fn wait_until_seen(by: &Proxy, node: &str, state: &str) {
    until(&format!("{node} is {state}"), || {
        seen(by, node, "").filter(|it| it["state"] == state).map(drop)
    });
}

fn wait_for_fault(by: &Proxy, words: &str) {
    until(words, || {
        let faults = by.api("status")["faults"].as_array().unwrap().clone();
        let has =
            |it: &Value| it["part"] == "fleet" && it["cause"].as_str().unwrap().contains(words);
        faults.iter().any(has).then_some(())
    });
}

/// Replaces an object atomically, as a store does.
fn put(path: &Path, bytes: &[u8]) {
    // Written outside the folder first, where it belongs to no node.
    let new = path.parent().unwrap().with_extension("new");
    std::fs::write(&new, bytes).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn heartbeat_that_hangs_does_not_hide_the_others() {
    let fleet = Fleet::new();
    let a = fleet.node("a");
    // Its claim is a pipe without a writer: opening it blocks.
    let hangs = fleet.0.path().join("nodes/hangs");
    std::fs::create_dir(&hangs).unwrap();
    nix::unistd::mkfifo(&hangs.join("claim.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    put(&fleet.heartbeat("hangs"), b"{}");
    let mut b = fleet.node("b");
    wait_until_seen(&a, "b", "living");
    b.process.0.kill().unwrap();
    b.process.wait();
    wait_until_seen(&a, "b", "silent");
}

// FLT-4
#[test]
fn living_stopped_and_killed_nodes_are_distinguished() {
    let fleet = Fleet::new();
    let (a, b, mut c) = (fleet.node("a"), fleet.node("b"), fleet.node("c"));
    for (by, other) in [(&a, "b"), (&a, "c"), (&b, "a"), (&b, "c"), (&c, "a"), (&c, "b")] {
        wait_until_seen(by, other, "living");
    }
    b.client();
    let shared = until("b has shared its session", || {
        seen(&a, "b", "").filter(|it| it["said"]["sessions"] == 1)
    });
    assert_eq!(shared["said"]["advertise"], format!("http://127.0.0.1:{}", b.port));
    assert_eq!(
        (&shared["said"]["index"], &shared["clock_is_off"]),
        (&json!("false"), &json!(false))
    );
    assert_eq!((&shared["fault"], &shared["used_twice"]), (&Value::Null, &json!(false)));
    let all = a.api("fleet");
    assert_eq!(
        (&all["node"], &all["living"], &all["faults"]),
        (&json!("a"), &json!(3), &json!([]))
    );
    // In the end the store has the whole chain.
    until("nothing is behind", || {
        let ledger = a.api("fleet")["ledger"].clone();
        (ledger["lag_records"] == 0 && ledger["stored"].as_u64() > Some(0)).then_some(())
    });

    let status = a.cli(&["fleet", "status"]);
    assert_eq!(status.code, Some(0), "{}{}", status.stdout, status.stderr);
    assert!(status.stdout.contains("3 of 3 nodes alive"), "{}", status.stdout);
    let table = a.cli(&["fleet", "status", "--json"]).json();
    assert_eq!(table["nodes"][1]["reached"], true, "{table}");

    drop(b.end());
    wait_until_seen(&a, "b", "stopped");
    wait_until_seen(&c, "b", "stopped");
    c.process.0.kill().unwrap();
    c.process.wait();
    wait_until_seen(&a, "c", "silent");
    let all = a.api("fleet");
    let faults = all["faults"].as_array().unwrap();
    assert_eq!((&all["living"], faults.len()), (&json!(1), 1), "a stopped node is no fault: {all}");
    assert!(faults[0].as_str().unwrap().starts_with("node 'c' is dead: "), "{all}");
    assert_eq!(a.cli(&["fleet", "status"]).code, Some(1));
    let metrics =
        a.request("GET", "/metrics", &[("X-API-Key", API_KEY), ("Accept", "text/plain")], b"");
    for line in
        ["mcpproxy_fleet_nodes{state=\"living\"} 1", "mcpproxy_fleet_nodes{state=\"stopped\"} 1"]
    {
        assert!(metrics.text().contains(line), "{line}: {}", metrics.text());
    }
    // The killed node restarts under its name, with its chain.
    let folder = std::mem::replace(&mut c.folder, tempfile::tempdir().unwrap());
    let c = Proxy::unready(fleet.config("c", KEY, free_port()), folder).ready();
    wait_until_seen(&a, "c", "living");
    drop(c);
}

// FLT-4
#[test]
fn altered_replayed_foreign_or_oversized_heartbeat_is_reported_and_rejected() {
    let (fleet, elsewhere) = (Fleet::new(), Fleet::new());
    let (a, b) = (fleet.node("a"), fleet.node("b"));
    let other = elsewhere.node("b");
    wait_until_seen(&a, "b", "living");
    wait_until_seen(&b, "a", "living");
    let path = fleet.heartbeat("b");
    let old = std::fs::read(&path).unwrap();
    let at = serde_json::from_slice::<Value>(&old).unwrap()["heartbeat"]["at"].as_u64();
    until("a later one is seen", || (seen(&a, "b", "")?["said"]["at"].as_u64() > at).then_some(()));
    let foreign = until("the other fleet's node has a heartbeat", || {
        std::fs::read(elsewhere.heartbeat("b")).ok()
    });
    drop(other);
    let mut b = b;
    b.process.0.kill().unwrap();
    b.process.wait();
    let last = std::fs::read(&path).unwrap();
    // A heartbeat with another address.
    let text = String::from_utf8(last.clone()).unwrap();
    let redirected = text.replace(&format!("127.0.0.1:{}", b.port), "127.0.0.1:1");
    assert_ne!(redirected, text);
    let long = [&last[..], &vec![b' '; 1 << 20]].concat();
    for (object, words) in [
        (&redirected.into_bytes(), "node 'b': heartbeat not signed by this node's key"),
        (&old, "node 'b': heartbeat replayed: an older one was written again"),
        (&foreign, "node 'b': heartbeat not signed by this node's key"),
        (&long, "node 'b': heartbeat exceeds 16384 bytes"),
        (&b"{}".to_vec(), "node 'b': invalid heartbeat"),
    ] {
        put(&path, object);
        wait_for_fault(&a, words);
        assert_eq!(
            seen(&a, "b", "").unwrap()["said"]["advertise"],
            format!("http://127.0.0.1:{}", b.port)
        );
    }
    wait_until_seen(&a, "b", "silent");
    put(&path, &last);
    // If the last heartbeat before the kill had not been read yet, the node counts as alive for one more interval.
    until("the heartbeat is valid again", || {
        let b = seen(&a, "b", "")?;
        (b["state"] == "silent" && b["fault"].is_null()).then_some(())
    });
    let status = a.cli(&["fleet", "status"]);
    // The dead node is the only problem.
    assert_eq!(status.code, Some(1), "{}{}", status.stdout, status.stderr);
    assert!(status.stderr.contains("the fleet has 1 problem"), "{}", status.stderr);
    assert!(status.stdout.contains("node 'b' is dead"), "{}", status.stdout);
}

#[test]
fn name_used_by_two_processes_is_reported_by_all_nodes() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.node("a"), fleet.node("b"));
    wait_until_seen(&a, "b", "living");
    let folder = b.end();
    // A copy of its data folder, like that of a copied volume.
    let copy = tempfile::tempdir().unwrap();
    let done = std::process::Command::new("cp")
        .arg("-a")
        .arg(folder.path().join("data"))
        .arg(copy.path())
        .status()
        .unwrap();
    assert!(done.success());
    // Nothing is sealed in this test, because a node does not start if the store has more of its chain than its log.
    let config = || {
        let mut config = fleet.config("b", KEY, free_port());
        config["cluster"]["flush"] = json!("5m");
        config
    };
    let b = Proxy::unready(config(), folder).ready();
    wait_until_seen(&a, "b", "living");
    let twin = Proxy::unready(config(), copy).ready();
    for by in [&a, &b, &twin] {
        wait_for_fault(by, "two processes use the name of node 'b'");
    }
    assert_eq!(seen(&a, "b", "").unwrap()["used_twice"], true);
    let status = a.cli(&["fleet", "status"]);
    assert_eq!(status.code, Some(1));
    assert!(status.stdout.contains("two processes use the name"), "{}", status.stdout);
}

// FLT-4
#[test]
fn no_node_is_declared_dead_while_the_store_is_unavailable() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.node("a"), fleet.node("b"));
    wait_until_seen(&a, "b", "living");
    wait_until_seen(&b, "a", "living");
    let (nodes, aside) = (fleet.0.path().join("nodes"), fleet.0.path().join("aside"));
    std::fs::rename(&nodes, &aside).unwrap();
    // No object can be created, because a file has the name of the folder. Objects created in the meantime are removed.
    until("it is a file", || {
        let _ = std::fs::remove_dir_all(&nodes);
        std::fs::write(&nodes, "").ok()
    });
    wait_for_fault(&a, "cannot observe the fleet's nodes");
    for _ in 0..20 {
        let all = a.api("fleet");
        assert_eq!(all["living"], 2, "{all}");
    }
    until("it is available again", || {
        let _ = std::fs::remove_file(&nodes);
        let _ = std::fs::remove_dir_all(&nodes);
        std::fs::rename(&aside, &nodes).ok()
    });
    until("it is seen again", || a.api("fleet")["away"].is_null().then_some(()));
    wait_until_seen(&a, "b", "living");
}

/// Forwarder in front of a node that records requests, and corrupts responses on demand.
struct Between {
    port: u16,
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
    spoils: Arc<AtomicBool>,
}

impl Between {
    fn before(node: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, spoils) =
            (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::new(AtomicBool::new(false)));
        let (keeps, spoiling) = (Arc::clone(&asked), Arc::clone(&spoils));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", node)) else { continue };
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let keeps = Arc::clone(&keeps);
                std::thread::spawn(move || {
                    let mut bytes = [0; 65536];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        keeps.lock().unwrap().push(bytes[..count].to_vec());
                        if to.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                });
                let (mut from, mut to, spoiling) = (server, client, Arc::clone(&spoiling));
                std::thread::spawn(move || {
                    let mut bytes = [0; 65536];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let part = &mut bytes[..count];
                        let named = part.windows(8).position(|it| it == b"asked_by");
                        if let (true, Some(at)) = (spoiling.load(Ordering::Relaxed), named) {
                            part[at] ^= 1;
                        }
                        if to.write_all(part).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, asked, spoils }
    }
}

/// Response of a node to raw bytes.
fn answered(port: u16, bytes: &[u8]) -> (u16, Vec<u8>) {
    let mut connection = crate::harness::Connection::open(port);
    connection.raw(bytes);
    let response = connection.response();
    (response.status, response.body)
}

// FLT-5
#[test]
fn peer_request_is_accepted_once_and_its_answer_authenticated() {
    let fleet = Fleet::new();
    let a = fleet.node("a");
    let port = free_port();
    let between = Between::before(port);
    let mut config = fleet.config("b", KEY, port);
    config["cluster"]["advertise"] = json!(format!("http://127.0.0.1:{}", between.port));
    let b = Proxy::with(config);
    wait_until_seen(&a, "b", "living");
    wait_until_seen(&b, "a", "living");
    let reached = || seen(&a, "b", "?reach=true").unwrap();
    assert_eq!((&reached()["reached"], &reached()["unreached"]), (&json!(true), &Value::Null));
    let request = between.asked.lock().unwrap()[0].clone();
    let text = String::from_utf8(request.clone()).unwrap();
    assert!(text.starts_with("POST /fleet/v1/ping HTTP/1.1\r\n"), "{text}");

    // A replayed, altered, misdirected or unauthenticated request gets the same response as a request for an unknown
    // path.
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    let nobody = format!("POST /nowhere HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n");
    let (status, _) = answered(port, nobody.as_bytes());
    assert_eq!(status, 404);
    let bare = format!("POST /fleet/v1/ping HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n");
    let keyed = bare.replace("\r\n\r\n", &format!("\r\nX-API-Key: {API_KEY}\r\n\r\n"));
    let altered = text.replace(" last ", " more ");
    let elsewhere = text.replace("/fleet/v1/ping", "/fleet/v1/session");
    for bytes in [&text, &bare, &keyed, &altered, &elsewhere] {
        let (got, body) = answered(port, bytes.as_bytes());
        assert_eq!(got, status, "{bytes}");
        assert!(!String::from_utf8_lossy(&body).contains("fleet"), "{bytes}");
    }
    let (got, _) = answered(a.port, text.as_bytes());
    assert_eq!(got, 404, "it was for node b");

    between.spoils.store(true, Ordering::Relaxed);
    let spoiled = reached();
    assert_eq!(spoiled["reached"], false);
    let why = spoiled["unreached"].as_str().unwrap();
    assert!(why.contains("the response is not from the requested node"), "{why}");
    between.spoils.store(false, Ordering::Relaxed);
    assert_eq!(reached()["reached"], true);
}

// FLT-5
#[test]
fn node_with_another_key_is_rejected_and_one_with_overlapping_keys_accepted() {
    let fleet = Fleet::new();
    let a = fleet.node("a");
    let stranger = Proxy::with(fleet.config("b", OTHER_KEY, free_port()));
    wait_for_fault(&a, "node 'b': heartbeat not authenticated by this fleet's cluster.key");
    wait_for_fault(&stranger, "node 'a': heartbeat not authenticated by this fleet's cluster.key");
    assert_eq!(a.api("fleet")["living"], 1);
    let folder = stranger.end();
    let mut config = fleet.config("b", KEY, free_port());
    config["cluster"]["key"] = json!([KEY, OTHER_KEY]);
    let b = Proxy::unready(config, folder).ready();
    wait_until_seen(&a, "b", "living");
    wait_until_seen(&b, "a", "living");
    assert_eq!(seen(&a, "b", "?reach=true").unwrap()["reached"], true);
    assert_eq!(seen(&b, "a", "?reach=true").unwrap()["reached"], true);
}

#[test]
fn single_machine_has_no_fleet() {
    let proxy = Proxy::start(json!({}));
    let fleet = proxy.api("fleet");
    assert_eq!((&fleet["node"], &fleet["nodes"]), (&Value::Null, &json!([])));
    let status = proxy.cli(&["fleet", "status"]);
    assert_eq!(status.code, Some(1));
    assert!(status.stderr.contains("is not part of a fleet"), "{}", status.stderr);
    let metrics = proxy.get("/metrics").text();
    assert!(!metrics.contains("mcpproxy_fleet") && !metrics.contains("mcpproxy_ledger"));
    let response = proxy.request("POST", "/fleet/v1/ping", &[("X-API-Key", API_KEY)], b"");
    assert_eq!(response.status, 404);
}
