//! A config file's text parsed as one JSON object, with the position of each value.
//!
//! Syntax: JSON with comments and trailing commas, as in VS Code. The root is exactly one object. Duplicate keys are
//! rejected, since either of two servers with the same name could be the intended one.

use crate::problem::{KeyPath, PathStep, Place, Problem, Severity};
use jsonc_parser::ast::{Object, Value as Node};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;

/// The syntax that VS Code allows in its own files.
const FORM: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Problem of a text that is not JSON, or is another JSON value.
const NO_OBJECT: &str = "the config must be a JSON object, { … }";

/// A text with its syntax tree.
#[derive(Debug, Default)]
pub(super) struct ConfigDocument<'t> {
    text: &'t str,
    root: Option<Object<'t>>,
}

impl<'t> ConfigDocument<'t> {
    /// Parses a text; a blank one is an empty object. Errors go to `problems`; an unparsable text yields an empty
    /// object.
    pub(super) fn parse(text: &'t str, problems: &mut Vec<Problem>) -> (Self, Map<String, Value>) {
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reading = Reading { text, problems };
        let parsed = match parse_to_ast(text, &CollectOptions::default(), &FORM) {
            Ok(parsed) => parsed.value,
            Err(error) => {
                let start = error.range().start;
                let is_object = text.get(start..).is_some_and(|rest| rest.starts_with('{'));
                match text.get(..start).is_some_and(|before| before.trim_ascii().is_empty()) {
                    true if is_object => {
                        reading.wrong(start, "the object is not closed: '}' is missing")
                    }
                    true => reading.wrong(start, NO_OBJECT),
                    false => reading.wrong(start, &error.kind().to_string()),
                }
                return (Self { text, root: None }, Map::new());
            }
        };
        let root = match parsed {
            Some(Node::Object(root)) => Some(root),
            Some(other) => {
                reading.wrong(other.start(), NO_OBJECT);
                None
            }
            None => None,
        };
        let read = root.as_ref().map(|root| reading.object(root, &KeyPath::default()));
        (Self { text, root }, read.unwrap_or_default())
    }

    /// Position of the value at `path`; for a missing value, of its closest existing parent.
    pub(super) fn place(&self, path: &KeyPath) -> Place {
        self.find(path, |_, value| value.start())
    }

    /// Position of the key at `path`.
    pub(super) fn key_place(&self, path: &KeyPath) -> Place {
        self.find(path, |key, value| key.unwrap_or(value.start()))
    }

    /// Follows `path`; `start` selects the reported offset from the key's offset and the value.
    fn find(&self, path: &KeyPath, start: impl Fn(Option<usize>, &Node<'_>) -> usize) -> Place {
        let mut node: Option<&Node<'_>> = None;
        let mut at = self.root.as_ref().map_or(0, Ranged::start);
        for step in &path.0 {
            let object = match node {
                None => self.root.as_ref(),
                Some(Node::Object(object)) => Some(object),
                Some(_) => None,
            };
            let found = match (step, node) {
                (PathStep::Key(key), _) => {
                    let property = object.and_then(|it| it.get(key));
                    property.map(|it| (Some(it.start()), &it.value))
                }
                (PathStep::Element(at), Some(Node::Array(array))) => {
                    array.elements.get(*at).map(|it| (None, it))
                }
                (PathStep::Element(_), _) => None,
            };
            let Some((key, found)) = found else { break };
            (node, at) = (Some(found), start(key, found));
        }
        place(self.text, at)
    }

    /// The value at `path`; `None` for the root.
    pub(super) fn node(&self, path: &KeyPath) -> Option<&Node<'t>> {
        let (first, rest) = path.0.split_first()?;
        let PathStep::Key(first) = first else { return None };
        let first = &self.root.as_ref()?.get(first)?.value;
        rest.iter().try_fold(first, |node, step| match (step, node) {
            (PathStep::Key(key), Node::Object(object)) => object.get(key).map(|it| &it.value),
            (PathStep::Element(at), Node::Array(array)) => array.elements.get(*at),
            (PathStep::Key(_) | PathStep::Element(_), _) => None,
        })
    }

    pub(super) fn root(&self) -> Option<&Object<'t>> {
        self.root.as_ref()
    }
}

