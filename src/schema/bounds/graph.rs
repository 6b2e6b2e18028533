//! The subschemas of one schema, and where each leads.

use std::collections::HashSet;

use serde_json::Value;
use url::Url;

/// The subschemas of one schema, and where each leads.
pub struct Graph<'a> {
    /// The root is the first.
    pub(super) subs: Vec<Sub>,
    /// The number of the resource that each of them belongs to.
    pub(super) resources: Vec<usize>,
    pub(super) patterns: Vec<(&'a str, bool)>,
    /// The number of patterns that are matched against each name of an object.
    pub(super) named_patterns: u64,
    /// Applied to each name of an object.
    pub(super) names: Vec<usize>,
    /// Every subschema.
    pub(super) reached: HashSet<*const Value>,
    pub(super) overflowed: bool,
    pub(super) scattered: bool,
    pub(super) lost: Option<Lost>,
    pub(super) crowded: bool,
}

/// A reference that leads neither into the schema nor to a meta-schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// To another resource.
    Outside(Url),
    /// To a place of the schema that is not there.
    Nothing(String),
    /// Some place of the schema has a name of the meta-schemas.
    Claimed(String),
}

/// Where one subschema leads.
#[derive(Default)]
pub(super) struct Sub {
    /// Applied to the same value.
    pub(super) here: Vec<usize>,
    /// One of these is applied to a member.
    pub(super) properties: Vec<usize>,
    /// All of these may be applied to a member as well.
    pub(super) patterns: Vec<usize>,
    /// Applied to the members that no property or pattern names.
    pub(super) rest: Vec<usize>,
    /// Applied to any member on top.
    pub(super) members: Vec<usize>,
    /// One of these is applied to an item.
    pub(super) positions: Vec<usize>,
    /// Applied to any item on top.
    pub(super) items: Vec<usize>,
    /// Leads out of the schema.
    pub(super) leaves: bool,
    /// What a visit costs on top: comparing with the values of an `enum`.
    pub(super) extra: u64,
}

impl Sub {
    /// All that is applied to a member or an item.
    pub(super) fn children(&self) -> impl Iterator<Item = usize> + '_ {
        [&self.properties, &self.patterns, &self.rest, &self.members, &self.positions, &self.items]
            .into_iter()
            .flatten()
            .copied()
    }
}

impl<'a> Graph<'a> {
    /// Every subschema that can be reached from the root.
    #[must_use]
    pub fn reached(&self) -> &HashSet<*const Value> {
        &self.reached
    }

    /// True when a name stands in more than [`MAX_PLACES`](super::MAX_PLACES) places.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    /// A reference that leads neither into the schema nor to a meta-schema. Whatever an engine
    /// makes of it, its cost is not bounded here.
    #[must_use]
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// True when references lead to more places than asked for.
    #[must_use]
    pub fn scattered(&self) -> bool {
        self.scattered
    }

    /// True when there were more subschemas than asked for.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Every regular expression, and whether it may be matched against names of members.
    pub fn patterns(&self) -> impl Iterator<Item = (&'a str, bool)> {
        let of_strings = !self.names.is_empty();
        self.patterns.iter().map(move |&(pattern, of_names)| (pattern, of_names || of_strings))
    }
}
