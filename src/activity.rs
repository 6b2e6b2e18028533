//! Activity: every call and decision, kept in a log that loses nothing.
//!
//! ```text
//! call ── reserve ─▶ Slot ── begin, submit(Entry) ─▶ bounded queue ─▶ writer thread
//!                             redact → encode → chain → pack → one atomic batch → fsync → head
//! ```
//!
//! Records lie in *blocks* (one commit's records, small parts and large parts apart). Every 1024
//! sequence numbers are a *segment*; what is derived from its records (index, counters, time
//! bounds) is written once, in the batch that fills it. The last, unfilled segment has nothing
//! derived: it is read record by record, by queries and when the store is opened.

mod alternating_file;
pub mod append;
pub mod begun;
pub mod bytes;
pub mod chain_tip;
mod clock;
pub mod codec;
pub mod config;
mod copy;
mod damaged;
mod durable;
pub mod file_checksums;
mod folder;
mod forward_scan;
pub mod gap;
pub mod handle;
pub mod live;
mod lock;
pub mod lost;
mod mend;
pub mod node;
pub mod pack;
mod postings;
pub mod query;
mod read_barrier;
mod readers;
mod rebuild;
pub mod record;
pub mod recover;
pub mod redact;
pub mod retention;
pub mod salvage;
pub mod segment;
mod shared;
pub mod show;
pub mod stats;
pub mod store;
mod threads;
mod upkeep;
pub mod verify;
pub mod view;
mod writer;

pub use config::{Config, Durability, OnFailure};
pub use durable::Durable;
pub use handle::{Activity, Health, NotAdmitted, QueryError, Slot, Standing};
pub use live::{Live, LiveEvent, Portion};
pub use query::{Filter, From, Listing, Page, Payloads};
pub use record::{
    Decision, Draft, Entry, Id, Operation, Payload, Policy, Raw, Record, Source, Status, Text,
    Type, Verdict,
};
pub use stats::{Period, Summary};
pub use store::StoreError;
pub use threads::Writer;
pub use verify::{Broken, Fault, Report};
