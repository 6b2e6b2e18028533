//! The memory that a thread reads into next, whichever of its connections it reads for.
//!
//! A connection that waits for a message holds nothing and needs no buffer. If each kept one all
//! the same, their buffers would push each other out of the caches, and whatever comes would be
//! written to memory that is far away, read from it, and written out of it.

use std::cell::Cell;

use bytes::BytesMut;

/// A buffer that is lent to one reader at a time.
#[derive(Default)]
pub struct BufferPool(Cell<BytesMut>);

impl BufferPool {
    /// Lends memory to a buffer that has none: what the last one left, which may be nothing, or be
    /// shared with slices that are still held.
    pub fn lend(&self, buffer: &mut BytesMut) {
        if buffer.capacity() == 0 {
            *buffer = self.0.take();
        }
    }

    /// Takes back the memory of a buffer that holds nothing.
    pub fn take_back(&self, buffer: &mut BytesMut) {
        if buffer.is_empty() {
            self.0.set(std::mem::take(buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reader_takes_the_memory_of_the_one_before() {
        let pool = BufferPool::default();
        let (mut first, mut second) = (BytesMut::with_capacity(64), BytesMut::new());
        let memory = first.as_ptr();
        pool.take_back(&mut first);
        assert_eq!(first.capacity(), 0);
        pool.lend(&mut second);
        assert_eq!(second.as_ptr(), memory);
        pool.lend(&mut first);
        assert_eq!(first.capacity(), 0, "there is none left");
        second.extend_from_slice(b"held");
        pool.take_back(&mut second);
        assert_eq!(&second[..], b"held");
    }
}
