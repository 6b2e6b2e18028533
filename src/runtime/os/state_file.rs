//! State files (SF-1 to SF-3): small files that decide permissions. They are replaced atomically and durably, and verified by a checksum at
//! every read. A copy of the last good generation is kept next to each.
//!
//! A file consists of its body and a last line with the BLAKE3 hash of the body:
//! ```text
//! <the body>
//! {"blake3":"<64 hexadecimal digits>"}
//! ```
//! The body of every such file is one JSON value, so that a file whose last line was altered is not valid JSON. A file without that line
//! was written by an earlier version or by hand: it is accepted, and the next write adds the line. The hash detects accidents, not
//! deliberate changes.
//!
//! The copy (`NAME.last-good`) is written after the file, before a write returns. It is never used in place of the file: a file that fails
//! its check is refused, and the error message suggests the copy ([`recovery`]). A missing file is also refused if its copy exists.
//!
//! An [`AlternatingFile`] is a small file that survives torn writes: two slots are written alternately, each with its own checksum, so that
//! a torn write damages at most one of them. A slot has `N` bytes of payload, of which the first eight are a counter that grows with each
//! write; the valid slot with the larger counter is current.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::os::bounded_file::{NamedPipes, Unreadable};
use crate::os::{bounded_file, private};

/// Suffix of the copy's name.
const COPY_SUFFIX: &str = ".last-good";
/// Suffix of the temporary file's name.
const NEW_SUFFIX: &str = ".new";
const CHECK_START: &[u8] = br#"{"blake3":""#;
const CHECK_END: &[u8] = br#""}"#;

/// Reason why a state file is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file system's error, or the file is too large.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    /// The checksum does not match the body.
    #[error("it is damaged: its checksum does not match")]
    Checksum,
    /// The file is missing although its copy exists.
    #[error("it is missing, although its backup copy exists")]
    Missing,
}

/// Replaces the file at `path` with one that contains `bytes`, atomically and durably, accessible only to its owner (0600). Blocks. On an
/// error, the old file still exists.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = suffixed(path, NEW_SUFFIX);
    let write = || {
        let mut file = private::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        sync_folder(path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Replaces the file at `path` with `body` and its checksum, then the copy. On return, both are durable. Blocks.
pub fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let hash = blake3::hash(body).to_hex();
    let bytes = [body, b"\n", CHECK_START, hash.as_bytes(), CHECK_END, b"\n"].concat();
    replace_with_copy(path, &bytes)
}

/// Replaces the file at `path` and then its copy. For files whose format has its own checksum. Blocks.
pub fn replace_with_copy(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes)?;
    replace(&copy_path(path), bytes)
}

