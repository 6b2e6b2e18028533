//! A map of the ASCII bytes, as [`translate`](super::translate()) takes it.

/// What each ASCII byte becomes; 0 where it is left out. Other bytes stay as they are.
pub type Table = [u8; 128];

/// Bytes written at a time, of which those that count may be fewer.
pub(super) const STRIDE: usize = 64;
