//! Reader of fjall's journal format that resynchronizes after damage. Pure.
//!
//! ```text
//! journal   batch … · zeros (it is preallocated)
//! batch     start · item … · end
//! start     1 · number of items (u32) · sequence number (u64)
//! item      2 · type (u8) · compression (u8) · keyspace (u64) · key length (u16) · value length (u32)
//!             · stored length (u32) · key · value
//! clear     4 · keyspace (u64)
//! end       3 · XXH3-64 of the items (u64) · "FJL" 3              numbers are little-endian
//! ```
//!
//! fjall ends a journal at its first damaged byte; [`survey`] leaves out only the damaged batch. The checksum decides
//! whether a batch is intact. It does not cover the batch's start, which is repaired if it contradicts its
//! surroundings. A value may contain bytes that look like a batch, including the checksum, so a batch found by
//! searching counts only with [`Evidence`] from the caller.
//!
//! The search is linear: each byte passed adds `WORK_PER_BYTE` to a budget, which pays for reading and hashing
//! candidates. A candidate that exceeds the budget is skipped.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Last bytes of a batch.
const MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];
const START_BYTES: usize = 1 + 4 + 8;
const CLEAR_BYTES: usize = 1 + 8;
const END_BYTES: usize = 1 + 8 + MAGIC.len();
/// Length of an item before its key.
const ITEM_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;

/// Maximum type of an item's value: value, tombstone, weak tombstone.
const MAX_TYPE: u8 = 2;
/// Maximum keyspace of an item: fjall numbers them from 0, and a log has seven.
const MAX_KEYSPACE: u64 = 6;
/// Maximum length of a batch. The writer closes a batch at 8 MiB plus one record.
pub(crate) const MAX_BATCH_BYTES: usize = 64 << 20;
/// Maximum step between the sequence numbers of neighboring batches; fjall uses a few in between.
const MAX_SEQNO_STEP: u64 = 1 << 20;
/// Number of preceding batches whose sequence numbers confirm a batch found by searching.
const SEQNO_WITNESSES: usize = 3;
/// Number of bytes that may be read and hashed per byte passed by a search.
const WORK_PER_BYTE: usize = 64;
/// Bytes compared with zeros per step.
const ZEROS_BYTES: usize = 4096;
/// Initial budget of a search: two batches of the writer's maximum size.
const FIRST_WORK: usize = 32 << 20;

/// Assessment of a batch's contents by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Holds records of the log.
    Confirmed,
    /// Holds no records of any log.
    Neutral,
    /// Holds data that is not a record of the log.
    Refuted,
}

/// An intact batch within a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSpan {
    /// Byte range.
    pub range: Range<usize>,
    /// Sequence number, as read.
    pub seqno: u64,
    /// Number of items.
    pub items: u32,
    /// Whether the start matches the items.
    pub is_start_intact: bool,
}

/// Intact and damaged parts of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Intact batches, in order.
    pub batches: Vec<BatchSpan>,
    /// Ranges outside of intact batches, in order; the last one may be an unfinished batch.
    pub damaged: Vec<Range<usize>>,
    /// Start of the zeros at the end.
    pub used: usize,
}

impl Survey {
    /// The range of [`Self::damaged`] after the last intact batch.
    pub(crate) fn tail(&self) -> Option<&Range<usize>> {
        let last = self.batches.last().map_or(0, |batch| batch.range.end);
        self.damaged.last().filter(|range| range.start >= last)
    }

    /// First damaged byte before an intact batch.
    pub(crate) fn damage(&self) -> Option<usize> {
        let starts = self.batches.iter().filter(|it| !it.is_start_intact).map(|it| it.range.start);
        let last = self.batches.last().map_or(0, |batch| batch.range.end);
        let between = self.damaged.iter().map(|it| it.start).filter(|start| *start < last);
        starts.chain(between).min()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Number of the item's keyspace.
    pub keyspace: u64,
    pub key: &'a [u8],
    /// Value; `None` removes the key.
    pub value: Option<&'a [u8]>,
}

/// Result of reading a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchStep {
    Whole(BatchSpan),
    /// The bytes end before the batch does.
    Short,
    /// Not intact. Holds the position of the batch's end if its items and its end are at the stated positions.
    Damaged(Option<usize>),
}

