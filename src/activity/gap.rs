//! Gaps: records that are lost, and the record that says so (ACT-2, ACT-9). Pure.
//!
//! Lost records that had numbers leave a hole in the chain: the record that says so names the hole
//! and the hash that the record behind it follows, so that the chain is verified on both sides.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::record::{Body, Draft, Hash, Raw, Source, Status, Text, Type};

/// Records that are lost, with their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gap {
    /// The first of them.
    pub first_lost_seq: u64,
    /// The last of them.
    pub last_lost_seq: u64,
    /// The hash that the record behind them follows.
    pub follows_hash: String,
}

impl Gap {
    /// A hole from one record to another.
    #[must_use]
    pub fn new(first_lost_seq: u64, last_lost_seq: u64, follows: Hash) -> Self {
        Self { first_lost_seq, last_lost_seq, follows_hash: follows.to_string() }
    }

    /// How many records are lost.
    #[must_use]
    pub fn records(&self) -> u64 {
        (self.last_lost_seq + 1).saturating_sub(self.first_lost_seq)
    }

    /// The record that says so, and why.
    #[must_use]
    pub fn draft(&self, why: &str, now_ms: u64) -> Draft {
        let mut draft = Draft::new(Type::Gap, Source::Internal, Status::Error);
        draft.started = now_ms.saturating_mul(1000);
        let Self { first_lost_seq, last_lost_seq, .. } = self;
        draft.set(
            Text::Error,
            &format!("records {first_lost_seq} to {last_lost_seq} are lost: {why}"),
        );
        let metadata = serde_json::to_vec(self).unwrap_or_default();
        draft.keep(Raw::Metadata, &metadata, metadata.len());
        draft
    }

    /// What a record of the type `gap` says.
    #[must_use]
    pub fn read(body: &Body) -> Option<Self> {
        serde_json::from_slice(body.metadata.bytes()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_its_records() {
        let gap = Gap::new(17, 80, Hash([7; 32]));
        assert_eq!(gap.records(), 64);
        assert_eq!(gap.draft("why", 1).text(Text::Error), "records 17 to 80 are lost: why");
        let json = serde_json::to_value(&gap).unwrap();
        assert_eq!(json["follows_hash"], Hash([7; 32]).to_string());
        assert_eq!(serde_json::from_value::<Gap>(json).unwrap(), gap);
    }
}
