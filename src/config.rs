//! The config: what the operator wrote, checked whole before anything starts.
//!
//! Each part of the proxy owns its own section, its defaults and its bounds; the keys of no part are fields in
//! `parse`. Reading a text is [`parse()`], pure;
//! the file is [`file::Loaded`]; what only this machine can tell is looked for by `check`. Values from
//! `${env:NAME}` are filled in where a server is started, since a missing one stops that server alone.
//!
//! ```text
//! file::load ─ text ─▶ parse ─ document ─ key_aliases ─ servers, sections ─▶ values::Config
//!                        └─ findings: what is wrong, and where
//! ```

mod check;
mod document;
pub mod file;
mod findings;
mod key_aliases;
mod misspelt_keys;
mod parse;
pub mod problem;
mod reading;
pub mod sections;
pub mod servers;
mod values;

pub use self::parse::{Flags, parse};
pub use self::sections::{
    ApiKey, EngineName, LogFormat, LogLevel, Logging, OutputValidation, PolicySection,
};
pub use self::values::{Config, RuleFiles};

#[cfg(test)]
mod tests;
