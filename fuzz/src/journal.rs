//! Target `journal`: the reader of the store's journals, which resynchronizes after damage.
//!
//! Input: structured. A survey of arbitrary bytes divides the used part into batches and damaged ranges, in order, and
//! each batch equals the encoding of its items. In a generated journal that is then damaged, every untouched batch is
//! found.

use arbitrary::{Arbitrary, Result, Unstructured};
use mcpproxy_activity::store::journal_format::{
    Evidence, Item, Survey, encode, items, ordered, possible_items, survey,
};

const MAX_BATCHES: u8 = 6;
const MAX_FLIPS: u8 = 2;

pub fn run(data: &[u8]) {
    for evidence in [Evidence::Confirmed, Evidence::Neutral, Evidence::Refuted] {
        whole(data, &survey(data, |_| evidence));
    }
    possible_items(data).for_each(|item| assert!(item.key.len() < data.len()));
    let seqnos: Vec<u64> = data
        .chunks_exact(8)
        .map(|it| it.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        .collect();
    if let Some(fixed) = ordered(&seqnos) {
        assert_eq!(fixed.len(), seqnos.len());
    }
    // Only a text that is not UTF-8 could cause an error, and `arbitrary` generates none.
    grow(&mut Unstructured::new(data)).expect("zeros after the end of the input");
}

/// Asserts that a survey covers all of the bytes, and that each batch found encodes to its bytes.
fn whole(data: &[u8], found: &Survey) {
    let batches = found.batches.iter().map(|batch| batch.range.clone());
    let mut ranges: Vec<_> = batches.chain(found.damaged.iter().cloned()).collect();
    ranges.sort_by_key(|range| range.start);
    let end = ranges.iter().fold(0, |end, range| {
        assert_eq!(range.start, end);
        assert!(range.end > range.start);
        range.end
    });
    assert_eq!(end, found.used);
    for batch in &found.batches {
        let bytes = &data[batch.range.clone()];
        assert!(items(bytes).count() <= batch.items as usize);
    }
}

/// Generates a journal, damages it, and asserts that each undamaged batch is found.
fn grow(from: &mut Unstructured<'_>) -> Result<()> {
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    for seqno in 1..=u64::from(from.int_in_range(1..=MAX_BATCHES)?) {
        let mut written = Vec::new();
        for _ in 0..from.int_in_range(1..=3u8)? {
            let key = <[u8; 8]>::arbitrary(from)?;
            // Half of the values end with bytes that look like a batch of a journal.
            let fake = encode(seqno, &[Item { keyspace: 6, key: b"first", value: Some(&key) }]);
            let value = Vec::<u8>::arbitrary(from)?;
            let value = if bool::arbitrary(from)? { [value, fake].concat() } else { value };
            written.push((from.int_in_range(0..=6u64)?, key, value));
        }
        let batch: Vec<_> = written
            .iter()
            .map(|(keyspace, key, value)| Item { keyspace: *keyspace, key, value: Some(value) })
            .collect();
        let start = bytes.len();
        bytes.extend(encode(seqno, &batch));
        ranges.push((start..bytes.len(), batch.len()));
    }
    let mut hit = Vec::new();
    for _ in 0..from.int_in_range(0..=MAX_FLIPS)? {
        let at = from.int_in_range(0..=bytes.len() - 1)?;
        bytes[at] ^= 1 << from.int_in_range(0..=7u8)?;
        hit.push(at);
    }
    let found = survey(&bytes, |_| Evidence::Confirmed);
    whole(&bytes, &found);
    // After damage, a value that looks like a batch may be mistaken for a batch. The bytes after it are then not
    // reported as damaged, but the next batch is found.
    for (range, count) in ranges {
        if !hit.iter().any(|at| range.contains(at)) {
            let batch = found.batches.iter().find(|batch| batch.range == range);
            assert_eq!(batch.map(|batch| batch.items as usize), Some(count), "{hit:?} {range:?}");
        }
    }
    Ok(())
}
