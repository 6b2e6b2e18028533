//! `mcpproxy import`: finds the servers of other programs, shows them and adds them to the config.
//!
//! Entries are treated as data, and nothing is run. Commands are shown in full; values of variables and headers are
//! copied but not shown. An unreadable file does not prevent the import of other files.

use crate::args::{Global, ImportArgs};
use crate::clients::file::{ClientText, EntryMembers, PROMPT};
use crate::clients::{McpClient, file as client_file, preview};
use crate::error::CommandError;
use crate::output::{Colors, Output, choose, declined};
use crate::terminal_safe::line;
use crate::{clients, running_proxy, start_proxy};
use mcpproxy_config::edit::EditedJson;
use mcpproxy_config::edit_servers::{Servers, check_new_name};
use mcpproxy_config::file::MAX_FILE_BYTES;
use mcpproxy_config::problem::Problem;
use mcpproxy_config::{check_new_server, file};
use mcpproxy_runtime::os::edited_file;
use mcpproxy_runtime::os::edited_file::EditFailure;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Maximum number of servers per client.
const MAX_SERVERS: usize = 500;

/// A server that can be added.
pub(super) struct Candidate {
    client: McpClient,
    /// The project directory or file, if the server is specific to a project.
    project: Option<String>,
    pub(super) name: String,
    /// The original name, if it was changed.
    renamed: Option<String>,
    pub(super) members: EntryMembers,
    /// Settings that behave differently in mcpproxy, or do not work on this machine.
    warnings: Vec<String>,
}

impl Candidate {
    /// The server's name at the client.
    pub(super) fn original(&self) -> &str {
        self.renamed.as_ref().unwrap_or(&self.name)
    }
}

/// A server that is not imported.
pub(super) struct SkippedServer {
    client: McpClient,
    /// The server's name at the client.
    pub(super) name: String,
    pub(super) why: String,
    /// Name under which mcpproxy's config already has this server, if that is why it was skipped.
    pub(super) same_as: Option<String>,
}

/// Result of the search.
#[derive(Default)]
pub(super) struct FoundServers {
    pub(super) candidates: Vec<Candidate>,
    pub(super) skipped: Vec<SkippedServer>,
    /// Unreadable files with the reason.
    unreadable: Vec<(McpClient, PathBuf, String)>,
    /// Paths that were searched, and whether each file exists.
    searched: Vec<(PathBuf, bool)>,
    /// Number of files read.
    read: usize,
}

impl FoundServers {
    fn skip(&mut self, client: McpClient, name: String, why: String, same_as: Option<String>) {
        self.skipped.push(SkippedServer { client, name, why, same_as });
    }
}

/// Runs the command.
pub(super) fn run(
    flags: &ImportArgs,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    start_proxy::refuse_for_fleet(&loaded)?;
    let named = !flags.clients.is_empty();
    let clients = if named { flags.clients.as_slice() } else { &McpClient::ALL };
    let text = edited_file::read::<String>(&loaded.path, MAX_FILE_BYTES);
    let text = text.map_err(CommandError::failed)?.map(|(text, _)| text).unwrap_or_default();
    let ours = EditedJson::new(&text).map_err(CommandError::failed)?;
    let mut found = FoundServers::default();
    for client in clients {
        search_client(*client, &mut found);
    }
    let configured = Servers(&ours).all();
    resolve_names(&mut found, &configured);
    keep_named(&mut found, &flags.servers, &configured)?;
    let file = loaded.path.display().to_string();
    if found.candidates.is_empty() || flags.dry_run {
        let answer = answer(&found, &file, None);
        output.print(&answer.to_string(), |_| {
            let shown = shown(&found, &file, output.view.colors);
            if found.candidates.is_empty() { shown + &nothing(&found) } else { shown }
        })?;
        return outcome(&found, named);
    }
    let count = found.candidates.len();
    let question =
        format!("Add {} to {}? A running proxy starts them at once.", servers(count), line(&file));
    let shown = shown(&found, &file, output.stderr_colors);
    let chosen = choose(&shown, &question, count, flags.yes)?;
    if chosen.is_empty() {
        return declined();
    }
    let mut at = 0..;
    found.candidates.retain(|_| at.next().is_some_and(|at| chosen.contains(&at)));
    add(&loaded.path, found.candidates.iter()).map_err(CommandError::failed)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, _) = runtime.block_on(running_proxy::reload(&loaded));
    let answer = answer(&found, &file, Some(reloaded.json()));
    output.print(&answer.to_string(), |_| {
        format!("Added {}. {}", servers(found.candidates.len()), reloaded.message())
    })?;
    outcome(&found, named)
}

