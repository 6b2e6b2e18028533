//! `mcpproxy connect`: adds mcpproxy's entry to a client's config and moves its servers to mcpproxy's config, or
//! removes the entry.
//!
//! A backup of the original file allows `--undo` to restore it byte for byte if the file was not changed otherwise. If
//! it was, only mcpproxy's entry is removed, and the backup is kept if it has servers that the file lacks.

use crate::args::{ConnectArgs, Global, TokenScope};
use crate::clients::backup::{back_up, backup, earlier, read, set_aside};
use crate::clients::file::{ClientText, Syntax, is_connection_key};
use crate::clients::{McpClient, NAME, ProxyEntry, Remote, preview};
use crate::commands::connect::direct::{DirectServers, Moved};
use crate::commands::token;
use crate::error::CommandError;
use crate::output::{Colors, Output, Paragraph, choose, confirm, declined};
use crate::terminal_safe::{line, quoted};
use crate::{clients, hints, start_proxy};
use mcpproxy_config::edit::WrittenValue;
use mcpproxy_config::file::{Loaded, MAX_FILE_BYTES, locate};
use mcpproxy_runtime::os::{edited_file, private};
use serde_json::{Value, json};
use std::fs;
use std::io::IsTerminal as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::SystemTime;

mod direct;

/// Placeholder for a token that has not been created yet.
const NEW_TOKEN: &str = "a new token";

/// Runs the command.
pub(super) fn run(
    flags: &ConnectArgs,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let client = flags.client;
    let path = client.path(&start_proxy::variable).ok_or_else(|| {
        CommandError::failed("HOME is not set, so the client's config cannot be located")
    })?;
    let program = std::env::current_exe().map_err(CommandError::failed)?;
    let home = |name: &str| start_proxy::variable(name).filter(|_| name == "HOME");
    let default = locate(None, &home);
    let config = fs::canonicalize(&loaded.path).unwrap_or_else(|_| loaded.path.clone());
    let is_default = default.is_ok_and(|default| default == loaded.path);
    let entry = ProxyEntry {
        listen: loaded.config.listen.tcp().filter(|_| loaded.config.tls.is_none()),
        key: None,
        program: &program,
        config: (!is_default).then_some(config.as_path()),
    };
    if flags.moves {
        start_proxy::refuse_for_fleet(&loaded)?;
    }
    if entry.listen.is_some_and(|listen| listen.port() == 0)
        && client.facts().remote != Remote::Unknown
    {
        let words =
            "listen has port 0, which changes at each start: set a fixed port in the config first";
        return Err(CommandError::failed(words));
    }
    match flags.undo {
        false => connect(flags, client, &path, &entry, &loaded, output),
        true => undo(flags, client, &path, &entry, &loaded, output),
    }
}

/// Name of the agent token of a client. Unlike the API key, a token can only call tools.
fn token_name(client: McpClient) -> String {
    format!("connect-{}", client.word())
}

/// Returns the valid token of this client from its existing entry for mcpproxy.
fn token_in(
    text: &str,
    client: McpClient,
    loaded: &Loaded,
) -> Result<Option<String>, CommandError> {
    let entry = ClientText::read(text, client.facts().syntax).ok().and_then(|it| it.server(NAME));
    let Some(held) = entry.as_ref().and_then(clients::key) else { return Ok(None) };
    Ok(is_valid(held, client, loaded)?.then(|| held.to_owned()))
}

/// Whether this token belongs to the client and is still valid.
fn is_valid(token: &str, client: McpClient, loaded: &Loaded) -> Result<bool, CommandError> {
    let (name, now) = (token_name(client), SystemTime::now());
    Ok(token::stored_tokens(loaded)?
        .iter()
        .any(|saved| *saved.name == *name && saved.is_of(token, now)))
}

/// Whether an entry under mcpproxy's name was written by mcpproxy: it looks like such an entry, or has the URL of
/// `members`.
fn is_own_entry(block: &Value, members: &[(String, Value)]) -> bool {
    clients::has_url_of(block, members)
        || block.as_object().is_some_and(|block| clients::is_own_entry(NAME, block))
}

