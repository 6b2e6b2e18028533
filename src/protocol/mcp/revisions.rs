//! Revisions of the protocol, their families (legacy and modern), and the revisions that a client is offered.
//!
//! Code elsewhere depends on a revision only through methods of [`Revision`] and [`ProtocolFamily`]; the members of messages are in
//! [`shapes`](super::shapes). A request that states a revision is served in that revision, even if it was not offered. Pure.

use serde::Deserialize;

/// Legacy revisions (with `initialize`), newest first.
pub const LEGACY: [&str; 4] = [
    NEWEST_LEGACY,
    Revision::June2025.name(),
    Revision::March2025.name(),
    Revision::November2024.name(),
];

pub const NEWEST_LEGACY: &str = Revision::November2025.name();

/// Modern revision (without sessions).
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
    /// Newest revision.
    pub const NEWEST: Self = Self::July2026;

    const ALL: [Self; 5] =
        [Self::November2024, Self::March2025, Self::June2025, Self::November2025, Self::July2026];

    /// Revision with this name; the newest for an unknown name.
    pub fn of(version: &str) -> Self {
        Self::ALL.into_iter().find(|known| known.name() == version).unwrap_or(Self::NEWEST)
    }

    /// Date of the revision, which is its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::November2024 => "2024-11-05",
            Self::March2025 => "2025-03-26",
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
            Self::July2026 => "2026-07-28",
        }
    }

    pub fn has_batches(self) -> bool {
        self == Self::March2025
    }

    /// Whether an event stream begins with an event that has an id and no data, from which the client can resume (MCP 2025-11-25
    /// §Listening); clients of earlier revisions do not support it.
    pub fn primes_event_streams(self) -> bool {
        self == Self::November2025
    }

    /// Whether tasks are a part of the revision (MCP 2025-11-25 §Tasks).
    pub fn has_tasks(self) -> bool {
        self == Self::November2025
    }

    pub fn has_tasks_extension(self) -> bool {
        self == Self::July2026
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtocolFamily {
    /// Legacy, 2024-11-05 to 2025-11-25: `initialize`, sessions, requests of the server.
    #[default]
    Legacy,
    /// Modern, 2026-07-28: stateless requests; a server requests input with an `input_required` result.
    Modern,
}

/// Config key `offered_era`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offered {
    /// Both families: clients of either one can read answers of servers of either one.
    #[default]
    Auto,
    /// Same as [`Auto`](Self::Auto), stated explicitly.
    Modern,
    /// Legacy revisions only.
    Legacy,
}

impl Offered {
    /// Offered revisions, newest first.
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
    fn each_revision_has_a_name_and_one_family() {
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
    fn offered_setting_selects_revisions() {
        assert_eq!(Offered::Legacy.revisions(), LEGACY);
        for all in [Offered::Auto, Offered::Modern] {
            assert_eq!(all.revisions(), [&[MODERN][..], &LEGACY].concat());
        }
    }
}
