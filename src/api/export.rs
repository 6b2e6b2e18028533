//! `/api/v1/activity/export`: every record a filter means, oldest first, as NDJSON, CSV or a table of Parquet
//! (ACT-7).
//!
//! One small page of records is in memory at a time, read by a thread of low priority when the client
//! has read the one before it; a slow client occupies no thread, and nothing of the store. An export
//! ends with the record that was the last when it began. It breaks off where retention removes what it
//! has not read yet, and where its client leaves what it was sent unread for too long; its last line
//! then says why, and another export goes on `after` the last record that came.
//!
//! Size: three formats and two origins of one stream, which share how it is paged and breaks off.

mod csv;

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use thiserror::Error;
use utoipa::{IntoParams, ToSchema};

use self::csv::COLUMNS;
use super::activity::{self, FilterParameters, NodeParameters};
use super::query_parameters::{BadQuery, Query};
use super::reader_limits::{self, Purpose, ReaderPace, ReaderSlot};
use super::response::{self, ApiError};
use super::state::State;
use crate::activity::chained::ChainedRecord;
use crate::activity::merged::{ForwardPlace, MergedView};
use crate::activity::record::NodeId;
use crate::activity::record_wire::canonical;
use crate::activity::view::View;
use crate::activity::{Filter, Id, PORTION, QueryError, Record, StoreError};
use crate::downstream::body::Body;
use crate::downstream::source::Source;
use crate::fleet::columns::{TableError, TableWriter};
use crate::fleet::record_rows::RecordCollector;
use crate::fleet::{FleetForward, FleetLogs, FleetReading, ForwardBroken};
use crate::proxy::Worker;
use crate::proxy::reply::Aborted;

/// How long an export that breaks off has for its last line to leave.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(250);

/// The formats, the default first.
const FORMATS: [Format; 3] = [Format::Json, Format::Csv, Format::Parquet];

/// A group of records in a table is closed at so many of them.
const GROUP_RECORDS: usize = 16_384;
/// Or at so many bytes.
const GROUP_BYTES: usize = 4 << 20;

/// The node that an exported table names: it is of one machine.
const NO_NODE: &str = "";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase")]
enum Format {
    /// One JSON object per line.
    Json,
    /// A header line, then one line per record.
    Csv,
    /// A table, with the columns of a fleet's segments.
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

