//! Errors of the command line's grammar: clap's message, with the tip that names what was probably meant.

use crate::args::Cli;
use crate::error::{CommandError, Exit};
use crate::terminal_safe;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory as _};
use mcpproxy_runtime::nearest::{nearest, nearest_few};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Handles a parse error or a request for help.
pub(super) fn report(error: clap::Error, typed: &[OsString]) -> ExitCode {
    let error = with_tip(without_far_tips(error, typed), typed);
    if error.use_stderr() && wants_json(typed, std::env::var("MCPPROXY_OUTPUT").ok()) {
        CommandError::usage(usage_message(&error.to_string())).print(true);
    } else if error.kind() == ErrorKind::MissingSubcommand && typed.len() < 2 {
        // Clap counts environment variables as arguments and therefore does not print the help itself.
        let _ = write!(std::io::stderr(), "{}", Cli::command().render_help());
    } else {
        // A closed pipe is not an error.
        let _ = error.print();
    }
    match error.use_stderr() {
        true => ExitCode::from(Exit::Usage as u8),
        false => ExitCode::SUCCESS,
    }
}

/// Command that the typed words lead to, with its full name in its usage.
fn typed_command(typed: &[OsString]) -> Command {
    let mut command = Cli::command();
    command.build();
    for word in typed {
        if let Some(found) = word.to_str().and_then(|word| command.find_subcommand(word)) {
            command = found.clone();
        }
    }
    command
}

/// Text of an error's context.
fn text_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        Some(_) | None => None,
    }
}

