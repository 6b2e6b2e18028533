//! Configuration: parsed and validated as a whole before anything starts.
//!
//! Each part of the proxy owns its section with defaults and bounds. [`parse()`] is pure; [`file::Loaded`] adds the
//! file, [`edit`] changes it, and `file::check_machine` checks the environment. References such as `${env:NAME}` are
//! resolved when a server starts, so that a missing one only affects that server.
//!
//! ```text
//! file::load ─ text ─▶ parse ─ document ─ servers, sections ─▶ values::Config
//! └─ problem::Findings: problems with their places
//! two configs ─▶ difference (effects), written (audit record)
//! fleet_config: the shared config that replaces a node's own settings
//! text ─▶ edit, edit_servers (changes by commands), patch (changes over REST)
//! ```

pub use crate::file::check_new_server;
pub use crate::parse::{Flags, parse};
pub use crate::sections::{
    ApiKey, EngineName, LogFormat, LogLevel, Logging, OtlpHeaders, OtlpTarget, OutputValidation,
    PolicySection, ResultLimitSection, TelemetrySection, TlsFiles,
};
pub use crate::values::{Config, RuleFiles};

/// Look-up of an environment variable by its name.
pub type Environment<'a> = &'a (dyn Fn(&str) -> Option<String> + 'a);

/// The JSON Schema (2020-12) of the config file: every key with its meaning, values and default. Tests compare it with
/// the parser.
pub const CONFIG_SCHEMA: &str = include_str!("../reference/config_schema.json");

pub mod difference;
mod document;
pub mod edit;
pub mod edit_servers;
pub mod file;
pub mod fleet_config;
mod parse;
pub mod patch;
pub mod problem;
pub mod rule_files;
mod section_reader;
pub mod sections;
pub mod servers;
mod values;
pub mod written;

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
