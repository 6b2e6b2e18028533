//! Files of the `tls` section of a server at run time: renewed, withdrawn and unusable ones.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{CertificateAuthority, Proxy, until, write_private};
use crate::tls::{get, reason_of, serve, url, with_stub};

/// Names under which the front proxy lists tools of the stub.
const ECHO: &str = "behind:stub__echo";
const TEXT: &str = "behind:stub__text";

/// A front proxy whose server is another proxy, which requires client certificates.
pub(crate) struct Chain {
    pub(crate) front: Proxy,
    pub(crate) behind: Proxy,
    clients: CertificateAuthority,
}

impl Chain {
    pub(crate) fn start() -> Self {
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

    /// Writes a file in the folder of the front proxy.
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
        reason_of(&self.front, "behind").contains("\"state\":\"connected\"")
    }

    /// Fault of the server as reported by the front proxy.
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
fn server_that_refuses_our_certificate_is_not_connected_until_the_renewed_one_is_loaded() {
    let chain = Chain::start();
    assert!(chain.works());
    // Over TLS 1.3 the certificate is refused after the handshake.
    let others = CertificateAuthority::new("others");
    write_private(&chain.behind.folder.path().join("clients.pem"), &others.pem);
    let renewed = || chain.behind.log().contains("reloaded the TLS files").then_some(());
    until("the new authority is in force", renewed);
    assert!(!chain.works());
    let expected = "does not accept our certificate";
    until("the fault is reported", || {
        reason_of(&chain.front, "behind").contains(expected).then_some(())
    });
    assert!(!chain.is_connected());
    let answer = chain.call().to_string();
    assert!(answer.contains(expected), "{answer}");
    others.client("renewed").write(chain.front.folder.path(), "front");
    until("the renewed certificate is loaded", || chain.works().then_some(()));
    until("it is connected", || chain.is_connected().then_some(()));
    let records = get(&chain.behind, "/api/v1/activity?principal=cert:renewed", &[]).body;
    assert!(records.contains("\"principal\":\"cert:renewed\""), "{records}");
    chain.end();
}

#[test]
fn running_call_completes_on_its_connection_while_our_certificate_is_renewed() {
    let chain = Chain::start();
    let mut running = chain.front.client();
    let slow = json!({"size": 4000, "chunk": 100, "pause_ms": 50});
    running.begin_read(TEXT, slow);
    until("the call has arrived", || {
        let status = get(&chain.behind, "/api/v1/status", &[]).body;
        let status: Value = serde_json::from_str(&status).unwrap();
        (status["data"]["calls"]["in_flight"] != 0).then_some(())
    });
    chain.clients.client("renewed").write(chain.front.folder.path(), "front");
    let renewed = || chain.front.log().contains("reloaded the server's TLS files").then_some(());
    until("it is loaded", renewed);
    until("the others continue", || chain.works().then_some(()));
    let response = running.connection.response();
    assert!(response.status == 200 && response.whole, "{}", response.text());
    let result = response.json();
    assert!(result.get("result").is_some() && result["result"]["isError"] != true, "{result}");
    chain.end();
}

#[test]
fn withdrawn_authority_is_rejected_and_a_restored_one_accepted() {
    let chain = Chain::start();
    assert!(chain.works());
    let trusted = chain.read("ca.pem");
    chain.write("ca.pem", &CertificateAuthority::new("another").pem);
    let expected = "issuer is not trusted";
    let is_refused = || reason_of(&chain.front, "behind").contains(expected).then_some(());
    // The withdrawal is detected even without a call.
    until("it is refused", is_refused);
    let answer = chain.call();
    assert!(answer["isError"] == true && answer.to_string().contains(expected), "{answer}");
    until("it is recorded", || {
        let changes = chain.front.activity("type=config_change&status=success");
        let of_tls = json!(["mcpServers.behind.tls"]);
        changes.iter().any(|change| change["metadata"]["applied"] == of_tls).then_some(())
    });
    chain.write("ca.pem", &trusted);
    until("it is trusted again", || chain.works().then_some(()));
    chain.write("ca.pem", &CertificateAuthority::new("another").pem);
    let reloaded = chain.front.cli(&["config", "reload"]);
    assert_eq!(reloaded.code, Some(0), "{}", reloaded.stderr);
    // The restored authority applies once the command returns.
    assert!(!chain.is_connected());
    until("it is refused", is_refused);
    chain.end();
}

#[test]
fn unusable_files_keep_the_previous_ones_in_force_and_are_reported_until_repaired() {
    let chain = Chain::start();
    assert!(chain.works());
    for (file, text, why) in [
        ("front.key", "no key", "front.key: it holds no private key"),
        ("front.pem", "", "front.pem: it holds no certificate"),
        ("ca.pem", "half", "ca.pem: it holds no certificate"),
    ] {
        let good = chain.read(file);
        chain.write(file, text);
        until(why, || chain.fault().is_some_and(|fault| fault.contains(why)).then_some(()));
        let fault = chain.fault().unwrap();
        assert!(fault.contains("the previous files stay in force"), "{fault}");
        assert!(chain.is_connected() && chain.works(), "{fault}");
        chain.front.assert_logged(why);
        // New connections use the files that are in force.
        let restarted = chain.front.cli(&["upstream", "restart", "behind"]);
        assert_eq!(restarted.code, Some(0), "{}{}", restarted.stdout, restarted.stderr);
        assert!(chain.works());
        chain.write(file, &good);
        until("there is no fault", || chain.fault().is_none().then_some(()));
    }
    assert!(chain.works());
    chain.end();
}
