//! Tables as they are written. The same records and notes give the same bytes. Pure.

use std::sync::Arc;

use bytes::Bytes;
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

use super::super::record_rows::RecordRows;
use super::table::{COLUMNS, Cells, ColumnKind, HASH_BYTES, TableColumn, TableOf};
use super::table_error::TableError;

/// What writes the tables, as the files say. Part of their bytes: it is the same in every version.
const CREATED_BY: &str = "mcpproxy ledger version 1.0.0";
/// Values that are handed to a column at a time: a page is looked at after so many.
const WRITE_BATCH: usize = 1024;
/// Bytes of cells after which a page ends: as many as Snappy packs at once, so that longer ones would not be smaller.
const PAGE_BYTES: usize = 64 << 10;

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
            for cells in table.batches(column, WRITE_BATCH) {
                write_cells(column, cells, out.untyped())?;
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

/// Writes cells of a column behind those that it has.
pub(super) fn write_cells(
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
        _ => return Err(TableError::Form(format!("{} is of another type", column.name))),
    }
    Ok(())
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

/// The columns, as a schema.
pub(super) fn schema() -> Result<TypePtr, TableError> {
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
            ColumnKind::Hash => format!("  required fixed_len_byte_array({HASH_BYTES}) {name};\n"),
            ColumnKind::Canonical => format!("  required binary {name};\n"),
        }
    }
}

pub(super) fn properties() -> WriterPropertiesPtr {
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
