//! Signed notes of C2SP (`c2sp.org/signed-note`), with Ed25519: a text, an empty line, and lines of signatures. Keys as
//! such tools write them. Pure.
//!
//! ```text
//! text, each line with its end
//!
//! — NAME BASE64(key id · signature)
//! ```
//!
//! Signatures by unknown keys are allowed and say nothing; which key a note must have is decided by who reads it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA256};
use ring::signature::{ED25519, UnparsedPublicKey};
use thiserror::Error;

/// The code of Ed25519 among the kinds of keys.
const ED25519_KIND: u8 = 1;
const KEY_BYTES: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;
/// Most bytes of a note.
pub const MAX_NOTE_BYTES: usize = 64 << 10;
/// Most signatures of a note.
const MAX_SIGNATURES: usize = 16;
/// What a line of a signature begins with.
const DASH: &str = "— ";

/// Why a note, or a key, is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoteError {
    /// It has not the form of a note.
    #[error("it is no signed note")]
    Form,
    /// There is no signature by the key that is asked for.
    #[error("it is not signed by the key of its node")]
    Unsigned,
    /// The signature is not one of this text.
    #[error("its signature is not that of its text")]
    Signature,
    /// It has not the form of a key.
    #[error("it is no verifier key: NAME+ID+KEY is expected, as the claim of a node has it")]
    Key,
}

/// Whether a name can be that of a key.
#[must_use]
pub fn is_key_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c == '+' || c.is_control())
}

/// A public key with its name: what a note is verified by.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: Box<str>,
    public: [u8; KEY_BYTES],
}

impl VerifierKey {
    /// A key of this name.
    ///
    /// # Errors
    ///
    /// [`NoteError::Key`] if the name cannot be one.
    pub fn new(name: &str, public: [u8; KEY_BYTES]) -> Result<Self, NoteError> {
        if is_key_name(name) { Ok(Self { name: name.into(), public }) } else { Err(NoteError::Key) }
    }

    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    ///
    /// [`NoteError::Key`].
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

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The four bytes by which a signature names the key.
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

    /// The text of a note that this key has signed.
    ///
    /// # Errors
    ///
    /// [`NoteError`].
    pub fn open<'n>(&self, note: &'n str) -> Result<&'n str, NoteError> {
        let (text, signatures) = split(note)?;
        let id = self.id();
        let mut by_us = signatures.into_iter().filter(|it| it.name == &*self.name && it.id == id);
        let signature = by_us.next().ok_or(NoteError::Unsigned)?;
        UnparsedPublicKey::new(&ED25519, &self.public)
            .verify(text.as_bytes(), &signature.signature)
            .map_err(|_| NoteError::Signature)?;
        Ok(text)
    }

    /// Whether this key has signed a text that is no note.
    #[must_use]
    pub fn signed(&self, text: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public).verify(text, signature).is_ok()
    }

    /// A note of this text, which ends in a line end, signed with what belongs to this key.
    #[must_use]
    pub fn note(&self, text: &str, sign: impl FnOnce(&[u8]) -> [u8; SIGNATURE_BYTES]) -> String {
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

/// The text of a note, with its last line end, and the signatures.
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
        // A signature of another length is by a key of another kind.
        if let Ok(signature) = signature.try_into() {
            found.push(NoteSignature { name, id: *id, signature });
        }
    }
    Ok((text, found))
}

/// The text of a note, whoever signed it.
///
/// # Errors
///
/// [`NoteError::Form`].
pub fn unverified_text(note: &str) -> Result<&str, NoteError> {
    split(note).map(|(text, _)| text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    fn pair(seed: u8) -> (VerifierKey, impl Fn(&[u8]) -> [u8; 64]) {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let public = pair.public_key().as_ref().try_into().unwrap();
        let sign = move |text: &[u8]| pair.sign(text).as_ref().try_into().unwrap();
        (VerifierKey::new("fleet/a", public).unwrap(), sign)
    }

    #[test]
    fn the_example_of_the_go_module_is_read_and_verified() {
        // golang.org/x/mod/sumdb/note: the example of its documentation.
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
    fn what_is_signed_is_opened_and_any_other_byte_is_not() {
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
    fn a_key_that_is_not_whole_is_none() {
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
}
