//! `/api/v1/activity/export`: all records that match a filter, oldest first, as NDJSON, CSV or Parquet (ACT-7).
//!
//! Only one small page of records is in memory at a time. A low-priority thread reads it after the client has read the
//! previous page, so that a slow client occupies neither a thread nor the store. An export ends with the record that
//! was the last one when it started. It is aborted if retention removes records that it has not read yet, or if its
//! client leaves data unread for too long; its last line states the reason, and another export can resume `after` the
//! last record received. If nodes of a fleet are missing, an otherwise complete export ends with a line that names
//! them.
//!
//! Records are written as NDJSON, CSV (RFC 4180) or Parquet. In NDJSON, the last line has the members that a consumer
//! of records expects, so that it can be parsed as a record; it has no `id`, `seq` or `hash`, because it is not one.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use mcpproxy_activity::codec::canonical;
use mcpproxy_activity::merged::{ForwardPlace, MergedView};
use mcpproxy_activity::record::NodeId;
use mcpproxy_activity::scan::ChainedRecord;
use mcpproxy_activity::view::View;
use mcpproxy_activity::{Filter, Id, PORTION, QueryError, Record, StoreError};
use mcpproxy_downstream::body::Body;
use mcpproxy_fleet::parquet_table::{RecordCollector, TableError, TableWriter};
use mcpproxy_fleet::{FleetForward, FleetLogs, FleetReading, ForwardBroken};
use mcpproxy_gateway::proxy::reply::Aborted;
use mcpproxy_runtime::io::clock::wall_ms;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;
use utoipa::{IntoParams, ToSchema};

use crate::api::activity::{FilterParameters, NodeParameters, RecordScan};
use crate::api::query_parameters::{BadQuery, Query};
use crate::api::reader_limits::{Purpose, ReaderPace, ReaderSlot};
use crate::api::request::ApiRequest;
use crate::api::response::ApiError;
use crate::api::{activity, reader_limits, response};

/// Time for the last line of an aborted export to be sent.
const LAST_LINE_TIMEOUT: Duration = Duration::from_millis(250);

/// The formats, the default first.
const FORMATS: [Format; 3] = [Format::Json, Format::Csv, Format::Parquet];

/// Maximum number of records in a row group of a table.
const GROUP_RECORDS: usize = 16_384;
/// Maximum size of a row group in bytes.
const GROUP_BYTES: usize = 4 << 20;

/// Node name in an exported table. Empty, because a table always covers one machine.
const NO_NODE: &str = "";

const ONE_NODE: &str = "A table holds the records of one node: select it with 'node'";
const NOT_RETAINED: &str =
    "cursor 'after' points to a record that is no longer retained; restart the export without it";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase")]
enum Format {
    /// One JSON object per line.
    Json,
    /// A header line, then one line per record.
    Csv,
    /// A table with the columns of a fleet's segments.
    Parquet,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        })
    }
}

impl Format {
    fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }

    /// The last line of an export that lacks nodes.
    fn incomplete_line(self, missing: &Missing) -> Bytes {
        match self {
            Self::Json => missing_line(missing, wall_ms()).into(),
            Self::Csv => {
                let mut out = Vec::new();
                csv_line(&mut out, &[missing_cell(missing)]);
                out.into()
            }
            // The reasons are stored in the footer instead.
            Self::Parquet => Bytes::new(),
        }
    }

    /// The last line of an aborted export: the reason and the record to resume after.
    fn aborted_line(self, why: &str, sent: Option<Id>) -> Bytes {
        match self {
            Self::Json => format!("{}\n", reader_limits::final_message(why, sent)).into(),
            Self::Csv => {
                let after = sent.map(|id| format!("; resume with after={id}")).unwrap_or_default();
                let mut out = Vec::new();
                csv_line(&mut out, &[format!("error: {why}{after}")]);
                out.into()
            }
            // A table without a footer is unreadable.
            Self::Parquet => Bytes::from_static(b"incomplete"),
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Json => "attachment; filename=\"activity.ndjson\"",
            Self::Csv => "attachment; filename=\"activity.csv\"",
            Self::Parquet => "attachment; filename=\"activity.parquet\"",
        }
    }
}

