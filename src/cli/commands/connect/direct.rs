//! Servers that a client reaches without the proxy, and their move to mcpproxy's config.
//!
//! A move first adds the servers to mcpproxy's config and makes a running proxy apply it. Only then are they removed
//! from the client's file, whose backup keeps them. An interrupted move leaves a server in both files, and the next
//! move only removes it from the client's file.

use crate::clients::backup::{back_up, backup, read, set_aside};
use crate::clients::file::{ClientText, EntryMembers};
use crate::clients::{self, McpClient, NAME};
use crate::commands::import::{self, Candidate, FoundServers};
use crate::error::CommandError;
use crate::hints;
use crate::output::Colors;
use crate::running_proxy::{self, ReloadReport};
use crate::terminal_safe::line;
use mcpproxy_config::edit::EditedJson;
use mcpproxy_config::edit_servers::Servers;
use mcpproxy_config::file::{self, Loaded, MAX_FILE_BYTES};
use mcpproxy_runtime::os::edited_file;
use mcpproxy_server as server;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Maximum number of servers named in a message, and of servers and projects named per list.
const SHOWN_SERVERS: usize = 10;

/// A server that the client reaches without the proxy.
struct DirectServer {
    /// The server's name at the client.
    name: String,
    /// The server's entry at the client.
    block: Value,
    handling: Handling,
}

/// Handling of a server in a move.
enum Handling {
    /// Added to mcpproxy's config, and removed from the client's file.
    Added(Box<Candidate>),
    /// Only removed from the client's file, because mcpproxy's config has it under this name.
    Present(String),
    /// Only removed from the client's file, because the server with this name is the same one. Requires that mcpproxy's
    /// config has this name by then.
    SameAs(String),
    /// Not moved, for this reason.
    Kept(String),
}

impl Handling {
    /// The server's name in mcpproxy's config, if it can be moved.
    fn ours(&self) -> Option<&String> {
        match self {
            Self::Added(candidate) => Some(&candidate.name),
            Self::Present(ours) | Self::SameAs(ours) => Some(ours),
            Self::Kept(_) => None,
        }
    }
}

/// All servers that a client reaches without the proxy.
pub(super) struct DirectServers {
    client: McpClient,
    /// Servers of the user-wide file.
    servers: Vec<DirectServer>,
    projects: Vec<ProjectServers>,
}

/// Servers that a client reaches only in one project. They are reported, and never moved.
struct ProjectServers {
    /// The project's directory, or its config file.
    place: String,
    /// Word before the place.
    word: &'static str,
    names: Vec<String>,
}

impl ProjectServers {
    /// The named place and its servers.
    fn words(&self) -> String {
        let names = self.names.iter().take(SHOWN_SERVERS).map(|name| line(name));
        let more = if self.names.len() > SHOWN_SERVERS { ", …" } else { "" };
        format!(
            "{}{}: {}{more}",
            self.word,
            line(&self.place),
            names.collect::<Vec<_>>().join(", ")
        )
    }
}

/// Result of a move.
#[derive(Default)]
pub(super) struct Moved {
    /// Names of the moved servers at the client.
    pub(super) names: Vec<String>,
    /// Report for people; empty if nothing was moved.
    pub(super) message: String,
}

/// Servers removed from a client's text.
struct Removed {
    names: Vec<String>,
    /// New path of an earlier backup that lacked one of the servers.
    kept: Option<String>,
}

