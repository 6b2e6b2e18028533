//! What a shell completes: commands and flags as they are, and the names of servers, tools, tokens and approvals as they
//! are at the moment.
//!
//! The shell starts the program with [`VARIABLE`] set and the words that were typed; it answers with the words that fit
//! and does nothing else. A proxy that runs is asked, for as long as nobody notices; else what is on disk counts. Names
//! come from servers: those that would mean something to a shell are left out. Whatever fails completes nothing.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::args::{Cli, Global};
use super::backend::{Backend, target};
use super::json_pointer::{list, text};
use super::{load_config, output, pagination, running_proxy};
use crate::catalog::persist;
use crate::config::Config;
use crate::config::servers::ServerEntry;
use crate::identity::TokenFile;
use crate::server;

/// What tells the program that a shell asks, and which.
const VARIABLE: &str = "MCPPROXY_COMPLETE";
/// Longest time for which a proxy is asked.
const PATIENCE: Duration = Duration::from_millis(300);
/// Most tools that are offered.
const MAX_TOOLS: u32 = 10_000;
/// What the words are in that were typed.
const NAME: &str = "mcpproxy";

/// The script for bash, which takes words apart at colons.
const BASH: &str = include_str!("completion/bash.sh");
/// What zsh does when it loads the script because of the first completion.
const ZSH_FIRST: &str = "\nif [[ \"${funcstack[1]}\" == _mcpproxy ]]; then\n    \
                         _clap_dynamic_completer_mcpproxy \"$@\"\nfi\n";

/// Answers a shell that asks; false if none does.
pub(super) fn answered(typed: &[OsString]) -> clap::error::Result<bool> {
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(completing)
        .var(VARIABLE)
        .bin(NAME)
        .completer(NAME)
        .try_complete(typed.iter().cloned(), here.as_deref())
}

/// The script that has a shell ask.
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

/// What a word is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Tools,
    Servers,
    ToolsAndServers,
    Tokens,
    Approvals,
}

/// All commands, with what completes their words.
fn completing() -> Command {
    add_to(Cli::command(), &[])
}

fn add_to(command: Command, path: &[String]) -> Command {
    let path = [path, &[command.get_name().to_owned()]].concat();
    let within = path.clone();
    let command = command.mut_args(move |arg| match names_of(&within, &arg) {
        None => arg,
        Some(names) => arg.add(ArgValueCompleter::new(move |word: &OsStr| candidates(names, word))),
    });
    command.mut_subcommands(|sub| add_to(sub, &path))
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

/// True for what no shell takes for anything but a word.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@+,".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
}

/// The flags that say where config and data are, among words that are not finished yet.
fn global(words: impl Iterator<Item = OsString>) -> Option<Global> {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let value = |short: &str, long: &str| {
        let at = words.iter().position(|word| word == short || word == long);
        let next = at.and_then(|at| words.get(at + 1));
        let joined = words.iter().find_map(|word| word.strip_prefix(long)?.strip_prefix('='));
        next.map(String::as_str).or(joined).map(PathBuf::from)
    };
    let (config, data_dir) = (value("-c", "--config"), value("-d", "--data-dir"));
    // Variables of the environment count as everywhere.
    let usual = Cli::try_parse_from([NAME, "status"]).ok()?.global;
    Some(Global {
        config: config.or_else(|| usual.config.clone()),
        data_dir: data_dir.or_else(|| usual.data_dir.clone()),
        ..usual
    })
}

fn all(names: Names, global: &Global) -> Option<Vec<String>> {
    let config = load_config::load(global, None).ok()?.config;
    let servers = || config.servers.iter().map(|server| server.name.to_string());
    Some(match names {
        Names::Servers => servers().collect(),
        Names::Tools => tools(&config),
        Names::ToolsAndServers => servers().chain(tools(&config)).collect(),
        Names::Tokens => {
            let kept = TokenFile::new(&config.data_dir).load().ok()?;
            kept.iter().map(|token| token.name.to_string()).collect()
        }
        Names::Approvals => {
            let told = asked(&config, async |backend| {
                let all = backend.get(&target(&["approvals"], &[])).await.ok()?;
                all.json().ok().map(str::to_owned)
            })?;
            let told = output::parse(&told).ok()?;
            let both = list(&told, "/approvals").iter().chain(list(&told, "/standing"));
            both.map(|it| text(it, "/id").into_owned()).collect()
        }
    })
}

/// Those of the proxy that runs, else those that are on disk.
fn tools(config: &Config) -> Vec<String> {
    let told =
        asked(config, async |backend| pagination::all(backend, "tools", &[], MAX_TOOLS).await.ok());
    if let Some(told) = told.and_then(|told| output::parse(&told).ok()) {
        let tools = list(&told, "/tools");
        return tools.iter().map(|tool| text(tool, "/name").into_owned()).collect();
    }
    let Some(folder) = config.catalog().folder else { return Vec::new() };
    let of_server = |server: &ServerEntry| {
        let kept = persist::read(&folder, &server.name).ok().flatten();
        let tools = kept.map(|kept| kept.tools).unwrap_or_default();
        let offered = tools.into_iter().filter(|tool| server.tools.offers(&tool.name));
        offered.map(|tool| format!("{}:{}", server.name, tool.name)).collect::<Vec<_>>()
    };
    let enabled = config.servers.iter().filter(|server| server.upstream.enabled);
    enabled.flat_map(of_server).collect()
}

/// Asks the proxy that runs, if one does and answers in time.
fn asked<T>(config: &Config, ask: impl AsyncFnOnce(&Backend) -> Option<T>) -> Option<T> {
    let runtime = server::local_runtime().ok()?;
    let asking = async {
        let client = running_proxy::find(config).await?;
        ask(&Backend::Remote(client)).await
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await.ok().flatten() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed_by_what_they_are() {
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
    fn what_a_shell_would_take_for_more_is_left_out() {
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
    fn the_config_is_found_among_unfinished_words() {
        let of = |words: &[&str]| global(words.iter().map(OsString::from)).unwrap().config;
        assert_eq!(of(&["x", "--", "mcpproxy", "-c", "a.json", "call"]), Some("a.json".into()));
        assert_eq!(of(&["mcpproxy", "--config=b.json", "tools", ""]), Some("b.json".into()));
    }
}