fn place(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    Place { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
}

/// Converts the syntax tree to values and reports syntax that JSON does not allow.
struct Reading<'t, 'p> {
    text: &'t str,
    problems: &'p mut Vec<Problem>,
}

impl Reading<'_, '_> {
    fn wrong(&mut self, at: usize, text: &str) {
        self.wrong_at(at, "", text);
    }

    fn wrong_at(&mut self, at: usize, key: &str, text: &str) {
        let (key, text, place) = (key.to_owned(), text.to_owned(), Some(place(self.text, at)));
        let severity = Severity::Error;
        self.problems.push(Problem { severity, file: None, place, key, text });
    }

    fn object(&mut self, object: &Object<'_>, path: &KeyPath) -> Map<String, Value> {
        let mut members = Map::new();
        for property in &object.properties {
            let key = property.name.as_str();
            let member_path = path.key(key);
            self.string(property.name.range().start, property.name.range().end, &member_path);
            if members.contains_key(key) {
                let text = match path.to_string().as_str() {
                    servers @ ("mcpServers" | "servers") => {
                        format!("{servers}: duplicate server name '{key}'")
                    }
                    _ => format!("duplicate key '{member_path}': keep one"),
                };
                self.wrong_at(property.start(), &member_path.to_string(), &text);
                continue;
            }
            let value = self.value(&property.value, &member_path);
            members.insert(key.to_owned(), value);
        }
        members
    }

    fn value(&mut self, node: &Node<'_>, path: &KeyPath) -> Value {
        match node {
            Node::NullKeyword(_) => Value::Null,
            Node::BooleanLit(literal) => literal.value.into(),
            Node::StringLit(literal) => {
                self.string(literal.range.start, literal.range.end, path);
                literal.value.as_ref().into()
            }
            Node::NumberLit(literal) => serde_json::from_str(literal.value).unwrap_or_else(|_| {
                let text = format!("{path}: {} is not a JSON number", literal.value);
                self.wrong_at(literal.range.start, &path.to_string(), &text);
                Value::Null
            }),
            Node::Array(array) => {
                let elements = array.elements.iter().enumerate();
                elements.map(|(at, element)| self.value(element, &path.element(at))).collect()
            }
            Node::Object(object) => Value::Object(self.object(object, path)),
        }
    }

    /// Reports a control character in a string, which JSON does not allow. The usual cause is a missing quote.
    fn string(&mut self, from: usize, to: usize, path: &KeyPath) {
        let raw = self.text.get(from..to).unwrap_or_default();
        if let Some(bare) = raw.find(|letter| letter < ' ') {
            let text =
                format!("{path}: line break or control character in a string: is a quote missing?");
            self.wrong_at(from + bare, &path.to_string(), &text);
        }
    }
}

/// Maximum number of collected problems of one config.
pub(super) const MAX_PROBLEMS: usize = 200;

/// Problems found so far in one document.
#[derive(Debug)]
pub(super) struct Findings<'t> {
    document: ConfigDocument<'t>,
    /// Pairs of a path as read and the same path as written in the file.
    renamed: Vec<(KeyPath, KeyPath)>,
    errors: Vec<KeyPath>,
    problems: Vec<Problem>,
}

impl<'t> Findings<'t> {
    pub(super) fn new(document: ConfigDocument<'t>, problems: Vec<Problem>) -> Self {
        Self { document, renamed: Vec::new(), errors: Vec::new(), problems }
    }

    /// Makes later problems at `read` appear at `written`, the key in the file.
    pub(super) fn rename(&mut self, read: KeyPath, written: KeyPath) {
        self.renamed.push((read, written));
    }

    /// Adds an error about the value at `path`.
    pub(super) fn error(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        self.errors.push(path.clone());
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add(Severity::Error, &written, text);
    }

    /// Adds an error about the key at `path`.
    pub(super) fn wrong_key(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        self.errors.push(path.clone());
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add_at_key(Severity::Error, &written, text);
    }

    /// Adds a warning about the value at `path`.
    pub(super) fn warn(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add(Severity::Warning, &written, text);
    }

    /// Adds a warning about an unknown key.
    pub(super) fn unknown(&mut self, path: &KeyPath, suggestion: Option<&str>) {
        let written = self.written(path);
        let suggestion = suggestion.map(|text| format!(" ({text})")).unwrap_or_default();
        let text = format!("unknown key '{written}' is ignored{suggestion}");
        self.add_at_key(Severity::Warning, &written, text);
    }

    /// Adds an error about an unknown key that probably means a key that restricts calls.
    pub(super) fn misspelled(&mut self, path: &KeyPath, meant: &str) {
        let written = self.written(path);
        let text = format!(
            "unknown key '{written}': did you mean '{meant}'? It restricts calls, so it is not ignored: correct or remove it"
        );
        self.add_at_key(Severity::Error, &written, text);
    }

    /// Adds a problem of a flag, an environment variable or another file.
    pub(super) fn add_outside(&mut self, problem: Problem) {
        self.push(problem);
    }

    /// Whether anything at or below one of these keys of `path` is invalid.
    pub(super) fn is_wrong(&self, path: &KeyPath, keys: &[&str]) -> bool {
        keys.iter().map(|key| path.key(key)).any(|path| {
            self.errors.iter().any(|error| error.0.get(..path.0.len()) == Some(&path.0[..]))
        })
    }