/// State of an export.
struct Export {
    logs: FleetLogs,
    /// Merged records of the whole fleet, if other nodes are queried; `logs` is then unused.
    fleet: Option<Box<FleetForward>>,
    /// The exported log; `None` if several logs are exported.
    log: Option<NodeId>,
    /// Position in each of several logs.
    places: Vec<ForwardPlace>,
    /// Columns of a CSV.
    columns: &'static [&'static str],
    filter: Filter,
    /// Only records that this accepts are exported.
    scan: Option<RecordScan>,
    format: Format,
    /// Number of the last record read, matching or not.
    seq: u64,
    /// The last record sent, or the record after which the export resumes.
    sent: Option<Id>,
    /// Number of the last record to export.
    last: u64,
    /// Whether the header line is still to be sent.
    begins: bool,
    /// The unfinished table; `None` once it is complete.
    table: Option<Table>,
    /// Nodes whose records are missing, with the reasons; emptied when they are written.
    missing: Missing,
    /// Whether the export has ended.
    is_over: bool,
}

/// An unfinished table.
struct Table {
    writer: TableWriter,
    group: RecordCollector,
}

/// Result of reading a page.
enum PageRead {
    Bytes(Vec<u8>),
    /// More records follow, but there is nothing to send yet.
    More,
    End,
}

/// Stage of an export.
enum Stage {
    /// Sends the next page.
    InFlight(Box<Export>, ReaderPace, ReaderSlot),
    /// The last line stated the reason. The body fails next, so that the client sees an incomplete response.
    Aborted(String),
}

impl Stage {
    async fn next(self) -> Result<Option<(Bytes, Self)>, Aborted> {
        let (export, mut pace, slot) = match self {
            Self::InFlight(export, pace, slot) => (export, pace, slot),
            Self::Aborted(why) => {
                // A failing body discards data that is not yet written to the socket, which includes the last line.
                tokio::time::sleep(LAST_LINE_TIMEOUT).await;
                return Err(Aborted(format!("export: {why}")));
            }
        };
        let (sent, format) = (export.sent, export.format);
        let read = match pace.on_poll(Instant::now()) {
            Some(waited) => Err(Broken::Slow(reader_limits::too_slow(waited))),
            None => export.read().await,
        };
        pace.on_send(Instant::now());
        Ok(match read {
            Ok(None) => None,
            Ok(Some((page, export))) => Some((page, Self::InFlight(export, pace, slot))),
            Err(broken) => {
                let why = broken.to_string();
                Some((format.aborted_line(&why, sent), Self::Aborted(why)))
            }
        })
    }
}

/// Response header with the comma-separated nodes whose records are incomplete in the export.
pub const FLEET_MISSING: HeaderName = HeaderName::from_static("mcpproxy-fleet-missing");

/// Format and start of an export.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParameters {
    /// `json`: a JSON object per line (default); `csv`: a header line, then a line per record; `parquet`: a table.
    #[param(inline, required = false)]
    format: Format,
    /// Id of the record after which an aborted export is resumed. The CSV then has no header line; not available for
    /// tables.
    #[param(
        value_type = Option<String>,
        nullable = false,
        pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
    )]
    after: Option<Id>,
    /// Only records that contain this text, ignoring ASCII case. There is no index of texts: all records that match the
    /// other filters are read.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    text: Option<String>,
    /// Only records of calls that took at least this long, in milliseconds; read like those of `text`.
    #[param(nullable = false, minimum = 1, maximum = 86_400_000)]
    min_duration_ms: Option<u64>,
}

