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
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;

use super::discovered::DiscoveredTool;
pub use super::hashed_file::UnusableFile;
use super::hashed_file::{self, Unpublished};

/// Files that are open at once while sets are written.
const FILES_AT_ONCE: usize = 64;

/// A set as it is stored.
#[derive(Debug)]
pub struct StoredSet {
    /// Its tools.
    pub tools: Vec<DiscoveredTool>,
    /// True if there must be pins beside it: sets of earlier versions have none.
    pub pinned: bool,
}

/// The file that holds the set of `server`.
#[must_use]
pub fn path(folder: &Path, server: &str) -> PathBuf {
    hashed_file::path(folder, server, "tools")
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

/// The tools in one line.
fn body(tools: &[DiscoveredTool]) -> String {
    let mut body = String::from("[");
    for (i, tool) in tools.iter().enumerate() {
        if i > 0 {
            body.push(',');
        }
        // Between tokens a line break means a space; inside a string JSON has none.
        body.extend(tool.raw.get().chars().map(|c| if c == '\n' { ' ' } else { c }));
    }
    body.push(']');
    body
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
    let Some(file) = hashed_file::read(&path(folder, server), server)? else { return Ok(None) };
    let damaged = |error: serde_json::Error| UnusableFile::Damaged(error.to_string());
    let elements: Vec<&RawValue> = serde_json::from_str(file.body()).map_err(damaged)?;
    let tools = elements.into_iter().map(DiscoveredTool::parse).collect::<Result<_, _>>();
    Ok(Some(StoredSet { tools: tools.map_err(UnusableFile::Damaged)?, pinned: file.pinned }))
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
        fs::write(path(folder.path(), "s").with_extension("tools.new"), "{\"ver").unwrap();
        assert_eq!(raw(read(folder.path(), "s").unwrap()), Some(vec![A.into()]));
        fs::copy(path(folder.path(), "s"), path(folder.path(), "t")).unwrap();
        assert!(read(folder.path(), "t").is_err(), "the set of another server");
    }
}
