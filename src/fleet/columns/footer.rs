//! The end of a table: which columns lie where, and what is noted. Of a table's bytes this alone is read before it is known
//! whose they are, so that it is short, and read by a reader of its own that takes what [`TableWriter`] writes and nothing
//! else. Pure.
//!
//! It is not among what a node signs. So it may say nothing that a reader of the columns would go by and that is not looked
//! at: columns, their places, sizes, bounds and how their pages are written are compared with the data, and what is not written
//! (another file, an index, a filter) may not be there. Programs that share a table's groups out among themselves do so by
//! where a group is said to begin and how long it is: one that is said to lie elsewhere would be read by none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;

use super::compact::{CompactReader, ValueKind};
use super::table::{COLUMNS, ColumnKind, TableColumn};
use super::table_error::TableError;
use super::writing::TableWriter;

/// Most bytes of a table that is read.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Most records of a table that is read.
const MAX_TABLE_RECORDS: usize = 1 << 20;
/// What a table begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";
/// Bytes at the end of a table: how long its footer is, and that it is one.
const END_BYTES: usize = 8;
/// Most bytes of a footer that is read: that of a segment has 3 KB beside its note, which has 64 KiB at most.
const MAX_FOOTER_BYTES: usize = 128 << 10;
/// How columns are packed: by Snappy.
const CODEC: i64 = 1;
/// How it would be written which cells are not there or repeat. There are none such, so that it says nothing of a column.
const OF_LEVELS: i64 = 3;

/// What stands in a table's footer, and how long the table is before it.
#[derive(Clone, Debug)]
pub struct TableFooter {
    /// What is noted there.
    pub notes: BTreeMap<String, String>,
    /// Bytes before the footer.
    pub data_bytes: usize,
    pub(super) groups: Vec<TableGroup>,
}

/// Records that lie together.
#[derive(Clone, Debug)]
pub(super) struct TableGroup {
    pub(super) rows: usize,
    /// One for each of the columns, in their order.
    pub(super) chunks: Vec<ColumnChunk>,
}

/// The cells of one column of a group.
#[derive(Clone, Debug)]
pub(super) struct ColumnChunk {
    /// Where they lie.
    pub(super) range: Range<usize>,
    /// What is said to be the least of them, in whatever words.
    pub(super) least: Vec<i64>,
    /// And the greatest.
    pub(super) greatest: Vec<i64>,
    /// How many bytes they are said to have, unpacked and with the heads of their pages.
    pub(super) unpacked: usize,
    /// Where among them the first page of cells is said to begin.
    pub(super) cells_at: usize,
    /// A dictionary is said to stand before that.
    pub(super) has_dictionary: bool,
    /// In which ways cells are said to be written.
    pub(super) encodings: BTreeSet<i64>,
    /// How many pages there are said to be of each kind and way.
    pub(super) page_counts: Option<BTreeMap<(i64, i64), usize>>,
}

fn form(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// Reads a table's footer, whatever the bytes are; the rest is not looked at.
///
/// # Errors
///
/// [`TableError::Form`].
pub fn footer(bytes: &Bytes) -> Result<TableFooter, TableError> {
    let (footer, data_bytes) = bytes_of(bytes)?;
    let mut reader = CompactReader::new(footer);
    let (mut notes, mut groups, mut rows) = (BTreeMap::new(), None, None);
    let (mut has_columns, mut as_written) = (false, 0);
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            // By the program that is named, and by the orders, others believe bounds, or do not.
            (VERSION, ValueKind::Int)
            | (CREATED_BY, ValueKind::Binary)
            | (SCHEMA | ORDERS, ValueKind::List) => {
                let value = reader.raw(kind)?;
                if WRITTEN.get(&id).is_some_and(|written| written.as_slice() == value) {
                    as_written += 1;
                    has_columns |= id == SCHEMA;
                } else if id != SCHEMA {
                    return Err(form("its footer is written in another way"));
                }
            }
            (ROWS, ValueKind::Long) => rows = Some(reader.count()?),
            (GROUPS, ValueKind::List) if has_columns => groups = Some(read_groups(reader)?),
            (NOTES, ValueKind::List) => notes = read_notes(reader)?,
            (GROUPS, ValueKind::List) => return Err(form("it has other columns")),
            _ => return Err(form("its footer says what is not written")),
        }
        Ok(())
    })?;
    let groups = groups.filter(|_| as_written == WRITTEN.len());
    let groups = groups.ok_or_else(|| form("its footer is not whole"))?;
    let counted = groups.iter().try_fold(0_usize, |sum, group| sum.checked_add(group.rows));
    if counted.is_none_or(|count| count > MAX_TABLE_RECORDS) || counted != rows {
        return Err(form("it has too many records, or others than it says"));
    }
    if reader.left() > 0 {
        return Err(form("there is something behind its footer"));
    }
    let mut end = MAGIC.len();
    for chunk in groups.iter().flat_map(|group| &group.chunks) {
        if chunk.range.start != end {
            return Err(form("its columns do not lie behind each other"));
        }
        end = chunk.range.end;
    }
    if end != data_bytes {
        return Err(form("its columns end elsewhere than its data"));
    }
    Ok(TableFooter { notes, data_bytes, groups })
}

