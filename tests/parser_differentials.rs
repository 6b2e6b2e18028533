//! Rejection of documents that parsers read differently.
//!
//! The expected verdicts are in this file. The values read by Python's json, JavaScript's JSON.parse, serde_json
//! and simd-json are in `tests/data/parser_differentials.json`, made by
//! `tools/differentials/generate.py`; the two Rust parsers are run again here, so that the table
//! stays correct.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mcpproxy_schema::compile::{Engine, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_schema::output::{Finding, Inspector, MissingContent, Policy, Treatment};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simd_json::prelude::Writable;

const TABLE: &str = "tests/data/parser_differentials.json";

/// Verdicts on documents: the code of the violation, or `None` if the document passes.
const VERDICTS: &[(&str, Option<&str>)] = &[
    ("duplicate_key", Some("duplicate_key")),
    ("duplicate_key_escaped", Some("duplicate_key")),
    ("duplicate_key_nested", Some("duplicate_key")),
    ("duplicate_key_proto", Some("duplicate_key")),
    ("duplicate_empty_key", Some("duplicate_key")),
    ("keys_that_differ_by_normal_form", None),
    ("keys_that_differ_by_case", None),
    ("proto_key", None),
    ("lone_high_surrogate", Some("lone_surrogate")),
    ("lone_low_surrogate", Some("lone_surrogate")),
    ("reversed_surrogates", Some("lone_surrogate")),
    ("surrogate_then_text", Some("lone_surrogate")),
    ("surrogate_then_other_escape", Some("lone_surrogate")),
    ("lone_surrogate_in_key", Some("lone_surrogate")),
    ("surrogate_pair", None),
    ("noncharacter", None),
    ("escaped_null", None),
    ("invalid_utf8", Some("invalid_utf8")),
    ("overlong_utf8", Some("invalid_utf8")),
    ("surrogate_in_utf8", Some("invalid_utf8")),
    ("cut_utf8", Some("invalid_utf8")),
    ("beyond_unicode", Some("invalid_utf8")),
    ("byte_order_mark", Some("byte_order_mark")),
    ("utf16", Some("syntax")),
    ("overflow", Some("number_overflow")),
    ("negative_overflow", Some("number_overflow")),
    ("overflow_by_digits", Some("number_overflow")),
    ("largest_double", None),
    ("just_past_largest_double", Some("number_overflow")),
    ("underflow", None),
    ("beyond_2_53", None),
    ("beyond_u64", None),
    ("beyond_u64_by_one", None),
    ("below_i64", None),
    ("negative_zero", None),
    ("negative_zero_double", None),
    ("long_decimal", None),
    ("nan", Some("syntax")),
    ("infinity", Some("syntax")),
    ("negative_infinity", Some("syntax")),
    ("leading_zero", Some("syntax")),
    ("leading_plus", Some("syntax")),
    ("leading_dot", Some("syntax")),
    ("trailing_dot", Some("syntax")),
    ("empty_exponent", Some("syntax")),
    ("hexadecimal", Some("syntax")),
    ("digits_with_underscore", Some("syntax")),
    ("minus_alone", Some("syntax")),
    ("trailing_text", Some("trailing_bytes")),
    ("two_values", Some("trailing_bytes")),
    ("two_lines", Some("trailing_bytes")),
    ("trailing_null_byte", Some("trailing_bytes")),
    ("trailing_comma_object", Some("syntax")),
    ("trailing_comma_array", Some("syntax")),
    ("leading_comma", Some("syntax")),
    ("comment", Some("trailing_bytes")),
    ("block_comment", Some("syntax")),
    ("single_quotes", Some("syntax")),
    ("bare_key", Some("syntax")),
    ("number_key", Some("syntax")),
    ("raw_newline", Some("control_character")),
    ("raw_tab", Some("control_character")),
    ("raw_null_byte", Some("control_character")),
    ("raw_delete", None),
    ("raw_line_separator", None),
    ("unknown_escape", Some("syntax")),
    ("short_escape", Some("syntax")),
    ("escaped_solidus", None),
    ("form_feed_as_space", Some("syntax")),
    ("no_break_space_as_space", Some("syntax")),
    ("unclosed", Some("syntax")),
    ("unclosed_string", Some("syntax")),
    ("mismatched", Some("syntax")),
    ("empty", Some("empty")),
    ("white_space", Some("empty")),
    ("capital_literal", Some("syntax")),
    ("undefined", Some("syntax")),
    ("depth_127", None),
    ("depth_128", Some("too_deep")),
    ("depth_2000", Some("too_deep")),
];

