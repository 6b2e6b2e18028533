//! Which traces are recorded (head sampling), and the ids of new ones. Pure, but for the randomness of a thread's ids.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use xxhash_rust::xxh3::xxh3_128;

/// 2⁶³, by which the ratio is counted: the highest bit of a trace id's lower half is not looked at.
const WHOLE: u64 = 1 << 63;

/// The part of new traces that is recorded. A trace that somebody else began is recorded where they record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling(u64);

impl Sampling {
    /// All of them.
    pub const ALL: Self = Self(WHOLE);

    /// A part of them, 0 to 1.
    #[must_use]
    pub fn of(ratio: f64) -> Self {
        Self((ratio.clamp(0.0, 1.0) * WHOLE as f64) as u64)
    }

    /// Whether a new trace of that id is: for one id everybody who asks with the same ratio decides the same.
    #[must_use]
    pub const fn takes(self, trace_id: u128) -> bool {
        // The lower half is what is looked at.
        (trace_id as u64) >> 1 < self.0
    }
}

/// Makes ids that nobody else makes, for one thread. They are no secret, so that what makes them is fast.
#[derive(Debug)]
pub struct TraceIds {
    nonce: [u64; 2],
    made: Cell<u64>,
}

impl Default for TraceIds {
    /// Ids of their own.
    fn default() -> Self {
        // Keyed with randomness of the system's, each time anew.
        let random = RandomState::new();
        Self { nonce: [random.hash_one(0), random.hash_one(1)], made: Cell::new(0) }
    }
}

impl TraceIds {
    /// The id of a trace; not zero.
    #[must_use]
    pub fn trace(&self) -> u128 {
        self.next().max(1)
    }

    /// The ids of two spans; not zero.
    #[must_use]
    pub fn spans(&self) -> [u64; 2] {
        let random = self.next();
        [(random >> 64) as u64, random as u64].map(|id| id.max(1))
    }

    fn next(&self) -> u128 {
        let made = self.made.get();
        self.made.set(made.wrapping_add(1));
        let [a, b] = self.nonce.map(u64::to_le_bytes);
        let mut input = [0; 24];
        for (place, byte) in input.iter_mut().zip(a.into_iter().chain(b).chain(made.to_le_bytes()))
        {
            *place = byte;
        }
        xxh3_128(&input)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_ratio_counts_by_the_id_alone() {
        let ids = TraceIds::default();
        for (ratio, least, most) in
            [(0.0, 0, 0), (0.01, 50, 200), (0.5, 4500, 5500), (1.0, 10_000, 10_000)]
        {
            let sampling = Sampling::of(ratio);
            let made: Vec<u128> = (0..10_000).map(|_| ids.trace()).collect();
            let taken = made.iter().filter(|id| sampling.takes(**id)).count();
            assert!((least..=most).contains(&taken), "{ratio}: {taken}");
            // What a smaller ratio takes, a larger one takes too.
            let half = Sampling::of(ratio / 2.0);
            assert!(made.iter().all(|id| !half.takes(*id) || sampling.takes(*id)));
        }
        assert_eq!(Sampling::of(1.0), Sampling::ALL);
        assert!(Sampling::ALL.takes(u128::MAX) && !Sampling::of(0.0).takes(1));
    }

    #[test]
    fn no_id_is_made_twice_not_by_two_threads_either() {
        let threads = [TraceIds::default(), TraceIds::default()];
        let traces: HashSet<u128> =
            threads.iter().flat_map(|ids| (0..1000).map(|_| ids.trace())).collect();
        let spans: HashSet<u64> =
            threads.iter().flat_map(|ids| (0..1000).flat_map(|_| ids.spans())).collect();
        assert_eq!((traces.len(), spans.len()), (2000, 4000));
    }
}
