//! Reading the log forward, for exports and live readers: the records after one of them, oldest
//! first. The index finds them as it does for pages (`view`), some segments at a time, so that a
//! filter that means few records reads few.

use std::ops::ControlFlow;

use super::query::{Filter, Payloads};
use super::record::Record;
use super::segment::{self, Bitmap};
use super::store::StoreError;
use super::view::View;

/// Segments that are searched at once at most: what an export keeps in memory beside its records.
const MAX_SEGMENTS: u64 = 64;

impl View {
    /// The records after the one with this number, oldest first, at most `limit`; and the number
    /// of the last one that was looked at.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn since(
        &self,
        seq: u64,
        filter: &Filter,
        limit: usize,
    ) -> Result<(Vec<Record>, u64), StoreError> {
        let last = seq.max(self.first() - 1);
        if *filter == Filter::default() {
            return self.all_since(last, limit);
        }
        let (mut records, mut last, mut block) = (Vec::new(), last, None);
        let mut segments = 1;
        while last + 1 < self.next() {
            let below = segment::start(segment::of(last + 1) + segments).min(self.next());
            let mut found: Vec<(u64, Bitmap)> = Vec::new();
            self.find(filter, last + 1..below, |number, bits| {
                found.push((number, bits));
                ControlFlow::Continue(())
            })?;
            for seq in found.into_iter().rev().flat_map(|(number, bits)| bits.oldest_first(number))
            {
                if records.len() == limit {
                    return Ok((records, last));
                }
                let block = self.block_of(seq, &mut block)?;
                if filter.matches(&self.head(block, seq)?) {
                    records.push(self.record(block, seq, Payloads::Include)?);
                }
                last = seq;
            }
            last = below - 1;
            segments = (segments * 2).min(MAX_SEGMENTS);
        }
        Ok((records, last))
    }

    /// Without a filter every block is read, one after the other.
    fn all_since(&self, mut last: u64, limit: usize) -> Result<(Vec<Record>, u64), StoreError> {
        let mut records = Vec::new();
        for block in self.blocks(last + 1, self.next())? {
            let block = block?;
            for seq in block.layout.first.max(last + 1)..block.end() {
                if records.len() == limit {
                    return Ok((records, last));
                }
                records.push(self.record(&block, seq, Payloads::Include)?);
                last = seq;
            }
        }
        Ok((records, last))
    }
}
