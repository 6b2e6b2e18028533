//! The files of a server's own section `tls` while the proxy runs: renewed, taken back, unusable.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{CertificateAuthority, Proxy, until, write_private};
use crate::tls::{get, serve, told_of, url, with_stub};

/// Tools of the stub, by the names that they have in front.
const ECHO: &str = "behind:stub__echo";
const TEXT: &str = "behind:stub__text";

/// A proxy, and the one that it has as a server, which wants a certificate of its clients.
struct Two {
    front: Proxy,
    behind: Proxy,
    clients: CertificateAuthority,
}

impl Two {
    fn start() -> Self {
        let (ca, clients) = (CertificateAuthority::new("ca"), CertificateAuthority::new("clients"));
        let mut config = with_stub();
        config["require_mcp_auth"] = json!(true);
        let behind = serve(&ca, config, Some(&clients.pem));
        let folder = tempfile::tempdir().unwrap();
        write_private(&folder.path().join("ca.pem"), &ca.pem);
        clients.client("front").write(folder.path(), "front");
        let entry = json!({"url": url(&behind, "/mcp/all"),
            "tls": {"ca": "ca.pem", "cert": "front.pem", "key": "front.key"}});
        let front = Proxy::unready(json!({"mcpServers": {"behind": entry}}), folder).ready();
        Self { front, behind, clients }
    }

    /// Writes a file of the one in front.
    fn write(&self, name: &str, text: &str) {
        write_private(&self.front.folder.path().join(name), text);
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.front.folder.path().join(name)).unwrap()
    }

    fn works(&self) -> bool {
        let answer = self.call();
        answer["isError"] != true && answer.to_string().contains("far")
    }

    fn call(&self) -> Value {
        self.front.client().read(ECHO, json!({"text": "far"}))
    }

    fn is_connected(&self) -> bool {
        told_of(&self.front, "behind").contains("\"state\":\"connected\"")
    }

    /// What the front says is wrong with the server.
    fn fault(&self) -> Option<String> {
        let status = self.front.api("status");
        let mut faults = status["faults"].as_array().unwrap().iter();
        let fault = faults.find(|fault| fault["server"] == "behind")?;
        Some(fault["cause"].as_str().unwrap().to_owned())
    }

    fn end(self) {
        self.front.end();
        self.behind.end();
    }
}

#[test]
fn a_server_that_refuses_our_certificate_is_not_connected_until_the_renewed_one_is_taken_up() {
    let two = Two::start();
    assert!(two.works());
    // Over TLS 1.3 it is refused after the handshake.
    let others = CertificateAuthority::new("others");
    write_private(&two.behind.folder.path().join("clients.pem"), &others.pem);
    let renewed = || two.behind.log().contains("TLS was renewed").then_some(());
    until("the new authority counts", renewed);
    assert!(!two.works());
    let told = "does not accept our certificate";
    until("that is told", || told_of(&two.front, "behind").contains(told).then_some(()));
    assert!(!two.is_connected());
    let answer = two.call().to_string();
    assert!(answer.contains(told), "{answer}");
    others.client("renewed").write(two.front.folder.path(), "front");
    until("the renewed one is taken up", || two.works().then_some(()));
    until("it is connected", || two.is_connected().then_some(()));
    let records = get(&two.behind, "/api/v1/activity?principal=cert:renewed", &[]).body;
    assert!(records.contains("\"principal\":\"cert:renewed\""), "{records}");
    two.end();
}

#[test]
fn a_call_that_runs_ends_over_the_connection_it_began_on_while_our_certificate_is_renewed() {
    let two = Two::start();
    let mut running = two.front.client();
    let slow = json!({"size": 4000, "chunk": 100, "pause_ms": 50});
    running.begin_read(TEXT, slow);
    until("it has come there", || {
        let status = get(&two.behind, "/api/v1/status", &[]).body;
        let status: Value = serde_json::from_str(&status).unwrap();
        (status["data"]["calls"]["in_flight"] != 0).then_some(())
    });
    two.clients.client("renewed").write(two.front.folder.path(), "front");
    let renewed = || two.front.log().contains("TLS of a server was renewed").then_some(());
    until("it is taken up", renewed);
    until("the others go on", || two.works().then_some(()));
    let response = running.connection.response();
    assert!(response.status == 200 && response.whole, "{}", response.text());
    let result = response.json();
    assert!(result.get("result").is_some() && result["result"]["isError"] != true, "{result}");
    two.end();
}

#[test]
fn an_authority_that_is_taken_back_counts_no_more_and_one_that_is_back_does() {
    let two = Two::start();
    assert!(two.works());
    let trusted = two.read("ca.pem");
    two.write("ca.pem", &CertificateAuthority::new("another").pem);
    let told = "of no authority that is trusted";
    let is_refused = || told_of(&two.front, "behind").contains(told).then_some(());
    // Without a call.
    until("it is refused", is_refused);
    let answer = two.call();
    assert!(answer["isError"] == true && answer.to_string().contains(told), "{answer}");
    until("it is on record", || {
        let changes = two.front.activity("type=config_change&status=success");
        let of_tls = json!(["mcpServers.behind.tls"]);
        changes.iter().any(|change| change["metadata"]["applied"] == of_tls).then_some(())
    });
    two.write("ca.pem", &trusted);
    until("it is trusted again", || two.works().then_some(()));
    two.write("ca.pem", &CertificateAuthority::new("another").pem);
    let reloaded = two.front.cli(&["config", "reload"]);
    assert_eq!(reloaded.code, Some(0), "{}", reloaded.stderr);
    // Whoever has asked finds it so.
    assert!(!two.is_connected());
    until("it is refused", is_refused);
    two.end();
}

#[test]
fn files_that_cannot_be_used_leave_what_was_in_force_and_are_told_until_they_can() {
    let two = Two::start();
    assert!(two.works());
    for (file, text, why) in [
        ("front.key", "no key", "front.key: it holds no private key"),
        ("front.pem", "", "front.pem: it holds no certificate"),
        ("ca.pem", "half", "ca.pem: it holds no certificate"),
    ] {
        let good = two.read(file);
        two.write(file, text);
        until(why, || two.fault().is_some_and(|fault| fault.contains(why)).then_some(()));
        let fault = two.fault().unwrap();
        assert!(fault.contains("what was in force before stays"), "{fault}");
        assert!(two.is_connected() && two.works(), "{fault}");
        assert!(two.front.log().contains(why), "{}", two.front.log());
        // One that is made anew is made under what was in force.
        let restarted = two.front.cli(&["upstream", "restart", "behind"]);
        assert_eq!(restarted.code, Some(0), "{}{}", restarted.stdout, restarted.stderr);
        assert!(two.works());
        two.write(file, &good);
        until("it is well", || two.fault().is_none().then_some(()));
    }
    assert!(two.works());
    two.end();
}
