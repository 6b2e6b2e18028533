//! Whether the store is still the one in which a node has its place: the fleet's, and with the node's claim as it was made.
//!
//! A store can be emptied while nodes run, and where a folder was mounted there may be an empty one. It takes whatever is put,
//! says that it has it, and nothing of it is there once the mount is back. So nothing counts as stored, and nobody as gone,
//! where this was not seen ([`putting`](super::putting), `heartbeats`, the exchange of facts). What it costs: two small objects
//! are read each time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::bucket::{Bucket, BucketError};
use super::config::NodeName;
use super::joining::{ClaimFault, FLEET, FleetObject, NodeClaim};
use super::living_nodes::DEAD_AFTER_MS;
use super::sealed_mark::FleetId;

/// How often it is looked where nothing is put, unless a node is missed: then at once.
const LOOK_EVERY: Duration = Duration::from_secs(4);
// Before anybody is found dead in another store.
const _: () = assert!(LOOK_EVERY.as_millis() < DEAD_AFTER_MS as u128);
/// Most bytes of `fleet.json`.
const MAX_BYTES: u64 = 16 << 10;

/// What is not as it was in a store.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PlaceLost {
    /// It is of no fleet.
    #[error("fleet.json is not there")]
    NoFleet,
    /// It is of another fleet.
    #[error("fleet.json is another fleet's")]
    OtherFleet,
    /// It does not know the node.
    #[error("this node's claim is not there")]
    NoClaim,
    /// The node's name is another's.
    #[error("this node's claim is another one")]
    OtherClaim,
}

impl From<PlaceLost> for BucketError {
    fn from(lost: PlaceLost) -> Self {
        Self::Failed(format!(
            "it is not the one in which this node has its place, {lost}: mount it, or put back what was there"
        ))
    }
}

/// A node's place, as it was taken.
#[derive(Clone, Debug)]
pub struct OwnPlace {
    fleet: FleetId,
    node: NodeName,
    verifier: String,
}

impl OwnPlace {
    /// Of a node that has that key.
    #[must_use]
    pub fn of(fleet: FleetId, node: &NodeName, verifier: &str) -> Self {
        Self { fleet, node: node.clone(), verifier: verifier.to_owned() }
    }

    /// Looks whether it is there.
    ///
    /// # Errors
    ///
    /// [`BucketError`]: it cannot be looked now.
    pub async fn look(&self, bucket: &Bucket) -> Result<Result<(), PlaceLost>, BucketError> {
        let (fleet, claim) = tokio::join!(
            bucket.get_up_to(FLEET, MAX_BYTES),
            NodeClaim::fetch(bucket, self.node.as_str())
        );
        let fleet = match fleet {
            Ok(bytes) => FleetObject::fleet(&bytes),
            Err(BucketError::Missing(_)) => return Ok(Err(PlaceLost::NoFleet)),
            Err(BucketError::TooLong(_)) => None,
            Err(error) => return Err(error),
        };
        if fleet != Some(self.fleet) {
            return Ok(Err(PlaceLost::OtherFleet));
        }
        Ok(match claim? {
            Ok(claim) if claim.key == self.verifier => Ok(()),
            Err(ClaimFault::Missing) => Err(PlaceLost::NoClaim),
            Ok(_) | Err(ClaimFault::TooLong | ClaimFault::Unreadable(_)) => {
                Err(PlaceLost::OtherClaim)
            }
        })
    }

    /// The same, where nothing is to be done elsewhere.
    ///
    /// # Errors
    ///
    /// [`BucketError`]
    pub async fn check(&self, bucket: &Bucket) -> Result<(), BucketError> {
        self.look(bucket).await?.map_err(BucketError::from)
    }
}

/// Looks every now and then, and before a node is taken for gone that was there.
#[derive(Debug)]
pub(super) struct PlaceWatch {
    place: OwnPlace,
    /// When it was seen last, and which nodes were there.
    seen: Option<(Instant, BTreeSet<String>)>,
}

impl PlaceWatch {
    pub(super) fn new(place: OwnPlace) -> Self {
        Self { place, seen: None }
    }

