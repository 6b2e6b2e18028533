//! What an evaluation costs: a meter of steps, and the price of reading a string, a name, a pattern.

use std::cell::{Cell, RefCell};

/// Bytes of a string whose reading costs one step.
pub(super) const BYTES_PER_STEP: u64 = 16;

/// How often one match may go back in an engine that backtracks.
pub(super) const BACKTRACK_MAX: usize = 1_000;

/// Bytes that a backtracking engine reads in one step.
const BYTES_PER_BACKTRACKING_STEP: u64 = 16;

/// Counts the steps of one evaluation and remembers what the tape could not decide by itself.
///
/// Once the steps are used up, every container reads as empty and every scalar as null: an
/// evaluation cannot be interrupted, but so it ends soon. Its result is then discarded.
#[derive(Debug)]
pub struct Meter {
    /// At most zero once they are used up; signed, so that taking one is a single instruction.
    left: Cell<i64>,
    names: NameCost,
    /// Whether values are made for errors to show.
    pub(super) makes_values: bool,
    inexact: Cell<bool>,
    /// Hashes of items and where they stand, sorted to find equal ones.
    pub(super) order: RefCell<Vec<(u64, u32)>>,
}

/// What reading the name of a member costs in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameCost {
    /// Visits and matches that each name can get.
    pub visits: u64,
    /// Steps for each byte of a name, for patterns that are not quick.
    pub steps_per_byte: u64,
    /// Some pattern may be run by an engine that backtracks.
    pub backtrack: bool,
}

impl NameCost {
    /// Steps for one of the visits, with a match.
    const STEPS_PER_VISIT: u64 = 4;

    /// Most visits, and most steps for each byte: more than any evaluation may take, and little
    /// enough that no name overflows the sum.
    const MOST: u64 = 1 << 31;

    /// What names cost.
    pub fn new(visits: u64, steps_per_byte: u64, backtrack: bool) -> Self {
        Self {
            visits: visits.min(Self::MOST),
            steps_per_byte: steps_per_byte.min(Self::MOST),
            backtrack,
        }
    }

    fn steps(self, name: &str) -> u64 {
        let len = name.len() as u64;
        let visit = Self::STEPS_PER_VISIT + len / BYTES_PER_STEP;
        let again = if self.backtrack { backtracking_steps(name.len()) } else { 0 };
        self.visits * visit + self.steps_per_byte * len + again
    }
}

impl Meter {
    /// Resets the meter to `steps`; each name read costs what `names` states in addition, since
    /// engines read names without the meter. Errors are made without the value they concern, which
    /// is never shown.
    pub fn start(&mut self, steps: u64, names: NameCost) {
        self.left.set(i64::try_from(steps).unwrap_or(i64::MAX));
        self.names = names;
        self.makes_values = false;
        self.inexact.set(false);
    }

    /// Spends `steps`; false once they are used up.
    pub fn spend(&self, steps: u64) -> bool {
        let left = self.left.get().saturating_sub_unsigned(steps).max(-1);
        self.left.set(left);
        left > 0
    }

    /// Spends one step. No evaluation takes so many more that it comes around.
    pub(super) fn step(&self) -> bool {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left > 0
    }

    /// Steps that reading `name` as a member's costs.
    pub(super) fn name_steps(&self, name: &str) -> u64 {
        self.names.steps(name)
    }

    /// Uses everything up.
    pub fn exhaust(&self) {
        self.left.set(0);
    }

    /// True once the steps are used up.
    #[must_use]
    pub fn exhausted(&self) -> bool {
        self.left.get() <= 0
    }

    /// Notes that a comparison may have been inexact.
    pub(super) fn mark_inexact(&self) {
        self.inexact.set(true);
    }

    /// Steps that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        u64::try_from(self.left.get()).unwrap_or(0)
    }

    /// True when a number at or beyond 2^53 was compared by size: the engines round differently
    /// there, so boon has to be asked.
    #[must_use]
    pub fn inexact(&self) -> bool {
        self.inexact.get()
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            left: Cell::new(i64::MAX),
            names: NameCost::default(),
            makes_values: true,
            inexact: Cell::new(false),
            order: RefCell::default(),
        }
    }
}

/// The worst case of a backtracking match against `len` bytes, in steps: from each start, and at
/// each step back, it may read the whole text.
pub(super) fn backtracking_steps(len: usize) -> u64 {
    let len = len as u64;
    len.saturating_mul(BACKTRACK_MAX as u64 + len) / BYTES_PER_BACKTRACKING_STEP
}
