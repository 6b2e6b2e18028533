//! "Did you mean …?": what a word was meant to be that nobody knows, in the words of a shell.
//!
//! Asked after a request has failed, so that what succeeds costs nothing. What cannot be found out suggests
//! nothing.

use http::StatusCode;
use serde_json::Value;

use super::backend::{Backend, target};
use super::error::CommandError;
use super::json_pointer::{list, text};
use super::output::parse;
use super::pagination;
use super::terminal_safe::line;
use crate::nearest::nearest;

/// Most tools that are looked through.
const MAX_TOOLS: u32 = 10_000;

/// What a word is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vocabulary {
    Tools,
    Servers,
    ToolsAndServers,
    Tokens,
}

/// The same outcome; where nothing has the name, with the name that is most like it.
pub(super) async fn suggesting<T>(
    asked: Result<T, CommandError>,
    backend: &Backend,
    vocabulary: Vocabulary,
    word: &str,
) -> Result<T, CommandError> {
    let mut failure = match asked {
        Err(failure) if failure.status == Some(StatusCode::NOT_FOUND) => failure,
        other => return other,
    };
    let (meant, all) = match vocabulary {
        Vocabulary::Tools => (tool(backend, word).await, Some("mcpproxy tools search")),
        Vocabulary::Servers => {
            (among(backend, "servers", word).await, Some("mcpproxy upstream list"))
        }
        Vocabulary::ToolsAndServers => match word.contains(':') {
            true => (tool(backend, word).await, Some("mcpproxy tools search")),
            false => (among(backend, "servers", word).await, Some("mcpproxy upstream list")),
        },
        Vocabulary::Tokens => (among(backend, "tokens", word).await, Some("mcpproxy token list")),
    };
    failure.message += &advice(meant.as_deref(), all);
    Err(failure)
}

/// What is added to a message: the word that was meant, else how to find it.
fn advice(meant: Option<&str>, all: Option<&str>) -> String {
    match (meant, all) {
        (Some(meant), _) => format!(": did you mean {}?", line(meant)),
        (None, Some(command)) => format!(": `{command}` shows what there is"),
        (None, None) => String::new(),
    }
}

/// The same for names that are at hand.
pub(super) fn did_you_mean<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(word, names).map(|meant| advice(Some(meant), None)).unwrap_or_default()
}

/// What is told where a config has no server of that name: those that it has, and which was meant.
pub(super) fn unknown_server<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let known = match names.as_slice() {
        [] => "none is configured".to_owned(),
        names => format!("the config has {}", names.join(", ")),
    };
    let meant = did_you_mean(name, names.into_iter());
    format!("there is no server '{name}': {known}{meant}")
}

/// The tool that was meant by a name with or without its server.
pub(super) async fn tool(backend: &Backend, word: &str) -> Option<String> {
    let all = pagination::all(backend, "tools", &[], MAX_TOOLS).await.ok()?;
    let all = parse(&all).ok()?;
    let names: Vec<_> = list(&all, "/tools").iter().map(|tool| text(tool, "/name")).collect();
    tool_among(word, names.iter().map(|name| &**name).collect())
}

/// Whole names first, then tools of that name on other servers.
fn tool_among(word: &str, names: Vec<&str>) -> Option<String> {
    let of = |name: &str| name.split_once(':').map_or(String::new(), |(_, tool)| tool.to_owned());
    let (server, tool) = word.split_once(':').unwrap_or(("", word));
    let same: Vec<&str> = names.iter().copied().filter(|name| of(name) == tool).collect();
    if let ([first, rest @ ..], false) = (same.as_slice(), tool.is_empty()) {
        let nearest_server = nearest(word, same.iter().copied());
        return Some(match rest {
            [] => (*first).to_owned(),
            _ => nearest_server.unwrap_or(first).to_string(),
        });
    }
    if !server.is_empty() {
        let of_server: Vec<String> = names
            .iter()
            .filter(|name| name.split(':').next() == Some(server))
            .map(|it| of(it))
            .collect();
        if let Some(meant) = nearest(tool, of_server.iter().map(String::as_str)) {
            return Some(format!("{server}:{meant}"));
        }
        return nearest(word, names).map(str::to_owned);
    }
    let tools: Vec<(String, &str)> = names.iter().map(|name| (of(name), *name)).collect();
    let meant = nearest(tool, tools.iter().map(|(tool, _)| tool.as_str()))?;
    tools.iter().find(|(tool, _)| tool == meant).map(|(_, name)| (*name).to_owned())
}

/// The server or token that was meant.
async fn among(backend: &Backend, what: &str, word: &str) -> Option<String> {
    let all: Value = parse(backend.get(&target(&[what], &[])).await.ok()?.json().ok()?).ok()?;
    let names: Vec<_> =
        list(&all, &format!("/{what}")).iter().map(|it| text(it, "/name")).collect();
    nearest(word, names.iter().map(|name| &**name)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_found_by_what_was_typed_of_it() {
        let names =
            ["files:list_directory", "files:read_file", "git:list_branches", "notes:read_file"];
        for (typed, meant) in [
            ("files:list_dir", Some("files:list_directory")),
            ("file:list_directory", Some("files:list_directory")),
            ("list_directory", Some("files:list_directory")),
            ("files:raed_file", Some("files:read_file")),
            ("noets:read_file", Some("notes:read_file")),
            ("fils:list_directroy", Some("files:list_directory")),
            ("list_brances", Some("git:list_branches")),
            ("files:zzz", None),
            ("", None),
            (":", None),
        ] {
            assert_eq!(tool_among(typed, names.to_vec()).as_deref(), meant, "{typed}");
        }
    }

    #[test]
    fn what_is_suggested_hides_nothing() {
        assert_eq!(advice(Some("a\u{202e}b"), None), ": did you mean a\\u{202e}b?");
        assert_eq!(advice(None, Some("x y")), ": `x y` shows what there is");
        assert_eq!(did_you_mean("flies", ["files", "git"].into_iter()), ": did you mean files?");
        assert_eq!(did_you_mean("zzz", ["files", "git"].into_iter()), "");
        let none = unknown_server("fils", ["files", "git"].into_iter());
        let told = "there is no server 'fils': the config has files, git: did you mean files?";
        assert_eq!(none, told);
    }
}
