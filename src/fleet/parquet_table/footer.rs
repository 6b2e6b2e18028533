//! Parser of a table's footer, with the strict Thrift compact protocol reader it needs. Pure.
//!
//! The footer is the only part read before the signature is verified. So it is bounded, and parsed by a reader that
//! accepts exactly what [`TableWriter`] writes.
//!
//! The footer itself is not signed. So everything in it that a reader of the columns relies on is verified: columns,
//! offsets, sizes, statistics and encodings are compared with the data, and fields that are never written (external
//! files, indexes, filters) are rejected. Programs that split a table by row groups rely on group offsets and sizes:
//! if an offset were wrong, none of them would read the group.
//!
//! [`CompactReader`] is strict, so that other parsers cannot interpret the bytes differently: field ids ascend without
//! duplicates, and every value has the type that the caller expects. It allocates nothing for a claimed length: a list
//! has at most as many elements as bytes remain, and each element takes at least one byte.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;

use crate::parquet_table::{COLUMNS, ColumnKind, TableColumn, TableError, TableWriter};

/// Maximum size of a table in bytes.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Maximum number of records in a table.
const MAX_TABLE_RECORDS: usize = 1 << 20;
/// Magic bytes at the beginning and end of a table.
const MAGIC: &[u8; 4] = b"PAR1";
/// Length of the trailer: footer length and magic.
const END_BYTES: usize = 8;
/// Maximum size of a footer in bytes. A segment's footer has 3 KB, plus its note of at most 64 KiB.
const MAX_FOOTER_BYTES: usize = 128 << 10;
/// Parquet code of the compression: Snappy.
const CODEC: i64 = 1;
/// Parquet code of the level encoding. All cells are required and never repeat, so levels are not written.
const OF_LEVELS: i64 = 3;

/// Parsed footer, and the length of the data before it.
#[derive(Clone, Debug)]
pub struct TableFooter {
    /// Key-value notes.
    pub notes: BTreeMap<String, String>,
    /// Length of the data before the footer in bytes.
    pub data_bytes: usize,
    pub(crate) groups: Vec<TableGroup>,
}

/// Row group.
#[derive(Clone, Debug)]
pub(crate) struct TableGroup {
    pub(crate) rows: usize,
    /// Column chunks in column order.
    pub(crate) chunks: Vec<ColumnChunk>,
}

/// Cells of one column in a row group.
#[derive(Clone, Debug)]
pub(crate) struct ColumnChunk {
    pub(crate) range: Range<usize>,
    /// Claimed minima in all encodings.
    pub(crate) min: Vec<i64>,
    pub(crate) greatest: Vec<i64>,
    /// Claimed uncompressed size in bytes, page headers included.
    pub(crate) unpacked: usize,
    /// Claimed offset of the first data page.
    pub(crate) cells_at: usize,
    /// True if a dictionary page is claimed before it.
    pub(crate) has_dictionary: bool,
    /// Claimed encodings.
    pub(crate) encodings: BTreeSet<i64>,
    /// Claimed number of pages by page type and encoding.
    pub(crate) page_counts: Option<BTreeMap<(i64, i64), usize>>,
}

