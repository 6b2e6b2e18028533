//! Requests to the endpoint of `search.embeddings`: vectors of queries, for which searches wait, and vectors of tools, in the background.
//!
//! Two tasks are used, so that queries do not wait for tools. Missing vectors of tools are requested in small batches, with retries, and
//! stored on disk. The format of responses is in [`embeddings`](mcpproxy_catalog::embeddings). The key is sent as a header and never
//! logged; invalid responses are not quoted.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use mcpproxy_catalog::embeddings::wire::MAX_TEXTS;
use mcpproxy_catalog::embeddings::{
    EmbeddingQuery, EmbeddingsSettings, MAX_QUERIES_AT_ONCE, QueryEmbedder, RequestKind,
    RequestOutcome, VectorKey, VectorStore, vector_file, wire,
};
use mcpproxy_catalog::search::UnitVector;
use mcpproxy_catalog::{Catalog, Snapshot, ToolSet};
use mcpproxy_runtime::io::delays::RetryDelays;
use mcpproxy_runtime::io::http_client::{HttpConnection, HttpOrigin, OutgoingRequest};
use mcpproxy_upstream::filled_in;

/// Background tasks that request embeddings.
#[derive(Debug)]
pub(super) struct EmbeddingTasks([JoinHandle<()>; 2]);

impl EmbeddingTasks {
    /// Starts the tasks, which are idle until the config names an endpoint. Vectors of tools are stored in `folder`.
    pub(super) fn start(
        embedder: &Arc<QueryEmbedder>,
        asked: mpsc::Receiver<EmbeddingQuery>,
        catalog: &Arc<Catalog>,
        folder: PathBuf,
        control: &Runtime,
    ) -> Self {
        let queries = answer_queries(Arc::clone(embedder), asked);
        let indexing = keep_up(Arc::clone(embedder), Arc::clone(catalog), folder);
        Self([control.spawn(queries), control.spawn(indexing)])
    }

    /// Aborts the tasks. Missing vectors are requested again after the next start.
    pub(super) fn end(self) {
        for task in self.0 {
            task.abort();
        }
    }
}

/// Client of the embeddings endpoint.
pub struct EmbeddingsClient {
    endpoint: EmbeddingsEndpoint,
    model: String,
    connection: Option<HttpConnection>,
}

/// Address and credential of the endpoint.
struct EmbeddingsEndpoint {
    origin: HttpOrigin,
    path: String,
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for EmbeddingsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddingsClient").field("model", &self.model).finish_non_exhaustive()
    }
}

impl EmbeddingsClient {
    /// Creates a client. Returns an error if the key cannot be read or the URL is invalid.
    pub async fn of(settings: &EmbeddingsSettings) -> Result<Self, String> {
        let authorization = match settings.api_key.clone() {
            None => None,
            // Reading the key may block on a file.
            Some(key) => Some(
                tokio::task::spawn_blocking(move || authorization(&key))
                    .await
                    .map_err(|error| error.to_string())??,
            ),
        };
        let origin = HttpOrigin::of(&settings.url).await.ok_or("its URL cannot be used")?;
        let path = format!("{}/embeddings", origin.url.path().trim_end_matches('/'));
        let model = settings.model.clone();
        let endpoint = EmbeddingsEndpoint { origin, path, authorization };
        Ok(Self { endpoint, model, connection: None })
    }

    /// Requests the vectors of `texts`, in their order, with the given number of dimensions if known. The caller sets the timeout: if the
    /// future is dropped, the next request uses a new connection. Errors never quote the endpoint.
    pub async fn vectors(
        &mut self,
        texts: &[impl AsRef<str>],
        dimensions: Option<usize>,
    ) -> Result<Vec<UnitVector>, String> {
        let body = wire::request(&self.model, texts);
        // The connection is stored again once the response has been read.
        let kept = self.connection.take();
        let (answer, kept) = self.endpoint.post(kept, body).await?;
        if !answer.status().is_success() {
            return Err(format!("the endpoint answered {}", answer.status()));
        }
        self.connection = kept;
        let (body, count) = (answer.into_body(), texts.len());
        // Parsing many numbers takes several milliseconds.
        let read = tokio::task::spawn_blocking(move || wire::vectors(&body, count, dimensions));
        read.await.map_err(|error| error.to_string())?.map_err(|bad| bad.to_string())
    }
}

