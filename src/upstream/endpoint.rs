//! HTTP endpoint of a server: address, request target and TLS.
//!
//! [`ServerTls`] is a server's own `tls` section. Its files are watched ([`OwnTls::reload`]): new contents apply to
//! later connections, and the server reconnects. If files are unusable, the previous ones stay in force. The problem is
//! reported and the load is retried, since a certificate may simply not be valid yet. Reading files may block for a
//! long time on a hanging mount, so it never happens on a worker; [`OwnTls::problem`] never blocks.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use http::Uri;
use http::header::{HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use parking_lot::Mutex;
use rustls::AlertDescription as Alert;
use serde::Deserialize;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::server_log::ServerLog;
use mcpproxy_policy::identity::{FileStamp, file_stamp};
use mcpproxy_runtime::io::address::{Address, UNIX};
use mcpproxy_runtime::io::egress_proxy::{Egress, EgressRoute, bare_host};
use mcpproxy_runtime::io::tls::{
    CertifiedPair, Fingerprint, TlsFileProblem, TlsKey, connector, fingerprint, roots, system_roots,
};

/// Parsed URL of a server, shared by all its connections.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) place: ServerPlace,
    pub(super) route: EgressRoute,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(super) server_log: Arc<ServerLog>,
    /// Request target: in origin form, or in absolute form if a proxy forwards the requests.
    pub(super) path: Uri,
    /// Value of the `Host` header.
    pub(super) host_header: HeaderValue,
    /// TLS settings to use if the server redirects from plain http to https.
    pub(super) upgrade: Option<TlsSource>,
    /// Egress setting that determined the route.
    pub(super) egress: Egress,
}

/// Provides a server's TLS settings. Reads files, so it must not run on a worker thread.
pub(super) type TlsSource = Arc<dyn Fn() -> Result<TlsConnector, String> + Send + Sync>;

#[derive(Clone)]
pub(super) enum ServerPlace {
    Host(Arc<str>, u16),
    Unix(Arc<Path>),
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ServerPlace::Host(host, port) => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Parses a URL. The error is one line without possible secrets.
    pub(super) fn parse(
        url: &str,
        server_log: &Arc<ServerLog>,
        egress: &Egress,
        tls: impl Fn() -> Result<TlsConnector, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let url = match parse_url(url)? {
            UrlForm::Web(url) => url,
            UrlForm::Unix { path, target } => {
                return Ok(Self {
                    place: ServerPlace::Unix(path),
                    route: EgressRoute::Direct,
                    tls: None,
                    server_log: Arc::clone(server_log),
                    path: target,
                    host_header: HeaderValue::from_static("localhost"),
                    upgrade: None,
                    egress: Egress::Direct,
                });
            }
        };
        let secure = url.scheme() == "https";
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err("url names no host".to_owned());
        };
        let route = egress.route(&url)?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let read = |what: &str| format!("url has a {what} that cannot be sent");
        let bare = bare_host(host);
        let (tls, upgrade): (_, Option<TlsSource>) = if secure {
            let name = ServerName::try_from(bare.to_owned()).map_err(|_| read("host"))?;
            (Some((tls()?, name)), None)
        } else {
            (None, Some(Arc::new(tls)))
        };
        Ok(Self {
            place: ServerPlace::Host(bare.into(), port),
            tls,
            server_log: Arc::clone(server_log),
            path: request_target(&url, &route)?,
            host_header: HeaderValue::from_str(&authority).map_err(|_| read("host"))?,
            upgrade,
            egress: egress.clone(),
            route,
        })
    }

    /// The same server at another path.
    pub(super) fn with_path(&self, url: &url::Url) -> Result<Self, String> {
        Ok(Self { path: request_target(url, &self.route)?, ..self.clone() })
    }

    /// Header with the credentials for a proxy that forwards the requests.
    pub(super) fn proxy_authorization(&self) -> Option<(&HeaderName, &HeaderValue)> {
        Some((&PROXY_AUTHORIZATION, self.route.forwarding()?.authorization()?))
    }
}

/// Request target of a URL: in origin form, or in absolute form for a proxy.
fn request_target(url: &url::Url, route: &EgressRoute) -> Result<Uri, String> {
    let origin = route.forwarding().map(|_| format!("http://{}", url.authority()));
    let query = url.query().map(|query| format!("?{query}"));
    let [origin, query] = [origin, query].map(Option::unwrap_or_default);
    let target = format!("{origin}{}{query}", url.path());
    target.parse().map_err(|_| "url has a path that cannot be sent".to_owned())
}

