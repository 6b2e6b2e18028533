//! Activity log: every call and decision, stored in a tamper-evident chain that loses nothing.
//!
//! ```text
//! call ── reserve ─▶ Slot ── begin, submit(Entry) ─▶ bounded queue ─▶ writer thread
//!                             redact → encode → hash chain → compress → group commit (one fsync) → chain tip
//! ```
//!
//! # How a record gets to disk and back
//!
//! 1. *Submitted.* A call copies its recorded parts into one buffer ([`Draft`]). It reserves capacity before it
//!    is sent, so the queue is bounded ([`Slot`]). A call that may change something is registered among the calls
//!    in flight until it ends ([`in_flight`]).
//! 2. *Encoded.* Every 4 ms the writer thread (`writer`) empties the queue: it redacts each entry, encodes it as a
//!    head (the fields for filters and lists) and a body (payloads), and hashes both together with the previous
//!    record ([`chain`], [`codec`]). A *block* is closed at 64 records or 32 KiB; its heads and its
//!    bodies are stored separately, each compressed by LZ4 ([`bytes`]).
//! 3. *Committed*, in groups. A batch is committed 28 ms after its first entry, as one atomic write to the store's
//!    journal. It holds the blocks, the marks of calls in flight and, for every full run of 1024 records (a *segment*),
//!    the segment's index, counters and time bounds ([`segment`]). After one `fdatasync` the chain tip is written to
//!    its own file ([`chain_tip`]). A clean stop flushes everything to tables and empties the journals, so that damage
//!    to a journal then loses nothing. While the process runs, tables and journals are compared with their checksums
//!    (`threads`).
//! 4. *Read.* A page takes a snapshot ([`view`]). Full segments are searched newest first through their index, a
//!    bitmap of 1024 bits per value of a field; the last, unfilled segment has no index and is read head by head.
//!    Only the blocks of records on the page are decompressed, bodies only if payloads are requested. Whole segments
//!    are skipped, counted and removed instead of single records, so a page costs only as much as its own records.
//!
//! # Why not the store's own compression and index
//!
//! fjall compresses the blocks of tables, but its journal and memtables hold values as given. Compressing blocks before
//! the commit, with the journal's compression off, reduced the cost of log and store per call from between 7 and 13 µs
//! to 5 µs (`benches/README.md`), most of it kernel time for file pages touched for the first time.
//!
//! fjall's only index is the order of keys. One entry per value of a record would take 8 keys of 17 bytes each,
//! 8192 per segment, inserted and later compacted and removed one by one. With postings a segment has at most 512
//! keys (8 fields, 64 buckets): a common value takes 138 bytes for 1024 records, and a unique one, such as a
//! request id, 11. Postings are written once, so they need no merging, and can be rebuilt from the records if they
//! are damaged. The slowdown of a page read through single entries was not measured.

pub mod bytes;
pub mod chain;
pub mod chain_tip;
pub mod clock;
pub mod codec;
pub mod config;
pub mod file_checksums;
mod folder;
pub mod gap;
pub mod handle;
pub mod in_flight;
pub mod keys;
pub mod live;
pub mod live_feed;
pub mod losses;
pub mod merged;
pub mod query;
pub mod record;
pub mod recover;
pub mod redact;
mod refusals;
pub mod replica;
pub mod restore;
pub mod retention;
pub mod salvage;
pub mod scan;
pub mod segment;
mod shared;
mod shares;
pub mod show;
pub mod stats;
pub mod store;
mod threads;
pub mod verify;
pub mod view;
mod writer;

pub use crate::handle::{Durable, Slot};
pub use config::{Config, Durability, OnFailure, Retention, ScrubTimes};
pub use handle::Activity;
pub use live::{Live, PORTION};
pub use live_feed::{LiveEvent, Portion, Render};
pub use query::{Filter, From, Listing, Page, Payloads};
pub use record::{
    Decision, Draft, Entry, Id, LateMember, Operation, Payload, Policy, Raw, Record, Recording,
    Source, Status, Text, Type, Verdict,
};
pub use scan::PortionLimit;
pub use shared::{Health, NotAdmitted, QueryError, Standing};
pub use stats::{Period, Summary};
pub use store::StoreError;
pub use threads::Writer;
pub use verify::{Broken, RecordFault, Report};
