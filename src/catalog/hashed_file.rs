//! A server's file beside the log: a header line and a body whose hash the header holds.
//!
//! ```text
//! {"version":1,"server":"github","blake3":"<hex of the rest>"}
//! <the body>
//! ```
//! It is replaced whole by a rename, so a crash leaves the old file or the new one. A file of another
//! version, of another server, damaged or unreadable is as good as none; the caller warns. The hash
//! notices accidents, not someone who may write here.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::os::private;
use crate::tool::server_id;

/// The version of the format. Another one is not read: the next writing writes this one.
const VERSION: u32 = 1;

/// Most bytes of a file that is read back.
pub(super) const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Why a file is not used. Names no path: the function `path` does.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not a file of this version and server whose hash is right.
    #[error("is damaged or of another version: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    server: Box<str>,
    blake3: String,
    /// Of a set: its tools are pinned, so there is a file of pins, or it is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
}

/// What was read, and is what was written.
pub(super) struct Sound {
    text: String,
    body_at: usize,
    /// What [`Unpublished::new`] was given.
    pub(super) pinned: bool,
}

impl Sound {
    pub(super) fn body(&self) -> &str {
        self.text.get(self.body_at..).unwrap_or_default()
    }
}

/// The file of `server` of a kind.
pub(super) fn path(folder: &Path, server: &str, extension: &str) -> PathBuf {
    folder.join(format!("{}.{extension}", server_id::file_stem(server)))
}

/// The file at `path`, which is of `server`; `None` if there is none.
///
/// # Errors
/// The file is there and cannot be used.
pub(super) fn read(path: &Path, server: &str) -> Result<Option<Sound>, UnusableFile> {
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
    let Header { version, server: of, blake3, pinned } =
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

/// A file beside the one that it is to replace.
pub(super) struct Unpublished {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
}

impl Unpublished {
    /// Writes a file of `server` that is to be at `target`.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn new(
        target: PathBuf,
        server: &str,
        pinned: bool,
        body: &[u8],
    ) -> io::Result<Self> {
        let blake3 = blake3::hash(body).to_hex().to_string();
        let header = Header { version: VERSION, server: server.into(), blake3, pinned };
        if let Some(folder) = target.parent() {
            private::folder(folder)?;
        }
        let mut temporary = target.clone().into_os_string();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let mut file = private::create(&temporary)?;
        file.write_all(&serde_json::to_vec(&header)?)?;
        file.write_all(b"\n")?;
        file.write_all(body)?;
        Ok(Self { file, temporary, target })
    }

    /// Puts it in the old one's place. Durable once the folder is synced.
    ///
    /// # Errors
    /// The file system's. The old file is then still there.
    pub(super) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)
    }
}
