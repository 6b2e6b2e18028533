//! Checkpoints: what a node signs at the end of each segment of its chain, as the text of a signed note. Pure.
//!
//! ```text
//! mcpproxy/FLEET/NODE        whose chain it is; also the name of the key
//! 4711                       the last record's number
//! BASE64                     its hash
//! log 0123…                  the id of the node's log
//! first 4200                 the segment's first record
//! after BASE64               the hash it follows
//! tree BASE64                the root of the tree over the hashes of the segment's records (`hash_tree`)
//! data BASE64                SHA-256 of the segment's file up to the footer, in which this stands
//! previous BASE64            SHA-256 of the text of the checkpoint before it, or `none`
//! ```

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use thiserror::Error;

use super::hash_tree::TreeHash;
use super::signed_note::{self, NoteError, VerifierKey};
use crate::activity::record::{Hash, NodeId};

/// What every origin begins with.
const PRODUCT: &str = "mcpproxy";
/// In the place of the hash of a checkpoint that is not there.
const NONE: &str = "none";

/// SHA-256 of the text of a checkpoint.
pub type CheckpointHash = [u8; 32];

/// Why a checkpoint is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CheckpointError {
    /// The note around it.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text of the note is none of a checkpoint.
    #[error("its text is not that of a checkpoint")]
    Text,
}

/// What a node says of its chain at the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whose chain it is ([`origin`]).
    pub origin: Box<str>,
    /// The segment's last record.
    pub last: u64,
    /// That record's hash.
    pub head: Hash,
    /// The log that its records are of.
    pub log: NodeId,
    /// The segment's first record.
    pub first: u64,
    /// The hash that it follows.
    pub after: Hash,
    /// The root of the tree over the segment's records.
    pub tree: TreeHash,
    /// SHA-256 of the segment's file up to its footer.
    pub data: [u8; 32],
    /// The hash of the checkpoint before it; `None` in the first of a chain.
    pub previous: Option<CheckpointHash>,
}

/// The origin of a node's checkpoints, and the name of its key.
#[must_use]
pub fn origin(fleet: &str, node: &str) -> String {
    format!("{PRODUCT}/{fleet}/{node}")
}

impl Checkpoint {
    /// The text that is signed.
    #[must_use]
    pub fn text(&self) -> String {
        let base64 = |hash: &[u8; 32]| STANDARD.encode(hash);
        let previous = self.previous.as_ref().map_or(NONE.to_owned(), base64);
        let mut text = String::new();
        let _ = writeln!(text, "{}\n{}\n{}", self.origin, self.last, base64(&self.head.0));
        let _ = writeln!(text, "log {}\nfirst {}", self.log, self.first);
        let _ = writeln!(text, "after {}\ntree {}", base64(&self.after.0), base64(&self.tree));
        let _ = writeln!(text, "data {}\nprevious {previous}", base64(&self.data));
        text
    }

    /// Reads what [`Self::text`] writes, and nothing else.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Text`].
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        Self::read(text).filter(|read| read.text() == text).ok_or(CheckpointError::Text)
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (origin, last, head) = (lines.next()?, lines.next()?, lines.next()?);
        let mut named = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let (log, first, after) = (named("log")?, named("first")?, named("after")?);
        let (tree, data, previous) = (named("tree")?, named("data")?, named("previous")?);
        let hash = |text: &str| <[u8; 32]>::try_from(STANDARD.decode(text).ok()?).ok();
        let log = (log.len() == 32).then(|| u128::from_str_radix(log, 16).ok())??;
        let read = Self {
            origin: origin.into(),
            last: last.parse().ok()?,
            head: Hash(hash(head)?),
            log: NodeId(log.to_be_bytes()),
            first: first.parse().ok()?,
            after: Hash(hash(after)?),
            tree: hash(tree)?,
            data: hash(data)?,
            previous: match previous {
                NONE => None,
                previous => Some(hash(previous)?),
            },
        };
        (read.first <= read.last && read.first > 0).then_some(read)
    }

    /// The checkpoint of a note that `key` has signed, for the chain that the key's name says.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    pub fn open(note: &str, key: &VerifierKey) -> Result<Self, CheckpointError> {
        let read = Self::parse(key.open(note)?)?;
        if *read.origin == *key.name() { Ok(read) } else { Err(CheckpointError::Text) }
    }

    /// The checkpoint of a note, whoever has signed it.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    pub fn unverified(note: &str) -> Result<Self, CheckpointError> {
        Self::parse(signed_note::unverified_text(note)?)
    }

    /// What the next checkpoint names this one by.
    #[must_use]
    pub fn hash(&self) -> CheckpointHash {
        sha256(self.text().as_bytes())
    }
}

/// SHA-256 of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    let digest = digest(&SHA256, bytes);
    hash.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::fleet) fn example() -> Checkpoint {
        Checkpoint {
            origin: origin("f1", "a").into(),
            last: 4711,
            head: Hash([1; 32]),
            log: NodeId([2; 16]),
            first: 4200,
            after: Hash([3; 32]),
            tree: [4; 32],
            data: [6; 32],
            previous: Some([5; 32]),
        }
    }

    #[test]
    fn a_checkpoint_has_the_text_of_the_page() {
        let text = "mcpproxy/f1/a\n4711\nAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
            log 02020202020202020202020202020202\nfirst 4200\n\
            after AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=\n\
            tree BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ=\n\
            data BgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgY=\n\
            previous BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU=\n";
        assert_eq!(example().text(), text);
        assert_eq!(Checkpoint::parse(text), Ok(example()));
        let first = Checkpoint { previous: None, ..example() };
        assert!(first.text().ends_with("\nprevious none\n"));
        assert_eq!(Checkpoint::parse(&first.text()), Ok(first.clone()));
        assert_ne!(first.hash(), example().hash());
    }

    proptest! {
        #[test]
        fn another_byte_is_another_checkpoint_or_none(at in 0..400_usize, to: u8) {
            let mut bytes = example().text().into_bytes();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
            if let Ok(read) = Checkpoint::parse(&text) {
                prop_assert_ne!(read, example());
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Checkpoint::parse(&text);
            let _ = Checkpoint::unverified(&text);
        }
    }
}
