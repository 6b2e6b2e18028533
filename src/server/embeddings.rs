//! Asks the endpoint of `search.embeddings` for vectors: of queries, while searches wait, and of tools, in the background.
//!
//! Two tasks, so that no query waits behind all tools. What an answer must be and what is kept of it is
//! [`embeddings`](crate::embeddings)'.

mod client;
mod indexing;
mod queries;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use self::client::EmbeddingsClient;
use crate::catalog::Catalog;
use crate::embeddings::{EmbeddingQuery, MeaningRoom};

/// The tasks, while the proxy runs.
#[derive(Debug)]
pub(super) struct EmbeddingTasks([JoinHandle<()>; 2]);

impl EmbeddingTasks {
    /// Starts to ask for what is wanted, once the config names an endpoint. Vectors of tools are kept in `folder`.
    pub(super) fn start(
        room: &Arc<MeaningRoom>,
        asked: mpsc::Receiver<EmbeddingQuery>,
        catalog: &Arc<Catalog>,
        folder: PathBuf,
        control: &Runtime,
    ) -> Self {
        let queries = queries::answer_all(Arc::clone(room), asked);
        let indexing = indexing::keep_up(Arc::clone(room), Arc::clone(catalog), folder);
        Self([control.spawn(queries), control.spawn(indexing)])
    }

    /// Ends them. What was not asked for yet is asked for after the next start.
    pub(super) fn end(self) {
        for task in self.0 {
            task.abort();
        }
    }
}
