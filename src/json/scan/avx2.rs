//! The kernel for x86-64 with AVX2, carry-less multiply, popcount and BMI.
//!
//! Owns vector instructions that not every machine has, and unaligned vector loads. A value of [`Avx2`] proves that this machine has the instructions;
//! every load is from an array at least as long as what it reads. No pointer is kept or written.
#![expect(unsafe_code, reason = "vector intrinsics; the safety argument stands above each use")]

use core::arch::x86_64::{
    __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
};

use super::skip::{BLOCK, Bits, Classify, Skip, Skipped};

/// Bytes in a vector.
const VECTOR: usize = 32;

/// Proof that this machine has the instructions. Only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Asks the machine; the answer is cached by the standard library.
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

/// [`Skip::run`], compiled with the features.
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
        // Multiplying by all ones without carries adds up, modulo 2, every bit at or below.
        // SAFETY: `self` proves that the machine has carry-less multiply.
        unsafe {
            let bits = _mm_set_epi64x(0, bits.cast_signed());
            let product = _mm_clmulepi64_si128::<0>(bits, _mm_set1_epi8(-1));
            _mm_cvtsi128_si64(product).cast_unsigned()
        }
    }
}

/// A bit for each of 64 bytes that is `wanted`.
///
/// # Safety
///
/// The machine must have AVX2.
#[inline(always)]
unsafe fn equal(low: __m256i, high: __m256i, wanted: u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        let wanted = _mm256_set1_epi8(wanted.cast_signed());
        let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)).cast_unsigned();
        let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)).cast_unsigned();
        u64::from(high) << 32 | u64::from(low)
    }
}