// The fields of the footer.
const VERSION: u8 = 1;
const SCHEMA: u8 = 2;
const ROWS: u8 = 3;
const GROUPS: u8 = 4;
const NOTES: u8 = 5;
const CREATED_BY: u8 = 6;
const ORDERS: u8 = 7;

/// What is the same in every footer: the columns, as it describes them, which version, by whom, and that cells are in the order
/// of their kind. As this program writes it, byte for byte.
static WRITTEN: LazyLock<BTreeMap<u8, Vec<u8>>> = LazyLock::new(|| {
    let empty = TableWriter::new("").and_then(TableWriter::finish).unwrap_or_default();
    let empty = Bytes::from(empty);
    let mut written = BTreeMap::new();
    let read = bytes_of(&empty).and_then(|(footer, _)| {
        CompactReader::new(footer).fields(|reader, id, kind| {
            let value = reader.raw(kind)?;
            if matches!(id, VERSION | SCHEMA | CREATED_BY | ORDERS) {
                written.insert(id, value.to_vec());
            }
            Ok(())
        })
    });
    // Without it no table is believed.
    read.map(|()| written).unwrap_or_default()
});

/// The bytes of the footer, and how many there are before it.
fn bytes_of(bytes: &Bytes) -> Result<(&[u8], usize), TableError> {
    if bytes.len() as u64 > MAX_TABLE_BYTES {
        return Err(TableError::Form(format!("it is longer than {MAX_TABLE_BYTES} bytes")));
    }
    let (rest, end) =
        bytes.split_last_chunk::<END_BYTES>().ok_or_else(|| form("it has no footer"))?;
    let (length, magic) = end.split_at(END_BYTES - MAGIC.len());
    if magic != MAGIC || !rest.starts_with(MAGIC) {
        return Err(form("it has no footer"));
    }
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    if length > MAX_FOOTER_BYTES {
        return Err(TableError::Form(format!("its footer has more than {MAX_FOOTER_BYTES} bytes")));
    }
    let data_bytes = rest.len().checked_sub(length).filter(|data| *data >= MAGIC.len());
    let data_bytes = data_bytes.ok_or_else(|| form("it has no footer"))?;
    Ok((rest.get(data_bytes..).unwrap_or_default(), data_bytes))
}

fn read_notes(reader: &mut CompactReader<'_>) -> Result<BTreeMap<String, String>, TableError> {
    let mut notes = BTreeMap::new();
    for _ in 0..reader.list(ValueKind::Structure)? {
        let (mut key, mut value) = (None, "");
        reader.fields(|reader, id, kind| {
            match (id, kind) {
                (1, ValueKind::Binary) => key = Some(reader.text()?),
                (2, ValueKind::Binary) => value = reader.text()?,
                _ => return Err(form("a note says what is not written")),
            }
            Ok(())
        })?;
        let key = key.ok_or_else(|| form("a note has no name"))?;
        if notes.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(form("its notes are ambiguous"));
        }
    }
    Ok(notes)
}

