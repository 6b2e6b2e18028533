//! From the text of an output schema to something that can judge, or to the reason why not.
//!
//! Owns dialects, bounds, and how both engines are set up so that they mean the same. Deliberately
//! fetches nothing: a reference that leaves the schema and the standard meta-schemas is a reason.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use boon::{CompileError, Compiler, Draft, SchemaIndex, Schemas};
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use thiserror::Error;
use url::Url;

use super::bounds::{Bounds, Cost, Graph, MAX_PLACES};
use super::dialect::{self, identifier, stated_within};
use super::formats;
use super::pattern::{self, BACKTRACK_MAX, PROGRAM_MAX};
use super::tape_json::{Names, TapeJson};
use super::violation::cut;
use crate::json::tape::{self, Fault, Scratch};

/// Where a schema without an identifier stands.
pub(super) const BASE: &str = "json-schema:///";

/// Bytes of an engine's explanation that go into an [`Unusable`].
pub(super) const EXPLANATION_MAX: usize = 300;

/// Which engine has the word (`output_validation.engine`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The tape pass accepts, boon judges what it does not accept.
    #[default]
    Tape,
    /// boon judges every document.
    Boon,
}

/// How schemas are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Which engine has the word.
    pub engine: Engine,
    /// Whether `format` is asserted, instead of being an annotation.
    pub assert_formats: bool,
}

/// Identifies a schema and how it is meant: equal text under equal settings.
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

/// Why a schema cannot be used: one clear line each (FR-A9).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// More text than [`Bounds::bytes`].
    #[error("the schema has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What it may have.
        limit: usize,
    },
    /// Not JSON that every parser reads alike.
    #[error("the schema {0}")]
    NotJson(Fault),
    /// Neither an object nor a boolean.
    #[error("the schema is neither an object nor a boolean")]
    NotASchema,
    /// Nested deeper than [`Bounds::depth`].
    #[error("the schema is nested deeper than {limit}")]
    TooDeep {
        /// How deep it may be.
        limit: usize,
    },
    /// More than [`Bounds::subschemas`].
    #[error("the schema has more than {limit} subschemas")]
    TooManySubschemas {
        /// How many it may have.
        limit: usize,
    },
    /// A name that stands in more than [`MAX_PLACES`] places, or could.
    #[error("a name stands in more than {limit} places of the schema")]
    Names {
        /// In how many it may stand.
        limit: usize,
    },
    /// A regular expression longer than [`Bounds::pattern_bytes`].
    #[error("a pattern of the schema is longer than {limit} bytes")]
    PatternTooLong {
        /// How long it may be.
        limit: usize,
    },
    /// Regular expressions that compile to more than [`Bounds::pattern_program`].
    #[error("the patterns of the schema compile to more than {limit} bytes")]
    PatternsTooLarge {
        /// How large they may be together.
        limit: usize,
    },
    /// A regular expression that no engine takes, or only with too large a program.
    #[error("the pattern '{0}' is not a regular expression, or too large a one")]
    Pattern(String),
    /// More than [`Bounds::expansion`].
    #[error("one value could be visited more than {limit} times: alternatives multiply")]
    Expansion {
        /// How often it may be visited.
        limit: u64,
    },
    /// Visits nest deeper than [`Bounds::nesting`] on a single value: long chains of references.
    #[error("the schema nests more than {limit} references and alternatives in each other")]
    Nesting {
        /// How deep they may nest.
        limit: u64,
    },
    /// A `$schema` that is none of the dialects.
    #[error("the dialect '{0}' is not supported")]
    Dialect(String),
    /// A reference that leaves the schema.
    #[error("the reference to '{0}' leaves the schema and is not fetched")]
    RemoteReference(String),
    /// Refused by an engine, in its words.
    #[error("the schema is not valid: {0}")]
    Invalid(String),
}

/// Documents that references may lead to, by URI. Empty outside of tests.
#[derive(Clone, Debug, Default)]
pub struct Remotes(pub Arc<HashMap<String, Value>>);

