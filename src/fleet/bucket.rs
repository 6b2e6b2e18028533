//! Client for the fleet's object store, restricted to one folder and with bounds on every request. The only user of
//! `object_store` in this crate.
//!
//! | URL | store | credentials |
//! |---|---|---|
//! | `s3://BUCKET/FOLDER` | S3 and compatible stores (`AWS_ENDPOINT_URL`): Garage, MinIO, Ceph | `AWS_…` |
//! | `gs://BUCKET/FOLDER` | Google Cloud Storage | `GOOGLE_…` |
//! | `az://CONTAINER/FOLDER` | Azure Blob Storage | `AZURE_…` |
//! | `file:///FOLDER` | an existing folder; writes are synced | |
//!
//! Conditional updates are not used, because not every store supports them. Conditional creation is used if the store supports
//! it ([`Bucket::create`]).
//!
//! The HTTP client ([`StoreClient`]) bounds each request; the total time of an operation is bounded by [`OPERATION_TIMEOUT`]. The client
//! uses the TLS settings and egress proxy of the rest of the program and follows no redirects. A response must begin within
//! [`ANSWER_TIMEOUT`] and must not pause for longer. For requests with a body, the transfer time on the slowest supported link is added.

mod listing;
#[cfg(test)]
mod test_servers;

use std::error::Error as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    PutMode, PutOptions, PutPayload, RetryConfig, path,
};
use thiserror::Error;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::config::visible;
use mcpproxy_runtime::io::dial::PROXY_TIMEOUT;
use mcpproxy_runtime::io::egress_proxy::Egress;
use mcpproxy_runtime::io::http_client::{
    HttpConnection, HttpFault, HttpOrigin, IdleConnections, UnreadResponse,
};
use mcpproxy_runtime::io::tls::system_connector;

/// Time limit of an operation including retries, without the transfer time of its bytes on a slow link
/// ([`transfer_time`]).
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of retries per operation.
const MAX_RETRIES: usize = 2;
/// First and longest pause between retries.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum size of an object in bytes.
pub(crate) const MAX_OBJECT_BYTES: u64 = 64 << 20;
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Key relative to the store's folder.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Version tag.
    pub state: Box<str>,
}

/// Listing of a limited number of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedSome {
    /// Objects by key.
    pub objects: Vec<ListedObject>,
    /// True if the listing is complete.
    pub is_whole: bool,
}

/// First or last part of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedPart {
    /// Objects with the first or the last keys, in order.
    pub objects: Vec<ListedObject>,
    /// Number of objects after or before them.
    pub more: u64,
    /// Last key scanned.
    pub last: Option<String>,
}

/// Prefixes of the environment variables that hold the credentials for the store at `url`.
pub fn credential_variables(url: &str) -> &'static [&'static str] {
    match url.split_once("://") {
        Some(("s3", _)) => &["AWS_"],
        Some(("gs", _)) => &["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"],
        // Not the whole prefix `AZURE_`, which other services use for credentials, too.
        Some(("az", _)) => {
            &["AZURE_STORAGE_", "AZURE_CLIENT_", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"]
        }
        Some(_) | None => &[],
    }
}

/// Simulates unreadable keys on this thread, and observes reads.
#[cfg(test)]
pub(crate) mod broken_reads {
    use std::cell::RefCell;

    type Observer = Box<dyn Fn(&str)>;

    thread_local! {
        static KEYS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
    }

    /// Sets the unreadable keys.
    pub(crate) fn are(keys: &[&str]) {
        KEYS.set(keys.iter().map(|key| (*key).to_owned()).collect());
    }

    /// Calls `observe` with each key before it is read.
    pub(crate) fn observed_by(observe: impl Fn(&str) + 'static) {
        OBSERVER.set(Some(Box::new(observe)));
    }

    pub(crate) fn is(key: &str) -> bool {
        OBSERVER.with_borrow(|observer| observer.iter().for_each(|observe| observe(key)));
        KEYS.with_borrow(|keys| keys.iter().any(|it| it == key))
    }
}

/// Outcome of a conditional creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creation {
    Made,
    /// The key is taken; the object is unchanged.
    Exists,
}

