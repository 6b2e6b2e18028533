//! A server's own section `tls`: whom we trust there, and who we are.
//!
//! Its files are watched ([`OwnTls::look`]): others count for connections to come, and the server begins again with them,
//! since it is another that is trusted, or we are. What cannot be used is told, and what was in force stays; it is
//! tried again, for a certificate may only not be valid yet. Whoever reads files waits, for ever where they lie on a mount
//! that hangs: not for a worker's thread. What workers ask for ([`OwnTls::problem`]) waits for nobody.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::AlertDescription as Alert;
use serde::Deserialize;
use tokio_rustls::TlsConnector;

use crate::identity::{FileStamp, file_stamp};
use crate::io::tls::{
    CertifiedPair, Fingerprint, TlsFileProblem, TlsKey, connector, fingerprint, roots, system_roots,
};

/// How long what cannot be used is left alone, if nothing changes.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The section, as typed. Files that are no whole paths are from the folder of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServerTls {
    /// The authorities that count for this server, **instead of** the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate there, with its chain.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl ServerTls {
    /// The files are in `folder`, or in `home` if their names begin with `~`.
    pub fn lie_in(&mut self, folder: &Path, home: Option<&Path>) {
        for file in [&mut self.ca, &mut self.cert, &mut self.key].into_iter().flatten() {
            *file = match (file.strip_prefix("~"), home) {
                (Ok(rest), Some(home)) => home.join(rest),
                (Ok(_), None) | (Err(_), _) => folder.join(&*file),
            };
        }
    }

    /// The key that is missing beside its counterpart.
    pub(super) fn half(&self) -> Option<TlsKey> {
        match (&self.cert, &self.key) {
            (Some(_), None) => Some(TlsKey::Key),
            (None, Some(_)) => Some(TlsKey::Cert),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.ca, &self.cert, &self.key].into_iter().flatten().map(PathBuf::as_path)
    }

    /// TLS as it is done with this server.
    ///
    /// # Errors
    /// The first file that cannot be used.
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

/// What connections to a server are made under.
pub(super) struct ConnectTerms {
    connector: TlsConnector,
    /// Of the authorities that the section names.
    authorities: Option<Fingerprint>,
    /// Of our certificate with its chain.
    chain: Option<Fingerprint>,
}

impl ConnectTerms {
    fn are_as(&self, other: &Self) -> bool {
        (self.authorities, self.chain) == (other.authorities, other.chain)
    }
}

/// The TLS of one server: what its files said when they could be used last.
pub(super) struct OwnTls {
    named: ServerTls,
    /// Held while files are read: only who may wait for that takes it.
    looks: Mutex<Looks>,
    /// What is in force; `None` until the files could be used.
    terms: ArcSwapOption<ConnectTerms>,
    /// What is wrong with the files while others are in force.
    problem: ArcSwapOption<String>,
}

/// What was found so far when the files were looked at.
#[derive(Default)]
struct Looks {
    /// The files as they were when they were read last; `None` before that.
    seen: Option<Stamps>,
    /// Since when they cannot be used, and why.
    unusable: Option<(Instant, String)>,
}

/// What a look at the files has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// All is as it was.
    Same,
    /// Others are in force.
    Renewed,
    /// They cannot be used, and that is news.
    Unusable(String),
    /// They could not be used, and say again what is in force.
    Mended,
}

impl OwnTls {
    /// Reads nothing yet.
    pub(super) fn new(named: ServerTls) -> Self {
        Self {
            named,
            looks: Mutex::default(),
            terms: ArcSwapOption::empty(),
            problem: ArcSwapOption::empty(),
        }
    }

    /// The section that it is about.
    pub(super) fn is_of(&self, named: &ServerTls) -> bool {
        self.named == *named
    }

