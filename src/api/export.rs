//! `/api/v1/activity/export`: every record a filter means, oldest first, as NDJSON or CSV (ACT-7).
//!
//! One page of records is in memory at a time, read when the client has taken the one before it; a
//! slow client holds no thread, and nothing of the store. An export ends with the last record there
//! was when it began; it breaks off where retention removes what it has not read yet.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::value::RawValue;
use thiserror::Error;
use utoipa::{IntoParams, ToSchema};

use super::activity::{self, Filters};
use super::answer::{self, Failure};
use super::query::{BadQuery, Query};
use crate::activity::{Activity, Filter, QueryError, StoreError};
use crate::downstream::body::Body;
use crate::proxy::Worker;
use crate::proxy::reply::Aborted;

/// Records read at a time: with their payloads at their limits, about 4 MiB.
const PAGE_RECORDS: usize = 256;

/// The formats, the default first.
const FORMATS: [Format; 2] = [Format::Json, Format::Csv];

/// The columns of the CSV: every member of a record, in its order.
const COLUMNS: [&str; 25] = [
    "id",
    "seq",
    "node",
    "prev_hash",
    "hash",
    "type",
    "source",
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
];

/// How a text begins that a spreadsheet takes for a formula.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase")]
enum Format {
    /// One JSON object per line.
    Json,
    /// A header line, then one line per record.
    Csv,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Csv => "csv",
        })
    }
}

impl Format {
    fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Json => "attachment; filename=\"activity.ndjson\"",
            Self::Csv => "attachment; filename=\"activity.csv\"",
        }
    }
}

/// Where an export is.
struct Export {
    activity: Activity,
    filter: Filter,
    format: Format,
    /// The last record looked at.
    seq: u64,
    /// The last record that is exported.
    last: u64,
    /// Whether the header line is still to come.
    begins: bool,
}

/// How an export is written.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Written {
    /// A JSON object on each line, which is also the default, or a header line and a line for each
    /// record.
    #[param(inline, required = false)]
    format: Format,
}

/// Exports every record that is meant, oldest first, streamed.
///
/// Ends with the last record there was when it began. An answer that breaks off is not complete.
#[utoipa::path(
    get,
    path = "/api/v1/activity/export",
    tag = "activity",
    operation_id = "exportActivity",
    params(Filters, Written),
    responses(
        (
            status = 200,
            description = "The records",
            headers(("Content-Disposition" = String, description = "A file name")),
            content((String = "application/x-ndjson"), (String = "text/csv")),
        ),
        (status = 500, description = "The log cannot be read"),
        (status = 503, description = "Records on their way to the log did not arrive in time"),
    )
)]
pub(super) async fn export(
    worker: &Worker,
    mut query: Query,
    id: &str,
) -> Result<Response<Body>, Failure> {
    let Written { format } = Written::read(&mut query)?;
    let filter = Filters::read(&mut query)?.filter();
    query.finish()?;
    let (seq, last) = activity::ask(worker, |activity| {
        let view = activity.view()?;
        Ok((view.first() - 1, view.next() - 1))
    })
    .await?;
    let activity = worker.proxy.activity.clone();
    let export = Export { activity, filter, format, seq, last, begins: true };
    let pages = stream::try_unfold(export, async |export| {
        let read = tokio::task::spawn_blocking(move || export.page()).await;
        let aborted = |error: &dyn std::fmt::Display| Aborted(format!("export: {error}"));
        read.map_err(|error| aborted(&error))?.map_err(|error| aborted(&error))
    });
    let mut response = answer::json(StatusCode::OK, Body::Stream(Box::pin(pages)), id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(format.file()));
    Ok(response)
}

impl Written {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        Ok(Self { format: query.word("format", &FORMATS)?.unwrap_or(Format::Json) })
    }
}

/// Why an export breaks off.
#[derive(Debug, Error)]
enum Broken {
    /// The log cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// What was next is not kept any more.
    #[error("retention has removed records that were still to be exported")]
    Removed,
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self::Query(error.into())
    }
}

impl Export {
    /// The next page as bytes, or nothing after the last.
    fn page(mut self) -> Result<Option<(Bytes, Self)>, Broken> {
        let view = self.activity.stored()?.up_to(self.last);
        if view.first() > self.seq + 1 && self.seq < self.last {
            return Err(Broken::Removed);
        }
        let (records, seq) = view.since(self.seq, &self.filter, PAGE_RECORDS)?;
        self.seq = seq;
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.begins) && self.format == Format::Csv {
            line(&mut bytes, COLUMNS);
        }
        for record in &records {
            let json = activity::one_line(record);
            match self.format {
                Format::Json => {
                    bytes.extend_from_slice(json.as_bytes());
                    bytes.push(b'\n');
                }
                Format::Csv => row(&mut bytes, &json),
            }
        }
        Ok((!bytes.is_empty()).then(|| (bytes.into(), self)))
    }
}

/// One record as a line of CSV: texts as they are, all else as the JSON it was.
fn row(out: &mut Vec<u8>, json: &str) {
    // Our own JSON, whose names need no escapes.
    let members: HashMap<&str, &RawValue> = serde_json::from_str(json).unwrap_or_default();
    line(out, COLUMNS.map(|column| members.get(column).map_or(String::new(), |raw| cell(raw))));
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
fn line<T: AsRef<str>, const N: usize>(out: &mut Vec<u8>, cells: [T; N]) {
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
        row(&mut out, json);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn act_7_csv_is_quoted_and_keeps_json_as_it_was() {
        let row = cells(
            r#"{"id":"01X","seq":7,"arguments":{"b":1.50,"a":"x, y"},"response":"say \"hi\"\nnow","metadata":{}}"#,
        );
        let expected = "01X,7,,,,,,,,\"{\"\"b\"\":1.50,\"\"a\"\":\"\"x, y\"\"}\",,,\
                        \"say \"\"hi\"\"\nnow\",,,,,,,,,,,,{}\r\n";
        assert_eq!(row, expected);
        assert_eq!(cells(r#"{"arguments":null}"#), ",".repeat(COLUMNS.len() - 1) + "\r\n");
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
