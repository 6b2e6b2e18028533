//! Looks again and again at the names of the segments in the store, so that what is missing is told by nodes that follow no
//! chain, too. Bounded: the last days, so many names of a chain, and so many chains in a round; the others have their turn in
//! the next ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::bucket::{Bucket, BucketError};
use super::chain_names::NamedChain;
use super::config::NodeName;
use super::fleet_node::FleetNode;
use super::joining::{NODES, segments_folder};
use super::segment::{SegmentName, day_folder, day_of};
use crate::io::clock::wall_ms;

/// From one round to the next.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// The same behind one that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// Days that are looked back.
const DAYS: i32 = 2;
/// Most names of one chain: the newest.
const MAX_NAMES: usize = 20_000;
/// Most chains in a round.
const MAX_CHAINS: usize = 16;
/// Chains whose names are listed at the same time.
const TOGETHER: usize = 2;

/// Looks until it is aborted. `is_followed` says of which nodes this one reads the segments themselves.
pub async fn watch(node: Arc<FleetNode>, bucket: Bucket, is_followed: impl Fn(&str) -> bool) {
    let mut turn = 0;
    loop {
        // Before it has its place there is nothing to be looked at.
        let looked = match node.fleet() {
            Some(_) => look(&node, &bucket, &is_followed, &mut turn).await,
            None => Ok(false),
        };
        let unseen =
            looked.as_ref().err().filter(|error| matches!(error, BucketError::TooManyFolders(_)));
        node.sees_no_chains(unseen.map(ToString::to_string));
        let pause = match looked {
            Ok(true) => LOOK_EVERY,
            Ok(false) => LOOK_AGAIN,
            Err(error) => {
                tracing::debug!(%error, "the segments' names cannot be listed");
                LOOK_AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// One round; false if there was nothing to look at.
async fn look(
    node: &FleetNode,
    bucket: &Bucket,
    is_followed: impl Fn(&str) -> bool,
    turn: &mut usize,
) -> Result<bool, BucketError> {
    let all = bucket.folders(NODES).await?;
    let is_ours = |name: &&String| NodeName::parse(name).is_some() && !is_followed(name);
    let there: BTreeSet<_> = all.iter().filter(is_ours).cloned().collect();
    let mut names: Vec<_> = there.iter().cloned().collect();
    if names.is_empty() {
        return Ok(false);
    }
    let start = *turn % names.len();
    names.rotate_left(start);
    names.truncate(MAX_CHAINS);
    *turn = start + names.len();
    let day = day_of(wall_ms()).saturating_sub(DAYS);
    let looked = names.into_iter().map(|name| async move {
        let folder = segments_folder(&name);
        let after = format!("{folder}/{}", day_folder(day));
        let part = bucket.list_newest(&folder, &after, MAX_NAMES).await?;
        let read = |key: &str| SegmentName::parse(key.strip_prefix(&folder)?.strip_prefix('/')?);
        let named = part.objects.iter().filter_map(|object| read(&object.key)).collect();
        Ok::<_, BucketError>((name, NamedChain::of(named, part.more > 0)))
    });
    let mut looked = stream::iter(looked).buffer_unordered(TOGETHER);
    let mut chains: BTreeMap<String, NamedChain> = (*node.chains()).clone();
    chains.retain(|name, _| there.contains(name));
    let mut failed = None;
    while let Some(found) = looked.next().await {
        match found {
            Ok((name, chain)) => {
                for fault in chain.faults(&name) {
                    if chains.get(&name) != Some(&chain) {
                        tracing::error!("{fault}");
                    }
                }
                chains.insert(name, chain);
            }
            Err(error) => failed = Some(error),
        }
    }
    node.saw_chains(chains);
    match failed {
        Some(error) => Err(error),
        None => Ok(true),
    }
}
