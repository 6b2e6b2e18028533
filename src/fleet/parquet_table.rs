//! Parquet tables of log records: schema, encoder and the in-memory record batch. Pure. This module is the only user of
//! `parquet` in this crate.
//!
//! A table has a column for each filterable field, the payloads, and each record's canonical bytes, from which all
//! other columns derive. A reader compares every cell with the canonical bytes, so that column queries and chain
//! readers see the same data. The same records and notes give the same bytes.
//!
//! Tables are written by `parquet` but read by this module: that crate trusts its input, follows nested structures in
//! a footer and allocates as much as the footer claims, while anyone with write access to the store can add a file.
//! The readers accept exactly what the encoder writes: the footer in Thrift's compact protocol (`footer`), then the
//! pages, with everything compared (`reading`).

mod footer;
mod reading;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use CellText::{Borrowed, Shown, Word};
use ColumnKind::{Micros, Millis, Number, Repeated, Text};
use bytes::{Bytes, BytesMut};
use mcpproxy_activity::codec;
use mcpproxy_activity::codec::{DecodeError, HeadRef, PayloadRef};
use mcpproxy_activity::record::{Hash, Id, NodeId, Operation};
use mcpproxy_activity::scan::ChainedRecord;
use parquet::basic::{Compression, ConvertedType};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use thiserror::Error;

pub use crate::parquet_table::footer::{MAX_TABLE_BYTES, TableFooter, footer};
pub use crate::parquet_table::reading::{TableRead, decode};

/// Error of encoding or decoding a table.
#[derive(Debug, Error)]
pub enum TableError {
    /// The bytes are not a table of this format.
    #[error("not a table of records: {0}")]
    Form(String),
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A cell contradicts the record's canonical bytes.
    #[error("column {column} of record {seq} contradicts the record")]
    Cell { column: &'static str, seq: u64 },
}

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> Self {
        Self::Form(error.to_string())
    }
}

/// Length of a record's hash in bytes.
pub(crate) const HASH_BYTES: usize = 32;
/// Chunk size in bytes of the buffer that formatted cells share.
const MADE_BYTES: usize = 32 << 10;

/// Record decoded without copies.
pub(crate) struct Row<'a> {
    seq: u64,
    hash: Hash,
    log: NodeId,
    head: HeadRef<'a>,
    arguments: PayloadRef<'a>,
    response: PayloadRef<'a>,
    metadata: PayloadRef<'a>,
    canonical: &'a [u8],
}

