//! Periodic scan of the chains that this node does not follow: publishes gaps found from segment names alone.
//!
//! The scan is bounded in days, names per chain and chains per round. Known chains are listed incrementally (a store
//! returns a thousand names per request and a chain grows by 17 000 names a day); each round rescans one chain in
//! full, the one scanned least recently, so that removals after the last name are found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mcpproxy_runtime::io::clock::wall_ms;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

use crate::bucket::{Bucket, BucketError};
use crate::chain::place::{NODES, segments_folder};
use crate::config::NodeName;
use crate::fleet_node::FleetNode;
use crate::node_state::NodeTag;
use crate::segment::{SegmentName, day_folder, day_of};

use crate::chain::NamedChain;

/// Interval between rounds.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// Delay after a failed round.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// Number of days to look back.
const DAYS: i32 = 2;
/// Maximum number of names per chain; the newest are kept.
const MAX_NAMES: usize = 20_000;
/// Maximum number of chains per round.
const MAX_CHAINS: usize = 16;
/// Number of chains listed concurrently.
const TOGETHER: usize = 2;

/// Scan state of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LookedChain {
    /// Key after which the next listing starts.
    after: String,
    /// Round of the last full scan.
    whole_in: u64,
}

/// Scan state across rounds.
#[derive(Debug)]
struct Looks {
    /// Index of the first chain of the next round.
    turn: usize,
    round: u64,
    looked: BTreeMap<String, LookedChain>,
}

/// Result of scanning one chain, with its next state.
#[derive(Debug, PartialEq, Eq)]
struct ChainFound {
    chain: NamedChain,
    after: String,
    is_whole: bool,
}

