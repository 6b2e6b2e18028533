//! Listings of folders with possibly millions of objects, in bounded memory.
//!
//! An S3-like store lists in pages, in key order, starting from any key ([`Pages`]); a local folder is listed on a
//! blocking thread, in no particular order.
//!
//! `object_store` rejects a whole page if one of its keys is not a valid path: double slashes, `.` or `..` segments,
//! control characters. Anyone who can write to the store could block all nodes this way. So the invalid key is
//! located, reported under its raw name, and the listing resumes after it. The error names the key but not its index,
//! so the key is located by requesting parts of the page: twice as many keys each time until the key is included,
//! then half as many until it is the only one. A page of 5000 keys, the largest of all stores, takes about thirty
//! requests at most.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::TryStreamExt;
use object_store::ListResult;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;

use crate::bucket::{
    Bucket, BucketError, LIST_TIMEOUT, ListedObject, ListedPart, ListedSome, Lister, MAX_FOLDERS,
    MAX_LISTED, OPERATION_TIMEOUT, failed, odd_key, odd_key_of, within,
};

impl Bucket {
    /// Calls `each` for the objects in a folder tree with keys after `after`, until it breaks. The objects come in
    /// key order if the store lists in key order.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; `each` was called for some objects.
    pub(crate) async fn walk(
        &self,
        folder: &str,
        after: Option<&str>,
        each: impl FnMut(ListedObject) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        // A local folder is always scanned completely.
        let limit = match &self.lister {
            Lister::Paged(_) => OPERATION_TIMEOUT,
            Lister::Local(_) => LIST_TIMEOUT,
        };
        self.walk_within(limit, folder, after, each).await
    }

    /// Like [`walk`](Self::walk), with a time limit between objects.
    async fn walk_within(
        &self,
        limit: Duration,
        folder: &str,
        after: Option<&str>,
        mut each: impl FnMut(ListedObject) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        let (prefix, after) = (self.path(folder), after.filter(|after| !after.is_empty()));
        if let Lister::Paged(store) = &self.lister {
            let offset = after.map(|after| self.raw(after));
            let mut pages = Pages::of(&**store, &prefix, folder, limit).behind(offset);
            while let Some(next) = pages.next().await? {
                for object in self.objects(next) {
                    // A store that does not support a start key begins with the first.
                    let is_before = after.is_some_and(|after| object.key.as_str() <= after);
                    if !is_before && each(object).is_break() {
                        return Ok(());
                    }
                }
            }
            return Ok(());
        }
        let mut found = match after {
            Some(after) => {
                let offset = Path::parse(after).unwrap_or_else(|_| self.path(after));
                self.store.list_with_offset(Some(&prefix), &offset)
            }
            None => self.store.list(Some(&prefix)),
        };
        loop {
            let next = async { found.try_next().await.map_err(|error| failed(folder, &error)) };
            let Some(meta) = within(limit, next).await? else { return Ok(()) };
            if self.listed(meta).is_some_and(|object| each(object).is_break()) {
                return Ok(());
            }
        }
    }

    /// Converts a page; an object with an invalid key is included.
    fn objects(&self, next: ListedNext) -> Vec<ListedObject> {
        match next {
            ListedNext::Page(page) => {
                page.objects.into_iter().filter_map(|meta| self.listed(meta)).collect()
            }
            ListedNext::Odd(raw) => self.odd(&raw).into_iter().collect(),
        }
    }

