//! Lost records: gaps in the chain, calls that could not be recorded, and the `gap` records that report both
//! (ACT-2, ACT-9). Pure.
//!
//! A [`Gap`] is a range of numbered records that are damaged. It leaves a hole in the chain; its record names the
//! hole and the hash that the next record follows, so that the chain can be verified on both sides.
//! [`Unrecorded`] counts calls that proceeded while the log could not be written (`losses`). They never had
//! numbers; a single record reports their count, time and cause.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::record::{Body, Draft, Hash, Raw, Source, Status, Text, Type};

/// Range of lost records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gap {
    /// Sequence number of the first lost record.
    pub first_lost_seq: u64,
    /// Sequence number of the last lost record.
    pub last_lost_seq: u64,
    /// Predecessor hash of the next record after the range.
    pub follows_hash: String,
    /// First number of the range that may never have been used; the rest of the range is skipped so that no number is
    /// assigned twice. Set only at the end of a log that was not closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_from: Option<u64>,
}

impl Gap {
    pub fn new(first_lost_seq: u64, last_lost_seq: u64, follows: Hash) -> Self {
        let follows_hash = follows.to_string();
        Self { first_lost_seq, last_lost_seq, follows_hash, unknown_from: None }
    }

    /// Number of records known to be lost.
    pub fn records(&self) -> u64 {
        let end = self.unknown_from.unwrap_or(self.last_lost_seq.saturating_add(1));
        end.saturating_sub(self.first_lost_seq)
    }

    /// Whether both describe the same hole in the chain, regardless of the known number of records.
    pub fn is_same_hole(&self, other: &Self) -> bool {
        let hole = |it: &Self| (it.first_lost_seq, it.last_lost_seq);
        hole(self) == hole(other) && self.follows_hash == other.follows_hash
    }

    /// Builds the record that reports the gap and its cause.
    pub(crate) fn draft(&self, why: &str, now_ms: u64) -> Draft {
        let Self { first_lost_seq, last_lost_seq, unknown_from, .. } = self;
        let text = match unknown_from {
            None => format!("records {first_lost_seq} to {last_lost_seq} are lost: {why}"),
            Some(from) if from == first_lost_seq => format!(
                "numbers {from} to {last_lost_seq} are skipped because they may have been assigned: {why}"
            ),
            Some(from) => format!(
                "records {first_lost_seq} to {} are lost; numbers {from} to {last_lost_seq} are skipped because they may \
                 have been assigned: {why}",
                from - 1
            ),
        };
        draft(self, &text, now_ms)
    }

    /// Reads a gap from the body of its record; `None` if the record is about something else.
    pub(crate) fn read(body: &Body) -> Option<Self> {
        serde_json::from_slice(body.metadata.bytes()).ok()
    }
}

/// Calls without a record, because the log could not be written while they proceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unrecorded {
    /// Maximum number of calls without a record.
    #[serde(rename = "records_lost")]
    pub records: u64,
    /// Minimum number of calls without a record. It is less than `records` if the process was killed: entries in memory
    /// at that time may have been written just before.
    pub at_least: u64,
    /// Total number of calls without a record since the log was created, including these calls.
    pub total: u64,
    /// Time at which the log became unwritable.
    #[serde(with = "time", rename = "from")]
    #[schema(value_type = String, format = DateTime)]
    pub from_ms: u64,
    /// Time of the last call without a record.
    #[serde(with = "time", rename = "to")]
    #[schema(value_type = String, format = DateTime)]
    pub to_ms: u64,
    /// Cause of the outage.
    pub cause: String,
}

impl Unrecorded {
    /// Builds the record that reports these calls.
    pub(crate) fn draft(&self, now_ms: u64) -> Draft {
        draft(self, &self.to_string(), now_ms)
    }

    /// Reads the report from the body of its record; `None` if the record is about something else.
    pub(crate) fn read(body: &Body) -> Option<Self> {
        serde_json::from_slice(body.metadata.bytes()).ok()
    }
}