impl DirectServers {
    /// Finds the servers in the text of a client's file. `members` is the entry for the proxy. An unreadable text has
    /// no servers.
    pub(super) fn find(
        client: McpClient,
        text: &str,
        members: &[(String, Value)],
        loaded: &Loaded,
    ) -> Self {
        let read = ClientText::read(text, client.facts().syntax).ok();
        let servers = read.as_ref().and_then(|text| text.servers().ok()).unwrap_or_default();
        let servers = without_proxy(servers, members);
        let of_projects = read.filter(|_| client == McpClient::ClaudeCode);
        let of_projects = of_projects.map(|text| text.of_projects()).unwrap_or_default();
        let projects = of_projects.into_iter().filter_map(|(project, servers)| {
            project_servers(("project ", project), servers, members)
        });
        let projects = projects.collect();
        let configured = configured(loaded);
        let mut found = FoundServers::default();
        import::sort_out(client, servers.iter().cloned().map(|it| (None, it)), &mut found);
        let mut present: Vec<(String, String)> = Vec::new();
        found.candidates.retain(|candidate| {
            let ours = configured.iter().find(|(_, ours)| covers(ours, &candidate.members));
            present.extend(ours.map(|(ours, _)| (candidate.original().to_owned(), ours.clone())));
            ours.is_none()
        });
        import::resolve_names(&mut found, &configured);
        let mut handling = |name: &str| {
            if let Some((_, ours)) = present.iter().find(|(known, _)| known == name) {
                return Handling::Present(ours.clone());
            }
            if let Some(at) = found.candidates.iter().position(|it| it.original() == name) {
                return Handling::Added(Box::new(found.candidates.remove(at)));
            }
            match found.skipped.iter().find(|skipped| skipped.name == name) {
                Some(skipped) => match &skipped.same_as {
                    Some(other) => Handling::SameAs(other.clone()),
                    None => Handling::Kept(skipped.why.clone()),
                },
                None => Handling::Kept("the client has too many servers".to_owned()),
            }
        };
        let servers = servers.into_iter().map(|(name, block)| {
            let handling = handling(&name);
            DirectServer { name, block, handling }
        });
        Self { client, servers: servers.collect(), projects }
    }

    /// Adds the servers of the client's config file in the project directory `folder`, unless that file is the
    /// user-wide one, `path`. An unreadable file has no servers.
    pub(super) fn with_project(
        mut self,
        folder: &Path,
        path: &Path,
        members: &[(String, Value)],
    ) -> Self {
        let file = self.client.project_file().map(|file| folder.join(file));
        let Some(file) = file.filter(|file| file != path) else { return self };
        let text = read(&file).ok().flatten();
        let text = text.and_then(|it| ClientText::read(&it, self.client.facts().syntax).ok());
        let servers = text.and_then(|text| text.servers().ok()).unwrap_or_default();
        self.projects.extend(project_servers(("", file.display().to_string()), servers, members));
        self
    }

    /// Servers of single projects as JSON.
    pub(super) fn projects_json(&self) -> Value {
        let json = |it: &ProjectServers| json!({"project": it.place, "servers": it.names});
        self.projects.iter().map(json).collect()
    }

    /// Servers that can be moved, in the order of their numbers in the preview.
    fn movable(&self) -> impl Iterator<Item = &DirectServer> {
        self.servers.iter().filter(|server| server.handling.ours().is_some())
    }

    /// Names of the servers that can be moved.
    pub(super) fn movable_names(&self) -> Vec<String> {
        self.movable().map(|server| server.name.clone()).collect()
    }

    /// Names of the servers that are in mcpproxy's config.
    pub(super) fn present_names(&self) -> impl Iterator<Item = &String> {
        let is_present = |it: &&DirectServer| matches!(it.handling, Handling::Present(_));
        self.servers.iter().filter(is_present).map(|server| &server.name)
    }

    /// Names of all servers except the moved ones.
    pub(super) fn names_without(&self, moved: &[String]) -> Vec<&String> {
        let names = self.servers.iter().map(|server| &server.name);
        names.filter(|name| !moved.contains(name)).collect()
    }