    pub(super) fn any_error(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether [`MAX_PROBLEMS`] is reached.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// All problems: those without a file first, then in the order of the config file, then those of other files.
    pub(super) fn finish(mut self, file: Option<&Path>) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.file.is_some(), problem.place));
        for problem in &mut self.problems {
            if problem.place.is_some() && problem.file.is_none() {
                problem.file = file.map(Path::to_owned);
            }
        }
        self.problems
    }

    fn add(&mut self, severity: Severity, written: &KeyPath, text: String) {
        let place = Some(self.document.place(written));
        self.push(Problem { severity, file: None, place, key: written.to_string(), text });
    }

    fn add_at_key(&mut self, severity: Severity, written: &KeyPath, text: String) {
        let place = Some(self.document.key_place(written));
        self.push(Problem { severity, file: None, place, key: written.to_string(), text });
    }

    fn push(&mut self, problem: Problem) {
        if !self.is_full() {
            self.problems.push(problem);
        }
    }

    /// The path as written in the file.
    fn written(&self, path: &KeyPath) -> KeyPath {
        let mut path = path.clone();
        // A renamed key may be below another renamed key.
        for (read, written) in self.renamed.iter().rev() {
            if let Some(rest) = path.0.strip_prefix(&read.0[..]) {
                path = written.join(rest.iter().cloned());
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        ConfigDocument::parse(text, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, expected) in [
            ("{\n  \"listen\": x\n}", "line 2 column 13: Unexpected word"),
            ("listen: 127.0.0.1\n", "line 1 column 1: the config must be a JSON object, { … }"),
            ("{\"a\": 1} {}", "line 1 column 10: Text cannot contain more than one JSON value"),
            ("{\"a\": {\"b\": 1,\n\"b\": 2}}", "line 2 column 1: duplicate key 'a.b': keep one"),
            (
                "{\"mcpServers\": {\"s\": {},\n\"\\u0073\": {}}}",
                "line 2 column 1: mcpServers: duplicate server name 's'",
            ),
            ("{", "line 1 column 1: the object is not closed: '}' is missing"),
            ("[]", "line 1 column 1: the config must be a JSON object, { … }"),
            ("{\"é\" 1}", "line 1 column 6: Expected colon"),
            ("{\"a\": 1 \"b\": 2}", "line 1 column 8: Expected comma"),
            ("{\"a\": [1,,2]}", "line 1 column 10: Unexpected comma"),
            ("{,}", "line 1 column 2: Unexpected token in object"),
            ("{a: 1}", "line 1 column 2: Expected string for object property"),
            ("{'a': 1}", "line 1 column 2: Single-quoted strings are not allowed"),
            ("{\"a\": 01}", "line 1 column"),
            ("{\"a\": 1e999}", "line 1 column 7: a: 1e999 is not a JSON number"),
            ("{\"a\": \"x\ny\"}", "line 1 column 9: a: line break or control character"),
            ("{\"a\": \"\\ud800\"}", "line 1 column"),
            ("{ /* no end", "line 1 column"),
            ("{\"a\": 1", "line 1 column"),
            ("{\"a\": 1}\n}", "line 2 column 1"),
        ] {
            let found = problems(text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(problems(&format!("{{\"a\": {deep}")).len(), 1);
    }

    #[test]
    fn every_duplicate_key_is_reported() {
        let found = problems("{\"a\": 1,\n\"a\": 2,\n\"b\": {\"c\": 1, \"c\": 2}}");
        assert_eq!(
            found,
            [
                "line 2 column 1: duplicate key 'a': keep one",
                "line 3 column 15: duplicate key 'b.c': keep one"
            ]
        );
    }

    #[test]
    fn blank_file_is_an_empty_config() {
        for text in ["", " \n", "\u{feff}", "{}", "\u{feff}{}", "// nothing yet\n", "/**/{,}"] {
            let mut problems = Vec::new();
            let (_, read) = ConfigDocument::parse(text, &mut problems);
            assert_eq!(read, Map::new(), "{text:?}");
            assert_eq!(problems.is_empty(), !text.contains(','), "{text:?}: {problems:?}");
        }
    }

    #[test]
    fn comments_and_trailing_commas_are_accepted() {
        let text = "// ours\n{\n  /* a\n  b */ \"a\": [1, 2,], // \"x\": 1\n  \"u\": \"http://h/*\",\n}\n// end";
        let mut problems = Vec::new();
        let (document, read) = ConfigDocument::parse(text, &mut problems);
        assert_eq!(problems, []);
        assert_eq!(Value::Object(read), json!({"a": [1, 2], "u": "http://h/*"}));
        let place = document.place(&KeyPath::root("a").element(1));
        assert_eq!(place, Place { line: 4, column: 17 });
    }

    #[test]
    fn values_equal_those_of_serde_json() {
        let text = r#"{"a":[1,-1,1.5,18446744073709551615,true,null,"s\u00e9\n",{"b":{}}]}"#;
        let (_, read) = ConfigDocument::parse(text, &mut Vec::new());
        assert_eq!(Value::Object(read), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn missing_value_is_located_at_its_nearest_parent() {
        let (document, _) = ConfigDocument::parse("{\n \"a\": {\"b\": 1}}", &mut Vec::new());
        for (path, column) in [
            (KeyPath::root("a"), 7),
            (KeyPath::root("a").key("b"), 13),
            (KeyPath::root("a").key("c").key("d"), 7),
            (KeyPath::root("a").element(3), 7),
        ] {
            assert_eq!(document.place(&path), Place { line: 2, column }, "{path}");
        }
    }
}
