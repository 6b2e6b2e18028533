//! What tools and queries mean, as vectors of a model that the operator names: `search.embeddings`.
//!
//! ```text
//! search ── query ──▶ MeaningRoom ── EmbeddingQuery ──▶ the assembly's client ──▶ endpoint
//!   ▲                   │ cache, circuit                       ▲
//!   └─ AskedMeaning ◀───┘◀──── ToolVectors ◀── VectorStore ◀───┘ in the background, when tools change
//!                                                 │
//!                                            VectorFile
//! ```
//! Owns what is asked and what an answer must be, what is kept of it in memory and on disk, and when nobody is asked.
//! Deliberately without a socket: requests are the assembly's. How meaning is fused with words is the search's.

mod key;
mod room;
mod settings;
mod store;
pub mod vector_file;
pub mod wire;

pub use key::{QUERY_CHARS, TEXT_CHARS, VectorKey, query_text, tool_text};
pub use room::{EmbeddingQuery, MAX_QUERIES_AT_ONCE, MeaningRoom, RequestKind, RequestOutcome};
pub use settings::{EmbeddingsSettings, SearchSection};
pub use store::{MAX_VECTORS, VectorStore};
