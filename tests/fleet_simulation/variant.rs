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
    /// What is not durable is sealed.
    SealsEarly,
    /// A log that was put back, or has gone another way, is gone on with.
    AnyLog,
    /// Not a node's fault: who verifies does not look whether segments follow each other.
    LooksAway,
}

impl Variant {
    pub const BROKEN: [Self; 5] = [
        Self::ForgetsPlans,
        Self::BelievesTheStore,
        Self::SealsEarly,
        Self::AnyLog,
        Self::LooksAway,
    ];

    /// The one that is called so.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Right].into_iter().chain(Self::BROKEN);
        all.into_iter().find(|variant| format!("{variant:?}").eq_ignore_ascii_case(name))
    }
}
