//! Table decoder: reads all columns and compares each cell with the record's canonical bytes. Pure.
//!
//! A page is a header and Snappy-compressed cells: plain cells, or indexes into the dictionary page before them. Cells
//! are slices of the uncompressed pages, without copies. Memory is bounded for the whole table by the cells actually
//! present, not by claimed counts. Even an empty cell takes memory, so neither a column nor its dictionary may have
//! more cells than there are records.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mcpproxy_activity::record::{Hash, NodeId};
use snap::raw::{Decoder, decompress_len};

use crate::parquet_table::footer::{ColumnChunk, CompactReader, TableFooter, ValueKind};
use crate::parquet_table::{
    COLUMNS, Cells, ColumnKind, HASH_BYTES, RecordCollector, RecordRows, TableColumn, TableError,
    TableOf,
};

/// Decoded table: the records match all columns. Their chain is not verified.
#[derive(Debug)]
pub struct TableRead {
    pub rows: RecordRows,
    /// Name of the node.
    pub node: Box<str>,
}

/// Decodes a complete table with this footer. Accepts any bytes.
pub fn decode(bytes: &Bytes, footer: &TableFooter) -> Result<TableRead, TableError> {
    let form = |why: &str| TableError::Form(why.into());
    if footer.groups.is_empty() {
        return Err(form("it has no records"));
    }
    let mut left = Unpacking::new();
    let mut kept = BTreeMap::new();
    for name in ["seq", "hash", "record", "log", "node"] {
        let found = (0..).zip(COLUMNS).find(|(_, column)| column.name == name);
        let (at, column) = found.ok_or_else(|| form("it lacks a column"))?;
        kept.insert(name, read_column(bytes, footer, at, column, &mut left)?);
    }
    let (
        Some(Cells::Numbers(seqs)),
        Some(Cells::Hashes(hashes)),
        Some(Cells::Texts(records)),
        Some(Cells::Texts(logs)),
        Some(Cells::Texts(nodes)),
    ) = (kept.get("seq"), kept.get("hash"), kept.get("record"), kept.get("log"), kept.get("node"))
    else {
        return Err(form("a column has a different type"));
    };
    let node = text(nodes.first())?;
    let log = text(logs.first())?;
    let log = (log.len() == 32).then(|| u128::from_str_radix(&log, 16).ok()).flatten();
    let log = NodeId(log.ok_or_else(|| form("it names no log"))?.to_be_bytes());
    let mut rows = RecordCollector::new(log);
    for ((seq, hash), record) in seqs.iter().zip(hashes).zip(records) {
        let hash = <[u8; 32]>::try_from(&**hash).map_err(|_| form("a hash has a wrong length"))?;
        rows.push_canonical(*seq as u64, Hash(hash), record);
    }
    let rows = rows.finish();
    let named = Bytes::copy_from_slice(node.as_bytes());
    let table = TableOf::new(&rows, &named)?;
    for (at, column) in COLUMNS.iter().enumerate() {
        let cells = match kept.remove(column.name) {
            Some(cells) => cells,
            None => read_column(bytes, footer, at, column, &mut left)?,
        };
        if let Some(row) = table.cells(column).first_difference(&cells) {
            let seq = rows.iter().nth(row).map_or(0, |row| row.seq);
            return Err(TableError::Cell { column: column.name, seq });
        }
    }
    Ok(TableRead { rows, node })
}

fn text(cell: Option<&Bytes>) -> Result<Box<str>, TableError> {
    let text = cell.and_then(|cell| std::str::from_utf8(cell).ok());
    Ok(text.ok_or_else(|| TableError::Form("a name is not text".into()))?.into())
}

/// Reads one column over all groups.
fn read_column(
    bytes: &Bytes,
    footer: &TableFooter,
    at: usize,
    column: &TableColumn,
    left: &mut Unpacking,
) -> Result<Cells, TableError> {
    let no_location = || TableError::Form("a column has no location".into());
    let mut all = Cells::none(column.kind);
    for group in &footer.groups {
        let chunk = group.chunks.get(at).ok_or_else(no_location)?;
        let within = bytes.get(chunk.range.clone()).ok_or_else(no_location)?;
        let (cells, pages) = read_pages(&bytes.slice_ref(within), column, group.rows, left)?;
        if !chunk.matches_bounds(&cells) {
            let why = format!("the bounds of column {} do not match its cells", column.name);
            return Err(TableError::Form(why));
        }
        if !chunk.matches_pages(&pages) {
            let why = format!("the pages of column {} do not match the footer", column.name);
            return Err(TableError::Form(why));
        }
        all.extend(cells)?;
    }
    Ok(all)
}

