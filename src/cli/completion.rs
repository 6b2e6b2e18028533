//! Shell completion and "did you mean" suggestions. Both use the names of servers, tools, tokens and approvals.
//!
//! The shell starts the program with [`VARIABLE`] set and the words typed so far; the program prints the candidates and
//! exits. Names come from the running proxy if it answers within [`PATIENCE`], otherwise from disk. Names that contain
//! characters special to a shell are omitted, and after any failure there are no candidates. Suggestions are looked up
//! only after a request has failed.

use crate::args::{self, Cli, Global};
use crate::backend::{Backend, target};
use crate::error::CommandError;
use crate::format::{list, text};
use crate::output::parse;
use crate::terminal_safe::{argument, line, quoted};
use crate::{backend, output, running_proxy, start_proxy};
use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use http::StatusCode;
use mcpproxy_activity::Type;
use mcpproxy_catalog::persist;
use mcpproxy_config::Config;
use mcpproxy_config::servers::ServerEntry;
use mcpproxy_policy::identity::TokenFile;
use mcpproxy_policy::intent::Operation;
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Environment variable with which a shell requests completions.
const VARIABLE: &str = "MCPPROXY_COMPLETE";
/// Timeout for queries to the proxy.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of tools offered.
const MAX_TOOLS: u32 = 10_000;
/// Program name in registrations.
const NAME: &str = "mcpproxy";

/// Registration script for bash, which splits words at colons.
const BASH: &str = include_str!("completion/bash.sh");
/// Makes zsh complete immediately when it loads the script for a first completion.
const ZSH_FIRST: &str = "\nif [[ \"${funcstack[1]}\" == _mcpproxy ]]; then\n    \
                         _clap_dynamic_completer_mcpproxy \"$@\"\nfi\n";

/// Answers a completion request from a shell. Returns false if there is no request.
pub(super) fn answer_shell(typed: &[OsString]) -> clap::error::Result<bool> {
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(completing_command)
        .var(VARIABLE)
        .bin(NAME)
        .completer(NAME)
        .try_complete(typed.iter().cloned(), here.as_deref())
}

/// Writes the script that registers completion with a shell.
pub(super) fn script(shell: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let shells = Shells::builtins();
    match (shell, shells.completer(shell)) {
        ("bash", _) => out.write_all(BASH.as_bytes()),
        (_, None) => Err(std::io::Error::other(format!("no script for {shell}"))),
        (name, Some(shell)) => {
            shell.write_registration(VARIABLE, NAME, NAME, NAME, out)?;
            if name == "zsh" {
                out.write_all(ZSH_FIRST.as_bytes())?;
            }
            Ok(())
        }
    }
}

/// Kinds of names that can be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Tools,
    Servers,
    ToolsAndServers,
    Tokens,
    Approvals,
    Principals,
    RecordTypes,
    Statuses,
    Operations,
}

/// The command definition with completers attached.
fn completing_command() -> Command {
    with_completers(Cli::command(), &[])
}

fn with_completers(command: Command, path: &[String]) -> Command {
    let path = [path, &[command.get_name().to_owned()]].concat();
    let within = path.clone();
    let command = command.mut_args(move |arg| match names_of(&within, &arg) {
        None => arg,
        Some(names) => arg.add(ArgValueCompleter::new(move |word: &OsStr| candidates(names, word))),
    });
    command.mut_subcommands(|sub| with_completers(sub, &path))
}

fn names_of(path: &[String], arg: &Arg) -> Option<Names> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let values = arg.get_value_names().unwrap_or_default();
    let id = arg.get_id().as_str();
    if values.iter().any(|name| name == "SERVER:TOOL") {
        return Some(Names::Tools);
    }
    match (&*path, id) {
        (_, "server" | "servers") => Some(Names::Servers),
        ([_, "activity", _], "tool") => Some(Names::Tools),
        ([_, "activity", _], "kind") => Some(Names::RecordTypes),
        ([_, "activity", _], "status") => Some(Names::Statuses),
        ([_, "activity", _], "intent_type") => Some(Names::Operations),
        (_, "principal") => Some(Names::Principals),
        ([_, "upstream", "add"], _) => None,
        ([_, "upstream", _], "name") => Some(Names::Servers),
        ([_, "tools", "diff" | "approve"], "name") => Some(Names::ToolsAndServers),
        ([_, "token", "revoke" | "rotate"], "name") => Some(Names::Tokens),
        ([_, "approvals", _], "id") => Some(Names::Approvals),
        _ => None,
    }
}

