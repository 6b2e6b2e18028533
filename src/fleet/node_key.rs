//! The key by which a node signs its checkpoints: made at random at its first start, kept in its data folder for its owner
//! alone. Whoever has it can sign as this node.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

use super::checkpoint::{self, Checkpoint};
use super::signed_note::{SIGNATURE_BYTES, VerifierKey};
use crate::os::private;

/// The file's name, and under which name it is made.
const NAME: &str = "node_key";
const NAME_NEW: &str = "node_key.new";
/// Most bytes of the file.
const MAX_BYTES: u64 = 1024;

/// A node's key. Clones share it.
#[derive(Clone)]
pub struct NodeKey(Arc<Ed25519KeyPair>);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(…)")
    }
}

impl NodeKey {
    /// The key in `dir`; makes one, durably, where there is none.
    ///
    /// # Errors
    ///
    /// The file system's; a file that holds no key is invalid data.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        match fs::metadata(&path) {
            Ok(file) if file.len() > MAX_BYTES => Err(no_key()),
            Ok(_) => Self::of(&fs::read(&path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(dir),
            Err(error) => Err(error),
        }
    }

    fn of(pkcs8: &[u8]) -> io::Result<Self> {
        Ed25519KeyPair::from_pkcs8(pkcs8).map(|pair| Self(Arc::new(pair))).map_err(|_| no_key())
    }

    fn create(dir: &Path) -> io::Result<Self> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| io::Error::other("the system gives no randomness"))?;
        let new = dir.join(NAME_NEW);
        let mut file = private::create(&new)?;
        file.write_all(made.as_ref())?;
        file.sync_all()?;
        fs::rename(new, dir.join(NAME))?;
        fs::File::open(dir)?.sync_all()?;
        Self::of(made.as_ref())
    }

    /// What the checkpoints of this node are verified by, under the name of its chain.
    #[must_use]
    pub fn verifier(&self, fleet: &str, node: &str) -> Option<VerifierKey> {
        let public = self.0.public_key().as_ref().try_into().ok()?;
        VerifierKey::new(&checkpoint::origin(fleet, node), public).ok()
    }

    /// The signed note of a checkpoint of this node. The same checkpoint gives the same note.
    #[must_use]
    pub fn sign(&self, checkpoint: &Checkpoint, verifier: &VerifierKey) -> String {
        verifier.note(&checkpoint.text(), |text| self.signature(text))
    }

    /// The signature of a text, whose beginning says what it is: nothing else that is signed begins like it.
    #[must_use]
    pub fn signature(&self, text: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        let made = self.0.sign(text);
        signature.iter_mut().zip(made.as_ref()).for_each(|(to, from)| *to = *from);
        signature
    }

    /// A key for tests, the same for the same seed.
    #[cfg(test)]
    #[must_use]
    pub fn of_seed(seed: u8) -> Self {
        Self(Arc::new(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()))
    }
}

fn no_key() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it holds no key of a node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::checkpoint::tests::example;

    #[test]
    fn a_key_is_made_once_is_private_and_signs_what_is_verified() {
        let dir = tempfile::tempdir().unwrap();
        let key = NodeKey::open(dir.path()).unwrap();
        assert_eq!(private::wider(&dir.path().join(NAME)), None);
        let verifier = key.verifier("f1", "a").unwrap();
        let note = key.sign(&example(), &verifier);
        assert_eq!(Checkpoint::open(&note, &verifier), Ok(example()));
        let again = NodeKey::open(dir.path()).unwrap();
        assert_eq!(again.sign(&example(), &verifier), note);
        // The signature is by a key of that name, for no other chain.
        let other = again.verifier("f1", "b").unwrap();
        let note = again.sign(&example(), &other);
        assert!(
            Checkpoint::open(&note, &other).is_err() && Checkpoint::open(&note, &verifier).is_err()
        );
        for bytes in [&b""[..], b"key", &[7; 2000]] {
            fs::write(dir.path().join(NAME), bytes).unwrap();
            assert_eq!(NodeKey::open(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
