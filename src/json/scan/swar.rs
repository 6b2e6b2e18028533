//! SWAR (eight bytes at a time in a 64-bit register): runs of plain string bytes, and the portable classification of a block.

#[cfg(target_arch = "x86_64")]
use super::sse;

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

/// Length of the run of plain string bytes: no quote, backslash or control character.
#[inline]
pub fn string_run(bytes: &[u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    let (len, bytes) = match sse::string_run(bytes) {
        Ok(len) => return len,
        Err(tail) => (bytes.len() - tail.len(), tail),
    };
    #[cfg(not(target_arch = "x86_64"))]
    let len = 0;
    len + run(bytes, 0)
}

/// Length of the run of plain ASCII string bytes.
pub(super) fn ascii_run(bytes: &[u8]) -> usize {
    run(bytes, HIGHS)
}

/// Number of bytes before the first quote, backslash, control character, or byte with a bit of `stop`.
#[inline(always)]
fn run(bytes: &[u8], stop: u64) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut len = 0;
    for &word in words {
        let word = u64::from_le_bytes(word);
        // Each term is exact up to its first marked byte, and only the first one is used.
        let below = |bytes: u64, bound: u8| bytes.wrapping_sub(ONES * u64::from(bound)) & !bytes;
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let found = (below(word, 0x20) | quote | backslash) & HIGHS | word & stop;
        if found != 0 {
            return len + (found.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    let special = |&byte: &u8| {
        byte < 0x20 || byte == b'"' || byte == b'\\' || u64::from(byte) & stop & 0xFF != 0
    };
    len + tail.iter().position(special).unwrap_or(tail.len())
}

/// Bit mask of the bytes of `block` that equal `wanted` after `fold` is or-ed in; bit 0 is the first byte.
#[inline(always)]
pub(super) fn bits(block: &[u8; 64], fold: u8, wanted: u8) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let mut bits = 0;
    for (index, &word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(word) | (ONES * u64::from(fold));
        let differ = word ^ (ONES * u64::from(wanted));
        // The high bit of a byte is set unless the byte is zero; no carry crosses into another byte.
        let nonzero = ((differ & !HIGHS) + !HIGHS) | differ;
        let equal = (!nonzero & HIGHS) >> 7;
        // Gathers the eight low bits in the top byte: bit 8i goes to bit 56 + i.
        bits |= (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (index * 8);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ends_at_the_first_special_byte() {
        for special in 0..=255_u8 {
            for at in 0..100 {
                let mut bytes = [b'a'; 100];
                bytes[at] = special;
                if at + 1 < 100 {
                    bytes[at + 1] = b'"';
                }
                let stops = special < 0x20 || special == b'"' || special == b'\\';
                let next = (at + 1).min(100);
                assert_eq!(string_run(&bytes), if stops { at } else { next });
                assert_eq!(ascii_run(&bytes), if stops || special > 127 { at } else { next });
            }
        }
    }

    #[test]
    fn byte_mask_marks_exactly_the_matching_bytes() {
        let mut block = [0_u8; 64];
        for start in 0..=255_u8 {
            for (index, byte) in block.iter_mut().enumerate() {
                *byte = start.wrapping_add(index as u8);
            }
            for (fold, wanted) in [(0, b'"'), (0, b'\\'), (0x20, b'{'), (0x20, b'}')] {
                let found = bits(&block, fold, wanted);
                for (index, byte) in block.iter().enumerate() {
                    assert_eq!(found >> index & 1 == 1, byte | fold == wanted);
                }
            }
        }
    }
}
