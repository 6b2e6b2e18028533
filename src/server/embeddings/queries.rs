//! Asks for the vectors of queries: a few at a time, each over a connection of its own, which the next one goes on with.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::client::EmbeddingsClient;
use crate::embeddings::{
    EmbeddingQuery, EmbeddingsSettings, MAX_QUERIES_AT_ONCE, MeaningRoom, RequestKind,
    RequestOutcome,
};

/// Most time for a request. A search waits for less; the next one finds what comes after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client and what it was made of.
type IdleClient = (Arc<EmbeddingsSettings>, EmbeddingsClient);

/// Answers queries until nobody asks any more.
pub(super) async fn answer_all(room: Arc<MeaningRoom>, mut asked: mpsc::Receiver<EmbeddingQuery>) {
    let mut idle: Vec<IdleClient> = Vec::new();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(client) = running.next() => idle.extend(client),
            query = asked.recv(), if running.len() < MAX_QUERIES_AT_ONCE => {
                let Some(query) = query else { return };
                idle.retain(|(settings, _)| Arc::ptr_eq(settings, &query.settings));
                running.push(answer(&room, idle.pop(), query));
            }
        }
    }
}

/// Answers one; the client, if it can be used again.
async fn answer(
    room: &MeaningRoom,
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
    let result = match tokio::time::timeout(PATIENCE, asking).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    };
    let (client, answer) = match result {
        Ok((client, vector)) => (Some((settings, client)), Ok(vector)),
        Err(why) => (None, Err(why)),
    };
    let outcome = if answer.is_ok() { RequestOutcome::Success } else { RequestOutcome::Failure };
    room.count(RequestKind::Query, outcome);
    query.answer(answer);
    client
}