/// Removes suggestions that are not similar, those of hidden commands, all but the most similar command, and advice to
/// pass an unknown flag as a value, from an error.
fn without_far_tips(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains(" as a value, use "));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    for (suggested, typed_word) in [
        (ContextKind::SuggestedArg, ContextKind::InvalidArg),
        (ContextKind::SuggestedValue, ContextKind::InvalidValue),
    ] {
        let Some(meant) = text_of(&error, suggested) else { continue };
        let word = text_of(&error, typed_word).unwrap_or_default();
        let [word, meant] = [word, meant].map(|it| it.trim_start_matches('-'));
        if nearest(word, [meant]).is_some() {
            continue;
        }
        error.remove(suggested);
        // Clap's usage of this error is that of the suggested option.
        if error.remove(ContextKind::Usage).is_some() {
            let usage = typed_command(typed).render_usage();
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
    }
    let tips = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(tips)) => tips,
        Some(other) => {
            error.insert(ContextKind::SuggestedSubcommand, other);
            return error;
        }
        None => return error,
    };
    let all = Cli::command();
    let is_hidden =
        |name: &String| all.get_subcommands().any(|it| it.is_hide_set() && it.get_name() == name);
    let tips: Vec<String> = tips.into_iter().filter(|name| !is_hidden(name)).collect();
    let word = text_of(&error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let meant = nearest_few(word, tips.iter().map(String::as_str), 1).first().copied();
    if let Some(meant) = meant.or(tips.first().map(String::as_str)) {
        let meant = vec![meant.to_owned()];
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
    error
}

/// Adds a tip to an error, if there is one. It replaces clap's similar names.
fn with_tip(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    if let Some(tip) = tip(&error, typed) {
        for suggested in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
            error.remove(suggested);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Tip that names the option or command that a rejected command line probably meant.
fn tip(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let context = |kind| text_of(error, kind);
    let follows = |pair: [&str; 2]| typed.windows(2).any(|words| words == pair);
    match error.kind() {
        // -o is the format of results, although `--output` of this command is its file.
        ErrorKind::InvalidValue if follows(["activity", "export"]) => {
            context(ContextKind::InvalidArg).filter(|arg| arg.starts_with("--output"))?;
            let word = context(ContextKind::InvalidValue)?;
            if ["csv", "parquet"].contains(&word) {
                return Some(format!("the format of the file is `--format {word}`"));
            }
            let file = terminal_safe::quoted(word)?;
            Some(format!("for a file, use `--file {file}`"))
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidArg)?.contains("<CLIENT>") => {
            Some("`mcpproxy guide clients` shows how to connect others".to_owned())
        }
        ErrorKind::UnknownArgument if typed.iter().any(|word| word == "serve") => {
            let is_port = context(ContextKind::InvalidArg)?.starts_with("--port");
            is_port.then(|| "did you mean `--listen 127.0.0.1:PORT`?".to_owned())
        }
        // `list` and `export` have --since.
        ErrorKind::UnknownArgument if follows(["activity", "summary"]) => {
            let is_time = context(ContextKind::InvalidArg)?.starts_with("--since");
            is_time.then(|| "did you mean `--period 7d`? It is 1h, 24h, 7d or 30d".to_owned())
        }
        ErrorKind::UnknownArgument => {
            let option = context(ContextKind::InvalidArg)?;
            if option.starts_with("--format") {
                let word = typed.iter().filter_map(|word| word.to_str());
                let format = word.rev().map(|word| word.trim_start_matches("--format="));
                let format =
                    format.into_iter().find(|word| ["json", "yaml", "table"].contains(word));
                return Some(format!("did you mean `--output {}`?", format.unwrap_or("json")));
            }
            meant_option(option, &typed_command(typed))
        }
        ErrorKind::MissingRequiredArgument => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            known_values(missing.first()?, &typed_command(typed))
        }
        ErrorKind::InvalidSubcommand if follows_help(typed) => {
            let word = context(ContextKind::InvalidSubcommand)?;
            let all = Cli::command();
            let names = all.get_subcommands().filter(|it| !it.is_hide_set());
            let meant = nearest(word, names.map(Command::get_name))?;
            Some(format!("did you mean `mcpproxy help {meant}`?"))
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            if !word.contains(':') || !follows(["call", word]) {
                let meant = meant_command(parent_command(typed, word), word)?;
                return Some(format!("did you mean `mcpproxy {meant}`?"));
            }
            let tool = terminal_safe::quoted(word)?;
            Some(format!(
                "did you mean `mcpproxy call tool-read {tool}`? tool-write and tool-destructive \
                 are for tools that change something"
            ))
        }
        _ => None,
    }
}

/// Commands that are often typed in another place or with another word: the typed parent (empty for none), the typed
/// words, and the command, in which `*` is the typed word.
const MEANT_COMMANDS: &[(&str, &[&str], &str)] = &[
    (
        "",
        &["add", "remove", "enable", "disable", "restart", "logs", "login", "logout"],
        "upstream *",
    ),
    ("", &["list", "ls", "server", "servers"], "upstream list"),
    ("", &["start", "run"], "serve"),
    ("", &["log", "audit"], "activity list"),
    ("", &["tail"], "activity watch"),
    ("", &["search", "diff", "annotate"], "tools *"),
    ("", &["approve", "deny"], "approvals *"),
    ("", &["undo", "disconnect"], "connect --undo CLIENT"),
    ("", &["version"], "--version"),
    ("", &["watch", "export", "verify"], "activity *"),
    ("", &["explain", "replay"], "policy *"),
    ("", &["check", "reload"], "config *"),
    ("activity", &["get", "describe"], "activity show"),
    ("tools", &["get", "describe", "info"], "tools show"),
    ("approvals", &["get", "describe"], "approvals show"),
    ("upstream", &["get", "describe", "info", "status"], "upstream show"),
    ("token", &["show", "get"], "token list"),
    ("policy", &["list", "show"], "policy check"),
    ("activity", &["search"], "activity list --text"),
    ("activity", &["tail", "follow"], "activity watch"),
    ("call", &["read", "write", "destructive"], "call tool-*"),
    ("call", &["delete", "tool_destructive"], "call tool-destructive"),
    ("call", &["tool_read"], "call tool-read"),
    ("call", &["tool_write"], "call tool-write"),
    ("config", &["show", "list", "ls"], "config check"),
    ("config", &["rm", "remove", "delete"], "config unset"),
    ("token", &["add", "new"], "token create"),
    ("token", &["remove", "delete", "rm"], "token revoke"),
    ("approvals", &["remove", "revoke", "rm", "reject"], "approvals deny"),
    ("config", &["validate", "test"], "config check"),
    ("upstream", &["start"], "upstream enable"),
];

/// The command probably meant by a word that is not a subcommand of `parent`.
fn meant_command(parent: &str, word: &str) -> Option<String> {
    let mut commands = MEANT_COMMANDS.iter();
    let found = commands.find(|(known, words, _)| *known == parent && words.contains(&word));
    found.map(|(.., command)| command.replace('*', word))
}

/// Whether the command is `help`.
fn follows_help(typed: &[OsString]) -> bool {
    typed.get(1).is_some_and(|word| word == "help")
}

/// Options of other programs: the typed words, and the options that may be meant, of which a command has one at most.
const MEANT_OPTIONS: &[(&[&str], &[&str])] = &[
    (&["--tail", "--count", "--head", "--max", "--last"], &["--lines", "--limit"]),
    (&["--user", "--agent", "--identity", "--who"], &["--principal", "--as"]),
    (&["--from", "--after", "--start"], &["--since"]),
    (&["--to", "--before", "--end"], &["--until"]),
    (&["--grep", "--search", "--query", "--filter"], &["--text"]),
    (&["--kind"], &["--type"]),
    (&["--verbose", "--debug", "-v"], &["--log-level debug"]),
    (&["--yaml"], &["--output yaml"]),
    (&["--data"], &["--data-dir"]),
];

/// Tip that names the option of `command` meant by an option that it does not have.
fn meant_option(typed: &str, command: &Command) -> Option<String> {
    let word = typed.split(['=', ' ']).next().unwrap_or_default();
    // `watch` follows, `list` ends.
    if ["--follow", "-f"].contains(&word)
        && command.get_bin_name() == Some("mcpproxy activity list")
    {
        return Some("did you mean `mcpproxy activity watch`?".to_owned());
    }
    let (_, meant) = MEANT_OPTIONS.iter().find(|(words, _)| words.contains(&word))?;
    let has = |option: &str| {
        let name = option.trim_start_matches('-').split(' ').next();
        command.get_arguments().any(|arg| arg.get_long() == name)
    };
    let option = meant.iter().find(|option| has(option))?;
    Some(format!("did you mean `{option}`?"))
}

/// Maximum number of values that a tip lists.
const MAX_LISTED_VALUES: usize = 20;

/// Tip with the values of a missing argument of `command`, or with the command that lists them.
fn known_values(missing: &str, command: &Command) -> Option<String> {
    let name = missing.trim_matches(['<', '>']);
    // One that an option can replace is in brackets.
    let is_missing = |arg: &&Arg| arg.to_string().trim_matches(['<', '>', '[', ']']) == name;
    let values = command.get_arguments().find(is_missing)?.get_possible_values();
    if !values.is_empty() {
        let values: Vec<_> =
            values.iter().take(MAX_LISTED_VALUES).map(|value| value.get_name()).collect();
        return Some(format!("{name} is one of {}", values.join(", ")));
    }
    let path = command.get_bin_name().unwrap_or_default();
    let (_, listing) = [
        ("mcpproxy upstream add", None),
        ("mcpproxy token create", None),
        ("mcpproxy upstream ", Some("upstream list")),
        ("mcpproxy token ", Some("token list")),
        ("mcpproxy approvals ", Some("approvals list")),
        ("mcpproxy activity show", Some("activity list")),
        ("mcpproxy tools show", Some("tools list")),
        ("mcpproxy call ", Some("tools list")),
    ]
    .into_iter()
    .find(|(prefix, _)| path.starts_with(prefix))?;
    Some(format!("`mcpproxy {}` lists the values of {name}", listing?))
}

/// The command before a rejected subcommand, or empty.
fn parent_command<'t>(typed: &'t [OsString], word: &str) -> &'t str {
    let all = Cli::command();
    let before = typed.iter().map_while(|it| it.to_str().filter(|it| *it != word));
    before.skip(1).find(|it| all.find_subcommand(it).is_some()).unwrap_or_default()
}

