//! Embeddings of queries for searches: cached, limited in time and number, and protected by a circuit breaker.
//!
//! ```text
//! query ─┬─ embeddings off, no tool vectors, or circuit open ─▶ words alone
//!        ├─ cached ─▶ vector
//!        └─ EmbeddingQuery ─▶ the client ─┬─ in time ─▶ vector, cached
//!                                         └─ late or failed ─▶ words alone; consecutive failures open the circuit
//! ```
//!
//! A late vector is cached too, because the first request may be the one that loads the model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::{mpsc, oneshot, watch};

use super::EmbeddingsSettings;
use super::store::query_text;
use crate::search::{QueryMeaning, ToolVectors, UnitVector};
use mcpproxy_policy::limits::{Breaker, BreakerChange, BreakerConfig, ServerOutcome};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Maximum number of concurrent requests for queries. Further searches use only words.
pub const MAX_QUERIES_AT_ONCE: usize = 4;

/// Maximum number of cached query vectors.
const MAX_QUERIES_KEPT: usize = 500;

/// Circuit breaker for query requests.
const CIRCUIT: BreakerConfig = BreakerConfig { failures: 3, open: Duration::from_secs(30) };

/// Name of the peer in log lines about the endpoint.
const ENDPOINT: LinePeer<'_> = LinePeer::Part("embeddings");

/// Consequence named in log lines.
const BY_WORDS: &str = "tools are searched by words alone";

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The vector of a query, for which a search waits.
    Query,
    /// Vectors of tools, in the background.
    Tools,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    Success,
    Failure,
}

impl RequestKind {
    pub const ALL: [Self; 2] = [Self::Query, Self::Tools];

    /// Name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Tools => "tools",
        }
    }
}

impl RequestOutcome {
    /// All outcomes.
    pub const ALL: [Self; 2] = [Self::Success, Self::Failure];

    /// Name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// A query to be embedded.
#[derive(Debug)]
pub struct EmbeddingQuery {
    pub text: Arc<str>,
    pub settings: Arc<EmbeddingsSettings>,
    /// Dimensions of the tools' vectors.
    pub dimensions: usize,
    answer: oneshot::Sender<Result<Arc<UnitVector>, String>>,
    model: Arc<ModelState>,
}

impl EmbeddingQuery {
    /// Delivers the result and caches a vector for later searches.
    pub fn answer(self, result: Result<UnitVector, String>) {
        let result = result.map(Arc::new);
        if let Ok(vector) = &result {
            self.model.queries.insert(self.text, Arc::clone(vector));
        }
        // The search may have continued without the result.
        let _ = self.answer.send(result);
    }
}

/// State of the model that is in force.
#[derive(Debug)]
struct ModelState {
    tools: ArcSwap<ToolVectors>,
    queries: Cache<Arc<str>, Arc<UnitVector>>,
    circuit: Arc<Breaker>,
}

impl ModelState {
    fn new(tools: Arc<ToolVectors>) -> Self {
        Self {
            tools: ArcSwap::new(tools),
            queries: Cache::new(MAX_QUERIES_KEPT),
            circuit: Arc::new(Breaker::new("search.embeddings".into(), CIRCUIT)),
        }
    }
}

#[derive(Debug)]
struct InForce {
    settings: Arc<EmbeddingsSettings>,
    model: Arc<ModelState>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Reason why queries are not embedded, if any.
    queries: Option<String>,
    tools: Option<String>,
}

/// Embeds queries for searches.
#[derive(Debug)]
pub struct QueryEmbedder {
    in_force: ArcSwapOption<InForce>,
    settings: watch::Sender<Option<Arc<EmbeddingsSettings>>>,
    asks: mpsc::Sender<EmbeddingQuery>,
    trouble: Mutex<Faults>,
    requests: [[AtomicU64; RequestOutcome::ALL.len()]; RequestKind::ALL.len()],
}

impl QueryEmbedder {
    /// Creates an embedder and the receiver of its requests.
    pub fn new(settings: Option<&EmbeddingsSettings>) -> (Self, mpsc::Receiver<EmbeddingQuery>) {
        let (asks, asked) = mpsc::channel(MAX_QUERIES_AT_ONCE);
        let embedder = Self {
            in_force: ArcSwapOption::empty(),
            settings: watch::Sender::new(None),
            asks,
            trouble: Mutex::default(),
            requests: Default::default(),
        };
        embedder.change(settings);
        (embedder, asked)
    }

