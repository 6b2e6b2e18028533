//! Embeddings of the tools and questions of the golden set, requested from an endpoint in the same way as by the proxy.

use std::collections::HashMap;
use std::sync::Arc;

use mcpproxy_catalog::embeddings::wire::MAX_TEXTS;
use mcpproxy_catalog::embeddings::{EmbeddingsSettings, VectorKey, VectorStore, query_text};
use mcpproxy_catalog::search::{QueryMeaning, ToolVectors, UnitVector};
use mcpproxy_policy::tool::Tool;
use mcpproxy_server::EmbeddingsClient;

const MODEL: &str = "all-MiniLM-L6-v2";

/// The vectors of all tools and questions.
pub(crate) struct Meanings {
    tools: Vec<(VectorKey, UnitVector)>,
    questions: HashMap<String, Arc<UnitVector>>,
    min: f32,
}

impl Meanings {
    /// Requests the vectors from the endpoint at `url`.
    pub(crate) fn ask(url: &str, tools: &[Arc<Tool>], questions: &[&str]) -> Result<Self, String> {
        let settings = serde_json::json!({"url": url, "model": MODEL});
        let settings: EmbeddingsSettings =
            serde_json::from_value(settings).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let mut client = EmbeddingsClient::of(&settings).await?;
            let mut of_tools = Vec::new();
            let missing = VectorStore::new(MODEL).arrange(tools, true);
            for batch in missing.chunks(MAX_TEXTS) {
                let (keys, texts): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
                of_tools.extend(keys.into_iter().zip(client.vectors(&texts, None).await?));
            }
            let mut of_questions = HashMap::new();
            for batch in questions.chunks(MAX_TEXTS) {
                let texts: Vec<&str> = batch.iter().filter_map(|text| query_text(text)).collect();
                let vectors = client.vectors(&texts, None).await?.into_iter().map(Arc::new);
                of_questions.extend(texts.iter().map(|text| (*text).to_owned()).zip(vectors));
            }
            let min = settings.min_similarity;
            Ok(Self { tools: of_tools, questions: of_questions, min })
        })
    }

    /// The vectors of `tools`.
    pub(crate) fn of_tools(&self, tools: &[Arc<Tool>]) -> Arc<ToolVectors> {
        let mut store = VectorStore::new(MODEL);
        for (key, vector) in &self.tools {
            store.insert(*key, vector.clone());
        }
        store.arrange(tools, true);
        Arc::clone(store.tools())
    }

    /// The vector of a question, to be compared with those of `tools`.
    pub(crate) fn asked(&self, query: &str, tools: Arc<ToolVectors>) -> Option<QueryMeaning> {
        let query = Arc::clone(self.questions.get(query_text(query)?)?);
        Some(QueryMeaning { query, tools, min: self.min })
    }
}
