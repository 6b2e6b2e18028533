//! Where schemas are compiled: never on a worker, and never while another's call waits for
//! what takes long.
//!
//! Small schemas are compiled before their tools are shown, for a quarter of a second at most, and large
//! ones after, one at a time on a thread of their own: until then calls to such a tool wait.
//! A thread cannot be ended from outside, so that bounds on the schema end it; one that takes
//! longer than [`LIMIT`] makes the schema unusable, and the next begins when it has ended.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::change::Change;
use super::discovered::DiscoveredTool;
use super::snapshot::Snapshot;
use crate::schema::cache::Cache;
use crate::schema::compile::{STACK, Schema, Settings, Unusable};
use crate::tool::{InputSchema, OutputSchema, Tool, ToolName};

/// How long one schema may take to compile.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Schemas of more bytes are compiled after their tools are shown.
const SMALL_BYTES: usize = 64 << 10;

/// How long the small schemas of those sets that are taken up together may take before their tools
/// are shown.
const BEFORE_SHOWN: Duration = Duration::from_millis(250);

/// Compiles the schemas of a catalog.
#[derive(Debug)]
pub(super) struct Compiler {
    settings: Mutex<Settings>,
    schemas: Arc<Cache>,
    /// The thread that compiles, if one took too long. Locked while a schema is compiled.
    running: Mutex<Option<JoinHandle<()>>>,
    /// How long one may take.
    limit: Duration,
}

/// A schema that is still to be compiled.
#[derive(Debug)]
pub(super) struct Late {
    /// Whose it is.
    pub(super) tool: ToolName,
    /// Its text.
    pub(super) raw: Box<RawValue>,
    /// Where it is awaited.
    pub(super) awaited: Arc<OnceLock<OutputSchema>>,
    /// True where nobody was told yet whether it can be used.
    pub(super) new: bool,
}

impl Late {
    pub(super) fn is_small(&self) -> bool {
        is_small(&self.raw)
    }
}

/// Whether it is compiled at once, and not on a thread of its own.
pub(super) fn is_small(raw: &RawValue) -> bool {
    raw.get().len() <= SMALL_BYTES
}

/// The time that is left before the tools are shown.
struct Quick(Instant);

impl Quick {
    /// From now on.
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

    /// From now on schemas are compiled so.
    pub(super) fn set(&self, settings: Settings) {
        *self.settings.lock() = settings;
    }

    fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// The compiled form of what a tool declared, if that is small and time is left; or one that
    /// is awaited.
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

    /// Compiles a schema that is awaited, unless another has; what came of it, if it is ours.
    /// Blocks until it is done, at most [`LIMIT`] after those before it.
    fn finish<'a>(&self, late: &'a Late) -> Option<&'a OutputSchema> {
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

    /// What becomes of the input schema of a tool. Blocks until it is compiled, at most [`LIMIT`] after those before
    /// it. `format` is an annotation there: programs read more than the formats that they name.
    pub(super) fn input(&self, raw: &RawValue) -> InputSchema {
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

    /// Compiles on a thread with a stack for it, when the one before has ended.
    fn on_its_own_thread(
        &self,
        running: &mut Option<JoinHandle<()>>,
        raw: &RawValue,
        settings: Settings,
    ) -> Result<Arc<Schema>, Unusable> {
        if let Some(slow) = running.take() {
            // Its outcome was given up at the limit.
            let _ = slow.join();
        }
        let (done, compiled) = mpsc::sync_channel(1);
        let schemas = Arc::clone(&self.schemas);
        let raw = raw.to_owned();
        let compile = move || {
            // Nobody waits any more: nobody misses it.
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

    /// Compiles what is awaited, the smallest first, and adds what cannot be used to `changes`. After
    /// each that it has compiled it calls `settled`.
    pub(super) fn compile(
        &self,
        mut late: Vec<Late>,
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

    /// The schemas of sets: those that tools of `last` have already, and new ones as far as they are
    /// compiled quickly.
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

/// True where both are the same text, or neither is there.
pub(super) fn same_raw(a: &Option<Box<RawValue>>, b: &Option<Box<RawValue>>) -> bool {
    a.as_deref().map(RawValue::get) == b.as_deref().map(RawValue::get)
}

/// What is still to be done for a tool whose schema is being compiled.
pub(super) fn awaited(tool: &Tool, new: bool) -> Option<Late> {
    let (OutputSchema::Compiling(awaited), Some(raw)) = (tool.schema.now(), &tool.output_schema)
    else {
        return None;
    };
    let (tool, raw, awaited) = (tool.name.clone(), raw.clone(), Arc::clone(awaited));
    Some(Late { tool, raw, awaited, new })
}

fn outcome(found: Result<Arc<Schema>, Unusable>) -> OutputSchema {
    match found {
        Ok(schema) => OutputSchema::Compiled(schema),
        Err(reason) => OutputSchema::Unusable(reason.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, ServerSettings, Settings as CatalogSettings};
    use crate::output::Treatment;

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
    fn a_schema_that_is_being_compiled_delays_only_its_own_calls() {
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
        assert_eq!(slow.treatment(), Treatment::Hold, "nothing goes by");
        assert!(!runtime.block_on(catalog.compiled(&slow, now)));
        drop(busy);
        assert!(runtime.block_on(catalog.compiled(&slow, in_an_hour)));
        assert!(matches!(slow.schema.now(), OutputSchema::Compiled(_)));
        assert!(replacing.join().unwrap().unusable.is_empty());
    }

    #[test]
    fn fr_a9_a_large_schema_that_does_not_compile_is_told_once() {
        let catalog = catalog(None);
        let set = || vec![tool("x", &large(r#""type":7"#))];
        let told = |change: Change| change.unusable.len();
        assert_eq!(told(catalog.replace_server("s", set())), 1);
        assert!(matches!(find(&catalog, "x").schema.now(), OutputSchema::Unusable(_)));
        assert_eq!(told(catalog.replace_server("s", set())), 0);
    }

    #[test]
    fn fr_a1_a_large_schema_is_there_again_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let schema = large(r#""type":"object""#);
        catalog(Some(folder.path())).replace_server("s", vec![tool("x", &schema)]);
        let again = catalog(Some(folder.path()));
        assert_eq!(again.restore().len(), 1);
        assert!(matches!(find(&again, "x").schema.now(), OutputSchema::Compiled(_)));
        // The server says the same: it is the same schema.
        assert!(again.replace_server("s", vec![tool("x", &schema)]).is_empty());
    }

    #[test]
    fn fr_a9_a_schema_that_takes_too_long_is_unusable_and_the_next_is_not() {
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
