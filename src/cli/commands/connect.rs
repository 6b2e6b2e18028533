//! `mcpproxy connect`: adds our entry to a client's config, or removes it.
//!
//! A backup of the original file allows `--undo` to restore it byte for byte if the file was not changed otherwise;
//! otherwise only our entry is removed.

use crate::cli::args::{ConnectArgs, Global};
use crate::cli::clients::file::ClientText;
use crate::cli::clients::{McpClient, NAME, ProxyEntry, Remote, preview};
use crate::cli::commands::token;
use crate::cli::error::CommandError;
use crate::cli::output::{Colors, Output, confirm, declined};
use crate::cli::terminal_safe::line;
use crate::cli::{clients, start_proxy};
use mcpproxy_config::edit::WrittenValue;
use mcpproxy_config::file::{Loaded, MAX_FILE_BYTES, locate};
use mcpproxy_runtime::os::{edited_file, private};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum number of servers named as reached without the proxy.
const SHOWN_SERVERS: usize = 10;
/// Suffix of the backup file.
const BACKUP: &str = ".before-mcpproxy";
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

/// The valid token of this client in an existing entry of entry.
fn token_in(
    text: &str,
    client: McpClient,
    loaded: &Loaded,
) -> Result<Option<String>, CommandError> {
    let entry = ClientText::read(text, client.facts().syntax).ok().and_then(|it| it.server(NAME));
    let Some(held) = entry.as_ref().and_then(clients::key) else { return Ok(None) };
    Ok(is_valid(held, client, loaded)?.then(|| held.to_owned()))
}

/// Whether this is the client's token and still valid.
fn is_valid(token: &str, client: McpClient, loaded: &Loaded) -> Result<bool, CommandError> {
    let (name, now) = (token_name(client), SystemTime::now());
    Ok(token::stored_tokens(loaded)?
        .iter()
        .any(|saved| *saved.name == *name && saved.is_of(token, now)))
}

/// Whether an entry under our name is entry: it looks like one, or has the URL of `members`.
fn is_own_entry(block: &Value, members: &[(String, Value)]) -> bool {
    let same_url = ["url", "serverUrl"].iter().any(|key| {
        members.iter().any(|(name, value)| name == key && block.get(*key) == Some(value))
    });
    same_url || block.as_object().is_some_and(|block| clients::is_own_entry(NAME, block))
}

/// Adds our entry to a text.
fn with_entry(
    text: &str,
    client: McpClient,
    members: &[(String, Value)],
) -> Result<String, String> {
    let mut read = ClientText::read(text, client.facts().syntax)?;
    let existing = read.server(NAME);
    if let Some(block) = existing {
        if block == Value::Object(members.iter().cloned().collect()) {
            return Ok(text.to_owned());
        }
        if !is_own_entry(&block, members) {
            return Err(format!(
                "it already has a different server '{NAME}': rename that one first"
            ));
        }
    }
    let members = members.iter().map(|(key, value)| (key.clone(), value.clone().into()));
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
    let token_in = |text: &str| match carries_token {
        true => token_in(text, client, loaded),
        false => Ok(None),
    };
    let members = |token: Option<&str>| ProxyEntry { key: token, ..*entry }.members(client);
    // A new token is only created once the file is known to be writable.
    let token = token_in(before.as_deref().unwrap_or_default())?;
    let planned = members(token.as_deref().or(carries_token.then_some(NEW_TOKEN)));
    let next = with_entry(before.as_deref().unwrap_or_default(), client, &planned);
    let next = next.map_err(|why| failed(&why))?;
    let result = |changed: bool| json!({"client": client.word(), "file": file, "connected": !flags.dry_run, "changed": changed});
    if before.as_deref() == Some(next.as_str()) {
        return output.print(&result(false).to_string(), |_| {
            format!("{} is already connected.", known.name)
        });
    }
    let shown = shown('+', &file, &planned, colors(flags, output));
    if flags.dry_run {
        return output.print(&result(true).to_string(), |_| shown.clone());
    }
    if !confirm(&shown, &format!("Write this entry for {}?", known.name), flags.yes)? {
        return declined();
    }
    let mut minted: Option<String> = None;
    let written = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let known_text = text.unwrap_or_default();
        with_entry(known_text, client, &planned)?;
        // If the file has our entry, a backup without it exists already.
        let has_ours = ClientText::read(known_text, known.syntax)
            .is_ok_and(|read| read.server(NAME).is_some());
        if let (Some(text), false) = (text, has_ours) {
            back_up(path, text).map_err(|error| format!("cannot write a backup: {error}"))?;
        }
        // The file may have changed concurrently: the current text is authoritative, and a token created here may
        // have been rotated.
        let message = |error: CommandError| error.message;
        let mut token = token_in(known_text).map_err(message)?;
        if carries_token && token.is_none() {
            let made = match minted.take() {
                Some(made) if is_valid(&made, client, loaded).map_err(message)? => made,
                Some(_) | None => token::mint(loaded, &token_name(client)).map_err(message)?,
            };
            token = minted.insert(made).clone().into();
        }
        let next = with_entry(known_text, client, &members(token.as_deref()))?;
        Ok::<_, String>((Some(next), ()))
    });
    if let Err(error) = written {
        // The token is not used anywhere.
        let left = minted.is_some() && token::revoke(loaded, &token_name(client)).is_err();
        let name = token_name(client);
        let more =
            format!("; token '{name}' is left over: revoke it with `mcpproxy token revoke {name}`");
        return Err(failed(&format!("{error}{}", if left { &more } else { "" })));
    }
    output.print(&result(true).to_string(), |_| {
        let mut message = format!("{} is connected. {}", known.name, known.afterwards);
        if !carries_token {
            message += "\nIts calls are recorded as anonymous; with require_mcp_auth it gets a token of its own.";
        }
        if let Some(direct) = direct_servers(&next, client) {
            message += &format!("\n{direct}");
        }
        if carries_token {
            let name = token_name(client);
            message += &format!(
                "\nIt uses token '{name}'; `mcpproxy token revoke {name}` revokes it."
            );
        }
        if carries_token && let Some(mode) = private::wider(path) {
            message += &format!(
                "\nThe entry contains the token, and the file is accessible to others (mode {mode:03o}): chmod 600 {}",
                line(&file)
            );
        }
        message
    })
}

