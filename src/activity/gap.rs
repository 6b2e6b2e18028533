//! Lost records, and the record of the type `gap` that names them (ACT-2, ACT-9). Pure.
//!
//! There are two kinds. [`Gap`]: records that had numbers and are damaged. They leave a hole in the
//! chain; the record names the hole and the hash that the next record follows, so that the chain is
//! verified on both sides. [`Unrecorded`]: calls that went on while the log could not be written. They
//! never had numbers; the record stands in their place, with their number, time and cause.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::record::{Body, Draft, Hash, Raw, Source, Status, Text, Type};

/// A range of records that are lost.
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

    /// The number of records that are lost.
    #[must_use]
    pub fn records(&self) -> u64 {
        (self.last_lost_seq + 1).saturating_sub(self.first_lost_seq)
    }

    /// The record that names the gap, and why.
    #[must_use]
    pub fn draft(&self, why: &str, now_ms: u64) -> Draft {
        let Self { first_lost_seq, last_lost_seq, .. } = self;
        let text = format!("records {first_lost_seq} to {last_lost_seq} are lost: {why}");
        draft(self, &text, now_ms)
    }

    /// Reads it from the body of its record; `None` if the record is about something else.
    #[must_use]
    pub fn read(body: &Body) -> Option<Self> {
        serde_json::from_slice(body.metadata.bytes()).ok()
    }
}

/// Calls that are not on record: the log could not be written, and they went on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unrecorded {
    /// Their number, at most.
    #[serde(rename = "records_lost")]
    pub records: u64,
    /// Their number, at least. It is less than `records` where the process was killed meanwhile: what it
    /// had in memory then may have been written just before.
    pub at_least: u64,
    /// The number of all since the log was begun, these included.
    pub total: u64,
    /// When the log could no longer be written.
    #[serde(with = "time", rename = "from")]
    #[schema(value_type = String, format = DateTime)]
    pub from_ms: u64,
    /// When the last of them was lost.
    #[serde(with = "time", rename = "to")]
    #[schema(value_type = String, format = DateTime)]
    pub to_ms: u64,
    /// Why it could not be written.
    pub cause: String,
}

impl Unrecorded {
    /// The record that names them.
    #[must_use]
    pub fn draft(&self, now_ms: u64) -> Draft {
        draft(self, &self.to_string(), now_ms)
    }

    /// Reads it from the body of its record; `None` if the record is about something else.
    #[must_use]
    pub fn read(body: &Body) -> Option<Self> {
        serde_json::from_slice(body.metadata.bytes()).ok()
    }
}

/// A record of the type `gap`, with `what` as its metadata and in words.
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
    fn what_could_not_be_recorded_is_told_with_its_times_and_cause() {
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
    fn a_gap_counts_its_records() {
        let gap = Gap::new(17, 80, Hash([7; 32]));
        assert_eq!(gap.records(), 64);
        assert_eq!(gap.draft("why", 1).text(Text::Error), "records 17 to 80 are lost: why");
        let json = serde_json::to_value(&gap).unwrap();
        assert_eq!(json["follows_hash"], Hash([7; 32]).to_string());
        assert_eq!(serde_json::from_value::<Gap>(json).unwrap(), gap);
    }
}
