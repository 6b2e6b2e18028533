//! `mcpproxy connect`: our entry in the config of a client, and out of it again.
//!
//! The client's file is kept beside it as it was, so that undoing gives back its bytes where nobody else
//! has changed it since, and takes out our entry alone where somebody has.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::cli::args::{ConnectArgs, Global};
use crate::cli::clients::entry::{self, NAME, Ours};
use crate::cli::clients::file::ClientText;
use crate::cli::clients::{McpClient, Remote, shown};
use crate::cli::commands::token;
use crate::cli::confirm::{confirm, declined};
use crate::cli::error::CommandError;
use crate::cli::load_config;
use crate::cli::output::Output;
use crate::cli::terminal_safe::{clean, line};
use crate::config::edit::{self, WrittenValue};
use crate::config::file::{Loaded, MAX_FILE_BYTES, locate};
use crate::os::{edited_file, private};

/// What the name of the file that is kept ends with.
const BACKUP: &str = ".before-mcpproxy";
/// What stands for a token that is yet to be made.
const NEW_TOKEN: &str = "a new token";

/// Runs the command.
pub(super) fn run(
    flags: &ConnectArgs,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    let client = flags.client;
    let path = client.path(&load_config::variable).ok_or_else(|| {
        CommandError::failed("HOME is not set: where the client's config is is not known")
    })?;
    let program = std::env::current_exe().map_err(CommandError::failed)?;
    let home = |name: &str| load_config::variable(name).filter(|_| name == "HOME");
    let default = locate(None, &home);
    let config = fs::canonicalize(&loaded.path).unwrap_or_else(|_| loaded.path.clone());
    let is_default = default.is_ok_and(|default| default == loaded.path);
    let ours = Ours {
        listen: loaded.config.listen.tcp().filter(|_| loaded.config.tls.is_none()),
        key: None,
        program: &program,
        config: (!is_default).then_some(config.as_path()),
    };
    if ours.listen.is_some_and(|listen| listen.port() == 0)
        && client.known().remote != Remote::Unknown
    {
        let words = "listen has port 0, another one at each start: name a port in the config first";
        return Err(CommandError::failed(words));
    }
    match flags.undo {
        false => connect(flags, client, &path, &ours, &loaded, output),
        true => undo(flags, client, &path, &ours, &loaded, output),
    }
}

/// The agent token of a client: it can call tools, and is not the key, which can change what is allowed.
fn token_name(client: McpClient) -> String {
    format!("connect-{}", client.word())
}

/// The token that stands in our entry, as long as it is the one of this client and counts.
fn token_in(
    text: &str,
    client: McpClient,
    loaded: &Loaded,
) -> Result<Option<String>, CommandError> {
    let entry = ClientText::read(text, client.known().syntax).ok().and_then(|it| it.server(NAME));
    let Some(held) = entry.as_ref().and_then(entry::key) else { return Ok(None) };
    Ok(counts(held, client, loaded)?.then(|| held.to_owned()))
}

/// Whether this is the token of the client, and counts.
fn counts(token: &str, client: McpClient, loaded: &Loaded) -> Result<bool, CommandError> {
    let (name, now) = (token_name(client), SystemTime::now());
    Ok(token::kept(loaded)?.iter().any(|kept| *kept.name == *name && kept.is_of(token, now)))
}

/// Whether what stands under our name is our entry: it looks like one, or leads where `members` do.
fn is_ours(block: &Value, members: &[(String, Value)]) -> bool {
    let goes_there = ["url", "serverUrl"].iter().any(|key| {
        members.iter().any(|(name, value)| name == key && block.get(*key) == Some(value))
    });
    goes_there || block.as_object().is_some_and(|block| entry::is_ours(NAME, block))
}

