//! The vectors that are known, by what they were made of: those of the tools there are, and some of tools there were.
//! Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::key::{VectorKey, tool_text};
use crate::catalog::search::{MAX_DIMENSIONS, ToolVectors, UnitVector};
use crate::tool::Tool;

/// Most vectors that are kept, and most bytes of them: whichever is less.
pub const MAX_VECTORS: usize = 100_000;
const MAX_VECTOR_BYTES: usize = 256 * 1024 * 1024;

/// Most vectors that are kept of tools that are gone, once all servers are known: one that was switched off comes back.
const MAX_SPARE: usize = 2000;

/// The vectors of one model. They are in one piece as they are searched, but for those that no tool has.
#[derive(Debug)]
pub struct VectorStore {
    model: Box<str>,
    /// Of the tools there are, and where in it which vector is.
    tools: Arc<ToolVectors>,
    rows: HashMap<VectorKey, usize>,
    /// All others.
    spare: HashMap<VectorKey, UnitVector>,
}

impl VectorStore {
    /// None yet.
    #[must_use]
    pub fn new(model: &str) -> Self {
        Self {
            model: model.into(),
            tools: Arc::default(),
            rows: HashMap::new(),
            spare: HashMap::new(),
        }
    }

    /// Whose they are.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Those of the tools that were arranged last.
    #[must_use]
    pub fn tools(&self) -> &Arc<ToolVectors> {
        &self.tools
    }

    /// How many numbers each has; `None` while there is none.
    #[must_use]
    pub fn dimensions(&self) -> Option<usize> {
        match self.tools.is_empty() {
            false => Some(self.tools.dimensions()),
            true => self.spare.values().next().map(|vector| vector.numbers().len()),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() + self.spare.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes one up, to be used from the next arrangement on. One of another dimension, or beyond the bounds, is dropped;
    /// false then.
    pub fn insert(&mut self, key: VectorKey, vector: UnitVector) -> bool {
        let dimensions = vector.numbers().len();
        if self.dimensions().is_some_and(|known| known != dimensions)
            || self.len() >= capacity(dimensions)
        {
            return false;
        }
        if !self.rows.contains_key(&key) {
            self.spare.insert(key, vector);
        }
        true
    }

    /// Puts in order the vectors of `tools`, which are all there are; the texts of those that have none, each once, as far
    /// as they can be kept. `complete`: no server is awaited, so what no tool has is of tools that are gone.
    pub fn arrange(&mut self, tools: &[Arc<Tool>], complete: bool) -> Vec<(VectorKey, String)> {
        let last = Arc::clone(&self.tools);
        let last_rows = std::mem::take(&mut self.rows);
        let spare = std::mem::take(&mut self.spare);
        let (mut found, mut rows) = (Vec::new(), HashMap::new());
        let (mut missing, mut wanted) = (Vec::new(), HashSet::new());
        for tool in tools {
            let text = tool_text(tool);
            let key = VectorKey::of(&self.model, &text);
            let of_last = last_rows.get(&key).and_then(|row| last.vector(*row));
            match of_last.or_else(|| spare.get(&key).map(UnitVector::numbers)) {
                Some(vector) => {
                    rows.entry(key).or_insert(found.len());
                    found.push((Arc::clone(tool), vector));
                }
                None if wanted.insert(key) => missing.push((key, text)),
                None => {}
            }
        }
        self.tools = Arc::new(ToolVectors::of(found));
        let gone = last_rows.into_iter().filter_map(|(key, row)| {
            let vector = last.vector(row).filter(|_| !rows.contains_key(&key))?;
            Some((key, UnitVector::of(vector.to_vec())?))
        });
        let kept = if complete { MAX_SPARE } else { MAX_VECTORS };
        let spare = spare.into_iter().filter(|(key, _)| !rows.contains_key(key));
        self.spare = spare.chain(gone).take(kept).collect();
        self.rows = rows;
        let room = capacity(self.dimensions().unwrap_or(MAX_DIMENSIONS)).saturating_sub(self.len());
        missing.truncate(room);
        missing
    }

    /// All of them, to be kept.
    pub fn all(&self) -> impl Iterator<Item = (&VectorKey, &[f32])> {
        let rows = self.rows.iter();
        let of_tools = rows.filter_map(|(key, row)| Some((key, self.tools.vector(*row)?)));
        of_tools.chain(self.spare.iter().map(|(key, vector)| (key, vector.numbers())))
    }
}

/// How many are kept of so many dimensions.
pub(super) fn capacity(dimensions: usize) -> usize {
    MAX_VECTORS.min(MAX_VECTOR_BYTES / dimensions.max(1) / size_of::<f32>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, Rules, ToolName};

    fn tool(name: &str, description: &str) -> Arc<Tool> {
        let name = ToolName { server: "s".into(), tool: name.into() };
        Arc::new(Tool {
            description: description.into(),
            ..Tool::named(name, Annotations::default(), &Rules::default())
        })
    }

    fn unit(numbers: &[f32]) -> UnitVector {
        UnitVector::of(numbers.to_vec()).unwrap()
    }

    #[test]
    fn only_what_is_not_known_is_asked_for_and_each_text_once() {
        let mut store = VectorStore::new("m");
        let tools = [tool("a", "x"), tool("b", "y"), tool("a", "x")];
        let missing = store.arrange(&tools, true);
        let texts: Vec<_> = missing.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["a: x", "b: y"]);
        assert_eq!(missing[0].0, VectorKey::of("m", "a: x"));
        assert!(store.insert(missing[0].0, unit(&[1.0, 0.0])));
        assert!(store.arrange(&tools, true).iter().map(|(_, text)| &**text).eq(["b: y"]));
        assert_eq!((store.tools().len(), store.len()), (2, 1), "two tools, one text");
        assert!(!store.insert(missing[1].0, unit(&[1.0, 0.0, 0.0])), "another dimension");
        assert!(store.insert(missing[1].0, unit(&[0.0, 1.0])));
        assert_eq!(store.arrange(&tools, true), []);
        assert_eq!(store.tools().vector(1).unwrap(), [0.0, 1.0]);
        // Another description is another text.
        assert_eq!(store.arrange(&[tool("a", "z")], true)[0].1, "a: z");
        assert_eq!((store.tools().len(), store.len()), (0, 2));
        assert_eq!(store.dimensions(), Some(2));
        assert_eq!(store.arrange(&tools, true), [], "what was gone is back");
        assert_eq!((store.tools().len(), store.len()), (3, 2));
    }

    #[test]
    fn what_no_tool_has_is_kept_within_bounds() {
        let mut store = VectorStore::new("m");
        for at in 0..MAX_SPARE + 500 {
            assert!(store.insert(VectorKey::of("m", &at.to_string()), unit(&[1.0])));
        }
        store.arrange(&[], false);
        assert_eq!(store.len(), MAX_SPARE + 500, "a server is awaited, whose they may be");
        store.arrange(&[], true);
        assert_eq!(store.len(), MAX_SPARE);
        assert_eq!(capacity(384), MAX_VECTORS);
        assert_eq!(capacity(4096), 16_384);
    }
}
