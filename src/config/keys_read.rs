//! Which keys a section reads, asked of the code that reads it: what tests compare lists of keys with.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::iter::once;

use serde::de::value::{Error, MapDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};

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

/// The paths of the keys that `T` reads, at whatever depth. A map whose keys are anybody's is no step.
pub(super) fn keys_of<T: DeserializeOwned>() -> BTreeSet<Vec<&'static str>> {
    let mut keys = BTreeSet::new();
    let mut paths = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let fields = Cell::new(&[][..]);
        assert!(T::deserialize(Probe { path: &path, fields: &fields }).is_err());
        let below = fields.get().iter().map(|field| [&path[..], &[*field]].concat());
        let below: Vec<_> = below.collect();
        keys.extend(below.iter().cloned());
        paths.extend(below);
    }
    keys
}
