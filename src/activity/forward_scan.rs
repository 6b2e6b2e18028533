//! Reading the log forward, for exports and live readers: the records after one of them, oldest
//! first. The index finds them as it does for pages (`view`), some segments at a time, so that a
//! filter that means few records reads few.

use std::ops::ControlFlow;

use super::query::{Filter, Payloads};
use super::record::{Body, Record};
use super::segment::{self, Bitmap};
use super::store::StoreError;
use super::view::View;

/// Segments that are searched at once at most: what an export keeps in memory beside its records.
const MAX_SEGMENTS: u64 = 64;

/// Bytes of a record beside its payloads, as most have.
const RECORD_BYTES: usize = 2048;

/// How much is read at a time: as many records as reach one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortionLimit {
    /// Records, at least 1.
    pub records: usize,
    /// Bytes that they take in memory. The last one may go beyond it.
    pub bytes: usize,
}

/// What has been read.
struct PortionRead {
    limit: PortionLimit,
    records: Vec<Record>,
    bytes: usize,
}

impl PortionRead {
    fn of(limit: PortionLimit) -> Self {
        Self { limit, records: Vec::new(), bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.records.len() >= self.limit.records || self.bytes >= self.limit.bytes
    }

    fn add(&mut self, record: Record) {
        let body = record.body.whole().map_or(0, |Body { arguments, response, metadata }| {
            [arguments, response, metadata].iter().map(|it| it.bytes().len()).sum()
        });
        self.bytes = self.bytes.saturating_add(RECORD_BYTES).saturating_add(body);
        self.records.push(record);
    }
}

impl View {
    /// The records after the one with this number, oldest first, as many as `limit` allows; and the
    /// number of the last one that was looked at.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn since(
        &self,
        seq: u64,
        filter: &Filter,
        limit: PortionLimit,
    ) -> Result<(Vec<Record>, u64), StoreError> {
        let last = seq.max(self.first() - 1);
        if *filter == Filter::default() {
            return self.all_since(last, limit);
        }
        let (mut read, mut last, mut block) = (PortionRead::of(limit), last, None);
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
                if read.is_full() {
                    return Ok((read.records, last));
                }
                let block = self.block_of(seq, &mut block)?;
                if filter.matches(&self.head(block, seq)?) {
                    read.add(self.record(block, seq, Payloads::Include)?);
                }
                last = seq;
            }
            last = below - 1;
            segments = (segments * 2).min(MAX_SEGMENTS);
        }
        Ok((read.records, last))
    }

    /// Without a filter every block is read, one after the other.
    fn all_since(
        &self,
        mut last: u64,
        limit: PortionLimit,
    ) -> Result<(Vec<Record>, u64), StoreError> {
        let mut read = PortionRead::of(limit);
        for block in self.blocks(last + 1, self.next())? {
            let block = block?;
            for seq in block.layout.first.max(last + 1)..block.end() {
                if read.is_full() {
                    return Ok((read.records, last));
                }
                read.add(self.record(&block, seq, Payloads::Include)?);
                last = seq;
            }
        }
        Ok((read.records, last))
    }
}
