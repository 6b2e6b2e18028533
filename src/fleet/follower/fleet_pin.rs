//! Which fleet is followed into a folder: in a file there, which is whole or of no use.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::fleet::sealed_mark::FleetId;
use crate::os::private;

/// The file's name, and under which name it is made.
const NAME: &str = "fleet";
const NAME_NEW: &str = "fleet.new";
/// Most bytes of the file.
const MAX_BYTES: u64 = 1024;

/// The fleet that is followed into this folder; `None` if none is yet. A file that names none was not written to its end, before
/// anything was followed.
///
/// # Errors
///
/// The file system's.
pub(super) fn known(folder: &Path) -> io::Result<Option<FleetId>> {
    let path = folder.join(NAME);
    let bytes = match fs::metadata(&path) {
        Ok(file) if file.len() > MAX_BYTES => return Ok(None),
        Ok(_) => fs::read(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(std::str::from_utf8(&bytes).ok().and_then(|text| FleetId::parse(text.trim())))
}

/// From now on it is this one, durably.
///
/// # Errors
///
/// The file system's.
pub(super) fn set(folder: &Path, fleet: &str) -> io::Result<()> {
    let new = folder.join(NAME_NEW);
    let mut file = private::create(&new)?;
    file.write_all(fleet.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, folder.join(NAME))?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_that_is_torn_is_none_and_is_set_again() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = "0123456789abcdef0123456789abcdef";
        assert_eq!(known(dir.path()).unwrap(), None);
        for torn in [&b""[..], b"0123", b"\xff\xfe", &[0; 32], &[b'a'; 2000]] {
            fs::write(dir.path().join(NAME), torn).unwrap();
            assert_eq!(known(dir.path()).unwrap(), None, "{torn:?}");
            set(dir.path(), fleet).unwrap();
            assert_eq!(known(dir.path()).unwrap(), FleetId::parse(fleet));
        }
        assert!(!dir.path().join(NAME_NEW).exists());
    }
}