    /// Applies new settings. Tool vectors are kept if the model is unchanged.
    pub fn change(&self, settings: Option<&EmbeddingsSettings>) {
        let now = self.in_force.load_full();
        if now.as_ref().map(|now| &*now.settings) == settings {
            return;
        }
        let next = settings.map(|settings| {
            let same = now.filter(|now| now.settings.model == settings.model);
            let known = same.map(|now| now.model.tools.load_full()).unwrap_or_default();
            let model = Arc::new(ModelState::new(known));
            Arc::new(InForce { settings: Arc::new(settings.clone()), model })
        });
        *self.trouble.lock() = Faults::default();
        self.settings.send_replace(next.as_ref().map(|next| Arc::clone(&next.settings)));
        self.in_force.store(next);
    }

    /// Settings in force, for the task that embeds tools.
    pub fn settings(&self) -> watch::Receiver<Option<Arc<EmbeddingsSettings>>> {
        self.settings.subscribe()
    }

    /// Embeds `query`; `None` if the search uses only words. Waits for at most the configured time.
    pub async fn meaning(&self, query: &str) -> Option<QueryMeaning> {
        let now = self.in_force.load_full()?;
        let InForce { settings, model } = &*now;
        let tools = model.tools.load_full();
        if tools.is_empty() {
            return None;
        }
        let text = query_text(query)?;
        let min = settings.min_similarity;
        if let Some(query) = model.queries.get(text) {
            return Some(QueryMeaning { query, tools, min });
        }
        let pass = model.circuit.pass(Instant::now()).ok()?;
        let (answer, answered) = oneshot::channel();
        let asked = EmbeddingQuery {
            text: text.into(),
            settings: Arc::clone(settings),
            dimensions: tools.dimensions(),
            answer,
            model: Arc::clone(model),
        };
        self.asks.try_send(asked).ok()?;
        let result = match tokio::time::timeout(settings.timeout, answered).await {
            Ok(Ok(result)) => result,
            // The proxy is shutting down.
            Ok(Err(_)) => return None,
            Err(_) => Err(format!("no answer within {:?}", settings.timeout)),
        };
        let outcome = match &result {
            Ok(_) => ServerOutcome::Answered,
            Err(_) => ServerOutcome::Failed,
        };
        let change = pass.report(outcome, Instant::now());
        self.note(change, result.as_ref().err());
        Some(QueryMeaning { query: result.ok()?, tools, min })
    }

    fn note(&self, change: Option<BreakerChange>, why: Option<&String>) {
        let why = why.map_or("", |why| why);
        match change {
            None if why.is_empty() => {}
            None => {
                tracing::debug!(%why, "embedding a query failed")
            }
            Some(BreakerChange::Opened { open, .. }) => {
                let message =
                    format!("search.embeddings: {why}; {BY_WORDS}, tried again every {open:?}");
                let last = self.trouble.lock().queries.replace(message);
                if last.is_none() {
                    peer_line!(warn, ENDPOINT, %why, "embeddings endpoint failing: {BY_WORDS} until it recovers");
                }
            }
            Some(BreakerChange::Closed) => {
                self.trouble.lock().queries = None;
                peer_line!(info, ENDPOINT, "embeddings endpoint recovered");
            }
        }
    }

    /// Sets the tool vectors made by `model`; they are ignored if that model is not in force.
    pub fn set_tool_vectors(&self, model: &str, tools: &Arc<ToolVectors>) {
        if let Some(now) = self.in_force.load().as_ref().filter(|now| now.settings.model == *model)
        {
            now.model.tools.store(Arc::clone(tools));
        }
    }

    /// Reports tools without vectors. A failure is logged once until recovery.
    pub fn report_missing(&self, tools: usize, why: &str) {
        let message = format!("search.embeddings: {tools} tools have no vectors yet: {why}");
        if self.trouble.lock().tools.replace(message).is_none() {
            peer_line!(warn, ENDPOINT, tools, %why, "embedding tools failed: they are found by words alone");
        }
    }

    /// Reports progress after tool vectors were missing.
    pub fn report_progress(&self) {
        if self.trouble.lock().tools.take().is_some() {
            peer_line!(info, ENDPOINT, "embedding tools recovered");
        }
    }

    /// Logs that a vector file is not used.
    pub fn file_unusable(&self, path: &Path, why: &str) {
        peer_line!(warn, ENDPOINT, "{} {why}: the tools are embedded again", path.display());
    }

