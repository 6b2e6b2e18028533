//! Reading the log as it was at one moment: lists, single records, counts, summaries, the end.
//!
//! Full segments are found through their index, one segment at a time, newest first; the rest,
//! and segments of which a part was removed, are read record by record. So a page costs what it
//! returns and the newest segment, not what is stored. Nothing here writes or waits.
//!
//! Size: the questions of one log and how its blocks are found, which all of them share.

use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;

use super::bytes::{DecodeError, Reader};
use super::codec::{self, HeadBlock, HeadRef};
use super::keys;
use super::pack::unpack;
use super::postings::Postings;
use super::query::{Filter, From, Listing, Page, Payloads};
use super::record::{Hash, Id, NodeId, ReadBody, Record};
use super::segment::{self, Bitmap, Builder, SegmentBounds};
use super::stats::{BUCKET_US, Period, Stats, Summary};
use super::store::{Rows, Space, StoreError, StoreSnapshot};

/// The log at one moment.
pub struct View {
    pub(super) snapshot: StoreSnapshot,
    /// The first record that is kept.
    pub(super) first: u64,
    /// One past the last record.
    pub(super) next: u64,
    /// The first segment that is not full.
    pub(super) unsealed: u64,
    /// The first and last numbers of records that are lost: the index speaks of whole segments.
    pub(super) gaps: Vec<(u64, u64)>,
    /// The name of the node in its fleet.
    pub(super) name: Option<Arc<str>>,
}

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The number the next record gets.
    pub next: u64,
    /// The last record's hash, or what the first record follows.
    pub hash: Hash,
    /// When the last record was stored, milliseconds since 1970.
    pub stored_ms: u64,
}

