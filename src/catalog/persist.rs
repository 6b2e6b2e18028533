//! Discovered sets on disk (FR-A1): usable after a restart before any server has answered.
//!
//! One file for each server, replaced whole by a rename, so a crash leaves the old set or the new
//! one and no other server's is ever touched. Plain files rather than fjall: a set is written as
//! rarely as a server changes its tools and always as a whole, the command line reads them while
//! the store is locked by a running proxy, and each set costs its own size on disk.
//!
//! A file is two lines, a header and the tools as their server wrote them:
//! ```text
//! {"version":1,"server":"github","blake3":"<hex of the second line>","pinned":true}
//! [{"name":…},…]
//! ```
//! A file of another version, or damaged, or unreadable is as good as none; the caller warns. What
//! the operator says of the tools is deliberately not here: it is applied anew at each start.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::discovered::DiscoveredTool;
use crate::os::private;

/// The version of the format. Another one is not read: the next discovery writes this one.
const VERSION: u32 = 1;

/// Most bytes of a file that is read back.
pub(super) const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Files that are open at once while sets are written.
const FILES_AT_ONCE: usize = 64;

/// Bytes of the hash of a server's name that make its file's name.
const NAME_HASH_BYTES: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    server: Box<str>,
    blake3: String,
    /// The set's tools are pinned: there is a file of pins, or it is lost.
    #[serde(default)]
    pinned: bool,
}

/// A set as it is stored.
#[derive(Debug)]
pub struct StoredSet {
    /// Its tools.
    pub tools: Vec<DiscoveredTool>,
    /// True if there must be pins beside it: sets of earlier versions have none.
    pub pinned: bool,
}

/// Why a file is not used. Names no path: [`path`] does.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not a file of this version and server whose hash is right.
    #[error("is damaged or of another version: {0}")]
    Damaged(String),
}

/// The file that holds the set of `server`. The name is a hash, since a server may be called
/// anything.
#[must_use]
pub fn path(folder: &Path, server: &str) -> PathBuf {
    let hash = blake3::hash(server.as_bytes()).to_hex();
    folder.join(format!("{}.tools", hash.get(..2 * NAME_HASH_BYTES).unwrap_or(&hash)))
}

/// Replaces the sets of servers; what came of each. On return they are durable.
///
/// # Errors
/// The file system's. The old set is then still there.
pub fn write_all(folder: &Path, sets: &[(Arc<str>, Vec<DiscoveredTool>)]) -> Vec<io::Result<()>> {
    sets.chunks(FILES_AT_ONCE).flat_map(|sets| write_some(folder, sets)).collect()
}

fn write_some(folder: &Path, sets: &[(Arc<str>, Vec<DiscoveredTool>)]) -> Vec<io::Result<()>> {
    // All are on their way to the disk before the first is waited for, and their names together.
    let files = sets.iter().map(|(server, tools)| Written::new(folder, server, tools));
    let files: Vec<_> = files.collect();
    let named = files.into_iter().map(|file| file.and_then(Written::publish));
    let named: Vec<_> = named.collect();
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Ok(()) => named,
        Err(error) => {
            let failed = || io::Error::new(error.kind(), error.to_string());
            named.into_iter().map(|named| named.and_then(|()| Err(failed()))).collect()
        }
    }
}

/// A set beside the one that it is to replace.
struct Written {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
}

impl Written {
    fn new(folder: &Path, server: &str, tools: &[DiscoveredTool]) -> io::Result<Self> {
        let mut body = String::from("[");
        for (i, tool) in tools.iter().enumerate() {
            if i > 0 {
                body.push(',');
            }
            // Between tokens a line break means a space; inside a string JSON has none.
            body.extend(tool.raw.get().chars().map(|c| if c == '\n' { ' ' } else { c }));
        }
        body.push(']');
        let header = Header {
            version: VERSION,
            server: server.into(),
            blake3: blake3::hash(body.as_bytes()).to_hex().to_string(),
            pinned: true,
        };
        let target = path(folder, server);
        let temporary = target.with_extension("new");
        private::folder(folder)?;
        let mut file = private::create(&temporary)?;
        file.write_all(&serde_json::to_vec(&header)?)?;
        file.write_all(b"\n")?;
        file.write_all(body.as_bytes())?;
        Ok(Self { file, temporary, target })
    }

    fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)
    }
}

/// Forgets the set of `server`, if there is one.
///
/// # Errors
/// The file system's.
pub fn remove(folder: &Path, server: &str) -> io::Result<()> {
    match fs::remove_file(path(folder, server)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The set of `server`; `None` if none was ever written.
///
/// # Errors
/// The file is there and cannot be used.
pub fn read(folder: &Path, server: &str) -> Result<Option<StoredSet>, UnusableFile> {
    let path = path(folder, server);
    let text = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(UnusableFile::Damaged(format!("larger than {MAX_FILE_BYTES} bytes")));
        }
        Ok(_) => fs::read_to_string(&path)?,
    };
    parse(&text, server).map(Some).map_err(UnusableFile::Damaged)
}

fn parse(text: &str, server: &str) -> Result<StoredSet, String> {
    let (header, body) = text.split_once('\n').ok_or("no header")?;
    let header: Header = serde_json::from_str(header).map_err(|error| error.to_string())?;
    if header.version != VERSION {
        return Err(format!("version {}, expected {VERSION}", header.version));
    }
    if *header.server != *server {
        return Err(format!("it is the set of '{}'", header.server));
    }
    if header.blake3 != blake3::hash(body.as_bytes()).to_hex().as_str() {
        return Err("the hash is wrong".into());
    }
    let elements: Vec<&RawValue> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let tools = elements.into_iter().map(DiscoveredTool::parse).collect::<Result<_, _>>()?;
    Ok(StoredSet { tools, pinned: header.pinned })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(elements: &[&str]) -> Vec<DiscoveredTool> {
        let parse =
            |json: &&str| DiscoveredTool::parse(serde_json::from_str(json).unwrap()).unwrap();
        elements.iter().map(parse).collect()
    }

    fn write(folder: &Path, server: &str, tools: &[DiscoveredTool]) -> io::Result<()> {
        write_all(folder, &[(server.into(), tools.to_vec())]).pop().unwrap()
    }

    fn raw(set: Option<StoredSet>) -> Option<Vec<String>> {
        set.map(|set| set.tools.iter().map(|tool| tool.raw.get().to_owned()).collect())
    }

    const A: &str = r#"{"name":"a","inputSchema": {"é":1.0},"_meta":{}}"#;
    const B: &str = r#"{"name":"b","inputSchema":{},"outputSchema":{}}"#;

    #[test]
    fn fr_a1_a_set_is_read_back_as_its_server_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not/yet");
        assert_eq!(raw(read(&folder, "s").unwrap()), None);
        write(&folder, "s", &tools(&[A, B])).unwrap();
        write(&folder, "a/../b: ü", &tools(&[])).unwrap();
        assert_eq!(raw(read(&folder, "s").unwrap()), Some(vec![A.into(), B.into()]));
        assert_eq!(raw(read(&folder, "a/../b: ü").unwrap()), Some(vec![]));
        write(&folder, "s", &tools(&["{\"name\":\"c\",\n\"inputSchema\":{}}"])).unwrap();
        let one_line = r#"{"name":"c", "inputSchema":{}}"#;
        assert_eq!(raw(read(&folder, "s").unwrap()), Some(vec![one_line.into()]));
        remove(&folder, "s").unwrap();
        remove(&folder, "s").unwrap();
        assert_eq!(raw(read(&folder, "s").unwrap()), None);
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "s", &tools(&[A])).unwrap();
        let file = path(folder, "s");
        let sound = fs::read(&file).unwrap();
        for i in 0..sound.len() {
            fs::write(&file, &sound[..i]).unwrap();
            assert!(read(folder, "s").is_err(), "cut at {i}");
            let mut flipped = sound.clone();
            flipped[i] ^= 1;
            fs::write(&file, &flipped).unwrap();
            assert!(read(folder, "s").is_err(), "flipped at {i}");
        }
    }

    #[test]
    fn a_half_written_file_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "s", &tools(&[A])).unwrap();
        fs::write(path(folder.path(), "s").with_extension("new"), "{\"ver").unwrap();
        assert_eq!(raw(read(folder.path(), "s").unwrap()), Some(vec![A.into()]));
        fs::copy(path(folder.path(), "s"), path(folder.path(), "t")).unwrap();
        assert!(read(folder.path(), "t").is_err(), "the set of another server");
    }
}
