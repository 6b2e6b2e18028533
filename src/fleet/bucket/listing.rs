//! Listings of folders in which there may be millions of objects: nothing is kept but what was asked for, and what is not
//! wanted any more is not listed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::TryStreamExt;

use super::error::{BucketError, LIST_TIMEOUT, failed, within};
use super::{Bucket, ListedObject, ListedPart, OPERATION_TIMEOUT};

/// What lies directly in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderEntries {
    /// The names of its folders, in the order of the keys that are in them.
    pub folders: Vec<String>,
    /// Its objects, in the order of their keys.
    pub objects: Vec<ListedObject>,
}

impl Bucket {
    /// Shows `each` the objects in a folder and below it whose keys are after `after`, one after the other, until it breaks off.
    /// In the order of their keys, where the store lists them so.
    ///
    /// # Errors
    ///
    /// [`BucketError`]; what was shown is as it was shown.
    pub async fn walk(
        &self,
        folder: &str,
        after: Option<&str>,
        mut each: impl FnMut(ListedObject) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        let prefix = self.path(folder);
        let mut found = match after {
            Some(after) => self.store.list_with_offset(Some(&prefix), &self.path(after)),
            None => self.store.list(Some(&prefix)),
        };
        let limit = self.step_limit();
        loop {
            let next = async { found.try_next().await.map_err(|error| failed(folder, &error)) };
            let Some(meta) = within(limit, next).await? else { break };
            if self.listed(meta).is_some_and(|object| each(object).is_break()) {
                break;
            }
        }
        Ok(())
    }

    /// Most time to the next object: who passes over some of them by itself looks at all of them first.
    fn step_limit(&self) -> Duration {
        if self.lists_from { OPERATION_TIMEOUT } else { LIST_TIMEOUT }
    }

    /// What lies directly in a folder.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn entries(&self, folder: &str) -> Result<FolderEntries, BucketError> {
        let prefix = self.path(folder);
        let listed = async {
            let found = self.store.list_with_delimiter(Some(&prefix)).await;
            let found = found.map_err(|error| failed(folder, &error))?;
            let names = found.common_prefixes.iter().filter_map(|path| path.filename());
            let mut folders: Vec<_> = names.map(str::to_owned).collect();
            folders.sort_by_cached_key(|name| format!("{name}/"));
            let objects = found.objects.into_iter().filter_map(|meta| self.listed(meta));
            let mut objects: Vec<_> = objects.collect();
            objects.sort_by(|a, b| a.key.cmp(&b.key));
            Ok(FolderEntries { folders, objects })
        };
        within(LIST_TIMEOUT, listed).await
    }

    /// The first `most` objects in a folder and below it whose keys are after `after`. How many there are behind them is counted
    /// up to `count` at most, and at least as far as that there are some.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn list_part(
        &self,
        folder: &str,
        after: &str,
        most: usize,
        count: u64,
    ) -> Result<ListedPart, BucketError> {
        let mut part = Part { most, count: count.max(1), ..Part::default() };
        if self.lists_from {
            self.walk(folder, Some(after), |object| part.add(object)).await?;
            return Ok(part.listed());
        }
        // Whatever is asked for, all of a folder is looked at: folder by folder, until there are enough.
        let entries = self.entries(folder).await?;
        part.is_unordered = true;
        let after_folder = |key: &String| key.as_str() > after;
        for object in entries.objects.into_iter().filter(|object| after_folder(&object.key)) {
            let _ = part.add(object);
        }
        for name in entries.folders {
            let below = format!("{folder}/{name}");
            let begins = format!("{below}/");
            let is_before = after >= begins.as_str() && !after.starts_with(&begins);
            if !is_before && !part.is_full_before(&begins) {
                self.walk(&below, Some(after), |object| part.add(object)).await?;
            }
        }
        Ok(part.listed())
    }
}

