//! What one activity record is: what a call hands over ([`Entry`]), and what is kept ([`Record`]). Pure.
//!
//! Deliberately without clock, store or encoding: ids and times come in as arguments, the bytes
//! on disk belong to `codec`, the JSON to `show`, and what must not be kept is taken out by
//! `redact`.

mod draft;
mod entry;
mod id;
mod late_member;
mod payload;
mod stored;
mod vocabulary;

pub use self::draft::{Draft, MAX_ERROR_BYTES, MAX_METADATA_BYTES, MAX_NAME_BYTES, Raw, Text};
pub use self::entry::{Decision, Entry, decision_metadata};
pub use self::id::{Hash, Id, NodeId};
pub use self::late_member::{LateMember, with_member};
pub use self::payload::{Payload, PayloadRef};
pub use self::stored::{Body, Head, HeadRef, ReadBody, Record};
pub(crate) use self::vocabulary::words;
pub use self::vocabulary::{Operation, Policy, Source, Status, Type, Verdict};
