//! The node id of a log, in a file of its own beside the store: ids and hashes depend on it, so that
//! records could not be verified where the store has lost it.
//!
//! A log of an earlier version gets the file when it is opened.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::record::{Hash, NodeId};
use super::store::StoreError;
use crate::os::private;

/// The file's name in the log's folder.
pub const NAME: &str = "node";
const NAME_NEW: &str = "node.new";

/// Reads the file in `dir`; `None` if there is none.
///
/// # Errors
///
/// [`StoreError::Damaged`] if it is not whole, [`StoreError::Io`].
pub fn read(dir: &Path) -> Result<Option<NodeId>, StoreError> {
    let path = dir.join(NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match decode(&bytes) {
        Some(node) => Ok(Some(node)),
        None => Err(StoreError::Damaged { file: path, why: "it is not whole".into() }),
    }
}

/// Makes the file in `dir` that of `node`, durably.
///
/// # Errors
///
/// [`StoreError::Io`].
pub(super) fn write(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    let new = dir.join(NAME_NEW);
    let mut file = private::create(&new)?;
    file.write_all(&encode(node))?;
    file.sync_all()?;
    fs::rename(new, dir.join(NAME))?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Makes sure that the file in `dir` is that of `node`, as the store says.
///
/// # Errors
///
/// [`StoreError::Damaged`] if it is another log's, [`StoreError::Io`].
pub(super) fn agree(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    match read(dir) {
        Ok(Some(known)) if known == node => Ok(()),
        Ok(Some(_)) => {
            Err(StoreError::Damaged { file: dir.join(NAME), why: "it is another log's".into() })
        }
        Ok(None) => write(dir, node),
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::warn!(%error, "it is written anew, as the log has it");
            write(dir, node)
        }
        Err(error) => Err(error),
    }
}

/// The id in hexadecimal, and its hash.
fn encode(node: NodeId) -> Vec<u8> {
    let hex: String = node.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex} {}\n", Hash(*blake3::hash(hex.as_bytes()).as_bytes())).into_bytes()
}

fn decode(bytes: &[u8]) -> Option<NodeId> {
    let hex = std::str::from_utf8(bytes).ok()?.split(' ').next()?;
    let node = NodeId(u128::from_str_radix(hex, 16).ok()?.to_be_bytes());
    (encode(node) == bytes).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_back_and_one_that_was_altered_or_is_another_s_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (node, other) = (NodeId([7; 16]), NodeId([8; 16]));
        assert_eq!(read(dir).unwrap(), None);
        agree(dir, node).unwrap();
        assert_eq!(read(dir).unwrap(), Some(node));
        let error = agree(dir, other).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { file, .. } if file.ends_with(NAME)));
        let whole = fs::read(dir.join(NAME)).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(dir.join(NAME), bytes).unwrap();
            assert!(matches!(read(dir), Err(StoreError::Damaged { .. })), "byte {at}");
        }
        agree(dir, node).unwrap();
        assert_eq!(read(dir).unwrap(), Some(node));
    }
}