/// Streams all matching records, oldest first.
///
/// Ends with the record that was the last one when the export started. An aborted response is incomplete: its last line
/// may state the reason (as JSON with `error` and `resume_after`; in CSV as a line of one cell), and `after` resumes
/// it. A response whose client reads nothing for 10 seconds is also aborted. If records of fleet nodes are missing, the
/// header `mcpproxy-fleet-missing` names the nodes, and the last line states the reasons: `{"type": "fleet_missing",
/// "missing": {…}}`, in CSV a line of one cell that starts with `fleet_missing: `; a table has them in its footer.
#[utoipa::path(
    get,
    path = "/api/v1/activity/export",
    tag = "activity",
    operation_id = "exportActivity",
    params(FilterParameters, ExportParameters, NodeParameters),
    responses(
        (
            status = 200,
            description = "The records",
            headers(("Content-Disposition" = String, description = "A file name")),
            content(
                (String = "application/x-ndjson"),
                (String = "text/csv"),
                (String = "application/vnd.apache.parquet"),
            ),
        ),
        (status = 404, description = "The record of `after` is not retained"),
        (status = 500, description = "The log cannot be read"),
        (
            status = 503,
            description = "Too many concurrent exports, in total or from one address; or pending records were not stored in time",
            headers(("Retry-After" = u64, description = "Seconds; if there are too many exports")),
        ),
    )
)]
pub(super) async fn export(
    ApiRequest { state, worker, connection, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let mut query = query?;
    let ExportParameters { format, after, text, min_duration_ms } =
        ExportParameters::read(&mut query)?;
    let scan = RecordScan::new(text.as_deref(), min_duration_ms)?;
    if format == Format::Parquet && after.is_some() {
        let text = "'after' is supported for json and csv only; a parquet export cannot be resumed";
        return Err(ApiError::bad_request(text));
    }
    let filter = FilterParameters::read(&mut query)?.filter();
    let reader = activity::reader(state, worker, &mut query)?;
    query.finish()?;
    let slot = state.readers.enter(Purpose::Export, connection.source)?;
    if let Some(reading) = reader.begin().await? {
        let logs = reader.logs().clone();
        return fleet_export(logs, reading, (filter, scan), (format, after), slot, id).await;
    }
    let logs = reader.logs().clone();
    let asked = logs.clone();
    let begun = activity::run_blocking(move || {
        let missing = asked.coverage().map(|coverage| coverage.missing).unwrap_or_default();
        let begun = asked.ask(|merged| {
            let [view] = merged.views() else {
                let is_known = match after {
                    Some(id) => merged.get(id)?.is_some(),
                    None => true,
                };
                return Ok((None, merged.places(after)?, (1, 0), is_known));
            };
            let (first, last) = (view.first(), view.next() - 1);
            let is_known = match after {
                // The record itself was removed, but no later record was.
                Some(after) if after.seq() + 1 == first => true,
                Some(after) => view.get(after)?.is_some(),
                None => true,
            };
            Ok((Some(view.node()), Vec::new(), (first, last), is_known))
        });
        begun.map(|begun| (begun, missing))
    });
    let ((log, places, (first, last), is_known), missing) = begun.await?;
    if log.is_none() && format == Format::Parquet {
        return Err(ApiError::bad_request(ONE_NODE));
    }
    if !is_known {
        return Err(ApiError::new(StatusCode::NOT_FOUND, NOT_RETAINED));
    }
    let seq = after.map_or(first - 1, Id::seq);
    let begins = after.is_none();
    let table = match format {
        Format::Json | Format::Csv => None,
        Format::Parquet => Some(Table::begin(log.unwrap_or(NodeId([0; 16])))?),
    };
    let (all, own) = (&COLUMNS[..], COLUMNS.split_last().map_or(&COLUMNS[..], |(_, own)| own));
    let columns = if state.fleet_index.get().is_some() { all } else { own };
    let (filter, sent) = (filter, after);
    let fleet = None;
    let export = Export {
        logs,
        fleet,
        log,
        places,
        columns,
        filter,
        scan,
        format,
        seq,
        sent,
        last,
        begins,
        table,
        missing,
        is_over: false,
    };
    Ok(stream_of(export, slot, id))
}

/// Streams the pages of an export.
fn stream_of(export: Export, slot: ReaderSlot, id: &str) -> Response<Body> {
    let format = export.format;
    let missing: Vec<_> = export.missing.keys().map(String::as_str).collect();
    let missing = HeaderValue::from_str(&missing.join(", ")).ok().filter(|it| !it.is_empty());
    let first = Stage::InFlight(Box::new(export), ReaderPace::default(), slot);
    let pages = stream::try_unfold(first, async |stage| stage.next().await);
    let mut response = response::json(StatusCode::OK, Body::Stream(Box::pin(pages)), id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(format.file()));
    if let Some(names) = missing {
        headers.insert(FLEET_MISSING, names);
    }
    response
}

/// Exports the records of a fleet; nodes that do not answer are named in [`FLEET_MISSING`].
async fn fleet_export(
    logs: FleetLogs,
    mut reading: FleetReading,
    (filter, scan): (Filter, Option<RecordScan>),
    (format, after): (Format, Option<Id>),
    slot: ReaderSlot,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    if format == Format::Parquet && reading.coverage().nodes.len() > 1 {
        return Err(ApiError::bad_request(ONE_NODE));
    }
    if let Some(after) = after
        && reading.get(after).await?.is_none()
    {
        return Err(ApiError::new(StatusCode::NOT_FOUND, NOT_RETAINED));
    }
    let forward = reading.forward(&filter, after).await?;
    let missing = forward.coverage().missing.clone();
    let table = match format {
        Format::Json | Format::Csv => None,
        Format::Parquet => Some(Table::begin(NodeId([0; 16]))?),
    };
    let export = Export {
        logs,
        fleet: Some(Box::new(forward)),
        log: None,
        places: Vec::new(),
        columns: &COLUMNS,
        filter,
        scan,
        format,
        seq: 0,
        sent: after,
        last: 0,
        begins: after.is_none(),
        table,
        missing,
        is_over: false,
    };
    Ok(stream_of(export, slot, id))
}

impl ExportParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        let format = query.word("format", &FORMATS)?.unwrap_or(Format::Json);
        let after = query.text("after")?;
        let after = after.map(|text| Id::parse(&text).ok_or_else(|| BadQuery::after(text)));
        Ok(Self {
            format,
            after: after.transpose()?,
            text: query.text("text")?,
            min_duration_ms: query.number("min_duration_ms", activity::MIN_DURATIONS)?,
        })
    }
}

