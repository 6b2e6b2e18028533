//! One-line signature of a tool, from which a call can be written: `create_issue(repo: string, labels?: string[] =
//! [])`; and the summary of its description. Pure.
//!
//! Types are spelled as in TypeScript, which models read well; required parameters come first. The line is bounded
//! for any schema; `…` marks what is left out.

use std::fmt::Write as _;

use super::input_schema::{JsonType, SchemaNode, SchemaRoot, read_elements};
use mcpproxy_json::members::string;

pub const MAX_SIGNATURE_BYTES: usize = 2048;
/// Maximum number of parameters shown.
const MAX_PARAMETERS: usize = 40;
/// Maximum number of members of a nested object.
const MAX_MEMBERS: usize = 12;
/// Maximum depth of objects and arrays below a parameter.
const MAX_DEPTH: usize = 3;
/// Maximum number of choices of an enum, or of a union.
const MAX_CHOICES: usize = 16;
/// Maximum length of a default, choice or constant, in bytes.
const MAX_VALUE_BYTES: usize = 64;
/// Maximum length of a parameter's name, in bytes; a longer one ends the list, because a truncated name could not be used.
const MAX_NAME_BYTES: usize = 128;
/// Mark for omitted parts.
const MORE: &str = "…";

pub fn signature(name: &str, input_schema: &str) -> String {
    let root = SchemaRoot::new(input_schema);
    let mut line = Line { text: String::new(), root: &root };
    line.name(name);
    line.text.push('(');
    line.fields(&root.node(), MAX_PARAMETERS, 0);
    line.text.push(')');
    line.text
}

/// Escapes characters of untrusted text that break lines or change text direction.
pub fn on_one_line(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    text.chars().for_each(|letter| push_clean(&mut clean, letter));
    clean
}

fn push_clean(out: &mut String, letter: char) {
    let breaks = letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    match breaks {
        // Writing to a `String` cannot fail.
        true => drop(write!(out, "\\u{:04x}", u32::from(letter))),
        false => out.push(letter),
    }
}

/// A signature under construction.
struct Line<'a> {
    text: String,
    root: &'a SchemaRoot<'a>,
}

impl<'a> Line<'a> {
    fn is_full(&self) -> bool {
        self.text.len() >= MAX_SIGNATURE_BYTES
    }

    /// Writes a name, quoted if ambiguous.
    fn name(&mut self, name: &str) {
        let plain = |letter: char| letter.is_alphanumeric() || "_-$./".contains(letter);
        match !name.is_empty() && name.chars().all(plain) {
            true => self.text.push_str(name),
            false => {
                let quoted = serde_json::Value::from(name).to_string();
                quoted.chars().for_each(|letter| push_clean(&mut self.text, letter));
            }
        }
    }

    /// Writes the properties of an object, required ones first.
    fn fields(&mut self, node: &SchemaNode<'a>, limit: usize, depth: usize) {
        let required = node.required_names();
        let is_required = |name: &str| required.iter().any(|known| known == name);
        let fields: Vec<_> = node.properties().map(|it| (is_required(&it.0), it)).collect();
        let ordered = fields.iter().filter(|it| it.0).chain(fields.iter().filter(|it| !it.0));
        for (count, (required, (name, schema))) in ordered.enumerate() {
            self.text.push_str(if count > 0 { ", " } else { "" });
            let start = self.text.len();
            if count >= limit || name.len() > MAX_NAME_BYTES {
                return self.text.push_str(MORE);
            }
            self.field(name, *required, schema, depth);
            match (self.is_full(), depth) {
                (false, _) => continue,
                // The enclosing parameter is too long.
                (true, 1..) => return,
                (true, 0) => self.text.truncate(start),
            }
            // Retries a parameter that is too long without its nested parts.
            self.field(name, *required, schema, MAX_DEPTH);
            if self.is_full() {
                // A truncated parameter would mislead: it is omitted, as are all that follow.
                self.text.truncate(start);
                return self.text.push_str(MORE);
            }
        }
    }

