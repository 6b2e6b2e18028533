//! Signed checkpoints, C2SP signed notes and the Merkle tree over a segment's records. Pure.
//!
//! A node signs a [`Checkpoint`] at the end of each segment of its chain:
//!
//! ```text
//! mcpproxy/FLEET/NODE        the chain; also the name of the key
//! 4711                       the last record's number
//! BASE64                     its hash
//! log 0123…                  the id of the node's log
//! first 4200                 the segment's first record
//! after BASE64               the hash it follows
//! tree BASE64                Merkle root over the hashes of the segment's records
//! data BASE64                SHA-256 of the segment's file up to the footer that contains this
//! previous BASE64            SHA-256 of the text of the previous checkpoint, or `none`
//! ```
//!
//! The checkpoint is stored as a signed note (`c2sp.org/signed-note`) with Ed25519:
//!
//! ```text
//! text, each line with its line break
//!
//! — NAME BASE64(key id · signature)
//! ```
//!
//! Signatures by unknown keys are allowed and ignored; the reader decides which key a note must have.
//!
//! The Merkle tree is that of RFC 6962: SHA-256 with prefix 0 for leaves and 1 for nodes, and each leaf is the hash
//! of one record in the chain. A proof of one record takes a few hashes instead of all other records.

use std::fmt;
use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mcpproxy_activity::record::{Hash, NodeId};
use ring::digest::{Context, SHA256, digest};
use ring::signature::{ED25519, UnparsedPublicKey};
use thiserror::Error;

/// Prefix of every origin.
const PRODUCT: &str = "mcpproxy";
/// Placeholder for the hash of a missing predecessor.
const NONE: &str = "none";

/// SHA-256 of a checkpoint's text.
pub(crate) type CheckpointHash = [u8; 32];

/// Reason for rejecting a checkpoint.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CheckpointError {
    #[error(transparent)]
    Note(#[from] NoteError),
    #[error("invalid checkpoint text")]
    Text,
}

/// Signed statement of a node about its chain at the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name of the chain ([`origin`]).
    pub origin: Box<str>,
    /// Last record of the segment.
    pub last: u64,
    pub head: Hash,
    pub log: NodeId,
    /// First record of the segment.
    pub first: u64,
    /// Hash that the first record follows.
    pub after: Hash,
    /// Merkle root over the segment's records.
    pub tree: TreeHash,
    /// SHA-256 of the segment's file up to its footer.
    pub data: [u8; 32],
    /// Hash of the previous checkpoint; `None` for the first of a chain.
    pub previous: Option<CheckpointHash>,
}

/// Origin of a node's checkpoints, and the name of its key.
pub fn origin(fleet: &str, node: &str) -> String {
    format!("{PRODUCT}/{fleet}/{node}")
}

impl Checkpoint {
    /// The text that is signed.
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

    /// Parses the output of [`Self::text`], and nothing else.
    pub(crate) fn parse(text: &str) -> Result<Self, CheckpointError> {
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

    /// Verifies a note signed by `key`, for the chain that the key is named after.
    pub(crate) fn open(note: &str, key: &VerifierKey) -> Result<Self, CheckpointError> {
        let read = Self::parse(key.open(note)?)?;
        if *read.origin == *key.name() { Ok(read) } else { Err(CheckpointError::Text) }
    }

    /// Parses the checkpoint of a note without verifying it.
    pub fn unverified(note: &str) -> Result<Self, CheckpointError> {
        Self::parse(unverified_text(note)?)
    }

    /// Hash by which the next checkpoint links to this one.
    pub fn hash(&self) -> CheckpointHash {
        sha256(self.text().as_bytes())
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    let digest = digest(&SHA256, bytes);
    hash.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

/// Signature type of Ed25519 in signed notes.
const ED25519_KIND: u8 = 1;
const KEY_BYTES: usize = 32;
/// Length of a signature in bytes.
pub(crate) const SIGNATURE_BYTES: usize = 64;
/// Maximum length of a note in bytes.
pub(crate) const MAX_NOTE_BYTES: usize = 64 << 10;
/// Maximum number of signatures per note.
const MAX_SIGNATURES: usize = 16;
/// Prefix of a signature line.
const DASH: &str = "— ";

/// Reason for rejecting a note or a key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoteError {
    #[error("not a signed note")]
    Form,
    #[error("not signed by its node's key")]
    Unsigned,
    #[error("signature does not match the text")]
    Signature,
    #[error("not a verifier key: expected NAME+ID+KEY, as in a node's claim")]
    Key,
}

/// True if a name is valid for a key.
pub(crate) fn is_key_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c == '+' || c.is_control())
}

