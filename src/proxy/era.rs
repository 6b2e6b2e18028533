//! The revisions that a client is told of which asks before it chooses one.
//!
//! Only what is *told* is decided here: what states a revision itself is served so, whatever it was
//! told. Pure.

use serde::Deserialize;

use crate::proxy::dispatch::{MODERN, VERSIONS};

/// Config key `offered_era`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offered {
    /// All: a client of either era can read the answers of servers of either.
    #[default]
    Auto,
    /// The same, said outright.
    Modern,
    /// The revisions with `initialize` only.
    Legacy,
}

/// The revisions to tell of, newest first.
#[must_use]
pub fn revisions(offered: Offered) -> Vec<&'static str> {
    let modern = match offered {
        Offered::Auto | Offered::Modern => Some(MODERN),
        Offered::Legacy => None,
    };
    modern.into_iter().chain(VERSIONS).collect()
}