/// The first objects of a listing, while it comes.
#[derive(Default)]
struct Part {
    most: usize,
    count: u64,
    kept: BTreeMap<String, ListedObject>,
    more: u64,
    last: Option<String>,
    /// An object came whose key is before that of another one: the first ones are known when all have come.
    is_unordered: bool,
}

impl Part {
    fn add(&mut self, object: ListedObject) -> ControlFlow<()> {
        if self.last.as_ref().is_none_or(|last| *last < object.key) {
            self.last = Some(object.key.clone());
        } else {
            self.is_unordered = true;
        }
        if !self.is_unordered && self.kept.len() >= self.most {
            self.more += 1;
            return match self.more < self.count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
        }
        self.kept.insert(object.key.clone(), object);
        if self.kept.len() > self.most {
            self.kept.pop_last();
            self.more += 1;
        }
        ControlFlow::Continue(())
    }

    /// Whether all that was asked for is before this key, and more than that.
    fn is_full_before(&self, key: &str) -> bool {
        let last = self.kept.last_key_value().map(|(last, _)| last.as_str());
        self.more > 0 && last.is_some_and(|last| last < key)
    }

    fn listed(self) -> ListedPart {
        let objects = self.kept.into_values().collect();
        ListedPart { objects, more: self.more, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn object(key: &str) -> ListedObject {
        ListedObject { key: key.to_owned(), size: 1, state: "".into() }
    }

    /// What was kept, how many more there are, the last, and how many were looked at.
    fn part(keys: &[&str], most: usize, count: u64) -> (Vec<String>, u64, Option<String>, usize) {
        let mut part = Part { most, count, ..Part::default() };
        let mut seen = 0;
        for key in keys {
            seen += 1;
            if part.add(object(key)).is_break() {
                break;
            }
        }
        let ListedPart { objects, more, last } = part.listed();
        (objects.into_iter().map(|object| object.key).collect(), more, last, seen)
    }

    #[test]
    fn a_listing_ends_behind_what_was_asked_for_and_what_is_counted() {
        let all = ["a", "b", "c", "d", "e", "f"];
        let kept = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(part(&all, 2, 1), (kept.clone(), 1, Some("c".into()), 3));
        assert_eq!(part(&all, 2, 3), (kept.clone(), 3, Some("e".into()), 5));
        assert_eq!(part(&all, 2, 100), (kept.clone(), 4, Some("f".into()), 6));
        assert_eq!(part(&all[..2], 2, 1), (kept.clone(), 0, Some("b".into()), 2));
        // In another order all have to be looked at.
        let other = ["e", "f", "a", "d", "b", "c"];
        assert_eq!(part(&other, 3, 2).0, ["a", "b", "c"]);
        assert_eq!(part(&other, 3, 2).1, 3);
    }

    #[tokio::test]
    async fn a_store_that_lists_in_no_order_is_looked_at_folder_by_folder() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        let keys = [
            "f/a",
            "f/date=1/2",
            "f/date=1/3",
            "f/date=1-/1",
            "f/date=2/1",
            "f/date=3/1",
            "f/y",
            "f/z",
        ];
        for key in keys.iter().chain(&["g/1"]) {
            bucket.put(key, Bytes::from_static(b"1")).await.unwrap();
        }
        let entries = bucket.entries("f").await.unwrap();
        assert_eq!(entries.folders, ["date=1-", "date=1", "date=2", "date=3"]);
        let objects: Vec<_> = entries.objects.iter().map(|object| &*object.key).collect();
        assert_eq!(objects, ["f/a", "f/y", "f/z"]);
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        for from in 0..=sorted.len() {
            let after = if from == 0 { "" } else { sorted[from - 1] };
            for most in 1..=sorted.len() {
                let part = bucket.list_part("f", after, most, 1).await.unwrap();
                let found: Vec<_> = part.objects.iter().map(|object| &*object.key).collect();
                let rest = &sorted[from..];
                assert_eq!(found, rest[..most.min(rest.len())], "{most} after {after:?}");
                assert_eq!(part.more > 0, most < rest.len(), "{most} after {after:?}");
            }
        }
    }
}