fn form(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// Parses the footer of arbitrary bytes. Does not read the data.
pub fn footer(bytes: &Bytes) -> Result<TableFooter, TableError> {
    let (footer, data_bytes) = bytes_of(bytes)?;
    let mut reader = CompactReader::new(footer);
    let (mut notes, mut groups, mut rows) = (BTreeMap::new(), None, None);
    let (mut has_columns, mut as_written) = (false, 0);
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            // The named writer and the column orders determine whether other programs trust the statistics.
            (VERSION, ValueKind::Int)
            | (CREATED_BY, ValueKind::Binary)
            | (SCHEMA | ORDERS, ValueKind::List) => {
                let value = reader.raw(kind)?;
                if WRITTEN.get(&id).is_some_and(|written| written.as_slice() == value) {
                    as_written += 1;
                    has_columns |= id == SCHEMA;
                } else if id != SCHEMA {
                    return Err(form("its footer has a different format"));
                }
            }
            (ROWS, ValueKind::Long) => rows = Some(reader.count()?),
            (GROUPS, ValueKind::List) if has_columns => groups = Some(read_groups(reader)?),
            (NOTES, ValueKind::List) => notes = read_notes(reader)?,
            (GROUPS, ValueKind::List) => return Err(form("it has different columns")),
            _ => return Err(form("its footer has an unexpected field")),
        }
        Ok(())
    })?;
    let groups = groups.filter(|_| as_written == WRITTEN.len());
    let groups = groups.ok_or_else(|| form("its footer is incomplete"))?;
    let counted = groups.iter().try_fold(0_usize, |sum, group| sum.checked_add(group.rows));
    if counted.is_none_or(|count| count > MAX_TABLE_RECORDS) || counted != rows {
        return Err(form("it has too many records, or a wrong record count"));
    }
    if reader.left() > 0 {
        return Err(form("there is data after its footer"));
    }
    let mut end = MAGIC.len();
    for chunk in groups.iter().flat_map(|group| &group.chunks) {
        if chunk.range.start != end {
            return Err(form("its columns are not adjacent"));
        }
        end = chunk.range.end;
    }
    if end != data_bytes {
        return Err(form("its columns do not end with its data"));
    }
    Ok(TableFooter { notes, data_bytes, groups })
}

// Field ids of the footer.
const VERSION: u8 = 1;
const SCHEMA: u8 = 2;
const ROWS: u8 = 3;
const GROUPS: u8 = 4;
const NOTES: u8 = 5;
const CREATED_BY: u8 = 6;
const ORDERS: u8 = 7;

/// Constant parts of every footer as this program writes them: version, schema, writer and column orders.
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
    // If this fails, every table is rejected.
    read.map(|()| written).unwrap_or_default()
});

/// The footer bytes and the length before them.
fn bytes_of(bytes: &Bytes) -> Result<(&[u8], usize), TableError> {
    if bytes.len() as u64 > MAX_TABLE_BYTES {
        return Err(TableError::Form(format!("longer than {MAX_TABLE_BYTES} bytes")));
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
                _ => return Err(form("a note has an unexpected field")),
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

/// Reads the row group with this index.
fn read_group(reader: &mut CompactReader<'_>, place: usize) -> Result<TableGroup, TableError> {
    let (mut chunks, mut rows) = (Vec::<ColumnChunk>::new(), 0);
    let mut values = Vec::new();
    let (mut unpacked, mut packed, mut start) = (None, None, None);
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1, ValueKind::List) => {
                if reader.list(ValueKind::Structure)? != COLUMNS.len() {
                    return Err(form("it has different columns"));
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
            _ => return Err(form("a group has an unexpected field")),
        }
        Ok(())
    })?;
    if rows == 0 || chunks.len() != COLUMNS.len() || values.iter().any(|count| *count != rows) {
        return Err(form("a row group has no records or lacks columns"));
    }
    let all = |of: fn(&ColumnChunk) -> usize| {
        chunks.iter().try_fold(0_usize, |sum, chunk| sum.checked_add(of(chunk)))
    };
    // An optional field must be correct if it is present.
    let is_consistent = |claimed: Option<usize>, seen| claimed.is_none() || claimed == seen;
    if unpacked.is_none()
        || !is_consistent(unpacked, all(|chunk| chunk.unpacked))
        || !is_consistent(packed, all(|chunk| chunk.range.len()))
        || !is_consistent(start, chunks.first().map(|chunk| chunk.range.start))
    {
        return Err(form("the offset or sizes of a group do not match its columns"));
    }
    Ok(TableGroup { rows, chunks })
}

