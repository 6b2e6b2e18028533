//! Target `signature`: the description of a tool for agents is one bounded line for any schema, name and description, and an
//! example of its arguments is bounded JSON.
//!
//! Input: a name and a description, each ended by a zero byte, then an input schema, JSON or not.

use mcpproxy_policy::tool::example;
use mcpproxy_policy::tool::signature::{MAX_SIGNATURE_BYTES, signature};
use mcpproxy_policy::tool::signature::{MAX_SUMMARY_BYTES, first_sentence};
use serde_json::value::RawValue;

/// Maximum length of a tool name in bytes, with each character escaped.
const MAX_NAME_BYTES: usize = 256 * 6 + 16;
/// Maximum size of an example in bytes.
const MAX_EXAMPLE_BYTES: usize = 256 * 1024;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.splitn(3, '\0');
    let [Some(name), Some(description), Some(schema)] = [(); 3].map(|()| parts.next()) else {
        return;
    };
    let name: String = name.chars().filter(|letter| !letter.is_control()).take(64).collect();
    one_line(&first_sentence(description), MAX_SUMMARY_BYTES);
    let line = signature(&name, schema);
    one_line(&line, MAX_SIGNATURE_BYTES + MAX_NAME_BYTES);
    let Ok(raw) = serde_json::from_str::<Box<RawValue>>(schema) else { return };
    assert!(example(&raw).to_string().len() <= MAX_EXAMPLE_BYTES);
}

fn one_line(line: &str, most: usize) {
    assert!(line.len() <= most, "{} bytes", line.len());
    let breaks = |letter: char| letter.is_control() || "\u{2028}\u{2029}\u{202e}".contains(letter);
    assert!(!line.contains(breaks), "{line:?}");
}
