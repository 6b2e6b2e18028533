//! Vectorized passes over text: translation by a table of bytes, and detection of unusual escapes.

use memchr::memchr;

use super::table::{STRIDE, Table};

/// Writes `text`, translated by `table`, to `out` and returns the written part. `out` grows with the longest text and is not cleared.
/// `None` only on an internal error.
pub fn translate<'a>(text: &[u8], table: &Table, out: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if out.len() < text.len() + STRIDE {
        out.resize(text.len() + STRIDE, 0);
    }
    #[cfg(target_arch = "x86_64")]
    let len = match super::avx::Avx512Vbmi::detect() {
        Some(vbmi) => vbmi.translate(text, table, out),
        None => portable(text, table, out),
    };
    #[cfg(not(target_arch = "x86_64"))]
    let len = portable(text, table, out);
    out.get(..len?)
}

/// Returns true if `text` has an unusual escape (other than of a quote, a slash or white space) or eight backslashes in a row;
/// may also return true for four to seven in a row.
pub fn has_unusual_escape(text: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(vbmi) = super::avx::Avx512Vbmi::detect() {
        return vbmi.has_unusual_escape(text, &USUAL);
    }
    portable_unusual(text)
}

/// Characters that follow the backslash in usual escapes.
#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, and every index is within the table"
)]
const USUAL: Table = {
    let mut usual = [0; 128];
    let mut at = 0;
    while at < usual.len() {
        usual[at] = is_usual(at as u8) as u8;
        at += 1;
    }
    usual
};

const fn is_usual(byte: u8) -> bool {
    let quoted = (byte == b'"') | (byte == b'\\') | (byte == b'/');
    quoted | (byte == b'n') | (byte == b't') | (byte == b'r')
}

/// [`has_unusual_escape`] without vectors.
fn portable_unusual(text: &[u8]) -> bool {
    let Some(text) = memchr(b'\\', text).and_then(|first| text.get(first..)) else { return false };
    let after = text.get(1..).unwrap_or_default();
    // Branch-free, so that it vectorizes.
    let unusual = text
        .iter()
        .zip(after)
        .fold(0, |unusual, (byte, next)| unusual | u8::from((*byte == b'\\') & !is_usual(*next)));
    // Eight in a row include four bytes that begin at a multiple of four.
    let fours = text.as_chunks().0;
    unusual != 0 || fours.iter().fold(false, |found, four| found | (*four == [b'\\'; 4]))
}

/// [`translate`] without vectors. Returns the number of bytes written, `None` if `out` is too small.
fn portable(text: &[u8], table: &Table, out: &mut [u8]) -> Option<usize> {
    const EIGHT: usize = 8;
    let look_up = |byte: &u8| table.get(usize::from(*byte)).copied().unwrap_or(*byte);
    let mut len = 0;
    // Chunks of eight bytes need only one bounds check each.
    let (eights, rest) = text.as_chunks::<EIGHT>();
    for eight in eights {
        let slots: &mut [u8; EIGHT] = out.get_mut(len..)?.first_chunk_mut()?;
        let mut kept = 0;
        for byte in eight {
            let byte = look_up(byte);
            if let Some(slot) = slots.get_mut(kept % EIGHT) {
                *slot = byte;
            }
            kept += usize::from(byte != 0);
        }
        len += kept;
    }
    for byte in rest {
        let byte = look_up(byte);
        *out.get_mut(len)? = byte;
        len += usize::from(byte != 0);
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_translated_by_the_table_or_unchanged(
            text in proptest::collection::vec(any::<u8>(), 0..300),
            mut table in proptest::array::uniform32(any::<[u8; 4]>()),
            holes in any::<u32>(),
        ) {
            for (at, row) in table.iter_mut().enumerate().filter(|(at, _)| holes >> at & 1 == 1) {
                row[at % 4] = 0;
            }
            let table: Table = table.concat().try_into().unwrap();
            let expected: Vec<u8> = text
                .iter()
                .map(|byte| if *byte < 128 { table[usize::from(*byte)] } else { *byte })
                .filter(|byte| *byte != 0)
                .collect();
            let mut out = vec![7; 5];
            prop_assert_eq!(translate(&text, &table, &mut out), Some(&expected[..]));
            let len = portable(&text, &table, &mut out);
            prop_assert_eq!(len.map(|len| &out[..len]), Some(&expected[..]));
        }

        #[test]
        fn unusual_escapes_and_runs_of_backslashes_are_found(
            pieces in proptest::collection::vec(
                proptest::sample::select(&[
                    "\\", "\\\\", "\\\"", "\\n", "\\u0041", "\\é", "a", "bcdefghij", "é", "\"",
                    "0123456789abcdefghijklmnopqrstuvwxyz",
                ][..]),
                0..24,
            ),
        ) {
            let text = pieces.concat().into_bytes();
            let unusual = text
                .windows(2)
                .any(|pair| pair[0] == b'\\' && !b"\"\\/nrt".contains(&pair[1]));
            let row = |count: usize| text.windows(count).any(|row| row.iter().all(|it| *it == b'\\'));
            for found in [has_unusual_escape(&text), portable_unusual(&text)] {
                prop_assert!(found || !(unusual || row(8)));
                prop_assert!(!found || unusual || row(4));
            }
        }
    }

    #[test]
    fn unusual_escape_is_found_at_every_offset() {
        for before in 0..2 * STRIDE {
            let text = |escape: &str| format!("{}{escape}", "x".repeat(before)).into_bytes();
            for look in [has_unusual_escape, portable_unusual] {
                for usual in ["", "\\", "\\n\"", "\\\\\\\"x"] {
                    assert!(!look(&text(usual)), "{usual} after {before}");
                }
                for unusual in ["\\u0041", "\\é", "\\\0", &"\\".repeat(8)] {
                    assert!(look(&text(unusual)), "{unusual} after {before}");
                }
            }
        }
    }
}
