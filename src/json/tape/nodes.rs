//! Walking the nodes of a tape: node 0 is the root, and a container is followed by what it holds.

use simd_json::Node;

/// Deepest nesting a document may have: a scalar is 0, each open array or object adds 1. It is
/// what `serde_json` reads as well, so that both engines can see every document.
pub const MAX_DEPTH: usize = 127;

/// Depth of a tape: 0 for a scalar, one more for each open container.
#[must_use]
pub fn depth(nodes: &[Node<'_>]) -> usize {
    let mut open = OpenContainers::default();
    let mut deepest = 0;
    for (at, node) in nodes.iter().enumerate() {
        if let Some(count) = contained(node) {
            deepest = deepest.max(open.enter(at, count));
        }
    }
    deepest
}

/// The containers around a place on the tape, while walking it in order.
#[derive(Clone)]
pub struct OpenContainers {
    ends: [usize; MAX_DEPTH + 1],
    len: usize,
}

impl OpenContainers {
    /// Enters the container at `at` that holds `count` nodes; its depth, from 1.
    pub fn enter(&mut self, at: usize, count: usize) -> usize {
        self.leave(at);
        if let Some(slot) = self.ends.get_mut(self.len) {
            *slot = at + count;
            self.len += 1;
        }
        self.len
    }

    /// Drops the containers that end before `at`. Returns the number of those still open.
    pub fn leave(&mut self, at: usize) -> usize {
        while self.len > 0 && self.ends.get(self.len - 1).is_some_and(|end| *end < at) {
            self.len -= 1;
        }
        self.len
    }
}

impl Default for OpenContainers {
    fn default() -> Self {
        Self { ends: [0; MAX_DEPTH + 1], len: 0 }
    }
}

/// Nodes inside a container; none for a scalar.
#[must_use]
pub fn contained(node: &Node<'_>) -> Option<usize> {
    match node {
        Node::Object { count, .. } | Node::Array { count, .. } => Some(*count),
        Node::String(_) | Node::Static(_) => None,
    }
}

/// The name at `at`; empty where there is none.
pub(super) fn key_at<'a>(nodes: &[Node<'a>], at: u32) -> &'a str {
    match nodes.get(at as usize) {
        Some(Node::String(name)) => name,
        _ => "",
    }
}

/// Where the value that follows the one at `at` stands.
pub(super) fn after(nodes: &[Node<'_>], at: u32) -> u32 {
    let inside = nodes.get(at as usize).and_then(contained).unwrap_or(0);
    at.saturating_add(1).saturating_add(inside as u32)
}

/// The JSON pointer of the value at `target`.
pub(super) fn pointer(nodes: &[Node<'_>], target: u32) -> String {
    let mut path = String::new();
    let mut at = 0;
    while at != target {
        let (len, object) = match nodes.get(at as usize) {
            Some(Node::Object { len, .. }) => (*len, true),
            Some(Node::Array { len, .. }) => (*len, false),
            Some(Node::String(_) | Node::Static(_)) | None => return path,
        };
        let mut child = at + 1;
        let mut found = None;
        for position in 0..len {
            let value = if object { child + 1 } else { child };
            let end = after(nodes, value);
            if target < end {
                found = Some((position, value));
                break;
            }
            child = end;
        }
        let Some((position, value)) = found else { return path };
        path.push('/');
        if object {
            path.push_str(&key_at(nodes, value - 1).replace('~', "~0").replace('/', "~1"));
        } else {
            path.push_str(&position.to_string());
        }
        if target < value {
            return path;
        }
        at = value;
    }
    path
}
