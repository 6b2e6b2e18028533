//! Error text of a tool, parsed from the recorded head of its answer. Pure functions.

/// Maximum length of a tool's own error that is recorded as the reason, in characters.
const MAX_REPORTED_CHARS: usize = 300;

/// First text of a tool's error result, or message of a JSON-RPC error, on one line. `response` is the recorded
/// head of the answer and may be cut anywhere.
pub(super) fn reported_error(response: &[u8]) -> Option<String> {
    let response = String::from_utf8_lossy(response);
    let keys = ["\"text\"", "\"message\""].into_iter();
    let mut after_keys: Vec<usize> = keys
        .flat_map(|key| response.match_indices(key).map(move |(at, _)| at + key.len()))
        .collect();
    after_keys.sort_unstable();
    let text = after_keys.into_iter().find_map(|at| {
        let value = response.get(at..)?.trim_start().strip_prefix(':')?.trim_start();
        string_head(value.strip_prefix('"')?)
    })?;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut = line.char_indices().nth(MAX_REPORTED_CHARS).map(|(at, _)| at);
    let line = match cut.and_then(|at| line.get(..at)) {
        Some(head) => format!("{head}…"),
        None => line,
    };
    (!line.is_empty()).then_some(line)
}

/// Text of a JSON string after its opening quote; its end may be cut off.
fn string_head(inner: &str) -> Option<String> {
    let mut escaped = false;
    let end = inner.find(|letter| {
        let ends = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    let whole = |inner: &str| serde_json::from_str::<String>(&format!("\"{inner}\"")).ok();
    match end {
        Some(end) => whole(inner.get(..end)?),
        // The cut may be within an escape sequence.
        None => (0..=LONGEST_ESCAPE).find_map(|less| {
            let end = inner.len().checked_sub(less)?;
            whole(inner.get(..end)?)
        }),
    }
}

/// Bytes of the longest escape sequence, a surrogate pair.
const LONGEST_ESCAPE: usize = 12;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn act_1_error_of_a_tool_is_read_from_the_head_of_its_answer() {
        let long = "x".repeat(MAX_REPORTED_CHARS + 1);
        for (response, expected) in [
            (
                r#"{"content":[{"type":"text","text":"no such\n \"item\""}],"isError":true}"#,
                Some("no such \"item\""),
            ),
            (r#"{"isError":true,"content":[{"text" : "first"},{"text":"second"}]}"#, Some("first")),
            (r#"{"content":[{"type":"text","text":"cut he"#, Some("cut he")),
            ("{\"content\":[{\"text\":\"cut \\u00", Some("cut")),
            (r#"{"code":-32000,"message":"not today","data":{"text":"x"}}"#, Some("not today")),
            (r#"{"content":[],"isError":true}"#, None),
            (r#"{"content":[{"type":"text","text":""}],"isError":true}"#, None),
            ("", None),
        ] {
            assert_eq!(reported_error(response.as_bytes()).as_deref(), expected, "{response}");
        }
        let response = json!({"content": [{"text": long}]}).to_string();
        let cut = reported_error(response.as_bytes()).unwrap();
        assert_eq!(cut.chars().count(), MAX_REPORTED_CHARS + 1);
        assert!(cut.ends_with('…'));
    }
}