/// Adds mcpproxy's entry to a text, or renews it. Other settings in an existing entry, such as permissions, are kept.
fn with_entry(
    text: &str,
    client: McpClient,
    members: &[(String, Value)],
) -> Result<String, String> {
    let mut read = ClientText::read(text, client.facts().syntax)?;
    let mut members = members.to_vec();
    if let Some(block) = read.server(NAME) {
        if !is_own_entry(&block, &members) {
            return Err(format!(
                "it already has a different server '{NAME}': rename that one first"
            ));
        }
        let is_setting =
            |key: &str| !is_connection_key(key) && members.iter().all(|(ours, _)| ours != key);
        let settings = block.as_object().into_iter().flatten().filter(|(key, _)| is_setting(key));
        let settings: Vec<_> = settings.map(|(key, value)| (key.clone(), value.clone())).collect();
        members.extend(settings);
        if block == Value::Object(members.iter().cloned().collect()) {
            return Ok(text.to_owned());
        }
    }
    let members = members.into_iter().map(|(key, value)| (key, value.into()));
    read.set(NAME, &WrittenValue::Members(members.collect()))?;
    Ok(read.text())
}

fn connect(
    flags: &ConnectArgs,
    client: McpClient,
    path: &Path,
    entry: &ProxyEntry<'_>,
    loaded: &Loaded,
    output: &Output,
) -> Result<(), CommandError> {
    let (known, file) = (client.facts(), path.display().to_string());
    let failed = |why: &dyn std::fmt::Display| CommandError::failed(format!("{file}: {why}"));
    let before = read(path)?;
    let carries_token = loaded.config.require_mcp_auth && entry.is_remote(client);
    let is_limited = flags.scope != TokenScope::default();
    if is_limited && !carries_token {
        let why = "only a token can be limited, and this entry has none";
        let step = match entry.is_remote(client) {
            true => "set \"require_mcp_auth\": true in the config first",
            false => "it starts a command, whose calls are anonymous",
        };
        return Err(CommandError::usage(format!("{why}: {step}")));
    }
    token::check_scope(&loaded.config, &flags.scope)?;
    // A token with other restrictions replaces the present one.
    let token_in = |text: &str| match carries_token && !is_limited {
        true => token_in(text, client, loaded),
        false => Ok(None),
    };
    let members = |token: Option<&str>| ProxyEntry { key: token, ..*entry }.members(client);
    // A new token is created only when the file is known to be writable.
    let token = token_in(before.as_deref().unwrap_or_default())?;
    let planned = members(token.as_deref().or(carries_token.then_some(NEW_TOKEN)));
    let next = with_entry(before.as_deref().unwrap_or_default(), client, &planned);
    let next = next.map_err(|why| failed(&why))?;
    let is_connected = before.as_deref() == Some(next.as_str());
    let colors = colors(flags, output);
    let shown = shown('+', &file, known.syntax, &planned, colors);
    let wide = private::wider(path).filter(|_| carries_token);
    let is_replaced = is_limited && token::exists(loaded, &token_name(client))?;
    let effects = |tense: &str| {
        let is_new = carries_token && token.is_none();
        let name = token_name(client);
        let minted = is_new.then(|| match is_replaced {
            true => format!(
                "Token '{name}' {tense} revoked, and replaced by one with these limits only."
            ),
            false => format!("Token '{name}' {tense} created for this entry."),
        });
        let narrowed = wide.map(|mode| {
            format!("The file's mode {tense} changed from {mode:03o} to {:03o}.", own(mode))
        });
        [minted, narrowed].into_iter().flatten().collect::<Vec<_>>().join("\n")
    };
    let find = |text: &str| {
        let found = DirectServers::find(client, text, &planned, loaded);
        match std::env::current_dir() {
            Ok(folder) => found.with_project(&folder, path, &planned),
            Err(_) => found,
        }
    };
    let result = |direct: &DirectServers, moved: &[String]| {
        let (connected, changed) =
            (is_connected || !flags.dry_run, !is_connected || !moved.is_empty());
        json!({
            "client": client.word(), "file": file, "connected": connected, "changed": changed,
            "direct": direct.names_without(moved), "projects": direct.projects_json(), "moved": moved,
        })
    };
    let wrapped = |text: &str| Paragraph::new(output.view.width).text(text);
    if flags.dry_run {
        let direct = find(&next);
        let moved = if flags.moves { direct.movable_names() } else { Vec::new() };
        return output.print(&result(&direct, &moved).to_string(), |_| {
            let entry = match is_connected {
                true => format!("{} is already connected.", known.name),
                false => format!("{shown}{}", effects("would be")).trim_end().to_owned(),
            };
            let move_preview = direct.shown(path, loaded, colors);
            let hint = || direct.hint(&[], loaded).map(|hint| wrapped(&hint));
            let servers = if moved.is_empty() { hint() } else { move_preview.into() };
            [Some(entry), servers].into_iter().flatten().collect::<Vec<_>>().join("\n")
        });
    }
    if is_connected {
        let direct = find(&next);
        let moved = move_servers(flags, path, &direct, loaded, output)?;
        let narrowed = narrow(path, wide);
        return output.print(&result(&direct, &moved.names).to_string(), |_| {
            let mut message = format!("{} is already connected.", known.name);
            let hint = direct.hint(&moved.names, loaded);
            add_lines(&mut message, [Some(moved.message), hint, narrowed]);
            wrapped(&message)
        });
    }
    let shown = format!("{shown}{}", effects("will be"));
    if !confirm(&shown, &format!("Write this entry for {}?", known.name), flags.yes)? {
        return declined();
    }
    // Narrowed before the token is in the file.
    let narrowed = narrow(path, wide);
    let mut minted: Option<String> = None;
    let written = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let known_text = text.unwrap_or_default();
        with_entry(known_text, client, &planned)?;
        // If the file has mcpproxy's entry, a backup without it already exists.
        let has_ours = ClientText::read(known_text, known.syntax)
            .is_ok_and(|read| read.server(NAME).is_some());
        if let (Some(text), false) = (text, has_ours) {
            let no_backup = |why: &dyn std::fmt::Display| format!("cannot write a backup: {why}");
            // If the entry was removed by hand after servers were moved, the earlier backup has these servers and is
            // kept.
            let earlier = read(&backup(path)).map_err(|error| no_backup(&error.message))?;
            let now = ClientText::read(text, known.syntax)?;
            if earlier.is_some_and(|earlier| !missing(&earlier, &now, client).is_empty()) {
                set_aside(path).map_err(|error| no_backup(&error))?;
            }
            back_up(path, text).map_err(|error| no_backup(&error))?;
        }
        // The file may have changed concurrently, so only its current text counts. A token created by this command may
        // have been rotated in the meantime.
        let message = |error: CommandError| error.message;
        let mut token = token_in(known_text).map_err(message)?;
        if carries_token && token.is_none() {
            let made = match minted.take() {
                Some(made) if is_valid(&made, client, loaded).map_err(message)? => made,
                Some(_) | None => {
                    token::mint(loaded, &token_name(client), &flags.scope).map_err(message)?
                }
            };
            token = minted.insert(made).clone().into();
        }
        let next = with_entry(known_text, client, &members(token.as_deref()))?;
        Ok::<_, String>((Some(next), ()))
    });
    if let Err(error) = written {
        if let Some(mode) = wide {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        }
        // No file contains the new token, so it is revoked.
        let left = minted.is_some() && token::revoke(loaded, &token_name(client)).is_err();
        let name = token_name(client);
        let more =
            format!("; token '{name}' is left over: revoke it with `mcpproxy token revoke {name}`");
        return Err(failed(&format!("{error}{}", if left { &more } else { "" })));
    }
    let written = read(path)?.unwrap_or_default();
    let direct = find(&written);
    let moved = move_servers(flags, path, &direct, loaded, output)?;
    output.print(&result(&direct, &moved.names).to_string(), |_| {
        let mut message = format!("{} is connected. {}", known.name, known.afterwards);
        if !carries_token {
            message += &hints::commands(&format!(
                "\nIts calls are recorded as anonymous. After `\"require_mcp_auth\": true` in the config, `mcpproxy connect {}` \
                 gives it a token of its own.",
                client.word()
            ));
        }
        add_lines(&mut message, [Some(moved.message), direct.hint(&moved.names, loaded)]);
        if carries_token {
            let name = token_name(client);
            let limit = match is_limited {
                true => String::new(),
                false => format!(
                    ", and `mcpproxy connect {} --operation read` replaces it by one that can only read",
                    client.word()
                ),
            };
            let note = format!(
                "\nIt uses token '{name}' (`mcpproxy token list`); `mcpproxy token revoke {name}` revokes it{limit}."
            );
            message += &hints::commands(&note);
        }
        let permissions = known.permissions.map(|place| {
            format!("Its tool permissions are set in {place}: mcpproxy guide clients.")
        });
        add_lines(&mut message, [narrowed, permissions]);
        wrapped(&message)
    })
}

