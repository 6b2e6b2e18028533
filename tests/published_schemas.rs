//! Accept-only pass (FR-A14) over schemas published by MCP servers on npm and PyPI.
//!
//! Measures how many real schemas the pass covers: the share of schemas whose conforming documents are accepted without
//! a tape. `tools/schemas/collect` makes the data in `tests/data/published_schemas`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bytes::Bytes;
use mcpproxy_schema::compile::{Engine, Schema, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Number of documents built from each schema.
const DOCUMENTS: usize = 12;

/// Number of altered variants of each document.
const CHANGES: usize = 4;

/// Maximum nesting of a built document. No optional members and items are added beyond it.
const MAX_DEPTH: usize = 6;

/// Maximum number of schema objects that apply to one value.
const MAX_PARTS: usize = 64;

/// Published schema and its source.
#[derive(Deserialize)]
struct Published {
    package: String,
    version: String,
    license: String,
    tool: String,
    schema: Box<RawValue>,
}

#[test]
fn fr_a14_published_input_schemas_are_covered() {
    let coverage = Coverage::of("input");
    assert!(coverage.schemas >= 1000, "only {} schemas", coverage.schemas);
    coverage.check();
}

#[test]
fn fr_a14_published_output_schemas_are_covered() {
    let coverage = Coverage::of("output");
    assert!(coverage.schemas >= 300, "only {} schemas", coverage.schemas);
    coverage.check();
}

/// Counts over the schemas of one kind.
#[derive(Default)]
struct Coverage {
    schemas: usize,
    packages: BTreeSet<String>,
    /// Number of schemas that the pass covers completely: all conforming documents are accepted in one pass.
    covered: usize,
    /// Number of uncovered schemas by the reason.
    missed: BTreeMap<String, usize>,
    /// Number of documents that conform according to boon. The next fields count those of them accepted in one pass,
    /// and the documents that boon refuses.
    conforming: usize,
    accepted: usize,
    refused: usize,
    /// Accepted documents that boon refuses.
    wrong: Vec<String>,
}

impl Coverage {
    fn of(kind: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published_schemas");
        let text = fs::read_to_string(folder.join(kind).with_extension("jsonl")).unwrap();
        let mut coverage = Self::default();
        for (at, line) in text.lines().enumerate() {
            let published: Published = serde_json::from_str(line).unwrap();
            assert!(!published.version.is_empty() && !published.license.is_empty(), "{line}");
            if let Err(reason) = coverage.add(&published, at as u64) {
                *coverage.missed.entry(reason).or_default() += 1;
            } else {
                coverage.covered += 1;
            }
            coverage.schemas += 1;
            coverage.packages.insert(published.package);
        }
        let Self { schemas, packages, covered, missed, conforming, accepted, refused, .. } =
            &coverage;
        let packages = packages.len();
        println!(
            "{kind}: {covered} of {schemas} schemas of {packages} packages covered; {accepted} of {conforming} conforming documents \
             accepted in one pass, {refused} refused by boon; not covered: {missed:?}"
        );
        coverage
    }

    /// Adds the counts of a schema. An error is the reason why the schema is not covered.
    fn add(&mut self, published: &Published, seed: u64) -> Result<(), String> {
        let raw = published.schema.get();
        let compiled = [Engine::Tape, Engine::Boon].map(|engine| {
            let settings = Settings { engine, assert_formats: false };
            compile(raw.as_bytes(), &settings).map_err(|reason| format!("unusable: {reason}"))
        });
        let [schema, boon] = compiled;
        let (schema, boon) = (schema?, boon?);
        let form: Value = serde_json::from_str(raw).unwrap();
        let mut builder = DocumentBuilder { root: &form, random: Random(seed + 1) };
        let (mut conforming, mut accepted) = (0, 0);
        for document in builder.documents() {
            let in_one_pass = schema.accepts_in_one_pass(&document, &mut JudgeScratch::new());
            if conforms(&boon, &document) {
                conforming += 1;
                accepted += usize::from(in_one_pass);
            } else {
                self.refused += 1;
                if in_one_pass {
                    let Published { package, tool, .. } = published;
                    let document = String::from_utf8_lossy(&document);
                    self.wrong.push(format!("{package} {tool}: {document}"));
                }
            }
        }
        self.conforming += conforming;
        self.accepted += accepted;
        let gaps: Vec<_> = schema.keywords_without_a_rule().collect();
        match (gaps.is_empty(), conforming, accepted == conforming) {
            (false, ..) => Err(gaps.join(", ")),
            (true, 0, _) => Err("no conforming document found".to_owned()),
            (true, _, false) => Err("a conforming document is not accepted".to_owned()),
            (true, _, true) => Ok(()),
        }
    }

    fn check(&self) {
        let wrong: Vec<_> = self.wrong.iter().take(10).collect();
        assert!(wrong.is_empty(), "accepted, refused by boon: {wrong:#?}");
        assert!(self.covered * 100 >= self.schemas * 95, "{:?}", self.missed);
        // Both verdicts of boon occur often enough.
        assert!(self.conforming >= self.schemas * DOCUMENTS / 2, "{}", self.conforming);
        assert!(self.refused >= self.schemas * DOCUMENTS / 2, "{}", self.refused);
    }
}

fn conforms(schema: &Schema, document: &[u8]) -> bool {
    let document = [Bytes::copy_from_slice(document)];
    schema.judge(&document, &mut JudgeScratch::new()).verdict == Verdict::Conforms
}

/// Pseudorandom numbers (splitmix64).
struct Random(u64);

impl Random {
    /// Number below `count`; 0 for an empty range.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from(mixed >> 33).unwrap().checked_rem(count).unwrap_or_default()
    }

    fn one<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Strings of common forms, for patterns and lengths.
const TEXTS: [&str; 34] = [
    "text",
    "",
    "a",
    "A",
    "é",
    "line\nbreak \"quoted\" \u{1F600}",
    "1",
    "12",
    "2026",
    "12345",
    "2026-01-02",
    "2026-01-02T03:04:05Z",
    "2026-01-02 03:04:05",
    "202601",
    "20260102",
    "09:30",
    "a-b",
    "a_b",
    "a.b",
    "a/b",
    "1.2.3",
    "AAPL",
    "us-east-1",
    "#1a2b3c",
    "1a2b3c",
    "123456789012",
    "https://example.com/a",
    "nobody@example.com",
    "/a/b.csv",
    "a.json",
    "123e4567-e89b-12d3-a456-426614174000",
    "0123456789abcdef0123456789abcdef01234567",
    "arn:aws:iam::123456789012:role/a",
    "s3://a-bucket/b",
];

/// Builder of documents that usually conform to a schema.
struct DocumentBuilder<'a> {
    root: &'a Value,
    random: Random,
}

