//! Why a store did not do what it was asked, with the bounds that it names.

use std::fmt;
use std::time::Duration;

use object_store::path;
use thiserror::Error;

use crate::fleet::strays::visible;

/// Most objects of one listing.
pub const MAX_LISTED: usize = 4_000_000;
/// Most folders in a folder: more nodes than are kept in mind, and what else may lie there.
pub const MAX_FOLDERS: usize = 16_384;
/// Most time for a listing.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a store's words that are shown.
const MAX_WORDS: usize = 500;
/// Characters of a key that are shown: whoever is to remove it needs all of it, and a store lets few be longer.
const MAX_KEY_CHARS: usize = 300;

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
    #[error("there are more than {MAX_FOLDERS} folders in {0}: remove those that no node has made")]
    TooManyFolders(String),
    /// A key that is no path is in the way of a listing.
    #[error(
        "a listing does not get past '{0}', a key that no node makes: remove it from the store"
    )]
    OddKey(String),
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
    match (error, odd_key_of(error)) {
        (_, Some(odd)) => odd_key(odd),
        (object_store::Error::NotFound { .. }, None) => BucketError::Missing(key.to_owned()),
        (error, None) => BucketError::Failed(words(error)),
    }
}

/// The key, as the store has it, for which the library gave nothing of what it was asked: it is no path.
pub(super) fn odd_key_of(error: &object_store::Error) -> Option<&str> {
    let object_store::Error::InvalidPath { source } = error else { return None };
    match source {
        path::Error::EmptySegment { path }
        | path::Error::BadSegment { path, .. }
        | path::Error::NonUnicode { path, .. } => Some(path.as_str()),
        _ => None,
    }
}

/// That a listing does not get past this key.
pub(super) fn odd_key(raw: &str) -> BucketError {
    BucketError::OddKey(visible(raw, MAX_KEY_CHARS))
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
