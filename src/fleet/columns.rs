//! Records as a table of Parquet: a column for each field that is filtered by, the payloads, and each record's canonical
//! bytes, of which all other columns are derived. Pure; in `fleet`, the crate `parquet` is named here and in this folder alone.
//!
//! A table that is read is compared with what its canonical bytes say: a cell that is another is found. So whoever asks the
//! columns gets the same answers as whoever reads the chain.

mod table;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType};
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion,
};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use thiserror::Error;

use self::table::{COLUMNS, Cells, ColumnKind, TableColumn, TableOf};
use super::record_rows::{BadRecord, RecordCollector, RecordRows};
use crate::activity::record::{Hash, NodeId};

/// What writes the tables, as the files say. Part of their bytes: it is the same in every version.
const CREATED_BY: &str = "mcpproxy ledger version 1.0.0";
/// Most bytes of a table that is read.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Most bytes of its columns when they are unpacked.
const MAX_UNPACKED_BYTES: i64 = 512 << 20;
/// Most records of a table that is read.
const MAX_TABLE_RECORDS: i64 = 1 << 20;
/// Bytes at the end of a table: how long its footer is, and that it is one.
const END_BYTES: usize = 8;
/// Values that are handed to a column at a time: a page is looked at after so many.
const WRITE_BATCH: usize = 1024;

/// Why a table cannot be written or read.
#[derive(Debug, Error)]
pub enum TableError {
    /// It is not a table of this form.
    #[error("it is no table of records: {0}")]
    Form(String),
    /// A record in it.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A cell says something else than the record's canonical bytes.
    #[error("column {column} of record {seq} does not say what the record says")]
    Cell {
        /// The column's name.
        column: &'static str,
        /// The record's number.
        seq: u64,
    },
}

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> Self {
        Self::Form(error.to_string())
    }
}

/// A table that was read: its records agree with all its columns, and nothing is said of their chain.
#[derive(Debug)]
pub struct TableRead {
    /// Its records.
    pub rows: RecordRows,
    /// The node that it names.
    pub node: Box<str>,
    /// What is noted in its footer.
    pub notes: BTreeMap<String, String>,
}

