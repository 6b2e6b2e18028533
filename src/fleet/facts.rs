//! What the nodes of a fleet share beside the log: agent tokens, the config, decisions about definitions. Small objects in the
//! store, each with one writer, that every node reads and merges by a rule that gives each the same answer in whatever order.
//!
//! ```text
//! this node's parts ─▶ FactSet ─ its own facts ─▶ sealed object ─▶ store
//!                        ▲  │
//!                 merge  │  └─▶ memory (a file) and whoever is told of changes
//!                        │
//! store ─▶ sealed objects of the others ─▶ FactReader
//! ```
//!
//! What a fact is and how two of them merge is pure (`fact_set`), and so is what is believed of the store (`fact_reader`), whose
//! objects are read when (`fact_turns`), and what a node says (`fact_saying`), also again for others (`fact_relay`);
//! `exchange` alone acts. What a fact means to a part of the proxy is the assembly's.

mod config_fact;
mod exchange;
mod fact_memory;
mod fact_object;
mod fact_reader;
mod fact_relay;
mod fact_saying;
mod fact_set;
mod fact_standing;
mod fact_turns;
mod sealed_object;

pub use super::config::NodeName;
pub use config_fact::{CONFIGS, ConfigFact, ConfigRun, ConfigRunState, ConfigVersion};
pub use exchange::{END_LIMIT, FactExchange, FactExchangeSettings, FleetFacts};
pub use fact_memory::{FactMemory, MemoryError};
pub use fact_object::{FactObject, MAX_FACT_OBJECT_BYTES, NotFacts};
pub use fact_reader::{FactFault, FactReader};
#[cfg(test)]
pub(crate) use fact_set::walked;
pub use fact_set::{
    Fact, FactKind, FactRefused, FactSet, FactStamp, FactState, MAX_FACT_NAME_BYTES,
    MAX_FACT_VALUE_BYTES, MAX_OWN_BYTES,
};
pub use fact_standing::FactStanding;
pub use fact_turns::ListedFacts;
pub use sealed_object::{FactKeys, NotOpened, ObjectPlace, OpenedObject, open_object, seal_object};
