//! What is known of a JSON value: its shape, the members that it has, and since and until which revision.

use crate::json::fold;
use crate::mcp::revisions::Revision;

/// What is known of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Nothing: it passes as it is.
    Verbatim,
    /// An object with these members.
    Object(&'static [Known]),
    /// An object whose keys are free, but for these, which have one spelling. Values pass as they
    /// are.
    Free(&'static [&'static str]),
    /// An object whose keys are free, and whose values are objects with these members.
    Each(&'static [Known]),
}

/// A member that an object has.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name; ASCII.
    pub name: &'static str,
    pub(super) shape: Shape,
    pub(super) since: Revision,
    pub(super) until: Revision,
}

/// What a name is among the members that an object has.
#[derive(Clone, Copy, Debug)]
pub enum MemberMatch {
    /// One of them.
    Known(Shape),
    /// None of them, but for a reader that ignores case.
    Variant(&'static str),
    /// None of them.
    Unknown,
}

/// Looks a name up.
#[must_use]
pub fn find(known: &'static [Known], revision: Revision, name: &str) -> MemberMatch {
    let has = |it: &Known| it.since <= revision && revision <= it.until;
    if let Some(found) = known.iter().find(|it| it.name == name) {
        return if has(found) { MemberMatch::Known(found.shape) } else { MemberMatch::Unknown };
    }
    // One of another revision as well: the other side may speak that.
    match known.iter().find(|it| fold::same(it.name, name)) {
        Some(variant) => MemberMatch::Variant(variant.name),
        None => MemberMatch::Unknown,
    }
}