/// Text cell of a record.
pub(crate) enum CellText<'a> {
    /// Part of the record's bytes.
    Borrowed(&'a str),
    /// Static text.
    Word(&'static str),
    /// Possibly truncated bytes; invalid UTF-8 is replaced.
    Shown(&'a [u8]),
    Id(Id),
    Node,
    Log,
}

/// Type of a column, and how its cells are computed.
#[derive(Clone, Copy)]
pub(crate) enum ColumnKind {
    Number(fn(&Row<'_>) -> u64),
    /// Time in milliseconds since 1970.
    Millis(fn(&Row<'_>) -> u64),
    /// Time in microseconds since 1970.
    Micros(fn(&Row<'_>) -> u64),
    Text(for<'a> fn(&Row<'a>) -> CellText<'a>),
    /// Text that many records share.
    Repeated(for<'a> fn(&Row<'a>) -> CellText<'a>),
    Hash,
    /// Canonical bytes of the record.
    Canonical,
}

pub(crate) struct TableColumn {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnKind,
}

const fn column(name: &'static str, kind: ColumnKind) -> TableColumn {
    TableColumn { name, kind }
}

/// Columns in order. A column that is also a field of a record in JSON has the same name and meaning.
pub(crate) const COLUMNS: &[TableColumn] = &[
    column("seq", Number(|row| row.seq)),
    column("id", Text(|row| CellText::Id(Id::new(row.head.stored_ms, row.seq, row.log)))),
    column("node", Repeated(|_| CellText::Node)),
    column("log", Repeated(|_| CellText::Log)),
    column("stored", Millis(|row| row.head.stored_ms)),
    column("timestamp", Micros(|row| row.head.started)),
    column("type", Repeated(|row| Word(row.head.kind.as_str()))),
    column("source", Repeated(|row| Word(row.head.source.as_str()))),
    column("principal", Repeated(|row| Borrowed(row.head.principal))),
    column("status", Repeated(|row| Word(row.head.status.as_str()))),
    column("intent_type", Repeated(|row| Word(row.head.operation.map_or("", Operation::as_str)))),
    column("server_name", Repeated(|row| Borrowed(row.head.server))),
    column("tool_name", Repeated(|row| Borrowed(row.head.tool))),
    column("tool_variant", Repeated(|row| Borrowed(row.head.variant))),
    column("client_name", Repeated(|row| Borrowed(row.head.client_name))),
    column("session_id", Repeated(|row| Borrowed(row.head.session_id))),
    column("request_id", Text(|row| Borrowed(row.head.request_id))),
    column("parent_id", Text(|row| row.head.parent.map_or(Word(""), CellText::Id))),
    column("error_message", Text(|row| Borrowed(row.head.error))),
    column("duration_us", Number(|row| row.head.duration_us)),
    column("overhead_us", Number(|row| row.head.overhead_us)),
    column("response_bytes", Number(|row| row.head.response_bytes)),
    column("intent", Text(|row| Shown(row.head.intent.bytes))),
    column("arguments", Text(|row| Shown(row.arguments.bytes))),
    column("arguments_bytes", Number(|row| row.arguments.total)),
    column("response", Text(|row| Shown(row.response.bytes))),
    column("metadata", Text(|row| Shown(row.metadata.bytes))),
    column("hash", ColumnKind::Hash),
    column("record", ColumnKind::Canonical),
];

/// Column names in order.
#[cfg(test)]
pub(crate) fn column_names() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.name)
}

/// Cells of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cells {
    Numbers(Vec<i64>),
    Texts(Vec<Bytes>),
    Hashes(Vec<Bytes>),
}

impl Cells {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Numbers(cells) => cells.len(),
            Self::Texts(cells) | Self::Hashes(cells) => cells.len(),
        }
    }

    /// Appends cells of the same type.
    pub(crate) fn extend(&mut self, next: Self) -> Result<(), TableError> {
        match (self, next) {
            (Self::Numbers(all), Self::Numbers(next)) => all.extend(next),
            (Self::Texts(all), Self::Texts(next)) | (Self::Hashes(all), Self::Hashes(next)) => {
                all.extend(next);
            }
            (Self::Numbers(_) | Self::Texts(_) | Self::Hashes(_), _) => {
                return Err(TableError::Form("a column has a different type".into()));
            }
        }
        Ok(())
    }

    /// First row in which the cells differ.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<usize> {
        fn differs<T: PartialEq>(a: &[T], b: &[T]) -> Option<usize> {
            let differs = a.iter().zip(b).position(|(a, b)| a != b);
            differs.or_else(|| (a.len() != b.len()).then_some(a.len().min(b.len())))
        }
        match (self, other) {
            (Self::Numbers(a), Self::Numbers(b)) => differs(a, b),
            (Self::Texts(a), Self::Texts(b)) | (Self::Hashes(a), Self::Hashes(b)) => differs(a, b),
            _ => Some(0),
        }
    }
}

pub(crate) struct TableOf<'a> {
    records: &'a RecordRows,
    rows: Vec<Row<'a>>,
    node: &'a Bytes,
    log: Bytes,
}

impl<'a> TableOf<'a> {
    /// # Errors
    ///
    /// The first record that cannot be decoded.
    pub(crate) fn new(records: &'a RecordRows, node: &'a Bytes) -> Result<Self, BadRecord> {
        let mut rows = Vec::with_capacity(records.len());
        for row in records.iter() {
            let bad = |error| BadRecord { seq: row.seq, why: format!("is invalid: it {error}") };
            let (head, body) = codec::split_canonical(row.canonical).map_err(bad)?;
            let [arguments, response, metadata] = codec::body_parts(body).map_err(bad)?;
            let head = codec::decode_head(head).map_err(bad)?;
            let (seq, hash, canonical, log) = (row.seq, row.hash, row.canonical, records.log());
            rows.push(Row { seq, hash, log, head, arguments, response, metadata, canonical });
        }
        Ok(Self { records, rows, node, log: records.log().to_string().into() })
    }

    /// All cells of a column.
    pub(crate) fn cells(&self, column: &TableColumn) -> Cells {
        self.cells_of(&self.rows, column)
    }

    /// Cells of a column in batches of `rows` rows.
    pub(crate) fn batches(&self, column: &TableColumn, rows: usize) -> impl Iterator<Item = Cells> {
        self.rows.chunks(rows).map(|rows| self.cells_of(rows, column))
    }

    fn cells_of(&self, rows: &[Row<'_>], column: &TableColumn) -> Cells {
        let numbers = |of: fn(&Row<'_>) -> u64| {
            Cells::Numbers(rows.iter().map(|row| of(row) as i64).collect())
        };
        let mut made = BytesMut::with_capacity(MADE_BYTES);
        let mut texts = |of: for<'r> fn(&Row<'r>) -> CellText<'r>| {
            Cells::Texts(rows.iter().map(|row| self.text(of(row), &mut made)).collect())
        };
        match column.kind {
            ColumnKind::Number(of) | ColumnKind::Millis(of) | ColumnKind::Micros(of) => numbers(of),
            ColumnKind::Text(of) | ColumnKind::Repeated(of) => texts(of),
            ColumnKind::Hash => {
                let hashes = rows.iter().map(|row| {
                    made.extend_from_slice(&row.hash.0);
                    made.split().freeze()
                });
                Cells::Hashes(hashes.collect())
            }
            ColumnKind::Canonical => {
                Cells::Texts(rows.iter().map(|row| self.part(row.canonical)).collect())
            }
        }
    }

    /// Cell with this text; formatted text is appended to `made`.
    fn text(&self, text: CellText<'_>, made: &mut BytesMut) -> Bytes {
        match text {
            CellText::Borrowed(text) => self.part(text.as_bytes()),
            CellText::Word("") => self.part(b""),
            CellText::Word(word) => Bytes::from_static(word.as_bytes()),
            CellText::Shown(bytes) => match simdutf8::basic::from_utf8(bytes) {
                Ok(text) => self.part(text.as_bytes()),
                Err(_) => String::from_utf8_lossy(bytes).into_owned().into(),
            },
            CellText::Id(id) => {
                // Writing to memory cannot fail.
                let _ = write!(made, "{id}");
                made.split().freeze()
            }
            CellText::Node => self.node.clone(),
            CellText::Log => self.log.clone(),
        }
    }

    /// Cell with these bytes; not copied if they are part of the records' bytes.
    fn part(&self, part: &[u8]) -> Bytes {
        let all = self.records.bytes();
        let from = (part.as_ptr() as usize).checked_sub(all.as_ptr() as usize);
        match from.filter(|from| from.saturating_add(part.len()) <= all.len()) {
            Some(from) => all.slice(from..from + part.len()),
            // Not `Bytes::new()`, whose dangling address makes comparing empty cells take 90 ns on some
            // processors.
            None if part.is_empty() => all.slice(..0),
            None => Bytes::copy_from_slice(part),
        }
    }
}

