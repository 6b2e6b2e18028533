//! Rope of byte slices for a reply: the proxy's envelope around the original bytes.
//!
//! Zero-copy: the slices share the buffers that they were read into, and are sent by one vectored
//! write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Ordered list of slices that reads as one buffer.
#[derive(Clone, Debug, Default)]
pub struct Splice {
    /// Invariant: no empty slice, so that `chunk` is empty only at the end.
    parts: VecDeque<Bytes>,
    len: usize,
}

impl Splice {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a slice, unless it is empty.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push_back(part);
        }
    }

    /// Appends a slice, replacing its last byte with `ending`.
    pub fn push_ending(&mut self, mut part: Bytes, ending: &'static [u8]) {
        part.truncate(part.len().saturating_sub(1));
        self.push(part);
        self.push(Bytes::from_static(ending));
    }

    /// Appends all slices of another splice.
    pub fn append(&mut self, more: Self) {
        if self.is_empty() {
            *self = more;
        } else {
            self.extend(more);
        }
    }

    /// Prepends a slice.
    pub fn push_front(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push_front(part);
        }
    }

    /// Removes the first `count` bytes, or all if there are fewer. Does not copy.
    pub fn split_to(&mut self, count: usize) -> Self {
        let mut taken = Self::new();
        while taken.len < count
            && let Some(mut part) = self.parts.pop_front()
        {
            let left = count - taken.len;
            if part.len() > left {
                self.parts.push_front(part.split_off(left));
            }
            self.len -= part.len();
            taken.push(part);
        }
        taken
    }

    /// The slices, in order.
    pub fn slices(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter()
    }

    /// Number of bytes left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl From<Bytes> for Splice {
    fn from(part: Bytes) -> Self {
        let mut splice = Self::new();
        splice.push(part);
        splice
    }
}

impl IntoIterator for Splice {
    type Item = Bytes;
    type IntoIter = std::collections::vec_deque::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter()
    }
}

impl FromIterator<Bytes> for Splice {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut splice = Self::new();
        splice.extend(parts);
        splice
    }
}

impl Extend<Bytes> for Splice {
    fn extend<I: IntoIterator<Item = Bytes>>(&mut self, parts: I) {
        for part in parts {
            self.push(part);
        }
    }
}

impl Buf for Splice {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slot, part) in dst.iter_mut().zip(&self.parts) {
            *slot = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    /// # Panics
    ///
    /// If `count` exceeds the remaining bytes, as `Buf` requires.
    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advanced past the end of a splice");
        self.len -= count;
        while count > 0 {
            let Some(front) = self.parts.front_mut() else { return };
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.parts.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        // A whole slice is shared; anything else is copied, as for any `Buf`.
        if let Some(front) = self.parts.front_mut()
            && count <= front.len()
        {
            let taken = front.split_to(count);
            if front.is_empty() {
                self.parts.pop_front();
            }
            self.len -= count;
            return taken;
        }
        let mut copy = bytes::BytesMut::with_capacity(count);
        bytes::BufMut::put(&mut copy, self.take(count));
        copy.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Splice {
        let mut splice = Splice::new();
        splice.extend(["{\"id\":1,", "", "\"result\":", "{}", "}"].map(Bytes::from));
        splice
    }

    #[test]
    fn splice_reads_as_one_buffer_at_every_advance() {
        let whole = b"{\"id\":1,\"result\":{}}";
        for cut in 0..=whole.len() {
            let mut splice = sample();
            assert_eq!(splice.len(), whole.len());
            splice.advance(cut);
            assert_eq!(splice.copy_to_bytes(splice.remaining()), whole[cut..]);
            assert!(splice.is_empty());
        }
    }

    #[test]
    fn any_prefix_of_a_splice_can_be_copied() {
        let whole = b"{\"id\":1,\"result\":{}}";
        for cut in 0..=whole.len() {
            let mut splice = sample();
            assert_eq!(splice.copy_to_bytes(cut), whole[..cut]);
            assert_eq!(splice.remaining(), whole.len() - cut);
        }
    }

    #[test]
    fn splice_is_split_anywhere_without_a_copy() {
        let whole = b"{\"id\":1,\"result\":{}}";
        for cut in 0..=whole.len() + 1 {
            let mut rest = sample();
            let mut first = rest.split_to(cut);
            let at = cut.min(whole.len());
            assert_eq!((first.len(), rest.len()), (at, whole.len() - at));
            assert_eq!(first.copy_to_bytes(first.len()), whole[..at]);
            assert_eq!(rest.copy_to_bytes(rest.len()), whole[at..]);
        }
        let original = Bytes::from(vec![b'x'; 100]);
        let mut splice = Splice::from(original.clone());
        let places = [splice.split_to(30), splice].map(|part| part.chunk().as_ptr());
        assert_eq!(places, [original.as_ptr(), original.slice(30..).as_ptr()]);
    }

    #[test]
    fn splice_offers_every_slice_for_one_vectored_write() {
        let splice = sample();
        let mut slots = [IoSlice::new(&[]); 8];
        assert_eq!(splice.chunks_vectored(&mut slots), 4, "the empty slice is dropped");
        let joined: Vec<u8> = slots.iter().flat_map(|slot| slot.to_vec()).collect();
        assert_eq!(joined, b"{\"id\":1,\"result\":{}}");
    }

    #[test]
    fn ending_replaces_the_last_byte() {
        for (part, whole) in [("{\"a\":1}", "{\"a\":1,2}"), ("}", ",2}"), ("", ",2}")] {
            let mut splice = Splice::new();
            splice.push_ending(Bytes::from(part), b",2}");
            assert_eq!(splice.len(), whole.len());
            assert_eq!(splice.copy_to_bytes(splice.len()), whole);
        }
    }

    #[test]
    fn slices_are_shared_not_copied() {
        let original = Bytes::from(vec![b'x'; 100]);
        let mut splice = Splice::from(original.slice(10..20));
        assert_eq!(splice.copy_to_bytes(10).as_ptr(), original.slice(10..20).as_ptr());
    }
}
