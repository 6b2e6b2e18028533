//! The config: what the operator wrote, checked whole before anything starts.
//!
//! Each part of the proxy owns its own section, its defaults and its bounds; the keys of no part are fields in
//! `parse`. Reading a text is [`parse()`], pure;
//! the file is [`file::Loaded`], changed by [`edit`]; what only this machine can tell is looked for by `check`. Values from
//! `${env:NAME}` are filled in where a server is started, since a missing one stops that server alone.
//!
//! ```text
//! file::load ─ text ─▶ parse ─ document ─ key_aliases ─ servers, sections ─▶ values::Config
//!                        └─ findings: what is wrong, and where
//! two of them ─▶ difference (what it means), written (what is told of it)
//! fleet_config: what a fleet shares, in the place of what a node's own file says
//! its text ─▶ edit (what commands change), patch (what settings are shown and changed)
//! ```

mod auth;
mod check;
pub mod difference;
mod document;
pub mod edit;
pub mod file;
mod findings;
pub mod fleet_config;
mod key_aliases;
mod misspelt_keys;
mod parse;
pub mod patch;
pub mod problem;
mod reading;
pub mod rule_files;
mod search;
pub mod sections;
pub mod servers;
pub mod switch;
mod telemetry;
mod tls;
mod values;
pub mod written;

pub use self::check::check_new_server;
pub use self::parse::{Flags, parse};
pub use self::sections::{
    ApiKey, EngineName, LogFormat, LogLevel, Logging, OutputValidation, PolicySection,
    ResultLimitSection,
};
pub use self::telemetry::{OtlpHeaders, OtlpTarget, TelemetrySection};
pub use self::tls::TlsFiles;
pub use self::values::{Config, RuleFiles};

#[cfg(test)]
mod keys_read;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
