//! Stored pins, with which accepted and held definitions survive a restart.
//!
//! One file per server next to its set. It is written before the set, so that a crash may leave a pin for a definition
//! older than the set's, but never a newer definition without a pin. A file has two lines, a header and the pins, and
//! is replaced atomically by rename:
//! ```text
//! {"version":1,"server":"github","blake3":"<hex of the rest>"}
//! [{"name":"x","accepted":{"digest":"…","by_operator":true,"definition":{…}},"held":"…","told":"…"},…]
//! ```
//!
//! A definition is included only if it differs from the definition in the set. A backup copy of the last good
//! generation is used if the file is damaged or missing; if neither is usable, the caller decides. The hash detects
//! accidents, not tampering.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::definition::DefinitionDigest;
use super::exposed;
use super::listing::Listed;
use super::persist::{self, UnusableFile};
use super::pins::{AcceptedDefinition, Pin, ServerPins};
use mcpproxy_runtime::os::{private, state_file};

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

/// Pin file of `server`.
pub(super) fn path(folder: &Path, server: &str) -> PathBuf {
    persist::file_path(folder, server, "pins")
}

/// Replaces the pins of a server and their backup copy. Durable on return.
pub(super) fn write(folder: &Path, server: &str, pins: &ServerPins) -> io::Result<()> {
    private::folder(folder)?;
    let bytes = persist::contents(server, false, &write_pins(pins)?)?;
    state_file::replace_with_copy(&path(folder, server), &bytes)
}

/// Encodes the second line of a file, which [`read_pins`] parses. Pure.
pub fn write_pins(pins: &ServerPins) -> io::Result<Vec<u8>> {
    let mut stored = Vec::new();
    for (name, Pin { accepted, held, reported }) in &pins.0 {
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
            told: text(reported),
        });
    }
    Ok(serde_json::to_vec(&stored)?)
}

/// Loaded pins.
#[derive(Debug, PartialEq)]
pub(super) struct StoredPins {
    pub(super) pins: ServerPins,
    /// Damage of the file, if these pins come from the backup copy.
    pub(super) damage: Option<String>,
}

/// Loads the pins of `server`, from the backup copy if the file is unusable; `None` if neither exists.
pub(super) fn read(folder: &Path, server: &str) -> Result<Option<StoredPins>, UnusableFile> {
    let path = path(folder, server);
    let read = |path: &Path| {
        let file = persist::read_file(path, server)?;
        file.map(|file| read_pins(file.body(), server).map_err(UnusableFile::Damaged)).transpose()
    };
    let damage = match read(&path) {
        Ok(Some(pins)) => return Ok(Some(StoredPins { pins, damage: None })),
        Ok(None) => None,
        Err(error) => Some(error),
    };
    match (read(&state_file::copy_path(&path)), damage) {
        (Ok(Some(pins)), damage) => {
            let damage = damage.map_or_else(|| "is missing".to_owned(), |error| error.to_string());
            Ok(Some(StoredPins { pins, damage: Some(damage) }))
        }
        (Ok(None), None) => Ok(None),
        (Ok(None) | Err(_), Some(damage)) | (Err(damage), None) => Err(damage),
    }
}

/// Parses the second line of a file. Pure.
pub fn read_pins(body: &str, server: &str) -> Result<ServerPins, String> {
    let stored: Vec<StoredPin<'_>> =
        serde_json::from_str(body).map_err(|error| error.to_string())?;
    let digest = |text: &str| DefinitionDigest::parse(text).ok_or("a digest is invalid");
    let optional = |text: &Option<String>| text.as_deref().map(digest).transpose();
    let mut pins = BTreeMap::new();
    for StoredPin { name, accepted, held, told } in stored {
        let accepted = accepted.map(|StoredDefinition { digest: of, by_operator, definition }| {
            let listed = definition.map(|json| {
                Arc::new(Listed::stored(exposed::name(server, &name), &name, json.get()))
            });
            Ok::<_, String>(AcceptedDefinition { digest: digest(&of)?, listed, by_operator })
        });
        let pin = Pin {
            accepted: accepted.transpose()?,
            held: optional(&held)?,
            reported: optional(&told)?,
        };
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

    // Covers SF-3 and DEF-4.
    #[test]
    fn pins_round_trip_and_fall_back_to_the_backup() {
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
                        reported: None,
                    },
                ),
                (Arc::from("y"), Pin { accepted: Some(plain), held: None, reported: Some(digest) }),
                (Arc::from("z"), Pin { accepted: None, held: Some(digest), reported: None }),
            ]
            .into(),
        );
        write(folder, "s", &pins).unwrap();
        let whole = || read(folder, "s").unwrap().unwrap();
        assert_eq!(whole(), StoredPins { pins: pins.clone(), damage: None });
        let file = path(folder, "s");
        let copy = state_file::copy_path(&file);
        let sound = fs::read(&file).unwrap();
        for i in 0..sound.len() {
            let mut flipped = sound.clone();
            flipped[i] ^= 1;
            for damaged in [&sound[..i], &flipped] {
                fs::write(&file, damaged).unwrap();
                let restored = whole();
                assert!(restored.damage.is_some() && restored.pins == pins, "byte {i}");
                fs::write(&copy, damaged).unwrap();
                assert!(read(folder, "s").is_err(), "byte {i} of both files");
                fs::write(&copy, &sound).unwrap();
            }
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(whole().damage.as_deref(), Some("is missing"));
        fs::write(&file, &sound).unwrap();
        fs::copy(&file, path(folder, "t")).unwrap();
        assert!(read(folder, "t").is_err(), "the pins of another server");
    }
}
