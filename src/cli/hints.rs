//! Commands in messages. They repeat `--config` and `--data-dir` of the command line, so that a copied command is about the
//! same proxy.

use crate::terminal_safe::quoted;
use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// Program name before a command.
const PROGRAM: &str = "mcpproxy ";
/// Flags that commands repeat; unset if there are none.
static REPEATED: OnceLock<RepeatedFlags> = OnceLock::new();

/// Flags to repeat, and the commands that take them.
#[derive(Debug)]
struct RepeatedFlags {
    /// Each with a blank before it.
    flags: String,
    commands: Vec<String>,
}

/// Stores the config file and data directory that the command line names, and the `commands` that take these flags. Values of
/// environment variables also apply to a copied command.
pub(super) fn remember(
    (config, data_dir): (Option<&Path>, Option<&Path>),
    commands: impl FnOnce() -> Vec<String>,
) {
    let given = [("-c", config, "MCPPROXY_CONFIG"), ("-d", data_dir, "MCPPROXY_DATA_DIR")];
    let flags = given.into_iter().filter_map(|(flag, path, variable)| {
        let is_variable =
            |path: &&Path| std::env::var_os(variable).is_some_and(|it| Path::new(&it) == *path);
        let path = path.filter(|path| !is_variable(path))?;
        Some(format!(" {flag} {}", quoted(path.to_str()?)?))
    });
    let flags: String = flags.collect();
    if !flags.is_empty() {
        // There is one command line.
        let _ = REPEATED.set(RepeatedFlags { flags, commands: commands() });
    }
}

/// The text with the flags in each command of mcpproxy. Not for texts of servers and agents.
pub(super) fn commands(text: &str) -> Cow<'_, str> {
    match REPEATED.get() {
        Some(repeated) if text.contains(PROGRAM) => repeated.added_to(text).into(),
        Some(_) | None => text.into(),
    }
}

impl RepeatedFlags {
    fn added_to(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + self.flags.len());
        let mut rest = text;
        while let Some(at) = rest.find(PROGRAM) {
            let (before, after) = rest.split_at(at + PROGRAM.len());
            out.push_str(before.trim_end_matches(' '));
            let begins = |letter: char| letter.is_whitespace() || "`'\"(".contains(letter);
            let is_word = rest.get(..at).and_then(|it| it.chars().next_back()).is_none_or(begins);
            let end = after.find(|letter: char| !letter.is_ascii_lowercase());
            let word = after.get(..end.unwrap_or(after.len())).unwrap_or_default();
            if is_word && self.commands.iter().any(|name| name == word) {
                out.push_str(&self.flags);
            }
            out.push(' ');
            rest = after;
        }
        out + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_repeat_the_flags_and_prose_does_not() {
        let commands = ["serve", "config"].map(str::to_owned).to_vec();
        let repeated = RepeatedFlags { flags: " -c my.json".to_owned(), commands };
        for (text, expected) in [
            (
                "no mcpproxy is running: `mcpproxy serve` starts one",
                "no mcpproxy is running: `mcpproxy -c my.json serve` starts one",
            ),
            (
                "vi \"$(mcpproxy config path)\", then: mcpproxy serve",
                "vi \"$(mcpproxy -c my.json config path)\", then: mcpproxy -c my.json serve",
            ),
            ("mcpproxy server, the-mcpproxy serve", "mcpproxy server, the-mcpproxy serve"),
            ("mcpproxy -c my.json serve", "mcpproxy -c my.json serve"),
            ("mcpproxy ", "mcpproxy "),
            ("", ""),
        ] {
            assert_eq!(repeated.added_to(text), expected);
        }
    }
}
