//! Where a search asks what its query means, and who is asked for that: bounded in time, number and memory.
//!
//! ```text
//! query ─┬─ nobody makes vectors, no tool has one, or the circuit is open ─▶ by words alone
//!        ├─ asked for lately ─▶ its vector
//!        └─ EmbeddingQuery ─▶ the client ─┬─ in time ─▶ its vector, kept for the next time
//!                                         └─ late, or none ─▶ by words alone; after some in a row the circuit opens
//! ```
//! A vector that comes late is kept too: the first request may be the one that loads the model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::{mpsc, oneshot, watch};

use super::key::query_text;
use super::settings::EmbeddingsSettings;
use crate::catalog::search::{AskedMeaning, ToolVectors, UnitVector};
use crate::policy::limits::{Breaker, BreakerChange, BreakerConfig, ServerOutcome};

/// Most requests for queries at a time. Searches beside them go by words alone.
pub const MAX_QUERIES_AT_ONCE: usize = 4;

/// Vectors of queries that are kept.
const MAX_QUERIES_KEPT: usize = 500;

/// After so many failures in a row nobody is asked, and for how long.
const CIRCUIT: BreakerConfig = BreakerConfig { failures: 3, open: Duration::from_secs(30) };

/// What is said of searches without meaning.
const BY_WORDS: &str = "tools are searched by words alone";

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The vector of a query, while a search waits.
    Query,
    /// Vectors of tools, in the background.
    Tools,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// With vectors.
    Success,
    /// Without.
    Failure,
}

impl RequestKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Query, Self::Tools];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Tools => "tools",
        }
    }
}

impl RequestOutcome {
    /// Every outcome.
    pub const ALL: [Self; 2] = [Self::Success, Self::Failure];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// A query whose vector is wanted.
#[derive(Debug)]
pub struct EmbeddingQuery {
    /// Its text.
    pub text: Arc<str>,
    /// Who is asked.
    pub settings: Arc<EmbeddingsSettings>,
    /// The dimensions of the tools' vectors.
    pub dimensions: usize,
    answer: oneshot::Sender<Result<Arc<UnitVector>, String>>,
    model: Arc<ModelState>,
}

impl EmbeddingQuery {
    /// Answers it: whoever asked has the vector, or why there is none, and the next who asks has it too.
    pub fn answer(self, result: Result<UnitVector, String>) {
        let result = result.map(Arc::new);
        if let Ok(vector) = &result {
            self.model.queries.insert(self.text, Arc::clone(vector));
        }
        // Whoever asked may have gone on without it.
        let _ = self.answer.send(result);
    }
}

/// What is known of the model in force.
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

/// What is wrong, as it is told.
#[derive(Debug, Default)]
struct Trouble {
    /// Why nobody is asked for queries.
    queries: Option<String>,
    /// Why some tools have no vectors.
    tools: Option<String>,
}

/// Where what a query means is asked.
#[derive(Debug)]
pub struct MeaningRoom {
    in_force: ArcSwapOption<InForce>,
    settings: watch::Sender<Option<Arc<EmbeddingsSettings>>>,
    asks: mpsc::Sender<EmbeddingQuery>,
    trouble: Mutex<Trouble>,
    requests: [[AtomicU64; RequestOutcome::ALL.len()]; RequestKind::ALL.len()],
}

impl MeaningRoom {
    /// One by these settings, and where it asks.
    #[must_use]
    pub fn new(settings: Option<&EmbeddingsSettings>) -> (Self, mpsc::Receiver<EmbeddingQuery>) {
        let (asks, asked) = mpsc::channel(MAX_QUERIES_AT_ONCE);
        let room = Self {
            in_force: ArcSwapOption::empty(),
            settings: watch::Sender::new(None),
            asks,
            trouble: Mutex::default(),
            requests: Default::default(),
        };
        room.change(settings);
        (room, asked)
    }