/// Reads a column chunk and its claimed number of cells.
fn read_chunk(
    reader: &mut CompactReader<'_>,
    column: &TableColumn,
) -> Result<(ColumnChunk, usize), TableError> {
    let mut read = None;
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            // File offset of a second copy of the metadata, which is never written.
            (2, ValueKind::Long) if reader.number()? == 0 => {}
            (3, ValueKind::Structure) => read = Some(read_chunk_data(reader, column)?),
            _ => return Err(form("a column has an unexpected field")),
        }
        Ok(())
    })?;
    read.ok_or_else(|| form("a column has no location"))
}

fn read_chunk_data(
    reader: &mut CompactReader<'_>,
    column: &TableColumn,
) -> Result<(ColumnChunk, usize), TableError> {
    let (mut codec, mut values, mut size, mut data, mut dictionary) =
        (None, None, None, None, None);
    let (mut encodings, mut unpacked, mut page_counts) = (None, None, None);
    let (mut min, mut greatest) = (Vec::new(), Vec::new());
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1, ValueKind::Int) if reader.number()? == column.kind.type_code() => {}
            (2, ValueKind::List) => encodings = Some(read_encodings(reader)?),
            (3, ValueKind::List) => {
                let parts = reader.list(ValueKind::Binary)?;
                if parts != 1 || reader.text()? != column.name {
                    return Err(form("it has different columns"));
                }
            }
            (4, ValueKind::Int) => codec = Some(reader.number()?),
            (5, ValueKind::Long) => values = Some(reader.count()?),
            (6, ValueKind::Long) => unpacked = Some(reader.count()?),
            (7, ValueKind::Long) => size = Some(reader.count()?),
            (9, ValueKind::Long) => data = Some(reader.count()?),
            (11, ValueKind::Long) => dictionary = Some(reader.count()?),
            (12, ValueKind::Structure) if column.kind.is_number() => {
                read_bounds(reader, &mut min, &mut greatest)?;
            }
            (13, ValueKind::List) => page_counts = Some(read_page_counts(reader)?),
            _ => return Err(form("a column has an unexpected field")),
        }
        Ok(())
    })?;
    let (Some(CODEC), Some(values), Some(size), Some(data)) = (codec, values, size, data) else {
        return Err(form("a column is compressed differently, or has no location"));
    };
    let (Some(encodings), Some(unpacked)) = (encodings, unpacked) else {
        return Err(form("a column has no encodings"));
    };
    let (start, has_dictionary) = (dictionary.unwrap_or(data), dictionary.is_some());
    let end = start.checked_add(size).filter(|end| start <= data && data < *end);
    let range = start..end.ok_or_else(|| form("a column has no location"))?;
    let cells_at = data - start;
    let chunk = ColumnChunk {
        range,
        min,
        greatest,
        unpacked,
        cells_at,
        has_dictionary,
        encodings,
        page_counts,
    };
    Ok((chunk, values))
}

/// Reads the claimed encodings.
fn read_encodings(reader: &mut CompactReader<'_>) -> Result<BTreeSet<i64>, TableError> {
    let count = reader.list(ValueKind::Int)?;
    let read: Result<BTreeSet<_>, _> = (0..count).map(|_| reader.number()).collect();
    let mut encodings = read?;
    encodings.remove(&OF_LEVELS);
    Ok(encodings)
}

