//! fjall's journals as files: listing, sparse copies, detection of damage before their end, repair that omits damaged
//! batches, and scrubbing while the journals are written. Journals are preallocated; the used part ends where the
//! trailing zeros begin.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::error::{is_damage, journal_number};
use super::journal_format::{self, BatchStep, Evidence, Survey, used};
use crate::store::StoreError;
use mcpproxy_runtime::os::private;

/// Bytes read per step while scrubbing.
const SCRUB_BYTES: usize = 1 << 20;
/// Granularity at which unreadable parts of a file are replaced by zeros.
const READ_BYTES: usize = 4096;

/// A journal and its batches.
#[derive(Debug)]
pub(crate) struct SurveyedJournal {
    pub(crate) path: PathBuf,
    pub(crate) survey: Survey,
}

/// Surveys all journals in a database's folder.
pub(crate) fn survey(
    db: &Path,
    evidence: &dyn Fn(&[u8]) -> Evidence,
) -> io::Result<Vec<SurveyedJournal>> {
    survey_by(db, evidence, |path| fs::read(path))
}

/// Surveys all journals, with unreadable parts replaced by zeros.
pub(crate) fn survey_readable(
    db: &Path,
    evidence: &dyn Fn(&[u8]) -> Evidence,
) -> io::Result<Vec<SurveyedJournal>> {
    survey_by(db, evidence, read_readable)
}

/// Reads a file, with unreadable parts replaced by zeros.
pub(crate) fn read_readable(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if is_damage(&error) => {}
        read => return read,
    }
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    for (page, at) in bytes.chunks_mut(READ_BYTES).zip((0u64..).step_by(READ_BYTES)) {
        match file.read_exact_at(page, at) {
            Err(error) if is_damage(&error) => page.fill(0),
            read => read?,
        }
    }
    Ok(bytes)
}

