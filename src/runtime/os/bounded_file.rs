//! Reads whole files with a size limit, without blocking if the path is a pipe or device.
//!
//! A pipe without a writer would block forever. If a person has just named the file and waits for the result, a pipe
//! such as the shell's `<(…)` may be awaited for a limited time.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::libc;

/// Maximum wait for a pipe that a person has just named: about the time needed to type a password.
pub const PIPE_WAIT: Duration = Duration::from_secs(30);

/// Policy for a named pipe in place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedPipes {
    /// A pipe is not accepted.
    Refused,
    /// A pipe is read until all writers close it, for at most this long.
    Awaited(Duration),
}

/// Reason why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The path is a folder.
    #[error("it is a folder: name a file in it")]
    Folder,
    /// The path is a pipe or a device.
    #[error("it is not a regular file")]
    NoFile,
    /// The writers of a pipe did not close it in time.
    #[error("it is a pipe, and its writer has not ended within {0:?}")]
    Late(Duration),
    /// The file is larger than this number of bytes.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// The file is not UTF-8.
    #[error("it is not UTF-8")]
    NoText,
}

impl Unreadable {
    /// Whether the file does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The contents and metadata of the file at `path`.
pub fn read(
    path: &Path,
    max_bytes: u64,
    pipes: NamedPipes,
) -> Result<(Vec<u8>, Metadata), Unreadable> {
    match pipes {
        NamedPipes::Refused => of_file(path, max_bytes),
        NamedPipes::Awaited(limit) => {
            let found = fs::metadata(path)?;
            match found.is_file() || found.is_dir() {
                true => of_file(path, max_bytes),
                false => Ok((of_pipe(path, max_bytes, limit)?, found)),
            }
        }
    }
}

fn of_file(path: &Path, max_bytes: u64) -> Result<(Vec<u8>, Metadata), Unreadable> {
    // Opening a pipe without a writer would also block.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Unreadable::Folder);
    }
    if !metadata.is_file() {
        return Err(Unreadable::NoFile);
    }
    Ok((whole(file, max_bytes)?, metadata))
}

fn of_pipe(path: &Path, max_bytes: u64, limit: Duration) -> Result<Vec<u8>, Unreadable> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let path = path.to_owned();
    // The pipe is opened only once: a writer without a reader would be killed. If the time limit expires, the thread
    // keeps waiting in the background.
    thread::Builder::new().name("pipe".to_owned()).spawn(move || {
        let read = File::open(&path).map_err(Unreadable::from);
        // The caller may have stopped waiting.
        let _ = sender.send(read.and_then(|file| whole(file, max_bytes)));
    })?;
    receiver.recv_timeout(limit).map_err(|_| Unreadable::Late(limit))?
}

/// Converts the contents to text.
pub fn text(bytes: Vec<u8>) -> Result<String, Unreadable> {
    String::from_utf8(bytes).map_err(|_| Unreadable::NoText)
}

fn whole(file: File, max_bytes: u64) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(Unreadable::TooLarge(max_bytes));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const MAX_BYTES: u64 = 100;
    /// Longer than any test runs.
    const LONG: NamedPipes = NamedPipes::Awaited(Duration::from_secs(3600));

    #[test]
    fn non_file_is_refused_without_waiting() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        fs::write(at("file"), "text").unwrap();
        fs::write(at("long"), "x".repeat(101)).unwrap();
        for path in [&at("pipe"), Path::new("/dev/null")] {
            let outcome = read(path, MAX_BYTES, NamedPipes::Refused);
            assert!(matches!(outcome, Err(Unreadable::NoFile)), "{}: {outcome:?}", path.display());
        }
        for pipes in [NamedPipes::Refused, LONG] {
            let outcome = read(home.path(), MAX_BYTES, pipes);
            assert!(matches!(outcome, Err(Unreadable::Folder)), "{outcome:?}");
        }
        for pipes in [NamedPipes::Refused, LONG] {
            assert_eq!(text(read(&at("file"), MAX_BYTES, pipes).unwrap().0).unwrap(), "text");
            assert!(read(&at("none"), MAX_BYTES, pipes).unwrap_err().is_absent());
            let outcome = read(&at("long"), MAX_BYTES, pipes);
            assert!(matches!(outcome, Err(Unreadable::TooLarge(MAX_BYTES))), "{outcome:?}");
        }
        assert!(matches!(text(vec![0xff]), Err(Unreadable::NoText)));
    }

    #[test]
    fn pipe_is_awaited_until_it_is_written_or_times_out() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let awaited = |written: &str| {
            thread::scope(|scope| {
                scope.spawn(|| fs::write(&pipe, written).unwrap());
                read(&pipe, MAX_BYTES, LONG).map(|(bytes, _)| text(bytes).unwrap())
            })
        };
        assert_eq!(awaited("written late").unwrap(), "written late");
        assert!(matches!(awaited(&"x".repeat(101)), Err(Unreadable::TooLarge(MAX_BYTES))));
        let late = read(&pipe, MAX_BYTES, NamedPipes::Awaited(Duration::from_millis(1)));
        assert!(matches!(late, Err(Unreadable::Late(_))), "{late:?}");
        assert_eq!(read(Path::new("/dev/null"), MAX_BYTES, LONG).unwrap().0, b"");
    }
}
