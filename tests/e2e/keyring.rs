//! A session keyring that does not answer. A working keyring is tested in `tools/keyring`.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Proxy, stub_stdio, until};
use crate::reload::reload;

/// Whether `secret-tool`, which queries the bus, is installed. Without it these tests check nothing; `.ci/run` installs it.
fn has_secret_tool() -> bool {
    let program = Command::new("secret-tool").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(program.is_ok() || std::env::var_os("CI").is_none(), "install libsecret-tools");
    if program.is_err() {
        println!("secret-tool is not installed (Debian: libsecret-tools): nothing is tested");
    }
    program.is_ok()
}

/// A session bus that accepts connections but never responds.
struct SilentBus {
    folder: tempfile::TempDir,
    listener: UnixListener,
}

impl SilentBus {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("bus")).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { folder, listener }
    }

    /// Shell code that sets the environment variable with the address of the bus.
    fn export(&self) -> String {
        let path = self.folder.path().join("bus");
        format!("export DBUS_SESSION_BUS_ADDRESS=unix:path={}", path.display())
    }

    /// Connection of the next process that queries the keyring.
    fn asked(&self) -> Option<UnixStream> {
        match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }
}

fn state(proxy: &Proxy, server: &str) -> Value {
    let servers = proxy.api("servers");
    let mut found = servers["servers"].as_array().unwrap().iter();
    found.find(|it| it["name"] == server).unwrap()["state"].clone()
}

/// The stub with a value that is stored only in the keyring.
fn asking(enabled: bool) -> Value {
    let mut server = stub_stdio(&[]);
    server["env"] = json!({"E2E_TOKEN": "${keyring:service/user}"});
    server["enabled"] = enabled.into();
    server
}

#[test]
fn keyring_that_does_not_answer_delays_only_the_server_that_needs_it() {
    if !has_secret_tool() {
        return;
    }
    let bus = SilentBus::new();
    let config = |limit: u64| {
        let servers = json!({"asks": asking(true), "waits": asking(true), "s": stub_stdio(&[])});
        json!({"tools_limit": limit, "mcpServers": servers})
    };
    let proxy = Proxy::unready_under(&bus.export(), config(5), tempfile::tempdir().unwrap());
    let question = until("the keyring is asked", || bus.asked());
    until("another server is connected", || (state(&proxy, "s") == "connected").then_some(()));
    reload(&proxy, &config(6));
    proxy.client().read("s:read_item", json!({}));
    for server in ["asks", "waits"] {
        assert_eq!(state(&proxy, server), "connecting", "{}", proxy.log());
    }
    assert!(bus.asked().is_none(), "the keyring gets one request at a time");
    // The bus is closed: both waiting requests fail.
    drop((question, bus));
    for server in ["asks", "waits"] {
        until(server, || (state(&proxy, server) == "failed").then_some(()));
    }
    proxy.end();
}

#[test]
fn servers_and_proxies_stop_without_waiting_for_a_keyring() {
    if !has_secret_tool() {
        return;
    }
    let bus = SilentBus::new();
    let config = json!({"mcpServers": {"asks": asking(true), "waits": asking(true)}});
    let proxy = Proxy::unready_under(&bus.export(), config, tempfile::tempdir().unwrap());
    let _question = until("the keyring is asked", || bus.asked());
    reload(&proxy, &json!({"mcpServers": {"waits": asking(true)}}));
    // The request stays open although its server was removed.
    for _ in 0..50 {
        assert_eq!(state(&proxy, "waits"), "connecting", "{}", proxy.log());
        assert!(bus.asked().is_none(), "the keyring gets one request at a time");
    }
    let folder = proxy.end();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("did not answer"), "{log}");
}

#[test]
fn keyring_is_not_queried_for_a_disabled_server() {
    let bus = SilentBus::new();
    let config = json!({"mcpServers": {"off": asking(false), "s": stub_stdio(&[])}});
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::unready_under(&bus.export(), config.clone(), folder).ready();
    let mut other = config;
    other["tools_limit"] = 7.into();
    reload(&proxy, &other);
    assert_eq!(state(&proxy, "off"), "disabled");
    assert!(bus.asked().is_none());
}
