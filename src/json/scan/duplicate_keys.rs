//! Which keys have been seen, to notice the ones that come twice.
//!
//! Known names have a bit each, others are compared by a keyed 64-bit hash: duplicates are always
//! detected, and different keys are taken for equal once in 2^40 messages with as many keys as are
//! kept. At most `MAX_KEYS` are kept; past that a new key is `Novelty::Full`.

use super::report::ScannedMember;

/// Unknown keys that are kept without an allocation.
const INLINE_KEYS: usize = 16;

/// Most unknown keys of one message, of its top level and of `result` together, that are
/// compared with each other; more than that is an ambiguity.
pub const MAX_KEYS: usize = 4096;

/// The keys of one message.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenKeys {
    known: u16,
    len: usize,
    inline: [u64; INLINE_KEYS],
    more: Vec<u64>,
}

/// What [`SeenKeys`] says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    Repeated,
    /// Not among those that are kept, and there is no room for it: duplicates can no longer be
    /// detected.
    Full,
}

impl SeenKeys {
    /// Notes a known name.
    pub(super) fn known(&mut self, member: ScannedMember) -> Novelty {
        let bit = 1 << member as u16;
        let novelty = if self.known & bit == 0 { Novelty::New } else { Novelty::Repeated };
        self.known |= bit;
        novelty
    }

    /// Whether a known name was noted.
    pub(super) fn has(&self, member: ScannedMember) -> bool {
        self.known & (1 << member as u16) != 0
    }

    /// Notes any other name by its hash.
    pub(super) fn other(&mut self, hash: u64) -> Novelty {
        let inline = self.inline.get(..self.len.min(INLINE_KEYS)).unwrap_or_default();
        if inline.contains(&hash) || self.more.contains(&hash) {
            return Novelty::Repeated;
        }
        if self.len == MAX_KEYS {
            return Novelty::Full;
        }
        match self.inline.get_mut(self.len) {
            Some(slot) => *slot = hash,
            None => self.more.push(hash),
        }
        self.len += 1;
        Novelty::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_found_inline_and_beyond_up_to_the_bound() {
        let mut seen = SeenKeys::default();
        for hash in 0..MAX_KEYS as u64 {
            assert_eq!(seen.other(hash), Novelty::New);
        }
        assert_eq!(seen.other(MAX_KEYS as u64), Novelty::Full);
        for hash in 0..MAX_KEYS as u64 {
            assert_eq!(seen.other(hash), Novelty::Repeated);
        }
    }

    #[test]
    fn known_names_do_not_mix() {
        let mut seen = SeenKeys::default();
        assert_eq!(seen.known(ScannedMember::IsError), Novelty::New);
        assert_eq!(seen.known(ScannedMember::Id), Novelty::New);
        assert_eq!(seen.known(ScannedMember::IsError), Novelty::Repeated);
    }
}