/// A compiled schema.
pub struct Schema {
    pub(super) hash: SchemaHash,
    pub(super) engine: Engine,
    pub(super) boon: Option<Arbiter>,
    pub(super) tape: Validator<TapeJson>,
    pub(super) cost: Cost,
    /// References come back to themselves on one value: boon decides what that means.
    pub(super) circular: bool,
    /// What names cost.
    pub(super) names: Names,
    /// Steps for each byte of text under the slowest pattern; none where all are quick.
    pub(super) steps_per_byte: u64,
}

/// boon's compiled form.
pub(super) struct Arbiter {
    pub(super) schemas: Schemas,
    pub(super) root: SchemaIndex,
}

impl Schema {
    /// Identifies the schema and how it is meant.
    #[must_use]
    pub fn hash(&self) -> SchemaHash {
        self.hash
    }

    /// True when boon refuses a pattern for look-around or back-references, so that the tape
    /// engine judges alone. For the health answer.
    #[must_use]
    pub fn judged_by_tape_alone(&self) -> bool {
        self.boon.is_none()
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Compiles `raw` within the default [`Bounds`].
///
/// Takes milliseconds for a large schema: to be called off the call path.
///
/// # Errors
/// [`Unusable`]: the reason for the one warning of FR-A9.
pub fn compile(raw: &[u8], settings: &Settings) -> Result<Schema, Unusable> {
    compile_with(raw, settings, &Bounds::default(), &Remotes::default())
}

/// Compiles `raw` within `bounds`, with `remotes` to refer to.
///
/// # Errors
/// [`Unusable`].
pub fn compile_with(
    raw: &[u8],
    settings: &Settings,
    bounds: &Bounds,
    remotes: &Remotes,
) -> Result<Schema, Unusable> {
    let value = parse(raw, bounds)?;
    let draft = dialect::of(&value, remotes)?;
    let base = Url::parse(BASE).map_err(|error| Unusable::Invalid(error.to_string()))?;
    let id = identifier(draft);
    if let Some(other) = stated_within(&value, id) {
        return Err(Unusable::Dialect(cut(other, EXPLANATION_MAX).to_owned()));
    }
    let graph = Graph::new(&value, &base, id, bounds.subschemas);
    if graph.crowded() {
        return Err(Unusable::Names { limit: MAX_PLACES });
    }
    if graph.overflowed() {
        return Err(Unusable::TooManySubschemas { limit: bounds.subschemas });
    }
    if graph.expansion() > bounds.expansion {
        return Err(Unusable::Expansion { limit: bounds.expansion });
    }
    let cost = graph.cost();
    if cost.nesting(0) > bounds.nesting {
        return Err(Unusable::Nesting { limit: bounds.nesting });
    }
    let Patterns { beyond_boon, slow } = check_patterns(graph.patterns(), bounds)?;
    let boon = build_boon(&value, draft, settings, remotes, &beyond_boon)?;
    if let Some(lost) = graph.lost().filter(|_| remotes.0.is_empty()) {
        return Err(Unusable::RemoteReference(cut(lost, EXPLANATION_MAX).to_owned()));
    }
    let backtracks = !beyond_boon.is_empty();
    let names = Names::new(graph.name_visits(), slow.iter().sum(), backtracks);
    Ok(Schema {
        hash: SchemaHash::of(raw, settings),
        engine: settings.engine,
        circular: graph.is_circular(),
        boon: (!backtracks).then_some(boon),
        tape: build_tape(&value, settings, remotes, &names)?,
        cost,
        names,
        steps_per_byte: slow.into_iter().max().unwrap_or(0),
    })
}

fn parse(raw: &[u8], bounds: &Bounds) -> Result<Value, Unusable> {
    if raw.len() > bounds.bytes {
        return Err(Unusable::TooLarge { bytes: raw.len(), limit: bounds.bytes });
    }
    match tape::check_unique(raw, bounds.depth, &mut Scratch::new()) {
        Ok(()) => {}
        Err(Fault::TooDeep) => return Err(Unusable::TooDeep { limit: bounds.depth }),
        Err(fault) => return Err(Unusable::NotJson(fault)),
    }
    match serde_json::from_slice(raw) {
        Ok(value @ (Value::Object(_) | Value::Bool(_))) => Ok(value),
        Ok(Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Err(Unusable::NotASchema)
        }
        Err(error) => Err(Unusable::Invalid(one_line(&error))),
    }
}

/// The patterns that need care.
struct Patterns<'a> {
    /// Those that only a backtracking engine takes.
    beyond_boon: Vec<&'a str>,
    /// What each of those costs that are linear, but not quick: steps per byte.
    slow: Vec<u64>,
}

/// Checks that the patterns are bounded.
fn check_patterns<'a>(patterns: &[&'a str], bounds: &Bounds) -> Result<Patterns<'a>, Unusable> {
    /// Sizes that a program is tried to fit into.
    const TIERS: [usize; 4] = [4 << 10, 16 << 10, 128 << 10, PROGRAM_MAX];
    let mut patterns = patterns.to_vec();
    patterns.sort_unstable();
    let (mut beyond_boon, mut slow) = (Vec::new(), Vec::new());
    let mut program = 0;
    for alike in patterns.chunk_by(|a, b| a == b) {
        let Some(pattern) = alike.first().copied() else { continue };
        if pattern.len() > bounds.pattern_bytes {
            return Err(Unusable::PatternTooLong { limit: bounds.pattern_bytes });
        }
        if let Some(size) = TIERS.into_iter().find(|size| pattern::is_linear(pattern, *size)) {
            // boon compiles it anew wherever it stands.
            program += size * alike.len();
            slow.extend(Some(pattern::steps_per_byte(pattern)).filter(|steps| *steps > 0));
            if compile_boon(&mut Compiler::new(), pattern::as_name(pattern)).is_err() {
                beyond_boon.push(pattern);
            }
        } else if let Some(size) =
            TIERS.into_iter().find(|size| pattern::is_backtracking(pattern, *size))
        {
            program += size;
            beyond_boon.push(pattern);
        } else {
            return Err(Unusable::Pattern(cut(pattern, EXPLANATION_MAX).to_owned()));
        }
        if program > bounds.pattern_program {
            return Err(Unusable::PatternsTooLarge { limit: bounds.pattern_program });
        }
    }
    Ok(Patterns { beyond_boon, slow })
}

