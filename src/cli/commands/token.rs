//! `mcpproxy token …`: agent tokens.
//!
//! Changes go through the running proxy, which applies them immediately. If none runs, the token file in the data
//! directory is changed.

use crate::args::{Global, TokenCommand, TokenCreate, TokenScope};
use crate::backend::{Backend, target};
use crate::commands::tool_names::StoredTools;
use crate::completion::{Vocabulary, did_you_mean, suggesting, unknown_server};
use crate::error::CommandError;
use crate::format::{Times, list, text};
use crate::output::{Output, confirm, declined};
use crate::table::{Cell, Column, Fit, cell, wrapped_cell};
use crate::terminal_safe::line;
use crate::{backend, logging, output, running_proxy, start_proxy};
use bytes::Bytes;
use http::Method;
use mcpproxy_admin::api;
use mcpproxy_config::Config;
use mcpproxy_config::file::Loaded;
use mcpproxy_policy::identity::{
    Identity, NewAgentToken, StoredToken, TokenChange, TokenChangeError, TokenFile,
};
use mcpproxy_policy::intent::Operation;
use mcpproxy_server as server;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdin};
use std::time::SystemTime;

/// Columns of the list for programs, with the JSON pointers of their values.
const TOKEN_COLUMNS: [((&str, Fit), &str); 5] = [
    (("NAME", Fit::Middle), "/name"),
    (("SERVERS", Fit::Name), "/servers"),
    (("TOOLS", Fit::Name), "/tools"),
    (("OPERATIONS", Fit::Whole), "/operations"),
    (("EXPIRES", Fit::Whole), "/expires"),
];
/// Columns for people. The last one has the servers and tools of a restricted token, on a line of its own if they are long.
const COLUMNS_FOR_PEOPLE: [((&str, Fit), &str); 4] = [
    (("NAME", Fit::Middle), "/name"),
    (("OPERATIONS", Fit::Whole), "/operations"),
    (("EXPIRES", Fit::Whole), "/expires"),
    (("LIMITED TO", Fit::Below), LIMITS),
];
/// Pointer of the restrictions in [`COLUMNS_FOR_PEOPLE`], which the response does not have.
const LIMITS: &str = "";

/// Cell of a list that does not restrict the token.
const ALL: &str = "all";

/// Note on a new token while clients do not need one.
const OPEN_NOTE: &str = "\n\nClients without a token are not limited: /mcp is open until the config has \
     \"require_mcp_auth\": true. A client that starts `mcpproxy stdio` needs none: its calls are anonymous.";

/// Runs a token command.
pub(super) fn run(
    command: TokenCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let is_list = matches!(command, TokenCommand::List);
    let (loaded, _log) = match start_proxy::load_with_log(global) {
        Ok(loaded) => loaded,
        Err(failure) if is_list => {
            let runtime = server::local_runtime().map_err(CommandError::failed)?;
            let backend = runtime.block_on(backend::despite(failure, global))?;
            let tokens = runtime.block_on(backend.get(&target(&["tokens"], &[])))?;
            return output.print(tokens.json()?, |tokens| table(tokens, output));
        }
        Err(failure) => return Err(failure),
    };
    if let TokenCommand::Create(flags) = &command {
        check_scope(&loaded.config, &flags.scope)?;
    }
    let question = match &command {
        TokenCommand::Revoke { name, yes: false } => Some((name, "Revoke token 'NAME'?")),
        TokenCommand::Rotate { name, yes: false } => {
            Some((name, "Replace the secret of token 'NAME'? The old one stops working."))
        }
        _ => None,
    };
    // An unknown token is reported by the change itself.
    if let Some((name, question)) = question
        && exists(&loaded, name).unwrap_or(true)
        && !confirm("", &question.replace("NAME", &line(name)), !stdin().is_terminal())?
    {
        return declined();
    }
    let is_open = matches!(command, TokenCommand::Create(_)) && !loaded.config.require_mcp_auth;
    let json = change(&loaded, command)?;
    if is_list {
        return output.print(&json, |tokens| table(tokens, output));
    }
    let changed = output::parse(&json)?;
    let note = summary(&changed) + if is_open { OPEN_NOTE } else { "" };
    match changed.get("token") {
        None => output.print(&json, |_| note),
        Some(_) => {
            let secret = line(&text(&changed, "/token")).into_owned();
            let shown = |secret: &str, note: &str| format!("{secret}\n\n{note}");
            output.print_value(&json, (&secret, &note), shown)
        }
    }
}

/// Checks that the servers of a new token exist, and warns about tools that do not.
pub(super) fn check_scope(config: &Config, scope: &TokenScope) -> Result<(), CommandError> {
    only_known_servers(config, &scope.servers)?;
    warn_of_unknown_tools(config, scope);
    Ok(())
}