/// Folder in an object store. Clones share it.
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
    /// Opens the folder at `url` without sending a request. Blocks: reads the system's certificates.
    pub fn open(url: &str) -> Result<Self, BucketError> {
        let wrong = |error: &dyn fmt::Display| BucketError::Url(words(error));
        let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
        let shown = shown(&parsed);
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some()
        {
            return Err(wrong(&"credentials belong in the environment, not in the URL"));
        }
        if parsed.scheme() == "file" {
            let folder = parsed.to_file_path().unwrap_or_default();
            return Self::folder(folder, shown);
        }
        if !matches!(parsed.scheme(), "s3" | "gs" | "az") {
            return Err(wrong(&"it must begin with s3://, gs://, az:// or file:///"));
        }
        let (scheme, folder) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(&error))?;
        let (store, lister) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url);
                if builder.get_config_value(&AmazonS3ConfigKey::Checksum).is_none() {
                    // A store with object lock requires a checksum.
                    builder = builder.with_checksum_algorithm(Checksum::SHA256);
                }
                let builder = builder.with_retry(retries()).with_http_connector(StoreClient::new());
                both(builder.build().map_err(|error| wrong(&error))?)
            }
            ObjectStoreScheme::GoogleCloudStorage => both(
                GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries())
                    .with_http_connector(StoreClient::new())
                    .build()
                    .map_err(|error| wrong(&error))?,
            ),
            ObjectStoreScheme::MicrosoftAzure => both(
                MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_retry(retries())
                    .with_http_connector(StoreClient::new())
                    .build()
                    .map_err(|error| wrong(&error))?,
            ),
            _ => return Err(wrong(&"it has no bucket name")),
        };
        Ok(Self { store, lister, folder, shown })
    }

    fn folder(folder: PathBuf, shown: String) -> Result<Self, BucketError> {
        if !folder.is_dir() {
            // A missing folder is not created, because it may lie on a file system that is not mounted now.
            return Err(BucketError::Url(format!("{} is not a folder", folder.display())));
        }
        let store = LocalFileSystem::new_with_prefix(&folder)
            .map_err(|error| BucketError::Url(words(&error)))?
            .with_fsync(true);
        let (lister, folder) = (Lister::Local(folder), Path::default());
        Ok(Self { store: Arc::new(store), lister, folder, shown })
    }

    /// Location for display.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn path(&self, key: &str) -> Path {
        key.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// Reads an object.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, BucketError> {
        self.get_up_to(key, MAX_OBJECT_BYTES).await
    }

    /// Reads an object of at most `max` bytes.
    pub(crate) async fn get_up_to(&self, key: &str, max: u64) -> Result<Bytes, BucketError> {
        #[cfg(test)]
        if broken_reads::is(key) {
            return Err(BucketError::Failed("simulated failure".to_owned()));
        }
        let path = self.path(key);
        let asked = async { self.store.get(&path).await.map_err(|error| failed(key, &error)) };
        let found = within(OPERATION_TIMEOUT, asked).await?;
        let size = found.meta.size;
        if size > max {
            return Err(BucketError::TooLong(key.to_owned()));
        }
        let read = async {
            let mut bytes = BytesMut::with_capacity(size as usize);
            let mut chunks = found.into_stream();
            while let Some(chunk) = chunks.try_next().await.map_err(|error| failed(key, &error))? {
                if bytes.len() as u64 + chunk.len() as u64 > max {
                    return Err(BucketError::TooLong(key.to_owned()));
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes.freeze())
        };
        within(OPERATION_TIMEOUT + transfer_time(size), read).await
    }

    /// Reads an object; `None` if there is none.
    pub(crate) async fn find(&self, key: &str) -> Result<Option<Bytes>, BucketError> {
        match self.get(key).await {
            Err(BucketError::Missing(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Size of an object in bytes; `None` if there is none.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, BucketError> {
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

    /// Writes an object; replaces an existing one.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; the object may have been written nevertheless.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<(), BucketError> {
        self.put_as(key, bytes, PutMode::Overwrite).await.map(|_| ())
    }

    /// Creates an object if its key is free. A store without conditional creation replaces the object and
    /// reports it as created.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; the object may have been written nevertheless.
    pub(crate) async fn create(&self, key: &str, bytes: Bytes) -> Result<Creation, BucketError> {
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

    /// Converts a listed object; `None` if it is outside the folder.
    fn listed(&self, meta: ObjectMeta) -> Option<ListedObject> {
        let key = self.key(&meta.location)?;
        let changed = || format!("{}-{}", meta.last_modified, meta.size);
        let state = meta.e_tag.clone().unwrap_or_else(changed).into();
        Some(ListedObject { key, size: meta.size, state })
    }

    /// Key of a path relative to the folder.
    fn key(&self, path: &Path) -> Option<String> {
        let parts = path.prefix_match(&self.folder)?;
        Some(parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
    }

    /// Absolute key in the store; it need not be a valid path.
    fn raw(&self, key: &str) -> String {
        if self.folder.is_root() { key.to_owned() } else { format!("{}/{key}", self.folder) }
    }

    /// Listed object whose key is not a valid path, with size 0; `None` if it is outside the folder. Fleet objects
    /// never have a key like this, so callers report the object as foreign.
    fn odd(&self, raw: &str) -> Option<ListedObject> {
        let folder: &str = self.folder.as_ref();
        let key = match folder.is_empty() {
            true => raw,
            false => raw.strip_prefix(folder)?.strip_prefix('/')?,
        };
        Some(ListedObject { key: key.to_owned(), size: 0, state: "".into() })
    }
}

/// Listing interface of a store.
#[derive(Clone)]
pub(crate) enum Lister {
    /// Local folder, which has neither an order nor a start key.
    Local(PathBuf),
    /// Store that lists in pages, in key order, starting from any key.
    Paged(Arc<dyn PaginatedListStore>),
}

/// Splits a store into its object and listing interfaces.
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

/// URL without possible secrets.
fn shown(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// Maximum number of objects in a listing.
pub const MAX_LISTED: usize = 4_000_000;
/// Maximum number of folders in a folder: the tracked nodes and some stray folders.
pub const MAX_FOLDERS: usize = 16_384;
/// Time limit of a listing.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum length of a store's error message in bytes.
const MAX_WORDS: usize = 500;
/// Maximum length of a displayed key in characters. Generous, because an operator needs the complete key to remove the object.
const MAX_KEY_CHARS: usize = 300;

/// Error of a store request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BucketError {
    #[error("cluster.store cannot be used: {0}")]
    Url(String),
    #[error("{0} does not exist")]
    Missing(String),
    #[error("{0} exceeds its maximum size")]
    TooLong(String),
    #[error("there are more than {MAX_LISTED} objects below {0}")]
    TooMany(String),
    #[error(
        "there are more than {MAX_FOLDERS} folders in {0}: remove those that were not created by a node"
    )]
    TooManyFolders(String),
    /// An invalid key blocks a listing.
    #[error("the invalid key '{0}' blocks a listing: remove it from the store")]
    OddKey(String),
    #[error("the store did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The store refused the request or is unreachable.
    #[error("the store cannot be used: {0}")]
    Failed(String),
}

pub(crate) async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, BucketError>>,
) -> Result<T, BucketError> {
    tokio::time::timeout(limit, asked).await.unwrap_or(Err(BucketError::Late(limit)))
}

pub(crate) fn failed(key: &str, error: &object_store::Error) -> BucketError {
    match (error, odd_key_of(error)) {
        (_, Some(odd)) => odd_key(odd),
        (object_store::Error::NotFound { .. }, None) => BucketError::Missing(key.to_owned()),
        (error, None) => BucketError::Failed(words(error)),
    }
}

/// The invalid key for which the library returned an error.
pub(crate) fn odd_key_of(error: &object_store::Error) -> Option<&str> {
    let object_store::Error::InvalidPath { source } = error else { return None };
    match source {
        path::Error::EmptySegment { path }
        | path::Error::BadSegment { path, .. }
        | path::Error::NonUnicode { path, .. } => Some(path.as_str()),
        _ => None,
    }
}

/// Error for a key that blocks a listing.
pub(crate) fn odd_key(raw: &str) -> BucketError {
    BucketError::OddKey(visible(raw, MAX_KEY_CHARS))
}

/// Message of an error, truncated, without URL queries, which may contain a signature.
pub(crate) fn words(error: &dyn fmt::Display) -> String {
    let error = error.to_string();
    let plain = |word: &str| match (word.find("://"), word.split_once('?')) {
        (Some(scheme), Some((before, _))) if scheme < before.len() => format!("{before}?… "),
        _ => word.to_owned(),
    };
    let mut words: String = error.split_inclusive(char::is_whitespace).map(plain).collect();
    if words.len() > MAX_WORDS {
        let end = (0..=MAX_WORDS).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0);
        words.truncate(end);
        words.push('…');
    }
    words
}

/// Time limit for connecting, including TLS. `PROXY_TIMEOUT` is added for a connection through a proxy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit without a byte of the response after the request was sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Slowest supported link in bytes per second: 256 kbit/s.
const SLOWEST_LINK: u64 = 32 << 10;
/// Time after which a stalled upload's connection is closed.
#[cfg(target_os = "linux")]
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of idle connections per host.
const MAX_IDLE: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum transfer time of `bytes` bytes, on the slowest supported link.
pub(crate) fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_LINK)
}

