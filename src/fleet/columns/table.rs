//! Which columns there are, and what each says of a record. The one place that knows: tables are written by it, and compared
//! with it when they are read. Pure.

use std::borrow::Cow;

use bytes::Bytes;

use super::super::record_rows::{BadRecord, RecordRows};
use super::table_error::TableError;
use crate::activity::codec::{self, HeadRef, PayloadRef};
use crate::activity::record::{Hash, Id, NodeId, Operation};

/// Bytes of a record's hash.
pub(super) const HASH_BYTES: usize = 32;

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
    /// A part of the records' bytes, or of a word that is always there.
    Borrowed(&'a str),
    /// Bytes of which there may be only a part: what is no UTF-8 is shown as such.
    Shown(&'a [u8]),
    /// Made for the column.
    Made(String),
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

use CellText::{Borrowed, Made, Shown};
use ColumnKind::{Micros, Millis, Number, Repeated, Text};

/// The columns, in their order. Names and meanings are those of a record in JSON, where it has them.
pub(super) const COLUMNS: &[TableColumn] = &[
    column("seq", Number(|row| row.seq)),
    column("id", Text(|row| Made(Id::new(row.head.stored_ms, row.seq, row.log).to_string()))),
    column("node", Repeated(|_| CellText::Node)),
    column("log", Repeated(|_| CellText::Log)),
    column("stored", Millis(|row| row.head.stored_ms)),
    column("timestamp", Micros(|row| row.head.started)),
    column("type", Repeated(|row| Borrowed(row.head.kind.as_str()))),
    column("source", Repeated(|row| Borrowed(row.head.source.as_str()))),
    column("principal", Repeated(|row| Borrowed(row.head.principal))),
    column("status", Repeated(|row| Borrowed(row.head.status.as_str()))),
    column(
        "intent_type",
        Repeated(|row| Borrowed(row.head.operation.map_or("", Operation::as_str))),
    ),
    column("server_name", Repeated(|row| Borrowed(row.head.server))),
    column("tool_name", Repeated(|row| Borrowed(row.head.tool))),
    column("tool_variant", Repeated(|row| Borrowed(row.head.variant))),
    column("client_name", Repeated(|row| Borrowed(row.head.client_name))),
    column("session_id", Repeated(|row| Borrowed(row.head.session_id))),
    column("request_id", Text(|row| Borrowed(row.head.request_id))),
    column(
        "parent_id",
        Text(|row| row.head.parent.map_or(Borrowed(""), |id| Made(id.to_string()))),
    ),
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

    pub(super) fn cells(&self, column: &TableColumn) -> Cells {
        let numbers = |of: fn(&Row<'_>) -> u64| {
            Cells::Numbers(self.rows.iter().map(|row| of(row) as i64).collect())
        };
        let texts = |of: for<'r> fn(&Row<'r>) -> CellText<'r>| {
            Cells::Texts(self.rows.iter().map(|row| self.text(of(row))).collect())
        };
        match column.kind {
            ColumnKind::Number(of) | ColumnKind::Millis(of) | ColumnKind::Micros(of) => numbers(of),
            ColumnKind::Text(of) | ColumnKind::Repeated(of) => texts(of),
            ColumnKind::Hash => {
                let hashes = self.rows.iter().map(|row| Bytes::copy_from_slice(&row.hash.0));
                Cells::Hashes(hashes.collect())
            }
            ColumnKind::Canonical => {
                Cells::Texts(self.rows.iter().map(|row| self.part(row.canonical)).collect())
            }
        }
    }

    fn text(&self, text: CellText<'_>) -> Bytes {
        match text {
            CellText::Borrowed(text) => self.part(text.as_bytes()),
            CellText::Shown(bytes) => match String::from_utf8_lossy(bytes) {
                Cow::Borrowed(text) => self.part(text.as_bytes()),
                Cow::Owned(text) => text.into(),
            },
            CellText::Made(text) => text.into(),
            CellText::Node => self.node.clone(),
            CellText::Log => self.log.clone(),
        }
    }

    /// These bytes, shared where they are a part of the records'.
    fn part(&self, part: &[u8]) -> Bytes {
        let all = self.records.bytes();
        let from = (part.as_ptr() as usize).checked_sub(all.as_ptr() as usize);
        match from.filter(|from| from.saturating_add(part.len()) <= all.len()) {
            Some(from) if !part.is_empty() => all.slice(from..from + part.len()),
            Some(_) | None => Bytes::copy_from_slice(part),
        }
    }
}