/// Accepted forms of a server's URL.
#[derive(Debug)]
pub(super) enum UrlForm {
    /// `http` or `https`.
    Web(url::Url),
    /// `unix:/path/of.sock:/target`
    Unix { path: Arc<Path>, target: Uri },
}

/// Parses the URL of an endpoint. The error is one line without possible secrets.
pub(super) fn parse_url(url: &str) -> Result<UrlForm, String> {
    if let Some(rest) = url.strip_prefix(UNIX) {
        let form = "url has no request target after its socket, as in unix:/path/of.sock:/mcp";
        let (path, target) = rest.split_once(":/").ok_or(form)?;
        let Address::Unix(path) = Address::unix(Path::new(path)).map_err(|bad| bad.to_string())?
        else {
            return Err(form.to_owned());
        };
        let target = format!("/{target}").parse();
        let target = target.map_err(|_| "url has a path that cannot be sent".to_owned())?;
        return Ok(UrlForm::Unix { path, target });
    }
    let url = url::Url::parse(url).map_err(|error| format!("url cannot be read: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("url has scheme {}; http, https and unix are supported", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("url holds a user name or password; put credentials in headers".to_owned());
    }
    Ok(UrlForm::Web(url))
}

/// Interval between attempts to load unusable files.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The `tls` section as written. Relative paths are resolved against the directory of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServerTls {
    /// Certificate authorities for this server, **instead of** the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate with its chain.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl ServerTls {
    /// Resolves relative paths against `folder` and `~` against `home`.
    pub fn resolve_paths(&mut self, folder: &Path, home: Option<&Path>) {
        for file in [&mut self.ca, &mut self.cert, &mut self.key].into_iter().flatten() {
            *file = match (file.strip_prefix("~"), home) {
                (Ok(rest), Some(home)) => home.join(rest),
                (Ok(_), None) | (Err(_), _) => folder.join(&*file),
            };
        }
    }

    /// The missing one of `cert` and `key`, if only one of them is set.
    pub(super) fn missing_half(&self) -> Option<TlsKey> {
        match (&self.cert, &self.key) {
            (Some(_), None) => Some(TlsKey::Key),
            (None, Some(_)) => Some(TlsKey::Cert),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.ca, &self.cert, &self.key].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Loads the files. Fails with the first unusable file.
    pub(super) fn load(&self, now: SystemTime) -> Result<ConnectTerms, TlsFileProblem> {
        let (roots, authorities) = match &self.ca {
            Some(file) => {
                let (roots, digest) = roots(TlsKey::Ca, file)?;
                (roots, Some(digest))
            }
            None => (system_roots(), None),
        };
        let pair = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(CertifiedPair::load(cert, key, now)?),
            (None, _) | (_, None) => None,
        };
        let chain = pair.as_ref().map(|pair| {
            let chain = pair.certified.cert.iter();
            fingerprint(&chain.flat_map(|it| it.iter().copied()).collect::<Vec<u8>>())
        });
        Ok(ConnectTerms { connector: connector(roots, pair), authorities, chain })
    }

    fn stamps(&self) -> Stamps {
        let of = |file: &Option<PathBuf>| file.as_deref().and_then(file_stamp);
        [of(&self.ca), of(&self.cert), of(&self.key)]
    }
}

type Stamps = [Option<FileStamp>; 3];

/// Loaded TLS settings with digests to detect changes.
pub(super) struct ConnectTerms {
    connector: TlsConnector,
    authorities: Option<Fingerprint>,
    /// Digest of the client certificate with its chain.
    chain: Option<Fingerprint>,
}

impl ConnectTerms {
    fn matches(&self, other: &Self) -> bool {
        (self.authorities, self.chain) == (other.authorities, other.chain)
    }
}

/// Live TLS settings of one server: those of the last successful load.
pub(super) struct OwnTls {
    named: ServerTls,
    /// Locked while files are read, so it may be locked only where blocking is allowed.
    watch: Mutex<FileWatch>,
    /// Settings in force; `None` until the first successful load.
    terms: ArcSwapOption<ConnectTerms>,
    /// Problem with the files while earlier settings stay in force.
    problem: ArcSwapOption<String>,
}

#[derive(Default)]
struct FileWatch {
    /// File stamps at the last load; `None` before the first load.
    seen: Option<Stamps>,
    /// Time since which the files have been unusable, and the reason.
    unusable: Option<(Instant, String)>,
}

/// Result of a check of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TlsReload {
    Same,
    /// New settings are in force.
    Renewed,
    /// The files became unusable.
    Unusable(String),
    /// The files are usable again and match the settings in force.
    Recovered,
}

