//! Which nodes' facts a node says again in its own object, word for word with their stamps, so that they outlast a key. Pure.
//!
//! What a node has said that is gone stays sealed by the key of its time: once `cluster.key` was changed no new node can read
//! it. So a node that still has the older key says it again, by the newer one. That changes nothing of what is said, since
//! merging is taking the maximum. Of several the one with the least name goes on with it, and all stop once the node itself
//! has said it by the newer key.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::config::NodeName;

/// Whose facts an object has, and by which key.
#[derive(Clone, Debug)]
struct ReadObject {
    by_first: bool,
    authors: BTreeSet<NodeName>,
}

/// What is known of it.
#[derive(Clone, Debug)]
pub(super) struct FactRelays {
    own: NodeName,
    objects: BTreeMap<NodeName, ReadObject>,
}

impl FactRelays {
    pub(super) fn new(own: NodeName) -> Self {
        Self { own, objects: BTreeMap::new() }
    }

    /// The object of `node` was opened, by the key that is written by now or by an older one, and has facts of these.
    pub(super) fn read(
        &mut self,
        node: &NodeName,
        by_first: bool,
        authors: impl Iterator<Item = NodeName>,
    ) {
        let authors = authors.chain([node.clone()]).collect();
        self.objects.insert(node.clone(), ReadObject { by_first, authors });
    }

    /// Whether this node's own object is by the newest key, as far as it was read.
    pub(super) fn is_own_current(&self) -> bool {
        self.objects.get(&self.own).is_none_or(|own| own.by_first)
    }

    /// Whose facts this node says again.
    pub(super) fn relayed(&self) -> BTreeSet<NodeName> {
        let is_own = |node: &NodeName| *node == self.own;
        let taken = |(node, it): &(&NodeName, &ReadObject)| is_own(node) || !it.by_first;
        let all = self.objects.iter().filter(taken).flat_map(|(_, it)| &it.authors);
        all.filter(|author| !is_own(author) && !self.is_left_to_another(author)).cloned().collect()
    }

    fn is_left_to_another(&self, author: &NodeName) -> bool {
        self.carriers(author).any(|node| node == author || *node < self.own)
    }

    /// Other nodes whose objects by the newest key have facts of a node.
    fn carriers<'a>(&'a self, author: &'a NodeName) -> impl Iterator<Item = &'a NodeName> {
        let is_other =
            move |(node, it): &(&NodeName, &ReadObject)| **node != self.own && it.by_first;
        let others = self.objects.iter().filter(is_other);
        others.filter(move |(_, it)| it.authors.contains(author)).map(|(node, _)| node)
    }

    /// Whether what a node has said is said again by this one or another, so that its own object need not be read.
    pub(super) fn is_said_again(&self, author: &NodeName) -> bool {
        let own = self.objects.get(&self.own);
        own.is_some_and(|own| *author != self.own && own.authors.contains(author))
            || self.carriers(author).any(|node| node != author)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact_set::tests::node;
    use super::*;

    #[test]
    fn one_node_says_again_what_is_sealed_by_an_older_key_until_its_own_node_does() {
        let [a, b, c, gone] = ["a", "b", "c", "gone"].map(node);
        let mut relays = FactRelays::new(b.clone());
        let read = |relays: &mut FactRelays, node: &NodeName, by_first, of: &[&NodeName]| {
            relays.read(node, by_first, of.iter().map(|node| (*node).clone()));
        };
        let relayed = |relays: &FactRelays| relays.relayed().into_iter().collect::<Vec<_>>();
        read(&mut relays, &b, false, &[]);
        read(&mut relays, &gone, false, &[]);
        read(&mut relays, &c, true, &[]);
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(!relays.is_said_again(&gone));
        // It is said again by this node, then by one with a greater name, too, and by one with a lesser.
        read(&mut relays, &b, true, &[&gone]);
        read(&mut relays, &c, true, &[&gone]);
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(relays.is_said_again(&gone));
        read(&mut relays, &a, true, &[&gone]);
        assert_eq!(relayed(&relays), []);
        // After the next change of the key the one that has said it is gone as well.
        read(&mut relays, &c, false, &[]);
        read(&mut relays, &a, false, &[&gone]);
        assert_eq!(relayed(&relays), [a.clone(), c.clone(), gone.clone()]);
        read(&mut relays, &gone, true, &[]);
        assert_eq!(relayed(&relays), [a, c]);
        // A node that starts again with the newest key alone knows it from its own object.
        let mut again = FactRelays::new(b.clone());
        read(&mut again, &b, true, &[&gone]);
        assert_eq!(relayed(&again), std::slice::from_ref(&gone));
        assert!(again.is_said_again(&gone) && !again.is_said_again(&b));
    }
}
