//! Reference: requirements and exact texts.
//!
//! Ids in comments and test names (FR-017, CAP-3, ACT-5) are rows of [`requirements`]. Texts, names and formats that
//! others depend on are in [`contracts`], the bound of each structure in memory in [`bounds`], and the keys of the
//! config in [`CONFIG_SCHEMA`].

pub use mcpproxy_config::CONFIG_SCHEMA;

pub mod requirements {
    #![doc = include_str!("reference/requirements.md")]
}

pub mod contracts {
    #![doc = include_str!("reference/contracts.md")]
}

pub mod bounds {
    #![doc = include_str!("reference/bounds.md")]
}