impl ColumnChunk {
    /// True if the claimed minimum and maximum are right. Column queries use them to skip tables.
    fn matches_bounds(&self, cells: &Cells) -> bool {
        let Cells::Numbers(cells) = cells else { return self.min.is_empty() };
        let (min, greatest) = (cells.iter().min(), cells.iter().max());
        self.min.iter().all(|it| Some(it) == min)
            && self.greatest.iter().all(|it| Some(it) == greatest)
    }

    /// True if the claimed pages are right. Other programs use them to read or skip pages.
    fn matches_pages(&self, pages: &PagesSeen) -> bool {
        let encodings: BTreeSet<i64> = pages.counts.keys().map(|(_, encoding)| *encoding).collect();
        let has_dictionary = pages.counts.keys().any(|(kind, _)| *kind == DICTIONARY_PAGE);
        self.unpacked == pages.unpacked
            && Some(self.cells_at) == pages.cells_at
            && self.has_dictionary == has_dictionary
            && self.encodings == encodings
            && self.page_counts.as_ref().is_none_or(|counts| *counts == pages.counts)
    }
}

/// Maximum uncompressed size in bytes of a table's pages, and of its cells. A cell is counted each time it occurs.
const MAX_UNPACKED_BYTES: usize = 512 << 20;
/// Maximum compression ratio of Snappy: three bytes stand for at most 64.
const MAX_PACKING: usize = 64;
/// Bytes of a text's length prefix.
const LENGTH_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;
/// Parquet codes of the page types.
const CELLS_PAGE: i64 = 0;
pub(crate) const DICTIONARY_PAGE: i64 = 2;
/// Parquet codes of the encodings.
const PLAIN: i64 = 0;
const BY_OLD_DICTIONARY: i64 = 2;
const BY_DICTIONARY: i64 = 8;
/// Maximum number of bits of a dictionary index.
const MAX_INDEX_BITS: usize = 32;
/// Number of indexes per bit-packed run unit.
const PACKED_TOGETHER: usize = 8;

/// Remaining memory budget of a table.
pub(crate) struct Unpacking {
    pages: usize,
    cells: usize,
}

impl Unpacking {
    pub(crate) fn new() -> Self {
        Self { pages: MAX_UNPACKED_BYTES, cells: MAX_UNPACKED_BYTES }
    }

