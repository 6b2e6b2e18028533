//! Thrift's compact protocol, as far as tables are written in it: read from the front of bytes that may be anything. Pure.
//!
//! Strict, so that what is read here cannot be read as something else elsewhere: the fields of a structure ascend, each at
//! most once, a value is of the kind that it is said to be, and whoever reads says which that is. Nothing is reserved for what is
//! only claimed: a list has no more elements than bytes are left, and each of them takes one at least.

use super::table_error::TableError;

/// Structures and lists in each other, at most: tables have five.
const MAX_DEPTH: usize = 8;
/// Bits of a number in one of its bytes; the highest says that there is another one.
const VARINT_BITS: u32 = 7;

/// What a value is. Kinds that tables do not have are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    True,
    False,
    Short,
    Int,
    Long,
    Binary,
    List,
    Structure,
}

impl ValueKind {
    fn of(code: u8) -> Result<Self, TableError> {
        Ok(match code {
            1 => Self::True,
            2 => Self::False,
            4 => Self::Short,
            5 => Self::Int,
            6 => Self::Long,
            8 => Self::Binary,
            9 => Self::List,
            12 => Self::Structure,
            _ => return Err(malformed("a value is of no kind that tables have")),
        })
    }
}

fn malformed(why: &str) -> TableError {
    TableError::Form(why.into())
}

/// What is left to be read.
pub(super) struct CompactReader<'a> {
    rest: &'a [u8],
}

impl<'a> CompactReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that were not read.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Result<u8, TableError> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| malformed("it is cut"))?;
        self.rest = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, TableError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(VARINT_BITS as usize) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number is too long"))
    }

    /// A number, of whatever width.
    pub(super) fn number(&mut self) -> Result<i64, TableError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number that counts something, or says where it is.
    pub(super) fn count(&mut self) -> Result<usize, TableError> {
        usize::try_from(self.number()?).map_err(|_| malformed("a number is not as it can be"))
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], TableError> {
        let length = self.varint()?;
        let split = usize::try_from(length).ok().and_then(|at| self.rest.split_at_checked(at));
        let (read, rest) = split.ok_or_else(|| malformed("it is cut"))?;
        self.rest = rest;
        Ok(read)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, TableError> {
        std::str::from_utf8(self.binary()?).map_err(|_| malformed("a text is none"))
    }

    /// The beginning of a list of values of this kind: how many follow.
    pub(super) fn list(&mut self, kind: ValueKind) -> Result<usize, TableError> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).unwrap_or(usize::MAX),
            count => usize::from(count),
        };
        if count > self.left() {
            return Err(malformed("a list is longer than what is left"));
        }
        if ValueKind::of(head & 15)? != kind {
            return Err(malformed("a list is of other values"));
        }
        Ok(count)
    }

    /// The fields of a structure: `each` reads the value of one, which has this number and is of this kind.
    pub(super) fn fields(
        &mut self,
        mut each: impl FnMut(&mut Self, u8, ValueKind) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let mut id = 0_u8;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let next = id.checked_add(head >> 4).filter(|next| *next > id);
            id = next.ok_or_else(|| malformed("the fields of a structure do not ascend"))?;
            each(self, id, ValueKind::of(head & 15)?)?;
        }
    }

    /// The bytes of a value of this kind, which is passed over.
    pub(super) fn raw(&mut self, kind: ValueKind) -> Result<&'a [u8], TableError> {
        let all = self.rest;
        self.skip(kind, MAX_DEPTH)?;
        Ok(all.get(..all.len() - self.left()).unwrap_or_default())
    }

    fn skip(&mut self, kind: ValueKind, depth: usize) -> Result<(), TableError> {
        let Some(deeper) = depth.checked_sub(1) else {
            return Err(malformed("its values lie too deep in each other"));
        };
        match kind {
            ValueKind::True | ValueKind::False => Ok(()),
            ValueKind::Short | ValueKind::Int | ValueKind::Long => self.varint().map(drop),
            ValueKind::Binary => self.binary().map(drop),
            ValueKind::Structure => self.fields(|reader, _, kind| reader.skip(kind, deeper)),
            ValueKind::List => {
                let kind = ValueKind::of(self.rest.first().map_or(0, |head| head & 15))?;
                // One that takes no byte could be claimed without end.
                if matches!(kind, ValueKind::True | ValueKind::False) {
                    return Err(malformed("a list is of no values that tables have"));
                }
                for _ in 0..self.list(kind)? {
                    self.skip(kind, deeper)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_texts_and_lists_are_read_and_what_is_only_claimed_is_not() {
        let mut reader = CompactReader::new(&[0x03, 0xd8, 0x04, 2, b'a', b'b', 0x25, 2, 4, 7]);
        assert_eq!((reader.number().unwrap(), reader.number().unwrap()), (-2, 300));
        assert_eq!(reader.text().unwrap(), "ab");
        assert_eq!(reader.list(ValueKind::Int).unwrap(), 2);
        assert_eq!((reader.count().unwrap(), reader.count().unwrap()), (1, 2));
        assert_eq!(reader.left(), 1);
        for (bytes, why) in [
            (&[0x80_u8; 3][..], "cut"),
            (&[0xff; 12], "too long"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "too long"),
        ] {
            let error = CompactReader::new(bytes).number().unwrap_err().to_string();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        let greatest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(CompactReader::new(&greatest).number().unwrap(), i64::MIN);
        assert!(CompactReader::new(&[0x03]).count().is_err());
        assert!(CompactReader::new(&[3, b'a']).binary().is_err());
        assert!(
            CompactReader::new(&[0xfc, 0xff, 0xff, 0xff, 0x7f]).list(ValueKind::Structure).is_err()
        );
        assert!(CompactReader::new(&[0x15, 0]).list(ValueKind::Long).is_err());
    }

    #[test]
    fn fields_ascend_and_each_is_of_its_kind() {
        let seen = |bytes: &[u8]| {
            let mut seen = Vec::new();
            let read = CompactReader::new(bytes).fields(|reader, id, kind| {
                seen.push((id, kind));
                reader.raw(kind).map(drop)
            });
            read.map(|()| seen).map_err(|error| error.to_string())
        };
        let two = [(1, ValueKind::Int), (4, ValueKind::True)];
        assert_eq!(seen(&[0x15, 2, 0x31, 0]), Ok(two.to_vec()));
        // A number that is written in full may stand anywhere, and one of 16 bits more than once.
        for (bytes, why) in [
            (&[0x05, 2, 2, 0][..], "do not ascend"),
            (&[0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2, 0xf5, 2][..6], "cut"),
            (&[0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0], "no kind"),
            (&[0x1b, 0, 0], "no kind"),
            (&[0x15], "cut"),
            // Two billions of values without a byte.
            (&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 7, 0], "no values"),
        ] {
            let error = seen(bytes).unwrap_err();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        let deep = vec![0x1c; 100_000];
        assert!(seen(&deep).unwrap_err().contains("too deep"));
        let deep = vec![0x19; 100_000];
        assert!(seen(&deep).unwrap_err().contains("too deep"));
    }
}