    /// How the server is connected to now. Reads the files if they could not be used so far, and blocks then.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(super) fn connector(&self, now: SystemTime) -> Result<TlsConnector, TlsFileProblem> {
        if let Some(connector) = self.in_force() {
            return Ok(connector);
        }
        let mut looks = self.looks.lock();
        // Who had the files until now may have taken them up.
        if let Some(connector) = self.in_force() {
            return Ok(connector);
        }
        // Before they are read: what is written meanwhile is another state.
        looks.seen = Some(self.named.stamps());
        let terms = self.named.load(now)?;
        let connector = terms.connector.clone();
        self.terms.store(Some(Arc::new(terms)));
        looks.unusable = None;
        Ok(connector)
    }

    fn in_force(&self) -> Option<TlsConnector> {
        self.terms.load().as_ref().map(|terms| terms.connector.clone())
    }

    /// Reads the files again if one of them has changed, or could not be used a while ago. Blocks.
    pub(super) fn look(&self, now: Instant, time: SystemTime) -> Looked {
        let mut looks = self.looks.lock();
        let since = looks.unusable.as_ref().map(|(since, _)| *since);
        let again = since.is_some_and(|since| now.duration_since(since) >= TRY_AGAIN);
        // Nobody has wanted them yet.
        let Some(before) = looks.seen else { return Looked::Same };
        let seen = self.named.stamps();
        if seen == before && !again {
            return Looked::Same;
        }
        looks.seen = Some(seen);
        match self.named.load(time) {
            Ok(terms) => {
                let was_unusable = looks.unusable.take().is_some();
                let same = self.terms.load().as_ref().is_some_and(|old| old.are_as(&terms));
                if !same {
                    self.terms.store(Some(Arc::new(terms)));
                }
                self.problem.store(None);
                match (same, was_unusable) {
                    (false, _) => Looked::Renewed,
                    (true, true) => Looked::Mended,
                    (true, false) => Looked::Same,
                }
            }
            Err(problem) => {
                let told = format!("tls.{}: {problem}", problem.key.as_str());
                // Where none are in force, whoever connects is told.
                if self.terms.load().is_some() {
                    let shown = format!("{told}; what was in force before stays");
                    self.problem.store(Some(Arc::new(shown)));
                }
                let before = looks.unusable.replace((now, told.clone()));
                let known = before.is_some_and(|(_, known)| known == told);
                if known { Looked::Same } else { Looked::Unusable(told) }
            }
        }
    }

    /// What is wrong with the files while others are in force that could be used; else whoever connects is told. Waits for
    /// nobody who reads them.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.load().as_deref().cloned()
    }
}

/// An alert that the other side has ended the connection with, in words about this server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Alerted {
    /// Our certificate, or that we have none, is the cause: a connection made anew ends in the same way.
    OfCertificate(String),
    /// Another one, which may be of this connection alone.
    Other(String),
}

/// The alert that a connection was ended with, if it was one.
pub(super) fn alert(error: &io::Error) -> Option<Alerted> {
    use rustls::Error;
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(Error::AlertReceived(alert)) = of_tls else { return None };
    Some(match of_certificate(*alert) {
        Some(told) => Alerted::OfCertificate(told),
        None => Alerted::Other(alert_told(*alert)),
    })
}

