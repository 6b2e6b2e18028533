//! The keys of the store: what lies under which name in each keyspace. Pure.
//!
//! Numbers are big-endian, so that keys sort by them.

/// The first record that is kept, in the state keyspace.
pub const FIRST: &[u8] = b"first";
/// The ranges of records that are lost, in the state keyspace: pairs of the first and last number.
pub const GAPS: &[u8] = b"gaps";
/// How many of the records that could not be recorded the log has reported, in the state keyspace.
pub const LOST: &[u8] = b"lost";
/// How far a replica has come, as whoever fills it says, in the state keyspace.
pub const FOLLOWED: &[u8] = b"followed";

/// What the keys of marks begin with, in the state keyspace.
const BEGUN: &[u8] = b"begun";
/// One past the last key of a mark.
pub const BEGUN_END: &[u8] = b"beguo";

/// The mark of the call with this ticket.
#[must_use]
pub fn begun(ticket: u64) -> Vec<u8> {
    [BEGUN, &ticket.to_be_bytes()].concat()
}

/// The ticket of a mark.
#[must_use]
pub fn ticket(key: &[u8]) -> Option<u64> {
    key.strip_prefix(BEGUN)?.try_into().ok().map(u64::from_be_bytes)
}

/// A sequence number, or a segment.
#[must_use]
pub fn number(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The postings of a bucket of terms in a segment.
#[must_use]
pub fn postings(bucket: [u8; 2], segment: u64) -> Vec<u8> {
    [&bucket[..], &segment.to_be_bytes()].concat()
}

/// A bucket's counters from a segment.
#[must_use]
pub fn bucket(bucket: u64, segment: u64) -> Vec<u8> {
    [bucket.to_be_bytes(), segment.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_mark_leads_back_to_its_ticket() {
        for ticket in [0, 1, u64::MAX] {
            let key = begun(ticket);
            assert_eq!(super::ticket(&key), Some(ticket));
            assert!(&key[..] < BEGUN_END);
        }
        assert!([FIRST, GAPS].iter().all(|key| super::ticket(key).is_none()));
    }
}