/// Reads the claimed number of pages by page type and encoding.
fn read_page_counts(
    reader: &mut CompactReader<'_>,
) -> Result<BTreeMap<(i64, i64), usize>, TableError> {
    let other = || form("the page counts of a column are invalid");
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

/// Reads the claimed minimum and maximum, deprecated and current fields.
fn read_bounds(
    reader: &mut CompactReader<'_>,
    min: &mut Vec<i64>,
    greatest: &mut Vec<i64>,
) -> Result<(), TableError> {
    reader.fields(|reader, id, kind| {
        match (id, kind) {
            (1 | 5, ValueKind::Binary) => greatest.push(bound(reader)?),
            (2 | 6, ValueKind::Binary) => min.push(bound(reader)?),
            // Number of nulls.
            (3, ValueKind::Long) if reader.number()? == 0 => {}
            // Flags that state that the bounds are exact.
            (7 | 8, ValueKind::True) => {}
            _ => return Err(form("the bounds of a column have an unexpected field")),
        }
        Ok(())
    })
}

fn bound(reader: &mut CompactReader<'_>) -> Result<i64, TableError> {
    let bound =
        reader.binary()?.try_into().map_err(|_| form("the bounds of a column are not numbers"))?;
    Ok(i64::from_le_bytes(bound))
}

impl ColumnKind {
    /// Parquet code of the type.
    fn type_code(self) -> i64 {
        match self {
            Self::Number(_) | Self::Millis(_) | Self::Micros(_) => 2,
            Self::Text(_) | Self::Repeated(_) | Self::Canonical => 6,
            Self::Hash => 7,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Number(_) | Self::Millis(_) | Self::Micros(_))
    }
}

/// Maximum nesting depth: tables have five levels.
const MAX_DEPTH: usize = 8;
/// Payload bits per varint byte; the highest bit marks a continuation.
const VARINT_BITS: u32 = 7;

/// Type of a value. Types that tables do not use are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    True,
    False,
    Short,
    Int,
    Long,
    Binary,
    List,
    Structure,
}

impl ValueKind {
    fn of(code: u8) -> Result<Self, TableError> {
        Ok(match code {
            1 => Self::True,
            2 => Self::False,
            4 => Self::Short,
            5 => Self::Int,
            6 => Self::Long,
            8 => Self::Binary,
            9 => Self::List,
            12 => Self::Structure,
            _ => return Err(malformed("a value has an unsupported type")),
        })
    }
}

fn malformed(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// Thrift compact protocol reader over a byte slice.
pub(crate) struct CompactReader<'a> {
    rest: &'a [u8],
}

