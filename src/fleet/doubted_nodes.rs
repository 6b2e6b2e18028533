//! Nodes that did not answer as they should: what is known of them may be old, and is read anew. Whoever asks them says so, and
//! who reads what they say takes note.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::config::NodeName;

/// Most that are kept until they are read.
const MAX_DOUBTED: usize = 64;

/// Their names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct DoubtedNodes(Arc<Mutex<BTreeSet<NodeName>>>);

impl DoubtedNodes {
    /// What is known of that node may be old.
    pub(super) fn doubt(&self, node: &str) {
        let Some(name) = NodeName::parse(node) else { return };
        let mut doubted = self.0.lock();
        if doubted.len() < MAX_DOUBTED {
            doubted.insert(name);
        }
    }

    /// Those that are doubted, who are no more.
    pub(super) fn take(&self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.0.lock())
    }
}
