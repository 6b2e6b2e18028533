//! Dialect of a schema, given by its `$schema`; the documents that references may lead to; and a single meaning of `format` for both
//! engines.
//!
//! Nothing is fetched: other documents do not exist. boon uses the formats of the tape engine's crate, which follow the specifications more
//! closely, so the engines never disagree about a format.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, LazyLock};

use boon::{Draft, Format};
use jsonschema::Validator;
use jsonschema::json::Json as _;
use serde_json::{Value, json};

use super::meter::Meter;
use super::tape_json::{TapeJson, TapeNode};
use super::unusable::{EXPLANATION_MAX, Unusable, cut};

/// Documents that references may lead to, by URI. Empty outside of tests.
#[derive(Clone, Debug, Default)]
pub struct Remotes(pub Arc<HashMap<String, Value>>);

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

/// Dialect of the schema's root; the newest for an unknown `$schema` of a remote.
pub(super) fn of(schema: &Value, remotes: &Remotes) -> Result<Draft, Unusable> {
    let Some(dialect) = schema.get("$schema").and_then(Value::as_str) else {
        return Ok(Draft::default());
    };
    let uri = dialect.trim_end_matches('#');
    match Draft::from_url(uri) {
        Some(draft) => Ok(draft),
        None if remotes.0.contains_key(uri) => Ok(Draft::default()),
        None => Err(Unusable::Dialect(cut(dialect, EXPLANATION_MAX).to_owned())),
    }
}

/// Keyword of a dialect that identifies a resource.
pub(super) fn identifier(draft: Draft) -> &'static str {
    if draft == Draft::V4 { "id" } else { "$id" }
}

/// First of `dialects` that identifies resources by a keyword other than `id`. Validators differ in how they resolve
/// references in such a schema.
pub(super) fn mixed<'a>(dialects: &'a [String], id: &str) -> Option<&'a str> {
    let other = |uri: &&String| {
        Draft::from_url(uri.trim_end_matches('#')).is_some_and(|draft| identifier(draft) != id)
    };
    dialects.iter().find(other).map(String::as_str)
}

/// Name of `regex` for boon, whose own `regex` cannot be replaced.
pub(super) const REGEX: &str = "ecmascript-regex";

const DRAFTS: [Draft; 5] = [Draft::V4, Draft::V6, Draft::V7, Draft::V2019_09, Draft::V2020_12];

type Table = Vec<Format>;

macro_rules! table {
    ($draft:path, $($name:literal)*) => {
        vec![$(Format { name: $name, func: |value| ask($draft, $name, value) }),*]
    };
}

macro_rules! known {
    ($draft:path) => {
        table!($draft,
            "ecmascript-regex" "ipv4" "ipv6" "hostname" "idn-hostname" "email" "idn-email" "date"
            "time" "date-time" "duration" "period" "json-pointer" "relative-json-pointer" "uuid"
            "uri" "iri" "uri-reference" "iri-reference" "uri-template")
    };
}

/// Formats of `draft`, for boon.
pub(super) fn asserted(draft: Draft) -> Table {
    match draft {
        Draft::V4 => known!(Draft::V4),
        Draft::V6 => known!(Draft::V6),
        Draft::V7 => known!(Draft::V7),
        Draft::V2019_09 => known!(Draft::V2019_09),
        // The enum is non-exhaustive. An unknown draft is treated like the newest known one.
        _ => known!(Draft::V2020_12),
    }
}

/// The same formats, which are never asserted. Up to draft 7, boon would assert them by default.
pub(super) fn annotated() -> Table {
    let mut table = known!(Draft::V2020_12);
    table.iter_mut().for_each(|format| format.func = |_| Ok(()));
    table
}

