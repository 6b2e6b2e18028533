//! Compilation of a schema for both engines, or the reason why it is unusable.
//!
//! Handles dialects, bounds, and a configuration in which both engines agree. Fetches nothing: a reference out of the schema makes it
//! unusable, unless it leads to a standard meta-schema.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::OnceLock;

use boon::{CompileError, Compiler, Draft, SchemaIndex, Schemas};
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use url::Url;

use super::accept::{AcceptBuilder, AcceptProgram};
use super::bounds::{Bounds, Cost, Graph, Lost, MAX_PLACES, WalkLimits, follow};
pub use super::dialect::Remotes;
use super::dialect::{self, identifier};
use super::form::{ReachedSchema, prepare};
use super::meter::{BACKTRACK_MAX, NameCost};
use super::pattern::{self, PROGRAM_MAX};
use super::required::RequiredMembers;
pub use super::settings::{Engine, SchemaHash, Settings};
use super::tape_json::TapeJson;
pub use super::unusable::Unusable;
use super::unusable::cut;
use super::unusable::{EXPLANATION_MAX, one_line};
use mcpproxy_json::tape::{self, Scratch, TapeFault};

/// Base URI of a schema without an identifier.
pub(super) const BASE: &str = "json-schema:///";

/// Stack size for compiling the largest schema, in bytes.
pub const STACK: usize = 16 << 20;

/// Maximum size in bytes of a schema, without patterns, whose boon form is compiled lazily: boon is rarely needed, compiling takes less
/// than a millisecond, and this form is three quarters of a compiled schema's memory.
const RESTING_BYTES: usize = 4 << 10;

pub struct Schema {
    pub(super) hash: SchemaHash,
    pub(super) engine: Engine,
    boon: Boon,
    pub(super) tape: Validator<TapeJson>,
    pub(super) cost: Cost,
    /// Whether references are cyclic on one value; boon decides their meaning.
    pub(super) circular: bool,
    pub(super) names: NameCost,
    /// Steps per byte of text for the slowest pattern; 0 if all are fast.
    pub(super) steps_per_byte: u64,
    /// Required members of the schema's objects.
    pub(super) required: RequiredMembers,
    /// Accept-only form, for those schemas of the tape engine that have one.
    pub(super) accept: Option<AcceptProgram>,
    gaps: BTreeSet<&'static str>,
}

/// boon's form of the schema.
enum Boon {
    /// No form exists: boon refuses a pattern, or would take too long to compile.
    Refuses,
    Ready(Arbiter),
    /// The form is compiled lazily from this text, which is known to compile.
    Resting {
        form: Box<str>,
        draft: Draft,
        settings: Settings,
        made: OnceLock<Option<Arbiter>>,
    },
}

pub(super) struct Arbiter {
    pub(super) schemas: Schemas,
    pub(super) root: SchemaIndex,
}

impl Schema {
    /// Identity of the schema under its settings.
    pub fn hash(&self) -> SchemaHash {
        self.hash
    }

    /// Whether the schema is evaluated only by the tape engine, because boon refuses a pattern with look-around or
    /// back-references, or would take too long to compile ([`Bounds::boon_subschemas`]). Reported by health.
    pub fn judged_by_tape_alone(&self) -> bool {
        matches!(self.boon, Boon::Refuses)
    }

