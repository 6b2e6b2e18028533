//! Kernels for x86-64: AVX2 with carry-less multiply, popcount and BMI; AVX-512BW, with a whole block in one vector and comparisons
//! that yield masks; and table look-ups of 64 bytes at a time with AVX-512 VBMI.
//!
//! Invariants: a value of [`Avx2`], [`Avx512`] or [`Avx512Vbmi`] proves that the processor has the instructions; every load and store
//! accesses an array of the vector's length. No pointer is stored.
#![expect(unsafe_code, reason = "vector intrinsics; the safety argument is above each use")]

use core::arch::x86_64::{
    __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
    _mm512_cmpeq_epi8_mask, _mm512_loadu_si512, _mm512_mask2_permutex2var_epi8,
    _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_or_si512, _mm512_permutex2var_epi8,
    _mm512_set1_epi8, _mm512_storeu_si512, _mm512_test_epi8_mask,
};

use super::skip::{BLOCK, Bits, Classify, Skip, Skipped};
use crate::scan::table::{STRIDE, Table};

/// Bytes in a vector.
const VECTOR: usize = 32;

/// Proof that the CPU supports AVX2. Created only by [`Avx2::detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Detects the features; the standard library caches the result.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1");
        has.then_some(Self(()))
    }

    pub(super) fn skip(self, skip: &mut Skip, bytes: &[u8]) -> Skipped {
        // SAFETY: `self` proves that the machine has the features the function is compiled for.
        unsafe { skip_avx2(self, skip, bytes) }
    }
}

/// [`Skip::run`], compiled for AVX2.
#[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1")]
fn skip_avx2(kernel: Avx2, skip: &mut Skip, bytes: &[u8]) -> Skipped {
    skip.run(kernel, bytes)
}

impl Classify for Avx2 {
    #[inline(always)]
    fn classify(self, block: &[u8; BLOCK]) -> Bits {
        let [low, high] = *block.as_chunks::<VECTOR>().0 else {
            return Bits { quotes: 0, backslashes: 0, opens: 0, closes: 0 };
        };
        // SAFETY: each array has the 32 bytes that are read, the loads need no alignment, and
        // `self` proves that the machine has AVX2.
        unsafe {
            let low = _mm256_loadu_si256(low.as_ptr().cast());
            let high = _mm256_loadu_si256(high.as_ptr().cast());
            let fold = _mm256_set1_epi8(0x20);
            let (low_folded, high_folded) =
                (_mm256_or_si256(low, fold), _mm256_or_si256(high, fold));
            Bits {
                quotes: equal(low, high, b'"'),
                backslashes: equal(low, high, b'\\'),
                opens: equal(low_folded, high_folded, b'{'),
                closes: equal(low_folded, high_folded, b'}'),
            }
        }
    }

    #[inline(always)]
    fn running_parity(self, bits: u64) -> u64 {
        // A carry-less multiplication by all ones yields the parity of all bits at or below each position.
        // SAFETY: `self` proves that the machine has carry-less multiply.
        unsafe {
            let bits = _mm_set_epi64x(0, bits.cast_signed());
            let product = _mm_clmulepi64_si128::<0>(bits, _mm_set1_epi8(-1));
            _mm_cvtsi128_si64(product).cast_unsigned()
        }
    }
}

