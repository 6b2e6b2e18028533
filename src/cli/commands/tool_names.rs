//! Names and patterns of tools in the config and in tokens that no known tool matches.

use crate::terminal_safe::line;
use mcpproxy_catalog::persist;
use mcpproxy_config::Config;
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_policy::tool::Pattern;
use mcpproxy_runtime::nearest::nearest;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The tools stored for the servers of a config, read as they are needed.
pub(super) struct StoredTools<'c> {
    config: &'c Config,
    folder: PathBuf,
    /// By server; `None` if its tools are not known, because it was never connected.
    read: BTreeMap<String, Option<Vec<String>>>,
}

impl<'c> StoredTools<'c> {
    pub(super) fn new(config: &'c Config) -> Self {
        let folder = config.catalog().folder.unwrap_or_default();
        Self { config, folder, read: BTreeMap::new() }
    }

    fn of(&mut self, server: &str) -> Option<&[String]> {
        let Self { folder, read, .. } = self;
        let stored = || {
            let stored = persist::read(folder, server).ok().flatten()?;
            Some(stored.tools.iter().map(|tool| tool.name.to_string()).collect())
        };
        read.entry(server.to_owned()).or_insert_with(stored).as_deref()
    }

    /// Why no tool matches a name or pattern of the form `server:tool`; `None` if one does, or if the server's tools
    /// are not known.
    pub(super) fn unmatched(&mut self, typed: &str) -> Option<String> {
        let is_configured =
            |server: &str| self.config.servers.iter().any(|known| *known.name == *server);
        match typed.split_once(':') {
            Some((server, tool)) if is_configured(server) => self.unmatched_of(server, tool),
            // A pattern can match several servers.
            Some((before, _)) if before.contains('*') => None,
            None if typed.contains('*') => None,
            Some(_) | None => Some(format!("there is no tool '{}' at present", line(typed))),
        }
    }

    /// Like [`Self::unmatched`], for an entry of a token that permits these servers, or all if there are none. A name without a
    /// server is that of a tool of any server.
    pub(super) fn unmatched_of_token(&mut self, typed: &str, servers: &[String]) -> Option<String> {
        let configured = self.config.servers.iter().map(|server| server.name.to_string());
        let permitted = |name: &String| servers.is_empty() || servers.contains(name);
        let mut permitted_servers = configured.filter(permitted).collect::<Vec<_>>().into_iter();
        match typed.split_once(':') {
            Some((server, _)) if !server.contains('*') && !permitted(&server.to_owned()) => {
                Some(format!("'{}' is of a server that the token does not permit", line(typed)))
            }
            None if permitted_servers.any(|it| self.unmatched_of(&it, typed).is_none()) => None,
            Some(_) | None => self.unmatched(typed),
        }
    }

    /// Like [`Self::unmatched`], for a name or pattern without its server.
    fn unmatched_of(&mut self, server: &str, tool: &str) -> Option<String> {
        let known = self.of(server)?;
        let pattern = Pattern::from(Box::from(tool));
        if tool == "*" || known.iter().any(|name| pattern.matches(name)) {
            return None;
        }
        let nearest = nearest(tool, known.iter().map(String::as_str));
        let meant = nearest.map(|meant| format!(" (did you mean '{}'?)", line(meant)));
        let (server, tool) = (line(server), line(tool));
        Some(format!("server '{server}' has no tool '{tool}'{}", meant.unwrap_or_default()))
    }

    /// Warnings about settings of the config that apply to no tool.
    pub(super) fn unmatched_settings(&mut self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut warn = |key: String, why: Option<String>| {
            found.extend(why.map(|why| Problem {
                severity: Severity::Warning,
                file: None,
                place: None,
                text: format!("{}: {why}, so this setting has no effect", line(&key)),
                key,
            }));
        };
        let config = self.config;
        for server in config.servers.iter().filter(|server| server.upstream.enabled) {
            let settings = &server.tools;
            let named = [
                ("capabilities", settings.capabilities.iter().map(|(it, _)| it).collect()),
                ("enabled_tools", settings.enabled_tools.iter().flatten().collect::<Vec<_>>()),
                ("disabled_tools", settings.disabled_tools.iter().collect()),
                (
                    "output_validation.tools",
                    settings.output_validation.tools.iter().map(|(it, _)| it).collect(),
                ),
                (
                    "input_validation.tools",
                    settings.input_validation.tools.iter().map(|(it, _)| it).collect(),
                ),
                (
                    "result_limit.tools",
                    settings.result_limit.tools.iter().map(|(it, _)| it).collect(),
                ),
            ];
            for (key, pattern) in
                named.iter().flat_map(|(key, all)| all.iter().map(move |it| (key, it)))
            {
                let path = format!("mcpServers.{}.{key}.{}", server.name, pattern.as_str());
                warn(path, self.unmatched_of(&server.name, pattern.as_str()));
            }
        }
        for (pattern, _) in config.limits.tools.iter() {
            let path = format!("limits.tools.{}", pattern.as_str());
            warn(path, self.unmatched(pattern.as_str()));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_without_a_server_matches_no_tool() {
        let (config, _) = mcpproxy_config::parse(
            r#"{"data_dir": "/nonexistent", "mcpServers": {"files": {"command": "x"}}}"#,
            &|_| None,
            &mcpproxy_config::Flags::default(),
        )
        .unwrap();
        let mut stored = StoredTools::new(&config);
        for (typed, is_unmatched) in [
            ("files", true),
            ("read_file", true),
            ("other:read_file", true),
            ("files:read_file", false), // the tools of a server that was never connected are not known
            ("*", false),
            ("f*:read_file", false),
        ] {
            assert_eq!(stored.unmatched(typed).is_some(), is_unmatched, "{typed}");
        }
        for (typed, servers, is_unmatched) in [
            ("read_file", &[][..], false), // of any server, of which one is not known
            ("files:read_file", &["files"], false),
            ("files:read_file", &["other"], true),
            ("f*:read_file", &["files"], false),
            ("read_file", &["other"], true), // the config has no such server
        ] {
            let servers: Vec<_> = servers.iter().map(|name| (*name).to_owned()).collect();
            let unmatched = stored.unmatched_of_token(typed, &servers);
            assert_eq!(unmatched.is_some(), is_unmatched, "{typed} of {servers:?}: {unmatched:?}");
        }
    }
}