impl View {
    /// A view of a snapshot of the store.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn new(snapshot: StoreSnapshot) -> Result<Self, StoreError> {
        let first = match snapshot.get(Space::State, keys::FIRST)? {
            Some(bytes) => number(&snapshot, Space::State, keys::FIRST, &bytes)?,
            None => 1,
        };
        let unsealed = match last_key(&snapshot, Space::Segments)? {
            Some(key) => 1 + number(&snapshot, Space::Segments, &key, &key)?,
            None => 0,
        };
        let gaps = match snapshot.get(Space::State, keys::GAPS)? {
            Some(bytes) => pairs(&snapshot, &bytes)?,
            None => Vec::new(),
        };
        let mut view = Self { snapshot, first, next: 1, unsealed, gaps, name: None };
        if let Some(block) = view.block_before(u64::MAX)? {
            view.next = block.end();
        }
        Ok(view)
    }

    /// The node whose log this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.snapshot.node()
    }

    /// The first record that is kept.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// One past the last record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The end of the log.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the last block cannot be read.
    pub fn end(&self) -> Result<LogEnd, StoreError> {
        let Some(block) = self.block_before(u64::MAX)? else {
            return Ok(LogEnd { next: 1, hash: codec::genesis(self.node()), stored_ms: 0 });
        };
        let last = block.end() - 1;
        let head = self.head(&block, last)?;
        let hash = block.link(last).map_or(block.layout.prev, |(_, hash)| hash);
        Ok(LogEnd { next: block.end(), hash, stored_ms: head.stored_ms })
    }

    /// The hash that the first kept record follows.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn before_first(&self) -> Result<Hash, StoreError> {
        match self.snapshot.get(Space::State, keys::FIRST)? {
            Some(bytes) => Reader(&bytes)
                .array::<40>()
                .map(|bytes| {
                    Hash(std::array::from_fn(|at| bytes.get(8 + at).copied().unwrap_or(0)))
                })
                .map_err(|error| self.snapshot.damaged(Space::State, keys::FIRST, error)),
            None => Ok(codec::genesis(self.node())),
        }
    }

    /// The hash of a record, if it is kept.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn hash(&self, seq: u64) -> Result<Option<Hash>, StoreError> {
        if !(self.first..self.next).contains(&seq) {
            return Ok(None);
        }
        Ok(self.block_of(seq, &mut None)?.link(seq).map(|(_, hash)| hash))
    }

    /// The first record from `seq` on that is there: its number, its id, and the hash it follows.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn from(&self, seq: u64) -> Result<Option<(u64, Id, Hash)>, StoreError> {
        let Some(block) = self.blocks(seq, self.next)?.next().transpose()? else { return Ok(None) };
        let seq = block.layout.first.max(seq);
        let id = Id::new(self.head(&block, seq)?.stored_ms, seq, self.node());
        Ok(block.link(seq).map(|(prev, _)| (seq, id, prev)))
    }

    /// The marks of calls that have begun and not ended (`begun`), by ticket.
    #[must_use]
    pub fn marks(&self) -> Rows {
        self.snapshot.range(Space::State, &keys::begun(0), keys::BEGUN_END)
    }

    /// The oldest full segment of which anything is there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn oldest_sealed(&self) -> Result<Option<u64>, StoreError> {
        let from = keys::number(0);
        let mut rows = self.snapshot.range(Space::Segments, &from, &keys::number(u64::MAX));
        let key = rows.next().transpose()?.map(|(key, _)| key);
        key.map(|key| number(&self.snapshot, Space::Segments, &key, &key)).transpose()
    }

    /// The same view, with records that retention has removed and that are still on disk.
    #[must_use]
    pub fn with_removed(self) -> Self {
        Self { first: 1, ..self }
    }

    /// The same view without the records after `last`.
    #[must_use]
    pub fn up_to(self, last: u64) -> Self {
        Self { next: self.next.min(last.saturating_add(1)), ..self }
    }

    /// The same view, whose records say that their node has this name.
    #[must_use]
    pub fn named(self, name: Option<Arc<str>>) -> Self {
        Self { name, ..self }
    }

    /// The name of its node, where there is a fleet.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The same view without the records up to `seq`.
    #[must_use]
    pub fn after(self, seq: u64) -> Self {
        Self { first: self.first.max(seq.saturating_add(1)), ..self }
    }

    /// The number below which all its records have ids below `id`, which may be that of another log.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn number_below(&self, id: Id) -> Result<u64, StoreError> {
        if id == Id::new(id.time_ms(), id.seq(), self.node()) {
            return Ok(id.seq().min(self.next));
        }
        // Times never run back: the segment that the moment falls into, then the record.
        let (mut low, mut high) = (segment::of(self.first), segment::of(self.next - 1));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.bounds(middle)? {
                Some(bounds) if bounds.stored_ms < id.time_ms() => low = middle + 1,
                // What is not full, or is lost, is behind what is.
                Some(_) | None => high = middle,
            }
        }
        let (from, below) = (segment::start(low).max(self.first), self.next);
        for block in self.blocks(from, below)? {
            let block = block?;
            for seq in block.layout.first.max(from)..block.end().min(below) {
                if Id::new(self.head(&block, seq)?.stored_ms, seq, self.node()) >= id {
                    return Ok(seq);
                }
            }
        }
        Ok(self.next)
    }

    /// A page of records, newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        let (below, mut skip) = match page.from {
            From::Newest => (self.next, 0),
            From::After(id) => (self.number_below(id)?, 0),
            From::Offset(skip) => (self.next, skip),
        };
        let mut wanted = Vec::with_capacity(page.limit.saturating_add(1).min(1 << 12));
        self.find(filter, 0..below, |number, found| {
            let count = found.count();
            if skip >= count {
                skip -= count;
                return ControlFlow::Continue(());
            }
            let rest = found.newest_first(number).skip(skip as usize);
            wanted.extend(rest.take(page.limit + 1 - wanted.len()));
            skip = 0;
            if wanted.len() > page.limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        let more = wanted.len() > page.limit;
        wanted.truncate(page.limit);
        let (mut records, mut last, mut block) = (Vec::with_capacity(wanted.len()), None, None);
        for seq in wanted {
            let block = self.block_of(seq, &mut block)?;
            let head = self.head(block, seq)?;
            last = Some(Id::new(head.stored_ms, seq, self.node()));
            // The index knows 64 bits of each value: the record itself decides.
            if filter.matches(&head) {
                records.push(self.record(block, seq, page.payloads)?);
            }
        }
        Ok(Listing { records, next_cursor: last.filter(|_| more) })
    }

    /// The record with this id, if it is kept.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it cannot be read.
    pub fn get(&self, id: Id) -> Result<Option<Record>, StoreError> {
        let seq = id.seq();
        if !(self.first..self.next).contains(&seq) {
            return Ok(None);
        }
        let record = self.record(self.block_of(seq, &mut None)?, seq, Payloads::Include)?;
        Ok(Some(record).filter(|record| record.id == id))
    }

    /// The number of records that match a filter.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut count = 0;
        self.find(filter, 0..self.next, |_, found| {
            count += found.count();
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// The summary of a period that ends at `now` (microseconds since 1970).
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the counters cannot be read.
    pub fn summary(&self, period: Period, now: u64) -> Result<Summary, StoreError> {
        let mut summary = Summary::new(period, now);
        self.buckets(period.first_bucket(now), now, |bucket, part| summary.merge(bucket, part))?;
        Ok(summary)
    }

    /// Passes on the counters of each bucket from `first` to that of `now`, in parts.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the counters cannot be read.
    pub fn buckets(
        &self,
        first: u64,
        now: u64,
        mut each: impl FnMut(u64, &Stats),
    ) -> Result<(), StoreError> {
        let buckets = first..=now / BUCKET_US;
        let whole = self.whole_segments();
        let (from, below) = (keys::bucket(first, 0), keys::bucket(buckets.end() + 1, 0));
        for row in self.snapshot.range(Space::Stats, &from, &below) {
            let (key, value) = row?;
            let damaged = |error| self.snapshot.damaged(Space::Stats, &key, error);
            let mut reader = Reader(&key);
            let bucket = reader.array().map(u64::from_be_bytes).map_err(damaged)?;
            let number = reader.array().map(u64::from_be_bytes).map_err(damaged)?;
            if whole.contains(&number) {
                each(bucket, &Stats::decode(&value).map_err(damaged)?);
            }
        }
        for number in self.partial_segments() {
            let mut part = Builder::default();
            self.derive(number, &mut part)?;
            part.buckets().filter(|it| buckets.contains(&it.0)).for_each(|it| each(it.0, it.1));
        }
        Ok(())
    }

    /// Adds every kept record of a segment to the counters.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn derive(&self, number: u64, into: &mut Builder) -> Result<(), StoreError> {
        self.heads_of(number, |seq, head, bytes| into.add(seq, head, bytes))
    }

    /// The bounds of a full segment.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn bounds(&self, number: u64) -> Result<Option<SegmentBounds>, StoreError> {
        let key = keys::number(number);
        let value = self.snapshot.get(Space::Segments, &key)?;
        let decode = |value: Bytes| SegmentBounds::decode(&value);
        let damaged = |error| self.snapshot.damaged(Space::Segments, &key, error);
        value.map(decode).transpose().map_err(damaged)
    }

    /// The full segments of which every record is kept.
    fn whole_segments(&self) -> Range<u64> {
        let end = self.unsealed.min(segment::of(self.next));
        segment::of(self.first - 1 + segment::RECORDS - 1)..end
    }

    /// The other segments: the one that is partly removed, and those that are not full.
    fn partial_segments(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let whole = self.whole_segments();
        let all = segment::of(self.first)..segment::of(self.next - 1) + 1;
        let kept = self.first < self.next;
        all.filter(move |number| kept && !whole.contains(number))
    }

    /// Finds the records of `range` that match a filter, segment by segment, newest first.
    pub(super) fn find(
        &self,
        filter: &Filter,
        range: Range<u64>,
        mut each: impl FnMut(u64, Bitmap) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (from, below) = (range.start.max(self.first), range.end.min(self.next));
        if from >= below {
            return Ok(());
        }
        let mut hand = |number, found: Bitmap| {
            let found = found.within(number, from, below);
            let lost = |found: Bitmap, gap: &(u64, u64)| found.without(number, gap.0, gap.1);
            let found = self.gaps.iter().fold(found, lost);
            if found.is_empty() { ControlFlow::Continue(()) } else { each(number, found) }
        };
        let whole = self.whole_segments();
        let (oldest, newest) = (segment::of(from), segment::of(below - 1));
        let partial = self.partial_segments().filter(|it| (oldest..=newest).contains(it));
        let partial: Vec<_> = partial.rev().collect();
        for number in partial.iter().copied().filter(|it| *it >= whole.end) {
            if hand(number, self.scan(number, filter)?).is_break() {
                return Ok(());
            }
        }
        let (start, end) = (whole.start.max(oldest), whole.end.min(newest + 1));
        let mut candidates = Postings::new(&self.snapshot, filter, start, end);
        while let Some((number, mut found)) = candidates.next(&self.snapshot)? {
            if filter.since.is_some() || filter.until.is_some() {
                match self.bounds(number)? {
                    Some(b) if filter.covers(b.earliest, b.latest) => {}
                    Some(b) if !filter.touches(b.earliest, b.latest) => continue,
                    Some(_) | None => found = found.and(self.scan(number, filter)?),
                }
            }
            if hand(number, found).is_break() {
                return Ok(());
            }
        }
        for number in partial.into_iter().filter(|it| *it < whole.start && *it < whole.end) {
            if hand(number, self.scan(number, filter)?).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The records of a segment that match a filter, found by reading each.
    fn scan(&self, number: u64, filter: &Filter) -> Result<Bitmap, StoreError> {
        let mut found = Bitmap::default();
        self.heads_of(number, |seq, head, _| {
            if filter.matches(head) {
                found.set(seq);
            }
        })?;
        Ok(found)
    }

    /// Passes on every kept record of a segment: number, head, bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn heads_of(
        &self,
        number: u64,
        mut each: impl FnMut(u64, &HeadRef<'_>, usize),
    ) -> Result<(), StoreError> {
        let start = segment::start(number).max(self.first);
        let below = segment::start(number + 1).min(self.next);
        for block in self.blocks(start, below)? {
            let block = block?;
            for seq in block.layout.first.max(start)..block.end() {
                each(seq, &self.head(&block, seq)?, block.bytes_of(seq));
            }
        }
        Ok(())
    }

    /// The blocks that hold the records from `from` to `below`, oldest first.
    pub(super) fn blocks(
        &self,
        from: u64,
        below: u64,
    ) -> Result<impl Iterator<Item = Result<Block, StoreError>> + '_, StoreError> {
        let first = match self.block_before(from + 1)? {
            Some(block) if block.end() > from => block.layout.first,
            Some(_) | None => from,
        };
        let rows = self.snapshot.range(Space::Heads, &keys::number(first), &keys::number(below));
        Ok(rows.map(|row| row.and_then(|(key, value)| self.decode_block(&key, value))))
    }

    /// The last block that begins before `seq`.
    fn block_before(&self, seq: u64) -> Result<Option<Block>, StoreError> {
        let from = keys::number(0);
        let mut rows = self.snapshot.range(Space::Heads, &from, &keys::number(seq));
        let row = rows.next_back().transpose()?;
        row.map(|(key, value)| self.decode_block(&key, value)).transpose()
    }

    /// The block of a record, which may be the one that was read before.
    pub(super) fn block_of<'b>(
        &self,
        seq: u64,
        cached: &'b mut Option<Block>,
    ) -> Result<&'b Block, StoreError> {
        let holds = |block: &Block| (block.layout.first..block.end()).contains(&seq);
        let block = match cached.take().filter(holds) {
            Some(block) => block,
            None => self
                .block_before(seq + 1)?
                .filter(holds)
                .ok_or_else(|| self.missing(Space::Heads, seq))?,
        };
        Ok(cached.insert(block))
    }

    pub(super) fn decode_block(&self, key: &[u8], bytes: Bytes) -> Result<Block, StoreError> {
        let damaged = |error| self.snapshot.damaged(Space::Heads, key, error);
        let bytes = unpack(bytes).map_err(damaged)?;
        let layout = codec::head_block(&bytes).map_err(damaged)?;
        if layout.first.to_be_bytes() != *key {
            return Err(damaged(DecodeError::Value));
        }
        Ok(Block { layout, bytes, bodies: OnceCell::new() })
    }

    pub(super) fn head<'b>(&self, block: &'b Block, seq: u64) -> Result<HeadRef<'b>, StoreError> {
        let bytes = block.head(seq).ok_or_else(|| self.missing(Space::Heads, seq))?;
        codec::decode_head(bytes)
            .map_err(|error| self.snapshot.damaged(Space::Heads, &seq.to_be_bytes(), error))
    }

    pub(super) fn record(
        &self,
        block: &Block,
        seq: u64,
        payloads: Payloads,
    ) -> Result<Record, StoreError> {
        let missing = |space| self.missing(space, seq);
        let (prev, hash) = block.link(seq).ok_or_else(|| missing(Space::Heads))?;
        let head = block.head(seq).ok_or_else(|| missing(Space::Heads))?;
        let key = block.layout.first.to_be_bytes();
        let damaged = |error| self.snapshot.damaged(Space::Bodies, &key, error);
        let stored = match payloads {
            Payloads::Include | Payloads::Exclude => {
                let bodies = self.bodies(block)?.and_then(|bodies| bodies.get(block, seq));
                Some(bodies.ok_or_else(|| missing(Space::Bodies))?)
            }
            Payloads::HeadsOnly => None,
        };
        // Payloads that nobody asked for are not copied.
        let (whole, metadata) = match payloads {
            Payloads::Include | Payloads::HeadsOnly => (stored, None),
            Payloads::Exclude => {
                (None, stored.map(codec::body_parts).transpose().map_err(damaged)?)
            }
        };
        let mut record =
            Record::decode(self.node(), seq, prev, hash, head, whole).map_err(damaged)?;
        if let Some([_, _, metadata]) = metadata {
            record.body = ReadBody::Metadata(metadata.to_owned());
        }
        Ok(Record { node_name: self.name.clone(), ..record })
    }

    /// The bodies of a block, if it has any; read once.
    pub(super) fn bodies<'b>(&self, block: &'b Block) -> Result<Option<&'b Bodies>, StoreError> {
        if let Some(bodies) = block.bodies.get() {
            return Ok(Some(bodies));
        }
        let key = block.layout.first.to_be_bytes();
        let Some(bytes) = self.snapshot.get(Space::Bodies, &key)? else { return Ok(None) };
        let damaged = |error| self.snapshot.damaged(Space::Bodies, &key, error);
        let bytes = unpack(bytes).map_err(damaged)?;
        let records = codec::body_block(&bytes).map_err(damaged)?;
        Ok(Some(block.bodies.get_or_init(|| Bodies { records, bytes })))
    }

    pub(super) fn missing(&self, space: Space, seq: u64) -> StoreError {
        self.snapshot.damaged(space, &seq.to_be_bytes(), DecodeError::Short)
    }
}