/// Adds servers to mcpproxy's config. Returns the names of all servers that it then has.
pub(super) fn add<'c>(
    path: &Path,
    candidates: impl Iterator<Item = &'c Candidate> + Clone,
) -> Result<Vec<String>, Problem> {
    file::edit(path, |text| {
        let mut json = EditedJson::new(text).map_err(|error| error.to_string())?;
        for Candidate { name, members, .. } in candidates.clone() {
            if Servers(&json).find(name).is_some() {
                return Err(format!("server '{name}' was added meanwhile: run the command again"));
            }
            json = Servers(&json).add(name, members).map_err(|error| error.to_string())?;
        }
        let names = Servers(&json).all().into_iter().map(|(name, _)| name).collect();
        Ok((Some(json.text().to_owned()), names))
    })
}

/// Reads a client's user-wide servers, and the servers of the current directory.
fn search_client(client: McpClient, found: &mut FoundServers) {
    let Some(path) = client.path(&start_proxy::variable) else { return };
    read(client, &path, false, found);
    if let Some(file) = client.project_file()
        && let Ok(folder) = std::env::current_dir()
        && folder.join(file) != path
    {
        read(client, &folder.join(file), true, found);
    }
}

/// Reads one file of a client.
fn read(client: McpClient, path: &Path, is_project: bool, found: &mut FoundServers) {
    let text = edited_file::read::<String>(path, MAX_FILE_BYTES);
    found.searched.push((path.to_owned(), !matches!(text, Ok(None))));
    let text = match text {
        Ok(Some((text, _))) => text,
        Ok(None) => return,
        Err(
            error @ (EditFailure::Io(_)
            | EditFailure::Unreadable(_)
            | EditFailure::Busy
            | EditFailure::Changing
            | EditFailure::Refused(_)),
        ) => {
            return found.unreadable.push((client, path.to_owned(), error.to_string()));
        }
    };
    let read = ClientText::read(&text, client.facts().syntax);
    let (servers, of_projects) =
        match read.and_then(|text| Ok((text.servers()?, text.of_projects()))) {
            Ok(read) => read,
            Err(why) => return found.unreadable.push((client, path.to_owned(), why)),
        };
    found.read += 1;
    let file = is_project.then(|| path.display().to_string());
    let of_projects = of_projects.into_iter().filter(|_| client == McpClient::ClaudeCode);
    let of_projects = of_projects.flat_map(|(project, servers)| {
        servers.into_iter().map(move |server| (Some(project.clone()), server))
    });
    let all = servers.into_iter().map(|server| (file.clone(), server)).chain(of_projects);
    sort_out(client, all, found);
}

/// Converts a client's servers, each with its project directory or file, to candidates if mcpproxy can use them.
pub(super) fn sort_out(
    client: McpClient,
    servers: impl Iterator<Item = (Option<String>, (String, Value))>,
    found: &mut FoundServers,
) {
    for (at, (project, (original, block))) in servers.enumerate() {
        let mut skip = |why: &str| found.skip(client, original.clone(), why.to_owned(), None);
        if at >= MAX_SERVERS {
            return skip(&format!("more than {MAX_SERVERS} servers"));
        }
        if block.as_object().is_some_and(|block| clients::is_own_entry(&original, block)) {
            skip("it is mcpproxy itself");
            continue;
        }
        let Some(name) = client_file::name(&original) else {
            skip("its name cannot be used here");
            continue;
        };
        match client_file::members(&block) {
            Err(why) => skip(&why),
            Ok(members) => {
                let warnings = entry_warnings(&name, &block, &members);
                let renamed = (name != original).then_some(original);
                found.candidates.push(Candidate {
                    client,
                    project,
                    name,
                    renamed,
                    members,
                    warnings,
                });
            }
        }
    }
}

/// Keeps the named servers. Each name, as used by mcpproxy or by the client, must match a candidate.
fn keep_named(
    found: &mut FoundServers,
    names: &[String],
    configured: &[(String, Value)],
) -> Result<(), CommandError> {
    let is_named = |candidate: &Candidate, name: &String| {
        candidate.name == *name || candidate.renamed.as_ref() == Some(name)
    };
    let is_absent = |name: &&String| !found.candidates.iter().any(|it| is_named(it, name));
    if let Some(absent) = names.iter().find(is_absent) {
        let skipped = found.skipped.iter().find(|skipped| skipped.name == *absent);
        let is_configured = configured.iter().any(|(name, _)| name == absent);
        let name = line(absent);
        let text = match skipped {
            Some(it) if it.same_as.as_ref() != Some(absent) => {
                format!("server '{name}' of {} is not imported: {}", it.client.facts().name, it.why)
            }
            Some(_) | None if is_configured => {
                format!("server '{name}' is already in the config")
            }
            Some(_) | None => {
                format!("no server '{name}' to import: see mcpproxy import --dry-run")
            }
        };
        return Err(CommandError::failed(text));
    }
    if !names.is_empty() {
        found.candidates.retain(|candidate| names.iter().any(|name| is_named(candidate, name)));
    }
    Ok(())
}

