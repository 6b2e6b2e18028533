//! What a misspelt key was meant to be: the guess, and the names that it is made among.
//!
//! The list accepts nothing. Which keys there are is said by the fields of [`parse`](super::parse), of the
//! [`sections`](super::sections) and of the other parts' sections; a test compares them with the list.

use super::findings::Findings;
use super::problem::{KeyPath, PathStep};

/// The names to guess among: all keys, of whatever section.
pub(super) const KNOWN_KEYS: &[&str] = &[
    "listen",
    "data_dir",
    "api_key",
    "require_mcp_auth",
    "allowed_hosts",
    "allowed_origins",
    "mcpServers",
    "tools_limit",
    "offered_era",
    "intent_declaration",
    "policy",
    "presets",
    "limits",
    "concurrent",
    "queue",
    "rate_per_minute",
    "breaker",
    "failures",
    "open",
    "principals",
    "output_validation",
    "activity",
    "auth",
    "jwt",
    "audience",
    "jwks_url",
    "jwks_file",
    "algorithms",
    "groups_claim",
    "catalog",
    "on_change",
    "text",
    "narrowed",
    "widened",
    "loosened",
    "on_new_server",
    "scan",
    "logging",
    "timeout",
    "elicitation",
    "webhook",
    "secret",
    "policy",
    "files",
    "default",
    "presets",
    "strict_server_validation",
    "operation_type",
    "mode",
    "max_bytes",
    "max_depth",
    "missing_structured_content",
    "assert_formats",
    "max_held_bytes",
    "max_held_total_bytes",
    "held_share_bytes",
    "engine",
    "retention_days",
    "max_records",
    "max_size_mb",
    "max_payload_bytes",
    "max_response_bytes",
    "durability",
    "mark_reads",
    "on_failure",
    "redact_keys",
    "queue_records",
    "queue_bytes",
    "level",
    "format",
    "oauth",
    "client_id",
    "client_secret",
    "issuer",
    "client_metadata_url",
    "scopes",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "enabled",
    "protocol",
    "init_timeout",
    "call_timeout",
    "enabled_tools",
    "disabled_tools",
    "capabilities",
    "max_concurrent",
    "side_effect",
    "parallel_safe",
    "approval",
    "idempotent",
    "sensitivity",
    "open_world",
    "tools",
];

/// Warns of the key at `path`, and names the known one that is most like it.
pub(super) fn unknown_key(path: &KeyPath, findings: &mut Findings<'_>) {
    let key = match path.0.last() {
        Some(PathStep::Key(key)) => key.to_lowercase(),
        Some(PathStep::Element(_)) | None => String::new(),
    };
    let distance = |known: &str| {
        let known = known.to_lowercase();
        // A part of a name plainly means it.
        if key.len() > 3 && known.contains(&key) { 1 } else { strsim::osa_distance(&known, &key) }
    };
    let nearest = KNOWN_KEYS.iter().map(|known| (distance(known), *known)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (key.len() / 3).max(1));
    findings.unknown(path, close.map(|(_, known)| known));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::iter::once;

    use serde::de::value::{Error, MapDeserializer};
    use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};

    use super::*;
    use crate::catalog::ServerSettings;
    use crate::config::parse::TopLevel;
    use crate::config::servers;
    use crate::upstream;

    /// Input that has nothing but the key at `path`, whose value ends the reading with an error; notes the
    /// fields of the struct that is asked for there.
    struct Probe<'a> {
        path: &'a [&'static str],
        fields: &'a Cell<&'static [&'static str]>,
    }

    impl<'de> Deserializer<'de> for Probe<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("no value"))
        }

        fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_some(self)
        }

        fn deserialize_newtype_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            visitor: V,
        ) -> Result<V::Value, Error> {
            visitor.visit_newtype_struct(self)
        }

        fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_map(MapDeserializer::new(once(("*", self))))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            let Some((key, path)) = self.path.split_first() else {
                self.fields.set(fields);
                return self.deserialize_any(visitor);
            };
            visitor.visit_map(MapDeserializer::new(once((*key, Self { path, ..self }))))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
            unit_struct seq tuple tuple_struct enum identifier ignored_any
        }
    }

    impl IntoDeserializer<'_> for Probe<'_> {
        type Deserializer = Self;

        fn into_deserializer(self) -> Self {
            self
        }
    }

    /// The keys that `T` reads, at whatever depth.
    fn keys_of<T: DeserializeOwned>() -> BTreeSet<&'static str> {
        let mut keys = BTreeSet::new();
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            let fields = Cell::new(&[][..]);
            assert!(T::deserialize(Probe { path: &path, fields: &fields }).is_err());
            keys.extend(fields.get());
            paths.extend(fields.get().iter().map(|field| [&path[..], &[*field]].concat()));
        }
        keys
    }

    #[test]
    fn every_key_that_is_read_can_be_guessed() {
        let mut read = keys_of::<TopLevel>();
        read.extend(keys_of::<upstream::Config>());
        read.extend(keys_of::<ServerSettings>());
        read.insert(servers::KEY);
        // Another name for `protocol`, which is the one to tell of.
        read.remove("type");
        assert_eq!(read, KNOWN_KEYS.iter().copied().collect());
    }
}
