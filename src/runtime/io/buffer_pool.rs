//! The read buffer of a thread, shared by all of its connections.
//!
//! A connection that waits for a message needs no buffer. If each connection kept one, the buffers would evict each other from the CPU
//! caches, and every message would be written to and read from cold memory.

use std::cell::Cell;

use bytes::BytesMut;

/// A buffer lent to one reader at a time.
#[derive(Default)]
pub struct BufferPool(Cell<BytesMut>);

impl BufferPool {
    /// Gives memory to a buffer that has no capacity: the rest of the buffer that the last reader returned, which may be empty or still
    /// shared with slices in use.
    pub fn lend(&self, buffer: &mut BytesMut) {
        if buffer.capacity() == 0 {
            *buffer = self.0.take();
        }
    }

    /// Takes back the memory of an empty buffer.
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
    fn buffer_lent_again_reuses_the_memory() {
        let pool = BufferPool::default();
        let (mut first, mut second) = (BytesMut::with_capacity(64), BytesMut::new());
        let memory = first.as_ptr();
        pool.take_back(&mut first);
        assert_eq!(first.capacity(), 0);
        pool.lend(&mut second);
        assert_eq!(second.as_ptr(), memory);
        pool.lend(&mut first);
        assert_eq!(first.capacity(), 0, "the pool is empty");
        second.extend_from_slice(b"held");
        pool.take_back(&mut second);
        assert_eq!(&second[..], b"held");
    }
}
