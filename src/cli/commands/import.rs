//! `mcpproxy import`: the servers of other programs are found, shown, and added to the config.
//!
//! What is found is data: nothing of it is run here, and what is secret in it is carried over and not
//! shown. A file that cannot be read keeps nobody from those that can.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::{Global, ImportArgs};
use crate::cli::clients::block::{self, EntryMembers};
use crate::cli::clients::file::ClientText;
use crate::cli::clients::{McpClient, entry, shown};
use crate::cli::confirm::{confirm, declined};
use crate::cli::error::CommandError;
use crate::cli::load_config;
use crate::cli::output::Output;
use crate::cli::reload;
use crate::cli::terminal_safe::{clean, line};
use crate::config::check_new_server;
use crate::config::edit::{self, EditedJson, Servers};
use crate::config::file::{self, MAX_FILE_BYTES};
use crate::os::edited_file::{self, EditFailure};
use crate::server;

/// Most servers of one client.
const MAX_SERVERS: usize = 500;

/// A server that can be added.
struct Candidate {
    client: McpClient,
    /// The project that it is for there, or the project's file, if it is not for all.
    project: Option<String>,
    name: String,
    /// What it is called there, if it is another name.
    renamed: Option<String>,
    members: EntryMembers,
    /// What of it does not work here as it does there, or not on this machine.
    doubts: Vec<String>,
}

/// What was found.
#[derive(Default)]
struct Found {
    candidates: Vec<Candidate>,
    /// Servers that are not taken over: whose, which, and why.
    skipped: Vec<(McpClient, String, String)>,
    /// Files that cannot be read, and why.
    unreadable: Vec<(McpClient, PathBuf, String)>,
    /// Files that were read.
    read: usize,
}

/// Runs the command.
pub(super) fn run(
    flags: &ImportArgs,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    load_config::refuse_for_fleet(&loaded)?;
    let named = !flags.clients.is_empty();
    let clients = if named { flags.clients.as_slice() } else { &McpClient::ALL };
    let text = edited_file::read::<String>(&loaded.path, MAX_FILE_BYTES);
    let text = text.map_err(CommandError::failed)?.map(|(text, _)| text).unwrap_or_default();
    let ours = EditedJson::new(&text).map_err(CommandError::failed)?;
    let mut found = Found::default();
    for client in clients {
        look(*client, &mut found);
    }
    let taken = Servers(&ours).all();
    let taken = taken.into_iter().map(|(name, block)| (name, block::members(&block).ok()));
    settle(&mut found, taken.collect());
    let file = loaded.path.display().to_string();
    let shown = shown(&found, &file);
    if found.candidates.is_empty() || flags.dry_run {
        let answer = answer(&found, &file, None);
        output.print(&answer.to_string(), |_| match found.candidates.is_empty() {
            true => format!("{shown}Nothing to import."),
            false => shown.clone(),
        })?;
        return outcome(&found, named);
    }
    if !confirm(
        &shown,
        &format!(
            "Add {} to {}? A proxy that runs starts them at once.",
            servers(found.candidates.len()),
            line(&file)
        ),
        flags.yes,
    )? {
        return declined();
    }
    let added = file::edit(&loaded.path, |text| {
        let mut json = EditedJson::new(text).map_err(|error| error.to_string())?;
        for Candidate { name, members, .. } in &found.candidates {
            if Servers(&json).find(name).is_some() {
                return Err(format!("there is a server '{name}' now: run the command again"));
            }
            json = Servers(&json).add(name, members).map_err(|error| error.to_string())?;
        }
        Ok((Some(json.text().to_owned()), ()))
    });
    added.map_err(CommandError::failed)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, _) = runtime.block_on(reload::tell(&loaded));
    let answer = answer(&found, &file, Some(reloaded.json()));
    output.print(&answer.to_string(), |_| {
        format!("Added {}. {}", servers(found.candidates.len()), reloaded.told())
    })?;
    outcome(&found, named)
}

/// Reads the servers of one client: those for all its projects, and those of the project in this folder.
fn look(client: McpClient, found: &mut Found) {
    let Some(path) = client.path(&load_config::variable) else { return };
    read(client, &path, false, found);
    if let Some(file) = client.project_file()
        && let Ok(folder) = std::env::current_dir()
        && folder.join(file) != path
    {
        read(client, &folder.join(file), true, found);
    }
}