    /// Preview of a move.
    pub(super) fn shown(&self, path: &Path, loaded: &Loaded, colors: Colors) -> String {
        let mut shown = String::new();
        if self.movable().any(|server| matches!(server.handling, Handling::Added(_))) {
            let _ = writeln!(shown, "+++ {}", line(&loaded.path.display().to_string()));
        }
        for (at, server) in self.movable().enumerate() {
            let number = at + 1;
            let (client, name) = (self.client.facts().name, line(&server.name));
            let same = match &server.handling {
                Handling::Added(candidate) => {
                    shown += &import::shown_candidate(candidate, number, colors);
                    continue;
                }
                Handling::Present(ours) => {
                    format!("mcpproxy already has '{name}'{}", alias(server, ours))
                }
                Handling::SameAs(ours) => {
                    format!("'{name}' is the same server as '{}'", line(ours))
                }
                Handling::Kept(_) => continue,
            };
            let _ = writeln!(shown, "@@ {number} · {client} @@\n{same}: it is only removed there");
        }
        for server in &self.servers {
            if let Handling::Kept(why) = &server.handling {
                let _ = writeln!(shown, "not moved: '{}': {}", line(&server.name), line(why));
            }
        }
        for project in &self.projects {
            let _ = writeln!(shown, "not moved: in {}", project.words());
        }
        let file = path.display().to_string();
        let _ = writeln!(
            shown,
            "--- {}\nThe servers are removed there; a backup keeps them.",
            line(&file)
        );
        shown
    }

