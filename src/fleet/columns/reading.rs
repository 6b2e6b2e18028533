//! A whole table, read and compared with what its records' canonical bytes say, cell by cell. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::footer::{ColumnChunk, TableFooter};
use super::pages::{self, DICTIONARY_PAGE, PagesSeen, Unpacking};
use super::table::{COLUMNS, Cells, TableColumn, TableOf};
use super::table_error::TableError;
use crate::activity::record::{Hash, NodeId};
use crate::fleet::record_rows::{RecordCollector, RecordRows};

/// A table that was read: its records agree with all its columns, and nothing is said of their chain.
#[derive(Debug)]
pub struct TableRead {
    /// Its records.
    pub rows: RecordRows,
    /// The node that it names.
    pub node: Box<str>,
}

/// Reads a whole table with this footer, and compares each cell with what the record says. Whatever the bytes are.
///
/// # Errors
///
/// [`TableError`].
pub fn decode(bytes: &Bytes, footer: &TableFooter) -> Result<TableRead, TableError> {
    let form = |why: &str| TableError::Form(why.into());
    if footer.groups.is_empty() {
        return Err(form("it has no records"));
    }
    let mut left = Unpacking::new();
    let mut kept = BTreeMap::new();
    for name in ["seq", "hash", "record", "log", "node"] {
        let found = (0..).zip(COLUMNS).find(|(_, column)| column.name == name);
        let (at, column) = found.ok_or_else(|| form("it has no such column"))?;
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
        return Err(form("a column is of another type"));
    };
    let node = text(nodes.first())?;
    let log = text(logs.first())?;
    let log = (log.len() == 32).then(|| u128::from_str_radix(&log, 16).ok()).flatten();
    let log = NodeId(log.ok_or_else(|| form("it names no log"))?.to_be_bytes());
    let mut rows = RecordCollector::new(log);
    for ((seq, hash), record) in seqs.iter().zip(hashes).zip(records) {
        let hash = <[u8; 32]>::try_from(&**hash).map_err(|_| form("a hash has another length"))?;
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
    Ok(text.ok_or_else(|| TableError::Form("a name is no text".into()))?.into())
}

/// One column over all groups.
fn read_column(
    bytes: &Bytes,
    footer: &TableFooter,
    at: usize,
    column: &TableColumn,
    left: &mut Unpacking,
) -> Result<Cells, TableError> {
    let lies_nowhere = || TableError::Form("a column lies nowhere".into());
    let mut all = Cells::none(column.kind);
    for group in &footer.groups {
        let chunk = group.chunks.get(at).ok_or_else(lies_nowhere)?;
        let within = bytes.get(chunk.range.clone()).ok_or_else(lies_nowhere)?;
        let (cells, pages) = pages::read(&bytes.slice_ref(within), column, group.rows, left)?;
        if !chunk.bounds(&cells) {
            let why = format!("the bounds of column {} are not those of its cells", column.name);
            return Err(TableError::Form(why));
        }
        if !chunk.says(&pages) {
            let why =
                format!("the pages of column {} are others than is said of them", column.name);
            return Err(TableError::Form(why));
        }
        all.extend(cells)?;
    }
    Ok(all)
}

impl ColumnChunk {
    /// Whether what is said of its least and greatest cell is so: whoever asks the columns passes over a table by that.
    fn bounds(&self, cells: &Cells) -> bool {
        let Cells::Numbers(cells) = cells else { return self.least.is_empty() };
        let (least, greatest) = (cells.iter().min(), cells.iter().max());
        self.least.iter().all(|it| Some(it) == least)
            && self.greatest.iter().all(|it| Some(it) == greatest)
    }

    /// Whether what is said of its pages is so: other programs read them by that, or pass over them.
    fn says(&self, pages: &PagesSeen) -> bool {
        let encodings: BTreeSet<i64> = pages.counts.keys().map(|(_, encoding)| *encoding).collect();
        let has_dictionary = pages.counts.keys().any(|(kind, _)| *kind == DICTIONARY_PAGE);
        self.unpacked == pages.unpacked
            && Some(self.cells_at) == pages.cells_at
            && self.has_dictionary == has_dictionary
            && self.encodings == encodings
            && self.page_counts.as_ref().is_none_or(|counts| *counts == pages.counts)
    }
}
