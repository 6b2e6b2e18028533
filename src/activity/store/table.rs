//! A table of the database as a file, and whether it is what was written.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use xxhash_rust::xxh3::Xxh3Default;

use super::Space;

/// What is read of a table at a time.
const READ_BYTES: usize = 1 << 20;

/// A table: a file that is never changed once it is written.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// The keyspace it belongs to.
    pub(super) space: Space,
    /// Where it is.
    pub path: PathBuf,
    /// Its hash, as the store keeps it.
    pub(super) hash: u128,
}

impl TableFile {
    /// True if its contents can be made anew from the records.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        Space::DERIVED.contains(&self.space)
    }

    /// Reads it whole, and returns whether it is what was written. `goes_on` is called after each
    /// megabyte; where it is false the reading ends and so is the result.
    ///
    /// # Errors
    ///
    /// The file system's; a table is removed once it is compacted.
    pub fn is_sound(&self, goes_on: impl Fn() -> bool) -> io::Result<bool> {
        let mut file = fs::File::open(&self.path)?;
        let mut hasher = Xxh3Default::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.digest128() == self.hash),
                read => hasher.update(buffer.get(..read).unwrap_or_default()),
            }
            if !goes_on() {
                return Ok(false);
            }
        }
    }
}