    /// Keywords that the accept-only evaluator does not cover; empty if a conforming document usually needs no tape.
    pub fn keywords_without_a_rule(&self) -> impl Iterator<Item = &'static str> {
        self.gaps.iter().copied()
    }

    /// boon's form, if boon is used.
    pub(super) fn arbiter(&self) -> Option<&Arbiter> {
        match &self.boon {
            Boon::Refuses => None,
            Boon::Ready(arbiter) => Some(arbiter),
            Boon::Resting { form, draft, settings, made } => {
                let make = || {
                    let form = serde_json::from_str(form).ok()?;
                    build_boon(&form, *draft, settings, &Remotes::default(), &HashSet::new()).ok()
                };
                made.get_or_init(make).as_ref()
            }
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Compiles `raw` within the default [`Bounds`].
///
/// Takes seconds for the largest schema and cannot be interrupted, so it must not run on the call path; if `raw` may be large, it needs a
/// thread with [`STACK`] bytes of stack. The error is the reason in the warning of FR-A9.
pub fn compile(raw: &[u8], settings: &Settings) -> Result<Schema, Unusable> {
    compile_with(raw, settings, &Bounds::default(), &Remotes::default())
}

/// Compiles `raw` within `bounds`; references may lead to `remotes`.
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
    let limits = WalkLimits { subschemas: bounds.subschemas, targets: bounds.targets };
    let graph = follow(&value, &base, id, limits);
    let subschemas = check_extent(&graph, bounds)?;
    let ReachedSchema { schema: form, dialects } = if remotes.0.is_empty() {
        if let Some(lost) = graph.lost() {
            return Err(not_found(lost));
        }
        ReachedSchema::of(&value, graph.reached(), id)
    } else {
        ReachedSchema { schema: value.clone(), dialects: Vec::new() }
    };
    if let Some(other) = dialect::mixed(&dialects, id) {
        return Err(Unusable::MixedDialects(cut(other, EXPLANATION_MAX).to_owned()));
    }
    let cost = graph.cost();
    let nesting = cost.nesting(0);
    if nesting > bounds.nesting {
        return Err(Unusable::Nesting { nesting, limit: bounds.nesting });
    }
    let Patterns { beyond_boon, slow, names } = check_patterns(&graph, bounds)?;
    let has_beyond = !beyond_boon.is_empty();
    let compiled_patterns = pattern::PatternCache::default();
    let tape = build_tape(&form, settings, remotes, has_beyond, compiled_patterns.clone())?;
    let rests = settings.engine == Engine::Tape
        && remotes.0.is_empty()
        && raw.len() <= RESTING_BYTES
        && graph.patterns().next().is_none();
    let boon = if subschemas > bounds.boon_subschemas {
        Boon::Refuses
    } else {
        let vouched = build_boon(&form, draft, settings, remotes, &beyond_boon)?;
        match (has_beyond, rests) {
            (true, _) => Boon::Refuses,
            (false, false) => Boon::Ready(vouched),
            (false, true) => {
                let form = form.to_string().into();
                Boon::Resting { form, draft, settings: *settings, made: OnceLock::new() }
            }
        }
    };
    let hash = SchemaHash::of(raw, settings);
    // The meaning of a cyclic reference, and of a reference to another document, is left to the engines.
    let has_accept =
        settings.engine == Engine::Tape && !graph.is_circular() && remotes.0.is_empty();
    let (accept, gaps) = if has_accept {
        AcceptBuilder {
            form: &form,
            draft,
            schema: hash,
            assert_formats: settings.assert_formats,
            patterns: &compiled_patterns,
            cost: &cost,
        }
        .build()
    } else {
        (None, BTreeSet::from(["$ref"]))
    };
    Ok(Schema {
        hash,
        engine: settings.engine,
        circular: graph.is_circular(),
        boon,
        tape,
        cost,
        names,
        steps_per_byte: slow,
        required: RequiredMembers::of(&value),
        accept,
        gaps,
    })
}

/// Checks the bounds on references and visits. Returns the number of subschemas to compile.
fn check_extent(graph: &Graph<'_>, bounds: &Bounds) -> Result<u64, Unusable> {
    if graph.crowded() {
        return Err(Unusable::Names { limit: MAX_PLACES });
    }
    if graph.overflowed() {
        return Err(Unusable::TooManySubschemas { limit: bounds.subschemas });
    }
    if graph.scattered() {
        return Err(Unusable::TooManyTargets { limit: bounds.targets });
    }
    let subschemas = graph.compiled(bounds.compiled);
    if subschemas > bounds.compiled {
        return Err(Unusable::Ways { limit: bounds.compiled });
    }
    let visits = graph.expansion();
    if visits > bounds.expansion {
        return Err(Unusable::Expansion { visits, limit: bounds.expansion });
    }
    Ok(subschemas)
}

fn not_found(lost: &Lost) -> Unusable {
    let shown = |text: &str| cut(text, EXPLANATION_MAX).to_owned();
    match lost {
        Lost::Outside(url) => Unusable::RemoteReference(shown(url.as_str())),
        Lost::Nothing(reference) => Unusable::DanglingReference(shown(reference)),
        Lost::Claimed(name) => Unusable::Claimed(shown(name)),
    }
}

fn parse(raw: &[u8], bounds: &Bounds) -> Result<Value, Unusable> {
    if raw.len() > bounds.bytes {
        return Err(Unusable::TooLarge { bytes: raw.len(), limit: bounds.bytes });
    }
    match tape::check_unique(raw, bounds.depth, &mut Scratch::new()) {
        Ok(()) => {}
        Err(TapeFault::TooDeep) => return Err(Unusable::TooDeep { limit: bounds.depth }),
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

/// Costs of the patterns that are not fast.
struct Patterns<'a> {
    /// Patterns that only a backtracking engine supports.
    beyond_boon: HashSet<&'a str>,
    /// Steps per byte of text for the slowest linear pattern.
    slow: u64,
    /// Cost of all patterns per name of an object.
    names: NameCost,
}

/// Checks that the patterns are bounded.
fn check_patterns<'a>(graph: &Graph<'a>, bounds: &Bounds) -> Result<Patterns<'a>, Unusable> {
    /// Size limits, tried in this order.
    const TIERS: [usize; 4] = [4 << 10, 16 << 10, 128 << 10, PROGRAM_MAX];
    let mut patterns: Vec<_> = graph.patterns().collect();
    patterns.sort_unstable();
    let mut found = Patterns { beyond_boon: HashSet::new(), slow: 0, names: NameCost::default() };
    let (mut visits, mut per_byte, mut backtracks) = (graph.name_visits(), 0_u64, false);
    let mut program = 0;
    for alike in patterns.chunk_by(|a, b| a.0 == b.0) {
        let Some((pattern, _)) = alike.first().copied() else { continue };
        let bytes = pattern.len();
        if bytes > bounds.pattern_bytes {
            return Err(Unusable::PatternTooLong { bytes, limit: bounds.pattern_bytes });
        }
        let beyond;
        if let Some(size) = TIERS.into_iter().find(|size| pattern::is_linear(pattern, *size)) {
            // boon compiles a pattern once per occurrence.
            program += size * alike.len();
            let steps = pattern::steps_per_byte(pattern);
            found.slow = found.slow.max(steps);
            per_byte = per_byte.saturating_add(steps);
            beyond = compile_boon(&mut Compiler::new(), pattern::as_name(pattern)).is_err();
        } else if let Some(size) =
            TIERS.into_iter().find(|size| pattern::is_backtracking(pattern, *size))
        {
            program += size;
            beyond = true;
            if alike.iter().any(|(_, of_names)| *of_names) {
                match pattern::apart(pattern) {
                    Some(apart) => {
                        visits = visits.saturating_add(apart.visits);
                        per_byte = per_byte.saturating_add(apart.steps_per_byte);
                    }
                    None => backtracks = true,
                }
            }
        } else {
            let pattern = cut(pattern, EXPLANATION_MAX).to_owned();
            return Err(Unusable::Pattern { pattern, limit: PROGRAM_MAX });
        }
        if beyond {
            found.beyond_boon.insert(pattern);
        }
        if program > bounds.pattern_program {
            return Err(Unusable::PatternsTooLarge { limit: bounds.pattern_program });
        }
    }
    found.names = NameCost::new(visits, per_byte, backtracks);
    Ok(found)
}

