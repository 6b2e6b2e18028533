//! Portability check for listed output schemas: whether clients' validators can compile them. Pure.
//!
//! Some clients compile the output schemas of a list, such as the TypeScript SDK with Ajv, and reject the whole list
//! because of one schema that they cannot compile. The engines of the proxy accept more: other dialects of patterns,
//! circular references, and keywords that only Ajv defines. A schema that not all validators accept is not listed, but
//! results are still validated against it.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Maximum length of a chain of references. A longer chain is treated as a loop.
const MAX_REFERENCES: usize = 64;

/// Keywords whose value is one schema, or an array of schemas.
const APPLICATORS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an object of schemas.
const NAMED_APPLICATORS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords of the Ajv plug-in `ajv-formats`; each requires `format` in the same schema.
const FORMAT_LIMITS: [&str; 4] =
    ["formatMinimum", "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum"];

/// Reason why clients may fail to compile this schema. The `$id` at its root is not listed.
pub(crate) fn fault(schema: &str) -> Option<String> {
    // If a schema is too deep for this parser, it is too deep for others.
    let Ok(root) = serde_json::from_str::<Value>(schema) else {
        return Some("is nested too deeply".to_owned());
    };
    of_schema(&root, &root)
}

fn of_schema(schema: &Value, root: &Value) -> Option<String> {
    let Value::Object(members) = schema else { return None };
    let is_root = std::ptr::eq(schema, root);
    of_keywords(members, is_root).or_else(|| of_reference(members, root)).or_else(|| {
        members.iter().find_map(|(name, value)| match (name.as_str(), value) {
            (name, Value::Array(all)) if APPLICATORS.contains(&name) => {
                all.iter().find_map(|each| of_schema(each, root))
            }
            (name, _) if APPLICATORS.contains(&name) => of_schema(value, root),
            (name, Value::Object(all)) if NAMED_APPLICATORS.contains(&name) => {
                all.values().find_map(|each| of_schema(each, root))
            }
            _ => None,
        })
    })
}

/// Keywords that Ajv refuses.
fn of_keywords(members: &Map<String, Value>, is_root: bool) -> Option<String> {
    if members.contains_key("id") {
        return Some("has the keyword id".to_owned());
    }
    if !is_root && members.contains_key("$id") {
        return Some("has an $id within it".to_owned());
    }
    if members.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        return Some("has an empty enum".to_owned());
    }
    if let Some(nullable) = members.get("nullable") {
        let is_typed = members.contains_key("type");
        if !nullable.is_boolean() || !is_typed || *nullable == Value::Bool(false) {
            return Some("has nullable without a type, or with a value other than true".to_owned());
        }
    }
    let is_schema = |value: &Value| value.is_object() || value.is_boolean();
    for name in ["additionalItems", "if", "then", "else"] {
        if members.get(name).is_some_and(|value| !is_schema(value)) {
            return Some(format!("has {name} that is not a schema"));
        }
    }
    if let Some(name) = FORMAT_LIMITS.iter().find(|name| members.contains_key(**name)) {
        return Some(format!("has {name}"));
    }
    let keys = members.get("patternProperties").and_then(Value::as_object);
    let keys = keys.into_iter().flat_map(Map::keys).map(String::as_str);
    let mut patterns = members.get("pattern").and_then(Value::as_str).into_iter().chain(keys);
    patterns.any(|pattern| !is_portable_pattern(pattern)).then(|| {
        "has a pattern that is not known to be valid in ECMAScript with the flag u".to_owned()
    })
}

/// Fault of a reference: it must stay within the schema and must not be part of a loop.
fn of_reference(members: &Map<String, Value>, root: &Value) -> Option<String> {
    let mut reference = members.get("$ref")?.as_str()?;
    for _ in 0..MAX_REFERENCES {
        let Some(pointer) = reference.strip_prefix('#').filter(|it| !it.contains('%')) else {
            return Some("has a $ref out of the schema, or a $ref with percent signs".to_owned());
        };
        let first = pointer.split('/').nth(1);
        let is_keyword =
            |name: &str| NAMED_APPLICATORS.contains(&name) || APPLICATORS.contains(&name);
        if first.is_some_and(|name| !is_keyword(name)) {
            return Some("has a $ref to a place without a schema".to_owned());
        }
        match root.pointer(pointer).and_then(|target| target.get("$ref")?.as_str()) {
            Some(next) => reference = next,
            None => return None,
        }
    }
    Some("has a $ref that leads back to itself".to_owned())
}

/// Whether a pattern is valid in ECMAScript with the flag `u`. Some valid patterns are not recognized: references to
/// groups and most Unicode properties.
fn is_portable_pattern(pattern: &str) -> bool {
    let chars: Vec<char> = pattern.chars().collect();
    PatternReader { rest: &chars }.read().is_some()
}

