//! Files that are read whole: bounded in bytes, and not waited for, whatever stands in their place.
//!
//! A pipe that nobody writes into would be waited for without end. Whoever was told of a file by somebody who waits for
//! the answer may await one, as the shell's `<(…)` is, for so long and no longer.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::libc;

/// How long a pipe is awaited by who has just been told of it: as long as a person takes to type a password.
pub const PIPE_WAIT: Duration = Duration::from_secs(30);

/// What is done about a pipe in the place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedPipes {
    /// It is no file.
    Refused,
    /// What is written into it counts, if its writers close it within this time.
    Awaited(Duration),
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file system's.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A folder, a pipe, a device.
    #[error("it is no file")]
    NoFile,
    /// A pipe whose writer was awaited.
    #[error("it is a pipe, and whoever writes it has not ended within {0:?}")]
    Late(Duration),
    /// It is larger than so many bytes.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// It is no text.
    #[error("it is not UTF-8")]
    NoText,
}

impl Unreadable {
    /// Whether there is no file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// What the file at `path` holds, and what the system knows of it.
///
/// # Errors
/// [`Unreadable`]
pub fn read(
    path: &Path,
    most_bytes: u64,
    pipes: NamedPipes,
) -> Result<(Vec<u8>, Metadata), Unreadable> {
    match pipes {
        NamedPipes::Refused => of_file(path, most_bytes),
        NamedPipes::Awaited(limit) => {
            let found = fs::metadata(path)?;
            match found.is_file() || found.is_dir() {
                true => of_file(path, most_bytes),
                false => Ok((of_pipe(path, most_bytes, limit)?, found)),
            }
        }
    }
}

fn of_file(path: &Path, most_bytes: u64) -> Result<(Vec<u8>, Metadata), Unreadable> {
    // To open a pipe that nobody writes into is to wait, too.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unreadable::NoFile);
    }
    Ok((whole(file, most_bytes)?, metadata))
}

fn of_pipe(path: &Path, most_bytes: u64, limit: Duration) -> Result<Vec<u8>, Unreadable> {
    let (tell, told) = mpsc::sync_channel(1);
    let path = path.to_owned();
    // It is opened once: a writer that finds its reader gone is killed. The thread is left behind if it waits on.
    thread::Builder::new().name("pipe".to_owned()).spawn(move || {
        let read = File::open(&path).map_err(Unreadable::from);
        // Whoever asked may have given up.
        let _ = tell.send(read.and_then(|file| whole(file, most_bytes)));
    })?;
    told.recv_timeout(limit).map_err(|_| Unreadable::Late(limit))?
}

/// What was read, as a text.
///
/// # Errors
/// It is none.
pub fn text(bytes: Vec<u8>) -> Result<String, Unreadable> {
    String::from_utf8(bytes).map_err(|_| Unreadable::NoText)
}

fn whole(file: File, most_bytes: u64) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(Unreadable::TooLarge(most_bytes));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const MOST: u64 = 100;
    /// Longer than any test waits.
    const LONG: NamedPipes = NamedPipes::Awaited(Duration::from_secs(3600));

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        fs::write(at("file"), "text").unwrap();
        fs::write(at("long"), "x".repeat(101)).unwrap();
        for path in [home.path(), &at("pipe"), Path::new("/dev/null")] {
            let told = read(path, MOST, NamedPipes::Refused);
            assert!(matches!(told, Err(Unreadable::NoFile)), "{}: {told:?}", path.display());
        }
        assert!(matches!(read(home.path(), MOST, LONG), Err(Unreadable::NoFile)));
        for pipes in [NamedPipes::Refused, LONG] {
            assert_eq!(text(read(&at("file"), MOST, pipes).unwrap().0).unwrap(), "text");
            assert!(read(&at("none"), MOST, pipes).unwrap_err().is_absent());
            let told = read(&at("long"), MOST, pipes);
            assert!(matches!(told, Err(Unreadable::TooLarge(MOST))), "{told:?}");
        }
        assert!(matches!(text(vec![0xff]), Err(Unreadable::NoText)));
    }

    #[test]
    fn a_pipe_is_awaited_until_it_is_written_and_no_longer_than_its_time() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let awaited = |written: &str| {
            thread::scope(|scope| {
                scope.spawn(|| fs::write(&pipe, written).unwrap());
                read(&pipe, MOST, LONG).map(|(bytes, _)| text(bytes).unwrap())
            })
        };
        assert_eq!(awaited("written late").unwrap(), "written late");
        assert!(matches!(awaited(&"x".repeat(101)), Err(Unreadable::TooLarge(MOST))));
        let late = read(&pipe, MOST, NamedPipes::Awaited(Duration::from_millis(1)));
        assert!(matches!(late, Err(Unreadable::Late(_))), "{late:?}");
        assert_eq!(read(Path::new("/dev/null"), MOST, LONG).unwrap().0, b"");
    }
}