    fn take(left: &mut usize, bytes: usize) -> Result<(), TableError> {
        let too_large = || form("its uncompressed size is too large");
        *left = left.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

fn form(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// Actual pages of a column chunk.
#[derive(Debug, Default)]
pub(crate) struct PagesSeen {
    /// Uncompressed size in bytes, page headers included.
    pub(crate) unpacked: usize,
    /// Offset of the first data page in the chunk.
    pub(crate) cells_at: Option<usize>,
    /// Number of pages by page type and encoding.
    pub(crate) counts: BTreeMap<(i64, i64), usize>,
}

impl PagesSeen {
    /// Adds a page whose header is at `at` and has this length.
    fn add(&mut self, head: &PageHead, at: usize, head_bytes: usize) {
        self.unpacked += head_bytes + head.unpacked;
        let kind = if head.is_dictionary {
            DICTIONARY_PAGE
        } else {
            self.cells_at.get_or_insert(at);
            CELLS_PAGE
        };
        *self.counts.entry((kind, head.encoding)).or_default() += 1;
    }
}

/// Page header.
struct PageHead {
    is_dictionary: bool,
    unpacked: usize,
    packed: usize,
    values: usize,
    encoding: i64,
}

impl PageHead {
    fn read(reader: &mut CompactReader<'_>) -> Result<Self, TableError> {
        let (mut kind_of_page, mut unpacked, mut packed, mut cells) = (None, None, None, None);
        reader.fields(|reader, id, kind| {
            match (id, kind) {
                (1, ValueKind::Int) => kind_of_page = Some(reader.number()?),
                (2, ValueKind::Int) => unpacked = Some(reader.count()?),
                (3, ValueKind::Int) => packed = Some(reader.count()?),
                (5 | 7, ValueKind::Structure) if cells.is_none() => {
                    let (mut values, mut encoding) = (None, None);
                    reader.fields(|reader, id, kind| {
                        match (id, kind) {
                            (1, ValueKind::Int) => values = Some(reader.count()?),
                            (2, ValueKind::Int) => encoding = Some(reader.number()?),
                            _ => {
                                reader.raw(kind)?;
                            }
                        }
                        Ok(())
                    })?;
                    cells = values.zip(encoding).map(|(values, encoding)| (id, values, encoding));
                }
                _ => return Err(form("a page has an unexpected field")),
            }
            Ok(())
        })?;
        let (Some(unpacked), Some(packed), Some((id, values, encoding))) =
            (unpacked, packed, cells)
        else {
            return Err(form("a page is incomplete"));
        };
        let is_dictionary = match (kind_of_page, id) {
            (Some(CELLS_PAGE), 5) => false,
            (Some(DICTIONARY_PAGE), 7) => true,
            _ => return Err(form("a page has an unsupported type")),
        };
        Ok(Self { is_dictionary, unpacked, packed, values, encoding })
    }

    fn unpack(&self, packed: &[u8], left: &mut Unpacking) -> Result<Bytes, TableError> {
        let is_possible = self.unpacked / MAX_PACKING <= packed.len();
        if !is_possible || decompress_len(packed).ok() != Some(self.unpacked) {
            return Err(form("the length of a page is wrong"));
        }
        Unpacking::take(&mut left.pages, self.unpacked)?;
        let unpacked = Decoder::new().decompress_vec(packed);
        Ok(unpacked.map_err(|_| form("a page cannot be decompressed"))?.into())
    }
}

/// Reads the cells of a column chunk with `rows` rows, and describes its pages.
pub(crate) fn read_pages(
    chunk: &Bytes,
    column: &TableColumn,
    rows: usize,
    left: &mut Unpacking,
) -> Result<(Cells, PagesSeen), TableError> {
    let (mut at, mut dictionary) = (0, None);
    let (mut cells, mut seen) = (Cells::none(column.kind), PagesSeen::default());
    while at < chunk.len() {
        let mut reader = CompactReader::new(chunk.get(at..).unwrap_or_default());
        let head = PageHead::read(&mut reader)?;
        let start = chunk.len() - reader.left();
        let packed = start.checked_add(head.packed).and_then(|end| chunk.get(start..end));
        let packed = packed.ok_or_else(|| form("a page is truncated"))?;
        if head.is_dictionary && head.values > rows {
            return Err(form("a dictionary has more cells than there are records"));
        }
        let page = head.unpack(packed, left)?;
        seen.add(&head, at, start - at);
        at = start + packed.len();
        if head.is_dictionary {
            if dictionary.is_some() || cells.len() > 0 || head.encoding != PLAIN {
                return Err(form("a dictionary does not precede all cells"));
            }
            dictionary = Some(plain(column.kind, &page, head.values)?);
            continue;
        }
        if head.values == 0 || head.values > rows - cells.len() {
            return Err(form("a page has no cells, or too many"));
        }
        let read = match (head.encoding, &dictionary) {
            (PLAIN, _) => plain(column.kind, &page, head.values)?,
            (BY_DICTIONARY | BY_OLD_DICTIONARY, Some(dictionary)) => {
                dictionary.picked(&indices(&page, head.values)?)?
            }
            _ => return Err(form("a page has an unsupported encoding")),
        };
        Unpacking::take(&mut left.cells, read.bytes())?;
        cells.extend(read)?;
    }
    if cells.len() == rows { Ok((cells, seen)) } else { Err(form("a column is too short")) }
}

/// Decodes this many plain cells.
fn plain(kind: ColumnKind, page: &Bytes, count: usize) -> Result<Cells, TableError> {
    let other = || form("the cells of a page do not match its header");
    let are = |bytes: usize| count.checked_mul(bytes) == Some(page.len());
    match kind {
        ColumnKind::Number(_) | ColumnKind::Millis(_) | ColumnKind::Micros(_) => {
            let (numbers, _) = page.as_chunks::<NUMBER_BYTES>();
            let numbers = numbers.iter().map(|number| i64::from_le_bytes(*number));
            if are(NUMBER_BYTES) { Ok(Cells::Numbers(numbers.collect())) } else { Err(other()) }
        }
        ColumnKind::Hash => {
            let starts = (0..page.len()).step_by(HASH_BYTES);
            let hashes = || starts.map(|start| page.slice(start..start + HASH_BYTES));
            if are(HASH_BYTES) { Ok(Cells::Hashes(hashes().collect())) } else { Err(other()) }
        }
        ColumnKind::Text(_) | ColumnKind::Repeated(_) | ColumnKind::Canonical => {
            if count > page.len() / LENGTH_BYTES {
                return Err(other());
            }
            let (mut texts, mut rest) = (Vec::with_capacity(count), page.clone());
            for _ in 0..count {
                let length = rest.first_chunk().copied().map(u32::from_le_bytes);
                let length = length.ok_or_else(other)? as usize;
                let end = LENGTH_BYTES.checked_add(length).filter(|end| *end <= rest.len());
                let text = rest.split_to(end.ok_or_else(other)?);
                texts.push(text.slice(LENGTH_BYTES..));
            }
            if rest.is_empty() { Ok(Cells::Texts(texts)) } else { Err(other()) }
        }
    }
}

/// Decodes this many dictionary indexes: a bit width, then runs of one index or of eight bit-packed ones.
fn indices(page: &Bytes, count: usize) -> Result<Vec<usize>, TableError> {
    let cut = || form("a page is truncated");
    let (bits, mut rest) = page.split_first().ok_or_else(cut)?;
    let bits = usize::from(*bits);
    if bits > MAX_INDEX_BITS {
        return Err(form("a page has an unsupported encoding"));
    }
    let mut indices = Vec::with_capacity(count);
    while indices.len() < count {
        let (head, behind) = varint(rest).ok_or_else(cut)?;
        let (left, length) = (count - indices.len(), (head >> 1) as usize);
        let (is_packed, bytes) = match head & 1 {
            1 => (true, length.checked_mul(bits)),
            _ => (false, Some(bits.div_ceil(8))),
        };
        let (run, behind) = bytes.and_then(|at| behind.split_at_checked(at)).ok_or_else(cut)?;
        rest = behind;
        if is_packed {
            let packed = length.saturating_mul(PACKED_TOGETHER).min(left);
            indices.extend((0..packed).map(|at| bits_at(run, at * bits, bits)));
        } else {
            let index = bits_at(run, 0, bits);
            indices.extend(std::iter::repeat_n(index, length.min(left)));
        }
    }
    Ok(indices)
}

/// Decodes a varint of at most 32 bits, and returns the rest.
fn varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, bytes.get(at + 1..)?));
        }
    }
    None
}

