//! Kept results: each a file for its owner alone, found by its handle, until its time is up or newer ones need the room.
//!
//! What is kept is known in memory only, so that nothing of it outlives the process: what a killed one left is removed at
//! the next start. A file is removed when nobody reads it any more. Blocks on the disk where it says so.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use super::handle::{ResultHandle, ResultId};
use crate::os::private;

/// What the names of the files begin and end with; other files in the folder are nobody's of ours.
const NAME: (&str, &str) = ("kept-", ".json");

/// The bounds of all kept results together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    /// Most bytes.
    pub max_bytes: u64,
    /// Most results.
    pub max_results: usize,
}

/// To whom a result was given: nobody else can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultOwner {
    /// The principal's mark: a token that was made anew under the same name has another.
    pub principal: [u8; 16],
    /// The session; empty for a client that has none.
    pub session: Box<str>,
}

/// How a result is kept.
#[derive(Clone, Debug)]
pub struct KeepTerms {
    /// For whom.
    pub owner: ResultOwner,
    /// The server that it came from.
    pub server: Arc<str>,
    /// For how long.
    pub keep: Duration,
}

/// A result that is kept. Its file goes with the last that holds it.
#[derive(Debug)]
pub struct KeptResult {
    /// The server that it came from.
    pub server: Arc<str>,
    /// How long it is.
    pub bytes: u64,
    owner: ResultOwner,
    until: Instant,
    path: PathBuf,
}

impl KeptResult {
    /// The whole of it. Blocks on the disk.
    ///
    /// # Errors
    /// The file system's, also where the file is another than was written.
    pub fn read(&self) -> io::Result<String> {
        let text = fs::read_to_string(&self.path)?;
        match text.len() as u64 == self.bytes {
            true => Ok(text),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "its file was changed")),
        }
    }
}

impl Drop for KeptResult {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: a kept result is not removed: {error}", self.path.display());
        }
    }
}

/// Why a result is not kept.
#[derive(Debug, Error)]
pub enum NotKept {
    /// It alone is more than all may be.
    #[error("it is longer than result_limit.max_kept_bytes {limit}")]
    TooLarge {
        /// `max_kept_bytes`
        limit: u64,
    },
    /// Others are being written that cannot make room.
    #[error("other results are being written, and all together are more than result_limit allows")]
    Busy,
    /// The disk is full, or worse.
    #[error("it cannot be written: {0}")]
    Disk(#[from] io::Error),
}

/// All kept results.
#[derive(Debug)]
pub struct ResultStore {
    folder: PathBuf,
    state: Mutex<State>,
    /// The first to expire may be another.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next file; none is used twice.
    next: u64,
    /// Bytes and results that are kept or being written.
    bytes: u64,
    results: usize,
    kept: HashMap<ResultId, (u64, Arc<KeptResult>)>,
    /// The oldest first.
    order: BTreeMap<u64, ResultId>,
}

impl State {
    /// Takes one out; it is dropped by the caller, without the lock.
    fn remove(&mut self, id: &ResultId) -> Option<Arc<KeptResult>> {
        let (number, kept) = self.kept.remove(id)?;
        self.order.remove(&number);
        self.give_back(kept.bytes);
        Some(kept)
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.results = self.results.saturating_sub(1);
    }

    fn fits(&self, bytes: u64, bounds: StoreBounds) -> bool {
        self.bytes.saturating_add(bytes) <= bounds.max_bytes && self.results < bounds.max_results
    }
}

/// Removes what an earlier process left in `folder`; where results `will_be_kept`, makes sure that they can. To be called
/// by the one process that has the data folder. Blocks on the disk.
///
/// # Errors
/// The file system's, where results will be kept.
pub fn clean(folder: &Path, will_be_kept: bool) -> io::Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(NAME.0) && name.ends_with(NAME.1) {
            let removed = fs::remove_file(entry.path());
            if let Err(error) = removed.as_ref()
                && !will_be_kept
            {
                tracing::warn!("{}: a kept result is not removed: {error}", entry.path().display());
            } else {
                removed?;
            }
        }
    }
    if will_be_kept {
        private::folder(folder)?;
        let tried = file(folder, 0);
        private::create(&tried)?.write_all(b"{}")?;
        fs::remove_file(tried)?;
    }
    Ok(())
}

fn file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{}{number}{}", NAME.0, NAME.1))
}