fn read_groups(reader: &mut CompactReader<'_>) -> Result<Vec<TableGroup>, TableError> {
    let count = reader.list(ValueKind::Structure)?;
    (0..count).map(|at| read_group(reader, at)).collect()
}

/// The group with that place among the others.
fn read_group(reader: &mut CompactReader<'_>, place: usize) -> Result<TableGroup, TableError> {
    let (mut chunks, mut rows) = (Vec::<ColumnChunk>::new(), 0);
    let mut values = Vec::new();
    let (mut unpacked, mut packed, mut start) = (None, None, None);
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1, ValueKind::List) => {
                if reader.list(ValueKind::Structure)? != COLUMNS.len() {
                    return Err(form("it has other columns"));
                }
                for column in COLUMNS {
                    let (chunk, count) = read_chunk(reader, column)?;
                    chunks.push(chunk);
                    values.push(count);
                }
            }
            (2, ValueKind::Long) => unpacked = Some(reader.count()?),
            (3, ValueKind::Long) => rows = reader.count()?,
            (5, ValueKind::Long) => start = Some(reader.count()?),
            (6, ValueKind::Long) => packed = Some(reader.count()?),
            (7, ValueKind::Short) if reader.count()? == place => {}
            _ => return Err(form("a group says what is not written")),
        }
        Ok(())
    })?;
    if rows == 0 || chunks.len() != COLUMNS.len() || values.iter().any(|count| *count != rows) {
        return Err(form("a group has no records, or not all columns"));
    }
    let all = |of: fn(&ColumnChunk) -> usize| {
        chunks.iter().try_fold(0_usize, |sum, chunk| sum.checked_add(of(chunk)))
    };
    // What need not be said is so where it is.
    let is_so = |said: Option<usize>, seen| said.is_none() || said == seen;
    if unpacked.is_none()
        || !is_so(unpacked, all(|chunk| chunk.unpacked))
        || !is_so(packed, all(|chunk| chunk.range.len()))
        || !is_so(start, chunks.first().map(|chunk| chunk.range.start))
    {
        return Err(form("a group has another place or other sizes than its columns"));
    }
    Ok(TableGroup { rows, chunks })
}

/// The place of a column of a group, and how many cells are said to be there.
fn read_chunk(
    reader: &mut CompactReader<'_>,
    column: &TableColumn,
) -> Result<(ColumnChunk, usize), TableError> {
    let mut read = None;
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            // Where this stands once more, which it does not.
            (2, ValueKind::Long) if reader.number()? == 0 => {}
            (3, ValueKind::Structure) => read = Some(read_chunk_data(reader, column)?),
            _ => return Err(form("a column says what is not written")),
        }
        Ok(())
    })?;
    read.ok_or_else(|| form("a column lies nowhere"))
}

fn read_chunk_data(
    reader: &mut CompactReader<'_>,
    column: &TableColumn,
) -> Result<(ColumnChunk, usize), TableError> {
    let (mut codec, mut values, mut size, mut data, mut dictionary) =
        (None, None, None, None, None);
    let (mut encodings, mut unpacked, mut page_counts) = (None, None, None);
    let (mut least, mut greatest) = (Vec::new(), Vec::new());
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1, ValueKind::Int) if reader.number()? == column.kind.type_code() => {}
            (2, ValueKind::List) => encodings = Some(read_encodings(reader)?),
            (3, ValueKind::List) => {
                let parts = reader.list(ValueKind::Binary)?;
                if parts != 1 || reader.text()? != column.name {
                    return Err(form("it has other columns"));
                }
            }
            (4, ValueKind::Int) => codec = Some(reader.number()?),
            (5, ValueKind::Long) => values = Some(reader.count()?),
            (6, ValueKind::Long) => unpacked = Some(reader.count()?),
            (7, ValueKind::Long) => size = Some(reader.count()?),
            (9, ValueKind::Long) => data = Some(reader.count()?),
            (11, ValueKind::Long) => dictionary = Some(reader.count()?),
            (12, ValueKind::Structure) if column.kind.is_number() => {
                read_bounds(reader, &mut least, &mut greatest)?;
            }
            (13, ValueKind::List) => page_counts = Some(read_page_counts(reader)?),
            _ => return Err(form("a column says what is not written")),
        }
        Ok(())
    })?;
    let (Some(CODEC), Some(values), Some(size), Some(data)) = (codec, values, size, data) else {
        return Err(form("a column is packed otherwise, or lies nowhere"));
    };
    let (Some(encodings), Some(unpacked)) = (encodings, unpacked) else {
        return Err(form("of a column it is not said how it is written"));
    };
    let (start, has_dictionary) = (dictionary.unwrap_or(data), dictionary.is_some());
    let end = start.checked_add(size).filter(|end| start <= data && data < *end);
    let range = start..end.ok_or_else(|| form("a column lies nowhere"))?;
    let cells_at = data - start;
    let chunk = ColumnChunk {
        range,
        least,
        greatest,
        unpacked,
        cells_at,
        has_dictionary,
        encodings,
        page_counts,
    };
    Ok((chunk, values))
}