impl EmbeddingsEndpoint {
    /// Sends a request over the open connection, or over a new one if none is open or it was just closed.
    async fn post(
        &self,
        kept: Option<HttpConnection>,
        body: Bytes,
    ) -> Result<(http::Response<Bytes>, Option<HttpConnection>), String> {
        if let Some(mut connection) = kept
            && connection.is_open()
            && let Ok(fetched) =
                connection.fetch(self.request(body.clone())?, wire::MAX_ANSWER_BYTES).await
        {
            return Ok(fetched);
        }
        let connection = self.origin.connect().await.map_err(|error| error.to_string())?;
        let fetched = connection.fetch(self.request(body)?, wire::MAX_ANSWER_BYTES).await;
        fetched.map_err(|fault| fault.to_string())
    }

    fn request(&self, body: Bytes) -> Result<OutgoingRequest, String> {
        let mut request = Request::post(&self.path)
            .header(HOST, self.origin.url.authority())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .header(USER_AGENT, concat!("mcpproxy/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.authorization {
            request = request.header(AUTHORIZATION, key);
        }
        request.body(Full::new(body)).map_err(|_| "the request cannot be sent".to_owned())
    }
}

fn authorization(key: &str) -> Result<HeaderValue, String> {
    const KEY: &str = "search.embeddings.api_key";
    let key = filled_in(key, KEY, &|name: &str| std::env::var(name).ok())?;
    let unusable = |_| format!("{KEY} cannot be sent as a header");
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(unusable)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Timeout of a request for vectors of tools: the model may have to be loaded first.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum and maximum backoff, before jitter.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time to wait for further changes of the catalog.
const SETTLING: Duration = Duration::from_millis(100);
/// Number of new vectors after which they are first applied and written, and then again after each increase by a quarter, because each time
/// costs as much as applying all known vectors.
const FIRST_BATCH: usize = 256;
const BATCH_SHARE: usize = 4;

/// Requests missing vectors of tools until aborted.
pub(super) async fn keep_up(embedder: Arc<QueryEmbedder>, catalog: Arc<Catalog>, folder: PathBuf) {
    let mut settings = embedder.settings();
    let folder: Arc<Path> = folder.into();
    loop {
        let now = settings.borrow_and_update().clone();
        let index = async {
            match now {
                None => std::future::pending().await,
                Some(settings) => {
                    let folder = Arc::clone(&folder);
                    let (embedder, catalog) = (&embedder, &catalog);
                    Indexing { embedder, catalog, folder, settings }.run().await;
                }
            }
        };
        tokio::select! {
            // The sender was dropped.
            changed = settings.changed() => if changed.is_err() { return },
            () = index => return,
        }
    }
}

/// Texts of one request.
struct Batch<'a> {
    texts: &'a [(VectorKey, String)],
    has_failed: bool,
}

/// State of indexing with the settings of one endpoint.
struct Indexing<'a> {
    embedder: &'a QueryEmbedder,
    catalog: &'a Catalog,
    folder: Arc<Path>,
    settings: Arc<EmbeddingsSettings>,
}