/// Reads the batch at `at`.
pub(crate) fn step(bytes: &[u8], at: usize) -> BatchStep {
    let mut unbounded = usize::MAX;
    read(bytes, at, &mut unbounded)
}

/// Items of an intact batch.
pub fn items(batch: &[u8]) -> impl Iterator<Item = Item<'_>> {
    let mut at = START_BYTES;
    std::iter::from_fn(move || {
        loop {
            match entry(batch, at) {
                Entry::Item(item, end) => {
                    at = end;
                    return Some(item);
                }
                Entry::Clear(end) => at = end,
                _ => return None,
            }
        }
    })
}

/// Items of all keyspaces that might start anywhere in damaged bytes.
pub fn possible_items(bytes: &[u8]) -> impl Iterator<Item = Item<'_>> {
    (0..bytes.len()).filter_map(|at| match entry(bytes, at) {
        Entry::Item(item, _) => Some(item),
        _ => None,
    })
}

/// Finds the intact batches of a journal.
pub fn survey(bytes: &[u8], evidence: impl Fn(&[u8]) -> Evidence) -> Survey {
    let used = used(bytes);
    let bytes = bytes.get(..used).unwrap_or_default();
    let mut found = Survey { used, ..Survey::default() };
    let (mut at, mut work) = (0, FIRST_WORK);
    while at < used {
        let end = match step(bytes, at) {
            BatchStep::Whole(batch) => {
                at = batch.range.end;
                found.batches.push(batch);
                continue;
            }
            BatchStep::Short => None,
            BatchStep::Damaged(end) => end,
        };
        // If the batch's own end is readable, the next batch starts there, regardless of the damaged
        // content.
        let next = match end {
            Some(end) if end == used || matches!(step(bytes, end), BatchStep::Whole(_)) => end,
            Some(_) | None => {
                search(bytes, at + 1, &found.batches, &evidence, &mut work).unwrap_or(used)
            }
        };
        found.damaged.push(at..next);
        at = next;
    }
    found
}

/// Finds the next batch of the log at or after `from` that follows the batches `before`.
fn search(
    bytes: &[u8],
    from: usize,
    before: &[BatchSpan],
    evidence: &impl Fn(&[u8]) -> Evidence,
    work: &mut usize,
) -> Option<usize> {
    // Several preceding batches are compared, because one of them may have a damaged number.
    let before = before.last_chunk::<SEQNO_WITNESSES>();
    let follows = |next: u64| {
        before.is_none_or(|before| {
            let mut steps = before.iter().map(|batch| next.checked_sub(batch.seqno));
            steps.any(|step| step.is_some_and(|step| (1..=MAX_SEQNO_STEP).contains(&step)))
        })
    };
    for at in from..bytes.len() {
        *work = work.saturating_add(WORK_PER_BYTE);
        if bytes.get(at) != Some(&START) {
            continue;
        }
        let BatchStep::Whole(batch) = read(bytes, at, work) else { continue };
        if batch.is_start_intact && follows(batch.seqno) && is_ours(bytes, batch, evidence, work) {
            return Some(at);
        }
    }
    None
}

/// Whether a batch found by searching belongs to the log. That is the case if it holds records of the log, or if the
/// batches after it hold records of the log or reach the end of the journal.
fn is_ours(
    bytes: &[u8],
    mut batch: BatchSpan,
    evidence: &impl Fn(&[u8]) -> Evidence,
    work: &mut usize,
) -> bool {
    loop {
        if !pay(work, batch.range.len()) {
            return false;
        }
        match evidence(bytes.get(batch.range.clone()).unwrap_or_default()) {
            Evidence::Confirmed => return true,
            Evidence::Refuted => return false,
            Evidence::Neutral if batch.range.end == bytes.len() => return true,
            Evidence::Neutral => {}
        }
        match read(bytes, batch.range.end, work) {
            BatchStep::Whole(next) => batch = next,
            BatchStep::Short | BatchStep::Damaged(_) => return false,
        }
    }
}

