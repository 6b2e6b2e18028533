//! A server's own section `tls`: whom we trust there, and who we are.
//!
//! The files are read whenever the server is connected to anew, so that renewed ones count from then on. Reads files:
//! not for a worker's thread.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use tokio_rustls::TlsConnector;

use crate::io::tls::{CertifiedPair, TlsFileProblem, TlsKey, connector, roots, system_roots};

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

    /// TLS as it is done with this server.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(super) fn connector(&self, now: SystemTime) -> Result<TlsConnector, TlsFileProblem> {
        let roots = match &self.ca {
            Some(file) => roots(TlsKey::Ca, file)?.0,
            None => system_roots(),
        };
        let pair = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(CertifiedPair::load(cert, key, now)?),
            (None, _) | (_, None) => None,
        };
        Ok(connector(roots, pair))
    }
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
        Error::InvalidMessage(_) => "it does not speak TLS there (http:// instead of https://?)",
        _ => return format!("TLS: {of_tls}"),
    };
    what.to_owned()
}
