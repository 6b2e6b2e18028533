//! Skips a container from after its opening bracket to its closing one, 64 bytes at a time.
//!
//! A block is classified into bit masks, one bit per byte: quotes, backslashes, opening and closing brackets. In a run of backslashes, the
//! first, third and every further odd one escapes the next byte. The running parity of the unescaped quotes marks the inside of strings.
//! The brackets outside strings change the depth by their popcount. Where the depth could exceed its ceiling or return to zero within the
//! block, the brackets are walked one by one, so each result is exact.
//!
//! Not checked: the grammar between the brackets, whether the kinds of brackets match, and the inside of strings. Text that breaks those
//! rules is refused by the tape (for `structuredContent`) or by the agent's own parser; it cannot be read as another document. A backslash
//! outside a string is detected, because quotes after it could be counted differently.

use super::swar;

/// Block size in bytes.
pub(super) const BLOCK: usize = 64;

/// The even bit positions.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Bit masks of one block; bit 0 is the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) quotes: u64,
    pub(super) backslashes: u64,
    pub(super) opens: u64,
    pub(super) closes: u64,
}

/// Operations of a kernel.
pub(super) trait Classify: Copy {
    fn classify(self, block: &[u8; BLOCK]) -> Bits;

    /// Prefix parity: bit `i` of the result is the parity of bits `0..=i`.
    fn running_parity(self, bits: u64) -> u64;
}

/// Portable kernel.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Classify for Portable {
    #[inline(always)]
    fn classify(self, block: &[u8; BLOCK]) -> Bits {
        // `[` and `{`, `]` and `}` differ in bit 5 alone, and setting it maps no other byte to them.
        Bits {
            quotes: swar::bits(block, 0, b'"'),
            backslashes: swar::bits(block, 0, b'\\'),
            opens: swar::bits(block, 0x20, b'{'),
            closes: swar::bits(block, 0x20, b'}'),
        }
    }

    #[inline(always)]
    fn running_parity(self, mut bits: u64) -> u64 {
        for shift in [1, 2, 4, 8, 16, 32] {
            bits ^= bits << shift;
        }
        bits
    }
}

/// State within a container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    /// Number of open brackets, the container's own included; 0 once it has closed.
    depth: u64,
    /// Depth above which a bracket is reported.
    ceiling: u64,
    /// All ones inside a string, else 0.
    in_string: u64,
    /// 1 if the next byte is escaped, else 0.
    escaped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    /// Number of bytes used: all, or up to and including the closing bracket, or up to a backslash outside a string.
    pub(super) used: usize,
    /// Index of the first bracket that opened a level above the ceiling. Reported once.
    pub(super) crossed: Option<usize>,
    pub(super) stop: Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No more bytes.
    Drained,
    Closed,
    /// A backslash outside a string.
    Stray,
}

/// Ceiling that no depth reaches.
pub(super) const NO_CEILING: u64 = u64::MAX;

/// Closing bracket: `]` is two after `[` in ASCII, and `}` two after `{`.
pub(super) fn closer(opener: u8) -> u8 {
    opener.wrapping_add(2)
}

impl Skip {
    /// State after the opening bracket. The caller handles a ceiling of 0, which that bracket exceeds.
    pub(super) fn opened(ceiling: u64) -> Self {
        Self { depth: 1, ceiling, in_string: 0, escaped: 0 }
    }

