//! Nodes that reach each other over TLS and trust the system's authorities, independently of client certificates.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{CertificateAuthority, HttpStub, Proxy, free_port, until, write_private};
use crate::tls::{call, get};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Store of a fleet, and the certificate authority of its nodes.
struct Fleet {
    store: TempDir,
    ca: CertificateAuthority,
}

impl Fleet {
    /// A node that seals nothing while a test runs, accepts client certificates, and trusts `trusted` as a certificate
    /// authority of the system.
    fn node(&self, name: &str, trusted: &CertificateAuthority) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let at = folder.path();
        self.ca.local().write(at, "server");
        write_private(&at.join("ca.pem"), &self.ca.pem);
        write_private(&at.join("trusted.pem"), &trusted.pem);
        let config = json!({
            "listen": format!("127.0.0.1:{port}"),
            "tls": {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"},
            "mcpServers": {"stub": HttpStub::shared().entry()},
            "cluster": {
                "store": format!("file://{}", self.store.path().display()), "node": name, "flush": "1h",
                "key": KEY, "advertise": format!("https://localhost:{port}"),
            },
        });
        let trusted = at.join("trusted.pem");
        let before = format!("unset SSL_CERT_DIR; export SSL_CERT_FILE='{}'", trusted.display());
        let node = Proxy::unready_under(&before, config, folder);
        until("it is ready", || (get(&node, "/readyz", &[]).status == 200).then_some(()));
        node
    }
}

fn api(node: &Proxy, path: &str) -> Value {
    let answer = get(node, &format!("/api/v1/{path}"), &[]);
    assert_eq!(answer.status, 200, "{path}: {} {}", answer.body, answer.error);
    serde_json::from_str::<Value>(&answer.body).unwrap()["data"].take()
}

#[test]
fn nodes_query_each_other_over_tls_and_reject_untrusted_certificates() {
    let fleet =
        Fleet { store: tempfile::tempdir().unwrap(), ca: CertificateAuthority::new("fleet") };
    let other = CertificateAuthority::new("other");
    let a = fleet.node("a", &fleet.ca);
    let b = fleet.node("b", &fleet.ca);
    let stranger = fleet.node("c", &other);
    for node in [&a, &b, &stranger] {
        until("all are alive", || (api(node, "fleet")["living"] == 3).then_some(()));
    }
    let called = call(&a, &[]);
    assert!(called.body.contains("hello"), "{}", called.body);
    let calls = |by: &Proxy| api(by, "activity?type=tool_call");
    // Nothing is sealed: records of a reach b only through a.
    let reported = calls(&b);
    assert_eq!(reported["fleet"]["missing"], json!({}));
    assert_eq!(reported["activities"][0]["tool_name"], "echo", "{reported}");
    assert_eq!(reported["activities"], calls(&a)["activities"]);
    // A node that does not trust the others names each of them.
    let reported = calls(&stranger);
    assert_eq!(reported["activities"], json!([]));
    for node in ["a", "b"] {
        let why = reported["fleet"]["missing"][node].as_str().unwrap();
        assert!(why.contains("certificate"), "{why}");
    }
    for node in [a, b, stranger] {
        node.end();
    }
}