/// The servers that the client still reaches without the proxy, in a sentence; `None` if there are none.
fn direct_servers(text: &str, client: McpClient) -> Option<String> {
    let servers = ClientText::read(text, client.facts().syntax).ok()?.servers().ok()?;
    let names: Vec<String> = servers
        .iter()
        .filter(|(name, block)| {
            !block.as_object().is_some_and(|block| clients::is_own_entry(name, block))
        })
        .map(|(name, _)| line(name).into_owned())
        .collect();
    let shown = names.iter().take(SHOWN_SERVERS).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > SHOWN_SERVERS { ", …" } else { "" };
    (!names.is_empty()).then(|| {
        format!(
            "It still reaches servers without mcpproxy: {shown}{more}. Import them, then remove them there."
        )
    })
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
    let result = |changed: bool| json!({"client": client.word(), "file": file, "connected": false, "changed": changed && !flags.dry_run});
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
        return output.print(&result(false).to_string(), |_| {
            format!("{} has no mcpproxy entry.{token}", known.name)
        });
    };
    let there: Vec<_> = there.into_iter().collect();
    let shown = shown('-', &file, &there, colors(flags, output));
    if flags.dry_run {
        return output.print(&result(true).to_string(), |_| shown.clone());
    }
    if !confirm(&shown, &format!("Remove this entry from {}?", known.name), flags.yes)? {
        return declined();
    }
    let saved = read(&backup(path))?;
    let is_alone = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let text = text.unwrap_or_default();
        let untouched = |before: &str| with_entry(before, client, members).as_deref() == Ok(text);
        if let Some(saved) = saved.as_deref().filter(|saved| untouched(saved)) {
            return Ok((Some(saved.to_owned()), false));
        }
        let mut read = ClientText::read(text, known.syntax)?;
        read.remove(NAME)?;
        Ok::<_, String>((Some(read.text()), saved.is_none() && untouched("")))
    });
    if is_alone.map_err(|error| failed(&error))? {
        // The file was created for our entry.
        fs::remove_file(path).map_err(|error| failed(&error))?;
    }
    if saved.is_some() {
        let _ = fs::remove_file(backup(path));
    }
    token::revoke(loaded, &token_name(client))?;
    output.print(&result(true).to_string(), |_| {
        format!("{} is no longer connected. Sessions that have begun keep the entry.", known.name)
    })
}

fn read(path: &Path) -> Result<Option<String>, CommandError> {
    let read = edited_file::read::<String>(path, MAX_FILE_BYTES);
    let failed = |error| CommandError::failed(format!("{}: {error}", path.display()));
    Ok(read.map_err(failed)?.map(|(text, _)| text))
}

fn backup(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(BACKUP);
    path.with_file_name(name)
}

/// Writes a backup readable only by its owner.
fn back_up(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = private::create(&backup(path))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Colors of the preview: those of stdout with --dry-run, else of stderr.
fn colors(flags: &ConnectArgs, output: &Output) -> Colors {
    if flags.dry_run { output.view.colors } else { output.stderr_colors }
}

/// Renders the entry as a difference, without values of variables and headers.
fn shown(sign: char, file: &str, members: &[(String, Value)], colors: Colors) -> String {
    let rows = preview::preview(sign, NAME, members, colors);
    format!("{} {}\n{rows}", String::from(sign).repeat(3), line(file))
}

#[cfg(test)]
mod tests {
    use super::*;

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