/// The text with our entry in it.
fn with_entry(
    text: &str,
    client: McpClient,
    members: &[(String, Value)],
) -> Result<String, String> {
    let mut read = ClientText::read(text, client.known().syntax)?;
    let there = read.server(NAME);
    if let Some(block) = there {
        if block == Value::Object(members.iter().cloned().collect()) {
            return Ok(text.to_owned());
        }
        if !is_ours(&block, members) {
            return Err(format!(
                "it has a server '{NAME}' that is another: rename that one there first"
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
    ours: &Ours<'_>,
    loaded: &Loaded,
    output: &Output,
) -> Result<(), CommandError> {
    let (known, file) = (client.known(), path.display().to_string());
    let failed = |why: &dyn std::fmt::Display| CommandError::failed(format!("{file}: {why}"));
    let before = read(path)?;
    let carries_token = loaded.config.require_mcp_auth && ours.is_remote(client);
    let token_in = |text: &str| match carries_token {
        true => token_in(text, client, loaded),
        false => Ok(None),
    };
    let members = |token: Option<&str>| Ours { key: token, ..*ours }.members(client);
    // A new one is made when it is known that it will be written.
    let token = token_in(before.as_deref().unwrap_or_default())?;
    let planned = members(token.as_deref().or(carries_token.then_some(NEW_TOKEN)));
    let next = with_entry(before.as_deref().unwrap_or_default(), client, &planned);
    let next = next.map_err(|why| failed(&why))?;
    let answer = |changed: bool| json!({"client": client.word(), "file": file, "connected": !flags.dry_run, "changed": changed});
    if before.as_deref() == Some(next.as_str()) {
        return output.print(&answer(false).to_string(), |_| {
            format!("{} is connected already.", known.name)
        });
    }
    let shown = shown('+', &file, &planned);
    if flags.dry_run {
        return output.print(&answer(true).to_string(), |_| shown.clone());
    }
    if !confirm(&shown, &format!("Write this for {}?", known.name), flags.yes)? {
        return declined();
    }
    let mut minted: Option<String> = None;
    let written = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let known_text = text.unwrap_or_default();
        with_entry(known_text, client, &planned)?;
        // Of a file with our entry the one without is kept already.
        let has_ours = ClientText::read(known_text, known.syntax)
            .is_ok_and(|read| read.server(NAME).is_some());
        if let (Some(text), false) = (text, has_ours) {
            keep(path, text).map_err(|error| format!("it cannot be kept as it was: {error}"))?;
        }
        // Others may be at it: what they have written counts, and what was made here may have been renewed by them.
        let said = |error: CommandError| error.message;
        let mut token = token_in(known_text).map_err(said)?;
        if carries_token && token.is_none() {
            let made = match minted.take() {
                Some(made) if counts(&made, client, loaded).map_err(said)? => made,
                Some(_) | None => token::mint(loaded, &token_name(client)).map_err(said)?,
            };
            token = minted.insert(made).clone().into();
        }
        let next = with_entry(known_text, client, &members(token.as_deref()))?;
        Ok::<_, String>((Some(next), ()))
    });
    if let Err(error) = written {
        // Nobody has it.
        let left = minted.is_some() && token::end(loaded, &token_name(client)).is_err();
        let name = token_name(client);
        let more = format!(". Token '{name}' is left: `mcpproxy token revoke {name}` ends it");
        return Err(failed(&format!("{error}{}", if left { &more } else { "" })));
    }
    output.print(&answer(true).to_string(), |_| {
        let mut told = format!("{} is connected. {}", known.name, known.afterwards);
        if carries_token {
            let name = token_name(client);
            told += &format!(
                "\nIt calls with token '{name}', which `mcpproxy token revoke {name}` ends."
            );
        }
        if carries_token && let Some(mode) = private::wider(path) {
            told += &format!(
                "\nThe entry holds the token, and others may read the file (mode {mode:03o}): chmod 600 {}",
                line(&file)
            );
        }
        told
    })
}

fn undo(
    flags: &ConnectArgs,
    client: McpClient,
    path: &Path,
    ours: &Ours<'_>,
    loaded: &Loaded,
    output: &Output,
) -> Result<(), CommandError> {
    let (known, file) = (client.known(), path.display().to_string());
    let failed = |why: &dyn std::fmt::Display| CommandError::failed(format!("{file}: {why}"));
    let answer = |changed: bool| json!({"client": client.word(), "file": file, "connected": false, "changed": changed && !flags.dry_run});
    let text = read(path)?.unwrap_or_default();
    let there = ClientText::read(&text, known.syntax).map_err(|why| failed(&why))?.server(NAME);
    let members = &Ours { key: there.as_ref().and_then(entry::key), ..*ours }.members(client);
    let Some(Value::Object(there)) = there.clone().filter(|block| is_ours(block, members)) else {
        let name = token_name(client);
        let ended = !flags.dry_run && token::end(loaded, &name)?;
        let token = if ended { format!(" Token '{name}' is ended.") } else { String::new() };
        return output.print(&answer(false).to_string(), |_| {
            format!("{} has no entry of ours.{token}", known.name)
        });
    };
    let shown = shown('-', &file, &there.into_iter().collect::<Vec<_>>());
    if flags.dry_run {
        return output.print(&answer(true).to_string(), |_| shown.clone());
    }
    if !confirm(&shown, &format!("Take this from {}?", known.name), flags.yes)? {
        return declined();
    }
    let kept = read(&backup(path))?;
    let is_alone = edited_file::edit(path, MAX_FILE_BYTES, |text| {
        let text = text.unwrap_or_default();
        let untouched = |before: &str| with_entry(before, client, members).as_deref() == Ok(text);
        if let Some(kept) = kept.as_deref().filter(|kept| untouched(kept)) {
            return Ok((Some(kept.to_owned()), false));
        }
        let mut read = ClientText::read(text, known.syntax)?;
        read.remove(NAME)?;
        Ok::<_, String>((Some(read.text()), kept.is_none() && untouched("")))
    });
    if is_alone.map_err(|error| failed(&error))? {
        // It was made for our entry.
        fs::remove_file(path).map_err(|error| failed(&error))?;
    }
    if kept.is_some() {
        let _ = fs::remove_file(backup(path));
    }
    token::end(loaded, &token_name(client))?;
    output.print(&answer(true).to_string(), |_| {
        format!("{} is no longer connected. {}", known.name, known.afterwards)
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

/// Keeps a text beside its file, for its owner alone.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = private::create(&backup(path))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The entry as a change of the file, without what is secret.
fn shown(sign: char, file: &str, members: &[(String, Value)]) -> String {
    let text = edit::rendered(NAME, &shown::shown(members));
    let rows = clean(&text).lines().map(|row| format!("{sign} {row}\n")).collect::<String>();
    format!("{} {}\n{rows}", String::from(sign).repeat(3), line(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_entry_is_known_again_wherever_the_proxy_listens() {
        for listen in ["127.0.0.1:8080", "0.0.0.0:8080", "192.168.1.2:8080"] {
            let ours = |key| Ours {
                listen: listen.parse().ok(),
                key,
                program: Path::new("/bin/mcpproxy"),
                config: None,
            };
            let (members, keyed) =
                (ours(None).members(McpClient::Cursor), ours(Some("k")).members(McpClient::Cursor));
            let written = with_entry("{}", McpClient::Cursor, &members).unwrap();
            assert_eq!(with_entry(&written, McpClient::Cursor, &members).as_ref(), Ok(&written));
            assert!(
                with_entry(&written, McpClient::Cursor, &keyed).is_ok(),
                "{listen}: it is renewed"
            );
        }
        let theirs = r#"{"mcpServers": {"mcpproxy": {"url": "http://192.168.1.3:8080/mcp"}}}"#;
        let members = vec![("url".to_owned(), json!("http://192.168.1.2:8080/mcp"))];
        assert!(with_entry(theirs, McpClient::Cursor, &members).is_err());
    }
}
