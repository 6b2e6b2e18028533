//! The folders in a folder, page by page, so that no more of them are in memory than there may be.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;

use super::error::{BucketError, LIST_TIMEOUT, MAX_FOLDERS, failed, within};

/// Where the folders of a store are listed.
#[derive(Clone)]
pub(super) enum Folders {
    /// A folder of this machine: where it is.
    Local(PathBuf),
    /// A store that lists in pages.
    Paged(Arc<dyn PaginatedListStore>),
}

impl Folders {
    /// The names of the folders at `path`, in their order.
    pub(super) async fn at(&self, path: &Path, shown: &str) -> Result<Vec<String>, BucketError> {
        let names = match self {
            Self::Local(root) => {
                let (root, path) = (root.clone(), path.clone());
                let listed = tokio::task::spawn_blocking(move || local(root, &path));
                listed.await.map_err(|_| BucketError::Failed("a thread ended".to_owned()))?
            }
            Self::Paged(store) => within(LIST_TIMEOUT, paged(&**store, path, shown)).await,
        }?;
        names.map(Vec::from_iter).ok_or_else(|| BucketError::TooManyFolders(shown.to_owned()))
    }
}

/// `None` if there are too many.
async fn paged(
    store: &dyn PaginatedListStore,
    path: &Path,
    shown: &str,
) -> Result<Option<BTreeSet<String>>, BucketError> {
    let prefix = Some(format!("{path}/")).filter(|prefix| prefix != "/");
    let (mut names, mut page_token) = (BTreeSet::new(), None);
    loop {
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            page_token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(prefix.as_deref(), options).await;
        let page = page.map_err(|error| failed(shown, &error))?;
        let found = page.result.common_prefixes.iter().filter_map(Path::filename);
        names.extend(found.map(str::to_owned));
        if names.len() > MAX_FOLDERS {
            return Ok(None);
        }
        page_token = page.page_token;
        if page_token.is_none() {
            return Ok(Some(names));
        }
    }
}

fn local(root: PathBuf, path: &Path) -> Result<Option<BTreeSet<String>>, BucketError> {
    let told = |error: std::io::Error| BucketError::Failed(error.to_string());
    let folder = path.parts().fold(root, |folder, part| folder.join(part.as_ref()));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Some(BTreeSet::new()));
        }
        Err(error) => return Err(told(error)),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(told)?;
        // What a link leads to counts; one that leads nowhere, or went away meanwhile, is none.
        if entry.path().is_dir() {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
        if names.len() > MAX_FOLDERS {
            return Ok(None);
        }
    }
    Ok(Some(names))
}
