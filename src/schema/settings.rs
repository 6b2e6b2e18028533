//! What changes the meaning of a schema, and the identity of a schema compiled under that.

use std::fmt;

/// Which engine decides (`output_validation.engine`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The tape pass accepts, boon judges what it does not accept.
    #[default]
    Tape,
    /// boon judges every document.
    Boon,
}

/// Settings that change what a schema means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Which engine decides.
    pub engine: Engine,
    /// Whether `format` is asserted, instead of being an annotation.
    pub assert_formats: bool,
}

/// The identity of a compiled schema: hash of its text and of the [`Settings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaHash([u8; 32]);

impl SchemaHash {
    /// The hash of `raw` under `settings`.
    #[must_use]
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

    /// The bytes of the hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
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
    fn the_hash_tells_text_and_settings_apart() {
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
