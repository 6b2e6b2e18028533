//! Metering of an evaluation: steps, and the costs of strings, names and patterns.

use std::cell::{Cell, RefCell};

/// Number of bytes of a string per step.
pub(super) const BYTES_PER_STEP: u64 = 16;

/// Maximum number of backtracking steps of one match.
pub(super) const BACKTRACK_MAX: usize = 1_000;

/// Number of bytes that a backtracking engine reads per step.
const BYTES_PER_BACKTRACKING_STEP: u64 = 16;

/// Step counter of one evaluation; also records decisions that the tape could not make exactly.
///
/// Once the steps are used up, every container reads as empty and every scalar as null: an evaluation cannot be interrupted, but it then
/// ends soon. Its result is discarded.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Number of steps left; at most zero once used up. Signed, so that taking one is a single instruction.
    left: Cell<i64>,
    names: NameCost,
    /// Whether values are materialized for error messages.
    pub(super) makes_values: bool,
    inexact: Cell<bool>,
    /// Hashes and positions of items, sorted to find equal ones.
    pub(super) order: RefCell<Vec<(u64, u32)>>,
}

/// Additional cost of reading the name of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameCost {
    /// Maximum number of visits and matches per name.
    pub visits: u64,
    /// Steps per byte of a name, for slow patterns.
    pub steps_per_byte: u64,
    /// Whether a pattern may be run by a backtracking engine.
    pub backtrack: bool,
}

impl NameCost {
    /// Number of steps per visit, which includes a match.
    const STEPS_PER_VISIT: u64 = 4;

    /// Upper bound of visits and of steps per byte: more than any evaluation may take, but small enough that no name overflows the sum.
    const MAX: u64 = 1 << 31;

    pub(crate) fn new(visits: u64, steps_per_byte: u64, backtrack: bool) -> Self {
        Self {
            visits: visits.min(Self::MAX),
            steps_per_byte: steps_per_byte.min(Self::MAX),
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
    /// Resets the meter to `steps`. Each name additionally costs `names`, since engines read names without the meter. Errors are created
    /// without values, which are never shown.
    pub(crate) fn start(&mut self, steps: u64, names: NameCost) {
        self.left.set(i64::try_from(steps).unwrap_or(i64::MAX));
        self.names = names;
        self.makes_values = false;
        self.inexact.set(false);
    }

    /// Spends `steps`; returns false once they are used up.
    pub(crate) fn spend(&self, steps: u64) -> bool {
        let left = self.left.get().saturating_sub_unsigned(steps).max(-1);
        self.left.set(left);
        left > 0
    }

    /// Spends one step. No evaluation wraps the counter around.
    pub(super) fn step(&self) -> bool {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left > 0
    }

    /// Number of steps for reading `name` as the name of a member.
    pub(super) fn name_steps(&self, name: &str) -> u64 {
        self.names.steps(name)
    }

    pub(crate) fn exhaust(&self) {
        self.left.set(0);
    }

    /// Whether the steps are used up.
    pub(crate) fn exhausted(&self) -> bool {
        self.left.get() <= 0
    }

    /// Records that a comparison may have been inexact.
    pub(super) fn mark_inexact(&self) {
        self.inexact.set(true);
    }

    /// Whether a number at or beyond 2^53 was compared by size: the engines round differently there, so boon has to decide.
    pub(crate) fn inexact(&self) -> bool {
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

/// Worst case of a backtracking match against `len` bytes, in steps: from each start, and at each backtracking step, the match may read the
/// whole text.
pub(super) fn backtracking_steps(len: usize) -> u64 {
    let len = len as u64;
    len.saturating_mul(BACKTRACK_MAX as u64 + len) / BYTES_PER_BACKTRACKING_STEP
}