/// Bit mask of the bytes among 64 that equal `wanted`.
///
/// # Safety
///
/// The machine must have AVX2.
#[inline(always)]
unsafe fn equal(low: __m256i, high: __m256i, wanted: u8) -> u64 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let wanted = _mm256_set1_epi8(wanted.cast_signed());
        let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)).cast_unsigned();
        let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)).cast_unsigned();
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Proof that the CPU supports AVX-512BW. Created only by [`Avx512::detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512(Avx2);

impl Avx512 {
    /// Detects the features; the standard library caches the result.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        Avx2::detect().filter(|_| has).map(Self)
    }

    pub(super) fn skip(self, skip: &mut Skip, bytes: &[u8]) -> Skipped {
        // SAFETY: `self` proves that the machine has the features the function is compiled for.
        unsafe { skip_avx512(self, skip, bytes) }
    }
}

/// [`Skip::run`], compiled for AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw,avx2,pclmulqdq,popcnt,bmi1")]
fn skip_avx512(kernel: Avx512, skip: &mut Skip, bytes: &[u8]) -> Skipped {
    skip.run(kernel, bytes)
}

impl Classify for Avx512 {
    #[inline(always)]
    fn classify(self, block: &[u8; BLOCK]) -> Bits {
        // SAFETY: the array has the 64 bytes that are read, the load needs no alignment, and `self` proves that the machine has AVX-512BW.
        unsafe {
            let bytes = _mm512_loadu_si512(block.as_ptr().cast());
            let folded = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
            let equal = |bytes, wanted: u8| {
                _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(wanted.cast_signed()))
            };
            Bits {
                quotes: equal(bytes, b'"'),
                backslashes: equal(bytes, b'\\'),
                opens: equal(folded, b'{'),
                closes: equal(folded, b'}'),
            }
        }
    }

    #[inline(always)]
    fn running_parity(self, bits: u64) -> u64 {
        self.0.running_parity(bits)
    }
}

/// Proof that the CPU supports AVX-512 VBMI. Created only by [`Avx512Vbmi::detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512Vbmi(());

impl Avx512Vbmi {
    /// Detects the features; the standard library caches the result.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Self(()))
    }

    /// See [`translate`](super::translate::translate). Returns the number of bytes written, or `None` if `out` has no space for the text
    /// and one stride.
    pub(super) fn translate(self, text: &[u8], table: &Table, out: &mut [u8]) -> Option<usize> {
        // SAFETY: `self` proves that the machine has the features the function is compiled for.
        unsafe { translate_vbmi(text, table, out) }
    }

    /// See [`has_unusual_escape`](super::translate::has_unusual_escape).
    pub(super) fn has_unusual_escape(self, text: &[u8], usual: &Table) -> bool {
        // SAFETY: `self` proves that the machine has the features the function is compiled for.
        unsafe { has_unusual_escape_vbmi(text, usual) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn translate_vbmi(text: &[u8], table: &Table, out: &mut [u8]) -> Option<usize> {
    let [low, high] = table.as_chunks::<STRIDE>().0 else { return None };
    let (blocks, tail) = text.as_chunks::<STRIDE>();
    let mut last = [0; STRIDE];
    last.get_mut(..tail.len())?.copy_from_slice(tail);
    // Bytes past the end of the text are ignored.
    let ends = (1_u64 << tail.len()) - 1;
    // SAFETY: each array has the 64 bytes that are read, and the loads need no alignment.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()))
    };
    let mut len = 0;
    for (block, wanted) in blocks.iter().map(|block| (block, u64::MAX)).chain([(&last, ends)]) {
        let target: &mut [u8; STRIDE] = out.get_mut(len..)?.first_chunk_mut()?;
        // SAFETY: the array has the 64 bytes that are read, and the load needs no alignment.
        let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let ascii = !_mm512_movepi8_mask(bytes);
        // The lowest seven bits of an ASCII byte select from the 128 of the table; other bytes are unchanged.
        let changed = _mm512_mask2_permutex2var_epi8(low, bytes, ascii, high);
        let kept = wanted & _mm512_test_epi8_mask(changed, changed);
        let packed = _mm512_maskz_compress_epi8(kept, changed);
        // SAFETY: `target` has the 64 bytes that are written, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), packed) };
        len += kept.count_ones() as usize;
    }
    Some(len)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn has_unusual_escape_vbmi(text: &[u8], usual: &Table) -> bool {
    let [low, high] = usual.as_chunks::<STRIDE>().0 else { return true };
    let (blocks, tail) = text.as_chunks::<STRIDE>();
    // Padding with a byte that is usual after a backslash.
    let mut last = [b'"'; STRIDE];
    if let Some(head) = last.get_mut(..tail.len()) {
        head.copy_from_slice(tail);
    }
    // SAFETY: each array has the 64 bytes that are read, and the loads need no alignment.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()))
    };
    let (mut doubtful, mut carried) = (0, 0);
    for block in blocks.iter().chain([&last]) {
        // SAFETY: the array has the 64 bytes that are read, and the load needs no alignment.
        let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let slashes = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\\'.cast_signed()));
        let found = _mm512_permutex2var_epi8(low, bytes, high);
        let is_usual = _mm512_test_epi8_mask(found, found) & !_mm512_movepi8_mask(bytes);
        let two = slashes & slashes >> 1;
        doubtful |= (slashes << 1 | carried) & !is_usual | two & two >> 2;
        carried = slashes >> (STRIDE - 1);
    }
    doubtful != 0
}