/// A block of heads in memory.
pub(super) struct Block {
    pub(super) layout: HeadBlock,
    bytes: Bytes,
    bodies: OnceCell<Bodies>,
}

impl Block {
    /// One past its last record.
    pub(super) fn end(&self) -> u64 {
        self.layout.first + self.layout.records.len() as u64
    }

    fn place(&self, seq: u64) -> Option<usize> {
        seq.checked_sub(self.layout.first).map(|place| place as usize)
    }

    /// A record's head.
    pub(super) fn head(&self, seq: u64) -> Option<&[u8]> {
        let (range, _) = self.layout.records.get(self.place(seq)?)?;
        self.bytes.get(range.clone())
    }

    /// The hash before a record, and its own.
    pub(super) fn link(&self, seq: u64) -> Option<(Hash, Hash)> {
        let place = self.place(seq)?;
        let hash = self.layout.records.get(place)?.1;
        let before = place.checked_sub(1).and_then(|place| self.layout.records.get(place));
        Some((before.map_or(self.layout.prev, |(_, hash)| *hash), hash))
    }

    fn bytes_of(&self, seq: u64) -> usize {
        self.head(seq).map_or(0, <[u8]>::len)
    }
}

/// A block of bodies in memory.
pub(super) struct Bodies {
    records: Vec<Range<usize>>,
    bytes: Bytes,
}