/// Named public key that verifies notes.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: Box<str>,
    public: [u8; KEY_BYTES],
}

impl VerifierKey {
    pub(crate) fn new(name: &str, public: [u8; KEY_BYTES]) -> Result<Self, NoteError> {
        if is_key_name(name) { Ok(Self { name: name.into(), public }) } else { Err(NoteError::Key) }
    }

    /// Parses the text form of a key.
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::Key);
        };
        let bytes = STANDARD.decode(key).map_err(|_| NoteError::Key)?;
        let Some((&ED25519_KIND, public)) = bytes.split_first() else { return Err(NoteError::Key) };
        let key = Self::new(name, public.try_into().map_err(|_| NoteError::Key)?)?;
        if hex(&key.id()) == id { Ok(key) } else { Err(NoteError::Key) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Four-byte id by which a signature names the key.
    fn id(&self) -> [u8; 4] {
        let mut context = Context::new(&SHA256);
        context.update(self.name.as_bytes());
        context.update(&[b'\n', ED25519_KIND]);
        context.update(&self.public);
        match context.finish().as_ref() {
            [a, b, c, d, ..] => [*a, *b, *c, *d],
            _ => [0; 4],
        }
    }

    /// Verifies a note signed by this key and returns its text.
    pub(crate) fn open<'n>(&self, note: &'n str) -> Result<&'n str, NoteError> {
        let (text, signatures) = split(note)?;
        let id = self.id();
        let mut by_us = signatures.into_iter().filter(|it| it.name == &*self.name && it.id == id);
        let signature = by_us.next().ok_or(NoteError::Unsigned)?;
        UnparsedPublicKey::new(&ED25519, &self.public)
            .verify(text.as_bytes(), &signature.signature)
            .map_err(|_| NoteError::Signature)?;
        Ok(text)
    }

    /// True if this key signed the text, which need not be a note.
    pub(crate) fn signed(&self, text: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public).verify(text, signature).is_ok()
    }

    /// Formats a note of this text, which must end in a line end, with a signature by this key.
    pub(crate) fn note(
        &self,
        text: &str,
        sign: impl FnOnce(&[u8]) -> [u8; SIGNATURE_BYTES],
    ) -> String {
        let signed = [&self.id()[..], &sign(text.as_bytes())].concat();
        format!("{text}\n{DASH}{} {}\n", self.name, STANDARD.encode(signed))
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = [&[ED25519_KIND][..], &self.public].concat();
        write!(f, "{}+{}+{}", self.name, hex(&self.id()), STANDARD.encode(key))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct NoteSignature<'n> {
    name: &'n str,
    id: [u8; 4],
    signature: [u8; SIGNATURE_BYTES],
}

/// Splits a note into its text, with the last line end, and its signatures.
fn split(note: &str) -> Result<(&str, Vec<NoteSignature<'_>>), NoteError> {
    let is_plain = note.chars().all(|c| c == '\n' || !c.is_control());
    if note.len() > MAX_NOTE_BYTES || !is_plain {
        return Err(NoteError::Form);
    }
    let (text, signatures) = note.rsplit_once("\n\n").ok_or(NoteError::Form)?;
    let signatures = signatures.strip_suffix('\n').ok_or(NoteError::Form)?;
    let text = note.get(..text.len() + 1).ok_or(NoteError::Form)?;
    let mut found = Vec::new();
    for line in signatures.split('\n') {
        let (name, bytes) =
            line.strip_prefix(DASH).and_then(|line| line.split_once(' ')).ok_or(NoteError::Form)?;
        let bytes = STANDARD.decode(bytes).map_err(|_| NoteError::Form)?;
        let (id, signature) = bytes.split_first_chunk().ok_or(NoteError::Form)?;
        if !is_key_name(name) || found.len() == MAX_SIGNATURES {
            return Err(NoteError::Form);
        }
        // A signature of another length belongs to another kind of key.
        if let Ok(signature) = signature.try_into() {
            found.push(NoteSignature { name, id: *id, signature });
        }
    }
    Ok((text, found))
}