/// Warnings about an entry: its own, those that `config check` gives for it and for its original, and one for each
/// other key that is not imported.
fn entry_warnings(name: &str, original: &Value, members: &EntryMembers) -> Vec<String> {
    let dropped: Vec<_> = client_file::not_imported(original, members).collect();
    let known = ["type", "transport"].into_iter().filter_map(|key| Some((key, original.get(key)?)));
    let others = dropped.iter().map(|(key, value)| (key.as_str(), *value));
    let others = others.filter(|(key, _)| !client_file::is_of_other_kind(key));
    let of_original = known.chain(others).map(|(key, value)| (key.to_owned(), value.clone()));
    let entry = Value::Object(of_original.chain(members.iter().cloned()).collect());
    let checked = check_new_server(name, &entry, &|name| std::env::var(name).ok());
    let is_named = |key: &str| {
        let rests = checked.iter().filter_map(|warning| warning.strip_prefix(key));
        rests.into_iter().any(|rest| rest.starts_with([':', '.', '[']))
    };
    let unnamed = dropped.iter().filter(|(key, _)| !is_named(key));
    let unnamed =
        unnamed.map(|(key, _)| format!("{key}: not imported: add it to the config by hand"));
    let unnamed: Vec<_> = unnamed.collect();
    let prompts =
        members.iter().any(|(_, it)| client_file::has_text(it, &|it| it.contains(PROMPT)));
    let disabled = prompts
        .then(|| format!("disabled: give the value, then run mcpproxy upstream enable {name}"));
    preview::warnings(members).into_iter().chain(checked).chain(unnamed).chain(disabled).collect()
}

/// Whether an entry has `enabled: false`.
fn is_disabled(members: &EntryMembers) -> bool {
    members.iter().any(|(key, value)| key == "enabled" && *value == Value::Bool(false))
}

/// Drops servers that are already configured under any name, enabled or not, and renames servers whose name is taken.
/// Servers of single projects come after the user-wide ones, and disabled servers after enabled ones, which therefore
/// keep their names.
pub(super) fn resolve_names(found: &mut FoundServers, configured: &[(String, Value)]) {
    let known = configured.iter().map(|(name, block)| (name.clone(), client_file::members(block)));
    let mut configured: Vec<_> = known.map(|(name, members)| (name, members.ok())).collect();
    let same = |a: &Option<EntryMembers>, b: &EntryMembers| {
        let sorted = |members: &EntryMembers| {
            let others = members.iter().filter(|(key, _)| key != "enabled");
            let mut members: Vec<_> = others.cloned().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            members
        };
        a.as_ref().is_some_and(|a| sorted(a) == sorted(b))
    };
    let note = |known: &Option<EntryMembers>| match known.as_ref().is_some_and(is_disabled) {
        true => " (disabled)",
        false => "",
    };
    let target = |members: &EntryMembers| {
        let of = |key: &str| members.iter().find(|(it, _)| it == key).map(|(_, it)| it.clone());
        [of("command"), of("args"), of("url")]
    };
    found.candidates.sort_by_key(|it| (it.project.is_some(), is_disabled(&it.members)));
    for mut candidate in std::mem::take(&mut found.candidates) {
        let others = || configured.iter().filter(|(known, _)| *known != candidate.name);
        // A server of the same name takes precedence over its twins.
        let has_name = |it: &&(String, Option<EntryMembers>)| it.0 == candidate.name;
        let namesake = configured.iter().find(has_name);
        let is_there = namesake.is_some_and(|(_, known)| same(known, &candidate.members));
        let mut twins = others().filter(|(_, known)| same(known, &candidate.members));
        if let Some((other, known)) = twins.next().filter(|_| !is_there) {
            let original = candidate.renamed.unwrap_or(candidate.name);
            let why = format!("it is the same server as '{}'{}", line(other), note(known));
            found.skip(candidate.client, original, why, Some(other.clone()));
            continue;
        }
        let has_target = |known: &Option<EntryMembers>| {
            known.as_ref().is_some_and(|known| target(known) == target(&candidate.members))
        };
        if let Some((other, _)) = others().find(|(_, known)| has_target(known)) {
            candidate.warnings.push(format!("it has the command or URL of '{other}'"));
        }
        let position_of = |name: &str, configured: &[(String, Option<EntryMembers>)]| {
            configured.iter().position(|(known, _)| known == name)
        };
        let original = candidate.renamed.clone().unwrap_or_else(|| candidate.name.clone());
        if let Some(at) = position_of(&candidate.name, &configured) {
            let known = configured.get(at).map(|(_, known)| known);
            if let Some(known) = known.filter(|known| same(known, &candidate.members)) {
                let proposed = found.candidates.iter().find(|it| it.name == candidate.name);
                let why = match proposed.map(|it| it.client.facts().name) {
                    Some(client) => format!("it is the same server as that of {client}"),
                    None => format!("already in the config{}", note(known)),
                };
                found.skip(candidate.client, original, why, Some(candidate.name));
                continue;
            }
            let another = format!("{}-{}", candidate.name, candidate.client.word());
            if position_of(&another, &configured).is_some() || check_new_name(&another).is_err() {
                let why = "its name is taken by another server: add it by hand".to_owned();
                found.skip(candidate.client, original, why, None);
                continue;
            }
            candidate.name = another;
            candidate.renamed = Some(original);
        }
        configured.push((candidate.name.clone(), Some(candidate.members.clone())));
        found.candidates.push(candidate);
    }
}