fn candidates(names: Names, word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let global = global(std::env::args_os());
    let mut all = global.and_then(|global| all(names, &global)).unwrap_or_default();
    all.retain(|name| name.starts_with(word) && is_plain(name));
    all.sort();
    all.dedup();
    all.into_iter().map(CompletionCandidate::new).collect()
}

/// Whether a name consists only of characters that no shell interprets.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@+,".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
}

/// Extracts the config and the data directory from an unfinished command line.
fn global(words: impl Iterator<Item = OsString>) -> Option<Global> {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let value = |short: &str, long: &str| {
        let at = words.iter().position(|word| word == short || word == long);
        let next = at.and_then(|at| words.get(at + 1));
        let joined = words.iter().find_map(|word| word.strip_prefix(long)?.strip_prefix('='));
        next.map(String::as_str).or(joined).map(PathBuf::from)
    };
    let (config, data_dir) = (value("-c", "--config"), value("-d", "--data-dir"));
    // Environment variables apply as for any other command.
    let usual = Cli::try_parse_from([NAME, "status"]).ok()?.global;
    Some(Global {
        config: config.or_else(|| usual.config.clone()),
        data_dir: data_dir.or_else(|| usual.data_dir.clone()),
        ..usual
    })
}

fn all(names: Names, global: &Global) -> Option<Vec<String>> {
    let config = start_proxy::load(global, None).ok()?.config;
    let servers = || config.servers.iter().map(|server| server.name.to_string());
    Some(match names {
        Names::Servers => servers().collect(),
        Names::Tools => tools(&config),
        Names::ToolsAndServers => servers().chain(tools(&config)).collect(),
        Names::Tokens => tokens(&config)?,
        Names::Principals => {
            let tokens = tokens(&config).unwrap_or_default();
            let tokens = tokens.iter().map(|token| format!("token:{token}"));
            WITHOUT_KIND.map(str::to_owned).into_iter().chain(tokens).collect()
        }
        Names::RecordTypes => Type::ALL.iter().map(|it| it.as_str().to_owned()).collect(),
        Names::Statuses => args::status_words().map(str::to_owned).collect(),
        Names::Operations => Operation::ALL.iter().map(|it| it.as_str().to_owned()).collect(),
        Names::Approvals => {
            let response = query_proxy(&config, async |backend| {
                let all = backend.get(&target(&["approvals"], &[])).await.ok()?;
                all.json().ok().map(str::to_owned)
            })?;
            let response = output::parse(&response).ok()?;
            let both = list(&response, "/approvals").iter().chain(list(&response, "/standing"));
            both.map(|it| text(it, "/id").into_owned()).collect()
        }
    })
}

/// Names of the agent tokens on disk.
fn tokens(config: &Config) -> Option<Vec<String>> {
    let stored = TokenFile::new(&config.data_dir).load().ok()?;
    Some(stored.iter().map(|token| token.name.to_string()).collect())
}

/// Tools of the running proxy, or those on disk if none answers.
fn tools(config: &Config) -> Vec<String> {
    let response = query_proxy(config, async |backend| {
        backend::fetch_all(backend, "tools", &[], MAX_TOOLS).await.ok()
    });
    if let Some(response) = response.and_then(|response| output::parse(&response).ok()) {
        let tools = list(&response, "/tools");
        return tools.iter().map(|tool| text(tool, "/name").into_owned()).collect();
    }
    let Some(folder) = config.catalog().folder else { return Vec::new() };
    let of_server = |server: &ServerEntry| {
        let stored = persist::read(&folder, &server.name).ok().flatten();
        let tools = stored.map(|stored| stored.tools).unwrap_or_default();
        let offered = tools.into_iter().filter(|tool| server.tools.offers(&tool.name));
        offered.map(|tool| format!("{}:{}", server.name, tool.name)).collect::<Vec<_>>()
    };
    let enabled = config.servers.iter().filter(|server| server.upstream.enabled);
    enabled.flat_map(of_server).collect()
}

/// Queries the running proxy, with a timeout.
fn query_proxy<T>(config: &Config, ask: impl AsyncFnOnce(&Backend) -> Option<T>) -> Option<T> {
    let runtime = server::local_runtime().ok()?;
    let asking = async {
        let client = running_proxy::find(config).await?;
        ask(&Backend::Remote(client)).await
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await.ok().flatten() })
}

/// Maximum number of tools searched for a suggestion.
const MAX_SUGGESTED_TOOLS: u32 = 10_000;