/// Scans chains until the task is aborted, except those of nodes for which `is_followed` is true.
pub async fn watch(node: Arc<FleetNode>, bucket: Bucket, is_followed: impl Fn(&str) -> bool) {
    // Each node starts at a different chain, so that together they cover all chains sooner.
    let turn = NodeTag::of(&node.name).number() as usize;
    let mut looks = Looks { turn, round: 0, looked: BTreeMap::new() };
    loop {
        // Nothing to scan before the node has joined.
        let looked = match node.fleet() {
            Some(_) => look(&node, &bucket, &is_followed, &mut looks).await,
            None => Ok(false),
        };
        // An error that lasts until the store is cleaned up.
        let lasts = |error: &&BucketError| {
            matches!(error, BucketError::TooManyFolders(_) | BucketError::OddKey(_))
        };
        let unseen = looked.as_ref().err().filter(lasts);
        node.sees_no_chains(unseen.map(ToString::to_string));
        let pause = match looked {
            Ok(true) => LOOK_EVERY,
            Ok(false) => LOOK_AGAIN,
            Err(error) => {
                tracing::debug!(%error, "cannot list segment names");
                LOOK_AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Scans one round; returns false if there was nothing to scan.
async fn look(
    node: &FleetNode,
    bucket: &Bucket,
    is_followed: impl Fn(&str) -> bool,
    looks: &mut Looks,
) -> Result<bool, BucketError> {
    let all = bucket.folders(NODES).await?;
    let is_ours = |name: &&String| NodeName::parse(name).is_some() && !is_followed(name);
    let there: BTreeSet<_> = all.iter().filter(is_ours).cloned().collect();
    let mut names: Vec<_> = there.iter().cloned().collect();
    if names.is_empty() {
        return Ok(false);
    }
    let start = looks.turn % names.len();
    names.rotate_left(start);
    names.truncate(MAX_CHAINS);
    looks.turn = start + names.len();
    looks.round += 1;
    looks.looked.retain(|name, _| there.contains(name));
    let mut chains: BTreeMap<String, NamedChain> = (*node.chains()).clone();
    chains.retain(|name, _| there.contains(name));
    let whole_in = |name: &String| looks.looked.get(name).map_or(0, |it| it.whole_in);
    let whole = names.iter().min_by_key(|name| whole_in(name)).cloned();
    let known = |name: &String| {
        let looked = looks.looked.get(name).filter(|_| whole.as_ref() != Some(name))?;
        Some((chains.get(name)?.clone(), looked.after.clone()))
    };
    let today = day_of(wall_ms());
    let looked: Vec<_> = names.into_iter().map(|name| (known(&name), name)).collect();
    let looked = looked.into_iter().map(|(known, name)| async move {
        let found = look_at(bucket, &name, known, today).await?;
        Ok::<_, BucketError>((name, found))
    });
    let mut looked = stream::iter(looked).buffer_unordered(TOGETHER);
    let mut failed = None;
    while let Some(found) = looked.next().await {
        match found {
            Ok((name, ChainFound { chain, after, is_whole })) => {
                let before = chains.get(&name).map(|it| it.faults(&name)).unwrap_or_default();
                for fault in chain.faults(&name).iter().filter(|it| !before.contains(it)) {
                    peer_line!(error, LinePeer::Node(&name), "{fault}");
                }
                let before = looks.looked.get(&name).map_or(0, |it| it.whole_in);
                let whole_in = if is_whole { looks.round } else { before };
                looks.looked.insert(name.clone(), LookedChain { after, whole_in });
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

/// Lists the newest names after a key, and whether there are more.
async fn names(
    bucket: &Bucket,
    folder: &str,
    after: &str,
) -> Result<(Vec<SegmentName>, bool), BucketError> {
    let part = bucket.list_newest(folder, after, MAX_NAMES).await?;
    let read = |key: &str| SegmentName::parse(key.strip_prefix(folder)?.strip_prefix('/')?);
    let named = part.objects.iter().filter_map(|object| read(&object.key)).collect();
    Ok((named, part.more > 0))
}

/// Scans one chain, incrementally if possible.
async fn look_at(
    bucket: &Bucket,
    node: &str,
    known: Option<(NamedChain, String)>,
    today: i32,
) -> Result<ChainFound, BucketError> {
    let folder = segments_folder(node);
    // A key with a day in the future must not become the listing's start: everything before it would be
    // skipped.
    let last = |named: &[SegmentName]| {
        let last = named.iter().filter(|name| name.day <= today.saturating_add(1)).max();
        last.map(|name| format!("{folder}/{name}"))
    };
    if let Some((chain, after)) = known {
        let (named, more) = names(bucket, &folder, &after).await?;
        let next = last(&named).unwrap_or(after);
        if let Some(chain) = chain.followed_by(named).filter(|_| !more) {
            return Ok(ChainFound { chain, after: next, is_whole: false });
        }
    }
    let after = format!("{folder}/{}", day_folder(today.saturating_sub(DAYS)));
    let (named, more) = names(bucket, &folder, &after).await?;
    let next = last(&named).unwrap_or(after);
    Ok(ChainFound { chain: NamedChain::of(named, more), after: next, is_whole: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::ChainGap;

    const TODAY: i32 = 20_000;

    #[tokio::test]
    async fn known_chain_is_scanned_incrementally_and_fully_after_a_break() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        let key = |day: i32, first: u64, last: u64| {
            format!(
                "nodes/a/segments/{}/{first:020}-{last:020}-{}.parquet",
                day_folder(day),
                "a".repeat(16)
            )
        };
        let put = |key: String| {
            let path = dir.path().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let look = async |known: Option<&ChainFound>| {
            let known = known.map(|found| (found.chain.clone(), found.after.clone()));
            look_at(&bucket, "a", known, TODAY).await.unwrap()
        };
        let none = look(None).await;
        assert!(none.is_whole && none.chain == NamedChain::default());
        for at in 0..3 {
            put(key(TODAY - 1, at * 10 + 1, at * 10 + 10));
        }
        let first = look(Some(&none)).await;
        assert_eq!((first.is_whole, first.chain.last, first.chain.segments), (true, 30, 3));
        assert_eq!(first.after, key(TODAY - 1, 21, 30));
        put(key(TODAY, 31, 40));
        let next = look(Some(&first)).await;
        assert_eq!((next.is_whole, next.chain.last, next.chain.segments), (false, 40, 4));
        assert_eq!(
            (&next.after, look(Some(&next)).await),
            (
                &key(TODAY, 31, 40),
                ChainFound {
                    chain: next.chain.clone(),
                    after: next.after.clone(),
                    is_whole: false,
                }
            )
        );
        // A removal after the last name is found by the next full scan.
        std::fs::remove_file(dir.path().join(key(TODAY - 1, 11, 20))).unwrap();
        assert!(look(Some(&next)).await.chain.gaps.is_empty());
        let whole = look(None).await;
        assert_eq!(whole.chain.gaps, [ChainGap { first: 11, last: 20 }]);
        // A break triggers a full scan, and known gaps remain.
        put(key(TODAY, 51, 60));
        let gap = look(Some(&next)).await;
        assert_eq!((gap.is_whole, gap.chain.gaps.len(), gap.chain.last), (true, 2, 60));
        put(key(TODAY, 61, 70));
        let on = look(Some(&gap)).await;
        assert_eq!((on.is_whole, on.chain.gaps.len(), on.chain.last), (false, 2, 70));
        // A key with a future day does not hide other keys.
        put(key(TODAY + 400, 900, 901));
        let odd = look(Some(&on)).await;
        assert_eq!((odd.is_whole, &odd.after), (true, &key(TODAY, 61, 70)));
        put(key(TODAY, 71, 80));
        assert_eq!(look(Some(&odd)).await.after, key(TODAY, 71, 80));
    }
}
