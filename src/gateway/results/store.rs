//! Store of kept results: one file each, readable by its owner only, found by handle until it expires or newer ones
//! evict it.
//!
//! The index is in memory only, so nothing outlives the process; the next start removes leftovers of a killed
//! process. A file is removed after its last reader. Each function that blocks on the disk is documented as blocking.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use super::handle::{ResultHandle, ResultId};
use mcpproxy_policy::tool::Exposure;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::private;

/// Prefix and suffix of file names; other files in the folder are left alone.
const NAME: (&str, &str) = ("kept-", ".json");

/// Bounds over all kept results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    pub max_bytes: u64,
    pub max_results: usize,
}

/// Owner of a result, and the only one who may read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultOwner {
    /// The principal's mark: it changes when a token is recreated under the same name.
    pub principal: [u8; 16],
    /// Session id; empty for a client without one.
    pub session: Box<str>,
}

/// Attributes of a result to be kept.
#[derive(Clone, Debug)]
pub struct KeepTerms {
    pub owner: ResultOwner,
    pub server: Arc<str>,
    /// Exposure of the tool that returned the result.
    pub exposure: Exposure,
    pub keep: Duration,
}

/// A kept result. Dropping the last reference removes the file.
#[derive(Debug)]
pub struct KeptResult {
    pub server: Arc<str>,
    /// Exposure of the tool that returned the result.
    pub exposure: Exposure,
    pub bytes: u64,
    owner: ResultOwner,
    until: Instant,
    path: PathBuf,
}

impl KeptResult {
    /// Reads the file. Blocks on the disk. Fails if the file's size has changed.
    pub(crate) fn read(&self) -> io::Result<String> {
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
            peer_line!(
                warn,
                LinePeer::Part("results"),
                "{}: failed to remove a kept result: {error}",
                self.path.display()
            );
        }
    }
}

/// Reason why a result is not kept.
#[derive(Debug, Error)]
pub enum NotKept {
    /// The result exceeds the limit for all results.
    #[error("it is longer than result_limit.max_kept_bytes {limit}")]
    TooLarge { limit: u64 },
    /// Results that are being written cannot be evicted.
    #[error("other results are being written, and together they exceed result_limit")]
    Busy,
    #[error("it cannot be written: {0}")]
    Disk(#[from] io::Error),
}

#[derive(Debug)]
pub struct ResultStore {
    folder: PathBuf,
    state: Mutex<State>,
    /// Signals that the earliest expiry may have changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next file; never reused.
    next: u64,
    /// Bytes and results that are kept or being written.
    bytes: u64,
    results: usize,
    kept: HashMap<ResultId, (u64, Arc<KeptResult>)>,
    /// Results by age, each with its principal.
    order: BTreeMap<u64, (ResultId, PrincipalMark)>,
    principals: HashMap<PrincipalMark, Holding>,
}

/// Bytes and results kept for one principal.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    bytes: u64,
    results: usize,
}

/// [`Principal::mark`](mcpproxy_policy::Principal::mark).
type PrincipalMark = [u8; 16];

impl State {
    /// Removes a result from the index and returns it. The caller drops it after releasing the lock.
    fn remove(&mut self, id: &ResultId) -> Option<Arc<KeptResult>> {
        let (number, kept) = self.kept.remove(id)?;
        self.order.remove(&number);
        self.give_back(kept.bytes);
        let principal = kept.owner.principal;
        if let Some(holding) = self.principals.get_mut(&principal) {
            holding.bytes = holding.bytes.saturating_sub(kept.bytes);
            holding.results = holding.results.saturating_sub(1);
            if holding.results == 0 {
                self.principals.remove(&principal);
            }
        }
        Some(kept)
    }

    /// Selects the result to evict for a newcomer of this principal and size: the oldest result of the principal that
    /// uses the largest part of the exhausted resource, so that no principal loses results to a principal that has
    /// more.
    fn first_to_go(
        &self,
        newcomer: PrincipalMark,
        bytes: u64,
        bounds: StoreBounds,
    ) -> Option<ResultId> {
        let too_many = self.results >= bounds.max_results;
        let all = self.principals.iter().map(|(principal, kept)| {
            let is_own = *principal == newcomer;
            let held = match (too_many, is_own) {
                (true, _) => kept.results as u64 + u64::from(is_own),
                (false, true) => kept.bytes.saturating_add(bytes),
                (false, false) => kept.bytes,
            };
            (held, is_own, *principal)
        });
        let (_, _, max) = all.max()?;
        self.order.values().find(|(_, principal)| *principal == max).map(|(id, _)| *id)
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.results = self.results.saturating_sub(1);
    }