    /// Who makes the vectors, from now on. What is known of a model stays as long as it is the same.
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
        *self.trouble.lock() = Trouble::default();
        self.settings.send_replace(next.as_ref().map(|next| Arc::clone(&next.settings)));
        self.in_force.store(next);
    }

    /// The settings in force, for whoever makes the tools' vectors.
    #[must_use]
    pub fn settings(&self) -> watch::Receiver<Option<Arc<EmbeddingsSettings>>> {
        self.settings.subscribe()
    }

    /// What `query` means, beside the tools; `None` where tools are to be searched by words alone. Waits for the time that
    /// the config allows, at most.
    pub async fn meaning(&self, query: &str) -> Option<AskedMeaning> {
        let now = self.in_force.load_full()?;
        let InForce { settings, model } = &*now;
        let tools = model.tools.load_full();
        if tools.is_empty() {
            return None;
        }
        let text = query_text(query)?;
        let least = settings.min_similarity;
        if let Some(query) = model.queries.get(text) {
            return Some(AskedMeaning { query, tools, least });
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
            // Nobody answers any more: the proxy ends.
            Ok(Err(_)) => return None,
            Err(_) => Err(format!("no answer within {:?}", settings.timeout)),
        };
        let outcome = match &result {
            Ok(_) => ServerOutcome::Answered,
            Err(_) => ServerOutcome::Failed,
        };
        let change = pass.told(outcome, Instant::now());
        self.note(change, result.as_ref().err());
        Some(AskedMeaning { query: result.ok()?, tools, least })
    }

    fn note(&self, change: Option<BreakerChange>, why: Option<&String>) {
        let why = why.map_or("", |why| why);
        match change {
            None if why.is_empty() => {}
            None => {
                tracing::debug!(%why, "the embeddings endpoint does not say what a query means")
            }
            Some(BreakerChange::Opened { open, .. }) => {
                let told =
                    format!("search.embeddings: {why}; {BY_WORDS}, tried again every {open:?}");
                let last = self.trouble.lock().queries.replace(told);
                if last.is_none() {
                    tracing::warn!(%why, "the embeddings endpoint fails: {BY_WORDS} until it answers");
                }
            }
            Some(BreakerChange::Closed) => {
                self.trouble.lock().queries = None;
                tracing::info!("the embeddings endpoint answers again");
            }
        }
    }

    /// These are the vectors of the tools by `model`; none are taken of one that is not in force any more.
    pub fn know(&self, model: &str, tools: &Arc<ToolVectors>) {
        if let Some(now) = self.in_force.load().as_ref().filter(|now| now.settings.model == *model)
        {
            now.model.tools.store(Arc::clone(tools));
        }
    }

    /// So many tools have no vectors, for that reason; told once, until it is mended.
    pub fn lacks(&self, tools: usize, why: &str) {
        let told = format!("search.embeddings: {tools} tools have no vectors yet: {why}");
        if self.trouble.lock().tools.replace(told).is_none() {
            tracing::warn!(tools, %why, "the embeddings endpoint gives no vectors of tools: they are found by words alone");
        }
    }

    /// All tools have vectors that can have them, or more of them than before.
    pub fn goes_on(&self) {
        if self.trouble.lock().tools.take().is_some() {
            tracing::info!("the embeddings endpoint gives vectors of tools again");
        }
    }

    /// A file of vectors is not used.
    pub fn file_unusable(&self, path: &Path, why: &str) {
        tracing::warn!("{} {why}: the vectors of tools are asked for again", path.display());
    }

