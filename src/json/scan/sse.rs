//! Runs of plain string bytes with SSE2, which every x86-64 processor has: no detection, and inlined into its callers.
#![expect(unsafe_code, reason = "vector intrinsics; the safety argument stands above each use")]

use core::arch::x86_64::{
    _mm_cmpeq_epi8, _mm_loadu_si128, _mm_max_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};

/// Bytes in a vector.
const VECTOR: usize = 16;

/// Length of the run of plain string bytes if it ends in a whole block; otherwise `Err` with the bytes after the last
/// whole block.
///
/// Reads two vectors at a time: nearly all strings end in the first block, so the branch is predictable.
#[inline(always)]
pub(super) fn string_run(bytes: &[u8]) -> Result<usize, &[u8]> {
    let (blocks, tail) = bytes.as_chunks::<{ 2 * VECTOR }>();
    for (index, block) in blocks.iter().enumerate() {
        let [low, high] = *block.as_chunks::<VECTOR>().0 else { return Err(tail) };
        let found = special(&high) << VECTOR | special(&low);
        if found != 0 {
            return Ok(index * 2 * VECTOR + found.trailing_zeros() as usize);
        }
    }
    Err(tail)
}

/// Bit mask of the quotes, backslashes and control characters; bit 0 is the first byte.
#[inline(always)]
fn special(bytes: &[u8; VECTOR]) -> u32 {
    // SAFETY: every x86-64 processor has SSE2; the array has the 16 bytes that are read, and the load needs no alignment.
    unsafe {
        let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
        let quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"'.cast_signed()));
        let backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\'.cast_signed()));
        let last_control = _mm_set1_epi8(0x1F);
        let control = _mm_cmpeq_epi8(_mm_max_epu8(bytes, last_control), last_control);
        let found = _mm_or_si128(control, _mm_or_si128(quote, backslash));
        _mm_movemask_epi8(found).cast_unsigned()
    }
}