/// Preview of additions and omissions.
fn shown(found: &FoundServers, file: &str, colors: Colors) -> String {
    let mut shown = String::new();
    if !found.candidates.is_empty() {
        let _ = writeln!(shown, "+++ {}", line(file));
    }
    for (at, candidate) in found.candidates.iter().enumerate() {
        shown += &shown_candidate(candidate, at + 1, colors);
    }
    for SkippedServer { client, name, why, .. } in &found.skipped {
        let _ = writeln!(shown, "not imported: '{}' of {}: {why}", line(name), client.facts().name);
    }
    for (client, path, why) in &found.unreadable {
        let path = path.display().to_string();
        let _ =
            writeln!(shown, "not read: {} of {}: {}", line(&path), client.facts().name, line(why));
    }
    shown
}

/// Result if there is nothing to import, with the searched files.
fn nothing(found: &FoundServers) -> String {
    if found.searched.is_empty() {
        return "Nothing to import: HOME is not set, so the clients' files cannot be located."
            .to_owned();
    }
    let mut shown = "Nothing to import. Searched files:\n".to_owned();
    for (path, exists) in &found.searched {
        let missing = if *exists { "" } else { " (missing)" };
        let _ = writeln!(shown, "  {}{missing}", line(&path.display().to_string()));
    }
    shown
}

/// Preview of one addition, with its number.
pub(super) fn shown_candidate(candidate: &Candidate, number: usize, colors: Colors) -> String {
    let Candidate { client, project, name, renamed, members, warnings } = candidate;
    let renamed = renamed.as_ref().map(|it| format!(", named '{}' there", line(it)));
    let project = project.as_ref().map(|it| format!(", for {}", line(it)));
    let (project, renamed) = (project.unwrap_or_default(), renamed.unwrap_or_default());
    let mut shown = format!("@@ {number} · {}{project}{renamed} @@\n", client.facts().name);
    shown += &preview::preview('+', name, members, colors);
    for warning in warnings {
        let _ = writeln!(shown, "! {}", line(warning));
    }
    shown
}

/// The found servers as JSON.
fn answer(found: &FoundServers, file: &str, proxy: Option<Value>) -> Value {
    let candidates = found.candidates.iter().map(|it| {
        let (client, name) = (it.client.word(), it.renamed.as_ref().unwrap_or(&it.name));
        json!({"server": it.name, "client": client, "project": it.project, "name": name, "doubts": it.warnings})
    });
    let skipped = found
        .skipped
        .iter()
        .map(|it| json!({"client": it.client.word(), "name": it.name, "reason": it.why}));
    let unreadable = found.unreadable.iter().map(|(client, path, why)| {
        json!({"client": client.word(), "file": path.display().to_string(), "reason": why})
    });
    json!({
        "file": file, "imported": proxy.is_some(), "proxy": proxy,
        "servers": candidates.collect::<Vec<_>>(), "skipped": skipped.collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
    })
}