/// Reason for aborting an export.
#[derive(Debug, Error)]
enum Broken {
    #[error(transparent)]
    Query(#[from] QueryError),
    /// First and last number of the removed records, which would be exported next.
    #[error("retention removed records {0} to {1} before they were exported")]
    Removed(u64, u64),
    #[error(transparent)]
    Table(#[from] TableError),
    /// A record of another node cannot be reproduced in the form in which that node added it to its hash chain.
    #[error("record {0} was written by another version; export it on its own node")]
    NotAsStored(u64),
    /// The client reads nothing, or another node stopped answering.
    #[error("{0}")]
    Slow(String),
}

impl From<ForwardBroken> for Broken {
    fn from(broken: ForwardBroken) -> Self {
        match broken {
            ForwardBroken::Query(error) => Self::Query(error),
            ForwardBroken::Node(why) => Self::Slow(why),
            ForwardBroken::Removed(first, last) => Self::Removed(first, last),
        }
    }
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self::Query(error.into())
    }
}

impl Export {
    /// Ends the export, with a line that names missing nodes, if any.
    fn ending(mut self: Box<Self>) -> Option<(Bytes, Box<Self>)> {
        let missing = std::mem::take(&mut self.missing);
        if std::mem::replace(&mut self.is_over, true) || missing.is_empty() {
            return None;
        }
        let line = self.format.incomplete_line(&missing);
        (!line.is_empty()).then_some((line, self))
    }