    pub fn count(&self, kind: RequestKind, outcome: RequestOutcome) {
        if let Some(count) =
            self.requests.get(kind as usize).and_then(|it| it.get(outcome as usize))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of requests since the start.
    pub fn requests(&self, kind: RequestKind, outcome: RequestOutcome) -> u64 {
        let count = self.requests.get(kind as usize).and_then(|it| it.get(outcome as usize));
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Current faults, one line each.
    pub fn faults(&self) -> Vec<String> {
        let Faults { queries, tools } = &*self.trouble.lock();
        queries.iter().chain(tools).cloned().collect()
    }

    /// Number of tools with vectors, and whether queries are embedded; `None` if embeddings are off.
    pub fn state(&self) -> Option<(usize, bool)> {
        let now = self.in_force.load();
        let tools = now.as_ref()?.model.tools.load().len();
        Some((tools, self.trouble.lock().queries.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_policy::tool::{Annotations, Rules, Tool, ToolName};

    fn settings(model: &str) -> EmbeddingsSettings {
        let json = serde_json::json!({"url": "http://c", "model": model, "timeout": "10ms"});
        serde_json::from_value(json).unwrap()
    }

    fn vectors() -> Arc<ToolVectors> {
        let name = ToolName { server: "s".into(), tool: "t".into() };
        let tool = Arc::new(Tool::named(name, Annotations::default(), &Rules::default()));
        Arc::new(ToolVectors::of([(tool, &[1.0, 0.0][..])]))
    }

    fn unit() -> UnitVector {
        UnitVector::of(vec![0.0, 1.0]).unwrap()
    }

    #[tokio::test]
    async fn query_is_not_embedded_without_tool_vectors() {
        let (embedder, mut asked) = QueryEmbedder::new(None);
        assert!(embedder.meaning("what").await.is_none());
        embedder.change(Some(&settings("m")));
        assert!(embedder.meaning("what").await.is_none(), "no tool has a vector");
        embedder.set_tool_vectors("another", &vectors());
        assert!(embedder.meaning("what").await.is_none());
        embedder.set_tool_vectors("m", &vectors());
        assert!(embedder.meaning("  ").await.is_none(), "the query is empty");
        assert!(asked.try_recv().is_err());
        assert_eq!(embedder.state(), Some((1, true)));
        embedder.change(None);
        assert_eq!(embedder.state(), None);
    }

    #[tokio::test]
    async fn query_is_embedded_once_and_late_result_is_cached() {
        let (embedder, mut asked) = QueryEmbedder::new(Some(&settings("m")));
        embedder.set_tool_vectors("m", &vectors());
        assert!(embedder.meaning("what").await.is_none(), "no vector arrives in time");
        let late = asked.try_recv().unwrap();
        assert_eq!((&*late.text, late.dimensions), ("what", 2));
        late.answer(Ok(unit()));
        let meaning = embedder.meaning(" what ").await.unwrap();
        assert_eq!(meaning.query.numbers(), [0.0, 1.0]);
        assert!(asked.try_recv().is_err(), "the vector is cached");
        let mut other = settings("m");
        other.min_similarity = 0.5;
        embedder.change(Some(&other));
        let (meaning, ()) = tokio::join!(embedder.meaning("what"), async {
            asked.recv().await.unwrap().answer(Ok(unit()));
        });
        assert_eq!(meaning.unwrap().min, 0.5, "the tool vectors are kept");
        embedder.change(Some(&settings("n")));
        assert_eq!(embedder.state(), Some((0, true)), "another model");
    }

    // Covers EMB-2.
    #[tokio::test]
    async fn consecutive_failures_open_the_circuit_and_log_once() {
        let (embedder, mut asked) = QueryEmbedder::new(Some(&settings("m")));
        embedder.set_tool_vectors("m", &vectors());
        for at in 0..10 {
            assert!(embedder.meaning(&format!("q{at}")).await.is_none());
            while let Ok(query) = asked.try_recv() {
                assert!(at < 3, "the circuit is open");
                query.answer(Err("it is no endpoint".to_owned()));
            }
        }
        let faults = embedder.faults();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("no answer within 10ms") && faults[0].contains(BY_WORDS));
        assert_eq!(embedder.state(), Some((1, false)));
        embedder.report_missing(7, "500 Internal Server Error");
        assert!(embedder.faults()[1].contains("7 tools have no vectors yet: 500"));
        embedder.report_progress();
        assert_eq!(embedder.faults(), faults);
        let mut other = settings("m");
        other.timeout = Duration::from_millis(20);
        embedder.change(Some(&other));
        assert_eq!(embedder.faults(), [""; 0], "new settings are tried immediately");
    }

    #[tokio::test]
    async fn searches_beyond_the_request_limit_use_only_words() {
        let (embedder, asked) = QueryEmbedder::new(Some(&settings("m")));
        embedder.set_tool_vectors("m", &vectors());
        let searches = (0..20).map(|at| {
            let embedder = &embedder;
            async move { embedder.meaning(&format!("q{at}")).await }
        });
        let found = futures_util::future::join_all(searches).await;
        assert!(found.iter().all(Option::is_none));
        assert_eq!(asked.len(), MAX_QUERIES_AT_ONCE);
    }
}
