//! Evaluation of a document while it arrives.
//!
//! An item that is incomplete at the end of a slice is kept and read again with the next slice. The same applies to an item that is
//! refused, since it cannot be distinguished from an incomplete one. If an item is too long, or too much is read again, the pass gives up,
//! and the complete document is judged in the usual way.

use bytes::Bytes;

use super::pass::{AcceptScratch, AcceptState};
use super::rules::AcceptProgram;

/// Maximum number of hashes of an arriving document; see `MAX_HASHES` of a complete one.
const MAX_ARRIVING_HASHES: usize = 1 << 12;

/// Maximum size in bytes of an item, or the beginning of one, that extends over two slices.
const MAX_OPEN_ITEM_BYTES: usize = 16 * 1024;

/// Maximum number of bytes that are read again: for every document, and for each byte of the document.
const MAX_REPEATED_BYTES: usize = 64 * 1024;
const MAX_REPEATED_PER_BYTE: usize = 8;

/// Minimum number of bytes that are appended to an incomplete item.
const JOINED_BYTES: usize = 512;

/// Accept-only evaluation of a document that is still arriving (FR-A14). Always evaluates the same schema.
#[derive(Debug)]
pub struct ArrivingDocument {
    state: AcceptState,
    /// Number of slices read.
    slices: usize,
    /// Incomplete item at the end of the text read so far.
    open_item: Vec<u8>,
    /// Number of bytes that may still be read again.
    repeatable: usize,
    given_up: bool,
}

impl ArrivingDocument {
    pub fn new() -> Self {
        Self {
            state: AcceptState::new(MAX_ARRIVING_HASHES),
            slices: 0,
            open_item: Vec::new(),
            repeatable: MAX_REPEATED_BYTES,
            given_up: false,
        }
    }

    /// Whether the slices of `document` have been read, are complete, and certainly conform.
    pub fn accepts(&self, document: &[Bytes]) -> bool {
        let is_complete = self.open_item.is_empty() && self.state.is_complete();
        is_complete && !self.given_up && self.slices == document.len()
    }

    /// Whether the pass has given up and ignores the rest of the document.
    #[cfg(test)]
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Reads the slices of `document` that have arrived since the last time.
    pub(crate) fn read(
        &mut self,
        program: &AcceptProgram,
        document: &[Bytes],
        scratch: &mut AcceptScratch,
    ) {
        for slice in document.get(self.slices..).unwrap_or_default() {
            if !self.given_up && self.read_slice(program, slice, scratch).is_none() {
                self.given_up = true;
                self.open_item = Vec::new();
            }
        }
        self.slices = document.len();
    }

    fn read_slice(
        &mut self,
        program: &AcceptProgram,
        mut slice: &[u8],
        scratch: &mut AcceptScratch,
    ) -> Option<()> {
        self.state.allow(slice.len());
        let repeatable = slice.len().saturating_mul(MAX_REPEATED_PER_BYTE);
        self.repeatable = self.repeatable.saturating_add(repeatable);
        while !self.open_item.is_empty() && !slice.is_empty() {
            self.repeatable = self.repeatable.checked_sub(self.open_item.len())?;
            let joined = slice.len().min(self.open_item.len().max(JOINED_BYTES));
            self.open_item.extend_from_slice(slice.get(..joined)?);
            let left = program.read_part(&self.open_item, &mut self.state, scratch)?;
            if left <= joined {
                // The item is complete; the rest of the slice follows.
                self.open_item.clear();
                slice = slice.get(joined - left..)?;
            } else {
                check_item(left)?;
                self.open_item.drain(..self.open_item.len() - left);
                slice = slice.get(joined..)?;
            }
        }
        if !slice.is_empty() {
            let left = program.read_part(slice, &mut self.state, scratch)?;
            check_item(left)?;
            self.open_item.extend_from_slice(slice.get(slice.len() - left..)?);
        }
        Some(())
    }
}

/// Checks the size of an incomplete item; `None` if it is too long.
fn check_item(len: usize) -> Option<()> {
    (len <= MAX_OPEN_ITEM_BYTES).then_some(())
}

impl Default for ArrivingDocument {
    fn default() -> Self {
        Self::new()
    }
}
