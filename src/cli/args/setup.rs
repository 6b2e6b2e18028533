//! `mcpproxy init`, `import`, `connect` and `status` as they are typed.

use clap::Args;

use crate::cli::clients::McpClient;

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArgs {
    /// Where from: claude-desktop, claude-code, cursor, vscode, windsurf, codex, zed [default: all]
    #[arg(value_enum, value_name = "CLIENT", hide_possible_values = true)]
    pub(in crate::cli) clients: Vec<McpClient>,
    /// Show what would be added, and add nothing
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(in crate::cli) yes: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ConnectArgs {
    /// claude-desktop, claude-code, cursor, vscode, windsurf, codex or zed
    #[arg(value_enum, value_name = "CLIENT", hide_possible_values = true)]
    pub(in crate::cli) client: McpClient,
    /// Take our entry out again
    #[arg(long)]
    pub(in crate::cli) undo: bool,
    /// Show what would be written, and write nothing
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(in crate::cli) yes: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct StatusArgs {
    /// For health checks: only whether it answers
    #[arg(long)]
    pub(in crate::cli) alive: bool,
}
