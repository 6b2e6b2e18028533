//! Records as a table of Parquet: a column for each field that is filtered by, the payloads, and each record's canonical
//! bytes, of which all other columns are derived. Pure; in `fleet`, the crate `parquet` is named here and in this folder alone.
//!
//! A table that is read is compared with what its canonical bytes say: a cell that is another is found. So whoever asks the
//! columns gets the same answers as whoever reads the chain.
//!
//! Tables are written by `parquet` and read by this folder: that crate was made for files of friends, follows what a footer
//! nests and reserves what it claims, and anybody who can write into the store can put a file there. What is read here is what is
//! written here: the footer (`footer`, in Thrift's `compact` protocol), `pages`, and all of it compared (`reading`).

mod compact;
mod footer;
mod pages;
mod reading;
mod table;
mod table_error;
mod writing;

pub use self::footer::{MAX_TABLE_BYTES, TableFooter, footer};
pub use self::reading::{TableRead, decode};
pub use self::table::column_names;
pub use self::table_error::TableError;
pub use self::writing::{TableWriter, encode};

#[cfg(test)]
pub(super) mod tests;
