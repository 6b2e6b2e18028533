//! The listener's certificate and the authorities of its clients, in force for connections to come.
//!
//! Files are read anew when they have changed ([`ListenerTls::look`]). What cannot be used is told, and what was in force
//! stays; it is tried again, since a certificate may only not be valid yet. A connection keeps what it was made under, but one of a
//! client with a certificate ends when other authorities count, and what it still asks by its certificate is refused. Sessions
//! of TLS are not resumed across a change.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use tokio::sync::watch;

use super::named_clients::NamedClients;
use crate::config::TlsFiles;
use crate::identity::{AuthorityStanding, FileStamp, file_stamp};
use crate::io::tls::{
    CertifiedPair, Fingerprint, TlsFileProblem, TlsKey, fingerprint, provider, roots,
};
use crate::telemetry::CertificateHealth;

/// The protocols over TLS, the preferred one first (RFC 7301).
pub(super) const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// How long what cannot be used is left alone, if nothing changes.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The TLS of a listener.
pub struct ListenerTls {
    files: Mutex<Files>,
    terms: ArcSwap<TlsTerms>,
    health: Arc<CertificateHealth>,
}

struct Files {
    named: TlsFiles,
    /// As they were when they were read last.
    seen: Stamps,
    /// When that was, if they could not be used.
    unusable: Option<Instant>,
}

type Stamps = [Option<FileStamp>; 3];

/// What a connection is made under.
pub(super) struct TlsTerms {
    pub(super) config: Arc<ServerConfig>,
    /// Of our certificate.
    pub(super) shown: Fingerprint,
    /// Of our certificate with its chain.
    chain: Fingerprint,
    pub(super) trust: Arc<ClientTrust>,
}

/// Whose certificates make a client known.
pub(super) struct ClientTrust {
    authorities: Option<Fingerprint>,
    /// For requests over connections that are about to end.
    pub(super) standing: AuthorityStanding,
    over: watch::Sender<bool>,
    /// Becomes true once others count, or the server ends. This one is never looked at, so that its clones see it.
    pub(super) ends: watch::Receiver<bool>,
}

impl ListenerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn load(named: TlsFiles) -> Result<Self, TlsFileProblem> {
        let seen = stamps(&named);
        let (terms, until) = TlsTerms::load(&named, None)?;
        let files = Mutex::new(Files { named, seen, unusable: None });
        let health = Arc::new(CertificateHealth::new(until));
        Ok(Self { files, terms: ArcSwap::from_pointee(terms), health })
    }

    /// How long the certificate holds, and what is wrong with the files.
    #[must_use]
    pub fn health(&self) -> &Arc<CertificateHealth> {
        &self.health
    }

    /// Reads the files again if one of them has changed, or could not be used a while ago. Blocks.
    pub(super) fn look(&self, now: Instant) {
        let mut files = self.files.lock();
        let again = files.unusable.is_some_and(|since| now.duration_since(since) >= TRY_AGAIN);
        let seen = stamps(&files.named);
        if seen == files.seen && !again {
            return;
        }
        let taken = self.take_up(&files.named);
        files.seen = seen;
        files.unusable = taken.is_err().then_some(now);
        self.tell(taken.err());
    }

    fn take_up(&self, named: &TlsFiles) -> Result<(), TlsFileProblem> {
        let old = self.terms.load();
        let (terms, until) = TlsTerms::load(named, Some(&old))?;
        let same_trust = Arc::ptr_eq(&terms.trust, &old.trust);
        if same_trust && terms.chain == old.chain {
            return Ok(());
        }
        self.health.renew(until);
        let trust = Arc::clone(&old.trust);
        self.terms.store(Arc::new(terms));
        if !same_trust {
            // After the others are in force, so that nobody comes in by these meanwhile.
            trust.standing.take_back();
            trust.over.send_replace(true);
        }
        tracing::info!("the listener's TLS was renewed");
        Ok(())
    }

    /// Shows what is wrong with the files, and logs what was not wrong before.
    fn tell(&self, problem: Option<TlsFileProblem>) {
        let problem = problem.map(|problem| problem.to_string());
        if let (true, Some(problem)) = (self.health.set_problem(problem.clone()), problem) {
            tracing::error!(%problem, "the listener's TLS stays as it was");
        }
    }

    /// What a connection is made under now.
    pub(super) fn terms(&self) -> Arc<TlsTerms> {
        self.terms.load_full()
    }

    /// The server ends.
    pub(super) fn drain(&self) {
        self.terms.load().trust.over.send_replace(true);
    }
}

