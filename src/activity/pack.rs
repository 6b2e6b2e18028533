//! Blocks packed by LZ4 for the store: what is written, synced and kept until it is in a table is
//! then a part of what was recorded. Pure.
//!
//! ```text
//! packed block     2 · length of the block · LZ4 block
//! ```
//!
//! A block that LZ4 does not make shorter is stored as it is: its own first byte says so.

use bytes::Bytes;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::bytes::{DecodeError, Reader, VERSION, put_varint};

/// The first byte of a packed block; that of any other is [`VERSION`].
const PACKED: u8 = 2;
/// LZ4 makes nothing shorter than by this factor: a length beyond it was not written by us.
const MAX_RATIO: usize = 255;

/// Packs blocks, one after the other, in the same memory.
pub struct Packer {
    table: CompressTable,
    out: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Self {
        Self { table: CompressTable::small(), out: Vec::new() }
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("room", &self.out.len()).finish_non_exhaustive()
    }
}

impl Packer {
    /// The block as it is stored. It takes no more memory than it is long.
    pub fn pack(&mut self, block: Vec<u8>) -> Vec<u8> {
        let most = get_maximum_output_size(block.len());
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let packed = compress_into_with_table(&block, &mut self.out, &mut self.table);
        let packed = packed.ok().and_then(|length| self.out.get(..length)).unwrap_or(&block);
        let mut header = vec![PACKED];
        put_varint(&mut header, block.len() as u64);
        if header.len() + packed.len() < block.len() { [&header, packed].concat() } else { block }
    }
}

/// The block that was stored so.
///
/// # Errors
///
/// [`DecodeError`] for anything that [`Packer::pack`] does not write; the block itself is not
/// looked at.
pub fn unpack(stored: Bytes) -> Result<Bytes, DecodeError> {
    let mut reader = Reader(&stored);
    match reader.byte()? {
        VERSION => return Ok(stored),
        PACKED => {}
        other => return Err(DecodeError::Version(other)),
    }
    let length = usize::try_from(reader.varint()?).map_err(|_| DecodeError::Value)?;
    if length > reader.0.len().saturating_mul(MAX_RATIO) {
        return Err(DecodeError::Value);
    }
    let mut block = vec![0; length];
    match decompress_into(reader.0, &mut block) {
        Ok(got) if got == length => Ok(block.into()),
        Ok(_) => Err(DecodeError::Short),
        Err(_) => Err(DecodeError::Value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(block: &[u8]) -> Bytes {
        Packer::default().pack(block.to_vec()).into()
    }

    #[test]
    fn what_repeats_itself_is_packed_and_comes_back() {
        let block = [&[VERSION][..], &br#"{"a":"the same again"}"#.repeat(1000)].concat();
        let stored = packed(&block);
        assert_eq!(stored[0], PACKED);
        assert!(stored.len() * 50 < block.len(), "{}", stored.len());
        assert_eq!(unpack(stored.clone()).unwrap(), block);
        for cut in 0..stored.len() {
            assert!(unpack(stored.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_packed_block_is_read_as_the_format_says() {
        // Written by hand: 2 literals, 20 bytes from 1 byte back, 5 literals.
        let lz4 = b"\x2f\x01a\x01\x00\x01\x50aaaaa";
        let stored = [&[PACKED, 27][..], lz4].concat();
        let block = [&[VERSION][..], &[b'a'; 26]].concat();
        assert_eq!(unpack(stored.into()).unwrap(), block);
    }

    #[test]
    fn what_does_not_is_stored_as_it_is() {
        let block = [VERSION, 1, 2, 3, 4, 5];
        assert_eq!(packed(&block)[..], block);
        assert_eq!(unpack(Bytes::copy_from_slice(&block)).unwrap()[..], block);
    }

    #[test]
    fn an_impossible_length_and_an_unknown_version_are_refused() {
        let mut bomb = vec![PACKED];
        put_varint(&mut bomb, u64::MAX);
        bomb.extend([0; 100]);
        assert_eq!(unpack(bomb.into()), Err(DecodeError::Value));
        assert_eq!(unpack(Bytes::from_static(&[3, 0])), Err(DecodeError::Version(3)));
        assert_eq!(unpack(Bytes::new()), Err(DecodeError::Short));
    }

    proptest! {
        #[test]
        fn any_blocks_come_back_from_the_same_packer(
            blocks in prop::collection::vec(prop::collection::vec(0..4_u8, 0..5000), 1..4),
        ) {
            let mut packer = Packer::default();
            for mut block in blocks {
                block.insert(0, VERSION);
                let stored = packer.pack(block.clone());
                prop_assert!(stored.len() <= block.len());
                prop_assert_eq!(unpack(stored.into()).unwrap(), block);
            }
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes: Vec<u8>) {
            let _ = unpack(bytes.clone().into());
            let _ = unpack([vec![PACKED], bytes].concat().into());
        }
    }
}
