//! Compilation of schemas off the worker threads, so that slow schemas delay only their own calls.
//!
//! Small schemas are compiled before their tools are published, for at most [`BEFORE_SHOWN`]. Large schemas are
//! compiled afterwards, one at a time on a dedicated thread, while calls to their tools wait. Threads cannot be
//! canceled; the limits on a schema ensure that they end. If a compilation takes longer than [`LIMIT`], the schema
//! becomes unusable, and the next schema is compiled when that thread has ended.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::value::RawValue;

use super::change::Change;
use super::conform::accepts_no_arguments;
use super::definition::DiscoveredTool;
use super::snapshot::Snapshot;
use mcpproxy_policy::tool::{InputSchema, OutputSchema, Tool, ToolName};
use mcpproxy_schema::compile::{STACK, Schema, SchemaHash, Settings, Unusable, compile};

/// Maximum compile time of a schema.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Maximum size of a schema compiled before its tool is published, in bytes.
const SMALL_BYTES: usize = 64 << 10;

/// Maximum total compile time of the small schemas in a batch before its tools are published.
const BEFORE_SHOWN: Duration = Duration::from_millis(250);

/// Compiles the schemas of a catalog.
#[derive(Debug)]
pub(super) struct Compiler {
    settings: Mutex<Settings>,
    schemas: Arc<SchemaCache>,
    /// The thread that exceeded the limit, if any. The lock is held while a schema is compiled.
    running: Mutex<Option<JoinHandle<()>>>,
    /// Compile time limit.
    limit: Duration,
}

/// A schema whose compilation was deferred.
#[derive(Debug)]
pub(super) struct PendingSchema {
    pub(super) tool: ToolName,
    pub(super) raw: Box<RawValue>,
    /// Cell that receives the outcome of the compilation.
    pub(super) awaited: Arc<OnceLock<OutputSchema>>,
    /// Whether the outcome still has to be reported.
    pub(super) new: bool,
}

impl PendingSchema {
    pub(super) fn is_small(&self) -> bool {
        is_small(&self.raw)
    }
}

/// Whether the schema is compiled without a dedicated thread.
pub(super) fn is_small(raw: &RawValue) -> bool {
    raw.get().len() <= SMALL_BYTES
}

/// Time budget before the tools are published.
struct Quick(Instant);

impl Quick {
    fn start() -> Self {
        Self(Instant::now())
    }
}

impl Compiler {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings: Mutex::new(settings),
            schemas: Arc::default(),
            running: Mutex::default(),
            limit: LIMIT,
        }
    }

    pub(super) fn set(&self, settings: Settings) {
        *self.settings.lock() = settings;
    }

    fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Compiles a small schema within the time budget, or defers it.
    fn quickly(&self, declared: Option<&RawValue>, time: &Quick) -> OutputSchema {
        let Some(raw) = declared else { return OutputSchema::Absent };
        let raw = raw.get().as_bytes();
        if let Some(known) = self.schemas.known(raw, &self.settings()) {
            return OutputSchema::Compiled(known);
        }
        if raw.len() > SMALL_BYTES || time.0.elapsed() > BEFORE_SHOWN {
            return OutputSchema::Compiling(Arc::default());
        }
        outcome(self.schemas.get(raw, &self.settings()))
    }

    /// Compiles a deferred schema unless another thread has done so. Returns the outcome if it was compiled here.
    /// Blocks for at most [`LIMIT`] after the preceding schemas are compiled.
    fn finish<'a>(&self, late: &'a PendingSchema) -> Option<&'a OutputSchema> {
        if late.is_small() {
            let new = late.awaited.get().is_none();
            let text = late.raw.get().as_bytes();
            let compile = || outcome(self.schemas.get(text, &self.settings()));
            return new.then(|| late.awaited.get_or_init(compile));
        }
        let mut running = self.running.lock();
        if late.awaited.get().is_some() {
            return None;
        }
        let found = self.on_its_own_thread(&mut running, &late.raw, self.settings());
        Some(late.awaited.get_or_init(|| outcome(found)))
    }

    /// Compiles the input schema of a tool. Blocks for at most [`LIMIT`] after the preceding schemas are compiled.
    /// `format` is treated as an annotation, because servers accept more than the named formats.
    pub(super) fn input(&self, raw: &RawValue) -> InputSchema {
        if let Some(reason) = accepts_no_arguments(raw.get()) {
            return InputSchema::Unusable(reason.into());
        }
        let settings = Settings { assert_formats: false, ..self.settings() };
        let found = match is_small(raw) {
            true => self.schemas.get(raw.get().as_bytes(), &settings),
            false => self.on_its_own_thread(&mut self.running.lock(), raw, settings),
        };
        match found {
            Ok(schema) => InputSchema::Compiled(schema),
            Err(reason) => InputSchema::Unusable(reason.to_string().into()),
        }
    }

    /// Compiles on a dedicated thread with a large stack, after the previous thread has ended.
    fn on_its_own_thread(
        &self,
        running: &mut Option<JoinHandle<()>>,
        raw: &RawValue,
        settings: Settings,
    ) -> Result<Arc<Schema>, Unusable> {
        if let Some(slow) = running.take() {
            // The outcome of the previous thread was abandoned when the limit was reached.
            let _ = slow.join();
        }
        let (done, compiled) = mpsc::sync_channel(1);
        let schemas = Arc::clone(&self.schemas);
        let raw = raw.to_owned();
        let compile = move || {
            // The receiver may have timed out.
            let _ = done.send(schemas.get(raw.get().as_bytes(), &settings));
        };
        let thread = std::thread::Builder::new().name("schema".into()).stack_size(STACK);
        match thread.spawn(compile) {
            Ok(thread) => match compiled.recv_timeout(self.limit) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => {
                    *running = Some(thread);
                    Err(Unusable::Slow { limit: self.limit.as_secs() })
                }
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Unusable::Invalid("compiling it failed".to_owned()))
                }
            },
            Err(error) => Err(Unusable::Invalid(format!("no thread to compile it: {error}"))),
        }
    }

    /// Compiles deferred schemas, smallest first, and adds unusable ones to `changes`. Calls `settled` after each.
    pub(super) fn compile(
        &self,
        mut late: Vec<PendingSchema>,
        changes: &mut [(Arc<str>, Change)],
        settled: impl Fn(),
    ) {
        late.sort_by_key(|late| late.raw.get().len());
        for late in late {
            let Some(found) = self.finish(&late) else { continue };
            settled();
            let change = changes.iter_mut().find(|(server, _)| *server == late.tool.server);
            if let (OutputSchema::Unusable(reason), true, Some((_, change))) =
                (found, late.new, change)
            {
                change.unusable.push((late.tool.clone(), Arc::clone(reason)));
            }
        }
    }

    /// Returns the schemas of new sets: reused from `last` if unchanged, compiled if that is quick, otherwise deferred.
    pub(super) fn ready(
        &self,
        last: &Snapshot,
        sets: &[(&str, &[DiscoveredTool])],
    ) -> Vec<Vec<OutputSchema>> {
        let time = Quick::start();
        let schema = |server: &str, found: &DiscoveredTool| {
            let known = last.named(server, &found.name);
            match known.filter(|known| same_raw(&known.output_schema, &found.output_schema)) {
                Some(known) => known.schema.now().clone(),
                None => self.quickly(found.output_schema.as_deref(), &time),
            }
        };
        let sets = sets.iter();
        sets.map(|(server, set)| set.iter().map(|found| schema(server, found)).collect()).collect()
    }
}

