//! How a store is listed: not every one lists in pages, in an order, and from anywhere on.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::list::PaginatedListStore;

/// How a store is listed.
#[derive(Clone)]
pub(super) enum Lister {
    /// A folder of this machine: where it is. In no order, and from the beginning however much of it is wanted.
    Local(PathBuf),
    /// A store that lists in pages, in the order of the keys and from any of them on.
    Paged(Arc<dyn PaginatedListStore>),
}