    /// The last line of an export that breaks off: why, and the record to go on after.
    fn last_words(self, why: &str, sent: Option<Id>) -> Bytes {
        match self {
            Self::Json => format!("{}\n", reader_limits::last_words(why, sent)).into(),
            Self::Csv => {
                let after = sent.map(|id| format!("; resume with after={id}")).unwrap_or_default();
                let mut out = Vec::new();
                csv::line(&mut out, &[format!("error: {why}{after}")]);
                out.into()
            }
            // A table without its end is none.
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

/// An export on its way.
struct Export {
    logs: FleetLogs,
    /// The records of the whole fleet, where other nodes are asked; what is here has no part in it then.
    fleet: Option<Box<FleetForward>>,
    /// The log that is exported; `None` where there are several.
    log: Option<NodeId>,
    /// Where each of several is.
    places: Vec<ForwardPlace>,
    /// The columns of a CSV.
    columns: &'static [&'static str],
    filter: Filter,
    format: Format,
    /// The number of the last record that was read, whether it is exported or not.
    seq: u64,
    /// The last record sent, or the one that the export goes on after.
    sent: Option<Id>,
    /// The number of the last record to export.
    last: u64,
    /// Whether the header line is still to come.
    begins: bool,
    /// Of a table, what is not written yet; `None` once it is whole.
    table: Option<Table>,
}

/// A table on its way.
struct Table {
    writer: TableWriter,
    group: RecordCollector,
}

/// What became of a page.
enum PageRead {
    Bytes(Vec<u8>),
    /// There is more, and nothing to send yet.
    More,
    End,
}

/// What an export does next.
enum Stage {
    /// Send the next page.
    InFlight(Box<Export>, ReaderPace, ReaderSlot),
    /// The last line has said why; fail the body, so that the client sees an incomplete response.
    Broken(String),
}

impl Stage {
    async fn next(self) -> Result<Option<(Bytes, Self)>, Aborted> {
        let (export, mut pace, place) = match self {
            Self::InFlight(export, pace, place) => (export, pace, place),
            Self::Broken(why) => {
                // A body that fails discards what has not been written to the socket yet: the last line.
                tokio::time::sleep(LAST_WORDS_LIMIT).await;
                return Err(Aborted(format!("export: {why}")));
            }
        };
        let (sent, format) = (export.sent, export.format);
        let read = match pace.asks(Instant::now()) {
            Some(waited) => Err(Broken::Slow(reader_limits::too_slow(waited))),
            None => export.read().await,
        };
        pace.gives(Instant::now());
        Ok(match read {
            Ok(None) => None,
            Ok(Some((page, export))) => Some((page, Self::InFlight(export, pace, place))),
            Err(broken) => {
                let why = broken.to_string();
                Some((format.last_words(&why, sent), Self::Broken(why)))
            }
        })
    }
}

/// Names the nodes of whose records not all are in the export, with commas.
const FLEET_MISSING: HeaderName = HeaderName::from_static("mcpproxy-fleet-missing");

/// How an export is written.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParameters {
    /// A JSON object on each line, which is also the default; a header line and a line for each
    /// record; or a table.
    #[param(inline, required = false)]
    format: Format,
    /// The id of a record: the export goes on after it, where another one broke off. Its CSV has no
    /// header line; a table is exported whole.
    #[param(
        value_type = Option<String>,
        nullable = false,
        pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
    )]
    after: Option<Id>,
}

/// Exports every record that is meant, oldest first, streamed.
///
/// Ends with the last record there was when it began. An answer that breaks off is not complete: its
/// last line may say why (as JSON with `error` and `resume_after`; in CSV as a line of one cell), and
/// `after` goes on where it ended. So does one whose client takes nothing for 10 seconds.
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
        (status = 404, description = "The record of `after` is not in the log, or no longer"),
        (status = 500, description = "The log cannot be read"),
        (
            status = 503,
            description = "Too many export already, over all or from one address; or records on their way to the log did not arrive in time",
            headers(("Retry-After" = u64, description = "Seconds; where too many export")),
        ),
    )
)]
pub(super) async fn export(
    state: &State,
    worker: &Worker,
    source: Source,
    mut query: Query,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    let ExportParameters { format, after } = ExportParameters::read(&mut query)?;
    if format == Format::Parquet && after.is_some() {
        let text = "A table is exported whole: 'after' is for json and csv";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, text));
    }
    let filter = FilterParameters::read(&mut query)?.filter();
    let reader = activity::reader(state, worker, &mut query)?;
    query.finish()?;
    let place = state.readers.enter(Purpose::Export, source)?;
    if let Some(reading) = reader.begin().await? {
        let logs = reader.logs().clone();
        return fleet_export(logs, reading, (filter, format, after), place, id).await;
    }
    let logs = reader.logs().clone();
    let asked = logs.clone();
    let begun = activity::beside(move || {
        asked.ask(|merged| {
            let [view] = merged.views() else {
                let is_known = match after {
                    Some(id) => merged.get(id)?.is_some(),
                    None => true,
                };
                return Ok((None, merged.places(after)?, (1, 0), is_known));
            };
            let (first, last) = (view.first(), view.next() - 1);
            let is_known = match after {
                // Removed itself, but nothing after it.
                Some(after) if after.seq() + 1 == first => true,
                Some(after) => view.get(after)?.is_some(),
                None => true,
            };
            Ok((Some(view.node()), Vec::new(), (first, last), is_known))
        })
    });
    let (log, places, (first, last), is_known) = begun.await?;
    if log.is_none() && format == Format::Parquet {
        let text = "A table is of one node: name it by 'node'";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, text));
    }
    if !is_known {
        let text = "The record of 'after' is not in the log, or no longer: export anew";
        return Err(ApiError::new(StatusCode::NOT_FOUND, text));
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
        format,
        seq,
        sent,
        last,
        begins,
        table,
    };
    Ok(stream_of(export, place, id))
}

