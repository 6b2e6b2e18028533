//! Sequential reads of the log: filtered forward reads for exports and live readers, the raw records of the
//! chain, and views of damaged logs.
//!
//! A filtered forward read uses the index like a page does (`view`), several segments at a time, so that a selective
//! filter reads few records.

use std::ops::ControlFlow;

use super::query::{Filter, Payloads};
use super::record::{Body, Hash, NodeId, Record};
use super::segment::{self, Bitmap};
use super::store::{Space, StoreError, StoreSnapshot};
use super::view::{Block, View, number};
use super::{codec, keys};

/// Maximum number of segments searched in one step, which bounds an export's memory.
const MAX_SEGMENTS: u64 = 64;

/// Typical size of a record without its payloads.
const RECORD_BYTES: usize = 2048;

/// Size of a portion: reading stops at whichever limit is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortionLimit {
    /// Number of records, at least 1.
    pub records: usize,
    /// Memory in bytes. The last record may exceed it.
    pub bytes: usize,
}

/// Accumulator that stops at the limits of a portion.
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
    /// Returns the matching records after `seq`, oldest first, as many as `limit` allows. Also returns the number of
    /// the last record examined.
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

    /// An unfiltered read reads every block in turn.
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

/// Encoded record with its hashes as stored in the chain. Not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainedRecord<'a> {
    pub seq: u64,
    /// Hash of the record before it.
    pub prev: Hash,
    pub hash: Hash,
    pub head: &'a [u8],
    pub body: &'a [u8],
}

impl ChainedRecord<'_> {
    /// Length in bytes of the canonical form ([`codec::put_canonical`]).
    pub fn canonical_bytes(&self) -> u64 {
        (size_of::<u32>() + self.head.len() + self.body.len()) as u64
    }

    /// Whether the hash matches the bytes, in the log of `node`.
    pub(crate) fn is_intact(&self, node: NodeId) -> bool {
        codec::chain(self.prev, node, self.seq, self.head, self.body) == self.hash
    }
}

impl View {
    /// Passes the retained records to `each`, starting with record `from`, until it breaks.
    pub fn chained_from(
        &self,
        from: u64,
        mut each: impl FnMut(&ChainedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let from = from.max(self.first());
        for block in self.blocks(from, self.next())? {
            let block = block?;
            let missing = |space| self.missing(space, block.layout.first);
            let bodies = self.bodies(&block)?.ok_or_else(|| missing(Space::Bodies))?;
            for seq in block.layout.first.max(from)..block.end() {
                let (prev, hash) = block.link(seq).ok_or_else(|| missing(Space::Heads))?;
                let head = block.head(seq).ok_or_else(|| missing(Space::Heads))?;
                let body = bodies.get(&block, seq).ok_or_else(|| missing(Space::Bodies))?;
                if each(&ChainedRecord { seq, prev, hash, head, body }).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Passes these records to `each`; consecutive numbers are read together. Fails if a record is not present.
    pub fn chained(
        &self,
        seqs: impl IntoIterator<Item = u64>,
        mut each: impl FnMut(&ChainedRecord<'_>),
    ) -> Result<(), StoreError> {
        let mut block = None;
        for seq in seqs {
            let block = self.block_of(seq, &mut block)?;
            let bodies = self.bodies(block)?;
            let (Some((prev, hash)), Some(head)) = (block.link(seq), block.head(seq)) else {
                return Err(self.missing(Space::Heads, seq));
            };
            let body = bodies.and_then(|bodies| bodies.get(block, seq));
            let body = body.ok_or_else(|| self.missing(Space::Bodies, seq))?;
            each(&ChainedRecord { seq, prev, hash, head, body });
        }
        Ok(())
    }
}

/// Number of records that are tried one by one after damage.
const LINEAR_RECORDS: u64 = 1024;

impl View {
    /// View of a damaged log, for verification and salvage: its end is unknown and derived data is not used.
    pub(crate) fn of_damaged(snapshot: StoreSnapshot) -> Result<Self, StoreError> {
        let first = match snapshot.get(Space::State, keys::FIRST)? {
            Some(bytes) => number(&snapshot, Space::State, keys::FIRST, &bytes)?,
            None => 1,
        };
        Ok(Self { snapshot, first, next: u64::MAX, unsealed: 0, gaps: Vec::new(), name: None })
    }

    /// First readable block after the unreadable one that holds record `seq`. Tries the next [`LINEAR_RECORDS`] numbers
    /// one by one, then numbers in doubling steps. Blocks between two damaged places that are far apart may therefore
    /// be missed.
    pub(super) fn readable_after(&self, seq: u64) -> Result<Option<Block>, StoreError> {
        let from =
            |at: u64| {
                let mut rows =
                    self.snapshot.range(Space::Heads, &keys::number(at), &keys::number(self.next));
                match rows.next().transpose().and_then(|row| {
                    row.map(|(key, value)| self.decode_block(&key, value)).transpose()
                }) {
                    Ok(block) => Ok(Some(block)),
                    Err(StoreError::Damaged { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            };
        let (mut bad, mut good, mut step) = (seq, seq.saturating_add(1), 1);
        while good < self.next && from(good)?.is_none() {
            bad = good;
            step = if good - seq < LINEAR_RECORDS { 1 } else { step * 2 };
            good = good.saturating_add(step);
        }
        while good - bad > 1 {
            let middle = bad + (good - bad) / 2;
            match from(middle)? {
                Some(_) => good = middle,
                None => bad = middle,
            }
        }
        Ok(from(good)?.flatten())
    }
}