/// Text of a note, unverified.
pub fn unverified_text(note: &str) -> Result<&str, NoteError> {
    split(note).map(|(text, _)| text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hash of a node in the Merkle tree.
pub(crate) type TreeHash = [u8; 32];

const LEAF: u8 = 0;
const NODE: u8 = 1;
/// Maximum path length: that of a tree of 2³² leaves.
pub(crate) const MAX_PATH: usize = 32;

fn domain_hash(prefix: u8, parts: &[TreeHash]) -> TreeHash {
    let mut context = Context::new(&SHA256);
    context.update(&[prefix]);
    context.update(parts.as_flattened());
    let mut out = [0; 32];
    out.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    out
}

pub(crate) fn leaf_hash(record: &[u8; 32]) -> TreeHash {
    domain_hash(LEAF, std::slice::from_ref(record))
}

/// Next level, half as long; a node without sibling moves up unchanged, as in RFC 6962.
fn level_above(level: &[TreeHash]) -> Vec<TreeHash> {
    let join = |pair: &[TreeHash]| match pair {
        [one] => *one,
        pair => domain_hash(NODE, pair),
    };
    level.chunks(2).map(join).collect()
}

/// Merkle root over these leaves; without leaves, the hash of the empty string.
pub(crate) fn merkle_root(leaves: &[TreeHash]) -> TreeHash {
    let mut level = leaves.to_vec();
    while level.len() > 1 {
        level = level_above(&level);
    }
    level.first().copied().unwrap_or_else(|| {
        let mut out = [0; 32];
        let empty = ring::digest::digest(&SHA256, b"");
        out.iter_mut().zip(empty.as_ref()).for_each(|(to, from)| *to = *from);
        out
    })
}

/// Siblings on the path from leaf `at` to the root, lowest first.
pub(crate) fn merkle_path(leaves: &[TreeHash], at: usize) -> Vec<TreeHash> {
    let (mut level, mut at, mut path) = (leaves.to_vec(), at, Vec::new());
    while level.len() > 1 {
        path.extend(level.get(at ^ 1).copied());
        level = level_above(&level);
        at /= 2;
    }
    path
}

/// Root computed from leaf `at` of `count` and its path; `None` if the path has the wrong length.
pub(crate) fn root_from_path(
    leaf: TreeHash,
    at: u64,
    count: u64,
    path: &[TreeHash],
) -> Option<TreeHash> {
    if at >= count {
        return None;
    }
    let (mut found, mut at, mut width, mut rest) = (leaf, at, count, path.iter());
    while width > 1 {
        if at ^ 1 < width {
            let neighbor = rest.next()?;
            let pair = if at & 1 == 0 { [found, *neighbor] } else { [*neighbor, found] };
            found = domain_hash(NODE, &pair);
        }
        at /= 2;
        width = width.div_ceil(2);
    }
    rest.next().is_none().then_some(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    pub(crate) fn example() -> Checkpoint {
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
    fn checkpoint_text_matches_the_documented_format() {
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
        fn any_changed_byte_changes_or_invalidates_the_checkpoint(at in 0..400_usize, to: u8) {
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
        fn arbitrary_text_never_panics(text: String) {
            let _ = Checkpoint::parse(&text);
            let _ = Checkpoint::unverified(&text);
        }
    }

    fn pair(seed: u8) -> (VerifierKey, impl Fn(&[u8]) -> [u8; 64]) {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let public = pair.public_key().as_ref().try_into().unwrap();
        let sign = move |text: &[u8]| pair.sign(text).as_ref().try_into().unwrap();
        (VerifierKey::new("fleet/a", public).unwrap(), sign)
    }

    #[test]
    fn go_sumdb_note_example_verifies() {
        // From the documentation of golang.org/x/mod/sumdb/note.
        let key = VerifierKey::parse(
            "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        )
        .unwrap();
        let text = "If you think cryptography is the answer to your problem,\n\
        then you don't know what your problem is.\n";
        let note = format!(
            "{text}\n— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
        );
        assert_eq!(key.open(&note), Ok(text));
        assert_eq!(
            key.to_string(),
            "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
        );
    }

    #[test]
    fn signed_text_opens_and_any_changed_byte_is_rejected() {
        let (key, sign) = pair(1);
        let note = key.note("one\n\ntwo\n", sign);
        assert_eq!(key.open(&note), Ok("one\n\ntwo\n"));
        assert_eq!(unverified_text(&note), Ok("one\n\ntwo\n"));
        assert_eq!(VerifierKey::parse(&key.to_string()), Ok(key.clone()));
        let text = "one\n\ntwo\n".len();
        for at in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(other) = String::from_utf8(bytes) else { continue };
            let found = key.open(&other);
            assert!(found.is_err(), "{at}: {found:?}");
            if at < text && other.as_bytes()[at] >= b' ' && note.as_bytes()[at] != b'\n' {
                assert_eq!(found, Err(NoteError::Signature), "{at}");
            }
        }
        let (other, _) = pair(2);
        assert_eq!(other.open(&note), Err(NoteError::Unsigned));
        assert_eq!(key.open("text\n"), Err(NoteError::Form));
        assert_eq!(key.open("text\n\n"), Err(NoteError::Form));
    }

    #[test]
    fn incomplete_key_is_rejected() {
        let whole = pair(1).0.to_string();
        for text in [
            "",
            "a",
            "a+b",
            "a+00000000+AQ==",
            &whole[..whole.len() - 4],
            &whole.replace("fleet/a", "fleet/b"),
        ] {
            assert_eq!(VerifierKey::parse(text), Err(NoteError::Key), "{text}");
        }
        assert!(!is_key_name("a b") && !is_key_name("a+b") && !is_key_name(""));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Merkle root computed by the recursive definition of RFC 6962.
    fn by_definition(leaves: &[TreeHash]) -> TreeHash {
        match leaves {
            [one] => *one,
            _ => {
                let mut k = 1;
                while k * 2 < leaves.len() {
                    k *= 2;
                }
                let (left, right) = leaves.split_at(k);
                domain_hash(NODE, &[by_definition(left), by_definition(right)])
            }
        }
    }

    #[test]
    fn empty_tree_has_the_rfc_root() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&merkle_root(&[])), empty);
        // SHA-256 of one zero byte: the hash of an empty leaf.
        let leaf = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";
        assert_eq!(hex(&domain_hash(LEAF, &[])), leaf);
    }

    proptest! {
        #[test]
        fn merkle_path_proves_only_its_own_leaf(
            records in prop::collection::vec(any::<[u8; 32]>(), 1..70),
        ) {
            let leaves: Vec<_> = records.iter().map(leaf_hash).collect();
            let (root, count) = (merkle_root(&leaves), leaves.len() as u64);
            prop_assert_eq!(root, by_definition(&leaves));
            for (at, one) in leaves.iter().enumerate() {
                let path = merkle_path(&leaves, at);
                prop_assert!(path.len() <= MAX_PATH);
                let at = at as u64;
                prop_assert_eq!(root_from_path(*one, at, count, &path), Some(root));
                prop_assert_eq!(root_from_path(*one, count, count, &path), None);
                let mut longer = path.clone();
                longer.push(root);
                prop_assert_eq!(root_from_path(*one, at, count, &longer), None);
                if let Some(first) = path.first() {
                    prop_assert_eq!(root_from_path(*one, at, count, &path[1..]), None);
                    let mut other = path.clone();
                    other[0][0] ^= 1;
                    prop_assert_ne!(root_from_path(*one, at, count, &other), Some(root));
                    prop_assert_ne!(root_from_path(*first, at, count, &path), Some(root));
                }
            }
        }
    }
}