/// Kinds of names that can be suggested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vocabulary {
    Tools,
    Servers,
    ToolsAndServers,
    Tokens,
}

/// Adds the most similar name to a "not found" error.
pub(super) async fn suggesting<T>(
    outcome: Result<T, CommandError>,
    backend: &Backend,
    vocabulary: Vocabulary,
    word: &str,
) -> Result<T, CommandError> {
    let mut failure = match outcome {
        Err(failure) if failure.status == Some(StatusCode::NOT_FOUND) => failure,
        other => return other,
    };
    if vocabulary == Vocabulary::Tools {
        // The server of a full name is looked up below.
        let is_server = !word.contains(':')
            && names(backend, "servers").await.is_some_and(|all| all.iter().any(|it| it == word));
        if is_server {
            failure.message = format!(
                "'{}' is a server: `mcpproxy tools list --server {}` lists its tools",
                line(word),
                argument(word)
            );
            return Err(failure);
        }
        if let Some(why) = not_offered(backend, word).await {
            failure.message = why;
            return Err(failure);
        }
        if is_hidden(backend, word).await {
            failure.message = hidden(word);
            return Err(failure);
        }
    }
    let (suggestion, all) = match vocabulary {
        Vocabulary::Tools => (tool(backend, word).await, Some("mcpproxy tools list")),
        Vocabulary::Servers => {
            (among(backend, "servers", word).await, Some("mcpproxy upstream list"))
        }
        Vocabulary::ToolsAndServers => match word.contains(':') {
            true => (tool(backend, word).await, Some("mcpproxy tools list")),
            false => (among(backend, "servers", word).await, Some("mcpproxy upstream list")),
        },
        Vocabulary::Tokens => (among(backend, "tokens", word).await, Some("mcpproxy token list")),
    };
    failure.message = match (&suggestion, vocabulary) {
        (None, Vocabulary::Tools | Vocabulary::ToolsAndServers) => advised(failure.message, all),
        (suggestion, _) => failure.message + &advice(suggestion.as_deref(), all),
    };
    Err(failure)
}

/// Principal of the API key's holder, for whom the command line acts.
pub(super) const ADMIN: &str = "admin";

/// Principals that have no kind before a colon.
pub(super) const WITHOUT_KIND: [&str; 2] = [ADMIN, "anonymous"];

/// Reason why a tool that was not found is not offered by its server, or that there is no such server; `None` if the reason is
/// another one.
async fn not_offered(backend: &Backend, word: &str) -> Option<String> {
    let (server, tool) = word.split_once(':')?;
    let all = parse(backend.get(&target(&["servers"], &[])).await.ok()?.json().ok()?).ok()?;
    let Some(found) = list(&all, "/servers").iter().find(|it| text(it, "/name") == server) else {
        let message = format!("{UNKNOWN_SERVER}{}' not found", line(server));
        return Some(match self::tool(backend, word).await {
            Some(meant) => message + &advice(Some(&meant), None),
            None => advised(message, None),
        });
    };
    if text(found, "/state") == "disabled" {
        let command = argument(server);
        return Some(format!(
            "Server '{}' is disabled: `mcpproxy upstream enable {command}`",
            line(server)
        ));
    }
    if text(found, "/state") == "failed" {
        return Some(format!(
            "Tool '{}' not found: server '{}' has failed: {} (`mcpproxy doctor`)",
            line(word),
            line(server),
            line(&text(found, "/reason"))
        ));
    }
    let config = parse(backend.get(&target(&["config"], &[])).await.ok()?.json().ok()?).ok()?;
    let disabled = config.pointer("/standing/mcpServers")?.get(server)?.get("disabled_tools")?;
    disabled.as_array()?.iter().any(|name| name == tool).then(|| {
        format!(
            "Tool '{}' is disabled: disabled_tools of mcpServers.{} names it",
            line(word),
            line(server)
        )
    })
}

/// Whether the proxy has a tool that it did not find for the administrator: the rules hide it.
async fn is_hidden(backend: &Backend, tool: &str) -> bool {
    let call = json!({"principal": ADMIN, "tool": tool}).to_string();
    backend.post("/api/v1/policy/explain", call).await.is_ok()
}

/// Message about a hidden tool.
fn hidden(tool: &str) -> String {
    let command = match quoted(tool) {
        Some(word) => {
            format!(": `mcpproxy policy explain --as {ADMIN} --tool {word}` explains why")
        }
        None => String::new(),
    };
    format!("Tool '{}' is hidden by rules{command}", line(tool))
}