    /// Counts a request.
    pub fn count(&self, kind: RequestKind, outcome: RequestOutcome) {
        if let Some(count) =
            self.requests.get(kind as usize).and_then(|it| it.get(outcome as usize))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests since the start.
    #[must_use]
    pub fn requests(&self, kind: RequestKind, outcome: RequestOutcome) -> u64 {
        let count = self.requests.get(kind as usize).and_then(|it| it.get(outcome as usize));
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// What is wrong, each in one line; nothing where nobody makes vectors.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let Trouble { queries, tools } = &*self.trouble.lock();
        queries.iter().chain(tools).cloned().collect()
    }

    /// How many tools have vectors, and whether queries are asked for; `None` where nobody makes vectors.
    #[must_use]
    pub fn state(&self) -> Option<(usize, bool)> {
        let now = self.in_force.load();
        let tools = now.as_ref()?.model.tools.load().len();
        Some((tools, self.trouble.lock().queries.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, Rules, Tool, ToolName};

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
    async fn nobody_is_asked_where_there_is_nothing_to_compare_with() {
        let (room, mut asked) = MeaningRoom::new(None);
        assert!(room.meaning("what").await.is_none());
        room.change(Some(&settings("m")));
        assert!(room.meaning("what").await.is_none(), "no tool has a vector");
        room.know("another", &vectors());
        assert!(room.meaning("what").await.is_none());
        room.know("m", &vectors());
        assert!(room.meaning("  ").await.is_none(), "nothing is asked");
        assert!(asked.try_recv().is_err());
        assert_eq!(room.state(), Some((1, true)));
        room.change(None);
        assert_eq!(room.state(), None);
    }

    #[tokio::test]
    async fn a_query_is_asked_once_and_what_comes_late_is_kept() {
        let (room, mut asked) = MeaningRoom::new(Some(&settings("m")));
        room.know("m", &vectors());
        assert!(room.meaning("what").await.is_none(), "nobody answers in time");
        let late = asked.try_recv().unwrap();
        assert_eq!((&*late.text, late.dimensions), ("what", 2));
        late.answer(Ok(unit()));
        let meaning = room.meaning(" what ").await.unwrap();
        assert_eq!(meaning.query.numbers(), [0.0, 1.0]);
        assert!(asked.try_recv().is_err(), "it is known");
        let mut other = settings("m");
        other.min_similarity = 0.5;
        room.change(Some(&other));
        let (meaning, ()) = tokio::join!(room.meaning("what"), async {
            asked.recv().await.unwrap().answer(Ok(unit()));
        });
        assert_eq!(meaning.unwrap().least, 0.5, "the tools' vectors stayed");
        room.change(Some(&settings("n")));
        assert_eq!(room.state(), Some((0, true)), "another model");
    }

    #[tokio::test]
    async fn after_failures_in_a_row_nobody_is_asked_and_that_is_told_once() {
        let (room, mut asked) = MeaningRoom::new(Some(&settings("m")));
        room.know("m", &vectors());
        for at in 0..10 {
            assert!(room.meaning(&format!("q{at}")).await.is_none());
            while let Ok(query) = asked.try_recv() {
                assert!(at < 3, "the circuit is open");
                query.answer(Err("it is no endpoint".to_owned()));
            }
        }
        let faults = room.faults();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("no answer within 10ms") && faults[0].contains(BY_WORDS));
        assert_eq!(room.state(), Some((1, false)));
        room.lacks(7, "500 Internal Server Error");
        assert!(room.faults()[1].contains("7 tools have no vectors yet: 500"));
        room.goes_on();
        assert_eq!(room.faults(), faults);
        let mut other = settings("m");
        other.timeout = Duration::from_millis(20);
        room.change(Some(&other));
        assert_eq!(room.faults(), [""; 0], "other settings are tried at once");
    }

    #[tokio::test]
    async fn searches_beside_those_that_ask_go_by_words() {
        let (room, asked) = MeaningRoom::new(Some(&settings("m")));
        room.know("m", &vectors());
        let searches = (0..20).map(|at| {
            let room = &room;
            async move { room.meaning(&format!("q{at}")).await }
        });
        let found = futures_util::future::join_all(searches).await;
        assert!(found.iter().all(Option::is_none));
        assert_eq!(asked.len(), MAX_QUERIES_AT_ONCE);
    }
}
