//! The object store of a fleet: a folder of it, by a URL, with bounds on everything that is asked of it. In `fleet`, the crate
//! `object_store` is named here and in this folder alone.
//!
//! | URL | store | credentials |
//! |---|---|---|
//! | `s3://BUCKET/FOLDER` | S3, and what speaks it (`AWS_ENDPOINT_URL`): Garage, MinIO, Ceph | `AWS_…` |
//! | `gs://BUCKET/FOLDER` | Google Cloud Storage | `GOOGLE_…` |
//! | `az://CONTAINER/FOLDER` | Azure Blob Storage | `AZURE_…` |
//! | `file:///FOLDER` | a folder that is there already; what is put is synced | |
//!
//! What is not asked: to change an object only if it is as it was, which not every store can do. That a new object is made
//! only where there is none is used where the store shows that it can ([`Bucket::create`]).
//!
//! Size: each thing that a store is asked, with its bounds, in one place.

mod client;
mod error;
mod folders;
mod kept_part;
mod lister;
mod listing;
#[cfg(test)]
mod odd_keys;
mod pages;
#[cfg(test)]
mod slow_links;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions,
    PutPayload, RetryConfig,
};
use url::Url;

use self::client::{OwnClient, transfer_time};
pub use self::error::{BucketError, MAX_FOLDERS, MAX_LISTED};
use self::error::{failed, within, words};
pub use self::folders::FolderEntries;
use self::lister::Lister;

/// Most time for one operation, its repetitions included, and without the time that an object's bytes may take on a slow way
/// (`client::transfer_time`).
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Repetitions of a request within an operation.
const MAX_RETRIES: usize = 2;
/// The pause before the first of them, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Most bytes of an object that is read.
pub const MAX_OBJECT_BYTES: u64 = 64 << 20;
/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key, within the folder of the store.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// What tells one state of it from another.
    pub state: Box<str>,
}

/// As many objects as were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedSome {
    /// The objects, by their keys.
    pub objects: Vec<ListedObject>,
    /// These are all there are.
    pub is_whole: bool,
}

/// The beginning or the end of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedPart {
    /// The objects with the first keys, or the last ones, in their order.
    pub objects: Vec<ListedObject>,
    /// How many there are behind them, or before.
    pub more: u64,
    /// The last key of all.
    pub last: Option<String>,
}

/// What the names of the variables begin with that hold what the store at `url` is opened by.
#[must_use]
pub fn credential_variables(url: &str) -> &'static [&'static str] {
    match url.split_once("://") {
        Some(("s3", _)) => &["AWS_"],
        Some(("gs", _)) => &["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"],
        // Not all of `AZURE_`: other services of it have keys of their own.
        Some(("az", _)) => {
            &["AZURE_STORAGE_", "AZURE_CLIENT_", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"]
        }
        Some(_) | None => &[],
    }
}

/// Keys that cannot be read on this thread, so that a test sees what one of them does to the others.
#[cfg(test)]
pub(in crate::fleet) mod broken_reads {
    use std::cell::RefCell;

    thread_local!(static KEYS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

    /// From now on it is these.
    pub(in crate::fleet) fn are(keys: &[&str]) {
        KEYS.set(keys.iter().map(|key| (*key).to_owned()).collect());
    }

    pub(super) fn is(key: &str) -> bool {
        KEYS.with_borrow(|keys| keys.iter().any(|it| it == key))
    }
}

/// Whether an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It was.
    Made,
    /// There is one under its key, and it is as it was.
    Exists,
}

/// A folder of an object store. Clones share it.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    lister: Lister,
    folder: Path,
    shown: String,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.shown).finish()
    }
}