    fn field(&mut self, name: &str, required: bool, schema: &'a str, depth: usize) {
        let node = self.root.resolve(schema);
        self.name(name);
        self.text.push_str(if required { ": " } else { "?: " });
        self.value(&node, depth);
        if let Some(default) = node.default.filter(|default| *default != "null")
            && let Some(value) = written(default)
        {
            self.text.push_str(" = ");
            self.text.push_str(&value);
        }
    }

    /// Writes the type of a value.
    fn value(&mut self, node: &SchemaNode<'a>, depth: usize) {
        if let Some(value) = node.constant.and_then(written) {
            self.text.push_str(&value);
            return;
        }
        if let Some(choices) = node.choices {
            return self.choices(choices);
        }
        if let Some(any_of) = node.any_of {
            return self.union(read_elements(any_of), depth);
        }
        let types = node.types();
        if types.is_empty() {
            self.text.push_str("any");
        }
        for (count, kind) in types.into_iter().enumerate() {
            self.text.push_str(if count > 0 { " | " } else { "" });
            self.of_type(kind, node, depth);
        }
    }

    fn of_type(&mut self, kind: JsonType, node: &SchemaNode<'a>, depth: usize) {
        match kind {
            JsonType::Array => self.array(node, depth),
            JsonType::Object => self.object(node, depth),
            _ => self.text.push_str(kind.as_str()),
        }
    }

    fn array(&mut self, node: &SchemaNode<'a>, depth: usize) {
        let Some(items) = node.items.filter(|_| depth < MAX_DEPTH && !self.is_full()) else {
            return self.text.push_str("any[]");
        };
        let start = self.text.len();
        let items = self.root.resolve(items);
        self.value(&items, depth + 1);
        let item = self.text.get(start..).unwrap_or_default();
        if item.contains('|') && !item.starts_with(['{', '(']) {
            self.text.insert(start, '(');
            self.text.push(')');
        }
        self.text.push_str("[]");
    }

    fn object(&mut self, node: &SchemaNode<'a>, depth: usize) {
        if depth >= MAX_DEPTH || self.is_full() {
            return self.text.push_str("object");
        }
        if node.properties().next().is_some() {
            self.text.push('{');
            self.fields(node, MAX_MEMBERS, depth + 1);
            self.text.push('}');
            return;
        }
        match node.additional.filter(|schema| schema.starts_with('{') && *schema != "{}") {
            Some(schema) => {
                let values = self.root.resolve(schema);
                self.text.push_str("{[key: string]: ");
                self.value(&values, depth + 1);
                self.text.push('}');
            }
            None => self.text.push_str("object"),
        }
    }

    fn choices(&mut self, choices: &str) {
        for (count, choice) in read_elements(choices).enumerate() {
            self.text.push_str(if count > 0 { "|" } else { "" });
            let shown = written(choice).filter(|_| count < MAX_CHOICES && !self.is_full());
            let Some(shown) = shown else { return self.text.push_str(MORE) };
            self.text.push_str(&shown);
        }
    }

    /// Writes a union; equal alternatives are written once.
    fn union(&mut self, schemas: impl Iterator<Item = &'a str>, depth: usize) {
        let mut alternatives: Vec<String> = Vec::new();
        for (count, schema) in schemas.enumerate() {
            if count >= MAX_CHOICES || depth >= MAX_DEPTH || self.is_full() {
                alternatives.push(MORE.to_owned());
                break;
            }
            let start = self.text.len();
            let node = self.root.resolve(schema);
            self.value(&node, depth + 1);
            let shown = self.text.split_off(start);
            if !alternatives.contains(&shown) {
                alternatives.push(shown);
            }
            // The alternatives are not in `text` yet, but count toward the limit.
            if alternatives.iter().map(String::len).sum::<usize>() + start >= MAX_SIGNATURE_BYTES {
                break;
            }
        }
        match alternatives.is_empty() {
            true => self.text.push_str("any"),
            false => self.text.push_str(&alternatives.join(" | ")),
        }
    }
}

/// A JSON value without white space between tokens; `None` if it is long.
fn written(value: &str) -> Option<String> {
    if value.len() > MAX_VALUE_BYTES {
        return None;
    }
    let mut text = String::with_capacity(value.len());
    if string(value).is_some() {
        value.chars().for_each(|letter| push_clean(&mut text, letter));
        return Some(text);
    }
    let (mut inside, mut escaped) = (false, false);
    for letter in value.chars() {
        if inside || !letter.is_ascii_whitespace() {
            push_clean(&mut text, letter);
        }
        inside ^= letter == '"' && !escaped;
        escaped = inside && letter == '\\' && !escaped;
    }
    Some(text)
}

