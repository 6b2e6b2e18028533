//! A listing of a store that lists in pages, one page after the other.
//!
//! The library gives nothing of a page with a key that it takes for no path: with two slashes in a row, with `.` or `..` between
//! two, with a control character. Whoever can write into the store can put one there, in the way of every node. So such a key is
//! found, given by what it is called, and the listing goes on behind it.
//!
//! Which of the page's keys it is, is said; how many are before it is not. So a page that is not given is asked for in parts: twice as
//! many keys each time until it is among them, then half as many until it is the only one. Of a page of 5000 keys, the longest of
//! all, that takes some thirty requests at most.

use std::borrow::Cow;
use std::time::Duration;

use object_store::ListResult;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;

use super::error::{BucketError, failed, odd_key, odd_key_of, within};

/// Most keys that are no paths which one listing gets past.
pub(super) const MAX_ODD_KEYS: usize = 32;
/// So many keys of a page, and more, are asked for without a number.
const LARGEST_PART: usize = 4096;

/// What comes next in a listing.
pub(super) enum ListedNext {
    /// Some keys.
    Page(ListResult),
    /// One that is no path, as the store has it. With a slash at its end, where what lies directly in a folder is listed, it is what
    /// the keys in a folder begin with.
    Odd(String),
}

/// A listing, as far as it has come.
pub(super) struct Pages<'a> {
    store: &'a dyn PaginatedListStore,
    prefix: Option<String>,
    /// What is listed, for people.
    shown: &'a str,
    /// Most time for one request.
    limit: Duration,
    /// Whether a folder in the folder is listed, and not what is in it.
    is_direct: bool,
    /// The key that it begins behind, and where it goes on.
    offset: Option<String>,
    token: Option<String>,
    part: PagePart,
    is_over: bool,
    /// How many keys were passed that are no paths, and the last of them.
    passed: usize,
    last_passed: Option<String>,
}

impl<'a> Pages<'a> {
    /// What is in a folder and below it.
    pub(super) fn of(
        store: &'a dyn PaginatedListStore,
        folder: &Path,
        shown: &'a str,
        limit: Duration,
    ) -> Self {
        Self {
            store,
            prefix: Some(format!("{folder}/")).filter(|prefix| prefix != "/"),
            shown,
            limit,
            is_direct: false,
            offset: None,
            token: None,
            part: PagePart::Whole,
            is_over: false,
            passed: 0,
            last_passed: None,
        }
    }

    /// The same behind this key, as the store has it.
    pub(super) fn behind(self, key: Option<String>) -> Self {
        Self { offset: key, ..self }
    }

    /// What lies directly in the folder, and no deeper.
    pub(super) fn direct(self) -> Self {
        Self { is_direct: true, ..self }
    }

    /// What comes next; `None` when all was given.
    pub(super) async fn next(&mut self) -> Result<Option<ListedNext>, BucketError> {
        while !self.is_over {
            let options = PaginatedListOptions {
                offset: self.offset.clone(),
                delimiter: self.is_direct.then_some(Cow::Borrowed("/")),
                max_keys: self.part.most(),
                page_token: self.token.clone(),
                ..PaginatedListOptions::default()
            };
            let asked = self.store.list_paginated(self.prefix.as_deref(), options);
            let answered = within(self.limit, async { Ok(asked.await) }).await?;
            let error = match answered {
                Ok(page) => {
                    // Some stores end with an empty one.
                    self.token = page.page_token.filter(|token| !token.is_empty());
                    self.is_over = self.token.is_none();
                    self.part = self.part.given();
                    return Ok(Some(ListedNext::Page(page.result)));
                }
                Err(error) => error,
            };
            let Some(key) = odd_key_of(&error) else { return Err(failed(self.shown, &error)) };
            match self.part.not_given() {
                Some(smaller) => self.part = smaller,
                None => {
                    self.pass(key)?;
                    return Ok(Some(ListedNext::Odd(key.to_owned())));
                }
            }
        }
        Ok(None)
    }

    /// Goes on behind a key that is the next one, and is no path.
    fn pass(&mut self, key: &str) -> Result<(), BucketError> {
        // A store that cannot begin behind a key gives it again, and would without end.
        let comes_again = self.last_passed.as_ref().is_some_and(|last| key <= last.as_str());
        if comes_again || self.passed == MAX_ODD_KEYS {
            return Err(odd_key(key));
        }
        self.passed += 1;
        self.last_passed = Some(key.to_owned());
        // Behind all that is in a folder is '0', which comes after the slash. An object that is called so is not listed
        // then, but for such a key beside it; folders are.
        let folder = key.strip_suffix('/').filter(|_| self.is_direct);
        self.offset = Some(folder.map_or_else(|| key.to_owned(), |folder| format!("{folder}0")));
        self.token = None;
        self.part = PagePart::Whole;
        Ok(())
    }
}

/// How much of a page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagePart {
    /// As many keys as the store gives.
    Whole,
    /// So many, more each time: a key that is no path is somewhere behind.
    Grows(usize),
    /// So many, fewer each time: it is among twice as many.
    Shrinks(usize),
}

impl PagePart {
    fn most(self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::Grows(most) | Self::Shrinks(most) => Some(most),
        }
    }

    /// What is asked for behind a part that was given. The key may be gone by then, and the store may give less than it is
    /// asked for: what is done then is right as well, and takes longer.
    fn given(self) -> Self {
        match self {
            Self::Whole => Self::Whole,
            Self::Grows(most) if most >= LARGEST_PART => Self::Whole,
            Self::Grows(most) => Self::Grows(most * 2),
            Self::Shrinks(1) => Self::Grows(1),
            Self::Shrinks(most) => Self::Shrinks(most / 2),
        }
    }

    /// What is asked for in the place of one that was not; `None` for a part of one key: it is that.
    fn not_given(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::Grows(1)),
            Self::Grows(1) | Self::Shrinks(1) => None,
            Self::Grows(most) | Self::Shrinks(most) => Some(Self::Shrinks(most / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_wherever_it_is_in_a_page() {
        for before in 0..5000 {
            let (mut part, mut left, mut asked) = (PagePart::Whole, before, 0);
            loop {
                asked += 1;
                // A whole page ends somewhere behind it.
                if let Some(most) = part.most().filter(|most| *most <= left) {
                    left -= most;
                    part = part.given();
                    continue;
                }
                match part.not_given() {
                    Some(smaller) => part = smaller,
                    None => break,
                }
            }
            assert_eq!(left, 0, "{before} keys are before it");
            assert!(asked <= 30, "{asked} requests, {before} keys are before it");
        }
    }

    #[test]
    fn where_the_key_is_gone_whole_pages_are_asked_for_again() {
        for start in [PagePart::Grows(1), PagePart::Shrinks(512)] {
            let (mut part, mut asked) = (start, 0);
            while part != PagePart::Whole {
                part = part.given();
                asked += 1;
            }
            assert!(asked <= 30, "{asked} requests after {start:?}");
        }
    }
}