/// Mode bits of everyone except the owner.
const OTHERS: u32 = 0o077;

/// A mode without the access of others.
const fn own(mode: u32) -> u32 {
    mode & !OTHERS
}

/// Removes others' access from a file with a token, if its mode is `wide`. Returns a sentence about it.
fn narrow(path: &Path, wide: Option<u32>) -> Option<String> {
    let wide = wide?;
    // The file may be a link.
    let done = fs::canonicalize(path).and_then(|target| private::restrict(&target));
    let file = path.display().to_string();
    Some(match done {
        Ok(()) => format!(
            "The entry contains a token, so the file's mode was changed from {wide:03o} to {:03o}.",
            own(wide)
        ),
        Err(error) => format!(
            "The entry contains a token, and the file is accessible to others (mode {wide:03o}): chmod 600 {} ({error})",
            quoted(&file).unwrap_or_else(|| line(&file))
        ),
    })
}

/// Appends texts that are not empty as lines.
fn add_lines(message: &mut String, lines: impl IntoIterator<Item = Option<String>>) {
    for line in lines.into_iter().flatten().filter(|line| !line.is_empty()) {
        message.push('\n');
        message.push_str(&line);
    }
}

/// Moves the client's own servers to mcpproxy's config: the ones chosen at a terminal, or all with `--move --yes`. The
/// client is already connected.
fn move_servers(
    flags: &ConnectArgs,
    path: &Path,
    direct: &DirectServers,
    loaded: &Loaded,
    output: &Output,
) -> Result<Moved, CommandError> {
    let count = direct.movable_names().len();
    let is_asked = !flags.yes && std::io::stdin().is_terminal();
    if count == 0 || loaded.config.fleet_config.is_some() || !(flags.moves || is_asked) {
        return Ok(Moved::default());
    }
    let shown = direct.shown(path, loaded, output.stderr_colors);
    let shown =
        format!("{} still reaches servers without mcpproxy.\n{shown}", flags.client.facts().name);
    match choose(&shown, &direct.question(), count, flags.yes)? {
        chosen if chosen.is_empty() => Ok(Moved::default()),
        chosen => direct.carry_out(&chosen, path, loaded),
    }
}

