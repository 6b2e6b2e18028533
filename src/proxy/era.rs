//! The revisions that a client is told of which asks before it chooses one.
//!
//! A client that speaks both eras asks `server/discover`, and keeps to what it finds. One that finds
//! 2026-07-28 refuses every result without `resultType`, which no server of the other era writes
//! and which is not ours to add (SPEC §3): so it is led to `initialize` while a server of that era
//! may answer it. Only what is *told* is decided here: what states 2026-07-28 itself is served so,
//! whatever it was told. Pure.

use serde::Deserialize;

use crate::proxy::dispatch::{MODERN, VERSIONS};
use crate::upstream::Era;

/// Config key `offered_era`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offered {
    /// 2026-07-28 while every upstream is known to speak it.
    #[default]
    Auto,
    /// 2026-07-28, whatever the upstreams speak.
    Modern,
    /// The revisions with `initialize` only.
    Legacy,
}

/// The revisions to tell of, newest first. `upstreams` is what each of them speaks, as far as is
/// known; one that was not reached yet counts as legacy, since most are, and a legacy client can
/// read the answers of either.
#[must_use]
pub fn revisions(offered: Offered, mut upstreams: impl Iterator<Item = Era>) -> Vec<&'static str> {
    let modern = match offered {
        Offered::Auto => upstreams.all(|era| era == Era::Modern),
        Offered::Modern => true,
        Offered::Legacy => false,
    };
    modern.then_some(MODERN).into_iter().chain(VERSIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_2026_the_modern_revision_is_offered_where_every_upstream_speaks_it() {
        use Era::{Legacy, Modern};
        for (upstreams, auto) in [
            (&[][..], true),
            (&[Modern], true),
            (&[Modern, Modern], true),
            (&[Legacy], false),
            (&[Modern, Legacy], false),
            (&[Legacy, Modern], false),
        ] {
            let told = |offered| revisions(offered, upstreams.iter().copied());
            assert_eq!(told(Offered::Auto).contains(&MODERN), auto, "{upstreams:?}");
            assert!(told(Offered::Modern).contains(&MODERN) && told(Offered::Legacy) == VERSIONS);
            for offered in [Offered::Auto, Offered::Modern, Offered::Legacy] {
                assert!(told(offered).ends_with(&VERSIONS), "{upstreams:?} {offered:?}");
            }
        }
    }
}
