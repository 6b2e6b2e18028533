//! Keeps the vectors of tools up with the catalog: what has none is asked for in the background, a few at a time, again
//! and again while the endpoint fails, and kept on disk.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;

use super::client::EmbeddingsClient;
use crate::catalog::{Catalog, Snapshot, ToolSet};
use crate::embeddings::wire::MAX_TEXTS;
use crate::embeddings::{
    EmbeddingsSettings, MeaningRoom, RequestKind, RequestOutcome, VectorKey, VectorStore,
    vector_file,
};

/// Most time for one request: a model may have to be loaded first.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// First and longest wait between two attempts that fail, before the jitter.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Changes of the catalog that come together are taken up together.
const SETTLING: Duration = Duration::from_millis(100);
/// New vectors are put to use and written after so many, and then whenever there are a quarter more: each time costs as
/// much as all that are known.
const FIRST_TAKEN_UP: usize = 256;
const TAKEN_UP_SHARE: usize = 4;

/// Keeps up until it is aborted.
pub(super) async fn keep_up(room: Arc<MeaningRoom>, catalog: Arc<Catalog>, folder: PathBuf) {
    let mut settings = room.settings();
    let folder: Arc<Path> = folder.into();
    loop {
        let now = settings.borrow_and_update().clone();
        let index = async {
            match now {
                None => std::future::pending().await,
                Some(settings) => {
                    let folder = Arc::clone(&folder);
                    let (room, catalog) = (&room, &catalog);
                    Indexing { room, catalog, folder, settings }.run().await;
                }
            }
        };
        tokio::select! {
            // Whoever could change them is gone.
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

/// What is done by one endpoint's settings.
struct Indexing<'a> {
    room: &'a MeaningRoom,
    catalog: &'a Catalog,
    folder: Arc<Path>,
    settings: Arc<EmbeddingsSettings>,
}

impl Indexing<'_> {
    /// Returns where a thread that blocks has panicked.
    async fn run(self) {
        let mut swaps = self.catalog.swaps();
        let (folder, model) = (Arc::clone(&self.folder), self.settings.model.clone());
        let read = tokio::task::spawn_blocking(move || {
            let read = vector_file::read(&folder, &model);
            read.map_or_else(|error| (VectorStore::new(&model), Some(error)), |it| (it, None))
        });
        let Ok((mut store, unusable)) = read.await else { return };
        if let Some(why) = unusable {
            self.room.file_unusable(&vector_file::path(&self.folder), &why.to_string());
        }
        loop {
            swaps.borrow_and_update();
            let snapshot = self.catalog.load();
            let Some((arranged, missing)) = self.arrange(store, &snapshot).await else { return };
            store = arranged;
            if missing.is_empty() {
                self.room.goes_on();
            } else {
                let Some(filled) = self.fill(store, &snapshot, missing, &mut swaps).await else {
                    return;
                };
                store = filled;
                // Some may have come while others were asked for.
                continue;
            }
            loop {
                // The catalog is there as long as the proxy.
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

    /// Puts to use what is known of the tools; what is not.
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
        self.room.know(store.model(), store.tools());
        Some((store, missing))
    }

    /// Asks for what is missing, until it is there or the tools are others. A batch that fails is halved: one text that the
    /// endpoint does not take keeps no other from its vector.
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
        let (mut waits, mut client) = (waits(), None);
        while let Some(Batch { texts, .. }) = batches.pop_front() {
            if let Err(why) = self.attempt(&mut client, &mut store, texts).await {
                client = None;
                self.room.lacks(left, &why);
                // The next success may be far away.
                store = self.taken_up(store, snapshot, new).await?;
                new = 0;
                let (first, second) = texts.split_at(texts.len() / 2);
                let again = |texts| Batch { texts, has_failed: true };
                if first.is_empty() {
                    batches.push_back(again(second));
                } else {
                    batches.push_front(again(second));
                    batches.push_front(again(first));
                }
                tokio::time::sleep(waits.next().unwrap_or(WAITS.1)).await;
                if swaps.has_changed().unwrap_or(true) && is_another(snapshot, &self.catalog.load())
                {
                    break;
                }
                continue;
            }
            waits = self::waits();
            left -= texts.len();
            new += texts.len();
            if !batches.iter().any(|batch| batch.has_failed) {
                self.room.goes_on();
            }
            if new >= FIRST_TAKEN_UP.max(store.len() / TAKEN_UP_SHARE) {
                store = self.taken_up(store, snapshot, new).await?;
                new = 0;
                if is_another(snapshot, &self.catalog.load()) {
                    break;
                }
            }
        }
        self.taken_up(store, snapshot, new).await
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
        self.room.count(RequestKind::Tools, outcome);
        for ((key, _), vector) in batch.iter().zip(answer?) {
            store.insert(*key, vector);
        }
        Ok(())
    }

    /// Puts to use and writes what is new.
    async fn taken_up(
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
                "{} cannot be written: {error}: the next start asks for the vectors of tools again",
                path.display()
            );
        }
        Some(store)
    }
}

fn waits() -> ExponentialBackoff {
    let (least, most) = WAITS;
    let waits = ExponentialBuilder::new().with_min_delay(least).with_max_delay(most);
    waits.without_max_times().with_jitter().build()
}

/// Whether the tools, or the servers that they are awaited from, are others.
fn is_another(now: &Snapshot, next: &Snapshot) -> bool {
    !std::ptr::eq(now.tools(), next.tools()) || !now.servers().eq(next.servers())
}