/// Result of removing mcpproxy's entry.
enum Undone {
    /// The backup was restored, including these servers, which had been moved.
    Restored(Vec<String>),
    /// Only the entry was removed. The file was created for it and contains nothing else.
    Emptied,
    /// Only the entry was removed. The backup has these servers that the file lacks.
    Removed(Vec<String>),
}

fn undo(
    flags: &ConnectArgs,
    client: McpClient,
    path: &Path,
    entry: &ProxyEntry<'_>,
    loaded: &Loaded,
    output: &Output,
) -> Result<(), CommandError> {
    let (known, file) = (client.facts(), path.display().to_string());
    let failed = |why: &dyn std::fmt::Display| CommandError::failed(format!("{file}: {why}"));
    let result = |changed: bool, kept: Option<&str>| json!({"client": client.word(), "file": file, "connected": false, "changed": changed && !flags.dry_run, "backup": kept});
    let text = read(path)?.unwrap_or_default();
    let there = ClientText::read(&text, known.syntax).map_err(|why| failed(&why))?.server(NAME);
    let members =
        &ProxyEntry { key: there.as_ref().and_then(clients::key), ..*entry }.members(client);
    let Some(Value::Object(there)) = there.clone().filter(|block| is_own_entry(block, members))
    else {
        let name = token_name(client);
        let revoked = !flags.dry_run && token::revoke(loaded, &name)?;
        let token =
            if revoked { format!(" Token '{name}' has been revoked.") } else { String::new() };
        return output.print(&result(false, None).to_string(), |_| {
            format!("{} has no mcpproxy entry.{token}", known.name)
        });
    };
    let there: Vec<_> = there.into_iter().collect();
    let saved = read(&backup(path))?;
    let restored = saved.as_ref().and_then(|saved| {
        let moved = moved_since(saved, &text, client, members, loaded)?;
        let with =
            if moved.is_empty() { String::new() } else { format!(", with {}", moved.join(", ")) };
        Some(format!("The file's text will be as it was before{}.", line(&with)))
    });
    let revoked = token::exists(loaded, &token_name(client))?
        .then(|| format!("Token '{}' will be revoked.", token_name(client)));
    let mut shown = shown('-', &file, known.syntax, &there, colors(flags, output));
    add_lines(&mut shown, [restored, revoked]);
    if flags.dry_run {
        return output.print(&result(true, None).to_string(), |_| shown.clone());
    }
    if !confirm(&shown, &format!("Remove this entry from {}?", known.name), flags.yes)? {
        return declined();
    }
    let undone = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let text = text.unwrap_or_default();
        let untouched = |before: &str| moved_since(before, text, client, members, loaded);
        if let Some(saved) = &saved
            && let Some(moved) = untouched(saved)
        {
            return Ok((Some(saved.clone()), Undone::Restored(moved)));
        }
        let mut read = ClientText::read(text, known.syntax)?;
        read.remove(NAME)?;
        let undone = match &saved {
            None if untouched("").is_some() => Undone::Emptied,
            None => Undone::Removed(Vec::new()),
            Some(saved) => Undone::Removed(missing(saved, &read, client)),
        };
        Ok::<_, String>((Some(read.text()), undone))
    });
    let undone = undone.map_err(|error| failed(&error))?;
    let names = |names: &[String]| names.iter().map(|it| line(it)).collect::<Vec<_>>().join(", ");
    let mut kept = None;
    let more = match undone {
        Undone::Emptied => {
            fs::remove_file(path).map_err(|error| failed(&error))?;
            None
        }
        Undone::Removed(missing) if !missing.is_empty() => {
            let aside = set_aside(path).map_err(|error| failed(&error))?;
            let text = format!(
                "The file was changed meanwhile, so only the mcpproxy entry was removed. Servers that it lacks are in \
                 the backup {}: {}.",
                line(&aside),
                names(&missing)
            );
            kept = Some(aside);
            Some(text)
        }
        Undone::Restored(moved) if !moved.is_empty() => {
            let names = names(&moved);
            Some(format!("It has its own servers again, and mcpproxy keeps them, too: {names}."))
        }
        Undone::Restored(_) | Undone::Removed(_) => None,
    };
    if saved.is_some() && kept.is_none() {
        let _ = fs::remove_file(backup(path));
    }
    let revoked = token::revoke(loaded, &token_name(client))?
        .then(|| format!("Token '{}' has been revoked.", token_name(client)));
    output.print(&result(true, kept.as_deref()).to_string(), |_| {
        let sentence = "is no longer connected. Sessions that have begun keep the entry.";
        let mut message = format!("{} {sentence}", known.name);
        let others: Vec<_> =
            earlier(path).into_iter().filter(|it| Some(it) != kept.as_ref()).collect();
        let others = (!others.is_empty()).then(|| {
            format!("Backups of servers that were moved earlier are kept: {}.", names(&others))
        });
        add_lines(&mut message, [more, others, revoked]);
        Paragraph::new(output.view.width).text(&message)
    })
}

