//! The product's own reference: what it must do, and the exact words it does it in.
//!
//! An id in a comment or a test's name (FR-017, CAP-3, ACT-5) is a row of [`requirements`]; texts, names and
//! formats that others depend on are in [`contracts`]; every key of the config is in [`CONFIG_SCHEMA`]. There is no code
//! here.

/// The JSON Schema (2020-12) of the config file: every key that is read, what it means, its values and its default.
/// Tests in [`config`](crate::config) hold it to what is read.
pub const CONFIG_SCHEMA: &str = include_str!("reference/config_schema.json");

pub mod requirements {
    #![doc = include_str!("reference/requirements.md")]
}

pub mod contracts {
    #![doc = include_str!("reference/contracts.md")]
}