    fn fits(&self, bytes: u64, bounds: StoreBounds) -> bool {
        self.bytes.saturating_add(bytes) <= bounds.max_bytes && self.results < bounds.max_results
    }
}

/// Removes leftovers in `folder`; if results `will_be_kept`, verifies that the folder is writable. May only be called
/// by the process that owns the data folder. Blocks on the disk.
pub fn clean(folder: &Path, will_be_kept: bool) -> io::Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(NAME.0) && name.ends_with(NAME.1) {
            let removed = fs::remove_file(entry.path());
            if let Err(error) = removed.as_ref()
                && !will_be_kept
            {
                tracing::warn!(
                    "{}: failed to remove a kept result: {error}",
                    entry.path().display()
                );
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
    /// Empty store; does not touch the disk.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, state: Mutex::default(), changed: Notify::new() }
    }

    /// Keeps a result under the new `handle` starting at `now`. If the bounds require it, evicts the oldest results
    /// of the heaviest principal. After an error nothing is kept. Blocks on the disk.
    pub(crate) fn keep(
        &self,
        handle: ResultHandle,
        result: &[Bytes],
        terms: KeepTerms,
        bounds: StoreBounds,
        now: Instant,
    ) -> Result<(), NotKept> {
        let bytes = result.iter().map(|part| part.len() as u64).sum();
        let KeepTerms { owner, server, exposure, keep } = terms;
        let principal = owner.principal;
        let number = self.make_room(bytes, principal, bounds)?;
        let path = file(&self.folder, number);
        // If writing fails, dropping this value removes the file with everything written so far.
        let kept = KeptResult { server, exposure, bytes, owner, until: now + keep, path };
        if let Err(error) = self.write(&kept.path, result) {
            drop(kept);
            self.state.lock().give_back(bytes);
            return Err(error.into());
        }
        {
            let mut state = self.state.lock();
            state.order.insert(number, (handle.id(), principal));
            let holding = state.principals.entry(principal).or_default();
            holding.bytes += bytes;
            holding.results += 1;
            state.kept.insert(handle.id(), (number, Arc::new(kept)));
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Reserves space for a result; returns the number of its file.
    fn make_room(
        &self,
        bytes: u64,
        principal: PrincipalMark,
        bounds: StoreBounds,
    ) -> Result<u64, NotKept> {
        if bytes > bounds.max_bytes {
            return Err(NotKept::TooLarge { limit: bounds.max_bytes });
        }
        let mut evicted = Vec::new();
        let mut state = self.state.lock();
        while !state.fits(bytes, bounds) {
            let first = state.first_to_go(principal, bytes, bounds);
            evicted.push(first.and_then(|id| state.remove(&id)).ok_or(NotKept::Busy)?);
        }
        state.bytes += bytes;
        state.results += 1;
        state.next += 1;
        let number = state.next;
        drop(state);
        drop(evicted);
        Ok(number)
    }

    fn write(&self, path: &Path, result: &[Bytes]) -> io::Result<()> {
        // The folder may be missing, or may have been removed in the meantime.
        private::folder(&self.folder)?;
        let mut file = private::create(path)?;
        result.iter().try_for_each(|part| file.write_all(part))
    }

    /// Looks up the result kept under `handle` for this owner, unless it has expired. A foreign handle gets the
    /// same answer as an unknown one.
    pub(crate) fn find(
        &self,
        handle: &ResultHandle,
        owner: &ResultOwner,
        now: Instant,
    ) -> Option<Arc<KeptResult>> {
        let state = self.state.lock();
        let (_, kept) = state.kept.get(&handle.id())?;
        (kept.owner == *owner && now < kept.until).then(|| Arc::clone(kept))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().kept.is_empty()
    }

    /// Removes expired results. Blocks on the disk.
    pub(crate) fn expire(&self, now: Instant) {
        self.remove_if(|kept| kept.until <= now);
    }

    /// Removes everything at shutdown. Blocks on the disk.
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

    /// Removes results as they expire, until aborted.
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
            // The blocking task fails only at the shutdown of the runtime.
            let _ = tokio::task::spawn_blocking(move || store.expire(Instant::now())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use mcpproxy_policy::tool::World;

    const OPEN: Exposure = Exposure { sensitivity: None, world: World::Open };

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
            KeepTerms { owner, server: "s".into(), exposure: OPEN, keep },
            bounds,
            now,
        )
    }

    /// Numbers from 0 to 9 whose handles are found in the store.
    fn known(store: &ResultStore, now: Instant) -> Vec<u8> {
        let found = |number: &u8| store.find(&handle(*number), &owner("p", "s"), now).is_some();
        (0..10).filter(found).collect()
    }

    fn files(store: &ResultStore) -> usize {
        fs::read_dir(&store.folder).map_or(0, Iterator::count)
    }

    #[test]
    fn kept_result_is_readable_by_its_owner_until_it_expires() {
        let ((store, _home), now) = (store(), Instant::now());
        assert!(store.is_empty());
        keep(&store, 1, &["{\"a\":", "\"é\"}"], WIDE, now).unwrap();
        let kept = store.find(&handle(1), &owner("p", "s"), now).unwrap();
        assert_eq!(
            (kept.read().unwrap().as_str(), kept.bytes, &*kept.server),
            ("{\"a\":\"é\"}", 10, "s")
        );
        assert_eq!(kept.exposure, OPEN, "reading it raises the tool's exposure");
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
    fn expired_file_is_removed_after_its_last_reader() {
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
    fn oldest_result_is_evicted_for_a_newer_one() {
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
        assert_eq!(
            (known(&store, now), files(&store)),
            (vec![3, 4], 2),
            "no other principal's result is evicted"
        );
        let none = StoreBounds { max_results: 0, ..WIDE };
        assert!(matches!(keep(&store, 5, &["1"], none, now), Err(NotKept::Busy)));
    }

    #[test]
    fn heaviest_principal_loses_results_first() {
        let ((store, _home), now) = (store(), Instant::now());
        let keep = |number: u8, principal: &str, size: usize, bounds: StoreBounds| {
            let terms = KeepTerms {
                owner: owner(principal, "s"),
                server: "s".into(),
                exposure: OPEN,
                keep: Duration::from_secs(60),
            };
            let part = Bytes::from(vec![b'1'; size]);
            store.keep(handle(number), &[part], terms, bounds, now).unwrap();
        };
        let has = |number: u8, principal: &str| {
            store.find(&handle(number), &owner(principal, "s"), now).is_some()
        };
        let few = StoreBounds { max_results: 4, ..WIDE };
        keep(0, "q", 100, few);
        for number in 1..=9 {
            keep(number, "p", 1, few);
        }
        assert!(has(0, "q"), "although it is the oldest and the largest");
        assert_eq!((1..=9).filter(|number| has(*number, "p")).collect::<Vec<_>>(), [7, 8, 9]);
        keep(10, "q", 1, few);
        assert!(has(0, "q") && has(10, "q") && !has(7, "p"));
        let small = StoreBounds { max_bytes: 110, ..WIDE };
        keep(11, "p", 20, small);
        assert!(!has(0, "q") && has(10, "q") && has(9, "p"), "it uses the most bytes");
        assert_eq!(store.state.lock().principals.len(), 2);
        store.clear();
        assert!(store.state.lock().principals.is_empty());
    }

    #[test]
    fn failed_write_leaves_no_file_and_no_charge() {
        let ((store, home), now) = (store(), Instant::now());
        // A file occupies the folder's path.
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
    fn modified_file_is_not_read() {
        let ((store, _home), now) = (store(), Instant::now());
        keep(&store, 1, &["{}"], WIDE, now).unwrap();
        let kept = store.find(&handle(1), &owner("p", "s"), now).unwrap();
        fs::write(&kept.path, "{\"more\":1}").unwrap();
        assert!(kept.read().is_err());
    }

    #[test]
    fn startup_removes_only_leftover_files() {
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
        assert!(clean(&folder, false).is_ok(), "unused");
    }

    #[tokio::test]
    async fn results_expire_on_time() {
        let ((store, _home), now) = (store(), Instant::now());
        let store = Arc::new(store);
        let task = tokio::spawn(Arc::clone(&store).expire_in_time());
        let terms =
            |keep| KeepTerms { owner: owner("p", "s"), server: "s".into(), exposure: OPEN, keep };
        let parts = [Bytes::from_static(b"{}")];
        store.keep(handle(1), &parts, terms(Duration::from_secs(3600)), WIDE, now).unwrap();
        // This expiry has already passed: the task sleeps until the other expiry and is notified of this one.
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