impl<'a> CompactReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Number of unread bytes.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Result<u8, TableError> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| malformed("it is truncated"))?;
        self.rest = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, TableError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(VARINT_BITS as usize) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number is too long"))
    }

    /// Reads an integer of any width.
    pub(crate) fn number(&mut self) -> Result<i64, TableError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a count or an offset.
    pub(crate) fn count(&mut self) -> Result<usize, TableError> {
        usize::try_from(self.number()?).map_err(|_| malformed("a number is out of range"))
    }

    pub(crate) fn binary(&mut self) -> Result<&'a [u8], TableError> {
        let length = self.varint()?;
        let split = usize::try_from(length).ok().and_then(|at| self.rest.split_at_checked(at));
        let (read, rest) = split.ok_or_else(|| malformed("it is truncated"))?;
        self.rest = rest;
        Ok(read)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, TableError> {
        std::str::from_utf8(self.binary()?).map_err(|_| malformed("a text is not UTF-8"))
    }

    /// Reads a list header and returns the number of elements.
    pub(crate) fn list(&mut self, kind: ValueKind) -> Result<usize, TableError> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).unwrap_or(usize::MAX),
            count => usize::from(count),
        };
        if count > self.left() {
            return Err(malformed("a list is longer than the remaining bytes"));
        }
        if ValueKind::of(head & 15)? != kind {
            return Err(malformed("a list has elements of a different type"));
        }
        Ok(count)
    }

    /// Reads a structure: `each` reads the value of one field, given its id and type.
    pub(crate) fn fields(
        &mut self,
        mut each: impl FnMut(&mut Self, u8, ValueKind) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let mut id = 0_u8;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let next = id.checked_add(head >> 4).filter(|next| *next > id);
            id = next.ok_or_else(|| malformed("field ids of a structure do not ascend"))?;
            each(self, id, ValueKind::of(head & 15)?)?;
        }
    }

    /// Skips a value and returns its bytes.
    pub(crate) fn raw(&mut self, kind: ValueKind) -> Result<&'a [u8], TableError> {
        let all = self.rest;
        self.skip(kind, MAX_DEPTH)?;
        Ok(all.get(..all.len() - self.left()).unwrap_or_default())
    }

    fn skip(&mut self, kind: ValueKind, depth: usize) -> Result<(), TableError> {
        let Some(deeper) = depth.checked_sub(1) else {
            return Err(malformed("its values are nested too deeply"));
        };
        match kind {
            ValueKind::True | ValueKind::False => Ok(()),
            ValueKind::Short | ValueKind::Int | ValueKind::Long => self.varint().map(drop),
            ValueKind::Binary => self.binary().map(drop),
            ValueKind::Structure => self.fields(|reader, _, kind| reader.skip(kind, deeper)),
            ValueKind::List => {
                let kind = ValueKind::of(self.rest.first().map_or(0, |head| head & 15))?;
                // A list of zero-size elements could claim any length.
                if matches!(kind, ValueKind::True | ValueKind::False) {
                    return Err(malformed("a list has elements of an unsupported type"));
                }
                for _ in 0..self.list(kind)? {
                    self.skip(kind, deeper)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_claimed_lengths_are_checked() {
        let mut reader = CompactReader::new(&[0x03, 0xd8, 0x04, 2, b'a', b'b', 0x25, 2, 4, 7]);
        assert_eq!((reader.number().unwrap(), reader.number().unwrap()), (-2, 300));
        assert_eq!(reader.text().unwrap(), "ab");
        assert_eq!(reader.list(ValueKind::Int).unwrap(), 2);
        assert_eq!((reader.count().unwrap(), reader.count().unwrap()), (1, 2));
        assert_eq!(reader.left(), 1);
        for (bytes, why) in [
            (&[0x80_u8; 3][..], "truncated"),
            (&[0xff; 12], "too long"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "too long"),
        ] {
            let error = CompactReader::new(bytes).number().unwrap_err().to_string();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        let greatest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(CompactReader::new(&greatest).number().unwrap(), i64::MIN);
        assert!(CompactReader::new(&[0x03]).count().is_err());
        assert!(CompactReader::new(&[3, b'a']).binary().is_err());
        assert!(
            CompactReader::new(&[0xfc, 0xff, 0xff, 0xff, 0x7f]).list(ValueKind::Structure).is_err()
        );
        assert!(CompactReader::new(&[0x15, 0]).list(ValueKind::Long).is_err());
    }

    #[test]
    fn fields_must_ascend_and_match_their_type() {
        let seen = |bytes: &[u8]| {
            let mut seen = Vec::new();
            let read = CompactReader::new(bytes).fields(|reader, id, kind| {
                seen.push((id, kind));
                reader.raw(kind).map(drop)
            });
            read.map(|()| seen).map_err(|error| error.to_string())
        };
        let two = [(1, ValueKind::Int), (4, ValueKind::True)];
        assert_eq!(seen(&[0x15, 2, 0x31, 0]), Ok(two.to_vec()));
        // A field id in long form may be any number, and a 16-bit id may repeat.
        for (bytes, why) in [
            (&[0x05, 2, 2, 0][..], "do not ascend"),
            (&[0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2][..6], "truncated"),
            (&[0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0], "has an unsupported type"),
            (&[0x1b, 0, 0], "has an unsupported type"),
            (&[0x15], "truncated"),
            // Two billion elements of zero size.
            (&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7, 0], "unsupported type"),
        ] {
            let error = seen(bytes).unwrap_err();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        let deep = vec![0x1c; 100_000];
        assert!(seen(&deep).unwrap_err().contains("too deeply"));
        let deep = vec![0x19; 100_000];
        assert!(seen(&deep).unwrap_err().contains("too deeply"));
    }
}