impl OwnTls {
    pub(super) fn new(named: ServerTls) -> Self {
        Self {
            named,
            watch: Mutex::default(),
            terms: ArcSwapOption::empty(),
            problem: ArcSwapOption::empty(),
        }
    }

    pub(super) fn has_settings(&self, named: &ServerTls) -> bool {
        self.named == *named
    }

    /// Connector for the server. Loads the files if no load has succeeded yet, which blocks. Fails with the first
    /// unusable file.
    pub(super) fn connector(&self, now: SystemTime) -> Result<TlsConnector, TlsFileProblem> {
        if let Some(connector) = self.in_force() {
            return Ok(connector);
        }
        let mut watch = self.watch.lock();
        // Another thread may have loaded the files in the meantime.
        if let Some(connector) = self.in_force() {
            return Ok(connector);
        }
        // The stamps are taken before the files are read, so that a concurrent write is detected.
        watch.seen = Some(self.named.stamps());
        let terms = self.named.load(now)?;
        let connector = terms.connector.clone();
        self.terms.store(Some(Arc::new(terms)));
        watch.unusable = None;
        Ok(connector)
    }

    fn in_force(&self) -> Option<TlsConnector> {
        self.terms.load().as_ref().map(|terms| terms.connector.clone())
    }

    /// Reloads the files after a change, or when a retry of unusable files is due. Blocks.
    pub(super) fn reload(&self, now: Instant, time: SystemTime) -> TlsReload {
        let mut watch = self.watch.lock();
        let since = watch.unusable.as_ref().map(|(since, _)| *since);
        let again = since.is_some_and(|since| now.duration_since(since) >= RETRY_INTERVAL);
        // The files have never been loaded.
        let Some(before) = watch.seen else { return TlsReload::Same };
        let seen = self.named.stamps();
        if seen == before && !again {
            return TlsReload::Same;
        }
        watch.seen = Some(seen);
        match self.named.load(time) {
            Ok(terms) => {
                let was_unusable = watch.unusable.take().is_some();
                let same = self.terms.load().as_ref().is_some_and(|old| old.matches(&terms));
                if !same {
                    self.terms.store(Some(Arc::new(terms)));
                }
                self.problem.store(None);
                match (same, was_unusable) {
                    (false, _) => TlsReload::Renewed,
                    (true, true) => TlsReload::Recovered,
                    (true, false) => TlsReload::Same,
                }
            }
            Err(problem) => {
                let message = format!("tls.{}: {problem}", problem.key.as_str());
                // Without settings in force, connection attempts report the problem.
                if self.terms.load().is_some() {
                    let shown = format!("{message}; the previous files stay in force");
                    self.problem.store(Some(Arc::new(shown)));
                }
                let before = watch.unusable.replace((now, message.clone()));
                let known = before.is_some_and(|(_, known)| known == message);
                if known { TlsReload::Same } else { TlsReload::Unusable(message) }
            }
        }
    }

    /// Problem with the files while earlier settings are in force; otherwise connection attempts report it. Never blocks.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.load().as_deref().cloned()
    }
}

/// Description of a TLS alert that ended a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TlsAlert {
    /// Failure of the proxy's certificate: later connections will fail the same way.
    OurCertificate(String),
    /// Failure that may concern only this connection.
    Other(String),
}

pub(super) fn alert(error: &io::Error) -> Option<TlsAlert> {
    use rustls::Error;
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(Error::AlertReceived(alert)) = of_tls else { return None };
    Some(match about_our_certificate(*alert) {
        Some(message) => TlsAlert::OurCertificate(message),
        None => TlsAlert::Other(describe_alert(*alert)),
    })
}

/// Message of an alert about the proxy's certificate; `None` for other alerts.
fn about_our_certificate(alert: Alert) -> Option<String> {
    let what = match alert {
        Alert::CertificateRequired => "it requires a client certificate (tls.cert and tls.key)",
        Alert::UnknownCA
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::AccessDenied => "it does not accept our certificate",
        _ => return None,
    };
    Some(format!("{what}: TLS alert {alert:?}"))
}

fn describe_alert(alert: Alert) -> String {
    about_our_certificate(alert).unwrap_or_else(|| format!("TLS: it sent the alert {alert:?}"))
}

/// Error text if the server does not respond to the handshake.
pub(super) const UNANSWERED: &str = "no answer to the TLS handshake (does the server use TLS on \
                                     this port? if not, use http:// instead of https://)";

