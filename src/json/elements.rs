//! The elements of one array, one level deep, as slices of its text.
//!
//! The sibling of `members`, with the same promise: of text that is no valid JSON it makes what it can, without a panic.

use thiserror::Error;

use super::cursor::TextCursor;

/// The text is no array, or breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not a JSON array")]
pub struct NotAnArray;

/// The elements in their order; after an error there are no more.
#[derive(Clone, Debug)]
pub struct ArrayElements<'a> {
    text: &'a str,
    /// Where to go on; past the end when all was read.
    at: usize,
    first: bool,
}

/// Begins to read the array that `text` is.
///
/// # Errors
/// When it is something else.
pub fn elements(text: &str) -> Result<ArrayElements<'_>, NotAnArray> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    match cursor.take(b'[') {
        true => Ok(ArrayElements { text, at: cursor.position(), first: true }),
        false => Err(NotAnArray),
    }
}

impl<'a> Iterator for ArrayElements<'a> {
    type Item = Result<&'a str, NotAnArray>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at > self.text.len() {
            return None;
        }
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.at = usize::MAX;
        }
        next.transpose()
    }
}

impl<'a> ArrayElements<'a> {
    fn read(&mut self) -> Result<Option<&'a str>, NotAnArray> {
        let mut cursor = TextCursor::at(self.text.as_bytes(), self.at);
        cursor.skip_space();
        match cursor.peek() {
            Some(b']') => {
                cursor.skip(1);
                cursor.skip_space();
                return if cursor.is_at_end() { Ok(None) } else { Err(NotAnArray) };
            }
            Some(b',') if !self.first => {
                cursor.skip(1);
                cursor.skip_space();
            }
            Some(_) if self.first => {}
            Some(_) | None => return Err(NotAnArray),
        }
        self.first = false;
        let start = cursor.position();
        cursor.value().ok_or(NotAnArray)?;
        self.at = cursor.position();
        self.text.get(start..self.at).map(Some).ok_or(NotAnArray)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<&str>, NotAnArray> {
        elements(text)?.collect()
    }

    #[test]
    fn values_are_the_text_as_written() {
        let text = " [ {\"a\":[1,\"]\"]} ,[ ],\"x,]\" , -1.50e1,null ] ";
        let expected = [r#"{"a":[1,"]"]}"#, "[ ]", "\"x,]\"", "-1.50e1", "null"];
        assert_eq!(read(text).unwrap(), expected);
        for empty in ["[]", "[ ]", " [\n]\t"] {
            assert_eq!(read(empty).unwrap(), [""; 0]);
        }
    }

    #[test]
    fn what_breaks_off_or_is_no_array_is_an_error() {
        for text in ["", "{}", "1", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1]x", "[\"a]"] {
            assert_eq!(read(text), Err(NotAnArray), "{text}");
        }
    }
}