/// Builds boon's form, with the patterns that boon does not take left out: then it only vouches
/// for the rest of the schema.
fn build_boon(
    schema: &Value,
    draft: Draft,
    settings: &Settings,
    remotes: &Remotes,
    beyond_boon: &[&str],
) -> Result<Arbiter, Unusable> {
    let mut schema = schema.clone();
    let mut compiler = Compiler::new();
    compiler.set_default_draft(draft);
    let formats = if settings.assert_formats {
        compiler.enable_format_assertions();
        formats::asserted(draft)
    } else {
        formats::annotated()
    };
    formats.into_iter().for_each(|format| compiler.register_format(format));
    prepare(&mut schema, draft, beyond_boon);
    compiler.use_loader(Box::new(remotes.clone()));
    compile_boon(&mut compiler, schema)
}

/// Keywords that came with drafts 6 and 7, which boon follows beside a reference.
const BESIDE_REFERENCE: [&str; 10] = [
    "const",
    "contains",
    "propertyNames",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "if",
    "then",
    "else",
    "contentEncoding",
    "contentMediaType",
];

/// Takes out of a schema what boon would not take or takes for something else: patterns beyond
/// it, the one format that it does not let be defined, and a keyword of another dialect. Leaves
/// alone what only looks like a keyword. The nesting of schemas bounds the recursion.
fn prepare(schema: &mut Value, draft: Draft, beyond_boon: &[&str]) {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => {
            return items.iter_mut().for_each(|item| prepare(item, draft, beyond_boon));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    let own = members.get("$schema").and_then(Value::as_str).and_then(Draft::from_url);
    let draft = own.unwrap_or(draft);
    if let Some(format) = members.get_mut("format").filter(|name| *name == "regex") {
        *format = formats::REGEX.into();
    }
    let known = members.get("pattern").and_then(Value::as_str);
    if known.is_some_and(|pattern| beyond_boon.contains(&pattern)) {
        members.remove("pattern");
    }
    if draft == Draft::V2020_12 {
        members.remove("$recursiveRef");
    }
    if matches!(draft, Draft::V6 | Draft::V7) && members.get("$ref").is_some_and(Value::is_string) {
        // What stands beside a reference means nothing there; boon knows it of draft 4 alone.
        members.retain(|keyword, _| !BESIDE_REFERENCE.contains(&keyword.as_str()));
    }
    if let Some(Value::Object(named)) = members.get_mut("patternProperties") {
        named.retain(|pattern, _| !beyond_boon.contains(&pattern.as_str()));
    }
    for (keyword, member) in members {
        match (keyword.as_str(), member) {
            ("const" | "enum" | "default" | "examples", _) => {}
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
                | "definitions",
                Value::Object(named),
            ) => named.values_mut().for_each(|schema| prepare(schema, draft, beyond_boon)),
            (_, member) => prepare(member, draft, beyond_boon),
        }
    }
}

