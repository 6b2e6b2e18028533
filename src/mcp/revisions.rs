//! The revisions of the protocol: the list of them, the two eras they fall into, and which a client is told of.
//!
//! A revision decides something elsewhere only by a question to [`Revision`] or its [`Era`]; which members its
//! messages have is in [`shapes`](super::shapes). What a client is *told* of decides nothing: what states a revision itself is served so,
//! whatever it was told. Pure.

use serde::Deserialize;

/// The revisions with `initialize`, newest first.
pub const LEGACY: [&str; 4] = [
    NEWEST_LEGACY,
    Revision::June2025.name(),
    Revision::March2025.name(),
    Revision::November2024.name(),
];

/// The newest revision with `initialize`.
pub const NEWEST_LEGACY: &str = Revision::November2025.name();

/// The revision without sessions.
pub const MODERN: &str = Revision::July2026.name();

/// A protocol revision, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// 2024-11-05
    November2024,
    /// 2025-03-26
    March2025,
    /// 2025-06-18
    June2025,
    /// 2025-11-25
    November2025,
    /// 2026-07-28
    July2026,
}

impl Revision {
    /// The last of them.
    pub const NEWEST: Self = Self::July2026;

    const ALL: [Self; 5] =
        [Self::November2024, Self::March2025, Self::June2025, Self::November2025, Self::July2026];

    /// The revision of that name; what is none of these is read as the newest.
    #[must_use]
    pub fn of(version: &str) -> Self {
        Self::ALL.into_iter().find(|known| known.name() == version).unwrap_or(Self::NEWEST)
    }

    /// Its date, which is what messages name it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::November2024 => "2024-11-05",
            Self::March2025 => "2025-03-26",
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
            Self::July2026 => "2026-07-28",
        }
    }

    /// Whether several messages may come as one array.
    #[must_use]
    pub fn has_batches(self) -> bool {
        self == Self::March2025
    }

    /// Whether an event stream begins with an event that has an id and no data, which gives the client
    /// the id to come back with (MCP 2025-11-25 §Listening); clients of earlier revisions do not know it.
    #[must_use]
    pub fn primes_event_streams(self) -> bool {
        self == Self::November2025
    }
}

/// The two kinds of protocol there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25: `initialize`, sessions, requests of the server.
    #[default]
    Legacy,
    /// 2026-07-28: each request stands for itself; what the server wants to know comes as an
    /// `input_required` result.
    Modern,
}

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

impl Offered {
    /// The revisions to tell of, newest first.
    #[must_use]
    pub fn revisions(self) -> Vec<&'static str> {
        let modern = match self {
            Self::Auto | Self::Modern => Some(MODERN),
            Self::Legacy => None,
        };
        modern.into_iter().chain(LEGACY).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_revision_is_known_by_its_name_and_belongs_to_one_era() {
        for revision in Revision::ALL {
            assert_eq!(Revision::of(revision.name()), revision);
            assert_ne!(LEGACY.contains(&revision.name()), revision.name() == MODERN);
        }
        assert!(Revision::ALL.is_sorted() && LEGACY.iter().rev().is_sorted());
        assert_eq!(Revision::of("2099-01-01"), Revision::NEWEST);
        assert_eq!(Revision::NEWEST.name(), MODERN);
        assert_eq!(LEGACY.first(), Some(&NEWEST_LEGACY));
    }

    #[test]
    fn only_what_is_told_can_be_chosen() {
        assert_eq!(Offered::Legacy.revisions(), LEGACY);
        for all in [Offered::Auto, Offered::Modern] {
            assert_eq!(all.revisions(), [&[MODERN][..], &LEGACY].concat());
        }
    }
}
