//! A JSON text with the object that it holds: read, changed, and read again. Pure.

use serde_json::{Map, Value};

use super::layout::{Layout, WrittenValue};
use super::place;
use super::refused::EditRefused;
use crate::config::document::ConfigDocument;
use crate::config::problem::{KeyPath, PathStep};

/// A text, and the object that it holds.
#[derive(Clone, Debug)]
pub struct EditedJson {
    text: String,
    value: Map<String, Value>,
}

impl EditedJson {
    /// Reads a text; a blank one is an empty object.
    ///
    /// # Errors
    /// [`EditRefused::Unreadable`].
    pub fn new(text: &str) -> Result<Self, EditRefused> {
        let mut problems = Vec::new();
        let (_, value) = ConfigDocument::parse(text, &mut problems);
        match problems.into_iter().next() {
            Some(problem) => Err(EditRefused::Unreadable(Box::new(problem))),
            None => Ok(Self { text: text.to_owned(), value }),
        }
    }

    /// The text as it is now.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it says.
    #[must_use]
    pub fn value(&self) -> &Map<String, Value> {
        &self.value
    }

    /// The value at `path`.
    #[must_use]
    pub fn get(&self, path: &KeyPath) -> Option<&Value> {
        let (first, rest) = path.0.split_first()?;
        let PathStep::Key(first) = first else { return None };
        rest.iter().try_fold(self.value.get(first)?, |value, step| match step {
            PathStep::Key(key) => value.get(key),
            PathStep::Element(at) => value.get(at),
        })
    }

    /// Puts a value at `path`, in the place of one that is there; objects that are missing on the way
    /// are made. A new member stands behind the others.
    ///
    /// # Errors
    /// [`EditRefused`]; the text is as before.
    pub fn set(&mut self, path: &KeyPath, value: &WrittenValue) -> Result<(), EditRefused> {
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let next =
            place::set(&document, &self.text, &Layout::of(&document, &self.text), path, value)?;
        let mut meant = Value::Object(self.value.clone());
        put(&mut meant, &path.0, value.value());
        self.take(next, &meant, path)
    }

    /// Puts an element behind the others of the array at `path`.
    ///
    /// # Errors
    /// [`EditRefused`]; the text is as before.
    pub fn push(&mut self, path: &KeyPath, value: &WrittenValue) -> Result<(), EditRefused> {
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let layout = Layout::of(&document, &self.text);
        let next = place::push(&document, &self.text, &layout, path, value)?;
        let mut meant = Value::Object(self.value.clone());
        let length = self.get(path).and_then(Value::as_array).map_or(0, Vec::len);
        put(&mut meant, &path.element(length).0, value.value());
        self.take(next, &meant, path)
    }

    /// Takes the value at `path` out, with its key. False if there is none.
    ///
    /// # Errors
    /// [`EditRefused`]; the text is as before.
    pub fn remove(&mut self, path: &KeyPath) -> Result<bool, EditRefused> {
        if self.get(path).is_none() {
            return Ok(false);
        }
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let next = place::remove(&document, &self.text, path)
            .ok_or_else(|| EditRefused::Unsure(path.clone()))?;
        let mut meant = Value::Object(self.value.clone());
        cut(&mut meant, &path.0);
        self.take(next, &meant, path)?;
        Ok(true)
    }

    /// Uses the next text if it says what was meant.
    fn take(&mut self, next: String, meant: &Value, path: &KeyPath) -> Result<(), EditRefused> {
        let unsure = || EditRefused::Unsure(path.clone());
        let next = Self::new(&next).map_err(|_| unsure())?;
        if meant.as_object() != Some(&next.value) {
            return Err(unsure());
        }
        *self = next;
        Ok(())
    }
}

/// Puts `value` at `steps`.
fn put(into: &mut Value, steps: &[PathStep], value: Value) {
    match (steps.split_first(), into) {
        (None, into) => *into = value,
        (Some((PathStep::Key(key), rest)), Value::Object(members)) => {
            let empty = || Value::Object(Map::new());
            put(members.entry(key).or_insert_with(empty), rest, value);
        }
        (Some((PathStep::Element(at), rest)), Value::Array(elements)) => {
            if *at == elements.len() {
                elements.push(Value::Null);
            }
            if let Some(element) = elements.get_mut(*at) {
                put(element, rest, value);
            }
        }
        (Some(_), _) => {}
    }
}