/// HTTP client. Clones share the connection pool.
#[derive(Clone)]
struct StoreClient {
    tls: TlsConnector,
    idle: Arc<IdleConnections>,
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").finish_non_exhaustive()
    }
}

impl StoreClient {
    /// Reads the system's certificates.
    fn new() -> Self {
        let idle = Arc::new(IdleConnections::new(MAX_IDLE, IDLE_TIMEOUT));
        Self { tls: system_connector(), idle }
    }

    async fn request(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let unusable = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let (mut head, body) = request.into_parts();
        let body: Bytes = body.collect().await?.to_bytes();
        let url = Url::parse(&head.uri.to_string()).map_err(unusable)?;
        if !head.headers.contains_key(HOST) {
            let host = HeaderValue::from_str(url.authority());
            head.headers.insert(HOST, host.map_err(|it| unusable_request(&it))?);
        }
        let target = head.uri.path_and_query().cloned();
        head.uri = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
        let key = format!("{}://{}", url.scheme(), url.authority());
        let limit = ANSWER_TIMEOUT + transfer_time(body.len() as u64);
        let origin = HttpOrigin::with(url, Some(self.tls.clone()), Some(&Egress::Environment));
        let mut request = Request::from_parts(head, Full::new(body));
        let reply = loop {
            let (connection, fresh) = match self.idle.take(&key) {
                Some(connection) => (connection, false),
                None => (connect(&origin).await?, true),
            };
            let sent = tokio::time::timeout(limit, connection.send(request)).await;
            match sent.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))? {
                Ok(reply) => break reply,
                Err(failed) => match failed.unsent {
                    // The server closed the idle connection.
                    Some(unsent) if !fresh => request = *unsent,
                    Some(_) | None => return Err(http_error(failed.fault)),
                },
            }
        };
        let head = reply.head.clone();
        let mut body = StoreBody {
            reply: Some(reply),
            pool: (Arc::clone(&self.idle), key),
            pause: Box::pin(tokio::time::sleep(ANSWER_TIMEOUT)),
        };
        body.release_if_empty();
        Ok(Response::from_parts(head, HttpResponseBody::new(body)))
    }
}