/// Beginning of the proxy's message for a tool of an unknown server.
const UNKNOWN_SERVER: &str = "Server '";

/// Completes a message about a tool that resembles no known one. If its server is unknown, the servers are listed by
/// another command.
fn advised(message: String, all: Option<&str>) -> String {
    match message.starts_with(UNKNOWN_SERVER) {
        true => format!(
            "{message}: `mcpproxy upstream list` lists the servers, `mcpproxy upstream add` adds one"
        ),
        false => message + &advice(None, all),
    }
}

/// Suffix of a message: the suggested name, or the command that lists all names.
pub(super) fn advice(suggestion: Option<&str>, all: Option<&str>) -> String {
    match (suggestion, all) {
        (Some(suggestion), _) => format!(": did you mean {}?", line(suggestion)),
        (None, Some(command)) => format!(": `{command}` lists them"),
        (None, None) => String::new(),
    }
}

/// Suggestion from the given names, as a suffix of a message.
pub(super) fn did_you_mean<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(word, names).map(|suggestion| advice(Some(suggestion), None)).unwrap_or_default()
}

/// Message for an unknown server, with the configured servers and a suggestion.
pub(super) fn unknown_server<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let known = match names.as_slice() {
        [] => "none is configured".to_owned(),
        names => format!("the config has {}", names.join(", ")),
    };
    match nearest(name, names) {
        Some(meant) => {
            format!("there is no server '{name}': did you mean {}? ({known})", line(meant))
        }
        None => format!("there is no server '{name}': {known}"),
    }
}

/// Words about a token that is none of the `known` ones, with a suggestion; `None` if it is, or if they cannot be read.
pub(super) fn unknown_token(token: &str, known: Option<Vec<String>>) -> Option<String> {
    let known = known.filter(|known| known.iter().all(|it| it != token))?;
    let nearest = nearest(token, known.iter().map(String::as_str));
    let advice = advice(nearest, Some("mcpproxy token list"));
    Some(format!("no token '{}'{advice}", line(token)))
}

/// The tool most similar to a name, which may lack the server.
pub(super) async fn tool(backend: &Backend, word: &str) -> Option<String> {
    let names = tool_names(backend).await?;
    tool_among(word, names.iter().map(|name| &**name).collect())
}

/// The tool most similar to a name that no tool has, with or without its server.
pub(super) async fn unknown_tool(backend: &Backend, word: &str) -> Option<String> {
    let names = tool_names(backend).await?;
    let is_known =
        |name: &String| name == word || name.split_once(':').is_some_and(|(_, tool)| tool == word);
    if names.iter().any(is_known) {
        return None;
    }
    tool_among(word, names.iter().map(|name| &**name).collect())
}

/// Names of the tools that the administrator sees, as `server:tool`.
async fn tool_names(backend: &Backend) -> Option<Vec<String>> {
    let all = backend::fetch_all(backend, "tools", &[], MAX_SUGGESTED_TOOLS).await.ok()?;
    let all = parse(&all).ok()?;
    Some(list(&all, "/tools").iter().map(|tool| text(tool, "/name").into_owned()).collect())
}

/// Prefers full names, then tools with the same name on other servers.
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
        if let Some(suggestion) = nearest(tool, of_server.iter().map(String::as_str)) {
            return Some(format!("{server}:{suggestion}"));
        }
        return nearest(word, names).map(str::to_owned);
    }
    let tools: Vec<(String, &str)> = names.iter().map(|name| (of(name), *name)).collect();
    let suggestion = nearest(tool, tools.iter().map(|(tool, _)| tool.as_str()))?;
    tools.iter().find(|(tool, _)| tool == suggestion).map(|(_, name)| (*name).to_owned())
}