fn survey_by(
    db: &Path,
    evidence: &dyn Fn(&[u8]) -> Evidence,
    read: impl Fn(&Path) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<SurveyedJournal>> {
    let surveyed = list(db)?.into_iter().map(|path| {
        let survey = journal_format::survey(&read(&path)?, evidence);
        Ok(SurveyedJournal { path, survey })
    });
    surveyed.collect()
}

/// Corrected sequence numbers of all batches; `None` if they are in order.
fn ordered(journals: &[SurveyedJournal]) -> Option<Vec<u64>> {
    let batches = journals.iter().flat_map(|journal| &journal.survey.batches);
    let seqnos: Vec<u64> = batches.map(|batch| batch.seqno).collect();
    journal_format::ordered(&seqnos)
}

/// First journal with damage before an intact batch. fjall would end the journal there and drop the rest.
pub(crate) fn damaged(journals: &[SurveyedJournal]) -> Option<(&Path, String)> {
    let last = journals.iter().rposition(|journal| !journal.survey.batches.is_empty())?;
    let found = journals.iter().enumerate().find_map(|(place, journal)| {
        let tail = journal.survey.tail().filter(|_| place < last).map(|tail| tail.start);
        let at = journal.survey.damage().or(tail)?;
        Some((&*journal.path, format!("it is damaged at byte {at}, and intact batches follow")))
    });
    let misnumbered = || {
        ordered(journals)?;
        let why = "the sequence numbers of its batches are damaged".to_owned();
        Some((&*journals.get(last)?.path, why))
    };
    found.or_else(misnumbered)
}

/// Rejects a database with journals damaged before their end.
pub(crate) fn check(db: &Path, evidence: &dyn Fn(&[u8]) -> Evidence) -> Result<(), StoreError> {
    match damaged(&survey(db, evidence)?) {
        Some((file, why)) => Err(StoreError::Damaged { file: file.to_path_buf(), why }),
        None => Ok(()),
    }
}

/// Rewrites the journals of a closed database with only their intact batches. Returns the journals that were damaged
/// before their end.
pub(crate) fn repair(db: &Path, evidence: &dyn Fn(&[u8]) -> Evidence) -> io::Result<Vec<PathBuf>> {
    let journals = survey(db, evidence)?;
    if damaged(&journals).is_none() {
        return Ok(Vec::new());
    }
    let fixed = ordered(&journals);
    let mut seqnos = fixed.iter().flatten();
    let mut repaired = Vec::new();
    for SurveyedJournal { path, survey } in journals {
        let bytes = fs::read(&path)?;
        let new = path.with_extension("jnl-new");
        let mut out = io::BufWriter::new(private::create(&new)?);
        let mut is_changed = !survey.damaged.is_empty();
        for batch in &survey.batches {
            let seqno = seqnos.next().copied().unwrap_or(batch.seqno);
            is_changed |= seqno != batch.seqno || !batch.is_start_intact;
            out.write_all(&journal_format::start(batch.items, seqno))?;
            let batch = bytes.get(batch.range.clone()).unwrap_or_default();
            out.write_all(journal_format::without_start(batch))?;
        }
        out.into_inner()?.sync_all()?;
        fs::rename(&new, &path)?;
        if is_changed {
            repaired.push(path);
        }
    }
    Ok(repaired)
}

/// Empties the journals of a closed database whose batches are all in tables. The newest file is kept, because without
/// a journal fjall would restart its sequence numbers.
pub(crate) fn empty(db: &Path) -> io::Result<()> {
    let mut journals = list(db)?;
    if let Some(newest) = journals.pop() {
        let newest = File::options().write(true).open(newest)?;
        newest.set_len(0)?;
        newest.sync_all()?;
    }
    for journal in journals {
        fs::remove_file(journal)?;
    }
    File::open(db)?.sync_all()
}

/// Checks the journals of an open database and returns the first damaged one. `flush` completes batches being
/// written; `keep_going` is called after each megabyte and stops the check by returning false.
pub(crate) fn scrub(
    db: &Path,
    flush: &dyn Fn() -> Result<(), StoreError>,
    keep_going: &dyn Fn() -> bool,
) -> Result<Option<PathBuf>, StoreError> {
    for path in list(db)? {
        match is_sound(&path, flush, keep_going) {
            Ok(true) => {}
            Ok(false) => return Ok(Some(path)),
            // The journal was removed in the meantime, because its batches are in tables.
            Err(StoreError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether everything written to a journal consists of intact batches.
fn is_sound(
    path: &Path,
    flush: &dyn Fn() -> Result<(), StoreError>,
    keep_going: &dyn Fn() -> bool,
) -> Result<bool, StoreError> {
    let mut file = File::open(path)?;
    // The file is read from the disk, not from the page cache.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    // The window holds the bytes at and after `start`. Everything before `start` consists of intact batches.
    let (mut window, mut start) = (Vec::new(), 0);
    loop {
        let read = extend(&mut file, &mut window, start)?;
        start += skip_whole(&mut window);
        if !keep_going() || (read == 0 && window.is_empty()) {
            return Ok(true);
        }
        if read > 0 && is_short(&window) {
            continue;
        }
        if is_zero(&mut file, start)? {
            return Ok(true);
        }
        // After this flush, a batch that was incomplete when it was read is complete.
        flush()?;
        window.clear();
        while extend(&mut file, &mut window, start)? > 0 && is_short(&window) {}
        match skip_whole(&mut window) {
            0 => return Ok(false),
            done => start += done,
        }
    }
}

/// Reads more bytes of the file into `window`, which starts at `start`.
fn extend(file: &mut File, window: &mut Vec<u8>, start: u64) -> io::Result<u64> {
    file.seek(SeekFrom::Start(start + window.len() as u64))?;
    io::copy(&mut file.take(SCRUB_BYTES as u64), window)
}

/// Removes the intact batches at the start of `window` and returns their length.
fn skip_whole(window: &mut Vec<u8>) -> u64 {
    let mut at = 0;
    while let BatchStep::Whole(batch) = journal_format::step(window, at)
        && batch.is_start_intact
    {
        at = batch.range.end;
    }
    window.drain(..at);
    at as u64
}

/// Whether more bytes are needed to read the batch at the start of `window`.
fn is_short(window: &[u8]) -> bool {
    window.len() < journal_format::MAX_BATCH_BYTES
        && journal_format::step(window, 0) == BatchStep::Short
}

/// Whether a file holds only zeros at and after `start`.
fn is_zero(file: &mut File, start: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(start))?;
    let mut buffer = vec![0; SCRUB_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(true),
            read if journal_format::used(buffer.get(..read).unwrap_or_default()) > 0 => {
                return Ok(false);
            }
            _ => {}
        }
    }
}

/// Bytes copied per step.
const COPY_BYTES: usize = 1 << 20;

/// Journals in a database's folder, oldest first.
pub(crate) fn list(db: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(db)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "jnl") {
            found.push(path);
        }
    }
    found.sort_by_key(|path| (journal_number(path), path.clone()));
    Ok(found)
}

/// Copies a file without allocating its zeros.
pub(crate) fn copy_sparse(from: &Path, to: &Path) -> io::Result<File> {
    let mut source = File::open(from)?;
    let mut target = private::create(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut length = 0;
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let part = buffer.get(..read).unwrap_or_default();
        if used(part) > 0 {
            target.seek(SeekFrom::Start(length))?;
            target.write_all(part)?;
        }
        length += read as u64;
    }
    target.set_len(length)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::newest_journal;

    #[test]
    fn used_length_ends_with_the_last_nonzero_byte() {
        for length in [0, 1, 63, 64, 65, 200] {
            for zeros in [0, 1, 63, 64, 1000, 4095, 4096, 4097, 9000] {
                let bytes = [vec![1_u8; length], vec![0; zeros]].concat();
                assert_eq!(used(&bytes), length, "{zeros}");
            }
        }
        assert_eq!(used(&[0, 0, 7, 0]), 3);
    }

    #[test]
    fn sparse_copy_has_the_same_bytes_and_length() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut bytes = vec![0_u8; 3 * COPY_BYTES + 5];
        bytes[2 * COPY_BYTES] = 9;
        fs::write(&from, &bytes).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn newest_journal_has_the_greatest_number() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!((newest_journal(dir), list(dir).unwrap().len()), (dir.to_path_buf(), 0));
        for name in ["9.jnl", "10.jnl", "11.other"] {
            fs::write(dir.join(name), "").unwrap();
        }
        assert_eq!((newest_journal(dir), list(dir).unwrap().len()), (dir.join("10.jnl"), 2));
    }
}