/// Writer name in the footer. It is part of the file's bytes, so it is the same in every version.
const CREATED_BY: &str = "mcpproxy ledger version 1.0.0";
/// Number of values written to a column at a time; the page size is checked after each batch.
const WRITE_BATCH: usize = 1024;
/// Page size in bytes. It equals Snappy's block size; larger pages would not compress better.
const PAGE_BYTES: usize = 64 << 10;

/// Table encoder.
pub struct TableWriter {
    writer: SerializedFileWriter<Vec<u8>>,
    node: Bytes,
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter").field("bytes", &self.writer.bytes_written()).finish()
    }
}

impl TableWriter {
    /// Starts a table for the named node.
    pub fn new(node: &str) -> Result<Self, TableError> {
        let writer = SerializedFileWriter::new(Vec::new(), schema()?, properties())?;
        Ok(Self { writer, node: Bytes::copy_from_slice(node.as_bytes()) })
    }

    /// Appends records as a row group.
    pub fn write(&mut self, records: &RecordRows) -> Result<(), TableError> {
        let table = TableOf::new(records, &self.node)?;
        let mut group = self.writer.next_row_group()?;
        for column in COLUMNS {
            let Some(mut out) = group.next_column()? else { break };
            for cells in table.batches(column, WRITE_BATCH) {
                write_cells(column, cells, out.untyped())?;
            }
            out.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Takes the bytes encoded since the last call.
    pub fn take(&mut self) -> Result<Vec<u8>, TableError> {
        self.writer.flush().map_err(ParquetError::from)?;
        Ok(std::mem::take(self.writer.inner_mut()))
    }

    /// Adds a note to the footer.
    pub fn note(&mut self, key: &str, value: String) {
        self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
    }

    /// Finishes the table and returns its remaining bytes.
    pub fn finish(self) -> Result<Vec<u8>, TableError> {
        Ok(self.writer.into_inner()?)
    }
}

/// Appends cells to a column.
pub(crate) fn write_cells(
    column: &TableColumn,
    cells: Cells,
    out: &mut ColumnWriter<'_>,
) -> Result<(), TableError> {
    match (cells, out) {
        (Cells::Numbers(cells), ColumnWriter::Int64ColumnWriter(out)) => {
            out.write_batch(&cells, None, None)?;
        }
        (Cells::Texts(cells), ColumnWriter::ByteArrayColumnWriter(out)) => {
            let cells: Vec<_> = cells.into_iter().map(ByteArray::from).collect();
            out.write_batch(&cells, None, None)?;
        }
        (Cells::Hashes(cells), ColumnWriter::FixedLenByteArrayColumnWriter(out)) => {
            let cells = cells.into_iter().map(ByteArray::from);
            let cells: Vec<FixedLenByteArray> = cells.map(Into::into).collect();
            out.write_batch(&cells, None, None)?;
        }
        _ => return Err(TableError::Form(format!("{} has a different type", column.name))),
    }
    Ok(())
}

/// Encodes a complete table for the named node; the notes are computed from the bytes before the footer. Deterministic.
pub fn encode(
    records: &RecordRows,
    node: &str,
    note: impl FnOnce(&[u8]) -> Vec<(&'static str, String)>,
) -> Result<Vec<u8>, TableError> {
    let mut table = TableWriter::new(node)?;
    table.write(records)?;
    table.writer.flush().map_err(ParquetError::from)?;
    for (key, value) in note(table.writer.inner()) {
        table.note(key, value);
    }
    table.finish()
}

/// Parquet schema of the columns.
pub(crate) fn schema() -> Result<TypePtr, TableError> {
    let mut text = String::from("message activity {\n");
    for column in COLUMNS {
        text += &column.declared();
    }
    text += "}\n";
    Ok(Arc::new(parse_message_type(&text)?))
}

impl TableColumn {
    /// Line of the column in the schema.
    fn declared(&self) -> String {
        let name = self.name;
        match self.kind {
            ColumnKind::Number(_) => format!("  required int64 {name};\n"),
            ColumnKind::Millis(_) => format!("  required int64 {name} (TIMESTAMP(MILLIS,true));\n"),
            ColumnKind::Micros(_) => format!("  required int64 {name} (TIMESTAMP(MICROS,true));\n"),
            ColumnKind::Text(_) | ColumnKind::Repeated(_) => {
                format!("  required binary {name} ({});\n", ConvertedType::UTF8)
            }
            ColumnKind::Hash => format!("  required fixed_len_byte_array({HASH_BYTES}) {name};\n"),
            ColumnKind::Canonical => format!("  required binary {name};\n"),
        }
    }
}

pub(crate) fn properties() -> WriterPropertiesPtr {
    let mut properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_write_batch_size(WRITE_BATCH)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_max_row_group_row_count(None);
    for column in COLUMNS {
        let path = ColumnPath::from(column.name);
        let (repeats, is_compared) = match column.kind {
            // Records of all servers and tools of a node are spread over a segment, so min/max statistics would not
            // exclude any rows.
            ColumnKind::Repeated(_) => (true, false),
            ColumnKind::Number(_) | ColumnKind::Millis(_) | ColumnKind::Micros(_) => (false, true),
            ColumnKind::Text(_) | ColumnKind::Hash | ColumnKind::Canonical => (false, false),
        };
        let statistics =
            if is_compared { EnabledStatistics::Chunk } else { EnabledStatistics::None };
        properties = properties
            .set_column_dictionary_enabled(path.clone(), repeats)
            .set_column_statistics_enabled(path, statistics);
    }
    properties.build().into()
}

/// Invalid record.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("record {seq} {why}")]
pub struct BadRecord {
    pub seq: u64,
    /// Reason, to be shown after the record number.
    pub why: String,
}

/// Location and hash of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordPlace {
    seq: u64,
    hash: Hash,
    range: Range<usize>,
}

/// Records of one log in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRows {
    log: NodeId,
    bytes: Bytes,
    places: Vec<RecordPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRow<'a> {
    pub seq: u64,
    /// Recorded hash.
    pub hash: Hash,
    /// Canonical bytes.
    pub canonical: &'a [u8],
}

/// Builder of [`RecordRows`].
#[derive(Debug)]
pub struct RecordCollector {
    log: NodeId,
    bytes: Vec<u8>,
    places: Vec<RecordPlace>,
}

impl RecordCollector {
    /// Creates an empty builder for this log.
    pub fn new(log: NodeId) -> Self {
        Self { log, bytes: Vec::new(), places: Vec::new() }
    }