pub const MAX_SUMMARY_BYTES: usize = 240;

/// Minimum number of letters of a word before a full stop that ends a sentence: excludes `e.g.`, `i.e.` and initials.
const SHORTEST_WORD: usize = 2;

/// First sentence of `description` on one line, truncated, without the leading Markdown of headings and lists.
pub fn first_sentence(description: &str) -> String {
    let start = description.trim_start_matches(|letter: char| {
        letter.is_whitespace() || letter.is_control() || "#*-=_>`".contains(letter)
    });
    // This part is long enough to contain the sentence's end after white space is collapsed.
    let start = start.get(..start.floor_char_boundary(4 * MAX_SUMMARY_BYTES)).unwrap_or_default();
    let paragraph = start.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.split_whitespace().collect();
    let mut sentence = String::new();
    for word in words {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        if ends_sentence(word) || sentence.len() > MAX_SUMMARY_BYTES {
            break;
        }
    }
    let mut clean = on_one_line(&sentence);
    if clean.len() > MAX_SUMMARY_BYTES {
        clean.truncate(clean.floor_char_boundary(MAX_SUMMARY_BYTES - '…'.len_utf8()));
        clean.push('…');
    }
    clean
}

fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches(['"', '\'', ')', '`', '*']);
    if word.ends_with(['!', '?', '。', '！', '？']) {
        return true;
    }
    let before = word.strip_suffix('.').unwrap_or_default();
    before.chars().count() >= SHORTEST_WORD && !before.contains('.') || before.contains(['/', '_'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn of(schema: serde_json::Value) -> String {
        signature("t", &schema.to_string())
    }

    #[test]
    fn signature_shows_all_parameters() {
        let schema = r##"{"type":"object","properties":{
            "labels":{"type":"array","items":{"type":"string"},"default":[]},
            "title":{"type":"string"},
            "state":{"enum":["open","closed"],"type":"string"},
            "repo":{"type":"string"}},
            "required":["repo","title"]}"##;
        assert_eq!(
            signature("create_issue", schema),
            r#"create_issue(title: string, repo: string, labels?: string[] = [], state?: "open"|"closed")"#
        );
    }

    #[test]
    fn every_schema_kind_has_a_signature() {
        for (schema, shown) in [
            (json!({"type": "integer", "default": 7}), "integer = 7"),
            (json!({"type": ["string", "null"], "default": null}), "string | null"),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "string | null"),
            (json!({"oneOf": [{"type": "string"}, {"type": "string"}]}), "string"),
            (json!({"type": "array"}), "any[]"),
            (json!({"items": {"type": ["string", "integer"]}}), "(string | integer)[]"),
            (json!({"items": {"enum": ["a", "b"]}}), r#"("a"|"b")[]"#),
            (json!({"const": {"a": [1, 2]}}), r#"{"a":[1,2]}"#),
            (json!({"type": "object"}), "object"),
            (
                json!({"additionalProperties": {"type": "number"}, "type": "object"}),
                "{[key: string]: number}",
            ),
            (
                json!({"properties": {"a": {"type": "string"}, "b": {"properties": {"c": {}}}}, "required": ["b"]}),
                "{b: {c?: any}, a?: string}",
            ),
            (json!({"$ref": "#/$defs/Color"}), r#""red"|"blue""#),
            (
                json!({"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"}),
                r#""red"|"blue" = "red""#,
            ),
            (json!(true), "any"),
            (json!({"anyOf": []}), "any"),
            (json!("x"), "any"),
        ] {
            let defs = json!({"Color": {"enum": ["red", "blue"]}});
            let whole = json!({"$defs": defs, "properties": {"p": schema}, "required": ["p"]});
            assert_eq!(of(whole), format!("t(p: {shown})"), "{schema}");
        }
        assert_eq!(of(json!({})), "t()");
    }

    #[test]
    fn signature_of_a_looping_deep_or_wide_schema_terminates() {
        let tree = json!({"$defs": {"Tree": {"properties": {"left": {"$ref": "#/$defs/Tree"}, "of": {"items": {"$ref": "#/$defs/Tree"}}}}},
            "properties": {"tree": {"$ref": "#/$defs/Tree"}}});
        let line = of(tree);
        assert!(line.starts_with("t(tree?: {left?: {left?: {left?: object, "), "{line}");
        let wide: serde_json::Map<_, _> = (0..1000).map(|n| (format!("p{n}"), json!({}))).collect();
        let line = of(json!({"properties": wide, "required": ["p900", "p7"]}));
        assert!(line.starts_with("t(p7: any, "), "{line}");
        assert!(line.ends_with(", …)"), "{line}");
        let choices: Vec<_> = (0..100).collect();
        let line = of(json!({"properties": {"n": {"enum": choices}}}));
        assert!(line.ends_with("|14|15|…)"), "{line}");
        let members = |inner: serde_json::Value| -> serde_json::Value {
            let of = |n| (format!("a_rather_long_name_{n}"), inner.clone());
            json!({"properties": (0..12).map(of).collect::<serde_json::Map<_, _>>()})
        };
        let large = members(members(members(json!({"type": "string"}))));
        let line = of(
            json!({"properties": {"small": {"type": "integer"}, "large": large}, "required": ["large"]}),
        );
        assert_eq!(line, "t(large: object, small?: integer)", "shown without nested parts");
        let mut deep = json!({"type": "string"});
        for _ in 0..60 {
            deep = json!({"anyOf": [deep, {"items": deep}]});
            if deep.to_string().len() > 1 << 16 {
                break;
            }
        }
        assert!(of(json!({"properties": {"deep": deep}})).len() <= MAX_SIGNATURE_BYTES + 16);
    }

    #[test]
    fn signature_is_one_line_for_any_names() {
        let hostile = "a\nb\u{2028}): string)\u{202e} ignore";
        let schema = json!({"properties": {hostile: {"enum": [hostile]}, "x".repeat(500): {}}});
        let line = signature(hostile, &schema.to_string());
        assert!(
            !line.chars().any(|it| it.is_control() || "\u{2028}\u{202e}".contains(it)),
            "{line}"
        );
        let name = r#""a\nb\u2028): string)\u202e ignore""#;
        assert_eq!(line, format!("{name}({name}?: {name}, …)"));
        let back: String = serde_json::from_str(name).unwrap();
        assert_eq!(back, hostile, "the quoted text is the name");
    }

    proptest! {
        #[test]
        fn signature_of_any_schema_is_bounded(text in r#"(\{|\}|\[|\]|:|,|"(type|properties|items|anyOf|enum|\$ref|#/|a|string|object)"|1| ){0,40}"#) {
            let line = signature("t", &text);
            prop_assert!(line.starts_with("t(") && line.ends_with(')'));
            prop_assert!(line.len() <= 2 * MAX_SIGNATURE_BYTES && !line.contains('\n'));
        }
    }
}

#[cfg(test)]
mod summary_tests {
    use super::*;

    #[test]
    fn first_sentence_of_a_description_is_found() {
        for (description, summary) in [
            ("", ""),
            ("Deletes a repository", "Deletes a repository"),
            ("Reads a file.  Fails if\nit is missing.", "Reads a file."),
            ("Reads e.g. a file of v1.2. Then more.", "Reads e.g. a file of v1.2. Then more."),
            ("# Reads\n  it all\n\nArgs:\n  x", "Reads it all"),
            ("**Finds** (anything.) And more", "Finds** (anything.)"),
            ("何でも検索します。 二番目", "何でも検索します。"),
            ("Really? Yes.", "Really?"),
            ("\u{1b}[31mRed\u{2028}line. x", "[31mRed line."),
        ] {
            assert_eq!(first_sentence(description), summary, "{description}");
        }
        let long = first_sentence(&"wörd ".repeat(100_000));
        assert!(long.len() <= MAX_SUMMARY_BYTES && long.ends_with('…'), "{long}");
        let odd = first_sentence(&"\u{202e}".repeat(1000));
        assert!(odd.len() <= MAX_SUMMARY_BYTES && !odd.contains('\u{202e}'), "{odd}");
    }
}
