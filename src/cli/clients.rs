//! Facts about MCP clients for `import` and `connect`: location and format of their server lists, and the entry that
//! points a client to this proxy.
//!
//! `clients::file` parses and renders files and server blocks; `clients::preview` shows them.

pub(super) use self::file::Syntax;
use clap::ValueEnum;
use mcpproxy_downstream::authentication;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub(super) mod backup;
pub(super) mod file;
pub(super) mod preview;

/// A supported client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum McpClient {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    #[value(name = "vscode")]
    VsCode,
    Windsurf,
    Codex,
    Zed,
}

/// Form of an entry for a server reached over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// HTTP is not supported, because the client only starts commands.
    Unknown,
    /// Entry with `url` and `headers`.
    Url,
    /// Entry with `url` and `headers` with `"type": "http"`.
    TypedUrl,
    /// Entry with `serverUrl` and `headers`.
    ServerUrl,
    /// Entry with `url` and `http_headers`.
    HttpHeaders,
}

/// Static facts about a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientFacts {
    /// Display name.
    pub(super) name: &'static str,
    /// Config file on Linux and macOS; `~` stands for the home directory, `@` for the config directory (`XDG_CONFIG_HOME`).
    linux: &'static str,
    macos: &'static str,
    pub(super) syntax: Syntax,
    pub(super) remote: Remote,
    /// Step by which the user makes the client reload the file.
    pub(super) afterwards: &'static str,
    /// Place where the user permits its tools, if the guide describes it.
    pub(super) permissions: Option<&'static str>,
}

const RESTART: &str = "Restart it.";

impl McpClient {
    /// All clients, in search order.
    pub(super) const ALL: [Self; 7] = [
        Self::ClaudeDesktop,
        Self::ClaudeCode,
        Self::Cursor,
        Self::VsCode,
        Self::Windsurf,
        Self::Codex,
        Self::Zed,
    ];

    /// Name on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) const fn facts(self) -> ClientFacts {
        match self {
            Self::ClaudeDesktop => ClientFacts {
                name: "Claude Desktop",
                linux: "@/Claude/claude_desktop_config.json",
                macos: "~/Library/Application Support/Claude/claude_desktop_config.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::Unknown,
                afterwards: RESTART,
                permissions: Some("Settings → Connectors → mcpproxy"),
            },
            Self::ClaudeCode => ClientFacts {
                name: "Claude Code",
                linux: "~/.claude.json",
                macos: "~/.claude.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::TypedUrl,
                afterwards: "New sessions use it.",
                permissions: Some("~/.claude/settings.json"),
            },
            Self::Cursor => ClientFacts {
                name: "Cursor",
                linux: "~/.cursor/mcp.json",
                macos: "~/.cursor/mcp.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::Url,
                afterwards: RESTART,
                permissions: Some("~/.cursor/permissions.json"),
            },
            Self::VsCode => ClientFacts {
                name: "VS Code",
                linux: "@/Code/User/mcp.json",
                macos: "~/Library/Application Support/Code/User/mcp.json",
                syntax: Syntax::Json("servers"),
                remote: Remote::TypedUrl,
                afterwards: "Start it in VS Code with \"MCP: List Servers\".",
                permissions: Some("Chat: Manage Tool Approval"),
            },
            Self::Windsurf => ClientFacts {
                name: "Windsurf",
                linux: "~/.codeium/windsurf/mcp_config.json",
                macos: "~/.codeium/windsurf/mcp_config.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::ServerUrl,
                afterwards: "Refresh the servers in its Cascade panel.",
                permissions: None,
            },
            Self::Codex => ClientFacts {
                name: "Codex",
                linux: "~/.codex/config.toml",
                macos: "~/.codex/config.toml",
                syntax: Syntax::Toml("mcp_servers"),
                remote: Remote::HttpHeaders,
                afterwards: "New sessions use it.",
                permissions: Some("~/.codex/config.toml"),
            },
            Self::Zed => ClientFacts {
                name: "Zed",
                linux: "@/zed/settings.json",
                macos: "~/.config/zed/settings.json",
                syntax: Syntax::Json("context_servers"),
                remote: Remote::Url,
                afterwards: "It reads its settings when they change.",
                permissions: Some("~/.config/zed/settings.json"),
            },
        }
    }

    /// Per-project config file, if the client has one.
    pub(super) const fn project_file(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(".mcp.json"),
            Self::Cursor => Some(".cursor/mcp.json"),
            Self::VsCode => Some(".vscode/mcp.json"),
            Self::ClaudeDesktop | Self::Windsurf | Self::Codex | Self::Zed => None,
        }
    }

    /// User-wide config file; `None` without a home directory.
    pub(super) fn path(self, env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        if let (Self::Codex, Some(home)) = (self, set("CODEX_HOME")) {
            return Some(Path::new(&home).join("config.toml"));
        }
        let facts = self.facts();
        let template = if cfg!(target_os = "macos") { facts.macos } else { facts.linux };
        if let (Some(rest), Some(folder)) = (template.strip_prefix("@/"), set("XDG_CONFIG_HOME")) {
            return Some(Path::new(&folder).join(rest));
        }
        let home = PathBuf::from(set("HOME")?);
        let rest = template.strip_prefix("~/").map(|rest| home.join(rest));
        rest.or_else(|| Some(home.join(".config").join(template.strip_prefix("@/")?)))
    }
}