/// Names of the servers in a backup that the client's text lacks.
fn missing(saved: &str, text: &ClientText, client: McpClient) -> Vec<String> {
    let saved = ClientText::read(saved, client.facts().syntax).and_then(|saved| saved.servers());
    let names = saved.unwrap_or_default().into_iter().map(|(name, _)| name);
    names.filter(|name| text.server(name).is_none()).collect()
}

/// Servers that were moved, if the earlier text and the current text otherwise differ only in mcpproxy's entry; else
/// `None`. A server counts as moved if the current text lacks it and mcpproxy's config has it.
fn moved_since(
    before: &str,
    now: &str,
    client: McpClient,
    members: &[(String, Value)],
    loaded: &Loaded,
) -> Option<Vec<String>> {
    let syntax = client.facts().syntax;
    let mut without_entry = ClientText::read(now, syntax).ok()?;
    let direct = DirectServers::find(client, before, members, loaded);
    let present = direct.present_names().filter(|name| without_entry.server(name).is_none());
    let moved: Vec<String> = present.cloned().collect();
    let without_moved = |text: &str| {
        let mut read = ClientText::read(text, syntax).ok()?;
        for name in &moved {
            read.remove(name).ok()?;
        }
        Some(read.text())
    };
    without_entry.remove(NAME).ok()?;
    // The second comparison covers servers that were added after mcpproxy's entry and moved later.
    let is_same = without_moved(&with_entry(before, client, members).ok()?)? == now
        || (!moved.is_empty() && without_moved(before)? == without_entry.text());
    is_same.then_some(moved)
}

