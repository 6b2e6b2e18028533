//! What is written about us into a client's config: how it reaches this proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{McpClient, Remote};
use crate::downstream::api_key;

/// What we are called there.
pub(in crate::cli) const NAME: &str = "mcpproxy";

/// How this proxy is reached.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Ours<'a> {
    /// Where it listens, if any client gets there by HTTP. Else all start the command, which knows the way: to a Unix
    /// socket, or over TLS to a certificate that clients may not trust.
    pub(in crate::cli) listen: Option<SocketAddr>,
    /// The token that it is called with, if it asks for any.
    pub(in crate::cli) key: Option<&'a str>,
    /// This program.
    pub(in crate::cli) program: &'a Path,
    /// The config file, where it is not the one that is found without being named.
    pub(in crate::cli) config: Option<&'a Path>,
}

impl Ours<'_> {
    /// The MCP endpoint, as it is reached from this machine.
    fn url(listen: SocketAddr) -> String {
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}/mcp", SocketAddr::new(ip, listen.port()))
    }

    /// Whether a client gets here by HTTP; else it starts the command.
    pub(in crate::cli) fn is_remote(&self, client: McpClient) -> bool {
        self.listen.is_some() && client.known().remote != Remote::Unknown
    }

    /// The block for a client.
    pub(in crate::cli) fn members(&self, client: McpClient) -> Vec<(String, Value)> {
        let remote = client.known().remote;
        let mut members = Vec::new();
        let mut put = |key: &str, value: Value| members.push((key.to_owned(), value));
        let Some(listen) = self.listen.filter(|_| remote != Remote::Unknown) else {
            put("command", self.program.to_string_lossy().into());
            put("args", self.args().into());
            return members;
        };
        let (url, headers) = match remote {
            Remote::Unknown | Remote::Url => ("url", "headers"),
            Remote::TypedUrl => {
                put("type", "http".into());
                ("url", "headers")
            }
            Remote::ServerUrl => ("serverUrl", "headers"),
            Remote::HttpHeaders => ("url", "http_headers"),
        };
        put(url, Self::url(listen).into());
        if let Some(key) = self.key {
            put(headers, json!({api_key::HEADER: key}));
        }
        members
    }

    fn args(&self) -> Vec<String> {
        let config = self.config.map(|file| file.to_string_lossy().into_owned());
        let named = config.map(|file| vec!["--config".to_owned(), file]).unwrap_or_default();
        named.into_iter().chain(["stdio".to_owned()]).collect()
    }
}

/// What an entry of ours calls with.
pub(in crate::cli) fn key(block: &Value) -> Option<&str> {
    ["headers", "http_headers"]
        .iter()
        .find_map(|headers| block.get(*headers)?.get(api_key::HEADER)?.as_str())
}

/// Whether a block is about us: it starts this program, or is under our name and goes to this machine.
pub(in crate::cli) fn is_ours(name: &str, block: &Map<String, Value>) -> bool {
    let text = |key: &str| block.get(key).and_then(Value::as_str);
    let starts_us = text("command")
        .is_some_and(|command| Path::new(command).file_name().is_some_and(|file| file == NAME));
    let url = text("url").or_else(|| text("serverUrl")).and_then(|url| url::Url::parse(url).ok());
    let is_near = url.is_some_and(|url| match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(host)) => host == "localhost",
        None => false,
    });
    starts_us || (name == NAME && is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_told_in_its_form() {
        let ours = Ours {
            listen: "0.0.0.0:8080".parse().ok(),
            key: Some("k"),
            program: Path::new("/bin/mcpproxy"),
            config: Some(Path::new("/c.json")),
        };
        let url = "http://127.0.0.1:8080/mcp";
        let headers = json!({"x-api-key": "k"});
        for (client, expected) in [
            (
                McpClient::ClaudeDesktop,
                json!({"command": "/bin/mcpproxy", "args": ["--config", "/c.json", "stdio"]}),
            ),
            (McpClient::ClaudeCode, json!({"type": "http", "url": url, "headers": headers})),
            (McpClient::Cursor, json!({"url": url, "headers": headers})),
            (McpClient::VsCode, json!({"type": "http", "url": url, "headers": headers})),
            (McpClient::Windsurf, json!({"serverUrl": url, "headers": headers})),
            (McpClient::Codex, json!({"url": url, "http_headers": headers})),
            (McpClient::Zed, json!({"url": url, "headers": headers})),
        ] {
            let members: Map<_, _> = ours.members(client).into_iter().collect();
            assert!(is_ours(NAME, &members), "{client:?}");
            assert_eq!(Value::Object(members), expected, "{client:?}");
        }
        let by_command = Ours { listen: None, ..ours };
        let members: Map<_, _> = by_command.members(McpClient::Cursor).into_iter().collect();
        assert_eq!(members["args"], json!(["--config", "/c.json", "stdio"]));
        let theirs = json!({"command": "npx", "args": ["mcpproxy"]});
        assert!(!is_ours("mcpproxy", theirs.as_object().unwrap()));
    }
}
