//! `mcpproxy activity …` as it is typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::times::TimeStyle;

/// Default number of records in `activity list`.
const LIST_LIMIT: u32 = 50;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ActivityCommand {
    /// The latest records, newest first
    #[command(after_help = "\
Examples:
  mcpproxy activity list
  mcpproxy activity list --status blocked,rejected --since 2h
  mcpproxy activity list --intent-type destructive --server github -n 200
  mcpproxy activity list --type policy_decision -o json
  mcpproxy activity list --text 'no such file' --since 7d

Newest first, by the time that is shown: when a record was stored. --since and --until go by when a \
call began. Filters combine; several words in one filter are separated by commas. A decision about a \
call that is listed is told in that call's row. At a terminal, or with COLUMNS set, ids are the numbers \
of the records, and columns without room are left out; a pipe gets whole ids and all columns.")]
    List(ActivityList),
    /// One record in full: intent, verdict, arguments, answer
    #[command(after_help = "\
Examples:
  mcpproxy activity show last
  mcpproxy activity show 4711 --time local
  mcpproxy activity show 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 -o yaml

`last` is the first row of `activity list`. A number is that of a record in this log, its \"seq\".")]
    Show {
        /// The record's number or id, from `activity list`, or `last`
        #[arg(value_name = "ID")]
        id: String,
        /// Times: relative, local or utc [default: utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
    },
    /// Counts by outcome and intent, top servers and tools, latencies
    #[command(after_help = "\
Examples:
  mcpproxy activity summary
  mcpproxy activity summary --period 30d -o json")]
    Summary {
        /// How far back: 1h, 24h, 7d or 30d
        #[arg(long, default_value = "24h", value_parser = ["1h", "24h", "7d", "30d"], hide_possible_values = true)]
        period: String,
    },
    /// Every record a filter means, oldest first, into a file
    #[command(after_help = "\
Examples:
  mcpproxy activity export --output activity.ndjson
  mcpproxy activity export --output blocked.csv --format csv --status blocked --since 24h
  mcpproxy activity export --output - --type tool_call
  mcpproxy activity export --output activity.parquet --format parquet

Behind `export`, --output is the file, '-' for stdout; -o and --json say how the outcome is printed. \
json is one object per line. In csv, a text that a spreadsheet would take for a formula has a ' in \
front. The file appears under its name once it is whole.")]
    Export(ActivityExport),
    /// Records as they are stored, until Ctrl-C
    #[command(after_help = "\
Examples:
  mcpproxy activity watch
  mcpproxy activity watch --json

With json, each record is one line; with yaml, one document.")]
    Watch {
        /// Plain words instead of icons
        #[arg(long)]
        no_icons: bool,
        /// Times: relative, local or utc [default: local at a terminal, else utc]
        #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
        time: Option<TimeStyle>,
        /// In a fleet, the records of the node of this name alone
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
    /// Check the chain of hashes and name the first record altered, missing or out of place
    #[command(after_help = "\
Examples:
  mcpproxy activity verify
  mcpproxy activity verify --json
  mcpproxy activity verify --store s3://bucket/fleet --keys keys.txt
  mcpproxy activity verify proof.json --keys keys.txt

Exit code 1 if the log is not as it was written. With no proxy running the files are checked too, \
on a copy. Someone who can rewrite the whole store and its head can forge both: keep a copy of the \
head elsewhere if that matters. With --store the chains of a fleet are checked in its object store \
alone, and each segment that is altered, removed, replaced or out of order is named. A file is a \
proof by `activity prove`, and is checked offline.")]
    Verify(ActivityVerify),
    /// A record with what is needed to check it offline, from a fleet's object store
    #[command(after_help = "\
Examples:
  mcpproxy activity prove 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 > proof.json
  mcpproxy activity prove 01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2 --store s3://bucket/fleet --file proof.json
  mcpproxy activity verify proof.json --keys keys.txt

The store is that of the config (cluster.store), or of --store.")]
    Prove(ActivityProve),
}

/// What `activity verify` looks at.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActivityVerify {
    /// A proof by `activity prove`, instead of the log
    #[arg(value_name = "PROOF", conflicts_with = "store")]
    pub(in crate::cli) proof: Option<PathBuf>,
    /// A fleet's object store instead of the log: s3://…, gs://…, az://… or file:///…
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) store: Option<String>,
    /// The keys to believe, one in a line as a node's claim.json has it [default: those in the store or proof]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) keys: Option<PathBuf>,
    /// Segments missing at the beginning of a chain are no fault: the store's own rules remove old ones
    #[arg(long, requires = "store")]
    pub(in crate::cli) expired: bool,
}

/// What `activity prove` proves, and where it looks.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActivityProve {
    /// The record's whole id
    #[arg(value_name = "ID")]
    pub(in crate::cli) id: String,
    /// The fleet's object store [default: cluster.store of the config]
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) store: Option<String>,
    /// The file, '-' for stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(in crate::cli) file: PathBuf,
}

/// What `activity export` writes, and where to.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActivityExport {
    /// The file, '-' for stdout (the same as --output FILE)
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) file: PathBuf,
    /// json (one object per line), csv or parquet
    #[arg(long, default_value = "json", value_parser = ["json", "csv", "parquet"], hide_possible_values = true)]
    pub(in crate::cli) format: String,
    #[command(flatten)]
    pub(in crate::cli) filters: ActivityFilters,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ActivityList {
    #[command(flatten)]
    pub(in crate::cli) filters: ActivityFilters,
    /// Only records that hold this text anywhere: names, reason, arguments, answer
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) text: Option<String>,
    /// At most this many records, up to 10000
    #[arg(short = 'n', long, default_value_t = LIST_LIMIT, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(in crate::cli) limit: u32,
    /// Plain words instead of icons
    #[arg(long)]
    pub(in crate::cli) no_icons: bool,
    /// Times: relative, local or utc [default: relative at a terminal, else utc]
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
    pub(in crate::cli) time: Option<TimeStyle>,
}

/// Which records are meant.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActivityFilters {
    /// tool_call, policy_decision, resource_read, prompt_get, completion, server_change, …
    #[arg(long = "type", value_name = "TYPE")]
    pub(in crate::cli) kind: Option<String>,
    /// Upstream server
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) server: Option<String>,
    /// Tool, without the server's name
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) tool: Option<String>,
    /// success, error, blocked, rejected, warning or unknown
    #[arg(long, value_name = "STATUS")]
    pub(in crate::cli) status: Option<String>,
    /// read, write or destructive
    #[arg(long, value_name = "TYPE")]
    pub(in crate::cli) intent_type: Option<String>,
    /// MCP session
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) session: Option<String>,
    /// HTTP or MCP request
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) request_id: Option<String>,
    /// On whose behalf: anonymous, admin
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) principal: Option<String>,
    /// In a fleet, the name of a node: its records alone
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) node: Option<String>,
    /// Not before: RFC 3339, or how long ago, like 2h
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) since: Option<String>,
    /// Not after: RFC 3339, or how long ago, like 30m
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) until: Option<String>,
}