/// Takes out what is at `steps`.
fn cut(from: &mut Value, steps: &[PathStep]) {
    match (steps, from) {
        ([PathStep::Key(key)], Value::Object(members)) => {
            members.remove(key);
        }
        ([PathStep::Element(at)], Value::Array(elements)) if *at < elements.len() => {
            elements.remove(*at);
        }
        ([PathStep::Key(key), rest @ ..], Value::Object(members)) => {
            members.get_mut(key).iter_mut().for_each(|value| cut(value, rest));
        }
        ([PathStep::Element(at), rest @ ..], Value::Array(elements)) => {
            elements.get_mut(*at).iter_mut().for_each(|value| cut(value, rest));
        }
        (_, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(dotted: &str) -> KeyPath {
        dotted.split('.').fold(KeyPath::default(), |path, step| match step.parse() {
            Ok(at) => path.element(at),
            Err(_) => path.key(step),
        })
    }

    #[track_caller]
    fn set(text: &str, at: &str, value: Value, expected: &str) {
        let mut edited = EditedJson::new(text).unwrap();
        edited.set(&path(at), &value.into()).unwrap();
        assert_eq!(edited.text(), expected, "{text:?}");
    }

    #[track_caller]
    fn removed(text: &str, at: &str, expected: &str) {
        let mut edited = EditedJson::new(text).unwrap();
        assert!(edited.remove(&path(at)).unwrap(), "{text:?}");
        assert_eq!(edited.text(), expected, "{text:?}");
    }

    #[test]
    fn a_member_is_put_behind_the_others_in_their_layout() {
        set("", "a", json!(1), "{\n  \"a\": 1\n}\n");
        set("{}", "a", json!(1), "{\n  \"a\": 1\n}");
        set("// none\n", "a", json!(1), "// none\n{\n  \"a\": 1\n}\n");
        set("{\n  // none\n}\n", "a", json!(1), "{\n  // none\n  \"a\": 1\n}\n");
        set("{\"a\":1}", "b", json!(2), "{\"a\":1, \"b\": 2}");
        set("{\"a\": 1,}", "b", json!(2), "{\"a\": 1, \"b\": 2,}");
        set(
            "{\n\t\"a\": 1\n}\n",
            "b",
            json!({"c": [1, 2]}),
            "{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": [1, 2]\n\t}\n}\n",
        );
        set(
            "{\r\n    \"a\": 1\r\n}",
            "b.c",
            json!("x"),
            "{\r\n    \"a\": 1,\r\n    \"b\": {\r\n        \"c\": \"x\"\r\n    }\r\n}",
        );
        set(
            "\u{feff}{\n  \"a\": {}\n}",
            "a.b",
            json!(2),
            "\u{feff}{\n  \"a\": {\n    \"b\": 2\n  }\n}",
        );
        // Comments behind the last member are its own.
        set(
            "{\n  \"a\": 1 // one\n  // end\n}",
            "b",
            json!(2),
            "{\n  \"a\": 1, // one\n  \"b\": 2\n  // end\n}",
        );
        set("{\n  \"a\": 1, // one\n}", "b", json!(2), "{\n  \"a\": 1, // one\n  \"b\": 2,\n}");
        set(
            "{\n  \"a\": 1 /* x, */ , /* y */\n}",
            "b",
            json!(2),
            "{\n  \"a\": 1 /* x, */ , /* y */\n  \"b\": 2,\n}",
        );
        set("{\"a\": {}}", "a.b", json!({"c": {}}), "{\"a\": {\"b\": {\"c\": {}}}}");
        set("{ \"a\": 1 // one\n}", "b", json!(2), "{ \"a\": 1, \"b\": 2 // one\n}");
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        set("{\"a\" : /* x */ 1 , \"b\":2}", "a", json!(true), "{\"a\" : /* x */ true , \"b\":2}");
        set(
            "{\n  \"a\": {\n    \"b\": [1,\n 2]\n  }\n}",
            "a.b",
            json!({"c": 1}),
            "{\n  \"a\": {\n    \"b\": {\n      \"c\": 1\n    }\n  }\n}",
        );
        set(
            "{\"a\": [{\"b\": 1}, {\"b\": 2}]}",
            "a.1.b",
            json!("é\n"),
            "{\"a\": [{\"b\": 1}, {\"b\": \"é\\n\"}]}",
        );
    }

    #[test]
    fn a_member_goes_with_its_line_and_its_comma() {
        let lines = "{\n  \"a\": 1, // one\n  // two's\n  \"b\": 2,\n  \"c\": 3\n}\n";
        removed(lines, "a", "{\n  // two's\n  \"b\": 2,\n  \"c\": 3\n}\n");
        removed(lines, "b", "{\n  \"a\": 1, // one\n  // two's\n  \"c\": 3\n}\n");
        removed(lines, "c", "{\n  \"a\": 1, // one\n  // two's\n  \"b\": 2\n}\n");
        removed("{\r\n  \"a\": 1,\r\n  \"b\": 2,\r\n}", "b", "{\r\n  \"a\": 1,\r\n}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "a", "{\"b\": 2, \"c\": 3}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "b", "{\"a\": 1, \"c\": 3}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "c", "{\"a\": 1, \"b\": 2}");
        removed("{\"a\": 1 /* x */, /* y */ \"b\": 2}", "b", "{\"a\": 1 /* x */}");
        removed("{\n  \"a\": {\n    \"b\": 1\n  }\n}", "a.b", "{\n  \"a\": {\n  }\n}");
        removed("{\"a\": 1}", "a", "{}");
        removed("{\n  \"a\": 1, \"b\": 2,\n  \"c\": 3\n}", "a", "{\n  \"b\": 2,\n  \"c\": 3\n}");
        removed("{\n  \"a\": 1, \"b\": 2,\n  \"c\": 3\n}", "b", "{\n  \"a\": 1,\n  \"c\": 3\n}");
        removed("{\"l\": [1, 2, 3]}", "l.1", "{\"l\": [1, 3]}");
        removed("{\"l\": [\n  {},\n  {}\n]}", "l.1", "{\"l\": [\n  {}\n]}");
        let mut edited = EditedJson::new(lines).unwrap();
        assert_eq!((edited.remove(&path("z")), edited.text()), (Ok(false), lines));
    }

    #[test]
    fn an_element_is_put_behind_the_others() {
        for (text, expected) in [
            ("{\"l\": []}", "{\"l\": [7]}"),
            ("{\"l\": [1]}", "{\"l\": [1, 7]}"),
            ("{\n  \"l\": [\n    1\n  ]\n}", "{\n  \"l\": [\n    1,\n    7\n  ]\n}"),
        ] {
            let mut edited = EditedJson::new(text).unwrap();
            edited.push(&path("l"), &json!(7).into()).unwrap();
            assert_eq!(edited.text(), expected);
        }
    }

    #[test]
    fn every_member_can_go_and_come_back_in_any_layout() {
        let texts = [
            "{\"a\":{\"x\":1},\"b\":[1,2],\"c\":\"s\"}",
            "{\n  \"a\": {\n    \"x\": 1\n  },\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": \"s\",\n}\n",
            "{ // top\n  \"a\": { \"x\": 1 }, \"b\": [1, /* , */ 2] // both\n  /* pre */, \"c\": \"s,}\" // last\n  // end\n}",
            "{\r\n\t\"a\":{\"x\":1}\r\n\t,\"b\":[1,2]\r\n\t,\"c\":\"s\"\r\n}",
        ];
        for text in texts {
            for at in ["a", "b", "c", "a.x", "b.0", "b.1"] {
                let mut edited = EditedJson::new(text).unwrap();
                let value = edited.get(&path(at)).unwrap().clone();
                assert_eq!(edited.remove(&path(at)), Ok(true), "{at} of {text:?}");
                if !at.starts_with("b.") {
                    edited.set(&path(at), &value.into()).unwrap();
                    assert_eq!(edited.value(), EditedJson::new(text).unwrap().value());
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_read_or_is_no_object_stays() {
        for text in ["{", "[]", "{\"a\": 1, \"a\": 2}", "{\"a\": 1} x"] {
            let refused = EditedJson::new(text).unwrap_err();
            assert!(refused.to_string().contains("line 1 column"), "{refused}");
        }
        let mut edited = EditedJson::new("{\"a\": 1}").unwrap();
        let refused = edited.set(&path("a.b"), &json!(1).into()).unwrap_err();
        assert_eq!(refused, EditRefused::NoObject(path("a")));
        assert_eq!(edited.text(), "{\"a\": 1}");
    }
}