impl Indexing<'_> {
    /// Indexes until dropped. Returns only if a blocking thread panicked.
    async fn run(self) {
        let mut swaps = self.catalog.swaps();
        let (folder, model) = (Arc::clone(&self.folder), self.settings.model.clone());
        let read = tokio::task::spawn_blocking(move || {
            let read = vector_file::read(&folder, &model);
            read.map_or_else(|error| (VectorStore::new(&model), Some(error)), |it| (it, None))
        });
        let Ok((mut store, unusable)) = read.await else { return };
        if let Some(why) = unusable {
            self.embedder.file_unusable(&vector_file::path(&self.folder), &why.to_string());
        }
        loop {
            swaps.borrow_and_update();
            let snapshot = self.catalog.load();
            let Some((arranged, missing)) = self.arrange(store, &snapshot).await else { return };
            store = arranged;
            if missing.is_empty() {
                self.embedder.report_progress();
            } else {
                let Some(filled) = self.fill(store, &snapshot, missing, &mut swaps).await else {
                    return;
                };
                store = filled;
                // More tools may have been added in the meantime.
                continue;
            }
            loop {
                // The catalog exists as long as the proxy.
                if swaps.changed().await.is_err() {
                    return;
                }
                tokio::time::sleep(SETTLING).await;
                if is_another(&snapshot, &self.catalog.load()) {
                    break;
                }
                swaps.borrow_and_update();
            }
        }
    }

    /// Applies the known vectors of the current tools. Returns the tools whose vectors are missing.
    async fn arrange(
        &self,
        mut store: VectorStore,
        snapshot: &Arc<Snapshot>,
    ) -> Option<(VectorStore, Vec<(VectorKey, String)>)> {
        let snapshot = Arc::clone(snapshot);
        let arranged = tokio::task::spawn_blocking(move || {
            let complete = snapshot.servers().all(|(_, set)| set != ToolSet::Awaited);
            let missing = store.arrange(snapshot.tools(), complete);
            (store, missing)
        });
        let (store, missing) = arranged.await.ok()?;
        self.embedder.set_tool_vectors(store.model(), store.tools());
        Some((store, missing))
    }

    /// Requests missing vectors until none are missing or the tools change. A failed batch is halved, so that one text rejected by the
    /// endpoint does not block others.
    async fn fill(
        &self,
        mut store: VectorStore,
        snapshot: &Arc<Snapshot>,
        missing: Vec<(VectorKey, String)>,
        swaps: &mut watch::Receiver<()>,
    ) -> Option<VectorStore> {
        let (mut left, mut new) = (missing.len(), 0);
        let batches = missing.chunks(MAX_TEXTS).map(|texts| Batch { texts, has_failed: false });
        let mut batches: VecDeque<Batch<'_>> = batches.collect();
        let (mut waits, mut client) = (RetryDelays::new(WAITS.0, WAITS.1), None);
        while let Some(Batch { texts, .. }) = batches.pop_front() {
            if let Err(why) = self.attempt(&mut client, &mut store, texts).await {
                client = None;
                self.embedder.report_missing(left, &why);
                // The vectors are applied now, because the next success may take a long time.
                store = self.apply(store, snapshot, new).await?;
                new = 0;
                let (first, second) = texts.split_at(texts.len() / 2);
                let again = |texts| Batch { texts, has_failed: true };
                if first.is_empty() {
                    batches.push_back(again(second));
                } else {
                    batches.push_front(again(second));
                    batches.push_front(again(first));
                }
                tokio::time::sleep(waits.next_delay()).await;
                if swaps.has_changed().unwrap_or(true) && is_another(snapshot, &self.catalog.load())
                {
                    break;
                }
                continue;
            }
            waits = RetryDelays::new(WAITS.0, WAITS.1);
            left -= texts.len();
            new += texts.len();
            if !batches.iter().any(|batch| batch.has_failed) {
                self.embedder.report_progress();
            }
            if new >= FIRST_BATCH.max(store.len() / BATCH_SHARE) {
                store = self.apply(store, snapshot, new).await?;
                new = 0;
                if is_another(snapshot, &self.catalog.load()) {
                    break;
                }
            }
        }
        self.apply(store, snapshot, new).await
    }

    async fn attempt(
        &self,
        client: &mut Option<EmbeddingsClient>,
        store: &mut VectorStore,
        batch: &[(VectorKey, String)],
    ) -> Result<(), String> {
        let texts: Vec<&str> = batch.iter().map(|(_, text)| &**text).collect();
        let asking = async {
            let client = match client {
                Some(client) => client,
                none => none.insert(EmbeddingsClient::of(&self.settings).await?),
            };
            client.vectors(&texts, store.dimensions()).await
        };
        let answer = tokio::time::timeout(ATTEMPT_TIMEOUT, asking).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no answer within {ATTEMPT_TIMEOUT:?}")));
        let outcome = match answer {
            Ok(_) => RequestOutcome::Success,
            Err(_) => RequestOutcome::Failure,
        };
        self.embedder.count(RequestKind::Tools, outcome);
        for ((key, _), vector) in batch.iter().zip(answer?) {
            store.insert(*key, vector);
        }
        Ok(())
    }

    /// Applies and writes new vectors.
    async fn apply(
        &self,
        store: VectorStore,
        snapshot: &Arc<Snapshot>,
        new: usize,
    ) -> Option<VectorStore> {
        if new == 0 {
            return Some(store);
        }
        let (store, _) = self.arrange(store, snapshot).await?;
        let folder = Arc::clone(&self.folder);
        let written = tokio::task::spawn_blocking(move || {
            let written = vector_file::write(&folder, &store);
            (store, written)
        });
        let (store, written) = written.await.ok()?;
        if let Err(error) = written {
            let path = vector_file::path(&self.folder);
            tracing::warn!(
                "cannot write {}: {error}; vectors of tools will be requested again after a restart",
                path.display()
            );
        }
        Some(store)
    }
}

