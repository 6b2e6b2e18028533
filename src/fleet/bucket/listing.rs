//! Listings of folders in which there may be millions of objects: nothing is kept but what was asked for, and what is not
//! wanted any more is not listed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path;

use super::error::{BucketError, LIST_TIMEOUT, MAX_LISTED, failed, within};
use super::kept_part::KeptPart;
use super::lister::Lister;
use super::pages::{ListedNext, Pages};
use super::{Bucket, ListedObject, ListedPart, ListedSome, OPERATION_TIMEOUT};

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
        each: impl FnMut(ListedObject) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        // Who passes over some of them by itself looks at all of them first.
        let limit = match &self.lister {
            Lister::Paged(_) => OPERATION_TIMEOUT,
            Lister::Local(_) => LIST_TIMEOUT,
        };
        self.walk_within(limit, folder, after, each).await
    }

    /// The same, with so much time to the next objects at most.
    async fn walk_within(
        &self,
        limit: Duration,
        folder: &str,
        after: Option<&str>,
        mut each: impl FnMut(ListedObject) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        let (prefix, after) = (self.path(folder), after.filter(|after| !after.is_empty()));
        if let Lister::Paged(store) = &self.lister {
            let offset = after.map(|after| self.raw(after));
            let mut pages = Pages::of(&**store, &prefix, folder, limit).behind(offset);
            while let Some(next) = pages.next().await? {
                for object in self.objects(next) {
                    // A store that cannot begin behind a key begins with the first.
                    let is_before = after.is_some_and(|after| object.key.as_str() <= after);
                    if !is_before && each(object).is_break() {
                        return Ok(());
                    }
                }
            }
            return Ok(());
        }
        let mut found = match after {
            Some(after) => {
                let offset = Path::parse(after).unwrap_or_else(|_| self.path(after));
                self.store.list_with_offset(Some(&prefix), &offset)
            }
            None => self.store.list(Some(&prefix)),
        };
        loop {
            let next = async { found.try_next().await.map_err(|error| failed(folder, &error)) };
            let Some(meta) = within(limit, next).await? else { return Ok(()) };
            if self.listed(meta).is_some_and(|object| each(object).is_break()) {
                return Ok(());
            }
        }
    }

    /// The objects of a page. One whose key is no path is an object as the others.
    fn objects(&self, next: ListedNext) -> Vec<ListedObject> {
        match next {
            ListedNext::Page(page) => {
                page.objects.into_iter().filter_map(|meta| self.listed(meta)).collect()
            }
            ListedNext::Odd(raw) => self.odd(&raw).into_iter().collect(),
        }
    }

    /// The objects in a folder and below it whose keys are after `after`, in the order of their keys. Where there may be many,
    /// [`walk`](Self::walk) keeps none of them.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where there are more than [`MAX_LISTED`].
    pub async fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> Result<Vec<ListedObject>, BucketError> {
        let (mut listed, mut too_many) = (Vec::new(), false);
        let each = self.walk_within(LIST_TIMEOUT, folder, after, |object| {
            too_many = listed.len() == MAX_LISTED;
            if too_many {
                return ControlFlow::Break(());
            }
            listed.push(object);
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        if too_many {
            return Err(BucketError::TooMany(folder.to_owned()));
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    /// At most `most` objects in a folder and below it: behind them nothing is asked for. Which ones these are is the store's
    /// choice, where it does not list in the order of keys.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn list_up_to(&self, folder: &str, most: usize) -> Result<ListedSome, BucketError> {
        let mut some = ListedSome { objects: Vec::new(), is_whole: true };
        let each = self.walk_within(LIST_TIMEOUT, folder, None, |object| {
            some.is_whole = some.objects.len() < most;
            if !some.is_whole {
                return ControlFlow::Break(());
            }
            some.objects.push(object);
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        some.objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(some)
    }

    /// The last `most` objects in a folder and below it whose keys are after `after`, and how many there are before them.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub async fn list_newest(
        &self,
        folder: &str,
        after: &str,
        most: usize,
    ) -> Result<ListedPart, BucketError> {
        // Not every store lists in the order of keys.
        let (mut kept, mut last, mut more) = (BTreeMap::new(), None::<String>, 0);
        let each = self.walk_within(LIST_TIMEOUT, folder, Some(after), |object| {
            if last.as_ref().is_none_or(|last| *last < object.key) {
                last = Some(object.key.clone());
            }
            kept.insert(object.key.clone(), object);
            if kept.len() > most {
                kept.pop_first();
                more += 1;
            }
            ControlFlow::Continue(())
        });
        within(LIST_TIMEOUT, each).await?;
        Ok(ListedPart { objects: kept.into_values().collect(), more, last })
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
        let mut part = KeptPart::behind(after, most, count);
        if matches!(self.lister, Lister::Paged(_)) {
            self.walk(folder, Some(after), |object| part.add(object)).await?;
            return Ok(part.listed());
        }
        // Whatever is asked for, all of a folder is looked at: folder by folder, until there are enough.
        let mut direct = self.direct(folder, part).await?;
        for name in direct.take_folders() {
            let below = format!("{folder}/{name}");
            let begins = format!("{below}/");
            let is_before = after >= begins.as_str() && !after.starts_with(&begins);
            let part = &mut direct.objects;
            if !is_before && !part.is_full_before(&begins) {
                self.walk(&below, Some(after), |object| part.add(object)).await?;
            }
        }
        Ok(direct.objects.listed())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

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
