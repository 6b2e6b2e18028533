//! `mcpproxy approvals …` as it is typed.

use clap::Subcommand;

use crate::cli::times::TimeStyle;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ApprovalsCommand {
    /// Calls that wait for an answer, and approvals that stand for a while
    #[command(after_help = "\
Examples:
  mcpproxy approvals list
  mcpproxy approvals list --json

At a terminal ids are short: their beginning, as long as it takes to tell them apart.")]
    List {
        /// Times: relative, local or utc [default: relative at a terminal, else utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// One call that waits, with all its arguments; or how it was answered
    #[command(after_help = "\
Examples:
  mcpproxy approvals show 5r8x0q2mzk7w1ahd")]
    Show {
        /// The approval's id, from `approvals list`, or its beginning
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Let the call go out
    #[command(after_help = "\
Examples:
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd --for 1h
  mcpproxy approvals approve 5r8x0q2mzk7w1ahd --for session

Without --for it counts for this call alone. With it every call of the same tool on behalf of the same \
principal goes out meanwhile, whatever its arguments, until its server defines the tool anew. `approvals \
deny` with the same id ends that early.")]
    Approve {
        /// The approval's id, from `approvals list`, or its beginning
        #[arg(value_name = "ID")]
        id: String,
        /// How long it counts: a time like 1h, at most 24h, or 'session'
        #[arg(long = "for", value_name = "TIME")]
        how_long: Option<String>,
    },
    /// Refuse the call; or end an approval that stands
    #[command(after_help = "\
Examples:
  mcpproxy approvals deny 5r8x0q2mzk7w1ahd")]
    Deny {
        /// The approval's id, from `approvals list`, or its beginning
        #[arg(value_name = "ID")]
        id: String,
    },
}