/// Builds boon's form without the patterns that boon does not support; it then validates only the rest of the schema.
fn build_boon(
    schema: &Value,
    draft: Draft,
    settings: &Settings,
    remotes: &Remotes,
    beyond_boon: &HashSet<&str>,
) -> Result<Arbiter, Unusable> {
    let mut schema = schema.clone();
    let mut compiler = Compiler::new();
    compiler.set_default_draft(draft);
    let formats = if settings.assert_formats {
        compiler.enable_format_assertions();
        dialect::asserted(draft)
    } else {
        dialect::annotated()
    };
    formats.into_iter().for_each(|format| compiler.register_format(format));
    prepare(&mut schema, draft, beyond_boon);
    compiler.use_loader(Box::new(remotes.clone()));
    compile_boon(&mut compiler, schema)
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
        Err(
            CompileError::JsonPointerNotFound(reference)
            | CompileError::InvalidJsonPointer(reference)
            | CompileError::AnchorNotFound { reference, .. },
        ) => Err(Unusable::DanglingReference(cut(&reference, EXPLANATION_MAX).to_owned())),
        Err(error) => Err(Unusable::Invalid(one_line(&error))),
    }
}

fn build_tape(
    schema: &Value,
    settings: &Settings,
    remotes: &Remotes,
    backtracks: bool,
    patterns: pattern::PatternCache,
) -> Result<Validator<TapeJson>, Unusable> {
    let mut options = jsonschema::options_for::<TapeJson>()
        .with_base_uri(BASE)
        .with_retriever(remotes.clone())
        .should_validate_formats(settings.assert_formats)
        .without_content_encoding_support("base64")
        .without_content_media_type_support("application/json");
    options = if backtracks {
        let engine = PatternOptions::fancy_regex().backtrack_limit(BACKTRACK_MAX);
        let engine = engine.size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
        options.with_pattern_options(engine)
    } else {
        let engine = PatternOptions::regex().size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
        options.with_pattern_options(engine)
    };
    options = options.with_keyword("pattern", move |_, value, _| patterns.keyword(value));
    options.build(schema).map_err(|error| Unusable::Invalid(one_line(&error.masked())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(schema: &str) -> Unusable {
        compile(schema.as_bytes(), &Settings::default()).unwrap_err()
    }

    #[test]
    fn fr_a9_unusable_schema_has_a_reason_of_one_line() {
        let long = format!("{{\"pattern\":\"{}\"}}", "a".repeat(5000));
        let deep = format!("{}true{}", "{\"not\":".repeat(101), "}".repeat(101));
        let large = format!("{{\"description\":\"{}\"}}", "a".repeat(16 << 20));
        let many = format!("{{\"allOf\":[{}true]}}", "true,".repeat(100_000));
        let link = |at| format!("\"d{at}\":{{\"$ref\":\"#/$defs/d{}\"}}", at + 1);
        let links: Vec<_> = (0..200).map(link).collect();
        let nested =
            format!("{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{},\"d200\":{{}}}}}}", links.join(","));
        for (schema, expected) in [
            ("{", "the schema is not one JSON value"),
            ("{\"type\":\"object\",\"type\":\"array\"}", "the schema has a duplicate key"),
            ("[]", "the schema is neither an object nor a boolean"),
            ("null", "the schema is neither an object nor a boolean"),
            (&large, "the schema has 16777234 bytes, more than 16777216"),
            (&deep, "the schema is nested deeper than 100"),
            (&many, "the schema has more than 100000 subschemas"),
            (&long, "a pattern of the schema has 5000 bytes, more than 4096"),
            (
                r#"{"pattern":"("}"#,
                "the pattern '(' is not a regular expression, or compiles to more than 1048576 bytes",
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
            (
                r#"{"items":{"$ref":"https://a.invalid/Page<Item>#/x"},"type":"strin"}"#,
                "the reference to 'https://a.invalid/Page%3CItem%3E#/x' leaves the schema and is not fetched",
            ),
            (
                r##"{"$ref":"#/$defs/absent"}"##,
                "the reference to '#/$defs/absent' does not resolve within the schema",
            ),
            (
                r##"{"$ref":"#absent"}"##,
                "the reference to '#absent' does not resolve within the schema",
            ),
            (
                r#"{"$id":"https://json-schema.org/draft/2020-12/meta/core"}"#,
                "the schema claims the name 'https://json-schema.org/draft/2020-12/meta/core' of a meta-schema",
            ),
            (
                r#"{"items":{"$schema":"http://json-schema.org/draft-04/schema#"}}"#,
                "the dialect 'http://json-schema.org/draft-04/schema#' within the schema identifies resources by another keyword than the schema's own, and is not supported there",
            ),
            (
                r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##,
                "evaluating one value could take unlimited steps (limit 10000): nested alternatives multiply the work",
            ),
            (
                &nested,
                "the schema nests 202 references and alternatives in each other, more than 200",
            ),
        ] {
            assert_eq!(reason(schema).to_string(), expected);
        }
        let invalid = reason(r#"{"type":"strin"}"#).to_string();
        assert!(invalid.starts_with("the schema is not valid: ") && !invalid.contains('\n'));
    }

    #[test]
    fn too_large_patterns_are_unusable() {
        let pattern = |i| format!("{{\"pattern\":\"^(a{{1,50}}){{1,50}}{i}$\"}}");
        let patterns: Vec<String> = (0..200).map(pattern).collect();
        let found = reason(&format!("{{\"allOf\":[{}]}}", patterns.join(",")));
        assert!(matches!(found, Unusable::PatternsTooLarge { .. }), "{found}");
        let found = reason(r#"{"pattern":"((a{1,1000}){1,1000}){1,1000}"}"#);
        assert!(matches!(found, Unusable::Pattern { .. }), "{found}");
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
    fn schema_with_look_around_is_usable() {
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
}
