//! fjall's journals as files. They are preallocated: what is used of one ends where its zeros begin.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::os::private;

/// What is copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// The journals in a database's folder, in the order of their names.
///
/// # Errors
///
/// Those of reading the folder.
pub(in crate::activity) fn all(db: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(db)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "jnl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The newest journal in a database's folder; the folder if there is none.
pub(in crate::activity) fn newest(path: &Path) -> PathBuf {
    let number = |path: &Path| path.file_stem()?.to_str()?.parse::<u64>().ok();
    let journals = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    journals
        .filter(|path| path.extension().is_some_and(|it| it == "jnl"))
        .max_by_key(|path| number(path))
        .unwrap_or_else(|| path.to_path_buf())
}

/// Copies a file without allocating its zeros.
///
/// # Errors
///
/// Those of reading and writing.
pub(in crate::activity) fn copy_sparse(from: &Path, to: &Path) -> io::Result<File> {
    let mut source = File::open(from)?;
    let mut target = private::create(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut length = 0;
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let part = buffer.get(..read).unwrap_or_default();
        if used(part) > 0 {
            target.seek(SeekFrom::Start(length))?;
            target.write_all(part)?;
        }
        length += read as u64;
    }
    target.set_len(length)?;
    Ok(target)
}

/// The length without the zeros at the end.
pub(in crate::activity) fn used(bytes: &[u8]) -> usize {
    let words = bytes.rchunks(64).take_while(|chunk| chunk.iter().all(|byte| *byte == 0)).count();
    let rest = bytes.len().saturating_sub(words * 64);
    let last = bytes.get(..rest).unwrap_or_default();
    last.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_ends_with_the_last_byte_that_is_not_zero() {
        for length in [0, 1, 63, 64, 65, 200] {
            for zeros in [0, 1, 63, 64, 65, 1000] {
                let bytes = [vec![1; length], vec![0; zeros]].concat();
                assert_eq!(used(&bytes), length, "{zeros}");
            }
        }
        assert_eq!(used(&[0, 0, 7, 0]), 3);
    }

    #[test]
    fn a_sparse_copy_has_the_same_bytes_and_length() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut bytes = vec![0; 3 * COPY_BYTES + 5];
        bytes[2 * COPY_BYTES] = 9;
        fs::write(&from, &bytes).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn the_newest_journal_is_that_of_the_greatest_number() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!((newest(dir), all(dir).unwrap().len()), (dir.to_path_buf(), 0));
        for name in ["9.jnl", "10.jnl", "11.other"] {
            fs::write(dir.join(name), "").unwrap();
        }
        assert_eq!((newest(dir), all(dir).unwrap().len()), (dir.join("10.jnl"), 2));
    }
}
