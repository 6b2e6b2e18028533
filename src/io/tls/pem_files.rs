//! Certificates and keys from files: read with bounds, checked whole, and told clearly where they cannot be used.
//!
//! Reads files: not for a worker's thread. The clock is an argument. Who watches the files is `server`'s.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::certificate::{CertificateFacts, Fingerprint, facts, fingerprint};
use super::provider;
use crate::os::bounded_file::{self, NamedPipes};

/// Most bytes of a file; bundles of all public authorities have a quarter of it.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Most certificates of a chain.
const MAX_CHAIN: usize = 16;
/// Most authorities.
const MAX_ROOTS: usize = 2048;

/// The key of a `tls` section that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsKey {
    /// `cert`
    Cert,
    /// `key`
    Key,
    /// `ca`
    Ca,
    /// `client_ca`
    ClientCa,
}

impl TlsKey {
    /// Its word in the config.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cert => "cert",
            Self::Key => "key",
            Self::Ca => "ca",
            Self::ClientCa => "client_ca",
        }
    }
}

/// Why a file of a `tls` section cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TlsFileProblem {
    /// Which key names the file.
    pub key: TlsKey,
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for TlsFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.what)
    }
}

/// A certificate with its chain, and the key that fits it.
#[derive(Clone, Debug)]
pub struct CertifiedPair {
    /// As TLS uses them.
    pub certified: Arc<CertifiedKey>,
    /// Of the certificate itself.
    pub facts: CertificateFacts,
    /// Of the certificate itself.
    pub fingerprint: Fingerprint,
}

impl CertifiedPair {
    /// Reads both files, which must fit each other and hold at the moment `now`.
    ///
    /// # Errors
    /// [`TlsFileProblem`].
    pub fn load(cert: &Path, key: &Path, now: SystemTime) -> Result<Self, TlsFileProblem> {
        let chain = certificates(TlsKey::Cert, cert, MAX_CHAIN)?;
        let wrong = |what: String| problem(TlsKey::Cert, cert, what);
        let leaf = chain.first().ok_or_else(|| wrong(NO_CERTIFICATE.to_owned()))?;
        let facts =
            facts(leaf).ok_or_else(|| wrong("its certificate cannot be read".to_owned()))?;
        if now >= facts.until {
            return Err(wrong(format!("the certificate has expired on {}", shown(facts.until))));
        }
        if now < facts.from {
            return Err(wrong(format!(
                "the certificate is not valid before {}",
                shown(facts.from)
            )));
        }
        let fingerprint = fingerprint(leaf);
        let private = private_key(key)?;
        let certified = CertifiedKey::from_der(chain, private, &provider()).map_err(|error| {
            let what = match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    format!("the key does not fit the certificate in {}", cert.display())
                }
                error => format!("the key cannot be used: {error}"),
            };
            problem(TlsKey::Key, key, what)
        })?;
        Ok(Self { certified: Arc::new(certified), facts, fingerprint })
    }
}

/// The authorities in a file, and a digest of them.
///
/// # Errors
/// [`TlsFileProblem`].
pub fn roots(key: TlsKey, file: &Path) -> Result<(RootCertStore, Fingerprint), TlsFileProblem> {
    let (mut store, mut all) = (RootCertStore::empty(), Vec::new());
    for certificate in certificates(key, file, MAX_ROOTS)? {
        all.extend_from_slice(&certificate);
        store
            .add(certificate)
            .map_err(|error| problem(key, file, format!("it holds no authority: {error}")))?;
    }
    Ok((store, fingerprint(&all)))
}

const NO_CERTIFICATE: &str = "it holds no certificate (-----BEGIN CERTIFICATE-----)";

fn problem(key: TlsKey, file: &Path, what: String) -> TlsFileProblem {
    TlsFileProblem { key, file: file.to_owned(), what }
}