/// Whether both texts are equal or both are absent.
pub(super) fn same_raw(a: &Option<Box<RawValue>>, b: &Option<Box<RawValue>>) -> bool {
    a.as_deref().map(RawValue::get) == b.as_deref().map(RawValue::get)
}

/// Returns the output schema of a tool if its compilation is pending.
pub(super) fn awaited(tool: &Tool, new: bool) -> Option<PendingSchema> {
    let (OutputSchema::Compiling(awaited), Some(raw)) = (tool.schema.now(), &tool.output_schema)
    else {
        return None;
    };
    let (tool, raw, awaited) = (tool.name.clone(), raw.clone(), Arc::clone(awaited));
    Some(PendingSchema { tool, raw, awaited, new })
}

fn outcome(found: Result<Arc<Schema>, Unusable>) -> OutputSchema {
    match found {
        Ok(schema) => OutputSchema::Compiled(schema),
        Err(reason) => OutputSchema::Unusable(reason.to_string().into()),
    }
}

/// Minimum number of entries for a sweep of dropped schemas. A sweep runs when the number has doubled since the last
/// one, so that all sweeps together take linear time.
const FIRST_SWEEP: usize = 64;

/// Cache of compiled schemas in use, by hash. Tools with equal schemas share one entry. References are weak, so that a
/// schema is dropped with the last tool that uses it.
#[derive(Debug, Default)]
struct SchemaCache {
    schemas: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    schemas: HashMap<SchemaHash, Weak<Schema>>,
    /// Number of schemas in use after the last sweep.
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

impl SchemaCache {
    /// Returns the compiled form of `raw`, from the cache or newly compiled. Compiles without holding a lock; failures
    /// are not cached.
    fn get(&self, raw: &[u8], settings: &Settings) -> Result<Arc<Schema>, Unusable> {
        let hash = SchemaHash::of(raw, settings);
        if let Some(schema) = self.lookup(hash) {
            return Ok(schema);
        }
        let compiled = Arc::new(compile(raw, settings)?);
        let mut known = self.known_now();
        // Another thread may have added it first.
        if let Some(schema) = known.find(hash) {
            return Ok(schema);
        }
        known.add(hash, &compiled);
        Ok(compiled)
    }

    /// Cached compiled form of `raw`.
    fn known(&self, raw: &[u8], settings: &Settings) -> Option<Arc<Schema>> {
        self.lookup(SchemaHash::of(raw, settings))
    }

