//! A node's own heartbeats: which one is put next and when, for how long its put is waited for, and which were given up. Pure.
//!
//! One put that hangs must not make a living node dead to the others: it is given up, and the next heartbeat put at once. What
//! was given up may come all the same, and after newer ones. So each heartbeat names those that were given up before it, and who
//! reads takes none of them for one that somebody has put back (`watched_node`).

use super::node_view::DEAD_AFTER_MS;
use super::{BEAT_EVERY_MS, LIST_EVERY_MS};
use crate::fleet::heartbeat::GIVEN_UP_BEATS;

/// Milliseconds between the shortest and the longest time from one heartbeat to the next.
const BEAT_SPREAD_MS: u64 = 400;
/// A put that has not ended after so long is given up.
const PUT_LIMIT_MS: u64 = 2_500;
// The next one is put, taken within a second and listed before anybody finds the node dead.
const _: () = assert!(
    BEAT_EVERY_MS + BEAT_SPREAD_MS / 2 + PUT_LIMIT_MS + 1_000 + LIST_EVERY_MS < DEAD_AFTER_MS
);
/// After so many that came to no end, one behind the other, the store may be slow rather than the one put lost:
const FEW_LATE: u32 = 2;
/// then it has so long, as much as leaves the node alive,
const SLOW_PUT_LIMIT_MS: u64 = 4_500;
const _: () = assert!(BEAT_EVERY_MS + BEAT_SPREAD_MS / 2 + SLOW_PUT_LIMIT_MS < DEAD_AFTER_MS);
/// and after so many as long as the store itself waits at most. A put into a folder that hangs keeps its thread for as long as
/// that hangs, also where it is given up.
const MANY_LATE: u32 = 20;
const HUNG_PUT_LIMIT_MS: u64 = 40_000;

/// A heartbeat that is to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fleet) struct NextBeat {
    /// Its number.
    pub(in crate::fleet) number: u64,
    /// Those before it of which it is not known whether they come.
    pub(in crate::fleet) given_up: Vec<u64>,
    /// For how long its put is waited for.
    pub(in crate::fleet) limit_ms: u64,
}

/// How a put has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum PutEnd {
    /// The store took it, after so many milliseconds.
    Taken { ms: u64 },
    /// The store did not take it, or said so.
    Failed,
    /// It was given up, or the store has.
    Late,
}

/// How a node's own heartbeats go.
#[derive(Debug, Default)]
pub(in crate::fleet) struct OwnBeats {
    /// The last that was put.
    number: u64,
    /// How its put ended.
    last: Option<PutEnd>,
    /// Puts that were late since one was taken soon.
    late: u32,
    /// Those that were given up, that failed, and the one that is on its way: in their order.
    given_up: Vec<u64>,
}

impl OwnBeats {
    /// How long after the end of the put before the next one is put; `random` is any number. Never twice the same: two processes
    /// of one name that keep in step would each be seen only for the moment until the other's follows.
    pub(in crate::fleet) fn pause_ms(&self, random: u64) -> u64 {
        match self.last {
            // The start; and one that was given up has taken longer than from one to the next.
            None | Some(PutEnd::Late) => 0,
            Some(PutEnd::Taken { .. } | PutEnd::Failed) => {
                BEAT_EVERY_MS - BEAT_SPREAD_MS / 2 + random % BEAT_SPREAD_MS
            }
        }
    }

    /// The next one, which is on its way until it is said how its put has [`ended`](Self::ended).
    pub(in crate::fleet) fn next_beat(&mut self) -> NextBeat {
        self.number += 1;
        let number = self.number;
        self.given_up.retain(|before| number - before <= GIVEN_UP_BEATS);
        let given_up = self.given_up.clone();
        self.given_up.push(number);
        let limit_ms = match self.late {
            ..FEW_LATE => PUT_LIMIT_MS,
            FEW_LATE..MANY_LATE => SLOW_PUT_LIMIT_MS,
            MANY_LATE.. => HUNG_PUT_LIMIT_MS,
        };
        NextBeat { number, given_up, limit_ms }
    }

