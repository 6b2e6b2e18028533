//! Objects in the store that are sealed as facts are: the configs of a fleet, each under a key of its own.

use bytes::Bytes;

use super::super::fact_object::MAX_FACT_OBJECT_BYTES;
use super::super::fact_reader::FactFault;
use super::super::sealed_object::{
    ObjectPlace, OpenedObject, SALT_BYTES, open_object, seal_object,
};
use super::{FleetFacts, beside_the_runtime, within};
use crate::fleet::bucket::{Bucket, BucketError};

impl FleetFacts {
    /// Seals `text` for its place, which no other object may have. Blocks.
    pub(super) fn seal(&self, key: &str, text: &[u8]) -> Result<Bytes, BucketError> {
        let mut salt = [0; SALT_BYTES];
        let failed = |why: String| BucketError::Failed(why);
        getrandom::fill(&mut salt).map_err(|error| failed(error.to_string()))?;
        let place = ObjectPlace { fleet: self.0.settings.fleet, key };
        let sealed = seal_object(&self.0.settings.keys, place, salt, text);
        sealed.map(Bytes::from).ok_or_else(|| failed("there is no key of the fleet".into()))
    }

    /// Looks whether the store is still the one in which this node has its place: what is not in another one is not gone.
    ///
    /// # Errors
    ///
    /// [`BucketError`]
    pub async fn check_place(&self, bucket: &Bucket) -> Result<(), BucketError> {
        within(self.0.settings.place().check(bucket)).await
    }

    /// Puts a sealed object of its own under `key`, and looks whether it is there then.
    ///
    /// # Errors
    ///
    /// [`BucketError`], also where the store is not the one of this node's place; then it may be there all the same.
    pub async fn put_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
        text: &[u8],
    ) -> Result<(), BucketError> {
        let (facts, place, text) = (self.clone(), key.to_owned(), text.to_vec());
        let sealed = beside_the_runtime(move || facts.seal(&place, &text)).await?;
        let length = sealed.len() as u64;
        within(bucket.put(key, sealed)).await?;
        self.check_place(bucket).await?;
        match within(bucket.size(key)).await? {
            Some(size) if size == length => Ok(()),
            Some(_) | None => Err(BucketError::Failed(format!("{key} was put and is not there"))),
        }
    }

    /// Reads a sealed object. The inner error: it is there, and is not what the fleet has sealed.
    ///
    /// # Errors
    ///
    /// [`BucketError`]
    pub async fn get_sealed(
        &self,
        bucket: &Bucket,
        key: &str,
    ) -> Result<Result<OpenedObject, FactFault>, BucketError> {
        match within(bucket.size(key)).await? {
            None => return Err(BucketError::Missing(key.to_owned())),
            Some(size) if size > MAX_FACT_OBJECT_BYTES => return Ok(Err(FactFault::TooLong(size))),
            Some(_) => {}
        }
        let object = within(bucket.get(key)).await?;
        let (facts, key) = (self.clone(), key.to_owned());
        beside_the_runtime(move || {
            let settings = &facts.0.settings;
            let place = ObjectPlace { fleet: settings.fleet, key: &key };
            Ok(open_object(&settings.keys, place, &object).map_err(FactFault::from))
        })
        .await
    }
}