/// The most similar server or token.
async fn among(backend: &Backend, what: &str, word: &str) -> Option<String> {
    let names = names(backend, what).await?;
    nearest(word, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Names of all servers, or of all tokens; `None` if they cannot be read.
pub(super) async fn names(backend: &Backend, what: &str) -> Option<Vec<String>> {
    let all: Value = parse(backend.get(&target(&[what], &[])).await.ok()?.json().ok()?).ok()?;
    let all = list(&all, &format!("/{what}"));
    Some(all.iter().map(|it| text(it, "/name").into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_token_gets_a_suggestion() {
        let words = |token| unknown_token(token, Some(vec!["reader".to_owned(), "ci".to_owned()]));
        assert_eq!(words("redaer").as_deref(), Some("no token 'redaer': did you mean reader?"));
        let listed = "no token 'zzzzzz': `mcpproxy token list` lists them";
        assert_eq!(words("zzzzzz").as_deref(), Some(listed));
        assert_eq!(words("ci"), None);
        assert_eq!(unknown_token("redaer", None), None);
    }

    #[test]
    fn completion_offers_the_kind_of_name_that_an_argument_takes() {
        let mut found = Vec::new();
        fn visit(command: &Command, path: &[String], found: &mut Vec<(String, Names)>) {
            let path = [path, &[command.get_name().to_owned()]].concat();
            for arg in command.get_arguments() {
                if let Some(names) = names_of(&path, arg) {
                    found.push((format!("{} {}", path[1..].join(" "), arg.get_id()), names));
                }
            }
            command.get_subcommands().for_each(|sub| visit(sub, &path, found));
        }
        visit(&Cli::command(), &[], &mut found);
        for (word, names) in [
            ("call tool-read tool", Names::Tools),
            ("call tool-write tool_name", Names::Tools),
            ("tools show name", Names::Tools),
            ("tools diff name", Names::ToolsAndServers),
            ("tools list server", Names::Servers),
            ("policy explain tool", Names::Tools),
            ("upstream restart name", Names::Servers),
            ("upstream logs name", Names::Servers),
            ("activity list server", Names::Servers),
            ("token create servers", Names::Servers),
            ("token revoke name", Names::Tokens),
            ("approvals deny id", Names::Approvals),
            ("activity list tool", Names::Tools),
            ("activity watch status", Names::Statuses),
            ("activity export kind", Names::RecordTypes),
            ("activity list intent_type", Names::Operations),
            ("activity list principal", Names::Principals),
            ("policy explain principal", Names::Principals),
        ] {
            assert!(found.contains(&(word.to_owned(), names)), "{word}: {found:?}");
        }
        assert!(
            !found
                .iter()
                .any(|(word, _)| word == "upstream add name" || word == "token create name")
        );
    }

    #[test]
    fn names_special_to_a_shell_are_omitted() {
        for plain in ["files:read_file", "a.b-c:d/e", "x@1+2"] {
            assert!(is_plain(plain), "{plain}");
        }
        for bad in [
            "",
            "a b",
            "a;rm",
            "$(id)",
            "`id`",
            "a\nb",
            "-rf",
            "a\u{200b}",
            "a'b",
            "a*",
            "~x",
            "a\\b",
        ] {
            assert!(!is_plain(bad), "{bad}");
        }
    }

    #[test]
    fn config_flag_is_found_in_unfinished_lines() {
        let of = |words: &[&str]| global(words.iter().map(OsString::from)).unwrap().config;
        assert_eq!(of(&["x", "--", "mcpproxy", "-c", "a.json", "call"]), Some("a.json".into()));
        assert_eq!(of(&["mcpproxy", "--config=b.json", "tools", ""]), Some("b.json".into()));
    }

    #[test]
    fn similar_tools_are_suggested() {
        let names =
            ["files:list_directory", "files:read_file", "git:list_branches", "notes:read_file"];
        for (typed, suggestion) in [
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
            assert_eq!(tool_among(typed, names.to_vec()).as_deref(), suggestion, "{typed}");
        }
    }

    #[test]
    fn cli_3_tool_of_an_unknown_server_points_to_the_servers() {
        let of = |message: &str| advised(message.to_owned(), Some("mcpproxy tools list"));
        assert_eq!(
            of("Server 'files' not found"),
            "Server 'files' not found: `mcpproxy upstream list` lists the servers, `mcpproxy upstream add` adds one"
        );
        let tool = "Tool 'files:x' not found";
        assert_eq!(of(tool), format!("{tool}: `mcpproxy tools list` lists them"));
    }

    #[test]
    fn suggestions_show_hidden_characters() {
        assert_eq!(advice(Some("a\u{202e}b"), None), ": did you mean a\\u{202e}b?");
        assert_eq!(advice(None, Some("x y")), ": `x y` lists them");
        assert_eq!(did_you_mean("flies", ["files", "git"].into_iter()), ": did you mean files?");
        assert_eq!(did_you_mean("zzz", ["files", "git"].into_iter()), "");
        let none = unknown_server("fils", ["files", "git"].into_iter());
        let response = "there is no server 'fils': did you mean files? (the config has files, git)";
        assert_eq!(none, response);
    }
}
