//! The kernel for x86-64 with AVX-512 on bytes: what [`avx2`](super::avx2) does in vectors of half
//! a block, with a whole block in one, and with comparisons that give their bits at once.
//!
//! A value of [`Avx512`] proves that this machine has the instructions; every load is from an array as
//! long as what it reads. No pointer is kept or written.
#![expect(unsafe_code, reason = "vector intrinsics; the safety argument stands above each use")]

use core::arch::x86_64::{
    _mm512_cmpeq_epi8_mask, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi8,
};

use super::avx2::Avx2;
use super::skip::{BLOCK, Bits, Classify, Skip, Skipped};

/// Proof that this machine has the instructions. Only [`Avx512::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512(Avx2);

impl Avx512 {
    /// Asks the machine; the answer is cached by the standard library.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        Avx2::detect().filter(|_| has).map(Self)
    }

    pub(super) fn skip(self, skip: &mut Skip, bytes: &[u8]) -> Skipped {
        // SAFETY: `self` proves that the machine has the features the function is compiled for.
        unsafe { skip_avx512(self, skip, bytes) }
    }
}

/// [`Skip::run`], compiled with the features.
#[target_feature(enable = "avx512f,avx512bw,avx2,pclmulqdq,popcnt,bmi1")]
fn skip_avx512(kernel: Avx512, skip: &mut Skip, bytes: &[u8]) -> Skipped {
    skip.run(kernel, bytes)
}

impl Classify for Avx512 {
    #[inline(always)]
    fn classify(self, block: &[u8; BLOCK]) -> Bits {
        // SAFETY: the array has the 64 bytes that are read, the load needs no alignment, and
        // `self` proves that the machine has AVX-512 on bytes.
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
