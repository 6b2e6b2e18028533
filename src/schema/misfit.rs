//! Misfits: violations that no program behind the schema can accept. These are a value of a wrong type, a missing required member and a
//! member that is not allowed. A null for an optional member is not a misfit.
//!
//! Other violations (`enum`, `pattern`, bounds, `not`, …) are not misfits, because a schema is often narrower than its program. Misfits are
//! extracted from the engines' reports on a refused document; nothing is evaluated here, and no text is produced.

use boon::{ErrorKind, ValidationError};
use jsonschema::error::{TypeKind, ValidationErrorKind};
use percent_encoding::percent_decode_str;

use super::declared::{CaseVariant, KeyConflict};
use super::required::RequiredMembers;
use super::unusable::{MAX_NAME_BYTES, MAX_PLACE_BYTES, cut};
use mcpproxy_json::pointer::token;

/// Maximum number of listed misfits of one document; further misfits are only counted.
pub(crate) const MAX_MISFITS: usize = 8;

/// Keyword of boon's reports on values that a failed evaluation left unevaluated: these are not misfits by themselves.
const UNEVALUATED: &str = "/unevaluated";

/// Misfit at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// JSON pointer into the document, truncated to `MAX_PLACE_BYTES`; for a missing member, the place where it belongs.
    pub place: String,
    /// JSON pointer to the violated subschema; for a member, the subschema of its object. `None` if it is outside of the schema (a
    /// meta-schema) or very long.
    pub schema: Option<String>,
    /// Kind of the misfit.
    pub fault: MisfitFault,
}

/// Kind of a misfit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MisfitFault {
    /// The value has another type.
    Type {
        /// Allowed types.
        expected: Vec<&'static str>,
        /// Actual type; `None` if it is not reported.
        got: Option<&'static str>,
    },
    /// The required member with this name is missing.
    Missing(String),
    /// The member with this name is not allowed.
    Unknown(String),
    /// The key is a case variant of this declared property.
    CaseVariant(String),
    /// A key may be a case variant but cannot be compared, for this reason.
    Uncompared(&'static str),
    /// Every alternative has a misfit.
    Alternatives,
}

/// Misfits of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misfits {
    /// The first [`MAX_MISFITS`] misfits.
    pub listed: Vec<Misfit>,
    /// Number of misfits.
    pub count: usize,
}

impl Misfits {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Misfit of a key that is, or may be, a case variant of a declared property.
    pub(super) fn of_key_conflict(conflict: KeyConflict) -> Self {
        let (place, fault) = match conflict {
            KeyConflict::Variant(CaseVariant { place, declared }) => {
                (place, MisfitFault::CaseVariant(declared))
            }
            KeyConflict::Uncompared(why) => (String::new(), MisfitFault::Uncompared(why)),
        };
        Self { listed: vec![Misfit { place, schema: None, fault }], count: 1 }
    }

    /// Misfits in boon's report. `base` is the schema's base URI for boon, `required` its required members.
    pub(super) fn of_boon(
        error: &ValidationError<'_, '_>,
        base: &str,
        required: &RequiredMembers,
    ) -> Self {
        let mut found = Self::default();
        found.collect_boon(error, base, required);
        found
    }

    /// Misfits in the single error of the tape engine; `null_at` returns whether the document has a null at a place.
    pub(super) fn of_tape(
        error: &jsonschema::ValidationError<'_>,
        required: &RequiredMembers,
        null_at: &dyn Fn(&str) -> bool,
    ) -> Self {
        let mut found = Self::default();
        found.collect_tape(error, required, null_at);
        found
    }

    /// Follows conjunctions; every alternative of a disjunction must have a misfit.
    fn collect_boon(
        &mut self,
        error: &ValidationError<'_, '_>,
        base: &str,
        required: &RequiredMembers,
    ) {
        let url = error.schema_url;
        if url.contains(UNEVALUATED) {
            return;
        }
        let schema = url.strip_prefix(base).map(|path| path.strip_prefix('#').unwrap_or(path));
        let schema = schema.and_then(|path| percent_decode_str(path).decode_utf8().ok());
        let at = || Spot::new(error.instance_location.to_string(), schema.as_deref());
        match &error.kind {
            ErrorKind::Type { got, want } => {
                let place = || error.instance_location.to_string();
                if *got == boon::Type::Null && required.may_lack(&place(), schema.as_deref()) {
                    return;
                }
                let expected = want.iter().map(type_name).collect();
                self.add(at().with(MisfitFault::Type { expected, got: Some(type_name(*got)) }));
            }
            ErrorKind::Required { want } => {
                let at = at();
                want.iter().for_each(|name| self.add(at.member(name, MisfitFault::Missing)));
            }
            ErrorKind::AdditionalProperties { got } => {
                let at = at();
                got.iter().for_each(|name| self.add(at.member(name, MisfitFault::Unknown)));
            }
            ErrorKind::AnyOf | ErrorKind::OneOf(None) => {
                let branches =
                    error.causes.iter().map(|cause| Self::of_boon(cause, base, required));
                self.add_alternatives(branches.collect(), at());
            }
            ErrorKind::Group
            | ErrorKind::Schema { .. }
            | ErrorKind::Reference { .. }
            | ErrorKind::AllOf => {
                error.causes.iter().for_each(|cause| self.collect_boon(cause, base, required));
            }
            _ => {}
        }
    }