/// The body of the file at `path`, at most `max_bytes`; `None` if neither the file nor its copy exists. Blocks.
///
/// # Errors
/// [`StateFileError`] if the file or its copy exists but cannot be used.
pub fn read(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, StateFileError> {
    match bounded_file::read(path, max_bytes, NamedPipes::Refused) {
        Ok((bytes, _)) => checked(bytes).map(Some),
        Err(error) if error.is_absent() && copy_path(path).exists() => Err(StateFileError::Missing),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the file at `path` and its copy, durably; returns false if neither existed. Blocks.
pub fn remove(path: &Path) -> io::Result<bool> {
    // The copy is removed first: a file without its copy is intact, but a copy without its file is a fault.
    let copy = removed(&copy_path(path))?;
    let file = removed(path)?;
    if copy || file {
        sync_folder(path)?;
    }
    Ok(copy || file)
}

/// Path of the file that holds the last good generation of the file at `path`.
pub fn copy_path(path: &Path) -> PathBuf {
    suffixed(path, COPY_SUFFIX)
}

/// Remedy for a damaged file, to be appended to the description of the damage: restoring the copy if `is_sound` accepts it, otherwise
/// `otherwise`.
pub fn recovery(
    path: &Path,
    is_sound: impl FnOnce(&[u8]) -> bool,
    max_bytes: u64,
    otherwise: &str,
) -> String {
    let copy = copy_path(path);
    let read = bounded_file::read(&copy, max_bytes, NamedPipes::Refused);
    let body = read.ok().and_then(|(bytes, _)| checked(bytes).ok());
    match body.is_some_and(|body| is_sound(&body)) {
        true => {
            format!("its last good copy can be restored: cp -p {} {}", quoted(&copy), quoted(path))
        }
        false => otherwise.to_owned(),
    }
}

/// Verifies the checksum, if there is one, and returns the body.
fn checked(mut bytes: Vec<u8>) -> Result<Vec<u8>, StateFileError> {
    let Some((body, hash)) = split(&bytes) else { return Ok(bytes) };
    if blake3::hash(body).to_hex().as_bytes() != hash {
        return Err(StateFileError::Checksum);
    }
    let length = body.len();
    bytes.truncate(length);
    Ok(bytes)
}

/// Body and hash of a file that ends with a checksum.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = bytes.strip_suffix(b"\n")?.strip_suffix(CHECK_END)?;
    let (rest, hash) = line.split_at_checked(line.len().checked_sub(blake3::OUT_LEN * 2)?)?;
    Some((rest.strip_suffix(CHECK_START)?.strip_suffix(b"\n")?, hash))
}

fn removed(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The path as a word of a POSIX shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// The slots are a sector apart, so that a torn write damages at most one of them.
const STRIDE: usize = 512;
const MAGIC_BYTES: usize = 8;
const CHECK_BYTES: usize = 16;

/// The name and magic number of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// File name in the log's folder.
    pub name: &'static str,
    /// The first bytes of each slot.
    pub magic: [u8; MAGIC_BYTES],
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotContents<const N: usize> {
    /// The intact slots.
    pub places: [Option<[u8; N]>; 2],
    /// Whether a slot is neither intact nor empty, after a torn write or an alteration.
    pub torn: bool,
}

#[derive(Debug)]
pub struct AlternatingFile<const N: usize> {
    file: File,
    path: PathBuf,
    kind: FileKind,
    next: usize,
}

impl<const N: usize> SlotContents<N> {
    /// The current slot.
    pub fn newest(&self) -> Option<[u8; N]> {
        self.places.into_iter().flatten().max_by_key(number)
    }
}

impl<const N: usize> AlternatingFile<N> {
    const PLACE_BYTES: usize = MAGIC_BYTES + N + CHECK_BYTES;
    const FILE_BYTES: usize = STRIDE + Self::PLACE_BYTES;

    /// Opens or creates the file in `dir` with space for both slots, and reads it.
    pub fn open(dir: &Path, kind: FileKind) -> io::Result<(Self, SlotContents<N>)> {
        let path = dir.join(kind.name);
        let mut file =
            private::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if bytes.len() < Self::FILE_BYTES && empty(&bytes) {
            // Zeros are written instead of only extending the file, since the disk may be full later.
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&vec![0; Self::FILE_BYTES])?;
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        let found = Self::parse(&bytes, kind);
        let next = match found.places.each_ref().map(|place| place.as_ref().map(number)) {
            [Some(a), Some(b)] if a < b => 0,
            [Some(_), _] => 1,
            [None, _] => 0,
        };
        Ok((Self { file, path, kind, next }, found))
    }

    /// Reads the file in `dir` without changing it. A missing file counts as empty.
    pub fn read(dir: &Path, kind: FileKind) -> io::Result<SlotContents<N>> {
        match std::fs::read(dir.join(kind.name)) {
            Ok(bytes) => Ok(Self::parse(&bytes, kind)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(SlotContents { places: [None; 2], torn: false })
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the older slot, durably.
    pub fn write(&mut self, bytes: &[u8; N]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start((self.next * STRIDE) as u64))?;
        self.file.write_all(&encode(bytes, self.kind))?;
        self.file.sync_data()?;
        self.next ^= 1;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parse(bytes: &[u8], kind: FileKind) -> SlotContents<N> {
        let place = |at: usize| bytes.get(at..at + Self::PLACE_BYTES).unwrap_or_default();
        let raw = [place(0), place(STRIDE)];
        let places = raw.map(|place| decode(place, kind));
        let between = bytes.get(Self::PLACE_BYTES..STRIDE).unwrap_or_default();
        // A shorter file is accepted if it contains only zeros: its creation may have been interrupted.
        let length = empty(bytes) || bytes.len() == Self::FILE_BYTES;
        let torn = !length
            || !empty(between)
            || raw.iter().zip(&places).any(|(raw, place)| place.is_none() && !empty(raw));
        SlotContents { places, torn }
    }
}

fn empty(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The counter of a slot.
fn number<const N: usize>(place: &[u8; N]) -> u64 {
    place.first_chunk().map_or(0, |number| u64::from_be_bytes(*number))
}

fn encode<const N: usize>(bytes: &[u8; N], kind: FileKind) -> Vec<u8> {
    let mut out = [&kind.magic[..], bytes].concat();
    let check = blake3::hash(&out);
    out.extend(check.as_bytes().iter().take(CHECK_BYTES));
    out
}

fn decode<const N: usize>(place: &[u8], kind: FileKind) -> Option<[u8; N]> {
    let bytes = place.get(MAGIC_BYTES..MAGIC_BYTES + N)?.try_into().ok()?;
    (encode(&bytes, kind) == place).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 1000;
    const BODY: &[u8] = br#"{"tokens":[1]}"#;

    #[test]
    fn written_body_is_read_back_and_equals_its_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(read(&path, MAX).unwrap(), None);
        write(&path, b"[]").unwrap();
        write(&path, BODY).unwrap();
        assert_eq!(read(&path, MAX).unwrap().as_deref(), Some(BODY));
        assert_eq!(fs::read(&path).unwrap(), fs::read(copy_path(&path)).unwrap());
        assert_eq!(private::wider(&path), None);
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 2, "nothing is left behind");
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        assert_eq!(read(&path, MAX).unwrap(), None);
    }

    #[test]
    fn flipped_bit_or_truncated_body_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, BODY).unwrap();
        let sound = fs::read(&path).unwrap();
        let usable = || match read(&path, MAX) {
            Ok(Some(body)) => serde_json::from_slice::<serde_json::Value>(&body).ok(),
            Ok(None) | Err(_) => None,
        };
        let before = usable();
        assert!(before.is_some());
        for at in 0..sound.len() * 8 {
            let mut flipped = sound.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            assert_eq!(usable(), None, "bit {at}");
        }
        for length in 0..sound.len() {
            fs::write(&path, &sound[..length]).unwrap();
            // A file that lost only its checksum still contains its body.
            let is_whole = matches!(length.checked_sub(BODY.len()), Some(0 | 1));
            assert_eq!(usable(), before.clone().filter(|_| is_whole), "cut at {length}");
        }
    }

    #[test]
    fn file_without_a_checksum_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, BODY).unwrap();
        assert_eq!(read(&path, MAX).unwrap().as_deref(), Some(BODY));
        assert!(matches!(read(&path, 3), Err(StateFileError::Unreadable(Unreadable::TooLarge(3)))));
    }

    #[test]
    fn missing_file_with_a_copy_is_refused_and_the_copy_offered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's.json");
        write(&path, BODY).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path, MAX), Err(StateFileError::Missing)));
        let offered = recovery(&path, |body| body == BODY, MAX, "remove it");
        assert!(
            offered.contains("cp -p '") && offered.contains(r"it'\''s.json.last-good'"),
            "{offered}"
        );
        assert_eq!(recovery(&path, |_| false, MAX, "remove it"), "remove it");
        fs::write(copy_path(&path), "{").unwrap();
        assert_eq!(recovery(&path, |body| body == BODY, MAX, "remove it"), "remove it");
    }
}
