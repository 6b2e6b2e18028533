//! A server while a call uses it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::handle::Upstream;

/// A server with a place for one call: it does not end before this is dropped, or its time is up.
pub struct InUse(Arc<Upstream>);

impl InUse {
    /// A place for a call of `upstream`; `None` where it takes none any more.
    pub(super) fn enter(upstream: &Arc<Upstream>) -> Option<Self> {
        upstream.users.enter().then(|| Self(Arc::clone(upstream)))
    }
}

impl Deref for InUse {
    type Target = Arc<Upstream>;

    fn deref(&self) -> &Arc<Upstream> {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.users.leave();
    }
}

impl fmt::Debug for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InUse").field(self.0.name()).finish()
    }
}