    /// Number of schemas in use.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.known_now().schemas.values().filter(|schema| schema.strong_count() > 0).count()
    }

    /// Whether no schema is in use.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
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
    use crate::{Catalog, ServerSettings, Settings as CatalogSettings};
    use mcpproxy_schema::output::Treatment;

    fn tool(name: &str, schema: &str) -> DiscoveredTool {
        let text = format!(r#"{{"name":"{name}","inputSchema":{{}},"outputSchema":{schema}}}"#);
        DiscoveredTool::parse(serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn large(keyword: &str) -> String {
        format!(r#"{{{keyword},"description":"{}"}}"#, "x".repeat(SMALL_BYTES))
    }

    fn catalog(folder: Option<&std::path::Path>) -> Catalog {
        let server: ServerSettings =
            serde_json::from_str(r#"{"output_validation":{"mode":"strict"}}"#).unwrap();
        Catalog::new(CatalogSettings {
            folder: folder.map(Into::into),
            servers: [("s".into(), server)].into(),
            ..CatalogSettings::default()
        })
    }

    fn find(catalog: &Catalog, name: &str) -> Arc<Tool> {
        Arc::clone(catalog.load().named("s", name).unwrap())
    }

    #[test]
    fn compiling_schema_delays_only_its_own_calls() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let catalog = Arc::new(catalog(None));
        let (now, in_an_hour) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let busy = catalog.compiler.running.lock();
        let replacing = std::thread::spawn({
            let catalog = Arc::clone(&catalog);
            let set = vec![tool("slow", &large(r#""type":"object""#)), tool("quick", "true")];
            move || catalog.replace_server("s", set)
        });
        let name = ToolName::parse("s:slow").unwrap();
        let slow = runtime.block_on(catalog.wait_for(&name, in_an_hour)).unwrap();
        let quick = find(&catalog, "quick");
        assert!(matches!(quick.schema, OutputSchema::Compiled(_)));
        assert!(runtime.block_on(catalog.compiled(&quick, now)));
        assert!(matches!(slow.schema.now(), OutputSchema::Compiling(_)));
        assert_eq!(
            slow.treatment(),
            Treatment::Hold,
            "the answer is held until the schema is compiled"
        );
        assert!(!runtime.block_on(catalog.compiled(&slow, now)));
        drop(busy);
        assert!(runtime.block_on(catalog.compiled(&slow, in_an_hour)));
        assert!(matches!(slow.schema.now(), OutputSchema::Compiled(_)));
        assert!(replacing.join().unwrap().unusable.is_empty());
    }

    #[test]
    fn fr_a9_large_unusable_schema_is_reported_once() {
        let catalog = catalog(None);
        let set = || vec![tool("x", &large(r#""type":7"#))];
        let unusable = |change: Change| change.unusable.len();
        assert_eq!(unusable(catalog.replace_server("s", set())), 1);
        assert!(matches!(find(&catalog, "x").schema.now(), OutputSchema::Unusable(_)));
        assert_eq!(unusable(catalog.replace_server("s", set())), 0);
    }

    #[test]
    fn fr_a1_large_schema_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let schema = large(r#""type":"object""#);
        catalog(Some(folder.path())).replace_server("s", vec![tool("x", &schema)]);
        let again = catalog(Some(folder.path()));
        assert!(again.restore().is_empty());
        assert!(matches!(find(&again, "x").schema.now(), OutputSchema::Compiled(_)));
        // An unchanged definition shares the schema.
        assert!(again.replace_server("s", vec![tool("x", &schema)]).is_empty());
    }

    #[test]
    fn fr_a9_slow_schema_is_unusable_and_the_next_compiles() {
        let mut catalog = catalog(None);
        catalog.compiler.limit = Duration::ZERO;
        let part = |at| format!(r#""p{at}":{{"maxLength":{at}}}"#);
        let parts: Vec<String> = (0..20_000).map(part).collect();
        let long = format!(r#"{{"properties":{{{}}}}}"#, parts.join(","));
        let change = catalog.replace_server("s", vec![tool("x", &long)]);
        let (_, reason) = &change.unusable[0];
        assert_eq!(&**reason, "the schema takes longer than 0 seconds to compile");
        catalog.compiler.limit = LIMIT;
        catalog.replace_server("s", vec![tool("x", &large(r#""type":"object""#))]);
        assert!(matches!(find(&catalog, "x").schema.now(), OutputSchema::Compiled(_)));
    }
}

#[cfg(test)]
mod cache_tests {
    use super::*;

    #[test]
    fn equal_schemas_are_shared_until_the_last_user_is_dropped() {
        let cache = SchemaCache::default();
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
    fn dropped_schemas_are_swept_before_the_map_doubles() {
        let cache = SchemaCache::default();
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
    fn failed_compilation_is_not_cached() {
        let cache = SchemaCache::default();
        assert!(cache.get(b"[]", &Settings::default()).is_err());
        assert!(cache.is_empty());
    }
}
