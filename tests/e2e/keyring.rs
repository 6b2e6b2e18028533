//! A session's keyring that is asked and does not answer. One that does is asked in `tools/keyring`.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};

use crate::harness::{Proxy, stub_stdio, until};
use crate::reload::reload;

/// A session bus that takes connections and says nothing on them.
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

    /// What a shell says for its children to ask it.
    fn export(&self) -> String {
        let path = self.folder.path().join("bus");
        format!("export DBUS_SESSION_BUS_ADDRESS=unix:path={}", path.display())
    }

    /// Who asks it, if anybody does.
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

/// The stub with a value that only the keyring has.
fn asking(enabled: bool) -> Value {
    let mut server = stub_stdio(&[]);
    server["env"] = json!({"E2E_TOKEN": "${keyring:service/user}"});
    server["enabled"] = enabled.into();
    server
}

#[test]
fn a_keyring_that_does_not_answer_holds_up_the_server_that_needs_it_and_nothing_else() {
    let bus = SilentBus::new();
    let config = |limit: u64| {
        let servers = json!({"asks": asking(true), "waits": asking(true), "s": stub_stdio(&[])});
        json!({"tools_limit": limit, "mcpServers": servers})
    };
    let proxy = Proxy::unready_under(&bus.export(), config(5), tempfile::tempdir().unwrap());
    let question = until("the keyring is asked", || bus.asked());
    until("another is there", || (state(&proxy, "s") == "connected").then_some(()));
    reload(&proxy, &config(6));
    proxy.client().read("s:read_item", json!({}));
    for server in ["asks", "waits"] {
        assert_eq!(state(&proxy, server), "connecting", "{}", proxy.log());
    }
    assert!(bus.asked().is_none(), "its user is asked one thing at a time");
    // The bus goes away: whoever waits for it has an answer.
    drop((question, bus));
    for server in ["asks", "waits"] {
        until(server, || (state(&proxy, server) == "failed").then_some(()));
    }
    proxy.end();
}

#[test]
fn servers_and_proxies_end_though_a_keyring_has_not_answered() {
    let bus = SilentBus::new();
    let config = json!({"mcpServers": {"asks": asking(true), "waits": asking(true)}});
    let proxy = Proxy::unready_under(&bus.export(), config, tempfile::tempdir().unwrap());
    let _question = until("the keyring is asked", || bus.asked());
    reload(&proxy, &json!({"mcpServers": {"waits": asking(true)}}));
    // The question stands though its server has gone.
    for _ in 0..50 {
        assert_eq!(state(&proxy, "waits"), "connecting", "{}", proxy.log());
        assert!(bus.asked().is_none(), "its user is asked one thing at a time");
    }
    let folder = proxy.end();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("did not answer"), "{log}");
}

#[test]
fn no_keyring_is_asked_for_a_server_that_is_switched_off() {
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
