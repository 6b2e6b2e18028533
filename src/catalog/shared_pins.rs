//! What the nodes of a fleet say of definitions: one that was accepted, held or approved at any of them is so at all.
//!
//! Of what is said of one definition the most counts, however often and in whatever order it is heard: approved by an operator
//! before held, and that before pinned. So every node that has heard the same judges the same, and nothing is taken back but
//! by an operator's approval. What is said of another definition of the same tool says nothing of this one, but that the tool
//! is known. Pure; what follows from it is `sharing`'s.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::definition::DefinitionDigest;
use crate::tool::ToolName;

/// What is said of a definition; the later ones count before the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedVerdict {
    /// It was accepted at some node without being asked for.
    Pinned,
    /// It waits for an operator.
    Held,
    /// An operator has approved it.
    Approved,
}

/// What is said of the definitions of one tool.
pub(super) type OfTool = BTreeMap<DefinitionDigest, SharedVerdict>;

/// What is said of all definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPins(BTreeMap<Arc<str>, BTreeMap<Box<str>, OfTool>>);

impl SharedPins {
    /// This is said of a definition.
    pub fn add(&mut self, tool: &ToolName, digest: DefinitionDigest, verdict: SharedVerdict) {
        let of_server = self.0.entry(Arc::clone(&tool.server)).or_default();
        let of_tool = of_server.entry((*tool.tool).into()).or_default();
        let said = of_tool.entry(digest).or_insert(verdict);
        *said = verdict.max(*said);
    }

    /// What counts of a definition; `None` where nothing is said of it.
    #[must_use]
    pub fn verdict(&self, tool: &ToolName, digest: DefinitionDigest) -> Option<SharedVerdict> {
        self.of(tool)?.get(&digest).copied()
    }

    /// Whether some definition of the tool is trusted at some node.
    #[must_use]
    pub fn knows(&self, tool: &ToolName) -> bool {
        self.of(tool).is_some_and(is_known)
    }

    pub(super) fn of(&self, tool: &ToolName) -> Option<&OfTool> {
        self.0.get(&tool.server)?.get(&*tool.tool)
    }
}

pub(super) fn is_known(of_tool: &OfTool) -> bool {
    of_tool.values().any(|verdict| *verdict != SharedVerdict::Held)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(tool: &str) -> ToolName {
        ToolName { server: "s".into(), tool: tool.into() }
    }

    const VERDICTS: [SharedVerdict; 3] =
        [SharedVerdict::Pinned, SharedVerdict::Held, SharedVerdict::Approved];

    proptest! {
        #[test]
        fn whoever_has_heard_the_same_in_whatever_order_says_the_same(
            said in prop::collection::vec((0..2_u8, 0..3_u8, 0..3_usize), 0..20),
            shuffles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..40), 1..4),
        ) {
            let add = |pins: &mut SharedPins, (tool, of, verdict): (u8, u8, usize)| {
                pins.add(&name(&tool.to_string()), DefinitionDigest::of(&[of]), VERDICTS[verdict]);
            };
            let mut first = SharedPins::default();
            said.iter().for_each(|it| add(&mut first, *it));
            for shuffle in shuffles {
                // Some twice, all at least once, in another order.
                let mut other = SharedPins::default();
                if !said.is_empty() {
                    shuffle.iter().for_each(|at| add(&mut other, said[at.index(said.len())]));
                }
                said.iter().rev().for_each(|it| add(&mut other, *it));
                prop_assert_eq!(&other, &first);
            }
            for (tool, of, _) in &said {
                let (tool, digest) = (name(&tool.to_string()), DefinitionDigest::of(&[*of]));
                let of_it = said.iter().filter(|it| name(&it.0.to_string()) == tool && DefinitionDigest::of(&[it.1]) == digest);
                let most = of_it.map(|it| VERDICTS[it.2]).max();
                prop_assert_eq!(first.verdict(&tool, digest), most);
            }
        }
    }
}
