//! The listener: a TCP address or a Unix socket, and its TLS settings, which are reloaded when their files change.
//!
//! Clients of a Unix socket have the source [`Source::Loopback`] and no principal until they authenticate. The permissions of the socket's
//! file restrict access.
//!
//! TLS files are read again when they change ([`ListenerTls::reload_if_changed`]). Invalid files are reported and the previous ones stay in
//! force; the files are retried, because a certificate may simply not be valid yet. Open connections keep their settings, except that a
//! connection with a client certificate is closed, and its requests are rejected, when other authorities become trusted. TLS sessions are
//! not resumed across a change.

use std::io::ErrorKind;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

use mcpproxy_config::TlsFiles;
use mcpproxy_downstream::source::Source;
use mcpproxy_gateway::telemetry::CertificateHealth;
use mcpproxy_policy::identity::{AuthorityStanding, FileStamp, file_stamp};
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::io::tls::{
    CertifiedPair, Fingerprint, TlsFileFault, TlsFileProblem, TlsKey, facts, fingerprint, provider,
    roots,
};
use mcpproxy_runtime::os::private;

/// Permissions of a socket's file.
const SOCKET_MODE: u32 = 0o600;

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    Tcp(StdListener),
    Unix(UnixSocketListener),
}

/// A bound Unix socket; its file is removed with it.
#[derive(Debug)]
pub struct UnixSocketListener {
    listener: StdUnixListener,
    file: SocketFile,
}

/// File of a bound socket. Removed when dropped, unless it was replaced by another file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: Arc<Path>,
    identity: Option<(u64, u64)>,
}

impl Listener {
    /// Binds the address, replacing a socket file without a listener. Returns [`ErrorKind::AddrInUse`] if another process listens.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => StdListener::bind(address).map(Self::Tcp),
            Address::Unix(path) => UnixSocketListener::open(path).map(Self::Unix),
        }
    }

    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(socket) => Ok(Address::Unix(Arc::clone(&socket.file.path))),
        }
    }

    /// Registers the listener with the current runtime. The returned socket file must be kept as long as the listener
    /// is in use.
    pub(super) fn open(self) -> io::Result<(OpenListener, Option<SocketFile>)> {
        match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok((OpenListener::Tcp(TcpListener::from_std(listener)?), None))
            }
            Self::Unix(UnixSocketListener { listener, file }) => {
                listener.set_nonblocking(true)?;
                Ok((OpenListener::Unix(UnixListener::from_std(listener)?), Some(file)))
            }
        }
    }
}

impl From<StdListener> for Listener {
    fn from(listener: StdListener) -> Self {
        Self::Tcp(listener)
    }
}

impl UnixSocketListener {
    fn open(path: &Arc<Path>) -> io::Result<Self> {
        remove_stale(path)?;
        let listener = private::apart(|| StdUnixListener::bind(path))?;
        let file = SocketFile { path: Arc::clone(path), identity: identity(path) };
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        Ok(Self { listener, file })
    }
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "the path exists and is not a socket",
        ));
    }
    // Connecting must not block on a process that does not accept.
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        Ok(()) | Err(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // A file left behind is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listener registered with a runtime.
#[derive(Debug)]
pub(super) enum OpenListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection being handed to another runtime.
#[derive(Debug)]
pub(super) enum ClientSocket {
    Tcp(StdStream),
    Unix(StdUnixStream),
}

impl OpenListener {
    pub(super) async fn accept(&self) -> io::Result<(Accepted, Source)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok((Accepted::Tcp(socket), Source::of(peer.ip())))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                Ok((Accepted::Unix(socket), Source::Loopback))
            }
        }
    }
}

impl Accepted {
    pub(super) fn hand_over(self) -> io::Result<ClientSocket> {
        match self {
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                socket.into_std().map(ClientSocket::Tcp)
            }
            Self::Unix(socket) => socket.into_std().map(ClientSocket::Unix),
        }
    }
}

/// ALPN protocols, preferred first (RFC 7301).
pub(super) const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// Retry interval for unusable files that do not change.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// TLS settings of a listener.
pub struct ListenerTls {
    files: Mutex<Files>,
    terms: ArcSwap<TlsTerms>,
    health: Arc<CertificateHealth>,
}

