//! The lock of a log's folder, which keeps other processes out.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use super::store::StoreError;
use crate::os::private;

/// The file that is locked.
const LOCK: &str = "lock";
/// Tries, and the time between them, for a locked log. A proxy that is just ending, and a child of it
/// that has not yet called `exec`, hold the lock a moment longer.
pub(super) const LOCK_TRIES: u32 = 20;
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Keeps other processes out of the folder for as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Lock {
    /// Takes the lock of the log in `dir`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`], [`StoreError::Io`].
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        private::folder(dir)?;
        let path = dir.join(LOCK);
        let file = private::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Keeps writers out of the log in `dir` and changes nothing there; `None` if the log was never
    /// opened, which needs no lock. Waits a moment for a writer that is just ending.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`], [`StoreError::Io`].
    pub fn share(dir: &Path) -> Result<Option<Self>, StoreError> {
        let file = match File::open(dir.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for tried in 1.. {
            match file.try_lock_shared() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tried < LOCK_TRIES => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        Ok(Some(Self(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_keeps_others_out_and_readers_keep_writers_out() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(Lock::share(dir).unwrap().is_none(), "it was never opened");
        let writer = Lock::take(dir).unwrap();
        assert!(matches!(Lock::take(dir), Err(StoreError::Locked)));
        drop(writer);
        let readers = [Lock::share(dir).unwrap(), Lock::share(dir).unwrap()];
        assert!(readers.iter().all(Option::is_some));
        assert!(matches!(Lock::take(dir), Err(StoreError::Locked)));
        drop(readers);
        assert!(Lock::take(dir).is_ok());
    }
}