/// Name of mcpproxy's entry.
pub(crate) const NAME: &str = "mcpproxy";

/// Address and credentials by which clients reach this proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyEntry<'a> {
    /// Listen address if clients can use plain HTTP. `None` for a Unix socket, or for TLS with a certificate that
    /// clients may not trust; clients then start the command.
    pub(crate) listen: Option<SocketAddr>,
    /// API key, if one is required.
    pub(crate) key: Option<&'a str>,
    /// Path of this program.
    pub(crate) program: &'a Path,
    /// The config file, if it is not the default one.
    pub(crate) config: Option<&'a Path>,
}

impl ProxyEntry<'_> {
    /// The MCP endpoint as reached from this machine.
    fn url(listen: SocketAddr) -> String {
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}/mcp", SocketAddr::new(ip, listen.port()))
    }

    /// Whether a client uses HTTP rather than the command.
    pub(crate) fn is_remote(&self, client: McpClient) -> bool {
        self.listen.is_some() && client.facts().remote != Remote::Unknown
    }

    /// Members of the client's entry.
    pub(crate) fn members(&self, client: McpClient) -> Vec<(String, Value)> {
        let remote = client.facts().remote;
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
            put(headers, json!({authentication::HEADER: key}));
        }
        members
    }

    fn args(&self) -> Vec<String> {
        let config = self.config.map(|file| file.to_string_lossy().into_owned());
        let named = config.map(|file| vec!["--config".to_owned(), file]).unwrap_or_default();
        named.into_iter().chain(["stdio".to_owned()]).collect()
    }
}

/// API key in an entry written by mcpproxy.
pub(crate) fn key(block: &Value) -> Option<&str> {
    ["headers", "http_headers"]
        .iter()
        .find_map(|headers| block.get(*headers)?.get(authentication::HEADER)?.as_str())
}

/// Whether an entry points to this proxy: it starts this program, or has mcpproxy's name and a local URL.
pub(crate) fn is_own_entry(name: &str, block: &Map<String, Value>) -> bool {
    let text = |key: &str| block.get(key).and_then(Value::as_str);
    let starts_us = text("command")
        .is_some_and(|command| Path::new(command).file_name().is_some_and(|file| file == NAME));
    let url = text("url").or_else(|| text("serverUrl")).and_then(|url| url::Url::parse(url).ok());
    let is_local = url.is_some_and(|url| match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(host)) => host == "localhost",
        None => false,
    });
    starts_us || (name == NAME && is_local)
}

/// Whether an entry has the URL of `members`.
pub(crate) fn has_url_of(block: &Value, members: &[(String, Value)]) -> bool {
    ["url", "serverUrl"].iter().any(|key| {
        members.iter().any(|(name, value)| name == key && block.get(*key) == Some(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a page has this text, also across a line break.
    fn has_words(page: &str, text: &str) -> bool {
        page.split_whitespace().collect::<Vec<_>>().join(" ").contains(text)
    }

    #[test]
    fn client_files_follow_the_environment() {
        let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        for client in McpClient::ALL {
            let path = client.path(&home).unwrap();
            assert!(path.starts_with("/h"), "{client:?}: {}", path.display());
            assert_eq!(client.path(&|_| None), None);
            let facts = client.facts();
            assert!(facts.macos.starts_with("~/"), "{client:?}");
            let guide = include_str!("../guide/clients.md");
            assert!(facts.permissions.is_none_or(|it| has_words(guide, it)), "{client:?}");
        }
        let set = |name: &str| match name {
            "HOME" => Some("/h".to_owned()),
            "XDG_CONFIG_HOME" => Some("/x".to_owned()),
            "CODEX_HOME" => Some("/c".to_owned()),
            _ => None,
        };
        assert_eq!(McpClient::Codex.path(&set), Some("/c/config.toml".into()));
        if cfg!(target_os = "linux") {
            assert_eq!(McpClient::Zed.path(&set), Some("/x/zed/settings.json".into()));
            assert_eq!(McpClient::VsCode.path(&home), Some("/h/.config/Code/User/mcp.json".into()));
        }
        let words = McpClient::ALL.map(McpClient::word);
        assert_eq!(
            words,
            ["claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "codex", "zed"]
        );
    }

    #[test]
    fn entry_uses_each_clients_form() {
        let ours = ProxyEntry {
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
            assert!(is_own_entry(NAME, &members), "{client:?}");
            assert_eq!(Value::Object(members), expected, "{client:?}");
        }
        let by_command = ProxyEntry { listen: None, ..ours };
        let members: Map<_, _> = by_command.members(McpClient::Cursor).into_iter().collect();
        assert_eq!(members["args"], json!(["--config", "/c.json", "stdio"]));
        let theirs = json!({"command": "npx", "args": ["mcpproxy"]});
        assert!(!is_own_entry("mcpproxy", theirs.as_object().unwrap()));
    }
}