impl ResultStore {
    /// A store that is empty; touches no disk.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, state: Mutex::default(), changed: Notify::new() }
    }

    /// Keeps a result under `handle`, which is a new one, from `now` on. The oldest others go where the bounds need it.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`NotKept`]; then nothing of it stays.
    pub fn keep(
        &self,
        handle: ResultHandle,
        result: &[Bytes],
        terms: KeepTerms,
        bounds: StoreBounds,
        now: Instant,
    ) -> Result<(), NotKept> {
        let bytes = result.iter().map(|part| part.len() as u64).sum();
        let number = self.make_room(bytes, bounds)?;
        let KeepTerms { owner, server, keep } = terms;
        let path = file(&self.folder, number);
        // Dropped, it takes the file with it, and what was written of it.
        let kept = KeptResult { server, bytes, owner, until: now + keep, path };
        if let Err(error) = self.write(&kept.path, result) {
            drop(kept);
            self.state.lock().give_back(bytes);
            return Err(error.into());
        }
        {
            let mut state = self.state.lock();
            state.order.insert(number, handle.id());
            state.kept.insert(handle.id(), (number, Arc::new(kept)));
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Takes room for a result; the number of its file.
    fn make_room(&self, bytes: u64, bounds: StoreBounds) -> Result<u64, NotKept> {
        if bytes > bounds.max_bytes {
            return Err(NotKept::TooLarge { limit: bounds.max_bytes });
        }
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        while !state.fits(bytes, bounds) {
            let oldest = state.order.first_key_value().map(|(_, id)| *id);
            gone.push(oldest.and_then(|id| state.remove(&id)).ok_or(NotKept::Busy)?);
        }
        state.bytes += bytes;
        state.results += 1;
        state.next += 1;
        let number = state.next;
        drop(state);
        drop(gone);
        Ok(number)
    }

    fn write(&self, path: &Path, result: &[Bytes]) -> io::Result<()> {
        // It may have been removed while we ran, or never made.
        private::folder(&self.folder)?;
        let mut file = private::create(path)?;
        result.iter().try_for_each(|part| file.write_all(part))
    }

    /// The result that was kept under `handle` for this owner, unless its time is up. Who asks for what is another's is
    /// told no more than who guesses.
    #[must_use]
    pub fn find(
        &self,
        handle: &ResultHandle,
        owner: &ResultOwner,
        now: Instant,
    ) -> Option<Arc<KeptResult>> {
        let state = self.state.lock();
        let (_, kept) = state.kept.get(&handle.id())?;
        (kept.owner == *owner && now < kept.until).then(|| Arc::clone(kept))
    }

    /// True if nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.lock().kept.is_empty()
    }

    /// Removes what has expired by `now`. Blocks on the disk.
    pub fn expire(&self, now: Instant) {
        self.remove_if(|kept| kept.until <= now);
    }

    /// Removes everything: the process ends. Blocks on the disk.
    pub fn clear(&self) {
        self.remove_if(|_| true);
    }

    fn remove_if(&self, goes: impl Fn(&KeptResult) -> bool) {
        let mut state = self.state.lock();
        let ids = state.kept.iter().filter(|(_, (_, kept))| goes(kept)).map(|(id, _)| *id);
        let ids: Vec<ResultId> = ids.collect();
        let gone: Vec<_> = ids.iter().filter_map(|id| state.remove(id)).collect();
        drop(state);
        drop(gone);
    }

    /// Removes each result when its time is up, until it is aborted.
    pub async fn expire_in_time(self: Arc<Self>) {
        loop {
            let first = self.state.lock().kept.values().map(|(_, kept)| kept.until).min();
            let Some(first) = first else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep_until(first.into()) => {}
                () = self.changed.notified() => continue,
            }
            let store = Arc::clone(&self);
            // It fails only where the runtime ends.
            let _ = tokio::task::spawn_blocking(move || store.expire(Instant::now())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WIDE: StoreBounds = StoreBounds { max_bytes: 1000, max_results: 10 };

    fn owner(principal: &str, session: &str) -> ResultOwner {
        let mut mark = [0; 16];
        mark.iter_mut().zip(principal.bytes()).for_each(|(to, from)| *to = from);
        ResultOwner { principal: mark, session: session.into() }
    }

    fn handle(number: u8) -> ResultHandle {
        ResultHandle::new([number; 16])
    }

    fn store() -> (ResultStore, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        (ResultStore::new(home.path().join("results")), home)
    }

    fn keep(
        store: &ResultStore,
        number: u8,
        parts: &[&'static str],
        bounds: StoreBounds,
        now: Instant,
    ) -> Result<(), NotKept> {
        let parts: Vec<Bytes> =
            parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect();
        let (owner, keep) = (owner("p", "s"), Duration::from_secs(60));
        store.keep(
            handle(number),
            &parts,
            KeepTerms { owner, server: "s".into(), keep },
            bounds,
            now,
        )
    }

    /// Which of the first handles lead to something.
    fn known(store: &ResultStore, now: Instant) -> Vec<u8> {
        let found = |number: &u8| store.find(&handle(*number), &owner("p", "s"), now).is_some();
        (0..10).filter(found).collect()
    }

    fn files(store: &ResultStore) -> usize {
        fs::read_dir(&store.folder).map_or(0, Iterator::count)
    }

    #[test]
    fn what_is_kept_is_read_by_its_owner_alone_and_in_time() {
        let ((store, _home), now) = (store(), Instant::now());
        assert!(store.is_empty());
        keep(&store, 1, &["{\"a\":", "\"é\"}"], WIDE, now).unwrap();
        let kept = store.find(&handle(1), &owner("p", "s"), now).unwrap();
        assert_eq!(
            (kept.read().unwrap().as_str(), kept.bytes, &*kept.server),
            ("{\"a\":\"é\"}", 10, "s")
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&kept.path), mode(&store.folder)), (0o600, 0o700));
        for other in [owner("p", ""), owner("", "s"), owner("q", "s"), owner("p", "t")] {
            assert!(store.find(&handle(1), &other, now).is_none(), "{other:?}");
        }
        assert!(store.find(&handle(2), &owner("p", "s"), now).is_none());
        let last = now + Duration::from_secs(60);
        assert_eq!(known(&store, last - Duration::from_nanos(1)), [1]);
        assert_eq!(known(&store, last), [0; 0]);
    }

    #[test]
    fn what_has_expired_goes_from_the_disk_once_nobody_reads_it() {
        let ((store, _home), now) = (store(), Instant::now());
        keep(&store, 1, &["{}"], WIDE, now).unwrap();
        keep(&store, 2, &["{}"], WIDE, now + Duration::from_secs(1)).unwrap();
        let reader = store.find(&handle(1), &owner("p", "s"), now).unwrap();
        store.expire(now + Duration::from_secs(60));
        assert_eq!((known(&store, now), files(&store)), (vec![2], 2));
        assert_eq!(reader.read().unwrap(), "{}");
        drop(reader);
        assert_eq!(files(&store), 1);
        store.clear();
        assert_eq!(files(&store), 0);
        assert!(store.is_empty());
    }

    #[test]
    fn the_oldest_makes_room_for_the_newest() {
        let ((store, _home), now) = (store(), Instant::now());
        let few = StoreBounds { max_results: 2, ..WIDE };
        for number in 1..=3 {
            keep(&store, number, &["{}"], few, now).unwrap();
        }
        assert_eq!((known(&store, now), files(&store)), (vec![2, 3], 2));
        let small = StoreBounds { max_bytes: 5, ..WIDE };
        keep(&store, 4, &["123"], small, now).unwrap();
        assert_eq!((known(&store, now), files(&store)), (vec![3, 4], 2));
        let refused = keep(&store, 5, &["123456"], small, now).unwrap_err();
        assert!(matches!(refused, NotKept::TooLarge { limit: 5 }), "{refused}");
        assert_eq!((known(&store, now), files(&store)), (vec![3, 4], 2), "it costs nobody's");
        let none = StoreBounds { max_results: 0, ..WIDE };
        assert!(matches!(keep(&store, 5, &["1"], none, now), Err(NotKept::Busy)));
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_and_takes_no_room() {
        let ((store, home), now) = (store(), Instant::now());
        // A file stands in the folder's place.
        fs::write(&store.folder, "").unwrap();
        for number in 0..20 {
            assert!(matches!(keep(&store, number, &["{}"], WIDE, now), Err(NotKept::Disk(_))));
        }
        let taken = |state: &State| (state.bytes, state.results);
        assert_eq!(taken(&store.state.lock()), (0, 0));
        fs::remove_file(&store.folder).unwrap();
        keep(&store, 1, &["{}"], WIDE, now).unwrap();
        assert_eq!(known(&store, now), [1]);
        drop((store, home));
    }

    #[test]
    fn a_file_that_was_changed_is_not_read() {
        let ((store, _home), now) = (store(), Instant::now());
        keep(&store, 1, &["{}"], WIDE, now).unwrap();
        let kept = store.find(&handle(1), &owner("p", "s"), now).unwrap();
        fs::write(&kept.path, "{\"more\":1}").unwrap();
        assert!(kept.read().is_err());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("results");
        for kept in [false, true] {
            clean(&folder, kept).unwrap();
            assert_eq!(folder.exists(), kept);
        }
        for name in ["kept-1.json", "kept-77.json", "notes.txt"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        clean(&folder, false).unwrap();
        let left: Vec<_> =
            fs::read_dir(&folder).unwrap().flatten().map(|it| it.file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(clean(&folder, true).is_err());
        assert!(clean(&folder, false).is_ok(), "nobody needs it");
    }

    #[tokio::test]
    async fn results_expire_by_themselves() {
        let ((store, _home), now) = (store(), Instant::now());
        let store = Arc::new(store);
        let task = tokio::spawn(Arc::clone(&store).expire_in_time());
        let terms = |keep| KeepTerms { owner: owner("p", "s"), server: "s".into(), keep };
        let parts = [Bytes::from_static(b"{}")];
        store.keep(handle(1), &parts, terms(Duration::from_secs(3600)), WIDE, now).unwrap();
        // It has passed already: the task sleeps for the other and is told of this one.
        store.keep(handle(2), &parts, terms(Duration::ZERO), WIDE, now).unwrap();
        let gone = async {
            while files(&store) > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
        assert_eq!(known(&store, now), [1]);
        task.abort();
    }
}