/// The export on its way.
fn stream_of(export: Export, place: ReaderSlot, id: &str) -> Response<Body> {
    let format = export.format;
    let way = Stage::InFlight(Box::new(export), ReaderPace::default(), place);
    let pages = stream::try_unfold(way, async |stage| stage.next().await);
    let mut response = response::json(StatusCode::OK, Body::Stream(Box::pin(pages)), id);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(format.file()));
    response
}

/// Exports what a fleet has; who does not answer is named in [`FLEET_MISSING`].
async fn fleet_export(
    logs: FleetLogs,
    mut reading: FleetReading,
    (filter, format, after): (Filter, Format, Option<Id>),
    place: ReaderSlot,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    if format == Format::Parquet && reading.coverage().nodes.len() > 1 {
        let text = "A table is of one node: name it by 'node'";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, text));
    }
    if let Some(after) = after
        && reading.get(after).await?.is_none()
    {
        let text = "The record of 'after' is not in the log, or no longer: export anew";
        return Err(ApiError::new(StatusCode::NOT_FOUND, text));
    }
    let forward = reading.forward(&filter, after).await?;
    let missing: Vec<_> = forward.coverage().missing.keys().cloned().collect();
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
        format,
        seq: 0,
        sent: after,
        last: 0,
        begins: after.is_none(),
        table,
    };
    let mut response = stream_of(export, place, id);
    if let Some(names) = Some(missing.join(", ")).filter(|names| !names.is_empty())
        && let Ok(names) = HeaderValue::from_str(&names)
    {
        response.headers_mut().insert(FLEET_MISSING, names);
    }
    Ok(response)
}

impl ExportParameters {
    fn read(query: &mut Query) -> Result<Self, BadQuery> {
        let format = query.word("format", &FORMATS)?.unwrap_or(Format::Json);
        let after = query.text("after")?;
        let after = after.map(|text| Id::parse(&text).ok_or_else(|| BadQuery::after(text)));
        Ok(Self { format, after: after.transpose()? })
    }
}

