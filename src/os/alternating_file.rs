//! A small file that is always whole: two places are written in turn, each with a check of its own,
//! so that a torn write spoils one of them at most.
//!
//! A place holds `N` bytes of the file's owner. The first eight of them are a number that grows with
//! each write: the place with the larger one is valid. This does not protect against someone who
//! rewrites the file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::os::private;

/// The places lie a sector apart, so that a torn write spoils one of them at most.
const STRIDE: usize = 512;
const MAGIC_BYTES: usize = 8;
const CHECK_BYTES: usize = 16;

/// The name and the magic number of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// Its name in the log's folder.
    pub name: &'static str,
    /// What each place begins with.
    pub magic: [u8; MAGIC_BYTES],
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotContents<const N: usize> {
    /// The places that are whole.
    pub places: [Option<[u8; N]>; 2],
    /// True when something in it is neither a place nor empty: a write torn by a crash, or an
    /// alteration.
    pub torn: bool,
}

/// The open file.
#[derive(Debug)]
pub struct AlternatingFile<const N: usize> {
    file: File,
    path: PathBuf,
    kind: FileKind,
    next: usize,
}

impl<const N: usize> SlotContents<N> {
    /// The newest whole place.
    pub fn newest(&self) -> Option<[u8; N]> {
        self.places.into_iter().flatten().max_by_key(number)
    }
}

impl<const N: usize> AlternatingFile<N> {
    const PLACE_BYTES: usize = MAGIC_BYTES + N + CHECK_BYTES;
    const FILE_BYTES: usize = STRIDE + Self::PLACE_BYTES;

    /// Opens the file in `dir`, or makes it, with room for both places, and reads it.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn open(dir: &Path, kind: FileKind) -> io::Result<(Self, SlotContents<N>)> {
        let path = dir.join(kind.name);
        let mut file =
            private::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if bytes.len() < Self::FILE_BYTES && empty(&bytes) {
            // Written and not only made long: later there may be no room left on the disk.
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

    /// Reads the file in `dir` without touching it; one that is not there is empty.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn read(dir: &Path, kind: FileKind) -> io::Result<SlotContents<N>> {
        match std::fs::read(dir.join(kind.name)) {
            Ok(bytes) => Ok(Self::parse(&bytes, kind)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(SlotContents { places: [None; 2], torn: false })
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a place, durably.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn write(&mut self, bytes: &[u8; N]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start((self.next * STRIDE) as u64))?;
        self.file.write_all(&encode(bytes, self.kind))?;
        self.file.sync_data()?;
        self.next ^= 1;
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parse(bytes: &[u8], kind: FileKind) -> SlotContents<N> {
        let place = |at: usize| bytes.get(at..at + Self::PLACE_BYTES).unwrap_or_default();
        let raw = [place(0), place(STRIDE)];
        let places = raw.map(|place| decode(place, kind));
        let between = bytes.get(Self::PLACE_BYTES..STRIDE).unwrap_or_default();
        // Shorter, it may be one that was just being made.
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

/// The number that grows with each write.
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
