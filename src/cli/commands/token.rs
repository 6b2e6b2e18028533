//! `mcpproxy token …`: agent tokens.
//!
//! A proxy that runs is asked, so that a change is in force at once; without one the file in the data folder is changed,
//! and the next one finds it.

use std::fmt::Write as _;
use std::time::SystemTime;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::api;
use crate::cli::args::{Global, TokenCommand, TokenCreate};
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::suggest::{Vocabulary, did_you_mean, suggesting};
use crate::cli::table::{Column, Fit, cell};
use crate::cli::terminal_safe::line;
use crate::cli::{load_config, running_proxy};
use crate::config::file::Loaded;
use crate::identity::{
    Identity, KeptToken, NewAgentToken, TokenChange, TokenChangeError, TokenFile,
};
use crate::intent::Operation;
use crate::server;

/// The columns of the list, and where their values stand.
const TOKEN_COLUMNS: [((&str, Fit), &str); 6] = [
    (("NAME", Fit::Name), "/name"),
    (("SERVERS", Fit::Rank(2)), "/servers"),
    (("TOOLS", Fit::Free), "/tools"),
    (("OPERATIONS", Fit::Rank(3)), "/operations"),
    (("CREATED", Fit::Rank(4)), "/created"),
    (("EXPIRES", Fit::Whole), "/expires"),
];

/// Runs one of the commands.
pub(super) fn run(
    command: TokenCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    let is_list = matches!(command, TokenCommand::List);
    let json = change(&loaded, command)?;
    output.print(&json, |answer| if is_list { table(answer, output) } else { told(answer) })
}

/// Makes a token of all rights that an agent can have: of a new secret, if there is one of that name already. Answers the
/// secret.
///
/// # Errors
/// The proxy that runs refuses it, or the file cannot be written.
pub(super) fn mint(loaded: &Loaded, name: &str) -> Result<String, CommandError> {
    let rotate = || change(loaded, TokenCommand::Rotate { name: name.to_owned() });
    let made = match is_there(loaded, name)? {
        true => rotate()?,
        false => {
            let create = TokenCreate {
                name: name.to_owned(),
                servers: Vec::new(),
                tools: Vec::new(),
                operations: Vec::new(),
                expires: None,
            };
            match change(loaded, TokenCommand::Create(create)) {
                // Another has made it meanwhile.
                Err(_) if is_there(loaded, name)? => rotate()?,
                made => made?,
            }
        }
    };
    let made: Value = serde_json::from_str(&made).map_err(CommandError::failed)?;
    Ok(text(&made, "/token").into_owned())
}

/// Ends the token of that name, if there is one. Answers whether there was.
///
/// # Errors
/// As of [`mint`].
pub(super) fn end(loaded: &Loaded, name: &str) -> Result<bool, CommandError> {
    let there = is_there(loaded, name)?;
    if there {
        change(loaded, TokenCommand::Revoke { name: name.to_owned() })?;
    }
    Ok(there)
}

fn is_there(loaded: &Loaded, name: &str) -> Result<bool, CommandError> {
    Ok(kept(loaded)?.iter().any(|token| &*token.name == name))
}

/// What is kept of the tokens in the data folder.
///
/// # Errors
/// The file cannot be read.
pub(super) fn kept(loaded: &Loaded) -> Result<Vec<KeptToken>, CommandError> {
    TokenFile::new(&loaded.config.data_dir).load().map_err(CommandError::failed)
}

/// Has the proxy that runs make a change, or makes it in the file.
fn change(loaded: &Loaded, command: TokenCommand) -> Result<String, CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    match runtime.block_on(running_proxy::find(&loaded.config)) {
        Some(client) => runtime.block_on(ask(&Backend::Remote(client), command)),
        None => on_disk(&Identity::new(TokenFile::new(&loaded.config.data_dir), None), command),
    }
}

