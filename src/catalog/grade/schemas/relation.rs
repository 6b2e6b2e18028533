//! How a schema, or a part of it, relates to the one before. Pure.

/// How a schema relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Both accept the same.
    Equal,
    /// The new one accepts nothing that the old one did not.
    Narrower,
    /// The new one accepts more, or it cannot be told.
    Wider,
}

/// The relations of parts that hold together: the graver counts.
pub(super) fn both(a: Relation, b: Relation) -> Relation {
    a.max(b)
}