/// Why an export breaks off.
#[derive(Debug, Error)]
enum Broken {
    /// The log cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// What was next is not kept any more: the first and the last of it.
    #[error("retention has removed the records {0} to {1}, which were still to be exported")]
    Removed(u64, u64),
    /// A record is not what the log's own bytes say.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A record of another node cannot be given as its node has chained it.
    #[error("record {0} is not as this version writes it: export it at its own node")]
    NotAsStored(u64),
    /// The client takes nothing; or another node does not answer any more.
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
    /// The next page, read when the log has time for it.
    async fn read(mut self: Box<Self>) -> Result<Option<(Bytes, Box<Self>)>, Broken> {
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
                    PageRead::End => return Ok(None),
                }
            }
        }
        let activity = self.logs.activity().clone();
        loop {
            let page;
            (page, self) = activity
                .aside(move |_| {
                    let page = self.page();
                    (page, self)
                })
                .await?;
            match page? {
                PageRead::Bytes(bytes) => return Ok(Some((bytes.into(), self))),
                PageRead::More => {}
                PageRead::End => return Ok(None),
            }
        }
    }

    /// The next page.
    fn page(&mut self) -> Result<PageRead, Broken> {
        let mut views = self.logs.stored()?.into_views();
        let Some(log) = self.log else {
            return self.merged_page(&MergedView::new(views));
        };
        views.retain(|view| view.node() == log);
        // It is there as long as it is followed.
        let view = views.pop().ok_or(QueryError::Busy)?.up_to(self.last);
        if view.first() > self.seq + 1 && self.seq < self.last {
            return Err(Broken::Removed(self.seq + 1, (view.first() - 1).min(self.last)));
        }
        let (records, seq) = view.since(self.seq, &self.filter, PORTION)?;
        self.seq = seq;
        self.sent = records.last().map(|record| record.id).or(self.sent);
        if self.format == Format::Parquet {
            let seqs: Vec<u64> = records.iter().map(|record| record.seq).collect();
            return self.part_of_table(&view, &seqs);
        }
        Ok(self.written(&records))
    }

    /// The next page of several logs.
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
        Ok(self.written(&records))
    }

    /// The next page of a fleet's records; the end where there are none.
    fn fleet_page(&mut self, records: &[Record]) -> Result<PageRead, Broken> {
        if self.format != Format::Parquet {
            return Ok(self.written(records));
        }
        let Some(mut table) = self.table.take() else { return Ok(PageRead::End) };
        for record in records {
            if table.group.is_empty() {
                table.group = RecordCollector::new(record.node);
            }
            let (seq, prev, hash) = (record.seq, record.prev_hash, record.hash);
            let (head, body) = canonical(record).ok_or(Broken::NotAsStored(seq))?;
            table.group.push(&ChainedRecord { seq, prev, hash, head: &head, body: &body });
        }
        let ends = records.is_empty();
        let (page, rest) = table.part(ends)?;
        self.table = rest;
        Ok(page)
    }

    /// Records as lines; the end where there are none.
    fn written(&mut self, records: &[Record]) -> PageRead {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.begins) && self.format == Format::Csv {
            csv::line(&mut bytes, self.columns);
        }
        let mut json = Vec::new();
        for record in records {
            match self.format {
                Format::Json => {
                    reader_limits::one_line(record, &mut bytes);
                    bytes.push(b'\n');
                }
                Format::Csv => {
                    json.clear();
                    reader_limits::one_line(record, &mut json);
                    csv::row(&mut bytes, &json, self.columns);
                }
                // Written by `part_of_table`.
                Format::Parquet => {}
            }
        }
        if bytes.is_empty() { PageRead::End } else { PageRead::Bytes(bytes) }
    }

    /// Takes these records into the table; what of it is whole then. It ends with the last record.
    fn part_of_table(&mut self, view: &View, seqs: &[u64]) -> Result<PageRead, Broken> {
        let Some(mut table) = self.table.take() else { return Ok(PageRead::End) };
        view.chained(seqs.iter().copied(), |record| table.group.push(record))?;
        let ends = seqs.is_empty() || self.seq >= self.last;
        let (page, rest) = table.part(ends)?;
        self.table = rest;
        Ok(page)
    }
}

impl Table {
    fn begin(log: NodeId) -> Result<Self, ApiError> {
        let writer = TableWriter::new(NO_NODE);
        let writer = writer
            .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        Ok(Self { writer, group: RecordCollector::new(log) })
    }

    /// What of it is whole now, and the rest; all if it `ends` here.
    fn part(mut self, ends: bool) -> Result<(PageRead, Option<Self>), Broken> {
        if ends || self.group.len() >= GROUP_RECORDS || self.group.bytes() >= GROUP_BYTES {
            let next = RecordCollector::new(self.group.log());
            let full = std::mem::replace(&mut self.group, next).finish();
            if !full.is_empty() {
                self.writer.write(&full)?;
            }
        }
        if ends {
            return Ok((PageRead::Bytes(self.writer.finish()?), None));
        }
        let bytes = self.writer.take()?;
        let page = if bytes.is_empty() { PageRead::More } else { PageRead::Bytes(bytes) };
        Ok((page, Some(self)))
    }
}