/// In which ways a column's cells are said to be written.
fn read_encodings(reader: &mut CompactReader<'_>) -> Result<BTreeSet<i64>, TableError> {
    let count = reader.list(ValueKind::Int)?;
    let read: Result<BTreeSet<_>, _> = (0..count).map(|_| reader.number()).collect();
    let mut encodings = read?;
    encodings.remove(&OF_LEVELS);
    Ok(encodings)
}

/// How many pages a column is said to have of each kind, by the numbers of the kind and of the way in which cells are written.
fn read_page_counts(
    reader: &mut CompactReader<'_>,
) -> Result<BTreeMap<(i64, i64), usize>, TableError> {
    let other = || form("a column's pages are counted otherwise than is written");
    let mut counts = BTreeMap::new();
    for _ in 0..reader.list(ValueKind::Structure)? {
        let (mut page, mut encoding, mut count) = (None, None, None);
        reader.fields(|reader, id, kind| {
            match (id, kind) {
                (1, ValueKind::Int) => page = Some(reader.number()?),
                (2, ValueKind::Int) => encoding = Some(reader.number()?),
                (3, ValueKind::Int) => count = Some(reader.count()?),
                _ => return Err(other()),
            }
            Ok(())
        })?;
        let kind = page.zip(encoding).ok_or_else(other)?;
        let all: &mut usize = counts.entry(kind).or_default();
        *all = count.and_then(|count| all.checked_add(count)).ok_or_else(other)?;
    }
    Ok(counts)
}

/// What the least and the greatest of a column's cells are said to be, in old words and in new ones.
fn read_bounds(
    reader: &mut CompactReader<'_>,
    least: &mut Vec<i64>,
    greatest: &mut Vec<i64>,
) -> Result<(), TableError> {
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1 | 5, ValueKind::Binary) => greatest.push(bound(reader)?),
            (2 | 6, ValueKind::Binary) => least.push(bound(reader)?),
            // Cells that are not there.
            (3, ValueKind::Long) if reader.number()? == 0 => {}
            // Whether the bounds are cells.
            (7 | 8, ValueKind::True) => {}
            _ => return Err(form("a column's bounds say what is not written")),
        }
        Ok(())
    })
}

fn bound(reader: &mut CompactReader<'_>) -> Result<i64, TableError> {
    let bound =
        reader.binary()?.try_into().map_err(|_| form("a column's bounds are no numbers"))?;
    Ok(i64::from_le_bytes(bound))
}

impl ColumnKind {
    /// The number of its type.
    fn type_code(self) -> i64 {
        match self {
            Self::Number(_) | Self::Millis(_) | Self::Micros(_) => 2,
            Self::Text(_) | Self::Repeated(_) | Self::Canonical => 6,
            Self::Hash => 7,
        }
    }

    fn is_number(self) -> bool {
        match self {
            Self::Number(_) | Self::Millis(_) | Self::Micros(_) => true,
            Self::Text(_) | Self::Repeated(_) | Self::Canonical | Self::Hash => false,
        }
    }
}
