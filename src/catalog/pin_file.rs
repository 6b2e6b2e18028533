//! Pins on disk: what is accepted and what is held, over a restart.
//!
//! One file for each server beside its set, written before the set, so that a crash between the two leaves a pin for the
//! older definition, which the newer one is then compared with: never a newer definition without its pin. Two lines, a
//! header and the pins, replaced whole by a rename:
//! ```text
//! {"version":1,"server":"github","blake3":"<hex of the rest>"}
//! [{"name":"x","accepted":{"digest":"…","by_operator":true,"definition":{…}},"held":"…","told":"…"},…]
//! ```
//! A definition stands in it only where it is not the one of the set. What follows from a file that is lost or damaged is
//! decided by whoever reads it; the hash notices accidents, not someone who may write here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::definition::DefinitionDigest;
use super::exposed;
use super::hashed_file::{self, Unpublished, UnusableFile};
use super::listing::Listed;
use super::pins::{AcceptedDefinition, Pin, ServerPins};

#[derive(Serialize, Deserialize)]
struct StoredPin<'a> {
    name: Box<str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    accepted: Option<StoredDefinition<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredDefinition<'a> {
    digest: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_operator: bool,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    definition: Option<&'a RawValue>,
}

/// The file that holds the pins of `server`.
#[must_use]
pub(super) fn path(folder: &Path, server: &str) -> PathBuf {
    hashed_file::path(folder, server, "pins")
}

/// Replaces the pins of a server. On return they are durable.
///
/// # Errors
/// The file system's. The old pins are then still there.
pub(super) fn write(folder: &Path, server: &str, pins: &ServerPins) -> io::Result<()> {
    Unpublished::new(path(folder, server), server, false, &write_pins(pins)?)?.publish()?;
    File::open(folder)?.sync_all()
}

/// The second line of a file, which [`read_pins`] reads. Pure.
///
/// # Errors
/// None that is known of.
pub fn write_pins(pins: &ServerPins) -> io::Result<Vec<u8>> {
    let mut stored = Vec::new();
    for (name, Pin { accepted, held, told }) in &pins.0 {
        let accepted = accepted.as_ref().map(|accepted| {
            let definition = accepted.listed.as_ref();
            let definition =
                definition.and_then(|listed| serde_json::from_slice(listed.json()).ok());
            let AcceptedDefinition { digest, by_operator, .. } = accepted;
            StoredDefinition { digest: digest.to_string(), by_operator: *by_operator, definition }
        });
        let text = |digest: &Option<DefinitionDigest>| digest.map(|digest| digest.to_string());
        stored.push(StoredPin {
            name: (**name).into(),
            accepted,
            held: text(held),
            told: text(told),
        });
    }
    Ok(serde_json::to_vec(&stored)?)
}

/// The pins of `server`; `None` if there is no file.
///
/// # Errors
/// The file is there and cannot be used.
pub(super) fn read(folder: &Path, server: &str) -> Result<Option<ServerPins>, UnusableFile> {
    let file = hashed_file::read(&path(folder, server), server)?;
    file.map(|file| read_pins(file.body(), server).map_err(UnusableFile::Damaged)).transpose()
}

/// The pins of `server` that the second line of its file holds. Pure.
///
/// # Errors
/// What is wrong with it.
pub fn read_pins(body: &str, server: &str) -> Result<ServerPins, String> {
    let stored: Vec<StoredPin<'_>> =
        serde_json::from_str(body).map_err(|error| error.to_string())?;
    let digest = |text: &str| DefinitionDigest::parse(text).ok_or("a digest is none");
    let optional = |text: &Option<String>| text.as_deref().map(digest).transpose();
    let mut pins = BTreeMap::new();
    for StoredPin { name, accepted, held, told } in stored {
        let accepted = accepted.map(|StoredDefinition { digest: of, by_operator, definition }| {
            let listed = definition.map(|json| {
                Arc::new(Listed::stored(exposed::name(server, &name), &name, json.get()))
            });
            Ok::<_, String>(AcceptedDefinition { digest: digest(&of)?, listed, by_operator })
        });
        let pin =
            Pin { accepted: accepted.transpose()?, held: optional(&held)?, told: optional(&told)? };
        let name = Arc::from(name);
        if pins.contains_key(&name) {
            return Err(format!("'{name}' is pinned twice"));
        }
        pins.insert(name, pin);
    }
    Ok(ServerPins(pins))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pins_are_read_back_as_they_were_and_every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(read(folder, "s").unwrap(), None);
        let json = r#"{"name":"s__x","inputSchema":{ "a":1.0},"description":"é"}"#;
        let listed = Arc::new(Listed::stored(exposed::name("s", "x"), "x", json));
        let digest = DefinitionDigest::of(listed.json());
        let accepted = AcceptedDefinition { digest, listed: Some(listed), by_operator: true };
        let plain = AcceptedDefinition { digest, listed: None, by_operator: false };
        let pins = ServerPins(
            [
                (
                    Arc::from("x"),
                    Pin {
                        accepted: Some(accepted),
                        held: Some(DefinitionDigest::of(b"")),
                        told: None,
                    },
                ),
                (Arc::from("y"), Pin { accepted: Some(plain), held: None, told: Some(digest) }),
                (Arc::from("z"), Pin { accepted: None, held: Some(digest), told: None }),
            ]
            .into(),
        );
        write(folder, "s", &pins).unwrap();
        assert_eq!(read(folder, "s").unwrap(), Some(pins));
        let file = path(folder, "s");
        let sound = fs::read(&file).unwrap();
        for i in 0..sound.len() {
            fs::write(&file, &sound[..i]).unwrap();
            assert!(read(folder, "s").is_err(), "cut at {i}");
            let mut flipped = sound.clone();
            flipped[i] ^= 1;
            fs::write(&file, &flipped).unwrap();
            assert!(read(folder, "s").is_err(), "flipped at {i}");
        }
        fs::write(&file, &sound).unwrap();
        fs::copy(&file, path(folder, "t")).unwrap();
        assert!(read(folder, "t").is_err(), "the pins of another server");
    }
}