    /// Reserves capacity for this many canonical bytes, so that they are not moved while growing.
    pub fn with_capacity(mut self, bytes: usize) -> Self {
        self.bytes.reserve(bytes);
        self
    }

    pub fn log(&self) -> NodeId {
        self.log
    }

    pub fn push(&mut self, record: &ChainedRecord<'_>) {
        let start = self.bytes.len();
        codec::put_canonical(&mut self.bytes, record.head, record.body);
        self.add(record.seq, record.hash, start);
    }

    /// Appends a record.
    pub(crate) fn push_canonical(&mut self, seq: u64, hash: Hash, canonical: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(canonical);
        self.add(seq, hash, start);
    }

    fn add(&mut self, seq: u64, hash: Hash, start: usize) {
        self.places.push(RecordPlace { seq, hash, range: start..self.bytes.len() });
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Total size of the canonical bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number and hash of the last record.
    pub(crate) fn last(&self) -> Option<(u64, Hash)> {
        self.places.last().map(|place| (place.seq, place.hash))
    }

    pub fn finish(self) -> RecordRows {
        RecordRows { log: self.log, bytes: self.bytes.into(), places: self.places }
    }
}

impl RecordRows {
    pub(crate) fn log(&self) -> NodeId {
        self.log
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Canonical bytes of all records.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = RecordRow<'_>> {
        self.places.iter().map(|place| RecordRow {
            seq: place.seq,
            hash: place.hash,
            canonical: self.bytes.get(place.range.clone()).unwrap_or_default(),
        })
    }