/// A table on its way.
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
    /// A table of records of the node with this name.
    ///
    /// # Errors
    ///
    /// [`TableError::Form`], which does not happen.
    pub fn new(node: &str) -> Result<Self, TableError> {
        let writer = SerializedFileWriter::new(Vec::new(), schema()?, properties())?;
        Ok(Self { writer, node: Bytes::copy_from_slice(node.as_bytes()) })
    }

    /// Adds records, as a group of their own.
    ///
    /// # Errors
    ///
    /// [`TableError`] where a record is not whole.
    pub fn write(&mut self, records: &RecordRows) -> Result<(), TableError> {
        let table = TableOf::new(records, &self.node)?;
        let mut group = self.writer.next_row_group()?;
        for column in COLUMNS {
            let Some(mut out) = group.next_column()? else { break };
            match (table.cells(column), out.untyped()) {
                (Cells::Numbers(cells), ColumnWriter::Int64ColumnWriter(out)) => {
                    out.write_batch(&cells, None, None)?;
                }
                (Cells::Texts(cells), ColumnWriter::ByteArrayColumnWriter(out)) => {
                    let cells: Vec<ByteArray> = cells.into_iter().map(ByteArray::from).collect();
                    out.write_batch(&cells, None, None)?;
                }
                (Cells::Hashes(cells), ColumnWriter::FixedLenByteArrayColumnWriter(out)) => {
                    let cells: Vec<FixedLenByteArray> =
                        cells.into_iter().map(|cell| ByteArray::from(cell).into()).collect();
                    out.write_batch(&cells, None, None)?;
                }
                _ => return Err(TableError::Form(format!("{} is of another type", column.name))),
            }
            out.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// What was written since this was last asked: the beginning of the file, or what follows.
    ///
    /// # Errors
    ///
    /// [`TableError::Form`], which does not happen.
    pub fn take(&mut self) -> Result<Vec<u8>, TableError> {
        self.writer.flush().map_err(ParquetError::from)?;
        Ok(std::mem::take(self.writer.inner_mut()))
    }

    /// What is left of the file: with it it is whole.
    ///
    /// # Errors
    ///
    /// [`TableError::Form`], which does not happen.
    pub fn finish(self) -> Result<Vec<u8>, TableError> {
        Ok(self.writer.into_inner()?)
    }
}

/// A whole table of records of the node with this name; what is noted in its footer is made of the bytes before it. The same
/// records and notes give the same bytes.
///
/// # Errors
///
/// [`TableError`] where a record is not whole.
pub fn encode(
    records: &RecordRows,
    node: &str,
    note: impl FnOnce(&[u8]) -> Vec<(&'static str, String)>,
) -> Result<Vec<u8>, TableError> {
    let mut table = TableWriter::new(node)?;
    table.write(records)?;
    table.writer.flush().map_err(ParquetError::from)?;
    for (key, value) in note(table.writer.inner()) {
        table.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
    }
    table.finish()
}

/// What stands in a table's footer, and how long the table is before it.
#[derive(Clone, Debug)]
pub struct TableFooter {
    /// What is noted there.
    pub notes: BTreeMap<String, String>,
    /// Bytes before the footer.
    pub data_bytes: usize,
}

/// Reads a table's footer; the rest is not looked at.
///
/// # Errors
///
/// [`TableError::Form`].
pub fn footer(bytes: &Bytes) -> Result<TableFooter, TableError> {
    guarded(bytes, |bytes| footer_of(&SerializedFileReader::new(bytes.clone())?, bytes))
}

fn footer_of(
    reader: &SerializedFileReader<Bytes>,
    bytes: &Bytes,
) -> Result<TableFooter, TableError> {
    let mut notes = BTreeMap::new();
    let pairs = reader.metadata().file_metadata().key_value_metadata();
    for KeyValue { key, value } in pairs.into_iter().flatten() {
        if notes.insert(key.clone(), value.clone().unwrap_or_default()).is_some() {
            return Err(TableError::Form("its notes are ambiguous".into()));
        }
    }
    let end = bytes.last_chunk::<END_BYTES>();
    let length = end.and_then(|end| end.first_chunk()).map(|length| u32::from_le_bytes(*length));
    let footer = length.map(|length| (length as usize).saturating_add(END_BYTES));
    let data_bytes = footer.and_then(|footer| bytes.len().checked_sub(footer));
    let data_bytes = data_bytes.ok_or_else(|| TableError::Form("it has no footer".into()))?;
    Ok(TableFooter { notes, data_bytes })
}

/// Reads bytes that may be anything: the library was made for files of friends, and what it does not expect may be a panic.
fn guarded<T>(
    bytes: &Bytes,
    read: impl FnOnce(&Bytes) -> Result<T, TableError>,
) -> Result<T, TableError> {
    if bytes.len() as u64 > MAX_TABLE_BYTES {
        return Err(TableError::Form(format!("it is longer than {MAX_TABLE_BYTES} bytes")));
    }
    catch_unwind(AssertUnwindSafe(|| read(bytes)))
        .unwrap_or_else(|_| Err(TableError::Form("it cannot be read".into())))
}

/// Reads a whole table, and compares each cell with what the record says. Whatever the bytes are.
///
/// # Errors
///
/// [`TableError`].
pub fn decode(bytes: &Bytes) -> Result<TableRead, TableError> {
    guarded(bytes, decode_unguarded)
}

fn decode_unguarded(bytes: &Bytes) -> Result<TableRead, TableError> {
    let reader = SerializedFileReader::new(bytes.clone())?;
    let (all, file) = (reader.metadata(), reader.metadata().file_metadata());
    let form = |why: &str| TableError::Form(why.into());
    if file.schema() != &*schema()? {
        return Err(form("it has other columns"));
    }
    let mut unpacked = all.row_groups().iter().flat_map(|group| group.columns());
    let unpacked =
        unpacked.try_fold(0_i64, |sum, column| sum.checked_add(column.uncompressed_size().max(0)));
    let counts = all.row_groups().iter().map(|group| group.num_rows());
    let count = counts.clone().try_fold(0_i64, i64::checked_add).unwrap_or(i64::MAX);
    if unpacked.is_none_or(|bytes| bytes > MAX_UNPACKED_BYTES) {
        return Err(form("it is too large when it is unpacked"));
    }
    if counts.clone().any(|count| count < 0) || !(1..=MAX_TABLE_RECORDS).contains(&count) {
        return Err(form("it has no records, or too many"));
    }
    let TableFooter { notes, .. } = footer_of(&reader, bytes)?;
    let groups: Vec<Box<dyn RowGroupReader>> =
        (0..all.num_row_groups()).map(|at| reader.get_row_group(at)).collect::<Result<_, _>>()?;
    let place = |name: &str| {
        COLUMNS
            .iter()
            .position(|column| column.name == name)
            .ok_or_else(|| form("it has no such column"))
    };
    let read = |at: usize| read_column(&groups, at, count as usize);
    let (
        Cells::Numbers(seqs),
        Cells::Hashes(hashes),
        Cells::Texts(records),
        Cells::Texts(logs),
        Cells::Texts(nodes),
    ) = (
        read(place("seq")?)?,
        read(place("hash")?)?,
        read(place("record")?)?,
        read(place("log")?)?,
        read(place("node")?)?,
    )
    else {
        return Err(form("a column is of another type"));
    };
    let node = text(nodes.first())?;
    let log = text(logs.first())?;
    let log = (log.len() == 32).then(|| u128::from_str_radix(&log, 16).ok()).flatten();
    let log = NodeId(log.ok_or_else(|| form("it names no log"))?.to_be_bytes());
    let mut rows = RecordCollector::new(log);
    for ((seq, hash), record) in seqs.into_iter().zip(hashes).zip(records) {
        let hash = <[u8; 32]>::try_from(&*hash).map_err(|_| form("a hash has another length"))?;
        rows.push_canonical(seq as u64, Hash(hash), &record);
    }
    let rows = rows.finish();
    let named = Bytes::copy_from_slice(node.as_bytes());
    let table = TableOf::new(&rows, &named)?;
    for (at, column) in COLUMNS.iter().enumerate() {
        if let Some(row) = table.cells(column).first_difference(&read(at)?) {
            let seq = rows.iter().nth(row).map_or(0, |row| row.seq);
            return Err(TableError::Cell { column: column.name, seq });
        }
    }
    Ok(TableRead { rows, node, notes })
}

fn text(cell: Option<&Bytes>) -> Result<Box<str>, TableError> {
    let text = cell.and_then(|cell| std::str::from_utf8(cell).ok());
    Ok(text.ok_or_else(|| TableError::Form("a name is no text".into()))?.into())
}

/// One column over all groups.
fn read_column(
    groups: &[Box<dyn RowGroupReader + '_>],
    at: usize,
    count: usize,
) -> Result<Cells, TableError> {
    let short = || TableError::Form("a column is too short".into());
    let mut cells: Option<Cells> = None;
    for group in groups {
        let rows = group.metadata().num_rows() as usize;
        let read = match group.get_column_reader(at)? {
            ColumnReader::Int64ColumnReader(mut reader) => {
                let mut cells = Vec::with_capacity(rows.min(WRITE_BATCH));
                reader.read_records(rows, None, None, &mut cells)?;
                Cells::Numbers(cells)
            }
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                let mut cells: Vec<ByteArray> = Vec::with_capacity(rows.min(WRITE_BATCH));
                reader.read_records(rows, None, None, &mut cells)?;
                Cells::Texts(
                    cells.into_iter().map(|cell| Bytes::copy_from_slice(cell.data())).collect(),
                )
            }
            ColumnReader::FixedLenByteArrayColumnReader(mut reader) => {
                let mut cells: Vec<FixedLenByteArray> = Vec::with_capacity(rows.min(WRITE_BATCH));
                reader.read_records(rows, None, None, &mut cells)?;
                Cells::Hashes(
                    cells.into_iter().map(|cell| Bytes::copy_from_slice(cell.data())).collect(),
                )
            }
            _ => return Err(TableError::Form("a column is of another type".into())),
        };
        cells = Some(match cells {
            None => read,
            Some(before) => before.and(read).ok_or_else(short)?,
        });
    }
    cells.filter(|cells| cells.len() == count).ok_or_else(short)
}

/// The columns, as a schema.
fn schema() -> Result<TypePtr, TableError> {
    let mut text = String::from("message activity {\n");
    for column in COLUMNS {
        text += &column.declared();
    }
    text += "}\n";
    Ok(Arc::new(parse_message_type(&text)?))
}

impl TableColumn {
    /// The column's line in the schema.
    fn declared(&self) -> String {
        let name = self.name;
        match self.kind {
            ColumnKind::Number(_) => format!("  required int64 {name};\n"),
            ColumnKind::Millis(_) => format!("  required int64 {name} (TIMESTAMP(MILLIS,true));\n"),
            ColumnKind::Micros(_) => format!("  required int64 {name} (TIMESTAMP(MICROS,true));\n"),
            ColumnKind::Text(_) | ColumnKind::Repeated(_) => {
                format!("  required binary {name} ({});\n", ConvertedType::UTF8)
            }
            ColumnKind::Hash => format!("  required fixed_len_byte_array(32) {name};\n"),
            ColumnKind::Canonical => format!("  required binary {name};\n"),
        }
    }
}

fn properties() -> WriterPropertiesPtr {
    let mut properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_write_batch_size(WRITE_BATCH)
        .set_max_row_group_row_count(None);
    for column in COLUMNS {
        let path = ColumnPath::from(column.name);
        let (repeats, is_compared) = match column.kind {
            // Each node's servers and tools are all over a segment: their bounds would rule out none.
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

/// The names of the columns, in their order.
pub fn column_names() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.name)
}

#[cfg(test)]
pub(super) mod tests;
