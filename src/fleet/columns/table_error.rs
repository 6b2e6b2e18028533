//! Why a table cannot be written or read.

use parquet::errors::ParquetError;
use thiserror::Error;

use super::super::record_rows::BadRecord;

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
