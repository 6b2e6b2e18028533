//! `mcpproxy policy …` as it is typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum PolicyCommand {
    /// Read rules, and check them before the servers and tools that are known
    #[command(after_help = "\
Examples:
  mcpproxy policy check
  mcpproxy policy check new.cedar other.cedar

Without a FILE the rules of the config are checked. Every problem is told as FILE:LINE:COLUMN. Exit \
code 1 if there is any. The tools are those that the proxy has seen last.")]
    Check {
        /// Files of rules, instead of policy.files
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Put a file of cases to the rules, and compare what they say with what is expected
    #[command(after_help = "\
Examples:
  mcpproxy policy test cases.yaml
  mcpproxy policy test cases.json --rules new.cedar

A case, in YAML or JSON, one of a list:
  - {principal: 'token:ci', groups: [dev], action: destructive, tool: 'github:delete_repo',
     args: {repo: x}, expect: deny, rule: no-delete}

`resource` or `prompt` may stand for `tool`; `groups`, `args`, `rule`, `client`, `reason`, \
`sensitivity` and `session` may be left out. Exit code 1 if a case comes to something else.")]
    Test {
        /// The cases
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Files of rules, instead of those of the config
        #[arg(long, value_name = "FILE")]
        rules: Vec<PathBuf>,
    },
    /// Which rules decide a call, and what each of them sees
    #[command(after_help = "\
Examples:
  mcpproxy policy explain --as token:ci --tool github:delete_repo --args '{\"repo\":\"x\"}'
  mcpproxy policy explain --as jwt:ann --group dev --tool files:read --action read -o json")]
    Explain(PolicyExplain),
    /// What new rules would have said to the calls in the log, beside those in force
    #[command(after_help = "\
Examples:
  mcpproxy policy replay new.cedar --since 30d
  mcpproxy policy replay new.cedar more.cedar --since 2026-01-01T00:00:00Z -o json

Calls whose arguments were cut or redacted, and calls that rules would look at with more than the \
log has, are counted as undecidable where a rule asks for it; nothing is guessed. With a proxy \
running its log is read from it, else from a copy.")]
    Replay {
        /// Files of rules
        #[arg(value_name = "NEW", required = true)]
        files: Vec<PathBuf>,
        /// Calls not before: RFC 3339, or how long ago, like 12h or 30d
        #[arg(long, value_name = "TIME", default_value = "30d")]
        since: String,
    },
}

#[derive(Debug, Args)]
pub(in crate::cli) struct PolicyExplain {
    /// Who calls: anonymous, admin, token:NAME, jwt:SUBJECT, cert:NAME
    #[arg(long = "as", value_name = "PRINCIPAL")]
    pub(in crate::cli) principal: String,
    /// A group that the principal is in; may be given several times
    #[arg(long = "group", value_name = "NAME")]
    pub(in crate::cli) groups: Vec<String>,
    /// The tool, as server:tool
    #[arg(long, value_name = "SERVER:TOOL")]
    pub(in crate::cli) tool: String,
    /// read, write or destructive [default: what the tool is marked for]
    #[arg(long, value_name = "WORD", value_parser = ["read", "write", "destructive"], hide_possible_values = true)]
    pub(in crate::cli) action: Option<String>,
    /// The tool's arguments: a JSON object, '-' for stdin, or @FILE
    #[arg(long, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    pub(in crate::cli) args: String,
}