/// Message of a failed handshake.
pub(super) fn explain(error: &io::Error) -> String {
    use rustls::{CertificateError, Error};
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(of_tls) = of_tls else {
        return match error.kind() {
            // Servers that do not use TLS often close the connection.
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => {
                "it closed the connection in the TLS handshake (does the server use TLS on this port? \
                 if not, use http:// instead of https://)"
                    .to_owned()
            }
            _ => error.to_string(),
        };
    };
    let what = match of_tls {
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired",
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet",
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another host name",
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate's issuer is not trusted (self-signed? name its authority as tls.ca)"
        }
        Error::AlertReceived(alert) => return describe_alert(*alert),
        Error::InvalidMessage(_) => {
            "it does not use TLS on this port (use http:// instead of https://?)"
        }
        _ => return format!("TLS: {of_tls}"),
    };
    what.to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::{fs, thread};

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn parse(url: &str) -> Result<Endpoint, String> {
        Endpoint::parse(url, &Arc::default(), &Egress::Direct, || unreachable!("no https here"))
    }

    #[test]
    fn url_yields_host_port_and_target() {
        for (url, shown, host, path) in [
            ("http://localhost/mcp", "localhost:80", "localhost", "/mcp"),
            ("http://127.0.0.1:9000", "127.0.0.1:9000", "127.0.0.1:9000", "/"),
            ("http://[::1]:9000/a%20b?key=v#no", "::1:9000", "[::1]:9000", "/a%20b?key=v"),
        ] {
            let endpoint = parse(url).unwrap();
            assert_eq!(format!("{endpoint:?}"), shown);
            assert_eq!(
                (endpoint.host_header.to_str().unwrap(), endpoint.path.to_string()),
                (host, path.into())
            );
        }
    }

    #[test]
    fn socket_path_is_followed_by_the_request_target() {
        let endpoint = parse("unix:/run/a.sock:/mcp?key=v").unwrap();
        assert_eq!(format!("{endpoint:?}"), "unix:/run/a.sock");
        assert_eq!(
            (endpoint.path.to_string(), endpoint.tls.is_none()),
            ("/mcp?key=v".into(), true)
        );
        assert_eq!(endpoint.host_header, "localhost");
        for (url, why) in [
            ("unix:/run/a.sock", "url has no request target after its socket"),
            ("unix:run/a.sock:/mcp", "the socket path must be absolute"),
            ("unix:/run/a.sock:/m cp", "url has a path that cannot be sent"),
        ] {
            assert!(parse(url).unwrap_err().starts_with(why), "{url}");
        }
        let long = format!("unix:/{}:/mcp", "a".repeat(200));
        assert!(parse(&long).unwrap_err().contains("longer than"));
    }

    #[test]
    fn unusable_url_is_reported_without_its_secrets() {
        for (url, why) in [
            ("/mcp", "url cannot be read: relative URL without a base"),
            ("ftp://h/", "url has scheme ftp; http, https and unix are supported"),
            ("http://u:p@h/", "url holds a user name or password; put credentials in headers"),
        ] {
            assert_eq!(parse(url).unwrap_err(), why);
        }
    }

    /// Time limit for an operation that must not block.
    const PATIENCE: Duration = Duration::from_secs(20);

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn named(&self) -> ServerTls {
            let file = |name: &str| Some(self.0.path().join(name));
            ServerTls { ca: file("ca.pem"), cert: file("cert.pem"), key: file("key.pem") }
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.path().join(name)).unwrap()
        }

        /// Replaces a file so that the change is detected even immediately afterwards.
        fn write(&self, name: &str, text: &str) {
            let (new, file) = (self.0.path().join("new"), self.0.path().join(name));
            fs::write(&new, text).unwrap();
            fs::rename(new, file).unwrap();
        }

        fn pair(&self, params: &CertificateParams) {
            let key = KeyPair::generate().unwrap();
            self.write("cert.pem", &params.self_signed(&key).unwrap().pem());
            self.write("key.pem", &key.serialize_pem());
        }

        fn authority(&self) {
            let key = KeyPair::generate().unwrap();
            self.write("ca.pem", &CertificateParams::default().self_signed(&key).unwrap().pem());
        }
    }

    fn whole() -> (Folder, OwnTls) {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.pair(&CertificateParams::default());
        folder.authority();
        let tls = OwnTls::new(folder.named());
        (folder, tls)
    }

    fn reload(tls: &OwnTls) -> TlsReload {
        tls.reload(Instant::now(), SystemTime::now())
    }

    #[test]
    fn files_are_not_checked_before_the_first_connection() {
        let (folder, tls) = whole();
        assert_eq!(reload(&tls), TlsReload::Same);
        folder.authority();
        assert_eq!(reload(&tls), TlsReload::Same);
        assert!(tls.connector(SystemTime::now()).is_ok());
        assert_eq!(reload(&tls), TlsReload::Same);
    }

    #[test]
    fn changed_files_are_loaded_and_identical_ones_ignored() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        folder.write("ca.pem", &format!("about it\n{}", folder.read("ca.pem")));
        assert_eq!(reload(&tls), TlsReload::Same);
        folder.authority();
        assert_eq!((reload(&tls), reload(&tls)), (TlsReload::Renewed, TlsReload::Same));
        folder.pair(&CertificateParams::default());
        assert_eq!((reload(&tls), reload(&tls)), (TlsReload::Renewed, TlsReload::Same));
        assert_eq!(tls.problem(), None);
    }

    #[test]
    fn unusable_files_are_reported_once_and_the_previous_stay_in_force() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        let key = folder.read("key.pem");
        folder.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        let TlsReload::Unusable(message) = reload(&tls) else { panic!() };
        assert!(
            message.starts_with("tls.key: ") && message.contains("does not match"),
            "{message}"
        );
        folder.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        assert_eq!(reload(&tls), TlsReload::Same, "already reported");
        assert!(tls.problem().unwrap().starts_with(&message));
        assert!(tls.connector(SystemTime::now()).is_ok(), "a connection can be made");
        folder.write("key.pem", &key);
        assert_eq!((reload(&tls), tls.problem()), (TlsReload::Recovered, None));
    }

    #[test]
    fn hanging_read_does_not_block_problem_or_connector() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        folder.write("ca.pem", "");
        let TlsReload::Unusable(message) = reload(&tls) else { panic!() };
        let tls = Arc::new(tls);
        // Simulates a read on a hanging mount.
        let _reads = tls.watch.lock();
        let (sender, receiver) = mpsc::channel();
        let asked = Arc::clone(&tls);
        thread::spawn(move || {
            let can_connect = asked.connector(SystemTime::now()).is_ok();
            // The test may have timed out already.
            let _ = sender.send((asked.problem(), can_connect));
        });
        let (problem, can_connect) = receiver.recv_timeout(PATIENCE).expect("no call blocks");
        assert!(problem.unwrap().starts_with(&message) && can_connect);
    }

    #[test]
    fn connections_fail_until_the_files_are_first_usable() {
        let (folder, tls) = whole();
        folder.write("ca.pem", "");
        let problem = tls.connector(SystemTime::now()).err().unwrap();
        assert_eq!(problem.key, TlsKey::Ca);
        assert_eq!((reload(&tls), tls.problem()), (TlsReload::Same, None));
        folder.authority();
        assert_eq!(reload(&tls), TlsReload::Renewed);
    }

    #[test]
    fn certificate_that_was_not_yet_valid_is_retried() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(3000, 1, 1);
        folder.pair(&params);
        let (now, time) = (Instant::now(), SystemTime::now());
        let TlsReload::Unusable(message) = tls.reload(now, time) else { panic!() };
        assert!(message.contains("not valid before 3000"), "{message}");
        let then = time + Duration::from_secs(1000 * 366 * 24 * 3600);
        assert_eq!(tls.reload(now + RETRY_INTERVAL / 2, then), TlsReload::Same);
        assert_eq!(tls.reload(now + RETRY_INTERVAL, then), TlsReload::Renewed);
    }

    #[test]
    fn alerts_are_described_and_those_about_our_certificate_distinguished() {
        let refused =
            |alert: &str| format!("it does not accept our certificate: TLS alert {alert}");
        let wanted = "it requires a client certificate (tls.cert and tls.key): TLS alert \
                      CertificateRequired";
        let other = |alert: &str| format!("TLS: it sent the alert {alert}");
        for (of, message) in [
            (Alert::UnknownCA, TlsAlert::OurCertificate(refused("UnknownCA"))),
            (Alert::CertificateExpired, TlsAlert::OurCertificate(refused("CertificateExpired"))),
            (Alert::CertificateRequired, TlsAlert::OurCertificate(wanted.to_owned())),
            (Alert::InternalError, TlsAlert::Other(other("InternalError"))),
            (Alert::BadRecordMac, TlsAlert::Other(other("BadRecordMac"))),
        ] {
            let error = io::Error::other(rustls::Error::AlertReceived(of));
            assert_eq!(alert(&error), Some(message));
        }
        assert_eq!(alert(&io::Error::other(rustls::Error::DecryptError)), None);
        assert_eq!(alert(&io::Error::from(ErrorKind::ConnectionReset)), None);
    }
}
