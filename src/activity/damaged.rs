//! A view of a damaged log, for verification and salvage: it uses nothing that is derived from the
//! records, and passes over what is damaged.

use super::keys;
use super::store::{Space, StoreError, StoreSnapshot};
use super::view::{Block, View, number};

/// So many numbers behind a damaged place are tried one by one.
const PATIENT_RECORDS: u64 = 1024;

impl View {
    /// A view of the snapshot of a damaged log. Its end is not known, and what is derived is not used.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if not even its beginning can be read.
    pub fn of_damaged(snapshot: StoreSnapshot) -> Result<Self, StoreError> {
        let first = match snapshot.get(Space::State, keys::FIRST)? {
            Some(bytes) => number(&snapshot, Space::State, keys::FIRST, &bytes)?,
            None => 1,
        };
        Ok(Self { snapshot, first, next: u64::MAX, unsealed: 0, gaps: Vec::new(), name: None })
    }

    /// The first readable block behind the unreadable one that holds record `seq`; `None` if there is
    /// none. Tries [`PATIENT_RECORDS`] numbers one by one, then in steps that double: blocks between two
    /// damaged places may be missed where these are far apart.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the disk refuses.
    pub(super) fn readable_after(&self, seq: u64) -> Result<Option<Block>, StoreError> {
        let from =
            |at: u64| {
                let mut rows =
                    self.snapshot.range(Space::Heads, &keys::number(at), &keys::number(self.next));
                match rows.next().transpose().and_then(|row| {
                    row.map(|(key, value)| self.decode_block(&key, value)).transpose()
                }) {
                    Ok(block) => Ok(Some(block)),
                    Err(StoreError::Damaged { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            };
        let (mut bad, mut good, mut step) = (seq, seq.saturating_add(1), 1);
        while good < self.next && from(good)?.is_none() {
            bad = good;
            step = if good - seq < PATIENT_RECORDS { 1 } else { step * 2 };
            good = good.saturating_add(step);
        }
        while good - bad > 1 {
            let middle = bad + (good - bad) / 2;
            match from(middle)? {
                Some(_) => good = middle,
                None => bad = middle,
            }
        }
        Ok(from(good)?.flatten())
    }
}
