//! A member of a record's metadata that the log's writer computes: what costs too much on the call's thread. Pure.

use std::sync::Arc;

/// A member of a record's metadata whose value is computed when the record is written.
#[derive(Clone)]
pub struct LateMember {
    name: &'static str,
    value: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for LateMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateMember").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LateMember {
    /// `value` gives raw JSON without secrets: it is written as it is. What it holds is kept until the record is written.
    pub fn new(name: &'static str, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { name, value: Arc::new(value) }
    }

    /// The metadata with this member at their end.
    #[must_use]
    pub fn added_to(&self, metadata: &[u8]) -> Vec<u8> {
        with_member(metadata, self.name, &(self.value)())
    }
}

/// The object `metadata`, or an empty one where there is none, with one member more; `value` is raw JSON.
#[must_use]
pub fn with_member(metadata: &[u8], name: &str, value: &str) -> Vec<u8> {
    let before = metadata.trim_ascii_end().strip_suffix(b"}").unwrap_or(b"{");
    let comma: &[u8] = if before.len() > 1 { b"," } else { b"" };
    [before, comma, b"\"", name.as_bytes(), b"\":", value.as_bytes(), b"}"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_added_to_what_there_is() {
        for (before, after) in
            [("", r#"{"a":1}"#), ("{}", r#"{"a":1}"#), ("{\"b\":{}}\n", r#"{"b":{},"a":1}"#)]
        {
            let late = LateMember::new("a", || "1".to_owned());
            assert_eq!(late.added_to(before.as_bytes()), after.as_bytes());
        }
    }
}