impl Bodies {
    /// The body of a record of `block`, to which these belong.
    pub(super) fn get(&self, block: &Block, seq: u64) -> Option<&[u8]> {
        self.bytes.get(self.records.get(block.place(seq)?)?.clone())
    }
}

fn last_key(snapshot: &StoreSnapshot, space: Space) -> Result<Option<Bytes>, StoreError> {
    let mut rows = snapshot.range(space, &keys::number(0), &keys::number(u64::MAX));
    Ok(rows.next_back().transpose()?.map(|(key, _)| key))
}

fn pairs(snapshot: &StoreSnapshot, bytes: &[u8]) -> Result<Vec<(u64, u64)>, StoreError> {
    let mut reader = Reader(bytes);
    let mut pairs = Vec::new();
    let damaged = |error| snapshot.damaged(Space::State, keys::GAPS, error);
    while !reader.0.is_empty() {
        let first = reader.array().map(u64::from_be_bytes).map_err(damaged)?;
        pairs.push((first, reader.array().map(u64::from_be_bytes).map_err(damaged)?));
    }
    Ok(pairs)
}

pub(super) fn number(
    snapshot: &StoreSnapshot,
    space: Space,
    key: &[u8],
    bytes: &[u8],
) -> Result<u64, StoreError> {
    Reader(bytes)
        .array()
        .map(u64::from_be_bytes)
        .map_err(|error| snapshot.damaged(space, key, error))
}