    /// Reads the next page on the low-priority thread.
    async fn read(mut self: Box<Self>) -> Result<Option<(Bytes, Box<Self>)>, Broken> {
        if self.is_over {
            return Ok(None);
        }
        if let Some(mut fleet) = self.fleet.take() {
            loop {
                let records = fleet.next(PORTION.records).await?;
                self.sent = records.last().map(|record| record.id).or(self.sent);
                match self.fleet_page(&records)? {
                    PageRead::Bytes(bytes) => {
                        self.fleet = Some(fleet);
                        return Ok(Some((bytes.into(), self)));
                    }
                    PageRead::More => {}
                    PageRead::End => return Ok(self.ending()),
                }
            }
        }
        let activity = self.logs.activity().clone();
        loop {
            let page;
            (page, self) = activity
                .run_on_reader(move |_| {
                    let page = self.page();
                    (page, self)
                })
                .await?;
            match page? {
                PageRead::Bytes(bytes) => return Ok(Some((bytes.into(), self))),
                PageRead::More => {}
                PageRead::End => return Ok(self.ending()),
            }
        }
    }

    /// Reads the next page of the local logs.
    fn page(&mut self) -> Result<PageRead, Broken> {
        let mut views = self.logs.stored()?.into_views();
        let Some(log) = self.log else {
            return self.merged_page(&MergedView::new(views));
        };
        views.retain(|view| view.node() == log);
        // There is a view only while the node is followed.
        let view = views.pop().ok_or(QueryError::Busy)?.up_to(self.last);
        if view.first() > self.seq + 1 && self.seq < self.last {
            return Err(Broken::Removed(self.seq + 1, (view.first() - 1).min(self.last)));
        }
        let (records, seq) = view.since(self.seq, &self.filter, PORTION)?;
        self.seq = seq;
        self.sent = records.last().map(|record| record.id).or(self.sent);
        if self.format == Format::Parquet {
            let wanted = records.iter().filter(|record| self.is_wanted(record));
            let seqs: Vec<u64> = wanted.map(|record| record.seq).collect();
            return self.part_of_table(&view, &seqs, records.is_empty());
        }
        Ok(self.lines(&records))
    }

    /// Whether a record that matches the filter is exported.
    fn is_wanted(&self, record: &Record) -> bool {
        self.scan.as_ref().is_none_or(|scan| scan.accepts(record))
    }

    /// Reads the next page of several logs.
    fn merged_page(&mut self, view: &MergedView) -> Result<PageRead, Broken> {
        for place in self.places.iter().filter(|place| place.seq < place.last) {
            let kept = view.views().iter().find(|view| view.node() == place.log);
            let first = kept.ok_or(QueryError::Busy)?.first();
            if first > place.seq + 1 {
                return Err(Broken::Removed(place.seq + 1, (first - 1).min(place.last)));
            }
        }
        let records = view.forward(&mut self.places, &self.filter, PORTION)?;
        self.sent = records.last().map(|record| record.id).or(self.sent);
        Ok(self.lines(&records))
    }

    /// Renders the next page of a fleet's records, or ends the export if there are no records.
    fn fleet_page(&mut self, records: &[Record]) -> Result<PageRead, Broken> {
        if self.format != Format::Parquet {
            return Ok(self.lines(records));
        }
        let Some(mut table) = self.table.take() else { return Ok(PageRead::End) };
        for record in records.iter().filter(|record| self.is_wanted(record)) {
            if table.group.is_empty() {
                table.group = RecordCollector::new(record.node);
            }
            let (seq, prev, hash) = (record.seq, record.prev_hash, record.hash);
            let (head, body) = canonical(record).ok_or(Broken::NotAsStored(seq))?;
            table.group.push(&ChainedRecord { seq, prev, hash, head: &head, body: &body });
        }
        let ends = records.is_empty();
        let (page, rest) = table.part(ends, &self.missing)?;
        self.table = rest;
        Ok(page)
    }

