//! A stream whose next item is begun before the last one is worked on, so that whoever makes them and whoever takes them work
//! at the same time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use futures_util::stream::{Fuse, StreamExt};

/// A stream that is one item ahead.
pub(super) struct ReadAhead<S: Stream> {
    stream: Fuse<S>,
    /// The next item, where it was there at once.
    next: Option<S::Item>,
}

/// `stream`, one item ahead.
pub(super) fn read_ahead<S: Stream + Unpin>(stream: S) -> ReadAhead<S> {
    ReadAhead { stream: stream.fuse(), next: None }
}

impl<S> Stream for ReadAhead<S>
where
    S: Stream + Unpin,
    S::Item: Unpin,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        let item = match this.next.take() {
            Some(item) => Some(item),
            None => ready!(this.stream.poll_next_unpin(cx)),
        };
        // Asked for once, it is on its way.
        if item.is_some()
            && let Poll::Ready(next) = this.stream.poll_next_unpin(cx)
        {
            this.next = next;
        }
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::{FutureExt, stream};

    use super::*;

    #[test]
    fn the_next_item_is_begun_before_the_last_one_is_worked_on() {
        let begun = Cell::new(0);
        let items = stream::iter(1..=3).map(|item| {
            begun.set(item);
            item
        });
        let mut items = read_ahead(items);
        for item in 1..=3 {
            assert_eq!(items.next().now_or_never(), Some(Some(item)));
            assert_eq!(begun.get(), (item + 1).min(3));
        }
        assert_eq!(items.next().now_or_never(), Some(None));
    }

    #[test]
    fn what_is_not_there_yet_is_waited_for() {
        let there = Cell::new(Some(Some(1)));
        let items = stream::poll_fn(|_| there.take().map_or(Poll::Pending, Poll::Ready));
        let mut items = read_ahead(items);
        assert_eq!(items.next().now_or_never(), Some(Some(1)));
        assert_eq!(items.next().now_or_never(), None);
        there.set(Some(Some(2)));
        assert_eq!(items.next().now_or_never(), Some(Some(2)));
        there.set(Some(None));
        assert_eq!(items.next().now_or_never(), Some(None));
    }
}