/// Builds a `gap` record with a description, and with `what` as its metadata.
fn draft(what: &impl Serialize, words: &str, now_ms: u64) -> Draft {
    let mut draft = Draft::new(Type::Gap, Source::Internal, Status::Error);
    draft.started = now_ms.saturating_mul(1000);
    draft.set(Text::Error, words);
    let metadata = serde_json::to_vec(what).unwrap_or_default();
    draft.keep(Raw::Metadata, &metadata, metadata.len());
    draft
}

impl std::fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { records, at_least, cause, .. } = self;
        let (from, to) = (time::shown(self.from_ms), time::shown(self.to_ms));
        if at_least < records {
            write!(f, "{at_least} to ")?;
        }
        write!(f, "{records} records could not be written between {from} and {to}: {cause}")
    }
}

/// Milliseconds since 1970 as RFC 3339.
mod time {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn shown(millis: u64) -> String {
        let time = i64::try_from(millis).ok().and_then(|it| Timestamp::from_millisecond(it).ok());
        format!("{:.3}", time.unwrap_or(Timestamp::MAX))
    }

    pub(super) fn serialize<S: Serializer>(millis: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&shown(*millis))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let time = Timestamp::deserialize(deserializer)?;
        Ok(u64::try_from(time.as_millisecond()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecorded_calls_are_reported_with_times_and_cause() {
        let mut lost = Unrecorded {
            records: 12,
            at_least: 12,
            total: 40,
            from_ms: 1_767_225_600_000,
            to_ms: 1_767_225_601_250,
            cause: "no space".into(),
        };
        let text = "12 records could not be written between 2026-01-01T00:00:00.000Z and \
                    2026-01-01T00:00:01.250Z: no space";
        assert_eq!(lost.draft(1).text(Text::Error), text);
        let json = serde_json::to_value(&lost).unwrap();
        assert_eq!(
            (&json["records_lost"], &json["from"]),
            (&12.into(), &"2026-01-01T00:00:00.000Z".into())
        );
        assert_eq!(serde_json::from_value::<Unrecorded>(json.clone()).unwrap(), lost);
        assert!(serde_json::from_value::<Gap>(json).is_err());
        lost.at_least = 9;
        assert!(lost.to_string().starts_with("9 to 12 records could not be written"));
    }

    #[test]
    fn gap_reports_how_many_records_it_contains() {
        let gap = Gap::new(17, 80, Hash([7; 32]));
        assert_eq!(gap.records(), 64);
        assert_eq!(gap.draft("why", 1).text(Text::Error), "records 17 to 80 are lost: why");
        let json = serde_json::to_value(&gap).unwrap();
        assert_eq!(json["follows_hash"], Hash([7; 32]).to_string());
        assert_eq!(serde_json::from_value::<Gap>(json).unwrap(), gap);
    }

    #[test]
    fn gap_with_an_unknown_end_counts_only_known_losses() {
        let gap = Gap { unknown_from: Some(21), ..Gap::new(17, 80, Hash([7; 32])) };
        assert_eq!(gap.records(), 4);
        assert!(gap.is_same_hole(&Gap::new(17, 80, Hash([7; 32]))));
        assert!(!gap.is_same_hole(&Gap::new(17, 81, Hash([7; 32]))));
        let text = "records 17 to 20 are lost; numbers 21 to 80 are skipped because they may have been \
                    assigned: why";
        assert_eq!(gap.draft("why", 1).text(Text::Error), text);
        let unused = Gap { unknown_from: Some(17), ..gap.clone() };
        assert_eq!(unused.records(), 0);
        assert!(
            unused.draft("why", 1).text(Text::Error).starts_with("numbers 17 to 80 are skipped")
        );
        let json = serde_json::to_value(&gap).unwrap();
        assert_eq!(serde_json::from_value::<Gap>(json).unwrap(), gap);
    }
}
