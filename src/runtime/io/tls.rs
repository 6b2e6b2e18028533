//! TLS for both sides: certificate and key files, the contents of certificates, the connector to servers, and the
//! authorities that this system trusts.
//!
//! The only module that parses X.509. Reading the files blocks, so it must not run on a worker thread. The clock is an
//! argument. The settings of the listening side are in `server`, which also watches the files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, InconsistentKeys, RootCertStore};
use tokio_rustls::TlsConnector;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::os::bounded_file::{self, NamedPipes};

/// The cryptography provider used for all TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Maximum length of an accepted name in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Digest of a whole certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The digest's bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Digest of a DER-encoded certificate.
pub fn fingerprint(der: &[u8]) -> Fingerprint {
    Fingerprint(*blake3::hash(der).as_bytes())
}

/// Certificate fields that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Start of the validity.
    pub from: SystemTime,
    pub until: SystemTime,
    /// Name of a principal: the only common name of the subject (RFC 5280 §4.1.2.6); without a common name, the first
    /// alternative name that is a host, an email address or a URI (§4.2.1.6).
    pub name: Result<Box<str>, Unnamed>,
}

/// Reason why a certificate has no usable name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unnamed {
    /// The certificate has no name of an accepted kind.
    #[error("it has neither a common name nor an alternative one")]
    Absent,
    /// The certificate has several names, which is ambiguous.
    #[error("it has several common names")]
    Several,
    /// The name could be mistaken for another one, or fill the log.
    #[error("its name must be of 1 to {MAX_NAME_BYTES} bytes, without control characters")]
    Unfit,
}

/// Parses a DER-encoded certificate; `None` if it is malformed.
pub fn facts(der: &[u8]) -> Option<CertificateFacts> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let validity = certificate.validity();
    Some(CertificateFacts {
        from: moment(validity.not_before.timestamp()),
        until: moment(validity.not_after.timestamp()),
        name: name(&certificate),
    })
}

fn moment(seconds: i64) -> SystemTime {
    let far = Duration::from_secs(seconds.unsigned_abs());
    let moment = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(far),
        false => UNIX_EPOCH.checked_add(far),
    };
    moment.unwrap_or(UNIX_EPOCH)
}

fn name(certificate: &X509Certificate<'_>) -> Result<Box<str>, Unnamed> {
    let mut common = certificate.subject().iter_common_name();
    if let Some(first) = common.next() {
        return match common.next() {
            Some(_) => Err(Unnamed::Several),
            None => fit(first.as_str().map_err(|_| Unnamed::Unfit)?),
        };
    }
    let others = certificate.subject_alternative_name().map_err(|_| Unnamed::Absent)?;
    let names = others.iter().flat_map(|names| &names.value.general_names);
    let mut texts = names.filter_map(|name| match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            Some(*text)
        }
        _ => None,
    });
    fit(texts.next().ok_or(Unnamed::Absent)?)
}

fn fit(name: &str) -> Result<Box<str>, Unnamed> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control);
    fits.then(|| name.into()).ok_or(Unnamed::Unfit)
}

/// The connector to a server whose certificate must be issued by one of `roots`. `pair` is the client certificate.
pub fn connector(roots: RootCertStore, pair: Option<CertifiedPair>) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = match builder.with_safe_default_protocol_versions() {
        Ok(builder) => builder.with_root_certificates(roots),
        Err(error) => unreachable!("the provider supports the default versions: {error}"),
    };
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let resolver = rustls::sign::SingleCertAndKey::from(pair.certified);
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// The connector with the system's authorities. Reads files, so it must not run on a worker thread.
pub fn system_connector() -> TlsConnector {
    connector(system_roots(), None)
}

/// Maximum file size in bytes: four times the size of a bundle of all public authorities.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Maximum number of certificates in a chain.
const MAX_CHAIN: usize = 16;
const MAX_ROOTS: usize = 2048;

/// The key of a `tls` section that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsKey {
    Cert,
    Key,
    Ca,
    ClientCa,
}

impl TlsKey {
    /// The key as written in the config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cert => "cert",
            Self::Key => "key",
            Self::Ca => "ca",
            Self::ClientCa => "client_ca",
        }
    }
}

/// Reason why a file named in a `tls` section cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TlsFileProblem {
    /// The key that names the file.
    pub key: TlsKey,
    pub file: PathBuf,
    pub fault: TlsFileFault,
}

