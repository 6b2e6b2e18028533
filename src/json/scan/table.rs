//! Translation table of the ASCII bytes, for [`translate`](super::translate()).

/// Replacement of each ASCII byte; 0 drops the byte. Other bytes are unchanged.
pub type Table = [u8; 128];

/// Number of bytes written at a time; not all of them need be part of the result.
pub(super) const STRIDE: usize = 64;