/// Returns clap's message without label, usage and advice.
fn usage_message(message: &str) -> &str {
    let end = message.find("\nUsage:").or_else(|| message.find("\nFor more information"));
    message.get(..end.unwrap_or(message.len())).unwrap_or(message).trim_start_matches("error: ")
}

/// Whether a command line that fails to parse requests JSON output.
fn wants_json(typed: &[OsString], environment: Option<String>) -> bool {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let pair = |pair: &[&str]| matches!(pair, ["-o" | "--output", "json"]);
    words.iter().any(|word| matches!(*word, "--json" | "-ojson" | "-o=json" | "--output=json"))
        || words.windows(2).any(pair)
        || environment.as_deref() == Some("json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Words of a command line after the program's name.
    fn typed(line: &str) -> Vec<OsString> {
        std::iter::once("mcpproxy").chain(line.split(' ')).map(OsString::from).collect()
    }

    #[test]
    fn usage_error_is_one_line() {
        let error = Cli::try_parse_from(["mcpproxy", "call", "tool-read"]).unwrap_err();
        let failure = CommandError::usage(usage_message(&error.to_string()));
        let expected = "the following required arguments were not provided: <SERVER:TOOL>";
        assert_eq!(failure.message, expected);
    }

    #[test]
    fn tips_never_name_hidden_commands() {
        for (typed, expected) in
            [("upstrem", "'upstream'"), ("mann", "'man'"), ("demo-upstrem", "")]
        {
            let error =
                without_far_tips(Cli::try_parse_from(["mcpproxy", typed]).unwrap_err(), &[]);
            let text = error.to_string();
            let (_, tips) = text.split_once('\n').unwrap();
            assert!(!tips.contains("demo-upstream"), "{text}");
            assert!(tips.contains(expected), "{text}");
        }
    }

    #[test]
    fn near_misses_get_a_tip_with_the_intended_command() {
        for (line, expected) in [
            ("activity export -o week.csv", "use `--file week.csv`"),
            ("--json activity export --since 7d -oweek.csv", "use `--file week.csv`"),
            ("call files:list_directory", "did you mean `mcpproxy call tool-read files:list_dir"),
            ("call read files:list_directory", "did you mean `mcpproxy call tool-read`?"),
            ("logs", "did you mean `mcpproxy upstream logs`?"),
            ("start", "did you mean `mcpproxy serve`?"),
            ("upstream start x", "did you mean `mcpproxy upstream enable`?"),
            ("activity summary --since 7d", "did you mean `--period 7d`?"),
            ("ls", "did you mean `mcpproxy upstream list`?"),
            ("-c f.json logs files", "did you mean `mcpproxy upstream logs`?"),
            ("add x", "did you mean `mcpproxy upstream add`?"),
            ("token add x", "did you mean `mcpproxy token create`?"),
            ("config show", "did you mean `mcpproxy config check`?"),
            ("connect gemini", "`mcpproxy guide clients` shows"),
            ("activity list --follow", "did you mean `mcpproxy activity watch`?"),
            ("activity list --user ann", "did you mean `--principal`?"),
            ("policy explain --user ann --tool a:b", "did you mean `--as`?"),
            ("upstream logs files --tail 4", "did you mean `--lines`?"),
            ("activity list --tail=4", "did you mean `--limit`?"),
            ("tools list --verbose", "did you mean `--log-level debug`?"),
            ("serve --port 80", "did you mean `--listen 127.0.0.1:PORT`?"),
            ("activity list --format yaml", "did you mean `--output yaml`?"),
            ("status --format=json", "did you mean `--output json`?"),
            ("help tokn", "did you mean `mcpproxy help token`?"),
            ("tools logs", ""),
            ("tools list --tail 4", ""),
            ("activity list -o week.csv", ""),
            ("call files", ""),
            ("policy files:list_directory", ""),
        ] {
            let typed = typed(line);
            let error = with_tip(Cli::try_parse_from(&typed).unwrap_err(), &typed);
            let message = usage_message(&error.to_string()).to_owned();
            assert!(message.contains(expected), "{line}: {message}");
            let is_tip = ["--file", "did you mean", "guide clients"].map(|it| message.contains(it));
            let is_tip = is_tip.contains(&true);
            assert_eq!(is_tip, !expected.is_empty(), "{line}: {message}");
        }
    }

    #[test]
    fn missing_arguments_get_a_tip_with_their_values() {
        for (line, expected) in [
            ("completions", "SHELL is one of bash, elvish, fish, powershell, zsh"),
            ("connect", "CLIENT is one of claude-desktop, claude-code, cursor, "),
            ("upstream logs", "`mcpproxy upstream list` lists the values of NAME"),
            ("approvals approve", "`mcpproxy approvals list` lists the values of ID"),
            ("call tool-read", "`mcpproxy tools list` lists the values of SERVER:TOOL"),
            ("upstream add", ""),
            ("token create", ""),
        ] {
            let typed = typed(line);
            let error = Cli::try_parse_from(&typed).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{line}");
            let tip = tip(&error, &typed).unwrap_or_default();
            assert!(tip.starts_with(expected), "{line}: {tip}");
            assert_eq!(tip.is_empty(), expected.is_empty(), "{line}: {tip}");
        }
    }

    #[test]
    fn dissimilar_options_and_values_are_not_suggested() {
        for (line, suggested) in [
            ("activity list --serve x", Some("--server")),
            ("activity list --tools x", Some("--tool")),
            ("activity list --folow", None),
            ("activity list -o xml", None),
            ("activity list -o jsn", Some("json")),
            ("completions tcsh", None),
            ("completions bsh", Some("bash")),
        ] {
            let typed = typed(line);
            let error = Cli::try_parse_from(&typed).unwrap_err();
            let text = without_far_tips(error, &typed).to_string();
            assert_eq!(text.contains("similar"), suggested.is_some(), "{text}");
            assert!(text.contains(suggested.unwrap_or_default()), "{text}");
            assert!(!text.contains("--color"), "{text}");
        }
    }

    #[test]
    fn commands_of_tips_exist() {
        let all = Cli::command();
        for (parent, words, _) in MEANT_COMMANDS {
            for word in *words {
                let meant = meant_command(parent, word).unwrap();
                let mut names = meant.split(' ').take_while(|name| !name.starts_with('-'));
                let found = names.try_fold(&all, |command, name| command.find_subcommand(name));
                assert!(found.is_some(), "{meant}");
                let typed = ["mcpproxy", parent, word].into_iter().filter(|it| !it.is_empty());
                let error = Cli::try_parse_from(typed).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidSubcommand, "{parent} {word}");
            }
        }
    }

    #[test]
    fn json_flag_is_recognized_on_unparsable_command_lines() {
        let wants = |line: &str, environment: Option<&str>| {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            wants_json(&typed, environment.map(str::to_owned))
        };
        assert!(wants("mcpproxy -o json cal", None));
        assert!(wants("mcpproxy --output=json cal", None));
        assert!(wants("mcpproxy cal --json", None));
        assert!(wants("mcpproxy cal", Some("json")));
        assert!(!wants("mcpproxy cal -o yaml json", None));
        assert!(!wants("mcpproxy cal", Some("yaml")));
    }
}
