//! Opening, closing and recovering a log. A log that may have been truncated or altered is checked before the
//! store's own recovery can hide damage (ACT-4, ACT-9).
//!
//! fjall truncates a journal at the first incomplete batch. That is correct after a crash, but destroys
//! evidence if acknowledged records follow the cut. Journals with intact batches behind damage are therefore
//! rejected before the store is opened (`store::journal_format`). The others are copied first, and restored if the
//! log then ends before its chain tip.
//!
//! Marks of calls that were in flight when an earlier process ended become records when the log is opened
//! (ACT-1).
//!
//! Records in damaged journals are recovered block by block, and the chain decides which blocks count. A block is
//! intact if its records hash to the stored values. It belongs to the log if it links to the record before it or to the
//! record after it: the author of a payload that looks like a block cannot know those hashes.

use std::collections::BTreeMap;
use std::fs;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_runtime::os::private;

use crate::bytes::unpack;
use crate::chain::Appender;
use crate::chain_tip::{ChainTip, ChainTipFile};
use crate::file_checksums::{ChecksumFinding, Depth};
use crate::folder::Copy;
use crate::in_flight::CallMark;
use crate::record::{Hash, NodeId, Status};
use crate::redact::Redactor;
use crate::segment::{Builder, SegmentBounds};
use crate::store::journal_format::{Evidence, Item};
use crate::store::{
    Batch, DB, Fresh, Part, Space, Store, StoreError, StoreSnapshot, journal_files, journal_format,
    newest_journal,
};
use crate::view::View;
use crate::{chain, chain_tip, codec, file_checksums, folder, keys, segment};

pub(crate) use crate::folder::Lock;

/// Folder with copies of the journals, and its name while it is being created.
const KEPT: &str = "journals";
const KEPT_NEW: &str = "journals.new";
/// Maximum number of attempts to wait for the last reader of a log before the log is closed, and the pause between
/// them.
const CLOSE_TRIES: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_millis(25);

/// Copy of a log, opened for reading.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) store: Store,
    /// The copy; dropped after the store.
    pub(super) copy: Copy,
    /// Excludes writers from the original.
    pub(super) lock: Option<Lock>,
}

/// Opens a copy of the log in `dir`, made in `scratch`, for reading; `dir` is not changed. A missing log is
/// read as an empty one, and a log whose writer was killed is read up to its end.
pub(super) fn read(dir: &Path, scratch: &Path) -> Result<Reading, StoreError> {
    let lock = Lock::share(dir)?;
    match file_checksums::check(dir, Depth::Quick)? {
        ChecksumFinding::Whole => {}
        ChecksumFinding::NotClosed => check_journals(dir)?,
        ChecksumFinding::Altered(files) => return Err(altered(dir, files)),
    }
    let copy = Copy::below(scratch, dir)?;
    let opened = ChainTipFile::read(dir).and_then(|reading| {
        let reading = reading.usable(dir)?;
        resume_rebuild(copy.path())?;
        let store = Store::open(copy.path())?;
        let view = View::new(store.snapshot()?)?;
        check_end(dir, reading.tip, &view)?;
        if view.marks().next().is_some() {
            // The next start does the same in the log itself.
            settle(&store, &mut Appender::resume(&view, Redactor::default())?)?;
        }
        Ok(store)
    });
    match opened {
        Ok(store) => Ok(Reading { store, copy, lock }),
        Err(error) => Err(copy.as_original(dir, error)),
    }
}

/// Rejects journals that are damaged before their end, because fjall would drop everything behind the damage.
pub(super) fn check_journals(dir: &Path) -> Result<(), StoreError> {
    let db = dir.join(DB);
    if db.try_exists()? { journal_files::check(&db, &evidence(dir)) } else { Ok(()) }
}

fn altered(dir: &Path, files: Vec<PathBuf>) -> StoreError {
    let file = files.into_iter().next().unwrap_or_default();
    let checksums = dir.join(file_checksums::NAME);
    let why = format!("it changed after the log was closed, or {} did", checksums.display());
    StoreError::Damaged { file, why }
}

#[derive(Debug)]
pub(crate) struct OpenLog {
    pub lock: Lock,
    pub store: Store,
    /// File that holds the chain tip.
    pub tip_file: ChainTipFile,
}