    /// Lists the objects in a folder tree with keys after `after`, in key order. For large folders use
    /// [`walk`](Self::walk).
    ///
    /// # Errors
    ///
    /// [`BucketError`], also if there are more than [`MAX_LISTED`].
    pub async fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> Result<Vec<ListedObject>, BucketError> {
        let (mut listed, mut too_many) = (Vec::new(), false);
        let each = self.walk_within(LIST_TIMEOUT, folder, after, |object| {
            too_many = listed.len() == MAX_LISTED;
            if too_many {
                return ControlFlow::Break(());
            }
            listed.push(object);
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        if too_many {
            return Err(BucketError::TooMany(folder.to_owned()));
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    /// Lists at most `max` objects in a folder tree and stops. The selection is unspecified if the store does not list
    /// in key order.
    pub(crate) async fn list_up_to(
        &self,
        folder: &str,
        max: usize,
    ) -> Result<ListedSome, BucketError> {
        let mut some = ListedSome { objects: Vec::new(), is_whole: true };
        let each = self.walk_within(LIST_TIMEOUT, folder, None, |object| {
            some.is_whole = some.objects.len() < max;
            if !some.is_whole {
                return ControlFlow::Break(());
            }
            some.objects.push(object);
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        some.objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(some)
    }

    /// Lists the last `max` objects in a folder tree with keys after `after`, and counts those before.
    pub(crate) async fn list_newest(
        &self,
        folder: &str,
        after: &str,
        max: usize,
    ) -> Result<ListedPart, BucketError> {
        // Not every store lists in key order.
        let (mut kept, mut last, mut more) = (BTreeMap::new(), None::<String>, 0);
        let each = self.walk_within(LIST_TIMEOUT, folder, Some(after), |object| {
            if last.as_ref().is_none_or(|last| *last < object.key) {
                last = Some(object.key.clone());
            }
            kept.insert(object.key.clone(), object);
            if kept.len() > max {
                kept.pop_first();
                more += 1;
            }
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        Ok(ListedPart { objects: kept.into_values().collect(), more, last })
    }

    /// Lists the first `max` objects in a folder tree with keys after `after`. Counts the remaining objects up to
    /// `count`, at least one.
    pub(crate) async fn list_part(
        &self,
        folder: &str,
        after: &str,
        max: usize,
        count: u64,
    ) -> Result<ListedPart, BucketError> {
        let mut part = KeptPart::behind(after, max, count);
        if matches!(self.lister, Lister::Paged(_)) {
            self.walk(folder, Some(after), |object| part.add(object)).await?;
            return Ok(part.listed());
        }
        // A local folder is always scanned completely, folder by folder, until enough objects are found.
        let mut direct = self.direct(folder, part).await?;
        for name in direct.take_folders() {
            let below = format!("{folder}/{name}");
            let begins = format!("{below}/");
            let is_before = after >= begins.as_str() && !after.starts_with(&begins);
            let part = &mut direct.objects;
            if !is_before && !part.is_full_before(&begins) {
                self.walk(&below, Some(after), |object| part.add(object)).await?;
            }
        }
        Ok(direct.objects.listed())
    }
}

/// Maximum number of objects listed next to folders. Objects next to folders are stray, so naming some of them
/// suffices.
const MAX_BESIDE_FOLDERS: usize = 10_000;

/// Direct children of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FolderEntries {
    /// Folder names, in key order of their contents.
    pub folders: Vec<String>,
    /// Objects in key order, at most the first 10 000. Includes objects with invalid keys, and one entry per
    /// folder with an invalid name.
    pub objects: Vec<ListedObject>,
}

/// Direct children collected by a listing in progress.
#[derive(Default)]
pub(crate) struct DirectEntries {
    folders: BTreeSet<String>,
    /// Invalid folder names, with a trailing slash.
    odd: Vec<String>,
    pub(crate) objects: KeptPart,
}

impl DirectEntries {
    fn add_folder(&mut self, name: String, folder: &str) -> Result<(), BucketError> {
        self.folders.insert(name);
        match self.folders.len() <= MAX_FOLDERS {
            true => Ok(()),
            false => Err(BucketError::TooManyFolders(folder.to_owned())),
        }
    }

    /// Adds an object. Objects may come in any order.
    fn add(&mut self, object: ListedObject) {
        let _ = self.objects.add(object);
    }

    /// Returns the folder names in key order of their contents.
    pub(crate) fn take_folders(&mut self) -> Vec<String> {
        let mut folders: Vec<_> = std::mem::take(&mut self.folders).into_iter().collect();
        folders.sort_by_cached_key(|name| format!("{name}/"));
        folders
    }
}

impl Bucket {
    /// Lists the folder names in a folder, in order. An invalid name (as in `a//b` or `a/../b`) is included with a
    /// trailing slash, which valid names do not have.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also if there are more than [`MAX_FOLDERS`].
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>, BucketError> {
        let DirectEntries { mut folders, odd, .. } =
            self.direct(folder, KeptPart::behind("", 0, 1)).await?;
        folders.extend(odd);
        Ok(folders.into_iter().collect())
    }

    /// Lists the direct children of a folder.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also if there are more than [`MAX_FOLDERS`].
    pub(crate) async fn entries(&self, folder: &str) -> Result<FolderEntries, BucketError> {
        let mut direct = self.direct(folder, KeptPart::behind("", MAX_BESIDE_FOLDERS, 1)).await?;
        let folders = direct.take_folders();
        Ok(FolderEntries { folders, objects: direct.objects.listed().objects })
    }

    /// Lists the direct children of a folder, keeping the objects that `objects` selects.
    pub(crate) async fn direct(
        &self,
        folder: &str,
        objects: KeptPart,
    ) -> Result<DirectEntries, BucketError> {
        let objects = objects.in_no_order();
        let direct = DirectEntries { objects, ..DirectEntries::default() };
        match &self.lister {
            Lister::Local(root) => {
                let (root, path, folder) = (root.clone(), self.path(folder), folder.to_owned());
                beside(LIST_TIMEOUT, move || local(root, &path, &folder, direct)).await
            }
            Lister::Paged(store) => {
                within(LIST_TIMEOUT, self.paged(&**store, folder, direct)).await
            }
        }
    }

    async fn paged(
        &self,
        store: &dyn PaginatedListStore,
        folder: &str,
        mut direct: DirectEntries,
    ) -> Result<DirectEntries, BucketError> {
        let mut pages = Pages::of(store, &self.path(folder), folder, LIST_TIMEOUT).direct();
        while let Some(next) = pages.next().await? {
            match next {
                ListedNext::Page(page) => {
                    for name in page.common_prefixes.iter().filter_map(Path::filename) {
                        direct.add_folder(name.to_owned(), folder)?;
                    }
                    for object in page.objects.into_iter().filter_map(|meta| self.listed(meta)) {
                        direct.add(object);
                    }
                }
                ListedNext::Odd(raw) => {
                    let Some(object) = self.odd(&raw) else { continue };
                    let name = match folder.is_empty() {
                        true => Some(object.key.as_str()),
                        false => {
                            object.key.strip_prefix(folder).and_then(|it| it.strip_prefix('/'))
                        }
                    };
                    // Bounded: a listing skips at most `MAX_ODD_KEYS` invalid keys.
                    direct.odd.extend(name.filter(|name| name.ends_with('/')).map(str::to_owned));
                    direct.add(object);
                }
            }
        }
        Ok(direct)
    }
}

/// Runs `work` on a blocking thread with a time limit. A thread that hangs, as on a dead mount, is abandoned.
async fn beside<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, BucketError> + Send + 'static,
) -> Result<T, BucketError> {
    let work = tokio::task::spawn_blocking(work);
    let done = async {
        work.await
            .unwrap_or_else(|_| Err(BucketError::Failed("a listing thread panicked".to_owned())))
    };
    within(limit, done).await
}

/// Lists the direct children of a local folder.
fn local(
    root: PathBuf,
    path: &Path,
    folder: &str,
    mut direct: DirectEntries,
) -> Result<DirectEntries, BucketError> {
    let at = path.parts().fold(root, |folder, part| folder.join(part.as_ref()));
    let reported = |error: io::Error| BucketError::Failed(format!("{}: {error}", at.display()));
    let entries = match std::fs::read_dir(&at) {
        Ok(entries) => entries,
        // A path that is not a folder is empty, as in an object store.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(direct);
        }
        Err(error) => return Err(reported(error)),
    };
    for entry in entries {
        let entry = entry.map_err(reported)?;
        // Links are followed; a dangling link, or a file that was just deleted, is skipped.
        let found = match std::fs::metadata(entry.path()) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound || is_link(&entry) => continue,
            Err(error) => return Err(reported(error)),
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        if found.is_dir() {
            direct.add_folder(name, folder)?;
        } else if found.is_file() && !is_staged(&name) {
            let key = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            direct.add(ListedObject { key, size: found.len(), state: state(&found) });
        }
    }
    Ok(direct)
}

fn is_link(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_symlink())
}

/// True for temporary files of `object_store`, named with a suffix after `#`.
fn is_staged(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

/// Version tag of a local file.
fn state(file: &Metadata) -> Box<str> {
    let changed = file.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", changed.unwrap_or_default().as_micros(), file.len()).into()
}

/// First objects of a listing in progress.
#[derive(Default)]
pub(crate) struct KeptPart {
    max: usize,
    count: u64,
    /// Keys up to this one are skipped.
    after: String,
    kept: BTreeMap<String, ListedObject>,
    more: u64,
    last: Option<String>,
    /// True if keys came out of order, so that the whole listing must be scanned.
    is_unordered: bool,
}

impl KeptPart {
    /// Selects the first `max` objects after a key. Counts the remaining objects up to `count`, at least one.
    pub(crate) fn behind(after: &str, max: usize, count: u64) -> Self {
        Self { max, count: count.max(1), after: after.to_owned(), ..Self::default() }
    }

    /// Selects from an unordered listing, which must be scanned completely.
    pub(crate) fn in_no_order(self) -> Self {
        Self { is_unordered: true, ..self }
    }

    /// Adds an object; breaks once the selection is complete.
    pub(crate) fn add(&mut self, object: ListedObject) -> ControlFlow<()> {
        if object.key <= self.after {
            return ControlFlow::Continue(());
        }
        if self.last.as_ref().is_none_or(|last| *last < object.key) {
            self.last = Some(object.key.clone());
        } else {
            self.is_unordered = true;
        }
        if !self.is_unordered && self.kept.len() >= self.max {
            self.more += 1;
            return match self.more < self.count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
        }
        self.kept.insert(object.key.clone(), object);
        if self.kept.len() > self.max {
            self.kept.pop_last();
            self.more += 1;
        }
        ControlFlow::Continue(())
    }

    /// True if the selection is complete with keys before this one, and more exist.
    pub(crate) fn is_full_before(&self, key: &str) -> bool {
        let last = self.kept.last_key_value().map(|(last, _)| last.as_str());
        self.more > 0 && last.is_some_and(|last| last < key)
    }

    pub(crate) fn listed(self) -> ListedPart {
        let objects = self.kept.into_values().collect();
        ListedPart { objects, more: self.more, last: self.last }
    }
}

/// Maximum number of invalid keys that one listing skips.
pub(crate) const MAX_ODD_KEYS: usize = 32;
/// Page size from which a listing is requested without a limit.
const LARGEST_PART: usize = 4096;

/// Next part of a listing.
pub(crate) enum ListedNext {
    Page(ListResult),
    /// An invalid raw key. In a listing of direct children, a key with a trailing slash is a common prefix.
    Odd(String),
}

/// Paged listing in progress.
pub(crate) struct Pages<'a> {
    store: &'a dyn PaginatedListStore,
    prefix: Option<String>,
    /// Folder for display.
    shown: &'a str,
    /// Time limit per request.
    limit: Duration,
    /// True to list direct children only.
    is_direct: bool,
    /// Start key, and continuation token.
    offset: Option<String>,
    token: Option<String>,
    part: PagePart,
    is_over: bool,
    /// Number of skipped invalid keys, and the last of them.
    passed: usize,
    last_passed: Option<String>,
}

impl<'a> Pages<'a> {
    /// Lists a folder tree.
    pub(crate) fn of(
        store: &'a dyn PaginatedListStore,
        folder: &Path,
        shown: &'a str,
        limit: Duration,
    ) -> Self {
        Self {
            store,
            prefix: Some(format!("{folder}/")).filter(|prefix| prefix != "/"),
            shown,
            limit,
            is_direct: false,
            offset: None,
            token: None,
            part: PagePart::Whole,
            is_over: false,
            passed: 0,
            last_passed: None,
        }
    }

    /// Starts after this raw key.
    pub(crate) fn behind(self, key: Option<String>) -> Self {
        Self { offset: key, ..self }
    }

    /// Lists direct children only.
    pub(crate) fn direct(self) -> Self {
        Self { is_direct: true, ..self }
    }

    /// Returns the next part; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ListedNext>, BucketError> {
        while !self.is_over {
            let options = PaginatedListOptions {
                offset: self.offset.clone(),
                delimiter: self.is_direct.then_some(Cow::Borrowed("/")),
                max_keys: self.part.max(),
                page_token: self.token.clone(),
                ..PaginatedListOptions::default()
            };
            let asked = self.store.list_paginated(self.prefix.as_deref(), options);
            let answered = within(self.limit, async { Ok(asked.await) }).await?;
            let error = match answered {
                Ok(page) => {
                    // Some stores end with an empty token.
                    self.token = page.page_token.filter(|token| !token.is_empty());
                    self.is_over = self.token.is_none();
                    self.part = self.part.after_success();
                    return Ok(Some(ListedNext::Page(page.result)));
                }
                Err(error) => error,
            };
            let Some(key) = odd_key_of(&error) else { return Err(failed(self.shown, &error)) };
            match self.part.after_failure() {
                Some(smaller) => self.part = smaller,
                None => {
                    self.pass(key)?;
                    return Ok(Some(ListedNext::Odd(key.to_owned())));
                }
            }
        }
        Ok(None)
    }

    /// Skips an invalid key, which is the next one.
    fn pass(&mut self, key: &str) -> Result<(), BucketError> {
        // A store that ignores the start key would return it forever.
        let comes_again = self.last_passed.as_ref().is_some_and(|last| key <= last.as_str());
        if comes_again || self.passed == MAX_ODD_KEYS {
            return Err(odd_key(key));
        }
        self.passed += 1;
        self.last_passed = Some(key.to_owned());
        // The key ends with '0', the character after '/', so it sorts after the folder's contents. An object with
        // exactly this key would be skipped, but a folder with this name would not.
        let folder = key.strip_suffix('/').filter(|_| self.is_direct);
        self.offset = Some(folder.map_or_else(|| key.to_owned(), |folder| format!("{folder}0")));
        self.token = None;
        self.part = PagePart::Whole;
        Ok(())
    }
}

/// Number of keys to request from a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagePart {
    /// As many keys as the store returns.
    Whole,
    /// This many keys now, and more in the next request: an invalid key follows somewhere.
    Grows(usize),
    /// This many keys now, and fewer in the next request: the invalid key is among twice as many.
    Shrinks(usize),
}

impl PagePart {
    fn max(self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::Grows(max) | Self::Shrinks(max) => Some(max),
        }
    }

    /// Next request after a successful part. If the key was deleted in the meantime, or the store returns fewer keys
    /// than requested, the search stays correct and is only slower.
    fn after_success(self) -> Self {
        match self {
            Self::Whole => Self::Whole,
            Self::Grows(max) if max >= LARGEST_PART => Self::Whole,
            Self::Grows(max) => Self::Grows(max * 2),
            Self::Shrinks(1) => Self::Grows(1),
            Self::Shrinks(max) => Self::Shrinks(max / 2),
        }
    }

    /// Next request after a failed part; `None` if it was a single key, which is then the invalid one.
    fn after_failure(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::Grows(1)),
            Self::Grows(1) | Self::Shrinks(1) => None,
            Self::Grows(max) | Self::Shrinks(max) => Some(Self::Shrinks(max / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use bytes::Bytes;

    #[tokio::test]
    async fn unordered_store_is_scanned_folder_by_folder() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        let keys = [
            "f/a",
            "f/date=1/2",
            "f/date=1/3",
            "f/date=1-/1",
            "f/date=2/1",
            "f/date=3/1",
            "f/y",
            "f/z",
        ];
        for key in keys.iter().chain(&["g/1"]) {
            bucket.put(key, Bytes::from_static(b"1")).await.unwrap();
        }
        let entries = bucket.entries("f").await.unwrap();
        assert_eq!(entries.folders, ["date=1-", "date=1", "date=2", "date=3"]);
        let objects: Vec<_> = entries.objects.iter().map(|object| &*object.key).collect();
        assert_eq!(objects, ["f/a", "f/y", "f/z"]);
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        for from in 0..=sorted.len() {
            let after = if from == 0 { "" } else { sorted[from - 1] };
            for max in 1..=sorted.len() {
                let part = bucket.list_part("f", after, max, 1).await.unwrap();
                let found: Vec<_> = part.objects.iter().map(|object| &*object.key).collect();
                let rest = &sorted[from..];
                assert_eq!(found, rest[..max.min(rest.len())], "{max} after {after:?}");
                assert_eq!(part.more > 0, max < rest.len(), "{max} after {after:?}");
            }
        }
    }

    #[tokio::test]
    async fn hanging_file_system_is_abandoned() {
        let (answers, answer) = mpsc::channel::<()>();
        let limit = Duration::from_millis(10);
        let hangs = beside(limit, move || {
            let _ = answer.recv();
            Ok(())
        });
        assert_eq!(hangs.await, Err(BucketError::Late(limit)));
        drop(answers);
        assert_eq!(beside(LIST_TIMEOUT, || Ok(1)).await, Ok(1));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn local_folder_lists_readable_entries() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        bucket.put("a/b/1", Bytes::from_static(b"1")).await.unwrap();
        bucket.put("a/c", Bytes::from_static(b"22")).await.unwrap();
        // Temporary file of a killed process.
        std::fs::write(dir.path().join("a/d#1"), b"").unwrap();
        std::fs::create_dir(dir.path().join("a/e\u{1}")).unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, dir.path().join("a").join(name)).unwrap();
        };
        link("b", "f");
        link("nowhere", "g");
        link("h", "h");
        let entries = bucket.entries("a").await.unwrap();
        assert_eq!(entries.folders, ["b", "e\u{1}", "f"]);
        let objects: Vec<_> = entries.objects.iter().map(|it| (&*it.key, it.size)).collect();
        assert_eq!(objects, [("a/c", 2)]);
        assert_eq!(bucket.folders("a").await.unwrap(), ["b", "e\u{1}", "f"]);
        for none in ["a/c", "none"] {
            assert_eq!(bucket.entries(none).await.unwrap(), FolderEntries::default(), "{none}");
        }
    }

