//! The text of a config file as one JSON object, with the place of each value.
//!
//! Owns the syntax: JSON with the comments and trailing commas that VS Code allows, exactly one
//! object, no duplicate key anywhere, since either of two server blocks under one name could be the
//! intended one. Knows the meaning of no key but `mcpServers`, for its error message.

use jsonc_parser::ast::{Object, Value as Node};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::{Map, Value};

use super::problem::{KeyPath, PathStep, Place, Problem, Severity};

/// What VS Code allows in its own files, and nothing else.
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

/// A text and the object that it holds.
#[derive(Debug, Default)]
pub(super) struct ConfigDocument<'t> {
    text: &'t str,
    root: Option<Object<'t>>,
}

impl<'t> ConfigDocument<'t> {
    /// Reads `text`; a blank one is an empty object. What is wrong goes to `problems`; of a text
    /// that cannot be read as a whole nothing is left.
    pub(super) fn parse(text: &'t str, problems: &mut Vec<Problem>) -> (Self, Map<String, Value>) {
        // Some editors put a byte order mark there.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reading = Reading { text, problems };
        let parsed = match parse_to_ast(text, &CollectOptions::default(), &FORM) {
            Ok(parsed) => parsed.value,
            Err(error) => {
                reading.wrong(error.range().start, &error.kind().to_string());
                return (Self { text, root: None }, Map::new());
            }
        };
        let root = match parsed {
            Some(Node::Object(root)) => Some(root),
            Some(other) => {
                reading.wrong(other.start(), "the config must be a JSON object, { … }");
                None
            }
            None => None,
        };
        let read = root.as_ref().map(|root| reading.object(root, &KeyPath::default()));
        (Self { text, root }, read.unwrap_or_default())
    }

    /// Where the value at `path` is written; what is not there stands where it would.
    pub(super) fn place(&self, path: &KeyPath) -> Place {
        self.find(path, |_, value| value.start())
    }

    /// Where the key of the value at `path` is written.
    pub(super) fn key_place(&self, path: &KeyPath) -> Place {
        self.find(path, |key, value| key.unwrap_or(value.start()))
    }

    /// Follows `path`; `start` chooses the offset to report, from the key's and the value.
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

    /// The value at `path`; `None` for the root, too.
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

    /// The object.
    pub(super) fn root(&self) -> Option<&Object<'t>> {
        self.root.as_ref()
    }
}

fn place(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    Place { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
}

/// The tree becomes values; what no JSON value is becomes a problem.
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
            let path_of_it = path.key(key);
            self.string(property.name.range().start, property.name.range().end, &path_of_it);
            if members.contains_key(key) {
                let text = match path.to_string().as_str() {
                    servers @ ("mcpServers" | "servers") => {
                        format!("{servers}: duplicate server name '{key}'")
                    }
                    _ => format!("duplicate key '{path_of_it}': keep one"),
                };
                self.wrong_at(property.start(), &path_of_it.to_string(), &text);
                continue;
            }
            let value = self.value(&property.value, &path_of_it);
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
                let text = format!("{path}: {} is no JSON number", literal.value);
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

    /// A string of JSON holds no bare control characters: most often a quote is missing.
    fn string(&mut self, from: usize, to: usize, path: &KeyPath) {
        let raw = self.text.get(from..to).unwrap_or_default();
        if let Some(bare) = raw.find(|letter| letter < ' ') {
            let text =
                format!("{path}: a line end or control character in a string: is a quote missing?");
            self.wrong_at(from + bare, &path.to_string(), &text);
        }
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
    fn what_is_wrong_is_named_with_line_and_column() {
        for (text, expected) in [
            ("{\n  \"listen\": x\n}", "line 2 column 13: Unexpected word"),
            ("{\"a\": 1} {}", "line 1 column 10: Text cannot contain more than one JSON value"),
            ("{\"a\": {\"b\": 1,\n\"b\": 2}}", "line 2 column 1: duplicate key 'a.b': keep one"),
            (
                "{\"mcpServers\": {\"s\": {},\n\"\\u0073\": {}}}",
                "line 2 column 1: mcpServers: duplicate server name 's'",
            ),
            ("[]", "line 1 column 1: the config must be a JSON object, { … }"),
            ("{\"é\" 1}", "line 1 column 6: Expected colon"),
            ("{\"a\": 1 \"b\": 2}", "line 1 column 8: Expected comma"),
            ("{\"a\": [1,,2]}", "line 1 column 10: Unexpected comma"),
            ("{,}", "line 1 column 2: Unexpected token in object"),
            ("{a: 1}", "line 1 column 2: Expected string for object property"),
            ("{'a': 1}", "line 1 column 2: Single-quoted strings are not allowed"),
            ("{\"a\": 01}", "line 1 column"),
            ("{\"a\": 1e999}", "line 1 column 7: a: 1e999 is no JSON number"),
            ("{\"a\": \"x\ny\"}", "line 1 column 9: a: a line end or control character"),
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
    fn every_key_that_stands_twice_is_told() {
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
    fn a_blank_file_is_an_empty_config() {
        for text in ["", " \n", "\u{feff}", "{}", "\u{feff}{}", "// nothing yet\n", "/**/{,}"] {
            let mut problems = Vec::new();
            let (_, read) = ConfigDocument::parse(text, &mut problems);
            assert_eq!(read, Map::new(), "{text:?}");
            assert_eq!(problems.is_empty(), !text.contains(','), "{text:?}: {problems:?}");
        }
    }

    #[test]
    fn comments_and_trailing_commas_are_read_as_vs_code_reads_them() {
        let text = "// ours\n{\n  /* a\n  b */ \"a\": [1, 2,], // \"x\": 1\n  \"u\": \"http://h/*\",\n}\n// end";
        let mut problems = Vec::new();
        let (document, read) = ConfigDocument::parse(text, &mut problems);
        assert_eq!(problems, []);
        assert_eq!(Value::Object(read), json!({"a": [1, 2], "u": "http://h/*"}));
        let place = document.place(&KeyPath::root("a").element(1));
        assert_eq!(place, Place { line: 4, column: 17 });
    }

    #[test]
    fn values_are_read_as_they_are() {
        let text = r#"{"a":[1,-1,1.5,18446744073709551615,true,null,"s\u00e9\n",{"b":{}}]}"#;
        let (_, read) = ConfigDocument::parse(text, &mut Vec::new());
        assert_eq!(Value::Object(read), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn what_is_not_there_stands_where_it_should() {
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
