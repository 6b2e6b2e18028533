//! Which columns there are, and what each says of a record. The one place that knows: tables are written by it, and compared
//! with it when they are read. Pure.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};

use super::super::record_rows::{BadRecord, RecordRows};
use super::table_error::TableError;
use crate::activity::codec::{self, HeadRef, PayloadRef};
use crate::activity::record::{Hash, Id, NodeId, Operation};

/// Bytes of a record's hash.
pub(super) const HASH_BYTES: usize = 32;
/// Room for cells that are written down, which many of them share.
const MADE_BYTES: usize = 32 << 10;

/// A record, decoded without copies.
pub(super) struct Row<'a> {
    seq: u64,
    hash: Hash,
    log: NodeId,
    head: HeadRef<'a>,
    arguments: PayloadRef<'a>,
    response: PayloadRef<'a>,
    metadata: PayloadRef<'a>,
    canonical: &'a [u8],
}

/// What a text column says of a record.
pub(super) enum CellText<'a> {
    /// A part of the records' bytes.
    Borrowed(&'a str),
    /// A word that is always there.
    Word(&'static str),
    /// Bytes of which there may be only a part: what is no UTF-8 is shown as such.
    Shown(&'a [u8]),
    /// A record's id.
    Id(Id),
    /// The node's name.
    Node,
    /// The log's id.
    Log,
}

/// How a column is made, and of which type it is.
#[derive(Clone, Copy)]
pub(super) enum ColumnKind {
    Number(fn(&Row<'_>) -> u64),
    /// A moment in milliseconds since 1970.
    Millis(fn(&Row<'_>) -> u64),
    /// A moment in microseconds since 1970.
    Micros(fn(&Row<'_>) -> u64),
    Text(for<'a> fn(&Row<'a>) -> CellText<'a>),
    /// A text that many records share.
    Repeated(for<'a> fn(&Row<'a>) -> CellText<'a>),
    /// The record's hash.
    Hash,
    /// The record's canonical bytes.
    Canonical,
}

/// A column.
pub(super) struct TableColumn {
    pub(super) name: &'static str,
    pub(super) kind: ColumnKind,
}

const fn column(name: &'static str, kind: ColumnKind) -> TableColumn {
    TableColumn { name, kind }
}

use CellText::{Borrowed, Shown, Word};
use ColumnKind::{Micros, Millis, Number, Repeated, Text};

/// The columns, in their order. Names and meanings are those of a record in JSON, where it has them.
pub(super) const COLUMNS: &[TableColumn] = &[
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

/// The names of the columns, in their order.
pub fn column_names() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.name)
}

/// The cells of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cells {
    Numbers(Vec<i64>),
    Texts(Vec<Bytes>),
    Hashes(Vec<Bytes>),
}

impl Cells {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(cells) => cells.len(),
            Self::Texts(cells) | Self::Hashes(cells) => cells.len(),
        }
    }

    /// Adds others of the same type.
    pub(super) fn extend(&mut self, next: Self) -> Result<(), TableError> {
        match (self, next) {
            (Self::Numbers(all), Self::Numbers(next)) => all.extend(next),
            (Self::Texts(all), Self::Texts(next)) | (Self::Hashes(all), Self::Hashes(next)) => {
                all.extend(next);
            }
            (Self::Numbers(_) | Self::Texts(_) | Self::Hashes(_), _) => {
                return Err(TableError::Form("a column is of another type".into()));
            }
        }
        Ok(())
    }

    /// The first row that `other` has not the same cell in.
    pub(super) fn first_difference(&self, other: &Self) -> Option<usize> {
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

/// Records as rows.
pub(super) struct TableOf<'a> {
    records: &'a RecordRows,
    rows: Vec<Row<'a>>,
    node: &'a Bytes,
    log: Bytes,
}

impl<'a> TableOf<'a> {
    /// # Errors
    ///
    /// The first record whose bytes are not whole.
    pub(super) fn new(records: &'a RecordRows, node: &'a Bytes) -> Result<Self, BadRecord> {
        let mut rows = Vec::with_capacity(records.len());
        for row in records.iter() {
            let bad = |error| BadRecord { seq: row.seq, why: format!("is not whole: it {error}") };
            let (head, body) = codec::split_canonical(row.canonical).map_err(bad)?;
            let [arguments, response, metadata] = codec::body_parts(body).map_err(bad)?;
            let head = codec::decode_head(head).map_err(bad)?;
            let (seq, hash, canonical, log) = (row.seq, row.hash, row.canonical, records.log());
            rows.push(Row { seq, hash, log, head, arguments, response, metadata, canonical });
        }
        Ok(Self { records, rows, node, log: records.log().to_string().into() })
    }

    /// All cells of a column.
    pub(super) fn cells(&self, column: &TableColumn) -> Cells {
        self.cells_of(&self.rows, column)
    }

    /// The cells of a column, those of so many rows at a time.
    pub(super) fn batches(&self, column: &TableColumn, rows: usize) -> impl Iterator<Item = Cells> {
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

    /// The cell with this text; what has to be written down for it goes behind what was `made` before.
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
                // Memory takes whatever is written.
                let _ = write!(made, "{id}");
                made.split().freeze()
            }
            CellText::Node => self.node.clone(),
            CellText::Log => self.log.clone(),
        }
    }

    /// These bytes, shared where they are a part of the records'.
    fn part(&self, part: &[u8]) -> Bytes {
        let all = self.records.bytes();
        let from = (part.as_ptr() as usize).checked_sub(all.as_ptr() as usize);
        match from.filter(|from| from.saturating_add(part.len()) <= all.len()) {
            Some(from) => all.slice(from..from + part.len()),
            // Not `Bytes::new()`, whose address no memory has: some processors compare nothing with nothing there in 90 ns.
            None if part.is_empty() => all.slice(..0),
            None => Bytes::copy_from_slice(part),
        }
    }
}