    /// Skips with a kernel. Inlined into kernels, so that it is compiled with their target features.
    #[inline(always)]
    pub(super) fn run<K: Classify>(&mut self, kernel: K, bytes: &[u8]) -> Skipped {
        // A local copy, which can be held in registers.
        let mut skip = *self;
        let mut crossed = None;
        let (blocks, tail) = bytes.as_chunks::<BLOCK>();
        let mut used = 0;
        let mut stop = Stop::Drained;
        for block in blocks {
            if let Some((at, why)) = skip.block(kernel, block, BLOCK, used, &mut crossed) {
                (used, stop) = (used + at, why);
                break;
            }
            used += BLOCK;
        }
        if stop == Stop::Drained && !tail.is_empty() {
            let mut block = [b' '; BLOCK];
            if let Some(head) = block.get_mut(..tail.len()) {
                head.copy_from_slice(tail);
            }
            match skip.block(kernel, &block, tail.len(), used, &mut crossed) {
                Some((at, why)) => (used, stop) = (used + at, why),
                None => used += tail.len(),
            }
        }
        *self = skip;
        Skipped { used, crossed, stop }
    }

    /// Skips one block whose first `len` bytes count (1 to 64); the others are spaces. Returns where skipping stopped within it,
    /// and the reason.
    #[inline(always)]
    fn block<K: Classify>(
        &mut self,
        kernel: K,
        block: &[u8; BLOCK],
        len: usize,
        base: usize,
        crossed: &mut Option<usize>,
    ) -> Option<(usize, Stop)> {
        let bits = kernel.classify(block);

        // In a run of backslashes, every second one escapes, beginning with the first. A backslash that the previous block escapes does not
        // start a run. Adding the even start bits carries through the runs that start at even positions and leaves the others.
        let active = bits.backslashes & !self.escaped;
        let even_starts = active & !(active << 1) & EVEN;
        let odd_runs = active.wrapping_add(even_starts);
        let escapers = active & !(odd_runs ^ !EVEN);
        let escaped = escapers << 1 | self.escaped;
        // The bytes past `len` are spaces, of which only the first can be escaped.
        self.escaped = if len == BLOCK { escapers >> (BLOCK - 1) } else { escaped >> len & 1 };

        // Mask from each opening quote up to the byte before its closing quote.
        let quotes = bits.quotes & !escaped;
        let inside = if quotes == 0 {
            self.in_string
        } else {
            kernel.running_parity(quotes) ^ self.in_string
        };
        self.in_string = (inside.cast_signed() >> (BLOCK - 1)).cast_unsigned();
        if inside == u64::MAX {
            return None;
        }

        let opens = bits.opens & !inside;
        let closes = bits.closes & !inside;
        let stray = bits.backslashes & !inside;
        let up = u64::from(opens.count_ones());
        let down = u64::from(closes.count_ones());
        let away = self.depth + up <= self.ceiling && stray == 0;
        if away && (down < self.depth || !returns(self.depth, opens, closes)) {
            self.depth = self.depth + up - down;
            return None;
        }
        self.walk(opens, closes, stray, base, crossed)
    }

    /// Handles the brackets of a block one by one if any of them matters.
    fn walk(
        &mut self,
        opens: u64,
        closes: u64,
        stray: u64,
        base: usize,
        crossed: &mut Option<usize>,
    ) -> Option<(usize, Stop)> {
        let mut left = opens | closes | stray;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            let bit = left & left.wrapping_neg();
            if opens & bit != 0 {
                self.depth += 1;
                if self.depth > self.ceiling {
                    *crossed = Some(base + at);
                    self.ceiling = NO_CEILING;
                }
            } else if closes & bit != 0 {
                self.depth -= 1;
                if self.depth == 0 {
                    return Some((at + 1, Stop::Closed));
                }
            } else {
                return Some((at, Stop::Stray));
            }
            left ^= bit;
        }
        None
    }
}

/// Whether the depth reaches zero within a block. The depth at each closing bracket is counted from the start of the block, so
/// that no step depends on the one before.
#[inline(always)]
fn returns(depth: u64, opens: u64, closes: u64) -> bool {
    let (mut left, mut closed, mut zero) = (closes, 0, false);
    while left != 0 {
        let before = (left & left.wrapping_neg()) - 1;
        closed += 1;
        zero |= depth + u64::from((opens & before).count_ones()) == closed;
        left &= left - 1;
    }
    zero
}
