//! Numbers, texts and payloads as bytes: the primitives that `codec`, `segment`, `stats` and `begun`
//! are written with. Pure.

use thiserror::Error;

use super::record::PayloadRef;

/// The version written today of blocks, bodies, and what is derived from records.
pub const VERSION: u8 = 1;

/// Why bytes are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("ends too early")]
    Short,
    /// There are bytes after the end.
    #[error("has bytes after its end")]
    Trailing,
    /// Its version is not known to this program.
    #[error("has unknown version {0}")]
    Version(u8),
    /// It holds a number, code or text that is never written.
    #[error("has an impossible value")]
    Value,
}

/// Appends a number, seven bits a byte.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends bytes after their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a payload: its whole length, then what was kept.
pub fn put_payload(out: &mut Vec<u8>, payload: PayloadRef<'_>) {
    put_varint(out, payload.total);
    put_bytes(out, payload.bytes);
}

/// Maps signed numbers to unsigned ones, small ones to small ones.
#[must_use]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
#[must_use]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes values off the front of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// One byte.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Short`].
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&first, rest) = self.0.split_first().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    /// The version byte.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Version`] for one that is not known.
    pub fn version(&mut self) -> Result<(), DecodeError> {
        match self.byte()? {
            VERSION => Ok(()),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// A number.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] for more than 64 bits.
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

    /// `N` bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Short`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Bytes after their length.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Short`].
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.varint()?).map_err(|_| DecodeError::Value)?;
        let (first, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    /// A text after its length.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] if it is not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        simdutf8::basic::from_utf8(self.bytes()?).map_err(|_| DecodeError::Value)
    }

    /// A number of things that each take at least one byte of what follows.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Short`] if they cannot all follow.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::Value)?;
        if count > self.0.len() { Err(DecodeError::Short) } else { Ok(count) }
    }

    /// Nothing more.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Trailing`] if there is.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    /// A payload.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Value`] if more was kept than there was.
    pub fn payload(&mut self) -> Result<PayloadRef<'a>, DecodeError> {
        let total = self.varint()?;
        let bytes = self.bytes()?;
        if total < bytes.len() as u64 {
            return Err(DecodeError::Value);
        }
        Ok(PayloadRef { bytes, total })
    }

    /// The place of length-prefixed bytes in a whole of `len` bytes that ends where this ends.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Short`].
    pub fn range(&mut self, len: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        let bytes = self.bytes()?;
        let end = len - self.0.len();
        Ok(end - bytes.len()..end)
    }
}