/// Fault of a file named in a `tls` section.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFileFault {
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("the certificate has expired on {}", shown(*.0))]
    Expired(SystemTime),
    #[error("the certificate is not valid before {}", shown(*.0))]
    NotYetValid(SystemTime),
    /// The key belongs to another certificate than the one in this file.
    #[error("the key does not match the certificate in {}", .0.display())]
    KeyMismatch(PathBuf),
    #[error("the key is encrypted: keep it without a passphrase, readable for its owner alone")]
    EncryptedKey,
    /// Any other fault of the content, as text.
    #[error("{0}")]
    Content(String),
}

impl fmt::Display for TlsFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.fault)
    }
}

/// A certificate with its chain and the matching private key.
#[derive(Clone, Debug)]
pub struct CertifiedPair {
    /// Certificate and key in the form that rustls uses.
    pub certified: Arc<CertifiedKey>,
    /// The facts of the leaf certificate.
    pub facts: CertificateFacts,
    /// The digest of the leaf certificate.
    pub fingerprint: Fingerprint,
}

impl CertifiedPair {
    /// Loads both files. They must match, and the certificate must be valid at `now`.
    pub fn load(cert: &Path, key: &Path, now: SystemTime) -> Result<Self, TlsFileProblem> {
        let chain = certificates(TlsKey::Cert, cert, MAX_CHAIN)?;
        let wrong = |fault: TlsFileFault| problem(TlsKey::Cert, cert, fault);
        let leaf = chain.first().ok_or_else(|| wrong(content(NO_CERTIFICATE)))?;
        let facts =
            facts(leaf).ok_or_else(|| wrong(content("its certificate cannot be parsed")))?;
        if now >= facts.until {
            return Err(wrong(TlsFileFault::Expired(facts.until)));
        }
        if now < facts.from {
            return Err(wrong(TlsFileFault::NotYetValid(facts.from)));
        }
        let fingerprint = fingerprint(leaf);
        let private = private_key(key)?;
        let certified = CertifiedKey::from_der(chain, private, &provider()).map_err(|error| {
            let fault = match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsFileFault::KeyMismatch(cert.to_owned())
                }
                error => content(format!("the key cannot be used: {error}")),
            };
            problem(TlsKey::Key, key, fault)
        })?;
        Ok(Self { certified: Arc::new(certified), facts, fingerprint })
    }
}

/// The authorities in a file, and their digest.
pub fn roots(key: TlsKey, file: &Path) -> Result<(RootCertStore, Fingerprint), TlsFileProblem> {
    let (mut store, mut all) = (RootCertStore::empty(), Vec::new());
    for certificate in certificates(key, file, MAX_ROOTS)? {
        all.extend_from_slice(&certificate);
        store.add(certificate).map_err(|error| {
            problem(key, file, content(format!("it holds no authority: {error}")))
        })?;
    }
    Ok((store, fingerprint(&all)))
}

const NO_CERTIFICATE: &str = "it holds no certificate (-----BEGIN CERTIFICATE-----)";

fn problem(key: TlsKey, file: &Path, fault: TlsFileFault) -> TlsFileProblem {
    TlsFileProblem { key, file: file.to_owned(), fault }
}

fn content(fault: impl Into<String>) -> TlsFileFault {
    TlsFileFault::Content(fault.into())
}

fn certificates(
    key: TlsKey,
    file: &Path,
    max: usize,
) -> Result<Vec<CertificateDer<'static>>, TlsFileProblem> {
    let text = read(key, file)?;
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| {
            problem(key, file, content(format!("it is not valid PEM: {error}")))
        })?;
        if found.len() == max {
            return Err(problem(
                key,
                file,
                content(format!("it holds more than {max} certificates")),
            ));
        }
        found.push(certificate);
    }
    if found.is_empty() {
        return Err(problem(key, file, content(NO_CERTIFICATE)));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsFileProblem> {
    let text = read(TlsKey::Key, file)?;
    let has = |mark: &str| memchr::memmem::find(&text, mark.as_bytes()).is_some();
    let fault = match PrivateKeyDer::from_pem_slice(&text) {
        // RFC 5958 §3, RFC 1421 §4.6.1.1
        _ if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") => {
            TlsFileFault::EncryptedKey
        }
        Ok(key) => return Ok(key),
        Err(pem::Error::NoItemsFound) => {
            content("it holds no private key (-----BEGIN PRIVATE KEY-----)")
        }
        Err(error) => content(format!("it is not valid PEM: {error}")),
    };
    Err(problem(TlsKey::Key, file, fault))
}