/// Colors of the preview: the colors of stdout with --dry-run, otherwise of stderr.
fn colors(flags: &ConnectArgs, output: &Output) -> Colors {
    if flags.dry_run { output.view.colors } else { output.stderr_colors }
}

/// Renders the entry as a diff, without values of variables and headers.
fn shown(
    sign: char,
    file: &str,
    syntax: Syntax,
    members: &[(String, Value)],
    colors: Colors,
) -> String {
    let rows = preview::preview(sign, NAME, members, colors);
    let place = match syntax {
        Syntax::Json(key) => key.to_owned(),
        Syntax::Toml(key) => format!("{key}, in TOML"),
    };
    format!("{} {}\n@@ {place} @@\n{rows}", String::from(sign).repeat(3), line(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_settings_of_an_entry_are_kept() {
        let members = [("url".to_owned(), json!("http://127.0.0.1:8080/mcp"))];
        let toml = "[mcp_servers.mcpproxy]\nurl = \"http://127.0.0.1:1/mcp\"\nenabled = false\nstartup_timeout_sec = 20\ndefault_tools_approval_mode = \"prompt\" # careful\n\n[mcp_servers.mcpproxy.tools.call_tool_read]\napproval_mode = \"approve\"\n";
        let written = with_entry(toml, McpClient::Codex, &members).unwrap();
        for kept in ["\"prompt\" # careful\n", "\n[mcp_servers.mcpproxy.tools.call_tool_read]\n"] {
            assert!(written.contains(kept), "{written}");
        }
        let entry = ClientText::read(&written, McpClient::Codex.facts().syntax).unwrap();
        let expected = json!({"url": "http://127.0.0.1:8080/mcp", "startup_timeout_sec": 20,
            "default_tools_approval_mode": "prompt",
            "tools": {"call_tool_read": {"approval_mode": "approve"}}});
        assert_eq!(entry.server(NAME), Some(expected));
        assert_eq!(with_entry(&written, McpClient::Codex, &members).as_ref(), Ok(&written));
        let json = r#"{"mcpServers": {"mcpproxy": {"url": "http://127.0.0.1:1/mcp", "alwaysAllow": ["a"]}}}"#;
        let written = with_entry(json, McpClient::Cursor, &members).unwrap();
        assert!(written.contains("alwaysAllow"), "{written}");
        assert!(written.contains("127.0.0.1:8080"), "{written}");
    }

    #[test]
    fn own_entry_is_recognized_for_any_listen_address() {
        for listen in ["127.0.0.1:8080", "0.0.0.0:8080", "192.168.1.2:8080"] {
            let entry = |key| ProxyEntry {
                listen: listen.parse().ok(),
                key,
                program: Path::new("/bin/mcpproxy"),
                config: None,
            };
            let (members, keyed) = (
                entry(None).members(McpClient::Cursor),
                entry(Some("k")).members(McpClient::Cursor),
            );
            let written = with_entry("{}", McpClient::Cursor, &members).unwrap();
            assert_eq!(with_entry(&written, McpClient::Cursor, &members).as_ref(), Ok(&written));
            assert!(
                with_entry(&written, McpClient::Cursor, &keyed).is_ok(),
                "{listen}: the entry is updated"
            );
        }
        let theirs = r#"{"mcpServers": {"mcpproxy": {"url": "http://192.168.1.3:8080/mcp"}}}"#;
        let members = vec![("url".to_owned(), json!("http://192.168.1.2:8080/mcp"))];
        assert!(with_entry(theirs, McpClient::Cursor, &members).is_err());
    }
}