/// Expected treatment of a whole result in mode `strict`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// Forwarded without validation: an error, or a result without a document.
    Passes,
    /// This document is validated.
    Asks(&'static str),
    /// Refused before validation, for this reason.
    Refused(&'static str),
    /// Not a usable message.
    Malformed,
}

use Found::{Asks, Malformed, Passes, Refused};

/// Expected treatment of the cases that are whole results.
const FINDINGS: &[(&str, Found)] = &[
    ("result_structured_twice", Refused("duplicate key structuredContent")),
    ("result_structured_twice_alike", Refused("duplicate key structuredContent")),
    ("result_structured_twice_escaped", Refused("duplicate key structuredContent")),
    ("result_structured_twice_escaped_first", Refused("duplicate key structuredContent")),
    ("result_structured_twice_around", Refused("duplicate key structuredContent")),
    ("result_structured_then_null", Refused("duplicate key structuredContent")),
    ("result_error_twice", Refused("duplicate key isError")),
    ("result_error_twice_last_true", Refused("duplicate key isError")),
    ("result_error_twice_escaped", Refused("duplicate key isError")),
    ("result_error_twice_alike", Refused("duplicate key isError")),
    ("result_content_twice", Refused("duplicate key content")),
    ("result_content_twice_escaped", Refused("duplicate key content")),
    ("result_meta_twice", Refused("duplicate key _meta")),
    ("result_type_twice", Refused("duplicate key resultType")),
    ("result_other_twice", Refused("duplicate key (other)")),
    ("result_other_twice_escaped", Refused("duplicate key (other)")),
    ("result_other_twice_by_pair", Refused("duplicate key (other)")),
    ("result_empty_name_twice", Refused("duplicate key (other)")),
    ("result_proto_twice", Refused("duplicate key (other)")),
    ("result_escaped_structured", Asks("1")),
    ("result_escaped_structured_wholly", Asks("1")),
    ("result_escaped_error", Passes),
    ("result_error_text", Refused("isError is not a boolean")),
    ("result_error_number", Refused("isError is not a boolean")),
    ("result_error_null", Refused("isError is not a boolean")),
    ("result_name_by_case", Refused("a key that differs from structuredContent only by case")),
    ("result_name_and_null_byte", Passes),
    ("result_name_and_space", Passes),
    ("result_name_by_normal_form", Passes),
    ("result_name_inside", Passes),
    ("result_name_as_value", Passes),
    ("result_lone_surrogate_in_name", Refused("lone surrogate in a key")),
    ("result_lone_surrogates_in_names", Refused("lone surrogate in a key")),
    ("result_invalid_utf8_in_name", Malformed),
    ("result_overlong_utf8_in_name", Malformed),
    ("result_structured_null", Asks("null")),
    ("result_twice_in_meta", Asks("1")),
    ("result_twice_in_structured", Asks(r#"{"a":1,"\u0061":2}"#)),
    ("result_trailing_comma", Malformed),
    ("result_comment", Malformed),
];

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
struct Row {
    case: String,
    bytes: String,
    python: Reading,
    javascript: Reading,
    #[serde(default)]
    serde_json: Reading,
    #[serde(default)]
    simd_json: Reading,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Reading {
    Reads(String),
    #[default]
    #[serde(with = "refusal")]
    Refuses,
}

/// A refusal is written as `{"refuses": true}`.
mod refusal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bool(true)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
        bool::deserialize(from).map(|_| ())
    }
}

#[test]
fn table_equals_the_values_that_the_parsers_read() {
    let mut rows = rows();
    let before = rows.clone();
    for row in &mut rows {
        let data = STANDARD.decode(&row.bytes).unwrap();
        row.serde_json =
            reading(serde_json::from_slice(&data).ok().map(|value: Value| value.to_string()));
        row.simd_json =
            reading(simd_json::to_owned_value(&mut data.clone()).ok().map(|value| value.encode()));
    }
    if std::env::var_os("WRITE_DIFFERENTIALS").is_some() {
        let lines: Vec<String> =
            rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        std::fs::write(path(), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    } else {
        assert_eq!(rows, before, "run tools/differentials/generate.py");
    }
}

#[test]
fn document_that_parsers_read_differently_is_rejected() {
    let verdicts: BTreeMap<&str, Option<&str>> = VERDICTS.iter().copied().collect();
    let rows = rows();
    assert_eq!(rows.len(), verdicts.len() + FINDINGS.len());
    for engine in [Engine::Tape, Engine::Boon] {
        let schema = compile(b"true", &Settings { engine, assert_formats: false }).unwrap();
        let mut scratch = JudgeScratch::new();
        for row in rows.iter().filter(|row| verdicts.contains_key(&*row.case)) {
            let data = Bytes::from(STANDARD.decode(&row.bytes).unwrap());
            let code = match schema.judge(&[data], &mut scratch).verdict {
                Verdict::Conforms => None,
                Verdict::Violates(violation) => Some(violation.reason.code()),
            };
            assert_eq!(code, verdicts[row.case.as_str()], "{} {engine:?}", row.case);
        }
    }
}

#[test]
fn fr_a14_document_that_parsers_read_differently_is_not_accepted_in_one_pass() {
    let verdicts: BTreeMap<&str, Option<&str>> = VERDICTS.iter().copied().collect();
    let schema = compile(b"true", &Settings::default()).unwrap();
    let mut scratch = JudgeScratch::new();
    let mut accepted = 0;
    for row in rows().iter().filter(|row| verdicts.contains_key(&*row.case)) {
        let data = STANDARD.decode(&row.bytes).unwrap();
        if schema.accepts_in_one_pass(&data, &mut scratch) {
            assert_eq!(verdicts[row.case.as_str()], None, "{}", row.case);
            accepted += 1;
        }
    }
    assert!(accepted > 10, "{accepted} rows accepted");
}

#[test]
fn result_that_parsers_read_differently_is_rejected() {
    let rows = rows();
    for (case, expected) in FINDINGS {
        let row = rows.iter().find(|row| row.case == *case).unwrap();
        let result = STANDARD.decode(&row.bytes).unwrap();
        let head = br#"{"jsonrpc":"2.0","id":7,"result":"#;
        let message = Bytes::from([head, &*result, b"}"].concat());
        let mut inspector = Inspector::new(Treatment::Hold, &Policy::default(), 7, 1);
        let ended = inspector.feed(&message).and_then(|_| inspector.end());
        let document = inspector.document().concat();
        let found = match (ended, inspector.finding(MissingContent::Allow)) {
            (Err(_), _) => *expected == Malformed,
            (Ok(_), Finding::Passes) => *expected == Passes,
            (Ok(_), Finding::AskTheSchema) => {
                matches!(expected, Asks(asked) if asked.as_bytes() == document)
            }
            (Ok(_), Finding::Fails(failure)) => {
                matches!(expected, Refused(reason) if *reason == failure.reason)
            }
        };
        assert!(found, "{case}: {expected:?} {:?}", inspector.finding(MissingContent::Allow));
        let all = [&row.python, &row.javascript, &row.serde_json, &row.simd_json];
        if matches!(expected, Passes | Asks(_)) {
            assert!(all.iter().all(|reading| **reading != Reading::Refuses), "{row:?}");
        }
    }
}

/// Passing documents are read by all four parsers. Numbers may differ in precision, which JSON does not specify.
#[test]
fn accepted_document_is_parsed_equally_by_every_parser() {
    let rows = rows();
    for (case, verdict) in VERDICTS {
        let row = rows.iter().find(|row| row.case == *case).unwrap();
        let all = [&row.python, &row.javascript, &row.serde_json, &row.simd_json];
        if verdict.is_none() {
            assert!(all.iter().all(|reading| **reading != Reading::Refuses), "{row:?}");
        }
    }
}

fn reading(text: Option<String>) -> Reading {
    match text {
        Some(text) if text.len() > 80 => {
            Reading::Reads(format!("{}...", text.chars().take(77).collect::<String>()))
        }
        Some(text) => Reading::Reads(text),
        None => Reading::Refuses,
    }
}

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE)
}

fn rows() -> Vec<Row> {
    match std::fs::read(path()) {
        Ok(text) => serde_json::from_slice(&text).unwrap(),
        Err(error) => panic!("{TABLE}: {error}"),
    }
}