impl Bucket {
    /// The folder at `url`. Nothing is asked of it yet. Blocks: reads the system's certificates.
    ///
    /// # Errors
    ///
    /// [`BucketError::Url`].
    pub fn open(url: &str) -> Result<Self, BucketError> {
        let wrong = |error: &dyn fmt::Display| BucketError::Url(words(error));
        let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
        let shown = shown(&parsed);
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some()
        {
            return Err(wrong(&"credentials belong into the environment, not into the URL"));
        }
        if parsed.scheme() == "file" {
            let folder = parsed.to_file_path().unwrap_or_default();
            return Self::folder(folder, shown);
        }
        if !matches!(parsed.scheme(), "s3" | "gs" | "az") {
            return Err(wrong(&"it must begin with s3://, gs://, az:// or file:///"));
        }
        let (scheme, folder) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(&error))?;
        let client = || OwnClient::new().map_err(|error| wrong(&error));
        let (store, lister) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url);
                if builder.get_config_value(&AmazonS3ConfigKey::Checksum).is_none() {
                    // A store with object lock takes nothing without one.
                    builder = builder.with_checksum_algorithm(Checksum::SHA256);
                }
                let builder = builder.with_retry(retries()).with_http_connector(client()?);
                both(builder.build().map_err(|error| wrong(&error))?)
            }
            ObjectStoreScheme::GoogleCloudStorage => both(
                GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries())
                    .with_http_connector(client()?)
                    .build()
                    .map_err(|error| wrong(&error))?,
            ),
            ObjectStoreScheme::MicrosoftAzure => both(
                MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries())
                    .with_http_connector(client()?)
                    .build()
                    .map_err(|error| wrong(&error))?,
            ),
            _ => return Err(wrong(&"it names no bucket")),
        };
        Ok(Self { store, lister, folder, shown })
    }

    fn folder(folder: PathBuf, shown: String) -> Result<Self, BucketError> {
        if !folder.is_dir() {
            // It may be where something is to be mounted.
            return Err(BucketError::Url(format!("{} is no folder", folder.display())));
        }
        let store = LocalFileSystem::new_with_prefix(&folder)
            .map_err(|error| BucketError::Url(words(&error)))?
            .with_fsync(true);
        let (lister, folder) = (Lister::Local(folder), Path::default());
        Ok(Self { store: Arc::new(store), lister, folder, shown })
    }

    /// Where it is, for people.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn path(&self, key: &str) -> Path {
        key.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// The bytes of an object.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn get(&self, key: &str) -> Result<Bytes, BucketError> {
        self.get_up_to(key, MAX_OBJECT_BYTES).await
    }

    /// The bytes of an object that has `most` of them at most.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn get_up_to(&self, key: &str, most: u64) -> Result<Bytes, BucketError> {
        #[cfg(test)]
        if broken_reads::is(key) {
            return Err(BucketError::Failed("it is broken".to_owned()));
        }
        let path = self.path(key);
        let asked = async { self.store.get(&path).await.map_err(|error| failed(key, &error)) };
        let found = within(OPERATION_TIMEOUT, asked).await?;
        let size = found.meta.size;
        if size > most {
            return Err(BucketError::TooLong(key.to_owned()));
        }
        let read = async {
            let mut bytes = BytesMut::with_capacity(size as usize);
            let mut chunks = found.into_stream();
            while let Some(chunk) = chunks.try_next().await.map_err(|error| failed(key, &error))? {
                if bytes.len() as u64 + chunk.len() as u64 > most {
                    return Err(BucketError::TooLong(key.to_owned()));
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes.freeze())
        };
        within(OPERATION_TIMEOUT + transfer_time(size), read).await
    }

    /// The bytes of an object, or `None` where there is none.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn find(&self, key: &str) -> Result<Option<Bytes>, BucketError> {
        match self.get(key).await {
            Err(BucketError::Missing(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// How long an object is, or `None` where there is none.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn size(&self, key: &str) -> Result<Option<u64>, BucketError> {
        let path = self.path(key);
        let asked = async {
            match self.store.head(&path).await {
                Ok(meta) => Ok(Some(meta.size)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(failed(key, &error)),
            }
        };
        within(OPERATION_TIMEOUT, asked).await
    }

    /// Puts an object, in the place of what is there.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; then it may be there all the same.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<(), BucketError> {
        self.put_as(key, bytes, PutMode::Overwrite).await.map(|_| ())
    }

    /// Puts an object where there is none. A store that cannot look first puts it in the place of what is there, and says that
    /// it was made.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; then it may be there all the same.
    pub async fn create(&self, key: &str, bytes: Bytes) -> Result<Creation, BucketError> {
        self.put_as(key, bytes, PutMode::Create).await
    }

    async fn put_as(
        &self,
        key: &str,
        bytes: Bytes,
        mode: PutMode,
    ) -> Result<Creation, BucketError> {
        let path = self.path(key);
        let limit = OPERATION_TIMEOUT + transfer_time(bytes.len() as u64);
        let put = async {
            let options = PutOptions::from(mode);
            match self.store.put_opts(&path, PutPayload::from_bytes(bytes), options).await {
                Ok(_) => Ok(Creation::Made),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => Ok(Creation::Exists),
                Err(error) => Err(failed(key, &error)),
            }
        };
        within(limit, put).await
    }

    /// An object as a listing has it; `None` for one that is not within the folder.
    fn listed(&self, meta: ObjectMeta) -> Option<ListedObject> {
        let key = self.key(&meta.location)?;
        let changed = || format!("{}-{}", meta.last_modified, meta.size);
        let state = meta.e_tag.clone().unwrap_or_else(changed).into();
        Some(ListedObject { key, size: meta.size, state })
    }

    /// The key of a path within the folder.
    fn key(&self, path: &Path) -> Option<String> {
        let parts = path.prefix_match(&self.folder)?;
        Some(parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
    }

    /// A key as the store has it: a listing can begin behind one that is no path.
    fn raw(&self, key: &str) -> String {
        if self.folder.is_root() { key.to_owned() } else { format!("{}/{key}", self.folder) }
    }

    /// An object whose key is no path, by that key and of no size; `None` for one that is not within the folder. Nothing of a
    /// fleet is called so: whoever lists it tells it as what else is nobody's.
    fn odd(&self, raw: &str) -> Option<ListedObject> {
        let folder: &str = self.folder.as_ref();
        let key = match folder.is_empty() {
            true => raw,
            false => raw.strip_prefix(folder)?.strip_prefix('/')?,
        };
        Some(ListedObject { key: key.to_owned(), size: 0, state: "".into() })
    }
}

/// A store, and the way to list what is in it.
fn both<T: ObjectStore + PaginatedListStore>(store: T) -> (Arc<dyn ObjectStore>, Lister) {
    let store = Arc::new(store);
    (Arc::clone(&store) as Arc<dyn ObjectStore>, Lister::Paged(store))
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 },
        max_retries: MAX_RETRIES,
        retry_timeout: OPERATION_TIMEOUT,
    }
}