fn compile_boon(compiler: &mut Compiler, schema: Value) -> Result<Arbiter, Unusable> {
    let mut schemas = Schemas::new();
    let compiled = match compiler.add_resource(BASE, schema) {
        Ok(()) => compiler.compile(BASE, &mut schemas),
        Err(error) => Err(error),
    };
    match compiled {
        Ok(root) => Ok(Arbiter { schemas, root }),
        Err(
            CompileError::LoadUrlError { url, .. } | CompileError::UnsupportedUrlScheme { url },
        ) => Err(Unusable::RemoteReference(cut(&url, EXPLANATION_MAX).to_owned())),
        Err(CompileError::UnsupportedDraft { url }) => {
            Err(Unusable::Dialect(cut(&url, EXPLANATION_MAX).to_owned()))
        }
        Err(CompileError::ValidationError { src, .. }) => Err(Unusable::Invalid(one_line(&src))),
        Err(error) => Err(Unusable::Invalid(one_line(&error))),
    }
}

fn build_tape(
    schema: &Value,
    settings: &Settings,
    remotes: &Remotes,
    names: &Names,
) -> Result<Validator<TapeJson>, Unusable> {
    let mut options = jsonschema::options_for::<TapeJson>()
        .with_base_uri(BASE)
        .with_retriever(remotes.clone())
        .should_validate_formats(settings.assert_formats)
        .without_content_encoding_support("base64")
        .without_content_media_type_support("application/json");
    options = if names.backtrack {
        let engine = PatternOptions::fancy_regex().backtrack_limit(BACKTRACK_MAX);
        let engine = engine.size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
        options.with_pattern_options(engine)
    } else {
        let engine = PatternOptions::regex().size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
        options.with_pattern_options(engine)
    };
    let patterns = pattern::Built::default();
    options = options.with_keyword("pattern", move |_, value, _| patterns.keyword(value));
    options.build(schema).map_err(|error| Unusable::Invalid(one_line(&error.masked())))
}

impl boon::UrlLoader for Remotes {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        self.0.get(url).cloned().ok_or_else(|| "nothing is fetched".into())
    }
}

impl jsonschema::Retrieve for Remotes {
    fn retrieve(
        &self,
        uri: &jsonschema::Uri<String>,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let url = uri.as_str().trim_end_matches('#');
        self.0.get(url).cloned().ok_or_else(|| "nothing is fetched".into())
    }
}

fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, EXPLANATION_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reason(schema: &str) -> Unusable {
        compile(schema.as_bytes(), &Settings::default()).unwrap_err()
    }

    #[test]
    fn fr_a9_each_unusable_schema_has_a_reason_of_one_clear_line() {
        let long = format!("{{\"pattern\":\"{}\"}}", "a".repeat(5000));
        let deep = format!("{}true{}", "{\"not\":".repeat(101), "}".repeat(101));
        let large = format!("{{\"description\":\"{}\"}}", "a".repeat(1 << 20));
        let many = format!("{{\"allOf\":[{}true]}}", "true,".repeat(10_000));
        for (schema, expected) in [
            ("{", "the schema is not one JSON value"),
            ("{\"type\":\"object\",\"type\":\"array\"}", "the schema has a duplicate key"),
            ("[]", "the schema is neither an object nor a boolean"),
            ("null", "the schema is neither an object nor a boolean"),
            (&large, "the schema has 1048594 bytes, more than 1048576"),
            (&deep, "the schema is nested deeper than 100"),
            (&many, "the schema has more than 10000 subschemas"),
            (&long, "a pattern of the schema is longer than 4096 bytes"),
            (
                r#"{"pattern":"("}"#,
                "the pattern '(' is not a regular expression, or too large a one",
            ),
            (
                r#"{"$schema":"https://example.com/dialect"}"#,
                "the dialect 'https://example.com/dialect' is not supported",
            ),
            (
                r#"{"$ref":"https://example.com/other"}"#,
                "the reference to 'https://example.com/other' leaves the schema and is not fetched",
            ),
            (
                r#"{"$ref":"file:///etc/passwd"}"#,
                "the reference to 'file:///etc/passwd' leaves the schema and is not fetched",
            ),
            (
                r#"{"$ref":"other.json"}"#,
                "the reference to 'json-schema:///other.json' leaves the schema and is not fetched",
            ),
        ] {
            assert_eq!(reason(schema).to_string(), expected);
        }
        let invalid = reason(r#"{"type":"strin"}"#).to_string();
        assert!(invalid.starts_with("the schema is not valid: ") && !invalid.contains('\n'));
    }

    #[test]
    fn patterns_that_compile_to_too_much_are_unusable() {
        let pattern = |i| format!("{{\"pattern\":\"^(a{{1,50}}){{1,50}}{i}$\"}}");
        let patterns: Vec<String> = (0..200).map(pattern).collect();
        let found = reason(&format!("{{\"allOf\":[{}]}}", patterns.join(",")));
        assert!(matches!(found, Unusable::PatternsTooLarge { .. }), "{found}");
        let found = reason(r#"{"pattern":"((a{1,1000}){1,1000}){1,1000}"}"#);
        assert!(matches!(found, Unusable::Pattern(_)), "{found}");
    }

    #[test]
    fn every_dialect_and_its_meta_schema_are_known() {
        for dialect in [
            "http://json-schema.org/draft-04/schema#",
            "http://json-schema.org/draft-06/schema#",
            "http://json-schema.org/draft-07/schema#",
            "http://json-schema.org/draft-07/schema",
            "https://json-schema.org/draft/2019-09/schema",
            "https://json-schema.org/draft/2020-12/schema",
        ] {
            for schema in [
                format!("{{\"$schema\":{dialect:?},\"type\":\"object\"}}"),
                format!("{{\"$schema\":{dialect:?},\"items\":{{\"$ref\":{dialect:?}}}}}"),
            ] {
                assert!(compile(schema.as_bytes(), &Settings::default()).is_ok(), "{schema}");
            }
        }
    }

    #[test]
    fn what_only_looks_like_a_keyword_is_left_to_boon_as_it_is() {
        for value in [
            json!({ "const": { "format": "regex", "pattern": "(?!a)" } }),
            json!({ "enum": [{ "$recursiveRef": "#" }], "not": { "pattern": "(?!a)" } }),
            json!({ "properties": { "$recursiveRef": { "const": { "pattern": "(?!a)" } } } }),
        ] {
            let mut prepared = value.clone();
            prepare(&mut prepared, Draft::V2020_12, &["(?!a)"]);
            if let Some(not) = prepared.get_mut("not") {
                assert_eq!(*not, json!({}));
                *not = json!({ "pattern": "(?!a)" });
            }
            assert_eq!(prepared, value);
        }
    }

    #[test]
    fn look_around_alone_does_not_make_a_schema_unusable() {
        let alone = |schema: &str| {
            compile(schema.as_bytes(), &Settings::default()).unwrap().judged_by_tape_alone()
        };
        assert!(!alone(r#"{"pattern":"^(a+)+$"}"#));
        assert!(alone(r#"{"pattern":"^(?!a)"}"#));
        assert!(alone(r#"{"pattern":"(?<=a)b"}"#));
        assert!(alone(r#"{"pattern":"(a)\\1"}"#));
        assert!(alone(r#"{"patternProperties":{"^(?!a)":true}}"#));
        let draft7 = r#"{"$schema":"http://json-schema.org/draft-07/schema#","pattern":"^(?!a)"}"#;
        assert!(alone(draft7));
        assert!(matches!(reason(r#"{"pattern":"^(?!a)","type":"strin"}"#), Unusable::Invalid(_)));
    }

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
