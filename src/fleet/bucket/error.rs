//! Why a store did not do what it was asked, with the bounds that it names.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// Most objects of one listing.
pub const MAX_LISTED: usize = 4_000_000;
/// Most folders in a folder: more nodes than are kept in mind, and what else may lie there.
pub const MAX_FOLDERS: usize = 16_384;
/// Most time for a listing.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a store's words that are shown.
const MAX_WORDS: usize = 500;

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BucketError {
    /// The URL, or what the environment says about it, cannot be used.
    #[error("cluster.store cannot be used: {0}")]
    Url(String),
    /// There is no such object.
    #[error("{0} is not there")]
    Missing(String),
    /// An object is longer than it may be.
    #[error("{0} is longer than it may be")]
    TooLong(String),
    /// There are more objects than are listed.
    #[error("there are more than {MAX_LISTED} objects below {0}")]
    TooMany(String),
    /// There are more folders than are listed.
    #[error("there are more than {MAX_FOLDERS} folders in {0}: remove what is no node's")]
    TooManyFolders(String),
    /// It did not answer in time.
    #[error("the store did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// It refused, or could not be reached.
    #[error("the store cannot be used: {0}")]
    Failed(String),
}

pub(super) async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, BucketError>>,
) -> Result<T, BucketError> {
    tokio::time::timeout(limit, asked).await.unwrap_or(Err(BucketError::Late(limit)))
}

pub(super) fn failed(key: &str, error: &object_store::Error) -> BucketError {
    match error {
        object_store::Error::NotFound { .. } => BucketError::Missing(key.to_owned()),
        error => BucketError::Failed(words(error)),
    }
}

/// The words of an error, bounded, and without what follows a `?` in a URL: it may be a signature.
pub(super) fn words(error: &dyn fmt::Display) -> String {
    let error = error.to_string();
    let plain = |word: &str| match (word.find("://"), word.split_once('?')) {
        (Some(scheme), Some((before, _))) if scheme < before.len() => format!("{before}?… "),
        _ => word.to_owned(),
    };
    let mut words: String = error.split_inclusive(char::is_whitespace).map(plain).collect();
    if words.len() > MAX_WORDS {
        let end = (0..=MAX_WORDS).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0);
        words.truncate(end);
        words.push('…');
    }
    words
}