impl TlsTerms {
    /// Reads the files; also until when the certificate holds.
    fn load(files: &TlsFiles, old: Option<&Self>) -> Result<(Self, SystemTime), TlsFileProblem> {
        let pair = CertifiedPair::load(&files.cert, &files.key, SystemTime::now())?;
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = match builder.with_safe_default_protocol_versions() {
            Ok(builder) => builder,
            Err(error) => unreachable!("the provider supports the default versions: {error}"),
        };
        let (builder, authorities) = match &files.client_ca {
            None => (builder.with_no_client_auth(), None),
            Some(file) => {
                let (roots, digest) = roots(TlsKey::ClientCa, file)?;
                // Who has none may have a key or a token.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build();
                let verifier = verifier.map_err(|error| TlsFileProblem {
                    key: TlsKey::ClientCa,
                    file: file.clone(),
                    what: format!("it cannot be used: {error}"),
                })?;
                let verifier = Arc::new(NamedClients::new(verifier));
                (builder.with_client_cert_verifier(verifier), Some(digest))
            }
        };
        let chain: Vec<u8> = pair.certified.cert.iter().flat_map(|it| it.iter().copied()).collect();
        let resolver = Arc::new(SingleCertAndKey::from(pair.certified));
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        let trust = old.map(|old| &old.trust).filter(|trust| trust.authorities == authorities);
        let trust = trust.cloned().unwrap_or_else(|| {
            let (over, ends) = watch::channel(false);
            let standing = AuthorityStanding::default();
            Arc::new(ClientTrust { authorities, standing, over, ends })
        });
        let (config, shown) = (Arc::new(config), pair.fingerprint);
        Ok((Self { config, shown, chain: fingerprint(&chain), trust }, pair.facts.until))
    }
}

fn stamps(files: &TlsFiles) -> Stamps {
    let client_ca = files.client_ca.as_deref().and_then(file_stamp);
    [file_stamp(&files.cert), file_stamp(&files.key), client_ca]
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn files(&self) -> TlsFiles {
            let file = |name: &str| self.0.path().join(name);
            let client_ca = Some(file("clients.pem"));
            TlsFiles { cert: file("cert.pem"), key: file("key.pem"), client_ca }
        }

        fn pair() -> (String, String) {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        }

        fn write(&self, (cert, key): &(String, String), clients: &str) {
            let files = self.files();
            fs::write(files.cert, cert).unwrap();
            fs::write(files.key, key).unwrap();
            fs::write(files.client_ca.unwrap(), clients).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_used_leaves_what_was_in_force_and_is_told_until_it_can() {
        let folder = Folder::new();
        let (one, two, clients) = (Folder::pair(), Folder::pair(), Folder::pair().0);
        folder.write(&one, &clients);
        let tls = ListenerTls::load(folder.files()).unwrap();
        let first = tls.terms();
        folder.write(&one, &clients);
        tls.look(Instant::now());
        assert!(Arc::ptr_eq(&first, &tls.terms()), "sessions can be resumed");
        folder.write(&(two.0.clone(), one.1.clone()), &clients);
        tls.look(Instant::now());
        assert!(Arc::ptr_eq(&first, &tls.terms()));
        let fault = tls.health().fault(SystemTime::now()).unwrap();
        assert!(fault.contains("key.pem: the key does not fit"), "{fault}");
        folder.write(&two, &clients);
        tls.look(Instant::now());
        assert_ne!(tls.terms().shown, first.shown);
        assert_eq!(tls.health().fault(SystemTime::now()), None);
        assert!(Arc::ptr_eq(&first.trust, &tls.terms().trust), "clients stay");
        assert!(!*first.trust.ends.borrow());
    }

    #[test]
    fn clients_of_authorities_that_count_no_more_are_told_to_end() {
        let folder = Folder::new();
        let (pair, one, two) = (Folder::pair(), Folder::pair().0, Folder::pair().0);
        folder.write(&pair, &one);
        let tls = ListenerTls::load(folder.files()).unwrap();
        let first = tls.terms();
        let ends = first.trust.ends.clone();
        folder.write(&pair, "");
        tls.look(Instant::now());
        assert!(!*ends.borrow(), "an empty file is no change");
        folder.write(&pair, &two);
        tls.look(Instant::now());
        assert!(ends.has_changed().unwrap() && *ends.borrow());
        assert!(first.trust.standing.is_taken_back());
        let second = tls.terms().trust.ends.clone();
        tls.drain();
        assert!(*second.borrow());
        assert!(!tls.terms().trust.standing.is_taken_back(), "what is asked meanwhile is answered");
    }

    #[test]
    fn a_certificate_that_was_not_valid_yet_is_taken_up_once_it_is() {
        let folder = Folder::new();
        let (pair, clients) = (Folder::pair(), Folder::pair().0);
        folder.write(&pair, &clients);
        let tls = ListenerTls::load(folder.files()).unwrap();
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        let day = rcgen::date_time_ymd(1970, 1, 1);
        let soon = SystemTime::now() + Duration::from_secs(2);
        params.not_before = day + soon.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let early = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        folder.write(&early, &clients);
        let (first, now) = (tls.terms().shown, Instant::now());
        tls.look(now);
        let told = tls.health().fault(SystemTime::now()).unwrap();
        assert!(told.contains("not valid before"), "{told}");
        tls.look(now + TRY_AGAIN / 2);
        let mut at = now;
        while tls.terms().shown == first {
            assert!(now.elapsed() < Duration::from_secs(30), "it is not taken up");
            at += TRY_AGAIN;
            tls.look(at);
            std::thread::yield_now();
        }
        assert_eq!(tls.health().fault(SystemTime::now()), None);
    }
}
