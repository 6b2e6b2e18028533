//! Values of an answer, found by JSON pointer (RFC 6901).

use std::borrow::Cow;

use serde_json::Value;

/// The text at a JSON pointer: strings as they are, other values as JSON, nothing as "".
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Cow<'a, str> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// The array at a JSON pointer, or none.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
