//! Snapshot reads of the log: pages, single records, counts, summaries, and its end.
//!
//! Full segments are searched through their index, one at a time, newest first. The unfilled segment and partly removed
//! ones are read record by record. A page therefore costs as much as its own records plus the newest segment,
//! regardless of the log's size. This module neither writes nor waits.

use std::cell::OnceCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;

use super::bytes::{DecodeError, Reader, unpack};
use super::clock::AgeMarks;
use super::codec::{self, HeadBlock, HeadRef};
use super::keys;
use super::query::{Filter, From, Listing, Page, Payloads, Term};
use super::record::{Hash, Id, NodeId, ReadBody, Record};
use super::segment::{self, Bitmap, Builder, SegmentBounds};
use super::stats::{BUCKET_US, Period, Stats, Summary};
use super::store::{Rows, Space, StoreError, StoreSnapshot};

/// Snapshot view of the log.
pub struct View {
    pub(super) snapshot: StoreSnapshot,
    /// First retained record.
    pub(super) first: u64,
    /// Number of the last record plus one.
    pub(super) next: u64,
    /// First segment that is not full.
    pub(super) unsealed: u64,
    /// Ranges of lost records, which the index of whole segments may cover.
    pub(super) gaps: Vec<(u64, u64)>,
    /// Node's name in its fleet.
    pub(super) name: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// Number of the next record.
    pub next: u64,
    /// Hash of the last record, or the initial hash.
    pub hash: Hash,
    /// Storage time of the last record, in milliseconds since 1970.
    pub stored_ms: u64,
}

impl View {
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

    /// Node id of the log.
    pub fn node(&self) -> NodeId {
        self.snapshot.node()
    }