/// Reads one file of a client.
fn read(client: McpClient, path: &Path, is_project: bool, found: &mut Found) {
    let text = match edited_file::read::<String>(path, MAX_FILE_BYTES) {
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
    let read = ClientText::read(&text, client.known().syntax);
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
    for (at, (project, (theirs, block))) in all.enumerate() {
        let mut skip = |why: &str| found.skipped.push((client, theirs.clone(), why.to_owned()));
        if at >= MAX_SERVERS {
            return skip(&format!("there are more than {MAX_SERVERS}"));
        }
        if block.as_object().is_some_and(|block| entry::is_ours(&theirs, block)) {
            skip("it is this program itself");
            continue;
        }
        let Some(name) = block::name(&theirs) else {
            skip("it has no name that can be used here");
            continue;
        };
        match block::members(&block) {
            Err(why) => skip(&why),
            Ok(members) => {
                let doubts = doubts(&name, &block, &members);
                let renamed = (name != theirs).then_some(theirs);
                found.candidates.push(Candidate {
                    client,
                    project,
                    name,
                    renamed,
                    members,
                    doubts,
                });
            }
        }
    }
}

/// What is to be looked at, and what `config check` would say of the entry, and of what it is made from.
fn doubts(name: &str, theirs: &Value, members: &EntryMembers) -> Vec<String> {
    let entry = block::left_out(theirs).chain(members.iter().cloned()).collect();
    let checked = check_new_server(name, &Value::Object(entry), &|name| std::env::var(name).ok());
    shown::warnings(members).into_iter().chain(checked).collect()
}

/// Leaves out what is there already, and gives those another name whose name another server has.
fn settle(found: &mut Found, mut taken: Vec<(String, Option<EntryMembers>)>) {
    let same = |a: &Option<EntryMembers>, b: &EntryMembers| {
        let sorted = |members: &EntryMembers| {
            let on = |(key, value): &&(String, Value)| {
                !(key == "enabled" && *value == Value::Bool(true))
            };
            let mut members: Vec<_> = members.iter().filter(on).cloned().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            members
        };
        a.as_ref().is_some_and(|a| sorted(a) == sorted(b))
    };
    for mut candidate in std::mem::take(&mut found.candidates) {
        let there = |name: &str, taken: &[(String, Option<EntryMembers>)]| {
            taken.iter().position(|(known, _)| known == name)
        };
        let theirs = candidate.renamed.clone().unwrap_or_else(|| candidate.name.clone());
        if let Some(at) = there(&candidate.name, &taken) {
            if taken.get(at).is_some_and(|(_, known)| same(known, &candidate.members)) {
                let why = "it is in the config already".to_owned();
                found.skipped.push((candidate.client, theirs, why));
                continue;
            }
            let another = format!("{}-{}", candidate.name, candidate.client.word());
            if there(&another, &taken).is_some() || edit::check_new_name(&another).is_err() {
                let why = "another server has its name: add it by hand".to_owned();
                found.skipped.push((candidate.client, theirs, why));
                continue;
            }
            candidate.name = another;
            candidate.renamed = Some(theirs);
        }
        taken.push((candidate.name.clone(), Some(candidate.members.clone())));
        found.candidates.push(candidate);
    }
}

/// What would be added, and what not: for people.
fn shown(found: &Found, file: &str) -> String {
    let mut shown = String::new();
    if !found.candidates.is_empty() {
        let _ = writeln!(shown, "+++ {}", line(file));
    }
    for Candidate { client, project, name, renamed, members, doubts } in &found.candidates {
        let renamed = renamed.as_ref().map(|it| format!(", there '{}'", line(it)));
        let project = project.as_ref().map(|it| format!(", for {}", line(it)));
        let from = format!(
            "{}{}{}",
            client.known().name,
            project.unwrap_or_default(),
            renamed.unwrap_or_default()
        );
        let _ = writeln!(shown, "@@ {from} @@");
        let text = edit::rendered(name, &shown::shown(members));
        for row in clean(&text).lines() {
            let _ = writeln!(shown, "+ {row}");
        }
        for doubt in doubts {
            let _ = writeln!(shown, "! {}", line(doubt));
        }
    }
    for (client, name, why) in &found.skipped {
        let _ =
            writeln!(shown, "not taken over: '{}' of {}: {why}", line(name), client.known().name);
    }
    for (client, path, why) in &found.unreadable {
        let path = path.display().to_string();
        let _ =
            writeln!(shown, "not read: {} of {}: {}", line(&path), client.known().name, line(why));
    }
    shown
}

/// The same for programs.
fn answer(found: &Found, file: &str, proxy: Option<Value>) -> Value {
    let candidates = found.candidates.iter().map(|it| {
        let (client, name) = (it.client.word(), it.renamed.as_ref().unwrap_or(&it.name));
        json!({"server": it.name, "client": client, "project": it.project, "name": name, "doubts": it.doubts})
    });
    let skipped = found
        .skipped
        .iter()
        .map(|(client, name, why)| json!({"client": client.word(), "name": name, "reason": why}));
    let unreadable = found.unreadable.iter().map(|(client, path, why)| {
        json!({"client": client.word(), "file": path.display().to_string(), "reason": why})
    });
    json!({
        "file": file, "imported": proxy.is_some(), "proxy": proxy,
        "servers": candidates.collect::<Vec<_>>(), "skipped": skipped.collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
    })
}

/// A file that was asked for and cannot be read is a failure; so is it if no other could be.
fn outcome(found: &Found, named: bool) -> Result<(), CommandError> {
    match found.unreadable.first() {
        Some((client, _, why)) if named || found.read == 0 => {
            Err(CommandError::failed(format!("{}: {why}", client.known().name)))
        }
        Some(_) | None => Ok(()),
    }
}

fn servers(count: usize) -> String {
    format!("{count} server{}", if count == 1 { "" } else { "s" })
}
