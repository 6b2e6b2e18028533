//! Which nodes' facts a node says again in its own object, word for word with their stamps, so that they outlast a key. Pure.
//!
//! What a node has said that is gone stays sealed by the key of its time: once `cluster.key` was changed no new node can read
//! it. So a node that still has the older key says it again, by the newer one. That changes nothing of what is said, since
//! merging is taking the maximum. Of several the one with the least name goes on with it, and all stop once the node itself
//! has said it by the newer key.
//!
//! Whose facts a node has had to say again it remembers for good, beside the facts: the object that says so may be removed, or
//! replaced by an older one, and once the older key is gone nothing else in the store does. What another one says instead is
//! left out of what is said and not forgotten, as that object may be gone one day, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::config::NodeName;

/// Most nodes whose facts are remembered to be said again: as many as are read.
const MAX_REMEMBERED: usize = 4096;

/// Whose facts an object has, and by which key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadObject {
    by_first: bool,
    authors: BTreeSet<NodeName>,
}

/// What is known of it.
#[derive(Clone, Debug)]
pub(super) struct FactRelays {
    own: NodeName,
    /// What was read last of each, as far as it is there and could be opened.
    objects: BTreeMap<NodeName, ReadObject>,
    /// Whose facts this node has had to say again.
    remembered: BTreeSet<NodeName>,
}

impl FactRelays {
    pub(super) fn new(own: NodeName, remembered: BTreeSet<NodeName>) -> Self {
        Self { own, objects: BTreeMap::new(), remembered }
    }

    /// Whose facts are to be remembered to be said again.
    pub(super) fn remembered(&self) -> &BTreeSet<NodeName> {
        &self.remembered
    }

    /// The object of `node` was opened, by the key that is written by now or by an older one, and has facts of these. True if
    /// that is another thing than before.
    pub(super) fn read<'a>(
        &mut self,
        node: &NodeName,
        by_first: bool,
        authors: impl Iterator<Item = &'a NodeName>,
    ) -> bool {
        let authors: BTreeSet<_> = authors.cloned().chain([node.clone()]).collect();
        if *node == self.own || !by_first {
            // What its own object had before stays: this one may be an older one.
            for author in authors.iter().filter(|author| **author != self.own) {
                if self.remembered.len() < MAX_REMEMBERED {
                    self.remembered.insert(author.clone());
                }
            }
        }
        let read = ReadObject { by_first, authors };
        let is_other = self.objects.get(node) != Some(&read);
        if is_other {
            self.objects.insert(node.clone(), read);
        }
        is_other
    }

    /// The object of `node` is not there any more, or is not what a fleet writes. True if it was.
    pub(super) fn lost(&mut self, node: &NodeName) -> bool {
        self.objects.remove(node).is_some()
    }

    /// There are no objects but those of these nodes. True if there were others.
    pub(super) fn retain(&mut self, there: &BTreeSet<NodeName>) -> bool {
        let before = self.objects.len();
        self.objects.retain(|node, _| there.contains(node));
        self.objects.len() != before
    }

    /// Whether this node's own object is by the newest key, as far as it was read.
    pub(super) fn is_own_current(&self) -> bool {
        self.objects.get(&self.own).is_none_or(|own| own.by_first)
    }

    /// Whose facts this node says again. Where `others_are_read` is false it is not known yet what others say instead: then it
    /// goes on with what its own object in the store has, and begins with nothing.
    pub(super) fn relayed(&self, others_are_read: bool) -> BTreeSet<NodeName> {
        let own = self.objects.get(&self.own);
        let goes_on = |author: &NodeName| own.is_some_and(|own| own.authors.contains(author));
        let all = self.remembered.iter().filter(|author| others_are_read || goes_on(author));
        all.filter(|author| !self.is_left_to_another(author)).cloned().collect()
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

    /// Whether another node says by the newest key what a node has said, or that node itself does.
    pub(super) fn is_said_elsewhere(&self, author: &NodeName) -> bool {
        self.carriers(author).next().is_some()
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

    fn relays(own: &NodeName, remembered: &[&NodeName]) -> FactRelays {
        FactRelays::new(own.clone(), remembered.iter().map(|node| (*node).clone()).collect())
    }

    fn read(relays: &mut FactRelays, node: &NodeName, by_first: bool, of: &[&NodeName]) -> bool {
        relays.read(node, by_first, of.iter().copied())
    }

    fn relayed(relays: &FactRelays) -> Vec<NodeName> {
        relays.relayed(true).into_iter().collect()
    }

    #[test]
    fn one_node_says_again_what_is_sealed_by_an_older_key_until_its_own_node_does() {
        let [a, b, c, gone] = ["a", "b", "c", "gone"].map(node);
        let mut relays = relays(&b, &[]);
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
        let mut again = self::relays(&b, &[]);
        read(&mut again, &b, true, &[&gone]);
        assert_eq!(relayed(&again), std::slice::from_ref(&gone));
        assert!(again.is_said_again(&gone) && !again.is_said_again(&b));
    }

    #[test]
    fn what_was_said_again_is_so_whatever_becomes_of_the_own_object_and_of_who_said_it_instead() {
        let [a, b, gone] = ["a", "b", "gone"].map(node);
        let mut relays = relays(&b, &[]);
        assert!(read(&mut relays, &b, true, &[&gone]) && !read(&mut relays, &b, true, &[&gone]));
        // An older one is put back, and it is removed.
        assert!(read(&mut relays, &b, true, &[]));
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(!relays.is_said_again(&gone), "it is not in the store");
        assert!(relays.lost(&b) && !relays.lost(&b));
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        // Also for one that starts then. It does not begin before it knows that nobody else does.
        let remembered: Vec<_> = relays.remembered().iter().collect();
        let mut again = self::relays(&b, &remembered);
        assert_eq!(again.relayed(false).len(), 0);
        assert_eq!(relayed(&again), std::slice::from_ref(&gone));
        // Another one says it, until that is gone as well.
        read(&mut again, &a, true, &[&gone]);
        assert_eq!(relayed(&again), []);
        assert!(again.is_said_elsewhere(&gone));
        assert!(again.retain(&[b.clone()].into()) && !again.retain(&[b].into()));
        assert_eq!(relayed(&again), [gone]);
    }

    #[test]
    fn no_more_are_remembered_than_nodes_are_read() {
        let own = node("own");
        let mut relays = relays(&own, &[]);
        for at in 0..MAX_REMEMBERED + 10 {
            read(&mut relays, &node(&at.to_string()), false, &[]);
        }
        assert_eq!(relays.remembered().len(), MAX_REMEMBERED);
    }
}
