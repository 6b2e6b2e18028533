//! The cells of a column: unpacked page by page, within a bound for the whole table that counts what a cell is each time that
//! it stands there, and not what is said of it. Pure.
//!
//! A page is a head, then its cells, packed by Snappy: the cells themselves, or the numbers that they have in the page before
//! the others, the dictionary. Cells are parts of the unpacked pages, of which nothing is copied. Each takes memory of its own
//! beside its bytes, of which it may have none: so neither a column nor its dictionary has more cells than there are records.

use std::collections::BTreeMap;

use bytes::Bytes;
use snap::raw::{Decoder, decompress_len};

use super::compact::{CompactReader, ValueKind};
use super::table::{Cells, ColumnKind, HASH_BYTES, TableColumn};
use super::table_error::TableError;

/// Most bytes of a table's pages when they are unpacked; of its cells, too, each counted where it stands.
const MAX_UNPACKED_BYTES: usize = 512 << 20;
/// How far a page can have been packed: three bytes stand for 64 at most.
const MAX_PACKING: usize = 64;
/// Bytes of a text's length.
const LENGTH_BYTES: usize = 4;
/// Bytes of a number.
const NUMBER_BYTES: usize = 8;
/// What a page is: cells of the column, or its dictionary.
const CELLS_PAGE: i64 = 0;
pub(super) const DICTIONARY_PAGE: i64 = 2;
/// How cells are written.
const PLAIN: i64 = 0;
const BY_OLD_DICTIONARY: i64 = 2;
const BY_DICTIONARY: i64 = 8;
/// Bits of a number in a dictionary at most.
const MAX_INDEX_BITS: usize = 32;
/// Such numbers that are packed together.
const PACKED_TOGETHER: usize = 8;

/// What a table may still take in memory.
pub(super) struct Unpacking {
    pages: usize,
    cells: usize,
}

impl Unpacking {
    pub(super) fn new() -> Self {
        Self { pages: MAX_UNPACKED_BYTES, cells: MAX_UNPACKED_BYTES }
    }

    fn take(left: &mut usize, bytes: usize) -> Result<(), TableError> {
        let too_large = || form("it is too large when it is unpacked");
        *left = left.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

fn form(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// How the pages of a column lie in a chunk.
#[derive(Debug, Default)]
pub(super) struct PagesSeen {
    /// Bytes of their heads, and of what they hold when it is unpacked.
    pub(super) unpacked: usize,
    /// Where in the chunk the first page of cells begins.
    pub(super) cells_at: Option<usize>,
    /// How many there are of each kind, by the number of the kind and that of the way in which cells are written.
    pub(super) counts: BTreeMap<(i64, i64), usize>,
}

impl PagesSeen {
    /// One more, whose head lies at `at` and is so long.
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

/// What the head of a page says.
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
                _ => return Err(form("a page says what is not written")),
            }
            Ok(())
        })?;
        let (Some(unpacked), Some(packed), Some((id, values, encoding))) =
            (unpacked, packed, cells)
        else {
            return Err(form("a page is not whole"));
        };
        let is_dictionary = match (kind_of_page, id) {
            (Some(CELLS_PAGE), 5) => false,
            (Some(DICTIONARY_PAGE), 7) => true,
            _ => return Err(form("a page is of another kind")),
        };
        Ok(Self { is_dictionary, unpacked, packed, values, encoding })
    }

    /// The page, unpacked.
    fn unpack(&self, packed: &[u8], left: &mut Unpacking) -> Result<Bytes, TableError> {
        let is_possible = self.unpacked / MAX_PACKING <= packed.len();
        if !is_possible || decompress_len(packed).ok() != Some(self.unpacked) {
            return Err(form("a page has another length than it says"));
        }
        Unpacking::take(&mut left.pages, self.unpacked)?;
        let unpacked = Decoder::new().decompress_vec(packed);
        Ok(unpacked.map_err(|_| form("a page cannot be unpacked"))?.into())
    }
}

/// The cells of a column that lie in `chunk`, of which there are `rows`, and how its pages lie there.
pub(super) fn read(
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
        let packed = packed.ok_or_else(|| form("a page is cut"))?;
        if head.is_dictionary && head.values > rows {
            return Err(form("a dictionary has more cells than there are records"));
        }
        let page = head.unpack(packed, left)?;
        seen.add(&head, at, start - at);
        at = start + packed.len();
        if head.is_dictionary {
            if dictionary.is_some() || cells.len() > 0 || head.encoding != PLAIN {
                return Err(form("a dictionary does not stand before all cells"));
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
            _ => return Err(form("a page is written in another way")),
        };
        Unpacking::take(&mut left.cells, read.bytes())?;
        cells.extend(read)?;
    }
    if cells.len() == rows { Ok((cells, seen)) } else { Err(form("a column is too short")) }
}

/// So many cells, one behind the other.
fn plain(kind: ColumnKind, page: &Bytes, count: usize) -> Result<Cells, TableError> {
    let other = || form("a page has other cells than it says");
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

/// So many numbers of cells in a dictionary: how many bits each has, then runs of one number, or of eight at a time packed.
fn indices(page: &Bytes, count: usize) -> Result<Vec<usize>, TableError> {
    let cut = || form("a page is cut");
    let (bits, mut rest) = page.split_first().ok_or_else(cut)?;
    let bits = usize::from(*bits);
    if bits > MAX_INDEX_BITS {
        return Err(form("a page is written in another way"));
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

/// A number of 32 bits at most, in portions of seven; and what is behind it.
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

/// The number that so many bits are, from the lowest of the first byte on.
fn bits_at(bytes: &[u8], from: usize, bits: usize) -> usize {
    // Seven bits before them, 32 of them: five bytes.
    let bytes = bytes.get(from / 8..).unwrap_or_default().iter().take(5);
    let word = bytes.rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    (word >> (from % 8) & ((1 << bits) - 1)) as usize
}

impl Cells {
    pub(super) fn none(kind: ColumnKind) -> Self {
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

    /// Their bytes, of each.
    fn bytes(&self) -> usize {
        match self {
            Self::Numbers(cells) => cells.len() * NUMBER_BYTES,
            Self::Texts(cells) | Self::Hashes(cells) => {
                cells.iter().fold(0, |sum, cell| sum.saturating_add(cell.len()))
            }
        }
    }

    /// The cells with these numbers.
    fn picked(&self, indices: &[usize]) -> Result<Self, TableError> {
        fn picked<T: Clone>(cells: &[T], indices: &[usize]) -> Option<Vec<T>> {
            indices.iter().map(|index| cells.get(*index).cloned()).collect()
        }
        let picked = match self {
            Self::Numbers(cells) => picked(cells, indices).map(Self::Numbers),
            Self::Texts(cells) => picked(cells, indices).map(Self::Texts),
            Self::Hashes(cells) => picked(cells, indices).map(Self::Hashes),
        };
        picked.ok_or_else(|| form("a dictionary has no such cell"))
    }
}
