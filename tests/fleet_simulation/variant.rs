//! Broken variants of nodes that the simulation must detect.

/// Defect of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// No defect.
    Right,
    /// After a crash, the records of the segment in flight are divided differently.
    ForgetsPlans,
    /// An upload counts as stored without being verified.
    BelievesTheStore,
    /// An upload counts as stored even if another store is in place.
    PutsAnywhere,
    /// Records that are not durable are sealed.
    SealsEarly,
    /// A log is continued although it was restored or has diverged.
    AnyLog,
    /// A defect of the verifier: it does not check the linkage of segments.
    LooksAway,
    /// The follower writes its mark before the records.
    NotInOneBatch,
    /// The follower does not verify.
    TakesUnverified,
    /// The follower accepts apparent faults at once: its clock runs a hundred times too fast.
    SettlesAtOnce,
    /// The follower skips objects without a report.
    KeepsQuiet,
    /// The follower accepts gaps even in another store, and fills none.
    BelievesHoles,
    /// A revocation is acknowledged before it is saved.
    RevokesUnsaved,
    /// Facts are uploaded under a number that is not saved.
    NumbersUnsaved,
    /// The last known state of a node is assumed to be complete.
    BelievesTheLast,
    /// An upload of facts is not verified.
    BelievesPuts,
}

impl Variant {
    pub const BROKEN: [Self; 15] = [
        Self::ForgetsPlans,
        Self::BelievesTheStore,
        Self::PutsAnywhere,
        Self::SealsEarly,
        Self::AnyLog,
        Self::LooksAway,
        Self::NotInOneBatch,
        Self::TakesUnverified,
        Self::SettlesAtOnce,
        Self::KeepsQuiet,
        Self::BelievesHoles,
        Self::RevokesUnsaved,
        Self::NumbersUnsaved,
        Self::BelievesTheLast,
        Self::BelievesPuts,
    ];

    /// True if the ledger is simulated.
    pub const fn has_ledger(self) -> bool {
        !self.has_facts() || matches!(self, Self::Right)
    }

    /// True if facts are simulated.
    pub const fn has_facts(self) -> bool {
        matches!(
            self,
            Self::Right
                | Self::RevokesUnsaved
                | Self::NumbersUnsaved
                | Self::BelievesTheLast
                | Self::BelievesPuts
        )
    }

    /// True if index nodes take part; they may not detect a broken ledger.
    pub const fn has_followers(self) -> bool {
        matches!(
            self,
            Self::Right
                | Self::NotInOneBatch
                | Self::TakesUnverified
                | Self::SettlesAtOnce
                | Self::KeepsQuiet
                | Self::BelievesHoles
        )
    }

    /// Variant with this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Right].into_iter().chain(Self::BROKEN);
        all.into_iter().find(|variant| format!("{variant:?}").eq_ignore_ascii_case(name))
    }
}
