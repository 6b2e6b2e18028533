//! What lies directly in a folder: its folders, so many at most, and as many of its objects as are asked for. Of a store that
//! lists in pages as they come; of a folder of this machine as the system lists it, beside the runtime.

use std::collections::BTreeSet;
use std::fs::{DirEntry, Metadata};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use object_store::list::PaginatedListStore;
use object_store::path::Path;

use super::error::{BucketError, LIST_TIMEOUT, MAX_FOLDERS, within};
use super::kept_part::KeptPart;
use super::lister::Lister;
use super::pages::{ListedNext, Pages};
use super::{Bucket, ListedObject};

/// Most objects of a folder that are listed with its folders. Where there are more they are nobody's: it is enough to name some.
const MAX_BESIDE_FOLDERS: usize = 10_000;

/// What lies directly in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderEntries {
    /// The names of its folders, in the order of the keys that are in them.
    pub folders: Vec<String>,
    /// Its objects, in the order of their keys; the first 10 000 of them. Those whose key is no path are among them, and so is one
    /// for each folder whose name is none.
    pub objects: Vec<ListedObject>,
}

/// The same, as it is listed.
#[derive(Default)]
pub(super) struct DirectEntries {
    folders: BTreeSet<String>,
    /// What else the keys of folders have in the place of a name, with the slash behind it. So it is no name.
    odd: Vec<String>,
    pub(super) objects: KeptPart,
}

impl DirectEntries {
    /// One more folder in `folder`.
    fn add_folder(&mut self, name: String, folder: &str) -> Result<(), BucketError> {
        self.folders.insert(name);
        match self.folders.len() <= MAX_FOLDERS {
            true => Ok(()),
            false => Err(BucketError::TooManyFolders(folder.to_owned())),
        }
    }

    /// One more object. They come in any order: all are looked at.
    fn add(&mut self, object: ListedObject) {
        let _ = self.objects.add(object);
    }

    /// The names of the folders, in the order of the keys that are in them.
    pub(super) fn take_folders(&mut self) -> Vec<String> {
        let mut folders: Vec<_> = std::mem::take(&mut self.folders).into_iter().collect();
        folders.sort_by_cached_key(|name| format!("{name}/"));
        folders
    }
}

impl Bucket {
    /// The names of the folders in a folder, in their order. What keys have in the place of a name that is none (`a//b`,
    /// `a/../b`) is among them with a slash behind it, which no name has.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where there are more than [`MAX_FOLDERS`].
    pub async fn folders(&self, folder: &str) -> Result<Vec<String>, BucketError> {
        let DirectEntries { mut folders, odd, .. } =
            self.direct(folder, KeptPart::behind("", 0, 1)).await?;
        folders.extend(odd);
        Ok(folders.into_iter().collect())
    }

    /// What lies directly in a folder.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where there are more folders than [`MAX_FOLDERS`].
    pub async fn entries(&self, folder: &str) -> Result<FolderEntries, BucketError> {
        let mut direct = self.direct(folder, KeptPart::behind("", MAX_BESIDE_FOLDERS, 1)).await?;
        let folders = direct.take_folders();
        Ok(FolderEntries { folders, objects: direct.objects.listed().objects })
    }

    /// What lies directly in a folder; of its objects what `objects` keeps, which all are shown to.
    pub(super) async fn direct(
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
                    // No more of them than the listing gets past.
                    direct.odd.extend(name.filter(|name| name.ends_with('/')).map(str::to_owned));
                    direct.add(object);
                }
            }
        }
        Ok(direct)
    }
}

/// What `work` gives, which is done beside the runtime, if it does so in time. A thread that a system does not answer, as where
/// a mount hangs, is left to it.
async fn beside<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, BucketError> + Send + 'static,
) -> Result<T, BucketError> {
    let work = tokio::task::spawn_blocking(work);
    let done = async {
        work.await.unwrap_or_else(|_| Err(BucketError::Failed("a thread ended".to_owned())))
    };
    within(limit, done).await
}

/// What lies directly in a folder of this machine.
fn local(
    root: PathBuf,
    path: &Path,
    folder: &str,
    mut direct: DirectEntries,
) -> Result<DirectEntries, BucketError> {
    let at = path.parts().fold(root, |folder, part| folder.join(part.as_ref()));
    let told = |error: io::Error| BucketError::Failed(format!("{}: {error}", at.display()));
    let entries = match std::fs::read_dir(&at) {
        Ok(entries) => entries,
        // Nothing is in what is no folder, as in any other store.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(direct);
        }
        Err(error) => return Err(told(error)),
    };
    for entry in entries {
        let entry = entry.map_err(told)?;
        // What a link leads to counts; one that leads nowhere, or what went away meanwhile, is none.
        let found = match std::fs::metadata(entry.path()) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound || is_link(&entry) => continue,
            Err(error) => return Err(told(error)),
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

/// Whether it is the library's own, on its way to the name before the `#`.
fn is_staged(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

/// What tells one state of a file from another.
fn state(file: &Metadata) -> Box<str> {
    let changed = file.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", changed.unwrap_or_default().as_micros(), file.len()).into()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn a_system_that_does_not_answer_is_given_up() {
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
    async fn in_a_folder_of_this_machine_is_what_can_be_read_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        bucket.put("a/b/1", Bytes::from_static(b"1")).await.unwrap();
        bucket.put("a/c", Bytes::from_static(b"22")).await.unwrap();
        // On its way when a process was killed.
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
    async fn of_more_objects_than_are_kept_the_first_are() {
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
}
