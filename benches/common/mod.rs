//! Shared inputs of the benchmarks: tool results of any size, like those of real servers, and the JSON Schema to which
//! they conform.
//!
//! The result of a search over issues: nested objects and arrays, numbers, enums, dates, prose with escapes and
//! characters beyond ASCII. As the protocol recommends, `content` contains the structured result a second time, as
//! escaped text.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::indexing_slicing,
    reason = "each benchmark includes it and uses a part; its tables are indexed by remainders"
)]

use std::fmt::Write;

/// The sizes used by every benchmark, with their names.
pub const SIZES: [(&str, usize); 4] =
    [("1KB", 1_000), ("13KB", 13_000), ("1.3MB", 1_300_000), ("13MB", 13_000_000)];

/// Sizes to run: only the small ones under `cargo test`, which is unoptimized and only checks that it runs.
pub fn sizes() -> &'static [(&'static str, usize)] {
    let measures = std::env::args().any(|arg| arg == "--bench");
    if measures { &SIZES } else { &SIZES[..2] }
}

/// The `outputSchema` of the tool; every structured result of [`response`] conforms to it.
pub const SCHEMA: &str = r##"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["total", "incomplete", "items"],
  "additionalProperties": false,
  "properties": {
    "total": {"type": "integer", "minimum": 0},
    "incomplete": {"type": "boolean"},
    "items": {"type": "array", "items": {"$ref": "#/$defs/issue"}}
  },
  "$defs": {
    "issue": {
      "type": "object",
      "required": ["number", "title", "state", "user", "labels", "score", "created_at"],
      "properties": {
        "number": {"type": "integer", "minimum": 1},
        "title": {"type": "string", "minLength": 1, "maxLength": 200},
        "state": {"enum": ["open", "closed"]},
        "user": {
          "type": "object",
          "required": ["login", "id"],
          "properties": {
            "login": {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"},
            "id": {"type": "integer"},
            "admin": {"const": false}
          }
        },
        "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "created_at": {"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}T"},
        "milestone": {"type": ["string", "null"]},
        "body": {"type": "string"}
      }
    }
  }
}"##;

/// A JSON-RPC response of about `size` bytes that carries a tool result conforming to [`SCHEMA`].
pub fn response(size: usize) -> Vec<u8> {
    let structured = structured(size);
    let mut message = String::with_capacity(size + size / 4);
    message.push_str(r#"{"jsonrpc":"2.0","id":42,"result":{"content":[{"type":"text","text":""#);
    for char in structured.chars() {
        if matches!(char, '"' | '\\') {
            message.push('\\');
        }
        message.push(char);
    }
    message.push_str(r#""}],"structuredContent":"#);
    message.push_str(&structured);
    message.push_str(r#","isError":false}}"#);
    message.into_bytes()
}

/// The structured result alone, about four ninths of the response.
pub fn structured(size: usize) -> String {
    let max = size.saturating_sub(120) * 4 / 9;
    let mut items = String::new();
    let mut count = 0;
    while count == 0 || items.len() + 60 < max {
        if count > 0 {
            items.push(',');
        }
        issue(&mut items, count, max);
        count += 1;
    }
    format!(r#"{{"total":{count},"incomplete":false,"items":[{items}]}}"#)
}

/// Appends an issue. It has no body if `room` is at most 1000 bytes.
fn issue(out: &mut String, n: usize, room: usize) {
    const WORDS: [&str; 12] = [
        "timeout",
        "when",
        "the",
        "stream",
        "closes",
        "early",
        "naïve",
        "cache",
        "—",
        "retry",
        "\\\"quoted\\\"",
        "path\\\\to",
    ];
    let word = |k: usize| WORDS[(n * 7 + k * 5 + n / 11) % WORDS.len()];
    let labels = ["\"bug\"", "\"bug\",\"p1\"", "", "\"docs\",\"good first issue\",\"help\""][n % 4];
    let state = ["open", "closed"][n % 2];
    let milestone = ["null", "\"2.0\"", "\"2.1\""][n % 3];
    let _ = write!(
        out,
        r#"{{"number":{},"title":"{} {} {} {}","state":"{state}","user":{{"login":"user-{}","id":{},"admin":false}},"labels":[{labels}],"score":0.{:04},"created_at":"2026-{:02}-{:02}T08:{:02}:00Z","milestone":{milestone}"#,
        n + 1,
        word(0),
        word(1),
        word(2),
        word(3),
        n % 97,
        1_000_000 + n * 31,
        n * 37 % 10_000,
        n % 12 + 1,
        n % 28 + 1,
        n % 60,
    );
    if room > 1_000 {
        out.push_str(r#","body":""#);
        for k in 0..n * 13 % 60 {
            let _ = write!(out, "{}{}", word(k), if k % 9 == 8 { ".\\n" } else { " " });
        }
        out.push('"');
    }
    out.push('}');
}