/// Reads the batch at `at` and takes the cost from `work`.
fn read(bytes: &[u8], at: usize, work: &mut usize) -> BatchStep {
    let Some(start) = bytes.get(at..at + START_BYTES) else { return BatchStep::Short };
    let claimed = number(start, 1, 4);
    let first = at + START_BYTES;
    let (mut place, mut count) = (first, 0_u64);
    let checksum = loop {
        if place - at > MAX_BATCH_BYTES || !pay(work, ITEM_BYTES) {
            return BatchStep::Damaged(None);
        }
        match entry(bytes, place) {
            Entry::Item(_, end) | Entry::Clear(end) => (place, count) = (end, count + 1),
            Entry::End(checksum) => break checksum,
            Entry::Short => return BatchStep::Short,
            // The end marker is damaged but is where it should be.
            Entry::Other if count > 0 && count == claimed => {
                return BatchStep::Damaged(
                    Some(place + END_BYTES).filter(|end| *end <= bytes.len()),
                );
            }
            Entry::Other => return BatchStep::Damaged(None),
        }
    };
    let end = place + END_BYTES;
    let items = bytes.get(first..place).unwrap_or_default();
    if count == 0 || !pay(work, items.len()) || xxh3_64(items) != checksum {
        // If the number of items differs, a length is damaged, so that the batch seems to extend into another batch.
        return BatchStep::Damaged(Some(end).filter(|_| count == claimed));
    }
    BatchStep::Whole(BatchSpan {
        range: at..end,
        seqno: number(start, 5, 8),
        items: count as u32,
        is_start_intact: start.first() == Some(&START) && claimed == count,
    })
}

/// Takes `cost` from `work`. Returns false if less is left.
fn pay(work: &mut usize, cost: usize) -> bool {
    match work.checked_sub(cost) {
        Some(left) => {
            *work = left;
            true
        }
        None => false,
    }
}

enum Entry<'a> {
    Item(Item<'a>, usize),
    Clear(usize),
    End(u64),
    Short,
    Other,
}

fn entry(bytes: &[u8], at: usize) -> Entry<'_> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(tag) = rest.first() else { return Entry::Short };
    match *tag {
        ITEM => item(rest, at),
        CLEAR => match rest.get(..CLEAR_BYTES) {
            Some(clear) if number(clear, 1, 8) <= MAX_KEYSPACE => Entry::Clear(at + CLEAR_BYTES),
            Some(_) => Entry::Other,
            None => Entry::Short,
        },
        END => match rest.get(..END_BYTES) {
            Some(end) if end.ends_with(&MAGIC) => Entry::End(number(end, 1, 8)),
            Some(_) => Entry::Other,
            None => Entry::Short,
        },
        _ => Entry::Other,
    }
}

fn item(rest: &[u8], at: usize) -> Entry<'_> {
    let Some((header, rest)) = rest.split_at_checked(ITEM_BYTES) else { return Entry::Short };
    let (kind, compression) = (number(header, 1, 1), number(header, 2, 1));
    let (keyspace, key) = (number(header, 3, 8), number(header, 11, 2) as usize);
    let (length, stored) = (number(header, 13, 4) as usize, number(header, 17, 4) as usize);
    let is_item = kind <= u64::from(MAX_TYPE)
        && compression == 0
        && keyspace <= MAX_KEYSPACE
        && length == stored
        && stored <= MAX_BATCH_BYTES;
    if !is_item {
        return Entry::Other;
    }
    match (rest.get(..key), rest.get(key..key + stored)) {
        (Some(key), Some(value)) => {
            let end = at + ITEM_BYTES + key.len() + value.len();
            Entry::Item(Item { keyspace, key, value: (kind == 0).then_some(value) }, end)
        }
        _ => Entry::Short,
    }
}

