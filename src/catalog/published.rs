//! The snapshot in force: swapped whole, read without a lock, and waited for.
//!
//! Every call reads the snapshot of its moment, never what the agent saw at discovery.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

use super::snapshot::{Snapshot, ToolSet};
use crate::tool::{OutputSchema, Tool, ToolName};

/// The snapshot in force.
#[derive(Debug)]
pub(super) struct Published {
    current: ArcSwap<Snapshot>,
    /// Marked whenever there is another snapshot, or a schema of it is compiled.
    swaps: watch::Sender<()>,
    /// The set of tools is another than when clients were last told.
    changed: Notify,
}

impl Published {
    pub(super) fn new(first: Snapshot) -> Self {
        Self {
            current: ArcSwap::from_pointee(first),
            swaps: watch::Sender::new(()),
            changed: Notify::new(),
        }
    }

    pub(super) fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Puts `next` in force; `differs` if its tools are others than those before.
    pub(super) fn swap(&self, next: Snapshot, differs: bool) {
        self.current.store(Arc::new(next));
        self.swaps.send_replace(());
        if differs {
            self.changed.notify_one();
        }
    }

    /// A schema of the snapshot in force is compiled, or found unusable.
    pub(super) fn schema_settled(&self) {
        self.swaps.send_replace(());
    }

    /// Marked whenever there is another snapshot, or a schema of it is compiled.
    pub(super) fn swaps(&self) -> watch::Receiver<()> {
        self.swaps.subscribe()
    }

    /// Waits until the set of tools is another than when this was last waited for.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The tool of that name, as soon as its server's first set is there; `None` if that has no such
    /// tool, or is not there by `deadline`.
    pub(super) async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        let mut swaps = self.swaps.subscribe();
        let settled = async {
            loop {
                let snapshot = self.load();
                match snapshot.set_of(&name.server)? {
                    ToolSet::Restored | ToolSet::Discovered => {
                        return snapshot.tool(name).cloned();
                    }
                    ToolSet::Awaited => swaps.changed().await.ok()?,
                }
            }
        };
        tokio::time::timeout_at(deadline.into(), settled).await.ok().flatten()
    }

    /// Waits until the output schema of `tool` is compiled; false if it is not by `deadline`.
    pub(super) async fn compiled(&self, tool: &Tool, deadline: Instant) -> bool {
        let mut swaps = self.swaps.subscribe();
        let compiled = async {
            while matches!(tool.schema.now(), OutputSchema::Compiling(_)) {
                if swaps.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout_at(deadline.into(), compiled).await.unwrap_or(false)
    }
}