/// Parser of a pattern; its functions return `None` for invalid input.
struct PatternReader<'a> {
    rest: &'a [char],
}

/// A unit of a character class, or an escape.
enum Unit {
    Char(char),
    /// A class such as `\d` or `\p{L}`, which cannot be the end of a range.
    Set,
    /// An assertion, `\b` or `\B`, which cannot be repeated.
    Boundary,
}

impl PatternReader<'_> {
    fn read(&mut self) -> Option<()> {
        // For each open group, whether it can be repeated after it is closed.
        let mut groups = Vec::new();
        let mut names = HashSet::new();
        let mut is_repeatable = false;
        while let Some(char) = self.next() {
            is_repeatable = match char {
                '^' | '$' | '|' => false,
                '(' => {
                    groups.push(self.group(&mut names)?);
                    false
                }
                ')' => groups.pop()?,
                '*' | '+' | '?' if is_repeatable => self.lazy(),
                '{' if is_repeatable => {
                    self.count()?;
                    self.lazy()
                }
                '*' | '+' | '?' | '{' | '}' | ']' => return None,
                '[' => self.class()?,
                '\\' => !matches!(self.escape(false)?, Unit::Boundary),
                _ => true,
            };
        }
        groups.is_empty().then_some(())
    }

    fn next(&mut self) -> Option<char> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, text: &str) -> bool {
        let count = text.chars().count();
        let found = self.rest.get(..count).is_some_and(|it| it.iter().copied().eq(text.chars()));
        if found {
            self.rest = self.rest.get(count..).unwrap_or_default();
        }
        found
    }

    /// Returns the characters up to `end`, which is skipped.
    fn until(&mut self, end: char) -> Option<String> {
        let at = self.rest.iter().position(|char| *char == end)?;
        let text = self.rest.get(..at)?.iter().collect();
        self.rest = self.rest.get(at + 1..)?;
        Some(text)
    }

    /// Skips the mark of a lazy repetition, which cannot be repeated.
    fn lazy(&mut self) -> bool {
        self.skip("?");
        false
    }

    /// Reads the rest of a group's opening. Returns whether the group can be repeated.
    fn group(&mut self, names: &mut HashSet<String>) -> Option<bool> {
        if !self.skip("?") || self.skip(":") {
            return Some(true);
        }
        if ["=", "!", "<=", "<!"].iter().any(|look| self.skip(look)) {
            return Some(false);
        }
        let name = self.skip("<").then(|| self.until('>'))??;
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
        (is_name && names.insert(name)).then_some(true)
    }

    /// Reads `n}`, `n,}` or `n,m}`.
    fn count(&mut self) -> Option<()> {
        let text = self.until('}')?;
        let number = |digits: &str| {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { digits.parse::<u32>().ok() } else { None }
        };
        let is_valid = match text.split_once(',') {
            None => number(&text).is_some(),
            Some((min, "")) => number(min).is_some(),
            Some((min, max)) => number(min)? <= number(max)?,
        };
        is_valid.then_some(())
    }

    /// Reads the rest of a character class.
    fn class(&mut self) -> Option<bool> {
        self.skip("^");
        loop {
            let Some(low) = self.unit()? else { return Some(true) };
            let is_range = self.rest.first() == Some(&'-') && self.rest.get(1) != Some(&']');
            if is_range {
                self.next();
                match (low, self.unit()??) {
                    (Unit::Char(low), Unit::Char(high)) if low <= high => {}
                    _ => return None,
                }
            }
        }
    }

    /// Reads the next unit of a class; `Some(None)` at its end.
    fn unit(&mut self) -> Option<Option<Unit>> {
        match self.next()? {
            ']' => Some(None),
            '\\' => self.escape(true).map(Some),
            char => Some(Some(Unit::Char(char))),
        }
    }

    /// Reads the rest of an escape.
    fn escape(&mut self, in_class: bool) -> Option<Unit> {
        let control = |code: u8| Some(Unit::Char(char::from(code)));
        match self.next()? {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' => Some(Unit::Set),
            'p' | 'P' => {
                let name = self.skip("{").then(|| self.until('}'))??;
                PROPERTIES.contains(&name.as_str()).then_some(Unit::Set)
            }
            'b' if in_class => control(8),
            'b' | 'B' if !in_class => Some(Unit::Boundary),
            't' => control(9),
            'n' => control(10),
            'v' => control(11),
            'f' => control(12),
            'r' => control(13),
            '0' if !self.rest.first().is_some_and(char::is_ascii_digit) => control(0),
            'x' => self.hex(2),
            'u' if self.skip("{") => hex(&self.until('}')?),
            'u' => self.hex(4),
            '-' if in_class => Some(Unit::Char('-')),
            char if r"^$\.*+?()[]{}|/".contains(char) => Some(Unit::Char(char)),
            _ => None,
        }
    }

    fn hex(&mut self, digits: usize) -> Option<Unit> {
        let text: String = self.rest.get(..digits)?.iter().collect();
        self.rest = self.rest.get(digits..)?;
        hex(&text)
    }
}

