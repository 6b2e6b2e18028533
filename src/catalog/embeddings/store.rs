//! Store of vectors by model and text, for current tools and some former ones. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::search::{MAX_DIMENSIONS, ToolVectors, UnitVector};
use mcpproxy_policy::tool::Tool;

/// Maximum number of vectors; [`MAX_VECTOR_BYTES`] may lower it.
pub const MAX_VECTORS: usize = 100_000;
const MAX_VECTOR_BYTES: usize = 256 * 1024 * 1024;

/// Maximum number of vectors of former tools kept once all servers are known, because the tools may return.
const MAX_SPARE: usize = 2000;

/// Vectors of one model. The vectors of current tools are contiguous for searching.
#[derive(Debug)]
pub struct VectorStore {
    model: Box<str>,
    /// Vectors of current tools, with their rows.
    tools: Arc<ToolVectors>,
    rows: HashMap<VectorKey, usize>,
    spare: HashMap<VectorKey, UnitVector>,
}

impl VectorStore {
    pub fn new(model: &str) -> Self {
        Self {
            model: model.into(),
            tools: Arc::default(),
            rows: HashMap::new(),
            spare: HashMap::new(),
        }
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    /// Vectors of the tools that the last call of `arrange` was given.
    pub fn tools(&self) -> &Arc<ToolVectors> {
        &self.tools
    }

    /// Dimensions; `None` while empty.
    pub fn dimensions(&self) -> Option<usize> {
        match self.tools.is_empty() {
            false => Some(self.tools.dimensions()),
            true => self.spare.values().next().map(|vector| vector.numbers().len()),
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len() + self.spare.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a vector, which is used after the next arrangement. Returns false if its dimension differs or the store is
    /// full.
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

    /// Arranges the vectors of all current `tools` and returns the texts that lack a vector, deduplicated and within
    /// the limit. `complete` means that no server is awaited, so vectors without a tool belong to former tools.
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
        let former = last_rows.into_iter().filter_map(|(key, row)| {
            let vector = last.vector(row).filter(|_| !rows.contains_key(&key))?;
            Some((key, UnitVector::of(vector.to_vec())?))
        });
        let kept = if complete { MAX_SPARE } else { MAX_VECTORS };
        let spare = spare.into_iter().filter(|(key, _)| !rows.contains_key(key));
        self.spare = spare.chain(former).take(kept).collect();
        self.rows = rows;
        let remaining =
            capacity(self.dimensions().unwrap_or(MAX_DIMENSIONS)).saturating_sub(self.len());
        missing.truncate(remaining);
        missing
    }

    /// All vectors, to be written to a file.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&VectorKey, &[f32])> {
        let rows = self.rows.iter();
        let of_tools = rows.filter_map(|(key, row)| Some((key, self.tools.vector(*row)?)));
        of_tools.chain(self.spare.iter().map(|(key, vector)| (key, vector.numbers())))
    }
}

/// Maximum number of vectors with this dimension.
pub(super) fn capacity(dimensions: usize) -> usize {
    MAX_VECTORS.min(MAX_VECTOR_BYTES / dimensions.max(1) / size_of::<f32>())
}

/// Maximum length of a tool's text, in characters: about the input limit of small models.
pub const TEXT_CHARS: usize = 1000;

/// Maximum length of a query, in characters.
pub const QUERY_CHARS: usize = 500;

/// Key of a vector: hash of model and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VectorKey(pub(super) [u8; blake3::OUT_LEN]);

impl VectorKey {
    pub(crate) fn of(model: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        // The length prefix separates model and text.
        hasher.update(&(model.len() as u64).to_le_bytes());
        hasher.update(model.as_bytes());
        hasher.update(text.as_bytes());
        Self(hasher.finalize().into())
    }
}

/// Text of a tool: the first [`TEXT_CHARS`] characters of `name: description`.
pub fn tool_text(tool: &Tool) -> String {
    let name = tool.name.tool.chars().chain(": ".chars());
    name.chain(tool.description.chars()).take(TEXT_CHARS).collect()
}

/// Trimmed text of a query, limited to [`QUERY_CHARS`] characters; `None` if empty.
pub fn query_text(query: &str) -> Option<&str> {
    let query = query.trim();
    let end = query.char_indices().nth(QUERY_CHARS).map_or(query.len(), |(at, _)| at);
    query.get(..end).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_policy::tool::{Annotations, Rules, ToolName};

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

    // Covers EMB-3.
    #[test]
    fn each_unknown_text_is_embedded_once_and_known_texts_are_not() {
        let mut store = VectorStore::new("m");
        let tools = [tool("a", "x"), tool("b", "y"), tool("a", "x")];
        let missing = store.arrange(&tools, true);
        let texts: Vec<_> = missing.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["a: x", "b: y"]);
        assert_eq!(missing[0].0, VectorKey::of("m", "a: x"));
        assert!(store.insert(missing[0].0, unit(&[1.0, 0.0])));
        assert!(store.arrange(&tools, true).iter().map(|(_, text)| &**text).eq(["b: y"]));
        assert_eq!((store.tools().len(), store.len()), (2, 1), "two tools share one text");
        assert!(!store.insert(missing[1].0, unit(&[1.0, 0.0, 0.0])), "another dimension");
        assert!(store.insert(missing[1].0, unit(&[0.0, 1.0])));
        assert_eq!(store.arrange(&tools, true), []);
        assert_eq!(store.tools().vector(1).unwrap(), [0.0, 1.0]);
        // A changed description is a new text.
        assert_eq!(store.arrange(&[tool("a", "z")], true)[0].1, "a: z");
        assert_eq!((store.tools().len(), store.len()), (0, 2));
        assert_eq!(store.dimensions(), Some(2));
        assert_eq!(store.arrange(&tools, true), [], "former tools have returned");
        assert_eq!((store.tools().len(), store.len()), (3, 2));
    }

