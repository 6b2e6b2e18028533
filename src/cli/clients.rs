//! The programs that speak to MCP servers: where each keeps its list of them, and in which form.
//!
//! One table for `import` and `connect`. What is in a file is read in `clients::file`, a server's block
//! in `clients::block` and shown by `clients::shown`, what is written about us is `clients::entry`.

pub(super) mod block;
pub(super) mod entry;
pub(super) mod file;
pub(super) mod shown;

use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// A program whose config we know.
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

/// How its list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON, with comments where the program allows them; the key that the servers stand under.
    Json(&'static str),
    /// TOML; the table that they stand in.
    Toml(&'static str),
}

/// How it names a server that is reached by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// It starts commands alone.
    Unknown,
    /// `url` and `headers`.
    Url,
    /// The same with `"type": "http"`.
    TypedUrl,
    /// `serverUrl` and `headers`.
    ServerUrl,
    /// `url` and `http_headers`.
    HttpHeaders,
}

/// What is known of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientFacts {
    /// As people call it.
    pub(super) name: &'static str,
    /// Its file on Linux and on macOS; `~` is the home, `@` the folder of configs (`XDG_CONFIG_HOME`).
    linux: &'static str,
    macos: &'static str,
    pub(super) syntax: Syntax,
    pub(super) remote: Remote,
    /// What its user does to have the file read.
    pub(super) afterwards: &'static str,
}

const RESTART: &str = "Start it again.";

impl McpClient {
    /// All of them, in the order in which they are looked for.
    pub(super) const ALL: [Self; 7] = [
        Self::ClaudeDesktop,
        Self::ClaudeCode,
        Self::Cursor,
        Self::VsCode,
        Self::Windsurf,
        Self::Codex,
        Self::Zed,
    ];

    /// The word for it on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }

    /// What is known of it.
    pub(super) const fn known(self) -> ClientFacts {
        match self {
            Self::ClaudeDesktop => ClientFacts {
                name: "Claude Desktop",
                linux: "@/Claude/claude_desktop_config.json",
                macos: "~/Library/Application Support/Claude/claude_desktop_config.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::Unknown,
                afterwards: RESTART,
            },
            Self::ClaudeCode => ClientFacts {
                name: "Claude Code",
                linux: "~/.claude.json",
                macos: "~/.claude.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::TypedUrl,
                afterwards: "Sessions that begin from now on have it.",
            },
            Self::Cursor => ClientFacts {
                name: "Cursor",
                linux: "~/.cursor/mcp.json",
                macos: "~/.cursor/mcp.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::Url,
                afterwards: RESTART,
            },
            Self::VsCode => ClientFacts {
                name: "VS Code",
                linux: "@/Code/User/mcp.json",
                macos: "~/Library/Application Support/Code/User/mcp.json",
                syntax: Syntax::Json("servers"),
                remote: Remote::TypedUrl,
                afterwards: "Start it in VS Code with \"MCP: List Servers\".",
            },
            Self::Windsurf => ClientFacts {
                name: "Windsurf",
                linux: "~/.codeium/windsurf/mcp_config.json",
                macos: "~/.codeium/windsurf/mcp_config.json",
                syntax: Syntax::Json("mcpServers"),
                remote: Remote::ServerUrl,
                afterwards: "Refresh the servers in its Cascade panel.",
            },
            Self::Codex => ClientFacts {
                name: "Codex",
                linux: "~/.codex/config.toml",
                macos: "~/.codex/config.toml",
                syntax: Syntax::Toml("mcp_servers"),
                remote: Remote::HttpHeaders,
                afterwards: "Sessions that begin from now on have it.",
            },
            Self::Zed => ClientFacts {
                name: "Zed",
                linux: "@/zed/settings.json",
                macos: "~/.config/zed/settings.json",
                syntax: Syntax::Json("context_servers"),
                remote: Remote::Url,
                afterwards: "It reads its settings when they change.",
            },
        }
    }

    /// Its file in a project's folder, where it has one.
    pub(super) const fn project_file(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(".mcp.json"),
            Self::Cursor => Some(".cursor/mcp.json"),
            Self::VsCode => Some(".vscode/mcp.json"),
            Self::ClaudeDesktop | Self::Windsurf | Self::Codex | Self::Zed => None,
        }
    }

    /// Its file; `None` where there is no home.
    pub(super) fn path(self, env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        if let (Self::Codex, Some(home)) = (self, set("CODEX_HOME")) {
            return Some(Path::new(&home).join("config.toml"));
        }
        let known = self.known();
        let template = if cfg!(target_os = "macos") { known.macos } else { known.linux };
        if let (Some(rest), Some(folder)) = (template.strip_prefix("@/"), set("XDG_CONFIG_HOME")) {
            return Some(Path::new(&folder).join(rest));
        }
        let home = PathBuf::from(set("HOME")?);
        let rest = template.strip_prefix("~/").map(|rest| home.join(rest));
        rest.or_else(|| Some(home.join(".config").join(template.strip_prefix("@/")?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_file_where_the_environment_says() {
        let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        for client in McpClient::ALL {
            let path = client.path(&home).unwrap();
            assert!(path.starts_with("/h"), "{client:?}: {}", path.display());
            assert_eq!(client.path(&|_| None), None);
            let known = client.known();
            assert!(known.macos.starts_with("~/"), "{client:?}");
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
}
