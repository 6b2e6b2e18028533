//! Records as the chain has them, oldest first: their bytes, their hashes, and what each follows. For
//! whoever hands the log on as it is; nothing is checked here.

use std::ops::ControlFlow;

use super::codec;
use super::record::{Hash, NodeId};
use super::store::{Space, StoreError};
use super::view::View;

/// A record as the chain has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainedRecord<'a> {
    /// Its number.
    pub seq: u64,
    /// The hash it follows.
    pub prev: Hash,
    /// Its own hash.
    pub hash: Hash,
    /// Its head, encoded.
    pub head: &'a [u8],
    /// Its body, encoded.
    pub body: &'a [u8],
}

impl ChainedRecord<'_> {
    /// How many canonical bytes it has ([`codec::put_canonical`]: the length of the head, head, body).
    #[must_use]
    pub fn canonical_bytes(&self) -> u64 {
        (size_of::<u32>() + self.head.len() + self.body.len()) as u64
    }

    /// Whether its hash is that of its bytes, in the log of `node`.
    #[must_use]
    pub fn is_intact(&self, node: NodeId) -> bool {
        codec::chain(self.prev, node, self.seq, self.head, self.body) == self.hash
    }
}

impl View {
    /// Passes on the kept records from `from` on, until `each` breaks.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if they cannot be read.
    pub fn chained_from(
        &self,
        from: u64,
        mut each: impl FnMut(&ChainedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let from = from.max(self.first());
        for block in self.blocks(from, self.next())? {
            let block = block?;
            let missing = |space| self.missing(space, block.layout.first);
            let bodies = self.bodies(&block)?.ok_or_else(|| missing(Space::Bodies))?;
            for seq in block.layout.first.max(from)..block.end() {
                let (prev, hash) = block.link(seq).ok_or_else(|| missing(Space::Heads))?;
                let head = block.head(seq).ok_or_else(|| missing(Space::Heads))?;
                let body = bodies.get(&block, seq).ok_or_else(|| missing(Space::Bodies))?;
                if each(&ChainedRecord { seq, prev, hash, head, body }).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Passes on these records, which are kept; numbers that follow each other are read together.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if one of them cannot be read, or is not there.
    pub fn chained(
        &self,
        seqs: impl IntoIterator<Item = u64>,
        mut each: impl FnMut(&ChainedRecord<'_>),
    ) -> Result<(), StoreError> {
        let mut block = None;
        for seq in seqs {
            let block = self.block_of(seq, &mut block)?;
            let bodies = self.bodies(block)?;
            let (Some((prev, hash)), Some(head)) = (block.link(seq), block.head(seq)) else {
                return Err(self.missing(Space::Heads, seq));
            };
            let body = bodies.and_then(|bodies| bodies.get(block, seq));
            let body = body.ok_or_else(|| self.missing(Space::Bodies, seq))?;
            each(&ChainedRecord { seq, prev, hash, head, body });
        }
        Ok(())
    }
}