    #[tokio::test]
    async fn listing_with_surplus_objects_keeps_the_first_ones() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        for at in 0..=MAX_BESIDE_FOLDERS {
            std::fs::write(dir.path().join(format!("a/{at:05}")), b"").unwrap();
        }
        let objects = bucket.entries("a").await.unwrap().objects;
        assert_eq!(objects.len(), MAX_BESIDE_FOLDERS);
        assert_eq!(objects.last().map(|it| &*it.key), Some("a/09999"));
        assert_eq!(bucket.folders("a").await.unwrap(), [""; 0]);
    }

    fn object(key: &str) -> ListedObject {
        ListedObject { key: key.to_owned(), size: 1, state: "".into() }
    }

    /// Selected keys, number of further keys, last key, and number of scanned keys.
    fn part(keys: &[&str], max: usize, count: u64) -> (Vec<String>, u64, Option<String>, usize) {
        let mut part = KeptPart::behind("", max, count);
        let mut seen = 0;
        for key in keys {
            seen += 1;
            if part.add(object(key)).is_break() {
                break;
            }
        }
        let ListedPart { objects, more, last } = part.listed();
        (objects.into_iter().map(|object| object.key).collect(), more, last, seen)
    }

    #[test]
    fn ordered_listing_stops_after_the_selection_and_the_requested_count() {
        let all = ["a", "b", "c", "d", "e", "f"];
        let kept = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(part(&all, 2, 1), (kept.clone(), 1, Some("c".into()), 3));
        assert_eq!(part(&all, 2, 3), (kept.clone(), 3, Some("e".into()), 5));
        assert_eq!(part(&all, 2, 100), (kept.clone(), 4, Some("f".into()), 6));
        assert_eq!(part(&all[..2], 2, 1), (kept.clone(), 0, Some("b".into()), 2));
        // In another order everything is scanned.
        let other = ["e", "f", "a", "d", "b", "c"];
        assert_eq!(part(&other, 3, 2).0, ["a", "b", "c"]);
        assert_eq!(part(&other, 3, 2).1, 3);
    }

    #[test]
    fn unordered_listing_keeps_the_first_after_a_key() {
        let mut part = KeptPart::behind("c", 2, 1).in_no_order();
        for key in ["f", "a", "d", "c", "e", "b", "g"] {
            assert!(part.add(object(key)).is_continue(), "{key}");
        }
        assert!(part.is_full_before("f") && !part.is_full_before("e"));
        let ListedPart { objects, more, last } = part.listed();
        let keys: Vec<_> = objects.iter().map(|object| &*object.key).collect();
        assert_eq!((keys, more, last.as_deref()), (vec!["d", "e"], 2, Some("g")));
    }

    #[test]
    fn invalid_key_is_located_at_any_index() {
        for before in 0..5000 {
            let (mut part, mut left, mut asked) = (PagePart::Whole, before, 0);
            loop {
                asked += 1;
                // A request without a limit always includes the invalid key.
                if let Some(max) = part.max().filter(|max| *max <= left) {
                    left -= max;
                    part = part.after_success();
                    continue;
                }
                match part.after_failure() {
                    Some(smaller) => part = smaller,
                    None => break,
                }
            }
            assert_eq!(left, 0, "{before} keys are before it");
            assert!(asked <= 30, "{asked} requests, {before} keys are before it");
        }
    }

    #[test]
    fn listing_uses_whole_pages_again_after_an_invalid_key_is_deleted() {
        for start in [PagePart::Grows(1), PagePart::Shrinks(512)] {
            let (mut part, mut asked) = (start, 0);
            while part != PagePart::Whole {
                part = part.after_success();
                asked += 1;
            }
            assert!(asked <= 30, "{asked} requests after {start:?}");
        }
    }
}