/// The dialect for jsonschema.
pub(super) fn same_draft(draft: Draft) -> jsonschema::Draft {
    match draft {
        Draft::V4 => jsonschema::Draft::Draft4,
        Draft::V6 => jsonschema::Draft::Draft6,
        Draft::V7 => jsonschema::Draft::Draft7,
        Draft::V2019_09 => jsonschema::Draft::Draft201909,
        _ => jsonschema::Draft::Draft202012,
    }
}

fn ask(draft: Draft, name: &'static str, value: &Value) -> Result<(), Box<dyn Error>> {
    // Validators of the tape representation, which the crate is compiled for anyway.
    static VALIDATORS: LazyLock<HashMap<(Draft, &str), Validator<TapeJson>>> =
        LazyLock::new(|| {
            let all = DRAFTS.into_iter().flat_map(|draft| {
                asserted(draft).into_iter().filter_map(move |format| {
                    let meant = if format.name == REGEX { "regex" } else { format.name };
                    let options = jsonschema::options_for::<TapeJson>()
                        .with_draft(same_draft(draft))
                        .should_validate_formats(true);
                    let validator = options.build(&json!({ "format": meant })).ok()?;
                    Some(((draft, format.name), validator))
                })
            });
            all.collect()
        });
    // Formats apply to strings only.
    let (Some(validator), Value::String(text)) = (VALIDATORS.get(&(draft, name)), value) else {
        return Ok(());
    };
    let is_valid = |node: TapeNode<'_>| validator.is_valid(node);
    match TapeJson::with_string_node(&mut Meter::default(), text, is_valid) {
        true => Ok(()),
        false => Err("not of this format".into()),
    }
}

#[cfg(test)]
mod formats_tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn formats_are_evaluated_on_the_tape_like_on_a_tree() {
        let texts = [
            "",
            "(",
            "a",
            "<",
            "{",
            "-a-",
            "\u{1}",
            "127.0.0.1",
            "300.0.0.1",
            "::1",
            "a.example",
            "é.example",
            "a@b.example",
            "é@b.example",
            "2026-01-02",
            "2026-02-30",
            "01:02:03Z",
            "2026-01-02T03:04:05Z",
            "P1D",
            "/a",
            "1/a",
            "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
            "https://a.example/",
            "https://é.example/",
            "/é",
            "https://a.example/{id}",
            "^(a|b)$",
        ];
        let values = texts.map(Value::from).into_iter();
        let values: Vec<_> =
            values.chain([json!(1), json!(null), json!(["("]), json!({})]).collect();
        let mut verdicts = BTreeMap::<_, [bool; 2]>::new();
        for (draft, format) in DRAFTS
            .into_iter()
            .flat_map(|draft| asserted(draft).into_iter().map(move |it| (draft, it)))
        {
            let name = format.name;
            let meant = if name == REGEX { "regex" } else { name };
            let tree = jsonschema::options()
                .with_draft(same_draft(draft))
                .should_validate_formats(true)
                .build(&json!({ "format": meant }))
                .unwrap();
            for value in &values {
                let expected = tree.is_valid(value);
                assert_eq!((format.func)(value).is_ok(), expected, "{draft:?} {name} {value}");
                verdicts.entry(name).or_default()[usize::from(expected)] = true;
            }
        }
        // No draft defines a format of this name.
        assert_eq!(verdicts.remove("period"), Some([false, true]));
        assert_eq!(verdicts.len(), 19);
        assert!(verdicts.values().all(|it| *it == [true, true]), "{verdicts:?}");
    }

    #[test]
    fn format_is_asserted_in_every_draft_that_has_it() {
        for draft in DRAFTS {
            let formats = asserted(draft);
            let email = formats.iter().find(|format| format.name == "email").unwrap();
            assert!((email.func)(&json!("a@b.example")).is_ok());
            assert!((email.func)(&json!("nobody")).is_err());
            assert!((email.func)(&json!(1)).is_ok());
        }
        assert!(annotated().iter().all(|format| (format.func)(&json!("\u{1}")).is_ok()));
    }
}