/// A URL without what may be secret in it.
fn shown(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_keeps_what_is_put_and_makes_an_object_once() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        assert_eq!(bucket.find("a/b.txt").await, Ok(None));
        assert_eq!(bucket.get("a/b.txt").await, Err(BucketError::Missing("a/b.txt".into())));
        assert_eq!(bucket.create("a/b.txt", Bytes::from_static(b"1")).await, Ok(Creation::Made));
        assert_eq!(bucket.create("a/b.txt", Bytes::from_static(b"2")).await, Ok(Creation::Exists));
        assert_eq!(bucket.get("a/b.txt").await.unwrap(), "1");
        bucket.put("a/b.txt", Bytes::from_static(b"22")).await.unwrap();
        bucket.put("a/date=1/c.txt", Bytes::from_static(b"3")).await.unwrap();
        bucket.put("b/c.txt", Bytes::from_static(b"3")).await.unwrap();
        assert_eq!(bucket.size("a/b.txt").await, Ok(Some(2)));
        assert_eq!(bucket.size("a/x.txt").await, Ok(None));
        let keys = async |folder, after| {
            let listed = bucket.list(folder, after).await.unwrap();
            listed.into_iter().map(|it| it.key).collect::<Vec<_>>()
        };
        assert_eq!(keys("a", None).await, ["a/b.txt", "a/date=1/c.txt"]);
        assert_eq!(keys("a", Some("a/b.txt")).await, ["a/date=1/c.txt"]);
        assert_eq!(keys("", None).await.len(), 3);
        assert_eq!(bucket.folders("").await.unwrap(), ["a", "b"]);
        assert_eq!(bucket.folders("none").await.unwrap(), [""; 0]);
        assert_eq!(keys("none", None).await, [""; 0]);
        let first = bucket.list_part("a", "", 1, 1).await.unwrap();
        let newest = bucket.list_newest("a", "", 1).await.unwrap();
        for (part, key) in [(first, "a/b.txt"), (newest, "a/date=1/c.txt")] {
            let keys: Vec<_> = part.objects.iter().map(|it| it.key.as_str()).collect();
            assert_eq!((keys, part.more), (vec![key], 1));
            assert_eq!(part.last.as_deref(), Some("a/date=1/c.txt"));
        }
    }

    #[tokio::test]
    async fn of_more_than_are_asked_for_no_more_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        for at in 0..5 {
            bucket.put(&format!("a/{at}"), Bytes::new()).await.unwrap();
        }
        for (most, listed, is_whole) in [(0, 0, false), (4, 4, false), (5, 5, true), (6, 5, true)] {
            let some = bucket.list_up_to("a", most).await.unwrap();
            assert_eq!((some.objects.len(), some.is_whole), (listed, is_whole), "{most}");
            assert!(some.objects.is_sorted_by(|a, b| a.key < b.key));
        }
        for at in 0..=MAX_FOLDERS {
            std::fs::create_dir_all(dir.path().join(format!("b/{at}"))).unwrap();
        }
        let too_many = BucketError::TooManyFolders("b".into());
        assert_eq!(bucket.folders("b").await, Err(too_many));
        std::fs::remove_dir(dir.path().join("b/0")).unwrap();
        assert_eq!(bucket.folders("b").await.unwrap().len(), MAX_FOLDERS);
    }

    #[test]
    fn a_url_that_leads_nowhere_is_refused_and_shown_without_secrets() {
        for (url, why) in [
            ("bucket", "relative URL"),
            ("ftp://a/b", "must begin with s3://"),
            ("memory:///", "must begin with s3://"),
            ("http://a/b", "must begin with s3://"),
            ("file:///not/there/at/all", "is no folder"),
            ("s3://key:secret@bucket/a", "environment"),
            ("s3://bucket/a?key=secret", "environment"),
        ] {
            let error = Bucket::open(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
        }
        let bucket = Bucket::open("s3://bucket/some/prefix").unwrap();
        assert_eq!(bucket.shown(), "s3://bucket/some/prefix");
        assert_eq!(bucket.path("a/b").to_string(), "some/prefix/a/b");
        assert_eq!(bucket.key(&Path::from("some/prefix/a/b")), Some("a/b".into()));
        assert!(words(&"é".repeat(400)).len() < 510);
        let error = "PUT https://a.example/b?sv=1&sig=secret: it is 403? no";
        assert_eq!(words(&error), "PUT https://a.example/b?… it is 403? no");
    }
}