/// All schema objects that apply to a value.
type Parts<'a> = Vec<&'a Map<String, Value>>;

impl<'a> DocumentBuilder<'a> {
    /// Documents, each followed by variants with one member changed, compact or indented.
    fn documents(&mut self) -> Vec<Vec<u8>> {
        let mut documents = Vec::new();
        for at in 0..DOCUMENTS {
            let built = self.value(&[self.root], 0);
            let changed: Vec<_> = (0..CHANGES).map(|_| self.changed(built.clone())).collect();
            for document in [built].into_iter().chain(changed) {
                let text = if at % 2 == 0 {
                    serde_json::to_vec(&document)
                } else {
                    serde_json::to_vec_pretty(&document)
                };
                documents.push(text.unwrap());
            }
        }
        documents
    }

    fn value(&mut self, schemas: &[&'a Value], depth: usize) -> Value {
        let parts = self.parts(schemas);
        let all = |keyword: &str| -> Vec<&'a Value> {
            parts.iter().filter_map(|part| part.get(keyword)).collect()
        };
        if let Some(value) = all("const").first() {
            return (*value).clone();
        }
        if let Some(values) = all("enum").first().and_then(|values| values.as_array()) {
            return self.random.one(values).clone();
        }
        let named: Vec<&str> = match all("type").last() {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ if !all("properties").is_empty() => vec!["object"],
            _ if !all("items").is_empty() => vec!["array"],
            _ => vec!["string", "integer", "null", "boolean", "object", "array"],
        };
        match *self.random.one(&named) {
            "object" => self.object(&parts, depth),
            "array" => self.array(&parts, depth),
            "string" => self.text(&parts).into(),
            "number" => self.number(&parts, true),
            "integer" => self.number(&parts, false),
            "boolean" => (self.random.below(2) == 0).into(),
            _ => Value::Null,
        }
    }

