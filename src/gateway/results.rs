//! Results too long for an agent: kept on disk for a limited time, summarized in an outline, and read in parts.
//!
//! This module owns the store (bounded, expiring, each entry bound to a session or principal), the outline that
//! replaces a result for the agent, and the parts that the agent may request. `proxy` decides which results are kept.
//!
//! ```text
//! result ─▶ Outline (map, head) ─▶ agent
//!        └▶ ResultStore (file, handle) ─▶ PartQuery ─▶ ResultPart: a slice of the original bytes
//! ```

mod handle;
mod outline;
mod parts;
mod store;

pub use handle::{ResultHandle, ResultId, without_handles};
pub use outline::Outline;
pub use parts::{BadPartQuery, MAX_PART_BYTES, PART_BYTES, PartQuery, Selection};
pub use parts::{NoPart, ResultPart, part};
pub use store::{KeepTerms, KeptResult, NotKept, ResultOwner, ResultStore, StoreBounds, clean};

/// Largest index up to `at` that is a character boundary of `text`.
fn cut_before(text: &str, at: usize) -> usize {
    let mut cut = at.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    cut
}