fn read(key: TlsKey, file: &Path) -> Result<Vec<u8>, TlsFileProblem> {
    // A pipe is refused, even if it replaces the file between check and open, because reading it would block.
    let read = bounded_file::read(file, MAX_FILE_BYTES, NamedPipes::Refused);
    let (text, _) =
        read.map_err(|error| problem(key, file, TlsFileFault::Unreadable(error.to_string())))?;
    Ok(text)
}

fn shown(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "a system certificate cannot be used");
    }
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::debug!(unusable, "system certificates left out");
    }
    roots
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn named(names: &[&str], others: Vec<SanType>) -> Result<Box<str>, Unnamed> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = others;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        facts(certificate.der()).unwrap().name
    }

    #[test]
    fn certificate_name_is_the_common_name_or_the_first_alternative_name() {
        let host = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let mail = SanType::Rfc822Name("ada@example.com".try_into().unwrap());
        let ip = SanType::IpAddress([127, 0, 0, 1].into());
        assert_eq!(named(&["ada"], vec![host("h")]).as_deref(), Ok("ada"));
        assert_eq!(named(&[], vec![ip.clone(), mail, host("h")]).as_deref(), Ok("ada@example.com"));
        assert_eq!(named(&[], vec![host("h")]).as_deref(), Ok("h"));
        assert_eq!(named(&[], vec![ip]), Err(Unnamed::Absent));
    }

    #[test]
    fn certificate_with_an_ambiguous_or_unsuitable_name_is_rejected() {
        for bad in ["", "a\nb", "a\u{0}", "\u{1b}[1m", "\u{85}", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(named(&[bad], Vec::new()), Err(Unnamed::Unfit), "{bad:?}");
        }
        let longest = "x".repeat(MAX_NAME_BYTES);
        assert_eq!(named(&[&longest], Vec::new()).as_deref(), Ok(&*longest));
    }

    #[test]
    fn certificate_validity_is_read_and_a_non_certificate_is_rejected() {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let read = facts(&der).unwrap();
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!((seconds(read.from), seconds(read.until)), (978_307_200, 1_009_843_200));
        for cut in 0..der.len() {
            assert_eq!(facts(&der[..cut]), None, "{cut} bytes");
        }
        assert_eq!(facts(&[der, vec![0]].concat()), None);
    }

    fn pair(params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn error_for_an_unusable_pair_names_the_file_and_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let now = SystemTime::now();
        let outcome = |cert_text: &str, key_text: &str| {
            fs::write(&cert, cert_text).unwrap();
            fs::write(&key, key_text).unwrap();
            CertifiedPair::load(&cert, &key, now).map(|_| ()).map_err(|it| {
                let file = if it.key == TlsKey::Cert { &cert } else { &key };
                assert_eq!(it.file, *file);
                (it.key, it.fault.to_string())
            })
        };
        let good = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let mut over = good.clone();
        over.not_after = date_time_ymd(2001, 1, 1);
        let mut early = good.clone();
        early.not_before = date_time_ymd(3000, 1, 1);
        let (fine, fits) = pair(&good);
        assert_eq!(outcome(&fine, &fits), Ok(()));
        assert_eq!(outcome(&format!("about it\n{fine}{fine}"), &fits), Ok(()), "with its chain");
        let other = KeyPair::generate().unwrap().serialize_pem();
        let encrypted =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
        for (cert_text, key_text, at, cause) in [
            (&*pair(&over).0, &*fits, TlsKey::Cert, "expired on 2001-01-01T00:00:00Z"),
            (&pair(&early).0, &fits, TlsKey::Cert, "not valid before 3000-01-01T00:00:00Z"),
            (&fine, &other, TlsKey::Key, "does not match the certificate in"),
            ("", &fits, TlsKey::Cert, "holds no certificate"),
            (&fits, &fits, TlsKey::Cert, "holds no certificate"),
            (&fine.replace("-----END", "---END"), &fits, TlsKey::Cert, "not valid PEM"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &fits,
                TlsKey::Cert,
                "cannot be parsed",
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
            let (key, what) = outcome(cert_text, key_text).unwrap_err();
            assert!(key == at && what.contains(cause), "{cause}: {what}");
        }
    }

    #[test]
    fn non_file_is_rejected_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [&pipe, folder.path(), &folder.path().join("none")] {
            let outcome = roots(TlsKey::ClientCa, file).unwrap_err();
            assert!(outcome.to_string().contains("cannot be read"), "{outcome}");
            assert_eq!(outcome.key.as_str(), "client_ca");
        }
    }

    #[test]
    fn digest_of_roots_depends_only_on_the_certificates() {
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
