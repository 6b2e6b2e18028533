//! Nodes that are made wrong, to see that the simulation finds it.

/// What is wrong with the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Right,
    /// After a crash what was on its way is cut anew.
    ForgetsPlans,
    /// What the store has answered counts, without asking it again.
    BelievesTheStore,
    /// What was put counts in whatever store it is.
    PutsAnywhere,
    /// What is not durable is sealed.
    SealsEarly,
    /// A log that was put back, or has gone another way, is gone on with.
    AnyLog,
    /// Not a node's fault: who verifies does not look whether segments follow each other.
    LooksAway,
    /// Who follows writes how far it is before it writes the records.
    NotInOneBatch,
    /// Who follows does not verify.
    TakesUnverified,
    /// Who follows takes what looks wrong for wrong at once: its clock runs a hundred times too fast.
    SettlesAtOnce,
    /// Who follows passes something over, and tells nothing.
    KeepsQuiet,
    /// Who shares facts acknowledges a revocation before it is remembered.
    RevokesUnsaved,
    /// Who shares facts puts under a number that it has not remembered.
    NumbersUnsaved,
    /// Who shares facts takes what a node said last for all that it ever said.
    BelievesTheLast,
    /// Who shares facts does not look whether the store has what it took.
    BelievesPuts,
}

impl Variant {
    pub const BROKEN: [Self; 14] = [
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
        Self::RevokesUnsaved,
        Self::NumbersUnsaved,
        Self::BelievesTheLast,
        Self::BelievesPuts,
    ];

    /// Whether the ledger is tried.
    pub const fn has_ledger(self) -> bool {
        !self.has_facts() || matches!(self, Self::Right)
    }

    /// Whether the facts are.
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

    /// Whether index nodes take part: where the ledger is broken they do not have to show it.
    pub const fn has_followers(self) -> bool {
        matches!(
            self,
            Self::Right
                | Self::NotInOneBatch
                | Self::TakesUnverified
                | Self::SettlesAtOnce
                | Self::KeepsQuiet
        )
    }

    /// The one that is called so.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Right].into_iter().chain(Self::BROKEN);
        all.into_iter().find(|variant| format!("{variant:?}").eq_ignore_ascii_case(name))
    }
}