    /// Number and hash of the last record.
    pub(crate) fn last(&self) -> Option<(u64, Hash)> {
        self.places.last().map(|place| (place.seq, place.hash))
    }

    /// Time at which the first record was logged, in milliseconds since 1970; 0 if unknown.
    pub(crate) fn first_stored_ms(&self) -> u64 {
        let first = self.iter().next().and_then(|row| row.id(self.log).ok());
        first.map_or(0, Id::time_ms)
    }

    /// Checks that the records are consecutive, begin after a record with hash `after`, and hash to their
    /// recorded hashes.
    ///
    /// # Errors
    ///
    /// The first invalid record.
    pub(crate) fn check_chain(&self, after: Hash) -> Result<(), BadRecord> {
        let (mut prev, mut next) = (after, None);
        for RecordRow { seq, hash, canonical } in self.iter() {
            let bad = |why: &str| BadRecord { seq, why: why.into() };
            if next.is_some_and(|next| next != seq) {
                return Err(bad("does not follow its predecessor"));
            }
            let (head, body) = codec::split_canonical(canonical)
                .map_err(|error| bad(&format!("is invalid: it {error}")))?;
            if codec::chain(prev, self.log, seq, head, body) != hash {
                return Err(bad("has a hash that does not match its bytes"));
            }
            (prev, next) = (hash, seq.checked_add(1));
        }
        Ok(())
    }
}

impl RecordRow<'_> {
    /// Id of the record in this log.
    pub(crate) fn id(&self, log: NodeId) -> Result<Id, DecodeError> {
        let (head, _) = codec::split_canonical(self.canonical)?;
        Ok(Id::new(codec::decode_head(head)?.stored_ms, self.seq, log))
    }
}