fn certificates(
    key: TlsKey,
    file: &Path,
    most: usize,
) -> Result<Vec<CertificateDer<'static>>, TlsFileProblem> {
    let text = read(key, file)?;
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| {
            problem(key, file, format!("it is not PEM as it should be: {error}"))
        })?;
        if found.len() == most {
            return Err(problem(key, file, format!("it holds more than {most} certificates")));
        }
        found.push(certificate);
    }
    if found.is_empty() {
        return Err(problem(key, file, NO_CERTIFICATE.to_owned()));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsFileProblem> {
    let text = read(TlsKey::Key, file)?;
    let has = |mark: &str| memchr::memmem::find(&text, mark.as_bytes()).is_some();
    let what = match PrivateKeyDer::from_pem_slice(&text) {
        // RFC 5958 §3, RFC 1421 §4.6.1.1
        _ if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") => {
            "the key is encrypted: keep it without a passphrase, readable for its owner alone"
                .to_owned()
        }
        Ok(key) => return Ok(key),
        Err(pem::Error::NoItemsFound) => {
            "it holds no private key (-----BEGIN PRIVATE KEY-----)".to_owned()
        }
        Err(error) => format!("it is not PEM as it should be: {error}"),
    };
    Err(problem(TlsKey::Key, file, what))
}

fn read(key: TlsKey, file: &Path) -> Result<Vec<u8>, TlsFileProblem> {
    // A pipe would be waited for, also one that comes into the file's place meanwhile.
    let read = bounded_file::read(file, MAX_FILE_BYTES, NamedPipes::Refused);
    let (text, _) =
        read.map_err(|error| problem(key, file, format!("it cannot be read: {error}")))?;
    Ok(text)
}

fn shown(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn pair(params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn a_pair_that_cannot_be_used_says_which_file_and_why() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let now = SystemTime::now();
        let told = |cert_text: &str, key_text: &str| {
            fs::write(&cert, cert_text).unwrap();
            fs::write(&key, key_text).unwrap();
            CertifiedPair::load(&cert, &key, now).map(|_| ()).map_err(|it| {
                let file = if it.key == TlsKey::Cert { &cert } else { &key };
                assert_eq!(it.file, *file);
                (it.key, it.what)
            })
        };
        let good = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let mut over = good.clone();
        over.not_after = date_time_ymd(2001, 1, 1);
        let mut early = good.clone();
        early.not_before = date_time_ymd(3000, 1, 1);
        let (fine, fits) = pair(&good);
        assert_eq!(told(&fine, &fits), Ok(()));
        assert_eq!(told(&format!("about it\n{fine}{fine}"), &fits), Ok(()), "with its chain");
        let other = KeyPair::generate().unwrap().serialize_pem();
        let encrypted =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
        for (cert_text, key_text, at, said) in [
            (&*pair(&over).0, &*fits, TlsKey::Cert, "expired on 2001-01-01T00:00:00Z"),
            (&pair(&early).0, &fits, TlsKey::Cert, "not valid before 3000-01-01T00:00:00Z"),
            (&fine, &other, TlsKey::Key, "does not fit the certificate in"),
            ("", &fits, TlsKey::Cert, "holds no certificate"),
            (&fits, &fits, TlsKey::Cert, "holds no certificate"),
            (&fine.replace("-----END", "---END"), &fits, TlsKey::Cert, "not PEM"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &fits,
                TlsKey::Cert,
                "cannot be read",
            ),
            (&fine, "", TlsKey::Key, "holds no private key"),
            (&fine, encrypted, TlsKey::Key, "encrypted"),
            (&fine, old, TlsKey::Key, "encrypted"),
            (
                &fine,
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                TlsKey::Key,
                "cannot be used",
            ),
            (&fine.repeat(MAX_CHAIN + 1), &fits, TlsKey::Cert, "more than 16"),
            (&"x".repeat(MAX_FILE_BYTES as usize + 1), &fits, TlsKey::Cert, "larger than"),
        ] {
            let (key, what) = told(cert_text, key_text).unwrap_err();
            assert!(key == at && what.contains(said), "{said}: {what}");
        }
    }

    #[test]
    fn what_is_no_file_is_unreadable_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [&pipe, folder.path(), &folder.path().join("none")] {
            let told = roots(TlsKey::ClientCa, file).unwrap_err();
            assert!(told.to_string().contains("cannot be read"), "{told}");
            assert_eq!(told.key.as_str(), "client_ca");
        }
    }

    #[test]
    fn authorities_are_told_apart_by_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let params = CertificateParams::default();
        let (one, _) = pair(&params);
        let digest = |text: &str| {
            fs::write(&file, text).unwrap();
            let (store, digest) = roots(TlsKey::Ca, &file).unwrap();
            (store.len(), digest)
        };
        assert_eq!(digest(&one), digest(&format!("# about it\n{one}")));
        assert_ne!(digest(&one).1, digest(&pair(&params).0).1);
        assert_eq!(digest(&format!("{one}{}", pair(&params).0)).0, 2);
    }
}
