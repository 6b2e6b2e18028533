//! Results that are too long for an agent: kept on disk for a while, told of in short, read in parts.
//!
//! Owns what is kept (bounded, expiring, each for the session or principal that it was given to), the outline that an
//! agent gets in the place of a result, and the parts of it that it may ask for. Which results are kept, and what is told
//! to whom, is `proxy`'s.
//!
//! ```text
//! result ─▶ Outline (map, head) ─▶ agent
//!        └▶ ResultStore (file, handle) ─▶ PartQuery ─▶ ResultPart: the bytes that stand there
//! ```

mod handle;
mod parts;
mod query;
mod readable;
mod shape;
mod store;

pub use handle::{ResultHandle, ResultId, without_handles};
pub use parts::{NoPart, ResultPart, part};
pub use query::{BadPartQuery, MAX_PART_BYTES, PART_BYTES, PartQuery, Selection};
pub use shape::Outline;
pub use store::{KeepTerms, KeptResult, NotKept, ResultOwner, ResultStore, StoreBounds, clean};

/// The last place at which `text` can be cut so that at most `at` bytes come before it.
fn cut_before(text: &str, at: usize) -> usize {
    let mut cut = at.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    cut
}
