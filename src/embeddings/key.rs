//! What a model is given of a tool and of a query, and under which name a vector is kept. Pure.

use crate::tool::Tool;

/// Most characters of a tool's text: about what small models read.
pub const TEXT_CHARS: usize = 1000;

/// Most characters of a query that are sent.
pub const QUERY_CHARS: usize = 500;

/// A vector's name: the hash of the model and of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VectorKey(pub(super) [u8; blake3::OUT_LEN]);

impl VectorKey {
    /// That of `text` by `model`.
    #[must_use]
    pub fn of(model: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        // The length stands before the model, so that no two pairs are one row of bytes.
        hasher.update(&(model.len() as u64).to_le_bytes());
        hasher.update(model.as_bytes());
        hasher.update(text.as_bytes());
        Self(hasher.finalize().into())
    }
}

/// The text of a tool: `name: description`, its first [`TEXT_CHARS`] characters.
#[must_use]
pub fn tool_text(tool: &Tool) -> String {
    let name = tool.name.tool.chars().chain(": ".chars());
    name.chain(tool.description.chars()).take(TEXT_CHARS).collect()
}

/// The text of a query, without blanks around it: its first [`QUERY_CHARS`] characters; `None` if nothing is left.
#[must_use]
pub fn query_text(query: &str) -> Option<&str> {
    let query = query.trim();
    let end = query.char_indices().nth(QUERY_CHARS).map_or(query.len(), |(at, _)| at);
    query.get(..end).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, Rules, ToolName};

    #[test]
    fn a_key_is_of_the_model_and_the_text() {
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