    /// Renders records as lines, or ends the export if there are no records.
    fn lines(&mut self, records: &[Record]) -> PageRead {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.begins) && self.format == Format::Csv {
            csv_line(&mut bytes, self.columns);
        }
        let mut json = Vec::new();
        for record in records.iter().filter(|record| self.is_wanted(record)) {
            match self.format {
                Format::Json => {
                    reader_limits::one_line(record, &mut bytes);
                    bytes.push(b'\n');
                }
                Format::Csv => {
                    json.clear();
                    reader_limits::one_line(record, &mut json);
                    csv_row(&mut bytes, &json, self.columns);
                }
                // Tables are rendered by `part_of_table`.
                Format::Parquet => {}
            }
        }
        match (bytes.is_empty(), records.is_empty()) {
            (false, _) => PageRead::Bytes(bytes),
            (true, true) => PageRead::End,
            (true, false) => PageRead::More,
        }
    }

    /// Adds records to the table and returns its completed bytes. The table ends with the last record, or if `none` were read.
    fn part_of_table(&mut self, view: &View, seqs: &[u64], none: bool) -> Result<PageRead, Broken> {
        let Some(mut table) = self.table.take() else { return Ok(PageRead::End) };
        view.chained(seqs.iter().copied(), |record| table.group.push(record))?;
        let ends = none || self.seq >= self.last;
        let (page, rest) = table.part(ends, &self.missing)?;
        self.table = rest;
        Ok(page)
    }
}

impl Table {
    fn begin(log: NodeId) -> Result<Self, ApiError> {
        let writer = TableWriter::new(NO_NODE);
        let writer = writer.map_err(ApiError::internal)?;
        Ok(Self { writer, group: RecordCollector::new(log) })
    }

    /// Returns the completed bytes and the rest of the table, or all bytes if the table `ends` here.
    fn part(mut self, ends: bool, missing: &Missing) -> Result<(PageRead, Option<Self>), Broken> {
        if ends || self.group.len() >= GROUP_RECORDS || self.group.bytes() >= GROUP_BYTES {
            let next = RecordCollector::new(self.group.log());
            let full = std::mem::replace(&mut self.group, next).finish();
            if !full.is_empty() {
                self.writer.write(&full)?;
            }
        }
        if ends {
            if !missing.is_empty() {
                self.writer.note(MISSING_NOTE, missing_json(missing));
            }
            return Ok((PageRead::Bytes(self.writer.finish()?), None));
        }
        let bytes = self.writer.take()?;
        let page = if bytes.is_empty() { PageRead::More } else { PageRead::Bytes(bytes) };
        Ok((page, Some(self)))
    }
}

/// CSV columns: every member of a record, in the record's order. The last column is used only in a fleet.
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

/// Characters that make a spreadsheet treat a cell as a formula.
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// Writes a record as a line of CSV: texts verbatim, other values as their JSON.
pub(super) fn csv_row(out: &mut Vec<u8>, json: &[u8], columns: &[&str]) {
    // The record was serialized by this program, so names have no escapes.
    let members: HashMap<&str, &RawValue> = serde_json::from_slice(json).unwrap_or_default();
    let cells =
        columns.iter().map(|column| members.get(column).map_or(String::new(), |raw| csv_cell(raw)));
    csv_line(out, &cells.collect::<Vec<_>>());
}

/// Renders a value as a cell, with formulas neutralized.
fn csv_cell(raw: &RawValue) -> String {
    let text = match serde_json::from_str::<Option<String>>(raw.get()) {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => raw.get().to_owned(),
    };
    match text.starts_with(FORMULA) {
        true => format!("'{text}"),
        false => text,
    }
}