    fn collect_tape(
        &mut self,
        error: &jsonschema::ValidationError<'_>,
        required: &RequiredMembers,
        null_at: &dyn Fn(&str) -> bool,
    ) {
        use ValidationErrorKind as Kind;
        // The keyword is the last part of the path.
        let (schema, keyword) = error.schema_path().as_str().rsplit_once('/').unzip();
        let at = || Spot::new(error.instance_path().as_str().to_owned(), schema);
        match error.kind() {
            Kind::Type { kind } => {
                let place = error.instance_path().as_str();
                let is_null = null_at(place);
                if is_null && required.may_lack(place, schema) {
                    return;
                }
                let expected = match kind {
                    TypeKind::Single(want) => vec![want.as_str()],
                    TypeKind::Multiple(want) => {
                        want.iter().map(jsonschema::JsonType::as_str).collect()
                    }
                };
                self.add(at().with(MisfitFault::Type { expected, got: is_null.then_some("null") }));
            }
            // The engine reports violations of `dependentRequired` with the same kind.
            Kind::Required { property } if keyword == Some("required") => {
                let name = property.as_str().unwrap_or_default();
                self.add(at().member(name, MisfitFault::Missing));
            }
            Kind::AdditionalProperties { unexpected } => {
                let at = at();
                unexpected.iter().for_each(|name| self.add(at.member(name, MisfitFault::Unknown)));
            }
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
                let branches = context.iter().map(|errors| {
                    let mut found = Self::default();
                    errors.iter().for_each(|error| found.collect_tape(error, required, null_at));
                    found
                });
                self.add_alternatives(branches.collect(), at());
            }
            // Other kinds of violations are not misfits.
            _ => {}
        }
    }

    fn add(&mut self, misfit: Misfit) {
        self.count += 1;
        if self.listed.len() < MAX_MISFITS {
            self.listed.push(misfit);
        }
    }

    /// Adds the misfits of `branches`, the alternatives at a place. Does nothing if one of the branches has none.
    fn add_alternatives(&mut self, branches: Vec<Self>, at: Spot) {
        if branches.is_empty() || branches.iter().any(Self::is_empty) {
            return;
        }
        let another_type = |branch: &Self| match branch.listed.as_slice() {
            [Misfit { place, fault: MisfitFault::Type { expected, got }, .. }]
                if branch.count == 1 && *place == at.place =>
            {
                Some((expected.clone(), *got))
            }
            _ => None,
        };
        let (mut expected, mut got, mut meant) = (Vec::new(), None, Vec::new());
        for branch in branches {
            match another_type(&branch) {
                Some((types, has)) => {
                    got = has;
                    let new: Vec<_> =
                        types.into_iter().filter(|name| !expected.contains(name)).collect();
                    expected.extend(new);
                }
                None => meant.push(branch),
            }
        }
        match meant.len() {
            0 => self.add(at.with(MisfitFault::Type { expected, got })),
            // If only one alternative has this type, it is the intended one.
            1 => {
                for Self { listed, count } in meant {
                    let remaining = MAX_MISFITS.saturating_sub(self.listed.len());
                    self.listed.extend(listed.into_iter().take(remaining));
                    self.count += count;
                }
            }
            _ => self.add(at.with(MisfitFault::Alternatives)),
        }
    }
}

/// Bounded place in document and schema.
struct Spot {
    place: String,
    schema: Option<String>,
}

impl Spot {
    fn new(place: String, schema: Option<&str>) -> Self {
        let whole = |schema: &&str| schema.len() <= MAX_PLACE_BYTES;
        Self {
            place: cut(&place, MAX_PLACE_BYTES).to_owned(),
            schema: schema.filter(whole).map(str::to_owned),
        }
    }

    fn with(self, fault: MisfitFault) -> Misfit {
        Misfit { place: self.place, schema: self.schema, fault }
    }

    fn member(&self, name: &str, fault: impl Fn(String) -> MisfitFault) -> Misfit {
        let name = cut(name, MAX_NAME_BYTES);
        let place = format!("{}/{}", self.place, token(name));
        Misfit { place, schema: self.schema.clone(), fault: fault(name.to_owned()) }
    }
}