/// Asks the proxy that runs.
async fn ask(backend: &Backend, command: TokenCommand) -> Result<String, CommandError> {
    let tokens = target(&["tokens"], &[]);
    let answer = match command {
        TokenCommand::List => backend.get(&tokens).await?,
        TokenCommand::Create(flags) => {
            let new = serde_json::to_string(&new(flags)).map_err(CommandError::failed)?;
            backend.post(&tokens, new).await?
        }
        TokenCommand::Rotate { name } => {
            let asked = target(&["tokens", &name, "rotate"], &[]);
            let rotated = backend.post(&asked, String::new()).await;
            suggesting(rotated, backend, Vocabulary::Tokens, &name).await?
        }
        TokenCommand::Revoke { name } => {
            let target = target(&["tokens", &name], &[]);
            let revoked = backend.request(Method::DELETE, &target, Bytes::new()).await;
            suggesting(revoked, backend, Vocabulary::Tokens, &name).await?
        }
    };
    answer.json().map(str::to_owned)
}

/// Changes the file.
fn on_disk(identity: &Identity, command: TokenCommand) -> Result<String, CommandError> {
    let now = SystemTime::now();
    let change = match command {
        TokenCommand::List => {
            let kept = identity.kept().map_err(CommandError::failed)?;
            let shown = api::shown_tokens(&kept, now);
            return serde_json::to_string(&shown).map_err(CommandError::failed);
        }
        TokenCommand::Create(flags) => TokenChange::Create(new(flags)),
        TokenCommand::Rotate { name } => TokenChange::Rotate(name),
        TokenCommand::Revoke { name } => TokenChange::Revoke(name),
    };
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(CommandError::failed)?;
    let changed = identity.change(change, random, now).map_err(|error| {
        let kept = identity.kept().unwrap_or_default();
        let names = kept.iter().map(|token| &*token.name);
        let meant = match &error {
            TokenChangeError::Missing(name) => did_you_mean(name, names),
            TokenChangeError::Name(_)
            | TokenChangeError::List(_)
            | TokenChangeError::Expires
            | TokenChangeError::Exists(_)
            | TokenChangeError::Full
            | TokenChangeError::File(_) => String::new(),
        };
        CommandError::failed(format!("{error}{meant}"))
    })?;
    serde_json::to_string(&api::shown_change(changed)).map_err(CommandError::failed)
}

fn new(flags: TokenCreate) -> NewAgentToken {
    let TokenCreate { name, servers, tools, operations, expires } = flags;
    let operations = operations.iter().filter_map(|word| Operation::from_word(word)).collect();
    let expires_in = expires.map(|expires| expires.as_secs());
    NewAgentToken { name, servers, tools, operations, expires_in }
}

fn table(answer: &Value, output: &Output) -> String {
    let words = |token: &Value, column: &str| match token.pointer(column) {
        Some(Value::Array(words)) if words.is_empty() => "all".to_owned(),
        Some(Value::Array(words)) => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        Some(Value::Null) | None => "never".to_owned(),
        Some(_) if column == "/expires" && token.pointer("/expired") == Some(&true.into()) => {
            format!("{} (expired)", text(token, column))
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            text(token, column).into_owned()
        }
    };
    let rows: Vec<_> = list(answer, "/tokens")
        .iter()
        .map(|token| TOKEN_COLUMNS.map(|(_, column)| cell(&words(token, column)).into()).to_vec())
        .collect();
    match rows.is_empty() {
        true => "No tokens. `mcpproxy token create NAME` makes one.".to_owned(),
        false => output.table(&Column::all(TOKEN_COLUMNS.map(|(column, _)| column)), rows),
    }
}

fn told(answer: &Value) -> String {
    let name = line(&text(answer, "/name")).into_owned();
    if answer.pointer("/revoked").is_some() {
        return format!("Token '{name}' is revoked.");
    }
    let mut told = format!("{}\n\n", line(&text(answer, "/token")));
    let _ = write!(told, "This is token '{name}', shown this once. ");
    let _ = match answer.pointer("/expires") {
        Some(Value::String(expires)) => write!(told, "It expires at {}.", line(expires)),
        Some(_) | None => write!(told, "It does not expire."),
    };
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_the_end_of_a_token_in_view() {
        for name in crate::cli::output::tests::names() {
            let answer = serde_json::json!({"tokens": [{
                "name": name, "servers": [name, "b"], "tools": [name], "operations": ["read"],
                "created": "2026-01-02T03:04:05Z", "expires": "2026-02-03T04:05:06Z", "expired": true,
            }]});
            let keeps = ["NAME", "2026-02-03T04:05:06Z (expired)"];
            crate::cli::output::tests::fits(|output| table(&answer, output), &keeps);
        }
    }
}
