//! By how many nodes this one divides the limits that all share, at work: those that it sees, and until it has seen any since it was
//! started, as many as it saw last, which it remembers. So one that starts while the store is away does not take the whole.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::fleet::FleetNode;
use crate::fleet::living_nodes::{LivingNodes, MAX_NODES};
use crate::os::private;
use crate::proxy::Proxy;

/// How often it is looked how many there are.
const SHARE_EVERY: Duration = Duration::from_millis(250);
/// What it remembers, in `data_dir/fleet`: a number in decimal digits.
const FILE: &str = "sharing";
const NEW_FILE: &str = "sharing.new";
/// Most bytes of that.
const MAX_FILE_BYTES: u64 = 16;

/// Divides the limits until it is aborted. `folder`: `data_dir/fleet`.
pub(super) async fn share_limits(proxy: Arc<Proxy>, node: Arc<FleetNode>, folder: PathBuf) {
    let folder = Arc::new(folder);
    let read = Arc::clone(&folder);
    let remembered = tokio::task::spawn_blocking(move || remembered(&read)).await;
    let mut sharing = SharingNodes { last: remembered.unwrap_or_default(), has_seen: false };
    loop {
        let (count, is_new) = sharing.count(&node.living());
        // Also where it is as it was: another config may be in force.
        proxy.settings.share_limits(count);
        if is_new {
            let folder = Arc::clone(&folder);
            let kept = tokio::task::spawn_blocking(move || remember(&folder, count)).await;
            if let Ok(Err(error)) = kept {
                tracing::warn!(%error, "it is not remembered by how many nodes the limits are divided");
            }
        }
        tokio::time::sleep(SHARE_EVERY).await;
    }
}

/// How many share the limits, as far as this node has seen since it was started.
#[derive(Debug)]
struct SharingNodes {
    /// How many it saw last, in this life or the one before; 0 for none.
    last: usize,
    /// It has read the heartbeats.
    has_seen: bool,
}

impl SharingNodes {
    /// By how many the limits are divided now, and whether that is to be remembered.
    fn count(&mut self, living: &LivingNodes) -> (usize, bool) {
        let seen = living.sharing();
        self.has_seen |= living.away.is_none() && !living.all().is_empty();
        if !self.has_seen {
            return (seen.max(self.last), false);
        }
        let is_new = self.last != seen;
        self.last = seen;
        (seen, is_new)
    }
}

fn remembered(folder: &Path) -> usize {
    let mut text = String::new();
    let read = fs::File::open(folder.join(FILE))
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    let count = read.ok().and_then(|_| text.trim().parse().ok());
    count.filter(|count| *count <= MAX_NODES).unwrap_or_default()
}

/// Remembers it, not durably: a crash of the machine may take it.
fn remember(folder: &Path, count: usize) -> io::Result<()> {
    private::folder(folder)?;
    let aside = folder.join(NEW_FILE);
    private::create(&aside)?.write_all(count.to_string().as_bytes())?;
    fs::rename(aside, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::BootId;
    use crate::fleet::living_nodes::NodeWatch;

    #[test]
    fn a_node_that_has_not_seen_the_others_yet_takes_the_share_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let own = NodeWatch::new(NodeName::parse("a").unwrap(), BootId([1; 16]));
        let away = own.snapshot(Some("the store is away".to_owned()));
        let mut first = SharingNodes { last: remembered(folder.path()), has_seen: false };
        assert_eq!(first.count(&LivingNodes::default()), (1, false));
        remember(folder.path(), 3).unwrap();
        let mut again = SharingNodes { last: remembered(folder.path()), has_seen: false };
        for living in [&LivingNodes::default(), &away] {
            assert_eq!(again.count(living), (3, false));
        }
        // It is read: this node is alone.
        assert_eq!(again.count(&own.snapshot(None)), (1, true));
        assert_eq!(again.count(&away), (1, false));
        for odd in ["", "x", "-1", "99999999", "99999999999999999999"] {
            fs::write(folder.path().join(FILE), odd).unwrap();
            assert_eq!(remembered(folder.path()), 0, "{odd}");
        }
    }
}
