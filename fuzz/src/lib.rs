//! Bodies of the fuzz targets: each takes the fuzzer's bytes and panics if a property is violated.
//!
//! They are a library so that `tests/fuzz_seeds.rs` can run the same code on the seeds.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is how a fuzz target reports"
)]

pub mod accept;
pub mod answers;
pub mod arguments;
pub mod envelope;
pub mod framing;
pub mod grow;
pub mod guard;
pub mod headers;
pub mod intent;
pub mod journal;
pub mod kept;
pub mod ledger;
pub mod lines;
pub mod members;
pub mod peers;
pub mod record;
pub mod reference;
pub mod results;
pub mod router;
pub mod scan;
pub mod sessions;
pub mod signature;
pub mod splice;
pub mod sse;
pub mod tickets;
pub mod uris;
pub mod validate;