/// Decodes the little-endian number of `length` bytes at `at`; 0 past the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let bytes = bytes.get(at..at + length).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Length without the zeros at the end.
pub(crate) fn used(bytes: &[u8]) -> usize {
    // The comparison works in chunks, with one `memcmp` each: a preallocated journal has 64 MiB of zeros.
    let zeros = [0; ZEROS_BYTES];
    let is_zero = |chunk: &&[u8]| zeros.get(..chunk.len()) == Some(*chunk);
    let chunks = bytes.rchunks(ZEROS_BYTES).take_while(is_zero).count();
    let rest = bytes.len().saturating_sub(chunks * ZEROS_BYTES);
    let last = bytes.get(..rest).unwrap_or_default();
    last.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

/// Corrects sequence numbers that contradict their surroundings: the numbers increase from batch to batch in small
/// steps. `None` if all of them fit.
pub fn ordered(seqnos: &[u64]) -> Option<Vec<u64>> {
    let fits = |pair: &[u64]| match pair {
        [a, b] => a < b && b - a <= MAX_SEQNO_STEP,
        _ => true,
    };
    if seqnos.windows(2).all(fits) {
        return None;
    }
    let mut kept = longest_rise(seqnos);
    let far = |a: usize, b: usize| {
        let at = |place: usize| seqnos.get(place).copied().unwrap_or_default();
        at(b).saturating_sub(at(a)) > MAX_SEQNO_STEP
    };
    if let [a, b, ..] = kept[..]
        && far(a, b)
    {
        kept.remove(0);
    }
    if let [.., a, b] = kept[..]
        && far(a, b)
    {
        kept.pop();
    }
    let mut fixed = seqnos.to_vec();
    let (mut before, mut kept) = (None::<u64>, kept.into_iter().peekable());
    for (place, seqno) in fixed.iter_mut().enumerate() {
        if kept.next_if_eq(&place).is_none() {
            let next = kept.peek().and_then(|next| seqnos.get(*next)).copied();
            let below = next.map_or(u64::MAX, |next| next.saturating_sub(1));
            *seqno = match before {
                Some(before) => below.min(before.saturating_add(1)).max(before),
                None => below,
            };
        }
        before = Some(*seqno);
    }
    Some(fixed)
}

/// Positions of a longest strictly increasing subsequence.
fn longest_rise(numbers: &[u64]) -> Vec<usize> {
    // For each length, the smallest number that ends a subsequence of that length, and its position.
    let mut ends: Vec<(u64, usize)> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(numbers.len());
    for (place, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|(end, _)| end < number);
        before.push(length.checked_sub(1).and_then(|it| ends.get(it)).map(|(_, place)| *place));
        match ends.get_mut(length) {
            Some(end) => *end = (*number, place),
            None => ends.push((*number, place)),
        }
    }
    let mut place = ends.last().map(|(_, place)| *place);
    let mut rise = Vec::with_capacity(ends.len());
    while let Some(at) = place {
        rise.push(at);
        place = before.get(at).copied().flatten();
    }
    rise.reverse();
    rise
}

/// Encodes the start of a batch.
pub(super) fn start(items: u32, seqno: u64) -> [u8; START_BYTES] {
    let mut start = [START; START_BYTES];
    let numbers = items.to_le_bytes().into_iter().chain(seqno.to_le_bytes());
    start.iter_mut().skip(1).zip(numbers).for_each(|(to, from)| *to = from);
    start
}

/// A batch without its start.
pub(super) fn without_start(batch: &[u8]) -> &[u8] {
    batch.get(START_BYTES..).unwrap_or_default()
}