/// What an alert says of our certificate; `None` if it is about something else.
fn of_certificate(alert: Alert) -> Option<String> {
    let what = match alert {
        Alert::CertificateRequired => "it wants a certificate of ours (tls.cert and tls.key)",
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

fn alert_told(alert: Alert) -> String {
    of_certificate(alert).unwrap_or_else(|| format!("TLS: it sent the alert {alert:?}"))
}

/// What is said of a server that takes the connection, and says nothing in the handshake.
pub(super) const UNANSWERED: &str =
    "no answer to the TLS handshake (does it speak TLS there? http:// instead of https://?)";

/// What a failed handshake says, in words about this server.
pub(super) fn explain(error: &io::Error) -> String {
    use rustls::{CertificateError, Error};
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(of_tls) = of_tls else {
        return match error.kind() {
            // What does not understand a handshake often hangs up.
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => {
                "it closed the connection in the TLS handshake (does it speak TLS there? http:// instead of https://?)"
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
            "its certificate is of no authority that is trusted (self-signed? name its authority as tls.ca)"
        }
        Error::AlertReceived(alert) => return alert_told(*alert),
        Error::InvalidMessage(_) => "it does not speak TLS there (http:// instead of https://?)",
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

    /// Longest time that an answer may take which waits for nobody.
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

        /// Puts another file in its place, which is known as such however soon it comes.
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

    fn look(tls: &OwnTls) -> Looked {
        tls.look(Instant::now(), SystemTime::now())
    }

    #[test]
    fn what_nobody_has_connected_with_is_not_looked_at() {
        let (folder, tls) = whole();
        assert_eq!(look(&tls), Looked::Same);
        folder.authority();
        assert_eq!(look(&tls), Looked::Same);
        assert!(tls.connector(SystemTime::now()).is_ok());
        assert_eq!(look(&tls), Looked::Same);
    }

    #[test]
    fn others_are_renewed_and_the_same_written_again_are_the_same() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        folder.write("ca.pem", &format!("about it\n{}", folder.read("ca.pem")));
        assert_eq!(look(&tls), Looked::Same);
        folder.authority();
        assert_eq!((look(&tls), look(&tls)), (Looked::Renewed, Looked::Same));
        folder.pair(&CertificateParams::default());
        assert_eq!((look(&tls), look(&tls)), (Looked::Renewed, Looked::Same));
        assert_eq!(tls.problem(), None);
    }

    #[test]
    fn the_unusable_are_told_once_and_what_was_in_force_stays() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        let key = folder.read("key.pem");
        folder.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        let Looked::Unusable(told) = look(&tls) else { panic!() };
        assert!(told.starts_with("tls.key: ") && told.contains("does not fit"), "{told}");
        folder.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        assert_eq!(look(&tls), Looked::Same, "it is known");
        assert!(tls.problem().unwrap().starts_with(&told));
        assert!(tls.connector(SystemTime::now()).is_ok(), "a connection can be made");
        folder.write("key.pem", &key);
        assert_eq!((look(&tls), tls.problem()), (Looked::Mended, None));
    }

    #[test]
    fn what_is_in_force_is_told_while_somebody_reads_the_files_without_end() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        folder.write("ca.pem", "");
        let Looked::Unusable(told) = look(&tls) else { panic!() };
        let tls = Arc::new(tls);
        // As whoever looks at files on a mount that hangs.
        let _reads = tls.looks.lock();
        let (tell, heard) = mpsc::channel();
        let asked = Arc::clone(&tls);
        thread::spawn(move || {
            let can_connect = asked.connector(SystemTime::now()).is_ok();
            // The test may have given up.
            let _ = tell.send((asked.problem(), can_connect));
        });
        let (problem, can_connect) = heard.recv_timeout(PATIENCE).expect("nobody is waited for");
        assert!(problem.unwrap().starts_with(&told) && can_connect);
    }

    #[test]
    fn what_could_never_be_used_fails_whoever_connects_and_is_taken_up_when_it_can_be() {
        let (folder, tls) = whole();
        folder.write("ca.pem", "");
        let problem = tls.connector(SystemTime::now()).err().unwrap();
        assert_eq!(problem.key, TlsKey::Ca);
        assert_eq!((look(&tls), tls.problem()), (Looked::Same, None));
        folder.authority();
        assert_eq!(look(&tls), Looked::Renewed);
    }

    #[test]
    fn a_certificate_that_was_not_valid_yet_is_tried_again() {
        let (folder, tls) = whole();
        tls.connector(SystemTime::now()).unwrap();
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(3000, 1, 1);
        folder.pair(&params);
        let (now, time) = (Instant::now(), SystemTime::now());
        let Looked::Unusable(told) = tls.look(now, time) else { panic!() };
        assert!(told.contains("not valid before 3000"), "{told}");
        let then = time + Duration::from_secs(1000 * 366 * 24 * 3600);
        assert_eq!(tls.look(now + TRY_AGAIN / 2, then), Looked::Same);
        assert_eq!(tls.look(now + TRY_AGAIN, then), Looked::Renewed);
    }

    #[test]
    fn an_alert_is_told_in_words_and_apart_where_it_is_about_our_certificate() {
        let refused =
            |alert: &str| format!("it does not accept our certificate: TLS alert {alert}");
        let wanted = "it wants a certificate of ours (tls.cert and tls.key): TLS alert \
                      CertificateRequired";
        let other = |alert: &str| format!("TLS: it sent the alert {alert}");
        for (of, told) in [
            (Alert::UnknownCA, Alerted::OfCertificate(refused("UnknownCA"))),
            (Alert::CertificateExpired, Alerted::OfCertificate(refused("CertificateExpired"))),
            (Alert::CertificateRequired, Alerted::OfCertificate(wanted.to_owned())),
            (Alert::InternalError, Alerted::Other(other("InternalError"))),
            (Alert::BadRecordMac, Alerted::Other(other("BadRecordMac"))),
        ] {
            let error = io::Error::other(rustls::Error::AlertReceived(of));
            assert_eq!(alert(&error), Some(told));
        }
        assert_eq!(alert(&io::Error::other(rustls::Error::DecryptError)), None);
        assert_eq!(alert(&io::Error::from(ErrorKind::ConnectionReset)), None);
    }
}
