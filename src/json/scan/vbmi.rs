//! Passes over text by a table of 128 bytes, for x86-64 with AVX-512 on bytes and its permutations
//! (VBMI): 64 bytes are looked up at once.
//!
//! A value of [`Avx512Vbmi`] proves that this machine has the instructions; every load and store is
//! from and to an array as long as what it reads or writes. No pointer is kept.
#![expect(unsafe_code, reason = "vector intrinsics; the safety argument stands above each use")]

use core::arch::x86_64::{
    _mm512_cmpeq_epi8_mask, _mm512_loadu_si512, _mm512_mask2_permutex2var_epi8,
    _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_set1_epi8,
    _mm512_storeu_si512, _mm512_test_epi8_mask,
};

use super::table::{STRIDE, Table};

/// Proof that this machine can pick bytes from vectors as well. Only [`Avx512Vbmi::detect`] makes
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512Vbmi(());

impl Avx512Vbmi {
    /// Asks the machine; the answer is cached by the standard library.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Self(()))
    }

    /// See [`translate`](super::translate::translate). Returns the number of bytes written,
    /// `None` if `out` has no room for the text and a stride.
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
    // Past the end of the text nothing is kept.
    let ends = (1_u64 << tail.len()) - 1;
    // SAFETY: each array has the 64 bytes that are read, and the loads need no alignment.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()))
    };
    let mut len = 0;
    for (block, wanted) in blocks.iter().map(|block| (block, u64::MAX)).chain([(&last, ends)]) {
        let room: &mut [u8; STRIDE] = out.get_mut(len..)?.first_chunk_mut()?;
        // SAFETY: the array has the 64 bytes that are read, and the load needs no alignment.
        let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let ascii = !_mm512_movepi8_mask(bytes);
        // The lowest seven bits of an ASCII byte pick from the 128 of the table; others stay.
        let changed = _mm512_mask2_permutex2var_epi8(low, bytes, ascii, high);
        let kept = wanted & _mm512_test_epi8_mask(changed, changed);
        let packed = _mm512_maskz_compress_epi8(kept, changed);
        // SAFETY: `room` is the 64 bytes that are written, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), packed) };
        len += kept.count_ones() as usize;
    }
    Some(len)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn has_unusual_escape_vbmi(text: &[u8], usual: &Table) -> bool {
    let [low, high] = usual.as_chunks::<STRIDE>().0 else { return true };
    let (blocks, tail) = text.as_chunks::<STRIDE>();
    // What follows the text is usual after a backslash.
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
