//! Vector files, one per model, which store vectors so that each text is embedded only once.
//!
//! ```text
//! {"version":1,"model":"all-minilm","dimensions":384,"vectors":640,"blake3":"<hex of the rest>"}
//! <key, 32 bytes><numbers, f32, little-endian>…
//! ```
//!
//! The file is replaced atomically by rename. A file that has another version or model, or that is damaged or
//! unreadable, counts as missing. The hash detects accidents, not tampering. Functions block.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::store::{VectorKey, VectorStore, capacity};
use crate::search::{MAX_DIMENSIONS, UnitVector};
use mcpproxy_runtime::os::private;

/// Format version. Files of other versions are not read; the next write uses this version.
const VERSION: u32 = 1;
const NAME: &str = "vectors";
/// Maximum length of the first line, in bytes.
const MAX_HEADER_BYTES: usize = 4096;
/// Maximum size of a file, in bytes; larger than any file that is written.
const MAX_FILE_BYTES: u64 = 512 * 1024 * 1024;
const KEY_BYTES: usize = blake3::OUT_LEN;
const NUMBER_BYTES: usize = size_of::<f32>();
/// Rounding tolerance of the length of a unit vector.
const ROUNDED: f32 = 1e-3;

/// Reason why a file is not used.
#[derive(Debug, Error)]
pub enum UnusableVectors {
    /// I/O error.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is damaged or of another version: {0}")]
    Damaged(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    model: Box<str>,
    dimensions: usize,
    vectors: usize,
    blake3: String,
}

/// Path of the file in `folder`.
pub fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Loads the vectors of `model`; empty if the file is missing or belongs to another model. Fails if the file is unusable.
pub fn read(folder: &Path, model: &str) -> Result<VectorStore, UnusableVectors> {
    let path = path(folder);
    let bytes = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(VectorStore::new(model));
        }
        Err(error) => return Err(error.into()),
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(UnusableVectors::Damaged("it is too large"));
        }
        Ok(_) => fs::read(&path)?,
    };
    checked(&bytes, model).map_err(UnusableVectors::Damaged)
}

fn checked(bytes: &[u8], model: &str) -> Result<VectorStore, &'static str> {
    let start = bytes.get(..MAX_HEADER_BYTES.min(bytes.len())).unwrap_or_default();
    let end = start.iter().position(|byte| *byte == b'\n').ok_or("no header")?;
    let (header, rest) = bytes.split_at_checked(end).ok_or("no header")?;
    let body = rest.get(1..).unwrap_or_default();
    let header: Header = serde_json::from_slice(header).map_err(|_| "its header cannot be read")?;
    let Header { version, model: of, dimensions, vectors, blake3 } = header;
    if version != VERSION {
        return Err("another version");
    }
    let mut store = VectorStore::new(model);
    if *of != *model {
        return Ok(store);
    }
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) || vectors > capacity(dimensions) {
        return Err("its numbers are out of bounds");
    }
    let row = KEY_BYTES + dimensions * NUMBER_BYTES;
    if body.len() != row * vectors {
        return Err("its length is wrong");
    }
    if blake3 != blake3::hash(body).to_hex().as_str() {
        return Err("the hash is wrong");
    }
    for row in body.chunks_exact(row) {
        let (key, numbers) = row.split_first_chunk::<KEY_BYTES>().ok_or("its length is wrong")?;
        let (numbers, _) = numbers.as_chunks::<NUMBER_BYTES>();
        let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let length: f32 = numbers.iter().map(|number| number * number).sum();
        if !((1.0 - ROUNDED)..=(1.0 + ROUNDED)).contains(&length) {
            return Err("a vector is invalid");
        }
        let vector = UnitVector::of(numbers).ok_or("a vector is invalid")?;
        store.insert(VectorKey(*key), vector);
    }
    Ok(store)
}

