//! Settings that change the meaning of a schema, and the identity of a compiled schema.

use std::fmt;

/// Engine that decides (`output_validation.engine`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The tape pass accepts; boon decides about all other documents.
    #[default]
    Tape,
    /// boon decides about every document.
    Boon,
}

/// Settings that change what a schema means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    pub engine: Engine,
    /// Whether `format` is asserted, instead of being an annotation.
    pub assert_formats: bool,
}

/// Identity of a compiled schema: hash of its text and the [`Settings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaHash([u8; 32]);

impl SchemaHash {
    /// Hash of `raw` under `settings`.
    pub fn of(raw: &[u8], settings: &Settings) -> Self {
        let engine = match settings.engine {
            Engine::Tape => 0,
            Engine::Boon => 1,
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[engine, u8::from(settings.assert_formats)]);
        hasher.update(raw);
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for SchemaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SchemaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_hash_depends_on_text_and_settings() {
        let plain = Settings::default();
        let asserting = Settings { assert_formats: true, ..plain };
        let by_boon = Settings { engine: Engine::Boon, ..plain };
        let hash = |raw: &str, settings| SchemaHash::of(raw.as_bytes(), settings);
        assert_eq!(hash("true", &plain), hash("true", &plain));
        assert_ne!(hash("true", &plain), hash("true ", &plain));
        assert_ne!(hash("true", &plain), hash("true", &asserting));
        assert_ne!(hash("true", &plain), hash("true", &by_boon));
        assert_eq!(hash("true", &plain).to_string().len(), 64);
    }
}