async fn connect(origin: &HttpOrigin) -> Result<HttpConnection, HttpError> {
    let proxied = if origin.proxy().is_some() { PROXY_TIMEOUT } else { Duration::ZERO };
    let open = async {
        let tcp = origin.dial(|_| true).await?;
        #[cfg(target_os = "linux")]
        socket2::SockRef::from(&tcp).set_tcp_user_timeout(Some(STALL_TIMEOUT))?;
        origin.over(tcp).await
    };
    let opened = tokio::time::timeout(CONNECT_TIMEOUT + proxied, open).await;
    let opened = opened.unwrap_or_else(|_| {
        Err(io::Error::other(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())))
    });
    opened.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))
}

fn unusable_request(why: &dyn fmt::Display) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, io::Error::other(why.to_string()))
}

/// Classifies a failure, which decides whether the library retries the request.
fn http_error(fault: HttpFault) -> HttpError {
    let kind = match &fault {
        HttpFault::Http(error)
            if error.is_closed()
                || error.is_incomplete_message()
                || error.is_body_write_aborted() =>
        {
            HttpErrorKind::Request
        }
        HttpFault::Http(error) => {
            let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
            match cause.map(io::Error::kind) {
                Some(io::ErrorKind::TimedOut) => HttpErrorKind::Timeout,
                Some(
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof,
                ) => HttpErrorKind::Interrupted,
                Some(_) | None => HttpErrorKind::Unknown,
            }
        }
        HttpFault::Request(_) | HttpFault::Proxy(_) | HttpFault::TooLong(_) => {
            HttpErrorKind::Unknown
        }
    };
    HttpError::new(kind, fault)
}

