//! Tools in words: the text blocks of `retrieve_tools` and `describe_tool`, for whoever reads no structured content. Pure.
//!
//! A tool begins at the margin, what belongs to it is indented; no name, description or schema of a server's can begin a
//! line of its own.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::intent::Operation;
use crate::tool::Tool;
use crate::tool::signature::on_one_line;

/// `server:tool(parameters) -> call_tool_read`, on a line of its own.
pub(super) fn heading(text: &mut String, tool: &Tool) {
    let server = on_one_line(&tool.name.server);
    let call_with = Operation::recommended(tool.capability).variant();
    // Infallible here and below: a String takes everything.
    let _ = writeln!(text, "{server}:{} -> {call_with}", tool.signature());
}

/// Lines that belong to the tool above.
pub(super) fn indented(text: &mut String, lines: &str) {
    for line in lines.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "  {}", on_one_line(&line.replace('\t', "  ")));
    }
}

/// JSON of a server's on one line: valid JSON holds no line break but between its tokens.
pub(super) fn json_line(text: &mut String, label: &str, json: &RawValue) {
    let _ = write!(text, "  {label}: ");
    text.extend(json.get().chars().map(|letter| if letter.is_control() { ' ' } else { letter }));
    text.push('\n');
}

/// The tool result of this structured content and this text. No value of ours makes it fail.
pub(super) fn tool_result<T: Serialize>(content: &T, text: &str) -> Vec<u8> {
    let result = || -> serde_json::Result<String> {
        let (structured, text) = (serde_json::to_string(content)?, serde_json::to_string(text)?);
        Ok(format!(
            r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{structured}}}"#
        ))
    };
    result().unwrap_or_default().into_bytes()
}
