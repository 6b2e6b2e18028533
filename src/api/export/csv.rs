//! Records as lines of CSV (RFC 4180). Pure.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// The columns: every member of a record, in its order. The last is there in a fleet alone.
pub(super) const COLUMNS: [&str; 27] = [
    "id",
    "seq",
    "node",
    "prev_hash",
    "hash",
    "type",
    "source",
    "principal",
    "server_name",
    "tool_name",
    "arguments",
    "arguments_truncated",
    "arguments_bytes",
    "response",
    "response_truncated",
    "response_bytes",
    "status",
    "error_message",
    "duration_ms",
    "overhead_us",
    "timestamp",
    "session_id",
    "request_id",
    "parent_id",
    "intent",
    "metadata",
    "node_name",
];

/// How a text begins that a spreadsheet takes for a formula.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// One record as a line of CSV: texts as they are, all else as the JSON it was.
pub(super) fn row(out: &mut Vec<u8>, json: &[u8], columns: &[&str]) {
    // Our own JSON, whose names need no escapes.
    let members: HashMap<&str, &RawValue> = serde_json::from_slice(json).unwrap_or_default();
    let cells =
        columns.iter().map(|column| members.get(column).map_or(String::new(), |raw| cell(raw)));
    line(out, &cells.collect::<Vec<_>>());
}

/// A value as the text of a cell, disarmed.
fn cell(raw: &RawValue) -> String {
    let text = match serde_json::from_str::<Option<String>>(raw.get()) {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => raw.get().to_owned(),
    };
    match text.starts_with(FORMULA) {
        true => format!("'{text}"),
        false => text,
    }
}

/// RFC 4180: cells are quoted where they must be, lines end with CR LF.
pub(super) fn line<T: AsRef<str>>(out: &mut Vec<u8>, cells: &[T]) {
    for (index, cell) in cells.iter().map(AsRef::as_ref).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match cell.contains(['"', ',', '\r', '\n']) {
            true => {
                out.push(b'"');
                out.extend_from_slice(cell.replace('"', "\"\"").as_bytes());
                out.push(b'"');
            }
            false => out.extend_from_slice(cell.as_bytes()),
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(json: &str) -> String {
        let mut out = Vec::new();
        row(&mut out, json.as_bytes(), &COLUMNS[..26]);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn act_7_csv_is_quoted_and_keeps_json_as_it_was() {
        let row = cells(
            r#"{"id":"01X","seq":7,"arguments":{"b":1.50,"a":"x, y"},"response":"say \"hi\"\nnow","metadata":{}}"#,
        );
        let expected = "01X,7,,,,,,,,,\"{\"\"b\"\":1.50,\"\"a\"\":\"\"x, y\"\"}\",,,\
                        \"say \"\"hi\"\"\nnow\",,,,,,,,,,,,{}\r\n";
        assert_eq!(row, expected);
        assert_eq!(cells(r#"{"arguments":null}"#), ",".repeat(25) + "\r\n");
    }

    #[test]
    fn act_7_what_a_server_wrote_is_no_formula() {
        for begins in FORMULA {
            let json = serde_json::json!({"error_message": format!("{begins}cmd|' /C calc'!A0")});
            let row = cells(&json.to_string());
            assert!(row.trim_start_matches([',', '"']).starts_with(&format!("'{begins}")), "{row}");
        }
        assert!(cells(r#"{"error_message":"a=b"}"#).contains(",a=b,"));
    }
}