    /// Whether `listed`, which was read just before, are the nodes of the fleet: an emptied store has none.
    pub(super) async fn check(
        &mut self,
        bucket: &Bucket,
        listed: &[String],
    ) -> Result<(), BucketError> {
        let listed: BTreeSet<_> = listed.iter().cloned().collect();
        match &mut self.seen {
            Some((at, before)) if at.elapsed() < LOOK_EVERY && before.is_subset(&listed) => {
                *before = listed;
            }
            Some(_) | None => {
                self.seen = None;
                self.place.check(bucket).await?;
                self.seen = Some((Instant::now(), listed));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tempfile::TempDir;

    use super::*;

    const KEY: &str = "mcpproxy.dev/fleet/1/a+00000000+AA==";

    struct Store {
        folder: TempDir,
        bucket: Bucket,
        place: OwnPlace,
    }

    impl Store {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let bucket = Bucket::open(&format!("file://{}", folder.path().display())).unwrap();
            let place = OwnPlace::of(FleetId([1; 16]), &NodeName::parse("a").unwrap(), KEY);
            let store = Self { folder, bucket, place };
            store.put(FLEET, &Self::fleet(1)).await;
            store.put("nodes/a/claim.json", &Self::claim(KEY)).await;
            store
        }

        fn fleet(byte: u8) -> String {
            format!(r#"{{"format":1,"fleet":"{}"}}"#, FleetId([byte; 16]))
        }

        fn claim(key: &str) -> String {
            format!(r#"{{"format":1,"node":"a","log":"","key":"{key}"}}"#)
        }

        async fn put(&self, key: &str, text: &str) {
            self.bucket.put(key, Bytes::copy_from_slice(text.as_bytes())).await.unwrap();
        }

        fn remove(&self, key: &str) {
            std::fs::remove_file(self.folder.path().join(key)).unwrap();
        }
    }

    #[tokio::test]
    async fn a_store_that_is_emptied_or_another_is_not_the_one_of_the_place() {
        let store = Store::new().await;
        let look = || store.place.look(&store.bucket);
        assert_eq!(look().await, Ok(Ok(())));
        store.put("nodes/a/claim.json", &Store::claim("another")).await;
        assert_eq!(look().await, Ok(Err(PlaceLost::OtherClaim)));
        store.put("nodes/a/claim.json", &"x".repeat(MAX_BYTES as usize + 1)).await;
        assert_eq!(look().await, Ok(Err(PlaceLost::OtherClaim)));
        store.remove("nodes/a/claim.json");
        assert_eq!(look().await, Ok(Err(PlaceLost::NoClaim)));
        for text in [Store::fleet(2), "{}".to_owned()] {
            store.put(FLEET, &text).await;
            assert_eq!(look().await, Ok(Err(PlaceLost::OtherFleet)));
        }
        store.remove(FLEET);
        assert_eq!(look().await, Ok(Err(PlaceLost::NoFleet)));
        let error = store.place.check(&store.bucket).await.unwrap_err().to_string();
        assert!(error.contains("fleet.json is not there: mount it"), "{error}");
    }

    #[tokio::test]
    async fn it_is_looked_at_once_where_a_node_is_missed_and_else_every_now_and_then() {
        let store = Store::new().await;
        let mut watch = PlaceWatch::new(store.place.clone());
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        watch.check(&store.bucket, &names(&["a", "b"])).await.unwrap();
        store.remove(FLEET);
        watch.check(&store.bucket, &names(&["a", "b", "c"])).await.unwrap();
        assert!(watch.check(&store.bucket, &names(&["a", "b"])).await.is_err(), "c is missed");
        assert!(watch.check(&store.bucket, &names(&["a", "b", "c"])).await.is_err(), "and still");
        store.put(FLEET, &Store::fleet(1)).await;
        watch.check(&store.bucket, &names(&["a", "b"])).await.unwrap();
        let (at, _) = watch.seen.as_mut().unwrap();
        *at = at.checked_sub(LOOK_EVERY).unwrap();
        store.remove(FLEET);
        assert!(watch.check(&store.bucket, &names(&["a", "b"])).await.is_err(), "it is time");
    }
}