/// Writes a line, quoting cells where RFC 4180 requires it.
pub(super) fn csv_line<T: AsRef<str>>(out: &mut Vec<u8>, cells: &[T]) {
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

/// Reasons for missing records by node name; `shards` and `store` are used as in the coverage of other responses.
pub type Missing = BTreeMap<String, String>;

/// `type` of the trailing JSON line.
pub(crate) const MISSING_TYPE: &str = "fleet_missing";
/// Key in a table's footer.
pub(crate) const MISSING_NOTE: &str = "mcpproxy.fleet_missing";
/// Start of the trailing CSV cell.
pub const MISSING_CELL: &str = "fleet_missing: ";
/// Start of the trailing JSON line.
const MISSING_HEAD: &[u8] = b"{\"type\":\"fleet_missing\",";

#[derive(Serialize)]
struct MissingLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    source: &'a str,
    principal: &'a str,
    server_name: &'a str,
    tool_name: &'a str,
    status: &'a str,
    error_message: String,
    timestamp: String,
    missing: &'a Missing,
}

#[derive(Deserialize)]
struct ReadLine {
    missing: Missing,
}

/// Renders the reasons as JSON.
pub(crate) fn missing_json(missing: &Missing) -> String {
    serde_json::to_string(missing).unwrap_or_default()
}

/// Renders the trailing JSON line with its line end. `now_ms` is in milliseconds since 1970.
pub fn missing_line(missing: &Missing, now_ms: u64) -> String {
    let now = i64::try_from(now_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let line = MissingLine {
        kind: MISSING_TYPE,
        source: "internal",
        principal: "",
        server_name: "",
        tool_name: "",
        status: "error",
        error_message: missing_text(missing),
        timestamp: format!("{:.3}", now.unwrap_or_default()),
        missing,
    };
    format!("{}\n", serde_json::to_string(&line).unwrap_or_default())
}

/// Renders the trailing CSV cell.
pub fn missing_cell(missing: &Missing) -> String {
    format!("{MISSING_CELL}{}", missing_text(missing))
}

/// Renders the reasons as text for humans.
pub fn missing_text(missing: &Missing) -> String {
    let each = missing.iter().map(|(node, why)| format!("{node}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

/// Parses a trailing JSON line; `None` for a record.
pub fn read_missing_line(line: &[u8]) -> Option<Missing> {
    let is_it = line.starts_with(MISSING_HEAD);
    is_it.then(|| serde_json::from_slice::<ReadLine>(line).ok())?.map(|line| line.missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(json: &str) -> String {
        let mut out = Vec::new();
        csv_row(&mut out, json.as_bytes(), &COLUMNS[..26]);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn act_7_csv_quotes_cells_and_keeps_json_verbatim() {
        let row = cells(
            r#"{"id":"01X","seq":7,"arguments":{"b":1.50,"a":"x, y"},"response":"say \"hi\"\nnow","metadata":{}}"#,
        );
        let expected = "01X,7,,,,,,,,,\"{\"\"b\"\":1.50,\"\"a\"\":\"\"x, y\"\"}\",,,\
                        \"say \"\"hi\"\"\nnow\",,,,,,,,,,,,{}\r\n";
        assert_eq!(row, expected);
        assert_eq!(cells(r#"{"arguments":null}"#), ",".repeat(25) + "\r\n");
    }

    #[test]
    fn act_7_csv_neutralizes_formulas() {
        for begins in FORMULA {
            let json = serde_json::json!({"error_message": format!("{begins}cmd|' /C calc'!A0")});
            let row = cells(&json.to_string());
            assert!(row.trim_start_matches([',', '"']).starts_with(&format!("'{begins}")), "{row}");
        }
        assert!(cells(r#"{"error_message":"a=b"}"#).contains(",a=b,"));
    }

    #[test]
    fn trailing_line_round_trips_and_is_not_a_record() {
        let missing = Missing::from([("b".to_owned(), "it does not live".to_owned())]);
        let line = missing_line(&missing, 1_767_225_600_000);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["timestamp"], "2026-01-01T00:00:00.000Z");
        assert_eq!(read["error_message"], "b: it does not live");
        assert!(read.get("id").is_none(), "{line}");
        assert_eq!(read_missing_line(line.as_bytes()), Some(missing.clone()));
        assert_eq!(read_missing_line(b"{\"id\":\"1\",\"type\":\"fleet_missing\"}"), None);
        assert_eq!(missing_cell(&missing), "fleet_missing: b: it does not live");
    }
}