/// Whether the tools or the states of their servers changed.
fn is_another(now: &Snapshot, next: &Snapshot) -> bool {
    !std::ptr::eq(now.tools(), next.tools()) || !now.servers().eq(next.servers())
}

/// Timeout of a request for the vector of a query. A search waits for a shorter time; a later search uses the result.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// An idle client with its settings.
type IdleClient = (Arc<EmbeddingsSettings>, EmbeddingsClient);

/// Answers queries until their sender is dropped.
pub(super) async fn answer_queries(
    embedder: Arc<QueryEmbedder>,
    mut asked: mpsc::Receiver<EmbeddingQuery>,
) {
    let mut idle: Vec<IdleClient> = Vec::new();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(client) = running.next() => idle.extend(client),
            query = asked.recv(), if running.len() < MAX_QUERIES_AT_ONCE => {
                let Some(query) = query else { return };
                idle.retain(|(settings, _)| Arc::ptr_eq(settings, &query.settings));
                running.push(answer_query(&embedder, idle.pop(), query));
            }
        }
    }
}

/// Answers a query. Returns the client if it can be reused.
async fn answer_query(
    embedder: &QueryEmbedder,
    idle: Option<IdleClient>,
    query: EmbeddingQuery,
) -> Option<IdleClient> {
    let settings = Arc::clone(&query.settings);
    let asking = async {
        let mut client = match idle {
            Some((_, client)) => client,
            None => EmbeddingsClient::of(&settings).await?,
        };
        let vectors = client.vectors(&[&*query.text], Some(query.dimensions)).await?;
        let vector = vectors.into_iter().next().ok_or_else(String::new)?;
        Ok::<_, String>((client, vector))
    };
    let result = match tokio::time::timeout(QUERY_TIMEOUT, asking).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {QUERY_TIMEOUT:?}")),
    };
    let (client, answer) = match result {
        Ok((client, vector)) => (Some((settings, client)), Ok(vector)),
        Err(why) => (None, Err(why)),
    };
    let outcome = if answer.is_ok() { RequestOutcome::Success } else { RequestOutcome::Failure };
    embedder.count(RequestKind::Query, outcome);
    query.answer(answer);
    client
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn key_is_hidden_in_debug_output_and_errors() {
        let value = authorization("s3cret-key").unwrap();
        assert_eq!(value.as_bytes(), b"Bearer s3cret-key");
        assert!(!format!("{value:?}").contains("s3cret"));
        let error = authorization("s3cret\r\nx: y").unwrap_err();
        assert!(error.contains("cannot be sent") && !error.contains("s3cret"), "{error}");
        assert!(authorization("${env:NOT_SET_ANYWHERE_7}").unwrap_err().contains("not set"));
    }
}