/// Extracts a little-endian number of this many bits.
fn bits_at(bytes: &[u8], from: usize, bits: usize) -> usize {
    // At most seven bits before it and 32 of its own: five bytes.
    let bytes = bytes.get(from / 8..).unwrap_or_default().iter().take(5);
    let word = bytes.rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    (word >> (from % 8) & ((1 << bits) - 1)) as usize
}

impl Cells {
    pub(crate) fn none(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Number(_) | ColumnKind::Millis(_) | ColumnKind::Micros(_) => {
                Self::Numbers(Vec::new())
            }
            ColumnKind::Hash => Self::Hashes(Vec::new()),
            ColumnKind::Text(_) | ColumnKind::Repeated(_) | ColumnKind::Canonical => {
                Self::Texts(Vec::new())
            }
        }
    }

    /// Size of each cell in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Numbers(cells) => cells.len() * NUMBER_BYTES,
            Self::Texts(cells) | Self::Hashes(cells) => {
                cells.iter().fold(0, |sum, cell| sum.saturating_add(cell.len()))
            }
        }
    }

    /// Selects cells by index.
    fn picked(&self, indices: &[usize]) -> Result<Self, TableError> {
        fn picked<T: Clone>(cells: &[T], indices: &[usize]) -> Option<Vec<T>> {
            indices.iter().map(|index| cells.get(*index).cloned()).collect()
        }
        let picked = match self {
            Self::Numbers(cells) => picked(cells, indices).map(Self::Numbers),
            Self::Texts(cells) => picked(cells, indices).map(Self::Texts),
            Self::Hashes(cells) => picked(cells, indices).map(Self::Hashes),
        };
        picked.ok_or_else(|| form("a dictionary index is out of range"))
    }
}
