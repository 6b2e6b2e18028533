//! Activity: every call and decision, kept in a log that loses nothing.
//!
//! ```text
//! call ── reserve ─▶ Slot ── begin, submit(Entry) ─▶ bounded queue ─▶ writer thread
//!                             redact → encode → chain → pack → one atomic batch → fsync → head
//! ```
//!
//! # How a record gets to disk and back
//!
//! 1. *Made.* A call copies what is kept of it into one buffer ([`Draft`]). It reserves room before it is
//!    sent, so the queue is bounded ([`slot`]). A call that may change something is known among those in
//!    flight until it ends (`in_flight`).
//! 2. *Encoded.* Every 4 ms the log's thread (`writer`) takes the queue in: it redacts each entry,
//!    encodes it as a head (what is filtered and shown in lists) and a body (payloads), and hashes both
//!    together with the record before ([`append`], [`codec`]). At most 64 records or 32 KiB of a batch are
//!    a *block*, of heads and of bodies apart, each packed by LZ4 ([`pack`]).
//! 3. *Committed.* 28 ms after its first entry the batch is one atomic write to the store's journal:
//!    blocks, the marks of calls in flight, and for every 1024 records that are full, a *segment*,
//!    its index, counters and time bounds ([`segment`]). One `fdatasync`; then the end of the chain
//!    goes into a file of its own ([`chain_tip`]).
//! 4. *Read.* A page takes a snapshot ([`view`]). Full segments are asked newest first through their
//!    index, as bitmaps of 1024 bits for each value of a field (`postings`); the last, unfilled segment
//!    has nothing derived and is read head by head. Only the blocks of the records on the page are
//!    unpacked, bodies only where payloads are asked for. Segments, not records, are what is
//!    skipped, counted and removed, so a page costs what it returns.
//!
//! # Why the store's own compression and index do not do
//!
//! fjall packs blocks of tables. What is synced is its journal, and what is kept until there is a table
//! is its memtable: both hold values as they are given. Blocks packed before the commit, with the
//! journal's packing off, took what log and store cost a call from 7 to 13 µs down to 5 (`benches/README.md`):
//! most of it had been the kernel's, for pages of files that nobody had touched before.
//!
//! fjall has no index but the order of keys. One entry for each value of a record would be 8 keys of 17
//! bytes for each, 8192 for a segment, inserted and later compacted and removed one by one. As postings
//! a segment has at most 512 keys (8 fields, 64 buckets): a common value takes 138 bytes for 1024
//! records, and one that only one record has, such as a request's id, 11. Being written once, they need
//! no merging, and are made anew from the records where they are damaged. How much slower a page by
//! single entries would be was not measured.

pub mod append;
pub mod begun;
pub mod bytes;
pub mod chain_tip;
pub mod chained;
mod clock;
pub mod codec;
pub mod config;
mod confirm;
mod copy;
mod damaged;
mod durable;
pub mod error;
pub mod file_checksums;
mod folder;
mod forward_scan;
pub mod gap;
pub mod handle;
pub mod health;
mod in_flight;
pub mod keys;
pub mod live;
pub mod live_feed;
mod lock;
pub mod lost;
mod mend;
pub mod merged;
pub mod node;
pub mod pack;
mod postings;
pub mod query;
mod read_barrier;
mod read_jobs;
mod readers;
mod rebuild;
pub mod record;
pub mod record_wire;
pub mod recover;
pub mod redact;
pub mod replica;
pub mod retention;
pub mod salvage;
pub mod segment;
mod shared;
pub mod show;
pub mod slot;
pub mod stats;
pub mod store;
pub mod text_search;
mod threads;
mod unfinished;
mod upkeep;
pub mod verify;
pub mod view;
mod writer;

pub use config::{Config, Durability, OnFailure, Retention};
pub use durable::Durable;
pub use error::{NotAdmitted, QueryError};
pub use forward_scan::PortionLimit;
pub use handle::Activity;
pub use health::{Health, Standing};
pub use live::{Live, PORTION};
pub use live_feed::{LiveEvent, Portion, Render};
pub use query::{Filter, From, Listing, Page, Payloads};
pub use record::{
    Decision, Draft, Entry, Id, LateMember, Operation, Payload, Policy, Raw, Record, Source,
    Status, Text, Type, Verdict,
};
pub use slot::Slot;
pub use stats::{Period, Summary};
pub use store::StoreError;
pub use threads::Writer;
pub use verify::{Broken, Fault, Report};
