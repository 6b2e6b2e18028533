//! The copy of a node's log in the folder of an index: found, opened, and made anew where it is damaged.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::follow_context::NotFollowed;
use crate::activity::StoreError;
use crate::activity::record::NodeId;
use crate::activity::replica::Replica;
use crate::fleet::following::FollowMark;
use crate::os::private;

/// The file in a copy's folder that says that it is of no use.
const DAMAGED: &str = "damaged";

/// The file by which it is seen whether the disk can be written, and how much goes into it.
const TRIED: &str = "tried";
const TRIED_BYTES: usize = 1 << 20;

/// A copy that is open.
pub(super) struct IndexCopy {
    pub(super) dir: PathBuf,
    pub(super) replica: Replica,
    /// How far the node was followed; `None`: not at all.
    pub(super) mark: Option<FollowMark>,
    /// Whether there was one that was of no use.
    pub(super) made_anew: bool,
}

/// Says that the copy there is of no use, to who opens it next.
pub(super) fn is_damaged(dir: &Path) {
    let _ = std::fs::write(dir.join(DAMAGED), b"");
}

/// Whether the disk that a copy is on can be written.
pub(super) fn could_be_written(dir: &Path) -> bool {
    let path = dir.join(TRIED);
    let write = || {
        let mut file = private::create(&path)?;
        file.write_all(&vec![1; TRIED_BYTES])?;
        file.sync_all()
    };
    let written = write();
    let removed = std::fs::remove_file(&path);
    written.and(removed).is_ok()
}

/// Opens the copy of a node's log, or makes it, anew where it is damaged.
pub(super) fn open(folder: &Path, name: &Arc<str>, log: NodeId) -> Result<IndexCopy, NotFollowed> {
    let number = |path: &Path| -> Option<u64> {
        let (node, number) = path.file_name()?.to_str()?.rsplit_once('~')?;
        (node == &**name).then(|| number.parse().ok())?
    };
    let entries = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut copies: Vec<_> = entries.filter_map(|path| Some((number(&path)?, path))).collect();
    copies.sort();
    let newest = copies.pop();
    let old = copies.into_iter().map(|(_, path)| path);
    old.for_each(|path| drop(std::fs::remove_dir_all(path)));
    let mut made_anew = false;
    let mut next = 1;
    if let Some((number, dir)) = newest {
        next = number + 1;
        let opened = match dir.join(DAMAGED).try_exists()? {
            true => Err("it was damaged when it was read".to_owned()),
            false => match open_at(&dir, log, name) {
                Err(error) if !error.is_damage() => return Err(error),
                opened => opened.map_err(|error| error.to_string()),
            },
        };
        match opened {
            Ok((replica, mark)) => return Ok(IndexCopy { dir, replica, mark, made_anew }),
            Err(why) => {
                tracing::error!(
                    node = &**name,
                    why,
                    "the index of a node is made anew from the store"
                );
                made_anew = true;
                // Who reads it still has its files.
                let _ = std::fs::remove_dir_all(&dir);
            }
        }
    }
    let dir = folder.join(format!("{name}~{next}"));
    let (replica, mark) = open_at(&dir, log, name)?;
    Ok(IndexCopy { dir, replica, mark, made_anew })
}

fn open_at(
    dir: &Path,
    log: NodeId,
    name: &Arc<str>,
) -> Result<(Replica, Option<FollowMark>), NotFollowed> {
    let damaged = |why: &str| {
        NotFollowed::Local(StoreError::Damaged { file: dir.to_owned(), why: why.into() })
    };
    let (replica, bytes) = Replica::open(dir, log, Arc::clone(name))?;
    let mark = match bytes {
        None => None,
        Some(bytes) => Some(
            FollowMark::decode(&bytes).ok_or_else(|| damaged("how far it has come is not said"))?,
        ),
    };
    if mark.as_ref().map_or(0, |mark| mark.last) != replica.last() {
        return Err(damaged("it ends elsewhere than it says"));
    }
    Ok((replica, mark))
}
