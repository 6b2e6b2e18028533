//! Keyspaces of the log's database and the keys in each. Pure.
//!
//! Numbers are big-endian, so that keys sort by them.

/// State: number of the first retained record.
pub const FIRST: &[u8] = b"first";
/// State: ranges of lost records, as pairs of first and last number.
pub(crate) const GAPS: &[u8] = b"gaps";
/// State: number of unrecorded calls that the log has reported.
pub(crate) const LOST: &[u8] = b"lost";
/// State: the age marks (`clock`).
pub const AGES: &[u8] = b"ages";
/// State: position up to which a replica has followed its source, written by the follower.
pub(crate) const FOLLOWED: &[u8] = b"followed";

/// State: key prefix of call marks.
const BEGUN: &[u8] = b"begun";
/// State: exclusive upper bound of call mark keys.
pub(crate) const BEGUN_END: &[u8] = b"beguo";

/// Key of the mark of the call with this ticket.
pub(crate) fn call_mark(ticket: u64) -> Vec<u8> {
    [BEGUN, &ticket.to_be_bytes()].concat()
}

/// Ticket in the key of a mark.
pub(crate) fn ticket(key: &[u8]) -> Option<u64> {
    key.strip_prefix(BEGUN)?.try_into().ok().map(u64::from_be_bytes)
}

/// Key of a sequence number or a segment.
pub(crate) fn number(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Key of the postings of a term bucket in a segment.
pub(crate) fn postings(bucket: [u8; 2], segment: u64) -> Vec<u8> {
    [&bucket[..], &segment.to_be_bytes()].concat()
}

/// Key of a time bucket's counters from a segment.
pub(crate) fn bucket(bucket: u64, segment: u64) -> Vec<u8> {
    [bucket.to_be_bytes(), segment.to_be_bytes()].concat()
}

/// Keyspace of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// First sequence number → block of heads.
    Heads,
    /// First sequence number → block of bodies.
    Bodies,
    /// Term, segment → posting; full segments only.
    Index,
    /// Segment → bounds; full segments only.
    Segments,
    /// Bucket, segment → counters; full segments only.
    Stats,
    /// Singletons (format, node, first record), and the marks of calls in flight.
    State,
}

impl Space {
    pub(super) const ALL: [Self; 6] =
        [Self::Heads, Self::Bodies, Self::Index, Self::Segments, Self::Stats, Self::State];

    /// Keyspaces that can be rebuilt from the records.
    pub(super) const DERIVED: [Self; 3] = [Self::Index, Self::Segments, Self::Stats];

    /// Folder name. Keyspaces are numbered in order of creation, which is the order of [`Self::ALL`]; number 0 is
    /// fjall's own.
    pub(super) const fn folder(self) -> &'static str {
        match self {
            Self::Heads => "1",
            Self::Bodies => "2",
            Self::Index => "3",
            Self::Segments => "4",
            Self::Stats => "5",
            Self::State => "6",
        }
    }

    pub(crate) fn numbered(number: u64) -> Option<Self> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::Bodies => "bodies",
            Self::Index => "index",
            Self::Segments => "segments",
            Self::Stats => "stats",
            Self::State => "state",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_is_read_back_from_the_key_of_a_mark() {
        for ticket in [0, 1, u64::MAX] {
            let key = call_mark(ticket);
            assert_eq!(super::ticket(&key), Some(ticket));
            assert!(&key[..] < BEGUN_END);
        }
        assert!([FIRST, GAPS, AGES].iter().all(|key| super::ticket(key).is_none()));
    }
}