fn type_name(of: boon::Type) -> &'static str {
    match of {
        boon::Type::Null => "null",
        boon::Type::Boolean => "boolean",
        boon::Type::Number => "number",
        boon::Type::Integer => "integer",
        boon::Type::String => "string",
        boon::Type::Array => "array",
        boon::Type::Object => "object",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::compile::{Settings, compile};
    use super::super::judge::{JudgeScratch, Verdict};
    use super::*;

    fn found(schema: &str, document: &str) -> Misfits {
        let schema = compile(schema.as_bytes(), &Settings::default()).unwrap();
        let document = Bytes::copy_from_slice(document.as_bytes());
        match schema.judge(&[document], &mut JudgeScratch::new()).verdict {
            Verdict::Conforms => panic!("it conforms"),
            Verdict::Violates(violation) => violation.misfits,
        }
    }

    /// Misfits in short form.
    fn misfits(schema: &str, document: &str) -> Vec<String> {
        let found = found(schema, document);
        let word = |misfit: &Misfit| match &misfit.fault {
            MisfitFault::Type { expected, .. } => expected.join("|"),
            MisfitFault::Missing(_) => "missing".to_owned(),
            MisfitFault::Unknown(_) => "unknown".to_owned(),
            MisfitFault::CaseVariant(name) => format!("case variant of {name}"),
            MisfitFault::Uncompared(_) => "uncompared".to_owned(),
            MisfitFault::Alternatives => "alternatives".to_owned(),
        };
        found.listed.iter().map(|misfit| format!("{} {}", misfit.place, word(misfit))).collect()
    }

    /// Same as [`misfits`], with a pattern that boon refuses, so that only the tape engine is used.
    fn misfits_by_tape(schema: &str, document: &str) -> Vec<String> {
        let rest = schema.strip_prefix('{').unwrap();
        let schema = format!(r#"{{"allOf":[{{"pattern":"^(?!never)"}}],{rest}"#);
        let schema = match rest.contains("\"allOf\"") {
            true => format!(r#"{{"anyOf":[{{"pattern":"^(?!never)"}}],{rest}"#),
            false => schema,
        };
        misfits(&schema, document)
    }

    #[test]
    fn misfits_are_found_at_their_places() {
        for (schema, document, expected) in [
            (r#"{"type":"integer"}"#, "\"a\"", " integer"),
            (r#"{"type":["integer","null"]}"#, "\"a\"", " null|integer"),
            (
                r#"{"properties":{"a":{"items":{"type":"string"}}}}"#,
                r#"{"a":["x",1]}"#,
                "/a/1 string",
            ),
            (r#"{"required":["a/b"]}"#, "{}", "/a~1b missing"),
            (r#"{"properties":{"a":{}},"additionalProperties":false}"#, r#"{"b":1}"#, "/b unknown"),
            (r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"null"}}}"##, "1", " null"),
            (r#"{"allOf":[{"type":"object"},{"required":["a"]}]}"#, "{}", "/a missing"),
            (r#"{"anyOf":[{"type":"integer"},{"type":"null"}]}"#, "\"a\"", " integer|null"),
            (
                r#"{"anyOf":[{"type":"object","required":["a"]},{"type":"null"}]}"#,
                "{}",
                "/a missing",
            ),
            (r#"{"oneOf":[{"required":["a"]},{"required":["b"]}]}"#, "{}", " alternatives"),
            (r#"{"if":{"required":["k"]},"then":{"required":["a"]}}"#, r#"{"k":1}"#, "/a missing"),
        ] {
            let with = |listed: Vec<String>| {
                listed.into_iter().map(|it| it.replace("integer|null", "null|integer")).collect()
            };
            let expected: Vec<String> = with(vec![expected.to_owned()]);
            assert_eq!(with(misfits(schema, document)), expected, "{schema} {document}");
            let by_tape: Vec<String> = with(misfits_by_tape(schema, document));
            assert_eq!(by_tape, expected, "by tape: {schema} {document}");
        }
    }

    #[test]
    fn violations_that_a_program_may_accept_are_not_misfits() {
        for (schema, document) in [
            (r#"{"enum":["a","b"]}"#, "\"c\""),
            (r#"{"const":1}"#, "2"),
            (r#"{"pattern":"^a"}"#, "\"b\""),
            (r#"{"minimum":3}"#, "2"),
            (r#"{"maxLength":1}"#, "\"ab\""),
            (r#"{"uniqueItems":true}"#, "[1,1]"),
            (r#"{"not":{"type":"string"}}"#, "\"a\""),
            (r#"{"oneOf":[{"type":"string"},{"minLength":1}]}"#, "\"a\""),
            (r#"{"anyOf":[{"type":"integer"},{"pattern":"^a"}]}"#, "\"b\""),
            (r#"{"contains":{"type":"integer"}}"#, "[\"a\"]"),
            (r#"{"propertyNames":{"type":"integer"}}"#, r#"{"a":1}"#),
            (r#"{"properties":{"a":false}}"#, r#"{"a":1}"#),
            (r#"{"unevaluatedProperties":{"type":"null"}}"#, r#"{"a":1}"#),
            (r#"{"dependentRequired":{"a":["b"]}}"#, r#"{"a":1}"#),
        ] {
            assert_eq!(misfits(schema, document), [""; 0], "{schema} {document}");
            assert_eq!(misfits_by_tape(schema, document), [""; 0], "by tape: {schema} {document}");
        }
    }

    #[test]
    fn null_for_an_optional_member_is_not_a_misfit() {
        let schema = r##"{"properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"anyOf":[{"type":"integer"},{"type":"string"}]},
            "d":{"properties":{"e":{"type":"string"}},"required":["e"]},"f":{"items":{"type":"string"}},"g/h":{"$ref":"#/$defs/g"}},
            "required":["b"],"$defs":{"g":{"type":"integer"}}}"##;
        for (document, count) in [
            (r#"{"a":null,"b":"x","c":null,"g/h":null}"#, 0),
            (r#"{"b":null}"#, 1),
            (r#"{"a":7,"b":"x"}"#, 1),
            (r#"{"a":null,"b":null,"c":null}"#, 1),
            (r#"{"b":"x","d":{"e":null}}"#, 1),
            (r#"{"b":"x","f":[null]}"#, 1),
        ] {
            let left = found(schema, document);
            assert_eq!((left.count, left.listed.len()), (count, count), "{document}: {left:?}");
        }
        // The tape engine reports only one violation.
        for (document, listed) in
            [(r#"{"a":null}"#, None), (r#"{"need":null}"#, Some("/need integer"))]
        {
            let schema = r#"{"properties":{"a":{"type":"string"},"need":{"type":"integer"}}}"#;
            let required = schema.replace("}}}", r#"}},"required":["need"]}"#);
            let schema = if listed.is_some() { &*required } else { schema };
            assert_eq!(misfits_by_tape(schema, document), Vec::from_iter(listed), "{document}");
        }
    }

    #[test]
    fn misfits_are_independent_of_the_number_of_nulls() {
        let optional = |at: usize| format!(r#""o{at}":{{"type":"string"}}"#);
        let optional: Vec<_> = (0..300).map(optional).collect();
        let schema = format!(
            r#"{{"properties":{{{},"z":{{"type":"integer"}}}},"required":["z"]}}"#,
            optional.join(",")
        );
        for nulls in [MAX_MISFITS, MAX_MISFITS + 1, 300] {
            let nulls: Vec<_> = (0..nulls).map(|at| format!(r#""o{at}":null"#)).collect();
            let nulls = nulls.join(",");
            assert_eq!(found(&schema, &format!(r#"{{{nulls},"z":1}}"#)), Misfits::default());
            let wrong = format!(r#"{{{nulls},"z":"x"}}"#);
            assert_eq!(misfits(&schema, &wrong), ["/z integer"]);
            assert_eq!(found(&schema, &wrong).count, 1);
            assert_eq!(misfits(&schema, &format!("{{{nulls}}}")), ["/z missing"]);
        }
        // Alternatives that are violated only by these nulls may be accepted.
        let either = r#"{"anyOf":[{"properties":{"a":{"type":"string"}}},{"required":["k"]}]}"#;
        assert_eq!(misfits(either, r#"{"a":null}"#), [""; 0]);
    }

    #[test]
    fn misfits_beyond_the_maximum_are_counted() {
        let document = format!("[{}]", vec!["1"; 100].join(","));
        let found = found(r#"{"items":{"type":"string"}}"#, &document);
        assert_eq!((found.listed.len(), found.count), (MAX_MISFITS, 100));
        let long = format!("{{\"{}\":1}}", "é".repeat(1000));
        let place = misfits(r#"{"additionalProperties":false}"#, &long).remove(0);
        assert!(place.len() < MAX_NAME_BYTES + 20, "{place}");
    }

    #[test]
    fn schema_pointer_begins_at_the_root() {
        let schema = r##"{"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"null"}}}"##;
        assert_eq!(found(schema, r#"{"a":1}"#).listed[0].schema.as_deref(), Some("/$defs/n"));
        let apart = r#"{"properties":{"a":{"$id":"https://x.example/","type":"null"}}}"#;
        let found = found(apart, r#"{"a":1}"#);
        assert_eq!(found.listed[0].schema.as_deref(), Some("/properties/a"));
    }
}