/// Checks that the config has all servers of a new token: a misspelled name would leave a valid token without access.
fn only_known_servers(config: &Config, servers: &[String]) -> Result<(), CommandError> {
    let known = || config.servers.iter().map(|server| &*server.name);
    match servers.iter().find(|name| !known().any(|known| known == name.as_str())) {
        None => Ok(()),
        Some(unknown) => {
            let is_list = unknown.split(',').all(|part| known().any(|known| known == part));
            let why = match is_list {
                true => "give --server once for each server".to_owned(),
                false => unknown_server(unknown, known()),
            };
            Err(CommandError::failed(format!("no token was created: {why}")))
        }
    }
}

/// Warns about tools of a new token that their server does not have, or that belong to no server.
fn warn_of_unknown_tools(config: &Config, TokenScope { servers, tools, .. }: &TokenScope) {
    let mut stored = StoredTools::new(config);
    for why in tools.iter().filter_map(|typed| stored.unmatched_of_token(typed, servers)) {
        logging::print_line(format_args!("warning: {why}"));
    }
}

/// Creates an agent token, and returns its secret. A token that exists is rotated if the new one has no restrictions, so that
/// it keeps its own, and replaced otherwise.
pub(super) fn mint(
    loaded: &Loaded,
    name: &str,
    scope: &TokenScope,
) -> Result<String, CommandError> {
    let rotate = || change(loaded, TokenCommand::Rotate { name: name.to_owned(), yes: true });
    let keeps = *scope == TokenScope::default();
    if !keeps {
        revoke(loaded, name)?;
    }
    let made = match exists(loaded, name)? {
        true => rotate()?,
        false => {
            let create = TokenCreate { name: name.to_owned(), scope: scope.clone() };
            match change(loaded, TokenCommand::Create(create)) {
                // Another process has created it in the meantime.
                Err(_) if keeps && exists(loaded, name)? => rotate()?,
                made => made?,
            }
        }
    };
    let made: Value = serde_json::from_str(&made).map_err(CommandError::failed)?;
    Ok(text(&made, "/token").into_owned())
}

/// Revokes a token if it exists. Returns whether it existed.
pub(super) fn revoke(loaded: &Loaded, name: &str) -> Result<bool, CommandError> {
    let found = exists(loaded, name)?;
    if found {
        change(loaded, TokenCommand::Revoke { name: name.to_owned(), yes: true })?;
    }
    Ok(found)
}

/// Whether the data directory has a token with this name.
pub(super) fn exists(loaded: &Loaded, name: &str) -> Result<bool, CommandError> {
    Ok(stored_tokens(loaded)?.iter().any(|token| &*token.name == name))
}

/// Tokens in the data directory.
pub(super) fn stored_tokens(loaded: &Loaded) -> Result<Vec<StoredToken>, CommandError> {
    TokenFile::new(&loaded.config.data_dir).load().map_err(CommandError::failed)
}

/// Applies a change through the running proxy, or to the file if none runs.
fn change(loaded: &Loaded, command: TokenCommand) -> Result<String, CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    match runtime.block_on(running_proxy::find(&loaded.config)) {
        Some(client) => runtime.block_on(ask(&Backend::Remote(client), command)),
        None => on_disk(&Identity::new(TokenFile::new(&loaded.config.data_dir), None), command),
    }
}

/// Applies a change through the running proxy.
async fn ask(backend: &Backend, command: TokenCommand) -> Result<String, CommandError> {
    let tokens = target(&["tokens"], &[]);
    let response = match command {
        TokenCommand::List => backend.get(&tokens).await?,
        TokenCommand::Create(flags) => {
            let new = serde_json::to_string(&new(flags)).map_err(CommandError::failed)?;
            backend.post(&tokens, new).await.map_err(CommandError::of_flags)?
        }
        TokenCommand::Rotate { name, .. } => {
            let path = target(&["tokens", &name, "rotate"], &[]);
            let rotated = backend.post(&path, String::new()).await;
            suggesting(rotated, backend, Vocabulary::Tokens, &name).await?
        }
        TokenCommand::Revoke { name, .. } => {
            let target = target(&["tokens", &name], &[]);
            let revoked = backend.request(Method::DELETE, &target, Bytes::new()).await;
            suggesting(revoked, backend, Vocabulary::Tokens, &name).await?
        }
    };
    response.json().map(str::to_owned)
}