struct Files {
    named: TlsFiles,
    /// Stamps of the files when they were last read.
    seen: Stamps,
    /// Time of the last read if the files were unusable.
    unusable: Option<Instant>,
}

type Stamps = [Option<FileStamp>; 3];

/// TLS settings of a connection.
pub(super) struct TlsTerms {
    pub(super) config: Arc<ServerConfig>,
    pub(super) shown: Fingerprint,
    /// Fingerprint of the server certificate with its chain.
    chain: Fingerprint,
    pub(super) trust: Arc<ClientTrust>,
}

/// Trusted authorities of client certificates.
pub(super) struct ClientTrust {
    authorities: Option<Fingerprint>,
    /// Validity of the authorities. Requests on connections that are being closed check it.
    pub(super) standing: AuthorityStanding,
    over: watch::Sender<bool>,
    /// Becomes true when other authorities become trusted or the server shuts down. Only clones of the receiver are polled.
    pub(super) ends: watch::Receiver<bool>,
}

impl ListenerTls {
    /// Reads the files; an error names the first unusable file.
    pub fn load(named: TlsFiles) -> Result<Self, TlsFileProblem> {
        let seen = stamps(&named);
        let (terms, until) = TlsTerms::load(&named, None)?;
        let files = Mutex::new(Files { named, seen, unusable: None });
        let health = Arc::new(CertificateHealth::new(until));
        Ok(Self { files, terms: ArcSwap::from_pointee(terms), health })
    }

    /// Expiry of the certificate, and faults in the files.
    pub fn health(&self) -> &Arc<CertificateHealth> {
        &self.health
    }

    /// Reads the files again if one has changed, or if a retry is due. Blocks.
    pub(super) fn reload_if_changed(&self, now: Instant) {
        let mut files = self.files.lock();
        let again = files.unusable.is_some_and(|since| now.duration_since(since) >= RETRY_INTERVAL);
        let seen = stamps(&files.named);
        if seen == files.seen && !again {
            return;
        }
        let reloaded = self.reload(&files.named);
        files.seen = seen;
        files.unusable = reloaded.is_err().then_some(now);
        self.report(reloaded.err());
    }

    fn reload(&self, named: &TlsFiles) -> Result<(), TlsFileProblem> {
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
            // This happens after the new settings are in force, so that no connection is accepted under the old ones in
            // between.
            trust.standing.take_back();
            trust.over.send_replace(true);
        }
        tracing::info!("reloaded the TLS files of the listener");
        Ok(())
    }

    /// Stores a fault in the files, and logs a new one.
    fn report(&self, problem: Option<TlsFileProblem>) {
        let problem = problem.map(|problem| problem.to_string());
        if let (true, Some(problem)) = (self.health.set_problem(problem.clone()), problem) {
            tracing::error!(%problem, "the TLS files of the listener are unusable; the previous ones stay in force");
        }
    }

    /// Settings for a new connection.
    pub(super) fn terms(&self) -> Arc<TlsTerms> {
        self.terms.load_full()
    }

    pub(super) fn drain(&self) {
        self.terms.load().trust.over.send_replace(true);
    }
}