    /// First retained record.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of the last record plus one.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn end(&self) -> Result<LogEnd, StoreError> {
        let Some(block) = self.block_before(u64::MAX)? else {
            return Ok(LogEnd { next: 1, hash: codec::genesis(self.node()), stored_ms: 0 });
        };
        let last = block.end() - 1;
        let head = self.head(&block, last)?;
        let hash = block.link(last).map_or(block.layout.prev, |(_, hash)| hash);
        Ok(LogEnd { next: block.end(), hash, stored_ms: head.stored_ms })
    }

    /// Predecessor hash of the first retained record.
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

    /// Hash of a record, if it is retained.
    pub fn hash(&self, seq: u64) -> Result<Option<Hash>, StoreError> {
        if !(self.first..self.next).contains(&seq) {
            return Ok(None);
        }
        Ok(self.block_of(seq, &mut None)?.link(seq).map(|(_, hash)| hash))
    }

    /// Number, id and predecessor hash of the first existing record at or after `seq`.
    pub(crate) fn from(&self, seq: u64) -> Result<Option<(u64, Id, Hash)>, StoreError> {
        let Some(block) = self.blocks(seq, self.next)?.next().transpose()? else { return Ok(None) };
        let seq = block.layout.first.max(seq);
        let id = Id::new(self.head(&block, seq)?.stored_ms, seq, self.node());
        Ok(block.link(seq).map(|(prev, _)| (seq, id, prev)))
    }

    /// Age marks of the log; empty if they are missing or malformed.
    pub(crate) fn age_marks(&self) -> Result<AgeMarks, StoreError> {
        let bytes = self.snapshot.get(Space::State, keys::AGES)?;
        Ok(bytes.and_then(|bytes| AgeMarks::decode(&bytes).ok()).unwrap_or_default())
    }

    /// Marks of calls in flight (`in_flight`), by ticket.
    pub(crate) fn marks(&self) -> Rows {
        self.snapshot.range(Space::State, &keys::call_mark(0), keys::BEGUN_END)
    }

    /// Oldest full segment with derived data.
    pub(crate) fn oldest_sealed(&self) -> Result<Option<u64>, StoreError> {
        let from = keys::number(0);
        let mut rows = self.snapshot.range(Space::Segments, &from, &keys::number(u64::MAX));
        let key = rows.next().transpose()?.map(|(key, _)| key);
        key.map(|key| number(&self.snapshot, Space::Segments, &key, &key)).transpose()
    }

    /// Includes records that retention removed but that are still on disk.
    pub(crate) fn with_removed(self) -> Self {
        Self { first: 1, ..self }
    }

    /// Excludes the records after `last`.
    pub fn up_to(self, last: u64) -> Self {
        Self { next: self.next.min(last.saturating_add(1)), ..self }
    }

    /// Sets the node's name shown in records.
    pub(crate) fn named(self, name: Option<Arc<str>>) -> Self {
        Self { name, ..self }
    }

    /// Node's name in its fleet, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Excludes the records up to `seq`.
    pub fn after(self, seq: u64) -> Self {
        Self { first: self.first.max(seq.saturating_add(1)), ..self }
    }

    /// Sequence number below which all records have an id less than `id`, which may come from another log.
    pub fn number_below(&self, id: Id) -> Result<u64, StoreError> {
        if id == Id::new(id.time_ms(), id.seq(), self.node()) {
            return Ok(id.seq().min(self.next));
        }
        // Storage times never decrease, so a binary search finds the segment, then the record.
        let (mut low, mut high) = (segment::of(self.first), segment::of(self.next - 1));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.bounds(middle)? {
                Some(bounds) if bounds.stored_ms < id.time_ms() => low = middle + 1,
                // Unfilled and lost segments come after full ones.
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

    /// Returns a page of records, newest first.
    pub fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        let (below, mut skip) = match page.from {
            From::Newest => (self.next, 0),
            From::After(id) => (self.number_below(id)?, 0),
            From::Offset(skip) => (self.next, skip),
        };
        let mut seqs = Vec::with_capacity(page.limit.saturating_add(1).min(1 << 12));
        self.find(filter, 0..below, |number, found| {
            let count = found.count();
            if skip >= count {
                skip -= count;
                return ControlFlow::Continue(());
            }
            let rest = found.newest_first(number).skip(skip as usize);
            seqs.extend(rest.take(page.limit + 1 - seqs.len()));
            skip = 0;
            if seqs.len() > page.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let more = seqs.len() > page.limit;
        seqs.truncate(page.limit);
        let (mut records, mut last, mut block) = (Vec::with_capacity(seqs.len()), None, None);
        for seq in seqs {
            let block = self.block_of(seq, &mut block)?;
            let head = self.head(block, seq)?;
            last = Some(Id::new(head.stored_ms, seq, self.node()));
            // The index has only 64 bits of each value, so the record itself is checked.
            if filter.matches(&head) {
                records.push(self.record(block, seq, page.payloads)?);
            }
        }
        Ok(Listing { records, next_cursor: last.filter(|_| more) })
    }

    /// Returns the record with this id, if it is retained.
    pub fn get(&self, id: Id) -> Result<Option<Record>, StoreError> {
        let seq = id.seq();
        if !(self.first..self.next).contains(&seq) {
            return Ok(None);
        }
        let record = self.record(self.block_of(seq, &mut None)?, seq, Payloads::Include)?;
        Ok(Some(record).filter(|record| record.id == id))
    }

    /// Counts the records that match a filter.
    pub fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut count = 0;
        self.find(filter, 0..self.next, |_, found| {
            count += found.count();
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Summarizes the period that ends at `now` (microseconds since 1970).
    pub(crate) fn summary(&self, period: Period, now: u64) -> Result<Summary, StoreError> {
        let mut summary = Summary::new(period, now);
        self.buckets(period.first_bucket(now), now, |bucket, part| summary.merge(bucket, part))?;
        Ok(summary)
    }

    /// Passes the counters of each bucket from `first` to the bucket of `now` to `each`, in parts.
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

    /// Adds every retained record of a segment to a builder.
    pub(crate) fn derive(&self, number: u64, into: &mut Builder) -> Result<(), StoreError> {
        self.heads_of(number, |seq, head, bytes| into.add(seq, head, bytes))
    }

    /// Bounds of a full segment.
    pub(crate) fn bounds(&self, number: u64) -> Result<Option<SegmentBounds>, StoreError> {
        let key = keys::number(number);
        let value = self.snapshot.get(Space::Segments, &key)?;
        let decode = |value: Bytes| SegmentBounds::decode(&value);
        let damaged = |error| self.snapshot.damaged(Space::Segments, &key, error);
        value.map(decode).transpose().map_err(damaged)
    }

    /// Full segments of which every record is retained.
    fn whole_segments(&self) -> Range<u64> {
        let end = self.unsealed.min(segment::of(self.next));
        segment::of(self.first - 1 + segment::RECORDS - 1)..end
    }

    /// All other segments: the partly removed one, and those that are not full.
    fn partial_segments(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let whole = self.whole_segments();
        let all = segment::of(self.first)..segment::of(self.next - 1) + 1;
        let kept = self.first < self.next;
        all.filter(move |number| kept && !whole.contains(number))
    }

    /// Finds the records of `range` that match a filter, by segment, newest first.
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
        let mut emit = |number, found: Bitmap| {
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
            if emit(number, self.scan(number, filter)?).is_break() {
                return Ok(());
            }
        }
        let (start, end) = (whole.start.max(oldest), whole.end.min(newest + 1));
        let mut candidates = Postings::new(&self.snapshot, filter, start, end);
        while let Some((number, mut found)) = candidates.next(&self.snapshot)? {
            if filter.since.is_some() || filter.until.is_some() {
                match self.bounds(number)? {
                    Some(b) if filter.covers(b.earliest, b.latest) => {}
                    Some(b) if !filter.overlaps(b.earliest, b.latest) => continue,
                    Some(_) | None => found = found.and(self.scan(number, filter)?),
                }
            }
            if emit(number, found).is_break() {
                return Ok(());
            }
        }
        for number in partial.into_iter().filter(|it| *it < whole.start && *it < whole.end) {
            if emit(number, self.scan(number, filter)?).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Finds the matching records of a segment by reading each record.
    fn scan(&self, number: u64, filter: &Filter) -> Result<Bitmap, StoreError> {
        let mut found = Bitmap::default();
        self.heads_of(number, |seq, head, _| {
            if filter.matches(head) {
                found.set(seq);
            }
        })?;
        Ok(found)
    }

    /// Passes the number, head and size of every retained record of a segment to `each`.
    pub(crate) fn heads_of(
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

    /// Blocks with the records from `from` to `below`, oldest first.
    pub(super) fn blocks(
        &self,
        from: u64,
        below: u64,
    ) -> Result<impl Iterator<Item = Result<Block, StoreError>> + '_, StoreError> {
        let first = match self.block_before(from + 1) {
            Ok(Some(block)) if block.end() > from => block.layout.first,
            Ok(Some(_) | None) => from,
            // The preceding block is damaged, but a block starts exactly here.
            Err(StoreError::Damaged { .. })
                if self.snapshot.get(Space::Heads, &keys::number(from))?.is_some() =>
            {
                from
            }
            Err(error) => return Err(error),
        };
        let rows = self.snapshot.range(Space::Heads, &keys::number(first), &keys::number(below));
        Ok(rows.map(|row| row.and_then(|(key, value)| self.decode_block(&key, value))))
    }

    /// Last block that starts before `seq`.
    fn block_before(&self, seq: u64) -> Result<Option<Block>, StoreError> {
        let from = keys::number(0);
        let mut rows = self.snapshot.range(Space::Heads, &from, &keys::number(seq));
        let row = rows.next_back().transpose()?;
        row.map(|(key, value)| self.decode_block(&key, value)).transpose()
    }

    /// Block that starts with record `seq`, read alone; `None` if it does not exist or is damaged.
    pub(super) fn block_at(&self, seq: u64) -> Result<Option<Block>, StoreError> {
        let key = keys::number(seq);
        let row = self.snapshot.get(Space::Heads, &key);
        match row.and_then(|row| row.map(|row| self.decode_block(&key, row)).transpose()) {
            Err(StoreError::Damaged { .. }) => Ok(None),
            block => block,
        }
    }

    /// Block of a record, taken from the cache if it was the last block read.
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
        // Unrequested payloads are not copied.
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

    /// Bodies of a block, if there are any; they are read only once.
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
    /// Number of the block's last record plus one.
    pub(super) fn end(&self) -> u64 {
        self.layout.first + self.layout.records.len() as u64
    }

    fn place(&self, seq: u64) -> Option<usize> {
        seq.checked_sub(self.layout.first).map(|place| place as usize)
    }

    pub(super) fn head(&self, seq: u64) -> Option<&[u8]> {
        let (range, _) = self.layout.records.get(self.place(seq)?)?;
        self.bytes.get(range.clone())
    }

    /// Predecessor hash and hash of a record.
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
    /// Body of a record of the corresponding `block`.
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

/// Index lookup: intersects the postings of the filtered fields, newest segment first. Times are not indexed;
/// `View` compares them with each segment's bounds.
pub(super) struct Postings {
    fields: Vec<Vec<PostingList>>,
    /// Every segment, from the end, if no field is filtered; otherwise `None`.
    all: Option<std::ops::Range<u64>>,
}

struct PostingList {
    rows: Rows,
    term: Term,
    current: Option<(u64, Bitmap)>,
}

impl Postings {
    /// Candidates among the segments from `from` up to but not including `below`.
    pub(super) fn new(snapshot: &StoreSnapshot, filter: &Filter, from: u64, below: u64) -> Self {
        let open = |term: Term| PostingList {
            rows: snapshot.range(
                Space::Index,
                &keys::postings(term.bucket(), from),
                &keys::postings(term.bucket(), below),
            ),
            term,
            current: None,
        };
        let terms = filter.terms();
        let all = terms.is_empty().then_some(from..below);
        let fields = terms.into_iter().map(|terms| terms.into_iter().map(open).collect()).collect();
        let mut candidates = Self { fields, all };
        candidates.all = candidates.all.filter(|_| from < below);
        candidates
    }

    /// Next segment with possible matches, and these matches.
    pub(super) fn next(
        &mut self,
        snapshot: &StoreSnapshot,
    ) -> Result<Option<(u64, Bitmap)>, StoreError> {
        if self.fields.is_empty() {
            let next = self.all.as_mut().and_then(DoubleEndedIterator::next_back);
            return Ok(next.map(|number| (number, Bitmap::ALL)));
        }
        let mut target = u64::MAX;
        loop {
            let mut found = Bitmap::ALL;
            let mut lowest = target;
            for postings in &mut self.fields {
                let (mut highest, mut union) = (None, Bitmap::default());
                for posting in postings {
                    match posting.at_or_below(target, snapshot)? {
                        Some((number, bits)) if highest == Some(number) => union = union.or(bits),
                        Some((number, bits)) if highest < Some(number) => {
                            (highest, union) = (Some(number), bits);
                        }
                        Some(_) | None => {}
                    }
                }
                let Some(highest) = highest else { return Ok(None) };
                lowest = lowest.min(highest);
                found = found.and(union);
            }
            let agreed = lowest == target;
            target = lowest;
            if agreed {
                self.pass(target);
                if !found.is_empty() {
                    return Ok(Some((target, found)));
                }
                target = match target.checked_sub(1) {
                    Some(target) => target,
                    None => return Ok(None),
                };
            }
        }
    }

    /// Skips a segment that has been processed.
    fn pass(&mut self, number: u64) {
        for posting in self.fields.iter_mut().flatten() {
            posting.current = posting.current.filter(|(at, _)| *at < number);
        }
    }
}

impl PostingList {
    /// Newest posting at or below a segment.
    fn at_or_below(
        &mut self,
        target: u64,
        snapshot: &StoreSnapshot,
    ) -> Result<Option<(u64, Bitmap)>, StoreError> {
        while self.current.is_none_or(|(number, _)| number > target) {
            let Some(row) = self.rows.next_back() else {
                self.current = None;
                return Ok(None);
            };
            let (key, value) = row?;
            let damaged = |error| snapshot.damaged(Space::Index, &key, error);
            let number = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let number = number.ok_or_else(|| damaged(DecodeError::Short))?;
            let found = Bitmap::find(&value, self.term).map_err(damaged)?;
            self.current = found.map(|found| (number, found));
        }
        Ok(self.current)
    }
}
