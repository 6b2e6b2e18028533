//! Stored tool sets (FR-A1), which are available after a restart before any server has answered, and the hashed file
//! format that pins use as well.
//!
//! One file per server, replaced atomically by rename. Plain files are used rather than fjall: a set is written rarely
//! and always as a whole, the command line reads it while a running proxy locks the store, and each set takes only its
//! own size on disk.
//!
//! A file consists of two lines, a header and the tools as the server wrote them:
//! ```text
//! {"version":1,"server":"github","blake3":"<hex of the second line>","pinned":true}
//! [{"name":…},…]
//! ```
//!
//! A file that has another version, or is damaged or unreadable, counts as missing; the caller warns. Operator
//! overrides are not stored, but applied at each start.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::definition::DiscoveredTool;
use mcpproxy_policy::tool;
use mcpproxy_runtime::os::private;

/// Maximum number of files open concurrently while sets are written.
const FILES_AT_ONCE: usize = 64;

#[derive(Debug)]
pub struct StoredSet {
    pub tools: Vec<DiscoveredTool>,
    /// Whether pins must exist next to the set; sets of earlier versions have none.
    pub pinned: bool,
}

/// Set file of `server`.
pub(crate) fn path(folder: &Path, server: &str) -> PathBuf {
    file_path(folder, server, "tools")
}

/// Replaces sets and returns the result of each. Durable on return.
pub(crate) fn write_all(
    folder: &Path,
    sets: &[(Arc<str>, Vec<DiscoveredTool>)],
) -> Vec<io::Result<()>> {
    sets.chunks(FILES_AT_ONCE).flat_map(|sets| write_some(folder, sets)).collect()
}

fn write_some(folder: &Path, sets: &[(Arc<str>, Vec<DiscoveredTool>)]) -> Vec<io::Result<()>> {
    // All writes are issued before the first sync, and the folder is synced once.
    let files: Vec<_> = sets
        .iter()
        .map(|(server, tools)| {
            Unpublished::new(path(folder, server), server, true, body(tools).as_bytes())
        })
        .collect();
    let named = files.into_iter().map(|file| file.and_then(Unpublished::publish));
    let named: Vec<_> = named.collect();
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Ok(()) => named,
        Err(error) => {
            let failed = || io::Error::new(error.kind(), error.to_string());
            named.into_iter().map(|named| named.and_then(|()| Err(failed()))).collect()
        }
    }
}

/// Returns the tools in one line.
fn body(tools: &[DiscoveredTool]) -> String {
    let mut body = String::from("[");
    for (i, tool) in tools.iter().enumerate() {
        if i > 0 {
            body.push(',');
        }
        // A line break between tokens is equivalent to a space; JSON strings contain none.
        body.extend(tool.raw.get().chars().map(|c| if c == '\n' { ' ' } else { c }));
    }
    body.push(']');
    body
}

/// Loads the set of `server`; `None` if none was written. Fails if the file is unusable.
pub fn read(folder: &Path, server: &str) -> Result<Option<StoredSet>, UnusableFile> {
    let Some(file) = read_file(&path(folder, server), server)? else { return Ok(None) };
    let damaged = |error: serde_json::Error| UnusableFile::Damaged(error.to_string());
    let elements: Vec<&RawValue> = serde_json::from_str(file.body()).map_err(damaged)?;
    let tools = elements.into_iter().map(DiscoveredTool::parse).collect::<Result<_, _>>();
    Ok(Some(StoredSet { tools: tools.map_err(UnusableFile::Damaged)?, pinned: file.pinned }))
}

/// Format version. Files of other versions are not read; the next write uses this version.
const VERSION: u32 = 1;

/// Maximum size of a file, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Reason why a file is not used, without its path.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// I/O error.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Wrong version, server or hash.
    #[error("is damaged or of another version: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileHeader {
    version: u32,
    server: Box<str>,
    blake3: String,
    /// Whether pins must exist next to a set, so that missing pins count as lost. Only for sets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
}

/// A file whose hash matches.
pub(super) struct Sound {
    text: String,
    body_at: usize,
    /// Whether pins must exist next to the set, as given to [`Unpublished::new`].
    pub(super) pinned: bool,
}

impl Sound {
    pub(super) fn body(&self) -> &str {
        self.text.get(self.body_at..).unwrap_or_default()
    }
}

/// File of `server` with this extension.
pub(super) fn file_path(folder: &Path, server: &str, extension: &str) -> PathBuf {
    folder.join(format!("{}.{extension}", tool::server_file_stem(server)))
}

/// Loads a file of `server`; `None` if the file does not exist.
pub(super) fn read_file(path: &Path, server: &str) -> Result<Option<Sound>, UnusableFile> {
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(UnusableFile::Damaged(format!("larger than {MAX_FILE_BYTES} bytes")));
        }
        Ok(_) => fs::read_to_string(path)?,
    };
    checked(text, server).map(Some).map_err(UnusableFile::Damaged)
}

fn checked(text: String, server: &str) -> Result<Sound, String> {
    let (header, body) = text.split_once('\n').ok_or("no header")?;
    let FileHeader { version, server: of, blake3, pinned } =
        serde_json::from_str(header).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("version {version}, expected {VERSION}"));
    }
    if *of != *server {
        return Err(format!("it is of '{of}'"));
    }
    if blake3 != blake3::hash(body.as_bytes()).to_hex().as_str() {
        return Err("the hash is wrong".into());
    }
    let body_at = header.len().saturating_add(1);
    Ok(Sound { text, body_at, pinned })
}

/// Returns header and body of a file.
pub(super) fn contents(server: &str, pinned: bool, body: &[u8]) -> io::Result<Vec<u8>> {
    let blake3 = blake3::hash(body).to_hex().to_string();
    let header = FileHeader { version: VERSION, server: server.into(), blake3, pinned };
    Ok([&*serde_json::to_vec(&header)?, b"\n", body].concat())
}

/// A temporary file next to the file that it replaces.
pub(super) struct Unpublished {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
}

impl Unpublished {
    /// Writes the temporary file.
    pub(super) fn new(
        target: PathBuf,
        server: &str,
        pinned: bool,
        body: &[u8],
    ) -> io::Result<Self> {
        let contents = contents(server, pinned, body)?;
        if let Some(folder) = target.parent() {
            private::folder(folder)?;
        }
        let mut temporary = target.clone().into_os_string();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let mut file = private::create(&temporary)?;
        file.write_all(&contents)?;
        Ok(Self { file, temporary, target })
    }

    /// Renames the file into place. Durable once the folder is synced.
    pub(super) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn fr_a1_stored_set_is_verbatim() {
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
        assert_eq!(raw(read(&folder, "t").unwrap()), None);
    }

    #[test]
    fn every_truncation_and_flipped_byte_is_detected() {
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
    fn half_written_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "s", &tools(&[A])).unwrap();
        fs::write(path(folder.path(), "s").with_extension("tools.new"), "{\"ver").unwrap();
        assert_eq!(raw(read(folder.path(), "s").unwrap()), Some(vec![A.into()]));
        fs::copy(path(folder.path(), "s"), path(folder.path(), "t")).unwrap();
        assert!(read(folder.path(), "t").is_err(), "the set of another server");
    }
}
