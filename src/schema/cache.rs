//! Compiled schemas by hash: tools with the same schema share one.
//!
//! Owns no schema: the tools do, and the last one that goes takes its schema with it. Used where
//! the catalog is built, off the call path.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::compile::{Schema, SchemaHash, Settings, Unusable, compile};

/// Schemas from which on those that are in use no more are looked for, whenever there are twice as many
/// as the last time: to look for each new one would take a time that grows with their square.
const FIRST_SWEEP: usize = 64;

/// Compiled schemas that are in use.
#[derive(Debug, Default)]
pub struct Cache {
    schemas: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    schemas: HashMap<SchemaHash, Weak<Schema>>,
    /// Schemas in use at the last sweep.
    used: usize,
}

impl Known {
    fn find(&self, hash: SchemaHash) -> Option<Arc<Schema>> {
        self.schemas.get(&hash).and_then(Weak::upgrade)
    }

    fn add(&mut self, hash: SchemaHash, schema: &Arc<Schema>) {
        if self.schemas.len() >= FIRST_SWEEP.max(2 * self.used) {
            self.schemas.retain(|_, schema| schema.strong_count() > 0);
            self.used = self.schemas.len();
        }
        self.schemas.insert(hash, Arc::downgrade(schema));
    }
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The compiled form of `raw`: the one in use, or a new one. Compiling holds no lock.
    ///
    /// # Errors
    /// [`Unusable`], each time anew: a schema that does not compile is not kept.
    pub fn get(&self, raw: &[u8], settings: &Settings) -> Result<Arc<Schema>, Unusable> {
        let hash = SchemaHash::of(raw, settings);
        if let Some(schema) = self.lookup(hash) {
            return Ok(schema);
        }
        let compiled = Arc::new(compile(raw, settings)?);
        let mut known = self.known_now();
        // Another may have been faster.
        if let Some(schema) = known.find(hash) {
            return Ok(schema);
        }
        known.add(hash, &compiled);
        Ok(compiled)
    }

    /// The compiled form of `raw`, if one is in use.
    #[must_use]
    pub fn known(&self, raw: &[u8], settings: &Settings) -> Option<Arc<Schema>> {
        self.lookup(SchemaHash::of(raw, settings))
    }

    /// Schemas that are in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known_now().schemas.values().filter(|schema| schema.strong_count() > 0).count()
    }

    /// True when no schema is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lookup(&self, hash: SchemaHash) -> Option<Arc<Schema>> {
        self.known_now().find(hash)
    }

    fn known_now(&self) -> MutexGuard<'_, Known> {
        self.schemas.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identical_schemas_are_shared_until_the_last_user_goes() {
        let cache = Cache::new();
        let settings = Settings::default();
        let raw = br#"{"type":"object"}"#;
        let first = cache.get(raw, &settings).unwrap();
        let second = cache.get(raw, &settings).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let asserting = Settings { assert_formats: true, ..settings };
        let third = cache.get(raw, &asserting).unwrap();
        assert!(!Arc::ptr_eq(&first, &third));
        assert_eq!(cache.len(), 2);
        drop((first, third));
        assert_eq!(cache.len(), 1);
        drop(second);
        assert!(cache.is_empty());
    }

    #[test]
    fn what_is_in_use_no_more_is_forgotten_before_there_is_twice_as_much() {
        let cache = Cache::new();
        let settings = Settings::default();
        let compiled = |at: usize| cache.get(format!(r#"{{"const":{at}}}"#).as_bytes(), &settings);
        let kept: Vec<_> = (0..10).map(|at| compiled(at).unwrap()).collect();
        for at in 10..500 {
            drop(compiled(at).unwrap());
        }
        assert_eq!(cache.len(), kept.len());
        assert!(cache.known_now().schemas.len() <= FIRST_SWEEP, "{cache:?}");
        assert!(Arc::ptr_eq(&kept[3], &compiled(3).unwrap()));
    }

    #[test]
    fn a_schema_that_does_not_compile_is_not_kept() {
        let cache = Cache::new();
        assert!(cache.get(b"[]", &Settings::default()).is_err());
        assert!(cache.is_empty());
    }
}
