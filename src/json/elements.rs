//! The elements of one array, one level deep, as slices of its text.
//!
//! For text that is valid JSON already, as [`members`](super::members) is for objects; of other text it makes what it
//! can, without a panic, and ends where the structure breaks.

use super::cursor::TextCursor;

/// The elements in their order; none of a value that is no array.
#[derive(Clone, Debug)]
pub struct ArrayElements<'a> {
    text: &'a str,
    /// Where to go on; past the end when all was read.
    at: usize,
    first: bool,
}

/// Begins to read the array that `text` is.
#[must_use]
pub fn elements(text: &str) -> ArrayElements<'_> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    let at = if cursor.take(b'[') { cursor.position() } else { usize::MAX };
    ArrayElements { text, at, first: true }
}

impl<'a> ArrayElements<'a> {
    fn read(&mut self) -> Option<&'a str> {
        let mut cursor = TextCursor::at(self.text.as_bytes(), self.at);
        cursor.skip_space();
        if !self.first {
            cursor.take(b',').then_some(())?;
            cursor.skip_space();
        }
        self.first = false;
        let start = cursor.position();
        cursor.value()?;
        self.at = cursor.position();
        self.text.get(start..self.at)
    }
}

impl<'a> Iterator for ArrayElements<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.at > self.text.len() {
            return None;
        }
        let next = self.read();
        if next.is_none() {
            self.at = usize::MAX;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Vec<&str> {
        elements(text).collect()
    }

    #[test]
    fn elements_are_the_text_as_written() {
        let text = r#" [ 1.0 , "a,]" ,[ [2] ], {"x":"]"} ,null] "#;
        assert_eq!(read(text), ["1.0", r#""a,]""#, "[ [2] ]", r#"{"x":"]"}"#, "null"]);
        for nothing in ["", "[]", "[ ]", "{}", "null", "\"[1]\"", "[", "[,1]", "["] {
            assert!(read(nothing).is_empty(), "{nothing}");
        }
        assert_eq!(read("[1,"), ["1"], "what breaks off ends there");
        assert_eq!(read("[1 2]"), ["1"]);
    }

    proptest! {
        #[test]
        fn every_array_is_read_whole(numbers in proptest::collection::vec(any::<f32>(), 0..9)) {
            let text = serde_json::to_string(&numbers).unwrap();
            let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
            let found = elements(&text).map(|it| serde_json::from_str::<Value>(it).unwrap());
            prop_assert_eq!(found.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn any_text_ends(text in ".{0,60}") {
            prop_assert!(elements(&text).count() <= text.len());
        }
    }
}