fn hex(digits: &str) -> Option<Unit> {
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let code = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    char::from_u32(code).map(Unit::Char)
}

/// Unicode properties that every engine supports.
const PROPERTIES: [&str; 20] = [
    "L",
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "M",
    "Mn",
    "N",
    "Nd",
    "Nl",
    "No",
    "P",
    "S",
    "Z",
    "Zs",
    "C",
    "Cc",
    "Letter",
    "Alphabetic",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_portable_if_ecmascript_accepts_it_with_the_u_flag() {
        for pattern in [
            "",
            r"^[a-zA-Z0-9_-]{1,64}$",
            r"^\d{4}-\d{2}(?:\.\d+)?$",
            r"[\w\-\.]+@[^\s@]+\.\w{2,}?",
            r"(?<year>\d{4})|(?=a)b(?!c)(?<=d)(?<!e)",
            r"\u0041\u{1F600}\x41\p{L}[\p{Lu}\-]\/\0",
            r"[]|[^]|[a-z&&b]|[[]",
            "a*?b+?c??|é|😀+",
        ] {
            assert!(is_portable_pattern(pattern), "{pattern}");
        }
        for pattern in [
            r"^\d{4}\-\d{2}$",
            "(?i)x",
            "(?P<n>x)",
            r"\Ax\Z",
            r"\_",
            "]",
            "}",
            "{",
            "a{1",
            "a{,2}",
            "a{2,1}",
            "a{+1}",
            "a**",
            "a++",
            "^*",
            "(?=a)*",
            r"\b+",
            "(",
            ")",
            "[",
            "[z-a]",
            r"[\d-z]",
            "[[:alpha:]]",
            r"\pL",
            r"\p{IsGreek}",
            r"\x{41}",
            r"\u00",
            r"\u+041",
            r"\u{+41}",
            r"\ud800",
            r"\01",
            "(?<a>x)(?<a>y)",
            "(?x) a",
            "\\",
        ] {
            assert!(!is_portable_pattern(pattern), "{pattern}");
        }
    }

    #[test]
    fn def_6_schema_that_clients_cannot_compile_has_a_fault() {
        for schema in [
            r##"{"properties":{"a":{"$ref":"#"},"b":{"$ref":"#/$defs/x"}},"$defs":{"x":{"items":{"$ref":"#/$defs/x"}}}}"##,
            r#"{"properties":{"id":{"type":"string","nullable":true},"enum":{},"$id":{}},"const":{"id":1}}"#,
            r#"{"$id":"http://a/b","patternProperties":{"^x-":{}},"additionalProperties":false}"#,
            r##"{"properties":{"a":{"$ref":"#name"}},"$defs":{"x":{"$anchor":"name"}}}"##,
        ] {
            assert_eq!(fault(schema), None, "{schema}");
        }
        for (schema, reason) in [
            (r##"{"properties":{"a":{"$ref":"#/properties/a"}}}"##, "has a $ref that leads back"),
            (
                r##"{"items":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"$ref":"#/$defs/y"},"y":{"$ref":"#/$defs/x"}}}"##,
                "has a $ref that leads back",
            ),
            (
                r#"{"not":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}"#,
                "has a $ref out",
            ),
            (r##"{"not":{"$ref":"#/properties/%61"}}"##, "has a $ref out"),
            (r##"{"not":{"$ref":"#/x"},"x":{}}"##, "has a $ref to a place without"),
            (r#"{"properties":{"a":{"$id":"b"}}}"#, "has an $id within it"),
            (r#"{"properties":{"a":{"id":"b"}}}"#, "has the keyword id"),
            (r#"{"properties":{"a":{"nullable":true}}}"#, "has nullable without"),
            (r#"{"anyOf":[{"type":"null","nullable":false}]}"#, "has nullable without"),
            (r#"{"if":7}"#, "has if that is not a schema"),
            (r#"{"allOf":[{"enum":[]}]}"#, "has an empty enum"),
            (r#"{"$defs":{"a":{"formatMinimum":"2026-01-01"}}}"#, "has formatMinimum"),
            (r#"{"properties":{"a":{"pattern":"(?i)a"}}}"#, "has a pattern"),
            (r#"{"patternProperties":{"\\A":{}}}"#, "has a pattern"),
        ] {
            let found = fault(schema).unwrap_or_default();
            assert!(found.starts_with(reason), "{schema}: {found}");
        }
        let deep = format!("{}{{}}{}", r#"{"not":"#.repeat(200), "}".repeat(200));
        assert_eq!(fault(&deep).as_deref(), Some("is nested too deeply"));
    }
}
