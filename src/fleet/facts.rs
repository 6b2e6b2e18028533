//! State shared by the nodes of a fleet besides the log: agent tokens, the config, decisions about tool definitions.
//! Small encrypted objects, each with one writer, that every node reads and merges; the merge is commutative,
//! associative and idempotent (a CRDT).
//!
//! ```text
//! this node's components ─▶ FactSet ─ own facts ─▶ sealed object ─▶ store
//!                             ▲  │
//!                      merge  │  └─▶ memory file, and components notified of changes
//!                             │
//! store ─▶ sealed objects of other nodes ─▶ FactReader
//! ```
//!
//! The merge (`set`), object formats (`object`), acceptance of objects (`reader`) and the read order (`selection`) are pure;
//! `exchange` performs I/O. The meaning of a fact is up to the component that uses it.

mod exchange;
mod object;
mod reader;
mod selection;
mod set;

pub use crate::config::NodeName;
pub use crate::facts::exchange::{
    END_LIMIT, FactExchange, FactExchangeSettings, FactMemory, FactStanding, FleetFacts,
    MemoryError,
};
pub use crate::facts::object::{
    FactKeys, FactObject, MAX_FACT_OBJECT_BYTES, NotFacts, NotOpened, ObjectBinding, OpenedObject,
    open_object, seal_object,
};
pub use crate::facts::reader::{FactFault, FactReader};
pub use crate::facts::selection::ListedFacts;
#[cfg(any(test, debug_assertions))]
#[doc(hidden)]
pub use crate::facts::set::scan_counter;
pub use crate::facts::set::{
    CONFIGS, ConfigFact, ConfigRun, ConfigRunState, ConfigVersion, Fact, FactKind, FactRefused,
    FactSet, FactStamp, FactState, MAX_FACT_NAME_BYTES, MAX_FACT_VALUE_BYTES, MAX_OWN_BYTES,
};