    /// The put of the last one has ended so.
    pub(in crate::fleet) fn ended(&mut self, end: PutEnd) {
        self.last = Some(end);
        match end {
            PutEnd::Taken { ms } => {
                let number = self.number;
                self.given_up.retain(|before| *before != number);
                // A store that is always slow has the longer time from then on.
                if ms <= PUT_LIMIT_MS {
                    self.late = 0;
                }
            }
            PutEnd::Failed => {}
            PutEnd::Late => self.late = self.late.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a store that takes so long for what is put at a moment comes to in `for_ms`: when each put was taken, and each put.
    fn puts(for_ms: u64, takes: impl Fn(u64) -> u64) -> (Vec<u64>, Vec<NextBeat>) {
        let (mut beats, mut now) = (OwnBeats::default(), 0);
        let (mut taken, mut put) = (Vec::new(), Vec::new());
        while now < for_ms {
            // The longest pause.
            now += beats.pause_ms(BEAT_SPREAD_MS - 1);
            let next = beats.next_beat();
            let ms = takes(now);
            if ms > next.limit_ms {
                now += next.limit_ms;
                beats.ended(PutEnd::Late);
            } else {
                now += ms;
                beats.ended(PutEnd::Taken { ms });
                taken.push(now);
            }
            put.push(next);
        }
        (taken, put)
    }

    fn longest(taken: &[u64]) -> u64 {
        taken.windows(2).map(|two| two[1] - two[0]).max().unwrap()
    }

    #[test]
    fn one_that_hangs_makes_nobody_dead_and_neither_does_a_slow_store() {
        // Whatever is put in each tenth second hangs for good.
        let hangs = |at: u64| if at / 1000 % 10 == 7 { u64::MAX } else { 300 };
        let (taken, put) = puts(600_000, hangs);
        assert!(put.len() > taken.len() + 30, "{} of {}", taken.len(), put.len());
        assert!(longest(&taken) + LIST_EVERY_MS < DEAD_AFTER_MS, "{}", longest(&taken));
        let (taken, _) = puts(600_000, |_| 4_400);
        assert!(taken.len() > 90, "{}", taken.len());
        assert!(longest(&taken) < DEAD_AFTER_MS, "{}", longest(&taken));
    }

    #[test]
    fn a_store_that_is_back_is_told_soon_and_one_that_hangs_for_long_is_not_asked_ever_more() {
        let back_after = |ms: u64| move |at: u64| if at < ms { u64::MAX } else { 300 };
        let (taken, _) = puts(120_000, back_after(60_000));
        assert!(taken[0] - 60_000 < DEAD_AFTER_MS - LIST_EVERY_MS, "{}", taken[0]);
        assert!(longest(&taken) < 2_000, "{}", longest(&taken));
        let (taken, put) = puts(3_700_000, back_after(3_600_000));
        let hung = put.len() - taken.len();
        assert!(hung <= MANY_LATE as usize + 3_600_000 / HUNG_PUT_LIMIT_MS as usize + 1, "{hung}");
        assert!(longest(&taken) < 2_000, "{}", longest(&taken));
    }

    #[test]
    fn what_the_store_refuses_is_not_put_again_at_once() {
        let mut beats = OwnBeats::default();
        assert_eq!(beats.pause_ms(7), 0, "the first");
        for _ in 0..100 {
            beats.next_beat();
            beats.ended(PutEnd::Late);
            assert_eq!(beats.pause_ms(7), 0);
            beats.next_beat();
            beats.ended(PutEnd::Failed);
            assert!(beats.pause_ms(0) >= BEAT_EVERY_MS - BEAT_SPREAD_MS / 2);
        }
        assert_ne!(beats.pause_ms(1), beats.pause_ms(2));
    }

    #[test]
    fn each_names_those_before_it_that_may_still_come_and_no_others() {
        let mut beats = OwnBeats::default();
        for (number, end) in [
            (1, PutEnd::Taken { ms: 10 }),
            (2, PutEnd::Late),
            (3, PutEnd::Taken { ms: 10 }),
            (4, PutEnd::Failed),
        ] {
            assert_eq!(beats.next_beat().number, number);
            beats.ended(end);
        }
        assert_eq!(beats.next_beat().given_up, [2, 4]);
        // The farewell does not wait for the one that is on its way.
        assert_eq!(beats.next_beat().given_up, [2, 4, 5]);
        beats.ended(PutEnd::Taken { ms: 10 });
        for number in 7..200_u64 {
            let next = beats.next_beat();
            assert_eq!(next.number, number);
            let mut named = vec![2, 4, 5];
            named.retain(|it| number - it <= GIVEN_UP_BEATS);
            assert_eq!(next.given_up, named);
            beats.ended(PutEnd::Taken { ms: 10 });
        }
        // And they never are more than a heartbeat may name.
        let (_, put) = puts(3_600_000, |_| u64::MAX);
        let most = put.iter().map(|next| next.given_up.len()).max().unwrap();
        assert_eq!(most as u64, GIVEN_UP_BEATS);
    }
}