    #[test]
    fn vectors_without_tools_are_bounded() {
        let mut store = VectorStore::new("m");
        for at in 0..MAX_SPARE + 500 {
            assert!(store.insert(VectorKey::of("m", &at.to_string()), unit(&[1.0])));
        }
        store.arrange(&[], false);
        assert_eq!(store.len(), MAX_SPARE + 500, "the vectors may belong to an awaited server");
        store.arrange(&[], true);
        assert_eq!(store.len(), MAX_SPARE);
        assert_eq!(capacity(384), MAX_VECTORS);
        assert_eq!(capacity(4096), 16_384);
    }
}

#[cfg(test)]
mod key_tests {
    use super::*;
    use mcpproxy_policy::tool::{Annotations, Rules, ToolName};

    #[test]
    fn key_depends_on_model_and_text() {
        let key = VectorKey::of("m", "text");
        assert_eq!(key, VectorKey::of("m", "text"));
        for (model, text) in [("m", "text "), ("n", "text"), ("mt", "ext"), ("", "mtext")] {
            assert_ne!(key, VectorKey::of(model, text), "{model} {text}");
        }
    }

    #[test]
    fn texts_are_bounded() {
        let name = ToolName { server: "s".into(), tool: "read_file".into() };
        let tool = |description: &str| Tool {
            description: description.into(),
            ..Tool::named(name.clone(), Annotations::default(), &Rules::default())
        };
        assert_eq!(tool_text(&tool("Reads it.")), "read_file: Reads it.");
        let long = tool_text(&tool(&"é".repeat(100_000)));
        assert_eq!(long.chars().count(), TEXT_CHARS);
        assert_eq!(query_text(" \t what \n"), Some("what"));
        assert_eq!(query_text("  "), None);
        assert_eq!(query_text(&"é".repeat(4096)).unwrap().chars().count(), QUERY_CHARS);
    }
}