    /// Sentences that name all servers except the moved ones, and the next step; `None` if no servers remain.
    pub(super) fn hint(&self, moved: &[String], loaded: &Loaded) -> Option<String> {
        let left: Vec<_> = self.servers.iter().filter(|it| !moved.contains(&it.name)).collect();
        let named = left.iter().take(SHOWN_SERVERS).map(|server| {
            let name = line(&server.name);
            match &server.handling {
                Handling::Added(_) => name.into_owned(),
                Handling::Present(ours) => {
                    format!("{name} (mcpproxy has it{})", alias(server, ours))
                }
                Handling::SameAs(ours) => format!("{name} (the same as {})", line(ours)),
                Handling::Kept(why) => format!("{name} (not movable: {})", line(why)),
            }
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if left.len() > SHOWN_SERVERS { ", …" } else { "" };
        let next = match left.iter().any(|server| server.handling.ours().is_some()) {
            true if loaded.config.fleet_config.is_some() => {
                " Add them with `mcpproxy fleet apply`, then remove them there.".to_owned()
            }
            true => {
                let is_added = left.iter().any(|it| matches!(it.handling, Handling::Added(_)));
                let effect =
                    if is_added { "moves them into mcpproxy" } else { "removes them there" };
                let next = format!(" `mcpproxy connect {} --move` {effect}.", self.client.word());
                hints::commands(&next).into_owned()
            }
            false => String::new(),
        };
        let projects = self.projects.iter().take(SHOWN_SERVERS);
        let projects = projects.map(|project| format!("in {} (not moved)", project.words()));
        let more_projects = self.projects.len().saturating_sub(SHOWN_SERVERS);
        let more_projects = (more_projects > 0).then(|| format!("and in {more_projects} more"));
        let of_user = (!left.is_empty()).then(|| format!("{named}{more}"));
        let all: Vec<_> = of_user.into_iter().chain(projects).chain(more_projects).collect();
        (!all.is_empty()).then(|| {
            format!("It still reaches servers without mcpproxy: {}.{next}", all.join("; "))
        })
    }

    /// Moves the movable servers at these positions. A server whose entry has changed in the meantime is not moved.
    pub(super) fn carry_out(
        &self,
        chosen: &[usize],
        path: &Path,
        loaded: &Loaded,
    ) -> Result<Moved, CommandError> {
        let chosen: Vec<_> =
            self.movable().enumerate().filter(|(at, _)| chosen.contains(at)).collect();
        let added = chosen.iter().filter_map(|(_, server)| match &server.handling {
            Handling::Added(candidate) => Some(&**candidate),
            Handling::Present(_) | Handling::SameAs(_) | Handling::Kept(_) => None,
        });
        let configured = import::add(&loaded.path, added.clone()).map_err(CommandError::failed)?;
        let (client, file) = (self.client.facts().name, path.display().to_string());
        let not_removed = |why: &dyn std::fmt::Display| {
            CommandError::failed(format!(
                "{file}: {why}; mcpproxy has the servers, and {client} still reaches them directly: repeat the command"
            ))
        };
        let is_added = added.count() > 0;
        // The reload also runs if nothing was added, because an earlier addition may not be in force.
        let runtime = server::local_runtime().map_err(CommandError::failed)?;
        let (reloaded, _) = runtime.block_on(running_proxy::reload(loaded));
        let mut report = String::new();
        match reloaded {
            ReloadReport::NotRunning | ReloadReport::InForce(_) if !is_added => {}
            ReloadReport::NotRunning | ReloadReport::InForce(_) => {
                report = format!(" {}", reloaded.message());
            }
            ReloadReport::NeedsRestart | ReloadReport::Refused(_) | ReloadReport::Unknown(_) => {
                return Err(not_removed(&reloaded.message()));
            }
        }
        let is_ours = |server: &DirectServer| {
            server.handling.ours().is_some_and(|ours| configured.contains(ours))
        };
        let removable: Vec<_> =
            chosen.into_iter().map(|(_, server)| server).filter(|it| is_ours(it)).collect();
        let removed = edited_file::edit(path, MAX_FILE_BYTES, |text| {
            self.without(&removable, path, text.unwrap_or_default())
        });
        let Removed { names, kept } = removed.map_err(|error| not_removed(&error))?;
        let mut message = self.moved(&names) + &report;
        if let Some(kept) = kept {
            let _ = write!(message, " The earlier backup is kept as {}.", line(&kept));
        }
        Ok(Moved { names, message })
    }

    /// Sentences about servers that are no longer in the client's file.
    fn moved(&self, removed: &[String]) -> String {
        let (mut added, mut present) = (Vec::new(), Vec::new());
        for server in self.servers.iter().filter(|it| removed.contains(&it.name)) {
            let name = line(&server.name);
            match &server.handling {
                Handling::Added(_) => added.push(name.into_owned()),
                Handling::Present(ours) | Handling::SameAs(ours) => {
                    present.push(format!("{name} (mcpproxy has it{})", alias(server, ours)));
                }
                Handling::Kept(_) => {}
            }
        }
        let moved =
            format!("Moved {} into mcpproxy: {}.", import::servers(added.len()), added.join(", "));
        let client = self.client.facts().name;
        let dropped = format!("Removed from {client}: {}.", present.join(", "));
        match (added.is_empty(), present.is_empty()) {
            (true, true) => "No server was moved.".to_owned(),
            (false, true) => moved,
            (true, false) => dropped,
            (false, false) => format!("{moved} {dropped}"),
        }
    }

    /// Question whether to move all movable servers.
    pub(super) fn question(&self) -> String {
        let count = |is_added: bool| {
            let added = |it: &&DirectServer| matches!(it.handling, Handling::Added(_)) == is_added;
            self.movable().filter(added).count()
        };
        let client = self.client.facts().name;
        match (import::servers(count(true)), import::servers(count(false))) {
            (added, _) if count(false) == 0 => {
                format!("Move {added} into mcpproxy? A running proxy starts them at once.")
            }
            (_, present) if count(true) == 0 => {
                format!("Remove {present} that mcpproxy already has from the config of {client}?")
            }
            (added, present) => format!(
                "Move {added} into mcpproxy, and remove {present} that mcpproxy already has from the config of \
                 {client}? A running proxy starts the moved ones at once."
            ),
        }
    }

    /// Removes servers from the client's text and ensures that a backup contains them.
    fn without(
        &self,
        servers: &[&DirectServer],
        path: &Path,
        text: &str,
    ) -> Result<(Option<String>, Removed), String> {
        let syntax = self.client.facts().syntax;
        let mut next = ClientText::read(text, syntax)?;
        let is_unchanged = |text: &ClientText, server: &DirectServer| {
            text.server(&server.name).as_ref() == Some(&server.block)
        };
        let mut removed = Vec::new();
        for server in servers {
            if is_unchanged(&next, server) && next.remove(&server.name)? {
                removed.push(*server);
            }
        }
        let no_backup = |why: &dyn std::fmt::Display| format!("cannot write a backup: {why}");
        let saved = read(&backup(path)).map_err(|error| no_backup(&error.message))?;
        let parsed = saved.as_ref().and_then(|saved| ClientText::read(saved, syntax).ok());
        let mut kept = None;
        let is_backed_up =
            |it: &&DirectServer| parsed.as_ref().is_some_and(|saved| is_unchanged(saved, it));
        if !removed.iter().all(is_backed_up) {
            if saved.is_some() {
                kept = set_aside(path).map_err(|error| no_backup(&error))?.into();
            }
            let mut before = ClientText::read(text, syntax)?;
            before.remove(NAME)?;
            back_up(path, &before.text()).map_err(|error| no_backup(&error))?;
        }
        let names = removed.into_iter().map(|server| server.name.clone()).collect();
        Ok((Some(next.text()), Removed { names, kept }))
    }
}

/// Servers that are not an entry for the proxy; `members` is such an entry.
fn without_proxy(
    mut servers: Vec<(String, Value)>,
    members: &[(String, Value)],
) -> Vec<(String, Value)> {
    servers.retain(|(name, block)| {
        let is_own = block.as_object().is_some_and(|it| clients::is_own_entry(name, it));
        name != NAME && !is_own && !clients::has_url_of(block, members)
    });
    servers
}

/// The servers of one project; `None` if it has none but the proxy.
fn project_servers(
    (word, place): (&'static str, String),
    servers: Vec<(String, Value)>,
    members: &[(String, Value)],
) -> Option<ProjectServers> {
    let servers = without_proxy(servers, members).into_iter();
    let names: Vec<_> = servers.map(|(name, _)| name).collect();
    (!names.is_empty()).then_some(ProjectServers { place, word, names })
}

/// The server's name in mcpproxy's config, if it differs from the client's.
fn alias(server: &DirectServer, ours: &str) -> String {
    if server.name == ours { String::new() } else { format!(" as '{}'", line(ours)) }
}

/// Servers in mcpproxy's config; empty if its file cannot be read again.
fn configured(loaded: &Loaded) -> Vec<(String, Value)> {
    let text = file::text(&loaded.path).ok();
    let json = text.and_then(|text| EditedJson::new(&text).ok());
    json.map(|json| Servers(&json).all()).unwrap_or_default()
}

/// Whether an entry in mcpproxy's config replaces a client's entry: it is enabled if the client's is, and has the same
/// command, arguments and folder or URL, and the same variables and headers with the same values or references. Servers
/// that differ in a value, such as the URL of a database, are different servers.
fn covers(ours: &Value, members: &EntryMembers) -> bool {
    let theirs = |key: &str| members.iter().find(|(it, _)| it == key).map(|(_, value)| value);
    let is_empty = |value: &&Value| value.as_array().is_some_and(Vec::is_empty);
    let is_same = |key: &str| ours.get(key).filter(|it| !is_empty(it)) == theirs(key);
    let has_the_same = |key: &str| {
        let none = Map::new();
        let wanted = theirs(key).and_then(Value::as_object).unwrap_or(&none);
        let known = ours.get(key).and_then(Value::as_object).unwrap_or(&none);
        let is_reference = |known: &Value| known.as_str().is_some_and(|known| known.contains("${"));
        known.len() == wanted.len()
            && wanted.iter().all(|(name, value)| {
                known.get(name).is_some_and(|known| known == value || is_reference(known))
            })
    };
    let is_off = |enabled: Option<&Value>| enabled == Some(&Value::Bool(false));
    ["command", "args", "url", "cwd"].into_iter().all(is_same)
        && ["env", "headers"].into_iter().all(has_the_same)
        && (!is_off(ours.get("enabled")) || is_off(theirs("enabled")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use crate::clients::file;
    use crate::start_proxy;
    use clap::Parser as _;

    #[test]
    fn servers_of_projects_are_named_and_not_moved() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        let cli = ["mcpproxy", "-c", config.to_str().unwrap(), "init"];
        let loaded = start_proxy::load_or_default(&Cli::parse_from(cli).global, None).unwrap();
        let (url, proxy) = ("http://127.0.0.1:8080/mcp", json!({"command": "mcpproxy"}));
        let members = [("url".to_owned(), json!(url))];
        let text = json!({
            "mcpServers": {"time": {"command": "time"}, "mcpproxy": {"url": url}},
            "projects": {
                "/path/proj": {"mcpServers": {"everything2": {"command": "all"}, "proxy": proxy}},
                "/path/none": {"mcpServers": {"mcpproxy": {"url": url}}},
                "/path/empty": {},
            },
        });
        let text = text.to_string();
        let code = DirectServers::find(McpClient::ClaudeCode, &text, &members, &loaded);
        assert_eq!(code.movable_names(), ["time"]);
        assert_eq!(
            code.hint(&[], &loaded).unwrap(),
            "It still reaches servers without mcpproxy: time; in project /path/proj: everything2 (not moved). \
             `mcpproxy connect claude-code --move` moves them into mcpproxy."
        );
        let moved = ["time".to_owned()];
        assert_eq!(
            code.hint(&moved, &loaded).unwrap(),
            "It still reaches servers without mcpproxy: in project /path/proj: everything2 (not moved)."
        );
        let shown = code.shown(Path::new("/c.json"), &loaded, Colors::Plain);
        assert!(shown.contains("not moved: in project /path/proj: everything2\n"), "{shown}");
        let expected = json!([{"project": "/path/proj", "servers": ["everything2"]}]);
        assert_eq!(code.projects_json(), expected);

        let file = folder.path().join(".cursor/mcp.json");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, json!({"mcpServers": {"sqlite": {"command": "s"}}}).to_string())
            .unwrap();
        let cursor = |path: &Path| {
            let found = DirectServers::find(McpClient::Cursor, "{}", &members, &loaded);
            found.with_project(folder.path(), path, &members).hint(&[], &loaded)
        };
        let expected = format!("in {}: sqlite (not moved).", file.display());
        assert!(cursor(Path::new("/c.json")).unwrap().ends_with(&expected));
        assert_eq!(cursor(&file), None, "the file is the user-wide one");
    }

    #[test]
    fn entry_is_covered_only_with_the_same_target_and_each_value_or_a_reference() {
        let theirs = json!({"command": "db", "args": ["-y"], "env": {"URL": "prod"}});
        let members = file::members(&theirs).unwrap();
        for (ours, expected) in [
            (theirs.clone(), true),
            (json!({"command": "db", "args": ["-y"], "env": {"URL": "prod", "B": "c"}}), false),
            (json!({"command": "db", "args": ["-y"], "env": {"URL": "prod"}, "cwd": "/x"}), false),
            (
                json!({"command": "db", "args": ["-y"], "env": {"URL": "prod"}, "enabled": false}),
                false,
            ),
            (json!({"command": "db", "args": ["-y"], "env": {"URL": "${keyring:db/url}"}}), true),
            (json!({"command": "db", "args": ["-y"], "env": {"URL": "test"}}), false),
            (json!({"command": "db", "args": ["-y"]}), false),
            (json!({"command": "db", "args": [], "env": {"URL": "prod"}}), false),
            (json!({"url": "https://h/mcp"}), false),
        ] {
            assert_eq!(covers(&ours, &members), expected, "{ours}");
        }
        let members = file::members(&json!({"command": "x", "cwd": "/a"})).unwrap();
        assert!(!covers(&json!({"command": "x"}), &members), "it runs in another folder");
        assert!(covers(&json!({"command": "x", "args": [], "cwd": "/a"}), &members));
    }
}