/// Applies a change to the token file.
fn on_disk(identity: &Identity, command: TokenCommand) -> Result<String, CommandError> {
    let now = SystemTime::now();
    let change = match command {
        TokenCommand::List => {
            let stored_tokens = identity.kept().map_err(CommandError::failed)?;
            let shown = api::shown_tokens(&stored_tokens, now);
            return serde_json::to_string(&shown).map_err(CommandError::failed);
        }
        TokenCommand::Create(flags) => TokenChange::Create(new(flags)),
        TokenCommand::Rotate { name, .. } => TokenChange::Rotate(name),
        TokenCommand::Revoke { name, .. } => TokenChange::Revoke(name),
    };
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(CommandError::failed)?;
    let changed = identity.change(change, random, now).map_err(|error| {
        let stored_tokens = identity.kept().unwrap_or_default();
        let names = stored_tokens.iter().map(|token| &*token.name);
        let suggestion = match &error {
            TokenChangeError::Missing(name) => did_you_mean(name, names),
            TokenChangeError::Name(_)
            | TokenChangeError::LongName(..)
            | TokenChangeError::List(_)
            | TokenChangeError::Expires
            | TokenChangeError::Exists(_)
            | TokenChangeError::Full
            | TokenChangeError::File(_) => String::new(),
        };
        let message = match &error {
            TokenChangeError::Expires => "--expires must be from 1 second to 10 years".to_owned(),
            error => format!("{error}{suggestion}"),
        };
        match error.is_about_input() {
            true => CommandError::usage(message),
            false => CommandError::failed(message),
        }
    })?;
    serde_json::to_string(&api::shown_change(changed)).map_err(CommandError::failed)
}

fn new(flags: TokenCreate) -> NewAgentToken {
    let TokenCreate { name, scope: TokenScope { servers, tools, operations, expires } } = flags;
    let operations = operations.iter().filter_map(|word| Operation::from_word(word)).collect();
    let expires_in = expires.map(|expires| expires.as_secs());
    NewAgentToken { name, servers, tools, operations, expires_in }
}

fn table(response: &Value, output: &Output) -> String {
    let times = Times::new(None, output.terminal);
    let words = |token: &Value, column: &str| match token.pointer(column) {
        Some(Value::Array(words)) if words.is_empty() => ALL.to_owned(),
        Some(Value::Array(words)) => {
            // In a pipe, blanks separate columns.
            let between = if output.view.width.is_some() { ", " } else { "," };
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between)
        }
        Some(Value::Null) | None => "never".to_owned(),
        Some(_) if column == "/expires" => {
            let expires = text(token, column);
            let expires = match &times {
                Times::Relative(_) => times.show_text(&expires),
                Times::Zone(..) | Times::Clock(_) => expires.into_owned(),
            };
            let is_over = token.pointer("/expired") == Some(&true.into());
            expires + if is_over { " (expired)" } else { "" }
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            text(token, column).into_owned()
        }
    };
    let limits = |token: &Value| {
        let named = [("servers", "/servers"), ("tools", "/tools")].map(|(kind, at)| {
            let names = words(token, at);
            (names != ALL).then(|| format!("{kind} {names}"))
        });
        named.into_iter().flatten().collect::<Vec<_>>().join("; ")
    };
    let columns = match output.view.width {
        Some(_) => COLUMNS_FOR_PEOPLE.to_vec(),
        None => TOKEN_COLUMNS.to_vec(),
    };
    let cell_of = |token: &Value, at: &str| match at {
        LIMITS => wrapped_cell(&limits(token)).into(),
        at => cell(&words(token, at)).into(),
    };
    let rows = list(response, "/tokens").iter();
    let rows = rows.map(|token| columns.iter().map(|(_, at)| cell_of(token, at)).collect());
    let rows: Vec<Vec<Cell>> = rows.collect();
    match rows.is_empty() {
        true => output.none("No tokens. Create one with `mcpproxy token create NAME`."),
        false => {
            let columns = columns.iter().map(|((name, fit), _)| Column::new(*name, *fit));
            output.table(&columns.collect::<Vec<_>>(), rows)
        }
    }
}

/// States what was done, without the secret.
fn summary(response: &Value) -> String {
    let name = line(&text(response, "/name")).into_owned();
    if response.pointer("/revoked").is_some() {
        return format!("Token '{name}' has been revoked.");
    }
    let mut summary = format!("This is token '{name}'; it is shown only once. ");
    let _ = match response.pointer("/expires") {
        Some(Value::String(expires)) => write!(summary, "It expires at {}.", line(expires)),
        Some(_) | None => write!(summary, "It does not expire."),
    };
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_list_keeps_expiry_beside_long_names() {
        for name in crate::output::tests::names() {
            let response = serde_json::json!({"tokens": [{
                "name": name, "servers": [name, "b"], "tools": [name], "operations": ["read"],
                "created": "2026-01-02T03:04:05Z", "expires": "2026-02-03T04:05:06Z", "expired": true,
            }]});
            let keeps = ["NAME", "OPERATIONS", "(expired)", "servers "];
            crate::output::tests::fits(|output| table(&response, output), &keeps);
        }
    }

    #[test]
    fn list_of_servers_in_one_option_is_explained() {
        let text = r#"{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}}"#;
        let flags = mcpproxy_config::Flags {
            data_dir: Some("/nowhere".into()),
            ..mcpproxy_config::Flags::default()
        };
        let config = mcpproxy_config::parse(text, &|_| None, &flags).unwrap().0;
        let refused =
            |server: &str| only_known_servers(&config, &[server.to_owned()]).unwrap_err().message;
        assert_eq!(refused("a,b"), "no token was created: give --server once for each server");
        assert!(refused("a,c").contains("there is no server 'a,c'"), "{}", refused("a,c"));
    }
}