impl TlsTerms {
    /// Reads the files; also returns the expiry of the certificate.
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
                // Clients without a certificate may use a key or a token.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build();
                let verifier = verifier.map_err(|error| TlsFileProblem {
                    key: TlsKey::ClientCa,
                    file: file.clone(),
                    fault: TlsFileFault::Content(format!("unusable: {error}")),
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

/// Interval of checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of warnings about the certificate's expiry.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Reloads changed TLS files and warns about the certificate's expiry, until aborted.
pub(super) async fn watch_tls_files(tls: Arc<ListenerTls>) {
    let mut warned: Option<Instant> = None;
    loop {
        let due = warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL);
        if due && let Some(end) = tls.health().end_is_near(SystemTime::now()) {
            warned = Some(Instant::now());
            tracing::warn!("the listener's certificate: {end}");
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
        let checked = Arc::clone(&tls);
        // Fails only when the runtime shuts down.
        let _ =
            tokio::task::spawn_blocking(move || checked.reload_if_changed(Instant::now())).await;
    }
}

/// Verifier of client certificates that also rejects certificates without a name.
#[derive(Debug)]
pub(super) struct NamedClients(Arc<dyn ClientCertVerifier>);

impl NamedClients {
    pub(super) fn new(chains: Arc<dyn ClientCertVerifier>) -> Self {
        Self(chains)
    }
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(certificate, chain, now)?;
        match facts(certificate).is_some_and(|facts| facts.name.is_ok()) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn address(folder: &tempfile::TempDir) -> (Address, std::path::PathBuf) {
        let path = folder.path().join("a.sock");
        (Address::unix(&path).unwrap(), path)
    }

    #[test]
    fn socket_file_is_private_and_removed_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let (address, path) = address(&folder);
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (address, path) = address(&folder);
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the file was left behind");
        let live = Listener::bind(&address).unwrap();
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(path.exists() && std::os::unix::net::UnixStream::connect(&path).is_ok());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(live);
        assert!(path.exists(), "another file stays");
        let refused = Listener::bind(&address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

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
    fn unusable_files_keep_the_previous_ones_and_are_reported() {
        let folder = Folder::new();
        let (one, two, clients) = (Folder::pair(), Folder::pair(), Folder::pair().0);
        folder.write(&one, &clients);
        let tls = ListenerTls::load(folder.files()).unwrap();
        let first = tls.terms();
        folder.write(&one, &clients);
        tls.reload_if_changed(Instant::now());
        assert!(Arc::ptr_eq(&first, &tls.terms()), "TLS sessions can be resumed");
        folder.write(&(two.0.clone(), one.1.clone()), &clients);
        tls.reload_if_changed(Instant::now());
        assert!(Arc::ptr_eq(&first, &tls.terms()));
        let fault = tls.health().fault(SystemTime::now()).unwrap();
        assert!(fault.contains("key.pem: the key does not match"), "{fault}");
        folder.write(&two, &clients);
        tls.reload_if_changed(Instant::now());
        assert_ne!(tls.terms().shown, first.shown);
        assert_eq!(tls.health().fault(SystemTime::now()), None);
        assert!(Arc::ptr_eq(&first.trust, &tls.terms().trust), "client authorities are unchanged");
        assert!(!*first.trust.ends.borrow());
    }

    #[test]
    fn change_of_authorities_ends_connections_of_their_clients() {
        let folder = Folder::new();
        let (pair, one, two) = (Folder::pair(), Folder::pair().0, Folder::pair().0);
        folder.write(&pair, &one);
        let tls = ListenerTls::load(folder.files()).unwrap();
        let first = tls.terms();
        let ends = first.trust.ends.clone();
        folder.write(&pair, "");
        tls.reload_if_changed(Instant::now());
        assert!(!*ends.borrow(), "an empty file is rejected");
        folder.write(&pair, &two);
        tls.reload_if_changed(Instant::now());
        assert!(ends.has_changed().unwrap() && *ends.borrow());
        assert!(first.trust.standing.is_taken_back());
        let second = tls.terms().trust.ends.clone();
        tls.drain();
        assert!(*second.borrow());
        assert!(
            !tls.terms().trust.standing.is_taken_back(),
            "requests during the shutdown are answered"
        );
    }

    #[test]
    fn certificate_is_applied_once_it_becomes_valid() {
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
        tls.reload_if_changed(now);
        let fault = tls.health().fault(SystemTime::now()).unwrap();
        assert!(fault.contains("not valid before"), "{fault}");
        tls.reload_if_changed(now + RETRY_INTERVAL / 2);
        let mut at = now;
        while tls.terms().shown == first {
            assert!(now.elapsed() < Duration::from_secs(30), "the certificate is not applied");
            at += RETRY_INTERVAL;
            tls.reload_if_changed(at);
            std::thread::yield_now();
        }
        assert_eq!(tls.health().fault(SystemTime::now()), None);
    }
}