/// Opens or creates the log in `dir`. After [`StoreError::Damaged`] the folder is unchanged.
pub(crate) fn open(dir: &Path) -> Result<OpenLog, StoreError> {
    // A salvage was killed between moving the damaged log aside and installing the replacement.
    if !dir.try_exists()? && folder::replacement(dir).try_exists()? {
        folder::install_replacement(dir)?;
    }
    let lock = Lock::take(dir)?;
    // These are leftovers of a killed salvage; a running salvage would hold the lock.
    folder::remove_leftovers(dir);
    folder::remove(&folder::replacement(dir))?;
    match file_checksums::check(dir, Depth::Quick)? {
        ChecksumFinding::Whole => {}
        ChecksumFinding::NotClosed => {
            back_up_journals(dir)?;
            if let Err(error) = check_journals(dir) {
                restore_journals(dir)?;
                return Err(error);
            }
        }
        ChecksumFinding::Altered(files) => return Err(altered(dir, files)),
    }
    file_checksums::remove(dir)?;
    resume_rebuild(dir)?;
    let opened = ChainTipFile::open(dir).and_then(|(head, reading)| {
        let store = Store::open(dir)?;
        check_end(dir, reading.tip, &View::new(store.snapshot()?)?)?;
        folder::check_node(dir, store.node())?;
        Ok((store, head))
    });
    match opened {
        Ok((store, head)) => {
            folder::remove(&dir.join(KEPT))?;
            Ok(OpenLog { lock, store, tip_file: head })
        }
        Err(error @ StoreError::Damaged { .. }) => {
            restore_journals(dir)?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Rejects a log that ends before its chain tip, or whose record at the tip has a different hash.
pub(crate) fn check_end(dir: &Path, mark: Option<ChainTip>, view: &View) -> Result<(), StoreError> {
    let Some(mark) = mark else { return Ok(()) };
    let last = view.next() - 1;
    if last < mark.seq {
        return Err(StoreError::Damaged {
            file: newest_journal(&dir.join(DB)),
            why: format!("the log ends with record {last}, but record {} was durable", mark.seq),
        });
    }
    match view.hash(mark.seq)? {
        Some(hash) if hash != mark.hash => Err(StoreError::Damaged {
            file: dir.join(chain_tip::NAME),
            why: format!("record {} has hash {hash}, but was {}", mark.seq, mark.hash),
        }),
        Some(Hash(_)) | None => Ok(()),
    }
}

/// Writes the checksums of the log in `dir`, unless a reader still holds it open: an open store may still
/// change. If everything is in tables, the journals are emptied first.
pub(crate) fn close(dir: &Path, is_flushed: bool) -> Result<(), StoreError> {
    if !is_closed(dir)? {
        return Ok(());
    }
    if is_flushed {
        journal_files::empty(&dir.join(DB))?;
    }
    Ok(file_checksums::write(dir)?)
}

pub(super) fn is_closed(dir: &Path) -> Result<bool, StoreError> {
    for _ in 0..CLOSE_TRIES {
        match File::open(dir.join(DB).join("lock"))?.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(CLOSE_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Copies the journals aside. Copies of an earlier, interrupted attempt are older and are kept.
fn back_up_journals(dir: &Path) -> Result<(), StoreError> {
    let (db, kept, new) = (dir.join(DB), dir.join(KEPT), dir.join(KEPT_NEW));
    if kept.try_exists()? || !db.try_exists()? {
        return Ok(());
    }
    folder::remove(&new)?;
    private::new_folder(&new)?;
    for journal in journal_files::list(&db)? {
        let target = new.join(journal.file_name().unwrap_or_default());
        let kept = journal_files::copy_sparse(&journal, &target);
        kept.map_err(|error| StoreError::unreadable(journal, error))?.sync_all()?;
    }
    Ok(fs::rename(new, kept)?)
}

/// Restores the copied journals.
fn restore_journals(dir: &Path) -> Result<(), StoreError> {
    let kept = dir.join(KEPT);
    if kept.try_exists()? {
        for journal in journal_files::list(&kept)? {
            let original = dir.join(DB).join(journal.file_name().unwrap_or_default());
            journal_files::copy_sparse(&journal, &original)?.sync_all()?;
        }
        folder::remove(&kept)?;
    }
    Ok(())
}

/// Maximum number of marks turned into records per batch.
const BATCH_RECORDS: u64 = 1024;

/// Result of turning an earlier process's marks into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledMarks {
    /// Number of recorded calls.
    pub(super) calls: u64,
    /// Number of recorded groups of counted refusals (`refusals`).
    pub(super) refusals: u64,
    pub(super) next_ticket: u64,
}

/// Turns leftover marks into records, durably. A mark that cannot be decoded is kept: a later version may
/// understand it.
pub(super) fn settle(store: &Store, appender: &mut Appender) -> Result<SettledMarks, StoreError> {
    let (mut calls, mut refusals, mut next_ticket) = (0, 0, 0);
    for row in View::new(store.snapshot()?)?.marks() {
        let (key, value) = row?;
        next_ticket = keys::ticket(&key).map_or(next_ticket, |ticket| ticket + 1);
        match CallMark::decode(&value).and_then(|mark| appender.push_marked_call(&mark)) {
            Ok(status) => {
                appender.add_writes(|batch| batch.remove(Space::State, key));
                *(if status == Status::Unknown { &mut calls } else { &mut refusals }) += 1;
            }
            Err(error) => {
                tracing::error!(ticket = next_ticket - 1, %error, "cannot decode the mark of a call");
            }
        }
        if appender.pending() >= BATCH_RECORDS
            && let Some(prepared) = appender.take()
        {
            store.commit(prepared.batch)?;
        }
    }
    if let Some(prepared) = appender.take() {
        store.commit(prepared.batch)?;
    }
    if calls + refusals > 0 {
        store.sync()?;
    }
    Ok(SettledMarks { calls, refusals, next_ticket })
}

/// Marker file that exists while the derived keyspaces are incomplete.
const MARKER: &str = "rebuilding";

/// Rebuilds the derived keyspaces (index, segments, counters) of a closed log in place. A marker lets the
/// next process finish the work if this one is killed.
pub(super) fn rebuild_derived(dir: &Path) -> Result<(), StoreError> {
    private::create(&dir.join(MARKER))?.sync_all()?;
    File::open(dir)?.sync_all()?;
    derive_all(dir)
}

/// Finishes a rebuild that a killed process began in `dir`.
pub(super) fn resume_rebuild(dir: &Path) -> Result<(), StoreError> {
    if dir.join(MARKER).try_exists()? { derive_all(dir) } else { Ok(()) }
}

fn derive_all(dir: &Path) -> Result<(), StoreError> {
    let store = {
        let scratch = Copy::scratch(dir)?;
        // The node id is in a keyspace that is not replaced.
        let fresh = Fresh::create(scratch.path(), NodeId([0; 16]))?;
        fresh.put(Part::Derived, &dir.join(DB))?;
        Store::open(dir)?
    };
    let view = View::new(store.snapshot()?)?;
    let whole = segment::of(view.first() - 1 + segment::RECORDS - 1)..segment::of(view.next());
    for number in whole {
        let mut derived = Builder::default();
        view.derive(number, &mut derived)?;
        if derived.bounds() != SegmentBounds::NONE {
            let mut batch = Batch::default();
            chain::finish_segment(&derived, number, &mut batch);
            store.commit(batch)?;
        }
    }
    store.sync()?;
    fs::remove_file(dir.join(MARKER))?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Maximum number of candidate blocks per first record number.
const MAX_CANDIDATES: usize = 4;
/// Number of bytes of blocks that may be decoded per byte of a damaged range. [`FIRST_WORK`] is added to the total.
const WORK_PER_BYTE: usize = 16;
const FIRST_WORK: usize = 32 << 20;

/// Returns a classifier that decides whether a batch holds records of the log in `dir`.
pub(super) fn evidence(dir: &Path) -> impl Fn(&[u8]) -> Evidence + use<> {
    let node = folder::read_node(dir).ok().flatten();
    move |batch| evidence_in(batch, node)
}

fn evidence_in(batch: &[u8], node: Option<NodeId>) -> Evidence {
    let mut evidence = Evidence::Neutral;
    for (heads, bodies) in blocks(journal_format::items(batch)).into_values() {
        let (Some(heads), Some(bodies)) = (heads.first(), bodies.first()) else {
            continue;
        };
        if Block::read(heads, bodies, node).is_none() {
            return Evidence::Refuted;
        }
        evidence = Evidence::Confirmed;
    }
    evidence
}

/// Candidate values of heads and bodies for the block that starts with one record number.
type Candidates<'a> = (Vec<Item<'a>>, Vec<Item<'a>>);

/// Groups the values of block keyspaces by the number of the block's first record.
fn blocks<'a>(items: impl Iterator<Item = Item<'a>>) -> BTreeMap<u64, Candidates<'a>> {
    let mut found: BTreeMap<u64, Candidates<'a>> = BTreeMap::new();
    for item in items {
        let (Some(space), Ok(key)) = (Space::numbered(item.keyspace), item.key.try_into()) else {
            continue;
        };
        let is_block = matches!(space, Space::Heads | Space::Bodies) && item.value.is_some();
        if !is_block {
            continue;
        }
        let (heads, bodies) = found.entry(u64::from_be_bytes(key)).or_default();
        let candidates = if space == Space::Heads { heads } else { bodies };
        if candidates.len() < MAX_CANDIDATES {
            candidates.push(item);
        }
    }
    found
}

/// A block of records with verified hashes.
#[derive(Clone, Debug)]
struct Block {
    first: u64,
    prev: Hash,
    last: ChainTip,
    heads: Bytes,
    bodies: Bytes,
}

impl Block {
    fn read(heads: &Item<'_>, bodies: &Item<'_>, node: Option<NodeId>) -> Option<Self> {
        let stored = [heads.value?, bodies.value?].map(Bytes::copy_from_slice);
        let [packed_heads, packed_bodies] = stored.clone();
        let (unpacked, bodies) = (unpack(packed_heads).ok()?, unpack(packed_bodies).ok()?);
        let layout = codec::head_block(&unpacked).ok()?;
        let ranges = codec::body_block(&bodies).ok()?;
        let (first, prev) = (layout.first, layout.prev);
        if first.to_be_bytes() != heads.key || ranges.len() != layout.records.len() {
            return None;
        }
        let mut last = ChainTip { seq: first.checked_sub(1)?, hash: prev };
        for ((head, hash), body) in layout.records.into_iter().zip(ranges) {
            let (head, body) = (unpacked.get(head)?, bodies.get(body)?);
            let seq = last.seq.checked_add(1)?;
            codec::decode_head(head).ok()?;
            codec::decode_body(body).ok()?;
            if node.is_some_and(|node| codec::chain(last.hash, node, seq, head, body) != hash) {
                return None;
            }
            last = ChainTip { seq, hash };
        }
        let [heads, bodies] = stored;
        (last.seq >= first).then_some(Self { first, prev, last, heads, bodies })
    }

    /// Whether the block follows the record before it, or the next record follows it.
    fn is_linked(&self, view: &View, tip: Option<ChainTip>) -> Result<bool, StoreError> {
        let before = match self.first == view.first() {
            true => view.before_first().map(Some),
            false => view.hash(self.first - 1),
        };
        let is_after = |hash: Option<Hash>| hash == Some(self.prev);
        if tip == Some(self.last) || intact(before)?.is_some_and(|hash| is_after(Some(hash))) {
            return Ok(true);
        }
        let next = self.last.seq.saturating_add(1);
        let after =
            view.blocks(next, next.saturating_add(1)).and_then(|mut it| it.next().transpose());
        let after = intact(after)?.filter(|block| block.layout.first == next);
        Ok(after.is_some_and(|block| block.layout.prev == self.last.hash))
    }

    fn put(self, batch: &mut Batch) {
        batch.put(Space::Heads, keys::number(self.first), self.heads);
        batch.put(Space::Bodies, keys::number(self.first), self.bodies);
    }
}

/// Maps an error that reports damage to `None`.
fn intact<T>(read: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Err(StoreError::Damaged { .. }) => Ok(None),
        other => other,
    }
}

/// Collects the intact blocks in a damaged range of a journal.
fn intact_blocks(damaged: &[u8], node: NodeId) -> Vec<Block> {
    let mut work = damaged.len().saturating_mul(WORK_PER_BYTE).saturating_add(FIRST_WORK);
    let mut found = Vec::new();
    for (heads, bodies) in blocks(journal_format::possible_items(damaged)).into_values() {
        let pairs = heads.iter().flat_map(|heads| bodies.iter().map(move |bodies| (heads, bodies)));
        for (heads, bodies) in pairs {
            let cost = [heads, bodies].iter().map(|it| it.value.map_or(0, <[u8]>::len)).sum();
            match work.checked_sub(cost) {
                Some(left) => work = left,
                None => return found,
            }
            if let Some(block) = Block::read(heads, bodies, Some(node)) {
                found.push(block);
                break;
            }
        }
    }
    found
}

/// Whether the heads or the bodies of the block that starts with record `first` are missing or unreadable. They are in
/// separate tables, so one part may be lost while the other is intact. False if the stored heads differ from `heads`.
fn is_missing(snapshot: &StoreSnapshot, first: u64, heads: Option<&[u8]>) -> bool {
    let get = |space| snapshot.get(space, &keys::number(first)).unwrap_or_default();
    let (found, bodies) = (get(Space::Heads), get(Space::Bodies));
    (found.is_none() || bodies.is_none()) && found.is_none_or(|found| Some(&*found) == heads)
}

/// Adds the blocks that only the journals hold to `store`, an open copy of the log in `dir`: all blocks of intact
/// batches, and blocks of damaged batches that are linked to the chain.
pub(super) fn add_missing(
    store: &Store,
    dir: &Path,
    tip: Option<ChainTip>,
) -> Result<(), StoreError> {
    let evidence = evidence(dir);
    let mut uncertain = Vec::new();
    for path in journal_files::list(&dir.join(DB))? {
        let bytes = journal_files::read_readable(&path)?;
        let survey = journal_format::survey(&bytes, &evidence);
        let snapshot = store.snapshot()?;
        let first = View::of_damaged(store.snapshot()?)?.first();
        for span in &survey.batches {
            let batch = bytes.get(span.range.clone()).unwrap_or_default();
            let mut missing = Batch::default();
            for (number, (heads, bodies)) in blocks(journal_format::items(batch)) {
                if let (Some(heads), Some(bodies)) = (heads.first(), bodies.first())
                    && number >= first
                    && is_missing(&snapshot, number, heads.value)
                    && let Some(block) = Block::read(heads, bodies, Some(store.node()))
                {
                    block.put(&mut missing);
                }
            }
            store.commit(missing)?;
        }
        for range in survey.damaged {
            let damaged = bytes.get(range).unwrap_or_default();
            uncertain.extend(intact_blocks(damaged, store.node()));
        }
    }
    add_linked(store, uncertain, tip)
}

/// Adds the blocks linked to the chain. Repeats this, since each added block can link further ones.
fn add_linked(
    store: &Store,
    mut uncertain: Vec<Block>,
    tip: Option<ChainTip>,
) -> Result<(), StoreError> {
    uncertain.sort_by_key(|block| block.first);
    loop {
        let count = uncertain.len();
        let mut rest = Vec::new();
        for block in uncertain {
            let view = View::of_damaged(store.snapshot()?)?;
            let is_free = block.first >= view.first()
                && is_missing(&view.snapshot, block.first, Some(&block.heads));
            if is_free && block.is_linked(&view, tip)? {
                let mut batch = Batch::default();
                block.put(&mut batch);
                store.commit(batch)?;
            } else if is_free {
                rest.push(block);
            }
        }
        if rest.len() == count || rest.is_empty() {
            return Ok(());
        }
        uncertain = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Appender;
    use crate::record::{Draft, Source, Status, Type};
    use crate::redact::Redactor;
    use crate::view::LogEnd;

    fn entry() -> Box<crate::Entry> {
        Box::new(Draft::new(Type::ToolCall, Source::Mcp, Status::Success).into())
    }

    /// Builds blocks of `count` records each. Returns them and the tip of the chain.
    fn chain(node: NodeId, end: LogEnd, blocks: &[u64]) -> (Vec<Block>, ChainTip) {
        let mut appender = Appender::at(node, end, Redactor::default());
        let mut found = Vec::new();
        for count in blocks {
            (0..*count).for_each(|_| {
                appender.push(&entry(), 1);
            });
            let prepared = appender.take().unwrap();
            for (heads, bodies) in prepared.batch.blocks() {
                let key = prepared.first().to_be_bytes();
                let item = |keyspace, value| Item { keyspace, key: &key, value: Some(value) };
                let block = Block::read(&item(1, &heads), &item(2, &bodies), Some(node));
                found.push(block.unwrap());
            }
        }
        (found, appender.tip())
    }

    fn genesis(node: NodeId) -> LogEnd {
        LogEnd { next: 1, hash: codec::genesis(node), stored_ms: 0 }
    }

    #[test]
    fn blocks_around_a_lost_block_are_kept_and_a_forged_replacement_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let node = store.node();
        let (mut blocks, tip) = chain(node, genesis(node), &[10, 20, 30, 40]);
        blocks.remove(1);
        // The forged chain is consistent, because its hashes have no key.
        let forged = LogEnd { next: 15, hash: Hash([3; 32]), stored_ms: 0 };
        blocks.extend(chain(node, forged, &[5]).0);
        add_linked(&store, blocks, Some(tip)).unwrap();
        let view = View::of_damaged(store.snapshot().unwrap()).unwrap();
        let kept: Vec<_> = view.blocks(1, 1000).unwrap().map(|it| it.unwrap()).collect();
        let kept: Vec<_> = kept.iter().map(|it| (it.layout.first, it.end())).collect();
        assert_eq!(kept, [(1, 11), (31, 61), (61, 101)]);
    }

    #[test]
    fn act_9_lost_bodies_are_restored_only_with_their_own_heads() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let (blocks, tip) = chain(store.node(), genesis(store.node()), &[10, 20, 30]);
        let mut kept = Batch::default();
        for (number, block) in blocks.iter().enumerate() {
            kept.put(Space::Heads, keys::number(block.first), block.heads.clone());
            if number != 1 {
                kept.put(Space::Bodies, keys::number(block.first), block.bodies.clone());
            }
        }
        store.commit(kept).unwrap();
        let verified = || {
            let view = View::new(store.snapshot().unwrap()).unwrap();
            crate::verify::verify(&view, Some(tip), |_, _| {}).unwrap()
        };
        let mut other = blocks[1].clone();
        other.heads = blocks[0].heads.clone();
        add_linked(&store, vec![other], Some(tip)).unwrap();
        assert_eq!(verified().broken.unwrap().seq, 11, "other heads are not replaced");
        add_linked(&store, vec![blocks[1].clone()], Some(tip)).unwrap();
        let report = verified();
        assert!(report.is_sound() && report.records == 60, "{report:?}");
    }

    #[test]
    fn blocks_without_a_link_to_the_chain_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let forged = LogEnd { next: 15, hash: Hash([3; 32]), stored_ms: 0 };
        let (blocks, tip) = chain(store.node(), forged, &[5, 6]);
        add_linked(&store, blocks, Some(ChainTip { hash: Hash([1; 32]), ..tip })).unwrap();
        let view = View::of_damaged(store.snapshot().unwrap()).unwrap();
        assert_eq!(view.blocks(1, 1000).unwrap().count(), 0);
    }

    #[test]
    fn batch_with_wrong_record_hashes_is_refuted() {
        let node = NodeId([7; 16]);
        let (blocks, _) = chain(node, genesis(node), &[3]);
        let key = 1_u64.to_be_bytes();
        let items = [(1, &blocks[0].heads), (2, &blocks[0].bodies)];
        let items = items.map(|(keyspace, value)| Item { keyspace, key: &key, value: Some(value) });
        let state = Item { keyspace: 6, key: b"first", value: Some(b"forged") };
        for (items, node, expected) in [
            (&items[..], node, Evidence::Confirmed),
            (&items[..], NodeId([8; 16]), Evidence::Refuted),
            (&[state][..], node, Evidence::Neutral),
        ] {
            assert_eq!(evidence_in(&journal_format::encode(1, items), Some(node)), expected);
        }
    }
}