    /// Schema objects reached through references, `allOf` and one branch of each choice.
    fn parts(&mut self, schemas: &[&'a Value]) -> Parts<'a> {
        let mut open = schemas.to_vec();
        let mut parts = Parts::new();
        while let Some(schema) = open.pop() {
            let Value::Object(part) = schema else { continue };
            if parts.len() == MAX_PARTS {
                break;
            }
            parts.push(part);
            let target = part.get("$ref").and_then(Value::as_str);
            open.extend(target.and_then(|text| self.root.pointer(text.strip_prefix('#')?)));
            open.extend(part.get("allOf").and_then(Value::as_array).into_iter().flatten());
            for choice in ["anyOf", "oneOf"] {
                if let Some(branches) = part.get(choice).and_then(Value::as_array) {
                    open.push(self.random.one(branches));
                }
            }
        }
        parts
    }

    fn object(&mut self, parts: &Parts<'a>, depth: usize) -> Value {
        let lists = parts.iter().filter_map(|part| part.get("required")?.as_array());
        let required: BTreeSet<&str> = lists.flatten().filter_map(Value::as_str).collect();
        let maps = parts.iter().filter_map(|part| part.get("properties")?.as_object());
        let declared: BTreeSet<&str> = maps.flat_map(Map::keys).map(String::as_str).collect();
        let mut members = Map::new();
        for name in required.union(&declared) {
            let wanted = depth < MAX_DEPTH && self.random.below(2) == 0;
            if required.contains(name) || wanted {
                let schemas: Vec<_> =
                    parts.iter().filter_map(|part| part.get("properties")?.get(*name)).collect();
                members.insert((*name).to_owned(), self.value(&schemas, depth + 1));
            }
        }
        let rest: Vec<_> =
            parts.iter().filter_map(|part| part.get("additionalProperties")).collect();
        let open = !rest.contains(&&Value::Bool(false));
        let few = count(parts, "minProperties").map_or(2, |least| least.max(2));
        let others = if open && depth < MAX_DEPTH { self.random.below(few + 1) } else { 0 };
        for at in 0..others {
            members.insert(format!("other{at}"), self.value(&rest, depth + 1));
        }
        Value::Object(members)
    }

    fn array(&mut self, parts: &Parts<'a>, depth: usize) -> Value {
        let least = count(parts, "minItems").unwrap_or_default();
        let more = if depth < MAX_DEPTH { self.random.below(3) } else { 0 };
        let most = count(parts, "maxItems").unwrap_or(usize::MAX);
        let prefix = parts.iter().find_map(|part| part.get("prefixItems")?.as_array());
        let items: Vec<_> = parts.iter().filter_map(|part| part.get("items")).collect();
        let mut values = Vec::new();
        for at in 0..(least + more).min(most) {
            let first = prefix.and_then(|prefix| prefix.get(at));
            values.push(match first {
                Some(schema) => self.value(&[schema], depth + 1),
                None => self.value(&items, depth + 1),
            });
        }
        values.into()
    }

    fn text(&mut self, parts: &Parts<'a>) -> String {
        let least = count(parts, "minLength").unwrap_or_default();
        let most = count(parts, "maxLength").unwrap_or(usize::MAX);
        let pattern = parts.iter().find_map(|part| part.get("pattern"));
        let matcher = pattern.map(|pattern| {
            let settings = Settings { engine: Engine::Boon, assert_formats: false };
            compile(json!({ "pattern": pattern }).to_string().as_bytes(), &settings).unwrap()
        });
        let fits = |text: &String| {
            let matches = matcher
                .as_ref()
                .is_none_or(|schema| conforms(schema, json!(text).to_string().as_bytes()));
            (least..=most).contains(&text.chars().count()) && matches
        };
        let first = self.random.below(TEXTS.len());
        let texts = TEXTS.iter().cycle().skip(first).take(TEXTS.len());
        let found = texts.map(ToString::to_string).find(fits);
        found.unwrap_or_else(|| "x".repeat(least.max(1).min(most)))
    }

    fn number(&mut self, parts: &Parts<'a>, fraction: bool) -> Value {
        let limit =
            |keyword| parts.iter().find_map(|part| part.get(keyword)).and_then(Value::as_f64);
        let gap = if fraction { 0.25 } else { 1.0 };
        let least = limit("minimum").or(limit("exclusiveMinimum").map(|limit| limit + gap));
        let most = limit("maximum").or(limit("exclusiveMaximum").map(|limit| limit - gap));
        let least = least.unwrap_or_else(|| most.unwrap_or(7.0).min(7.0) - 7.0);
        let most = most.unwrap_or(least + 1000.0).min(least + 1000.0);
        let near = least + (most - least) * self.random.one(&[0.0, 0.25, 0.5, 0.75, 1.0]);
        let step = limit("multipleOf");
        if fraction && step.is_none() {
            return near.into();
        }
        let step = step.unwrap_or(1.0);
        let multiple = ((near / step).floor() * step).max((least / step).ceil() * step);
        format!("{multiple:.0}").parse::<i64>().unwrap().into()
    }

    /// `document` with one member removed, added or replaced.
    fn changed(&mut self, mut document: Value) -> Value {
        let others = [
            Value::Null,
            true.into(),
            json!(-1),
            json!(0.5),
            json!(12_345_678_901_u64),
            "other".into(),
            json!([]),
            json!([1]),
            json!({}),
            json!({ "a": null }),
        ];
        let replacement = self.random.one(&others).clone();
        self.change(&mut document, replacement);
        document
    }

    /// Changes one member at or below `value`. The recursion is bounded by the nesting of `value`.
    fn change(&mut self, value: &mut Value, replacement: Value) {
        let deeper = self.random.below(3) > 0;
        let is_container = |value: &Value| value.is_object() || value.is_array();
        match value {
            Value::Object(members) if !members.is_empty() => {
                let names: Vec<String> = members.keys().cloned().collect();
                let name = self.random.one(&names).clone();
                if deeper && is_container(&members[&name]) {
                    return self.change(&mut members[&name], replacement);
                }
                match self.random.below(5) {
                    0 => members.remove(&name),
                    1 => members.insert("other".to_owned(), replacement),
                    _ => members.insert(name, replacement),
                };
            }
            Value::Array(items) if !items.is_empty() => {
                let index = self.random.below(items.len());
                if deeper && is_container(&items[index]) {
                    return self.change(&mut items[index], replacement);
                }
                items[index] = replacement;
            }
            other => *other = replacement,
        }
    }
}

/// Limit of a number of characters, items or members.
fn count(parts: &Parts<'_>, keyword: &str) -> Option<usize> {
    let found = parts.iter().find_map(|part| part.get(keyword))?.as_u64()?;
    usize::try_from(found).ok()
}
