//! Binary primitives (varints, length-prefixed bytes, payloads) shared by `codec`, `segment`, `stats` and
//! `in_flight`, and LZ4 compression of blocks. Pure.
//!
//! ```text
//! packed block     2 · block length · LZ4 block
//! ```
//!
//! Blocks are compressed before they reach the store, so the journal, the memtable and the tables hold them compressed.
//! A block that LZ4 does not shrink is stored unchanged. Its first byte is then its format version, which differs from
//! the 2 of a packed block.

use bytes::Bytes;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use thiserror::Error;

use super::record::PayloadRef;

/// Format version written by this release for blocks, bodies and derived data.
pub const VERSION: u8 = 1;

/// Reason why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("ends too early")]
    Short,
    /// Bytes follow the end of the decoded value.
    #[error("has bytes after its end")]
    Trailing,
    /// The format version is newer than this program.
    #[error("has unknown version {0}")]
    Version(u8),
    /// The bytes hold a number, code or text that no encoder writes.
    #[error("has an impossible value")]
    Value,
}

/// Appends an unsigned LEB128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends length-prefixed bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a payload: its original length, then the kept bytes.
pub(crate) fn put_payload(out: &mut Vec<u8>, payload: PayloadRef<'_>) {
    put_varint(out, payload.total);
    put_bytes(out, payload.bytes);
}

/// Maps signed to unsigned numbers so that small magnitudes stay small.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Cursor that decodes values from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&first, rest) = self.0.split_first().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    /// Reads and checks the version byte.
    pub(crate) fn version(&mut self) -> Result<(), DecodeError> {
        match self.byte()? {
            VERSION => Ok(()),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// Reads a varint of at most 64 bits.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(DecodeError::Value);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads length-prefixed bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.varint()?).map_err(|_| DecodeError::Value)?;
        let (first, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    /// Reads length-prefixed UTF-8 text.
    pub(crate) fn text(&mut self) -> Result<&'a str, DecodeError> {
        simdutf8::basic::from_utf8(self.bytes()?).map_err(|_| DecodeError::Value)
    }

    /// Reads the number of elements that follow, each of which takes at least one byte.
    pub(crate) fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::Value)?;
        if count > self.0.len() { Err(DecodeError::Short) } else { Ok(count) }
    }

    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    /// Reads a payload; more kept bytes than its original length is an error.
    pub(crate) fn payload(&mut self) -> Result<PayloadRef<'a>, DecodeError> {
        let total = self.varint()?;
        let bytes = self.bytes()?;
        if total < bytes.len() as u64 {
            return Err(DecodeError::Value);
        }
        Ok(PayloadRef { bytes, total })
    }

    /// Reads length-prefixed bytes and returns their range in the enclosing buffer of `len` bytes, which ends
    /// where this reader ends.
    pub(crate) fn range(&mut self, len: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        let bytes = self.bytes()?;
        let end = len - self.0.len();
        Ok(end - bytes.len()..end)
    }
}

/// First byte of a compressed block; an uncompressed block starts with [`VERSION`].
const PACKED: u8 = 2;
/// Maximum compression ratio of LZ4. A block that claims a larger length is corrupt.
const MAX_RATIO: usize = 255;

/// LZ4 compressor that reuses its memory from block to block.
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
        f.debug_struct("Packer").field("capacity", &self.out.len()).finish_non_exhaustive()
    }
}

impl Packer {
    /// Compresses a block, or returns it unchanged if compression does not shorten it. Allocates at most the length of
    /// the result.
    pub fn pack(&mut self, block: Vec<u8>) -> Vec<u8> {
        let max = get_maximum_output_size(block.len());
        if self.out.len() < max {
            self.out.resize(max, 0);
        }
        let packed = compress_into_with_table(&block, &mut self.out, &mut self.table);
        let packed = packed.ok().and_then(|length| self.out.get(..length)).unwrap_or(&block);
        let mut header = vec![PACKED];
        put_varint(&mut header, block.len() as u64);
        if header.len() + packed.len() < block.len() { [&header, packed].concat() } else { block }
    }
}

/// Decompresses a stored block; its contents are not checked.
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
        Ok(actual) if actual == length => Ok(block.into()),
        Ok(_) => Err(DecodeError::Short),
        Err(_) => Err(DecodeError::Value),
    }
}

#[cfg(test)]
mod pack_tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(block: &[u8]) -> Bytes {
        Packer::default().pack(block.to_vec()).into()
    }

    #[test]
    fn repetitive_block_is_compressed_and_round_trips() {
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
    fn hand_written_lz4_block_is_decompressed() {
        // Hand-written: 2 literals, 20 bytes copied from 1 byte back, 5 literals.
        let lz4 = b"\x2f\x01a\x01\x00\x01\x50aaaaa";
        let stored = [&[PACKED, 27][..], lz4].concat();
        let block = [&[VERSION][..], &[b'a'; 26]].concat();
        assert_eq!(unpack(stored.into()).unwrap(), block);
    }

    #[test]
    fn incompressible_block_is_stored_unchanged() {
        let block = [VERSION, 1, 2, 3, 4, 5];
        assert_eq!(packed(&block)[..], block);
        assert_eq!(unpack(Bytes::copy_from_slice(&block)).unwrap()[..], block);
    }

    #[test]
    fn impossible_length_and_unknown_version_are_rejected() {
        let mut bomb = vec![PACKED];
        put_varint(&mut bomb, u64::MAX);
        bomb.extend([0; 100]);
        assert_eq!(unpack(bomb.into()), Err(DecodeError::Value));
        assert_eq!(unpack(Bytes::from_static(&[3, 0])), Err(DecodeError::Version(3)));
        assert_eq!(unpack(Bytes::new()), Err(DecodeError::Short));
    }

    proptest! {
        #[test]
        fn blocks_round_trip_through_a_reused_packer(
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
        fn arbitrary_bytes_are_unpacked_or_rejected(bytes: Vec<u8>) {
            let _ = unpack(bytes.clone().into());
            let _ = unpack([vec![PACKED], bytes].concat().into());
        }
    }
}