/// Encodes a batch as fjall does.
pub fn encode(seqno: u64, items: &[Item<'_>]) -> Vec<u8> {
    let mut out = start(items.len() as u32, seqno).to_vec();
    for Item { keyspace, key, value } in items {
        let stored = value.unwrap_or_default();
        out.extend([ITEM, u8::from(value.is_none()), 0]);
        out.extend(keyspace.to_le_bytes());
        out.extend((key.len() as u16).to_le_bytes());
        out.extend((stored.len() as u32).to_le_bytes());
        out.extend((stored.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(stored);
    }
    let checksum = xxh3_64(without_start(&out));
    out.push(END);
    out.extend(checksum.to_le_bytes());
    out.extend(MAGIC);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: fn(&[u8]) -> Evidence = |_| Evidence::Confirmed;

    /// xorshift64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % limit
        }
    }

    /// A batch of up to eight random items, some of them removals.
    fn batch(random: &mut Random, seqno: u64) -> Vec<u8> {
        let count = 1 + random.below(8);
        let items: Vec<_> = (0..count)
            .map(|_| {
                let key: Vec<u8> = (0..8).map(|_| random.below(256) as u8).collect();
                let length = random.below(400);
                // The values consist of small numbers, as markers do, so that false markers occur.
                let value: Vec<u8> = (0..length).map(|_| random.below(5) as u8).collect();
                (1 + random.below(6) as u64, key, (random.below(5) > 0).then_some(value))
            })
            .collect();
        let items: Vec<_> = items
            .iter()
            .map(|(keyspace, key, value)| Item {
                keyspace: *keyspace,
                key,
                value: value.as_deref(),
            })
            .collect();
        encode(seqno, &items)
    }

    /// A journal and the ranges of its batches.
    fn journal(random: &mut Random, batches: usize) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut bytes, mut ranges, mut seqno) = (Vec::new(), Vec::new(), 7);
        for _ in 0..batches {
            let start = bytes.len();
            bytes.extend(batch(random, seqno));
            ranges.push(start..bytes.len());
            seqno += 1 + random.below(3) as u64;
        }
        bytes.resize(bytes.len() + 300, 0);
        (bytes, ranges)
    }

    fn ranges(survey: &Survey) -> Vec<Range<usize>> {
        survey.batches.iter().map(|batch| batch.range.clone()).collect()
    }

    #[test]
    fn undamaged_journal_is_read_completely_and_its_items_round_trip() {
        let mut random = Random(1);
        let (bytes, written) = journal(&mut random, 50);
        let found = survey(&bytes, ANY);
        assert_eq!((ranges(&found), found.damaged.len()), (written, 0));
        assert_eq!((found.damage(), found.tail()), (None, None));
        for batch in &found.batches {
            let bytes = &bytes[batch.range.clone()];
            let items: Vec<_> = items(bytes).collect();
            assert_eq!(items.len(), batch.items as usize);
            assert_eq!(encode(batch.seqno, &items), bytes);
        }
    }

    #[test]
    fn random_flips_in_random_journals_keep_every_undamaged_batch() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..3000 {
            let (mut bytes, written) = {
                let batches = 1 + random.below(12);
                journal(&mut random, batches)
            };
            let used = written.last().unwrap().end;
            let mut hit = Vec::new();
            for _ in 0..1 + random.below(3) {
                let at = random.below(used);
                bytes[at] ^= 1 << random.below(8);
                hit.push(at);
            }
            let found = ranges(&survey(&bytes, ANY));
            for range in written {
                let is_hit = hit.iter().any(|at| range.contains(at));
                assert!(is_hit || found.contains(&range), "round {round}: {hit:?} cost {range:?}");
            }
        }
    }

    #[test]
    fn single_bit_flip_loses_at_most_its_batch_and_a_flip_in_a_batch_start_loses_none() {
        let (bytes, written) = journal(&mut Random(3), 4);
        let used = written.last().unwrap().end;
        for at in 0..used {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let found = survey(&bytes, ANY);
                let kept = ranges(&found);
                let (place, range) =
                    written.iter().enumerate().find(|(_, range)| range.contains(&at)).unwrap();
                let in_start = at - range.start < START_BYTES;
                assert_eq!(kept.contains(range), in_start, "byte {at}");
                assert_eq!(kept.len(), written.len() - usize::from(!in_start), "byte {at}");
                if !in_start {
                    assert_eq!(found.damaged, std::slice::from_ref(range), "byte {at}");
                    assert_eq!(found.tail().is_some(), place + 1 == written.len(), "byte {at}");
                }
            }
        }
    }

    #[test]
    fn truncation_anywhere_keeps_every_batch_before_it() {
        let (bytes, written) = journal(&mut Random(4), 4);
        for length in 0..written.last().unwrap().end {
            let found = survey(&bytes[..length], ANY);
            let whole: Vec<_> = written.iter().filter(|it| it.end <= length).cloned().collect();
            assert_eq!(ranges(&found), whole, "{length}");
            assert_eq!(found.damage(), None, "{length}: an unfinished batch is not damage");
        }
    }

    #[test]
    fn batch_nested_in_a_value_counts_only_with_evidence() {
        let fake = encode(12, &[Item { keyspace: 6, key: b"first", value: Some(b"forged") }]);
        let value = [&[9; 40][..], &fake, &[9; 40]].concat();
        let real = |seqno, value| encode(seqno, &[Item { keyspace: 1, key: &[1; 8], value }]);
        let mut bytes = [real(11, Some(&value)), real(12, Some(b"next"))].concat();
        // Damage the length of the value, so that the batch's end is unknown.
        bytes[START_BYTES + 14] ^= 1;
        let next = real(11, Some(&value)).len();
        let is_ours = |batch: &[u8]| match items(batch).all(|item| item.keyspace == 6) {
            true => Evidence::Neutral,
            false => Evidence::Confirmed,
        };
        let found = survey(&bytes, is_ours);
        let [kept] = &ranges(&found)[..] else { panic!("{found:?}") };
        let [damaged] = &found.damaged[..] else { panic!("{found:?}") };
        assert_eq!((kept, damaged), (&(next..bytes.len()), &(0..next)));
    }

    #[test]
    fn search_through_a_million_fake_starts_ends_and_finds_later_batches() {
        // Each start claims an item that reaches to the end of a batch.
        let mut bytes = Vec::new();
        while bytes.len() < 8 << 20 {
            bytes.extend(start(1, 1));
            bytes.extend([ITEM, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let rest = ((8 << 20) - 40_usize).saturating_sub(bytes.len()) as u32;
            bytes.extend([rest.to_le_bytes(), rest.to_le_bytes()].concat());
        }
        let from = bytes.len();
        for seqno in 1..400 {
            bytes
                .extend(encode(seqno, &[Item { keyspace: 1, key: b"k", value: Some(&[7; 4096]) }]));
        }
        let found = survey(&bytes, ANY);
        let kept = found.batches.len();
        assert!(kept > 390, "{kept} of 399 after {from}");
    }

    #[test]
    fn sequence_number_that_contradicts_its_surroundings_is_replaced() {
        assert_eq!(ordered(&[]), None);
        assert_eq!(ordered(&[5, 6, 9, 10]), None);
        for bit in 0..64 {
            for place in 0..6 {
                let whole: Vec<u64> = (0..6).map(|it| 1000 + 2 * it).collect();
                let mut seqnos = whole.clone();
                seqnos[place] ^= 1 << bit;
                let fixed = ordered(&seqnos).unwrap_or(seqnos.clone());
                assert!(fixed.windows(2).all(|it| it[0] <= it[1]), "{seqnos:?} {fixed:?}");
                assert!(fixed.iter().all(|it| *it < 1 << 24), "{seqnos:?} {fixed:?}");
                let changed = fixed.iter().zip(&seqnos).filter(|(a, b)| a != b).count();
                assert!(changed <= 1, "{seqnos:?} {fixed:?}");
            }
        }
    }

    #[test]
    fn sequence_numbers_at_the_end_of_their_range_do_not_overflow() {
        for seqnos in [[5, u64::MAX, 3], [u64::MAX, u64::MAX, 0], [u64::MAX; 3]] {
            let fixed = ordered(&seqnos).expect("the sequence numbers contradict each other");
            assert!(fixed.windows(2).all(|it| it[0] <= it[1]), "{seqnos:?} {fixed:?}");
        }
    }
}