/// Response body that limits pauses, and returns its connection to the pool at its end.
struct StoreBody {
    /// `None` once the body has ended.
    reply: Option<UnreadResponse>,
    /// The connection pool, and the key of this connection in it.
    pool: (Arc<IdleConnections>, String),
    pause: Pin<Box<Sleep>>,
}

impl StoreBody {
    /// Releases the connection of an empty body, which the library does not read.
    fn release_if_empty(&mut self) {
        if let Some(reply) = self.reply.take_if(|reply| reply.has_ended()) {
            self.pool.0.keep(self.pool.1.clone(), reply.into_connection());
        }
    }
}

impl Body for StoreBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        let Some(reply) = &mut this.reply else { return Poll::Ready(None) };
        match reply.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                this.pause.as_mut().reset(Instant::now() + ANSWER_TIMEOUT);
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Poll::Ready(None) => {
                if let Some(reply) = this.reply.take() {
                    this.pool.0.keep(this.pool.1.clone(), reply.into_connection());
                }
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(fault))) => {
                this.reply = None;
                Poll::Ready(Some(Err(http_error(fault))))
            }
            Poll::Pending => {
                ready!(this.pause.as_mut().poll(cx));
                this.reply = None;
                let late = format!("no data within {} s", ANSWER_TIMEOUT.as_secs());
                let late = io::Error::new(io::ErrorKind::TimedOut, late);
                Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, late))))
            }
        }
    }
}

impl HttpService for StoreClient {
    fn call<'own, 'call>(
        &'own self,
        request: HttpRequest,
    ) -> BoxFuture<'call, Result<HttpResponse, HttpError>>
    where
        'own: 'call,
        Self: 'call,
    {
        Box::pin(self.request(request))
    }
}

impl HttpConnector for StoreClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn folder_store_keeps_objects_and_creates_once() {
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
    async fn listing_returns_at_most_the_requested_number() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        for at in 0..5 {
            bucket.put(&format!("a/{at}"), Bytes::new()).await.unwrap();
        }
        for (max, listed, is_whole) in [(0, 0, false), (4, 4, false), (5, 5, true), (6, 5, true)] {
            let some = bucket.list_up_to("a", max).await.unwrap();
            assert_eq!((some.objects.len(), some.is_whole), (listed, is_whole), "{max}");
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
    fn invalid_url_is_rejected_and_displayed_without_secrets() {
        for (url, why) in [
            ("bucket", "relative URL"),
            ("ftp://a/b", "must begin with s3://"),
            ("memory:///", "must begin with s3://"),
            ("http://a/b", "must begin with s3://"),
            ("file:///not/there/at/all", "is not a folder"),
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