/// Fails if the file of an explicitly named client is unreadable, or if no file could be read.
fn outcome(found: &FoundServers, named: bool) -> Result<(), CommandError> {
    match found.unreadable.first() {
        Some((client, _, why)) if named || found.read == 0 => {
            Err(CommandError::failed(format!("{}: {why}", client.facts().name)))
        }
        Some(_) | None => Ok(()),
    }
}

/// Formats a number of servers in words.
pub(super) fn servers(count: usize) -> String {
    format!("{count} server{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_wide_server_takes_precedence_over_the_same_server_of_a_project() {
        let mut found = FoundServers::default();
        let block = json!({"command": "everything"});
        let server = |project: Option<&str>, name: &str| {
            [(project.map(str::to_owned), (name.to_owned(), block.clone()))].into_iter()
        };
        sort_out(McpClient::ClaudeCode, server(Some("/p"), "everything2"), &mut found);
        sort_out(McpClient::Cursor, server(None, "everything"), &mut found);
        resolve_names(&mut found, &[]);
        let names: Vec<_> = found.candidates.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["everything"]);
        let skipped: Vec<_> = found.skipped.iter().map(|it| (&*it.name, &*it.why)).collect();
        assert_eq!(skipped, [("everything2", "it is the same server as 'everything'")]);
    }

    #[test]
    fn disabled_server_of_the_config_is_not_offered_again() {
        let block = json!({"command": "gh", "args": ["stdio"]});
        let mut disabled = block.clone();
        disabled["enabled"] = false.into();
        for (name, why) in [
            ("github", "already in the config (disabled)"),
            ("gh", "it is the same server as 'github' (disabled)"),
        ] {
            let mut found = FoundServers::default();
            let servers = [(None, (name.to_owned(), block.clone()))];
            sort_out(McpClient::Cursor, servers.into_iter(), &mut found);
            resolve_names(&mut found, &[("github".to_owned(), disabled.clone())]);
            assert!(found.candidates.is_empty(), "{name}");
            assert_eq!(found.skipped[0].why, why);
        }
    }

    #[test]
    fn server_of_the_same_name_takes_precedence_over_its_twins() {
        let block = json!({"command": "npx", "args": ["memory"]});
        let mut found = FoundServers::default();
        let servers = [(None, ("memory".to_owned(), block.clone()))];
        sort_out(McpClient::Cursor, servers.into_iter(), &mut found);
        let configured = ["oops", "memory"].map(|name| (name.to_owned(), block.clone()));
        resolve_names(&mut found, &configured);
        let [skipped] = &found.skipped[..] else { panic!("one is skipped") };
        assert_eq!(
            (&*skipped.why, skipped.same_as.as_deref()),
            ("already in the config", Some("memory"))
        );
    }

    #[test]
    fn enabled_server_takes_precedence_over_the_same_disabled_one() {
        let mut found = FoundServers::default();
        let server = |block: Value| [(None, ("s".to_owned(), block))].into_iter();
        let disabled = json!({"command": "s", "disabled": true});
        sort_out(McpClient::ClaudeCode, server(disabled), &mut found);
        sort_out(McpClient::Cursor, server(json!({"command": "s"})), &mut found);
        resolve_names(&mut found, &[]);
        let clients: Vec<_> = found.candidates.iter().map(|it| it.client).collect();
        assert_eq!(clients, [McpClient::Cursor]);
        assert_eq!(found.skipped[0].why, "it is the same server as that of Cursor");
    }

    #[test]
    fn dropped_keys_are_named() {
        let original = json!({
            "type": "stdio", "command": "sh", "cwd": "/", "timeout": 5, "envFile": ".env", "disabledTools": ["a"],
            "startup_timeout_sec": 20, "autoApprove": [], "description": "a shell", "disabled": false,
        });
        let members = client_file::members(&original).unwrap();
        let warnings = entry_warnings("s", &original, &members);
        for expected in [
            "timeout: has no effect here: write call_timeout",
            "envFile: is not read here",
            "disabledTools: not imported: add it to the config by hand",
            "startup_timeout_sec: not imported: add it to the config by hand",
        ] {
            let count = warnings.iter().filter(|it| it.starts_with(expected)).count();
            assert_eq!(count, 1, "{expected}: {warnings:?}");
        }
        let original = json!({"url": "https://h", "env": {"A": "b"}, "headers": {}});
        let members = client_file::members(&original).unwrap();
        let expected = ["env: not imported: add it to the config by hand"];
        assert_eq!(entry_warnings("s", &original, &members), expected);
        let about_keys = warnings.iter().filter(|it| !it.starts_with("command:")).count();
        assert_eq!(about_keys, 4, "{warnings:?}");
    }
}