/// Replaces the file. Durable on return; on an error the old file is kept.
pub fn write(folder: &Path, store: &VectorStore) -> io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    let mut vectors = 0;
    let mut bytes = Vec::new();
    let mut each = |visit: &mut dyn FnMut(&[u8]) -> io::Result<()>| {
        for (key, numbers) in store.all() {
            bytes.clear();
            bytes.extend_from_slice(&key.0);
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            visit(&bytes)?;
        }
        Ok::<(), io::Error>(())
    };
    each(&mut |row| {
        vectors += 1;
        hasher.update(row);
        Ok(())
    })?;
    let header = Header {
        version: VERSION,
        model: store.model().into(),
        dimensions: store.dimensions().unwrap_or(1),
        vectors,
        blake3: hasher.finalize().to_hex().to_string(),
    };
    private::folder(folder)?;
    let (target, temporary) = (path(folder), folder.join(format!("{NAME}.new")));
    let mut file = BufWriter::new(private::create(&temporary)?);
    file.write_all(&serde_json::to_vec(&header)?)?;
    file.write_all(b"\n")?;
    each(&mut |row| file.write_all(row))?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&temporary, &target)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn store() -> VectorStore {
        let mut store = VectorStore::new("m");
        for at in 0..5_u8 {
            let vector = UnitVector::of(vec![f32::from(at) + 0.1, 1.0, -3.0]).unwrap();
            store.insert(VectorKey::of("m", &at.to_string()), vector);
        }
        store
    }

    fn sorted(store: &VectorStore) -> Vec<(VectorKey, Vec<f32>)> {
        let mut all: Vec<_> = store.all().map(|(key, it)| (*key, it.to_vec())).collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }

    // Covers EMB-3.
    #[test]
    fn written_vectors_load_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("embeddings");
        assert!(read(&folder, "m").unwrap().is_empty());
        write(&folder, &store()).unwrap();
        write(&folder, &store()).unwrap();
        let read = super::read(&folder, "m").unwrap();
        let (was, is) = (sorted(&store()), sorted(&read));
        assert_eq!(was.len(), 5);
        for ((key, numbers), (known, others)) in is.iter().zip(&was) {
            assert_eq!(key, known);
            assert!(numbers.iter().zip(others).all(|(a, b)| (a - b).abs() < 1e-6));
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path(&folder))), (0o700, 0o600));
        assert!(super::read(&folder, "another").unwrap().is_empty());
        write(&folder, &VectorStore::new("m")).unwrap();
        assert!(super::read(&folder, "m").unwrap().is_empty());
    }

    #[test]
    fn damaged_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &store()).unwrap();
        let sound = fs::read(path(folder.path())).unwrap();
        assert!(checked(&sound, "m").is_ok());
        for cut in [0, 1, 40, sound.len() - 1] {
            assert!(checked(sound.get(..cut).unwrap(), "m").is_err(), "{cut}");
        }
        for at in 0..sound.len() {
            let mut bad = sound.clone();
            bad[at] ^= 0x20;
            // A valid file of another model is ignored.
            assert!(checked(&bad, "m").is_ok_and(|it| !it.is_empty()).eq(&false), "{at}");
        }
        let with = |text: &str, row: &[f32]| {
            let mut body = vec![0; KEY_BYTES];
            body.extend(row.iter().flat_map(|number| number.to_le_bytes()));
            let hash = blake3::hash(&body).to_hex();
            let mut file = format!("{{{text},\"blake3\":\"{hash}\"}}\n").into_bytes();
            file.extend(body);
            checked(&file, "m").map(|it| it.len())
        };
        let head = r#""version":1,"model":"m","dimensions":2,"vectors":1"#;
        assert_eq!(with(head, &[0.6, 0.8]), Ok(1));
        for row in [[f32::NAN, 1.0], [1.0, 1.0], [0.0, 0.0], [f32::INFINITY, 0.0]] {
            assert_eq!(with(head, &row), Err("a vector is invalid"), "{row:?}");
        }
        let huge = r#""version":1,"model":"m","dimensions":2,"vectors":18446744073709551615"#;
        assert_eq!(with(huge, &[0.6, 0.8]), Err("its numbers are out of bounds"));
        assert_eq!(
            with(&head.replace(":1,\"model", ":2,\"model"), &[0.6, 0.8]),
            Err("another version")
        );
    }
}
